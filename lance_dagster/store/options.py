"""Canonical URIs, and translation of storage options.

A table has one canonical URI: absolute, without a trailing slash, `s3://` for S3. pylance compares base paths as
strings, so with another spelling of the same location its cleanup would consider files unused and delete them.

Storage options use pylance's names. Unknown options are refused: pylance ignores a misspelt option, which then
surfaces as a time-out.
"""

import difflib
import importlib.metadata
import os
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from lance_dagster.credentials import CONTAINER, shown_uri
from lance_dagster.errors import InvalidInputError
from lance_dagster.store.vocabulary import (
    AZURE,
    GOOGLE,
    OF_EVERY_PROVIDER,
    PROVIDERS,
    S3,
    Timeouts,
    check_endpoint,
    check_option,
    refuse_credentials_in,
    retry_seconds,
    timeouts,
)

FileChecks = Literal["none", "deletions", "shapes"]
SCHEMES = ("", *(scheme for provider in (S3, AZURE, GOOGLE) for scheme in provider.schemes))
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""The environment variables that name an S3 server, as botocore reads them."""
_S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
_CLIENT, _TOP = "client_kwargs", ""
# The arguments of s3fs; the other options are flags or times.
_S3FS: Mapping[str, tuple[str, str]] = {
    "access_key_id": (_TOP, "key"),
    "secret_access_key": (_TOP, "secret"),
    "session_token": (_TOP, "token"),
    "endpoint": (_CLIENT, "endpoint_url"),
    "region": (_CLIENT, "region_name"),
}
# As s3fs has them.
_S3_TIMEOUTS = Timeouts(connect=5.0, read=15.0)
_TRUE = frozenset({"1", "true", "yes", "on"})
_DURABILITY = "durability"
_ALLOWED_BASES = "allowed_base_paths"
_CHECK_FILES = "check_files"
_RECORD_DIGESTS = "record_digests"
_CHECKS: tuple[FileChecks, ...] = ("none", "deletions", "shapes")
# Options of this package, which no provider knows.
_OWN = frozenset({_DURABILITY, _ALLOWED_BASES, _CHECK_FILES, _RECORD_DIGESTS})
# Options of this package that apply to a folder at another place too.
_OF_ANY_FOLDER = frozenset({_DURABILITY, _RECORD_DIGESTS})
_YES_OR_NO = {"true": True, "false": False}
_DURABLE = {"power": True, "process": False}
_OF_A_BASE = re.compile(r"base_(\d+)\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A folder of objects: its canonical URI, its scheme (empty for a local path), and how it is accessed."""

    uri: str
    scheme: str
    access: Mapping[str, str] = field(repr=False)
    durable: bool


def resolve_location(uri: str | os.PathLike[str], storage_options: Mapping[str, str]) -> Location:
    """Return the canonical location of a table, with the storage options that apply to the table itself.

    Raises:
        InvalidInputError: No store has such a URI, the options are no mapping, or `durability` has an unknown value.
    """
    canonical = supported_uri(uri)
    check_mapping(storage_options)
    options = table_options(storage_options)
    return Location(
        uri=canonical,
        scheme=scheme_of(canonical),
        access={key: value for key, value in options.items() if key not in _OWN},
        durable=is_durable(options),
    )


def check_mapping(storage_options: object) -> None:
    """Refuse storage options that are not a mapping of text to text.

    Raises:
        InvalidInputError: The message does not show the values, which may be secret.
    """
    if not isinstance(storage_options, Mapping) or not all(isinstance(name, str) for name in storage_options):
        raise InvalidInputError(
            "storage options have to be a mapping of text to text such as {'region': 'eu-central-1'}, not "
            f"{type(storage_options).__name__}"
        )
    for name, value in storage_options.items():
        if not isinstance(value, str):
            raise InvalidInputError(f"storage option {name!r} must be a string, not {type(value).__name__}")


def supported_uri(uri: str | os.PathLike[str]) -> str:
    """Return the canonical spelling of a URI at which a table can be stored.

    Raises:
        InvalidInputError: `canonical_uri` refuses the URI, it is not UTF-8, or no store supports its scheme.
    """
    canonical = canonical_uri(uri)
    try:
        canonical.encode()
    except UnicodeEncodeError as error:
        problem = "a name in it is not UTF-8, and pylance opens no such path; rename that folder"
        raise InvalidInputError(f"no table can be at {canonical!r}: {problem}") from error
    scheme = scheme_of(canonical)
    if scheme not in SCHEMES:
        raise InvalidInputError(
            f"cannot store tables at {scheme}://; use a local path, s3://, az://, abfss:// or gs://"
        )
    return canonical


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI, empty for a local path."""
    return uri.partition("://")[0] if "://" in uri else ""


def canonical_uri(uri: str | os.PathLike[str]) -> str:
    """Return the canonical spelling of a table's URI, the only one this package stores and passes on.

    Raises:
        InvalidInputError: The URI is empty or percent-encoded, or carries credentials, a query or a fragment.
    """
    text = uri_text(uri)
    if not text.strip():
        raise InvalidInputError("a table URI cannot be empty; give a local path or s3://bucket/path")
    _refuse_control_characters(text)
    scheme = scheme_of(text).lower()
    if scheme in ("", "file"):
        path = _path_of_file_uri(text) if scheme else os.path.expanduser(text)
        if "?" in path:
            raise InvalidInputError(
                f"the path of a table cannot contain '?', where pylance cuts it: {shown_uri(text)!r}"
            )
        # Symbolic links are kept: resolving them would change the URI of a table when a link is moved.
        return os.path.abspath(path)
    if text != text.strip():
        # pylance opens the table without the white space, which may be another table.
        raise InvalidInputError(f"a table URI cannot begin or end with white space: {shown_uri(text)!r}")
    parts = urlsplit(text)
    _refuse_credentials(text)
    if not parts.netloc:
        raise InvalidInputError(f"a table URI is scheme://bucket/path: {shown_uri(text)!r}")
    # Hadoop spells the same storage s3a and s3n; pylance accepts only s3.
    scheme = "s3" if scheme in _S3_SCHEMES else scheme
    segments = [segment for segment in parts.path.split("/") if segment]
    # S3 keys are not normalised: such a segment would be part of the key.
    if ".." in segments or "." in segments:
        raise InvalidInputError(f"a table URI cannot contain '.' or '..' segments: {shown_uri(text)!r}")
    # Here a key is what the URI says; pylance decodes it, so that the files of a table would be at two places.
    if re.search(r"%[0-9a-fA-F]{2}", parts.path):
        raise InvalidInputError(
            f"a table URI is not percent-encoded, and {shown_uri(text)!r} has a '%' before two hexadecimal digits; for "
            f"the place that pylance opens, write {shown_uri(unquote(text))!r}"
        )
    return f"{scheme}://{'/'.join([parts.netloc, *segments])}"


def _path_of_file_uri(uri: str) -> str:
    """Return the path of a file URI, which is percent-encoded.

    Raises:
        InvalidInputError: It has a host, a query or a fragment, without which it would be another path.
    """
    parts = urlsplit(uri)
    if parts.netloc.lower() not in ("", "localhost"):
        host = parts.netloc.rpartition("@")[2]
        raise InvalidInputError(
            f"{shown_uri(uri)!r} names the host {host!r}; a local path has three slashes: file:///path"
        )
    if parts.query or parts.fragment or uri.endswith(("?", "#")):
        raise InvalidInputError(f"{shown_uri(uri)!r} has a query or a fragment; in a file URI, '#' is written %23")
    path = unquote(parts.path)
    _refuse_control_characters(path)
    return path


def _refuse_control_characters(uri: str) -> None:
    """Refuse a NUL, a line break and the like, which pylance refuses or removes.

    Raises:
        InvalidInputError: The URI has a control character.
    """
    if re.search(r"[\x00-\x1f\x7f]|%00", uri):
        raise InvalidInputError(f"a table URI cannot contain control characters: {shown_uri(uri)!r}")


def uri_text(uri: str | os.PathLike[str]) -> str:
    """Return a URI as text.

    Raises:
        InvalidInputError: It is neither text nor a path, or a path that was a URI: pathlib removes one of two slashes.
    """
    location: object = uri
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else location
    if not isinstance(text, str):
        raise InvalidInputError(f"a table URI has to be text or a path, not {reprlib.repr(uri)}")
    if re.match(r"(s3[an]?|az|abfss|gs|file):/(?!/)", text, re.IGNORECASE):
        scheme = text.partition(":")[0]
        raise InvalidInputError(
            f"{shown_uri(text)!r} lacks a slash; give a URI {scheme}:// as text, since pathlib changes it"
        )
    return text


def _refuse_credentials(uri: str) -> None:
    """Refuse a URI that may carry credentials: URIs are shown in logs, errors and on Dagster's pages.

    Raises:
        InvalidInputError: The URI has a user, a query such as a signature, or a fragment; the message shows none of it.
    """
    place = re.split(r"[?#]", uri, maxsplit=1)[0]
    host = place.partition("://")[2].partition("/")[0]
    # No bucket has a ':' in its name; a password with a slash puts its '@' into what looks like the path.
    if ("@" in host or ":" in host) and not re.match(CONTAINER, place):
        raise InvalidInputError("a table URI cannot contain a user before '@'; give credentials as storage options")
    if place != uri:
        raise InvalidInputError(f"a table URI cannot contain '?' or '#': what follows {place!r} may be a signature")


def table_options(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the table itself, without the options of base paths (`base_<id>.<option>`)."""
    return {key: value for key, value in storage_options.items() if not _OF_A_BASE.fullmatch(key)}


def is_durable(storage_options: Mapping[str, str]) -> bool:
    """Return whether local files are synced: the option `durability` is "power" (the default) or "process".

    Raises:
        InvalidInputError: The option has another value.
    """
    durability = storage_options.get(_DURABILITY, "power")
    if durability not in _DURABLE:
        raise InvalidInputError(
            f"the storage option {_DURABILITY} is {durability!r}; it says what a commit on local disk survives: "
            "'power' (a power cut, the default) or 'process' (the end of the process)"
        )
    return _DURABLE[durability]


def allowed_base_paths(storage_options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the places that the option `allowed_base_paths` lists, separated by commas, in canonical spelling.

    Raises:
        InvalidInputError: An entry is not a URI.
    """
    listed = storage_options.get(_ALLOWED_BASES, "").split(",")
    return tuple(canonical_uri(entry.strip()) for entry in listed if entry.strip())


def file_checks(storage_options: Mapping[str, str]) -> FileChecks:
    """Return which files are checked before pylance reads a version: the option `check_files`.

    Raises:
        InvalidInputError: The option has another value.
    """
    checks = storage_options.get(_CHECK_FILES, "deletions")
    for choice in _CHECKS:
        if checks == choice:
            return choice
    raise InvalidInputError(
        f"the storage option {_CHECK_FILES} is {checks!r}; it says which files are checked before pylance reads a "
        "version: 'none', 'deletions' (the deletion files, the default) or 'shapes' (the data files too)"
    )


def records_digests(storage_options: Mapping[str, str]) -> bool:
    """Return whether the digest of each written data file is recorded, as the option `record_digests` says.

    Raises:
        InvalidInputError: The option is neither "true" nor "false".
    """
    choice = storage_options.get(_RECORD_DIGESTS, "false")
    if choice not in _YES_OR_NO:
        raise InvalidInputError(
            f"the storage option {_RECORD_DIGESTS} is {choice!r}; it says whether each data file is read again after "
            "it was written, to record its digest: 'true' or 'false' (the default)"
        )
    return _YES_OR_NO[choice]


def base_options(storage_options: Mapping[str, str], base_id: int, uri: str) -> dict[str, str]:
    """Return the options for a base path: the table's options, overridden by the base path's own, as in pylance.

    If the table is on another provider, only the options apply that every provider has, such as `timeout`.

    Args:
        storage_options: The options a table was opened with.
        base_id: The id of the base path.
        uri: Its location; a local folder takes only `durability` and `record_digests`.
    """
    scheme = scheme_of(canonical_uri(uri))
    options = table_options(storage_options)
    if not all(_is_known(name, scheme) for name in options):
        options = {name: value for name, value in options.items() if name in _OWN | OF_EVERY_PROVIDER}
    for key, value in storage_options.items():
        match = _OF_A_BASE.fullmatch(key)
        if match is not None and int(match[1]) == base_id:
            options[match[2]] = value
    if scheme == "":
        return {key: value for key, value in options.items() if key in _OF_ANY_FOLDER}
    return options


def _is_known(name: str, scheme: str) -> bool:
    """Return whether the store of a scheme has an option."""
    providers = [provider for provider in PROVIDERS if scheme in provider.schemes] or [S3]
    return name in _OWN or any(name.lower() in provider.names for provider in providers)


def refuse_unknown_options(storage_options: Iterable[str]) -> None:
    """Refuse names of storage options that no store has; the values may be unknown yet.

    Raises:
        InvalidInputError: A name is unknown. The message suggests the nearest known name.
    """
    for option in storage_options:
        of_base = _OF_A_BASE.fullmatch(option)
        name = of_base[2] if of_base else option
        if name not in _OWN and not any(name.lower() in provider.names for provider in PROVIDERS):
            raise InvalidInputError(_unknown_option(option))


def refuse_credentials(storage_options: Mapping[str, str]) -> None:
    """Refuse credentials in options that are no secrets, and are therefore shown and stored: endpoints and places.

    Raises:
        InvalidInputError: An endpoint or an allowed base path has a user, a query or a fragment. The message does not
            show it.
    """
    for name, value in storage_options.items():
        of_base = _OF_A_BASE.fullmatch(name)
        if option_identity(of_base[2] if of_base else name) == "endpoint":
            refuse_credentials_in(value, f"the endpoint, storage option {name},")
        elif name == _ALLOWED_BASES:
            allowed_base_paths(storage_options)


def option_identity(name: str) -> str:
    """Return the name of an option in this package, which is equal for two spellings of one option."""
    plain = name.lower()
    return next((provider.names[plain] for provider in PROVIDERS if plain in provider.names), plain)


def is_secret_option(name: str) -> bool:
    """Tell whether the value of an option is a secret, for any provider."""
    return any(option_identity(name) in provider.secrets for provider in PROVIDERS)


def _unknown_option(option: str) -> str:
    usual = sorted(name for name in S3.names if name.startswith("aws_"))
    names = [name for provider in (S3, AZURE, GOOGLE) for name in provider.names]
    near = difflib.get_close_matches(option.lower(), [*usual, *names, *_OWN], n=1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown storage option {option!r}{meant}; known: {', '.join(usual)}"


def s3fs_options(storage_options: Mapping[str, str]) -> dict[str, Any]:
    """Translate pylance's storage options to arguments of s3fs.

    Raises:
        InvalidInputError: An option is unknown, not a string or has a control character, a timeout has no unit, or
            the endpoint is plain HTTP without `allow_http`.
    """
    top: dict[str, Any] = {}
    client: dict[str, Any] = {}
    flags: dict[str, bool] = {}
    names = S3.names
    for option, value in storage_options.items():
        key = names.get(option.lower())
        if key is None:
            raise InvalidInputError(_unknown_option(option))
        check_option(option, value)
        if key in _S3FS:
            place, argument = _S3FS[key]
            (client if place == _CLIENT else top)[argument] = value
        else:
            flags[key] = value.lower() in _TRUE
    endpoint = client.get("endpoint_url", "")
    check_endpoint(client.get("endpoint_url"), allow_http=flags.get("allow_http", False))
    _check_environment(flags, endpoint)
    wait = timeouts({**_timeouts_of_environment(), **_plain_names(storage_options)}, _S3_TIMEOUTS)
    # Servers other than AWS rarely resolve bucket names as host names.
    style = "virtual" if flags.get("virtual_hosted_style_request") else "path" if endpoint else "auto"
    return top | {
        "anon": flags.get("skip_signature", False),
        "client_kwargs": client,
        # botocore would put the user agent together and check the arguments anew for each request, which takes about a
        # tenth of the time that a small request costs here.
        "config_kwargs": {
            "s3": {"addressing_style": style},
            "user_agent": f"lance_dagster/{importlib.metadata.version('lance_dagster')}",
            "parameter_validation": False,
            # The store repeats requests, so that one call is one request.
            "retries": {"total_max_attempts": 1},
            "connect_timeout": wait.connect,
            "read_timeout": wait.read,
            # A publication makes requests to as many tables at the same time.
            "max_pool_connections": 128,
        },
        # With a cache, s3fs would answer from a listing that other writers have outdated since.
        "use_listings_cache": False,
    }


def s3_retry_seconds(storage_options: Mapping[str, str]) -> float:
    """Return for how long requests to S3 are repeated: the option `client_retry_timeout`.

    Raises:
        InvalidInputError: It is not a number of seconds.
    """
    seconds = _plain_names(storage_options).get("client_retry_timeout")
    return retry_seconds({} if seconds is None else {"retry_seconds": seconds})


def _plain_names(storage_options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower().removeprefix("aws_"): value for name, value in storage_options.items()}


def _timeouts_of_environment() -> dict[str, str]:
    """Return the timeouts that pylance takes from the environment, where botocore has no such variables."""
    names = ("timeout", "connect_timeout")
    return {name: os.environ[f"AWS_{name.upper()}"] for name in names if f"AWS_{name.upper()}" in os.environ}


def _check_environment(flags: Mapping[str, bool], endpoint: str) -> None:
    """Refuse an endpoint of the environment that is not a URL, or uses plain http where that is not allowed."""
    names = () if endpoint else ENDPOINT_VARIABLES
    name = next((name for name in names if os.environ.get(name)), "")
    allowed = flags.get("allow_http", os.environ.get("AWS_ALLOW_HTTP", "").lower() in _TRUE)
    address = os.environ.get(name, "")
    refuse_credentials_in(address, f"{name} in the environment")
    if address and not address.startswith(("http://", "https://")):
        raise InvalidInputError(f"{name} in the environment must be a URL that begins with https:// or http://")
    if address.startswith("http://") and not allowed:
        raise InvalidInputError(
            f"{name} in the environment uses plain http; set AWS_ALLOW_HTTP to 'true' there, or the storage option "
            "allow_http"
        )
