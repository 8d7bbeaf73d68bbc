"""Merge one version into a branch, as a commit that records what was merged.

A merge is always a commit, also where the dest did nothing since the merge base: its record needs a place. The second
parent is recorded in the transaction's properties, for the log, and in the table metadata, which outlives the clean-up
of transactions and is what the next merge of the branch starts from. A squash records no parent, so the branch can only
be deleted or reset after it: merging it again would insert its rows a second time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from lance_dagster.edit.write_result import Written
from lance_dagster.errors import Call, InvalidInputError
from lance_dagster.format.transaction import (
    CLAIMS,
    COMMIT_MESSAGE,
    MERGE,
    MERGED_BRANCH,
    PICKS_MERGED,
    SQUASHED_PREFIX,
    Project,
    Rewrite,
)
from lance_dagster.format.validation import validate_commit_info
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import (
    Lineage,
    records_for_aliases,
    records_for_merge,
)
from lance_dagster.history.merge_base import merge_base, merge_bases, version_that_merged
from lance_dagster.history.versions import State
from lance_dagster.merge.gather_input import gather_merge_input, lineage_at
from lance_dagster.merge.merge_records import kept_records, picks_among
from lance_dagster.merge.propose_merge import (
    ProposedMerge,
    call_with,
    check_unused_strategy,
    commit_merge,
    plan_proposed,
    read_anew,
)
from lance_dagster.merge.rules import MergePlan, ParsedStrategy, parsed_strategy
from lance_dagster.merge.rules.strategy import Conflict, Strategy
from lance_dagster.transactions.claims import APPEND, Change, Claim, decode_claims, encode_claims

MergeMode = Literal["merge", "ff-only", "squash"]
"""`merge` records the merge, `ff-only` refuses it when the dest has changes of its own, `squash` records no merge."""
MERGE_COMMIT: Literal["merge"] = "merge"
FAST_FORWARD: Literal["ff-only"] = "ff-only"
SQUASH: Literal["squash"] = "squash"
_MODES: tuple[MergeMode, ...] = get_args(MergeMode)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """The options of a merge: the strategy for conflicts, the mode, the message and the properties."""

    strategy: Strategy = None
    mode: MergeMode = MERGE_COMMIT
    message: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def call(self, source: State, into: str) -> Call:
        """Return the call of a table's method that asks for the merge, without the strategy."""
        # The default mode is left out, so that a hint shows only what the caller gave.
        mode = self.mode if self.mode != MERGE_COMMIT else None
        options = {"mode": mode, "message": self.message, "properties": dict(self.properties)}
        return call_with("merge", (str(source), into), options)

    def __post_init__(self) -> None:
        """Refuse a message or properties that are not text, and an unknown strategy.

        Raises:
            InvalidInputError: The error names the invalid value.
        """
        validate_commit_info(self.message, self.properties)
        # The strategy is checked here, because a merge that finds nothing to do never uses it.
        ParsedStrategy.parse(self.strategy)


def merge(
    context: TableContext, source: State, into: str, options: MergeOptions, *, head: State | None = None
) -> Written:
    """Merge a version into a branch; return the version that contains it, an older one where it was merged before.

    Args:
        context: The table.
        source: The version.
        into: The branch.
        options: How it is merged.
        head: The newest version of the branch, if it was read before; an outdated one only costs an attempt.

    Raises:
        MergeConflictError: The error names every conflict; nothing was written.
    """
    check_mode(options.mode)
    return commit_merge(context, into, _prepare_merge(context, source, options), head=head)


def refuse_conflicts(context: TableContext, source: State, head: State, options: MergeOptions) -> None:
    """Plan the merge of a version into a head, and write nothing.

    Raises:
        MergeConflictError: The error names every conflict.
    """

    def plan() -> None:
        proposed = _prepare_merge(context, source, options)(head)
        if not isinstance(proposed, State):
            plan_proposed(context, proposed, head)

    read_anew(plan)


def _prepare_merge(
    context: TableContext, source: State, options: MergeOptions
) -> Callable[[State], ProposedMerge | State]:
    """Return the function that says what is to be merged into a head; `commit_merge` calls it."""
    # The source is one fixed version. The head of the dest may move, so its lineage is read again for each attempt.
    source_lineage = lineage_at(context, source)

    def prepare(head: State) -> ProposedMerge | State:
        dest_lineage = lineage_at(context, head)
        merged = version_that_merged(source_lineage, dest_lineage, context.versions)
        if merged is not None:
            check_unused_strategy(options.strategy, merged, source, head)
            return merged
        bases = merge_bases(source_lineage, dest_lineage, context.refs, context.versions)
        base = bases[0]
        # A merge that is refused before it is planned checks its strategy here. Both sides may have renamed a column,
        # and a strategy names it as the merge base does.
        parsed_strategy(options.strategy, base.state.manifest, source.manifest, head.manifest)
        merge_input = gather_merge_input(context, source_lineage, dest_lineage, bases, strategy=options.strategy)

        def table_metadata(plan: MergePlan, metadata: Mapping[str, str]) -> dict[str, str]:
            # Without this, each merged and deleted run branch would leave a record in every later manifest.
            records = kept_records(dest_lineage, metadata, context.refs, context.versions)
            return records | _records(options, source_lineage, dest_lineage, base=base, plan=plan)

        return ProposedMerge(
            merge_input=merge_input,
            source=source,
            attempt=f"merge {source} into {head}",
            call=options.call(source, head.branch),
            properties=_properties(options, source_lineage, head, merge_input.source.changes),
            table_metadata=table_metadata,
            refused=immediate_conflicts(options, source_lineage, dest_lineage, base),
        )

    return prepare


def check_mode(mode: str) -> None:
    """Refuse an unknown merge mode.

    Raises:
        InvalidInputError: The error lists the modes that exist.
    """
    if mode not in _MODES:
        raise InvalidInputError(f"{mode!r} is not a merge mode; use {', '.join(map(repr, _MODES))}")


def find_merged(context: TableContext, source: State, head: State) -> State | None:
    """Return the version that brought all of `source` to a branch; None where its head does not contain all of it."""
    source_lineage, dest_lineage = lineage_at(context, source), lineage_at(context, head)
    return version_that_merged(source_lineage, dest_lineage, context.versions)


def base_of(context: TableContext, first: State, second: State) -> State:
    """Return the newest version that two versions contain."""
    lineages = lineage_at(context, first), lineage_at(context, second)
    return merge_base(*lineages, context.refs, context.versions).state


def immediate_conflicts(options: MergeOptions, source: Lineage, dest: Lineage, base: Lineage) -> tuple[Conflict, ...]:
    """Return the conflicts that refuse the merge whatever the sides did."""
    if options.mode == FAST_FORWARD and not source.has_all_of(dest):
        diverged = f"{dest.state} has changes that {source.state} does not contain"
        return (Conflict(kind="history", unit="history", source="only a fast-forward was asked for", dest=diverged),)
    # Squashed versions do not count as contained, so a later merge cannot tell which rows of their branch are there
    # already: a side that has versions of that branch would insert these rows a second time.
    source_squashed, dest_squashed, base_squashed = (_squashed(lineage) for lineage in (source, dest, base))
    source_beyond, dest_beyond = _beyond(source_squashed, dest, source), _beyond(dest_squashed, source, dest)
    # Where both sides squashed one branch, nothing tells which rows of the two copies are the same. A squash that the
    # merge base has gave both sides the same rows.
    squashed_by_both = sorted(source_squashed.keys() & dest_squashed.keys() - base_squashed.keys())
    squash = "{} has {} by a squash merge, so shared rows are unknown; reset or delete the branch of that version"
    if source_beyond or dest_beyond or squashed_by_both:
        did = (
            squash.format(source.state, source_squashed[squashed_by_both[0]] if squashed_by_both else source_beyond)
            if squashed_by_both or source_beyond
            else str(source.state),
            squash.format(dest.state, dest_squashed[squashed_by_both[0]] if squashed_by_both else dest_beyond)
            if squashed_by_both or dest_beyond
            else str(dest.state),
        )
        return (Conflict(kind="history", unit="history", source=did[0], dest=did[1]),)
    return ()


def _squashed(lineage: Lineage) -> dict[str, str]:
    """Return the versions that were squashed into a version, by the ids of their branches."""
    metadata = lineage.state.manifest.table_metadata.items()
    return {key.removeprefix(SQUASHED_PREFIX): value for key, value in metadata if key.startswith(SQUASHED_PREFIX)}


def _beyond(squashed: Mapping[str, str], lineage: Lineage, into: Lineage) -> str | None:
    """Return a squashed version of a branch if the other side contains versions of the branch that `into` lacks."""
    for branch_id, version in sorted(squashed.items()):
        if lineage.contained.get(branch_id, -1) > into.contained.get(branch_id, -1):
            return version
    return None


def _properties(options: MergeOptions, source: Lineage, head: State, changes: Sequence[Change]) -> dict[str, str]:
    # Later entries win: given properties may replace the message, but nothing that a later merge relies on.
    properties = {
        COMMIT_MESSAGE: options.message
        or f"{'squash' if options.mode == SQUASH else 'merge'} {source.state} into {head.branch}",
        **options.properties,
        CLAIMS: encode_claims(all_claims(changes, source)),
    }
    if picks := picks_among(changes):
        properties[PICKS_MERGED] = picks
    if options.mode != SQUASH:
        # The branch id is recorded beside the name: the branch may be renamed, or its name given to another branch.
        properties |= {MERGE: str(source.state), MERGED_BRANCH: source.id}
    return properties


def _records(
    options: MergeOptions, source: Lineage, dest: Lineage, *, base: Lineage, plan: MergePlan
) -> dict[str, str]:
    if options.mode == SQUASH:
        # A squash copies the rows of branches that were merged into the source as well: merging one of these branches
        # later would insert its rows a second time.
        new = (
            branch_id for branch_id, number in source.contained.items() if number > dest.contained.get(branch_id, -1)
        )
        squashed = {f"{SQUASHED_PREFIX}{branch_id}": str(source.state) for branch_id in new}
        return squashed | records_for_aliases(dest.state.manifest, plan.aliases)
    return records_for_merge(source, dest, base, aliases=plan.aliases, fields=plan.fields)


def all_claims(changes: Iterable[Change], of: Lineage) -> list[Claim]:
    """Return the claims of some changes of a version, each claim once for the newest version of each branch with it.

    Where some changes claim partitions and others write or delete rows without a claim, the rows of the latter would
    seem to be in these partitions. A claim without a partition stands for changes without a claim.
    """
    newest_claims = dict[tuple[Claim, str], Claim]()
    silent = False
    ids = {segment.branch: segment.id for segment in of.segments}
    for change in changes:
        # `change.claims` knows the overwrite of a program that records no claims.
        properties = {} if change.transaction is None or change.taken_back else change.transaction.properties
        claims = decode_claims(properties) or change.claims
        branch, _, number = change.version.rpartition("@")
        for claim in claims:
            origin = claim.origin or (ids.get(branch, ""), int(number))
            newest = newest_claims.get((claim, origin[0]))
            if newest is None or (newest.origin or origin) < origin:
                newest_claims[claim, origin[0]] = replace(claim, origin=origin)
        silent |= not claims and not change.moves_no_row and not isinstance(change.operation, Rewrite | Project)
    return [*newest_claims.values(), Claim(mode=APPEND)] if newest_claims and silent else list(newest_claims.values())
