"""Data files inspected in a separate process."""

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import LanceTable, write_files
from lance_dagster.datafiles import DataFileInspector
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import DataFileShape
from tests.raising import raises

ROWS = pa.table({"id": range(1000), "text": ["some text"] * 1000})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A data file."""
    table = LanceTable.create(tmp_path / "t", ROWS.schema)
    (staged,) = write_files(table.write_target(), ROWS.to_batches())
    return tmp_path / "t/data" / staged.name


@pytest.mark.parametrize("read", [False, True])
def test_a_file_says_what_it_has(file: Path, read: bool) -> None:  # noqa: FBT001
    """An inspection returns rows, columns and the file version; one process inspects several files."""
    expected = DataFileShape(rows=1000, columns=2, major=2, minor=2)
    with DataFileInspector() as inspector:
        assert [expected] * 3 == [inspector.inspect(str(file), {}, size=1, decode=read) for _ in range(3)]


def test_what_cannot_be_read_is_damage(file: Path) -> None:
    """A missing or cut file, one of another kind, or one on which pylance panics is damage; the next one is read."""
    whole = file.read_bytes()
    with DataFileInspector() as inspector:
        for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1]):
            file.write_bytes(content)
            with raises(CorruptFileError, path=str(file)):
                inspector.inspect(str(file), {}, size=1, decode=True)
        file.write_bytes(whole)
        assert 1000 == inspector.inspect(str(file), {}, size=1, decode=True).rows
        file.unlink()
        with raises(CorruptFileError, path=str(file)):
            inspector.inspect(str(file), {}, size=1, decode=False)


def test_a_file_that_ends_the_process_is_damage(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some damage makes pylance request more memory than there is; the caller survives the end of the process."""
    with DataFileInspector() as inspector:
        monkeypatch.setenv("PYTHONMALLOC", "a kind that ends the interpreter")
        with raises(CorruptFileError, path=str(file)):
            inspector.inspect(str(file), {}, size=1, decode=True)
        monkeypatch.delenv("PYTHONMALLOC")
        assert 1000 == inspector.inspect(str(file), {}, size=1, decode=True).rows


def test_a_process_that_ended_by_itself_is_no_damage(file: Path) -> None:
    """It waits half a minute for the next file, and a machine that sleeps in between lets that pass."""
    with DataFileInspector() as inspector:
        inspector.inspect(str(file), {}, size=1, decode=True)
        assert inspector._process is not None  # noqa: SLF001 - a process that waits too long ends as this one does
        held = inspector._process.process  # noqa: SLF001
        held.communicate()
        assert 0 == held.returncode
        unread, requests = os.pipe()
        os.close(unread)
        held.stdin = os.fdopen(requests, "wb")
        assert 1000 == inspector.inspect(str(file), {}, size=1, decode=True).rows


def test_a_process_without_damage_serves_the_next_inspection(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves only the same environment, from which pylance takes credentials; a process that died is replaced."""
    (file.parent / "cut").write_bytes(b"text")

    def serving(name: str, damage: bool) -> int:  # noqa: FBT001
        with DataFileInspector() as inspector:
            if damage:
                with pytest.raises(CorruptFileError):
                    inspector.inspect(str(file.parent / name), {}, size=1, decode=False)
            else:
                inspector.inspect(str(file), {}, size=1, decode=False)
            assert inspector._process is not None  # noqa: SLF001 - which process it is, is what is tested
            return inspector._process.process.pid  # noqa: SLF001

    first = serving(file.name, damage=False)
    assert first == serving("cut", damage=True)
    second = serving(file.name, damage=False)
    monkeypatch.setenv("AWS_PROFILE", "another")
    third = serving(file.name, damage=False)
    assert 3 == len({first, second, third})
    os.kill(third, signal.SIGKILL)
    os.waitid(os.P_PID, third, os.WEXITED | os.WNOWAIT)
    assert third != serving(file.name, damage=False)
