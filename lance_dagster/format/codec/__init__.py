"""Wire bytes to values and back: the only door to protobuf."""

from lance_dagster.format.codec.indices import decode_indices, encode_indices, rebase_index_section
from lance_dagster.format.codec.manifests import decode_manifest_file, encode_manifest_file
from lance_dagster.format.codec.rows import count_row_ids, row_id_range, smallest_row_id, version_run
from lance_dagster.format.codec.transactions import decode_transaction, encode_transaction

__all__ = [
    "count_row_ids",
    "decode_indices",
    "decode_manifest_file",
    "decode_transaction",
    "encode_indices",
    "encode_manifest_file",
    "encode_transaction",
    "rebase_index_section",
    "row_id_range",
    "smallest_row_id",
    "version_run",
]
