"""Compare two versions by their manifests: settings, indices, fragments and schema. Pure; no data file is read.

Manifests do not show which rows differ. The result (`Comparison`) says where to look: which fragment of one
version is which of the other, and which columns of it are in other files.

**Fragments.** A data file is written once, under a name that no other file has. So fragments with a data file in common
hold the same rows at the same offsets, on any branch and under any id. An id proves nothing: each branch assigns its
own, and older programs reused ids after an overwrite. A fragment whose files were all rewritten counts as a new one.
Fragments that both manifests store in the same bytes are matched without decoding them.

**Indices** are compared by name. Lance stores an index again under another uuid where a compaction moved the rows it
covers; its creation time stays, and then it is the same index. Which rows it covers is not a difference:
that follows from the changes of rows, and `indices` reports it.

**Settings** are compared key by key. Records that merges keep in the table metadata are not settings.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lance_dagster.diff.comparison_shapes import ComparedColumn, compared_columns
from lance_dagster.diff.schema_diff import FieldChange, Fields, field_changes, match_fields
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.deletions import same_deletion_vector
from lance_dagster.format.model import TOMBSTONE_FIELD, Fragment, Fragments, IndexMetadata, Manifest
from lance_dagster.format.transaction import without_merge_records
from lance_dagster.transactions.index_updates import index_type, indices_of

CONFIG, TABLE_METADATA, SCHEMA_METADATA = "config", "table_metadata", "schema_metadata"
FIELD_METADATA = "field_metadata"
ChangeKind = Literal["added", "removed", "changed"]
"""The change of a row or a fragment between two versions."""
IndexChangeKind = Literal["added", "removed", "replaced", "extended"]
ADDED: Literal["added"] = "added"
REMOVED: Literal["removed"] = "removed"
CHANGED: Literal["changed"] = "changed"
REPLACED: Literal["replaced"] = "replaced"
EXTENDED: Literal["extended"] = "extended"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """The change of one key of a map.

    `map` is "config", "table_metadata", "schema_metadata", or "field_metadata" of the field with the dotted name
    `field`. `before` is None for a new key, `after` for a removed key.
    """

    map: str
    key: str
    before: str | None
    after: str | None
    field: str | None = None

    def __str__(self) -> str:
        """Return the change as one line."""
        where = self.map if self.field is None else f"{self.map} of {self.field}"
        if self.before is None:
            return f"+ {where}: {self.key} = {self.after!r}"
        if self.after is None:
            return f"- {where}: {self.key} = {self.before!r}"
        return f"~ {where}: {self.key} = {self.before!r} -> {self.after!r}"


def key_changes(before: Manifest, after: Manifest, matched: Mapping[int, int]) -> tuple[KeyChange, ...]:
    """Compare all maps of two versions, except the records of merges.

    Args:
        before: The older version.
        after: The newer version.
        matched: The id of each field in the newer version by its id in the older version. Metadata of a field that
            only one version has is not a change.
    """
    return (
        *_compared(CONFIG, before.config, after.config),
        # Records of merges change with every merge and are not settings of the user.
        *_compared(
            TABLE_METADATA, without_merge_records(before.table_metadata), without_merge_records(after.table_metadata)
        ),
        *_compared(SCHEMA_METADATA, _text(before.schema_metadata), _text(after.schema_metadata)),
        *_of_fields(before, after, matched),
    )


def _of_fields(before: Manifest, after: Manifest, matched: Mapping[int, int]) -> Iterator[KeyChange]:
    olds, news = Fields.of(before.fields), Fields.of(after.fields)
    for old, new in matched.items():
        old_field, new_field = olds.by_id[old], news.by_id[new]
        if old_field.metadata != new_field.metadata:
            yield from _compared(
                FIELD_METADATA, _text(old_field.metadata), _text(new_field.metadata), news.path(new_field)
            )


def _compared(
    name: str, before: Mapping[str, str], after: Mapping[str, str], field: str | None = None
) -> Iterator[KeyChange]:
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield KeyChange(map=name, key=key, before=before.get(key), after=after.get(key), field=field)


def _text(metadata: Mapping[str, bytes]) -> dict[str, str]:
    return {key: value.decode("utf-8", "backslashreplace") for key, value in metadata.items()}


@dataclass(frozen=True, slots=True)
class IndexShape:
    """The kind of an index as the format names it, such as "BTree", and the dotted names of its columns."""

    kind: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        """Return the kind and the columns as text."""
        return f"{self.kind} on {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChange:
    """The change of one index with all its segments.

    `kind` is "added", "removed", "replaced" (built again, in the same or another shape) or "extended" (segments
    were added). `before` and `after` are its shape; None in the version that does not have it.
    """

    kind: IndexChangeKind
    name: str
    before: IndexShape | None = None
    after: IndexShape | None = None

    def __str__(self) -> str:
        """Return the change as one line."""
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
    """Compare the indices of two versions by name. System indices have no columns and are left out."""
    # Most versions leave the indices alone, and equal bytes need not be decoded.
    if before.index_section == after.index_section:
        return ()
    olds, news = _by_name(before), _by_name(after)
    fields = Fields.of(before.fields), Fields.of(after.fields)
    changes = (
        _change(name, (olds.get(name, ()), news.get(name, ())), fields) for name in sorted(olds.keys() | news.keys())
    )
    return tuple(change for change in changes if change is not None)


def _by_name(manifest: Manifest) -> Mapping[str, Sequence[IndexMetadata]]:
    segments: dict[str, list[IndexMetadata]] = {}
    for index in indices_of(manifest):
        if index.fields:
            segments.setdefault(index.name, []).append(index)
    return segments


def _change(
    name: str, segments: tuple[Sequence[IndexMetadata], Sequence[IndexMetadata]], fields: tuple[Fields, Fields]
) -> IndexChange | None:
    # Multisets are compared, since several segments may be built at the same version and time.
    old, new = (Counter(map(_built, part)) for part in segments)
    if old == new:
        return None
    before, after = (_shape(*pair) if pair[0] else None for pair in zip(segments, fields, strict=True))
    # More segments beside all the old ones extend an index over new rows; anything else replaces it.
    kind: IndexChangeKind = ADDED if not old else REMOVED if not new else EXTENDED if old <= new else REPLACED
    return IndexChange(kind=kind, name=name, before=before, after=after)


def _built(index: IndexMetadata) -> tuple[object, ...]:
    """Return the values that identify a segment after a compaction stored it again under another uuid."""
    # An older program did not record the time; then only the uuid identifies the segment. The version that a segment
    # was made from is no sign: a merge takes a segment over as of a version of the dest.
    if index.created_at is None:
        return (index.uuid,)
    return index.created_at, index_type([index])


def _shape(segments: Sequence[IndexMetadata], fields: Fields) -> IndexShape:
    columns = (fields.by_id.get(number) for number in segments[0].fields)
    names = tuple("a column that is gone" if field is None else fields.path(field) for field in columns)
    return IndexShape(index_type(segments), names)


_SAMPLED_FRAGMENTS = 100
"""The number of unchanged fragments that are read to match fields; all of them prove the same matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentChange:
    """The change of one fragment.

    `kind` is "added", "removed" or "changed". `before` and `after` are its ids, `rows_*` the number of its live rows,
    `deleted_*` the number of its deleted rows. `columns` are new columns and columns whose values are in other files
    than before.
    """

    kind: ChangeKind
    before: int | None
    after: int | None
    rows_before: int
    rows_after: int
    deleted_before: int = 0
    deleted_after: int = 0
    files_added: tuple[str, ...] = ()
    files_removed: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the change as one line."""
        if self.kind == ADDED:
            return f"+ fragment {self.after}: {_rows_of(self.rows_after)}"
        if self.kind == REMOVED:
            return f"- fragment {self.before}: {_rows_of(self.rows_before)}"
        name = f"{self.before}" if self.before == self.after else f"{self.before} -> {self.after}"
        parts = [f"{self.deleted_before:,} -> {self.deleted_after:,} deleted rows"] * (
            self.deleted_before != self.deleted_after
        )
        parts += [f"new files for {', '.join(self.columns)}"] * bool(self.columns)
        if not parts:
            parts = ["files of dropped columns left out" if self.files_removed else "other deleted rows"]
        return f"~ fragment {name}: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class FragmentPair:
    """A fragment in both versions."""

    before: Fragment
    after: Fragment

    @property
    def same_deletions(self) -> bool:
        """Whether both have the same deletion vector, judged by the name of its file."""
        return same_deletion_vector(self.before.deletion, self.after.deletion)

    def rewritten(self, matched: Mapping[int, int]) -> set[int]:
        """Return the fields of both versions whose values are in another file or column, by their older ids."""
        old, new = _columns_of_fields(self.before), _columns_of_fields(self.after)
        return {old_id for old_id, new_id in matched.items() if old.get(old_id) != new.get(new_id)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentMatch:
    """The matched fragments of two versions; `same` are fragments that both manifests store in the same bytes."""

    removed: tuple[Fragment, ...]
    added: tuple[Fragment, ...]
    pairs: tuple[FragmentPair, ...]
    same: Fragments

    def opened(self) -> "FragmentMatch":
        """Return the match with fragments of equal bytes as pairs too.

        It is needed where a field changed its id: equal bytes then do not mean equal columns.
        """
        pairs = tuple(FragmentPair(fragment, fragment) for fragment in self.same)
        return replace(self, pairs=(*pairs, *self.pairs), same=Fragments())


def match_fragments(before: Manifest, after: Manifest) -> FragmentMatch:
    """Match the fragments of two versions by their data files."""
    olds, news = before.fragments, after.fragments
    # Fragments are compared as they are stored: most of a million fragments need not be decoded.
    same = set(olds.items).intersection(news.items)
    old_fragments = [olds[place] for place, item in enumerate(olds.items) if item not in same]
    new_fragments = [news[place] for place, item in enumerate(news.items) if item not in same]
    # One common file is enough: an added or rewritten column leaves the other files in place.
    by_file = {file.path: fragment for fragment in old_fragments for file in fragment.files}
    pairs: list[FragmentPair] = []
    added: list[Fragment] = []
    matched: set[int] = set()
    for fragment in new_fragments:
        counterpart = next((by_file[file.path] for file in fragment.files if file.path in by_file), None)
        # A fragment is matched once. The same file in two fragments is damage, and then the second one counts as new.
        if counterpart is None or counterpart.id in matched or not _as_many_rows(counterpart, fragment):
            added.append(fragment)
            continue
        matched.add(counterpart.id)
        pairs.append(FragmentPair(counterpart, fragment))
    return FragmentMatch(
        pairs=tuple(pairs),
        removed=tuple(fragment for fragment in old_fragments if fragment.id not in matched),
        added=tuple(added),
        same=Fragments([item for item in news.items if item in same], news.decoder),
    )


def _as_many_rows(before: Fragment, after: Fragment) -> bool:
    # Very old programs did not record the number of rows.
    return before.physical_rows == after.physical_rows or 0 in (before.physical_rows, after.physical_rows)


def proven_fields(match: FragmentMatch, field_ids: Collection[int]) -> dict[int, int]:
    """Return the matches of fields that data files prove: the id in the newer version by the id in the older version.

    Args:
        match: The matched fragments.
        field_ids: The older ids to match; once all are matched, no further fragment is read.
    """
    matches: dict[int, int] = {}
    matched: set[int] = set()
    missing = set(field_ids)
    for before, after in _matched_pairs(match):
        # Every pair of fragments matches a field to the same field, so further pairs add nothing.
        if not missing:
            break
        new = {place: number for number, place in _columns_of_fields(after).items()}
        for number, place in _columns_of_fields(before).items():
            # A field has one counterpart; damaged files could name two.
            if number in missing and place in new and new[place] not in matched:
                matches[number] = new[place]
                matched.add(new[place])
                missing.discard(number)
    return matches


def _matched_pairs(match: FragmentMatch) -> Iterator[tuple[Fragment, Fragment]]:
    yield from ((fragment, fragment) for fragment in match.same[:_SAMPLED_FRAGMENTS])
    yield from ((pair.before, pair.after) for pair in match.pairs)


def fragment_changes(match: FragmentMatch, after: Fields, matched: Mapping[int, int]) -> tuple[FragmentChange, ...]:
    """Describe every fragment that changed; a fragment that only has another id did not change."""
    origins = {new: old for old, new in matched.items()}
    changes = [_alone(fragment, REMOVED) for fragment in match.removed]
    for pair in match.pairs:
        old, new = {file.path for file in pair.before.files}, {file.path for file in pair.after.files}
        changed = {matched[number] for number in pair.rewritten(matched)}
        there = _columns_of_fields(pair.after)
        changed |= {number for number in after.by_id if number not in origins and number in there}
        # Only the id or the order of files differs: no row and no value does.
        if pair.same_deletions and old == new and not changed:
            continue
        changes.append(
            FragmentChange(
                kind=CHANGED,
                before=pair.before.id,
                after=pair.after.id,
                rows_before=_rows(pair.before),
                rows_after=_rows(pair.after),
                deleted_before=_deleted(pair.before),
                deleted_after=_deleted(pair.after),
                files_added=tuple(sorted(new - old)),
                files_removed=tuple(sorted(old - new)),
                columns=_columns(changed, after),
            )
        )
    return (*changes, *(_alone(fragment, ADDED) for fragment in match.added))


def _alone(fragment: Fragment, kind: ChangeKind) -> FragmentChange:
    is_removed = kind == REMOVED
    rows, deleted = _rows(fragment), _deleted(fragment)
    names = tuple(sorted(fragment.file_names))
    return FragmentChange(
        kind=kind,
        before=fragment.id if is_removed else None,
        after=None if is_removed else fragment.id,
        rows_before=rows if is_removed else 0,
        rows_after=0 if is_removed else rows,
        deleted_before=deleted if is_removed else 0,
        deleted_after=0 if is_removed else deleted,
        files_added=() if is_removed else names,
        files_removed=names if is_removed else (),
    )


def _rows_of(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def _rows(fragment: Fragment) -> int:
    return fragment.rows if fragment.has_row_count else 0


def _deleted(fragment: Fragment) -> int:
    return fragment.deletion.deleted_rows if fragment.deletion else 0


def _columns(changed: Iterable[int], fields: Fields) -> tuple[str, ...]:
    column_ids = {fields.column(fields.by_id[number]).id for number in changed}
    return tuple(field.name for field in fields.below(None) if field.id in column_ids)


def _columns_of_fields(fragment: Fragment) -> dict[int, tuple[str, int]]:
    """Return the file and the column that hold the values of each field."""
    columns_by_field: dict[int, tuple[str, int]] = {}
    for file in fragment.files:
        # Files of the first format do not list columns: the id of a field is its column.
        columns = file.column_indices or file.fields
        for number, column in zip(file.fields, columns, strict=True):
            # A struct has no column in newer files; the manifest then has a negative number.
            if number != TOMBSTONE_FIELD and column >= 0:
                columns_by_field[number] = file.path, column
    return columns_by_field


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of two manifests: the changes, and how fields, fragments and columns correspond.

    `matched` is the newer id of each field by its older id. The values of the columns in `not_compared` cannot be
    compared.
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
        """Return columns by their newer names; a column that only the older version has keeps its name.

        Raises:
            InvalidInputError: Neither version has one of the columns.
        """
        # Newer names come first: a name that both versions use for different columns means the column of the newer
        # version.
        names = {field.name: field.name for field in self.after.below(None)}
        for field in self.before.below(None):
            became = self.matched.get(field.id)
            # An old name stays usable, unless another column has it by now.
            names.setdefault(field.name, field.name if became is None else self.after.by_id[became].name)
        requested = dict.fromkeys(columns)
        missing = next((name for name in requested if name not in names), None)
        if missing is not None:
            raise InvalidInputError(f"no column {missing!r}; there are {', '.join(names)}")
        return tuple(dict.fromkeys(names[name] for name in requested))


def compare(
    before: Manifest, after: Manifest, shared: Manifest | None, ids_restarted: Callable[[], bool] = bool
) -> Comparison:
    """Compare two versions.

    Args:
        before: The older version.
        after: The newer version.
        shared: The last common version. Field ids that it had handed out mean the same in both. None when it was
            cleaned up.
        ids_restarted: Tells whether these ids may mean other fields, since an overwrite or a restore came after the
            last common version. Called only where nothing but its id says that a field was renamed.
    """
    olds, news = Fields.of(before.fields), Fields.of(after.fields)
    match = match_fragments(before, after)
    # Equal schemas, by far the most frequent case: every field is itself, and no fragment has to prove it.
    if _outline(olds) == _outline(news):
        matched = {number: number for number in olds.by_id}
    else:
        proven = proven_fields(match, olds.by_id)
        matched = match_fields(olds, news, proven, 0)
        by_ids = matched if shared is None else match_fields(olds, news, proven, _next_field_id(shared))
        if by_ids != matched and not ids_restarted():
            matched = by_ids
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
