"""Damage that makes pylance abort the reading process, and the checks that find it before pylance reads."""

import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import cast

import lance
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.datafiles import ExpectedFile, read_shape
from lance_dagster.errors import CorruptFileError
from lance_dagster.store import LocalStore
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import context_on, entries, new_table

pytestmark = pytest.mark.slow

USE = """
import sys
from lance_dagster import LanceTable
from lance_dagster.errors import LanceDagsterError
for uri in sys.argv[1:]:
    table = LanceTable.open(uri)
    for use in (
        lambda: table.read(),
        lambda: table.count_rows(filter="value > 1"),
        lambda: table.delete("value = 7"),
        lambda: table.update({"key": "'z'"}, where="value = 8"),
        lambda: table.maintenance.compact(),
        lambda: table.diff("main~1", "main", on=["value"]).stat(),
    ):
        try:
            use()
        except LanceDagsterError as error:
            print(type(error).__name__, error)
    print("used", uri, flush=True)
"""


def used(*tables: LanceTable) -> list[list[str]]:
    """Use tables in a separate process; return its report on each, with a line for each use that fails."""
    command = [sys.executable, "-c", USE, *(table.uri for table in tables)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert 0 == done.returncode, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    told = [part.splitlines()[1:] for part in f"\n{done.stdout}".split("used ")]
    assert len(tables) == len(told) - 1
    return told[:-1]


@pytest.fixture
def deleted(tmp_path: Path) -> LanceTable:
    """A table with an Arrow deletion file, which pylance wrote."""
    table = new_table(tmp_path, entries("a", *range(100)))
    lance.dataset(table.uri).delete("value in (3, 5)")
    return table


def test_no_damage_of_a_deletion_file_reaches_pylance(deleted: LanceTable, tmp_path: Path) -> None:
    """With flipped bits anywhere in the file, each use works or names the file, and the process survives."""
    (path,) = Path(deleted.uri, "_deletions").iterdir()
    whole = path.read_bytes()
    copies = []
    for place in range(0, len(whole), 67):
        copies.append(LanceTable.open(shutil.copytree(deleted.uri, tmp_path / str(place))))
        Path(copies[-1].uri, "_deletions", path.name).write_bytes(
            whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :]
        )
    told = used(*copies)
    for lines in told:
        assert all(line.startswith("CorruptFileError") and path.name in line for line in lines), lines
    assert any(told)


def test_a_deletion_file_is_decoded_once(deleted: LanceTable) -> None:
    """An opened table reads each Arrow deletion file once, or never with `check_files` set to `none`."""
    asked: list[str] = []

    def script(request: Request) -> object:
        if "_deletions" in request.key:
            asked.append(request.key)
        return request.send()

    table = LanceTable(context_on(ScriptedStore(LocalStore(deleted.uri), script)))
    for _ in range(3):
        table.read()
    assert 1 == len(asked)
    Path(deleted.uri, asked[0]).write_bytes(b"")
    with pytest.raises(CorruptFileError):
        LanceTable.open(deleted.uri).read()
    with pytest.raises(CorruptFileError):
        LanceTable.open(deleted.uri, {"check_files": "none"}).read()


@pytest.mark.parametrize("damage", [b"\0" * 8, b"\xff" * 8], ids=["zeroed", "set"])
def test_a_data_file_of_a_damaged_shape_is_not_opened(tmp_path: Path, damage: bytes) -> None:
    """With `check_files` set to `shapes`, a data file with a damaged footer or offset tables is not opened."""
    table = new_table(tmp_path, entries("a", *range(1000)))
    (path,) = Path(table.uri, "data").iterdir()
    whole = path.read_bytes()
    for place in range(len(whole) - 72, len(whole) - 7, 8):
        copy = Path(shutil.copytree(table.uri, tmp_path / str(place)))
        (copy / "data" / path.name).write_bytes(whole[:place] + damage + whole[place + 8 :])
        if (copy / "data" / path.name).read_bytes() == whole:
            continue
        with pytest.raises(CorruptFileError, match=path.name):
            LanceTable.open(copy, {"check_files": "shapes"}).read()
        found = LanceTable.open(copy).maintenance.verify(deep=True)
        assert any(path.name in (problem.path or "") for problem in found.problems)
    assert 1000 == LanceTable.open(table.uri, {"check_files": "shapes"}).count_rows(filter="value >= 0")


READ = """
import shutil, sys
from lance_dagster import LanceTable
uri, path, *copies = sys.argv[1:]
for copy in copies:
    print(copy, flush=True)
    shutil.copyfile(copy, path)
    try:
        LanceTable.open(uri).read()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_what_passes_as_a_shape_does_not_end_the_process(tmp_path: Path) -> None:
    """All the metadata of a file is damaged place by place; pylance reads what the check lets pass, and survives."""
    inner = pa.struct([pa.field("a", pa.int8())])
    names = {"value": pa.int64(), "key": pa.string(), "list": pa.list_(pa.int32()), "inner": inner}
    schema = pa.schema([pa.field(name, kind) for name, kind in names.items()])
    columns = {
        "value": range(1000),
        "key": [f"x{number}" for number in range(1000)],
        "list": [[number] * (number % 3) for number in range(1000)],
        "inner": [{"a": 1}] * 1000,
    }
    table = LanceTable.create(tmp_path / "table", schema)
    table.append(pa.table({name: [*values] for name, values in columns.items()}, schema))
    (path,) = Path(table.uri, "data").iterdir()
    whole = path.read_bytes()
    (first,) = struct.unpack_from("<Q", whole, len(whole) - 40)
    places = range(first, len(whole) - 7)
    edits = [whole[:place] + damage + whole[place + 8 :] for place in places for damage in (b"\0" * 8, b"\xff" * 8)]
    edits += [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(first, len(whole))]
    store, passed, refused = LocalStore(str(tmp_path)), list[str](), 0
    for number, edited in enumerate(edits):
        copy = tmp_path / f"{number}.lance"
        copy.write_bytes(edited)
        try:
            read_shape(ExpectedFile(store=store, key=copy.name, size=len(edited)), pages=True)
        except CorruptFileError:
            refused += 1
        else:
            passed.append(str(copy))
    assert refused > 4 * len(passed)
    command = [sys.executable, "-c", READ, table.uri, str(path), *passed]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert 0 == done.returncode, f"{done.stdout[-500:]}{done.stderr[-500:]}"
    assert passed == [line for line in done.stdout.splitlines() if line.startswith(str(tmp_path))]


def test_verification_survives_damaged_pages(tmp_path: Path) -> None:
    """`verify --deep` reads values in another process, whose abort over eight zeroed bytes is a finding."""
    table = new_table(tmp_path, entries("a", *range(1000)))
    (path,) = Path(table.uri, "data").iterdir()
    whole = path.read_bytes()
    for place in range(0, len(whole) - 72, len(whole) // 12):
        path.write_bytes(whole[:place] + b"\0" * 8 + whole[place + 8 :])
        # The bytes may be read as other values, which only a digest could detect; but this process must survive.
        LanceTable.open(table.uri).maintenance.verify(deep=True)
    path.write_bytes(whole)
    assert () == LanceTable.open(table.uri).maintenance.verify(deep=True).problems


def test_other_checks_are_refused(deleted: LanceTable) -> None:
    """The error for an unknown `check_files` names the three known values."""
    with pytest.raises(InvalidInputError, match="it says which files are checked"):
        LanceTable.open(deleted.uri, {"check_files": "all"}).read()


def test_a_read_in_another_process_survives_damaged_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the reading process aborts, there is one error; other rows and errors are the same as in this process."""
    # The search path is restored after the test. Python ignores entries of it that are not strings.
    monkeypatch.syspath_prepend(str(tmp_path))
    cast("list[object]", sys.path).append(tmp_path)
    table = new_table(tmp_path, entries("a", *range(1000)))
    table.branches.create("run")
    table.append(entries("b", 1), branch="run")
    here, there = (table.read("run", ["value"], "value < 10", isolated=isolated) for isolated in (False, True))
    assert (11, here) == (there.num_rows, there)
    with pytest.raises(InvalidInputError):
        table.scan(columns=["valu"], isolated=True)
    with pytest.raises(InvalidInputError):
        table.scan(filter=cast("str", b"value = 1"), isolated=True)
    table.append(entries("c" * 1000, *range(20_000)))
    stream = table.scan(columns=["key"], isolated=True)
    # The process is killed while it waits for this one to read on, as damage would end it.
    started = [found.parent for found in Path("/proc").glob("[0-9]*/cmdline") if b"isolated_r" in found.read_bytes()]
    (process,) = [int(one.name) for one in started if f"PPid:\t{os.getpid()}" in (one / "status").read_text()]
    os.kill(process, signal.SIGKILL)
    with pytest.raises(CorruptFileError, match="by signal 9"):
        stream.read_all()
