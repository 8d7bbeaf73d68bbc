"""The metadata keys and values that the plugin writes to Dagster and to commits.

On definitions and events, keys that start with `dagster/` are Dagster's own, and its pages show them in special
places. Keys that start with `lance/` name the branch and version that an event is about. The publisher and the
sensors read keys back from events, commits, branches and tags of earlier releases, so a key must not change.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster.format import run_properties

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.history.versions import Version


# The most partitions that an evaluation names.
_SHOWN = 20

# On definitions and events, for Dagster's pages. Dagster's own sets of these keys are private classes, so the
# keys are spelled out; it accepts any key that starts with `dagster/`.
TABLE_NAME = "dagster/table_name"
URI = "dagster/uri"
STORAGE_KIND = "dagster/storage_kind"
ROW_COUNT = "dagster/row_count"
PARTITION_ROW_COUNT = "dagster/partition_row_count"
COLUMN_SCHEMA = "dagster/column_schema"
COLUMN_LINEAGE = "dagster/column_lineage"

# On events: the publisher compares them, and people read them.
BRANCH = "lance/branch"
VERSION = "lance/version"
TRANSACTION = "lance/transaction"
BASE_VERSION = "lance/base_version"
ROWS_BY_PARTITION = "lance/rows_by_partition"
ROWS_WRITTEN = "lance/rows_written"
CHANGES = "lance/changes"
ROWS_ADDED = "lance/rows_added"
ROWS_REMOVED = "lance/rows_removed"
ROWS_CHANGED = "lance/rows_changed"
BYTES = "lance/bytes"
PREVIEW = "lance/preview"
PUBLISHED_RUN = "lance/published_run"
# On evaluations of checks: the version of each other table that the check read, as `version_mark` writes it.
READ = "lance/read"
# And the partitions that the run wrote: the pages of a check list evaluations by time and not by partition.
PARTITIONS = "lance/partitions"

# On definitions, written by the user. `lance/table` is the path of the table below the root, `lance/schema` its folder.
TABLE = "lance/table"
SCHEMA = "lance/schema"
REF = "lance/ref"
VECTORS = "lance/vectors"
PARTITION_EXPR = "lance/partition_expr"
WRITE_MODE = "lance/write_mode"
KEYS = "lance/keys"
WHEN_MISSING = "lance/when_missing"
SCHEMA_EVOLUTION = "lance/schema_evolution"
COLUMNS = "lance/columns"
FILTER = "lance/filter"
ALLOW_MISSING = "lance/allow_missing"
ALLOW_NONE = "lance/allow_none"

# On the materialization of an output that was None and stored nothing: true.
STORED_NOTHING = "lance/stored_nothing"

# On the definitions of promoted nodes and of the nodes of `main`: the key of the candidate, as text.
CANDIDATE = "lance/candidate"
# In the config of a table: the key of the candidate that writes it.
OWNER = "dagster/asset"
OP_OUTPUT = run_properties.OP_OUTPUT

# In the properties of commits and the metadata of branches and tags, whose values are strings.
RUN_ID = run_properties.RUN_ID
ROOT_RUN_ID = run_properties.ROOT_RUN_ID
BACKFILL_ID = run_properties.BACKFILL_ID
STEP_KEY = run_properties.STEP_KEY
OUTPUT = run_properties.OUTPUT
WRITE = run_properties.WRITE
ASSET_KEY = run_properties.ASSET_KEY
PARTITION_KEYS = run_properties.PARTITION_KEYS
PARTITIONING = run_properties.PARTITIONING
AUDITED_VERSION = "dagster/audited_version"
JOB_NAME = "dagster/job"
# What the run read of other runs of its backfill, as JSON: refs of versions, by the URI of the table.
READ_UNPUBLISHED = "dagster/read_unpublished"
PUBLISHED_BY = run_properties.PUBLISHED_BY
MOVED_TO = "lance/to"
REASON = "lance/reason"
WHO = "lance/who"
# On a commit of `main` that merges a preview: the versions in it, their runs, and what the publisher evaluated.
SOURCES = "lance/sources"
# And on each commit of `main` by a publisher: the marks of the recorded writes that it published, as a JSON list.
WRITES = "lance/writes"
# Likewise, the commit id and the transaction of each version that it published, as JSON: by the ref of the version.
AUDITED_TRANSACTIONS = "lance/audited_transactions"
PUBLISHED_RUNS = "dagster/run_ids"
AUDITED_AGAIN = "lance/audited_again"
# On promoted nodes, the first entry: what happened, such as `rolled back (hold): main@3 -> main@2: wrong prices`.
EVENT = "lance/event"
# On promoted nodes: what a rollback, a hold or a release is about besides the table of the node.
SCOPE = "lance/scope"
# On a commit of `main` that restores the content of an older version, and on promoted nodes: that version.
ROLLED_BACK_TO = "lance/rolled_back_to"

# On promoted nodes: the commit of the repository and the entry of the channel's log that promoted it.
WAITING = "lance/waiting"
SUPERSEDED = "lance/superseded"
REPOSITORY_COMMIT = "lance/repository_commit"
CHANNEL_ENTRY = "lance/channel_entry"
COMMIT_TABLES = "lance/commit_tables"
LAGGING = "lance/lagging"
# In an entry of a channel: the tables whose promoted nodes its publisher materializes, so that no sensor does it too.
REPORTED = "lance/reported"

_DATA_VERSION = "dagster/data_version"
_USER_PROVIDED = "dagster/data_version_is_user_provided"
MetadataMap = Mapping[str, object]


def data_version_tags(version: "Version") -> dict[str, str]:
    """Return the tags from which Dagster takes the data version of an event that is not a result of a selected node."""
    return {_DATA_VERSION: version.transaction, _USER_PROVIDED: "true"}


def plain(value: object) -> object:
    """Return the value inside a `MetadataValue`; any other value is returned as it is."""
    return value.value if isinstance(value, dg.MetadataValue) else value


def text(metadata: MetadataMap, key: str) -> str | None:
    """Return a metadata entry as text, or None when it is absent or empty."""
    value = plain(metadata.get(key))
    return str(value) if value not in (None, "") else None


def definition_metadata(table_name: str, uri: str | None) -> dict[str, str]:
    """Return the metadata that the definition of an asset carries about its table.

    Args:
        table_name: The table's path below the root, with dots.
        uri: The URI of the table, or None when it is known only at run time.
    """
    entries = {TABLE_NAME: table_name, STORAGE_KIND: "lance"}
    return entries | ({URI: uri} if uri else {})


def version_metadata(version: "Version") -> dict[str, str]:
    """Return the entries that identify the version an event is about."""
    # The number is stored as text: Dagster plots every number over time, and a plot of version numbers is meaningless.
    return {BRANCH: version.branch, VERSION: str(version.number), TRANSACTION: version.transaction}


def version_mark(version: "Version") -> str:
    """Return a text that names one version, also when a table is dropped and gets the same numbers again."""
    return f"{version} {version.transaction[:8]}"


def column_schema(schema: "pa.Schema") -> dg.TableSchema:
    """Return a table's columns for Dagster's pages, with the descriptions in the metadata of the fields."""
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
    # Spark calls the description of a column its `comment`.
    description = (field.metadata or {}).get(b"description") or (field.metadata or {}).get(b"comment")
    return description.decode("utf-8", errors="replace") if description else None


def audited_version(metadata: MetadataMap) -> tuple[str, int] | None:
    """Return the branch and version number that an event is about, or None when it names no version."""
    # The version is a number in events of earlier releases and of checks that users wrote.
    branch, number = text(metadata, BRANCH), text(metadata, VERSION) or ""
    return (branch, int(number)) if branch is not None and number.isdecimal() else None


def partition_property(keys: Iterable[str]) -> str:
    """Return partition keys as a commit property: a JSON list, sorted, so that equal sets compare equal."""
    return json.dumps(sorted(keys))


def listed(texts: Sequence[str], most: int) -> str:
    """Return texts as a list for a message, such as `a, b and 3 more` for five texts of which at most two are shown."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def checked_partitions(keys: Sequence[str]) -> dict[str, str]:
    """Return the entry of an evaluation that names its partitions; no entry without partitions."""
    more = [f"and {len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    return {PARTITIONS: ", ".join([*keys[:_SHOWN], *more])} if keys else {}
