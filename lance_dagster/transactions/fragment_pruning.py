"""Which fragments of a version have rows that a predicate selects, as far as the manifest tells. Pure.

No data file is opened for it. A fragment of which it tells nothing has to be searched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lance_dagster.format.model import FileColumns, Manifest
from lance_dagster.format.row_conditions import TRUE, parse_condition
from lance_dagster.format.value_ranges import KnownRanges, decode_range, ranged_positions, value_type

_NEWEST = 4


@dataclass(frozen=True, slots=True)
class KnownMatches:
    """The fragments that may have rows that a predicate selects; all other fragments have none.

    Attributes:
        whole: The ids of the fragments all of whose rows it selects.
        possible: The ids of the fragments that have to be searched.
    """

    whole: tuple[int, ...]
    possible: tuple[int, ...]

    @property
    def fragments(self) -> tuple[int, ...]:
        """The ids of all of them, in the order of the version."""
        return tuple(sorted((*self.whole, *self.possible)))


def known_matches(manifest: Manifest, predicate: str) -> KnownMatches | None:
    """Return which fragments may have rows that a predicate selects; None where every fragment has to be searched.

    Args:
        manifest: The version.
        predicate: A condition in Lance SQL. An invalid condition may be taken for one that selects no row.
    """
    # Only the columns: a field of a struct has no range.
    columns = {field.name: field for field in manifest.fields if field.parent_id < 0 and not field.extension_name}
    kinds = {name: value_type(field.logical_type) for name, field in columns.items()}
    condition = parse_condition(predicate, kinds)
    if condition.columns and not manifest.ranges:
        return None
    fields = [(name, kinds[name], columns[name].id) for name in sorted(condition.columns)]
    known = manifest.known_ranges
    results_of: dict[tuple[str | None, ...], int] = {}
    whole: list[int] = []
    possible: list[int] = []
    for number, files in zip(manifest.fragments.ids, manifest.fragments.files, strict=True):
        lines = tuple([_line(known, files, field_id) for _, _, field_id in fields])
        # Many fragments of a partition have the same bounds.
        results = results_of.get(lines)
        if results is None:
            pairs = zip(fields, lines, strict=True)
            ranges = {name: None if line is None else decode_range(line, kind) for (name, kind, _), line in pairs}
            results = results_of[lines] = condition.results(ranges)
        if results == TRUE:
            whole.append(number)
        elif results & TRUE:
            possible.append(number)
    if len(possible) == len(manifest.fragments):
        return None
    if not manifest.fragments.summary.has_row_counts:
        # Very old fragments do not say how many rows they have.
        return KnownMatches((), tuple(sorted((*whole, *possible))))
    return KnownMatches(tuple(whole), tuple(possible))


def columns_with_ranges(manifest: Manifest) -> list[str]:
    """Return the names of the columns with a known range in the newest data files of a version."""
    if not manifest.ranges:
        return []
    names = {field.id: field.name for field in manifest.fields if field.parent_id < 0}
    columns: dict[str, None] = {}
    # A few fragments, since the newest may be of another program.
    for fragment in manifest.fragments[-_NEWEST:]:
        for file in fragment.files:
            positions = ranged_positions(manifest.ranges, file.path)
            pairs = zip(file.fields, file.column_indices, strict=False)
            columns |= {names[number]: None for number, place in pairs if place in positions and number in names}
    return list(columns)


def _line(known: KnownRanges, files: Sequence[FileColumns], field_id: int) -> str | None:
    if len(files) == 1:
        ((path, columns),) = files
        return known.line(path, columns[field_id]) if field_id in columns else None
    holders = [(path, columns[field_id]) for path, columns in files if field_id in columns]
    # Two files with one field contradict each other; files of the first format do not list their columns.
    return known.line(*holders[0]) if len(holders) == 1 else None
