"""Create, move, roll back and delete tags, and remember where each one was.

A tag that was moved keeps, in its own metadata, what moved it where: the last moves, oldest first. So going back is one
more move, and the file that is swapped holds the reason for being what it is. A tag that was created as immutable says
where, stays there, and is deleted only by who says so.

A branch that a tag was moved away from may be deleted, and another one made under its name: with each version stands
the id of its branch. pylance moves a tag without a word about it; the metadata stays. Then the last move that was
written down ends somewhere else than the tag points to, which is how it is found out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    Call,
    InvalidInputError,
    ProtectedError,
    RefMovedError,
    RefNotFoundError,
    Remedy,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.format.names import check_tag_name
from lance_dagster.history.ancestry import RecordedVersion
from lance_dagster.history.commit import WRITER, committer, writer_name
from lance_dagster.history.refs.branch_operations import refuse_reserved_keys
from lance_dagster.history.refs.protection import refuse_protected_tag
from lance_dagster.history.refs.ref_store import IMMUTABLE, READY, RESERVED_PREFIX, Refs, Tag, with_metadata
from lance_dagster.history.versions import State, Versions

MOVES = "lance_dagster.moves"
SOMEBODY = "another program"
_KEPT_MOVES = 20
_MOST_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TagMove:
    """One move of a tag: from where, None when it was created, to where, when and by whom.

    `metadata` is what was said about the move. `steps_back` is how far a roll-back went, 0 for any other move.
    `before_id` and `after_id` are the ids of the branches, empty where they are not known.
    """

    before: str | None
    after: str
    moved_at: pendulum.DateTime | None = None
    moved_by: str = SOMEBODY
    metadata: Mapping[str, str] = field(default_factory=dict)
    steps_back: int = 0
    before_id: str = ""
    after_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTarget:
    """What a tag shall name, and what is said about the move."""

    state: State
    metadata: Mapping[str, str]
    steps_back: int = 0


def create_tag(name: str, target: TagTarget, refs: Refs, versions: Versions, *, immutable: bool) -> Tag:
    """Name a version.

    Raises:
        InvalidRefNameError: The name breaks a rule.
        InvalidInputError: A key of the metadata is one of this package's.
        AlreadyExistsError: A tag or a branch has the name.
        ProtectedError: The name is protected, and the version on a branch that is not.
        RefNotFoundError: The branch of the version was deleted meanwhile.
    """
    check_tag_name(name)
    refuse_reserved_keys(target.metadata)
    if refs.branch(name) is not None:
        raise AlreadyExistsError(f"{name!r} is a branch of {refs.store.uri}; a tag of that name would be ambiguous")
    refuse_protected_tag("create", name, refs.store, target.state.branch)
    first = Tag(name=name, branch=target.state.branch, version=target.state.number)
    own = {IMMUTABLE: first.ref} if immutable else {}
    line = _line_of(first.branch, refs)
    wanted = _moved(replace(first, metadata=own), target, line, versions, moves=())
    made = refs.add_tag(wanted)
    try:
        _refuse_gone(wanted.branch, line, refs)
    except RefNotFoundError:
        refs.remove_tag(name)
        raise
    return made


def move_tag(name: str, target: TagTarget, refs: Refs, versions: Versions, *, expected: str | None) -> Tag:
    """Point a tag that exists to another version, by compare-and-swap.

    Raises:
        RefMovedError: It does not point to `expected`, or somebody moved it at the same time.
        InvalidInputError: A key of the metadata is one of this package's.
        ProtectedError: The tag is immutable; or protected, and the version on a branch that is not.
        RefNotFoundError: There is no such tag, or the branch of the version was deleted meanwhile.
    """
    refuse_reserved_keys(target.metadata)
    refuse_protected_tag("move", name, refs.store, target.state.branch)
    before: Tag | None = None

    def moved(current: Tag) -> Tag:
        nonlocal before
        if expected is not None and current.ref != expected:
            raise RefMovedError(name, expected, current.ref)
        if current.ref == str(target.state):
            return current
        refuse_immutable("move", current, str(target.state))
        before = current
        return _moved(current, target, line, versions, moves=_anchored(current, refs))

    line = _line_of(target.state.branch, refs)
    made = refs.change_tag(name, moved)
    try:
        _refuse_gone(made.branch, line, refs)
    except RefNotFoundError:
        if before is not None:
            refs.swap_tag(before, made.ref)
        raise
    return made


def earlier_target(tag: Tag, steps: int) -> RecordedVersion:
    """Return where a tag pointed some moves ago; moves that were rolled back do not count.

    Raises:
        InvalidInputError: So many moves are not known.
    """
    if steps < 1:
        raise InvalidInputError(f"a tag is rolled back by 1 step or more, not by {steps}")
    stack: list[RecordedVersion] = []
    for move in _moves(tag):
        if move.steps_back:
            # It went where the one below was, which may have another name by now.
            stack[-move.steps_back - 1 :] = [RecordedVersion(move.after, move.after_id)]
        elif not stack and move.before is not None:
            stack.append(RecordedVersion(move.before, move.before_id))
        if not stack or stack[-1].ref != move.after:
            stack.append(RecordedVersion(move.after, move.after_id))
    if len(stack) <= steps:
        known = f"only {', '.join(map(str, reversed(stack[:-1])))}" if len(stack) > 1 else "nothing"
        raise InvalidInputError(f"cannot roll tag {tag.name!r} back by {steps}: {known} is known from before {tag.ref}")
    return stack[-1 - steps]


def tag_history(tag: Tag) -> tuple[TagMove, ...]:
    """Return the moves of a tag that are known, newest first; a move by another program is one of them."""
    return tuple(reversed(_moves(tag)))


def recorded_versions(tag: Tag) -> set[RecordedVersion]:
    """Return where a tag is and was, as far as is known."""
    moves = _moves(tag)
    before = {RecordedVersion(move.before, move.before_id) for move in moves if move.before is not None}
    return before | {RecordedVersion(move.after, move.after_id) for move in moves}


def delete_tag(name: str, refs: Refs, *, force: bool) -> None:
    """Delete a tag.

    Raises:
        RefNotFoundError: There is no such tag.
        ProtectedError: It is protected; or immutable, and `force` is False.
    """
    tag = refs.tag(name)
    if tag is None:
        raise refs.tag_not_found(name)
    refuse_protected_tag("delete", name, refs.store)
    if not force:
        refuse_immutable("delete", tag)
    refs.remove_tag(name)


def set_metadata(name: str, updates: Mapping[str, str | None], refs: Refs) -> Tag:
    """Change what a tag says about itself, by compare-and-swap; a value of None takes a key out.

    Raises:
        RefNotFoundError: There is no such tag.
        InvalidInputError: A key is one of this package's.
    """
    refuse_reserved_keys(updates)
    return refs.change_tag(name, lambda current: with_metadata(current, dict(updates)), follow=True)


def refuse_immutable(do: str, tag: Tag, target: str | None = None) -> None:
    """Refuse to touch a tag that was created to stay; to put it back is fine, where another program moved it.

    Raises:
        ProtectedError: It was.
    """
    if tag.immutable and (target is None or target != tag.metadata[IMMUTABLE]):
        because = "it was created to stay where it is"
        delete = Call("delete_tag", (tag.name,), {"force": True})
        remedy = Remedy("give the version another name, or delete the tag with {}", delete)
        raise ProtectedError("tag", tag.name, do, because, remedy)


def _moved(tag: Tag, target: TagTarget, line: str, versions: Versions, *, moves: Sequence[TagMove]) -> Tag:
    state = target.state
    move = TagMove(
        before=tag.ref if moves else None,
        after=str(state),
        moved_at=pendulum.now("UTC"),
        moved_by=committer() or writer_name(WRITER),
        metadata=dict(target.metadata),
        steps_back=target.steps_back,
        before_id=moves[-1].after_id if moves else "",
        after_id=line,
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


def _moves(tag: Tag) -> tuple[TagMove, ...]:
    """Return the moves of a tag, oldest first, up to where it points."""
    known = _recorded(tag)
    if known and known[-1].after == tag.ref:
        return known
    last = known[-1] if known else None
    before, before_id = (last.after, last.after_id) if last else (None, "")
    return (*known, TagMove(before=before, after=tag.ref, moved_at=tag.updated_at, before_id=before_id))


def _anchored(tag: Tag, refs: Refs) -> tuple[TagMove, ...]:
    """Return the moves of a tag, oldest first, the last one with the id of its branch, which is there as yet."""
    *older, last = _moves(tag)
    if not last.after_id:
        branch = None if tag.branch == MAIN else refs.branch(tag.branch)
        last = replace(last, after_id=MAIN if tag.branch == MAIN else branch.id if branch else "")
    return (*older, last)


def _recorded(tag: Tag) -> tuple[TagMove, ...]:
    """Return the moves that were written down; none when that cannot be read, which must not stop the next move."""
    try:
        found = json.loads(tag.metadata.get(MOVES, "[]"))
        return tuple(_decoded(move) for move in found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ()


def _encoded(moves: Sequence[TagMove]) -> str:
    kept = [
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
        for move in moves[-_KEPT_MOVES:]
    ]
    # A tag is read whole wherever it is used, so it stays small whatever is said about each move.
    while len(text := json.dumps(kept)) > _MOST_CHARACTERS and len(kept) > 1:
        kept = kept[1:]
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


def _line_of(branch: str, refs: Refs) -> str:
    """Return the id of a branch that is there to stay.

    Raises:
        RefNotFoundError: It is not.
    """
    if branch == MAIN:
        return MAIN
    found = refs.branch(branch)
    if found is None or found.state != READY:
        raise refs.branch_not_found(branch)
    return found.id


def _refuse_gone(branch: str, line: str, refs: Refs) -> None:
    """Look again once a tag names a version of a branch: whoever deletes the branch may not have seen the tag."""
    if _line_of(branch, refs) != line:
        raise refs.branch_not_found(branch)
