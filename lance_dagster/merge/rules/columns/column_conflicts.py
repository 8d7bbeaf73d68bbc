"""Find rows of one side that do not fit the columns of the other.

A cast gives a column a new id and converts only the rows that are there, and a column that may not be null has no value
for rows that were written without it. No strategy settles either, since columns and rows would have to be given up
together; the advice says on which branch which change makes the merge possible.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lance_dagster.format.model import Field
from lance_dagster.merge.rules.change_makers import added_makers, facet_makers, row_makers, type_change
from lance_dagster.merge.rules.columns.column_matching import paths_of
from lance_dagster.merge.rules.columns.schema_merge import MergedSchema, can_compare_columns
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.strategy import Finding, Rows, made_after_reset, made_again, on_side, unsettled
from lance_dagster.transactions.row_id_spaces import NO_FIELD


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnChange:
    """A change of a column that rows of the other side may not fit, and the advice to settle it."""

    path: str
    did: str
    advice: str


def lost_columns(source: MergeSide, dest: MergeSide, schema: MergedSchema) -> Iterator[Finding]:
    """Find columns whose type or nullability one side changed while the other wrote rows of the old kind."""
    for changer, writer in ((source, dest), (dest, source)):
        added = schema.added_by_source if changer.is_source else schema.added_by_dest
        casts, required = list(_cast_alone(changer, writer, schema)), list(_required(schema, added))
        # The rows are looked up only where a column changed, which is never the case in most merges.
        if (casts or required) and writer.written:
            own = {new: number for number, new in schema.from_source.items()} if changer.is_source else {}
            added_required = (_added_required(changer, own.get(field.id, field.id), field) for field in required)
            for change in (*_casts(changer, casts, writer), *added_required):
                yield _finding(change, writer, writer.written)
        # A column that was made not null fits every row that has a value, so the rows of the other side are looked at.
        for number, path in changer.made_required.items():
            nulls = writer.nulls(number)
            if nulls:
                there = writer.path_of(number) or path
                filled = f"give column {there} values on {writer.branch} where it is null (`update`), and try again"
                yield _finding(_made_required(changer, number, filled), writer, nulls)


def unfit_returned_rows(side: MergeSide) -> Iterator[Finding]:
    """Find columns a side changed so that rows it took out, and that a strategy brings back, do not fit them."""
    numbers = [number for number in side.made_required if number not in side.cast_fields]
    added = [field for field in side.manifest.fields if field.name in side.new_required and field.parent_id < 0]
    changes = [
        *_casts(side, sorted(side.cast_fields)),
        *(_made_required(side, number, made_again("the change of the column", side.branch)) for number in numbers),
        *(_added_required(side, field.id, field) for field in added),
    ]
    returned = "rows it changed or took out are brought back"
    for change in changes:
        did = (change.did, returned) if side.is_source else (returned, change.did)
        yield unsettled("column", f"column {change.path}", did, change.advice)


def _casts(side: MergeSide, numbers: Collection[int], writer: MergeSide | None = None) -> Iterator[_ColumnChange]:
    """Describe casts of a side; `writer` is the other side, if it wrote rows of the old type."""
    paths = paths_of(side.base.fields)
    advice = made_after_reset("the change of the type", side.branch)
    for number in numbers:
        if number in side.replaced_fields:
            helps: str | None = _renamed_there(side, number)
        else:
            helps = None if writer is None else _same_cast_there(side, number, writer)
        yield _ColumnChange(path=paths[number], did=type_change(side, number), advice=helps or advice)


def _renamed_there(side: MergeSide, number: int) -> str:
    """Return the advice to rename a new column that took the name of an old one; the old one then counts as dropped."""
    new = paths_of(side.manifest.fields)[side.cast_fields[number]]
    return (
        f"rename the new column {new} on {side.branch} (`columns.rename`), and try again; the values of the old one in "
        "these rows are dropped then"
    )


def _same_cast_there(side: MergeSide, number: int, writer: MergeSide) -> str | None:
    """Return the advice to cast a column on the other side as well; None where two casts would not be compared."""
    cast, there = (
        next((field for field in holder.manifest.fields if field.id == own), None)
        for holder, own in ((side, side.cast_fields[number]), (writer, writer.columns.ids.get(number)))
    )
    if cast is None or there is None or cast.name != there.name or cast.parent_id >= 0 or not can_compare_columns(side):
        return None
    # A column that was cast to another type and back has its type there already.
    if cast.logical_type == there.logical_type:
        return None
    # Values of lists, maps and structs are not compared.
    columns_by_side = (side, cast), (writer, there)
    if any(field.parent_id == column.id for holder, column in columns_by_side for field in holder.manifest.fields):
        return None
    return f"cast it to {cast.logical_type} on {writer.branch} too (`columns.cast`), and try again"


def _made_required(side: MergeSide, number: int, advice: str) -> _ColumnChange:
    did = f"{facet_makers(side, number, 'nullable')} made it not null"
    return _ColumnChange(path=side.made_required[number], did=did, advice=advice)


def _added_required(side: MergeSide, number: int, field: Field) -> _ColumnChange:
    # A nullable column is a struct here, in data files of a version that holds no null structs.
    did = f"{added_makers(side, number)} added it as {'a struct' if field.nullable else 'not null'}"
    advice = (
        f"allow nulls in column {field.name} on {side.branch}, and try again; rows of the other side are null there"
    )
    if field.nullable:
        advice = (
            f"drop column {field.name} on {side.branch}, try again, and add it then; rows of the other side would be "
            f"null there, and data files of version {side.manifest.file_version} hold no null structs"
        )
    return _ColumnChange(path=field.name, did=did, advice=advice)


def _cast_alone(changer: MergeSide, writer: MergeSide, schema: MergedSchema) -> Iterator[int]:
    """Return the columns, by their ids in the merge base, whose type one side alone changed in this way."""
    for number, own in changer.cast_fields.items():
        # Rows written with the type null have no value that would have to be converted.
        if number in changer.untyped:
            continue
        there = writer.cast_fields.get(number, NO_FIELD)
        source, dest = (own, there) if changer.is_source else (there, own)
        # Where the result has both under one field, each side converted the rows that it wrote.
        if schema.from_source.get(source) != dest:
            yield number


def _required(schema: MergedSchema, added: Collection[int]) -> Iterator[Field]:
    for field in schema.fields:
        if field.id in added and field.parent_id < 0 and not schema.nullable(field.id):
            yield field


def _finding(change: _ColumnChange, writer: MergeSide, rows: Rows) -> Finding:
    wrote = f"{row_makers(writer, rows, {})} wrote rows with the column as it was before"
    did = (wrote, change.did) if writer.is_source else (change.did, wrote)
    there = on_side(rows, source=writer.is_source)
    return unsettled("column", f"column {change.path}", did, change.advice, rows=there)
