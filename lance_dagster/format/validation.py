"""Validate strings that callers give: names, messages, properties and settings; and parse JSON of other programs.

Strings are validated where they are given. Otherwise protobuf would refuse them when the manifest is encoded, with an
obscure error, after the data files were written.
"""

import difflib
import inspect
import json
import operator
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, SupportsIndex

from lance_dagster.errors import InvalidInputError

_UNCOUNTABLE = 2**62
LONGEST_PATTERN = 256
"""Characters of a glob pattern. Names of branches are shorter, and a pattern takes time by the square of its length."""


def check_string(what: str, given: object) -> None:
    """Refuse a value that cannot be encoded as a UTF-8 string; `what` names the argument in messages.

    Raises:
        InvalidInputError: The value is not a string, or contains an unpaired surrogate.
    """
    if not isinstance(given, str):
        raise InvalidInputError(f"{what} has to be a string, not {reprlib.repr(given)}")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        surrogate = given[error.start]
        raise InvalidInputError(
            f"{what} has {surrogate!r} at character {error.start}, an unpaired surrogate that UTF-8 cannot encode"
        ) from error


def check_pattern(pattern: object) -> None:
    """Refuse a glob pattern that is no string, or so long that it takes time to translate.

    Raises:
        InvalidInputError: It is not a string, or has more than 256 characters.
    """
    check_string("a pattern", pattern)
    if len(str(pattern)) > LONGEST_PATTERN:
        raise InvalidInputError(
            f"a pattern has at most {LONGEST_PATTERN} characters, and one that starts with {str(pattern)[:40]!r} has "
            f"{len(str(pattern))}"
        )


def check_string_mapping(what: str, given: object, *, removing: bool = False) -> None:
    """Refuse a value that is not a mapping from strings to strings.

    Args:
        what: The argument, for messages.
        given: The value.
        removing: Whether None is allowed as a value: it removes the key.

    Raises:
        InvalidInputError: The value is not a mapping, or a key or value is invalid; the error names the first one.
    """
    for key, value in require_mapping(what, given, "{'ticket': '77'}").items():
        check_string(f"a key of the {what}", key)
        if not (removing and value is None):
            check_string(f"{key!r} of the {what}", value)


def require_mapping(what: str, given: object, example: str) -> Mapping[Any, Any]:
    """Return a mapping, and refuse any other value, also pairs that `dict` would take for one.

    Raises:
        InvalidInputError: The value is not a mapping; the message shows the example.
    """
    if not isinstance(given, Mapping):
        raise InvalidInputError(f"{what} have to be a mapping such as {example}, not {reprlib.repr(given)}")
    return given


def check_class(what: str, given: object, kind: type, example: str) -> None:
    """Refuse a value of another class.

    Raises:
        InvalidInputError: The message names the class, and shows how to get an object of it.
    """
    if not isinstance(given, kind):
        raise InvalidInputError(f"{what} has to be a {kind.__name__}, such as {example}, not {reprlib.repr(given)}")


def check_names(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not known; the message has the nearest known name.

    Args:
        what: What the names are, for messages, such as "option of stage".
        given: The names.
        known: The names that are allowed.

    Raises:
        InvalidInputError: A name is unknown.
    """
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise InvalidInputError(f"unknown {what} {name!r}; {hint}")


def check_options(call: Callable[..., object], given: Iterable[str], options: type) -> None:
    """Refuse keyword arguments that a function does not have; `Unpack` declares them for type checkers only.

    Args:
        call: The function.
        given: The keywords that reached its `**options`.
        options: The `TypedDict` of its options.

    Raises:
        InvalidInputError: A keyword is unknown; without this check it would be ignored.
    """
    parameters = inspect.signature(call).parameters.values()
    named = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    check_names(f"option of {call.__name__}", given, (*named, *options.__annotations__))


def require_sequence(what: str, given: object, example: str) -> None:
    """Refuse a single string where a sequence is expected: Python would iterate over its characters.

    Raises:
        InvalidInputError: The value is a string or not iterable; the message shows a list of one element.
    """
    # `bytes` is iterable as well, and would yield integers.
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInputError(f"{what}: a list such as [{example!r}] is wanted, not {reprlib.repr(given)}")


def string_list(what: str, given: object, example: str) -> tuple[str, ...]:
    """Return a sequence of strings as a tuple.

    Args:
        what: The argument, for messages.
        given: The value.
        example: An element that would be valid, for messages.

    Raises:
        InvalidInputError: The value is a single string, is not iterable, or has an element that is not a string.
    """
    require_sequence(what, given, example)
    found = tuple(given) if isinstance(given, Iterable) else ()
    for one in found:
        check_string(f"an element of {what}", one)
    return found


def whole_number(what: str, given: object, least: int) -> int:
    """Return a whole number, also one of another type such as numpy's.

    Raises:
        InvalidInputError: The value is not a whole number, or less than `least`.
    """
    # True is an int in Python, and would mean one.
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        # Arrays have `__index__` too, which raises unless they are a single number.
        with suppress(TypeError):
            if (found := operator.index(given)) >= least:
                return found
    raise InvalidInputError(f"{what} has to be a whole number of {least} or more, not {reprlib.repr(given)}")


def optional_limit(what: str, given: object) -> int | None:
    """Return the largest number of things that are wanted; None for all of them.

    Raises:
        InvalidInputError: The value is not None, and not a whole number of 0 or more.
    """
    found = None if given is None else whole_number(what, given, 0)
    # More than there can be. Slices of Arrow and `islice` take no number of 2**63 or more, and callers may add to it.
    return None if found is not None and found >= _UNCOUNTABLE else found


def check_flag(what: str, given: object) -> None:
    """Refuse a value that is neither True nor False: None or text such as "no" would count as one of them.

    Raises:
        InvalidInputError: The value is not a boolean.
    """
    if type(given) is not bool:
        raise InvalidInputError(f"{what} has to be True or False, not {reprlib.repr(given)}")


def validate_commit_info(message: object, properties: object) -> None:
    """Refuse a commit message or properties that cannot be stored.

    Raises:
        InvalidInputError: One of them is not made of strings.
    """
    if message is not None:
        check_string("the message", message)
    check_string_mapping("properties", properties)


def parsed_json(text: str | bytes) -> Any:  # noqa: ANN401  # JSON is anything
    """Parse JSON that any program may have written.

    Raises:
        ValueError: It is no JSON in UTF-8, or its brackets are nested too deep for the parser.
    """
    try:
        return json.loads(text)
    except RecursionError:
        # The error of Python has thousands of frames, and every caller would have to know it beside `ValueError`.
        raise ValueError("its brackets are nested too deep") from None
