"""The Spark data source `lance_dagster`, and the functions that read a table faster than it.

Unknown options are refused. Spark passes every option on, so a misspelt `ref` would silently read `main`.

The name is not `lance`, because that is the name of lance-spark's data source, and Spark refuses to register a
name that a Java data source has.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructField, StructType

from lance_dagster.errors import InvalidInputError, LanceDagsterError, SchemaMismatchError
from lance_dagster.format.validation import check_class, check_names
from lance_dagster.history.context import Ref
from lance_dagster.history.table_uri import is_table_uri, parse_version_uri
from lance_dagster.repository import LanceRepository
from lance_dagster.repository.view import TableView
from lance_dagster.spark.change_rows import CHANGE_COLUMNS, feed_schema
from lance_dagster.spark.frame import TableFrame, version_frame
from lance_dagster.spark.reader import LanceReader, Scan, fragment_sizes
from lance_dagster.spark.spark_schema import (
    check_fits,
    names_in_table,
    readable_schema,
    refuse_no_columns,
    replacement_schema,
    target_schema,
)
from lance_dagster.spark.streaming.stream_sink import LanceStreamWriter
from lance_dagster.spark.streaming.stream_source import (
    CHANGES,
    STREAM_OPTIONS,
    LanceStreamReader,
    RefusedStream,
    StreamOptions,
    is_set,
)
from lance_dagster.spark.writer import FileColumns, LanceWriter, advise_once, check_session, is_case_sensitive
from lance_dagster.table import LanceTable

P = ParamSpec("P")
T = TypeVar("T")
_STORAGE = "storage."
_READ_OPTIONS = ("path", "ref", "branch", "columns", "filter")
_FOLLOW_OPTIONS = ("path", "ref", "columns", CHANGES, *STREAM_OPTIONS)
_WRITE_OPTIONS = ("path", "branch", "vectors", "replace_where", "partitions")
# Spark passes the place of its checkpoint and the name of the query on as options.
_STREAM_WRITE_OPTIONS = ("path", "branch", "vectors", "checkpointlocation", "queryname")
# What Spark adds to the options of a table that it is asked to keep in its catalog.
_CATALOG_OPTIONS = frozenset({"owner", "location", "is_managed_location", "provider", "external"})
_USE_A_VIEW = (
    "Spark's catalog cannot keep a table of a Python data source: use table_view(spark, table, ref, name), or "
    "CREATE TEMPORARY VIEW name USING lance_dagster OPTIONS (path '...', branch '...')"
)


def read_table(
    spark: SparkSession,
    table: LanceTable | TableView,
    ref: Ref = "main",
    columns: Sequence[str] | None = None,
    *,
    filter: str | None = None,
) -> DataFrame:
    """Return a lazy Spark frame of exactly the version a ref names now.

    Later commits do not show in the frame. In a classic session the actions of the frame, and of frames that are made
    of it by selections, filters, joins, groupings and the like, read only the columns and rows that they need, as far
    as Lance can tell them; `count` of the whole frame reads none. With Spark Connect, name the columns and the filter
    here. Spark knows the size of the frame without filters, and broadcasts a small one in a join.

    An action raises the error of an executor as this package's, such as `StoreError` where the executor has no table at
    the path.

    Args:
        spark: A classic or Spark Connect session.
        table: The table; or a table of a repository at a commit, such as `repository.at("production")["shop/orders"]`,
            whose version at that commit is read.
        ref: A version, or any ref expression.
        columns: The columns to read, in this order; None reads all columns of the table. Columns that Lance has of each
            row can be named too: `_rowid`, `_rowaddr`, and with stable row ids `_row_created_at_version` and
            `_row_last_updated_at_version`.
        filter: A condition in Lance's SQL on columns of the table, such as `x > 3 AND name IS NOT NULL`. It
            may name columns that are not read.

    Raises:
        RefNotFoundError: There is no such ref.
        InvalidInputError: A column does not exist, Lance cannot parse the filter, Spark has no type for a column, or
            row versions are named of a table without stable row ids.
    """
    check_session(spark)
    if isinstance(table, TableView):
        if ref != "main":
            raise InvalidInputError(f"{table.name} is read at the commit of its view, and not at {ref}")
        ref = table.ref
        table = LanceTable.open(table.uri, table.storage_options)
    check_class("table", table, LanceTable, "LanceTable.open(uri)")
    scan = Scan.plan(table, ref, columns=columns, filter=filter, exact=is_case_sensitive(spark))
    # Only for its error: a column without a Spark type is named here, and not by an executor.
    readable_schema(scan.schema)
    # The sizes are read at once, so that an error of the table is raised here and not by an action.
    return version_frame(spark, scan, fragment_sizes(scan))


def table_view(spark: SparkSession, table: LanceTable, ref: Ref, name: str) -> None:
    """Make a version of a table known to the SQL of a session, as a temporary view.

    Spark reads all columns of the view for any query. `narrow(spark.sql("..."))` reads what the query needs.

    Raises:
        RefNotFoundError: There is no such ref.
        InvalidInputError: Spark has no type for a column, or takes no such name.
    """
    view = read_table(spark, table, ref)
    try:
        view.createOrReplaceTempView(name)
    except AnalysisException as error:
        raise InvalidInputError(f"{name!r} cannot name a view in Spark; give letters, digits and '_'") from error


def narrow(df: DataFrame) -> DataFrame:
    """Return a frame with the same rows, whose actions read of Lance tables only what they need.

    Frames of `read_table` are so already. This is for frames that Spark made, as `spark.sql` does of a `table_view`.
    """
    return TableFrame(df) if isinstance(df, ClassicDataFrame) else df


def _without_frames(method: Callable[P, T]) -> Callable[P, T]:
    """Return a method of the source whose refusals have no traceback into this package.

    Spark runs the method in a process of its own, and raises the text of the traceback, with the message in its last
    line: the error about a misspelt option would begin with a page of frames.
    """

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except LanceDagsterError as error:
            raise error.with_traceback(None) from None

    return called


class LanceDataSource(DataSource):
    """Lance tables as a Spark data source named `lance_dagster`.

    Reading takes the options `ref` (default `main`) or `branch`, of which the frame or view keeps the version that it
    had then, and `columns` (`a,b` or a JSON list) and `filter` (Lance's
    SQL). Writing takes `branch` (default `main`) and `vectors` (`embedding:256`, several separated by
    commas), creates a table that does not exist, and supports the modes `append` and `overwrite`, the latter also
    with `replace_where`, the condition of the rows to replace, which each new row has to satisfy. `partitions`
    (`2026-01-30,2026-01-31` or a JSON list) are the partition keys of the rows, as in `LanceTable.append`. Spark itself
    refuses the other modes, which `write_table` has. Prefer that or `stage` for writes: they are faster, and the caller
    gets the version.

    Both take storage options as `storage.<key>`. Classic Spark shows them nowhere, but a Spark Connect server
    writes the options of every read and write to its event log: there, give the server credentials of its own or the
    redaction that the Spark page names, or use `read_table` and `stage`, which keep those of the table out of it.

    The path may be the URI of a version, such as `lance+s3://lake?table=shop/orders&ref=production`, which names the
    ref too: of a table, or of a repository.

    Example:
        spark.dataSource.register(LanceDataSource)
        spark.read.format("lance_dagster").option("ref", "production").load("s3://bucket/orders")
    """

    # The version that the columns of the frame are of.
    _version: str | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name to give to `format(...)`."""
        # Registering the source asks for its name, which is all that runs in the process of the caller.
        advise_once()
        return "lance_dagster"

    @_without_frames
    def schema(self) -> StructType:
        """Return the columns of the version that is read, and pin the frame to that version."""
        # Spark does not say whether the frame is a stream, so the options of both are taken here.
        scan = self._plan(option_names=(*_READ_OPTIONS, CHANGES, *STREAM_OPTIONS))
        # Spark keeps this object and creates the reader later, when the branch may have moved.
        self._version = scan.version
        return feed_schema(scan.schema) if is_set(self.options, CHANGES) else readable_schema(scan.schema)

    @_without_frames
    def reader(self, schema: StructType) -> LanceReader:
        """Return the reader of the version; `schema` is that of the table, or of `spark.read.schema(...)`."""
        for name in (CHANGES, *STREAM_OPTIONS):
            if name in self.options:
                raise InvalidInputError(f"{name} is an option of spark.readStream; read_changes compares two versions")
        # The columns that the caller named with `spark.read.schema(...)` narrow the read.
        scan = self._plan(schema.names)
        _check_types(schema, _renamed(readable_schema(scan.schema), schema.names))
        return LanceReader(scan, schema)

    @_without_frames
    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer of one `save()`; creates the table if it does not exist."""
        replace_where = self.options.get("replace_where")
        if replace_where is not None and not overwrite:
            raise InvalidInputError("replace_where replaces rows, so it needs .mode('overwrite')")
        replaced = overwrite and replace_where is None
        partitions = _names("partitions", self.options.get("partitions")) or ()
        table, branch, columns = self._target(schema, overwrite=replaced, option_names=_WRITE_OPTIONS)
        return LanceWriter(
            table, branch, columns=columns, overwrite=overwrite, replace_where=replace_where, partitions=partitions
        )

    def streamReader(self, schema: StructType) -> LanceStreamReader:  # noqa: N802 - Spark's signature
        """Return the reader of a stream of the branch `ref`."""
        try:
            if "filter" in self.options:
                raise InvalidInputError("a stream has no option 'filter'; use df.where(...)")
            uri, storage_options = self._place(_FOLLOW_OPTIONS)
            options = StreamOptions.of(self.options)
            table = LanceTable.open(uri, storage_options)
            fed = CHANGE_COLUMNS.names if options.changes else []
            # The columns of `spark.readStream.schema(...)` may differ from the columns of the table.
            read = [name for name in schema.names if name not in fed]
            scan = self._plan(read, option_names=_FOLLOW_OPTIONS, exact=True)
            _check_types(schema, feed_schema(scan.schema) if options.changes else readable_schema(scan.schema))
            return LanceStreamReader(table, options, schema, schema_version=table.at(scan.version))
        except LanceDagsterError as error:
            return RefusedStream(error)

    @_without_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> LanceStreamWriter:  # noqa: FBT001, N802
        """Return the writer of one batch of a stream; creates the table if it does not exist."""
        table, branch, columns = self._target(schema, overwrite=overwrite, option_names=_STREAM_WRITE_OPTIONS)
        return LanceStreamWriter(table, branch, columns, overwrite=overwrite)

    def _target(
        self, schema: StructType, *, overwrite: bool, option_names: Sequence[str]
    ) -> tuple[LanceTable, str, FileColumns]:
        """Return the table and the branch to write to, and the columns that the rows get there."""
        if "ref" in self.options:
            raise InvalidInputError(
                "ref names a version, which is read and never written; a view that is read and written has the option "
                "branch instead"
            )
        uri, storage_options = self._place(option_names)
        vectors = _vectors(self.options.get("vectors", ""))
        branch = self.options.get("branch", "main")
        refuse_no_columns(schema)
        if not LanceTable.exists(uri, storage_options):
            table_schema = target_schema(schema, vectors)
            # `exist_ok`, because another writer may create the table after the look above.
            LanceTable.create(uri, table_schema, storage_options=storage_options, exist_ok=True)
        table = LanceTable.open(uri, storage_options)
        target = table.schema(branch)
        names = names_in_table(schema.names, target.names)
        named = _renamed(schema, names)
        if overwrite:
            target = replacement_schema(named, target, vectors=vectors)
        check_fits(named, target, vectors=vectors)
        return table, branch, FileColumns(target, tuple(names))

    def _plan(
        self,
        columns: Sequence[str] | None = None,
        option_names: Sequence[str] = _READ_OPTIONS,
        *,
        exact: bool = False,
    ) -> Scan:
        uri, storage_options = self._place(option_names)
        named = columns if columns is not None else _names("columns", self.options.get("columns"))
        branch = self.options.get("branch")
        ref = self.options.get("ref", branch or "main")
        if branch is not None and "ref" in self.options:
            raise InvalidInputError("give ref, of what is read, or branch, of what is read and written; not both")
        if is_table_uri(uri):
            if branch is not None or "ref" in self.options:
                raise InvalidInputError("the URI of a version names its ref: leave out the options ref and branch")
            uri, ref = _version_of(uri, storage_options)
        table = LanceTable.open(uri, storage_options)
        if branch is not None and self._version is None:
            # Only for its error: `branch` names no version, since a view that has it is written, too.
            table.head(branch)
        return Scan.plan(table, self._version or ref, columns=named, filter=self.options.get("filter"), exact=exact)

    def _place(self, option_names: Sequence[str]) -> tuple[str, Mapping[str, str]]:
        """Return the table's URI and storage options; refuse unknown options."""
        path = self.options.get("path")
        if not path:
            raise InvalidInputError(
                f"give the URI of one table: .load(uri) to read, .save(uri) to write. In SQL, {_USE_A_VIEW}"
            )
        # Spark asks for the columns of `CREATE TABLE ... USING`, and forgets the path: nobody could read that table.
        if _CATALOG_OPTIONS & self.options.keys():
            raise InvalidInputError(f"CREATE TABLE is not supported: {_USE_A_VIEW}")
        # Spark converts option names to lower case, in which Lance's storage options are written anyway.
        spelled = {name.lower(): name for name in option_names}
        named = [spelled.get(key, key) for key in self.options if not key.startswith(_STORAGE)]
        check_names("option", named, (*option_names, f"{_STORAGE}<key>"))
        keys = [key for key in self.options if key.startswith(_STORAGE)]
        storage_options = {key.removeprefix(_STORAGE): self.options[key] for key in keys}
        return path, storage_options


def _renamed(schema: StructType, names: Sequence[str]) -> StructType:
    """Return the columns of a schema under other names."""
    columns = zip(names, schema, strict=True)
    return StructType([StructField(name, column.dataType, column.nullable) for name, column in columns])


def _check_types(read_schema: StructType, own: StructType) -> None:
    """Refuse a schema that the caller gave for a read and whose types are not the types of the table.

    Raises:
        SchemaMismatchError: A column has another type, or takes no null where the column of the table may be null.
    """
    # Spark would not look for nulls there, and skip them or fail at them; its own sources make each column nullable.
    never = [field.name for field in read_schema if own[field.name].nullable and not field.nullable]
    if never:
        raise SchemaMismatchError(
            f"the schema given for the read has NOT NULL for {', '.join(never)}, which may be null in the table; leave "
            "NOT NULL out, as with StructField(name, type, nullable=True)"
        )
    wrong = [field.name for field in read_schema if field.dataType != own[field.name].dataType]
    if wrong:
        types = ", ".join(f"{name} {own[name].dataType.simpleString()}" for name in wrong)
        raise SchemaMismatchError(f"the schema given for the read is not the table's, where it is {types}")


def _version_of(uri: str, storage_options: Mapping[str, str]) -> tuple[str, str]:
    """Return the URI of a table and the ref of the version that the URI of a version names."""
    version_uri = parse_version_uri(uri)
    if version_uri.table is None:
        return version_uri.location, version_uri.ref
    view = LanceRepository.open_uri(uri, storage_options)
    return view.uri, view.ref


def _names(option: str, text: str | None) -> list[str] | None:
    """Parse names from the text of an option: a JSON list, or names separated by commas."""
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"the option {option} must be a JSON list of names, or names separated by commas, not {text}"
        ) from error
    return [str(name) for name in names]


def _vectors(text: str) -> dict[str, int]:
    """Parse the lengths of vector columns from an option such as `embedding:256,thumbnail:64`."""
    pairs = [pair.rpartition(":") for pair in text.split(",") if pair.strip()]
    for name, _, length in pairs:
        if not name.strip() or not length.strip().isdecimal():
            raise InvalidInputError(f"the option vectors is name:length, separated by commas, not {text!r}")
    return {name.strip(): int(length) for name, _, length in pairs}
