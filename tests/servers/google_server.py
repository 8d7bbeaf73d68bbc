"""A strict server for Google Cloud Storage: `python -m tests.servers.google_server --port 9000`.

This package uses the JSON API and pylance the XML API; both have the same objects. The XML API is that of S3 with
Google's own conditions, so the S3 server is extended by these. Conditions are generations, checked without a race. An
unknown request is an error and never a success.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

from aiohttp import web

from tests.servers.accounts import RefusedError
from tests.servers.objects import Bucket, StoredObject, arguments, serve
from tests.servers.s3_server import Call, S3Server, byte_range

_MOST_LISTED = 1000
_STATUS = {"NoSuchBucket": 404, "NoSuchKey": 404, "PreconditionFailed": 412, "InvalidRange": 416, "Conflict": 409}
_OBJECTS, _UPLOADS = "/storage/v1/b/", "/upload/storage/v1/b/"


class _Address(NamedTuple):
    """The parts of a path of the JSON API."""

    bucket: str
    key: str
    copied_to: tuple[str, str] | None = None


class GoogleServer(S3Server):
    """The buckets, and the answers of both APIs."""

    def answer(self, request: web.Request, body: bytes) -> web.Response:
        """Answer one request, in one step."""
        path = request.raw_path.partition("?")[0]
        if not path.startswith((_OBJECTS, _UPLOADS, "/storage/v1/b")):
            return self._with_generation(request, super().answer(request, body))
        try:
            return self._json_handler(request, path)(request, _address(path), body)
        except RefusedError as error:
            status = _STATUS.get(error.code, 501)
            message = {"code": status, "message": error.message, "errors": [{"reason": error.code}]}
            return web.json_response({"error": message}, status=status)

    def check_conditions(self, call: Call) -> None:
        """Refuse a write whose condition does not hold; the XML API has the generation in a header."""
        if {"If-None-Match", "If-Match"} & call.request.headers.keys():
            raise RefusedError("NotImplemented", "a write takes x-goog-if-generation-match")
        wanted = call.request.headers.get("x-goog-if-generation-match")
        self._check_generation(self.bucket(call.bucket).objects.get(call.key), wanted)

    def _with_generation(self, request: web.Request, answer: web.Response) -> web.Response:
        bucket, _, key = unquote(request.raw_path.partition("?")[0]).removeprefix("/").partition("/")
        found = self.buckets.get(bucket, Bucket()).objects.get(key)
        if found is not None:
            answer.headers["x-goog-generation"] = str(found.generation)
        return answer

    def _json_handler(self, request: web.Request, path: str) -> Callable[[web.Request, _Address, bytes], web.Response]:
        method, of_object, query = request.method, "/o/" in path, request.query
        known: list[tuple[bool, Callable[[web.Request, _Address, bytes], web.Response]]] = [
            (method == "POST" and path == "/storage/v1/b", self._json_make_bucket),
            (method == "POST" and path.startswith(_UPLOADS) and query.get("uploadType") == "media", self._json_write),
            (method == "GET" and path.endswith("/o"), self._json_list),
            (method == "GET" and of_object and query.get("alt") == "media", self._json_media),
            (method == "GET" and of_object and "alt" not in query, self._json_describe),
            (method == "DELETE" and of_object, self._json_delete),
            (method == "POST" and "/rewriteTo/b/" in path, self._json_copy),
        ]
        for meant, handler in known:
            if meant:
                return handler
        raise RefusedError("NotImplemented", f"{method} {request.raw_path}")

    def _json_make_bucket(self, _: web.Request, __: _Address, body: bytes) -> web.Response:
        name = json.loads(body)["name"]
        if name in self.buckets:
            raise RefusedError("Conflict", "You already own this bucket")
        self.buckets[name] = Bucket()
        return web.json_response({"name": name})

    def _json_write(self, request: web.Request, address: _Address, body: bytes) -> web.Response:
        bucket, name = self.bucket(address.bucket), request.query["name"]
        self._check_generation(bucket.objects.get(name), request.query.get("ifGenerationMatch"))
        return web.json_response(_described(name, bucket.write(name, body)))

    def _json_list(self, request: web.Request, address: _Address, _: bytes) -> web.Response:
        query = request.query
        limit = min(int(query.get("maxResults", _MOST_LISTED)), _MOST_LISTED)
        bucket = self.bucket(address.bucket)
        page = bucket.page(query.get("prefix", ""), query.get("delimiter", ""), query.get("pageToken", ""), limit)
        found: dict[str, Any] = {"items": [_described(key, each) for key, each in page.objects]}
        if page.prefixes:
            found["prefixes"] = page.prefixes
        if page.following is not None:
            found["nextPageToken"] = page.following
        return web.json_response({name: value for name, value in found.items() if value})

    def _json_media(self, request: web.Request, address: _Address, _: bytes) -> web.Response:
        found = self._existing(address)
        headers = {"x-goog-generation": str(found.generation)}
        wanted = request.headers.get("Range")
        if wanted is None:
            return web.Response(body=found.data, headers=headers)
        start, end = byte_range(wanted, len(found.data))
        return web.Response(status=206, body=found.data[start:end], headers=headers)

    def _json_describe(self, _: web.Request, address: _Address, __: bytes) -> web.Response:
        return web.json_response(_described(address.key, self._existing(address)))

    def _json_delete(self, request: web.Request, address: _Address, _: bytes) -> web.Response:
        found = self._existing(address)
        self._check_generation(found, request.query.get("ifGenerationMatch"))
        del self.buckets[address.bucket].objects[address.key]
        return web.Response(status=204)

    def _json_copy(self, _: web.Request, address: _Address, __: bytes) -> web.Response:
        found = self._existing(address)
        bucket, key = address.copied_to or ("", "")
        made = self.bucket(bucket).write(key, found.data)
        return web.json_response({"done": True, "resource": _described(key, made)})

    def _existing(self, address: _Address) -> StoredObject:
        found = self.bucket(address.bucket).objects.get(address.key)
        if found is None:
            raise RefusedError("NoSuchKey", f"No such object: {address.bucket}/{address.key}")
        return found

    @staticmethod
    def _check_generation(found: StoredObject | None, wanted: str | None) -> None:
        present = 0 if found is None else found.generation
        if wanted is not None and int(wanted) != present:
            raise RefusedError("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")


def _address(path: str) -> _Address:
    bucket, _, rest = path.removeprefix(_UPLOADS).removeprefix(_OBJECTS).partition("/o")
    source, _, dest = rest.removeprefix("/").partition("/rewriteTo/b/")
    to_bucket, _, to_key = dest.partition("/o/")
    copied = (unquote(to_bucket), unquote(to_key)) if dest else None
    return _Address(unquote(bucket), unquote(source), copied)


def _described(name: str, found: StoredObject) -> dict[str, str]:
    updated = datetime.fromtimestamp(found.modified, UTC).isoformat(timespec="milliseconds")
    size, generation = str(len(found.data)), str(found.generation)
    return {"name": name, "size": size, "generation": generation, "updated": updated.replace("+00:00", "Z")}


if __name__ == "__main__":
    given = arguments("A strict server for Google Cloud Storage, on the loopback interface.")
    try:
        asyncio.run(serve(GoogleServer().answer, given.port, given.latency))
    except KeyboardInterrupt:
        sys.exit(0)
