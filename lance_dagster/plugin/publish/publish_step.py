"""Execute the publisher's step: do what its config asks for, for the promoted nodes that are selected.

The order is that of `publication`: find, audit, commit, move, retire. Nothing is committed before every table has
passed, and the channel moves for all tables at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import dagster as dg

from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.table_check import describe_asset
from lance_dagster.plugin.commit_properties import runs_of, strings_on_main
from lance_dagster.plugin.partitioning import partitioning_of
from lance_dagster.plugin.publish.channel_publisher import PromotedCommit
from lance_dagster.plugin.publish.dependencies import read_by
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import (
    Publication,
    retire_all,
)
from lance_dagster.plugin.publish.publication_audit import PublicationAudit, drop_stale_previews
from lance_dagster.plugin.publish.publication_search import PublicationSearch
from lance_dagster.plugin.publish.publish_config import Rollback, check_config, require_reason
from lance_dagster.plugin.publish.publish_gate import (
    refuse_cancelled,
)
from lance_dagster.plugin.publish.publishing_run import PublishingRun
from lance_dagster.plugin.publish.rollback import (
    about_rollback,
    is_rollback,
    withdrawn_by,
)
from lance_dagster.plugin.publish.tag_changes import TagChanges
from lance_dagster.plugin.publish.whole_candidate import WholeCandidates
from lance_dagster.plugin.run_branch import READS
from lance_dagster.plugin.version_report import change_entries

_LOGGED = 20  # the most tables that one log line names


# What a person looks for on the page of a promoted node, in this order; then everything else, and at the end what names
# the version for programs.
_FIRST = (
    *(md.EVENT, md.CHANGES, md.ROWS_ADDED, md.ROWS_REMOVED, md.ROWS_CHANGED, md.REASON, md.WHO, "lance/rollback"),
    *("lance/from", md.MOVED_TO, md.PUBLISHED_RUN),
)
_LAST = (
    *(md.URI, md.BRANCH, md.VERSION, md.TRANSACTION, md.REPOSITORY_COMMIT, md.CHANNEL_ENTRY),
    *(md.COLUMN_SCHEMA, md.COLUMN_LINEAGE),
)


@dataclass(slots=True, kw_only=True)
class PublishStep:
    """One execution of the publisher's step.

    Attributes:
        run: The run of the publisher.
        audit: What audits its publications.
        search: What finds them.
        dead_partitions: By candidate, the partitions that publishers brought to readers and died before they reported.
    """

    run: PublishingRun
    audit: PublicationAudit = field(init=False)
    search: PublicationSearch = field(init=False)
    dead_partitions: dict[dg.AssetKey, set[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Start without publications."""
        self.audit = PublicationAudit(run=self.run, checks=self.run.checks)
        candidates = WholeCandidates(run=self.run, audit=self.audit)
        self.search = PublicationSearch(run=self.run, audit=self.audit, candidates=candidates)

    def execute(self) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        """Do what the config asks for, and yield the promoted nodes whose tag moved.

        Raises:
            PublishRefusedError: There is nothing to publish, an audit failed, the tags are held, or the run was
                cancelled.
            InvalidInputError: The config contradicts itself or lacks a reason.
        """
        check_config(self.run.config)
        nodes = [node for node in self.run.nodes if node.promoted in self.run.context.selected_asset_keys]
        self.run.resolve_config()
        requests = {
            "discarded": bool(self.run.config.discard),
            "held": self.run.config.hold,
            "released": self.run.config.release,
        }
        for change in (change for change, is_requested in requests.items() if is_requested):
            refuse_cancelled(self.run.context)
            if change == "discarded":
                # A candidate is discarded as a whole: a table that is left could be published without the others.
                TagChanges(run=self.run).discard(self.run.nodes)
            else:
                # `_sort` reads the hold afterwards: one config may ask for a release and a publication.
                self.run.hold = TagChanges(run=self.run).move(change, nodes)
        # The publication comes last: `release` together with `ref` first releases the tag, so that it may be moved.
        if self.run.config.ref or not any(requests.values()):
            yield from self._publish(nodes)

    def _publish(self, nodes: Sequence[PromotedNode]) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        finished = {} if self.run.config.dry_run else self._finish(nodes)
        # The gate comes first because it reads the event log only; the audit of a planned merge reads rows.
        publications, ignored = self._gate(self.search.find(nodes, is_finished=bool(finished)))
        publications, refused = self.audit.plan(publications)
        merged: list[Publication] = []
        try:
            # This stands inside the `try`, because a refusal has to drop the previews too.
            ignored += self.run.refuse(publications, refused)
            if self.run.config.dry_run:
                for publication in publications:
                    self._log_dry_run(publication)
                return
            merged = self._merge(publications, finished)
        finally:
            # After the merge, `main` contains the previews; without it, nobody needs them.
            self.audit.drop([*publications, *merged])
        self._log_moves(merged)
        published = {publication.candidate for publication in merged}
        moved = [*(publication for publication in finished.values() if publication.candidate not in published), *merged]
        yield from self._report(moved, ignored)
        self._clean_up(moved)

    def _log_dry_run(self, publication: Publication) -> None:
        versions, previous = ", ".join(map(str, publication.audited)), publication.previous
        if previous is not None and previous.ref == versions:
            self.run.context.log.info("dry run: %s would stay at %s", publication.name, versions)
        else:
            change = f"roll {publication.name} back to" if is_rollback(publication) else f"publish {publication.name}:"
            self.run.context.log.info("dry run: would %s %s", change, versions)

    def _report(self, moved: Sequence[Publication], ignored: Sequence[str]) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        """Yield the materializations of promoted nodes, and log those of nodes that this run does not select."""
        # In most publications each table links to one run, and all tables link to the same run.
        has_run = cache(self.run.instance.has_run)
        for publication in moved:
            # A second event for the same version would start the readers for nothing.
            if self._is_unchanged(publication):
                self.run.context.log.info(
                    "nothing new for %s of %s: it is at %s", self.run.tag, publication.name, publication.promoted_to
                )
            else:
                move = {"lance/tag": self.run.tag, md.WHO: self.run.who, md.REASON: self.run.config.reason}
                result = _promoted_result(publication, move, ignored, has_run)
                keys: Sequence[str | None] = sorted(
                    self._published_keys(publication) | self.dead_partitions.get(publication.candidate, set())
                )
                if publication.promoted in self.run.context.selected_asset_keys:
                    yield result
                    # Dagster gives the result the partitions of this run: with `ref`, or after a publication that died,
                    # readers see rows of others too.
                    keys = [key for key in keys if key not in self.run.partition_keys]
                else:
                    # It came along: the same run wrote it, or its publication died.
                    keys = keys or (publication.sources and self.run.partition_keys) or (None,)
                for key in keys:
                    # Dagster takes no results of nodes that the run does not select.
                    event = dg.AssetMaterialization(
                        publication.promoted,
                        description=publication.event,
                        metadata=dict(result.metadata or {}),
                        partition=key,
                        tags=md.data_version_tags(publication.promoted_to or publication.version),
                    )
                    self.run.context.log_event(event)

    def _published_keys(self, publication: Publication) -> set[str]:
        """Return the partitions of a node whose rows a publication brings to readers.

        Empty for nodes without partitions, and where a person named a version of `main`, which is about all of them.
        """
        if not self.run.partitioned or publication.chosen:
            return set()
        metadata, definition = describe_asset(self.run.context, publication.candidate)
        partitioning = partitioning_of(definition, metadata.get(md.PARTITION_EXPR))
        record = self.run.record.repository.record
        # A publication that died, or was published before, has its writes in the commit only.
        writes = publication.writes or filter(None, map(record.write, strings_on_main(publication.version, md.WRITES)))
        # Keys of an older definition of the partitions are none of the node's.
        return {
            key
            for write in writes
            if write.request.partitioning in ("", partitioning)
            for key in write.request.partitions
        }

    def _finish(self, nodes: Sequence[PromotedNode]) -> dict[dg.AssetKey, Publication]:
        """Do what is left of publications whose publishers died; return the publications of the nodes to report."""
        if self.run.hold is not None:
            return {}
        # A publisher that died after it moved the channel left `main` and the tags behind.
        if self.run.is_alone:
            self.run.publisher.catch_up(self.run.names_of(nodes))
        finished = self._of_dead(self.run.publisher.newest_promotion())
        if promoted := self.run.publisher.finish():
            self.run.read_channel()
        return finished | self._of_dead(promoted, is_new=True)

    def _of_dead(self, promoted: Iterable[PromotedCommit], *, is_new: bool = False) -> dict[dg.AssetKey, Publication]:
        """Return the publications of commits whose publishers died, by candidate.

        Args:
            promoted: The commits.
            is_new: Whether this step promoted them, so that nobody has reported them.
        """
        names = dict(zip(self.run.names_of(self.run.nodes), self.run.nodes, strict=True))
        finished: dict[dg.AssetKey, Publication] = {}
        for promotion in promoted:
            by = promotion.commit.properties.get(md.RUN_ID, "")
            run = self.run.instance.get_run_by_id(by)
            # A publisher that is alive, or succeeded, reports its own nodes and deletes its branches. What a publisher
            # of another instance promoted is reported there.
            is_dead = is_new if run is None else run.is_finished and not run.is_success
            if by != self.run.chain.run_id and not is_dead:
                continue
            view = self.run.publisher.repository.at(promotion.channel.commit)
            for node in (names[name] for name in promotion.names if name in names and name in view):
                version = view[str(self.run.lance.address_of(node.candidate, node.metadata))].version
                publication = replace(
                    self.run.publication(node, self.run.opened(node)), landed=version, promoted_to=version
                )
                finished[node.candidate] = replace(publication, previous=None) if is_new else publication
                self.dead_partitions.setdefault(node.candidate, set()).update(self._published_keys(publication))
            if is_new:
                self.run.context.log.info("finished the publication of run %s: %s", by, ", ".join(promotion.names))
        return finished

    def _clean_up(self, merged: Sequence[Publication]) -> None:
        """Delete the run branches that were published, and warn about branches that only other jobs delete."""
        # After the results: the promoted nodes are materialized even if a branch cannot be deleted.
        readers = read_by(self.run.context, [publication.candidate for publication in merged])
        for publication in merged:
            if steps := readers.get(publication.candidate):
                reason_kept = (
                    f"{publication.name}: {', '.join(steps)} may be reading it; the branch sweeper deletes it later"
                )
                self.run.context.log.info("branch kept: %s", reason_kept)
        for reason in retire_all(
            [publication for publication in merged if publication.candidate not in readers], self.run.chain
        ):
            self.run.context.log.warning("branch kept: %s", reason)
        for publication in merged if self.run.chain.backfill_id is not None else ():
            drop_stale_previews(publication.table, self.run.chain, self.run.instance, READS)
        if waits := self.run.publisher.uncollected(merged):
            self.run.context.log.warning(waits)

    def _gate(self, publications: Sequence[Publication]) -> tuple[list[Publication], list[str]]:
        """Verify the audit of every version, and return the reasons against it that the config ignores.

        Raises:
            PublishRefusedError: There are reasons, and the config does not ignore them.
        """
        gated, reasons = list[Publication](), list[str]()
        # All tables are audited before one is refused, so that the error has every reason.
        for publication in publications:
            passing = publication
            for version in publication.audited:
                passing, against = self.audit.audit_version(passing, version)
                reasons += against
            gated.append(passing)
        return gated, self.run.refuse(publications, reasons)

    def _merge(
        self, publications: Sequence[Publication], finished: dict[dg.AssetKey, Publication]
    ) -> list[Publication]:
        """Publish run branches and rollbacks by one commit, move the channel, and return what it names then.

        Args:
            publications: The publications.
            finished: Gets the publications of publishers that committed meanwhile and died.
        """
        refuse_cancelled(self.run.context)
        # The withdrawn versions are listed before a revert adds its own commit to the log of `main`.
        withdrawn = {
            publication.name: withdrawn_by(publication) for publication in publications if is_rollback(publication)
        }
        if withdrawn:
            require_reason(self.run.config.reason, "a rollback")
            describe = partial(about_rollback, kind=self.run.config.rollback.name, partitioned=self.run.partitioned)
            publications = [
                describe(publication, withdrawn[publication.name]) if publication.name in withdrawn else publication
                for publication in publications
            ]
            if self.run.partitioned:
                self.run.context.log.warning("the rollback of %s moves all partitions, not one", ", ".join(withdrawn))
        self.run.begin(publications)
        publications = [self.run.publisher.with_writes(publication) for publication in publications]
        # A rollback that holds makes no commit: the channel names an earlier one again.
        if withdrawn and self.run.config.rollback is Rollback.hold:
            return self.run.publisher.roll_back(self.search.chosen, publications)
        restored = self.search.chosen if withdrawn else None
        committed = self.run.publisher.commit(publications, self.audit, restored)
        # What other publishers committed before comes first.
        finished |= self._of_dead(self.run.publisher.finish(before=committed.commit), is_new=True)
        return self.run.publisher.promote(committed, restored)

    def _log_moves(self, moved: Sequence[Publication]) -> None:
        """Log the move of the channel, and the tables that lag behind."""
        # Each line of the log is an event that Dagster stores, so there is one for all tables that moved together.
        if moved:
            more = [f"and {len(moved) - _LOGGED} more"] if len(moved) > _LOGGED else []
            self.run.context.log.info(
                "%s of %s", self.run.tag, "; ".join([*(publication.move for publication in moved[:_LOGGED]), *more])
            )
        for publication in moved:
            for reason in publication.lagging:
                self.run.context.log.warning("%s lags behind the channel: %s", publication.name, reason)

    def _is_unchanged(self, publication: Publication) -> bool:
        """Return whether the tag did not move, and the promoted node has an event for its version."""
        if (
            publication.promoted_to is None
            or publication.previous is None
            or publication.previous.ref != str(publication.promoted_to)
        ):
            return False
        # The readers of a re-executed run wait for this step, though an earlier attempt moved the tag.
        if not self.run.config.ref and set(runs_of(publication.version)) & set(self.run.chain.run_ids):
            return False
        # A publisher that was killed after it moved the tag left no event.
        event = self.run.instance.get_latest_materialization_event(publication.promoted)
        materialization = event.asset_materialization if event else None
        if materialization is None or md.text(materialization.metadata, md.MOVED_TO) != str(publication.promoted_to):
            return False
        keys = self.run.partition_keys
        return not keys or set(keys) <= self.run.instance.get_materialized_partitions(publication.promoted)


def _promoted_result(
    publication: Publication, moved: Mapping[str, str], ignored: Sequence[str], has_run: Callable[[str], bool]
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Return the result that materializes a promoted node.

    Args:
        publication: The publication, after its tag has moved.
        moved: Metadata of the move, such as the tag, who moved it and why; empty values are left out.
        ignored: The reasons against the publication that the config ignored.
        has_run: Returns whether the instance has the record of a run.
    """
    version = publication.promoted_to or publication.version
    schema = publication.table.schema(version)
    # A run may have been deleted from the instance, or belong to another one.
    runs = [run for run in runs_of(version) if has_run(run)]
    previous = publication.previous
    changes = change_entries(publication.table, version, previous.ref, previous.ref) if previous else {}
    about = {
        # Dagster's results have no description, which would say it on the page of the node.
        md.EVENT: publication.event + (f": {moved[md.REASON]}" if moved.get(md.REASON) else ""),
        "lance/from": previous.ref if previous else "",
        md.MOVED_TO: str(version),
        "lance/merged": ", ".join(map(str, publication.sources)),
        **moved,
        **publication.about,
    }
    metadata: dict[str, Any] = {
        md.ROW_COUNT: version.rows,
        md.COLUMN_SCHEMA: md.column_schema(schema),
        # Each column comes from the column of the same name in the candidate.
        md.COLUMN_LINEAGE: dg.TableColumnLineage(
            {name: [dg.TableColumnDep(publication.candidate, name)] for name in schema.names}
        ),
        md.URI: publication.table.uri,
        **md.version_metadata(version),
        md.CANDIDATE: dg.MetadataValue.asset(publication.candidate),
        # Dagster shows the link with the short form of the id.
        **({md.PUBLISHED_RUN: dg.MetadataValue.dagster_run(runs[0])} if len(runs) == 1 else {}),
        **changes,
        **{key: value for key, value in about.items() if value},
    }
    reaudit = publication.about.get(md.AUDITED_AGAIN)
    # Reasons that were ignored when a merge was audited again are only in the record of that audit.
    reasons = [*ignored, *(reaudit.get("ignored", ()) if isinstance(reaudit, dict) else ())]
    if reasons:
        metadata["lance/ignored"] = list(dict.fromkeys(reasons))
    return dg.MaterializeResult(
        asset_key=publication.promoted,
        metadata=_in_order(metadata),
        # The uuid of the transaction, as for the candidate: readers become stale when the tag moves.
        data_version=dg.DataVersion(version.transaction),
    )


def _in_order(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with `_FIRST` at the beginning and `_LAST` at the end, as far as they are there."""
    middle = [key for key in metadata if key not in _FIRST and key not in _LAST]
    return {key: metadata[key] for key in (*_FIRST, *middle, *_LAST) if key in metadata}
