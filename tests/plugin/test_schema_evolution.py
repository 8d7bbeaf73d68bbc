# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import logging
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import permutations
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceIOManager,
    LanceResource,
    LanceTable,
    PinnedTable,
    RowCount,
    SchemaMismatchError,
    build_publisher,
    build_table_checks,
    table_check,
)

ITEMS = dg.AssetKey(["shop", "items"])


def run(lake: LanceResource, value: object, fields: Any = None, **settings: object) -> dg.ExecuteInProcessResult:
    """Materialize a value on one branch for all runs, by default as an append."""
    metadata = {"lance/write_mode": "append", **{f"lance/{key}": given for key, given in settings.items()}}

    @dg.asset(key=ITEMS, metadata=metadata)
    def items() -> Any:
        return value

    manager = LanceIOManager(lance=lake, **(fields or {}))
    return dg.materialize([items], resources={"io_manager": manager}, tags={"lance/branch": "dev"})


def started(lake: LanceResource, table: pa.Table) -> LanceTable:
    """Write the first rows."""
    run(lake, table)
    return lake.table(ITEMS)


def ints(kind: pa.DataType, *values: int | None) -> pa.Table:
    """A column of numbers."""
    return pa.table({"id": pa.array(values, kind)})


def test_other_columns_are_refused_unless_asked_for(lake: LanceResource) -> None:
    """The error names the table, each column, both types and the setting that would accept the output."""
    table = started(lake, pa.table({"id": pa.array([1], pa.int32()), "name": ["a"]}))
    with pytest.raises(SchemaMismatchError) as caught:
        run(lake, pa.table({"id": [2], "name": ["b"], "extra": [1.5]}))
    assert str(caught.value) == (
        f"shop/items, table {table.uri}: column 'id' is int64 in the output and int32 in the table; "
        "column 'extra' is double and not in the table; lance/schema_evolution is 'refuse'; with 'add_columns' the "
        "output would be accepted"
    )
    with pytest.raises(SchemaMismatchError, match="is missing in the output"):
        run(lake, ints(pa.int32(), 2))
    with pytest.raises(SchemaMismatchError, match=r"pa\.string\(\), branch='dev'\)"):
        run(lake, pa.table({"id": ["x"], "name": ["b"]}), schema_evolution="widen")
    assert table.count_rows("dev") == 1


@pytest.mark.parametrize("narrow,wide", [(pa.int32(), pa.int64()), (pa.float32(), pa.float64())], ids=str)
def test_a_narrower_number_is_to_be_cast(lake: LanceResource, narrow: pa.DataType, wide: pa.DataType) -> None:
    """The first remedy for numbers that the table's type holds is the cast, as for an append to the table itself."""
    table = started(lake, pa.table({"id": pa.array([1], wide)}))
    rows = pa.table({"id": pa.array([2], narrow)})
    with pytest.raises(SchemaMismatchError) as caught:
        run(lake, rows)
    remedy = f"'refuse'; cast 'id' in the asset to the table's {wide}, which holds every {narrow}; with 'add_columns' "
    assert remedy in str(caught.value)
    with pytest.raises(SchemaMismatchError, match=f"column 'id' is {narrow}, the table holds {wide}"):
        table.append(rows, branch="dev")
    run(lake, rows.cast(pa.schema({"id": wide})), write_mode="append")
    assert [1, 2] == table.read("dev")["id"].to_pylist()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_advice_keeps_older_rows(lake: LanceResource, mode: str) -> None:
    """A type that no policy accepts is to be cast; only an overwrite is told of 'replace', and that rows are lost."""
    table = started(lake, pa.table({"amount": pa.array([Decimal("1.25")], pa.decimal128(3, 2))}))
    later = pa.table({"amount": [1.5]})
    with pytest.raises(SchemaMismatchError) as caught:
        run(lake, later, write_mode=mode)
    replaced = (
        "; with 'replace' the table gets the columns of the output, and all older rows are dropped with their columns"
    )
    assert str(caught.value).partition("lance/schema_evolution")[2] == (
        " is 'refuse'; cast 'amount' in the asset to the table's decimal128(3, 2), or change the table by "
        f"table.columns.cast('amount', pa.float64(), branch='dev'){replaced if mode == 'overwrite' else ''}"
    )
    table.columns.cast("amount", pa.float64(), branch="dev")
    run(lake, later, write_mode="append")
    assert [1.25, 1.5] == table.read("dev")["amount"].to_pylist()


def test_advice_for_a_branch_of_one_run_is_about_main(lake: LanceResource) -> None:
    """The next run forks from `main`, so that is where the column has to be changed."""

    def load(value: str) -> None:
        @dg.asset(key=ITEMS, metadata={"lance/write_mode": "append"})
        def items() -> Any:
            return pa.table({"amount": pa.array([Decimal(value)], pa.decimal128(len(value) - 1, 2))})

        dg.materialize([items], resources={"io_manager": LanceIOManager(lance=lake)})

    load("1.25")
    table = lake.table(ITEMS)
    (name,) = [name for name in table.branches.list() if name != "main"]
    table.merge(name)
    with pytest.raises(SchemaMismatchError, match=r"with 'widen' the output would be accepted$"):
        load("123.25")
    table.columns.cast("amount", pa.decimal128(5, 2))
    load("123.25")


@pytest.mark.parametrize("stream", [False, True])
def test_decimals_are_widened_without_loss(lake: LanceResource, *, stream: bool) -> None:
    """A decimal with more digits on either side widens the column; one with fewer digits on a side does not."""

    def amounts(value: str, kind: pa.DataType) -> Any:
        rows = pa.table({"amount": pa.array([Decimal(value)], kind)})
        return rows.to_reader() if stream else rows

    table = started(lake, pa.table({"amount": pa.array([Decimal("1.25")], pa.decimal128(3, 2))}))
    run(lake, amounts("123.255", pa.decimal128(6, 3)), schema_evolution="widen")
    assert pa.decimal128(6, 3) == table.schema("dev").field("amount").type
    run(lake, amounts("2.5", pa.decimal128(2, 1)), schema_evolution="widen")
    assert [Decimal("1.250"), Decimal("123.255"), Decimal("2.500")] == table.read("dev")["amount"].to_pylist()
    # Four digits after the point, and two before it instead of three.
    with pytest.raises(SchemaMismatchError):
        run(lake, amounts("1.2345", pa.decimal128(6, 4)), schema_evolution="widen")
    assert pa.decimal128(6, 3) == table.schema("dev").field("amount").type


def test_a_column_that_may_be_renamed_is_named(lake: LanceResource) -> None:
    """One column that is missing and one new column of its type may be a rename, which keeps the values."""
    table = started(lake, pa.table({"id": [1], "name": ["a"]}))
    renamed = pa.table({"id": [2], "title": ["b"]})
    with pytest.raises(SchemaMismatchError) as caught:
        run(lake, renamed)
    assert (
        "; if 'title' is 'name' under another name, call table.columns.rename('name', 'title', branch='dev') first, or "
        "return it as 'name': as a new column it would be null in all older rows"
    ) in str(caught.value)
    table.columns.rename("name", "title", branch="dev")
    run(lake, renamed)
    assert ["a", "b"] == table.read("dev")["title"].to_pylist()
    with pytest.raises(SchemaMismatchError) as caught:
        run(lake, pa.table({"id": [2], "price": [1.5]}))
    assert "rename" not in str(caught.value)


def test_order_of_columns_does_not_matter(lake: LanceResource) -> None:
    """Columns are matched by name under every policy."""
    table = started(lake, pa.table({"id": [1], "name": ["a"]}))
    run(lake, pa.table({"name": ["b"], "id": [2]}))
    assert table.read("dev").to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


@pytest.mark.parametrize("stream", [False, True])
def test_add_columns_adds_and_fills(lake: LanceResource, *, stream: bool) -> None:
    """New columns are null in old rows; columns that the output lacks are null in new rows."""
    table = started(lake, pa.table({"id": [1], "name": ["a"]}))
    more = pa.table({"price": [1.5], "id": [2]})
    run(lake, more.to_reader() if stream else more, schema_evolution="add_columns")
    assert table.read("dev").to_pylist() == [
        {"id": 1, "name": "a", "price": None},
        {"id": 2, "name": None, "price": 1.5},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_values_that_fit_are_cast(lake: LanceResource, *, stream: bool) -> None:
    """Numbers of another type are stored in the table's type when each stays the same number."""
    table = started(lake, ints(pa.int32(), 1))
    fitting = ints(pa.int64(), 2)
    run(lake, fitting.to_reader() if stream else fitting, schema_evolution="add_columns")
    assert ints(pa.int32(), 1, 2) == table.read("dev")
    huge = ints(pa.int64(), 2**40)
    with pytest.raises(SchemaMismatchError, match="a value does not"):
        run(lake, huge.to_reader() if stream else huge, schema_evolution="add_columns")
    assert table.count_rows("dev") == 2


@pytest.mark.parametrize(
    "old,new,wide",
    [
        (ints(pa.int32(), 1), ints(pa.int64(), 2**40), pa.int64()),
        (ints(pa.int64(), 1), pa.table({"id": [1.5]}), pa.float64()),
        (pa.table({"id": pa.array([0.5], pa.float32())}), pa.table({"id": [0.1]}), pa.float64()),
        (ints(pa.uint8(), 1), ints(pa.int16(), -1), pa.int16()),
    ],
)
def test_widen_gives_the_column_the_wider_type(
    lake: LanceResource, old: pa.Table, new: pa.Table, wide: pa.DataType
) -> None:
    """No value changes, neither of the old rows nor of the new ones."""
    table = started(lake, old)
    run(lake, new, schema_evolution="widen")
    assert wide == table.schema("dev").field("id").type
    assert old["id"].to_pylist() + new["id"].to_pylist() == table.read("dev")["id"].to_pylist()


TEXTS: dict[str, Callable[[list[str | None]], Any]] = {
    "categories": lambda texts: pd.DataFrame({"v": pd.Categorical(texts)}),
    "text": lambda texts: pa.table({"v": texts}),
    "stream": lambda texts: pa.table({"v": texts}).to_reader(),
}
MANY: list[str | None] = [str(number) for number in range(200)]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["add_columns", "widen"])
@pytest.mark.parametrize("kinds", list(permutations(TEXTS)), ids=" ".join)
def test_categories_and_text_in_turn(lake: LanceResource, kinds: Sequence[str], policy: str) -> None:
    """Both hold the same values."""
    first, second, third = (TEXTS[kind]([kind, None]) for kind in kinds)
    table = started(lake, first)
    for rows in (second, third, TEXTS[kinds[0]](["last"])):
        run(lake, rows, schema_evolution=policy)
    assert [kinds[0], None, kinds[1], None, kinds[2], None, "last"] == table.read("dev")["v"].to_pylist()
    assert table.maintenance.verify(deep=True).problems == ()


@pytest.mark.parametrize("kind", ["categories", "text"])
def test_more_categories_than_the_table_can_number(lake: LanceResource, kind: str) -> None:
    """The categories of pandas get wider indices with their number, and so does the column where it may be widened."""
    table = started(lake, TEXTS["categories"](["a"]))
    with pytest.raises(SchemaMismatchError, match="more different values"):
        run(lake, TEXTS[kind](MANY), schema_evolution="add_columns")
    run(lake, TEXTS[kind](MANY), schema_evolution="widen")
    run(lake, TEXTS["categories"](["a"]), schema_evolution="widen")
    assert ["a", *MANY, "a"] == table.read("dev")["v"].to_pylist()


def nested(*values: Any, kind: pa.DataType | None = None) -> pa.Table:
    """A column `v` of nested values."""
    return pa.table({"v": pa.array(list(values)) if kind is None else pa.array(list(values), kind)})


SMALL = pa.struct([("n", pa.int32())])


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "policy,old,new",
    [
        ("refuse", nested([]), nested(["a"])),
        ("refuse", nested({"n": None}), nested({"n": 1})),
        ("refuse", nested({"n": [[]]}), nested({"n": [[1.5]]})),
        ("add_columns", nested({"n": 1}), nested({"n": 2, "text": "b"})),
        ("add_columns", nested([{"n": 1}], None, []), nested([{"text": "b"}])),
        ("add_columns", nested({"n": 1, "text": "a"}), nested({"text": "b"})),
        ("add_columns", nested({"n": 1}, kind=SMALL), nested({"n": 2})),
        ("add_columns", nested({"n": [{"a": 1}]}), nested({"n": [{"b": [1]}], "c": {"d": 1}})),
        ("widen", nested([1]), nested([1.5])),
        ("widen", nested({"n": 1}, kind=SMALL), nested({"n": 2**40, "text": "b"})),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.schema.field("v").type),
)
def test_nested_values_evolve_as_columns_do(
    lake: LanceResource, policy: str, old: pa.Table, new: pa.Table, *, stream: bool
) -> None:
    """Every value stays as it was; what it lacks is null."""
    table = started(lake, old)
    run(lake, new.to_reader() if stream else new, schema_evolution=policy)
    kind = table.schema("dev").field("v").type
    expected = [*old["v"].to_pylist(), *new["v"].to_pylist()]
    assert pa.array(expected, kind).to_pylist() == table.read("dev")["v"].to_pylist()
    # Nothing was lost: each value is there as it was given, apart from nulls.
    assert [_without_nulls(value) for value in expected] == list(
        map(_without_nulls, table.read("dev")["v"].to_pylist())
    )
    assert table.maintenance.verify(deep=True).problems == ()


def _without_nulls(value: object) -> object:
    """A nested value without the fields that are null."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "old,new,policy,call",
    [
        (nested({"n": 1}), nested({"n": 1, "text": "b"}), "refuse", "with 'add_columns' the output would be accepted"),
        (nested([1]), nested([1.5]), "add_columns", "with 'widen' the output would be accepted"),
        (
            nested([1, 2], kind=pa.list_(pa.int64(), 2)),
            nested([1, 2, 3], kind=pa.list_(pa.int64(), 3)),
            "widen",
            "change the table by table.columns.cast('v', pa.list_(pa.int64()), branch='dev')",
        ),
        (
            nested({"n": 1}),
            nested({"n": "a"}),
            "widen",
            "change the table by table.columns.cast('v', pa.struct([('n', pa.string())]), branch='dev')",
        ),
        (
            nested({"n": 1}),
            nested({"n": "a", "m": 1}),
            "widen",
            "cast 'v' in the asset to the table's struct<n: int64>",
        ),
    ],
    ids=["a field", "a number", "a length", "a type", "a type and a field"],
)
def test_advice_for_nested_values_works(
    lake: LanceResource, old: pa.Table, new: pa.Table, policy: str, call: str
) -> None:
    """The error names a policy or a call by which the output is accepted afterwards, where there is one."""
    table = started(lake, old)
    with pytest.raises(SchemaMismatchError) as caught:
        run(lake, new, schema_evolution=policy)
    assert str(caught.value).endswith(call)
    if "with '" in call:
        policy = call.split("'")[1]
    elif "table.columns" in call:
        kind = pa.list_(pa.int64()) if "list_" in call else new.schema.field("v").type
        table.columns.cast("v", kind, branch="dev")
    else:
        return
    run(lake, new, schema_evolution=policy)
    assert table.count_rows("dev") == 2


def test_values_decide_before_a_column_is_widened(lake: LanceResource) -> None:
    """A column is widened only if its values need it: pandas has 64 bits for every integer."""
    table = started(lake, ints(pa.int32(), 1))
    run(lake, pd.DataFrame({"id": [2]}), schema_evolution="widen")
    assert ints(pa.int32(), 1, 2) == table.read("dev")
    run(lake, pd.DataFrame({"id": [3.0]}), schema_evolution="widen")
    assert ints(pa.int32(), 1, 2, 3) == table.read("dev")


def test_integers_that_a_double_cannot_hold_are_refused(lake: LanceResource) -> None:
    """A column is not widened to a double that would round one of the table's values."""
    table = started(lake, ints(pa.int64(), 2**53 + 1))
    with pytest.raises(SchemaMismatchError):
        run(lake, pa.table({"id": [0.5]}), schema_evolution="widen")
    assert ints(pa.int64(), 2**53 + 1) == table.read("dev")


def test_column_without_values_takes_the_first_type(lake: LanceResource) -> None:
    """A column of type null takes the first type that it gets, since it has no values to lose."""
    table = started(lake, pa.table({"id": [1], "note": pa.nulls(1)}))
    run(lake, pa.table({"id": [2], "note": ["x"]}))
    assert table.read("dev")["note"].to_pylist() == [None, "x"]
    assert pa.string() == table.schema("dev").field("note").type


def test_overwrite_keeps_the_columns_unless_asked_to_replace_them(lake: LanceResource) -> None:
    """An overwrite keeps the columns of the table, which its readers need, unless it may replace them."""
    table = started(lake, ints(pa.int64(), 1))
    other = pa.table({"key": ["x"]})
    with pytest.raises(SchemaMismatchError, match="lance/schema_evolution is 'refuse'"):
        run(lake, other, write_mode="overwrite")
    run(lake, other, write_mode="overwrite", schema_evolution="replace")
    assert other == table.read("dev")


def test_policy_of_the_manager_is_the_default(lake: LanceResource) -> None:
    """The policy of the IO manager is the default, and the asset's metadata takes precedence."""
    table = started(lake, ints(pa.int64(), 1))
    more = pa.table({"id": [2], "name": ["b"]})
    run(lake, more, {"schema_evolution": "add_columns"})
    assert ["id", "name"] == table.schema("dev").names
    with pytest.raises(SchemaMismatchError):
        run(lake, more.append_column("x", [[1]]), {"schema_evolution": "add_columns"}, schema_evolution="refuse")
    with pytest.raises(InvalidInputError):
        LanceIOManager(lance=lake, schema_evolution="any")


def test_table_of_a_run_that_failed_gets_the_columns_of_the_next(lake: LanceResource) -> None:
    """A table that was created but never written, and so has no readers, gets the columns of the next run."""
    manager = LanceIOManager(lance=lake)

    @dg.asset(key=ITEMS)
    def items() -> Any:
        def fails() -> Any:
            yield pa.record_batch({"id": [1]})
            raise ConnectionError("the source is gone")

        return pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), fails())

    failed = dg.materialize([items], resources={"io_manager": manager}, raise_on_error=False)
    assert not failed.success
    run(lake, pa.table({"key": ["x"]}))
    assert [{"key": "x"}] == lake.table(ITEMS).read("dev").to_pylist()


def test_refused_output_leaves_no_commit(lake: LanceResource) -> None:
    """A refused output leaves no commit, because columns are edited only after every row was accepted."""
    regions = dg.StaticPartitionsDefinition(["a", "b"])
    settings = {"lance/partition_expr": "region", "lance/schema_evolution": "add_columns"}
    values: list[dict[str, Any]] = [{"region": "a"}, {"region": "a", "n": 1}, {"region": "b", "n": 2}]

    @dg.asset(key=ITEMS, partitions_def=regions, metadata=settings)
    def items() -> Any:
        return pa.Table.from_pylist(values)

    resources, tags = {"io_manager": LanceIOManager(lance=lake)}, {"lance/branch": "dev"}
    del values[1:]
    dg.materialize([items], resources=resources, tags=tags, partition_key="a")
    before = lake.table(ITEMS).head("dev")
    values[:] = [{"region": "a", "n": 1}, {"region": "b", "n": 2}]
    with pytest.raises(InvalidInputError, match="not in the partitions"):
        dg.materialize([items], resources=resources, tags=tags, partition_key="a")
    assert before == lake.table(ITEMS).head("dev")


@pytest.mark.slow
def test_a_partition_that_adds_a_column_is_not_the_whole_table(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """It supersedes no other partition that waits, and its rows are counted by themselves."""
    days = {"mon": (1, []), "tue": (1, []), "wed": (1, ["tax"]), "thu": (0, ["note"])}
    settings = {"lance/partition_expr": "day", "lance/schema_evolution": "add_columns"}

    @dg.asset(key=ITEMS, partitions_def=dg.StaticPartitionsDefinition(list(days)), metadata=settings)
    def items(context: dg.AssetExecutionContext) -> pa.Table:
        rows, added = days[context.partition_key]
        columns = {"day": pa.array([context.partition_key] * rows, pa.string())}
        return pa.table({**columns, **{name: pa.array([5] * rows, pa.int64()) for name in added}})

    candidate = [items, *build_table_checks(items, [RowCount(minimum=1)])]
    publisher = build_publisher([items])

    def run(*nodes: Any, **options: Any) -> bool:
        resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake)}
        return dg.materialize(nodes, instance=instance, resources=resources, raise_on_error=False, **options).success

    assert run(*candidate, publisher, partition_key="mon")
    assert run(*candidate, partition_key="tue")
    assert run(*candidate, partition_key="wed")
    assert not run(*candidate, partition_key="thu")
    assert run(*candidate, publisher, selection=list(publisher.keys))
    assert {("mon", None), ("tue", None), ("wed", 5)} == {
        (row["day"], row["tax"]) for row in lake.table(ITEMS).read("production").to_pylist()
    }


def test_the_runs_of_a_first_backfill_have_different_columns(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """With add_columns, runs that all wait to be the first ones in a table are published together."""
    rows = {
        "d1": pa.table({"day": ["d1"], "id": [1], "note": ["a"]}),
        "d2": pa.table({"day": ["d2"], "id": [2]}),
        "d3": pa.table({"day": ["d3"], "id": [3], "price": [1.5]}),
    }

    @dg.asset(
        key=ITEMS,
        partitions_def=dg.StaticPartitionsDefinition(list(rows)),
        metadata={"lance/partition_expr": "day", "lance/schema_evolution": "add_columns"},
    )
    def items(context: dg.AssetExecutionContext) -> pa.Table:
        return rows[context.partition_key]

    publisher = build_publisher([items], unchecked=True)
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    for day in rows:
        assert dg.materialize([items], partition_key=day, tags={"dagster/backfill": "first"}, **options).success
    assert dg.materialize([items, publisher], selection=list(publisher.keys), **options).success
    found = lake.table(ITEMS).read("production").sort_by("id")
    assert {"day", "id", "note", "price"} == set(found.column_names)
    assert (["a", None, None], [None, None, 1.5]) == (found["note"].to_pylist(), found["price"].to_pylist())


def test_a_run_of_a_first_backfill_is_warned_of_other_columns(
    lake: LanceResource, instance: dg.DagsterInstance
) -> None:
    """Only one of the runs can be published, which the second one says already when it writes."""
    rows = {
        "d1": pa.table({"day": ["d1"], "at": pa.array([1], pa.timestamp("ns"))}),
        "d2": pa.table({"day": ["d2"], "at": pa.array([2], pa.timestamp("us"))}),
        "d3": pa.table({"day": ["d3"], "at": ["three"]}),
    }

    @dg.asset(
        key=ITEMS,
        partitions_def=dg.StaticPartitionsDefinition(list(rows)),
        metadata={"lance/partition_expr": "day", "lance/schema_evolution": "widen"},
    )
    def items(context: dg.AssetExecutionContext) -> pa.Table:
        return rows[context.partition_key]

    warnings = {}
    for day in rows:
        options: Any = {"resources": {"io_manager": LanceIOManager(lance=lake)}, "instance": instance}
        done = dg.materialize([items], partition_key=day, tags={"dagster/backfill": "first"}, **options)
        logged = instance.all_logs(done.run_id)
        warnings[day] = [entry.user_message for entry in logged if entry.level == logging.WARNING]
    assert [[], []] == [warnings["d1"], warnings["d2"]]
    (warning,) = warnings["d3"]
    assert "wait with other columns (column 'at' is string in the output and timestamp[ns] in the table)" in warning
    assert "only one of them can be published" in warning


@pytest.mark.parametrize("policy", ["add_columns", "widen"])
def test_a_first_run_that_failed_leaves_no_column(
    lake: LanceResource, instance: dg.DagsterInstance, policy: str
) -> None:
    """The table has the columns of the first run that is published."""
    rows = [pa.table({"id": [1], "oops": [1.5]}), pa.table({"id": [1]})]

    @dg.asset(key=ITEMS, metadata={"lance/write_mode": "append", "lance/schema_evolution": policy})
    def items() -> pa.Table:
        return rows.pop(0)

    @table_check(asset=items, blocking=True)
    def is_right(table: PinnedTable) -> bool:
        return "oops" not in table.schema.names

    publisher = build_publisher([items])
    for is_right_now in (False, True):
        done = dg.materialize(
            [items, is_right, publisher],
            resources={"lance": lake, "io_manager": LanceIOManager(lance=lake)},
            instance=instance,
            raise_on_error=False,
        )
        assert is_right_now == done.success
    assert ["id"] == lake.table(ITEMS).read("production").column_names


NOTES = {"d1": None, "d2": "x", "d3": "y", "d4": None}


def note_of_a_day(context: dg.AssetExecutionContext) -> pa.Table:
    """One row, whose column `note` has no type on some days."""
    return pa.table({"day": [context.partition_key], "note": [NOTES[context.partition_key]]})


@pytest.mark.parametrize("policy", ["refuse", "widen"])
@pytest.mark.parametrize("days", [["d1", "d2"], ["d2", "d1"], ["d1", "d2", "d3", "d4"]], ids=" ".join)
def test_runs_that_wait_give_a_column_its_type_in_any_order(
    lake: LanceResource, instance: dg.DagsterInstance, days: list[str], policy: str
) -> None:
    """A column without a value in the first run has the type of a later one when both are published."""
    partitions = dg.StaticPartitionsDefinition(list(NOTES))
    settings = {"lance/partition_expr": "day", "lance/schema_evolution": policy}
    items = dg.asset(key=ITEMS, partitions_def=partitions, metadata=settings)(note_of_a_day)
    publisher = build_publisher([items], unchecked=True)
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}
    for day in days:
        assert dg.materialize([items], partition_key=day, tags={"dagster/backfill": "first"}, **options).success
    assert dg.materialize([items, publisher], selection=list(publisher.keys), **options).success
    found = lake.table(ITEMS).read("production").to_pylist()
    assert {day: NOTES[day] for day in days} == {row["day"]: row["note"] for row in found}


@pytest.mark.parametrize("outer,inner", [("d1", "d2"), ("d2", "d1"), ("d2", "d3")])
def test_runs_at_once_give_a_column_its_type(
    lake: LanceResource, instance: dg.DagsterInstance, outer: str, inner: str
) -> None:
    """The same where one run starts and ends while the other one writes the first rows of the table."""

    @dg.asset(
        key=ITEMS,
        partitions_def=dg.StaticPartitionsDefinition(list(NOTES)),
        metadata={"lance/partition_expr": "day"},
    )
    def items(context: dg.AssetExecutionContext) -> Any:
        rows = note_of_a_day(context)
        if context.partition_key == inner:
            return rows

        def batches() -> Any:
            assert write(inner)
            yield from rows.to_batches()

        return pa.RecordBatchReader.from_batches(rows.schema, batches())

    publisher = build_publisher([items], unchecked=True)
    options: Any = {"resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)}, "instance": instance}

    def write(day: str) -> bool:
        return dg.materialize([items], partition_key=day, tags={"dagster/backfill": "first"}, **options).success

    assert write(outer)
    assert dg.materialize([items, publisher], selection=list(publisher.keys), **options).success
    found = lake.table(ITEMS).read("production").to_pylist()
    assert {day: NOTES[day] for day in (outer, inner)} == {row["day"]: row["note"] for row in found}
