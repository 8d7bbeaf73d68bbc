"""Fixtures that tests share: one Spark session, one object-store server, fresh tables and Dagster instances.

Heavy libraries are imported inside the fixtures, so tests of pure modules start at once.
"""

import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests import soak

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from tests.workers import GroupScheduling

CHECKOUT = Path(__file__).parents[1]
HOST = "127.0.0.1"
SERVER_START_SECONDS = 60
# Short queries gain nothing from the optimising compiler and a parallel collector.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MEMORY_DISK, ROOM = Path("/dev/shm"), 4 << 30  # noqa: S108 - the folders of tests are private to the user


def pytest_configure() -> None:
    """Name no committer, keep bytecode, and put the folders of all tests on a memory disk, if it has enough room.

    Without a committer, the expected values of tests do not depend on who runs them. On other disks a sync costs
    milliseconds; on the memory disk it makes the same system calls, so tests of durability hold too.

    Without bytecode, every worker and every program that a test starts would compile the package and the tests again.

    Every Java that a test starts takes `JAVA_OPTIONS`, the ones of programs and pages included.

    A test may run a program that it wrote, so a file system mounted `noexec` is not used.

    A job that a shell starts in the background ignores SIGINT. Dagster lets SIGTERM do what SIGINT does, so pools of
    processes could not be ended.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["LANCE_DAGSTER_COMMITTER"] = ""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
        os.environ.setdefault(variable, JAVA_OPTIONS)
    if "TMPDIR" in os.environ or not os.access(MEMORY_DISK, os.W_OK | os.X_OK):
        return
    state = os.statvfs(MEMORY_DISK)
    if state.f_bavail * state.f_frsize >= ROOM and not state.f_flag & os.ST_NOEXEC:
        # Workers and the processes that tests start inherit the variable; this process may have cached another folder.
        os.environ["TMPDIR"] = str(MEMORY_DISK)
        tempfile.tempdir = None


def pytest_collection() -> None:
    """Give the examples of property tests no time limit: their duration depends on the load of the machine.

    Each run has the same examples, so that a change is not blamed for what it did not touch. A soak draws others.
    """
    from hypothesis import settings

    settings.register_profile("tests", deadline=None, derandomize=not soak.FACTOR)
    settings.load_profile("tests")


def pytest_collection_finish() -> None:
    """Collect the garbage of tests without visiting the tests and the libraries themselves each time."""
    from tests import settled_memory

    settled_memory.settle()
    # A database of a Dagster instance that nobody holds any more may be closed before its connections are collected,
    # and SQLAlchemy would report each of them, mostly at the end of the process.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "GroupScheduling":
    """Run tests that share a costly fixture on one worker."""
    from tests.workers import GroupScheduling

    return GroupScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the result table of a soak."""
    if soak.FACTOR:
        terminalreporter.section(f"seeds {soak.FIRST_SEED} and on, {soak.SEEDS} histories, factor {soak.FACTOR}")
        found = [report for name in ("passed", "failed", "error") for report in terminalreporter.stats.get(name, ())]
        for line in soak.results(found):
            terminalreporter.write_line(line)


class S3Storage(NamedTuple):
    """A fresh bucket, and the storage options with which pylance reaches it."""

    uri: str
    storage_options: Mapping[str, str]


@pytest.fixture
def tmp_table_uri(tmp_path: Path) -> str:
    """A path on the local disk where there is no table yet."""
    return str(tmp_path / "table")


@pytest.fixture
def instance() -> Iterator["DagsterInstance"]:
    """A Dagster instance that lives as long as the test."""
    from dagster import DagsterInstance

    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The one local Spark session of the whole run, tuned to start fast."""
    from lance_dagster.spark.session import local_session

    config = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = local_session("lance_dagster tests", master="local[2]", config=config)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a strict S3 server, which runs as a process on the loopback interface."""
    with server(tmp_path_factory.mktemp("s3") / "server.log", "tests.servers.s3_server") as address:
        yield f"http://{address}"


@pytest.fixture
def s3_storage(s3_server: str) -> S3Storage:
    """A bucket on the object-store server that only this test uses."""
    return bucket_on(s3_server)


def bucket_on(endpoint: str) -> S3Storage:
    """A fresh bucket on a server."""
    bucket = f"test-{uuid.uuid4().hex}"
    status = request(endpoint.removeprefix("http://"), "PUT", f"/{bucket}")
    if status != http.client.OK:
        pytest.fail(f"the S3 server answered {status} to the creation of a bucket")
    return S3Storage(
        uri=f"s3://{bucket}",
        storage_options={
            "aws_access_key_id": "test-key",
            "aws_secret_access_key": "test-secret",
            "aws_endpoint": endpoint,
            "aws_region": "us-east-1",
            "allow_http": "true",
        },
    )


@contextmanager
def server(log: Path, module: str, *arguments: str) -> Iterator[str]:
    """Run a module of the checkout, which takes `--port`, as a server until the block ends; yield its address."""
    port = free_port()
    with server_process(log, port, [sys.executable, "-m", module, "--port", str(port), *arguments]) as address:
        yield address


@contextmanager
def server_process(log: Path, port: int, command: Sequence[str]) -> Iterator[str]:
    """Run a command as a server that listens on a port until the block ends; yield its address."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(process, port, log)
        yield f"{HOST}:{port}"
    finally:
        # The servers store nothing that has to be kept, and some would wait for open connections before they end.
        process.kill()
        process.wait(timeout=30)


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return as soon as the server answers; fail with its log when it exits or does not answer in time."""
    deadline = time.monotonic() + SERVER_START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            request(f"{HOST}:{port}", "GET", "/")
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"the server did not start:\n{log.read_text()}")


def request(address: str, method: str, path: str) -> int:
    """Return the status of one plain HTTP request, which bypasses any proxy."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    finally:
        connection.close()
