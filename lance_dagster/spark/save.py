"""Save Spark frames with the meanings that Spark gives to its save modes, in one commit made by the calling process.

Spark itself refuses two of its four modes for every data source written in Python.

A new table is created when its rows are written, and not before: a job that fails leaves no table, which the mode
`errorifexists` would find when the job is run again.
"""

import functools
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack, get_args

import pyarrow as pa
from pyspark.sql import DataFrame

from lance_dagster.datafiles import FILE_VERSION
from lance_dagster.datafiles.writing import StagedFiles, WriteTarget
from lance_dagster.errors import AlreadyExistsError, InvalidInputError, RefNotFoundError
from lance_dagster.format.file_versions import check_storable
from lance_dagster.format.layout import DATA, MAIN
from lance_dagster.format.schema import fields_from_arrow
from lance_dagster.format.validation import check_class, check_names, check_options, string_list
from lance_dagster.history.context import Properties, open_context
from lance_dagster.history.versions import Version
from lance_dagster.spark.spark_schema import check_fits, refuse_no_columns, replacement_schema, target_schema
from lance_dagster.spark.writer import Coalesce, coalesced, stage, stage_where, with_table_names
from lance_dagster.table import LanceTable

SaveMode = Literal["errorifexists", "error", "ignore", "append", "overwrite"]
"""What `write_table` does when the table exists; `error` is Spark's other name of `errorifexists`."""
_PARTITION_BY = frozenset({"partitionby", "partition_by"})


class SaveOptions(TypedDict, total=False):
    """The keyword arguments of `write_table` for vectors, partial replacement, partitions, storage and the commit."""

    vectors: Mapping[str, int] | None
    replace_where: str | None
    partitions: Sequence[str]
    coalesce: Coalesce
    storage_options: Mapping[str, str] | None
    message: str | None
    properties: Properties


def write_table(
    df: DataFrame, uri: str, mode: SaveMode = "errorifexists", branch: str = "main", **options: Unpack[SaveOptions]
) -> Version:
    """Write a Spark frame to a table, and return the version with its rows.

    The rows are one commit. A table that does not exist is created without rows just before that commit; its columns
    are those of the frame, all of them nullable. When the frame cannot be computed or written, no table is created. A
    table has no partitions in Spark's sense: replace a part of it with `replace_where`, and speed up a filter with an
    index.

    Args:
        df: The rows.
        uri: The table.
        mode: `"append"` adds the rows. `"overwrite"` replaces all rows, and the columns. When the table exists,
            `"errorifexists"` raises an error and `"ignore"` returns the head and computes nothing. As in Spark,
            capitals make no difference, and `"error"` is `"errorifexists"`.
        branch: The branch to commit to. A new table has only `main`.
        **options: `vectors` has the length of each vector column. `replace_where`, with `mode="overwrite"`, is the
            condition in Lance's SQL of the rows to replace; each row of the frame has to satisfy it, which the
            executors check while they write, and the columns stay. `partitions` are the partition keys of the rows,
            which merges compare (see `LanceTable.append`). `coalesce` is the one of `stage`. `storage_options` are
            those of the table. `message` and `properties` are kept with the commit.

    Raises:
        AlreadyExistsError: The table exists, and the mode is `"errorifexists"`.
        InvalidInputError: The mode or an option is unknown, `replace_where` has another mode, or a row does not satisfy
            it.
        RefNotFoundError: There is no such branch.
        SchemaMismatchError: The rows do not fit the table.
    """
    if _PARTITION_BY & {name.lower() for name in options}:
        raise InvalidInputError(
            "a Lance table has no partitions in Spark's sense: leave partitionBy out, and replace a part of the table "
            "with mode='overwrite' and replace_where=\"day = '2026-01-31'\"; partitions=['2026-01-31'] is for merges"
        )
    check_class("df", df, DataFrame, "spark.read.parquet(path)")
    refuse_no_columns(df.schema)
    check_options(write_table, options, SaveOptions)
    meant = _normalized(mode)
    replace_where = options.get("replace_where")
    if replace_where is not None and meant != "overwrite":
        raise InvalidInputError(f"replace_where needs mode='overwrite', not {mode!r}")
    # Validated before the job, which would otherwise be run in vain.
    string_list("partitions", options.get("partitions", ()), "2026-01-31")
    storage_options = options.get("storage_options")
    if not LanceTable.exists(uri, storage_options):
        return _written_first(df, uri, meant, branch, options=options)
    table = LanceTable.open(uri, storage_options)
    if meant == "ignore":
        return table.head(branch)
    if meant == "errorifexists":
        raise AlreadyExistsError(f"there is a table at {table.uri}; give mode='append', 'overwrite' or 'ignore'")
    vectors = options.get("vectors")
    # Without `replace_where`, an overwrite brings its own columns.
    replaced = meant == "overwrite" and replace_where is None
    df = with_table_names(df, table.schema(branch))
    schema = replacement_schema(df.schema, table.schema(branch), vectors) if replaced else None
    coalesce = options.get("coalesce")
    staged = stage(df, table, branch, coalesce=coalesce, schema=schema, vectors=vectors, where=replace_where)
    return _committed(table, staged, meant, branch, options=options)


def _normalized(mode: object) -> SaveMode:
    """Return a mode as this module spells it.

    Raises:
        InvalidInputError: There is no such mode.
    """
    lowered = mode.lower() if isinstance(mode, str) else str(mode)
    check_names("save mode", [lowered], get_args(SaveMode))
    normalized: SaveMode = next(save_mode for save_mode in get_args(SaveMode) if save_mode == lowered)
    return "errorifexists" if normalized == "error" else normalized


def _written_first(df: DataFrame, uri: str, mode: SaveMode, branch: str, *, options: SaveOptions) -> Version:
    """Write a frame to a table that did not exist a moment ago."""
    if branch != MAIN:
        raise RefNotFoundError(branch, [MAIN], uri, "branch", "there is no table yet, and a new one has only main")
    vectors, storage_options = options.get("vectors"), options.get("storage_options")
    merged = coalesced(df, options.get("coalesce"))
    target = _first_target(uri, target_schema(df.schema, vectors), storage_options)
    check_fits(df.schema, target.schema, vectors=vectors)
    staged = stage_where(merged, target, options.get("replace_where"))
    # Another writer may have created the table meanwhile.
    exist_ok = mode in ("append", "overwrite")
    try:
        table = LanceTable.create(uri, target.schema, storage_options=storage_options, exist_ok=exist_ok)
    except AlreadyExistsError:
        if mode != "ignore":
            raise
        return LanceTable.open(uri, storage_options).head(branch)
    return _committed(table, staged, mode, branch, options=options)


def _first_target(uri: str, schema: pa.Schema, storage_options: Mapping[str, str] | None) -> WriteTarget:
    """Return the write target for the data files of a table that is created later.

    Raises:
        InvalidInputError: Data files cannot hold a column.
    """
    check_storable(fields_from_arrow(schema), FILE_VERSION)
    context = open_context(uri, storage_options)
    target = WriteTarget(
        data_uri=f"{context.uri}/{DATA}",
        schema=schema,
        prefix=uuid.uuid4().hex[:12],
        storage_options=context.storage_options,
        records_digests=context.records_digests,
    )
    if "://" not in target.data_uri:
        # By this folder the executors recognise the place of the table; see `check_visible`.
        Path(target.data_uri).mkdir(parents=True, exist_ok=True)
    return target


def _committed(table: LanceTable, staged: StagedFiles, mode: SaveMode, branch: str, *, options: SaveOptions) -> Version:
    save = table.overwrite if mode == "overwrite" else table.append
    predicate = options.get("replace_where")
    if predicate is not None:
        save = functools.partial(table.replace_where, predicate)
    return save(
        staged,
        branch=branch,
        partitions=options.get("partitions", ()),
        message=options.get("message"),
        properties=options.get("properties"),
    )
