"""Transactions: the description of a change, one frozen class per operation of the format.

An operation that is not known by number, or holds a field that is not known, is refused when it is read. Fragments
may be given as any sequence; those that were read are `Fragments`, still encoded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lance_dagster.format.model import BasePath, DataFile, Field, Fragment, IndexFile, IndexMetadata

REWRITE_ROWS, REWRITE_COLUMNS = 0, 1
"""The two modes of an `Update`."""

COMMIT_MESSAGE = "__lance_commit_message"
"""The property under which Lance keeps a commit message."""
COMMITTER = "lance_dagster.committer"
CLAIMS = "lance_dagster.claims"
MERGE = "lance_dagster.merge"
"""The property of a merge that names the version merged; the next one has the id of its branch."""
MERGED_BRANCH = "lance_dagster.merge.branch"
MERGED_PREFIX = "lance_dagster.merged."
"""Table metadata keys: this prefix and a branch id -> the last version of that branch merged, as "source@dest".

Behind it stand the row ids that rows of the branch were given, as "first-end=here".
"""
SQUASHED_PREFIX = "lance_dagster.squashed."
"""Table metadata keys: this prefix and a branch id -> the last version of that branch whose changes were taken over."""
COLUMNS_MOVED = "lance_dagster.merge.columns"
"""The property that names, by their ids, the fields of which a merge brought values for rows it moved."""
PICKED, REVERTED = "lance_dagster.cherry_pick", "lance_dagster.revert"
REVERTED_TO = "lance_dagster.revert.parent"
"""The property that names the parent of a merge which taking that back went back to."""
RESTORED = "lance_dagster.restore"
PICKED_FROM = "lance_dagster.cherry_pick.from"
PICKED_BY = "lance_dagster.cherry_pick.by"
"""The property that says who took a change over; as committer a pick has the one who made the change."""
CHANGE_ORIGIN_PROPERTIES = frozenset({PICKED, REVERTED, RESTORED})
"""The properties that name the version whose change was taken over, or taken back."""
MERGE_RECORD_PREFIXES = (MERGED_PREFIX, SQUASHED_PREFIX)


def without_merge_records(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the table metadata that people and programs set: without what merges record for themselves."""
    return {key: value for key, value in metadata.items() if not key.startswith(MERGE_RECORD_PREFIXES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Add rows."""

    fragments: Sequence[Fragment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Take rows out: whole fragments by id, single rows by a grown deletion vector."""

    updated_fragments: Sequence[Fragment] = ()
    deleted_fragment_ids: tuple[int, ...] = ()
    predicate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """Replace all rows and the schema; also how a table is created."""

    fragments: Sequence[Fragment]
    fields: tuple[Field, ...]
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    config_upserts: Mapping[str, str] = field(default_factory=dict)
    initial_bases: tuple[BasePath, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactedSstable:
    """What a memory-backed writer flushed: which shard, up to which generation."""

    shard: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """The keys an update inserted, as hashes or as a bloom filter (bitmap, bits, items, probability), by field ids."""

    fields: tuple[int, ...]
    hashes: tuple[int, ...] | None = None
    bloom: tuple[bytes, int, int, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Take rows out and put rows in, as one change, or put new values beside a column's old ones.

    `mode` says which: `REWRITE_ROWS` moves rows to new fragments, `REWRITE_COLUMNS` leaves them where they are. Rows
    of new fragments that carry row ids were moved; the rest are new. `fields_modified` are the ids of fields with new
    values; fragments of `preserved_fields` stay covered by the indices on those. `updated_offsets` holds, by fragment
    id, which rows got new values, as offsets or as a Roaring bitmap.
    """

    removed_fragment_ids: tuple[int, ...] = ()
    updated_fragments: Sequence[Fragment] = ()
    new_fragments: Sequence[Fragment] = ()
    fields_modified: tuple[int, ...] = ()
    mode: int = REWRITE_ROWS
    preserved_fields: tuple[int, ...] = ()
    inserted_rows: KeyFilter | None = None
    updated_offsets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    updated_offset_bitmaps: Mapping[int, bytes] = field(default_factory=dict)
    compacted_sstables: tuple[CompactedSstable, ...] = ()

    @property
    def writes_columns(self) -> bool:
        """Whether values were written beside rows that stay; pylance's own example of it names fields and no mode."""
        return self.mode == REWRITE_COLUMNS or bool(self.fields_modified)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Change the schema together with the fragments that back it."""

    fragments: Sequence[Fragment]
    fields: tuple[Field, ...]
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    preserves_nullability: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Change the schema and nothing else."""

    fields: tuple[Field, ...]
    preserves_nullability: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Make an older version the current one."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Start a branch, or another table, from a version."""

    is_shallow: bool
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """Add indices, take indices out, or both."""

    new_indices: tuple[IndexMetadata, ...] = ()
    removed_indices: tuple[IndexMetadata, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteGroup:
    """Fragments, and the ones that hold the same rows in the same order instead."""

    old: Sequence[Fragment]
    new: Sequence[Fragment]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenIndex:
    """An index whose row addresses were changed along with a rewrite, stored anew under another uuid."""

    old: str
    new: str
    details: tuple[str, bytes] | None = None
    index_version: int = 0
    files: tuple[IndexFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Put the same rows into other fragments: compaction. The new fragments have ids that were reserved."""

    groups: tuple[RewriteGroup, ...]
    rewritten_indices: tuple[RewrittenIndex, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveFragments:
    """Count fragment ids as given away."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MapUpdate:
    """Changes to a mapping of strings: a value of None takes the key out; `replace` starts from an empty mapping.

    What merges have recorded stays all the same: without it, rows that were merged would come a second time.
    """

    entries: Mapping[str, str | None]
    replace: bool = False

    def apply_to(self, current: Mapping[str, str]) -> dict[str, str]:
        """Return the mapping with the changes made."""
        start = {
            key: value for key, value in current.items() if not self.replace or key.startswith(MERGE_RECORD_PREFIXES)
        }
        merged: dict[str, str | None] = {**start, **self.entries}
        return {key: value for key, value in merged.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    """Change the table's settings and what it says about itself; field metadata by field id."""

    config: MapUpdate | None = None
    table_metadata: MapUpdate | None = None
    schema_metadata: MapUpdate | None = None
    field_metadata: Mapping[int, MapUpdate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReplacement:
    """Put a data file of the same fields in the place of another one. Pairs of fragment id and new file."""

    replacements: tuple[tuple[int, DataFile], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMemWalState:
    """Note what memory-backed writers flushed."""

    compacted_sstables: tuple[CompactedSstable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBases:
    """Add places where files of the table may be found. An id of 0 asks for one to be given."""

    new_bases: tuple[BasePath, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A file of values that go over those of a fragment, for some rows; bitmaps of offsets, shared or one per field."""

    file: DataFile
    committed_version: int
    shared_bitmap: bytes | None = None
    field_bitmaps: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOverlay:
    """Put values over those of some fragments, by fragment id."""

    groups: tuple[tuple[int, tuple[Overlay, ...]], ...]


Operation = (
    Append
    | Delete
    | Overwrite
    | CreateIndex
    | Rewrite
    | Merge
    | Restore
    | ReserveFragments
    | Update
    | Project
    | UpdateConfig
    | DataReplacement
    | UpdateMemWalState
    | Clone
    | UpdateBases
    | DataOverlay
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A change that was, or is to be, committed. `uuid` identifies it across retries and lost answers."""

    read_version: int
    uuid: str
    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""

    @property
    def operation_name(self) -> str:
        """The operation's name as the format spells it, such as "Append"."""
        return type(self.operation).__name__

    @property
    def file_name(self) -> str:
        """Name of the transaction file under `_transactions/`."""
        return f"{self.read_version}-{self.uuid}.txn"
