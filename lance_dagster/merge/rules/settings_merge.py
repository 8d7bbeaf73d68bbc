"""Merge settings and metadata key by key."""

from collections.abc import Mapping
from typing import TypeVar

from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import without_records
from lance_dagster.merge.rules.merge_side import Conflict, SideHistory
from lance_dagster.merge.rules.strategy import SOURCE_WINS, StrategyResolver

V = TypeVar("V", str, bytes)


def merge_maps(
    base: Manifest, source: SideHistory, dest: SideHistory, resolver: StrategyResolver
) -> tuple[dict[str, str], dict[str, str], dict[str, bytes]]:
    """Return the table metadata, the configuration and the schema metadata of the result.

    Records of merges belong to the dest alone.
    """
    names = (source.name, dest.name)
    one, other = source.manifest, dest.manifest
    own = without_records(base.table_metadata), without_records(one.table_metadata)
    metadata = merged((*own, other.table_metadata), "table_metadata", names, resolver)
    config = merged((base.config, one.config, other.config), "config", names, resolver)
    schema = merged(
        (base.schema_metadata, one.schema_metadata, other.schema_metadata), "schema_metadata", names, resolver
    )
    return metadata, config, schema


def merged(
    states: tuple[Mapping[str, V], Mapping[str, V], Mapping[str, V]],
    kind: str,
    names: tuple[str, str],
    resolver: StrategyResolver,
) -> dict[str, V]:
    """Merge a map three ways; a key that is absent has the value None.

    Args:
        states: The map in the merge base, the source and the dest.
        kind: What the map is, for conflicts.
        names: What source and dest are called.
        resolver: Decides where both changed a key differently.
    """
    base, source, dest = states
    result = dict(dest)
    for key in sorted(base.keys() | source.keys()):
        base_value, source_value, dest_value = base.get(key), source.get(key), dest.get(key)
        if source_value in (base_value, dest_value):
            continue
        winner: str | None = SOURCE_WINS
        if dest_value != base_value:
            did = (
                f"{names[0]} {_verb(base_value, source_value)} it",
                f"{names[1]} {_verb(base_value, dest_value)} it differently",
            )
            winner = resolver.settle(Conflict(kind=kind, unit=f"{kind} key {key!r}", source=did[0], dest=did[1]))
        if winner == SOURCE_WINS and source_value is None:
            result.pop(key, None)
        elif winner == SOURCE_WINS and source_value is not None:
            result[key] = source_value
    return result


def _verb(base_value: object, value: object) -> str:
    if base_value is None:
        return "set"
    return "removed" if value is None else "changed"
