"""Strategies as callers meet them: refused when unknown, kept with the merge, offered whole when a merge is refused."""

import json
from pathlib import Path

import pytest

from lance_dagster import Conflict, LanceTable, Strategy, Winner
from lance_dagster.errors import InvalidInputError, MergeConflictError
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
    """A typing error must not show only when there is a conflict."""
    with pytest.raises(InvalidInputError, match="is no "):
        table.merge("main@1", strategy=strategy)
    with pytest.raises(InvalidInputError, match="is no "):
        table.preview_merge("main@1", strategy=strategy)
    with pytest.raises(InvalidInputError, match="is no "):
        table.cherry_pick(str(table.head()), strategy=strategy)


def test_a_strategy_is_kept_with_what_it_settled(table: LanceTable) -> None:
    """Whoever asks later why the dest's value is gone finds it in the log."""
    settled = table.merge("main@3", into="run", strategy={"rows": "source-wins"})
    assert {"rows": "source-wins"} == json.loads(settled.properties[STRATEGY])
    reverted = table.revert(str(settled), branch="run", parent=1, strategy="dest-wins")
    assert {"*": "dest-wins"} == json.loads(reverted.properties[STRATEGY])
    assert STRATEGY not in table.merge("run@4").properties


def test_a_refusal_offers_the_whole_call(table: LanceTable) -> None:
    """The strategies that were given are kept, and the call settles everything."""
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
    """Mode, message and properties are no less part of the call than the strategy."""
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
    """Its text says the conflicts and what settles them; without conflicts, what the merge would do."""
    preview = table.preview_merge("run")
    assert refused(table).remedy == preview.remedy
    first, conflict, last = str(preview).splitlines()
    assert f"{preview.source} into {preview.dest}; merge base {preview.base}" == first
    assert f"rows conflict: {preview.conflicts[0]}" == conflict
    assert f"nothing would be written; {preview.hint}" == last
    settled = table.preview_merge("run", strategy="source-wins")
    assert (None, None) == (settled.remedy, settled.hint)
    assert "rows: 0 added, 1 updated, 0 removed" in str(settled)
    table.merge("run", strategy="source-wins")
    assert "nothing to do: it was merged before" == str(table.preview_merge("run")).splitlines()[1]


def test_a_conflict_names_its_table_and_what_settles_it(table: LanceTable) -> None:
    """Beside the versions and who made them."""
    conflict = refused(table).conflicts[0]
    assert isinstance(conflict, Conflict)
    assert (table.uri, "strategy 'rows': 'source-wins' or 'dest-wins'") == (conflict.table, conflict.hint)
    assert "(run@3) changed or deleted them" in conflict.source
    assert table.preview_merge("run").conflicts[0].table == table.uri


def test_a_picked_update_of_rows_that_the_branch_never_had(tmp_path: Path) -> None:
    """Nobody changed them there: the branch was forked before they came."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("old")
    table.append(entries("b", 2))
    updated = table.update({"value": "3"}, where="value = 2")
    with pytest.raises(MergeConflictError) as caught:
        table.cherry_pick(str(updated), into="old")
    assert ["old@2 does not have them"] == [conflict.dest for conflict in caught.value.conflicts]


@pytest.mark.parametrize("attempt", range(4))
def test_the_choice_among_equal_merge_bases_is_by_name(tmp_path: Path, attempt: int) -> None:
    """Branch ids are random, and another choice could tell other conflicts."""
    table = new_table(tmp_path / str(attempt), entries("a", 1))
    for value, branch in ((2, "x"), (3, "y")):
        table.branches.create(branch)
        table.append(entries("b", value), branch=branch)
    table.merge("y@3", into="x")
    table.merge("x@3", into="y")
    table.append(entries("c", 4), branch="x")
    table.append(entries("c", 5), branch="y")
    assert ("x@3", "x@3") == (table.preview_merge("x", "y").base, table.preview_merge("y", "x").base)
