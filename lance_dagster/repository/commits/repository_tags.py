"""Repository tags: names for one commit each, which never change."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    Call,
    CorruptFileError,
    NotFoundError,
    ProtectedError,
    RefNotFoundError,
    Remedy,
)
from lance_dagster.format.validation import check_string, parsed_json, validate_commit_info
from lance_dagster.history.refs.ref_names import check_tag_name
from lance_dagster.repository.commits.ref_log import TAGS, RefKind, RefLogs, person


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryTag:
    """A repository tag: its name, the id of its commit, who created it, when and why, and its properties."""

    name: str
    commit: str
    created_by: str
    created_at: pendulum.DateTime
    message: str
    properties: Mapping[str, str] = field(default_factory=dict)


def refuse_taken(logs: RefLogs, name: str, new_kind: Literal["branch", "channel", "repository tag"]) -> None:
    """Refuse the name of a new ref when a ref of another kind has the name.

    Branches, channels and repository tags share one set of names, because an expression names a ref without its kind.
    Where two processes create two refs of the same name at the same moment, both succeed; then the name means the
    channel.

    Raises:
        AlreadyExistsError: There is a ref of another kind.
    """
    existing_kind = None
    # Names with a slash are names of branches only, and cost no request here.
    kinds: tuple[RefKind, ...] = ("branch",) if "/" in name else ("branch", "channel")
    for kind in kinds:
        entry = None if kind == new_kind else logs.newest(kind, name)
        # A branch that ended while rows were committed to it still has tables that wait.
        if entry is not None and (not entry.deleted or (kind == "branch" and logs.fork_marks(name))):
            existing_kind = kind
    if existing_kind is not None or (new_kind != "repository tag" and read_tag(logs, name) is not None):
        kind_of = existing_kind or "repository tag"
        raise AlreadyExistsError(f"{name!r} is a {kind_of} of {logs.store.uri}; a {new_kind} needs another name")


def read_tag(logs: RefLogs, name: str) -> RepositoryTag | None:
    """Read a repository tag, or return None.

    Raises:
        InvalidInputError: The name is not a string, or cannot be encoded.
    """
    check_string("the name of a tag", name)
    # No tag can have such a name, so no request is made for it. A name of dots could also lead out of the folder.
    if "/" in name or name.startswith("."):
        return None
    path = _path(name)
    data = logs.store.get(path)
    return None if data is None else _parsed(name, data, f"{logs.store.uri}/{path}")


def list_tags(logs: RefLogs) -> dict[str, RepositoryTag]:
    """Read all repository tags, by name."""
    names = sorted(unquote(name.removesuffix(".json")) for name in logs.store.list(TAGS))
    return {name: tag for name in names if (tag := read_tag(logs, name)) is not None}


def put_tag(logs: RefLogs, name: str, commit: str, *, message: str, properties: Mapping[str, str]) -> RepositoryTag:
    """Create a repository tag; return the existing one when it names the same commit.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        AlreadyExistsError: The tag names another commit, or the name is that of a branch or channel.
        NotFoundError: A collection is deleting the commit.
    """
    check_tag_name(name)
    validate_commit_info(message, properties)
    refuse_taken(logs, name, "repository tag")
    content = {
        "commit": commit,
        "by": person(),
        "at": pendulum.now("UTC").isoformat(),
        "message": message,
        "properties": dict(properties),
        "write": uuid.uuid4().hex,
    }
    data = json.dumps(content).encode()
    logs.store.put_if_absent(_path(name), data)
    # Read back whatever the response was: another process may have been first, or an HTTP client sent the request twice
    # and returns the refusal of the second request.
    tag = read_tag(logs, name)
    if tag is None:
        raise AlreadyExistsError(f"repository tag {name!r} of {logs.store.uri} was created and deleted meanwhile")
    if tag.commit != commit:
        raise AlreadyExistsError(
            f"repository tag {name!r} of {logs.store.uri} names commit {tag.commit[:12]}, and never moves"
        )
    # First the tag, then the mark, as for a channel: a collection marks first and then lists the tags.
    if logs.is_expired(commit):
        # Only the tag of this call: the collection has seen a tag that another process put before the mark.
        stored = logs.store.get_with_etag(_path(name))
        if stored is not None and stored[0] == data:
            logs.store.compare_and_delete(_path(name), stored[1])
        raise NotFoundError(f"commit {commit[:12]} of {logs.store.uri} is being collected; choose a newer commit")
    return tag


def drop_tag(logs: RefLogs, name: str, *, force: bool) -> None:
    """Delete a repository tag.

    Raises:
        RefNotFoundError: There is no such tag.
        ProtectedError: `force` is False.
    """
    stored = None if read_tag(logs, name) is None else logs.store.get_with_etag(_path(name))
    if stored is None:
        raise RefNotFoundError(name, list(list_tags(logs)), logs.store.uri, "repository tag")
    if not force:
        delete = Call("tags.delete", (name,), {"force": True})
        because = "readers find the commit by it"
        raise ProtectedError(
            "repository tag", name, "delete", because, Remedy("give the commit another name, or {}", delete)
        )
    # The immutable tags of the tables stay: programs that read single tables were promised that these never move. The
    # tag is deleted only as it was read: another process may have deleted it and created another tag of the name.
    logs.store.compare_and_delete(_path(name), stored[1])


def _parsed(name: str, data: bytes, path: str) -> RepositoryTag:
    try:
        content = parsed_json(data)
        return RepositoryTag(
            name=name,
            commit=str(content["commit"]),
            created_by=str(content["by"]),
            created_at=pendulum.instance(pendulum.DateTime.fromisoformat(str(content["at"]))),
            message=str(content["message"]),
            properties={str(key): str(value) for key, value in content.get("properties", {}).items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(path, f"it does not hold a repository tag: {type(error).__name__}") from error


def _path(name: str) -> str:
    return f"{TAGS}/{quote(name, safe='')}.json"
