"""Find the run branches that wait to be published, and choose among them.

A branch waits when its run is over and `main` lacks its commits: its publisher was deselected, refused it, or runs
later, as after a backfill. The branches that passed their audit are published. Of two branches that replace the same
rows, the newer one supersedes the older one, whether the older one passed or not, so a repaired run takes the place of
a broken one. A re-execution of all steps that succeeded supersedes the run that it repeats, whatever it wrote. Of two
re-executions that continue the same run and repeat the same append, the newer one supersedes the older one.
"""

import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import dagster as dg

from lance_dagster.errors import InvalidInputError, NotFoundError, TableNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.branch_extent import BranchExtent, in_order, newest_materialized, written_heads
from lance_dagster.plugin.commit_properties import runs_of
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import Opened, Publication, landed_as
from lance_dagster.plugin.publish.publish_config import PublishConfig
from lance_dagster.plugin.publish.publish_gate import AuditLog
from lance_dagster.plugin.repeated_appends import PublishedAppend, published_append, redone_on_main
from lance_dagster.plugin.run_branch import (
    BACKFILL_TAG,
    RunChain,
    backfill_of,
    branch_of,
    family_of,
    is_over,
    is_written,
    rest_of_backfill,
    run_of,
    runs_of_backfill,
    started_at,
)
from lance_dagster.table import LanceTable

# `branches.list` takes a glob pattern, so these characters in an id would match the branches of other runs.
_GLOB = frozenset("*?[]")
# The states of a run in which its process may be at work.
_AT_WORK = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
# How often a publisher looks for runs of its backfill that are not over, and after how many seconds: about 50 minutes
# in all.
_LOOKS = 60
_LOOK_AFTER = 3.0
_LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The branches to publish, oldest first, the reasons why others have to wait, and which ones are superseded.

    `overtaken` has each branch that one of `heads` supersedes, and the branch that does.
    """

    heads: tuple[Version, ...] = ()
    waits: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    overtaken: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What a run and the re-executions that continue it wrote to the tables of one publisher.

    It is published whole or not at all: a table that failed its checks, cannot be merged, is held, or was not written
    because the run failed before, keeps the others back. `run_ids` are oldest first.
    """

    run_ids: tuple[str, ...]
    nodes: tuple[PromotedNode, ...]

    @classmethod
    def of(cls, run_id: str, instance: dg.DagsterInstance, nodes: Sequence[PromotedNode]) -> "Candidate":
        """Return the candidate that a run belongs to."""
        # The chain is newest first: its last run is the one that all others continue.
        first = RunChain.of(instance.get_run_by_id(run_id), instance).run_ids[-1:] or (run_id,)
        # A run whose record was deleted is known only by its branch.
        family = family_of(first[0], instance, (run_id,)) or (run_id,)
        rest = (run for run in rest_of_backfill(family[-1], instance) if run not in family)
        return cls(run_ids=(*family, *rest), nodes=tuple(nodes))

    def reasons(
        self,
        look: Callable[[PromotedNode, Sequence[str]], list[str]],
        log: AuditLog,
        is_layered: Callable[[PromotedNode], bool],
    ) -> dict[str, list[str]]:
        """Return the reasons against each table, by the key of its asset.

        Args:
            look: Returns the reasons against what the runs wrote to one table.
            log: The event log.
            is_layered: Returns whether a table is computed from promoted nodes, and written after their publication.
        """
        # Outputs that an asset may skip are missing on purpose.
        needed = [node.candidate for node in self.nodes if not (node.spec.skippable or is_layered(node))]
        missing = log.unwritten(needed, self.run_ids)
        newest = self.run_ids[-1]
        why = f"run {newest} " + (
            "ended before it wrote it" if is_over(newest, log.instance) else "has yet to write it"
        )
        found = {key.to_user_string(): [why] for key in missing}
        for node in self.nodes:
            found.setdefault(node.candidate.to_user_string(), []).extend(look(node, self.run_ids))
        return found


def being_published(table: LanceTable, head: Version, *, but: Sequence[str], instance: dg.DagsterInstance) -> list[str]:
    """Return why a branch that `main` contains is not published yet: its publication is under way, or its process died.

    Args:
        table: The table.
        head: The head of the branch.
        but: The run that asks, and the runs that it continues; their publication is finished by this run.
        instance: The Dagster instance.
    """
    landed = table.branches.is_merged(head)
    by = None if landed is None else landed.properties.get(md.PUBLISHED_BY)
    if by is None or by in but or is_over(by, instance):
        return []
    reason = f"run {by} brought {MAIN} to {landed}, and is not over"
    return [f"{reason}; if the process of that run died, terminate the run, and materialize this node again"]


def keep_whole(
    looked: Sequence[Publication], tables: int, held_back: Callable[[Publication, Version], list[str]]
) -> list[Publication]:
    """Leave out branches of which another publisher has brought other tables to `main` while these were looked at.

    Args:
        looked: The tables, each with the branches to publish.
        tables: The number of tables of the publisher.
        held_back: Looks at the other tables of a candidate anew, and returns the reasons against them.
    """
    runs = {tuple(source.branch for source in one.sources) for one in looked}
    # In the usual case each table has the branches of the same runs, and nothing is looked at again.
    if len(looked) == tables and len(runs) == 1:
        return list(looked)
    kept = []
    for one in looked:
        against = [held_back(one, source) for source in one.sources]
        sources = tuple(source for source, reasons in zip(one.sources, against, strict=True) if not reasons)
        waits = [*one.waiting, *(reason for reasons in against for reason in reasons)]
        about = {**one.about, md.WAITING: waits} if waits else one.about
        kept.append(replace(one, sources=sources, about=about))
    return kept


def written_with(
    looked: Sequence[Publication], others: Iterable[Publication], instance: dg.DagsterInstance
) -> list[Publication]:
    """Return the other tables that have to be published too, so that readers see all tables that a run wrote, or none.

    These are the tables with branches of the same runs. A table that is added this way may have branches of further
    runs, whose tables are added as well.

    Args:
        looked: The tables that are to be published.
        others: Other tables of the publisher, each with the branches that it could publish.
        instance: The Dagster instance, which knows the re-executions of a run.
    """

    def runs_of_branches(one: Publication) -> set[str]:
        runs = {run for source in one.sources if (run := run_of(source.branch)) is not None}
        return {found for run in runs for found in Candidate.of(run, instance, ()).run_ids}

    runs = set[str]().union(*map(runs_of_branches, looked))
    found, left = list[Publication](), list(others)
    # A table that comes along may have branches of further runs, which wrote further tables.
    while more := [one for one in left if not runs.isdisjoint(runs_of_branches(one))]:
        found += more
        left = [one for one in left if one not in more]
        runs = runs.union(*map(runs_of_branches, more))
    return found


def left_out(
    nodes: Iterable[PromotedNode],
    selected: Container[dg.AssetKey],
    chain: RunChain,
    log: AuditLog,
    *,
    open_table: Callable[[PromotedNode], Opened | NotFoundError],
    lost: Callable[[PromotedNode, Sequence[str]], Sequence[str]],
) -> list[PromotedNode]:
    """Return the promoted nodes that a run does not select, although it or a run that it continues writes their tables.

    Such a table cannot come along: Dagster does not let the publisher's step wait for it, so it may not be written yet.
    Tables that are published already are not returned.

    Args:
        nodes: The nodes of the publisher.
        selected: The keys of the promoted nodes that the run selects.
        chain: The run that publishes, and the runs that it continues.
        log: The event log, which has the candidates that each run was to write.
        open_table: Returns the table of a node, or the error that says that it does not exist.
        lost: Returns a reason where what some runs, oldest first, wrote to the table of a node is gone.
    """

    def is_unpublished(node: PromotedNode) -> bool:
        opened = open_table(node)
        # Without a branch the table was published, or the run has yet to write it, or failed before it did.
        if isinstance(opened, NotFoundError) or opened.head is None:
            return not log.written_by(node.candidate, chain) or bool(lost(node, runs))
        return opened.table.branches.is_merged(opened.head) is None

    runs = chain.run_ids[::-1]
    deselected = [node for node in nodes if node.promoted not in selected and not log.is_left_out(node.candidate, runs)]
    # Storage is read only for tables that the runs planned to write.
    planned = [node for node in deselected if any(log.plans([node.candidate], run) for run in chain.run_ids)]
    return list(filter(is_unpublished, planned))


def find_waiting(
    publication: Publication,
    audit: Callable[[Version], Sequence[str]],
    *,
    log: AuditLog,
    within: Sequence[str] = (),
    beside: Callable[[], Iterable[tuple[str, LanceTable]]] = tuple,
) -> Publication:
    """Return the publication of the run branches of a table that wait and passed their audit.

    Args:
        publication: The table.
        audit: Returns the reasons against a version.
        log: The event log.
        within: The partitions to publish; a branch that wrote others is left out. Empty for all.
        beside: Returns the other tables that are published with this one, whole or not at all.
    """
    heads = written_heads(publication.table, publication.table.branches.list("run/*"))
    # A run that is not over may write again, and not all of its checks may have run.
    heads = [head for head in heads if is_over(run_of(head.branch), log.instance)]
    return _with(publication, _choose(publication, heads, audit, log=log, beside=beside, within=frozenset(within)))


def find_by_backfill(
    publication: Publication,
    backfill_id: str,
    audit: Callable[[Version], Sequence[str]],
    *,
    log: AuditLog,
    beside: Callable[[], Iterable[tuple[str, LanceTable]]] = tuple,
    wait: Callable[[str], None] | None = None,
) -> Publication:
    """Return the publication of the branches of a backfill that passed their audit, and note those that have to wait.

    Without branches it publishes the version that an earlier publication of the backfill made, if there is one.

    Args:
        publication: The table.
        backfill_id: The id of the backfill.
        audit: Returns the reasons against a version.
        log: The event log.
        beside: Returns the other tables that are published with this one, whole or not at all.
        wait: Called with the id of a run that wrote the table and is not over, before anything is audited. None when
            the publisher's own run writes candidates: two such runs would wait for each other.
    """
    table = publication.table
    listed = table.branches.list("run/*").values()
    heads = written_heads(
        table, [branch.name for branch in listed if branch.metadata.get(md.BACKFILL_ID) == backfill_id]
    )
    if wait is not None:
        for run_id in (run_of(head.branch) for head in heads):
            if run_id and not is_over(run_id, log.instance):
                wait(run_id)
    choice = _choose(publication, heads, audit, log=log, beside=beside)
    found = _with(publication, choice)
    if choice.heads or choice.waits:
        return found
    # The publication deletes the branches, so a publisher that is retried finds its result in the log of `main`.
    since = started_at(dg.RunsFilter(tags={BACKFILL_TAG: backfill_id}), log.instance)
    return replace(found, landed=landed_as(table, {md.BACKFILL_ID: (backfill_id,)}, since))


def without_foreign_backfill(chain: RunChain, nodes: Sequence[PromotedNode], log: AuditLog) -> RunChain:
    """Return a chain without its backfill when no run of the backfill was to write a candidate.

    A person who launches a backfill of promoted nodes alone wants to publish what waits, as by *Materialize*.
    """
    if chain.backfill_id is None:
        return chain
    candidates = [node.candidate for node in nodes]
    writes = any(log.plans(candidates, run.run_id) for run in runs_of_backfill(chain.backfill_id, log.instance))
    return chain if writes else replace(chain, backfill_id=None)


def wait(context: dg.AssetExecutionContext, run_id: str) -> None:
    """Request a retry of the publisher's step, because a run of its backfill is not over; return after the last retry.

    Dagster starts the step when the rows are materialized. The run may still have to check them, and to write the
    other tables of its candidate.
    """
    if context.retry_number < _LOOKS:
        seconds = min(_LOOK_AFTER * (context.retry_number + 1), _LONGEST_WAIT)
        context.log.info("run %s of the backfill is not over; looking again in %d s", run_id, seconds)
        raise dg.RetryRequested(max_retries=_LOOKS, seconds_to_wait=seconds)


def with_whole_run_id(
    config: PublishConfig, nodes: Iterable[PromotedNode], open_table: Callable[[PromotedNode], LanceTable]
) -> PublishConfig:
    """Return a config that names a run by its whole branch, where it has the beginning of a run id.

    Raises:
        InvalidInputError: As for `resolve_run`.
    """

    def tables() -> Iterator[LanceTable]:
        for node in nodes:
            with suppress(TableNotFoundError):
                yield open_table(node)

    given = {"discard": config.discard, "ref": config.ref if run_of(config.ref) is not None else ""}
    whole = {name: resolve_run(tables(), one) for name, one in given.items() if one}
    return config.model_copy(update=whole)


def resolve_run(tables: Iterable[LanceTable], given: str) -> str:
    """Return the run branch that a run id or the beginning of one names; the branch may be missing.

    Args:
        tables: All tables of the publisher: in each of them alone, the beginning may name another run.
        given: `run/<id>` or `<id>`, whole or shortened.

    Raises:
        InvalidInputError: `given` is not a run id, or the names of several run branches begin with it.
    """
    name = given if run_of(given) is not None else branch_of(given)
    if _GLOB & set(name) or name == branch_of(""):
        raise InvalidInputError(f"{given!r} is not a run id: write run/ and the first characters of the id of the run")
    # A whole id needs no search, which would read the names of all branches.
    if len(name) >= len(branch_of(str(uuid.UUID(int=0)))):
        return name
    found = sorted({branch for table in tables for branch in table.branches.list(f"{name}*")})
    # Without a branch the run may be published already; the caller looks for it in the log of `main`.
    if name in found or not found:
        return name
    if len(found) > 1:
        raise InvalidInputError(f"{given!r} is the beginning of several branches: {', '.join(found)}; give more of it")
    return found[0]


def publisher_of(run_id: str, *, nodes: Sequence[PromotedNode], but: Sequence[str], log: AuditLog) -> str | None:
    """Return a run that is not over and may be publishing what a run wrote, or None.

    A run of a backfill publishes the runs of that backfill; any other run that writes candidates, and publishes them,
    publishes the runs that it continues; a run of the publisher alone publishes whatever waits.

    Args:
        run_id: The run that wrote.
        nodes: The nodes of the publisher.
        but: The run that asks, and those that it continues.
        log: The event log.
    """
    backfill_id = RunChain.of(log.instance.get_run_by_id(run_id), log.instance).backfill_id
    for run in log.instance.get_runs(dg.RunsFilter(statuses=list(_AT_WORK))):
        # Also when the nodes are materialized already: the publisher deletes the branches after that.
        if run.run_id not in but and log.plans([node.promoted for node in nodes], run.run_id):
            chain = RunChain.of(run, log.instance)
            alone = not log.plans([node.candidate for node in nodes], run.run_id)
            of_backfill = chain.backfill_id is not None
            if run_id in chain.run_ids or (backfill_id == chain.backfill_id if of_backfill else alone):
                return run.run_id
    return None


def _choose(
    publication: Publication,
    heads: Sequence[Version],
    audit: Callable[[Version], Sequence[str]],
    *,
    log: AuditLog,
    beside: Callable[[], Iterable[tuple[str, LanceTable]]],
    within: frozenset[str] = frozenset(),
) -> Choice:
    table = publication.table
    chosen: list[BranchExtent] = []
    waits: list[str] = []
    superseded: list[str] = []
    overtaken: list[tuple[str, str]] = []
    # Newest first: whether a branch is superseded depends on the newer ones that passed.
    for head in reversed(in_order(heads, publication.candidate, log.instance)):
        one = BranchExtent.of(table, head)
        covering = next((each.head for each in chosen if each.covers(one) or log.redoes(table, each, one)), None)
        overtaken += [] if covering is None else [(head.branch, covering.branch)]
        done = _appended_on_main(one, publication, log.instance)
        newer = covering or _repeated_by(one, publication, log, chosen) or _redone_on_main(one, done, publication, log)
        if newer is not None:
            superseded.append(f"{head} is superseded by {newer}; {_advice(head, beside())}")
        elif (left_out := _left_out(one, done, within)) is not None:
            waits.append(left_out)
        else:
            reasons, is_merged = _judged(table, head, audit, beside)
            # Only a branch that cannot be published is looked for on `main`, which also contains it when a re-execution
            # continued and published it.
            landed = (
                (table.branches.is_merged(head) or _replaced_since(publication, one, log.instance)) if reasons else None
            )
            if landed is not None:
                superseded.append(f"{head} is superseded by {landed}; {_advice(head, beside())}")
            elif reasons:
                waits += reasons
            # A branch that is merged already was left behind by a publisher that died before it deleted the branch.
            elif is_merged:
                continue
            elif (other := next((each for each in chosen if one.shares(each)), None)) is not None:
                overtaken.append((head.branch, other.head.branch))
                waits.append(_overlap(one, other))
            else:
                chosen.append(one)
    heads = tuple(one.head for one in reversed(chosen))
    return Choice(heads=heads, waits=tuple(waits), superseded=tuple(superseded), overtaken=tuple(overtaken))


def _overlap(one: BranchExtent, newer: BranchExtent) -> str:
    """Say why a branch waits of which a newer branch, which is published now, replaced a part."""
    branch = one.head.branch
    return (
        f"{one.head} and the newer {newer.head} both replaced {one.shares(newer)}: materialize the rest of what "
        f"{branch} wrote again, which starts from what is published, then set discard: {branch}"
    )


def _appended_on_main(
    one: BranchExtent, publication: Publication, instance: dg.DagsterInstance
) -> PublishedAppend | None:
    """Return a run whose append `main` has, and which did the work of the run of a branch, or a part of it."""
    run_id, table, candidate = run_of(one.head.branch), publication.table, publication.candidate
    if not one.appends or run_id is None:
        return None
    return published_append(table, candidate, one.partitions, run_id=run_id, instance=instance)


def _redone_on_main(
    one: BranchExtent, done: PublishedAppend | None, publication: Publication, log: AuditLog
) -> Version | None:
    """Return the commit of `main` that published all that the run of a branch appended; `done` is what is known."""
    if done is not None and {*done.partitions} == one.partitions:
        return done.landed
    return redone_on_main(one, publication, log)


def _left_out(one: BranchExtent, done: PublishedAppend | None, within: frozenset[str]) -> str | None:
    """Return why a branch waits whatever its audit says: `main` has a part of its rows, or it is not selected."""
    if done is not None:
        rest = ", ".join(sorted(one.partitions.difference(done.partitions)))
        return (
            f"{one.head} appended to {done.rows} as run {done.run_id} did, and {done.landed} has its rows: materialize "
            f"{rest} again by a new run, then set discard: {one.head.branch}"
        )
    if within and not (one.partitions and one.partitions <= within):
        return f"{one.head} wrote {', '.join(sorted(one.partitions)) or 'the whole table'}, which is not selected"
    return None


def _repeated_by(
    one: BranchExtent, publication: Publication, log: AuditLog, chosen: Sequence[BranchExtent]
) -> str | None:
    """Return what did all the work of the run that wrote a branch again, or None; `chosen` are newer branches."""
    run_id, instance = run_of(one.head.branch) or "", log.instance
    if log.is_left_out(publication.candidate, log.family(run_id, RunChain())):
        return "the next attempt of its step, which succeeded without this output"
    if (repeated := log.repeated_by(run_id)) is not None:
        return f"run {repeated}, which executed all of its steps again"
    run = instance.get_run_by_id(run_id)
    backfill_id = None if run is None else backfill_of(run, instance)
    # A newer branch covers one that replaced rows, if it passed. Appended rows would be added twice.
    if run is None or backfill_id is None or one.replaces:
        return None
    keys, own = sorted(one.partitions), run.tags.get(BACKFILL_TAG)
    runs = {each.run_id: each for each in runs_of_backfill(backfill_id, instance)}
    passed = {run_of(each.head.branch) for each in chosen}

    def counts(run_id: str) -> bool:
        run = runs.get(run_id)
        if run is None or run.tags.get(BACKFILL_TAG) == own or run_id in passed or not run.is_finished:
            return run is not None
        # What failed its audit, or was discarded, takes the place of nothing.
        since = started_at(dg.RunsFilter(run_ids=[run_id]), instance)
        return landed_as(publication.table, {md.RUN_ID: (run_id,)}, since) is not None

    newest = newest_materialized(publication.candidate, instance, keys=keys, by=cache(counts))
    made = [newest[key].run_id for key in keys or (None,) if key in newest]
    if len(made) < len(keys or (None,)) or any(runs[each].tags.get(BACKFILL_TAG) == own for each in made):
        return None
    return f"run {made[0]}, by which a re-execution of its backfill wrote the same partitions"


def _advice(head: Version, beside: Iterable[tuple[str, LanceTable]]) -> str:
    """Return what to do with a superseded branch; discarding it also discards what its run wrote to other tables."""
    waiting = [name for name, table in beside if _is_waiting(table, head.branch)]
    if not waiting:
        return "discard it"
    return f"its run also wrote {', '.join(waiting)}, which waits with it: re-execute the run, or discard all of it"


def _is_waiting(table: LanceTable, branch: str) -> bool:
    head = table.branches.newest(branch)
    return head is not None and is_written(head) and table.branches.is_merged(head) is None


def _judged(
    table: LanceTable,
    head: Version,
    audit: Callable[[Version], Sequence[str]],
    beside: Callable[[], Iterable[tuple[str, LanceTable]]],
) -> tuple[Sequence[str], bool]:
    """Return the reasons against publishing a branch, and whether `main` contains the branch already."""
    if reasons := audit(head):
        return reasons, False
    merge = table.preview_merge(head)
    # A new run replaces an overwrite or a partition; an append or an upsert that waits has to be discarded.
    again = "materialize it again, which starts from what is published"
    advice = f"{again}, then set discard: {head.branch} if it still waits"
    against = [
        f"{head} conflicts with what was published since: {conflict}; {advice}" for conflict in merge.conflicts[:1]
    ]
    if against and (others := [name for name, other in beside() if _is_waiting(other, head.branch)]):
        named = f"its run also wrote {', '.join(others)}, which discard would delete too"
        against = [f"{against[0]}; {named}: to publish only that, select only its nodes, with ref: {head.branch}"]
    return against, merge.already_merged


def _replaced_since(publication: Publication, one: BranchExtent, instance: dg.DagsterInstance) -> Version | None:
    """Return the commit of `main` that published a newer materialization of everything that a branch wrote, or None."""
    table, keys = publication.table, sorted(one.partitions)
    run_id = run_of(one.head.branch)
    since = started_at(dg.RunsFilter(run_ids=[run_id]), instance) if run_id else None
    newest = newest_materialized(publication.candidate, instance, keys=keys, since=since)
    runs = {made.run_id for key, made in newest.items() if not keys or key in one.partitions}
    # The newest materialization is that of the branch itself, or Dagster knows none.
    if not runs or run_id in runs:
        return None
    fork = table.branches.merge_base(one.head, MAIN)
    published = table.log(MAIN, after=fork)
    return next(
        (each for each in published if runs <= set(runs_of(each)) and BranchExtent.of_published(each).covers(one)), None
    )


def _with(publication: Publication, choice: Choice) -> Publication:
    noted = {md.WAITING: choice.waits, md.SUPERSEDED: choice.superseded}
    about = {key: list(reasons) for key, reasons in noted.items() if reasons}
    found = {**publication.about, **about}
    return replace(publication, sources=choice.heads, overtaken=choice.overtaken, about=found)
