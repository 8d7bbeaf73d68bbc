"""A Spark frame that reads of Lance tables only what an action needs.

`TableFrame` is a frame of classic Spark in every respect. Its operations are Spark's own, and make frames of the same
kind. Only its actions differ: they run on the frame that `narrowed` returns, and raise the errors of this package that
executors met.

`VersionFrame` is the frame of a whole version. Spark gets its plan when something needs that, which takes much longer
than reading the number of rows from the manifest.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, Row, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.group import GroupedData

from lance_dagster.spark.narrowing import narrowed, rows_without_job, whole_frame
from lance_dagster.spark.reader import FragmentSize, Scan
from lance_dagster.spark.writer import errors_of_executors

_OPERATIONS = (
    *("agg", "alias", "coalesce", "crossJoin", "distinct", "drop", "dropDuplicates", "drop_duplicates", "dropna"),
    *("exceptAll", "fillna", "filter", "hint", "intersect", "join", "limit", "offset", "orderBy", "repartition"),
    *("replace", "select", "selectExpr", "sort", "sortWithinPartitions", "subtract", "toDF", "transform", "union"),
    *("unionAll", "unionByName", "unpivot", "where", "withColumn", "withColumnRenamed", "withColumns"),
    *("withColumnsRenamed", "withMetadata"),
)
_ACTIONS = ("collect", "foreach", "foreachPartition", "isEmpty", "tail", "toArrow", "toLocalIterator", "toPandas")
_GROUPINGS = ("cube", "groupBy", "groupby", "rollup")
_AGGREGATIONS = ("agg", "avg", "count", "max", "mean", "min", "sum")


class TableFrame(ClassicDataFrame):
    """A frame whose actions read only what they need; see `read_table`."""

    def __init__(self, frame: DataFrame) -> None:
        """Become a frame with the plan of another frame."""
        super().__init__(frame._jdf, frame.sparkSession)  # noqa: SLF001

    def count(self) -> int:
        """Return the number of rows, without a job where the version knows it."""
        manifest_rows = rows_without_job(self)
        if manifest_rows is not None:
            return manifest_rows
        # As a frame, because the plan of `count` itself is made by Java, after the frame was narrowed.
        with errors_of_executors():
            counted: list[Row] = narrowed(ClassicDataFrame.groupBy(self).count()).collect()
        number: int = counted[0][0]
        return number

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:  # noqa: FBT001, FBT002
        """Print the first rows."""
        # One row more, by which Spark sees whether there are more than it shows.
        first = ClassicDataFrame.limit(self, n + 1) if type(n) is int and n > 0 else self
        with errors_of_executors():
            narrowed(first).show(n, truncate, vertical)

    @property
    def rdd(self) -> "RDD[Row]":
        """The rows as an RDD."""
        return narrowed(self).rdd

    @property
    def write(self) -> DataFrameWriter:
        """The interface to save the rows with Spark's sinks."""
        return narrowed(self).write

    def writeTo(self, table: str) -> DataFrameWriterV2:  # noqa: N802 - Spark's name
        """Return the interface to save the rows to a table of Spark's catalog."""
        return narrowed(self).writeTo(table)


class VersionFrame(TableFrame):
    """The frame of a scan, whose plan Spark gets when it is first needed."""

    # The names of attributes have two underscores because an attribute hides the column of its name.

    def __init__(self, spark: SparkSession, scan: Scan, sizes: Sequence[FragmentSize]) -> None:
        """Keep the scan."""
        ClassicDataFrame.__init__(self, None, spark)
        del self._jdf
        self.__scan, self.__sizes = scan, sizes

    @functools.cached_property
    def _jdf(self) -> Any:  # noqa: ANN401 - a Java object
        return whole_frame(self.sparkSession, self.__scan, self.__sizes)._jdf  # noqa: SLF001

    def count(self) -> int:
        """Return the number of rows, without a job unless rows are filtered or cached."""
        # A frame whose plan Spark never got cannot be cached; a cached frame is counted, which fills the cache.
        if self.__scan.filter is None and ("_jdf" not in vars(self) or self.storageLevel == StorageLevel.NONE):
            return self.__scan.rows
        return super().count()


def version_frame(spark: SparkSession, scan: Scan, sizes: Sequence[FragmentSize]) -> DataFrame:
    """Return the frame of a scan in a classic session, or in one of Spark Connect."""
    return VersionFrame(spark, scan, sizes) if _is_classic(spark) else whole_frame(spark, scan, sizes)


def _is_classic(session: object) -> bool:
    # The class of Spark Connect's sessions has the same name and methods, and is a different class.
    return isinstance(session, SparkSession)


class _TableGroups(GroupedData):
    """Groups of a `TableFrame`."""


def _operation(method: Callable[..., Any], result: type[Any]) -> Callable[..., Any]:
    """Return a method that gives a frame of another class."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Spark's signatures
        return result(method(self, *args, **kwargs))

    return call


def _grouping(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: TableFrame, *args: Any, **kwargs: Any) -> _TableGroups:  # noqa: ANN401 - Spark's signatures
        groups = method(self, *args, **kwargs)
        return _TableGroups(groups._jgd, self)  # noqa: SLF001

    return call


def _action(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(ClassicDataFrame, name))
    def call(self: TableFrame, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Spark's signatures
        with errors_of_executors():
            return getattr(narrowed(self), name)(*args, **kwargs)

    return call


# Spark has no hook for these, and one method for each would say the same forty times.
for _name in _OPERATIONS:
    setattr(TableFrame, _name, _operation(getattr(ClassicDataFrame, _name), TableFrame))
for _name in _ACTIONS:
    setattr(TableFrame, _name, _action(_name))
for _name in _GROUPINGS:
    setattr(TableFrame, _name, _grouping(getattr(ClassicDataFrame, _name)))
for _name in _AGGREGATIONS:
    setattr(_TableGroups, _name, _operation(getattr(GroupedData, _name), TableFrame))
