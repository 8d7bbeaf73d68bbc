"""Processes that make the same operation at the same moment."""

import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import AlreadyExistsError, MergeConflictError, RefMovedError
from tests import soak
from tests.conftest import S3Storage
from tests.process_race import race
from tests.table_factory import SCHEMA, as_pylance, contents, entries, new_table

pytestmark = pytest.mark.slow

COMMITS = 6
# A soak goes on with new tables, since a manifest grows with each append.
TABLES = {"disk": 2 * soak.FACTOR, "s3": (soak.FACTOR + 1) // 2} if soak.DEEP else {"disk": 1}
APPENDS = 125 if soak.DEEP else COMMITS
_GIVEN_UP = ("Too many concurrent writers", "Failed to commit the transaction after 20 retries")


def append(storage: S3Storage, writer: int, times: int) -> list[int]:
    """Append rows in single commits, through the package or through pylance; return the acknowledged values."""
    options, acknowledged = dict(storage.storage_options), []
    table, dataset = LanceTable.open(storage.uri, options), lance.dataset(storage.uri, storage_options=options)
    for value in range(1000 * writer, 1000 * writer + times):
        if writer % 2:
            try:
                dataset.insert(entries("p", value))
            except OSError as error:
                # With many writers, pylance gives up after some attempts, and commits nothing.
                if not any(text in str(error) for text in _GIVEN_UP):
                    raise
                continue
        else:
            table.append(entries("o", value))
        acknowledged.append(value)
    return acknowledged


def replace(uri: str, key: str) -> list[int]:
    """Replace the rows of one key a few times."""
    table = LanceTable.open(uri)
    return [table.replace_where(f"key = '{key}'", entries(key, number)).number for number in range(COMMITS)]


def create(uri: str, exist_ok: bool) -> bool:  # noqa: FBT001 - a job has no keywords
    """Create a table; return whether that succeeded."""
    try:
        LanceTable.create(uri, SCHEMA, exist_ok=exist_ok)
    except AlreadyExistsError:
        return False
    return True


def fork(uri: str, exist_ok: bool) -> str | None:  # noqa: FBT001 - same
    """Create a branch; return its id, or None if the name was taken."""
    try:
        return LanceTable.open(uri).branches.create("run", exist_ok=exist_ok).id
    except AlreadyExistsError:
        return None


def move(uri: str, target: int) -> bool:
    """Move a tag from version 2 to another; return whether that succeeded."""
    table = LanceTable.open(uri)
    try:
        table.tags.move("production", f"main@{target}", expected=table.at("main@2"))
    except RefMovedError:
        return False
    return True


def merge(uri: str, branch: str) -> str | None:
    """Merge a branch; return the version, or None if it conflicts."""
    try:
        return str(LanceTable.open(uri).merge(branch))
    except MergeConflictError:
        return None


def cycle(uri: str, name: str) -> int:
    """Create, fill, merge and delete a branch a few times, as runs do."""
    table = LanceTable.open(uri)
    for number in range(COMMITS):
        branch = f"run/{name}-{number}"
        table.branches.create(branch)
        table.append(entries(name, number), branch=branch)
        table.merge(branch)
        table.branches.delete(branch)
    return COMMITS


@pytest.mark.scaled
@pytest.mark.parametrize("place", ["disk", pytest.param("s3", marks=pytest.mark.soak)])
def test_no_acknowledged_row_is_lost_between_eight_writers(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, record_property: Callable[[str, object], None]
) -> None:
    """Half of them use pylance: each row is there once, and no version number is left out."""
    found = S3Storage(str(tmp_path), {}) if place == "disk" else request.getfixturevalue("s3_storage")
    commits = 0
    for number in range(TABLES[place]):
        storage = found._replace(uri=f"{found.uri}/{number}")
        table = LanceTable.create(storage.uri, SCHEMA, storage_options=storage.storage_options)
        own = race(append, [(storage, writer, APPENDS) for writer in range(8)])
        acknowledged = [value for values in own for value in values]
        assert sorted(acknowledged) == sorted(value for _, value in contents(table))
        assert list(range(1, len(acknowledged) + 2)) == table.branches.version_numbers()
        dataset = lance.dataset(storage.uri, storage_options=dict(storage.storage_options))
        dataset.validate()
        ids = dataset.to_table(with_row_id=True)["_rowid"].to_pylist()
        assert len(acknowledged) == len(set(ids))
        commits += len(acknowledged)
        shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    record_property("commits", commits)
    record_property("given up by pylance", 8 * APPENDS * TABLES[place] - commits)


def test_replaces_of_different_rows_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Three keys of one fragment are replaced repeatedly, and only the last rows of each remain."""
    table = new_table(tmp_path)
    table.append(as_pylance(new_table(tmp_path, *(entries(key, 9) for key in "abc"))).to_table())
    numbers = race(replace, [(table.uri, key) for key in "abc"])
    assert [(key, COMMITS - 1) for key in "abc"] == contents(table)
    assert 3 * COMMITS == len({number for found in numbers for number in found})
    as_pylance(table).validate()


@pytest.mark.parametrize("exist_ok", [True, False])
def test_one_of_four_creates_a_table(tmp_path: Path, *, exist_ok: bool) -> None:
    """The others get an error, or with `exist_ok` the table."""
    uri = str(tmp_path / "table")
    assert (4 if exist_ok else 1) == sum(race(create, [(uri, exist_ok)] * 4))
    assert [1] == LanceTable.open(uri).branches.version_numbers()


@pytest.mark.parametrize("exist_ok", [True, False])
def test_four_that_create_a_branch_get_one(tmp_path: Path, *, exist_ok: bool) -> None:
    """There is one branch, whose id each caller gets."""
    table = new_table(tmp_path, entries("a", 1))
    ids = set(race(fork, [(table.uri, exist_ok)] * 4)) - {None}
    assert {table.branches.list()["run"].id} == ids
    table.append(entries("b", 2), branch="run")
    assert [("a", 1), ("b", 2)] == contents(table, "run")


def test_one_of_four_moves_a_tag(tmp_path: Path) -> None:
    """The winner's move is stored, and each loser gets an error."""
    table = new_table(tmp_path, *(entries("a", number) for number in range(6)))
    table.tags.create("production", "main@2")
    won = race(move, [(table.uri, target) for target in (3, 4, 5, 6)])
    assert 1 == sum(won)
    assert f"main@{3 + won.index(True)}" == table.tags.list()["production"].ref


def test_branches_merged_at_once_are_all_in(tmp_path: Path) -> None:
    """Four branches are merged, two of which replaced the same partition; exactly one of these succeeds."""
    table = new_table(tmp_path, entries("a", 0))
    for name in ("one", "two"):
        table.branches.create(name)
        table.append(entries(name, 1), branch=name, partitions=[name])
    for name in ("three", "four"):
        table.branches.create(name)
        table.replace_where("key = 'a'", entries("a", 3 if name == "three" else 4), branch=name, partitions=["a"])
    merged = race(merge, [(table.uri, name) for name in ("one", "two", "three", "four")])
    assert merged[0]
    assert merged[1]
    assert 1 == sum(version is not None for version in merged[2:])
    assert [("a", 3 if merged[2] else 4), ("one", 1), ("two", 1)] == contents(table)


def test_one_branch_merged_by_four_is_in_once(tmp_path: Path) -> None:
    """All processes get the version that merged it."""
    table = new_table(tmp_path, entries("a", 0))
    table.branches.create("run")
    table.append(entries("b", 1), branch="run")
    versions = race(merge, [(table.uri, "run")] * 4)
    assert {"main@3"} == set(versions)
    assert [("a", 0), ("b", 1)] == contents(table)


def test_runs_that_come_and_go_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Branches with a common prefix are created, merged and deleted concurrently, and each row arrives."""
    table = new_table(tmp_path)
    race(cycle, [(table.uri, name) for name in "abcd"])
    assert [(name, number) for name in "abcd" for number in range(COMMITS)] == contents(table)
    assert {} == table.branches.list()
    as_pylance(table).validate()
