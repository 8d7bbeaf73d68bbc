"""A strict S3 server: `python -m tests.servers.s3_server --port 9000`.

It answers the requests that the clients of this project make, checks conditions without a race, and with accounts also
signatures and policies. Any other request is an error and never a success.
"""

import asyncio
import hashlib
import itertools
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import NamedTuple
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from aiohttp import web

from tests.servers.accounts import Account, RefusedError, authenticated, read_accounts
from tests.servers.objects import Bucket, StoredObject, arguments, serve

_MOST_LISTED = 1000
_MOST_DELETED = 1000
_STATUS = {
    "AccessDenied": 403,
    "BucketAlreadyOwnedByYou": 409,
    "ExpiredToken": 400,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidPart": 400,
    "InvalidRange": 416,
    "InvalidToken": 400,
    "MalformedXML": 400,
    "MethodNotAllowed": 405,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "SignatureDoesNotMatch": 403,
    "XAmzContentSHA256Mismatch": 400,
}


class Call(NamedTuple):
    """One parsed request."""

    request: web.Request
    bucket: str
    key: str
    query: Mapping[str, str]
    body: bytes
    account: Account | None

    def authorize(self, action: str, key: str | None = None) -> None:
        """Refuse an action that no policy of the account allows."""
        if self.account is None:
            return
        name = self.key if key is None else key
        resource = f"{self.bucket}/{name}" if name else self.bucket
        values = {"s3:prefix": self.query["prefix"]} if "prefix" in self.query else {}
        for header in ("if-none-match", "if-match"):
            if header in self.request.headers:
                values[f"s3:{header}"] = self.request.headers[header]
        if not self.account.allows(action, resource, values):
            message = f"User: {self.account.name} is not authorized to perform: {action} on resource: {resource}"
            raise RefusedError("AccessDenied", message)


class S3Server:
    """The buckets, and the answers to requests."""

    def __init__(self, accounts: Mapping[str, Account] | None = None) -> None:
        """Take the accounts; without accounts, every request is allowed."""
        self._accounts = accounts
        self.buckets: dict[str, Bucket] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._numbers = itertools.count(1)

    def answer(self, request: web.Request, body: bytes) -> web.Response:
        """Answer one request, in one step."""
        path = unquote(request.raw_path.partition("?")[0])
        bucket, _, key = path.removeprefix("/").partition("/")
        try:
            account = None if self._accounts is None else authenticated(self._accounts, request, body)
            call = Call(request, bucket, key, request.query, _content(request, body), account)
            return self._handler(call)(call)
        except RefusedError as error:
            return _refusal(error, path)

    def _handler(self, call: Call) -> Callable[[Call], web.Response]:
        """Return the method that answers a request, by its method, its level and the sub-resource in its query."""
        service, bucket, object_ = not call.bucket, bool(call.bucket) and not call.key, bool(call.key)
        method, query = call.request.method, call.query
        known: list[tuple[bool, Callable[[Call], web.Response]]] = [
            (service and method == "GET", self._list_buckets),
            (bucket and method == "PUT", self._make_bucket),
            (bucket and method == "GET" and query.get("list-type") == "2", self._list),
            (bucket and method == "HEAD", self._head_bucket),
            (bucket and method == "POST" and "delete" in query, self._delete_many),
            (object_ and method == "POST" and "uploads" in query, self._start_upload),
            (object_ and method == "POST" and "uploadId" in query, self._finish_upload),
            (object_ and method == "PUT" and "partNumber" in query, self._put_part),
            (object_ and method == "DELETE" and "uploadId" in query, self._abort_upload),
            (object_ and method == "PUT" and "x-amz-copy-source" in call.request.headers, self._copy),
            (object_ and method == "PUT" and not query.keys() - {"x-id"}, self._put),
            (object_ and method in ("GET", "HEAD") and not query.keys() - {"x-id"}, self._get),
            (object_ and method == "DELETE" and not query.keys() - {"x-id"}, self._delete),
        ]
        for meant, handler in known:
            if meant:
                return handler
        raise RefusedError("NotImplemented", f"{method} {call.request.raw_path}")

    def bucket(self, name: str) -> Bucket:
        """Return a bucket that has to exist."""
        if name not in self.buckets:
            raise RefusedError("NoSuchBucket", "The specified bucket does not exist")
        return self.buckets[name]

    def _list_buckets(self, call: Call) -> web.Response:
        call.authorize("s3:ListAllMyBuckets")
        names = "".join(f"<Bucket><Name>{escape(name)}</Name></Bucket>" for name in sorted(self.buckets))
        return _xml(f"<ListAllMyBucketsResult><Buckets>{names}</Buckets></ListAllMyBucketsResult>")

    def _make_bucket(self, call: Call) -> web.Response:
        call.authorize("s3:CreateBucket")
        if call.bucket in self.buckets:
            raise RefusedError("BucketAlreadyOwnedByYou", "The bucket exists")
        self.buckets[call.bucket] = Bucket()
        return web.Response()

    def _head_bucket(self, call: Call) -> web.Response:
        call.authorize("s3:ListBucket")
        self.bucket(call.bucket)
        return web.Response()

    def _list(self, call: Call) -> web.Response:
        call.authorize("s3:ListBucket")
        query = call.query
        limit = min(int(query.get("max-keys", _MOST_LISTED)), _MOST_LISTED)
        after = query.get("continuation-token", query.get("start-after", ""))
        page = self.bucket(call.bucket).page(query.get("prefix", ""), query.get("delimiter", ""), after, limit)
        shown: Callable[[str], str] = quote if query.get("encoding-type") == "url" else escape
        entries = [
            f"<Contents><Key>{shown(key)}</Key><LastModified>{_moment(found).isoformat()[:19]}.000Z</LastModified>"
            f"<ETag>&quot;{found.etag}&quot;</ETag><Size>{len(found.data)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key, found in page.objects
        ]
        entries += [f"<CommonPrefixes><Prefix>{shown(name)}</Prefix></CommonPrefixes>" for name in page.prefixes]
        if page.following is not None:
            entries.append(f"<NextContinuationToken>{escape(page.following)}</NextContinuationToken>")
        if "encoding-type" in query:
            entries.append("<EncodingType>url</EncodingType>")
        return _xml(
            f"<ListBucketResult><Name>{call.bucket}</Name><Prefix>{shown(query.get('prefix', ''))}</Prefix>"
            f"<KeyCount>{len(page.objects) + len(page.prefixes)}</KeyCount><MaxKeys>{limit}</MaxKeys>"
            f"<IsTruncated>{str(page.following is not None).lower()}</IsTruncated>{''.join(entries)}</ListBucketResult>"
        )

    def _get(self, call: Call) -> web.Response:
        call.authorize("s3:GetObject")
        found = self._found(call, call.key)
        headers = {
            "ETag": f'"{found.etag}"',
            "Last-Modified": format_datetime(_moment(found), usegmt=True),
            "Accept-Ranges": "bytes",
        }
        wanted = call.request.headers.get("Range")
        if wanted is None:
            return web.Response(body=found.data, headers=headers, content_type="application/octet-stream")
        start, end = byte_range(wanted, len(found.data))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(found.data)}"
        return web.Response(status=206, body=found.data[start:end], headers=headers)

    def _put(self, call: Call) -> web.Response:
        call.authorize("s3:PutObject")
        self.check_conditions(call)
        return web.Response(headers={"ETag": f'"{self.bucket(call.bucket).write(call.key, call.body).etag}"'})

    def _copy(self, call: Call) -> web.Response:
        source = unquote(call.request.headers["x-amz-copy-source"]).removeprefix("/")
        bucket, _, key = source.partition("/")
        read = call._replace(bucket=bucket)
        read.authorize("s3:GetObject", key)
        call.authorize("s3:PutObject")
        self.check_conditions(call)
        made = self.bucket(call.bucket).write(call.key, self._found(read, key).data)
        return _xml(
            f"<CopyObjectResult><ETag>&quot;{made.etag}&quot;</ETag>"
            f"<LastModified>{_moment(made).isoformat()[:19]}.000Z</LastModified></CopyObjectResult>"
        )

    def _delete(self, call: Call) -> web.Response:
        call.authorize("s3:DeleteObject")
        self.check_conditions(call)
        self.bucket(call.bucket).objects.pop(call.key, None)
        return web.Response(status=204)

    def _delete_many(self, call: Call) -> web.Response:
        keys = [node.text or "" for node in ET.fromstring(call.body).iter() if node.tag.endswith("Key")]  # noqa: S314 - of a test
        if len(keys) > _MOST_DELETED:
            raise RefusedError("MalformedXML", f"more than {_MOST_DELETED} keys")
        # pylance needs every key in the answer, s3fs only the failed ones.
        quiet = b"<Quiet>true</Quiet>" in call.body
        bucket, told = self.bucket(call.bucket), []
        for key in keys:
            try:
                call.authorize("s3:DeleteObject", key)
                bucket.objects.pop(key, None)
                told += [] if quiet else [f"<Deleted><Key>{escape(key)}</Key></Deleted>"]
            except RefusedError as error:
                told.append(f"<Error><Key>{escape(key)}</Key><Code>{error.code}</Code></Error>")
        return _xml(f"<DeleteResult>{''.join(told)}</DeleteResult>")

    def _start_upload(self, call: Call) -> web.Response:
        call.authorize("s3:PutObject")
        self.bucket(call.bucket)
        upload = f"upload-{next(self._numbers)}"
        self._uploads[upload] = {}
        return _xml(
            f"<InitiateMultipartUploadResult><Bucket>{call.bucket}</Bucket><Key>{escape(call.key)}</Key>"
            f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        )

    def _parts(self, call: Call) -> dict[int, bytes]:
        if call.query["uploadId"] not in self._uploads:
            raise RefusedError("NoSuchUpload", "The specified upload does not exist")
        return self._uploads[call.query["uploadId"]]

    def _put_part(self, call: Call) -> web.Response:
        call.authorize("s3:PutObject")
        self._parts(call)[int(call.query["partNumber"])] = call.body
        return web.Response(headers={"ETag": f'"{_md5(call.body).hex()}"'})

    def _finish_upload(self, call: Call) -> web.Response:
        call.authorize("s3:PutObject")
        parts = self._parts(call)
        self.check_conditions(call)
        root = ET.fromstring(call.body)  # noqa: S314 - of a test
        named = [int(node.text or 0) for node in root.iter() if node.tag.endswith("PartNumber")]
        if not named or named != sorted(parts.keys() & set(named)):
            raise RefusedError("InvalidPart", "One or more of the specified parts could not be found")
        chosen = [parts[number] for number in named]
        etag = f"{_md5(b''.join(map(_md5, chosen))).hex()}-{len(chosen)}"
        self.bucket(call.bucket).write(call.key, b"".join(chosen), etag)
        del self._uploads[call.query["uploadId"]]
        return _xml(
            f"<CompleteMultipartUploadResult><Bucket>{call.bucket}</Bucket><Key>{escape(call.key)}</Key>"
            f"<ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
        )

    def _abort_upload(self, call: Call) -> web.Response:
        call.authorize("s3:AbortMultipartUpload")
        self._parts(call)
        del self._uploads[call.query["uploadId"]]
        return web.Response(status=204)

    def _found(self, call: Call, key: str) -> StoredObject:
        found = self.bucket(call.bucket).objects.get(key)
        if found is None:
            raise RefusedError("NoSuchKey", "The specified key does not exist")
        return found

    def check_conditions(self, call: Call) -> None:
        """Refuse a write whose condition does not hold, with the answers of Amazon's server."""
        found = self.bucket(call.bucket).objects.get(call.key)
        absent, tag = (call.request.headers.get(name) for name in ("If-None-Match", "If-Match"))
        if absent not in (None, "*"):
            raise RefusedError("NotImplemented", "If-None-Match takes * in a write")
        if absent is not None and found is not None:
            raise RefusedError("PreconditionFailed", "If-None-Match")
        if tag is not None and found is None:
            raise RefusedError("NoSuchKey", "The specified key does not exist")
        if tag is not None and found is not None and tag.strip('"') not in ("*", found.etag):
            raise RefusedError("PreconditionFailed", "If-Match")


def _content(request: web.Request, body: bytes) -> bytes:
    """Return the object in a body, which some clients send in signed or checksummed chunks."""
    if not request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return body
    content, rest = b"", body
    while rest:
        head, _, rest = rest.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            break
        content, rest = content + rest[:size], rest[size + 2 :]
    return content


def byte_range(wanted: str, size: int) -> tuple[int, int]:
    """Return the first byte that a header asks for, and the one after the last."""
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    if not first:
        start, end = max(size - int(last), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    if start >= end:
        raise RefusedError("InvalidRange", "The requested range is not satisfiable")
    return start, end


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _moment(found: StoredObject) -> datetime:
    return datetime.fromtimestamp(found.modified, UTC)


def _xml(text: str) -> web.Response:
    return web.Response(text=f'<?xml version="1.0" encoding="UTF-8"?>\n{text}', content_type="application/xml")


def _refusal(error: RefusedError, path: str) -> web.Response:
    condition = f"<Condition>{error.message}</Condition>" if error.code == "PreconditionFailed" else ""
    answer = _xml(
        f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message>{condition}"
        f"<Resource>{escape(path)}</Resource></Error>"
    )
    answer.set_status(_STATUS[error.code])
    return answer


if __name__ == "__main__":
    given = arguments("A strict S3 server for tests, on the loopback interface.")
    try:
        server = S3Server(None if given.accounts is None else read_accounts(given.accounts))
        asyncio.run(serve(server.answer, given.port, given.latency))
    except KeyboardInterrupt:
        sys.exit(0)
