"""One side of a merge, and everything that is derived from it: fragments, row changes, columns, what it wrote.

Invariants: nothing in here depends on the strategy, so one `MergeSide` serves however often the rules are asked with
other strategies; and everything is computed at most once, when it is asked for the first time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property

import numpy as np
from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.evolution import subtree
from lance_dagster.format.file_versions import takes_nulls
from lance_dagster.format.layout import MAIN
from lance_dagster.format.logical_types import NULL
from lance_dagster.format.model import Field, Manifest
from lance_dagster.format.row_runs import RowRuns, U64Array, elements
from lance_dagster.format.transaction import Rewrite
from lance_dagster.merge.rules.columns.column_matching import (
    SideColumns,
    backing,
    cast_fields,
    cast_in_one_version,
    columns_of,
    paths_of,
)
from lance_dagster.merge.rules.merge_input import Lookups, MergeInput
from lance_dagster.merge.rules.relocated_rows import (
    Identities,
    anchor_may_differ,
    located_by_ids,
    located_by_replay,
    rows_came_again,
    updates_show_in_stamps_only,
)
from lance_dagster.merge.rules.row_changes import (
    FragmentRowChanges,
    MatchedFragments,
    RowChanges,
    differing_fragments,
    live,
    live_rows,
    match_fragments,
    row_ids_of,
)
from lance_dagster.merge.rules.row_origins import OFFSET_BITS, AbsentRows, BaseKey, BaseRows
from lance_dagster.merge.rules.strategy import Rows, add_rows
from lance_dagster.transactions.claims import Change, Claim, SideHistory

MOST_ROWS_COMPARED = 10_000
"""The maximum of rows that are read to find out which are equal. Where there are more, all count as different."""


class MergeSide:
    """The source or the dest of a merge, compared with the merge base."""

    def __init__(
        self,
        history: SideHistory,
        *,
        is_source: bool,
        base: Manifest,
        lookups: Lookups,
        identities: Callable[[], Identities],
        settled_apart: bool,
    ) -> None:
        """Keep the arguments; every property is computed at its first use.

        Args:
            history: What the side did.
            is_source: Whether it is the source.
            base: The merge base.
            lookups: The functions that read what manifests do not hold.
            identities: Returns what the side's row ids mean, which is computed from both sides.
            settled_apart: Whether both sides merged the other side by a strategy.
        """
        self.history, self.is_source, self.base, self.lookups = history, is_source, base, lookups
        self.name, self.manifest = history.name, history.manifest
        self._identities, self._settled_apart = identities, settled_apart
        self._undone: dict[str, bool] = {}

    @property
    def branch(self) -> str:
        """The name of its branch."""
        return self.manifest.branch or MAIN

    @cached_property
    def fragments(self) -> MatchedFragments:
        """The fragments of the side, matched with those of the merge base."""
        return match_fragments(self.base, self.history)

    @cached_property
    def rows(self) -> RowChanges:
        """The changes of the side to the rows of the merge base.

        Raises:
            UntraceableError: The rows can no longer be located.
        """
        deleted = self.lookups.deleted
        if self.manifest.stable_row_ids:
            settled_apart = self._settled_apart
            rows = located_by_ids(
                self._identities(), self.history, self.fragments, deleted, settled_apart=settled_apart
            )
            return RowChanges(self.fragments, deleted, rows)
        return RowChanges(self.fragments, deleted, *located_by_replay(self.history, self.fragments, deleted))

    @cached_property
    def columns(self) -> SideColumns:
        """The columns of the side, matched with those of the merge base."""
        return columns_of(self.base, self.history, self.fragments)

    @cached_property
    def casts(self) -> tuple[str, ...]:
        """The paths of columns whose type it changed, as the merge base has them."""
        paths = paths_of(self.base.fields)
        return tuple(sorted({paths[number] for number in self.cast_fields}))

    @cached_property
    def cast_fields(self) -> dict[int, int]:
        """Each column whose type it changed, by its id in the merge base, with the id of the field added for it."""
        return cast_fields(self.columns, self.base, self.history)

    @cached_property
    def untyped(self) -> frozenset[int]:
        """The columns of the merge base, by their ids there, of type null: they hold no value, and fit any type."""
        return frozenset(field.id for field in self.base.fields if field.logical_type == NULL)

    @cached_property
    def replaced_fields(self) -> frozenset[int]:
        """The cast columns, by their ids in the merge base, that it dropped to give their names to other columns."""
        if any(change.before is None or change.after is None for change in self.history.changes):
            # A version that is gone may have cast the column.
            return frozenset()
        return frozenset(self.cast_fields.keys() - cast_in_one_version(self.columns, self.base, self.history).keys())

    def cast_of(self, number: int) -> int | None:
        """Return the column of the merge base, by its id there, that a field of this side is a cast of."""
        return next((base_id for base_id, own in self.cast_fields.items() if own == number), None)

    @cached_property
    def written(self) -> Rows:
        """The rows it inserted or gave new values, by its fragments."""
        return {number: offsets for number, relocated in self.rows.relocated.items() if (offsets := relocated.written)}

    @cached_property
    def removed(self) -> Rows:
        """The rows of the merge base that it does not have any more, by their fragments there."""
        removed: dict[int, BitMap] = {}
        for number in self.fragments.changed:
            live = live_rows(self.base, self.base.fragment(number), self.lookups.deleted)
            add_rows(removed, number, live - self.rows.of(number).alive)
        return removed

    @cached_property
    def columns_changed(self) -> bool:
        """Whether the side changed its schema, or values beside rows that stay where they are."""
        now = {field.id: field for field in self.manifest.fields}
        # Ids are compared through the columns of the merge base, since another line may have given a column another id.
        own_fields = [now.get(self.columns.ids.get(field.id, -1)) for field in self.base.fields]
        same = len(now) == len(own_fields) and all(
            own is not None and (own.name, own.nullable, own.logical_type) == (was.name, was.nullable, was.logical_type)
            for own, was in zip(own_fields, self.base.fields, strict=True)
        )
        return bool(self.columns.filled) or not same

    @property
    def has_columns_of_base(self) -> bool:
        """Whether the side has the columns of the merge base and no others, in any order and whatever their ids are."""
        if self.manifest.fields == self.base.fields:
            return True
        before, after = paths_of(self.base.fields), paths_of(self.manifest.fields)
        same = {after.get(self.columns.ids.get(number, -1)) == path for number, path in before.items()}
        return same == {True} and _by_column(self.manifest) == _by_column(self.base)

    @cached_property
    def claims(self) -> tuple[tuple[Change, Claim], ...]:
        """The claims of its changes, each with the change that made it."""
        return tuple((change, claim) for change in self.history.changes for claim in change.claims)

    def has_nothing_of(self, change: Change) -> bool:
        """Tell whether the rows that a version of the side put in are gone, and the rows that it took out are back.

        A version that put in and took out none is not meant: it may say that there are no rows.
        """
        # Every claim of the other side asks for the same versions.
        if change.version not in self._undone:
            self._undone[change.version] = self._has_nothing_of(change)
        return self._undone[change.version]

    def _has_nothing_of(self, change: Change) -> bool:
        before, after, deleted = change.before, change.after, self.lookups.deleted
        if not self.manifest.stable_row_ids or before is None or after is None or not after.next_row_id:
            return False
        ids = RowRuns.one(0, after.next_row_id, 0)
        earlier = live(before, ids, deleted, differing_fragments(before, after))
        has = live(after, ids, deleted, differing_fragments(after, before))
        put, taken_out = has.without(earlier), earlier.without(has)
        now = live(self.manifest, RowRuns.set_of([put, taken_out]), deleted)
        return bool(len(put) or len(taken_out)) and not len(now.where_in(put)) and not len(taken_out.without(now))

    @cached_property
    def added_by(self) -> Mapping[int, Change]:
        """The version of its own line that added each of its fragments, without versions that only moved rows there."""
        adders: dict[int, Change] = {}
        for change in self.history.since:
            if change.before is not None and change.after is not None and not isinstance(change.operation, Rewrite):
                new = set(change.after.fragments.ids) - set(change.before.fragments.ids)
                adders |= dict.fromkeys(new, change)
        return adders

    @property
    def hides_filled_columns(self) -> bool:
        """Whether the changes of the side since the merge base do not show which columns it filled."""
        # A revert goes from a version to its parent: a column comes back with all its values, wherever the rows are.
        if self.is_source:
            return any(change.undone for change in self.history.changes)
        return not self.history.same_ids

    @cached_property
    def made_required(self) -> dict[int, str]:
        """The paths, by id, of columns that are nullable in the merge base and not nullable on this side."""
        own, paths = {field.id: field for field in self.manifest.fields}, paths_of(self.base.fields)
        return {
            field.id: paths[field.id]
            for field in self.base.fields
            if field.nullable and (now := self.columns.ids.get(field.id)) is not None and not own[now].nullable
        }

    @cached_property
    def new_required(self) -> tuple[str, ...]:
        """The names of columns it added that may not be null: rows it did not write have no values there."""
        base_ids = self.columns.base_ids
        return tuple(
            field.name
            for field in self.manifest.fields
            if field.id not in base_ids and field.parent_id < 0 and not takes_nulls(field, self.manifest.file_version)
        )

    def backed(self, number: BaseKey, rows: BitMap) -> set[int]:
        """Return the fields, by the side's ids, that have values for rows which left a fragment of the merge base."""
        holders = self.rows.holders(number, rows) if rows else {}
        return {own for holder in holders for own in backing(self.rows.relocated[holder].fragment)}

    def backed_for_all(self, number: BaseKey, rows: BitMap) -> set[int]:
        """Return the fields, by the side's ids, that have values in every fragment to which some rows were moved.

        Args:
            number: The fragment of the merge base that the rows were moved from.
            rows: The rows, as offsets in it.
        """
        holders = self.rows.holders(number, rows) if rows else {}
        field_sets = [set(backing(self.rows.relocated[holder].fragment)) for holder in holders]
        return set.intersection(*field_sets) if field_sets else set()

    def may_lack_columns(self, number: BaseKey, changes: FragmentRowChanges) -> bool:
        """Tell whether rows of a fragment of the merge base may lack columns that the side wrote beside others."""
        fields = self.columns.filled_by_fragment.get(None, frozenset())
        if not fields or isinstance(number, AbsentRows) or changes.rewritten:
            return bool(fields)
        # The fields were written in fragments that the merge base lacks, which have none of these rows then.
        away = changes.moved | changes.updated
        if not away:
            return False
        # A column that the merge base lacks has values only where the side wrote some.
        filled = fields - self.columns.base_ids.keys()
        filled &= self.backed_for_all(number, away)
        if changes.place is not None and changes.stays:
            filled &= backing(changes.place).keys()
        return filled != fields

    @property
    def shares_rows(self) -> bool:
        """Whether the row ids say that both sides have rows that the merge base does not have."""
        return bool(self._identities().shared.stretches)

    def ever_had(self, number: BaseKey, offsets: BitMap) -> bool:
        """Tell whether the side had some rows of a fragment of the merge base at any time.

        A change that is picked starts from a version the dest does not contain, so its rows may be unknown there.
        """
        fragment = None if isinstance(number, AbsentRows) else self.base.fragments.find(number)
        if fragment is None:
            return True
        if not self.base.stable_row_ids:
            return number in self.fragments.anchored
        ids = row_ids_of(fragment, "the merge base")
        return bool(len(ids.restricted(offsets).through(self._identities().base.back.runs)))

    def of(self, number: BaseKey) -> FragmentRowChanges:
        """Return what became of the rows of one fragment of the merge base."""
        return self.rows.of(number)

    @cached_property
    def may_only_have_moved(self) -> bool:
        """Whether a row that counts as updated may have the values that it has in the merge base."""
        tests = anchor_may_differ, updates_show_in_stamps_only, rows_came_again
        return self.manifest.stable_row_ids and any(test(self.history) for test in tests)

    def same_as_base(self, rows: BaseRows) -> BaseRows:
        """Return the updated rows whose values are the same as in the merge base.

        Rows are read only where a row that counts as updated may only have been moved, and only if there are at most
        `MOST_ROWS_COMPARED` rows. Rows that cannot be compared are not returned.
        """
        equal = self.lookups.equal_rows
        # A cast gives a column another id, so that its values would not be compared.
        if equal is None or self.casts or not self.may_only_have_moved:
            return {}
        candidates: dict[BaseKey, BitMap] = {}
        for key, offsets in rows.items():
            fragment = None if isinstance(key, AbsentRows) else self.base.fragments.find(key)
            if fragment is not None:
                changes = self.of(key)
                updated = offsets & (changes.updated - changes.in_place)
                add_rows(candidates, key, updated & live_rows(self.base, fragment, self.lookups.deleted))
        for key in [key for key, offsets in candidates.items() if self._has_unknown_values(key, offsets)]:
            del candidates[key]
        if not 0 < sum(map(len, candidates.values())) <= MOST_ROWS_COMPARED:
            return {}
        before = [
            elements(offsets).astype(np.uint64) + np.uint64(key << OFFSET_BITS)
            for key, offsets in candidates.items()
            if not isinstance(key, AbsentRows)
        ]
        after = [self.addresses(key, offsets) for key, offsets in candidates.items()]
        flags = equal((self.base, np.concatenate(before)), (self.manifest, np.concatenate(after)), self.columns.ids)
        return picked_rows(candidates, flags)

    def without_only_moved(self, rows: Rows) -> Rows:
        """Return rows of the side without updated rows that have the values of the merge base."""
        if not rows or not self.may_only_have_moved:
            return rows
        updated: dict[BaseKey, BitMap] = {}
        for number, offsets in rows.items():
            relocated = self.rows.relocated[number]
            for key, there in relocated.in_base(offsets & relocated.updated).items():
                add_rows(updated, key, there)
        remaining = dict(rows)
        for key, same in self.same_as_base(updated).items():
            for number, here in self.rows.holders(key, same).items():
                remaining[number] = remaining.get(number, BitMap()) - here
        return {number: offsets for number, offsets in remaining.items() if offsets}

    def _has_unknown_values(self, number: BaseKey, rows: BitMap) -> bool:
        """Tell whether rows may have values in columns added since the merge base, other than values of a known fill.

        If such rows counted as moved, these values would be lost where the rows are taken from the other side.
        """
        filled = self.columns.written_beside(None if isinstance(number, AbsentRows) else number)
        return bool(self.backed(number, rows) - self.columns.base_ids.keys() - self.columns.nulls - filled)

    def addresses(self, key: BaseKey, rows: BitMap) -> U64Array:
        """Return the addresses that relocated rows of a fragment of the merge base have here, in their order there."""
        offsets = elements(rows)
        addresses = np.zeros(len(offsets), np.uint64)
        for number in self.rows.numbers_by_key.get(key, ()):
            there, here = self.rows.relocated[number].pairs(key, rows)
            # The rows of one base fragment may lie in several fragments of the side. Each address gets the rank that
            # its row has in the merge base, so that the same rows of two versions are compared pairwise.
            addresses[np.searchsorted(offsets, there)] = here + np.uint64(number << OFFSET_BITS)
        return addresses

    def addresses_of_all(self, key: BaseKey, rows: BitMap) -> U64Array:
        """Return the addresses that rows of a fragment of the merge base have here, wherever they lie, in order."""
        addresses, offsets, changes = self.addresses(key, rows), elements(rows), self.of(key)
        if changes.place is not None:
            stays = np.isin(offsets, elements(changes.stays & rows))
            addresses[stays] = offsets[stays] + np.uint64(changes.place.id << OFFSET_BITS)
        return addresses

    def nulls(self, number_in_base: int) -> Rows:
        """Return the rows it inserted or gave new values that have no value in a column, by its fragments."""
        candidates = dict(self.written)
        path = self.path_of(number_in_base)
        if path is not None and self._filled(number_in_base):
            # Any row may have got its value where it is, and may have moved since.
            candidates = {fragment.id: BitMap(range(fragment.physical_rows)) for fragment in self.manifest.fragments}
        # Where it dropped the column, a strategy may keep it, and rows of the side are null there.
        if not candidates or path is None:
            return candidates
        quoted = ".".join(f"`{name}`" for name in path.split("."))
        try:
            matching = self.lookups.matching(self.manifest, candidates, f"{quoted} IS NULL", None)
        except InvalidInputError:
            # The type does not support the predicate: any row may be null.
            return candidates
        return {number: nulls for number, offsets in matching.items() if (nulls := candidates[number] & offsets)}

    def path_of(self, number_in_base: int) -> str | None:
        """Return the path that a column of the merge base has on the side; None where the side dropped it."""
        own = self.columns.ids.get(number_in_base, self.cast_fields.get(number_in_base))
        return None if own is None else paths_of(self.manifest.fields)[own]

    def _filled(self, number: int) -> bool:
        """Tell whether values of a column of the merge base were written beside rows since."""
        top = next((field for field in self.manifest.fields if field.id == self.columns.ids.get(number)), None)
        return top is not None and any(field.id in self.columns.filled for field in subtree(self.manifest.fields, top))


def _by_column(manifest: Manifest) -> dict[str, list[Field]]:
    """Return the fields of each column without their ids, in the order in which they are inside of it."""
    fields_by_column: dict[str, list[Field]] = {}
    inside: list[Field] = []
    # Fields are listed depth-first, so those inside of a column follow it.
    for field in manifest.fields:
        if field.parent_id < 0:
            inside = fields_by_column.setdefault(field.name, [])
        inside.append(replace(field, id=0, parent_id=min(field.parent_id, 0)))
    return fields_by_column


def picked_rows(rows: BaseRows, flags: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> BaseRows:
    """Return the rows whose flag is set; the flags are in the order of the rows."""
    picked, start = dict[BaseKey, BitMap](), 0
    for key, offsets in rows.items():
        add_rows(picked, key, BitMap(elements(offsets)[flags[start : start + len(offsets)]].tolist()))
        start += len(offsets)
    return picked


def sides_of(merge_input: MergeInput) -> tuple[MergeSide, MergeSide]:
    """Return the source and the dest of a merge."""

    @cache
    def identities() -> tuple[Identities, Identities]:
        # Which rows the sides share follows from the row ids of both, so this is computed once for the two.
        spaces = merge_input.space, merge_input.source.space, merge_input.dest.space
        return Identities.of_both(*spaces, inserted=merge_input.inserted, updated=merge_input.updated)

    def side(place: int) -> MergeSide:
        return MergeSide(
            (merge_input.source, merge_input.dest)[place],
            is_source=place == 0,
            base=merge_input.base,
            lookups=merge_input.lookups,
            identities=lambda: identities()[place],
            settled_apart=bool(merge_input.source.settled and merge_input.dest.settled),
        )

    return side(0), side(1)


def absent_from_base(source: MergeSide, dest: MergeSide) -> Iterable[AbsentRows]:
    """Return the keys of rows that the merge base does not have, and that may be on both sides."""
    if not source.base.stable_row_ids:
        return ()
    absent = source.rows.absent()
    # The dest's rows are looked up only when the source has such rows, or the row ids say that there are some.
    return absent | dest.rows.absent() if absent or source.shares_rows else ()
