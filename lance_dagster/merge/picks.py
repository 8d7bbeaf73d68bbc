"""Apply the change of one version to a branch, or take it back: cherry-pick, revert and restore.

The change of a version is the difference between its parent and itself; the reverse change leads from the version to
its parent. Both are merges with a chosen merge base: the parent is the merge base and the version the source, or the
other way round. So the rules of a merge decide, and whatever else the branch did is kept or named as a conflict.

A change reaches a branch as the version itself, through a merge of it, or by a cherry-pick; it is taken back by a
revert of any of these, and comes again with a revert of that revert, or with another pick: rows that the branch knows
and took back count as inserted then, and rows that it deleted stay deleted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from lance_dagster.diff.diff import RowCounts, count_moved_rows
from lance_dagster.edit.write import submit
from lance_dagster.edit.write_result import Written
from lance_dagster.errors import Call, FormatError, InvalidInputError, Remedy, StoreError, VersionNotFoundError
from lance_dagster.format.codec import decode_row_runs
from lance_dagster.format.layout import MAIN
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.transaction import (
    CLAIMS,
    COMMIT_MESSAGE,
    COMMITTER,
    PICKED,
    PICKED_BY,
    PICKED_FROM,
    RESTORED,
    REVERTED,
    REVERTED_TO,
    Append,
    Clone,
    CreateIndex,
    Delete,
    Operation,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    UpdateConfig,
)
from lance_dagster.format.validation import validate_commit_info
from lance_dagster.history.ancestry import Ancestry, RecordedVersion
from lance_dagster.history.commit import WRITER, committer, writer_name
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import (
    Lineage,
    base_and_changes,
    changes_since,
    last_common,
    lineage_of,
    records_for_aliases,
    row_space_since,
    side_history,
)
from lance_dagster.history.merge_base import is_criss_cross, merge_base
from lance_dagster.history.versions import State
from lance_dagster.merge.gather_input import lookups
from lance_dagster.merge.merge_commit import all_claims
from lance_dagster.merge.merge_records import brings_copies, identity, origins, picked_across
from lance_dagster.merge.picked_rows import rows_lacking, why_missing
from lance_dagster.merge.propose_merge import ProposedMerge, call_with, check_unused_strategy, commit_merge
from lance_dagster.merge.rules import MergeInput, MergePlan, ParsedStrategy, fields_across
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.strategy import Strategy
from lance_dagster.transactions.claims import Change, SideHistory, encode_claims
from lance_dagster.transactions.row_id_spaces import Alias, RowSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class PickOptions:
    """The options of a pick or a revert: the parent, the strategy for conflicts, the message and the properties."""

    parent: int | None = None
    strategy: Strategy = None
    message: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a message or properties that are not text, an unknown strategy, and a parent that is not an integer.

        Raises:
            InvalidInputError: The error names the invalid value.
        """
        validate_commit_info(self.message, self.properties)
        ParsedStrategy.parse(self.strategy)
        if self.parent is not None and type(self.parent) is not int:
            raise InvalidInputError(f"a parent is a number, counted from 1, not {self.parent!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRange:
    """A change from one version to another, as a merge sees it: the merge base, the source, and the changes in between.

    `kind` is the transaction property that records the purpose: picked, reverted or restored. `of` is the version that
    the caller named. `since` has the changes along first parents from the merge base to the source. It is empty where
    no such line exists: the change is undone, so the source is the older version; or it is counted from the second
    parent of a merge.
    """

    kind: str
    of: State
    base: State
    source: State
    changes: list[Change]
    since: list[Change] = field(default_factory=list)

    @property
    def puts_in(self) -> bool:
        """Whether it may insert rows that a branch already has, because the branch has the version or a pick of it."""
        return self.kind == PICKED and not isinstance(self._operation, Delete)

    @property
    def carries_rows(self) -> bool:
        """Whether the range may bring rows, with values of all columns."""
        # Taking an append back only removes rows, and changes of columns, settings or indices add none.
        comes = self.puts_in if self.kind == PICKED else not isinstance(self._operation, Append)
        return comes and not isinstance(self._operation, Project | UpdateConfig | CreateIndex)

    @property
    def _operation(self) -> Operation | None:
        return self.of.transaction.operation if self.of.transaction is not None else None

    @property
    def older(self) -> State:
        """The earlier of the merge base and the source."""
        return self.base if self.kind == PICKED else self.source

    @property
    def name(self) -> str:
        """The name of the source in conflicts."""
        return f"the state before {self.of}" if self.kind == REVERTED else str(self.of)

    def verb(self, head: State) -> str:
        """Return the operation on a branch in words."""
        return {
            PICKED: f"cherry-pick {self.of} onto {head}",
            REVERTED: f"revert {self.of} on {head}",
            RESTORED: f"restore {self.of} on {head}",
        }[self.kind]

    def call(self, branch: str, options: PickOptions) -> Call | None:
        """Return the call of a table's method that asked for this, without the strategy; a restore takes none."""
        if self.kind == RESTORED:
            return None
        # A revert adds to the properties which parent it goes back to.
        properties = {key: value for key, value in options.properties.items() if key != REVERTED_TO}
        call_options = {"parent": options.parent, "message": options.message, "properties": properties}
        return call_with("cherry_pick" if self.kind == PICKED else "revert", (str(self.of), branch), call_options)

    def marks(self, context: TableContext) -> dict[str, str]:
        """Return the properties that record the change that was picked or taken back, and the committer of a pick."""
        marks = {self.kind: identity(self.of)}
        if self.kind == PICKED:
            # The committer of a pick is the author of the change, so the person who picked it is recorded separately.
            marks[PICKED_BY] = committer() or writer_name(WRITER)
            marks[PICKED_FROM] = origins(lineage_of(self.of, context.refs), lineage_of(self.base, context.refs))
            # Without its claims, a picked replacement of a partition would not conflict with rows added there since.
            marks[CLAIMS] = encode_claims(all_claims(self.changes, lineage_of(self.of, context.refs)))
        return marks

    def info(self, context: TableContext) -> dict[str, str]:
        """Return the properties with the message of the new version; a pick keeps message and committer, as in git."""
        version = context.versions.describe(self.of)
        if self.kind == PICKED:
            message = {} if version.message is None else {COMMIT_MESSAGE: version.message}
            return {COMMITTER: version.committer, **message}
        did = f"{'revert' if self.kind == REVERTED else 'restore'} {self.of}"
        return {COMMIT_MESSAGE: did if version.message is None else f"{did}: {version.message}"}


def apply_change(
    context: TableContext, range_from: Callable[[State], ChangeRange], branch: str, options: PickOptions
) -> Written:
    """Merge a change range into a branch as its next version; return the head where that changes nothing.

    Args:
        context: The table.
        range_from: Returns the change range for a head. It is called again when the head moved.
        branch: The branch.
        options: Who wins conflicts, and what is kept with the transaction.

    Raises:
        MergeConflictError: The error names every conflict; nothing was written.
        VersionNotFoundError: The version whose files are brought in was collected after it was read.
    """

    def prepare(head: State) -> ProposedMerge:
        change_range = range_from(head)
        source = change_range.source
        if not context.versions.is_stored(source):
            raise VersionNotFoundError(f"{source} of {context.uri} was collected, so its state cannot be brought back")

        def table_metadata(plan: MergePlan, metadata: Mapping[str, str]) -> dict[str, str]:
            # The ids of the rows that came are recorded: a later merge of the picked branch must not insert them again.
            return {**metadata, **records_for_aliases(head.manifest, _aliases_of_inserted(plan))}

        # Later entries win: what the caller gave replaces what is taken from the picked version. Nothing replaces the
        # marks, by which later merges and reverts recognise the change.
        own = {} if options.message is None else {COMMIT_MESSAGE: options.message}
        info = change_range.info(context)
        return ProposedMerge(
            merge_input=_gather_merge_input(context, change_range, head, options),
            source=source,
            attempt=change_range.verb(head),
            call=change_range.call(branch, options),
            properties={**info, **options.properties, **own, **change_range.marks(context)},
            table_metadata=table_metadata,
            is_merge=False,
        )

    return commit_merge(context, branch, prepare)


def _gather_merge_input(
    context: TableContext, change_range: ChangeRange, head: State, options: PickOptions
) -> MergeInput:
    base, source, dest = (lineage_of(state, context.refs) for state in (change_range.base, change_range.source, head))
    # A record of row ids may have been dropped from one of the three versions. The row space of each is therefore
    # computed from the version that they share, so that it has all records made since, dropped or not.
    shared = merge_base(lineage_of(change_range.older, context.refs), dest, context.refs, context.versions)
    spaces = [row_space_since(lineage, shared, context.versions) for lineage in (base, source, dest)]
    same_line = _on_one_line(base, source) or _on_one_line(source, base)
    dest_history, incompatible = side_history(dest, base, base, context.versions), tuple[str, ...]()
    # Base and dest are on different lines, which number new fields independently: their ids are translated through
    # the version that both descend from.
    if not dest_history.same_ids and shared.state != base.state:
        across = fields_across(
            shared.state.manifest, *(side_history(end, shared, shared, context.versions) for end in (base, dest))
        )
        dest_history, incompatible = (
            replace(dest_history, fields=across.ids),
            # Values written under another type would be read as nulls; without rows there are no such values.
            across.incompatible if change_range.carries_rows else (),
        )
    source_history = SideHistory(
        name=change_range.name,
        manifest=change_range.source.manifest,
        changes=change_range.changes,
        # Only along one line do fragments and fields keep their ids.
        anchor=change_range.base.manifest if same_line else None,
        since=change_range.since,
        same_ids=same_line,
        space=spaces[1],
        common=last_common(source, base),
    )
    dest_history, reading = replace(dest_history, space=spaces[2]), lookups(context)
    return MergeInput(
        base=change_range.base.manifest,
        space=spaces[0],
        source=source_history,
        dest=dest_history,
        inserted=_inserted(context, change_range, (source_history, dest_history), spaces[0], deleted=reading.deleted),
        lookups=reading,
        strategy=options.strategy,
        incompatible=incompatible,
        crosswise=_is_crosswise(change_range, head, dest_history.changes, (base, source, dest)),
    )


def _is_crosswise(
    change_range: ChangeRange, head: State, since: Sequence[Change], lineages: tuple[Lineage, Lineage, Lineage]
) -> bool:
    """Return whether the head may have rows in another place that the range brings.

    Args:
        change_range: The range.
        head: The version that gets the change.
        since: The changes of its line since the merge base.
        lineages: What the merge base, the source and the head contain.
    """
    base, source, dest = lineages
    if not change_range.puts_in:
        return False
    # The head may have had the picked rows before, by a merge or another pick: rows that were deleted since must not
    # come back.
    return (
        is_criss_cross(source, dest, base)
        or (not head.manifest.stable_row_ids and any(map(brings_copies, change_range.changes)))
        or picked_across(since, source, base)
        or picked_across(change_range.changes, dest, base)
    )


def _inserted(
    context: TableContext,
    change_range: ChangeRange,
    sides: tuple[SideHistory, SideHistory],
    base: RowSpace,
    *,
    deleted: Deleted,
) -> tuple[RowRuns, RowRuns]:
    """Return the rows of the source and of the dest that the other side once had, but now lacks, as the base does.

    Rows of a picked change count as inserted only where the dest took them back, and not where it deleted them.
    """
    source, dest = sides
    of_source, of_dest = (
        rows_lacking(
            side, other_side, side.space.translation(other_side.space).beyond(side.space.translation(base)), deleted
        )
        for side, other_side in ((source, dest), (dest, source))
    )
    if change_range.kind != PICKED:
        return RowRuns.of(()), of_dest
    # The dest may not contain the version that the picked change starts at: all it did since their fork is looked at.
    line = replace(dest, since=dest.changes)
    return why_missing(context, line, of_source, deleted, never_had=False).returning, of_dest


def _on_one_line(newer: Lineage, older: Lineage) -> bool:
    """Tell whether a branch went from one version to another, which keeps the ids of fragments and fields."""
    return any(line.id == older.id and older.state.number <= line.number for line in newer.segments)


def _aliases_of_inserted(plan: MergePlan) -> dict[str, list[Alias]]:
    """Return the ids of the inserted rows alone: a later merge of the branch has to insert the other rows."""
    inserted: list[RowRuns] = []
    for merged_fragment in plan.added if plan.aliases else ():
        rows = merged_fragment.fragment.physical_rows
        ids = decode_row_runs(merged_fragment.fragment.row_ids, rows, f"fragment {merged_fragment.fragment.id}")
        # A masked row was not inserted, so a later merge has to insert it.
        if merged_fragment.deleted:
            ids = ids.restricted(BitMap(range(rows)) - merged_fragment.deleted)
        inserted.append(ids)
    # Neighbours become one run: an alias is written for each.
    here = RowRuns.set_of(inserted).merged()
    aliases_of_inserted: dict[str, list[Alias]] = {}
    for branch_id, aliases in plan.aliases.items():
        for alias in aliases:
            came = here.where_in(RowRuns.one(alias.here, alias.end - alias.first, 0))
            for start, count in zip(came.first.tolist(), came.count.tolist(), strict=True):
                first = alias.first + start - alias.here
                aliases_of_inserted.setdefault(branch_id, []).append(
                    replace(alias, first=first, end=first + count, here=start)
                )
    return aliases_of_inserted


def cherry_pick(context: TableContext, commit_: State, onto: str, options: PickOptions) -> Written:
    """Apply the change of a version to another branch; return the head where that has it, or where no row changed.

    Raises:
        MergeConflictError: The change contradicts changes of the branch; nothing was written.
        InvalidInputError: The version is a merge and no parent was given.
        VersionNotFoundError: The parent is gone.
    """
    parent = _parent(context, commit_, options.parent)
    head = context.head(onto)
    if str(head) == str(commit_) or _says(head, PICKED, commit_) or _changes_no_row(commit_):
        return Written(state=head)
    changes = [_change(parent, commit_)]
    # The first parent is the version before on the same line, whatever the branch was called there.
    since = changes if options.parent in (None, 1) else []
    pick = ChangeRange(kind=PICKED, of=commit_, base=parent, source=commit_, changes=changes, since=since)
    return apply_change(context, lambda _: pick, onto, options)


def revert(context: TableContext, commit_: State, branch: str, options: PickOptions) -> Written:
    """Take the change of a version back in the next version of a branch; return the head where that is done already.

    Raises:
        MergeConflictError: Later changes build on it; nothing was written.
        InvalidInputError: The version is a merge and no parent was given.
        VersionNotFoundError: The parent is gone.
    """
    parent = _parent(context, commit_, options.parent)
    head = context.head(branch)
    to = parent if len(context.versions.describe(commit_).parents) > 1 else None
    # The caller names the original version. Where its revert was reverted, the change is there through that later
    # version, which is therefore taken back.
    reinstated = _latest_reinstated(context, commit_, head, to)
    if reinstated is not commit_:
        commit_, parent, to = reinstated, _parent(context, reinstated, None), None
    # A repeated call makes no second version.
    if _takes_back(head, commit_, to) or _changes_no_row(commit_):
        check_unused_strategy(options.strategy, head, commit_, parent)
        return Written(state=head)
    if to is not None:
        # A merge can be taken back to either parent. The parent decides which change is undone, so it is recorded.
        options = replace(options, properties={**options.properties, REVERTED_TO: identity(to)})
    changes = [replace(_change(parent, commit_), undone=True)]
    change_range = ChangeRange(kind=REVERTED, of=commit_, base=commit_, source=parent, changes=changes)
    return apply_change(context, lambda _: change_range, branch, options)


def restore(context: TableContext, to: State, branch: str, options: PickOptions) -> Written:
    """Make an earlier version of a branch its next version; return the head where it has that state already.

    A restoring transaction cannot name a version from before the fork. For such a version, the changes made since are
    taken back instead.

    Raises:
        InvalidInputError: The branch never had that version.
    """
    head = context.head(branch)
    if _says(head, RESTORED, to):
        return Written(state=head)
    if to.branch == branch:
        if head.number == to.number or _operation(head) == Restore(version=to.number):
            return Written(state=head)
        rows = _restored_rows(context, head, to)
        state = submit(context, head, Restore(version=to.number), options.properties)
        return Written(state=state, added=rows.added, deleted=rows.removed, updated=rows.changed)
    target = lineage_of(to, context.refs)

    def change_range(head: State) -> ChangeRange:
        of = lineage_of(head, context.refs)
        # Branch ids are compared and not names: another branch may have the name by now.
        if not any(line.id == target.id and to.number <= line.number for line in of.segments):
            anew = Remedy("{} recreates the branch from that version", Call("branches.reset", (branch, str(to))))
            raise InvalidInputError(
                f"branch {branch!r} of {context.uri} was never at {to}: it can go back only to its own versions and to "
                "those from before its fork",
                remedy=None if branch == MAIN else anew,
            )
        taken_back = base_and_changes(of, target, context.versions)[1]
        changes = [replace(change, undone=True) for change in reversed(taken_back)]
        return ChangeRange(kind=RESTORED, of=to, base=head, source=to, changes=changes)

    return apply_change(context, change_range, branch, options)


def _restored_rows(context: TableContext, head: State, to: State) -> RowCounts:
    """Count the rows that a restore changes; all rows of both versions, where the files do not tell."""
    try:
        return count_moved_rows(context, head, to)
    except (FormatError, StoreError):
        # A head that cannot be read is a reason to restore, so it must not prevent that.
        return RowCounts(context.versions.describe(to).rows, context.versions.describe(head).rows, 0)


def _changes_no_row(commit_: State) -> bool:
    """Tell whether a version only moved rows, as a compaction does."""
    return isinstance(_operation(commit_), Rewrite | ReserveFragments)


def _operation(of: State) -> Operation | None:
    return of.transaction.operation if of.transaction is not None else None


def _latest_reinstated(context: TableContext, commit_: State, head: State, to: State | None) -> State:
    """Return the version by which the branch has a change: the last revert of a revert of it, or the version itself."""
    commit_lineage, head_lineage = lineage_of(commit_, context.refs), lineage_of(head, context.refs)
    if not head_lineage.contains(commit_lineage):
        return commit_
    since = changes_since(head_lineage, commit_lineage, context.versions)
    reverts = (each for each in since if each.transaction is not None and REVERTED in each.transaction.properties)
    later = [context.load_recorded(RecordedVersion(change.version)) for change in reverts]
    # Each round follows one revert and the revert of it, until the last revert stands or there is none.
    while back := next((state for state in later if _takes_back(state, commit_, to)), None):
        again = next((state for state in later if _says(state, REVERTED, back)), None)
        if again is None:
            break
        commit_, to = again, None
    return commit_


def _takes_back(state: State, commit_: State, to: State | None) -> bool:
    """Tell whether a version takes a change back; for a merge, the change as seen from the parent `to`."""
    return _says(state, REVERTED, commit_) and (to is None or _says(state, REVERTED_TO, to))


def _says(state: State, what: str, of: State) -> bool:
    return state.transaction is not None and state.transaction.properties.get(what) == identity(of)


def _change(parent: State, of: State) -> Change:
    return Change(
        version=str(of),
        writer=of.writer,
        transaction=of.transaction,
        before=parent.manifest,
        after=of.manifest,
    )


def _parent(context: TableContext, of: State, number: int | None) -> State:
    """Return a parent of a version, counted from 1; the only parent where no number is given.

    Raises:
        InvalidInputError: The version has no parent, has two and no number was given, or has no parent of that number.
        VersionNotFoundError: The parent is gone.
    """
    version = context.versions.describe(of)
    parents = version.parents
    # The first version of a branch repeats the version it was forked from, so it has no change of its own.
    if not parents or isinstance(_operation(of), Clone):
        raise InvalidInputError(f"{of} of {context.uri} changed nothing: it is where a table or branch begins")
    if number is None and len(parents) > 1:
        raise InvalidInputError(
            f"{of} of {context.uri} is a merge; say which parent its change is seen from: 1 for {parents[0]}, "
            f"2 for {parents[1]} (parent=1, or --parent 1 in the command, is the change that the merge brought)"
        )
    if number is not None and not 1 <= number <= len(parents):
        raise InvalidInputError(f"{of} of {context.uri} has {len(parents)} parents, but no parent {number}")
    if number in (None, 1):
        return context.load_recorded(RecordedVersion(parents[0]))
    # The second parent is found by the id of its branch, which may have been renamed since the merge.
    ancestry = Ancestry(context.refs, context.versions)
    merged = ancestry.merged(version)
    if merged is None:
        raise ancestry.merged_version_gone(version)
    return context.versions.load(merged.branch, merged.number)
