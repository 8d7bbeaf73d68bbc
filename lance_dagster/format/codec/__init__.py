"""Wire bytes to values and back: the only door to protobuf."""

from lance_dagster.format.codec.manifests import (
    decode_manifest_file,
    encode_manifest_file,
    rebase_index_section,
)
from lance_dagster.format.codec.rows import row_id_range, smallest_row_id, version_run
from lance_dagster.format.codec.transactions import decode_transaction, encode_transaction

__all__ = [
    "decode_manifest_file",
    "decode_transaction",
    "encode_manifest_file",
    "encode_transaction",
    "rebase_index_section",
    "row_id_range",
    "smallest_row_id",
    "version_run",
]
