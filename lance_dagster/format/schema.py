"""Convert Arrow schemas to Lance fields with ids, and back; validate and number fields.

Fields are listed in depth-first order and numbered in that order when a table is created. A fixed-size list of
primitives is one field without children. `stored_field_ids` derives which fields own a column of a data file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from lance_dagster.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lance_dagster.format import arrow_types
from lance_dagster.format.arrow_types import BLOB, JSON, stored_column
from lance_dagster.format.logical_types import EXTENSION_NAME, arrow_type
from lance_dagster.format.model import LEGACY_BLOB, Field, parse_file_version
from lance_dagster.format.transaction import MapUpdate

ArrowField: TypeAlias = "pa.Field[Any]"
_PRIMARY_KEY = "lance-schema:unenforced-primary-key"
_CLUSTERING_KEY = "lance-schema:unenforced-clustering-key"
_POSITION = re.compile(rb"\+?0*([0-9]{1,10})")
# The values that Lance accepts as true, in lower case.
_YES = frozenset({b"true", b"1", b"yes", b"on"})
# Virtual columns of pylance.
_RESERVED = frozenset({"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"})
# The depth is bounded, because nested Arrow types are built recursively.
MAX_DEPTH = 100
_PACKED = ("lance-encoding:packed", "packed")
_EXTENSION = "ARROW:extension:"


def fields_from_arrow(schema: pa.Schema) -> tuple[Field, ...]:
    """Return the fields of an Arrow schema, numbered depth-first from 0.

    Metadata of a struct inside of a struct is left out, such as the field ids that writers of Parquet put there:
    pylance could not read the table by a filter.

    Raises:
        InvalidInputError: The format cannot store the type of a column, a name is duplicated or cannot be read back, or
            metadata is not UTF-8, or a column is nested too deeply.
    """
    _check_unique("column", schema.names)
    fields: list[Field] = []
    for column in schema:
        check_field_name(column.name, inside=False)
        _number(column, None, fields, 1)
    check_primary_key(fields)
    return tuple(_without_description(field) if is_described_inner_struct(field, fields) else field for field in fields)


def _without_description(field: Field) -> Field:
    """Return a field with the metadata that says how its values are stored, and without any other."""
    return with_metadata(field, {key: value for key, value in field.metadata.items() if is_layout_key(key)})


def schema_metadata_from_arrow(schema: pa.Schema) -> dict[str, bytes]:
    """Return the metadata of an Arrow schema as the manifest stores it.

    Raises:
        InvalidInputError: A key or value is not UTF-8.
    """
    return _text(schema.metadata, "the schema")


def arrow_from_fields(
    fields: Sequence[Field], metadata: Mapping[str, bytes] | None = None, path: str = "the schema of a table"
) -> pa.Schema:
    """Return the Arrow schema of a table; `path` is used in messages.

    Raises:
        UnsupportedFeatureError: A logical type is unknown.
        CorruptFileError: The fields do not form a valid schema.
    """
    check_field_tree(fields, path)
    children: dict[int, list[Field]] = {}
    for field in fields:
        children.setdefault(field.parent_id, []).append(field)
    # -1 is the parent id of columns; 0, the default of protobuf, is the id of a field.
    columns = [_arrow_field(field, children, path) for field in children.get(-1, [])]
    described = {key.encode(): _shown(value) for key, value in (metadata or {}).items()}
    schema = pa.schema(columns)
    schema = schema.with_metadata(described) if described else schema
    # The round trip through IPC below is slow, and most schemas have no extension type. bfloat16 has one inside of its
    # logical type, without an extension name on the field.
    if not any(field.extension_name or "bfloat16" in field.logical_type for field in fields):
        return schema
    try:
        return arrow_types.with_extension_types(schema)
    except (ValueError, TypeError, LookupError, pa.ArrowException) as error:
        raise CorruptFileError(path, f"an extension type in its schema is invalid: {error}") from error


def without_views(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types as which the format stores views, which are strings and bytes.

    Raises:
        InvalidInputError: The format cannot store the type of a column that has views.
    """
    for place, column in enumerate(schema):
        if _has_view(column.type):
            stored = arrow_from_fields(fields_from_arrow(pa.schema([column]))).field(0)
            schema = schema.set(place, stored)
    return schema


def _has_view(arrow: Any) -> bool:  # noqa: ANN401  # any Arrow type
    if pa.types.is_dictionary(arrow):
        return _has_view(arrow.value_type)
    inner = (arrow.field(index).type for index in range(arrow.num_fields))
    return str(arrow) in ("string_view", "binary_view") or any(map(_has_view, inner))


def check_field_tree(fields: Sequence[Field], path: str) -> None:
    """Refuse fields that do not form trees; `path` is used in messages.

    Raises:
        CorruptFileError: Two fields share an id, the parent of a field is missing, or the parents form a cycle.
    """
    # Children need not follow their parents in a manifest of another writer, so parents are looked up by id.
    parents = _parents(fields, path)
    depths = {-1: 0}
    for field in fields:
        # Walk up to the nearest ancestor of known depth. Iterative, because a corrupt manifest can chain thousands of
        # fields, and bounded, because it can make them a cycle.
        ancestors: list[int] = []
        current = field.id
        while current not in depths:
            ancestors.append(current)
            if current not in parents or len(ancestors) > MAX_DEPTH:
                missing = current not in parents
                problem = "does not exist" if missing else f"is nested in itself, or {MAX_DEPTH} levels deep"
                where = f"in its schema, the parent of field {field.id} ({field.name!r})"
                raise CorruptFileError(path, f"{where} {problem}")
            current = parents[current]
        depth = depths[current]
        for ancestor in reversed(ancestors):
            depth += 1
            depths[ancestor] = depth
        if depth > MAX_DEPTH:
            raise CorruptFileError(path, f"in its schema, field {field.id} ({field.name!r}) is {depth} levels deep")


def _parents(fields: Sequence[Field], path: str) -> dict[int, int]:
    """Return the parent id of each field by field id, after checking ids and names."""
    parents: dict[int, int] = {}
    for field in fields:
        if field.id < 0 or field.id in parents:
            problem = "is not a valid id" if field.id < 0 else "is the id of two fields"
            raise CorruptFileError(path, f"in its schema, {field.id} {problem} ({field.name!r})")
        parents[field.id] = field.parent_id
    names = [(field.parent_id, field.name) for field in fields]
    if len(set(names)) < len(names) or any("\0" in name for _, name in names):
        raise CorruptFileError(path, "in its schema, two siblings share a name, or a name contains a NUL character")
    return parents


def column_positions(fields: Sequence[Field], version: tuple[int, int]) -> dict[str, int]:
    """Return the positions in a data file of the columns that are stored as one column of it, by their names.

    Args:
        fields: The schema the file was written with.
        version: The version of the data file.
    """
    places = {number: place for place, number in enumerate(stored_field_ids(fields, version))}
    return {field.name: places[field.id] for field in fields if field.parent_id < 0 and field.id in places}


def stored_field_ids(fields: Sequence[Field], version: tuple[int, int] = (2, 2)) -> tuple[int, ...]:
    """Return the ids of the fields that own a column of a data file, in column order.

    A leaf owns a column. A struct, list or map owns no column in files of version 2.1 and newer, and a column in older
    files. A blob or packed struct owns a column in every version, and its descendants own none.

    Args:
        fields: The schema the file was written with.
        version: The version of the data file.
    """
    # One pass is enough: fields are in depth-first order, so a parent comes before its descendants.
    parents = {field.parent_id for field in fields}
    inside: set[int] = set()
    ids: list[int] = []
    for field in fields:
        is_whole = _is_whole(field)
        if field.parent_id in inside:
            inside.add(field.id)
            continue
        if is_whole:
            inside.add(field.id)
        # From version 2.1 on, the validity and the lengths of a nested value are stored with its leaves.
        if is_whole or field.id not in parents or version < (2, 1):
            ids.append(field.id)
    return tuple(ids)


def is_packed(field: Field) -> bool:
    """Return whether a struct is packed: all its values are stored in one column of a data file."""
    return field.logical_type == "struct" and any(field.metadata.get(key, b"").lower() == b"true" for key in _PACKED)


def is_layout_key(key: str) -> bool:
    """Return whether a key in the metadata of a field says how its values are stored."""
    return key in (*_PACKED, LEGACY_BLOB) or key.startswith(_EXTENSION)


def stored_layout(field: Field) -> tuple[object, ...]:
    """Return what the metadata of a field says about how its values are stored.

    Values that were written under one layout are read as nulls, or not at all, under a different layout.
    """
    extension = {key: value for key, value in field.metadata.items() if key.startswith(_EXTENSION)}
    return is_packed(field), LEGACY_BLOB in field.metadata, extension


def legacy_blob(fields: Sequence[Field], file_version: str) -> str | None:
    """Return the name of a field of blobs in the legacy encoding in files of version 2.2 or newer; None without one.

    Earlier versions of this package made such tables. pylance writes blobs of the present encoding into these files,
    and cannot read a column that has both.
    """
    # Tables of early Lance releases record no version.
    if not file_version or parse_file_version(file_version) < (2, 2):
        return None
    return next((field.name for field in fields if LEGACY_BLOB in field.metadata), None)


def is_described_inner_struct(field: Field, fields: Sequence[Field]) -> bool:
    """Return whether a field is a struct of several fields inside of a struct, stored field by field, with metadata.

    pylance 14 cannot read rows by a filter where there is such a struct.
    """
    # Nearly every struct has no metadata, and is not looked up.
    if field.logical_type != "struct" or not field.metadata or _is_whole(field) or field.parent_id < 0:
        return False
    if sum(candidate.parent_id == field.id for candidate in fields) <= 1:
        return False
    by_id = {candidate.id: candidate for candidate in fields}
    around = by_id.get(field.parent_id)
    # Inside of lists and maps pylance can read it.
    while around is not None and around.logical_type == "struct" and not _is_whole(around):
        around = by_id.get(around.parent_id)
    return around is None


def _is_whole(field: Field) -> bool:
    return field.extension_name == BLOB or is_packed(field)


def _number(column: ArrowField, parent: Field | None, fields: list[Field], depth: int) -> None:
    # A deeper schema is refused where a manifest is read, so it must not be written.
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"field {column.name!r} is {depth} levels deep in its column; {MAX_DEPTH} are possible")
    metadata = _text(column.metadata, f"column {column.name!r}")
    stored = stored_column(column, metadata)
    plain = Field(
        id=len(fields),
        name=column.name,
        logical_type=stored.logical_type,
        parent_id=-1 if parent is None else parent.id,
        nullable=column.nullable,
        encoding=stored.encoding,
    )
    # The field goes into the list before its children: ids are numbered depth-first.
    own = with_metadata(plain, stored.metadata)
    fields.append(own)
    children = list(_children(stored.storage))
    _check_unique(f"in column {column.name!r}, field", [child.name for child in children])
    for child in children:
        check_field_name(child.name, inside=True)
        _number(child, own, fields, depth + 1)


def _children(arrow: Any) -> Iterator[ArrowField]:  # noqa: ANN401  # the stubs have no common class
    if pa.types.is_struct(arrow):
        yield from (arrow.field(index) for index in range(arrow.num_fields))
    elif pa.types.is_map(arrow):
        entries = pa.struct([pa.field(arrow.key_field.name, arrow.key_type, nullable=False), arrow.item_field])
        # The format stores a map as a list of structs named "entries", with non-null keys.
        yield pa.field("entries", entries, nullable=False)
    # A fixed-size list of primitives is one field: its values are one column without offsets.
    elif (
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or (pa.types.is_fixed_size_list(arrow) and pa.types.is_struct(arrow.value_type))
    ):
        yield arrow.value_field


def _check_unique(what: str, names: Sequence[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInputError(f"{what} names must be unique; {', '.join(map(repr, doubled))} is duplicated")


def check_field_name(name: str, *, inside: bool) -> None:
    """Check the name of a column, or of a field inside of a column.

    Raises:
        InvalidInputError: Lance cannot store the name, or cannot address such a column in a query.
    """
    rules = {
        "it cannot contain a NUL character": "\0" in name,
        "it cannot be empty": not inside and not name,
        "it cannot contain '.', which separates the names of nested fields": not inside and "." in name,
        "it cannot contain '`', which quotes names": not inside and "`" in name,
        "Lance computes a column of that name": not inside and name in _RESERVED,
    }
    broken = next((rule for rule, holds in rules.items() if holds), None)
    if broken is not None:
        raise InvalidInputError(f"{name!r} cannot name a {'field' if inside else 'column'}: {broken}")


def _text(metadata: Mapping[bytes, bytes] | None, what: str) -> dict[str, bytes]:
    """Decode the keys of metadata. Metadata that is not UTF-8 is refused: other writers would replace its bytes."""
    decoded: dict[str, bytes] = {}
    for key, value in (metadata or {}).items():
        try:
            value.decode()
            decoded[key.decode()] = value
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{what}: the metadata {key!r} is not UTF-8: {error}") from error
    return decoded


def _arrow_field(field: Field, children: Mapping[int, Sequence[Field]], path: str) -> ArrowField:
    nested = [_arrow_field(child, children, path) for child in children.get(field.id, ())]
    metadata = {key.encode(): _shown(value) for key, value in field.metadata.items()}
    try:
        if field.logical_type == JSON and not nested:
            # JSON with child fields cannot be valid; it falls through to the error for children of a leaf.
            return pa.field(field.name, pa.string(), field.nullable, arrow_types.arrow_json_metadata(metadata))
        arrow = arrow_type(field.logical_type, nested)
        if arrow is None:
            raise UnsupportedFeatureError(path, [f"the logical type {field.logical_type!r} of column {field.name!r}"])
        return pa.field(field.name, arrow, field.nullable, metadata or None)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise CorruptFileError(
            path, f"column {field.name!r} has the type {field.logical_type[:80]!r}, which is invalid: {error}"
        ) from error


def _shown(metadata: bytes) -> bytes:
    """Return a metadata value as UTF-8, with the replacement characters that pylance shows for invalid bytes."""
    return metadata.decode("utf-8", "replace").encode()


def renumber_fields(fields: Sequence[Field], first: int) -> tuple[Field, ...]:
    """Return the fields with consecutive ids from `first`, and parent ids changed accordingly."""
    # A parent that is not among the fields is outside of them: the field becomes a column.
    ids = {field.id: first + offset for offset, field in enumerate(fields)}
    return tuple(replace(field, id=ids[field.id], parent_id=ids.get(field.parent_id, -1)) for field in fields)


def with_field_metadata(fields: Sequence[Field], updates: Mapping[int, MapUpdate]) -> tuple[Field, ...]:
    """Return the fields with updated metadata, by field id, and with the attributes that derive from metadata.

    Raises:
        InvalidInputError: A field id does not exist, or a field that cannot be a primary key is declared one.
    """
    missing = sorted(updates.keys() - {field.id for field in fields})
    if missing:
        raise InvalidInputError(f"the table has no field {missing[0]}")
    described = tuple(_described(field, updates[field.id]) if field.id in updates else field for field in fields)
    check_primary_key(described)
    return described


def _described(field: Field, update: MapUpdate) -> Field:
    # Values of other writers may not be UTF-8; `surrogateescape` gives the same bytes back for keys that stay.
    current = {key: value.decode("utf-8", "surrogateescape") for key, value in field.metadata.items()}
    metadata = {key: value.encode("utf-8", "surrogateescape") for key, value in update.apply_to(current).items()}
    return with_metadata(field, metadata)


def with_metadata(field: Field, metadata: Mapping[str, bytes]) -> Field:
    """Return a field with metadata, and with the attributes the format duplicates from it (extension name, keys)."""
    primary, clustering = _position(metadata, _PRIMARY_KEY), _position(metadata, _CLUSTERING_KEY)
    return replace(
        field,
        metadata=metadata,
        extension_name=metadata.get(EXTENSION_NAME, b"").decode("utf-8", "replace"),
        # A position alone declares the key too.
        primary_key=metadata.get(_PRIMARY_KEY, b"").lower() in _YES or primary is not None,
        primary_key_position=primary or 0,
        clustering_key_position=clustering or 0,
    )


def _position(metadata: Mapping[str, bytes], key: str) -> int | None:
    # Lance ignores a position that is not a number or does not fit 32 bits.
    match = _POSITION.fullmatch(metadata.get(f"{key}:position", b""))
    return int(match[1]) if match and int(match[1]) < 2**32 else None


def check_primary_key(fields: Sequence[Field]) -> None:
    """Refuse a primary key for which pylance would refuse to open the table: nullable, or with child fields."""
    by_id = {field.id: field for field in fields}
    parents = {field.parent_id for field in fields}
    for field in fields:
        current: Field | None = field
        # A null struct makes its fields null, so all ancestors must be non-nullable as well.
        while field.primary_key and current is not None:
            if current.nullable:
                raise InvalidInputError(f"column {field.name!r} cannot be a primary key: {current.name!r} is nullable")
            current = by_id.get(current.parent_id)
        if field.primary_key and field.id in parents:
            raise InvalidInputError(f"column {field.name!r} cannot be a primary key: it has child fields")
