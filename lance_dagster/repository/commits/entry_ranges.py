"""The entries of a commit in ranges, which commits share.

A commit names a version of every table. In a repository of many tables, most commits change a few of them. So the
entries of a commit are split into ranges, each range is stored under the digest of its content, and the commit names
the ranges. A commit that changes one table stores one range of about a hundred entries, and shares all others with the
commit before it. A commit of few tables keeps its entries inside of its own object, and needs no further request.

The entries are sorted by their keys. Whether a key begins a range depends on the key alone, so

- equal entries have equal ranges, whatever the commits before them were: a digest still identifies a state
- a change of a value changes one range; a key that is added or removed changes one range or two

Where two commits name the same range, none of its entries differ, and the range need not be read to compare them.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

FEWEST = 100
"""A commit with fewer entries has them inside of its own object."""
RANGE_FORMAT = 2
_AVERAGE = 64
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class EntryRange:
    """A range as a commit names it: its first key, how many entries it has, and the digest of its content."""

    first: str
    count: int
    digest: str


@dataclass(frozen=True, slots=True)
class EntryKind(Generic[V]):
    """How entries of a kind are stored: `encode` returns JSON, and `parse` reads it and refuses malformed entries."""

    encode: Callable[[Mapping[str, V]], Mapping[str, object]]
    parse: Callable[[Mapping[str, Any]], Mapping[str, V]]


class RangeReader(Protocol):
    """Reads ranges by their digests."""

    def read_ranges(self, digests: Sequence[str], kind: EntryKind[V]) -> Sequence[Mapping[str, V]]:
        """Return the entries of each range, in the order of the digests.

        Raises:
            NotFoundError: A range was collected.
        """
        ...


class RangedEntries(Mapping[str, V]):
    """Entries in ranges; a range is read when one of its entries is asked for."""

    __slots__ = ("_firsts", "_held", "_kind", "_reader", "ranges")

    def __init__(
        self,
        ranges: Sequence[EntryRange],
        kind: EntryKind[V],
        reader: RangeReader | None,
        held: Mapping[str, Mapping[str, V]],
    ) -> None:
        """Take the ranges, and those of them that are in memory, by digest; the reader reads all others."""
        self.ranges = tuple(ranges)
        self._kind = kind
        self._reader = reader
        self._held = held
        self._firsts = [entry_range.first for entry_range in self.ranges]

    @classmethod
    def of(cls, entries: Mapping[str, V], kind: EntryKind[V]) -> "RangedEntries[V]":
        """Split entries into ranges."""
        return _of_parts(_split(entries), kind, None, {})

    def __getitem__(self, key: str) -> V:
        """Return the entry of a key; this reads one range."""
        place = bisect_right(self._firsts, key) - 1
        if place < 0:
            raise KeyError(key)
        return self._read([self.ranges[place]])[0][key]

    def __iter__(self) -> Iterator[str]:
        """Yield the keys, sorted."""
        return iter(self._all())

    def __len__(self) -> int:
        """Return how many entries there are; nothing is read."""
        return sum(entry_range.count for entry_range in self.ranges)

    def __eq__(self, other: object) -> bool:
        """Return whether all entries are equal; no range is read to compare it with another range."""
        if isinstance(other, RangedEntries):
            return self.ranges == other.ranges
        return isinstance(other, Mapping) and len(self) == len(other) and self._all() == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return how many entries and ranges there are; nothing is read."""
        return f"RangedEntries({len(self)} in {len(self.ranges)} ranges)"

    def items(self) -> ItemsView[str, V]:
        """Return all entries with their keys."""
        return self._all().items()

    def values(self) -> ValuesView[V]:
        """Return all entries."""
        return self._all().values()

    @property
    def digests(self) -> frozenset[str]:
        """The digests of the ranges."""
        return frozenset(entry_range.digest for entry_range in self.ranges)

    def content(self, digest: str) -> bytes:
        """Return the content of a range."""
        (entry_range,) = (entry_range for entry_range in self.ranges if entry_range.digest == digest)
        return range_content(self._read([entry_range])[0], self._kind)

    def without(self, digests: Collection[str]) -> dict[str, V]:
        """Return the entries of all ranges but some, which are not read."""
        return self._merged([entry_range for entry_range in self.ranges if entry_range.digest not in digests])

    def changed(self, changes: Mapping[str, V | None]) -> "RangedEntries[V]":
        """Return the entries after changes; only ranges with a changed key are read. None removes an entry."""
        changes_by_range: dict[int, dict[str, V | None]] = {}
        for key, value in changes.items():
            place = max(0, bisect_right(self._firsts, key) - 1)
            changes_by_range.setdefault(place, {})[key] = value
            # Where the first key of a range is removed, the other entries belong to the range before it.
            while place and changes.get(self._firsts[place], value) is None and self._firsts[place] in changes:
                place -= 1
                changes_by_range.setdefault(place, {})
        parts: list[EntryRange | Mapping[str, V]] = []
        for is_changed, places in groupby(range(len(self.ranges)), key=changes_by_range.__contains__):
            if not is_changed:
                parts += [self.ranges[place] for place in places]
                continue
            entries: dict[str, V | None] = {}
            for place in places:
                entries |= {**self._read([self.ranges[place]])[0], **changes_by_range[place]}
            parts += _split({key: value for key, value in entries.items() if value is not None})
        return _of_parts(parts, self._kind, self._reader, self._held)

    def _all(self) -> dict[str, V]:
        return self._merged(self.ranges)

    def _merged(self, ranges: Sequence[EntryRange]) -> dict[str, V]:
        merged: dict[str, V] = {}
        for entries in self._read(ranges):
            merged.update(entries)
        return merged

    def _read(self, ranges: Sequence[EntryRange]) -> Sequence[Mapping[str, V]]:
        stored = [entry_range.digest for entry_range in ranges if entry_range.digest not in self._held]
        if not stored or self._reader is None:
            return [self._held[entry_range.digest] for entry_range in ranges]
        entries = dict(zip(stored, self._reader.read_ranges(stored, self._kind), strict=True))
        return [
            entries[digest] if digest in entries else self._held[digest]
            for digest in (entry_range.digest for entry_range in ranges)
        ]


def stored_form(entries: Mapping[str, V], kind: EntryKind[V]) -> Mapping[str, V]:
    """Return entries as a commit has them: in ranges, or as a dictionary where they are few."""
    if len(entries) < FEWEST:
        return dict(entries)
    return entries if isinstance(entries, RangedEntries) else RangedEntries.of(entries, kind)


def changed_entries(entries: Mapping[str, V], changes: Mapping[str, V | None]) -> Mapping[str, V]:
    """Return entries after changes, of which None removes an entry; only ranges with a changed key are read."""
    if isinstance(entries, RangedEntries):
        return entries.changed(changes)
    after = {**entries, **changes}
    return {key: value for key, value in after.items() if value is not None}


def different_entries(before: Mapping[str, V], after: Mapping[str, V]) -> tuple[dict[str, V], dict[str, V]]:
    """Return the entries that differ, as they were and as they are; a range that both have is not read."""
    older, newer = before, after
    if isinstance(before, RangedEntries) and isinstance(after, RangedEntries):
        shared = before.digests & after.digests
        older, newer = before.without(shared), after.without(shared)
    keys = [key for key in sorted(older.keys() | newer.keys()) if older.get(key) != newer.get(key)]
    return {key: older[key] for key in keys if key in older}, {key: newer[key] for key in keys if key in newer}


def range_content(entries: Mapping[str, V], kind: EntryKind[V]) -> bytes:
    """Return the content of a range, of which its digest is made."""
    content = {"format": RANGE_FORMAT, "entries": kind.encode(entries)}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def range_digest(content: bytes) -> str:
    """Return the digest under which a range is stored."""
    return hashlib.sha256(content).hexdigest()


def _split(entries: Mapping[str, V]) -> list[dict[str, V]]:
    """Split entries into ranges; a key begins a range by its own digest."""
    parts: list[dict[str, V]] = []
    for key in sorted(entries):
        if not parts or _begins_range(key):
            parts.append({})
        parts[-1][key] = entries[key]
    return parts


def _begins_range(key: str) -> bool:
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") % _AVERAGE == 0


def _of_parts(
    parts: Sequence[EntryRange | Mapping[str, V]],
    kind: EntryKind[V],
    reader: RangeReader | None,
    held: Mapping[str, Mapping[str, V]],
) -> RangedEntries[V]:
    """Return entries in ranges, of which some are new and given by their entries."""
    ranges, in_memory = [], {}
    for part in parts:
        if isinstance(part, EntryRange):
            entry_range, entries = part, held.get(part.digest)
        else:
            entries = part
            entry_range = EntryRange(next(iter(part)), len(part), range_digest(range_content(part, kind)))
        if entries is not None:
            in_memory[entry_range.digest] = entries
        ranges.append(entry_range)
    return RangedEntries(ranges, kind, reader, in_memory)
