"""What conditions say about rows between known bounds; `edit/test_known_ranges` compares the answers with Lance."""

import pytest

from lance_dagster.format.row_conditions import FALSE, NULL, TRUE, parse_condition
from lance_dagster.format.value_ranges import ValueRange

COLUMNS = {
    "day": "date32:day",
    "at": "timestamp:us:UTC",
    "berlin": "timestamp:ms:Europe/Berlin",
    "local": "timestamp:s:-",
    "text": "string",
    "n": "int32",
    "ok": "bool",
    "x": "double",
}
# 2026-01-02 is day 20,455.
DAY = 20_455
SECOND = DAY * 86_400


def only(value: int | str) -> ValueRange:
    """The range of one value, without nulls."""
    return ValueRange(has_nulls=False, lower=value, upper=value)


def results(sql: str, **ranges: ValueRange) -> int:
    """The results that a condition may have."""
    return parse_condition(sql, COLUMNS).results(ranges)


def moment(utc: str) -> str:
    """A moment as partitions by time have it."""
    return f"""arrow_cast('{utc}', 'Timestamp(Microsecond, Some("UTC"))')"""


@pytest.mark.parametrize(
    "sql, column, inside, outside",
    [
        ("`text` IN ('eu', 'o''brien')", "text", "o'brien", "us"),
        ("`n` IN (-1, 7)", "n", -1, 1),
        ("`ok` IN (true)", "ok", 1, 0),
        ("`day` >= date '2026-01-02' AND `day` < date '2026-01-03'", "day", DAY, DAY + 1),
        ("local >= timestamp '2026-01-02 00:00:00' AND local < timestamp '2026-01-02 01:00:00'", "local", SECOND, 0),
        (f"at >= {moment('2026-01-02T00:00:00Z')}", "at", SECOND * 10**6, SECOND * 10**6 - 1),
        (f"berlin < {moment('2026-01-02T00:00:00Z')}", "berlin", SECOND * 10**3 - 1, SECOND * 10**3),
        ("(((n = 5) or text = 'x'))", "n", 5, None),
        ("not n between 3 and 4", "n", 5, 3),
    ],
)
def test_conditions_of_partitions_are_understood(
    sql: str, column: str, inside: int | str, outside: int | str | None
) -> None:
    """A file with one value is decided without a look at it."""
    assert TRUE == results(sql, **{column: only(inside)})
    assert outside is None or FALSE == results(sql, **{column: only(outside)})


@pytest.mark.parametrize(
    "sql",
    [
        "n = 2.0",
        "n = '2'",
        "n = 99999999999",
        "text = 2",
        "day = '2026-01-02'",
        "day = date '2026-13-02'",
        "local = timestamp '2026-01-02 00:00:00.5'",
        "local = timestamp '1500-01-01 00:00:00'",
        "at = timestamp '2026-01-02 00:00:00'",
        "N = 2",
        "x = 1.5",
        "n = n",
        "n = 1 xor ok",
        "n & 1 = 1 AND false",
        "n = 1 /* AND false */",
        r"text = '\' AND false",
        'text = "a" AND false',
        "n IN (1, null)",
        "lower(text) = 'a'",
        "n + 1 = 2",
        "nothing = 1",
    ],
)
def test_what_is_not_understood_may_be_true(sql: str) -> None:
    """It leads to a search, whatever is known."""
    known = {
        "n": only(5),
        "text": only("b"),
        "day": only(DAY),
        "local": only(SECOND),
        "at": only(SECOND),
        "ok": only(0),
    }
    assert results(sql, **known) & TRUE


@pytest.mark.parametrize(
    "sql, expected",
    [
        ("n = 5", TRUE | FALSE | NULL),
        ("n > 9", FALSE | NULL),
        ("n >= 1", TRUE | NULL),
        ("n IS NULL", TRUE | FALSE),
        ("n IS NOT NULL OR ok", TRUE | FALSE | NULL),
        ("n > 9 AND lower(text) = 'a'", FALSE | NULL),
        ("n > 9 AND text = 'b'", FALSE),
        ("n BETWEEN 9 AND 1", FALSE | NULL),
        ("false", FALSE),
        ("true or x = 1.5", TRUE),
    ],
)
def test_nulls_and_unknown_parts(sql: str, expected: int) -> None:
    """The logic has three values, and what is unknown may have any of them."""
    ranges = {"n": ValueRange(has_nulls=True, lower=1, upper=9), "text": only("a")}
    assert expected == results(sql, **ranges)


def test_columns_that_differ_in_case_alone() -> None:
    """Which of them Lance means is not guessed."""
    condition = parse_condition("n = 1", {"n": "int32", "N": "int32"})
    assert condition.results({"n": only(2), "N": only(2)}) & TRUE
