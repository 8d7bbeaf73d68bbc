"""How a caller names the asset of a table: by its definition or by its key."""

from collections.abc import Sequence

import dagster as dg

# The resource key under which Dagster finds the `LanceResource`, unless the caller names another one.
RESOURCE_KEY = "lance"
TableAsset = dg.AssetKey | str | Sequence[str] | dg.AssetsDefinition | dg.AssetSpec


def asset_key_of(asset: TableAsset) -> dg.AssetKey:
    """Return the key of an asset that is given as a key or as the definition of one asset.

    A string is a path: `shop/orders` means the key `["shop", "orders"]`.
    """
    if isinstance(asset, (dg.AssetsDefinition, dg.AssetSpec)):
        return asset.key
    if isinstance(asset, dg.AssetKey):
        return asset
    return dg.AssetKey(asset.split("/") if isinstance(asset, str) else list(asset))


def metadata_of(asset: TableAsset) -> dict[str, object]:
    """Return the metadata of an asset's definition; empty when only the key is given."""
    if isinstance(asset, dg.AssetsDefinition):
        return dict(asset.metadata_by_key[asset.key])
    return dict(asset.metadata) if isinstance(asset, dg.AssetSpec) else {}
