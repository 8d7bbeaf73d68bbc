"""Inspect data files that may be damaged, in a separate process.

A damaged file can make pylance raise, panic, or allocate more memory than there is, which ends the process. So files
are opened in a subprocess, and its death is a result like any other.

To start a subprocess takes longer than most inspections, so a subprocess that met no damage waits for the next
inspection of its process, and ends by itself when no inspection comes.
"""

import atexit
import json
import os
import resource
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

import pyarrow as pa

from lance_dagster.datafiles.column_ranges import RangeTally
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import DataFileShape
from lance_dagster.format.model import LEGACY_BLOB
from lance_dagster.format.schema import column_positions, fields_from_arrow
from lance_dagster.format.value_ranges import file_ranges

_BLOB = LEGACY_BLOB.encode()
_BATCH = 4096
_PROGRAM = "from lance_dagster.datafiles.file_inspection import serve_inspections; serve_inspections()"
# Generous, so that a slow store is not taken for a damaged file.
_LEAST_SECONDS, _BYTES_A_SECOND = 600, 1_000_000
_LEAST_MEMORY, _BYTES_FOR_A_BYTE = 4 << 30, 16
_IDLE_SECONDS = 30
_idle: list["_Subprocess"] = []
"""The subprocesses that wait for the next inspection, by any thread: taking one from a list is atomic."""
# The pipes of an idle subprocess must have one user.
os.register_at_fork(after_in_child=_idle.clear)


class DataFileInspector(AbstractContextManager["DataFileInspector"]):
    """Opens data files one by one, in a subprocess that is taken or started with the first file."""

    def __init__(self) -> None:
        """Make an inspector; the subprocess is started with the first file."""
        self._process: _Subprocess | None = None
        self._met_damage = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the subprocess to the next inspection, or end it when it may be in the middle of an answer."""
        process, self._process = self._process, None
        if process is None:
            return
        # What a damaged file did to the memory of a process is unknown.
        if kind is None and not self._met_damage:
            _drop_ended()
            _idle.append(process)
        else:
            process.end()

    def inspect(
        self, uri: str, storage_options: Mapping[str, str], *, size: int, decode: bool, ranges: bool = False
    ) -> DataFileShape:
        """Open a data file; with `decode`, decode every value in it.

        Args:
            uri: The file.
            storage_options: Storage options under pylance's names.
            size: The size of the file in bytes, from which the time limit is derived.
            decode: Whether to decode its values.
            ranges: Whether to find the ranges of the values, which takes columns as a table has them.

        Raises:
            CorruptFileError: The file cannot be opened or decoded.
        """
        # It is sent over standard input: other users can see the arguments of a process, and options contain secrets.
        request = {
            "uri": uri,
            "storage_options": dict(storage_options),
            "decode": decode,
            "ranges": ranges,
            "size": size,
        }
        answer = self._send(json.dumps(request), _LEAST_SECONDS + size // _BYTES_A_SECOND)
        if not answer:
            process, self._process = self._process, None
            how = "did not start" if process is None else process.end()
            raise CorruptFileError(uri, f"the process that reads it {how}")
        shape = json.loads(answer)
        if "damage" in shape:
            self._met_damage = True
            raise CorruptFileError(uri, str(shape["damage"]))
        return DataFileShape(**shape)

    def _send(self, request: str, seconds: int) -> bytes:
        if self._process is not None:
            answer = self._process.ask(request, seconds)
            # A subprocess that ended by itself, as after a pause of this process, says nothing about the file.
            if answer or self._process.process.poll() != 0:
                return answer
            self._process.end()
        # The subprocess is started again after a crash: a damaged file must not end the inspection of other files.
        # pylance takes credentials from the environment, so a process with an older environment is not used again.
        environment = program_environment()
        while _idle:
            self._process = _idle.pop()
            fits = self._process.environment == environment
            answer = self._process.ask(request, seconds) if fits else b""
            # A subprocess may have ended before it got the request, so the file is tried with a new subprocess too.
            if answer or (fits and self._process.process.poll() is None):
                return answer
            self._process.end()
        self._process = _Subprocess(environment)
        return self._process.ask(request, seconds)


class _Subprocess:
    """A subprocess that serves inspections, and the environment that it was started with."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The panic messages of pylance would only confuse the output of a verification.
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def ask(self, request: str, seconds: int) -> bytes:
        """Return the answer, or nothing when the subprocess ended or the time is over."""
        process = self.process
        if process.stdin is None or process.stdout is None:
            return b""
        try:
            process.stdin.write(f"{request}\n".encode())
            process.stdin.flush()
        except BrokenPipeError:
            # It has closed its pipes, so it is about to end.
            process.wait()
            return b""
        # A damaged file can keep pylance busy for ever, so the wait has an end.
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        answer = process.stdout.readline() if ready else b""
        if ready and not answer:
            process.wait()
        return answer

    def end(self) -> str:
        """End the subprocess, and return how it ended."""
        process = self.process
        for pipe in (process.stdin, process.stdout):
            # The subprocess may have ended before it read the request; closing flushes the rest and then fails.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        code = process.poll()
        if code is None:
            # It only reads, so nothing is lost. Ending by itself takes it a sixth of a second.
            process.kill()
            process.wait()
            return "takes too long"
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _drop_ended() -> None:
    """Reap the subprocesses that ended by themselves: nobody else waits for them, so they would stay zombies."""
    for waiting in [program for program in _idle if program.process.poll() is not None]:
        # Another thread may have taken it meanwhile.
        with suppress(ValueError):
            _idle.remove(waiting)
            waiting.end()


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


def program_environment() -> dict[str, str]:
    """Return the environment of a subprocess that finds this package where this process found it."""
    # An import ignores entries that are not strings, such as a `Path`.
    entries: list[object] = [*sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in entries if isinstance(path, str) and path)}


def serve_inspections() -> None:
    """Serve inspections: read one JSON request per line from standard input, write one JSON response per line.

    Ends when standard input does, or after a time without a request.
    """
    # The parent waits for each answer, so the buffer never holds a second request.
    while select.select([sys.stdin], [], [], _IDLE_SECONDS)[0] and (line := sys.stdin.readline()):
        request = json.loads(line)
        limit_memory(request.pop("size"))
        try:
            answer: dict[str, Any] = asdict(_summary(**request))
        except (ValueError, OSError, NotImplementedError, RuntimeError) as error:
            answer = {"damage": f"it cannot be read: {_first_line(error)}"}
        except BaseException as error:
            # A panic of pylance is a `BaseException`, and its class cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            answer = {"damage": f"pylance gives up on it: {_first_line(error)}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def limit_memory(size: int) -> None:
    """Limit the memory of this process, so that a damaged file ends it and does not fill the memory of the machine.

    Args:
        size: The size in bytes of the files that it reads, from which the limit is derived.
    """
    limit = max(_LEAST_MEMORY, _BYTES_FOR_A_BYTE * size)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _summary(uri: str, storage_options: Mapping[str, str], *, decode: bool, ranges: bool) -> DataFileShape:
    from lance.file import LanceFileReader

    reader = LanceFileReader(uri, storage_options=dict(storage_options) or None)
    # The stubs lack some of the attributes.
    metadata: Any = reader.metadata()
    # Blob descriptors can be decoded only through a table, and the table may have dropped the column since.
    block = None
    # Early files of format 2.0 say 0.3; everywhere else the version is called 2.0.
    major, minor = (2, 0) if metadata.major_version == 0 else (metadata.major_version, metadata.minor_version)
    if decode and not any(map(_describes_blobs, metadata.schema)):
        rows = 0
        tally = RangeTally(metadata.schema if ranges else pa.schema([]), metadata.schema.names)
        for batch in reader.read_all(batch_size=_BATCH).to_batches():
            rows += batch.num_rows
            tally.add(batch)
        if rows != metadata.num_rows:
            raise ValueError(f"its metadata records {metadata.num_rows} rows, and it holds {rows}")
        if ranges:
            positions = column_positions(fields_from_arrow(metadata.schema), (major, minor))
            block = file_ranges(uri, tally.lines, positions)
    return DataFileShape(rows=metadata.num_rows, columns=len(metadata.columns), major=major, minor=minor, ranges=block)


def _describes_blobs(column: "pa.Field[pa.DataType]") -> bool:
    inner = [column.type.field(number) for number in range(column.type.num_fields)]
    described = pa.types.is_struct(column.type) and _BLOB in (column.metadata or {})
    return described or any(map(_describes_blobs, inner))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].partition(", /")[0]
