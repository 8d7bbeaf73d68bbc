"""pylance's errors as this package's."""

from collections.abc import Iterator
from contextlib import contextmanager

from lance_dagster.errors import InvalidInputError, StoreError


@contextmanager
def query_errors(filter: str | None) -> Iterator[None]:
    """Turn what pylance raises while it reads into `InvalidInputError`, or `StoreError` when the storage failed."""
    with reading_errors("read the columns" if filter is None else f"evaluate the filter {filter!r}"):
        yield


@contextmanager
def reading_errors(what: str) -> Iterator[None]:
    """Turn what pylance raises while it does `what` with rows into errors, as `query_errors` does."""
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as error:
        # pylance raises either class for either cause.
        if "LanceError(IO)" in str(error):
            raise StoreError(f"cannot read rows: {_first_line(error)}") from error
        raise InvalidInputError(f"cannot {what}: {_first_line(error)}") from error


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn what pylance raises while it does `what` with a file into `StoreError`."""
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as error:
        raise StoreError(f"cannot {what}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    # pylance appends the place in its own source, which is noise to whoever made the call.
    return str(error).partition("\n")[0].partition(", /")[0]
