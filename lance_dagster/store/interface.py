"""What a store can do, said once for every provider."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object: its key, its size in bytes, and when it was last written, in seconds by the store's clock."""

    key: str
    size: int
    modified: float


class Store(Protocol):
    """One folder of objects. Keys are paths below it, with "/" between segments.

    Every verb raises `StoreError` when the storage fails. After a failed `put_if_absent` or `compare_and_swap` the
    object may or may not be there: read it back before deciding anything.
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
        """Return an object's bytes, or None when there is none."""
        ...

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return an object's bytes and the tag that `compare_and_swap` takes, or None when there is none."""
        ...

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write an object whole, whatever is there. One that is not `durable` may be gone after a power cut."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object whole unless there is one; False, and nothing written, when there is."""
        ...

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace an object unless it changed since `tag` was read; False, and nothing written, when it did."""
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
        """List every object below a folder, temporary ones included, in no order; keys are below the store's folder."""
        ...

    def now(self) -> float:
        """Return the time by the clock that stamps objects, in seconds since 1970. Writes an object and removes it."""
        ...

    def download(self, key: str, path: Path) -> bool:
        """Write an object's bytes to a local file; False when there is none."""
        ...

    def upload(self, path: Path, key: str) -> None:
        """Write an object of a local file's bytes, whole or not at all."""
        ...

    def list_some(self, folder: str, limit: int) -> Collection[str]:
        """Return the names of at most `limit` objects directly in a folder, whichever are found first."""
        ...

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy an object, or a folder, of the same storage to `key`; False when there is none to copy."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; nothing happens when there is none."""
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, many with one request where the provider can. After an error some of them may be gone."""
        ...

    def prune(self, folder: str) -> None:
        """Remove the empty folders at and below a folder, where folders exist by themselves."""
        ...

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and everything below it."""
        ...

    def sync_folder(self, folder: str) -> None:
        """Make the names in a folder survive a power cut, where that is not given."""
        ...
