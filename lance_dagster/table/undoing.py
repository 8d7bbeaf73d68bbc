"""Take over and take back single changes: the methods of a table beside merges."""

from collections.abc import Mapping

from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import COMMIT_MESSAGE
from lance_dagster.history.versions import Version
from lance_dagster.merge import picks
from lance_dagster.merge.picks import PickOptions
from lance_dagster.merge.rules import Strategy
from lance_dagster.table.facade import Facade


class Undoing(Facade):
    """Each makes one version, by the rules of a merge; what contradicts it is told and nothing is written."""

    def cherry_pick(
        self,
        commit: str,
        onto: str = MAIN,
        *,
        parent: int | None = None,
        strategy: Strategy = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Make the change of one version on another branch too; the newest version of that when it has it already.

        A branch that took the change back gets it again. The new version keeps the committer of the picked one, and
        its message unless another one is given; the property `lance_dagster.cherry_pick.by` says who picked it.

        Args:
            commit: The version whose change is meant.
            onto: The branch that gets it.
            parent: For a merge, which of its parents the change is seen from, counted from 1.
            strategy: Who wins conflicts, as for `merge`; the picked version is the source.
            message: What to say in the log, in place of the message of the picked version.
            properties: Kept with the transaction.

        Raises:
            MergeConflictError: With every reason why not; nothing was written.
            InvalidInputError: It is a merge and no parent was given.
            VersionNotFoundError: The parent is gone: it was cleaned up, or its branch was deleted.
        """
        how = PickOptions(parent=parent, strategy=strategy, message=message, properties=properties or {})
        return self._described(picks.cherry_pick(self._parts, self._parts.at(commit), onto, how))

    def revert(
        self,
        commit: str,
        branch: str = MAIN,
        *,
        parent: int | None = None,
        strategy: Strategy = None,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Take the change of one version back, and keep everything that was done since.

        When there is nothing to take back, the newest version is returned and nothing is written. Rows it added go,
        rows it deleted come back, rows it gave new values get those they had. The version stays in the log. A merge
        that was taken back counts as merged all the same: what it brought comes again only with a revert of the
        revert.

        Args:
            commit: The version whose change is meant.
            branch: The branch on which it is taken back.
            parent: For a merge, which of its parents to go back to, counted from 1.
            strategy: Who wins conflicts, as for `merge`; the state before the version is the source.
            message: What to say in the log.
            properties: Kept with the transaction.

        Raises:
            MergeConflictError: Later changes contradict it; nothing was written.
            InvalidInputError: It is a merge and no parent was given.
            VersionNotFoundError: The parent is gone: it was cleaned up, or its branch was deleted.
        """
        how = PickOptions(parent=parent, strategy=strategy, message=message, properties=properties or {})
        return self._described(picks.revert(self._parts, self._parts.at(commit), branch, how))

    def restore(
        self,
        ref: str,
        branch: str = MAIN,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Make an older version of a branch its newest one; what came after stays in the log.

        A branch that was restored to that version just now is left as it is.

        Args:
            ref: The version to go back to: one of that branch, or of those it was forked from, before that.
            branch: The branch.
            message: What to say in the log.
            properties: Kept with the transaction.

        Raises:
            InvalidInputError: The branch never had that version.
            CommitConflictError: Somebody changed the settings of the schema meanwhile.
        """
        to = self._parts.at(ref)
        how = PickOptions(properties={**(properties or {}), COMMIT_MESSAGE: message or f"restore {to}"})
        return self._described(picks.restore(self._parts, to, branch, how))
