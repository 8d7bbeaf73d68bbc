"""Check which names a branch or a tag may get.

Names of branches and tags obey the branch and tag specification and further rules. pylance accepts names that do harm:
a tag with non-ASCII letters makes it unable to list the tags of the table, and a branch named like a folder of the
table hides its files there. A name of digits reads as a version number, a name of hexadecimal digits as a commit id.
Only new names are refused: names that other programs chose can still be read and deleted.
"""

import re
from collections.abc import Callable

from lance_dagster.errors import InvalidRefNameError
from lance_dagster.format.layout import DATA, DELETIONS, INDICES, MAIN, TRANSACTIONS, VERSIONS
from lance_dagster.format.validation import check_string

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
    ("no segment can start with '.', as hidden and temporary files do", lambda name: "/." in f"/{name}"),
    ("no segment can end with '.', or 'a...b' could be read in two ways", lambda name: "./" in f"{name}/"),
    ("no segment can end with '.lock'", lambda name: ".lock/" in f"{name}/"),
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
    """Refuse a name that a new branch cannot have by the specification, or that would do harm in pylance.

    Raises:
        InvalidRefNameError: The name breaks a rule; the message states it.
        InvalidInputError: The name is not a string.
    """
    check_string("the name of a branch", name)
    rule = "'main' is reserved for the main branch" if name == MAIN else _broken(name) or _reserved(name)
    if rule:
        raise InvalidRefNameError("branch", name, rule)


def check_tag_name(name: str) -> None:
    """Refuse a name that a new tag cannot have by the specification, or that would do harm in pylance.

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
