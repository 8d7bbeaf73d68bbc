"""Operations on a repository in a bucket, with faults at their requests.

The server is that of `tests/servers`, in a thread of the test. Every request is HTTP. Only between two runs the server
is bypassed: the objects are put back in one step, and copied to disk for the independent reader.
"""

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lance_dagster import LanceRepository
from tests.conftest import HOST, S3Storage, bucket_on, free_port, request
from tests.faults.enumeration import Enumeration, Fault
from tests.faults.independent_reader import Found, read_folder
from tests.repository import repository_operations
from tests.repository.scripted_repository import new_repository
from tests.servers.objects import Bucket, StoredObject, serve
from tests.servers.s3_server import S3Server
from tests.store.scripted import CONDITIONAL, WRITES

ON_S3 = [*repository_operations.OPERATIONS]
"""The operations."""
_MOVE = "move a table"


@contextmanager
def server_in_thread() -> Iterator[tuple[S3Server, str]]:
    """A server and its endpoint."""
    port, server, loop = free_port(), S3Server(), asyncio.new_event_loop()
    task = loop.create_task(serve(server.answer, port))

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        _wait_for(port)
        yield server, f"http://{HOST}:{port}"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _wait_for(port: int) -> None:
    while True:
        try:
            request(f"{HOST}:{port}", "GET", "/")
        except ConnectionRefusedError:
            continue
        return


@dataclass(slots=True)
class BucketTemplate:
    """A bucket whose objects are put back before each run, and a copy of them on disk."""

    place: Path
    storage: S3Storage
    bucket: Bucket
    kept: Mapping[str, StoredObject]
    copied: dict[str, StoredObject] = field(default_factory=dict)

    def fresh(self) -> Path:
        """Put the objects back."""
        self.bucket.objects = dict(self.kept)
        return self.place

    def look(self) -> Found:
        """Return what an independent reader finds in a copy."""
        objects = dict(self.bucket.objects)
        for key in self.copied.keys() - objects.keys():
            (self.place / key).unlink()
            del self.copied[key]
            # A bucket has no empty folders.
            for folder in (self.place / key).parents:
                if folder == self.place or any(folder.iterdir()):
                    break
                folder.rmdir()
        for key, stored in objects.items():
            if self.copied.get(key) is not stored:
                path = self.place / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(stored.data)
                # The reader distinguishes files by their times. No two objects of a bucket have the same number.
                os.utime(path, ns=(stored.generation, stored.generation))
                self.copied[key] = stored
        return read_folder(self.place)

    def files(self) -> Iterator[str]:
        """The keys."""
        return iter([*self.bucket.objects])

    def table(self, name: str) -> tuple[str, Mapping[str, str] | None]:
        """The URI of a table, and what it takes to open it."""
        return f"{self.storage.uri}/{name}", self.storage.storage_options


class BucketCatalogue:
    """Enumerations by the names of their operations, each with a bucket of its own."""

    def __init__(self, folder: Path, server: S3Server, endpoint: str) -> None:
        """Take the folder for the copies, and the server."""
        self._folder, self._server, self._endpoint = folder, server, endpoint
        self.of = cache(self._of)

    def _of(self, name: str) -> Enumeration:
        storage = bucket_on(self._endpoint)
        repository = new_repository(storage.uri, "a", "b", "c", options=storage.storage_options)
        bucket = self._server.buckets[storage.uri.removeprefix("s3://")]
        if name == _MOVE:
            repository_operations.one_published(repository)
            _rename(bucket, "a.lance/", "moved.lance/")
        else:
            repository_operations.OPERATIONS[name].prepare(repository)
        place = self._folder / name
        place.mkdir()
        operation = repository_operations.opened_by(
            lambda _: LanceRepository.open(storage.uri, storage.storage_options), name
        )
        template = BucketTemplate(place, storage, bucket, dict(bucket.objects))
        return Enumeration(template, f"{name} on S3", operation)


def _rename(bucket: Bucket, prefix: str, new: str) -> None:
    """Move the objects below a prefix, as a storage client does."""
    objects = bucket.objects.items()
    bucket.objects = {
        f"{new}{key.removeprefix(prefix)}" if key.startswith(prefix) else key: stored for key, stored in objects
    }


def kills_and_lost_answers(enumeration: Enumeration) -> Iterator[Mapping[int, Fault]]:
    """A process that dies before each request and after each write, and every write whose answer is lost or wrong."""
    for number, asked in enumerate(enumeration.requests):
        yield {number: Fault.DIES}
        if asked.verb in WRITES:
            yield from ({number: fault} for fault in (Fault.DIED, Fault.LOST, Fault.LATE))
        if asked.verb in CONDITIONAL:
            yield from ({number: fault} for fault in (Fault.REFUSED, Fault.DENIED))
