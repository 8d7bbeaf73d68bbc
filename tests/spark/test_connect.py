"""All reads and writes through Spark Connect and in a classic session, and what both write to the event log."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from lance_dagster.spark.java import ensure_java
from lance_dagster.table import LanceTable
from tests.conftest import HOST, SERVER_START_SECONDS, S3Storage, free_port

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
PROGRAM_SECONDS = 300
# A Spark Connect session cannot exist beside the classic one of the other tests, so it has its own process.
PROGRAM = """
import json, sys, tempfile
from pathlib import Path
import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from lance_dagster import (
    LanceDataSource, LanceTable, local_session, narrow, read_changes, read_table, stage, table_view, upsert_batches,
    upsert_frame, write_table,
)

uri, options, master, config = sys.argv[1], *map(json.loads, sys.argv[2:])
folder = Path(tempfile.mkdtemp())
if master.startswith("sc://"):
    spark = SparkSession.builder.remote(master).getOrCreate()
    spark.dataSource.register(LanceDataSource)
else:
    spark = local_session(master=master, config=config)
storage = {f"storage.{key}": value for key, value in options.items()}
spark.range(5).write.format("lance_dagster").options(**storage).mode("append").save(uri)
table = LanceTable.open(uri, options)
table.append(stage(spark.range(5, 9), table))
upsert_frame(spark.range(8, 11), table, on=["id"])
write_table(spark.range(11, 12), uri, mode="append", storage_options=options)
table_view(spark, table, "main@2", "numbers")
found = {
    "read_table": sorted(row.id for row in read_table(spark, table, filter="id > 3").collect()),
    "format": spark.read.format("lance_dagster").options(**storage, ref="main@3").load(uri).count(),
    "view": [narrow(spark.sql(f"SELECT {f}(id) FROM numbers")).collect()[0][0] for f in ("count", "max")],
    "changes": read_changes(spark, table, "main@3", "main").count(),
}

def run(write, name):
    write = write.option("checkpointLocation", str(folder / name)).trigger(availableNow=True)
    query = write.start()
    query.awaitTermination()

def followed():
    return spark.readStream.format("lance_dagster").options(**storage).load(uri).writeStream

def copy():
    run(followed().format("lance_dagster").options(**storage, path=f"{uri}-copy"), "copy")

def upsert(**stream):
    run(followed().foreachBatch(upsert_batches(dest, on=["id"], when_matched="keep", **stream)), f"upsert {stream}")

dest = LanceTable.create(f"{uri}-upserted", pa.schema([pa.field("id", pa.int64())]), storage_options=options)
dest.append(pa.table({"id": pa.array([5, 100], pa.int64())}))
found["deleted"] = delete_keys(spark.range(2), table, on=["id"]).rows_deleted
copy()
upsert(stream="numbers")
table.append(stage(spark.range(12, 20, 1, 4), table))
found["fragments"] = [len(table.to_lance().get_fragments())]
compact_table(spark, table)
found["fragments"] += [len(table.to_lance().get_fragments())]
copy()
for _ in range(2):
    upsert(stream="numbers")
    # As a kill between the commit of a batch and its record in the checkpoint.
    done = next((folder).glob("upsert {*}/commits/1"))
    done.unlink()
    done.with_name(".1.crc").unlink()
for name in ("copy", "upserted"):
    other = LanceTable.open(f"{uri}-{name}", options)
    found[name] = [sorted(other.read()["id"].to_pylist()), other.branches.version_numbers(after=1)]
try:
    upsert()
    found["unnamed"] = True
except StreamingQueryException as error:
    found["unnamed"] = "name the stream: upsert_batches(..., stream='orders')" in str(error)
spark.stop()
print(json.dumps(found))
"""
# The Spark page recommends this setting for a Connect server.
REDACTED = r'"storage\.[^"]*"\s*value: "[^"]*"'


def logged(folder: Path) -> dict[str, str]:
    """Settings for an event log that can be searched."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server in its own process, from the pip installation."""
    ensure_java()
    port, log = free_port(), tmp_path / "server.log"
    settings = {
        **logged(tmp_path / "events"),
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.redaction.string.regex": REDACTED,
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--driver-memory", "1g", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    # In client mode, `spark-submit` would connect to a server instead of becoming one.
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST, "SPARK_CONNECT_MODE": "0"}
    with log.open("wb") as output:
        server = subprocess.Popen([*command, "spark-internal"], env=environment, cwd=ROOT, stdout=output, stderr=output)
    try:
        _wait(server, port, log)
        yield f"sc://{HOST}:{port}"
    finally:
        server.terminate()
        server.wait(SERVER_START_SECONDS)


def _wait(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Return once the server listens; it speaks gRPC, so no request is sent."""
    deadline = time.monotonic() + SERVER_START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"the server did not start:\n{log.read_text()}")


def run(storage: S3Storage, master: str, config: dict[str, str] | None = None) -> None:
    """Run the program, and check what it read and which rows the table has."""
    uri = f"{storage.uri}/numbers"
    arguments = [uri, *map(json.dumps, (storage.storage_options, master, config))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    before, after = found.pop("fragments")
    assert before > after == 1
    rows = list(range(2, 20))
    assert {
        "read_table": list(range(4, 12)),
        "format": 9,
        "view": [5, 4],
        "changes": 3,
        "deleted": 2,
        "copy": [rows, [2, 3]],
        "upserted": [[*rows, 100], [2, 3, 4]],
        "unnamed": True,
    } == found
    assert "test-secret" not in done.stdout + done.stderr
    table = LanceTable.open(uri, storage.storage_options)
    assert rows == sorted(table.read()["id"].to_pylist())  # type: ignore[type-var]
    assert table.maintenance.verify().ok


def events(folder: Path) -> str:
    """The text of an event log."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    text = "".join(file.read_text() for file in files)
    assert "SparkListenerJobEnd" in text, f"{files} are no event log"
    return text


def test_spark_connect(connect_server: str, s3_storage: S3Storage, tmp_path: Path) -> None:
    """The client commits the files that it stages; the log has the data source's options without their values."""
    run(s3_storage, connect_server)
    text = events(tmp_path / "events")
    assert "test-secret" not in text
    assert "write_operation" in text
    assert "(redacted)" in text


def test_a_classic_session_logs_no_storage_option(s3_storage: S3Storage, tmp_path: Path) -> None:
    """The log has neither the options of a table nor those of the data source."""
    run(s3_storage, "local[2]", {**logged(tmp_path / "events"), "spark.driver.memory": "1g"})
    assert "test-secret" not in events(tmp_path / "events")
