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
    partition_counts,
    slug,
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

    def __post_init__(self) -> None:
        """Validate that a number of rows can lie between the bounds."""
        whole_number("the minimum of RowCount", self.minimum, 0)
        if self.maximum is not None:
            whole_number("the maximum of RowCount", self.maximum, 0)
        refuse_bounds("RowCount", self.minimum, self.maximum)

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return "row_count"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"The table, or each partition of the run, has {between(self.minimum, self.maximum)} rows."

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows of each partition."""
        rows = audit.count_by_partition()
        wrong = {
            key: count
            for key, count in rows.items()
            if count < self.minimum or (self.maximum is not None and count > self.maximum)
        }
        return CheckOutcome(
            passed=not wrong,
            description=judged(
                {key: _rows(count) for key, count in wrong.items()},
                _rows(sum(rows.values())),
                audit,
                between(self.minimum, self.maximum),
            ),
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

    def __post_init__(self) -> None:
        """Validate the columns."""
        names = column_tuple("Unique", self.columns)
        if not isinstance(self.columns, str):
            object.__setattr__(self, "columns", names)

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return f"unique_{slug('_'.join(self._names))}"

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
        # Names that Arrow's `count_all` is not among, whatever the columns are called.
        numbered = [f"key {place}" for place in range(len(names))]
        groups = pa.table(plain, numbered).group_by(numbered).aggregate([([], "count_all")])
        repeated = groups.filter(pc.greater(groups["count_all"], pa.scalar(1)))
        # The surplus rows: of three equal keys, two rows are too many.
        extra = keys.num_rows - groups.num_rows
        some = repeated.slice(0, SHOWN)
        columns = [as_stored(some.column(name), kind) for name, kind in zip(numbered, kinds, strict=True)]
        shown = [", ".join(map(str, row)) for row in zip(*map(shown_values, columns), strict=True)]
        return CheckOutcome(
            passed=extra == 0,
            description=f"rows that repeat the {', '.join(names)} of another: {extra}; allowed: none{such_as(shown)}",
            counts={"rows": keys.num_rows, "repeated_rows": extra, "repeated_keys": repeated.num_rows},
        )


@dataclass(frozen=True, slots=True)
class KeysExist(BuiltInCheck):
    """Require that every value of a column is also in the column `key` of another table.

    The check reads the candidate of the other table when the run wrote it, and else the version that the
    resource's `read_ref` names. A null passes.
    """

    column: str
    in_table: str
    key: str
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validate the columns, and take the other table's key or definition as well as its name."""
        for column in (self.column, self.key):
            require_column("KeysExist", column)
        given: object = self.in_table
        if isinstance(given, dg.AssetKey | dg.AssetsDefinition | dg.AssetSpec):
            object.__setattr__(self, "in_table", asset_key_of(given).to_user_string())
        require_text("in_table of KeysExist", self.in_table, "shop/customers")

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return f"keys_exist_{slug(self.column)}"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"Every value of {self.column!r} is a {self.key!r} of {self.in_table}."

    @property
    def reads(self) -> tuple[dg.AssetKey, ...]:
        """The other table, of which the check reads all rows."""
        return (dg.AssetKey(self.in_table.split("/")),)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Look up the distinct values; reads one column of each table, batch by batch.

        Raises:
            InvalidInputError: A table has no such column, or its values cannot be compared with those of the other.
        """
        import pyarrow as pa

        from lance_dagster.format.shown_values import shown_values

        other = audit.others[self.reads[0]]
        wanted, known = distinct(audit.candidate, self.column), distinct(other, self.key)
        try:
            left = _missing(wanted, known)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"column {self.column!r} is {wanted.type} and {self.key!r} of {self.in_table} is {known.type}; values "
                f"of these types cannot be compared: {error}"
            ) from error
        kind = field_of(audit.candidate, self.column).type
        shown = [str(value) for value in shown_values(as_stored(left.slice(0, SHOWN), kind))]
        return CheckOutcome(
            passed=not len(left),
            description=(
                f"{len(left)} of {len(wanted)} values of {self.column!r} are not in {self.key!r} of {self.in_table} "
                f"({other.ref}); allowed: none{such_as(shown)}"
            ),
            counts={"values": len(wanted), "missing": len(left), "compared_with": other.ref},
        )


def _missing(wanted: Any, known: Any) -> Any:  # noqa: ANN401  # pyarrow has no type for arrays of one kind of values
    """Return the values that equal no known one; the tables may store them in different types, such as int32 and int64.

    Raises:
        pa.ArrowInvalid: Values of one type have no counterparts in the other.
        pa.ArrowNotImplementedError: The same, for all values.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # Another key must not become equal by the cast: one that the type of the candidate cannot hold equals no value.
    if wanted.type == known.type or pa.types.is_null(known.type):
        return wanted.filter(pc.invert(pc.is_in(wanted, value_set=known.cast(wanted.type))))
    try:
        cast, kept = _there_and_back(known, wanted.type)
    except pa.ArrowInvalid:
        # A text among the keys is no number, for example, so the numbers are compared as texts.
        cast, kept = _there_and_back(wanted, known.type)
        return wanted.filter(pc.invert(pc.and_(kept, pc.is_in(cast, value_set=known))))
    return wanted.filter(pc.invert(pc.is_in(wanted, value_set=cast.filter(kept))))


def _there_and_back(values: Any, kind: "pa.DataType") -> "tuple[Any, pa.Array[Any]]":  # noqa: ANN401  # as above
    """Return values cast to a type, and whether each of them is the same again when it is cast back."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cast = values.cast(kind, safe=False)
    back = cast.cast(values.type, safe=False)
    kept = pc.equal(back, values)
    if pa.types.is_floating(values.type):
        kept = pc.or_(kept, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    if pa.types.is_integer(values.type) and pa.types.is_integer(kind):
        # -1 becomes the largest number without a sign, and is -1 again.
        signs = [pc.less(numbers, pa.scalar(0, numbers.type)) for numbers in (values, cast)]
        kept = pc.and_(kept, pc.equal(*signs))
    return cast, kept


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
