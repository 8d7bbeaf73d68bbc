"""Content ids of versions of a table."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from tests.conftest import S3Storage
from tests.history.rewritten_manifests import watched
from tests.table_factory import SCHEMA, as_pylance, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two fragments, one of them with deleted rows."""
    made = new_table(tmp_path, entries("a", 1, 2, 3), entries("b", 1, 2))
    made.delete("value = 2 and key = 'a'")
    return made


def test_a_branch_holds_what_it_was_forked_from(table: LanceTable) -> None:
    """Branches of the package and of pylance reference files by base paths."""
    table.branches.create("by-package")
    as_pylance(table).create_branch("by-pylance")
    assert {table.maintenance.content_id()} == {
        table.maintenance.content_id(ref) for ref in ("by-package", "by-pylance", "main@4")
    }


def test_a_merge_into_an_unchanged_branch_holds_what_was_merged(table: LanceTable) -> None:
    """Rows are added, deleted and updated."""
    table.branches.create("run")
    table.append(entries("c", 1, 2), branch="run")
    table.delete("key = 'b' and value = 1", branch="run")
    table.upsert(entries("c", 2), on=["key", "value"], branch="run")
    before = table.maintenance.content_id()
    table.merge("run")
    assert before != table.maintenance.content_id()
    assert table.maintenance.content_id("run") == table.maintenance.content_id("main")


def test_the_same_rows_deleted_twice_are_the_same_content(table: LanceTable) -> None:
    """Each side has its own deletion files."""
    for branch in ("one", "two"):
        table.branches.create(branch)
        table.delete("key = 'b' and value = 1", branch=branch)
    assert (
        table.maintenance.content_id("one")
        == table.maintenance.content_id("two")
        != table.maintenance.content_id("main")
    )


def test_a_restored_version_holds_what_it_held(table: LanceTable) -> None:
    """Each change makes another content id, and a restore the former one."""
    seen = [table.maintenance.content_id()]
    table.append(entries("d", 1))
    seen.append(table.maintenance.content_id())
    table.config.set({"x": "1"})
    seen.append(table.maintenance.content_id())
    table.maintenance.compact()
    seen.append(table.maintenance.content_id())
    table.columns.rename("value", "worth")
    seen.append(table.maintenance.content_id())
    as_pylance(table).create_scalar_index("key", "BTREE")
    seen.append(LanceTable.open(table.uri).maintenance.content_id())
    assert len(seen) == len(set(seen))
    dataset = as_pylance(table).checkout_version(4)
    dataset.restore()
    assert seen[0] == LanceTable.open(table.uri).maintenance.content_id()


def test_pylance_compacting_nothing_changes_nothing(table: LanceTable) -> None:
    """Maintenance that has nothing to do does not change the content id."""
    before = table.maintenance.content_id()
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    assert before == LanceTable.open(table.uri).maintenance.content_id()


def test_content_is_found_out_with_one_manifest(table: LanceTable) -> None:
    """Only deletion files are read in addition."""
    again, read = watched(table)
    again.maintenance.content_id()
    assert 1 == len(read)


def test_content_is_the_same_wherever_a_table_lies(s3_storage: S3Storage) -> None:
    """Several deletion files are read from a bucket at a time."""
    table = LanceTable.create(f"{s3_storage.uri}/content", SCHEMA, storage_options=s3_storage.storage_options)
    for number in range(6):
        table.append(entries("a", number, number + 100))
    table.delete("value < 100")
    table.branches.create("run")
    assert (
        table.maintenance.content_id("run")
        == table.maintenance.content_id("main")
        != table.maintenance.content_id("main~1")
    )
