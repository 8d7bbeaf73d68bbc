"""Create, move, roll back and delete tags, and record where each one pointed.

A tag keeps its last moves in its own metadata, oldest first. The move and its record are one compare-and-swap of one
file, so they cannot disagree, and a rollback is one more move. An immutable tag records the version it was created
for, cannot be moved away from it, and is deleted only with `force`. A held tag cannot be changed until it is released.

A recorded version carries the id of its branch. The branch may be deleted later and its name given to a new branch,
whose versions have the same numbers and other content.

pylance moves a tag without recording it and keeps the metadata. Then the last recorded move ends at another version
than the tag names, and the gap counts as one move by another program.

Order of a move: the id of the target branch is read first, then the tag is swapped, then the branch is looked up
again. A deletion of that branch marks it first and then looks for tags, so one of the two sees the other; here the
tag is put back. A collection moves an old version away and then reads the tags again. So the version is looked up
after the swap too, and put back from its copy.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    Call,
    ConflictError,
    InvalidInputError,
    ProtectedError,
    RefMovedError,
    RefNotFoundError,
    Remedy,
    VersionNotFoundError,
    counted,
)
from lance_dagster.format.codec import commit_id
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_flag, parsed_json
from lance_dagster.history.ancestry import RecordedVersion
from lance_dagster.history.commit import WRITER, committer, writer_name
from lance_dagster.history.inventory import newest_expired_copy
from lance_dagster.history.refs.branch_deletion import refuse_renaming
from lance_dagster.history.refs.branch_fence import refuse_dropped
from lance_dagster.history.refs.branch_operations import refuse_reserved_keys
from lance_dagster.history.refs.protection import refuse_protected_tag
from lance_dagster.history.refs.ref_files import IMMUTABLE, READY, RESERVED_PREFIX, Tag, with_metadata
from lance_dagster.history.refs.ref_names import check_tag_name
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.refs.tag_hold import HOLDS, HoldRequest, TagHold, encoded_holds, given_reason, refuse_held
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import put_once, together

MOVES = "lance_dagster.moves"
OTHER_PROGRAM = "another program"
_KEPT_MOVES = 20
_MOST_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TagMove:
    """One move of a tag.

    Attributes:
        before: The version it named before, such as `main@8`; None when the move created the tag.
        after: The version it named afterwards.
        moved_at: When it was moved; None where that is not known.
        moved_by: Who moved it.
        metadata: The metadata given with the move.
        steps_back: How many steps a rollback went back; 0 for any other move.
        before_id: The id of the branch of `before`, empty where it is not known.
        after_id: The id of the branch of `after`, empty where it is not known.
    """

    before: str | None
    after: str
    moved_at: pendulum.DateTime | None = None
    moved_by: str = OTHER_PROGRAM
    metadata: Mapping[str, str] = field(default_factory=dict)
    steps_back: int = 0
    before_id: str = ""
    after_id: str = ""

    def __str__(self) -> str:
        """Return both versions, who moved the tag and when, and the steps of a rollback."""
        moment = "" if self.moved_at is None else f" at {self.moved_at.in_timezone('UTC'):%Y-%m-%d %H:%M:%S}Z"
        back = f", {counted(self.steps_back, 'step')} back" if self.steps_back else ""
        return f"{self.before or 'new'} -> {self.after} by {self.moved_by}{moment}{back}"


def _no_guard(_: Tag) -> None:
    """Refuse nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTarget:
    """The version that a tag is to name, and the metadata of the move.

    `hold`, where set, begins with the move. `guard` is called with the tag
    that a move replaces, unless it names the version already, and may refuse.
    """

    state: State
    metadata: Mapping[str, str]
    steps_back: int = 0
    hold: HoldRequest | None = None
    guard: Callable[[Tag], None] = _no_guard


def create_tag(name: str, target: TagTarget, refs: Refs, versions: Versions, *, immutable: bool) -> Tag:
    """Create a tag for a version.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        InvalidInputError: A key of the metadata is reserved by this package.
        AlreadyExistsError: A tag or a branch has the name.
        ProtectedError: The name is protected, and the branch of the version is not.
        RefNotFoundError: The branch of the version was deleted meanwhile.
        ConflictError: The branch of the version is being reset or renamed.
        VersionNotFoundError: The version was collected meanwhile, and no copy of it is left.
    """
    check_tag_name(name)
    check_flag("immutable", immutable)
    refuse_reserved_keys(target.metadata)
    # A ref expression would be ambiguous. The opposite race, a branch created at the same time, is found when the
    # name is resolved.
    refuse = partial(refuse_protected_tag, "create", name, refs.store, target.state.branch)
    branch, _ = together(refs.store, partial(refs.branches.find, name), refuse)
    if branch is not None:
        raise AlreadyExistsError(f"{name!r} is a branch of {refs.store.uri}; a tag of that name would be ambiguous")
    first = Tag(name=name, branch=target.state.branch, version=target.state.number)
    # The version is stored, so that a move by another program is noticed and can be undone.
    own = {IMMUTABLE: first.ref} if immutable else {}
    branch_id = ready_branch_id(first.branch, refs)
    described = _tag_moved_to(replace(first, metadata=own), target, branch_id, versions, moves=())
    # The tag is written before the branch is checked: a deletion that marks the branch after the check finds the tag.
    tag = refs.tags.add(described)
    try:
        refuse_gone(tag, branch_id, refs)
        _keep_version(target.state, branch_id, versions)
    except (RefNotFoundError, VersionNotFoundError, ConflictError):
        # The tag is removed only as it was made here: another process may have moved it to a version that stays.
        with suppress(RefMovedError):
            refs.tags.remove(tag)
        raise
    return tag


def move_tag(
    name: str,
    target: TagTarget,
    refs: Refs,
    versions: Versions,
    *,
    expected: str | None,
    stored: Tag | None = None,
) -> Tag:
    """Move an existing tag to another version, by compare-and-swap; `stored` as for `Refs.change_tag`.

    Raises:
        RefMovedError: The tag does not name `expected`, or another process moved it at the same time.
        InvalidInputError: A key of the metadata is reserved by this package.
        ProtectedError: The tag is held or immutable; or it is protected, and the branch of the version is not.
        RefNotFoundError: There is no such tag, or the branch of the version was deleted meanwhile.
        ConflictError: The branch of the version is being reset or renamed.
        VersionNotFoundError: The version was collected meanwhile, and no copy of it is left.
    """
    refuse_reserved_keys(target.metadata)
    refuse_protected_tag("move", name, refs.store, target.state.branch)
    before: Tag | None = None

    def moved(current: Tag) -> Tag:
        nonlocal before
        if expected is not None and current.ref != expected:
            raise RefMovedError(name, expected, current.ref)
        # Idempotent: a retry of a move that succeeded records nothing.
        if current.ref == str(target.state):
            return current if target.hold is None else _held(current, target.hold)
        refuse_held("move", name, current.metadata)
        refuse_immutable("move", current, str(target.state))
        target.guard(current)
        before = current
        changed = _tag_moved_to(current, target, branch_id, versions, moves=_with_branch_id(current, refs))
        # The hold is part of the same swap: between a move and a separate hold, a publisher could move the tag on.
        return changed if target.hold is None else _held(changed, target.hold)

    # The id is read before the swap, so that the check afterwards compares with the branch that was meant.
    branch_id = ready_branch_id(target.state.branch, refs)
    tag = refs.tags.change(name, moved, stored=stored)
    try:
        refuse_gone(tag, branch_id, refs)
        _keep_version(target.state, branch_id, versions)
    except (RefNotFoundError, VersionNotFoundError, ConflictError):
        if before is not None:
            # The tag is put back only if it still names our version: another process may have moved it on.
            refs.tags.swap(before, tag.ref)
        raise
    return tag


def hold_tag(name: str, hold: HoldRequest, refs: Refs) -> Tag:
    """Hold a tag where it is, by compare-and-swap.

    Args:
        name: The tag.
        hold: The hold.
        refs: The refs of the table.

    Raises:
        RefNotFoundError: There is no such tag.
        InvalidInputError: The reason is empty or too long.
        ProtectedError: The tag is held already, for another reason.
    """
    # The hold follows a move of the tag: a hold that failed because of a move would leave the tag free for the next
    # move.
    return refs.tags.change(name, lambda current: _held(current, hold), follow=True)


def release_tag(name: str, reason: str, who: str, refs: Refs) -> Tag:
    """Release a held tag, by compare-and-swap; a tag that is not held is left as it is.

    Raises:
        RefNotFoundError: There is no such tag.
        InvalidInputError: The reason is empty or too long.
    """
    release_reason = given_reason(reason, "release")

    def released(current: Tag) -> Tag:
        if current.hold is None:
            return current
        *older, hold = current.holds
        ended = replace(hold, release_reason=release_reason, released_by=_person(who), released_at=pendulum.now("UTC"))
        return with_metadata(current, {HOLDS: encoded_holds([*older, ended])})

    # It follows a move by a program that knows no holds: the hold is released wherever the tag is.
    return refs.tags.change(name, released, follow=True)


def _held(tag: Tag, request: HoldRequest) -> Tag:
    reason, current = given_reason(request.reason, "hold"), tag.hold
    # Idempotent: the retry of a hold that succeeded records nothing.
    if current is not None and current.reason == reason:
        return tag
    refuse_held("hold", tag.name, tag.metadata)
    hold = TagHold(
        version=tag.ref,
        reason=reason,
        held_by=_person(request.who),
        held_at=pendulum.now("UTC"),
        channel=request.channel,
    )
    return with_metadata(tag, {HOLDS: encoded_holds([*tag.holds, hold])})


def _person(who: str) -> str:
    return who or committer() or writer_name(WRITER)


def earlier_target(tag: Tag, steps: int) -> RecordedVersion:
    """Return the version that a tag named some moves ago; moves that were rolled back do not count.

    Raises:
        InvalidInputError: Fewer moves are recorded.
    """
    # A stack of versions as the moves made it: a move pushes, a rollback pops what it undid.
    stack: list[RecordedVersion] = []
    for move in _moves(tag):
        if move.steps_back:
            # A rollback undoes moves: it replaces them by the version it went to, whose branch may be renamed since.
            stack[-move.steps_back - 1 :] = [RecordedVersion(move.after, move.after_id)]
        elif not stack and move.before is not None:
            stack.append(RecordedVersion(move.before, move.before_id))
        if not stack or stack[-1].ref != move.after:
            stack.append(RecordedVersion(move.after, move.after_id))
    if len(stack) <= steps:
        recorded = f"only {', '.join(map(str, reversed(stack[:-1])))}" if len(stack) > 1 else "nothing"
        raise InvalidInputError(
            f"cannot roll tag {tag.name!r} back by {steps}: {recorded} is known from before {tag.ref}"
        )
    return stack[-1 - steps]


def tag_history(tag: Tag) -> tuple[TagMove, ...]:
    """Return the known moves of a tag, newest first; an unrecorded move by another program is one of them."""
    return tuple(reversed(_moves(tag)))


def recorded_versions(tag: Tag) -> set[RecordedVersion]:
    """Return the versions that a tag names or named earlier, as far as they are recorded."""
    moves = _moves(tag)
    before = {RecordedVersion(move.before, move.before_id) for move in moves if move.before is not None}
    return before | {RecordedVersion(move.after, move.after_id) for move in moves}


def delete_tag(
    name: str, refs: Refs, *, force: bool, expected: Tag | None = None, guard: Callable[[Tag], None] = _no_guard
) -> None:
    """Delete a tag; with `expected`, only if it is still as it was read before.

    `guard` is called with the tag that is deleted, and may refuse.

    Raises:
        RefNotFoundError: There is no such tag.
        ProtectedError: The tag is protected or held; or it is immutable, and `force` is False.
        RefMovedError: The tag was moved or changed at the same time; it stays.
    """
    tag = refs.tags.find(name)
    if tag is None:
        raise refs.tags.not_found(name)
    if expected is not None and tag != expected:
        raise RefMovedError(name, expected.ref, tag.ref)
    # A held tag is refused even with `force`: a tag that is deleted and created again would be free to move.
    refuse_held("delete", name, tag.metadata)
    refuse_protected_tag("delete", name, refs.store)
    if not force:
        refuse_immutable("delete", tag)
    guard(tag)
    # The tag is not deleted by its name alone: it may have been held or moved since it was checked.
    refs.tags.remove(tag)


def set_metadata(name: str, updates: Mapping[str, str | None], refs: Refs) -> Tag:
    """Change the metadata of a tag, by compare-and-swap; a value of None removes a key.

    Raises:
        RefNotFoundError: There is no such tag.
        InvalidInputError: A key is reserved by this package.
    """
    refuse_reserved_keys(updates)
    return refs.tags.change(name, lambda current: with_metadata(current, dict(updates)), follow=True)


def refuse_immutable(do: str, tag: Tag, target: str | None = None) -> None:
    """Refuse to change an immutable tag; if another program moved it, moving it back to its own version is allowed.

    Raises:
        ProtectedError: The tag is immutable.
    """
    if tag.immutable and (target is None or target != tag.metadata[IMMUTABLE]):
        because = "it was created to stay where it is"
        delete = Call("tags.delete", (tag.name,), {"force": True})
        remedy = Remedy("give the version another name, or delete the tag with {}", delete)
        raise ProtectedError("tag", tag.name, do, because, remedy)


def _tag_moved_to(tag: Tag, target: TagTarget, branch_id: str, versions: Versions, *, moves: Sequence[TagMove]) -> Tag:
    state = target.state
    move = TagMove(
        before=tag.ref if moves else None,
        after=str(state),
        moved_at=pendulum.now("UTC"),
        moved_by=_person(""),
        metadata=dict(target.metadata),
        steps_back=target.steps_back,
        before_id=moves[-1].after_id if moves else "",
        after_id=branch_id,
    )
    own = {key: value for key, value in tag.metadata.items() if key.startswith(RESERVED_PREFIX)}
    return replace(
        tag,
        branch=state.branch,
        version=state.number,
        updated_at=None,
        metadata={**target.metadata, **own, MOVES: _encoded([*moves, move])},
        manifest_size=versions.manifest_size(state),
    )


def carried(tag: Tag, state: State, branch_id: str, versions: Versions) -> Tag:
    """Return a tag that names `state`, a version with the same rows as the tag's own version; this is no move."""
    *older, newest = _moves(tag)
    metadata = {**tag.metadata, MOVES: _encoded([*older, replace(newest, after=str(state), after_id=branch_id)])}
    # An immutable tag is for the rows that it was created for.
    if metadata.get(IMMUTABLE) == tag.ref:
        metadata[IMMUTABLE] = str(state)
    size = versions.manifest_size(state)
    return replace(tag, branch=state.branch, version=state.number, metadata=metadata, manifest_size=size)


def _moves(tag: Tag) -> tuple[TagMove, ...]:
    """Return the moves of a tag, oldest first, up to the version it names."""
    recorded = _recorded(tag)
    if recorded and recorded[-1].after == tag.ref:
        return recorded
    newest = recorded[-1] if recorded else None
    # The missing move is reconstructed from the last recorded move and the version that the tag names.
    before, before_id = (newest.after, newest.after_id) if newest else (None, "")
    return (*recorded, TagMove(before=before, after=tag.ref, moved_at=tag.updated_at, before_id=before_id))


def _with_branch_id(tag: Tag, refs: Refs) -> tuple[TagMove, ...]:
    """Return the moves of a tag, oldest first; the newest has the id of its branch, which still exists."""
    *older, newest = _moves(tag)
    # The id is recorded while the branch exists: later its name may belong to another branch, whose version of that
    # number would be taken for the version of this branch.
    if not newest.after_id:
        branch = None if tag.branch == MAIN else refs.branches.find(tag.branch)
        newest = replace(newest, after_id=MAIN if tag.branch == MAIN else branch.id if branch else "")
    return (*older, newest)


def _recorded(tag: Tag) -> tuple[TagMove, ...]:
    """Return the recorded moves; none when they cannot be read, so that a damaged record does not block moves."""
    try:
        moves = parsed_json(tag.metadata.get(MOVES, "[]"))
        return tuple(_decoded(move) for move in moves)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ()


def _encoded(moves: Sequence[TagMove]) -> str:
    records = [
        {
            "from": move.before,
            "to": move.after,
            "at": None if move.moved_at is None else move.moved_at.isoformat(),
            "by": move.moved_by,
            **({"about": dict(move.metadata)} if move.metadata else {}),
            **({"back": move.steps_back} if move.steps_back else {}),
            **({"from_id": move.before_id} if move.before_id else {}),
            **({"to_id": move.after_id} if move.after_id else {}),
        }
        # The oldest moves are dropped first: a rollback counts from the newest one.
        for move in moves[-_KEPT_MOVES:]
    ]
    # A tag is read whole at each use, so its record stays small however much metadata each move has.
    while len(text := json.dumps(records)) > _MOST_CHARACTERS and len(records) > 1:
        records = records[1:]
    return text


def _decoded(move: Mapping[str, object]) -> TagMove:
    before, after, moved_at, about = move["from"], move["to"], move["at"], move.get("about", {})
    steps = move.get("back", 0)
    if not isinstance(after, str) or not isinstance(about, dict) or not isinstance(steps, int):
        raise TypeError("not a move")
    return TagMove(
        before=None if before is None else str(before),
        after=after,
        moved_at=None if moved_at is None else pendulum.instance(pendulum.DateTime.fromisoformat(str(moved_at))),
        moved_by=str(move["by"]),
        metadata={str(key): str(value) for key, value in about.items()},
        steps_back=steps,
        before_id=str(move.get("from_id", "")),
        after_id=str(move.get("to_id", "")),
    )


def ready_branch_id(name: str, refs: Refs) -> str:
    """Return the id of a branch that is ready.

    Raises:
        RefNotFoundError: The branch does not exist, or is not ready.
        ConflictError: It is being renamed. The rename looks for tags after its mark, and may have missed a new tag.
    """
    # `main` is never deleted and made again, so its name identifies it.
    if name == MAIN:
        return MAIN
    branch = refs.branches.find(name)
    if branch is None or branch.state != READY:
        raise refs.branch_not_found(name)
    refuse_renaming(branch, "tag", refs)
    return branch.id


def refuse_gone(tag: Tag, branch_id: str, refs: Refs) -> None:
    """Check a version again after a tag was pointed at it: a deletion, reset or rename may not have seen the tag.

    Args:
        tag: The tag as it was written.
        branch_id: What `ready_branch_id` returned before.
        refs: The refs of the table.

    Raises:
        RefNotFoundError: The branch of the version was deleted meanwhile.
        ConflictError: It is being reset or renamed.
    """
    if ready_branch_id(tag.branch, refs) != branch_id:
        raise refs.branch_not_found(tag.branch)
    refuse_dropped(tag.branch, tag.version, refs)


def _keep_version(state: State, branch_id: str, versions: Versions) -> None:
    """Put a version back that a collection took away before it saw the tag; a later collection sees the tag.

    Raises:
        VersionNotFoundError: There is no copy of it.
    """
    latest, path = versions.seen.latest(state.branch), versions.manifest_path(state.branch, state.number)
    # The newest version of a branch never expires, so it is not checked. For an older version, reading one byte tells
    # whether it is there.
    if (latest is not None and latest.id == state.id) or versions.store.get_range(path, 0, 1) is not None:
        return
    data = newest_expired_copy(versions.store, state.branch, branch_id, state.number)
    if data is None or commit_id(data) != state.id:
        raise VersionNotFoundError(f"{state} of {versions.store.uri} was collected before the tag was there")
    put_once(versions.store, path, data)
