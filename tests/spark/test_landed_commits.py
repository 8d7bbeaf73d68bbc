"""Spark aborts a write whose commit has landed, because it never got the answer: the version and its files stay."""

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from lance_dagster import LanceDataSource
from lance_dagster.format.layout import manifest_name
from lance_dagster.spark.streaming.stream_sink import LanceStreamWriter
from lance_dagster.spark.writer import LanceWriter
from lance_dagster.table import LanceTable
from tests.conftest import S3Storage
from tests.servers.objects import FAULTS, REQUESTS, Fault
from tests.soak import pairs
from tests.spark.samples import schema_of

pytestmark = pytest.mark.slow

FORMAT = "lance_dagster"
SAVES: dict[str, dict[str, str]] = {
    "append": {},
    "overwrite": {},
    "replacement": {"replace_where": "id >= 10", "partitions": "new"},
}


def raises() -> None:
    """Fail as a commit whose process lives on."""
    raise OSError("the answer is lost")


def exits() -> None:
    """Fail as a process that is killed."""
    os._exit(1)


LOSSES = {"raises": raises, "exits": exits}


@dataclass(frozen=True, slots=True)
class Loss:
    """How the answer of the first commit is lost, and a log of the calls of `commit` and `abort`."""

    kind: str
    log: Path

    def committed(self) -> None:
        """Note a commit that has landed, and lose its answer if it is the first."""
        if not self._note("commit"):
            LOSSES[self.kind]()

    def aborted(self) -> None:
        """Note an abortion."""
        self._note("abort")

    def _note(self, call: str) -> bool:
        """Add a call to the log; return whether there was one of its kind."""
        before = self.calls()
        self.log.write_text("\n".join([*before, call]))
        return call in before

    def calls(self) -> list[str]:
        """The calls so far."""
        return self.log.read_text().split() if self.log.exists() else []


class LossyWriter(LanceWriter):
    """The writer of a save."""

    loss: Loss

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit, and lose the answer."""
        super().commit(messages)
        self.loss.committed()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort, and note it."""
        super().abort(messages)
        self.loss.aborted()


class LossyStreamWriter(LanceStreamWriter):
    """The writer of a batch of a stream."""

    loss: Loss

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit, and lose the answer."""
        super().commit(messages, batchId)
        self.loss.committed()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort, and note it."""
        super().abort(messages, batchId)
        self.loss.aborted()


class LossySource(LanceDataSource):
    """The data source, whose first commit lands and fails then."""

    loss: Loss

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lossy"

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer of a save."""
        made = super().writer(schema, overwrite)
        made.__class__, made.loss = LossyWriter, self.loss  # type: ignore[attr-defined]
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> LanceStreamWriter:  # noqa: FBT001, N802
        """Return the writer of a batch."""
        made = super().streamWriter(schema, overwrite)
        made.__class__, made.loss = LossyStreamWriter, self.loss  # type: ignore[attr-defined]
        return made


@pytest.fixture
def lossy(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], Loss]]:
    """A function that registers the lossy source with a kind of loss."""

    def register(kind: str) -> Loss:
        loss = Loss(kind, tmp_path / "calls")
        spark.dataSource.register(type("Source", (LossySource,), {"loss": loss}))
        return loss

    # Spark's processes then get the classes themselves, and need not find this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    yield register
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def prepared(uri: str, storage_options: dict[str, str] | None = None) -> LanceTable:
    """A table of twenty rows, at version 2."""
    table = LanceTable.create(uri, schema_of(id=pa.int64()), storage_options=storage_options)
    table.append(pa.table({"id": pa.array(range(20), pa.int64())}))
    return table


def save(spark: SparkSession, name: str, way: str, table: LanceTable, options: dict[str, str] | None = None) -> None:
    """Write ids from 100 on, by four tasks."""
    frame = spark.range(100, 140, 1, 4)
    mode = "append" if way == "append" else "overwrite"
    frame.write.format(name).mode(mode).options(**SAVES[way], **(options or {})).save(table.uri)


def check(table: LanceTable, way: str) -> None:
    """The commit landed once, and everything that it names is there."""
    kept = {"append": 20, "overwrite": 0, "replacement": 10}[way]
    assert [*range(kept), *range(100, 140)] == sorted(table.read().column("id").to_pylist())  # type: ignore[type-var]
    assert [3] == table.branches.version_numbers(after=2)
    assert table.maintenance.verify(deep=True).ok


@pytest.mark.parametrize("way,kind", pairs(SAVES, LOSSES))
def test_a_job_whose_commit_landed_is_aborted(
    spark: SparkSession, lossy: Callable[[str], Loss], tmp_table_uri: str, way: str, kind: str
) -> None:
    """Spark reports a failure, and the rows are there once."""
    table, loss = prepared(tmp_table_uri), lossy(kind)
    with pytest.raises((PySparkException, Py4JJavaError)):
        save(spark, "lossy", way, table)
    assert ["commit", "abort"] == loss.calls()
    check(table, way)


def test_a_batch_whose_commit_landed_is_aborted_and_repeated(
    spark: SparkSession, lossy: Callable[[str], Loss], tmp_table_uri: str, tmp_path: Path
) -> None:
    """The query that is started again finds the version of the batch and writes it no second time."""
    source, loss = prepared(tmp_table_uri), lossy("raises")

    def run() -> None:
        write = spark.readStream.format(FORMAT).load(source.uri).writeStream.format("lossy")
        write = write.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        write.start(str(tmp_path / "sink")).awaitTermination()

    with pytest.raises(StreamingQueryException, match="the answer is lost"):
        run()
    source.append(pa.table({"id": pa.array([20], pa.int64())}))
    run()
    assert ["commit", "abort", "commit", "commit"] == loss.calls()
    table = LanceTable.open(tmp_path / "sink")
    assert [*range(21)] == sorted(table.read().column("id").to_pylist())  # type: ignore[type-var]
    assert [2, 3] == table.branches.version_numbers(after=1)
    assert table.maintenance.verify(deep=True).ok


@pytest.mark.soak
def test_a_store_that_never_answers_the_commit(spark: SparkSession, s3_storage: S3Storage) -> None:
    """Spark aborts the write, as nobody can tell whether it landed; nothing is deleted, and it is there afterwards."""

    def ask(path: str, faults: list[Fault] | None = None) -> Any:  # noqa: ANN401 - JSON
        data = None if faults is None else json.dumps([asdict(fault) for fault in faults]).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        address = s3_storage.storage_options["aws_endpoint"] + path
        with opener.open(urllib.request.Request(address, data)) as answer:  # noqa: S310 - of this machine
            return json.loads(answer.read() or b"[]")

    # The client repeats a request that fails for a second, and not for minutes.
    options = {**s3_storage.storage_options, "client_retry_timeout": "1"}
    table = prepared(f"{s3_storage.uri}/table", options)
    manifest = f"/_versions/{manifest_name(3)}"
    lost = Fault(kind="reset_after", method="PUT", part=manifest, times=1000)
    ask(FAULTS, [lost, Fault(kind="503", method="GET", part=manifest, times=1000)])
    ask(REQUESTS)
    try:
        with pytest.raises(PySparkException, match=r"cannot tell whether .* was committed"):
            save(spark, FORMAT, "append", table, {f"storage.{key}": value for key, value in options.items()})
    finally:
        ask(FAULTS, [])
    assert [] == [line for line in ask(REQUESTS) if line.startswith("DELETE") and "/_refs/.probe-" not in line]
    check(LanceTable.open(table.uri, options), "append")
