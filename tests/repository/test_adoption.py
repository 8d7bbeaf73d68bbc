"""Existing tables become part of a repository, and readers of their tags see the same rows as before."""

import shutil
from contextlib import suppress
from pathlib import Path

import lance
import pytest

from lance_dagster import AlreadyExistsError, LanceRepository, LanceTable, RefNotFoundError, TableNotFoundError
from tests.process_race import race
from tests.repository.scripted_repository import (
    FAST,
    Plug,
    ids,
    in_order,
    made_by,
    new_repository,
    rows,
    run,
    scripted,
    seen,
)
from tests.store.scripted import PlugPulledError

TAG = "production"


def table(root: Path, name: str, *, tagged: bool = False, ahead: bool = False) -> LanceTable:
    """A table with one row that is tagged, and with one more row on main."""
    made = LanceTable.create(root / f"{name}.lance", rows().schema, storage_options=FAST)
    made.append(rows(1))
    if tagged:
        made.tags.create(TAG, "main")
    if ahead:
        made.append(rows(2))
    return made


def adopt_all(root: str, _: int) -> list[str]:
    """Adopt all tables, as one of several processes; return the tables that this one has adopted."""
    return list(LanceRepository.open(root, FAST).adopt().tables)


def test_a_channel_begins_where_the_tags_are(tmp_path: Path) -> None:
    """After an adoption, main has tables at their newest version, and the channel has them at their tag, if any."""
    table(tmp_path, "shop/orders", tagged=True, ahead=True)
    table(tmp_path, "shop/lines", tagged=True)
    table(tmp_path, "raw")
    repository = LanceRepository.create(tmp_path, FAST)
    done = repository.adopt()
    assert {"raw": [1], "shop/lines": [1], "shop/orders": [1, 2]} == ids(repository, "main")
    assert {"shop/lines": [1], "shop/orders": [1]} == ids(repository, TAG)
    assert ("raw", "shop/lines", "shop/orders") == done.tables
    assert {"shop/lines": "main@2", "shop/orders": "main@2"} == done.channels[TAG].tables
    assert (("shop/orders",), ()) == (done.channels[TAG].behind_main, done.skipped)
    assert "main@2" == repository.table("shop/orders").tags.get(TAG).ref
    assert () == repository.maintenance.repair()


def test_an_adoption_can_be_repeated(tmp_path: Path) -> None:
    """A repeated adoption does not change tables of the repository, even if their main or tag has moved since."""
    orders = table(tmp_path, "orders", tagged=True)
    repository = LanceRepository.create(tmp_path, FAST)
    first = repository.adopt()
    orders.append(rows(2))
    orders.tags.move(TAG, "main", force=True)
    again = repository.adopt()
    assert (first.commit.id, (), {}) == (again.commit.id, again.tables, again.channels)
    assert ({"orders": [1]}, {"orders": [1]}) == (ids(repository, "main"), ids(repository, TAG))


def test_a_table_that_comes_later_joins_the_channel(tmp_path: Path) -> None:
    """A table that is adopted later joins the existing channel at its tag, and the other tables do not move."""
    repository = new_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel=TAG)
    repository.publish(run(repository, 2, "a"))
    table(tmp_path, "late", tagged=True, ahead=True)
    repository.adopt()
    assert {"a": [1], "late": [1]} == ids(repository, TAG)
    assert {"a": [1, 2], "late": [1, 2]} == ids(repository, "main")
    assert {"a": [1]} == ids(repository, f"{TAG}~1")


def test_a_publication_without_news_does_not_move_the_channel_to_main(tmp_path: Path) -> None:
    """The channel stays at the tag of a table whose main is ahead of it."""
    orders = table(tmp_path, "orders", tagged=True, ahead=True)
    repository = LanceRepository.create(tmp_path, FAST)
    repository.adopt()
    orders.branches.create("empty")
    repository.publish("empty", tables=["orders"], channel=TAG)
    assert {"orders": [1]} == ids(repository, TAG)


def test_a_held_tag_holds_the_channel(tmp_path: Path) -> None:
    """The channel is held with the reason of a held tag, and a release of the channel releases the tag."""
    orders = table(tmp_path, "orders", tagged=True, ahead=True)
    orders.tags.hold(TAG, reason="doubled rows")
    repository = LanceRepository.create(tmp_path, FAST)
    hold = repository.adopt().channels[TAG].channel.hold
    assert hold is not None
    assert "doubled rows" == hold.reason
    table(tmp_path, "late", tagged=True)
    assert [f"tag {TAG} of late: channel {TAG} is {hold}"] == list(repository.adopt().skipped)
    repository.channels.release(TAG, reason="mended")
    assert orders.tags.get(TAG).hold is None
    assert {"late": "main@2"} == repository.adopt().channels[TAG].tables


def test_a_tag_of_a_branch_is_kept_by_a_fork(tmp_path: Path) -> None:
    """The rows that a tag names on a branch stay readable by the channel and by the tag."""
    orders = table(tmp_path, "orders")
    orders.branches.create("fix")
    orders.append(rows(7), branch="fix")
    orders.tags.create(TAG, "fix")
    repository = LanceRepository.create(tmp_path, FAST)
    repository.adopt()
    assert {"orders": [1, 7]} == ids(repository, TAG)
    assert [1, 7] == in_order(lance.dataset(orders.uri, version=TAG).to_table())
    assert () == repository.maintenance.repair()
    assert {} == repository.status().tables[0].moved_tags


def test_what_cannot_be_adopted_is_named(tmp_path: Path) -> None:
    """A search skips and names a copy, a damaged table and a tag without a version; by name they are refused."""
    table(tmp_path, "orders", tagged=True)
    repository = LanceRepository.create(tmp_path, FAST)
    repository.adopt()
    shutil.copytree(tmp_path / "orders.lance", tmp_path / "copy.lance")
    table(tmp_path, "damaged")
    for manifest in (tmp_path / "damaged.lance" / "_versions").iterdir():
        manifest.write_bytes(b"no manifest")
    gone = table(tmp_path, "gone", tagged=True)
    tag = tmp_path / "gone.lance" / "_refs" / "tags" / f"{TAG}.json"
    tag.write_text(tag.read_text().replace('"version":2', '"version":9').replace('"version": 2', '"version": 9'))
    done = repository.adopt()
    assert ("gone",) == done.tables
    starts = ("copy: the table at", "damaged: ", f"tag {TAG} of gone: ")
    assert [True, True, True] == [text.startswith(start) for text, start in zip(done.skipped, starts, strict=True)]
    assert gone.uri in done.skipped[2]
    with pytest.raises(AlreadyExistsError):
        repository.adopt(["copy"])
    with pytest.raises(TableNotFoundError):
        repository.adopt(["nowhere"])


def test_a_removed_table_stays_removed(tmp_path: Path) -> None:
    """A removed table is adopted again by its name, or the name that it was moved to, but not by a search."""
    repository = new_repository(tmp_path, "a", "b")
    repository.remove_table("a")
    assert ((), ["a"]) == (repository.adopt().tables, repository.discover())
    assert ("a",) == repository.adopt(["a"]).tables
    assert () == repository.adopt().tables
    repository.remove_table("a")
    (tmp_path / "a.lance").rename(tmp_path / "c.lance")
    assert ("c",) == repository.adopt(["c"]).tables
    assert {"a": [], "b": []} == ids(repository, "main~2")


def test_a_deleted_channel_does_not_come_back(tmp_path: Path) -> None:
    """Tags that a deleted channel left behind do not create the channel again."""
    repository = new_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel=TAG)
    repository.channels.delete(TAG, reason="no longer")
    assert {} == repository.adopt().channels
    with pytest.raises(RefNotFoundError):
        repository.at(TAG)


def test_three_processes_adopt_at_once(tmp_path: Path) -> None:
    """When three processes adopt at once, each table is adopted once, and the channel has one entry with all."""
    names = [f"t{number}" for number in range(6)]
    for name in names:
        table(tmp_path, name, tagged=True, ahead=name == "t0")
    repository = LanceRepository.create(tmp_path, FAST)
    taken = race(adopt_all, [(str(tmp_path), number) for number in range(3)])
    assert names == sorted(name for each in taken for name in each)
    assert {name: [1] for name in names} == ids(repository, TAG)
    assert 1 == len(repository.channels.history(TAG))
    assert 2 == len(repository.log())


def test_an_adoption_that_died_is_finished(tmp_path: Path) -> None:
    """An adoption that died before any writing request, and is repeated, has the tables and the channel once."""
    for step in range(100):
        root = tmp_path / str(step)
        table(root, "a", tagged=True, ahead=True)
        table(root, "b", tagged=True)
        repository = LanceRepository.create(root, FAST)
        plug = Plug(step, lambda request: request.writes)
        with suppress(PlugPulledError):
            scripted(repository.root, plug).adopt()
        repository.adopt()
        found = seen(repository)
        assert ({"a": [1, 2], "b": [1]}, {"a": [1], "b": [1]}) == (found["main"], found[TAG])
        assert (1, 2) == (len(repository.channels.history(TAG)), len(repository.log()))
        if not plug.pulled:
            assert step
            return


def test_an_adoption_is_linear(tmp_path: Path) -> None:
    """Each table costs the same number of requests, however many there are; an adoption of nothing costs very few."""
    found = {}
    for count in (2, 4, 8):
        for number in range(count):
            table(tmp_path / str(count), f"t{number}", tagged=True)
        repository = LanceRepository.create(tmp_path / str(count), FAST)
        found[count] = made_by(repository, lambda again: again.adopt())
        assert 8 >= made_by(repository, lambda again: again.adopt())
    assert 2 * (found[4] - found[2]) == found[8] - found[4]
