"""Refuse arguments with which a check, or the operation of a table, would do something else than it says.

The arguments are refused when definitions load. In a run the mistake would show after the rows were written, or never:
every comparison with NaN is false, so a bound of NaN would let every table pass.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, timedelta
from reprlib import repr as shortened
from typing import Any

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import check_string, require_sequence


def require_text(what: str, text: object, example: str) -> None:
    """Refuse a value that is not a text, or that is empty.

    Raises:
        InvalidInputError: The message names the argument as `what`, and has the example.
    """
    check_string(what, text)
    if not text:
        raise InvalidInputError(f"{what} is empty; give one such as {example!r}")


def require_column(check: str, column: object) -> None:
    """Refuse a value that cannot be the name of a column; `check` is the class of the check, for the message.

    Raises:
        InvalidInputError: The value is not a text, or is empty.
    """
    require_text(f"the column of {check}", column, "id")


def require_number(what: str, number: object, *, optional: bool = False, least: float = -math.inf) -> None:
    """Refuse a value that is not a number, or is NaN; a bool is not a number. With `optional`, None is allowed.

    Raises:
        InvalidInputError: The message names the argument as `what`.
    """
    if optional and number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
        raise InvalidInputError(f"{what} has to be a number, such as 0.05, not {shortened(number)}")
    if number < least:
        raise InvalidInputError(f"{what} has to be {least:g} or more, not {shortened(number)}")


def require_duration(what: str, duration: object, *, least: timedelta = timedelta(0)) -> None:
    """Refuse a value that is not a duration of zero or more. A number is refused, because its unit would be a guess.

    Args:
        what: The argument, for messages.
        duration: The value.
        least: The shortest duration that is allowed.

    Raises:
        InvalidInputError: The message names the argument as `what`.
    """
    if not isinstance(duration, timedelta) or duration < least:
        allowed = "of zero or more" if not least else "above zero"
        raise InvalidInputError(
            f"{what}={duration!r} is not a duration {allowed}; give a timedelta, such as timedelta(days=1)"
        )


def comparable(check: str, bound: Any) -> Any:  # noqa: ANN401  # a value of any type that Lance SQL can compare
    """Return a value that a column is compared with; values of NumPy become values of Python, which SQL is made of.

    Raises:
        InvalidInputError: Nothing can be compared with the value, as with NaN, or Lance SQL has no literal for it.
    """
    plain = bound.item() if hasattr(bound, "item") and not getattr(bound, "shape", ()) else bound
    numpy_kind = getattr(getattr(bound, "dtype", None), "kind", "")
    if isinstance(plain, int) and numpy_kind == "M":
        # NumPy gives a moment in units that Python has no datetime for as a number.
        plain = bound.astype("datetime64[us]").item()
        if not isinstance(plain, date) or bound.astype("datetime64[us]") != bound:
            raise InvalidInputError(
                f"{check} has the value {shortened(bound)}, which a datetime of Python cannot hold; give a moment "
                "of whole microseconds in the years 1 to 9999, or a timestamp of pandas"
            )
    is_comparable = isinstance(plain, int | float | str | date) and numpy_kind != "m"
    if not is_comparable or (isinstance(plain, float) and not math.isfinite(plain)):
        raise InvalidInputError(
            f"{check} has the value {shortened(bound)}; give finite numbers, texts, dates or datetimes"
        )
    if isinstance(plain, str):
        check_string(f"a value of {check}", plain)
    return plain


def value_tuple(check: str, members: Any) -> tuple[Any, ...]:  # noqa: ANN401  # also arrays, which share no class
    """Return the values that a column may have as a tuple.

    Raises:
        InvalidInputError: The values are a text, whose letters would be taken for values; or there is no value, or an
            invalid value.
    """
    require_sequence(f"values of {check}", members, "open")
    # An array of Arrow yields scalars, and only as a list values of Python. An array of NumPy yields its own values,
    # which `comparable` converts: its list would have numbers for moments.
    values = tuple(members.tolist() if hasattr(members, "tolist") and not hasattr(members, "dtype") else members)
    if not values:
        raise InvalidInputError(f"{check} allows no value; give at least one, such as values=('open',)")
    if any(member is None for member in values):
        raise InvalidInputError(f"{check} has None among its values; a null passes anyway, so leave None out")
    return tuple(comparable(check, member) for member in values)


def column_tuple(check: str, columns: object) -> tuple[str, ...]:
    """Return the name of a column, or several names, as a tuple.

    Raises:
        InvalidInputError: There is no name, or a name is not a text or is empty.
    """
    if not isinstance(columns, str):
        require_sequence(f"columns of {check}", columns, "id")
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, Iterable) else ()
    if not names:
        raise InvalidInputError(f"{check} has no column; give at least one, such as 'id'")
    for name in names:
        require_column(check, name)
    return names


def refuse_bounds(check: str, minimum: Any, maximum: Any) -> None:  # noqa: ANN401  # two bounds of one type
    """Refuse bounds that no value can be within.

    Raises:
        InvalidInputError: The minimum is above the maximum, or a bound is NaN.
    """
    for name, bound in (("minimum", minimum), ("maximum", maximum)):
        if isinstance(bound, float) and math.isnan(bound):
            raise InvalidInputError(f"{check} has {name} NaN, which no value can be compared with; give a number")
    # Lance SQL compares some types that Python does not, such as a date and a timestamp.
    with suppress(TypeError):
        if minimum is not None and maximum is not None and minimum > maximum:
            raise InvalidInputError(
                f"{check} has minimum {minimum} and maximum {maximum}, which nothing is between; give a minimum that "
                "is not above the maximum"
            )
