"""Write rows to `.lance` data files and read them back. This folder is the only user of pylance.

pylance encodes the data files. This package decides which file belongs to which version: a file is written under a
unique name, described by a small value, and is part of the table only once a commit references it. Data files of every
branch go to `data/` of the table's root, so that a merge copies nothing.
"""

from typing import TYPE_CHECKING

from lance_dagster.datafiles.backfill import Compute, Reads, backfill, expression_schema, read_sample
from lance_dagster.datafiles.conforming import check_schema, conform, fits_type, refuse_null_parts
from lance_dagster.datafiles.dictionaries import (
    decoded,
    encoded,
    has_narrow_dictionaries,
    plain_type,
    take,
    take_column,
)
from lance_dagster.datafiles.digests import digest_of, digested_files, record_digest, recorded_digests
from lance_dagster.datafiles.exact_casts import can_shorten, cast_exactly, exact_cast
from lance_dagster.datafiles.extension_types import empty_array
from lance_dagster.datafiles.file_inspection import DataFileInspector
from lance_dagster.datafiles.file_shape import ExpectedFile, read_shape, read_shapes
from lance_dagster.datafiles.isolated_reading import IsolatedScan, scan_isolated
from lance_dagster.datafiles.pylance_errors import query_errors, reading_errors
from lance_dagster.datafiles.reading import (
    compact_with_pylance,
    count,
    matching_offsets,
    open_dataset,
    open_rows,
    planned_schema,
    read,
    read_data_file,
    scan,
    scan_fragments,
)
from lance_dagster.datafiles.row_addresses import (
    AddressedRows,
    Addresses,
    Positions,
    batch_size,
    blob_columns,
    count_physical_rows,
    group_by_fragment,
    offsets_by_fragment,
    projected_schema,
    quote_column,
    row_offsets,
    rows_at,
    scan_addressed,
    scan_computed,
    scan_fragment,
    take_rows,
)
from lance_dagster.datafiles.row_tally import GroupDimension, RowFilter, RowGroups, RowScope, RowTally
from lance_dagster.datafiles.sql_evaluation import (
    evaluate_condition,
    evaluate_predicate,
    expression_type,
    expression_types,
)
from lance_dagster.datafiles.writing import (
    FILE_VERSION,
    MAX_BYTES_PER_FILE,
    SMALL_FILE_BYTES,
    staged_fragments,
)

if TYPE_CHECKING:
    from lance import LanceDataset

__all__ = [
    "FILE_VERSION",
    "MAX_BYTES_PER_FILE",
    "SMALL_FILE_BYTES",
    "AddressedRows",
    "Addresses",
    "Compute",
    "DataFileInspector",
    "ExpectedFile",
    "GroupDimension",
    "IsolatedScan",
    "LanceDataset",
    "Positions",
    "Reads",
    "RowFilter",
    "RowGroups",
    "RowScope",
    "RowTally",
    "backfill",
    "batch_size",
    "blob_columns",
    "can_shorten",
    "cast_exactly",
    "check_schema",
    "compact_with_pylance",
    "conform",
    "count",
    "count_physical_rows",
    "decoded",
    "digest_of",
    "digested_files",
    "empty_array",
    "encoded",
    "evaluate_condition",
    "evaluate_predicate",
    "exact_cast",
    "expression_schema",
    "expression_type",
    "expression_types",
    "fits_type",
    "group_by_fragment",
    "has_narrow_dictionaries",
    "matching_offsets",
    "offsets_by_fragment",
    "open_dataset",
    "open_rows",
    "plain_type",
    "planned_schema",
    "projected_schema",
    "query_errors",
    "quote_column",
    "read",
    "read_data_file",
    "read_sample",
    "read_shape",
    "read_shapes",
    "reading_errors",
    "record_digest",
    "recorded_digests",
    "refuse_null_parts",
    "row_offsets",
    "rows_at",
    "scan",
    "scan_addressed",
    "scan_computed",
    "scan_fragment",
    "scan_fragments",
    "scan_isolated",
    "staged_fragments",
    "take",
    "take_column",
    "take_rows",
]


def __getattr__(name: str) -> object:
    """Load pylance's class of a dataset at its first use."""
    if name != "LanceDataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import lance

    return lance.LanceDataset
