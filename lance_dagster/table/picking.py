"""Take over one version's change elsewhere, or take it back, by the rules of a merge.

A change is the way from a version's parent to the version itself; taking it back is the way from there to the parent.
Merging that way into a branch leaves everything alone that the branch did besides, or says what contradicts it.
"""

from dataclasses import replace

from lance_dagster.changes.sides import Change
from lance_dagster.errors import Call, InvalidInputError, Remedy
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import (
    PICKED,
    RESTORED,
    REVERTED,
    REVERTED_TO,
    Clone,
    Operation,
    ReserveFragments,
    Restore,
    Rewrite,
)
from lance_dagster.history.ancestry import Ancestry, Written
from lance_dagster.history.lineage import anchored, changes_since, lineage_of
from lance_dagster.history.versions import State
from lance_dagster.table.moving import submit
from lance_dagster.table.parts import Parts
from lance_dagster.table.ways import Picking, Way, carried_over, identity


def cherry_pick(parts: Parts, commit_: State, onto: str, how: Picking) -> State:
    """Make the change of a version on another branch too; the head as it is when it has that already.

    Raises:
        MergeConflictError: It contradicts what the branch did; nothing was written.
        InvalidInputError: It is a merge and no parent was given.
        VersionNotFoundError: The parent is gone.
    """
    parent = _parent(parts, commit_, how.parent)
    head = parts.head(onto)
    if str(head) == str(commit_) or _says(head, PICKED, commit_) or _changes_no_row(commit_):
        return head
    changes = [_change(parent, commit_)]
    # The first parent is the version before on the same line, whatever the branch was called there.
    since = changes if how.parent in (None, 1) else []
    way = Way(kind=PICKED, of=commit_, base=parent, source=commit_, changes=changes, since=since)
    return carried_over(parts, lambda _: way, onto, how)


def revert(parts: Parts, commit_: State, branch: str, how: Picking) -> State:
    """Take the change of a version back, as the next version of a branch; the head when there is nothing to take back.

    Raises:
        MergeConflictError: Later changes build on it; nothing was written.
        InvalidInputError: It is a merge and no parent was given.
        VersionNotFoundError: The parent is gone.
    """
    parent = _parent(parts, commit_, how.parent)
    head = parts.head(branch)
    to = parent if len(parts.versions.describe(commit_).parents) > 1 else None
    standing = _standing(parts, commit_, head, to)
    if standing is not commit_:
        commit_, parent, to = standing, _parent(parts, standing, None), None
    if _takes_back(head, commit_, to) or _changes_no_row(commit_):
        return head
    if to is not None:
        how = replace(how, properties={**how.properties, REVERTED_TO: identity(to)})
    changes = [replace(_change(parent, commit_), undone=True)]
    way = Way(kind=REVERTED, of=commit_, base=commit_, source=parent, changes=changes)
    return carried_over(parts, lambda _: way, branch, how)


def restore(parts: Parts, to: State, branch: str, how: Picking) -> State:
    """Make a version a branch had the next one of it; the head as it is when that is the one.

    One from before the branch was forked cannot be named by a restoring transaction: what was done since is taken back.

    Raises:
        InvalidInputError: The branch never had that version.
    """
    head = parts.head(branch)
    if _says(head, RESTORED, to):
        return head
    if to.branch == branch:
        same = head.number == to.number or _operation(head) == Restore(version=to.number)
        return head if same else submit(parts, head, Restore(version=to.number), how.properties)
    target = lineage_of(to, parts.refs)

    def way(head: State) -> Way:
        of = lineage_of(head, parts.refs)
        if not any(line.id == target.id and to.number <= line.number for line in of.lines):
            anew = Remedy("{} makes the branch anew from it", Call("reset", (branch, str(to))))
            raise InvalidInputError(
                f"branch {branch!r} of {parts.uri} never was at {to}: it goes back to its own versions, and to those "
                "before it was forked",
                remedy=None if branch == MAIN else anew,
            )
        done = anchored(of, target, parts.versions)[1]
        changes = [replace(change, undone=True) for change in reversed(done)]
        return Way(kind=RESTORED, of=to, base=head, source=to, changes=changes)

    return carried_over(parts, way, branch, how)


def _changes_no_row(commit_: State) -> bool:
    """Tell whether a version only wrote rows elsewhere."""
    return isinstance(_operation(commit_), Rewrite | ReserveFragments)


def _operation(of: State) -> Operation | None:
    return of.transaction.operation if of.transaction is not None else None


def _standing(parts: Parts, commit_: State, head: State, to: State | None) -> State:
    """Return the version that a change stands by: the last one that took back that it was taken back."""
    ours, theirs = lineage_of(commit_, parts.refs), lineage_of(head, parts.refs)
    if not theirs.contains(ours):
        return commit_
    reverts = (change for change in changes_since(theirs, ours, parts.versions) if _reverts(change))
    later = [parts.recalled(Written(change.version)) for change in reverts]
    while back := next((state for state in later if _takes_back(state, commit_, to)), None):
        again = next((state for state in later if _says(state, REVERTED, back)), None)
        if again is None:
            break
        commit_, to = again, None
    return commit_


def _reverts(change: Change) -> bool:
    return change.transaction is not None and REVERTED in change.transaction.properties


def _takes_back(state: State, commit_: State, to: State | None) -> bool:
    """Tell whether a version takes a change back; of a merge, the one that is seen from a certain parent."""
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


def _parent(parts: Parts, of: State, number: int | None) -> State:
    """Return a parent of a version, counted from 1; the only one when none is asked for.

    Raises:
        InvalidInputError: There is none, there are two and none was chosen, or there is no such one.
        VersionNotFoundError: It is gone.
    """
    version = parts.versions.describe(of)
    parents = version.parents
    if not parents or isinstance(_operation(of), Clone):
        raise InvalidInputError(f"{of} of {parts.uri} changed nothing: it is where a table or branch begins")
    if number is None and len(parents) > 1:
        raise InvalidInputError(
            f"{of} of {parts.uri} is a merge; say which parent its change is seen from: 1 for {parents[0]}, "
            f"2 for {parents[1]}"
        )
    if number is not None and not 1 <= number <= len(parents):
        raise InvalidInputError(f"{of} of {parts.uri} has {len(parents)} parents, so no parent {number}")
    if number in (None, 1):
        return parts.recalled(Written(parents[0]))
    ancestry = Ancestry(parts.refs, parts.versions)
    merged = ancestry.merged(version)
    if merged is None:
        raise ancestry.no_merged(version)
    return parts.versions.load(merged.branch, merged.number)
