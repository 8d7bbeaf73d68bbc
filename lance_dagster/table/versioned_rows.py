"""The live rows of one version by their addresses: which there are, their ids, their values or digests of these."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.changes.diff_rows import Flags
from lance_dagster.changes.diff_values import ComparedColumn, Digests, digests, nulls
from lance_dagster.datafiles import (
    Addresses,
    LanceDataset,
    by_fragment,
    located_in,
    offsets_by_fragment,
    offsets_of,
    physical_rows,
    rows_at,
    schema_read,
)
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import U64Array, decode_row_ids
from lance_dagster.format.model import Fragment
from lance_dagster.history.vectors import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.table.parts import Parts

_OFFSET_BITS = np.uint64(32)
NO_ADDRESSES: Addresses = np.empty(0, np.uint64)


class VersionedRows:
    """The rows of one version. `after` tells whether it is the newer one of two that are compared."""

    def __init__(self, parts: Parts, state: State, *, after: bool) -> None:
        """Read nothing yet."""
        self._parts = parts
        self._after = after
        self.state = state

    @cached_property
    def dataset(self) -> LanceDataset:
        """The version as pylance has it."""
        return self._parts.dataset(self.state)

    def name(self, column: ComparedColumn) -> str:
        """Return what a column is called here."""
        return column.after if self._after else column.before

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema in which rows are read."""
        return schema_read(self.dataset, columns)

    def deleted(self, fragment: Fragment) -> BitMap:
        """Return the offsets of the rows of a fragment that are deleted."""
        return deleted_offsets(self._parts.versions, self.state, self._counted(fragment))

    def live(self, fragment: Fragment, without: BitMap | None = None) -> Addresses:
        """Return the addresses of the rows of a fragment that are not deleted, nor among some others."""
        kept = np.ones(self._counted(fragment).physical_rows, np.bool_)
        gone = self.deleted(fragment) | (without or BitMap())
        kept[np.fromiter(gone, np.int64, len(gone))] = False
        return addresses_of(fragment, np.flatnonzero(kept))

    def ids(self, addresses: Addresses) -> U64Array:
        """Return the ids of rows."""
        found = np.empty_like(addresses)
        for number, places in by_fragment(addresses):
            fragment = self._fragment(number)
            ids = decode_row_ids(fragment.row_ids, fragment.physical_rows, f"fragment {number} of {self.state}")
            found[places] = ids[offsets_of(addresses[places])]
        return found

    def digests(self, addresses: Addresses, columns: Sequence[ComparedColumn]) -> tuple[Digests, Flags]:
        """Return the digest of some columns of each row, and which rows have a null in one of them."""
        found, null = np.empty((len(addresses), 2), np.uint64), np.zeros(len(addresses), np.bool_)
        order = np.argsort(addresses)
        ordered = addresses[order]
        names = [self.name(column) for column in columns]
        read = 0
        for part, where in self._parts_of(ordered, names):
            together = [part.column(name).combine_chunks() for name in names]
            values = [(value, column.shape) for value, column in zip(together, columns, strict=True)]
            places = order[np.searchsorted(ordered, where)]
            found[places] = digests(values, after=self._after)
            null[places] = nulls(together)
            read += len(where)
        if read != len(addresses):
            raise CorruptFileError(self.dataset.uri, f"{read} rows are read of the {len(addresses)} that should be")
        return found, null

    def batches(self, addresses: Addresses, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read some columns of rows in the order in which they lie, a bounded number at a time."""
        for part, _ in self._parts_of(addresses, columns):
            yield part

    def take(self, addresses: Addresses, columns: Sequence[str]) -> pa.Table:
        """Read some columns of rows in the order given, all at once."""
        return rows_at(self.dataset, addresses, columns)

    def _parts_of(self, addresses: Addresses, columns: Sequence[str]) -> Iterator[tuple[pa.Table, Addresses]]:
        for number, offsets in offsets_by_fragment(addresses).items():
            fragment = self._fragment(number)
            whole = fragment.counted and len(offsets) == fragment.rows
            for part in located_in(self.dataset, number, columns, None if whole else offsets):
                yield part.rows, part.addresses

    def _counted(self, fragment: Fragment) -> Fragment:
        # Very old programs did not write down how many rows there are.
        if fragment.physical_rows:
            return fragment
        return replace(fragment, physical_rows=physical_rows(self.dataset, fragment.id))

    def _fragment(self, number: int) -> Fragment:
        found = self.state.manifest.fragments.find(number)
        if found is None:
            raise CorruptFileError(
                str(self.state), f"a reader finds a fragment {number} that its manifest does not have"
            )
        return found


def addresses_of(fragment: Fragment, offsets: "np.ndarray[tuple[int], np.dtype[np.int64]] | BitMap") -> Addresses:
    """Return the addresses of the rows at some offsets of a fragment, in the same order."""
    found = np.fromiter(offsets, np.uint64, len(offsets)) if isinstance(offsets, BitMap) else offsets.astype(np.uint64)
    addresses: Addresses = found + (np.uint64(fragment.id) << _OFFSET_BITS)
    return addresses
