"""Digests of data files: when they are recorded, how a changed byte is reported, and what deletes them."""

import hashlib
import re
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_field

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.store import open_store
from tests.conftest import S3Storage
from tests.damage import only_file
from tests.table_factory import SCHEMA, as_pylance, contents, entries, new_table

RECORDING = {"record_digests": "true"}


def flip(path: Path, value: bytes = b"letter") -> None:
    """Flip one bit of a value in a file, so that another value is read."""
    data = bytearray(path.read_bytes())
    data[data.index(value)] ^= 1
    path.write_bytes(data)


def digests(table: LanceTable) -> dict[str, str]:
    """The recorded digests by data file."""
    names = [path.name for path in Path(table.uri).glob("data/**/*.sha256")]
    return dict(name.removesuffix(".sha256").rsplit(".", 1) for name in names)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """The digest of the file was recorded when it was written."""
    plain = new_table(tmp_path, entries("letter a", 1, 2))
    table = LanceTable.open(plain.uri, RECORDING)
    table.append(entries("letter b", 3, 4))
    plain.append(entries("c", 5))
    ((name, recorded),) = digests(table).items()
    path = Path(table.uri, "data", name)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == recorded
    flip(path)
    assert (True, 2) == (
        table.maintenance.verify().ok,
        table.read(columns=["key"]).column("key").to_pylist().count("metter b"),
    )
    # Recording again does not make the changed file valid.
    assert 2 == table.maintenance.record_digests()
    report = table.maintenance.verify(deep=True)
    assert (3, 0) == (report.digests_compared, report.without_digest)
    beyond, problem = report.problems
    assert beyond.what.startswith("values are outside of the recorded range")
    # Each version that has the file is damaged.
    assert (f"data/{name}", ("main@3", "main@4"), 1) == (problem.path, problem.versions, problem.fragment)
    assert (True, True) == (problem.what.startswith("its bytes changed"), recorded in problem.right)


def test_digests_of_what_is_there_are_recorded(tmp_path: Path) -> None:
    """The files of each branch get one digest each, also those that pylance wrote into a branch's own folder."""
    table = new_table(tmp_path, entries("letter a", 1, 2))
    table.branches.create("run")
    as_pylance(table, "run").insert(entries("letter b", 3))
    steps: list[tuple[int, int]] = []
    assert 2 == table.maintenance.record_digests(progress=lambda *step: steps.append(step))
    assert (0, [(1, 2), (2, 2)]) == (table.maintenance.record_digests("run"), steps)
    table.append(entries("letter c", 4))
    flip(only_file(table, "tree/run/data/*.lance"))
    report = table.maintenance.verify(deep=True)
    (problem,) = report.problems
    assert (2, 1, "tree/run/data/") == (report.digests_compared, report.without_digest, (problem.path or "")[:14])


def test_blob_files_have_digests(tmp_path: Path) -> None:
    """Each blob file has its own digest, since no page of a data file covers it."""
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("blob")])
    table = LanceTable.create(tmp_path / "blobs", schema, storage_options=RECORDING)
    table.append(pa.table({"id": [1], "blob": lance.blob_array([b"x" * 5_000_000])}, schema))
    blob = only_file(table, "data/*/*.blob")
    flip(blob, b"xxx")
    report = table.maintenance.verify(deep=True)
    (problem,) = report.problems
    assert 2 == report.digests_compared
    assert re.fullmatch(r"data/[^/]+/[^/]+\.blob", problem.path or "")
    blob.unlink()
    report = table.maintenance.verify(deep=True)
    (missing,) = report.problems
    assert (1, problem.path, "it is missing") == (report.digests_compared, missing.path, missing.what)


def test_digests_go_with_their_files(tmp_path: Path) -> None:
    """The package deletes them with the files; pylance ignores them, and the package deletes them later."""
    table = LanceTable.create(tmp_path / "table", SCHEMA, storage_options=RECORDING)
    table.append(entries("letter a", 1))
    table.append(entries("letter b", 2))
    table.overwrite(entries("letter c", 3))
    assert 3 == len(digests(table))
    as_pylance(table).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert (1, 3) == (len(list(Path(table.uri).glob("data/*.lance"))), len(digests(table)))
    assert 0 == table.maintenance.collect_garbage(dry_run=False).files
    report = table.maintenance.collect_garbage(timedelta(0), grace=timedelta(0), dry_run=False)
    assert {"digests": 2} == {kind: count.files for kind, count in report.garbage.items() if kind == "digests"}
    (kept,) = Path(table.uri).glob("data/*.lance")
    assert {kept.name} == digests(table).keys()
    assert [("letter c", 3)] == contents(table)


def test_clones_keep_digests(tmp_path: Path) -> None:
    """A deep clone copies digests with the files; a shallow one uses those beside the files."""
    table = LanceTable.create(tmp_path / "table", SCHEMA, storage_options=RECORDING)
    table.append(entries("letter a", 1))
    deep, shallow = (table.maintenance.clone(tmp_path / str(near), shallow=near) for near in (False, True))
    assert digests(table) == digests(deep)
    assert (0, 1) == (shallow.maintenance.record_digests(), shallow.maintenance.verify(deep=True).digests_compared)


def test_digests_on_object_storage(s3_storage: S3Storage) -> None:
    """The option is a storage option, so each process with the options of a table records digests."""
    options = {**s3_storage.storage_options, **RECORDING}
    table = LanceTable.create(f"{s3_storage.uri}/table", SCHEMA, storage_options=options)
    table.append(entries("letter a", 1))
    assert 2 == len(open_store(table.uri, options).list("data"))
    assert 0 == table.maintenance.record_digests()


def test_the_option_is_true_or_false(tmp_path: Path) -> None:
    """Any other value is refused when the table is opened."""
    with pytest.raises(InvalidInputError):
        LanceTable.open(new_table(tmp_path).uri, {"record_digests": "yes"})
