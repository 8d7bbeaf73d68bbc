"""Read a part of the rows of a fragment without reading the rest of it, in bounded memory.

pylance reads just the rows of an `offset` and a `limit` while no row is filtered. For a condition on row addresses it
reads every column of the whole fragment, and so it does for a filter that few rows satisfy, unless the columns are
wide. It also reads ahead as far as the fragment goes, which may be a gigabyte. Large fragments are therefore read in
ranges of rows. Under a filter, the addresses of the rows that match are looked for first, which takes the columns of
the filter alone, and then the ranges that have such rows are read.

An `offset` counts live rows, and the ranges count deleted rows as well, as row addresses do.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles import matching_offsets, rows_at

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset

# A row that is looked up by its address takes as long as reading this many rows.
_LOOK_UP_ROWS = 1024
_Places = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceReader:
    """Read rows of one version.

    Attributes:
        dataset: The version.
        columns: The columns to read.
        filter: A condition in Lance's SQL.
        limit: The largest number of rows that are needed; a scan may return more.
        addressed: Whether the address of each row is returned as well, as the last column.
        batch_rows: The number of rows of a batch.
        range_rows: The number of rows that are read at once.
    """

    dataset: "LanceDataset"
    columns: tuple[str, ...]
    filter: str | None
    limit: int | None
    addressed: bool
    batch_rows: int
    range_rows: int

    def whole(self, fragments: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of whole fragments in their order; adjacent small fragments are read by one scan."""
        # The order may not depend on what is read: `rand(seed)` gives the n-th row of a task the n-th number.
        for is_small, numbers in itertools.groupby(fragments, self._is_small):
            if is_small:
                yield from self._scan(
                    [self._fragment(number) for number in numbers], filter=self.filter, limit=self.limit
                )
                continue
            for number in numbers:
                yield from self.between(number, 0, self._fragment(number).physical_rows)

    def _is_small(self, fragment: int) -> bool:
        # Under a filter, only a scan can stop at a limit before it has looked at all rows.
        stops = self.filter is not None and self.limit is not None
        return stops or self._fragment(fragment).physical_rows <= self.range_rows

    def between(self, fragment: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a fragment with offsets from `start` to before `stop`."""
        matching = None if self.filter is None else self._matching(fragment, start, stop)
        if matching is not None and len(matching) * _LOOK_UP_ROWS <= stop - start:
            if len(matching):
                place = rows_at(self.dataset, ((fragment << 32) + matching).tolist())
                yield from self._scan([self._fragment(fragment)], filter=place)
            return
        live = _live_offsets(self.dataset, fragment)
        for first in range(start, stop, self.range_rows):
            end_of_range = min(first + self.range_rows, stop)
            if matching is None:
                yield from self._range(fragment, *_places(live, np.array([first, end_of_range])))
                continue
            # Ranges without a row that matches are not read at all.
            in_range = matching[slice(*np.searchsorted(matching, [first, end_of_range]))]
            if len(in_range):
                begin, *places, end = _places(live, np.array([first, *in_range, end_of_range]))
                yield from _chosen(self._range(fragment, begin, end), np.array(places) - begin)

    def _range(self, fragment: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of a fragment from `start` to before `stop`, counted among live rows."""
        if start < stop:
            row_limit = stop - start if self.filter is not None or self.limit is None else min(stop - start, self.limit)
            yield from self._scan([self._fragment(fragment)], offset=start, limit=row_limit)

    def _scan(self, fragments: list[Any], **options: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
        yield from self.dataset.scanner(
            columns=list(self.columns),
            fragments=fragments,
            with_row_address=self.addressed,
            batch_size=self.batch_rows,
            **options,
        ).to_batches()

    def _matching(self, fragment: int, start: int, stop: int) -> _Places:
        """Return the offsets of the rows that match the filter, in order."""
        matches = matching_offsets(self.dataset, str(self.filter), [fragment]).get(fragment)
        offsets = np.array([] if matches is None else matches.to_array(), np.int64)
        return offsets[slice(*np.searchsorted(offsets, [start, stop]))]

    def _fragment(self, number: int) -> Any:  # noqa: ANN401 - pylance's fragment
        # The fragments of a version never change, so none is missing.
        return self.dataset.get_fragment(number)


# A worker reads one fragment after another, each in several ranges.
@functools.lru_cache(maxsize=1)
def _live_offsets(dataset: "LanceDataset", fragment: int) -> _Places | None:
    """Return the offsets of the live rows of a fragment, in order; None when no row of it is deleted."""
    part: Any = dataset.get_fragment(fragment)
    if not part.num_deletions:
        return None
    scanner = dataset.scanner(columns=[], with_row_address=True, fragments=[part])
    addresses = scanner.to_table().column("_rowaddr").to_numpy()
    return np.sort(addresses & 0xFFFFFFFF).astype(np.int64)


def _places(live: _Places | None, offsets: _Places) -> list[int]:
    """Return how many live rows a fragment has before each of some offsets."""
    counts: list[int] = (offsets if live is None else np.searchsorted(live, offsets)).tolist()
    return counts


def _chosen(batches: Iterator[pa.RecordBatch], places: _Places) -> Iterator[pa.RecordBatch]:
    """Yield the rows at some places of a stream."""
    rows_read = 0
    for batch in batches:
        here = places[slice(*np.searchsorted(places, [rows_read, rows_read + batch.num_rows]))] - rows_read
        rows_read += batch.num_rows
        if len(here) == batch.num_rows:
            yield batch
        elif len(here):
            yield batch.take(here)
