"""What differs in the settings and descriptions of two versions, key by key."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lance_dagster.changes.diff_schema import Fields
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import without_records

CONFIG, TABLE_METADATA, SCHEMA_METADATA = "config", "table_metadata", "schema_metadata"
FIELD_METADATA = "field_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """What became of one key of a map.

    `map` is "config", "table_metadata", "schema_metadata" or "field_metadata", the last one of the field at the path
    `field`. `before` is None where the key is new, `after` where it is gone.
    """

    map: str
    key: str
    before: str | None
    after: str | None
    field: str | None = None

    def __str__(self) -> str:
        """Say it in a line."""
        where = self.map if self.field is None else f"{self.map} of {self.field}"
        if self.before is None:
            return f"+ {where}: {self.key} = {self.after!r}"
        if self.after is None:
            return f"- {where}: {self.key} = {self.before!r}"
        return f"~ {where}: {self.key} = {self.before!r} -> {self.after!r}"


def key_changes(before: Manifest, after: Manifest, matched: Mapping[int, int]) -> tuple[KeyChange, ...]:
    """Compare all maps of two versions; what merges record for themselves is left out.

    Args:
        before: The older version.
        after: The newer one.
        matched: Which field is which, by id. The metadata of a field that only one of them has is no change.
    """
    return (
        *_compared(CONFIG, before.config, after.config),
        *_compared(TABLE_METADATA, without_records(before.table_metadata), without_records(after.table_metadata)),
        *_compared(SCHEMA_METADATA, _text(before.schema_metadata), _text(after.schema_metadata)),
        *_of_fields(before, after, matched),
    )


def _of_fields(before: Manifest, after: Manifest, matched: Mapping[int, int]) -> Iterator[KeyChange]:
    olds, news = Fields.of(before.fields), Fields.of(after.fields)
    for old, new in matched.items():
        one, other = olds.by_id[old], news.by_id[new]
        if one.metadata != other.metadata:
            yield from _compared(FIELD_METADATA, _text(one.metadata), _text(other.metadata), news.path(other))


def _compared(
    name: str, before: Mapping[str, str], after: Mapping[str, str], field: str | None = None
) -> Iterator[KeyChange]:
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield KeyChange(map=name, key=key, before=before.get(key), after=after.get(key), field=field)


def _text(metadata: Mapping[str, bytes]) -> dict[str, str]:
    return {key: value.decode("utf-8", "backslashreplace") for key, value in metadata.items()}
