"""Which versions the rules keep, tested on numbers and times without tables."""

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from lance_dagster.errors import InvalidInputError
from lance_dagster.gc.retention import (
    Dated,
    Retention,
    Rule,
    duration,
    duration_text,
    reasons_to_keep,
    retention_from_json,
)

DAY = 86400.0
NOW = 100 * DAY


def dated(*times: tuple[float, float]) -> list[tuple[Dated, int]]:
    """Versions numbered from 1, by the time in the manifest and the time of storage."""
    return [(Dated(len(times) - number, *both), number + 1) for number, both in enumerate(times)]


def line(*days_ago: float) -> list[tuple[Dated, int]]:
    """Versions numbered from 1, made the given numbers of days ago."""
    return dated(*((NOW - ago * DAY, NOW - ago * DAY) for ago in days_ago))


def reasons(versions: list[tuple[Dated, int]], *rules: Rule) -> dict[int, str]:
    """The reason to keep each version that is kept."""
    return {number: why for number, why in reasons_to_keep(rules, versions, NOW) if why is not None}


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
    """The newest version older than the window stays, because it was in use when the window began."""
    rule = Rule(older_than=timedelta(days=days), keep_last=last)
    assert expected == reasons(line(*days_ago), rule).keys()


def test_the_reasons_say_which_rule_it_was() -> None:
    """The reason is the newest version, the newest few, or the window."""
    rule = Rule(older_than=timedelta(days=7), keep_last=2)
    assert {
        2: "in use during the last 7d",
        3: "one of the newest 2",
        4: "the newest",
    } == reasons(line(20, 10, 3, 1), rule)


def test_a_version_goes_when_all_rules_let_it_go() -> None:
    """The reason comes from the first rule that keeps the version."""
    week, two = Rule(older_than=timedelta(days=7)), Rule(older_than=timedelta(0), keep_last=2)
    assert {3: "one of the newest 2", 4: "the newest"} == reasons(line(30, 20, 10, 8), week, two)
    assert {2: "in use during the last 7d", 3: "in use during the last 7d", 4: "the newest"} == reasons(
        line(30, 20, 3, 1), week, two
    )


def test_versions_are_told_one_by_one() -> None:
    """Each version is decided once the next one is known, so that at most two are in memory."""
    seen: list[int] = []

    def listed() -> Iterator[tuple[Dated, int]]:
        for version in line(3, 2, 1):
            seen.append(version[1])
            yield version

    assert [(1, [1, 2]), (2, [1, 2, 3]), (3, [1, 2, 3])] == [
        (number, list(seen)) for number, _ in reasons_to_keep([Rule()], listed(), NOW)
    ]


@pytest.mark.parametrize("days,expected", [(5, {5}), (15, {3, 4, 5}), (25, {2, 3, 4, 5}), (35, {1, 2, 3, 4, 5})])
def test_a_time_is_the_later_one_and_never_goes_back(days: int, expected: set[int]) -> None:
    """A slow clock does not make a version older than the one before it."""
    ago = ((50, 40), (99, 30), (20, 99), (99, 10), (99, 99))
    versions = dated(*((NOW - said * DAY, NOW - stored * DAY) for said, stored in ago))
    assert expected == reasons(versions, Rule(older_than=timedelta(days=days))).keys()


def test_a_version_that_follows_one_from_the_future_stays() -> None:
    """The real time of such a version is unknown."""
    versions = dated((0, 0), (NOW + DAY, NOW - 50 * DAY), (1, 1), (1, 1))
    assert {1, 2, 3, 4} == reasons(versions, Rule(older_than=timedelta(days=7))).keys()


def test_the_first_pattern_that_fits_counts() -> None:
    """Other branches have the general rule."""
    week, day, month = (Rule(older_than=timedelta(days=days)) for days in (7, 1, 30))
    rules = Retention(default=month, branches={"run/a*": day, "run/*": week})
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
    """A duration is a number and a unit, and is written back as the same duration."""
    assert expected == duration(text)
    assert expected == duration(duration_text(expected))


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7 days", "1d2h", "7D", "1.5d", "9" * 30 + "d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """The error has an example."""
    with pytest.raises(InvalidInputError, match="is not a duration; write it as 7d"):
        duration(text)


def test_rules_are_read_from_the_settings() -> None:
    """A rule for branches inherits what it leaves out from the general rule."""
    text = '{"older_than": "30d", "keep_last": 5, "branches": {"run/*": {"older_than": "2d"}, "dev": {"keep_last": 9}}}'
    month, two = timedelta(days=30), timedelta(days=2)
    assert Retention(
        default=Rule(older_than=month, keep_last=5),
        branches={"run/*": Rule(older_than=two, keep_last=5), "dev": Rule(older_than=month, keep_last=9)},
    ) == retention_from_json(text)
    assert Retention() == retention_from_json("{}")


@pytest.mark.parametrize(
    "text,said",
    [
        ("7d", "is not JSON"),
        ('"7d"', "is not a JSON object"),
        ('{"older": "7d"}', 'must be a JSON object with "older_than", "keep_last" or both'),
        ('{"older_than": 7}', 'must be text such as "7d"'),
        ('{"older_than": "soon"}', "is not a duration"),
        ('{"keep_last": "5"}', "must be a number"),
        ('{"keep_last": true}', "must be a number"),
        ('{"keep_last": 0}', "the newest version of a branch stays"),
        ('{"branches": ["run/*"]}', "maps patterns of names to rules"),
        ('{"branches": {"run/*": "7d"}}', "a rule in the setting"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps({"branches": {"[" * 257: {}}}), "a pattern has at most 256 characters"),
    ],
)
def test_rules_that_cannot_be_read_are_refused(text: str, said: str) -> None:
    """Ignoring such rules would delete what they keep."""
    with pytest.raises(InvalidInputError, match=said):
        retention_from_json(text)


@pytest.mark.parametrize("rule", [{"older_than": timedelta(days=-1)}, {"keep_last": 0}])
def test_a_rule_makes_sense(rule: dict[str, object]) -> None:
    """An age must not be negative, and each branch keeps at least one version."""
    with pytest.raises(InvalidInputError):
        Rule(**rule)  # type: ignore[arg-type]
