"""Execute the publisher's step: do what its config asks for, for the promoted nodes that are selected.

The order is that of `publication`: find, audit, commit, move, retire. Nothing is committed before every table has
passed, and the channel moves for all tables at once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial

import dagster as dg

from lance_dagster.errors import (
    NotFoundError,
    PublishRefusedError,
    RefNotFoundError,
    TableNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.table_check import describe_asset
from lance_dagster.plugin.commit_properties import runs_of
from lance_dagster.plugin.publish.dependencies import Dependencies, read_by
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.promotion_event import as_event, is_reported, promoted_result
from lance_dagster.plugin.publish.publication import (
    Opened,
    Publication,
    Search,
    find_by_ref,
    find_by_run,
    in_turns,
    refuse_branches_named,
    retire_all,
)
from lance_dagster.plugin.publish.publish_config import PublishConfig, Rollback, check_config, require_reason
from lance_dagster.plugin.publish.publish_gate import (
    AuditLog,
    Subject,
    reasons_against,
    refuse_cancelled,
    verdicts_on,
)
from lance_dagster.plugin.publish.publish_together import AuditBeside, PromotedCommit, Together
from lance_dagster.plugin.publish.reaudit import Reaudit, drop_stale_previews, recorded_audit
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.publish.rollback import (
    about_rollback,
    audited_behind,
    is_rollback,
    withdrawn_by,
)
from lance_dagster.plugin.publish.tag_changes import TagChanges
from lance_dagster.plugin.publish.waiting import (
    Candidate,
    WaitingSearch,
    find_by_backfill,
    find_waiting,
    left_out,
    wait,
    with_whole_run_id,
    without_foreign_backfill,
    written_with,
)
from lance_dagster.plugin.publish.whole_candidate import WholeCandidates, is_computed_from, of_this_step
from lance_dagster.plugin.recorded_writes import join_candidate
from lance_dagster.plugin.resource import LanceResource, PinnedTable
from lance_dagster.plugin.run_branch import READS, RunChain, run_of, who_launched
from lance_dagster.repository import LanceRepository
from lance_dagster.repository.commits.snapshot import ChannelHold
from lance_dagster.repository.view import RepositoryView, TableView
from lance_dagster.table import LanceTable

# How often, and after how many seconds, a publisher is retried while runs that it depends on have yet to publish.
_RETRIES = 60
_RETRY_AFTER = 3.0
_LOGGED = 20  # the most tables that one log line names


@dataclass(slots=True, kw_only=True)
class PublishStep:
    """One execution of the publisher's step.

    `partitioned` says that the publisher has the partitions of its candidates, and is part of each run of a backfill.
    """

    context: dg.AssetExecutionContext
    config: PublishConfig
    lance: LanceResource
    tag: str
    checks: Sequence[dg.AssetCheckKey]
    nodes: Sequence[PromotedNode]
    partitioned: bool
    unchecked: bool
    accept_stale: bool = False
    log: AuditLog = field(init=False)
    record: RecordView = field(init=False)
    chain: RunChain = field(init=False)
    together: Together = field(init=False)
    hold: ChannelHold | None = field(init=False)
    chosen: RepositoryView | None = field(init=False, default=None)
    whole: WholeCandidates = field(init=False)
    # The tables that the checks of this step have read, shared by all of its `Reaudit` values.
    seen: dict[dg.AssetCheckKey, dict[dg.AssetKey, PinnedTable]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Read the event log, the record and the channel once for all tables."""
        repository = self.lance.repository_to_publish()
        self.record = RecordView(repository=repository)
        self.log = AuditLog(self.instance, self.record)
        self.chain = without_foreign_backfill(RunChain.of_context(self.context), self.nodes, self.log)
        self.together = self._together(repository)
        join_candidate(repository, self.chain)
        self.hold = self.together.hold
        self.whole = WholeCandidates(
            nodes=self.nodes,
            tag=self.tag,
            table=self._table,
            audit=lambda one, head: self._audit_of(one, head)[1],
            log=self.log,
            record=self.record,
            is_layered=lambda node: is_computed_from(node, {each.promoted for each in self.nodes}, self.context),
        )

    def execute(self, nodes: Sequence[PromotedNode]) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        """Do what the config asks for, and yield the promoted nodes whose tag moved.

        Raises:
            PublishRefusedError: There is nothing to publish, an audit failed, the tags are held, or the run was
                cancelled.
            InvalidInputError: The config contradicts itself or lacks a reason.
        """
        check_config(self.config)
        self.config = with_whole_run_id(self.config, self.nodes, self._table, self.record)
        asked = {"discarded": bool(self.config.discard), "held": self.config.hold, "released": self.config.release}
        for done in (done for done, wanted in asked.items() if wanted):
            refuse_cancelled(self.context)
            if done == "discarded":
                # A candidate is discarded as a whole: a table that is left could be published without the others.
                self._changes.discard(self.nodes)
            else:
                # `_sort` reads the hold afterwards: one config may ask for a release and a publication.
                self.hold = self._changes.move(done, nodes)
        # The publication comes last: `release` together with `ref` first releases the tag, so that it may be moved.
        if self.config.ref or not any(asked.values()):
            yield from self._publish(nodes)

    def _publish(self, nodes: Sequence[PromotedNode]) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        finished = {} if self.config.dry_run else self._finish(nodes)
        # The gate comes first because it reads the event log only; the audit of a planned merge reads rows.
        found, ignored = self._gate(self._find(nodes, is_finished=bool(finished)))
        found, refused = self.reaudit.plan(found)
        merged: list[Publication] = []
        try:
            # This stands inside the `try`, because a refusal has to drop the previews too.
            ignored += self._refuse(found, refused)
            if self.config.dry_run:
                for one in found:
                    verb = "roll back to" if is_rollback(one) else "publish"
                    self.context.log.info("dry run: would %s %s", verb, ", ".join(map(str, one.audited)))
                return
            merged = self._merge(found, finished)
        finally:
            # After the merge, `main` contains the previews; without it, nobody needs them.
            self.reaudit.drop([*found, *merged])
        self._log_moves(merged)
        published = {one.candidate for one in merged}
        moved = [*(one for one in finished.values() if one.candidate not in published), *merged]
        yield from self._report(moved, ignored)
        self._clean_up(moved)

    def _report(self, moved: Sequence[Publication], ignored: Sequence[str]) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        """Yield the materializations of promoted nodes, and log those of nodes that this run does not select."""
        # In most publications each table links to one run, and all tables link to the same run.
        has_run = cache(self.instance.has_run)
        for one in moved:
            # A second event for the same version would start the readers for nothing.
            if self._is_unchanged(one):
                self.context.log.info("nothing new for %s of %s: it is at %s", self.tag, one.name, one.promoted_to)
            else:
                move = {"lance/tag": self.tag, md.WHO: self.who, md.REASON: self.config.reason}
                result = promoted_result(one, move, ignored, has_run)
                if one.promoted in self.context.selected_asset_keys:
                    yield result
                else:
                    # It came along: the same run wrote it, or its publication died, perhaps that of other partitions.
                    for key in (one.sources and self._partition_keys) or (None,):
                        self.context.log_event(as_event(result, one.promoted_to or one.version, key))

    def _finish(self, nodes: Sequence[PromotedNode]) -> dict[dg.AssetKey, Publication]:
        """Do what is left of publications whose publishers died; return the publications of the nodes to report."""
        if self.hold is not None:
            return {}
        # A publisher that died after it moved the channel left `main` and the tags behind.
        if self._is_alone:
            self.together.catch_up(self._names_of(nodes))
        finished = self._of_dead(self.together.newest_promotion())
        if promoted := self.together.finish():
            self.together = replace(self.together, started=self.together.channel_now())
        return finished | self._of_dead(promoted, is_new=True)

    def _of_dead(self, promoted: Iterable[PromotedCommit], *, is_new: bool = False) -> dict[dg.AssetKey, Publication]:
        """Return the publications of commits whose publishers died, by candidate.

        Args:
            promoted: The commits.
            is_new: Whether this step promoted them, so that nobody has reported them.
        """
        names = dict(zip(self._names_of(self.nodes), self.nodes, strict=True))
        finished: dict[dg.AssetKey, Publication] = {}
        for each in promoted:
            by = each.commit.properties.get(md.RUN_ID, "")
            run = self.instance.get_run_by_id(by)
            # A publisher that is alive, or succeeded, reports its own nodes and deletes its branches. What a publisher
            # of another instance promoted is reported there.
            is_dead = is_new if run is None else run.is_finished and not run.is_success
            if by != self.chain.run_id and not is_dead:
                continue
            view = self.together.repository.at(each.channel.commit)
            for node in (names[name] for name in each.names if name in names and name in view):
                version = view[str(self.lance.address_of(node.candidate, node.metadata))].version
                one = replace(self._empty(node, self._open(node)), landed=version, promoted_to=version)
                finished[node.candidate] = replace(one, previous=None) if is_new else one
            if is_new:
                self.context.log.info("finished the publication of run %s: %s", by, ", ".join(each.names))
        return finished

    def _clean_up(self, merged: Sequence[Publication]) -> None:
        """Delete the run branches that were published, and warn about branches that only other jobs delete."""
        # After the results: the promoted nodes are materialized even if a branch cannot be deleted.
        read = read_by(self.context, [one.candidate for one in merged])
        for one in merged:
            if steps := read.get(one.candidate):
                kept = f"{one.name}: {', '.join(steps)} may be reading it; the branch sweeper deletes it later"
                self.context.log.info("branch kept: %s", kept)
        for reason in retire_all([one for one in merged if one.candidate not in read], self.chain):
            self.context.log.warning("branch kept: %s", reason)
        for one in merged if self.chain.backfill_id is not None else ():
            drop_stale_previews(one.table, self.chain, self.instance, READS)
        if waits := self.together.uncollected(merged):
            self.context.log.warning(waits)

    def _find(self, nodes: Sequence[PromotedNode], *, is_finished: bool) -> list[Publication]:
        """Return the publications of the tables that have something to publish.

        Args:
            nodes: The selected nodes.
            is_finished: Whether the publication of another publisher was finished, so that there need be nothing else.

        Raises:
            PublishRefusedError: No table has anything that may be published, or a table lacks a version that it needs.
        """
        search = Search(nothing_new=is_finished)
        # A run is looked up in each table separately. Any other ref may name one commit of all tables.
        if self.config.ref and run_of(self.config.ref) is None:
            # A rollback that holds moves all tables; else the promotions of the selected tables count.
            names = None if self.config.rollback is Rollback.hold else self._names_of(nodes)
            self.chosen = self.together.view_of(self.config.ref, names)
        for one in self._look_whole(nodes, search):
            self._sort(one, search)
        self._keep_together(search)
        self._keep_dependent_back(search)
        self._keep_undivided(search)
        if search.wrong or not (search.found or (search.nothing_new and not search.refused)):
            raise search.refusal(self.tag, chosen=bool(self.config.ref))
        refuse_branches_named(self.tag, search.found)
        self._check_rollback(search.found)
        for reason in search.missing:
            self.context.log.warning("not published, so its readers are not run: %s", reason)
        for one in search.found:
            for reason in one.waiting:
                self.context.log.warning("%s: it waits: %s", one.name, reason)
            # A superseded branch loses no rows, so this is not a warning.
            for superseded in one.superseded:
                self.context.log.info("%s: %s", one.name, superseded)
        return search.found

    def _look_whole(self, nodes: Sequence[PromotedNode], search: Search) -> list[Publication]:
        """Return the publications of tables, and of others that the same runs wrote: readers see a run as a whole."""
        looked, left = self._look_all(nodes, search), [node for node in self.nodes if node not in nodes]
        if not (left and self._is_alone):
            return self.whole.without_overtaken(looked, ())
        # With a search of its own: its messages are about nodes that nobody selected.
        others = self._look_all(left, Search())
        kept, beside = self.whole.without_overtaken(looked, others), self.whole.without_overtaken(others, looked)
        return [*kept, *written_with(kept, beside, self.log)]

    def _look_all(self, nodes: Sequence[PromotedNode], search: Search) -> list[Publication]:
        """Return the publication of each table that was found."""
        looked, by_run = list[Publication](), not self.config.ref or run_of(self.config.ref) is not None
        # Storage is read for several tables at a time; the event log is read by this thread only.
        for node, opened in zip(nodes, in_turns(self._try_open, nodes), strict=True):
            try:
                looked.append(self._look(node, opened))
            except (TableNotFoundError, RefNotFoundError, VersionNotFoundError) as error:
                # A run may write only some of the tables, so its branch may be missing in others. Any other ref
                # must exist in every table, and so must a table that the run has written.
                search.nothing_new |= self.log.stored_nothing(node.candidate, self.chain.run_ids)
                lost = self.whole.lost(node, self._named_runs()) if by_run else []
                noted = search.missing if by_run and not lost else search.wrong
                noted.append(f"{node.candidate.to_user_string()}: {''.join(lost) or error}")
        return looked

    def _named_runs(self) -> Sequence[str]:
        """Return the runs of the candidate that `ref` names, or of this step without a ref, oldest first."""
        named = run_of(self.config.ref) if self.config.ref else None
        return self.chain.run_ids[::-1] if named is None else Candidate.of(named, self.log, self.nodes).run_ids

    def _keep_together(self, search: Search) -> None:
        """Leave out all tables of a run when one of them is held or not selected: they are published together."""
        # With `ref` a person chose the tables. In a run of the publisher alone, `WholeCandidates` has decided already.
        if not search.found or self.config.ref or self._is_alone:
            return
        selected = self.context.selected_asset_keys
        if search.held:
            search.missing += [f"{one.name}: it waits with {', '.join(search.held)}" for one in search.found]
            search.found.clear()
            return
        nodes = of_this_step(self.nodes, self.context, self.log)
        if left := left_out(nodes, selected, self.chain, self.log, open_table=self._try_open, lost=self.whole.lost):
            search.refuse_part([node.candidate for node in left], [node.promoted for node in left])

    def _keep_dependent_back(self, search: Search) -> None:
        """Leave out rows that were computed from unpublished versions of other runs of the same backfill."""
        # `ignore_failed_checks` covers these too. Without a backfill a run reads only what is published.
        own = self.chain.backfill_id is None and not (self.config.ref or self._is_alone)
        if not (own or self.config.ignore_failed_checks):
            dependencies = Dependencies(self.instance, self.record, self.lance.open_uri)
            search.found, waiting = dependencies.keep_back(search.found)
            # When each run of a backfill publishes, an earlier run may be about to publish what is missing.
            if dependencies.under_way and self.chain.backfill_id is not None:
                raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=_RETRY_AFTER)
            search.missing += [f"{one.name}: {reason}" for one in waiting for reason in one.waiting]
            # A run of *Materialize* succeeds, since it publishes whatever waits; a backfill was to publish these.
            search.refused += [one.name for one in waiting if self.chain.backfill_id is not None]

    def _keep_undivided(self, search: Search) -> None:
        """Leave out all tables where readers would see an older commit in these alone, since its rows come along."""
        # With `ref` a person chose the tables.
        lacking = self.together.divided(search.found) if search.found and not self.config.ref else {}
        if not lacking:
            return
        others = [node for name, node in zip(self._names_of(self.nodes), self.nodes, strict=True) if name in lacking]
        promoted = [*(one.promoted for one in search.found), *(node.promoted for node in others)]
        commits = ", ".join(dict.fromkeys(map(str, lacking.values())))
        advice = f"materialize {', '.join(key.to_user_string() for key in promoted)} together, with ref: {MAIN}"
        search.missing += [
            f"{one.name}: it waits with {', '.join(lacking)}: {commits} would come along in part, because {self.tag} "
            f"was moved back from it or died before it was promoted; {advice}"
            for one in search.found
        ]
        # A run of *Materialize* succeeds, since it publishes whatever can be published.
        search.nothing_new |= self._is_alone
        search.refused += [] if self._is_alone else [one.name for one in search.found]
        search.found.clear()

    def _sort(self, one: Publication, search: Search) -> None:
        """Decide whether a table is published, is left out with a warning, or stops the publication of all."""
        hold = (one.previous.hold if one.previous else None) or self.hold
        # A rollback that holds may take a held channel further back.
        if one.audited and hold and not self._rolls_back_all:
            # The table is neither merged nor promoted: its branch waits, and is published after the release.
            search.held.append(one.name)
            search.missing.append(
                f"{one.name}: {self.tag} is {hold}; set release: true and a reason to publish it again"
            )
        elif one.audited:
            search.found.append(one)
        # The event log says that a run wrote the table. A missing branch is then an error: it was
        # deleted, or the run wrote under another root.
        elif runs := self.log.written_by(one.candidate, self.chain):
            search.wrong.append(f"{one.name}: run {runs[0]} materialized it, but left no branch in {one.table.uri}")
        # An output that was None: there is nothing to publish, and nothing is missing.
        elif self.log.stored_nothing(one.candidate, self.chain.run_ids):
            search.nothing_new = True
        # At the end of a backfill every branch of the table failed: other tables are published without it.
        elif one.waiting and self.chain.backfill_id is not None:
            search.refused.append(one.name)
            search.missing += one.waiting
        # This is not an error: a run of *Materialize* succeeds when everything is published already.
        elif self._is_alone:
            search.nothing_new = True
            search.missing += [f"{one.name}: it waits: {reason}" for reason in one.waiting]
            if not one.waiting and (ahead := self.together.ahead(one)):
                search.missing.append(f"{one.name}: {ahead}")
        else:
            search.missing.append(f"{one.name}: no run branch of this run")

    def _open(self, node: PromotedNode) -> Opened:
        return self.together.as_named(Opened.of(self._table(node), self.tag, None if self.config.ref else self.chain))

    def _try_open(self, node: PromotedNode) -> Opened | NotFoundError:
        try:
            return self._open(node)
        except NotFoundError as error:
            return error

    def _empty(self, node: PromotedNode, opened: Opened) -> Publication:
        table, previous = opened.table, opened.previous
        return Publication(candidate=node.candidate, promoted=node.promoted, table=table, previous=previous)

    def _look(self, node: PromotedNode, opened: Opened | NotFoundError) -> Publication:
        if isinstance(opened, NotFoundError):
            raise opened
        empty = self._empty(node, opened)
        if self.config.ref:
            if self.chosen is not None:
                landed = self.together.version_in(self.chosen, empty, self.config.ref)
                return replace(empty, landed=landed, chosen=True)
            return find_by_ref(empty, self.config.ref, instance=self.instance, record=self.record)
        # The branch of a run may have rows of an attempt that failed; the next one left the optional output out.
        is_left_out = self.log.is_left_out(node.candidate, self.chain.run_ids[::-1])
        head = None if is_left_out else opened.head
        one = find_by_run(empty, self.chain, head=head, record=self.record)
        if one.audited:
            return one

        def audit(head: Version) -> list[str]:
            return self._audit_of(one, head)[1] or self.whole.held_back(one, head)

        search = WaitingSearch(log=self.log, record=self.record, beside=partial(self.whole.others, one))
        # A partitioned publisher runs in each run of the backfill, and publishes what that run wrote.
        if (backfill := self.chain.backfill_id) is not None and not self.partitioned:
            later = partial(wait, self.context) if self._is_alone else None
            return self._unless_withdrawn(find_by_backfill(empty, backfill, audit, search=search, wait=later))
        # In a job, branches of other runs keep waiting: the job was launched to publish its own rows.
        if not self._is_alone:
            return one
        return find_waiting(empty, audit, search=search, within=self._partition_keys)

    def _unless_withdrawn(self, one: Publication) -> Publication:
        """Return a table without the version that its backfill published, if the channel was moved back from it."""
        named = one.previous.version if one.previous and one.previous.branch == MAIN else 0
        if one.landed is None or one.landed.number <= named or not self.together.has_left(one, one.landed):
            return one
        return replace(one, landed=None)

    @property
    def _partition_keys(self) -> tuple[str, ...]:
        has_partitions = self.context.has_partition_key or self.context.has_partition_key_range
        return tuple(self.context.partition_keys) if self.partitioned and has_partitions else ()

    def _check_rollback(self, found: Sequence[Publication]) -> None:
        """Refuse a rollback that changes none of its tables, and warn of tables that it leaves out."""
        if self.chosen is None:
            return
        self.together.refuse_unchanged(self.config.ref, self.chosen, found)
        if not self._rolls_back_all and (stay := self.together.left_behind(self.chosen, found)):
            self.context.log.warning(stay)

    @property
    def _rolls_back_all(self) -> bool:
        return self.chosen is not None and self.config.rollback is Rollback.hold

    @property
    def _is_alone(self) -> bool:
        """Whether the run writes no candidate before this step, as where the publisher was launched by itself."""
        # All candidates count, not only those of the selected nodes: a run that writes any of them is that of a job.
        executed = self.context.job_def.asset_layer.executable_asset_keys
        written = [node for node in self.nodes if node.candidate in executed]
        return not (self.config.ref or of_this_step(written, self.context, self.log))

    def _gate(self, found: Sequence[Publication]) -> tuple[list[Publication], list[str]]:
        """Verify the audit of every version, and return the reasons against it that the config ignores.

        Raises:
            PublishRefusedError: There are reasons, and the config does not ignore them.
        """
        gated, reasons = list[Publication](), list[str]()
        # All tables are audited before one is refused, so that the error has every reason.
        for one in found:
            passing = one
            for version in one.audited:
                passing, against = self._audit_of(passing, version)
                reasons += against
            gated.append(passing)
        return gated, self._refuse(found, reasons)

    def _audit_of(self, one: Publication, version: Version) -> tuple[Publication, list[str]]:
        """Return the reasons against one version, and the publication with what was evaluated to find them."""
        version = audited_behind(one.table, version)
        if recorded_audit(version):
            return self.reaudit.audit_recorded(one, version)
        subject = Subject.of(one.candidate, version)
        if not isinstance(subject, str):
            verdicts = self.record.verdicts(one.table, subject.commit_id)
            reasons = reasons_against(
                subject, self.checks, log=self.log, chain=self.chain, verdicts=verdicts, unchecked=self.unchecked
            )
            if not one.chosen:
                return one, reasons
            # A check may have been added since readers had the version, or the asset may have got another key.
            passed = verdicts_on(subject, self.checks, log=self.log, chain=self.chain, verdicts=verdicts)
            if reasons and (not passed or False in passed.values()):
                return one, reasons
            missing = [check for check, verdict in passed.items() if verdict is None]
            if not missing:
                return self.reaudit.audit_chosen(one, version)
            return replace(self.reaudit, checks=missing).audit_main(one, version, reasons[0])
        if version.branch == MAIN:
            return self.reaudit.audit_main(one, version, subject)
        return one, [subject]

    def _refuse(self, found: Sequence[Publication], reasons: list[str]) -> list[str]:
        if reasons and not self.config.ignore_failed_checks:
            raise PublishRefusedError(f"refused to publish {', '.join(one.name for one in found)}", reasons)
        for reason in reasons:
            self.context.log.warning("ignored, because %r: %s", self.config.reason, reason)
        return reasons

    def _merge(self, found: Sequence[Publication], finished: dict[dg.AssetKey, Publication]) -> list[Publication]:
        """Publish run branches and rollbacks by one commit, move the channel, and return what it names then.

        Args:
            found: The publications.
            finished: Gets the publications of publishers that committed meanwhile and died.
        """
        refuse_cancelled(self.context)
        # The withdrawn versions are listed before a revert adds its own commit to the log of `main`.
        withdrawn = {one.name: withdrawn_by(one) for one in found if is_rollback(one)}
        if withdrawn:
            require_reason(self.config.reason, "a rollback")
            describe = partial(about_rollback, kind=self.config.rollback.name, partitioned=self.partitioned)
            found = [describe(one, withdrawn[one.name]) if one.name in withdrawn else one for one in found]
            if self.partitioned:
                self.context.log.warning("the rollback of %s moves all partitions, not one", ", ".join(withdrawn))
        self._begin(found)
        found = [self.together.with_writes(one) for one in found]
        # A rollback that holds makes no commit: the channel names an earlier one again.
        if withdrawn and self.config.rollback is Rollback.hold:
            return self.together.roll_back(self.chosen, found)
        audit = AuditBeside(names_read=self.reaudit.names_read, look=self._look_beside)
        restored = self.chosen if withdrawn else None
        done = self.together.commit(found, self._plan_again, audit, restored)
        # What other publishers committed before comes first.
        finished |= self._of_dead(self.together.finish(before=done.commit), is_new=True)
        return self.together.promote(done, restored, divide=bool(self.config.ref))

    def _begin(self, found: Sequence[Publication]) -> None:
        """Create the repository if there is none, and add tables that have the tag already to the channel."""
        # A lake whose tables were written by another program has none so far; a refused publication makes none.
        self.lance.create_repository()
        if adopted := self.together.adopt(found):
            named = ", ".join(f"{name} at {version}" for name, version in adopted.items())
            root = self.together.repository.root
            self.context.log.info("%s of the repository %s begins with what the tags name: %s", self.tag, root, named)

    def _tagged(self, nodes: Sequence[PromotedNode]) -> list[Publication]:
        """Return the tables of some nodes that have the tag."""
        opened = zip(nodes, in_turns(self._try_open, nodes), strict=True)
        found = [self._empty(node, one) for node, one in opened if not isinstance(one, NotFoundError)]
        return [one for one in found if one.previous is not None]

    def _together(self, repository: LanceRepository) -> Together:
        together = Together(
            repository=repository,
            channel=self.tag,
            chain=self.chain,
            about=self._about_move,
            record=self.record,
        )
        return replace(together, started=together.channel_now())

    def _plan_again(self, one: Publication) -> Publication:
        """Preview and audit a merge, because `main` moved since the audit of the source or since the last preview."""
        self.reaudit.drop([one])
        planned, reasons = self.reaudit.audit(self.reaudit.preview(one))
        try:
            self._refuse([one], reasons)
            # The audit may have taken long.
            refuse_cancelled(self.context)
        except PublishRefusedError:
            # `_publish` drops the previews that it knows of; this one was made later.
            self.reaudit.drop([planned])
            raise
        return planned

    def _look_beside(self, found: Sequence[Publication], views: Mapping[dg.AssetKey, TableView], hint: str) -> None:
        """Audit publications again whose checks read other versions of tables than readers would get."""
        # Tables of the same publication are committed as they were audited; `views` names their staged versions.
        audited = {one.candidate: PinnedTable(table=one.table, version=one.planned or one.audited[-1]) for one in found}
        for asset in views.keys() - audited.keys():
            table = self.lance.table(asset, describe_asset(self.context, asset)[0])
            audited[asset] = PinnedTable(table=table, version=views[asset].version)
        for one in found:
            self._refuse([one], [reason + hint for reason in self.reaudit.audit_beside(one, audited)])

    def _log_moves(self, moved: Sequence[Publication]) -> None:
        """Log the move of the channel, and the tables that lag behind."""
        # Each line of the log is an event that Dagster stores, so there is one for all tables that moved together.
        if moved:
            more = [f"and {len(moved) - _LOGGED} more"] if len(moved) > _LOGGED else []
            self.context.log.info("%s of %s", self.tag, "; ".join([*(one.move for one in moved[:_LOGGED]), *more]))
        for one in moved:
            for reason in one.lagging:
                self.context.log.warning("%s lags behind the channel: %s", one.name, reason)

    @property
    def _changes(self) -> TagChanges:
        return TagChanges(
            context=self.context,
            config=self.config,
            lance=self.lance,
            tag=self.tag,
            together=self.together,
            table=self._table,
            tagged=self._tagged,
            begin=self._begin,
            record=self.record,
            about=self._about_move,
        )

    def _names_of(self, nodes: Iterable[PromotedNode]) -> list[str]:
        """Return the names that tables have in a repository: their places below the root."""
        return [str(self.lance.address_of(node.candidate, node.metadata)) for node in nodes]

    def _is_unchanged(self, one: Publication) -> bool:
        """Return whether the tag did not move, and the promoted node has an event for its version."""
        if one.promoted_to is None or one.previous is None or one.previous.ref != str(one.promoted_to):
            return False
        # The readers of a re-executed run wait for this step, though an earlier attempt moved the tag.
        if not self.config.ref and set(runs_of(one.version)) & set(self.chain.run_ids):
            return False
        return is_reported(one, self._partition_keys, self.instance)

    def _table(self, node: PromotedNode) -> LanceTable:
        # A table of the repository caches what it read, so the commit does not read again what this step has read. In
        # an environment the resource opens the table, because that forks it at its first use.
        if not self.lance.environment:
            with suppress(TableNotFoundError):
                return self.together.repository.table(str(self.lance.address_of(node.candidate, node.metadata)))
        return self.lance.table(node.candidate, node.metadata)

    @property
    def reaudit(self) -> Reaudit:
        """What evaluates the checks that this step has to evaluate itself."""
        return Reaudit(
            context=self.context,
            lance=self.lance,
            chain=self.chain,
            checks=self.checks,
            log=self.log,
            record=self.record,
            accept_stale=self.accept_stale,
            seen=self.seen,
        )

    @property
    def instance(self) -> dg.DagsterInstance:
        """The Dagster instance of the run."""
        instance: dg.DagsterInstance = self.context.instance
        return instance

    @property
    def who(self) -> str:
        """The person or automation that launched the run, by the tags of the run; empty when these do not say."""
        return who_launched(self.context.run)

    @property
    def _about_move(self) -> dict[str, str]:
        found = {md.RUN_ID: self.chain.run_id, md.REASON: self.config.reason, md.WHO: self.who}
        return {key: value for key, value in found.items() if value}
