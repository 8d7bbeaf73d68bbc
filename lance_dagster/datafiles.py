"""Rows to `.lance` data files and back. The only door to pylance.

Encoding data files is not what this package is for; pylance does it. What is ours is which file belongs to which
version: a file is written under a name of its own, described by a small value, and means nothing until a commit names
it. Data files of every branch go to the `data/` folder of the table's root, so that a merge copies nothing.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter
from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError, SchemaMismatchError, StoreError
from lance_dagster.format.model import DataFile, Field, Fragment
from lance_dagster.format.schema import stored_field_ids
from lance_dagster.store import make_durable

LanceDataset = lance.LanceDataset
FILE_VERSION = "2.2"
"""Version of the data files of the tables this package creates."""
_MAX_ROWS_PER_FILE = 1024 * 1024
_STRINGS = frozenset({pa.string(), pa.large_string(), pa.string_view()})
_BINARIES = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """What a process needs to write data files for a table: send it to executors.

    It carries the table's storage options; its repr does not show them.
    """

    data_uri: str
    schema: pa.Schema
    file_version: str = FILE_VERSION
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    max_rows: int = _MAX_ROWS_PER_FILE
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A data file that is written and not committed. `size` is in bytes."""

    name: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Data files of one schema that are written and not committed: as good as rows for every write of a table."""

    schema: pa.Schema
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)


def write_files(target: WriteTarget, batches: Iterable[pa.RecordBatch]) -> tuple[StagedFile, ...]:
    """Write batches to as many data files as `target.max_rows` asks for; no rows, no file.

    Raises:
        SchemaMismatchError: A batch does not fit the target's schema.
        StoreError: The storage failed. Files finished before stay, and mean nothing.
    """
    files: list[StagedFile] = []
    writer: _OpenFile | None = None
    for batch in batches:
        rest = conform(batch, target.schema)
        while rest.num_rows:
            writer = writer or _OpenFile(target)
            rest = writer.write(rest)
            if writer.full:
                files.append(writer.close())
                writer = None
    if writer is not None:
        files.append(writer.close())
    return tuple(files)


class _OpenFile:
    """One data file being written. Dropped without `close`, it leaves no file of its name."""

    def __init__(self, target: WriteTarget) -> None:
        self._name = f"{target.prefix}-{uuid.uuid4().hex}.lance"
        self._path = f"{target.data_uri}/{self._name}"
        self._room = target.max_rows
        with _storage_errors(f"write {self._path}"):
            self._writer = LanceFileWriter(
                self._path,
                target.schema,
                version=target.file_version,
                storage_options=dict(target.storage_options) or None,
            )

    @property
    def full(self) -> bool:
        return self._room == 0

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write what fits and return the rest."""
        now = batch.slice(0, self._room)
        with _storage_errors(f"write {self._path}"):
            self._writer.write_batch(now)
        self._room -= now.num_rows
        return batch.slice(now.num_rows)

    def close(self) -> StagedFile:
        with _storage_errors(f"write {self._path}"):
            rows = self._writer.close()
        # pylance does not sync: without this a power cut could tear a file that a durable commit names.
        make_durable(self._path)
        return StagedFile(self._name, rows or 0, self._writer.size_bytes or 0)


def fragments_of(staged: StagedFiles, fields: Sequence[Field], file_version: str) -> tuple[Fragment, ...]:
    """Describe staged files as fragments, one per file, not yet numbered."""
    major, minor = (int(part) for part in file_version.split("."))
    ids = stored_field_ids(fields) if (major, minor) >= (2, 1) else tuple(field.id for field in fields)
    return tuple(
        Fragment(
            id=0,
            files=(
                DataFile(
                    path=file.name,
                    fields=ids,
                    column_indices=tuple(range(len(ids))),
                    major=major,
                    minor=minor,
                    size=file.size,
                ),
            ),
            physical_rows=file.rows,
        )
        for file in staged.files
    )


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns, order and types of `schema`.

    Types may differ in representation only: widths of offsets, a list for a fixed-size list, the label of a time
    zone, a finer unit of time, no values for any type. Nothing is rounded, parsed or filled in.

    Raises:
        SchemaMismatchError: With the column and both types.
    """
    check_schema(batch.schema, schema)
    columns = [_conform_column(batch.column(column.name), column) for column in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_schema(found: pa.Schema, wanted: pa.Schema) -> None:
    """Refuse rows of schema `found` for a table of schema `wanted`, before any row is read.

    Raises:
        SchemaMismatchError: With every column that does not fit and both types.
    """
    problems = [f"column {name!r} is missing" for name in wanted.names if name not in found.names]
    problems += [f"column {name!r} is not in the table" for name in found.names if name not in wanted.names]
    problems += [f"column {name!r} is given twice" for name in wanted.names if found.names.count(name) > 1]
    for column in wanted:
        if found.names.count(column.name) != 1:
            continue
        given = found.field(column.name).type
        if not _same_kind(given, column.type):
            problems.append(f"column {column.name!r} is {given}, the table holds {column.type}")
    if problems:
        raise SchemaMismatchError("; ".join(problems))


def _same_kind(given: Any, wanted: Any) -> bool:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    given, wanted = _stored(given), _stored(wanted)
    if given == wanted or pa.types.is_null(given):
        return True
    if any(given in family and wanted in family for family in (_STRINGS, _BINARIES)):
        return True
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        finer = ["s", "ms", "us", "ns"]
        return (given.tz is None) == (wanted.tz is None) and finer.index(given.unit) <= finer.index(wanted.unit)
    if _is_list(given) and _is_list(wanted):
        fixed = pa.types.is_fixed_size_list
        if fixed(given) and fixed(wanted) and given.list_size != wanted.list_size:
            return False
        return _same_kind(given.value_type, wanted.value_type)
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        return _same_struct(given, wanted)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _same_kind(given.key_type, wanted.key_type) and _same_kind(given.item_type, wanted.item_type)
    return False


def _stored(arrow: pa.DataType) -> pa.DataType:
    # A table holds the storage of an extension type, and says in the column's metadata what it stands for.
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def _same_struct(given: pa.StructType, wanted: pa.StructType) -> bool:
    names = [wanted.field(index).name for index in range(wanted.num_fields)]
    if names != [given.field(index).name for index in range(given.num_fields)]:
        return False
    return all(_same_kind(given.field(index).type, wanted.field(index).type) for index in range(wanted.num_fields))


def _is_list(arrow: pa.DataType) -> bool:
    return pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow)


def _conform_column(values: "pa.Array[Any]", column: "pa.Field[Any]") -> "pa.Array[Any]":
    if not column.nullable and values.null_count:
        raise SchemaMismatchError(f"column {column.name!r} has nulls, the table holds {column.type} not null")
    if values.type == column.type:
        return values
    try:
        return values.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"column {column.name!r} is {values.type}, the table holds {column.type}: {error}"
        ) from error


def open_dataset(
    uri: str, branch: str, number: int, storage_options: Mapping[str, str] | None = None
) -> lance.LanceDataset:
    """Open a table at exactly one version with pylance; `branch` is "main" or a branch."""
    options = dict(storage_options or {}) or None
    with _storage_errors(f"open {uri} at {branch}@{number}"):
        if branch == "main":
            return lance.dataset(uri, version=number, storage_options=options)
        return lance.dataset(uri, storage_options=options).checkout_version((branch, number))


def scan(
    dataset: lance.LanceDataset, columns: Sequence[str] | None = None, filter: str | None = None
) -> pa.RecordBatchReader:
    """Read rows as a stream of batches.

    Raises:
        InvalidInputError: A column does not exist or the filter cannot be understood.
    """
    _check_columns(dataset, columns)
    with _query_errors(filter):
        return dataset.scanner(columns=list(columns) if columns is not None else None, filter=filter).to_reader()


def read(dataset: lance.LanceDataset, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.Table:
    """Read rows into memory; unlike a stream's, errors that only show in the rows are this package's too."""
    stream = scan(dataset, columns, filter)
    with _query_errors(filter):
        return stream.read_all()


def count(dataset: lance.LanceDataset, filter: str | None = None) -> int:
    """Count the rows that match a filter."""
    with _query_errors(filter):
        return dataset.count_rows(filter=filter)


def matching_offsets(dataset: lance.LanceDataset, predicate: str) -> dict[int, BitMap]:
    """Return the offsets of the live rows that match, by fragment id; fragments without a match are left out."""
    found: dict[int, BitMap] = {}
    with _query_errors(predicate):
        scanner = dataset.scanner(columns=[], filter=predicate, with_row_address=True)
        for batch in scanner.to_batches():
            # A row address is the fragment's id in the high half and the offset in the low one.
            addresses = batch.column("_rowaddr").to_numpy()
            fragments = addresses >> 32
            for fragment in np.unique(fragments):
                offsets = (addresses[fragments == fragment] & 0xFFFFFFFF).astype(np.uint32)
                found.setdefault(int(fragment), BitMap()).update(offsets)
    return found


def count_in_fragments(dataset: lance.LanceDataset, fragment_ids: Iterable[int], predicate: str) -> int:
    """Count the live rows of some fragments that match."""
    with _query_errors(predicate):
        fragments = [dataset.get_fragment(number) for number in fragment_ids]
        return sum(fragment.count_rows(filter=predicate) for fragment in fragments if fragment is not None)


def _check_columns(dataset: lance.LanceDataset, columns: Sequence[str] | None) -> None:
    known = dataset.schema.names
    missing = [name for name in columns or () if name.split(".")[0] not in known]
    if missing:
        raise InvalidInputError(f"no column {', '.join(map(repr, missing))}; the table has {', '.join(known)}")


@contextmanager
def _query_errors(filter: str | None) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as error:
        # pylance raises either class for either cause.
        if "LanceError(IO)" in str(error):
            raise StoreError(f"cannot read rows: {_first_line(error)}") from error
        what = "read the columns" if filter is None else f"evaluate the filter {filter!r}"
        raise InvalidInputError(f"cannot {what}: {_first_line(error)}") from error


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as error:
        raise StoreError(f"cannot {what}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    # pylance appends the place in its own source, which is noise to whoever made the call.
    return str(error).partition("\n")[0].partition(", /")[0]
