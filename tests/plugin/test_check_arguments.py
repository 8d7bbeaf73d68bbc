# mypy: disable-error-code="arg-type"
# The arguments have the wrong types, as a caller without a type checker may give them.
import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lance_dagster import (
    Freshness,
    InRange,
    InvalidInputError,
    IsIn,
    KeysExist,
    Matches,
    NotNull,
    NullRate,
    RowCount,
    RowCountChange,
    Satisfies,
    SchemaIs,
    Unique,
    build_table_checks,
)

NAN = float("nan")


@pytest.mark.parametrize(
    "make,said",
    [
        (lambda: RowCount(minimum=NAN), "the minimum of RowCount has to be a whole number of 0 or more, not nan"),
        (lambda: RowCount(maximum=NAN), "the maximum of RowCount has to be a whole number"),
        (lambda: RowCount(minimum=None), "the minimum of RowCount has to be a whole number of 0 or more, not None"),
        (lambda: RowCount(minimum=True), "not True"),
        (lambda: RowCount(minimum=0.5), "not 0.5"),
        (lambda: RowCount(minimum="1"), "not '1'"),
        (lambda: InRange("price", minimum=NAN), "InRange of 'price' has the value nan; give finite numbers"),
        (lambda: InRange("price", maximum=float("inf")), "has the value inf; give finite numbers"),
        (lambda: InRange("price", minimum=[1]), "InRange of 'price' has the value [1]; give finite numbers"),
        (
            lambda: RowCountChange(minimum=NAN),
            "the minimum of RowCountChange has to be a number, such as 0.05, not nan",
        ),
        (lambda: RowCountChange(minimum="-0.1"), "the minimum of RowCountChange has to be a number"),
        (lambda: NullRate("a", NAN), "the maximum of NullRate of 'a' has to be a number, such as 0.05, not nan"),
        (lambda: NullRate("a", "0.05"), "not '0.05'"),
        (lambda: NullRate("a", maximum=True), "not True"),
        (lambda: Freshness("at", 24), "maximum_age=24 is not a duration above zero; give a timedelta"),
        (lambda: Freshness("at", dt.timedelta(0)), "is not a duration above zero"),
        (lambda: Freshness("", dt.timedelta(1)), "the column of Freshness is empty; give one such as 'id'"),
        (lambda: NotNull(["a", "b"]), "the column of NotNull has to be a string, not ['a', 'b']"),
        (lambda: NotNull(""), "the column of NotNull is empty"),
        (lambda: NotNull(None), "the column of NotNull has to be a string, not None"),
        (lambda: Unique([]), "Unique has no column; give at least one, such as 'id'"),
        (lambda: Unique(None), "columns of Unique: must be a list such as ['id'], not None"),
        (lambda: Unique(["id", 1]), "the column of Unique has to be a string, not 1"),
        (lambda: Matches("a", None), "the pattern of Matches of 'a' has to be a string, not None"),
        (lambda: Satisfies(predicate="", name="x"), "the predicate of Satisfies 'x' is empty"),
        (lambda: Satisfies(predicate=None, name="x"), "the predicate of Satisfies 'x' has to be a string, not None"),
        (lambda: Satisfies(predicate="id > 0", name=""), "the name of Satisfies is empty"),
        (lambda: Satisfies(predicate="id > 0", name="x", nulls_pass="no"), "has to be True or False, not 'no'"),
        (lambda: Satisfies(predicate="id > 5) OR (true", name="x"), "has a parenthesis without its partner"),
        (lambda: Satisfies(predicate="(id > 5", name="x"), "has a parenthesis without its partner"),
        (lambda: Satisfies(predicate="name = 'a", name="x"), "has a quote without its partner"),
        (lambda: IsIn("a", "open"), "values of IsIn of 'a': must be a list such as ['open'], not 'open'"),
        (lambda: IsIn("a", ("x", None)), "a null passes anyway, so leave None out"),
        (lambda: IsIn("a", (1.0, NAN)), "IsIn of 'a' has the value nan"),
        (lambda: KeysExist("a", None, "id"), "in_table of KeysExist has to be a string, not None"),
        (lambda: KeysExist("a", "", "id"), "in_table of KeysExist is empty; give one such as 'shop/customers'"),
        (lambda: KeysExist("a", "shop/customers", ""), "the column of KeysExist is empty"),
        (
            lambda: SchemaIs({}),
            "the schema of SchemaIs has to be a Schema, such as pyarrow.schema({'id': pyarrow.int64()}), not {}",
        ),
        (lambda: SchemaIs("id"), "not 'id'"),
        (lambda: SchemaIs([pa.field("id", pa.int64())]), "not [pyarrow.Field<id: int64>]"),
        (lambda: SchemaIs(None), "not None"),
        (lambda: SchemaIs(pa.schema([])), "the schema of SchemaIs has no column; give one such as pyarrow.schema({"),
    ],
)
def test_argument_of_a_check_that_has_the_wrong_type(make: Callable[[], Any], said: str) -> None:
    """An argument that would fail in the run, or let every table pass, is refused when the check is created."""
    with pytest.raises(InvalidInputError) as error:
        make()
    assert said in str(error.value)


@pytest.mark.parametrize(
    "checks,said",
    [
        (NotNull("x"), "checks of 'shop/orders' have to be a list of checks such as [Unique('id')], not NotNull("),
        ("unique", "checks of 'shop/orders' have to be a list of checks such as [Unique('id')], not 'unique'"),
        (["unique"], "checks: 'unique' for 'shop/orders' is not a check; give one such as [Unique('id')]"),
        ([RowCount], "for 'shop/orders' is not a check; give one such as [Unique('id')]"),
        (None, "checks of 'shop/orders' have to be a list of checks such as [Unique('id')], not None"),
    ],
)
def test_what_is_not_a_list_of_checks(checks: object, said: str) -> None:
    """One check alone, and a value that is not a check, are refused with what is wanted."""
    with pytest.raises(InvalidInputError) as error:
        build_table_checks("shop/orders", checks)
    assert said in str(error.value)
