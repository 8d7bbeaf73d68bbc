"""Validate strings that callers give: names, messages, properties, settings, and names of branches and tags.

Strings are validated where they are given. Otherwise protobuf would refuse them when the manifest is encoded, with an
obscure error, after the data files were written.

Names of branches and tags obey the branch and tag specification and further rules. pylance accepts names that do harm:
a tag with non-ASCII letters makes it unable to list the tags of the table, and a branch named like a folder of the
table hides its files there. A name of digits reads as a version number, one of hexadecimal digits as a commit id. Only
new names are refused: names that other programs chose can still be read and deleted.
"""

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping

from lance_dagster.errors import InvalidInputError, InvalidRefNameError
from lance_dagster.format.layout import DATA, DELETIONS, INDICES, MAIN, TRANSACTIONS, VERSIONS


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


def check_string_mapping(what: str, given: object, *, removing: bool = False) -> None:
    """Refuse a value that is not a mapping from strings to strings.

    Args:
        what: The argument, for messages.
        given: The value.
        removing: Whether None is allowed as a value: it removes the key.

    Raises:
        InvalidInputError: The value is not a mapping; or names the first invalid key or value.
    """
    if not isinstance(given, Mapping):
        raise InvalidInputError(f"{what} have to be a mapping such as {{'ticket': '77'}}, not {reprlib.repr(given)}")
    for key, value in given.items():
        check_string(f"a key of the {what}", key)
        if not (removing and value is None):
            check_string(f"{key!r} of the {what}", value)


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


def validate_commit_info(message: object, properties: object) -> None:
    """Refuse a commit message or properties that cannot be stored.

    Raises:
        InvalidInputError: One of them is not made of strings.
    """
    if message is not None:
        check_string("the message", message)
    check_string_mapping("properties", properties)


# Folders of a table, and names with a fixed meaning in expressions.
_RESERVED = frozenset(
    {DATA, VERSIONS, TRANSACTIONS, DELETIONS, INDICES, MAIN, "HEAD", "_refs", "tree", "_blobs", "_fri", "_mem_wal"}
)
_ALLOWED = re.compile(r"[A-Za-z0-9._-]*")
_COMMIT_ID = re.compile(r"[0-9A-Fa-f]{8,64}")
_MAX_NAME = 200
_Rule = tuple[str, Callable[[str], bool]]

_COMMON: tuple[_Rule, ...] = (
    ("it cannot be empty", lambda name: not name),
    ("it cannot start or end with '/'", lambda name: name.startswith("/") or name.endswith("/")),
    ("it cannot contain '//'", lambda name: "//" in name),
    ("it cannot contain '\\'", lambda name: "\\" in name),
    ("it cannot contain '..'", lambda name: ".." in name),
    ("it cannot start with '-', which would read as an option of a command", lambda name: name.startswith("-")),
    ("no segment can start with '.', as hidden and temporary files do", lambda name: _any(name, _starts_hidden)),
    ("no segment can end with '.', or 'a...b' could be read in two ways", lambda name: _any(name, _ends_with_dot)),
    ("no segment can end with '.lock'", lambda name: _any(name, _is_lock)),
    (
        "it cannot be only digits, which would read as a version number",
        lambda name: name.replace("/", "").isdigit() and name.isascii(),
    ),
    (
        "it cannot be only hexadecimal digits, 8 or more of them, which would read as a commit id",
        lambda name: bool(_COMMIT_ID.fullmatch(name)),
    ),
    (
        f"it cannot be longer than {_MAX_NAME} characters, of which '/' counts as 3",
        lambda name: len(name) + 2 * name.count("/") > _MAX_NAME,
    ),
)


def check_branch_name(name: str) -> None:
    """Refuse a name that the specification, or pylance's behaviour, does not allow for a new branch.

    Raises:
        InvalidRefNameError: The name breaks a rule; the message states it.
        InvalidInputError: The name is not a string.
    """
    check_string("the name of a branch", name)
    rule = "'main' is reserved for the main branch" if name == MAIN else _broken(name) or _reserved(name)
    if rule:
        raise InvalidRefNameError("branch", name, rule)


def check_tag_name(name: str) -> None:
    """Refuse a name that the specification, or pylance's behaviour, does not allow for a new tag.

    Raises:
        InvalidRefNameError: The name breaks a rule; the message states it.
    """
    check_string("the name of a tag", name)
    rule = "'main' is reserved for the main branch" if name == MAIN else None
    if "/" in name:
        rule = "a tag name cannot contain '/'"
    rule = rule or _broken(name) or _reserved(name)
    if rule:
        raise InvalidRefNameError("tag", name, rule)


def _broken(name: str) -> str | None:
    rule = next((rule for rule, breaks in _COMMON if breaks(name)), None)
    if rule is not None:
        return rule
    bad = next((segment for segment in name.split("/") if not _ALLOWED.fullmatch(segment)), None)
    return bad and f"segments can contain only ASCII letters, digits, '.', '-' and '_', unlike {bad!r}"


def _reserved(name: str) -> str | None:
    reserved = sorted(_RESERVED.intersection(name.split("/")))
    if not reserved:
        return None
    if reserved[0] in (MAIN, "HEAD"):
        return f"no segment can be {reserved[0]!r}, which names a version"
    # A branch is a folder `tree/<name>/` with the folders of a table inside: a segment `data` would collide with them.
    return f"no segment can be {reserved[0]!r}, which names a folder of the table"


def _any(name: str, holds: Callable[[str], bool]) -> bool:
    return any(map(holds, name.split("/")))


def _starts_hidden(segment: str) -> bool:
    return segment.startswith(".")


def _ends_with_dot(segment: str) -> bool:
    return segment.endswith(".")


def _is_lock(segment: str) -> bool:
    return segment.endswith(".lock")
