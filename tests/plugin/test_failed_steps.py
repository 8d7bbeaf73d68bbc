"""Rows of a step that failed are not published, although its output was stored and other attempts left them out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceIOManager, LanceResource, RowCount, build_publisher, build_table_checks

pytestmark = pytest.mark.slow

ITEMS, PRODUCTION_ITEMS = dg.AssetKey(["depot", "items"]), dg.AssetKey(["production", "depot", "items"])
BACKFILL = {"dagster/backfill": "b1"}
Audit = Literal["unchecked", "check_specs", "table check"]
Behaviour = Literal["good", "raises before", "raises after"]


@dataclass
class Fragile:
    """Daily items whose step raises before or after its output was stored, as the test says for each attempt."""

    lake: LanceResource
    instance: dg.DagsterInstance
    audit: Audit
    attempts: list[Behaviour] = field(default_factory=list)
    retries: int = 0

    @property
    def definitions(self) -> dg.Definitions:
        """The items, their check and the publisher."""
        fine = dg.AssetCheckSpec("fine", asset=ITEMS, blocking=True)

        @dg.asset(
            key=ITEMS,
            partitions_def=dg.StaticPartitionsDefinition(["mon", "tue"]),
            metadata={"lance/write_mode": "append", "lance/partition_expr": "day"},
            check_specs=[fine] if self.audit == "check_specs" else None,
            retry_policy=dg.RetryPolicy(max_retries=self.retries),
        )
        def items(context: dg.AssetExecutionContext) -> Iterator[Any]:
            behaviour = self.attempts.pop(0) if self.attempts else "good"
            if behaviour == "raises before":
                raise ValueError("the items were not loaded")
            yield dg.Output(pa.table({"day": [context.partition_key], "id": [len(self.attempts)]}))
            if self.audit == "check_specs":
                yield dg.AssetCheckResult(passed=True, check_name="fine")
            if behaviour == "raises after":
                raise ValueError("the items were loaded twice")

        checks = build_table_checks(items, [RowCount(minimum=1)]) if self.audit == "table check" else []
        publisher = build_publisher([items], unchecked=self.audit == "unchecked")
        return dg.Definitions(
            assets=[items, publisher],
            asset_checks=checks,
            resources={"lance": self.lake, "io_manager": LanceIOManager(lance=self.lake)},
            jobs=[dg.define_asset_job("candidates", dg.AssetSelection.assets(items))],
            executor=dg.in_process_executor,
        )

    def write(self, day: str, *attempts: Behaviour, **tags: str) -> dg.ExecuteInProcessResult:
        """Execute the step of the items for a day."""
        self.attempts[:] = attempts
        job = self.definitions.resolve_job_def("candidates")
        return job.execute_in_process(instance=self.instance, partition_key=day, tags=tags, raise_on_error=False)

    def publish(self, tags: dict[str, str] | None = None, **config: object) -> dg.ExecuteInProcessResult:
        """Materialize the promoted node, as a person does, or as the end of a backfill, which has tags."""
        definitions = self.definitions
        assert definitions.assets is not None
        return dg.materialize(
            [*definitions.assets, *(definitions.asset_checks or [])],  # type: ignore[list-item]
            instance=self.instance,
            resources=definitions.resources,
            selection=[PRODUCTION_ITEMS],
            run_config={"ops": {"publish_production": {"config": config}}},
            tags=tags,
            raise_on_error=False,
        )

    @property
    def published(self) -> list[str]:
        """The days in production, sorted, one for each row."""
        table = self.lake.table(ITEMS)
        assert "production" not in table.tags.list() or table.read("production") == table.read()
        return sorted(map(str, table.read()["day"].to_pylist()))


@pytest.fixture(params=["unchecked", "check_specs", "table check"])
def fragile(request: pytest.FixtureRequest, lake: LanceResource, instance: dg.DagsterInstance) -> Fragile:
    """Items without rows, whose audit is none, the result of a check by the step itself, or a table check."""
    return Fragile(lake, instance, request.param)


ENDS = pytest.mark.parametrize("tags", [{}, BACKFILL], ids=["materialize", "backfill"])
FAILURES = pytest.mark.parametrize(
    "attempts",
    [["raises after"], ["raises after", "raises after"], ["raises after", "raises before"]],
    ids=", ".join,
)


@ENDS
@FAILURES
def test_rows_of_a_step_that_raised_are_not_published(
    fragile: Fragile, attempts: list[Behaviour], tags: dict[str, str]
) -> None:
    """The rows of the other day are published; those of the step that raised wait, and can be discarded."""
    fragile.retries = len(attempts) - 1
    failed = fragile.write("mon", *attempts, **tags)
    assert not failed.success
    fragile.publish(tags)
    assert [] == fragile.published
    assert fragile.write("tue", **tags).success
    assert fragile.publish(tags).success
    assert ["tue"] == fragile.published
    assert fragile.publish(discard=f"run/{failed.run_id}", reason="loaded twice").success
    assert fragile.publish(tags).success
    assert ["tue"] == fragile.published


@ENDS
@FAILURES
def test_a_later_attempt_replaces_the_rows_of_a_step_that_raised(
    fragile: Fragile, attempts: list[Behaviour], tags: dict[str, str]
) -> None:
    """When a retry of the step succeeds, its rows alone are published."""
    fragile.retries = len(attempts)
    assert fragile.write("mon", *attempts, "good", **tags).success
    assert fragile.publish(tags).success
    assert ["mon"] == fragile.published


@ENDS
def test_a_new_run_takes_the_place_of_one_whose_step_raised(fragile: Fragile, tags: dict[str, str]) -> None:
    """A new run of the day is published; the rows of the step that raised are not, before or after."""
    assert not fragile.write("mon", "raises after", **tags).success
    assert fragile.write("mon", **tags).success
    for _ in range(2):
        assert fragile.publish(tags).success
        assert ["mon"] == fragile.published


@pytest.mark.parametrize("behaviour", ["raises after", "raises before", "good"])
def test_a_reexecution_of_a_step_that_raised(fragile: Fragile, behaviour: Behaviour) -> None:
    """Only a re-execution in which the step succeeds lets the rows through, and then they are published once."""
    failed = fragile.write("mon", "raises after")
    again = fragile.write(
        "mon",
        behaviour,
        **{"dagster/root_run_id": failed.run_id, "dagster/parent_run_id": failed.run_id},
        **{"dagster/is_resume_retry": "true"},
    )
    assert (behaviour == "good") is again.success
    fragile.publish()
    assert (["mon"] if behaviour == "good" else []) == fragile.published
