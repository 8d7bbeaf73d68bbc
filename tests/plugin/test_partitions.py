# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import datetime as dt
from collections.abc import Sequence
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
    StagedFiles,
    build_publisher,
    build_table_checks,
)
from lance_dagster.datafiles import RowScope, RowTally
from lance_dagster.format.sql_text import quote_name, quote_text
from lance_dagster.plugin.io.partition_values import PartitionFilter, PartitionValues
from lance_dagster.plugin.io.partitions import partition_filter, partition_groups, rows_of

EVENTS = dg.AssetKey(["log", "events"])
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-11")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us", "o'brien"])
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
COLUMNS: dict[str, pa.DataType] = {
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "text": pa.string(),
    "region": pa.string(),
    "n": pa.int32(),
    "code": pa.dictionary(pa.int32(), pa.string()),
    "ok": pa.bool_(),
    "x": pa.float64(),
}
SCHEMA = pa.schema(COLUMNS)


def selected(keys: Sequence[str], definition: Any = None, expr: object = None) -> PartitionFilter:
    """The selection of some partitions, over the columns above."""
    return partition_filter(keys, SCHEMA, definition=definition, partition_expr=expr, asset="log/events")


def predicate(keys: Sequence[str], definition: Any = None, expr: object = None) -> str:
    """The predicate over the columns above."""
    return selected(keys, definition, expr).predicate


def moment(utc: str) -> str:
    """A moment as a predicate has it."""
    return f"""arrow_cast('{utc}', 'Timestamp(Microsecond, Some("UTC"))')"""


def both(day: str, region: str) -> dg.MultiPartitionKey:
    """The key of a cell in two dimensions."""
    return dg.MultiPartitionKey({"day": day, "region": region})


@pytest.mark.parametrize(
    "keys,definition,expr,expected",
    [
        (["eu"], REGIONS, "region", "`region` IN ('eu')"),
        (["us", "eu", "us"], REGIONS, "region", "`region` IN ('eu', 'us')"),
        (["o'brien"], REGIONS, "region", "`region` IN ('o''brien')"),
        (["a b"], dg.DynamicPartitionsDefinition(name="d"), "text", "`text` IN ('a b')"),
        (["7", "-1"], None, "n", "`n` IN (-1, 7)"),
        (["true"], None, "ok", "`ok` IN (true)"),
        (["eu"], REGIONS, "code", "`code` IN ('eu')"),
        (["eu", "us"], REGIONS, "lower(region)", "(lower(region)) IN ('eu', 'us')"),
        (["1"], None, "n % 10", "(n % 10) IN (1)"),
        (["2024-01-02"], DAYS, "to_char(at, '%Y-%m-%d')", "(to_char(at, '%Y-%m-%d')) IN ('2024-01-02')"),
        (
            ["2024-01-02"],
            DAYS,
            "date_trunc('day', local)",
            (
                "(date_trunc('day', local)) >= timestamp '2024-01-02 00:00:00' AND "
                "(date_trunc('day', local)) < timestamp '2024-01-03 00:00:00'"
            ),
        ),
        ([], REGIONS, "region", "false"),
        (["2024-01-02"], DAYS, "day", "`day` >= date '2024-01-02' AND `day` < date '2024-01-03'"),
        (["2024-01-02"], DAYS, "text", "`text` IN ('2024-01-02')"),
        (
            ["2024-01-03", "2024-01-01", "2024-01-02"],
            DAYS,
            "at",
            f"`at` >= {moment('2024-01-01T00:00:00Z')} AND `at` < {moment('2024-01-04T00:00:00Z')}",
        ),
        (
            ["2024-01-01", "2024-01-05"],
            DAYS,
            "day",
            (
                "(`day` >= date '2024-01-01' AND `day` < date '2024-01-02') OR "
                "(`day` >= date '2024-01-05' AND `day` < date '2024-01-06')"
            ),
        ),
    ],
)
def test_keys_become_a_predicate(keys: list[str], definition: Any, expr: str, expected: str) -> None:
    """In a predicate, values are listed, adjacent windows are joined, quotes doubled and column names quoted."""
    assert expected == predicate(keys, definition, expr)


@pytest.mark.parametrize(
    "column,expected",
    [
        ("at", f"`at` >= {moment('2024-03-30T23:00:00Z')} AND `at` < {moment('2024-03-31T22:00:00Z')}"),
        ("local", "`local` >= timestamp '2024-03-31 00:00:00' AND `local` < timestamp '2024-04-01 00:00:00'"),
    ],
)
def test_time_zone_of_the_partitions(column: str, expected: str) -> None:
    """Instants are compared as instants, also across a change to summer time; naive times as local clock times."""
    berlin = dg.DailyPartitionsDefinition("2024-03-01", timezone="Europe/Berlin")
    assert expected == predicate(["2024-03-31"], berlin, column)


@pytest.mark.parametrize(
    "keys,first,last",
    [
        (["2024-10-27-01:00"], "01:00", "02:00"),
        (["2024-10-27-02:00"], "02:00", "03:00"),
        (["2024-10-27-02:00+0100"], "03:00", "03:00"),
        (["2024-10-27-02:00+0100", "2024-10-27-02:00"], "02:00", "03:00"),
        (["2024-10-27-03:00"], "03:00", "04:00"),
        (["2024-03-31-01:00"], "01:00", "03:00"),
        (["2024-03-31-03:00"], "03:00", "04:00"),
    ],
)
def test_local_times_when_clocks_change(keys: list[str], first: str, last: str) -> None:
    """A local time that occurs twice belongs to its first hour; one that does not occur belongs to the hour before."""
    hours = dg.HourlyPartitionsDefinition("2024-03-01-00:00", timezone="Europe/Berlin")
    day = keys[0][:10]
    expected = f"`local` >= timestamp '{day} {first}:00' AND `local` < timestamp '{day} {last}:00'"
    found = selected(keys, hours, "local")
    assert expected == found.predicate
    assert (first == last) == ("has no time zone" in found.hint)


def test_sets_of_two_dimensions() -> None:
    """A full rectangle becomes one AND; cells that agree in one dimension share a term; terms are joined by OR."""
    expr = {"day": "day", "region": "text"}
    square = [both(day, region) for day in ("2024-01-01", "2024-01-02") for region in ("eu", "us")]
    two_days = "(`day` >= date '2024-01-01' AND `day` < date '2024-01-03')"
    assert f"{two_days} AND (`text` IN ('eu', 'us'))" == predicate(square, BOTH, expr)
    assert predicate([both("2024-01-01", "eu"), both("2024-01-02", "us")], BOTH, expr) == (
        "((`day` >= date '2024-01-01' AND `day` < date '2024-01-02') AND (`text` IN ('eu'))) OR "
        "((`day` >= date '2024-01-02' AND `day` < date '2024-01-03') AND (`text` IN ('us')))"
    )


@pytest.mark.parametrize(
    "definition,expr,says",
    [
        (REGIONS, None, 'metadata {"lance/partition_expr": "<column>"}'),
        (BOTH, None, '{"day": "<column>", "region": "<column>"}'),
        (BOTH, "day", "partition_expr of log/events must be"),
        (BOTH, {"day": "day"}, "partition_expr of log/events must be"),
        (REGIONS, {"region": "region"}, 'must be "<column>"'),
        (REGIONS, "regoin", "names column 'regoin'; the columns are day, at, local"),
        (REGIONS, "lower(regoin)", "names no column: 'lower(regoin)'; the columns are day, at"),
        (REGIONS, "lower(region", "has a parenthesis without its partner"),
        (REGIONS, "lowercase(region)", "partition_expr of log/events: cannot compute 'value' as 'lowercase(region)'"),
        (REGIONS, "day", "'day' is date32[day], which only partitions by time can select from"),
        (REGIONS, "n", "partition key 'eu' is not a value of column 'n', which is int32"),
        (REGIONS, "ok", "partition key 'eu' is not a value of column 'ok'"),
        (REGIONS, "x", "column 'x' is double"),
    ],
)
def test_partition_expr_that_does_not_fit(definition: Any, expr: object, says: str) -> None:
    """The error for a wrong `partition_expr` names the asset or the column, and what would be right."""
    with pytest.raises(InvalidInputError) as caught:
        predicate(["eu"] if definition is REGIONS else [both("2024-01-01", "eu")], definition, expr)
    assert says in str(caught.value)


@pytest.mark.parametrize("key,kind", [("300", pa.int8()), ("-5", pa.uint16())])
def test_keys_that_a_column_cannot_hold(key: str, kind: pa.DataType) -> None:
    """A key outside of the range of the column is refused by name."""
    values = pa.schema([("year", kind)])
    with pytest.raises(InvalidInputError):
        partition_filter(
            [key], values, definition=dg.StaticPartitionsDefinition([key]), partition_expr="year", asset="sales"
        )


PADDED = dg.StaticPartitionsDefinition(["01", "2", "03", "False"])
TWICE = dg.StaticPartitionsDefinition(["1", "01", "2", "true", "True"])
DYNAMIC = dg.DynamicPartitionsDefinition(name="d")


def cell(number: str) -> dg.MultiPartitionKey:
    """The key of a cell in two dimensions, one of numbers."""
    return dg.MultiPartitionKey({"n": number, "region": "eu"})


def numbered(definition: dg.PartitionsDefinition) -> dg.MultiPartitionsDefinition:
    """Partitions of two dimensions, one of numbers."""
    return dg.MultiPartitionsDefinition({"n": definition, "region": REGIONS})


@pytest.mark.parametrize(
    "keys,definition,expr,says",
    [
        (["01"], TWICE, "n", "'01' and '1' are the same value of column 'n', which is int32"),
        (["2", "1"], TWICE, "n", "'1' and '01' .* have one partition of this value, '1'"),
        (["1"], TWICE, "n + 1", "'1' and '01' are the same value"),
        (["True"], TWICE, "ok", "'True' and 'true' are the same value .* bool, .* of this value, 'true'"),
        (["01"], DYNAMIC, "n", "'01' and '1' are the same value .* have one partition of this value, '1'"),
        (["-0"], DYNAMIC, "n", "'-0' and '0' are the same value"),
        (["TRUE"], DYNAMIC, "ok", "'TRUE' and 'true' are the same value"),
        (["007"], None, "n", "'007' and '7' are the same value"),
        ([cell("01")], numbered(TWICE), {"n": "n", "region": "region"}, "'01' and '1' are the same value"),
        (["\u0661"], DYNAMIC, "n", "'\u0661' is not a value of column 'n'"),
        (["\u0661"], dg.StaticPartitionsDefinition(["1", "\u0661"]), "n", "'\u0661' is not a value of column 'n'"),
        (["1" * 5000], DYNAMIC, "n", "is not a value of column 'n'"),
        (["1"], DYNAMIC, "ok", "'1' is not a value of column 'ok'"),
        (["true"], DYNAMIC, "n", "'true' is not a value of column 'n'"),
    ],
)
def test_keys_of_the_same_rows_are_refused(keys: list[str], definition: Any, expr: Any, says: str) -> None:
    """A key that selects the rows of another key is refused, whichever of the two is written."""
    with pytest.raises(InvalidInputError, match=says):
        predicate(keys, definition, expr)


@pytest.mark.parametrize(
    "keys,definition,expr,expected",
    [
        (["01", "03"], PADDED, "n", "`n` IN (1, 3)"),
        (["False"], PADDED, "ok", "`ok` IN (false)"),
        (["1", "01"], TWICE, "text", "`text` IN ('01', '1')"),
        (["01"], DYNAMIC, "text", "`text` IN ('01')"),
        (["2"], TWICE, "n", "`n` IN (2)"),
        (["20240102"], dg.DailyPartitionsDefinition("20240101", fmt="%Y%m%d"), "n", "`n` IN (20240102)"),
        (["0102"], dg.DailyPartitionsDefinition("0101", fmt="%m%d"), "n", "`n` IN (102)"),
    ],
)
def test_keys_with_zeros_in_front(keys: list[str], definition: Any, expr: str, expected: str) -> None:
    """They are values of text, and of numbers where no other key of the partitions is the same number."""
    assert expected == predicate(keys, definition, expr)


def test_the_second_key_of_a_number_replaces_nothing(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A dynamic partition that would replace the rows of another one is refused, and the rows stay."""
    definition = dg.DynamicPartitionsDefinition(name="shops")
    instance.add_dynamic_partitions("shops", ["1", "01"])

    @dg.asset(key=EVENTS, partitions_def=definition, metadata={"lance/partition_expr": "shop"})
    def shops(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"shop": [1], "key": [context.partition_key]})

    assert run(lake, shops, partition_key="1", instance=instance).success
    with pytest.raises(InvalidInputError):
        run(lake, shops, partition_key="01", instance=instance)
    assert ["1"] == lake.table(EVENTS).read("dev")["key"].to_pylist()


def test_hours_need_a_timestamp() -> None:
    """A date column cannot tell the hours of a day apart."""
    with pytest.raises(InvalidInputError):
        predicate(["2024-01-01-05:00"], dg.HourlyPartitionsDefinition("2024-01-01-00:00"), "day")


def test_quoting() -> None:
    """Every column name can be quoted, except one with a backtick."""
    assert quote_name("Order Id") == "`Order Id`"
    assert quote_text("a'b") == "'a''b'"
    with pytest.raises(InvalidInputError):
        quote_name("a`b")


def test_predicates_select_in_lance_what_they_say(tmp_table_uri: str) -> None:
    """A predicate selects the intended rows in Lance, for each type of column."""
    noon = dt.datetime(2024, 1, 2, 12, tzinfo=dt.UTC)
    hours = [noon - dt.timedelta(hours=hour) for hour in (36, 12, 11, 0)] + [noon + dt.timedelta(hours=12)]
    schema = pa.schema([SCHEMA.field(name) for name in ("at", "local", "day")])
    table = LanceTable.create(tmp_table_uri, schema)
    naive = [hour.replace(tzinfo=None) for hour in hours]
    days = [hour.date() for hour in hours]
    table.append(pa.table({"at": hours, "local": naive, "day": days}, schema=schema))
    for column in ("at", "local", "day"):
        assert table.count_rows(filter=predicate(["2024-01-02"], DAYS, column)) == 3, column
    assert table.count_rows(filter=predicate([], DAYS, "day")) == 0
    berlin = dg.DailyPartitionsDefinition("2024-01-01", timezone="Europe/Berlin")
    assert table.count_rows(filter=predicate(["2024-01-03"], berlin, "at")) == 1


def test_the_smallest_integer_is_a_key(tmp_table_uri: str) -> None:
    """Lance has no plain literal for it."""
    rows = pa.table({"k": [-(2**63), 1, None]})
    table = LanceTable.create(tmp_table_uri, rows.schema)
    table.append(rows)
    found = PartitionValues.of("k", rows.schema, "orders").select([str(-(2**63)), "5"], None)
    assert table.count_rows(filter=found.predicate) == 1
    assert found.outside(rows) == 2


def test_rows_outside_are_counted() -> None:
    """Arrow and Lance agree which rows belong to the partitions; a row without a value belongs to none."""
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None, dt.date(2024, 1, 5)]
    rows = pa.table({"day": days, "text": ["eu", "us", "eu", None], "n": pa.array([1, 2, 3, None], pa.int32())})
    assert selected(["2024-01-01", "2024-01-05"], DAYS, "day").outside(rows) == 2
    assert selected(["1", "2"], None, "n").outside(rows) == 2
    cells = [both("2024-01-01", "eu"), both("2024-01-02", "us"), both("2024-01-05", "us")]
    assert selected(cells, BOTH, {"day": "day", "region": "text"}).outside(rows) == 2
    assert selected([], DAYS, "day").outside(rows) == 4


def test_rows_outside_of_an_expression_are_counted() -> None:
    """Lance evaluates an SQL expression over rows in memory as over a table, also combined with plain columns."""
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None]
    rows = pa.table({"day": days, "region": ["EU", "eu", "eu"], "x": [1.0, 2.0, 3.0]})
    assert selected(["eu"], REGIONS, "lower(region)").outside(rows) == 0
    assert selected(["us"], REGIONS, "lower(region)").outside(rows) == 3
    assert selected(["us"], REGIONS, "lower(region)").outside(rows.slice(0, 0)) == 0
    cells = [both("2024-01-01", "eu"), both("2024-01-02", "us")]
    mixed = selected(cells, BOTH, {"day": "day", "region": "lower(region)"})
    assert mixed.columns == ("day", "region")
    assert mixed.outside(rows) == 2


ZONED = dg.HourlyPartitionsDefinition("2024-10-27-00:00", end_date="2024-10-27-06:00", timezone="Europe/Berlin")
GROUPED: dict[str, tuple[Any, object]] = {
    "text": (REGIONS, "region"),
    "numbers": (dg.StaticPartitionsDefinition(["1", "2", "30"]), "n"),
    "truth": (dg.StaticPartitionsDefinition(["true", "false"]), "ok"),
    "dictionary": (REGIONS, "code"),
    "dates": (DAYS, "day"),
    "days as text": (DAYS, "text"),
    "instants": (ZONED, "at"),
    "local times": (ZONED, "local"),
    "expression": (REGIONS, "lower(region)"),
    "two dimensions": (BOTH, {"day": "day", "region": "lower(region)"}),
}


@pytest.mark.parametrize("kind", GROUPED)
def test_groups_are_the_rows_of_the_filters(kind: str) -> None:
    """Rows are counted in the partition whose filter selects them, and rows outside are those of no filter."""
    definition, expr = GROUPED[kind]
    days = [None, *(dt.date(2024, 1, day) for day in (1, 2, 5, 20))]
    start = dt.datetime(2024, 10, 26, 21)  # noqa: DTZ001  # the column has local times
    moments = [start + dt.timedelta(minutes=25 * step) for step in range(24)]
    size = len(moments)

    def repeated(values: list[Any]) -> list[Any]:
        return [values[place % len(values)] for place in range(size)]

    rows = pa.table(
        {
            "day": repeated(days),
            "at": moments,
            "local": moments,
            "text": [None if day is None else str(day) for day in repeated(days)],
            "region": repeated(["eu", "US", "o'brien", None, "us", "asia", "EU"]),
            "n": repeated([1, 2, 3, None]),
            "code": repeated(["eu", "us", None]),
            "ok": repeated([True, None]),
            "x": [1.0] * size,
        },
        schema=SCHEMA.set(SCHEMA.get_field_index("code"), pa.field("code", pa.string())),
    )
    code = SCHEMA.get_field_index("code")
    rows = rows.set_column(code, "code", rows.column("code").cast(COLUMNS["code"]))
    keys = list(definition.get_partition_keys())[1:] if kind != "truth" else ["true", "false"]
    arguments: dict[str, Any] = {"definition": definition, "partition_expr": expr, "asset": "log/events"}
    tally = RowTally(
        RowScope(
            within=rows_of(partition_filter(keys, SCHEMA, **arguments)),
            groups=partition_groups(keys, SCHEMA, **arguments),
        )
    )
    for batch in rows.to_batches(max_chunksize=7):
        tally.add(batch)
    filters = {key: partition_filter([key], SCHEMA, **arguments) for key in keys}
    assert {key: size - of.outside(rows) for key, of in filters.items()} == tally.counts()
    outside = partition_filter(keys, SCHEMA, **arguments).outside(rows)
    assert (size, outside) == (tally.rows, tally.outside)
    assert bool(outside) == bool(tally.example)


class CountedKeys(dg.StaticPartitionsDefinition):
    """Partitions that count how often their keys are listed."""

    def get_partition_keys(self, *args: Any, **kwargs: Any) -> Sequence[str]:
        """Return the keys."""
        listed.append(1)
        return super().get_partition_keys(*args, **kwargs)


listed: list[int] = []


def test_the_keys_of_many_partitions_are_listed_a_few_times() -> None:
    """A write of many partitions looks at all partitions as often as a write of a few."""
    counts = []
    for count in (3, 300):
        definition = CountedKeys([f"p{number}" for number in range(count)])
        listed.clear()
        partition_groups(
            definition.get_partition_keys(), SCHEMA, definition=definition, partition_expr="text", asset="log/events"
        )
        counts.append(len(listed))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("stream", [False, True], ids=["table", "stream"])
@pytest.mark.parametrize("mode", ["replace", "append"])
def test_rows_of_another_partition_are_refused(lake: LanceResource, mode: str, *, stream: bool) -> None:
    """Rows of another partition, which would be duplicated later, are refused, and nothing is written."""

    @dg.asset(key=EVENTS, partitions_def=DAYS, metadata={"lance/partition_expr": "day", "lance/write_mode": mode})
    def events() -> Any:
        rows = pa.table({"day": [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]})
        return rows.to_reader(max_chunksize=1) if stream else rows

    with pytest.raises(InvalidInputError) as caught:
        run(lake, events, partition_key="2024-01-01")
    assert "returned 1 row that is not in the partitions it was asked for (2024-01-01)" in str(caught.value)
    assert lake.table(EVENTS).count_rows("dev") == 0


@pytest.mark.parametrize("mode", [None, "append", "upsert", "overwrite"])
def test_a_run_without_a_partition_writes_nothing(lake: LanceResource, mode: str | None) -> None:
    """Dagster starts a run of a partitioned asset without a partition, which would replace rows of all partitions."""
    metadata = {"lance/partition_expr": "day", "lance/keys": ["day"]} if mode == "upsert" else {}
    metadata |= {"lance/partition_expr": "day"} | ({} if mode is None else {"lance/write_mode": mode})

    @dg.asset(key=EVENTS, partitions_def=DAYS, metadata=metadata)
    def events(context: dg.AssetExecutionContext) -> Any:
        if context.has_partition_key and mode == "overwrite":
            context.add_output_metadata({"lance/write_mode": "overwrite"})
        return pa.table({"day": [dt.date(2024, 1, 1)]})

    run(lake, events, partition_key="2024-01-01")
    before = lake.table(EVENTS).head("dev")
    with pytest.raises(InvalidInputError) as caught:
        run(lake, events)
    assert "log/events is partitioned, and this run has no partition" in str(caught.value)
    assert before == lake.table(EVENTS).head("dev")


def test_an_append_without_a_partition_column_is_refused(lake: LanceResource) -> None:
    """An append without a partition column is refused, as its rows cannot be assigned to partitions."""

    @dg.asset(key=EVENTS, partitions_def=DAYS, metadata={"lance/write_mode": "append"})
    def events() -> Any:
        return pa.table({"day": [dt.date(2024, 1, 2)]})

    with pytest.raises(InvalidInputError, match="which column"):
        run(lake, events, partition_key="2024-01-01")
    assert not LanceTable.exists(lake.uri_of(EVENTS))


@pytest.mark.parametrize("mode, base", [("replace", None), ("append", "cold")])
def test_rows_of_another_partition_in_staged_files_are_refused(
    lake: LanceResource, tmp_path: Path, mode: str, base: str | None
) -> None:
    """Rows of files that the asset wrote itself, also under a base path, are checked by their partition column."""
    columns: dict[str, pa.DataType] = {"day": pa.string(), "n": pa.int64()}
    table = LanceTable.create(lake.uri_of(EVENTS), pa.schema(columns))
    table.maintenance.add_base("cold", tmp_path / "cold")
    days: list[str | None] = ["2024-01-01", "2024-01-02", None]

    @dg.asset(key=EVENTS, partitions_def=DAYS, metadata={"lance/partition_expr": "day", "lance/write_mode": mode})
    def events() -> StagedFiles:
        return table.stage(pa.table({"day": days, "n": range(len(days))}), base=base)

    with pytest.raises(InvalidInputError, match="one with day = '2024-01-02'"):
        run(lake, events, partition_key="2024-01-01")
    assert table.count_rows("dev") == 0
    del days[1:]
    run(lake, events, partition_key="2024-01-01")
    assert table.count_rows("dev") == 1


def rows_for(context: dg.AssetExecutionContext) -> pa.Table:
    """One row per partition key, with the id of this run."""
    keys = context.partition_keys
    days = [dt.date.fromisoformat(key.split("|")[0][:10]) for key in keys]
    regions = [key.split("|")[-1] for key in keys]
    return pa.table({"day": days, "region": regions, "run": [context.run.run_id] * len(keys)})


def run(lake: LanceResource, *assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
    """Materialize some assets."""
    resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake)}
    # There is one branch for all runs, so that each test can see the rows of several runs.
    tags = {"lance/branch": "dev", **options.pop("tags", {})}
    return dg.materialize(list(assets), resources=resources, tags=tags, **options)


def found(lake: LanceResource) -> dict[tuple[str, str], str]:
    """Which run wrote the row of each day and region."""
    rows = lake.table(EVENTS).read("dev").to_pylist()
    assert len(rows) == len({(row["day"], row["region"]) for row in rows})
    return {(row["day"].isoformat(), row["region"]): row["run"] for row in rows}


def partitioned(definition: Any, expr: object, **options: Any) -> Any:
    """The events, partitioned."""
    make = dg.asset(key=EVENTS, partitions_def=definition, metadata={"lance/partition_expr": expr}, **options)
    return make(rows_for)


def test_days_replace_only_their_own_rows(lake: LanceResource) -> None:
    """Writing a day again leaves the other days as they were."""
    events = partitioned(DAYS, "day")
    first = run(lake, events, partition_key="2024-01-01")
    second = run(lake, events, partition_key="2024-01-02")
    third = run(lake, events, partition_key="2024-01-01")
    assert first.success
    assert found(lake) == {
        ("2024-01-01", "2024-01-01"): third.run_id,
        ("2024-01-02", "2024-01-02"): second.run_id,
    }


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_range_of_days_in_one_run(lake: LanceResource) -> None:
    """A single-run backfill is one commit for all of its days."""
    events = partitioned(DAYS, "day", backfill_policy=dg.BackfillPolicy.single_run())
    run(lake, events, partition_key="2024-01-03")
    tags = {"dagster/asset_partition_range_start": "2024-01-02", "dagster/asset_partition_range_end": "2024-01-04"}
    result = run(lake, events, tags=tags)
    assert [day for day, _ in sorted(found(lake))] == ["2024-01-02", "2024-01-03", "2024-01-04"]
    assert set(found(lake).values()) == {result.run_id}
    metadata = result.asset_materializations_for_node("log__events")[0].metadata
    assert metadata["dagster/partition_row_count"].value == 1
    assert metadata["lance/rows_written"].value == 3


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_a_publisher_has_the_backfill_policy_of_its_candidates() -> None:
    """Dagster puts assets into the same run of a backfill only where their policies are equal."""
    single, several = dg.BackfillPolicy.single_run(), dg.BackfillPolicy.multi_run(2)
    one, other = partitioned(DAYS, "day", backfill_policy=single), partitioned(DAYS, "day", backfill_policy=several)
    assert single == build_publisher([one], partitions_def=DAYS).backfill_policy
    assert build_publisher([one]).backfill_policy is None
    other = other.with_attributes(asset_key_replacements={EVENTS: dg.AssetKey("other")})
    assert build_publisher([one, other], partitions_def=DAYS).backfill_policy is None
    assert several == build_publisher(["log/events"], partitions_def=DAYS, backfill_policy=several).backfill_policy
    with pytest.raises(InvalidInputError):
        build_publisher([one], backfill_policy=single)


@pytest.mark.parametrize("wrong", [False, True])
def test_partitions_by_an_expression(lake: LanceResource, *, wrong: bool) -> None:
    """An SQL expression selects what is replaced, what is read, and which rows are refused."""
    seen: list[list[str]] = []

    @dg.asset(key=EVENTS, partitions_def=DAYS, metadata={"lance/partition_expr": "date_trunc('day', at)"})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        start = dt.datetime.fromisoformat(context.partition_key)
        hours = [start + dt.timedelta(hours=hour) for hour in ((1, 25) if wrong else (1, 23))]
        return pa.table({"at": pa.array(hours, pa.timestamp("us")), "run": [context.run.run_id] * 2})

    @dg.asset(partitions_def=DAYS, ins={"events": dg.AssetIn(EVENTS)})
    def reader(events: pa.Table) -> None:
        seen.append(sorted(f"{row['at']:%d %H}" for row in events.to_pylist()))

    if wrong:
        with pytest.raises(InvalidInputError, match="not in the partitions"):
            run(lake, events, partition_key="2024-01-01")
        return
    for day in ("2024-01-01", "2024-01-02", "2024-01-01"):
        last = run(lake, events, reader, partition_key=day)
    assert [["01 01", "01 23"], ["02 01", "02 23"], ["01 01", "01 23"]] == seen
    rows = lake.table(EVENTS).read("dev").to_pylist()
    assert len(rows) == 4
    assert {last.run_id} == {row["run"] for row in rows if row["at"].day == 1}


def test_hour_that_clocks_repeat(lake: LanceResource) -> None:
    """In a column without a time zone a repeated hour is in the first of its two partitions, and in both together."""
    hours = dg.HourlyPartitionsDefinition("2024-10-27-00:00", end_date="2024-10-27-06:00", timezone="Europe/Berlin")

    @dg.asset(key=EVENTS, partitions_def=hours, metadata={"lance/partition_expr": "at"})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        local = f"{context.partition_key[:10]}T{context.partition_key[11:16]}:00"
        return pa.table({"at": pa.array([local]).cast(pa.timestamp("us"))})

    for key in ("2024-10-27-01:00", "2024-10-27-02:00", "2024-10-27-03:00"):
        assert run(lake, events, partition_key=key).success
    with pytest.raises(InvalidInputError, match="time zone"):
        run(lake, events, partition_key="2024-10-27-02:00+0100")
    assert [1, 2, 3] == sorted(row["at"].hour for row in lake.table(EVENTS).read("dev").to_pylist())


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+02:00", "America/New_York"])
def test_a_window_selects_instants_of_a_column_in_any_zone(lake: LanceResource, zone: str) -> None:
    """A run replaces the rows of its day, an input reads them, and a check looks at them, whatever zone shows them."""
    days = dg.DailyPartitionsDefinition("2024-10-26", end_date="2024-10-29", timezone="Europe/Berlin")
    seen: list[int] = []

    @dg.asset(key=EVENTS, partitions_def=days, metadata={"lance/partition_expr": "at"})
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        window = context.partition_time_window
        first, last = int(window.start.timestamp()), int(window.end.timestamp())
        at = pa.array(range(first * 1_000_000, last * 1_000_000, 3_600_000_000), pa.timestamp("us", zone))
        return pa.table({"at": at})

    @dg.asset(partitions_def=days, ins={"events": dg.AssetIn(EVENTS)})
    def read(events: pa.Table) -> None:
        seen.append(events.num_rows)

    checks = build_table_checks(events, [RowCount(minimum=23, maximum=25)])
    for key in ("2024-10-26", "2024-10-27", "2024-10-28", "2024-10-27"):
        assert run(lake, events, read, *checks, partition_key=key).success
    # The clocks go back on the second day, which has 25 hours.
    assert [24, 25, 24, 25] == seen
    hours = lake.table(EVENTS).read("dev").column("at").cast(pa.int64()).to_pylist()
    assert 24 + 25 + 24 == len(hours) == len(set(hours))


def test_two_dimensions(lake: LanceResource) -> None:
    """A cell of day and region is replaced alone."""
    events = partitioned(BOTH, {"day": "day", "region": "region"})
    first = run(lake, events, partition_key=both("2024-01-01", "eu"))
    second = run(lake, events, partition_key=both("2024-01-01", "us"))
    third = run(lake, events, partition_key=both("2024-01-01", "us"))
    assert found(lake) == {("2024-01-01", "eu"): first.run_id, ("2024-01-01", "us"): third.run_id}
    assert second.success


def test_dynamic_partitions(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Keys that are made at run time are plain values."""
    definition = dg.DynamicPartitionsDefinition(name="cities")
    instance.add_dynamic_partitions("cities", ["oslo", "rome"])

    @dg.asset(key=EVENTS, partitions_def=definition, metadata={"lance/partition_expr": "region"})
    def cities(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"region": [context.partition_key], "run": [context.run.run_id]})

    for key in ("oslo", "rome", "oslo"):
        assert run(lake, cities, partition_key=key, instance=instance).success
    assert lake.table(EVENTS).count_rows("dev") == 2


def test_a_range_of_dynamic_partitions_reads_its_rows(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A run of several dynamic partitions reads the rows of all of them from an upstream without partitions."""
    instance.add_dynamic_partitions("cities", ["oslo", "lima", "rome"])
    seen: list[str] = []

    @dg.asset(key=EVENTS)
    def events() -> pa.Table:
        return pa.table({"region": ["oslo", "lima", "rome"]})

    @dg.asset(
        partitions_def=dg.DynamicPartitionsDefinition(name="cities"),
        ins={"events": dg.AssetIn(EVENTS, metadata={"lance/partition_expr": "region"})},
    )
    def read(events: pa.Table) -> None:
        seen.extend(map(str, events["region"].to_pylist()))

    assert run(lake, events, instance=instance).success
    tags = {"dagster/asset_partition_range_start": "oslo", "dagster/asset_partition_range_end": "lima"}
    assert run(lake, events, read, selection=[read], tags=tags, instance=instance).success
    assert ["oslo", "lima"] == seen


def test_inputs_see_their_partitions(lake: LanceResource) -> None:
    """A day reads its day, a mapping with gaps reads only its days in one scan, and an asset without partitions all."""
    events = partitioned(DAYS, "day")
    for day in ("2024-01-01", "2024-01-02", "2024-01-05"):
        run(lake, events, partition_key=day)
    seen: dict[str, list[str]] = {}

    def reader(name: str, mapping: dg.PartitionMapping | None, definition: Any) -> dg.AssetsDefinition:
        @dg.asset(
            name=name,
            partitions_def=definition,
            ins={"events": dg.AssetIn(EVENTS, partition_mapping=mapping)},
        )
        def read(events: pa.Table) -> None:
            seen[name] = sorted(row["day"].isoformat() for row in events.to_pylist())

        return read

    upstream = dg.AssetSpec(EVENTS, partitions_def=DAYS, metadata={"lance/partition_expr": "day"})
    gaps = dg.SpecificPartitionsPartitionMapping(["2024-01-01", "2024-01-05"])
    run(lake, upstream, reader("same", None, DAYS), partition_key="2024-01-02")
    run(lake, upstream, reader("gaps", gaps, None))
    run(lake, upstream, reader("all", None, None))
    assert seen == {
        "same": ["2024-01-02"],
        "gaps": ["2024-01-01", "2024-01-05"],
        "all": ["2024-01-01", "2024-01-02", "2024-01-05"],
    }
