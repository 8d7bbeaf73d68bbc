"""Publish versions of tables exactly as they are, because they were audited.

`publish` of a branch merges, and the result may hold rows that no check has seen together. Here a version is published
only as long as it contains everything that `main` of its table has. When `main` moved, the caller merges and audits
again.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TypedDict

from lance_dagster.errors import ConflictError, RefMovedError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import Properties
from lance_dagster.history.versions import Version
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.repository.candidates.closed_writes import WriteChanges
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion
from lance_dagster.repository.publish.commit_tables import CommitRequest
from lance_dagster.repository.publish.staging import Staging, capture, stage_merge
from lance_dagster.repository.recorded_writes import is_merged
from lance_dagster.repository.registry import Registry, RepositoryContext

_TRIES = 5
PlanAgain = Callable[[str], "VersionToPublish"]
"""Returns another version of a table, which contains the newest `main`."""


class VersionOptions(TypedDict, total=False):
    """Options of a publication of versions."""

    properties: Properties
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionToPublish:
    """A version to publish as it is.

    Attributes:
        version: A version of a branch, or of `main`.
        message: The message of its merge into `main`.
        properties: The properties of that merge.
        writes: The recorded writes whose rows the version has, and `main` has not yet.
        drops: The recorded writes that this publication supersedes; nobody will publish them.
        withdraws: The numbers of published writes whose rows the version lacks, because it restores an older version.
    """

    version: Version
    message: str
    properties: Mapping[str, str] = field(default_factory=dict)
    writes: tuple[RecordedWrite, ...] = ()
    drops: tuple[RecordedWrite, ...] = ()
    withdraws: NumberSet = field(default_factory=NumberSet)


def exact_request(
    registry: Registry,
    current: MutableMapping[str, VersionToPublish],
    plan_again: PlanAgain,
    *,
    message: str,
    properties: Mapping[str, str],
) -> CommitRequest:
    """Return the request for a commit of the versions in `current` as they are.

    Where `main` of a table moves meanwhile, `plan_again` returns another version, which takes the place in `current`.
    """
    # Tables are staged by several threads, and `plan_again` need not be safe for threads.
    lock, staging = Lock(), Staging(registry)

    def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
        context = registry.context(name)
        for _ in range(_TRIES):
            # Read at each try: the caller may have planned another version meanwhile.
            planned = current[name]
            # From memory: `stage_merge` checks that the version exists after it has put the tag that keeps it.
            source = context.recall(planned.version)
            options = MergeOptions(message=planned.message, properties=planned.properties)
            change = staging.change(name, dest, sources=(source,), options=options, exact=True)
            if source.branch == MAIN:
                # The repository has a newer version of `main`: a slower publication must not undo a faster publication.
                contained = dest is not None and source.number <= dest.lands
                return None if contained else capture(context, change.table_id, source)
            try:
                return stage_merge(change, dest)
            except RefMovedError:
                # `main` moved since the caller planned, so the version does not contain all of `main`.
                pass
            with lock:
                current[name] = plan_again(name)
        raise ConflictError(f"main of {name} moved during each of {_TRIES} audits of its merge; publish again")

    return CommitRequest(
        branch=MAIN,
        stage=stage,
        names=tuple(current),
        message=message,
        properties=properties,
        staging=staging,
    )


def write_changes(context: RepositoryContext, versions: Mapping[str, VersionToPublish]) -> WriteChanges:
    """Return the recorded writes that a commit of versions of tables closes."""
    return WriteChanges(
        publish=tuple(write for version in versions.values() for write in version.writes),
        drop=tuple(write for version in versions.values() for write in version.drops),
        related=context.record.candidate,
        is_merged=partial(is_merged, context),
        withdraw={
            context.registry.register(name): version.withdraws
            for name, version in versions.items()
            if version.withdraws.runs
        },
    )


def version_in(registry: Registry, commit: RepositoryCommit, name: str, planned: VersionToPublish) -> TableVersion:
    """Return the version of a table that a commit published; where the commit names a newer version, the planned one.

    Example: version 3 of `main` was planned, and the commit has version 4, which another process published meanwhile:
    the result is version 3.
    """
    at = commit.tables[name]
    if planned.version.branch != MAIN or planned.version.number >= at.lands:
        return at
    # The audited version gets a pin of its own.
    context = registry.context(name)
    return capture(context, at.id, context.at(planned.version))
