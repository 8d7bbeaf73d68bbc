"""A store that calls a script before every request, so a test can add a rival, lose an answer or kill a process."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lance_dagster.errors import StoreError
from lance_dagster.store import ObjectInfo, Store
from lance_dagster.store.interface import Turn

_DELETIONS = frozenset({"delete", "delete_many", "compare_and_delete"})
CONDITIONAL = frozenset({"put_if_absent", "compare_and_swap", "compare_and_delete"})
LISTINGS = frozenset({"list", "list_some", "folders", "sizes", "walk"})
READS = LISTINGS | {"get", "get_range", "get_with_etag", "download", "now", "prune", "sync_folder"}
WRITES = frozenset({"put", "put_if_absent", "compare_and_swap", "copy_from", "upload"}) | _DELETIONS


class PlugPulledError(Exception):
    """The process dies here; no code of the package handles this error."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the store below: `send` makes it."""

    verb: str
    key: str
    send: Callable[[], Any]

    @property
    def writes(self) -> bool:
        """Whether the request changes anything."""
        return self.verb in WRITES

    @property
    def commits(self) -> bool:
        """Whether the request is the put of a manifest."""
        return self.verb == "put_if_absent" and "_versions/" in self.key


Script = Callable[[Request], Any]


class ScriptedStore:
    """A store whose every request goes through a script."""

    def __init__(self, below: Store, script: Script) -> None:
        """Take the store that does the work."""
        self._below = below
        self.script = script

    @property
    def uri(self) -> str:
        """The canonical URI of the folder."""
        return self._below.uri

    @property
    def ordered_listing(self) -> bool:
        """As below."""
        return self._below.ordered_listing

    @property
    def storage(self) -> object:
        """As below."""
        return self._below.storage

    def get(self, key: str) -> bytes | None:
        """Ask the script, then read."""
        return self._ask("get", key, lambda: self._below.get(key))  # type: ignore[no-any-return]

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Ask the script, then read."""
        return self._ask("get_range", key, lambda: self._below.get_range(key, start, end))  # type: ignore[no-any-return]

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Ask the script, then read."""
        return self._ask("get_with_etag", key, lambda: self._below.get_with_etag(key))  # type: ignore[no-any-return]

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Ask the script, then write."""
        self._ask("put", key, lambda: self._below.put(key, data, durable=durable))

    def put_hint(self, key: str, data: bytes) -> None:
        """Ask the script, then write: a put like any other to what is tested."""
        self._ask("put", key, lambda: self._below.put_hint(key, data))

    def put_if_absent(self, key: str, data: bytes, *, synced: bool = True, after: Sequence[str] = ()) -> bool:
        """Ask the script, then write."""
        return bool(
            self._ask("put_if_absent", key, lambda: self._below.put_if_absent(key, data, synced=synced, after=after))
        )

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> bool:
        """Ask the script, then write."""
        return bool(self._ask("compare_and_swap", key, lambda: self._below.compare_and_swap(key, data, tag)))

    def written_tag(self, key: str, data: bytes) -> str | None:
        """As below."""
        return self._below.written_tag(key, data)

    def list(self, folder: str, limit: int | None = None) -> list[str]:
        """Ask the script, then list."""
        return self._ask("list", folder, lambda: self._below.list(folder, limit))  # type: ignore[no-any-return]

    def folders(self, folder: str) -> tuple[str, ...]:
        """Ask the script, then list."""
        return self._ask("folders", folder, lambda: self._below.folders(folder))  # type: ignore[no-any-return]

    def sizes(self, folder: str) -> dict[str, int]:
        """Ask the script, then list."""
        return self._ask("sizes", folder, lambda: self._below.sizes(folder))  # type: ignore[no-any-return]

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Ask the script, then list everything."""
        yield from self._ask("walk", folder, lambda: list(self._below.walk(folder)))

    def now(self) -> float:
        """Ask the script, then the clock."""
        return float(self._ask("now", "", self._below.now))

    def download(self, key: str, path: Path) -> bool:
        """Ask the script, then read."""
        return bool(self._ask("download", key, lambda: self._below.download(key, path)))

    def upload(self, path: Path, key: str) -> None:
        """Ask the script, then write."""
        self._ask("upload", key, lambda: self._below.upload(path, key))

    def list_with_etags(self, folder: str) -> dict[str, str]:
        """Ask the script, then list: a listing like any other to what is tested."""
        return self._ask("list", folder, lambda: self._below.list_with_etags(folder))  # type: ignore[no-any-return]

    def list_some(self, folder: str, limit: int) -> Collection[str]:
        """Ask the script, then list."""
        return self._ask("list_some", folder, lambda: self._below.list_some(folder, limit))  # type: ignore[no-any-return]

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Ask the script, then copy."""
        return bool(self._ask("copy_from", key, lambda: self._below.copy_from(source_uri, key)))

    def delete(self, key: str) -> None:
        """Ask the script, then delete."""
        self._ask("delete", key, lambda: self._below.delete(key))

    def compare_and_delete(self, key: str, tag: str) -> bool:
        """Ask the script, then delete."""
        return bool(self._ask("compare_and_delete", key, lambda: self._below.compare_and_delete(key, tag)))

    def deletes_conditionally(self) -> bool:
        """As below."""
        return self._below.deletes_conditionally()

    def delete_many(self, keys: Sequence[str]) -> None:
        """Ask the script, then delete."""
        self._ask("delete_many", " ".join(keys), lambda: self._below.delete_many(keys))

    def prune(self, folder: str) -> None:
        """Ask the script, then remove empty folders."""
        self._ask("prune", folder, lambda: self._below.prune(folder))

    def turn(self, name: str, meanwhile: Callable[[], object] = object) -> AbstractContextManager[Turn]:  # noqa: ARG002 - there is none
        """Take no turn: a rival that a script lets in during a turn would wait for its end."""
        return nullcontext(Turn())

    def refuse_links(self, *keys: str, below: Sequence[str] = ()) -> None:
        """As below."""
        self._below.refuse_links(*keys, below=below)

    def links(self, folder: str = "") -> Sequence[str]:
        """As below."""
        return self._below.links(folder)

    def sync_folder(self, folder: str) -> None:
        """Ask the script, then sync."""
        self._ask("sync_folder", folder, lambda: self._below.sync_folder(folder))

    def _ask(self, verb: str, key: str, send: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the verb answers
        return self.script(Request(verb, key, send))


def obedient(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
    """Send the request."""
    return request.send()


def plug_pulled_before_write(number: int) -> Script:
    """Let `number` writes through, and die before the next one."""
    left = number

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        nonlocal left
        if request.writes:
            if not left:
                raise PlugPulledError
            left -= 1
        return request.send()

    return script


def answer_lost_at_write(number: int) -> Script:
    """Make every write, and lose the answer to one of them."""
    left = number

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        nonlocal left
        answer = request.send()
        if request.writes:
            left -= 1
            if left == -1:
                raise StoreError(f"the answer to {request.verb} {request.key} is lost")
        return answer

    return script


def intruder_at_commit(intrude: Callable[[], object], *, times: int = 1) -> Script:
    """Let another writer commit just before each of the first manifests is put."""
    left = times

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        nonlocal left
        if request.commits and left:
            left -= 1
            intrude()
        return request.send()

    return script
