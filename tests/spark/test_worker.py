import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from lance_dagster import read_table
from lance_dagster.spark.worker import begin_task
from lance_dagster.table import LanceTable
from tests.spark.samples import schema_of

pytestmark = pytest.mark.slow

# Several batches, which no socket takes at once.
ROWS, WORKER_SECONDS = 40_000, 60

# glibc gives a buffer its own pages, which it returns when the buffer is freed, or takes it from one of its heaps. Each
# thread has a heap, up to a number.
BUFFERS = """
import ctypes, threading
from lance_dagster.spark.worker import begin_task

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "free", "fast", "own_pages", *"abcdef")]

begin_task()
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype, libc.free.argtypes = [ctypes.c_size_t], ctypes.c_void_p, [ctypes.c_void_p]
libc.mallinfo2.restype = Info
before = libc.mallinfo2().own_pages
buffer = libc.malloc(8 * 2**20)
print(libc.mallinfo2().own_pages - before)
together = threading.Barrier(8)

def allocate():
    together.wait()
    libc.malloc(2**20)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the option TCP_QUICKACK")
def test_a_task_acknowledges_what_was_sent_to_it() -> None:
    """Otherwise Spark holds back the first rows of a task for 40 ms."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as worker:
        worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert 0 == worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
        begin_task()
        assert 1 == worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has a heap for each thread")
@pytest.mark.parametrize("given,own_pages,shared", [({}, 0, True), ({"MALLOC_MMAP_THRESHOLD_": "4096"}, 1, False)])
def test_threads_of_a_worker_share_freed_buffers(given: dict[str, str], own_pages: int, *, shared: bool) -> None:
    """They do unless the environment has settings of its own."""
    env = {**os.environ, **given}
    done = subprocess.run([sys.executable, "-c", BUFFERS], env=env, capture_output=True, text=True, check=True)
    heaps = done.stderr.count("Arena ")
    assert (own_pages, shared) == (int(done.stdout), heaps <= 2)


@pytest.fixture
def printed(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """A function that returns what the workers of this test have printed on standard error."""
    java: Any = spark._jvm  # noqa: SLF001 - what Spark's Java prints is out of reach of pytest
    system, usual = java.java.lang.System, java.java.lang.System.err
    log = tmp_path / "stderr"
    system.setErr(java.java.io.PrintStream(java.java.io.FileOutputStream(str(log))))
    # Spark has a daemon for each environment of workers, which takes the stream of the time when it starts.
    environment = spark.sparkContext.environment
    environment["LANCE_TEST"] = tmp_path.name
    yield log.read_text
    del environment["LANCE_TEST"]
    system.setErr(usual)


def runs(pid: int) -> bool:
    """Whether there is a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_limit_ends_workers_without_a_trace(
    spark: SparkSession, tmp_table_uri: str, printed: Callable[[], str]
) -> None:
    """Spark stops reading from a worker that has more rows, and ends it."""

    def number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"pid": pa.array([os.getpid()], pa.int64())})

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            sys.stderr.write("the mark\n")
            sys.stderr.flush()
        yield from ()

    values = pa.array(np.zeros(ROWS * 128, np.float32))
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), v=pa.list_(pa.float32(), 128)))
    table.append(pa.table({"id": range(ROWS), "v": pa.FixedSizeListArray.from_arrays(values, 128)}))
    df = read_table(spark, table)
    workers = spark.range(0, 4, 1, 4).mapInArrow(number, "pid long")
    for few in (df.limit(3), df.where("id % 2 = 1").limit(3), ClassicDataFrame(df._jdf, spark).limit(3)):  # noqa: SLF001
        pids = {row.pid for row in workers.collect()}
        assert 3 == len(few.collect())
        deadline = time.monotonic() + WORKER_SECONDS
        while all(map(runs, pids)):
            assert time.monotonic() < deadline, "no worker was ended"
            time.sleep(0.05)
    spark.range(1).mapInArrow(mark, "pid long").collect()
    # Everything from the workers comes through one pipe, so what they printed before is there with the mark.
    while "the mark" not in printed():
        assert time.monotonic() < deadline + WORKER_SECONDS
        time.sleep(0.05)
    assert "the mark\n" == printed()
