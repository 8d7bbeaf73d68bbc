"""A held tag cannot move until it is released with a reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidInputError, ProtectedError, RefMovedError
from lance_dagster.history.refs.tag_hold import HOLDS, holds_of
from tests.cli.running import document_of, lines_of, run
from tests.process_race import race
from tests.table_factory import as_pylance, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with versions 1 to 4 and a held tag on version 3."""
    made = new_table(tmp_path, *(entries("a", value) for value in range(3)))
    for number in (2, 3):
        made.tags.move("production", f"main@{number}")
    made.tags.hold("production", reason="bad prices", who="ada")
    return made


def test_a_held_tag_is_not_changed(table: LanceTable) -> None:
    """It cannot be moved, rolled back, renamed or deleted; the error has who, why and how to release it."""
    tags = table.tags
    calls: list[Callable[[], object]] = [
        lambda: tags.move("production", "main@4"),
        lambda: tags.rollback("production"),
        lambda: tags.rename("production", "live"),
        lambda: tags.delete("production", force=True),
        lambda: tags.hold("production", reason="another"),
        lambda: tags.hold("production", reason="another", at="main@1"),
    ]
    for call in calls:
        with pytest.raises(ProtectedError, match=r"held by ada since .*: bad prices; tags\.release"):
            call()
    assert "main@3" == tags.get("production").ref
    assert "main@3" == tags.move("production", "main@3").ref
    assert tags.get("production") == tags.hold("production", reason="bad prices", who="bob")


def test_a_released_tag_moves_again(table: LanceTable) -> None:
    """The record keeps the hold with its release; a second release changes nothing."""
    tags = table.tags
    freed = tags.release("production", reason="prices mended", who="bob")
    assert None is freed.hold
    (hold,) = freed.holds
    assert ("main@3", "bad prices", "ada") == (hold.version, hold.reason, hold.held_by)
    assert ("prices mended", "bob", True) == (hold.release_reason, hold.released_by, hold.released_at is not None)
    assert freed == tags.release("production", reason="again")
    assert "main@4" == tags.move("production", "main@4").ref
    assert 2 == len(tags.hold("production", reason="worse").holds)


def test_a_tag_is_moved_and_held_at_once(table: LanceTable) -> None:
    """Move and hold are one swap, which no publisher can precede; the move is in the history."""
    tags = table.tags
    tags.release("production", reason="prices mended")
    with pytest.raises(RefMovedError):
        tags.hold("production", reason="worse", at="main@2", expected="main@1")
    held = tags.hold("production", reason="worse", at="main@2", expected="main@3", metadata={"why": "x"})
    assert ("main@2", "worse", "main@2") == (held.ref, held.hold and held.hold.reason, held.hold and held.hold.version)
    newest = tags.history("production")[0]
    assert ("main@3", "main@2", {"why": "x"}) == (newest.before, newest.after, newest.metadata)


def test_a_hold_where_the_tag_is_takes_no_target(table: LanceTable) -> None:
    """Without `at` nothing would be compared and no metadata stored, so both are refused."""
    table.tags.create("other", "main@1")
    wrong: list[dict[str, Any]] = [{"expected": "main@2"}, {"metadata": {"why": "x"}}]
    for given in wrong:
        with pytest.raises(InvalidInputError):
            table.tags.hold("other", reason="worse", **given)
    assert None is table.tags.get("other").hold


@pytest.mark.parametrize("reason", ["", "  ", "x" * 3000])
def test_a_reason_is_needed(table: LanceTable, reason: str) -> None:
    """A hold and a release both need a short reason."""
    table.tags.create("other", "main@1")
    for change in (table.tags.hold, table.tags.release):
        with pytest.raises(InvalidInputError):
            change("other", reason=reason)


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"a": 1}', '[{"version": "main@1"}]', "[" * 100_000])
def test_a_damaged_record_is_a_hold(text: str) -> None:
    """Otherwise a tag that was held could move."""
    (hold,) = holds_of({HOLDS: text})
    assert "cannot be read" in hold.reason


def test_pylance_reads_a_held_tag(table: LanceTable) -> None:
    """The hold is in the metadata of the tag, which pylance keeps."""
    dataset = as_pylance(table)
    assert 3 == dataset.tags.list()["production"]["version"]
    dataset.tags.update("production", 4)
    held = table.tags.get("production")
    assert ("main@4", "bad prices") == (held.ref, held.hold and held.hold.reason)


def test_the_command_holds_and_releases(table: LanceTable) -> None:
    """`tags` and `status` show the reason; a refusal names the command that releases the tag."""
    refused = run("table", "promote", table.uri)
    assert (1, True) == (refused.exit_code, "production --release ...`" in refused.stderr), refused.stderr
    assert "held by ada since" in lines_of("table", "tags", table.uri)[0]
    assert any("bad prices" in line for line in lines_of("table", "status", table.uri))
    assert "bad prices" == document_of("table", "tags", table.uri)[0]["hold"]["reason"]
    assert ["production: main@3, released"] == lines_of("table", "tag", table.uri, "production", "--release", "mended")
    assert "worse" == document_of("table", "tag", table.uri, "production", "--hold", "worse")["hold"]["reason"]
    assert 2 == run("table", "tag", table.uri, "production", "--hold", "worse", "--release", "x").exit_code
    assert 2 == run("table", "tag", table.uri, "production", "--release", " ").exit_code


def compete(table: LanceTable, number: int) -> bool:
    """Hold the tag at main@1, or move it elsewhere."""
    try:
        if number == 0:
            table.tags.hold("production", reason="stop", at="main@1")
        else:
            table.tags.move("production", f"main@{2 + number % 3}")
    except (ProtectedError, RefMovedError):
        return False
    return True


def test_a_hold_and_moves_do_not_cross(table: LanceTable) -> None:
    """In any order of processes, a tag is at the version of its hold if the hold succeeded."""
    table.tags.release("production", reason="go")
    results = race(compete, [(table, number) for number in range(3)])
    held = table.tags.get("production")
    assert results[0] == (held.hold is not None)
    if held.hold is not None:
        assert "main@1" == held.hold.version == held.ref
