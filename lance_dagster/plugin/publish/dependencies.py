"""What depends on a run branch: rows that were computed from its versions, and steps that may still read it.

A run of a backfill reads what earlier runs of the same backfill wrote, before any of it is published, and names these
versions in its own commits (`backfill_reads`). Its rows are published after these versions, or together with them. A
version that was refused, discarded or superseded by a repaired run is never published, and then neither are the rows
that were computed from it: their partitions have to be materialized again.

An input such as `PinnedTable` or a lazy frame names a version of the run's branch, and its rows are read when the step
asks for them. The publisher deletes that branch, so it has to know which steps may still read. A step that begins after
the deletion reads `main`, which has the rows.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import dagster as dg

from lance_dagster.errors import TableNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import WITHOUT_ROWS
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import foreign_value, sources_of, string_lists_of
from lance_dagster.plugin.publish.publication import Publication
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.run_branch import RunChain, run_of
from lance_dagster.table import LanceTable

_STARTED = {
    # Executors of several processes report this before the process of the step exists.
    dg.DagsterEventType.STEP_WORKER_STARTING,
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_RESTARTED,
}
_OVER = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_SKIPPED}
_PLANNED_ASSET = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_PLANNED_CHECK = dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED
# A version number has at most 20 digits, as those of Lance.
_VERSION = re.compile(r"(?P<branch>.+)@(?P<number>[0-9]{1,20})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Read:
    """A version on a branch that a run read, and the URI of its table."""

    uri: str
    branch: str
    number: int

    def __str__(self) -> str:
        return f"{self.ref} of {self.uri}"

    @property
    def ref(self) -> str:
        """The version as a ref expression."""
        return f"{self.branch}@{self.number}"


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Decide which publications have to wait until the versions that their rows were computed from are published."""

    instance: dg.DagsterInstance
    record: RecordView
    storage_options: Mapping[str, str]
    # The runs that are not over, and may still publish a version that another run has read.
    under_way: set[str] = field(default_factory=set)

    def keep_back(self, publications: Sequence[Publication]) -> tuple[list[Publication], list[Publication]]:
        """Leave out the branches that have to wait; the branches of the same run in other tables wait with them.

        Returns:
            The publications that still have a branch to publish, and the publications whose branches all wait. The
            `waiting` of both says why branches have to wait.
        """
        reads = {
            (publication.name, source.branch): list(_reads(publication.table, source))
            for publication in publications
            for source in publication.sources
        }
        waits: dict[str, list[str]] = {}
        late: set[str] = set()
        published: dict[_Read, bool] = {}
        remaining = list(publications)
        # A branch that has to wait may have what another branch was computed from.
        while unmet := {
            (publication.name, source.branch): version
            for publication in remaining
            for source in publication.sources
            for version in reads[publication.name, source.branch]
            if not self._is_met(version, remaining, published)
        }:
            for (name, branch), version in unmet.items():
                waits.setdefault(name, []).append(
                    f"{branch} was computed from {version}, which is not published; publish that first, or materialize "
                    f"{name} again if it was discarded or superseded"
                )
                late.add(branch)
            remaining = [
                replace(publication, sources=tuple(head for head in publication.sources if head.branch not in late))
                for publication in remaining
            ]
        noted = [publication.noting(md.WAITING, waits.get(publication.name, ())) for publication in remaining]
        return [publication for publication in noted if publication.audited], [
            publication for publication in noted if not publication.audited
        ]

    def _is_met(self, version: _Read, publications: Sequence[Publication], published: dict[_Read, bool]) -> bool:
        """Return whether a version that was read is published, or is published together with others."""
        together = (publication for publication in publications if publication.table.uri == version.uri)
        if any(
            _has_rows_of(publication.table, source, version)
            for publication in together
            for source in publication.sources
        ):
            return True
        if version not in published:
            published[version] = self._is_published(version)
        return published[version]

    def _is_published(self, version: _Read) -> bool:
        run_id = run_of(version.branch)
        try:
            table = LanceTable.open(version.uri, self.storage_options)
        except TableNotFoundError:
            return False
        run = self.instance.get_run_by_id(run_id) if run_id else None
        candidate = RunChain.of(run, self.instance).candidate_id or run_id or ""
        writes = self.record.writes_of_runs(candidate, [run_id or ""], table)
        landed = self.record.version_with([write for write in writes if self.record.is_published(write)])
        if landed is not None:
            return version.ref in sources_of(landed[1])
        if run is not None and not run.is_finished:
            self.under_way.add(run.run_id)
        return False


def _reads(table: LanceTable, head: Version) -> Iterator[_Read]:
    """Yield the unpublished versions that, by the commits of a branch, its run has read."""
    if head.branch == MAIN:
        return
    for commit in table.log(head, after=MAIN):
        for uri, refs in string_lists_of(commit, md.READ_UNPUBLISHED).items():
            for ref in refs:
                named = _VERSION.fullmatch(ref)
                if named is None:
                    raise foreign_value(commit, md.READ_UNPUBLISHED)
                yield _Read(uri, named["branch"], int(named["number"]))


def _has_rows_of(table: LanceTable, source: Version, version: _Read) -> bool:
    """Return whether a version has exactly the rows of the version that was read: later commits changed no row."""
    if source.branch != version.branch or source.number < version.number:
        return False
    later = range(version.number + 1, source.number + 1)
    return all(table.at(f"branch:{source.branch}@{number}").operation in WITHOUT_ROWS for number in later)


def read_by(context: dg.AssetExecutionContext, candidates: Collection[dg.AssetKey]) -> dict[dg.AssetKey, list[str]]:
    """Return those of some candidates that other steps of the current run may be reading, with the keys of the steps.

    Args:
        context: The context of the publisher's step.
        candidates: The candidates.
    """
    planned: dict[str, set[dg.AssetKey | dg.AssetCheckKey]] = {}
    at_work: set[str] = set()
    kinds = {*_STARTED, *_OVER, _PLANNED_ASSET, _PLANNED_CHECK}
    for record in context.instance.get_records_for_run(context.run.run_id, of_type=kinds).records:
        event = record.event_log_entry.get_dagster_event()
        step = event.step_key or ""
        if event.event_type == _PLANNED_ASSET:
            planned.setdefault(_node_of(step), set()).add(event.asset_materialization_planned_data.asset_key)
        elif event.event_type == _PLANNED_CHECK:
            planned.setdefault(_node_of(step), set()).add(event.asset_check_planned_data.asset_check_key)
        elif event.event_type in _OVER:
            at_work.discard(step)
        else:
            at_work.add(step)
    readers: dict[dg.AssetKey, list[str]] = {}
    graph = context.job_def.asset_layer.asset_graph
    for step in sorted(at_work):
        outputs = planned.get(_node_of(step), set())
        # The publisher itself depends on all of its candidates.
        if outputs.isdisjoint(context.selected_asset_keys):
            # A check reads its asset.
            parents = {parent for key in outputs if graph.has(key) for parent in graph.get(key).parent_entity_keys}
            for key in set(candidates) & parents:
                readers.setdefault(key, []).append(step)
    return readers


def _node_of(step: str) -> str:
    # The steps of a graph are named after the graph: the step that materializes its asset is one of them.
    return step.split(".", maxsplit=1)[0]
