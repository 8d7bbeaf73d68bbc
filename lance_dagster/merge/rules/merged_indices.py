"""Decide which indices of the source the result has, and which fragments of the result each of them covers.

An index of the source is taken over under its name where the source made it, or built it anew, since the merge base and
the dest left that name alone. It names rows by fragment id and offset, so it can only cover a fragment of the result
with the id that it has on the source. It does cover this fragment if the values of the indexed columns come from the
same place of the same file, and if every row is alive on the source: an index may lack rows that were deleted when it
was made. In a fast-forward this is true of every fragment, since its fragments keep their ids.

Entries of fragments that an index does not cover stay in it. Readers drop them, but on a table with stable row ids they
look the rows up first, and fail where a fragment has fewer rows than the entries name. So an index is not taken over
where the result has, under an id that the index may name, another fragment than the source.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pyroaring import BitMap

from lance_dagster.format.evolution import subtree
from lance_dagster.format.model import DataFile, IndexMetadata, Manifest
from lance_dagster.merge.rules.merge_input import Deleted
from lance_dagster.merge.rules.result import MergedFragment
from lance_dagster.transactions.claims import SideHistory
from lance_dagster.transactions.fragment_reuse import defers_indices
from lance_dagster.transactions.index_updates import covered_by_readers, covered_fragments, indices_of

_Segments = Mapping[str, list[IndexMetadata]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFragments:
    """The fragments of the result: those of the dest that are not `removed`, some of them `changed`, and the `added`.

    `manifest` is the dest with the schema of the result, and those of its own indices that the result keeps.
    `from_source` has the ids that fields of the source have in the result.
    """

    dest: Manifest
    manifest: Manifest
    changed: Mapping[int, MergedFragment]
    removed: Collection[int]
    added: Mapping[int, MergedFragment]
    from_source: Mapping[int, int]
    deleted: Deleted

    @property
    def ids(self) -> BitMap:
        """The ids of all fragments."""
        return BitMap(self.manifest.fragments.ids) - BitMap(self.removed) | BitMap(self.added)

    def find(self, number: int) -> tuple[tuple[DataFile, ...], BitMap] | None:
        """Return the files of a fragment and its deleted rows; None where the result does not have it."""
        merged = self.changed.get(number) or self.added.get(number)
        if merged is not None:
            deleted = self.deleted(self.manifest, merged.fragment) if merged.deleted is None else merged.deleted
            return (*merged.fragment.files, *merged.files), deleted
        fragment = None if number in self.removed else self.manifest.fragments.find(number)
        return None if fragment is None else (fragment.files, self.deleted(self.manifest, fragment))


def indices_taken_over(history: SideHistory, base: Manifest, result: ResultFragments) -> tuple[IndexMetadata, ...]:
    """Return the indices of the source that the result has, with the fields and fragments that they cover there.

    Their base ids are still those of the source.

    Args:
        history: What the source did since the merge base.
        base: The merge base.
        result: The fragments of the result.
    """
    source = history.manifest
    if source.index_section in (None, base.index_section):
        return ()
    # Compactions that left the indices as they were say where the rows of an index are; a side knows its own only.
    if any(defers_indices(indices_of(version)) for version in (source, result.dest)):
        return ()
    before, new, own = map(_by_name, (base, source, result.dest))
    taken_over: list[IndexMetadata] = []
    for name, segments in new.items():
        if _uuids(new, name) == _uuids(before, name) or _uuids(own, name) != _uuids(before, name):
            continue
        if source.stable_row_ids and any(_names_others(index, history, result) for index in segments):
            continue
        covering = _taken(segments, source, result)
        # An index that the dest has as well is replaced only by an index that answers for as many fragments.
        own_segments = (covered for index, covered in covered_by_readers(result.manifest) if index.name == name)
        here = BitMap().union(*(covered_fragments(index) or BitMap() for index in covering))
        if BitMap().union(*own_segments) & result.ids <= here:
            taken_over += covering
    return tuple(replace(index, dataset_version=result.dest.version) for index in taken_over)


def _names_others(index: IndexMetadata, history: SideHistory, result: ResultFragments) -> bool:
    """Tell whether an index may name the id of a fragment that is another fragment in the result."""
    source = history.manifest
    after = [change.after for change in history.since if change.after is not None]
    first = next((version for version in after if index.uuid in {own.uuid for own in indices_of(version)}), source)
    newest = first.max_fragment_id or 0
    for number in result.ids & BitMap(range(newest + 1)):
        fragment, files = source.fragments.find(number), result.find(number)
        same = {file.path for file in fragment.files} if fragment is not None else set()
        if files is not None and same.isdisjoint(file.path for file in files[0]):
            return True
    return False


def _taken(segments: Iterable[IndexMetadata], source: Manifest, result: ResultFragments) -> list[IndexMetadata]:
    """Return the segments of an index that cover fragments of the result."""
    covering: list[IndexMetadata] = []
    for index in segments:
        fields, own = (*index.fields, *index.covering_fields), covered_fragments(index)
        if own is None or not all(number in result.from_source for number in fields):
            return []
        own &= BitMap(source.fragments.ids)
        indexed = frozenset(
            child.id for field in source.fields if field.id in fields for child in subtree(source.fields, field)
        )
        covered = BitMap(number for number in own if _has_values(number, source, indexed, result))
        # An index that was made on an empty table covers nothing, and says how the rows are to be indexed.
        if covered or not own:
            covering.append(
                replace(
                    index,
                    fields=tuple(result.from_source[number] for number in index.fields),
                    covering_fields=tuple(result.from_source[number] for number in index.covering_fields),
                    bitmap=covered.serialize(),
                )
            )
    return covering


def _has_values(number: int, source: Manifest, indexed: Collection[int], result: ResultFragments) -> bool:
    """Tell whether an index of the source has all rows of a fragment of the result, with their values."""
    fragment, stored = source.fragments.find(number), result.find(number)
    if fragment is None or stored is None:
        return False
    files, deleted = stored
    places = {(path, result.from_source.get(field), at) for path, field, at in _places(fragment.files, indexed)}
    in_result = {result.from_source.get(field) for field in indexed}
    if places != set(_places(files, in_result)):
        return False
    return fragment.deletion is None or result.deleted(source, fragment) <= deleted


def _places(files: Iterable[DataFile], fields: Collection[int | None]) -> Iterable[tuple[str, int, int]]:
    """Find where files have the values of some fields: the file, the field, and its column in the file."""
    for file in files:
        for at, field in enumerate(file.fields):
            if field in fields:
                yield file.path, field, file.column_indices[at] if file.column_indices else at


def _by_name(manifest: Manifest) -> _Segments:
    by_name: dict[str, list[IndexMetadata]] = {}
    for index in indices_of(manifest):
        # Indices without fields are bookkeeping of Lance.
        if index.fields:
            by_name.setdefault(index.name, []).append(index)
    return by_name


def _uuids(indices: _Segments, name: str) -> set[str]:
    return {index.uuid for index in indices.get(name, ())}
