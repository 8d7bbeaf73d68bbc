from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from lance_dagster import LanceTable
from lance_dagster.plugin.run_branch import EPHEMERAL_RUN_ID, RunBranch, branch_of, family_of, repeated_by, run_of
from lance_dagster.store import LocalStore
from lance_dagster.types import RunChain
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import contents, context_on, entries, new_table

PARENT = {"dagster/parent_run_id": "a", "dagster/root_run_id": "a"}
STEPS = ["one", "two"]


def add(instance: dg.DagsterInstance, run_id: str, parent: str | None = None, **options: object) -> dg.DagsterRun:
    """Record a run, optionally as the child of another one."""
    run = dg.DagsterRun(
        job_name="job",
        run_id=run_id,
        parent_run_id=parent,
        root_run_id="a" if parent else None,
        **options,  # type: ignore[arg-type]
    )
    return instance.add_run(run)


@pytest.mark.parametrize(
    "tags,steps,chain",
    [
        ({"dagster/is_resume_retry": "true"}, ["two"], ("b", "a")),
        ({"dagster/is_asset_resume_retry": "true"}, None, ("b", "a")),
        ({"dagster/step_selection": "two"}, ["two"], ("b", "a")),
        ({}, ["two"], ("b", "a")),
        ({}, STEPS, ("b",)),
        ({}, None, ("b",)),
    ],
    ids=["from failure", "from asset failure", "chosen steps", "from Python", "all steps, Python", "all steps, UI"],
)
def test_which_reexecutions_continue_their_parent(
    instance: dg.DagsterInstance, tags: dict[str, str], steps: list[str] | None, chain: tuple[str, ...]
) -> None:
    """Every kind of re-execution continues the branch of its parent, except a full one, which starts clean."""
    add(instance, "a", step_keys_to_execute=STEPS)
    run = add(instance, "b", "a", tags=tags, step_keys_to_execute=steps)
    assert chain == RunChain.of(run, instance).run_ids
    assert RunChain.of(run, instance).root_run_id == "a"


def test_chain_goes_up_until_a_run_that_started_clean(instance: dg.DagsterInstance) -> None:
    """A chain includes retries of retries, but not the runs before one that started clean."""
    resume = {"dagster/is_resume_retry": "true"}
    add(instance, "a", step_keys_to_execute=STEPS)
    add(instance, "b", "a", step_keys_to_execute=STEPS)
    add(instance, "c", "b", tags=resume)
    run = add(instance, "d", "c", tags={**resume, "dagster/backfill": "bf"})
    chain = RunChain.of(run, instance)
    assert chain.run_ids == ("d", "c", "b")
    assert chain.branch_names == ("run/d", "run/c", "run/b")
    assert chain.backfill_id == "bf"


def test_deleted_parent_still_names_its_branch(instance: dg.DagsterInstance) -> None:
    """Dagster's record of a run may be gone before the run's branch is."""
    run = add(instance, "b", "gone", tags={"dagster/is_resume_retry": "true"})
    assert RunChain.of(run, instance).branch_names == ("run/b", "run/gone")


def test_chain_without_a_run() -> None:
    """Without a run the chain is empty, and the id that Dagster uses outside of runs adds nothing to a chain."""
    assert RunChain.of(None, None) == RunChain.of_run_id(EPHEMERAL_RUN_ID) == RunChain.of_run_id(None)
    assert RunChain.of_context(dg.build_asset_context()).run_ids == ()
    assert RunChain().after(EPHEMERAL_RUN_ID) == RunChain()
    assert RunChain(run_ids=("b", "a")).after("a").run_ids == ("b", "a")
    assert RunChain(run_ids=("b",)).after("x").run_ids == ("x", "b")


def test_family_has_the_runs_that_go_on_with_a_run(instance: dg.DagsterInstance) -> None:
    """The family has the re-executions that continue a run, which Dagster tags or the caller knows."""
    resume = {**PARENT, "dagster/is_resume_retry": "true"}
    add(instance, "a", step_keys_to_execute=STEPS, status=dg.DagsterRunStatus.FAILURE)
    add(instance, "b", "a", tags=resume)
    add(instance, "c", "a", tags=PARENT, step_keys_to_execute=STEPS)
    add(instance, "d", "a", step_keys_to_execute=["two"])
    add(instance, "stranger")
    assert family_of("a", instance) == ("a", "b")
    assert family_of("a", instance, ["d", "stranger"]) == ("a", "b", "d")
    assert family_of("gone", instance) == ()


@pytest.mark.parametrize("ahead", [timedelta(minutes=5), -timedelta(minutes=5), timedelta(days=2)], ids=str)
def test_the_order_of_runs_does_not_depend_on_the_clocks_that_launched_them(
    instance: dg.DagsterInstance, ahead: timedelta
) -> None:
    """The machine that launched a run may have another clock than the one that launched its re-executions."""
    first = dg.DagsterRun(job_name="job", run_id="a", status=dg.DagsterRunStatus.SUCCESS)
    instance.run_storage.add_historical_run(first, datetime.now(UTC) + ahead)
    add(instance, "b", "a", tags={**PARENT, "dagster/is_resume_retry": "true"})
    add(instance, "c", "a", tags=PARENT, status=dg.DagsterRunStatus.SUCCESS)
    assert ("a", "b") == family_of("a", instance)
    assert ("c", None) == (repeated_by("a", instance), repeated_by("c", instance))


@pytest.mark.parametrize(
    "tags,steps,found",
    [
        ({"dagster/is_resume_retry": "true"}, ["two"], "d"),
        ({}, ["one"], None),
        ({"dagster/step_selection": "one"}, ["one"], None),
    ],
    ids=["from failure", "chosen steps, Python", "chosen steps"],
)
def test_a_full_reexecution_may_be_finished_by_another_run(
    instance: dg.DagsterInstance, tags: dict[str, str], steps: list[str], found: str | None
) -> None:
    """A run is repeated, too, when the re-execution of all its steps failed and was continued from its failure."""
    failed, succeeded = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS
    add(instance, "a", step_keys_to_execute=STEPS, status=failed)
    add(instance, "b", "a", tags=PARENT, step_keys_to_execute=STEPS, status=failed)
    add(instance, "c", "a", tags={"dagster/is_resume_retry": "true"}, step_keys_to_execute=["two"], status=failed)
    again = {"dagster/parent_run_id": "b", "dagster/root_run_id": "a", **tags} if tags else {}
    add(instance, "d", "b", tags=again, step_keys_to_execute=steps, status=succeeded)
    # What continues the first run is repeated with it; the re-execution itself and what continues it are not.
    assert [found, None, found, None] == [repeated_by(run, instance) for run in "abcd"]
    add(instance, "e", "a", tags={"dagster/is_resume_retry": "true"}, step_keys_to_execute=["two"], status=succeeded)
    assert [found, None, None] == [repeated_by(run, instance) for run in "abe"]


def test_branches_are_named_after_runs() -> None:
    """Only branches that are named after a run belong to one."""
    assert run_of(branch_of("4f2a")) == "4f2a"
    assert run_of("dev") is None


@pytest.mark.parametrize("asset,found", [("shop/z", True), ("op output shop/z", False)])
def test_an_attempt_of_an_asset_may_have_had_another_step(tmp_path: Path, asset: str, *, found: bool) -> None:
    """Dagster numbers the steps of a multi-asset by what is selected; several steps of ops may write one table."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/a")
    properties = {"dagster/asset_key": asset, "dagster/output": "z", "dagster/step_key": "m_2"}
    earlier = table.append(entries("run", 1), branch="run/a", properties={**properties, "dagster/run_id": "a"})
    table.branches.create("run/b", at=earlier)
    branch = RunBranch(table=table, chain=RunChain(run_ids=("b", "a")))
    assert (str(earlier) if found else "None") == str(branch.earlier_attempt({**properties, "dagster/step_key": "m"}))
    assert branch.earlier_attempt({**properties, "dagster/output": "x"}) is None


def test_rows_that_come_while_a_branch_is_retired_keep_it(tmp_path: Path) -> None:
    """A branch is kept when a commit reaches it just before its deletion, as that commit was not published."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/a")
    table.append(entries("run", 1), branch="run/a")
    published = table.head("run/a")
    table.merge(published)
    late = [entries("late", 1)]

    def let_in(request: Request) -> object:
        if request.writes and late:
            table.append(late.pop(), branch="run/a")
        return request.send()

    beside = LanceTable(context_on(ScriptedStore(LocalStore(table.uri), let_in)))
    kept = RunBranch(table=beside, chain=RunChain.of_run_id("a")).retire([published])
    assert ("run/a: it has commits that were not published",) == kept
    assert ("late", 1) in contents(table, "run/a")
