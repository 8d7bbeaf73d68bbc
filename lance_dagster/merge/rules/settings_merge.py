"""Merge table metadata, configuration and schema metadata key by key.

A key that is absent has a value too: one side removing what the other changed is a conflict. Records of merges in the
table metadata belong to the dest alone: they tell which row ids and fields of which branch it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from lance_dagster.format.transaction import without_merge_records
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.strategy import SOURCE_WINS, Conflict, Finding, ParsedStrategy

V = TypeVar("V", str, bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedSettings:
    """The settings of the result, and where both sides changed one differently."""

    table_metadata: dict[str, str]
    config: dict[str, str]
    schema_metadata: dict[str, bytes]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedMap(Generic[V]):
    """A map that was merged, and the keys that both sides changed differently."""

    values: dict[str, V]
    findings: tuple[Finding, ...]


def merge_settings(source: MergeSide, dest: MergeSide, strategy: ParsedStrategy) -> MergedSettings:
    """Merge the table metadata, the configuration and the schema metadata of two sides."""
    base, one, other = source.base, source.manifest, dest.manifest
    names = (source.name, dest.name)
    own = without_merge_records(base.table_metadata), without_merge_records(one.table_metadata)
    metadata = merge_map((*own, other.table_metadata), "table_metadata", names, strategy)
    config = merge_map((base.config, one.config, other.config), "config", names, strategy)
    schema = merge_map(
        (base.schema_metadata, one.schema_metadata, other.schema_metadata), "schema_metadata", names, strategy
    )
    return MergedSettings(
        table_metadata=metadata.values,
        config=config.values,
        schema_metadata=schema.values,
        findings=(*metadata.findings, *config.findings, *schema.findings),
    )


def merge_map(
    states: tuple[Mapping[str, V], Mapping[str, V], Mapping[str, V]],
    kind: str,
    names: tuple[str, str],
    strategy: ParsedStrategy,
) -> MergedMap[V]:
    """Merge a map three ways.

    Args:
        states: The map in the merge base, the source and the dest.
        kind: What the map is, for conflicts.
        names: What source and dest are called.
        strategy: Who wins where both changed a key differently.
    """
    base, source, dest = states
    result, findings = dict(dest), []
    for key in sorted(base.keys() | source.keys()):
        base_value, source_value, dest_value = base.get(key), source.get(key), dest.get(key)
        if source_value in (base_value, dest_value):
            continue
        if dest_value != base_value:
            did = [f"{names[0]} {_verb(base_value, source_value)} it"]
            did.append(f"{names[1]} {_verb(base_value, dest_value)} it differently")
            conflict = Conflict(kind=kind, unit=f"{kind} key {key!r}", source=did[0], dest=did[1])
            findings.append(Finding(conflict=conflict))
            if strategy.winner_of(findings[-1]) != SOURCE_WINS:
                continue
        if source_value is None:
            result.pop(key, None)
        else:
            result[key] = source_value
    return MergedMap(values=result, findings=tuple(findings))


def _verb(before: object, after: object) -> str:
    if before is None:
        return "set"
    return "removed" if after is None else "changed"
