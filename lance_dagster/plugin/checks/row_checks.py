"""Checks of the number of rows of a table, and of their keys."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import quote_name
from lance_dagster.format.validation import whole_number
from lance_dagster.plugin.checks.check_arguments import (
    column_tuple,
    refuse_bounds,
    require_column,
    require_text,
)
from lance_dagster.plugin.checks.check_queries import (
    SHOWN,
    BuiltInCheck,
    as_stored,
    between,
    comparable,
    distinct,
    field_of,
    judged,
    lies_within,
    partition_counts,
    such_as,
)
from lance_dagster.plugin.checks.table_check import Audit, CheckOutcome, Scope
from lance_dagster.plugin.table_asset import asset_key_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount(BuiltInCheck):
    """Require at least `minimum` and at most `maximum` rows; None sets no upper limit."""

    minimum: int = 1
    maximum: int | None = None
    kind: ClassVar[str] = "row_count"
    sentence: ClassVar[str] = "The table, or each partition of the run, has {0._allowed} rows."

    def __post_init__(self) -> None:
        """Validate that a number of rows can lie between the bounds."""
        whole_number("the minimum of RowCount", self.minimum, 0)
        if self.maximum is not None:
            whole_number("the maximum of RowCount", self.maximum, 0)
        refuse_bounds("RowCount", self.minimum, self.maximum)

    @property
    def _allowed(self) -> str:
        return between(self.minimum, self.maximum)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows of each partition."""
        rows = audit.count_by_partition()
        wrong = {key: count for key, count in rows.items() if not lies_within(count, self.minimum, self.maximum)}
        texts = {key: _rows(count) for key, count in wrong.items()}
        return CheckOutcome(
            passed=not wrong,
            description=judged(texts, _rows(sum(rows.values())), audit, self._allowed),
            counts={"rows": sum(rows.values()), **partition_counts(audit, wrong)},
        )


@dataclass(frozen=True, slots=True)
class Unique(BuiltInCheck):
    """Require that no two rows have the same values in some columns.

    A row with a null in one of these columns is not compared, as in a unique constraint of SQL. The check reads the
    whole table by default, because a row of another partition may have the same key. With the scope `partitions` a
    key may occur once in the partitions of the run, whatever the other partitions have.
    """

    columns: str | tuple[str, ...]
    scope: Scope = field(default="table", kw_only=True)
    kind: ClassVar[str] = "unique"

    def __post_init__(self) -> None:
        """Validate the columns."""
        names = column_tuple("Unique", self.columns)
        if not isinstance(self.columns, str):
            object.__setattr__(self, "columns", names)

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"No two rows have the same {', '.join(self._names)}."

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.columns,) if isinstance(self.columns, str) else self.columns

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows that repeat the key of another row.

        Reads the key columns, all rows of them in memory at once.

        Raises:
            InvalidInputError: The table has no such column, or its values cannot be compared.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        from lance_dagster.format.shown_values import shown_values

        names = self._names
        kinds = [field_of(audit.candidate, name).type for name in names]
        # Filter in the scan rather than in Arrow: rows with a null key are never read into memory.
        present = " AND ".join(f"{quote_name(name)} IS NOT NULL" for name in names)
        keys = audit.candidate.read(names, filter=present)
        # Arrow groups plain values only.
        plain = [comparable(keys.column(name), name) for name in names]
        # These names differ from Arrow's `count_all`, whatever the columns are called.
        numbered = [f"key {place}" for place in range(len(names))]
        groups = pa.table(plain, numbered).group_by(numbered).aggregate([([], "count_all")])
        repeated = groups.filter(pc.greater(groups["count_all"], pa.scalar(1)))
        # The surplus rows: of three equal keys, two rows are too many.
        extra = keys.num_rows - groups.num_rows
        examples = repeated.slice(0, SHOWN)
        columns = [as_stored(examples.column(name), kind) for name, kind in zip(numbered, kinds, strict=True)]
        shown = [", ".join(map(str, row)) for row in zip(*map(shown_values, columns), strict=True)]
        return CheckOutcome(
            passed=extra == 0,
            description=f"rows that repeat the {', '.join(names)} of another: {extra}; allowed: none{such_as(shown)}",
            counts={"rows": keys.num_rows, "repeated_rows": extra, "repeated_keys": repeated.num_rows},
        )


@dataclass(frozen=True, slots=True)
class KeysExist(BuiltInCheck):
    """Require that every value of a column is also in the column `key` of another table.

    The check reads the candidate of the other table when the run wrote that table, and else the version that the
    resource's `read_ref` names. A null passes.
    """

    column: str
    in_table: str
    key: str
    kind: ClassVar[str] = "keys_exist"
    sentence: ClassVar[str] = "Every value of {0.column!r} is a {0.key!r} of {0.in_table}."
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validate the columns, and take the other table's key or definition as well as its name."""
        for column in (self.column, self.key):
            require_column("KeysExist", column)
        table: object = self.in_table
        if isinstance(table, dg.AssetKey | dg.AssetsDefinition | dg.AssetSpec):
            object.__setattr__(self, "in_table", asset_key_of(table).to_user_string())
        require_text("in_table of KeysExist", self.in_table, "shop/customers")

    @property
    def reads(self) -> tuple[dg.AssetKey, ...]:
        """The other table, whose rows the check reads all."""
        return (dg.AssetKey(self.in_table.split("/")),)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Look up the distinct values; reads one column of each table, batch by batch.

        Raises:
            InvalidInputError: A table has no such column, or the values of the two columns cannot be compared.
        """
        import pyarrow as pa

        from lance_dagster.format.shown_values import shown_values

        referenced = audit.others[self.reads[0]]
        values, keys = distinct(audit.candidate, self.column), distinct(referenced, self.key)
        try:
            missing = _missing(values, keys)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"column {self.column!r} is {values.type} and {self.key!r} of {self.in_table} is {keys.type}; values "
                f"of these types cannot be compared: {error}"
            ) from error
        kind = field_of(audit.candidate, self.column).type
        shown = [str(value) for value in shown_values(as_stored(missing.slice(0, SHOWN), kind))]
        return CheckOutcome(
            passed=not len(missing),
            description=(
                f"{len(missing)} of {len(values)} values of {self.column!r} are not in {self.key!r} of {self.in_table} "
                f"({referenced.ref}); allowed: none{such_as(shown)}"
            ),
            counts={"values": len(values), "missing": len(missing), "compared_with": referenced.ref},
        )


def _missing(values: Any, keys: Any) -> Any:  # noqa: ANN401  # pyarrow has no type for arrays of one kind of values
    """Return the values that equal no key; the columns may have different types, such as int32 and int64.

    Example: the int8 values 1 and 2 and the int64 keys 1 and 258 give 2: the key 258, which would be 2 as an int8,
    equals no value.

    Raises:
        pa.ArrowInvalid: Some values of one type have no counterparts in the other type.
        pa.ArrowNotImplementedError: No value of one type has a counterpart in the other type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # A key must not become equal by the cast: a key that the type of the candidate cannot hold equals no value.
    if values.type == keys.type or pa.types.is_null(keys.type):
        return values.filter(pc.invert(pc.is_in(values, value_set=keys.cast(values.type))))
    try:
        cast, is_exact = _there_and_back(keys, values.type)
    except pa.ArrowInvalid:
        # Such as text keys that are not numbers: then the numbers are compared as texts.
        cast, is_exact = _there_and_back(values, keys.type)
        return values.filter(pc.invert(pc.and_(is_exact, pc.is_in(cast, value_set=keys))))
    return values.filter(pc.invert(pc.is_in(values, value_set=cast.filter(is_exact))))


def _there_and_back(values: Any, kind: "pa.DataType") -> "tuple[Any, pa.Array[Any]]":  # noqa: ANN401  # as above
    """Return values cast to a type, and for each value whether it is the same again when it is cast back."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cast = values.cast(kind, safe=False)
    back = cast.cast(values.type, safe=False)
    is_exact = pc.equal(back, values)
    if pa.types.is_floating(values.type):
        is_exact = pc.or_(is_exact, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    if pa.types.is_integer(values.type) and pa.types.is_integer(kind):
        # -1 becomes the largest number without a sign, and is -1 again.
        signs = [pc.less(numbers, pa.scalar(0, numbers.type)) for numbers in (values, cast)]
        is_exact = pc.and_(is_exact, pc.equal(*signs))
    return cast, is_exact


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
