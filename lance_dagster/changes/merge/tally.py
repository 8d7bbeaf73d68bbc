"""What a merge does, in numbers and names."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Rows added, given new values and removed, as the dest sees it.

    `needs_backfill` gives by the path of a column that one side added how many rows only the other side has, and are
    null there. `columns_changed` says that rows get other values where they are. Where `keeps_nulls`, no column that
    could be null before is required to have values.
    """

    rows_added: int
    rows_updated: int
    rows_removed: int
    schema_changed: bool
    columns_changed: bool
    keeps_nulls: bool
    needs_backfill: Mapping[str, int] = field(default_factory=dict)
