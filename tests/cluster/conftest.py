"""A standalone cluster from the pip installation: a master and two workers in separate processes.

The cluster runs the package as `pip install` leaves it, from a wheel that is built here, and not the checkout.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import HOST, free_port

ROOT = Path(__file__).parent.parent.parent
START_SECONDS, PROGRAM_SECONDS = 180, 900


class Cluster(NamedTuple):
    """A running cluster: its address, and the environment of programs that use it."""

    master: str
    environment: dict[str, str]
    log: Path

    def start(self, walk: str, table: Path) -> "subprocess.Popen[str]":
        """Start one of the programs of `walks.py` as a driver, in its own process group."""
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("walks.py")), walk, self.master, str(table)],
            env=self.environment,
            cwd=self.log.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, walk: str, table: Path) -> tuple[int, str]:
        """Run a program to its end; return its exit code and output."""
        with self.start(walk, table) as program:
            output, _ = program.communicate(timeout=PROGRAM_SECONDS)
            return program.returncode, output


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers with two cores and two gigabytes each."""
    import pyspark

    from lance_dagster.spark import ensure_java

    ensure_java()
    folder = tmp_path_factory.mktemp("cluster")
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SPARK_HOME"},
        "PYTHONPATH": str(_installed(folder)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
    }
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port, web = free_port(), free_port()
    log = folder / "cluster.log"
    master = ["master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(web)]
    worker = ["worker.Worker", "-c", "2", "-m", "2g", "--host", HOST, "--webui-port", "0"]
    address = f"spark://{HOST}:{port}"
    commands = [master, *([*worker, "-d", str(folder / f"work{number}"), address] for number in range(2))]
    with log.open("w") as output:
        processes = [
            subprocess.Popen(
                [program, f"org.apache.spark.deploy.{command[0]}", *command[1:]],
                env=environment,
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for command in commands
        ]
    try:
        _wait(f"http://{HOST}:{web}/json/", processes, log)
        yield Cluster(address, environment, log)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(START_SECONDS)


def _installed(folder: Path) -> Path:
    """Build the wheel of the checkout and install it without its dependencies, which are installed already."""
    site = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(ROOT)]
    subprocess.run(command, check=True, cwd=folder)
    return site


def _wait(state: str, processes: "list[subprocess.Popen[bytes]]", log: Path) -> None:
    """Return once the master knows both workers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        with suppress(OSError), urllib.request.urlopen(state, timeout=5) as answer:  # noqa: S310 - the loopback
            if json.load(answer)["aliveworkers"] == 2:
                return
        time.sleep(0.5)
    pytest.fail(f"the cluster did not start:\n{log.read_text()}")
