"""A repository that passes every request to a script, and functions that read the whole state of a repository."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from lance_dagster import LanceRepository, RefNotFoundError
from lance_dagster.errors import VersionNotFoundError
from lance_dagster.history.context import TableContext
from lance_dagster.repository.candidates.record import CandidateRecord
from lance_dagster.repository.commits.ref_log import RefLogs
from lance_dagster.repository.registry import Registry, RepositoryContext
from lance_dagster.store import LocalStore, Store
from tests.store.scripted import PlugPulledError, Request, Script, ScriptedStore
from tests.table_factory import context_on

SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.int64())])
FAST = {"durability": "process"}
"""What happens when a machine loses its power is tested elsewhere."""
Ids = Mapping[str, list[int]]


def rows(*ids: int, price: int = 1) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": ids, "price": [price] * len(ids)}, schema=SCHEMA)


def new_repository(root: Path | str, *names: str, options: Mapping[str, str] = FAST) -> LanceRepository:
    """A repository with empty tables, which are committed."""
    repository = LanceRepository.create(root, options)
    for name in names:
        repository.create_table(name, SCHEMA)
    if names:
        repository.commit("start")
    return repository


def uncommitted_repository(root: Path, *names: str) -> LanceRepository:
    """A repository with empty tables, which no commit has yet, and whose files are synced."""
    repository = LanceRepository.create(root)
    for name in names:
        repository.create_table(name, SCHEMA)
    return repository


def run(repository: LanceRepository, number: int, *names: str) -> str:
    """Make a branch with one more row in each table."""
    branch = f"run/{number}"
    for name in names:
        repository.fork(name, branch).append(rows(number), branch=branch)
    return branch


class ScriptedRegistry(Registry):
    """A registry whose tables are in stores that follow the script."""

    def context(self, name: str) -> TableContext:
        """Return the context of a table, with a separate store."""
        if name not in self._open:
            uri = super().context(name).uri
            assert isinstance(self.store, ScriptedStore)
            self._open[name] = context_on(ScriptedStore(opened(uri), self.store.script))
        return self._open[name]


class Ordered(LocalStore):
    """A local folder whose listings are sorted, like those of object stores."""

    ordered_listing = True


def opened(uri: str) -> Store:
    """A store on local disk."""
    return Ordered(uri, durable=False)


def scripted(root: str, script: Script, open_root: Callable[[str], Store] = opened) -> LanceRepository:
    """The repository at a root, opened anew, with every request going through a script."""
    repository = LanceRepository(root, FAST)
    store = ScriptedStore(open_root(root), script)
    # No public function takes a store.
    repository._context = RepositoryContext(RefLogs(store), ScriptedRegistry(store, FAST), CandidateRecord(store))  # noqa: SLF001
    return repository


class Plug:
    """A script that lets a number of requests through; then every request fails, as if the process had died."""

    def __init__(self, number: int, counts: Callable[[Request], bool]) -> None:
        """Take the number of counted requests that are made."""
        self.left, self.counts, self.pulled = number, counts, False
        # The lock is needed because tables are staged by several threads.
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        """Send the request, unless the number is exceeded."""
        with self._lock:
            if self.counts(request):
                self.left -= 1
                self.pulled = self.pulled or self.left < 0
        if self.pulled:
            raise PlugPulledError
        return request.send()


def ids(repository: LanceRepository, ref: str) -> Ids:
    """The ids in each table at a ref."""
    view = repository.at(ref)
    return {name: in_order(view[name].read()) for name in view}


def seen(repository: LanceRepository) -> dict[str, object]:
    """Everything that readers see of a repository: by its refs, by the refs of its tables, and the history of both."""
    again = LanceRepository.open(repository.root, FAST)
    found: dict[str, object] = {"tables": again.tables(), "log": [commit.message for commit in again.log()]}
    found["main"] = ids(again, "main")
    for name in again.channels.list():
        found[name] = ids(again, name)
        found[f"history of {name}"] = [(entry.action, entry.reason) for entry in again.channels.history(name)]
    found |= {f"tag {tag.name}": ids(again, tag.name) for tag in again.tags.list().values()}
    for name in again.tables():
        table = again.table(name)
        tags = [tag for tag in table.tags.list() if not tag.startswith("repository-main-")]
        branches = [branch for branch in table.branches.list() if not branch.startswith("published/")]
        found[f"refs of {name}"] = {ref: _by_pylance(table.uri, ref) for ref in ("main", *tags)}, branches
    return found


def readable(repository: LanceRepository, channel: str = "production") -> Ids | None:
    """The rows that a reader of a channel sees; None if there is no such channel."""
    try:
        return ids(LanceRepository.open(repository.root, FAST), channel)
    except RefNotFoundError:
        return None
    except VersionNotFoundError:
        # This is between the move of a folder by a storage client and the registration of its new place.
        assert (Path(repository.root) / "moved.lance").exists()
        return None


def _by_pylance(uri: str, ref: str) -> list[int]:
    dataset = lance.dataset(uri, version=None if ref == "main" else ref)
    return in_order(dataset.to_table())


def in_order(found: pa.Table) -> list[int]:
    """The ids of rows, sorted."""
    return sorted(value for value in found["id"].to_pylist() if value is not None)


class Counting:
    """A script that counts the requests of all threads."""

    def __init__(self) -> None:
        """Start at zero."""
        self.made: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> object:
        """Count the request, unless it is about a folder, which object stores do not have."""
        if request.verb not in ("sync_folder", "prune"):
            with self._lock:
                self.made.append(f"{request.verb} {request.key}")
        return request.send()


def made_by(repository: LanceRepository, act: Callable[[LanceRepository], object]) -> int:
    """The number of requests of a process that has just started."""
    counting = Counting()
    act(scripted(repository.root, counting))
    return len(counting.made)
