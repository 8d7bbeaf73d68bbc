"""Read rows in a subprocess, so that a damaged file ends the subprocess and not the process of the caller.

The subprocess gets one request on its standard input and answers with an Arrow stream. Its exit code tells whether the
stream is complete: a stream that was cut off between two batches looks like a complete stream. An error that the
subprocess can report is the last line of its standard error.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa

from lance_dagster.datafiles.file_inspection import limit_memory, program_environment
from lance_dagster.datafiles.reading import open_dataset, scan
from lance_dagster.errors import (
    CorruptFileError,
    InvalidInputError,
    LanceDagsterError,
    NotEnoughMemoryError,
    StoreError,
    UnsupportedFeatureError,
)
from lance_dagster.format.validation import check_string

if TYPE_CHECKING:
    import io

_PROGRAM = "from lance_dagster.datafiles.isolated_reading import serve_rows; serve_rows()"
_REPORTED = {
    kind.__name__: kind
    for kind in (CorruptFileError, InvalidInputError, NotEnoughMemoryError, StoreError, UnsupportedFeatureError)
}
_REPORT = "lance_dagster: "
_FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedScan:
    """The request for a read: a version of a table, the columns to read and the filter of the rows.

    Its repr omits the storage options, which hold secrets. `size` is the size of the data files in bytes.
    """

    uri: str
    branch: str
    number: int
    storage_options: Mapping[str, str] = field(repr=False)
    columns: Sequence[str] | None
    filter: str | None
    size: int


def scan_isolated(request: IsolatedScan) -> pa.RecordBatchReader:
    """Read rows in a subprocess, as a stream of batches. The subprocess ends with the stream.

    Raises:
        CorruptFileError: The subprocess was ended by what it read; the stream raises it too.
        InvalidInputError: A column does not exist, or the filter is invalid.
        StoreError: The storage failed.
    """
    if request.filter is not None:
        check_string("the filter", request.filter)
    answers = _answers(request)
    schema = next(answers)
    return pa.RecordBatchReader.from_batches(schema, answers)


def _answers(request: IsolatedScan) -> Iterator[Any]:
    """Yield the schema, and then the batches."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=program_environment(),
        )
        # `IO` and `IOBase` are the same object here; the stubs of pyarrow ask for the latter.
        answers = cast("io.IOBase | None", process.stdout)
        if process.stdin is None or answers is None:
            raise StoreError("cannot start a process to read in")
        try:
            # The request is sent over standard input: other users can see the arguments of a process, and options
            # contain secrets.
            with suppress(BrokenPipeError), process.stdin as requests:
                requests.write(json.dumps(asdict(request)).encode())
            is_complete = False
            # A stream that breaks off is reported below, with the reason.
            with suppress(pa.ArrowInvalid, OSError), pa.ipc.open_stream(answers) as stream:
                yield stream.schema
                yield from stream
                is_complete = True
            code = process.wait()
            if code or not is_complete:
                raise _error(request.uri, code, errors)
        finally:
            # The caller gave the stream up, or it is over.
            process.kill()
            process.wait()
            answers.close()


def _error(uri: str, code: int, errors: IO[bytes]) -> LanceDagsterError:
    """Return the error of a subprocess that failed: the error that it reported, or how it ended."""
    errors.seek(0)
    report = errors.read().decode(errors="replace").rstrip().rpartition("\n")[2]
    if code == _FAILED and report.startswith(_REPORT):
        kind, arguments = json.loads(report.removeprefix(_REPORT))
        return _REPORTED[kind](*arguments)
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    problem = f"reading it ended the process that read it, {how}; `verify(deep=True)` names the file"
    return CorruptFileError(uri, problem)


def serve_rows() -> None:
    """Answer one request on standard input with an Arrow stream on standard output."""
    request = json.load(sys.stdin)
    limit_memory(request.pop("size"))
    columns, condition = request.pop("columns"), request.pop("filter")
    # What pylance or one of its libraries prints must not get between the batches.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            dataset = open_dataset(**request)
            with (
                scan(dataset, columns, condition) as rows,
                pa.ipc.new_stream(output, rows.schema) as stream,
            ):
                for batch in rows:
                    stream.write_batch(batch)
        except LanceDagsterError as error:
            kind = next((name for name, reported in _REPORTED.items() if type(error) is reported), StoreError.__name__)
            arguments = error.args if kind == type(error).__name__ else [str(error)]
            sys.stderr.write(f"{_REPORT}{json.dumps([kind, list(arguments)])}\n")
            sys.stderr.flush()
            # This skips the clean-up of the interpreter, which would write the rest of an incomplete stream.
            os._exit(_FAILED)
