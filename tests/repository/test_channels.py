"""Channels are created explicitly, held and rolled back with the tags of their tables, and deleted without loss."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lance_dagster import (
    AlreadyExistsError,
    ConflictError,
    LanceRepository,
    NotFoundError,
    ProtectedError,
    RefNotFoundError,
    StoreError,
)
from lance_dagster.types import CommitRetention
from tests.raising import raises
from tests.repository.scripted_repository import Plug, ids, in_order, new_repository, run, scripted
from tests.store.scripted import PlugPulledError, Request

TAG = "production"


def published(root: Path, times: int) -> LanceRepository:
    """A repository of two tables with several publications, the second table only in one of them."""
    repository = new_repository(root, "a", "b")
    for number in range(1, times + 1):
        repository.publish(run(repository, number, *(("a", "b") if number == 1 else ("a",))), channel=TAG)
    return repository


def holds(repository: LanceRepository) -> list[str | None]:
    """The reason for which the tag of each table is held."""
    found = [repository.table(name).tags.get(TAG).hold for name in ("a", "b")]
    return [None if hold is None else hold.reason for hold in found]


def test_a_misspelt_channel_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    """A misspelt channel is refused with the nearest name, and nothing is merged, promoted or created."""
    repository = published(tmp_path, 1)
    branch = run(repository, 2, "a")
    for act in (
        lambda: repository.publish(branch, channel="prodution"),
        lambda: repository.channels.promote("prodution"),
        lambda: repository.channels.rollback("prodution", reason="wrong"),
        lambda: repository.channels.hold("prodution", reason="wrong"),
        lambda: repository.channels.release("prodution", reason="right"),
        lambda: repository.channels.delete("prodution", reason="over"),
        lambda: repository.channels.history("prodution"),
    ):
        with raises(RefNotFoundError, kind="channel", ref="prodution"):
            act()
    assert [TAG] == list(repository.channels.list())
    assert [1] == ids(repository, "main")["a"]


def test_a_promotion_of_a_moved_table_replaces_its_old_name(tmp_path: Path) -> None:
    """A channel reads a moved table by both names, and has one of them after the next promotion of some tables."""
    repository = published(tmp_path, 1)
    (tmp_path / "a.lance").rename(tmp_path / "moved.lance")
    repository.move_table("a", "moved")
    view = repository.at(TAG)
    assert {"a": [1], "b": [1]} == ids(repository, TAG)
    assert [1] == in_order(view["moved"].read())
    assert ("moved" in view, "other" in view, "../out" in view) == (True, False, False)
    commit = repository.publish(run(repository, 2, "moved")).commit
    repository.channels.advance(TAG, commit.id, ["moved"])
    assert {"moved": [1, 2], "b": [1]} == ids(repository, TAG)
    assert () == repository.maintenance.repair()
    assert "main@3" == repository.table("moved").tags.get(TAG).ref


def test_a_publication_does_not_overrun_a_rollback(tmp_path: Path) -> None:
    """Rows that were rolled back while they were published stay withdrawn until a person promotes them."""
    repository = published(tmp_path, 2)
    branch = run(repository, 3, "a")

    def script(request: Request) -> object:
        if request.verb == "put_if_absent" and request.key.startswith("_repository/branches/main/"):
            repository.channels.rollback(TAG, reason="doubled", hold=False)
        return request.send()

    with pytest.raises(ConflictError, match="was rolled back") as refused:
        scripted(repository.root, script).publish(branch, channel=TAG)
    assert "promote" in str(refused.value)
    assert ([1], [1, 2, 3]) == (ids(repository, TAG)["a"], ids(repository, "main")["a"])
    since = repository.channels.history(TAG)[1]
    with pytest.raises(ConflictError, match="was rolled back"):
        repository.channels.advance(TAG, "main", ["a"], since=since)
    repository.publish(branch, channel=TAG)
    assert [1, 2, 3] == ids(repository, TAG)["a"]
    assert () == repository.channels.advance(TAG, "main", ["a"], since=since).lagging


def test_a_promotion_does_not_overrun_a_publication(tmp_path: Path) -> None:
    """A promotion reads the channel before `main`, so it does not move the channel back over another publication."""
    repository = published(tmp_path, 1)
    branch, meanwhile = run(repository, 2, "a"), iter([True])

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if request.key == f"_repository/channels/{TAG}" and next(meanwhile, False):
            repository.publish(branch, channel=TAG)
        return request.send()

    scripted(repository.root, script).channels.promote(TAG)
    assert [1, 2] == ids(repository, TAG)["a"]


def test_a_repeated_publication_brings_main_up(tmp_path: Path) -> None:
    """A repeated publication brings main up when the first one could not, although that ended the run's branch."""
    repository = published(tmp_path, 1)
    branch = run(repository, 2, "a")

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if request.key.startswith("_versions/") and request.writes:
            raise StoreError("no answer")
        return request.send()

    assert ["main"] == [each.ref for each in scripted(repository.root, script).publish(branch).lagging]
    assert [1] == in_order(repository.table("a").read("main"))
    assert () == repository.publish(branch).lagging
    assert [1, 2] == in_order(repository.table("a").read("main"))


def test_a_channel_is_created_on_purpose(tmp_path: Path) -> None:
    """A channel is created by name, once, or by a publication or promotion that asks for it."""
    repository = published(tmp_path, 2)
    repository.channels.create("staging", f"{TAG}~1", reason="review")
    assert [1] == ids(repository, "staging")["a"]
    assert 1 == repository.channels.create("staging", f"{TAG}~1").entry.number
    with pytest.raises(AlreadyExistsError):
        repository.channels.create("staging")
    repository.publish(run(repository, 3, "a"), channel="nightly", create_channel=True)
    repository.channels.promote("weekly", "main", create=True)
    assert ["nightly", TAG, "staging", "weekly"] == list(repository.channels.list())


def test_a_hold_and_a_release_reach_the_tags(tmp_path: Path) -> None:
    """While a channel is held, the tag of each of its tables is held too, until the release."""
    repository = published(tmp_path, 2)
    repository.channels.hold(TAG, reason="audit", who="Ada")
    assert ["audit", "audit"] == holds(repository)
    with raises(ProtectedError, kind="tag", name="production", refused="move"):
        repository.table("a").tags.move(TAG, "main@1", force=True)
    repository.channels.release(TAG, reason="done")
    assert [None, None] == holds(repository)


def test_a_held_channel_is_rolled_back_further(tmp_path: Path) -> None:
    """A held channel can be rolled back further, with its tags and the new reason; other moves are refused."""
    repository = published(tmp_path, 3)
    first = repository.head(f"{TAG}~2").id
    repository.channels.rollback(TAG, reason="wrong")
    assert ([1, 2], ["wrong", "wrong"]) == (ids(repository, TAG)["a"], holds(repository))
    with raises(ProtectedError, kind="channel", name="production", refused="move"):
        repository.channels.rollback(TAG, reason="forwards", to="main")
    with raises(ProtectedError, kind="channel", name="production", refused="move"):
        repository.channels.rollback(TAG, reason="free", hold=False)
    further = repository.channels.rollback(TAG, reason="worse", to=first)
    assert () == further.lagging
    assert ([1], ["worse", "worse"]) == (ids(repository, TAG)["a"], holds(repository))
    assert [1] == repository.table("a").read(TAG)["id"].to_pylist()
    repository.channels.release(TAG, reason="mended")
    assert [None, None] == holds(repository)


def test_a_hold_of_one_table_is_left_to_its_holder(tmp_path: Path) -> None:
    """A tag that a person held separately stays held, and is reported while it lags behind."""
    repository = published(tmp_path, 1)
    repository.table("a").tags.hold(TAG, reason="by hand")
    done = repository.publish(run(repository, 2, "a", "b"), channel=TAG)
    assert ["a"] == [each.table for each in done.lagging]
    assert ["by hand", None] == holds(repository)


def test_a_repair_brings_holds_up(tmp_path: Path) -> None:
    """A repair holds or releases the tags after a process died between the channel's hold or release and the tags."""
    repository = published(tmp_path, 1)
    plug = Plug(0, lambda request: request.writes and "_refs/tags" in request.key)
    with pytest.raises(PlugPulledError):
        scripted(repository.root, plug).channels.hold(TAG, reason="audit")
    assert [None, None] == holds(repository)
    repository.maintenance.repair()
    assert ["audit", "audit"] == holds(repository)
    plug = Plug(0, lambda request: request.writes and "_refs/tags" in request.key)
    with pytest.raises(PlugPulledError):
        scripted(repository.root, plug).channels.release(TAG, reason="done")
    repository.maintenance.repair()
    assert [None, None] == holds(repository)


def test_a_deleted_channel_is_kept_for_a_while(tmp_path: Path) -> None:
    """History and recent commits of a deleted channel stay readable; a new one of its name continues the numbers."""
    repository = published(tmp_path, 2)
    old = repository.head(TAG).id
    repository.channels.create("staging", TAG)
    repository.publish(run(repository, 3, "a"), channel=TAG)
    repository.channels.delete("staging", reason="over")
    assert [("delete", "over"), ("promote", "")] == [
        (entry.action, entry.reason) for entry in repository.channels.history("staging")
    ]
    now = timedelta(0)
    repository.maintenance.collect(CommitRetention(promotions=1, keep_for=timedelta(hours=1), grace=now), dry_run=False)
    assert [1, 2] == ids(repository, old)["a"]
    repository.maintenance.collect(CommitRetention(promotions=1, keep_for=now, grace=now), dry_run=False)
    with pytest.raises(NotFoundError):
        repository.at(old)
    assert 3 == repository.channels.create("staging").entry.number


def test_a_held_channel_is_not_deleted(tmp_path: Path) -> None:
    """A held channel cannot be deleted, which would bypass the hold."""
    repository = published(tmp_path, 1)
    repository.channels.hold(TAG, reason="audit")
    with raises(ProtectedError, kind="channel", name="production", refused="move"):
        repository.channels.delete(TAG, reason="over")


def test_a_tag_that_follows_a_channel_is_not_moved_alone(tmp_path: Path) -> None:
    """Moving, rolling back, holding elsewhere or deleting the tag of one table names the call for the channel."""
    repository = published(tmp_path, 2)
    tags = repository.table("a").tags
    back = rf"LanceRepository.open\('{repository.root}'\).channels.rollback\('production', tables=\['a'\], "
    for change, call in (
        (lambda: tags.move(TAG, "main@1"), back + r"to='production~1', reason='...'\)"),
        (lambda: tags.rollback(TAG), back + r"to='production~1'"),
        (lambda: tags.hold(TAG, reason="here", at="main@1"), back),
        (lambda: tags.delete(TAG), r"channels.delete\('production', reason='...'\)"),
    ):
        with pytest.raises(ProtectedError, match=call):
            change()
    # Where nothing would move, nothing is refused.
    assert "main@3" == tags.move(TAG, "main@3").ref
    assert "main@2" == tags.rollback(TAG, force=True).ref
    tags.delete(TAG, force=True)
    assert () == repository.maintenance.repair()
    assert "main@3" == tags.get(TAG).ref
    repository.channels.delete(TAG, reason="over")
    assert "main@2" == tags.move(TAG, "main@2").ref


def test_a_tag_that_a_channel_adopted_follows_it(tmp_path: Path) -> None:
    """A tag from before the repository follows the channel as soon as the channel names its table."""
    repository = published(tmp_path, 1)
    repository.channels.delete(TAG, reason="over")
    repository.channels.create(TAG, "main")
    with raises(ProtectedError, kind="tag", name="production", refused="roll back"):
        repository.table("b").tags.move(TAG, "main@1")
