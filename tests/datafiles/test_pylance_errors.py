"""Errors of pylance and Arrow, translated into errors of this package."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable, SchemaMismatchError, StoreError
from lance_dagster.datafiles.pylance_errors import query_errors, storage_errors
from lance_dagster.errors import CorruptFileError, NotEnoughMemoryError
from tests.damage import only_file
from tests.table_factory import entries, new_table


def full_memory_in_a_query() -> None:
    """Request more memory than any machine has."""
    with query_errors(None, "/t"):
        pa.allocate_buffer(1 << 60)


def full_memory_in_a_file() -> None:
    """Request as much while a file is read."""
    with storage_errors("read /t/data/x.lance"):
        pa.allocate_buffer(1 << 60)


@pytest.mark.parametrize("read", [full_memory_in_a_query, full_memory_in_a_file])
def test_a_full_memory_is_one_clear_error(read: Callable[[], None]) -> None:
    """The error says what would need less memory; a handler of `MemoryError` catches it too."""
    with pytest.raises(MemoryError, match="read fewer columns") as caught:
        read()
    assert isinstance(caught.value, NotEnoughMemoryError)
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301 - bytes of this test


def test_a_text_that_is_no_json_does_not_fit(tmp_path: Path) -> None:
    """The rows are wrong, and not the storage."""
    table = LanceTable.create(tmp_path / "t", pa.schema([pa.field("j", pa.json_())]))
    with pytest.raises(SchemaMismatchError, match="has to be JSON"):
        table.append(pa.table({"j": ["{}", "not json"]}))


def test_a_damaged_page_tells_what_names_the_file(tmp_path: Path) -> None:
    """The page claims a buffer whose size leads beyond the end of the file."""
    table = new_table(tmp_path, entries("letter a", 0, 1, 2))
    path = only_file(table, "data/*.lance")
    data = bytearray(path.read_bytes())
    data[65] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreError, match="a file is damaged"):
        table.read()
    assert path.name in str(table.maintenance.verify(deep=True).problems[0].path)


@pytest.mark.parametrize("filter", [None, "value = 1"])
@pytest.mark.parametrize("place, value", [(-4, b"P"), (-24, b"\xff" * 8)])
def test_a_damaged_footer_is_no_wrong_argument(tmp_path: Path, place: int, value: bytes, filter: str | None) -> None:
    """Pylance says "Invalid user input" for a wrong magic number and for wrong offsets of the footer's tables."""
    table = new_table(tmp_path, entries("letter a", 0, 1, 2))
    path = only_file(table, "data/*.lance")
    data = bytearray(path.read_bytes())
    data[len(data) + place : len(data) + place + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"maintenance\.verify\(deep=True\) names the file") as caught:
        table.read(filter=filter)
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301 - bytes of this test
    assert path.name in str(table.maintenance.verify(deep=True).problems[0].path)


@pytest.mark.parametrize("filter", ["to_timestamp(key) > now()", "cast(key as int) = 1"])
def test_a_filter_that_fails_on_values_is_a_wrong_argument(tmp_path: Path, filter: str) -> None:
    """The error does not depend on what the function in the filter says about the values."""
    with pytest.raises(InvalidInputError):
        new_table(tmp_path, entries("letter a", 0)).read(filter=filter)


@pytest.mark.parametrize(
    "filter, said",
    [
        (
            "value = 1 adn\nkey = 'a'",
            "'adn' does not continue what is before it; write an operator, such as AND, or .*",
        ),
        ("value = 1 AND", "an expression is missing at the end, or before a closing parenthesis"),
        ("", "an expression is missing at the end, or before a closing parenthesis"),
        ("value = = 1", "Expected: an expression, found: ="),
        ("value =\n1.5", r"Received literal Float64\(1.5\) and could not convert to literal of type 'Int64'"),
    ],
)
def test_a_wrong_filter_is_shown_as_it_was_given(tmp_path: Path, filter: str, said: str) -> None:
    """The error has no parenthesis and no statement around it, and a reason also where there are several lines."""
    with pytest.raises(InvalidInputError) as caught:
        new_table(tmp_path, entries("letter a", 0)).read(filter=filter)
    assert re.fullmatch(
        f"cannot evaluate the filter {re.escape(repr(filter))}: Invalid user input: {said}", str(caught.value)
    )


def test_a_text_that_is_no_timestamp_is_a_wrong_argument(tmp_path: Path) -> None:
    """Neither the literal of a filter nor a cast of a column says anything about the files."""
    table = new_table(tmp_path, entries("letter a", 0))
    with pytest.raises(InvalidInputError):
        table.read(filter="to_timestamp(key) > timestamp 'yesterday'")
    for expression in ("cast('yesterday' as timestamp)", "cast(key as timestamp)"):
        with pytest.raises(InvalidInputError):
            table.columns.add({"at": expression})
    with pytest.raises(InvalidInputError):
        table.update({"key": "cast(cast(key as timestamp) as string)"})
