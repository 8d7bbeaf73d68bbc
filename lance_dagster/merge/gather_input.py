"""Gather the input of a merge: what both sides did since their merge base, and functions that read their rows.

The rules are pure, so everything they may ask of the store is handed to them as a value or as a function in `Lookups`.

Two upserts that both put in new rows contradict each other exactly where both put in a row of the same key. Which keys
these are is not recorded, since there may be millions; so the key columns of the rows that both sides wrote are read.
Two updates of a row contradict each other only where they gave a cell different values. So the rows that both sides
updated are read from both, up to `MOST_ROWS_COMPARED` of the rules; rows that differ are read from the merge base too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles import (
    Addresses,
    blob_columns,
    decoded,
    evaluate_predicate,
    matching_offsets,
    row_offsets,
    scan_fragment,
)
from lance_dagster.diff.comparison_shapes import ComparedColumn, compared_columns
from lance_dagster.diff.row_digests import digests
from lance_dagster.diff.row_matching import Flags
from lance_dagster.diff.schema_diff import Fields
from lance_dagster.diff.versioned_rows import VersionedRows
from lance_dagster.edit.key_predicates import comparable_values, predicate_of
from lance_dagster.edit.write import refuse_nested_blobs
from lance_dagster.errors import (
    CorruptFileError,
    InvalidInputError,
    LanceDagsterError,
    StoreError,
    VersionNotFoundError,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import (
    Lineage,
    lineage_of,
    row_space,
    side_history,
)
from lance_dagster.history.merge_base import is_criss_cross
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_records import claiming, picked_across
from lance_dagster.merge.picked_rows import picked_rows
from lance_dagster.merge.rules import MergeInput
from lance_dagster.merge.rules.merge_input import (
    AddressedRows,
    CompareCells,
    ComparedCells,
    EqualRows,
    LocatedRows,
    Lookups,
    Matching,
    SharedKeys,
)
from lance_dagster.merge.rules.strategy import Strategy
from lance_dagster.store import concurrently

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset


_READERS = 16


def lookups(context: TableContext) -> Lookups:
    """Return the functions that read what manifests do not hold: deletions, keys and values of rows."""
    # Several rules ask for the deletions of the same fragment, and each read of a file is a request.
    deletions: dict[tuple[int, int, int, int], BitMap] = {}

    def deleted(manifest: Manifest, fragment: Fragment) -> BitMap:
        if fragment.deletion is None:
            return BitMap()
        # The id is random, so two versions that name it mean the same file, even through different base paths. The
        # base path is therefore not part of the cache key.
        deletion = fragment.deletion
        file = (fragment.id, deletion.id, deletion.read_version, deletion.deleted_rows)
        if file not in deletions:
            with _still_there(context, manifest):
                deletions[file] = deleted_offsets(context.versions, state_of(manifest), fragment)
        # A bitmap is mutable: a caller that changed the cached one would change what later callers read.
        return deletions[file].copy()

    def ahead(fragments: Sequence[tuple[Manifest, Fragment]]) -> None:
        if "://" in context.uri:
            concurrently(lambda pair: deleted(*pair), fragments, at_once=_READERS)
        # A small local file is read in less time than it takes to hand the work to a thread.

    # Rows are located by their deletion vectors, so those files were decoded before.
    def keys(source: LocatedRows, dest: LocatedRows, columns: Sequence[tuple[str, str, str]]) -> SharedKeys:
        with _still_there(context, source[0], dest[0]):
            of_source, of_dest = ((context.dataset(state_of(manifest), ()), rows) for manifest, rows in (source, dest))
            return shared_keys(of_source, of_dest, columns)

    return Lookups(
        deleted=deleted,
        matching=_matching(context),
        ahead=ahead,
        shared_keys=keys,
        equal_rows=_comparing(context),
        compare_cells=_comparing_cells(context),
    )


@contextmanager
def _still_there(context: TableContext, *manifests: Manifest) -> Iterator[None]:
    """Tell a version that was cleaned up after it was read from a failed store or a damaged file.

    Raises:
        VersionNotFoundError: One of the versions is gone, and with it all versions that were read are forgotten.
    """
    try:
        yield
    except (CorruptFileError, StoreError) as error:
        for state in map(state_of, manifests):
            if context.versions.find(state.branch, state.number, fresh=True) is None:
                raise VersionNotFoundError(f"{state} of {context.uri} was cleaned up after it was read") from error
        raise


def _matching(context: TableContext) -> Matching:
    def matching(
        manifest: Manifest, fragment_ids: Iterable[int], predicate: str, names: Mapping[str, str] | None
    ) -> Mapping[int, BitMap]:
        numbers = list(fragment_ids)
        with _still_there(context, manifest):
            # Under other names of columns the predicate is about other columns than those of this version.
            known = context.known_matches(state_of(manifest), predicate) if names is None else None
            if known is not None:
                possible = frozenset(known.fragments)
                numbers = [number for number in numbers if number in possible]
                if not numbers:
                    return {}
            dataset = context.dataset(state_of(manifest), numbers)
            if names is None:
                return matching_offsets(dataset, predicate, numbers)
            return matching_renamed(dataset, predicate, numbers, names)

    return matching


def _comparing(context: TableContext) -> EqualRows:
    compared: dict[tuple[object, ...], Flags] = {}

    def equal(source: AddressedRows, dest: AddressedRows, matched: Mapping[int, int]) -> Flags:
        # Before a merge is refused it is planned under several strategies, which ask for the same rows.
        versions = [(manifest.branch, manifest.version) for manifest, _ in (source, dest)]
        request = *versions, source[1].tobytes(), dest[1].tobytes(), tuple(sorted(matched.items()))
        if request not in compared:
            before = VersionedRows(context, state_of(source[0]), after=False), source[1]
            after = VersionedRows(context, state_of(dest[0]), after=True), dest[1]
            with _still_there(context, source[0], dest[0]):
                compared[request] = equal_rows(before, after, matched)
        return compared[request]

    return equal


def _comparing_cells(context: TableContext) -> CompareCells:
    compared: dict[tuple[bytes, ...], ComparedCells | None] = {}

    def compare(*versions: AddressedRows) -> ComparedCells | None:
        # One `Lookups` serves one base, source and dest, so the addresses alone identify a request.
        request = tuple(addresses.tobytes() for _, addresses in versions)
        if request not in compared:
            sides = [
                (VersionedRows(context, state_of(manifest), after=True), addresses) for manifest, addresses in versions
            ]
            with _still_there(context, *(manifest for manifest, _ in versions)):
                compared[request] = compared_cells(*sides)
        return compared[request]

    return compare


def lineage_at(context: TableContext, state: State) -> Lineage:
    """Return what a version contains."""
    lineage = lineage_of(state, context.refs)
    # Under the id of its branch, the version is found again without a request.
    context.versions.cached.put(lineage.id, state)
    return lineage


def gather_merge_input(
    context: TableContext, source: Lineage, dest: Lineage, bases: Sequence[Lineage], *, strategy: Strategy
) -> MergeInput:
    """Gather the input of a merge from its merge bases and both sides."""
    first, *others = (_from_base(context, (source, dest), base, bases, strategy=strategy) for base in bases)
    return replace(first, other_bases=tuple(others))


def _from_base(
    context: TableContext,
    sides: tuple[Lineage, Lineage],
    base: Lineage,
    bases: Sequence[Lineage],
    *,
    strategy: Strategy,
) -> MergeInput:
    source, dest = sides
    source_side = side_history(source, dest, base, context.versions)
    dest_side = side_history(dest, source, base, context.versions)
    # A pick inserts rows of another version without making that version a parent. As after crossing merges, both
    # sides can then have rows that their merge base lacks.
    picked = picked_across(source_side.changes, dest, base) or picked_across(dest_side.changes, source, base)
    source_changes, dest_changes = source_side.changes, dest_side.changes
    space, reading = row_space(base, context.versions), lookups(context)
    of_source, of_dest = (source, source_side), (dest, dest_side)
    others = [(row_space(each, context.versions), each.state.manifest) for each in bases if each is not base]
    own = picked_rows(context, (of_source, of_dest), space, reading.deleted, other_bases=others)
    of_other = picked_rows(context, (of_dest, of_source), space, reading.deleted, other_bases=others)
    # A change that both sides have must not claim anything: it would conflict with its own copy. Where the other side
    # has its rows no more, there is no copy.
    source_changes, dest_changes = (
        claiming(source_changes, source, dest_changes, dest, inserted_anew=own.inserted_by),
        claiming(dest_changes, dest, source_changes, source, inserted_anew=of_other.inserted_by),
    )
    source_side, dest_side = replace(source_side, changes=source_changes), replace(dest_side, changes=dest_changes)
    return MergeInput(
        base=base.state.manifest,
        space=space,
        source=source_side,
        dest=dest_side,
        lookups=reading,
        strategy=strategy,
        crosswise=picked or is_criss_cross(source, dest, base),
        inserted=(own.returning, of_other.returning),
        # Where the source picked rows that the dest deleted, it is unknown whether that was in spite of the deletion.
        updated=RowRuns(own.deleted.at, own.deleted.count, own.deleted.at),
    )


def state_of(manifest: Manifest) -> State:
    """Return a version by its manifest, without its transaction."""
    return State(manifest.branch or MAIN, manifest, None)


LocatedRow = tuple[VersionedRows, Addresses]
"""A version, and addresses of rows of it."""


def shared_keys(
    source: "tuple[LanceDataset, Mapping[int, BitMap]]",
    dest: "tuple[LanceDataset, Mapping[int, BitMap]]",
    names: Sequence[tuple[str, str, str]],
) -> SharedKeys:
    """Return the rows whose key occurs among the given rows of both versions; a null key matches nothing.

    Args:
        source: A version, and rows of it by fragment.
        dest: The other version, and rows of it by fragment.
        names: The columns of the key: for each its name in the condition, in the first version and in the second
            version.

    Raises:
        InvalidInputError: One version does not have a column of the key, or its values cannot be compared.
    """
    columns = [name for name, _, _ in names]
    source_rows = _Keyed(*source, {name: there for name, there, _ in names})
    dest_rows = _Keyed(*dest, {name: there for name, _, there in names})
    try:
        of_source, of_dest = source_rows.among(dest_rows), dest_rows.among(source_rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"the keys {', '.join(columns)} of both versions cannot be compared") from error
    # Sorted keys give the same condition whatever the order of the rows in their fragments.
    keys = source_rows.keys.take(of_source).select(columns).sort_by([(name, "ascending") for name in columns])
    condition = predicate_of(keys, columns) if len(of_source) else None
    on = tuple(there for _, _, there in names)
    return SharedKeys(
        source=source_rows.rows_at(of_source), dest=dest_rows.rows_at(of_dest), condition=condition, on=on
    )


def matching_renamed(
    dataset: "LanceDataset", predicate: str, fragment_ids: Iterable[int], names: Mapping[str, str]
) -> dict[int, BitMap]:
    """Return the offsets of the live rows that match a predicate which has other names for columns, by fragment.

    Args:
        dataset: The version.
        predicate: The predicate.
        fragment_ids: The fragments to search.
        names: By the name in the predicate, the name of a column in the version. The predicate may name no others.

    Raises:
        InvalidInputError: The predicate names another column.
    """
    offsets_by_fragment: dict[int, BitMap] = {}
    for number in fragment_ids:
        for part in scan_fragment(dataset, number, list(dict.fromkeys(names.values()))):
            # Without a column, an Arrow table does not know how many rows it has.
            rows = pa.table({"_": pa.nulls(len(part.addresses))})
            for name, there in names.items():
                rows = rows.append_column(name, part.rows.column(there))
            offsets = row_offsets(part.addresses[evaluate_predicate(predicate, rows)])
            if len(offsets):
                offsets_by_fragment.setdefault(number, BitMap()).update(offsets.tolist())
    return offsets_by_fragment


def equal_rows(source: LocatedRow, dest: LocatedRow, matched: Mapping[int, int]) -> Flags:
    """Tell which rows have the same values in two versions, in the columns that both have.

    Values are compared as `diff` compares them. Where they cannot be compared or read, the rows count as different: the
    merge is refused then as if they had not been compared.

    Args:
        source: A version, and the addresses of rows.
        dest: The other version, and the addresses of the same rows, in the same order.
        matched: By the id of a field of the source, the id of the same field on the dest.
    """
    (before, olds), (after, news) = source, dest
    fields = Fields.of(before.state.manifest.fields), Fields.of(after.state.manifest.fields)
    columns, refused = compared_columns(*fields, matched)
    different = np.zeros(len(olds), np.bool_)
    # A column whose values cannot be compared may differ, so no row counts as equal.
    if refused or not columns:
        return different
    try:
        old_digests, new_digests = before.digests(olds, columns)[0], after.digests(news, columns)[0]
    except (LanceDagsterError, OSError):
        return different
    equal: Flags = np.all(old_digests == new_digests, axis=1)
    return equal


def compared_cells(base: LocatedRow, source: LocatedRow, dest: LocatedRow) -> ComparedCells | None:
    """Compare the cells of rows in three versions that have the same columns.

    Args:
        base: The merge base, and the addresses of rows.
        source: The source, and the addresses of the same rows, in the same order.
        dest: The dest, likewise.

    Returns:
        None where values cannot be compared or read, or where they cannot be written again: blobs.
    """
    state = dest[0].state
    fields = Fields.of(state.manifest.fields)
    columns, refused = compared_columns(fields, fields, {number: number for number in fields.by_id})
    names = [column.after for column in columns]
    try:
        if refused or blob_columns(state.schema):
            return None
        refuse_nested_blobs(state, "merge")
        before, of_source, of_dest = (_cell_digests(rows.take(at, names), columns) for rows, at in (base, source, dest))
    except (LanceDagsterError, OSError):
        return None
    pairs = (before, of_source), (before, of_dest), (of_source, of_dest)
    changed = [np.any(earlier != later, axis=2) for earlier, later in pairs]
    return ComparedCells(columns=tuple(names), source=changed[0], dest=changed[1], apart=changed[2])


def _cell_digests(
    rows: pa.Table, columns: Sequence[ComparedColumn]
) -> "np.ndarray[tuple[int, int, int], np.dtype[np.uint64]]":
    """Return a digest for each row and column, of two numbers."""
    digests_by_column = [
        digests([(decoded(rows.column(column.after)).combine_chunks(), column.shape)], after=True) for column in columns
    ]
    return np.stack(digests_by_column, axis=1)


class _Keyed:
    """Rows of a version with their keys."""

    def __init__(self, dataset: "LanceDataset", rows: Mapping[int, BitMap], columns: Mapping[str, str]) -> None:
        """Read the key columns, which are given by the name in the key and the name in the version."""
        names = list(columns.values())
        missing = [name for name in names if name not in dataset.schema.names]
        if missing:
            raise InvalidInputError(f"{dataset.uri} has no column {', '.join(missing)}")
        parts = [part for number, offsets in rows.items() for part in scan_fragment(dataset, number, names, offsets)]
        # pyarrow cannot concatenate an empty list of tables.
        empty = pa.schema([dataset.schema.field(name) for name in names]).empty_table()
        together = pa.concat_tables([part.rows.select(names) for part in parts]) if parts else empty
        values = {name: comparable_values(together.column(there), name) for name, there in columns.items()}
        self._columns = list(columns)
        self._addresses = np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)])
        # The number of each row goes through the join beside the key, under a name that no column of the key has.
        self._place = "_".join(("place", *columns))
        self.keys = pa.table({**values, self._place: pa.array(np.arange(together.num_rows))})

    def among(self, other_rows: "_Keyed") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """Return the places of the rows whose key another version's rows have."""
        there = other_rows.keys.select(self._columns).group_by(self._columns).aggregate([])
        # A null matches nothing in a join, so rows without a key share none.
        matches = self.keys.join(there, keys=self._columns, join_type="left semi", use_threads=False)
        return np.sort(matches.column(self._place).to_numpy())

    def rows_at(self, places: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> dict[int, BitMap]:
        """Return rows by fragment, given their places."""
        addresses = self._addresses[places]
        # The upper half of an address is the fragment id, the lower half the offset.
        fragments, offsets = addresses >> np.uint64(32), addresses & np.uint64(0xFFFFFFFF)
        return {int(number): BitMap(offsets[fragments == number].tolist()) for number in np.unique(fragments)}
