"""Deletion files of both kinds, read and written."""

from pathlib import Path

import lance
import pytest
from hypothesis import given, strategies as st

from lance_dagster import LanceTable
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.deletions import ARROW_FILE, BITMAP_FILE, decode_offsets, encode_offsets
from tests.format.histories import files
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
    assert list(range(10, 10 + deleted)) == list(decode_offsets(KINDS[suffix], data, str(path)))
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
    assert offsets == set(decode_offsets(kind, data, "d"))


@pytest.mark.parametrize("count", [3, 5000])
def test_a_file_cut_off_is_damaged(count: int) -> None:
    """No prefix of a deletion file is valid; otherwise deleted rows would reappear."""
    kind, data = encode_offsets(range(0, 3 * count, 3))
    for length in (*range(0, len(data), max(1, len(data) // 200)), len(data) - 1):
        with pytest.raises(CorruptFileError, match=r"^_deletions/x is damaged: it does not hold row offsets"):
            decode_offsets(kind, data[:length], "_deletions/x")


@pytest.mark.parametrize("kind", [ARROW_FILE, BITMAP_FILE, 7])
def test_other_bytes_are_damaged(kind: int) -> None:
    """A file of another or an unknown kind is not read as an empty set."""
    other = encode_offsets([1])[1] if kind != ARROW_FILE else encode_offsets(range(5000))[1]
    with pytest.raises(CorruptFileError):
        decode_offsets(kind, other, "_deletions/x")
