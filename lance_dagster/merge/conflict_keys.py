"""Name the rows of conflicts by their keys: a reader can look up "id 7", but not "1 row in fragment 0".

The key is the primary key that the table declares, or else the columns that a side upserted by; for a conflict about
upserted keys, it is the columns of that upsert. Only the key columns of the first few rows of each conflict are read,
and only once a merge is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lance_dagster.errors import LanceDagsterError
from lance_dagster.format.model import Field
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.merge.conflict_rows import VERSION_FIELDS, ConflictRows
from lance_dagster.merge.rules import MergeRefusal
from lance_dagster.merge.rules.strategy import Conflict
from lance_dagster.transactions.claims import UPSERT

MOST_ROWS_NAMED = 3
"""The key columns of each row are read from up to three versions, and a conflict should stay on one line."""
_KINDS_WITH_ROWS = ("rows", "column")
"""The kinds whose rows are named by the key of the table. A conflict about a partition has a condition in its unit."""


def with_keys(
    context: TableContext, states: tuple[State, State, State], refusal: MergeRefusal, uri: str
) -> MergeRefusal:
    """Return a refusal whose conflicts name their table, and the first few of their rows where there is a key.

    Args:
        context: The table.
        states: The merge base, the source and the dest.
        refusal: Why they cannot be merged.
        uri: The table's URI.
    """
    key = _key(states[-1].manifest.fields, refusal)
    # Conflicts are compared without their hint and keys, so a conflict with keys is found under the conflict of the
    # refusal.
    columns = {
        conflict: refusal.on.get(conflict, key if conflict.kind in _KINDS_WITH_ROWS else ())
        for conflict in refusal.conflicts
    }
    conflict_rows = ConflictRows(context, states, refusal) if any(columns.values()) else None
    conflicts = [
        replace(
            conflict,
            table=uri,
            keys=() if conflict_rows is None else _keys_of(conflict, columns[conflict], conflict_rows),
        )
        for conflict in refusal.conflicts
    ]
    pairs = zip(conflicts, refusal.conflicts, strict=True)
    rows = {named: refusal.rows.get(conflict, ()) for named, conflict in pairs}
    return replace(refusal, conflicts=tuple(conflicts), rows=rows)


def _key(fields: Sequence[Field], refusal: MergeRefusal) -> tuple[str, ...]:
    """Return the key columns of a table that are at its top level; none where neither schema nor upserts name any."""
    declared = sorted(
        (field for field in fields if field.primary_key and field.parent_id < 0),
        key=lambda field: (field.primary_key_position, field.id),
    )
    if declared or refusal.sides is None:
        return tuple(field.name for field in declared)
    # An upsert names the columns by which it matched rows; they identify rows as well as a declared key does.
    claims = (claim for side in refusal.sides for _, claim in side.claims)
    return next((claim.on for claim in claims if claim.mode == UPSERT and claim.on), ())


def _keys_of(conflict: Conflict, columns: Sequence[str], conflict_rows: ConflictRows) -> tuple[str, ...]:
    """Return the keys of the first few rows of a conflict, as text."""
    if not columns:
        return ()
    try:
        # One row more than can be named is read, which tells whether an ellipsis is needed.
        reader = conflict_rows.stream(conflict, columns=columns, on=None, limit=MOST_ROWS_NAMED + 1)
        rows = shown_rows(reader.read_all())
    except (LanceDagsterError, OSError):
        # The conflict is what has to be reported, whether its rows can be read or not.
        return ()
    # The rows that both sides put in under one key are two rows of the conflict.
    named = list(dict.fromkeys(_named(row, columns) for row in rows))
    return (*named[:MOST_ROWS_NAMED], "...") if len(named) > MOST_ROWS_NAMED else tuple(named)


def _named(row: Mapping[str, Mapping[str, object] | None], columns: Sequence[str]) -> str:
    """Return the key of a row, as it is in the first version that has the row."""
    image = next((row_image for version in VERSION_FIELDS if (row_image := row[version]) is not None), {})
    return " ".join(f"{name} {image.get(name)!r}" for name in columns)
