"""Tables on Google Cloud Storage: `gs://bucket/path`.

Every verb is one request of the JSON API. The tag of an object is its generation: `ifGenerationMatch=0` writes where
there is no object, another number where the object still has that generation. `google-auth` signs the requests and
urllib3 sends them, without retries of their own; `retries.retried` repeats requests that failed temporarily. A write
that is repeated after a lost answer finds its own object: the caller reads it back, as on every store.
"""

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from lance_dagster.errors import (
    ConditionalPutUnsupportedError,
    InvalidInputError,
    MissingExtraError,
    PermissionRefusedError,
    StoreError,
)
from lance_dagster.store.concurrency import concurrently
from lance_dagster.store.interface import ObjectInfo
from lance_dagster.store.prefix import ListedPage, PrefixStore
from lance_dagster.store.retries import TRANSIENT_STATUSES, TransientError, retried
from lance_dagster.store.vocabulary import (
    GOOGLE,
    Timeouts,
    check_endpoint,
    is_true,
    retry_seconds,
    timeouts,
    translated,
)

_API = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_ABSENT = "0"
_OK, _MISSING, _FAILED, _BAD_RANGE, _REFUSED, _UNSUPPORTED = 200, 404, 412, 416, 403, 501
_PARALLEL = 16
_CHUNK = 1 << 20
_TIMEOUTS = Timeouts(connect=10.0, read=60.0)


class _Answer(NamedTuple):
    """An answer of the server."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class _Connection(NamedTuple):
    """The connection of one process to the server."""

    process: int
    pool: Any
    credentials: Any
    base: str


class GoogleStore(PrefixStore):
    """A prefix of a bucket."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        """Take a canonical `gs://` URI; the server is not contacted."""
        super().__init__(uri)
        self._options = translated(GOOGLE, storage_options)
        self._seconds = retry_seconds(self._options)
        self._timeouts = timeouts(self._options, _TIMEOUTS)
        check_endpoint(self._options.get("endpoint"), allow_http=is_true(self._options.get("allow_http")))
        self._connected: _Connection | None = None

    @property
    def storage(self) -> object:
        """The endpoint and the credentials; secret."""
        return ("google", self._options)

    @property
    def _server(self) -> str:
        return self._options.get("endpoint", "")

    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object, or None when it does not exist."""
        blob = self.get_with_etag(key)
        return None if blob is None else blob[0]

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` up to `end`, or None when it does not exist."""
        if end <= start:
            return b""
        answer = self._media(key, {"Range": f"bytes={start}-{end - 1}"})
        # The object ends before the first byte that was asked for.
        return b"" if answer is not None and answer.status == _BAD_RANGE else answer and answer.body

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and its generation, which belong together, or None when it does not exist."""
        answer = self._media(key, {})
        return None if answer is None else (answer.body, answer.headers["x-goog-generation"])

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002  # everything lasts here
        """Write an object, replacing any existing one."""
        self._write(key, data, {})

    def now(self) -> float:
        """Return the modification time that the server assigns to an object written at this moment."""
        key = f"_refs/.probe-clock-{uuid.uuid4().hex}"
        try:
            answer = json.loads(self._write(key, b"", {}).body)
            return datetime.fromisoformat(answer["updated"]).timestamp()
        finally:
            self.delete(key)

    def download(self, key: str, path: Path) -> bool:
        """Write an object's bytes to a local file; False when there is none."""
        size = self._size(key)
        if size is None:
            return False
        with path.open("wb") as file:
            # The object is read in pieces, so that a large object is never in memory as a whole.
            for start in range(0, size, _CHUNK):
                piece = self.get_range(key, start, min(start + _CHUNK, size))
                if piece is None:
                    return False
                file.write(piece)
        return True

    def upload(self, path: Path, key: str) -> None:
        """Write an object of a local file's bytes."""
        self._write(key, path, {})

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy an object, or all objects below a prefix, on the server; return whether there are any."""
        source = GoogleStore(
            source_uri, {GOOGLE.options[name].spellings[0]: value for name, value in self._options.items()}
        )
        # Google cannot copy a prefix: objects are copied one by one, and an interrupted copy is repeated by the caller.
        names = [f"/{entry.key}" for entry in source.walk("")] or [""]
        return all(self._copy_object(source._bucket, source._prefix + name, key + name) for name in names)

    def delete(self, key: str) -> None:
        """Delete an object; succeed when it does not exist."""
        what = f"delete {self._uri}/{key}"
        self._send(what, "DELETE", self._path(key), accepted=(_MISSING,))

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, one request each, sixteen at a time: the API has no request for many."""
        concurrently(self.delete, keys, at_once=_PARALLEL)

    def _conditional_put(self, key: str, data: bytes, tag: str | None) -> str | None:
        if tag is not None and not _is_generation(tag):
            # The request is sent with a generation that no object has: the probe has to learn what the server does.
            tag = "1"
        answer = self._write(key, data, {"ifGenerationMatch": _ABSENT if tag is None else tag})
        return str(json.loads(answer.body)["generation"]) if answer.status == _OK else None

    def _conditional_delete(self, key: str, tag: str) -> bool:
        if not _is_generation(tag):
            # As for a write.
            tag = "1"
        what = f"delete {self._uri}/{key}"
        path = self._path(key, ifGenerationMatch=tag)
        return self._send(what, "DELETE", path, accepted=(_MISSING, _FAILED)).status not in (_MISSING, _FAILED)

    def _pages(self, prefix: str, delimiter: str, limit: int | None) -> Iterator[ListedPage]:
        parameters = {"prefix": prefix, "delimiter": delimiter, "maxResults": limit and str(limit)}
        query = {name: value for name, value in parameters.items() if value}
        query["fields"] = "nextPageToken,prefixes,items(name,size,updated,generation)"
        while True:
            path = f"/storage/v1/b/{quote(self._bucket, safe='')}/o?{urlencode(query)}"
            page = json.loads(self._send(f"list {self._uri}: {prefix}", "GET", path).body)
            objects = tuple(
                ObjectInfo(
                    key=item["name"],
                    size=int(item["size"]),
                    modified=datetime.fromisoformat(item["updated"]).timestamp(),
                    etag=str(item["generation"]),
                )
                for item in page.get("items", ())
            )
            yield ListedPage(objects, tuple(page.get("prefixes", ())))
            if "nextPageToken" not in page:
                return
            query["pageToken"] = page["nextPageToken"]

    def _size(self, key: str) -> int | None:
        answer = self._send(f"read {self._uri}/{key}", "GET", self._path(key, fields="size"), accepted=(_MISSING,))
        return None if answer.status == _MISSING else int(json.loads(answer.body)["size"])

    def _media(self, key: str, headers: Mapping[str, str]) -> _Answer | None:
        path = self._path(key, alt="media")
        accepted = (_MISSING, _BAD_RANGE)
        answer = self._send(f"read {self._uri}/{key}", "GET", path, headers=headers, accepted=accepted)
        return None if answer.status == _MISSING else answer

    def _write(self, key: str, data: bytes | Path, condition: Mapping[str, str]) -> _Answer:
        query = urlencode({"uploadType": "media", "name": self._key(key), **condition})
        path = f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o?{query}"
        what = f"write {self._uri}/{key}"
        return self._send(what, "POST", path, body=data, accepted=(_FAILED,) if condition else ())

    def _copy_object(self, bucket: str, name: str, key: str) -> bool:
        source = f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
        target = f"/rewriteTo/b/{quote(self._bucket, safe='')}/o/{quote(self._key(key), safe='')}"
        what, token = f"copy gs://{bucket}/{name} to {self._uri}/{key}", ""
        while True:
            # A large object is copied in steps, each of which names the step before it.
            query = f"?rewriteToken={quote(token, safe='')}" if token else ""
            answer = self._send(what, "POST", source + target + query, accepted=(_MISSING,))
            if answer.status == _MISSING:
                return False
            step = json.loads(answer.body)
            if step["done"]:
                return True
            token = step["rewriteToken"]

    def _path(self, key: str, **query: str) -> str:
        path = f"/storage/v1/b/{quote(self._bucket, safe='')}/o/{quote(self._key(key), safe='')}"
        return f"{path}?{urlencode(query)}" if query else path

    def _send(
        self,
        what: str,
        method: str,
        path: str,
        *,
        body: bytes | Path | None = None,
        headers: Mapping[str, str] | None = None,
        accepted: tuple[int, ...] = (),
    ) -> _Answer:
        """Send a request until it is answered; statuses beyond success are errors unless they are accepted.

        Raises:
            PermissionRefusedError: The credentials may not do this.
            StoreError: The storage failed.
        """

        def attempt() -> _Answer:
            answer = self._send_once(what, method, path, body=body, headers=headers or {})
            if (answer.status in accepted and not _is_of_bucket(answer)) or answer.status < 300:  # noqa: PLR2004
                return answer
            problem = f"cannot {what}: {_message(answer)}"
            if answer.status in TRANSIENT_STATUSES:
                raise TransientError(problem)
            if answer.status == _REFUSED:
                raise PermissionRefusedError(what, _message(answer))
            if answer.status == _UNSUPPORTED:
                raise ConditionalPutUnsupportedError(f"{problem}: the server does not support conditional writes")
            raise StoreError(problem)

        return retried(attempt, self._seconds)

    def _send_once(
        self, what: str, method: str, path: str, *, body: bytes | Path | None, headers: Mapping[str, str]
    ) -> _Answer:
        connection = self._connection
        import urllib3
        from google.auth import exceptions
        from google.auth.transport.urllib3 import Request

        url, signed = connection.base + path, dict(headers)
        try:
            connection.credentials.before_request(Request(connection.pool), method, url, signed)
            if isinstance(body, Path):
                with body.open("rb") as file:
                    signed["Content-Length"] = str(body.stat().st_size)
                    answer = connection.pool.request(method, url, body=file, headers=signed)
            else:
                answer = connection.pool.request(method, url, body=body, headers=signed)
        except (urllib3.exceptions.HTTPError, exceptions.TransportError) as error:
            raise TransientError(f"cannot {what}: {type(error).__name__}: no answer of {connection.base}") from error
        except exceptions.GoogleAuthError as error:
            raise StoreError(f"cannot {what}: the credentials are refused: {type(error).__name__}") from error
        return _Answer(answer.status, answer.data, answer.headers)

    @property
    def _connection(self) -> _Connection:
        # Connections do not survive a fork: each process makes its own.
        if self._connected is None or self._connected.process != os.getpid():
            try:
                # These are imported here: programs that only look at a URI or its options do not need them.
                import google.auth  # noqa: F401
                import urllib3
            except ImportError as error:
                raise MissingExtraError("google-auth", "gcs", "a table on gs://") from error
            timeout = urllib3.Timeout(connect=self._timeouts.connect, read=self._timeouts.read)
            pool = urllib3.PoolManager(maxsize=_PARALLEL, retries=False, timeout=timeout)
            credentials, base = _credentials(self._options)
            self._connected = _Connection(os.getpid(), pool, credentials, base.rstrip("/"))
        return self._connected


_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


def _credentials(options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the credentials that sign requests, and the address of the server.

    Raises:
        InvalidInputError: A key is not JSON, or a file cannot be read.
        StoreError: There are no credentials.
    """
    import google.auth
    from google.auth import credentials, exceptions
    from google.oauth2 import credentials as user, service_account

    base = options.get("endpoint", _API)
    if is_true(options.get("skip_signature")):
        return credentials.AnonymousCredentials(), base
    if "token" in options:
        return user.Credentials(options["token"]), base
    try:
        if "service_account_key" in options or "service_account" in options:
            info = json.loads(options.get("service_account_key") or Path(options["service_account"]).read_text())
            # As in pylance, this is the key of an emulator, which asks for no signature.
            base = info.get("gcs_base_url", base)
            if info.get("disable_oauth"):
                return credentials.AnonymousCredentials(), base
            return service_account.Credentials.from_service_account_info(info, scopes=[_SCOPE]), base
        if "application_credentials" in options:
            return google.auth.load_credentials_from_file(options["application_credentials"], scopes=[_SCOPE])[0], base
        return google.auth.default(scopes=[_SCOPE])[0], base
    # Text that was quoted twice is JSON as well, and no object. The text of a JSON error quotes the key.
    except (AttributeError, ValueError, OSError, RecursionError) as error:
        raise InvalidInputError(
            f"the service account of Google cannot be read: {type(error).__name__}; its key file holds a JSON object"
        ) from None
    except exceptions.GoogleAuthError as error:
        raise _no_credentials(options, error) from None


def _no_credentials(options: Mapping[str, str], error: Exception) -> StoreError:
    if "application_credentials" not in options and _VARIABLE not in os.environ:
        return StoreError(f"no credentials of Google: {error}")
    # The text of the error quotes the value, which is the key itself where somebody gave the content of the file.
    return StoreError(
        f"no credentials of Google: {type(error).__name__}; the storage option application_credentials, or "
        f"{_VARIABLE} in the environment, is the path of a file; its content is given as service_account_key"
    )


def _is_generation(tag: str) -> bool:
    # Zero would mean that there is no object.
    return tag.isdecimal() and int(tag) > 0


def _is_of_bucket(answer: _Answer) -> bool:
    # A bucket that does not exist is an error, as on S3; an object that does not is an answer.
    return answer.status == _MISSING and b"bucket does not exist" in answer.body


def _message(answer: _Answer) -> str:
    try:
        text = json.loads(answer.body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = answer.body[:200].decode(errors="replace")
    return f"{answer.status} {text}"
