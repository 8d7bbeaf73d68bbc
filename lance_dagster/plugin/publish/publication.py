"""The steps that take audited run branches to the channel that readers follow.

1. find:   look up the version to publish in every table
2. commit: one commit of the repository names these versions, or the audited previews of their merges
           (`publication_audit`), and `main` of every table follows (`channel_publisher`)
3. move:   move the channel, for all tables at once; the tag of every table follows
4. retire: delete the run branches, which nothing needs after the commit; a failure is only reported

Each step is idempotent. A process may be killed between two steps, or between two tables within a step; the next
publication starts at the first step, recognises what is done and does the rest. When the branches are deleted, the
commits of the repository still tell which writes are published (`record_view`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import dagster as dg

from lance_dagster.errors import (
    ConflictError,
    PublishRefusedError,
    RefNotFoundError,
    Remedy,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.versions import Version
from lance_dagster.merge.rules.strategy import Conflict
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import runs_of
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.recorded_writes import write_of
from lance_dagster.plugin.resource import PinnedTable
from lance_dagster.plugin.run_branch import (
    RunBranch,
    RunChain,
    branch_of,
    is_written,
    run_of,
)
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.store import concurrently
from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The publication of one table.

    `sources` are the versions to merge. `landed` is the version of `main` that contains them, None before the
    commit. `previous` is the tag before the publication, and `promoted_to` the version that the channel names after
    it. `chosen` means that a person named a version of `main`, which may be older than the tag's version. Otherwise
    a channel moves only forward: when another publisher has moved it to a later version of `main`, that version
    contains the rows of this publication. `planned` is the audited preview of the merge of the sources into `base`,
    a version of `main`; it is None when the source itself is merged. `overtaken` has each waiting branch whose rows
    one of the sources replaces, with that source's branch. `withdrawn` is the number on `main` of the newest
    version that a rollback took back from the channel, 0 for none. `writes` are the recorded writes of the sources,
    and `drops` those that nobody will publish after them. `about` has further metadata entries for the promoted
    node's page.
    """

    candidate: dg.AssetKey
    promoted: dg.AssetKey
    table: LanceTable
    sources: tuple[Version, ...] = ()
    landed: Version | None = None
    previous: Tag | None = None
    withdrawn: int = 0
    chosen: bool = False
    promoted_to: Version | None = None
    planned: Version | None = None
    base: Version | None = None
    overtaken: tuple[tuple[str, str], ...] = ()
    writes: tuple[RecordedWrite, ...] = ()
    drops: tuple[RecordedWrite, ...] = ()
    about: Mapping[str, object] = field(default_factory=dict)

    @property
    def audited(self) -> tuple[Version, ...]:
        """The versions whose audit decides whether the publication is allowed."""
        return self.sources or ((self.landed,) if self.landed else ())

    @property
    def pinned(self) -> PinnedTable:
        """The table at the version that the publication would show to readers; valid where there is one."""
        return PinnedTable(table=self.table, version=self.planned or self.audited[-1])

    @property
    def name(self) -> str:
        """The key of the candidate as text."""
        return self.candidate.to_user_string()

    @property
    def move(self) -> str:
        """The move of the tag as text: the version before and after."""
        return f"{self.name}: from {self.previous.ref if self.previous else 'nowhere'} to {self.promoted_to}"

    @property
    def event(self) -> str:
        """What happened to the tag, such as `promoted: main@2 -> main@3`; a rollback says so."""
        to, kind, target = str(self.promoted_to), self.about.get("lance/rollback"), self.about.get(md.ROLLED_BACK_TO)
        # What a publisher promoted that died is there already when another publisher reports it.
        move = f"{self.previous.ref} -> {to}" if self.previous and self.previous.ref != to else to
        if kind is None:
            return f"promoted: {move}"
        content = "" if target == to else f", the content of {target}"
        return f"rolled back ({kind}): {move}{content}"

    @property
    def lagging(self) -> list[str]:
        """The branches and tags of tables that could not follow the channel of a repository, and why."""
        return self._noted(md.LAGGING)

    @property
    def waiting(self) -> list[str]:
        """The reasons why branches of the table have to wait."""
        return self._noted(md.WAITING)

    @property
    def superseded(self) -> list[str]:
        """The branches of the table whose rows a newer branch replaced, each with advice."""
        return self._noted(md.SUPERSEDED)

    def _noted(self, key: str) -> list[str]:
        notes = self.about.get(key, [])
        return [str(note) for note in notes] if isinstance(notes, list) else []

    def noting(self, key: str, reasons: Sequence[str]) -> "Publication":
        """Return the publication with further notes: `md.WAITING` or `md.SUPERSEDED`."""
        return replace(self, about={**self.about, key: [*self._noted(key), *reasons]}) if reasons else self

    @property
    def version(self) -> Version:
        """The version of `main` to promote; valid after the merge."""
        if self.landed is None:
            raise RuntimeError(f"{self.name} is not merged")
        return self.landed


class Opened(NamedTuple):
    """A table, its tag before the publication, and the newest version that a chain of runs wrote, if any."""

    table: LanceTable
    previous: Tag | None
    head: Version | None

    @classmethod
    def of(cls, table: LanceTable, tag: str, chain: RunChain | None) -> "Opened":
        """Read a tag of a table, and the head of the newest branch of a chain that has commits of its own."""
        head = None if chain is None else RunBranch(table=table, chain=chain).written()
        return cls(table, find_tag(table, tag), head)


def find_by_run(publication: Publication, chain: RunChain, *, head: Version | None, record: RecordView) -> Publication:
    """Return the publication of the rows that a chain of runs wrote; it has no sources when they wrote none.

    Args:
        publication: The table.
        chain: The run that publishes and the runs that it continues.
        head: The head of the newest branch of the chain that has commits of its own, or None.
        record: The record of the lake.
    """
    if head is not None and run_of(head.branch) in (None, chain.run_id):
        return replace(publication, sources=(head,))
    # No branch was found, or only the branch of an older run of the chain. A newer run may be published already and
    # its branch deleted; then `main` has the newer rows.
    landed = record.landed(publication.table, chain)
    if landed is not None:
        of_head = None if head is None else write_of(record.repository, publication.table, head)
        if of_head is None or landed[0].number > of_head.number:
            return replace(publication, landed=landed[1])
    return publication if head is None else replace(publication, sources=(head,))


def find_by_ref(publication: Publication, ref: str, *, instance: dg.DagsterInstance, record: RecordView) -> Publication:
    """Return the publication of a ref expression: a branch to merge, or a version of `main` to promote.

    A run that continues others stands for what it and these runs wrote: it has no branch in a table that only they did.

    Raises:
        RefNotFoundError: The ref does not exist, and no write of a run of this name is published.
    """
    table, run_id = publication.table, run_of(ref)
    if run_id is not None:
        chain = replace(RunChain.of(instance.get_run_by_id(run_id), instance), branch_tag=None)
        # Without the run's record in Dagster, the run is taken for the first one of its candidate.
        chain = chain if chain.run_ids else RunChain.of_run_id(run_id)
        head = table.branches.newest(branch_of(run_id))
        continued = head
        if head is None or not is_written(head):
            longest = _continuation(chain, run_id, table, instance=instance, record=record)
            continued = RunBranch(table=table, chain=longest).written() if len(longest.run_ids) > 1 else head
        if continued is not None and continued != head:
            publication_of_chain = find_by_run(publication, chain, head=continued, record=record)
            # What the older runs published is left alone: the tag may have moved on since.
            if publication_of_chain.sources:
                return publication_of_chain
        landed = record.landed(table, replace(chain, run_ids=(run_id,))) if head is None else None
        # The run was published and its branch deleted. Its rows are on `main`, so the tag can move there.
        if landed is not None:
            return replace(publication, landed=landed[1])
        writes = record.writes_of_runs(chain.candidate_id, [run_id], table) if head is None else []
        if writes and all(map(record.is_dropped, writes)):
            has = "what it wrote was discarded or rolled back; to bring it back, set ref to a version such as main@3"
            raise RefNotFoundError(ref, [], table.uri, "branch", has)
    version = table.at(ref)
    if version.branch == MAIN:
        return replace(publication, landed=version, chosen=True)
    return replace(publication, sources=(version,))


def _continuation(
    chain: RunChain, run_id: str, table: LanceTable, *, instance: dg.DagsterInstance, record: RecordView
) -> RunChain:
    """Return the chain of the newest re-execution of a run that wrote to a table what waits; else the run's chain."""
    for write in reversed(record.open_writes(table)):
        if write.request.candidate == chain.candidate_id:
            later = replace(RunChain.of(instance.get_run_by_id(write.request.run_id), instance), branch_tag=None)
            if run_id in later.run_ids:
                return later
    return chain


def named_conflicts(publication: Publication, source: Version, conflicts: Iterable[object]) -> list[Conflict]:
    """Return the conflicts of a merge, with the table and the source prepended to their units."""
    return [
        replace(conflict, unit=f"{publication.name} ({source}): {conflict.unit}")
        for conflict in conflicts
        if isinstance(conflict, Conflict)
    ]


def next_steps(refused: Sequence[Publication], named: Sequence[Conflict], all_of: Iterable[Publication] = ()) -> Remedy:
    """Return what a person can do about runs whose rows conflict with what is published, or with each other.

    Args:
        refused: The tables whose merges have conflicts.
        named: The conflicts, as `named_conflicts` returns them.
        all_of: All tables that were to be published; those without a conflict may be published alone.
    """
    conflicting = [_in_conflict(publication, named) for publication in refused]
    sources = [source for publication in conflicting for source in publication.sources]
    names = dict.fromkeys(f"discard: {source.branch}" for source in sources if run_of(source.branch))
    materialize = f"materialize the publisher with {' or '.join(names)} and a reason"
    or_discard = f", or give its rows up: {materialize}" if names else ""
    # Runs that wait conflict with each other, also when each of them starts from what is published now.
    competing = [publication.sources[0].branch for publication in conflicting if len(publication.sources) > 1]
    if competing:
        return Remedy(f"publish one by ref: {competing[0]}, then run the others again{or_discard}")
    branches = {source.branch for source in sources}
    publishable = [
        publication
        for publication in all_of
        if publication not in refused and branches & {source.branch for source in publication.sources}
    ]
    # `discard` deletes the rows of all tables of the run, so what can be published comes first.
    alone = f", {publish_alone(publishable, sources[0].branch)}" if publishable and len(branches) == 1 else ""
    return Remedy(f"run the job again, which starts from what is published{alone}{or_discard}")


def _in_conflict(publication: Publication, conflicts: Sequence[Conflict]) -> Publication:
    """Return a publication with only the sources that its conflicts are about."""
    # A conflict names the source that was merged, and the runs of those before it that it conflicts with.
    texts = "\n".join(str(conflict) for conflict in conflicts if conflict.unit.startswith(f"{publication.name} ("))
    sources = [source for source in publication.sources if (run_of(source.branch) or str(source)) in texts]
    return replace(publication, sources=tuple(sources) or publication.sources)


def publish_alone(publications: Iterable[Publication], branch: str) -> str:
    """Return how to publish what a run wrote to some tables, without its other tables."""
    nodes = ", ".join(publication.promoted.to_user_string() for publication in publications)
    return (
        f"or publish what it wrote to the other tables alone: materialize only {nodes} with ref: {branch} and a reason"
    )


def refuse_deleted(publications: Iterable[Publication]) -> None:
    """Refuse to publish branches that were deleted since they were looked at: the last look before the commit.

    The rows may be on another branch by now, as the preview of a merge, so that nothing else would notice.

    Raises:
        ConflictError: A branch was discarded, or another publisher published and deleted it.
    """
    sources = [(publication, source) for publication in publications for source in publication.sources]
    there = concurrently(lambda pair: pair[0].table.branches.is_ready(pair[1].branch), sources)
    if deleted := [
        f"{source} of {publication.name}"
        for (publication, source), stays in zip(sources, there, strict=True)
        if not stays
    ]:
        raise ConflictError(
            f"{', '.join(deleted)} was deleted while this run was about to publish it, so nothing is published now: "
            "somebody discarded it, or another run has published it; publish again if other rows wait"
        )


def landing_message(publication: Publication) -> str:
    """Return the message of the commit that moves `main` of a table to its audited version."""
    sources = publication.sources
    named = ", ".join(map(str, sources[:3])) + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")  # noqa: PLR2004
    return f"publish {publication.name} from {named}"


def landing_properties(publication: Publication, chain: RunChain) -> dict[str, str]:
    """Return the properties of the commit that moves `main` of a table to its audited version."""
    sources = publication.sources
    properties = merge_properties(publication, sources[-1], chain)
    properties[md.WRITES] = json.dumps([write.mark for write in publication.writes])
    properties[md.AUDITED_TRANSACTIONS] = json.dumps(
        {str(source): [source.id, source.transaction] for source in sources}
    )
    if publication.planned is None:
        # The parent of the merge commit is a staged version, on a branch that no audit names.
        return properties | {md.AUDITED_VERSION: str(sources[0])}
    runs = dict.fromkeys(_run_of_source(source) for source in sources)
    return properties | {
        md.SOURCES: json.dumps([str(source) for source in sources]),
        md.PUBLISHED_RUNS: json.dumps(list(runs)),
        md.AUDITED_AGAIN: json.dumps(publication.about.get(md.AUDITED_AGAIN)),
    }


def merge_properties(publication: Publication, source: Version, chain: RunChain) -> dict[str, str]:
    """Return the properties of the commit that merges a source."""
    properties = {
        md.RUN_ID: _run_of_source(source),
        md.ASSET_KEY: publication.name,
        md.PUBLISHED_BY: chain.run_id,
        md.BACKFILL_ID: chain.backfill_id,
    }
    return {key: value for key, value in properties.items() if value}


def _run_of_source(source: Version) -> str:
    return source.properties.get(md.RUN_ID) or run_of(source.branch) or ""


def refuse_branches_named(tag: str, publications: Iterable[Publication]) -> None:
    """Refuse to publish tables with a branch of the name of the tag, before anything is merged.

    Raises:
        PublishRefusedError: There are such tables.
    """
    # A table that has the tag has no such branch.
    new = [publication for publication in publications if publication.previous is None]
    heads = concurrently(lambda publication: publication.table.branches.newest(tag), new)
    if reasons := [
        f"{publication.name}: {publication.table.uri} has a branch {tag!r}, so it cannot have a tag of that name; "
        "rename or delete the branch, or give the publisher another tag"
        for publication, head in zip(new, heads, strict=True)
        if head is not None
    ]:
        raise PublishRefusedError(f"cannot move {tag}", reasons)


def find_tag(table: LanceTable, name: str) -> Tag | None:
    """Return a tag, or None when there is none of that name."""
    # This takes one request when the tag exists, as in every publication of a table but the first one.
    with suppress(RefNotFoundError):
        return table.tags.get(name)
    return None


def retire_all(publications: Iterable[Publication], chain: RunChain) -> list[str]:
    """Delete the run branches that were published, and return which ones could not be deleted and why."""

    def retire(publication: Publication) -> list[str]:
        runs = [run_of(source.branch) for source in publication.sources]
        # A publication that died after its merge did not get to delete the branches of these runs.
        if publication.landed is not None and not (runs or publication.chosen):
            runs = [*runs_of(publication.landed)]
        # The sources may be branches of other runs: the runs of a backfill, or a run that a person named. Each was
        # forked from the branch of the run that its run continues.
        earlier = [run_id for source in publication.sources for run_id in _continued(publication.table, source.branch)]
        run_ids = dict.fromkeys([*chain.run_ids, *(run_id for run_id in runs if run_id), *earlier])
        branches = RunBranch(table=publication.table, chain=replace(chain, run_ids=tuple(run_ids)))
        return [f"{publication.name}: {reason}" for reason in branches.retire(publication.sources)]

    return [reason for reasons in concurrently(retire, publications) for reason in reasons]


def _continued(table: LanceTable, branch: str) -> list[str]:
    """Return the runs that the run of a branch continues, newest first, as far as the forks of the branches tell."""
    run_ids: list[str] = []
    # A branch may be gone already, and a name may be used again, so that the forks form a circle.
    with suppress(RefNotFoundError):
        while (run_id := run_of(branch := table.branches.recall(branch).parent_branch)) and run_id not in run_ids:
            run_ids.append(run_id)
    return run_ids
