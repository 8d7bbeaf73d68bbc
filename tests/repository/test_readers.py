"""Users who may only read: of a read-only folder, and with a role that may not write to a bucket."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lance_dagster import LanceRepository, VersionToPublish
from lance_dagster.errors import LanceDagsterError
from tests.forked_program import ready_processes
from tests.repository.scripted_repository import FAST, ids, rows, run

NOBODY = 65534


def _options(repository: LanceRepository) -> Mapping[str, str]:
    return repository.table("a").storage_options


READS: Mapping[str, Callable[[LanceRepository], object]] = {
    "open": lambda repository: LanceRepository.create(repository.root, _options(repository)).id,
    "read": lambda repository: ids(repository, "production"),
    "read an earlier state": lambda repository: ids(repository, "production~1"),
    "read at a time": lambda repository: ids(repository, "production@1"),
    "scan": lambda repository: repository.at("main")["a"].scan(filter="id > 1").read_all().num_rows,
    "read by one text": lambda repository: LanceRepository.open_uri(
        repository.uri("a", "v1"), _options(repository)
    ).count_rows(),
    "status": lambda repository: str(repository.status()),
    "candidates": lambda repository: str(repository.candidates()),
    "unrecorded branches": lambda repository: str(repository.record_branches()),
    "log": lambda repository: len(repository.log()),
    "history": lambda repository: len(repository.channels.history("production")),
    "list": lambda repository: (
        repository.tables(),
        repository.discover(),
        [*repository.tags.list()],
        [*repository.channels.list()],
    ),
    "diff": lambda repository: str(repository.diff("production~1", "production").tables[0].rows().stat()),
}
"""What a reader does. `create` of a repository that is there opens it."""


def _audited(repository: LanceRepository) -> VersionToPublish:
    return VersionToPublish(version=repository.table("a").head("main"), message="audited")


WRITES: Mapping[str, Callable[[LanceRepository], object]] = {
    "fork": lambda repository: repository.fork("a", "run/9"),
    "publish": lambda repository: repository.publish("run/3", channel="production"),
    "publish versions": lambda repository: repository.publish_versions(
        {"a": _audited(repository)}, plan_again=lambda _: _audited(repository), message="audited"
    ),
    "commit": lambda repository: repository.commit("by hand"),
    "promote": lambda repository: repository.channels.promote("production", "main~1"),
    "roll back": lambda repository: repository.channels.rollback("production", reason="wrong"),
    "hold": lambda repository: repository.channels.hold("production", reason="wait"),
    "delete a channel": lambda repository: repository.channels.delete("production", reason="over"),
    "release": lambda repository: repository.tags.create("v2"),
    "delete a release": lambda repository: repository.tags.delete("v1", force=True),
    "revert": lambda repository: repository.revert("main"),
    "remove a table": lambda repository: repository.remove_table("a"),
    "adopt": lambda repository: repository.adopt(["new"]),
    "create a table": lambda repository: repository.create_table("c", rows().schema),
    "collect": lambda repository: repository.collect(dry_run=False),
}


def prepared(repository: LanceRepository) -> dict[str, object]:
    """Make tables, publish, release and leave something to do; return what a reader finds then."""
    for name in ("a", "b"):
        repository.create_table(name, rows().schema)
    repository.commit("start")
    repository.create_table("new", rows().schema)
    for number in (1, 2):
        repository.publish(run(repository, number, "a"), channel="production")
    repository.tags.create("v1")
    run(repository, 3, "a")
    repository.table("a").append(rows(7))
    return {name: read(repository) for name, read in READS.items()}


def tried(root: str, connection: Connection, user: int) -> None:
    """Do every operation as another user, who may read the folder; send the results."""
    if user:
        os.setuid(user)
    repository = LanceRepository.open(root, FAST)
    found: dict[str, object] = {name: read(repository) for name, read in READS.items()}
    for name, write in WRITES.items():
        try:
            write(LanceRepository.open(root, FAST))
        except LanceDagsterError as error:
            found[name] = (type(error).__name__, str(error))
    connection.send(found)


@pytest.fixture
def readable_folder() -> Iterator[Path]:
    """A folder that every user of the machine may read, unlike the temporary folders of tests."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "lake"


def test_a_folder_that_is_read_only(readable_folder: Path) -> None:
    """Everything can be read, including the status, and each write is one error that names the file and the reason."""
    repository = LanceRepository.create(readable_folder, FAST)
    expected = prepared(repository)
    for path in (readable_folder, *readable_folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    context = ready_processes()
    receiver, sender = context.Pipe(duplex=False)
    # File permissions do not restrict root.
    process = context.Process(target=tried, args=(repository.root, sender, 0 if os.geteuid() else NOBODY))
    process.start()
    sender.close()
    found = receiver.recv()
    process.join()
    assert expected == {name: found.pop(name) for name in READS}
    for path in readable_folder.rglob("*"):
        path.chmod(0o755)
    assert WRITES.keys() == found.keys()
    for name, (kind, message) in found.items():
        refused = kind == "PermissionRefusedError" and "the storage refused to" in message
        assert refused, f"{name}: {kind}: {message}"
