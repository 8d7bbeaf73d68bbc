"""Merge the settings of both sides, key by key: table metadata, configuration and schema metadata; column metadata too.

A key that is absent has a value too: it is a conflict if one side removes a key that the other side changed. Records of
merges in the table metadata belong to the dest alone: they tell which row ids and fields of which branch it has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import without_merge_records
from lance_dagster.merge.rules.change_makers import makers_of
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.strategy import SOURCE_WINS, Conflict, ConflictKind, Finding, ParsedStrategy

MakersOfKey = Callable[[str], str]
"""Names who changed a key on one side."""

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
    base, source_manifest, dest_manifest = source.base, source.manifest, dest.manifest
    # Only the dest's records of merges stay. Records of the source give row ids and fields that its line has, and would
    # be wrong for the dest.
    own = without_merge_records(base.table_metadata), without_merge_records(source_manifest.table_metadata)
    metadata = merge_map(
        (*own, dest_manifest.table_metadata),
        "table_metadata",
        _makers(source, dest, lambda manifest: manifest.table_metadata),
        strategy,
    )
    config = merge_map(
        (base.config, source_manifest.config, dest_manifest.config),
        "config",
        _makers(source, dest, lambda manifest: manifest.config),
        strategy,
    )
    schema = merge_map(
        (base.schema_metadata, source_manifest.schema_metadata, dest_manifest.schema_metadata),
        "schema_metadata",
        _makers(source, dest, lambda manifest: manifest.schema_metadata),
        strategy,
    )
    return MergedSettings(
        table_metadata=metadata.values,
        config=config.values,
        schema_metadata=schema.values,
        findings=(*metadata.findings, *config.findings, *schema.findings),
    )


def _makers(
    source: MergeSide, dest: MergeSide, settings: Callable[[Manifest], Mapping[str, object]]
) -> tuple[MakersOfKey, MakersOfKey]:
    def of(side: MergeSide, key: str) -> str:
        return makers_of(side.history, lambda manifest: settings(manifest).get(key))

    return partial(of, source), partial(of, dest)


def merge_map(
    states: tuple[Mapping[str, V], Mapping[str, V], Mapping[str, V]],
    kind: ConflictKind,
    makers: tuple[MakersOfKey, MakersOfKey],
    strategy: ParsedStrategy,
    *,
    unit: str | None = None,
) -> MergedMap[V]:
    """Merge a map three ways.

    Args:
        states: The map in the merge base, the source and the dest.
        kind: What the map is, for conflicts.
        makers: Name who changed a key on the source, and on the dest.
        strategy: Who wins where both changed a key differently.
        unit: The unit of all conflicts of the map; None for a unit for each key.
    """
    base, source, dest = states
    result, findings = dict(dest), []
    # A key that only the dest has is in the result already, and stays.
    for key in sorted(base.keys() | source.keys()):
        base_value, source_value, dest_value = base.get(key), source.get(key), dest.get(key)
        # The source changed nothing, or both sides made the same change: the dest's value stands in both cases.
        if source_value in (base_value, dest_value):
            continue
        if dest_value != base_value:
            # In a unit of several keys, the text has to say which key it is about.
            what = "it" if unit is None else f"key {key!r}"
            did = [f"{makers[0](key)} {_verb(base_value, source_value)} {what}"]
            did.append(f"{makers[1](key)} {_verb(base_value, dest_value)} it differently")
            conflict = Conflict(kind=kind, unit=unit or f"{kind} key {key!r}", source=did[0], dest=did[1])
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
