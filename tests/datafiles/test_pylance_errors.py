"""Errors of pylance and Arrow, in the words of this package."""

import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest

from lance_dagster import NotEnoughMemoryError
from lance_dagster.datafiles.pylance_errors import query_errors, storage_errors


def full_memory_in_a_query() -> None:
    """More than any machine has."""
    with query_errors(None, "/t"):
        pa.allocate_buffer(1 << 60)


def full_memory_in_a_file() -> None:
    """The same, while a file is read."""
    with storage_errors("read /t/data/x.lance"):
        pa.allocate_buffer(1 << 60)


@pytest.mark.parametrize("read", [full_memory_in_a_query, full_memory_in_a_file])
def test_a_full_memory_is_one_clear_error(read: Callable[[], None]) -> None:
    """It says what would need less; a handler of `MemoryError` gets it too."""
    with pytest.raises(MemoryError, match="not enough memory; read fewer columns or rows, or a stream") as caught:
        read()
    assert isinstance(caught.value, NotEnoughMemoryError)
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301 - bytes of this test
