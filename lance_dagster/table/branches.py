"""`table.branches`: create, compare, sync, protect and delete the branches of a table; preview merges on a branch."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from lance_dagster.edit.write import CommitInfo
from lance_dagster.edit.write_result import WriteResult
from lance_dagster.errors import InvalidInputError, MergeConflictError, RefMovedError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_class, check_string, string_list, whole_number
from lance_dagster.history.context import Properties, Ref, TableContext, first_parent_log, full_log
from lance_dagster.history.lineage import AheadBehind, lineage_of
from lance_dagster.history.log import LogFilter
from lance_dagster.history.refs import branch_operations, branch_recovery, protection as protecting, rename, reset
from lance_dagster.history.refs.protection import Protection
from lance_dagster.history.refs.ref_files import READY, Branch
from lance_dagster.history.versions import Version
from lance_dagster.merge import merge_commit, preview
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.merge.rules.strategy import Strategy
from lance_dagster.table.status import TableStatus, status_of

# The class has a method `list`, which hides the built-in type in its annotations; hence these aliases.
VersionNumbers = list[int]
VersionGraph = list[tuple[Version, tuple[str, ...]]]
"""Versions, newest first, each with the names of its parents in the graph."""


class Branches:
    """The branches of a table, as `table.branches`.

    A name is given to another branch only by a deletion followed by `create`, and by a `reset` to a version of another
    branch. Every operation can be repeated after a crash: it finishes what was begun, or reports that it is done
    (`AlreadyExistsError` from `create` without `exist_ok`, `RefNotFoundError` from `delete`).
    """

    def __init__(self, context: TableContext) -> None:
        """Wrap the context of a table."""
        self._context = context

    def list(self, pattern: str | None = None) -> dict[str, Branch]:
        """Return the branches by name, without `main` and without branches that are being created or deleted.

        Args:
            pattern: A glob pattern such as `"run/*"`; the files of other branches are not read.

        Raises:
            InvalidInputError: The pattern has more than 256 characters.
        """
        # A branch that is not ready may lack its first version, so a reader could not open it.
        branches = self._context.refs.branches.all(pattern)
        return {name: branch for name, branch in branches.items() if branch.state == READY}

    def get(self, name: str) -> Branch:
        """Return a branch; reads one file.

        Raises:
            RefNotFoundError: The branch does not exist, or is `main`, which has no branch file.
        """
        branch = self._context.refs.branches.find(name)
        # A branch that is being created or deleted is reported as missing: its files are incomplete.
        if branch is None or branch.state != READY:
            raise self._context.refs.branch_not_found(name)
        return branch

    def recall(self, name: str) -> Branch:
        """Return a branch as `get` does, from memory where it was read before; its fork point never changes."""
        branch = self._context.refs.branches.remembered(name)
        return self.get(name) if branch is None or branch.state != READY else branch

    def opened_at(self) -> Version:
        """Return the version of `main` that was the newest when the table was opened, for a caller that just opened it.

        This saves a listing on object storage. If the version is gone, the newest version is returned.
        """
        return self._context.versions.describe(self._context.versions.listed() or self._context.head(MAIN))

    def opened_ref(self) -> str:
        """Return the expression of `opened_at`, such as `main@3`, without reading that version where possible."""
        number = next(iter(self._context.versions.seen.main_numbers), None)
        return str(self._context.head(MAIN)) if number is None else f"{MAIN}@{number}"

    def newest(self, name: str) -> Version | None:
        """Return the newest version of a branch, or None when there is no such branch.

        `table.head` raises then, and reads the names of all branches for its error.
        """
        head = self._context.find_head(name)
        return None if head is None else self._context.versions.describe(head)

    def create(
        self,
        name: str,
        at: Ref = MAIN,
        *,
        exist_ok: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> Branch:
        """Fork a branch from a version; no data is copied.

        Version numbers continue from the number of that version. When a branch of the same name was deleted within the
        last day, they begin above its numbers; `first` of the result is the first number.

        Args:
            name: The new branch.
            at: The version to fork from.
            exist_ok: Return an existing branch of that name, wherever it was forked.
            metadata: Stored with the branch.

        Raises:
            InvalidRefNameError: The name breaks a rule of the specification.
            InvalidInputError: A key of the metadata starts with `lance_dagster.`.
            RefNotFoundError: The version to fork from does not exist.
            AlreadyExistsError: A branch or tag has the name.
        """
        # This package stores its own state under the reserved prefix; a user's value could be taken for it.
        branch_operations.refuse_reserved_keys(metadata or {})
        return branch_operations.create_branch(
            name,
            self._context.at(at, fresh=True),
            self._context.refs,
            self._context.versions,
            exist_ok=exist_ok,
            metadata=metadata or {},
        )

    def has_versions(self, name: str) -> bool:
        """Return whether the folder of a branch has versions, even where the branch has no file; lists some names."""
        return self._context.refs.branches.may_have(name) and self._context.versions.newest(name) is not None

    def unmerged(self, head: Version) -> Sequence[Version]:
        """Return the commits of a branch up to `head` that `main` did not contain when it was last read, newest first.

        These are the versions of `table.log(head, after="main")` without the version that the fork made, which has the
        rows of `main`. For a branch of `main` that was read before, only versions that were not read yet are read.
        """
        context, versions = self._context, self._context.versions
        # The version of `main` that was read last may be old. It then contains less, so no version is left out.
        tip, main = context.recall(head), versions.seen.latest(MAIN) or versions.listed()
        branch = tip.of
        if branch is None or main is None or branch.parent_branch != MAIN:
            first = 0 if branch is None else branch.first
            log = first_parent_log(context, head, after=MAIN, limit=None, only=None)
            return [version for version in log if (version.branch, version.number) != (head.branch, first)]
        merged = max(lineage_of(main, context.refs).contained.get(branch.id, 0), branch.first)
        states = versions.find_range(branch.name, merged + 1, tip.number, branch.id)
        numbers = [merged, *(state.number for state in states)]
        return [versions.describe(state, numbers) for state in reversed(states)]

    def is_ready(self, name: str) -> bool:
        """Return whether there is a branch that takes commits, such as `main`. Reads one file."""
        branch = None if name == MAIN else self._context.refs.branches.stored(name)
        return name == MAIN or (branch is not None and branch.state == READY)

    def fork(self, name: str, start: Version, *, metadata: Mapping[str, str] | None = None) -> Version:
        """Fork a branch from a version that the caller has just read, unless it exists; return its newest version.

        The version is not looked for again, and neither is the new branch, which begins with that version. Where the
        caller has just asked `has_versions`, the versions of the branch are not listed again.

        Args:
            name: The branch.
            start: The version to fork from.
            metadata: Stored with the branch.

        Raises:
            InvalidRefNameError: The name breaks a rule, as for `create`.
            InvalidInputError: A key of the metadata is reserved.
            AlreadyExistsError: A tag has the name.
        """
        branch_operations.refuse_reserved_keys(metadata or {})
        refs, versions = self._context.refs, self._context.versions
        parent = self._context.recall(start)
        branch = branch_operations.create_branch(name, parent, refs, versions, exist_ok=True, metadata=metadata or {})
        tip = versions.seen.tip(name)
        # There is a tip of this branch only if this call made it; another process may have made the branch.
        is_own = tip is not None and tip.of is not None and tip.of.id == branch.id
        return versions.describe(tip if tip is not None and is_own else self._context.head(name))

    def delete(self, name: str, *, newest: Version | None = None) -> None:
        """Delete a branch; its data files stay until they are collected.

        Args:
            name: The branch.
            newest: The newest of its versions that may be deleted; the branch is kept when there is a newer version,
                even if that is committed at the same time. None for any.

        Raises:
            InvalidInputError: The branch is `main`, or `newest` is not a version of the branch.
            RefNotFoundError: There is no such branch, or it is `main` and `newest` is given.
            ProtectedError: The branch is protected.
            ConflictError: A tag or another branch refers to it, or it has a version after `newest`.
        """
        refs, versions = self._context.refs, self._context.versions
        if newest is None:
            branch_operations.delete_branch(name, refs, versions)
            return
        check_class("newest", newest, Version, "table.head('work')")
        if newest.branch != name:
            raise InvalidInputError(f"newest is {newest}, which is not a version of branch {name!r}")
        branch = refs.branches.remembered(name)
        if branch is not None and branch.state == READY:
            # It need not be read again: its mark is put only where its file is still the same.
            with suppress(RefMovedError):
                branch_operations.delete_up_to(branch, newest.number, refs, versions)
                return
        branch_operations.delete_up_to(self.get(name), newest.number, refs, versions)

    def rename(self, name: str, new_name: str) -> Branch:
        """Rename a branch; versions keep their numbers, and merges of the branch stay recorded.

        Every manifest is rewritten, and files in the branch's own folder are copied. A concurrent commit to the branch
        fails, or raises `CommitStateUnknownError` when it may have landed before the rename.

        Raises:
            InvalidRefNameError: The new name breaks a rule of the specification.
            InvalidInputError: The branch is `main`.
            RefNotFoundError: There is no such branch.
            AlreadyExistsError: The new name is taken, or another branch had it until less than a day ago.
            ProtectedError: The old or the new name is protected.
            ConflictError: A tag or another branch refers to it.
        """
        return rename.rename_branch(name, new_name, self._context.refs, self._context.versions)

    def reset(self, name: str, at: Ref = MAIN, *, message: str | None = None, properties: Properties = None) -> Branch:
        """Reset a branch to a version, as `git reset --hard` does; the branch keeps its metadata.

        A reset of `run/7` from version 8 to its own version 5 makes version 9 with the content of version 5 and with
        version 5 as its parent, and drops the versions 6 to 8. `restore` goes back without dropping versions, also on
        `main`. A reset to a version of another branch works as if the branch was deleted and created again; its own
        versions are lost. A concurrent commit to the branch then raises `CommitConflictError`, or
        `CommitStateUnknownError` when it may have been merged before.

        Args:
            name: The branch; not `main`.
            at: The version to go back to, or to start from.
            message: The message of the version that the reset makes.
            properties: Stored with its transaction.

        Raises:
            RefNotFoundError: There is no such branch.
            InvalidInputError: The branch is `main`.
            ProtectedError: The branch is protected.
            ConflictError: A tag or another branch refers to the branch, or to a version that would be dropped; or
                another branch contains such a version. The message names them all. Or another reset or a deletion of
                the branch began meanwhile and takes precedence.
            CommitConflictError: Another writer committed while the branch was reset to a version of its own.
        """
        stored_properties = CommitInfo.of(name, message, properties).as_properties()
        target = self._context.at(at, fresh=True)
        # Two operations: a reset to one of its own versions keeps the branch; a reset to any other version replaces it
        # by a new branch of that name.
        if target.branch == name:
            return reset.reset_to_own_version(target, self._context.refs, self._context.versions, stored_properties)
        refs, versions = self._context.refs, self._context.versions
        return branch_operations.reset_branch(name, target, refs, versions, properties=stored_properties)

    def recover(self, name: str) -> Branch:
        """Bring back a branch that lost its file or its versions, or that was deleted less than about a day ago.

        A branch that has its file and its versions is returned unchanged. Otherwise:

        - A lost branch file is written anew from the first version; the metadata of the branch is lost.
        - Missing versions are restored from copies, which exist until garbage collection deletes them. Versions that a
          reset dropped stay away.
        - The data files of the versions are kept as long as the copies. If another program deleted a data file that the
          newest version needs, the branch is not recovered.

        Concurrent work may change the result:

        - A slow deletion that began earlier may delete the restored versions, and then its process restores them. If
          the process dies in between and the branch has no version, call `recover` again; older versions may be
          missing then.
        - A commit that was under way when the branch was deleted, and raised `CommitStateUnknownError`, may be a
          version of the recovered branch.

        Raises:
            RefNotFoundError: Neither the file nor a version of the branch is left; or the branch was renamed, or has
                later versions under another name; or the branch that it was forked from is gone.
            AlreadyExistsError: A tag has the name.
            ConflictError: A branch of the name is being created, deleted or reset; or another process took the name,
                deleted the branch or recovered it meanwhile.
            CorruptFileError: A file that the newest version names was deleted, or the copy of a version is damaged.
        """
        return branch_recovery.recover_branch(name, self._context.refs, self._context.versions)

    def set_metadata(self, name: str, updates: Mapping[str, str | None]) -> Branch:
        """Update the metadata of a branch by compare-and-swap; a value of None removes the key.

        Raises:
            RefNotFoundError: There is no such branch.
            InvalidInputError: A key starts with `lance_dagster.`.
        """
        return branch_operations.set_metadata(name, updates, self._context.refs)

    def protection(self) -> Protection:
        """Return the patterns of the protected branches and tags."""
        # Read anew at each call: a protection must hold as soon as another process has set it.
        return protecting.protection(self._context.store)

    def protect(self, patterns: Sequence[str], *, tags: Sequence[str] = ()) -> Protection:
        """Protect branches, and tags with them, by glob patterns, in addition to existing patterns; one write for both.

        A protected branch accepts only merges and maintenance (compaction, indices). It cannot be reset, deleted or
        renamed. Commits that already started may still land, and other programs do not check the protection.

        Args:
            patterns: Such as `["main", "release/*"]`; `*` matches any characters, "/" included.
            tags: Patterns of tags, as for `table.tags.protect`.

        Raises:
            InvalidInputError: A pattern is empty or has more than 256 characters, or an argument is not a list of
                strings; then nothing is protected.
        """
        return protecting.change_protection(self._context.store, _patterns(patterns, tags), Protection())

    def unprotect(self, patterns: Sequence[str], *, tags: Sequence[str] = ()) -> Protection:
        """Remove patterns that `protect` added, of branches and of tags; one write for both.

        Raises:
            InvalidInputError: Nothing is protected by such a pattern; then no pattern is removed.
        """
        return protecting.change_protection(self._context.store, Protection(), _patterns(patterns, tags))

    def ahead_behind(self, ref: Ref, other: Ref = MAIN) -> tuple[int, int]:
        """Return the number of versions that only `ref` contains, and of the versions that only `other` contains.

        Versions are counted from file names.
        """
        refs = self._context.refs
        # One `AheadBehind` for both directions, because it keeps the listed names of each branch.
        first, second = (lineage_of(self._context.at(side), refs) for side in (ref, other))
        distances = AheadBehind(refs.branches.all(), self._context.versions)
        return distances.ahead(first, second), distances.ahead(second, first)

    def merge_base(self, ref: Ref, other: Ref) -> Version:
        """Return the newest version that two versions contain.

        Raises:
            InvalidInputError: The versions have nothing in common.
        """
        base = merge_commit.base_of(self._context, self._context.at(ref), self._context.at(other))
        return self._context.versions.describe(base)

    def status(self) -> TableStatus:
        """Return how far every branch and tag is ahead of `main` and behind it.

        One version is read for each, and the names of the versions of each branch.
        """
        return status_of(self._context)

    def sync(
        self, name: str, *, strategy: Strategy = None, message: str | None = None, properties: Properties = None
    ) -> WriteResult:
        """Merge the parent of a branch into the branch; otherwise as `table.merge`.

        Raises:
            InvalidInputError: `name` is main, which has no parent branch; or as for `table.merge`.
            MergeConflictError: There are conflicts, which the error lists; nothing was written.
        """
        if name == MAIN:
            uri = self._context.uri
            raise InvalidInputError(f"main of {uri} has no parent branch, so there is nothing to sync it with")
        branch = self._context.refs.branches.find(name)
        if branch is None:
            raise self._context.refs.branch_not_found(name)
        options = MergeOptions(strategy=strategy, message=message, properties=properties or {})
        merged = merge_commit.merge(self._context, self._context.at(branch.parent_branch), name, options)
        return merged.described(self._context)

    def is_merged(self, source: Ref, into: str = MAIN) -> Version | None:
        """Return the version of `into` that contains all of `source`, or None when `source` has something new.

        Raises:
            RefNotFoundError: There is no such source, or no such branch `into`.
        """
        version = merge_commit.find_merged(self._context, self._context.at(source), self._context.head(into))
        return None if version is None else self._context.versions.describe(version)

    def preview(
        self,
        source: Ref,
        into: str = MAIN,
        *,
        name: str | None = None,
        strategy: Strategy = None,
        message: str | None = None,
        properties: Properties = None,
    ) -> Branch:
        """Create a branch that contains the result of a merge, so that checks can run before the merge itself.

        The preview is an ordinary branch. Merging it instead of `source` publishes exactly the checked rows while
        `into` has no newer version; `mode="ff-only"` refuses otherwise. Once the preview is complete, its metadata has
        the merged version under `preview_of`. Idempotent: repeat the call after a crash.

        Args:
            source: The version to merge.
            into: The branch to merge into.
            name: The new branch; None for `preview/` and the name of the source's branch, or `main-into-` and the name
                of `into`.
            strategy: The strategy that resolves conflicts.
            message: The commit message of the merge.
            properties: Stored with its transaction.

        Raises:
            RefNotFoundError: The source or the branch `into` does not exist.
            MergeConflictError: The merge has conflicts; the error lists them all, and no branch is left behind.
            InvalidRefNameError: The name breaks a rule of the specification.
            AlreadyExistsError: A branch or a tag has the name.
        """
        options = MergeOptions(strategy=strategy, message=message, properties=properties or {})
        state, head = self._context.at(source), self._context.head(into)
        # Conflicts are looked for first: a branch created in vain would have to be deleted, which a crash may prevent.
        merge_preview = preview.preview(self._context, state, into, strategy=strategy)
        if merge_preview.conflicts:
            raise MergeConflictError(
                f"cannot merge {state} into {head} of {self._context.uri}; nothing was written:",
                merge_preview.conflicts,
                remedy=preview.remedy_of_branch(merge_preview, name),
            )
        # The states that were read above, not the refs: a commit in between must not change what was checked.
        name = name or preview_name(state.branch, into)
        return preview.preview_on_branch(self._context, name, state, head, options=options)

    def graph(
        self, ref: Ref = MAIN, *, after: Ref | None = None, limit: int | None = None, only: LogFilter | None = None
    ) -> VersionGraph:
        """Return the versions of `table.log` with `first_parent=False`, each with its parents in the graph.

        A parent that the filter excludes is replaced by its nearest included ancestors. Parents may be beyond the
        limit; parents that were removed are left out.
        """
        return full_log(self._context, ref, after=after, limit=limit, only=only)

    def version_numbers(self, name: str = MAIN, *, after: int = 0) -> VersionNumbers:
        """List the numbers of a branch's versions after `after`, ascending, from file names alone."""
        check_string("the name of a branch", name)
        after = whole_number("after", after, 0)
        return [number for number in self._context.versions.numbers(name) if number > after]


def preview_name(source: str, into: str) -> str:
    """Return the default name of a preview branch."""
    # The specification forbids `main` as a segment of a branch name.
    return f"preview/{f'main-into-{into}' if source == MAIN else source}"


def _patterns(branches: Sequence[str], tags: Sequence[str]) -> Protection:
    return Protection(branches=string_list("patterns", branches, "release/*"), tags=string_list("tags", tags, "v*"))
