"""Sequences of row ids and versions: every encoding, damaged ones, and what pylance writes and reads."""

import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from lance.fragment import RowIdMeta, RowIdSequence

from lance_dagster.errors import CorruptFileError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec import (
    U64Array,
    count_row_ids,
    decode_manifest_file,
    decode_row_ids,
    decode_versions,
    encode_row_ids,
    encode_versions,
    row_id_range,
    smallest_row_id,
    version_run,
)
from tests.format.histories import files, written
from tests.table_factory import entries

LARGEST = 2**64 - 1
IDS = st.lists(st.integers(0, LARGEST - 1), unique=True, max_size=60) | st.sets(st.integers(0, 300)).map(sorted)


def numbers(values: Sequence[int]) -> U64Array:
    """The values as an array."""
    return np.array(values, np.uint64)


def by_pylance(ids: Sequence[int]) -> bytes:
    """The sequence as pylance writes it into a manifest."""
    return bytes(json.loads(RowIdSequence(list(ids)).to_inline_metadata().json())["Inline"])


def read_by_pylance(data: bytes) -> list[int]:
    """The ids that pylance reads from a sequence."""
    read: Callable[[str], RowIdMeta] = RowIdMeta.from_json  # type: ignore[assignment,misc]  # the stub lacks its decorator
    ids: list[Any] = (
        RowIdSequence.from_inline_metadata(read(json.dumps({"Inline": list(data)}))).to_pyarrow().to_pylist()
    )
    return ids


def sequence(*segments: wire.U64Segment) -> bytes:
    """A sequence made of these segments."""
    return wire.RowIdSequence(segments=segments).SerializeToString()


def array(width: int, base: int, *values: int) -> wire.EncodedU64Array:
    """An array of a width given in bytes."""
    data = np.array([value - base for value in values], f"<u{width}").tobytes()
    match width:
        case 2:
            return wire.EncodedU64Array(u16_array=wire.EncodedU64Array.U16(base=base, offsets=data))
        case 4:
            return wire.EncodedU64Array(u32_array=wire.EncodedU64Array.U32(base=base, offsets=data))
        case _:
            return wire.EncodedU64Array(u64_array=wire.EncodedU64Array.U64(values=data))


def with_holes(start: int, end: int, holes: wire.EncodedU64Array) -> wire.U64Segment:
    """A range without some ids."""
    return wire.U64Segment(range_with_holes=wire.U64Segment.RangeWithHoles(start=start, end=end, holes=holes))


def with_bitmap(start: int, end: int, bitmap: bytes) -> wire.U64Segment:
    """Those ids of a range whose bit is set."""
    return wire.U64Segment(range_with_bitmap=wire.U64Segment.RangeWithBitmap(start=start, end=end, bitmap=bitmap))


def ids_between(start: int, end: int) -> wire.U64Segment:
    """A range of ids."""
    return wire.U64Segment(range=wire.U64Segment.Range(start=start, end=end))


ENCODINGS = {
    "range": (ids_between(5, 9), [5, 6, 7, 8]),
    "empty range": (ids_between(0, 0), []),
    "last range": (ids_between(LARGEST - 1, LARGEST), [LARGEST - 1]),
    "holes, 2 bytes": (with_holes(5, 12, array(2, 6, 6, 9)), [5, 7, 8, 10, 11]),
    "holes, 4 bytes": (with_holes(5, 12, array(4, 0, 6, 9)), [5, 7, 8, 10, 11]),
    "holes, 8 bytes": (with_holes(5, 12, array(8, 0, 6, 9)), [5, 7, 8, 10, 11]),
    "bitmap": (with_bitmap(1, 7, b"\x21"), [1, 6]),
    "bitmap of two bytes": (with_bitmap(10, 22, b"\x01\x0c"), [10, 20, 21]),
    "ascending, 2 bytes": (wire.U64Segment(sorted_array=array(2, 3, 3, 70, 900)), [3, 70, 900]),
    "ascending, 4 bytes": (wire.U64Segment(sorted_array=array(4, 3, 3, 10**9)), [3, 10**9]),
    "ascending, 8 bytes": (wire.U64Segment(sorted_array=array(8, 0, 3, LARGEST)), [3, LARGEST]),
    "any order, 2 bytes": (wire.U64Segment(array=array(2, 3, 900, 3, 70)), [900, 3, 70]),
    "any order, 4 bytes": (wire.U64Segment(array=array(4, 3, 10**9, 3)), [10**9, 3]),
    "any order, 8 bytes": (wire.U64Segment(array=array(8, 0, LARGEST, 0)), [LARGEST, 0]),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_is_read(encoding: str) -> None:
    """The ids and their order are those that pylance reads."""
    segment, ids = ENCODINGS[encoding]
    data = sequence(segment)
    assert ids == decode_row_ids(data, len(ids), "m").tolist()
    assert ids == read_by_pylance(data)
    assert len(ids) == count_row_ids(data)


def test_segments_follow_each_other() -> None:
    """A fragment that was made of others has several segments."""
    data = sequence(ids_between(100, 103), with_bitmap(1, 7, b"\x21"), wire.U64Segment(array=array(2, 0, 50, 40)))
    assert [100, 101, 102, 1, 6, 50, 40] == decode_row_ids(data, 7, "m").tolist()


DAMAGED = {
    "not a message": (b"\xff\xff", "cannot be parsed"),
    "more ids than memory": (sequence(ids_between(0, 2**63)), "has 9223372036854775808 row ids for 3 rows"),
    "a range that ends before it starts": (sequence(ids_between(9, 6)), "a segment of row ids from 9 to 6"),
    "too few ids": (sequence(ids_between(5, 7)), "it has 2 row ids for 3 rows"),
    "a hole outside": (sequence(with_holes(5, 9, array(2, 0, 9))), "holes outside of it"),
    "a hole twice": (sequence(with_holes(5, 10, array(2, 0, 6, 6))), "holes outside of it"),
    "more holes than ids": (sequence(with_holes(5, 6, array(2, 0, 5, 6))), "more holes than row ids"),
    "a range of holes without end": (sequence(with_holes(0, 2**63, array(2, 0, 1))), "row ids for 3 rows"),
    "a short bitmap": (sequence(with_bitmap(0, 2**62, b"\x07")), "bitmap of 1 bytes for 4611686018427387904 row ids"),
    "a long bitmap": (sequence(with_bitmap(0, 3, b"\x07\x00")), "bitmap of 2 bytes for 3 row ids"),
    "half an id": (
        sequence(wire.U64Segment(array=wire.EncodedU64Array(u64_array=wire.EncodedU64Array.U64(values=b"1234")))),
        "it has 4 bytes of row ids of 8 bytes each",
    ),
    "ids too large": (
        sequence(wire.U64Segment(array=array(2, LARGEST, *range(LARGEST, LARGEST + 3)))),
        "does not fit into 64 bits",
    ),
    "no array": (sequence(wire.U64Segment(array=wire.EncodedU64Array())), "it has 0 row ids for 3 rows"),
    "no segment": (sequence(wire.U64Segment()), "in no known encoding"),
    "an id twice": (sequence(ids_between(5, 7), ids_between(6, 7)), "it has the row id 6 twice"),
    "ascending in words only": (sequence(wire.U64Segment(sorted_array=array(2, 0, 5, 9, 7))), "is not sorted"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_sequence_is_refused_by_name(damage: str) -> None:
    """The error is raised before memory of the claimed size is allocated."""
    data, said = DAMAGED[damage]
    with pytest.raises(CorruptFileError, match=said) as caught:
        decode_row_ids(data, 3, "main@7")
    assert "main@7" == caught.value.path


def test_a_fragment_has_no_more_rows_than_it_can_address() -> None:
    """The number of rows that the fragment claims is checked."""
    with pytest.raises(CorruptFileError, match="9223372036854775808 rows"):
        decode_row_ids(sequence(ids_between(0, 2**63)), 2**63, "m")
    with pytest.raises(CorruptFileError, match="9223372036854775808 rows"):
        decode_versions(version_run(2**63, 1), 2**63, "m")


@given(IDS)
def test_ids_survive_the_bytes(ids: list[int]) -> None:
    """Ids may have any values and order; pylance reads the same ids."""
    data = encode_row_ids(numbers(ids))
    assert ids == decode_row_ids(data, len(ids), "m").tolist()
    assert len(ids) == count_row_ids(data)
    assert ids == read_by_pylance(data)


@pytest.mark.parametrize("ids", [[0, 1, 2], [7], [10**12, 10**12 + 1]])
def test_a_range_is_what_pylance_writes(ids: list[int]) -> None:
    """Appended rows get one range of ids."""
    assert by_pylance(ids) == row_id_range(ids[0], len(ids)) == encode_row_ids(numbers(ids))


@given(st.lists(st.integers(0, 5000), unique=True, min_size=1, max_size=200).map(sorted), st.booleans())
def test_ids_take_no_more_bytes_than_by_pylance(ids: list[int], reverse: bool) -> None:  # noqa: FBT001
    """This holds for each encoding that is chosen."""
    ids = ids[::-1] if reverse else ids
    assert len(by_pylance(ids)) >= len(encode_row_ids(numbers(ids)))


@pytest.mark.parametrize(
    "ids,kind",
    [
        (range(5, 900), "range"),
        ([*range(2), *range(3, 900)], "range_with_holes"),
        ([*range(70_000), *range(90_000, 90_002)], "range range"),
        (range(0, 900, 2), "range_with_bitmap"),
        (range(0, 90_000, 100), "sorted_array"),
        ([3, 2, 1], "array"),
    ],
)
def test_the_smallest_encoding_is_chosen(ids: Sequence[int], kind: str) -> None:
    """Pylance reads each encoding."""
    data = encode_row_ids(numbers(ids))
    segments = wire.RowIdSequence.FromString(data).segments
    assert kind == " ".join(segment.WhichOneof("segment") or "" for segment in segments)
    assert list(ids) == read_by_pylance(data)


def test_distant_ranges_are_segments_of_their_own() -> None:
    """Rows that were moved from many fragments do not need bytes each."""
    ids = [number for start in (50_000_000, 10**12, 0) for number in range(start, start + 10_000)]
    data = encode_row_ids(numbers(ids))
    assert 50 > len(data)
    assert ids == decode_row_ids(data, len(ids), "m").tolist() == read_by_pylance(data)


def test_ids_in_no_order_are_one_array() -> None:
    """Separate segments would be larger."""
    ids = list(range(0, 3000, 3))
    random.Random(7).shuffle(ids)
    data = encode_row_ids(numbers(ids))
    assert by_pylance(ids) == data
    assert ids == decode_row_ids(data, 1000, "m").tolist()


@given(st.lists(st.integers(0, 3) | st.integers(0, LARGEST), max_size=40))
def test_versions_survive_the_bytes(versions: list[int]) -> None:
    """Adjacent equal versions are one run."""
    data = encode_versions(numbers(versions))
    assert versions == decode_versions(data, len(versions), "m").tolist()
    changes = sum(one != other for one, other in pairwise(versions))
    assert (changes + 1 if versions else 0) == len(wire.RowDatasetVersionSequence.FromString(data).runs)


@pytest.mark.parametrize(
    "span",
    [
        ids_between(7, 10),
        with_holes(0, 5, array(2, 0, 1, 2)),
        with_bitmap(3, 8, b"\x15"),
        wire.U64Segment(sorted_array=array(2, 0, 4, 5, 6)),
        wire.U64Segment(array=array(2, 0, 6, 5, 4)),
    ],
)
def test_only_the_length_of_a_span_counts(span: wire.U64Segment) -> None:
    """The start and the encoding of a span do not matter."""
    runs = [
        wire.RowDatasetVersionRun(span=span, version=4),
        wire.RowDatasetVersionRun(span=ids_between(0, 1), version=2),
    ]
    data = wire.RowDatasetVersionSequence(runs=runs).SerializeToString()
    assert [4, 4, 4, 2] == decode_versions(data, 4, "m").tolist()


@pytest.mark.parametrize(
    "data,said",
    [
        (b"\xff\xff", "its row versions cannot be parsed"),
        (version_run(2, 1), "row versions for 2 of 3 rows"),
        (version_run(2**63, 1), "row versions for 9223372036854775808 of 3 rows"),
        (
            wire.RowDatasetVersionSequence(runs=[wire.RowDatasetVersionRun(version=1)]).SerializeToString(),
            "no known encoding",
        ),
    ],
)
def test_damaged_versions_are_refused_by_name(data: bytes, said: str) -> None:
    """There are versions for more or fewer rows than exist, or the sequence cannot be decoded."""
    with pytest.raises(CorruptFileError, match=said) as caught:
        decode_versions(data, 3, "main@7")
    assert "main@7" == caught.value.path


def test_versions_that_are_not_recorded_are_the_first() -> None:
    """Pylance reads a fragment without versions in the same way."""
    assert [1, 1, 1] == decode_versions(None, 3, "m").tolist()


@pytest.mark.parametrize(
    "ids", [[5, 6, 7], [9, 5, 1000], [5, 7, 8, 9, 11], [5, 10**6], [5, 10**12], [3 * 10**18, 7], list(range(8, 900, 2))]
)
@pytest.mark.parametrize("encoded", [by_pylance, lambda ids: encode_row_ids(numbers(ids))], ids=["pylance", "package"])
def test_the_smallest_id_is_never_overestimated(ids: list[int], encoded: Callable[[Sequence[int]], bytes]) -> None:
    """In every encoding, the result is the smallest id or a lower bound."""
    found = smallest_row_id(encoded(ids))
    assert found is not None
    assert found <= min(ids)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        sequence(wire.U64Segment()),
        sequence(ids_between(5, 7), wire.U64Segment()),
        sequence(wire.U64Segment(array=wire.EncodedU64Array())),
    ],
)
def test_an_empty_or_damaged_sequence_has_no_smallest_id(data: bytes) -> None:
    """Without a smallest id a merge is refused, because the origin of rows is unknown."""
    assert smallest_row_id(data) is None


def test_moved_rows_show_in_the_smallest_id(tmp_path: Path) -> None:
    """The new fragment of pylance's update has the ids of the moved rows."""
    written(tmp_path, lambda dataset: dataset.update({"value": "0"}, where="value in (2, 8)"), stable_row_ids=True)
    manifest, _ = decode_manifest_file(next(files(tmp_path, "*.manifest")).read_bytes(), "m")
    moved = manifest.fragments[-1].row_ids
    assert moved is not None
    assert 2 == smallest_row_id(moved)


def test_a_run_is_one_version_for_all_rows(tmp_path: Path) -> None:
    """The rows of a first version are one run, as pylance writes it."""
    written(tmp_path, lambda dataset: dataset.version, stable_row_ids=True)
    manifest, _ = decode_manifest_file(next(files(tmp_path, "*.manifest")).read_bytes(), "m")
    assert {version_run(5, 1)} == {fragment.created_at for fragment in manifest.fragments}
    assert {version_run(5, 1)} == {fragment.updated_at for fragment in manifest.fragments}


def test_pylance_is_the_release_these_tests_are_about() -> None:
    """These tests compare facts about pylance 14."""
    assert "14" == lance.__version__.split(".")[0]


def _merged(dataset: lance.LanceDataset) -> None:
    rows = pa.concat_tables([entries("m", 3, 8), entries("b", 99)])
    dataset.merge_insert("value").when_matched_update_all().when_not_matched_insert_all().execute(rows)


def _updated(dataset: lance.LanceDataset) -> None:
    dataset.update({"key": "'u'"}, where="value in (1, 3, 8)")


def _updated_twice(dataset: lance.LanceDataset) -> None:
    _updated(dataset)
    _updated(dataset)


def _compacted(dataset: lance.LanceDataset) -> None:
    _updated(dataset)
    dataset.insert(entries("n", *range(20, 30)))
    dataset.delete("value in (0, 25)")
    _merged(dataset)
    dataset.optimize.compact_files()


def _compacted_and_updated(dataset: lance.LanceDataset) -> None:
    _compacted(dataset)
    dataset.update({"value": "value + 100"}, where="value % 2 = 0")
    dataset.optimize.compact_files()
    dataset.delete("value % 3 = 0")


@pytest.mark.parametrize("history", [_merged, _updated, _updated_twice, _compacted, _compacted_and_updated])
def test_every_row_is_who_pylance_says_it_is(tmp_path: Path, history: Callable[[lance.LanceDataset], None]) -> None:
    """Row ids and both row versions are equal for moved, merged and compacted rows."""
    dataset = written(tmp_path, history, stable_row_ids=True)
    newest = next(files(tmp_path, "*.manifest"))
    manifest, _ = decode_manifest_file(newest.read_bytes(), "m")
    columns = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    assert manifest.fragments
    for fragment in manifest.fragments:
        there = dataset.get_fragment(fragment.id)
        assert there is not None
        rows = dataset.scanner(columns=columns, fragments=[there], with_row_address=True).to_table()
        offsets = rows["_rowaddr"].to_numpy() & np.uint64(0xFFFFFFFF)
        assert fragment.row_ids is not None
        found = [decode_row_ids(fragment.row_ids, fragment.physical_rows, "m")]
        for versions in (fragment.created_at, fragment.updated_at):
            assert versions is not None
            found.append(decode_versions(versions, fragment.physical_rows, "m"))
        for name, values in zip(columns, found, strict=True):
            assert rows[name].to_pylist() == values[offsets].tolist()
