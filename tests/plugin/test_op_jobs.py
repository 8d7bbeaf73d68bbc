# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import datetime as dt
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    LanceIOManager,
    LanceResource,
    LanceTable,
    PinnedTable,
    RowCount,
    build_publisher,
    build_table_checks as checks_of,
)

ROWS = pa.table({"id": [1, 2, 3]})
RAW = {"lance/table": "shop/raw"}
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-11")


def error_of(result: Any) -> str:
    """The text of the first failure, with its causes."""
    found, error = [], result.get_step_failure_events()[0].step_failure_data.error
    while error is not None:
        found.append(error.message)
        error = error.cause
    return "\n".join(found)


def resources(lake: LanceResource) -> dict[str, Any]:
    """The resource, and the IO manager that uses it."""
    return {"lance": lake, "io_manager": LanceIOManager(lance=lake)}


def execute(lake: LanceResource, graph: dg.GraphDefinition, **options: Any) -> dg.ExecuteInProcessResult:
    """Run a graph as a job of ops."""
    job = graph.to_job(resource_defs=resources(lake))
    return job.execute_in_process(raise_on_error=False, **options)


def ids(lake: LanceResource, table: str, result: dg.ExecuteInProcessResult) -> list[int]:
    """The ids that a run wrote to a table."""
    rows: list[Any] = lake.table(table).read(f"run/{result.run_id}")["id"].to_pylist()
    return sorted(rows)


def test_two_outputs_of_an_op_append_to_one_table(lake: LanceResource) -> None:
    """Neither output is mistaken for a retry of the other one."""
    append = {**RAW, "lance/write_mode": "append"}

    @dg.op(out={"web": dg.Out(metadata=append), "app": dg.Out(metadata=append)})
    def fetch() -> Iterator[dg.Output[pa.Table]]:
        yield dg.Output(pa.table({"id": [1, 2]}), "web")
        yield dg.Output(pa.table({"id": [3]}), "app")

    @dg.graph
    def shop() -> None:
        fetch()

    result = execute(lake, shop)
    assert result.success, error_of(result)
    assert [1, 2, 3] == ids(lake, "shop/raw", result)


REPLACES = "output 'result' of step second replaces the rows that output 'result' of step first wrote to"


def test_a_second_output_may_not_replace_the_first(lake: LanceResource) -> None:
    """Neither another output of the op nor another step overwrites a table; a retry of the same output does."""

    @dg.op(out={name: dg.Out(metadata=RAW) for name in ("web", "app")}, retry_policy=dg.RetryPolicy(max_retries=1))
    def fetch() -> Iterator[dg.Output[pa.Table]]:
        yield dg.Output(ROWS, "web")
        yield dg.Output(ROWS.slice(1), "app")

    @dg.op(out=dg.Out(metadata=RAW), ins={"after": dg.In(dg.Nothing)}, retry_policy=dg.RetryPolicy(max_retries=1))
    def extract(context: dg.OpExecutionContext) -> Iterator[dg.Output[pa.Table]]:
        yield dg.Output(ROWS)
        if not context.retry_number:
            raise RuntimeError("after the commit")

    @dg.graph
    def two_outputs() -> None:
        fetch()

    @dg.graph
    def two_steps() -> None:
        extract.alias("second")(extract.alias("first")())

    result = execute(lake, two_outputs)
    assert "output 'app' of step fetch replaces the rows that output 'web' of step fetch wrote to" in error_of(result)
    assert [1, 2, 3] == ids(lake, "shop/raw", result)
    result = execute(lake, two_steps)
    assert ["second"] == [event.step_key for event in result.get_step_failure_events()]
    assert REPLACES in error_of(result)


def test_a_second_output_at_the_same_time(lake: LanceResource) -> None:
    """A step that replaces what another one committed since it began fails, too."""
    LanceTable.create(lake.uri_of("shop/raw"), ROWS.schema, config={"dagster/asset": "op output shop/raw"})

    @dg.op(out=dg.Out(metadata=RAW))
    def second(context: dg.OpExecutionContext) -> pa.RecordBatchReader:
        def rows() -> Iterator[pa.RecordBatch]:
            of_first = {"run_id": context.run_id, "step_key": "first", "output": "result"}
            properties = {f"dagster/{key}": value for key, value in of_first.items()}
            properties["dagster/asset_key"] = "op output shop/raw"
            lake.table("shop/raw").overwrite(ROWS, branch=f"run/{context.run_id}", properties=properties)
            yield from ROWS.to_batches()

        return pa.RecordBatchReader.from_batches(ROWS.schema, rows())

    @dg.graph
    def shop() -> None:
        second()

    assert REPLACES in error_of(execute(lake, shop))


def test_steps_of_one_mapping_key(lake: LanceResource) -> None:
    """A mapped op does not replace the partition that another output wrote for the same key."""
    said = error_of(execute(lake, fan_out([], list, BY_COLUMN, BY_COLUMN)))
    assert "output 'result' of step scale[oslo] replaces the rows that output 'result' of step split wrote to" in said


def test_output_of_an_op_has_a_table_of_its_own(lake: LanceResource) -> None:
    """An op writes the table that its output names, on the branch of the run, and the next op reads it there."""
    seen: list[Any] = []

    @dg.op(out=dg.Out(metadata=RAW))
    def extract() -> pa.Table:
        return ROWS

    @dg.op
    def load(raw: pa.Table, lazy: Any, rows: list[dict[str, Any]]) -> None:
        seen.extend([raw, lazy.ref, lazy.count_rows("id > 1"), rows])

    @dg.graph
    def shop() -> None:
        raw = extract()
        load(raw, raw, raw)

    result = execute(lake, shop)
    assert result.success, error_of(result)
    table = lake.table("shop/raw")
    head = table.head(f"run/{result.run_id}")
    assert [ROWS, str(head), 2, ROWS.to_pylist()] == seen
    assert table.count_rows() == 0
    assert head.properties["dagster/step_key"] == "extract"


def test_output_of_an_op_without_a_table_is_refused(lake: LanceResource) -> None:
    """The error says which setting names a table, and that another IO manager may store the value."""

    @dg.op
    def extract() -> pa.Table:
        return ROWS

    @dg.graph
    def shop() -> None:
        extract()

    said = error_of(execute(lake, shop))
    assert "output 'result' of step extract belongs to no asset, so it has no table; name one by dg.Out(" in said
    assert '"lance/table": "shop/raw"' in said
    assert "dg.Out(io_manager_key=...)" in said


def test_op_cannot_write_the_table_of_an_asset(lake: LanceResource) -> None:
    """An op and an asset cannot write the same table; whichever comes second is refused with the owner's name."""

    @dg.asset(key=["shop", "raw"])
    def raw() -> pa.Table:
        return ROWS

    @dg.op(out=dg.Out(metadata=RAW))
    def extract() -> pa.Table:
        return ROWS

    @dg.graph
    def shop() -> None:
        extract()

    assert dg.materialize([raw], resources=resources(lake)).success
    said = error_of(execute(lake, shop))
    assert "op output shop/raw cannot write" in said
    assert "belongs to the asset shop/raw" in said


def test_op_reads_a_table_by_name(lake: LanceResource) -> None:
    """An input without an upstream names its table, and reads what was published."""
    LanceTable.create(lake.uri_of("shop/raw"), ROWS.schema).append(ROWS)
    seen: list[pa.Table] = []

    @dg.op(ins={"raw": dg.In(input_manager_key="io_manager", metadata={**RAW, "lance/filter": "id > 1"})})
    def load(raw: pa.Table) -> None:
        seen.append(raw)

    @dg.graph
    def shop() -> None:
        load()

    result = execute(lake, shop)
    assert result.success, error_of(result)
    assert seen == [pa.table({"id": [2, 3]})]


def fan_out(seen: list[Any], kind: Any, cities: dict[str, Any], scaled: dict[str, Any]) -> dg.GraphDefinition:
    """A dynamic output, an op for each of its items, and an op that collects them."""

    @dg.op(out=dg.DynamicOut(metadata=cities))
    def split() -> Iterator[dg.DynamicOutput[pa.Table]]:
        for number, city in enumerate(("oslo", "rome")):
            yield dg.DynamicOutput(pa.table({"id": [number], "city": [city]}), mapping_key=city)

    @dg.op(out=dg.Out(metadata=scaled))
    def scale(rows: pa.Table) -> pa.Table:
        return rows.set_column(0, "id", pa.array([value.as_py() + 10 for value in rows["id"]]))

    def gather(rows: Any) -> None:
        seen.extend(row.read() if isinstance(row, PinnedTable) else row for row in rows)

    gather.__annotations__ = {"rows": kind, "return": None}
    collect = dg.op(gather)

    @dg.graph
    def cities_graph() -> None:
        collect(split().map(scale).collect())

    return cities_graph


BY_NAME = {"lance/table": "city/{mapping_key}/rows"}
BY_COLUMN = {"lance/table": "city/rows", "lance/partition_expr": "city"}


@pytest.mark.parametrize("kind", [list[pa.Table], list])
@pytest.mark.parametrize("metadata", [BY_NAME, BY_COLUMN], ids=["name", "column"])
def test_dynamic_outputs(lake: LanceResource, metadata: dict[str, Any], kind: Any) -> None:
    """Each item has a table of its own, or its own rows in one table; so has each op that runs for an item."""
    seen: list[pa.Table] = []
    scaled = {**metadata, "lance/table": f"scaled/{metadata['lance/table']}"}
    result = execute(lake, fan_out(seen, kind, metadata, scaled))
    assert result.success, error_of(result)
    assert [(10, "oslo"), (11, "rome")] == sorted((row["id"], row["city"]) for rows in seen for row in rows.to_pylist())
    if metadata is BY_NAME:
        assert [0] == ids(lake, "city/oslo/rows", result)
        assert [11] == ids(lake, "scaled/city/rome/rows", result)
    else:
        assert [0, 1] == ids(lake, "city/rows", result)
        assert [10, 11] == ids(lake, "scaled/city/rows", result)


@pytest.mark.parametrize("first,second,step", [(RAW, BY_NAME, "split"), (BY_NAME, RAW, "scale[oslo]")])
def test_dynamic_outputs_that_would_replace_each_other(
    lake: LanceResource, first: dict[str, Any], second: dict[str, Any], step: str
) -> None:
    """One table for all items, without a column for the key, would keep the last item only."""
    said = error_of(execute(lake, fan_out([], list, first, second)))
    assert f"output 'result' of step {step} is written once for each mapping key" in said
    assert '"shop/raw/{mapping_key}"' in said


def test_mapping_key_of_a_plain_op(lake: LanceResource) -> None:
    """A plain op has no mapping key, so a table name with a placeholder for it is refused."""

    @dg.op(out=dg.Out(metadata=BY_NAME))
    def extract() -> pa.Table:
        return ROWS

    @dg.graph
    def shop() -> None:
        extract()

    assert "holds the mapping key, and the output is neither dynamic" in error_of(execute(lake, shop))


@pytest.mark.parametrize("inner", [RAW, None])
def test_graph_asset(lake: LanceResource, inner: dict[str, Any] | None) -> None:
    """The last output is that of the asset; an output inside of the graph needs a table of its own."""
    key = dg.AssetKey(["shop", "orders"])

    @dg.op(out=dg.Out(metadata=inner))
    def extract() -> pa.Table:
        return ROWS

    @dg.op
    def clean(raw: pa.Table) -> pa.Table:
        return raw.slice(1)

    @dg.graph_asset(key=key)
    def orders() -> Any:
        return clean(extract())

    seen: list[pa.Table] = []

    @dg.asset(ins={"orders": dg.AssetIn(key)})
    def reader(orders: pa.Table) -> None:
        seen.append(orders)

    result = dg.materialize([orders, reader], resources=resources(lake), raise_on_error=False)
    if inner is None:
        assert "output 'result' of step shop__orders.extract belongs to no asset" in error_of(result)
        return
    assert result.success, error_of(result)
    assert [1, 2, 3] == ids(lake, "shop/raw", result)
    assert [2, 3] == ids(lake, "shop/orders", result)
    assert seen == [ROWS.slice(1)]


@pytest.mark.parametrize("passes", [True, False])
def test_a_graph_asset_with_checks_of_its_own_is_published(
    lake: LanceResource, instance: dg.DagsterInstance, *, passes: bool
) -> None:
    """A check that the graph evaluates itself counts, though no function stands behind it."""

    @dg.op
    def make() -> pa.Table:
        return ROWS

    @dg.op(ins={"made": dg.In(dg.Nothing)})
    def verify() -> Any:
        return dg.AssetCheckResult(passed=passes, asset_key="orders", check_name="fine")

    @dg.graph_asset(key=dg.AssetKey("orders"), check_specs=[dg.AssetCheckSpec("fine", asset="orders", blocking=True)])
    def orders() -> Any:
        made = make()
        return {"result": made, "orders_fine": verify(made)}

    assets = [orders, build_publisher([orders])]
    result = dg.materialize(assets, resources=resources(lake), instance=instance, raise_on_error=False)
    assert passes == result.success
    assert passes == bool(lake.table("orders").tags.list("production"))


def test_graph_asset_with_partitions(lake: LanceResource) -> None:
    """The asset's partition column is a setting of the graph asset; inner tables belong to the run."""
    key = dg.AssetKey(["shop", "orders"])

    @dg.op(out=dg.Out(metadata=RAW))
    def extract(context: dg.OpExecutionContext) -> pa.Table:
        return pa.table(
            {"day": [dt.date.fromisoformat(context.partition_key)], "id": [int(context.partition_key[-2:])]}
        )

    @dg.op
    def clean(raw: pa.Table) -> pa.Table:
        return raw

    @dg.graph_asset(key=key, partitions_def=DAYS, metadata={"lance/partition_expr": "day"})
    def orders() -> Any:
        return clean(extract())

    for day in ("2024-01-01", "2024-01-02", "2024-01-01"):
        tags = {"lance/branch": "dev"}
        result = dg.materialize([orders], resources=resources(lake), partition_key=day, tags=tags, raise_on_error=False)
        assert result.success, error_of(result)
    assert [1, 2] == sorted(row["id"] for row in lake.table(key).read("dev").to_pylist())


def test_multi_asset_with_a_subset(lake: LanceResource) -> None:
    """Only the selected outputs are written; the others keep what they have."""
    specs = [dg.AssetSpec(["shop", name], skippable=True) for name in ("a", "b")]

    @dg.multi_asset(
        outs={one.key.path[-1]: dg.AssetOut(key=one.key, is_required=False) for one in specs}, can_subset=True
    )
    def both(context: dg.AssetExecutionContext) -> Iterator[dg.Output[pa.Table]]:
        for name in sorted(context.op_execution_context.selected_output_names):
            yield dg.Output(ROWS, name)

    result = dg.materialize([both], selection=[dg.AssetKey(["shop", "a"])], resources=resources(lake))
    assert result.success
    assert [1, 2, 3] == ids(lake, "shop/a", result)
    assert not LanceTable.exists(lake.uri_of("shop/b"))


def test_skipped_output_leaves_its_sibling_published(lake: LanceResource) -> None:
    """One publisher of two tables publishes the one that was written when the other output is skipped."""

    @dg.multi_asset(outs={name: dg.AssetOut(key=["shop", name], is_required=False) for name in ("a", "b")})
    def both() -> Iterator[dg.Output[pa.Table]]:
        yield dg.Output(ROWS, "a")

    keys = [dg.AssetKey(["shop", name]) for name in ("a", "b")]
    checks = [check for key in keys for check in checks_of(key, [RowCount(minimum=1)])]
    publisher = build_publisher([both])
    result = dg.materialize([both, *checks, publisher], resources=resources(lake), raise_on_error=False)
    assert result.success, error_of(result)
    assert "main@2" == lake.table("shop/a").tags.list()["production"].ref
    (made,) = result.asset_materializations_for_node("publish_production")
    assert ["production", "shop", "a"] == list(made.asset_key.path)
