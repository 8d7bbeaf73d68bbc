"""A real daemon of Dagster over a code location that a test writes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest

from lance_dagster import LanceResource
from tests.conftest import CHECKOUT

PATIENCE_SECONDS = 600  # for machines with much else to do; the test usually takes a minute

DAGSTER_YAML = """
telemetry: {enabled: false}
run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}
run_retries: {enabled: true, max_retries: 2}
"""


@contextmanager
def daemon_on(home: Path, location: Path) -> Iterator[Path]:
    """Run `dagster-daemon` over a code location until the block ends; yield its log."""
    log = home / "daemon.log"
    command = [sys.executable, "-m", "dagster._daemon", "run", "-f", str(location), "-d", str(CHECKOUT)]
    environment = {**os.environ, "DAGSTER_HOME": str(home)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield log
    finally:
        process.send_signal(signal.SIGINT)  # then it takes its code server with it
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        # Dagster sometimes waits for its code server for ever, and a code server for a run that was killed.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def runs_of(instance: dg.DagsterInstance, job: str) -> Sequence[dg.DagsterRun]:
    """The runs of a job, oldest first."""
    return instance.get_runs(dg.RunsFilter(job_name=job), ascending=True)


def until(happened: Callable[[], bool], log: Path) -> None:
    """Wait for something, and fail with the log of the daemon if it does not happen in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > deadline or "Error while importing code" in log.read_text():
            pytest.fail(f"it did not happen in time\n{log.read_text()}")
        time.sleep(0.5)


class Daemon(NamedTuple):
    """A running daemon over a code location, its instance, and the lake of the location."""

    instance: dg.DagsterInstance
    lake: LanceResource
    home: Path
    location: Path
    log: Path

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something, and fail with the log of the daemon if it does not happen in time."""
        until(happened, self.log)


@contextmanager
def daemon(folder: Path, location: str, **names: object) -> Iterator[Daemon]:
    """Run a daemon over a code location until the block ends.

    Args:
        folder: An empty folder: the lake is below it, and files by which the code and the test speak to each other.
        location: The text of the code, in which `TOP_FOLDER` stands for the folder.
        names: Other words of the text, and the values that they stand for.
    """
    home, file = folder / "dagster", folder / "location.py"
    home.mkdir()
    (home / "dagster.yaml").write_text(DAGSTER_YAML)
    for name, value in {"TOP_FOLDER": str(folder), **names}.items():
        location = location.replace(name, repr(value))
    file.write_text(location)
    lake = LanceResource(root=str(folder / "lake"))
    with dg.DagsterInstance.from_config(str(home)) as instance, daemon_on(home, file) as log:
        yield Daemon(instance, lake, home, file, log)
