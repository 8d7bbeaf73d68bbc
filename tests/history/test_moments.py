"""Points in time in the notations that people use."""

import re

import pendulum
import pytest

from lance_dagster.history.resolve import parse_moment

EXPECTED = "a time such as 2026-01-31T00:00Z, 2026-01-31 18:00 Europe/Berlin, 2 days ago, yesterday or P2D"
NOW = pendulum.datetime(2026, 3, 31, 12, 30, 15)


@pytest.mark.parametrize(
    "text,moment",
    [
        ("now", "2026-03-31T12:30:15Z"),
        ("yesterday", "2026-03-30T12:30:15Z"),
        ("Yesterday", "2026-03-30T12:30:15Z"),
        ("1 second ago", "2026-03-31T12:30:14Z"),
        ("2 minutes ago", "2026-03-31T12:28:15Z"),
        ("1 hour ago", "2026-03-31T11:30:15Z"),
        ("2 days ago", "2026-03-29T12:30:15Z"),
        ("  2  Days   ago ", "2026-03-29T12:30:15Z"),
        ("1 week ago", "2026-03-24T12:30:15Z"),
        ("1 month ago", "2026-02-28T12:30:15Z"),
        ("2 years ago", "2024-03-31T12:30:15Z"),
        ("1 day 2 hours ago", "2026-03-30T10:30:15Z"),
        ("1 day, 2 days, 1 hour ago", "2026-03-28T11:30:15Z"),
        ("P2D", "2026-03-29T12:30:15Z"),
        ("P2W", "2026-03-17T12:30:15Z"),
        ("P1Y2M4DT5H6M7S", "2025-01-27T07:24:08Z"),
        ("PT36H", "2026-03-30T00:30:15Z"),
    ],
)
def test_a_time_ago_counts_from_now(text: str, moment: str) -> None:
    """Units in words can be combined, or be an ISO 8601 duration; months and years are calendar units."""
    assert pendulum.DateTime.fromisoformat(moment) == parse_moment(text, NOW)


@pytest.mark.parametrize(
    "text,moment",
    [
        ("2026-01", "2026-01-01T00:00Z"),
        ("2026-01-31", "2026-01-31T00:00Z"),
        ("20260131", "2026-01-31T00:00Z"),
        ("2026-031", "2026-01-31T00:00Z"),
        ("2026-W05-3", "2026-01-28T00:00Z"),
        ("2026-01-31T18", "2026-01-31T18:00Z"),
        ("2026-01-31T18:30", "2026-01-31T18:30Z"),
        ("2026-01-31 18:30:15", "2026-01-31T18:30:15Z"),
        ("20260131T183015Z", "2026-01-31T18:30:15Z"),
        ("2026-01-31T18:30:15.123456789Z", "2026-01-31T18:30:15.123456Z"),
        ("2026-01-31T18:30+01:00", "2026-01-31T17:30Z"),
        ("2026-01-31T18:30-0530", "2026-02-01T00:00Z"),
        ("2026-01-31 18:30 Europe/Berlin", "2026-01-31T17:30Z"),
        ("2026-07-31 18:30 Europe/Berlin", "2026-07-31T16:30Z"),
        ("2026-01-31 UTC", "2026-01-31T00:00Z"),
        ("2026-01-31 America/Argentina/Buenos_Aires", "2026-01-31T03:00Z"),
    ],
)
def test_a_date_and_time_may_have_a_zone(text: str, moment: str) -> None:
    """Without a time zone it is UTC on every machine."""
    assert pendulum.DateTime.fromisoformat(moment) == parse_moment(text, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "2026",
        "1700000000",
        "10:30",
        "today",
        "tomorrow",
        "2 days",
        "2days ago",
        "ago",
        "-2 days ago",
        "two days ago",
        "2 fortnights ago",
        "1234567 days ago",
        "9999 years ago",
        "P",
        "PT",
        "P1.5D",
        "P99999999999D",
        "2026-02-30",
        "2026-13-01",
        "2026-01-31T25:00",
        "2026-01-31T10:00 Nowhere/Else",
        "2026-01-31T10:00 ../etc/passwd",
        "2026-01-01/2026-02-01",
        "٢ days ago",
        "2026-01-31T10:00Z;x",
    ],
)
def test_what_is_no_time_is_not_guessed(text: str) -> None:
    """The result lists valid notations; a bare number may be a version as well as a year."""
    assert EXPECTED == parse_moment(text, NOW)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("2026-01-31T10:00+02:00 Europe/Berlin", "an offset or a zone, not both: '+02:00' and 'Europe/Berlin'"),
        ("2026-01-31T10:00Z Europe/Berlin", "an offset or a zone, not both: 'Z' and 'Europe/Berlin'"),
        (
            "2026-03-29 02:30 Europe/Berlin",
            (
                "2026-03-29T03:30:00+02:00 or 2026-03-29T01:30:00+01:00, "
                "since clocks in Europe/Berlin were put forward over 2026-03-29 02:30:00"
            ),
        ),
        (
            "2018-11-04 America/Sao_Paulo",
            (
                "2018-11-04T01:00:00-02:00 or 2018-11-03T23:00:00-03:00, "
                "since clocks in America/Sao_Paulo were put forward over 2018-11-04 00:00:00"
            ),
        ),
        (
            "2026-10-25T02:30 Europe/Berlin",
            (
                "2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00, "
                "since clocks in Europe/Berlin showed twice 2026-10-25 02:30:00"
            ),
        ),
    ],
)
def test_a_time_that_is_not_one_moment_is_not_guessed(text: str, expected: str) -> None:
    """An offset may contradict a time zone, and clocks skip one hour and repeat another."""
    found = parse_moment(text, NOW)
    assert expected == found
    for written in re.findall(r"2\S+[+-]\d\d:00(?=,| or)", expected):
        assert pendulum.DateTime.fromisoformat(written) == parse_moment(written, NOW)


@pytest.mark.parametrize(
    "text,moment",
    [
        ("2026-03-29 01:59:59 Europe/Berlin", "2026-03-29T00:59:59Z"),
        ("2026-03-29 03:00 Europe/Berlin", "2026-03-29T01:00Z"),
        ("2026-10-25 01:59 Europe/Berlin", "2026-10-24T23:59Z"),
        ("2026-10-25 03:00 Europe/Berlin", "2026-10-25T02:00Z"),
    ],
)
def test_times_around_those_are_read(text: str, moment: str) -> None:
    """The limits are exact to the second."""
    assert pendulum.DateTime.fromisoformat(moment) == parse_moment(text, NOW)
