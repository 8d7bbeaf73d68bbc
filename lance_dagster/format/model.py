"""The values a manifest consists of, as frozen dataclasses.

Every field of the format that this package reads is here, under the format's own name where that name is clear, and
survives a read-modify-write cycle. What has no place here is refused when it is decoded (see `codec`), so that nothing
is dropped silently.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from functools import cached_property
from typing import Protocol, overload

from lance_dagster.errors import InvalidInputError, UnsupportedFeatureError
from lance_dagster.format.value_ranges import KnownRanges

TOMBSTONE_FIELD = -2
"""The field id in `DataFile.fields` that marks a column which was removed from the file."""
LEGACY_FILE_VERSION = "0.1"
"""The file version of the legacy format. Only pylance reads and writes such files, and only as parts of a table."""
_SECOND_FILE_VERSION = "2.0"
"""The file version of data files whose own version numbers say 0.3."""
_UNCOUNTED = "fragments without a number of rows, as pylance before 0.8 wrote them (one commit by pylance counts them)"


class Flag(IntFlag):
    """The feature flags of a manifest that this package supports (table format specification, "Feature Flags")."""

    DELETION_FILES = 1
    STABLE_ROW_IDS = 2
    V2_FORMAT = 4
    TABLE_CONFIG = 8
    BASE_PATHS = 16
    NO_TRANSACTION_FILE = 32
    COVERED_INDEX = 128
    MIXED_FILE_VERSIONS = 256


LEGACY_BLOB = "lance-encoding:blob"
"""The metadata key of columns in the legacy blob encoding, in a table and in an Arrow schema."""
BLOB_EXTENSIONS = "lance.blob"
"""The prefix of the extension names of the present blob encodings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column, or a node inside a nested column. The fields of a schema are listed in depth-first order."""

    id: int
    name: str
    logical_type: str
    parent_id: int = -1
    nullable: bool = True
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    extension_name: str = ""
    # Readers of data files of version 2.0 and newer ignore both; they are kept for a read-modify-write cycle.
    encoding: int = 0
    kind: int = 0
    dictionary: tuple[int, int] | None = None
    primary_key: bool = False
    primary_key_position: int = 0
    clustering_key: bool = False
    clustering_key_position: int = 0

    @property
    def holds_blobs(self) -> bool:
        """Whether the values are blobs, in the legacy encoding or with an extension name of their own."""
        return self.extension_name.startswith(BLOB_EXTENSIONS) or LEGACY_BLOB in self.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePath:
    """A root folder, besides the table's own, under which files of the table are stored."""

    id: int
    path: str
    name: str | None = None
    is_dataset_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A `.lance` file of a fragment: its field ids, the column index of each, and its size in bytes (0 if unknown).

    `base_id` is the id of the `BasePath` the file is stored under; None is the branch's own folder.
    """

    path: str
    # Fields and columns are paired by position. Ids of dropped columns stay, since their values stay in the file.
    fields: tuple[int, ...]
    column_indices: tuple[int, ...]
    major: int
    minor: int
    size: int = 0
    base_id: int | None = None

    @property
    def version(self) -> str:
        """The version of the file in the spelling of `Manifest.file_version`."""
        return file_version_name(self.major, self.minor)


def file_version_name(major: int, minor: int) -> str:
    """Return the version for the two numbers in a data file, in the spelling of `Manifest.file_version`.

    A data file of the legacy format says version 0.0, 0.1 or 0.2; early files of format 2.0 say 0.3.
    """
    # The two number schemes differ: manifests name the format of a file, files the revision of its layout.
    if major == 0:
        return LEGACY_FILE_VERSION if minor <= 2 else _SECOND_FILE_VERSION  # noqa: PLR2004 - 0.2 is the last of the first format
    return f"{major}.{minor}"


def parse_file_version(file_version: str) -> tuple[int, int]:
    """Return the major and minor number of a version of data files.

    Raises:
        InvalidInputError: The string is not a version.
    """
    major, dot, minor = file_version.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise InvalidInputError(f"{file_version!r} is not a version of data files such as '2.2'")
    return int(major), int(minor)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFile:
    """The file that stores the deletion vector of a fragment. `kind` is 0 for an Arrow file, 1 for a Roaring bitmap."""

    kind: int
    # The name of the file is made of the fragment's id, `read_version` and `id`, so a fragment with another id
    # needs a file of its own. `deleted_rows` is trusted: row counts are computed from it without reading the file.
    read_version: int
    id: int
    deleted_rows: int
    base_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A horizontal slice of rows: data files and at most one deletion file.

    The three sequences stay encoded as the format stores them; `codec.row_sequences` decodes and encodes them.
    """

    id: int
    files: tuple[DataFile, ...]
    physical_rows: int
    deletion: DeletionFile | None = None
    # None of `created_at` and `updated_at` means version 1 for every row.
    row_ids: bytes | None = None
    created_at: bytes | None = None
    updated_at: bytes | None = None
    # What the writer of a new fragment knows of its values (`value_ranges`). The commit stores it with the manifest and
    # not with the fragment, so that a fragment that was read has none.
    ranges: str = field(default="", compare=False)

    @property
    def rows(self) -> int:
        """The number of rows that are not deleted.

        Raises:
            UnsupportedFeatureError: The fragment does not record its number of rows.
        """
        if not self.has_row_count:
            raise UnsupportedFeatureError(f"fragment {self.id}", [_UNCOUNTED])
        return self.physical_rows - (self.deletion.deleted_rows if self.deletion else 0)

    @property
    def has_row_count(self) -> bool:
        """Whether the fragment records its rows and deleted rows; old writers left both out."""
        return bool(self.physical_rows or not self.files) and (self.deletion is None or self.deletion.deleted_rows > 0)

    @property
    def file_names(self) -> frozenset[str]:
        """The names of the data files, which identify a fragment across branches; each branch assigns its own ids."""
        return frozenset(file.path for file in self.files)


FileColumns = tuple[str, Mapping[int, int]]
"""A data file of a fragment: its name, and the column index of each field."""


@dataclass(frozen=True, slots=True)
class FragmentsSummary:
    """What is known of many fragments before they are decoded: ids in order, live rows, whether any has deletions.

    If `has_row_counts` is False, a fragment does not record its number of rows, and `rows` is meaningless.
    """

    ids: Sequence[int]
    rows: int
    deletions: bool
    has_row_counts: bool = True


class FragmentDecoder(Protocol):
    """Decodes fragments. Errors name `path`, the file the bytes were read from."""

    @property
    def path(self) -> str:
        """The file the bytes were read from."""

    def decode(self, data: bytes) -> Fragment:
        """Decode one fragment."""

    def same_files(self, first: bytes, second: bytes) -> bool:
        """Return whether two fragments name the same data files."""

    def paths(self, data: bytes) -> Sequence[str]:
        """Return the names of the data files of a fragment."""

    def files(self, items: Sequence[bytes]) -> Iterable[Sequence[FileColumns]]:
        """Return the data files of fragments, with their columns."""

    def outline(self, items: Sequence[bytes]) -> FragmentsSummary:
        """Summarize fragments without decoding each of them."""


class Fragments(Sequence[Fragment]):
    """The fragments of a version or an operation, in order: an immutable sequence, decoded lazily.

    A version may have tens of thousands of fragments, and most operations (counting rows, appending, removing one
    fragment) need few of them decoded. So an item stays encoded until it is accessed. A commit writes back the bytes
    it read, whatever they contain; a fragment with unknown content is refused only when it is accessed.
    """

    def __init__(self, items: Iterable[Fragment | bytes] = (), decoder: FragmentDecoder | None = None) -> None:
        """Hold fragments; items given as bytes are decoded by `decoder` on access.

        `items` are the fragments as they are held, encoded or decoded, for the encoder and for comparisons.
        """
        self.items: Sequence[Fragment | bytes] = list(items)
        self.decoder = decoder
        self._outline: FragmentsSummary | None = None
        self._positions: dict[int, int] | None = None
        # Fragments found by id are kept decoded: a merge or a diff asks for the same fragments repeatedly.
        self._found: dict[int, Fragment] = {}
        self._checked = False

    @cached_property
    def ids(self) -> Sequence[int]:
        """The id of each fragment, in order."""
        return self.summary.ids

    @property
    def rows(self) -> int:
        """The number of rows that are not deleted.

        Raises:
            UnsupportedFeatureError: A fragment does not record its number of rows.
        """
        outline = self.summary
        if not outline.has_row_counts:
            # Treating the missing number as 0 would hide rows without any error.
            raise UnsupportedFeatureError(self.decoder.path if self.decoder else "a change", [_UNCOUNTED])
        return outline.rows

    @cached_property
    def deletions(self) -> bool:
        """Whether any fragment has a deletion file."""
        return self.summary.deletions

    def __len__(self) -> int:
        """Return the number of fragments."""
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> "Fragments": ...
    def __getitem__(self, index: int | slice) -> "Fragment | Fragments":
        """Return one fragment decoded, or a slice that stays encoded."""
        if isinstance(index, slice):
            return Fragments(self.items[index], self.decoder)
        return self._decoded(self.items[index])

    def __iter__(self) -> Iterator[Fragment]:
        """Decode the fragments one by one."""
        return map(self._decoded, self.items)

    def __eq__(self, other: object) -> bool:
        """Compare with another sequence of fragments."""
        if not isinstance(other, Fragments):
            return isinstance(other, Sequence) and tuple(self) == tuple(other)
        # Versions share almost all of their encoded fragments; only pairs whose bytes differ are decoded.
        return len(self) == len(other) and all(
            item == counterpart or self[position] == other[position]
            for position, (item, counterpart) in enumerate(zip(self.items, other.items, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]  # equality compares content, which is too long to hash

    def __repr__(self) -> str:
        """Show the fragments."""
        return f"Fragments({list(self)!r})"

    def find(self, number: int) -> Fragment | None:
        """Return the fragment with an id, or None."""
        fragment = self._found.get(number)
        if fragment is None and (position := self._by_id().get(number)) is not None:
            fragment = self._found[number] = self._decoded(self.items[position])
        return fragment

    def item(self, number: int) -> Fragment | bytes:
        """Return the item with an id, which has to be there, as it is held."""
        return self.items[self._by_id()[number]]

    def same_files(self, number: int, fragments: "Fragments") -> bool:
        """Return whether a fragment names the same data files here and in the fragments of another version.

        Encoded fragments are compared without decoding them.
        """
        item, counterpart = self.item(number), fragments.item(number)
        if isinstance(item, bytes) and isinstance(counterpart, bytes) and self.decoder is not None:
            return item == counterpart or self.decoder.same_files(item, counterpart)
        fragment = fragments.find(number)
        return fragment is not None and self._decoded(item).files == fragment.files

    def paths(self, number: int) -> Sequence[str]:
        """Return the names of the data files of a fragment, which is not decoded for this."""
        item = self.item(number)
        if isinstance(item, bytes) and self.decoder is not None:
            return self.decoder.paths(item)
        return [file.path for file in self._decoded(item).files]

    @property
    def files(self) -> Iterable[Sequence[FileColumns]]:
        """The data files of each fragment, in order; encoded fragments are not decoded for this."""
        encoded = [item for item in self.items if isinstance(item, bytes)]
        if self.decoder is not None and len(encoded) == len(self.items):
            return self.decoder.files(encoded)
        return (
            [(file.path, dict(zip(file.fields, file.column_indices, strict=False))) for file in fragment.files]
            for fragment in self
        )

    def added(self, more: Iterable[Fragment]) -> "Fragments":
        """Return these fragments followed by more; encoded fragments stay encoded."""
        # The first decoder serves both parts: decoders differ only in the path that messages name.
        new = more if isinstance(more, Fragments) else Fragments(more)
        result = Fragments([*self.items, *new.items], self.decoder or new.decoder)
        outline = self._outline
        if outline is not None:
            # A summary that exists is extended: the next access would otherwise parse all fragments again.
            extra = new.summary
            ids = [*outline.ids, *extra.ids]
            result._outline = FragmentsSummary(
                ids,
                outline.rows + extra.rows,
                outline.deletions or extra.deletions,
                outline.has_row_counts and extra.has_row_counts,
            )
        return result

    def changed(self, removed: Collection[int], updated: "Mapping[int, Fragment] | Fragments") -> "Fragments":
        """Return these fragments without the removed ids, and with the updated fragments at their positions.

        Updated fragments that are encoded stay so.

        Raises:
            InvalidInputError: An id does not exist.
        """
        positions = self._by_id()
        decoder = self.decoder
        replaced: Mapping[int, Fragment | bytes]
        if isinstance(updated, Fragments):
            decoder = decoder or updated.decoder
            replaced = dict(zip(updated.ids, updated.items, strict=True))
        else:
            replaced = updated
        missing = sorted(number for number in {*removed, *replaced} if number not in positions)
        if missing:
            raise InvalidInputError(f"there is no fragment {missing[0]}")
        items = list(self.items)
        for number, item in replaced.items():
            items[positions[number]] = item
        # Positions are used, because updates keep them; the removed items are left out afterwards.
        removed_positions = {positions[number] for number in removed}
        remaining = (
            [item for position, item in enumerate(items) if position not in removed_positions]
            if removed_positions
            else items
        )
        return Fragments(remaining, decoder)

    def held_as(self, items: Sequence[bytes], decoder: FragmentDecoder) -> "Fragments":
        """Return the same fragments, held as these bytes; what was found out about them is not looked for again."""
        same = Fragments(items, decoder)
        same._outline = self._outline
        return same

    def check_once(self, check: Callable[["Fragments"], None]) -> None:
        """Call a check that raises when something is wrong; after it has returned once, it is not called again."""
        if not self._checked:
            check(self)
            self._checked = True

    def _decoded(self, item: Fragment | bytes) -> Fragment:
        if isinstance(item, Fragment):
            return item
        if self.decoder is None:
            raise InvalidInputError("encoded fragments need a decoder")
        return self.decoder.decode(item)

    def _by_id(self) -> dict[int, int]:
        if self._positions is None:
            self._positions = {number: position for position, number in enumerate(self.ids)}
        return self._positions

    @property
    def summary(self) -> FragmentsSummary:
        """The facts about the fragments that need no decoding of each."""
        if self._outline is None:
            encoded = [item for item in self.items if isinstance(item, bytes)]
            # Usually all fragments come from one manifest, and the decoder scans their bytes for a few fields.
            if encoded and self.decoder is not None and len(encoded) == len(self.items):
                self._outline = self.decoder.outline(encoded)
            else:
                self._outline = self._mixed_outline(encoded)
        return self._outline

    def _mixed_outline(self, encoded: Sequence[bytes]) -> FragmentsSummary:
        decoded_outline = _outline_of([item for item in self.items if isinstance(item, Fragment)])
        if not encoded or self.decoder is None:
            return decoded_outline
        encoded_outline = self.decoder.outline(encoded)
        # The two summaries are woven together again in the order of the items.
        ids_read, ids_rest = iter(decoded_outline.ids), iter(encoded_outline.ids)
        ids = [next(ids_rest) if isinstance(item, bytes) else next(ids_read) for item in self.items]
        return FragmentsSummary(
            ids,
            decoded_outline.rows + encoded_outline.rows,
            decoded_outline.deletions or encoded_outline.deletions,
            decoded_outline.has_row_counts and encoded_outline.has_row_counts,
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
    """A file of an index: its path relative to the folder of the index, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMetadata:
    """An index, or one segment of it, and the fragments it covers.

    `uuid` is the name of its folder under `_indices/`, `bitmap` a Roaring bitmap of the covered fragment ids (None when
    it is not recorded), `details` a message specific to the index type (type URL and bytes), `created_at` the time in
    milliseconds since 1970 UTC.
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
    """The program that wrote a manifest. Older readers require `version` to be `major.minor.patch` without suffix."""

    library: str
    version: str
    prerelease: str | None = None
    build_metadata: str | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One version of a table. `timestamp` is in nanoseconds since 1970 UTC.

    `index_section` stays encoded, so that a commit that does not change indices writes the same bytes;
    `codec.decode_indices` decodes it.
    """

    version: int
    fields: tuple[Field, ...]
    fragments: Fragments = field(default_factory=Fragments)
    timestamp: int = 0
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    reader_flags: int = 0
    writer_flags: int = 0
    # The highest fragment id ever assigned, even when that fragment is gone. It never goes down, because deletion
    # files and indices are keyed by fragment id.
    max_fragment_id: int | None = None
    transaction_file: str = ""
    writer: WriterVersion | None = None
    # Used only with stable row ids; a value that is too low would give two rows the same id, without any error.
    next_row_id: int = 0
    # The version is empty where no storage format is recorded. The format is too, unless the manifest has one that says
    # nothing: pylance cannot open that version.
    file_format: str = "lance"
    file_version: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    table_metadata: Mapping[str, str] = field(default_factory=dict)
    # The known ranges of values (`value_ranges`). They are stored in the table metadata, which pylance carries over; of
    # the metadata of fragments it keeps nothing. They follow from the data files, so that they are no content.
    ranges: str = field(default="", compare=False)
    base_paths: tuple[BasePath, ...] = ()
    branch: str | None = None
    # None means that there is no section; bytes of length 0 are a section without indices.
    index_section: bytes | None = None
    max_allocated_field_id: int | None = None
    version_aux_data: int = 0
    tag: str = ""

    @property
    def holds_blobs(self) -> bool:
        """Whether a field holds blobs."""
        return any(field.holds_blobs for field in self.fields)

    @property
    def rows(self) -> int:
        """The number of rows that are not deleted."""
        return self.fragments.rows

    def fragment(self, number: int) -> Fragment:
        """Return a fragment that has to be there.

        Raises:
            LookupError: There is no fragment with that id.
        """
        fragment = self.fragments.find(number)
        if fragment is None:
            raise LookupError(f"version {self.version} has no fragment {number}")
        return fragment

    @cached_property
    def stable_row_ids(self) -> bool:
        """Whether rows keep their row id when they move to another fragment."""
        return bool(self.writer_flags & Flag.STABLE_ROW_IDS)

    @cached_property
    def known_ranges(self) -> KnownRanges:
        """The known ranges of values, by data file and column."""
        return KnownRanges(self.ranges)

    @property
    def timestamp_seconds(self) -> float:
        """When the version was made, in seconds since 1970 UTC."""
        return self.timestamp / 1e9
