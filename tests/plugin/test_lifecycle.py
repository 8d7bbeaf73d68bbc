from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest

from tests.backdating import manifest, say
from tests.plugin.shop import (
    CUSTOMERS,
    MART,
    ORDERS,
    PRODUCTION_CUSTOMERS,
    PRODUCTION_ORDERS,
    Shop,
    failure,
    recorded,
    shop_at,
)

pytestmark = pytest.mark.slow

ALL_BUT_THE_MART = [
    "shop__orders",
    "shop__orders_ids_are_positive",
    "shop__orders_row_count",
    "shop__customers",
    "publish_production",
]


@pytest.fixture(
    params=["everything", pytest.param("everything_in_processes", marks=[pytest.mark.slow, pytest.mark.soak])]
)
def job(request: pytest.FixtureRequest) -> str:
    """The job that runs in this process; in `make soak` also the job that runs each step in its own process."""
    return str(request.param)


@pytest.fixture
def run_instance(request: pytest.FixtureRequest, job: str) -> dg.DagsterInstance:
    """An instance on which the job can be executed and re-executed; on disk where its steps are processes."""
    found: dg.DagsterInstance = request.getfixturevalue("stored_instance" if "processes" in job else "instance")
    return found


def test_good_run_publishes_every_table(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A good run writes, audits, merges, promotes and retires, and the reader of the promoted node gets the rows."""
    assert shop.run(instance).success
    assert shop.ids("production") == [1, 2, 3]
    assert shop.ids("production", CUSTOMERS) == [10, 20]
    assert shop.table().branches.list("run/*") == {}
    assert shop.read_by_mart == [[1, 2, 3]]


def test_events_name_the_versions(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The candidate's event names the run branch, and the promoted node's names main; both have Dagster's own keys."""
    run_id = shop.run(instance).run_id
    candidate = recorded(instance, ORDERS)
    assert candidate.metadata["lance/branch"] == f"run/{run_id}"
    assert candidate.metadata["dagster/row_count"] == 3
    assert candidate.metadata["dagster/table_name"] == "shop.orders"
    assert candidate.metadata["dagster/uri"] == shop.table().uri
    assert [column.name for column in candidate.metadata["dagster/column_schema"].columns] == ["id"]
    assert candidate.tags["dagster/data_version"] == candidate.metadata["lance/transaction"]
    promoted = recorded(instance, PRODUCTION_ORDERS)
    merge = shop.table().head()
    assert promoted.metadata["lance/version"] == str(merge.number)
    assert promoted.metadata["lance/to"] == str(merge) == shop.tag()
    assert promoted.tags["dagster/data_version"] == merge.transaction
    assert merge.properties["dagster/run_id"] == run_id


@pytest.mark.parametrize("what", [{"orders": [1, -2]}, {"check_raises": True}, {"orders": []}])
def test_failed_audit_publishes_nothing(shop: Shop, instance: dg.DagsterInstance, what: dict[str, object]) -> None:
    """When a blocking check fails or raises, main and the tag do not move, and the branch is kept for inspection."""
    shop.run(instance)
    shop.play(**what)
    result = shop.run(instance)
    assert not result.success
    assert shop.ids("production") == shop.ids("main") == [1, 2, 3]
    assert shop.ids("main", CUSTOMERS) == [10, 20]
    assert list(shop.table().branches.list("run/*")) == [f"run/{result.run_id}"]
    assert len(shop.read_by_mart) == 1


def test_checks_that_only_warn_do_not_block(shop: Shop, instance: dg.DagsterInstance) -> None:
    """As in Dagster, a check that is not blocking, or that fails with severity WARN, does not block."""

    @dg.asset_check(asset=ORDERS)
    def not_blocking() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False)

    @dg.asset_check(asset=ORDERS, blocking=True)
    def warning() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN)

    assert Shop(shop.lance, [*shop.assets, not_blocking, warning]).run(instance).success
    assert shop.ids("production") == [1, 2, 3]


def test_deselected_checks_block_publishing(shop: Shop, instance: dg.DagsterInstance) -> None:
    """When the checks are deselected, the publisher itself refuses, and lists every check that was not run."""
    result = shop.run(instance, selection=dg.AssetSelection.all().without_checks())
    assert not result.success
    text = failure(result)
    assert "blocking check 'ids_are_positive' was not run" in text
    assert "blocking check 'row_count' was not run" in text
    assert shop.table().tags.list() == {}
    assert shop.table(CUSTOMERS).head().number == 1


def test_named_checks_count_as_blocking(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A check that the publisher names has to pass, even if no definition has it."""
    named = shop_at(shop.lance.root, checks=[dg.AssetCheckKey(ORDERS, "seen_by_hand")])
    assert "blocking check 'seen_by_hand' was not run" in failure(named.run(instance))


def test_resumed_run_publishes_both_tables(shop: Shop, run_instance: dg.DagsterInstance, job: str) -> None:
    """A re-execution from failure publishes what the parent wrote and audited with what the child wrote."""
    shop.play(customers_fail=True, mode="append")
    failed = shop.execute(run_instance, job=job)
    assert not failed.success
    assert shop.table().tags.list() == {}
    shop.play(mode="append")
    options = dg.ReexecutionOptions.from_failure(failed.run_id, run_instance)
    resumed = shop.execute(run_instance, options, job)
    assert resumed.success
    assert shop.ids("production") == [1, 2, 3]
    assert shop.ids("production", CUSTOMERS) == [10, 20]
    assert shop.table().branches.list("run/*") == shop.table(CUSTOMERS).branches.list("run/*") == {}


def test_resumed_check_reads_the_parents_branch(shop: Shop, run_instance: dg.DagsterInstance, job: str) -> None:
    """A check that broke is run again on what the parent run wrote, and that is published."""
    shop.play(check_raises=True)
    failed = shop.execute(run_instance, job=job)
    shop.play()
    options = dg.ReexecutionOptions.from_failure(failed.run_id, run_instance)
    assert shop.execute(run_instance, options, job).success
    assert shop.ids("production") == [1, 2, 3]
    assert shop.table().branches.list("run/*") == {}


def test_parents_branch_that_outlived_its_childs(shop: Shop, run_instance: dg.DagsterInstance, job: str) -> None:
    """A publisher that died between two branch deletions resumes from what it published, not from the older branch."""
    shop.play(check_raises=True)
    first = shop.execute(run_instance, job=job)
    shop.play(orders=[4, 5])
    options = dg.ReexecutionOptions(first.run_id, step_selection=ALL_BUT_THE_MART)
    second = shop.execute(run_instance, options, job)
    assert shop.ids("production") == [4, 5]
    assert shop.table().branches.list("run/*") == {}
    # This restores the branch of the parent run, which was never published itself.
    shop.table().branches.create(f"run/{first.run_id}", at="main@1")
    shop.table().append(pa.table({"id": [1]}), branch=f"run/{first.run_id}")
    shop.play()
    options = dg.ReexecutionOptions(second.run_id, step_selection=["publish_production*"])
    assert shop.execute(run_instance, options, job).success
    assert shop.ids("production") == [4, 5]
    assert list(shop.table().branches.list("run/*")) == [f"run/{first.run_id}"]


def test_full_reexecution_starts_clean(shop: Shop, run_instance: dg.DagsterInstance, job: str) -> None:
    """A full re-execution does not take over the rows that its parent appended on its branch."""
    shop.play(customers_fail=True, mode="append")
    failed = shop.execute(run_instance, job=job)
    shop.play(mode="append", orders=[7])
    again = shop.execute(run_instance, dg.ReexecutionOptions(failed.run_id), job)
    assert again.success
    assert shop.ids("production") == [7]
    assert list(shop.table().branches.list("run/*")) == [f"run/{failed.run_id}"]


def test_repeated_step_of_a_resumed_run_replaces_its_rows(
    shop: Shop, run_instance: dg.DagsterInstance, job: str
) -> None:
    """A re-execution of an append step replaces the rows that the parent's step appended."""
    shop.play(customers_fail=True, mode="append")
    failed = shop.execute(run_instance, job=job)
    shop.play(mode="append", orders=[4, 5])
    options = dg.ReexecutionOptions(failed.run_id, step_selection=ALL_BUT_THE_MART)
    assert shop.execute(run_instance, options, job).success
    assert shop.ids("production") == [4, 5]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_repeated_step_that_widens_a_column_replaces_its_rows(
    shop: Shop, instance: dg.DagsterInstance, mode: str
) -> None:
    """Of a step that is repeated in another run, the rows of the earlier attempt are gone, whatever the columns."""
    shop.execute(instance)
    shop.play(mode=mode, orders=[4, 5], customers_fail=True)
    failed = shop.execute(instance)
    shop.play(mode=mode, orders=[4.5, 5], evolution="widen")
    options = dg.ReexecutionOptions(failed.run_id, step_selection=ALL_BUT_THE_MART)
    assert shop.execute(instance, options).success
    assert shop.ids("production") == [1, 2, 3, 4.5, 5]
    assert pa.float64() == shop.table().schema("production").field("id").type


def test_repeated_step_that_was_published(shop: Shop, run_instance: dg.DagsterInstance, job: str) -> None:
    """A re-execution of an append step whose rows are published already does not append them a second time."""
    shop.play(mode="append", mart_fails=True)
    failed = shop.execute(run_instance, job=job)
    options = dg.ReexecutionOptions(failed.run_id, step_selection=ALL_BUT_THE_MART)
    again = shop.execute(run_instance, options, job)
    assert not again.success
    assert "appended to shop/orders, and that is published; repeating the step would add its rows again" in failure(
        again, "shop__orders"
    )
    assert shop.ids("production") == shop.ids("main") == [1, 2, 3]


def test_full_reexecution_of_a_run_that_was_published(shop: Shop, run_instance: dg.DagsterInstance, job: str) -> None:
    """A run that repeats a published append is refused, until the publication is rolled back."""
    shop.play(mode="append")
    assert shop.execute(run_instance, job=job).success
    shop.play(mode="append", orders=[4], mart_fails=True)
    failed = shop.execute(run_instance, job=job)
    shop.play(mode="append", orders=[4])
    again = shop.execute(run_instance, dg.ReexecutionOptions(failed.run_id), job)
    said = f"run {failed.run_id}, which this run repeats, appended to shop/orders, and that is published"
    assert said in failure(again, "shop__orders")
    assert "re-execute that run from its failure, or start a new run" in failure(again, "shop__orders")
    assert shop.publish(run_instance, ref="production~1", reason="wrong").success
    assert shop.ids("production") == [1, 2, 3]
    assert shop.execute(run_instance, dg.ReexecutionOptions(again.run_id), job).success
    assert shop.ids("production") == [1, 2, 3, 4]


def test_full_reexecution_of_a_published_run_on_a_branch_of_its_own(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A branch that the tag names outlives its publication, and an append to it is not repeated either."""
    shop.play(mode="append")
    tags = {"lance/branch": "feature"}
    first = shop.execute(instance, None, **tags)
    assert first.success
    again = shop.execute(instance, dg.ReexecutionOptions(first.run_id), **tags)
    assert f"run {first.run_id}, which this run repeats, appended" in failure(again, "shop__orders")
    assert [tags["lance/branch"]] * 2 == [run.tags["lance/branch"] for run in instance.get_runs()]
    assert shop.ids("production") == shop.ids("feature") == [1, 2, 3]


def test_full_reexecution_after_a_reexecution_that_was_published(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A run is refused that repeats an append which a re-execution from Python of the same run has published."""
    shop.play(mode="append", customers_fail=True)
    failed = shop.execute(instance)
    shop.play(mode="append")
    options = dg.ReexecutionOptions(failed.run_id, step_selection=ALL_BUT_THE_MART)
    continued = shop.execute(instance, options)
    again = shop.execute(instance, dg.ReexecutionOptions(failed.run_id))
    assert f"run {continued.run_id}, which this run repeats, appended" in failure(again, "shop__orders")
    assert shop.ids("production") == [1, 2, 3]


@pytest.mark.parametrize("behind", [timedelta(hours=23), -timedelta(days=2)], ids=str)
def test_repeated_step_that_a_machine_with_another_clock_published(
    shop: Shop, instance: dg.DagsterInstance, behind: timedelta
) -> None:
    """The published append is found although the clock of the machines that published is behind, or ahead."""
    shop.play(mode="append", mart_fails=True)
    failed = shop.execute(instance)
    shop.play(mode="append", orders=[4])
    assert shop.execute(instance).success
    for number in (1, 2, 3):
        say(manifest(shop.table(), number), behind)
    shop.play(mode="append")
    options = dg.ReexecutionOptions(failed.run_id, step_selection=ALL_BUT_THE_MART)
    again = shop.execute(instance, options)
    assert "appended to shop/orders, and that is published; repeating the step would add its rows again" in failure(
        again, "shop__orders"
    )
    assert shop.ids("production") == shop.ids("main") == [1, 2, 3, 4]


def test_reader_that_failed_after_publication_is_resumed(
    shop: Shop, run_instance: dg.DagsterInstance, job: str
) -> None:
    """A reader that failed after the publication is resumed: it reads the tag, since the branches are deleted."""
    shop.play(mart_fails=True)
    failed = shop.execute(run_instance, job=job)
    assert shop.ids("production") == [1, 2, 3]
    shop.play()
    options = dg.ReexecutionOptions.from_failure(failed.run_id, run_instance)
    assert shop.execute(run_instance, options, job).success
    assert shop.read_by_mart == [[1, 2, 3]]
    assert run_instance.get_latest_materialization_event(MART) is not None


def test_second_run_builds_on_the_first(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A new run forks from main, and its append adds to what was published."""
    shop.play(mode="append")
    shop.run(instance)
    shop.play(mode="append", orders=[4])
    shop.run(instance)
    assert shop.ids("production") == [1, 2, 3, 4]
    log = shop.table().log("production")
    assert ["run/", "run/"] == [version.properties["dagster/audited_version"][:4] for version in log[:-1]]


def test_every_step_in_a_process_of_its_own(shop: Shop, stored_instance: dg.DagsterInstance) -> None:
    """The multiprocess executor works, whose steps share only the tables and the event log."""
    with shop.execute(stored_instance, job="in_processes") as result:
        assert result.success
    assert shop.ids("production") == [1, 2, 3]
    assert shop.table().branches.list("run/*") == {}
    assert stored_instance.get_latest_materialization_event(PRODUCTION_CUSTOMERS) is None


@pytest.mark.soak
@pytest.mark.parametrize("what", [{"orders": [1, -2]}, {"check_raises": True}, {"orders": []}])
def test_failed_audit_in_a_process_of_its_own(
    shop: Shop, stored_instance: dg.DagsterInstance, what: dict[str, object]
) -> None:
    """The publisher finds in the event log the failed check that another process reported."""
    everything = "everything_in_processes"
    assert shop.execute(stored_instance, job=everything).success
    assert shop.ids("production", CUSTOMERS) == [10, 20]
    shop.play(**what)
    result = shop.execute(stored_instance, job=everything)
    assert not result.success
    assert shop.ids("production") == shop.ids("main") == [1, 2, 3]
    assert list(shop.table().branches.list("run/*")) == [f"run/{result.run_id}"]
    assert shop.read_by_mart == [[1, 2, 3]]


def test_a_check_of_rewritten_rows_says_nothing_about_the_rows_before(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A check without a version that passes in a re-execution of its asset does not let the parent's rows pass."""
    shop.play(orders=[-1])
    failed = shop.execute(instance)
    assert not failed.success
    shop.play(orders=[5])
    steps = ["shop__orders", "shop__orders_ids_are_positive", "shop__orders_row_count"]
    again = shop.execute(instance, dg.ReexecutionOptions(failed.run_id, step_selection=steps))
    assert again.success
    refused = shop.publish(instance, ref=f"run/{failed.run_id}")
    assert "no run recorded a materialization of run/" in failure(refused)
    assert {} == shop.table().tags.list()
