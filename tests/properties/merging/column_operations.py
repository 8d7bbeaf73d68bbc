"""Changes of columns, made by one of two programs, and their effect on the model."""

import uuid
from dataclasses import replace

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from tests.properties.merging.operation_context import CASTS, MOST_COLUMNS, TYPES, OperationContext, OperationResult
from tests.properties.merging.rows_model import Column, Snapshot, Value
from tests.properties.replica import KEY


def add_null(context: OperationContext) -> OperationResult | None:
    """Add a column without values."""
    if len(context.seen.columns) >= MOST_COLUMNS:
        return None
    stamp = context.stamp
    # The name is unique: two branches' columns of one name are one column, unless one has values for older rows.
    column = Column(token=stamp, name=f"n{stamp}", type=context.dice.pick(list(TYPES)))
    context.writer.add_null(context.branch, column.name, column.type)
    return OperationResult(did="add column", told=f"{column.name} of nulls", result=context.seen.with_column(column))


def add_computed(context: OperationContext) -> OperationResult | None:
    """Add a column whose values come from an expression, or from a table by its key."""
    if len(context.seen.columns) >= MOST_COLUMNS or not context.seen.rows:
        return None
    stamp = context.stamp
    column = Column(token=stamp, name=_new_name(context, stamp), type=pa.int64(), computed=True)
    by_key = context.dice.below(2)
    values: dict[int, Value] = {uid: uid * 1000 + stamp for uid in context.seen.rows}
    if by_key:
        values = {uid: None if uid % 5 == 0 else value for uid, value in values.items()}
        data = pa.table({KEY: list(values), column.name: pa.array(list(values.values()), pa.int64())})
        if context.by_package:
            context.table.columns.add(data, on=[KEY], branch=context.branch)
        else:
            context.dataset.merge(data, KEY)
    else:
        context.writer.add_computed(context.branch, column.name, f"{KEY} * 1000 + {stamp}")
    result = context.seen.with_column(column).rewritten(column.token, values, stamp, partly=False)
    return OperationResult(did="add column", told=f"{column.name} {'by key' if by_key else 'computed'}", result=result)


def _new_name(context: OperationContext, stamp: int) -> str:
    """A unique name, or sometimes one that another branch may choose too."""
    shared = "extra"
    return shared if context.dice.below(8) == 0 and context.seen.by_name(shared) is None else f"n{stamp}"


def drop(context: OperationContext) -> OperationResult | None:
    """Drop a column."""
    column = context.free_column()
    if column is None:
        return None
    context.writer.drop(context.branch, column.name)
    return OperationResult(did="drop", told=column.name, result=context.seen.without_column(column.token))


def rename(context: OperationContext) -> OperationResult | None:
    """Rename a column."""
    column = context.free_column()
    if column is None:
        return None
    stamp = context.stamp
    name = _new_name(context, stamp) if column.computed else f"n{stamp}"
    context.writer.rename(context.branch, column.name, name)
    result = context.seen.with_column(replace(column, name=name))
    return OperationResult(did="rename", told=f"{column.name} to {name}", result=result)


def cast(context: OperationContext) -> OperationResult | None:
    """Change the type of a column."""
    column = context.free_column(scalar=True, unindexed=True)
    if column is None:
        return None
    try:
        context.writer.cast(context.branch, column.name, CASTS[column.type])
    except OSError as error:
        # pylance reads values of deleted rows too, which may be null although the column now forbids nulls.
        if context.by_package or "unmasked nulls" not in str(error):
            raise
        return None
    return OperationResult(
        did="cast", told=column.name, result=context.seen.with_cast(column, CASTS[column.type], context.stamp)
    )


def forbid_nulls(context: OperationContext) -> OperationResult | None:
    """Refuse nulls in a column from now on, or allow them again."""
    column = context.free_column()
    if column is None or (column.nullable and any(row.value(column) is None for row in context.seen.rows.values())):
        return None
    if context.by_package:
        context.table.columns.set_nullable(column.name, nullable=not column.nullable, branch=context.branch)
    else:
        context.dataset.alter_columns({"path": column.name, "nullable": not column.nullable})  # type: ignore[dict-item]
    result = context.seen.with_column(replace(column, nullable=not column.nullable))
    return OperationResult(did="nullable", told=f"{column.name}: {not column.nullable}", result=result)


def rewrite(context: OperationContext) -> OperationResult | None:
    """Write some values of a column in place, as pylance does for one fragment."""
    column, key = context.free_column(unindexed=True), context.seen.by_name(KEY)
    fragments = context.dataset.get_fragments()
    if column is None or key is None or not fragments:
        return None
    dataset, fragment = context.dataset, context.dice.pick(list(fragments))
    # pylance writes nulls at the offsets of deleted rows, and refuses to do so if the column may not be null.
    if not column.nullable and fragment.num_deletions:
        return None
    uids: list[int] = fragment.to_table(columns=[KEY]).to_pydict()[KEY]
    values = {uid: context.names.filled((column,), 0, "")[column.token] for uid in uids}
    data = context.seen.arrow(
        [{key.token: uid, column.token: value} for uid, value in values.items()], [key.token, column.token]
    )
    changed, fields = fragment.update_columns(data, left_on=KEY)
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    result = context.seen.rewritten(column.token, values, context.stamp, partly=False)
    return OperationResult(did="rewrite", told=f"{column.name} of {sorted(uids)} in place", result=result)


def replace_data(context: OperationContext) -> OperationResult | None:
    """Replace a data file that has only one column."""
    dataset = context.dataset
    for fragment in dataset.get_fragments():
        for file in fragment.data_files():
            column = _only_column(dataset, context.seen, file)
            if column is None or column.token in context.seen.indices.values():
                continue
            here = fragment.to_table(columns=[KEY], with_row_address=True).to_pydict()
            if not here[KEY]:
                continue
            values = {uid: context.names.filled((column,), 0, "")[column.token] for uid in here[KEY]}
            places = (address & 0xFFFFFFFF for address in here["_rowaddr"])
            by_place = dict(zip(places, values.values(), strict=True))
            filler = next((value for value in values.values() if value is not None), None)
            written = [
                by_place.get(place, None if column.nullable else filler) for place in range(fragment.physical_rows)
            ]
            _replace_file(context, fragment.fragment_id, file, written, column)
            result = context.seen.rewritten(column.token, values, context.stamp, partly=False)
            return OperationResult(did="replace data", told=f"{column.name} of {sorted(values)}", result=result)
    return None


def _only_column(dataset: lance.LanceDataset, seen: Snapshot, file: DataFile) -> Column | None:
    if file.base_id is not None or len(file.fields) != 1:
        return None
    for column in seen.columns:
        field_of = dataset.lance_schema.field(column.name)
        if field_of is not None and field_of.id() == file.fields[0] and column.type in CASTS:
            return column
    return None


def _replace_file(context: OperationContext, fragment: int, old: DataFile, values: list[Value], column: Column) -> None:
    dataset = context.dataset
    root = context.uri if context.branch == "main" else f"{context.uri}/tree/{context.branch}"
    name = f"{uuid.uuid4().hex}.lance"
    schema = pa.schema([pa.field(column.name, column.type, column.nullable)])
    version = f"{old.file_major_version}.{old.file_minor_version}"
    with LanceFileWriter(f"{root}/data/{name}", schema, version=version) as writer:
        writer.write_batch(pa.record_batch([pa.array(values, column.type)], schema=schema))
    file = DataFile(name, list(old.fields), [0], old.file_major_version, old.file_minor_version)
    group = lance.LanceOperation.DataReplacementGroup(fragment, file)
    operation = lance.LanceOperation.DataReplacement([group])
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
