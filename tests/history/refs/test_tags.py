"""Tags have a bounded history, can be rolled back, and can be immutable."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    InvalidInputError,
    LanceDagsterError,
    ProtectedError,
    RefMovedError,
    RefNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.history.refs.ref_files import DELETING
from lance_dagster.history.refs.tag_operations import MOVES
from lance_dagster.store import LocalStore
from tests.backdating import free_names
from tests.process_race import race
from tests.raising import raises
from tests.store.scripted import PlugPulledError, Request, Script, ScriptedStore, plug_pulled_before_write
from tests.table_factory import as_pylance, context_of, context_on, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with versions 1 to 6."""
    return new_table(tmp_path, *(entries("a", value) for value in range(5)))


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


def moves(table: LanceTable) -> list[tuple[str | None, str]]:
    """The moves of the tag, newest first."""
    return [(move.before, move.after) for move in table.tags.history("production")]


def test_every_move_is_remembered(table: LanceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move has its origin, target, time, mover and metadata."""
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "ann")
    table.tags.create("production", "main@2", metadata={"dagster/run_id": "r1"})
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "bob")
    table.tags.move("production", "main@3", metadata={"lance/reason": "weekly"})
    newest, first = table.tags.history("production")
    assert (None, "main@2", "ann") == (first.before, first.after, first.moved_by)
    assert ("main@2", "main@3", "bob", 0) == (newest.before, newest.after, newest.moved_by, newest.steps_back)
    assert ({"dagster/run_id": "r1"}, {"lance/reason": "weekly"}) == (first.metadata, newest.metadata)
    assert first.moved_at is not None
    assert newest.moved_at is not None
    assert first.moved_at < newest.moved_at
    assert "weekly" == table.tags.get("production").metadata["lance/reason"]
    assert "dagster/run_id" not in table.tags.get("production").metadata


def test_a_tag_is_rolled_back_and_forth(table: LanceTable) -> None:
    """Single steps and several steps can be mixed; a move that was rolled back does not count, a later one does."""
    for number in (2, 3, 4, 5):
        table.tags.move("production", f"main@{number}")
    assert "main@4" == table.tags.rollback("production").ref
    assert "main@3" == table.tags.rollback("production", metadata={"lance/reason": "worse"}).ref
    assert (1, {"lance/reason": "worse"}) == (
        table.tags.history("production")[0].steps_back,
        table.tags.history("production")[0].metadata,
    )
    table.tags.move("production", "main@6")
    assert "main@2" == table.tags.rollback("production", 2).ref
    with pytest.raises(InvalidInputError):
        table.tags.rollback("production")
    table.tags.move("production", "main@6")
    with pytest.raises(InvalidInputError):
        table.tags.rollback("production", 2)
    with pytest.raises(InvalidInputError):
        table.tags.rollback("production", 0)
    assert ("main@2", "main@6") == moves(table)[0]
    assert 9 == len(moves(table))


def test_the_history_is_bounded(table: LanceTable) -> None:
    """The number of moves and their metadata are bounded; a rollback reaches as far as the history."""
    for number in range(30):
        table.tags.move("production", f"main@{2 + number % 4}")
    assert 20 == len(moves(table))
    assert "main@3" == table.tags.get("production").ref
    assert f"main@{2 + 10 % 4}" == table.tags.rollback("production", 19).ref
    for number in range(10):
        table.tags.move("production", f"main@{2 + number % 2}", metadata={"reason": "x" * 50_000})
    assert 300_000 > (Path(table.uri) / "_refs/tags/production.json").stat().st_size
    assert ("main@3", 3) == (table.tags.get("production").ref, len(moves(table)))


def test_a_move_by_pylance_is_found_out(table: LanceTable) -> None:
    """Pylance keeps the metadata unchanged; its move is listed, counted and kept."""
    table.tags.move("production", "main@2", metadata={"reason": "first"})
    as_pylance(table).tags.update("production", 4)
    newest = table.tags.history("production")[0]
    assert ("main@2", "main@4", "another program") == (newest.before, newest.after, newest.moved_by)
    table.tags.move("production", "main@5")
    assert [("main@4", "main@5"), ("main@2", "main@4"), (None, "main@2")] == moves(table)
    assert "main@4" == table.tags.rollback("production").ref
    as_pylance(table).tags.update("production", 6)
    assert "main@4" == table.tags.rollback("production").ref
    assert "main@2" == table.tags.rollback("production").ref


def test_a_tag_of_pylance_has_a_history_from_then_on(table: LanceTable) -> None:
    """The version before the package's first move is known."""
    as_pylance(table).tags.create("production", 3)
    assert [(None, "main@3")] == moves(table)
    table.tags.move("production", "main@4")
    assert [("main@3", "main@4"), (None, "main@3")] == moves(table)
    assert "main@3" == table.tags.rollback("production").ref


@pytest.mark.parametrize(
    "history", ["", "{", "[1]", '{"a": 1}', '[{"from": 1}]', '[{"from":null,"to":1,"at":1,"by":1}]']
)
def test_a_history_that_cannot_be_read_stops_nobody(table: LanceTable, history: str) -> None:
    """An unreadable history does not prevent a move; the history begins again."""
    table.tags.move("production", "main@2")
    path = Path(table.uri) / "_refs/tags/production.json"
    stored = json.loads(path.read_bytes())
    stored["metadata"][MOVES] = history
    path.write_text(json.dumps(stored))
    table.tags.move("production", "main@4")
    assert [("main@2", "main@4"), (None, "main@2")] == moves(table)


def test_rolling_back_is_a_compare_and_swap(table: LanceTable) -> None:
    """Another process moves the tag in between, so the rollback is refused."""
    for number in (2, 3):
        table.tags.move("production", f"main@{number}")

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap":
            table.tags.move("production", "main@5")
        return request.send()

    with raises(RefMovedError, ref="production", expected="main@3", found="main@5"):
        through(table, script).tags.rollback("production")
    with raises(RefMovedError, ref="production", expected="main@2", found="main@5"):
        table.tags.rollback("production", expected=table.at("main@2"))
    assert "main@5" == table.tags.get("production").ref


def test_a_version_that_is_gone_is_not_rolled_back_to(table: LanceTable) -> None:
    """The error names the version; a rollback by one more step may work."""
    table.branches.create("run", "main@2")
    table.append(entries("r", 1), branch="run")
    for ref in ("main@2", "run@3", "main@4"):
        table.tags.move("production", ref)
    table.branches.delete("run")
    with pytest.raises(VersionNotFoundError, match="run@3"):
        table.tags.rollback("production")
    assert "main@2" == table.tags.rollback("production", 2).ref


def test_a_tag_is_not_rolled_back_to_another_branch(table: LanceTable) -> None:
    """The branch has the same name and number, but other rows."""
    for ref in ("main@2", "run@3", "main@4"):
        if ref == "run@3":
            table.branches.create("run", "main@2")
            table.append(entries("r", 1), branch="run")
        table.tags.move("production", ref)
    table.branches.delete("run")
    free_names(table)
    table.branches.create("run", "main@2")
    table.append(entries("stranger", 1), branch="run")
    with pytest.raises(VersionNotFoundError):
        LanceTable.open(table.uri).tags.rollback("production")
    assert "main@4" == table.tags.get("production").ref
    assert "main@2" == table.tags.rollback("production", 2).ref


def test_a_tag_is_rolled_back_to_a_branch_that_was_renamed(table: LanceTable) -> None:
    """It can be rolled back repeatedly, also past that branch."""
    table.branches.create("run", "main@2")
    table.append(entries("r", 1), branch="run")
    for ref in ("main@2", "run@3", "main@4"):
        table.tags.move("production", ref)
    table.branches.rename("run", "renamed")
    table.append(entries("r", 2), branch="renamed")
    kept = table.maintenance.collect_garbage(timedelta(0)).kept
    assert all("named earlier by tag 'production'" in kept[version] for version in ("main@2", "renamed@3"))
    assert "renamed@3" == table.tags.rollback("production").ref
    assert "main@2" == table.tags.rollback("production").ref


def test_the_branch_of_a_move_by_pylance_is_known_from_the_next_move_on(table: LanceTable) -> None:
    """Until then the tag prevents the deletion of the branch."""
    table.branches.create("run", "main@2")
    table.append(entries("r", 1), branch="run")
    as_pylance(table, "run").tags.create("production", ("run", 3))
    table.tags.move("production", "main@4")
    newest, first = table.tags.history("production")
    own = table.branches.get("run").id
    assert ("", own, own, "main") == (first.before_id, first.after_id, newest.before_id, newest.after_id)
    table.branches.rename("run", "renamed")
    assert "renamed@3" == table.tags.rollback("production").ref


def test_moves_without_ids_are_read(table: LanceTable) -> None:
    """The present branch of that name is taken, as for moves by pylance."""
    table.branches.create("run", "main@2")
    table.append(entries("r", 1), branch="run")
    for ref in ("run@3", "main@4"):
        table.tags.move("production", ref)
    path = Path(table.uri) / "_refs/tags/production.json"
    stored = json.loads(path.read_bytes())
    moved = [{key: move[key] for key in ("from", "to", "at", "by")} for move in json.loads(stored["metadata"][MOVES])]
    stored["metadata"][MOVES] = json.dumps(moved)
    path.write_text(json.dumps(stored))
    assert "run@3" == table.tags.rollback("production").ref


def test_an_immutable_tag_stays(table: LanceTable) -> None:
    """It cannot be moved, and is deleted only with `force`; its metadata can change."""
    made = table.tags.create("v1", "main@2", immutable=True, metadata={"by": "ann"})
    assert (True, False) == (made.immutable, table.tags.create("v2", "main@2").immutable)
    for expected in (None, table.at("main@2")):
        with raises(ProtectedError, kind="tag", name="v1", refused="move") as caught:
            table.tags.move("v1", "main@3", expected=expected)
        hint = "give the version another name, or delete the tag with tags.delete('v1', force=True)"
        assert hint == caught.value.hint
    with raises(ProtectedError, refused="delete", kind="tag", name="v1"):
        table.tags.delete("v1")
    table.tags.set_metadata("v1", {"by": None, "notes": "the first"})
    assert ("main@2", "main@2") == (table.tags.get("v1").ref, table.tags.move("v1", "main@2").ref)
    assert (True, "the first") == (table.tags.get("v1").immutable, table.tags.get("v1").metadata["notes"])
    table.tags.delete("v1", force=True)
    assert ["v2"] == list(table.tags.list())


def test_an_immutable_tag_that_pylance_moved_is_put_back(table: LanceTable) -> None:
    """It cannot be moved anywhere else."""
    table.tags.create("v1", "main@2", immutable=True)
    as_pylance(table).tags.update("v1", 3)
    with raises(ProtectedError, refused="move", kind="tag", name="v1"):
        table.tags.move("v1", "main@4")
    assert ("main@2", True) == (table.tags.move("v1", "main@2").ref, table.tags.get("v1").immutable)
    assert "another program" == table.tags.history("v1")[1].moved_by
    with raises(ProtectedError, refused="move", kind="tag", name="v1"):
        table.tags.move("v1", "main@3")


def test_an_immutable_tag_stays_whatever_is_left_of_its_history(table: LanceTable) -> None:
    """Its original version is stored apart from its moves, which are bounded and may be unreadable."""
    table.tags.create("v1", "main@2", immutable=True)
    for _ in range(11):
        as_pylance(table).tags.update("v1", 3)
        assert "main@2" == table.tags.move("v1", "main@2").ref
    with raises(ProtectedError, refused="move", kind="tag", name="v1"):
        table.tags.move("v1", "main@3")
    path = Path(table.uri) / "_refs/tags/v1.json"
    stored = json.loads(path.read_bytes())
    del stored["metadata"][MOVES]
    path.write_text(json.dumps(stored))
    with raises(ProtectedError, refused="move", kind="tag", name="v1"):
        table.tags.move("v1", "main@3")
    as_pylance(table).tags.update("v1", 3)
    assert "main@2" == table.tags.move("v1", "main@2").ref


def test_metadata_is_changed_where_the_tag_is(table: LanceTable) -> None:
    """Another writer moves the tag in between, and both changes are kept. Keys of the package are refused."""
    table.tags.create("production", "main@2")
    moved = [True]

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap" and moved:
            moved.pop()
            as_pylance(table).tags.update("production", 3)
        return request.send()

    through(table, script).tags.set_metadata("production", {"note": "kept"})
    assert ("main@3", "kept") == (table.tags.get("production").ref, table.tags.get("production").metadata["note"])
    assert 2 == len(moves(table))
    with pytest.raises(InvalidInputError):
        table.tags.set_metadata("production", {MOVES: None})
    with pytest.raises(InvalidInputError):
        table.tags.create("other", "main@2", metadata={"lance_dagster.immutable": "no"})
    with pytest.raises(RefNotFoundError):
        table.tags.set_metadata("none", {"a": "b"})


@pytest.mark.parametrize("step", range(2))
@pytest.mark.parametrize("job", ["create", "move", "roll back", "describe", "delete"])
def test_a_job_that_died_is_done_or_not(table: LanceTable, job: str, step: int) -> None:
    """Each call is one write, and a repeated call has the same result."""
    if job != "create":
        table.tags.move("production", "main@2")
        table.tags.move("production", "main@3")
    before = table.tags.list().get("production")

    def do(at: LanceTable) -> None:
        match job:
            case "create":
                at.tags.move("production", "main@2")
            case "move":
                at.tags.move("production", "main@4")
            case "roll back":
                at.tags.rollback("production", expected=at.at("main@3"))
            case "describe":
                at.tags.set_metadata("production", {"a": "b"})
            case _:
                at.tags.delete("production")

    writer = through(table, plug_pulled_before_write(step))
    if step:
        do(writer)
    else:
        with pytest.raises(PlugPulledError):
            do(writer)
        assert before == table.tags.list().get("production")
        do(table)
    after = table.tags.list().get("production")
    expected = {"create": "main@2", "move": "main@4", "roll back": "main@2", "describe": "main@3", "delete": None}
    assert expected[job] == (after.ref if after else None)


def move_often(uri: str, target: int) -> list[int]:
    """Move the tag repeatedly from its present version; return the number of acknowledged moves."""
    table = LanceTable.open(uri)
    landed = 0
    for _ in range(6):
        while True:
            try:
                current = table.tags.get("production")
                if current.version == target:
                    break
                table.tags.move("production", f"main@{target}", expected=table.at(current.ref))
            except RefMovedError:
                continue
            landed += 1
            break
    return [landed]


def test_movers_in_processes(table: LanceTable) -> None:
    """Each acknowledged move is in the history, and begins where the previous one ended."""
    table.tags.move("production", "main@2")
    landed = sum(count for (count,) in race(move_often, [(table.uri, target) for target in (3, 4, 5)]))
    history = moves(table)
    assert min(20, landed + 1) == len(history)
    assert all(newer[0] == older[1] for newer, older in pairwise(history))


def test_tags_are_listed_by_pattern(table: LanceTable) -> None:
    """Files of other tags are not read."""
    for name in ("v1.0", "v1.1", "v2.0", "production"):
        table.tags.create(name, "main@2")
    asked: list[str] = []

    def script(request: Request) -> object:
        asked.append(request.key)
        return request.send()

    assert ["v1.0", "v1.1"] == sorted(through(table, script).tags.list("v1.*"))
    assert 3 == len(asked)
    with raises(RefNotFoundError, ref="v1.00", kind="tag", known=("production", "v1.0", "v1.1", "v2.0")):
        table.tags.get("v1.00")


def test_a_new_tag_tells_its_times(table: LanceTable) -> None:
    """The returned tag equals the stored one; a move keeps the time of creation."""
    made = table.tags.create("v1", "main@1")
    assert table.tags.get("v1") == made
    assert made.created_at is not None
    moved = table.tags.move("v1", "main@2")
    assert table.tags.get("v1") == moved
    assert made.updated_at is not None
    assert moved.updated_at is not None
    assert (made.created_at, True) == (moved.created_at, made.updated_at < moved.updated_at)


def test_a_tag_that_is_withdrawn_is_the_one_that_was_made(table: LanceTable) -> None:
    """The tag's branch is deleted, but another process moves the tag to an existing version before the withdrawal."""
    table.branches.create("dying")
    moved = [False]

    def script(request: Request) -> object:
        answer = request.send()
        if request.verb == "put_if_absent" and request.key.endswith("tags/release.json"):
            table.tags.move("release", "main@2")
            context_of(table).refs.branches.set_state(table.branches.get("dying"), DELETING)
            moved[0] = True
        return answer

    with pytest.raises(RefNotFoundError):
        through(table, script).tags.create("release", "dying")
    assert moved == [True]
    assert "main@2" == table.tags.get("release").ref


def made_again(table: LanceTable) -> None:
    """Delete the tag and create it for another version."""
    table.tags.delete("release")
    table.tags.create("release", "main@1")


@pytest.mark.parametrize("meanwhile", ["move", "hold", "delete and create"])
def test_a_tag_is_deleted_only_as_it_was_checked(table: LanceTable, meanwhile: str) -> None:
    """At each request of the deletion another process changes the tag, and its acknowledged change is kept."""
    acts: dict[str, Callable[[], object]] = {
        "move": lambda: table.tags.move("release", "main@1"),
        "hold": lambda: table.tags.hold("release", reason="kept for the audit"),
        "delete and create": lambda: made_again(table),
    }
    for place in range(20):
        table.tags.create("release", "main@2")
        asked: list[str] = []

        def script(request: Request, place: int = place, asked: list[str] = asked) -> object:
            asked.append(request.verb)
            if len(asked) == place + 1:
                acts[meanwhile]()
            return request.send()

        deleted = False
        with suppress(LanceDagsterError):
            through(table, script).tags.delete("release")
            deleted = True
        looks = next(number for number, verb in enumerate(asked) if verb == "get")
        assert deleted == ((place <= looks and meanwhile != "hold") or len(asked) <= place)
        if not deleted:
            assert ("main@2" if meanwhile == "hold" else "main@1") == table.tags.get("release").ref
            if meanwhile == "hold":
                table.tags.release("release", reason="over")
            table.tags.delete("release")
        if len(asked) <= place:
            break


def test_a_tag_keeps_a_version_that_was_just_collected(table: LanceTable) -> None:
    """The collection did not see the tag; the creation restores the version, and the next collection keeps it."""

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if request.key == "_refs/tags/old.json" and request.verb == "put_if_absent":
            table.maintenance.collect_garbage(timedelta(0), dry_run=False)
        return request.send()

    through(table, script).tags.create("old", "main@2")
    assert 1 == LanceTable.open(table.uri).count_rows("old")
    assert not table.maintenance.collect_garbage(timedelta(0), dry_run=False).problems
    assert 1 == as_pylance(table).checkout_version("old").count_rows()


def test_a_tag_of_a_version_without_a_copy_is_withdrawn(table: LanceTable) -> None:
    """The files of the version may be gone too."""

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if request.key == "_refs/tags/old.json" and request.verb == "put_if_absent":
            table.maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
        return request.send()

    with pytest.raises(VersionNotFoundError):
        through(table, script).tags.create("old", "main@2")
    assert not table.tags.list()
