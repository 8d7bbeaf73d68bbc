"""Rows that a run appends are in production once, however often and by whomever the run is executed again."""

from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceRepository
from tests.backdating import DAY, age
from tests.plugin.depot import (
    CHECK_OF_LINES,
    LINES,
    ORDERS,
    PUBLISHER,
    REPEATED_STEPS,
    STEPS,
    Depot,
    Launcher,
    Strategy,
    add_runs,
)

FEW = 5
# More than any page or limit that a search may have.
MANY, MANY_RUNS = (pytest.param(number, marks=pytest.mark.slow) for number in (205, 600))
LAUNCHERS = pytest.mark.parametrize("launcher", ["python", "daemon"])
STRATEGIES: tuple[Strategy, ...] = ("from failure", "all steps")


def commit_to_main(depot: Depot, number: int) -> list[int]:
    """Let another program commit to `main` of both tables a number of times; return the ids of its rows."""
    ids = list(range(1000, 1000 + number))
    for key in (ORDERS, LINES):
        table = depot.table(key)
        for row_id in ids:
            table.append(pa.table({"id": [row_id]}))
    return ids


@LAUNCHERS
@pytest.mark.parametrize("strategy", ["all steps", "chosen steps"])
@pytest.mark.parametrize("commits", [FEW, MANY])
def test_a_published_append_is_not_repeated(depot: Depot, commits: int, strategy: Strategy, launcher: Launcher) -> None:
    """The repetition of a run that was published is refused, however many commits others made on `main` since."""
    depot.plan(fails=["mart"])
    failed = depot.execute()
    assert ([1], [10]) == depot.rows()
    foreign = commit_to_main(depot, commits)
    depot.plan()
    assert not depot.reexecute(failed.run_id, strategy, launcher=launcher).success
    depot.press()
    assert ([1, *foreign], [10, *foreign]) == depot.rows("main")


@LAUNCHERS
@pytest.mark.parametrize("strategy", ["from failure", "all steps"])
@pytest.mark.parametrize("by", ["publication", "merge", "merge and deletion"])
def test_what_a_person_brought_to_main_is_not_repeated(
    depot: Depot, by: str, strategy: Strategy, launcher: Launcher
) -> None:
    """A publication outside of Dagster closes the writes of the run; after a merge of tables, `main` tells."""
    depot.plan(refuses=[CHECK_OF_LINES])
    refused = depot.execute()
    assert not refused.success
    lake, branch = LanceRepository.open(depot.root), f"run/{refused.run_id}"
    if by == "publication":
        lake.publish(branch, channel="production", tables=["depot/orders", "depot/lines"])
        assert () == lake.candidates()
    else:
        for table in (depot.table(ORDERS), depot.table(LINES)):
            table.merge(branch)
            if by == "merge and deletion":
                table.branches.delete(branch)
    depot.plan()
    depot.reexecute(refused.run_id, strategy, launcher=launcher)
    depot.press()
    assert ([1], [10]) == depot.rows("main")


def test_a_repaired_attempt_is_published_and_the_attempt_before_it_dropped(depot: Depot) -> None:
    """A re-execution continues the branch of a run whose check failed; nothing of that run is left to wait."""
    depot.plan(orders=[-1])
    failed = depot.execute(job="candidates")
    assert not failed.success
    depot.plan(orders=[1])
    steps = [step for step in REPEATED_STEPS if step != PUBLISHER]
    tags = {
        "dagster/parent_run_id": failed.run_id,
        "dagster/root_run_id": failed.run_id,
        "dagster/is_asset_resume_retry": "true",
    }
    options = dg.ReexecutionOptions(failed.run_id, step_selection=steps)
    assert depot.execute(options, "candidates", tags=tags).success
    assert depot.press().success
    assert ([1], [10]) == depot.rows()
    assert {} == depot.table().branches.list("run/*")
    lake = LanceRepository.open(depot.root)
    table_id = lake.table_id("depot/orders")
    closed = lake.head().writes[table_id]
    attempts = [write.number for write in lake.record.of_candidate(failed.run_id) if write.table_id == table_id]
    assert [(False, True), (True, False)] == [
        (number in closed.published, number in closed.dropped) for number in sorted(attempts)
    ]
    assert {} == lake.status().waiting


def test_a_write_whose_process_died_is_not_taken_for_merged(depot: Depot) -> None:
    """The branch of its run may have been published for other rows; the rows that were lost are written again."""
    depot.plan(fails=["mart"])
    failed = depot.execute()
    assert ([1], [10]) == depot.rows()
    lake = LanceRepository.open(depot.root)
    (write,) = (
        write for write in lake.record.of_candidate(failed.run_id) if write.table_id == lake.table_id("depot/lines")
    )
    lost = lake.record.put(write.table_id, replace(write.request, work="other rows"))
    assert not lake.publications.is_merged(lost)
    assert lake.publications.is_merged(write)


@pytest.mark.parametrize("runs", [FEW, MANY])
def test_a_published_append_is_not_repeated_after_other_runs(depot: Depot, runs: int) -> None:
    """The repetition is refused as well when the commits since are publications of other runs of the job."""
    depot.plan(fails=["mart"])
    failed = depot.execute()
    others = list(range(100, 102)) if runs else []
    for number in others:
        depot.plan(orders=[number], lines=[number])
        assert depot.execute().success
    add_runs(depot.instance, "everything", runs)
    commit_to_main(depot, runs)
    depot.plan()
    assert not depot.reexecute(failed.run_id, "all steps").success
    depot.press()
    assert [1] == [row_id for row_id in depot.rows("main")[0] if row_id < 100]


def test_a_published_append_is_not_repeated_after_a_collection(depot: Depot) -> None:
    """The repetition is refused as well when the version that the publication made was collected."""
    depot.plan(fails=["mart"])
    failed = depot.execute()
    depot.plan(orders=[2], lines=[20])
    assert depot.execute().success
    for key in (ORDERS, LINES):
        table = depot.table(key)
        age(table, 60 * DAY)
        table.maintenance.collect_garbage(timedelta(days=1), dry_run=False)
    depot.plan()
    assert not depot.reexecute(failed.run_id, "all steps").success
    depot.is_published_once(([1, 2], [10, 20]))


@pytest.mark.parametrize("commits", [FEW, MANY])
def test_an_append_that_was_withdrawn_is_repeated(depot: Depot, commits: int) -> None:
    """After a rollback, the repetition of the run is published, and its rows are in production once."""
    depot.plan(orders=[2], lines=[20])
    assert depot.execute().success
    depot.plan(fails=["mart"])
    failed = depot.execute()
    depot.plan()
    assert depot.press(ref="production~1", reason="wrong").success
    foreign = commit_to_main(depot, commits)
    assert depot.reexecute(failed.run_id, "all steps").success
    depot.is_published_once(([1, 2, *foreign], [10, 20, *foreign]))


@pytest.mark.parametrize("runs", [0, MANY_RUNS])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_another_reexecution_published_is_not_repeated(depot: Depot, strategy: Strategy, runs: int) -> None:
    """Of two re-executions of a run, the second is refused, however many runs of the job were recorded between."""
    depot.plan(fails=["lines"])
    failed = depot.execute()
    add_runs(depot.instance, "everything", runs)
    depot.plan()
    assert depot.reexecute(failed.run_id, strategy).success
    depot.reexecute(failed.run_id, "all steps")
    depot.is_published_once(([1], [10]))


@pytest.mark.slow
@pytest.mark.parametrize("second", STRATEGIES)
@pytest.mark.parametrize("first", STRATEGIES)
@pytest.mark.parametrize("step", [*STEPS, "publisher"])
def test_of_two_reexecutions_that_overlap_one_is_published(
    depot_on_disk: Depot, step: str, first: Strategy, second: Strategy
) -> None:
    """Of two re-executions of a failed run that are executed at the same time, one alone publishes its rows."""
    others = others_of(depot_on_disk, step)
    # Both re-executions write what the run had not written.
    depot_on_disk.plan(fails=["orders" if "orders" in step else "lines"])
    failed = depot_on_disk.execute()
    depot_on_disk.plan(meanwhile=others[1:])
    with depot_on_disk.paused(step, lambda: depot_on_disk.reexecute(failed.run_id, first, launcher="daemon")) as slow:
        depot_on_disk.plan()
        fast = depot_on_disk.reexecute(failed.run_id, second)
    assert fast.success or slow.result().success
    depot_on_disk.is_published_once(([1, *others], [10, *others]))


@LAUNCHERS
@pytest.mark.parametrize("runs", [FEW, MANY_RUNS])
def test_of_a_waiting_run_and_its_repetition_one_is_published(depot: Depot, runs: int, launcher: Launcher) -> None:
    """Where both wait, *Materialize* publishes one of them, however many runs of the job were recorded between."""
    waiting = depot.execute(job="candidates")
    add_runs(depot.instance, "candidates", runs)
    assert depot.reexecute(waiting.run_id, "all steps", "candidates", launcher).success
    assert depot.press().success
    depot.is_published_once(([1], [10]))


@pytest.mark.parametrize("runs", [FEW, MANY_RUNS])
@pytest.mark.parametrize("first", [True, False])
def test_of_a_waiting_run_and_its_repetition_one_is_published_by_name(depot: Depot, runs: int, *, first: bool) -> None:
    """Where a person publishes both by their names, one after the other, the second publication adds no rows."""
    waiting = depot.execute(job="candidates")
    add_runs(depot.instance, "candidates", runs)
    again = depot.reexecute(waiting.run_id, "all steps", "candidates")
    names = [f"run/{waiting.run_id}", f"run/{again.run_id}"]
    assert depot.press(ref=names[not first]).success
    depot.press(ref=names[first])
    depot.is_published_once(([1], [10]))


@pytest.mark.parametrize("runs", [FEW, MANY_RUNS])
def test_a_check_that_passes_in_a_later_reexecution_lets_the_run_through(depot: Depot, runs: int) -> None:
    """A run whose check failed is published by the re-execution in which it passes, however many runs came between."""
    depot.plan(fails=["check of orders"])
    failed = depot.execute(job="candidates")
    add_runs(depot.instance, "candidates", runs)
    depot.plan()
    assert depot.reexecute(failed.run_id, "from failure", "candidates").success
    assert depot.press().success
    depot.is_published_once(([1], [10]))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("step", [*STEPS, "publisher"])
def test_a_worker_that_wakes_up_publishes_nothing_twice(depot_on_disk: Depot, step: str, strategy: Strategy) -> None:
    """A run that counts as failed, while a step of it sleeps, does not add its rows to those of its re-execution."""
    others = others_of(depot_on_disk, step)
    depot_on_disk.plan(meanwhile=others[1:])
    with depot_on_disk.paused(step, depot_on_disk.execute) as sleeping:
        run_id = fail_run(depot_on_disk.instance)
        depot_on_disk.plan()
        again = depot_on_disk.reexecute(run_id, strategy, launcher="daemon")
    assert again.success or sleeping.result().success
    depot_on_disk.is_published_once(([1, *others], [10, *others]))


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_that_wakes_up_does_not_change_what_is_published(depot_on_disk: Depot, step: str) -> None:
    """Rows of a worker that was taken for dead are not published beside other rows of its re-execution."""
    with depot_on_disk.paused(step, depot_on_disk.execute) as sleeping:
        run_id = fail_run(depot_on_disk.instance)
        depot_on_disk.plan(orders=[2], lines=[20])
        depot_on_disk.reexecute(run_id, "all steps", launcher="daemon")
    sleeping.result()
    assert depot_on_disk.rows() in (([1], [10]), ([2], [20]))
    depot_on_disk.is_published_once(depot_on_disk.rows())


def others_of(depot: Depot, step: str) -> list[int]:
    """The ids of the rows of others: for a pause in the publisher, of an earlier run and of another program."""
    if step != "publisher":
        return []
    depot.plan(orders=[50], lines=[50])
    assert depot.execute().success
    return [50, 51]


def fail_run(instance: dg.DagsterInstance) -> str:
    """Mark the run that is executed as failed, as Dagster does with a run whose worker it takes for dead."""
    (run,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    instance.report_run_failed(run)
    return run.run_id
