"""Which versions rules keep: numbers and times, no tables."""

from datetime import timedelta

import pytest

from lance_dagster.changes.retention import (
    Dated,
    Retention,
    Rule,
    duration,
    duration_text,
    kept,
    retention_from_json,
    times,
)
from lance_dagster.errors import InvalidInputError

DAY = 86400.0
NOW = 100 * DAY


def line(*days_ago: float) -> list[Dated]:
    """Versions from 1 on, each made so many days ago."""
    return [Dated(number, NOW - ago * DAY, NOW - ago * DAY) for number, ago in enumerate(days_ago, 1)]


@pytest.mark.parametrize(
    "days,last,days_ago,expected",
    [
        (7, 1, (30, 20, 10, 3, 1), {3, 4, 5}),
        (7, 1, (30, 20, 10), {3}),
        (7, 1, (30,), {1}),
        (7, 1, (), set()),
        (0, 1, (3, 2, 1), {3}),
        (0, 2, (3, 2, 1), {2, 3}),
        (0, 9, (3, 2, 1), {1, 2, 3}),
        (100, 1, (30, 20, 10), {1, 2, 3}),
        (10, 1, (30, 20, 10), {3}),
        (10.1, 1, (30, 20, 10), {2, 3}),
    ],
)
def test_what_was_in_use_stays(days: float, last: int, days_ago: tuple[float, ...], expected: set[int]) -> None:
    """The newest version older than the window stays, since it was in use when the window began."""
    rule = Rule(older_than=timedelta(days=days), keep_last=last)
    assert expected == kept(rule, line(*days_ago), NOW).keys()


def test_the_reasons_say_which_rule_it_was() -> None:
    """The newest, its neighbours, the window."""
    rule = Rule(older_than=timedelta(days=7), keep_last=2)
    assert {
        2: "in use during the last 7d",
        3: "one of the newest 2",
        4: "the newest",
    } == kept(rule, line(20, 10, 3, 1), NOW)


def test_a_time_is_the_later_one_and_never_goes_back() -> None:
    """A clock that was behind makes nothing look older than what came before it."""
    versions = [Dated(1, 10, 30), Dated(2, 20, 5), Dated(3, 40, 1), Dated(4, 7, 8)]
    assert [30, 30, 40, 40] == list(times(versions))


def test_a_version_that_follows_one_from_the_future_stays() -> None:
    """Nobody knows when it really was made."""
    ahead = Dated(2, NOW + DAY, NOW - 50 * DAY)
    versions = [Dated(1, 0, 0), ahead, Dated(3, 1, 1), Dated(4, 1, 1)]
    assert {1, 2, 3, 4} == kept(Rule(older_than=timedelta(days=7)), versions, NOW).keys()


def test_the_first_pattern_that_fits_counts() -> None:
    """Others are for the rest."""
    week, day, month = (Rule(older_than=timedelta(days=days)) for days in (7, 1, 30))
    rules = Retention(rest=month, branches={"run/a*": day, "run/*": week})
    assert (day, week, month, month) == tuple(map(rules.rule, ("run/ab/c", "run/b", "main", "Run/b")))


@pytest.mark.parametrize(
    "text,expected",
    [
        ("7d", timedelta(days=7)),
        ("2w", timedelta(days=14)),
        (" 36h ", timedelta(hours=36)),
        ("90m", timedelta(minutes=90)),
        ("0s", timedelta(0)),
        ("5 d", timedelta(days=5)),
    ],
)
def test_a_duration_is_read(text: str, expected: timedelta) -> None:
    """A number and a unit; written again, it is the same duration."""
    assert expected == duration(text)
    assert expected == duration(duration_text(expected))


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7 days", "1d2h", "7D", "1.5d", "9" * 30 + "d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """With what one looks like."""
    with pytest.raises(InvalidInputError, match="is no duration; write it as 7d"):
        duration(text)


def test_rules_are_read_from_the_settings() -> None:
    """What a rule for branches leaves out is as in the rest."""
    text = '{"older_than": "30d", "keep_last": 5, "branches": {"run/*": {"older_than": "2d"}, "dev": {"keep_last": 9}}}'
    month, two = timedelta(days=30), timedelta(days=2)
    assert Retention(
        rest=Rule(older_than=month, keep_last=5),
        branches={"run/*": Rule(older_than=two, keep_last=5), "dev": Rule(older_than=month, keep_last=9)},
    ) == retention_from_json(text)
    assert Retention() == retention_from_json("{}")


@pytest.mark.parametrize(
    "text,said",
    [
        ("7d", "is no JSON"),
        ('"7d"', "is no JSON object"),
        ('{"older": "7d"}', 'has "older_than", "keep_last" and nothing else'),
        ('{"older_than": 7}', 'is a text such as "7d"'),
        ('{"older_than": "soon"}', "is no duration"),
        ('{"keep_last": "5"}', "is a number"),
        ('{"keep_last": true}', "is a number"),
        ('{"keep_last": 0}', "the newest version of a branch stays"),
        ('{"branches": ["run/*"]}', "maps patterns of names to rules"),
        ('{"branches": {"run/*": "7d"}}', "a rule in the setting"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_rules_that_cannot_be_read_are_refused(text: str, said: str) -> None:
    """Going on without them would delete what they keep."""
    with pytest.raises(InvalidInputError, match=said):
        retention_from_json(text)


@pytest.mark.parametrize("rule", [{"older_than": timedelta(days=-1)}, {"keep_last": 0}])
def test_a_rule_makes_sense(rule: dict[str, object]) -> None:
    """No negative age, and a branch keeps a version."""
    with pytest.raises(InvalidInputError):
        Rule(**rule)  # type: ignore[arg-type]
