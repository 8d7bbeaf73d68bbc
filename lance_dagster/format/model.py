"""The values a manifest is made of, as frozen dataclasses.

Every field of the format that this package reads is here, under the format's own name where that name is clear, and
survives a read-change-write. What is not here is refused when it is read (see `codec`), so nothing is lost silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag

TOMBSTONE_FIELD = -2
"""Stands in `DataFile.fields` for a column that no longer exists."""


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
    """One `.lance` file of a fragment: which fields it holds, and in which of its columns.

    `size` is in bytes, 0 when unknown. `base_id` names the `BasePath` the file lies under; None is the table itself.
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
        """Rows that are not deleted."""
        return self.physical_rows - (self.deletion.deleted_rows if self.deletion else 0)

    @property
    def file_names(self) -> frozenset[str]:
        """Names of the data files: what identifies a fragment across branches, where ids do not."""
        return frozenset(file.path for file in self.files)


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

    `index_section` holds the bytes of the index section as they were read; only `codec` looks inside.
    """

    version: int
    fields: tuple[Field, ...]
    fragments: tuple[Fragment, ...] = ()
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
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def stable_row_ids(self) -> bool:
        """Whether rows keep their id when they move to another fragment."""
        return bool(self.writer_flags & Flag.STABLE_ROW_IDS)

    @property
    def timestamp_seconds(self) -> float:
        """When the version was made, in seconds since 1970 UTC."""
        return self.timestamp / 1e9

    def fragment_map(self) -> dict[int, Fragment]:
        """Return the fragments by id."""
        return {fragment.id: fragment for fragment in self.fragments}
