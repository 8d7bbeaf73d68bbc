"""A standalone cluster from the pip installation: a master and two workers in separate processes.

The cluster runs the package as `pip install` leaves it, from a wheel that is built here, and not the checkout. The
executors have a Python of their own with what the guide says that they need: the wheel and its required packages. It
has no extra, such as pandas, and Dagster is taken out.
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

# Spark repeats a slow task on another host only, and the whole of 127.0.0.0/8 is this machine.
WORKERS = (HOST, "127.0.0.2")
UNUSED_BY_EXECUTORS = ("dagster", "dagster-pipes", "dagster-shared")
ROOT = Path(__file__).parent.parent.parent
START_SECONDS, PROGRAM_SECONDS = 180, 900


class Cluster(NamedTuple):
    """A running cluster: its address, the environment of programs that use it, and the executors' Python."""

    master: str
    environment: dict[str, str]
    log: Path
    python: Path

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

    from lance_dagster.spark.java import ensure_java

    ensure_java()
    folder = tmp_path_factory.mktemp("cluster")
    site, python = _installed(folder)
    environment = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH")}
    # Executors run the Python that the driver names.
    environment |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": HOST}
    port, web = free_port(), free_port()
    address = f"spark://{HOST}:{port}"
    log = folder / "cluster.log"
    commands = {HOST: [["master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(web)]]}
    for host in WORKERS:
        place = ["--host", host, "--webui-port", "0", "-d", str(folder / host)]
        commands.setdefault(host, []).append(["worker.Worker", "-c", "2", "-m", "2g", *place, address])
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with log.open("w") as output:
        processes = [
            subprocess.Popen(
                [program, f"org.apache.spark.deploy.{command[0]}", *command[1:]],
                env={**environment, "SPARK_LOCAL_IP": host},
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for host, started in commands.items()
            for command in started
        ]
    try:
        _wait(f"http://{HOST}:{web}/json/", processes, log)
        yield Cluster(address, {**environment, "PYTHONPATH": str(site)}, log, python)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(START_SECONDS)


def _installed(folder: Path) -> tuple[Path, Path]:
    """Build the wheel of the checkout; return the folder that has it for drivers, and the executors' Python."""

    def pip(python: str | Path, *arguments: str) -> None:
        subprocess.run([python, "-m", "pip", *arguments, "--quiet"], check=True, cwd=folder)

    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    site, python = folder / "site", folder / "executors" / "bin" / "python"
    # The driver's Python has the dependencies already.
    pip(sys.executable, "install", "--no-deps", "--target", str(site), str(wheel))
    subprocess.run([sys.executable, "-m", "venv", folder / "executors"], check=True)
    pip(python, "install", "--constraint", str(ROOT / "requirements.lock"), str(wheel))
    pip(python, "uninstall", "--yes", *UNUSED_BY_EXECUTORS)
    return site, python


def _wait(state: str, processes: "list[subprocess.Popen[bytes]]", log: Path) -> None:
    """Return once the master knows both workers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        with suppress(OSError), urllib.request.urlopen(state, timeout=5) as answer:  # noqa: S310 - the loopback
            if json.load(answer)["aliveworkers"] == 2:
                return
        time.sleep(0.5)
    pytest.fail(f"the cluster did not start:\n{log.read_text()}")
