"""Fit the bounds of a check to the type of its column, in exact arithmetic, before Lance SQL compares them. Pure.

Lance SQL casts a bound to the type of the column, or both to a common type, and loses what does not fit: a moment
outside 1677 to 2262 beside nanoseconds becomes null, which passes every row; half a second beside whole seconds is cut;
and integers beside a float are compared as doubles.
"""

import datetime as dt
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import Bound, literal

if TYPE_CHECKING:
    import pyarrow as pa

Side = Literal["minimum", "maximum", "member"]
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # moments are counted from it without a zone
# The type in Lance SQL and the greatest finite value of each float, by the name of its type.
_FLOATS = {
    "halffloat": ("Float16", 65504.0),
    "float": ("Float32", (2 - 2.0**-23) * 2.0**127),
    "double": ("Float64", sys.float_info.max),
}
_UNITS = {"s": ("Second", 1), "ms": ("Millisecond", 10**3), "us": ("Microsecond", 10**6), "ns": ("Nanosecond", 10**9)}


@dataclass(frozen=True, slots=True)
class _Scale:
    """The values of a type as whole numbers.

    `per` is how many of them make 1, or a second: 100 for a decimal with two digits after the point, 1000 for
    milliseconds. `least` and `most` are the whole numbers of the least and the greatest value, and `sql` writes a whole
    number as SQL.
    """

    per: Fraction
    least: int
    most: int
    sql: Callable[[int], str]


def fitted(column: "pa.Field[Any]", bound: Bound, side: Side) -> str | bool:
    """Return a bound as a value of Lance SQL that the type of a column holds exactly.

    A minimum becomes the next greater value of the type and a maximum the next smaller value, so that the same values
    lie within. A bound of a float column is rounded to its type by Lance, but not to infinity.

    Example: on an int32 column the minimum 1.5 becomes 2 and the maximum 1.5 becomes 1. The maximum 2**40 is True,
    since every int32 is smaller, and the member 1.5 is False.

    Args:
        column: The column.
        bound: The bound. On a date or timestamp column, a text is a date or a time in ISO 8601.
        side: What the bound is; a `member` is a value of a list.

    Returns:
        The value; True when every value of the type satisfies the bound, and False when no value does.

    Raises:
        InvalidInputError: Values of the type cannot be compared with the bound.
    """
    kind: Any = column.type
    # The values of a dictionary are compared, not its indices.
    kind = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
    exact, scale = _exact(column.name, kind, bound), _scale(kind)
    if exact is not None and str(kind) in _FLOATS:
        return _float_bound(exact, str(kind), side)
    if exact is None or scale is None:
        return literal(bound)
    exact *= scale.per
    count = math.floor(exact) if side == "maximum" else math.ceil(exact)
    if scale.least <= count <= scale.most:
        return scale.sql(count) if side != "member" or count == exact else False
    return side == ("minimum" if count < scale.least else "maximum")


def _float_bound(exact: Fraction, kind: str, side: Side) -> str | bool:
    sql_type, most = _FLOATS[kind]
    if abs(exact) > most:
        # Lance would round the bound to infinity, which then satisfies it.
        sign = "" if exact > 0 else "-"
        if side == "member":
            return False
        # Either every finite value satisfies the bound, or infinity alone does.
        within = (side == "maximum") == (exact > 0)
        return f"{sign}{most}" if within else _cast(f"'{sign}inf'", sql_type)
    # Lance takes no integer beside a float16, so the bound becomes a double; it rounds that to a narrower type.
    value = float(exact)
    if value != exact and side == "member":
        return False
    if side == "minimum" and value < exact:
        value = math.nextafter(value, math.inf)
    elif side == "maximum" and value > exact:
        value = math.nextafter(value, -math.inf)
    return literal(value)


def _exact(name: str, kind: Any, bound: Bound) -> Fraction | None:  # noqa: ANN401  # pyarrow has no type for all kinds
    """Return a bound as an exact number, or the seconds since 1970; None when it is compared as it is."""
    import pyarrow.types as of

    def refuse(allowed: str) -> InvalidInputError:
        return InvalidInputError(f"column {name!r} is {kind}, which cannot be compared with {bound!r}; give {allowed}")

    is_text = of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind)
    if is_text and not isinstance(bound, str):
        raise refuse("texts")
    if of.is_boolean(kind) and not isinstance(bound, bool):
        raise refuse("True or False")
    if of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind):
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise refuse("numbers")
        # A decimal is compared with the digits of a float: 0.1 is not exactly a tenth.
        return Fraction(repr(bound) if of.is_decimal(kind) else bound)
    if of.is_date(kind) or of.is_timestamp(kind):
        moment = _moment(bound)
        if moment is None:
            raise refuse("dates or datetimes")
        return _seconds(moment, getattr(kind, "tz", None))
    return None


def _moment(bound: Bound) -> dt.date | None:
    # Python cuts the digits after microseconds.
    if isinstance(bound, str) and not re.search(r"[.,]\d{7}", bound):
        try:
            return dt.datetime.fromisoformat(bound)
        except ValueError:
            return None
    return bound if isinstance(bound, dt.date) else None


def _seconds(moment: dt.date, zone: str | None) -> Fraction:
    """Return the seconds since 1970 of a moment that is compared with a column; `zone` is the column's time zone."""
    if not isinstance(moment, dt.datetime):
        # The midnight in UTC, as Lance takes a date beside a timestamp of any zone.
        return Fraction((moment - _EPOCH.date()).days * 86400)
    # A plain datetime, because arithmetic with datetimes of pandas has limits of its own.
    figures = (moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second, moment.microsecond)
    local = dt.datetime(*figures, fold=moment.fold)  # noqa: DTZ001  # the zone is subtracted below
    # Figures without a zone are local times of the column. The offset is subtracted at last: the time in UTC may lie
    # before the year 1.
    offset = moment.utcoffset() if moment.tzinfo else local.replace(tzinfo=_zone(zone)).utcoffset()
    micros = (local - _EPOCH - (offset or dt.timedelta())) // dt.timedelta(microseconds=1)
    return Fraction(micros * 1000 + getattr(moment, "nanosecond", 0), 10**9)


def _zone(name: str | None) -> dt.tzinfo | None:
    if name is None:
        return None
    return dt.datetime.fromisoformat(f"1970-01-01T00:00{name}").tzinfo if name[0] in "+-" else ZoneInfo(name)


def _scale(kind: Any) -> _Scale | None:  # noqa: ANN401  # as above
    """Return the scale of a type; None for a type whose values cannot be counted, such as text."""
    import pyarrow.types as of

    if of.is_integer(kind):
        unsigned = of.is_unsigned_integer(kind)
        least, end = (0, 2**kind.bit_width) if unsigned else (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1))
        return _Scale(Fraction(1), least, end - 1, literal)
    if of.is_decimal(kind) and kind.scale >= 0:
        most, sql_type = 10**kind.precision - 1, f"Decimal{kind.bit_width}({kind.precision}, {kind.scale})"

        def sql(count: int) -> str:
            # Not by division, which rounds.
            digits = Decimal((int(count < 0), tuple(map(int, str(abs(count)))), -kind.scale))
            return _cast(f"'{digits:f}'", sql_type)

        return _Scale(Fraction(10**kind.scale), -most, most, sql)
    if of.is_date(kind):
        return _Scale(Fraction(1, 86400), -(2**31), 2**31 - 1, lambda count: _cast(str(count), "Date32"))
    if of.is_timestamp(kind):
        (unit, per), zone = _UNITS[kind.unit], "None" if kind.tz is None else 'Some("UTC")'
        # The integer is written by `literal`: the smallest one has no figures of its own in Lance SQL.
        sql_type = f"Timestamp({unit}, {zone})"
        return _Scale(Fraction(per), -(2**63), 2**63 - 1, lambda count: _cast(literal(count), sql_type))
    return None


def _cast(sql: str, sql_type: str) -> str:
    return f"arrow_cast({sql}, '{sql_type}')"
