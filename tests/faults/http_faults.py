"""Enumerate every HTTP request of an operation on S3, including pylance's, with every fault that a server can have.

`enumeration` makes faults happen between this package and its stores. Here they happen in HTTP, so the clients take
part with their own retries: a client that sends a write again finds what its first attempt wrote.

The server runs in a thread of the test, which keeps the objects of a prepared table and puts them back before each run.
"""

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

import lance

from lance_dagster import LanceTable
from lance_dagster.errors import CommitStateUnknownError, LanceDagsterError, StoreError
from tests.backdating import DAY
from tests.conftest import HOST, S3Storage, bucket_on, free_port, request
from tests.faults.enumeration import Violation
from tests.servers.objects import FAULTS, REQUESTS, Bucket, Fault, StoredObject, serve
from tests.servers.s3_server import S3Server
from tests.table_factory import SCHEMA, Rows, entries, sorted_rows

# Faults are counted among the requests whose target contains the same part; the first part that it contains counts.
_PARTS = ("list-type=2", "/_versions/", "/_refs/", "/data/", "/_transactions/", "")
_EVERYWHERE = ("503", "500", "reset_before")
_AGE = 30 * DAY.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation on a table, and how a caller may go on after an error."""

    act: Callable[[LanceTable], object]
    once: bool = False
    """The operation is not idempotent: a caller repeats it only if it did not take effect."""
    moves: bool = False
    """The operation is not a commit: after an error of the storage it is open which of its names moved."""


OPERATIONS: Mapping[str, Operation] = {
    "append": Operation(act=lambda table: table.append(entries("new", 1)), once=True),
    "append to a branch": Operation(act=lambda table: table.append(entries("new", 2), branch="run"), once=True),
    "delete": Operation(act=lambda table: table.delete("key = 'a' and value = 2")),
    "upsert": Operation(act=lambda table: table.upsert(entries("a", 1, 5), on=["key", "value"])),
    "merge": Operation(act=lambda table: table.merge("run")),
    "create a tag": Operation(act=lambda table: table.tags.create("release", "main@2"), moves=True),
    "move a tag": Operation(act=lambda table: table.tags.move("production", "main@2"), moves=True),
    "delete a tag": Operation(act=lambda table: table.tags.delete("spare"), moves=True),
    "create a branch": Operation(act=lambda table: table.branches.create("fresh", "main@2"), moves=True),
    "delete a branch": Operation(act=lambda table: table.branches.delete("other"), moves=True),
    "collect": Operation(act=lambda table: table.maintenance.collect_garbage(timedelta(0), dry_run=False), moves=True),
}


def prepare(table: LanceTable) -> None:
    """Make the table that the operations need."""
    table.append(entries("a", 1, 2, 3))
    table.append(entries("b", 1))
    for name in ("production", "spare"):
        table.tags.create(name, "main@3")
    for name in ("run", "other"):
        table.branches.create(name)
    table.append(entries("r", 1), branch="run")
    table.delete("key = 'b'", branch="run")


class Seen(NamedTuple):
    """The state that readers find: the rows of every ref, and the version numbers of each branch."""

    rows: Mapping[str, Rows]
    versions: Mapping[str, Sequence[int]]


@dataclass(slots=True)
class Wire:
    """A prepared table on a server, and the faults of the server."""

    endpoint: str
    bucket: Bucket
    storage: S3Storage
    kept: Mapping[str, StoredObject] = field(default_factory=dict)

    def fresh(self) -> LanceTable:
        """Restore the prepared table, and open it."""
        self.bucket.objects = dict(self.kept)
        return self.table()

    def table(self) -> LanceTable:
        """Open the table anew, without the cache of an earlier handle."""
        return LanceTable.open(f"{self.storage.uri}/table", self.storage.storage_options)

    def ask(self, path: str, faults: Sequence[Fault] | None = None) -> Sequence[str]:
        """Tell the server which faults to make, or take its log of requests."""
        data = None if faults is None else json.dumps([asdict(fault) for fault in faults]).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(self.endpoint + path, data)) as answer:  # noqa: S310 - of this process
            return json.loads(answer.read() or b"[]")  # type: ignore[no-any-return]

    def seen(self) -> Seen:
        """The state that readers find, read by pylance, except for the lists of names."""
        table, options = self.table(), dict(self.storage.storage_options)
        branches = ["main", *table.branches.list()]
        dataset = lance.dataset(table.uri, storage_options=options)
        found = {name: dataset if name == "main" else dataset.checkout_version((name, None)) for name in branches}
        found |= {
            f"tag {name}": lance.dataset(table.uri, version=name, storage_options=options) for name in table.tags.list()
        }
        return Seen(
            {name: sorted_rows(version.to_table()) for name, version in found.items()},
            {name: table.branches.version_numbers(name) for name in branches},
        )


@contextmanager
def wire() -> Iterator[Wire]:
    """A server of this process, with a prepared table."""
    server, port, loop = S3Server(), free_port(), asyncio.new_event_loop()
    task = loop.create_task(serve(server.answer, port))
    thread = threading.Thread(target=_run, args=(loop, task))
    thread.start()
    try:
        _await_server(port)
        endpoint = f"http://{HOST}:{port}"
        storage = bucket_on(endpoint)
        made = Wire(endpoint, server.bucket(storage.uri.removeprefix("s3://")), storage)
        prepare(LanceTable.create(f"{storage.uri}/table", SCHEMA, storage_options=storage.storage_options))
        made.kept = {key: replace(each, modified=each.modified - _AGE) for key, each in made.bucket.objects.items()}
        yield made
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _run(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
    try:
        loop.run_until_complete(asyncio.wait([task]))
    finally:
        loop.close()


def _await_server(port: int) -> None:
    for _ in range(600):
        try:
            request(f"{HOST}:{port}", "GET", REQUESTS)
        except OSError:
            threading.Event().wait(0.05)
        else:
            return
    raise RuntimeError("the server of the test does not answer")


def faults_of(requests: Sequence[str]) -> Iterator[Fault]:
    """Every fault that fits each request of an undisturbed run."""
    for number, line in enumerate(requests):
        method, target = line.split(" ", 1)
        part = next(part for part in _PARTS if part in target)
        same_request = Fault(kind="", method=method, part=part)
        # This counts as the server does: every request of the method whose target contains the part.
        skip = sum(same_request.fits(*earlier.split(" ", 1)) for earlier in requests[:number])
        for kind in _kinds(method, target):
            yield replace(same_request, kind=kind, skip=skip)


def _kinds(method: str, target: str) -> tuple[str, ...]:
    match method:
        case "GET":
            return (*_EVERYWHERE, "truncated", *(["stale"] if "list-type=2" in target else []))
        case "HEAD":
            return _EVERYWHERE
        case "PUT" if "/_versions/" in target or "/_refs/branches/" in target or "/_refs/tags/" in target:
            # This is a conditional write.
            return (*_EVERYWHERE, "reset_after", "409", "412")
    return (*_EVERYWHERE, "reset_after")


@dataclass(slots=True)
class HttpEnumeration:
    """One operation on one prepared table."""

    wire: Wire
    name: str
    before: Seen = field(init=False)
    after: Seen = field(init=False)
    requests: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        """Do the operation undisturbed, to learn its requests and its result."""
        table = self.wire.fresh()
        self.before = self.wire.seen()
        self.wire.ask(REQUESTS)
        self._operation.act(table)
        self.requests = self.wire.ask(REQUESTS)
        self.after = self.wire.seen()

    @property
    def _operation(self) -> Operation:
        return OPERATIONS[self.name]

    def suffer(self, fault: Fault) -> None:
        """Do the operation with a fault and check the state; repeat it if it had no effect, and check again.

        Raises:
            Violation: A guarantee does not hold.
        """
        table, error = self.wire.fresh(), None
        self.wire.ask(FAULTS, [fault])
        try:
            self._operation.act(table)
        except LanceDagsterError as raised:
            error = raised
        finally:
            self.wire.ask(FAULTS, [])
        found = self.wire.seen()
        if error is None and fault.kind == "stale":
            # A lagging listing is as if a rival had committed meanwhile what it did not show.
            self._sound(fault, error, found)
            return
        if error is None:
            # The storage's clock counts whole seconds, so versions of the last second may or may not be collected.
            done = found.rows == self.after.rows if self.name == "collect" else found == self.after
            self._expect(done, "it returned and is not done", fault, error, found)
        elif self._operation.moves and isinstance(error, StoreError):
            self._expect(self._partly(found), "it is neither done nor not done", fault, error, found)
        else:
            self._expect(
                not isinstance(error, CommitStateUnknownError), "one fault makes it unknown", fault, error, found
            )
            self._expect(found.rows == self.before.rows, "it raised and is done", fault, error, found)
        if error is not None:
            self._operation.act(self.wire.table())
            found = self.wire.seen()
            self._expect(found.rows == self.after.rows, "repeated, it is not done", fault, error, found)
        self._sound(fault, error, found)

    def _partly(self, found: Seen) -> bool:
        names = self.before.rows.keys() | self.after.rows.keys() | found.rows.keys()
        return all(found.rows.get(name) in (self.before.rows.get(name), self.after.rows.get(name)) for name in names)

    def _sound(self, fault: Fault, error: LanceDagsterError | None, found: Seen) -> None:
        problems = [str(each) for each in self.wire.table().maintenance.verify().problems if each.severity == "error"]
        self._expect(not problems, f"verify finds {problems}", fault, error, found)

    def _expect(self, holds: bool, what: str, fault: Fault, error: LanceDagsterError | None, found: Seen) -> None:  # noqa: FBT001 - what is expected
        if not holds:
            raise Violation(
                f"{self.name} with {fault}: {what}; it ended with {error!r}; before, found and after: "
                f"{self.before}, {found}, {self.after}"
            )
