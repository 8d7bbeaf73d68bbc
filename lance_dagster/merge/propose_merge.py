"""Plan a merge against the head of a branch, carry it out and commit it; plan it again when the head moved.

Merges, syncs, picks, reverts and restores to before a fork all go through `commit_merge`: each only says what is to be
merged into a given head, and what is recorded with it.

Invariants: nothing is written before there is a plan without conflicts; and one transaction id serves all attempts, so
that an attempt whose response was lost is recognised as landed.
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from lance_dagster.edit.write_result import Written
from lance_dagster.errors import Call, CorruptFileError, MergeConflictError, Remedy, VersionNotFoundError
from lance_dagster.format.model import Field
from lance_dagster.format.transaction import (
    CASTS,
    CASTS_OF_SOURCE,
    COLUMNS_MOVED,
    MERGE_STRATEGY,
    NEEDS_BACKFILL,
    UPDATED_IN_PLACE,
    Transaction,
)
from lance_dagster.format.validation import parsed_json
from lance_dagster.format.value_ranges import united
from lance_dagster.history.commit import WRITER, Proposal, commit, now_ns
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.protection import refuse_direct_commit
from lance_dagster.history.versions import State
from lance_dagster.merge.conflict_keys import with_keys
from lance_dagster.merge.gather_input import state_of
from lance_dagster.merge.materialize import materialize
from lance_dagster.merge.rules import (
    MergeInput,
    MergePlan,
    MergeRefusal,
    ParsedStrategy,
    Tally,
    claim_units,
    parsed_strategy,
    plan_merge,
)
from lance_dagster.merge.rules.strategy import Conflict, Strategy
from lance_dagster.transactions.apply import next_version
from lance_dagster.transactions.claims import decode_claims

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedMerge:
    """The input of a merge into a head, and what the commit records with it.

    `attempt` says what is done, in the words that follow "cannot" in an error. `call` is the call that asked for the
    merge, without its strategy, and None for a call that takes no strategy. `table_metadata` makes the table metadata
    of the result. `refused` are conflicts that are known before anything is compared. Where `is_merge`, a protected
    branch accepts the commit, and the commit is made even if it changes nothing.
    """

    merge_input: MergeInput
    source: State
    attempt: str
    call: Call | None
    properties: Mapping[str, str]
    table_metadata: Callable[[MergePlan, Mapping[str, str]], dict[str, str]]
    refused: tuple[Conflict, ...] = ()
    is_merge: bool = True


def commit_merge(
    context: TableContext, branch: str, prepare: Callable[[State], ProposedMerge | State], *, head: State | None = None
) -> Written:
    """Make a merge the next version of a branch; return it with the number of rows that it changed there.

    Args:
        context: The table.
        branch: The branch.
        prepare: Says what is to be merged into a head, or which version has it already. It is called again for the
            new head whenever another writer commits first.
        head: The newest version of the branch, if it was read before; an outdated one only costs an attempt.

    Raises:
        MergeConflictError: The error names every conflict; nothing was written.
    """
    # All attempts share one id: a commit whose response was lost is recognised by it and not made a second time.
    transaction_id = str(uuid.uuid4())
    # By the head: a plan is also made ahead of the turn to commit, for a head that may not be the last one.
    tallies: dict[int, tuple[Tally, Sequence[Field]]] = {}

    def planned(head: State) -> tuple[ProposedMerge, MergePlan] | State:
        proposed = prepare(head)
        return proposed if isinstance(proposed, State) else (proposed, plan_proposed(context, proposed, head))

    def propose(head: State) -> Proposal | State:
        planned_merge = read_anew(partial(planned, head))
        if isinstance(planned_merge, State):
            return planned_merge
        proposed, plan = planned_merge
        operation, result = materialize(
            context, plan, proposed.source, head, changes=proposed.merge_input.source.changes
        )
        result = replace(
            result,
            table_metadata=proposed.table_metadata(plan, result.table_metadata),
            # They hold for the same data files on either side.
            ranges=united(result.ranges, proposed.source.manifest.ranges),
        )
        # A pick or revert without effect makes no version. A merge makes one even then: its record is needed.
        if not proposed.is_merge and result == head.manifest:
            return head
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=operation,
            properties={**proposed.properties, **_strategy_used(proposed.merge_input), **_noted(plan)},
        )
        # A protected branch takes merges and maintenance; a pick, a revert or a restore counts as a direct commit.
        if not proposed.is_merge:
            refuse_direct_commit(context.store, branch, transaction)
        tallies[head.number] = plan.tally, head.manifest.fields
        return Proposal(transaction, next_version(head.manifest, result, timestamp=now_ns(), writer=WRITER))

    state = commit(context.versions, branch, propose, head or context.head(branch))
    # A version that had the change already was made by another transaction, and counts no row.
    if state.transaction is None or state.transaction.uuid != transaction_id:
        return Written(state=state)
    tally, before = tallies[state.number - 1]
    return Written(
        state=state,
        added=tally.rows_added,
        deleted=tally.rows_removed,
        updated=tally.rows_updated,
        columns=_columns_changed(before, state.manifest.fields),
    )


def _columns_changed(before: Sequence[Field], after: Sequence[Field]) -> tuple[str, ...]:
    """Return the columns that are new, renamed, retyped or gone; a nested column by its own name."""
    old, new = ({field.id: (field.name, field.logical_type) for field in fields} for fields in (before, after))
    changed = [field.name for field in after if old.get(field.id) != new[field.id]]
    return (*changed, *(field.name for field in before if field.id not in new and field.name not in changed))


def read_anew(make: Callable[[], _Result]) -> _Result:
    """Plan a merge, and plan it once more where it built on a version that was read before it was cleaned up.

    The second time the version is not answered from memory, so the plan goes by the versions that are left.
    """
    try:
        return make()
    except VersionNotFoundError:
        return make()


def plan_proposed(context: TableContext, proposed: ProposedMerge, head: State) -> MergePlan:
    """Plan a merge; nothing is written.

    Raises:
        MergeConflictError: The error names every conflict.
    """
    # Where a conflict does not depend on the changes of the sides, no plan is made: a plan may read deletion files and
    # rows.
    with naming_damaged_manifests(context, proposed.source, head):
        plan = MergeRefusal(conflicts=proposed.refused) if proposed.refused else plan_merge(proposed.merge_input)
    if isinstance(plan, MergePlan):
        return plan
    headline = f"cannot {proposed.attempt} of {context.uri}; nothing was written:"
    states = state_of(proposed.merge_input.base), proposed.source, head
    # Key columns are read only for a merge that is refused: a merge that succeeds does not pay for them.
    refusal = with_keys(context, states, plan, context.uri)
    raise MergeConflictError(headline, refusal.conflicts, remedy=remedy_for(refusal, proposed.call))


def call_with(method: str, arguments: tuple[object, ...], options: Mapping[str, object]) -> Call:
    """Return the call of a method with the options that were given."""
    return Call(method, arguments, {name: value for name, value in options.items() if value})


def remedy_for(refusal: MergeRefusal, call: Call | None) -> Remedy | None:
    """Return the call that settles all conflicts at once, and keeps the strategies and everything else that was given.

    Args:
        refusal: Why there is no merge.
        call: The call that asked for the merge, without its strategy; None for a call that takes no strategy.
    """
    if call is None:
        return None
    if not refusal.settling:
        return Remedy(refusal.advice) if refusal.advice else None
    offered = refusal.settling[0]
    # The strategy is written out by unit: a hint of "source-wins" alone would settle conflicts that come up later too.
    named = {"strategy": dict(offered), **call.named}
    if not refusal.either:
        alternative = ""
    elif set(refusal.offered) == set(refusal.either):
        alternative = ", or choose the other winner for each"
    else:
        # A unit may contain braces, which would be taken for the placeholder of the call.
        alternative = f", or choose the other winner for {', '.join(map(repr, refusal.either))}"
        alternative = alternative.replace("{", "{{").replace("}", "}}")
    return Remedy(f"settle all conflicts with {{}}{alternative}", replace(call, named=named))


@contextmanager
def naming_damaged_manifests(context: TableContext, source: State, head: State) -> Iterator[None]:
    """Name the manifests in an error about damage that rules found, since the rules do not know the files."""
    try:
        yield
    except CorruptFileError as error:
        # The error of a reader has the path of the file already.
        if context.uri in error.path:
            raise
        raise CorruptFileError(f"{source} or {head} of {context.uri}", f"{error.path}: {error.problem}") from error


def check_unused_strategy(strategy: Strategy, merged: State, *versions: State) -> None:
    """Check a strategy for a merge that finds nothing to do, so that no plan looks at it.

    Args:
        strategy: The strategy.
        merged: The version that has the change already. A repeated call has the strategy of the call that made it, so
            everything that strategy names is accepted.
        versions: The versions whose columns a strategy may name.

    Raises:
        InvalidInputError: It names a column, a partition or a condition that neither side has.
    """
    if strategy is None:
        return
    properties = merged.transaction.properties if merged.transaction is not None else {}
    parsed = ParsedStrategy.parse(strategy).without(_strategy_recorded(properties))
    parsed_strategy(parsed.winners, *(version.manifest for version in (merged, *versions)))
    parsed.check_scopes(lambda: claim_units(decode_claims(properties)))


def _strategy_recorded(properties: Mapping[str, str]) -> Collection[str]:
    """Return the units and kinds for which a merge recorded a strategy."""
    try:
        winners = parsed_json(properties.get(MERGE_STRATEGY, "{}"))
    except ValueError:
        # Any program can set the property. An invalid value must not make a repeated merge fail.
        return ()
    return tuple(winners) if isinstance(winners, dict) else ()


def _strategy_used(merge_input: MergeInput) -> dict[str, str]:
    """Return the property that records the given strategy, whether it had to settle anything or not."""
    if merge_input.strategy is None:
        return {}
    winners = ParsedStrategy.parse(merge_input.strategy).winners
    return {MERGE_STRATEGY: json.dumps(dict(winners), sort_keys=True)} if winners else {}


def _noted(plan: MergePlan) -> dict[str, str]:
    """Return the properties that describe the result: columns that moved or were cast, and new or missing values."""
    noted = {COLUMNS_MOVED: ",".join(map(str, sorted(plan.columns)))} if plan.columns else {}
    # An empty record is written too: a squash has no other sign that its columns came as a whole.
    if plan.updated_in_place is not None:
        noted[UPDATED_IN_PLACE] = ",".join(map(str, sorted(plan.updated_in_place)))
    for key, casts in ((CASTS, plan.casts), (CASTS_OF_SOURCE, plan.casts_of_source)):
        # An empty record is written too: it distinguishes a cast from a column dropped beside a new column.
        if plan.tally.schema_changed or casts:
            noted[key] = ",".join(f"{old}:{new}" for old, new in sorted(casts.items()))
    lacking = plan.tally.needs_backfill
    return noted | ({NEEDS_BACKFILL: json.dumps(dict(lacking), sort_keys=True)} if lacking else {})
