"""`rollback` of a repository: all tables or some, and tags that follow a channel, which are not moved alone."""

import shlex
from pathlib import Path

import pytest

from lance_dagster import LanceRepository, LanceTable
from tests.cli.running import document_of, lines_of, run
from tests.repository.scripted_repository import FAST, ids, new_repository, run as branch_of

A, B = "shop/a", "b"


@pytest.fixture
def lake(tmp_path: Path) -> LanceRepository:
    """Two tables: both were published, then each one alone."""
    repository = new_repository(tmp_path / "lake", A, B)
    for number, names in enumerate([(A, B), (A,), (B,)], start=1):
        repository.publish(branch_of(repository, number, *names), channel="production")
    return repository


def seen(lake: LanceRepository) -> tuple[list[int], list[int]]:
    """The rows that readers of the channel see in both tables."""
    found = ids(LanceRepository.open(lake.root, FAST), "production")
    return found[A], found[B]


def test_one_table_goes_back_and_the_other_stays(lake: LanceRepository) -> None:
    """`production~1` counts the promotions of the tables that go back; the channel is left free where asked."""
    back = ("--tables", A, "--to", "production~1", "--reason", "2 is wrong", "--no-hold")
    planned = document_of("rollback", lake.root, *back, "--dry-run")
    assert planned == document_of("rollback", lake.root, *back[:4], "--no-hold", "--dry-run")
    assert (([1, 2], [1, 3]), True, False) == (seen(lake), planned["dry_run"], planned["moved"])
    assert [{"name": A, "before": "main@3", "after": "main@2"}] == planned["tables"]
    line, table = lines_of("rollback", lake.root, *back)
    assert ("production: ", f"  {A}: main@3 -> main@2") == (line[:12], table)
    assert ([1], [1, 3]) == seen(lake)
    assert None is LanceRepository.open(lake.root, FAST).channels.get("production").hold
    assert 0 == run("rollback", lake.root, "--tables", B, "--to", "production~1", "--reason", "3 is wrong").exit_code
    assert ([1], [1]) == seen(lake)


def test_tables_that_were_promoted_with_those_that_go_back_are_named(lake: LanceRepository) -> None:
    """Tables are separated by commas or given one by one; what the same promotions moved, and stays, is named."""
    lake.publish(branch_of(lake, 4, A, B), channel="production")
    alone = lines_of("rollback", lake.root, "--tables", B, "--reason", "4 is wrong", "--dry-run")
    assert f"not taken back, though the same promotions moved it: {A}; --tables takes more names" == alone[-1]
    for tables in (["--tables", f"{A}, {B}"], ["--tables", A, "--tables", B]):
        both = document_of("rollback", lake.root, *tables, "--reason", "4 is wrong", "--dry-run")
        assert ([], [B, A]) == (both["left"], sorted(move["name"] for move in both["tables"]))


@pytest.mark.parametrize(
    "words,code,said",
    [
        ((), 2, "missing option '--reason'"),
        (("production~1", "--reason", "q"), 2, "a ref is given as --to REF; see"),
        (("--reason", "q", "--to", "main", "--steps", "1"), 2, "give --steps or --to, not both"),
        (("--reason", "q", "--tables", "c"), 2, "has no table 'c'; its tables: b, shop/a"),
        (("--reason", "q", "--tables", "b", "--steps", "2"), 2, "production can be followed back by 1 promotion of b"),
        (("--reason", "q", "--channel", "prodution"), 2, "did you mean 'production'"),
    ],
)
def test_a_wrong_rollback_changes_nothing(lake: LanceRepository, words: tuple[str, ...], code: int, said: str) -> None:
    """A wrong call is one line that says what would be right, and readers see what they saw."""
    refused = run("rollback", lake.root, *words)
    assert (code, 1) == (refused.exit_code, refused.stderr.count("\n"))
    assert said in refused.stderr
    assert ([1, 2], [1, 3]) == seen(lake)


def test_a_held_channel_is_not_left_free_by_a_rollback(lake: LanceRepository) -> None:
    """A rollback without a hold of a held channel is refused with exit code 1, and the command that releases it."""
    lake.channels.hold("production", reason="audit")
    refused = run("rollback", lake.root, "--reason", "wrong", "--no-hold")
    release = f"`lance-dagster release {lake.root} --channel production --reason ...`"
    assert (1, True) == (refused.exit_code, release in refused.stderr)


@pytest.mark.parametrize(
    "command,remedy",
    [
        (("promote",), "promote {root} --channel production --at main"),
        (("promote", "--at", "main@1"), "rollback {root} --channel production --tables shop/a --to 'production~1'"),
        (("rollback",), "rollback {root} --channel production --tables shop/a --to 'production~1' --reason ..."),
        (("rollback", "--to", "main@1"), "rollback {root} --channel production --tables shop/a --to 'production~1'"),
        (("tag", "production", "--delete"), "delete-channel {root} production --reason ..."),
    ],
)
def test_a_tag_that_follows_a_channel_is_not_changed_alone(
    lake: LanceRepository, command: tuple[str, ...], remedy: str
) -> None:
    """It is refused with exit code 1 and the command for the channel, which can be typed; with --force it is done."""
    table = lake.table(A)
    # `promote` has something to do.
    table.overwrite(table.read("main"))
    name, *options = command
    refused = run("table", name, table.uri, *options)
    assert (1, 1, "") == (refused.exit_code, refused.stderr.count("\n"), refused.stdout)
    assert f"`lance-dagster {remedy.format(root=lake.root)}" in refused.stderr
    assert "main@3" == table.tags.get("production").ref
    words = shlex.split(refused.stderr.partition("`lance-dagster ")[2].partition("`")[0])
    assert 0 == run(*words).exit_code


@pytest.mark.parametrize("options", [(), ("--to", "main@2")])
def test_a_tag_is_moved_alone_by_force(lake: LanceRepository, options: tuple[str, ...]) -> None:
    """With --force the tag goes back, and the status says that it no longer follows."""
    assert ["production: main@3 -> main@2"] == lines_of("table", "rollback", lake.table(A).uri, *options, "--force")
    assert [{}, {"production": "main@2"}] == [state.moved_tags for state in lake.status().tables]
    assert ["production: main@2 -> main@3"] == lines_of("table", "promote", lake.table(A).uri, "--force")


def test_a_table_without_a_repository_has_its_tag(tmp_path: Path, lake: LanceRepository) -> None:
    """A copy of a table outside of the repository follows nothing; the command of a lake refuses a table."""
    table = lake.table(A)
    (tmp_path / "alone").mkdir()
    Path(table.uri).rename(tmp_path / "alone" / "a.lance")
    copy = LanceTable.open(tmp_path / "alone" / "a.lance")
    assert ["production: main@3 -> main@2"] == lines_of("table", "rollback", copy.uri)
    refused = run("rollback", copy.uri, "--reason", "q")
    assert (2, 1, True) == (
        refused.exit_code,
        refused.stderr.count("\n"),
        "is a table, and rollback needs" in refused.stderr,
    )


def test_a_tag_of_a_deleted_channel_is_free(lake: LanceRepository) -> None:
    """After its channel was deleted, a tag follows nothing, and is moved like any other."""
    lake.channels.delete("production", reason="over")
    assert ["production: main@3 -> main@2"] == lines_of("table", "rollback", lake.table(A).uri)
