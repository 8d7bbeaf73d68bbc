"""Write rows to data files. A data file is described by a small value, and is part of the table once a commit names it.

Blobs are values so large that they may be stored in files of their own beside the data file. Only pylance's fragment
writer lays them out. It takes the field ids from the newest version of `main`, so the rows need the columns of `main`;
the ids are assigned when the files are committed, as for any other file.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_dagster.datafiles.alignment import aligned_batch
from lance_dagster.datafiles.column_ranges import RangeTally
from lance_dagster.datafiles.conforming import conform
from lance_dagster.datafiles.dictionaries import DictionaryRoom, has_narrow_dictionaries, joined
from lance_dagster.datafiles.digests import record_written
from lance_dagster.datafiles.pylance_errors import storage_errors
from lance_dagster.errors import InvalidInputError, SchemaMismatchError, UnsupportedFeatureError
from lance_dagster.format.arrow_types import has_blobs, has_legacy_blobs
from lance_dagster.format.layout import DATA
from lance_dagster.format.model import LEGACY_BLOB, DataFile, Field, Fragment, parse_file_version
from lance_dagster.format.schema import column_positions, stored_field_ids
from lance_dagster.format.value_ranges import file_ranges
from lance_dagster.store import records_digests, sync_path

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileWriter

FILE_VERSION = "2.2"
"""The data file version of the tables that this package creates."""
SMALL_FILE_BYTES = 1024 * 1024
"""Up to this size, a file may be left to the commit that names it, which syncs it at the same time as its manifest."""
# The versions that LanceFileWriter writes; it does not write the legacy format.
_WRITABLE = frozenset({"2.0", "2.1", "2.2", "2.3"})
_MAX_ROWS_PER_FILE = 1024 * 1024
MAX_BYTES_PER_FILE = 1024 * 1024 * 1024
"""About how many bytes of Arrow a data file holds at most; a million rows of 1,000 bytes. Wide rows fill files before
they have the most rows: a task that fails then loses less work, and readers share the rows of a table more evenly."""
# pylance buffers 8 MiB for each column, which takes gigabytes for a thousand columns.
_BUFFER_BYTES = 8 * 1024 * 1024
_MOST_BUFFER_BYTES = 48 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """Everything a process needs to write data files for a table; it is sent to executors.

    It contains the storage options of the table, which its repr omits because they hold secrets. The names of its files
    begin with `prefix`, by which the files of an interrupted write are recognised; pylance names files with blobs
    itself. `base` is the path of the base path of `data_uri`, in canonical spelling; None is the table itself.
    `stored_row_bytes` is about the size of a row in the files that the table has; 0 when it has none. A file is closed
    at `max_rows` rows, or at about `max_bytes` bytes of Arrow; with None, or with blobs, the rows alone decide.
    `synced_by_commit` leaves the sync of small files to the append of this process that names them next.
    `records_digests` says that each file is read again, to record its digest. The bounds of the values of the columns
    `ranged` are recorded wherever they stand, and those of some other columns.
    """

    data_uri: str
    schema: pa.Schema
    file_version: str = FILE_VERSION
    prefix: str = ""
    max_rows: int = _MAX_ROWS_PER_FILE
    max_bytes: int | None = MAX_BYTES_PER_FILE
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    base: str | None = None
    stored_row_bytes: int = 0
    synced_by_commit: bool = False
    records_digests: bool = False
    ranged: tuple[str, ...] = ()

    def with_ranges(self, columns: Iterable[str]) -> "WriteTarget":
        """Return a target whose files also have the ranges of some columns, by which their rows are looked for."""
        return replace(self, ranged=tuple(dict.fromkeys((*self.ranged, *columns))))


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A data file that is written but not committed. `size` is in bytes.

    `ranges` is what its writer knows of the values, as text (`format/value_ranges`).
    """

    name: str
    rows: int
    size: int
    ranges: str = ""

    def described(self) -> dict[str, str | int]:
        """Return the file as values of JSON, of which another process makes it again."""
        return {"name": self.name, "rows": self.rows, "size": self.size, "ranges": self.ranges}


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Data files of one schema that are written but not committed; every write of a table accepts them as rows.

    `base` is the path of the base path they are stored under, as in `WriteTarget`; None is the table itself.
    `satisfies` is a predicate that their writer found true for each row; a `replace_where` with this predicate does not
    read the files to check it. `is_checked` says that the files were written just now as they are described; otherwise
    a commit looks at each of them first.
    """

    schema: pa.Schema
    files: tuple[StagedFile, ...]
    base: str | None = None
    satisfies: str | None = None
    is_checked: bool = False

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)


def write_files(target: WriteTarget, batches: Iterable[pa.RecordBatch]) -> tuple[StagedFile, ...]:
    """Write batches to data files of at most `max_rows` rows and about `max_bytes` bytes of the target.

    Without rows, no file is written. A batch that is larger than what a file has room for is divided.

    Raises:
        SchemaMismatchError: A batch does not match the schema of the target.
        StoreError: The storage failed. Finished files remain as orphans, which garbage collection removes.
    """
    if target.file_version not in _WRITABLE:
        # Tables of early Lance releases record no version.
        version = f"of version {target.file_version!r}" if target.file_version else "older than 2.0"
        raise UnsupportedFeatureError(target.data_uri, [f"writing data files {version}, which pylance may do"])
    conformed: Iterator[pa.RecordBatch] = (conform(batch, target.schema) for batch in batches)
    if _has_narrow_dictionaries(target.schema):
        conformed = joined(conformed, target.schema, target.file_version)
    if has_blobs(target.schema):
        return _write_blobs(target, conformed)
    files = _Files(target)
    for batch in conformed:
        files.add(batch)
    return files.closed()


def write_file(target: WriteTarget, batches: Iterable[pa.RecordBatch], rows: int) -> StagedFile | None:
    """Write batches to one data file, whatever its size; None unless they have as many rows as they should.

    Raises:
        SchemaMismatchError: A batch does not match the schema, or the rows have more values than a dictionary can
            number.
        StoreError: The storage failed.
    """
    if has_narrow_dictionaries(target.schema):
        parts = (conform(batch, target.schema) for batch in batches)
        united = list(joined(parts, target.schema, target.file_version, most_bytes=None))
        if len(united) > 1:
            names = ", ".join(repr(name) for name in target.schema.names)
            raise SchemaMismatchError(
                f"the rows of one fragment have more different values in {names} than the dictionary can number, and "
                "they have to be in one file; use a dictionary with wider indices, or the type of the values"
            )
        batches = united
    files = write_files(replace(target, max_rows=rows, max_bytes=None), batches)
    return files[0] if [rows] == [file.rows for file in files] else None


def _write_blobs(target: WriteTarget, batches: Iterable[pa.RecordBatch]) -> tuple[StagedFile, ...]:
    # Without a row no file is written, so the first batch with rows is awaited.
    rows = (batch for batch in batches if batch.num_rows)
    # Each batch of narrow dictionaries may have as many values as a file can hold.
    streams = ([batch] for batch in rows) if has_narrow_dictionaries(target.schema) else _one_stream(rows)
    written: list[StagedFile] = []
    for stream in streams:
        tally = RangeTally(target.schema, target.ranged)
        fragments = write_blob_files(
            target.data_uri,
            _tallied(stream, tally),
            target.schema,
            max_rows=target.max_rows,
            options=target.storage_options,
        )
        # pylance divides the rows among files. The bounds of all rows are bounds of the rows of each file.
        written += [
            StagedFile(file.path, fragment.physical_rows, file.file_size_bytes or 0, tally.lines)
            for fragment in fragments
            for file in fragment.files[:1]
        ]
    return tuple(written)


def _tallied(batches: Iterable[pa.RecordBatch], tally: RangeTally) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        tally.add(batch)
        yield batch


def _one_stream(rows: Iterator[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
    first = next(rows, None)
    if first is not None:
        yield chain([first], rows)


def _has_narrow_dictionaries(schema: pa.Schema) -> bool:
    # Most tables have neither dictionaries nor columns with parts, and need no more than this.
    kinds = [column.type for column in schema]
    plain = not any(
        kind.num_fields or pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType) for kind in kinds
    )
    return not plain and has_narrow_dictionaries(schema)


class _Files:
    """The data files of a write. A file is opened by its first row, so that an empty stream leaves no file behind."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._done: list[StagedFile] = []
        self._open: _OpenFile | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        while rows.num_rows:
            if self._open is None or not self._open.takes(rows):
                self.closed()
                self._open = _OpenFile(self._target)
                self._open.takes(rows)
            rows = self._open.write(rows)
            if self._open.full:
                self.closed()

    def closed(self) -> tuple[StagedFile, ...]:
        if self._open is not None:
            self._done.append(self._open.close())
            self._open = None
        return tuple(self._done)


class _OpenFile:
    """A data file being written. Unless it is closed, no file of its name appears."""

    def __init__(self, target: WriteTarget) -> None:
        self._name = "-".join(filter(None, (target.prefix, f"{uuid.uuid4().hex}.lance")))
        self._path = f"{target.data_uri}/{self._name}"
        self._room = target.max_rows
        self._bytes = target.max_bytes
        self._target = target
        self._writer: LanceFileWriter | None = None
        self._ranges = RangeTally(target.schema, target.ranged)
        narrow = _has_narrow_dictionaries(target.schema)
        self._dictionaries = DictionaryRoom(target.schema, target.file_version) if narrow else None

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Return whether the dictionaries of a batch fit beside the dictionaries of the file, and count them if so."""
        return self._dictionaries is None or self._dictionaries.take(batch)

    @property
    def full(self) -> bool:
        return self._room == 0 or (self._bytes is not None and self._bytes <= 0)

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the rows that fit into the file, and return the remaining rows."""
        now = batch.slice(0, self._room)
        if self._bytes is not None:
            # Rows are taken to be of equal size. At least one row is written, however large it is.
            if now.nbytes > self._bytes:
                now = now.slice(0, -(-now.num_rows * self._bytes // now.nbytes))
            self._bytes -= now.nbytes
        with storage_errors(f"write {self._path}"):
            self._writer = self._writer or self._opened()
            self._writer.write_batch(now)
        self._ranges.add(now)
        self._room -= now.num_rows
        return batch.slice(now.num_rows)

    def _opened(self) -> "LanceFileWriter":
        from lance.file import LanceFileWriter

        target = self._target
        return LanceFileWriter(
            self._path,
            target.schema,
            version=target.file_version,
            data_cache_bytes=min(_BUFFER_BYTES * max(1, len(target.schema)), _MOST_BUFFER_BYTES),
            storage_options=dict(target.storage_options) or None,
        )

    def close(self) -> StagedFile:
        """Finish the file."""
        with storage_errors(f"write {self._path}"):
            writer = self._writer or self._opened()
            rows = writer.close()
        size = writer.size_bytes or 0
        # pylance does not sync: after a power cut, a durable commit could reference a torn data file. A large file is
        # synced here, since other writers may have to wait while a manifest is synced.
        target = self._target
        if not target.synced_by_commit or not 0 < size <= SMALL_FILE_BYTES:
            sync_path(self._path, target.storage_options)
        if target.records_digests:
            record_written(target.data_uri, self._name, target.storage_options)
        return StagedFile(self._name, rows or 0, size, self._ranges.lines)


def staged_fragments(staged: StagedFiles, fields: Sequence[Field], file_version: str) -> tuple[Fragment, ...]:
    """Return a fragment for each staged file; ids are assigned by the commit."""
    major, minor = parse_file_version(file_version)
    ids = stored_field_ids(fields, (major, minor))
    positions = column_positions(fields, (major, minor))
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
            ranges=file_ranges(file.name, file.ranges, positions),
        )
        for file in staged.files
    )


def write_blob_files(
    data_uri: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, max_rows: int, options: Mapping[str, str]
) -> "Sequence[lance.FragmentMetadata]":
    """Write rows with blobs to data files of a table; return pylance's metadata of each fragment.

    Raises:
        InvalidInputError: The rows do not have the columns of `main`, or some columns are marked as blobs in the legacy
            encoding; or the folder is not `data/` of a table.
        StoreError: The storage failed.
    """
    import lance
    from lance.fragment import write_fragments

    root, _, folder = data_uri.rpartition("/")
    if folder != DATA:
        raise InvalidInputError(f"columns of blobs can only be written below the table itself, not to {data_uri}")
    storage = dict(options) or None
    with storage_errors(f"write to {data_uri}"):
        dataset = lance.dataset(root, storage_options=storage)
    # Checked here, because pylance takes the field ids of `main` for whatever columns it is given.
    if dataset.schema.names != schema.names or dataset.schema.types != schema.types:
        raise InvalidInputError(
            f"rows with blobs can only be written with the columns of main of {root}: {dataset.schema.names}"
        )
    # Earlier versions of this package made tables with both. pylance would write all blobs in the present encoding.
    if has_legacy_blobs(dataset.schema):
        raise InvalidInputError(
            f"{root} has columns marked {LEGACY_BLOB}, and pylance could not read their blobs beside new blobs; drop "
            "these columns, or the other columns with blobs"
        )
    with storage_errors(f"write to {data_uri}"):
        fragments = write_fragments(
            pa.RecordBatchReader.from_batches(schema, map(aligned_batch, batches)),
            dataset,
            mode="append",
            max_rows_per_file=max_rows,
            storage_options=storage,
        )
    # pylance does not sync, neither data files nor blob files.
    for fragment in fragments:
        _make_durable(data_uri, fragment.files[0].path, options)
    return fragments


def _make_durable(data_uri: str, name: str, options: Mapping[str, str]) -> None:
    sync_path(f"{data_uri}/{name}", options)
    # Blob files lie in a folder beside the data file, with the name of that file without its suffix.
    blob_folder = Path(data_uri) / Path(name).stem
    if "://" not in data_uri and blob_folder.is_dir():
        for path in (*blob_folder.iterdir(), blob_folder, Path(data_uri)):
            sync_path(str(path), options)
    if records_digests(options):
        record_written(data_uri, name, options, blobs=True)
