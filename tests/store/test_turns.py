"""Turns of the writers of one machine, for tables on object storage."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.store import open_store
from lance_dagster.store.turns import turn_of_machine
from tests.conftest import S3Storage

ROWS = pa.table({"value": [1]})
WRITERS, APPENDS = 6, 3


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the queues of this user, inside of a folder for temporary files that only this test uses."""
    # Python looks up TMPDIR once for the whole process.
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path)
    yield tmp_path / f"lance_dagster-{os.getuid()}"
    tempfile.tempdir = before


def noted(folder: Path) -> Path:
    """Return the file of the one lock in which a writer left a number."""
    (lock,) = (path for path in folder.iterdir() if not path.suffix and path.read_bytes())
    return lock


def test_a_turn_tells_the_next_writer_which_version_is_the_newest(folder: Path) -> None:
    """A number is left for writers to the same branch, and for no others that share their queue."""
    with turn_of_machine("a") as turn:
        assert (False, 0) == (turn.waited, turn.newest)
        turn.newest = 17
    with turn_of_machine("a") as turn:
        assert (False, 17) == (turn.waited, turn.newest)
        # A shorter number leaves nothing of the longer one.
        turn.newest = 3
    with turn_of_machine("a") as turn:
        assert turn.newest == 3
    lock = noted(folder)
    lock.write_bytes(b"something else")
    with turn_of_machine("a") as turn:
        assert turn.newest == 0
    assert 0o700 == folder.stat().st_mode & 0o777


@pytest.mark.parametrize(
    "left, taken",
    [(b"manifest", b"manifest"), (None, None), (bytes((1 << 22) + 1), None)],
    ids=["small", "none", "large"],
)
def test_a_writer_waits_for_the_one_before(folder: Path, left: bytes | None, taken: bytes | None) -> None:
    """A second writer of a branch waits and is given what the first one made; one of another branch does not wait.

    A manifest that is large is read from the table, as one that a writer finds without waiting.
    """
    assert not folder.exists()
    seen: list[tuple[str, object]] = []

    def wait() -> None:
        with turn_of_machine("a", lambda: seen.append(("meanwhile", True))) as turn:
            seen.append(("second", (turn.waited, turn.newest, turn.manifest)))

    with turn_of_machine("a") as first:
        thread = threading.Thread(target=wait)
        thread.start()
        with turn_of_machine("b") as other:
            assert not other.waited
        time.sleep(0.1)
        first.newest, first.manifest = 2, left
        seen.append(("first", True))
    thread.join()
    assert [("meanwhile", True), ("first", True), ("second", (True, 2, taken))] == seen
    # Nobody has waited.
    with turn_of_machine("a") as turn:
        assert (False, 2, None) == (turn.waited, turn.newest, turn.manifest)


@pytest.mark.parametrize("problem", ["a file", "a link", "open to others", "no folder for temporary files"])
def test_no_queue_is_used_that_is_not_of_this_user_alone(folder: Path, tmp_path: Path, problem: str) -> None:
    """Where the folder of the queues is none of this user's own, every writer has its turn at once."""
    other = tmp_path / "other"
    other.mkdir(0o700)
    match problem:
        case "a file":
            folder.write_bytes(b"")
        case "a link":
            folder.symlink_to(other)
        case "open to others":
            folder.mkdir()
            folder.chmod(0o777)
        case _:
            tempfile.tempdir = str(tmp_path / "missing")
    with turn_of_machine("a") as first:
        first.newest = 1
        with turn_of_machine("a") as second:
            assert (False, 0) == (second.waited, second.newest)
    assert not any(other.iterdir())


def test_writers_of_a_table_on_object_storage_take_turns(folder: Path, s3_storage: S3Storage) -> None:
    """Writers leave the number of the newest version to each other, and a wrong number does no harm."""
    uri, options = f"{s3_storage.uri}/t.lance", s3_storage.storage_options
    LanceTable.create(uri, ROWS.schema, storage_options=options)
    tables = [LanceTable.open(uri, options) for _ in range(WRITERS)]

    def write(table: LanceTable) -> None:
        for _ in range(APPENDS):
            table.append(ROWS)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, tables))
    table = LanceTable.open(uri, options)
    assert [WRITERS * APPENDS, 1 + WRITERS * APPENDS] == [table.count_rows(), next(iter(table.log())).number]
    lock = noted(folder)
    digest, number, when = lock.read_text().split()[:3]
    assert int(number) == 1 + WRITERS * APPENDS
    # A number that is not there yet, with a writer that has waited.
    lock.write_text(f"{digest} 99 {when} ")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, tables[:2]))
    assert (WRITERS + 2) * APPENDS == table.count_rows()


def test_a_manifest_that_is_not_the_newest_any_more_does_no_harm(folder: Path, s3_storage: S3Storage) -> None:
    """A writer that is handed a version, on which another machine has put the next one, commits on top of that one."""
    uri, options = f"{s3_storage.uri}/t.lance", s3_storage.storage_options
    LanceTable.create(uri, ROWS.schema, storage_options=options)
    table, store = LanceTable.open(uri, options), open_store(uri, options)
    table.append(ROWS)
    assert folder.exists()
    with ThreadPoolExecutor(1) as pool:
        with store.turn("main") as turn:
            waiting = pool.submit(table.append, ROWS)
            time.sleep(0.3)
            # pylance does not take turns, as a writer on another machine does not wait for this one.
            lance.write_dataset(ROWS, uri, mode="append", storage_options=dict(options))
            (name,) = store.list("_versions", limit=1)
            turn.newest, turn.manifest = 3, store.get(f"_versions/{name}")
            lance.write_dataset(ROWS, uri, mode="append", storage_options=dict(options))
        assert "main@5" == str(waiting.result())
    assert [4, 4] == [table.count_rows(), lance.dataset(uri, storage_options=dict(options)).count_rows()]
