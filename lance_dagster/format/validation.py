"""Texts that callers give to be written down: names, messages, properties, settings.

What is none would be found out only where bytes are made of it, after the work is done, in words of the encoder.

What branches and tags may be called (branch and tag specification), and why we ask for more than it does.

pylance takes names that the specification allows and that do harm all the same: a tag in another alphabet makes it
unable to list the tags of the table, a branch called like a folder of the table hides its files there. A name of digits
alone reads as a version number, one of hexadecimal digits alone as a commit id. Such names are refused where they are
given. Names that other programs gave can be read, and deleted.
"""

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping

from lance_dagster.errors import InvalidInputError, InvalidRefNameError
from lance_dagster.format.layout import DATA, DELETIONS, INDICES, MAIN, TRANSACTIONS, VERSIONS


def check_string(what: str, given: object) -> None:
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


def check_string_mapping(what: str, given: object, *, removing: bool = False) -> None:
    """Refuse what is no mapping of texts; where keys can be taken out, None stands for that.

    Raises:
        InvalidInputError: Names the first that is wrong.
    """
    if not isinstance(given, Mapping):
        raise InvalidInputError(f"{what} have to be a mapping such as {{'ticket': '77'}}, not {reprlib.repr(given)}")
    for key, value in given.items():
        check_string(f"a key of the {what}", key)
        if not (removing and value is None):
            check_string(f"{key!r} of the {what}", value)


def require_sequence(what: str, given: object, example: str) -> None:
    """Refuse one text where a list is wanted: Python would take it for a list of its characters.

    Raises:
        InvalidInputError: Shows how a list of one is written.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInputError(f"{what}: a list such as [{example!r}] is wanted, not {reprlib.repr(given)}")


def string_list(what: str, given: object, example: str) -> tuple[str, ...]:
    """Return a list of texts that a caller gave.

    Args:
        what: The argument.
        given: What was given for it.
        example: What could be in the list.

    Raises:
        InvalidInputError: It is one text, no list, or has something else in it.
    """
    require_sequence(what, given, example)
    found = tuple(given) if isinstance(given, Iterable) else ()
    for one in found:
        check_string(f"what is in {what}", one)
    return found


def validate_commit_info(message: object, properties: object) -> None:
    """Refuse what a commit cannot say about itself.

    Raises:
        InvalidInputError: Names what is wrong.
    """
    if message is not None:
        check_string("the message", message)
    check_string_mapping("properties", properties)


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
        InvalidRefNameError: With the rule that is broken.
        InvalidInputError: It is no text.
    """
    check_string("the name of a branch", name)
    rule = "'main' is reserved for the main branch" if name == MAIN else _broken(name) or _reserved(name)
    if rule:
        raise InvalidRefNameError("branch", name, rule)


def check_tag_name(name: str) -> None:
    """Refuse a name that the specification, or pylance's behaviour, does not allow for a new tag.

    Raises:
        InvalidRefNameError: With the rule that is broken.
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
    # Branches are folders: a segment called like a folder of a table, or of another branch, would hide in it.
    return f"no segment can be {reserved[0]!r}, which names a folder of the table"


def _any(name: str, holds: Callable[[str], bool]) -> bool:
    return any(map(holds, name.split("/")))


def _starts_hidden(segment: str) -> bool:
    return segment.startswith(".")


def _ends_with_dot(segment: str) -> bool:
    return segment.endswith(".")


def _is_lock(segment: str) -> bool:
    return segment.endswith(".lock")
