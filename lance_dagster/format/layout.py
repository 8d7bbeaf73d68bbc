"""Where files of a table lie and what they may be called (storage layout, branch and tag specifications).

    {root}/_versions/{2^64-1-version:020}.manifest     so that the newest version is listed first
    {root}/_transactions/{read version}-{uuid}.txn
    {root}/_deletions/{fragment}-{read version}-{id}.arrow|bin
    {root}/data/*.lance                                 data files of main and of every branch this package writes
    {root}/_refs/branches/{name, "/" as %2F}.json
    {root}/_refs/tags/{name}.json
    {root}/tree/{branch name}/                          a branch: the same folders again

All paths here are relative to the table's root, with "/" between segments.
"""

import re
from collections.abc import Iterable, Sequence

from lance_dagster.errors import InvalidRefNameError
from lance_dagster.format.model import DeletionFile

MAIN = "main"
DATA = "data"
VERSIONS = "_versions"
TRANSACTIONS = "_transactions"
DELETIONS = "_deletions"
INDICES = "_indices"
BRANCHES = "_refs/branches"
TAGS = "_refs/tags"
HINT = f"{VERSIONS}/latest_version_hint.json"
_MAX_VERSION = 2**64 - 1
_MANIFEST_NAME = re.compile(r"(\d{20})\.manifest")
_OLD_MANIFEST_NAME = re.compile(r"(\d{1,19})\.manifest")
_MANIFEST_NAME_LENGTH = 29
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_RESERVED = frozenset({DATA, VERSIONS, TRANSACTIONS, DELETIONS, INDICES, "_refs", "tree", MAIN, "HEAD"})
_MAX_NAME = 200
DELETION_SUFFIXES = {0: "arrow", 1: "bin"}


def manifest_name(version: int) -> str:
    """Return the file name of a version: numbers run backwards, so that a listing starts with the newest."""
    return f"{_MAX_VERSION - version:020d}.manifest"


def version_of(name: str) -> int | None:
    """Return the version a file name in `_versions/` stands for; None for temporary files, hints and the like."""
    match = _MANIFEST_NAME.fullmatch(name)
    return _MAX_VERSION - int(match[1]) if match and int(match[1]) <= _MAX_VERSION else None


def old_manifest_name(version: int) -> str:
    """Return the file name of a version in the first naming scheme."""
    return f"{version}.manifest"


def old_version_of(name: str) -> int | None:
    """Return the version a file name of the first naming scheme stands for; None for any other name."""
    match = _OLD_MANIFEST_NAME.fullmatch(name)
    return int(match[1]) if match else None


def versions_in(names: Iterable[str]) -> tuple[list[int], list[int]]:
    """Return the versions in a listing, by names of the present scheme and of the first one, in the listing's order."""
    present, old = [], []
    for name in names:
        # Told by their length: a folder may hold very many versions, and hardly anything else.
        if len(name) == _MANIFEST_NAME_LENGTH:
            number = version_of(name)
            if number is not None:
                present.append(number)
        elif (number := old_version_of(name)) is not None:
            old.append(number)
    return present, old


def newest_among(names: Sequence[str]) -> Sequence[str]:
    """Return the names of a listing among which the newest version's is: very few when all are of the present scheme.

    Where names are of both schemes, some of each are returned.
    """
    others = [name for name in names if len(name) != _MANIFEST_NAME_LENGTH]
    # The names of detached versions are as long; they begin with a letter, which comes after every digit.
    newest = min((name for name in names if len(name) == _MANIFEST_NAME_LENGTH), default=None)
    if newest is None:
        return others
    return [newest, *others] if version_of(newest) is not None else names


def line_root(branch: str) -> str:
    """Return the folder a branch's versions lie under: empty for `main`."""
    return "" if branch == MAIN else f"tree/{branch}"


def join(*parts: str) -> str:
    """Join path segments, leaving out empty ones."""
    return "/".join(part for part in parts if part)


def deletion_path(fragment_id: int, deletion: DeletionFile) -> str:
    """Return the path of a deletion file, relative to the root it lies under."""
    suffix = DELETION_SUFFIXES[deletion.kind]
    return f"{DELETIONS}/{fragment_id}-{deletion.read_version}-{deletion.id}.{suffix}"


def branch_file(name: str) -> str:
    """Return the path of the file that holds a branch's metadata."""
    return f"{BRANCHES}/{name.replace('/', '%2F')}.json"


def tag_file(name: str) -> str:
    """Return the path of the file that holds a tag."""
    return f"{TAGS}/{name}.json"


def name_of_branch_file(file_name: str) -> str | None:
    """Return the branch a file in `_refs/branches/` describes, or None when it is not a branch's file."""
    return file_name[:-5].replace("%2F", "/") if file_name.endswith(".json") else None


def name_of_tag_file(file_name: str) -> str | None:
    """Return the tag a file in `_refs/tags/` describes, or None when it is not a tag's file."""
    return file_name[:-5] if file_name.endswith(".json") else None


def check_branch_name(name: str) -> None:
    """Refuse a name that the specification, or pylance's behaviour, does not allow for a new branch.

    Raises:
        InvalidRefNameError: With the rule that is broken.
    """
    rule = _branch_rule(name) or _common_rule(name)
    if rule:
        raise InvalidRefNameError("branch", name, rule)


def check_tag_name(name: str) -> None:
    """Refuse a name that the specification, or pylance's behaviour, does not allow for a new tag.

    Raises:
        InvalidRefNameError: With the rule that is broken.
    """
    rule = None
    if "/" in name:
        rule = "a tag name cannot contain '/'"
    elif name.startswith("."):
        rule = "it cannot start with '.'"
    rule = rule or _common_rule(name)
    if rule:
        raise InvalidRefNameError("tag", name, rule)


def _branch_rule(name: str) -> str | None:
    if name == MAIN:
        return "'main' is reserved for the main branch"
    if name.startswith("/") or name.endswith("/"):
        return "it cannot start or end with '/'"
    if "//" in name:
        return "it cannot contain '//'"
    reserved = sorted(_RESERVED.intersection(name.split("/")))
    if reserved:
        # Branches are folders: a segment called like a folder of the table would hide in it.
        return f"no segment can be {reserved[0]!r}, which names a folder of the table"
    return None


def _common_rule(name: str) -> str | None:
    rules = {
        "it cannot be empty": not name,
        "it cannot contain '\\'": "\\" in name,
        "it cannot contain '..'": ".." in name,
        "it cannot end with '.lock'": name.endswith(".lock"),
        "it cannot end with '.'": name.endswith("."),
        "it cannot be only digits, which would read as a version number": name.replace("/", "").isdigit(),
        f"it cannot be longer than {_MAX_NAME} characters": len(name) > _MAX_NAME,
    }
    broken = next((rule for rule, holds in rules.items() if holds), None)
    if broken is not None:
        return broken
    bad = next((segment for segment in name.split("/") if not _SEGMENT.fullmatch(segment)), None)
    # Lance also takes other alphabets, and then cannot list the tags of the table any more.
    return bad and f"segments can contain only ASCII letters, digits, '.', '-' and '_', unlike {bad!r}"
