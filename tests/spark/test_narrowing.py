"""A frame of `read_table` reads only what its actions need, and gives the same results as Spark."""

import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from lance_dagster import narrow, read_table, stage, table_view
from lance_dagster.spark.frame import TableFrame, VersionFrame, version_frame
from lance_dagster.spark.narrowing import narrowed
from lance_dagster.spark.reader import SPLIT_BYTES, Scan, fragment_sizes
from lance_dagster.table import LanceTable
from tests import soak
from tests.spark.samples import schema_of

pytestmark = pytest.mark.slow

ROWS, VECTORS = 400, 2000
TEXTS = ["", "a", "A", "a'b", "a\\b", "100%", "a_b", "é", "\U0001f600", "b", "zz", None]
NUMBERS = [-(2**31), -3, -1, 0, 1, 2, 5, 2**31 - 1, None]
FLOATS = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, -1.5, 2.5, 1e300, None]
SINGLES = [math.nan, -math.nan, math.inf, 0.0, -0.0, 0.1, -1.5, 2.5, None]
DECIMALS = ["-1.50", "0.00", "1.50", "1.49", "99999999.99", None]
MICROS = [-62_135_596_800_000_000, -1, 0, 1_769_250_000_000_000, 1_792_897_200_500_000, 1_792_900_800_500_000, None]
DAYS = [-719_162, -1, 0, 20_000, 20_574, None]
INNER = pa.struct([pa.field("n", pa.int32()), pa.field("in", pa.struct([pa.field("t", pa.string())]))])
COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(), "i": pa.int32(), "sh": pa.int16(), "u": pa.uint32(), "x": pa.float64(), "f": pa.float32(),
    "s": pa.string(), "b": pa.bool_(), "dec": pa.decimal128(10, 2), "ts": pa.timestamp("us", "UTC"),
    "ms": pa.timestamp("ms", "UTC"), "n": pa.timestamp("us"), "d": pa.date32(), "st": INNER, "Odd one": pa.int64(),
}  # fmt: skip


def random_rows(chance: random.Random) -> pa.Table:
    """Rows with all special values of their types."""

    def some(values: list[object]) -> list[object]:
        return [chance.choice(values) for _ in range(ROWS)]

    small = [None if number is None else abs(number) % 100 for number in NUMBERS]
    structs = [None, {"n": None, "in": None}, {"n": 1, "in": {"t": None}}, {"n": 2, "in": {"t": "a'b"}}]
    values: dict[str, pa.Array[Any]] = {
        "id": pa.array(range(ROWS), pa.int64()),
        "i": pa.array(some([*NUMBERS]), pa.int32()),
        "sh": pa.array(some([*small]), pa.int16()),
        "u": pa.array(some([*small]), pa.uint32()),
        "x": pa.array(some([*FLOATS]), pa.float64()),
        "f": pa.array(some([*SINGLES]), pa.float32()),
        "s": pa.array(some([*TEXTS]), pa.string()),
        "b": pa.array(some([True, False, None]), pa.bool_()),
        "dec": pa.array(some([*DECIMALS]), pa.string()).cast(pa.decimal128(10, 2)),
        "ts": pa.array(some([*MICROS]), pa.int64()).cast(pa.timestamp("us", "UTC")),
        "ms": pa.array(some([0, 1_769_250_000_000, None]), pa.int64()).cast(pa.timestamp("ms", "UTC")),
        "n": pa.array(some([*MICROS]), pa.int64()).cast(pa.timestamp("us")),
        "d": pa.array(some([*DAYS]), pa.int32()).cast(pa.date32()),
        "st": pa.array(some([*structs]), INNER),
        "Odd one": pa.array(some([*NUMBERS]), pa.int64()),
    }
    return pa.table({name: values[name] for name in COLUMNS}, schema=schema_of(**COLUMNS))


def random_atom(chance: random.Random) -> str:
    """A condition in Spark's SQL on one column."""
    numbers, quoted = (
        ["-3", "0", "1", "2", "5", "2.5", "1L", "3000000000"],
        [repr(text) for text in ("a", "A", "b", "é")],
    )
    floats = ["0.1", "0", "-1.5D", "2.5D", "double('nan')", "float(0.1)", "1e300D", "double('inf')"]
    times = [
        "'1970-01-01'",
        "'2026-10-25 02:30:00.5'",
        "timestamp '2026-01-24 10:20:00Z'",
        "date '2026-05-01'",
        "now()",
    ]
    texts = [*quoted, '"a\'b"', r"'a\\b'", "'100%'", "''", "'\U0001f600'"]
    values = {
        "id": numbers, "i": numbers, "sh": numbers, "u": numbers, "`Odd one`": numbers, "st.n": numbers,
        "x": floats, "f": floats, "s": texts, "st.`in`.t": texts, "dec": ["1.5", "1.50", "-1.5D", "0", "1.495"],
        "ts": times, "ms": times, "n": [*times, "timestamp_ntz '2026-10-25 02:30:00.5'"], "d": times,
    }  # fmt: skip
    column = chance.choice([*values, "b"])
    if column == "b":
        return chance.choice(["b", "NOT b", "b = true", "b IS NULL", "b <=> false"])
    one, other = chance.choice(values[column]), chance.choice(values[column])
    shapes = ["{c} {o} {v}", "{c} {o} {v}", "{v} {o} {c}", "{c} IN ({v}, {w})", "{c} NOT IN ({v}, {w})"]
    shapes += ["{c} BETWEEN {v} AND {w}", "{c} IS NULL", "{c} IS NOT NULL", "{c} <=> {v}"]
    if values[column] is texts:
        shapes += [
            "startswith({c}, {v})",
            "endswith({c}, {v})",
            "contains({c}, {v})",
            "{c} LIKE 'a%'",
            "{c} LIKE 'a_b'",
        ]
    signs = ["=", "<>", "<", "<=", ">", ">="]
    return chance.choice(shapes).format(c=column, o=chance.choice(signs), v=one, w=other)


def random_condition(chance: random.Random, depth: int = 2) -> str:
    """A condition in Spark's SQL on several columns."""
    if not depth or chance.random() < 0.3:
        return random_atom(chance)
    both = [random_condition(chance, depth - 1) for _ in range(2)]
    return chance.choice(["({} AND {})", "({} OR {})", "NOT ({} AND {})", "NOT ({} OR {})"]).format(*both)


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """A function that sets the time zone of the session for one test."""
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("name", soak.thinned(["UTC", "Europe/Paris"], kept="Europe/Paris".__eq__))
def test_a_random_filter_gives_the_rows_that_spark_gives(
    spark: SparkSession, tmp_path: Path, zone: Callable[[str], None], name: str
) -> None:
    """Rows include nulls, NaN of both signs, decimals, times and nested columns; a Parquet copy gives the results."""
    chance = random.Random(f"{soak.FIRST_SEED} {name}")
    rows = random_rows(chance)
    table = LanceTable.create(str(tmp_path / "t"), rows.schema)
    for half in (range(ROWS // 2), range(ROWS // 2, ROWS)):
        table.append(rows.take(pa.array(half)))
    # Spark reads unsigned integers and milliseconds from Parquet otherwise than from Arrow.
    read_table(spark, table).write.parquet(str(tmp_path / "p"))
    assert ROWS == pq.read_table(tmp_path / "p").num_rows
    zone(name)
    frame, plain = read_table(spark, table), spark.read.parquet(str(tmp_path / "p"))
    pushed = 0
    for _ in range(soak.examples(25)):
        condition = random_condition(chance)
        expected = plain.where(condition).select("id")
        found = frame.where(condition).select("id")
        assert expected.toArrow().sort_by("id") == found.toArrow().sort_by("id"), condition
        pushed += "lance_" in str(narrowed(found)._jdf.queryExecution().analyzed().toString())  # noqa: SLF001
    assert pushed


@pytest.fixture
def numbers(spark: SparkSession, tmp_table_uri: str) -> LanceTable:
    """A table of a hundred rows and four columns, in two fragments."""
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "id % 3 AS k", "concat('n', id) AS s", "id / 2 AS x")
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), k=pa.int64(), s=pa.string(), x=pa.float64()))
    table.append(stage(frame, table))
    return table


def reads(frame: DataFrame) -> list[list[str]]:
    """The columns that the tasks of an action return, for each read of a table."""
    plan: Any = narrowed(frame)._jdf.queryExecution().analyzed()  # noqa: SLF001
    leaves = [leaf for leaf in _below(plan) if leaf.nodeName() == "MapInArrow"]
    return [[leaf.output().apply(n).name() for n in range(leaf.output().size())] for leaf in leaves]


def _below(plan: Any) -> Iterator[Any]:  # noqa: ANN401 - a Java object
    yield plan
    for number in range(plan.children().size()):
        yield from _below(plan.children().apply(number))


def test_actions_read_the_columns_they_need(spark: SparkSession, numbers: LanceTable) -> None:
    """This holds for selections, groups, joins and sorts; `count` reads no column."""
    df = read_table(spark, numbers)
    other = spark.range(5).withColumnRenamed("id", "k")
    for frame, columns in [
        (df, ["id", "k", "s", "x"]),
        (df.select("x"), ["x"]),
        (df.drop("s", "x"), ["id", "k"]),
        (df.select("s").where("x > 3"), ["s", "x"]),
        (df.select("s").orderBy("k"), ["k", "s"]),
        (df.groupBy("k").agg(functions.max("x")), ["k", "x"]),
        (df.agg(functions.sum("id")), ["id"]),
        (df.join(other, "k").select("s"), ["k", "s"]),
        (df.withColumn("y", df.x + 1).select("y"), ["x"]),
    ]:
        assert isinstance(frame, TableFrame)
        assert [columns] == reads(frame)
    assert 100 == df.count() == df.select("k").count()
    assert [] == reads(df.agg(functions.count("*")))
    assert 100 == df.agg(functions.count("*")).collect()[0][0]


def test_columns_that_the_optimiser_does_without_stay_resolved(spark: SparkSession, numbers: LanceTable) -> None:
    """Nodes of the plan name such columns, or use them by position, although no row needs them."""
    df = read_table(spark, numbers)
    plain = spark.createDataFrame(df.collect(), df.schema)
    queries: list[Callable[[DataFrame], DataFrame]] = [
        lambda frame: frame.withColumn("y", frame.x + 1).select("id"),
        lambda frame: frame.orderBy("s").where("x >= 0 OR true").groupBy("k").agg(functions.sum("id")).orderBy("k"),
        lambda frame: frame.union(frame.selectExpr("k", "id", "s", "x")).where("id < 3").select("k"),
        lambda frame: frame.select("id", "k").exceptAll(frame.where("id > 4").select("id", "k")).select("k"),
        lambda frame: frame.selectExpr("k", "row_number() OVER (PARTITION BY k ORDER BY id) AS n").where("n = 2"),
        lambda frame: frame.dropDuplicates(["k"]).select("k"),
        lambda frame: frame.alias("a").join(frame.alias("b"), functions.expr("a.id = b.k")).selectExpr("b.id", "a.s"),
        lambda frame: frame.mapInArrow(lambda batches: batches, frame.schema).select("x"),
        lambda frame: frame.where("id < 9").orderBy("x").limit(4).select("s"),
    ]
    for number, query in enumerate(queries):
        assert sorted(query(plain).collect()) == sorted(narrow(query(df)).collect()), number


def test_frames_and_their_columns_are_those_of_spark(spark: SparkSession, numbers: LanceTable) -> None:
    """Columns of a frame can be used in derived frames and in joins with itself."""
    df = read_table(spark, numbers)
    few = df.where(df.id < 5)
    assert [0, 1, 2, 3, 4] == [row.id for row in few.select(df.id).orderBy(df.x).collect()]
    assert [0.0, 0.5] == [row.x for row in df.select("x").where(df.id < 2).orderBy("s").collect()]
    assert (
        5
        == few.join(df, few.id == df.id).count()
        == few.alias("a").join(few.alias("b"), functions.expr("a.id = b.id")).count()
    )
    assert 10 == few.union(few).count()
    assert 7 == few.union(df.where("id >= 98")).count()
    assert ["id", "k", "s", "x"] == few.columns == df.schema.names
    assert few.schema == spark.createDataFrame([], df.schema).where("id < 5").schema


def test_a_frame_in_subqueries_caches_and_sql(spark: SparkSession, numbers: LanceTable) -> None:
    """Reads that cannot be narrowed read all columns."""
    df = read_table(spark, numbers)
    table_view(spark, numbers, "main", "numbers")
    largest = narrow(spark.sql("SELECT k, max(id) AS most FROM numbers GROUP BY k ORDER BY k"))
    assert [["id", "k"]] == reads(largest)
    assert [99, 97, 98] == [row.most for row in largest.collect()]
    within = narrow(spark.sql("SELECT s FROM numbers WHERE id = (SELECT max(id) FROM numbers WHERE k = 1)"))
    assert ["n97"] == [row.s for row in within.collect()]
    cached = df.select("id", "x").cache()
    try:
        assert 3 == cached.where("id < 3").count() == len(cached.where("x < 1.5").collect())
    finally:
        cached.unpersist()
    assert 3 == len(df.where("id < 3").toPandas()) == df.where("id < 3").toArrow().num_rows
    assert 3 == df.where("id < 3").rdd.count()


def test_each_use_of_a_common_table_expression_gets_its_rows(spark: SparkSession, numbers: LanceTable) -> None:
    """Spark optimises each use on its own; a table that is used once is narrowed beside one that is used twice."""
    df = read_table(spark, numbers)
    table_view(spark, numbers, "main", "numbers")
    table_view(spark, numbers, "main", "others")
    spark.createDataFrame(df.collect(), df.schema).createOrReplaceTempView("plain")
    for query, columns in [
        ("SELECT id, s FROM c WHERE id < 3 UNION ALL SELECT id, s FROM c WHERE id > 97", None),
        ("SELECT a.id, b.s FROM c a JOIN c b ON a.id = b.k WHERE a.id < 3", None),
        ("SELECT sum(id) FROM c UNION ALL SELECT count(*) FROM c UNION ALL SELECT max(x) FROM c WHERE k = 1", None),
        ("SELECT c.id, o.id FROM c JOIN c d ON c.id = d.id JOIN others o ON c.id = o.k", [*["id"] * 2, "k"]),
        ("SELECT k FROM c WHERE id < 3", ["id", "k"]),
        ("SELECT id FROM c WHERE id IN (SELECT k FROM c WHERE id > 50)", None),
    ]:
        whole = f"WITH c AS (FROM numbers) {query}"
        found, plain = narrow(spark.sql(whole)), spark.sql(re.sub("numbers|others", "plain", whole))
        assert sorted(plain.collect()) == sorted(found.collect()), query
        assert columns is None or columns[-1:] == reads(found)[-1][-1:], query
    for view in ("numbers", "others", "plain"):
        spark.catalog.dropTempView(view)


def test_limits_give_as_many_rows(spark: SparkSession, numbers: LanceTable, capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks return no more rows than are needed."""
    df = read_table(spark, numbers)
    assert 3 == len(df.limit(3).collect()) == len(df.take(3)) == len(df.select("id").head(3))
    assert df.first() is not None
    df.show(2)
    assert 7 == df.limit(7).count()
    assert 2 == len(df.where("id > 5 AND s LIKE '%7'").limit(2).collect())
    assert "only showing top 2 rows" in capsys.readouterr().out


@pytest.fixture
def wide(spark: SparkSession, tmp_table_uri: str) -> DataFrame:
    """A frame that is read in four tasks with its column of vectors, as a large one is, and in one task without it."""
    values = pa.array(np.random.default_rng(0).random(VECTORS * 32, dtype=np.float32))
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), v=pa.list_(pa.float32(), 32)))
    table.append(pa.table({"id": range(VECTORS), "v": pa.FixedSizeListArray.from_arrays(values, 32)}))
    scan = Scan.plan(table)
    (size,) = fragment_sizes(scan)
    return version_frame(spark, scan, [replace(size, bytes=4 * SPLIT_BYTES)])


def ids(frame: DataFrame) -> set[int]:
    """The ids of the rows."""
    return {row.id for row in frame.collect()}


def test_random_columns_do_not_depend_on_the_columns_that_are_read(wide: DataFrame) -> None:
    """A row gets its number by its place in a task, so each action reads the rows in the tasks of the whole frame."""
    df = wide
    frame = df.where("id >= 7").withColumn("r", functions.rand(7))
    narrow_ids, wide_ids = frame.where("r < 0.5").select("id"), frame.where("r >= 0.5").selectExpr("id", "v[0] AS x")
    assert [["id"]] == reads(narrow_ids)
    assert set() == ids(narrow_ids) & ids(wide_ids)
    assert set(range(7, VECTORS)) == ids(narrow_ids) | ids(wide_ids)
    numbered = df.withColumn("n", functions.monotonically_increasing_id())
    pairs = numbered.select("n", "id").join(numbered.selectExpr("n", "id AS other", "v[0] AS x"), "n")
    assert VECTORS == pairs.where("id = other").count()
    sampled = df.sample(0.5, 7)
    kept = ids(sampled)
    assert kept == ids(narrow(sampled.select("id"))) == ids(narrow(sampled.selectExpr("id", "v[0] AS x")))
    assert len(kept) == narrow(sampled).count() == sampled.count()
    # What draws no number is read in as few tasks as it needs.
    assert [4, 1] == [part.rdd.getNumPartitions() for part in (df, df.select("id"))]


def test_no_row_is_left_out_before_a_condition_that_counts_rows(spark: SparkSession, numbers: LanceTable) -> None:
    """A part of a filter behind such a condition is left to Spark, and one before it is not."""
    df = read_table(spark, numbers)
    table_view(spark, numbers, "main", "numbers")
    for condition in ("monotonically_increasing_id() % 2 = 0 AND k = 1", "k = 1 AND rand(7) < 0.5"):
        assert ids(spark.table("numbers").where(condition)) == ids(df.where(condition))
    spark.catalog.dropTempView("numbers")


def test_a_filter_has_the_time_zone_of_the_session_of_its_frame(spark: SparkSession, tmp_table_uri: str) -> None:
    """Another session, which may be the active one, has another zone."""
    hours = pa.array([hour * 3_600_000_000 for hour in range(48)], pa.timestamp("us", "UTC"))
    table = LanceTable.create(tmp_table_uri, schema_of(ts=hours.type))
    table.append(pa.table({"ts": hours}))
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "America/New_York")
    # New York's clocks were five hours behind.
    for session, expected in ((other, 23), (spark, 28), (other, 23)):
        late = read_table(session, table).where("ts >= timestamp '1970-01-01 20:00:00'")
        assert expected == len(late.collect()) == late.count() == len(late.toArrow())


def test_deleted_rows_and_a_filter_of_the_read(spark: SparkSession, numbers: LanceTable) -> None:
    """Both apply together with the filters of the frame."""
    numbers.delete("id < 10")
    df = read_table(spark, numbers, columns=["id", "k"], filter="x < 20")
    assert 30 == df.count()
    assert 10 == df.where("k = 1").count() == len(df.where("k = 1").collect())
    assert 90 == read_table(spark, numbers).count()


def made(frame: DataFrame) -> bool:
    """Whether the frame has a plan in Spark."""
    return "_jdf" in vars(frame)


def test_a_count_of_a_version_makes_no_plan(spark: SparkSession, numbers: LanceTable) -> None:
    """The count comes from the manifest of the frame's version, without deleted rows."""
    df = read_table(spark, numbers)
    assert isinstance(df, VersionFrame)
    numbers.delete("id < 10")
    assert [100, 90] == [df.count(), read_table(spark, numbers).count()]
    assert spark is df.sparkSession
    assert not made(df)
    assert ["id", "k", "s", "x"] == df.columns
    assert made(df)
    assert 100 == df.count()
    assert 10 == read_table(spark, numbers, filter="id >= 90").count()


def test_a_count_fills_a_cache(spark: SparkSession, numbers: LanceTable) -> None:
    """The cache may be requested for the frame or for a view of it."""
    kept: Any = spark.sparkContext._jsc  # noqa: SLF001 - Spark has no other way
    others = len(kept.getPersistentRDDs())
    frames = [read_table(spark, numbers) for _ in range(3)]
    frames[0].cache()
    frames[1].persist()
    frames[2].createOrReplaceTempView("cached_numbers")
    spark.sql("CACHE LAZY TABLE cached_numbers")
    try:
        for number, frame in enumerate(frames, start=1):
            assert 100 == frame.count()
            assert others + number == len(kept.getPersistentRDDs())
            assert 2 == len(frame.where("id < 2").collect())
    finally:
        counts = [frame.unpersist(blocking=True).count() for frame in frames]
        spark.catalog.dropTempView("cached_numbers")
    assert [100] * 3 == counts
    assert others == len(kept.getPersistentRDDs())


def test_counts_of_all_rows_run_no_job(spark: SparkSession, numbers: LanceTable) -> None:
    """This holds for each of Spark's spellings, with its names and types; other counts read rows."""
    numbers.delete("id < 10")
    df = read_table(spark, numbers)
    table_view(spark, numbers, "main", "numbers")
    plain = spark.createDataFrame(df.collect(), df.schema)
    plain.createOrReplaceTempView("plain")
    every = functions.count("*")
    counts: list[Callable[[DataFrame], DataFrame]] = [
        lambda frame: frame.groupBy().count(),
        lambda frame: frame.agg(every),
        lambda frame: frame.agg({"*": "count"}),
        lambda frame: frame.select("k", "s").agg(every.alias("n"), functions.count(functions.lit(7))),
        lambda frame: spark.table("numbers" if frame is df else "plain").agg(every),
        lambda frame: frame.agg(every).withColumn("twice", functions.col("count(1)") * 2),
    ]
    context = spark.sparkContext
    for number, counted in enumerate(counts):
        expected, found = counted(plain).collect(), narrow(counted(df))
        context.setJobGroup(f"count {number}", "")
        try:
            assert expected == found.collect()
            assert not context.statusTracker().getJobIdsForGroup(f"count {number}")
        finally:
            context.setJobGroup("other", "")
        assert counted(plain).toArrow().cast(found.toArrow().schema) == found.toArrow()
    others: list[Callable[[DataFrame], DataFrame]] = [
        lambda frame: frame.agg(functions.count(functions.lit(None))),
        lambda frame: frame.agg(functions.countDistinct(functions.lit(1))),
        lambda frame: frame.selectExpr("count(*) FILTER (WHERE id > 50)"),
        lambda frame: frame.agg(every, functions.max("id")),
        lambda frame: frame.limit(5).agg(every),
        lambda frame: frame.where("id > 50").agg(every),
        lambda frame: frame.union(frame).agg(every),
        lambda frame: frame.crossJoin(frame.agg(every)).agg(every, functions.min("count(1)")),
        lambda frame: frame.groupBy("k").count().orderBy("k"),
        lambda frame: frame.selectExpr("explode(array(id, k)) AS e").agg(every),
    ]
    for other in others:
        assert other(plain).collect() == narrow(other(df)).collect()
    for view in ("numbers", "plain"):
        spark.catalog.dropTempView(view)
