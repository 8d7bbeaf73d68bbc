"""Cast a column: give it another type, under new field ids."""

import pyarrow as pa

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.evolution import Fields, find_field, subtree
from lance_dagster.format.logical_types import EXTENSION_METADATA, EXTENSION_NAME
from lance_dagster.format.model import Field
from lance_dagster.format.schema import (
    arrow_from_fields,
    check_primary_key,
    fields_from_arrow,
    renumber_fields,
    with_metadata,
)


def cast_column(fields: Fields, path: str, arrow: pa.DataType, first_id: int) -> tuple[Fields, Fields]:
    """Return the fields with one column of another type at the same position, and the fields of that column alone.

    The fields of the column are none if the column has the type already.

    Raises:
        InvalidInputError: The path does not exist or is not a column, the Arrow type cannot be stored, or it adds,
            drops or renames a field of a struct, or turns a primary key into a column with fields.
    """
    field = find_field(fields, path)
    if field.parent_id >= 0:
        raise InvalidInputError(f"{path!r} is inside a column; only whole columns can be cast")
    old, column = subtree(fields, field), pa.schema([pa.field(field.name, arrow, field.nullable)])
    # The fields get new ids: under the old id, values in the old files would be decoded as the new type.
    new = renumber_fields(fields_from_arrow(column), first_id)
    if arrow_from_fields(new).field(0).type == arrow_from_fields(old).field(0).type:
        return fields, ()
    annotated = _annotated_as(old, new)
    ids = {column_field.id for column_field in old}
    position = next(position for position, table_field in enumerate(fields) if table_field.id == field.id)
    result = (
        *fields[:position],
        *annotated,
        *(table_field for table_field in fields[position:] if table_field.id not in ids),
    )
    check_primary_key(result)
    return result, annotated


def _annotated_as(old: Fields, new: Fields) -> Fields:
    """Return the fields of a cast column with their old metadata, except for the metadata of the types."""
    before, after = _by_path(old), _by_path(new)
    for path, field in after.items():
        if path not in before or field.logical_type != "struct" or before[path].logical_type != "struct":
            continue
        # Arrow casts such a struct, and drops the values of fields that the new type does not name.
        was, now = (sorted(inner[-1] for inner in paths if inner[:-1] == path) for paths in (before, after))
        if was != now:
            raise InvalidInputError(
                f"the struct {'.'.join(path)!r} has the fields {', '.join(was)}, and the type {', '.join(now)}; a cast "
                "changes types only: add, drop or rename fields of a struct by other changes"
            )
    return tuple(_with_metadata_of(before.get(path), field) for path, field in after.items())


def _with_metadata_of(before: Field | None, field: Field) -> Field:
    entries = before.metadata.items() if before is not None else ()
    kept_metadata = {key: value for key, value in entries if key not in (EXTENSION_NAME, EXTENSION_METADATA)}
    return with_metadata(field, {**kept_metadata, **field.metadata})


def _by_path(column: Fields) -> dict[tuple[str, ...], Field]:
    """Return the fields of a column by the names on the way to them."""
    paths: dict[int, tuple[str, ...]] = {}
    for field in column:
        paths[field.id] = (*paths.get(field.parent_id, ()), field.name)
    return {paths[field.id]: field for field in column}
