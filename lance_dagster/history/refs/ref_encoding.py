"""Decode the files of branches and tags, and encode them.

Any program can write these files. What is malformed is refused with the name of the file, so that a damaged file of
one branch is found where it lies.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pendulum

from lance_dagster.errors import CorruptFileError
from lance_dagster.format import layout
from lance_dagster.format.layout import is_path_inside
from lance_dagster.format.validation import parsed_json
from lance_dagster.history.refs.ref_files import FIRST, LAST, LAST_FOUND, READY, STATE, STATES, Branch, Tag

_MAX_BYTES = 1_000_000
_LONGEST_PROBLEM = 200
_NUMBER = re.compile(r"[0-9]{1,19}")
T = TypeVar("T")


def parse_branch(name: str, data: bytes, path: str) -> Branch:
    """Parse the file of a branch.

    Raises:
        CorruptFileError: The bytes are not the file of a branch.
    """
    return _parsed(_branch_from_json, name, data, path)


def parse_tag(name: str, data: bytes, path: str) -> Tag:
    """Parse the file of a tag.

    Raises:
        CorruptFileError: The bytes are not the file of a tag.
    """
    return _parsed(_tag_from_json, name, data, path)


def _parsed(parse: Callable[[str, dict[str, Any]], T], name: str, data: bytes, path: str) -> T:
    # A ref is read at every use; a huge file would be damage, or an attack on the memory of readers.
    if len(data) > _MAX_BYTES:
        raise CorruptFileError(path, f"it has {len(data)} bytes, far more than a ref needs")
    try:
        content = parsed_json(data)
        if not isinstance(content, dict):
            raise CorruptFileError(path, "it does not hold a JSON object")
        return parse(name, content)
    # Everything that foreign JSON can cause, up to dates that the platform refuses: an error of another class would
    # name no file, and each command that lists refs would fail with it.
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM]
        raise CorruptFileError(path, f"it is not a branch or tag as Lance writes it: {problem}") from error


def _branch_from_json(name: str, content: dict[str, Any]) -> Branch:
    lineage = tuple(
        (_count(version), _text(own)) for version, own in (content.get("identifier") or {}).get("version_mapping", ())
    )
    parent = _branch_name(content.get("parentBranch"))
    if parent == name:
        raise ValueError("it says it was forked from itself")
    metadata = _metadata(content)
    # These are checked here, since the properties of `Branch` parse them without a way to report an error.
    if FIRST in metadata and not _NUMBER.fullmatch(metadata[FIRST]):
        raise ValueError(f"{metadata[FIRST]!r} is not a version number")
    if LAST in metadata and not LAST_FOUND.fullmatch(metadata[LAST]):
        raise ValueError(f"{metadata[LAST]!r} is not a version number and a time")
    if metadata.get(STATE, READY) not in STATES:
        raise ValueError(f"{metadata[STATE]!r} is not a state of a branch")
    return Branch(
        name=name,
        id=lineage[-1][1] if lineage else "",
        parent_branch=parent,
        parent_version=_count(content["parentVersion"]),
        created_at=pendulum.from_timestamp(_count(content["createAt"])),
        metadata=metadata,
        lineage=lineage,
        manifest_size=_count(content["manifestSize"]),
    )


def branch_file_of(branch: Branch) -> bytes:
    """Return the bytes of a branch's file."""
    return _json(
        {
            # pylance knows `main` only as the branch without a name.
            "parentBranch": None if branch.parent_branch == layout.MAIN else branch.parent_branch,
            "identifier": {"version_mapping": [list(entry) for entry in branch.lineage]},
            "parentVersion": branch.parent_version,
            "createAt": branch.created_at.int_timestamp,
            "manifestSize": branch.manifest_size,
            "metadata": dict(branch.metadata),
        }
    )


def _tag_from_json(name: str, content: dict[str, Any]) -> Tag:
    return Tag(
        name=name,
        branch=_branch_name(content.get("branch")),
        version=_count(content["version"]),
        created_at=_time(content.get("createdAt")),
        updated_at=_time(content.get("updatedAt")),
        metadata=_metadata(content),
        manifest_size=_count(content["manifestSize"]),
    )


def tag_file_of(tag: Tag) -> bytes:
    """Return the bytes of a tag's file."""
    now = pendulum.now("UTC")
    return _json(
        {
            "branch": None if tag.branch == layout.MAIN else tag.branch,
            "version": tag.version,
            "createdAt": (tag.created_at or now).isoformat(),
            "updatedAt": (tag.updated_at or now).isoformat(),
            "manifestSize": tag.manifest_size,
            "metadata": dict(tag.metadata),
        }
    )


def _count(value: object) -> int:
    # JSON has no unsigned integers, and True is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ValueError(f"{value!r} is not an unsigned 64-bit integer")
    return value


def _branch_name(value: object) -> str:
    """Read the name of a branch. It is a folder too, so a name that leads out of the table is refused."""
    if value is None or value == layout.MAIN:
        return layout.MAIN
    if not isinstance(value, str) or not is_path_inside(value):
        raise ValueError(f"{value!r} is not a branch name")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _metadata(content: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in (content.get("metadata") or {}).items()}


def _time(value: object) -> pendulum.DateTime | None:
    if value is None:
        return None
    text = _text(value).replace("Z", "+00:00")
    # pylance writes nanoseconds, and a datetime holds microseconds.
    seconds, dot, fraction = text.partition(".")
    if dot:
        digits = fraction[: next((at for at, c in enumerate(fraction) if not c.isdigit()), len(fraction))]
        text = f"{seconds}.{digits[:6]}{fraction[len(digits) :]}"
    return pendulum.instance(pendulum.DateTime.fromisoformat(text))


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()
