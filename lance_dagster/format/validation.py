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


def check_string(what: str, value: object) -> None:
    """Refuse a value that cannot be encoded as a UTF-8 string; `what` names the argument in messages.

    Raises:
        InvalidInputError: The value is not a string, or contains an unpaired surrogate.
    """
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} has to be a string, not {reprlib.repr(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        surrogate = value[error.start]
        raise InvalidInputError(
            f"{what} has {surrogate!r} at character {error.start}, an unpaired surrogate that UTF-8 cannot encode"
        ) from error


def check_pattern(pattern: object) -> None:
    """Refuse a glob pattern that is not a string, or so long that it takes time to translate.

    Raises:
        InvalidInputError: It is not a string, or has more than 256 characters.
    """
    check_string("a pattern", pattern)
    if len(str(pattern)) > LONGEST_PATTERN:
        raise InvalidInputError(
            f"a pattern has at most {LONGEST_PATTERN} characters, and the pattern that starts with "
            f"{str(pattern)[:40]!r} has {len(str(pattern))}"
        )


def check_string_mapping(what: str, mapping: object, *, removing: bool = False) -> None:
    """Refuse a value that is not a mapping from strings to strings.

    Args:
        what: The argument, for messages.
        mapping: The value.
        removing: Whether None is allowed as a value: it removes the key.

    Raises:
        InvalidInputError: The value is not a mapping, or a key or value is invalid; the error names the first.
    """
    for key, value in require_mapping(what, mapping, "{'ticket': '77'}").items():
        check_string(f"a key of the {what}", key)
        if not (removing and value is None):
            check_string(f"{key!r} of the {what}", value)


def require_mapping(what: str, mapping: object, example: str) -> Mapping[Any, Any]:
    """Return a mapping, and refuse any other value, also pairs that `dict` would accept.

    Raises:
        InvalidInputError: The value is not a mapping; the message shows the example.
    """
    if not isinstance(mapping, Mapping):
        raise InvalidInputError(f"{what} have to be a mapping such as {example}, not {reprlib.repr(mapping)}")
    return mapping


def check_class(what: str, value: object, kind: type, example: str) -> None:
    """Refuse a value of another class.

    Raises:
        InvalidInputError: The message names the class, and shows how to get an object of it.
    """
    if not isinstance(value, kind):
        raise InvalidInputError(f"{what} has to be a {kind.__name__}, such as {example}, not {reprlib.repr(value)}")


def check_names(what: str, names: Iterable[str], allowed: Collection[str]) -> None:
    """Refuse names that are not known; the message has the nearest known name.

    Args:
        what: What the names are, for messages, such as "option of stage".
        names: The names.
        allowed: The names that are allowed.

    Raises:
        InvalidInputError: A name is unknown.
    """
    for name in names:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(allowed)}"
            raise InvalidInputError(f"unknown {what} {name!r}; {hint}")


def check_options(call: Callable[..., object], keywords: Iterable[str], options: type) -> None:
    """Refuse keyword arguments that a function does not have; `Unpack` declares them for type checkers only.

    Args:
        call: The function.
        keywords: The keywords that reached its `**options`.
        options: The `TypedDict` of its options.

    Raises:
        InvalidInputError: A keyword is unknown; without this check it would be ignored.
    """
    parameters = inspect.signature(call).parameters.values()
    named = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    check_names(f"option of {call.__name__}", keywords, (*named, *options.__annotations__))


def require_sequence(what: str, value: object, example: str) -> None:
    """Refuse a single string where a sequence is expected: Python would iterate over its characters.

    Raises:
        InvalidInputError: The value is a string or not iterable; the message shows a list of one element.
    """
    # `bytes` is iterable as well, and would yield integers.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidInputError(f"{what}: must be a list such as [{example!r}], not {reprlib.repr(value)}")


def string_list(what: str, value: object, example: str) -> tuple[str, ...]:
    """Return a sequence of strings as a tuple.

    Args:
        what: The argument, for messages.
        value: The value.
        example: An element that would be valid, for messages.

    Raises:
        InvalidInputError: The value is a single string, is not iterable, or has an element that is not a string.
    """
    require_sequence(what, value, example)
    elements = tuple(value) if isinstance(value, Iterable) else ()
    for element in elements:
        check_string(f"an element of {what}", element)
    return elements


def whole_number(what: str, value: object, least: int) -> int:
    """Return a whole number, also one of another type such as numpy's.

    Raises:
        InvalidInputError: The value is not a whole number, or less than `least`.
    """
    # True is an int in Python, and would mean 1.
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        # Arrays have `__index__` too, which raises unless they are a single number.
        with suppress(TypeError):
            if (number := operator.index(value)) >= least:
                return number
    raise InvalidInputError(f"{what} has to be a whole number of {least} or more, not {reprlib.repr(value)}")


def optional_limit(what: str, value: object) -> int | None:
    """Return how many items a caller asks for at most; None for all.

    Raises:
        InvalidInputError: The value is not None, and not a whole number of 0 or more.
    """
    limit = None if value is None else whole_number(what, value, 0)
    # More than there can be. Slices of Arrow and `islice` take no number of 2**63 or more, and callers may add to it.
    return None if limit is not None and limit >= _UNCOUNTABLE else limit


def web_address(what: str, value: object) -> str:
    """Return the address of a web site without its last slash; empty where no address is given.

    Raises:
        InvalidInputError: The value is not an address. Any other scheme, such as `javascript:`, would run in the
            browser of a person who clicks a link that begins with it.
    """
    check_string(what, value)
    address = str(value).rstrip("/")
    if address and not address.lower().startswith(("http://", "https://")):
        raise InvalidInputError(f"{what} has to begin with http:// or https://, not {reprlib.repr(value)}")
    return address


def check_flag(what: str, value: object) -> None:
    """Refuse a value that is neither True nor False: None would count as False, and text such as "no" as True.

    Raises:
        InvalidInputError: The value is not a boolean.
    """
    if type(value) is not bool:
        raise InvalidInputError(f"{what} has to be True or False, not {reprlib.repr(value)}")


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
        ValueError: The text is not JSON in UTF-8, or its brackets are nested too deep for the parser.
    """
    try:
        return json.loads(text)
    except RecursionError:
        # The error of Python has thousands of frames, and every caller would have to know it beside `ValueError`.
        raise ValueError("its brackets are nested too deep") from None
