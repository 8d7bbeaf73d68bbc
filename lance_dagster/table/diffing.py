"""Diffs: the methods of a table that compare versions."""

from collections.abc import Sequence

from lance_dagster.diff import diff
from lance_dagster.diff.diff import Diff
from lance_dagster.history.lineage import lineage_of, merge_base
from lance_dagster.table.facade import Facade


class Diffing(Facade):
    """Two manifests are read to compare versions; rows only when they are asked for."""

    def diff(self, a: str, b: str, *, on: Sequence[str] | None = None) -> Diff:
        """Say what turns version `a` into version `b`, wherever the two are: `a..b`.

        Args:
            a: The version to begin with, as a ref expression.
            b: The version to arrive at.
            on: The columns that tell rows apart, such as `["id"]`. Without them a row is told by its stable row id,
                and in a table without these by all its values, so that a changed row is one removed and one added.

        Raises:
            InvalidInputError: A column of the key is not in both versions.
        """
        return diff.diff(self._parts, self._parts.at(a), self._parts.at(b), on=on)

    def changes_since_base(self, a: str, b: str, *, on: Sequence[str] | None = None) -> Diff:
        """Say what `b` did since it and `a` were last the same: the diff from their merge base to `b`, `a...b`.

        What was merged from `a` into `b` meanwhile is part of the merge base, and no change.

        Args:
            a: The version to compare with, as a ref expression.
            b: The version whose changes are wanted.
            on: As for `diff`.

        Raises:
            InvalidInputError: The versions have nothing in common, or a column of the key is not in both.
            VersionNotFoundError: Their merge base was cleaned up.
        """
        parts = self._parts
        one, other = parts.at(a), parts.at(b)
        found = merge_base(lineage_of(one, parts.refs), lineage_of(other, parts.refs), parts.refs, parts.versions)
        return diff.diff(parts, found.state, other, on=on, base_of=str(one))
