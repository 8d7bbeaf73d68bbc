"""An audit lets through exactly the rows that were audited, whatever has their name since and however long ago."""

import shutil
from collections.abc import Callable

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from tests.backdating import free_names
from tests.plugin.depot import CHECK_OF_LINES, LINES, Depot

pytestmark = pytest.mark.slow

UNSEEN = pa.table({"id": [-5]})
"""A row that a check of the orders refuses."""
FEW = 5
# More than any page or limit that a search may have.
MANY = pytest.param(205, marks=pytest.mark.slow)


def made_again_by_pylance(table: LanceTable, branch: str) -> None:
    """Delete the branch and make it again, both by pylance."""
    dataset = lance.dataset(table.uri)
    dataset.branches.delete(branch)
    dataset.create_branch(branch).insert(UNSEEN)


def made_again_a_day_later(table: LanceTable, branch: str) -> None:
    """Delete the branch, and make it again when its name is free."""
    table.branches.delete(branch)
    free_names(table)
    table.branches.create(branch)
    table.append(UNSEEN, branch=branch)


def made_again_with_its_properties(table: LanceTable, branch: str) -> None:
    """Make the branch again a day later, by a commit with the properties of the one that was audited."""
    head, old = table.head(branch), table.branches.list()[branch]
    properties, metadata = (
        {key: value for key, value in found.items() if key.startswith("dagster/")}
        for found in (head.properties, old.metadata)
    )
    table.branches.delete(branch)
    free_names(table)
    table.branches.create(branch, metadata=metadata)
    table.append(UNSEEN, branch=branch, properties=properties)


def made_again_by_a_rename(table: LanceTable, branch: str) -> None:
    """Give another branch the name of the branch a day after its deletion."""
    table.branches.create("other")
    table.append(UNSEEN, branch="other")
    table.branches.delete(branch)
    free_names(table)
    table.branches.rename("other", branch)


def table_made_again(table: LanceTable, branch: str) -> None:
    """Delete the table, and make it again with the branch."""
    schema = table.schema()
    shutil.rmtree(table.uri)
    again = LanceTable.create(table.uri, schema)
    again.branches.create(branch)
    again.append(UNSEEN, branch=branch)


def appended(table: LanceTable, branch: str) -> None:
    """Append to the branch."""
    table.append(UNSEEN, branch=branch)


def appended_by_pylance(table: LanceTable, branch: str) -> None:
    """Append to the branch by pylance."""
    lance.dataset(table.uri).checkout_version((branch, None)).insert(UNSEEN)


def reset(table: LanceTable, branch: str) -> None:
    """Reset the branch to its beginning, and append."""
    table.branches.reset(branch)
    table.append(UNSEEN, branch=branch)


@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "materialize"])
@pytest.mark.parametrize(
    "change",
    [
        made_again_by_pylance,
        made_again_a_day_later,
        made_again_with_its_properties,
        made_again_by_a_rename,
        table_made_again,
        appended,
        appended_by_pylance,
        reset,
    ],
)
def test_an_audit_says_nothing_about_other_rows_of_a_branch(
    depot: Depot, change: Callable[[LanceTable, str], None], *, by_name: bool
) -> None:
    """Rows that got onto the branch of a run after its audit are not published, nor is the rest of the candidate."""
    branch = f"run/{depot.execute(job='candidates').run_id}"
    change(depot.table(), branch)
    pressed = depot.press(**({"ref": branch} if by_name else {}))
    assert ([], []) == depot.rows() == depot.rows("main")
    assert not (by_name and pressed.success)
    assert depot.press(discard=branch, reason="not ours").success
    assert depot.execute().success
    depot.is_published_once(([1], [10]))


@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "materialize"])
def test_branches_that_changed_their_names_are_not_confused(depot: Depot, *, by_name: bool) -> None:
    """A run whose check failed is not published under the name of one whose check passed."""
    good = f"run/{depot.execute(job='candidates').run_id}"
    depot.plan(orders=[-5], lines=[20])
    bad = f"run/{depot.execute(job='candidates').run_id}"
    branches = depot.table().branches
    branches.rename(good, "aside")
    free_names(depot.table())
    branches.rename(bad, good)
    depot.press(**({"ref": good} if by_name else {}))
    assert -5 not in (*depot.rows()[0], *depot.rows("main")[0])


def evaluate(instance: dg.DagsterInstance, check: str, number: int) -> None:
    """Record evaluations of a check that passed on versions of other branches."""
    for branch in range(number):
        other = {"lance/branch": f"run/other-{branch}", "lance/version": "2", "lance/transaction": f"other-{branch}"}
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(asset_key=LINES, check_name=check, passed=True, metadata=other, blocking=True)
        )


CHECKS = pytest.mark.parametrize(
    "check,name",
    [
        pytest.param(CHECK_OF_LINES, "are_complete", id="table check"),
        pytest.param("count of lines", "are_counted", id="plain check"),
    ],
)


@CHECKS
@pytest.mark.parametrize("others", [FEW, MANY])
@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "materialize"])
def test_a_check_that_failed_later_stops_the_version(
    depot: Depot, check: str, name: str, others: int, *, by_name: bool
) -> None:
    """A version whose check was executed again and failed is not published, until the check passes on it."""
    branch = f"run/{depot.execute(job='candidates').run_id}"
    depot.plan(refuses=[check])
    assert not depot.check(branch).success
    evaluate(depot.instance, name, others)
    depot.plan()
    pressed = depot.press(**({"ref": branch} if by_name else {}))
    assert ([], []) == depot.rows() == depot.rows("main")
    assert not (by_name and pressed.success)
    assert depot.check(branch).success
    assert depot.press(**({"ref": branch} if by_name else {})).success
    depot.is_published_once(([1], [10]))


@CHECKS
@pytest.mark.parametrize("others", [FEW, MANY])
@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "materialize"])
def test_a_check_that_passed_later_lets_the_version_through(
    depot: Depot, check: str, name: str, others: int, *, by_name: bool
) -> None:
    """A version whose check failed in its run is published when it passed later, however many evaluations ago."""
    depot.plan(refuses=[check])
    failed = depot.execute(job="candidates")
    assert not failed.success
    branch = f"run/{failed.run_id}"
    depot.plan()
    assert depot.check(branch).success
    evaluate(depot.instance, name, others)
    assert depot.press(**({"ref": branch} if by_name else {})).success
    depot.is_published_once(([1], [10]))


@pytest.mark.parametrize("last", [True, False], ids=["the re-execution", "the run"])
def test_the_name_of_a_run_means_all_that_its_candidate_wrote(depot: Depot, *, last: bool) -> None:
    """A run, and the re-execution that wrote what the run lacked, are published together by either name."""
    depot.plan(fails=["lines"])
    failed = depot.execute(job="candidates")
    depot.plan()
    finished = depot.reexecute(failed.run_id, "from failure", "candidates")
    assert depot.press(ref=f"run/{(finished if last else failed).run_id}").success
    depot.is_published_once(([1], [10]))
