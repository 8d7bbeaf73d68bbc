"""Write predicates of Lance SQL that match the rows with the keys of an upsert."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import decoded
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import plain_literal

# The largest number of keys listed in a claim. Claims are stored in the transaction, which every merge reads.
LISTED = 100
# The largest number of keys for which a filtered scan, which can use an index, replaces a scan of the whole table.
_LOOKED_UP = 1000


def comparable_values(column: "pa.ChunkedArray[Any]", name: str) -> "pa.Array[Any]":
    """Return a key column as one array of plain values, which Arrow finds equal exactly where the keys are equal.

    Raises:
        InvalidInputError: The column is nested, of half-precision floats or of JSON.
    """
    # The table may return another text for the same JSON, such as one without spaces.
    if getattr(column.type, "extension_name", "") == "arrow.json":
        raise InvalidInputError(f"column {name!r} is JSON, which cannot be a key; give columns of other types")
    # Dictionaries of two arrays may assign different codes to one value, so the values themselves are compared.
    plain: Any = decoded(column).combine_chunks()
    # pyarrow returns a chunked array again for some types, and when there is no chunk.
    if isinstance(plain, pa.ChunkedArray):
        plain = pa.concat_arrays(plain.chunks) if plain.num_chunks else pa.array([], plain.type)
    if isinstance(plain, pa.ExtensionArray):
        plain = plain.storage
    if pa.types.is_nested(plain.type) or pa.types.is_float16(plain.type):
        raise InvalidInputError(
            f"column {name!r} is {column.type}, which cannot be a key; give columns whose values are not nested"
        )
    comparable: pa.Array[Any] = _with_one_nan(plain) if pa.types.is_floating(plain.type) else plain
    return comparable


def _with_one_nan(numbers: Any) -> Any:  # noqa: ANN401  # pyarrow has no type for an array of one kind of values
    """Replace each NaN by `float("nan")`: Arrow compares bits, and 0/0 gives a NaN with another sign."""
    return pc.if_else(pc.is_nan(numbers), pa.scalar(float("nan"), numbers.type), numbers)


def has_literals(kind: pa.DataType) -> bool:
    """Return whether predicates can name values of a type: booleans, integers and text."""
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return text or pa.types.is_boolean(kind) or pa.types.is_integer(kind)


def predicate_of(rows: pa.Table, columns: Sequence[str]) -> str | None:
    """Return a Lance SQL predicate that matches every row with one of these keys, and possibly other rows.

    A claim may be too wide, which causes a conflict too many; it must never be too narrow. Returns None when no column
    of the key can be written as literals.
    """
    conditions = [condition for name in columns if (condition := _condition(rows.column(name), name)) is not None]
    return " AND ".join(conditions) or None


def exact_predicate_of(rows: pa.Table, columns: Sequence[str]) -> str | None:
    """Return a predicate that lists the values of one key column; None when they are many or have no literals.

    With a scalar index on the column, pylance evaluates the predicate without a scan of the whole column.
    """
    # One column is enough: the complete keys of the rows found are compared afterwards.
    for name in columns:
        values = comparable_values(rows.column(name), name).drop_null().unique()
        if 0 < len(values) <= _LOOKED_UP and (condition := _listed(values, name)) is not None:
            return condition
    return None


def _condition(column: "pa.ChunkedArray[Any]", name: str) -> str | None:
    """Return a list of the values of a column, or the range they span when there are many."""
    values = comparable_values(column, name).drop_null().unique()
    if len(values) <= LISTED:
        return _listed(values, name)
    if not has_literals(values.type):
        return None
    limits: Any = pc.min_max(values) if not pa.types.is_boolean(values.type) else None
    low, high = plain_literal(limits["min"].as_py()), plain_literal(limits["max"].as_py())
    return None if low is None or high is None else f"`{name}` >= {low} AND `{name}` <= {high}"


def _listed(values: "pa.Array[Any]", name: str) -> str | None:
    # Values of other types stay in Arrow: Python has no dates after the year 9999, and no long durations.
    if not has_literals(values.type):
        return None
    listed = [plain_literal(value) for value in values.to_pylist()]
    # A value without a literal would be missing from the list, and its rows from the result, so there is no list then.
    literals = [literal for literal in listed if literal is not None]
    return f"`{name}` IN ({', '.join(literals)})" if literals and len(literals) == len(listed) else None
