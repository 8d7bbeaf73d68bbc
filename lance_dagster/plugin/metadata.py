"""The names and values this plugin writes on Dagster's definitions and events, and on the commits it makes.

Keys that start with `dagster/` on events are Dagster's own vocabulary, which its pages draw; the ones that
start with `lance/` say which version of which branch an event speaks of. The publisher reads them back, so a
key here is a format and not a decoration.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_dagster.history.versions import Version

# On definitions and events, for Dagster's pages.
TABLE_NAME = "dagster/table_name"
URI = "dagster/uri"
STORAGE_KIND = "dagster/storage_kind"
ROW_COUNT = "dagster/row_count"
PARTITION_ROW_COUNT = "dagster/partition_row_count"
COLUMN_SCHEMA = "dagster/column_schema"

# On events, for the publisher and for people.
BRANCH = "lance/branch"
VERSION = "lance/version"
TRANSACTION = "lance/transaction"
BASE_VERSION = "lance/base_version"

# On definitions, from the user or from the publisher.
TABLE = "lance/table"
REF = "lance/ref"
VECTORS = "lance/vectors"
SCHEMA = "schema"
PARTITION_EXPR = "partition_expr"
WRITE_MODE = "write_mode"
COLUMNS = "columns"
FILTER = "filter"

# On commits, branches and tags, as strings.
RUN_ID = "dagster/run_id"
ROOT_RUN_ID = "dagster/root_run_id"
JOB_NAME = "dagster/job"
BACKFILL_ID = "dagster/backfill"
STEP_KEY = "dagster/step_key"
ASSET_KEY = "dagster/asset_key"
PARTITION_KEYS = "dagster/partition_keys"
PUBLISHED_BY = "dagster/published_by"
MOVED_TO = "lance/to"

MetadataMap = Mapping[str, object]


def plain(value: object) -> object:
    """Return what a metadata value holds, or the value itself when Dagster has not wrapped it."""
    return value.value if isinstance(value, dg.MetadataValue) else value


def text(metadata: MetadataMap, key: str) -> str | None:
    """Return a metadata entry as text, or None when it is absent or empty."""
    value = plain(metadata.get(key))
    return str(value) if value not in (None, "") else None


def definition_metadata(table_name: str, uri: str | None) -> dict[str, str]:
    """Return what the definition of a node that stands for a table carries.

    Args:
        table_name: `schema.table`.
        uri: Where the table is, or None when that is known only at run time.
    """
    found = {TABLE_NAME: table_name, STORAGE_KIND: "lance"}
    return found | ({URI: uri} if uri else {})


def version_metadata(version: Version) -> dict[str, str | int]:
    """Return the entries that say exactly which version an event speaks of."""
    return {BRANCH: version.branch, VERSION: version.number, TRANSACTION: version.transaction}


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """Return a table's columns for Dagster's pages, with the descriptions that the Lance fields carry."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=field.name,
                type=str(field.type),
                description=_description(field),
                constraints=dg.TableColumnConstraints(nullable=field.nullable),
            )
            for field in schema
        ]
    )


def _description(field: "pa.Field[Any]") -> str | None:
    found = (field.metadata or {}).get(b"description") or (field.metadata or {}).get(b"comment")
    return found.decode("utf-8", errors="replace") if found else None


def audited_version(metadata: MetadataMap) -> tuple[str, int] | None:
    """Return the branch and version number an event speaks of, or None when it names none."""
    branch, number = text(metadata, BRANCH), plain(metadata.get(VERSION))
    if branch is None or not isinstance(number, int):
        return None
    return branch, number


def partition_property(keys: Iterable[str]) -> str:
    """Return partition keys as a commit property: a JSON list, sorted, so that equal sets compare equal."""
    return json.dumps(sorted(keys))
