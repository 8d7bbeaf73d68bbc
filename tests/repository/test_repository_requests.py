"""The number of requests of each operation on many tables; docs/reliability.md has the same table."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.repository.commits.ref_log import RefLogs, next_entry
from lance_dagster.types import CommitRetention
from tests.repository.scripted_repository import FAST, SCHEMA, made_by, new_repository, opened, run

TABLES = ("a", "b", "c", "d", "e")
PAGE = Path(__file__).parent.parent.parent / "docs" / "reliability.md"


def published(repository: LanceRepository, number: int, *names: str) -> int:
    """The number of requests of the publication of a run of some tables."""
    branch = run(repository, number, *names)
    return made_by(repository, lambda again: again.publish(branch, channel="production"))


def counted(root: Path) -> Iterator[tuple[str, int]]:
    """Every operation and its requests, in a repository of five tables."""
    repository = new_repository(root / "r", *TABLES)
    repository.publish(run(repository, 1, *TABLES), channel="production")
    yield "open a repository", made_by(repository, lambda again: LanceRepository.open(again.root, FAST)) + 1
    for name in TABLES:
        LanceTable.create(root / "lake" / f"{name}.lance", SCHEMA, storage_options=FAST).tags.create(
            "production", "main"
        )
    lake = LanceRepository.create(root / "lake", FAST)
    yield "adopt 5 tables with a tag each", made_by(lake, lambda again: again.adopt())
    yield "adopt, with nothing to adopt", made_by(lake, lambda again: again.adopt())
    yield "resolve a channel to its commit", made_by(repository, lambda again: again.at("production"))
    yield "find the version of one table", made_by(repository, lambda again: again.at("production")["a"].version)
    yield "fork a table, the first of a run", made_by(repository, lambda again: again.fork("a", "run/f"))
    yield "fork another table", made_by(repository, lambda again: again.fork("b", "run/f"))
    for count in (1, 2, 5):
        tables = "table" if count == 1 else "tables"
        yield f"publish {count} {tables} of 5, with a channel", published(repository, count + 1, *TABLES[:count])
    repository.publish(run(repository, 9, "a"))
    yield (
        "promote a commit that changed 1 table",
        made_by(repository, lambda again: again.channels.promote("production")),
    )
    yield "promote it again", made_by(repository, lambda again: again.channels.promote("production"))
    yield (
        "roll back a commit that changed 1 table, and hold the tags of 5",
        made_by(repository, lambda again: again.channels.rollback("production", reason="wrong")),
    )
    yield (
        "release a channel, and the tags of 5 tables",
        made_by(repository, lambda again: again.channels.release("production", reason="right")),
    )
    yield (
        "hold a channel, and the tags of 5 tables",
        made_by(repository, lambda again: again.channels.hold("production", reason="audit")),
    )
    yield "look at the status of 5 tables", made_by(repository, lambda again: again.status())
    now = timedelta(0)
    least = CommitRetention(promotions=1, keep_for=now, grace=now)
    going = len(repository.maintenance.collect(least, dry_run=True).commits)
    yield (
        f"collect {going} commits of 5 tables",
        made_by(repository, lambda again: again.maintenance.collect(least, dry_run=False)),
    )


def test_every_operation_takes_its_number_of_requests(tmp_path: Path) -> None:
    """Every operation takes the number of requests that the page has."""
    _, _, table = PAGE.read_text().partition("| operation | requests |\n|---|---|\n")
    rows = [line.strip("| ").rpartition(" | ") for line in table.partition("\n\n")[0].splitlines()]
    actual = dict(counted(tmp_path))
    assert [name for name, _, _ in rows] == [*actual]
    for name, _, expected in rows:
        # A publication moves the tag of a table while it ends the branch: the end may find the tag read or not.
        assert abs(int(expected) - actual[name]) <= (len(TABLES) if name.startswith("publish") else 0), name


@pytest.mark.parametrize("ref", ["production", "production@1"])
def test_a_long_history_costs_no_request(tmp_path: Path, ref: str) -> None:
    """A channel of 10,000 entries is resolved with as many requests as one of 10."""
    repository = new_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel="production")
    logs = RefLogs(opened(repository.root))
    entry = logs.current("channel", "production")
    found = []
    for count in (10, 10_000):
        for number in range(entry.number + 1, count + 1):
            entry = replace(next_entry(entry, "promote", entry.commit), number=number)
            assert logs.append("channel", "production", entry)
        found.append(made_by(repository, lambda again: again.at(ref)))
    assert [3 if ref == "production" else 5] * 2 == found


def test_earlier_publications_cost_no_request(tmp_path: Path) -> None:
    """The twelfth publication of a table makes as many requests as the third, whatever the earlier ones left behind."""
    repository = new_repository(tmp_path, "a", "b")
    found = [published(repository, number, "a", "b") for number in range(1, 13)]
    assert abs(found[2] - found[11]) <= len(("a", "b"))
    # Some merges look for records that they can leave out.
    assert max(found) < found[2] + 30


def test_tables_that_are_not_touched_cost_nothing(tmp_path: Path) -> None:
    """A publication of two tables makes as many requests in a repository of two as in one of seven."""
    found = []
    for names in (TABLES[:2], (*TABLES, "f", "g")):
        repository = new_repository(tmp_path / str(len(names)), *names)
        repository.publish(run(repository, 1, *names), channel="production")
        found.append(published(repository, 2, "a", "b"))
    assert abs(found[0] - found[1]) <= len(("a", "b"))


def test_a_channel_far_behind_costs_the_status_nothing(tmp_path: Path) -> None:
    """The status reads once how many commits a channel is behind `main`, and not once for each commit."""
    repository = new_repository(tmp_path, "a")
    repository.channels.create("production")
    found = []
    for number in range(1, 5):
        repository.publish(run(repository, number, "a"))
        assert number == repository.status().channels[0].behind
        found.append(made_by(repository, lambda again: again.status()))
    assert found[0] == found[3]
