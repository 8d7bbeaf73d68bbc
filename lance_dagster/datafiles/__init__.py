"""Rows to `.lance` data files and back. The only door to pylance.

Encoding data files is not what this package is for; pylance does it. What is ours is which file belongs to which
version: a file is written under a name of its own, described by a small value, and means nothing until a commit names
it. Data files of every branch go to the `data/` folder of the table's root, so that a merge copies nothing.
"""

from lance_dagster.datafiles.addressing import (
    Addresses,
    Located,
    Positions,
    blob_columns,
    by_fragment,
    computed,
    expression_types,
    holds,
    located,
    located_in,
    offsets_by_fragment,
    offsets_of,
    physical_rows,
    quoted,
    rows_at,
    rows_at_once,
    schema_read,
)
from lance_dagster.datafiles.backfill import Compute, Reads, backfill, expression_schema, first_rows
from lance_dagster.datafiles.conforming import check_schema, conform
from lance_dagster.datafiles.inspecting import FileSummary, Inspector
from lance_dagster.datafiles.reading import (
    LanceDataset,
    compact_with_pylance,
    count,
    matching_offsets,
    open_dataset,
    read,
    scan,
    scan_fragments,
)
from lance_dagster.datafiles.writing import (
    FILE_VERSION,
    StagedFile,
    StagedFiles,
    WriteTarget,
    fragments_of,
    write_files,
)

__all__ = [
    "FILE_VERSION",
    "Addresses",
    "Compute",
    "FileSummary",
    "Inspector",
    "LanceDataset",
    "Located",
    "Positions",
    "Reads",
    "StagedFile",
    "StagedFiles",
    "WriteTarget",
    "backfill",
    "blob_columns",
    "by_fragment",
    "check_schema",
    "compact_with_pylance",
    "computed",
    "conform",
    "count",
    "expression_schema",
    "expression_types",
    "first_rows",
    "fragments_of",
    "holds",
    "located",
    "located_in",
    "matching_offsets",
    "offsets_by_fragment",
    "offsets_of",
    "open_dataset",
    "physical_rows",
    "quoted",
    "read",
    "rows_at",
    "rows_at_once",
    "scan",
    "scan_fragments",
    "schema_read",
    "write_files",
]
