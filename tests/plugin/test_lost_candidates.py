"""What a run wrote is not published without the table that lost its part of it, however the part went away."""

from collections.abc import Callable

import pytest

from lance_dagster import LanceTable
from tests.plugin.depot import LINES, Depot
from tests.plugin.shop import failure
from tests.repository.lost_branches import WAYS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "materialize"])
@pytest.mark.parametrize("lose", WAYS)
def test_a_waiting_run_that_lost_a_branch_is_not_published(
    depot: Depot, lose: Callable[[LanceTable, str], None], *, by_name: bool
) -> None:
    """Neither table is published; the refusal names the table, and what is left of the run can be discarded."""
    branch = f"run/{depot.execute(job='candidates').run_id}"
    lose(depot.table(LINES), branch)
    for _ in range(2):
        pressed = depot.press(**({"ref": branch} if by_name else {}))
        assert ([], []) == (depot.table().read()["id"].to_pylist(), list(depot.table().tags.list()))
        assert not by_name or "depot/lines" in failure(pressed)
    assert depot.press(discard=branch, reason="it lost its lines").success
    assert branch not in depot.table().branches.list()


@pytest.mark.parametrize("lose", WAYS)
def test_a_run_that_loses_a_branch_publishes_nothing(
    depot_on_disk: Depot, lose: Callable[[LanceTable, str], None]
) -> None:
    """The publisher of the run itself refuses, and names the table, when the branch goes away before it looks."""
    with depot_on_disk.paused("check of lines", depot_on_disk.execute) as run:
        (branch,) = depot_on_disk.table().branches.list("run/*")
        lose(depot_on_disk.table(LINES), branch)
    result = run.result()
    assert not result.success
    assert ([], []) == (depot_on_disk.table().read()["id"].to_pylist(), list(depot_on_disk.table().tags.list()))


@pytest.mark.parametrize("lose", WAYS)
def test_a_run_that_lost_a_branch_is_executed_again(depot: Depot, lose: Callable[[LanceTable, str], None]) -> None:
    """After the re-execution of all steps, the rows of both tables are in production once."""
    lost = depot.execute(job="candidates")
    table = depot.table(LINES)
    lose(table, f"run/{lost.run_id}")
    depot.press()
    assert depot.reexecute(lost.run_id, "all steps").success
    depot.is_published_once(([1], [10]))
