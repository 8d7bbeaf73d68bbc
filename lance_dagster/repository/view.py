"""All tables of a repository at one commit, for reading.

A table that was moved since the commit is found by its old name and by its new name.

A view is made of one commit, so its tables stay consistent however long it is used and whatever is published meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, overload

import pyarrow as pa

from lance_dagster.errors import InvalidInputError, TableNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State, Version
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.publish.staging import find_version
from lance_dagster.repository.registry import Registry

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableView:
    """One table at the version that a commit names."""

    name: str
    at: TableVersion
    _registry: Registry = field(repr=False)
    # The context and the version that the first use read. A list, because the class is frozen.
    _found: list[tuple[TableContext, State]] = field(default_factory=list, repr=False, compare=False)

    @property
    def uri(self) -> str:
        """The URI of the table."""
        return self._open()[0].uri

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The credentials and endpoint; secret."""
        return self._registry.storage_options

    @property
    def version(self) -> Version:
        """The version."""
        context, state = self._open()
        return context.versions.describe(state)

    @property
    def landed(self) -> Version:
        """The version, from memory where this process has just brought `main` up to it."""
        context, state = find_version(self._registry, self.name, self.at)
        return context.versions.describe(state)

    @property
    def ref(self) -> str:
        """The ref expression of the version in its table, for other readers of the table."""
        return f"branch:{self._open()[1]}"

    @property
    def manifest_uri(self) -> str:
        """The URI of the manifest of the version."""
        return self._open()[1].path

    def schema(self) -> pa.Schema:
        """Return the Arrow schema."""
        return self._open()[1].schema

    def count_rows(self, filter: str | None = None) -> int:
        """Count rows; without a filter this reads one manifest and no data."""
        context, state = self._open()
        return context.count_rows(state, filter)

    def read(
        self, columns: Sequence[str] | None = None, filter: str | None = None, *, isolated: bool = False
    ) -> pa.Table:
        """Read rows into memory; the arguments are those of `LanceTable.scan`."""
        if isolated:
            return self.scan(columns, filter, isolated=True).read_all()
        context, state = self._open()
        return context.read(state, columns, filter)

    def scan(
        self, columns: Sequence[str] | None = None, filter: str | None = None, *, isolated: bool = False
    ) -> pa.RecordBatchReader:
        """Read rows as a stream of record batches; the arguments are those of `LanceTable.scan`."""
        context, state = self._open()
        return context.scan_isolated(state, columns, filter) if isolated else context.scan(state, columns, filter)

    def to_lance(self) -> "LanceDataset":
        """Open the version with pylance. DuckDB and Polars read the result as an Arrow dataset."""
        context, state = self._open()
        return context.dataset(state)

    def _open(self) -> tuple[TableContext, State]:
        if self._found:
            return self._found[0]
        context, state = find_version(self._registry, self.name, self.at, fresh=True)
        if state.branch == MAIN:
            # Only a version of `main` is remembered. A version of another branch may land on `main` later, and then its
            # branch can be collected.
            self._found.append((context, state))
        return context, state


@dataclass(frozen=True, slots=True, repr=False)
class RepositoryView(Mapping[str, TableView]):
    """The tables of one commit of a repository, by name: `repository.at("production")["shop/orders"].read()`.

    A table that was moved since the commit is listed by its old name, and found by both.
    """

    commit: RepositoryCommit
    _registry: Registry = field(repr=False)

    def __getitem__(self, name: str) -> TableView:
        """Return a table.

        Raises:
            TableNotFoundError: The commit has no such table.
        """
        if not isinstance(name, str):
            raise InvalidInputError(f"the name of a table is a string, not {name!r}")
        at = self._find(name)
        if at is None:
            names = ", ".join(sorted(self.commit.tables)) or "none"
            raise TableNotFoundError(f"commit {self.commit.short_id} has no table {name!r}; its tables: {names}")
        return TableView(name, at, self._registry)

    def __repr__(self) -> str:
        """Show the commit and the names of its tables."""
        return f"RepositoryView({self.commit}: {', '.join(self) or 'no table'})"

    @overload
    def get(self, name: str, default: None = None, /) -> TableView | None: ...
    @overload
    def get(self, name: str, default: TableView, /) -> TableView: ...
    @overload
    def get(self, name: str, default: T, /) -> TableView | T: ...

    # `Mapping.get` catches KeyError, but the error for an unknown table is not a KeyError.
    def get(self, name: str, default: TableView | T | None = None, /) -> TableView | T | None:
        """Return a table, or the default when the commit has none of that name."""
        if name not in self:
            return default
        return self[name]

    # `Mapping` would look for KeyError here as well.
    def __contains__(self, name: object) -> bool:
        """Return whether the commit has a table."""
        return isinstance(name, str) and self._find(name) is not None

    def _find(self, name: str) -> TableVersion | None:
        at = self.commit.tables.get(name)
        if at is not None:
            return at
        # Looked up only now, so that a table that was not moved costs no request.
        with suppress(InvalidInputError):
            table_id = self._registry.id_of(name)
            return next((at for at in self.commit.tables.values() if at.id == table_id), None)
        return None

    def __iter__(self) -> Iterator[str]:
        """Return the names of the tables, sorted."""
        return iter(sorted(self.commit.tables))

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self.commit.tables)
