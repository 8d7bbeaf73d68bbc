"""Branches and tags as they are stored: one small JSON file each, in the shape pylance reads and writes.

    branch  {"parentBranch", "identifier": {"version_mapping": [[version, id], ...]}, "parentVersion", "createAt",
             "manifestSize", "metadata"}
    tag     {"branch", "version", "createdAt", "updatedAt", "manifestSize", "metadata"}

`identifier` is the branch's lineage, one entry per ancestor from main down, the last one its own. pylance's clean-up
of a parent looks at a branch before it deletes files only if the version in the first entry is one it would delete
or cannot find. Ours is one that can never exist, so it always looks; `parentVersion` tells the truth.
"""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptFileError,
    RefMovedError,
    RefNotFoundError,
    StoreError,
)
from lance_dagster.format import layout
from lance_dagster.format.paths import is_path_inside
from lance_dagster.store import Store

NEVER_A_VERSION = 2**53
STATE = "lance_dagster.state"
CREATING, READY, DELETING = "creating", "ready", "deleting"
WRITE_ID = "lance_dagster.write"
_MAX_BYTES = 1_000_000
_LONGEST_PROBLEM = 200
_ATTEMPTS = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A line of versions of its own, forked from a version of another."""

    name: str
    id: str
    parent_branch: str
    parent_version: int
    created_at: pendulum.DateTime
    metadata: Mapping[str, str] = field(default_factory=dict)
    lineage: tuple[tuple[int, str], ...] = ()
    manifest_size: int = 0

    @property
    def parent(self) -> str:
        """The version it was forked from, such as `main@16`."""
        return f"{self.parent_branch}@{self.parent_version}"

    @property
    def state(self) -> str:
        """Whether it is being created, ready or being deleted; a branch made by pylance is ready."""
        return self.metadata.get(STATE, READY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A name for one version."""

    name: str
    branch: str
    version: int
    created_at: pendulum.DateTime | None = None
    updated_at: pendulum.DateTime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    manifest_size: int = 0

    @property
    def ref(self) -> str:
        """The version it names, such as `main@9`."""
        return f"{self.branch}@{self.version}"


@dataclass(frozen=True, slots=True)
class Refs:
    """The branches and tags of one table."""

    store: Store

    def branches(self) -> dict[str, Branch]:
        """Read every branch, those being created or deleted included."""
        return self._all(layout.BRANCHES, layout.name_of_branch_file, self.branch)

    def tags(self) -> dict[str, Tag]:
        """Read every tag."""
        return self._all(layout.TAGS, layout.name_of_tag_file, self.tag)

    def branch(self, name: str) -> Branch | None:
        """Read one branch, or return None."""
        if not is_path_inside(name):
            return None
        path = layout.branch_file(name)
        data = self.store.get(path)
        return None if data is None else _parsed(_branch_from_json, name, data, f"{self.store.uri}/{path}")

    def tag(self, name: str) -> Tag | None:
        """Read one tag, or return None."""
        if not is_path_inside(name):
            return None
        path = layout.tag_file(name)
        data = self.store.get(path)
        return None if data is None else _parsed(_tag_from_json, name, data, f"{self.store.uri}/{path}")

    def add_branch(self, branch: Branch) -> Branch:
        """Take a branch name, unless it is taken; returns the branch that has it."""
        path = layout.branch_file(branch.name)
        if self._put_once(path, _branch_to_json(branch)):
            return branch
        taken = self.branch(branch.name)
        if taken is None:
            raise StoreError(f"branch {branch.name!r} of {self.store.uri} came and went while it was made; try again")
        return taken

    def set_branch_state(self, branch: Branch, state: str) -> Branch:
        """Record that a branch is ready or being deleted. Someone else having done so already is fine.

        Raises:
            RefMovedError: The branch was deleted and made again meanwhile.
            ConflictError: It is being deleted, which nothing undoes.
        """
        path = layout.branch_file(branch.name)
        for _ in range(_ATTEMPTS):
            found = self.store.get_with_tag(path)
            current = None
            if found is not None:
                current = _parsed(_branch_from_json, branch.name, found[0], f"{self.store.uri}/{path}")
            if found is None or current is None or current.id != branch.id:
                raise RefMovedError(branch.name, branch.id, "another branch" if current else "nothing")
            if current.state == state:
                return current
            if current.state == DELETING:
                raise ConflictError(f"branch {branch.name!r} of {self.store.uri} is being deleted; try again")
            changed = replace(current, metadata={**current.metadata, STATE: state})
            if self.store.compare_and_swap(path, _branch_to_json(changed), found[1]):
                return changed
        raise StoreError(f"cannot mark branch {branch.name!r} of {self.store.uri} as {state}: it keeps changing")

    def remove_branch(self, name: str) -> None:
        """Free a branch's name."""
        self.store.delete(layout.branch_file(name))

    def add_tag(self, tag: Tag) -> Tag:
        """Create a tag.

        Raises:
            AlreadyExistsError: There is one of that name.
        """
        marked = _marked(tag)
        if not self._put_once(layout.tag_file(tag.name), _tag_to_json(marked)):
            raise AlreadyExistsError(f"tag {tag.name!r} of {self.store.uri} exists; move it instead")
        return marked

    def swap_tag(self, tag: Tag, expected: str | None = None) -> Tag:
        """Point an existing tag elsewhere, by compare-and-swap.

        Args:
            tag: What it shall be.
            expected: The version it has to point to now, such as `main@9`; None for any.

        Raises:
            RefMovedError: It points elsewhere, or was moved between reading and writing.
            RefNotFoundError: There is no such tag.
        """
        path = layout.tag_file(tag.name)
        found = self.store.get_with_tag(path)
        if found is None:
            raise RefNotFoundError(tag.name, list(self.tags()), self.store.uri)
        current = _parsed(_tag_from_json, tag.name, found[0], f"{self.store.uri}/{path}")
        if expected is not None and current.ref != expected:
            raise RefMovedError(tag.name, expected, current.ref)
        marked = _marked(replace(tag, created_at=current.created_at))
        try:
            if self.store.compare_and_swap(path, _tag_to_json(marked), found[1]):
                return marked
        except StoreError:
            # The answer may be lost and the tag moved: only what is stored tells.
            if not self._is_ours(marked):
                raise
            return marked
        if self._is_ours(marked):
            return marked
        now = self.tag(tag.name)
        raise RefMovedError(tag.name, current.ref, now.ref if now else "nothing")

    def remove_tag(self, name: str) -> None:
        """Delete a tag."""
        self.store.delete(layout.tag_file(name))

    def _is_ours(self, tag: Tag) -> bool:
        now = self.tag(tag.name)
        return now is not None and now.metadata.get(WRITE_ID) == tag.metadata[WRITE_ID]

    def _put_once(self, path: str, data: bytes) -> bool:
        """Put if absent, taking our own object for success when the answer to the first request was lost."""
        return self.store.put_if_absent(path, data) or self.store.get(path) == data

    def _all(self, folder: str, name_of: Callable[[str], str | None], read: Callable[[str], T | None]) -> dict[str, T]:
        found: dict[str, T] = {}
        for file in self.store.list(folder):
            name = name_of(file)
            value = read(name) if name else None
            if name and value is not None:
                found[name] = value
        return found


def new_branch(
    name: str, parent: Branch | None, *, version: int, manifest_size: int, metadata: Mapping[str, str]
) -> Branch:
    """Describe a branch about to be made from `version` of `parent`, None for `main`."""
    own = uuid.uuid4().hex
    return Branch(
        name=name,
        id=own,
        parent_branch=parent.name if parent else layout.MAIN,
        parent_version=version,
        created_at=pendulum.now("UTC").replace(microsecond=0),
        metadata={**metadata, STATE: CREATING},
        lineage=(*(parent.lineage if parent else ()), (NEVER_A_VERSION, own)),
        manifest_size=manifest_size,
    )


def _marked(tag: Tag) -> Tag:
    return replace(tag, metadata={**tag.metadata, WRITE_ID: uuid.uuid4().hex})


def _parsed(parse: Callable[[str, dict[str, Any]], T], name: str, data: bytes, path: str) -> T:
    if len(data) > _MAX_BYTES:
        raise CorruptFileError(path, f"it has {len(data)} bytes, far more than a ref needs")
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise CorruptFileError(path, "it does not hold a JSON object")
        return parse(name, found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM]
        raise CorruptFileError(path, f"it is not a branch or tag as Lance writes it: {problem}") from error


def _branch_from_json(name: str, found: dict[str, Any]) -> Branch:
    lineage = tuple(
        (_count(version), _text(own)) for version, own in (found.get("identifier") or {}).get("version_mapping", ())
    )
    parent = _line(found.get("parentBranch"))
    if parent == name:
        raise ValueError("it says it was forked from itself")
    return Branch(
        name=name,
        id=lineage[-1][1] if lineage else "",
        parent_branch=parent,
        parent_version=_count(found["parentVersion"]),
        created_at=pendulum.from_timestamp(_count(found["createAt"])),
        metadata=_metadata(found),
        lineage=lineage,
        manifest_size=_count(found["manifestSize"]),
    )


def _branch_to_json(branch: Branch) -> bytes:
    return _json(
        {
            "parentBranch": None if branch.parent_branch == layout.MAIN else branch.parent_branch,
            "identifier": {"version_mapping": [list(entry) for entry in branch.lineage]},
            "parentVersion": branch.parent_version,
            "createAt": branch.created_at.int_timestamp,
            "manifestSize": branch.manifest_size,
            "metadata": dict(branch.metadata),
        }
    )


def _tag_from_json(name: str, found: dict[str, Any]) -> Tag:
    return Tag(
        name=name,
        branch=_line(found.get("branch")),
        version=_count(found["version"]),
        created_at=_time(found.get("createdAt")),
        updated_at=_time(found.get("updatedAt")),
        metadata=_metadata(found),
        manifest_size=_count(found["manifestSize"]),
    )


def _tag_to_json(tag: Tag) -> bytes:
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
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ValueError(f"{value!r} is not a number of the kind that belongs there")
    return value


def _line(value: object) -> str:
    """Read the name of a branch, which is a folder too: one that leads elsewhere is none."""
    if value is None or value == layout.MAIN:
        return layout.MAIN
    if not isinstance(value, str) or not is_path_inside(value):
        raise ValueError(f"{value!r} is no name of a branch")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _metadata(found: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in (found.get("metadata") or {}).items()}


def _time(value: object) -> pendulum.DateTime | None:
    if value is None:
        return None
    text = _text(value).replace("Z", "+00:00")
    # Nanoseconds, as pylance writes them, are more than a datetime holds.
    whole, dot, rest = text.partition(".")
    if dot:
        digits = rest[: next((at for at, c in enumerate(rest) if not c.isdigit()), len(rest))]
        text = f"{whole}.{digits[:6]}{rest[len(digits) :]}"
    return pendulum.instance(pendulum.DateTime.fromisoformat(text))


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()
