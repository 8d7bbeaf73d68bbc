"""Rows that merges moved stay the same rows: by a compacted branch, or through branches that are gone."""

from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable, MergeConflictError
from tests.table_factory import as_pylance, contents, entries, new_table

Change = Callable[[LanceTable], object]


def made(folder: Path) -> LanceTable:
    """Make a table with the branches `work` and `other`; `work` added two rows, and `main` took them over."""
    table = new_table(folder, entries("a", 0, 1))
    table.branches.create("work")
    table.branches.create("other")
    table.append(entries("b", 8, 9), branch="work")
    table.merge("work")
    return table


def compacted(table: LanceTable) -> None:
    """Compact `work`, and merge it into `other`; the merge base with main is the version before the compaction."""
    assert table.maintenance.compact(branch="work") is not None
    table.merge("work", into="other")
    assert "work@" in table.preview_merge("other").base


CHANGES: dict[str, Change] = {
    "delete": lambda table: table.delete("value = 9"),
    "update": lambda table: table.update({"value": "90"}, where="value = 9"),
    "upsert": lambda table: table.upsert(entries("c", 9), on=["value"]),
    "replace": lambda table: table.replace_where("value = 9", entries("d", 9)),
    "replace a partition": lambda table: table.replace_where("key = 'b'", entries("b", 8), partitions=["b"]),
}


@pytest.mark.parametrize("into", ["main", "other"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_compaction_that_came_by_a_merge_is_no_update(tmp_path: Path, change: str, into: str) -> None:
    """The other branch's changes to these rows are kept, in either direction."""
    table = made(tmp_path)
    CHANGES[change](table)
    expected = contents(table)
    compacted(table)
    source = "other" if into == "main" else "main"
    assert () == table.preview_merge(source, into).conflicts
    table.merge(source, into)
    assert expected == contents(table, into)
    as_pylance(table, into).validate()


def test_an_update_before_the_compaction_is_still_one(tmp_path: Path) -> None:
    """Rows whose values differ from the merge base conflict; other rows of the fragment do not."""
    table = made(tmp_path)
    table.delete("value >= 8")
    table.update({"value": "value + 100"}, where="value = 9", branch="work")
    compacted(table)
    with pytest.raises(MergeConflictError) as caught:
        table.merge("other")
    (conflict,) = caught.value.conflicts
    assert "1 row in fragment 1 of the merge base" == conflict.unit
    table.merge("other", strategy="source-wins")
    assert [("a", 0), ("a", 1), ("b", 109)] == contents(table)


@pytest.fixture(params=[True, False], ids=["stable ids", "addresses"])
def crosswise(tmp_path: Path, request: pytest.FixtureRequest) -> LanceTable:
    """`dev` got the rows 8 and 9 of `main` by a merge of `work`, which updated 9 to 90; `fresh` is made from `main`."""
    if request.param:
        table = new_table(tmp_path, entries("a", 0, 1))
    else:
        lance.write_dataset(entries("a", 0, 1), tmp_path / "addresses")
        table = LanceTable.open(tmp_path / "addresses")
    table.branches.create("dev")
    table.append(entries("b", 8, 9))
    table.branches.create("work")
    table.branches.create("fresh")
    table.update({"value": "90"}, where="value = 9", branch="work")
    table.merge("work", into="dev")
    assert "main@" in table.preview_merge("fresh", "dev").base
    return table


AGAINST: dict[str, Change] = {
    "delete": lambda table: table.delete("value = 9", branch="fresh"),
    "update": lambda table: table.update({"value": "900"}, where="value = 9", branch="fresh"),
    "add a column": lambda table: table.columns.add({"ten": "value * 10"}, branch="fresh"),
}


@pytest.mark.parametrize("source,dest", [("fresh", "dev"), ("dev", "fresh")])
@pytest.mark.parametrize("change", AGAINST)
def test_an_update_that_came_with_its_row_is_not_lost(
    crosswise: LanceTable, change: str, source: str, dest: str
) -> None:
    """The merge base has the row with its old value, and the dest never had that: it conflicts with other changes."""
    AGAINST[change](crosswise)
    with pytest.raises(MergeConflictError):
        crosswise.merge(source, dest)
    if as_pylance(crosswise).has_stable_row_ids:
        crosswise.merge(source, dest, strategy="source-wins" if source == "dev" else "dest-wins")
        assert [("a", 0), ("a", 1), ("b", 8), ("b", 90)] == contents(crosswise, dest)
        as_pylance(crosswise, dest).validate()


@pytest.mark.parametrize("source,dest", [("fresh", "dev"), ("dev", "fresh")])
def test_rows_that_came_unchanged_are_not_updated(crosswise: LanceTable, source: str, dest: str) -> None:
    """An update of another row that `dev` got in the same merge is kept, beside the update of `work`."""
    crosswise.update({"value": "80"}, where="value = 8", branch="fresh")
    crosswise.merge(source, dest)
    assert [("a", 0), ("a", 1), ("b", 80), ("b", 90)] == contents(crosswise, dest)


def test_values_of_a_new_column_are_not_lost(tmp_path: Path) -> None:
    """The merge is refused, because rows that `main` updated would lack the column that came with the compaction."""
    table = made(tmp_path)
    table.update({"value": "90"}, where="value = 9")
    table.columns.add({"twice": "value * 2"}, branch="work")
    compacted(table)
    with pytest.raises(MergeConflictError) as caught:
        table.merge("other")
    assert {"rows", "column"} >= {conflict.kind for conflict in caught.value.conflicts}


def test_a_deletion_beside_a_new_column_stands(tmp_path: Path) -> None:
    """Deleted rows need no values."""
    table = made(tmp_path)
    table.delete("value = 9")
    table.columns.add({"twice": "value * 2"}, branch="work")
    compacted(table)
    table.merge("other")
    assert [(0, 0), (1, 2), (8, 16)] == sorted((row["value"], row["twice"]) for row in table.read().to_pylist())


DELETED = 10
"""More deleted branches than a merge keeps the records of."""


@pytest.fixture(scope="module")
def forgotten(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """Main merged many runs and dropped their records; `work`, which has rows of its own, was synced afterwards."""
    table = new_table(tmp_path_factory.mktemp("forgotten"), entries("a", 0))
    table.branches.create("work")
    table.append(entries("w", 99), branch="work")
    for number in range(1, DELETED + 1):
        table.branches.create(f"run/{number}")
        table.append(entries("r", number), branch=f"run/{number}")
        table.merge(f"run/{number}")
        table.branches.delete(f"run/{number}")
    table.branches.sync("work")
    # The next merge drops the records of the runs from `work` as well.
    table.branches.create("late")
    table.append(entries("r", 50), branch="late")
    table.merge("late")
    table.branches.sync("work")
    return table


def forks(table: LanceTable, name: str) -> tuple[str, str]:
    """Fork `main` and `work`, so that tests do not disturb each other."""
    table.branches.create(f"main-{name}")
    table.branches.create(f"work-{name}", "work")
    return f"main-{name}", f"work-{name}"


def test_an_update_and_a_deletion_of_a_row_of_a_deleted_run_conflict(forgotten: LanceTable) -> None:
    """The records of the run are gone, but the row is still known by the ids that it has on the other branches."""
    main, work = forks(forgotten, "update")
    forgotten.update({"value": "77"}, where="value = 1", branch=work)
    forgotten.delete("value = 1", branch=main)
    with pytest.raises(MergeConflictError) as caught:
        forgotten.merge(work, main)
    assert ["rows"] == [conflict.kind for conflict in caught.value.conflicts]
    forgotten.merge(work, main, strategy="source-wins")
    assert 1 == contents(forgotten, main).count(("r", 77))


def test_a_compaction_brings_no_row_of_a_deleted_run_back(forgotten: LanceTable) -> None:
    """A diff finds the rows that were only moved, and a merge leaves the deleted one out."""
    main, work = forks(forgotten, "compaction")
    assert forgotten.maintenance.compact(branch=work) is not None
    counts = forgotten.diff(main, work).stat()
    assert (1, 0, 0) == (counts.added, counts.removed, counts.changed)
    forgotten.delete("value = 1", branch=main)
    forgotten.merge(work, main)
    assert [0, *range(2, DELETED + 1), 50, 99] == sorted(value for _, value in contents(forgotten, main))
