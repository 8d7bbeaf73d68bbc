"""Measure Spark's writes and reads of a table, compared with Parquet files and with Spark's bridge to Python."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from benchmarks.measure import medians, ms
from benchmarks.tables import with_fragments
from lance_dagster import LanceTable, local_session, read_table, stage
from lance_dagster.spark.spark_schema import arrow_for_spark, batch_rows, target_schema
from lance_dagster.spark.writer import large_batches

# Sizes other than those of the published figures are for quick measurements while the code changes.
SCALE = float(os.environ.get("LANCE_DAGSTER_BENCH_SCALE", "1"))
_FORMAT = "lance_dagster"
_MIXED = {
    "id": "id",
    **{f"l{n}": f"id * {n + 3} % 1000003" for n in range(6)},
    **{f"d{n}": f"rand({n}) * 1000" for n in range(6)},
    **{f"s{n}": f"concat('value ', cast(id * {n + 7} % 10007 AS string))" for n in range(6)},
    "at": "timestamp_micros(id * 1000000)",
    "day": "date_add(date '2020-01-01', cast(id % 2000 AS int))",
    "flag": "id % 3 = 0",
    "price": "cast(id % 100000 / 100 AS decimal(10, 2))",
}
_NARROW = {
    "id": "id",
    "k": "id % 1000",
    "x": "rand(1)",
    "s": "concat('s', cast(id % 5000 AS string))",
    "f": "id % 2 = 0",
}
_WIDE = {f"c{n}": f"id + {n}" if n % 2 else f"rand({n})" for n in range(200)}
_NESTED = {
    "id": "id",
    "st": "named_struct('a', id, 'b', named_struct('c', concat('x', cast(id % 100 AS string)), 'd', rand(2)))",
    "li": "array(id, id + 1, id + 2)",
    "m": "map('k', id % 10, 'l', id % 7)",
}
_EMBEDDINGS = {"id": "id", "v": "transform(sequence(1, 256), n -> cast(hash(id, n) AS float))"}
DATA: Mapping[str, tuple[int, Mapping[str, str], Mapping[str, int]]] = {
    "narrow, 5 columns": (5_000_000, _NARROW, {}),
    "mixed, 23 columns": (2_000_000, _MIXED, {}),
    "200 columns": (200_000, _WIDE, {}),
    "nested": (1_000_000, _NESTED, {}),
    "embeddings of 256": (300_000, _EMBEDDINGS, {"v": 256}),
}
_TINY = "200 tiny partitions"
_FRAGMENTS = 10_000
WRITE_GOALS: Mapping[str, str] = {
    **dict(zip(DATA, ("1.6", "1.6", "2.5", "1.35", "2.6"), strict=True)),
    _TINY: "10",
}
READ_GOALS: Mapping[str, str] = {
    **{f"{name}: everything": goal for name, goal in zip(DATA, ("0.8", "0.5", "1.6", "1.0", "0.55"), strict=True)},
    "mixed, 23 columns: two columns": "0.95",
    "mixed, 23 columns: filter 0.1 %": "1.8",
    "mixed, 23 columns: filter 0.1 %, sorted": "0.9",
    "mixed, 23 columns: count": "100",
}


@contextlib.contextmanager
def session(cores: int = 2) -> Iterator[SparkSession]:
    """Start a session on some cores, which ends with the block."""
    spark = local_session("benchmarks", master=f"local[{cores}]", config={"spark.driver.memory": "4g"})
    try:
        yield spark
    finally:
        spark.stop()


def _sources(spark: SparkSession, folder: Path) -> Iterator[tuple[str, DataFrame, Mapping[str, int]]]:
    """Yield frames of Parquet files that are in the page cache, with the lengths of their vectors."""
    for number, (name, (rows, columns, vectors)) in enumerate(DATA.items()):
        path = str(folder / f"source{number}")
        made = spark.range(0, max(1000, int(rows * SCALE)), 1, 4)
        made.selectExpr(*(f"{expression} AS {column}" for column, expression in columns.items())).write.parquet(path)
        yield name, spark.read.parquet(path), vectors
        shutil.rmtree(path)


def _discarded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({"rows": pa.array([rows], pa.int64())})


def _ratios(taken: Mapping[str, float], yardstick: str, others: Sequence[str]) -> list[str]:
    return [f"{taken[yardstick] / taken[name]:.2f}" if name in taken else "" for name in others]


def writes(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the speed of each way to write, as a multiple of that of Spark's own Parquet."""
    ways = ("stage", "data source", "large batches", "bridge", "pylance")
    with session() as spark:
        for name, frame, vectors in _sources(spark, folder):
            taken = medians(_write_ways(frame, vectors, folder))
            yield (name, WRITE_GOALS[name], *_ratios(taken, "parquet", ways))
        tiny = spark.range(0, 200_000, 1, 200)
        table = LanceTable.create(str(folder / "tiny.lance"), target_schema(tiny.schema))
        taken = medians(
            {
                "parquet": lambda: tiny.write.mode("overwrite").parquet(str(folder / "tiny.parquet")),
                "stage": lambda: table.append(stage(tiny, table)),
                "coalesced": lambda: table.append(stage(tiny, table, coalesce="auto")),
                "saved": lambda: tiny.write.format(_FORMAT).mode("append").save(table.uri),
                "saved coalesced": lambda: tiny.coalesce(2).write.format(_FORMAT).mode("append").save(table.uri),
            }
        )
        yield (_TINY, "", *_ratios(taken, "parquet", ["stage", "saved"]), "", "", "")
        merged = _ratios(taken, "parquet", ["coalesced", "saved coalesced"])
        yield (f"{_TINY}, coalesced", WRITE_GOALS[_TINY], *merged, "", "", "")


def _write_ways(frame: DataFrame, vectors: Mapping[str, int], folder: Path) -> dict[str, Callable[[], object]]:
    schema = target_schema(frame.schema, vectors)
    uris = [str(folder / f"{name}.lance") for name in ("staged", "saved", "alone")]
    for uri in uris:
        shutil.rmtree(uri, ignore_errors=True)
    table = LanceTable.create(uris[0], schema)
    LanceTable.create(uris[1], schema)
    saved = frame.write.format(_FORMAT).mode("overwrite")

    def discard() -> None:
        with large_batches(frame.sparkSession, schema):
            frame.mapInArrow(_discarded, "rows long").collect()

    def save_large() -> None:
        with large_batches(frame.sparkSession, schema):
            saved.save(uris[1])

    def alone() -> None:
        files = [file.removeprefix("file://") for file in frame.inputFiles()]
        scanner = ds.dataset(files, format="parquet").scanner()
        lance.write_dataset(scanner.to_reader(), uris[2], mode="overwrite", data_storage_version="2.2")

    ways: dict[str, Callable[[], object]] = {
        "parquet": lambda: frame.write.mode("overwrite").parquet(str(folder / "written")),
        "stage": lambda: table.overwrite(stage(frame, table)),
        "data source": lambda: saved.save(uris[1]),
        "large batches": save_large,
        "bridge": discard,
    }
    # pylance panics with a failed assertion when it reads Spark's files that have maps.
    return ways if any(pa.types.is_map(field.type) for field in schema) else {**ways, "pylance": alone}


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _repeated(spark: SparkSession, table: LanceTable) -> Callable[[], None]:
    """Return a read in which every batch is decoded already, to measure the bridge alone."""
    rows = batch_rows(table.schema())
    schema = read_table(spark, table).schema
    batch = next(iter(read_table(spark, table).limit(rows).toArrow().combine_chunks().to_batches()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_for_spark(schema)) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=arrow_for_spark(schema)))
    data, tasks = sink.getvalue().to_pybytes(), 8
    times = max(1, table.count_rows() // batch.num_rows // tasks)

    def repeat(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoded = pa.ipc.open_stream(data).read_next_batch()
        for _ in numbers:
            for _ in range(times):
                yield decoded

    return lambda: _noop(spark.range(0, tasks, 1, tasks).mapInArrow(repeat, schema))


def reads(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the speed of each way to read, as a multiple of that of Spark's own Parquet."""
    with session() as spark:
        for name, frame, vectors in _sources(spark, folder):
            table = LanceTable.create(str(folder / f"{name}.lance"), target_schema(frame.schema, vectors))
            table.append(stage(frame, table))
            queries: dict[str, Callable[[DataFrame], object]] = {"everything": _noop}
            if "mixed" in name:
                queries |= {
                    "two columns": lambda df: _noop(df.select("id", "s1")),
                    "filter 0.1 %": lambda df: _noop(df.where("l3 < 1000")),
                    "filter 0.1 %, sorted": lambda df: _noop(df.where(f"id < {max(1, int(2000 * SCALE))}")),
                    "count": lambda df: df.count(),
                    "group by": lambda df: df.groupBy("s0").agg({"d0": "sum"}).collect(),
                }
            for query, run in queries.items():
                row = f"{name}: {query}"
                yield (row, READ_GOALS.get(row, ""), *_read_row(spark, table, frame, query, run))
        table = with_fragments(folder, _FRAGMENTS).table
        taken = medians(
            {
                "read_table": lambda: read_table(spark, table).count(),
                "data source": lambda: spark.read.format(_FORMAT).load(table.uri).count(),
            }
        )
        yield (f"{_FRAGMENTS:,} fragments: count", "1.5 s", *map(ms, taken.values()), "", "")


def _read_row(
    spark: SparkSession, table: LanceTable, frame: DataFrame, query: str, run: Callable[[DataFrame], object]
) -> list[str]:
    files = frame.inputFiles()[0].rpartition("/")[0]
    ways: dict[str, Callable[[], object]] = {
        "parquet": lambda: run(spark.read.parquet(files)),
        "read_table": lambda: run(read_table(spark, table)),
        "data source": lambda: run(spark.read.format(_FORMAT).load(table.uri)),
    }
    if query == "everything":
        ways["bridge"] = _repeated(spark, table)
        ways["pylance"] = lambda: sum(batch.num_rows for batch in table.scan())
    taken = medians(ways)
    return [
        *_ratios(taken, "parquet", ["read_table", "data source"]),
        *(_ratios(taken, "parquet", [*ways][3:]) or ["", ""]),
    ]


def cores(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the times of writes and reads of narrow rows on one core and on two."""
    found: list[dict[str, float]] = []
    for number in (1, 2):
        with session(number) as spark:
            _, frame, vectors = next(_sources(spark, folder / str(number)))
            table = LanceTable.create(str(folder / f"{number}.lance"), target_schema(frame.schema, vectors))
            table.append(stage(frame, table))
            found.append(
                medians(
                    {
                        "write, Parquet": lambda frame=frame: frame.write.mode("overwrite").parquet(str(folder / "to")),  # type: ignore[misc]
                        "write, `stage`": lambda frame=frame, table=table: stage(frame, table),  # type: ignore[misc]
                        "read, Parquet": lambda frame=frame: _noop(frame),  # type: ignore[misc]
                        "read, `read_table`": lambda spark=spark, table=table: _noop(read_table(spark, table)),  # type: ignore[misc]
                    }
                )
            )
    one, two = found
    for way, seconds in one.items():
        yield (way, ms(seconds), ms(two[way]), f"{seconds / two[way]:.2f}")
