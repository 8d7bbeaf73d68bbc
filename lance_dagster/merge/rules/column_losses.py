"""Refuse rows that would lose their values, or lack required ones, because the other side changed a column.

A cast gives a column a new id and converts the values of the rows there are: rows of the other side would have no
values under the new id. A column that may not be null has none for rows that were written without it. Neither can be
settled by a strategy, since both columns and rows would have to be given up together.
"""

from collections.abc import Collection, Iterator

from lance_dagster.format.transaction import Append, Delete, Overwrite, Rewrite, Update
from lance_dagster.merge.rules.merge_input import makers
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.schema_merge import MergedSchema
from lance_dagster.merge.rules.strategy import Conflict, Finding, on_side


def lost_columns(source: MergeSide, dest: MergeSide, schema: MergedSchema) -> Iterator[Finding]:
    """Find columns whose type or nullability one side changed while the other wrote rows of the old kind."""
    for changer, writer in ((source, dest), (dest, source)):
        added = schema.added_by_source if changer.is_source else schema.added_by_dest
        changed = [(path, "changed its type") for path in changer.casts]
        changed += [(path, "added it as not null") for path in _required(schema, added)]
        # Only where a column changed are the rows looked up: for most merges that is never.
        if changed and writer.written:
            rows = on_side(writer.written, source=writer.is_source)
            for path, did in changed:
                yield Finding(conflict=_conflict(path, did, changer, writer), options=(), rows=rows)
        for number, path in changer.made_required.items():
            nulls = writer.nulls(number, path)
            if nulls:
                rows = on_side(nulls, source=writer.is_source)
                yield Finding(conflict=_conflict(path, "made it not null", changer, writer), options=(), rows=rows)


def unfit_returned_rows(side: MergeSide) -> Iterator[Finding]:
    """Find columns a side changed so that rows it took out, and that a strategy brings back, do not fit them."""
    for path in (*side.casts, *side.made_required.values(), *side.new_required):
        changer = f"{side.name} changed its type, or made it not null"
        returned = "rows it changed or took out are brought back"
        source, dest = (changer, returned) if side.is_source else (returned, changer)
        yield Finding(conflict=Conflict(kind="column", unit=f"column {path}", source=source, dest=dest), options=())


def _required(schema: MergedSchema, added: Collection[int]) -> Iterator[str]:
    for field in schema.fields:
        if field.id in added and field.parent_id < 0 and not field.nullable:
            yield field.name


def _conflict(path: str, did: str, changer: MergeSide, writer: MergeSide) -> Conflict:
    changed_by = makers(changer.history, lambda change: not isinstance(change.operation, Append | Delete | Rewrite))
    written_by = makers(writer.history, lambda change: isinstance(change.operation, Append | Update | Overwrite))
    told = f"{changed_by} {did}", f"{written_by} wrote rows without that"
    source, dest = told if changer.is_source else told[::-1]
    return Conflict(kind="column", unit=f"column {path}", source=source, dest=dest)
