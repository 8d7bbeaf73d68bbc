"""What differs in the indices of two versions, by their names.

Lance stores an index anew whenever that is cheaper than to follow: under another uuid, but with the version and the
time it was made at where a compaction only moved the rows it knows. Such an index is the one it was. Which rows it
covers is no difference either: that follows from what became of the rows, and is told by `LanceTable.indices`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lance_dagster.changes.diff_schema import Fields
from lance_dagster.changes.indices import indices_of, kind_of
from lance_dagster.format.model import IndexMetadata, Manifest

ADDED, REMOVED, REPLACED, EXTENDED = "added", "removed", "replaced", "extended"


@dataclass(frozen=True, slots=True)
class IndexShape:
    """What an index is: its kind as the format names it, such as "BTree", and its columns, as paths."""

    kind: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in a few words."""
        return f"{self.kind} on {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChange:
    """What became of one index, all its segments together.

    `kind` is "added", "removed", "replaced" (built anew, as another index or as the same) or "extended" (more segments
    beside those it had). `before` and `after` say what it was and is; None where it is not.
    """

    kind: str
    name: str
    before: IndexShape | None = None
    after: IndexShape | None = None

    def __str__(self) -> str:
        """Say it in a line."""
        match self.kind:
            case "added":
                return f"+ {self.name}: {self.after}"
            case "removed":
                return f"- {self.name}: {self.before}"
            case "extended":
                return f"~ {self.name}: {self.after}, over more rows"
            case _:
                became = ", built anew" if self.before == self.after else f" -> {self.after}"
                return f"~ {self.name}: {self.before}{became}"


def index_changes(before: Manifest, after: Manifest) -> tuple[IndexChange, ...]:
    """Compare the indices on columns of two versions, by name; those that Lance keeps for itself are on none."""
    if before.index_section == after.index_section:
        return ()
    olds, news = _by_name(before), _by_name(after)
    fields = Fields.of(before.fields), Fields.of(after.fields)
    found = (
        _change(name, (olds.get(name, ()), news.get(name, ())), fields) for name in sorted(olds.keys() | news.keys())
    )
    return tuple(change for change in found if change is not None)


def _by_name(manifest: Manifest) -> Mapping[str, Sequence[IndexMetadata]]:
    found: dict[str, list[IndexMetadata]] = {}
    for index in indices_of(manifest):
        if index.fields:
            found.setdefault(index.name, []).append(index)
    return found


def _change(
    name: str, segments: tuple[Sequence[IndexMetadata], Sequence[IndexMetadata]], fields: tuple[Fields, Fields]
) -> IndexChange | None:
    old, new = (Counter(map(_built, part)) for part in segments)
    if old == new:
        return None
    before, after = (_shape(*pair) if pair[0] else None for pair in zip(segments, fields, strict=True))
    kind = ADDED if not old else REMOVED if not new else EXTENDED if old <= new else REPLACED
    return IndexChange(kind=kind, name=name, before=before, after=after)


def _built(index: IndexMetadata) -> tuple[object, ...]:
    """Return when a segment was built, and as what: that stays where it is stored anew for rows that moved."""
    if index.created_at is None:
        return (index.uuid,)
    return index.dataset_version, index.created_at, kind_of([index])


def _shape(segments: Sequence[IndexMetadata], fields: Fields) -> IndexShape:
    columns = (fields.by_id.get(number) for number in segments[0].fields)
    names = tuple("a column that is gone" if field is None else fields.path(field) for field in columns)
    return IndexShape(kind_of(segments), names)
