"""Read and write the files of branches and tags: create by put-if-absent, change by compare-and-swap.

Each file is one small JSON object in the form that pylance reads and writes:

    branch  {"parentBranch", "identifier": {"version_mapping": [[version, id], ...]}, "parentVersion", "createAt",
             "manifestSize", "metadata"}
    tag     {"branch", "version", "createdAt", "updatedAt", "manifestSize", "metadata"}

`identifier` is the branch's lineage: one entry for each ancestor from `main` down, its own entry last. pylance's
clean-up of a parent looks at a branch before it deletes files only if the version in the first entry is one that it
would delete or cannot find. So the first version here is one that can never exist, and pylance always looks;
`parentVersion` holds the true fork point.

State that this package needs is kept in `metadata` under a reserved prefix, which
pylance keeps when it moves a tag.

What a change means, and which other files have to agree with it, is decided by `branch_operations`, `tag_operations`
and `rename`.

Invariants:

- Every change starts from the bytes it replaces. A branch is changed only while its id is the expected one: a branch
  that was deleted and made again under the same name is another branch.
- An HTTP client may send a request twice and report the second answer, so "exists" and "changed meanwhile" are
  believed only after the stored object was read back. A branch file is compared as a whole; a tag carries the random
  id of the write that produced it, since two writers may want the same content.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    Call,
    ConflictError,
    CorruptFileError,
    RefMovedError,
    RefNotFoundError,
    Remedy,
    StoreError,
)
from lance_dagster.format import layout
from lance_dagster.format.layout import is_path_inside
from lance_dagster.format.validation import check_string
from lance_dagster.history.ref_expressions import branch_of_version
from lance_dagster.history.refs.tag_hold import TagHold, hold_in_force, holds_of
from lance_dagster.store import Store

# JSON numbers stay exact up to here, and no table gets that many versions.
NEVER_A_VERSION = 2**53
RESERVED_PREFIX = "lance_dagster."
"""Prefix of the metadata keys of branches and tags that are reserved for this package."""
STATE = "lance_dagster.state"
CREATING, READY, CLOSING, DELETING = "creating", "ready", "closing", "deleting"
FIRST = "lance_dagster.first"
RENAMING_TO, RENAMED_FROM = "lance_dagster.renaming_to", "lance_dagster.renamed_from"
RENAMED_WRITE = "lance_dagster.renamed_write"
RESETTING = "lance_dagster.resetting"
"""Marks a branch that is being reset to a version of another one: that version and the time, "main@5 1700000000"."""
WRITE_ID = "lance_dagster.write"
IMMUTABLE = "lance_dagster.immutable"
_MAX_BYTES = 1_000_000
_LONGEST_PROBLEM = 200
_NUMBER = re.compile(r"[0-9]{1,19}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch: a series of versions forked from a version of another branch."""

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
        """The step of its creation or deletion, such as "creating" or "ready"; a branch that pylance made is ready."""
        return self.metadata.get(STATE, READY)

    @property
    def first(self) -> int:
        """The number of its first version, which repeats the fork point.

        It is the number of the fork point, unless an earlier branch had the name: then it is above that one's numbers.
        """
        return int(self.metadata.get(FIRST, self.parent_version))


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

    @property
    def immutable(self) -> bool:
        """Whether the tag was created as immutable."""
        return IMMUTABLE in self.metadata

    @property
    def hold(self) -> TagHold | None:
        """The hold that keeps the tag from moving, or None."""
        return hold_in_force(self.metadata)

    @property
    def holds(self) -> tuple[TagHold, ...]:
        """The last holds of the tag, oldest first, released ones included."""
        return holds_of(self.metadata)


def new_branch(
    name: str, parent: Branch | None, *, version: int, manifest_size: int, metadata: Mapping[str, str]
) -> Branch:
    """Return a branch in state "creating", forked from `version` of `parent`; None stands for `main`."""
    own = uuid.uuid4().hex
    return Branch(
        name=name,
        id=own,
        parent_branch=parent.name if parent else layout.MAIN,
        parent_version=version,
        # pylance stores whole seconds for branches.
        created_at=pendulum.now("UTC").replace(microsecond=0),
        metadata={**metadata, STATE: CREATING},
        lineage=(*(parent.lineage if parent else ()), (NEVER_A_VERSION, own)),
        manifest_size=manifest_size,
    )


def parse_branch(name: str, data: bytes, path: str) -> Branch:
    """Parse the file of a branch.

    Raises:
        CorruptFileError: The bytes are no branch.
    """
    return _parsed(_branch_from_json, name, data, path)


def parse_tag(name: str, data: bytes, path: str) -> Tag:
    """Parse the file of a tag.

    Raises:
        CorruptFileError: The bytes are no tag.
    """
    return _parsed(_tag_from_json, name, data, path)


def _parsed(parse: Callable[[str, dict[str, Any]], T], name: str, data: bytes, path: str) -> T:
    # A ref is read at every use; a huge file would be damage, or an attack on the memory of readers.
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
    parent = _branch_name(found.get("parentBranch"))
    if parent == name:
        raise ValueError("it says it was forked from itself")
    metadata = _metadata(found)
    # Checked here, since `Branch.first` parses it without a way to report an error.
    if FIRST in metadata and not _NUMBER.fullmatch(metadata[FIRST]):
        raise ValueError(f"{metadata[FIRST]!r} is no number of a version")
    return Branch(
        name=name,
        id=lineage[-1][1] if lineage else "",
        parent_branch=parent,
        parent_version=_count(found["parentVersion"]),
        created_at=pendulum.from_timestamp(_count(found["createAt"])),
        metadata=metadata,
        lineage=lineage,
        manifest_size=_count(found["manifestSize"]),
    )


def branch_file_of(branch: Branch) -> bytes:
    """Return the bytes of a branch's file."""
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
        branch=_branch_name(found.get("branch")),
        version=_count(found["version"]),
        created_at=_time(found.get("createdAt")),
        updated_at=_time(found.get("updatedAt")),
        metadata=_metadata(found),
        manifest_size=_count(found["manifestSize"]),
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
        raise ValueError(f"{value!r} is not a number of the kind that belongs there")
    return value


def _branch_name(value: object) -> str:
    """Read the name of a branch. It is a folder too, so a name that leads out of the table is refused."""
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
    # pylance writes nanoseconds, and a datetime holds microseconds.
    whole, dot, rest = text.partition(".")
    if dot:
        digits = rest[: next((at for at, c in enumerate(rest) if not c.isdigit()), len(rest))]
        text = f"{whole}.{digits[:6]}{rest[len(digits) :]}"
    return pendulum.instance(pendulum.DateTime.fromisoformat(text))


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()


__all__ = [
    "CREATING",
    "DELETING",
    "IMMUTABLE",
    "READY",
    "RESERVED_PREFIX",
    "Branch",
    "Refs",
    "Tag",
]
_ATTEMPTS = 5
# A thread pool costs more than reading a few small files one after the other.
_READERS, _FEW = 8, 4
N = TypeVar("N", Branch, Tag)


@dataclass(frozen=True, slots=True)
class Refs:
    """The branches and tags of one table."""

    store: Store

    def branches(self, pattern: str | None = None) -> dict[str, Branch]:
        """Read every branch whose name matches a glob pattern, also those that are being created or deleted."""
        return self._all(layout.BRANCHES, layout.parse_branch_file_name, self.branch, pattern)

    def tags(self, pattern: str | None = None) -> dict[str, Tag]:
        """Read every tag whose name matches a glob pattern."""
        return self._all(layout.TAGS, layout.parse_tag_file_name, self.tag, pattern)

    def branch(self, name: str) -> Branch | None:
        """Read one branch, or return None."""
        path = _file_of(layout.BRANCHES, name, "the name of a branch")
        data = None if path is None else self.store.get(path)
        return None if data is None else parse_branch(name, data, f"{self.store.uri}/{path}")

    def tag(self, name: str) -> Tag | None:
        """Read one tag, or return None."""
        path = _file_of(layout.TAGS, name, "the name of a tag")
        data = None if path is None else self.store.get(path)
        return None if data is None else parse_tag(name, data, f"{self.store.uri}/{path}")

    def referrers_of(self, branch: str) -> list[str]:
        """Describe the tags and branches that refer to a branch, also those that are being created."""
        users = [f"tag {tag.name!r}" for tag in self.tags().values() if tag.branch == branch]
        return users + [f"branch {other.name!r}" for other in self.branches().values() if other.parent_branch == branch]

    def branch_not_found(self, name: str) -> RefNotFoundError:
        """Return the error for a name that no branch has; it says what the name stands for instead."""
        # One more request, made only for the message: a tag may have been named where a branch is wanted.
        if self.tag(name) is not None:
            instead = "that is a tag, and a branch is wanted"
        elif (version_of := branch_of_version(name)) is not None:
            instead = f"that is a version, and a branch is wanted, such as {version_of!r}"
        else:
            instead = self._unfinished(name)
        return RefNotFoundError(name, self.known(), self.store.uri, "branch", instead)

    def _unfinished(self, name: str) -> str:
        """Return what is being done to a branch that has a file and cannot be used; else an empty string."""
        found = self.branch(name)
        if found is None or found.state == READY:
            return ""
        if RESETTING in found.metadata:
            return "it is being reset; if that was interrupted, resetting it again finishes it"
        if found.state == CREATING:
            return "it is being created; if that was interrupted, creating it again finishes it"
        return "it is being deleted; if that was interrupted, deleting it again finishes it"

    def tag_not_found(self, name: str) -> RefNotFoundError:
        """Return the error for a name that no tag has."""
        return RefNotFoundError(name, list(self.tags()), self.store.uri, "tag")

    def known(self) -> list[str]:
        """Return the names of the branches that are ready, `main` included."""
        return [layout.MAIN, *(branch.name for branch in self.branches().values() if branch.state == READY)]

    def add_branch(self, branch: Branch) -> Branch:
        """Create a branch's file unless there is one; return the branch that has the name then."""
        path = layout.branch_file(branch.name)
        if self._put_once(path, branch_file_of(branch)):
            return branch
        # The name was taken by somebody else. Whose branch it is decides the caller.
        taken = self.branch(branch.name)
        if taken is None:
            raise StoreError(f"branch {branch.name!r} of {self.store.uri} came and went while it was made; try again")
        return taken

    def change_branch(self, branch: Branch, change: Callable[[Branch], Branch]) -> Branch:
        """Replace a branch's file with what `change` returns, by compare-and-swap.

        Args:
            branch: The branch; only its name and id matter.
            change: Gets the stored branch and returns the one to store; the same one when there is nothing to change.
                It is called again when another writer changed the file first.

        Raises:
            RefMovedError: The branch was deleted meanwhile, and perhaps made again.
        """
        path = layout.branch_file(branch.name)
        wanted: Branch | None = None
        for _ in range(_ATTEMPTS):
            found = self.store.get_with_etag(path)
            current = None if found is None else parse_branch(branch.name, found[0], f"{self.store.uri}/{path}")
            if current is not None and current == wanted:
                # The attempt before succeeded, and the client reported the answer to its own second request.
                return current
            # The id is compared at every attempt: the branch may be replaced between two of them.
            if found is None or current is None or current.id != branch.id:
                raise RefMovedError(branch.name, branch.id, "another branch" if current else "nothing")
            wanted = change(current)
            if wanted == current or self.store.compare_and_swap(path, branch_file_of(wanted), found[1]):
                return wanted
        raise StoreError(f"cannot change branch {branch.name!r} of {self.store.uri}: it keeps changing")

    def set_branch_state(self, branch: Branch, state: str, *, resetting: str | None = None) -> Branch:
        """Record how far the creation or deletion of a branch is; idempotent, since any process may finish it.

        Args:
            branch: The branch.
            state: The step.
            resetting: The mark of the reset that the first step of a deletion belongs to.

        Raises:
            RefMovedError: The branch was deleted and made again meanwhile.
            ConflictError: It is being deleted.
        """

        def marked(current: Branch) -> Branch:
            if state == READY and current.state in (CLOSING, DELETING):
                raise ConflictError(f"branch {branch.name!r} of {self.store.uri} is being deleted; try again")
            # Another process is one step further; its second mark cannot be taken back.
            late = current.state == DELETING and state == CLOSING
            if late or current.state == state:
                return current
            # Later steps keep the mark of a reset; a branch that is ready is not being reset any more.
            mark = {RESETTING: resetting} if state in (CLOSING, READY) else {}
            return with_metadata(current, {STATE: state, **mark})

        return self.change_branch(branch, marked)

    def remove_branch(self, name: str) -> None:
        """Delete a branch's file, which frees the name."""
        self.store.delete(layout.branch_file(name))

    def add_tag(self, tag: Tag) -> Tag:
        """Create a tag.

        Raises:
            AlreadyExistsError: There is one of that name.
        """
        marked = _with_write_id(tag)
        if not self._put_once(layout.tag_file(tag.name), tag_file_of(marked)):
            remedy = Remedy("{} moves it", Call("tags.move", (tag.name, tag.ref)))
            raise AlreadyExistsError(f"tag {tag.name!r} of {self.store.uri} exists", remedy=remedy)
        return marked

    def swap_tag(self, tag: Tag, expected: str | None = None) -> Tag:
        """Point an existing tag elsewhere, by compare-and-swap.

        Args:
            tag: The tag to store.
            expected: The version that the stored tag has to name, such as `main@9`; None for any.

        Raises:
            RefMovedError: It names another version, or was moved between reading and writing.
            RefNotFoundError: There is no such tag.
        """

        def moved(current: Tag) -> Tag:
            if expected is not None and current.ref != expected:
                raise RefMovedError(tag.name, expected, current.ref)
            return replace(tag, created_at=current.created_at)

        return self.change_tag(tag.name, moved)

    def change_tag(self, name: str, change: Callable[[Tag], Tag], *, follow: bool = False) -> Tag:
        """Replace a tag's file with what `change` returns, by compare-and-swap.

        Args:
            name: The name of the tag.
            change: Gets the stored tag and returns the one to store; the same one when there is nothing to change. It
                is called again when another writer changed the file first.
            follow: Whether to change a tag that another writer moved meanwhile, at its new version.

        Raises:
            RefMovedError: It was moved between reading and writing.
            RefNotFoundError: There is no such tag.
        """
        path = layout.tag_file(name)
        for _ in range(_ATTEMPTS):
            found = self.store.get_with_etag(path) if is_path_inside(name) else None
            if found is None:
                raise self.tag_not_found(name)
            current = parse_tag(name, found[0], f"{self.store.uri}/{path}")
            wanted = change(current)
            if wanted == current:
                return current
            marked = _with_write_id(wanted)
            if self._swapped(path, marked, found[1]):
                return marked
            now = self.tag(name)
            # A move may not overwrite another move that it has not seen; a change of metadata may follow the tag.
            if now is None or (now.ref != current.ref and not follow):
                raise RefMovedError(name, current.ref, now.ref if now else "nothing")
        raise StoreError(f"cannot change tag {name!r} of {self.store.uri}: it keeps changing")

    def remove_tag(self, name: str) -> None:
        """Delete a tag."""
        self.store.delete(layout.tag_file(name))

    def _swapped(self, path: str, tag: Tag, etag: str) -> bool:
        try:
            if self.store.compare_and_swap(path, tag_file_of(tag), etag):
                return True
        except StoreError:
            # The answer may be lost and the tag moved all the same: only the stored object tells.
            if not self._is_stored(tag):
                raise
            return True
        return self._is_stored(tag)

    def _is_stored(self, tag: Tag) -> bool:
        """Tell whether the stored tag comes from this very write."""
        now = self.tag(tag.name)
        return now is not None and now.metadata.get(WRITE_ID) == tag.metadata[WRITE_ID]

    def _put_once(self, path: str, data: bytes) -> bool:
        """Put if absent; an equal object counts as success, since the answer to the first request may be lost."""
        return self.store.put_if_absent(path, data) or self.store.get(path) == data

    def _all(
        self,
        folder: str,
        name_of: Callable[[str], str | None],
        read: Callable[[str], T | None],
        pattern: str | None,
    ) -> dict[str, T]:
        listed = (name_of(file) for file in self.store.list(folder))
        names = [name for name in listed if name and (pattern is None or fnmatchcase(name, pattern))]
        if len(names) <= _FEW:
            values = [read(name) for name in names]
        else:
            # One request for each ref: a table with many runs has many branches.
            with ThreadPoolExecutor(_READERS) as readers:
                values = list(readers.map(read, names))
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def with_metadata(named: N, updates: dict[str, str | None]) -> N:
    """Return a branch or tag with changed metadata; a value of None removes the key."""
    merged = {**named.metadata, **updates}
    return replace(named, metadata={key: value for key, value in merged.items() if value is not None})


def _file_of(folder: str, name: object, what: str) -> str | None:
    """Return the path of a ref's file; None when the name leads out of the folder, so that no ref can have it.

    Raises:
        InvalidInputError: The name is no string, or cannot be encoded.
    """
    # Printable strings can always be encoded; only the others need the check that names what is wrong.
    if not isinstance(name, str) or not name.isprintable():
        check_string(what, name)
    return layout.ref_file(folder, str(name))


def _with_write_id(tag: Tag) -> Tag:
    """Return a tag as it is to be stored: with the times it lacks, and a mark that tells whose write landed."""
    now = pendulum.now("UTC")
    return replace(
        tag,
        created_at=tag.created_at or now,
        updated_at=tag.updated_at or now,
        metadata={**tag.metadata, WRITE_ID: uuid.uuid4().hex},
    )
