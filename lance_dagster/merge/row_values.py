"""Read values of rows of two versions, which a merge needs and manifests do not contain.

Two upserts that both put in new rows contradict each other exactly where both put in a row of the same key. Which keys
these are is not recorded, since there may be millions; so the key columns of the rows that both sides wrote are read.

Two updates of a row contradict each other only where they gave a cell different values. So the rows that both sides
updated are read from both, up to `MOST_ROWS_COMPARED` of the rules; rows that differ are read from the merge base too,
and compared cell by cell.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles import Addresses, blob_columns, decoded, evaluate_predicate, row_offsets, scan_fragment
from lance_dagster.diff.comparison_shapes import ComparedColumn, compared_columns
from lance_dagster.diff.row_digests import digests
from lance_dagster.diff.row_matching import Flags
from lance_dagster.diff.schema_diff import Fields
from lance_dagster.diff.versioned_rows import VersionedRows
from lance_dagster.edit.key_predicates import comparable_values, predicate_of
from lance_dagster.edit.write import refuse_nested_blobs
from lance_dagster.errors import InvalidInputError, LanceDagsterError
from lance_dagster.merge.rules.merge_input import ComparedCells, SharedKeys

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset

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
