"""The URI of a version: one text for a table and one of its versions, for configurations and people.

    lance+<uri>?ref=<expression>                lance+s3://bucket/orders.lance?ref=production
                                                lance+/data/orders.lance?ref=main%5E2
    lance+<root>?table=<name>&ref=<expression>  lance+s3://lake?table=shop/orders&ref=production

The first form names a version of a table, by the branches and tags of the table itself. The second form names a table
as a commit of its repository has it, by the branches, channels and tags of the repository. `table=` alone tells the two
forms apart, since a path cannot say where a root ends and the name of a table begins.

`<uri>` is the URI of the table, or a local path; `<root>` is the URI of the repository. In all parts `%`, `?`, `#`,
`&`, blanks and non-ASCII characters are percent-encoded as UTF-8; other characters may be. A `+` is a plus sign, not a
blank. Without `ref=` the newest version of `main` is meant. Credentials are refused: a URI ends up in logs.
"""

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.ref_grammar import parse
from lance_dagster.store import uri_text

PREFIX = "lance+"
_REF, _TABLE = "ref", "table"
_SAFE_IN_URI = "/:@!$'()*,;=~+"
_SAFE_IN_REF = "/:@~,"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KEY_NAME = re.compile(r"[A-Za-z_.-]{1,40}")
_EXAMPLE = "lance+s3://bucket/orders.lance?ref=production"
_EXAMPLE_OF_REPOSITORY = "lance+s3://lake?table=shop/orders&ref=production"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionUri:
    """The parts of the URI of a version: the URI of the table or the root of the repository, the ref, the table."""

    location: str
    ref: str
    table: str | None


def is_table_uri(uri: str | os.PathLike[str]) -> bool:
    """Tell whether a text is the URI of a version, and not the URI of a table alone."""
    return uri_text(uri).lower().startswith(PREFIX)


def check_table_alone(uri: str | os.PathLike[str]) -> str:
    """Return the URI of a table as text; refuse the URI of a version, which as a path would lie in a folder `lance+`.

    Raises:
        InvalidInputError: The URI names a version.
    """
    if is_table_uri(uri):
        raise InvalidInputError(
            "this URI names a version of a table: split_table_uri returns the URI of the table and the ref"
        )
    return uri_text(uri)


def parse_version_uri(text: str) -> VersionUri:
    """Parse a URI of either form.

    Raises:
        InvalidInputError: The text has another form, or carries credentials or other options; the message never shows
            those.
        RefSyntaxError: The expression is malformed.
    """
    if not is_table_uri(text):
        raise InvalidInputError(f"the URI of a version begins with {PREFIX!r}, such as {_EXAMPLE}")
    location, has_query, query = text[len(PREFIX) :].partition("?")
    scheme, separator, address = location.partition("://")
    if separator and "@" in address.partition("/")[0]:
        raise InvalidInputError("the URI of a version cannot carry credentials; give them as storage options")
    if "#" in text:
        raise InvalidInputError(f"the URI of a version has no part after '#'; in a name it is written %23: {_EXAMPLE}")
    keys = _keys(query) if has_query else {}
    ref = keys.get(_REF, MAIN)
    parse(ref)
    uri = _decoded(location, "the URI of a table")
    if not uri.strip():
        raise InvalidInputError(f"there is no table in {text!r}; write it as {_EXAMPLE}")
    # A plain path instead of file://, since a program that opens a URI would decode the escapes a second time.
    plain = _path_of_file(address) if separator and scheme.lower() == "file" else uri
    return VersionUri(location=plain, ref=ref, table=keys.get(_TABLE))


def parse_table_uri(text: str) -> tuple[str, str]:
    """Return the URI of the table and the ref expression.

    Raises:
        InvalidInputError: The text has another form, names a table of a repository, or carries credentials or other
            options; the message never shows those.
        RefSyntaxError: The expression is malformed.
    """
    version_uri = parse_version_uri(text)
    if version_uri.table is not None:
        raise InvalidInputError(
            f"the URI names table {version_uri.table!r} of the repository at {version_uri.location}; "
            f"it must be the URI of a single table, such as {_EXAMPLE}; "
            "LanceRepository.open_uri opens a table of a repository"
        )
    return version_uri.location, version_uri.ref


def split_table_uri(uri: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the URI of a table, which `LanceTable.open` takes, and the ref a configuration asks for.

    Args:
        uri: `lance+<uri>?ref=<expression>`, such as `lance+s3://bucket/orders.lance?ref=production`; or the URI of a
            table alone, whose ref is `main`.

    Raises:
        InvalidInputError: The URI of a version cannot be read, or carries something other than a ref.
    """
    return parse_table_uri(uri_text(uri)) if is_table_uri(uri) else (uri_text(uri), MAIN)


def table_uri(uri: str, ref: str) -> str:
    """Write the URI of a table and a ref expression as one text.

    Raises:
        RefSyntaxError: The expression cannot be read.
    """
    parse(ref)
    return f"{PREFIX}{quote(uri, safe=_SAFE_IN_URI)}?{_REF}={quote(ref, safe=_SAFE_IN_REF)}"


def repository_uri(root: str, table: str, ref: str) -> str:
    """Write the root of a repository, one of its tables and a ref expression of the repository as one text.

    Raises:
        RefSyntaxError: The expression cannot be read.
    """
    parse(ref)
    name = quote(table, safe=_SAFE_IN_URI)
    return f"{PREFIX}{quote(root, safe=_SAFE_IN_URI)}?{_TABLE}={name}&{_REF}={quote(ref, safe=_SAFE_IN_REF)}"


def _path_of_file(address: str) -> str:
    """Return the path of what follows `file://`, such as `localhost/data/orders.lance`; the host may be empty."""
    host, slash, path = address.partition("/")
    if host.lower() not in ("", "localhost") or not path.strip("/"):
        raise InvalidInputError(
            "the URI of a file has no host, or localhost, and a path; write it as lance+file:///data/orders.lance"
        )
    return _decoded(slash + path, "a path")


def _keys(query: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if key not in (_REF, _TABLE) or not equals:
            # An unknown part may be a secret, so it is shown only where it looks like a plain key.
            shown = f", not {key!r}" if _KEY_NAME.fullmatch(key) else ""
            raise InvalidInputError(
                f"after '?' the URI of a version has only {_REF}=<expression>{shown}; give storage options beside it; "
                f"a table of a repository is written {_EXAMPLE_OF_REPOSITORY}"
            )
        decoded = _decoded(value, f"a {key}")
        if key in keys:
            raise InvalidInputError(f"the URI of a version names one {key}, not 2: {keys[key]!r}, {decoded!r}")
        keys[key] = decoded
    if keys.get(_TABLE) == "":
        raise InvalidInputError(f"there is no name after {_TABLE}=; write it as {_EXAMPLE_OF_REPOSITORY}")
    return keys


def _decoded(text: str, what: str) -> str:
    bad = _BAD_ESCAPE.search(text)
    if bad is not None:
        raise InvalidInputError(f"{what} has a '%' that two hex digits have to follow; a '%' itself is written %25")
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{what} has escapes that are not UTF-8") from error
    if _CONTROL.search(decoded):
        raise InvalidInputError(f"{what} has control characters in it")
    return decoded
