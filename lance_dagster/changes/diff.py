"""What differs between two versions, as far as their manifests tell.

Nothing is read. Which rows differ is left to whoever can look at rows: this says where to look.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lance_dagster.changes.diff_fragments import (
    FragmentChange,
    FragmentMatch,
    fragment_changes,
    match_fragments,
    proven_fields,
)
from lance_dagster.changes.diff_indices import IndexChange, index_changes
from lance_dagster.changes.diff_maps import KeyChange, key_changes
from lance_dagster.changes.diff_schema import FieldChange, Fields, field_changes, match_fields
from lance_dagster.changes.diff_values import ComparedColumn, compared_columns
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two versions beside each other: what differs, which field and fragment is which, which columns both have.

    `matched` gives by the id of a field before its id after. The values of `not_compared` have nothing in common.
    """

    schema: tuple[FieldChange, ...]
    settings: tuple[KeyChange, ...]
    indices: tuple[IndexChange, ...]
    fragments: tuple[FragmentChange, ...]
    before: Fields
    after: Fields
    matched: dict[int, int]
    match: FragmentMatch
    columns: tuple[ComparedColumn, ...]
    not_compared: tuple[str, ...]

    def named(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return columns as the newer version names them; one that only the older version has keeps its name.

        Raises:
            InvalidInputError: Neither version has one of them.
        """
        names = {field.name: field.name for field in self.after.below(None)}
        for field in self.before.below(None):
            became = self.matched.get(field.id)
            names.setdefault(field.name, field.name if became is None else self.after.by_id[became].name)
        wanted = dict.fromkeys(columns)
        missing = next((name for name in wanted if name not in names), None)
        if missing is not None:
            raise InvalidInputError(f"no column {missing!r}; there are {', '.join(names)}")
        return tuple(dict.fromkeys(names[name] for name in wanted))


def compare(before: Manifest, after: Manifest, shared: Manifest | None) -> Comparison:
    """Compare two versions.

    Args:
        before: The older version.
        after: The newer one.
        shared: The last version their lines have in common; ids of fields that it has mean the same in both. None
            when it cannot be looked at.
    """
    olds, news = Fields.of(before.fields), Fields.of(after.fields)
    match = match_fragments(before, after)
    if _outline(olds) == _outline(news):
        matched = {number: number for number in olds.by_id}
    else:
        shared_below = 0 if shared is None else _next_field_id(shared)
        matched = match_fields(olds, news, proven_fields(match, olds.by_id), shared_below)
    if any(old != new for old, new in matched.items()):
        match = match.opened()
    columns, not_compared = compared_columns(olds, news, matched)
    return Comparison(
        schema=field_changes(olds, news, matched),
        settings=key_changes(before, after, matched),
        indices=index_changes(before, after),
        fragments=fragment_changes(match, news, matched),
        before=olds,
        after=news,
        matched=matched,
        match=match,
        columns=columns,
        not_compared=not_compared,
    )


def _outline(fields: Fields) -> set[tuple[int, int, str, str]]:
    return {(field.id, field.parent_id, field.name, field.logical_type) for field in fields.by_id.values()}


def _next_field_id(manifest: Manifest) -> int:
    return max([manifest.max_allocated_field_id or 0, *(field.id for field in manifest.fields)], default=0) + 1
