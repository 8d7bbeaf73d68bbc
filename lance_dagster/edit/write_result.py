"""The result of a write: the version it made, and how many rows it added, deleted and updated.

The counts come from values that a write has anyway: the rows of the files it wrote, the rows it looked up, the rows its
manifest had. No data and no manifest is read for them.
"""

from dataclasses import dataclass, fields

from lance_dagster.errors import counted
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State, Version


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriteResult(Version):
    """The version that a write made, with its counts of rows; it equals that version and can be used as a ref.

    A write that found nothing to do returns the version that has the change already, and counts no row. A merge counts
    the rows of the branch that it was made on.

    Attributes:
        rows_added: The number of rows that were not in the table before.
        rows_deleted: The number of rows that were deleted. An overwrite counts the rows of the version it read, without
            rows that others appended while it was running.
        rows_updated: The number of rows that got new values and kept their identity. A restore reads no row: it counts
            the rows that both versions have in different data files.
        columns_changed: The columns that a merge, a cherry-pick or a revert added, dropped, renamed or cast.
    """

    rows_added: int = 0
    rows_deleted: int = 0
    rows_updated: int = 0
    columns_changed: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Compare only the versions, because a version that is read again does not have the counts."""
        if not isinstance(other, Version):
            return NotImplemented
        return all(getattr(self, part.name) == getattr(other, part.name) for part in fields(Version))

    __hash__ = None  # type: ignore[assignment]  # as for Version, whose properties are a mapping

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of rows by the words `added`, `deleted` and `updated`."""
        return {"added": self.rows_added, "deleted": self.rows_deleted, "updated": self.rows_updated}

    @property
    def summary(self) -> str:
        """One line of text, such as `main@17: 3 rows added, 1 deleted`."""
        counts = [(count, verb) for verb, count in self.counts.items() if count]
        columns = f"changed columns: {', '.join(self.columns_changed)}" if self.columns_changed else ""
        if not counts:
            return f"{self}: {columns or 'no rows changed'}"
        (first, verb), *others = counts
        parts = [f"{counted(first, 'row')} {verb}", *(f"{count:,} {verb}" for count, verb in others)]
        return f"{self}: {', '.join(parts)}{f'; {columns}' if columns else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The state a write made, or the head where it changed nothing, with the rows and columns it changed."""

    state: State
    added: int = 0
    deleted: int = 0
    updated: int = 0
    columns: tuple[str, ...] = ()

    def described(self, context: TableContext) -> WriteResult:
        """Describe the version together with the counts."""
        version = context.versions.describe(self.state)
        inherited = {part.name: getattr(version, part.name) for part in fields(Version)}
        return WriteResult(
            **inherited,
            rows_added=self.added,
            rows_deleted=self.deleted,
            rows_updated=self.updated,
            columns_changed=self.columns,
        )
