"""Read and write the files of branches and tags: create by put-if-absent, change and delete by compare-and-swap.

`branch_operations`, `branch_deletion`, `tag_operations` and `rename` decide what a change means and which other files
have to agree with it; `ref_files` defines the content of the files.

Invariants:

- Every change starts from the bytes it replaces. A branch is changed only while it has the expected id: a branch
  that was deleted and made again under the same name is another branch.
- No file is deleted by its name alone: `remove` deletes the bytes that were read. Not every S3 server can do that; on
  the other servers one process at a time has the right to delete a file, and `REMOVAL_SECONDS` says for how long.
- An HTTP client may send a request twice and report the second answer, so "exists" and "changed meanwhile" are
  believed only after the stored object was read back. A branch file is compared as a whole; a tag carries the random
  id of the write that produced it, since two writers may want the same content.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Generic, TypeVar

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    Call,
    ConflictError,
    FormatError,
    RefMovedError,
    RefNotFoundError,
    Remedy,
    StoreError,
)
from lance_dagster.format import layout
from lance_dagster.format.layout import is_path_inside
from lance_dagster.format.validation import check_pattern, check_string, optional_limit
from lance_dagster.history.ref_grammar import branch_of_version
from lance_dagster.history.refs.ref_files import (
    CLOSING_ID,
    CREATING,
    DELETING,
    LAST,
    READY,
    RECOVERING,
    REMOVER,
    RENAMED_FROM,
    RENAMING_TO,
    RESETTING,
    STATE,
    WRITE_ID,
    Branch,
    BranchState,
    Tag,
    branch_file_of,
    parse_branch,
    parse_tag,
    tag_file_of,
    with_metadata,
)
from lance_dagster.store import AT_ONCE, Store, concurrently, together

REMOVAL_SECONDS = 15 * 60
"""The time a process may take to delete the file of a ref, where the storage cannot delete conditionally.

This is far longer than a request lives: the client gives up after minutes.
"""
_ATTEMPTS = 5
# A thread pool costs more than reading a few small files in a row.
_FEW = 4
Ref = TypeVar("Ref", Branch, Tag)


@dataclass(frozen=True, slots=True)
class ListedRefs:
    """The files of the tags and branches of a table with their ETags, and whether there are rules of protection."""

    tags: Mapping[str, str]
    branches: Mapping[str, str]
    has_protection: bool


@dataclass(frozen=True, slots=True)
class RemovalRight:
    """The right to delete the file of a ref, where the storage cannot delete conditionally: one process has it."""

    store: Store

    def mark(self) -> dict[str, str]:
        """Return the mark of a process that is going to delete the file of a ref; empty where no mark is needed."""
        # A server that ignores the condition of a deletion would let a late request delete the next ref of the name.
        return {} if self.store.deletes_conditionally() else {REMOVER: f"{uuid.uuid4().hex} {int(time.time())}"}

    def may_send(self, branch: Branch) -> bool:
        """Tell whether a deletion that is sent now is certain to arrive before another process may take it over."""
        since = branch.metadata.get(REMOVER, "").rpartition(" ")[2]
        # A third of the time: the rest is for the request itself, and for clocks of two machines that differ. A mark
        # from the future is not fresh either, since it says nothing about how old it is.
        fresh = since.isdigit() and abs(time.time() - int(since)) < REMOVAL_SECONDS / 3
        return self.store.deletes_conditionally() or fresh

    def is_free(self, ref: Branch | Tag) -> bool:
        """Tell whether the file of a ref that is being removed may be replaced, or removed by this process."""
        since = ref.metadata.get(REMOVER, "").rpartition(" ")[2]
        old = not since.isdigit() or time.time() - int(since) > REMOVAL_SECONDS
        return self.store.deletes_conditionally() or old

    def elsewhere(self, kind: str, name: str) -> ConflictError:
        """Return the error for a ref whose file another process has the right to delete."""
        return ConflictError(
            f"{kind} {name!r} of {self.store.uri} is being deleted by another process, and this storage cannot delete "
            f"conditionally; if that was interrupted, the name is free {REMOVAL_SECONDS // 60} minutes later"
        )


@dataclass(frozen=True, slots=True)
class _RefFiles(ABC, Generic[Ref]):
    """The files of the branches, or of the tags, of one table."""

    store: Store
    # As they were read last, by name, with their ETags: a listing shows which of them are still the same.
    _known: dict[str, Ref] = field(default_factory=dict, compare=False, repr=False)

    @property
    def removal_right(self) -> RemovalRight:
        """The right to delete a file."""
        return RemovalRight(self.store)

    @abstractmethod
    def stored(self, name: str) -> Ref | None:
        """Read one ref with the ETag of its file, so that a change need not read it again; or return None."""

    def remembered(self, name: str) -> Ref | None:
        """Return a ref as this process read or wrote it last; None where it did not. Nothing is asked."""
        return self._known.get(name)

    def read(self, listed: Mapping[str, str]) -> dict[str, Ref]:
        """Read the refs of these names, which a listing gave with the ETags of their files."""
        return _read_all(listed, self._known, self.stored)


@dataclass(frozen=True, slots=True)
class BranchFiles(_RefFiles[Branch]):
    """The files of the branches of one table."""

    def all(self, pattern: str | None = None, *, exempt: tuple[str, ...] = ()) -> dict[str, Branch]:
        """Read every branch whose name matches a glob pattern, including branches that are being created or deleted.

        Branches whose names begin with an exempt prefix are not read.
        """
        if pattern is not None:
            check_string("pattern", pattern)
        files = self.store.list_with_etags(layout.BRANCHES)
        return self.read(_named(files, layout.parse_branch_file_name, pattern, exempt))

    def find(self, name: str) -> Branch | None:
        """Read one branch, or return None."""
        path = _file_of(layout.BRANCHES, name, "the name of a branch")
        data = None if path is None else self.store.get(path)
        return None if data is None else parse_branch(name, data, f"{self.store.uri}/{path}")

    def stored(self, name: str) -> Branch | None:
        """Read one branch with the tag of its file, so that a change need not read it again; or return None."""
        path = _file_of(layout.BRANCHES, name, "the name of a branch")
        return None if path is None else self._stored(name, path)

    def may_have(self, branch: str) -> bool:
        """Tell whether there can be a branch of a name; a name that leads out of the folder is impossible.

        Raises:
            InvalidInputError: The name is not a string, or cannot be encoded.
        """
        return _file_of(layout.BRANCHES, branch, "the name of a branch") is not None

    def names(self, prefix: str) -> list[str]:
        """List the branches whose names begin with a prefix, unfinished ones included, without reading any."""
        names = (layout.parse_branch_file_name(file) for file in self.store.list(layout.BRANCHES))
        return [name for name in names if name is not None and name.startswith(prefix)]

    def known(self) -> list[str]:
        """Return the names of the branches that are ready, `main` included, for the hint of an error."""
        ready = [branch.name for branch in self.all().values() if branch.state == READY]
        # Nobody names the branches of publications by hand, and each publication has its own branch.
        return [layout.MAIN, *(name for name in ready if not name.startswith(layout.PUBLISHED))]

    def add(self, branch: Branch) -> Branch:
        """Create a branch's file unless there is one; return the branch that has the name afterwards."""
        path, data = layout.branch_file(branch.name), branch_file_of(branch)
        if _put_once(self.store, path, data):
            return self._with_etag(branch, self.store.written_tag(path, data))
        # Another writer took the name. The caller decides what that means, by the id of the branch.
        # It is read again, for the put says only that some file was there.
        existing = self.find(branch.name)
        if existing is None:
            # The name was free again before it could be read. Whoever had it may be deleting versions in the folder.
            raise StoreError(f"branch {branch.name!r} of {self.store.uri} came and went while it was made; try again")
        return existing

    def change(self, branch: Branch, change: Callable[[Branch], Branch]) -> Branch:
        """Replace a branch's file with what `change` returns, by compare-and-swap.

        Args:
            branch: The branch; only its name and id matter. Where it has an ETag, it is not read again at first.
            change: Gets the stored branch and returns the branch to store, the same where nothing changes.
                It is called again when another writer changed the file first.

        Raises:
            RefMovedError: The branch was deleted meanwhile, and perhaps made again.
        """
        path = layout.branch_file(branch.name)
        changed, stored = self._changed_at_once(branch, change) if branch.etag else (None, False)
        if changed is not None and stored:
            return changed
        # A bounded number of times: two programs that take back each other's change would never end.
        for _ in range(_ATTEMPTS):
            current = self._stored(branch.name, path)
            if current is not None and current == changed:
                # The attempt before succeeded, and the client reported the answer to its own second request.
                return current
            # The id is compared at every attempt: the branch may be replaced between two of them.
            if current is None or current.id != branch.id:
                raise RefMovedError(branch.name, branch.id, "another branch" if current else "nothing")
            changed = change(current)
            if changed == current:
                return current
            if self.store.compare_and_swap(path, data := branch_file_of(changed), current.etag):
                return self._with_etag(changed, self.store.written_tag(path, data))
        raise StoreError(f"cannot change branch {branch.name!r} of {self.store.uri}: it keeps changing")

    def _changed_at_once(self, branch: Branch, change: Callable[[Branch], Branch]) -> tuple[Branch | None, bool]:
        """Change a branch as it was read before, if its file is still the same.

        Returns:
            The branch as it was to be stored, None where the file has to be read first; and whether it was stored for
            certain.
        """
        try:
            changed = change(branch)
        except ConflictError:
            # The conflict may be over.
            return None, False
        # Whether there is nothing to change shows only in the file.
        if changed == branch:
            return None, False
        path, data = layout.branch_file(branch.name), branch_file_of(changed)
        stored = self.store.compare_and_swap(path, data, branch.etag)
        return self._with_etag(changed, self.store.written_tag(path, data) if stored else None), stored

    def _with_etag(self, branch: Branch, etag: str | None) -> Branch:
        """Return a branch with the ETag of its file, and keep it, where the store tells the ETag."""
        branch = replace(branch, etag=etag or "")
        if etag:
            self._known[branch.name] = branch
        return branch

    def _stored(self, name: str, path: str) -> Branch | None:
        stored = self.store.get_with_etag(path)
        if stored is None:
            return None
        branch = replace(parse_branch(name, stored[0], f"{self.store.uri}/{path}"), etag=stored[1])
        self._known[name] = branch
        return branch

    def set_state(self, branch: Branch, state: BranchState) -> Branch:
        """Record the step of a branch's creation. This is idempotent, since any process may finish the creation.

        Raises:
            RefMovedError: The branch was deleted and made again meanwhile.
            ConflictError: It is being deleted or recovered.
        """

        def marked(current: Branch) -> Branch:
            # A deletion that marked the branch may have listed its versions already: commits to a branch that became
            # ready now would be deleted with the other versions.
            if state == READY and current.state not in (CREATING, READY):
                raise ConflictError(f"branch {branch.name!r} of {self.store.uri} is being deleted; try again")
            # A branch that was created, deleted and is being recovered may have more versions than its first version.
            if state == READY and current.state == CREATING and RECOVERING in current.metadata:
                raise ConflictError(f"branch {branch.name!r} of {self.store.uri} is being recovered; try again")
            # A branch that is ready is not being reset any more, and its version numbers may grow again.
            mark = {RESETTING: None, LAST: None} if state == READY else {}
            return current if current.state == state else with_metadata(current, {STATE: state, **mark})

        return self.change(branch, marked)

    def read_deleting(self, branch: Branch) -> tuple[Branch, str] | None:
        """Read a branch that is being deleted and the ETag of its file; None when another process finished that.

        Raises:
            ConflictError: It is being reset meanwhile, so it is not to be deleted.
        """
        path = layout.branch_file(branch.name)
        stored = self.store.get_with_etag(path)
        current = None if stored is None else parse_branch(branch.name, stored[0], f"{self.store.uri}/{path}")
        if stored is None or current is None or current.id != branch.id or current.state != DELETING:
            return None
        # The process that wrote its mark last owns the branch. After a reset the file describes the new branch, and
        # deleting it would lose the branch.
        if current.metadata.get(RESETTING) != branch.metadata.get(RESETTING):
            raise ConflictError(f"branch {branch.name!r} of {self.store.uri} is being deleted or reset by two at once")
        # Another process got the right to delete the file while this process slept. Two unconditional requests could be
        # on their way then, and the later request would delete the next branch of the name.
        if current.metadata.get(REMOVER) != branch.metadata.get(REMOVER):
            raise self.removal_right.elsewhere("branch", branch.name)
        return current, stored[1]

    def remove(self, branch: Branch, etag: str) -> bool:
        """Delete the file of a branch that is being deleted, which frees the name.

        Args:
            branch: The branch; nothing is deleted when another branch has its name.
            etag: The ETag of its file.

        Returns:
            Whether this call deleted it; otherwise another process did.

        Raises:
            ConflictError: It is being reset meanwhile, or another process has the right to delete it.
        """
        path = layout.branch_file(branch.name)
        for _ in range(_ATTEMPTS):
            if self.removal_right.may_send(branch) and self.store.compare_and_delete(path, etag):
                return True
            # A refused deletion means other bytes, or an answer to the second of two equal requests: only the file
            # tells.
            deleting = self.read_deleting(self._refreshed(branch))
            # Another id belongs to a later deletion, of a branch that was recovered meanwhile.
            if deleting is None or deleting[0].metadata.get(CLOSING_ID) != branch.metadata.get(CLOSING_ID):
                return False
            branch, etag = deleting
        raise StoreError(f"cannot delete branch {branch.name!r} of {self.store.uri}: it keeps changing")

    def renamed_to(self, branch: Branch) -> str | None:
        """Return the name that a rename under way gives to a branch, or None."""
        # Both files have to say so: a rename that was abandoned leaves a mark on the old branch alone.
        name = branch.metadata.get(RENAMING_TO)
        target = self.find(name) if name else None
        same = target is not None and (target.id, target.metadata.get(RENAMED_FROM)) == (branch.id, branch.name)
        return name if same else None

    def adopt_removal(self, branch: Branch) -> Branch:
        """Get the right to delete the file of a branch that another process began to delete.

        Raises:
            RefMovedError: The branch is gone.
            ConflictError: The other process still has that right.
        """
        if self.store.deletes_conditionally():
            return branch

        def marked(current: Branch) -> Branch:
            if not self.removal_right.is_free(current):
                raise self.removal_right.elsewhere("branch", branch.name)
            return with_metadata(current, self.removal_right.mark())

        return self.change(branch, marked)

    def _refreshed(self, branch: Branch) -> Branch:
        """Return a branch whose file this process may delete, after renewing that right where it is old."""
        if self.removal_right.may_send(branch):
            return branch

        def marked(current: Branch) -> Branch:
            if current.metadata.get(REMOVER) != branch.metadata.get(REMOVER):
                raise self.removal_right.elsewhere("branch", branch.name)
            return with_metadata(current, self.removal_right.mark())

        return self.change(branch, marked)


@dataclass(frozen=True, slots=True)
class TagFiles(_RefFiles[Tag]):
    """The files of the tags of one table."""

    def all(self, pattern: str | None = None, limit: int | None = None) -> dict[str, Tag]:
        """Read the tags whose names match a glob pattern, at most the first `limit` of them."""
        if pattern is not None:
            check_string("pattern", pattern)
        # A negative limit would leave out the last tags.
        limit = optional_limit("limit", limit)
        listed = _named(self.store.list_with_etags(layout.TAGS), layout.parse_tag_file_name, pattern)
        return self.read(dict(islice(listed.items(), limit)))

    def find(self, name: str) -> Tag | None:
        """Read one tag, or return None."""
        path = _file_of(layout.TAGS, name, "the name of a tag")
        data = None if path is None else self.store.get(path)
        tag = None if data is None else parse_tag(name, data, f"{self.store.uri}/{path}")
        # A marked tag counts as deleted: its remover may already have sent the request, which has no condition on such
        # storage.
        return None if tag is None or REMOVER in tag.metadata else tag

    def stored(self, name: str) -> Tag | None:
        """Read one tag with the tag of its file, so that a change need not read it again; or return None."""
        path = _file_of(layout.TAGS, name, "the name of a tag")
        tag = None if path is None else self._stored(name, path)
        return None if tag is None or REMOVER in tag.metadata else tag

    def names(self, prefix: str) -> list[str]:
        """List the tags whose names begin with a prefix, without reading any."""
        names = (layout.parse_tag_file_name(file) for file in self.store.list(layout.TAGS))
        return [name for name in names if name is not None and name.startswith(prefix)]

    def not_found(self, name: str) -> RefNotFoundError:
        """Return the error for a name that no tag has."""
        return RefNotFoundError(name, self.known(), self.store.uri, "tag")

    def known(self) -> list[str]:
        """Return the names of the tags that no repository keeps for its commits, for the hint of an error."""
        pins = (layout.PIN, layout.BRANCH_PIN, layout.LANDING_PIN)
        # A table may have very many tags of a repository, so none is read.
        return [name for name in self.names("") if not name.startswith(pins)]

    def add(self, tag: Tag) -> Tag:
        """Create a tag.

        Raises:
            AlreadyExistsError: There is a tag of that name.
        """
        marked = _with_write_id(tag)
        path = layout.tag_file(tag.name)
        if not _put_once(self.store, path, tag_file_of(marked)) and not self._replaced_removed(path, marked):
            remedy = Remedy("{} moves it", Call("tags.move", (tag.name, tag.ref)))
            raise AlreadyExistsError(f"tag {tag.name!r} of {self.store.uri} exists", remedy=remedy)
        return marked

    def swap(self, tag: Tag, expected: str | None = None) -> Tag:
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

        return self.change(tag.name, moved)

    def change(
        self, name: str, change: Callable[[Tag], Tag], *, follow: bool = False, stored: Tag | None = None
    ) -> Tag:
        """Replace a tag's file with what `change` returns, by compare-and-swap.

        Args:
            name: The name of the tag.
            change: Gets the stored tag and returns the tag to store; the same tag when there is nothing to change. It
                is called again when another writer changed the file first.
            follow: Whether to change a tag that another writer moved meanwhile, at its new version.
            stored: The tag as `tag_to_change` has just read it, so that it is not read again at first.

        Raises:
            RefMovedError: It was moved between reading and writing.
            RefNotFoundError: There is no such tag.
        """
        check_string("the name of a tag", name)
        path = layout.tag_file(name)
        for _ in range(_ATTEMPTS):
            current, stored = stored or (self._stored(name, path) if is_path_inside(name) else None), None
            if current is None or REMOVER in current.metadata:
                raise self.not_found(name)
            changed = change(current)
            if changed == current:
                return current
            marked = _with_write_id(changed)
            if self._swapped(path, marked, current.etag):
                self._keep(path, marked)
                return marked
            now = self.find(name)
            # A move may not overwrite another move that it has not seen; a change of metadata may follow the tag.
            if now is None or (now.ref != current.ref and not follow):
                raise RefMovedError(name, current.ref, now.ref if now else "nothing")
        raise StoreError(f"cannot change tag {name!r} of {self.store.uri}: it keeps changing")

    def remove(self, tag: Tag) -> None:
        """Delete a tag as it was read.

        Raises:
            RefMovedError: It was moved or changed meanwhile; it stays.
        """
        path, expected = layout.tag_file(tag.name), tag
        for _ in range(_ATTEMPTS):
            stored = self.store.get_with_etag(path)
            if stored is None:
                return
            current = parse_tag(tag.name, stored[0], f"{self.store.uri}/{path}")
            # The caller decided about the tag that it read: a tag that was moved since may be needed where it is.
            if current != expected:
                raise RefMovedError(tag.name, tag.ref, current.ref)
            if self.store.deletes_conditionally() or REMOVER in current.metadata:
                if self.store.compare_and_delete(path, stored[1]):
                    return
                continue
            # From here on the tag counts as deleted, and a writer that wants its name waits until it is gone.
            marked = _with_write_id(with_metadata(current, self.removal_right.mark()))
            if self._swapped(path, marked, stored[1]):
                expected = marked
        raise StoreError(f"cannot delete tag {tag.name!r} of {self.store.uri}: it keeps changing")

    def _replaced_removed(self, path: str, tag: Tag) -> bool:
        """Replace the file of a tag whose removal was interrupted; return whether that was done.

        Raises:
            ConflictError: The removal may still be under way.
        """
        stored = self.store.get_with_etag(path)
        current = None if stored is None else parse_tag(tag.name, stored[0], f"{self.store.uri}/{path}")
        if stored is None or current is None or REMOVER not in current.metadata:
            return False
        # Until then, the request of the process that removes the old tag could arrive late and delete the new tag.
        if not self.removal_right.is_free(current):
            raise self.removal_right.elsewhere("tag", tag.name)
        return self._swapped(path, tag, stored[1])

    def _stored(self, name: str, path: str) -> Tag | None:
        stored = self.store.get_with_etag(path)
        if stored is None:
            return None
        tag = replace(parse_tag(name, stored[0], f"{self.store.uri}/{path}"), etag=stored[1])
        # A marked tag counts as deleted.
        if REMOVER not in tag.metadata:
            self._known[name] = tag
        return tag

    def _keep(self, path: str, tag: Tag) -> None:
        """Keep a tag that was written, where the store tells the ETag of its file."""
        data = tag_file_of(tag)
        etag = self.store.written_tag(path, data)
        if etag:
            self._known[tag.name] = replace(parse_tag(tag.name, data, f"{self.store.uri}/{path}"), etag=etag)

    def _swapped(self, path: str, tag: Tag, etag: str) -> bool:
        try:
            if self.store.compare_and_swap(path, tag_file_of(tag), etag):
                return True
        except StoreError as lost:
            # The answer may be lost although the tag was moved: only the stored object tells.
            try:
                stored = self._is_stored(tag)
            except FormatError as damaged:
                # An error about the file would say that nothing was done.
                raise lost from damaged
            if not stored:
                raise
            return True
        return self._is_stored(tag)

    def _is_stored(self, tag: Tag) -> bool:
        """Tell whether the stored tag comes from this very write."""
        now = self.find(tag.name)
        return now is not None and now.metadata.get(WRITE_ID) == tag.metadata[WRITE_ID]


@dataclass(frozen=True, slots=True)
class Refs:
    """The branches and tags of one table, and what refers to what."""

    store: Store
    branches: BranchFiles = field(init=False, compare=False, repr=False)
    tags: TagFiles = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Make the two groups of files; the class is frozen."""
        object.__setattr__(self, "branches", BranchFiles(self.store))
        object.__setattr__(self, "tags", TagFiles(self.store))

    def listed(self) -> ListedRefs:
        """List the tags, the branches and the rules of protection with one request for each page."""
        files: dict[str, dict[str, str]] = {layout.TAGS: {}, layout.BRANCHES: {}, layout.REFS: {}}
        for entry in sorted(self.store.walk(layout.REFS), key=attrgetter("key")):
            folder, _, file = entry.key.rpartition("/")
            files.get(folder, {})[file] = entry.etag
        has_protection = layout.PROTECTION.rpartition("/")[2] in files[layout.REFS]
        return ListedRefs(files[layout.TAGS], files[layout.BRANCHES], has_protection)

    def referrers_of(self, branch: str, listed: ListedRefs | None = None) -> list[str]:
        """Describe the tags and branches that refer to a branch, including branches that are being created."""
        # Branches and tags that a repository keeps for its commits are not read: there are some for every publication
        # there was, and they refer only to `main` and to their own kind.
        repository_refs = (layout.PUBLISHED, layout.PIN)
        exempt = () if branch.startswith(layout.PUBLISHED) or branch == layout.MAIN else repository_refs

        # No branch is its own parent, so its file need not be read.
        def other_branch(file: str) -> str | None:
            return None if (name := layout.parse_branch_file_name(file)) == branch else name

        tags, branches = self._all_refs(listed or self.listed(), other_branch, exempt)
        users = [f"tag {tag.name!r}" for tag in tags.values() if tag.branch == branch]
        return users + [f"branch {child.name!r}" for child in branches.values() if child.parent_branch == branch]

    def referrers(self) -> dict[str, list[str]]:
        """Describe the tags and branches that refer to each branch, as `referrers_of` does for one."""
        users: dict[str, list[str]] = {}
        # Every file is read once for all branches: `referrers_of` for each of them would read all files for each.
        tags, branches = self._all_refs(self.listed(), layout.parse_branch_file_name)
        for tag in tags.values():
            users.setdefault(tag.branch, []).append(f"tag {tag.name!r}")
        for branch in branches.values():
            users.setdefault(branch.parent_branch, []).append(f"branch {branch.name!r}")
        return users

    def branch_not_found(self, name: str) -> RefNotFoundError:
        """Return the error for a name that no branch has; it says what the name stands for instead."""
        # One more request is made, only for the message: a tag may have been named where a branch must be named.
        if self.tags.find(name) is not None:
            instead = "that is a tag; name a branch"
        elif (version_of := branch_of_version(name)) is not None:
            instead = f"that is a version; name a branch, such as {version_of!r}"
        else:
            instead = self._unfinished(name)
        return RefNotFoundError(name, self.branches.known(), self.store.uri, "branch", instead)

    def _unfinished(self, name: str) -> str:
        """Say what is being done to a branch that has a file and cannot be used; else return an empty string."""
        branch = self.branches.find(name)
        if branch is None or branch.state == READY:
            return ""
        if RESETTING in branch.metadata:
            return "it is being reset; if that was interrupted, resetting it again finishes it"
        if RECOVERING in branch.metadata and branch.state == CREATING:
            return "it is being recovered; if that was interrupted, recovering it again finishes it"
        if branch.state == CREATING:
            return "it is being created; if that was interrupted, creating it again finishes it"
        return "it is being deleted; if that was interrupted, deleting it again finishes it"

    def _all_refs(
        self, listed: ListedRefs, name_of: Callable[[str], str | None], exempt: tuple[str, ...] = ()
    ) -> tuple[dict[str, Tag], dict[str, Branch]]:
        """Read the listed tags, and the listed branches whose files have a name, that begin with no exempt prefix."""
        tags = _named(listed.tags, layout.parse_tag_file_name, None, exempt)
        branches = _named(listed.branches, name_of, None, exempt)
        return together(
            self.store,
            partial(self.tags.read, tags),
            partial(self.branches.read, branches),
        )


def _put_once(store: Store, path: str, data: bytes) -> bool:
    """Put if absent; an equal object counts as success, since the answer to the first request may be lost."""
    return store.put_if_absent(path, data) or store.get(path) == data


def _named(
    files: Mapping[str, str], name_of: Callable[[str], str | None], pattern: str | None, exempt: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the names of the refs that match, with the ETags of their files, given the names and ETags of files."""
    if pattern is not None:
        check_pattern(pattern)
    named = ((name_of(file), etag) for file, etag in files.items())
    kept = ((name, etag) for name, etag in named if name and not name.startswith(exempt))
    return {name: etag for name, etag in kept if pattern is None or fnmatchcase(name, pattern)}


def _read_all(
    listed: Mapping[str, str], remembered: Mapping[str, Ref], load: Callable[[str], Ref | None]
) -> dict[str, Ref]:
    """Return the listed refs; a remembered ref with the listed ETag is not read again, since its file is the same."""
    same = {name: ref for name in listed if (ref := remembered.get(name)) is not None and ref.etag == listed[name]}
    names = [name for name in listed if name not in same]
    # Each ref takes one request, and a table with many runs has many branches.
    fresh = dict(zip(names, concurrently(load, names, at_once=1 if len(names) <= _FEW else AT_ONCE), strict=True))
    # A ref that was deleted between the listing and the reading has no value.
    present = ((name, same.get(name) or fresh.get(name)) for name in listed)
    return {name: ref for name, ref in present if ref is not None}


def _file_of(folder: str, name: object, what: str) -> str | None:
    """Return the path of a ref's file; None when the name leads out of the folder, so that no ref can have it.

    Raises:
        InvalidInputError: The name is not a string, or cannot be encoded.
    """
    # Printable strings can always be encoded; only other names need the check, which raises the error.
    if not isinstance(name, str) or not name.isprintable():
        check_string(what, name)
    return layout.ref_file(folder, str(name))


def _with_write_id(tag: Tag) -> Tag:
    """Return a tag as it is to be stored: with the times it lacks, and the random id of this write."""
    now = pendulum.now("UTC")
    return replace(
        tag,
        created_at=tag.created_at or now,
        updated_at=tag.updated_at or now,
        metadata={**tag.metadata, WRITE_ID: uuid.uuid4().hex},
    )
