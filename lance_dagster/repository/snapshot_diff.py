"""Compare two commits of a repository, table by table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from lance_dagster.diff import diff
from lance_dagster.diff.diff import Diff
from lance_dagster.errors import InvalidInputError
from lance_dagster.history.context import TableContext
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.publish.staging import load
from lance_dagster.repository.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """One table that differs: `kind` is "added", "removed" or "changed"; `before` and `after` are its versions."""

    name: str
    before: TableVersion | None
    after: TableVersion | None
    _context: TableContext = field(repr=False)

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        """The kind of the change of the table."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    def rows(self, *, on: Sequence[str] | None = None) -> Diff:
        """Compare the two versions down to rows, as `LanceTable.diff` does.

        Raises:
            InvalidInputError: Only one of the commits has the table.
        """
        if self.before is None or self.after is None:
            raise InvalidInputError(f"{self.name} was {self.kind}, so there are no two versions to compare")
        return diff.diff(self._context, load(self._context, self.before), load(self._context, self.after), on=on)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryDiff:
    """The tables that differ between two commits, by name."""

    before: RepositoryCommit
    after: RepositoryCommit
    tables: tuple[TableDiff, ...]

    def __str__(self) -> str:
        """Return a line for each table."""
        if not self.tables:
            return "no table differs"
        return "\n".join(
            f"{table.kind} {table.name}: {table.before or 'nothing'} -> {table.after or 'nothing'}"
            for table in self.tables
        )


def diff_commits(registry: Registry, before: RepositoryCommit, after: RepositoryCommit) -> RepositoryDiff:
    """Compare two commits without reading the tables."""
    # Commits name each version by a digest, so equal tables are recognised without opening them.
    tables = tuple(
        TableDiff(
            name=name,
            before=before.tables.get(name),
            after=after.tables.get(name),
            _context=registry.context(name),
        )
        for name in after.changed_from(before)
    )
    return RepositoryDiff(before=before, after=after, tables=tables)
