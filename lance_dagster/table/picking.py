"""Take over one version's change elsewhere, or take it back, by the rules of a merge.

A change is the way from a version's parent to the version itself; taking it back is the way from there to the parent.
Merging that way into a branch leaves everything alone that the branch did besides, or says what contradicts it.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from pyroaring import BitMap

from lance_dagster.changes.apply import as_next
from lance_dagster.changes.merge import MergePlan, Question, Strategy, plan_merge
from lance_dagster.changes.row_spaces import Alias
from lance_dagster.changes.sides import Change, Side
from lance_dagster.errors import InvalidInputError, MergeConflictError
from lance_dagster.format.codec import decode_row_ids
from lance_dagster.format.transaction import MESSAGE, PICKED, REVERTED, Clone, Restore, Transaction
from lance_dagster.history.commit import WRITER, Proposal, commit, now_ns
from lance_dagster.history.lineage import lineage_of, row_space
from lance_dagster.history.protection import refuse_direct_commit
from lance_dagster.history.records import alias_records
from lance_dagster.history.versions import State
from lance_dagster.table.carrying import carried_out
from lance_dagster.table.join import columns_moved, lookups, side_of
from lance_dagster.table.moving import submit
from lance_dagster.table.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Picking:
    """How to take over or take back a change: against which parent, who wins conflicts, what is kept with it."""

    parent: int | None = None
    strategy: Strategy = None
    properties: Mapping[str, str] = field(default_factory=dict)


def cherry_pick(parts: Parts, commit_: State, onto: str, how: Picking) -> State:
    """Make the change of a version on another branch too; the head as it is when it has that already.

    Raises:
        MergeConflictError: It contradicts what the branch did; nothing was written.
        InvalidInputError: It is a merge and no parent was given.
    """
    parent = _parent(parts, commit_, how.parent)
    change = _change(parent, commit_)
    since = [change] if parent.branch == commit_.branch else []
    return _carried_over(parts, _Way(PICKED, parent, commit_, change, since), onto, how)


def revert(parts: Parts, commit_: State, branch: str, how: Picking) -> State:
    """Take the change of a version back, as the next version of a branch; the head when there is nothing to take back.

    Raises:
        MergeConflictError: Later changes build on it; nothing was written.
        InvalidInputError: It is a merge and no parent was given.
    """
    parent = _parent(parts, commit_, how.parent)
    change = _change(parent, commit_, undone=True)
    return _carried_over(parts, _Way(REVERTED, commit_, parent, change, []), branch, how)


def restore(parts: Parts, to: State, branch: str, properties: Mapping[str, str]) -> State:
    """Make an older version of a branch its next one; the head as it is when that is the one.

    Raises:
        InvalidInputError: The version is on another branch.
    """
    head = parts.head(branch)
    if to.branch != branch:
        raise InvalidInputError(
            f"{to} is no version of branch {branch!r} of {parts.uri}, which goes back to its own only; reset() makes a "
            "branch anew from any version"
        )
    return head if to.number == head.number else submit(parts, head, Restore(version=to.number), properties)


@dataclass(frozen=True, slots=True)
class _Way:
    """From one version to another, as a merge sees it: the base, the source, and what happened in between.

    `kind` is the property that says what it is for.
    """

    kind: str
    base: State
    source: State
    change: Change
    since: list[Change]


def _carried_over(parts: Parts, way: _Way, branch: str, how: Picking) -> State:
    kind = way.kind
    base, source = lineage_of(way.base, parts.refs), lineage_of(way.source, parts.refs)
    same_line = way.base.branch == way.source.branch
    of = way.source if kind == PICKED else way.base
    side = Side(
        name=f"{of}" if kind == PICKED else f"the state before {of}",
        manifest=way.source.manifest,
        changes=[way.change],
        anchor=way.base.manifest if same_line else None,
        since=way.since,
        same_ids=same_line,
        space=row_space(source, parts.versions),
    )
    transaction_id = str(uuid.uuid4())
    parts.head(branch)

    def propose(head: State) -> Proposal | State:
        question = Question(
            base=way.base.manifest,
            space=row_space(base, parts.versions),
            source=side,
            dest=side_of(parts, lineage_of(head, parts.refs), base, base),
            lookups=lookups(parts),
            strategy=how.strategy,
        )
        plan = plan_merge(question)
        verb = "take over" if kind == PICKED else "take back"
        if not isinstance(plan, MergePlan):
            raise MergeConflictError(f"cannot {verb} {of} on {head} of {parts.uri}; nothing was written:", plan)
        operation, changed = carried_out(parts, plan, way.source, head, changes=[way.change])
        known = alias_records(head.manifest, _aliases_of_brought(plan))
        changed = replace(changed, table_metadata={**changed.table_metadata, **known})
        if changed == head.manifest:
            return head
        properties = {MESSAGE: _message(of, kind), **how.properties, kind: of.id or str(of)}
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=operation,
            properties=properties | columns_moved(plan),
        )
        refuse_direct_commit(parts.store, branch, transaction)
        return Proposal(transaction, as_next(head.manifest, changed, transaction, timestamp=now_ns(), writer=WRITER))

    return commit(parts.versions, branch, propose)


def _aliases_of_brought(plan: MergePlan) -> dict[str, list[Alias]]:
    """Return the ids of the rows that came, and of no others: a later merge of the branch has to bring these."""
    sequences = [np.empty(0, np.uint64)]
    for brought in plan.added if plan.aliases else ():
        rows = brought.fragment.physical_rows
        alive = BitMap(range(rows)) - (brought.deleted or BitMap())
        ids = decode_row_ids(brought.fragment.row_ids, rows, f"fragment {brought.fragment.id}")
        sequences.append(ids[np.array(alive, np.int64)])
    here = np.unique(np.concatenate(sequences)).astype(np.int64)
    found: dict[str, list[Alias]] = {}
    for branch_id, aliases in plan.aliases.items():
        for alias in aliases:
            came = here[(here >= alias.here) & (here < alias.here + alias.end - alias.first)]
            for run in np.split(came, np.flatnonzero(np.diff(came) > 1) + 1) if len(came) else ():
                start, end = int(run[0]), int(run[-1]) + 1
                first = alias.first + start - alias.here
                found.setdefault(branch_id, []).append(Alias(first=first, end=first + end - start, here=start))
    return found


def _message(of: State, kind: str) -> str:
    message = of.transaction.properties.get(MESSAGE) if of.transaction else None
    verb = "cherry-pick" if kind == PICKED else "revert"
    return f"{verb} {of}" if message is None else f"{verb} {of}: {message}"


def _change(parent: State, of: State, *, undone: bool = False) -> Change:
    return Change(
        version=str(of),
        writer=of.writer,
        transaction=of.transaction,
        before=parent.manifest,
        after=of.manifest,
        undone=undone,
    )


def _parent(parts: Parts, of: State, number: int | None) -> State:
    """Return a parent of a version, counted from 1; the only one when none is asked for.

    Raises:
        InvalidInputError: There is none, there are two and none was chosen, or there is no such one.
    """
    parents = parts.versions.describe(of).parents
    if not parents or (of.transaction is not None and isinstance(of.transaction.operation, Clone)):
        raise InvalidInputError(f"{of} of {parts.uri} changed nothing: it is where a table or branch begins")
    if number is None and len(parents) > 1:
        raise InvalidInputError(
            f"{of} of {parts.uri} is a merge; say which parent its change is seen from: 1 for {parents[0]}, "
            f"2 for {parents[1]}"
        )
    if number is not None and not 1 <= number <= len(parents):
        raise InvalidInputError(f"{of} of {parts.uri} has {len(parents)} parents, so no parent {number}")
    return parts.at(parents[(number or 1) - 1])
