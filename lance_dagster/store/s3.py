"""Tables on S3 and S3-compatible servers.

Conditional writes use `If-None-Match: *` and `If-Match`. Calls go through `call_s3`, where one operation is exactly one
request: the retries of botocore and of s3fs are switched off, and `prefix.retried` repeats requests that failed
temporarily. A PUT that is repeated after a lost response may find its own object, so "already exists" is never taken as
"another writer won": the caller reads the object back and compares.
"""

import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lance_dagster.errors import (
    ConditionalPutUnsupportedError,
    MissingExtraError,
    PermissionRefusedError,
    StoreError,
)
from lance_dagster.store.interface import ObjectInfo
from lance_dagster.store.options import s3fs_options
from lance_dagster.store.prefix import ListedPage, PrefixStore, hide_credentials_in_logs

_PRECONDITION_FAILED, _CONFLICT, _NOT_IMPLEMENTED = 412, 409, 501
_RANGE_NOT_SATISFIABLE = 416
_WRONG_CREDENTIALS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"})
# S3 answers 409 only while a concurrent conditional request runs, so a few retries are enough.
_CONFLICT_RETRIES, _CONFLICT_PAUSE = 5, 0.02
# The limit of S3 for one DeleteObjects request.
_MOST_AT_ONCE = 1000
_SHOWN = 3


class S3Store(PrefixStore):
    """A prefix of a bucket."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        """Take a canonical `s3://` URI; the server is not contacted."""
        super().__init__(uri)
        self._options = s3fs_options(storage_options)
        self._filesystem: tuple[int, Any] | None = None

    @property
    def storage(self) -> object:
        """The endpoint and the credentials; secret."""
        return self._options

    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object, or None when it does not exist."""
        with _translated(f"read {self._uri}/{key}"):
            try:
                # Without this limit s3fs sends a second request for the size.
                data: bytes = self._fs.cat_file(f"{self._bucket}/{self._key(key)}", max_concurrency=1)
            except FileNotFoundError:
                return None
        return data

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` up to `end`, or None when it does not exist."""
        with _translated(f"read {self._uri}/{key}"):
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

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and its ETag, or None when it does not exist."""
        with _translated(f"read {self._uri}/{key}"):
            try:
                # The ETag is read first: when the object changes in between, the ETag is outdated and a swap fails. In
                # the other order a swap could succeed over content the caller has not seen.
                tag = str(self._call("head_object", Key=self._key(key))["ETag"])
            except FileNotFoundError:
                return None
        data = self.get(key)
        return None if data is None else (data, tag)

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002  # everything lasts here
        """Write an object, replacing any existing one."""
        with _translated(f"write {self._uri}/{key}"):
            self._call("put_object", Key=self._key(key), Body=data)

    def now(self) -> float:
        """Return the modification time that the server assigns to an object written at this moment."""
        key = f"_refs/.probe-{uuid.uuid4().hex}"
        with _translated(f"read the clock of {self._uri}"):
            self._call("put_object", Key=self._key(key), Body=b"")
            try:
                return float(self._call("head_object", Key=self._key(key))["LastModified"].timestamp())
            finally:
                self._call("delete_object", Key=self._key(key))

    def download(self, key: str, path: Path) -> bool:
        """Write an object's bytes to a local file; False when there is none."""
        with _translated(f"read {self._uri}/{key}"):
            try:
                self._fs.get_file(f"{self._bucket}/{self._key(key)}", str(path))
            except FileNotFoundError:
                return False
        return True

    def upload(self, path: Path, key: str) -> None:
        """Write an object of a local file's bytes, in parts when it is large."""
        with _translated(f"write {self._uri}/{key}"):
            self._fs.put_file(str(path), f"{self._bucket}/{self._key(key)}")

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy an object, or all objects below a prefix, on the server; return whether there are any."""
        source = source_uri.removeprefix("s3://")
        target = f"{self._bucket}/{self._key(key)}"
        with _translated(f"copy {source_uri} to {self._uri}/{key}"):
            # S3 cannot copy a prefix: objects are copied one by one, and an interrupted copy is repeated by the caller.
            names = self._fs.find(source)
            for found in names:
                self._fs.cp_file(found, target + found.removeprefix(source))
        return bool(names)

    def delete(self, key: str) -> None:
        """Delete an object; succeed when it does not exist."""
        with _translated(f"delete {self._uri}/{key}"):
            self._call("delete_object", Key=self._key(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, up to a thousand with one request."""
        for start in range(0, len(keys), _MOST_AT_ONCE):
            some = [{"Key": self._key(key)} for key in keys[start : start + _MOST_AT_ONCE]]
            with _translated(f"delete {len(some)} objects below {self._uri}"):
                answer = self._call("delete_objects", Delete={"Objects": some, "Quiet": True})
            # The response is 200 even when single objects could not be deleted; those are listed in it.
            failed = [f"{error.get('Key')} ({error.get('Code')})" for error in answer.get("Errors", ())]
            if failed:
                shown = ", ".join(failed[:_SHOWN]) + (", ..." if len(failed) > _SHOWN else "")
                raise StoreError(f"cannot delete {len(failed)} objects of s3://{self._bucket}: {shown}")

    @property
    def _fs(self) -> Any:  # noqa: ANN401  # s3fs has no types
        # s3fs runs an event loop in a thread, which does not survive a fork: each process creates its own client.
        if self._filesystem is None or self._filesystem[0] != os.getpid():
            # This is imported here: programs that only look at a URI or its options do not need it.
            import fsspec

            try:
                self._filesystem = (os.getpid(), fsspec.filesystem("s3", **self._options))
                hide_credentials_in_logs()
            except ImportError as error:
                raise MissingExtraError("s3fs", "s3", f"a table on {self._uri.partition(':')[0]}://") from error
        return self._filesystem[1]

    def _pages(self, prefix: str, delimiter: str, limit: int | None) -> Iterator[ListedPage]:
        """List the keys that start with a prefix, a thousand with each request."""
        extra: dict[str, Any] = {"Delimiter": delimiter} if delimiter else {}
        if limit is not None:
            extra["MaxKeys"] = limit
        while True:
            with _translated(f"list {self._uri}: {prefix}"):
                answer = self._call("list_objects_v2", Prefix=prefix, **extra)
            entries = (
                ObjectInfo(entry["Key"], int(entry["Size"]), entry["LastModified"].timestamp())
                for entry in answer.get("Contents", ())
            )
            yield ListedPage(tuple(entries), tuple(entry["Prefix"] for entry in answer.get("CommonPrefixes", ())))
            if not answer.get("IsTruncated"):
                return
            extra["ContinuationToken"] = answer["NextContinuationToken"]

    def _call(self, method: str, **arguments: Any) -> Any:  # noqa: ANN401  # same
        return self._fs.call_s3(method, Bucket=self._bucket, **arguments)

    def _conditional_put(self, key: str, data: bytes, tag: str | None) -> bool:
        # Some servers do not match a quoted ETag; all match an unquoted one.
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag.strip('"')}
        return self._conditional("put_object", f"write {self._uri}/{key}", Key=self._key(key), Body=data, **condition)

    def _conditional_delete(self, key: str, tag: str) -> bool:
        what = f"delete {self._uri}/{key}"
        return self._conditional("delete_object", what, Key=self._key(key), IfMatch=tag.strip('"'))

    def _conditional(self, method: str, what: str, **arguments: object) -> bool:
        def send() -> bool:
            try:
                self._call(method, **arguments)
            # s3fs reports a 404 of a conditional request as FileNotFoundError, and that of a missing bucket too.
            except FileNotFoundError:
                if "IfMatch" in arguments:
                    # The object was deleted since the ETag was read: the condition does not hold.
                    return False
                raise
            return True

        for attempt in range(_CONFLICT_RETRIES):
            answer = _answer(send, what)
            # 409 means that another conditional request is in progress: nothing was written, and a retry is safe.
            if answer != _CONFLICT:
                return answer is True
            # The other request may take a while; without a pause, all attempts could meet it.
            time.sleep(random.uniform(0, _CONFLICT_PAUSE * 2**attempt))  # noqa: S311  # no secret depends on it
        raise StoreError(f"cannot {what}: the server kept answering 409 to conditional requests")


def _answer(send: Callable[[], bool], what: str) -> bool | int:
    """Return True when the object was written, False when the condition failed, 409 when a retry is allowed."""
    try:
        return send()
    except FileExistsError:
        return False
    except _client_errors() as error:
        status = _status(error)
        if status == _PRECONDITION_FAILED:
            return False
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
        # This is an optional dependency, like s3fs: local tables work without it.
        from botocore.exceptions import BotoCoreError
    except ImportError:
        # Without it there is no s3fs either, which `_fs` reports.
        return (OSError,)
    return (OSError, BotoCoreError)


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


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except _client_errors() as error:
        raise _error(what, error) from error


def _error(what: str, error: Exception) -> StoreError:
    """Return the error of this package for one of the client's."""
    # s3fs reports 403 as PermissionError, as it does a refused clock or signature.
    if isinstance(error, PermissionError):
        return PermissionRefusedError(what, str(error), known=_code(error) not in _WRONG_CREDENTIALS)
    return StoreError(f"cannot {what}: {error}")
