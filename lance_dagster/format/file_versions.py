"""Which columns data files of a version can store.

pylance accepts some schemas and then fails, or crashes, when the first rows are written or read. This module refuses
such a schema before the table exists. The rules record observed behaviour of pylance 14; a test tries each of them on
pylance itself.
"""

from collections.abc import Iterator, Mapping, Sequence

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.arrow_types import BLOB
from lance_dagster.format.logical_types import FIXED_SIZE_LIST_OF_STRUCTS
from lance_dagster.format.model import LEGACY_BLOB, Field, parse_file_version
from lance_dagster.format.schema import is_described_inner_struct, is_layout_key, is_packed, legacy_blob, stored_layout

_VECTOR = "fixed_size_list:"
_NOT_IN_VECTORS = frozenset({"string", "large_string", "binary", "large_binary", "dict"})
_VARIABLE = frozenset({"string", "binary", "large_string", "large_binary"})
_NOT_PACKED = frozenset(
    {"bool", "null", "struct", "map", "list", "list.struct", "large_list", "large_list.struct", "json", "dict"}
)
_PARTS_OF_A_DICTIONARY = 4
_WITHOUT_NULL_STRUCTS = "2.0"
_CHOICES = {
    "lance-encoding:compression": ("none", "lz4", "zstd", "fsst"),
    "lance-encoding:structural-encoding": ("miniblock", "fullzip"),
}
"""Keys in the metadata of a column of which pylance 14 takes these values only, when it writes rows."""


def check_storable(fields: Sequence[Field], file_version: str) -> None:
    """Refuse columns that data files of a version cannot hold.

    Raises:
        InvalidInputError: A column cannot be stored; the message names it.
    """
    for path, problem in storage_problems(fields, file_version).values():
        raise InvalidInputError(f"column {path!r}: {problem}")


def check_description(before: Sequence[Field], after: Sequence[Field], number: int, file_version: str) -> None:
    """Refuse a change of a field's metadata that changes how values are stored, or makes the field unreadable.

    Args:
        before: The fields of the table.
        after: The same fields, one of them with changed metadata.
        number: The id of that field.
        file_version: The version of the data files of the table.

    Raises:
        InvalidInputError: The stored values would be read in another way than they were written, or not at all.
    """
    by_id = {field.id: field for field in after}
    was, now = next(field for field in before if field.id == number), by_id[number]
    path = _path_of(now, by_id)
    if stored_layout(was) != stored_layout(now):
        keys = {key for key in {*was.metadata, *now.metadata} if was.metadata.get(key) != now.metadata.get(key)}
        named = ", ".join(sorted(key for key in keys if is_layout_key(key)))
        raise InvalidInputError(
            f"{named} in the metadata of column {path!r} says how its values are stored, so it cannot change; add a "
            "column with this metadata (`columns.add`), and drop this one"
        )
    # Keys of another writer can be taken out.
    if is_described_inner_struct(now, after) and not now.metadata.items() <= was.metadata.items():
        raise InvalidInputError(
            f"column {path!r} is a struct inside of a struct, and pylance cannot read rows by a filter where such a "
            "struct has metadata; describe one of its fields, or the column as a whole"
        )
    check_newly_storable(before, after, file_version)


def check_newly_storable(before: Sequence[Field], after: Sequence[Field], file_version: str) -> None:
    """Refuse a change of the fields after which data files cannot hold a column that they could hold before.

    Raises:
        InvalidInputError: The message names the column.
    """
    # Tables of early Lance releases record no version.
    problems = storage_problems(after, file_version) if file_version else {}
    earlier = storage_problems(before, file_version) if problems else {}
    for number, problem in problems.items():
        if earlier.get(number) != problem:
            raise InvalidInputError(f"column {problem[0]!r}: {problem[1]}")


def takes_nulls(column: Field, file_version: str) -> bool:
    """Return whether a column may be null in data files of a version: files of version 2.0 hold no null structs."""
    no_null = column.parent_id < 0 and column.logical_type == "struct" and file_version == _WITHOUT_NULL_STRUCTS
    return column.nullable and not no_null


def storage_problems(fields: Sequence[Field], file_version: str) -> dict[int, tuple[str, str]]:
    """Return the path and the problem of each field that data files of a version cannot hold, by its id."""
    return {field.id: (path, problem) for field, path, problem in _problems(fields, file_version)}


def _problems(fields: Sequence[Field], file_version: str) -> Iterator[tuple[Field, str, str]]:
    by_id = {field.id: field for field in fields}
    parents = {field.parent_id for field in fields}
    version = parse_file_version(file_version)
    legacy = legacy_blob(fields, file_version)
    # One problem is reported for each field. The check of types comes before the checks that depend on the file
    # version.
    for field in fields:
        problem = (
            _vector_problem(field)
            or _version_problem(field, version)
            or _blob_problem(field, version, legacy)
            or _dictionary_problem(field)
            or _packing_problem(field, by_id, version)
            or _encoding_problem(field, version)
            or _empty_problem(field, parents, version)
        )
        if problem is not None:
            yield field, _path_of(field, by_id), problem


def _vector_problem(field: Field) -> str | None:
    if field.logical_type.startswith(FIXED_SIZE_LIST_OF_STRUCTS):
        return "Lance writes fixed-size lists of structs and cannot read them beside other columns; use a list"
    if not field.logical_type.startswith(_VECTOR):
        return None
    # Every part is checked, because a dictionary type has the type of its values further behind.
    inner = [part for part in field.logical_type.split(":") if part in _NOT_IN_VECTORS]
    return f"Lance cannot store fixed-size lists of {inner[0]}; use a list" if inner else None


def _version_problem(field: Field, version: tuple[int, int]) -> str | None:
    kind = (
        "maps" if field.logical_type == "map" else "blobs in files of their own" if field.extension_name == BLOB else ""
    )
    if kind and version < (2, 2):
        return f"{kind} need data files of version 2.2, the table's are {version[0]}.{version[1]}"
    return None


def _blob_problem(field: Field, version: tuple[int, int], legacy: str | None) -> str | None:
    if LEGACY_BLOB in field.metadata and version >= (2, 2):
        bytes_fit = ", which takes rows of large_binary too" if field.parent_id < 0 else ""
        return (
            f"blobs marked {LEGACY_BLOB} are for data files before version 2.2, the table's are "
            f"{version[0]}.{version[1]}; make the field by lance.blob_field({field.name!r}){bytes_fit}"
        )
    if field.extension_name == BLOB and legacy is not None:
        return f"pylance writes such blobs, and could not read those of {legacy!r} beside them, marked {LEGACY_BLOB}"
    return None


def _dictionary_problem(field: Field) -> str | None:
    parts = field.logical_type.split(":")
    # A value type with parameters, such as a timestamp, adds parts to the name.
    if parts[0] != "dict" or len(parts) == _PARTS_OF_A_DICTIONARY:
        return None
    return f"Lance cannot store dictionaries of {parts[1]}; use the type of the values"


def _packing_problem(field: Field, by_id: Mapping[int, Field], version: tuple[int, int]) -> str | None:
    if field.logical_type == "struct":
        # Only "false" under the short key is harmless; pylance writes a struct with any other value but cannot
        # read it.
        packed = field.metadata.get("lance-encoding:packed", field.metadata.get("packed", b"true"))
        if packed.lower() != b"true" and (packed.lower() != b"false" or "lance-encoding:packed" in field.metadata):
            return f"Lance packs a struct whose metadata says 'true', and cannot read a struct that says {packed!r}"
    parent = by_id.get(field.parent_id)
    if parent is None or not is_packed(parent):
        return None
    kind = field.logical_type.partition(":")[0]
    if (
        kind in _NOT_PACKED
        or (kind in _VARIABLE and version < (2, 2))
        or (kind == "fixed_size_list" and version == (2, 1))
    ):
        return f"a packed struct cannot hold {field.logical_type} in data files of version {version[0]}.{version[1]}"
    return None


def _encoding_problem(field: Field, version: tuple[int, int]) -> str | None:
    if version < (2, 1):
        return None
    for key, choices in _CHOICES.items():
        choice = field.metadata.get(key)
        if choice is not None and choice.decode("utf-8", "replace") not in choices:
            return f"Lance takes {', '.join(choices)} as {key}, and not {choice.decode('utf-8', 'replace')!r}"
    return None


def _empty_problem(field: Field, parents: set[int], version: tuple[int, int]) -> str | None:
    if field.logical_type != "struct" or field.id in parents or version < (2, 1):
        return None
    return "Lance loses the values of the columns behind a struct without fields; leave it out"


def _path_of(field: Field, by_id: Mapping[int, Field]) -> str:
    names = [field.name]
    parent = by_id.get(field.parent_id)
    while parent is not None:
        names.append(parent.name)
        parent = by_id.get(parent.parent_id)
    return ".".join(reversed(names))
