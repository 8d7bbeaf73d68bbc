"""Resolve the arguments of `table.log` and `table.branches.graph`, and return the versions."""

from lance_dagster.history.ancestry import Ancestry, VersionRef
from lance_dagster.history.context import Ref, TableContext
from lance_dagster.history.log import LogFilter, LogQuery, all_parents, first_parents
from lance_dagster.history.versions import Version


def first_parent_log(
    context: TableContext, ref: Ref, *, after: Ref | None, limit: int | None, only: LogFilter | None
) -> list[Version]:
    """Return a version and its first parents, newest first."""
    return first_parents(*_asked(context, ref, after=after, limit=limit, only=only))


def full_log(
    context: TableContext, ref: Ref, *, after: Ref | None, limit: int | None, only: LogFilter | None
) -> list[tuple[Version, tuple[str, ...]]]:
    """Return a version and all its ancestors, newest first, each with its parents in the graph."""
    found = all_parents(*_asked(context, ref, after=after, limit=limit, only=only))
    return [(version, tuple(map(str, below))) for version, below in found]


def _asked(
    context: TableContext, ref: Ref, *, after: Ref | None, limit: int | None, only: LogFilter | None
) -> tuple[Ancestry, VersionRef, LogQuery]:
    # Only the place of the version is resolved, because the log reads each manifest itself.
    start = context.place(ref)
    query = LogQuery(after=None if after is None else context.at(after), limit=limit, only=only or LogFilter())
    ancestry = Ancestry(context.refs, context.versions)
    if not ancestry.exists(start):
        # Loading raises the error that lists the existing versions.
        context.versions.load(start.branch, start.number)
    return ancestry, start, query
