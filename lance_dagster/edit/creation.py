"""Create a table: its first version, without rows."""

import uuid
from collections.abc import Mapping
from typing import TypedDict

import pyarrow as pa

from lance_dagster.datafiles import FILE_VERSION
from lance_dagster.errors import AlreadyExistsError
from lance_dagster.format import layout
from lance_dagster.format.file_versions import check_storable
from lance_dagster.format.schema import fields_from_arrow, schema_metadata_from_arrow
from lance_dagster.format.transaction import Overwrite, Transaction
from lance_dagster.format.validation import check_string_mapping
from lance_dagster.gc.retention import check_settings
from lance_dagster.history.base_access import refuse_place_in_table, refuse_place_of_base
from lance_dagster.history.commit import WRITER, Proposal, create_first, now_ns
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.transactions.apply import apply, empty_manifest


class CreateOptions(TypedDict, total=False):
    """The keyword arguments of the creation of a table that a caller rarely needs."""

    exist_ok: bool
    config: Mapping[str, str] | None


def create_empty(
    context: TableContext,
    schema: pa.Schema,
    properties: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
) -> State | None:
    """Write the first version of a table, without rows; return None when the table exists already."""
    fields = fields_from_arrow(schema)
    check_storable(fields, FILE_VERSION)
    # pylance records the creation of a table as an Overwrite that read version 0.
    transaction = Transaction(
        read_version=0,
        uuid=str(uuid.uuid4()),
        operation=Overwrite(
            fragments=(),
            fields=fields,
            schema_metadata=schema_metadata_from_arrow(schema),
            config_upserts=dict(config or {}),
        ),
        properties=properties or {},
    )
    before = empty_manifest(fields, FILE_VERSION)
    manifest = apply(before, transaction, timestamp=now_ns(), writer=WRITER)
    return create_first(context.versions, Proposal(transaction, manifest))


def create(
    context: TableContext,
    schema: pa.Schema,
    properties: Mapping[str, str],
    *,
    exist_ok: bool = False,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create an empty table.

    Raises:
        AlreadyExistsError: There is a table already, and `exist_ok` is not set.
        InvalidInputError: The config is not made of strings, or has settings that this package cannot read; or the
            place is a base path of another table, or in a folder of another table.
    """
    check_string_mapping("config", config or {})
    check_settings(config or {})
    created = False
    if context.versions.newest(layout.MAIN) is None:
        refuse_place_of_base(context.store)
        refuse_place_in_table(context.uri, context.storage_options)
        # `create_empty` returns None when another process created the table in between.
        created = create_empty(context, schema, properties, config) is not None
    if not created and not exist_ok:
        raise AlreadyExistsError(f"there is a Lance table at {context.uri} already")
