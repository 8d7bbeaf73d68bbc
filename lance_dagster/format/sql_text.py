"""Write names, values and conditions as text of Lance SQL. Pure."""

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import check_string

_BEYOND = 2**63
"""Integers from here on do not fit the signed 64-bit literals of Lance SQL, and neither does its negative."""
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r"""
    (?P<comment>/\*.*?\*/)
    | (?P<text>'(?:[^']|'')*' | "[^"]*")
    | (?P<quoted>`[^`]*`)
    | (?P<number>[0-9][0-9.]*)
    | (?P<word>(?:[A-Za-z0-9_$@\#]|[^\x00-\x7f\s])+)
    | (?P<mark>::|\S)
    """,
    re.DOTALL | re.VERBOSE,
)
"""A token of Lance SQL. Lance refuses every character beyond ASCII outside of a word, so the pattern of words has all.

A double quote begins a text, as it does for Lance in conditions that were recorded before `check_closed` refused it.
"""
Bound = int | float | str | dt.date | dt.datetime


def all_of(*filters: str | None) -> str | None:
    """Combine filters with AND; empty and missing filters are left out. None means that no filter remains.

    Raises:
        InvalidInputError: A filter is not a closed condition (`check_closed`), so combining would change its meaning.
    """
    conditions = [condition for condition in filters if condition]
    for condition in conditions:
        check_closed("the filter", condition)
    if len(conditions) <= 1:
        return conditions[0] if conditions else None
    return " AND ".join(f"({condition})" for condition in conditions)


def check_closed(what: str, sql: object) -> None:
    """Refuse a text that is not a single condition or expression, or would escape from parentheses around it.

    In parentheses, as `all_of` and `enclosed` write them, `a = 1) AND (b = 2` would mean something else. Lance finds
    every other error when it gets the text from `enclosed`.

    Args:
        what: What it is, such as "the predicate".
        sql: The text.

    Raises:
        InvalidInputError: It is not a string, a parenthesis or a quote has no partner, there are several expressions
            with commas between them, there is a semicolon or a comment to the end of the line, or a text in double
            quotes, which Lance takes for a value and standard SQL for a column.
    """
    check_string(what, sql)
    doubtful = next((quoted for quoted in _QUOTED.findall(str(sql)) if quoted.startswith('"')), None)
    if doubtful is not None:
        named = doubtful.strip('"')
        raise InvalidInputError(
            f"{what} {sql!r} has {doubtful}; write `{named}` for a column, or '{named}' for a text: Lance takes double "
            "quotes for a text, and standard SQL for a column"
        )
    bare, depth, listed = _QUOTED.sub("", str(sql)), 0, False
    for mark in re.findall(r"[()\[\],]", bare):
        depth += (mark in "([") - (mark in ")]")
        listed = listed or (mark == "," and not depth)
        if depth < 0:
            break
    if depth or re.search("['\"`]", bare):
        single = "a parenthesis" if depth else "a quote"
        raise InvalidInputError(f"{what} {sql!r} has {single} without its partner; write both")
    separator = next((mark for mark in (";", "--", "/*") if mark in bare), None)
    if separator is not None:
        raise InvalidInputError(f"{what} {sql!r} has {separator!r} outside of quotes; leave out what it begins or ends")
    if listed:
        raise InvalidInputError(
            f"{what} {sql!r} has ',' outside of parentheses; give one expression, or join conditions with AND"
        )


def enclosed(what: str, sql: str) -> str:
    """Return a condition or an expression in parentheses, as Lance gets every text that a caller gave.

    Lance evaluates the first part of a text that goes on after it, without an error: of `a = 1 adn b = 2`, it evaluates
    `a = 1`. In parentheses, it evaluates the whole text or refuses it, and it plans the same scan.

    Args:
        what: What it is, such as "the predicate".
        sql: The text.

    Raises:
        InvalidInputError: The text is refused by `check_closed`.
    """
    check_closed(what, sql)
    return f"({sql})"


def columns_in(sql: str, columns: Iterable[str]) -> list[str]:
    """Return the columns that a condition or an expression names.

    A column is named by its name in backticks, or by the bare name in any case, as Lance finds it. A word at a place
    where no column can stand does not count as a column: a function in front of its arguments, a type, an operator, a
    field of a struct. A word of SQL that stands between other words, such as `IS` in `a IS NULL`, counts as a column of
    that name, since Lance takes it for a column in other places.

    Args:
        sql: A text that `check_closed` accepts.
        columns: The names of the columns.
    """
    tokens = _tokens(sql)
    places = [place for place, (kind, _) in enumerate(tokens) if kind in ("word", "quoted")]
    quoted = {_bare(tokens[place][1]) for place in places if tokens[place][0] == "quoted"}
    words = {tokens[place][1].lower() for place in places if tokens[place][0] == "word" and _may_name(tokens, place)}
    return [name for name in columns if name in quoted or name.lower() in words]


def fields_in(sql: str, fields: Iterable[str]) -> list[str]:
    """Return the fields inside of columns that a condition may name: after a dot, or as a text.

    Besides `a.b`, Lance takes `a['b']` and `get_field(a, 'b')`.
    """
    tokens = _tokens(sql)
    after_dots = {_bare(text).lower() for (_, before), (_, text) in pairwise(tokens) if before == "."}
    texts = {text[1:-1].replace("''", "'") for kind, text in tokens if kind == "text"}
    return [name for name in fields if name in texts or name.lower() in after_dots]


def _tokens(sql: str) -> list[tuple[str, str]]:
    """Return the tokens of a text of Lance SQL without spaces and comments, each with its kind."""
    tokens = ((str(token.lastgroup), token[0]) for token in _TOKEN.finditer(sql))
    return [(kind, text) for kind, text in tokens if kind != "comment"]


def _may_name(tokens: Sequence[tuple[str, str]], place: int) -> bool:
    """Return whether a column can stand where a word stands, by the tokens beside it."""
    before, word_before = tokens[place - 1] if place else ("", "")
    after, word_after = tokens[place + 1] if place + 1 < len(tokens) else ("", "")
    # Between two values stands an operator, so no column stands beside a value.
    values = ("text", "number", "quoted")
    is_operator = before in values or after in values or word_before in (")", "]")
    is_function, is_field = word_after == "(", word_before == "."
    is_type = word_before == "::" or word_before.lower() == "as"
    return not (is_operator or is_function or is_field or is_type)


def _bare(text: str) -> str:
    return text.strip("`")


def literal(bound: Bound) -> str:
    """Return a value as a literal of Lance SQL."""
    match bound:
        # Before date: a datetime is a date too.
        case dt.datetime():
            return instant(bound) if bound.tzinfo else f"timestamp '{bound.isoformat(sep=' ')}'"
        case dt.date():
            return f"date '{bound.isoformat()}'"
        case str():
            return quote_text(bound)
        case bool():
            return str(bound).lower()
        # Lance reads the figures after the minus first, as a float, because they do not fit 64 bits.
        case int() if bound == -_BEYOND:
            return f"arrow_cast('{bound}', 'Int64')"
        case _:
            return repr(bound)


def instant(moment: dt.datetime) -> str:
    """Return a moment with a time zone as a value of Lance SQL, with which timestamps of any zone can be compared.

    `timestamp '2026-06-01 00:00:00+00:00'` is a literal without a zone for Lance: beside a column in another zone than
    UTC, its figures are taken for local times of that zone.
    """
    utc = moment.astimezone(dt.UTC).replace(tzinfo=None)
    return f"""arrow_cast('{utc.isoformat()}Z', 'Timestamp(Microsecond, Some("UTC"))')"""


def plain_literal(value: object) -> str | None:
    """Return a boolean, an integer of 64 bits or a printable text as a literal; None for every other value.

    The smallest integer of 64 bits has no literal either: Lance reads `9223372036854775808` before the minus.
    """
    match value:
        # A bool is an int in Python, so this case comes before the case of integers.
        case bool():
            return str(value).lower()
        case int() if -_BEYOND < value < _BEYOND:
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
