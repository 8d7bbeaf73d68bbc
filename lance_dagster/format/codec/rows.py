"""Row-id and row-version sequences of a fragment, as far as appended and carried rows need them.

Tables with stable row ids keep, per fragment, the id of each row and the versions it was created and last updated at
(row id and lineage specification). Rows that are new in a commit always form one range of ids and one run of versions.
"""

from google.protobuf.message import DecodeError

from lance_dagster.errors import CorruptFileError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire


def row_id_range(start: int, count: int) -> bytes:
    """Encode the ids `start` to `start + count - 1`."""
    segment = wire.U64Segment(range=wire.U64Segment.Range(start=start, end=start + count))
    return wire.RowIdSequence(segments=[segment]).SerializeToString()


def version_run(count: int, version: int) -> bytes:
    """Encode "`count` rows, all of `version`"."""
    span = wire.U64Segment(range=wire.U64Segment.Range(start=0, end=count))
    run = wire.RowDatasetVersionRun(span=span, version=version)
    return wire.RowDatasetVersionSequence(runs=[run]).SerializeToString()


def smallest_row_id(sequence: bytes) -> int | None:
    """Return the smallest id of a sequence, or None when it is empty, damaged or in an unknown encoding.

    A fragment whose smallest id is below the table's `next_row_id` of an older version holds rows moved from there.
    """
    smallest: list[int] = []
    try:
        segments = wire.RowIdSequence.FromString(sequence).segments
    except DecodeError:
        return None
    for segment in segments:
        match segment.WhichOneof("segment"):
            case "range":
                smallest.append(segment.range.start)
            case "range_with_holes":
                smallest.append(segment.range_with_holes.start)
            case "range_with_bitmap":
                smallest.append(segment.range_with_bitmap.start)
            case "sorted_array":
                smallest.append(_array_base(segment.sorted_array))
            case "array":
                smallest.append(_array_base(segment.array))
            case _:
                return None
    return min(smallest, default=None)


def _array_base(array: wire.EncodedU64Array) -> int:
    # A base is a lower bound of the values, which is what the question "were rows moved here?" needs: it can only
    # err towards yes. Plain 64-bit values have no base.
    match array.WhichOneof("array"):
        case "u16_array":
            return array.u16_array.base
        case "u32_array":
            return array.u32_array.base
        case _:
            values = array.u64_array.values
            return min(int.from_bytes(values[at : at + 8], "little") for at in range(0, len(values), 8))


def count_row_ids(sequence: bytes) -> int:
    """Return how many row ids a sequence has.

    Raises:
        CorruptFileError: The bytes are not a sequence of row ids.
    """
    try:
        return sum(_length(segment) for segment in wire.RowIdSequence.FromString(sequence).segments)
    except DecodeError as error:
        raise CorruptFileError("a sequence of row ids", f"it cannot be parsed: {error}") from error


def _length(segment: wire.U64Segment) -> int:
    match segment.WhichOneof("segment"):
        case "range":
            return segment.range.end - segment.range.start
        case "range_with_holes":
            holes = segment.range_with_holes
            return holes.end - holes.start - _array_length(holes.holes)
        case "range_with_bitmap":
            return int.from_bytes(segment.range_with_bitmap.bitmap).bit_count()
        case "sorted_array":
            return _array_length(segment.sorted_array)
        case _:
            return _array_length(segment.array)


def _array_length(array: wire.EncodedU64Array) -> int:
    return len(array.u16_array.offsets) // 2 + len(array.u32_array.offsets) // 4 + len(array.u64_array.values) // 8
