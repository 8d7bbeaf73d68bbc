"""Merges: the methods of a table that join branches."""

from collections.abc import Mapping

from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.table import join as joining
from lance_dagster.table.facade import Facade
from lance_dagster.table.join import MergePreview


class Merging(Facade):
    """Only metadata is written, whatever the size of what is merged."""

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Merge a version into a branch; only metadata is written.

        Rows that either side appended, replaced or deleted since their merge base are carried over. When
        everything was merged before, the version that did it is returned and nothing is written.

        Args:
            source: The branch, or another ref expression, to merge.
            into: The branch to merge into.
            message: What to say in the log.
            properties: Kept with the transaction.

        Raises:
            MergeConflictError: With every reason why not; nothing was written.
            CommitStateUnknownError: It may or may not have landed; merge again, which finds out.
        """
        state = self._parts.at(source)
        return self._described(joining.merge(self._parts, state, into, message=message, properties=properties or {}))

    def preview_merge(self, source: str, into: str = MAIN) -> MergePreview:
        """Say what a merge would do now, every conflict included; nothing is written."""
        return joining.preview(self._parts, self._parts.at(source), into)

    def is_merged(self, source: str, into: str = MAIN) -> Version | None:
        """Return the version of `into` that contains all of `source`, or None when `source` has something new."""
        found = joining.find_merged(self._parts, self._parts.at(source), into)
        return None if found is None else self._described(found)
