"""Commits of many tables share the ranges of entries that do not change, also beside a collection."""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from lance_dagster import LanceRepository, NotFoundError
from lance_dagster.errors import CorruptFileError
from lance_dagster.repository.commits.entry_ranges import (
    FEWEST,
    EntryKind,
    RangedEntries,
    changed_entries,
    different_entries,
    stored_form,
)
from lance_dagster.repository.commits.ref_log import RANGES, RefLogs, next_entry
from lance_dagster.repository.commits.snapshot import (
    TABLE_ENTRIES,
    RepositoryCommit,
    TableVersion,
    new_commit,
    parse_commit,
)
from lance_dagster.types import CommitRetention
from tests.repository.scripted_repository import FAST, Counting, Plug, new_repository, opened, rows, run, scripted
from tests.store.scripted import PlugPulledError, Request, ScriptedStore

V = TypeVar("V")
MANY = 1000
OLD = CommitRetention(promotions=1, keep_for=timedelta(0))
NUMBERS: EntryKind[int] = EntryKind(encode=dict, parse=dict)


class Reads:
    """Reads the ranges of some entries, and counts them."""

    def __init__(self, entries: RangedEntries[int]) -> None:
        """Take the ranges."""
        self.contents = {digest: entries.content(digest) for digest in entries.digests}
        self.made: list[str] = []

    def read_ranges(self, digests: Sequence[str], kind: EntryKind[V]) -> Sequence[Mapping[str, V]]:
        """Return the entries of ranges."""
        self.made += digests
        return [kind.parse(json.loads(self.contents[digest])["entries"]) for digest in digests]


def ranged(entries: Mapping[str, int]) -> RangedEntries[int]:
    """Entries in ranges, all of them in memory."""
    split = stored_form(entries, NUMBERS)
    assert isinstance(split, RangedEntries)
    return split


def stored(entries: Mapping[str, int]) -> tuple[RangedEntries[int], Reads]:
    """Entries in ranges, none of them in memory, and what reads them."""
    split = ranged(entries)
    reads = Reads(split)
    return RangedEntries(split.ranges, NUMBERS, reads, {}), reads


def some(number: int) -> dict[str, int]:
    """Entries with these many keys."""
    return {f"shop/t{key}": key for key in range(number)}


def test_few_entries_stay_inside_of_the_commit() -> None:
    """A repository of fewer than a hundred tables makes no request more."""
    assert isinstance(stored_form(some(FEWEST - 1), NUMBERS), dict)
    assert isinstance(stored_form(some(FEWEST), NUMBERS), RangedEntries)


def test_equal_entries_have_equal_ranges_whatever_came_before() -> None:
    """After any changes the ranges are those of the entries split anew, and the entries are as of a dictionary."""
    chance = random.Random(7)
    model = some(600)
    entries, _ = stored(model)
    for _ in range(200):
        keys = [f"shop/t{chance.randrange(900)}" for _ in range(chance.choice((1, 1, 3, 40)))]
        if chance.random() < 0.3:
            # The first keys of ranges too, which decide where ranges begin.
            keys += [entry_range.first for entry_range in chance.sample(entries.ranges, 2)]
        changes = {key: None if chance.random() < 0.2 else chance.randrange(10**6) for key in keys}
        model = {key: value for key, value in {**model, **changes}.items() if value is not None}
        after = changed_entries(entries, changes)
        assert isinstance(after, RangedEntries)
        assert ranged(model).ranges == after.ranges
        assert sorted(model) == list(after)
        assert model == dict(after.items())
        older, newer = different_entries(entries, after)
        assert older == {key: value for key, value in entries.items() if after.get(key) != value}
        assert newer == {key: value for key, value in after.items() if entries.get(key) != value}
        entries = after


def test_ranges_are_removed_and_added_as_a_whole() -> None:
    """Entries may lose the first range and the last, and get them back."""
    model = some(400)
    entries = ranged(model)
    for place in (0, -1):
        gone = entries.without(entries.digests - {entries.ranges[place].digest})
        left = changed_entries(entries, dict.fromkeys(gone))
        assert ranged({key: value for key, value in model.items() if key not in gone}) == left
        assert entries == changed_entries(left, gone)


def test_only_ranges_that_change_are_read() -> None:
    """A look-up, a change and a comparison read a range; the number of entries and an equal state read none."""
    entries, reads = stored(some(MANY))
    assert len(entries) == MANY
    assert entries == ranged(some(MANY))
    assert [] == reads.made
    assert 17 == entries["shop/t17"]
    assert "shop/x" not in entries
    assert len(reads.made) <= 2
    reads.made.clear()
    after = changed_entries(entries, {"shop/t500": -1})
    assert ({"shop/t500": 500}, {"shop/t500": -1}) == different_entries(entries, after)
    assert 1 == len({*reads.made})


def at(number: int, version: int = 1) -> TableVersion:
    """A version of a table that is only an entry of commits."""
    digest = hashlib.sha256(f"{number}@{version}".encode()).hexdigest()
    return TableVersion(id=f"id-{number}", branch="main", version=version, commit_id=digest, lands=version)


def lake(root: Path, tables: int = MANY) -> LanceRepository:
    """A repository in which one table exists, and many more are named by its newest commit."""
    repository = new_repository(root, "a")
    commit_tables(repository, {f"shop/t{number}": at(number) for number in range(tables)})
    return repository


def commit_tables(
    repository: LanceRepository, changes: Mapping[str, TableVersion], logs: RefLogs | None = None
) -> RepositoryCommit:
    """Commit versions of tables without looking at the tables."""
    logs = logs or RefLogs(opened(repository.root))
    newest = logs.current("branch", "main")
    head = logs.commit(newest.commit)
    tables = changed_entries(head.tables, changes)
    commit, data = new_commit(tables, (head,), author="Ada", message="more", properties={})
    logs.put_commit(commit, data, base=head)
    assert logs.append("branch", "main", next_entry(newest, "commit", commit.id))
    return commit


def stored_bytes(root: Path) -> int:
    """The bytes of all commits and ranges."""
    return sum(path.stat().st_size for path in (root / "_repository" / "commits").rglob("*") if path.is_file())


def ranges_of(root: Path) -> set[str]:
    """The digests of the stored ranges."""
    folder = root / RANGES
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@pytest.mark.parametrize("tables", [300, 3000])
def test_a_publication_stores_what_changed(tmp_path: Path, tables: int) -> None:
    """A publication of one table stores a range, and a list of ranges of a few bytes for each table."""
    repository = lake(tmp_path, tables)
    before = stored_bytes(tmp_path)
    repository.publish(run(repository, 1, "a"))
    assert stored_bytes(tmp_path) - before < 30_000 + 3 * tables
    again = LanceRepository.open(tmp_path, FAST)
    assert tables + 1 == len(again.head().tables)
    assert [1] == again.at("main")["a"].read()["id"].to_pylist()


def test_the_requests_of_a_small_repository_stay(tmp_path: Path) -> None:
    """Commits of fewer than a hundred tables have the format of before, and no range is stored."""
    repository = lake(tmp_path, FEWEST - 2)
    repository.publish(run(repository, 1, "a"))
    assert set() == ranges_of(tmp_path)
    assert {1} == {json.loads(path.read_bytes())["format"] for path in (tmp_path / "_repository/commits").iterdir()}


def requests_of(repository: LanceRepository, act: Callable[[LanceRepository], object]) -> list[str]:
    """The requests about commits of a process that has just started."""
    counting = Counting()
    act(scripted(repository.root, counting))
    return [request for request in counting.made if "_repository/commits" in request]


def test_one_table_is_found_by_one_range(tmp_path: Path) -> None:
    """`at(ref)[table]` reads the commit and one range, however many tables there are."""
    repository = lake(tmp_path, 3000)
    made = requests_of(repository, lambda again: again.at("main")["a"].version)
    assert [1, 1] == [sum(RANGES in request for request in made), sum(RANGES not in request for request in made)]


def test_a_publication_reads_and_writes_one_range(tmp_path: Path) -> None:
    """A publication of exact versions reads no range but that of its table, and puts one."""
    repository = lake(tmp_path, 3000)
    repository.table("a").append(rows(5))
    made = requests_of(repository, lambda again: again.commit("x", tables=["a"]))
    assert ["get", "put_if_absent"] == [request.split()[0] for request in made if RANGES in request]


def test_commits_of_earlier_releases_are_read(tmp_path: Path) -> None:
    """A commit of many tables in one object is read, and the next commit stores ranges."""
    repository = new_repository(tmp_path, "a")
    logs = RefLogs(opened(repository.root))
    newest = logs.current("branch", "main")
    head = logs.commit(newest.commit)
    tables = {**head.tables, **{f"shop/t{number}": at(number) for number in range(200)}}
    commit = json.loads((tmp_path / "_repository/commits" / f"{head.id}.json").read_bytes())
    commit |= {"tables": TABLE_ENTRIES.encode(tables), "parents": [head.id], "generation": head.generation + 1}
    data = json.dumps(commit, sort_keys=True, separators=(",", ":")).encode()
    old = hashlib.sha256(data).hexdigest()
    (tmp_path / "_repository/commits" / f"{old}.json").write_bytes(data)
    logs.append("branch", "main", next_entry(newest, "commit", old))
    again = LanceRepository.open(tmp_path, FAST)
    assert tables == again.head().tables == dict(again.at(old[:12]).commit.tables)
    published = again.publish(run(again, 1, "a")).commit
    assert ("a",) == published.changed_from(again.head(old))
    assert ranges_of(tmp_path)
    assert published.id == LanceRepository.open(tmp_path, FAST).head(published.id[:8]).id


def test_a_state_has_one_digest(tmp_path: Path) -> None:
    """A commit whose tables were changed and changed back has the same ranges as before."""
    repository = lake(tmp_path)
    first = repository.head()
    commit_tables(repository, {"shop/t5": at(5, 2)})
    before = ranges_of(tmp_path)
    back = commit_tables(repository, {"shop/t5": at(5)})
    assert first.tables == back.tables
    assert before == ranges_of(tmp_path)


def backdate(root: Path) -> None:
    """Make the commits and ranges two days older."""
    past = time.time() - timedelta(days=2).total_seconds()
    for path in (root / "_repository/commits").rglob("*"):
        os.utime(path, (past, past))


def test_ranges_are_collected_with_their_commits(tmp_path: Path) -> None:
    """A collection deletes the old ranges that no commit names any more, and a dry run counts them."""
    repository = lake(tmp_path)
    commit_tables(repository, {"shop/t5": at(5, 2)})
    commit_tables(repository, {"shop/t5": at(5, 3)})
    backdate(tmp_path)
    everything = ranges_of(tmp_path)
    assert 2 == repository.maintenance.collect(OLD).ranges
    assert everything == ranges_of(tmp_path)
    assert 2 == repository.maintenance.collect(OLD, dry_run=False).ranges
    left = LanceRepository.open(tmp_path, FAST).head().tables
    assert isinstance(left, RangedEntries)
    assert left.digests == ranges_of(tmp_path)
    assert MANY + 1 == len(dict(left))


def test_young_ranges_stay(tmp_path: Path) -> None:
    """A publication may be about to store the commit that names a young range."""
    repository = lake(tmp_path)
    before = ranges_of(tmp_path)
    repository.table("a").append(rows(5))
    with pytest.raises(PlugPulledError):
        scripted(repository.root, Plug(0, _stores_a_commit)).commit("died", tables=["a"])
    assert 1 == len(ranges_of(tmp_path) - before)
    assert 0 == repository.maintenance.collect(OLD, dry_run=False).ranges
    assert 1 == len(ranges_of(tmp_path) - before)


def _stores_a_commit(request: Request) -> bool:
    return request.verb == "put_if_absent" and request.key.endswith(".json") and "/commits/" in request.key


class Beside:
    """A script that lets another process act before one of the requests."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        """Take the number of requests that are made before."""
        self.number, self.act, self.made = number, act, 0

    def __call__(self, request: Request) -> object:
        """Send the request."""
        self.made += 1
        if self.made == self.number + 1:
            self.act()
        return request.send()


def test_a_state_that_comes_back_beside_a_collection_keeps_its_ranges(tmp_path: Path) -> None:
    """Whichever request of a collection a commit of an earlier state comes before, its ranges stay."""
    for number in count():
        repository = lake(tmp_path / str(number))
        first = repository.head().tables
        commit_tables(repository, {"shop/t5": at(5, 2)})
        backdate(tmp_path / str(number))
        beside = Beside(number, partial(commit_tables, repository, {"shop/t5": at(5)}))
        scripted(repository.root, beside).maintenance.collect(OLD, dry_run=False)
        if beside.made <= number:
            break
        head = LanceRepository.open(repository.root, FAST).head()
        assert first == head.tables
        assert MANY + 1 == len(dict(head.tables)), f"the commit came before request {number}"
    assert number > 10


def test_a_collection_beside_a_state_that_comes_back_keeps_its_ranges(tmp_path: Path) -> None:
    """Whichever request of the commit of an earlier state a collection comes before, its ranges stay."""
    for number in count():
        repository = lake(tmp_path / str(number))
        commit_tables(repository, {"shop/t5": at(5, 2)})
        backdate(tmp_path / str(number))
        beside = Beside(number, partial(repository.maintenance.collect, OLD, dry_run=False))
        commit_tables(repository, {"shop/t5": at(5)}, RefLogs(ScriptedStore(opened(repository.root), beside)))
        if beside.made <= number:
            break
        head = LanceRepository.open(repository.root, FAST).head()
        assert MANY + 1 == len(dict(head.tables)), f"the collection came before request {number}"
    assert number > 5


def test_a_rollback_composes_ranges(tmp_path: Path) -> None:
    """A channel goes back for one of many tables, and the composed commit is read by others."""
    repository = lake(tmp_path)
    repository.channels.promote("production")
    repository.publish(run(repository, 1, "a"), channel="production")
    repository.publish(run(repository, 2, "a"), channel="production")
    assert {"a"} == {*repository.head("production~1").changed_from(repository.head("production"))}
    repository.channels.rollback("production", reason="wrong", tables=["a"])
    again = LanceRepository.open(tmp_path, FAST)
    assert [1] == again.at("production", tables=["a"])["a"].read()["id"].to_pylist()
    assert MANY + 1 == len(dict(again.head("production").tables))


def test_damaged_and_collected_ranges_are_named(tmp_path: Path) -> None:
    """A range with other bytes is damaged; a range that is gone was collected."""
    lake(tmp_path)
    place = tmp_path / RANGES / min(ranges_of(tmp_path))
    data = place.read_bytes()
    place.write_bytes(data.replace(b'"lands":1', b'"lands":7'))
    with pytest.raises(CorruptFileError, match="the digest of its content"):
        dict(LanceRepository.open(tmp_path, FAST).head().tables)
    place.unlink()
    with pytest.raises(NotFoundError):
        dict(LanceRepository.open(tmp_path, FAST).head().tables)


def test_ranges_that_are_not_sorted_are_refused(tmp_path: Path) -> None:
    """An entry is found by a binary search, which needs sorted ranges."""
    repository = lake(tmp_path)
    commit = json.loads((tmp_path / "_repository/commits" / f"{repository.head().id}.json").read_bytes())
    commit["tables"].reverse()
    data = json.dumps(commit).encode()
    with pytest.raises(CorruptFileError, match="not sorted"):
        parse_commit(hashlib.sha256(data).hexdigest(), data, "commit")


def test_the_first_screen_opens_no_table(tmp_path: Path) -> None:
    """The status without tables makes the same requests however many tables there are."""
    made = []
    for number in (300, 3000):
        repository = lake(tmp_path / str(number), number)
        repository.channels.promote("production", tags=False)
        counting = Counting()
        status = scripted(repository.root, counting).status(tables=[])
        assert ((), ["production"]) == (status.tables, [channel.name for channel in status.channels])
        made.append(len(counting.made))
    assert made[0] == made[1]
