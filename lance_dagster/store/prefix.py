"""What the stores on object storage share: a prefix of a bucket, its listings, the probe of conditions, and retries.

A provider gives single requests: a conditional write, a conditional deletion, a page of a listing. Object storage has
no folders, links or syncs, so the methods about these do nothing.

The probe: before the first conditional write of a process to a bucket, the server has to show that it obeys the
condition. A put if absent that succeeds shows nothing, since the object may have been absent; only a refusal does, and
what is refused is a put of an object that exists. So one object stays in the table for that, the probe object. A put if
absent of it that is refused is a proof, with one request and without a trace. It proves nothing by being there, so it
may be copied with the table to another storage, be made by anybody, or be deleted: a put that is not refused is
followed by the whole probe on an object of this process. `If-Match` is proved in the same way before the first swap,
and for deletions before the first deletion that depends on it.

What a server obeys is kept for the process and not in the storage: it is no property of the table, and can change
without a change of its address. A proxy may come in between, another server may take over the address, and Ceph 16
ignores `If-None-Match` once versioning is enabled for a bucket.
"""

import logging
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice

from lance_dagster.errors import ConditionalPutUnsupportedError, PermissionRefusedError, StoreError
from lance_dagster.store.interface import ObjectInfo, Turn
from lance_dagster.store.retries import Pauses
from lance_dagster.store.turns import turn_of_machine

# How often a server is asked what it does with conditions, and the first pause between two times.
_PROBES, _PROBE_PAUSES = 4, Pauses(first=0.1)
PROBE_OBJECT = "_refs/.probe-object"
"""The object that stays in a table or lake, so that a server can refuse to write it again."""
_PROBE_CONTENT = b"1"
# The tags of so many objects that were written last are known, if the objects are refs: nobody swaps a larger one.
_TAGS, _LARGEST_TAGGED = 64, 2**16
# No object ever had this tag: it has the form of an MD5 digest, and as a number it is not a generation.
_NO_TAG = "0" * 32

# The loggers of the client libraries that show requests, and a credential in a header or in a URL.
_LOGS_OF_REQUESTS = (
    *("botocore.auth", "botocore.endpoint", "botocore.hooks", "botocore.httpsession", "botocore.parsers"),
    "urllib3.connectionpool",
)
_CREDENTIAL = re.compile(
    r"""((?:x-amz-security-token|x-amz-signature|authorization|signature|\bsig)['"]?\s*[=:]\s*b?['"]?)(?!\*)[^\s'"&]+""",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ListedPage:
    """One answer to a listing: objects with their full keys, and the prefixes up to the delimiter."""

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...]


@dataclass(slots=True)
class Conditions:
    """The conditions that a server was seen to obey.

    Attributes:
        creation: Whether it refuses a put if absent of an object that exists.
        swap: Whether it refuses a write to an object that has another tag.
        deletion: Whether it refuses a deletion of an object that has another tag; None where that is not known.
    """

    creation: bool = False
    swap: bool = False
    deletion: bool | None = None


# By the class of the store, the server and the bucket. A forked process has the same server.
_CONDITIONS: dict[tuple[type, str, str], Conditions] = {}


def hide_credentials_in_logs() -> None:
    """Mask session tokens and signatures in what the client libraries log at the level DEBUG."""
    for name in _LOGS_OF_REQUESTS:
        # A filter of a logger sees only what is logged by that name, so each logger needs it; adding it again is
        # without effect.
        logging.getLogger(name).addFilter(_mask_credentials)


def _mask_credentials(record: logging.LogRecord) -> bool:
    if record.levelno <= logging.DEBUG and _CREDENTIAL.search(message := record.getMessage()):
        record.msg, record.args = _CREDENTIAL.sub(r"\1***", message), ()
    return True


class PrefixStore(ABC):
    """A prefix of a bucket: the part of a `Store` that is the same for every provider."""

    # Every provider lists keys in order, so the newest manifest is found without a version hint.
    ordered_listing = True

    def __init__(self, uri: str) -> None:
        """Take a canonical URI, `scheme://bucket/prefix`; the server is not contacted."""
        self._uri = uri
        self._bucket, _, self._prefix = uri.partition("://")[2].partition("/")
        # The bytes and the tags of the objects that were written last, oldest first.
        self._written: dict[str, tuple[bytes, str]] = {}
        # Whether the probe object was there when it was last looked for.
        self._has_probe_object = False

    @property
    def uri(self) -> str:
        """The canonical URI."""
        return self._uri

    @property
    @abstractmethod
    def _server(self) -> str:
        """The address of the server where one is configured: other servers may have the same URIs."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object, or None when it does not exist."""

    @abstractmethod
    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write an object, replacing any existing one."""

    def put_hint(self, key: str, data: bytes) -> None:
        """Write a hint as any other object."""
        self.put(key, data)

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; succeed when it does not exist."""

    @abstractmethod
    def _conditional_put(self, key: str, data: bytes, tag: str | None) -> str | None:
        """Write an object if it has a tag, or with None if there is none; return its new tag, None if not written."""

    @abstractmethod
    def _conditional_delete(self, key: str, tag: str) -> bool:
        """Delete an object if it has a tag; return False when it has another or is gone."""

    @abstractmethod
    def _pages(self, prefix: str, delimiter: str, limit: int | None) -> Iterator[ListedPage]:
        """List the keys that start with a prefix, one request for each page; a limit bounds the first page."""

    def put_if_absent(
        self,
        key: str,
        data: bytes,
        *,
        synced: bool = True,  # noqa: ARG002  # it always is
        after: Sequence[str] = (),  # noqa: ARG002  # an acknowledged object is durable
    ) -> bool:
        """Write an object unless the key exists; return whether it was written."""
        return self._put_conditionally(key, data, None)

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace an object unless its tag changed."""
        return self._put_conditionally(key, data, tag)

    def written_tag(self, key: str, data: bytes) -> str | None:
        """Return the tag of the response to the write."""
        write = self._written.get(key)
        return write[1] if write is not None and write[0] == data else None

    def compare_and_delete(self, key: str, tag: str) -> bool:
        """Delete an object unless its tag changed, where the server can do that."""
        # Sent with the condition in any case: another process may know better what the server does.
        try:
            return self._conditional_delete(key, tag)
        except ConditionalPutUnsupportedError:
            self.delete(key)
            return True

    def deletes_conditionally(self) -> bool:
        """Return whether the server obeys the condition of a deletion, which not every S3 server does."""
        conditions = self._conditions
        if conditions.deletion is None:
            self._probe(self._prove_deletion)
        return bool(conditions.deletion)

    def list(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the objects directly in a folder, sorted, at most the first `limit` of them."""
        return [entry.key for entry in islice(self._listed(folder, "/", limit), limit)]

    def list_with_etags(self, folder: str) -> dict[str, str]:
        """Return the names of the objects directly in a folder, sorted, with their tags."""
        return {entry.key: entry.etag for entry in self._listed(folder, "/")}

    def list_some(self, folder: str, limit: int) -> Collection[str]:
        """Return the names of the first `limit` objects directly in a folder."""
        return self.list(folder, limit)

    def folders(self, folder: str) -> tuple[str, ...]:
        """Return the prefixes directly in a folder, sorted, without listing what is below them."""
        prefix = self._folder(folder)
        prefixes = (name for page in self._pages(prefix, "/", None) for name in page.prefixes)
        return tuple(sorted(name.removeprefix(prefix).rstrip("/") for name in prefixes))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names of the objects directly in a folder with their sizes in bytes."""
        return {entry.key: entry.size for entry in self._listed(folder, "/")}

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """List every object below a prefix: one request for each page."""
        for entry in self._listed(folder, ""):
            key = f"{folder}/{entry.key}" if folder else entry.key
            yield ObjectInfo(key, entry.size, entry.modified, entry.etag)

    def prune(self, folder: str) -> None:  # noqa: B027  # complete as it is
        """Do nothing: object storage has no folders."""

    def turn(self, name: str, meanwhile: Callable[[], object] = object) -> AbstractContextManager[Turn]:
        """Wait until other writers of this user on this machine are done, at most a few seconds."""
        return turn_of_machine(f"{self._server}\n{self._uri}\n{name}", meanwhile)

    def refuse_links(self, *keys: str, below: Sequence[str] = ()) -> None:  # noqa: B027  # complete as it is
        """Do nothing: object storage has no links."""

    def links(self, folder: str = "") -> Sequence[str]:  # noqa: ARG002  # it has none
        """Return nothing: object storage has no links."""
        return ()

    def sync_folder(self, folder: str) -> None:  # noqa: B027  # complete as it is
        """Do nothing: an acknowledged object is durable."""

    def _put_conditionally(self, key: str, data: bytes, tag: str | None) -> bool:
        conditions = self._conditions
        if not conditions.creation:
            self._probe(self._prove_creation)
        if tag is not None and not conditions.swap:
            self._probe(self._prove_swap)
        try:
            new_tag = self._conditional_put(key, data, tag)
        except PermissionRefusedError as error:
            # The client of S3 sends a request again by itself when its connection breaks, so the attempt before the
            # refused attempt may have been done. Then the caller finds its own object, as after any repeated write.
            try:
                if self.get(key) == data:
                    return False
            except PermissionRefusedError:
                if not error.known:
                    # The credentials expired since the probe, maybe between two attempts.
                    raise StoreError(f"cannot tell whether {self._uri}/{key} was written: {error}") from error
            raise
        if new_tag is not None:
            self._keep_tag(key, data, new_tag)
        return new_tag is not None

    def _keep_tag(self, key: str, data: bytes, tag: str) -> None:
        if len(data) <= _LARGEST_TAGGED:
            self._written.pop(key, None)
            self._written[key] = data, tag
            if len(self._written) > _TAGS:
                # Another thread may have dropped it.
                self._written.pop(next(iter(self._written)), None)

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _folder(self, folder: str) -> str:
        return self._key(f"{folder}/" if folder else "")

    def _listed(self, folder: str, delimiter: str, limit: int | None = None) -> Iterator[ObjectInfo]:
        """List the objects directly in a folder, or all below it without a delimiter; keys are relative to it."""
        prefix = self._folder(folder)
        for page in self._pages(prefix, delimiter, limit):
            for entry in page.objects:
                if name := entry.key.removeprefix(prefix):
                    yield ObjectInfo(name, entry.size, entry.modified, entry.etag)

    @property
    def _conditions(self) -> Conditions:
        # Readers do not probe: they need no write permission.
        return _CONDITIONS.setdefault((type(self), self._server, self._bucket), Conditions())

    def _probe(self, prove: Callable[[], bool]) -> None:
        """Refuse a server that accepts conditions and ignores them: commits would overwrite each other.

        Args:
            prove: Tells what the server does with a condition; returns False when its answers prove nothing.

        Raises:
            ConditionalPutUnsupportedError: It ignores them, or answers that it does not support them.
            StoreError: The server did not answer often enough to tell.
        """
        problem: StoreError | None = None
        for attempt in range(_PROBES):
            if attempt:
                # A server in trouble is given time.
                _PROBE_PAUSES.wait(attempt)
            try:
                if prove():
                    return
            except (ConditionalPutUnsupportedError, PermissionRefusedError):
                raise
            except StoreError as error:
                problem = error
        raise StoreError(
            f"cannot tell whether the server behind {self._uri} obeys If-None-Match, without which two writers could "
            f"overwrite each other's commit: {problem or 'its answers contradict each other'}; try again"
        ) from problem

    def _prove_creation(self) -> bool:
        """Put the probe object if absent: a refusal is the proof, whoever made the object."""
        new_tag = self._conditional_put(PROBE_OBJECT, _PROBE_CONTENT, None)
        self._has_probe_object = True
        if new_tag is None:
            self._conditions.creation = True
            return True
        try:
            return self._probe_whole()
        except ConditionalPutUnsupportedError:
            # Nobody is going to write here.
            with suppress(StoreError):
                self.delete(PROBE_OBJECT)
            raise

    def _prove_swap(self) -> bool:
        """Swap the probe object for itself, with a tag that it does not have."""
        if self._conditional_put(PROBE_OBJECT, _PROBE_CONTENT, _NO_TAG) is not None:
            return self._probe_whole()
        self._conditions.swap = True
        return True

    def _prove_deletion(self) -> bool:
        """Delete the probe object, with a tag that it does not have."""
        if not self._has_probe_object and not self._prove_creation():
            return False
        # The whole probe may have found it out.
        if self._conditions.deletion is None:
            try:
                obeys = not self._conditional_delete(PROBE_OBJECT, _NO_TAG)
            except ConditionalPutUnsupportedError:
                obeys = False
            else:
                if not obeys:
                    self.put(PROBE_OBJECT, _PROBE_CONTENT)
            # An object that was not there any more is taken for deleted, which is the careful answer.
            self._conditions.deletion = obeys
        return True

    def _probe_whole(self) -> bool:
        """Tell what the server does with each condition, on an object that no other process writes."""
        return self._probe_once(f"_refs/.probe-{uuid.uuid4().hex}")

    def _probe_once(self, key: str) -> bool:
        """Find out whether the server obeys the conditions of writes; return False when its answers prove nothing.

        Raises:
            ConditionalPutUnsupportedError: The server ignores conditions, or answers that it does not support them.
            StoreError: The server did not answer.
        """
        try:
            # Its answer says nothing: a client that lost it sends the request again and finds its own object.
            self._conditional_put(key, b"1", None)
            if self.get(key) != b"1":
                return False
            # This put has to fail. A server that accepts it would let two commits of one version win. Its answer is
            # believed only if the object agrees, since the client may have repeated the request.
            refused = self._conditional_put(key, b"2", None) is None
            if not refused and self.get(key) == b"2":
                raise ConditionalPutUnsupportedError(
                    f"the server behind {self._uri} ignores If-None-Match, so two writers could overwrite each "
                    "other's commit; use a server with conditional writes"
                )
            # A swap with the tag of no object has to fail too: a server may obey If-None-Match and ignore If-Match.
            if refused and self._conditional_put(key, b"3", _NO_TAG) is not None and self.get(key) == b"3":
                raise ConditionalPutUnsupportedError(
                    f"the server behind {self._uri} ignores If-Match on writes, so a branch or tag that is moved could "
                    "overwrite another writer's move; use a server with conditional writes"
                )
            if refused:
                conditions = self._conditions
                try:
                    conditions.deletion = not self._conditional_delete(key, _NO_TAG)
                except ConditionalPutUnsupportedError:
                    conditions.deletion = False
                conditions.creation = conditions.swap = True
            return refused
        finally:
            # What stays behind is one small object that garbage collection knows.
            with suppress(StoreError):
                self.delete(key)
