"""Manifest names of the first scheme are read, written, and migrated to the present scheme."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.layout import manifest_name, newest_manifest_names
from lance_dagster.history.versions import Versions
from lance_dagster.store import LocalStore
from tests.store.scripted import PlugPulledError, Request, ScriptedStore, plug_pulled_before_write
from tests.table_factory import contents, context_on, entries


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with names of old programs, with more versions than one digit can number."""
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(entries("a", 0), uri, enable_v2_manifest_paths=False, enable_stable_row_ids=True)
    for number in range(1, 11):
        dataset.insert(entries("a", number))
    return LanceTable.open(uri)


def names(table: LanceTable, folder: str = "") -> list[str]:
    """The names of the manifests, sorted."""
    return sorted(path.name for path in (Path(table.uri) / folder / "_versions").glob("*.manifest"))


ROWS = [("a", number) for number in range(11)]


def test_old_names_are_read_and_kept(table: LanceTable) -> None:
    """The newest version has the highest number, and commits keep the naming scheme."""
    assert list(range(1, 12)) == table.branches.version_numbers()
    assert ROWS == contents(table)
    assert 5 == table.count_rows("main@5")
    assert "main@12" == str(table.append(entries("b", 1)))
    assert "main@13" == str(LanceTable.open(table.uri).append(entries("b", 2)))
    assert "12.manifest" in names(table)
    lance.dataset(table.uri).insert(entries("b", 3))
    assert [*ROWS, ("b", 1), ("b", 2), ("b", 3)] == contents(table)
    lance.dataset(table.uri).validate()


def test_branches_and_tags_of_an_old_table(table: LanceTable) -> None:
    """Branches have present names, as pylance's do; a merge into main gets an old name."""
    table.branches.create("run/1", "main@5")
    table.append(entries("b", 1), branch="run/1")
    assert [manifest_name(6), manifest_name(5)] == names(table, "tree/run/1")
    table.merge("run/1")
    table.tags.create("release", "main@12")
    assert [*ROWS, ("b", 1)] == contents(table)
    assert len(ROWS) + 1 == lance.dataset(table.uri, version="release").count_rows()
    pylances = lance.dataset(table.uri).create_branch("dev")
    pylances.insert(entries("c", 1))
    assert len(ROWS) + 2 == table.count_rows("dev")


def test_migration_renames_every_version(table: LanceTable) -> None:
    """Pylance reads the same table after the migration, and commits use present names."""
    assert 11 == table.maintenance.migrate_manifest_names()
    assert 0 == table.maintenance.migrate_manifest_names()
    assert sorted(map(manifest_name, range(1, 12))) == names(table)
    table.append(entries("b", 1))
    lance.dataset(table.uri).insert(entries("b", 2))
    assert sorted(map(manifest_name, range(1, 14))) == names(table)
    assert [*ROWS, ("b", 1), ("b", 2)] == contents(LanceTable.open(table.uri))
    assert 5 == table.count_rows("main@5")


@pytest.mark.parametrize("writes", range(23))
def test_a_migration_that_is_killed_can_be_made_again(table: LanceTable, writes: int) -> None:
    """After an interruption at any write each version has a name, and the error says what to do."""
    store = ScriptedStore(LocalStore(table.uri), plug_pulled_before_write(writes))
    with pytest.raises(PlugPulledError) if writes < 22 else pytest.raises(AssertionError):
        LanceTable(context_on(store)).maintenance.migrate_manifest_names()
        raise AssertionError("there are no more writes than versions, twice")
    if 0 < writes < 22:
        with pytest.raises(CorruptFileError, match=r"migrate_manifest_names\(\) finishes"):
            LanceTable.open(table.uri).branches.version_numbers()
        assert 5 == table.count_rows("main@5")
    _assert_newest_or_refused(table.uri)
    LanceTable.open(table.uri).maintenance.migrate_manifest_names()
    assert ROWS == contents(LanceTable.open(table.uri))
    assert ROWS == sorted(contents(LanceTable(context_on(LocalStore(table.uri)))))


class OrderedStore(LocalStore):
    """A store with sorted listings, as object stores have, of which only the first names are requested."""

    ordered_listing = True


def _assert_newest_or_refused(uri: str) -> None:
    """An older version must never be taken for the newest, because the next commit would reuse a number."""
    with suppress(CorruptFileError):
        assert 11 == Versions(OrderedStore(uri)).newest("main")


@pytest.mark.parametrize("copies", range(1, 11))
def test_pylance_finishes_what_was_begun(table: LanceTable, copies: int) -> None:
    """Either program can complete a migration."""
    store = ScriptedStore(LocalStore(table.uri), plug_pulled_before_write(copies))
    with pytest.raises(PlugPulledError):
        LanceTable(context_on(store)).maintenance.migrate_manifest_names()
    lance.dataset(table.uri, version=5).migrate_manifest_paths_v2()
    assert sorted(map(manifest_name, range(1, 12))) == names(table)
    assert ROWS == contents(LanceTable.open(table.uri))


def test_a_writer_that_was_not_stopped_is_migrated_too(table: LanceTable) -> None:
    """A commit during the migration is found before its end."""
    writes = 0

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        nonlocal writes
        writes += request.writes
        if request.writes and writes == 15:
            (Path(table.uri) / "_versions" / "12.manifest").write_bytes(late)
        return request.send()

    other = shutil.copytree(table.uri, f"{table.uri}-other")
    lance.dataset(other).insert(entries("late", 1))
    late = (Path(other) / "_versions" / "12.manifest").read_bytes()
    for file in (Path(other) / "data").iterdir():
        shutil.copy(file, Path(table.uri) / "data")
    migrated = LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script))).maintenance.migrate_manifest_names()
    assert 12 == migrated
    assert [*ROWS, ("late", 1)] == contents(LanceTable.open(table.uri))


def test_names_of_other_things_are_no_versions(table: LanceTable) -> None:
    """Detached versions of either scheme and stray files are no versions."""
    folder = Path(table.uri) / "_versions"
    for stray in (f"d{2**63 + 5}.manifest", "x.manifest", "3.manifest.bak", ".tmp1.manifest", "1e3.manifest"):
        (folder / stray).write_bytes(b"stray")
    assert list(range(1, 12)) == table.branches.version_numbers()
    table.maintenance.migrate_manifest_names()
    assert "main@12" == str(table.append(entries("b", 1)))
    assert list(range(1, 13)) == LanceTable.open(table.uri).branches.version_numbers()
    assert f"d{2**63 + 5}.manifest" in names(table)


def test_the_newest_of_very_many_versions_is_found_by_order() -> None:
    """Only the first two names are parsed, unless one has another length."""
    many = [manifest_name(number) for number in range(1, 10_001)]
    newest = [manifest_name(10_000), manifest_name(9_999)]
    assert newest == newest_manifest_names(many)
    detached = f"d{2**63 + 5}.manifest"
    assert [*newest, "3.manifest"] == newest_manifest_names([detached, *many, "3.manifest"])
    assert ["3.manifest"] == newest_manifest_names(["3.manifest"])
    assert [] == newest_manifest_names([])


def test_two_versions_of_one_number_are_kept_both(table: LanceTable) -> None:
    """A writer was not stopped, and it is unknown which of the two versions counts."""
    folder = Path(table.uri) / "_versions"
    (folder / manifest_name(3)).write_bytes((folder / "4.manifest").read_bytes())
    with pytest.raises(CorruptFileError):
        table.maintenance.migrate_manifest_names()
    assert {"3.manifest", manifest_name(3)} <= set(names(table))
