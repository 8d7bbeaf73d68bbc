"""Tasks that fail while they write, in each way to write: exact rows, one commit, no missing file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Local Spark tries a task once unless its master says otherwise, so this needs its own Spark.
JOBS = """
import itertools, json, sys
from pathlib import Path
import pyarrow as pa
from lance_dagster import LanceDataSource, compact_table, local_session, stage, upsert_frame
from lance_dagster.table import LanceTable
from tests.spark.failing_daemon import FAILURE, FAILURES, POINTS

way, root = sys.argv[1], Path(sys.argv[2])
config = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
daemon = {"spark.python.daemon.module": "tests.spark.failing_daemon"}
spark = local_session(master="local[2,2]", config={**config, **daemon})
rows = [pa.table({"id": pa.array(range(start, start + 10_000), pa.int64())}) for start in range(0, 40_000, 10_000)]

def stream(table, folder):
    write = spark.readStream.format("lance_dagster").load(f"{root}/source").writeStream.format("lance_dagster")
    write = write.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    write.start(table.uri).awaitTermination()

WAYS = {
    "stage": lambda df, table, _: table.append(stage(df, table)),
    "data source": lambda df, table, _: df.write.format("lance_dagster").mode("append").save(table.uri),
    "upsert": lambda df, table, _: upsert_frame(df, table, ["id"]),
    "compaction": lambda _, table, __: compact_table(spark, table, target_rows=20_000),
    "stream": lambda _, table, folder: stream(table, folder),
}
if way == "stream":
    source = LanceTable.create(root / "source", rows[0].schema)
    for part in rows:
        source.append(part)
found = []
for number, (point, failure) in enumerate(itertools.product(POINTS, FAILURES)):
    folder = root / str(number)
    table = LanceTable.create(folder / "table", rows[0].schema)
    if way == "upsert":
        table.append(pa.concat_tables(rows).slice(20_000))
    if way == "compaction":
        for part in rows:
            table.append(part)
    before, log = table.head().number, folder / "failures"
    spark.sparkContext.setLocalProperty(FAILURE, f"{point}|{failure}|{log}")
    WAYS[way](spark.range(0, 40_000, 1, 2), table, folder)
    spark.sparkContext.setLocalProperty(FAILURE, None)
    versions = table.branches.version_numbers(after=before)
    operations = [table.at(f"main@{one}").operation for one in versions]
    exact = sorted(table.read()["id"].to_pylist()) == list(range(40_000))
    failures = len(set(log.read_text().split()))
    found.append([point, failure, operations, exact, failures, table.maintenance.verify().ok])
print(json.dumps(found))
"""
WAYS = {
    "stage": ["Append"],
    "data source": ["Append"],
    "upsert": ["Update"],
    # The ids of the fragments are reserved first.
    "compaction": ["ReserveFragments", "Rewrite"],
    "stream": ["Append"],
}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_fails_and_is_tried_again_leaves_one_copy(way: str, tmp_path: Path) -> None:
    """The first attempt of each task ends before, in or after its data file, by an error or with its process."""
    command = [sys.executable, "-c", JOBS, way, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert 6 == len(found)
    for point, failure, operations, exact, failures, sound in found:
        assert (WAYS[way], True, True) == (operations, exact, sound), (point, failure)
        # Each of the tasks that write a file failed once; Spark may join the few rows of an upsert into one task.
        assert failures >= 1, (point, failure)
