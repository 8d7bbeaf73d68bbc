"""Tags of a table that keep the versions which commits of a repository name.

    repository-main-{number}            a version of `main`
    repository-branch-{id}              a version of another branch that stays there
    repository-landing-{id}-{random}    a version of another branch, until `main` has it

Every Lance program keeps what a tag names, whoever cleans the table up or deletes branches. A collection of the
repository deletes the tags that no commit needs.

A commit names an audited version where it was audited: on the branch of a run, or on the preview of a merge. A landing
tag is put before the commit, and dropped when `main` has the version under the number that the commit names. It has
the message and the properties for `main`, so that any process can bring the version to `main` after the publisher died.
Its name is random: each attempt has its own tag, and drops it whatever other attempts do.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    RefMovedError,
    RefNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.format.layout import BRANCH_PIN, LANDING_PIN, MAIN, PIN, tag_file
from lance_dagster.format.transaction import COMMITTER
from lance_dagster.format.validation import parsed_json
from lance_dagster.history.commit import committer
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_fence import dropped_versions
from lance_dagster.history.refs.landing_tags import LANDING
from lance_dagster.history.refs.ref_files import IMMUTABLE, READY, Tag
from lance_dagster.history.refs.tag_operations import TagTarget, create_tag
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.repository.commits.snapshot import TableVersion
from lance_dagster.store import together

REUSED_FOR = timedelta(hours=12)
"""How long a branch or tag without a commit is used again: half of the time after which a collection deletes it."""
# 64 bits of a digest: two versions of one table do not get the same name by chance.
_DIGITS = 16
_RANDOM_DIGITS = 8
_PINS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """How a staged version gets onto the `main` of its table.

    Attributes:
        context: The table.
        source: The version.
        head: The newest version of `main` when the version was staged.
        options: The message and the properties of the version on `main`.
    """

    context: TableContext
    source: State
    head: State
    options: MergeOptions


def pin(context: TableContext, version: State) -> None:
    """Keep a version, and so its branch, by a tag that is young: no collection deletes a young tag.

    Raises:
        ConflictError: Other processes changed the tag each time.
    """
    # The deletion of a run branch ignores tags with the first prefix, and is refused by tags with the second.
    name = f"{PIN}{version.number}" if version.branch == MAIN else f"{BRANCH_PIN}{version.id[:_DIGITS]}"
    for _ in range(_PINS):
        tag = context.refs.tags.find(name)
        if tag is None:
            # Another process may create the same tag at this moment; then it is read again.
            with suppress(AlreadyExistsError):
                create_tag(name, TagTarget(state=version, metadata={}), context.refs, context.versions, immutable=True)
                return
        elif tag.updated_at is not None and age(tag.updated_at) < REUSED_FOR:
            return
        else:
            # A collection deletes a tag only with the content that it read, so a renewed tag stays. Where a collection
            # was faster, the tag is created again.
            with suppress(RefMovedError, RefNotFoundError):
                context.refs.tags.change(name, lambda tag: replace(tag, updated_at=pendulum.now("UTC")))
                return
    raise ConflictError(
        f"other processes changed tag {name!r} of {context.uri} during each of {_PINS} attempts; try again"
    )


def pin_newest(context: TableContext, version: State) -> None:
    """Keep a version of `main` that this process has just committed; one request."""
    # Another process may have created the tag.
    with suppress(AlreadyExistsError):
        context.refs.tags.add(_tag(f"{PIN}{version.number}", version, {}))


def hold_until_landed(landing: Landing, *, is_newest: bool) -> str:
    """Keep a version of a branch by a tag of its own; return the name of the tag.

    Args:
        landing: The version, and the message and properties for `main`.
        is_newest: Whether the version was the newest version of its branch when it was read; then no collection can
            have deleted it since.

    Raises:
        RefNotFoundError: The branch was deleted meanwhile, or is being deleted or renamed.
        VersionNotFoundError: The version was collected meanwhile.
    """
    context, source = landing.context, landing.source
    branch = source.of or context.refs.branches.find(source.branch)
    name = f"{LANDING_PIN}{source.id[:_DIGITS]}-{uuid.uuid4().hex[:_RANDOM_DIGITS]}"
    context.refs.tags.add(_tag(name, source, {LANDING: _recorded(landing)}))
    # A deletion, rename or reset marks the branch first and then lists the tags; here the tag comes first and the mark
    # is read second. So the deletion sees the tag, or this process sees the mark.
    present, is_there = together(
        context.store,
        lambda: context.refs.branches.find(source.branch),
        lambda: is_newest or context.versions.find(source.branch, source.number, fresh=True) is not None,
    )
    if branch is None or present is None or (present.id, present.state) != (branch.id, READY):
        problem: Exception = context.refs.branch_not_found(source.branch)
    elif context.refs.branches.renamed_to(present) is not None or source.number in (dropped_versions(present) or ()):
        problem = ConflictError(f"branch {source.branch!r} of {context.uri} is being renamed or reset; publish again")
    elif not is_there:
        problem = VersionNotFoundError(f"{source} of {context.uri} was collected meanwhile")
    else:
        return name
    context.store.delete(tag_file(name))
    raise problem


def recorded_options(context: TableContext, at: TableVersion) -> MergeOptions | None:
    """Return the message and properties for `main` that a landing tag has; None where there is no such tag."""
    tag = context.refs.tags.find(at.pin) if at.pin else None
    if tag is None or LANDING not in tag.metadata:
        return None
    record = parsed_json(tag.metadata[LANDING])
    return MergeOptions(message=record["message"], properties=record["properties"])


def age(moment: pendulum.DateTime) -> timedelta:
    """Return how far a time is from now; a time in the future comes from a clock that is ahead."""
    return abs(pendulum.now("UTC") - moment)


def _tag(name: str, version: State, metadata: Mapping[str, str]) -> Tag:
    ref = f"{version.branch}@{version.number}"
    return Tag(
        name=name,
        branch=version.branch,
        version=version.number,
        metadata={IMMUTABLE: ref, **metadata},
        manifest_size=version.size,
    )


def _recorded(landing: Landing) -> str:
    # The publisher is the committer of the version on `main`, whichever process brings the version there.
    who, options = committer(), landing.options
    properties = {**({} if who is None else {COMMITTER: who}), **options.properties}
    return json.dumps({"message": options.message, "properties": properties, "lands": landing.head.number + 1})
