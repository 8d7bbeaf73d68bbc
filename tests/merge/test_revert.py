"""Single changes are picked and reverted: cherry-pick, revert, restore, sync, and preview branches."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import AlreadyExistsError, InvalidInputError, MergeConflictError
from lance_dagster.types import MergeMode, Strategy
from tests.raising import raises
from tests.soak import DEEP
from tests.table_factory import as_pylance, contents, context_of, entries, new_table

pytestmark = pytest.mark.scaled

BEFORE = [("a", 1), ("a", 2), ("b", 3), ("b", 4)]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two fragments of two rows, and a branch `run`."""
    made = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    made.branches.create("run")
    return made


CHANGES: dict[str, Callable[[LanceTable], object]] = {
    "append": lambda table: table.append(entries("n", 5)),
    "delete": lambda table: table.delete("value = 1"),
    "update": lambda table: table.update({"value": "10"}, where="value = 1"),
    "upsert": lambda table: table.upsert(entries("u", 1, 7), on=["value"]),
    "replace": lambda table: table.replace_where("key = 'a'", entries("a", 8)),
    "overwrite": lambda table: table.overwrite(entries("o", 9)),
}


def sound(table: LanceTable, branch: str = "main") -> None:
    """Pylance and the package find no problem in the table."""
    as_pylance(table, branch).validate()
    assert not [problem for problem in table.maintenance.verify(deep=DEEP).problems if problem.severity == "error"]


# Revert.


def test_a_reverted_append_takes_its_rows_out(table: LanceTable) -> None:
    """Later rows stay, even if the rows were moved."""
    added = table.append(entries("n", 5))
    table.append(entries("n", 6))
    as_pylance(table).optimize.compact_files()
    reverted = table.revert(str(added))
    assert [*BEFORE, ("n", 6)] == contents(table)
    assert ("revert main@4", added.id) == (reverted.message, reverted.properties["lance_dagster.revert"])
    sound(table)


REVERTED: dict[str, Callable[[LanceTable], object]] = {
    "delete": lambda table: table.delete("value = 1"),
    "delete of a fragment": lambda table: table.delete("key = 'a'"),
    "update": lambda table: table.update({"key": "'z'"}, where="value = 1"),
    "update of a fragment": lambda table: table.update({"key": "'z'"}, where="key = 'a'"),
    "update of all": lambda table: table.update({"key": "'z'"}),
    "upsert": lambda table: table.upsert(entries("u", 1, 7), on=["value"]),
    "upsert in place": lambda table: upsert_with_pylance(table, pa.table({"key": ["u"], "value": [1]})),
    "upsert of a column": lambda table: upsert_with_pylance(table, pa.table({"value": [1], "key": ["v"]}), "value"),
    "replace": lambda table: table.replace_where("key = 'a'", entries("a", 8)),
    "overwrite": lambda table: table.overwrite(entries("o", 9)),
}


def upsert_with_pylance(table: LanceTable, rows: pa.Table, on: str = "value") -> None:
    """Update rows by a key, some columns of them only."""
    as_pylance(table).merge_insert(on).when_matched_update_all().execute(rows)


def since(table: LanceTable, version: int) -> list[tuple[str, int]]:
    """The rows that pylance finds inserted or updated after a version."""
    dataset = as_pylance(table)
    delta = dataset.delta(begin_version=version, end_version=dataset.version)
    found = [delta.get_inserted_rows(), delta.get_updated_rows()]
    rows = [row for reader in found for row in reader.read_all().select(["key", "value"]).to_pylist()]
    return sorted((row["key"], row["value"]) for row in rows)


@pytest.mark.parametrize("compacting", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("change", REVERTED)
def test_a_revert_is_the_last_update_of_the_rows_whose_values_it_puts_back(
    table: LanceTable, change: str, compacting: tuple[int, ...]
) -> None:
    """A reader of the changes since the version before gets these rows with the values that they have then."""
    before = {row["_rowid"]: row for row in as_pylance(table).to_table(with_row_id=True).to_pylist()}
    REVERTED[change](table)
    changed = table.head()
    now = {row["_rowid"]: row for row in as_pylance(table).to_table(with_row_id=True).to_pylist()}
    if 0 in compacting:
        as_pylance(table).optimize.compact_files()
    begin = as_pylance(table).version
    reverted = table.revert(str(changed))
    if 1 in compacting:
        as_pylance(table).optimize.compact_files()
    assert BEFORE == contents(table)
    put_back = sorted((row["key"], row["value"]) for number, row in before.items() if now.get(number) != row)
    assert put_back == since(table, begin)
    stamps = as_pylance(table).to_table(columns=["key", "value", "_row_last_updated_at_version"]).to_pylist()
    stamped = [(row["key"], row["value"]) for row in stamps if row["_row_last_updated_at_version"] == reverted.number]
    assert put_back == sorted(stamped)
    sound(table)


def test_reverted_deletions_bring_rows_back(table: LanceTable) -> None:
    """A whole fragment is restored, and single rows whose fragment exists or was compacted."""
    some = table.delete("value = 1")
    whole = table.delete("key = 'b'")
    table.revert(str(some))
    table.revert(str(whole))
    assert BEFORE == contents(table)
    sound(table)
    again = table.delete("value in (2, 3)")
    as_pylance(table).optimize.compact_files()
    table.revert(str(again))
    assert BEFORE == contents(table)
    sound(table)


def test_a_reverted_update_gives_the_old_values_back(table: LanceTable) -> None:
    """Rows keep their ids."""
    ids = as_pylance(table).to_table(columns=["value", "_rowid"]).to_pylist()
    updated = table.update({"value": "value + 100"}, where="value in (1, 3)")
    table.update({"value": "200"}, where="value = 2")
    table.revert(str(updated))
    assert [("a", 1), ("a", 200), ("b", 3), ("b", 4)] == contents(table)
    found = as_pylance(table).to_table(columns=["value", "_rowid"]).to_pylist()
    assert {row["value"]: row["_rowid"] for row in found} == {
        (200 if row["value"] == 2 else row["value"]): row["_rowid"] for row in ids
    }
    sound(table)


def test_a_reverted_overwrite_brings_the_table_back(table: LanceTable) -> None:
    """The revert restores the columns too."""
    overwritten = table.overwrite(pa.table({"name": ["x"]}))
    table.revert(str(overwritten))
    assert BEFORE == contents(table)
    sound(table)


def test_a_revert_can_be_reverted(table: LanceTable) -> None:
    """A revert of the revert restores the change."""
    added = table.append(entries("n", 5))
    deleted = table.delete("value = 1")
    for version in (deleted, added):
        undone = table.revert(str(version))
        table.revert(str(undone))
    assert [("a", 2), ("b", 3), ("b", 4), ("n", 5)] == contents(table)
    sound(table)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_stands_again_is_taken_back_again(table: LanceTable, change: str) -> None:
    """The change can be reverted repeatedly by its own version, and by the version that restored it."""
    version = str(CHANGES[change](table))
    changed = contents(table)
    for _ in range(2):
        undone = table.revert(version)
        assert BEFORE == contents(table)
        assert undone == table.revert(version)
        again = table.revert(str(undone))
        assert changed == contents(table)
    table.revert(str(again))
    assert BEFORE == contents(table)
    sound(table)


def test_a_dropped_column_comes_back_with_its_values(table: LanceTable) -> None:
    """Rows that were added later have null in the column."""
    dropped = table.columns.drop(["value"])
    table.append(pa.table({"key": ["n"]}))
    table.revert(str(dropped))
    assert [*BEFORE, ("n", None)] == contents(table)
    sound(table)


def test_an_added_column_goes(table: LanceTable) -> None:
    """The revert removes the column with its values."""
    added = table.columns.add({"more": "value + 1"})
    table.append(pa.table({"key": ["n"], "value": [5], "more": [6]}))
    table.revert(str(added))
    assert ["key", "value"] == table.schema().names
    assert [*BEFORE, ("n", 5)] == contents(table)
    sound(table)


def test_a_change_that_others_build_on_is_a_conflict(table: LanceTable) -> None:
    """Rows that the change updated were updated again since."""
    updated = table.update({"value": "100"}, where="value = 1")
    table.update({"value": "101"}, where="value = 100")
    with raises(MergeConflictError, units=("1 row in fragment 2 of the merge base",)) as caught:
        table.revert(str(updated))
    assert "1 row in fragment" in str(caught.value)
    table.revert(str(updated), strategy="source-wins")
    assert BEFORE == contents(table)


def test_a_merge_is_reverted_against_one_of_its_parents(table: LanceTable) -> None:
    """The branch still counts as merged; a revert of the revert restores its changes."""
    table.append(entries("n", 5), branch="run")
    table.update({"value": "10"}, where="value = 1", branch="run")
    table.append(entries("m", 6))
    merged = table.merge("run")
    with pytest.raises(InvalidInputError, match="which parent"):
        table.revert(str(merged))
    with pytest.raises(InvalidInputError):
        table.revert(str(merged), parent=3)
    undone = table.revert(str(merged), parent=1)
    assert [*BEFORE, ("m", 6)] == contents(table)
    assert table.branches.is_merged("run") is not None
    table.revert(str(undone))
    assert [("a", 2), ("a", 10), ("b", 3), ("b", 4), ("m", 6), ("n", 5)] == contents(table)
    sound(table)


AFTER_ALL: dict[str, Callable[[LanceTable, str], object]] = {
    "deleted": lambda table, branch: table.delete("value = 1", branch=branch),
    "replaced": lambda table, branch: table.replace_where("value = 1", entries("z", 1), branch=branch),
    "column": lambda table, branch: table.columns.add({"double": "value * 2"}, branch=branch),
}


@pytest.mark.parametrize("side", ["main", "run"])
@pytest.mark.parametrize("where", [None, "value = 1"], ids=["all rows", "one row"])
@pytest.mark.parametrize("other", AFTER_ALL)
def test_a_reverted_update_is_no_change_in_a_merge(table: LanceTable, other: str, where: str | None, side: str) -> None:
    """Where all rows of a fragment were updated, it comes back under another id, with the rows at their old offsets."""
    table.revert(str(table.update({"value": "value + 10"}, where=where, branch=side)), branch=side)
    there = "run" if side == "main" else "main"
    AFTER_ALL[other](table, there)
    expected = sorted(table.read(there).to_pylist(), key=str)
    table.merge("run")
    assert expected == sorted(table.read().to_pylist(), key=str)
    sound(table)


def test_nothing_to_revert_makes_no_version(table: LanceTable) -> None:
    """A reverted change is not reverted again, and the first version of a table is no change."""
    added = table.append(entries("n", 5))
    table.revert(str(added))
    assert table.head() == table.revert(str(added))
    with pytest.raises(InvalidInputError, match=r"main@1 .* changed nothing"):
        table.revert("main@1")


# Cherry-picks.


def test_a_change_is_picked_from_another_branch(table: LanceTable) -> None:
    """Earlier changes of the branch are not picked."""
    table.append(entries("n", 5), branch="run")
    updated = table.update({"value": "value * 10"}, where="value in (1, 5)", branch="run")
    added = table.append(entries("n", 6), branch="run")
    table.append(entries("m", 7))
    picked = table.cherry_pick(str(added))
    assert [*BEFORE, ("m", 7), ("n", 6)] == contents(table)
    assert (added.id, 1) == (picked.properties["lance_dagster.cherry_pick"], len(picked.parents))
    with pytest.raises(MergeConflictError):
        # It updated a row that does not exist here.
        table.cherry_pick(str(updated))
    sound(table)


def test_a_pick_that_changes_nothing_makes_no_version(table: LanceTable) -> None:
    """Both branches deleted the same row."""
    gone = table.delete("value = 1", branch="run")
    deleted = table.delete("value = 1")
    assert deleted == table.cherry_pick(str(gone))


def test_what_was_picked_is_not_doubled_by_a_merge(table: LanceTable) -> None:
    """A later merge of the branch includes the picked change."""
    added = table.append(entries("n", 5, 6), branch="run")
    table.append(entries("n", 7), branch="run")
    table.cherry_pick(str(added))
    table.delete("value = 6")
    as_pylance(table).optimize.compact_files()
    table.merge("run")
    assert [*BEFORE, ("n", 5), ("n", 7)] == contents(table)
    sound(table)


@pytest.mark.parametrize("later", ["compact", "update"])
def test_a_column_that_a_merge_dropped_comes_back_with_its_values(table: LanceTable, later: str) -> None:
    """The merge also brought a compaction, and the rows were moved again since; with new values it is a conflict."""
    table.branches.create("drop")
    table.append(entries("n", 5))
    table.maintenance.compact(branch="drop")
    table.columns.drop(["value"], branch="drop")
    before = contents(table)
    merged = table.merge("drop")
    if later == "compact":
        as_pylance(table).optimize.compact_files()
        table.revert(str(merged), parent=1)
        assert before == contents(table)
        sound(table)
    else:
        table.update({"key": "'z'"}, where="key = 'a'")
        with raises(MergeConflictError, units=("column value",)):
            table.revert(str(merged), parent=1)


# Restore and sync.


def test_a_branch_goes_back_to_an_older_version(table: LanceTable) -> None:
    """The restore is a new version; restoring the newest or the just restored version changes nothing."""
    table.delete("key = 'a'")
    restored = table.restore("main@3")
    assert ("Restore", "restore main@3") == (restored.operation, restored.message)
    assert BEFORE == contents(table)
    assert restored == table.restore("main")
    assert restored == table.restore("main@3")
    table.delete("key = 'a'")
    assert restored.number + 2 == table.restore("main@3").number
    assert BEFORE == contents(table)


LONGER: dict[str, Callable[[LanceTable, str], object]] = {
    "append": lambda table, branch: table.append(entries("n", 5), branch=branch),
    "delete": lambda table, branch: table.delete("value = 1", branch=branch),
    "update": lambda table, branch: table.update({"value": "10"}, where="value = 1", branch=branch),
    "overwrite": lambda table, branch: table.overwrite(entries("o", 9), branch=branch),
    "replace": lambda table, branch: table.replace_where("key = 'a'", entries("a", 8), branch=branch),
    "compact": lambda table, branch: table.maintenance.compact(branch=branch),
    "add column": lambda table, branch: table.columns.add({"more": "value"}, branch=branch),
    "drop column": lambda table, branch: table.columns.drop(["key"], branch=branch),
    "cast": lambda table, branch: table.columns.cast("value", pa.int32(), branch=branch),
    "rename": lambda table, branch: table.columns.rename("value", "amount", branch=branch),
    "empty": lambda table, branch: table.delete("true", branch=branch),
}


@pytest.mark.parametrize("second", ["compact", "overwrite", "empty"])
@pytest.mark.parametrize("first", LONGER)
def test_a_branch_goes_back_behind_its_fork(table: LanceTable, first: str, second: str) -> None:
    """Changes of the branch and of its parent are undone, and a merge into the parent undoes them there too."""
    target, schema = table.head(), table.schema()
    LONGER[first](table, "main")
    table.branches.create("fix")
    LONGER[second](table, "fix")
    restored = table.restore(str(target), "fix")
    assert BEFORE == contents(table, "fix")
    assert schema == table.schema("fix")
    sound(table, "fix")
    assert restored == table.restore(str(target), "fix")
    table.merge("fix")
    assert BEFORE == contents(table)
    assert schema == table.schema()
    sound(table)


def test_what_was_merged_stays_merged_behind_the_fork(table: LanceTable) -> None:
    """It stays merged, as after a revert, and a revert of the restore brings it back."""
    target = table.head()
    table.append(entries("n", 5))
    table.branches.create("fix")
    table.append(entries("r", 6), branch="run")
    merged = table.merge("run", into="fix")
    restored = table.restore(str(target), "fix")
    assert merged == table.merge("run", into="fix")
    assert restored == table.head("fix")
    assert BEFORE == contents(table, "fix")
    table.revert(str(restored), "fix")
    assert [*BEFORE, ("n", 5), ("r", 6)] == contents(table, "fix")


def test_a_branch_goes_back_to_what_it_had_only(table: LanceTable) -> None:
    """A version of the parent after the fork is refused."""
    later = table.append(entries("n", 5))
    with pytest.raises(InvalidInputError):
        table.restore(str(later), "run")


def test_a_branch_takes_in_what_its_parent_did(table: LanceTable) -> None:
    """Main has no parent branch to sync from."""
    table.append(entries("n", 5))
    table.branches.sync("run")
    assert [*BEFORE, ("n", 5)] == contents(table, "run")
    with pytest.raises(InvalidInputError):
        table.branches.sync("main")


# Modes.


def test_a_fast_forward_is_asked_for(table: LanceTable) -> None:
    """A fast-forward makes a merge commit too, and is refused if the dest has changes of its own."""
    table.append(entries("n", 5), branch="run")
    assert table.preview_merge("run").fast_forward
    table.merge("run", mode="ff-only")
    table.append(entries("n", 6), branch="run")
    table.append(entries("m", 7))
    assert not table.preview_merge("run").fast_forward
    with pytest.raises(MergeConflictError, match="only a fast-forward"):
        table.merge("run", mode="ff-only")
    with pytest.raises(InvalidInputError):
        table.merge("run", mode="rebase")  # type: ignore[arg-type]  # what is refused


def test_a_fresh_branch_has_no_changes_of_its_own(table: LanceTable) -> None:
    """Its first version repeats the fork point, so a sibling is merged into it by a fast-forward."""
    table.branches.create("staging")
    table.branches.create("inner", at="branch:staging")
    table.append(entries("n", 5), branch="run")
    for into in ("staging", "inner"):
        assert table.preview_merge("run", into=into).fast_forward
        table.merge("run", into=into, mode="ff-only")
        assert contents(table, "run") == contents(table, into)


def test_a_squash_leaves_no_parent_and_happens_once(table: LanceTable) -> None:
    """The rows are merged, and the branch cannot be merged afterwards in either direction."""
    table.append(entries("n", 5), branch="run")
    table.update({"value": "10"}, where="value = 1", branch="run")
    squashed = table.merge("run", mode="squash")
    assert [("a", 2), ("a", 10), ("b", 3), ("b", 4), ("n", 5)] == contents(table)
    assert (("main@3",), "squash run@5 into main") == (squashed.parents, squashed.message)
    for source, into in (("run", "main"), ("main", "run")):
        with pytest.raises(MergeConflictError, match="by a squash"):
            table.merge(source, into=into)
    table.branches.reset("run", at="main")
    table.append(entries("n", 6), branch="run")
    table.merge("run")
    assert ("n", 6) in contents(table)


def test_a_merge_is_tried_on_a_branch(table: LanceTable) -> None:
    """The branch has exactly the merged rows; after a conflict there is no branch."""
    table.append(entries("n", 5), branch="run")
    table.delete("value = 1")
    branch = table.branches.preview("run")
    assert ("preview/run", "main@4") == (branch.name, branch.parent)
    assert [("a", 2), ("b", 3), ("b", 4), ("n", 5)] == contents(table, "preview/run")
    as_pylance(table, "preview/run").validate()
    with pytest.raises(AlreadyExistsError):
        table.branches.preview("run")
    table.merge("preview/run", mode="ff-only")
    assert contents(table, "preview/run") == contents(table)
    assert table.branches.is_merged("run") is not None
    table.branches.create("other", at="main@3")
    table.update({"value": "9"}, where="value = 1", branch="other")
    with pytest.raises(MergeConflictError):
        table.branches.preview("other")
    assert "preview/other" not in table.branches.list()
    assert "preview/main-into-run" == table.branches.preview("main", into="run").name


@pytest.mark.parametrize("picked", [["run@5"], ["run@5", "run@3"], ["run@4", "run@5"], ["run@3", "run@4", "run@5"]])
def test_a_merge_brings_what_was_not_picked(tmp_path: Path, picked: list[str]) -> None:
    """Each row is merged once, whatever was picked before in any order."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    for value in (10, 20, 30):
        table.append(entries("b", value, value + 1), branch="run")
    for commit in picked:
        table.cherry_pick(commit)
    table.delete("value = 31")
    table.merge("run")
    expected = [("a", 1), *(("b", value) for value in (10, 11, 20, 21, 30))]
    assert expected == contents(table)
    assert table.maintenance.verify(deep=True).ok


@pytest.mark.parametrize("mode", ["merge", "squash"])
def test_what_was_picked_on_the_way_comes_once(tmp_path: Path, mode: MergeMode) -> None:
    """One branch picked a row of another one, and both are merged."""
    table = new_table(tmp_path, entries("a", 1))
    for name in ("one", "two"):
        table.branches.create(name)
    table.append(entries("t", 10), branch="two")
    table.cherry_pick("two", into="one")
    table.append(entries("t", 20), branch="two")
    table.merge("one", mode=mode)
    table.merge("two")
    assert [("a", 1), ("t", 10), ("t", 20)] == contents(table)
    sound(table)


def test_a_squash_takes_along_what_was_merged_before(tmp_path: Path) -> None:
    """The rows of the branch that came with the squash would be added again, so its merge is refused."""
    table = new_table(tmp_path, entries("a", 1))
    for name in ("one", "two"):
        table.branches.create(name)
    table.append(entries("t", 10), branch="two")
    table.merge("two", into="one")
    table.append(entries("t", 20), branch="two")
    table.merge("one", mode="squash")
    with pytest.raises(MergeConflictError, match="by a squash"):
        table.merge("two")
    assert [("a", 1), ("t", 10)] == contents(table)


def test_what_grew_on_a_squashed_branch_cannot_be_merged(tmp_path: Path) -> None:
    """A branch forked from the squashed one has its rows too, and so has each branch into which it was squashed."""
    table = new_table(tmp_path, entries("a", 1))
    for name in ("run", "twin"):
        table.branches.create(name)
    table.append(entries("t", 10), branch="run")
    table.branches.create("inner", at="run")
    table.append(entries("t", 20), branch="inner")
    table.merge("run", mode="squash")
    table.merge("run", into="twin", mode="squash")
    for source, into in (("inner", "main"), ("main", "inner"), ("twin", "main"), ("main", "twin")):
        assert table.preview_merge(source, into=into).conflicts
        with pytest.raises(MergeConflictError, match="by a squash"):
            table.merge(source, into=into)
    table.branches.create("later")
    table.append(entries("t", 30), branch="later")
    table.merge("later")
    assert [("a", 1), ("t", 10), ("t", 30)] == contents(table)


def test_a_branch_of_what_was_merged_before_the_squash_is_merged(tmp_path: Path) -> None:
    """All rows that it has from the squashed branch are known to be in main."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    table.append(entries("t", 10), branch="run")
    table.merge("run")
    table.branches.create("inner", at="run")
    table.append(entries("t", 20), branch="inner")
    table.append(entries("t", 30), branch="run")
    table.merge("run", mode="squash")
    table.merge("inner")
    assert [("a", 1), ("t", 10), ("t", 20), ("t", 30)] == contents(table)


# Rows that both sides restore.


def test_what_was_taken_back_is_not_taken_back_again(table: LanceTable) -> None:
    """Rows of a restored fragment are the same rows, whichever fragment has them."""
    deleted = table.delete("key = 'b'")
    reverted = table.revert(str(deleted))
    assert reverted == table.revert(str(deleted)) == table.cherry_pick(str(reverted))
    assert BEFORE == contents(table)
    sound(table)


@pytest.mark.parametrize("compacting", [(), ("main",), ("run",), ("main", "run")], ids=str)
def test_rows_that_both_sides_bring_back_are_there_once(table: LanceTable, compacting: tuple[str, ...]) -> None:
    """An update by one side is kept; a row that the dest deleted again counts as restored by the source alone."""
    deleted = table.delete("key = 'b'")
    table.branches.sync("run")
    for branch in ("main", "run"):
        table.revert(str(deleted), branch)
        if branch in compacting:
            as_pylance(table, branch).optimize.compact_files()
    table.update({"value": "30"}, where="value = 3", branch="run")
    table.delete("value = 4")
    table.merge("run")
    assert [("a", 1), ("a", 2), ("b", 4), ("b", 30)] == contents(table)
    sound(table)
    table.branches.sync("run")
    assert contents(table) == contents(table, "run")


def test_a_row_brought_back_twice_and_changed_twice_is_a_conflict(table: LanceTable) -> None:
    """Such a row conflicts like any other."""
    deleted = table.delete("key = 'b'")
    table.branches.sync("run")
    for branch, value in (("main", 30), ("run", 31)):
        table.revert(str(deleted), branch)
        table.update({"value": str(value)}, where="value = 3", branch=branch)
    with pytest.raises(MergeConflictError):
        table.merge("run")


def test_a_merge_undone_on_both_sides_stays_undone(table: LanceTable) -> None:
    """The branch has reverted its deletion too."""
    gone = table.delete("key = 'b'", branch="run")
    merged = table.merge("run")
    table.revert(str(merged), parent=1)
    table.revert(str(gone), "run")
    table.merge("run")
    assert BEFORE == contents(table)
    sound(table)


@pytest.mark.parametrize("replacing", [True, False])
def test_what_merges_recorded_cannot_be_lost(table: LanceTable, *, replacing: bool) -> None:
    """Rows are merged once, even if table metadata is replaced in between; pylance reads that metadata."""
    table.append(entries("n", 5), branch="run")
    table.merge("run")
    table.config.set_table_metadata({"owner": "ann"}, replace=replacing)
    assert "ann" == as_pylance(table).metadata["owner"]
    table.append(entries("n", 6), branch="run")
    table.merge("run", properties={"lance_dagster.merge": "run@1", "why": "a test"})
    expected = [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("n", 5), ("n", 6)]
    assert expected == contents(table)
    merged = table.at("main")
    assert ("main@5", "run@5") == merged.parents
    assert "a test" == merged.properties["why"]
    record = next(key for key in as_pylance(table).metadata if key.startswith("lance_dagster.merged."))
    with pytest.raises(InvalidInputError):
        table.config.set_table_metadata({record: None})


@pytest.mark.parametrize("strategy", [["source-wins"], 1, b"source-wins", {"rows": None}, ""])
def test_what_is_no_strategy_is_named(table: LanceTable, strategy: Strategy) -> None:
    """Values of other types are refused too."""
    table.append(entries("n", 5), branch="run")
    with pytest.raises(InvalidInputError):
        table.preview_merge("run", strategy=strategy)
    with pytest.raises(InvalidInputError):
        table.preview_merge("run", mode="rebase")  # type: ignore[arg-type]  # what is refused


def test_a_kind_of_conflict_that_is_none_is_told(table: LanceTable) -> None:
    """The error suggests the kind that was probably meant."""
    table.append(entries("n", 5), branch="run")
    with pytest.raises(InvalidInputError, match="did you mean 'rows'"):
        table.merge("run", strategy={"row": "source-wins"})


def test_rows_that_came_by_a_way_nothing_tells_of_do_not_come_twice(tmp_path: Path) -> None:
    """A squash was picked without row ids, so a merge of the squashed branch is refused."""
    uri = str(tmp_path / "table")
    lance.write_dataset(entries("a", 1), uri, enable_stable_row_ids=False)
    table = LanceTable.open(uri)
    for name in ("run", "other"):
        table.branches.create(name)
    table.append(entries("t", 10), branch="run")
    table.cherry_pick(str(table.merge("run", mode="squash")), into="other")
    with raises(MergeConflictError, units=("1 rows",)):
        table.merge("run", into="other")
    assert [("a", 1), ("t", 10)] == contents(table, "other")


def test_rows_of_a_picked_squash_are_known_after_a_compaction(tmp_path: Path) -> None:
    """A merge of the squashed branch brings only its other rows."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 2))
    for name in ("run", "other"):
        table.branches.create(name)
    table.append(entries("t", 10, 11), branch="run")
    table.cherry_pick(str(table.merge("run", mode="squash")), into="other")
    table.delete("value = 10", branch="other")
    table.maintenance.compact(branch="other")
    table.append(entries("t", 12), branch="run")
    table.merge("run", into="other")
    assert [("a", 1), ("b", 2), ("t", 11), ("t", 12)] == contents(table, "other")


@pytest.mark.parametrize("mode", ["squash", "merge"])
def test_what_a_living_branch_has_of_a_gone_one_is_remembered(tmp_path: Path, mode: MergeMode) -> None:
    """A branch and main both merged a deleted branch; main has compacted since, and merged ten more deleted ones."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 2))
    for name in ("run", "gone"):
        table.branches.create(name)
    table.append(entries("g", 10), branch="gone")
    table.append(entries("m", 3))
    table.merge("gone", into="run")
    table.append(entries("r", 20), branch="run")
    table.merge("gone", mode=mode)
    table.branches.delete("gone")
    for number in range(10):
        table.branches.create("other")
        table.append(entries("o", number), branch="other")
        table.merge("other")
        table.branches.delete("other")
    table.maintenance.compact()
    before = contents(table)
    if mode == "squash":
        with pytest.raises(MergeConflictError, match="by a squash"):
            table.merge("run")
    else:
        table.merge("run")
    assert [*before, *([("r", 20)] if mode == "merge" else [])] == contents(table)
    recorded = context_of(table).head("main").manifest.table_metadata
    assert 10 >= len([key for key in recorded if key.startswith("lance_dagster.")])


def test_a_merge_that_forgot_a_gone_branch_is_taken_back(tmp_path: Path) -> None:
    """A change to rows of the deleted branch can be picked from a branch that still has the record."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 2))
    for number in range(10):
        if number == 5:
            table.branches.create("run")
        table.branches.create("other")
        table.append(entries("o", 10 + number, 20 + number), branch="other")
        table.append(entries("m", number))
        merged = table.merge("other")
        table.branches.delete("other")
    table.maintenance.compact()
    before = contents(table)
    table.revert(str(merged), parent=1)
    assert [row for row in before if row[1] not in (19, 29)] == contents(table)
    deleted = table.delete("value = 10", branch="run")
    table.cherry_pick(str(deleted))
    updated = table.update({"value": "value + 1000"}, where="value = 21", branch="run")
    table.cherry_pick(str(updated))
    expected = {row for row in before if row[1] not in (19, 29, 10, 21)} | {("o", 1021)}
    assert sorted(expected) == contents(table)
    sound(table)
