"""The common parts of the built-in checks: their fields, their queries about a column, and their wording.

A check is a frozen value, such as `NotNull("id")`, that states a condition. `build_table_checks` turns such values
into Dagster's asset checks. The result of each check names the version that was checked: the publisher refuses a
version on which a blocking check did not pass.

A check opens its table through the resource and not as an input of the asset. An input would go through the IO
manager, which cannot know the columns that a check needs and would read all of them. A check reads only a count under
a filter, or the columns that it compares.
"""

import difflib
import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import Bound, quote_name
from lance_dagster.format.verdict_text import EXAMPLES
from lance_dagster.plugin.checks.table_check import Audit, CheckOutcome, Scope
from lance_dagster.plugin.resource import PinnedTable

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 5
_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInCheck:
    """The fields and the name of the built-in checks. By default, checks evaluate the partitions of the run.

    `kind` is the first part of the name, such as `not_null`, and the name of the check in YAML. `sentence` is the
    description, with the attributes of the check as `{0.column}`.
    """

    scope: Scope = "partitions"
    kind: ClassVar[str] = ""
    sentence: ClassVar[str] = ""
    row_wise: ClassVar[bool] = False

    # Before `__init__`, whose error for an unknown argument suggests no argument. mypy takes the signature of
    # `__init__`.
    def __new__(cls, *_: object, **arguments: object) -> Self:
        """Refuse unknown arguments.

        Raises:
            InvalidInputError: An argument is unknown. The message suggests the nearest one.
        """
        parameters = sorted((parameter.name for parameter in fields(cls)), key="scope".__eq__)
        for name in arguments:
            if name not in parameters:
                near = difflib.get_close_matches(name, parameters, n=1, cutoff=0.5)
                meant = f"did you mean {near[0]!r}? It" if near else "it"
                raise InvalidInputError(
                    f"{cls.__name__} has no argument {name!r}; {meant} takes {', '.join(parameters)}"
                )
        # Not `super()`: a dataclass with slots is not the class that this function was defined in.
        return object.__new__(cls)

    @property
    def name(self) -> str:
        """The name of the asset check: the kind and the columns, such as `unique_customer_day`."""
        columns = getattr(self, "columns", getattr(self, "column", ()))
        # Dagster allows fewer characters in the name of a check than Lance in the name of a column.
        slugs = (re.sub(r"[^A-Za-z0-9]", "_", name) for name in ((columns,) if isinstance(columns, str) else columns))
        return "_".join([self.kind, *map(str.lower, slugs)])

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return self.sentence.format(self)

    @property
    def reads(self) -> tuple[dg.AssetKey, ...]:
        """The assets of the other tables that the check reads: none."""
        return ()


def field_of(table: PinnedTable, column: str) -> "pa.Field[Any]":
    """Return the field of a column.

    Raises:
        InvalidInputError: The table has no such column; the error lists the columns that it has.
    """
    schema = table.schema
    if column not in schema.names:
        raise InvalidInputError(
            f"the check is about column {column!r}; {table.table.uri} has {', '.join(schema.names)}"
        )
    return schema.field(column)


def is_float(table: PinnedTable, column: str) -> bool:
    """Return whether a column holds floating-point numbers, among which NaN can be."""
    import pyarrow as pa

    return bool(pa.types.is_floating(field_of(table, column).type))


def count_where(table: PinnedTable, column: str, condition: str) -> int:
    """Count the rows for which a condition on a column, in Lance SQL, is true.

    Raises:
        InvalidInputError: The table has no such column, or the condition does not fit its type.
    """
    try:
        return table.count_rows(condition)
    except InvalidInputError:
        # `field_of` raises an error that lists the columns of the table. It comes after the count, because the schema
        # is a request of its own.
        field_of(table, column)
        raise


def count_outcome(audit: Audit, column: str | None, condition: str, wrong: str) -> CheckOutcome:
    """Return the outcome of a check that allows no row for which a condition is true.

    Args:
        audit: The tables.
        column: The column that the condition is about; None when the user wrote the condition.
        condition: The condition, in Lance SQL. A row for which it is null passes.
        wrong: A text that describes these rows, which stands before their number.
    """
    candidate = audit.candidate
    failed = candidate.count_rows(condition) if column is None else count_where(candidate, column, condition)
    examples = wrong_values(candidate, column, condition) if column is not None and failed else []
    return CheckOutcome(
        passed=failed == 0,
        description=f"{wrong}: {failed}; allowed: none{such_as(examples)}",
        counts={"rows": candidate.count_rows(), "failed_rows": failed},
    )


def wrong_values(table: PinnedTable, column: str, condition: str) -> list[str]:
    """Return some different values of a column in the rows for which a condition is true, as people know them."""
    from lance_dagster.format.shown_values import shown_values

    examples: dict[str, None] = {}
    # Batches are read only until there are enough examples.
    for batch in table.scan([column], filter=condition):
        examples |= dict.fromkeys(map(str, shown_values(batch.column(0))))
        if len(examples) >= SHOWN:
            break
    return list(examples)[:SHOWN]


def distinct(table: PinnedTable, column: str) -> "pa.Array[Any]":
    """Return the distinct values of a column without null, as plain values.

    Raises:
        InvalidInputError: The table has no such column, or its values cannot be compared.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = field_of(table, column).type
    batches = table.scan([column], filter=f"{quote_name(column)} IS NOT NULL")
    # The empty column gives concat_arrays a type when there is no batch.
    columns = itertools.chain([pa.chunked_array([], kind)], (pa.chunked_array([batch.column(0)]) for batch in batches))
    # Batches are reduced to distinct values one by one, so memory holds distinct values and not the column.
    values: pa.Array[Any] = pc.unique(pa.concat_arrays([pc.unique(comparable(part, column)) for part in columns]))
    return values


def comparable(values: "pa.ChunkedArray[Any]", column: str) -> "pa.Array[Any]":
    """Return the values of a column as one array of plain values, which Arrow can group and look up.

    Raises:
        InvalidInputError: The values are nested or JSON.
    """
    import pyarrow as pa

    from lance_dagster.edit.key_predicates import comparable_values

    # Arrow looks up no half floats; every half float is a float too.
    return comparable_values(values.cast(pa.float32()) if pa.types.is_float16(values.type) else values, column)


def as_stored(values: Any, kind: "pa.DataType") -> Any:  # noqa: ANN401  # an array, or a column of several
    """Return plain values in the type of their column, such as a UUID, which shows them as people know them."""
    import pyarrow as pa

    extended = isinstance(kind, pa.BaseExtensionType) and values.type == kind.storage_type
    return values.cast(kind) if extended else values


def lies_within(number: float, minimum: float | None, maximum: float | None) -> bool:
    """Return whether a number is within two inclusive bounds; None sets no bound."""
    return (minimum is None or number >= minimum) and (maximum is None or number <= maximum)


def between(minimum: Bound | None, maximum: Bound | None) -> str:
    """Return a text for the values that two inclusive bounds allow."""
    if maximum is None:
        return f"at least {minimum}"
    return f"at most {maximum}" if minimum is None else f"{minimum} to {maximum}"


def judged(wrong: Mapping[str | None, str], total: str, audit: Audit, allowed: str, *, of: str = "") -> str:
    """Return a text with the measured and the allowed numbers; where partitions fail, with the number of each.

    Example: `0 rows in 2026-05-01, 0 rows in 2026-05-02; allowed: at least 1 in each partition`.
    """
    of, allowed = f" {of}" if of else "", f"{allowed} in each partition" if audit.partitions else allowed
    named = [f"{number}{of} in {key}" for key, number in wrong.items() if key is not None]
    if not named:
        return f"{total}{of}; allowed: {allowed}"
    more = f" and {len(named) - SHOWN} more partitions" if len(named) > SHOWN else ""
    return f"{', '.join(named[:SHOWN])}{more}; allowed: {allowed}"


def partition_counts(audit: Audit, wrong: Collection[str | None]) -> dict[str, int]:
    """Return the numbers of partitions and of failed partitions; nothing when the whole table was checked."""
    return {"partitions": len(audit.partitions), "failed_partitions": len(wrong)} if audit.partitions else {}


def such_as(shown: list[str]) -> str:
    """Return examples of wrong values as the end of a sentence."""
    # A document would fill the page.
    short = [text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…" for text in shown]
    return f"{EXAMPLES}{', '.join(short)}" if short else ""
