"""Evaluate table checks: find the check behind an asset check's key, and evaluate it on a version of its table.

Only `evaluate_check` evaluates a check on a version. Dagster's asset check calls it with the candidate, the publisher
calls it with the result of a planned merge.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_shared.check import CheckError

from lance_dagster.errors import InvalidInputError, LanceDagsterError, PermissionRefusedError, StoreError
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.branch_extent import newest_waiting
from lance_dagster.plugin.checks.table_check import (
    LANCE_CHECK,
    Audit,
    BoundCheck,
    CheckContext,
    CheckOutcome,
    decorated_function,
    describe_asset,
)
from lance_dagster.plugin.recorded_writes import put_verdict
from lance_dagster.plugin.resource import LanceResource, PinnedTable
from lance_dagster.plugin.run_branch import RunBranch, RunChain
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, asset_key_of, metadata_of

if TYPE_CHECKING:
    from lance_dagster.plugin.io.partition_values import PartitionFilter

_PARTITION_TAG = "dagster/partition"
# Errors that a check or the function of a user raises because of the rows or a mistake. OSError and Dagster's own
# errors are missing on purpose: they may ask for a retry, and they stop the step, which blocks the publication too.
_BROKEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LanceDagsterError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)


def blocking_checks(
    context: CheckContext, assets: Iterable[dg.AssetKey], named: Iterable[dg.AssetCheckKey] = ()
) -> tuple[dg.AssetCheckKey, ...]:
    """Return every blocking check of some assets, including checks that the current run leaves out.

    Args:
        context: The context of the publisher or of a check.
        assets: The candidate assets.
        named: Checks that count as blocking although their definitions are not marked so, or are not in the
            code location of the publisher.
    """
    candidates = set(assets)
    checks = {check for check in named if check.asset_key in candidates}
    checks |= {
        key for key, check in _asset_checks(context, candidates).items() if check.get_spec_for_check_key(key).blocking
    }
    return tuple(sorted(checks, key=lambda key: (key.asset_key.path, key.name)))


def check_values(context: CheckContext, assets: Iterable[dg.AssetKey]) -> dict[dg.AssetCheckKey, BoundCheck]:
    """Return the table checks of some assets, blocking or not, including checks that the current run leaves out.

    An asset check that is missing in the result was written with Dagster's `asset_check`, or belongs to another
    code location. It cannot be evaluated on a version of the caller's choice.

    Args:
        context: The context of the publisher or of a check.
        assets: The candidate assets.
    """
    checks = _asset_checks(context, set(assets)).items()
    bound = {key: getattr(decorated_function(check), LANCE_CHECK, None) for key, check in checks}
    return {key: check for key, check in bound.items() if isinstance(check, BoundCheck)}


def evaluate_check(
    bound: BoundCheck,
    version: PinnedTable,
    *,
    lance: LanceResource,
    context: CheckContext,
    partition_keys: Sequence[str] = (),
    others: Mapping[dg.AssetKey, PinnedTable] | None = None,
) -> CheckOutcome:
    """Evaluate a check on a version of its table.

    Among the counts of the outcome are the partitions, as `lance/partitions`, and the versions of the other tables, as
    `lance/read`.

    An exception of a class in `_BROKEN` counts as a failure with its message. Any other exception is raised, such as an
    error of the storage or of Dagster: it says nothing about the rows, and a retry may succeed.

    Args:
        bound: The check.
        version: The version to check, on any branch.
        lance: The resource that opens the other tables that the check reads.
        context: The context of the current step, which knows the definitions and the run.
        partition_keys: The partitions that the run wrote. A check with the scope `partitions` sees only their
            rows; without partitions it sees the whole table.
        others: Versions of other tables, by asset. A table without a version here is opened as the current run reads
            it.

    Raises:
        StoreError: The storage failed.
    """
    # Imported here, as definitions load without pyarrow.
    import pyarrow as pa

    try:
        bound = bound.described(context)
        others_read = {key: (others or {}).get(key) or open_other(lance, context, key) for key in bound.check.reads}
        outcome = bound.check.evaluate(_audit(bound, version, partition_keys, others_read))
        # The publisher evaluates the check again when one of these tables is at another version by then.
        marks = {key.to_user_string(): md.version_mark(table.version) for key, table in others_read.items()}
        about = {md.READ: dg.MetadataValue.json(marks)} if others_read else {}
        return replace(outcome, counts={**outcome.counts, **about, **md.checked_partitions(partition_keys)})
    except StoreError:
        # A StoreError is a LanceDagsterError too, and must not count as a failure of the check.
        raise
    except (*_BROKEN, pa.ArrowException) as error:
        context.log.warning("check %s broke", bound.check.name, exc_info=True)
        description = f"the check broke: {type(error).__name__}: {error}"
        return CheckOutcome(passed=False, description=description, counts=md.checked_partitions(partition_keys))


def record_outcome(
    lance: LanceResource, candidate: PinnedTable, *, key: str, outcome: CheckOutcome, run_id: str
) -> None:
    """Record what a check found on the candidate of a run, for the publishers of the table.

    Args:
        lance: The resource.
        candidate: The version that the check looked at.
        key: The name of the check.
        outcome: The result.
        run_id: The run that evaluated the check.
    """
    from lance_dagster.repository.candidates.audits import Verdict

    repository = lance.open_repository()
    if repository is not None:
        marks = md.plain(outcome.counts.get(md.READ))
        verdict = Verdict(
            check=key,
            passed=not outcome.blocks,
            description=outcome.description,
            reads={str(asset): str(mark) for asset, mark in marks.items()} if isinstance(marks, Mapping) else {},
            run_id=run_id,
        )
        # Without write permission, the evaluation in Dagster's event log counts, which names the transaction.
        with suppress(PermissionRefusedError):
            put_verdict(repository, candidate.table, candidate.version, verdict)


def open_candidate(context: CheckContext, asset: TableAsset, *, resource_key: str = RESOURCE_KEY) -> PinnedTable:
    """Open the table of a candidate at the version that a check has to read.

    This is the first of these that exists:

    1. the head of the run branch, in a run that wrote the table or that continues such a run; or of the branch that the
       run's tag `lance/branch` names: so a person who executes a check alone chooses another candidate than the newest
    2. the newest version that any run wrote and that waits to be published: a check that is run alone, from its
       *Execute* button, reads the candidate that waits and not `main`, also when a later candidate was published
    3. the version that `read_ref` of the resource names

    A check that a user writes with Dagster's `asset_check` should return the property `metadata` of the table as
    metadata of its result. The publisher then knows which version was checked.

    Args:
        context: The context of the check.
        asset: The candidate, as its definition or its key.
        resource_key: The key of the `LanceResource`, which the check must require.
    """
    lance: LanceResource = getattr(context.resources, resource_key)
    key = asset_key_of(asset)
    metadata = {**describe_asset(context, key)[0], **metadata_of(asset)}
    table = lance.unopened(key, metadata) or lance.table(key, metadata)
    head = RunBranch(table=table, chain=RunChain.of_context(context)).head()
    if head is None:
        # A table that has the branch of the run is there; any other table is looked for.
        table = lance.table(key, metadata)
    repository = None if head is not None else lance.open_repository()
    waiting = None if repository is None else newest_waiting(repository, table)
    version = head or waiting or table.at(lance.read_ref)
    return PinnedTable(table=table, version=version)


def run_partitions(context: CheckContext, bound: BoundCheck, version: PinnedTable) -> tuple[str, ...]:
    """Return the partition of the current run as a tuple of one key, if the check reads a version of `main`.

    A version of a run branch records its partitions itself, so nothing is returned for it, nor for a run without a
    partition.
    """
    key = context.run.tags.get(_PARTITION_TAG)
    definition = bound.described(context).partitions_def
    if version.version.branch != MAIN or key is None or definition is None:
        return ()
    # The partition of the run may belong to another asset, whose partitions have other names.
    return (key,) if key in definition.get_partition_keys(dynamic_partitions_store=context.instance) else ()


def partitions_with_rows(context: CheckContext, bound: BoundCheck, versions: Sequence[PinnedTable]) -> tuple[str, ...]:
    """Return the partitions that have rows in any of some versions of the table of a check.

    Nothing is returned when a row is in no partition, or when the asset has no partitions: then only the whole table
    has all rows.

    Args:
        context: The context of the current step.
        bound: A check with the scope `partitions`.
        versions: The versions; the first version has every column that tells the partition of a row.
    """
    bound, with_rows = bound.described(context), set[str]()
    if bound.partitions_def is None:
        return ()
    keys = bound.partitions_def.get_partition_keys(dynamic_partitions_store=context.instance)
    # Each check says itself what is wrong with the partitions.
    with suppress(InvalidInputError):
        audit = _audit(bound, versions[0], keys, {})
        for version in versions:
            counts = audit.count_by_partition(of=version)
            if sum(counts.values()) < version.count_rows():
                return ()
            with_rows |= {key for key, rows in counts.items() if key is not None and rows}
    return tuple(key for key in keys if key in with_rows)


def _asset_checks(
    context: CheckContext, assets: Collection[dg.AssetKey]
) -> dict[dg.AssetCheckKey, dg.AssetsDefinition]:
    """Return the definitions of the checks of some assets, including checks that the current run leaves out."""
    graph = context.job_def.asset_layer.asset_graph
    # The graph of a job knows the graph it was cut out of, which still has the deselected checks. Where Dagster divides
    # a publisher into several steps, it makes that graph anew, without deselected checks; then the code location has
    # them.
    graphs: list[Any] = [graph.source_asset_graph, graph]
    # `dg.materialize` and `execute_in_process` know no code location.
    with suppress(CheckError):
        graphs.insert(0, context.repository_def.asset_graph)
    return {
        key: assets_graph.assets_def_for_key(key)
        for assets_graph in graphs
        for key in assets_graph.asset_check_keys
        if key.asset_key in assets
    }


def open_other(lance: LanceResource, context: CheckContext, asset: dg.AssetKey) -> PinnedTable:
    """Open another table that a check reads, at the version that the current run reads."""
    metadata, _ = describe_asset(context, asset)
    return lance.open(context, asset, metadata)


def _audit(
    bound: BoundCheck, version: PinnedTable, keys: Sequence[str], others: Mapping[dg.AssetKey, PinnedTable]
) -> Audit:
    if bound.check.scope == "table" or not keys:
        return Audit(candidate=version, others=others, partition_keys=tuple(keys), seen=bound.seen)
    # The first filter is for one scan of all partitions; filters of single partitions let a failure name its partition.
    union, *filters = [_partitions(bound, version, selected) for selected in [keys, *([key] for key in keys)]]
    return Audit(
        candidate=replace(version, filter=union.predicate),
        others=others,
        partition_keys=tuple(keys),
        partitions=dict(zip(keys, filters, strict=True)),
        seen=bound.seen,
    )


def _partitions(bound: BoundCheck, version: PinnedTable, keys: Sequence[str]) -> "PartitionFilter":
    # This is imported for an evaluation only, since filters need pyarrow and definitions load without it.
    from lance_dagster.plugin.io.partitions import partition_filter

    try:
        return partition_filter(
            keys,
            version.schema,
            definition=bound.partitions_def,
            partition_expr=md.plain(bound.metadata.get(md.PARTITION_EXPR)),
            asset=bound.asset.to_user_string(),
        )
    except InvalidInputError as error:
        raise InvalidInputError(f'{error}; a check with scope="table" needs no partitions') from error
