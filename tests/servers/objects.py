"""Shared parts of the object-store servers of the tests: buckets in memory, faults on request, and the main program.

A server answers each request in one step of one event loop, so no other request comes between the check of a condition
and its write, and no race has two winners. Each provider has its own module.
"""

import argparse
import asyncio
import hashlib
import itertools
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

HOST = "127.0.0.1"
# Paths of the server itself, which no bucket can have as its name.
FAULTS, REQUESTS = "/_faults", "/_requests"

# The first object in a listing of S3; among the manifests of a branch it is the newest.
_FIRST = re.compile(rb"<Contents>.*?</Contents>")

Answer = Callable[[web.Request, bytes], web.Response]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The bytes of an object, and the values that a condition can name."""

    data: bytes
    etag: str
    generation: int
    modified: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a listing; `following` is the name after which the next part begins, or None at the end."""

    objects: list[tuple[str, StoredObject]]
    prefixes: list[str]
    following: str | None


@dataclass(slots=True)
class Bucket:
    """Objects by key."""

    objects: dict[str, StoredObject] = field(default_factory=dict)
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(time.time_ns() // 1000))

    def write(self, key: str, data: bytes, etag: str | None = None) -> StoredObject:
        """Create or replace an object."""
        # For an object that was written with one request, S3 answers with an MD5 digest.
        tag = etag or hashlib.md5(data, usedforsecurity=False).hexdigest()
        made = StoredObject(data, tag, next(self.generations), time.time())
        self.objects[key] = made
        return made

    def page(self, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        """List the names after a given one, in the order of UTF-8; names are cut after the first delimiter."""
        objects: list[tuple[str, StoredObject]] = []
        prefixes: list[str] = []
        last = after
        for key in sorted((key for key in self.objects if key.startswith(prefix)), key=str.encode):
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if cut < 0 else key[: cut + len(delimiter)]
            if name.encode() <= last.encode():
                continue
            if len(objects) + len(prefixes) >= limit:
                return Page(objects=objects, prefixes=prefixes, following=last)
            if cut < 0:
                objects.append((key, self.objects[key]))
            else:
                prefixes.append(name)
            last = name
        return Page(objects=objects, prefixes=prefixes, following=None)


@dataclass(slots=True, kw_only=True)
class Fault:
    """A fault of the next requests of a method whose target contains a text.

    Kinds: "503", "500", "409" and "412" answer so and do nothing; "reset_before" and "reset_after" close the connection
    before or after the request took effect; "truncated" sends half of the body; "slow" waits for `seconds` first;
    "stale" leaves the first object out of a listing of S3. The first `skip` matching requests are answered as usual.
    """

    kind: str
    method: str = ""
    part: str = ""
    times: int = 1
    seconds: float = 0.0
    skip: int = 0

    def fits(self, method: str, target: str) -> bool:
        """Whether the fault applies to requests like this one."""
        return self.method in ("", method) and self.part in target

    def meets(self, method: str, target: str) -> bool:
        """Whether the fault applies to this request, which is counted."""
        fits = self.times > 0 and self.fits(method, target)
        self.skip -= fits
        return fits and self.skip < 0


@dataclass(slots=True)
class Frontend:
    """Everything between the connection and the interface of the provider: latency, faults, and a log of requests."""

    answer: Answer
    latency: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.read()
        if request.path == FAULTS:
            self.faults = [Fault(**fault) for fault in await request.json()]
            return web.Response()
        if request.path == REQUESTS:
            seen, self.requests = self.requests, []
            return web.json_response(seen)
        self.requests.append(f"{request.method} {request.raw_path}")
        fault = next((fault for fault in self.faults if fault.meets(request.method, request.raw_path)), None)
        if self.latency:
            await asyncio.sleep(self.latency)
        if fault is None:
            return self.answer(request, body)
        fault.times -= 1
        return await self._fail(fault, request, body)

    async def _fail(self, fault: Fault, request: web.Request, body: bytes) -> web.StreamResponse:
        if fault.kind.isdigit():
            return web.Response(status=int(fault.kind))
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        answered = self.answer(request, body) if fault.kind != "reset_before" else None
        if answered is None or fault.kind == "reset_after":
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        if fault.kind == "stale" and isinstance(answered.body, bytes):
            answered.body = _FIRST.sub(b"", answered.body, count=1)
        if fault.kind == "truncated" and isinstance(answered.body, bytes):
            whole = web.StreamResponse(status=answered.status, headers=answered.headers)
            whole.content_length = len(answered.body)
            await whole.prepare(request)
            await whole.write(answered.body[: len(answered.body) // 2])
            if request.transport is not None:
                request.transport.abort()
            return whole
        return answered


def serve(answer: Answer, port: int, latency: float = 0.0) -> Coroutine[Any, Any, None]:
    """Answer requests on a port of the loopback interface until the task is cancelled."""
    # There is no limit, because a data file is one request.
    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", Frontend(answer, latency).handle)

    async def forever() -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    return forever()


def arguments(description: str) -> argparse.Namespace:
    """Read the command line that every server has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--accounts", type=Path, help="JSON file of accounts; without it, everybody may do everything")
    return parser.parse_args()
