"""The definition of the partitions changes between two runs: the same key then stands for other rows, or vice versa."""

import random
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import InRange, LanceIOManager, LanceResource, build_publisher, build_table_checks
from tests import soak
from tests.plugin.shop import failure

VISITS, PROMOTED = dg.AssetKey(["log", "visits"]), dg.AssetKey(["production", "log", "visits"])
COLUMNS: dict[str, pa.DataType] = {
    "at": pa.timestamp("us"),
    "month": pa.int64(),
    "region": pa.string(),
    "id": pa.int64(),
}
SCHEMA = pa.schema(COLUMNS)
MAY_1, MAY_1_AT_9, MAY_20 = datetime(2026, 5, 1), datetime(2026, 5, 1, 9), datetime(2026, 5, 20)  # noqa: DTZ001
DAYS = dg.DailyPartitionsDefinition("2026-05-01", end_date="2026-07-01")
DAYS_FROM_JUNE = dg.DailyPartitionsDefinition("2026-06-01", end_date="2026-07-01")
DAYS_WITHOUT_HYPHENS = dg.DailyPartitionsDefinition("20260501", fmt="%Y%m%d", end_date="20260701")
HOURS = dg.HourlyPartitionsDefinition("2026-05-01-00:00", end_date="2026-07-01-00:00")
MONTHS = dg.MonthlyPartitionsDefinition("2026-05-01", end_date="2026-07-01")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])


@dataclass(kw_only=True)
class Visits:
    """A table of visits, whose asset a user defines anew from time to time."""

    lake: LanceResource
    instance: dg.DagsterInstance
    rows: list[tuple[datetime, int]] = field(default_factory=list)
    assets: list[Any] = field(default_factory=list)

    def define(self, partitions: dg.PartitionsDefinition | None, expr: object, mode: str = "") -> None:
        """Define the asset, its check and its publisher."""
        metadata = {
            **({"lance/partition_expr": expr} if partitions else {}),
            **({"lance/write_mode": mode} if mode else {}),
        }

        @dg.asset(key=VISITS, partitions_def=partitions, metadata=metadata)
        def visits() -> pa.Table:
            rows = [{"at": at, "month": at.month, "region": "eu", "id": number} for at, number in self.rows]
            return pa.Table.from_pylist(rows, SCHEMA)

        checks = build_table_checks(visits, [InRange("id", minimum=0)])
        self.assets = [visits, *checks, build_publisher([visits])]

    def write(self, partition: str | None, *rows: tuple[datetime, int]) -> str:
        """Let a run write rows, which wait; return its branch."""
        self.rows = list(rows)
        selection = dg.AssetSelection.assets(VISITS) | dg.AssetSelection.checks_for_assets(VISITS)
        options: dict[str, Any] = {"partition_key": partition} if partition else {}
        result = self._run(selection, **options)
        assert result.success
        return f"run/{result.run_id}"

    def press(self, **config: object) -> str:
        """Materialize the promoted node, which succeeds; return what it logged."""
        run_config = {"ops": {"publish_production": {"config": config}}}
        result = self._run(dg.AssetSelection.assets(PROMOTED), run_config=run_config)
        assert result.success, failure(result)
        return "\n".join(entry.user_message for entry in self.instance.all_logs(result.run_id))

    def published(self) -> list[int]:
        """The ids that readers see."""
        return sorted(row["id"] for row in self.lake.table(VISITS).read("production").to_pylist())

    def _run(self, selection: dg.AssetSelection, **options: Any) -> dg.ExecuteInProcessResult:  # noqa: ANN401
        return dg.materialize(
            self.assets,
            selection=selection,
            instance=self.instance,
            resources={"lance": self.lake, "io_manager": LanceIOManager(lance=self.lake)},
            raise_on_error=False,
            **options,
        )


@pytest.fixture
def visits(lake: LanceResource, instance: dg.DagsterInstance) -> Visits:
    """Visits of 1 June, which are published."""
    made = Visits(lake=lake, instance=instance)
    made.define(DAYS, "at")
    made.write("2026-06-01", (datetime(2026, 6, 1), 0))  # noqa: DTZ001
    made.press()
    return made


DAY_REGION = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
ZONE_REGION = dg.MultiPartitionsDefinition({"the_day": DAYS, "region": REGIONS})
CHANGES = {
    "days to hours": ((DAYS, "at", "2026-05-01"), (HOURS, "at", "2026-05-01-09:00")),
    "hours to days": ((HOURS, "at", "2026-05-01-09:00"), (DAYS, "at", "2026-05-01")),
    "another format of the keys": ((DAYS, "at", "2026-05-01"), (DAYS_WITHOUT_HYPHENS, "at", "20260501")),
    "another name of a dimension": (
        (DAY_REGION, {"day": "at", "region": "region"}, "2026-05-01|eu"),
        (ZONE_REGION, {"the_day": "at", "region": "region"}, "eu|2026-05-01"),
    ),
    "zeros in front": (
        (dg.StaticPartitionsDefinition(["5", "6"]), "month", "5"),
        (dg.StaticPartitionsDefinition(["05", "06"]), "month", "05"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "together"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_same_rows_under_another_key_are_published_once(visits: Visits, change: str, *, together: bool) -> None:
    """Of two runs that replace the same rows under different keys, the newer is published, and the older one waits."""
    (before, expr, key), (after, expr_after, key_after) = CHANGES[change]
    visits.define(before, expr)
    older = visits.write(key, (MAY_1_AT_9, 1))
    visits.define(after, expr_after)
    newer = visits.write(key_after, (MAY_1_AT_9, 2))
    said = visits.press() if together else visits.press(ref=newer)
    assert [0, 2] == visits.published()
    assert not together or f"{older}@" in said
    assert f"it waits: {older}@" in (said := visits.press())
    assert "conflicts with what was published since" in said
    assert f"then set discard: {older}" in said
    assert [0, 2] == visits.published()
    visits.press(discard=older, reason="written again")
    assert "it waits" not in visits.press()


def test_a_day_does_not_supersede_the_month_of_the_same_key(visits: Visits) -> None:
    """`2026-05-01` is all of May, then a day: the branch with the month waits, and is not taken for written again."""
    visits.define(MONTHS, "at")
    month = visits.write("2026-05-01", (MAY_1, 1), (MAY_20, 2))
    visits.define(DAYS, "at")
    visits.write("2026-05-01", (MAY_1, 3))
    assert f"it waits: {month}@" in visits.press()
    assert [0, 3] == visits.published()
    assert f"it waits: {month}@" in visits.press()


def test_rows_of_another_definition_that_nobody_wrote_again_are_published(visits: Visits) -> None:
    """What waits under an older definition is audited with all rows of the table and published, beside newer days."""
    visits.define(MONTHS, "at")
    visits.write("2026-05-01", (MAY_1, 1), (MAY_20, 2))
    visits.define(DAYS, "at")
    visits.write("2026-06-02", (datetime(2026, 6, 2), 3))  # noqa: DTZ001
    assert "by another definition of the partitions" in visits.press()
    assert [0, 3] == visits.published()
    visits.press()
    assert [0, 1, 2, 3] == visits.published()


def test_what_waits_is_published_when_the_asset_has_no_partitions_any_more(visits: Visits) -> None:
    """The partition expression is gone with the partitions, and the checks see the whole table."""
    visits.define(DAYS, "at", "append")
    visits.write("2026-05-01", (MAY_1, 1))
    visits.define(None, "", "append")
    visits.write(None, (MAY_20, 2))
    visits.press()
    assert [0, 1, 2] == visits.published()


def test_a_later_start_keeps_the_keys(visits: Visits) -> None:
    """The start of the partitions is no part of what a key means: an older day is published and replaced as before."""
    older = visits.write("2026-06-02", (datetime(2026, 6, 2), 1))  # noqa: DTZ001
    visits.write("2026-05-01", (MAY_1, 2))
    visits.define(DAYS_FROM_JUNE, "at")
    visits.write("2026-06-02", (datetime(2026, 6, 2), 3))  # noqa: DTZ001
    assert f"{older}@2 is superseded" in visits.press().replace("@3", "@2")
    assert [0, 2, 3] == visits.published()


def test_an_unselected_partition_that_is_gone_says_how_to_publish_it(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """A publisher of partitions cannot be launched for a day that the definition lost; `ref` publishes its branch."""
    made = Visits(lake=lake, instance=instance)
    made.define(DAYS, "at")
    branch = made.write("2026-05-01", (MAY_1, 1))
    made.define(DAYS_FROM_JUNE, "at")
    made.assets[-1] = build_publisher([made.assets[0]], partitions_def=DAYS_FROM_JUNE)
    options: Any = {
        "selection": [PROMOTED],
        "partition_key": "2026-06-01",
        "resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)},
        "instance": instance,
    }
    result = dg.materialize(made.assets, **options)
    said = "\n".join(entry.user_message for entry in instance.all_logs(result.run_id))
    assert f"wrote 2026-05-01, which is not selected: select it, or set ref: {branch}" in said
    config = {"ops": {"publish_production": {"config": {"ref": branch}}}}
    assert dg.materialize(made.assets, run_config=config, **options).success
    assert [1] == made.published()
    # The readers of the day, and not only those of the partition that the publisher was launched for.
    assert "2026-05-01" in instance.get_materialized_partitions(PROMOTED)


TIMES = (MAY_1_AT_9, datetime(2026, 5, 1, 10), MAY_20, datetime(2026, 6, 1))  # noqa: DTZ001
DEFINITIONS: tuple[dg.TimeWindowPartitionsDefinition, ...] = (DAYS, DAYS_WITHOUT_HYPHENS, HOURS, MONTHS, DAYS_FROM_JUNE)


def of_random_partition(definition: dg.TimeWindowPartitionsDefinition, chosen: datetime) -> tuple[str, list[datetime]]:
    """The key of the partition with a time, and all times of that partition."""
    keys = [(key, definition.time_window_for_partition_key(key)) for key in definition.get_partition_keys()]
    windows = {key: (window.start.replace(tzinfo=None), window.end.replace(tzinfo=None)) for key, window in keys}
    # The partitions may begin after the time.
    key = next((key for key, (start, end) in windows.items() if start <= chosen < end), keys[0][0])
    start, end = windows[key]
    return key, [at for at in TIMES if start <= at < end]


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(soak.examples(2)))
def test_random_definitions(lake: LanceResource, instance: dg.DagsterInstance, seed: int) -> None:
    """Whatever the definition of the partitions is when, each time has one row, which is never older than before."""
    chance, visits, number = random.Random(seed), Visits(lake=lake, instance=instance), 0
    waiting: list[str] = []
    seen: dict[datetime, int] = {}
    story: list[str] = []

    def compare() -> None:
        rows = lake.table(VISITS).read("production").to_pylist()
        assert len(rows) == len({row["at"] for row in rows}), story
        now = {row["at"]: row["id"] for row in rows}
        assert all(now.get(at, -1) >= before for at, before in seen.items()), (story, seen, now)
        seen.update(now)

    for step in range(14):
        if step % 2 == 0:
            definition = chance.choice(DEFINITIONS)
            visits.define(definition, "at")
        key, times = of_random_partition(definition, chance.choice(TIMES))
        if not times:
            continue
        number += 1
        waiting.append(visits.write(key, *((at, number) for at in times)))
        story.append(f"{number} = {key}")
        if chance.random() < 0.5:
            story.append("publish " + (ref := chance.choice(["", waiting[-1]])))
            visits.press(**({"ref": ref} if ref else {}))
            compare()
    visits.press()
    compare()
    for branch in lake.table(VISITS).branches.list("run/*"):
        visits.press(discard=branch, reason="the end")
    visits.define(MONTHS, "at")
    visits.write("2026-05-01", *((at, number + 1) for at in TIMES[:3]))
    assert "it waits" not in visits.press()
    compare()
    assert [number + 1] * 3 == [seen[at] for at in TIMES[:3]]
