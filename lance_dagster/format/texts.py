"""Texts that callers give to be written down: names, messages, properties, settings.

What is none would be found out only where bytes are made of it, after the work is done, in words of the encoder.
"""

import reprlib
from collections.abc import Iterable, Mapping

from lance_dagster.errors import InvalidInputError


def check_text(what: str, given: object) -> None:
    """Refuse what cannot be written as a text.

    Raises:
        InvalidInputError: It is none, or has half of a character.
    """
    if not isinstance(given, str):
        raise InvalidInputError(f"{what} has to be a text, not {reprlib.repr(given)}")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        half = given[error.start]
        raise InvalidInputError(f"{what} has {half!r} at character {error.start}, half of a character") from error


def check_texts(what: str, given: object, *, removing: bool = False) -> None:
    """Refuse what is no mapping of texts; where keys can be taken out, None stands for that.

    Raises:
        InvalidInputError: Names the first that is wrong.
    """
    if not isinstance(given, Mapping):
        raise InvalidInputError(f"{what} have to be a mapping such as {{'ticket': '77'}}, not {reprlib.repr(given)}")
    for key, value in given.items():
        check_text(f"a key of the {what}", key)
        if not (removing and value is None):
            check_text(f"{key!r} of the {what}", value)


def refuse_lone_text(what: str, given: object, example: str) -> None:
    """Refuse one text where a list is wanted: Python would take it for a list of its characters.

    Raises:
        InvalidInputError: Shows how a list of one is written.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInputError(f"{what}: a list such as [{example!r}] is wanted, not {reprlib.repr(given)}")


def texts(what: str, given: object, example: str) -> tuple[str, ...]:
    """Return a list of texts that a caller gave.

    Args:
        what: The argument.
        given: What was given for it.
        example: What could be in the list.

    Raises:
        InvalidInputError: It is one text, no list, or has something else in it.
    """
    refuse_lone_text(what, given, example)
    found = tuple(given) if isinstance(given, Iterable) else ()
    for one in found:
        check_text(f"what is in {what}", one)
    return found


def check_said(message: object, properties: object) -> None:
    """Refuse what a commit cannot say about itself.

    Raises:
        InvalidInputError: Names what is wrong.
    """
    if message is not None:
        check_text("the message", message)
    check_texts("properties", properties)
