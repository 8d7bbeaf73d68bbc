"""With a repository, the tables of a run are published as one commit, and readers see all of them at one commit."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    LanceIOManager,
    LanceRepository,
    LanceResource,
    LanceTable,
    RowCount,
    Unique,
    build_maintenance_job,
    build_publisher,
    build_table_checks,
)
from tests.plugin.scripted_lake import ScriptedLake
from tests.plugin.shop import ids_of
from tests.store.scripted import Request

pytestmark = pytest.mark.slow

ORDERS, LINES = dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "lines"])
PROMOTED = [dg.AssetKey(["production", *key.path]) for key in (ORDERS, LINES)]


class Shop:
    """Two related tables: each run adds one row with its number to both."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        """Make the definitions over a root."""
        self.root, self.instance, self.number = root, instance, 0
        self.seen: dict[str, list[int]] = {}
        shop = self

        @dg.multi_asset(
            outs={
                name: dg.AssetOut(key=["shop", name], metadata={"lance/write_mode": "append"})
                for name in ("orders", "lines")
            }
        )
        def written() -> Iterator[dg.Output[pa.Table]]:
            for name in ("orders", "lines"):
                yield dg.Output(pa.table({"id": [shop.number]}), name)

        @dg.asset(ins={"orders": dg.AssetIn(PROMOTED[0]), "lines": dg.AssetIn(PROMOTED[1])})
        def report(orders: pa.Table, lines: pa.Table) -> None:
            shop.seen = {"orders": ids_of(orders), "lines": ids_of(lines)}

        self.written, self.report = written, report
        self.publisher = build_publisher([written], tag="production")
        self.checks = [
            *build_table_checks(ORDERS, [Unique("id"), RowCount(minimum=1)]),
            *build_table_checks(LINES, [Unique("id")]),
        ]
        self.resources = {
            "lance": (lance := LanceResource(root=str(root))),
            "io_manager": LanceIOManager(lance=lance),
        }

    def run(self, number: int, *, read: bool = False, publish: bool = True) -> dg.ExecuteInProcessResult:
        """Write, check and publish."""
        self.number = number
        assets = [self.written, *self.checks, *([self.publisher] if publish else []), *([self.report] if read else [])]
        return dg.materialize(assets, resources=self.resources, instance=self.instance, raise_on_error=False)

    def act(self, selection: list[dg.AssetKey] = PROMOTED, **config: object) -> dg.ExecuteInProcessResult:
        """Materialize the promoted nodes with a configuration, as a person does."""
        return dg.materialize(
            [self.written, *self.checks, self.publisher],
            selection=selection,
            resources=self.resources,
            instance=self.instance,
            run_config={"ops": {self.publisher.node_def.name: {"config": config}}},
            raise_on_error=False,
        )

    @property
    def repository(self) -> LanceRepository:
        """The repository of both tables."""
        return LanceRepository.open(self.root)

    def production(self) -> tuple[list[int], list[int]]:
        """The ids that readers of the channel see in both tables, which equal those that readers of the tags see."""
        view = self.repository.at("production")
        found = [ids_of(view[name].read()) for name in ("shop/orders", "shop/lines")]
        for name, rows in zip(("orders", "lines"), found, strict=True):
            table = LanceTable.open(self.root / "shop" / f"{name}.lance")
            assert rows == ids_of(table.read("production"))
        return found[0], found[1]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop without rows."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Shop(tmp_path / "lake", instance)


def test_a_run_is_one_commit_and_one_promotion(shop: Shop) -> None:
    """Both tables of a run are in one commit; the promoted nodes name it, and no run branch is left."""
    done = shop.run(1)
    assert done.success
    assert ([1], [1]) == shop.production()
    head = shop.repository.head("production")
    assert {"shop/orders", "shop/lines"} == set(head.tables)
    events = [shop.instance.get_latest_materialization_event(key) for key in PROMOTED]
    named = {
        event.asset_materialization.metadata["lance/repository_commit"].value
        for event in events
        if event and event.asset_materialization
    }
    assert {head.id} == named
    assert {} == LanceTable.open(shop.root / "shop" / "orders.lance").branches.list("run/*")
    assert done.run_id == shop.repository.channels.history("production")[0].properties["dagster/run_id"]


def test_a_failed_check_of_one_table_publishes_neither(shop: Shop) -> None:
    """A duplicate in one table prevents the publication of the other one too."""
    assert shop.run(1).success
    assert not shop.run(1).success
    assert ([1], [1]) == shop.production()
    assert 2 == len(shop.repository.log())


def test_a_reader_after_the_publisher_sees_what_it_published(shop: Shop) -> None:
    """In one run, the readers of the promoted nodes see the commit of that run, in both tables."""
    assert shop.run(1, read=True).success
    assert shop.run(2, read=True).success
    assert {"orders": [1, 2], "lines": [1, 2]} == shop.seen


def test_a_foreign_commit_is_audited_and_published(shop: Shop) -> None:
    """Foreign rows on main are audited in the planned merge, and stop the publication of all tables if they fail."""
    assert shop.run(1).success
    table = LanceTable.open(shop.root / "shop" / "lines.lance")
    table.append(pa.table({"id": [7]}))
    assert shop.run(2).success
    assert ([1, 2], [1, 2, 7]) == shop.production()
    table.append(pa.table({"id": [3]}))
    assert not shop.run(3).success
    assert ([1, 2], [1, 2, 7]) == shop.production()


def test_two_runs_at_once_are_audited_together(shop: Shop) -> None:
    """A run that was written before another one was published is merged with it, and audited again."""
    first = shop.run(1, publish=False)
    assert shop.run(2).success
    assert shop.act(ref=f"run/{first.run_id}").success
    assert ([1, 2], [1, 2]) == shop.production()


def test_rows_that_cannot_be_merged_get_a_next_step(shop: Shop) -> None:
    """A run that conflicts with `main` is to be repeated or discarded; the call that the error names works."""
    assert shop.run(1).success
    waiting = f"run/{shop.run(2, publish=False).run_id}"
    LanceTable.open(shop.root / "shop" / "orders.lance").overwrite(pa.table({"id": [9]}))
    done = shop.act(ref=waiting)
    assert not done.success
    said = str([event for event in done.all_events if event.is_failure])
    assert "cannot merge, so no table was merged and no tag moved:" in said
    assert (
        "run the job again, which starts from what is published, or publish what it wrote to the other tables alone: "
        f"materialize only production/shop/lines with ref: {waiting} and a reason, or give its rows up: materialize "
        f"the publisher with discard: {waiting} and a reason"
    ) in said
    pressed = shop.act()
    said = "".join(entry.user_message for entry in shop.instance.all_logs(pressed.run_id))
    assert f"to publish only that, select only its nodes, with ref: {waiting}" in said
    alone = f"materialize only production/shop/lines with ref: {waiting} and a reason"
    assert f"run the job again, or publish what it wrote to the other tables alone: {alone}" in said
    assert ([1], [1]) == shop.production()
    assert shop.act(PROMOTED[1:], ref=waiting, reason="the orders are wrong").success
    assert ([1], [1, 2]) == shop.production()
    assert shop.act(discard=waiting, reason="repeated").success
    assert waiting not in LanceTable.open(shop.root / "shop" / "orders.lance").branches.list()


def test_a_rollback_to_before_the_first_publication_of_a_table(shop: Shop) -> None:
    """The error for a table that the older commit lacks says that it was published first later."""
    shop.number = 1
    early = [*build_table_checks(LINES, [Unique("id")]), build_publisher([LINES])]
    assert dg.materialize([shop.written, *early], resources=shop.resources, instance=shop.instance).success
    assert shop.run(2).success
    done = shop.act(ref="production~1", reason="too early")
    assert not done.success
    said = str([event for event in done.all_events if event.is_failure])
    commit = shop.repository.at("production~1").commit.short_id
    assert f"production~1 (commit {commit}) has no shop/orders: it was first published later, so there is no" in said


def test_a_rollback_of_all_tables_by_a_hold(shop: Shop) -> None:
    """`production~1` with a hold takes the channel and all tags back, until it is released."""
    for number in (1, 2):
        assert shop.run(number).success
    assert shop.act(ref="production~1", rollback="hold", reason="doubled").success
    assert ([1], [1]) == shop.production()
    assert not shop.run(3).success
    assert ([1], [1]) == shop.production()
    assert "doubled" in str(shop.repository.channels.get("production").hold)
    assert shop.act(release=True, reason="mended").success
    assert shop.act().success
    assert ([1, 2, 3], [1, 2, 3]) == shop.production()


def test_a_rollback_of_all_tables_by_a_revert(shop: Shop) -> None:
    """`production~1` as a revert restores both tables in one commit, and later runs do not bring the rows back."""
    for number in (1, 2):
        assert shop.run(number).success
    assert shop.act(ref="production~1", reason="wrong").success
    assert ([1], [1]) == shop.production()
    assert 4 == len(shop.repository.log())
    assert "roll back shop/lines to main@2, shop/orders to main@2: wrong" == shop.repository.head().message
    assert shop.run(3).success
    assert ([1, 3], [1, 3]) == shop.production()


def test_a_hold_of_one_table_only_is_refused(shop: Shop) -> None:
    """A hold of a single table is refused, because a channel names one commit of all tables."""
    for number in (1, 2):
        assert shop.run(number).success
    done = shop.act(ref="main@2", rollback="hold", reason="wrong")
    assert not done.success
    assert "production~1" in str([event for event in done.all_events if event.is_failure])
    assert ([1, 2], [1, 2]) == shop.production()


def test_a_hold_stops_every_table(shop: Shop) -> None:
    """A held channel publishes nothing, and says who held it and why."""
    assert shop.run(1).success
    assert shop.act(hold=True, reason="freeze").success
    assert not shop.run(2).success
    assert ([1], [1]) == shop.production()


def test_the_steps_of_a_run_read_one_moment(shop: Shop) -> None:
    """All steps of a run that reads the channel see the same commit, whatever is published meanwhile."""
    assert shop.run(1).success
    resource = shop.resources["lance"]
    assert isinstance(resource, LanceResource)
    orders, lines = (resource.table(key) for key in (ORDERS, LINES))
    first = resource.version_at(orders, "production", "reader")
    assert shop.run(2).success
    second = resource.version_at(lines, "production", "reader")
    assert (1, 1) == (first.rows, second.rows)
    assert 2 == resource.version_at(lines, "production", "another").rows
    assert 2 == resource.version_at(lines, "production", None).rows


def test_maintenance_collects_commits(shop: Shop) -> None:
    """The maintenance job collects old commits of the repository, and the last promotions stay readable."""
    for number in (1, 2, 3):
        assert shop.run(number).success
    job = build_maintenance_job([ORDERS, LINES], collect=timedelta(0)).job
    done = job.execute_in_process(resources=shop.resources, instance=shop.instance)
    assert done.success
    assert ([1, 2, 3], [1, 2, 3]) == shop.production()
    view = shop.repository.at("production~2")
    assert [1] == ids_of(view["shop/orders"].read())


def test_a_check_reads_the_same_moment(shop: Shop) -> None:
    """A check or an op that opens the channel by name sees the same commit as the inputs of its run."""
    assert shop.run(1).success
    resource = shop.resources["lance"]
    assert isinstance(resource, LanceResource)
    seen: list[int] = []

    @dg.op
    def look(context: dg.OpExecutionContext) -> None:
        seen.append(resource.open(context, ORDERS, ref="production").count_rows())
        assert shop.run(2).success
        seen.append(resource.open(context, LINES, ref="production").count_rows())

    @dg.job
    def looking() -> None:
        look()

    assert looking.execute_in_process(instance=shop.instance).success
    assert [1, 1] == seen


def test_other_tables_are_not_promoted_unaudited(shop: Shop) -> None:
    """A publisher does not promote a commit of another table, which it has not audited."""
    assert shop.run(1).success
    table = LanceTable.open(shop.root / "shop" / "lines.lance")
    table.append(pa.table({"id": [1]}))
    shop.repository.commit("a foreign row, twice the same id")
    # The rows of the run are good; its check of `lines` fails by the foreign row.
    written = shop.run(2, publish=False)
    assert not written.success
    assert shop.act(selection=PROMOTED[:1], ref=f"run/{written.run_id}").success
    view = shop.repository.at("production")
    assert ([1, 2], [1]) == tuple(ids_of(view[name].read()) for name in ("shop/orders", "shop/lines"))
    assert [1] == ids_of(table.read("production"))
    shop.act()
    assert [1] == ids_of(shop.repository.at("production")["shop/lines"].read())


def test_a_second_revert_of_the_same_reason_goes_back_no_further(shop: Shop) -> None:
    """A rollback repeated with the same reason changes nothing; with another reason it goes one promotion further."""
    for number in (1, 2, 3):
        assert shop.run(number).success
    assert shop.act(ref="production~1", reason="3 is wrong").success
    assert ([1, 2], [1, 2]) == shop.production()
    assert shop.act(ref="production~1", reason="3 is wrong").success
    assert ([1, 2], [1, 2]) == shop.production()
    assert shop.act(ref="production~1", reason="2 is wrong too").success
    assert ([1], [1]) == shop.production()
    assert shop.run(4).success
    assert ([1, 4], [1, 4]) == shop.production()


def test_two_reverts_to_commits_for_one_reason_are_two_rollbacks(shop: Shop) -> None:
    """A rollback to an older commit is recorded as one also where it has the reason of the rollback before it."""
    for number in (1, 2, 3):
        assert shop.run(number).success
    _, second, first = (entry.commit for entry in shop.repository.channels.history("production"))
    for commit, left in ((second, [1, 2]), (first, [1]), (first, [1])):
        assert shop.act(ref=commit[:12], reason="bad data").success
        assert (left, left) == shop.production()
    actions = [entry.action for entry in shop.repository.channels.history("production")]
    assert ["rollback", "rollback", "promote", "promote", "promote"] == actions
    assert not shop.act(ref="production~1", reason="other").success
    assert ([1], [1]) == shop.production()


def test_tags_that_a_killed_publisher_left_behind_follow(shop: Shop) -> None:
    """*Materialize* on the promoted nodes brings the tags of the tables up to the channel."""
    for number in (1, 2):
        assert shop.run(number).success
    table = LanceTable.open(shop.root / "shop" / "lines.lance")
    table.tags.move("production", "main@2", force=True)
    assert shop.act().success
    assert ([1, 2], [1, 2]) == shop.production()


@pytest.mark.parametrize("lagging", [["lines"], ["orders", "lines"]], ids=len)
def test_a_rollback_goes_by_the_channel_and_not_by_tags_that_lag(shop: Shop, lagging: list[str]) -> None:
    """`production~1` rolls every table back, also one whose tag a killed publisher has not moved yet."""
    for number in (1, 2):
        assert shop.run(number).success
    for name in lagging:
        LanceTable.open(shop.root / "shop" / f"{name}.lance").tags.move("production", "main@2", force=True)
    assert shop.act(ref="production~1", reason="wrong").success
    assert ([1], [1]) == shop.production()
    assert shop.run(3).success
    assert ([1, 3], [1, 3]) == shop.production()


def test_a_release_by_hand_releases_the_tags_too(shop: Shop) -> None:
    """A hold that was made in Dagster and released in the repository does not stop the next publication."""
    assert shop.run(1).success
    assert shop.act(hold=True, reason="freeze").success
    shop.repository.channels.release("production", reason="thaw")
    assert shop.run(2).success
    assert ([1, 2], [1, 2]) == shop.production()


def test_the_page_names_the_other_tables_of_the_commit(shop: Shop) -> None:
    """The page of a promoted node lists all other tables of the commit with their versions."""
    assert shop.run(1).success
    waiting = shop.run(2, publish=False)
    assert shop.act(PROMOTED[:1], ref=f"run/{waiting.run_id}").success
    for key, expected in (
        (PROMOTED[0], "- `shop/lines` main@2"),
        (PROMOTED[1], "- `shop/orders` main@2, published with it"),
    ):
        event = shop.instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        assert expected == event.asset_materialization.metadata["lance/commit_tables"].value


@pytest.mark.slow
def test_many_uncollected_publications_are_reported(shop: Shop) -> None:
    """A publisher warns when the tags of many old publications were not collected."""
    assert shop.run(1).success
    # A table of few versions cannot have many tags, and is not looked at.
    for name in ("orders", "lines"):
        table = shop.repository.table(f"shop/{name}")
        for number in range(350):
            table.config.set_table_metadata({"number": str(number)})
    for held in shop.root.glob("shop/*.lance/_refs/tags/repository-main-2.json"):
        for number in range(700):
            held.with_name(held.name.replace(".json", f"{number}.json")).hardlink_to(held)
    logs = shop.instance.all_logs(shop.run(2).run_id)
    said = [entry.user_message for entry in logs if entry.level == logging.WARNING]
    assert ["702 branches and tags of shop/"] == [text[:30] for text in said]


def test_a_publication_takes_its_number_of_requests(shop: Shop) -> None:
    """A publication takes a fixed number of requests, as the repository's tables cache what they read."""
    assert shop.run(1).success
    asked: list[Request] = []

    def script(request: Request) -> object:
        asked.append(request)
        return request.send()

    ScriptedLake.scripts.append(script)
    # Candidates are written and checked through other table objects, whose requests the script does not see.
    shop.resources["lance"] = ScriptedLake(root=str(shop.root))
    assert shop.run(2).success
    of_tables = [request for request in asked if not request.key.startswith("_repository/")]
    # One more request for both tables is a listing, which counts the old publications that wait for a collection.
    assert 2 * 90 + 1 >= len(of_tables)
