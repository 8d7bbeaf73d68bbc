"""`table.branches`: the branches of a table, what they contain beside each other, and which are protected."""

from collections.abc import Mapping, Sequence

from lance_dagster.errors import MergeConflictError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import string_list
from lance_dagster.history.context import Ref, TableContext
from lance_dagster.history.lineage import AheadBehind, lineage_of
from lance_dagster.history.log import LogFilter
from lance_dagster.history.refs import branch_operations, protection as protecting, rename
from lance_dagster.history.refs.protection import Protection
from lance_dagster.history.refs.ref_store import READY, Branch
from lance_dagster.history.versions import Version
from lance_dagster.merge import merge_commit, preview
from lance_dagster.merge.rules import Strategy
from lance_dagster.table.version_log import full_log

VersionNumbers = list[int]
VersionGraph = list[tuple[Version, tuple[str, ...]]]
"""Versions, newest first, each with the names of the versions to draw lines to."""


class Branches:
    """The branches of a table, as `table.branches`.

    A name that is taken is never given to somebody else. Every operation is idempotent: repeat it after a crash.
    """

    def __init__(self, context: TableContext) -> None:
        """Wrap the context of a table."""
        self._context = context

    def list(self, pattern: str | None = None) -> dict[str, Branch]:
        """Return the branches by name, without `main` and without those being created or deleted.

        Args:
            pattern: A glob pattern such as `"run/*"`; the files of other branches are not read.
        """
        return {name: found for name, found in self._context.refs.branches(pattern).items() if found.state == READY}

    def get(self, name: str) -> Branch:
        """Return one branch; reads one file.

        Raises:
            RefNotFoundError: There is no such branch; `main` is not one of these.
        """
        found = self._context.refs.branch(name)
        if found is None or found.state != READY:
            raise self._context.refs.branch_not_found(name)
        return found

    def create(
        self,
        name: str,
        at: Ref = MAIN,
        *,
        exist_ok: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> Branch:
        """Fork a branch from a version; no data is copied.

        Its numbers go on from the version's. Where a branch of that name was deleted within the last day, they begin
        above those of that one: `first` of the result says where.

        Args:
            name: The new branch.
            at: The version to fork from.
            exist_ok: Return the branch of that name when there is one, wherever it was forked.
            metadata: Kept with the branch.

        Raises:
            InvalidRefNameError: The name breaks a rule of the specification.
            InvalidInputError: A key of the metadata starts with `lance_dagster.`.
            RefNotFoundError: There is no such version to fork from.
            AlreadyExistsError: The name is taken.
        """
        branch_operations.refuse_reserved_keys(metadata or {})
        return branch_operations.create_branch(
            name,
            self._context.at(at),
            self._context.refs,
            self._context.versions,
            exist_ok=exist_ok,
            metadata=metadata or {},
        )

    def delete(self, name: str) -> None:
        """Delete a branch; its data files stay until they are collected.

        Raises:
            InvalidInputError: The branch is `main`.
            RefNotFoundError: There is no such branch.
            ProtectedError: The branch is protected.
            ConflictError: A tag or another branch refers to it.
        """
        branch_operations.delete_branch(name, self._context.refs, self._context.versions)

    def rename(self, name: str, new_name: str) -> Branch:
        """Give a branch another name; versions keep their numbers, and what was merged stays merged.

        Every manifest is written again, and files that lie in the branch's own folder are copied. Commits to it fail
        from the start on, or do not know whether they were taken along.

        Raises:
            InvalidRefNameError: The new name breaks a rule of the specification.
            InvalidInputError: The branch is `main`.
            RefNotFoundError: There is no such branch.
            AlreadyExistsError: The new name is taken, or another branch had it until less than a day ago.
            ProtectedError: One of the names is protected.
            ConflictError: A tag or another branch refers to it.
        """
        return rename.rename_branch(name, new_name, self._context.refs, self._context.versions)

    def reset(self, name: str, at: Ref = MAIN) -> Branch:
        """Make a branch start anew from a version, as if it was deleted and created again; what it had is gone.

        A writer in the middle of a commit to it gets a `CommitConflictError`, or a `CommitStateUnknownError` where its
        commit may have been merged just before. The branch keeps its metadata. To go back on a branch without losing
        what came after, restore the older version as the next one.

        Args:
            name: The branch; not `main`.
            at: The version to start from, on another branch.

        Raises:
            RefNotFoundError: There is no such branch.
            InvalidInputError: The branch is `main`, or the version is its own.
            ProtectedError: The branch is protected.
            ConflictError: A tag or another branch refers to it.
        """
        return branch_operations.reset_branch(name, self._context.at(at), self._context.refs, self._context.versions)

    def set_metadata(self, name: str, updates: Mapping[str, str | None]) -> Branch:
        """Change what is kept with a branch, by compare-and-swap; a value of None takes a key out.

        Raises:
            RefNotFoundError: There is no such branch.
            InvalidInputError: A key starts with `lance_dagster.`.
        """
        return branch_operations.set_metadata(name, updates, self._context.refs)

    def protection(self) -> Protection:
        """Return which branches and tags are protected."""
        return protecting.protection(self._context.store)

    def protect(self, patterns: Sequence[str]) -> Protection:
        """Protect branches by glob patterns, beside those that are protected already.

        A protected branch takes merges and upkeep (compaction, indices), and no other commit; it cannot be reset,
        deleted or renamed. Commits in flight may still land. Programs that write past this package do not look.

        Args:
            patterns: Such as `["main", "release/*"]`; `*` stands for any characters, "/" included.

        Raises:
            InvalidInputError: A pattern is empty, or what is given is no list.
        """
        return protecting.change_protection(self._context.store, _patterns(patterns), Protection())

    def unprotect(self, patterns: Sequence[str]) -> Protection:
        """Take patterns of `protect` back.

        Raises:
            InvalidInputError: Nothing is protected by such a pattern.
        """
        return protecting.change_protection(self._context.store, Protection(), _patterns(patterns))

    def ahead_behind(self, ref: Ref, other: Ref = MAIN) -> tuple[int, int]:
        """Return how many versions only `ref` contains, and how many only `other` does.

        Versions are counted by the names of their files.
        """
        refs = self._context.refs
        left, right = (lineage_of(self._context.at(found), refs) for found in (ref, other))
        distances = AheadBehind(refs.branches(), self._context.versions)
        return distances.ahead(left, right), distances.ahead(right, left)

    def is_merged(self, source: Ref, into: str = MAIN) -> Version | None:
        """Return the version of `into` that contains all of `source`, or None when `source` has something new.

        Raises:
            RefNotFoundError: There is no such source, or no such branch `into`.
        """
        found = merge_commit.find_merged(self._context, self._context.at(source), into)
        return None if found is None else self._context.versions.describe(found)

    def preview(self, source: Ref, into: str = MAIN, *, name: str | None = None, strategy: Strategy = None) -> Branch:
        """Make a branch that holds what a merge would give, for checks to run on before the merge is made.

        Any program reads it as any other branch. Merging it instead of `source` gives exactly what was checked, as
        long as `into` did not move on; `mode="ff-only"` refuses when it did. Its metadata has `preview_of`, the version
        that was merged, as soon as the merge is in it. Repeat the call after a crash.

        Args:
            source: The version to merge.
            into: The branch to merge into.
            name: The new branch; None for `preview/` and the name of the source's branch, or `main-into-` and the name
                of `into`.
            strategy: Who wins conflicts.

        Raises:
            RefNotFoundError: There is no such source, or no such branch to merge into.
            MergeConflictError: With every reason why not; nothing is left behind.
            InvalidRefNameError: The name breaks a rule of the specification.
            AlreadyExistsError: A branch or a tag has the name.
        """
        state, head = self._context.at(source), self._context.head(into)
        # Asked first: a branch made for nothing would have to be deleted again, which a crash may prevent.
        conflicts = preview.preview(self._context, state, into, strategy=strategy).conflicts
        if conflicts:
            where = self._context.uri
            raise MergeConflictError(f"cannot merge {state} into {head} of {where}; nothing was written:", conflicts)
        name = name or preview_name(state.branch, into)
        return preview.preview_on_branch(self._context, name, state, head, strategy=strategy)

    def graph(
        self, ref: Ref = MAIN, *, after: Ref | None = None, limit: int | None = None, only: LogFilter | None = None
    ) -> VersionGraph:
        """Return what `table.log` returns with `first_parent=False`, each with the versions to draw lines to.

        These are the next older versions that a filter lets through, and may be beyond the limit. Parents that are
        gone are not among them.
        """
        return full_log(self._context, ref, after=after, limit=limit, only=only)

    def version_numbers(self, name: str = MAIN, *, after: int = 0) -> VersionNumbers:
        """List the numbers of a branch's versions after `after`, ascending, from file names alone."""
        return [found for found in self._context.versions.numbers(name) if found > after]


def preview_name(source: str, into: str) -> str:
    """Return what a branch that shows a merge is called, unless it is given a name."""
    # No segment of a name can be `main`.
    return f"preview/{f'main-into-{into}' if source == MAIN else source}"


def _patterns(given: Sequence[str]) -> Protection:
    return Protection(branches=string_list("patterns", given, "release/*"))
