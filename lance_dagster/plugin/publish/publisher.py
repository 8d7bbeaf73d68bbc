"""The publisher: a multi-asset that merges audited run branches and moves the tag that readers follow.

Every table has two nodes in Dagster's graph. The candidate, `shop/orders`, is materialized when a run writes its
branch, where only that run reads the rows. The promoted node, `production/shop/orders`, is materialized when the
tag moves. With one node there would be a race: automation would start a reader as soon as the candidate is
materialized, before the rows are on `main`. Readers therefore depend on the promoted node.

One publisher produces the promoted nodes of several tables. As the last step of a job it publishes what the run
wrote. From its *Materialize* button a person promotes a version, rolls back, or publishes a run branch that was
left behind.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dagster as dg
from pydantic import Field

from lance_dagster.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ProtectedError,
    PublishRefusedError,
    RefNotFoundError,
    TableNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.format.validation import require_sequence
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.evaluation import blocking_checks
from lance_dagster.plugin.publish.publication import (
    Publication,
    check_mergeable,
    find_by_ref,
    find_by_run,
    find_tag,
    merge_all,
    move_tags,
    retire_all,
)
from lance_dagster.plugin.publish.publish_gate import Subject, reasons_against, was_materialized
from lance_dagster.plugin.resource import LanceResource, table_address
from lance_dagster.plugin.run_branch import RunChain, run_of
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, asset_key_of, metadata_of

POOL = "lance_publish"
# The tags by which Dagster says who or what launched a run. A person comes before an automatism.
_WHO_TAGS = (
    "dagster/user",
    "user",
    "dagster/schedule_name",
    "dagster/sensor_name",
    "dagster/automation_condition_name",
)

# Markdown, shown on the page of the promoted node, beside its *Materialize* button.
_ABOUT = """`{table}` as readers of `{tag}` see it.

To roll back or to promote another version, choose *Open launchpad* beside *Materialize* and set `ref`, for example to
`main@2`; *Events* lists where the tag has been. *Materialize* alone publishes what its own run wrote."""


# Text fields default to "" and not to None: the Launchpad hides fields whose default is None.
class PublishConfig(dg.Config):
    """What to publish. By default the publisher publishes what its own run wrote."""

    ref: str = Field(
        default="",
        description="Empty: what this run wrote. main@3: promote or roll back to that version. run/<id>: publish a "
        "branch that was left behind.",
    )
    reason: str = Field(default="", description="Why. Kept with the tag and on the promoted node's page.")
    dry_run: bool = Field(default=False, description="Look at the checks and say what would happen, and stop there.")
    ignore_failed_checks: bool = Field(
        default=False, description="Publish although checks failed or did not run. Needs a reason."
    )


def build_publisher(
    tables: Sequence[TableAsset],
    *,
    tag: str = "production",
    name: str | None = None,
    pool: str | None = POOL,
    partitions_def: dg.PartitionsDefinition | None = None,
    checks: Sequence[dg.AssetCheckKey | dg.AssetChecksDefinition] = (),
) -> dg.AssetsDefinition:
    """Build the asset that merges audited run branches into `main` and moves a tag to the result.

    It publishes only when every blocking check of every selected table passed on exactly the version to publish;
    the config `ignore_failed_checks` overrides this and demands a reason. All tables are merged before the first
    tag moves. Tables have no common transaction, so a reader may see one tag moved before the next. The step is
    idempotent: a retry after a crash does the rest. It expects the `LanceResource` under the resource key
    `lance`.

    The promoted nodes form a group named after the tag; `map_asset_specs` can move them to another group.

    A table that no run of the chain wrote is left out with a warning, and its promoted node is not materialized:
    the assets downstream of that node are skipped in this run. The step fails when no table is left.

    Args:
        tables: The candidates, as definitions or keys.
        tag: The tag that readers follow, and the first part of the promoted nodes' keys.
        name: Name of the op; `publish_<tag>` if None.
        pool: Dagster pool of the step. Limit the pool to 1 in the instance's settings, so that publishers run
            one after the other. None means no pool.
        partitions_def: The partitions of the candidates, to publish within each run of a backfill. With None, a
            backfill is published once, after all its runs.
        checks: Further checks that must pass: checks that are not in the publisher's code location, or not marked
            as blocking.

    Raises:
        InvalidInputError: No table is given, or one is given twice.
    """
    require_sequence("tables", tables, "shop/orders")
    nodes = [_Node.of(table, tag, partitioned=partitions_def is not None) for table in tables]
    keys = [node.candidate for node in nodes]
    if not keys or len(set(keys)) < len(keys):
        raise InvalidInputError(f"build_publisher needs each table once, not {[k.to_user_string() for k in keys]}")
    named = [key for check in checks for key in _check_keys(check)]

    @dg.multi_asset(
        name=name or f"publish_{tag}",
        # One step for all tables, so that they are all merged before any tag moves.
        specs=[node.spec for node in nodes],
        can_subset=True,
        pool=pool,
        partitions_def=partitions_def,
        required_resource_keys={RESOURCE_KEY},
    )
    def publisher(context: dg.AssetExecutionContext, config: PublishConfig) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        selected = [node for node in nodes if node.promoted in context.selected_asset_keys]
        step = _Publisher(context, config, tag, blocking_checks(context, keys, named))
        try:
            yield from step.publish(selected, with_backfill=partitions_def is None)
        except (PublishRefusedError, ProtectedError, ConflictError, InvalidInputError, NotFoundError) as error:
            # A retry by Dagster would fail for the same reason. A StoreError may pass, so it is retried.
            raise dg.Failure(description=str(error), allow_retries=False) from error

    return publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """The candidate and the promoted node of one table."""

    candidate: dg.AssetKey
    promoted: dg.AssetKey
    metadata: dict[str, object]
    spec: dg.AssetSpec

    @classmethod
    def of(cls, table: TableAsset, tag: str, *, partitioned: bool) -> "_Node":
        candidate, metadata = asset_key_of(table), metadata_of(table)
        promoted = dg.AssetKey([tag, *candidate.path])
        # The promoted node stands for the same table, so it needs the metadata that decides about its place. With
        # `partition_expr`, partitioned readers of the node can read their partitions.
        kept = (md.SCHEMA, md.PARTITION_EXPR) if partitioned else (md.SCHEMA,)
        about = {key: metadata[key] for key in kept if key in metadata}
        spec = dg.AssetSpec(
            promoted,
            deps=[candidate],
            description=_ABOUT.format(table=candidate.to_user_string(), tag=tag),
            # Dagster allows fewer characters in the name of a group than Lance in that of a tag.
            group_name=re.sub(r"\W", "_", tag, flags=re.ASCII),
            # Not materialized when its tag does not move: in a dry run, or when there is nothing to publish.
            skippable=True,
            kinds={"lance"},
            metadata={
                **about,
                md.TABLE: candidate.to_user_string(),
                md.REF: tag,
                # Without a URI: the root belongs to the resource, which only a run has.
                **md.definition_metadata(table_address(candidate, metadata).dotted, None),
            },
        )
        return cls(candidate=candidate, promoted=promoted, metadata=metadata, spec=spec)


@dataclass(frozen=True, slots=True)
class _Publisher:
    """One execution of the publisher's step."""

    context: dg.AssetExecutionContext
    config: PublishConfig
    tag: str
    checks: Sequence[dg.AssetCheckKey]

    def publish(self, nodes: Sequence[_Node], *, with_backfill: bool) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        if self.config.ignore_failed_checks and not self.config.reason.strip():
            raise InvalidInputError("ignore_failed_checks needs a reason")
        chain = RunChain.of_context(self.context)
        found = self._find(nodes, chain, with_backfill=with_backfill)
        ignored = self._gate(found, chain)
        # A single merge writes nothing when it conflicts, so a preview of it would only do its work twice. With
        # several merges, the first ones would be on `main` when a later one is refused.
        if self.config.dry_run or sum(len(one.sources) for one in found) > 1:
            check_mergeable(found)
        if self.config.dry_run:
            for one in found:
                self.context.log.info("dry run: would publish %s", ", ".join(map(str, one.audited)))
            return
        merged = merge_all(found, chain)
        promoted = move_tags(merged, self.tag, self._about_move(chain))
        for one in promoted:
            origin = one.previous.ref if one.previous else "nowhere"
            self.context.log.info("%s of %s: from %s to %s", self.tag, one.name, origin, one.promoted_to)
            yield self._result(one, ignored)
        # After the results: the promoted nodes are materialized even if a branch cannot be deleted.
        for reason in retire_all(merged, chain):
            self.context.log.warning("branch kept: %s", reason)

    def _find(self, nodes: Sequence[_Node], chain: RunChain, *, with_backfill: bool) -> list[Publication]:
        """Return the publications of the tables that have something to publish.

        Raises:
            PublishRefusedError: No table has anything, or a table lacks what it should have.
        """
        found: list[Publication] = []
        missing: list[str] = []
        wrong: list[str] = []
        for node in nodes:
            name = node.candidate.to_user_string()
            try:
                one = self._look(node, chain, with_backfill=with_backfill)
            except (TableNotFoundError, RefNotFoundError, VersionNotFoundError) as error:
                # A run may write only some of the tables, so its branch may be missing in others. Any other ref
                # must exist in every table.
                (missing if self._by_run else wrong).append(f"{name}: {error}")
                continue
            if one.audited:
                found.append(one)
            # The event log says that a run wrote the table. A missing branch is then an error: it was
            # deleted, or the run wrote under another root.
            elif runs := [run for run in chain.run_ids if was_materialized(node.candidate, run, self.instance)]:
                wrong.append(f"{name}: run {runs[0]} materialized it, but left no branch in {one.table.uri}")
            else:
                missing.append(f"{name}: no run branch of this run")
        if wrong or not found:
            hint = "" if self.config.ref else "; to publish something else, set ref to main@<n> or run/<run id>"
            raise PublishRefusedError(f"nothing to publish{hint}", [*wrong, *missing])
        for reason in missing:
            self.context.log.warning("nothing to publish, so its readers are not run: %s", reason)
        return found

    def _look(self, node: _Node, chain: RunChain, *, with_backfill: bool) -> Publication:
        lance: LanceResource = self.context.resources.lance
        table = lance.table(node.candidate, node.metadata)
        previous = find_tag(table, self.tag)
        empty = Publication(candidate=node.candidate, promoted=node.promoted, table=table, previous=previous)
        if self.config.ref:
            return find_by_ref(empty, self.config.ref, instance=self.instance)
        return find_by_run(empty, chain, instance=self.instance, with_backfill=with_backfill)

    def _gate(self, found: Sequence[Publication], chain: RunChain) -> list[str]:
        """Verify the audit of every version, and return the reasons against it that the config ignores.

        Raises:
            PublishRefusedError: There are reasons, and the config does not ignore them.
        """
        reasons: list[str] = []
        for one in found:
            for version in one.audited:
                subject = Subject.of(one.candidate, version)
                if isinstance(subject, str):
                    reasons.append(subject)
                else:
                    reasons += reasons_against(subject, self.checks, instance=self.instance, chain=chain)
        if reasons and not self.config.ignore_failed_checks:
            raise PublishRefusedError(f"refused to publish {', '.join(one.name for one in found)}", reasons)
        for reason in reasons:
            self.context.log.warning("ignored, because %r: %s", self.config.reason, reason)
        return reasons

    def _about_move(self, chain: RunChain) -> dict[str, str]:
        found = {md.RUN_ID: chain.run_id, "lance/reason": self.config.reason, "lance/who": self.who}
        return {key: value for key, value in found.items() if value}

    def _result(self, one: Publication, ignored: Sequence[str]) -> dg.MaterializeResult:  # type: ignore[type-arg]
        version = one.promoted_to or one.version
        about = {
            "lance/tag": self.tag,
            "lance/from": one.previous.ref if one.previous else "",
            md.MOVED_TO: str(version),
            "lance/merged": ", ".join(map(str, one.sources)),
            "lance/who": self.who,
            "lance/reason": self.config.reason,
        }
        metadata: dict[str, str | int | dg.TableSchema | list[str]] = {
            md.ROW_COUNT: version.rows,
            md.COLUMN_SCHEMA: md.column_schema(one.table.schema(version)),
            md.URI: one.table.uri,
            **md.version_metadata(version),
            **{key: value for key, value in about.items() if value},
        }
        if ignored:
            metadata["lance/ignored"] = list(ignored)
        return dg.MaterializeResult(
            asset_key=one.promoted,
            metadata=metadata,
            # As for the candidate: the uuid of the transaction is the data version, and staleness follows the
            # tag.
            data_version=dg.DataVersion(version.transaction),
        )

    @property
    def instance(self) -> dg.DagsterInstance:
        instance: dg.DagsterInstance = self.context.instance
        return instance

    @property
    def who(self) -> str:
        """The person or automation that launched the run, as far as its tags say; else empty."""
        tags = self.context.run.tags
        return next((f"{tag.rpartition('/')[2]} {tags[tag]}" for tag in _WHO_TAGS if tag in tags), "")

    @property
    def _by_run(self) -> bool:
        return not self.config.ref or run_of(self.config.ref) is not None


def _check_keys(check: dg.AssetCheckKey | dg.AssetChecksDefinition) -> list[dg.AssetCheckKey]:
    return [check] if isinstance(check, dg.AssetCheckKey) else list(check.check_keys)
