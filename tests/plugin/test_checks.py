# ruff: noqa: ANN401 - arguments are handed on as they come
import datetime as dt
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest

from lance_dagster import (
    Freshness,
    InRange,
    InvalidInputError,
    IsIn,
    KeysExist,
    LanceIOManager,
    LanceResource,
    LanceTable,
    Matches,
    NoSchemaChange,
    NotNull,
    NullRate,
    PinnedTable,
    RowCount,
    RowCountChange,
    Satisfies,
    SchemaIs,
    Unique,
    build_publisher,
    build_table_checks,
    table_check,
)
from lance_dagster.datafiles import RowScope, RowTally
from lance_dagster.plugin.checks.check_definitions import FunctionCheck
from lance_dagster.plugin.checks.evaluation import check_values, evaluate_check
from lance_dagster.plugin.checks.table_check import Audit, CheckOutcome, TableCheck
from lance_dagster.plugin.io.partitions import partition_filter, partition_groups, rows_of
from tests.plugin.shop import CUSTOMERS, MANY, ORDERS, PRODUCTION_CUSTOMERS, PRODUCTION_ORDERS, Shop, failure, recorded

NAN = float("nan")
INT8 = pa.int8()
ROWS = pa.table(
    {
        "id": [1, 2, 3, 3, None],
        "price": [1.0, 2.5, NAN, -1.0, None],
        "day": [dt.date(2024, 1, day) for day in range(1, 6)],
        "at": [dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in range(1, 6)],
        "name": ["a", "b", "c", "d", "o'e"],
        "customer": [10, 20, 30, 30, None],
    }
)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+02:00", "America/New_York"])
def test_bounds_are_instants_in_any_zone(lake: LanceResource, zone: str) -> None:
    """A bound with a time zone is compared with the instant of a value, not with the figures that its zone shows."""
    noon = dt.datetime(2024, 6, 1, 12, tzinfo=dt.UTC)
    rows = pa.table({"at": pa.array([noon], pa.timestamp("us", zone))})
    LanceTable.create(lake.uri_of(ORDERS), rows.schema).append(rows)
    audit = Audit(candidate=lake.open(None, ORDERS))
    before, after = noon - dt.timedelta(minutes=1), noon + dt.timedelta(minutes=1)
    checks: dict[Any, bool] = {
        InRange("at", minimum=noon, maximum=noon): True,
        InRange("at", maximum=before): False,
        InRange("at", minimum=after): False,
        IsIn("at", (before, noon)): True,
        IsIn("at", (before, after)): False,
    }
    assert list(checks.values()) == [check.evaluate(audit).passed for check in checks]


def test_examples_of_wrong_values_are_few_and_short(lake: LanceResource) -> None:
    """At most five different values are shown, each of its first 80 characters."""
    rows = pa.table({"id": [7, 7, *range(1, 9)], "note": ["x" * 100] * 10})
    LanceTable.create(lake.uri_of(ORDERS), rows.schema).append(rows)
    audit = Audit(candidate=lake.open(None, ORDERS))
    assert InRange("id", maximum=0).evaluate(audit).description.endswith("; such as 7, 1, 2, 3, 4")
    assert Matches("note", "y").evaluate(audit).description.endswith(f"; such as {'x' * 80}…")


@pytest.fixture
def audit(lake: LanceResource) -> Audit:
    """A table with a mistake in every column, and the table of customers that it refers to."""
    LanceTable.create(lake.uri_of(ORDERS), ROWS.schema).append(ROWS)
    customers = pa.table({"id": pa.array([10, 20], pa.int32())})
    LanceTable.create(lake.uri_of(CUSTOMERS), customers.schema).append(customers)
    return Audit(candidate=lake.open(None, ORDERS), others={CUSTOMERS: lake.open(None, CUSTOMERS)})


@pytest.mark.parametrize(
    "check,passed,description",
    [
        (RowCount(minimum=5, maximum=5), True, "5 rows; allowed: 5 to 5"),
        (RowCount(minimum=6), False, "5 rows; allowed: at least 6"),
        (RowCount(maximum=4), False, "5 rows; allowed: 1 to 4"),
        (NotNull("name"), True, "rows without a value in 'name': 0; allowed: none"),
        (NotNull("id"), False, "rows without a value in 'id': 1; allowed: none"),
        (NullRate("id", 0.2), True, "20.00% of the rows have no value in 'id'; allowed: 20.00%"),
        (NullRate("id", 0.1), False, "20.00% of the rows have no value in 'id'; allowed: 10.00%"),
        (InRange("id", minimum=1, maximum=3), True, "values of 'id' outside: 0; allowed: 1 to 3"),
        (InRange("id", maximum=2), False, "values of 'id' outside: 2; allowed: at most 2; such as 3"),
        (InRange("price", minimum=-1), False, "values of 'price' outside: 1; allowed: at least -1; such as nan"),
        (
            InRange("price", minimum=0, maximum=9.5),
            False,
            "values of 'price' outside: 2; allowed: 0 to 9.5; such as nan, -1.0",
        ),
        (
            InRange("day", maximum=dt.date(2024, 1, 4)),
            False,
            "values of 'day' outside: 1; allowed: at most 2024-01-04; such as 2024-01-05",
        ),
        (InRange("name", maximum="o'd"), False, "values of 'name' outside: 1; allowed: at most o'd; such as o'e"),
        (Unique("name"), True, "rows that repeat the name of another: 0; allowed: none"),
        (Unique("id"), False, "rows that repeat the id of another: 1; allowed: none; such as 3"),
        (Unique(("id", "name")), True, "rows that repeat the id, name of another: 0; allowed: none"),
        (
            IsIn("name", ("a", "b", "c", "d", "o'e")),
            True,
            "values of 'name' other than a, b, c, d, o'e: 0; allowed: none",
        ),
        (IsIn("id", (1, 2)), False, "values of 'id' other than 1, 2: 2; allowed: none; such as 3"),
        (
            IsIn("price", (1.0, 2.5, -1.0)),
            False,
            "values of 'price' other than 1.0, 2.5, -1.0: 1; allowed: none; such as nan",
        ),
        (
            Matches("name", r"[a-z]('[a-z]{1})?"),
            True,
            "values of 'name' that do not match [a-z]('[a-z]{1})?: 0; allowed: none",
        ),
        (Matches("name", "[a-z]"), False, "values of 'name' that do not match [a-z]: 1; allowed: none; such as o'e"),
        (Satisfies(predicate="id < 4", name="small"), False, "rows that do not satisfy id < 4: 1; allowed: none"),
        (
            Satisfies(predicate="id < 4", name="small", nulls_pass=True),
            True,
            "rows that do not satisfy id < 4: 0; allowed: none",
        ),
        (
            Satisfies(predicate="price < 9", name="cheap", nulls_pass=True),
            False,
            "rows that do not satisfy price < 9: 1; allowed: none",
        ),
        (RowCountChange(minimum=0.0, maximum=0.0), True, "+0.00% rows against main@2; allowed: +0.00% to +0.00%"),
        (NoSchemaChange(), True, "compared with main@2: no difference"),
        (
            SchemaIs(pa.schema({**{one.name: one.type for one in list(ROWS.schema)[1:]}, "name": INT8, "new": INT8})),
            False,
            "compared with the schema wanted: new int8 is missing; id int64 is new; name is string, not int8",
        ),
        (
            KeysExist("customer", in_table="shop/customers", key="id"),
            False,
            "1 of 3 values of 'customer' are not in 'id' of shop/customers (main@2); allowed: none; such as 30",
        ),
    ],
)
def test_checks_say_what_they_found_and_what_is_allowed(
    audit: Audit, check: TableCheck, *, passed: bool, description: str
) -> None:
    """The outcome of a check says what was found and what is allowed."""
    outcome: CheckOutcome = check.evaluate(audit)
    assert (passed, description) == (outcome.passed, outcome.description)


def test_keys_of_two_integer_types(lake: LanceResource) -> None:
    """Keys of the other table that are out of range for the candidate's type are keys that the candidate lacks."""
    for key, ids in ((ORDERS, pa.array([1, 2], pa.int32())), (CUSTOMERS, pa.array([1, 2, 2**40], pa.int64()))):
        table = LanceTable.create(lake.uri_of(key), pa.schema({"id": ids.type}))
        table.append(pa.table({"id": ids}))
    audit = Audit(candidate=lake.open(None, ORDERS), others={CUSTOMERS: lake.open(None, CUSTOMERS)})
    check = KeysExist("id", in_table="shop/customers", key="id")
    assert check.evaluate(audit).passed
    lake.table(CUSTOMERS).delete("id = 2")
    now = Audit(candidate=lake.open(None, ORDERS), others={CUSTOMERS: lake.open(None, CUSTOMERS)})
    assert "1 of 2 values of 'id'" in check.evaluate(now).description


def test_bounds_with_a_time_zone(audit: Audit) -> None:
    """A bound with a time zone is compared as an instant, in whatever zone it is written."""
    berlin = dt.timezone(dt.timedelta(hours=1))
    last = dt.datetime(2024, 1, 5, 1, tzinfo=berlin)
    assert InRange("at", maximum=last).evaluate(audit).passed
    assert InRange("at", maximum=last - dt.timedelta(seconds=1)).evaluate(audit).counts["outside"] == 1


def test_newest_value_decides_about_freshness(audit: Audit) -> None:
    """The age of a table is that of its newest instant or day; a column without values is not fresh."""
    age = dt.datetime.now(dt.UTC) - dt.datetime(2024, 1, 5, tzinfo=dt.UTC)
    hour = dt.timedelta(hours=1)
    for column in ("at", "day"):
        assert Freshness(column, age + hour).evaluate(audit).passed
        outcome = Freshness(column, age - hour).evaluate(audit)
        assert not outcome.passed
        assert "2024-01-05T00:00:00+00:00" in outcome.description
    empty = replace(audit, candidate=replace(audit.candidate, filter="id > 100"))
    assert "'at' has no value; allowed age: 1:00:00" == Freshness("at", hour).evaluate(empty).description
    with pytest.raises(InvalidInputError):
        Freshness("name", hour).evaluate(audit)


def test_moments_that_python_has_no_object_for(lake: LanceResource) -> None:
    """Checks decide about moments in the year 20237, and about instants before year 1, and show them."""
    rows = pa.table({"at": pa.array([2**59, 2**59, None], pa.timestamp("us"))})
    LanceTable.create(lake.uri_of(ORDERS), rows.schema).append(rows)
    other = pa.table({"at": pa.array([-(2**36)], pa.timestamp("s"))})
    LanceTable.create(lake.uri_of(CUSTOMERS), other.schema).append(other)
    audit = Audit(candidate=lake.open(None, ORDERS), others={CUSTOMERS: lake.open(None, CUSTOMERS)})
    far = "20237-04-25 10:45:03.423488"
    assert Unique("at").evaluate(audit).description.endswith(f"another: 1; allowed: none; such as {far}")
    fresh = Freshness("at", dt.timedelta(days=1)).evaluate(audit)
    assert fresh.passed
    assert f"the newest 'at' is {far}; allowed age: 1 day, 0:00:00" == fresh.description
    assert not Freshness("at", dt.timedelta(days=1)).evaluate(Audit(candidate=lake.open(None, CUSTOMERS))).passed
    known = KeysExist("at", in_table="shop/customers", key="at").evaluate(audit)
    assert known.description.endswith(f"allowed: none; such as {far}")


def audit_of(lake: LanceResource, values: "pa.Array[Any]", others: "pa.Array[Any]") -> Audit:
    """A table with a column `v`, in a fragment for each value, and another one for the same column."""
    for key, column in ((ORDERS, values), (CUSTOMERS, others)):
        table = LanceTable.create(lake.uri_of(key), pa.schema({"v": column.type}))
        for place in range(len(column)):
            table.append(pa.table({"v": column[place : place + 1]}))
    return Audit(candidate=lake.open(None, ORDERS), others={CUSTOMERS: lake.open(None, CUSTOMERS)})


UUIDS = pa.array([bytes([number] * 16) for number in (1, 2, 1)], pa.binary(16))
WORDS = pa.array(["a", "b", "a"])


@pytest.mark.parametrize(
    "values,others,repeated,missing",
    [
        (
            UUIDS.cast(pa.uuid()),
            UUIDS[:1],
            "01010101-0101-0101-0101-010101010101",
            "02020202-0202-0202-0202-020202020202",
        ),
        (WORDS.dictionary_encode(), WORDS[:1].dictionary_encode(), "a", "b"),
        (pa.array([1, 2, 1]).cast(pa.float16()), pa.array([1]), "1.0", "2.0"),
    ],
    ids=["uuids", "dictionaries", "half floats"],
)
def test_keys_that_arrow_does_not_group(
    lake: LanceResource, values: "pa.Array[Any]", others: "pa.Array[Any]", repeated: str, missing: str
) -> None:
    """They are compared as plain values, and shown as they are."""
    audit = audit_of(lake, values, others)
    assert Unique("v").evaluate(audit).description.endswith(f"another: 1; allowed: none; such as {repeated}")
    known = KeysExist("v", in_table="shop/customers", key="v").evaluate(audit)
    assert known.description.startswith("1 of 2 values of 'v' are not in 'v'")
    assert known.description.endswith(f"such as {missing}")


KEYS: dict[str, tuple["pa.Array[Any]", "pa.Array[Any]", int]] = {
    "dates and times": (pa.array([dt.date(2026, 1, 1)]), pa.array([2**59 + 1, 0], pa.timestamp("us")), 1),
    "a time of a day": (pa.array([dt.date(1970, 1, 1)]), pa.array([3_600_000], pa.timestamp("ms")), 1),
    "midnight": (pa.array([dt.date(1970, 1, 1)]), pa.array([0], pa.timestamp("ms")), 0),
    "floats": (pa.array([0.5, 0.1], pa.float32()), pa.array([0.5, 0.1]), 1),
    "not a number": (pa.array([NAN], pa.float64()), pa.array([NAN], pa.float32()), 0),
    "decimals": (pa.array([2.0**53, 2.0]), pa.array([2**53 + 1, 2]).cast(pa.decimal128(38, 0)), 1),
    "scales": (pa.array([Decimal("1.5")]), pa.array([Decimal("1.501")]), 1),
    "bools": (pa.array([True]), pa.array([5]), 1),
    "figures": (pa.array([7, 8]), pa.array(["007", "8"]), 1),
    "words": (pa.array([7, 8]), pa.array(["x", "007", "8"]), 1),
    "numbers as words": (pa.array(["007", "8"]), pa.array([7, 8]), 1),
    "signs": (pa.array([2**64 - 1, 5], pa.uint64()), pa.array([-1, 5]), 1),
    "widths": (pa.array([1, 2], pa.int8()), pa.array([257, 2]), 1),
    "units": (pa.array([1, 2], pa.timestamp("s")), pa.array([1000, 2001], pa.timestamp("ms")), 1),
    "no keys": (pa.array([1]), pa.nulls(1), 1),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_does_not_exist_because_another_becomes_equal_by_a_cast(lake: LanceResource, kind: str) -> None:
    """A key of the other table that the type of the column cannot hold equals none of its values."""
    values, others, missing = KEYS[kind]
    found = KeysExist("v", in_table="shop/customers", key="v").evaluate(audit_of(lake, values, others))
    assert (missing == 0, missing) == (found.passed, found.counts["missing"])


def test_values_that_cannot_be_compared(lake: LanceResource) -> None:
    """The error names the columns and their types."""
    audit = audit_of(lake, pa.array([{"a": 1}]), pa.array([1]))
    exist = KeysExist("v", in_table="shop/customers", key="v")
    for check in (Unique("v"), exist):
        with pytest.raises(InvalidInputError):
            check.evaluate(audit)
    table = LanceTable.create(lake.uri_of(dg.AssetKey("days")), pa.schema({"v": pa.date32()}))
    table.append(pa.table({"v": [dt.date(2024, 1, 1)]}))
    days = replace(audit, candidate=lake.open(None, dg.AssetKey("days")))
    with pytest.raises(InvalidInputError, match="'v' of shop/customers is int64"):
        exist.evaluate(days)


def test_braces_in_values(audit: Audit) -> None:
    """A bound and an expression may contain any character."""
    assert InRange("name", maximum="{x}'").evaluate(audit).passed
    assert not Matches("name", "[{]x{2}").evaluate(audit).passed


@pytest.mark.parametrize("check", [NotNull("nmae"), InRange("nmae", minimum=1), Unique("nmae")])
def test_column_that_is_not_there(audit: Audit, check: TableCheck) -> None:
    """The check of a missing column raises, which counts as failed, and names the existing columns."""
    with pytest.raises(InvalidInputError, match=r"about column 'nmae'; .* has id, price"):
        check.evaluate(audit)


@pytest.mark.parametrize(
    "make",
    [
        lambda: NullRate("id", 5),
        lambda: InRange("id"),
        lambda: IsIn("id", ()),
        RowCountChange,
        lambda: RowCountChange(minimum=-10),
        lambda: RowCountChange(minimum=0.5, maximum=-0.5),
        lambda: InRange("id", minimum=5, maximum=1),
        lambda: InRange("day", minimum=dt.date(2024, 1, 2), maximum=dt.date(2024, 1, 1)),
        lambda: RowCount(minimum=-1),
        lambda: RowCount(minimum=5, maximum=1),
        lambda: Matches("name", "("),
        lambda: Matches("name", "a)"),
        lambda: Matches("name", "[a"),
    ],
)
def test_check_that_makes_no_sense(make: Callable[[], TableCheck]) -> None:
    """A check with contradictory arguments is refused when it is created."""
    with pytest.raises(InvalidInputError):
        make()


@pytest.mark.parametrize(
    "kind,given,said",
    [
        (
            RowCount,
            {"min": 1},
            "RowCount has no argument 'min'; did you mean 'minimum'? It takes minimum, maximum, scope",
        ),
        (NotNull, {"col": "id"}, "NotNull has no argument 'col'; did you mean 'column'?"),
        (InRange, {"column": "id", "max": 2}, "InRange has no argument 'max'; did you mean 'maximum'?"),
        (Unique, {"column": "id"}, "Unique has no argument 'column'; did you mean 'columns'?"),
        (Freshness, {"column": "at", "max_age": 1}, "Freshness has no argument 'max_age'; did you mean 'maximum_age'?"),
        (NoSchemaChange, {"other": 1}, "NoSchemaChange has no argument 'other'; it takes scope"),
    ],
)
def test_misspelt_argument_of_a_check(kind: Any, given: dict[str, Any], said: str) -> None:
    """An unknown argument of any built-in check is refused with the nearest one and all that the check takes."""
    with pytest.raises(InvalidInputError) as error:
        kind(**given)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "values",
    [{1, 2}, {1: "a", 2: "b"}, (one for one in (1, 2)), np.array([1, 2]), pa.array([1, 2]), [np.int64(1), np.int64(2)]],
    ids=["set", "dict", "generator", "numpy", "arrow", "numbers of numpy"],
)
def test_values_of_any_iterable(audit: Audit, values: Any) -> None:
    """The values that are allowed may be any iterable; the check keeps them as a tuple, which SQL is made of."""
    check = IsIn("id", values)
    assert (1, 2) == check.values
    assert hash(check) == hash(IsIn("id", (1, 2)))
    assert 2 == check.evaluate(audit).counts["failed_rows"]


@pytest.mark.parametrize(
    "predicate", ["name <> ')'", "(id < 9) AND (name <> '((')", "`id` < 9 /* :-) don't */", "name <> 'o''('"]
)
def test_parentheses_in_texts_are_no_mistake(audit: Audit, predicate: str) -> None:
    """Only parentheses that group are counted."""
    assert Satisfies(predicate=predicate, name="x", nulls_pass=True).evaluate(audit).passed


def test_key_of_the_other_table_in_any_form(audit: Audit) -> None:
    """The other table is named as in every other place: by a text, a key, or a definition."""

    @dg.asset(key=CUSTOMERS)
    def customers() -> None: ...

    wanted = KeysExist("customer", in_table="shop/customers", key="id")
    for given in (CUSTOMERS, customers, dg.AssetSpec(CUSTOMERS)):
        check = KeysExist("customer", in_table=given, key="id")  # type: ignore[arg-type]
        assert wanted == check
        assert not check.evaluate(audit).passed


def test_checks_are_copied() -> None:
    """A check survives pickling, and a copy with another argument is a check of its own."""
    check = InRange("id", minimum=1)
    assert check == pickle.loads(pickle.dumps(check))  # noqa: S301
    assert InRange("id", minimum=2) == replace(check, minimum=2)


def test_checks_block_and_name_the_version(shop: Shop, instance: dg.DagsterInstance) -> None:
    """One blocking check for each value; the evaluation says which version it looked at."""
    checks = build_table_checks(ORDERS, [Unique("id"), NotNull("id")])
    assert [check.check_key.name for check in checks] == ["unique_id", "not_null_id"]
    assert all(spec.blocking for check in checks for spec in check.check_specs)
    result = dg.materialize(
        [*shop.assets, *checks],
        selection=dg.AssetSelection.assets(ORDERS),
        instance=instance,
        resources=shop.resources,
    )
    (evaluation,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "unique_id"]
    assert evaluation.passed
    assert evaluation.metadata["lance/branch"].value == f"run/{result.run_id}"
    assert evaluation.metadata["lance/version"].value == "2"
    assert evaluation.metadata["repeated_rows"].value == 0


def test_keys_are_looked_up_in_the_candidate_of_the_same_run(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The check waits for the other table, and sees what this run made of it."""
    (check,) = build_table_checks("shop/orders", [KeysExist("id", in_table="shop/customers", key="id")])
    assets = [*shop.assets, check]
    options: dict[str, Any] = {
        "selection": dg.AssetSelection.assets(ORDERS, CUSTOMERS),
        "instance": instance,
        "resources": shop.resources,
        "raise_on_error": False,
    }
    shop.play(orders=[1], customers=[1])
    good = dg.materialize(assets, **options)
    shop.play(orders=[1, 5], customers=[1])
    bad = dg.materialize(assets, **options)
    (evaluation,) = [one for one in bad.get_asset_check_evaluations() if one.check_name == "keys_exist_id"]
    assert (good.success, bad.success) == (True, False)
    assert evaluation.metadata["compared_with"].value == f"run/{bad.run_id}@2"


@pytest.mark.parametrize("pattern", [r"\p{Lu}", "[[a])]", "^*", r"[\w--\d]+", r"\(", "[(]", "(?<word>a)"])
def test_expressions_of_rust_are_not_judged_as_those_of_python(audit: Audit, pattern: str) -> None:
    """An expression that only Rust knows is accepted, and Lance evaluates it."""
    assert not Matches("name", pattern).evaluate(audit).passed


def test_two_checks_of_one_name() -> None:
    """Dagster would show only one of them."""
    with pytest.raises(InvalidInputError):
        build_table_checks(ORDERS, [NotNull("id"), NotNull("id")])


def test_user_function_becomes_a_check_with_a_value(shop: Shop, instance: dg.DagsterInstance) -> None:
    """The function gets the candidate of the run, and any later run finds the value of the check by its key."""

    @table_check(asset=ORDERS, reads=[CUSTOMERS])
    def few(orders: PinnedTable, customers: PinnedTable) -> CheckOutcome:
        """There are not more orders than customers."""
        rows = orders.count_rows(), customers.count_rows()
        return CheckOutcome(passed=rows[0] <= rows[1], description=f"{rows[0]} orders, {rows[1]} customers")

    shop.play(orders=[1, 2, 3], customers=[1, 2])
    result = dg.materialize(
        [*shop.assets, few],
        selection=dg.AssetSelection.assets(ORDERS, CUSTOMERS),
        instance=instance,
        resources=shop.resources,
        raise_on_error=False,
    )
    (evaluation,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "few"]
    assert not evaluation.passed
    assert evaluation.description == "3 orders, 2 customers"
    assert evaluation.metadata["lance/branch"].value == f"run/{result.run_id}"


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_partitions_are_judged_one_by_one(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A day without rows fails, although the run wrote rows for the other day and the table has more."""
    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")

    @dg.asset(
        partitions_def=days, metadata={"lance/partition_expr": "day"}, backfill_policy=dg.BackfillPolicy.single_run()
    )
    def visits(context: dg.AssetExecutionContext) -> pa.Table:
        keys = [key for key in context.partition_keys if key != "2024-01-02"]
        return pa.table({"day": pa.array([dt.date.fromisoformat(key) for key in keys], pa.date32())})

    result = dg.materialize(
        [visits, *build_table_checks("visits", [RowCount()])],
        instance=instance,
        resources={"lance": lake, "io_manager": LanceIOManager(lance=lake)},
        tags={"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-03"},
        raise_on_error=False,
    )
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.description == "0 rows in 2024-01-02; allowed: at least 1 in each partition"
    assert evaluation.metadata["rows"].value == 2
    assert evaluation.metadata["failed_partitions"].value == 1
    assert evaluation.metadata["lance/partitions"].value == "2024-01-01, 2024-01-02, 2024-01-03"


@pytest.mark.slow
def test_check_that_is_executed_alone_looks_at_the_candidate_that_waits(
    shop: Shop, stored_instance: dg.DagsterInstance
) -> None:
    """A candidate whose customer was missing is published once the customer exists and the check has passed alone."""
    checks = build_table_checks(ORDERS, [KeysExist("id", in_table="shop/customers", key="id")])
    all_of_it = replace(shop, assets=[*shop.assets, *checks])
    shop.play(orders=[1, 5], customers=[1])
    failed = all_of_it.run(stored_instance)
    shop.play(customers=[1, 5])
    customers = all_of_it.run(stored_instance, selection=[CUSTOMERS, PRODUCTION_CUSTOMERS])
    refused = all_of_it.publish(stored_instance, ref=f"run/{failed.run_id}")
    alone = all_of_it.run(stored_instance, selection=dg.AssetSelection.checks(*checks))
    (evaluation,) = alone.get_asset_check_evaluations()
    published = all_of_it.publish(stored_instance, ref=f"run/{failed.run_id}")
    again = all_of_it.run(stored_instance, selection=dg.AssetSelection.checks(*checks))
    assert (False, True, False) == (failed.success, customers.success, refused.success)
    assert "blocking check 'keys_exist_id' failed on" in failure(refused)
    assert f"run/{failed.run_id}" == evaluation.metadata["lance/branch"].value
    assert evaluation.passed
    assert published.success
    assert [1, 5] == shop.ids("production")
    (evaluation,) = again.get_asset_check_evaluations()
    assert "main" == evaluation.metadata["lance/branch"].value


@pytest.mark.slow
def test_check_of_a_candidate_that_is_chosen(shop: Shop, stored_instance: dg.DagsterInstance) -> None:
    """When two candidates wait, a tag of the run that executes the check chooses the older one."""
    (check,) = build_table_checks(ORDERS, [NotNull("id")])
    all_of_it = replace(shop, assets=[*shop.assets, check])
    shop.play(orders=[-1, -2])
    older = all_of_it.run(stored_instance, selection=[ORDERS])
    shop.play(orders=[-3, -4, -5])
    newer = all_of_it.run(stored_instance, selection=[ORDERS])
    seen = []
    for tags in ({}, {"lance/branch": f"run/{older.run_id}"}):
        alone = all_of_it.run(stored_instance, selection=dg.AssetSelection.checks(check), tags=tags)
        (evaluation,) = alone.get_asset_check_evaluations()
        seen.append((evaluation.metadata["lance/branch"].value, evaluation.metadata["rows"].value))
    assert [(f"run/{newer.run_id}", 3), (f"run/{older.run_id}", 2)] == seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_check_that_is_executed_alone_after_a_later_day_was_published(
    lake: LanceResource, stored_instance: dg.DagsterInstance
) -> None:
    """The day that failed is read, until it is written again; then the older of two days that wait is read."""
    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")
    amounts = {"2024-01-01": -1, "2024-01-02": -2, "2024-01-03": 3}

    @dg.asset(partitions_def=days, metadata={"lance/partition_expr": "day"})
    def sales(context: dg.AssetExecutionContext) -> list[dict[str, Any]]:
        return [{"day": dt.date.fromisoformat(context.partition_key), "amount": amounts[context.partition_key]}]

    checks = build_table_checks(sales, [InRange("amount", minimum=0)])
    publisher = build_publisher([sales], partitions_def=days)
    options: Any = {
        "resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)},
        "instance": stored_instance,
        "raise_on_error": False,
    }

    def run(day: str) -> str:
        return dg.materialize([sales, *checks, publisher], partition_key=day, **options).run_id

    def read_alone() -> Any:
        assets = [sales, *checks, publisher]
        result = dg.materialize(assets, selection=dg.AssetSelection.checks(*checks), **options)
        (evaluation,) = result.get_asset_check_evaluations()
        metadata = {key: one.value for key, one in evaluation.metadata.items()}
        return metadata["lance/branch"], metadata.get("lance/partitions")

    first, second = (f"run/{run(day)}" for day in ("2024-01-01", "2024-01-02"))
    run("2024-01-03")
    assert (second, "2024-01-02") == read_alone()
    amounts |= {"2024-01-02": 2}
    run("2024-01-02")
    assert {first, second} == set(lake.table("sales").branches.list("run/*"))
    assert (first, "2024-01-01") == read_alone()
    amounts |= {"2024-01-01": 1}
    run("2024-01-01")
    assert ("main", None) == read_alone()


@pytest.mark.slow
def test_check_that_is_executed_alone_after_a_later_append_was_published(
    shop: Shop, stored_instance: dg.DagsterInstance
) -> None:
    """What a run appended and failed its check is read, until a re-execution of all of the run was published."""
    (check,) = build_table_checks(ORDERS, [NotNull("id")])
    all_of_it = replace(shop, assets=[*shop.assets, check])

    def read_alone() -> Any:
        alone = all_of_it.run(stored_instance, selection=dg.AssetSelection.checks(check))
        (evaluation,) = alone.get_asset_check_evaluations()
        return evaluation.metadata["lance/branch"].value

    shop.play(orders=[1], mode="append")
    assert shop.execute(stored_instance).success
    shop.play(orders=[-2], mode="append")
    failed = shop.execute(stored_instance)
    shop.play(orders=[3], mode="append")
    assert shop.execute(stored_instance).success
    assert f"run/{failed.run_id}" == read_alone()
    shop.play(orders=[2], mode="append")
    assert shop.execute(stored_instance, dg.ReexecutionOptions(failed.run_id)).success
    assert "main" == read_alone()


@pytest.mark.slow
def test_input_of_a_check_that_is_executed_alone(shop: Shop, stored_instance: dg.DagsterInstance) -> None:
    """A check that has its asset as an input gets the rows of the candidate, and other readers do not."""

    @dg.asset_check(asset=ORDERS)
    def three(orders: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=orders.num_rows == 3)

    @dg.asset(ins={"orders": dg.AssetIn(ORDERS)})
    def reader(orders: pa.Table) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"ids": orders["id"].to_pylist()})

    all_of_it = replace(shop, assets=[*shop.assets, three, reader])
    shop.play(orders=[1])
    assert all_of_it.run(stored_instance, selection=dg.AssetSelection.assets(ORDERS, PRODUCTION_ORDERS)).success
    shop.play(orders=[1, 2, -3])
    assert not all_of_it.run(stored_instance, selection=dg.AssetSelection.assets(ORDERS, PRODUCTION_ORDERS)).success
    alone = all_of_it.run(stored_instance, selection=dg.AssetSelection.checks(three))
    (evaluation,) = alone.get_asset_check_evaluations()
    assert evaluation.passed
    assert all_of_it.run(stored_instance, selection=[dg.AssetKey("reader")]).success
    assert [1] == recorded(stored_instance, dg.AssetKey("reader")).metadata["ids"]


@pytest.mark.slow
def test_result_of_a_check_that_ran_alone_later_counts(shop: Shop, stored_instance: dg.DagsterInstance) -> None:
    """A check that passed in the run and fails on the same version now refuses the publication."""
    (check,) = build_table_checks(ORDERS, [KeysExist("id", in_table="shop/customers", key="id")])
    all_of_it = replace(shop, assets=[*shop.assets, check])
    shop.play(orders=[5], customers=[5])
    wrote = all_of_it.run(stored_instance, selection=dg.AssetSelection.assets(ORDERS, CUSTOMERS))
    shop.play(customers=[1])
    all_of_it.run(stored_instance, selection=[CUSTOMERS, PRODUCTION_CUSTOMERS])
    all_of_it.run(stored_instance, selection=dg.AssetSelection.checks(check))
    refused = all_of_it.publish(stored_instance, ref=f"run/{wrote.run_id}")
    assert wrote.success
    assert "blocking check 'keys_exist_id' failed on" in failure(refused)


def test_table_without_a_blocking_check_is_refused(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A table without a blocking check is published only if the publisher is told to."""

    @dg.asset(key=ORDERS)
    def orders() -> pa.Table:
        return pa.table({"id": [1]})

    resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake)}
    options: dict[str, Any] = {"instance": instance, "resources": resources, "raise_on_error": False}
    checks = build_table_checks(orders, [NotNull("id")], blocking=False)
    refused = dg.materialize([orders, *checks, build_publisher([orders])], **options)
    published = dg.materialize([orders, build_publisher([orders], unchecked=True)], **options)
    assert (
        "shop/orders: no blocking check guards it; add one, or give unchecked=True to build_publisher or lance_assets"
        in failure(refused)
    )
    assert published.success


def test_definition_of_several_assets() -> None:
    """The error for a definition of several assets says what to pass instead."""

    @dg.multi_asset(specs=[dg.AssetSpec("left"), dg.AssetSpec("right")])
    def both() -> Iterator[dg.MaterializeResult[Any]]:
        yield dg.MaterializeResult(asset_key="left")

    with pytest.raises(InvalidInputError, match="give the key or the AssetSpec"):
        build_table_checks(both, [NotNull("id")])


PROBE = dg.AssetKey("probe")


def probed(root: str) -> tuple[list[Any], dict[str, Any]]:
    """Orders with two checks, and an asset that looks these up and evaluates them on `main`."""
    lance = LanceResource(root=root)

    @dg.asset(key=ORDERS)
    def orders() -> pa.Table:
        return pa.table({"id": [1, 2]})

    @table_check(asset=ORDERS, blocking=False)
    def few(table: PinnedTable) -> bool:
        return table.count_rows() < 2

    @dg.asset_check(asset=ORDERS)
    def plain() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    @dg.asset(key=PROBE, required_resource_keys={"lance"})
    def probe(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        version = lance.open(context, ORDERS)
        values = check_values(context, [ORDERS]).items()
        found = {key.name: evaluate_check(value, version, lance=lance, context=context).passed for key, value in values}
        return dg.MaterializeResult(metadata={"found": found})

    assets = [orders, few, plain, *build_table_checks(orders, [RowCount()]), probe]
    return assets, {"lance": lance, "io_manager": LanceIOManager(lance=lance)}


def probe_job(root: str) -> dg.JobDefinition:
    """A job that runs only the probe, without the orders and their checks, in processes of its own."""
    assets, resources = probed(root)
    checks = [one for one in assets if isinstance(one, dg.AssetChecksDefinition)]
    others = [one for one in assets if not isinstance(one, dg.AssetChecksDefinition)]
    job = dg.define_asset_job("probing", selection=[PROBE], executor_def=MANY)
    defs = dg.Definitions(assets=others, asset_checks=checks, resources=resources, jobs=[job])
    return defs.resolve_job_def("probing")


def test_values_of_checks_are_found_in_any_process(lake: LanceResource, stored_instance: dg.DagsterInstance) -> None:
    """A job that leaves the checks out finds their values, in another process and in copies with resources."""
    LanceTable.create(lake.uri_of(ORDERS), pa.schema({"id": pa.int64()})).append(pa.table({"id": [1, 2]}))
    job = dg.build_reconstructable_job(
        reconstructor_module_name="tests.plugin.test_checks",
        reconstructor_function_name="probe_job",
        reconstructable_kwargs={"root": lake.root},
    )
    assert dg.execute_job(job, instance=stored_instance).success
    assert {"found": {"few": False, "row_count": True}} == recorded(stored_instance, PROBE).metadata
    assets, resources = probed(lake.root)
    copies = dg.with_resources(assets, resources)
    assert dg.materialize(copies, selection=[PROBE], instance=stored_instance).success
    assert {"found": {"few": False, "row_count": True}} == recorded(stored_instance, PROBE).metadata


def test_change_against_what_is_published(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A first publication passes without a comparison; after it, a version that lost half of the rows fails."""
    checks = build_table_checks(ORDERS, [RowCountChange(minimum=-0.5), NoSchemaChange()])
    all_of_it = replace(shop, assets=[*shop.assets, *checks])
    shop.play(orders=[1, 2, 3, 4])
    first = all_of_it.run(instance)
    shop.play(orders=[1, 2])
    half = all_of_it.run(instance)
    shop.play(orders=[])
    none = all_of_it.run(instance)
    (evaluation,) = [one for one in none.get_asset_check_evaluations() if one.check_name == "row_count_change"]
    assert (True, True, False) == (first.success, half.success, none.success)
    assert f"-100.00% rows against {shop.tag()}; allowed: at least -50.00%" == evaluation.description
    assert [1, 2] == shop.ids("production")


def test_check_that_breaks_counts_as_failed(shop: Shop, instance: dg.DagsterInstance) -> None:
    """When a check raises, the message is the description of its result, and nothing is published."""

    @table_check(asset=ORDERS)
    def broken(orders: PinnedTable) -> bool:
        return {"main": True}[orders.ref]

    @table_check(asset=ORDERS)
    def undecided(orders: PinnedTable) -> bool:
        return orders.count_rows()  # type: ignore[return-value]

    result = replace(shop, assets=[*shop.assets, broken, undecided]).run(instance)
    found = {one.check_name: one.description for one in result.get_asset_check_evaluations() if not one.passed}
    assert f"the check broke: KeyError: 'run/{result.run_id}@2'" == found["broken"]
    assert "returned int; return a bool or a CheckOutcome" in str(found["undecided"])
    assert shop.tag() is None


@pytest.mark.parametrize(
    "returned,said",
    [
        (np.bool_(1), "returned numpy.bool.*; return a bool or a CheckOutcome, as by bool"),
        (CheckOutcome(passed="no"), "returned a CheckOutcome whose passed is str; return a bool"),  # type: ignore[arg-type]
        (dg.AssetCheckResult(passed=True, check_name="another"), "returned the result of check 'another'"),
    ],
)
def test_what_a_function_may_not_return(audit: Audit, returned: object, said: str) -> None:
    """Neither a truthy text nor the result of another check counts as a pass."""
    check = FunctionCheck(name="odd", description="", scope="table", reads=(), function=lambda _: returned)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidInputError, match=said):
        check.evaluate(audit)


def test_results_of_dagster_are_taken(audit: Audit) -> None:
    """A result with the severity WARN fails and does not block."""

    def warned(_: PinnedTable) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            passed=False, description="odd", severity=dg.AssetCheckSeverity.WARN, metadata={"n": 1}
        )

    outcome = FunctionCheck(name="warned", description="", scope="table", reads=(), function=warned).evaluate(audit)
    assert (False, "odd", False) == (outcome.passed, outcome.description, outcome.blocks)
    assert {"n": dg.MetadataValue.int(1)} == outcome.counts


@pytest.mark.parametrize("reads", [(), (CUSTOMERS, "shop/products")])
def test_function_takes_each_table(reads: tuple[Any, ...]) -> None:
    """A function with the wrong number of parameters is refused when it is decorated."""
    with pytest.raises(InvalidInputError):

        @table_check(asset=ORDERS, reads=reads)
        def both(orders: PinnedTable, customers: PinnedTable) -> bool:
            return orders.count_rows() > customers.count_rows()


def test_unknown_scope() -> None:
    """An unknown scope is refused when the check is created."""
    with pytest.raises(InvalidInputError):

        @table_check(asset=ORDERS, scope="partition")  # type: ignore[arg-type]
        def any_rows(orders: PinnedTable) -> bool:
            return orders.count_rows() > 0

    with pytest.raises(InvalidInputError):
        build_table_checks(ORDERS, [NotNull("id", scope="rows")])  # type: ignore[arg-type]


DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")


def test_partition_of_the_run_is_what_a_check_sees(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A check of one asset of a multi-asset sees the run's partition; a whole-table check sees the other days too."""
    place = {"lance/table": "raw/events", "lance/partition_expr": "day"}
    specs = [dg.AssetSpec("clicks", metadata=place, partitions_def=DAYS), dg.AssetSpec("other", partitions_def=DAYS)]
    rows: dict[str, list[int | None]] = {"2024-01-01": [1, None], "2024-01-02": [1], "2024-01-03": []}

    @dg.multi_asset(
        outs={spec.key.path[-1]: dg.AssetOut.from_spec(spec, is_required=False) for spec in specs}, can_subset=True
    )
    def events(context: dg.AssetExecutionContext) -> Iterator[dg.Output[pa.Table]]:
        ids = rows[context.partition_key]
        days: list[dt.date] = [dt.date.fromisoformat(context.partition_key)] * len(ids)
        day = pa.array(days, pa.date32())
        yield dg.Output(pa.table({"id": pa.array(ids, pa.int64()), "day": day}), output_name="clicks")

    @table_check(asset="clicks", scope="table")
    def whole(clicks: PinnedTable) -> CheckOutcome:
        return CheckOutcome(passed=True, counts={"rows": clicks.count_rows()})

    values: list[TableCheck] = [RowCount(), NotNull("id"), Unique("id", scope="partitions")]
    checks = [*build_table_checks("clicks", values[:2]), whole, *build_table_checks(specs[0], values[2:])]
    options: dict[str, Any] = {
        "instance": instance,
        "resources": {"lance": lake, "io_manager": LanceIOManager(lance=lake)},
        "raise_on_error": False,
    }

    def outcomes(day: str, *selected: str) -> dict[str, tuple[bool, int]]:
        chosen = [check for check in checks if not selected or check.check_key.name in selected]
        selection = dg.AssetSelection.checks(*chosen) if selected else None
        result = dg.materialize([events, *checks], selection=selection, tags={"dagster/partition": day}, **options)
        # The branch is merged directly, whatever its checks say.
        table = lake.table("raw/events")
        for branch in table.branches.list("run/*"):
            table.merge(branch)
        found = result.get_asset_check_evaluations()
        return {one.check_name: (one.passed, int(str(one.metadata["rows"].value))) for one in found}

    assert {
        "row_count": (True, 2),
        "not_null_id": (False, 2),
        "unique_id": (True, 1),
        "whole": (True, 2),
    } == outcomes("2024-01-01")
    assert {
        "row_count": (True, 1),
        "not_null_id": (True, 1),
        "unique_id": (True, 1),
        "whole": (True, 3),
    } == outcomes("2024-01-02")
    third = outcomes("2024-01-03")
    assert ((False, 0), (True, 3)) == (third["row_count"], third["whole"])
    # All rows are on `main` now, whose commits name no partition; the run of the check names one.
    assert {"row_count": (True, 2)} == outcomes("2024-01-01", "row_count")


@pytest.mark.parametrize("dictionary", [False, True])
def test_many_partitions_are_counted_in_one_scan(lake: LanceResource, *, dictionary: bool) -> None:
    """One scan gives the same counts as one count for each partition, for a column and for an SQL expression."""
    regions = pa.array(["eu", "us", "eu", None, "asia", "us"])
    rows = pa.table({"region": regions.dictionary_encode() if dictionary else regions, "id": [1, None, None, 4, 5, 6]})
    table = LanceTable.create(lake.uri_of(ORDERS), rows.schema)
    # Two fragments with different dictionaries.
    for part in (rows.slice(0, 3), rows.slice(3)):
        table.append(part)
    keys = ("asia", "eu", "none", "us")
    found = []
    for expression in ("region", "concat(region, '')") if not dictionary else ("region",):
        partitions = {
            key: partition_filter([key], table.schema(), definition=None, partition_expr=expression, asset="orders")
            for key in keys
        }
        audit = Audit(candidate=lake.open(None, ORDERS), partition_keys=keys, partitions=partitions)
        singly = {key: part.count_rows() for key, part in audit.by_partition().items()}
        assert singly == audit.count_by_partition()
        found.append((singly, audit.count_by_partition("id IS NULL")))
    assert [({"asia": 1, "eu": 2, "none": 0, "us": 2}, {"asia": 0, "eu": 1, "none": 0, "us": 1})] == found[:1]
    assert found[:1] * len(found) == found


GROUPED: dict[str, tuple[str, "pa.Array[Any]"]] = {
    "count_all": ("x", pa.array(["a", "b", "c", "a"])),
    "structs": ("x.name", pa.array([{"name": name} for name in "abca"])),
    "lists": ("x[1]", pa.array([[name] for name in "abca"])),
    "json": ("json_get_string(x, 'k')", pa.array([f'{{"k": "{name}"}}' for name in "abca"]).cast(pa.json_())),
}


@pytest.mark.parametrize("kind", GROUPED)
def test_partitions_of_any_column_are_counted(lake: LanceResource, kind: str) -> None:
    """The column may have the name of Arrow's counts, and a type whose values Arrow does not group."""
    expression, values = GROUPED[kind]
    name = "count_all" if kind == "count_all" else "x"
    rows = pa.table({name: values})
    LanceTable.create(lake.uri_of(ORDERS), rows.schema).append(rows)
    given = expression if name == "x" else name
    partitions = {
        key: partition_filter([key], rows.schema, definition=None, partition_expr=given, asset="orders")
        for key in "abc"
    }
    audit = Audit(candidate=lake.open(None, ORDERS), partition_keys=tuple("abc"), partitions=partitions)
    assert {"a": 2, "b": 1, "c": 1} == audit.count_by_partition()
    within = partition_filter("abc", rows.schema, definition=None, partition_expr=given, asset="orders")
    groups = partition_groups("abc", rows.schema, definition=None, partition_expr=given, asset="orders")
    tally = RowTally(scope=RowScope(within=rows_of(within), groups=groups))
    for batch in rows.to_batches():
        tally.add(batch)
    assert {"a": 2, "b": 1, "c": 1} == tally.counts()
    if name == "count_all":
        assert Unique(name).evaluate(audit).description.endswith("of another: 1; allowed: none; such as a")
