"""Find the rows of the merge base that a side moved, updated or removed: by row ids, or by replaying transactions.

With stable row ids, a row keeps its id wherever it is moved (`located_by_ids`).

Which rows got new values is read from the versions the side made: an update writes its rows into new fragments under
the ids they had, stamped as updated by that version; a compaction keeps the stamps. Where a version was cleaned up,
the stamps of the newest version are used instead. By them, a row counts as updated even if only a column was added
before it was moved: the merge is then refused more often than necessary, but nothing is lost.

Without stable row ids, the transactions of the side are replayed (`located_by_replay`). A compaction writes the live
rows of its fragments in order. An update takes rows out and puts rows in, and nothing says which new row was which old
one: the old ones count as rewritten, so that a change of the other side to the same rows is noticed. The same holds for
a merge, which may contain updates, and for an update that is taken back. A cherry-pick or a revert may insert rows
again that an earlier version removed. All other operations leave rows where they are.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.codec import decode_version_runs, smallest_row_id
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.row_runs import RowRuns, VersionRuns, bitmap_of
from lance_dagster.format.transaction import (
    CHANGE_ORIGIN_PROPERTIES,
    REWRITE_ROWS,
    Append,
    Merge,
    Overwrite,
    Restore,
    Rewrite,
    RewriteGroup,
    Update,
)
from lance_dagster.merge.rules.columns.column_matching import rows_in_place
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.row_changes import (
    MatchedFragments,
    RelocatedRows,
    differing_fragments,
    live_rows,
    row_ids_of,
    rows_out_of_place,
)
from lance_dagster.merge.rules.row_origins import (
    NO_ORIGINS,
    NOWHERE,
    OFFSET_BITS,
    Origins,
    addresses_of,
    at_addresses,
    by_address,
    fragments_named,
    offsets_in_base,
)
from lance_dagster.merge.rules.strategy import add_rows
from lance_dagster.transactions.claims import APPEND, REPLACE, Change, SideHistory, decode_claims
from lance_dagster.transactions.row_id_spaces import RowSpace, Translation

_Values = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Identities:
    """The meaning of the row ids of a side: ids of the merge base, or ids of the dest for rows that the base lacks.

    `maybe_deleted` translates the ids of rows that the merge base knows, and may have deleted, to ids of the dest.
    `updated` are the ids of rows that count as updated, whatever values they have.
    """

    base: Translation
    shared: Translation
    maybe_deleted: Translation
    updated: RowRuns = NOWHERE

    @classmethod
    def of_both(
        cls,
        base: RowSpace,
        source: RowSpace,
        dest: RowSpace,
        *,
        inserted: tuple[RowRuns, RowRuns] = (NOWHERE, NOWHERE),
        updated: RowRuns = NOWHERE,
    ) -> "tuple[Identities, Identities]":
        """Return the meaning of the ids of source and dest.

        The merge base lacks rows of branches that were merged into both, crosswise or from a third one that is gone.
        `inserted` are rows of either side, with their ids on the other side, that do not count as shared. `updated` are
        rows of the source.
        """
        # `both` has every row id that the two sides share. Ids that the merge base does not know are shared rows; the
        # rest are rows that the merge base knows and may have deleted. Both sides name them by the dest's ids, so that
        # one row has one key.
        source_ids, dest_ids, to_dest = source.translation(base), dest.translation(base), source.translation(dest)
        shared = to_dest.beyond(source_ids)
        maybe_deleted = to_dest.beyond(shared)
        if any(map(len, inserted)):
            apart = (Translation.of_runs(inserted[0]), Translation.of_runs(inserted[1]).back)
            shared = shared.beyond(apart[0]).beyond(apart[1])
        return (
            cls(source_ids, shared, maybe_deleted, updated),
            cls(dest_ids, _itself(shared.back), _itself(maybe_deleted.back)),
        )


def _itself(translation: Translation) -> Translation:
    """Return a translation of the same ids to themselves."""
    return Translation(tuple((first, end, first) for first, end, _ in translation.stretches))


def located_by_ids(
    identities: Identities, side: SideHistory, matched: MatchedFragments, deleted: Deleted, *, settled_apart: bool
) -> dict[int, RelocatedRows]:
    """Return the rows of a side that are not where the merge base has them, or that were updated in place.

    Args:
        identities: What its row ids mean.
        side: The side.
        matched: Its fragments, matched with those of the merge base.
        deleted: Reads deletion vectors.
        settled_apart: Whether both sides merged the other side by a strategy. Rows that the merge base lacks count as
            updated then: where each side kept a copy of its own, none may be deleted for the other's sake.
    """
    base_rows = _BaseRows(matched.base, matched.changed, deleted)
    locate = _Locator(identities, side, matched, base_rows, deleted, settled_apart)
    known_below = max(identities.base.end, identities.shared.end)
    relocated: dict[int, RelocatedRows] = {}
    for number, live in rows_out_of_place(matched, deleted):
        fragment = side.manifest.fragment(number)
        lowest = None if fragment.row_ids is None else smallest_row_id(fragment.row_ids)
        if lowest is not None and lowest >= known_below:
            # All of its rows came after the merge base. Their ids are not even decoded, so that a merge of appended
            # rows costs their fragments and not their number.
            relocated[number] = RelocatedRows(
                fragment=fragment, origins=NO_ORIGINS, updated=BitMap(), back=BitMap(), live=live
            )
        else:
            relocated[number] = locate.rows(fragment, live)
    # An update in place leaves its rows where the merge base has them, so `rows_out_of_place` does not return them.
    for number in sorted({number for change in side.changes for number in rows_in_place(change)}):
        own = matched.base_of(number)
        rows = None if own is None else locate.rows_in_place(side.manifest.fragment(number), own, relocated.get(number))
        if rows is not None:
            relocated[number] = rows
    return relocated


@dataclass(frozen=True)
class _Locator:
    """Finds the rows of fragments of one side in the merge base by their ids."""

    identities: Identities
    side: SideHistory
    matched: MatchedFragments
    base_rows: "_BaseRows"
    deleted: Deleted
    settled_apart: bool

    @cached_property
    def written(self) -> "_WrittenIds":
        """The ids of rows that the versions of the side gave new values, and of rows that came or came back."""
        return _written_ids(self.side, self.deleted)

    @cached_property
    def by_stamps(self) -> bool:
        return updates_show_in_stamps_only(self.side)

    def rows(self, fragment: Fragment, live: BitMap) -> RelocatedRows:
        """Locate the rows of a fragment: deleted rows too, unless the merge base has the fragment in the same place."""
        ids = row_ids_of(fragment, self.side.name)
        addresses = ids.through(self.identities.base.runs)
        # After an update, the merge base has one row id in two fragments: deleted in the old one and alive in
        # the new one. The live place counts.
        alive = addresses.through(self.base_rows.alive) if len(addresses) else NOWHERE
        dead = addresses.through(self.base_rows.dead) if len(addresses) else NOWHERE
        shared, maybe_deleted = (
            ids.through(translation.runs) for translation in (self.identities.shared, self.identities.maybe_deleted)
        )
        back = maybe_deleted.positions - alive.positions - shared.positions
        still_dead = dead.positions - back - shared.positions
        base = RowRuns.united([alive, dead.restricted(still_dead)]) if len(dead) else alive
        origins = Origins(base=base, deleted=maybe_deleted.restricted(back), shared=shared)
        updated = ids.where_in(self.written.updated).positions | ids.where_in(self.identities.updated).positions
        updated |= ids.where_in(self.written.came).positions & alive.positions
        # Where a version is gone, a stamp that differs from the stamp in the merge base is the only trace of an update.
        if self.by_stamps or anchor_may_differ(self.side):
            stamps = _stamps(fragment, self.side.name)
            updated |= self.base_rows.stamped_otherwise(origins, stamps, self.side.common)
        if self.by_stamps or self.settled_apart:
            # Rows that the merge base lacks may have changed, so they count as updated: at worst the merge is refused.
            updated |= origins.deleted.positions | origins.shared.positions
        if updated:
            updated -= self.base_rows.in_old_place(alive, fragment)
        own = self.matched.base_of(fragment.id)
        if own is not None:
            # A row that is alive again where the merge base has it deleted is an older state of a row that the merge
            # base has in another fragment, or a row that the merge base has deleted for good.
            here = live - alive.positions - back
            in_place = addresses_of(fragment, own).restricted(here)
            base = RowRuns.united([alive.restricted(live), in_place])
            origins = Origins(base=base, deleted=maybe_deleted.restricted(back & live))
            updated, back = alive.positions & live, live - alive.positions
        return RelocatedRows(fragment=fragment, origins=origins, updated=updated, back=back, live=live)

    def rows_in_place(self, fragment: Fragment, base_id: int, relocated: RelocatedRows | None) -> RelocatedRows | None:
        """Return the rows of a fragment that were updated in place, added to the rows relocated there before.

        The rows count as updated: a change of the other side to them is a conflict, and a change of the other side to
        the other rows of the fragment is not.
        """
        base = self.matched.base
        live = live_rows(self.matched.side, fragment, self.deleted) - self.deleted(base, base.fragment(base_id))
        live &= row_ids_of(fragment, self.side.name).where_in(self.written.updated).positions
        if not live:
            return relocated
        addresses = addresses_of(fragment, base_id).restricted(live)
        if relocated is None:
            origins = Origins(base=addresses)
            return RelocatedRows(fragment=fragment, origins=origins, updated=live, back=BitMap(), live=live)
        # `known` has those rows of the fragment that the merge base has deleted and that are alive again.
        others = relocated.live - live
        before = relocated.origins.restricted(others)
        return RelocatedRows(
            fragment=fragment,
            origins=replace(before, base=RowRuns.united([before.base, addresses])),
            updated=(relocated.updated & others) | live,
            back=relocated.back & others,
            live=relocated.live | live,
        )


class _BaseRows:
    """The rows of some fragments of the merge base by row id; read when they are asked for the first time."""

    def __init__(self, base: Manifest, fragments: Iterable[int], deleted: Deleted) -> None:
        self._base, self._fragments, self._deleted = base, sorted(fragments), deleted

    @cached_property
    def alive(self) -> RowRuns:
        """The address of each row that is not deleted, by its id."""
        return self._dead.gaps().through(self._by_address).inverse()

    @cached_property
    def dead(self) -> RowRuns:
        """The address of each deleted row by its id, without rows that are alive in another fragment."""
        return self.alive.gaps().through(RowRuns.first_of(self._dead.through(self._by_address).inverse()))

    def in_old_place(self, runs: RowRuns, fragment: Fragment) -> BitMap:
        """Return the rows of a fragment that the merge base has at the same offset of the same files.

        Such a row has the values of the merge base, whatever happened in between. A fragment of which all rows were
        updated comes back in this way, under another id, when the update is reverted.

        Args:
            runs: The addresses that rows of the fragment have in the merge base.
            fragment: The fragment of the side.
        """
        moved_by = runs.first - runs.at
        unmoved = BitMap()
        keeps_offset = (moved_by & np.uint64((1 << OFFSET_BITS) - 1)) == 0
        # Fragments whose rows have other offsets now are left out: to look at all would cost by the size of the table.
        for start in np.unique(moved_by[keeps_offset]):
            if _values_in(self._base.fragment(int(start) >> OFFSET_BITS)) == _values_in(fragment):
                same = moved_by == start
                unmoved |= bitmap_of(runs.at[same], runs.count[same])
        return unmoved

    def stamped_otherwise(self, origins: Origins, stamps: VersionRuns, common: int) -> BitMap:
        """Return the rows the merge base says were last updated by another version, or after the last common version.

        Args:
            origins: Where rows come from.
            stamps: The versions that the side says they were last updated at.
            common: The number of the last version of both lines.
        """
        numbers = fragments_named(origins.base)
        before = at_addresses(numbers, [_stamps(self._base.fragment(number), "the merge base") for number in numbers])
        pieces = origins.base.cut(before)
        by_position = RowRuns(pieces.at, pieces.count, pieces.at)
        common_pieces = by_position.cut(stamps)
        then, now = before.version[pieces.place[common_pieces.run]], stamps.version[common_pieces.place]
        # After the last common version the two lines number their versions independently, so that equal numbers prove
        # nothing. Such a row counts as updated: at worst the merge is refused.
        differing = (then != now) | (then > np.uint64(common))
        return bitmap_of(common_pieces.at[differing], common_pieces.count[differing])

    @cached_property
    def _by_address(self) -> RowRuns:
        """The id of each row by its address."""
        ids = [row_ids_of(self._base.fragment(number), "the merge base") for number in self._fragments]
        return by_address(self._fragments, ids)

    @cached_property
    def _dead(self) -> RowRuns:
        """The addresses of deleted rows."""
        fragments = [self._base.fragment(number) for number in self._fragments]
        dead = {
            fragment.id: self._deleted(self._base, fragment) for fragment in fragments if fragment.deletion is not None
        }
        return by_address(list(dead), [RowRuns.itself(offsets) for offsets in dead.values()])


def rows_came_again(side: SideHistory) -> bool:
    """Tell whether merges inserted rows or reverts put rows back that the merge base may have with the same values."""
    properties = {key for change in side.changes if change.transaction for key in change.transaction.properties}
    merges = ((change.before, change.after) for change in side.changes if change.is_merge)
    return not CHANGE_ORIGIN_PROPERTIES.isdisjoint(properties) or any(
        before is None or after is None or before.next_row_id < after.next_row_id for before, after in merges
    )


def anchor_may_differ(side: SideHistory) -> bool:
    """Tell whether a side may have other values of rows than the merge base although no version of it changed them.

    A merge may have settled a conflict by a strategy. Or the merge base came with a later version, which may have taken
    its values back. The other side does not contain that later version, so the merge is among the changes.
    """
    versions = {(change.after.branch, change.after.version) for change in side.changes if change.after is not None}
    return bool(side.settled) or (side.anchor is not None and (side.anchor.branch, side.anchor.version) in versions)


def updates_show_in_stamps_only(side: SideHistory) -> bool:
    """Tell whether versions are missing that would show which rows the side updated, so that stamps have to be used.

    A stamp also differs where a row was only moved: by the merge of a branch that the merge base is on, for example.
    Whether such a row has other values than in the merge base is known only when its values are read.
    """
    versions = {side.anchor.version} if side.anchor is not None and side.same_ids else set[int]()
    if side.anchor is None:
        return True
    for change in side.changes:
        if change.transaction is None or change.before is None or change.after is None:
            return True
        # Going back, the older values lie in fragments that the later version may not have any more.
        if change.undone:
            return True
        # The rows updated up to the restored version are known only if that version is among the versions looked at.
        if isinstance(change.operation, Restore) and change.operation.version not in versions:
            return True
        versions.add(change.after.version)
    return False


@dataclass(frozen=True, slots=True)
class _WrittenIds:
    """The ids of rows that versions of a side `updated`, and of rows that `came` by its merges or came back.

    The merge base may have other values of the rows that came: where it was merged into the side, where a revert put an
    older state back, or where a row came back by a pick. A row that the merge base has deleted only came back.
    """

    updated: RowRuns = NOWHERE
    came: RowRuns = NOWHERE


def _written_ids(side: SideHistory, deleted: Deleted) -> _WrittenIds:
    ids = _WrittenIds()
    ids_by_version = {side.anchor.version: ids} if side.anchor is not None and side.same_ids else {}
    for change in side.changes:
        if change.transaction is None or change.before is None or change.after is None:
            continue
        # A restore also takes updates back: only rows updated up to the restored version have new values after it.
        if isinstance(change.operation, Restore):
            ids = ids_by_version.get(change.operation.version, ids)
        elif not isinstance(change.operation, Rewrite):
            rewritten = [*_rewritten(change.before, change.after, deleted), *_ids_in_place(change)]
            came = [ids.came, *_put_back(change.before, change.after, deleted)]
            if change.is_merge:
                came += _new_ids(change.before, change.after)
            # A pick or a revert that only brings rows back is an append, since it takes none out.
            updates = change.is_merge or isinstance(change.operation, Update | Merge)
            ids = _WrittenIds(
                updated=RowRuns.set_of([ids.updated, *(rewritten if updates else ())]),
                came=RowRuns.set_of([*came, *(() if updates else rewritten)]),
            )
        ids_by_version[change.after.version] = ids
    return ids


def _new_ids(before: Manifest, after: Manifest) -> Iterator[RowRuns]:
    """Return the ids in the new fragments of a version that the version before had not assigned."""
    first, earlier_ids = before.next_row_id, set(before.fragments.ids)
    new = RowRuns.of([(first, max(0, after.next_row_id - first), 0)])
    for number in after.fragments.ids:
        if number not in earlier_ids:
            ids = row_ids_of(after.fragment(number), f"version {after.version}")
            yield ids.restricted(ids.where_in(new).positions)


def _ids_in_place(change: Change) -> Iterator[RowRuns]:
    """Return the ids of the rows that a version updated in place."""
    after = change.after
    for number, offsets in rows_in_place(change).items():
        if after is not None:
            yield row_ids_of(after.fragment(number), change.version).restricted(offsets)


def _put_back(before: Manifest, after: Manifest, deleted: Deleted) -> Iterator[RowRuns]:
    """Return the ids of rows that a version has again where the version before had them deleted.

    A revert puts the values of an older version back in this way. After a compaction, nothing else shows it.
    """
    for number in sorted(differing_fragments(before, after)):
        then, now = before.fragment(number), after.fragments.find(number)
        if now is not None and then.deletion is not None:
            back = deleted(before, then) - deleted(after, now)
            if back:
                yield row_ids_of(now, f"version {after.version}").restricted(back)


def _rewritten(before: Manifest, after: Manifest, deleted: Deleted) -> Iterator[RowRuns]:
    """Return the ids of rows that a version wrote anew into other fragments."""
    earlier_ids = set(before.fragments.ids)
    for number in after.fragments.ids:
        # A line never gives a fragment id twice, so a fragment with a known id was not written by this version.
        if number in earlier_ids:
            continue
        fragment = after.fragment(number)
        lowest = None if fragment.row_ids is None else smallest_row_id(fragment.row_ids)
        # Only new rows are in such a fragment: none of its ids was assigned before. The smallest id shows that without
        # decoding all.
        if lowest is not None and lowest >= before.next_row_id:
            continue
        ids = row_ids_of(fragment, f"version {after.version}")
        stamps = _stamps(fragment, f"version {after.version}")
        # A compaction copies the stamps of its rows. Only rows that this version wrote carry its number, and those of
        # them that are inserted have ids that did not exist before.
        fresh = stamps.where(stamps.version == np.uint64(after.version))
        fresh &= ids.where_in(RowRuns.of([(0, before.next_row_id, 0)])).positions
        if fragment.deletion is not None and fresh:
            # A merge adds a fragment for some of its rows only. The other rows are deleted in it, and alive unchanged
            # in the fragment they were in before.
            fresh -= deleted(after, fragment)
        yield ids.restricted(fresh)


def _values_in(fragment: Fragment) -> _Values:
    """Return the files of a fragment with their fields and columns; a branch may know a file by another base."""
    return tuple((file.path, file.fields, file.column_indices) for file in fragment.files)


def _stamps(fragment: Fragment, where: str) -> VersionRuns:
    return decode_version_runs(fragment.updated_at, fragment.physical_rows, f"fragment {fragment.id} of {where}")


class UntraceableError(Exception):
    """The rows of the merge base can no longer be located; the message says why."""


@dataclass(slots=True)
class _Rows:
    """The places in the merge base of the rows of newer fragments, and the rows that updates wrote anew."""

    addresses: dict[int, RowRuns] = field(default_factory=dict)
    rewritten: Mapping[int, BitMap] = field(default_factory=dict)


def located_by_replay(
    side: SideHistory, matched: MatchedFragments, deleted: Deleted
) -> tuple[dict[int, RelocatedRows], dict[int, BitMap]]:
    """Return the rows that are not where the merge base has them, and by fragment the rows that updates wrote anew.

    Raises:
        UntraceableError: A version that moved rows is gone.
    """
    # A base fragment that is not in its place was compacted, rewritten or dropped. Without stable row ids, only the
    # transactions tell where its rows are now.
    missing = any(matched.place(number) is None for number in matched.base.fragments.ids)
    if missing and side.anchor is None and not side.since:
        line = f"{side.name} is not made from the version that the change starts at"
        raise UntraceableError(f"{line}, so its rows are not known there without stable row ids")
    if missing and not side.complete:
        raise UntraceableError("rows were moved by versions that are gone, and the table has no stable row ids")
    if not side.same_ids and any(number not in matched.anchored for number in matched.base.fragments.ids):
        raise UntraceableError("rows were moved before an earlier merge, and the table has no stable row ids")
    rows = _replayed(side, matched, deleted) if side.complete else _Rows()
    relocated: dict[int, RelocatedRows] = {}
    for number, live in rows_out_of_place(matched, deleted):
        fragment = side.manifest.fragment(number)
        own = matched.base_of(number)
        addresses = rows.addresses.get(number, NOWHERE) if own is None else addresses_of(fragment, own)
        back, origins = BitMap() if own is None else live, Origins(base=addresses)
        relocated[number] = RelocatedRows(fragment=fragment, origins=origins, updated=BitMap(), back=back, live=live)
    before = {} if side.same_ids else _before_anchor(side, matched, deleted)
    # When an update is taken back, it is unknown which returning row is an older state of which row. So every
    # row of the merge base counts as rewritten, and a change of the other side to any of them is noticed.
    undone = (change for change in side.changes if change.undone and not isinstance(change.operation, Append))
    taken_back = any(change.is_merge or _updates(change) for change in undone)
    return relocated, _joined([before, rows.rewritten, _all_rows(matched.base, deleted) if taken_back else {}])


def _before_anchor(side: SideHistory, matched: MatchedFragments, deleted: Deleted) -> dict[int, BitMap]:
    """Return the rows of the merge base that the side's anchor does not have in their place.

    The side had deleted them, updated them, or moved them among rows that cannot be distinguished. A row that the merge
    base has deleted is among them where the side may have kept an update of it, by a strategy or of another branch.
    """
    absent: dict[int, BitMap] = {}
    state = side.anchor or side.manifest
    has_copies = side.anchor is None or bool(side.settled) or any(map(_brings_back, side.changes))
    for number, own in matched.anchored.items():
        before = BitMap() if has_copies else deleted(matched.base, matched.base.fragment(number))
        add_rows(absent, number, deleted(state, state.fragment(own)) - before)
    return absent


def _replayed(side: SideHistory, matched: MatchedFragments, deleted: Deleted) -> _Rows:
    anchor = side.anchor
    if anchor is None:
        return _Rows()
    # The replay uses the ids of the side's own line, which the anchor has and the merge base may not.
    replay = _Replay(matched.base, {own: number for number, own in matched.anchored.items()}, deleted)
    rows, states = _Rows(), {anchor.version: _Rows()}
    for change in side.since:
        rows = replay.after(replay.doubting(rows, change), change, states)
        if change.after is not None:
            states[change.after.version] = rows
    return rows


def _updates(change: Change) -> bool:
    """Tell whether a version may have rewritten rows, and did not merely replace some rows by others."""
    operation, transaction = change.operation, change.transaction
    claims = decode_claims(transaction.properties) if transaction is not None else ()
    # A version that claims only to append or to replace took its old rows out for good, whatever its operation. They
    # count as deleted then, and the rows it put in as inserted.
    replaces = bool(claims) and all(claim.mode in (APPEND, REPLACE) for claim in claims)
    # A merge may write columns in place and move rows at once. Then the mode says so, which pylance never does. The
    # revert of an update takes rows out and brings their older states back where they were: no fragment is new.
    again = transaction is not None and not CHANGE_ORIGIN_PROPERTIES.isdisjoint(transaction.properties)
    moves = isinstance(operation, Update) and (
        again or not operation.writes_columns or bool(operation.mode == REWRITE_ROWS and operation.new_fragments)
    )
    return moves and not replaces


def _brings_back(change: Change) -> bool:
    """Tell whether a version may insert rows again that an earlier version removed."""
    # A pick or a revert may, and a merge of a branch that kept its update of a removed row by a strategy.
    origins = () if change.transaction is None else CHANGE_ORIGIN_PROPERTIES & change.transaction.properties.keys()
    return bool(change.is_merge or origins) and not change.adds_no_copy


def _all_rows(base: Manifest, deleted: Deleted) -> dict[int, BitMap]:
    return {fragment.id: live_rows(base, fragment, deleted) for fragment in base.fragments}


def _joined(parts: Iterable[Mapping[int, BitMap]]) -> dict[int, BitMap]:
    joined: dict[int, BitMap] = {}
    for number, offsets in (pair for rows in parts for pair in rows.items()):
        joined[number] = joined.get(number, BitMap()) | offsets
    return joined


@dataclass(frozen=True, slots=True)
class _Replay:
    """Follows rows through versions, by the fragments of the merge base that fragments are in the place of."""

    base: Manifest
    origin: Mapping[int, int]
    deleted: Deleted

    def after(self, rows: _Rows, change: Change, states: Mapping[int, _Rows]) -> _Rows:
        """Return where rows are after one more version, given where they were after each before it."""
        operation, before, after = change.operation, change.before, change.after
        if before is None or after is None:
            raise UntraceableError(f"{change.version} is gone, and the table has no stable row ids")
        match operation:
            # This case comes first: a merge is recorded as Append, Update, Delete, Overwrite or Merge, whichever fits,
            # and whatever it took out may be among the rows that it put in.
            case _ if change.is_merge or _updates(change):
                taken_out = [self._taken_out(rows, number, before, after) for number in before.fragments.ids]
                return _Rows(rows.addresses, _joined([rows.rewritten, *taken_out]))
            case Rewrite():
                # Entries of the old fragments may stay, since their ids are never given again on this line.
                addresses = dict(rows.addresses)
                for group in operation.groups:
                    addresses.update(self._compacted(rows, group, before))
                return _Rows(addresses, rows.rewritten)
            case Restore() if operation.version in states:
                return states[operation.version]
            # The rows of a version before the anchor were never followed, so nothing tells where the restored rows are.
            case Restore():
                raise UntraceableError(f"{change.version} went back to before the merge base, without stable row ids")
            case Overwrite():
                return _Rows({}, rows.rewritten)
            case _:
                return rows

    def doubting(self, rows: _Rows, change: Change) -> _Rows:
        """Count rows that are gone as rewritten where a version may bring them back."""
        if change.before is None or not _brings_back(change):
            return rows
        return _Rows(rows.addresses, _joined([rows.rewritten, self._dead(rows, change.before)]))

    def _compacted(self, rows: _Rows, group: RewriteGroup, before: Manifest) -> dict[int, RowRuns]:
        if not group.moves_rows:
            return {}
        parts: list[RowRuns] = []
        rows_written = 0
        for old in group.old:
            fragment = before.fragments.find(old.id)
            if fragment is None:
                raise UntraceableError(f"a compaction names a fragment {old.id} that is not there")
            live = live_rows(before, fragment, self.deleted)
            # Live rows are written in order: the first live row is the first row written, whatever is deleted before
            # it.
            live_positions = RowRuns.itself(live).packed_positions()
            parts.append(live_positions.through(self._addresses(rows, fragment)).moved(at=rows_written))
            rows_written += len(live)
        together = RowRuns.concatenated(parts)
        # One row too many or too few would shift every address after it, and give rows the identity of other rows.
        if rows_written != sum(fragment.physical_rows for fragment in group.new):
            raise UntraceableError("a compaction wrote another number of rows than it read")
        addresses, start = {}, 0
        for fragment in group.new:
            addresses[fragment.id] = together.sliced(start, fragment.physical_rows)
            start += fragment.physical_rows
        return addresses

    def _dead(self, rows: _Rows, state: Manifest) -> dict[int, BitMap]:
        """Return the rows of the merge base, those that it has deleted too, that a state does not have."""
        alive = [
            offsets_in_base(self._addresses(rows, fragment).restricted(live_rows(state, fragment, self.deleted)))
            for fragment in state.fragments
        ]
        there = _joined(alive)
        return {
            fragment.id: BitMap(range(fragment.physical_rows)) - there.get(fragment.id, BitMap())
            for fragment in self.base.fragments
        }

    def _taken_out(self, rows: _Rows, number: int, before: Manifest, after: Manifest) -> dict[int, BitMap]:
        """Return the addresses of rows of a fragment that a version took out."""
        old, new = before.fragment(number), after.fragments.find(number)
        # Deletion files are never overwritten: the same file shows, without being read, that no row was taken out.
        if new is not None and new.deletion == old.deletion:
            return {}
        taken_out = live_rows(before, old, self.deleted)
        if new is not None:
            taken_out -= live_rows(after, new, self.deleted)
        return offsets_in_base(self._addresses(rows, old).restricted(taken_out))

    def _addresses(self, rows: _Rows, fragment: Fragment) -> RowRuns:
        if fragment.id in rows.addresses:
            return rows.addresses[fragment.id]
        if fragment.id in self.origin:
            return addresses_of(fragment, self.origin[fragment.id])
        return NOWHERE
