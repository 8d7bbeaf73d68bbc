"""Schema evolution: functions from the fields of a table to its changed fields.

A field is identified by its id. Renaming, moving or annotating a field keeps the id, so its data files stay valid; a
field whose values change gets a new id. Fields are listed in depth-first order: a column is followed by its children.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.logical_types import EXTENSION_NAME
from lance_dagster.format.model import Field, Manifest
from lance_dagster.format.schema import (
    check_field_name,
    check_primary_key,
    fields_from_arrow,
    is_packed,
    renumber_fields,
)

Fields = tuple[Field, ...]


def next_field_id(manifest: Manifest) -> int:
    """Return the smallest id above every field id of the schema and of the data files.

    Data files may still hold values of dropped columns: a new column with such an id would read those values.
    """
    used = [field.id for field in manifest.fields]
    # All fragments are decoded here, which only schema changes pay.
    used += [max(file.fields, default=-1) for fragment in manifest.fragments for file in fragment.files]
    return max([*used, manifest.max_allocated_field_id or -1]) + 1


def find_field(fields: Sequence[Field], path: str) -> Field:
    """Return the field at a path: a column, or `column.field` for a field of a struct.

    Raises:
        InvalidInputError: There is no such field; the message lists the existing fields.
    """
    parent, remaining = -1, path
    while True:
        level = {field.name: field for field in fields if field.parent_id == parent}
        # A field name may itself contain a dot, so the longest matching name wins.
        fitting = [name for name in level if remaining == name or remaining.startswith(f"{name}.")]
        if not fitting:
            where = "the table" if parent < 0 else f"{path.removesuffix(remaining).rstrip('.')!r}"
            raise InvalidInputError(f"there is no column {path!r}; {where} has {', '.join(map(repr, level)) or 'none'}")
        name = max(fitting, key=len)
        if remaining == name:
            return level[name]
        parent, remaining = level[name].id, remaining[len(name) + 1 :]


def subtree(fields: Sequence[Field], field: Field) -> Fields:
    """Return a field and its descendants, in depth-first order."""
    ids = {field.id}
    for candidate in fields:
        if candidate.parent_id in ids:
            ids.add(candidate.id)
    return tuple(candidate for candidate in fields if candidate.id in ids)


def add_columns(fields: Fields, columns: pa.Schema, first_id: int) -> Fields:
    """Return the fields followed by new columns, whose ids start at `first_id`.

    Raises:
        InvalidInputError: A name is empty, taken or duplicated, or an Arrow type cannot be stored.
    """
    if not len(columns):
        raise InvalidInputError("no column to add was given")
    # Names are checked here although `fields_from_arrow` checks them: it does not see the existing columns.
    existing = {field.name for field in fields if field.parent_id < 0}
    for name in columns.names:
        if not name or name in existing or columns.names.count(name) > 1:
            problem = "a column needs a name" if not name else f"there is a column {name!r} already"
            raise InvalidInputError(f"{problem}; give the new column a name of its own")
    return (*fields, *renumber_fields(fields_from_arrow(columns), first_id))


def add_fields(fields: Fields, inside: str, columns: pa.Schema, first_id: int) -> Fields:
    """Return the fields with new nullable fields at the end of a struct, whose ids start at `first_id`.

    Args:
        fields: The fields of a table.
        inside: The path of the struct; for the structs in a list it has the name of the list's items: `lines.item`.
        columns: The new fields.
        first_id: The id of the first new field.

    Raises:
        InvalidInputError: The path does not lead to a struct of plain fields, a name is empty, taken or duplicated, a
            field is not nullable, or an Arrow type cannot be stored.
    """
    struct = find_field(fields, inside)
    if struct.logical_type != "struct" or is_packed(struct) or EXTENSION_NAME in struct.metadata:
        kind = "packed" if is_packed(struct) else f"of type {struct.logical_type.partition(':')[0]}"
        kind = "of an extension type" if EXTENSION_NAME in struct.metadata else kind
        raise InvalidInputError(
            f"only a struct whose fields are stored apart gets new fields, and {inside!r} is {kind}"
        )
    siblings = tuple(replace(field, parent_id=-1) for field in fields if field.parent_id == struct.id)
    for column in columns:
        check_field_name(column.name, inside=True)
        if not column.nullable:
            raise InvalidInputError(f"field {column.name!r} would be null in every row, and it is not nullable")
    new = add_columns(siblings, columns, first_id)[len(siblings) :]
    placed = tuple(replace(field, parent_id=struct.id) if field.parent_id < 0 else field for field in new)
    end = fields.index(subtree(fields, struct)[-1]) + 1
    return (*fields[:end], *placed, *fields[end:])


def drop_fields(fields: Fields, paths: Iterable[str]) -> Fields:
    """Return the fields without some columns, or without some fields of structs.

    Raises:
        InvalidInputError: A path does not exist, or the table or a struct would be left without fields.
    """
    dropped: set[int] = set()
    for path in paths:
        field = find_field(fields, path)
        parent = next((candidate for candidate in fields if candidate.id == field.parent_id), None)
        # A list needs its item, and a map its keys and values.
        if parent is not None and parent.logical_type != "struct":
            raise InvalidInputError(
                f"{path!r} is inside a {parent.logical_type}; only fields of structs can be dropped"
            )
        dropped.update(descendant.id for descendant in subtree(fields, field))
    if not dropped:
        raise InvalidInputError("no column to drop was given")
    remaining = tuple(field for field in fields if field.id not in dropped)
    if not remaining:
        raise InvalidInputError("a table cannot be without any column")
    parents = {field.parent_id for field in remaining}
    for field in remaining:
        # pylance loses the values of columns behind a struct without fields (see `file_versions`).
        if field.logical_type == "struct" and field.id not in parents:
            raise InvalidInputError(f"nothing would be left of the struct {field.name!r}; drop it whole")
    return remaining


def rename_field(fields: Fields, path: str, name: str) -> Fields:
    """Return the fields with one field renamed.

    Raises:
        InvalidInputError: The path does not exist, or the new name is empty, taken or not allowed.
    """
    field = find_field(fields, path)
    siblings = {sibling.name for sibling in fields if sibling.parent_id == field.parent_id and sibling.id != field.id}
    if not name or name in siblings:
        why = "that name is taken" if name else "a column needs a name"
        raise InvalidInputError(f"cannot rename {path!r} to {name!r}: {why}")
    check_field_name(name, inside=field.parent_id >= 0)
    return _with(fields, replace(field, name=name))


def reorder_columns(fields: Fields, names: Sequence[str]) -> Fields:
    """Return the fields with the columns in another order.

    Raises:
        InvalidInputError: The names do not list every column exactly once.
    """
    columns = {field.name: field for field in fields if field.parent_id < 0}
    if sorted(names) != sorted(columns):
        raise InvalidInputError(
            f"the order has to name every column once: it is given as {', '.join(map(repr, names)) or 'nothing'}, "
            f"the table has {', '.join(map(repr, columns))}"
        )
    return tuple(field for name in names for field in subtree(fields, columns[name]))


def set_nullable(fields: Fields, path: str, *, nullable: bool) -> Fields:
    """Return the fields with one field made nullable or not nullable.

    Raises:
        InvalidInputError: The path does not exist, or a field of the primary key would be nullable; or the field is the
            entry or the key of a map, or lies inside of a list or map and would not be nullable.
    """
    field = find_field(fields, path)
    _check_nullable_inside(fields, field, path, nullable=nullable)
    changed = _with(fields, replace(field, nullable=nullable))
    # A table that another writer made this way can be mended.
    if nullable:
        try:
            check_primary_key(changed)
        except InvalidInputError as error:
            why = f"{error}; take the key out of the metadata of the column first"
            raise InvalidInputError(f"cannot allow nulls in {path!r}: {why}") from error
    return changed


def _check_nullable_inside(fields: Fields, field: Field, path: str, *, nullable: bool) -> None:
    around = list(_enclosing_fields(fields, field))
    kinds = [outer_field.logical_type for outer_field in around]
    keyed = kinds[1:2] == ["map"] and subtree(fields, around[0])[1] == field
    if nullable and (keyed or kinds[:1] == ["map"]):
        raise InvalidInputError(f"{path!r} is the {'key' if keyed else 'entry'} of a map, which is never null")
    outer = next((outer_field for outer_field in around if outer_field.logical_type != "struct"), None)
    if not nullable and outer is not None and field.nullable:
        raise InvalidInputError(
            f"cannot forbid nulls in {path!r}: it lies inside of the {outer.logical_type.partition('.')[0]} "
            f"{outer.name!r}, in which nulls cannot be looked for; only columns and fields of structs can forbid nulls"
        )


def _enclosing_fields(fields: Fields, field: Field) -> Iterator[Field]:
    """Yield the fields around a field, from the innermost to the outermost field."""
    by_id = {candidate.id: candidate for candidate in fields}
    current = by_id.get(field.parent_id)
    while current is not None:
        yield current
        current = by_id.get(current.parent_id)


def _with(fields: Fields, changed: Field) -> Fields:
    return tuple(changed if field.id == changed.id else field for field in fields)
