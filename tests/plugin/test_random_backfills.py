# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""Random backfills over three tables: a run reads the right versions, and results are published with their sources."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import InRange, LanceIOManager, LanceResource, build_publisher, build_table_checks
from tests import soak
from tests.plugin.shop import failure

pytestmark = pytest.mark.slow

DAYS = ("mon", "tue", "wed")
PARTITIONS = dg.StaticPartitionsDefinition(list(DAYS))
PRICES, ORDERS, REPORT = (dg.AssetKey(["shop", name]) for name in ("prices", "orders", "report"))
HISTORIES = soak.examples(1)


@dataclass(kw_only=True)
class _Made:
    """The value that a run wrote for one day, or for an unpartitioned table, and the values it was computed from."""

    run_id: str
    value: int
    sources: frozenset[int] = frozenset()


@dataclass(kw_only=True)
class Office:
    """Three tables, and a plain model of the values that the runs of a backfill read.

    Every value is used once, so a row tells which run wrote it: `value` is the run's own, and `sources` are the values
    that it has read. A negative value fails its check.
    """

    lake: LanceResource
    instance: dg.DagsterInstance
    random: random.Random
    backfill: int = 0
    last: int = 0
    next_value: int = 0
    read: frozenset[int] = frozenset()
    # The newest materialization of each table and day in each backfill.
    newest: dict[tuple[int, dg.AssetKey, str], _Made] = field(default_factory=dict)
    # Every value that readers of production have seen, by table.
    seen: dict[dg.AssetKey, set[int]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Define the assets, whose functions write the next value and what they read."""
        types: dict[str, pa.DataType] = {"day": pa.string(), "value": pa.int64(), "sources": pa.list_(pa.int64())}
        columns = pa.schema(types)

        def written(day: str, sources: pa.Table | None) -> pa.Table:
            self.read = frozenset(row["value"] for row in sources.to_pylist()) if sources is not None else frozenset()
            return pa.Table.from_pylist([{"day": day, "value": self.next_value, "sources": sorted(self.read)}], columns)

        @dg.asset(key=PRICES)
        def prices() -> pa.Table:
            return written("", None)

        @dg.asset(
            key=ORDERS,
            partitions_def=PARTITIONS,
            metadata={"lance/partition_expr": "day"},
            ins={"upstream": dg.AssetIn(PRICES, metadata={"lance/allow_missing": True})},
        )
        def orders(context: dg.AssetExecutionContext, upstream: pa.Table) -> pa.Table:
            return written(context.partition_key, upstream)

        @dg.asset(key=REPORT, ins={"upstream": dg.AssetIn(ORDERS, metadata={"lance/allow_missing": True})})
        def report(upstream: pa.Table) -> pa.Table:
            return written("", upstream)

        tables = [prices, orders, report]
        self.publisher = build_publisher(tables)
        checks = [check for table in tables for check in build_table_checks(table, [InRange("value", minimum=0)])]
        self.assets = [*tables, *checks, self.publisher]

    # The operations of people and of the daemon.

    def start(self) -> None:
        """Start another backfill; an earlier one may continue later."""
        self.last += 1
        self.backfill = self.last
        self.done.append(f"backfill {self.backfill}")

    def go_on(self) -> None:
        """Continue an earlier backfill, as by a run that is executed again."""
        self.backfill = self.random.randint(0, self.last)
        self.done.append(f"go on with {self.backfill}")

    def load_prices(self) -> None:
        """The run of the table without partitions."""
        self._write(PRICES, "", None)

    def load_orders(self) -> None:
        """The run of a day."""
        self._write(ORDERS, self.random.choice(DAYS), PRICES)

    def load_report(self) -> None:
        """The run over all days."""
        self._write(REPORT, "", ORDERS)

    def publish(self) -> None:
        """The publisher of the backfill, which may refuse."""
        result = self._run(dg.AssetSelection.assets(*self.publisher.keys))
        self.done.append(f"publish {'' if result.success else 'refused'}")

    def press_the_button(self) -> None:
        """A person publishes whatever waits, of any backfill."""
        self._run(dg.AssetSelection.assets(*self.publisher.keys), tags={})
        self.done.append("press the button")

    def discard(self) -> None:
        """A person discards what a run wrote."""
        key = self.random.choice([PRICES, ORDERS, REPORT])
        if branches := self._branches(key):
            config = {"discard": self.random.choice(branches), "reason": "wrong"}
            selection = dg.AssetSelection.assets(dg.AssetKey(["production", *key.path]))
            self._run(selection, tags={}, run_config={"ops": {"publish_production": {"config": config}}})
            self.done.append(f"discard {config['discard'][4:12]}")

    # The rules.

    def compare(self) -> None:
        """Check the rules on production: it has no bad value, and no result without its sources."""
        now = {key: self._production(key) for key in (PRICES, ORDERS, REPORT)}
        for key, rows in now.items():
            self.seen.setdefault(key, set()).update(row["value"] for row in rows)
            assert all(row["value"] >= 0 for row in rows), self.story
        for key, source in ((ORDERS, PRICES), (REPORT, ORDERS)):
            used = {value for row in now[key] for value in row["sources"]}
            assert used <= self.seen[source], f"{self.story}: {key.path[-1]} is computed from what was never published"

    def _expected(self, source: dg.AssetKey) -> frozenset[int]:
        """Return the values that a run has to read: those of its backfill that wait, otherwise those of `main`."""
        main = {row["day"]: row["value"] for row in self._rows(source, "main")}
        waiting = self._branches(source)
        for (backfill, key, day), made in self.newest.items():
            if (backfill, key) == (self.backfill, source) and f"run/{made.run_id}" in waiting:
                main[day] = made.value
        return frozenset(main.values())

    def _conflicts(self, source: dg.AssetKey) -> bool:
        """Whether the branches that a run has to read of its backfill cannot be merged."""
        table, waiting = self.lake.table(source), self._branches(source)
        made = [one for (backfill, key, _), one in self.newest.items() if (backfill, key) == (self.backfill, source)]
        refs = [f"run/{one.run_id}" for one in made if f"run/{one.run_id}" in waiting]
        return any(table.preview_merge(ref).conflicts for ref in refs)

    @property
    def story(self) -> str:
        """The operations so far, for the message of a failure."""
        return "; ".join(self.done)

    # The implementation.

    def _write(self, key: dg.AssetKey, day: str, source: dg.AssetKey | None) -> None:
        if source is not None and not self.lake_has(source):
            return
        self.next_value = abs(self.next_value) + 1
        if self.random.random() < 0.2:
            self.next_value = -self.next_value
        expected = frozenset() if source is None else self._expected(source)
        selection = dg.AssetSelection.assets(key) | dg.AssetSelection.checks_for_assets(key)
        partition: dict[str, Any] = {"partition_key": day} if day else {}
        result = self._run(selection, **partition)
        self.done.append(f"{key.path[-1]} {day} = {self.next_value} from {sorted(self.read)} as {result.run_id[:8]}")
        # Another backfill may have been published since this one wrote the table; it can be read after a repetition.
        if source is not None and self._conflicts(source):
            assert "cannot be read as backfill" in failure(result, "__".join(key.path)), self.story
            return
        assert result.success == (self.next_value > 0), self.story
        assert self.read == expected, f"{self.story}: and not from {sorted(expected)}"
        self.newest[self.backfill, key, day] = _Made(run_id=result.run_id, value=self.next_value, sources=self.read)

    def _run(
        self, selection: dg.AssetSelection, tags: dict[str, str] | None = None, **options: Any
    ) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            self.assets,
            selection=selection,
            resources={"lance": self.lake, "io_manager": LanceIOManager(lance=self.lake)},
            instance=self.instance,
            tags={"dagster/backfill": f"b{self.backfill}"} if tags is None else tags,
            raise_on_error=False,
            **options,
        )

    def lake_has(self, key: dg.AssetKey) -> bool:
        """Whether a run wrote the table."""
        return any(written == key for _, written, _ in self.newest)

    def _branches(self, key: dg.AssetKey) -> list[str]:
        return list(self.lake.table(key).branches.list("run/*")) if self.lake_has(key) else []

    def _production(self, key: dg.AssetKey) -> list[dict[str, Any]]:
        if not self.lake_has(key) or "production" not in self.lake.table(key).tags.list():
            return []
        return self._rows(key, "production")

    def _rows(self, key: dg.AssetKey, ref: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.lake.table(key).read(ref).to_pylist()
        return rows


ACTIONS: tuple[tuple[Callable[[Office], None], int], ...] = (
    (Office.start, 2),
    (Office.go_on, 1),
    (Office.load_prices, 3),
    (Office.load_orders, 6),
    (Office.load_report, 3),
    (Office.publish, 4),
    (Office.press_the_button, 1),
    (Office.discard, 1),
)


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_results_are_published_with_their_sources(lake: LanceResource, instance: dg.DagsterInstance, seed: int) -> None:
    """After each of 25 random operations, every run has read, and production holds, what the model says."""
    office = Office(lake=lake, instance=instance, random=random.Random(seed))
    actions, weights = zip(*ACTIONS, strict=True)
    for act in office.random.choices(actions, weights, k=25):
        act(office)
        office.compare()
