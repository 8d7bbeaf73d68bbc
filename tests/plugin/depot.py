"""A depot for the tests: two tables to which each run appends, and whose steps wait or fail as the test says.

A file beside the tables says what the steps return and which of them fail, so that one test can let a run fail and
re-execute it with the same definitions. A step of a run that is executed in a thread waits at a `Pause`.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pyarrow as pa

from lance_dagster import (
    InRange,
    LanceIOManager,
    LanceResource,
    LanceTable,
    PinnedTable,
    build_publisher,
    build_table_checks,
    table_check,
)
from tests.plugin.shop import ids_of

ORDERS, LINES = dg.AssetKey(["depot", "orders"]), dg.AssetKey(["depot", "lines"])
PROMOTED = [dg.AssetKey(["production", *key.path]) for key in (ORDERS, LINES)]
PUBLISHER = "publish_production"
APPEND = {"lance/write_mode": "append"}
REPEATED_STEPS = [
    *("depot__orders", "depot__orders_in_range_id", "depot__orders_are_known"),
    *("depot__lines", "depot__lines_are_complete", "depot__lines_are_counted", PUBLISHER),
]
CHECK_OF_LINES = "check of lines"
STEPS = ("orders", "check of orders", "lines", CHECK_OF_LINES)
PATIENCE_SECONDS = 120
Rows = tuple[list[int], list[int]]
Strategy = Literal["from failure", "all steps", "chosen steps"]
Launcher = Literal["python", "daemon"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The behaviour of the steps in the next run.

    Attributes:
        orders: The ids that the step of the orders appends.
        lines: The ids that the step of the lines appends.
        fails: The names of the steps that raise.
        refuses: The names of the checks of the lines that find a fault: `check of lines`, `count of lines`.
        meanwhile: Ids that another program appends once to `main` of both tables while the check of the lines is
            evaluated, so that the publisher evaluates the checks again.
    """

    orders: Sequence[int] = (1,)
    lines: Sequence[int] = (10,)
    fails: Sequence[str] = ()
    refuses: Sequence[str] = ()
    meanwhile: Sequence[int] = ()


class Pause:
    """A point at which a step waits until the test lets it go on; earlier and later steps pass it."""

    def __init__(self, after: int) -> None:
        """Take how many steps pass before."""
        self.reached, self.ended = threading.Event(), threading.Event()
        self._left, self._lock = after, threading.Lock()

    def wait(self) -> None:
        """Wait, if the step is the one that the pause is for."""
        with self._lock:
            self._left -= 1
            is_for_step = self._left == -1
        if is_for_step:
            self.reached.set()
            assert self.ended.wait(PATIENCE_SECONDS), "the test did not end the pause"


_PAUSES: dict[tuple[str, str], Pause] = {}
"""By the root of the tables and the name of the step."""


@dataclass(frozen=True)
class Depot:
    """The definitions over a root, and methods that execute runs of them and read the tables."""

    root: str
    instance: dg.DagsterInstance

    def plan(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of a plan
        """Write the plan of the next run."""
        _write_plan(self.root, Plan(**changes))

    def execute(
        self,
        options: dg.ReexecutionOptions | None = None,
        job: str = "everything",
        **more: Any,  # noqa: ANN401 - options of Dagster
    ) -> dg.JobExecutionResult:
        """Execute a job as Dagster's own processes do, optionally as a re-execution; `more` are further options."""
        built = dg.build_reconstructable_job(
            reconstructor_module_name="tests.plugin.depot",
            reconstructor_function_name="job_at",
            reconstructable_kwargs={"root": self.root, "name": job},
        )
        return dg.execute_job(built, instance=self.instance, reexecution_options=options, **more)

    def reexecute(
        self, run_id: str, strategy: Strategy, job: str = "everything", launcher: Launcher = "python"
    ) -> dg.JobExecutionResult:
        """Re-execute a run; a re-execution by the daemon, or by a person in the UI, has tags that Python's lacks."""
        tags, run = dict[str, str](), self.instance.get_run_by_id(run_id)
        assert run is not None
        if launcher == "daemon":
            tags = {"dagster/parent_run_id": run_id, "dagster/root_run_id": run.root_run_id or run_id}
            if strategy != "all steps":
                tags["dagster/is_resume_retry" if strategy == "from failure" else "dagster/step_selection"] = "true"
        match strategy:
            case "from failure":
                options = dg.ReexecutionOptions.from_failure(run_id, self.instance)
            case "all steps":
                options = dg.ReexecutionOptions(run_id)
            case "chosen steps":
                options = dg.ReexecutionOptions(run_id, step_selection=REPEATED_STEPS)
        return self.execute(options, job, tags=tags)

    def press(self, *nodes: dg.AssetKey, **config: object) -> dg.JobExecutionResult:
        """Materialize promoted nodes, as a person does; all nodes when none is named."""
        selection = list(nodes or PROMOTED)
        return self.execute(
            job="everything", asset_selection=selection, run_config={"ops": {PUBLISHER: {"config": config}}}
        )

    def check(self, ref: str) -> dg.ExecuteInProcessResult:
        """Evaluate the checks on a branch, as a person does who executes only these."""
        definitions = definitions_at(self.root)
        assert definitions.assets is not None
        assert definitions.asset_checks is not None
        return dg.materialize(
            [*definitions.assets, *definitions.asset_checks],  # type: ignore[list-item]
            instance=self.instance,
            resources=definitions.resources,
            selection=dg.AssetSelection.checks_for_assets(ORDERS, LINES),
            tags={"lance/branch": ref},
            raise_on_error=False,
        )

    def table(self, key: dg.AssetKey = ORDERS) -> LanceTable:
        """The table of an asset."""
        return LanceResource(root=self.root).table(key)

    def rows(self, ref: str = "production") -> Rows:
        """The ids of the orders and of the lines at a ref, sorted; no ids where a table lacks the ref."""
        return self._ids(ORDERS, ref), self._ids(LINES, ref)

    def _ids(self, key: dg.AssetKey, ref: str) -> list[int]:
        table = self.table(key)
        if ref not in {"main", *table.tags.list(), *table.branches.list()}:
            return []
        return ids_of(table.read(ref))

    @contextmanager
    def paused(self, step: str, act: Callable[[], dg.JobExecutionResult]) -> Iterator["Future[dg.JobExecutionResult]"]:
        """Execute a run in a thread whose step waits until the block ends.

        Args:
            step: One of `STEPS`, or `publisher`, which needs a plan in which `main` moves meanwhile.
            act: Executes the run.
        """
        # The publisher evaluates the check of the lines, after the step of the check.
        step, after = (STEPS[-1], 1) if step == "publisher" else (step, 0)
        pause = _PAUSES[self.root, step] = Pause(after)
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(act)
            try:
                while not pause.reached.wait(0.02):
                    assert not run.done(), f"the run ended before it reached {step}: {_errors(run.result())}"
                yield run
            finally:
                del _PAUSES[self.root, step]
                pause.ended.set()

    def is_published_once(self, expected: Rows) -> None:
        """Check that readers and `main` have the expected rows, and still have them after *Materialize*."""
        for time in ("before", "after"):
            if time == "after":
                self.press()
            production, main = self.rows(), self.rows("main")
            said = f"{production} in production and {main} on main {time} *Materialize*, not {expected}"
            assert (expected, expected) == (production, main), said


def job_at(root: str, name: str) -> dg.JobDefinition:
    """A job of the depot, for Dagster, which asks for it several times for each run."""
    return _job(root, name, threading.get_ident())


# The files beside the tables say what the steps do. Runs at the same time share nothing, as in processes of their own.
@lru_cache(maxsize=8)
def _job(root: str, name: str, _thread: int) -> dg.JobDefinition:
    return definitions_at(root).resolve_job_def(name)


def definitions_at(root: str) -> dg.Definitions:
    """The definitions of the depot over a root."""
    lance = LanceResource(root=root)

    @dg.asset(key=ORDERS, metadata=APPEND)
    def orders() -> pa.Table:
        return pa.table({"id": _step(root, "orders").orders})

    @dg.asset(key=LINES, metadata=APPEND, deps=[orders])
    def lines() -> pa.Table:
        return pa.table({"id": _step(root, "lines").lines})

    # The plain check cannot be evaluated on a merge, and would refuse whatever is published after `main` moved.
    publisher = build_publisher([ORDERS, LINES], stale_checks="accept")

    @dg.asset(deps=PROMOTED)
    def mart() -> None:
        _step(root, "mart")

    candidates = dg.AssetSelection.assets(ORDERS, LINES) | dg.AssetSelection.checks_for_assets(ORDERS, LINES)
    return dg.Definitions(
        assets=[orders, lines, publisher, mart],
        asset_checks=_checks(root, lance),
        resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
        jobs=[
            dg.define_asset_job("everything", selection="*"),
            dg.define_asset_job("candidates", selection=candidates),
        ],
        executor=dg.in_process_executor,
    )


def _checks(root: str, lance: LanceResource) -> list[dg.AssetChecksDefinition]:
    """The checks of both tables: three that this package evaluates, and a plain one."""

    @table_check(asset=ORDERS)
    def are_known(orders: PinnedTable) -> bool:
        _step(root, "check of orders")
        return orders.count_rows() > 0

    @table_check(asset=LINES)
    def are_complete(lines: PinnedTable) -> bool:
        plan = _step(root, CHECK_OF_LINES)
        if plan.meanwhile:
            for key in (ORDERS, LINES):
                lance.table(key).append(pa.table({"id": plan.meanwhile}))
            # Once: otherwise `main` would move whenever the publisher evaluates the check again.
            _write_plan(root, replace(plan, meanwhile=()))
        return CHECK_OF_LINES not in plan.refuses and lines.count_rows() > 0

    @dg.asset_check(asset=LINES, blocking=True)
    def are_counted(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        version = lance.open(context, LINES).version
        named: dict[str, Any] = {"lance/branch": version.branch, "lance/version": version.number}
        passed = "count of lines" not in _step(root, "count of lines").refuses
        return dg.AssetCheckResult(passed=passed, metadata={**named, "lance/transaction": version.transaction})

    return [are_known, are_complete, are_counted, *build_table_checks(ORDERS, [InRange("id", minimum=0)])]


def add_runs(instance: dg.DagsterInstance, job: str, number: int) -> None:
    """Record successful runs of a job that did nothing."""
    for _ in range(number):
        instance.add_run(dg.DagsterRun(job_name=job, status=dg.DagsterRunStatus.SUCCESS))


def _step(root: str, name: str) -> Plan:
    """Do what the plan says of a step, and return the plan."""
    if (pause := _PAUSES.get((root, name))) is not None:
        pause.wait()
    file = _plan_file(root)
    plan = Plan(**json.loads(file.read_text())) if file.exists() else Plan()
    if name in plan.fails:
        raise ValueError(f"{name} is out of order")
    return plan


def _write_plan(root: str, plan: Plan) -> None:
    _plan_file(root).write_text(json.dumps(asdict(plan)))


def _plan_file(root: str) -> Path:
    return Path(root).with_name("plan.json")


def _errors(result: dg.JobExecutionResult) -> list[str]:
    """The errors of the steps that failed, without where they were raised."""
    failures = [event.step_failure_data.error for event in result.get_step_failure_events()]
    return [(error.cause or error).message for error in failures if error is not None]
