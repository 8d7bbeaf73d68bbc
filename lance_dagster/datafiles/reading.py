"""Read rows with pylance, at exactly one version of a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles.dictionaries import late_materialization
from lance_dagster.datafiles.pylance_errors import commit_conflicts, query_errors, reading_errors, storage_errors
from lance_dagster.datafiles.row_addresses import fragments_by_id
from lance_dagster.errors import InvalidInputError
from lance_dagster.format import layout
from lance_dagster.format.validation import check_string, string_list

if TYPE_CHECKING:
    import lance

_FILE_ROWS = 64 * 1024
"""Rows per batch of a single data file, of which only a few columns are read."""


def open_dataset(
    uri: str,
    branch: str,
    number: int,
    storage_options: Mapping[str, str] | None = None,
    *,
    manifest: bytes | None = None,
) -> "lance.LanceDataset":
    """Open a table at exactly one version with pylance.

    Args:
        uri: The table.
        branch: "main" or a branch.
        number: The number of the version.
        storage_options: The credentials.
        manifest: The manifest message of a version of `main` where the caller has it, so that pylance need not read it.
    """
    # Imported at first use: pylance brings pandas, and a code location that only defines assets needs neither.
    import lance

    options = dict(storage_options or {}) or None
    with storage_errors(f"open {uri} at {branch}@{number}"):
        # A version of a branch is reached through the dataset of `main`.
        if branch == layout.MAIN:
            return lance.LanceDataset(uri, version=number, storage_options=options, serialized_manifest=manifest)
        return lance.dataset(uri, storage_options=options).checkout_version((branch, number))


def open_rows(
    uri: str,
    branch: str,
    number: int,
    storage_options: Mapping[str, str] | None = None,
    *,
    manifest: bytes | None = None,
) -> "lance.LanceDataset":
    """Open a version as `open_dataset` does, for its rows alone: the dataset does not know the other branches.

    This saves the requests for `main` on object storage.
    """
    root = layout.join(uri, layout.branch_root(branch))
    return open_dataset(root, layout.MAIN, number, storage_options, manifest=manifest)


def scan(
    dataset: "lance.LanceDataset",
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    fragment_ids: Sequence[int] | None = None,
) -> pa.RecordBatchReader:
    """Read rows as a stream of batches; errors of pylance are translated while it is read, too.

    Args:
        dataset: The version.
        columns: The columns to read; None for all.
        filter: A condition in Lance SQL.
        fragment_ids: The fragments to read, in the order of the version; None for all.

    Raises:
        InvalidInputError: A column does not exist, or the filter is invalid.
    """
    return _translated(_stream(dataset, columns, filter, fragment_ids), filter, dataset.uri)


def _stream(
    dataset: "lance.LanceDataset",
    columns: Sequence[str] | None,
    filter: str | None,
    fragment_ids: Sequence[int] | None,
) -> pa.RecordBatchReader:
    if fragment_ids is not None and not fragment_ids:
        # pylance takes no fragments for all of them.
        return planned_schema(dataset, columns, filter).empty_table().to_reader()
    # The columns are validated first: pylance accepts a string as a list of one-letter columns.
    names = None if columns is None else [*string_list("columns", columns, "id")]
    with query_errors(filter, dataset.uri) as condition:
        _check_columns(dataset, names or [])
        return dataset.scanner(
            columns=names,
            filter=condition,
            late_materialization=late_materialization(dataset.schema),
            fragments=fragments_by_id(dataset, fragment_ids),
        ).to_reader()


def _translated(stream: pa.RecordBatchReader, filter: str | None, where: str) -> pa.RecordBatchReader:
    """Return a stream of the same batches that raises the errors of this package.

    Arrow raises an error of its own for whatever happens in a stream that pylance exported.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        with query_errors(filter, where):
            yield from stream

    return pa.RecordBatchReader.from_batches(stream.schema, batches())


def planned_schema(
    dataset: "lance.LanceDataset", columns: Sequence[str] | None = None, filter: str | None = None
) -> pa.Schema:
    """Return the schema that a scan would have, without reading a row; validates the columns and the filter.

    Raises:
        InvalidInputError: A column does not exist, or the filter is invalid.
    """
    names = None if columns is None else [*string_list("columns", columns, "id")]
    _check_columns(dataset, names or [])
    with query_errors(filter, dataset.uri) as condition:
        return dataset.scanner(columns=names, filter=condition).projected_schema


def read(
    dataset: "lance.LanceDataset",
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    fragment_ids: Sequence[int] | None = None,
) -> pa.Table:
    """Read rows into memory; the arguments are those of `scan`."""
    stream = _stream(dataset, columns, filter, fragment_ids)
    with query_errors(filter, dataset.uri):
        return stream.read_all()


def count(dataset: "lance.LanceDataset", filter: str | None = None, fragment_ids: Sequence[int] | None = None) -> int:
    """Count the rows that match a filter, or all; in some fragments, of which there is at least one, or in all."""
    with query_errors(filter, dataset.uri) as condition:
        if fragment_ids is None:
            return dataset.count_rows(filter=condition)
        fragments = fragments_by_id(dataset, fragment_ids)
        return dataset.scanner(columns=[], filter=condition, with_row_id=True, fragments=fragments).count_rows()


def matching_offsets(
    dataset: "lance.LanceDataset", predicate: str, fragment_ids: Iterable[int] | None = None
) -> dict[int, BitMap]:
    """Return the offsets of the live rows that match a predicate, by fragment id; omit fragments without a match.

    Args:
        dataset: The version to search.
        predicate: A condition in Lance SQL.
        fragment_ids: The fragments to search; None for all.

    Raises:
        InvalidInputError: The predicate is invalid, or names a column that does not exist.
    """
    # A predicate of None would match every row.
    check_string("the predicate", predicate)
    matches: dict[int, BitMap] = {}
    with query_errors(predicate, dataset.uri) as condition:
        parts = fragments_by_id(dataset, fragment_ids)
        # No columns are requested, so pylance reads only the columns that the predicate names.
        scanner = dataset.scanner(columns=[], filter=condition, with_row_address=True, fragments=parts)
        for batch in scanner.to_batches():
            # A row address is the fragment id in the upper 32 bits and the row offset in the lower 32 bits.
            addresses = batch.column("_rowaddr").to_numpy()
            fragments = addresses >> 32
            for fragment in np.unique(fragments):
                offsets = (addresses[fragments == fragment] & 0xFFFFFFFF).astype(np.uint32)
                matches.setdefault(int(fragment), BitMap()).update(offsets)
    return matches


def _check_columns(dataset: "lance.LanceDataset", columns: Sequence[str]) -> None:
    names = dataset.schema.names
    # Only the first part is looked up: `address.city` names a field inside of the column `address`.
    missing = [name for name in columns if name.split(".")[0] not in names]
    if missing:
        raise InvalidInputError(f"no column {', '.join(map(repr, missing))}; the table has {', '.join(names)}")


def scan_fragments(dataset: "lance.LanceDataset", fragment_ids: Sequence[int]) -> pa.RecordBatchReader:
    """Read the live rows of some fragments as a stream of batches, in the order given."""
    fragments = fragments_by_id(dataset, fragment_ids)
    with query_errors(None, dataset.uri):
        stream = dataset.scanner(fragments=fragments, scan_in_order=True).to_reader()
    return _translated(stream, None, dataset.uri)


def read_data_file(
    uri: str, columns: Sequence[str], storage_options: Mapping[str, str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read some columns of a data file that no version names yet, as a stream of batches."""
    from lance.file import LanceFileReader

    with storage_errors(f"read {uri}"):
        reader = LanceFileReader(uri, storage_options=dict(storage_options or {}) or None, columns=list(columns))
        yield from reader.read_all(batch_size=_FILE_ROWS).to_batches()


def compact_with_pylance(
    dataset: "lance.LanceDataset", target_rows: int, deleted_share: float, *, defer_indices: bool = False
) -> None:
    """Compact a table with pylance, which commits versions of its own.

    Indices are stored anew, or with `defer_indices` left to readers, which follow the rows to their new fragments.

    Raises:
        CommitConflictError: Another commit since the version changed the same fragments.
    """
    # None leaves the choice to the configuration of the table.
    deferred = True if defer_indices else None
    with reading_errors("compact the table", dataset.uri), commit_conflicts(f"compact {dataset.uri}"):
        dataset.optimize.compact_files(
            target_rows_per_fragment=target_rows,
            materialize_deletions_threshold=deleted_share,
            defer_index_remap=deferred,
        )
