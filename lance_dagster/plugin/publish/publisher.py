"""The publisher: a multi-asset that merges audited run branches and moves the channel that readers follow.

Every table has two nodes in Dagster's graph. The candidate asset, `shop/orders`, is materialized when a run writes its
branch, where only that run reads the rows. The promoted node, `production/shop/orders`, is materialized when the
channel moves. With one node there would be a race: automation would start a reader as soon as the candidate asset is
materialized, before the rows are on `main`. Readers therefore depend on the promoted node.

One publisher produces the promoted nodes of several tables. As the last step of a job it publishes what the run
wrote. From its *Materialize* button a person promotes a version, rolls back, or publishes a run branch that was
left behind.
"""

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Literal, NamedTuple, TypedDict, Unpack

import dagster as dg

from lance_dagster.errors import (
    ConflictError,
    InvalidInputError,
    InvalidRefNameError,
    NotFoundError,
    ProtectedError,
    PublishRefusedError,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_flag, check_names, check_options, check_string, require_sequence
from lance_dagster.plugin.publish.promoted_asset import PromotedNode, promoted_asset_spec, promoted_key
from lance_dagster.plugin.publish.publish_config import PublishConfig
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, spec_of

POOL = "lance_publish"
_NAME = re.compile(r"[A-Za-z0-9_]+")
_TAG = re.compile(r"\w[\w.-]*", re.ASCII)
# Markdown, shown on the page of the promoted node, beside its *Materialize* button.
_ABOUT = """`{table}` as readers of `{tag}` see it.

*Materialize* publishes the runs that wait and passed their checks, or says that there is nothing new. To roll back or
to promote another version of the selected tables, choose *Open launchpad* beside it and set `ref`, for example to
`{tag}~1` or `main@2`; *Events* lists where this table has been. Select the nodes of all tables that were published
together to roll them back together. `discard` deletes what a run that is given up wrote.

A rollback needs a `reason`. `rollback: revert` commits the older content to `main`, so that what was withdrawn stays
away; `rollback: hold` takes all tables of `{tag}` back, and nothing is published until someone sets `release: true`
with a reason."""
_ALL_PARTITIONS = """

A rollback moves all partitions, whichever partition is chosen to launch it: a tag names one version of the table."""


class PublisherOptions(TypedDict, total=False):
    """The options of `build_publisher` that most publishers leave out."""

    pool: str | None
    resource_key: str
    stale_checks: Literal["refuse", "accept"]
    group_name: str
    backfill_policy: dg.BackfillPolicy | None


# The attribute of the publisher's op or graph that has its traits; it survives the copies that Dagster makes.
_TRAITS = "lance_publisher"
# The publishing step in the graph of a publisher whose tables have optional outputs, and the inputs of its steps.
_STEP, _WRITTEN, _CANDIDATE = "publish", "written", "candidate"


class PublisherTraits(NamedTuple):
    """The candidates of a publisher, the checks that it names, and whether a table may lack a blocking check."""

    candidates: tuple[dg.AssetKey, ...]
    checks: tuple[dg.AssetCheckKey, ...]
    unchecked: bool


def traits_of(definition: dg.AssetsDefinition) -> PublisherTraits | None:
    """Return the traits of a publisher, or None when the definition is not a publisher."""
    traits = getattr(definition.node_def, _TRAITS, None) if definition.is_executable else None
    return traits if isinstance(traits, PublisherTraits) else None


def build_publisher(
    tables: Sequence[TableAsset],
    *,
    tag: str = "production",
    name: str | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
    checks: Sequence[dg.AssetCheckKey | dg.AssetChecksDefinition] = (),
    unchecked: bool = False,
    **options: Unpack[PublisherOptions],
) -> dg.AssetsDefinition:
    """Build the asset that merges audited run branches into `main` and moves a tag to the result.

    It publishes only when every blocking check of every selected table passed on exactly the version to publish;
    the config `ignore_failed_checks` overrides this and requires a reason. All tables are published by one commit of
    the repository at the root, whose channel of the tag's name moves for all of them at once; the tags of the tables
    follow. The step is idempotent: a retry after a crash does the rest.

    Launched by itself, it publishes what waits. A candidate, which is what one run wrote of these tables, is published
    whole or not at all; `ref: run/<id>` publishes the selected tables of a run alone.

    The promoted nodes have the owners, tags, kinds and column descriptions of their candidates' definitions, and
    column lineage to them. They depend on the promoted nodes of the other tables that their candidates read, so that
    the daemon publishes those first.

    A table that no run of the chain wrote is left out with a warning, and its promoted node is not materialized:
    the assets downstream of that node are skipped in this run. The step fails when no table is left.

    When an asset skips an optional output, the other tables are published. That needs one more small step for each
    table, so it is done only where the definition of a table, or `dg.AssetSpec(key, skippable=True)`, says that it
    may be skipped. Otherwise Dagster skips the publisher for all its tables, and their branches wait for the next
    *Materialize* of the promoted nodes.

    Args:
        tables: The candidates, as definitions or keys; a multi-asset stands for all its tables.
        tag: The tag that readers follow, and the first part of the promoted nodes' keys.
        name: Name of the op; `publish_<tag>` if None. In the name of a tag such as `pre-prod` or `v1.0`, which Dagster
            would not take, other characters than letters and digits become `_`, and a checksum of the tag follows.
        partitions_def: The partitions of the candidates, to publish within each run of a backfill. With None, a
            table is published once in a backfill, after all runs that write it.
        checks: Further checks of the tables that must pass: checks that are not in the publisher's code location, or
            not marked as blocking. The publisher waits for those that its own run evaluates.
        unchecked: Whether a table that has no blocking check may be published. By default it is refused.
        **options: `pool`, the Dagster pool of the step; `lance_publish` if left out, None for no pool. Limit the pool
            to 1 in the instance's settings, so that publishers run one after the other. `resource_key`, the key of
            the `LanceResource` among the resources; `lance` if left out. `stale_checks`, what happens when the
            merge has to be audited again and a blocking check is a plain `@asset_check`, which cannot be evaluated
            on it: `"refuse"` if left out, or `"accept"`, which is recorded on the promoted node. `group_name`, the
            group of the promoted nodes; if left out the tag, and for `publish_marts`, whose candidates are computed
            from what other publishers promote, `production_marts`. `backfill_policy`, for a publisher with
            partitions; that of the candidates if left out and all have the same. Dagster puts only assets with equal
            policies into one run of a backfill, so give it where the candidates are given by key.

    Raises:
        InvalidInputError: No table is given, or one is given twice; a check is of another asset; or an option is
            unknown, or needs `partitions_def`.
        InvalidRefNameError: `tag` is `main` or not a valid tag name.
    """
    check_options(build_publisher, options, PublisherOptions)
    _check_arguments(tables, tag, unchecked, options)
    specs = [spec for table in tables for spec in _specs_of(table)]
    keys = _different_keys(specs)
    name = publisher_name(tag) if name is None else require_name("name", name)
    nodes = _after_split_assets(_nodes_of(specs, tag, partitions_def, _group(specs, tag, name, options)), tables)
    resource_key = options.get("resource_key", RESOURCE_KEY)
    named = _named_checks(checks, keys)
    waits = any(node.spec.skippable for node in nodes)

    @dg.op(
        # The names of ops and graphs are unique in a code location.
        name=f"{name}_{_STEP}" if waits else name,
        ins={input_name: dg.In(dg.Nothing) for input_name in ([_WRITTEN] if waits else map(_input_of, nodes))},
        # The outputs are not required: a node is not materialized when its tag does not move, as in a dry run.
        out={_output_of(node): dg.Out(dg.Nothing, is_required=False) for node in nodes},
        pool=options.get("pool", POOL),
        required_resource_keys={resource_key},
    )
    def publisher(context: dg.AssetExecutionContext, config: PublishConfig) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        # These are imported in a run only: loading a code location needs neither the format nor the merge.
        from lance_dagster.plugin.checks.evaluation import blocking_checks
        from lance_dagster.plugin.publish.publish_gate import wait_for_checks
        from lance_dagster.plugin.publish.publish_step import PublishStep
        from lance_dagster.plugin.publish.publishing_run import PublishingRun

        wait_for_checks(context, named)
        run = PublishingRun(
            context=context,
            config=config,
            lance=getattr(context.resources, resource_key),
            tag=tag,
            checks=blocking_checks(context, keys, named),
            unchecked=unchecked,
            nodes=nodes,
            partitioned=partitions_def is not None,
            accept_stale=options.get("stale_checks") == "accept",
        )
        yield from _retried_only_after_storage_failures(PublishStep(run=run).execute())

    node_def = _waiting_graph(name, publisher, nodes) if waits else publisher
    setattr(node_def, _TRAITS, PublisherTraits(candidates=tuple(keys), checks=tuple(named), unchecked=unchecked))
    return dg.AssetsDefinition(
        node_def=node_def,
        keys_by_input_name={_input_of(node): node.candidate for node in nodes},
        keys_by_output_name={_output_of(node): node.promoted for node in nodes},
        specs=[node.spec for node in nodes],
        can_subset=True,
        backfill_policy=_backfill_policy(tables, partitions_def, options),
    )


def _backfill_policy(
    tables: Sequence[TableAsset], partitions_def: dg.PartitionsDefinition | None, options: PublisherOptions
) -> dg.BackfillPolicy | None:
    """Return the policy that the options name, or else that of the candidates, if all of them have the same one.

    Raises:
        InvalidInputError: A policy is given without partitions.
    """
    if partitions_def is None:
        if options.get("backfill_policy") is not None:
            raise InvalidInputError("backfill_policy needs partitions_def: without it, a table is published once")
        return None
    if "backfill_policy" in options:
        return options["backfill_policy"]
    policies = [table.backfill_policy for table in tables if isinstance(table, dg.AssetsDefinition)]
    return policies[0] if policies and all(policy == policies[0] for policy in policies) else None


def publisher_name(tag: str) -> str:
    """Return the name of the op that publishes for a tag, unless another name is given."""
    _check_tag(tag)
    if _NAME.fullmatch(tag):
        return f"publish_{tag}"
    # Two tags that differ only in such characters need two names.
    return f"publish_{re.sub(r'[^A-Za-z0-9_]', '_', tag)}_{zlib.crc32(tag.encode()):08x}"


def require_name(what: str, name: object) -> str:
    """Return a name that Dagster takes for an op or a job.

    Raises:
        InvalidInputError: The message names the argument as `what`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(f"{what} must have only ASCII letters, digits and '_', not {name!r}")
    return name


def _different_keys(specs: Sequence[dg.AssetSpec]) -> list[dg.AssetKey]:
    keys = [spec.key for spec in specs]
    if not keys or len(set(keys)) < len(keys):
        named = [key.to_user_string() for key in keys]
        raise InvalidInputError(f"build_publisher needs at least one table, and each only once: {named}")
    return keys


def _check_tag(tag: str) -> None:
    # A wrong tag is found when definitions load, and not after the first publication has merged. The full rules are
    # in `history`, which is not loaded then; they are checked when the tag is created.
    check_string("tag", tag)
    if tag == MAIN or not _TAG.fullmatch(tag):
        rule = "readers follow a tag, which is not a branch and has only ASCII letters, digits, '.', '-' and '_'"
        raise InvalidRefNameError("tag", tag, f"{rule}, such as production")


def _check_arguments(tables: object, tag: str, unchecked: object, options: PublisherOptions) -> None:
    require_sequence("tables", tables, "shop/orders")
    # A text such as "false" would count as true, and publish what nobody checked.
    check_flag("unchecked", unchecked)
    check_names("value of stale_checks", [str(options.get("stale_checks", "refuse"))], ("refuse", "accept"))
    _check_tag(tag)


def _retried_only_after_storage_failures(results: Iterator[dg.MaterializeResult]) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
    try:
        yield from results
    except (PublishRefusedError, ProtectedError, ConflictError, InvalidInputError, NotFoundError) as error:
        # A retry by Dagster would fail for the same reason. The cause of a StoreError may pass, so it is retried.
        raise dg.Failure(description=str(error), allow_retries=False) from error


def _waiting_graph(name: str, publisher: dg.OpDefinition, nodes: Sequence[PromotedNode]) -> dg.GraphDefinition:
    """Return a graph of the step that publishes, and of a small step for each table that waits for the table.

    Dagster skips a step when one of its inputs is skipped, except when the input has several upstreams: then all of
    them must be skipped. Candidates with blocking checks cannot be such upstreams, so each has a step that waits for
    the candidate and its checks, and is skipped with it.
    """

    @dg.op(name=f"{name}_wait", ins={_CANDIDATE: dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
    def wait() -> None:
        pass

    outputs = [_output_of(node) for node in nodes]

    @dg.graph(
        name=name,
        ins={_input_of(node): dg.GraphIn() for node in nodes},
        out={output: dg.GraphOut() for output in outputs},
        # The run configuration is that of an op: `ops: publish_production: config: ...`.
        config=dg.ConfigMapping(
            config_fn=lambda config: {_STEP: {"config": config}},
            config_schema=PublishConfig.to_config_schema(),
        ),
    )
    def publish(**candidates: object) -> object:
        written = [wait.alias(f"wait_for_{key}")(candidate) for key, candidate in candidates.items()]
        published = publisher.alias(_STEP)(written)
        return {output: getattr(published, output) for output in outputs} if len(outputs) > 1 else published

    return publish


def _input_of(node: PromotedNode) -> str:
    return _name_of(node.candidate)


def _output_of(node: PromotedNode) -> str:
    return _name_of(node.promoted)


def _group(specs: Sequence[dg.AssetSpec], tag: str, name: str, options: PublisherOptions) -> str | None:
    """Return the group of the promoted nodes; None for the group of the tag.

    Candidates may be computed from nodes of other publishers of the tag. If all nodes of the tag were in one group,
    Dagster's graph would have a cycle of groups: `production`, `marts`, `production`. So the publisher `publish_marts`
    has the group `production_marts`.
    """
    if group_name := options.get("group_name"):
        return group_name
    own = {promoted_key(spec.key, tag) for spec in specs}
    promoted_by_others = (dep.asset_key for spec in specs for dep in spec.deps if dep.asset_key not in own)
    label = name.replace(publisher_name(tag), "").removeprefix("publish_").strip("_")
    follows = any(key.path[0] == tag for key in promoted_by_others)
    return re.sub(r"\W", "_", f"{tag}_{label}", flags=re.ASCII) if follows and label else None


def _name_of(key: dg.AssetKey) -> str:
    # Dagster names the outputs of a multi-asset in the same way.
    return key.to_python_identifier()


def _specs_of(table: TableAsset) -> list[dg.AssetSpec]:
    """Return the specs of the assets that a caller names: of several for the definition of a multi-asset."""
    return list(table.specs) if isinstance(table, dg.AssetsDefinition) else [spec_of(table)]


def _nodes_of(
    assets: Sequence[dg.AssetSpec], tag: str, partitions_def: dg.PartitionsDefinition | None, group: str | None
) -> list[PromotedNode]:
    """Return the promoted nodes of candidates, upstream nodes first, as Dagster requires within one step."""
    named = {asset.key: asset for asset in assets}
    # The daemon splits the publisher in a backfill: a table is published after the tables it was computed from.
    needs = {
        key: [dep.asset_key for dep in asset.deps if dep.asset_key in named and dep.asset_key != key]
        for key, asset in named.items()
    }
    about = _ABOUT if partitions_def is None else _ABOUT + _ALL_PARTITIONS
    nodes = []
    for key in TopologicalSorter(needs).static_order():
        asset = named[key]
        spec = promoted_asset_spec(asset, tag=tag, partitions_def=partitions_def)
        spec = spec.replace_attributes(
            deps=[key, *(promoted_key(upstream, tag) for upstream in needs[key])],
            description=about.format(table=key.to_user_string(), tag=tag),
            group_name=group or spec.group_name,
            # Dagster takes this flag of the node from the op's outputs; here it decides which publisher is built.
            skippable=asset.skippable,
        )
        nodes.append(PromotedNode(candidate=key, promoted=spec.key, metadata=dict(asset.metadata), spec=spec))
    return nodes


def _after_split_assets(nodes: list[PromotedNode], tables: Sequence[TableAsset]) -> list[PromotedNode]:
    """Let each node depend on all candidates, where Dagster would split the publisher into several steps otherwise.

    Where Dagster splits any definition, it splits each definition whose assets are at different depths of the graph:
    where a multi-asset has assets around another asset, and where a candidate is computed from a table that another
    publisher promotes, such as `totals` from `staging/orders`. The steps of a split publisher would each publish a part
    of the run; with equal dependencies all nodes have the same depth.

    Raises:
        InvalidInputError: A candidate may be skipped, and a candidate is computed from a node of this publisher.
    """
    specs = [spec for table in tables for spec in _specs_of(table)]
    needs = {spec.key: [dep.asset_key for dep in spec.deps] for spec in specs}
    promoted = {node.promoted for node in nodes}
    # A candidate that is computed from a promoted node needs a publisher of several steps.
    layered = [key for key, upstream in needs.items() if not promoted.isdisjoint(upstream)]
    if layered:
        _refuse_skippable(nodes, layered)
        return nodes
    definitions = [table for table in tables if isinstance(table, dg.AssetsDefinition)]
    # The key of a promoted node is that of its candidate after the name of the tag.
    of_other_tags = {tuple(key.path[1:]) for upstream in needs.values() for key in upstream if key not in needs}
    is_computed_from_others = any(tuple(key.path) in of_other_tags for key in needs)
    if not (is_computed_from_others or any(is_split(definition, needs) for definition in definitions)):
        return nodes
    candidates = [dg.AssetDep(spec.key) for spec in specs]
    return [
        node._replace(
            spec=node.spec.replace_attributes(
                deps=[*candidates, *(dep for dep in node.spec.deps if dep.asset_key in promoted)]
            )
        )
        for node in nodes
    ]


def _refuse_skippable(nodes: Sequence[PromotedNode], layered: Sequence[dg.AssetKey]) -> None:
    # The publisher of tables that may be skipped is a graph, and Dagster cannot split a graph into steps.
    skippable = [node.candidate.to_user_string() for node in nodes if node.spec.skippable]
    if skippable:
        above = ", ".join(key.to_user_string() for key in layered)
        raise InvalidInputError(
            f"one publisher cannot publish {', '.join(skippable)}, which may be skipped, and {above}, which is "
            f"computed from a promoted table of this publisher: give {above} a publisher of its own, or let the asset "
            "return None and store nothing (lance/allow_none) in place of skipping its output"
        )


def is_split(definition: dg.AssetsDefinition, needs: Mapping[dg.AssetKey, Collection[dg.AssetKey]]) -> bool:
    """Return whether Dagster splits a multi-asset into steps, because an asset outside of it stands between its assets.

    Args:
        definition: The multi-asset.
        needs: The assets that each asset is computed from.
    """
    if not definition.can_subset:
        return False
    visited = set[dg.AssetKey]()
    todo = [upstream for key in definition.keys for upstream in needs.get(key, ()) if upstream not in definition.keys]
    while todo:
        key = todo.pop()
        if key in definition.keys:
            return True
        todo += needs.get(key, ()) if key not in visited else ()
        visited.add(key)
    return False


def _named_checks(
    checks: Iterable[dg.AssetCheckKey | dg.AssetChecksDefinition], tables: Collection[dg.AssetKey]
) -> list[dg.AssetCheckKey]:
    """Return the keys of checks that a publisher names; refuse those of other assets, which it would never look at."""
    if isinstance(checks, str | dg.AssetsDefinition) or not isinstance(checks, Iterable):
        raise InvalidInputError(f"checks must be a list of asset checks or of their keys, not {checks!r}")
    named = []
    for check in checks:
        if not isinstance(check, dg.AssetCheckKey | dg.AssetChecksDefinition):
            raise InvalidInputError(
                f"checks has {check!r}, which is not an asset check: give its definition, or its key, such as "
                'dg.AssetCheckKey(dg.AssetKey(["shop", "orders"]), "row_count")'
            )
        keys = [check] if isinstance(check, dg.AssetCheckKey) else list(check.check_keys)
        # One definition may check several assets.
        own = [key for key in keys if key.asset_key in tables]
        if not own:
            tables_named = ", ".join(key.to_user_string() for key in tables)
            raise InvalidInputError(
                f"checks: {', '.join(key.to_user_string() for key in keys)} is of no table of this publisher, which "
                f"publishes {tables_named}, so it would never stop a publication: give the check to the publisher of "
                "its asset"
            )
        named += own
    return named
