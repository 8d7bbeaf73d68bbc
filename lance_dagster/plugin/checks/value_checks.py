"""Checks of the values of a column, or of a condition, in each row."""

import re
import warnings
from dataclasses import dataclass, field
from typing import ClassVar

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import Bound, check_closed, quote_name, quote_text
from lance_dagster.format.validation import check_flag
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.check_arguments import (
    comparable,
    refuse_bounds,
    require_column,
    require_number,
    require_text,
    value_tuple,
)
from lance_dagster.plugin.checks.check_queries import (
    SHOWN,
    BuiltInCheck,
    between,
    count_outcome,
    count_where,
    field_of,
    is_float,
    judged,
    partition_counts,
    such_as,
    wrong_values,
)
from lance_dagster.plugin.checks.fitted_bounds import fitted
from lance_dagster.plugin.checks.table_check import Audit, CheckOutcome

# The errors of Python for mistakes that are mistakes in Rust too. Python also refuses some expressions that Rust knows,
# such as `\p{L}`.
_BRACKETS = ("unterminated subpattern", "unbalanced parenthesis", "unterminated character set")
# Python knows no sets within sets, and reads the rest of such an expression otherwise.
_NESTED = re.compile(r"\[[^\]]*\[")


def _wrong_brackets(pattern: str) -> str | None:
    """Return what is wrong with the brackets of a regular expression, as far as Python can tell."""
    if _NESTED.search(pattern):
        return None
    try:
        with warnings.catch_warnings():
            # Python warns of operators of sets, such as `--`, which Rust knows.
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except re.error as error:
        return str(error) if error.msg.endswith(_BRACKETS) else None
    return None


@dataclass(frozen=True, slots=True)
class NotNull(BuiltInCheck):
    """Require that no row has a null in a column."""

    column: str
    kind: ClassVar[str] = "not_null"
    sentence: ClassVar[str] = "Every row has a value in {0.column!r}."
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validate the column."""
        require_column("NotNull", self.column)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows in which the column is null."""
        nulls = count_where(audit.candidate, self.column, f"{quote_name(self.column)} IS NULL")
        return CheckOutcome(
            passed=nulls == 0,
            description=f"rows without a value in {self.column!r}: {nulls}; allowed: none",
            counts={"rows": audit.candidate.count_rows(), "nulls": nulls},
        )


@dataclass(frozen=True, slots=True)
class NullRate(BuiltInCheck):
    """Limit the share of rows in which a column is null: 0.05 allows one row in twenty."""

    column: str
    maximum: float
    kind: ClassVar[str] = "null_rate"
    sentence: ClassVar[str] = "At most {0.maximum:.2%} of the rows have no value in {0.column!r}."

    def __post_init__(self) -> None:
        """Validate that the share is from 0 to 1: a percentage such as 5 would let every table pass."""
        require_column("NullRate", self.column)
        require_number(f"the maximum of NullRate of {self.column!r}", self.maximum)
        if not 0 <= self.maximum <= 1:
            raise InvalidInputError(f"NullRate of {self.column!r} allows {self.maximum}; give a share from 0 to 1")

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the nulls of each partition, as a share of its rows; without rows the share is 0."""
        # Before the counts, for its error when the column does not exist.
        field_of(audit.candidate, self.column)
        counts = audit.count_by_partition()
        null_counts = audit.count_by_partition(f"{quote_name(self.column)} IS NULL")
        # The limit is multiplied, since a partition without rows has no share.
        wrong = {
            key: f"{null_counts[key] / of:.2%}" for key, of in counts.items() if null_counts[key] > self.maximum * of
        }
        rows, nulls = sum(counts.values()), sum(null_counts.values())
        rate = nulls / rows if rows else 0.0
        allowed = f"{self.maximum:.2%}"
        share = judged(wrong, f"{rate:.2%}", audit, allowed, of=f"of the rows have no value in {self.column!r}")
        return CheckOutcome(
            passed=not wrong,
            description=share,
            counts={"rows": rows, "nulls": nulls, "null_rate": rate, **partition_counts(audit, wrong)},
        )


@dataclass(frozen=True, slots=True)
class InRange(BuiltInCheck):
    """Require that every value of a column lies between two inclusive bounds, of which one may be None.

    A null passes. NaN fails. Bounds of integer, decimal, date and timestamp columns are compared exactly.
    """

    column: str
    minimum: Bound | None = None
    maximum: Bound | None = None
    kind: ClassVar[str] = "in_range"
    sentence: ClassVar[str] = "Every value of {0.column!r} is {0._allowed}."
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validate that at least one bound is given, and that a value can lie between two."""
        require_column("InRange", self.column)
        if self.minimum is None and self.maximum is None:
            raise InvalidInputError(
                f"InRange of {self.column!r} has neither minimum nor maximum; give at least one of them"
            )
        check = f"InRange of {self.column!r}"
        for name, bound in (("minimum", self.minimum), ("maximum", self.maximum)):
            if bound is not None:
                object.__setattr__(self, name, comparable(check, bound))
        refuse_bounds(check, self.minimum, self.maximum)

    @property
    def _allowed(self) -> str:
        return between(self.minimum, self.maximum)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the values outside the bounds.

        Raises:
            InvalidInputError: The table has no such column, or a bound of another kind, such as a text for numbers.
        """
        column, kind, inside = quote_name(self.column), field_of(audit.candidate, self.column), []
        # Nulls pass a bound that no value satisfies.
        holds = {True: "true", False: f"{column} IS NULL"}
        if self.minimum is not None:
            bound = fitted(kind, self.minimum, "minimum")
            inside.append(f"{column} >= {bound}" if isinstance(bound, str) else holds[bound])
        if self.maximum is not None:
            bound = fitted(kind, self.maximum, "maximum")
            inside.append(f"{column} <= {bound}" if isinstance(bound, str) else holds[bound])
        # NaN needs a term of its own: Lance orders it above every number, and with the sign bit below every number,
        # so a range with one bound would accept it. The condition negates "inside" because NOT of a null is null, so
        # that nulls pass.
        nan = f" OR isnan({column})" if is_float(audit.candidate, self.column) else ""
        condition = f"NOT ({' AND '.join(inside)}){nan}"
        outside = count_where(audit.candidate, self.column, condition)
        examples = such_as(wrong_values(audit.candidate, self.column, condition) if outside else [])
        return CheckOutcome(
            passed=outside == 0,
            description=f"values of {self.column!r} outside: {outside}; allowed: {self._allowed}{examples}",
            counts={"rows": audit.candidate.count_rows(), "outside": outside},
        )


@dataclass(frozen=True, slots=True)
class IsIn(BuiltInCheck):
    """Require that every value of a column is in a list. A null passes. NaN fails."""

    column: str
    values: tuple[Bound, ...]
    kind: ClassVar[str] = "is_in"
    sentence: ClassVar[str] = "Every value of {0.column!r} is one of {0._allowed}."
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validate that the values are a list, and not a text whose letters would be taken for values."""
        require_column("IsIn", self.column)
        object.__setattr__(self, "values", value_tuple(f"IsIn of {self.column!r}", self.values))

    @property
    def _allowed(self) -> str:
        return md.listed(list(map(str, self.values)), SHOWN)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the values that are not in the list.

        Raises:
            InvalidInputError: The table has no such column, or a value is of another kind than the column.
        """
        column, kind = quote_name(self.column), field_of(audit.candidate, self.column)
        # A value that the type of the column cannot hold equals no value of the column.
        listed = [sql for member in self.values if isinstance(sql := fitted(kind, member, "member"), str)]
        # NOT of a null is null, so that nulls pass.
        condition = f"NOT ({column} IN ({', '.join(listed)}))" if listed else f"{column} IS NOT NULL"
        return count_outcome(audit, self.column, condition, f"values of {self.column!r} other than {self._allowed}")


@dataclass(frozen=True, slots=True)
class Matches(BuiltInCheck):
    """Require that every value of a text column matches a regular expression from its start to its end.

    A null passes. The expression is one of Rust's regex library, which has no look-around and no back references.
    """

    column: str
    pattern: str
    kind: ClassVar[str] = "matches"
    sentence: ClassVar[str] = "Every value of {0.column!r} matches {0.pattern}."
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validate the brackets of the expression; Lance finds other mistakes when the check is evaluated."""
        require_column("Matches", self.column)
        require_text(f"the pattern of Matches of {self.column!r}", self.pattern, "[a-z]+")
        wrong = _wrong_brackets(self.pattern)
        if wrong:
            raise InvalidInputError(
                f"the pattern {self.pattern!r} of Matches of {self.column!r} is not a regular expression: {wrong}; "
                "close the bracket, or write a backslash before a bracket that stands for itself"
            )

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the values that do not match."""
        # Not ^ and $: an expression with the flag for several lines would match a part of the value.
        pattern = quote_text(rf"\A(?:{self.pattern})\z")
        condition = f"NOT regexp_like({quote_name(self.column)}, {pattern})"
        return count_outcome(
            audit, self.column, condition, f"values of {self.column!r} that do not match {self.pattern}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Satisfies(BuiltInCheck):
    """Require that every row satisfies a predicate in Lance SQL, such as `amount >= 0 OR kind = 'refund'`.

    A row for which the predicate is null fails, because it does not satisfy the predicate. With `nulls_pass` it passes,
    as in a CHECK constraint of SQL. NaN is greater than every number in Lance SQL, but a NaN with the sign bit, which
    0/0 may give, is less than every number; `isnan(amount)` is true for both.
    """

    predicate: str
    # `field()` because a dataclass would take the property `name` of the base class for a default.
    name: str = field()
    nulls_pass: bool = False
    kind: ClassVar[str] = "satisfies"
    sentence: ClassVar[str] = "Every row satisfies {0.predicate}."
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validate the name, and that all brackets of the predicate are closed, since it is put into parentheses."""
        require_text("the name of Satisfies", self.name, "amounts")
        require_text(f"the predicate of Satisfies {self.name!r}", self.predicate, "amount >= 0")
        check_flag(f"nulls_pass of Satisfies {self.name!r}", self.nulls_pass)
        check_closed(f"the predicate of Satisfies {self.name!r}", self.predicate)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows that do not satisfy the predicate."""
        # A null is neither true nor false: only IS NOT TRUE counts its row.
        condition = f"NOT ({self.predicate})" if self.nulls_pass else f"({self.predicate}) IS NOT TRUE"
        return count_outcome(audit, None, condition, f"rows that do not satisfy {self.predicate}")
