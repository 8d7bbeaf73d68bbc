"""Branches and tags as they are stored: read, taken by put-if-absent, changed by compare-and-swap.

Nothing here knows what a change means; `history.branches` and `history.tags` do.
"""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeVar

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
from lance_dagster.format.names import check_text
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
_READERS, _FEW = 8, 4
T = TypeVar("T")
N = TypeVar("N", Branch, Tag)


@dataclass(frozen=True, slots=True)
class Refs:
    """The branches and tags of one table."""

    store: Store

    def branches(self, pattern: str | None = None) -> dict[str, Branch]:
        """Read every branch, those being created or deleted included; only those whose names match a glob pattern."""
        return self._all(layout.BRANCHES, layout.name_of_branch_file, self.branch, pattern)

    def tags(self, pattern: str | None = None) -> dict[str, Tag]:
        """Read every tag; only those whose names match a glob pattern."""
        return self._all(layout.TAGS, layout.name_of_tag_file, self.tag, pattern)

    def branch(self, name: str) -> Branch | None:
        """Read one branch, or return None."""
        check_text("the name of a branch", name)
        if not is_path_inside(name):
            return None
        path = layout.branch_file(name)
        data = self.store.get(path)
        return None if data is None else parse_branch(name, data, f"{self.store.uri}/{path}")

    def tag(self, name: str) -> Tag | None:
        """Read one tag, or return None."""
        check_text("the name of a tag", name)
        if not is_path_inside(name):
            return None
        path = layout.tag_file(name)
        data = self.store.get(path)
        return None if data is None else parse_tag(name, data, f"{self.store.uri}/{path}")

    def referrers_of(self, branch: str) -> list[str]:
        """Say which tags and branches refer to a branch, those included that are being made."""
        users = [f"tag {tag.name!r}" for tag in self.tags().values() if tag.branch == branch]
        return users + [f"branch {other.name!r}" for other in self.branches().values() if other.parent_branch == branch]

    def branch_not_found(self, name: str) -> RefNotFoundError:
        """Return the error that says that a name is none of a branch, and what it is instead."""
        if self.tag(name) is not None:
            instead = "that is a tag, and a branch is wanted"
        elif (version_of := branch_of_version(name)) is not None:
            instead = f"that is a version, and a branch is wanted, such as {version_of!r}"
        else:
            instead = ""
        return RefNotFoundError(name, self.known(), self.store.uri, "branch", instead)

    def tag_not_found(self, name: str) -> RefNotFoundError:
        """Return the error that says that a name is none of a tag."""
        return RefNotFoundError(name, list(self.tags()), self.store.uri, "tag")

    def known(self) -> list[str]:
        """Return the names of the branches that can be used."""
        return [layout.MAIN, *(branch.name for branch in self.branches().values() if branch.state == READY)]

    def add_branch(self, branch: Branch) -> Branch:
        """Take a branch name, unless it is taken; returns the branch that has it."""
        path = layout.branch_file(branch.name)
        if self._put_once(path, branch_file_of(branch)):
            return branch
        taken = self.branch(branch.name)
        if taken is None:
            raise StoreError(f"branch {branch.name!r} of {self.store.uri} came and went while it was made; try again")
        return taken

    def change_branch(self, branch: Branch, change: Callable[[Branch], Branch]) -> Branch:
        """Replace a branch's file by what `change` makes of it, which is the same when there is nothing to change.

        Raises:
            RefMovedError: The branch was deleted meanwhile, and perhaps made again.
        """
        path = layout.branch_file(branch.name)
        wanted: Branch | None = None
        for _ in range(_ATTEMPTS):
            found = self.store.get_with_tag(path)
            current = None if found is None else parse_branch(branch.name, found[0], f"{self.store.uri}/{path}")
            if current is not None and current == wanted:
                # Swapped by the request before, which a client below us made twice.
                return current
            if found is None or current is None or current.id != branch.id:
                raise RefMovedError(branch.name, branch.id, "another branch" if current else "nothing")
            wanted = change(current)
            if wanted == current or self.store.compare_and_swap(path, branch_file_of(wanted), found[1]):
                return wanted
        raise StoreError(f"cannot change branch {branch.name!r} of {self.store.uri}: it keeps changing")

    def set_branch_state(self, branch: Branch, state: str) -> Branch:
        """Record how far the creation or deletion of a branch is. Someone else having done so already is fine.

        Raises:
            RefMovedError: The branch was deleted and made again meanwhile.
            ConflictError: It is being deleted.
        """

        def marked(current: Branch) -> Branch:
            if state == READY and current.state in (CLOSING, DELETING):
                raise ConflictError(f"branch {branch.name!r} of {self.store.uri} is being deleted; try again")
            late = current.state == DELETING and state == CLOSING
            return current if late or current.state == state else with_metadata(current, {STATE: state})

        return self.change_branch(branch, marked)

    def remove_branch(self, name: str) -> None:
        """Free a branch's name."""
        self.store.delete(layout.branch_file(name))

    def add_tag(self, tag: Tag) -> Tag:
        """Create a tag.

        Raises:
            AlreadyExistsError: There is one of that name.
        """
        marked = _marked(tag)
        if not self._put_once(layout.tag_file(tag.name), tag_file_of(marked)):
            remedy = Remedy("{} moves it", Call("move_tag", (tag.name, tag.ref)))
            raise AlreadyExistsError(f"tag {tag.name!r} of {self.store.uri} exists", remedy=remedy)
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

        def moved(current: Tag) -> Tag:
            if expected is not None and current.ref != expected:
                raise RefMovedError(tag.name, expected, current.ref)
            return replace(tag, created_at=current.created_at)

        return self.change_tag(tag.name, moved)

    def change_tag(self, name: str, change: Callable[[Tag], Tag], *, follow: bool = False) -> Tag:
        """Replace a tag's file by what `change` makes of it, which is the same when there is nothing to change.

        Args:
            name: The tag.
            change: Called again when the file changed before it was replaced.
            follow: Whether a tag that was moved meanwhile is changed where it points then.

        Raises:
            RefMovedError: It was moved between reading and writing.
            RefNotFoundError: There is no such tag.
        """
        path = layout.tag_file(name)
        for _ in range(_ATTEMPTS):
            found = self.store.get_with_tag(path) if is_path_inside(name) else None
            if found is None:
                raise self.tag_not_found(name)
            current = parse_tag(name, found[0], f"{self.store.uri}/{path}")
            wanted = change(current)
            if wanted == current:
                return current
            marked = _marked(wanted)
            if self._swapped(path, marked, found[1]):
                return marked
            now = self.tag(name)
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
            # The answer may be lost and the tag moved: only what is stored tells.
            if not self._is_ours(tag):
                raise
            return True
        return self._is_ours(tag)

    def _is_ours(self, tag: Tag) -> bool:
        now = self.tag(tag.name)
        return now is not None and now.metadata.get(WRITE_ID) == tag.metadata[WRITE_ID]

    def _put_once(self, path: str, data: bytes) -> bool:
        """Put if absent, taking our own object for success when the answer to the first request was lost."""
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
            # One request each: a table of many runs has many.
            with ThreadPoolExecutor(_READERS) as readers:
                values = list(readers.map(read, names))
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def with_metadata(named: N, updates: dict[str, str | None]) -> N:
    """Return a branch or tag with metadata changed: a value of None takes a key out."""
    merged = {**named.metadata, **updates}
    return replace(named, metadata={key: value for key, value in merged.items() if value is not None})


def _marked(tag: Tag) -> Tag:
    return replace(tag, metadata={**tag.metadata, WRITE_ID: uuid.uuid4().hex})
