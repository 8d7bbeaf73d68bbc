"""Find out whether a branch had the change of a version and took it back, and which version did so last.

A change reaches a branch as the version itself, through a merge of it, or by a cherry-pick; it is taken back by a
revert of any of these, and comes again with a revert of that revert. To pick it once more then means to undo the last
revert: the branch knows the rows and columns already, under the ids they had, so that a plain pick would find nothing
new.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lance_dagster.format.transaction import (
    CHANGE_ORIGIN_PROPERTIES,
    MERGE,
    MERGED_BRANCH,
    PICKED,
    PICKED_FROM,
    RESTORED,
    REVERTED,
    REVERTED_TO,
    Restore,
    Transaction,
)
from lance_dagster.history.ancestry import Ancestry, RecordedVersion
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import changes_since, lineage_of
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_records import origins
from lance_dagster.transactions.claims import Change

_TELLS = CHANGE_ORIGIN_PROPERTIES | {MERGE}
"""Versions without any of these properties neither introduce a change of another version nor take one back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRevert:
    """The last version that took a change back, and the version before it, which had the change.

    `exclusive` says that it took back this change alone, so that undoing it restores only this change.
    """

    by: State
    before: State
    exclusive: bool


def last_revert(context: TableContext, of: State, parent: State, head: State) -> LastRevert | None:
    """Return the version that took a change back; None where the head has the change, or never had it.

    Args:
        context: The table.
        of: The version whose change is meant.
        parent: The parent its change is seen from.
        head: The newest version of the branch.
    """
    versions_from = origins(lineage_of(of, context.refs), lineage_of(parent, context.refs))
    walk = _Walk(context, of, parent, versions_from)
    for change in changes_since(lineage_of(head, context.refs), lineage_of(parent, context.refs), context.versions):
        walk.follow(change)
    return walk.last_revert


@dataclass(frozen=True, slots=True)
class _Introduction:
    """How a version introduced the change: `exclusive` if alone; `into` is the head before a merge."""

    exclusive: bool
    into: str | None = None


@dataclass(slots=True)
class _Walk:
    """Follows a change through the versions of a branch, oldest first.

    `last_revert` is the last revert of the change as of the version that was followed last; None where that version has
    the change, or the branch never had it. `introduced` and `reverted` have the commit ids of the versions that
    introduced the change and took it back. `at` keeps the value of `last_revert` after each version, by version number,
    since a branch may be restored to any of them.
    """

    context: TableContext
    of: State
    parent: State
    versions_from: str
    last_revert: LastRevert | None = None
    introduced: dict[str, _Introduction] = field(default_factory=dict)
    reverted: dict[str, LastRevert] = field(default_factory=dict)
    at: dict[int, LastRevert | None] = field(default_factory=dict)

    def follow(self, change: Change) -> None:
        """Process the next version of the branch."""
        if change.transaction is None or change.after is None:
            return
        if isinstance(change.operation, Restore):
            # A restore brings back the state after that version, with the reverts made up to it and none made later.
            self.last_revert = self.at.get(change.operation.version)
        # Loading a version takes requests, so versions that cannot matter are skipped.
        elif change.version == str(self.of) or not _TELLS.isdisjoint(change.transaction.properties):
            self._follow(self.context.load_recorded(RecordedVersion(change.version)), change.transaction)
        self.at[change.after.version] = self.last_revert

    def _follow(self, state: State, transaction: Transaction) -> None:
        properties = transaction.properties
        target = properties.get(REVERTED, "")
        # A merge that was reverted to its second parent keeps the change: only a revert to the version it went into
        # takes the change back.
        if target in self.introduced and properties.get(REVERTED_TO) in (None, self.introduced[target].into):
            self._take_back(state, exclusive=self.introduced[target].exclusive)
        elif target in self.reverted:
            self._introduce(state, _Introduction(exclusive=self.reverted[target].exclusive))
        # Going back to before the fork takes back everything since, so undoing it would restore more than this change.
        elif RESTORED in properties and self.introduced and self.last_revert is None:
            self._take_back(state, exclusive=False)
        elif (introduction := self._introduced_by(state, properties)) is not None:
            self._introduce(state, introduction)

    def _introduced_by(self, state: State, properties: Mapping[str, str]) -> _Introduction | None:
        if state.id == self.of.id:
            return _Introduction(exclusive=True)
        if properties.get(PICKED) == (self.of.id or str(self.of)):
            # The change of a merge may be seen from either parent; the recorded versions tell from which it was picked.
            return _Introduction(exclusive=True) if properties.get(PICKED_FROM) == self.versions_from else None
        version = self.context.versions.describe(state)
        merged = Ancestry(self.context.refs, self.context.versions).merged(version)
        if merged is None:
            return None
        source = self.context.versions.load(merged.branch, merged.number, properties.get(MERGED_BRANCH, ""))
        into = self.context.load_recorded(RecordedVersion(version.parents[0]))
        after, before, of, parent = (
            lineage_of(version, self.context.refs) for version in (source, into, self.of, self.parent)
        )
        if before.contains(of) or not after.contains(of):
            # A merge that was taken back counts as merged: a later merge of the same branch does not bring it again.
            return None
        return _Introduction(exclusive=before.has_all_of(parent) and source.id == self.of.id, into=into.id)

    def _introduce(self, state: State, introduction: _Introduction) -> None:
        self.introduced[state.id] = introduction
        self.last_revert = None

    def _take_back(self, state: State, *, exclusive: bool) -> None:
        before = self.context.load_recorded(RecordedVersion(self.context.versions.describe(state).parents[0]))
        self.last_revert = self.reverted[state.id] = LastRevert(by=state, before=before, exclusive=exclusive)
