"""Tags that keep a version of a branch until `main` has it: `repository-landing-{id}-{random}`.

A publisher puts such a tag before it commits, and drops it when `main` has the version. An attempt that died or lost
its race leaves its tag. Once `main` has the version, the tag keeps nothing, so the deletion of the branch drops it.
"""

from collections.abc import Callable, Iterable

from lance_dagster.errors import ConflictError
from lance_dagster.format.layout import LANDING_PIN, MAIN, TAGS, tag_file
from lance_dagster.format.transaction import MERGE
from lance_dagster.format.validation import parsed_json
from lance_dagster.history.refs.ref_files import RESERVED_PREFIX
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import Store

LANDING = f"{RESERVED_PREFIX}landing"
"""Metadata of such a tag: JSON with the message, the properties and the number that the version gets on `main`."""


def merged_as(versions: Versions, version: str, number: int, *, fresh: bool = False) -> State | None:
    """Return a version of `main` by its number if it is the merge of a version, such as `run/4f2a@2`.

    Args:
        versions: The versions of the table.
        version: The version that was merged.
        number: The number on `main`.
        fresh: Ask the store even for a version that this process has read: another table may have its place since.
    """
    merge = versions.find(MAIN, number, MAIN, fresh=fresh)
    # The number alone proves nothing: another program may have committed it. The transaction of a merge names what was
    # merged. The version was staged on `main@{number - 1}`, so its merge that got the next number was a fast-forward.
    named = None if merge is None or merge.transaction is None else merge.transaction.properties.get(MERGE)
    return merge if named == version else None


def drop_tags(names: Iterable[str], store: Store) -> None:
    """Delete tags whose versions are on `main`, or will not be committed.

    No condition is needed: a random name is never used again.
    """
    store.delete_many([tag_file(name) for name in names])
    # The branch of the versions is deleted next: a power cut must not bring back a tag without its branch.
    store.sync_folder(TAGS)


def without_landed_tags(branch: str, delete: Callable[[], None], refs: Refs, versions: Versions) -> None:
    """Delete a branch; where landing tags refer to it whose versions `main` has, delete these first.

    Raises:
        ConflictError: Something else refers to it.
    """
    try:
        delete()
    except ConflictError:
        tags = (refs.tags.find(name) for name in refs.tags.names(LANDING_PIN))
        landed = [
            tag.name
            for tag in tags
            if tag is not None
            and tag.branch == branch
            and LANDING in tag.metadata
            and merged_as(versions, tag.ref, parsed_json(tag.metadata[LANDING])["lands"]) is not None
        ]
        if not landed:
            raise
        drop_tags(landed, refs.store)
        delete()
