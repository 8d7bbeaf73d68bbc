"""Wire bytes to values and back: the only door to protobuf."""

from lance_dagster.format.codec.data_files import DataFileShape, decode_shape
from lance_dagster.format.codec.index_parts import (
    decode_indices,
    encode_indices,
    rebase_index_section,
    replaced_fragments,
)
from lance_dagster.format.codec.manifest_parts import encoded
from lance_dagster.format.codec.manifests import (
    COMMIT_ID,
    COMMIT_PREFIX,
    VersionSummary,
    check_readable,
    check_writable,
    commit_id,
    decode_manifest_file,
    decode_transaction_of,
    encode_manifest_file,
    message_bytes,
    summarize_manifest,
)
from lance_dagster.format.codec.operations import decode_transaction, encode_transaction
from lance_dagster.format.codec.row_sequences import (
    count_row_ids,
    decode_row_ids,
    decode_row_runs,
    decode_version_runs,
    decode_versions,
    encode_row_ids,
    encode_row_runs,
    encode_version_runs,
    encode_versions,
    row_id_range,
    single_range,
    smallest_row_id,
    version_run,
)
from lance_dagster.format.row_runs import U64Array

__all__ = [
    "COMMIT_ID",
    "COMMIT_PREFIX",
    "DataFileShape",
    "U64Array",
    "VersionSummary",
    "check_readable",
    "check_writable",
    "commit_id",
    "count_row_ids",
    "decode_indices",
    "decode_manifest_file",
    "decode_row_ids",
    "decode_row_runs",
    "decode_shape",
    "decode_transaction",
    "decode_transaction_of",
    "decode_version_runs",
    "decode_versions",
    "encode_indices",
    "encode_manifest_file",
    "encode_row_ids",
    "encode_row_runs",
    "encode_transaction",
    "encode_version_runs",
    "encode_versions",
    "encoded",
    "message_bytes",
    "rebase_index_section",
    "replaced_fragments",
    "row_id_range",
    "single_range",
    "smallest_row_id",
    "summarize_manifest",
    "version_run",
]
