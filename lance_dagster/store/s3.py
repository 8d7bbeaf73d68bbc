"""Tables on S3 and S3-compatible servers.

Conditional writes use `If-None-Match: *` and `If-Match`. Calls go through `call_s3`, where one operation is exactly one
request. botocore may repeat a PUT after a lost response and then find its own object, so "already exists" is never
taken as "another writer won": the caller reads the object back and compares.
"""

import logging
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from lance_dagster.errors import ConditionalPutUnsupportedError, MissingExtraError, StoreError
from lance_dagster.store.interface import ObjectInfo
from lance_dagster.store.options import s3fs_options

_PRECONDITION_FAILED, _CONFLICT, _NOT_IMPLEMENTED = 412, 409, 501
_RANGE_NOT_SATISFIABLE = 416
# S3 answers 409 only while a concurrent conditional request runs, so a few retries are enough.
_CONFLICT_RETRIES = 5
# The limit of S3 for one DeleteObjects request.
_MOST_AT_ONCE = 1000
# How often a server is asked what it does with conditional headers, and the first pause between two times.
_PROBES, _PROBE_PAUSE = 4, 0.1
_NO_ETAG = "0" * 32
_SHOWN = 3
# The loggers of the client library that show requests, and a credential in a header or in a URL.
_LOGS_OF_REQUESTS = ("botocore.auth", "botocore.endpoint", "botocore.hooks", "botocore.httpsession", "botocore.parsers")
_CREDENTIAL = re.compile(
    r"""((?:x-amz-security-token|x-amz-signature|authorization|signature)['"]?\s*[=:]\s*b?['"]?)(?!\*)[^\s'"&]+""",
    re.IGNORECASE,
)


class S3Store:
    """A prefix of a bucket."""

    # S3 lists keys in lexicographic order, so the newest manifest is found without a version hint.
    ordered_listing = True

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        """Take a canonical `s3://` URI; the server is not contacted."""
        self._uri = uri
        self._bucket, _, self._prefix = uri.removeprefix("s3://").partition("/")
        self._options = s3fs_options(storage_options)
        self._filesystem: tuple[int, Any] | None = None
        # Probed before the first conditional write only: readers need no write permission.
        self._probed = False
        self._deletes_conditionally = False

    @property
    def uri(self) -> str:
        """The canonical URI."""
        return self._uri

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

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object unless the key exists; return whether it was written."""
        if not self._probed:
            self._probe()
        return self._conditional_put(key, data, {"IfNoneMatch": "*"})

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace an object unless its ETag changed."""
        if not self._probed:
            self._probe()
        # Some servers do not match a quoted ETag; all match an unquoted one.
        return self._conditional_put(key, data, {"IfMatch": tag.strip('"')})

    def list(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the objects directly in a folder, sorted, at most the first `limit` of them."""
        return [entry.key for entry in islice(self._listed(folder, "/", limit), limit)]

    def list_some(self, folder: str, limit: int) -> Collection[str]:
        """Return the names of the first `limit` objects directly in a folder."""
        return self.list(folder, limit)

    def folders(self, folder: str) -> tuple[str, ...]:
        """Return the prefixes directly in a folder, sorted, without listing what is below them."""
        prefix = self._key(f"{folder}/" if folder else "")
        pages = self._pages(folder, {"Delimiter": "/"})
        prefixes = (entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ()))
        return tuple(sorted(each.removeprefix(prefix).rstrip("/") for each in prefixes))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names of the objects directly in a folder with their sizes in bytes."""
        return {entry.key: entry.size for entry in self._listed(folder, "/")}

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """List every object below a prefix: one request for each thousand."""
        for entry in self._listed(folder, ""):
            yield ObjectInfo(f"{folder}/{entry.key}" if folder else entry.key, entry.size, entry.modified)

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

    def compare_and_delete(self, key: str, tag: str) -> bool:
        """Delete an object unless its ETag changed, where the server can do that."""
        # Sent with the condition in any case: another process may know better what the server does.
        try:
            return self._conditional_delete(key, tag)
        except ConditionalPutUnsupportedError:
            self.delete(key)
            return True

    def deletes_conditionally(self) -> bool:
        """Return whether the server obeys `If-Match` in a deletion, which not every S3 server does."""
        if not self._probed:
            self._probe()
        return self._deletes_conditionally

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

    def prune(self, folder: str) -> None:
        """Do nothing: S3 has no folders."""

    def turn(self, name: str) -> AbstractContextManager[bool]:  # noqa: ARG002  # there is none to wait for
        """Do nothing: writers of an object store do not know of each other."""
        return nullcontext(enter_result=False)

    def refuse_links(self, folder: str) -> None:
        """Do nothing: S3 has no links."""

    def sync_folder(self, folder: str) -> None:
        """Do nothing: an acknowledged object is durable."""

    @property
    def _fs(self) -> Any:  # noqa: ANN401  # s3fs has no types
        # s3fs runs an event loop in a thread, which does not survive a fork: each process creates its own client.
        if self._filesystem is None or self._filesystem[0] != os.getpid():
            # Here: programs that only look at a URI or its options do not need it.
            import fsspec

            try:
                self._filesystem = (os.getpid(), fsspec.filesystem("s3", **self._options))
                _hide_credentials_in_logs()
            except ImportError as error:
                raise MissingExtraError("s3fs", "s3", f"a table on {self._uri.partition(':')[0]}://") from error
        return self._filesystem[1]

    def _listed(self, folder: str, delimiter: str, limit: int | None = None) -> Iterator[ObjectInfo]:
        """List the objects directly in a folder, or all below it without a delimiter; keys are relative to it."""
        prefix = self._key(f"{folder}/" if folder else "")
        extra: dict[str, Any] = {} if limit is None else {"MaxKeys": limit}
        if delimiter:
            extra["Delimiter"] = delimiter
        for page in self._pages(folder, extra):
            for entry in page.get("Contents", ()):
                name = entry["Key"].removeprefix(prefix)
                if name:
                    yield ObjectInfo(name, int(entry["Size"]), entry["LastModified"].timestamp())

    def _pages(self, folder: str, extra: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Return the answers of the server to a listing, a thousand names in each."""
        prefix = self._key(f"{folder}/" if folder else "")
        while True:
            with _translated(f"list {self._uri}/{folder}"):
                answer = self._call("list_objects_v2", Prefix=prefix, **extra)
            yield answer
            if not answer.get("IsTruncated"):
                return
            extra = {**extra, "ContinuationToken": answer["NextContinuationToken"]}

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _call(self, method: str, **arguments: Any) -> Any:  # noqa: ANN401  # same
        return self._fs.call_s3(method, Bucket=self._bucket, **arguments)

    def _conditional_put(self, key: str, data: bytes, condition: Mapping[str, str]) -> bool:
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

        for _ in range(_CONFLICT_RETRIES):
            answer = _answer(send, what)
            # 409 means that another conditional request is in progress: nothing was written, and a retry is safe.
            if answer != _CONFLICT:
                return answer is True
        raise StoreError(f"cannot {what}: the server kept answering 409 to conditional requests")

    def _probe(self) -> None:
        """Refuse a server that accepts conditional headers and ignores them: commits would overwrite each other.

        Raises:
            ConditionalPutUnsupportedError: It ignores them, or answers that it does not support them.
            StoreError: The server did not answer often enough to tell.
        """
        problem: StoreError | None = None
        for attempt in range(_PROBES):
            if attempt:
                # A server in trouble is given time; the random part keeps many writers from coming back together.
                time.sleep(random.uniform(0, _PROBE_PAUSE * 2**attempt))  # noqa: S311  # no secret depends on it
            try:
                if self._probe_once(f"_refs/.probe-{uuid.uuid4().hex}"):
                    self._probed = True
                    return
            except ConditionalPutUnsupportedError:
                raise
            except StoreError as error:
                problem = error
        raise StoreError(
            f"cannot tell whether the server behind {self._uri} obeys If-None-Match, without which two writers could "
            f"overwrite each other's commit: {problem or 'its answers contradict each other'}; try again"
        ) from problem

    def _probe_once(self, key: str) -> bool:
        """Tell what the server does with conditional headers; return False when its answers prove nothing.

        Raises:
            ConditionalPutUnsupportedError: It ignores them, or answers that it does not support them.
            StoreError: The server did not answer.
        """
        try:
            # Its answer says nothing: a client that lost it sends the request again and finds its own object.
            self._conditional_put(key, b"1", {"IfNoneMatch": "*"})
            if self.get(key) != b"1":
                return False
            # This one has to fail. A server that accepts it would let two commits of one version win. It is believed
            # only with the object itself, since the answer may be to a request that the client repeated.
            refused = not self._conditional_put(key, b"2", {"IfNoneMatch": "*"})
            if not refused and self.get(key) == b"2":
                raise ConditionalPutUnsupportedError(
                    f"the server behind {self._uri} ignores If-None-Match, so two writers could overwrite each "
                    "other's commit; use a server with conditional writes"
                )
            if refused:
                try:
                    self._deletes_conditionally = not self._conditional_delete(key, _NO_ETAG)
                except ConditionalPutUnsupportedError:
                    self._deletes_conditionally = False
            return refused
        finally:
            # What stays behind is one small object that garbage collection knows.
            with suppress(StoreError):
                self.delete(key)


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
        raise StoreError(f"cannot {what}: {error}") from error


def _hide_credentials_in_logs() -> None:
    """Mask session tokens and signatures in what the client library logs at the level DEBUG."""
    for name in _LOGS_OF_REQUESTS:
        # A filter of a logger sees only what is logged by that name, so each logger needs it; adding it again is
        # without effect.
        logging.getLogger(name).addFilter(_mask_credentials)


def _mask_credentials(record: logging.LogRecord) -> bool:
    if record.levelno <= logging.DEBUG and _CREDENTIAL.search(message := record.getMessage()):
        record.msg, record.args = _CREDENTIAL.sub(r"\1***", message), ()
    return True


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of failed requests: s3fs converts only error responses of the server to `OSError`."""
    try:
        # An optional dependency, like s3fs: local tables work without it.
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


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except _client_errors() as error:
        raise StoreError(f"cannot {what}: {error}") from error
