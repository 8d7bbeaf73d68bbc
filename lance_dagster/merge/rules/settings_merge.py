"""Merge settings and metadata key by key."""

from collections.abc import Mapping
from typing import TypeVar

from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import without_records
from lance_dagster.merge.rules.merge_side import Conflict, Side
from lance_dagster.merge.rules.strategy import SOURCE_WINS, Arbiter

V = TypeVar("V", str, bytes)


def merge_maps(
    base: Manifest, source: Side, dest: Side, arbiter: Arbiter
) -> tuple[dict[str, str], dict[str, str], dict[str, bytes]]:
    """Return the table metadata, the configuration and the schema metadata of the result.

    Records of merges belong to the dest alone.
    """
    names = (source.name, dest.name)
    one, other = source.manifest, dest.manifest
    own = without_records(base.table_metadata), without_records(one.table_metadata)
    metadata = merged((*own, other.table_metadata), "table_metadata", names, arbiter)
    config = merged((base.config, one.config, other.config), "config", names, arbiter)
    schema = merged(
        (base.schema_metadata, one.schema_metadata, other.schema_metadata), "schema_metadata", names, arbiter
    )
    return metadata, config, schema


def merged(
    states: tuple[Mapping[str, V], Mapping[str, V], Mapping[str, V]],
    kind: str,
    names: tuple[str, str],
    arbiter: Arbiter,
) -> dict[str, V]:
    """Merge a map three ways; a key that is absent has the value None.

    Args:
        states: The map in the merge base, the source and the dest.
        kind: What the map is, for conflicts.
        names: What source and dest are called.
        arbiter: Decides where both changed a key differently.
    """
    base, source, dest = states
    result = dict(dest)
    for key in sorted(base.keys() | source.keys()):
        was, mine, theirs = base.get(key), source.get(key), dest.get(key)
        if mine in (was, theirs):
            continue
        winner: str | None = SOURCE_WINS
        if theirs != was:
            did = f"{names[0]} {_verb(was, mine)} it", f"{names[1]} {_verb(was, theirs)} it differently"
            winner = arbiter.settle(Conflict(kind=kind, unit=f"{kind} key {key!r}", source=did[0], dest=did[1]))
        if winner == SOURCE_WINS and mine is None:
            result.pop(key, None)
        elif winner == SOURCE_WINS and mine is not None:
            result[key] = mine
    return result


def _verb(was: object, value: object) -> str:
    if was is None:
        return "set"
    return "removed" if value is None else "changed"
