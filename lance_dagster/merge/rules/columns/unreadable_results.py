"""Find results of a merge that no reader could read, although neither side is such a version.

Each side may drop a part of the columns, so that nothing of a struct, of the table or of a fragment is left. Columns
can also come together that data files cannot hold. No strategy settles these conflicts, since none brings a dropped
column back: the advice says what to change on which branch.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from lance_dagster.errors import counted
from lance_dagster.format.evolution import subtree
from lance_dagster.format.file_versions import storage_problems
from lance_dagster.format.model import DataFile, Field
from lance_dagster.format.schema import stored_layout
from lance_dagster.merge.rules.change_makers import change_makers, drop_makers, schema_makers
from lance_dagster.merge.rules.columns.column_matching import paths_of
from lance_dagster.merge.rules.columns.schema_merge import MergedSchema
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.result import MergedFragment
from lance_dagster.merge.rules.strategy import Finding, made_after_reset, unsettled
from lance_dagster.transactions.row_id_spaces import NO_FIELD


def unreadable_columns(source: MergeSide, dest: MergeSide, schema: MergedSchema) -> Iterator[Finding]:
    """Find columns of the result that cannot be stored or read, and a result without any column."""
    fields = schema.fields
    # Most merges change no column of the dest.
    if fields == dest.manifest.fields:
        return
    if not fields:
        did = _dropped(source, _in_table), _dropped(dest, _in_table)
        yield unsettled("schema", "columns", did, made_after_reset("its drop of columns", source.branch))
    emptied = _emptied(source, dest, schema)
    yield from (_emptied_struct(source, dest, schema, field) for field in emptied)
    emptied_ids = {field.id for field in emptied}
    yield from (finding for number, finding in _unstorable(source, dest, schema) if number not in emptied_ids)
    yield from _stored_otherwise(source, dest, schema)


def fragments_without_values(
    source: MergeSide,
    dest: MergeSide,
    schema: MergedSchema,
    *,
    changed: Mapping[int, MergedFragment],
    added: Iterable[MergedFragment],
    removed: Collection[int],
) -> Iterator[Finding]:
    """Find fragments of the result of whose columns none has values: no file would record how many rows they have.

    Args:
        source: The side that is merged.
        dest: The side it is merged into.
        schema: The fields of the result.
        changed: The fragments of the dest that the merge changes.
        added: The fragments of the source that it adds.
        removed: The fragments of the dest without a remaining row.
    """
    live = {field.id for field in schema.fields}
    of_dest = 0
    # Only a column that is gone leaves a file of the dest without a use.
    if not live.issuperset(field.id for field in dest.manifest.fields):
        unchanged = (
            fragment
            for fragment in dest.manifest.fragments
            if fragment.id not in removed and fragment.id not in changed
        )
        of_dest = sum(
            fragment.physical_rows for fragment in unchanged if fragment.files and _unused(fragment.files, live)
        )
        of_dest += _without_values(changed.values(), live)
    # The rows of the source may have values only of columns that the dest dropped.
    of_source = _without_values(added, live)
    if of_dest or of_source:
        did = _dropped(source, _in_table), _dropped(dest, _in_table)
        advice = _advice(source, dest, schema, [side for side, rows in ((source, of_source), (dest, of_dest)) if rows])
        yield unsettled("schema", f"values of {counted(of_dest + of_source, 'row')}", did, advice)


def _advice(source: MergeSide, dest: MergeSide, schema: MergedSchema, holders: Iterable[MergeSide]) -> str:
    """Say how the rows of some sides get values of a column of the result."""
    live = {field.id for field in schema.fields}
    branches: dict[str, list[str]] = {}
    for side in holders:
        ids = schema.from_source if side.is_source else {number: number for number in live}
        there = {number for number, new in ids.items() if new in live}
        branches.setdefault(" or ".join(_columns_with_values(side, there)), []).append(side.branch)
    # Where a side has no column of the result, none can be given values there: the other side dropped all it has.
    droppers = [side.branch for side in (source, dest) if side.branch not in branches.get("", [])]
    return "; ".join(
        f"give column {names} values on {' and '.join(there)} where it is null (`update`), and try again"
        if names
        else made_after_reset("its drop of columns", (droppers or there)[0])
        for names, there in branches.items()
    )


def _columns_with_values(side: MergeSide, numbers: set[int]) -> list[str]:
    """Return the names of a side's columns with fields that are in the result and hold values."""
    fields = side.manifest.fields
    # A struct or list has no values of its own: its fields have them.
    holding = numbers - {field.parent_id for field in fields}
    return [
        field.name
        for field in fields
        if _in_table(field) and not holding.isdisjoint(inner.id for inner in subtree(fields, field))
    ]


def _without_values(fragments: Iterable[MergedFragment], live: set[int]) -> int:
    """Count the rows of fragments for which no file has a column of the result."""
    unused = (merged for merged in fragments if (own := (*merged.fragment.files, *merged.files)) and _unused(own, live))
    return sum(_alive(merged) for merged in unused)


def _alive(merged: MergedFragment) -> int:
    deletion = merged.fragment.deletion
    before = 0 if deletion is None else deletion.deleted_rows
    return merged.fragment.physical_rows - (before if merged.deleted is None else len(merged.deleted))


def _unused(files: Iterable[DataFile], live: set[int]) -> bool:
    return all(live.isdisjoint(file.fields) for file in files)


def _in_table(field: Field) -> bool:
    return field.parent_id < 0


def _dropped(side: MergeSide, select: Callable[[Field], bool]) -> str:
    """Say which of some fields of the merge base a side dropped."""
    there = {*side.columns.ids, *side.cast_fields}
    dropped = [field for field in side.base.fields if select(field) and field.id not in there]
    if not dropped:
        return f"{side.name} kept no other"
    paths = paths_of(side.base.fields)
    makers = dict.fromkeys(drop_makers(side, field.id) for field in dropped)
    return f"{', '.join(makers)} dropped {', '.join(paths[field.id] for field in dropped)}"


def _emptied(source: MergeSide, dest: MergeSide, schema: MergedSchema) -> list[Field]:
    """Return the structs of the result without fields that had some on a side."""
    inside = {field.parent_id for field in schema.fields}
    own = {new: number for number, new in schema.from_source.items()}
    of_source, of_dest = ({field.parent_id for field in side.manifest.fields} for side in (source, dest))
    return [
        field
        for field in schema.fields
        if field.logical_type == "struct"
        and field.id not in inside
        and (field.id in of_dest or own.get(field.id) in of_source)
    ]


def _emptied_struct(source: MergeSide, dest: MergeSide, schema: MergedSchema, field: Field) -> Finding:
    base_id = _base_id(source, dest, schema, field)
    did = [_dropped(side, lambda inner: inner.parent_id == base_id) for side in (source, dest)]
    droppable = _droppable(schema.fields, field)
    advice = f"drop {schema.paths[droppable.id]} whole on {source.branch} and on {dest.branch}, and try again"
    return unsettled("column", f"column {schema.paths[field.id]}", (did[0], did[1]), advice)


def _base_id(source: MergeSide, dest: MergeSide, schema: MergedSchema, field: Field) -> int | None:
    of_dest = dest.columns.base_ids.get(field.id)
    if of_dest is not None:
        return of_dest
    own = next((number for number, new in schema.from_source.items() if new == field.id), None)
    return None if own is None else source.columns.base_ids.get(own)


def _droppable(fields: Collection[Field], field: Field) -> Field:
    """Return the nearest column or field around one that can be dropped: a list needs its item, a struct a field."""
    by_id = {member.id: member for member in fields}
    while (around := by_id.get(field.parent_id)) is not None:
        siblings = [sibling for sibling in fields if sibling.parent_id == around.id]
        if around.logical_type == "struct" and len(siblings) > 1:
            break
        field = around
    return field


def _unstorable(source: MergeSide, dest: MergeSide, schema: MergedSchema) -> Iterator[tuple[int, Finding]]:
    """Find fields that data files cannot hold as the result has them, and that neither side has so."""
    version = dest.manifest.file_version
    # Tables of early Lance releases record no version.
    if not version:
        return
    own = {new: number for number, new in schema.from_source.items()}
    before = [storage_problems(side.manifest.fields, version) for side in (source, dest)]
    for number, (path, problem) in storage_problems(schema.fields, version).items():
        there = before[0].get(own.get(number, -1)), before[1].get(number)
        if any(earlier is not None and earlier[1] == problem for earlier in there):
            continue
        base = _base_field(source, dest, schema, number)
        did = [
            f"{schema_makers(side) if base is None else change_makers(side, base)} changed it"
            for side in (source, dest)
        ]
        advice = f"{problem}; undo one of the changes (`revert`), and try again"
        yield number, unsettled("column", f"column {path}", (did[0], did[1]), advice)


def _stored_otherwise(source: MergeSide, dest: MergeSide, schema: MergedSchema) -> Iterator[Finding]:
    """Find columns that are to be stored in another way than a side stored its values.

    Only other programs change the storage of a column that has values. Two new columns of one name may differ in it,
    too.
    """
    by_id = {field.id: field for field in schema.fields}
    same = {field.id: field.id for field in dest.manifest.fields}
    side_names: dict[int, str] = {}
    for side, ids in ((source, schema.from_source), (dest, same)):
        for field in side.manifest.fields:
            merged = by_id.get(ids.get(field.id, NO_FIELD))
            if merged is None or stored_layout(merged) == stored_layout(field):
                continue
            inside = {inner.id for inner in subtree(side.manifest.fields, field)}
            files = (file for fragment in side.manifest.fragments for file in fragment.files)
            if any(not inside.isdisjoint(file.fields) for file in files):
                side_names[merged.id] = side.name
    for number, stored in side_names.items():
        did = [
            "it has stored values of it" if side.name == stored else f"{schema_makers(side)} stores it in another way"
            for side in (source, dest)
        ]
        advice = f"drop the column on {source.branch} or {dest.branch}, and try again"
        yield unsettled("column", f"metadata of column {schema.paths[number]}", (did[0], did[1]), advice)


def _base_field(source: MergeSide, dest: MergeSide, schema: MergedSchema, number: int) -> Field | None:
    """Return the field of the merge base to which a field of the result, or the nearest field around it, belongs."""
    by_id = {field.id: field for field in schema.fields}
    base_field, at = None, by_id.get(number)
    while at is not None and base_field is None:
        base_id = _base_id(source, dest, schema, at)
        base_field = next((field for field in source.base.fields if field.id == base_id), None)
        at = by_id.get(at.parent_id)
    return base_field
