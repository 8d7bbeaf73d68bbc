"""Ref expressions, resolved on a table."""

import time
from pathlib import Path
from typing import cast

import pendulum
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidInputError, RefNotFoundError, RefSyntaxError, VersionNotFoundError
from tests.raising import raises
from tests.table_factory import as_pylance, entries, new_table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """Main with versions 1 to 3, a branch of version 2 with one more, and a tag on each."""
    made = new_table(tmp_path_factory.mktemp("resolve"), entries("a", 1), entries("b", 2))
    made.branches.create("run/4f2a", "main@2")
    time.sleep(0.01)
    made.append(entries("c", 3), branch="run/4f2a")
    made.tags.create("production", "main@2")
    made.tags.create("candidate", "run/4f2a@3")
    return made


@pytest.mark.parametrize(
    "expression,version",
    [
        ("main", "main@3"),
        ("main@1", "main@1"),
        ("run/4f2a", "run/4f2a@3"),
        ("run/4f2a@2", "run/4f2a@2"),
        ("production", "main@2"),
        ("candidate", "run/4f2a@3"),
        ("main@{2100-01-01T00:00Z}", "main@3"),
        ("run/4f2a@{2100-01-01}", "run/4f2a@3"),
    ],
)
def test_an_expression_names_one_version(table: LanceTable, expression: str, version: str) -> None:
    """An expression names one version, whose text is an expression for it."""
    assert version == str(table.at(expression))
    assert version == str(table.at(version))


def test_a_time_names_the_version_that_was_newest_then(table: LanceTable) -> None:
    """A version is the newest one from the moment of its commit."""
    for number in (1, 2, 3):
        moment = table.at(f"main@{number}").committed_at
        assert number == table.at(f"main@{{{moment.isoformat()}}}").number
    before = table.at("main@3").committed_at.subtract(microseconds=1)
    assert 2 == table.at(f"main@{{{before.isoformat()}}}").number


def test_a_time_without_zone_is_utc(table: LanceTable) -> None:
    """The same text means the same on every machine."""
    moment = table.at("main@2").committed_at.in_timezone("UTC")
    assert 2 == table.at(f"main@{{{moment.naive().isoformat()}}}").number


def test_a_time_before_the_first_version_names_nothing(table: LanceTable) -> None:
    """The error names the branch."""
    with pytest.raises(VersionNotFoundError, match=r"as old as 1999.*; the oldest is main@1"):
        table.at("main@{1999-12-31}")


@pytest.mark.parametrize(
    "expression,hint",
    [
        ("prodution", "did you mean 'production'?"),
        ("run/4f2b", "did you mean 'run/4f2a'?"),
        ("Main", "did you mean 'main'?"),
        ("zzz", "known names: candidate, main, production, run/4f2a"),
        ("prodution@2", "did you mean 'production'?"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(table: LanceTable, expression: str, hint: str) -> None:
    """The error for an unknown name has the nearest names, or all when none is near."""
    with pytest.raises(RefNotFoundError) as caught:
        table.at(expression)
    assert hint == caught.value.hint
    assert f"no branch or tag {expression.split('@', maxsplit=1)[0]!r} in {table.uri}; {hint}" == str(caught.value)


@pytest.mark.parametrize(
    "expression,hint",
    [
        ("HEAD", "there is no HEAD, since nobody has a branch checked out: name the branch, such as main"),
        ("HEAD~2", "there is no HEAD, since nobody has a branch checked out: name the branch, such as main"),
        ("refs/heads/main", "write branch:main"),
        ("refs/tags/production", "write tag:production"),
    ],
)
def test_what_git_would_understand_is_translated(table: LanceTable, expression: str, hint: str) -> None:
    """For an expression of git the error has the translation of the guide for git users."""
    with raises(RefNotFoundError, kind="branch or tag") as caught:
        table.at(expression)
    assert hint == caught.value.hint


def test_a_name_of_the_wrong_kind_is_told(table: LanceTable) -> None:
    """The error for a name of the wrong kind says of which kind it is."""
    with raises(RefNotFoundError, ref="production", kind="branch"):
        table.at("branch:production")
    with raises(RefNotFoundError, ref="main", kind="tag"):
        table.at("tag:main")
    for name, said in (("production", "that is a tag"), ("main~1", "that is a version.* such as 'main'")):
        with pytest.raises(RefNotFoundError, match=rf"no branch '{name}' in .*; {said}"):
            table.head(name)


STEPS = "'~' or '^' with or without a number"
AFTER_NAME = f"nothing, '@' and a version number, '@{{time}}', {STEPS}"
TIME = "a time such as 2026-01-31T00:00Z, 2026-01-31 18:00 Europe/Berlin, 2 days ago, yesterday or P2D"


@pytest.mark.parametrize(
    "expression,position,expected",
    [
        ("", 0, "a branch or tag name"),
        ("@3", 0, "a branch or tag name"),
        (" main", 0, "a branch or tag name"),
        ("tag:", 4, "a tag name"),
        ("branch:~1", 7, "a branch name"),
        ("commit:x", 6, AFTER_NAME),
        ("main@", 4, AFTER_NAME),
        ("main@x", 4, AFTER_NAME),
        ("main@-1", 4, AFTER_NAME),
        ("main@1@2", 6, f"nothing, or {STEPS}"),
        ("main~1@2", 6, f"nothing, or {STEPS}"),
        ("main^x", 5, f"nothing, or {STEPS}"),
        ("main ", 4, AFTER_NAME),
        ("main@{a fortnight ago}", 6, TIME),
        ("main@{}", 6, TIME),
        ("main@{2026-01-01/2026-02-01}", 6, TIME),
        ("main@{2026-01-31T10:00Z Asia/Tokyo}", 6, "an offset or a zone, not both: 'Z' and 'Asia/Tokyo'"),
        ("3", 0, "a name; version 3 is written main@3, a tag of that name tag:3"),
    ],
)
def test_what_cannot_be_read_is_pointed_at(table: LanceTable, expression: str, position: int, expected: str) -> None:
    """A syntax error has the position and what could be there."""
    with pytest.raises(RefSyntaxError) as caught:
        table.at(expression)
    assert (expression, position, expected) == (caught.value.expression, caught.value.position, caught.value.expected)


@pytest.mark.parametrize("expression", ["main@0", "main@4", "run/4f2a@1", "main@9999999999999999999"])
def test_a_version_that_is_not_there_is_not_replaced_by_another(table: LanceTable, expression: str) -> None:
    """The error has the existing versions."""
    with pytest.raises(VersionNotFoundError, match=r"has no version \d+; it has \d to 3"):
        table.at(expression)


def test_a_tag_takes_no_number(table: LanceTable) -> None:
    """A tag takes no version number, since it names one version already."""
    with pytest.raises(InvalidInputError, match="is a tag"):
        table.at("production@1")
    with pytest.raises(InvalidInputError, match=r"write it without '@\{yesterday\}'"):
        table.at("production@{yesterday}~1")


def test_a_name_of_a_branch_and_a_tag_is_not_guessed(tmp_path: Path) -> None:
    """Another program can create both; the error lists them and says how each is written."""
    table = new_table(tmp_path, entries("a", 1))
    as_pylance(table).create_branch("both")
    as_pylance(table).tags.create("both", 1)
    with pytest.raises(InvalidInputError) as caught:
        table.at("both~1")
    assert str(caught.value) == (
        f"'both' is a branch and a tag of {table.uri}; write branch:both for the branch, which was forked from main@2, "
        "or tag:both for the tag, which names main@1"
    )
    assert ("both@2", "main@1") == (str(table.at("branch:both")), str(table.at("tag:both")))


def test_a_kind_of_name_is_looked_for_alone(table: LanceTable) -> None:
    """A tag is not taken for a branch, and suggested names have the right kind."""
    assert ("main@2", "run/4f2a@3") == (str(table.at("tag:production")), str(table.at("branch:run/4f2a")))
    with raises(RefNotFoundError, ref="production", kind="branch", known=("main", "run/4f2a")):
        table.at("branch:production")
    with raises(RefNotFoundError, ref="main", kind="tag", known=("candidate", "production")):
        table.at("tag:main")


@pytest.mark.parametrize("wrong", [None, 17])
def test_what_is_no_text_is_refused(table: LanceTable, wrong: object) -> None:
    """None is not `main`: it may be a version that the caller did not find."""
    with pytest.raises(InvalidInputError):
        table.at(cast("str", wrong))


def test_a_name_of_digits_is_a_tag_only_where_it_says_so(tmp_path: Path) -> None:
    """Another program can create such a tag; a plain number means a version."""
    table = new_table(tmp_path, entries("a", 1))
    as_pylance(table).tags.create("1", 2)
    assert "main@2" == str(table.at("tag:1"))
    with raises(RefSyntaxError, expression="1"):
        table.at("1")


def test_a_branch_of_digits_is_suggested_where_it_is_there(tmp_path: Path) -> None:
    """Another program can create such a branch; the suggestion names it."""
    table = new_table(tmp_path, entries("a", 1))
    as_pylance(table).create_branch("123")
    for suffix in ("", "@2", "~1"):
        with pytest.raises(RefSyntaxError) as caught:
            table.at(f"123{suffix}")
        assert (
            f"a name; the branch is written branch:123{suffix}, version 123 is written main@123, "
            "a tag of that name tag:123"
        ) == caught.value.expected
        assert ("123@2" if suffix != "~1" else "main@1") == str(table.at(f"branch:123{suffix}"))


def test_a_time_is_understood_in_any_zone(table: LanceTable) -> None:
    """The same moment in another time zone gives the same version."""
    moment = table.at("main@2").committed_at
    for zone in ("Asia/Tokyo", "America/New_York", "UTC"):
        assert 2 == table.at(f"main@{{{moment.in_timezone(pendulum.timezone(zone)).isoformat()}}}").number


def test_only_names_that_a_person_gave_are_suggested(table: LanceTable) -> None:
    """A repository leaves branches and tags of its own in each table, and nobody names these by hand."""
    for name in ("published/49f2", "published/5a01"):
        table.branches.create(name)
    table.tags.create("repository-main-4", "main@1")
    for ref in ("zzz", "published/49f3", "repository-main-5"):
        with raises(RefNotFoundError, hint="known names: candidate, main, production, run/4f2a"):
            table.at(ref)
