"""The Spark data source named `lance_dagster`, and `read_table`, which reads through it.

Its options are strings, as Spark's are. A misspelt one is refused, because Spark would pass it on in silence
and a read of the wrong branch looks like any other read.
"""

import functools
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.spark.reader import LanceReader, Scan
from lance_dagster.spark.spark_schema import check_fits, readable_schema, replacement_schema, target_schema
from lance_dagster.spark.writer import LanceWriter
from lance_dagster.table import LanceTable

_STORAGE = "storage."
_READ_OPTIONS = ("path", "ref", "columns", "filter")
_WRITE_OPTIONS = ("path", "branch", "vectors")


def read_table(
    spark: SparkSession,
    table: LanceTable,
    ref: str = "main",
    columns: Sequence[str] | None = None,
    *,
    filter: str | None = None,
) -> DataFrame:
    """Return a lazy Spark frame of exactly the version a ref names now.

    What is committed later does not show in the frame. Name the columns and the filter here rather than in
    `select` and `where`: Spark tells a Python data source about neither, and reads everything first. Spark
    knows no size of the frame either, so say `broadcast(df)` to join a small one.

    Args:
        spark: A classic or Spark Connect session; the data source is registered in it.
        table: The table.
        ref: Any ref expression.
        columns: The columns to read, in this order; None reads all.
        filter: A condition in Lance's SQL on columns of the table, such as `x > 3 AND name IS NOT NULL`. It
            may name columns that are not read.

    Raises:
        RefNotFoundError: There is no such ref.
        InvalidInputError: A column does not exist, the filter cannot be understood, or Spark has no type for
            a column.
    """
    scan = Scan.plan(table, ref, columns=columns, filter=filter)
    readable_schema(scan.schema)
    source = _source_with(frozenset(table.storage_options.items()))
    spark.dataSource.register(source)
    reader = spark.read.format(source.name()).option("ref", scan.version)
    if columns is not None:
        reader = reader.option("columns", json.dumps(scan.schema.names))
    if filter is not None:
        reader = reader.option("filter", filter)
    return reader.load(table.uri)


class LanceDataSource(DataSource):
    """Lance tables as a Spark data source named `lance_dagster`.

    Reading takes the options `ref` (default `main`), `columns` (`a,b` or a JSON list) and `filter` (Lance's
    SQL). Writing takes `branch` (default `main`) and `vectors` (`embedding:256`, several separated by
    commas), makes the table when there is none, and works with the modes `append` and `overwrite`. `stage` is
    the better way to write: it is faster, and the caller makes the commit.

    Both take storage options as `storage.<key>`. Classic Spark shows them nowhere, but a Spark Connect server
    writes the options of every read and write to its event log: there, give the server credentials of its own
    or use `read_table` and `stage`, which keep those of the table out of it.

    Example:
        spark.dataSource.register(LanceDataSource)
        spark.read.format("lance_dagster").option("ref", "production").load("s3://bucket/orders")
    """

    storage_options: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "lance_dagster"

    def schema(self) -> StructType:
        """Return the columns of the version read, and fix that version for the frame."""
        scan = self._plan()
        # Spark keeps this object: the reader, made later, must not see a branch that moved meanwhile.
        self.options["ref"] = scan.version
        return readable_schema(scan.schema)

    def reader(self, schema: StructType) -> LanceReader:
        """Return the reader of the version; `schema` may be the caller's own choice of columns."""
        scan = self._plan(schema.names)
        own = readable_schema(scan.schema)
        wrong = [field.name for field in schema if field.dataType != own[field.name].dataType]
        if wrong:
            found = ", ".join(f"{name} {own[name].dataType.simpleString()}" for name in wrong)
            raise SchemaMismatchError(f"the schema given for the read is not the table's, where it is {found}")
        return LanceReader(scan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer of one `save()`, after making the table if there is none."""
        uri, storage_options = self._place(_WRITE_OPTIONS)
        vectors = _vectors(self.options.get("vectors", ""))
        branch = self.options.get("branch", "main")
        if not LanceTable.exists(uri, storage_options):
            made = target_schema(schema, vectors)
            LanceTable.create(uri, made, storage_options=storage_options, exist_ok=True)
        table = LanceTable.open(uri, storage_options)
        target = table.schema(branch)
        if overwrite:
            target = replacement_schema(schema, target, vectors=vectors)
        check_fits(schema, target, vectors=vectors)
        return LanceWriter(table, branch, schema=target, overwrite=overwrite)

    def _plan(self, columns: Sequence[str] | None = None) -> Scan:
        uri, storage_options = self._place(_READ_OPTIONS)
        named = columns if columns is not None else _names(self.options.get("columns"))
        ref = self.options.get("ref", "main")
        table = LanceTable.open(uri, storage_options)
        return Scan.plan(table, ref, columns=named, filter=self.options.get("filter"))

    def _place(self, known: Sequence[str]) -> tuple[str, Mapping[str, str]]:
        """Return the table's URI and storage options, after refusing options that mean nothing here."""
        path = self.options.get("path")
        if not path:
            raise InvalidInputError("give the URI of one table: .load(uri) to read, .save(uri) to write")
        unknown = [key for key in self.options if key not in known and not key.startswith(_STORAGE)]
        if unknown:
            raise InvalidInputError(
                f"unknown option {', '.join(map(repr, unknown))}; known here: {', '.join(known)} and storage.<key>"
            )
        # Spark makes option names lower case, which is how Lance spells the storage options.
        keys = [key for key in self.options if key.startswith(_STORAGE)]
        given = {key.removeprefix(_STORAGE): self.options[key] for key in keys}
        return path, {**self.storage_options, **given}


@functools.cache
def _source_with(options: frozenset[tuple[str, str]]) -> type[LanceDataSource]:
    """Return the data source with storage options inside, under a name of its own."""
    if not options:
        return LanceDataSource
    own_name = f"{LanceDataSource.name()}_{uuid.uuid4().hex[:12]}"

    # A class made in a function is pickled whole, and Spark logs no pickles; it may log the options of a read.
    class Source(LanceDataSource):
        storage_options: ClassVar[Mapping[str, str]] = dict(options)

        @classmethod
        def name(cls) -> str:
            return own_name

    return Source


def _names(text: str | None) -> list[str] | None:
    """Read the names in an option, given as a JSON list or separated by commas."""
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
    """Read the lengths of vector columns in an option: `embedding:256,thumbnail:64`."""
    pairs = [pair.rpartition(":") for pair in text.split(",") if pair.strip()]
    for name, _, length in pairs:
        if not name.strip() or not length.strip().isdecimal():
            raise InvalidInputError(f"the option vectors is name:length, separated by commas, not {text!r}")
    return {name.strip(): int(length) for name, _, length in pairs}
