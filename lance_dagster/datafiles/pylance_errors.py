"""Translate the errors of pylance to the errors of this package.

pylance raises `ValueError`, `OSError` and `RuntimeError` for any cause, and panics with a `BaseException` whose class
cannot be imported. The cause is therefore recognised by message; the lists below record the messages of the supported
releases.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lance_dagster.errors import (
    Call,
    CommitConflictError,
    CorruptFileError,
    InvalidInputError,
    NotEnoughMemoryError,
    PermissionRefusedError,
    Remedy,
    SchemaMismatchError,
    StoreError,
    UnsupportedFeatureError,
)
from lance_dagster.format.sql_text import enclosed

_EXPECTED = (ValueError, OSError, NotImplementedError, RuntimeError)
_UNFIT_VALUES = {
    "Failed to encode JSON: ": "a text for a column of JSON has to be JSON",
    "Invalid user input: The struct field ": "a null struct cannot be stored",
}
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
    # The reader of data files reports damage with this text; a filter is refused before any file is read.
    "External error: Invalid user input",
    "exceeds length of values",
    "in the protobuf field list",
    "current-format reader to read v1 metadata",
)
"""Parts of messages that mean a damaged file."""
_EVALUATED = ("Error applying filter expression", "Error parsing timestamp from")
"""Parts of messages for an expression that fails on a value, such as a cast of a string that is not a number."""
_BEYOND_THE_END = "Invalid range"
"""Part of the message for a request beyond the end of a file, to which a damaged page leads."""
_UNFINISHED = ("PageLayout encoding", "u32 chunk grammar", "mixed data-file-version capability")
"""Parts of messages for data files written by a pre-release of their format version."""
_NO_FIELD = re.compile(
    r"No field named (?P<name>[^\s\"']+)\. (Valid fields are (?P<known>[^()]*)|Did you mean '(?P<near>[^']*)'\?)\."
)
"""The message for an unknown column, often a string literal without quotes."""
_UNPARSED = re.compile(r"Error parsing statement: .*\(sql parser error: (?P<problem>.*?)\)(?=, /|\Z)", re.DOTALL)
"""The message for a text that is not SQL, with the statement around it."""
_UNRESOLVED = re.compile(r"Error resolving filter expression .*: Invalid user input: ", re.DOTALL)
"""The beginning of the message for a filter that does not fit the types of the columns, with its text."""
_UNEXPECTED = re.compile(r"Expected: (?P<wanted>.*), found: (?P<found>.*)", re.DOTALL)
_VIRTUAL_COLUMNS = {"_rowid", "_rowaddr", "_row_last_updated_at_version", "_row_created_at_version", "_rowoffset"}
_REFUSED = ("(os error 1)", "(os error 13)", "(os error 30)", "lacked the necessary privileges", "lacked valid auth")
"""Parts of messages for EPERM, EACCES, EROFS, and the statuses 403 and 401: nothing was read or written."""
_IF_DAMAGED = Remedy("if a file is damaged, {} names it", Call("maintenance.verify", named={"deep": True}))
_CONFLICT = re.compile(r"(?P<retryable>Retryable c|C)ommit conflict for version (?P<number>[0-9]+): (?P<cause>[^,.]*)")
"""The message for a commit of pylance that conflicts with the version whose number it has."""
_CRASHED = ("reader producer terminated", "panicked with message")
"""Parts of messages that remain of a panic in one of pylance's threads."""


@contextmanager
def query_errors(filter: str | None, where: str = "the table") -> Iterator[str | None]:
    """Yield the filter as pylance gets it, and translate errors of pylance; the default is `InvalidInputError`.

    A failed storage becomes `StoreError`, a damaged file `CorruptFileError`, content that pylance does not support
    `UnsupportedFeatureError`; these messages name `where`. A filter that is not a string is refused before the query.
    """
    condition = None if filter is None else enclosed("the filter", filter)
    with reading_errors("read the columns" if filter is None else f"evaluate the filter {filter!r}", where):
        yield condition


@contextmanager
def reading_errors(what: str, where: str = "the table") -> Iterator[None]:
    """Translate errors of pylance while it does `what` with rows, as `query_errors` does."""
    try:
        with _panics(what, where, _IF_DAMAGED):
            yield
    except _EXPECTED as error:
        _raise_refusal(f"read rows of {where}", error)
        # pylance raises any class for any cause, so the message decides.
        if "LanceError(IO)" in str(error) or "Not found: " in str(error):
            # A range beyond the end of a file or page is damage, which pylance reports as a failed request.
            deep = Call("maintenance.verify", named={"deep": True})
            remedy = Remedy("a file is damaged: {} names it", deep) if _BEYOND_THE_END in str(error) else None
            raise StoreError(f"cannot read rows of {where}: {_first_line(error)}", remedy=remedy) from error
        raise InvalidInputError(f"cannot {what}: {_first_line(error)}") from error


@contextmanager
def commit_conflicts(what: str) -> Iterator[None]:
    """Translate the error of pylance for a commit that conflicts with another version; other errors are left alone."""
    try:
        yield
    except _EXPECTED as error:
        conflict = _CONFLICT.search(str(error))
        if conflict is None:
            raise
        retryable = conflict["retryable"] != "C"
        raise CommitConflictError(f"cannot {what}: {conflict['cause']}", conflict["number"], retryable) from error


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Translate errors of pylance while it does `what` with a file; the default is `StoreError`."""
    try:
        with _panics(what, "the table"):
            yield
    except _EXPECTED as error:
        _raise_refusal(what, error)
        if "Not supported: " in str(error):
            raise InvalidInputError(f"cannot {what}: {_first_line(error)}") from error
        for part, problem in _UNFIT_VALUES.items():
            if part in str(error):
                raise SchemaMismatchError(f"{problem}: {_first_line(error).rpartition(part)[2]}") from error
        raise StoreError(f"cannot {what}: {_first_line(error)}") from error


def _raise_refusal(what: str, error: BaseException) -> None:
    """Raise `PermissionRefusedError` where the operating system or the object store refused to write or read a file."""
    if any(code in str(error) for code in _REFUSED):
        # Before it stand the attempts, and behind it the response of the server, as XML.
        line = _first_line(error)
        answer = line[max(0, line.find("The operation lacked")) :].partition(": Error performing ")[0]
        raise PermissionRefusedError(what, answer, known="lacked valid auth" not in answer) from error


@contextmanager
def _panics(what: str, where: str, remedy: Remedy | None = None) -> Iterator[None]:
    """Translate errors about damaged files, and panics, for which the remedy is given.

    A panic is a `BaseException` whose class cannot be imported, so it is recognised by name.
    """
    try:
        yield
    except MemoryError as error:
        raise NotEnoughMemoryError(
            f"cannot {what} of {where}: there is not enough memory; read fewer columns or rows, or a stream of batches"
        ) from error
    except BaseException as error:
        if isinstance(error, _EXPECTED) and any(part in str(error) for part in _UNFINISHED):
            problem = "data files that pylance cannot read, unless `verify(deep=True)` finds one damaged"
            unknown = f"{problem}: {_first_line(error)}"
            raise UnsupportedFeatureError(where, [unknown]) from error
        if isinstance(error, _EXPECTED) and _is_damage(str(error)):
            deep = Remedy("{} names the file", Call("maintenance.verify", named={"deep": True}))
            raise CorruptFileError(where, f"cannot {what}: {_first_line(error)}", deep) from error
        if type(error).__name__ != _PANIC and not any(part in str(error) for part in _CRASHED):
            raise
        crashed = f"cannot {what} of {where}: pylance crashed: {_first_line(error)}"
        raise StoreError(crashed, remedy=remedy) from error


def _is_damage(message: str) -> bool:
    return any(part in message for part in _DAMAGE) and not any(part in message for part in _EVALUATED)


def _first_line(error: BaseException) -> str:
    # The texts of callers are in parentheses there, which they did not write, and may have several lines.
    message = _UNRESOLVED.sub("", _UNPARSED.sub(lambda match: _unparsed(match["problem"]), str(error)))
    # pylance appends the position in its own source code, which does not help a caller.
    message = message.partition("\n")[0].partition(", /")[0]
    unknown = _NO_FIELD.search(message)
    if unknown is None:
        return message
    name, near = unknown["name"], unknown["near"]
    # The listed fields include virtual columns, which are not columns of the table.
    fields = [field for field in (unknown["known"] or "").split(", ") if field and field not in _VIRTUAL_COLUMNS]
    if near:
        return f"No field named {name}; did you mean the column {near}, or the string '{name}', in quotes?"
    existing = f"; there are {', '.join(fields)}" if fields else ""
    return f"No field named {name}{existing}; a string is written '{name}', in quotes"


def _unparsed(problem: str) -> str:
    """Return why a text is not SQL. Lance puts it in parentheses, so its end is a closing parenthesis."""
    unexpected = _UNEXPECTED.fullmatch(problem)
    match unexpected and unexpected.groups():
        case (")", token):
            return f"{token!r} does not continue what is before it; write an operator, such as AND, or leave it out"
        case ("an expression", ")"):
            return "an expression is missing at the end, or before a closing parenthesis"
        case _:
            return problem
