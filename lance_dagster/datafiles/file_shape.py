"""Check that data files exist as their writer described them, before a version names them or pylance opens them.

One request for each file reads its end, which holds the footer, the number of rows and, in most files, the metadata of
all columns. The same request tells the size: one more byte is asked for than the file should have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import DataFileShape, decode_shape
from lance_dagster.store import Store, concurrently

_END_BYTES = 64 << 10
_WORKERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFile:
    """A data file: its store, its key, and the size in bytes that it should have."""

    store: Store
    key: str
    size: int

    @property
    def path(self) -> str:
        """The URI of the file."""
        return f"{self.store.uri}/{self.key}"


def read_shape(file: ExpectedFile, *, pages: bool = False) -> DataFileShape:
    """Read the shape of a data file of format 2.0 or newer.

    Args:
        file: The file.
        pages: Whether to check the metadata of all columns and pages too.

    Raises:
        CorruptFileError: The file is missing, has another size, or is not a data file.
        StoreError: The storage failed.
    """
    start = max(0, file.size - _END_BYTES)
    end = file.store.get_range(file.key, start, file.size + 1)
    if end is None:
        raise CorruptFileError(file.path, "it is missing")
    if start + len(end) != file.size:
        raise CorruptFileError(file.path, f"its size is not {file.size} bytes, as its writer said")

    def read(begin: int, stop: int) -> bytes:
        if begin >= start:
            return end[begin - start : stop - start]
        return file.store.get_range(file.key, begin, stop) or b""

    return decode_shape(read, file.size, file.path, pages=pages)


def read_shapes(files: Sequence[ExpectedFile], *, pages: bool = False) -> list[DataFileShape]:
    """Read the shapes of data files, several at the same time.

    Raises:
        CorruptFileError: As for `read_shape`, for the first such file.
        StoreError: The storage failed.
    """
    return concurrently(lambda file: read_shape(file, pages=pages), files, at_once=_WORKERS)
