"""Which fragments of one version are which of another, and what differs between them.

A data file is written once, under a name nobody else uses. So fragments that have a data file in common hold the same
rows at the same offsets, on whatever branches they are and whatever their ids. An id tells nothing: each branch gives
its own, and older programs gave them again after an overwrite. A fragment that got all its files anew is another one.

Fragments that both versions write down in the same bytes are told apart without reading them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lance_dagster.changes.diff_schema import Fields
from lance_dagster.format.deletions import same_vector
from lance_dagster.format.model import TOMBSTONE_FIELD, Fragment, Fragments, Manifest

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_WITNESSES = 100
"""So many fragments that did not change are asked which field is which; they all say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentChange:
    """What became of one fragment.

    `kind` is "added", "removed" or "changed". `before` and `after` are its ids, `rows_*` its live rows and
    `deleted_*` its deleted ones; `columns` are those whose values lie in other files than before, or are new.
    """

    kind: str
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
        """Say it in a line."""
        if self.kind == ADDED:
            return f"+ fragment {self.after}: {_rows_of(self.rows_after)}"
        if self.kind == REMOVED:
            return f"- fragment {self.before}: {_rows_of(self.rows_before)}"
        name = f"{self.before}" if self.before == self.after else f"{self.before} -> {self.after}"
        said = [f"{self.deleted_before:,} -> {self.deleted_after:,} deleted rows"] * (
            self.deleted_before != self.deleted_after
        )
        said += [f"new files for {', '.join(self.columns)}"] * bool(self.columns)
        if not said:
            said = ["files of dropped columns left out" if self.files_removed else "other deleted rows"]
        return f"~ fragment {name}: {'; '.join(said)}"


@dataclass(frozen=True, slots=True)
class FragmentPair:
    """A fragment in both versions."""

    before: Fragment
    after: Fragment

    @property
    def same_deletions(self) -> bool:
        """Whether both have the same deletion vector, as far as its name tells."""
        return same_vector(self.before.deletion, self.after.deletion)

    def rewritten(self, matched: Mapping[int, int]) -> set[int]:
        """Return the fields, by id before, whose values lie in another place, of those that both versions have."""
        old, new = _places(self.before), _places(self.after)
        return {one for one, other in matched.items() if old.get(one) != new.get(other)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentMatch:
    """The fragments of two versions: those of one alone, those in both, and those in both in the same bytes."""

    removed: tuple[Fragment, ...]
    added: tuple[Fragment, ...]
    pairs: tuple[FragmentPair, ...]
    same: Fragments

    def opened(self) -> "FragmentMatch":
        """Return the same, with a pair for those that are in both in the same bytes too.

        Where a field has another id, the same bytes do not mean the same values.
        """
        pairs = tuple(FragmentPair(fragment, fragment) for fragment in self.same)
        return replace(self, pairs=(*pairs, *self.pairs), same=Fragments())


def match_fragments(before: Manifest, after: Manifest) -> FragmentMatch:
    """Find out which fragment is which."""
    olds, news = before.fragments, after.fragments
    same = set(olds.items).intersection(news.items)
    left = [olds[place] for place, item in enumerate(olds.items) if item not in same]
    right = [news[place] for place, item in enumerate(news.items) if item not in same]
    by_file = {file.path: fragment for fragment in left for file in fragment.files}
    pairs: list[FragmentPair] = []
    added: list[Fragment] = []
    taken: set[int] = set()
    for fragment in right:
        found = next((by_file[file.path] for file in fragment.files if file.path in by_file), None)
        if found is None or found.id in taken or not _as_many_rows(found, fragment):
            added.append(fragment)
            continue
        taken.add(found.id)
        pairs.append(FragmentPair(found, fragment))
    return FragmentMatch(
        pairs=tuple(pairs),
        removed=tuple(fragment for fragment in left if fragment.id not in taken),
        added=tuple(added),
        same=Fragments([item for item in news.items if item in same], news.coding),
    )


def _as_many_rows(one: Fragment, other: Fragment) -> bool:
    # Very old programs did not write down how many there are.
    return one.physical_rows == other.physical_rows or 0 in (one.physical_rows, other.physical_rows)


def proven_fields(match: FragmentMatch, wanted: Collection[int]) -> dict[int, int]:
    """Return what data files tell about which field is which: ids before, and ids after.

    Args:
        match: The fragments.
        wanted: The ids before that shall be found; when all are, the rest is not looked at.
    """
    found: dict[int, int] = {}
    taken: set[int] = set()
    missing = set(wanted)
    for one, other in _both(match):
        if not missing:
            break
        new = {place: number for number, place in _places(other).items()}
        for number, place in _places(one).items():
            if number in missing and place in new and new[place] not in taken:
                found[number] = new[place]
                taken.add(new[place])
                missing.discard(number)
    return found


def _both(match: FragmentMatch) -> Iterator[tuple[Fragment, Fragment]]:
    yield from ((fragment, fragment) for fragment in match.same[:_WITNESSES])
    yield from ((pair.before, pair.after) for pair in match.pairs)


def fragment_changes(match: FragmentMatch, after: Fields, matched: Mapping[int, int]) -> tuple[FragmentChange, ...]:
    """Say what became of every fragment that is not as it was. One that only has another id is."""
    origins = {new: old for old, new in matched.items()}
    found = [_alone(fragment, REMOVED) for fragment in match.removed]
    for pair in match.pairs:
        old, new = {file.path for file in pair.before.files}, {file.path for file in pair.after.files}
        changed = {matched[number] for number in pair.rewritten(matched)}
        there = _places(pair.after)
        changed |= {number for number in after.by_id if number not in origins and number in there}
        if pair.same_deletions and old == new and not changed:
            continue
        found.append(
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
    return (*found, *(_alone(fragment, ADDED) for fragment in match.added))


def _alone(fragment: Fragment, kind: str) -> FragmentChange:
    gone = kind == REMOVED
    rows, deleted = _rows(fragment), _deleted(fragment)
    names = tuple(sorted(fragment.file_names))
    return FragmentChange(
        kind=kind,
        before=fragment.id if gone else None,
        after=None if gone else fragment.id,
        rows_before=rows if gone else 0,
        rows_after=0 if gone else rows,
        deleted_before=deleted if gone else 0,
        deleted_after=0 if gone else deleted,
        files_added=() if gone else names,
        files_removed=names if gone else (),
    )


def _rows_of(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def _rows(fragment: Fragment) -> int:
    return fragment.rows if fragment.counted else 0


def _deleted(fragment: Fragment) -> int:
    return fragment.deletion.deleted_rows if fragment.deletion else 0


def _columns(changed: Iterable[int], fields: Fields) -> tuple[str, ...]:
    wanted = {fields.column(fields.by_id[number]).id for number in changed}
    return tuple(field.name for field in fields.below(None) if field.id in wanted)


def _places(fragment: Fragment) -> dict[int, tuple[str, int]]:
    """Return in which column of which file the values of each field lie."""
    found: dict[int, tuple[str, int]] = {}
    for file in fragment.files:
        # The first generation of files has no columns of its own: a field's id is its place there.
        columns = file.column_indices or file.fields
        for number, column in zip(file.fields, columns, strict=True):
            # A struct has no column in newer files, which is written as a negative one.
            if number != TOMBSTONE_FIELD and column >= 0:
                found[number] = file.path, column
    return found
