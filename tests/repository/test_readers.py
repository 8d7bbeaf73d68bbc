"""Users who may only read: of a read-only folder, and with a role that may not write to a bucket."""

import os
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lance_dagster import LanceRepository
from lance_dagster.errors import LanceDagsterError
from tests.forked_program import ready_processes
from tests.repository.reads_and_writes import READS, WRITES, prepared
from tests.repository.scripted_repository import FAST

NOBODY = 65534


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
