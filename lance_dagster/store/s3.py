"""Tables on S3 and S3-compatible servers.

Conditional writes use `If-None-Match: *` and `If-Match`. Calls go through `call_s3`, where one operation is exactly one
request: the retries of botocore and of s3fs are switched off, and `retries.retried` repeats requests that failed
temporarily. A PUT that is repeated after a lost response may find its own object, so "already exists" is never taken as
"another writer won": the caller reads the object back and compares.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from lance_dagster.errors import (
    ConditionalPutUnsupportedError,
    InvalidInputError,
    MissingExtraError,
    PermissionRefusedError,
    Remedy,
    StoreError,
    counted,
)
from lance_dagster.store.interface import ObjectInfo
from lance_dagster.store.options import ENDPOINT_VARIABLES, s3_retry_seconds, s3fs_options
from lance_dagster.store.prefix import ListedPage, PrefixStore, hide_credentials_in_logs
from lance_dagster.store.retries import TRANSIENT_STATUSES, Pauses, TransientError, retried

_PRECONDITION_FAILED, _CONFLICT, _NOT_IMPLEMENTED = 412, 409, 501
_RANGE_NOT_SATISFIABLE = 416
_ACCESS_DENIED = "AccessDenied"
_WRONG_CREDENTIALS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"})
# S3 answers 409 only while a concurrent conditional request runs, so a few retries are enough.
_CONFLICT_RETRIES, _CONFLICT_PAUSES = 5, Pauses(first=0.02)
# The limit of S3 for one DeleteObjects request.
_MOST_AT_ONCE = 1000
_SHOWN = 3
# The ends of the names of directory buckets and of their access points, which AWS reserves.
_DIRECTORY_BUCKETS = ("--x-s3", "--xa-s3")
# How many clients are kept: one for each thread, its options, and each state of the environment.
_CLIENTS = 128
_NO_BUCKET = Remedy("create the bucket, or correct its name")
_NO_CREDENTIALS = Remedy(
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role of the machine, or give S3Options or the "
    "storage options aws_access_key_id and aws_secret_access_key, or, for a public bucket, aws_skip_signature"
)
_BUSY = Remedy("run fewer writers at once, or wait longer with the storage option client_retry_timeout")
_NO_ANSWER = Remedy("check the endpoint, the region and the network, or wait longer with the storage option timeout")

Answered = TypeVar("Answered")


class S3Store(PrefixStore):
    """A prefix of a bucket."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        """Take a canonical `s3://` URI; the server is not contacted.

        Raises:
            InvalidInputError: An option is wrong, or the bucket is a directory bucket.
        """
        super().__init__(uri)
        if self._bucket.endswith(_DIRECTORY_BUCKETS):
            raise InvalidInputError(
                f"{uri} is in a directory bucket of S3 Express, which lists objects in no order, so that the newest "
                "version would not be found; use a general purpose bucket"
            )
        self._options = s3fs_options(storage_options)
        self._seconds = s3_retry_seconds(storage_options)
        self._filesystem: tuple[int, Any] | None = None

    @property
    def storage(self) -> object:
        """The endpoint and the credentials; secret."""
        return self._options

    @property
    def _server(self) -> str:
        of_environment = (os.environ.get(name) for name in ENDPOINT_VARIABLES)
        return self._options["client_kwargs"].get("endpoint_url") or next(filter(None, of_environment), "")

    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object, or None when it does not exist."""

        def send() -> bytes | None:
            try:
                # Without this limit s3fs sends a second request for the size.
                data: bytes = self._fs.cat_file(f"{self._bucket}/{self._key(key)}", max_concurrency=1)
            except FileNotFoundError:
                return None
            return data

        return self._ask(f"read {self._uri}/{key}", send)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` up to `end`, or None when it does not exist."""

        def send() -> bytes | None:
            try:
                data: bytes = self._fs.cat_file(f"{self._bucket}/{self._key(key)}", start=start, end=end)
            except FileNotFoundError:
                return None
            except _client_errors() as error:
                # The object ends before the first byte that was asked for.
                if _status(error) == _RANGE_NOT_SATISFIABLE:
                    return b""
                raise
            return data

        return self._ask(f"read {self._uri}/{key}", send)

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and its ETag, which belong together, or None when it does not exist."""

        def send() -> tuple[bytes, str] | None:
            try:
                answer = self._call("get_object", Key=self._key(key))
            except FileNotFoundError:
                return None
            return self._body(answer), str(answer["ETag"])

        return self._ask(f"read {self._uri}/{key}", send)

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002  # everything lasts here
        """Write an object, replacing any existing one."""
        self._ask(f"write {self._uri}/{key}", lambda: self._call("put_object", Key=self._key(key), Body=data))

    def now(self) -> float:
        """Return the modification time that the server assigns to an object written at this moment."""
        key = f"_refs/.probe-{uuid.uuid4().hex}"
        self.put(key, b"")
        try:
            modified = self._ask(
                f"read the clock of {self._uri}", lambda: self._call("head_object", Key=self._key(key))["LastModified"]
            )
            return float(modified.timestamp())
        finally:
            self.delete(key)

    def download(self, key: str, path: Path) -> bool:
        """Write an object's bytes to a local file; False when there is none."""

        def send() -> bool:
            try:
                self._fs.get_file(f"{self._bucket}/{self._key(key)}", str(path))
            except FileNotFoundError:
                return False
            return True

        return self._ask(f"read {self._uri}/{key}", send)

    def upload(self, path: Path, key: str) -> None:
        """Write an object of a local file's bytes, in parts when it is large."""
        self._ask(f"write {self._uri}/{key}", lambda: self._fs.put_file(str(path), f"{self._bucket}/{self._key(key)}"))

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy an object, or all objects below a prefix, on the server; return whether there are any."""
        source = source_uri.removeprefix("s3://")
        target = f"{self._bucket}/{self._key(key)}"
        what = f"copy {source_uri} to {self._uri}/{key}"
        # S3 cannot copy a prefix: objects are copied one by one, and an interrupted copy is repeated by the caller.
        names: list[str] = self._ask(what, lambda: self._fs.find(source))
        for name in names:
            self._ask(what, partial(self._fs.cp_file, name, target + name.removeprefix(source)))
        return bool(names)

    def delete(self, key: str) -> None:
        """Delete an object; succeed when it does not exist."""
        self._ask(f"delete {self._uri}/{key}", lambda: self._call("delete_object", Key=self._key(key)))

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, up to a thousand with one request.

        Raises:
            PermissionRefusedError: The credentials may not delete some of them; others of the request were deleted.
            StoreError: The storage failed, or could not delete some of them.
        """
        for start in range(0, len(keys), _MOST_AT_ONCE):
            objects = [{"Key": self._key(key)} for key in keys[start : start + _MOST_AT_ONCE]]
            send = partial(self._call, "delete_objects", Delete={"Objects": objects, "Quiet": True})
            answer = self._ask(f"delete {len(objects)} objects below {self._uri}", send)
            # The response is 200 even when single objects could not be deleted; those are listed in it.
            failed = [(error.get("Key"), error.get("Code")) for error in answer.get("Errors", ())]
            if failed:
                shown = ", ".join(f"{key} ({code})" for key, code in failed[:_SHOWN])
                shown += ", ..." if len(failed) > _SHOWN else ""
                what = f"delete {counted(len(failed), 'object')} of s3://{self._bucket}"
                if all(code == _ACCESS_DENIED for _, code in failed):
                    raise PermissionRefusedError(what, shown)
                raise StoreError(f"cannot {what}: {shown}")

    @property
    def _fs(self) -> Any:  # noqa: ANN401  # s3fs has no types
        # s3fs runs an event loop in a thread, which does not survive a fork: each process creates its own client.
        if self._filesystem is None or self._filesystem[0] != os.getpid():
            try:
                filesystem = _client(json.dumps(self._options), _environment(), os.getpid())
                self._filesystem = (os.getpid(), filesystem)
            except ImportError as error:
                raise MissingExtraError("s3fs", "s3", f"a table on {self._uri.partition(':')[0]}://") from error
        return self._filesystem[1]

    def _pages(self, prefix: str, delimiter: str, limit: int | None) -> Iterator[ListedPage]:
        """List the keys that start with a prefix, a thousand with each request."""
        extra: dict[str, Any] = {"Delimiter": delimiter} if delimiter else {}
        if limit is not None:
            extra["MaxKeys"] = limit
        while True:
            send = partial(self._call, "list_objects_v2", Prefix=prefix, **extra)
            answer = self._ask(f"list {self._uri}: {prefix}", send)
            entries = (
                ObjectInfo(entry["Key"], int(entry["Size"]), entry["LastModified"].timestamp(), entry.get("ETag", ""))
                for entry in answer.get("Contents", ())
            )
            yield ListedPage(tuple(entries), tuple(entry["Prefix"] for entry in answer.get("CommonPrefixes", ())))
            if not answer.get("IsTruncated"):
                return
            extra["ContinuationToken"] = answer["NextContinuationToken"]

    def _call(self, method: str, **arguments: Any) -> Any:  # noqa: ANN401  # same
        return self._fs.call_s3(method, Bucket=self._bucket, **arguments)

    def _ask(self, what: str, send: Callable[[], Answered]) -> Answered:
        """Send a request until it is answered.

        Raises:
            PermissionRefusedError: The credentials may not do this.
            StoreError: The storage failed, or did not answer in time.
        """

        def attempt() -> Answered:
            try:
                return send()
            except _client_errors() as error:
                raise _error(what, error) from error

        return retried(attempt, self._seconds)

    def _body(self, answer: Mapping[str, Any]) -> bytes:
        """Read the body of an answer, which arrives in the loop of the client."""
        # This is imported here: programs that only look at a URI or its options do not need it.
        from fsspec.asyn import sync

        async def read() -> bytes:
            # Left early, a body that arrives in part would keep its connection.
            async with answer["Body"] as body:
                data: bytes = await body.read()
            return data

        data: bytes = sync(self._fs.loop, read)
        return data

    def _conditional_put(self, key: str, data: bytes, tag: str | None) -> str | None:
        # Some servers do not match a quoted ETag; all match an unquoted one.
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag.strip('"')}
        what = f"write {self._uri}/{key}"
        answer = self._conditional("put_object", what, Key=self._key(key), Body=data, **condition)
        return None if answer is None else str(answer["ETag"])

    def _conditional_delete(self, key: str, tag: str) -> bool:
        what = f"delete {self._uri}/{key}"
        return self._conditional("delete_object", what, Key=self._key(key), IfMatch=tag.strip('"')) is not None

    def _conditional(self, method: str, what: str, **arguments: object) -> Mapping[str, Any] | None:
        """Send a request under a condition; return its answer, None where the condition failed."""

        def send() -> Mapping[str, Any] | None:
            try:
                answer: Mapping[str, Any] = self._call(method, **arguments)
            # s3fs reports a 404 of a conditional request as FileNotFoundError, and a 404 of a missing bucket too.
            except FileNotFoundError:
                if "IfMatch" in arguments:
                    # The object was deleted since the ETag was read: the condition does not hold.
                    return None
                raise
            return answer

        for attempt in range(_CONFLICT_RETRIES):
            answer = retried(lambda: _answer(send, what), self._seconds)
            # 409 means that another conditional request is in progress: nothing was written, and a retry is safe.
            if not isinstance(answer, int):
                return answer
            # The other request may take a while; without a pause, all attempts could meet it.
            _CONFLICT_PAUSES.wait(attempt)
        raise StoreError(f"cannot {what}: the server kept answering 409 to conditional requests")


# A client takes tens of milliseconds and its connections more: what a process opens with the same access shares one.
# s3fs keeps clients by their arguments alone: one would keep the credentials of an environment that has changed since.
@lru_cache(maxsize=_CLIENTS)
def _client(options: str, environment: object, process: object) -> Any:  # noqa: ANN401, ARG001  # s3fs has no types
    # This is imported here: programs that only look at a URI or its options do not need it.
    import fsspec

    filesystem = fsspec.filesystem("s3", skip_instance_cache=True, **json.loads(options))
    # `retried` repeats requests, by time and with jitter; s3fs does by number.
    filesystem.retries = 1
    hide_credentials_in_logs()
    return filesystem


def _environment() -> object:
    """Return what botocore takes credentials and settings from, beside the options; secret."""
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    files = []
    for variable, usual in (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")):
        path = Path(os.environ.get(variable) or f"~/.aws/{usual}").expanduser()
        with suppress(OSError):
            status = path.stat()
            files.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return variables, tuple(files)


def _answer(send: Callable[[], Mapping[str, Any] | None], what: str) -> Mapping[str, Any] | int | None:
    """Return the answer to a request that was done, None when its condition failed, 409 when a retry is allowed."""
    try:
        return send()
    except FileExistsError:
        return None
    except _client_errors() as error:
        status = _status(error)
        if status == _PRECONDITION_FAILED:
            return None
        if status == _CONFLICT:
            return _CONFLICT
        # Some servers answer 501 to conditional headers instead of ignoring them.
        if status == _NOT_IMPLEMENTED:
            raise ConditionalPutUnsupportedError(
                f"cannot {what}: the server does not support conditional writes"
            ) from error
        raise _error(what, error) from error


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of failed requests: s3fs converts only error responses of the server to `OSError`."""
    try:
        # These are optional dependencies, like s3fs: local tables work without them.
        from aiohttp import ClientPayloadError
        from botocore.exceptions import BotoCoreError
    except ImportError:
        # Without them there is no s3fs either, which `_fs` reports.
        return (OSError,)
    return (OSError, BotoCoreError, ClientPayloadError)


def _no_answers() -> tuple[type[Exception], ...]:
    """Return the exceptions of requests that were not answered, or only in part; s3fs is there when one is raised."""
    from aiohttp import ClientPayloadError
    from botocore.exceptions import ConnectionError as NoConnectionError, HTTPClientError
    from botocore.parsers import ResponseParserError

    return (TimeoutError, NoConnectionError, HTTPClientError, ClientPayloadError, ResponseParserError)


def _lacks_credentials(error: Exception) -> bool:
    """Return whether the client found no credentials, or only a part of them."""
    from botocore.exceptions import CredentialRetrievalError, NoCredentialsError, PartialCredentialsError

    return isinstance(error, (CredentialRetrievalError, NoCredentialsError, PartialCredentialsError))


def _status(error: Exception) -> int | None:
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return None
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def _code(error: Exception) -> str:
    """Return the code by which the server names its reason; empty where there was no answer."""
    response = getattr(error.__cause__, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _error(what: str, error: Exception) -> StoreError:
    """Return the error of this package for an error of the client."""
    # s3fs reports 403 as PermissionError, as it does a refused clock or signature.
    if isinstance(error, PermissionError):
        # Some servers, such as Ceph, send the code of an error without a text.
        answer = str(error) if str(error) != "None" else _code(error)
        return PermissionRefusedError(what, answer, known=_code(error) not in _WRONG_CREDENTIALS)
    problem, status = f"cannot {what}: {error}", _status(error)
    if status in TRANSIENT_STATUSES:
        return TransientError(problem, remedy=_BUSY)
    if isinstance(error, _no_answers()):
        return TransientError(problem, remedy=_NO_ANSWER)
    if _lacks_credentials(error):
        return StoreError(problem, remedy=_NO_CREDENTIALS)
    # A request for an object that does not exist is answered before; what is left is a missing bucket.
    return StoreError(problem, remedy=_NO_BUCKET if isinstance(error, FileNotFoundError) else None)
