"""Objects at rest: the operations on stored bytes that all other folders build on: local disk, S3, Azure and Google.

This folder is the only user of fsspec and of the providers' clients. A commit is one `put_if_absent`, a moved ref is
one `compare_and_swap`. fsspec's own `mode="create"` is not atomic on local disk, and some S3 servers accept
`If-None-Match` and ignore it. So each store implements the operations itself, and on object storage the server is
probed before the first conditional write.

The interface is imported with the first name that is used of it, and the module of a provider when its store is first
opened: a code location of Dagster only asks which options there are.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from lance_dagster.errors import InvalidInputError
from lance_dagster.store.options import (
    allowed_base_paths,
    base_options,
    canonical_uri,
    check_mapping,
    file_checks,
    is_durable,
    is_secret_option,
    option_identity,
    records_digests,
    refuse_credentials,
    refuse_unknown_options,
    resolve_location,
    supported_uri,
    table_options,
    uri_text,
)
from lance_dagster.store.vocabulary import PROVIDERS

if TYPE_CHECKING:
    from lance_dagster.store.azure import AzureStore as AzureStore
    from lance_dagster.store.concurrency import AT_ONCE as AT_ONCE, concurrently as concurrently
    from lance_dagster.store.google import GoogleStore as GoogleStore
    from lance_dagster.store.interface import (
        ObjectInfo as ObjectInfo,
        Store as Store,
        copy_file as copy_file,
        copy_folder as copy_folder,
        put_once as put_once,
        together as together,
    )
    from lance_dagster.store.local import LocalStore as LocalStore, sync_path as sync_path
    from lance_dagster.store.prefix import PROBE_OBJECT as PROBE_OBJECT
    from lance_dagster.store.s3 import S3Store as S3Store

__all__ = [
    "AT_ONCE",
    "PROBE_OBJECT",
    "AzureStore",
    "GoogleStore",
    "LocalStore",
    "ObjectInfo",
    "S3Store",
    "Store",
    "allowed_base_paths",
    "base_options",
    "canonical_uri",
    "check_mapping",
    "concurrently",
    "copy_file",
    "copy_folder",
    "file_checks",
    "is_durable",
    "is_secret_option",
    "open_store",
    "option_identity",
    "put_once",
    "records_digests",
    "refuse_credentials",
    "refuse_unknown_options",
    "supported_uri",
    "sync_path",
    "table_options",
    "together",
    "uri_text",
]

_HOME_OF = {
    **dict.fromkeys(("AT_ONCE", "concurrently"), "lance_dagster.store.concurrency"),
    "AzureStore": "lance_dagster.store.azure",
    "GoogleStore": "lance_dagster.store.google",
    **dict.fromkeys(
        ("ObjectInfo", "Store", "copy_file", "copy_folder", "put_once", "together"), "lance_dagster.store.interface"
    ),
    "LocalStore": "lance_dagster.store.local",
    "PROBE_OBJECT": "lance_dagster.store.prefix",
    "S3Store": "lance_dagster.store.s3",
    "sync_path": "lance_dagster.store.local",
}


def __getattr__(name: str) -> object:
    """Load a name from the module that has it."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lance_dagster.store' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def open_store(uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> "Store":
    """Return the store for the folder at `uri`, without contacting the storage.

    Args:
        uri: A local path, `file://`, `s3://`, `az://`, `abfss://` or `gs://`.
        storage_options: Credentials and endpoint under pylance's names. Options of base paths (`base_1.region`) are
            ignored here; they configure the stores of the base paths. `durability` states what a write on local disk
            survives: "power" (a power cut, the default) or "process" (the end of the process, as with pylance).
            `allowed_base_paths` lists places outside of the table whose files its versions may name.
            `check_files` states what is checked before pylance reads a version: "none", "deletions" (the default) or
            "shapes". `record_digests` states whether the digests of written data files are recorded.

    Raises:
        InvalidInputError: The scheme is not supported, the URI is not UTF-8, or an option is unknown or not a string.
    """
    location = resolve_location(uri, {} if storage_options is None else storage_options)
    provider = next((provider for provider in PROVIDERS if location.scheme in provider.schemes), None)
    if provider is not None:
        store = cast("Callable[[str, Mapping[str, str]], Store]", __getattr__(provider.store))
        return store(location.uri, location.access)
    if location.access:
        raise InvalidInputError(
            f"a local table takes no storage options but durability, allowed_base_paths, check_files and "
            f"record_digests, and {location.uri} was given other options"
        )
    from lance_dagster.store.local import LocalStore

    return LocalStore(location.uri, durable=location.durable)
