# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceIOManager, LanceResource, LanceTable, build_publisher

EVENTS = dg.AssetKey(["log", "events"])
REGIONS = dg.StaticPartitionsDefinition(["a", "b", "c", "d"])


def run(lake: LanceResource, *assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
    """Materialize on one branch for all runs, so that a test sees the rows of several runs."""
    tags = {"lance/branch": "dev", **options.pop("tags", {})}
    manager = LanceIOManager(lance=lake, **options.pop("fields", {}))
    return dg.materialize(list(assets), resources={"io_manager": manager}, tags=tags, **options)


def events_of(value: object, definition: Any = REGIONS, **metadata: object) -> dg.AssetsDefinition:
    """An asset that returns a value, or the result of a function of its context."""
    settings = {"lance/partition_expr": "region", **{f"lance/{key}": value for key, value in metadata.items()}}

    @dg.asset(key=EVENTS, partitions_def=definition, metadata=settings)
    def events(context: dg.AssetExecutionContext) -> Any:
        return value(context) if callable(value) else value

    return events


def rows(*regions: str | None) -> pa.Table:
    """One row for each region."""
    return pa.table({"region": pa.array(regions, pa.string()), "n": pa.array(range(len(regions)), pa.int64())})


def found(lake: LanceResource) -> list[str | None]:
    """The regions of the rows on the branch."""
    return sorted(lake.table(EVENTS).read("dev")["region"].to_pylist(), key=str)


def entry(event: dg.AssetMaterialization, key: str) -> Any:
    """The value of a metadata entry."""
    return event.metadata[key].value


FRAMES: dict[str, Any] = {
    "table": lambda table: table,
    "stream": lambda table: table.to_reader(max_chunksize=1),
    "pandas": lambda table: table.to_pandas(),
    "polars": pl.DataFrame,
    "lazy": lambda table: pl.DataFrame(table).lazy(),
}


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
@pytest.mark.parametrize("frame", FRAMES)
def test_rows_of_other_partitions_are_never_committed(lake: LanceResource, frame: str, mode: str) -> None:
    """Runs for a, b and b again, each with rows of both, leave each row of a once."""
    keys = {"keys": ["n"]} if mode == "upsert" else {}
    run(lake, events_of(FRAMES[frame](rows("a")), write_mode=mode, **keys), partition_key="a")
    for _ in range(2):
        wrong = events_of(FRAMES[frame](rows("a", "b", None, "b")), write_mode=mode, **keys)
        with pytest.raises(InvalidInputError) as caught:
            run(lake, wrong, partition_key="b")
        says = str(caught.value)
        assert "log/events returned 2 rows that are not in the partitions it was asked for (b)" in says
        assert "its lance/partition_expr 'region', such as one with region = 'a'; nothing was committed" in says
    assert ["a"] == found(lake)


def test_an_overwrite_of_one_run_is_held_to_its_partitions(lake: LanceResource) -> None:
    """An overwrite that one run asks for replaces the table, and may have rows of the run's partitions only."""
    run(lake, events_of(rows("a")), partition_key="a")

    def anew(*regions: str) -> Any:
        def value(context: dg.AssetExecutionContext) -> pa.Table:
            context.add_output_metadata({"lance/write_mode": "overwrite"})
            return rows(*regions)

        return events_of(value)

    with pytest.raises(InvalidInputError, match="not in the partitions"):
        run(lake, anew("b", "c"), partition_key="b")
    assert ["a"] == found(lake)
    run(lake, anew("b", "b"), partition_key="b")
    assert ["b", "b"] == found(lake)


def test_lasting_overwrite_of_a_partitioned_asset_is_refused(lake: LanceResource) -> None:
    """A partitioned asset may not overwrite in every run, as the run of one partition would delete all others."""
    run(lake, events_of(rows("a")), partition_key="a")
    with pytest.raises(InvalidInputError) as caught:
        run(lake, events_of(rows("b"), write_mode="overwrite"), partition_key="b")
    assert "leave it out to replace the partitions of the run" in str(caught.value)
    assert ["a"] == found(lake)


def test_an_io_manager_that_overwrites_replaces_the_partitions_of_the_run(lake: LanceResource) -> None:
    """As in other integrations: nothing was set on the asset, and its other partitions stay."""
    fields = {"write_mode": "overwrite"}
    for value in (rows("a", "b"), rows("a", "a"), rows("b")):
        keys = value["region"].to_pylist()
        span = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        assert run(lake, events_of(value), tags=span, fields=fields).success
    assert ["a", "a", "b"] == found(lake)


@pytest.mark.parametrize(
    "value",
    [
        pd.DataFrame({"region": [], "n": []}),
        pd.DataFrame({"region": ["b"], "n": [None]}),
        pd.DataFrame({"region": ["b"], "n": pd.Series([None], dtype="float64")}),
        pl.DataFrame({"region": ["b"], "n": [None]}),
    ],
    ids=["empty", "objects", "floats", "polars"],
)
def test_columns_without_a_value_take_the_types_of_the_table(lake: LanceResource, value: Any) -> None:
    """A pandas column without a value, which has no type, takes the type of the table's column."""
    run(lake, events_of(rows("a")), partition_key="a")
    run(lake, events_of(value), partition_key="b")
    assert rows("a").schema == lake.table(EVENTS).schema("dev")
    assert ["a", *(["b"] if len(value) else [])] == found(lake)


def test_lazy_frame_is_computed_in_parts(lake: LanceResource) -> None:
    """A lazy frame is written batch by batch, and its plan runs once."""
    calls = []

    def seen(frame: pl.DataFrame) -> pl.DataFrame:
        calls.append(frame.height)
        return frame

    lazy = pl.LazyFrame({"region": ["a"] * 300_000, "n": range(300_000)})
    streamed = lazy.map_batches(seen, streamable=True, schema={"region": pl.String, "n": pl.Int64})
    run(lake, events_of(streamed), partition_key="a")
    assert lake.table(EVENTS).count_rows("dev") == 300_000
    assert sum(calls) == 300_000
    assert len(calls) > 1


@pytest.mark.parametrize("frame", FRAMES)
def test_each_partition_of_a_run_has_its_own_row_count(lake: LanceResource, frame: str) -> None:
    """One run over several partitions emits an event for each, with the rows of that partition."""

    def value(context: dg.AssetExecutionContext) -> Any:
        return FRAMES[frame](rows(*(key for key in context.partition_keys for _ in range(ord(key) - ord("a")))))

    asset = events_of(value)
    ends = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "d"}
    result = run(lake, asset, tags=ends)
    events = result.asset_materializations_for_node("log__events")
    counts = {event.partition: entry(event, "dagster/partition_row_count") for event in events}
    assert counts == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert {6} == {entry(event, "lance/rows_written") for event in events}
    assert {6} == {entry(event, "dagster/row_count") for event in events}


def test_several_dimensions_are_counted_and_held(lake: LanceResource) -> None:
    """A run over several cells of a grid counts the rows of each cell, and refuses rows of other cells."""
    grid = dg.MultiPartitionsDefinition(
        {"region": dg.StaticPartitionsDefinition(["a", "b"]), "day": dg.StaticPartitionsDefinition(["1", "2"])}
    )
    table = pa.table({"region": ["a", "a", "b"], "day": ["1", "2", "2"]})
    expr = {"region": "region", "day": "day"}
    result = run(lake, events_of(table.slice(0, 1), grid, partition_expr=expr), partition_key="1|a")
    (event,) = result.asset_materializations_for_node("log__events")
    assert entry(event, "dagster/partition_row_count") == 1
    with pytest.raises(InvalidInputError, match="such as one with day = '2', region = 'a'"):
        run(lake, events_of(table, grid, partition_expr=expr), partition_key="1|a")


SCHEMA = dg.TableSchema(
    columns=[
        dg.TableColumn("region", "text", description="Where it happened", tags={"pii": "no"}),
        dg.TableColumn("n", "number", constraints=dg.TableColumnConstraints(unique=True)),
    ]
)


def test_descriptions_of_the_definition_reach_the_table_and_the_event(lake: LanceResource) -> None:
    """The event and the table have the descriptions of the definition together with the real column types."""
    lineage = dg.TableColumnLineage({"n": [dg.TableColumnDep(dg.AssetKey("raw"), "n")]})

    @dg.asset(key=EVENTS, metadata={"dagster/column_schema": SCHEMA, "dagster/column_lineage": lineage})
    def events() -> pa.Table:
        return rows("a")

    for _ in range(2):
        result = run(lake, events)
        (event,) = result.asset_materializations_for_node("log__events")
        columns = {column.name: column for column in entry(event, "dagster/column_schema").columns}
        assert columns["region"].description == "Where it happened"
        assert columns["region"].type == "string"
        assert columns["region"].tags == {"pii": "no"}
        assert (columns["n"].type, columns["n"].constraints.unique) == ("int64", True)
        field = lake.table(EVENTS).schema("dev").field("region")
        assert {b"description": b"Where it happened", b"dagster/tags": b'{"pii": "no"}'} == field.metadata
        assert lineage == events.metadata_by_key[EVENTS]["dagster/column_lineage"]


def test_column_lineage_of_a_run_passes_through(lake: LanceResource) -> None:
    """Column lineage that the asset returns at run time is in the event."""
    lineage = dg.TableColumnLineage({"n": [dg.TableColumnDep(dg.AssetKey("raw"), "n")]})

    def value(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_output_metadata({"dagster/column_lineage": lineage, "dagster/column_schema": SCHEMA})
        return rows("a")

    result = run(lake, events_of(value), partition_key="a")
    (event,) = result.asset_materializations_for_node("log__events")
    assert lineage == entry(event, "dagster/column_lineage")
    assert entry(event, "dagster/column_schema").columns[0].description == "Where it happened"


def test_descriptions_reach_a_table_that_exists(lake: LanceResource) -> None:
    """Descriptions are set on an existing table when they differ, and not again when they do not."""
    table = LanceTable.create(lake.uri_of(EVENTS), rows().schema)
    table.append(rows("a"))

    @dg.asset(key=EVENTS, metadata={"dagster/column_schema": SCHEMA})
    def events() -> pa.Table:
        return rows("b")

    run(lake, events)
    assert b"Where it happened" == (table.schema("dev").field("region").metadata or {})[b"description"]
    before = len(table.log("dev"))
    run(lake, events)
    assert before + 1 == len(table.log("dev"))


@pytest.mark.parametrize(
    "metadata,says",
    [
        ({"lance/write_mod": "append"}, "asset log/events: there is no setting 'lance/write_mod'; did you mean"),
        ({"mode": "append"}, "metadata 'mode' would be ignored; did you mean 'lance/write_mode'?"),
        ({"partition_expr": "region"}, "metadata 'partition_expr' would be ignored"),
        ({"lance/keys": ["n"]}, "lance/keys of log/events applies only to lance/write_mode 'upsert'"),
        ({"lance/write_mode": "upsert"}, "needs the columns of its key"),
        ({"lance/schema_evolution": "replace"}, "needs lance/write_mode 'overwrite'"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_rows_are_written(
    lake: LanceResource, metadata: dict[str, Any], says: str
) -> None:
    """Settings that cannot work are refused when rows are written, and no table is created."""

    @dg.asset(key=EVENTS, partitions_def=REGIONS, metadata={"lance/partition_expr": "region", **metadata})
    def events() -> pa.Table:
        return rows("a")

    with pytest.raises(InvalidInputError) as caught:
        run(lake, events, partition_key="a")
    assert says in str(caught.value)
    assert not LanceTable.exists(lake.uri_of(EVENTS))


def test_misspelt_metadata_of_a_run_is_refused(lake: LanceResource) -> None:
    """Misspelt metadata that an asset adds at run time is refused too."""

    def value(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_output_metadata({"lance/write_mod": "append"})
        return rows("a")

    with pytest.raises(InvalidInputError, match="there is no setting"):
        run(lake, events_of(value), partition_key="a")


def test_settings_of_the_asset_in_a_run_count(lake: LanceResource) -> None:
    """A setting by `context.add_asset_metadata`, which only the event would show, applies to the write."""

    def value(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_asset_metadata({"lance/write_mode": "append"})
        context.add_asset_metadata({"lance/schema_evolution": "add_columns"}, partition_key=context.partition_key)
        return rows("a") if "first" in context.run.tags else rows("a").append_column("note", [["new"]])

    run(lake, events_of(value), partition_key="a", tags={"first": "yes"})
    run(lake, events_of(value), partition_key="a")
    assert [None, "new"] == lake.table(EVENTS).read("dev")["note"].to_pylist()


@pytest.mark.parametrize("setting", ["lance/write_mode", "lance/write_mod"])
def test_settings_of_the_asset_in_a_run_are_checked(lake: LanceResource, setting: str) -> None:
    """A wrong value and an unknown setting are refused, as in the metadata of the output."""

    def value(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_asset_metadata({setting: "add"})
        return rows("a")

    with pytest.raises(InvalidInputError, match=f"output metadata of log/events: .*{setting}"):
        run(lake, events_of(value), partition_key="a")


def test_settings_of_one_of_several_partitions_are_refused(lake: LanceResource) -> None:
    """The rows of all partitions of a run are one write, with one mode."""

    def value(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_asset_metadata({"note": "kept"}, partition_key="a")
        context.add_asset_metadata({"lance/write_mode": "append"}, partition_key="b")
        return rows("a", "b")

    says = "partition b of log/events: lance/write_mode has no meaning in the metadata of one of several partitions"
    with pytest.raises(InvalidInputError, match=says):
        run(
            lake,
            events_of(value),
            tags={"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"},
        )


EMPTY: dict[str, Any] = {
    "list": list,
    "pandas": pd.DataFrame,
    "pandas with columns": lambda: pd.DataFrame({"region": [], "n": []}),
    "polars": pl.DataFrame,
    "polars with columns": lambda: pl.DataFrame({"region": [], "n": []}),
    "lazy": pl.LazyFrame,
    "table": lambda: pa.table({}),
    "stream": lambda: pa.table({}).to_reader(),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
@pytest.mark.parametrize("frame", EMPTY)
def test_an_empty_first_output_is_an_empty_table(lake: LanceResource, frame: str, mode: str) -> None:
    """It has no columns, or columns without a type, and takes those of the first rows; later it changes nothing."""
    settings: dict[str, Any] = {"write_mode": mode, **({"keys": ["n"]} if mode == "upsert" else {})}
    run(lake, events_of(EMPTY[frame](), **settings), partition_key="a")
    assert lake.table(EVENTS).count_rows("dev") == 0
    run(lake, events_of(rows("b"), **settings), partition_key="b")
    run(lake, events_of(EMPTY[frame](), **settings), partition_key="c")
    assert rows("b") == lake.table(EVENTS).read("dev")
    assert lake.table(EVENTS).maintenance.verify(deep=True).problems == ()


@pytest.mark.parametrize("value", [[], pd.DataFrame(), pd.DataFrame({"v": []}), pl.LazyFrame()], ids=str)
def test_an_empty_first_output_of_vectors(lake: LanceResource, value: object) -> None:
    """The vectors have their length from the first rows, also where the asset has no partitions."""
    outputs = [value, pa.table({"v": [[0.5, 1.5]]})]

    @dg.asset(key=EVENTS, metadata={"lance/vectors": {"v": 2}})
    def events() -> Any:
        return outputs.pop(0)

    run(lake, events)
    run(lake, events)
    assert pa.table({"v": pa.array([[0.5, 1.5]], pa.list_(pa.float64(), 2))}) == lake.table(EVENTS).read("dev")


@pytest.mark.parametrize("first", ["a", "b"])
def test_an_empty_partition_of_a_first_backfill_is_published(
    lake: LanceResource, instance: dg.DagsterInstance, first: str
) -> None:
    """The runs of the first backfill are published together, whichever of them has no rows."""
    events = events_of(lambda context: [] if context.partition_key == first else rows(context.partition_key))
    publisher = build_publisher([events], unchecked=True)
    seen: list[Any] = []

    @dg.asset(deps=list(publisher.keys), ins={"events": dg.AssetIn(EVENTS)})
    def reader(events: pd.DataFrame) -> None:
        seen.append(events)

    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    for key in ("a", "b"):
        assert dg.materialize([events], partition_key=key, tags={"dagster/backfill": "first"}, **options).success
    assert dg.materialize([events, publisher], selection=list(publisher.keys), **options).success
    assert rows("b" if first == "a" else "a") == lake.table(EVENTS).read("production")
    assert dg.materialize([events, reader], selection=[reader], **options).success
    assert [1] == list(map(len, seen))


@pytest.mark.parametrize("value", [[{}], pd.DataFrame(index=[1])], ids=["list", "pandas"])
def test_rows_without_columns_are_refused(lake: LanceResource, value: object) -> None:
    """They would be lost: no file could hold them."""
    with pytest.raises(InvalidInputError, match="no columns to store"):
        run(lake, events_of(value), partition_key="a")
