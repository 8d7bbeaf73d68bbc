# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceIOManager,
    LanceResource,
    LanceTable,
    RowCount,
    build_publisher,
    build_table_checks,
    pipes_extras,
    pipes_table,
)
from lance_dagster.plugin.io.partitions import PartitionPoints, partition_filter
from tests.conftest import S3Storage
from tests.forked_program import run_program
from tests.plugin.shop import ORDERS, PRODUCTION_ORDERS, recorded
from tests.soak import FACTOR

# Dagster's Pipes client calls methods that Dagster marks as deprecated or as a preview.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:AssetExecutionContext:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*expected_writer_count"),
]
EXTERNAL = Path(__file__).parent / "external_orders.py"
CHECK = dg.AssetCheckSpec("ids_are_positive", asset=ORDERS, blocking=True)


class ForkedClient(dg.PipesClient):
    """Runs a Python program as Dagster's subprocess client does, in a forked process that has loaded the package."""

    def run(self, *, context: Any, extras: Any = None, **given: Any) -> Any:
        """Run the command, and process the messages that it reports."""
        injector, reader = dg.PipesEnvContextInjector(), dg.PipesTempFileMessageReader()
        with dg.open_pipes_session(context, injector, reader, extras=extras) as session:
            environment = {**os.environ, **session.get_bootstrap_env_vars(), **given["env"]}
            done = run_program(*given["command"][1:], environment=environment)
            if done.returncode:
                raise dg.Failure(f"the process ended with {done.returncode}: {done.stderr}", allow_retries=True)
        return dg.PipesClientCompletedInvocation(session)


def pipeline(lake: LanceResource, **script: Any) -> Any:
    """Orders written by an external process, two checks and a publisher."""
    retry = dg.RetryPolicy(max_retries=script.pop("retries", 0))
    partitions, expression = script.pop("partitions", None), script.pop("partition_expr", "region")
    metadata = {} if partitions is None else {"lance/partition_expr": expression}

    @dg.asset(key=ORDERS, check_specs=[CHECK], retry_policy=retry, partitions_def=partitions, metadata=metadata)
    def orders(context: dg.AssetExecutionContext, client: dg.ResourceParam[Any]) -> Iterator[Any]:
        given = {"mode": "overwrite", **script}
        if context.op_execution_context.retry_number:
            given |= {"fails": False, **script.get("retry", {})}
        command = [sys.executable, str(EXTERNAL), json.dumps(given)]
        yield from client.run(
            context=context,
            command=command,
            extras=pipes_extras(context, lake),
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "LANCE_DAGSTER_COMMITTER": ""},
        ).get_results()

    return [orders, *build_table_checks(ORDERS, [RowCount(minimum=1)]), build_publisher([ORDERS])]


def run(
    lake: LanceResource,
    instance: dg.DagsterInstance,
    *,
    partition: str | None = None,
    tags: dict[str, str] | None = None,
    client: dg.PipesClient | None = None,
    **script: Any,
) -> dg.ExecuteInProcessResult:
    """Materialize the pipeline."""
    resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake), "client": client or ForkedClient()}
    return dg.materialize(
        pipeline(lake, **script),
        instance=instance,
        resources=resources,
        raise_on_error=False,
        partition_key=partition,
        tags=tags,
    )


def ids(lake: LanceResource, ref: str = "production") -> list[int]:
    """The ids of the orders."""
    return sorted(row["id"] for row in lake.table(ORDERS).read(ref).to_pylist())


def test_external_process_is_audited_and_published(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The process creates the table on the run's branch; its version passes the gate and reaches production."""
    result = run(lake, instance, client=dg.PipesSubprocessClient(), ids=[1, 2])
    assert result.success
    assert [1, 2] == ids(lake)
    found = recorded(instance, ORDERS).metadata
    assert (f"run/{result.run_id}", "2") == (found["lance/branch"], found["lance/version"])
    assert 2 == found["dagster/row_count"]
    assert "shop/orders" == lake.table(ORDERS).config.get()["dagster/asset"]
    assert "main@2" == recorded(instance, PRODUCTION_ORDERS).metadata["lance/to"]


def test_check_of_the_process_stops_the_publisher(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A blocking check that the process reports as failed keeps its rows on the branch."""
    result = run(lake, instance, ids=[-1])
    assert not result.success
    assert [-1] == ids(lake, f"run/{result.run_id}")
    assert "production" not in lake.table(ORDERS).tags.list()


def test_repeated_step_appends_once(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """When Dagster starts a failed process again, the rows of its first attempt are replaced."""
    result = run(lake, instance, ids=[1, 2], mode="append", fails=True, retries=1)
    assert result.success
    assert [1, 2] == ids(lake)


def test_process_that_writes_nothing_fails(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A process that writes nothing fails, because a successful run would publish what another run wrote."""
    LanceTable.create(lake.uri_of(ORDERS), schema_of_orders())
    assert not run(lake, instance, ids=[1], mode="nothing").success


@pytest.mark.parametrize(
    "writes,kept",
    [([["append", 2], ["append", 3]], [1, 2, 3]), ([["overwrite", 2], ["append", 3]], [2, 3])],
    ids=["append, append", "overwrite, append"],
)
def test_each_write_of_a_process_counts(
    lake: LanceResource, instance: dg.DagsterInstance, writes: list[list[object]], kept: list[int]
) -> None:
    """A second append of a process adds its rows, and is not taken for a retry of the write before it."""
    assert run(lake, instance, ids=[1]).success
    assert run(lake, instance, mode="writes", writes=writes, ids=[2]).success
    assert kept == ids(lake)


def test_a_retry_replaces_all_appends(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Of several appends of a failed attempt nothing remains, also where the retry makes fewer."""
    first: dict[str, Any] = {"mode": "writes", "writes": [["append", 1], ["append", 2]], "fails": True, "ids": [1]}
    assert run(lake, instance, **first, retries=1, retry={"writes": [["append", 3]]}).success
    assert [3] == ids(lake)
    assert run(lake, instance, **first, retries=1).success
    assert [1, 2, 3] == ids(lake)


def test_a_retry_vouches_only_for_what_it_wrote(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A retry that writes nothing, or that appends to what a failed attempt overwrote, fails and is not published."""
    assert run(lake, instance, ids=[1]).success
    failed: dict[str, Any] = {"mode": "writes", "fails": True, "retries": 1, "ids": [2]}
    for writes, again, said in (
        ([["append", 2]], [], "ended without a write"),
        ([["overwrite", 2]], [["append", 3]], "an earlier attempt of the step overwrote the table in run/"),
    ):
        result = run(lake, instance, writes=writes, retry={"writes": again}, **failed)
        assert not result.success
        assert said in reported_error(instance, result.run_id)
        assert [1] == ids(lake)


def test_a_retry_repeats_a_replacement(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """What a failed attempt replaced is not lost: the retry replaces the same rows, or overwrites all, or fails."""
    failed: dict[str, Any] = {"mode": "writes", "fails": True, "retries": 1, "ids": [1]}
    replaced: list[object] = ["replace_where", "id = 1", 1]
    refused: list[list[list[object]]] = [[["append", 3]], [["replace_where", "id = 2"]]]
    assert run(lake, instance, mode="writes", writes=[["append", 1, 2]], ids=[1]).success
    for again in refused:
        result = run(lake, instance, writes=[["replace_where", "id = 1"]], retry={"writes": again}, **failed)
        assert not result.success
        assert "an earlier attempt of the step replaced rows in run/" in reported_error(instance, result.run_id)
        assert [1, 2] == ids(lake)
    assert run(lake, instance, writes=[replaced, ["append", 3]], retry={"writes": [replaced]}, **failed).success
    assert [1, 2] == ids(lake)
    assert run(lake, instance, writes=[replaced], retry={"writes": [["overwrite", 4]]}, **failed).success
    assert [4] == ids(lake)


def job_at(root: str) -> dg.JobDefinition:
    """The pipeline as a job that appends one row, for Dagster to build again."""
    lake = LanceResource(root=root)
    made = pipeline(lake, mode="append", ids=[1])
    return dg.Definitions(
        assets=[one for one in made if not isinstance(one, dg.AssetChecksDefinition)],
        asset_checks=[one for one in made if isinstance(one, dg.AssetChecksDefinition)],
        resources={"lance": lake, "io_manager": LanceIOManager(lance=lake), "client": ForkedClient()},
        jobs=[dg.define_asset_job("pipes", selection="*", executor_def=dg.in_process_executor)],
    ).resolve_job_def("pipes")


def test_a_published_append_is_not_repeated(lake: LanceResource, stored_instance: dg.DagsterInstance) -> None:
    """A run that continues a published run, such as one of chosen steps, does not append the same rows again."""
    job = dg.build_reconstructable_job("tests.plugin.test_pipes", "job_at", reconstructable_kwargs={"root": lake.root})
    first = dg.execute_job(job, instance=stored_instance)
    assert first.success
    options = dg.ReexecutionOptions(first.run_id, step_selection=["shop__orders"])
    again = dg.execute_job(job, instance=stored_instance, reexecution_options=options)
    assert not again.success
    assert "repeating the step would add its rows again" in reported_error(stored_instance, again.run_id)
    assert [1] == ids(lake, "main")


MODES = ("stream", "append", "staged", "overwrite", "plain", "replace_partitions")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])


@pytest.mark.scaled
def test_rows_of_another_partition_are_refused(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """For rows of another partition, however written, the step fails, and nothing is materialized or published."""
    assert run(lake, instance, partition="us", partitions=REGIONS, ids=[1], regions=["us"]).success
    rows: dict[str, Any] = {"ids": [2, 3, 4], "regions": ["eu", "us", ""]}
    said = (
        "2 rows that are not in the partitions it was asked for (eu) by its lance/partition_expr 'region', such as one "
    )
    for mode in MODES if FACTOR else MODES[::2]:
        result = run(lake, instance, partition="eu", partitions=REGIONS, mode=mode, **rows)
        assert not result.success, mode
        assert [1] == ids(lake), mode
        assert "us" == latest_partition(instance), mode
        assert said + "with region = 'us'" in reported_error(instance, result.run_id), mode


def test_refused_rows_do_not_remain_for_a_retry(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A write that is refused commits nothing, so the retry of the step with other rows is published."""
    given: dict[str, Any] = {"ids": [2, 3], "regions": ["eu", "us"], "mode": "replace_partitions"}
    repaired = {"regions": ["eu", "eu"]}
    assert run(lake, instance, partition="eu", partitions=REGIONS, retries=1, retry=repaired, **given).success
    assert [2, 3] == ids(lake)


def test_rows_of_a_failed_attempt_are_held_to_the_partitions(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Rows that the first attempt left outside of the partitions are found after the second."""
    retry = {"mode": "append", "ids": [3], "regions": ["eu"]}
    given: dict[str, Any] = {
        "ids": [2],
        "regions": ["us"],
        "mode": "plain",
        "fails": True,
        "retries": 1,
        "retry": retry,
    }
    result = run(lake, instance, partition="eu", partitions=REGIONS, **given)
    assert not result.success
    assert "1 row that is not in the partitions" in reported_error(instance, result.run_id)


def test_changed_rows_are_held_to_the_partitions(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A row of another partition may be moved to other files, but not be given other values."""
    given: dict[str, Any] = {"partitions": REGIONS, "ids": [2], "regions": ["eu"]}
    assert run(lake, instance, partition="us", partitions=REGIONS, ids=[1], regions=["us"]).success
    assert run(lake, instance, partition="eu", mode="compact", **given).success
    assert run(lake, instance, partition="eu", mode="update", where="region = 'eu'", **given).success
    assert not run(lake, instance, partition="eu", mode="update", where="region = 'us'", **given).success
    assert [1, 12, 12] == ids(lake)


def test_partitions_that_share_a_branch(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """On a branch that several runs share by a tag, only a run's own rows are held to its partitions."""
    tags = {"lance/branch": "fix"}
    first = run(lake, instance, partition="us", tags=tags, partitions=REGIONS, ids=[1], regions=["us"], mode="append")
    second = run(lake, instance, partition="eu", tags=tags, partitions=REGIONS, ids=[2], regions=["eu"], mode="append")
    third = run(lake, instance, partition="eu", tags=tags, partitions=REGIONS, ids=[3], regions=["us"], mode="plain")
    made = [{event.asset_key for event in one.get_asset_materialization_events()} for one in (first, second, third)]
    assert [True, True, False] == [ORDERS in keys for keys in made]
    assert "revert it before another run publishes fix" in reported_error(instance, third.run_id)


DAYS = dg.DailyPartitionsDefinition("2026-03-01", timezone="Europe/Berlin")
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
FIELDS: Any = [("day", pa.timestamp("us")), ("at", pa.timestamp("us", "UTC")), ("region", pa.string())]
SCHEMA = pa.schema(FIELDS)


@pytest.mark.parametrize(
    "keys, definition, expression",
    [
        (["2026-03-29", "2026-03-30", "2026-10-25"], DAYS, "day"),
        (["2026-03-29", "2026-10-25"], DAYS, "at"),
        (["2026-03-29"], DAYS, "date_trunc('day', at)"),
        (["eu"], REGIONS, "region"),
        (["2026-03-29|eu", "2026-10-25|us"], BOTH, {"day": "day", "region": "region"}),
    ],
)
def test_partitions_of_another_process(keys: list[str], definition: Any, expression: Any) -> None:
    """The process, which does not have the definition, makes the same filter as the IO manager."""
    given = PartitionPoints.of(keys, definition).encoded()
    found = PartitionPoints.decoded(json.loads(json.dumps(given))).filter(SCHEMA, expression, "orders")
    wanted = partition_filter(keys, SCHEMA, definition=definition, partition_expr=expression, asset="orders")
    assert wanted.predicate == found.predicate
    assert str(wanted.expression) == str(found.expression)


def test_a_key_of_another_process_that_repeats_a_number_is_refused() -> None:
    """The process, which does not have the other keys, refuses a key that selects the rows of one of them."""
    definition = dg.StaticPartitionsDefinition(["1", "01"])
    points = PartitionPoints.decoded(json.loads(json.dumps(PartitionPoints.of(["1"], definition).encoded())))
    with pytest.raises(InvalidInputError):
        points.filter(pa.schema([("n", pa.int64())]), "n", "orders")


@pytest.mark.parametrize("mode", ["append", "replace_partitions"])
def test_a_retry_of_two_partitions_on_object_storage(
    s3_storage: S3Storage, instance: dg.DagsterInstance, mode: str
) -> None:
    """A process writes two partitions on S3 and breaks; the retry leaves each row once, and is published."""
    lake = LanceResource(root=f"{s3_storage.uri}/lake", storage_options=dict(s3_storage.storage_options))
    given: dict[str, Any] = {"partitions": dg.StaticPartitionsDefinition(["asia", "eu", "us"]), "mode": mode}
    assert run(lake, instance, partition="asia", ids=[9], regions=["asia"], **given).success
    both = {"dagster/asset_partition_range_start": "eu", "dagster/asset_partition_range_end": "us"}
    result = run(lake, instance, tags=both, ids=[1, 2], regions=["eu", "us"], fails=True, retries=1, **given)
    assert result.success
    assert any(event.is_step_up_for_retry for event in result.all_events)
    assert [1, 2, 9] == ids(lake) == ids(lake, "main")
    assert {} == lake.table(ORDERS).branches.list("run/*")
    made = [event.partition for event in result.asset_materializations_for_node("shop__orders")]
    assert ["eu", "us"] == sorted(map(str, made))


def test_partitions_without_an_expression(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """The step fails before it starts the process, whose rows could not be held to the partitions."""
    given: dict[str, Any] = {"partitions": REGIONS, "partition_expr": None, "ids": [1], "regions": ["us"]}
    result = run(lake, instance, partition="us", **given)
    assert "nothing says which column holds the partition" in reported_error(instance, result.run_id)


def latest_partition(instance: dg.DagsterInstance) -> str | None:
    """The partition of the newest materialization of the orders."""
    event = instance.get_latest_materialization_event(ORDERS)
    assert event is not None
    assert event.asset_materialization is not None
    return event.asset_materialization.partition


def reported_error(instance: dg.DagsterInstance, run_id: str) -> str:
    """The errors in the event log of a run, as its page shows them."""
    return "\n".join(str(one.dagster_event) for one in instance.all_logs(run_id) if one.dagster_event)


def test_process_without_extras() -> None:
    """The error names the call that is missing."""
    with pytest.raises(InvalidInputError, match="extras=pipes_extras"), pytest.warns():
        pipes_table()


def schema_of_orders() -> Any:
    """A schema with one column."""
    return pa.schema([("id", pa.int64())])


def test_a_process_says_what_it_writes(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Its message and properties are stored beside those of the run, which a retry finds; it cannot replace them."""
    said = {"message": "from the till", "properties": {"till": "3", "dagster/run_id": "another"}}
    writes = [["overwrite", 1], ["append", 2]]
    # The check fails, so the branch of the run stays.
    result = run(lake, instance, mode="writes", writes=writes, ids=[-1], said=said, fails=True, retries=1)
    branch = f"run/{result.run_id}"
    assert [1, 2] == ids(lake, branch)
    made = [version for version in lake.table(ORDERS).log(branch) if "dagster/write" in version.properties]
    # The first attempt overwrote and appended too; the overwrite of the second one dropped that.
    assert [("from the till", "3", result.run_id)] * 4 == [
        (version.message, version.properties.get("till"), version.properties["dagster/run_id"]) for version in made
    ]


def test_a_run_of_a_partitioned_asset_without_a_partition_writes_nothing(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """The external process is not even started."""
    result = run(lake, instance, partitions=dg.StaticPartitionsDefinition(["a", "b"]))
    failure = result.failure_data_for_node("shop__orders")
    assert failure is not None
    assert "shop/orders is partitioned, and this run has no partition" in str(failure.error)
    assert not LanceTable.exists(lake.uri_of(ORDERS))


@pytest.mark.parametrize("partitioned", [False, True])
def test_an_asset_of_several_tables(lake: LanceResource, instance: dg.DagsterInstance, *, partitioned: bool) -> None:
    """Each table has a process of its own, which reports this table alone, as the page shows."""
    keys = [dg.AssetKey(["shop", "north"]), dg.AssetKey(["shop", "south"])]
    specs = [dg.AssetSpec(key, metadata={"lance/partition_expr": "region"} if partitioned else {}) for key in keys]

    @dg.multi_asset(
        specs=specs,
        check_specs=[dg.AssetCheckSpec("ids_are_positive", asset=key, blocking=True) for key in keys],
        partitions_def=dg.StaticPartitionsDefinition(["a", "b"]) if partitioned else None,
    )
    def regions(context: dg.AssetExecutionContext, client: dg.ResourceParam[Any]) -> Iterator[Any]:
        for number, key in enumerate(keys):
            script = {"mode": "append", "ids": [number + 1], **({"regions": ["a"]} if partitioned else {})}
            done = client.run(
                context=context,
                command=[sys.executable, str(EXTERNAL), json.dumps(script)],
                extras=pipes_extras(context, lake, asset=key.to_user_string()),
                env={"PYTHONPATH": str(Path(__file__).parents[2]), "LANCE_DAGSTER_COMMITTER": ""},
            )
            yield from done.get_results(implicit_materializations=False)

    result = dg.materialize(
        [regions, build_publisher([regions])],
        instance=instance,
        resources={"lance": lake, "io_manager": LanceIOManager(lance=lake), "client": ForkedClient()},
        partition_key="a" if partitioned else None,
    )
    assert result.success
    assert [[1], [2]] == [lake.table(key).read("production")["id"].to_pylist() for key in keys]
    assert [str(key) for key in keys] == [
        str(event.asset_key) for event in result.asset_materializations_for_node("regions")
    ]
