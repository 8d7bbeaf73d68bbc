"""The asset of a table as a caller names it, and the place of the table below the root.

Two assets on one table would replace each other's rows. The place is derived from the whole key of the asset, so two
assets share a table only where metadata names the same place; the definitions of one code location are compared when
they are loaded, and `RunBranch.is_owned_by` keeps the assets of different code locations apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md

# The resource key under which Dagster finds the `LanceResource`, unless the caller names another key.
RESOURCE_KEY = "lance"
TableKey = str | dg.AssetKey
TableAsset = dg.AssetKey | str | Sequence[str] | dg.AssetsDefinition | dg.AssetSpec
_ENDING = ".lance"


@dataclass(frozen=True, slots=True)
class TableAddress:
    """The place of a table below the root, as the parts of a path without the ending `.lance`.

    Raises:
        InvalidInputError: A part is not the name of a folder, so the path could leave the root or lie in a table.
    """

    path: tuple[str, ...]

    def __post_init__(self) -> None:
        """Validate each part of the path."""
        for part in self.path or ("",):
            if wrong := _reason_against(part):
                raise InvalidInputError(
                    f"no table can be at {str(self)!r} below the root, because {wrong}; the path of a table is "
                    "written such as shop/orders"
                )

    def __str__(self) -> str:
        """Return the path with slashes, such as `eu/shop/orders`."""
        return "/".join(self.path)

    @property
    def table(self) -> str:
        """The name of the table, the last part of the path."""
        return self.path[-1]

    @property
    def schema(self) -> str:
        """The folder of the table, which is all parts of the path before the last one; may be empty."""
        return "/".join(self.path[:-1])

    @property
    def dotted(self) -> str:
        """The path with dots, such as `eu.shop.orders`, as Dagster's pages show the name of a table."""
        return ".".join(self.path)


def asset_key_of(asset: TableAsset) -> dg.AssetKey:
    """Return the key of an asset that is given as a key or as the definition of one asset.

    A string is a path: `shop/orders` means the key `["shop", "orders"]`.

    Raises:
        InvalidInputError: The definition is a multi-asset, or the value is neither a key nor a definition.
    """
    if isinstance(asset, dg.AssetsDefinition):
        if len(asset.keys) != 1:
            keys = ", ".join(sorted(key.to_user_string() for key in asset.keys))
            raise InvalidInputError(
                f"this definition has {len(asset.keys)} assets; give the key or the AssetSpec of one of them: {keys}"
            )
        return asset.key
    if isinstance(asset, dg.AssetSpec):
        return asset.key
    if isinstance(asset, dg.AssetKey):
        return asset
    path: object = asset
    parts = path.split("/") if isinstance(path, str) else list(path) if isinstance(path, list | tuple) else []
    if not parts or not all(isinstance(part, str) for part in parts):
        raise InvalidInputError(f"give an asset as its definition or its key, such as 'shop/orders', not {path!r}")
    return dg.AssetKey(parts)


def spec_of(asset: TableAsset) -> dg.AssetSpec:
    """Return the spec of an asset, which has nothing but the key when only the key is given.

    Raises:
        InvalidInputError: As `asset_key_of` says.
    """
    key = asset_key_of(asset)
    if isinstance(asset, dg.AssetsDefinition):
        return asset.get_asset_spec(key)
    return asset if isinstance(asset, dg.AssetSpec) else dg.AssetSpec(key)


def metadata_of(asset: TableAsset) -> dict[str, object]:
    """Return the metadata of an asset's definition; empty when only the key is given."""
    return dict(spec_of(asset).metadata)


class WatchedTable(NamedTuple):
    """A table that a sensor or a job handles: the key of its candidate, and the metadata of the definition."""

    key: dg.AssetKey
    metadata: dict[str, object]

    @classmethod
    def of(cls, asset: TableAsset) -> "WatchedTable":
        """Return the table of an asset.

        Raises:
            InvalidInputError: The definition is a multi-asset.
        """
        return cls(asset_key_of(asset), metadata_of(asset))

    @property
    def name(self) -> str:
        """The key as text."""
        return self.key.to_user_string()


def table_address(asset_key: TableKey, metadata: Mapping[str, object]) -> TableAddress:
    """Return the place of an asset's table below the root.

    It is the metadata `lance/table`, or else the key of the asset, whose prefix the metadata `lance/schema` replaces.
    A promoted node has the place of the candidate that its metadata `lance/candidate` names.

    Raises:
        InvalidInputError: A part of the path is not the name of a folder.
    """
    if named := md.text(metadata, md.TABLE):
        return TableAddress(tuple(named.split("/")))
    key = md.text(metadata, md.CANDIDATE) or asset_key
    path = tuple(key.path if isinstance(key, dg.AssetKey) else key.split("/"))
    schema = md.text(metadata, md.SCHEMA)
    return TableAddress((*schema.split("/"), path[-1]) if schema else path)


def place_metadata(candidate: dg.AssetKey, metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the metadata of another node on the table of a candidate, which makes the node find the table.

    Args:
        candidate: The key of the candidate.
        metadata: The metadata of the candidate's definition.
    """
    place = {key: metadata[key] for key in (md.TABLE, md.SCHEMA) if key in metadata}
    return {**place, md.CANDIDATE: candidate.to_user_string()}


def owner_of(asset_key: dg.AssetKey, metadata: Mapping[str, object]) -> str:
    """Return the key, as text, of the asset that writes the table: the candidate of a promoted node, or the asset."""
    return md.text(metadata, md.CANDIDATE) or asset_key.to_user_string()


def _reason_against(part: str) -> str | None:
    if part in ("", ".", ".."):
        return f"a part of the path is {part!r}"
    if "/" in part or "\\" in part or "\0" in part:
        return f"the part {part!r} has a character that is not allowed in the name of a folder"
    if part.endswith(_ENDING):
        return f"the part {part!r} ends in {_ENDING}, which is added to the last part only"
    return None
