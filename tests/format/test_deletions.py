"""Deletion files of both kinds, read and written."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from lance_dagster import LanceTable
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.deletions import ARROW_FILE, BITMAP_FILE, decode_offsets, encode_offsets
from tests.format.histories import files
from tests.raising import raises
from tests.table_factory import entries, new_table

BOTH_SIDES = pytest.mark.parametrize("deleted,suffix", [(1, "arrow"), (4999, "arrow"), (5000, "bin"), (7000, "bin")])
KINDS = {"arrow": ARROW_FILE, "bin": BITMAP_FILE}


@BOTH_SIDES
def test_what_pylance_deleted_is_read(tmp_path: Path, deleted: int, suffix: str) -> None:
    """The package reads the right offsets, and changes the kind of file at the same number as pylance."""
    dataset = lance.write_dataset(entries("a", *range(8000)), str(tmp_path / "table"))
    dataset.delete(f"value >= 10 and value < {10 + deleted}")
    (path,) = files(tmp_path, "*-*.arrow" if suffix == "arrow" else "*-*.bin")
    data = path.read_bytes()
    assert list(range(10, 10 + deleted)) == list(decode_offsets(KINDS[suffix], data, str(path), 8000))
    assert KINDS[suffix] == encode_offsets(range(10, 10 + deleted))[0]


@BOTH_SIDES
def test_what_is_deleted_here_pylance_reads(tmp_path: Path, deleted: int, suffix: str) -> None:
    """Pylance applies both kinds of file, and deletes further rows."""
    table = new_table(tmp_path, entries("a", *range(8000)))
    table.replace_where(f"value < {deleted}", entries("a"))
    assert 1 == len(list(Path(table.uri).glob(f"_deletions/*.{suffix}")))
    dataset = lance.dataset(table.uri)
    dataset.validate()
    assert list(range(deleted, 8000)) == dataset.to_table()["value"].to_pylist()
    dataset.delete("value >= 7990")
    assert 8000 - deleted - 10 == LanceTable.open(table.uri).count_rows()


@given(st.sets(st.integers(min_value=0, max_value=2**32 - 1), max_size=50))
def test_offsets_survive(offsets: set[int]) -> None:
    """Decoded offsets equal the encoded ones."""
    kind, data = encode_offsets(offsets)
    assert offsets == set(decode_offsets(kind, data, "d", 0))


@pytest.mark.parametrize("count", [3, 5000])
def test_a_file_cut_off_is_damaged(count: int) -> None:
    """No prefix of a deletion file is valid; otherwise deleted rows would reappear."""
    kind, data = encode_offsets(range(0, 3 * count, 3))
    for length in (*range(0, len(data), max(1, len(data) // 200)), len(data) - 1):
        with raises(CorruptFileError, path="_deletions/x"):
            decode_offsets(kind, data[:length], "_deletions/x", 3 * count)


@pytest.mark.parametrize("kind", [ARROW_FILE, BITMAP_FILE, 7])
def test_other_bytes_are_damaged(kind: int) -> None:
    """A file of another or an unknown kind is not read as an empty set."""
    other = encode_offsets([1])[1] if kind != ARROW_FILE else encode_offsets(range(5000))[1]
    with pytest.raises(CorruptFileError):
        decode_offsets(kind, other, "_deletions/x", 0)


def packed(offsets: np.ndarray) -> bytes:
    """A compressed Arrow file."""
    schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(pa.record_batch([pa.array(offsets, pa.uint32())], schema=schema))
    return bytes(sink.getvalue())


@pytest.mark.parametrize("rows", [0, 100])
def test_more_offsets_than_the_fragment_can_have_are_not_unpacked(rows: int) -> None:
    """A file whose ratio of compression is accepted could otherwise claim gigabytes for a fragment of few rows."""
    data = packed(np.zeros(40_000_000, "u4"))
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptFileError, match=r"bytes would unpack to 1600000\d\d"):
        decode_offsets(ARROW_FILE, data, "_deletions/x", rows)
    assert before == pa.total_allocated_bytes()


def test_a_compressed_file_of_offsets_is_read() -> None:
    """Another writer may compress, and store many offsets in an Arrow file."""
    offsets = np.arange(100_000, dtype="u4")
    assert set(offsets.tolist()) == set(decode_offsets(ARROW_FILE, packed(offsets), "_deletions/x", 100_000))
