"""Merges: the methods of a table that join branches."""

from collections.abc import Mapping

from lance_dagster.errors import InvalidInputError, MergeConflictError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.refs.ref_store import Branch
from lance_dagster.history.versions import Version
from lance_dagster.merge import merge_commit, preview
from lance_dagster.merge.merge_commit import MERGE_COMMIT, MergeOptions
from lance_dagster.merge.preview import MergePreview
from lance_dagster.merge.rules import Strategy
from lance_dagster.table.facade import Facade


class Merging(Facade):
    """Only metadata is written, whatever the size of what is merged."""

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        strategy: Strategy = None,
        mode: str = MERGE_COMMIT,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Merge a version into a branch; only metadata is written.

        Whatever either side did to rows, columns and settings since their merge base is carried over, or is a
        conflict. When everything was merged before, the version that did it is returned and nothing is written.

        Args:
            source: The branch, or another ref expression, to merge.
            into: The branch to merge into.
            strategy: Who wins conflicts, "source-wins" or "dest-wins": for all of them, or by unit or kind of
                conflict, such as `{"rows": "source-wins", "column price": "dest-wins"}`, with "*" for all others. What
                is no conflict is kept of both sides whatever the strategy.
            mode: "merge"; "ff-only" to refuse when `into` has changes that `source` does not contain; "squash" to
                take the changes over as one commit that does not record what was merged, after which the branch can
                only be deleted or reset.
            message: What to say in the log.
            properties: Kept with the transaction.

        Raises:
            RefNotFoundError: There is no such source, or no such branch to merge into.
            InvalidInputError: There is no such mode or strategy, or what is to be kept is no text.
            MergeConflictError: With every reason why not; nothing was written.
            CommitStateUnknownError: It may or may not have landed; merge again, which finds out.
        """
        state = self._parts.at(source)
        how = MergeOptions(strategy=strategy, mode=mode, message=message, properties=properties or {})
        return self._described(merge_commit.merge(self._parts, state, into, how))

    def preview_merge(
        self, source: str, into: str = MAIN, *, strategy: Strategy = None, mode: str = MERGE_COMMIT
    ) -> MergePreview:
        """Say what a merge would do now, every conflict included; nothing is written.

        The preview's `conflicting_rows` reads the rows the conflicts are about.

        Raises:
            RefNotFoundError: There is no such source, or no such branch to merge into.
            InvalidInputError: There is no such mode or strategy.
        """
        return preview.preview(self._parts, self._parts.at(source), into, strategy=strategy, mode=mode)

    def sync(
        self,
        branch: str,
        *,
        strategy: Strategy = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Merge what happened on the branch that a branch was forked from into it.

        Args:
            branch: The branch that catches up.
            strategy: Who wins conflicts, as for `merge`; the branch it was forked from is the source.
            message: What to say in the log.
            properties: Kept with the transaction.

        Raises:
            RefNotFoundError: There is no such branch.
            InvalidInputError: `branch` is main, which was forked from nothing; or as for `merge`.
            MergeConflictError: With every reason why not; nothing was written.
        """
        found = self._parts.refs.branch(branch)
        if branch == MAIN:
            raise InvalidInputError(f"main of {self.uri} was forked from nothing, so there is nothing to sync it with")
        if found is None:
            raise self._parts.refs.branch_not_found(branch)
        return self.merge(found.parent_branch, branch, strategy=strategy, message=message, properties=properties)

    def preview_branch(
        self, source: str, into: str = MAIN, *, name: str | None = None, strategy: Strategy = None
    ) -> Branch:
        """Make a branch that holds what a merge would give, for checks to run on before the merge is made.

        Any program reads it as any other branch. Merging it instead of `source` gives exactly what was checked, as
        long as `into` did not move on; `mode="ff-only"` says so when it did. Its metadata has `preview_of`, the version
        that was merged, as soon as the merge is in it. Where one was begun and somebody died, the next goes on.

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
        state, head = self._parts.at(source), self._parts.head(into)
        # Asked first: a branch made for nothing would have to be deleted again, which a crash may prevent.
        conflicts = preview.preview(self._parts, state, into, strategy=strategy).conflicts
        if conflicts:
            raise MergeConflictError(f"cannot merge {state} into {head} of {self.uri}; nothing was written:", conflicts)
        name = name or preview_name(state.branch, into)
        return preview.preview_on_branch(self._parts, name, state, head, strategy=strategy)

    def merge_base(self, one: str, other: str) -> Version:
        """Return the newest version that two versions contain.

        Raises:
            RefNotFoundError: There is no such version.
            VersionNotFoundError: It was cleaned up.
        """
        return self._described(merge_commit.base_of(self._parts, self._parts.at(one), self._parts.at(other)))

    def is_merged(self, source: str, into: str = MAIN) -> Version | None:
        """Return the version of `into` that contains all of `source`, or None when `source` has something new.

        Raises:
            RefNotFoundError: There is no such source, or no such branch `into`.
        """
        found = merge_commit.find_merged(self._parts, self._parts.at(source), into)
        return None if found is None else self._described(found)


def preview_name(source: str, into: str) -> str:
    """Return what a branch that shows a merge is called, unless it is given a name."""
    # No segment of a name can be `main`.
    return f"preview/{f'main-into-{into}' if source == MAIN else source}"
