"""The Lance tags that follow the channels and repository tags of a repository, table by table.

A reader that knows only Lance reads `production` by the tag of this name in each table. The tags are moved after the
channel, one after the other, so such a reader may see two tables at different commits for a moment; a reader of the
repository never does. The tags also protect the versions that they name from every clean-up.

`repository.tags` makes repository tags, which the tables follow with immutable tags of their own.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    LanceDagsterError,
    ProtectedError,
    RefMovedError,
)
from lance_dagster.format.layout import MAIN, SUFFIX, TAGS, tag_file
from lance_dagster.history.context import Properties, TableContext
from lance_dagster.history.refs.followed_channel import FOLLOWED_COMMIT
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.refs.tag_hold import HoldRequest
from lance_dagster.history.refs.tag_operations import (
    TagTarget,
    create_tag,
    hold_tag,
    move_tag,
    release_tag,
    set_metadata,
)
from lance_dagster.merge.rules.strategy import Strategy
from lance_dagster.repository.commits.repository_tags import RepositoryTag, drop_tag, list_tags, put_tag
from lance_dagster.repository.commits.snapshot import ChannelHold, RepositoryCommit, TableVersion
from lance_dagster.repository.publish.pins import pin, pin_newest
from lance_dagster.repository.publish.staging import (
    Staging,
    drop_merge_branch,
    find_version,
    for_each_table,
    land,
    landed_at,
)
from lance_dagster.repository.registry import Registry, RepositoryContext

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagging:
    """A branch or tag of a table that could not be brought up to a commit of the repository, and why."""

    table: str
    ref: str
    reason: str

    def __str__(self) -> str:
        """Return the table, the ref and the reason."""
        return f"{self.ref} of {self.table}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingTag:
    """The tag of each table that follows a channel or a repository tag.

    Attributes:
        name: The name of the tag, and of the channel or repository tag.
        immutable: Whether a tag is created as immutable.
        hold: The hold of the channel, which the tags get too: another program that promotes a single table is refused.
        past: The reason of the hold that the channel had before its last move.
    """

    name: str
    immutable: bool = False
    hold: ChannelHold | None = None
    past: str = ""


def land_tables(
    staging: Staging, commit: RepositoryCommit, names: Iterable[str], *, strategy: Strategy = None
) -> tuple[Lagging, ...]:
    """Bring `main` of some tables up to a commit; return the tables that could not be brought up.

    Args:
        staging: The versions that this process has staged.
        commit: The commit.
        names: The tables, all of them in the commit.
        strategy: Resolves conflicts with commits that another program made on `main`.
    """

    def bring_up(name: str) -> Lagging | None:
        context, at = staging.registry.context(name), commit.tables[name]
        # Readers of the repository do not depend on this step, so a failure is reported and the other tables continue.
        error: LanceDagsterError | None
        try:
            error = land(context, at, strategy, staging.landings.get(at))
        except LanceDagsterError as failed:
            error = failed
        return None if error is None else Lagging(table=name, ref=MAIN, reason=_reason(error))

    lagging = for_each_table(bring_up, names)
    return tuple(table for name in sorted(lagging) if (table := lagging[name]) is not None)


def settle_tables(staging: Staging, commit: RepositoryCommit, names: Iterable[str]) -> None:
    """Pin the versions of `main` that have landed, and drop their landing tags and merge branches.

    Errors are ignored: the end of the branch, a repeated publication or a collection drops what remains.
    """
    registry = staging.registry
    tables = {name: commit.tables[name] for name in names if commit.tables[name].pin}

    def keep(name: str) -> bool:
        context, at = registry.context(name), tables[name]
        with suppress(LanceDagsterError):
            landed = landed_at(context, at)
            if landed is not None:
                # Another process may have brought it to `main` long ago.
                (pin_newest if at in staging.landings else pin)(context, landed)
                return True
        return False

    is_kept = for_each_table(keep, tables)
    landed = {name: at for name, at in tables.items() if is_kept[name]}
    if landed:
        with suppress(LanceDagsterError):
            registry.store.delete_many([f"{name}{SUFFIX}/{tag_file(at.pin)}" for name, at in landed.items()])

    def drop(name: str) -> None:
        context = registry.context(name)
        with suppress(LanceDagsterError):
            # Otherwise a power cut could bring the tag back after its branch was deleted.
            context.store.sync_folder(TAGS)
            drop_merge_branch(context, landed[name])

    for_each_table(drop, landed)


def project(
    registry: Registry, commit: RepositoryCommit, names: Iterable[str], tag: FollowingTag
) -> tuple[Lagging, ...]:
    """Move a tag of some tables to a commit, all of them in the commit; return the tables whose tag could not move.

    Call this after `land_tables`: the tag of a version that has landed names the version on `main`, so that the branch
    of the version may be deleted.
    """

    def move(name: str) -> Lagging | None:
        # Readers of the repository do not depend on this step, so a failure is reported and the other tables continue.
        try:
            context, state = find_version(registry, name, commit.tables[name])
            hold = None if tag.hold is None else HoldRequest(tag.hold.reason, tag.hold.held_by, tag.name)
            _point(context, tag, TagTarget(state=state, metadata={FOLLOWED_COMMIT: commit.id}, hold=hold))
        except LanceDagsterError as error:
            return Lagging(table=name, ref=tag.name, reason=_reason(error))
        return None

    lagging = for_each_table(move, names)
    return tuple(table for name in sorted(lagging) if (table := lagging[name]) is not None)


def names_of(context: TableContext, at: TableVersion) -> frozenset[str]:
    """Return the versions with the content of a version that a commit names, as `branch@number`."""
    landed = landed_at(context, at)
    return frozenset({str(at), *([] if landed is None else [str(landed)])})


def _point(context: TableContext, tag: FollowingTag, target: TagTarget) -> None:
    remembered = context.refs.tags.remembered(tag.name)
    for attempt in range(_TRIES):
        # Read at each try, because another process may have moved the tag. A tag that was read before is moved only
        # where its file is still the same.
        is_remembered = not attempt and remembered is not None and remembered.ref != str(target.state)
        table_tag = remembered if is_remembered else context.refs.tags.stored(tag.name)
        moves = table_tag is not None and table_tag.ref != str(target.state)
        # These errors say that another process changed the tag since it was read; the next try looks again.
        with suppress(RefMovedError, AlreadyExistsError):
            if table_tag is None:
                _create(context, tag, target)
            elif table_tag.hold is not None and (
                _is_over(table_tag, tag) or (moves and _is_of_channel(table_tag, tag))
            ):
                # A held tag cannot be moved, so it is released here and moved by the next try. A tag that a person
                # holds stays, and the error of the move is reported.
                release_tag(tag.name, "the channel moved on", "", context.refs)
                continue
            elif moves:
                move_tag(tag.name, target, context.refs, context.versions, expected=table_tag.ref, stored=table_tag)
            else:
                _mark_following(table_tag, target, context)
            if target.hold is not None and (table_tag is None or table_tag.hold is None):
                # A new tag is created without a hold, and a tag that named the version already was not moved. Where
                # `move_tag` has set the hold, this call changes nothing.
                hold_tag(tag.name, target.hold, context.refs)
            return
    raise ConflictError(
        f"other processes moved tag {tag.name!r} of {context.uri} during each of {_TRIES} attempts; try again"
    )


def _is_of_channel(table_tag: Tag, tag: FollowingTag) -> bool:
    """Return whether the hold of a tag follows a hold of its channel."""
    if table_tag.hold is None:
        return False
    # A hold that the channel adopted from the tag, or that an earlier version put, has only the reason of the channel.
    reasons = {tag.past, "" if tag.hold is None else tag.hold.reason}
    return table_tag.hold.channel == tag.name or table_tag.hold.reason in reasons


def _is_over(table_tag: Tag, tag: FollowingTag) -> bool:
    """Return whether a tag is held for a hold of its channel that has ended."""
    present = "" if tag.hold is None else tag.hold.reason
    return _is_of_channel(table_tag, tag) and table_tag.hold is not None and table_tag.hold.reason != present


def _mark_following(tag: Tag, target: TagTarget, context: TableContext) -> None:
    """Set the metadata of a tag that follows a channel from now on, and named the version before the channel did."""
    if FOLLOWED_COMMIT not in tag.metadata and not tag.immutable:
        set_metadata(tag.name, target.metadata, context.refs)


def _create(context: TableContext, tag: FollowingTag, target: TagTarget) -> None:
    try:
        create_tag(tag.name, target, context.refs, context.versions, immutable=tag.immutable)
    except AlreadyExistsError as error:
        # Where another process has just made the tag, the next try finds it. A branch of the name would stay.
        if context.refs.branches.find(tag.name) is not None:
            raise ConflictError(f"{error}; rename or delete the branch") from error
        raise


def _reason(error: LanceDagsterError) -> str:
    return error.complaint if isinstance(error, ProtectedError) else str(error)


@dataclass(frozen=True, slots=True)
class RepositoryTags:
    """The repository tags of one repository."""

    _repository: RepositoryContext

    def list(self) -> dict[str, RepositoryTag]:
        """Read all repository tags, by name."""
        return list_tags(self._repository.logs)

    def create(
        self, name: str, at: str = "main", *, message: str = "", properties: Properties = None
    ) -> tuple[RepositoryTag, tuple[Lagging, ...]]:
        """Name a commit permanently, in the repository and by an immutable tag in each of its tables.

        Args:
            name: The new tag.
            at: The commit, as a ref expression.
            message: What the commit stands for.
            properties: Kept with the tag of the repository.

        Raises:
            AlreadyExistsError: The tag names another commit, or a branch or channel has the name.
        """
        commit = self._repository.resolve_stored(at)
        # The tag of the repository comes first and is one put: of two processes that want different commits, one is
        # refused here, before it touches the tables.
        tag = put_tag(self._repository.logs, name, commit.id, message=message, properties=properties or {})
        following = FollowingTag(name=name, immutable=True)
        return tag, project(self._repository.registry, commit, commit.tables, following)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a repository tag; the tags of the tables stay.

        Raises:
            RefNotFoundError: There is no such tag.
            ProtectedError: `force` is False.
        """
        drop_tag(self._repository.logs, name, force=force)
