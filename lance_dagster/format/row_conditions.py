"""Whether a condition of Lance SQL is true for all, some or no rows whose values lie in known ranges. Pure.

Only comparisons of a column with values of exactly its type are understood, and AND, OR and NOT between them; that is
how partitions and keys are selected. Whatever else a condition has may be true, false or null. So a text that is not
understood leads to a search, and never to a wrong answer. Whether Lance accepts the text is not decided here.
"""

import bisect
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from lance_dagster.format.value_ranges import BOOL, DATE, INTEGERS, TEXTS, TIMESTAMP, Bound, ValueRange

TRUE, FALSE, NULL = 1, 2, 4
"""The results that a condition may have for a row, as bits of a set."""
_ANY = TRUE | FALSE | NULL
_TOKEN = re.compile(
    r"""
    \s*(?:
    (?P<text>'(?:[^'\\]|'')*')
    | (?P<quoted>`[^`]+`)
    | (?P<number>[0-9]+(?![0-9A-Za-z_.]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign><=|>=|<>|!=|=|<|>)
    | (?P<other>[0-9][0-9A-Za-z_.]*|[-,.+%*:\[\]()]|/(?!\*))
    )
    """,
    re.VERBOSE,
)
"""A token; a text with any other character, such as a comment, is not understood at all."""
_UNUSUAL = frozenset({"xor"})
"""Words by which the order of evaluation differs between dialects of SQL."""
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LOCAL = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)")
_YEARS = 1678, 2261
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MOMENT = """'Timestamp(Microsecond, Some("UTC"))'"""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INT64 = 2**63
Token = tuple[str, str]
Ranges = Mapping[str, ValueRange | None]


class RowCondition(Protocol):
    """A condition, or a part of it."""

    def results(self, ranges: Ranges) -> int:
        """Return the results that the condition may have for a row whose values are in these ranges, by column."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns whose ranges decide."""


@dataclass(frozen=True, slots=True)
class _Unknown:
    columns: frozenset[str] = frozenset()

    def results(self, ranges: Ranges) -> int:  # noqa: ARG002  # part of the protocol
        return _ANY


@dataclass(frozen=True, slots=True)
class _Constant:
    value: bool
    columns: frozenset[str] = frozenset()

    def results(self, ranges: Ranges) -> int:  # noqa: ARG002  # part of the protocol
        return TRUE if self.value else FALSE


@dataclass(frozen=True, slots=True)
class _OfColumn:
    """A condition about the values of one column."""

    column: str

    @property
    def columns(self) -> frozenset[str]:
        return frozenset({self.column})


@dataclass(frozen=True, slots=True)
class _IsNull(_OfColumn):
    """Whether the value is null."""

    def results(self, ranges: Ranges) -> int:
        values = ranges.get(self.column)
        if values is None:
            return TRUE | FALSE
        return (TRUE if values.has_nulls else 0) | (0 if values.lower is None else FALSE)


@dataclass(frozen=True, slots=True)
class _Between(_OfColumn):
    """The values from `lower` to `upper`; None is no bound, and `open_lower` and `open_upper` leave the bound out."""

    lower: Bound | None
    upper: Bound | None
    open_lower: bool = False
    open_upper: bool = False

    def results(self, ranges: Ranges) -> int:
        values = ranges.get(self.column)
        if values is None:
            return _ANY
        nulls = NULL if values.has_nulls else 0
        if values.lower is None or values.upper is None:
            return nulls
        # The values above the lower bound reach up to the end of the range, and those below the upper bound down to its
        # beginning: one of the range is inside if both hold, and all are if both hold for both ends.
        if not (self._above(values.upper) and self._below(values.lower)):
            return FALSE | nulls
        if self.lower is not None and self.upper is not None and self._is_empty():
            return FALSE | nulls
        whole = self._above(values.lower) and self._below(values.upper)
        return (TRUE if whole else TRUE | FALSE) | nulls

    def _is_empty(self) -> bool:
        # Bounds of one column have one type.
        return not self._below(self.lower) or not self._above(self.upper)

    def _above(self, value: Bound | None) -> bool:
        if self.lower is None:
            return True
        return value > self.lower if self.open_lower else value >= self.lower  # type: ignore[operator]  # equal types

    def _below(self, value: Bound | None) -> bool:
        if self.upper is None:
            return True
        return value < self.upper if self.open_upper else value <= self.upper  # type: ignore[operator]  # equal types


@dataclass(frozen=True, slots=True)
class _OneOf(_OfColumn):
    """One of some values, which are sorted."""

    values: tuple[Bound, ...]

    def results(self, ranges: Ranges) -> int:
        values = ranges.get(self.column)
        if values is None:
            return _ANY
        nulls = NULL if values.has_nulls else 0
        if values.lower is None or values.upper is None:
            return nulls
        # Values of one column have one type.
        place = bisect.bisect_left(self.values, values.lower)
        if place == len(self.values) or self.values[place] > values.upper:  # type: ignore[operator]
            return FALSE | nulls
        return (TRUE if values.lower == values.upper else TRUE | FALSE) | nulls


@dataclass(frozen=True, slots=True)
class _Not:
    part: RowCondition

    @property
    def columns(self) -> frozenset[str]:
        return self.part.columns

    def results(self, ranges: Ranges) -> int:
        return _negated(self.part.results(ranges))


@dataclass(frozen=True, slots=True)
class _All:
    parts: tuple[RowCondition, ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns for part in self.parts))

    def results(self, ranges: Ranges) -> int:
        return reduce(_both, (part.results(ranges) for part in self.parts))


def parse_condition(sql: str, columns: Mapping[str, str]) -> RowCondition:
    """Return a condition of Lance SQL.

    Args:
        sql: The text.
        columns: The logical types of the columns, by name.
    """
    tokens: list[Token] = []
    place, end = 0, len(sql.rstrip())
    while place < end:
        match = _TOKEN.match(sql, place)
        if match is None or match.group().strip().lower() in _UNUSUAL:
            return _Unknown()
        tokens.append((str(match.lastgroup), match.group().strip()))
        place = match.end()
    lowered = [name.lower() for name in columns]
    # Lance looks for a column without regard to case where there is none in the case that was given.
    parser = _Parser(tokens, {name: kind for name, kind in columns.items() if lowered.count(name.lower()) == 1})
    condition = parser.any_of()
    return condition if parser.is_at_end else _Unknown()


class _Parser:
    """Reads a condition from the outermost OR to its comparisons."""

    def __init__(self, tokens: Sequence[Token], columns: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._columns = columns
        self._place = 0

    @property
    def is_at_end(self) -> bool:
        return self._place >= len(self._tokens)

    def any_of(self) -> RowCondition:
        parts = [self._all_of()]
        while self._takes("or"):
            parts.append(self._all_of())
        # One of them is true unless all are not.
        return parts[0] if len(parts) == 1 else _Not(_All(tuple(map(_Not, parts))))

    def _all_of(self) -> RowCondition:
        parts = [self._not()]
        while self._takes("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _not(self) -> RowCondition:
        return _Not(self._not()) if self._takes("not") else self._comparison(self._until_operator())

    def _takes(self, word: str) -> bool:
        if self.is_at_end or self._tokens[self._place][0] != "word" or self._tokens[self._place][1].lower() != word:
            return False
        self._place += 1
        return True

    def _until_operator(self) -> Sequence[Token]:
        """Take the tokens up to the next AND or OR outside of parentheses."""
        start, depth, ranges = self._place, 0, 0
        while not self.is_at_end:
            kind, text = self._tokens[self._place]
            word = text.lower() if kind == "word" else text if kind == "other" else ""
            if not depth and (word == "or" or (word == "and" and not ranges)):
                break
            # The AND of BETWEEN is no operator, and neither are those inside of CASE.
            ranges += (word == "between") - (word == "and" and not depth)
            depth += (word in ("(", "[", "case")) - (word in (")", "]", "end"))
            self._place += 1
        return self._tokens[start : self._place]

    def _comparison(self, tokens: Sequence[Token]) -> RowCondition:
        """Return the condition of some tokens without AND and OR between them, or in parentheses."""
        words = [text.lower() if kind == "word" else text for kind, text in tokens]
        if words[:1] == ["("] and _closing(words) == len(words) - 1:
            inner = _Parser(tokens[1:-1], self._columns)
            condition = inner.any_of()
            return condition if inner.is_at_end else _Unknown()
        if words in (["true"], ["false"]):
            return _Constant(words == ["true"])
        column = self._column(tokens[0]) if tokens else None
        return self._reversed(tokens) if column is None else self._test(column, tokens[1:], words[1:])

    def _test(self, column: str, tokens: Sequence[Token], words: Sequence[str]) -> RowCondition:
        """Return the condition of a column and the tokens after it."""
        kind = self._columns[column]
        match words:
            case [] if kind == BOOL:
                return _Between(column, 1, 1)
            case ["is", "null"]:
                return _IsNull(column)
            case ["is", "not", "null"]:
                return _Not(_IsNull(column))
            case ["not", *listed]:
                return _Not(_listed(column, kind, tokens[1:], listed))
            case [sign, *_] if tokens[0][0] == "sign":
                value = _value(tokens[1:], kind)
                return _Unknown() if value is None else _compared(column, sign, value)
        return _listed(column, kind, tokens, words)

    def _reversed(self, tokens: Sequence[Token]) -> RowCondition:
        """Return a comparison whose column is on the right."""
        column = self._column(tokens[-1]) if len(tokens) > 2 and tokens[-2][0] == "sign" else None  # noqa: PLR2004
        value = None if column is None else _value(tokens[:-2], self._columns[column])
        if column is None or value is None:
            return _Unknown()
        sign = tokens[-2][1]
        return _compared(column, _SWAPPED.get(sign, sign), value)

    def _column(self, token: Token) -> str | None:
        kind, text = token
        name = text.strip("`") if kind == "quoted" else text if kind == "word" else None
        return name if name in self._columns else None


def _listed(column: str, kind: str, tokens: Sequence[Token], words: Sequence[str]) -> RowCondition:
    """Return the condition of IN or BETWEEN."""
    if words[:1] == ["between"] and "and" in words:
        middle = words.index("and")
        lower, upper = _value(tokens[1:middle], kind), _value(tokens[middle + 1 :], kind)
        return _Unknown() if lower is None or upper is None else _Between(column, lower, upper)
    if words[:2] == ["in", "("] and _closing(words[1:]) == len(words) - 2:
        values = [_value(part, kind) for part in _separated(tokens[2:-1])]
        listed = [value for value in values if value is not None]
        if listed and len(listed) == len(values):
            return _OneOf(column, tuple(sorted(listed)))
    return _Unknown()


def _compared(column: str, sign: str, value: Bound) -> RowCondition:
    match sign:
        case "=":
            return _Between(column, value, value)
        case "<>" | "!=":
            return _Not(_Between(column, value, value))
        case "<" | "<=":
            return _Between(column, None, value, open_upper=sign == "<")
        case _:
            return _Between(column, value, None, open_lower=sign == ">")


def _closing(words: Sequence[str]) -> int:
    """Return the place of the parenthesis that closes the first."""
    depth = 0
    for place, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        if not depth:
            return place
    return -1


def _separated(tokens: Sequence[Token]) -> list[list[Token]]:
    """Return the parts between commas outside of parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token[1] == "(") - (token[1] == ")") if token[0] == "other" else 0
        if token == ("other", ",") and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _value(tokens: Sequence[Token], logical_type: str) -> Bound | None:
    """Return a literal as a value of a type; None for every other text, and for a value that the type does not have."""
    words = [text.lower() if kind == "word" else text for kind, text in tokens]
    kinds = [kind for kind, _ in tokens]
    if logical_type in TEXTS:
        return _text(words[0]) if kinds == ["text"] else None
    if logical_type in INTEGERS:
        return _integer(kinds, words, *INTEGERS[logical_type])
    if logical_type == BOOL:
        return {"true": 1, "false": 0}.get(words[0]) if kinds == ["word"] else None
    try:
        if logical_type == DATE:
            return _date(kinds, words)
        if logical_type.startswith(TIMESTAMP):
            return _timestamp(kinds, words, *logical_type.split(":", 2)[1:])
    except ValueError:
        # There is no such day or time.
        return None
    return None


def _text(quoted: str) -> str:
    return quoted[1:-1].replace("''", "'")


def _integer(kinds: Sequence[str], words: Sequence[str], least: int, most: int) -> int | None:
    if kinds == ["number"]:
        number = int(words[0])
    elif kinds == ["other", "number"] and words[0] == "-":
        number = -int(words[1])
    else:
        return None
    return number if least <= number <= most and -_INT64 < number < _INT64 else None


def _date(kinds: Sequence[str], words: Sequence[str]) -> int | None:
    if kinds != ["word", "text"] or words[0] != "date" or not _DATE.fullmatch(_text(words[1])):
        return None
    return (dt.date.fromisoformat(_text(words[1])) - _EPOCH.date()).days


def _timestamp(kinds: Sequence[str], words: Sequence[str], unit: str, zone: str) -> int | None:
    if zone == "-" and kinds == ["word", "text"] and words[0] == "timestamp":
        local = _LOCAL.fullmatch(_text(words[1]))
    elif zone != "-" and words[0:2] == ["arrow_cast", "("] and words[3:] == [",", _MOMENT, ")"] and kinds[2] == "text":
        # As `sql_text.instant` writes it.
        local = _LOCAL.fullmatch(_text(words[2]).removesuffix("Z")) if words[2].endswith("Z'") else None
    else:
        return None
    if local is None:
        return None
    # Lance reads a literal as nanoseconds, which have no other years.
    if not _YEARS[0] <= int(local[1][:4]) <= _YEARS[1]:
        return None
    passed = dt.datetime.fromisoformat(f"{local[1]}T{local[2]}+00:00") - _EPOCH
    microseconds = passed // dt.timedelta(microseconds=1)
    # A moment between two values of the unit would be rounded by Lance.
    number, remainder = divmod(microseconds * _UNITS[unit], _UNITS["us"])
    return number if not remainder and -_INT64 < number < _INT64 else None


def _negated(results: int) -> int:
    return (results & NULL) | (TRUE if results & FALSE else 0) | (FALSE if results & TRUE else 0)


def _both(first: int, second: int) -> int:
    """Return the results of AND, given those of its sides, in the logic of three values."""
    either = first | second
    return (
        (TRUE if first & second & TRUE else 0)
        | (either & FALSE)
        | (NULL if either & NULL and first & (TRUE | NULL) and second & (TRUE | NULL) else 0)
    )
