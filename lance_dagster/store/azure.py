"""Tables on Azure Blob Storage: `az://container/path` and `abfss://container@account.dfs.core.windows.net/path`.

Conditional writes use `If-None-Match: *`, which Azure answers with 409 when the blob exists, and `If-Match`. The
client's own retries are switched off, so that one call is one request; `retries.retried` repeats requests that failed
temporarily. A PUT that is repeated after a lost answer finds its own blob: the caller reads it back, as on every store.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

from lance_dagster.errors import (
    ConditionalPutUnsupportedError,
    InvalidInputError,
    MissingExtraError,
    PermissionRefusedError,
    StoreError,
)
from lance_dagster.store.interface import ObjectInfo
from lance_dagster.store.prefix import ListedPage, PrefixStore, hide_credentials_in_logs
from lance_dagster.store.retries import TRANSIENT_STATUSES, TransientError, retried
from lance_dagster.store.vocabulary import (
    AZURE,
    Timeouts,
    check_endpoint,
    is_true,
    retry_seconds,
    timeouts,
    translated,
)

_PAGE = 5000
# The limit of a batch request of Azure.
_MOST_AT_ONCE = 256
_COPY_PAUSE = 0.2
_MISSING, _CONFLICT, _FAILED, _BAD_RANGE, _REFUSED, _UNSUPPORTED = 404, 409, 412, 416, 403, 501
_SHOWN = 3
_FOLDER = "hdi_isfolder"
_TIMEOUTS = Timeouts(connect=10.0, read=60.0)

Answered = TypeVar("Answered")


class AzureStore(PrefixStore):
    """A prefix of a container."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        """Take a canonical `az://` or `abfss://` URI; the server is not contacted."""
        super().__init__(uri)
        self._container, _, host = self._bucket.partition("@")
        self._options = translated(AZURE, storage_options)
        self._seconds = retry_seconds(self._options)
        self._timeouts = timeouts(self._options, _TIMEOUTS)
        check_endpoint(self._options.get("endpoint"), allow_http=is_true(self._options.get("allow_http")))
        account = host.partition(".")[0]
        if account and self._options.setdefault("account_name", account) != account:
            raise InvalidInputError(
                f"{uri} names the storage account {account!r}, and the storage option account_name names another "
                "account"
            )
        self._connected: tuple[int, Any] | None = None

    @property
    def storage(self) -> object:
        """The account and the credentials; secret."""
        return ("azure", self._options)

    @property
    def _server(self) -> str:
        return self._options.get("endpoint") or self._options.get("account_name", "")

    def get(self, key: str) -> bytes | None:
        """Return the bytes of a blob, or None when it does not exist; one request up to 32 MiB."""
        blob = self.get_with_etag(key)
        return None if blob is None else blob[0]

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of a blob from `start` up to `end`, or None when it does not exist."""

        def send() -> bytes | None:
            try:
                data: bytes = self._blob(key).download_blob(offset=start, length=end - start).readall()
            except self._http_error as error:
                # The blob ends before the first byte that was asked for.
                if error.status_code == _BAD_RANGE:
                    return b""
                if _is_missing(error):
                    return None
                raise
            return data

        return b"" if end <= start else self._ask(f"read {self._uri}/{key}", send)

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of a blob and its ETag, which belong together, or None when it does not exist."""

        def send() -> tuple[bytes, str] | None:
            try:
                # Parts of a large blob are read on the condition that its ETag stays.
                stream = self._blob(key).download_blob(max_concurrency=1)
                return stream.readall(), str(stream.properties.etag)
            except self._http_error as error:
                if _is_missing(error):
                    return None
                raise

        return self._ask(f"read {self._uri}/{key}", send)

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002  # everything lasts here
        """Write a blob, replacing any existing one."""
        self._ask(f"write {self._uri}/{key}", lambda: self._blob(key).upload_blob(data, overwrite=True))

    def now(self) -> float:
        """Return the modification time that the server assigns to a blob written at this moment."""
        key = "_refs/.probe-clock-" + os.urandom(8).hex()
        what = f"read the clock of {self._uri}"
        try:
            answer = self._ask(what, lambda: self._blob(key).upload_blob(b"", overwrite=True))
            return float(answer["last_modified"].timestamp())
        finally:
            self.delete(key)

    def download(self, key: str, path: Path) -> bool:
        """Write a blob's bytes to a local file; False when there is none."""

        def send() -> bool:
            try:
                stream = self._blob(key).download_blob(max_concurrency=4)
            except self._http_error as error:
                if _is_missing(error):
                    return False
                raise
            with path.open("wb") as file:
                stream.readinto(file)
            return True

        return self._ask(f"read {self._uri}/{key}", send)

    def upload(self, path: Path, key: str) -> None:
        """Write a blob of a local file's bytes, in blocks when it is large; it appears with the last block."""

        def send() -> None:
            with path.open("rb") as file:
                self._blob(key).upload_blob(file, overwrite=True, max_concurrency=4)

        self._ask(f"write {self._uri}/{key}", send)

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy a blob, or all blobs below a prefix, on the server; return whether there are any."""
        source = AzureStore(source_uri, self._pylance_options())
        names = [(entry.key, f"/{entry.key}") for entry in source.walk("")] or [("", "")]
        # Azure cannot copy a prefix: blobs are copied one by one, and an interrupted copy is repeated by the caller.
        return all(self._copy_blob(source, name, key + suffix) for name, suffix in names)

    def delete(self, key: str) -> None:
        """Delete a blob; succeed when it does not exist."""

        def send() -> None:
            try:
                self._blob(key).delete_blob()
            except self._http_error as error:
                if not _is_missing(error):
                    raise

        self._ask(f"delete {self._uri}/{key}", send)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete blobs, up to 256 with one request."""
        for start in range(0, len(keys), _MOST_AT_ONCE):
            names = [self._key(key) for key in keys[start : start + _MOST_AT_ONCE]]

            def send(names: list[str] = names) -> list[int]:
                answers = self._client.delete_blobs(*names, raise_on_any_failure=False)
                return [answer.status_code for answer in answers]

            statuses = self._ask(f"delete {len(names)} blobs below {self._uri}", send)
            # The answer is a success even when single blobs could not be deleted.
            failed = [
                f"{name} ({status})"
                for name, status in zip(names, statuses, strict=True)
                if status >= 300 and status != _MISSING  # noqa: PLR2004  # the first status that is not a success
            ]
            if failed:
                shown = ", ".join(failed[:_SHOWN]) + (", ..." if len(failed) > _SHOWN else "")
                raise StoreError(f"cannot delete {len(failed)} blobs of {self._uri}: {shown}")

    def _conditional_put(self, key: str, data: bytes, tag: str | None) -> str | None:
        condition = {"overwrite": False} if tag is None else {"overwrite": True, **self._if_match(tag)}
        what = f"write {self._uri}/{key}"
        answer = self._conditional(what, lambda: self._blob(key).upload_blob(data, **condition))
        return None if answer is None else str(answer["etag"])

    def _conditional_delete(self, key: str, tag: str) -> bool:
        condition = self._if_match(tag)

        def delete() -> Mapping[str, object]:
            self._blob(key).delete_blob(**condition)
            return {}

        return self._conditional(f"delete {self._uri}/{key}", delete) is not None

    def _conditional(self, what: str, request: Callable[[], Mapping[str, object]]) -> Mapping[str, object] | None:
        """Send a request under a condition; return its answer, None where the condition failed."""

        def send() -> Mapping[str, object] | None:
            try:
                return request()
            except self._http_error as error:
                # 409 is also the answer while a blob is leased or its account is busy, which is an error here.
                exists = error.status_code == _CONFLICT and error.error_code == "BlobAlreadyExists"
                if exists or error.status_code == _FAILED or _is_missing(error):
                    return None
                if error.status_code == _UNSUPPORTED:
                    raise ConditionalPutUnsupportedError(
                        f"cannot {what}: the server does not support conditional writes"
                    ) from error
                raise

        return self._ask(what, send)

    def _pages(self, prefix: str, delimiter: str, limit: int | None) -> Iterator[ListedPage]:
        # An account with hierarchical namespaces lists folders among the blobs; only their metadata tells them apart.
        options = {"name_starts_with": prefix, "results_per_page": min(limit or _PAGE, _PAGE), "include": ["metadata"]}
        listing = self._client.walk_blobs(delimiter=delimiter, **options) if delimiter else None
        pages = (listing or self._client.list_blobs(**options)).by_page()
        while True:
            # The iterator keeps its place when a request fails, so the request is repeated and not the listing.
            page = self._ask(f"list {self._uri}: {prefix}", lambda: _next(pages))
            # A page without blobs is not the end: Azure may cut a listing anywhere.
            if page is None:
                return
            objects = tuple(
                ObjectInfo(blob.name, int(blob.size), blob.last_modified.timestamp(), _quoted(blob.etag))
                for blob in page
                if hasattr(blob, "size") and blob.size is not None and _FOLDER not in (blob.metadata or {})
            )
            yield ListedPage(objects, tuple(blob.name for blob in page if not hasattr(blob, "size")))

    def _copy_blob(self, source: "AzureStore", name: str, key: str) -> bool:
        address = source._blob(name).url  # noqa: SLF001  # a store of the same class

        def send() -> bool:
            blob = self._blob(key)
            try:
                answer = blob.start_copy_from_url(address)
            except self._http_error as error:
                if _is_missing(error):
                    return False
                raise
            # Within an account a copy is done at once or soon after.
            status = answer["copy_status"]
            while status == "pending":
                sleep(_COPY_PAUSE)
                status = blob.get_blob_properties().copy.status
            if status != "success":
                raise StoreError(f"cannot copy {source.uri}/{name} to {self._uri}/{key}: the copy ended as {status}")
            return True

        return self._ask(f"copy {source.uri}/{name} to {self._uri}/{key}", send)

    def _pylance_options(self) -> Mapping[str, str]:
        return {AZURE.options[name].spellings[0]: value for name, value in self._options.items()}

    def _if_match(self, tag: str) -> dict[str, object]:
        from azure.core import MatchConditions

        return {"etag": tag, "match_condition": MatchConditions.IfNotModified}

    def _blob(self, key: str) -> Any:  # noqa: ANN401  # the SDK's own types are not exported for every call
        name = self._key(key) if key else self._prefix
        return self._client.get_blob_client(name)

    @property
    def _http_error(self) -> Any:  # noqa: ANN401  # an exception class of the SDK
        return self._errors()[0]

    def _errors(self) -> tuple[Any, Any]:
        """Return the SDK's exceptions: of an answer that is an error, and of any failed request."""
        try:
            # This is imported here: programs that only look at a URI or its options do not need it.
            from azure.core.exceptions import AzureError, HttpResponseError
        except ImportError as error:
            raise self._missing_extra() from error
        return HttpResponseError, AzureError

    def _missing_extra(self) -> MissingExtraError:
        scheme = self._uri.partition(":")[0]
        return MissingExtraError("azure-storage-blob", "azure", f"a table on {scheme}://")

    @property
    def _client(self) -> Any:  # noqa: ANN401  # same
        # Connections do not survive a fork: each process makes its own client.
        if self._connected is None or self._connected[0] != os.getpid():
            self._connected = (os.getpid(), self._connect())
        return self._connected[1]

    def _connect(self) -> object:
        try:
            # A listing makes the client before its first request, so `_errors` was not called yet.
            from azure.storage.blob import ContainerClient
        except ImportError as error:
            raise self._missing_extra() from error
        hide_credentials_in_logs()
        account = self._options.get("account_name", "")
        endpoint = self._options.get("endpoint") or f"https://{account}.blob.core.windows.net"
        if not account and "endpoint" not in self._options:
            raise InvalidInputError(f"{self._uri} needs the storage option account_name, or an endpoint")
        return ContainerClient(
            endpoint,
            self._container,
            credential=credential(self._options),
            retry_total=0,
            connection_timeout=self._timeouts.connect,
            read_timeout=self._timeouts.read,
        )

    def _ask(self, what: str, send: Callable[[], Answered]) -> Answered:
        answered, failed = self._errors()

        def attempt() -> Answered:
            try:
                return send()
            except answered as error:
                if error.status_code in TRANSIENT_STATUSES:
                    raise TransientError(f"cannot {what}: {_text(error)}") from error
                if error.status_code == _REFUSED:
                    raise PermissionRefusedError(what, _text(error)) from error
                raise StoreError(f"cannot {what}: {_text(error)}") from error
            except failed as error:
                # There was no answer, or only a part of one.
                raise TransientError(f"cannot {what}: {_text(error)}") from error

        return retried(attempt, self._seconds)


def credential(options: Mapping[str, str]) -> Any:  # noqa: ANN401  # one of several classes of the SDK
    """Return the credential that the SDK signs requests with: from an explicit option, else from the machine.

    Raises:
        InvalidInputError: A part of the credentials is missing, a token would be sent unencrypted, or `sas_token` is
            not a signature.
        MissingExtraError: The credentials need azure-identity.
    """
    if is_true(options.get("skip_signature")):
        return None
    if "account_key" in options:
        return {"account_name": options.get("account_name", ""), "account_key": options["account_key"]}
    if "sas_token" in options:
        signature = options["sas_token"].removeprefix("?")
        if "sig=" not in signature:
            raise InvalidInputError("the storage option sas_token must be a shared access signature with 'sig='")
        return signature
    if options.get("endpoint", "").lower().startswith("http://"):
        raise InvalidInputError(
            "a bearer token, such as that of an Azure identity, is sent over https only, and the endpoint uses plain "
            "http; give account_key or sas_token"
        )
    return _StaticToken(options["token"]) if "token" in options else _identity(options)


def _identity(options: Mapping[str, str]) -> object:
    try:
        from azure import identity
    except ImportError as error:
        raise MissingExtraError("azure-identity", "azure", "credentials other than a key or a token") from error
    if "client_secret" in options:
        missing = [name for name in ("tenant_id", "client_id") if name not in options]
        if missing:
            raise InvalidInputError(f"the storage option client_secret needs {' and '.join(missing)}")
        try:
            return identity.ClientSecretCredential(options["tenant_id"], options["client_id"], options["client_secret"])
        except ValueError:
            raise InvalidInputError(
                "the storage options tenant_id, client_id and client_secret are refused by azure-identity; a tenant_id "
                "is a uuid or a domain"
            ) from None
    if is_true(options.get("use_azure_cli")):
        return identity.AzureCliCredential()
    return identity.DefaultAzureCredential()


class _StaticToken:
    """A bearer token that somebody else renews."""

    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *_: str, **__: object) -> Any:  # noqa: ANN401  # the SDK's named tuple
        from azure.core.credentials import AccessToken

        # The real expiry is unknown; the server refuses the token once it has expired.
        return AccessToken(self._token, 2**31 - 1)


def _quoted(tag: str | None) -> str:
    """Return the tag of a listed blob as a read of the blob gives it, which is in quotes; listings leave them out."""
    return tag or "" if not tag or tag.startswith('"') else f'"{tag}"'


def _next(pages: Iterator[Any]) -> list[Any] | None:
    page = next(pages, None)
    return None if page is None else [*page]


def _is_missing(error: Any) -> bool:  # noqa: ANN401  # the SDK is imported late
    # A container that does not exist is an error, as on S3; a blob that does not is an answer.
    return bool(error.status_code == _MISSING and error.error_code != "ContainerNotFound")


def _text(error: Exception) -> str:
    """Return the first line of an error, without the URL's query, in which a signature may stand."""
    with suppress(IndexError):
        return str(error).splitlines()[0].partition("?")[0]
    return type(error).__name__
