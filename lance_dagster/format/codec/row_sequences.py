"""Row-id and row-version sequences of a fragment: wire bytes to arrays and back.

Tables with stable row ids keep, per fragment, the id of each row and the versions it was created and last updated at
(row id and lineage specification). Ids come in segments, each in the encoding that is smallest for it; versions come
in runs, of which only the length of the span means something.

A sequence can claim any number of rows in a few bytes, so lengths are added up before anything is allocated.
"""

from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

from lance_dagster.errors import CorruptFileError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire

U64Array = np.ndarray[tuple[int], np.dtype[np.uint64]]
_TOP = 2**64
_MOST_ROWS = 2**32
"""Rows of a fragment: the offset of a row has 32 bits."""
_RANGE_BYTES = 24


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


def decode_row_ids(sequence: bytes | None, rows: int, path: str) -> U64Array:
    """Return the id of each row of a fragment, in order.

    Args:
        sequence: The bytes a fragment holds.
        rows: How many rows the fragment has, deleted ones included.
        path: For messages.

    Raises:
        CorruptFileError: The bytes are not a sequence of that many row ids, each of them once.
    """
    segments = _segments(sequence or b"", path)
    found = sum(_length(segment, path) for segment in segments)
    if found != rows or rows > _MOST_ROWS:
        raise CorruptFileError(path, f"it has {found} row ids for {rows} rows")
    ids = np.concatenate([np.empty(0, np.uint64), *(_values(segment, path) for segment in segments)])
    if not _ascending(ids):
        ordered = np.sort(ids)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise CorruptFileError(path, f"it has the row id {twice[0]} twice")
    return ids


def encode_row_ids(ids: U64Array) -> bytes:
    """Write row ids in the smallest encoding: ranges, a range with holes or with a bitmap, or an array."""
    if not len(ids):
        return b""
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1] + np.uint64(1)])
    segments = [_one_segment(ids)]
    if _RANGE_BYTES * len(starts) < segments[0].ByteSize():
        ends = np.r_[starts[1:], len(ids)] - 1
        bounds = zip(ids[starts].tolist(), ids[ends].tolist(), strict=True)
        segments = [wire.U64Segment(range=wire.U64Segment.Range(start=low, end=high + 1)) for low, high in bounds]
    return wire.RowIdSequence(segments=segments).SerializeToString()


def decode_versions(sequence: bytes | None, rows: int, path: str) -> U64Array:
    """Return a version for each row of a fragment, in order; all 1 where none are recorded, as Lance reads it.

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
        return np.ones(rows, np.uint64)
    runs = _runs(sequence, path)
    lengths = [_length(run.span, path) for run in runs]
    if sum(lengths) != rows:
        raise CorruptFileError(path, f"it has row versions for {sum(lengths)} of {rows} rows")
    return np.repeat(np.array([run.version for run in runs], np.uint64), lengths)


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


def encode_versions(versions: U64Array) -> bytes:
    """Write a version for each row, as runs of equal ones."""
    if not len(versions):
        return b""
    starts = np.flatnonzero(np.r_[True, versions[1:] != versions[:-1]])
    bounds = zip(starts.tolist(), [*starts[1:].tolist(), len(versions)], versions[starts].tolist(), strict=True)
    return wire.RowDatasetVersionSequence(
        runs=[
            wire.RowDatasetVersionRun(
                span=wire.U64Segment(range=wire.U64Segment.Range(start=start, end=end)), version=version
            )
            for start, end, version in bounds
        ]
    ).SerializeToString()


def smallest_row_id(sequence: bytes) -> int | None:
    """Return a lower bound of the ids of a sequence, or None when it is empty, damaged or in an unknown encoding.

    A fragment whose smallest id is below the table's `next_row_id` of an older version holds rows moved from there.
    For arrays the bound is their base, which can only err towards "moved".
    """
    try:
        lowest = [_lower_bound(segment) for segment in wire.RowIdSequence.FromString(sequence).segments]
    except DecodeError:
        return None
    known = [bound for bound in lowest if bound is not None]
    return min(known, default=None) if len(known) == len(lowest) else None


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


def _values(segment: wire.U64Segment, path: str) -> U64Array:
    match segment.WhichOneof("segment"):
        case "range":
            return np.arange(segment.range.start, segment.range.end, dtype=np.uint64)
        case "range_with_holes":
            holes = segment.range_with_holes
            everything = np.arange(holes.start, holes.end, dtype=np.uint64)
            kept = np.setdiff1d(everything, _array(holes.holes, path), assume_unique=True)
            if len(kept) != len(everything) - _array_length(holes.holes, path):
                raise CorruptFileError(path, "it has holes outside of its range of row ids")
            return kept
        case "range_with_bitmap":
            mapped = segment.range_with_bitmap
            # The first id is the lowest bit of the first byte.
            bits = np.unpackbits(np.frombuffer(mapped.bitmap, np.uint8), bitorder="little")
            present = np.flatnonzero(bits[: mapped.end - mapped.start]).astype(np.uint64)
            return present + np.uint64(mapped.start)
        case "sorted_array":
            ascending = _array(segment.sorted_array, path)
            if not _ascending(ascending):
                raise CorruptFileError(path, "it has a sorted array of row ids that is not sorted")
            return ascending
        case _:
            return _array(segment.array, path)


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
    if len(offsets) and array.base + int(offsets.max()) >= _TOP:
        raise CorruptFileError(path, "it has a row id that is no 64-bit number")
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


def _one_segment(ids: U64Array) -> wire.U64Segment:
    """Encode ids as one segment, the smallest there is for them."""
    if not _ascending(ids):
        return wire.U64Segment(array=_encoded(ids))
    return min(_of_sorted(ids), key=lambda segment: segment.ByteSize())


def _of_sorted(ids: U64Array) -> Iterator[wire.U64Segment]:
    start, end = int(ids[0]), int(ids[-1]) + 1
    span = end - start
    if span == len(ids):
        yield wire.U64Segment(range=wire.U64Segment.Range(start=start, end=end))
        return
    yield wire.U64Segment(sorted_array=_encoded(ids))
    # An array takes at least two bytes for an id, so these two cannot be smaller for a span far wider than that.
    if span <= 16 * len(ids) and end < _TOP:
        present = np.zeros(span, np.uint8)
        present[(ids - np.uint64(start)).astype(np.int64)] = 1
        bitmap = np.packbits(present, bitorder="little").tobytes()
        yield wire.U64Segment(range_with_bitmap=wire.U64Segment.RangeWithBitmap(start=start, end=end, bitmap=bitmap))
        holes = np.flatnonzero(present == 0).astype(np.uint64) + np.uint64(start)
        yield wire.U64Segment(
            range_with_holes=wire.U64Segment.RangeWithHoles(start=start, end=end, holes=_encoded(holes))
        )


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
            whole = np.frombuffer(values[: len(values) // 8 * 8], "<u8")
            return int(whole.min()) if len(whole) else None
