"""pylance's errors as this package's."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lance_dagster.errors import CorruptFileError, InvalidInputError, StoreError, UnsupportedFeatureError

_EXPECTED = (ValueError, OSError, NotImplementedError, RuntimeError)
_PANIC = "PanicException"
_DAMAGE = (
    "Encountered corrupt file",
    "Encountered internal error",
    "failed to decode Protobuf",
    "failed to fill whole buffer",
    "Parser error",
    "invalid seek",
    "Unknown Lance storage version",
    "Non-leaf field",
    "specified the column index",
    "missing row count",
    "v1 binary row range",
    "size is greater than supported",
)
"""What pylance says when the bytes of a file are not what they should be."""
_UNFINISHED = (
    "PageLayout encoding",
    "u32 chunk grammar",
    "mixed data-file-version capability",
)
"""What pylance says of data files written while their version of the format was still being worked on."""
_NO_FIELD = re.compile(
    r"No field named (?P<name>[^\s\"']+)\. (Valid fields are (?P<known>[^()]*)|Did you mean '(?P<near>[^']*)'\?)\."
)
"""What it says of a column that is not there: of a text without quotes, mostly."""
_OF_PYLANCE = {"_rowid", "_rowaddr", "_row_last_updated_at_version", "_row_created_at_version", "_rowoffset"}
_CRASHED = "reader producer terminated"
"""What is left of a crash in one of pylance's threads."""


@contextmanager
def query_errors(filter: str | None, where: str = "the table") -> Iterator[None]:
    """Turn what pylance raises while it reads into `InvalidInputError`.

    Or into `StoreError` when the storage failed, `CorruptFileError` when a file is damaged and
    `UnsupportedFeatureError` when pylance does not know what is in it; `where` is for these.
    """
    with reading_errors("read the columns" if filter is None else f"evaluate the filter {filter!r}", where):
        yield


@contextmanager
def reading_errors(what: str, where: str = "the table") -> Iterator[None]:
    """Turn what pylance raises while it does `what` with rows into errors, as `query_errors` does."""
    try:
        with _crashes(what, where):
            yield
    except _EXPECTED as error:
        # pylance raises any class for any cause.
        if "LanceError(IO)" in str(error) or "Not found: " in str(error):
            raise StoreError(f"cannot read rows of {where}: {_first_line(error)}") from error
        raise InvalidInputError(f"cannot {what}: {_first_line(error)}") from error


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn what pylance raises while it does `what` with a file into `StoreError`."""
    try:
        with _crashes(what, "the table"):
            yield
    except _EXPECTED as error:
        if "Not supported: " in str(error):
            raise InvalidInputError(f"cannot {what}: {_first_line(error)}") from error
        raise StoreError(f"cannot {what}: {_first_line(error)}") from error


@contextmanager
def _crashes(what: str, where: str) -> Iterator[None]:
    """Turn what pylance raises over files, and its crashes, into this package's errors.

    A crash is no `Exception` and has no class that could be named.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, _EXPECTED) and any(sign in str(error) for sign in _UNFINISHED):
            unknown = f"data files that pylance cannot read ({_first_line(error)})"
            raise UnsupportedFeatureError(where, [unknown]) from error
        if isinstance(error, _EXPECTED) and any(sign in str(error) for sign in _DAMAGE):
            raise CorruptFileError(where, f"cannot {what}: {_first_line(error)}") from error
        if type(error).__name__ != _PANIC and _CRASHED not in str(error):
            raise
        raise StoreError(f"cannot {what} of {where}: pylance crashed: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    # pylance appends the place in its own source, which is noise to whoever made the call.
    said = str(error).partition("\n")[0].partition(", /")[0]
    unknown = _NO_FIELD.search(said)
    if unknown is None:
        return said
    name, near = unknown["name"], unknown["near"]
    # Of those it lists, some are not the table's.
    fields = [field for field in (unknown["known"] or "").split(", ") if field and field not in _OF_PYLANCE]
    known = f"; did you mean the column {near}?" if near else f"; there are {', '.join(fields)}" if fields else ""
    return f"No field named {name}{known}; a text is written '{name}', in quotes"
