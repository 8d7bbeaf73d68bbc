"""Gather the input of a merge: what both sides did since their merge base, and functions that read their rows.

The rules are pure, so everything they may ask of the store is handed to them as a value or as a function in `Lookups`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from pyroaring import BitMap

from lance_dagster.datafiles import matching_offsets
from lance_dagster.diff.row_matching import Flags
from lance_dagster.diff.versioned_rows import VersionedRows
from lance_dagster.errors import CorruptFileError, StoreError, VersionNotFoundError
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
from lance_dagster.merge.row_values import compared_cells, equal_rows, matching_renamed, shared_keys
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

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_FEW, _READERS, _PARTS_EACH = 4, 16, 2


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
            in_parallel(lambda pair: deleted(*pair), fragments, _READERS)
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


def in_parallel(run: Callable[[_Item], _Result], items: Sequence[_Item], workers: int) -> list[_Result]:
    """Run a function on many items, each of which may take requests; return the results in order.

    Sent one after the other, the requests for a thousand fragments would take a minute. A thread gets many items at a
    time: on a local disk, handing over an item takes as long as the work on it.
    """
    if workers == 1 or len(items) <= _FEW:
        return [run(item) for item in items]
    size = -(-len(items) // (_PARTS_EACH * workers))
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(workers) as pool:
        return [result for part in pool.map(lambda part: [run(item) for item in part], parts) for result in part]


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
    first, *others = (_from_base(context, source, dest, base, strategy=strategy) for base in bases)
    return replace(first, other_bases=tuple(others))


def _from_base(
    context: TableContext, source: Lineage, dest: Lineage, base: Lineage, *, strategy: Strategy
) -> MergeInput:
    source_side = side_history(source, dest, base, context.versions)
    dest_side = side_history(dest, source, base, context.versions)
    # A pick inserts rows of another version without making that version a parent. As after crossing merges, both
    # sides can then have rows that their merge base lacks.
    picked = picked_across(source_side.changes, dest, base) or picked_across(dest_side.changes, source, base)
    source_changes, dest_changes = source_side.changes, dest_side.changes
    space, reading = row_space(base, context.versions), lookups(context)
    of_source, of_dest = (source, source_side), (dest, dest_side)
    own = picked_rows(context, (of_source, of_dest), space, reading.deleted)
    of_other = picked_rows(context, (of_dest, of_source), space, reading.deleted)
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
