"""The Spark data source `lance_dagster`, and the functions that read a table faster than it.

Unknown options are refused. Spark passes every option on, so a misspelt `ref` would silently read `main`.

The name is not `lance`, because that is the name of lance-spark's data source, and Spark refuses to register a
name that a Java data source has.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import StructType

from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.history.context import Ref
from lance_dagster.spark.frame import TableFrame
from lance_dagster.spark.narrowing import whole_frame
from lance_dagster.spark.reader import LanceReader, Scan
from lance_dagster.spark.spark_schema import check_fits, readable_schema, replacement_schema, target_schema
from lance_dagster.spark.writer import LanceWriter, check_names
from lance_dagster.table import LanceTable

_STORAGE = "storage."
_READ_OPTIONS = ("path", "ref", "columns", "filter")
_WRITE_OPTIONS = ("path", "branch", "vectors", "replace_where")


def read_table(
    spark: SparkSession,
    table: LanceTable,
    ref: Ref = "main",
    columns: Sequence[str] | None = None,
    *,
    filter: str | None = None,
) -> DataFrame:
    """Return a lazy Spark frame of exactly the version a ref names now.

    Later commits do not show in the frame. In a classic session the actions of the frame, and of frames that are made
    of it by selections, filters, joins, groupings and the like, read only the columns and rows that they need, as far
    as Lance can tell them; `count` of the whole frame reads none. With Spark Connect, name the columns and the filter
    here. Spark does not know the size of the frame, so call `broadcast(df)` to join a small one.

    Args:
        spark: A classic or Spark Connect session.
        table: The table.
        ref: A version, or any ref expression.
        columns: The columns to read, in this order; None reads all.
        filter: A condition in Lance's SQL on columns of the table, such as `x > 3 AND name IS NOT NULL`. It
            may name columns that are not read.

    Raises:
        RefNotFoundError: There is no such ref.
        InvalidInputError: A column does not exist, Lance cannot parse the filter, or Spark has no type for a
            column.
    """
    scan = Scan.plan(table, ref, columns=columns, filter=filter)
    # Only for its error: a column without a Spark type is named here, and not by an executor.
    readable_schema(scan.schema)
    frame = whole_frame(spark, scan)
    return TableFrame(frame) if isinstance(frame, ClassicDataFrame) else frame


def table_view(spark: SparkSession, table: LanceTable, ref: Ref, name: str) -> None:
    """Make a version of a table known to the SQL of a session, as a temporary view.

    Spark reads all columns of the view for any query. `narrow(spark.sql("..."))` reads what the query needs.

    Raises:
        RefNotFoundError: There is no such ref.
        InvalidInputError: Spark has no type for a column.
    """
    read_table(spark, table, ref).createOrReplaceTempView(name)


def narrow(df: DataFrame) -> DataFrame:
    """Return a frame with the same rows, whose actions read of Lance tables only what they need.

    Frames of `read_table` are so already. This is for frames that Spark made, as `spark.sql` does of a `table_view`.
    """
    return TableFrame(df) if isinstance(df, ClassicDataFrame) else df


class LanceDataSource(DataSource):
    """Lance tables as a Spark data source named `lance_dagster`.

    Reading takes the options `ref` (default `main`), `columns` (`a,b` or a JSON list) and `filter` (Lance's
    SQL). Writing takes `branch` (default `main`) and `vectors` (`embedding:256`, several separated by
    commas), creates a table that does not exist, and supports the modes `append` and `overwrite`, the latter also
    with `replace_where`, the condition of the rows to replace. Spark itself refuses the other modes, which
    `write_table` has. Prefer that or `stage` for writes: they are faster, and the caller gets the version.

    Both take storage options as `storage.<key>`. Classic Spark shows them nowhere, but a Spark Connect server
    writes the options of every read and write to its event log: there, give the server credentials of its own
    or use `read_table` and `stage`, which keep those of the table out of it.

    Example:
        spark.dataSource.register(LanceDataSource)
        spark.read.format("lance_dagster").option("ref", "production").load("s3://bucket/orders")
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to give to `format(...)`."""
        return "lance_dagster"

    def schema(self) -> StructType:
        """Return the columns of the version that is read, and pin the frame to that version."""
        scan = self._plan()
        # Spark keeps this object and creates the reader later, when the branch may have moved.
        self.options["ref"] = scan.version
        return readable_schema(scan.schema)

    def reader(self, schema: StructType) -> LanceReader:
        """Return the reader of the version; `schema` is the table's, or the one that the caller gave to Spark."""
        # The columns that the caller named with `spark.read.schema(...)` narrow the read.
        scan = self._plan(schema.names)
        own = readable_schema(scan.schema)
        wrong = [field.name for field in schema if field.dataType != own[field.name].dataType]
        if wrong:
            found = ", ".join(f"{name} {own[name].dataType.simpleString()}" for name in wrong)
            raise SchemaMismatchError(f"the schema given for the read is not the table's, where it is {found}")
        return LanceReader(scan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer of one `save()`; creates the table if it does not exist."""
        uri, storage_options = self._place(_WRITE_OPTIONS)
        vectors = _vectors(self.options.get("vectors", ""))
        branch = self.options.get("branch", "main")
        if not LanceTable.exists(uri, storage_options):
            made = target_schema(schema, vectors)
            # `exist_ok`, because another writer may create the table after the look above.
            LanceTable.create(uri, made, storage_options=storage_options, exist_ok=True)
        table = LanceTable.open(uri, storage_options)
        target = table.schema(branch)
        replace_where = self.options.get("replace_where")
        if replace_where is not None and not overwrite:
            raise InvalidInputError("replace_where replaces rows, so it needs .mode('overwrite')")
        if overwrite and replace_where is None:
            target = replacement_schema(schema, target, vectors=vectors)
        check_fits(schema, target, vectors=vectors)
        return LanceWriter(table, branch, schema=target, overwrite=overwrite, replace_where=replace_where)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        """Return a reader that refuses to start."""
        return _NoStream()

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002, FBT001
    ) -> DataSourceStreamWriter:
        """Refuse a streaming write.

        Raises:
            InvalidInputError: Always.
        """
        raise InvalidInputError(
            "a Lance table is no streaming sink; write each batch with "
            "df.writeStream.foreachBatch(lambda batch, _: table.append(stage(batch, table)))"
        )

    def _plan(self, columns: Sequence[str] | None = None) -> Scan:
        uri, storage_options = self._place(_READ_OPTIONS)
        named = columns if columns is not None else _names(self.options.get("columns"))
        ref = self.options.get("ref", "main")
        table = LanceTable.open(uri, storage_options)
        return Scan.plan(table, ref, columns=named, filter=self.options.get("filter"))

    def _place(self, known: Sequence[str]) -> tuple[str, Mapping[str, str]]:
        """Return the table's URI and storage options; refuse unknown options."""
        path = self.options.get("path")
        if not path:
            raise InvalidInputError("give the URI of one table: .load(uri) to read, .save(uri) to write")
        named = [key for key in self.options if not key.startswith(_STORAGE)]
        check_names("option", named, (*known, f"{_STORAGE}<key>"))
        # Spark converts option names to lower case, in which Lance's storage options are written anyway.
        keys = [key for key in self.options if key.startswith(_STORAGE)]
        given = {key.removeprefix(_STORAGE): self.options[key] for key in keys}
        return path, given


_NO_STREAM = "a Lance table is no streaming source; read its versions with read_table(spark, table, ref)"


class _NoStream(DataSourceStreamReader):
    """Refuse a streaming read. An error in `streamReader` itself would not reach the user: Spark raises another one."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        raise InvalidInputError(_NO_STREAM)

    # Spark asks for the first offset before it reads; the base class leaves this method to be written.
    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:  # noqa: ARG002 - Spark's name
        raise InvalidInputError(_NO_STREAM)


def _names(text: str | None) -> list[str] | None:
    """Parse names from an option: a JSON list, or names separated by commas."""
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"the option columns is no JSON list of names: {text}") from error
    return [str(name) for name in names]


def _vectors(text: str) -> dict[str, int]:
    """Parse the lengths of vector columns from an option such as `embedding:256,thumbnail:64`."""
    pairs = [pair.rpartition(":") for pair in text.split(",") if pair.strip()]
    for name, _, length in pairs:
        if not name.strip() or not length.strip().isdecimal():
            raise InvalidInputError(f"the option vectors is name:length, separated by commas, not {text!r}")
    return {name.strip(): int(length) for name, _, length in pairs}
