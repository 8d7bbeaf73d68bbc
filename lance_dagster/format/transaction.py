"""Transactions: the description of a change, with one frozen class per operation of the format.

An operation with an unknown number or an unknown field is refused when it is decoded. Fragments may be given as any
sequence; the fragments of a decoded transaction are `Fragments`, still encoded.

This module also names the transaction properties and table metadata keys in which this package records claims, merges,
picks and reverts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lance_dagster.format.model import BasePath, DataFile, Field, Fragment, IndexFile, IndexMetadata

REWRITE_ROWS, REWRITE_COLUMNS = 0, 1
"""The two modes of an `Update`."""

COMMIT_MESSAGE = "__lance_commit_message"
"""The transaction property in which Lance stores the commit message."""
COMMITTER = "lance_dagster.committer"
CLAIMS = "lance_dagster.claims"
MERGE = "lance_dagster.merge"
"""The property of a merge with the merged version; `MERGED_BRANCH` has the id of its branch."""
MERGED_BRANCH = "lance_dagster.merge.branch"
MERGED_PREFIX = "lance_dagster.merged."
"""Table metadata key, followed by a branch id: the last merged version of that branch, as "source@dest".

The value continues with the row ids that rows of the branch received in the dest, as "first-end=here", and with the
field ids that its fields received there, as "f<id>=<id>".
"""
SQUASHED_PREFIX = "lance_dagster.squashed."
"""Table metadata key, followed by a branch id: the last version of that branch that was squash-merged."""
MERGE_STRATEGY = "lance_dagster.merge.strategy"
"""The property with the strategy that a merge, pick or revert was given, as JSON: winners by unit or kind."""
NEEDS_BACKFILL = "lance_dagster.merge.needs_backfill"
"""The property with the columns that a merge side added, as JSON: in how many rows of the other side they are null."""
COLUMNS_MOVED = "lance_dagster.merge.columns"
"""The property with the ids of the fields for which a merge wrote values of relocated rows."""
UPDATED_IN_PLACE = "lance_dagster.merge.updated_in_place"
"""The property with the ids of the fragments of which a merge took rows that may have been updated in place.

Only a merge into a table without stable row ids records it; an empty value says that there are none.
"""
PICKS_MERGED = "lance_dagster.merge.picked"
"""The property with the versions that picks are from which a merge brought, as branch ids with numbers."""
CASTS, CASTS_OF_SOURCE = "lance_dagster.merge.casts", "lance_dagster.merge.casts.source"
"""The properties with columns whose type a merge changed for the dest, and for the source: as "old id:new id".

The old id is the one on that side, the new one that of the result.
"""
PICKED, REVERTED = "lance_dagster.cherry_pick", "lance_dagster.revert"
REVERTED_TO = "lance_dagster.revert.parent"
"""The property with the parent of a merge to which its revert returned."""
RESTORED = "lance_dagster.restore"
RESET = "lance_dagster.reset"
"""The property of a reset with the older version of the same branch from which the version was made."""
PICKED_FROM = "lance_dagster.cherry_pick.from"
PICKED_BY = "lance_dagster.cherry_pick.by"
"""The property with the user who picked a change; the committer of a pick is the author of the change."""
CHANGE_ORIGIN_PROPERTIES = frozenset({PICKED, REVERTED, RESTORED})
"""The properties with the version whose change was picked, reverted or restored."""
MERGE_RECORD_PREFIXES = (MERGED_PREFIX, SQUASHED_PREFIX)


def without_merge_records(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return table metadata without the records of merges, which are bookkeeping and not content."""
    return {key: value for key, value in metadata.items() if not key.startswith(MERGE_RECORD_PREFIXES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append rows."""

    fragments: Sequence[Fragment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete rows: whole fragments by id, single rows by an extended deletion vector."""

    # Complete fragments, as the format wants them, but only their deletion files are applied: the data files may have
    # been replaced since the delete was prepared. A fragment that loses all rows is deleted whole, by its id.
    updated_fragments: Sequence[Fragment] = ()
    deleted_fragment_ids: tuple[int, ...] = ()
    predicate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """Replace all rows and the schema. The first version of a table is an overwrite too."""

    fragments: Sequence[Fragment]
    # Fields and schema metadata are replaced, while the table config is kept and `config_upserts` are added to it.
    # Fragment ids and row ids continue, because older versions still use the old ids.
    fields: tuple[Field, ...]
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    config_upserts: Mapping[str, str] = field(default_factory=dict)
    initial_bases: tuple[BasePath, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactedSstable:
    """A flushed table of a memory-backed writer: its shard and generation."""

    shard: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """The keys an upsert inserted, as hashes or as a bloom filter (bitmap, bits, items, false positive probability)."""

    # The ids of the key columns. A writer that inserted one of these keys meanwhile would make a duplicate, so the
    # filter lets other writers detect it.
    fields: tuple[int, ...]
    hashes: tuple[int, ...] | None = None
    bloom: tuple[bytes, int, int, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Delete and insert rows as one change, or write new values of some columns in place.

    `mode` distinguishes them: `REWRITE_ROWS` moves updated rows to new fragments, `REWRITE_COLUMNS` adds data files to
    the fragments. Rows of new fragments with a row id were moved; all other rows are new. `fields_modified` are the ids
    of fields with new values. `updated_fields` are the updated fields of rows that moved: indices on other fields cover
    the new fragments too, since their values were only copied. `updated_offsets` and `updated_offset_bitmaps` say, by
    fragment id, which rows received new values.
    """

    removed_fragment_ids: tuple[int, ...] = ()
    # The rows of `removed_fragment_ids` and the newly deleted rows of `updated_fragments` were deleted or moved;
    # `new_fragments` have the moved rows first, with their row ids, and then the inserted rows without.
    updated_fragments: Sequence[Fragment] = ()
    new_fragments: Sequence[Fragment] = ()
    fields_modified: tuple[int, ...] = ()
    mode: int = REWRITE_ROWS
    # The format calls it `fields_for_preserving_frag_bitmap`, although it lists the fields whose indices must not keep
    # the new fragments in their bitmaps. Not `fields_modified`: these have new values in place, in old fragments.
    updated_fields: tuple[int, ...] = ()
    # Only an upsert sets it: with a filter, the update conflicts with appends, which may have inserted its keys.
    inserted_rows: KeyFilter | None = None
    # These are two encodings of one fact. With neither, the rows keep the version they were last updated at.
    updated_offsets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    updated_offset_bitmaps: Mapping[int, bytes] = field(default_factory=dict)
    compacted_sstables: tuple[CompactedSstable, ...] = ()

    @property
    def writes_columns(self) -> bool:
        """Whether values were written in place; writers may list the modified fields without setting the mode."""
        return self.mode == REWRITE_COLUMNS or bool(self.fields_modified)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Change the schema together with the data files of the fragments (add or cast columns)."""

    # All fragments of the version, changed or not: a fragment that is left out would lose its rows. The format's name
    # means merging columns into fragments; a merge of branches is recorded so only when it changes columns.
    fragments: Sequence[Fragment]
    fields: tuple[Field, ...]
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    # Whether rows written under the old schema remain valid: no column without nulls was added. Otherwise concurrent
    # writes of rows have to be redone.
    preserves_nullability: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Change the schema alone (drop, rename or reorder columns)."""

    fields: tuple[Field, ...]
    preserves_nullability: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Make an older version of the branch the current version."""

    # The commit writes a new version with the content of the older version; no version is removed.
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Start a branch, or another table, from a version."""

    is_shallow: bool
    # The version of the source: a branch keeps its number, so the first version of a branch is not a successor of
    # the version before it. `ref_name` is the branch of the source, None for main.
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """Add indices, remove indices, or both."""

    # The name of the operation is misleading: dropping an index is a `CreateIndex` with `removed_indices` alone.
    new_indices: tuple[IndexMetadata, ...] = ()
    removed_indices: tuple[IndexMetadata, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteGroup:
    """Old fragments and the new fragments that replace them, with the same rows in the same order."""

    old: Sequence[Fragment]
    new: Sequence[Fragment]

    @property
    def moves_rows(self) -> bool:
        """Whether rows get other addresses. Fragments that keep their ids only get their files from another place."""
        return [fragment.id for fragment in self.old] != [fragment.id for fragment in self.new]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenIndex:
    """An index whose row addresses were remapped for a rewrite, stored under a new uuid."""

    old: str
    new: str
    details: tuple[str, bytes] | None = None
    index_version: int = 0
    files: tuple[IndexFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Compaction: move rows to other fragments. The ids of the new fragments were reserved beforehand."""

    # Fragments are grouped, because an index covers the new fragments of a group only if it covered all old fragments.
    groups: tuple[RewriteGroup, ...]
    rewritten_indices: tuple[RewrittenIndex, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveFragments:
    """Reserve fragment ids, so that a later `Rewrite` can use them."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MapUpdate:
    """Changes to a mapping of strings: a value of None removes the key; `replace` starts from an empty mapping.

    Merge records survive `replace`: without them, the next merge would add rows a second time.
    """

    entries: Mapping[str, str | None]
    replace: bool = False

    def apply_to(self, current: Mapping[str, str]) -> dict[str, str]:
        """Return a mapping with the changes applied."""
        # `replace` clears the keys of users only.
        start = {
            key: value for key, value in current.items() if not self.replace or key.startswith(MERGE_RECORD_PREFIXES)
        }
        merged: dict[str, str | None] = {**start, **self.entries}
        return {key: value for key, value in merged.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    """Change configuration, table metadata, schema metadata or field metadata (by field id)."""

    config: MapUpdate | None = None
    table_metadata: MapUpdate | None = None
    schema_metadata: MapUpdate | None = None
    field_metadata: Mapping[int, MapUpdate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReplacement:
    """Replace data files by files of the same fields, as pairs of fragment id and new file."""

    # A new file replaces the file with exactly the same fields; fields that no file has are added with it.
    replacements: tuple[tuple[int, DataFile], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMemWalState:
    """Record what memory-backed writers flushed."""

    compacted_sstables: tuple[CompactedSstable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBases:
    """Add base paths. The id 0 means that the next free id is assigned."""

    # Concurrent additions of the same name, path or id conflict; all other operations are compatible.
    new_bases: tuple[BasePath, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A file with replacement values for some rows of a fragment; offsets as one shared bitmap or one per field."""

    file: DataFile
    committed_version: int
    shared_bitmap: bytes | None = None
    field_bitmaps: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOverlay:
    """Attach overlay files to fragments, by fragment id."""

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


MAINTENANCE = (CreateIndex, ReserveFragments, Rewrite)
"""Operations that leave every row and every setting as it is: compaction, indices, reserved fragment ids."""
MAINTENANCE_NAMES = frozenset(kind.__name__ for kind in MAINTENANCE)
SAME_ROWS = MAINTENANCE_NAMES | {UpdateConfig.__name__}
"""The names of operations after which a branch has the same rows as before."""
WITHOUT_ROWS = SAME_ROWS | {Clone.__name__}
"""The names of operations that change no row: the names in `SAME_ROWS`, and the fork of a branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A committed or pending change. `uuid` identifies it across retries and lost responses."""

    # The version that the change was prepared on, not its parent: commits after it may have come in between. 0 for the
    # first version of a table.
    read_version: int
    uuid: str
    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""

    @property
    def operation_name(self) -> str:
        """The operation's name as the format spells it, such as "Append"."""
        return type(self.operation).__name__


def reset_target(transaction: Transaction | None) -> int | None:
    """Return the number of the older version from which a reset made its version; None for any other transaction."""
    # Both are needed: the property tells a reset from an ordinary restore, and the operation has the number.
    if transaction is None or RESET not in transaction.properties or not isinstance(transaction.operation, Restore):
        return None
    return transaction.operation.version
