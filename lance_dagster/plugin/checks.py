"""Blocking asset checks that read the candidate of their run.

A check takes the table from the resource and not as an input: an input would go through the IO manager, which
reads every column of every row before the check can say which one it wants. What a check is about is a small
value, so that it can be compared and printed; what it found names the version it looked at, which the
publisher compares with the version it is about to publish.
"""

from collections.abc import Iterable, Sequence

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.check_values import Audit, Check, KeysExist
from lance_dagster.plugin.resource import LanceResource

RESOURCE_KEY = "lance"
CheckedAsset = dg.AssetKey | str | Sequence[str] | dg.AssetsDefinition | dg.AssetSpec


def build_table_checks(asset: CheckedAsset, checks: Iterable[Check]) -> list[dg.AssetChecksDefinition]:
    """Return one blocking asset check for each check value.

    A failing check stops everything downstream of the asset in its run, and its publication in every run.

    Args:
        asset: The candidate: its definition, or its key. With the key, the asset's metadata about where its
            table lies is not known here.
        checks: `RowCount`, `NotNull`, `NullRate`, `InRange`, `Unique` and `KeysExist` values.

    Raises:
        InvalidInputError: Two checks have the same name.

    Example:
        >>> from lance_dagster import RowCount
        >>> [check.check_key.name for check in build_table_checks("orders", [RowCount(minimum=1)])]
        ['row_count']
    """
    key = asset_key_of(asset)
    found = list(checks)
    names = [check.name for check in found]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInputError(f"two checks of {key.to_user_string()} are named {', '.join(doubled)}")
    return [_build(key, metadata_of(asset), check) for check in found]


def asset_key_of(asset: CheckedAsset) -> dg.AssetKey:
    """Return the key of an asset given as a key or a definition of one asset.

    Text is a path: `shop/orders` is the table `orders` in `shop`.
    """
    if isinstance(asset, (dg.AssetsDefinition, dg.AssetSpec)):
        return asset.key
    if isinstance(asset, dg.AssetKey):
        return asset
    return dg.AssetKey(asset.split("/") if isinstance(asset, str) else list(asset))


def metadata_of(asset: CheckedAsset) -> dict[str, object]:
    """Return the definition metadata of an asset given as a definition; empty for a key."""
    if isinstance(asset, dg.AssetsDefinition):
        return dict(asset.metadata_by_key[asset.key])
    return dict(asset.metadata) if isinstance(asset, dg.AssetSpec) else {}


def _build(key: dg.AssetKey, metadata: dict[str, object], check: Check) -> dg.AssetChecksDefinition:
    others = [asset_key_of(check.in_table)] if isinstance(check, KeysExist) else []

    @dg.asset_check(
        asset=key,
        name=check.name,
        description=check.description,
        blocking=True,
        additional_deps=[other for other in others if other != key],
        required_resource_keys={RESOURCE_KEY},
    )
    def table_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        lance: LanceResource = context.resources.lance
        opened = {other: lance.open(context, other) for other in others}
        audit = Audit(candidate=lance.open(context, key, metadata), others=opened)
        finding = check.evaluate(audit)
        return dg.AssetCheckResult(
            passed=finding.passed,
            description=finding.description,
            metadata={**md.version_metadata(audit.candidate.version), **finding.counts},
        )

    return table_check
