"""Of two runs that replace the same rows, the one that was written later counts, by whatever clock and however many."""

from datetime import timedelta
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceIOManager, LanceResource, build_publisher
from tests.backdating import manifest, say

pytestmark = pytest.mark.slow

ITEMS = dg.AssetKey(["depot", "items"])
HOURS = timedelta(hours=8)
FEW, MANY = 3, 1100
TOO_LONG = ((MANY, 0), (FEW, MANY))
NEVER = timedelta(0)


class Replaced:
    """Items whose rows are replaced by each run, as a whole or by partitions."""

    def __init__(self, lake: LanceResource, instance: dg.DagsterInstance, partitions: int) -> None:
        """Make the definitions; without partitions, each run overwrites the table."""
        self.lake, self.instance, self.number = lake, instance, 0
        self.days = [f"day-{number:04d}" for number in range(partitions)]

        @dg.asset(
            key=ITEMS,
            partitions_def=dg.StaticPartitionsDefinition(self.days) if self.days else None,
            metadata={"lance/partition_expr": "day"} if self.days else {},
        )
        def items(context: dg.AssetExecutionContext) -> pa.Table:
            days = list(context.partition_keys) if self.days else ["all"]
            return pa.table({"day": days, "number": [self.number] * len(days)})

        self.items, self.publisher = items, build_publisher([items], unchecked=True)

    def write(self, number: int, *, ahead: timedelta = NEVER) -> str:
        """Replace all rows by a run, on a worker whose clock is ahead; return the ref of the branch, which waits."""
        self.number = number
        ends = {f"dagster/asset_partition_range_{end}": self.days[at] for end, at in _ENDS if self.days}
        run = self._materialize([self.items], tags=ends)
        assert run.success
        ref = f"run/{run.run_id}"
        table = self.lake.table(ITEMS)
        say(manifest(table, table.head(ref).number, ref), -ahead)
        return ref

    def report(self, number: int) -> None:
        """Record materializations of the items by another program."""
        for at in range(number):
            partition = self.days[at % len(self.days)] if self.days else None
            made = dg.AssetMaterialization(asset_key=ITEMS, partition=partition, metadata={"by": "another program"})
            self.instance.report_runless_asset_event(made)

    def publish(self, **config: object) -> dg.ExecuteInProcessResult:
        """Materialize the promoted node."""
        run_config = {"ops": {"publish_production": {"config": config}}}
        selection = list(self.publisher.keys)
        return self._materialize([self.items, self.publisher], selection=selection, run_config=run_config)

    @property
    def published(self) -> set[object]:
        """The numbers in production, each of which a run wrote."""
        rows = self.lake.table(ITEMS).read("production")
        assert (len(self.days) or 1) == rows.num_rows
        return set(rows["number"].to_pylist())

    def _materialize(self, assets: list[dg.AssetsDefinition], **options: Any) -> dg.ExecuteInProcessResult:  # noqa: ANN401
        resources = {"lance": self.lake, "io_manager": LanceIOManager(lance=self.lake)}
        return dg.materialize(assets, instance=self.instance, resources=resources, raise_on_error=False, **options)


_ENDS = (("start", 0), ("end", -1))


def cases() -> list[Any]:
    """Partitions and foreign materializations, and how far the clocks of both runs are ahead."""
    clocks = {"older ahead": (HOURS, NEVER), "newer behind": (NEVER, -HOURS), "right clocks": (NEVER, NEVER)}
    return [
        pytest.param(*many, *clock, id=f"{many[0]} partitions, {many[1]} others, {name}", marks=marks)
        for many in ((0, 0), (0, MANY), (FEW, 0), (FEW, MANY), (MANY, 0))
        for name, clock in clocks.items()
        # The event log takes a minute of a core for so many partitions.
        for marks in [
            [pytest.mark.soak] if many in ((MANY, 0), (FEW, MANY)) else [pytest.mark.slow] if MANY in many else []
        ]
    ]


@pytest.mark.parametrize("partitions,reports,older,newer", cases())
def test_the_later_run_is_published(
    lake: LanceResource,
    instance: dg.DagsterInstance,
    *,
    partitions: int,
    reports: int,
    older: timedelta,
    newer: timedelta,
) -> None:
    """The newer of two waiting runs supersedes the older one in all partitions, whatever the clocks of both say."""
    replaced = Replaced(lake, instance, partitions)
    replaced.write(1, ahead=older)
    replaced.write(2, ahead=newer)
    replaced.report(reports)
    for _ in range(2):
        assert replaced.publish().success
        assert {2} == replaced.published


@pytest.mark.parametrize("ahead", [HOURS, -HOURS], ids=["ahead", "behind"])
@pytest.mark.parametrize("partitions,reports", [(0, MANY), pytest.param(MANY, 0, marks=pytest.mark.soak)])
def test_a_run_that_is_older_than_what_was_published_is_not_published(
    lake: LanceResource, instance: dg.DagsterInstance, *, partitions: int, reports: int, ahead: timedelta
) -> None:
    """An older waiting run does not take the place of a newer one that was published before it."""
    replaced = Replaced(lake, instance, partitions)
    replaced.write(1, ahead=ahead)
    newer = replaced.write(2)
    replaced.report(reports)
    assert replaced.publish(ref=newer).success
    replaced.publish()
    assert {2} == replaced.published
