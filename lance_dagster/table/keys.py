"""Keys: which rows of a table are meant by rows of the same key.

A key is the value of one column, or of several together. A key with a null in it is equal to no other, as in SQL and
as pylance has it. Numbers that are no numbers are equal to each other; nought and minus nought are not: values are
compared as they are stored.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import Positions
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.texts import texts

_LISTED = 100
"""Up to so many keys are named one by one in a predicate."""
_LOOKED_UP = 1000
"""Up to so many keys are looked up by an index, where there is one."""
_BEYOND = 2**63
_NOWHERE = -1


def key_columns(given: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a key that a caller gave.

    Raises:
        InvalidInputError: There are none, or it is no list.
    """
    found = texts("key", given, "id")
    if not found:
        raise InvalidInputError("a key is a list of columns such as ['id'], not an empty one")
    return found


class Keys:
    """The keys of some rows, each of them once, ready to be looked up for any number of other rows.

    A key of several columns is numbered column by column: two columns give a pair of numbers, each pair that occurs
    a number, and so on. Rows with a number that does not occur are left behind on the way.
    """

    def __init__(self, rows: pa.Table, columns: Sequence[str]) -> None:
        """Give each key of some rows a number.

        Raises:
            InvalidInputError: Two rows have the same key, or a column is of a type that cannot be compared.
        """
        self._columns = tuple(columns)
        self._values: list[pa.Array[Any]] = []
        self._pairs: list[Positions] = []
        stored = [_comparable(rows.column(name), name) for name in columns]
        for values in stored:
            self._values.append(values.drop_null().unique())
        numbers = self._numbers(stored, learn=True)
        places = np.flatnonzero(numbers != _NOWHERE)
        order = np.argsort(numbers[places], kind="stable")
        self._rows = places[order]
        known = numbers[self._rows]
        twice = np.flatnonzero(known[1:] == known[:-1])
        if len(twice):
            row = rows.select(self._columns).slice(int(self._rows[twice[0]]), 1).to_pylist()[0]
            shown = ", ".join(f"{name} = {value!r}" for name, value in row.items())
            raise InvalidInputError(f"two of the rows have the key {shown}; each key may come once")

    def places(self, rows: pa.Table) -> Positions:
        """Return for each row the place of the row of the same key among those given first; -1 for none."""
        numbers = self._numbers([_comparable(rows.column(name), name) for name in self._columns], learn=False)
        if not len(self._rows):
            return np.full(rows.num_rows, _NOWHERE, np.int64)
        # Numbers of keys that occur are dense, since each of them occurs once.
        return np.where(numbers == _NOWHERE, _NOWHERE, self._rows[numbers])

    def _numbers(self, columns: "Sequence[pa.Array[Any]]", *, learn: bool) -> Positions:
        numbers = _codes(columns[0], self._values[0])
        for step, (column, values) in enumerate(zip(columns[1:], self._values[1:], strict=True)):
            codes = _codes(column, values)
            there = (numbers != _NOWHERE) & (codes != _NOWHERE)
            pairs = numbers * max(len(values), 1) + codes
            if learn:
                self._pairs.append(np.unique(pairs[there]))
            numbers = _found(pairs, there, self._pairs[step])
        return numbers


def _codes(column: "pa.Array[Any]", values: "pa.Array[Any]") -> Positions:
    found: Any = pc.index_in(column, value_set=values, skip_nulls=True)
    codes: Positions = found.fill_null(_NOWHERE).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _found(pairs: Positions, there: np.ndarray[tuple[int], np.dtype[np.bool_]], known: Positions) -> Positions:
    if not len(known):
        return np.full(len(pairs), _NOWHERE, np.int64)
    places = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
    return np.where(there & (known[places] == pairs), places, _NOWHERE)


def _comparable(column: "pa.ChunkedArray[Any]", name: str) -> "pa.Array[Any]":
    whole: Any = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    if isinstance(whole, pa.ExtensionArray):
        whole = whole.storage
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    if pa.types.is_nested(whole.type) or pa.types.is_float16(whole.type):
        raise InvalidInputError(
            f"column {name!r} is {column.type}, which cannot be a key; give columns of single values"
        )
    comparable: pa.Array[Any] = whole
    return comparable


def predicate_of(rows: pa.Table, columns: Sequence[str]) -> str | None:
    """Return a condition in Lance SQL that holds for every row with one of these keys, and for few others.

    None when no value of the key can be written down.
    """
    found = [condition for name in columns if (condition := _condition(rows.column(name), name)) is not None]
    return " AND ".join(found) or None


def exact_predicate_of(rows: pa.Table, columns: Sequence[str]) -> str | None:
    """Return a condition that names the values of one column of a key one by one, if they are few; else None.

    An index on the column answers it without a look at every row.
    """
    for name in columns:
        values = _comparable(rows.column(name), name).drop_null().unique()
        if 0 < len(values) <= _LOOKED_UP and (condition := _listed(values, name)) is not None:
            return condition
    return None


def _condition(column: "pa.ChunkedArray[Any]", name: str) -> str | None:
    values = _comparable(column, name).drop_null().unique()
    if len(values) <= _LISTED:
        return _listed(values, name)
    limits: Any = pc.min_max(values) if not pa.types.is_boolean(values.type) else None
    low, high = _literal(limits["min"].as_py()), _literal(limits["max"].as_py())
    return None if low is None or high is None else f"`{name}` >= {low} AND `{name}` <= {high}"


def _listed(values: "pa.Array[Any]", name: str) -> str | None:
    listed = [_literal(value) for value in values.to_pylist()]
    known = [literal for literal in listed if literal is not None]
    return f"`{name}` IN ({', '.join(known)})" if known and len(known) == len(listed) else None


def _literal(value: object) -> str | None:
    """Write a value in Lance SQL; None for types that have no plain literal."""
    match value:
        case bool():
            return str(value).lower()
        case int() if -_BEYOND <= value < _BEYOND:
            return str(value)
        case str() if value.isprintable():
            return "'" + value.replace("'", "''") + "'"
        case _:
            return None
