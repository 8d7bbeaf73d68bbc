"""Prepare the next version of a table for a commit of the repository, and bring it to `main` after the commit.

Nothing is visible before the commit, so nothing has to be undone when a table is refused:

- Where a branch has everything that `main` of its table has, the commit names the version of the branch as it is. A
  tag of its own keeps the version until `main` has it (`pins`).
- Otherwise `main` and the branch are merged on a branch `published/{digest}`, which is forked from `main`, and the
  commit names the result, with such a tag.
- `main` follows by a fast-forward. Then a reader finds the content under the number that the commit names, a tag keeps
  the version of `main`, and the first tag and the branch `published/{digest}` are deleted.

Where another program commits to `main` in between, its commit takes the number. Then the staged version stays on its
branch, with its tag, until no commit names it.

The name of a branch `published/{digest}` is a digest of the merged versions, of the version they are merged into, and
of the message and properties. A publication that was killed finds its branch again and continues; two publications of
the same versions with the same message and properties share it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

from lance_dagster.errors import (
    ConflictError,
    LanceDagsterError,
    MergeConflictError,
    Reason,
    RefMovedError,
    RefNotFoundError,
    Remedy,
    VersionNotFoundError,
)
from lance_dagster.format.layout import MAIN, PUBLISHED
from lance_dagster.format.transaction import COMMITTER
from lance_dagster.history.context import TableContext
from lance_dagster.history.merge_base import version_that_merged
from lance_dagster.history.refs.branch_operations import create_branch, delete_branch
from lance_dagster.history.refs.landing_tags import drop_tags, merged_as
from lance_dagster.history.refs.ref_files import RESERVED_PREFIX, Branch
from lance_dagster.history.versions import State
from lance_dagster.merge.gather_input import lineage_at
from lance_dagster.merge.merge_commit import FAST_FORWARD, MERGE_COMMIT, MergeOptions, merge, refuse_conflicts
from lance_dagster.merge.rules.strategy import Conflict, Strategy
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.publish.pins import (
    REUSED_FOR,
    Landing,
    age,
    hold_until_landed,
    pin,
    recorded_options,
)
from lance_dagster.repository.registry import Registry
from lance_dagster.store import concurrently, together

NEVER = 0
"""Stands for the number of a version that cannot land on `main` as it is."""
# 64 bits of a digest: two merges of one table do not get the same name by chance.
_DIGITS = 16
# A table waits for its requests almost all of the time, so far more threads than processors are of use.
_WORKERS = 64
_STAGINGS = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The change of one table in a publication.

    Attributes:
        context: The table.
        table_id: The identity of the table.
        sources: The versions to merge; empty to commit `main` as it is.
        options: The strategy; and the message and the properties, which the version on `main` gets too.
        exact: Whether the change is refused when `main` has something that a source does not contain. Without it, the
            sources are the newest versions of their branches.
        main: The newest version of `main`, if it was just read.
        landings: Gets each version that is staged.
    """

    context: TableContext
    table_id: str
    sources: tuple[State, ...]
    options: MergeOptions
    exact: bool = False
    main: State | None = None
    landings: dict[TableVersion, Landing] = field(default_factory=dict)

    def version(self, staged: State, head: State) -> TableVersion:
        """Return the entry of a commit for a version that was staged on top of `head`, and put a tag that keeps it."""
        at = TableVersion(
            id=self.table_id, branch=staged.branch, version=staged.number, commit_id=staged.id, lands=head.number + 1
        )
        if head.branch != MAIN:
            # The version could get to `main` only by a merge of rows, which has other content: it stays on its branch.
            return replace(at, lands=NEVER)
        landing = Landing(context=self.context, source=staged, head=head, options=self.options)
        is_newest = not self.exact or self.context.versions.seen.was_head(staged)
        at = replace(at, pin=hold_until_landed(landing, is_newest=is_newest))
        self.landings[at] = landing
        return at


@dataclass(frozen=True, slots=True)
class Staging:
    """The versions that one publication stages.

    Attributes:
        registry: The tables.
        landings: How each version gets onto `main`.
    """

    registry: Registry
    landings: dict[TableVersion, Landing] = field(default_factory=dict)

    def change(
        self,
        name: str,
        dest: TableVersion | None,
        *,
        sources: tuple[State, ...] = (),
        options: MergeOptions,
        exact: bool = False,
    ) -> TableChange:
        """Return the change of a table; a table that no commit names is registered now."""
        return TableChange(
            context=self.registry.context(name),
            table_id=self.registry.register(name) if dest is None else dest.id,
            sources=sources,
            options=options,
            exact=exact,
            landings=self.landings,
        )

    def present(self, name: str, at: TableVersion) -> TableVersion:
        """Return the version on `main` with the content of a version that a commit names, once it has landed there."""
        landed = None if at.branch == MAIN else landed_at(self.registry.context(name), at)
        if landed is None:
            return at
        return TableVersion(id=at.id, branch=MAIN, version=landed.number, commit_id=landed.id, lands=landed.number)

    @contextmanager
    def dropped_if_refused(self) -> Iterator[None]:
        """Drop every staged version when the block raises; use it only where the block commits nothing."""
        is_refused = True
        try:
            yield
            is_refused = False
        finally:
            if is_refused:
                self._drop(list(self.landings))

    def drop_unused(self, commit: RepositoryCommit) -> None:
        """Drop the staged versions that the commit does not name, because an earlier attempt lost its race."""
        used = {*commit.tables.values()}
        self._drop([at for at in self.landings if at not in used])

    def _drop(self, versions: Iterable[TableVersion]) -> None:
        for at in versions:
            landing = self.landings.pop(at)
            # What cannot be dropped is left to a collection.
            with suppress(LanceDagsterError):
                drop_tags([at.pin], landing.context.store)
                drop_merge_branch(landing.context, at)


def stage_merge(change: TableChange, dest: TableVersion | None) -> TableVersion | None:
    """Merge versions of a table into a new branch, and return the version for a commit; None when nothing changes.

    Commits that other programs made on `main` become part of the result, since a reader of `main` has them already.

    Args:
        change: The table, and the versions to merge.
        dest: The version that the repository names now; None for a table that no commit names.

    Raises:
        ConflictError: The change is exact, and `main` cannot follow the version that the repository names, so no
            version contains both.
        MergeConflictError: The versions cannot be merged.
        RefMovedError: The change is exact, and `main` has something that the sources do not contain.
        BasePathRefusedError: The table was moved, and its branches were not relocated.
    """
    context, head = change.context, _landed_head(change, dest)
    sources = _not_contained(change, head)
    if not sources:
        # Another program merged the versions into `main`, or they were published before.
        if dest is not None and (dest.commit_id == head.id or _is_named(context, dest, head)):
            return None
        return capture(context, change.table_id, head)
    if (
        len(sources) == 1
        and MAIN == head.branch != sources[0].branch
        and lineage_at(context, sources[0]).has_all_of(lineage_at(context, head))
    ):
        # The branch names inherited files by the place that the table had. In a lake that was moved as a folder nobody
        # could read the version, before `relocate`.
        for base in sources[0].manifest.base_paths:
            context.versions.bases.check(base.path, base.id)
        return _version_of_branch(change, sources[0], head)
    return _merged_version(change, sources, head)


def _landed_head(change: TableChange, dest: TableVersion | None) -> State:
    """Return the newest version of `main`, after `main` was brought up to the version that the repository names.

    Every branch of a commit is forked from `main` this way, and not from the branch of another commit. Where commits of
    another program conflict with the version that the repository names, that version is returned.

    Raises:
        ConflictError: `main` cannot follow, and the change is exact.
    """
    context, versions = change.context, change.context.versions
    # A change that is exact is refused later where its branches are gone (`hold_until_landed`), and so where another
    # table has the place of this table. The versions that were read are then those of this table.
    head = change.main or versions.head(MAIN, newest=versions.newest_few(MAIN) if change.exact else ())
    landed = None if dest is None else _landed(context, dest)
    if dest is None or landed is not None:
        # Another process may have landed `dest` since `main` was read: the staged version has to contain `dest`.
        return head if landed is None or landed.number <= head.number else context.head(MAIN)
    refused = land(context, dest, change.options.strategy)
    if refused is None:
        return context.head(MAIN)
    if change.exact:
        raise refused
    return context.head(dest.branch)


def _not_contained(change: TableChange, head: State) -> list[State]:
    """Return the sources of a change that a version does not contain.

    Raises:
        RefMovedError: The change is exact, and the version has something that the sources do not contain.
    """
    context = change.context
    sources, dest_lineage = [], lineage_at(context, head)
    for source in (_with_branch(context, source) for source in change.sources):
        lineage = lineage_at(context, source)
        # A repeated call finds that `main` contains the sources which an earlier call published.
        if version_that_merged(lineage, dest_lineage, context.versions) is not None:
            continue
        if change.exact and not lineage.has_all_of(dest_lineage):
            raise RefMovedError(MAIN, f"a version that {source} contains", str(head))
        sources.append(source)
    return sources


def _with_branch(context: TableContext, state: State) -> State:
    """Return a version with its branch, so that the branch is not read again for each look at its lineage."""
    if state.of is not None or state.branch == MAIN:
        return state
    return replace(state, of=context.refs.branches.find(state.branch))


def capture(context: TableContext, table_id: str, head: State) -> TableVersion:
    """Return the entry of a commit for a version of any branch, and keep the version by a tag."""
    # The tag before the commit: a clean-up of the table must not delete the version in between.
    pin(context, head)
    lands = head.number if head.branch == MAIN else NEVER
    return TableVersion(id=table_id, branch=head.branch, version=head.number, commit_id=head.id, lands=lands)


def stage_change(change: TableChange, dest: TableVersion, do: Callable[[str], object], key: str) -> TableVersion | None:
    """Change a copy of a table's newest version, and return the version for a commit; None when nothing changed.

    Args:
        change: The table.
        dest: The version that the repository names now.
        do: Makes the change on a branch, as one version. It is not called when an earlier attempt made the version.
        key: Identifies the change, so that the version of an earlier attempt is found after a crash.
    """
    context = change.context
    is_behind = _landed(context, dest) is None and land(context, dest, change.options.strategy) is not None
    head = context.head(dest.branch if is_behind else MAIN)
    branch = _staging_branch(context, head, [key, *_recorded(change.options)])
    # A branch with a version of its own has the change of an earlier attempt, which died before its commit.
    if context.head(branch.name).number == branch.first:
        do(branch.name)
    staged = context.head(branch.name)
    return None if staged.number == branch.first else change.version(staged, head)


def land(
    context: TableContext, at: TableVersion, strategy: Strategy, landing: Landing | None = None
) -> ConflictError | None:
    """Bring the `main` of a table up to a version that a commit names; return the reason if it cannot be merged.

    Args:
        context: The table.
        at: The version.
        strategy: Resolves conflicts with commits that another program made on `main`.
        landing: How this process staged the version; None for a version of another process or of an earlier call.
    """
    if at.branch == MAIN:
        # `capture` has pinned the version. Where somebody has deleted the tag since, a repair creates it again.
        pin(context, load(context, at))
        return None
    if landing is None and landed_at(context, at) is not None:
        return None
    staged = _on_its_branch(context, at) if landing is None else landing.source
    options = landing.options if landing is not None else recorded_options(context, at)
    options = replace(options or MergeOptions(properties=_own_properties(staged)), strategy=None)
    head = None if landing is None else landing.head
    try:
        try:
            # Tried first: only a fast-forward gives `main` exactly the content that readers of the repository see.
            landed = merge(context, staged, MAIN, replace(options, mode=FAST_FORWARD), head=head).state
            context.versions.cached.put(MAIN, landed)
        except MergeConflictError:
            # Another program committed to `main` meanwhile. The commit of the repository is not changed.
            merge(context, staged, MAIN, replace(options, mode=MERGE_COMMIT, strategy=strategy))
    except MergeConflictError as error:
        conflicts = "; ".join(map(str, error.conflicts))
        return ConflictError(
            f"main of {context.uri} cannot follow {at}, which a commit of the repository names, because commits of "
            f"another program conflict with it: {conflicts}",
            # Which rows are right, only a person knows; a merge that records the decision ends the conflict.
            remedy=Remedy(
                f"choose the rows that stay with `lance-dagster table merge {context.uri} {at} --strategy dest-wins`, "
                "which keeps those of main, or source-wins, which keeps those of the commit; then publish again"
            ),
        )
    return None


def drop_merge_branch(context: TableContext, at: TableVersion) -> None:
    """Delete the branch `published/...` on which a version was merged for a commit; the branch of a run stays.

    Raises:
        ConflictError: A ref refers to the branch, such as the tag of another publication that shares it.
    """
    if at.branch.startswith(PUBLISHED):
        # Another process may have been faster.
        with suppress(RefNotFoundError):
            delete_branch(at.branch, context.refs, context.versions)


def _landed(context: TableContext, at: TableVersion) -> State | None:
    """Return the version of `main` that has exactly the content of a version; None where it has not landed.

    Raises:
        VersionNotFoundError: The version was one of `main`, and is gone or was replaced.
    """
    return load(context, at) if at.branch == MAIN else landed_at(context, at)


def _own_properties(staged: State) -> dict[str, str]:
    """Return the message, author and properties of a staged version, without the records of its merge.

    They say which run published the version; another publication that brings `main` up to it keeps them.
    """
    properties = {} if staged.transaction is None else staged.transaction.properties
    return {key: value for key, value in properties.items() if key == COMMITTER or not key.startswith(RESERVED_PREFIX)}


def landed_at(context: TableContext, at: TableVersion, *, fresh: bool = False) -> State | None:
    """Return the version of `main` that has exactly the content of a version; None where it has not landed.

    Args:
        context: The table.
        at: The version.
        fresh: Read the store even for a version that this process has read: another table may have the place since.
    """
    if at.branch == MAIN:
        return context.versions.find(MAIN, at.lands, MAIN, fresh=fresh)
    return None if at.lands == NEVER else merged_as(context.versions, str(at), at.lands, fresh=fresh)


def load(context: TableContext, at: TableVersion, *, fresh: bool = False) -> State:
    """Read the version that a commit names, or the version on `main` with its content; arguments as for `landed_at`.

    Raises:
        VersionNotFoundError: The version is gone, or was replaced by another version.
    """
    # `main` is tried first: its manifests name files by paths relative to the table, so they can be read after the
    # table was moved. Manifests of a branch hold the former URI of the table.
    landed = landed_at(context, at, fresh=fresh)
    if landed is not None and (at.branch != MAIN or landed.id == at.commit_id):
        return landed
    try:
        return _on_its_branch(context, at)
    except VersionNotFoundError:
        # The version may have landed, and its branch been deleted, since `main` was read.
        landed = None if at.branch == MAIN else landed_at(context, at, fresh=True)
        if landed is None:
            raise
        return landed


def find_version(registry: Registry, name: str, at: TableVersion, *, fresh: bool = False) -> tuple[TableContext, State]:
    """Read the version that a commit names, also of a table that was renamed since; `fresh` as for `landed_at`.

    Raises:
        VersionNotFoundError: The version is gone, or was replaced by another version.
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
    state = context.versions.find(at.branch, at.version)
    if state is not None and state.id != at.commit_id:
        # Another process may have made the table again, and this process has cached versions of the former table.
        context.versions.forget()
        state = context.versions.find(at.branch, at.version)
    # Where the table was created again, another version has the same branch and number, and another commit id.
    if state is not None and state.id == at.commit_id:
        return state
    what = "is gone" if state is None else "was replaced by another version"
    error = f"{at} of {context.uri}, which a commit of the repository names, {what}"
    raise VersionNotFoundError(f"{error}; `status` says whether another program made the table again")


def for_each_table(work: Callable[[str], T], names: Iterable[str], refusal: str = "") -> dict[str, T]:
    """Call `work` with the name of each table, many at the same time, and return the results by name.

    Args:
        work: The function.
        names: The tables.
        refusal: The beginning of the text of the error.

    Raises:
        MergeConflictError: Some tables cannot be merged; the error has the conflicts of all tables.
    """
    conflicts: list[Reason] = []

    def tried(name: str) -> tuple[str, T | None]:
        try:
            return name, work(name)
        except MergeConflictError as error:
            conflicts.extend(_named_conflicts(name, error.conflicts))
            return name, None

    results = dict(concurrently(tried, names, at_once=_WORKERS))
    # Raised after all tables were tried: with one conflict at a time, a caller would have to publish once for each.
    if conflicts:
        raise MergeConflictError(refusal, sorted(conflicts, key=lambda conflict: conflict.unit))
    return results  # type: ignore[return-value]  # None only where there was a conflict


def _version_of_branch(change: TableChange, source: State, head: State) -> TableVersion:
    """Return the entry of a commit for a version of a branch that has everything that `main` has."""
    options = replace(change.options, mode=FAST_FORWARD, strategy=None)
    # Planned before the commit: a version that `main` could not follow to must not become visible. The plan reads
    # versions while the tag is put; the entry is dropped with all others when the plan fails.
    at, _ = together(
        change.context.store,
        lambda: change.version(source, head),
        lambda: refuse_conflicts(change.context, source, head, options),
    )
    return at


def _merged_version(change: TableChange, sources: Sequence[State], head: State) -> TableVersion:
    for remaining in reversed(range(_STAGINGS)):
        try:
            merged = _merged(change, sources, head)
            # The newest version has all sources: for a source that the branch has already, `merge` returns an older
            # version.
            newest = max(merged, key=lambda state: state.number)
            change.context.versions.cached.put("", newest)
            return change.version(newest, head)
        except MergeConflictError:
            raise
        except (RefNotFoundError, ConflictError):
            # Another publication of the same versions was refused and deleted the branch meanwhile. On a new branch
            # this publication finds the same conflicts.
            if not remaining:
                raise
    raise RuntimeError("the last attempt returns or raises")


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
        # No publication needs the branch: any other publication on it merges the same versions and is refused too. It
        # may delete the branch at this moment.
        with suppress(RefNotFoundError, ConflictError):
            delete_branch(name, context.refs, context.versions)
        raise


def _is_named(context: TableContext, dest: TableVersion, head: State) -> bool:
    landed = landed_at(context, dest)
    return landed is not None and landed.id == head.id


def _recorded(options: MergeOptions) -> tuple[str, str]:
    # Part of the name too: a version that a dead publisher staged has the id of its run in the properties, and not that
    # of the run that publishes the same versions now.
    return options.message or "", json.dumps(dict(options.properties), sort_keys=True)


def _staging_branch(context: TableContext, head: State, merged: Sequence[str]) -> Branch:
    """Return the branch for a merge: the same branch for each attempt, as long as the attempts are close in time.

    A collection deletes old branches that no commit names. A branch that a collection may delete soon is not used
    again, so that no commit comes to name it.
    """
    # Each number has another digest, so branches that are too old are passed over.
    for attempt in count():
        digest = hashlib.sha256(" ".join([head.id, *merged, str(attempt)]).encode()).hexdigest()[:_DIGITS]
        name = f"{PUBLISHED}{digest}"
        branch = create_branch(name, head, context.refs, context.versions, exist_ok=True, metadata={})
        # A time far in the future comes from a clock that is ahead, and counts as old.
        if age(branch.created_at) < REUSED_FOR:
            return branch
    raise RuntimeError("count never ends")


def _named_conflicts(name: str, conflicts: Iterable[Reason]) -> list[Reason]:
    return [
        replace(conflict, unit=f"{name}: {conflict.unit}") if isinstance(conflict, Conflict) else conflict
        for conflict in conflicts
    ]
