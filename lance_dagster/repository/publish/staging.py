"""Prepare the next version of a table on a branch that readers of the repository do not use.

A publication of many tables merges each one into a branch of its own, `published/{digest}`, which is forked from the
`main` of the table. Nothing is visible while the next table is merged, and nothing has to be undone when one of
them is refused. The branch keeps the version alive as long as a commit of the repository names it.

The name of the branch is a digest of the merged versions, of the version they are merged into, and of the message and
properties. A publication that was killed finds its branch again and continues; two publications of the same versions
with the same message and properties share it. `main` takes message and properties from there, whoever brings it up.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import TypeVar

import pendulum

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    MergeConflictError,
    Reason,
    RefMovedError,
    RefNotFoundError,
    Remedy,
    VersionNotFoundError,
)
from lance_dagster.format.layout import BRANCH_PIN, MAIN, PIN, PUBLISHED
from lance_dagster.format.transaction import COMMITTER, MERGE
from lance_dagster.history.context import TableContext
from lance_dagster.history.merge_base import version_that_merged
from lance_dagster.history.refs.branch_operations import create_branch, delete_branch
from lance_dagster.history.refs.ref_files import RESERVED_PREFIX, Branch
from lance_dagster.history.refs.tag_operations import TagTarget, create_tag
from lance_dagster.history.versions import State
from lance_dagster.merge.gather_input import lineage_at
from lance_dagster.merge.merge_commit import FAST_FORWARD, MERGE_COMMIT, MergeOptions, merge
from lance_dagster.merge.rules.strategy import Conflict, Strategy
from lance_dagster.repository.commits.snapshot import TableVersion
from lance_dagster.repository.registry import Registry

NEVER = 0
"""Stands for the number of a version that cannot land on `main` as it is."""
REUSED_FOR = timedelta(hours=12)
"""How long a branch or tag without a commit is used again: half of the time after which a collection deletes it."""
# 64 bits of a digest: two merges of one table do not get the same name by chance.
_DIGITS = 16
# A table waits for its requests most of the time, so more threads than processors are of use.
_WORKERS = 8
_PINS = 5
_STAGINGS = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The change of one table in a publication.

    `sources` are the versions to merge; without any, `main` is taken as it is. `options` has strategy, message and
    properties, which the version on `main` gets too. With `exact`, the change is refused when `main` has something that
    a source does not contain.
    """

    context: TableContext
    table_id: str
    sources: tuple[State, ...]
    options: MergeOptions
    exact: bool = False

    @classmethod
    def of(
        cls,
        registry: Registry,
        name: str,
        dest: TableVersion | None,
        *,
        sources: tuple[State, ...] = (),
        options: MergeOptions,
        exact: bool = False,
    ) -> "TableChange":
        """Return the change of a table by its name, which is registered now if no commit names it yet."""
        table_id = registry.register(name) if dest is None else dest.id
        return cls(context=registry.context(name), table_id=table_id, sources=sources, options=options, exact=exact)


def stage_merge(change: TableChange, dest: TableVersion | None) -> TableVersion | None:
    """Merge versions of a table into a new branch, and return the version for a commit; None when nothing changes.

    Commits that other programs made on `main` become part of the result, since a reader of `main` has them already.

    Args:
        change: The table, and the versions to merge.
        dest: The version that the repository names now, None for a table that it does not name.

    Raises:
        ConflictError: They have to be published as they are, and `main` cannot follow the version that the repository
            names, so no version contains both.
        MergeConflictError: The versions cannot be merged.
        RefMovedError: They have to be published as they are, and `main` has something that they do not contain.
    """
    context = change.context
    # `main` is brought up first, so that the branches of all commits are forked from `main` and not from each other.
    # Where commits of another program prevent that, the merge is based on the version that the repository names.
    refused = None if dest is None else land(context, dest, change.options.strategy)
    if refused is not None and change.exact:
        raise refused
    onto = MAIN if dest is None or refused is None else dest.branch
    head = context.head(onto)
    new, dest_lineage = [], lineage_at(context, head)
    for source in (_with_branch(context, source) for source in change.sources):
        lineage = lineage_at(context, source)
        # Sources that the newest version contains are left out: a repeated call finds what an earlier one published.
        if version_that_merged(lineage, dest_lineage, context.versions) is not None:
            continue
        if change.exact and not lineage.has_all_of(dest_lineage):
            raise RefMovedError(onto, f"a version that {source} contains", str(head))
        new.append(source)
    if new:
        return _staged(change, new, head)
    # Another program merged the versions into `main`, or they were published before.
    if dest is not None and (dest.commit_id == head.id or _is_named(context, dest, head)):
        return None
    return capture(context, change.table_id, head)


def _with_branch(context: TableContext, state: State) -> State:
    """Return a version with its branch, so that later checks of what it contains do not read the branch again."""
    if state.of is not None or state.branch == MAIN:
        return state
    return replace(state, of=context.refs.branch(state.branch))


def capture(context: TableContext, table_id: str, head: State) -> TableVersion:
    """Return the entry of a commit for a version of any branch; from now on a tag keeps the version."""
    # Before any commit names the version: a clean-up of the table must not delete it in between.
    _pin(context, head)
    lands = head.number if head.branch == MAIN else NEVER
    return TableVersion(id=table_id, branch=head.branch, version=head.number, commit_id=head.id, lands=lands)


def stage_change(change: TableChange, dest: TableVersion, do: Callable[[str], object], key: str) -> TableVersion | None:
    """Change a copy of a table's newest version, and return the version for a commit; None when nothing changed.

    Args:
        change: The table.
        dest: The version that the repository names now.
        do: Makes the change on the given branch, as one version. It is not called when that version exists.
        key: Identifies the change, so that it is found again after a crash.
    """
    context = change.context
    onto = MAIN if land(context, dest, change.options.strategy) is None else dest.branch
    head = context.head(onto)
    branch = _staging_branch(context, head, [key, *_recorded(change.options)])
    # A branch with a version of its own has the change: an earlier attempt made it and died before its commit.
    if context.head(branch.name).number == branch.first:
        do(branch.name)
    made = context.head(branch.name)
    return None if made.number == branch.first else _named(change.table_id, made, head)


def land(context: TableContext, at: TableVersion, strategy: Strategy) -> ConflictError | None:
    """Bring the `main` of a table up to a version that a commit names; return the reason if it cannot be merged."""
    if at.branch == MAIN:
        # Pinned when it was captured. A tag that a person or another program deleted since comes back by a repair.
        _pin(context, load(context, at))
        return None
    if landed_at(context, at) is not None:
        return None
    # A version that this process has just made is not read again; the merge fails where its branch is gone.
    staged = context.versions.known(at.commit_id) or _on_its_branch(context, at)
    options = MergeOptions(strategy=strategy, properties=_own_properties(staged))
    try:
        try:
            # Tried first: only a fast-forward gives `main` exactly the content that readers of the repository see.
            made = merge(context, staged, MAIN, replace(options, mode=FAST_FORWARD)).state
            context.versions.cache(MAIN, made)
        except MergeConflictError:
            # Another program committed to `main` meanwhile. The commit of the repository is not changed.
            merge(context, staged, MAIN, replace(options, mode=MERGE_COMMIT))
    except MergeConflictError as error:
        conflicts = "; ".join(map(str, error.conflicts))
        return ConflictError(
            f"main of {context.uri} cannot follow {at}, which a commit of the repository names, because commits of "
            f"another program conflict with it: {conflicts}",
            # Which rows are right, only a person knows; a merge that records the decision ends the conflict.
            remedy=Remedy(
                f"choose the rows that stay with `lance-dagster merge {context.uri} {at} --strategy dest-wins`, which "
                "keeps those of main, or source-wins, which keeps those of the commit; then publish again"
            ),
        )
    return None


def _own_properties(staged: State) -> dict[str, str]:
    """Return the message, author and properties of a staged version, without the records of its merge.

    They say which run published it. Another publication may bring `main` up to it, and must not claim it.
    """
    found = {} if staged.transaction is None else staged.transaction.properties
    return {key: value for key, value in found.items() if key == COMMITTER or not key.startswith(RESERVED_PREFIX)}


def landed_at(context: TableContext, at: TableVersion, *, fresh: bool = False) -> State | None:
    """Return the version of `main` that has exactly the content of a version; None where there is none.

    Args:
        context: The table.
        at: The version.
        fresh: Ask the store even for a version that this process has read: another table may have its place since.
    """
    if at.lands == NEVER:
        return None
    found = context.versions.find(MAIN, at.lands, MAIN, fresh=fresh)
    if found is None or at.branch == MAIN:
        return found
    # The number alone proves nothing: another program may have committed it. The transaction of a merge names what was
    # merged. The version was staged on `main@{lands - 1}`, so its merge that got the next number was a fast-forward.
    named = found.transaction.properties.get(MERGE) if found.transaction is not None else None
    return found if named == str(at) else None


def load(context: TableContext, at: TableVersion, *, fresh: bool = False) -> State:
    """Read the version that a commit names, or the one on `main` that has its content.

    The arguments are those of `landed_at`.

    Raises:
        VersionNotFoundError: It is gone, or was replaced by another one.
    """
    # `main` is tried first: its manifests name files by paths relative to the table, so they can be read after the
    # table was moved. Manifests of a branch hold the former URI of the table.
    landed = landed_at(context, at, fresh=fresh)
    if landed is not None and (at.branch != MAIN or landed.id == at.commit_id):
        return landed
    return _on_its_branch(context, at)


def find_version(registry: Registry, name: str, at: TableVersion, *, fresh: bool = False) -> tuple[TableContext, State]:
    """Read the version that a commit names, also of a table that was renamed since.

    `fresh` is that of `landed_at`.

    Raises:
        VersionNotFoundError: It is gone, or another one has its place.
    """
    context = registry.context(name)
    try:
        return context, load(context, at, fresh=fresh)
    except VersionNotFoundError:
        # Looked up only now, so that a table that was not moved costs no request. Another table at the former place
        # cannot answer by mistake, because commit ids and digests are compared.
        moved = registry.name_of(at.id)
        if moved is None or moved == name:
            raise
        context = registry.context(moved)
        return context, load(context, at)


def _on_its_branch(context: TableContext, at: TableVersion) -> State:
    found = context.versions.find(at.branch, at.version)
    if found is not None and found.id != at.commit_id:
        # Another process may have made the table again, and this one has cached the versions of the former table.
        context.versions.forget()
        found = context.versions.find(at.branch, at.version)
    # Where the table was created again, another version has the same branch and number; its commit id differs.
    if found is not None and found.id == at.commit_id:
        return found
    what = "is gone" if found is None else "was replaced by another one"
    error = f"{at} of {context.uri}, which a commit of the repository names, {what}"
    raise VersionNotFoundError(f"{error}; `status` says whether another program made the table again")


def for_each_table(work: Callable[[str], T], names: Iterable[str], refusal: str = "") -> dict[str, T]:
    """Do something for every table, a few at a time, and return the results; `refusal` begins the error.

    Raises:
        MergeConflictError: Some tables cannot be merged; it has the conflicts of all of them.
    """
    conflicts: list[Reason] = []

    def tried(name: str) -> tuple[str, T | None]:
        try:
            return name, work(name)
        except MergeConflictError as error:
            conflicts.extend(_named_conflicts(name, error.conflicts))
            return name, None

    with ThreadPoolExecutor(_WORKERS) as pool:
        found = dict(pool.map(tried, names))
    # Raised after all tables were tried: with one conflict at a time, a caller would have to publish once for each.
    if conflicts:
        raise MergeConflictError(refusal, sorted(conflicts, key=lambda conflict: conflict.unit))
    return found  # type: ignore[return-value]  # None only where there was a conflict


def _staged(change: TableChange, sources: Sequence[State], head: State) -> TableVersion:
    for left in reversed(range(_STAGINGS)):
        try:
            merged = _merged(change, sources, head)
            break
        except MergeConflictError:
            raise
        except (RefNotFoundError, ConflictError):
            # Such a publication deleted the branch while this one was using it; on a new branch, this one finds the
            # same conflicts.
            if not left:
                raise
    # The newest one has all sources: for a source that is contained already, `merge` returns an older version.
    newest = max(merged, key=lambda state: state.number)
    change.context.versions.cache("", newest)
    return _named(change.table_id, newest, head)


def _merged(change: TableChange, sources: Sequence[State], head: State) -> list[State]:
    context = change.context
    # The strategy is part of the name: a version that was staged with another strategy has other rows.
    strategy = json.dumps(change.options.strategy, sort_keys=True)
    merged = [*(source.id for source in sources), strategy, *_recorded(change.options)]
    name = _staging_branch(context, head, merged).name
    try:
        # A merge that an earlier attempt made is found, and not repeated.
        return [merge(context, source, name, change.options).state for source in sources]
    except MergeConflictError:
        # No publication needs the branch: another one that shares it merges the same versions and is refused too, and
        # may delete it at this moment.
        with suppress(RefNotFoundError, ConflictError):
            delete_branch(name, context.refs, context.versions)
        raise


def _named(table_id: str, made: State, head: State) -> TableVersion:
    # A version that was not made on top of `main` can get there only by a merge of rows, which has other content.
    lands = head.number + 1 if head.branch == MAIN else NEVER
    return TableVersion(id=table_id, branch=made.branch, version=made.number, commit_id=made.id, lands=lands)


def _is_named(context: TableContext, dest: TableVersion, head: State) -> bool:
    landed = landed_at(context, dest)
    return landed is not None and landed.id == head.id


def _pin(context: TableContext, head: State) -> None:
    """Keep a version, and with it its branch, by a tag that is young.

    Raises:
        ConflictError: Other processes changed the tag each time.
    """
    # The deletion of a run branch ignores tags that keep versions of `main`, but not the others.
    name = f"{PIN}{head.number}" if head.branch == MAIN else f"{BRANCH_PIN}{head.id[:_DIGITS]}"
    for _ in range(_PINS):
        found = context.refs.tag(name)
        if found is None:
            # Another process may create the same tag at this moment; then it is read again.
            with suppress(AlreadyExistsError):
                create_tag(name, TagTarget(state=head, metadata={}), context.refs, context.versions, immutable=True)
                return
        elif found.updated_at is not None and abs(_age(found.updated_at)) < REUSED_FOR:
            return
        else:
            # A collection that read the old tag deletes exactly that one, so a renewed tag stays; and where the
            # collection was faster, the tag is created again.
            with suppress(RefMovedError, RefNotFoundError):
                context.refs.change_tag(name, lambda tag: replace(tag, updated_at=pendulum.now("UTC")))
                return
    raise ConflictError(f"other processes changed tag {name!r} of {context.uri} each of {_PINS} times; try again")


def _age(moment: pendulum.DateTime) -> timedelta:
    return pendulum.now("UTC") - moment


def _recorded(options: MergeOptions) -> tuple[str, str]:
    # Part of the name too: what was staged by a publisher that died has the id of its run, and not of the one that
    # publishes the same versions now.
    return options.message or "", json.dumps(dict(options.properties), sort_keys=True)


def _staging_branch(context: TableContext, head: State, merged: Sequence[str]) -> Branch:
    """Return the branch for a merge: the same for each attempt, as long as the attempts are close in time.

    A collection deletes branches that no commit names once they are old. One that is about to be deleted is not used
    again, so that no commit comes to name it.
    """
    # Each attempt has another digest, so branches that are too old are passed over.
    for attempt in count():
        digest = hashlib.sha256(" ".join([head.id, *merged, str(attempt)]).encode()).hexdigest()[:_DIGITS]
        name = f"{PUBLISHED}{digest}"
        found = create_branch(name, head, context.refs, context.versions, exist_ok=True, metadata={})
        # A time far in the future is that of a clock that is ahead, and says nothing about the age.
        if abs(_age(found.created_at)) < REUSED_FOR:
            return found
    raise RuntimeError("count never ends")


def _named_conflicts(name: str, conflicts: Iterable[Reason]) -> list[Reason]:
    return [
        replace(conflict, unit=f"{name}: {conflict.unit}") if isinstance(conflict, Conflict) else conflict
        for conflict in conflicts
    ]
