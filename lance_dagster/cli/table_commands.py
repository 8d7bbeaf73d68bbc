"""`lance-dagster table list`, `create` and `head`: list tables, create a table, show its first rows."""

import difflib
import functools
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lance_dagster.cli.arguments import (
    REF,
    about_table,
    remember_place,
    storage_options_from,
    with_storage_options,
)
from lance_dagster.cli.diff_command import first_rows
from lance_dagster.cli.output import Output, aligned, busy, is_narrow, json_value, shown_time, value_table
from lance_dagster.errors import (
    AlreadyExistsError,
    InvalidInputError,
    LanceDagsterError,
    RefNotFoundError,
    StoreError,
    counted,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.history.versions import Version
    from lance_dagster.store import Store
    from lance_dagster.table import LanceTable

_MANIFESTS = "_versions"
_BRACKETS = {"<": 1, "[": 1, "(": 1, ">": -1, "]": -1, ")": -1}
_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"),
    *("float64", "string", "large_string", "binary", "large_binary", "date32", "time64[us]", "timestamp[us]"),
)
# A type with parts as this command and pyarrow print it: what it is, its parts, and a length.
_NESTED = re.compile(r"(list|large_list|fixed_size_list|struct|map|dictionary|extension)<(.*)>(?:\[(\d+)\])?")
_FIXED_BINARY = re.compile(r"fixed_size_binary\[(\d+)\]")
_DICTIONARY = re.compile(r"values=(.+), *indices=(\w+), *ordered=([01])")
_VECTOR = re.compile(r"(.+)\[(\d+)\]")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *tz=([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(128|256)?\((\d+), *(-?\d+)\)")
_NOT_NULL = " not null"
# Arrow's own limit of sizes, and its digits.
_LARGEST, _DIGITS = 2**31 - 1, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundTable:
    """A table below a root.

    `name` is the path below the root. `branches` is the number of branches, `main` included. `production` is the
    version that the tag of `--tag` names, None where there is no such tag. `problem` says why the table cannot be read;
    `newest` is None then.
    """

    name: str
    uri: str
    branches: int = 0
    newest: "Version | None" = None
    production: str | None = None
    problem: str | None = None


@click.command("list", epilog="Example: lance-dagster table list s3://bucket/warehouse")
@click.argument("root", metavar="ROOT", type=click.Path())
@click.option("--tag", default="production", show_default=True, help="The tag whose version is shown.")
@with_storage_options
def list_tables(root: str, tag: str, storage_options: Sequence[str], *, as_json: bool) -> None:
    """List the tables below ROOT, a folder or s3://bucket/prefix: rows, branches, newest version, production tag.

    A table that cannot be read is listed with the reason.
    """
    from lance_dagster.store import open_store

    options = storage_options_from(storage_options)
    store = open_store(root, options)
    with busy("looking for tables"):
        found_tables = [_inspected(store.uri, name, tag, options) for name in _table_folders(store)]
    rows = [_table_row(found_table, tag) for found_table in found_tables]
    if is_narrow():
        # A narrow terminal has no room for the time beside the name and the tag.
        rows = [(*row[:4], row[5]) for row in rows]
    lines = aligned(rows, uncut=(1, 2, 3)) if found_tables else [f"no tables below {store.uri}"]
    Output(as_json).write([_table_document(found_table) for found_table in found_tables], lines)


def _table_folders(store: "Store") -> Iterator[str]:
    """Return the folders that hold a table, sorted, as paths below the root; "" is the root itself.

    A table ends the search: whatever is below it is a part of it, and may be many thousands of files.
    """
    # A stack and not a recursion, with the names in reverse: the tables come out sorted without keeping them all.
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        below = store.folders(folder)
        if _MANIFESTS in below:
            yield folder
        else:
            waiting += [f"{folder}/{name}" if folder else name for name in sorted(below, reverse=True)]


def _inspected(root: str, name: str, tag: str, options: dict[str, str]) -> _FoundTable:
    from lance_dagster.table import LanceTable

    uri = f"{root.rstrip('/')}/{name}" if name else root
    try:
        table = LanceTable.open(uri, options)
        newest = table.head()
        # `main` has no branch file, so the list lacks it.
        branches = 1 + len(table.branches.list())
        # Last in the block: where the tag is missing, the other facts are known.
        tagged = table.tags.get(tag).ref
    except RefNotFoundError:
        return _FoundTable(name=name or ".", uri=uri, branches=branches, newest=newest)
    except LanceDagsterError as error:
        # One damaged table must not hide the others.
        return _FoundTable(name=name or ".", uri=uri, problem=" ".join(str(error).split()))
    return _FoundTable(name=name or ".", uri=uri, branches=branches, newest=newest, production=tagged)


def _table_row(found_table: _FoundTable, tag: str) -> tuple[str, ...]:
    if found_table.newest is None:
        return (found_table.name, "", "", "", "", f"cannot be read: {found_table.problem}")
    return (
        found_table.name,
        counted(found_table.newest.rows, "row"),
        counted(found_table.branches, "branch"),
        str(found_table.newest),
        shown_time(found_table.newest),
        f"{tag}: {found_table.production}" if found_table.production else f"no {tag}",
    )


def _table_document(found_table: _FoundTable) -> dict[str, object]:
    newest = found_table.newest
    return {
        "name": found_table.name,
        "uri": found_table.uri,
        "rows": None if newest is None else newest.rows,
        "branches": found_table.branches,
        "version": None if newest is None else str(newest),
        "committed_at": None if newest is None else newest.committed_at.isoformat(),
        "tag": found_table.production,
        "problem": found_table.problem,
    }


@click.command(epilog="Example: lance-dagster table create orders.lance --schema 'id:int64 not null,day:string'")
@click.argument("table", metavar="TABLE", type=click.Path())
@click.option(
    "--schema",
    "columns",
    metavar="NAME:TYPE,...",
    help="The columns, each with an Arrow type: int64, string, timestamp[us], list<string>, decimal(10, 2), "
    "float32[128] for a vector. A column with ' not null' after its type takes no nulls.",
)
@click.option("--like", metavar="FILE.parquet", type=click.Path(), help="Take the columns of a Parquet file.")
@click.option("--exist-ok", is_flag=True, help="Succeed when a table with these columns exists.")
@with_storage_options
def create(
    table: str, columns: str | None, like: str | None, storage_options: Sequence[str], *, exist_ok: bool, as_json: bool
) -> None:
    """Create TABLE without rows, as main@1.

    A place at the root of a repository, and one inside or around another table, is refused.
    """
    from lance_dagster.table import LanceTable

    remember_place(table)
    options = storage_options_from(storage_options)
    if (columns is None) == (like is None):
        raise click.UsageError("give --schema NAME:TYPE,... or --like FILE.parquet, one of them")
    # The columns are read before the table is created, so that a wrong one leaves nothing behind.
    schema = parsed_schema(columns) if columns is not None else _parquet_schema(str(like))
    if not LanceTable.exists(table, options):
        _refuse_place(table, options)
    created = LanceTable.create(table, schema, storage_options=options, exist_ok=exist_ok)
    # After the call, which is atomic among processes: another process may have created the table.
    if exist_ok:
        _refuse_other_columns(created, schema)
    head = created.head()
    document = {
        "uri": created.uri,
        "version": str(head),
        "columns": [{"name": column.name, "type": str(column.type), "nullable": column.nullable} for column in schema],
    }
    rows = [(field.name, f"{field.type}{'' if field.nullable else _NOT_NULL}") for field in schema]
    Output(as_json).write(document, [f"{created.uri}: {head}", *aligned(rows, indent="    ")])


def _refuse_place(uri: str, options: dict[str, str]) -> None:
    """Refuse to create a table where tables are: at a repository, around a table, or inside of one.

    A search for tables ends at a table, so tables below the new table would not be found any more.

    Raises:
        InvalidInputError: There is a repository at the place, or a table below or above it.
    """
    from lance_dagster.repository.commits.ref_log import MARKER
    from lance_dagster.store import open_store

    store = open_store(uri, options)
    instead = f"give the table a folder of its own, such as {store.uri.rstrip('/')}/orders.lance"
    if store.get(MARKER) is not None:
        raise InvalidInputError(f"there is a repository at {store.uri}, whose tables are below it; {instead}")
    with busy("looking for tables"):
        below = next(_table_folders(store), None)
    if below is not None:
        raise InvalidInputError(f"a table cannot be at {store.uri}: there is the table {below} below it; {instead}")
    scheme, separator, path = store.uri.rpartition("://")
    parents = path.split("/")[:-1]
    while parents and parents != [""]:
        above = f"{scheme}{separator}{'/'.join(parents)}"
        # Credentials may allow only the prefix of the table, and then the folders above it cannot be checked.
        with suppress(StoreError):
            if open_store(above, options).list_some(_MANIFESTS, 1):
                raise InvalidInputError(f"a table cannot be at {store.uri}: it is inside the table {above}")
        parents.pop()


def _refuse_other_columns(table: "LanceTable", schema: "pa.Schema") -> None:
    """Refuse a table that exists with other columns than the schema that was asked for.

    Raises:
        AlreadyExistsError: A name, a type or a nullability differs.
    """
    present = table.schema()
    if [(column.name, column.type, column.nullable) for column in present] != [
        (column.name, column.type, column.nullable) for column in schema
    ]:
        columns = ", ".join(f"{column.name}:{column.type}{'' if column.nullable else _NOT_NULL}" for column in present)
        raise AlreadyExistsError(f"there is a Lance table at {table.uri} with other columns: {columns}")


def parsed_schema(text: str) -> "pa.Schema":
    """Read columns as `create` takes them: `id:int64 not null, tags:list<string>`.

    Raises:
        InvalidInputError: A column has no name or no type, or its type is not known, too large or too deep.
    """
    import pyarrow as pa

    fields = []
    for part in _split(text):
        name, colon, kind = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and kind):
            raise InvalidInputError(f"cannot read column {part.strip()!r}: expected NAME:TYPE, such as id:int64")
        nullable = not kind.lower().endswith(_NOT_NULL)
        plain = kind if nullable else kind[: -len(_NOT_NULL)].strip()
        _check_sizes(plain, name)
        fields.append(pa.field(name, _parsed_type(plain, name), nullable))
    twice = sorted({field.name for field in fields if sum(namesake.name == field.name for namesake in fields) > 1})
    if twice:
        raise InvalidInputError(f"column {twice[0]!r} is given twice")
    return pa.schema(fields)


def _check_sizes(text: str, column: str) -> None:
    """Refuse a type with a number or a depth that neither Arrow nor the recursion of `_parsed_type` takes."""
    from lance_dagster.format.schema import MAX_DEPTH

    large = next(
        (number for number in re.findall(r"\d+", text) if len(number) > _DIGITS or int(number) > _LARGEST), None
    )
    if large is not None:
        raise InvalidInputError(f"the type of column {column!r} has a number above {_LARGEST:,}: {reprlib.repr(large)}")
    if text.count("<") > MAX_DEPTH:
        raise InvalidInputError(f"the type of column {column!r} is more than {MAX_DEPTH} levels deep")


def _split(text: str) -> Iterator[str]:
    """Split at commas that are not inside of brackets."""
    # A type may hold commas itself, as in decimal(10, 2).
    depth = start = 0
    for place, character in enumerate(text):
        depth += _BRACKETS.get(character, 0)
        if character == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _parsed_type(text: str, column: str) -> "pa.DataType":
    """Return the Arrow type of a text. Types that need more than this come from a file, by `--like`."""
    import pyarrow as pa

    text = text.strip()
    parsed = functools.partial(_parsed_type, column=column)
    # pyarrow has no aliases for types with an element type, a time zone or a precision, so these are parsed first.
    if (match := _NESTED.fullmatch(text)) and (nested := _nested_type(match, column)) is not None:
        return nested
    if match := _FIXED_BINARY.fullmatch(text):
        return pa.binary(int(match[1]))
    if match := _VECTOR.fullmatch(text):
        return pa.list_(parsed(match[1]), int(match[2]))
    if match := _ZONED.fullmatch(text):
        return pa.timestamp(match[1], tz=match[2])  # type: ignore[type-var]  # its unit is one the pattern lists
    try:
        if match := _DECIMAL.fullmatch(text):
            decimal = pa.decimal256 if match[1] == "256" else pa.decimal128
            return decimal(int(match[2]), int(match[3]))
        arrow_type: pa.DataType = pa.type_for_alias(text.lower())  # type: ignore[call-overload]  # its stub lists names
    except ValueError as error:
        near = difflib.get_close_matches(text.lower(), _TYPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected an Arrow type such as {', '.join(_TYPES[-5:])}"
        raise InvalidInputError(f"cannot read the type {text!r} of column {column!r}; {hint}") from error
    return arrow_type


def _nested_type(match: re.Match[str], column: str) -> "pa.DataType | None":
    """Return the Arrow type of a text with parts in angle brackets; None where it is not one, as a vector of lists."""
    import pyarrow as pa

    parts, length = match[2], match[3]
    parsed = functools.partial(_parsed_type, column=column)
    match match[1], length:
        case "list", None:
            return pa.list_(_parsed_field(parts, column))
        case "large_list", None:
            return pa.large_list(_parsed_field(parts, column))
        case "fixed_size_list", str():
            return pa.list_(_parsed_field(parts, column), int(length))
        case "struct", None:
            return pa.struct([_parsed_field(part, column) for part in _split(parts) if part.strip()])
        case "map", None:
            key, *item = _split(parts)
            return pa.map_(parsed(key), parsed(",".join(item)))
        case "dictionary", None if (dictionary_type := _DICTIONARY.fullmatch(parts)) is not None:
            # The stub of pyarrow lists the types of indices.
            dictionary: Any = pa.dictionary
            arrow_type: pa.DataType = dictionary(
                parsed(dictionary_type[2]), parsed(dictionary_type[1]), ordered=dictionary_type[3] == "1"
            )
            return arrow_type
        case "extension", None:
            extension_types: dict[str, pa.DataType] = {
                "arrow.uuid": pa.uuid(),
                "arrow.json": pa.json_(),
                "arrow.bool8": pa.bool8(),
            }
            return extension_types.get(parts)
    return None


def _parsed_field(text: str, column: str) -> "pa.Field[Any]":
    """Read a part of a type: `a: int32 not null` in a struct, and `item: int64` or only `int64` in a list."""
    import pyarrow as pa

    name, colon, kind = (piece.strip() for piece in text.partition(":"))
    # A colon inside of the type belongs to a part of it.
    if not colon or set(name) & set(_BRACKETS):
        name, kind = "item", text.strip()
    nullable = not kind.lower().endswith(_NOT_NULL)
    plain = kind if nullable else kind[: -len(_NOT_NULL)].strip()
    return pa.field(name, _parsed_type(plain, column), nullable)


def _parquet_schema(path: str) -> "pa.Schema":
    """Return the columns of a Parquet file, without what pandas or Spark keep in its metadata.

    Raises:
        InvalidInputError: There is no such file, or it is not a Parquet file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if not Path(path).is_file():
            raise InvalidInputError(f"there is no file {path}; --like takes a local Parquet file")
        # Only the footer is read, so a file of any size will do.
        return parquet.read_schema(path).remove_metadata()
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInputError(f"{path} is not a Parquet file: {error}") from error


@click.command(epilog="Example: lance-dagster table head orders.lance production --columns id,day --rows 5")
@about_table
@click.argument("ref", type=REF, default="main")
@click.option("--rows", "-n", type=click.IntRange(min=1), default=10, show_default=True, help="How many rows.")
@click.option(
    "--columns", "-c", metavar="NAME,...", multiple=True, help="The columns, in this order; may be given again."
)
def head(table: "LanceTable", output: Output, ref: str, rows: int, columns: Sequence[str]) -> None:
    """Show the first rows of a version of TABLE.

    Reads only the needed part of the data files. Columns that do not fit the terminal are named below the rows.
    """
    version = table.at(ref)
    # An empty list would read no column at all; None means all of them.
    column_names = [name.strip() for names in columns for name in names.split(",") if name.strip()] or None
    reader = table.scan(version, columns=column_names)
    values: list[dict[str, Any]] = first_rows(reader, rows)
    document = {
        "version": str(version),
        "rows": json_value(values),
        "more": version.rows > len(values),
    }
    lines = value_table(reader.schema.names, values)
    output.write(document, [*lines, f"{version}: {len(values):,} of {counted(version.rows, 'row')}"])
