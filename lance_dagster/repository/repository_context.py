"""The context of every operation on a repository: its commits and refs, and its tables."""

from collections.abc import Mapping
from dataclasses import dataclass

from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import TableContext
from lance_dagster.repository.commits.ref_log import RefLogs
from lance_dagster.repository.commits.resolve_commit import resolve_commit
from lance_dagster.repository.commits.snapshot import RepositoryCommit
from lance_dagster.repository.registry import Registry
from lance_dagster.store import Store


@dataclass(frozen=True, slots=True)
class RepositoryContext:
    """The commits and refs of one repository, and its tables. Both are in one store and cache what they read."""

    logs: RefLogs
    registry: Registry

    @classmethod
    def on(cls, store: Store, storage_options: Mapping[str, str]) -> "RepositoryContext":
        """Return the context of the repository in a store; nothing is read yet."""
        return cls(RefLogs(store), Registry(store, storage_options))

    @property
    def store(self) -> Store:
        """The store of the root."""
        return self.logs.store

    @property
    def root(self) -> str:
        """The canonical URI of the root."""
        return self.logs.store.uri

    def head(self) -> RepositoryCommit:
        """Return the newest commit of `main`; two requests."""
        return self.logs.commit(self.logs.current("branch", MAIN).commit)

    def resolve(self, ref: str) -> RepositoryCommit:
        """Return the commit that a ref expression names.

        Raises:
            RefNotFoundError: There is no such ref, or its log does not go back so far.
            RefSyntaxError: The expression is malformed.
        """
        return resolve_commit(self.logs, ref)

    def table(self, name: str) -> TableContext:
        """Return the context of the table at a name, registered or not; nothing is read.

        Raises:
            InvalidInputError: It is not a name of a table.
        """
        return self.registry.context(name)
