"""Runs, publications and rollbacks that are killed at any storage request are finished by their re-execution."""

import json
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lance_dagster import LanceRepository, LanceResource
from tests.forked_program import start
from tests.plugin.daemon import DAGSTER_YAML, daemon_on, until
from tests.plugin.killed_requests import FOLDER, LINES, ORDERS, ROLLBACK, execute, execute_and_die, options_of
from tests.plugin.shop import ids_of
from tests.soak import FACTOR

pytestmark = [pytest.mark.slow, pytest.mark.scaled]

RETRIES = 2
"""How often the daemon of the tests retries a run."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A run that is killed.

    Attributes:
        job: Its job.
        number: The id that it appends.
        config: The config of the publisher.
        waits: Whether the rows of another run, with the number 3, wait before.
        expected: The ids in production after it and its re-executions.
    """

    job: str
    expected: list[int]
    number: int = 0
    config: Mapping[str, Any] | None = None
    waits: bool = False

    def options(self, root: str, kill_at: int | None = None) -> dict[str, Any]:
        """The options of the run."""
        return options_of(root, number=self.number, kill_at=kill_at, **(self.config or {}))

    def prepare(self, root: str, instance: dg.DagsterInstance) -> None:
        """Publish the numbers 1 and 2."""
        for number in (1, 2):
            assert execute(instance, "everything", **options_of(root, number=number)).success
        if self.waits:
            assert execute(instance, "candidates", **options_of(root, number=3)).success


OPERATIONS = {
    "run": Operation(job="everything", number=3, expected=[1, 2, 3]),
    "publication": Operation(job="promoted", waits=True, expected=[1, 2, 3]),
    "rollback": Operation(job="promoted", config=ROLLBACK, expected=[1]),
}
READABLE = ([1, 2], [1, 2, 3], [1])
"""What readers may see while an operation is not finished."""


def in_production(root: str) -> list[list[int]]:
    """The ids that readers of the channel see, and those that readers of the tags see, in both tables."""
    view = LanceRepository.open(root).at("production")
    tables = [LanceResource(root=root).table(key) for key in (ORDERS, LINES)]
    return [
        *(ids_of(view["/".join(key.path)].read()) for key in (ORDERS, LINES)),
        *(ids_of(table.read("production")) for table in tables),
    ]


def in_view(root: str) -> list[int]:
    """The ids that readers of the channel see, which are the same in both tables."""
    first, second, *_ = in_production(root)
    assert first == second
    return first


def end_runs(instance: dg.DagsterInstance) -> dg.DagsterRun:
    """Mark the newest run as failed, if its process died before it said so, and return it."""
    (run,) = instance.get_runs(limit=1)
    if not run.is_finished:
        instance.report_run_failed(run)
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


@pytest.mark.parametrize("strategy", ["from failure", pytest.param("all steps", marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["run", "publication", pytest.param("rollback", marks=pytest.mark.soak)])
def test_a_run_is_killed_before_any_change(
    tmp_path: Path, name: str, strategy: str, record_property: Callable[[str, object], None]
) -> None:
    """Readers see all of it or nothing; after a re-execution and *Materialize*, they see its rows once."""
    operation, stride = OPERATIONS[name], 1 if FACTOR else 9
    lake, home, template = tmp_path / "lake", tmp_path / "home", tmp_path / "template"
    home.mkdir()
    quiet = {"telemetry": {"enabled": False}}
    with dg.DagsterInstance.local_temp(str(home), overrides=quiet) as instance:
        operation.prepare(str(lake), instance)
    for folder in (lake, home):
        shutil.copytree(folder, template / folder.name)
    for change in count(len(strategy) % stride, stride):
        # At the same place: branches have the paths of their files.
        for folder in (lake, home):
            shutil.rmtree(folder)
            shutil.copytree(template / folder.name, folder)
        process = start(execute_and_die, str(home), operation.job, operation.options(str(lake), change))
        process.join()
        assert in_view(str(lake)) in READABLE
        with dg.DagsterInstance.local_temp(str(home), overrides=quiet) as instance:
            finish(operation, str(lake), instance, strategy)
        if process.exitcode == 0:
            assert change
            record_property("kills", change // stride)
            return
        assert -signal.SIGKILL == process.exitcode


def finish(operation: Operation, root: str, instance: dg.DagsterInstance, strategy: str) -> None:
    """Execute what was killed again, then *Materialize*, then a new run, and check what readers see."""
    run = end_runs(instance)
    if not run.is_success:
        again = dg.ReexecutionOptions(run.run_id)
        if strategy == "from failure":
            again = dg.ReexecutionOptions.from_failure(run.run_id, instance)
        # Dagster's daemon gives the tags of a run to its retry; Python does not.
        execute(instance, operation.job, again, tags=options_of(root, number=operation.number)["tags"])
    is_finished(operation, root, instance)


def is_finished(operation: Operation, root: str, instance: dg.DagsterInstance) -> None:
    """Check what readers see, after *Materialize*, and after a new run."""
    execute(instance, "promoted", **options_of(root))
    assert [operation.expected] * 4 == in_production(root)
    assert execute(instance, "everything", **options_of(root, number=9)).success
    assert [[*operation.expected, 9]] * 4 == in_production(root)


# A daemon takes a minute or more for each operation.
@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_daemon_finishes_what_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, record_property: Callable[[str, object], None]
) -> None:
    """Of runs that are killed before a change each, the retries of a daemon finish all, and add no rows twice."""
    operation, stride, width = OPERATIONS[name], 1 if FACTOR else 25, 3
    home, requests, location = (tmp_path / part for part in ("home", "requests", "location.py"))
    for folder in (home, requests):
        folder.mkdir()
    (home / "dagster.yaml").write_text(DAGSTER_YAML)
    location.write_text("from tests.plugin.killed_requests import definitions")
    monkeypatch.setenv(FOLDER, str(requests))
    with dg.DagsterInstance.from_config(str(home)) as instance, daemon_on(home, location) as log:
        for first in count(0, stride * width):
            roots = [str(tmp_path / f"lake-{first + number * stride:04d}") for number in range(width)]
            for number, root in enumerate(roots):
                operation.prepare(root, instance)
                ask(requests, operation, root, first + number * stride)
            until(partial(are_over, instance, roots), log)
            for root in roots:
                is_finished(operation, root, instance)
            survived = [runs_at(instance, root)[0].is_success for root in roots]
            if any(survived):
                assert first or not all(survived)
                record_property("kills", first // stride + survived.count(False))
                return


def ask(requests: Path, operation: Operation, root: str, change: int) -> None:
    """Ask the daemon for a run that is killed before a change."""
    options = operation.options(root, change)
    options["tags"][ROOT] = root
    file = requests / f"{change:04d}.tmp"
    file.write_text(json.dumps({"job_name": operation.job, **options}))
    # In one step: the sensor may look at any time.
    file.rename(file.with_suffix(".json"))


ROOT = "test/root"
"""A tag of the runs of a daemon: the root of their tables."""


def runs_at(instance: dg.DagsterInstance, root: str) -> Sequence[dg.DagsterRun]:
    """The runs of the daemon at a root, oldest first."""
    return instance.get_runs(dg.RunsFilter(tags={ROOT: root}), ascending=True)


def are_over(instance: dg.DagsterInstance, roots: Sequence[str]) -> bool:
    """Whether a run at each root succeeded, or failed as often as the daemon tries."""
    found = [runs_at(instance, root) for root in roots]
    return all(
        any(run.is_success for run in runs) or (len(runs) > RETRIES and all(run.is_finished for run in runs))
        for runs in found
    )
