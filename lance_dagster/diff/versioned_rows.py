"""Read rows of one of two compared versions: their values, digests and row ids.

Rows are given as offsets by fragment, in bitmaps that store ranges as ranges. Where they become single elements, the
number of rows that the manifest claims is held against the data files first. A manifest of a kilobyte can claim
billions of rows; the true number is at the end of each data file, which costs one read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles import (
    Addresses,
    count_physical_rows,
    decoded,
    group_by_fragment,
    offsets_by_fragment,
    projected_schema,
    row_offsets,
    scan_fragment,
    take_rows,
)
from lance_dagster.diff.comparison_shapes import ComparedColumn
from lance_dagster.diff.row_digests import Digests, digests, nulls
from lance_dagster.diff.row_matching import Flags
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import U64Array, decode_row_runs
from lance_dagster.format.model import Fragment
from lance_dagster.format.row_runs import RowRuns, elements
from lance_dagster.history.context import TableContext
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.versions import State

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset
from lance_dagster.datafiles import ExpectedFile, read_shapes
from lance_dagster.format.model import LEGACY_FILE_VERSION
from lance_dagster.history.context import expected_file
from lance_dagster.history.versions import Versions

OFFSET_BITS = 32
RowOffsets = Mapping[int, BitMap]
"""Rows of a version: their offsets by fragment id, none of them empty."""
NO_ADDRESSES: Addresses = np.empty(0, np.uint64)


class VersionedRows:
    """The rows of one of two compared versions; `after` is True for the newer version."""

    def __init__(self, parts: TableContext, state: State, *, after: bool) -> None:
        """Take the version; nothing is read yet."""
        self._context = parts
        self._after = after
        self.state = state

    @cached_property
    def dataset(self) -> "LanceDataset":
        """The version as a pylance dataset."""
        # The rows of a fragment are read only where they are live, so its deletion file was decoded before.
        return self._context.dataset(self.state, ())

    def name(self, column: ComparedColumn) -> str:
        """Return the name of a column in this version."""
        return column.after if self._after else column.before

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema in which rows are read."""
        return projected_schema(self.dataset, columns)

    def deleted(self, fragment: Fragment) -> BitMap:
        """Return the offsets of the rows of a fragment that are deleted."""
        return deleted_offsets(self._context.versions, self.state, self._counted(fragment))

    def live(self, fragment: Fragment) -> BitMap:
        """Return the offsets of the live rows of a fragment."""
        return BitMap(range(self._counted(fragment).physical_rows)) - self.deleted(fragment)

    def ids(self, addresses: Addresses) -> U64Array:
        """Return the stable row ids of rows: one element for each row."""
        ids = np.empty_like(addresses)
        for number, places in group_by_fragment(addresses):
            offsets = row_offsets(addresses[places]).astype(np.uint64)
            ids[places] = self._ids_of(number).at_positions(offsets)
        return ids

    def addresses(self, rows: RowOffsets) -> Addresses:
        """Return the addresses of rows, after the files confirmed that there are so many."""
        check_row_claims(self._context.versions, self.state, rows)
        return addresses_of(rows)

    def id_runs(self, rows: RowOffsets) -> dict[int, RowRuns]:
        """Return the stable row ids of rows by fragment and offset."""
        return {number: self._ids_of(number).restricted(offsets) for number, offsets in rows.items()}

    def _ids_of(self, number: int) -> RowRuns:
        fragment = self._fragment(number)
        return decode_row_runs(fragment.row_ids, fragment.physical_rows, f"fragment {number} of {self.state}")

    def digests(self, addresses: Addresses, columns: Sequence[ComparedColumn]) -> tuple[Digests, Flags]:
        """Return the digest of some columns for each row, and which rows have a null in a column."""
        row_digests, null = np.empty((len(addresses), 2), np.uint64), np.zeros(len(addresses), np.bool_)
        order = np.argsort(addresses)
        ordered = addresses[order]
        names = [self.name(column) for column in columns]
        rows_read = 0
        # Rows are read in storage order and put back into the order that was asked for.
        for part, where in self._parts_of(offsets_by_fragment(ordered), names):
            together = [decoded(part.column(name)).combine_chunks() for name in names]
            values = [(value, column.shape) for value, column in zip(together, columns, strict=True)]
            places = order[np.searchsorted(ordered, where)]
            row_digests[places] = digests(values, after=self._after)
            null[places] = nulls(together)
            rows_read += len(where)
        # pylance skips rows that it considers deleted. Without this check their digests would be whatever the memory
        # held.
        if rows_read != len(addresses):
            raise CorruptFileError(self.dataset.uri, f"only {rows_read} of {len(addresses)} rows could be read")
        return row_digests, null

    def batches(self, rows: RowOffsets, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read some columns of rows in storage order, a bounded number of rows at a time."""
        for part, _ in self._parts_of(rows, columns):
            yield part

    def take(self, addresses: Addresses, columns: Sequence[str]) -> pa.Table:
        """Read some columns of rows in the given order, all at once."""
        return take_rows(self.dataset, addresses, columns)

    def _parts_of(self, rows: RowOffsets, columns: Sequence[str]) -> Iterator[tuple[pa.Table, Addresses]]:
        for number, offsets in sorted(rows.items()):
            fragment = self._fragment(number)
            # A scan of a whole fragment is much faster than taking every row of it.
            all_rows = fragment.has_row_count and len(offsets) == fragment.rows
            for part in scan_fragment(self.dataset, number, columns, None if all_rows else offsets):
                yield part.rows, part.addresses

    def _counted(self, fragment: Fragment) -> Fragment:
        # Very old programs did not record the number of rows.
        if fragment.physical_rows:
            return fragment
        return replace(fragment, physical_rows=count_physical_rows(self.dataset, fragment.id))

    def _fragment(self, number: int) -> Fragment:
        fragment = self.state.manifest.fragments.find(number)
        if fragment is None:
            raise CorruptFileError(
                str(self.state), f"a reader finds a fragment {number} that its manifest does not have"
            )
        return fragment


def addresses_of(rows: RowOffsets) -> Addresses:
    """Return the addresses of rows, ascending: one element for each row."""
    # Addresses ascend, so that values are read in storage order and results come in the order of the table.
    parts = [elements(offsets) + np.uint64(number << OFFSET_BITS) for number, offsets in sorted(rows.items())]
    addresses: Addresses = np.concatenate([NO_ADDRESSES, *parts])
    return addresses


_TRUSTED_ROWS = 1 << 24
"""The number of claimed rows that is trusted without a check: one address for each takes 128 MiB."""
_BITS = 8


def check_row_claims(versions: Versions, state: State, fragment_ids: Iterable[int]) -> None:
    """Check that fragments have as many rows as a version claims, unless it claims few rows for all fragments together.

    Raises:
        CorruptFileError: A data file has another number of rows, or is missing or damaged.
    """
    fragments = [own for number in fragment_ids if (own := state.manifest.fragments.find(number)) is not None]
    if sum(fragment.physical_rows for fragment in fragments) <= _TRUSTED_ROWS:
        return
    # Every file of a fragment has all its rows, so one file is enough.
    files = [(fragment, expected_file(versions, state, fragment.files[0])) for fragment in fragments if fragment.files]
    for fragment, file in files:
        # Files of the first format have another footer; each row takes a bit at least.
        if fragment.files[0].version == LEGACY_FILE_VERSION:
            _check_count(file, fragment, min(fragment.physical_rows, _BITS * file.size))
    readable = [pair for pair in files if pair[0].files[0].version != LEGACY_FILE_VERSION]
    for (fragment, file), shape in zip(readable, read_shapes([file for _, file in readable]), strict=True):
        _check_count(file, fragment, shape.rows)


def _check_count(file: ExpectedFile, fragment: Fragment, rows: int) -> None:
    if rows != fragment.physical_rows:
        raise CorruptFileError(file.path, f"it has {rows} rows, but its version records {fragment.physical_rows}")
