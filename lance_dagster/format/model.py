"""The values a manifest is made of, as frozen dataclasses.

Every field of the format that this package reads is here, under the format's own name where that name is clear, and
survives a read-change-write. What is not here is refused when it is looked at (see `codec`), so nothing is lost
silently.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol, overload

from lance_dagster.errors import InvalidInputError, UnsupportedFeatureError

TOMBSTONE_FIELD = -2
"""Stands in `DataFile.fields` for a column that no longer exists."""
_UNCOUNTED = "fragments without a number of rows, as pylance before 0.8 wrote them (one commit by pylance counts them)"


class Flag(IntFlag):
    """The feature bits of a manifest that this package knows (table format specification, "Feature Flags")."""

    DELETION_FILES = 1
    STABLE_ROW_IDS = 2
    V2_FORMAT = 4
    TABLE_CONFIG = 8
    BASE_PATHS = 16
    NO_TRANSACTION_FILE = 32
    COVERED_INDEX = 128
    MIXED_FILE_VERSIONS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column, or one node inside a nested column. Fields of a schema stand in depth-first order."""

    id: int
    name: str
    logical_type: str
    parent_id: int = -1
    nullable: bool = True
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    extension_name: str = ""
    encoding: int = 0
    kind: int = 0
    dictionary: tuple[int, int] | None = None
    primary_key: bool = False
    primary_key_position: int = 0
    clustering_key: bool = False
    clustering_key_position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePath:
    """Another root under which files of this table may be found."""

    id: int
    path: str
    name: str | None = None
    is_dataset_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One `.lance` file of a fragment: the fields it holds, and in which of its columns; `size` in bytes, 0 if unknown.

    `base_id` names the `BasePath` the file lies under; None is the table itself.
    """

    path: str
    fields: tuple[int, ...]
    column_indices: tuple[int, ...]
    major: int
    minor: int
    size: int = 0
    base_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFile:
    """Where the deletion vector of a fragment is stored. `kind` is 0 for an Arrow file, 1 for a Roaring bitmap."""

    kind: int
    read_version: int
    id: int
    deleted_rows: int
    base_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A horizontal slice of rows: data files and at most one deletion file.

    The three sequences are kept as the bytes the format stores; `codec.rows` reads and writes them.
    """

    id: int
    files: tuple[DataFile, ...]
    physical_rows: int
    deletion: DeletionFile | None = None
    row_ids: bytes | None = None
    created_at: bytes | None = None
    updated_at: bytes | None = None

    @property
    def rows(self) -> int:
        """Rows that are not deleted.

        Raises:
            UnsupportedFeatureError: It does not say how many there are.
        """
        if not self.has_row_count:
            raise UnsupportedFeatureError(f"fragment {self.id}", [_UNCOUNTED])
        return self.physical_rows - (self.deletion.deleted_rows if self.deletion else 0)

    @property
    def has_row_count(self) -> bool:
        """Whether it says how many rows it has, and how many are deleted; old programs left both out."""
        return bool(self.physical_rows or not self.files) and (self.deletion is None or self.deletion.deleted_rows > 0)

    @property
    def file_names(self) -> frozenset[str]:
        """Names of the data files: what identifies a fragment across branches, where ids do not."""
        return frozenset(file.path for file in self.files)


@dataclass(frozen=True, slots=True)
class FragmentsSummary:
    """What is known of many fragments without reading each: ids in order, live rows, whether any has deletions.

    Without `has_row_counts`, one of them does not say how many rows it has, and `rows` means nothing.
    """

    ids: Sequence[int]
    rows: int
    deletions: bool
    has_row_counts: bool = True


class FragmentDecoder(Protocol):
    """Reads encoded fragments. Its errors name the file the bytes came from, which is `path`."""

    path: str

    def decode(self, data: bytes) -> Fragment:
        """Read one fragment."""

    def outline(self, items: Sequence[bytes]) -> FragmentsSummary:
        """Read of each fragment what an `FragmentsSummary` says."""


class Fragments(Sequence[Fragment]):
    """The fragments of a version or an operation, in their order. Never changes; equal to any sequence of the same.

    A version may have tens of thousands of fragments, and most of what is done with it (counting rows, adding some,
    taking one out) has to know little about most of them. So an item may stay encoded: a commit writes the bytes it
    read, whatever they hold, and only a fragment that is looked at becomes a `Fragment`, or is refused for what is
    unknown in it.
    """

    __slots__ = ("_checked", "_decoder", "_found", "_items", "_outline", "_positions")

    def __init__(self, items: Iterable[Fragment | bytes] = (), decoder: FragmentDecoder | None = None) -> None:
        """Hold fragments; those given as bytes are read by `decoder`."""
        self._items = list(items)
        self._decoder = decoder
        self._outline: FragmentsSummary | None = None
        self._positions: dict[int, int] | None = None
        self._found: dict[int, Fragment] = {}
        self._checked = False

    @property
    def items(self) -> Sequence[Fragment | bytes]:
        """The fragments as they are held, for whoever writes them."""
        return self._items

    @property
    def decoder(self) -> FragmentDecoder | None:
        """What reads the items that are encoded."""
        return self._decoder

    @property
    def ids(self) -> Sequence[int]:
        """The id of each fragment, in order."""
        return self._outlined().ids

    @property
    def rows(self) -> int:
        """Rows that are not deleted.

        Raises:
            UnsupportedFeatureError: A fragment does not say how many there are.
        """
        outline = self._outlined()
        if not outline.has_row_counts:
            # Counted as none, rows would be lost without a word.
            raise UnsupportedFeatureError(self._decoder.path if self._decoder else "a change", [_UNCOUNTED])
        return outline.rows

    @property
    def deletions(self) -> bool:
        """Whether any fragment has a deletion file."""
        return self._outlined().deletions

    def __len__(self) -> int:
        """Return the number of fragments."""
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> "Fragments": ...
    def __getitem__(self, index: int | slice) -> "Fragment | Fragments":
        """Return one fragment, or some, those still encoded."""
        if isinstance(index, slice):
            return Fragments(self._items[index], self._decoder)
        return self._read(self._items[index])

    def __iter__(self) -> Iterator[Fragment]:
        """Read one fragment after the other."""
        return map(self._read, self._items)

    def __eq__(self, other: object) -> bool:
        """Compare with another sequence of fragments."""
        if isinstance(other, Fragments) and self._items == other._items:
            return True
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as any sequence that may be long

    def __repr__(self) -> str:
        """Show the fragments."""
        return f"Fragments({list(self)!r})"

    def find(self, number: int) -> Fragment | None:
        """Return the fragment of an id, or None."""
        if number not in self._found and number in self._by_id():
            self._found[number] = self[self._by_id()[number]]
        return self._found.get(number)

    def added(self, more: Iterable[Fragment]) -> "Fragments":
        """Return these fragments and more behind them."""
        new = list(more)
        result = Fragments([*self._items, *new], self._decoder)
        known = self._outline
        if known is not None:
            extra = _outline_of(new)
            ids = [*known.ids, *extra.ids]
            result._outline = FragmentsSummary(
                ids,
                known.rows + extra.rows,
                known.deletions or extra.deletions,
                known.has_row_counts and extra.has_row_counts,
            )
        return result

    def changed(self, removed: Collection[int], updated: Mapping[int, Fragment]) -> "Fragments":
        """Return these fragments without some, and others in their new form, in the same places.

        Raises:
            InvalidInputError: One of the ids is not here.
        """
        positions = self._by_id()
        missing = sorted(number for number in {*removed, *updated} if number not in positions)
        if missing:
            raise InvalidInputError(f"there is no fragment {missing[0]}")
        items = list(self._items)
        for number, fragment in updated.items():
            items[positions[number]] = fragment
        gone = {positions[number] for number in removed}
        kept = [item for position, item in enumerate(items) if position not in gone] if gone else items
        return Fragments(kept, self._decoder)

    def check_once(self, check: Callable[["Fragments"], None]) -> None:
        """Call a function that raises when something is wrong, unless it returned before."""
        if not self._checked:
            check(self)
            self._checked = True

    def _read(self, item: Fragment | bytes) -> Fragment:
        if isinstance(item, Fragment):
            return item
        if self._decoder is None:
            raise InvalidInputError("encoded fragments need a decoder")
        return self._decoder.decode(item)

    def _by_id(self) -> dict[int, int]:
        if self._positions is None:
            self._positions = {number: position for position, number in enumerate(self.ids)}
        return self._positions

    def _outlined(self) -> FragmentsSummary:
        if self._outline is None:
            encoded = [item for item in self._items if isinstance(item, bytes)]
            if encoded and self._decoder is not None and len(encoded) == len(self._items):
                self._outline = self._decoder.outline(encoded)
            else:
                self._outline = self._mixed_outline(encoded)
        return self._outline

    def _mixed_outline(self, encoded: Sequence[bytes]) -> FragmentsSummary:
        read = _outline_of([item for item in self._items if isinstance(item, Fragment)])
        if not encoded or self._decoder is None:
            return read
        rest = self._decoder.outline(encoded)
        ids_read, ids_rest = iter(read.ids), iter(rest.ids)
        ids = [next(ids_rest) if isinstance(item, bytes) else next(ids_read) for item in self._items]
        return FragmentsSummary(
            ids, read.rows + rest.rows, read.deletions or rest.deletions, read.has_row_counts and rest.has_row_counts
        )


def _outline_of(fragments: Sequence[Fragment]) -> FragmentsSummary:
    return FragmentsSummary(
        [fragment.id for fragment in fragments],
        sum(fragment.rows for fragment in fragments if fragment.has_row_count),
        any(fragment.deletion is not None for fragment in fragments),
        all(fragment.has_row_count for fragment in fragments),
    )


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of an index. `path` is relative to the index's folder, `size` in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMetadata:
    """One index, or one segment of it, and which fragments it covers.

    `uuid` names its folder under `_indices/`, `bitmap` is a Roaring bitmap of fragment ids (None when it is not
    recorded), `details` a message of the kind of index as type and bytes, `created_at` in milliseconds since 1970 UTC.
    """

    uuid: str
    name: str
    fields: tuple[int, ...]
    dataset_version: int = 0
    bitmap: bytes | None = None
    details: tuple[str, bytes] | None = None
    index_version: int | None = None
    created_at: int | None = None
    base_id: int | None = None
    files: tuple[IndexFile, ...] = ()
    covering_fields: tuple[int, ...] = ()
    clustering_id: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterVersion:
    """Who wrote a manifest. Older readers need `version` to be plain `major.minor.patch`."""

    library: str
    version: str
    prerelease: str | None = None
    build_metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a table, whole. `timestamp` is in nanoseconds since 1970 UTC.

    `index_section` holds the bytes of the index section as they were read; `codec.decode_indices` looks inside.
    """

    version: int
    fields: tuple[Field, ...]
    fragments: Fragments = field(default_factory=Fragments)
    timestamp: int = 0
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    reader_flags: int = 0
    writer_flags: int = 0
    max_fragment_id: int | None = None
    transaction_file: str = ""
    writer: WriterVersion | None = None
    next_row_id: int = 0
    file_format: str = "lance"
    file_version: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    table_metadata: Mapping[str, str] = field(default_factory=dict)
    base_paths: tuple[BasePath, ...] = ()
    branch: str | None = None
    index_section: bytes | None = None
    max_allocated_field_id: int | None = None
    version_aux_data: int = 0
    tag: str = ""

    @property
    def rows(self) -> int:
        """Rows that are not deleted."""
        return self.fragments.rows

    @property
    def stable_row_ids(self) -> bool:
        """Whether rows keep their id when they move to another fragment."""
        return bool(self.writer_flags & Flag.STABLE_ROW_IDS)

    @property
    def timestamp_seconds(self) -> float:
        """When the version was made, in seconds since 1970 UTC."""
        return self.timestamp / 1e9
