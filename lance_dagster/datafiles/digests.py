"""Digests of data files: they record the bytes as they were written, so that a later change is noticed.

Lance data files hold no checksums, so a flipped bit in a page may read as another value. A digest is the SHA-256 of a
whole data file, in the name of an empty object beside it: `data/<name>.lance.<digest>.sha256`. A name is there or not,
so a crash leaves no torn digest; the listing of the folder, which a verification takes anyway, has all of them; two
processes that record the same file write the same name. A digest is never replaced: if the bytes of a file change, its
first digest stays and contradicts them.

pylance neither reads nor deletes these objects. Garbage collection deletes them with their data file.
"""

import hashlib
import posixpath
from collections.abc import Iterable, Mapping

from lance_dagster.errors import CorruptFileError
from lance_dagster.format import layout
from lance_dagster.store import Store, open_store

# The size of a request on object storage, and the memory that a file takes.
_PORTION = 16 << 20
# Names of files have at most 255 bytes on most disks, and a digest takes 72 of them.
_LONGEST_NAME = 255 - 72


def digest_of(store: Store, key: str) -> tuple[str, int] | None:
    """Return the SHA-256 of an object in hex digits, and its size in bytes; None when it does not exist.

    The object is read in portions of 16 MiB.
    """
    digest, size = hashlib.sha256(), 0
    while True:
        portion = store.get_range(key, size, size + _PORTION)
        if portion is None:
            return None
        digest.update(portion)
        size += len(portion)
        if len(portion) < _PORTION:
            return digest.hexdigest(), size


def recorded_digests(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the digests of each file, from the names in its folder; files without a digest are left out."""
    digests: dict[str, frozenset[str]] = {}
    for name in names:
        parsed = layout.parse_digest_file(name)
        if parsed is not None:
            digests[parsed[0]] = digests.get(parsed[0], frozenset()) | {parsed[1]}
    return digests


def record_digest(store: Store, key: str, size: int = 0) -> bool:
    """Read an object and write its digest beside it; return whether that was done.

    An object that is gone, or whose name is too long for another 72 bytes, gets none.

    Args:
        store: The store of the object.
        key: Its key.
        size: Its size in bytes as its writer said; 0 when it is unknown.

    Raises:
        CorruptFileError: The object has another size.
        StoreError: The storage failed.
    """
    digest = digest_of(store, key) if len(posixpath.basename(key).encode()) <= _LONGEST_NAME else None
    if digest is None:
        return False
    if size not in (0, digest[1]):
        raise CorruptFileError(f"{store.uri}/{key}", f"its size is not {size} bytes, as its writer said")
    # The digest is not synced: a power cut that takes it leaves a file without a digest, as if it was not recorded.
    store.put(layout.digest_file(key, digest[0]), b"", durable=False)
    return True


def digested_files(store: Store, key: str, *, blobs: bool) -> tuple[str, ...]:
    """Return the keys of the files with digests of their own: a data file, and its blob files if it may have any.

    A blob file that is missing is among them where its digest is recorded.
    """
    folder = key.removesuffix(".lance")
    names = store.list(folder) if blobs else []
    blob_files = recorded_digests(names).keys() | {name for name in names if layout.parse_digest_file(name) is None}
    return (key, *(f"{folder}/{name}" for name in sorted(blob_files)))


def record_written(data_uri: str, name: str, storage_options: Mapping[str, str], *, blobs: bool = False) -> None:
    """Record the digest of a data file that was just written.

    Raises:
        CorruptFileError: The file cannot be read back.
        StoreError: The storage failed.
    """
    store = open_store(data_uri, storage_options)
    for key in digested_files(store, name, blobs=blobs):
        if not record_digest(store, key):
            raise CorruptFileError(f"{data_uri}/{key}", "it was just written, and is missing")
