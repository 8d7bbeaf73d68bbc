"""The interface of a store, and copying between stores.

Every provider implements `Store`; the conformance tests run against each of them.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from lance_dagster.errors import StoreError

_PUTS = 3
_First = TypeVar("_First")
_Second = TypeVar("_Second")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object: its key, its size in bytes, and its modification time in seconds by the clock of the store.

    `etag` is its tag for `compare_and_swap`, where the listing of the store shows it.
    """

    key: str
    size: int
    modified: float
    etag: str = ""


@dataclass(slots=True)
class Turn:
    """The turn of one writer.

    Attributes:
        waited: Whether other writers were ahead, so that what was read before the turn may be out of date.
        newest: The newest version that the last writer made, 0 where it is not known; the writer with the turn replaces
            it. It is a hint: the version may be gone, and there may be a newer version.
        manifest: The bytes of its manifest, if the last writer made it just now; the writer with the turn replaces them
            too, for the writer that waits.
    """

    waited: bool = False
    newest: int = 0
    manifest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long writers wait, in seconds.

    Each look at a lock costs processor time, which the writer with the turn needs.

    Attributes:
        turn: How long a writer waits for its turn; after that it goes on without a turn.
        head: The longest time between two looks of the writer that is next.
        shortest: The longest time between two looks of any other writer that has waited for long.
        longest: The longest time between two looks of any other writer that begins to wait.
    """

    turn: float
    head: float
    shortest: float
    longest: float


class Store(Protocol):
    """A folder of objects. Keys are paths relative to it, with "/" between segments.

    Every method raises `StoreError` when the storage fails, and `NotDurableError` when an object was written and a
    power cut may lose it. After a failed `put_if_absent` or `compare_and_swap` the
    object may or may not have been written: read it back before deciding anything.
    """

    @property
    def uri(self) -> str:
        """The canonical URI of the folder."""
        ...

    @property
    def ordered_listing(self) -> bool:
        """Whether listings come in key order, so that no version hint is needed."""
        ...

    @property
    def storage(self) -> object:
        """The storage and the access to it; `copy_from` reaches stores for which it is equal. Secret."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object, or None when it does not exist."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` up to `end`, or None when it does not exist.

        Fewer bytes are returned when the object ends before `end`, none when it ends before `start`.
        """
        ...

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and its tag for `compare_and_swap`, or None when it does not exist."""
        ...

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write an object atomically, replacing any existing one. Unless `durable`, a power cut may lose it."""
        ...

    def put_hint(self, key: str, data: bytes) -> None:
        """Write a small object from which readers begin a search, and which they do without: it may be lost or old."""
        ...

    def put_if_absent(self, key: str, data: bytes, *, synced: bool = True, after: Sequence[str] = ()) -> bool:
        """Write an object atomically unless the key exists; return whether it was written.

        Unless `synced`, a power cut may take it until the caller has called `sync_folder`; it is never left in part.
        `after` are files and folders of this store that are made durable before the object gets its name. Where they
        cannot be synced, `NotDurableError` says so and the object was not written.
        """
        ...

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace an object unless it changed since `tag` was read; return whether it was written."""
        ...

    def written_tag(self, key: str, data: bytes) -> str | None:
        """Return the tag that an object got when this store put or swapped it with these bytes; None if not known.

        Nothing is sent. The object may have been replaced since: a swap with the tag then fails.
        """
        ...

    def list(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the objects directly in a folder, sorted, at most the first `limit` of them."""
        ...

    def folders(self, folder: str) -> tuple[str, ...]:
        """Return the names of the folders directly in a folder, sorted; links are not followed."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names of the objects directly in a folder with their sizes in bytes."""
        ...

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """List every object below a folder, temporary ones included, unordered; keys are relative to the store."""
        ...

    def now(self) -> float:
        """Return the clock of the storage in seconds since 1970, by writing and deleting an object.

        Ages of objects are compared with this clock: the local clock may differ from the server's.
        """
        ...

    def download(self, key: str, path: Path) -> bool:
        """Write the bytes of an object to a local file; return whether the object exists."""
        ...

    def upload(self, path: Path, key: str) -> None:
        """Write the bytes of a local file to an object, atomically."""
        ...

    def list_with_etags(self, folder: str) -> dict[str, str]:
        """Return the names of the objects directly in a folder, sorted, with their tags for `compare_and_swap`.

        A tag is empty where the listing of the store does not show it.
        """
        ...

    def list_some(self, folder: str, limit: int) -> Collection[str]:
        """Return the names of at most `limit` objects directly in a folder, in no particular order."""
        ...

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy an object or a folder of the same storage to `key`; return whether the source exists.

        A local store also returns True when the target exists already, and then copies nothing.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete an object; succeed when it does not exist."""
        ...

    def compare_and_delete(self, key: str, tag: str) -> bool:
        """Delete an object unless it changed since `tag` was read; return False when it changed or is gone.

        Where `deletes_conditionally` is False the object is deleted in any case.
        """
        ...

    def deletes_conditionally(self) -> bool:
        """Return whether the storage keeps an object that changed since the tag given to `compare_and_delete`."""
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, in batches where the provider supports it. After an error, some of them may be deleted."""
        ...

    def prune(self, folder: str) -> None:
        """Remove empty folders at and below a folder, and above it, on storages that have folders."""
        ...

    def turn(self, name: str, meanwhile: Callable[[], object] = object) -> AbstractContextManager[Turn]:
        """Wait for the turn of this writer among the writers of a name that share a queue with it.

        The writer that is next calls `meanwhile` while another writer has the turn.

        Turns only keep writers from wasting attempts and from starving each other. No caller may rely on a turn: a
        writer goes on without a turn after a while, or at once where there can be no queue.
        """
        ...

    def refuse_links(self, *keys: str, below: Sequence[str] = ()) -> None:
        """Refuse folders and files that are links or lie behind one, and the folders in `below` that have one below.

        Only storages of folders have links.
        """
        ...

    def links(self, folder: str = "") -> Sequence[str]:
        """Return the keys of the links at or below a folder, on storages that have links."""
        ...

    def sync_folder(self, folder: str) -> None:
        """Make the directory entries of a folder survive a power cut, on storages where that takes a call.

        Raises:
            NotDurableError: A sync failed, so a power cut may lose an entry whatever a later sync says.
        """
        ...


def together(store: Store, first: Callable[[], _First], second: Callable[[], _Second]) -> tuple[_First, _Second]:
    """Make two independent requests: at the same time on object storage, else the second after the first.

    Both have ended afterwards. If both fail, the error of the first is raised.
    """
    if not store.ordered_listing:
        # On local disk a request takes less time than a thread.
        return first(), second()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(second)
        answer = first()
    return answer, pending.result()


def put_once(store: Store, key: str, data: bytes) -> None:
    """Write an object unless there is one, and make sure that there is one afterwards.

    This is for objects whose writer deletes something else next: a server may report that the condition of a put
    failed, because of another request under way, although there is no object in the end.

    Raises:
        StoreError: The storage failed, or reports that the object exists but does not return it.
    """
    for _ in range(_PUTS):
        if store.put_if_absent(key, data) or store.get(key) is not None:
            return
    raise StoreError(f"cannot write {store.uri}/{key}: the storage reports that it exists, but does not return it")


def copy_file(source: Store, source_key: str, dest: Store, key: str) -> bool:
    """Copy one object; return whether the source exists. An existing object at `key` may be kept or replaced."""
    # A link would copy the file of another table.
    source.refuse_links(source_key)
    if source.storage == dest.storage:
        return dest.copy_from(f"{source.uri}/{source_key}", key)
    with tempfile.TemporaryDirectory(prefix="lance-dagster-") as folder:
        path = Path(folder) / "object"
        if not source.download(source_key, path):
            return False
        dest.upload(path, key)
    return True


def copy_folder(source: Store, folder: str, dest: Store, key: str) -> bool:
    """Copy the objects of a folder and of the folders below it; return whether the source has any."""
    source.refuse_links(below=[folder])
    if source.storage == dest.storage:
        return dest.copy_from(f"{source.uri}/{folder}", key)
    keys = [entry.key for entry in source.walk(folder)]
    for source_key in keys:
        copy_file(source, source_key, dest, f"{key}/{source_key.removeprefix(f'{folder}/')}")
    return bool(keys)
