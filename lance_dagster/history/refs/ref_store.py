"""Read and write the files of branches and tags: create by put-if-absent, change by compare-and-swap.

What a change means, and which other files have to agree with it, is decided by `branch_operations`, `tag_operations`
and `rename`.

Invariants:

- Every change starts from the bytes it replaces. A branch is changed only while its id is the expected one: a branch
  that was deleted and made again under the same name is another branch.
- An HTTP client may send a request twice and report the second answer, so "exists" and "changed meanwhile" are
  believed only after the stored object was read back. A branch file is compared as a whole; a tag carries the random
  id of the write that produced it, since two writers may want the same content.
"""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeVar

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    Call,
    ConflictError,
    RefMovedError,
    RefNotFoundError,
    Remedy,
    StoreError,
)
from lance_dagster.format import layout
from lance_dagster.format.layout import is_path_inside
from lance_dagster.format.validation import check_string
from lance_dagster.history.ref_expressions import branch_of_version
from lance_dagster.history.refs.ref_files import (
    CLOSING,
    CREATING,
    DELETING,
    IMMUTABLE,
    READY,
    RESERVED_PREFIX,
    STATE,
    WRITE_ID,
    Branch,
    Tag,
    branch_file_of,
    parse_branch,
    parse_tag,
    tag_file_of,
)
from lance_dagster.store import Store

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
T = TypeVar("T")
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
            instead = ""
        return RefNotFoundError(name, self.known(), self.store.uri, "branch", instead)

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

    def set_branch_state(self, branch: Branch, state: str) -> Branch:
        """Record how far the creation or deletion of a branch is; idempotent, since any process may finish it.

        Raises:
            RefMovedError: The branch was deleted and made again meanwhile.
            ConflictError: It is being deleted.
        """

        def marked(current: Branch) -> Branch:
            if state == READY and current.state in (CLOSING, DELETING):
                raise ConflictError(f"branch {branch.name!r} of {self.store.uri} is being deleted; try again")
            # Another process is one step further; its second mark cannot be taken back.
            late = current.state == DELETING and state == CLOSING
            return current if late or current.state == state else with_metadata(current, {STATE: state})

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
