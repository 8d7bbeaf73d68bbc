"""Row-id and row-version sequences of a fragment: wire bytes to runs of rows and back.

Tables with stable row ids keep, per fragment, the id of each row and the versions it was created and last updated at
(row id and lineage specification). Ids come in segments, each in the encoding that is smallest for it; versions come
in runs, and of the span of a run only its length has a meaning.

A sequence can claim any number of rows in a few bytes. Decoding therefore gives runs: what is allocated is bounded by
the bytes that were read, never by the rows they claim.
"""

from collections.abc import Callable

import numpy as np
from google.protobuf.message import DecodeError

from lance_dagster.errors import CorruptFileError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.row_runs import RowRuns, U64Array, VersionRuns

_TOP = 2**64
_MOST_ROWS = 2**32
"""Rows of a fragment: the offset of a row has 32 bits."""
_RANGE_BYTES = 24
"""The cost of a range as a segment of its own: two numbers of nine bytes each and their framing."""
_FRAMING_BYTES = 14
"""The cost of a segment with one array or bitmap, without the array."""


def row_id_range(start: int, count: int) -> bytes:
    """Encode the ids `start` to `start + count - 1`."""
    segment = wire.U64Segment(range=wire.U64Segment.Range(start=start, end=start + count))
    return wire.RowIdSequence(segments=[segment]).SerializeToString()


def version_run(count: int, version: int) -> bytes:
    """Encode "`count` rows, all of `version`"."""
    span = wire.U64Segment(range=wire.U64Segment.Range(start=0, end=count))
    run = wire.RowDatasetVersionRun(span=span, version=version)
    return wire.RowDatasetVersionSequence(runs=[run]).SerializeToString()


def count_row_ids(sequence: bytes, path: str = "a sequence of row ids") -> int:
    """Return how many row ids a sequence has; `path` is for messages.

    Raises:
        CorruptFileError: The bytes are not a sequence of row ids.
    """
    return sum(_length(segment, path) for segment in _segments(sequence, path))


def single_range(sequence: bytes, path: str = "a sequence of row ids") -> tuple[int, int] | None:
    """Return the first id and the number of ids of a sequence that is one range; None for any other sequence.

    Most fragments of a table have one range, whose two numbers cost a fraction of the arrays of `decode_row_runs`.

    Raises:
        CorruptFileError: The bytes are not a sequence of row ids.
    """
    segments = _segments(sequence, path)
    if len(segments) != 1 or not segments[0].HasField("range"):
        return None
    bounds = segments[0].range
    return (bounds.start, bounds.end - bounds.start) if bounds.start < bounds.end else None


def decode_row_runs(sequence: bytes | None, rows: int, path: str) -> RowRuns:
    """Return the ids of the rows of a fragment, by offset.

    Args:
        sequence: The bytes a fragment holds.
        rows: How many rows the fragment has, deleted ones included.
        path: For messages.

    Raises:
        CorruptFileError: The bytes are not a sequence of that many row ids, each of them once.
    """
    segments = _segments(sequence or b"", path)
    # Lengths are added up before anything is decoded: a bitmap of a wrong length has no runs worth finding.
    total = sum(_length(segment, path) for segment in segments)
    if total != rows or rows > _MOST_ROWS:
        raise CorruptFileError(path, f"it has {total} row ids for {rows} rows")
    if len(segments) == 1 and rows and segments[0].HasField("range"):
        # Most fragments have one range, which is in order, and has each id once.
        return RowRuns.one(0, rows, segments[0].range.start)
    if all(segment.HasField("range") for segment in segments):
        runs = RowRuns.sequence(
            [(segment.range.start, segment.range.end - segment.range.start) for segment in segments]
        )
    else:
        runs = RowRuns.concatenated([_runs_of(segment, path) for segment in segments])
    runs = runs.packed()
    if not runs.ascending and (twice := runs.repeated().smallest) is not None:
        raise CorruptFileError(path, f"it has the row id {twice} twice")
    return runs


def decode_row_ids(sequence: bytes | None, rows: int, path: str) -> U64Array:
    """Return the id of each row of a fragment as one element for each row; see `decode_row_runs`."""
    return decode_row_runs(sequence, rows, path).values()


def encode_row_runs(ids: RowRuns) -> bytes:
    """Write row ids in the smallest encoding: ranges, a range with holes or with a bitmap, or an array.

    Whichever is chosen is smaller than a range for each run, so no encoding that is written has more than a few
    elements for a run.
    """
    if not len(ids):
        return b""
    ids = ids.merged()
    if len(ids) == 1:
        return row_id_range(int(ids.first[0]), int(ids.count[0]))
    # Lance reads any encoding; the smallest encoding is written because every commit rewrites the sequences inline.
    sizes: dict[Callable[[RowRuns], wire.U64Segment], int] = {}
    rows, span = ids.rows, (ids.largest or 0) - (ids.smallest or 0) + 1
    if ids.ascending:
        sizes[_sorted_array] = rows * _width(span)
        # The end of a range is exclusive, and the id after the largest 64-bit number cannot be written.
        if (ids.largest or 0) + 1 < _TOP:
            sizes[_bitmap] = -(-span // 8)
            sizes[_holes] = (span - rows) * _width(span)
    else:
        sizes[_array_segment] = rows * _width(span)
    smallest = min(sizes, key=sizes.__getitem__)
    if _RANGE_BYTES * len(ids) < sizes[smallest] + _FRAMING_BYTES:
        bounds = zip(ids.first.tolist(), ids.count.tolist(), strict=True)
        segments = [wire.U64Segment(range=wire.U64Segment.Range(start=low, end=low + rows)) for low, rows in bounds]
    else:
        segments = [smallest(ids)]
    return wire.RowIdSequence(segments=segments).SerializeToString()


def encode_row_ids(ids: U64Array) -> bytes:
    """Write row ids, given as one element for each row; see `encode_row_runs`."""
    return encode_row_runs(RowRuns.of_values(ids))


def decode_version_runs(sequence: bytes | None, rows: int, path: str) -> VersionRuns:
    """Return a version for each row of a fragment, by offset; 1 for all where none are recorded, as Lance reads it.

    Args:
        sequence: The bytes a fragment holds, or None.
        rows: How many rows the fragment has, deleted ones included.
        path: For messages.

    Raises:
        CorruptFileError: The bytes are not a sequence of that many versions.
    """
    if rows > _MOST_ROWS:
        raise CorruptFileError(path, f"it has a fragment of {rows} rows")
    if sequence is None:
        return VersionRuns.of([(rows, 1)])
    runs = [(_length(run.span, path), run.version) for run in _runs(sequence, path)]
    total = sum(length for length, _ in runs)
    if total != rows:
        raise CorruptFileError(path, f"it has row versions for {total} of {rows} rows")
    if len(runs) == 1 and rows:
        return VersionRuns.one(rows, runs[0][1])
    return VersionRuns.of(runs)


def decode_versions(sequence: bytes | None, rows: int, path: str) -> U64Array:
    """Return a version for each row of a fragment as one element for each row; see `decode_version_runs`."""
    return decode_version_runs(sequence, rows, path).values()


def count_versions(sequence: bytes, path: str) -> int:
    """Return how many rows a sequence of versions is for; `path` is for messages.

    Raises:
        CorruptFileError: The bytes are not a sequence of versions.
    """
    return sum(_length(run.span, path) for run in _runs(sequence, path))


def _runs(sequence: bytes, path: str) -> list[wire.RowDatasetVersionRun]:
    try:
        return list(wire.RowDatasetVersionSequence.FromString(sequence).runs)
    except DecodeError as error:
        raise CorruptFileError(path, f"its row versions cannot be parsed: {error}") from error


def encode_version_runs(versions: VersionRuns) -> bytes:
    """Write a version for each row, as runs of equal ones."""
    versions = versions.merged()
    if len(versions) == 1 and not versions.at[0]:
        return version_run(int(versions.count[0]), int(versions.version[0]))
    bounds = zip(versions.at.tolist(), versions.count.tolist(), versions.version.tolist(), strict=True)
    return wire.RowDatasetVersionSequence(
        runs=[
            wire.RowDatasetVersionRun(
                span=wire.U64Segment(range=wire.U64Segment.Range(start=start, end=start + count)), version=version
            )
            for start, count, version in bounds
        ]
    ).SerializeToString()


def encode_versions(versions: U64Array) -> bytes:
    """Write versions, given as one element for each row; see `encode_version_runs`."""
    return encode_version_runs(VersionRuns.of_values(versions))


def smallest_row_id(sequence: bytes) -> int | None:
    """Return a lower bound of the ids of a sequence, or None when it is empty, damaged or in an unknown encoding.

    A fragment whose smallest id is below the table's `next_row_id` of an older version holds rows moved from there.
    For arrays the bound is their base, which can only err towards "moved".
    """
    # This is called for every fragment of a merge side, so nothing is decoded beyond the bounds of the segments.
    try:
        lowest = [_lower_bound(segment) for segment in wire.RowIdSequence.FromString(sequence).segments]
    except DecodeError:
        return None
    bounds = [bound for bound in lowest if bound is not None]
    return min(bounds, default=None) if len(bounds) == len(lowest) else None


def _segments(sequence: bytes, path: str) -> list[wire.U64Segment]:
    try:
        return list(wire.RowIdSequence.FromString(sequence).segments)
    except DecodeError as error:
        raise CorruptFileError(path, f"its row ids cannot be parsed: {error}") from error


def _length(segment: wire.U64Segment, path: str) -> int:
    kind = segment.WhichOneof("segment")
    if kind is None:
        raise CorruptFileError(path, "it has a segment of row ids in no known encoding")
    if kind in ("array", "sorted_array"):
        return _array_length(getattr(segment, kind), path)
    # A damaged file may claim any bounds. They are Python integers here, so that no difference wraps around.
    bounds = getattr(segment, kind)
    span: int = bounds.end - bounds.start
    if span < 0:
        raise CorruptFileError(path, f"it has a segment of row ids from {bounds.start} to {bounds.end}")
    if kind == "range_with_holes":
        span -= _array_length(bounds.holes, path)
    elif kind == "range_with_bitmap":
        if len(bounds.bitmap) != -(-span // 8):
            raise CorruptFileError(path, f"it has a bitmap of {len(bounds.bitmap)} bytes for {span} row ids")
        span = int(np.bitwise_count(np.frombuffer(_masked(bounds.bitmap, span), np.uint8)).sum())
    if span < 0:
        raise CorruptFileError(path, "it has more holes than row ids")
    return span


def _masked(bitmap: bytes, bits: int) -> bytes:
    """Return a bitmap without the bits of its last byte that stand for nothing."""
    spare = -bits % 8
    return bitmap[:-1] + bytes([bitmap[-1] & (0xFF >> spare)]) if spare and bitmap else bitmap


def _runs_of(segment: wire.U64Segment, path: str) -> RowRuns:
    match segment.WhichOneof("segment"):
        case "range":
            return RowRuns.sequence([(segment.range.start, segment.range.end - segment.range.start)])
        case "range_with_holes":
            holes = segment.range_with_holes
            return _between(holes.start, holes.end, np.sort(_array(holes.holes, path)), path)
        case "range_with_bitmap":
            mapped = segment.range_with_bitmap
            # The first id is the lowest bit of the first byte. A run starts or ends where a bit differs from the bit
            # before it, so memory grows with the bits of the bitmap and not with the ids.
            bits = np.unpackbits(np.frombuffer(mapped.bitmap, np.uint8), bitorder="little")[: mapped.end - mapped.start]
            edges = np.flatnonzero(np.diff(bits, prepend=np.uint8(0), append=np.uint8(0))).astype(np.uint64)
            return _spans(edges[::2] + np.uint64(mapped.start), edges[1::2] - edges[::2])
        case "sorted_array":
            # A reader may search it by bisection, and would miss ids of an unsorted array without any error.
            ascending = _array(segment.sorted_array, path)
            if not _ascending(ascending):
                raise CorruptFileError(path, "it has a sorted array of row ids that is not sorted")
            return RowRuns.of_values(ascending)
        case _:
            return RowRuns.of_values(_array(segment.array, path))


def _between(start: int, end: int, holes: U64Array, path: str) -> RowRuns:
    """Return the runs between holes, which are sorted."""
    # A hole outside the range, or a hole that is listed twice, would make the number of ids wrong.
    if len(holes) and (int(holes[0]) < start or int(holes[-1]) >= end or not _ascending(holes)):
        raise CorruptFileError(path, "it has holes outside of its range of row ids")
    step = np.uint64(1)
    firsts, ends = np.r_[np.uint64(start), holes + step], np.r_[holes, np.uint64(end)]
    nonempty = ends > firsts
    return _spans(firsts[nonempty], ends[nonempty] - firsts[nonempty])


def _spans(firsts: U64Array, counts: U64Array) -> RowRuns:
    return RowRuns(np.cumsum(counts, dtype=np.uint64) - counts, counts, firsts)


def _ascending(ids: U64Array) -> bool:
    return bool(np.all(ids[1:] > ids[:-1]))


def _array(array: wire.EncodedU64Array, path: str) -> U64Array:
    match array.WhichOneof("array"):
        case "u16_array":
            return _from_base(array.u16_array, "<u2", path)
        case "u32_array":
            return _from_base(array.u32_array, "<u4", path)
        case _:
            return np.frombuffer(array.u64_array.values, "<u8").astype(np.uint64)


def _from_base(array: wire.EncodedU64Array.U16 | wire.EncodedU64Array.U32, width: str, path: str) -> U64Array:
    offsets = np.frombuffer(array.offsets, width).astype(np.uint64)
    # numpy would wrap around at 2^64 and give ids of other rows.
    if len(offsets) and array.base + int(offsets.max()) >= _TOP:
        raise CorruptFileError(path, "it has a row id that does not fit into 64 bits")
    return offsets + np.uint64(array.base)


def _array_length(array: wire.EncodedU64Array, path: str) -> int:
    match array.WhichOneof("array"):
        case "u16_array":
            size, width = len(array.u16_array.offsets), 2
        case "u32_array":
            size, width = len(array.u32_array.offsets), 4
        case _:
            size, width = len(array.u64_array.values), 8
    if size % width:
        raise CorruptFileError(path, f"it has {size} bytes of row ids of {width} bytes each")
    return size // width


def _width(span: int) -> int:
    """Return the bytes of an element of an array of ids that lie within a span."""
    return 2 if span <= 2**16 else 4 if span <= 2**32 else 8


def _array_segment(ids: RowRuns) -> wire.U64Segment:
    return wire.U64Segment(array=_encoded(ids.values()))


def _sorted_array(ids: RowRuns) -> wire.U64Segment:
    return wire.U64Segment(sorted_array=_encoded(ids.values()))


def _bitmap(ids: RowRuns) -> wire.U64Segment:
    start, end = int(ids.first[0]), int(ids.lasts[-1]) + 1
    present = np.zeros(end - start, np.uint8)
    present[(ids.values() - np.uint64(start)).astype(np.int64)] = 1
    bitmap = np.packbits(present, bitorder="little").tobytes()
    return wire.U64Segment(range_with_bitmap=wire.U64Segment.RangeWithBitmap(start=start, end=end, bitmap=bitmap))


def _holes(ids: RowRuns) -> wire.U64Segment:
    start, end = int(ids.first[0]), int(ids.lasts[-1]) + 1
    firsts = ids.lasts[:-1] + np.uint64(1)
    holes = _encoded(_spans(firsts, ids.first[1:] - firsts).values())
    return wire.U64Segment(range_with_holes=wire.U64Segment.RangeWithHoles(start=start, end=end, holes=holes))


def _encoded(ids: U64Array) -> wire.EncodedU64Array:
    base = int(ids.min())
    span = int(ids.max()) - base
    offsets = ids - np.uint64(base)
    if span < 2**16:
        return wire.EncodedU64Array(
            u16_array=wire.EncodedU64Array.U16(base=base, offsets=offsets.astype("<u2").tobytes())
        )
    if span < 2**32:
        return wire.EncodedU64Array(
            u32_array=wire.EncodedU64Array.U32(base=base, offsets=offsets.astype("<u4").tobytes())
        )
    return wire.EncodedU64Array(u64_array=wire.EncodedU64Array.U64(values=ids.astype("<u8").tobytes()))


def _lower_bound(segment: wire.U64Segment) -> int | None:
    kind = segment.WhichOneof("segment")
    if kind is None:
        return None
    if kind in ("range", "range_with_holes", "range_with_bitmap"):
        start: int = getattr(segment, kind).start
        return start
    array: wire.EncodedU64Array = getattr(segment, kind)
    match array.WhichOneof("array"):
        case "u16_array":
            return array.u16_array.base
        case "u32_array":
            return array.u32_array.base
        case _:
            values = array.u64_array.values
            # Trailing bytes are damage, which `decode_row_runs` reports; here a bound is enough.
            numbers = np.frombuffer(values[: len(values) // 8 * 8], "<u8")
            return int(numbers.min()) if len(numbers) else None
