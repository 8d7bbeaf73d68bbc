"""`compact`, `clone`, `relocate`, `move-base`, `allow-base` and `record-digests`."""

import shutil
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from tests.cli.running import document_of, lines_of, run
from tests.conftest import S3Storage
from tests.table_factory import contents, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table of small fragments with a branch."""
    made = new_table(tmp_path, entries("a", 1), entries("a", 2), entries("a", 3))
    made.branches.create("work")
    return made


def test_fragments_are_joined(table: LanceTable) -> None:
    """A compaction makes a new version, or says that there is nothing to compact."""
    (line,) = lines_of("table", "compact", table.uri, "-m", "tidy")
    assert "main@4 -> main@6  3 rows  tidy" == line
    assert 1 == len(table.to_lance().get_fragments())
    assert ["nothing to do: no fragment of main@6 is worth rewriting"] == lines_of("table", "compact", table.uri)
    answer = document_of("table", "compact", table.uri, "--branch", "work", "--target-rows", "2")
    assert (True, "work@6") == (answer["made"], answer["version"]["version"])
    assert 2 == run("table", "compact", table.uri, "--deleted-share", "2").exit_code


def test_a_clone_is_made(table: LanceTable, tmp_path: Path) -> None:
    """A clone refers to the files of its source, or copies them."""
    (line,) = lines_of("table", "clone", table.uri, str(tmp_path / "near"), "--at", "main@3")
    assert f"{tmp_path}/near: main@3, 2 rows, naming the files of main@3" == line
    answer = document_of("table", "clone", table.uri, str(tmp_path / "far"), "--deep")
    assert ("main@4", False, 3) == (answer["cloned_from"], answer["shallow"], answer["version"]["rows"])
    shutil.rmtree(table.uri)
    assert 3 == len(contents(LanceTable.open(tmp_path / "far")))
    assert 2 == run("table", "clone", table.uri, str(tmp_path / "other")).exit_code


def test_a_clone_does_not_take_a_place(table: LanceTable, tmp_path: Path) -> None:
    """A clone to the place of an existing table is refused."""
    lines_of("table", "clone", table.uri, str(tmp_path / "near"))
    assert 1 == run("table", "clone", table.uri, str(tmp_path / "near")).exit_code


def test_a_clone_has_options_of_its_own(table: LanceTable, s3_storage: S3Storage) -> None:
    """The clone may have its own storage options, as from a local disk to object storage."""
    options = [f"--to-storage-option={key}={value}" for key, value in s3_storage.storage_options.items()]
    answer = document_of("table", "clone", table.uri, f"{s3_storage.uri}/copy", "--deep", *options)
    assert 3 == len(contents(LanceTable.open(answer["uri"], s3_storage.storage_options)))
    wrong = run("table", "clone", table.uri, f"{s3_storage.uri}/other", "--to-storage-option", "hunter2")
    assert (2, False) == (wrong.exit_code, "hunter2" in wrong.output)


def test_a_table_that_was_moved_works_again(table: LanceTable, tmp_path: Path) -> None:
    """A moved table works again after `relocate`, whose dry run says what it would do."""
    new = tmp_path / "moved"
    shutil.move(table.uri, new)
    (line,) = lines_of("table", "relocate", str(new), "--dry-run")
    assert ["branch", "work", "work@4", "->", "a", "new", "version"] == line.split()[:7]
    assert f"{table.uri} is {new}" in line
    answer = document_of("table", "relocate", str(new))
    assert (False, "work@5") == (answer["dry_run"], answer["branches"][0]["after"])
    assert 3 == len(contents(LanceTable.open(new), "work"))
    assert ["nothing to do: all paths are correct"] == lines_of("table", "relocate", str(new), "--from", table.uri)
    assert [] == document_of("table", "relocate", str(new), "--dry-run")["branches"]


def test_files_that_are_missing_are_told(table: LanceTable, tmp_path: Path) -> None:
    """Missing files are reported with exit code 1, unless the check is switched off."""
    new = tmp_path / "moved"
    shutil.move(table.uri, new)
    next((new / "data").glob("*.lance")).unlink()
    result = run("table", "relocate", str(new))
    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))
    assert 0 == run("table", "relocate", str(new), "--no-check").exit_code


def test_a_base_path_is_moved(table: LanceTable, tmp_path: Path) -> None:
    """A base path is moved on every branch that has it."""
    for place in ("cold", "colder"):
        (tmp_path / place).mkdir()
    table.maintenance.add_base("archive", tmp_path / "cold")
    table.append(table.stage(entries("c", 1), base="archive"))
    for file in (tmp_path / "cold").iterdir():
        shutil.move(file, tmp_path / "colder")
    assert [True] == [
        "a new version" in line
        for line in lines_of("table", "move-base", table.uri, "archive", str(tmp_path / "colder"), "--dry-run")
    ]
    answer = document_of("table", "move-base", table.uri, "archive", str(tmp_path / "colder"))
    assert ["main@7"] == [branch["after"] for branch in answer["branches"]]
    assert 4 == len(contents(table))
    assert 2 == run("table", "move-base", table.uri, "attic", str(tmp_path / "colder")).exit_code


def test_a_compaction_says_what_it_is_for(tmp_path: Path) -> None:
    """The purpose of a compaction is in the log and in `show`."""
    table = new_table(tmp_path, entries("a", 1), entries("a", 2))
    answer = document_of("table", "compact", table.uri, "-m", "nightly", "--property", "ticket=77")
    assert ("main@3", "main@5") == (answer["before"], answer["version"]["version"])
    assert ("nightly", "77") == (answer["version"]["message"], answer["version"]["properties"]["ticket"])


def test_data_files_are_moved(tmp_path: Path) -> None:
    """A dry run tells the same as the call that follows it."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 1))
    table.maintenance.add_base("cold", tmp_path / "cold")
    arguments = ("table", "move-files", table.uri, "--where", "key = 'a'", "--to", "cold")
    (line,) = lines_of(*arguments, "--dry-run")
    assert "main@4: would move 1 fragment to cold, 1 file with" in line
    planned, moved = document_of(*arguments, "--dry-run"), document_of(*arguments, "-m", "old", "--property", "t=7")
    assert (4, 5, "old") == (planned["version"]["number"], moved["version"]["number"], moved["version"]["message"])
    same = ("to", "fragments", "files", "bytes", "requests", "searched")
    assert [planned[key] for key in same] == [moved[key] for key in same]
    assert ["main@5: no fragment to move to cold"] == lines_of(*arguments)
    assert 2 == run("table", "move-files", table.uri, "--where", "true", "--to", "attic").exit_code


def test_a_place_is_allowed(table: LanceTable, tmp_path: Path) -> None:
    """The command that a refusal names allows a place for every reader, even if the caller's option allows it."""
    clone = str(tmp_path / "near")
    table.maintenance.clone(clone)
    for allowance in Path(table.uri, "_refs", "tables").iterdir():
        allowance.unlink()
    refused = run("table", "head", clone)
    assert (2, True) == (refused.exit_code, f"`lance-dagster table allow-base {clone} {table.uri}`" in refused.stderr)
    lines_of("table", "allow-base", clone, table.uri, "-o", f"allowed_base_paths={table.uri}")
    assert 3 == len(contents(LanceTable.open(clone)))


def test_digests_are_recorded(table: LanceTable) -> None:
    """Digests are recorded once, and `verify --deep` names a file whose bytes have changed since."""
    assert {"recorded": 3} == document_of("table", "record-digests", table.uri)
    assert ["0 digests recorded"] == lines_of("table", "record-digests", table.uri, "--ref", "main")
    path = next(Path(table.uri, "data").glob("*.lance"))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    result = run("table", "verify", table.uri, "--deep")
    assert (1, True) == (result.exit_code, f"data/{path.name}\n    its bytes changed" in result.output)
