"""Merges: the methods of a table that join branches."""

from collections.abc import Mapping

from lance_dagster.changes.merge import Strategy
from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.table import join as joining
from lance_dagster.table.facade import Facade
from lance_dagster.table.join import MERGE_COMMIT, Joining, MergePreview


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
                conflict, such as `{"rows": "source-wins", "column price": "dest-wins"}`. What is no conflict is
                kept of both sides whatever the strategy.
            mode: "merge"; "ff-only" to refuse when `into` has changes that `source` does not contain; "squash" to
                take the changes over as one commit that does not record what was merged, after which the branch can
                only be deleted.
            message: What to say in the log.
            properties: Kept with the transaction.

        Raises:
            MergeConflictError: With every reason why not; nothing was written.
            CommitStateUnknownError: It may or may not have landed; merge again, which finds out.
        """
        state = self._parts.at(source)
        how = Joining(strategy=strategy, mode=mode, message=message, properties=properties or {})
        return self._described(joining.merge(self._parts, state, into, how))

    def preview_merge(self, source: str, into: str = MAIN, *, strategy: Strategy = None) -> MergePreview:
        """Say what a merge would do now, every conflict included; nothing is written."""
        return joining.preview(self._parts, self._parts.at(source), into, strategy)

    def merge_base(self, one: str, other: str) -> Version:
        """Return the newest version that two versions contain."""
        return self._described(joining.base_of(self._parts, self._parts.at(one), self._parts.at(other)))

    def is_merged(self, source: str, into: str = MAIN) -> Version | None:
        """Return the version of `into` that contains all of `source`, or None when `source` has something new."""
        found = joining.find_merged(self._parts, self._parts.at(source), into)
        return None if found is None else self._described(found)
