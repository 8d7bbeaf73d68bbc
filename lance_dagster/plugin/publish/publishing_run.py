"""The run of a publisher: what it was asked for, and what it reads once for all tables."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import dagster as dg

from lance_dagster.errors import InvalidInputError, NotFoundError, PublishRefusedError, Remedy, TableNotFoundError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.publish.channel_publisher import ChannelPublisher
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import Opened, Publication
from lance_dagster.plugin.publish.publish_config import PublishConfig
from lance_dagster.plugin.publish.publish_gate import AuditLog, after_failed_audit
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.recorded_writes import join_candidate
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.run_branch import RunChain, branch_of, run_of, runs_of_backfill, who_launched
from lance_dagster.repository.commits.snapshot import ChannelHold
from lance_dagster.repository.run_branches import is_whole, meant_branch
from lance_dagster.store import concurrently
from lance_dagster.table import LanceTable

# `branches.list` takes a glob pattern, so these characters in an id would match the branches of other runs.
_GLOB = frozenset("*?[]")


@dataclass(slots=True, kw_only=True)
class PublishingRun:
    """The run of a publisher, in one of its steps.

    Attributes:
        context: The context of the step.
        config: What a person asks for, and why.
        lance: The resource.
        tag: The name of the tag, and of the channel.
        checks: The blocking checks of the tables.
        nodes: The nodes of the publisher, which are published together.
        partitioned: Whether the publisher has the partitions of its candidates, and is part of each run of a backfill.
        unchecked: Whether a table without blocking checks may be published.
        accept_stale: Whether plain checks need not be evaluated on a planned merge.
        record: The record of the lake.
        log: The event log.
        chain: The run and the runs that it continues.
        publisher: The repository and the channel.
        hold: The hold of the channel, which is one for all tables.
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
    record: RecordView = field(init=False)
    log: AuditLog = field(init=False)
    chain: RunChain = field(init=False)
    publisher: ChannelPublisher = field(init=False)
    hold: ChannelHold | None = field(init=False)

    def __post_init__(self) -> None:
        """Read the event log, the record and the channel once for all tables."""
        repository = self.lance.repository_to_publish()
        self.record = RecordView(repository=repository)
        self.log = AuditLog(self.instance, self.record)
        self.chain = _without_foreign_backfill(RunChain.of_context(self.context), self.nodes, self.log)
        self.publisher = ChannelPublisher(
            repository=repository,
            channel=self.tag,
            chain=self.chain,
            about=self.about,
            record=self.record,
            nodes=dict(zip(self.names_of(self.nodes), (node.promoted for node in self.nodes), strict=True)),
            divides=bool(self.config.ref),
        )
        self.read_channel()
        self.hold = self.publisher.hold
        join_candidate(repository, self.chain)

    def read_channel(self) -> None:
        """Take the channel as it is now for the state that this step starts from."""
        self.publisher = replace(self.publisher, started=self.publisher.channel_now())

    def resolve_config(self) -> None:
        """Let the config name a run by its whole branch, where it has the beginning of a run id.

        Raises:
            InvalidInputError: As for `resolve_run`.
        """

        def tables() -> Iterator[LanceTable]:
            for node in self.nodes:
                with suppress(TableNotFoundError):
                    yield self.table(node)

        config, record = self.config, self.record
        names = {"discard": config.discard, "ref": config.ref if run_of(config.ref) is not None else ""}
        resolved = {name: resolve_run(tables(), run, record) for name, run in names.items() if run}
        self.config = config.model_copy(update=resolved)

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
    def about(self) -> dict[str, str]:
        """Reason, person and run, kept with the commit and with the move of the channel."""
        about = {md.RUN_ID: self.chain.run_id, md.REASON: self.config.reason, md.WHO: self.who}
        return {key: value for key, value in about.items() if value}

    @property
    def partition_keys(self) -> tuple[str, ...]:
        """The partitions that a partitioned publisher is launched for; empty for all."""
        has_partitions = self.context.has_partition_key or self.context.has_partition_key_range
        return tuple(self.context.partition_keys) if self.partitioned and has_partitions else ()

    @property
    def is_alone(self) -> bool:
        """Whether the run writes no candidate before this step, as where the publisher was launched by itself."""
        # All candidates count, not only those of the selected nodes: a run that writes any of them is that of a job.
        executed = self.context.job_def.asset_layer.executable_asset_keys
        writing = [node for node in self.nodes if node.candidate in executed]
        return not (self.config.ref or self.nodes_of_step(writing))

    def nodes_of_step(self, nodes: Sequence[PromotedNode]) -> list[PromotedNode]:
        """Return some nodes without those that a later step of the run has to publish.

        Dagster splits a publisher into several steps where a candidate reads a node that the publisher promotes: what
        is computed from a promoted table is published after that table.
        """
        selected = self.context.selected_asset_keys

        def is_later(node: PromotedNode) -> bool:
            # The event log is asked last: this is called often, and most nodes are of this step.
            if node.promoted in selected or not self._is_computed_from(node, selected):
                return False
            return all(self.log.plans([key], self.context.run.run_id) for key in (node.candidate, node.promoted))

        return [node for node in nodes if not is_later(node)]

    def is_layered(self, node: PromotedNode) -> bool:
        """Return whether a candidate is computed from promoted nodes, so that others are published before it."""
        return self._is_computed_from(node, {own.promoted for own in self.nodes})

    def _is_computed_from(self, node: PromotedNode, promoted: Collection[dg.AssetKey]) -> bool:
        """Return whether the candidate of a node reads promoted nodes, itself or through other assets."""
        graph = self.context.job_def.asset_layer.asset_graph
        ancestors, todo = {node.candidate}, [node.candidate]
        while todo:
            key = todo.pop()
            new = graph.get(key).parent_keys - ancestors if graph.has(key) else set[dg.AssetKey]()
            ancestors |= new
            todo += new
        return not ancestors.isdisjoint(promoted)

    def names_of(self, nodes: Iterable[PromotedNode]) -> list[str]:
        """Return the names that tables have in a repository: their places below the root."""
        return [str(self.lance.address_of(node.candidate, node.metadata)) for node in nodes]

    def table(self, node: PromotedNode) -> LanceTable:
        """Open the table of a node.

        Raises:
            TableNotFoundError: There is no such table.
        """
        # A table of the repository caches what it read, so the commit does not read again what this step has read. In
        # an environment the resource opens the table, because that forks it at its first use.
        if not self.lance.environment:
            with suppress(TableNotFoundError):
                return self.publisher.repository.table(str(self.lance.address_of(node.candidate, node.metadata)))
        return self.lance.table(node.candidate, node.metadata)

    def opened(self, node: PromotedNode) -> Opened:
        """Open the table of a node, with the tag before the publication and the newest version of the chain.

        Raises:
            TableNotFoundError: There is no such table.
        """
        return self.publisher.as_named(Opened.of(self.table(node), self.tag, None if self.config.ref else self.chain))

    def opened_or_missing(self, node: PromotedNode) -> Opened | NotFoundError:
        """Open the table of a node as `opened` does; return the error where that raises."""
        try:
            return self.opened(node)
        except NotFoundError as error:
            return error

    def publication(self, node: PromotedNode, opened: Opened) -> Publication:
        """Return the publication of a table before it is known what to publish."""
        return Publication(
            candidate=node.candidate,
            promoted=node.promoted,
            table=opened.table,
            previous=opened.previous,
            withdrawn=self.publisher.withdrawn(opened.table),
        )

    def tagged(self, nodes: Sequence[PromotedNode]) -> list[Publication]:
        """Return the tables of some nodes that have the tag."""
        opened = zip(nodes, concurrently(self.opened_or_missing, nodes), strict=True)
        return [
            self.publication(node, table)
            for node, table in opened
            if not isinstance(table, NotFoundError) and table.previous is not None
        ]

    def begin(self, publications: Sequence[Publication]) -> None:
        """Create the repository if there is none, and add tables that have the tag already to the channel."""
        # A lake whose tables were written by another program has none so far; a refused publication makes none.
        self.lance.create_repository()
        if adopted := self.publisher.adopt(publications):
            named = ", ".join(f"{name} at {version}" for name, version in adopted.items())
            root = self.publisher.repository.root
            self.context.log.info("%s of the repository %s begins with what the tags name: %s", self.tag, root, named)

    def refuse(self, publications: Sequence[Publication], reasons: list[str]) -> list[str]:
        """Refuse to publish tables for some reasons, unless the config ignores failed checks; return the reasons.

        Raises:
            PublishRefusedError: There are reasons, and the config does not ignore them.
        """
        if reasons and not self.config.ignore_failed_checks:
            branches = [version.branch for publication in publications for version in publication.audited]
            raise PublishRefusedError(
                f"refused to publish {', '.join(publication.name for publication in publications)}",
                reasons,
                Remedy(after_failed_audit(branches)),
            )
        for reason in reasons:
            self.context.log.warning("ignored, because %r: %s", self.config.reason, reason)
        return reasons


def _without_foreign_backfill(chain: RunChain, nodes: Sequence[PromotedNode], log: AuditLog) -> RunChain:
    """Return a chain without its backfill when no run of the backfill was to write a candidate.

    A person who launches a backfill of promoted nodes alone wants to publish what waits, as by *Materialize*.
    """
    if chain.backfill_id is None:
        return chain
    candidates = [node.candidate for node in nodes]
    writes = any(log.plans(candidates, run.run_id) for run in runs_of_backfill(chain.backfill_id, log.instance))
    return chain if writes else replace(chain, backfill_id=None)


def resolve_run(tables: Iterable[LanceTable], text: str, record: RecordView) -> str:
    """Return the run branch that a run id or the beginning of one names; the branch may be missing.

    Args:
        tables: All tables of the publisher: in each of them alone, the beginning may name another run.
        text: `run/<id>` or `<id>`, whole or shortened.
        record: The record of the lake, which knows runs whose branches are deleted.

    Raises:
        InvalidInputError: `text` is not a run id, or the names of several run branches begin with it.
    """
    name = text if run_of(text) is not None else branch_of(text)
    if _GLOB & set(name) or name == branch_of(""):
        raise InvalidInputError(f"{text!r} is not a run id: write run/ and the first characters of the id of the run")
    # A whole id needs no search, which would read the names of all branches.
    if is_whole(name):
        return name
    branches = sorted({branch for table in tables for branch in table.branches.list(f"{name}*")})
    # Without a branch the run may be published already.
    branches = branches or [
        branch_of(candidate) for candidate in record.repository.record.candidates_like(run_of(name) or "")
    ]
    return meant_branch(name, branches) or name
