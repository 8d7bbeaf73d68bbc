"""The Lance tags that follow the channels and release tags of a repository, table by table.

A reader that knows only Lance reads `production` by the tag of that name in each table. These tags are moved after the
channel, one by one, so such a reader may see two tables at different commits for a moment; a reader of the repository
never does. They also keep the versions they name from every clean-up.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    LanceDagsterError,
    MergeConflictError,
    ProtectedError,
    RefMovedError,
)
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.tag_operations import TagTarget, create_tag, move_tag
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.publish.staging import find_version, for_each_table, land, landed_at
from lance_dagster.repository.registry import Registry

COMMIT = "repository/commit"
"""Metadata of a projected tag: the commit of the repository that it follows."""
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


def project(
    registry: Registry,
    commit: RepositoryCommit,
    names: Iterable[str],
    *,
    tag: str | None,
    options: MergeOptions | Mapping[str, MergeOptions] | None,
    immutable: bool = False,
) -> tuple[Lagging, ...]:
    """Bring `main` and a tag of some tables up to a commit; return what could not be brought up.

    Args:
        registry: The tables.
        commit: The commit.
        names: The tables, all of them in the commit.
        tag: The tag to move; None to leave tags alone.
        options: How `main` is merged, for all tables or by table; None to leave `main` alone.
        immutable: Whether a tag that is created is one that never moves.
    """

    def one(name: str) -> list[Lagging]:
        context, at, found = registry.context(name), commit.tables[name], []
        # A failure here changes nothing for readers of the repository, so it is reported and the others go on.
        error: LanceDagsterError | None
        if options is not None:
            try:
                error = land(context, at, options if isinstance(options, MergeOptions) else options[name])
            except LanceDagsterError as failed:
                error = failed
            found += [] if error is None else [Lagging(table=name, ref="main", reason=_said(error))]
        if tag is not None:
            try:
                context, state = find_version(registry, name, at)
                target = TagTarget(state=state, metadata={COMMIT: commit.id})
                _point(context, tag, target, immutable=immutable)
            except LanceDagsterError as failed:
                found.append(Lagging(table=name, ref=tag, reason=_said(failed)))
        return found

    lagging = for_each_table(one, names)
    return tuple(each for name in sorted(lagging) for each in lagging[name])


def names_of(context: TableContext, at: TableVersion) -> frozenset[str]:
    """Return the versions with the content of a version that a commit names, as `branch@number`."""
    landed = landed_at(context, at)
    return frozenset({str(at), *([] if landed is None else [str(landed)])})


def _point(context: TableContext, tag: str, target: TagTarget, *, immutable: bool) -> None:
    for _ in range(_TRIES):
        found = context.refs.tag(tag)
        if found is not None and found.ref == str(target.state):
            return
        # Another process brought the tag to some commit meanwhile; it is looked at again.
        with suppress(RefMovedError, AlreadyExistsError):
            if found is None:
                create_tag(tag, target, context.refs, context.versions, immutable=immutable)
            else:
                move_tag(tag, target, context.refs, context.versions, expected=found.ref)
            return
    raise ConflictError(f"other processes moved tag {tag!r} of {context.uri} each time")


def _said(error: LanceDagsterError) -> str:
    if isinstance(error, MergeConflictError):
        return "commits of another program conflict with it: " + "; ".join(map(str, error.conflicts))
    return error.complaint if isinstance(error, ProtectedError) else str(error)
