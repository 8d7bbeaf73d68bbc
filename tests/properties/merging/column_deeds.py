"""Work on columns, done by one of two programs, and what it makes of the model."""

import uuid
from dataclasses import replace

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from tests.properties.merging.rows_model import Column, Snapshot, Value
from tests.properties.merging.scene import CASTS, MOST_COLUMNS, TYPES, Deed, Scene
from tests.properties.mirror import KEY


def add_null(scene: Scene) -> Deed | None:
    """Add a column without values."""
    if len(scene.seen.columns) >= MOST_COLUMNS:
        return None
    stamp = scene.stamp
    # By a name of its own: what two branches call alike is one column, as long as neither has values for older rows.
    column = Column(token=stamp, name=f"n{stamp}", type=scene.dice.pick(list(TYPES)))
    scene.writer.add_null(scene.branch, column.name, column.type)
    return Deed(did="add column", told=f"{column.name} of nulls", result=scene.seen.with_column(column))


def add_computed(scene: Scene) -> Deed | None:
    """Add a column with values of an expression, or of a table by its key."""
    if len(scene.seen.columns) >= MOST_COLUMNS or not scene.seen.rows:
        return None
    stamp = scene.stamp
    column = Column(token=stamp, name=_new_name(scene, stamp), type=pa.int64(), computed=True)
    by_key = scene.dice.below(2)
    values: dict[int, Value] = {uid: uid * 1000 + stamp for uid in scene.seen.rows}
    if by_key:
        values = {uid: None if uid % 5 == 0 else value for uid, value in values.items()}
        data = pa.table({KEY: list(values), column.name: pa.array(list(values.values()), pa.int64())})
        if scene.ours:
            scene.table.add_columns(data, on=[KEY], branch=scene.branch)
        else:
            scene.dataset.merge(data, KEY)
    else:
        scene.writer.add_computed(scene.branch, column.name, f"{KEY} * 1000 + {stamp}")
    result = scene.seen.with_column(column).rewritten(column.token, values, stamp, partly=False)
    return Deed(did="add column", told=f"{column.name} {'by key' if by_key else 'computed'}", result=result)


def _new_name(scene: Scene, stamp: int) -> str:
    """A name of its own, at times one that another branch may choose too."""
    shared = "extra"
    return shared if scene.dice.below(8) == 0 and scene.seen.by_name(shared) is None else f"n{stamp}"


def drop(scene: Scene) -> Deed | None:
    """Take a column out."""
    column = scene.free_column()
    if column is None:
        return None
    scene.writer.drop(scene.branch, column.name)
    return Deed(did="drop", told=column.name, result=scene.seen.without_column(column.token))


def rename(scene: Scene) -> Deed | None:
    """Call a column something else."""
    column = scene.free_column()
    if column is None:
        return None
    stamp = scene.stamp
    name = _new_name(scene, stamp) if column.computed else f"n{stamp}"
    scene.writer.rename(scene.branch, column.name, name)
    result = scene.seen.with_column(replace(column, name=name))
    return Deed(did="rename", told=f"{column.name} to {name}", result=result)


def cast(scene: Scene) -> Deed | None:
    """Give a column another type."""
    column = scene.free_column(scalar=True, unindexed=True)
    if column is None:
        return None
    try:
        scene.writer.cast(scene.branch, column.name, CASTS[column.type])
    except OSError as error:
        # pylance reads values of deleted rows too, which may be null where no row may be any more.
        if scene.ours or "unmasked nulls" not in str(error):
            raise
        return None
    return Deed(did="cast", told=column.name, result=scene.seen.with_cast(column, CASTS[column.type], scene.stamp))


def forbid_nulls(scene: Scene) -> Deed | None:
    """Refuse nulls in a column from now on, or allow them again."""
    column = scene.free_column()
    if column is None or (column.nullable and any(row.value(column) is None for row in scene.seen.rows.values())):
        return None
    if scene.ours:
        scene.table.set_nullable(column.name, nullable=not column.nullable, branch=scene.branch)
    else:
        scene.dataset.alter_columns({"path": column.name, "nullable": not column.nullable})  # type: ignore[dict-item]
    result = scene.seen.with_column(replace(column, nullable=not column.nullable))
    return Deed(did="nullable", told=f"{column.name}: {not column.nullable}", result=result)


def rewrite(scene: Scene) -> Deed | None:
    """Write some values of a column in place, as pylance does for one fragment."""
    column, key = scene.free_column(unindexed=True), scene.seen.by_name(KEY)
    fragments = scene.dataset.get_fragments()
    if column is None or key is None or not fragments:
        return None
    dataset, fragment = scene.dataset, scene.dice.pick(list(fragments))
    uids: list[int] = fragment.to_table(columns=[KEY]).to_pydict()[KEY]
    values = {uid: scene.names.filled((column,), 0, "")[column.token] for uid in uids}
    data = scene.seen.arrow(
        [{key.token: uid, column.token: value} for uid, value in values.items()], [key.token, column.token]
    )
    changed, fields = fragment.update_columns(data, left_on=KEY)
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    result = scene.seen.rewritten(column.token, values, scene.stamp, partly=False)
    return Deed(did="rewrite", told=f"{column.name} of {sorted(uids)} in place", result=result)


def replace_data(scene: Scene) -> Deed | None:
    """Put another file in the place of one that holds one column only."""
    dataset = scene.dataset
    for fragment in dataset.get_fragments():
        for file in fragment.data_files():
            column = _only_column(dataset, scene.seen, file)
            if column is None or column.token in scene.seen.indices.values():
                continue
            here = fragment.to_table(columns=[KEY], with_row_address=True).to_pydict()
            if not here[KEY]:
                continue
            values = {uid: scene.names.filled((column,), 0, "")[column.token] for uid in here[KEY]}
            places = (address & 0xFFFFFFFF for address in here["_rowaddr"])
            by_place = dict(zip(places, values.values(), strict=True))
            filler = next((value for value in values.values() if value is not None), None)
            written = [
                by_place.get(place, None if column.nullable else filler) for place in range(fragment.physical_rows)
            ]
            _replace_file(scene, fragment.fragment_id, file, written, column)
            result = scene.seen.rewritten(column.token, values, scene.stamp, partly=False)
            return Deed(did="replace data", told=f"{column.name} of {sorted(values)}", result=result)
    return None


def _only_column(dataset: lance.LanceDataset, seen: Snapshot, file: DataFile) -> Column | None:
    if file.base_id is not None or len(file.fields) != 1:
        return None
    for column in seen.columns:
        field_of = dataset.lance_schema.field(column.name)
        if field_of is not None and field_of.id() == file.fields[0] and column.type in CASTS:
            return column
    return None


def _replace_file(scene: Scene, fragment: int, old: DataFile, values: list[Value], column: Column) -> None:
    dataset = scene.dataset
    root = scene.uri if scene.branch == "main" else f"{scene.uri}/tree/{scene.branch}"
    name = f"{uuid.uuid4().hex}.lance"
    schema = pa.schema([pa.field(column.name, column.type, column.nullable)])
    version = f"{old.file_major_version}.{old.file_minor_version}"
    with LanceFileWriter(f"{root}/data/{name}", schema, version=version) as writer:
        writer.write_batch(pa.record_batch([pa.array(values, column.type)], schema=schema))
    file = DataFile(name, list(old.fields), [0], old.file_major_version, old.file_minor_version)
    group = lance.LanceOperation.DataReplacementGroup(fragment, file)
    operation = lance.LanceOperation.DataReplacement([group])
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
