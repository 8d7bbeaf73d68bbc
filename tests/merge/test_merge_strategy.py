"""Strategies in calls: unknown ones are refused, used ones recorded, and complete ones offered with a refusal."""

import json
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from lance_dagster import Conflict, LanceTable
from lance_dagster.errors import InvalidInputError, MergeConflictError
from lance_dagster.types import Strategy, Winner
from tests.table_factory import contents, entries, new_table

STRATEGY = "lance_dagster.merge.strategy"


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """One row that both `main` and `run` updated."""
    made = new_table(tmp_path, entries("a", 1))
    made.branches.create("run")
    made.update({"value": "10"}, where="value = 1", branch="run")
    made.update({"value": "20"}, where="value = 1")
    return made


def refused(table: LanceTable, **options: object) -> MergeConflictError:
    """Return why a merge is refused."""
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run", **options)  # type: ignore[arg-type]  # of the caller's choice
    return caught.value


@pytest.mark.parametrize("strategy", ["theirs", {"rows": "ours"}, {"rwos": "dest-wins"}, {"colum price": "dest-wins"}])
def test_an_unknown_strategy_is_refused_where_nothing_is_to_merge(table: LanceTable, strategy: Strategy) -> None:
    """A misspelled strategy must be found even if there is no conflict."""
    with pytest.raises(InvalidInputError):
        table.merge("main@1", strategy=strategy)
    with pytest.raises(InvalidInputError):
        table.preview_merge("main@1", strategy=strategy)
    with pytest.raises(InvalidInputError):
        table.cherry_pick(str(table.head()), strategy=strategy)


def test_the_unit_of_rows_is_no_strategy(table: LanceTable) -> None:
    """It only counts the rows; the error names the kind, which settles the conflict."""
    (conflict,) = refused(table).conflicts
    with pytest.raises(InvalidInputError, match="for all of them: 'rows'"):
        table.merge("run", strategy={conflict.unit: "source-wins"})
    table.merge("run", strategy={conflict.kind: "source-wins"})
    assert [("a", 10)] == contents(table)


@pytest.mark.parametrize("unit", ["partition zz", "rows where key = 'zz'", "column zz"])
def test_an_unknown_unit_is_refused_where_nothing_is_to_merge(table: LanceTable, unit: str) -> None:
    """A merge, its preview, a sync, a pick and a repeated revert check units also if they have nothing to do."""
    table.merge("run", strategy="dest-wins")
    undone = table.revert(table.update({"value": "30"}, where="value = 20"))
    strategy: Strategy = {unit: "source-wins"}
    uses: list[Callable[[], object]] = [
        lambda: table.merge("run", strategy=strategy),
        lambda: table.preview_merge("run", strategy=strategy),
        lambda: table.cherry_pick("run", strategy=strategy),
        lambda: table.revert(str(undone.parents[0]), strategy=strategy),
    ]
    for use in uses:
        with pytest.raises(InvalidInputError, match="neither side"):
            use()
    table.branches.sync("run")
    with pytest.raises(InvalidInputError, match="neither side"):
        table.branches.sync("run", strategy=strategy)


def test_a_repeated_merge_accepts_the_strategy_of_the_first(tmp_path: Path) -> None:
    """The column is called `key` in the merge base only, and only the dest claimed the partition `wed`."""
    table = replaced_twice(tmp_path, "tue")
    table.replace_where("key = 'wed'", entries("wed", 7), partitions=["wed"])
    table.columns.rename("key", "day")
    table.columns.rename("key", "weekday", branch="run")
    strategy: Strategy = {"column key": "source-wins", "partition wed": "dest-wins", "partition tue": "source-wins"}
    merged = table.merge("run", strategy=strategy)
    assert merged == table.merge("run", strategy=strategy)
    assert table.preview_merge("run", strategy=strategy).already_merged
    assert ["weekday", "value"] == table.schema().names
    # The claims of the branch are known without a strategy as well.
    assert merged == table.merge("run", strategy={"partition tue": "dest-wins"})
    with pytest.raises(InvalidInputError, match="did you mean 'partition tue'"):
        table.merge("run", strategy={"partition teu": "source-wins"})


def test_a_strategy_is_kept_with_what_it_settled(table: LanceTable) -> None:
    """The log shows why the dest's value was replaced."""
    settled = table.merge("main@3", into="run", strategy={"rows": "source-wins"})
    assert {"rows": "source-wins"} == json.loads(settled.properties[STRATEGY])
    reverted = table.revert(str(settled), branch="run", parent=1, strategy="dest-wins")
    assert {"*": "dest-wins"} == json.loads(reverted.properties[STRATEGY])
    assert STRATEGY not in table.merge("run@4").properties


def test_a_refusal_offers_the_whole_call(table: LanceTable) -> None:
    """The strategies that were given are kept, and the call settles all conflicts."""
    error = refused(table, strategy={"column value": "dest-wins"})
    assert error.remedy is not None
    call = error.remedy.call
    assert call is not None
    wanted: dict[str, Winner] = {"column value": "dest-wins", "rows": "source-wins"}
    assert ("merge", ("run@3", "main"), {"strategy": wanted}) == (call.method, call.given, dict(call.named))
    assert str(call) in str(error.hint)
    table.merge(*map(str, call.given), strategy=wanted)
    assert [("a", 10)] == contents(table)


def test_the_whole_call_keeps_what_was_given(table: LanceTable) -> None:
    """The offered call has the given mode, message and properties too."""
    given = {"mode": "squash", "message": "all", "properties": {"ticket": "7"}}
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run", mode="squash", message="all", properties={"ticket": "7"})
    assert caught.value.remedy is not None
    call = caught.value.remedy.call
    assert call is not None
    assert {"strategy": {"rows": "source-wins"}, **given} == dict(call.named)
    made = eval(f"table.{call}", {"table": table})  # noqa: S307  # the hint is Python code
    assert ("all", "7", 1) == (made.message, made.properties["ticket"], len(made.parents))


def test_a_preview_has_the_hint_too(table: LanceTable) -> None:
    """Its text has the conflicts and what settles them, or else the effect of the merge."""
    preview = table.preview_merge("run")
    assert refused(table).remedy == preview.remedy
    first, conflict, last = str(preview).splitlines()
    assert f"{preview.source} into {preview.dest}; merge base {preview.base}" == first
    assert f"rows conflict: {preview.conflicts[0]}" == conflict
    assert f"nothing would be written; {preview.hint}" == last
    settled = table.preview_merge("run", strategy="source-wins")
    assert (None, None) == (settled.remedy, settled.hint)
    assert "rows: 0 added, 1 updated, 0 deleted" in str(settled)
    table.merge("run", strategy="source-wins")
    assert "nothing to do: it was merged before" == str(table.preview_merge("run")).splitlines()[1]


def test_a_conflict_names_its_table_and_what_settles_it(table: LanceTable) -> None:
    """The conflict also has the versions and their committers."""
    conflict = refused(table).conflicts[0]
    assert isinstance(conflict, Conflict)
    assert (table.uri, "strategy 'rows': 'source-wins' or 'dest-wins'") == (conflict.table, conflict.hint)
    assert "(run@3) changed or deleted them" in conflict.source
    assert table.preview_merge("run").conflicts[0].table == table.uri


def test_a_picked_update_of_rows_that_the_branch_never_had(tmp_path: Path) -> None:
    """The branch did not change these rows, because it was forked before they were added."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("old")
    table.append(entries("b", 2))
    updated = table.update({"value": "3"}, where="value = 2")
    with pytest.raises(MergeConflictError) as caught:
        table.cherry_pick(str(updated), into="old")
    assert ["old@2 does not have them"] == [conflict.dest for conflict in caught.value.conflicts]


@pytest.mark.parametrize("attempt", range(4))
def test_the_choice_among_equal_merge_bases_is_by_name(tmp_path: Path, attempt: int) -> None:
    """Branch ids are random, so a choice by id could report other conflicts."""
    table = new_table(tmp_path / str(attempt), entries("a", 1))
    for value, branch in ((2, "x"), (3, "y")):
        table.branches.create(branch)
        table.append(entries("b", value), branch=branch)
    table.merge("y@3", into="x")
    table.merge("x@3", into="y")
    table.append(entries("c", 4), branch="x")
    table.append(entries("c", 5), branch="y")
    assert ("x@3", "x@3") == (table.preview_merge("x", "y").base, table.preview_merge("y", "x").base)


@pytest.mark.parametrize("wrong,near", [("teu", "tue"), ("tue ", "tue"), ("x", "")])
def test_a_misspelled_partition_is_refused(tmp_path: Path, wrong: str, near: str) -> None:
    """The error has the nearest partition, or all that either side claimed."""
    table = replaced_twice(tmp_path, "tue")
    with pytest.raises(InvalidInputError) as caught:
        table.merge("run", strategy={f"partition {wrong}": "source-wins"})
    assert (f"did you mean 'partition {near}'?" if near else "the units are 'partition tue', ") in str(caught.value)
    with pytest.raises(InvalidInputError, match="did you mean \"rows where key = 'tue'\""):
        table.preview_merge("run", strategy={"rows where key = 'teu'": "source-wins"})


def test_a_partition_without_a_conflict_may_have_a_strategy(tmp_path: Path) -> None:
    """One side claimed the partition, so its name is valid."""
    table = replaced_twice(tmp_path, "tue")
    table.replace_where("key = 'wed'", entries("wed", 7), branch="run", partitions=["wed"])
    table.merge("run", strategy={"partition wed": "dest-wins", "partition tue": "source-wins", "rows": "source-wins"})
    assert [("mon", 1), ("tue", 10), ("wed", 7)] == contents(table)


def replaced_twice(folder: Path, day: str) -> LanceTable:
    """Make a table of which `main` and `run` replaced one partition."""
    table = new_table(folder, entries("mon", 1), entries(day, 2))
    table.branches.create("run")
    for value, branch in ((10, "run"), (20, "main")):
        table.replace_where(f"key = '{day}'", entries(day, value), branch=branch, partitions=[day])
    return table


def addresses(folder: Path) -> LanceTable:
    """Make a table without stable row ids, with a branch `run`."""
    lance.write_dataset(entries("a", 1, 2), str(folder / "addresses"))
    table = LanceTable.open(folder / "addresses")
    table.branches.create("run")
    return table


def test_a_winner_that_settles_nothing_is_not_offered(tmp_path: Path) -> None:
    """Without stable row ids an updated row cannot be removed again; a setting can be settled by either winner."""
    table = addresses(tmp_path)
    table.update({"value": "10"}, where="value = 1", branch="run")
    table.delete("value = 1")
    assert "settle all conflicts with merge('run@2', 'main', strategy={'rows': 'source-wins'})" == refused(table).hint
    assert "strategy 'rows': 'source-wins'" == table.preview_merge("run").conflicts[0].hint
    table.config.set({"owner": "ann"}, branch="run")
    table.config.set({"owner": "bob"})
    assert str(refused(table).hint).endswith(""", or choose the other winner for "config key 'owner'\"""")
    winners: tuple[Winner, Winner] = ("source-wins", "dest-wins")
    for winner in winners:
        assert () == table.preview_merge("run", strategy={"rows": "source-wins", "config": winner}).conflicts


def test_the_other_winner_is_offered_where_the_given_one_does_not_settle(tmp_path: Path) -> None:
    """The strategies for other conflicts are kept."""
    table = addresses(tmp_path)
    table.update({"value": "10"}, where="value = 1", branch="run")
    table.delete("value = 1")
    call = "merge('run@2', 'main', strategy={'config': 'dest-wins', 'rows': 'source-wins'})"
    found = refused(table, strategy={"config": "dest-wins", "rows": "dest-wins"})
    assert f"settle all conflicts with {call}" == found.hint
    table.merge("run", strategy={"config": "dest-wins", "rows": "source-wins"})
    assert [("a", 2), ("a", 10)] == contents(table)


def test_the_hint_says_what_to_do_where_no_strategy_helps(tmp_path: Path) -> None:
    """For two updates of a row without stable row ids, the hint is to reset one side to before its update."""
    table = addresses(tmp_path)
    table.update({"value": "10"}, where="value = 1", branch="run")
    table.update({"value": "20"}, where="value = 1")
    for strategy in (None, "source-wins", "dest-wins"):
        error = refused(table, strategy=strategy)
        assert "reset one side to a version before its change" in str(error.hint)
        assert str(error.hint) in str(error)
        assert error.conflicts[0].hint.startswith("no strategy settles it; ")  # type: ignore[attr-defined]  # a Conflict
    table.branches.reset("run", at="main@1")
    table.merge("run")
    assert [("a", 2), ("a", 20)] == contents(table)
