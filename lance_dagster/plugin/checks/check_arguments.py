"""Refuse arguments with which a check, or the operation of a table, would do something else than it says.

They are refused when definitions load. In a run the mistake would be found after the rows were written, or not at all:
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

# What may hold a parenthesis that does not group: texts, quoted names and comments.


def require_text(what: str, given: object, example: str) -> None:
    """Refuse a value that is not a text, or that is empty.

    Raises:
        InvalidInputError: The message names the argument as `what`, and has the example.
    """
    check_string(what, given)
    if not given:
        raise InvalidInputError(f"{what} is empty; give one such as {example!r}")


def require_column(check: str, given: object) -> None:
    """Refuse a value that cannot be the name of a column; `check` is the class of the check, for the message.

    Raises:
        InvalidInputError: The value is not a text, or is empty.
    """
    require_text(f"the column of {check}", given, "id")


def require_number(what: str, given: object, *, optional: bool = False, least: float = -math.inf) -> None:
    """Refuse a value that is not a number, or is NaN; a bool is not a number. With `optional`, None is allowed.

    Raises:
        InvalidInputError: The message names the argument as `what`.
    """
    if optional and given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        raise InvalidInputError(f"{what} has to be a number, such as 0.05, not {shortened(given)}")
    if given < least:
        raise InvalidInputError(f"{what} has to be {least:g} or more, not {shortened(given)}")


def require_duration(what: str, given: object, *, least: timedelta = timedelta(0)) -> None:
    """Refuse a value that is not a duration of zero or more. A number is refused, because its unit would be a guess.

    Args:
        what: The argument, for messages.
        given: The value.
        least: The shortest duration that is allowed.

    Raises:
        InvalidInputError: The message names the argument as `what`.
    """
    if not isinstance(given, timedelta) or given < least:
        allowed = "of zero or more" if not least else "above zero"
        raise InvalidInputError(
            f"{what}={given!r} is not a duration {allowed}; give a timedelta, such as timedelta(days=1)"
        )


def comparable(check: str, given: Any) -> Any:  # noqa: ANN401  # a value of any type that Lance SQL can compare
    """Return a value that a column is compared with; values of NumPy become those of Python, which SQL is made of.

    Raises:
        InvalidInputError: Nothing can be compared with the value, as with NaN, or Lance SQL has no literal for it.
    """
    found = given.item() if hasattr(given, "item") and not getattr(given, "shape", ()) else given
    numpy_kind = getattr(getattr(given, "dtype", None), "kind", "")
    if isinstance(found, int) and numpy_kind == "M":
        # NumPy gives a moment in units that Python has no datetime for as a number.
        found = given.astype("datetime64[us]").item()
        if not isinstance(found, date) or given.astype("datetime64[us]") != given:
            raise InvalidInputError(
                f"{check} has the value {shortened(given)}, which a datetime of Python cannot hold; give a moment "
                "of whole microseconds in the years 1 to 9999, or a timestamp of pandas"
            )
    known = isinstance(found, int | float | str | date) and numpy_kind != "m"
    if not known or (isinstance(found, float) and not math.isfinite(found)):
        raise InvalidInputError(
            f"{check} has the value {shortened(given)}; give finite numbers, texts, dates or datetimes"
        )
    if isinstance(found, str):
        check_string(f"a value of {check}", found)
    return found


def value_tuple(check: str, given: Any) -> tuple[Any, ...]:  # noqa: ANN401  # also arrays, which share no class
    """Return the values that a column may have as a tuple.

    Raises:
        InvalidInputError: They are a text, whose letters would be taken for values, there is none, or one is invalid.
    """
    require_sequence(f"values of {check}", given, "open")
    # An array of Arrow yields scalars, and only as a list values of Python. One of NumPy yields its own values, which
    # `comparable` converts: its list would have numbers for moments.
    values = tuple(given.tolist() if hasattr(given, "tolist") and not hasattr(given, "dtype") else given)
    if not values:
        raise InvalidInputError(f"{check} allows no value; give at least one, such as values=('open',)")
    if any(one is None for one in values):
        raise InvalidInputError(f"{check} has None among its values; a null passes anyway, so leave None out")
    return tuple(comparable(check, one) for one in values)


def column_tuple(check: str, given: object) -> tuple[str, ...]:
    """Return one column, or several of them, as a tuple.

    Raises:
        InvalidInputError: There is none, or one is not a text or is empty.
    """
    if not isinstance(given, str):
        require_sequence(f"columns of {check}", given, "id")
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not found:
        raise InvalidInputError(f"{check} has no column; give at least one, such as 'id'")
    for one in found:
        require_column(check, one)
    return found


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
