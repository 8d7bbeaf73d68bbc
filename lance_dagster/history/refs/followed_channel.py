"""Tags that follow a channel of a repository: they are its shadow in each table, and move with it.

Readers follow the channel. A program that knows only Lance reads the tag of that name in each table. If the tag of a
single table is moved, these programs see this table at another publication than all other tables, while readers of the
channel see no change.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Literal, Protocol

from lance_dagster.errors import Call, ProtectedError, Remedy, StoreError
from lance_dagster.format.layout import REPOSITORY_MARKER, SUFFIX
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.store import open_store

FOLLOWED_COMMIT = "repository/commit"
"""Metadata of a tag that follows a channel or tag of a repository: the commit that it follows."""

Change = Literal["move", "roll back", "delete"]
"""A change of a tag."""


class Place(Protocol):
    """A table, as its context and its public class have it."""

    @property
    def uri(self) -> str:
        """Its URI."""
        ...

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The credentials and endpoint; secret."""
        ...


def folders_above(uri: str) -> Iterator[tuple[str, str]]:
    """Return the folders above a place, nearest first, each with the name that leads from there towards the place.

    The last folder is the bucket or the root of the file system, or the first folder that no repository above it
    searches for tables: its name begins with `_` or `.`.
    """
    scheme, separator, path = uri.rpartition("://")
    *parents, name = path.split("/")
    while any(parents) and not name.startswith(("_", ".")):
        yield f"{scheme}{separator}{'/'.join(parents)}", name
        *parents, name = parents


def repository_above(uri: str, storage_options: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the root of the repository above a table and the name of the table in it; None where there is none."""
    for root, _ in folders_above(uri):
        # Credentials may allow only the folder of the table, and then the folders above it cannot be checked.
        with suppress(StoreError):
            if open_store(root, storage_options).get(REPOSITORY_MARKER) is not None:
                return root, uri.removeprefix(f"{root}/").removesuffix(SUFFIX)
    return None


def refuse_following(do: Change, tag: Tag, place: Place, steps: int = 1) -> None:
    """Refuse to change the tag of a single table if it follows a channel.

    Args:
        do: The change.
        tag: The tag.
        place: The table.
        steps: How many moves the tag would go back.

    Raises:
        ProtectedError: It follows a channel; the message has the call that does it for the channel.
    """
    # An immutable tag never moves, and has a rule of its own.
    if FOLLOWED_COMMIT not in tag.metadata or tag.immutable:
        return
    repository = repository_above(place.uri, place.storage_options)
    # A copy of the table at another place has its tags too, and follows nothing.
    if repository is None:
        return
    root, table = repository
    back = {"tables": [table], "to": f"{tag.name}~{steps}", "reason": "..."}
    call = {
        "move": Call("channels.promote", (tag.name, "main"), on=root),
        "roll back": Call("channels.rollback", (tag.name,), back, on=root),
        "delete": Call("channels.delete", (tag.name,), {"reason": "..."}, on=root),
    }[do]
    because = f"it follows the channel of that name of the repository {root}, and readers would see {table} torn off"
    raise ProtectedError("tag", tag.name, do, because, Remedy("use {} instead; with force the tag changes alone", call))
