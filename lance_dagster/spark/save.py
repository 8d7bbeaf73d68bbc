"""Save Spark frames with the meanings that Spark gives to its save modes, in one commit made by the calling process.

Spark itself refuses two of its four modes for every data source written in Python.
"""

from collections.abc import Mapping
from typing import Literal, TypedDict, Unpack, get_args

from pyspark.sql import DataFrame

from lance_dagster.errors import AlreadyExistsError, InvalidInputError
from lance_dagster.history.versions import Version
from lance_dagster.spark.spark_schema import check_fits, replacement_schema, target_schema
from lance_dagster.spark.writer import Coalesce, check_names, stage
from lance_dagster.table import LanceTable

SaveMode = Literal["errorifexists", "ignore", "append", "overwrite"]
"""What `write_table` does when the table has rows already."""


class SaveOptions(TypedDict, total=False):
    """The keyword arguments of `write_table` for vectors, partial replacement, partitions and storage."""

    vectors: Mapping[str, int] | None
    replace_where: str | None
    coalesce: Coalesce
    storage_options: Mapping[str, str] | None


def write_table(
    df: DataFrame, uri: str, mode: SaveMode = "errorifexists", branch: str = "main", **options: Unpack[SaveOptions]
) -> Version:
    """Write a Spark frame to a table in one commit, and return the version.

    The table is created when it does not exist. Its columns are then those of the frame, all of them nullable. It has
    no partitions in Spark's sense: replace a part of it with `replace_where`, and speed up a filter with an index.

    Args:
        df: The rows.
        uri: The table.
        mode: `"append"` adds the rows. `"overwrite"` replaces all rows, and the columns. When the table exists,
            `"errorifexists"` raises an error and `"ignore"` returns the head and computes nothing.
        branch: The branch to commit to. A new table has only `main`.
        **options: `vectors` has the length of each vector column. `replace_where`, with `mode="overwrite"`, is the
            condition in Lance's SQL of the rows to replace; each row of the frame has to satisfy it, and the columns
            stay. `coalesce` is the one of `stage`. `storage_options` are those of the table.

    Raises:
        AlreadyExistsError: The table exists, and the mode is `"errorifexists"`.
        InvalidInputError: The mode or an option is unknown, or `replace_where` has another mode.
        SchemaMismatchError: The rows do not fit the table.
    """
    check_names("option of write_table", options, SaveOptions.__annotations__)
    check_names("save mode", [mode], get_args(SaveMode))
    storage_options, vectors = options.get("storage_options"), options.get("vectors")
    replace_where = options.get("replace_where")
    if replace_where is not None and mode != "overwrite":
        raise InvalidInputError(f"replace_where needs mode='overwrite', not {mode!r}")
    if LanceTable.exists(uri, storage_options):
        table = LanceTable.open(uri, storage_options)
        if mode == "ignore":
            return table.head(branch)
        if mode == "errorifexists":
            raise AlreadyExistsError(f"there is a table at {table.uri}; give mode='append', 'overwrite' or 'ignore'")
    else:
        table = LanceTable.create(uri, target_schema(df.schema, vectors), storage_options=storage_options)
    coalesce = options.get("coalesce")
    if mode != "overwrite":
        return table.append(stage(df, table, branch, vectors=vectors, coalesce=coalesce), branch=branch)
    if replace_where is not None:
        staged = stage(df, table, branch, vectors=vectors, coalesce=coalesce)
        return table.replace_where(replace_where, staged, branch=branch)
    schema = replacement_schema(df.schema, table.schema(branch), vectors)
    check_fits(df.schema, schema, vectors=vectors)
    return table.overwrite(stage(df, table, branch, schema=schema, coalesce=coalesce), branch=branch)
