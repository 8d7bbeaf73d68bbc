"""Rows with blobs: values so large that they may lie in files of their own, beside the data file.

Only pylance's writer of fragments knows how to lay blobs out, and it takes the ids of columns from the newest version
of `main`. So the columns have to be those of `main`; which ids they get is decided when the files are committed, as
for any other file. It asks for the rows as a stream and splits files itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from lance_dagster.datafiles.errors import storage_errors
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.extensions import storage_of
from lance_dagster.format.layout import DATA
from lance_dagster.format.schema import BLOB
from lance_dagster.store import make_durable


def has_blobs(schema: pa.Schema) -> bool:
    """Tell whether any column of a schema, nested ones included, holds blobs in files of their own."""
    return any(_is_blob(column) for column in schema)


def _is_blob(column: "pa.Field[pa.DataType]") -> bool:
    name = (column.metadata or {}).get(b"ARROW:extension:name", b"").decode("utf-8", "replace")
    arrow = storage_of(column.type)
    if BLOB in (name, getattr(column.type, "extension_name", "")):
        return True
    return any(_is_blob(arrow.field(index)) for index in range(arrow.num_fields))


def write_blob_files(
    data_uri: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, max_rows: int, options: Mapping[str, str]
) -> Sequence[lance.FragmentMetadata]:
    """Write rows with blobs to data files of a table; returns pylance's description of each.

    Raises:
        InvalidInputError: The columns are not those of `main`, or the folder is not the one of a table.
        StoreError: The storage failed.
    """
    root, _, folder = data_uri.rpartition("/")
    if folder != DATA:
        raise InvalidInputError(f"columns of blobs can only be written below the table itself, not to {data_uri}")
    storage = dict(options) or None
    with storage_errors(f"write to {data_uri}"):
        dataset = lance.dataset(root, storage_options=storage)
        if dataset.schema.names != schema.names or dataset.schema.types != schema.types:
            raise InvalidInputError(
                f"rows with blobs can only be written with the columns of main of {root}: {dataset.schema.names}"
            )
        written = write_fragments(
            pa.RecordBatchReader.from_batches(schema, batches),
            dataset,
            mode="append",
            max_rows_per_file=max_rows,
            storage_options=storage,
        )
    for fragment in written:
        _make_durable(data_uri, fragment.files[0].path, options)
    return written


def _make_durable(data_uri: str, name: str, options: Mapping[str, str]) -> None:
    make_durable(f"{data_uri}/{name}", options)
    beside = Path(data_uri) / Path(name).stem
    if "://" not in data_uri and beside.is_dir():
        for path in (*beside.iterdir(), beside, Path(data_uri)):
            make_durable(str(path), options)
