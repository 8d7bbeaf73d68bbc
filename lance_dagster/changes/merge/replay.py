"""Find rows of the merge base by replaying what a side did, on tables whose row ids change when rows move.

A compaction writes the live rows of its fragments in order. An update takes rows out and puts rows in, and nothing
tells which of the new ones was which: the old ones count as written anew, so that a change of the other side to the
same rows is noticed. The same holds for a merge, which may have brought updates. Everything else leaves rows where
they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap

from lance_dagster.changes.claims import APPEND, REPLACE
from lance_dagster.changes.merge.fates import INSERTED, OFFSET_BITS, Addresses, Elsewhere, addresses_of, unplaced
from lance_dagster.changes.merge.matching import Matched, present
from lance_dagster.changes.sides import Change, Deleted, Side
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.transaction import Overwrite, Restore, Rewrite, RewriteGroup, Update


class UntraceableError(Exception):
    """Nobody can tell any more where the rows of the merge base are; says why."""


@dataclass(slots=True)
class _Rows:
    """Where the rows of fragments made since the merge base were there, and the rows that updates wrote anew."""

    addresses: dict[int, Addresses] = field(default_factory=dict)
    rewritten: frozenset[int] = frozenset()


def located_by_replay(side: Side, matched: Matched, deleted: Deleted) -> tuple[dict[int, Elsewhere], dict[int, BitMap]]:
    """Return the rows of a side that are not where the base has them, and by fragment those that updates wrote anew.

    Raises:
        UntraceableError: A version that moved rows is gone.
    """
    missing = any(matched.place(number) is None for number in matched.base.fragments.ids)
    if missing and not side.complete:
        raise UntraceableError("rows were moved by versions that are gone, and the table has no stable row ids")
    if not side.same_ids and any(number not in matched.anchored for number in matched.base.fragments.ids):
        raise UntraceableError("rows were moved before an earlier merge, and the table has no stable row ids")
    rows = _replayed(side, matched, deleted) if side.complete else _Rows()
    found: dict[int, Elsewhere] = {}
    for number, live in unplaced(matched, deleted):
        fragment = present(side.manifest, number)
        own = matched.base_of(number)
        if own is not None:
            addresses = addresses_of(fragment, own)
        else:
            addresses = rows.addresses.get(number, np.full(fragment.physical_rows, INSERTED, np.int64))
        none = np.zeros(fragment.physical_rows, np.bool_)
        back = none if own is None else ~none
        found[number] = Elsewhere(fragment=fragment, addresses=addresses, updated=none, back=back, live=live)
    rewritten = {} if side.same_ids else _before_anchor(side, matched, deleted)
    for address in rows.rewritten:
        rewritten.setdefault(address >> OFFSET_BITS, BitMap()).add(address & (2**OFFSET_BITS - 1))
    return found, rewritten


def _before_anchor(side: Side, matched: Matched, deleted: Deleted) -> dict[int, BitMap]:
    """Return the rows that a side did not have where the merge base has them when that came in.

    It had taken them out, or given them new values, or has them elsewhere among rows that cannot be told apart.
    """
    found: dict[int, BitMap] = {}
    state = side.anchor or side.manifest
    for number, own in matched.anchored.items():
        then, there = present(matched.base, number), present(state, own)
        gone = deleted(state, there) - deleted(matched.base, then)
        if gone:
            found[number] = gone
    return found


def _replayed(side: Side, matched: Matched, deleted: Deleted) -> _Rows:
    anchor = side.anchor
    if anchor is None:
        return _Rows()
    # By the ids of the side's own line, which the anchor has and the base may not.
    replay = _Replay({own: number for number, own in matched.anchored.items()}, deleted)
    rows, states = _Rows(), {anchor.version: _Rows()}
    for change in side.since:
        rows = replay.after(rows, change, states)
        if change.after is not None:
            states[change.after.version] = rows
    return rows


def _updates(change: Change) -> bool:
    """Tell whether a version may have written rows anew: not one that took rows out and put in others instead."""
    operation = change.operation
    replaces = bool(change.claims) and all(claim.mode in (APPEND, REPLACE) for claim in change.claims)
    return isinstance(operation, Update) and not operation.writes_columns and not replaces


@dataclass(frozen=True, slots=True)
class _Replay:
    """Follows rows through versions, by the fragments of the merge base that fragments are in the place of."""

    origin: Mapping[int, int]
    deleted: Deleted

    def after(self, rows: _Rows, change: Change, states: Mapping[int, _Rows]) -> _Rows:
        """Return where rows are after one more version, given where they were after each before it."""
        operation, before, after = change.operation, change.before, change.after
        if before is None or after is None:
            raise UntraceableError(f"{change.version} is gone, and the table has no stable row ids")
        match operation:
            case _ if change.is_merge or _updates(change):
                gone = [self._gone(rows, number, before, after) for number in before.fragments.ids]
                return _Rows(rows.addresses, rows.rewritten.union(*gone))
            case Rewrite():
                addresses = dict(rows.addresses)
                for group in operation.groups:
                    addresses.update(self._compacted(rows, group, before))
                return _Rows(addresses, rows.rewritten)
            case Restore() if operation.version in states:
                return states[operation.version]
            case Restore():
                raise UntraceableError(f"{change.version} went back to before the merge base, without stable row ids")
            case Overwrite():
                return _Rows({}, rows.rewritten)
            case _:
                return rows

    def _compacted(self, rows: _Rows, group: RewriteGroup, before: Manifest) -> dict[int, Addresses]:
        parts: list[Addresses] = []
        for old in group.old:
            fragment = before.fragments.find(old.id)
            if fragment is None:
                raise UntraceableError(f"a compaction names a fragment {old.id} that is not there")
            live = np.ones(fragment.physical_rows, np.bool_)
            live[np.array(self.deleted(before, fragment), np.int64)] = False
            parts.append(self._addresses(rows, fragment)[live])
        together = np.concatenate([np.empty(0, np.int64), *parts])
        if len(together) != sum(fragment.physical_rows for fragment in group.new):
            raise UntraceableError("a compaction wrote another number of rows than it read")
        found, start = {}, 0
        for fragment in group.new:
            found[fragment.id] = together[start : start + fragment.physical_rows]
            start += fragment.physical_rows
        return found

    def _gone(self, rows: _Rows, number: int, before: Manifest, after: Manifest) -> set[int]:
        """Return the addresses of rows of a fragment that a version took out."""
        old, new = present(before, number), after.fragments.find(number)
        if new is not None and new.deletion == old.deletion:
            return set()
        left = BitMap(range(new.physical_rows)) - self.deleted(after, new) if new is not None else BitMap()
        taken = BitMap(range(old.physical_rows)) - self.deleted(before, old) - left
        addresses = self._addresses(rows, old)[np.array(taken, np.int64)]
        return set(addresses[addresses != INSERTED].tolist())

    def _addresses(self, rows: _Rows, fragment: Fragment) -> Addresses:
        if fragment.id in rows.addresses:
            return rows.addresses[fragment.id]
        if fragment.id in self.origin:
            return addresses_of(fragment, self.origin[fragment.id])
        return np.full(fragment.physical_rows, INSERTED, np.int64)
