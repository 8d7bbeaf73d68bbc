"""Decide how a table's columns change when an output has other columns, by its policy `lance/schema_evolution`.

The policies, each with the outputs that it accepts:

- `refuse`: the columns of the table, in any order, with types that hold the same values. A column without a value, of
  Arrow's type null, fits every type.
- `add_columns`: also new columns, which are null in the rows that the table has; nullable columns that the output
  lacks, which are null in new rows and stay as they are in rows that an upsert updates; and numbers of another type,
  when each value fits the type of the table.
- `widen`: also numbers that need a wider type, which the column gets: a wider integer, double for single precision,
  double for integers that it holds exactly, a decimal with at least as many digits before and after the point.
- `replace`: any columns; an overwrite then gives the table the columns of the output.

Example, for a table with `id: int32` and an output with `id: int64, note: string`:

    refuse         refuses the output: `id` has another type, and `note` is not in the table
    add_columns    adds `note`, and stores `id` as int32 when each value fits; otherwise refuses the output
    widen          adds `note`, and makes `id` an int64 when a value does not fit
    replace        the table gets `id: int64, note: string`, and older rows are dropped

What holds for columns and numbers holds for the fields of structs, also in lists and maps, and for the numbers in them.

Under every policy, a table without columns, which a first output without columns creates, takes the columns of the
first output with columns. A column of type null holds no value and takes the type of the first values, and so do the
items of lists that were all empty. In the same way a table that was created and never written takes the whole schema of
its first output. While another run that wrote such a table waits to be published, as in a first backfill, the table
takes the schema only where the policy refuses the output: the rows of several runs cannot be merged when each run
replaced the columns.

Edits and rows are commits of their own on the branch of the run, so they become visible together when it is published.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lance_dagster.datafiles import exact_cast, fits_type
from lance_dagster.errors import SchemaMismatchError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.common_types import (
    are_numbers,
    can_be_cast,
    common_type,
    is_wider,
    needs_cast,
    new_fields,
    without_length,
)
from lance_dagster.plugin.settings import SchemaEvolution
from lance_dagster.table import LanceTable

# The names of the functions of pyarrow for types that it prints by other names.
_FUNCTIONS = {"double": "float64", "float": "float32", "halffloat": "float16", "bool": "bool_"}
# The first part of the names of branches that only one run writes; the next run starts from `main`.
_OF_RUN = "run/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """The change of a table's columns before rows are written.

    Attributes:
        schema: The columns of the table afterwards, which the rows are written with.
        added: The columns that the table gets.
        grown: The fields that structs get, each with the path of its struct.
        retyped: The columns that get another type.
        replaced: Whether the columns of the output replace all columns.
        notes: Lines for the log of the run.
        warning: Why the rows may be refused when the run is published; empty if nothing speaks against them.
    """

    schema: pa.Schema
    added: tuple["pa.Field[Any]", ...] = ()
    grown: tuple[tuple[str, "pa.Field[Any]"], ...] = ()
    retyped: Mapping[str, pa.DataType] = field(default_factory=dict)
    replaced: bool = False
    notes: tuple[str, ...] = ()
    warning: str = ""

    def apply(self, table: LanceTable, branch: str, properties: Mapping[str, str]) -> list[Version]:
        """Edit the columns on a branch and return the versions; an edit of an earlier attempt is not repeated."""
        by_struct: dict[str, list[pa.Field[Any]]] = {}
        for path, new in self.grown:
            by_struct.setdefault(path, []).append(new)
        edits = [
            table.columns.add_fields(path, fields, branch=branch, message=f"extend {path}", properties=properties)
            for path, fields in by_struct.items()
        ]
        # A cast changes no field of a struct, so the new fields have to be there first.
        edits += [
            table.columns.cast(name, kind, branch=branch, message=f"widen {name} to {kind}", properties=properties)
            for name, kind in self.retyped.items()
        ]
        if self.added:
            names = ", ".join(column.name for column in self.added)
            message = f"add {names}"
            edits.append(table.columns.add(list(self.added), branch=branch, message=message, properties=properties))
        return edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """The policy of one output for the columns of its table.

    Attributes:
        policy: The policy.
        where: The asset and the table, for messages.
        mode: The write mode of the output: only an overwrite can replace the columns.
        branch: The branch that is written, for messages.
        values: The rows of the output when they are in memory; None for streams and frames of executors.
    """

    policy: SchemaEvolution
    where: str
    mode: str
    branch: str = MAIN
    values: pa.Table | None = None

    def change(self, output: pa.Schema, current: pa.Schema) -> SchemaChange:
        """Return the change of the columns `current` of a table for an output with the columns `output`.

        Raises:
            SchemaMismatchError: The policy does not accept the difference; the message names each column, both types
                and the setting that accepts the output.
        """
        changes = [self._column(own, output) for own in current]
        added = _added(output, current)
        problems = self.problems(output, current)
        if problems and self.policy == "replace":
            return SchemaChange(
                schema=output, replaced=True, notes=(f"the columns are replaced: {'; '.join(problems)}",)
            )
        if problems:
            raise SchemaMismatchError(f"{self.where}: {'; '.join(problems)}; {self._remedy(output, current)}")
        pairs = [(own, change.column) for own, change in zip(current, changes, strict=True)]
        notes = [change.note for change in changes if change.note]
        notes += [f"column {column.name!r} ({column.type}) is added" for column in added]
        return SchemaChange(
            schema=pa.schema([*(change.column for change in changes), *added]),
            added=tuple(added),
            grown=tuple(new for own, after in pairs for new in new_fields(own.type, after.type, own.name)),
            retyped={own.name: after.type for own, after in pairs if needs_cast(own.type, after.type)},
            notes=tuple(notes),
        )

    def problems(self, output: pa.Schema, current: pa.Schema) -> list[str]:
        """Return the differences that the policy does not accept."""
        problems = [change.problem for own in current if (change := self._column(own, output)).problem]
        doubled = sorted({name for name in output.names if output.names.count(name) > 1})
        problems += [f"column {name!r} is given twice" for name in doubled]
        # A table without columns has no rows either: it takes the columns of the first output with columns.
        if self.policy in ("refuse", "replace") and current.names:
            added = _added(output, current)
            problems += [f"column {column.name!r} is {column.type} and not in the table" for column in added]
        return problems

    def _column(self, own: "pa.Field[Any]", output: pa.Schema) -> "_Column":
        """Return the change of one column of the table."""
        lenient = self.policy in ("add_columns", "widen")
        # `problems` reports a name that occurs twice, for columns of the table and for new columns.
        if output.names.count(own.name) > 1:
            return _Column(own)
        if own.name not in output.names:
            if lenient and own.nullable:
                consequence = ", and stays in the rows that are updated" if self.mode == "upsert" else ""
                return _Column(
                    own, note=f"column {own.name!r} is not in the output and is null in new rows{consequence}"
                )
            null = "" if own.nullable else ", which takes no nulls"
            return _Column(own, problem=f"column {own.name!r} ({own.type}{null}) is missing in the output")
        kind = output.field(own.name).type
        if fits_type(kind, own.type):
            return _Column(own)
        if pa.types.is_null(own.type):
            return _Column(own.with_type(kind), note=f"column {own.name!r}, which held no value, becomes {kind}")
        return self._joined(own, kind, lenient=lenient)

    def _joined(self, own: "pa.Field[Any]", kind: pa.DataType, *, lenient: bool) -> "_Column":
        """Return the change of a column for values of another type."""
        unchanged = common_type(own.type, kind, "own" if lenient else "same")
        wider = common_type(own.type, kind, "wider") if self.policy == "widen" else None
        # The values of an output in memory decide whether the column has to be widened. The values of a stream are
        # unknown when the column is edited, so its type decides.
        if self.values is None:
            unchanged, wider = wider or unchanged, None
        if unchanged is None:
            return _Column(own, problem=f"column {own.name!r} is {kind} in the output and {own.type} in the table")
        problem = None if self.values is None else _misfit(self.values, own.with_type(unchanged))
        if problem is not None and (wider is None or wider == unchanged):
            return _Column(own, problem=problem)
        result = wider if problem is not None and wider is not None else unchanged
        return _Column(own.with_type(result), note=_note(own, kind, result))

    def _remedy(self, output: pa.Schema, current: pa.Schema) -> str:
        """Return the setting that would accept the output, and what else would make it fit the table."""
        setting = f"{md.SCHEMA_EVOLUTION} is {self.policy!r}"
        remedies = [*self._casts(output, current), *self._policies(output, current), *self._edits(output, current)]
        if self.policy != "replace" and self.mode == "overwrite":
            remedies.append(
                "with 'replace' the table gets the columns of the output, and all older rows are dropped with their "
                "columns"
            )
        return "; ".join([setting, *(remedies or ["return the columns and types of the table"])])

    def _casts(self, output: pa.Schema, current: pa.Schema) -> list[str]:
        """Return the casts that an asset can make without loss, of numbers that the type of the table holds."""
        return [
            f"cast {own.name!r} in the asset to the table's {own.type}, which holds every {output.field(own.name).type}"
            for own in current
            if self._column(own, output).problem
            and output.names.count(own.name) == 1
            and are_numbers(output.field(own.name).type, own.type)
            and is_wider(own.type, output.field(own.name).type)
        ]

    def _policies(self, output: pa.Schema, current: pa.Schema) -> list[str]:
        # The order makes the message name the policy that changes the table least.
        others: tuple[SchemaEvolution, ...] = ("add_columns", "widen")
        for policy in others:
            if not replace(self, policy=policy).problems(output, current):
                return [f"with {policy!r} the output would be accepted"]
        return []

    def _edits(self, output: pa.Schema, current: pa.Schema) -> list[str]:
        """Return the calls that change the table so that the output fits it, for a rename and for other types."""
        # Runs fork their own branch from `main`; any other branch is written by later runs too.
        place = "" if self.branch == MAIN or self.branch.startswith(_OF_RUN) else f", branch={self.branch!r}"
        on = "" if place else " on main"
        edits = []
        lost = [own for own in current if own.name not in output.names]
        new = [column for column in output if column.name not in current.names]
        if len(lost) == len(new) == 1 and fits_type(new[0].type, lost[0].type):
            names = f"{lost[0].name!r}, {new[0].name!r}"
            edits.append(
                f"if {new[0].name!r} is {lost[0].name!r} under another name, call table.columns.rename({names}{place})"
                f"{on} first, or return it as {lost[0].name!r}: as a new column it would be null in all older rows"
            )
        refused = replace(self, policy="widen")
        for own in current:
            if output.names.count(own.name) == 1 and refused._column(own, output).problem:  # noqa: SLF001  # same class
                kind = without_length(own.type, output.field(own.name).type)
                change = f", or change the table by table.columns.cast({own.name!r}, {_spelled(kind)}{place}){on}"
                change = change if can_be_cast(own.type, kind) else ""
                edits.append(f"cast {own.name!r} in the asset to the table's {own.type}{change}")
        return edits


@dataclass(frozen=True, slots=True)
class _Column:
    """The change of one column: its field afterwards, a line for the log, or why it cannot be written."""

    column: "pa.Field[Any]"
    note: str = ""
    problem: str = ""


def _added(output: pa.Schema, current: pa.Schema) -> list["pa.Field[Any]"]:
    # The column is nullable, because the rows that the table has get nulls.
    return [column.with_nullable(True) for column in output if column.name not in current.names]  # noqa: FBT003


def _misfit(values: pa.Table, column: "pa.Field[Any]") -> str | None:
    """Return why values do not fit a column of numbers, or None when all of them do."""
    try:
        for chunk in values.column(column.name).chunks:
            exact_cast(chunk, column)
    except SchemaMismatchError as error:
        return str(error)
    return None


def _note(own: "pa.Field[Any]", kind: pa.DataType, result: pa.DataType) -> str:
    """Return the line for the log about a column whose values come with another type."""
    new = [f"{path}.{field.name} ({field.type})" for path, field in new_fields(own.type, result, own.name)]
    if needs_cast(own.type, result):
        return f"column {own.name!r} is widened from {own.type} to {result}"
    if new:
        return f"column {own.name!r} gets {', '.join(new)}"
    return f"column {own.name!r} is {kind} in the output and is stored as the table's {own.type}"


def _spelled(kind: Any) -> str:  # noqa: ANN401  # any Arrow type
    """Return a type as Python code, or between angle brackets where pyarrow has no short form."""
    if pa.types.is_decimal(kind):
        return f"pa.{kind}"
    if pa.types.is_timestamp(kind):
        return f"pa.timestamp({kind.unit!r}{f', {kind.tz!r}' if kind.tz else ''})"
    if pa.types.is_struct(kind):
        return f"pa.struct([{', '.join(f'({field.name!r}, {_spelled(field.type)})' for field in kind)}])"
    if pa.types.is_list(kind):
        return f"pa.list_({_spelled(kind.value_type)})"
    name = _FUNCTIONS.get(str(kind), str(kind))
    return f"pa.{name}()" if name.isidentifier() and hasattr(pa, name) else f"<{kind}>"
