"""Pylance's own maintenance of a table with live, merged and deleted branches, tags and indices.

Each operation works, and afterwards pylance and the package read the same rows as before.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from tests.backdating import DAY, age
from tests.soak import pairs
from tests.table_factory import Rows, as_pylance, contents, entries, new_table, sorted_rows

pytestmark = pytest.mark.slow

AT_ONCE = timedelta(microseconds=1)
WAYS: dict[str, dict[str, Any]] = {
    "verified": {"older_than": AT_ONCE},
    "unverified": {"older_than": AT_ONCE, "delete_unverified": True},
    "verified, a month later": {"older_than": DAY},
    "the newest": {"retain_versions": 1, "delete_unverified": True},
}
LINES = ("main", "live", "merged", "inner", "by-pylance")
Work = Callable[[LanceTable], object]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Rows inserted, replaced, updated, deleted and indexed on each branch."""
    made = new_table(tmp_path, entries("a", *range(20)), entries("b", *range(20)))
    as_pylance(made).create_scalar_index("value", "BTREE")
    for name in ("merged", "gone", "live"):
        made.branches.create(name)
        made.append(entries(name, *range(5)), branch=name)
        made.replace_where(f"key = '{name}' and value IN (1, 100)", entries(name, 100), branch=name)
    made.delete("key = 'a' and value = 3", branch="live")
    as_pylance(made, "live").update({"value": "200"}, where="key = 'a' and value = 4")
    made.tags.create("candidate", "live")
    made.append(entries("live", 50), branch="live")
    made.branches.create("inner", "live")
    made.delete("key = 'live' and value = 2", branch="inner")
    as_pylance(made).create_branch("by-pylance").insert(entries("by-pylance", 1, 2))
    made.merge("merged")
    made.merge("gone")
    made.branches.delete("gone")
    made.tags.create("production", "main")
    as_pylance(made).update({"value": "300"}, where="key = 'b' and value = 4")
    made.delete("key = 'b' and value = 5")
    made.append(entries("m", 1))
    return made


def state(table: LanceTable) -> Mapping[str, Rows]:
    """The rows of each branch and tag, which are equal through pylance and the package, by scan and by index."""
    fresh = LanceTable.open(table.uri)
    found: dict[str, Rows] = {}
    for name in ("main", *fresh.branches.list(), *fresh.tags.list()):
        dataset = lance.dataset(fresh.uri)
        tagged = name in fresh.tags.list()
        dataset = dataset if name == "main" else dataset.checkout_version(name if tagged else (name, None))
        dataset.validate()
        found[name] = contents(fresh, name)
        assert sorted_rows(dataset.to_table()) == found[name]
        assert sum(1 for _, value in found[name] if value == 7) == dataset.count_rows("value = 7")
        assert sum(1 for _, value in found[name] if value < 3) == len(fresh.read(name, filter="value < 3"))
    return found


def held(before: Mapping[str, Rows], table: LanceTable, *gone: str) -> None:
    """Each ref that is not deleted has the same rows as before, and each branch accepts commits."""
    expected = {name: rows for name, rows in before.items() if name not in gone}
    assert expected == state(table)
    errors = [str(problem) for problem in table.maintenance.verify().problems if problem.severity == "error"]
    assert [] == errors
    fresh = LanceTable.open(table.uri)
    for name in ("main", *fresh.branches.list()):
        fresh.append(entries("later", 1), branch=name)
        as_pylance(fresh, name).delete("key = 'later'")
    assert expected == state(fresh)


@pytest.mark.parametrize("way,line", pairs(WAYS, LINES))
def test_a_clean_up_of_any_line(table: LanceTable, way: str, line: str) -> None:
    """The cleaned branch is main, a branch of the package, a branch of that branch, or a branch of pylance."""
    if way == "verified, a month later":
        age(table, 30 * DAY)
    before = state(table)
    as_pylance(table, line).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS[way])
    held(before, table)


def test_a_clean_up_of_every_line_one_after_the_other(table: LanceTable) -> None:
    """Each branch is cleaned twice, since one clean-up leaves its result to the next."""
    before = state(table)
    for line in (*LINES, *reversed(LINES)):
        as_pylance(table, line).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    held(before, table)


@pytest.mark.parametrize("line", LINES)
def test_automatic_clean_up_in_ordinary_commits(table: LanceTable, line: str) -> None:
    """Pylance's commits to any branch clean it up, but not while a tag names an old version of the branch."""
    for name in table.tags.list():
        as_pylance(table).tags.delete(name)
    dataset = as_pylance(table, line)
    dataset.update_config(
        {
            "lance.auto_cleanup.interval": "1",
            "lance.auto_cleanup.older_than": "0ms",
            "lance.auto_cleanup.referenced_branch_cleanup": "true",
        }
    )
    dataset.delete("key = 'nothing'")
    before = state(table)
    dataset = as_pylance(table, line)
    for _ in range(4):
        dataset.insert(entries("auto", 1))
        dataset.delete("key = 'auto'")
    assert len(as_pylance(table, line).versions()) < 8
    held(before, table)


@pytest.mark.parametrize("name", ["merged", "inner", "by-pylance"])
@pytest.mark.parametrize("merge_first", [False, True])
def test_pylance_deletes_a_branch(table: LanceTable, name: str, *, merge_first: bool) -> None:
    """Rows that were merged into main stay, also after a clean-up; rows that were not merged go with the branch."""
    if merge_first:
        table.merge(name)
    before = state(table)
    as_pylance(table).branches.delete(name)
    assert {ref: rows for ref, rows in before.items() if ref != name} == state(table)
    as_pylance(table).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    held(before, table, name)


def test_pylance_does_not_delete_a_branch_that_is_referred_to(table: LanceTable) -> None:
    """A branch forked from it, or a tag on it, prevents the deletion."""
    before = state(table)
    with pytest.raises(OSError, match=r"(?i)referenc|branch"):
        as_pylance(table).branches.delete("live")
    held(before, table)


@pytest.mark.parametrize("line", ["main", "merged", "by-pylance"])
def test_pylance_compacts_a_line_and_cleans_up(table: LanceTable, line: str) -> None:
    """The rewritten fragments hold the same rows, and the other fragments still have their files."""
    before = state(table)
    dataset = as_pylance(table, line)
    if line != "main":
        # Pylance's compaction on a branch writes an inherited index to a place where readers do not look for it.
        dataset.drop_index("value_idx")
    dataset.optimize.compact_files(target_rows_per_fragment=1000, materialize_deletions_threshold=0.0)
    assert before == state(table)
    for cleaned in (line, "main"):
        as_pylance(table, cleaned).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    held(before, table)


def _compacted(dataset: lance.LanceDataset) -> None:
    dataset.optimize.compact_files(target_rows_per_fragment=1000, materialize_deletions_threshold=0.0)


def _compacted_without_its_index(dataset: lance.LanceDataset) -> None:
    dataset.drop_index("value_idx")
    _compacted(dataset)


def _compacted_with_an_index_of_its_own(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("value", "BTREE", replace=True)
    _compacted(dataset)


def _optimized(dataset: lance.LanceDataset) -> None:
    dataset.optimize.optimize_indices()


def _merged(table: LanceTable, line: str) -> Rows:
    """The rows of main after a merge of the branch, tried on temporary branches."""
    table.branches.create("source", line)
    table.branches.create("dest", "main")
    table.merge("source", "dest")
    rows = contents(table, "dest")
    for name in ("dest", "source"):
        table.branches.delete(name)
    return rows


@pytest.mark.parametrize("line", ["live", "inner"])
@pytest.mark.parametrize(
    "maintain",
    [_compacted_without_its_index, _compacted_with_an_index_of_its_own, _optimized],
    ids=lambda way: way.__name__,
)
def test_a_branch_that_pylance_maintained_is_merged(
    table: LanceTable, line: str, maintain: Callable[[lance.LanceDataset], None]
) -> None:
    """The maintained branch is one in use or a branch forked from it; main gets the same rows as without maintenance.

    After a clean-up the claims of its versions are unknown, and the merge needs a strategy that says there were none.
    """
    wanted, before = _merged(table, line), state(table)
    maintain(as_pylance(table, line))
    assert before == state(table)
    assert wanted == _merged(table, line)
    for cleaned in (line, "main"):
        as_pylance(table, cleaned).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    held(before, table)
    if maintain is not _optimized:
        with pytest.raises(MergeConflictError) as refused:
            LanceTable.open(table.uri).merge(line)
        assert {"history"} == {conflict.kind for conflict in refused.value.conflicts}
    LanceTable.open(table.uri).merge(line, strategy={"history": "source-wins"})
    assert wanted == contents(table)
    held({**before, "main": wanted}, table)


@pytest.mark.parametrize("line", ["live", "inner"])
def test_a_branch_whose_inherited_index_pylance_broke_is_merged(table: LanceTable, line: str) -> None:
    """Pylance's compaction puts that index where no reader looks: `verify` reports the branch; main stays intact."""
    wanted, before = _merged(table, line), state(table)
    _compacted(as_pylance(table, line))
    assert before[line] == contents(table, line) == sorted_rows(as_pylance(table, line).to_table())
    with pytest.raises(OSError, match="Not found"):
        as_pylance(table, line).count_rows("value = 7")
    problems = table.maintenance.verify(line).problems
    assert problems
    assert all("_indices/" in str(problem) and "is missing" in str(problem) for problem in problems)
    table.merge(line)
    assert wanted == contents(table)
    assert sum(1 for _, value in wanted if value == 7) == as_pylance(table).count_rows("value = 7")
    assert () == table.maintenance.verify("main").problems
    as_pylance(table, line).create_scalar_index("value", "BTREE", replace=True)
    assert {**before, "main": wanted} == state(LanceTable.open(table.uri))


@pytest.mark.parametrize("line", ["main", "live"])
def test_pylance_builds_indices_anew_and_cleans_up(table: LanceTable, line: str) -> None:
    """The files of the old index are deleted, and no query needs them."""
    before = state(table)
    as_pylance(table, line).create_scalar_index("value", "BTREE", replace=True)
    as_pylance(table).optimize.optimize_indices()
    as_pylance(table, line).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    as_pylance(table).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    held(before, table)


def test_collecting_and_pylances_clean_up_take_turns(table: LanceTable) -> None:
    """Neither clean-up needs a file that the other one deleted."""
    before = state(table)
    age(table, 30 * DAY)
    assert table.maintenance.collect_garbage(timedelta(0), dry_run=False).done
    as_pylance(table).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    age(table, 30 * DAY)
    assert table.maintenance.collect_garbage(timedelta(0), dry_run=False).done
    as_pylance(table, "live").cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    assert table.maintenance.collect_garbage(timedelta(0), grace=timedelta(0), dry_run=False).done
    held(before, table)


def test_a_shallow_clone_keeps_what_it_names(table: LanceTable, tmp_path: Path) -> None:
    """Pylance's and the package's clean-up keep the source's version because of the tag that the clone created."""
    clone = table.maintenance.clone(tmp_path / "clone", "main@3")
    rows = contents(clone)
    table.overwrite(entries("new", 1))
    age(table, 30 * DAY)
    as_pylance(table).cleanup_old_versions(error_if_tagged_old_versions=False, **WAYS["unverified"])
    assert table.maintenance.collect_garbage(timedelta(0), grace=timedelta(0), dry_run=False).done
    assert rows == contents(clone)
    as_pylance(clone).validate()
    (tag,) = [tag for tag in table.tags.list().values() if tag.name.startswith("clone-")]
    assert ("main@3", str(tmp_path / "clone")) == (tag.ref, tag.metadata["lance_dagster.clone"])
