"""Values of Arrow as Python shows them, for people and for JSON.

Python's dates and times end with the year 9999, its durations after a billion days, and it needs to know a time zone.
Arrow and Lance have none of these limits. A value that Python has no object for is shown as text in place of an object,
so that one such value does not keep all others from being shown. Python's time of day ends with microseconds, so one
with nanoseconds is text as well: two values that differ must not be shown alike. Nothing may be computed from these
values.
"""

from typing import Any

import pyarrow as pa

# What pyarrow raises: for a value out of range; for nanoseconds without pandas; for a time zone that is not known.
_NO_OBJECT = (OverflowError, ValueError, LookupError)
_NANOS_OF_MICRO = 1000


def shown_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dictionaries. A value that Python has no object for is text.

    Args:
        rows: The rows; all of them are converted.
    """
    try:
        if not any(map(_has_nanoseconds, rows.schema.types)):
            return rows.to_pylist()
    except _NO_OBJECT:
        pass
    columns = [shown_values(rows.column(place)) for place in range(rows.num_columns)]
    names = rows.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def shown_values(values: Any) -> list[Any]:  # noqa: ANN401  # an array, or a column of several
    """Return the values of an array. A value that Python has no object for is text."""
    if _has_nanoseconds(values.type):
        return [shown_value(value) for value in values]
    try:
        shown: list[Any] = values.to_pylist()
    except _NO_OBJECT:
        return [shown_value(value) for value in values]
    return shown


def shown_value(value: Any) -> Any:  # noqa: ANN401  # the scalar of an array, and whatever it is in Python
    """Return a value of an array; as text, if Python has no object for it."""
    if value.is_valid and _has_nanoseconds(value.type):
        is_exact = pa.types.is_time64(value.type) and not value.value % _NANOS_OF_MICRO
        return value.as_py() if is_exact else _parts_or_text(value)
    try:
        return value.as_py()
    except _NO_OBJECT:
        return _parts_or_text(value)


def _has_nanoseconds(kind: pa.DataType) -> bool:
    """Return whether a type, or a part of it, is a time of day in nanoseconds."""
    if isinstance(kind, pa.BaseExtensionType):
        return _has_nanoseconds(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return _has_nanoseconds(kind.value_type)
    return kind == pa.time64("ns") or any(_has_nanoseconds(kind.field(place).type) for place in range(kind.num_fields))


def _parts_or_text(value: Any) -> Any:  # noqa: ANN401  # as above
    """Return the parts of a nested value, each as an object or as text, and any other value as text."""
    kind = value.type
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return shown_value(value.value)
    if pa.types.is_struct(kind):
        return {kind.field(place).name: shown_value(value[place]) for place in range(kind.num_fields)}
    if pa.types.is_map(kind):
        # Pairs, as pyarrow returns them.
        entries = value.values
        return list(zip(shown_values(entries.field(0)), shown_values(entries.field(1)), strict=True))
    if pa.types.is_nested(kind):
        return shown_values(value.values)
    if pa.types.is_duration(kind):
        return f"{value.value} {kind.unit}"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # In UTC: the zone may be what is not known.
        value = pa.scalar(value.value, pa.timestamp(kind.unit, "UTC"))
    # Arrow writes a value that is out of its own range as `<value out of range: 1099511627776>`.
    return value.cast(pa.string()).as_py()
