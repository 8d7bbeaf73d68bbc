"""Wire bytes to values and back: the only door to protobuf."""

from lance_dagster.format.codec.indices import decode_indices, encode_indices, rebase_index_section
from lance_dagster.format.codec.manifests import check_writable, decode_manifest_file, encode_manifest_file
from lance_dagster.format.codec.rows import (
    U64Array,
    count_row_ids,
    decode_row_ids,
    decode_versions,
    encode_row_ids,
    encode_versions,
    row_id_range,
    smallest_row_id,
    version_run,
)
from lance_dagster.format.codec.sound import check_sound
from lance_dagster.format.codec.summaries import Summary, summarize
from lance_dagster.format.codec.transactions import decode_transaction, encode_transaction

__all__ = [
    "Summary",
    "U64Array",
    "check_sound",
    "check_writable",
    "count_row_ids",
    "decode_indices",
    "decode_manifest_file",
    "decode_row_ids",
    "decode_transaction",
    "decode_versions",
    "encode_indices",
    "encode_manifest_file",
    "encode_row_ids",
    "encode_transaction",
    "encode_versions",
    "rebase_index_section",
    "row_id_range",
    "smallest_row_id",
    "summarize",
    "version_run",
]
