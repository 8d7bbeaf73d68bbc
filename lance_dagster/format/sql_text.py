"""Write names, values and conditions as text of Lance SQL. Pure."""

import datetime as dt

from lance_dagster.errors import InvalidInputError

_BEYOND = 2**63
"""Larger integers do not fit the signed 64-bit literals of Lance SQL."""
Bound = int | float | str | dt.date | dt.datetime


def all_of(*filters: str | None) -> str | None:
    """Combine filters with AND; an empty or missing filter is left out, and None means that none is left."""
    given = [one for one in filters if one]
    if len(given) <= 1:
        return given[0] if given else None
    return " AND ".join(f"({one})" for one in given)


def literal(bound: Bound) -> str:
    """Return a value as a literal of Lance SQL."""
    match bound:
        # Before date: a datetime is a date too.
        case dt.datetime():
            zoned = bound.astimezone(dt.UTC).replace(tzinfo=None) if bound.tzinfo else bound
            return f"timestamp '{zoned.isoformat(sep=' ')}{'+00:00' if bound.tzinfo else ''}'"
        case dt.date():
            return f"date '{bound.isoformat()}'"
        case str():
            return quote_text(bound)
        case bool():
            return str(bound).lower()
        case _:
            return repr(bound)


def plain_literal(value: object) -> str | None:
    """Return a boolean, an integer of 64 bits or a printable text as a literal; None for every other value."""
    match value:
        # A bool is an int in Python, so this case comes before that of integers.
        case bool():
            return str(value).lower()
        case int() if -_BEYOND <= value < _BEYOND:
            return str(value)
        case str() if value.isprintable():
            return quote_text(value)
        case _:
            return None


def quote_text(value: str) -> str:
    """Return text as a string literal of Lance SQL."""
    return "'" + value.replace("'", "''") + "'"


def quote_name(column: str) -> str:
    """Return a column's name quoted for Lance SQL; it may have any character except a backtick."""
    if "`" in column:
        raise InvalidInputError(f"column {column!r} cannot be used in a filter: its name has a backtick")
    return f"`{column}`"
