"""Resolve ref expressions to commits of a repository.

    main, run/4f2a       the newest commit of a branch
    production           the commit that a channel names
    v1.4                 the commit of a repository tag
    3f9ac2d1             the commit with this id, or the only commit whose id begins so (at least 8 digits)
    name@17              what entry 17 of the log of a branch or channel names
    name@{time}          what a branch or channel named at a time
    branch~2             two commits before, along first parents; `branch^2` is the second parent
    channel~2            the tables as they were before the last two promotions of the channel; promotions that were
                         rolled back do not count (`promotions` defines it, for all tables and for some)

As in a table, a ref is resolved once, and only the commit is passed on.
"""

import re
from bisect import bisect_right
from collections.abc import Collection
from contextlib import suppress

from lance_dagster.errors import InvalidInputError, NotFoundError, RefNotFoundError, RefSyntaxError
from lance_dagster.format.codec import COMMIT_PREFIX
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_string
from lance_dagster.history.ref_grammar import RefExpression, Step, parse
from lance_dagster.history.resolve import parse_time
from lance_dagster.repository.commits.promotions import Promotions
from lance_dagster.repository.commits.ref_log import RefKind, RefLogs
from lance_dagster.repository.commits.repository_tags import read_tag
from lance_dagster.repository.commits.snapshot import RefEntry, RepositoryCommit

COMMIT_ID = re.compile(r"[0-9a-f]{64}")
_KINDS: tuple[RefKind, ...] = ("branch", "channel")


def resolve_commit(logs: RefLogs, ref: str, tables: Collection[str] | None = None) -> RepositoryCommit:
    """Return the commit that an expression names; for `channel~2` the commit may not be stored.

    Args:
        logs: The commits and refs.
        ref: The expression.
        tables: The ids of the tables for which `~` of a channel counts; every other table stays as the channel names
            it. None for all tables. Other expressions are not affected.

    Raises:
        RefNotFoundError: There is no such ref, or its log does not go back so far.
        RefSyntaxError: The expression is malformed.
        InvalidInputError: It is not a string.
    """
    check_string("a ref", ref)
    if COMMIT_ID.fullmatch(ref):
        # A whole id is unique, so no ref has to be read. Where no commit has the id, a ref may have it as its name.
        with suppress(NotFoundError):
            return logs.commit(ref)
    expression = parse(ref)
    kind, entry = find_ref(logs, expression)
    if entry is None:
        return _follow(logs, logs.commit(_by_tag_or_id(logs, expression)), expression.steps, expression)
    if expression.number is not None or expression.time is not None:
        entry = _earlier(logs, kind, expression)
    # `~` follows a branch along parents, and a channel along its promotions, which its readers saw.
    if kind == "channel" and expression.steps:
        step, *following = expression.steps
        if step.sign == "~":
            commit, _ = Promotions(logs, expression.name).earlier(entry, step.count, tables)
            return _follow(logs, commit, tuple(following), expression)
    return _follow(logs, logs.commit(entry.commit), expression.steps, expression)


def find_ref(logs: RefLogs, expression: RefExpression) -> tuple[RefKind, RefEntry | None]:
    """Return whether a name is a branch or a channel, and its newest entry; None for any other name.

    Names are never shared: a channel is not created under the name of a branch, nor the other way round.
    """
    # The order only saves a request: `main` and names with a slash are branches, and most other names are channels.
    order = (
        _KINDS
        if expression.kind == "branch" or expression.name == MAIN or "/" in expression.name
        else tuple(reversed(_KINDS))
    )
    for kind in order:
        entry = logs.newest(kind, expression.name)
        if entry is not None and not entry.deleted:
            return kind, entry
    return "branch", None


def is_ancestor(logs: RefLogs, commit_id: str, descendant_id: str) -> bool:
    """Return whether a commit is `descendant_id` or one of its ancestors; True where the history was collected."""
    ancestor = logs.commit(commit_id)
    reached, waiting = {descendant_id}, [descendant_id]
    while waiting:
        reached_id = waiting.pop()
        if reached_id == commit_id:
            return True
        try:
            commit = logs.commit(reached_id)
        except NotFoundError:
            # The history between them was collected, so the answer is unknown. With True a promotion leaves the channel
            # where it is; with False it could move the channel back.
            return True
        # A commit of the same or a smaller generation cannot contain the commit.
        if commit.generation > ancestor.generation:
            new_parents = set(commit.parents) - reached
            reached |= new_parents
            waiting.extend(new_parents)
    return False


def _earlier(logs: RefLogs, kind: RefKind, expression: RefExpression) -> RefEntry:
    """Return the entry of a number, or the entry that was in force at a time."""
    numbers = sorted(logs.numbers(kind, expression.name))
    if expression.time is None:
        if expression.number not in numbers:
            has = f"its log has entries {numbers[0]} to {numbers[-1]}"
            raise RefNotFoundError(expression.text, [], logs.store.uri, kind, has)
        entry = logs.entry(kind, expression.name, expression.number)
    else:
        moment = parse_time(expression.time)
        if isinstance(moment, str):
            raise RefSyntaxError(expression.text, expression.position + len("@{"), moment)
        # A binary search: times within a log never go back, and each probe is a request.
        later = bisect_right(numbers, moment, key=lambda number: logs.entry(kind, expression.name, number).at)
        if later == 0:
            oldest = logs.entry(kind, expression.name, numbers[0]).at
            raise RefNotFoundError(expression.text, [], logs.store.uri, kind, f"its log begins at {oldest}")
        entry = logs.entry(kind, expression.name, numbers[later - 1])
    if entry.deleted:
        raise RefNotFoundError(expression.text, [], logs.store.uri, kind, f"{expression.name} was deleted then")
    return entry


def _by_tag_or_id(logs: RefLogs, expression: RefExpression) -> str:
    tag = None if expression.kind == "branch" else read_tag(logs, expression.name)
    if tag is not None:
        if expression.suffix:
            raise InvalidInputError(f"{expression.name!r} is a repository tag; write it without {expression.suffix!r}")
        return tag.commit
    # Last, since it may take a listing of all commits.
    is_id = not expression.kind and COMMIT_PREFIX.fullmatch(expression.name)
    ids = (
        [commit_id for commit_id in logs.commit_ids() if commit_id.startswith(expression.name.lower())] if is_id else []
    )
    if len(ids) == 1:
        return ids[0]
    if ids:
        shown = ", ".join(sorted(ids)[:5])
        raise InvalidInputError(f"{len(ids)} commits of {logs.store.uri} begin with {expression.name!r}: {shown}")
    names = [*logs.live("branch"), *logs.live("channel")]
    raise RefNotFoundError(expression.name, names, logs.store.uri, "branch, channel or repository tag")


def _follow(
    logs: RefLogs, commit: RepositoryCommit, steps: tuple[Step, ...], expression: RefExpression
) -> RepositoryCommit:
    for step in steps:
        times, which = (step.count, 1) if step.sign == "~" else (min(step.count, 1), step.count)
        for _ in range(times):
            if len(commit.parents) < which:
                has = f"commit {commit.short_id} has {len(commit.parents)} parents"
                raise RefNotFoundError(expression.text, [], logs.store.uri, "commit", has)
            commit = logs.commit(commit.parents[which - 1])
    return commit
