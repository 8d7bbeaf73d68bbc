"""A sensor that deletes run branches and previews that are no longer needed.

The publisher deletes the branches that it published. The others are the branches of runs that failed or were
cancelled, branches whose publisher was killed before it deleted them, and previews of merges. Without the sweeper they
stay for ever, and so do the data files that only they name.

Every deletion is decided anew from Dagster's run records and the table's refs, so a tick that is killed, or two ticks
at the same time, do no harm. A tick has a time budget; the next tick starts with the table at which it stopped.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, get_args

import dagster as dg

from lance_dagster.errors import InvalidInputError, LanceDagsterError, RefNotFoundError, TableNotFoundError, counted
from lance_dagster.format.validation import check_flag, check_options, parsed_json, require_sequence
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.check_arguments import require_duration
from lance_dagster.plugin.operate.branch_decisions import Action, KeepFor, RunsOfBranches, short
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.run_branch import PREVIEWS, READS, branch_of, is_over, is_written, run_of
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, WatchedTable

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_files import Branch
    from lance_dagster.plugin.operate.waiting_candidates import WaitingCandidates
    from lance_dagster.table import LanceTable

WaitingPolicy = Literal["keep", "alert", "publish"]
_BUDGET_SECONDS = 20.0
_NAMED = 8
_HOUR = 3600


class SweeperOptions(TypedDict, total=False):
    """Further options of `build_branch_sweeper`.

    `keep_unknown` is how long branches are kept whose run the Dagster instance does not know. Without it they are kept
    for ever, because they may belong to another deployment that writes the same tables. Set it where a single
    deployment writes the tables, and old runs are deleted from the instance.

    `keep_previews` is the age from which a preview is deleted, a day by default: longer than a publisher needs
    it. `waiting_after` is how long after the end of its run the policy `waiting` applies to an unpublished version, an
    hour by default: the publisher of a backfill runs after its last run.

    `dry_run` only reports. `minimum_interval_seconds` (an hour by default), `default_status` and `description` are
    passed to `dg.sensor`.
    """

    keep_unknown: timedelta
    keep_previews: timedelta
    waiting_after: timedelta
    dry_run: bool
    minimum_interval_seconds: int
    default_status: dg.DefaultSensorStatus
    description: str


def _about(keep_failed: timedelta) -> str:
    return (
        f"Deletes branches of runs that were published, that failed at least {keep_failed / timedelta(days=1):g} days "
        "ago, or that a re-execution replaces. Rows that wait to be published stay."
    )


def build_branch_sweeper(
    name: str,
    tables: Sequence[TableAsset],
    *,
    keep_failed: timedelta = timedelta(days=7),
    waiting: WaitingPolicy = "keep",
    publisher: dg.AssetsDefinition | None = None,
    resource_key: str = RESOURCE_KEY,
    **options: Unpack[SweeperOptions],
) -> dg.SensorDefinition:
    """Build a sensor that deletes the run branches and previews of some tables that are no longer needed.

    It deletes branches that `main` contains, branches of runs that failed or were cancelled at least `keep_failed` ago,
    and branches of runs whose full re-execution succeeded: at once where the run failed, and `keep_failed` after its
    end where it succeeded. It never deletes a branch while its run, or a re-execution with the same root run, is
    unfinished or about to be retried, nor a branch that a tag or another branch needs, nor a branch that waits to be
    published: its run or a re-execution succeeded, or all tables of the run were written and passed their checks
    before a later step failed. A run is one candidate: a branch that `main` contains stays as long as another table of
    the run waits or may be re-executed. Previews are deleted after a day. The text of each tick says what was deleted
    and why, and which branches wait to be published.

    Args:
        name: The sensor's name.
        tables: The candidates, as definitions or keys. Give all tables of a publisher to one sweeper, or give it
            `publisher`: whether a run may be published depends on all tables that it wrote.
        keep_failed: How long a run can be re-executed from its failure; longer than people need to react.
        waiting: What happens to a branch that waits to be published: nothing (`keep`); the tick logs an error and
            records an observation of the candidate, once (`alert`); or a run of the publisher is requested, once for
            each state of these branches, unless the channel or the tag is held (`publish`). That run publishes whatever
            waits and passed, also what is younger than `waiting_after`. The text of the tick names such branches in
            each case.
        publisher: The result of `build_publisher`, for the policy `publish`. Its other tables count too when the
            sweeper decides whether a run may be published.
        resource_key: The key of the `LanceResource`.
        options: See `SweeperOptions`.

    Raises:
        InvalidInputError: No table is given, an option has the wrong type or is negative, or the policy is
            unknown or lacks its publisher.
    """
    require_sequence("tables", tables, "shop/orders")
    check_options(build_branch_sweeper, options, SweeperOptions)
    watched = tuple(WatchedTable.of(table) for table in tables)
    keep = KeepFor(failed=keep_failed, unknown=options.get("keep_unknown"))
    _check(watched, keep, waiting, publisher)
    _check_options(options)
    promoted = _promoted(publisher, watched) if publisher is not None and waiting == "publish" else {}
    together = with_published(watched, publisher)

    @dg.sensor(
        name=name,
        required_resource_keys={resource_key},
        minimum_interval_seconds=options.get("minimum_interval_seconds", _HOUR),
        default_status=options.get("default_status", dg.DefaultSensorStatus.STOPPED),
        description=options.get("description", _about(keep_failed)),
        asset_selection=list(promoted.values()) or None,
    )
    def branch_sweeper(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lance: LanceResource = getattr(context.resources, resource_key)
        cursor, instance = _Cursor.of(context.cursor), context.instance
        sweep = _Sweep(
            lance=lance,
            instance=instance,
            keep=keep,
            options=options,
            cursor=cursor,
            watched=watched,
            together=together,
            promoted=promoted,
        )
        sweep.run()
        for problem in sweep.problems:
            context.log.error(problem)
        text = sweep.text(len(watched))
        context.log.info(text)
        late = sweep.newly_late() if waiting == "alert" else []
        for branch in late:
            context.log.error("%s waits to be published", branch)
        # They are requested in each tick while versions wait; the run key keeps Dagster from a second run.
        requests = sweep.publications()
        return dg.SensorResult(
            asset_events=[branch.observation() for branch in late],
            run_requests=requests or None,
            # Dagster refuses a text beside run requests; the log of the tick has it.
            skip_reason=None if requests else text,
            cursor=cursor.to_json(),
        )

    return branch_sweeper


@dataclass(frozen=True, slots=True)
class _Swept:
    """A branch of a table, and what the tick decided about it; `version` is its head where it waits, or empty."""

    table: WatchedTable
    branch: str
    version: str
    reason: str

    @property
    def place(self) -> str:
        return f"{self.table.name} {self.version}"

    def observation(self) -> dg.AssetObservation:
        text = f"{self.version} passed its checks or was written by a successful run, and waits to be published"
        return dg.AssetObservation(self.table.key, description=text, metadata={md.WAITING: self.version})

    def __str__(self) -> str:
        run_id = run_of(self.branch)
        return f"{self.table.name} {branch_of(short(run_id)) if run_id else self.branch}"


@dataclass(slots=True)
class _Cursor:
    """The index of the table that the next tick starts with, and the versions that were reported as waiting."""

    next: int = 0
    alerted: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> "_Cursor":
        # A damaged cursor loses no decision: each tick decides anew, and only an alert is repeated.
        try:
            state = parsed_json(text or "{}")
            return cls(max(0, int(state.get("next", 0))), tuple(map(str, state.get("alerted", ()))))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls()

    def to_json(self) -> str:
        return json.dumps({"next": self.next, "alerted": self.alerted})


@dataclass(slots=True, kw_only=True)
class _Sweep:
    """One tick of the sweeper.

    `together` are the watched tables and the other tables of their publisher: what a run wrote to all of them is one
    candidate.
    """

    lance: LanceResource
    instance: dg.DagsterInstance
    keep: KeepFor
    options: SweeperOptions
    cursor: _Cursor
    watched: Sequence[WatchedTable]
    together: Sequence[WatchedTable]
    promoted: Mapping[str, dg.AssetKey]
    candidates: "WaitingCandidates" = field(init=False)
    deleted: list[_Swept] = field(default_factory=list)
    waiting: list[_Swept] = field(default_factory=list)
    late: list[_Swept] = field(default_factory=list)
    refused: list[_Swept] = field(default_factory=list)
    counts: dict[Action, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    visited: int = 0
    # The hold of the publisher's channel; None before it is read, and needed only when a branch waits.
    channel_is_held: bool | None = None
    # For each branch, a table with rows on that branch that `main` lacks.
    unmerged: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare to look up candidates."""
        # Imported only in a tick, as all modules are that loading a code location does not need.
        from lance_dagster.plugin.operate.waiting_candidates import WaitingCandidates

        self.candidates = WaitingCandidates(lance=self.lance, instance=self.instance, watched=self.together)

    def run(self) -> None:
        watched = self.watched
        until = time.monotonic() + _BUDGET_SECONDS
        # The modulo is needed because the definitions may have lost tables since the cursor was written.
        first = self.cursor.next % len(watched)
        for watched_table in [*watched[first:], *watched[:first]]:
            # Each tick sweeps one table at least; otherwise a slow table would stop all progress.
            if self.visited and time.monotonic() >= until:
                break
            self.visited += 1
            try:
                self._sweep(watched_table, self.lance.table(watched_table.key, watched_table.metadata))
            except TableNotFoundError:
                # No run has written the table yet, so it has no branches.
                continue
            except LanceDagsterError as error:
                self.problems.append(f"{watched_table.name}: {error}")
        self.cursor.next = (first + self.visited) % len(watched)

    def _sweep(self, watched_table: WatchedTable, table: "LanceTable") -> None:
        # Previews first, and the newest branch first: a branch cannot be deleted while a fork of it exists.
        for branch in _newest_first({**table.branches.list(f"{PREVIEWS}*"), **table.branches.list(f"{READS}*")}):
            over = is_over(branch.metadata.get(md.PUBLISHED_BY), self.instance)
            # The age is measured across clocks, and a run may take longer than a day: it still needs its branch.
            if over and _is_left_over(branch, self.options.get("keep_previews", timedelta(days=1))):
                self._delete(watched_table, table, branch, f"a preview made {branch.created_at.diff_for_humans()}")
        if not self.options.get("dry_run"):
            self.candidates.close_writes(table)
        branches = _newest_first(table.branches.list("run/*"))
        runs = RunsOfBranches.of((run_of(branch.name) or "" for branch in branches), self.instance)
        for branch in branches:
            self._sweep_run(watched_table, table, branch, runs)

    def _sweep_run(
        self, watched_table: WatchedTable, table: "LanceTable", branch: "Branch", runs: RunsOfBranches
    ) -> None:
        outcome = self.candidates.decide(watched_table, table, branch, runs=runs, keep=self.keep)
        if outcome is None:
            return
        head, decision = outcome
        action = decision.action
        if decision.unmerged in (Action.WAITING, Action.KEEP) and self._is_needed_elsewhere(watched_table, branch.name):
            action = Action.WITH_OTHERS
        if action is Action.DELETE:
            self._delete(watched_table, table, branch, decision.reason)
            return
        self.counts[action] = self.counts.get(action, 0) + 1
        if decision.action is Action.WAITING:
            swept = _Swept(watched_table, branch.name, str(head), decision.reason)
            self.waiting.append(swept)
            is_late = decision.waits_since(self.options.get("waiting_after", timedelta(hours=1)))
            # A publication of a held tag would fail, and its run key would keep Dagster from a second publication.
            if is_late and not (self.promoted and self._is_held(table, self.promoted[watched_table.name].path[0])):
                self.late.append(swept)

    def _is_held(self, table: "LanceTable", name: str) -> bool:
        """Return whether a tag is held in a table, or its channel, which need not name the table yet."""
        from lance_dagster.plugin.publish.publication import find_tag

        if self.channel_is_held is None:
            repository, hold = self.lance.open_repository(), None
            with suppress(RefNotFoundError):
                hold = None if repository is None else repository.channels.get(name).hold
            self.channel_is_held = hold is not None
        tag = find_tag(table, name)
        return self.channel_is_held or (tag is not None and tag.hold is not None)

    def _is_needed_elsewhere(self, watched_table: WatchedTable, name: str) -> bool:
        """Return whether another table has rows on the same branch that `main` lacks.

        These tables are one candidate: they are published, and re-executed, as the run left them.
        """
        if name not in self.unmerged:
            # Needed only for branches that `main` contains and whose publisher died, which are few.
            others = (table for table in self.together if table is not watched_table)
            self.unmerged[name] = next((table.name for table in others if self._is_unmerged(table, name)), None)
        return self.unmerged[name] is not None

    def _is_unmerged(self, watched_table: WatchedTable, name: str) -> bool:
        try:
            table = self.lance.table(watched_table.key, watched_table.metadata)
            head = table.branches.newest(name)
        except (TableNotFoundError, RefNotFoundError):
            return False
        return head is not None and is_written(head) and table.branches.is_merged(head) is None

    def _delete(self, watched_table: WatchedTable, table: "LanceTable", branch: "Branch", reason: str) -> None:
        swept = _Swept(watched_table, branch.name, "", reason)
        try:
            if not self.options.get("dry_run"):
                table.branches.delete(branch.name)
        except RefNotFoundError:
            # A publisher, or another tick, deleted the branch first.
            return
        except LanceDagsterError as error:
            # A tag or another branch needs the branch, or it is protected.
            self.refused.append(_Swept(watched_table, branch.name, "", str(error)))
            return
        self.deleted.append(swept)

    def newly_late(self) -> list[_Swept]:
        """Return the waiting branches that no tick reported before, and remember them in the cursor."""
        late = {branch.place: branch for branch in self.late}
        alerted = set(self.cursor.alerted)
        # Only branches that still wait are remembered, so that the cursor does not grow.
        self.cursor.alerted = tuple(late)
        return [branch for place, branch in late.items() if place not in alerted]

    def publications(self) -> list[dg.RunRequest]:
        """Request a run of the publisher, which publishes whatever waits, for the policy `publish`.

        It chooses among the branches as for a person who materializes its nodes: a branch that a newer one supersedes
        is left out. The run key allows one request for each state of the waiting branches.
        """
        if not (self.promoted and self.late):
            return []
        # All watched tables are selected: the tick may have ended before it visited some tables of a candidate. In a
        # repository the publisher adds its other tables.
        # A run key has a limited length, and a run may write hundreds of tables.
        places = "\n".join(sorted(branch.place for branch in self.late))
        digest = hashlib.sha256(places.encode()).hexdigest()[:16]
        return [dg.RunRequest(f"lance:publish:{digest}", asset_selection=list(self.promoted.values()))]

    def text(self, tables: int) -> str:
        return "; ".join(self._sentences(tables))

    def _sentences(self, tables: int) -> Iterator[str]:
        verb = "would delete" if self.options.get("dry_run") else "deleted"
        yield f"{verb} {_counted(self.deleted)}" if self.deleted else "nothing to delete"
        if self.waiting:
            yield f"waiting to be published: {_counted(self.waiting, reasons=False)}"
        if self.refused:
            yield f"cannot delete {_counted(self.refused)}"
        if keeps := self.counts.get(Action.KEEP):
            yield f"{keeps} kept, because a run is unfinished, may be re-executed or was repeated"
        if together := self.counts.get(Action.WITH_OTHERS):
            yield f"{together} kept, because other tables of the run are not merged yet"
        if unknown := self.counts.get(Action.UNKNOWN):
            yield f"{unknown} of runs that this Dagster instance does not know"
        if self.problems:
            yield f"{counted(len(self.problems), 'table')} could not be read"
        if self.visited < tables:
            yield f"{counted(tables - self.visited, 'table')} left to the next tick"


def _check(
    watched: Sequence[WatchedTable], keep: KeepFor, waiting: WaitingPolicy, publisher: dg.AssetsDefinition | None
) -> None:
    if not watched:
        raise InvalidInputError("build_branch_sweeper needs at least one table")
    require_duration("keep_failed", keep.failed)
    if waiting not in get_args(WaitingPolicy):
        raise InvalidInputError(f"waiting={waiting!r} is not a policy; choose keep, alert or publish")
    if waiting == "publish" and publisher is None:
        raise InvalidInputError("waiting='publish' needs publisher=, the result of build_publisher")
    if publisher is not None and publisher.partitions_def is not None:
        raise InvalidInputError(
            "a partitioned publisher publishes in the run that writes each partition; give the sweeper a publisher "
            "without partitions, or waiting='alert'"
        )


def _check_options(options: SweeperOptions) -> None:
    if options.get("keep_unknown") is not None:
        require_duration("keep_unknown", options["keep_unknown"])
    if "keep_previews" in options:
        require_duration("keep_previews", options["keep_previews"])
    if "waiting_after" in options:
        require_duration("waiting_after", options["waiting_after"])
    check_flag("dry_run", options.get("dry_run", False))


def _promoted(publisher: dg.AssetsDefinition, watched: Sequence[WatchedTable]) -> dict[str, dg.AssetKey]:
    """Return the promoted node of each table, by the table's name.

    Raises:
        InvalidInputError: The publisher does not publish one of the tables.
    """
    candidates = {table.key for table in watched}
    nodes = {key.to_user_string(): spec.key for spec in publisher.specs for key in _deps(spec) if key in candidates}
    if missing := [table.name for table in watched if table.name not in nodes]:
        raise InvalidInputError(f"the publisher {publisher.node_def.name} does not publish {', '.join(missing)}")
    return nodes


def with_published(watched: Sequence[WatchedTable], publisher: dg.AssetsDefinition | None) -> tuple[WatchedTable, ...]:
    """Return some tables and the other tables of their publisher: what a run wrote to all of them is one candidate."""
    tables: dict[dg.AssetKey, WatchedTable] = {}
    for spec in () if publisher is None else publisher.specs:
        # The promoted nodes have the places of the tables in their metadata.
        place = {key: value for key, value in spec.metadata.items() if key in (md.TABLE, md.SCHEMA)}
        candidate = md.text(spec.metadata, md.CANDIDATE)
        tables |= {key: WatchedTable(key, place) for key in _deps(spec) if key.to_user_string() == candidate}
    return tuple((tables | {table.key: table for table in watched}).values())


def _deps(spec: dg.AssetSpec) -> list[dg.AssetKey]:
    return [dep.asset_key for dep in spec.deps]


def _newest_first(branches: "Mapping[str, Branch]") -> "list[Branch]":
    return sorted(branches.values(), key=lambda branch: branch.created_at, reverse=True)


def _is_left_over(branch: "Branch", keep: timedelta) -> bool:
    from lance_dagster.merge.preview import PREVIEW_OF, PREVIEWING

    # The name alone does not decide: another program may call its branches `preview/...` too.
    is_preview = PREVIEW_OF in branch.metadata or PREVIEWING in branch.metadata
    return is_preview and datetime.now(UTC) - branch.created_at >= keep


def _counted(branches: Sequence[_Swept], *, reasons: bool = True) -> str:
    texts = [f"{branch} ({branch.reason})" if reasons else str(branch) for branch in branches]
    return f"{len(branches)} branch{'es' if len(branches) > 1 else ''}: {md.listed(texts, _NAMED)}"
