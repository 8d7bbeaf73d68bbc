"""A channel goes back for all tables or for some, once for each request, beside promotions and collections."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lance_dagster import (
    ConflictError,
    InvalidInputError,
    LanceRepository,
    NotFoundError,
    RefMovedError,
    RefNotFoundError,
    TableNotFoundError,
)
from lance_dagster.types import CommitRetention
from tests.raising import raises
from tests.repository.scripted_repository import FAST, SCHEMA, ids, in_order, new_repository, run, scripted
from tests.repository.write_requests import write_request
from tests.store.scripted import Request

TAG = "production"


def versions_of(repository: LanceRepository, *names: str) -> list[list[int]]:
    """The rows that readers of the channel see in tables."""
    found = ids(LanceRepository.open(repository.root, FAST), TAG)
    return [found[name] for name in names]


def promoted_alone(root: Path, *names: str) -> LanceRepository:
    """A repository of two tables that were published together, and then one by one in the order of the names."""
    repository = new_repository(root, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel=TAG)
    for number, name in enumerate(names, start=2):
        repository.publish(run(repository, number, name), channel=TAG)
    return repository


def discarded(repository: LanceRepository) -> None:
    """Make a commit that changes no table: the discard of what a run wrote."""
    write = repository.record.put(repository.table_id("a"), write_request("r1"))
    repository.publications.drop_writes([write], message="discard run/r1")


def test_a_step_of_one_table_is_a_promotion_of_this_table(tmp_path: Path) -> None:
    """After `a` went back by three promotions, one step of `b` leads to the `b` before, and not to the oldest one."""
    repository = promoted_alone(tmp_path, "a", "b", "a", "b", "a", "b")
    repository.channels.rollback(TAG, tables=["a"], to=f"{TAG}~3", reason="a is wrong", hold=False)
    assert [[1], [1, 3, 5, 7]] == versions_of(repository, "a", "b")
    assert [1, 3, 5] == in_order(repository.at(f"{TAG}~1", tables=["b"])["b"].read())
    repository.channels.rollback(TAG, tables=["b"], to=f"{TAG}~1", reason="b is wrong", hold=False)
    assert [[1], [1, 3, 5]] == versions_of(repository, "a", "b")
    assert [[1], [1, 3, 5]] == [repository.table(name).read(TAG)["id"].to_pylist() for name in ("a", "b")]


def test_a_state_that_no_commit_has_is_read_and_named(tmp_path: Path) -> None:
    """A step back of all tables does not lead to a withdrawn version, though readers saw that version just before."""
    repository = promoted_alone(tmp_path, "a", "b", "b")
    repository.channels.rollback(TAG, tables=["a"], reason="a is wrong", hold=False)
    composed = repository.at(f"{TAG}~1")
    assert ({"a": [1], "b": [1, 3]}, False) == (ids(repository, f"{TAG}~1"), composed.commit.is_stored)
    assert composed.commit == repository.head(f"{TAG}~1")
    repository.tags.create("v1", f"{TAG}~1")
    assert ({"a": [1], "b": [1, 3]}, True) == (ids(repository, "v1"), repository.head("v1").is_stored)
    repository.channels.create("staging", f"{TAG}~2")
    assert {"a": [1], "b": [1]} == ids(repository, "staging")
    repository.channels.rollback(TAG, to=composed.commit, reason="b is wrong")
    assert [[1], [1, 3]] == versions_of(repository, "a", "b")


def test_a_dry_run_says_what_each_table_gets(tmp_path: Path) -> None:
    """A dry run names the versions before and after and what else the promotions moved, and changes nothing."""
    repository = promoted_alone(tmp_path, "a")
    repository.publish(run(repository, 3, "a", "b"), channel=TAG)
    before = repository.channels.history(TAG)
    planned = repository.channels.rollback(TAG, tables=["a"], steps=2, dry_run=True)
    assert ["a: main@4 -> main@2"] == [str(move) for move in planned.moves]
    assert (("b",), before) == (planned.left, repository.channels.history(TAG))
    planned = repository.channels.rollback(TAG, steps=2, reason="look", dry_run=True)
    assert ["a: main@4 -> main@2", "b: main@3 -> main@2"] == [str(move) for move in planned.moves]
    assert ((), before) == (planned.left, repository.channels.history(TAG))
    with pytest.raises(InvalidInputError, match="a reason is needed to roll back"):
        repository.channels.rollback(TAG, steps=2)


def test_a_repeated_request_does_not_go_back_twice(tmp_path: Path) -> None:
    """A request is recognised by its name whatever happened since, and without a name while it is the newest entry."""
    repository = promoted_alone(tmp_path, "a", "a", "a")
    back = {"tables": ["a"], "reason": "wrong", "hold": False}
    for _ in range(2):
        repository.channels.rollback(TAG, request="run 77", **back)  # type: ignore[arg-type]
    assert [[1, 2, 3]] == versions_of(repository, "a")
    repository.publish(run(repository, 9, "b"), channel=TAG)
    repository.channels.advance(TAG, f"{TAG}@5", {"a": repository.head(f"{TAG}@5").tables["a"]})
    history = repository.channels.history(TAG)
    repository.channels.rollback(TAG, request="run 77", **back)  # type: ignore[arg-type]
    assert history == repository.channels.history(TAG)
    for reason in ("unnamed", "unnamed", "further"):
        repository.channels.rollback(TAG, **{**back, "reason": reason})  # type: ignore[arg-type]
    assert len(history) + 2 == len(repository.channels.history(TAG))


def test_a_rollback_of_a_table_that_was_published_later_is_refused(tmp_path: Path) -> None:
    """A table that has no older version in the channel is named; going back with all tables takes it away."""
    repository = new_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel=TAG)
    repository.create_table("b", SCHEMA)
    repository.publish(run(repository, 2, "b"), channel=TAG)
    with raises(RefNotFoundError, kind="version of b at", ref="production~1"):
        repository.channels.rollback(TAG, tables=["b"], reason="wrong")
    with pytest.raises(TableNotFoundError):
        repository.channels.rollback(TAG, tables=["c"], reason="wrong")
    with pytest.raises(InvalidInputError):
        repository.channels.rollback(TAG, tables=[], reason="wrong")
    assert {"a", "b"} == set(repository.at(TAG))
    repository.channels.rollback(TAG, reason="wrong")
    assert {"a"} == set(repository.at(TAG))


def test_a_rollback_of_one_table_meets_other_moves(tmp_path: Path) -> None:
    """A promotion of another table at the same moment is kept; one of the same table refuses the rollback."""
    repository = promoted_alone(tmp_path, "a", "b")
    main = repository.publish(run(repository, 9, "a", "b")).commit

    def rolled_back(*, meanwhile: str) -> None:
        moves = iter([True])

        def script(request: Request) -> object:
            if request.verb == "put_if_absent" and "/channels/" in request.key and next(moves, False):
                repository.channels.advance(TAG, main.id, [meanwhile])
            return request.send()

        scripted(repository.root, script).channels.rollback(TAG, tables=["a"], reason="wrong", hold=False)

    rolled_back(meanwhile="b")
    assert [[1], [1, 3, 9]] == versions_of(repository, "a", "b")
    assert ["rollback", "promote"] == [entry.action for entry in repository.channels.history(TAG, 2)]
    repository.channels.advance(TAG, f"{TAG}@2", ["a"])
    with pytest.raises(RefMovedError):
        rolled_back(meanwhile="a")
    assert [[1, 2, 9], [1, 3, 9]] == versions_of(repository, "a", "b")


def test_a_commit_that_was_rolled_back_comes_back_in_all_of_its_tables(tmp_path: Path) -> None:
    """A promotion of one table is refused by which readers would see an older commit in that table alone."""
    repository = new_repository(tmp_path, "a", "b", "c")
    repository.publish(run(repository, 1, "a", "b", "c"), channel=TAG)
    withdrawn = repository.publish(run(repository, 2, "a", "b"), channel=TAG).commit
    repository.channels.rollback(TAG, reason="wrong", hold=False)
    alone = repository.publish(run(repository, 3, "c")).commit
    repository.channels.advance(TAG, alone.id, ["c"])
    newest = repository.publish(run(repository, 4, "a")).commit
    assert {"b": withdrawn} == repository.channels.divided(TAG, ["a"])
    assert {} == repository.channels.divided(TAG, ["a", "b"])
    with pytest.raises(ConflictError, match="in part"):
        repository.channels.advance(TAG, newest.id, ["a"])
    assert [[1], [1], [1, 3]] == versions_of(repository, "a", "b", "c")
    repository.channels.advance(TAG, newest.id, ["a", "b"])
    assert [[1, 2, 4], [1, 2]] == versions_of(repository, "a", "b")


@pytest.mark.parametrize("move", ["promote", "advance"])
def test_a_promotion_meets_a_rollback_of_one_table(tmp_path: Path, move: str) -> None:
    """A promotion that read the channel before a rollback decides anew: it does not bring back another table."""
    repository = promoted_alone(tmp_path, "a", "b")
    since = repository.channels.get(TAG).entry
    commit = repository.publish(run(repository, 9, "b")).commit
    moves = iter([True])

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and "/channels/" in request.key and next(moves, False):
            repository.channels.rollback(TAG, tables=["a"], reason="wrong", hold=False)
        return request.send()

    channels = scripted(repository.root, script).channels
    if move == "promote":
        # All tables of the commit would move, so a person decides.
        with pytest.raises(ConflictError, match="was rolled back"):
            channels.promote(TAG, commit.id, since=since)
        assert [[1], [1, 3]] == versions_of(repository, "a", "b")
    else:
        channels.advance(TAG, commit.id, ["b"], since=since)
        assert [[1], [1, 3, 9]] == versions_of(repository, "a", "b")
        with pytest.raises(ConflictError, match="was rolled back"):
            repository.channels.advance(TAG, commit.id, ["a"], since=since)


def test_a_rollback_that_meets_a_collection_is_undone_with_what_it_withdrew(tmp_path: Path) -> None:
    """After a rollback to a commit that is being collected was undone, the promotions count as before."""
    repository = promoted_alone(tmp_path, "a", "a")
    old = repository.head(f"{TAG}@1").id
    (tmp_path / "_repository" / "expired").mkdir()
    (tmp_path / "_repository" / "expired" / old).touch()
    with pytest.raises(NotFoundError):
        repository.channels.rollback(TAG, to=old, reason="older")
    assert [[1, 2, 3], [1, 2]] == [ids(repository, ref)["a"] for ref in (TAG, f"{TAG}~1")]


def test_entries_without_a_record_count_as_before(tmp_path: Path) -> None:
    """The log of a repository that an earlier version wrote is read: its rollbacks moved all tables."""
    repository = promoted_alone(tmp_path, "a", "b", "a")
    repository.channels.rollback(TAG, reason="wrong", hold=False)
    repository.publish(run(repository, 9, "b"), channel=TAG)
    expected = {ref: ids(repository, ref) for ref in (f"{TAG}~1", f"{TAG}~2", f"{TAG}~3")}
    for path in (tmp_path / "_repository" / "channels" / TAG).iterdir():
        entry = json.loads(path.read_text())
        del entry["moves"], entry["request"]
        path.write_text(json.dumps(entry))
    again = LanceRepository.open(tmp_path, FAST)
    assert expected == {ref: ids(again, ref) for ref in expected}
    again.channels.rollback(TAG, tables=["b"], steps=2, reason="b is wrong", hold=False)
    assert [1] == versions_of(again, "b")[0]


@pytest.mark.parametrize("tables", [None, ["a"]])
def test_what_was_taken_back_is_not_shown_again_by_mistake(tmp_path: Path, tables: list[str] | None) -> None:
    """Neither a promotion of `main` nor a rollback to the entry of `main` shows the version, unless it is asked for."""
    repository = promoted_alone(tmp_path, "a")
    bad = repository.head().short_id
    repository.channels.rollback(TAG, tables=tables, reason="cents", hold=True)
    repository.channels.release(TAG, reason="looked at")
    discarded(repository)
    moves: list[Callable[[], object]] = [
        lambda: repository.channels.promote(TAG),
        lambda: repository.channels.promote(TAG, bad),
        lambda: repository.channels.rollback(TAG, to=bad, reason="all tables", hold=False),
        lambda: repository.channels.rollback(TAG, to=bad, tables=["a"], reason="one table", hold=False),
    ]
    for move in moves:
        with pytest.raises(ConflictError, match=r"has a main@3, which .* took back .*: cents; .*again=True"):
            move()
    assert [[1]] == versions_of(repository, "a")
    repository.channels.promote(TAG, again=True)
    assert [[1, 2]] == versions_of(repository, "a")
    # The version is shown on purpose now, so nothing is left to refuse.
    repository.publish(run(repository, 3, "b"), channel=TAG)
    repository.channels.rollback(TAG, tables=["b"], reason="b", hold=False)
    repository.publish(run(repository, 4, "b"), channel=TAG)
    assert [[1, 2], [1, 3, 4]] == versions_of(repository, "a", "b")


def test_a_revert_is_promoted_after_a_rollback(tmp_path: Path) -> None:
    """The versions of the revert are new, also of a table that was taken back twice."""
    repository = promoted_alone(tmp_path, "a", "a")
    for reason in ("the newest", "the one before"):
        repository.channels.rollback(TAG, reason=reason)
    repository.channels.release(TAG, reason="reverted")
    newest = repository.head()
    for commit, version in ((newest.id, "main@4"), (newest.parents[0], "main@3")):
        with pytest.raises(ConflictError, match=f"has a {version}"):
            repository.channels.promote(TAG, commit)
    repository.revert(newest.id)
    repository.revert(newest.parents[0])
    repository.channels.promote(TAG)
    assert [[1]] == versions_of(repository, "a")


def test_a_commit_that_changed_no_table_is_not_reverted(tmp_path: Path) -> None:
    """A person who means the publication before a discard is told its id."""
    repository = promoted_alone(tmp_path, "a")
    published = repository.head().short_id
    discarded(repository)
    with pytest.raises(InvalidInputError, match=f"changed no table.*the newest .* that changed tables is {published} "):
        repository.revert("main")


def test_a_publication_leaves_what_was_taken_back(tmp_path: Path) -> None:
    """Readers get the published table, and the table that was rolled back stays, although `main` has its rows."""
    repository = promoted_alone(tmp_path, "a")
    repository.channels.rollback(TAG, tables=["a"], reason="cents", hold=False)
    repository.publish(run(repository, 3, "b"), channel=TAG)
    assert [[1], [1, 3]] == versions_of(repository, "a", "b")
    assert [1, 2] == ids(repository, "main")["a"]


def test_a_table_that_was_taken_back_whole_is_not_shown_again(tmp_path: Path) -> None:
    """A rollback to before the first promotion of a table took all of its versions back."""
    repository = promoted_alone(tmp_path, "a")
    repository.create_table("c", SCHEMA)
    repository.publish(run(repository, 3, "c"), channel=TAG)
    bad = repository.head().id
    # The rollback makes a commit of the channel, whose parent is the commit that was taken back.
    repository.channels.rollback(TAG, tables=["a"], reason="one table", hold=False)
    repository.channels.rollback(TAG, reason="all tables", hold=False)
    moves: list[Callable[[], object]] = [
        lambda: repository.channels.promote(TAG),
        lambda: repository.channels.rollback(TAG, reason="again", to=bad),
    ]
    for move in moves:
        with pytest.raises(ConflictError, match=r"c main@2.* took back .*: all tables"):
            move()
    repository.publish(run(repository, 4, "b"), channel=TAG)
    assert {"a": [1], "b": [1, 4]} == ids(repository, TAG)
    repository.channels.promote(TAG, again=True)
    assert {"a": [1, 2], "b": [1, 4], "c": [3]} == ids(repository, TAG)
    assert {} == repository.channels.get(TAG).entry.withdrawn


def test_a_step_forward_shows_no_newer_version_by_mistake(tmp_path: Path) -> None:
    """Of two versions that were taken back, a person shows the older one again; the newer one stays back."""
    repository = promoted_alone(tmp_path, "a", "a")
    older = repository.channels.history(TAG)[1].commit
    for reason in ("the newest", "the one before"):
        repository.channels.rollback(TAG, reason=reason, hold=False)
    repository.channels.promote(TAG, older, again=True)
    with pytest.raises(ConflictError, match=r"has a main@4, which .* took back"):
        repository.channels.promote(TAG)
    repository.publish(run(repository, 4, "b"), channel=TAG)
    assert [[1, 2], [1, 4]] == versions_of(repository, "a", "b")


def test_what_was_taken_back_long_ago_is_refused(tmp_path: Path) -> None:
    """The entry of the rollback was collected, with the person and the reason."""
    repository = promoted_alone(tmp_path, "a")
    repository.channels.rollback(TAG, reason="cents", hold=False)
    repository.publish(run(repository, 3, "b"), channel=TAG)
    at_once = timedelta(0)
    repository.maintenance.collect(CommitRetention(promotions=1, keep_for=at_once, grace=at_once), dry_run=False)
    assert ["promote"] == [entry.action for entry in repository.channels.history(TAG)]
    with pytest.raises(ConflictError, match=r"has a main@3, which a rollback took back .*again=True"):
        repository.channels.promote(TAG)


def test_a_publication_that_was_refused_is_finished_after_the_revert(tmp_path: Path) -> None:
    """It would show a commit in part; the revert and a promotion show its rows, and its branch is deleted."""
    repository = new_repository(tmp_path, "a", "b")
    for number in (1, 2):
        repository.publish(run(repository, number, "a", "b"), channel=TAG)
    repository.channels.rollback(TAG, reason="cents", hold=False)
    bad, branch = repository.head().id, run(repository, 3, "a")
    for _ in range(2):
        with pytest.raises(ConflictError, match="took back"):
            repository.publish(branch, channel=TAG)
    repository.revert(bad)
    repository.channels.promote(TAG)
    repository.publish(branch, channel=TAG)
    assert {"a": [1, 3], "b": [1]} == ids(repository, TAG)
    assert {} == repository.status().waiting


def test_a_publication_leaves_a_newer_version_of_what_was_taken_back(tmp_path: Path) -> None:
    """A compaction of the table makes a version of its own, which has the rows that were taken back."""
    repository = promoted_alone(tmp_path, "a")
    repository.channels.rollback(TAG, reason="cents", hold=False)
    repository.table("a").maintenance.compact()
    repository.commit("compacted")
    repository.publish(run(repository, 3, "b"), channel=TAG)
    assert [[1], [1, 3]] == versions_of(repository, "a", "b")


def test_a_publication_after_a_revert_needs_no_promotion(tmp_path: Path) -> None:
    """The reverted commit changed both tables; a publication of one of them brings readers the revert of both."""
    repository = new_repository(tmp_path, "a", "b")
    for number in (1, 2):
        repository.publish(run(repository, number, "a", "b"), channel=TAG)
    repository.channels.rollback(TAG, reason="cents", hold=False)
    repository.revert("main")
    repository.publish(run(repository, 3, "a"), channel=TAG)
    assert [[1, 3], [1]] == versions_of(repository, "a", "b")
    assert {} == repository.channels.get(TAG).entry.withdrawn
