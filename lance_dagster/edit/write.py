"""Rows leave their fragments, and some enter new ones: what every change of rows has in common.

A row that is written anew keeps its id and the version it was created at, on a table with stable row ids; readers
that knew it by its id find it where it is. The version it was last updated at is set by the commit.

Create a table, put rows into it and take rows out: append, overwrite, replace.
"""

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles import (
    FILE_VERSION,
    Addresses,
    StagedFiles,
    WriteTarget,
    check_schema,
    group_by_fragment,
    matching_offsets,
    row_offsets,
    staged_fragments,
    write_files,
)
from lance_dagster.errors import CommitConflictError, CorruptFileError, InvalidInputError, SchemaMismatchError
from lance_dagster.format import layout
from lance_dagster.format.codec import decode_row_runs, decode_version_runs, encode_row_ids, encode_versions
from lance_dagster.format.file_versions import check_storable
from lance_dagster.format.model import Field, Fragment
from lance_dagster.format.schema import fields_from_arrow, schema_metadata_from_arrow
from lance_dagster.format.transaction import (
    CLAIMS,
    COMMIT_MESSAGE,
    Append,
    Delete,
    Operation,
    Overwrite,
    Transaction,
    Update,
)
from lance_dagster.format.validation import string_list, validate_commit_info
from lance_dagster.history.ancestry import RecordedVersion
from lance_dagster.history.commit import WRITER, Proposal, commit_transaction, create_first, now_ns
from lance_dagster.history.context import TableContext, schema_of
from lance_dagster.history.lineage import changes_since, lineage_of
from lance_dagster.history.rebase import deleted_offsets, with_deleted
from lance_dagster.history.versions import State, Version
from lance_dagster.placement.base_stores import destination, options_of, placed
from lance_dagster.transactions.apply import apply, empty_manifest
from lance_dagster.transactions.base_paths import data_folder
from lance_dagster.transactions.claims import APPEND, OVERWRITE, REPLACE, Change, Claim, encode_claims

_DEADLINE_SECONDS = 300.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_BLOBS = ("lance-encoding:blob", "lance.blob")


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows to be taken out: fragments that lose all of theirs, and those that lose some with the new vector."""

    removed: tuple[int, ...]
    updated: tuple[Fragment, ...]


def retried(attempt: Callable[[], State]) -> State:
    """Make a change, and make it again from the newest version when another commit got in between.

    Gives up by the clock, not by a count of attempts: among many writers, each of whom has to look again when another
    one was faster, the last one needs as many attempts as there are others.

    Raises:
        CommitConflictError: Nothing can be done again, or it was in vain for too long.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    pause = _FIRST_PAUSE
    while True:
        try:
            return attempt()
        except CommitConflictError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0, pause))  # noqa: S311  # keeps writers apart, hides nothing
        pause = min(2 * pause, _LONGEST_PAUSE)


def submit(context: TableContext, head: State, operation: Operation, properties: Mapping[str, str]) -> State:
    """Commit an operation that was made from a version to the branch of that version."""
    transaction = Transaction(
        read_version=head.number, uuid=str(uuid.uuid4()), operation=operation, properties=properties
    )
    return commit_transaction(context.versions, head.branch, transaction)


def taken_out(context: TableContext, head: State, rows: Mapping[int, BitMap]) -> Removal:
    """Store the deletion vectors it takes to take rows out.

    Args:
        context: The table.
        head: The version the rows were found in.
        rows: Offsets of live rows by the id of their fragment.
    """
    removed: list[int] = []
    updated: list[Fragment] = []
    for number, offsets in rows.items():
        fragment = _known(head, number)
        if len(offsets) == fragment.rows:
            removed.append(number)
        else:
            deleted = deleted_offsets(context.versions, head, fragment) | offsets
            updated.append(with_deleted(context.versions, head, fragment, deleted))
    return Removal(tuple(removed), tuple(updated))


def moved_in(context: TableContext, head: State, staged: StagedFiles, addresses: Addresses) -> tuple[Fragment, ...]:
    """Describe new files as fragments whose leading rows were moved there.

    Args:
        context: The table.
        head: The version the rows were found in.
        staged: The files.
        addresses: Where the leading rows were, in the order in which they were written.
    """
    made = placed(
        context, staged_fragments(staged, head.manifest.fields, head.manifest.file_version), head, staged.base
    )
    if not head.manifest.stable_row_ids or not len(addresses):
        return made
    ids, created = _lineage(head, addresses)
    found: list[Fragment] = []
    start = 0
    for fragment in made:
        part = slice(start, start + fragment.physical_rows)
        start += fragment.physical_rows
        if len(ids[part]):
            found.append(
                replace(fragment, row_ids=encode_row_ids(ids[part]), created_at=encode_versions(created[part]))
            )
        else:
            found.append(fragment)
    return tuple(found)


def _lineage(head: State, addresses: Addresses) -> tuple[Addresses, Addresses]:
    """Return the ids of some rows and the versions they were created at."""
    ids, created = np.empty_like(addresses), np.empty_like(addresses)
    for number, places in group_by_fragment(addresses):
        fragment, where = _known(head, number), f"fragment {number} of {head}"
        offsets = row_offsets(addresses[places]).astype(np.uint64)
        # The ids of these rows alone: a fragment of which one row is updated may have a hundred million.
        ids[places] = decode_row_runs(fragment.row_ids, fragment.physical_rows, where).at_positions(offsets)
        created[places] = decode_version_runs(fragment.created_at, fragment.physical_rows, where).at_positions(offsets)
    return ids, created


def _known(head: State, number: int) -> Fragment:
    fragment = head.manifest.fragments.find(number)
    if fragment is None:
        raise CorruptFileError(str(head), f"a reader finds a fragment {number} that its manifest does not have")
    return fragment


def field_ids(fields: Sequence[Field], columns: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of some columns and of everything inside them."""
    wanted = {item.id for item in fields if item.parent_id < 0 and item.name in columns}
    for item in fields:
        # Depth first: a parent comes before its children.
        if item.parent_id in wanted:
            wanted.add(item.id)
    return tuple(item.id for item in fields if item.id in wanted)


def refuse_blobs(head: State, verb: str) -> None:
    """Refuse to write rows anew that hold blobs, which lie beside the files of the rows.

    Raises:
        InvalidInputError: Names the column.
    """
    for column in head.manifest.fields:
        if column.extension_name.startswith(_BLOBS) or not column.metadata.keys().isdisjoint(_BLOBS):
            raise InvalidInputError(
                f"cannot {verb} rows of {head}: column {column.name!r} holds blobs, which are not written anew here; "
                "delete and append the rows, or change them with pylance"
            )


def refuse_nested_blobs(head: State, verb: str) -> None:
    """Refuse to write rows anew that hold blobs inside another column, where they cannot be read as bytes.

    Raises:
        InvalidInputError: Names the column.
    """
    for column in head.manifest.fields:
        if column.parent_id >= 0 and column.extension_name.startswith(_BLOBS):
            raise InvalidInputError(
                f"cannot {verb} rows of {head}: {column.name!r} holds blobs inside another column; delete and append "
                "the rows, or change them with pylance"
            )


Rows = pa.Table | pa.RecordBatch | pa.RecordBatchReader | StagedFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """What a commit says about itself."""

    branch: str = layout.MAIN
    message: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what is no text.

        Raises:
            InvalidInputError: Names it.
        """
        validate_commit_info(self.message, self.properties)

    @classmethod
    def of(
        cls, branch: str, message: str | None, properties: Mapping[str, str] | None, partitions: Sequence[str] = ()
    ) -> "CommitInfo":
        """Return what a caller gave, validated.

        Raises:
            InvalidInputError: Names what is no text, no mapping of texts or no list of texts.
        """
        keys = string_list("partitions", partitions, "2026-01-31")
        return cls(branch=branch, message=message, properties=properties or {}, partitions=keys)

    def as_properties(
        self, mode: str | None = None, predicate: str | None = None, *, on: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return the transaction properties that carry the note and what it claims; without a mode, nothing."""
        found = dict(self.properties)
        if mode is not None:
            claim = Claim(mode=mode, predicate=predicate, partitions=tuple(self.partitions), on=tuple(on))
            found[CLAIMS] = encode_claims([claim])
        if self.message is not None:
            found[COMMIT_MESSAGE] = self.message
        return found


def create_empty(context: TableContext, schema: pa.Schema) -> State | None:
    """Write the first version of a table, without rows; None when there is one already."""
    fields = fields_from_arrow(schema)
    check_storable(fields, FILE_VERSION)
    transaction = Transaction(
        read_version=0,
        uuid=str(uuid.uuid4()),
        operation=Overwrite(fragments=(), fields=fields, schema_metadata=schema_metadata_from_arrow(schema)),
    )
    before = empty_manifest(fields, FILE_VERSION)
    manifest = apply(before, transaction, timestamp=now_ns(), writer=WRITER)
    return create_first(context.versions, Proposal(transaction, manifest))


def target(context: TableContext, schema: pa.Schema, head: State, base: str | None = None) -> WriteTarget:
    """Say where data files of a table go: to the same folder for every branch, or under a base path by name."""
    place = destination(head, base)
    return WriteTarget(
        data_uri=f"{context.uri}/{layout.DATA}" if place is None else data_folder(place),
        schema=schema,
        file_version=head.manifest.file_version,
        storage_options=context.storage_options if place is None else options_of(context, place),
        base=None if place is None else place.path,
    )


def stage(context: TableContext, rows: Rows, branch: str, base: str | None) -> StagedFiles:
    """Write rows as data files that no version names yet."""
    check_rows(rows)
    if isinstance(rows, StagedFiles):
        raise InvalidInputError("these files are staged already; give them to append, overwrite or replace_where")
    head = context.head(branch)
    return _staged(context, rows, schema_of(head), head, base=base)


def append(context: TableContext, rows: Rows, info: CommitInfo, replaces: Version | None) -> State:
    """Add rows; take out those an earlier attempt of the same work added, in the same commit."""
    check_rows(rows)
    given = rows

    def attempt() -> State:
        nonlocal given
        head = context.head(info.branch)
        given = staged = _staged(context, given, schema_of(head), head)
        added = _placed(context, staged, head.manifest.fields, head)
        operation: Operation = Append(fragments=added)
        if replaces is not None:
            operation = Update(removed_fragment_ids=_left_of(context, replaces, head), new_fragments=added)
        return submit(context, head, operation, info.as_properties(APPEND))

    return retried(attempt)


def overwrite(context: TableContext, rows: Rows, info: CommitInfo) -> State:
    """Replace all rows, and the schema where the rows have another one."""
    check_rows(rows)
    head = context.head(info.branch)
    given, own = rows.schema, schema_of(head)
    fields, metadata, schema = head.manifest.fields, head.manifest.schema_metadata, own
    fits = _is_stored_as if isinstance(rows, StagedFiles) else _fits
    if not fits(given, own):
        fields, metadata, schema = fields_from_arrow(given), schema_metadata_from_arrow(given), given
        check_storable(fields, head.manifest.file_version)
    staged = _staged(context, rows, schema, head)
    operation = Overwrite(fragments=_placed(context, staged, fields, head), fields=fields, schema_metadata=metadata)
    return submit(context, head, operation, info.as_properties(OVERWRITE))


def replace_where(context: TableContext, predicate: str, rows: Rows, info: CommitInfo) -> State:
    """Take out the rows that match and put others in, as one commit.

    When another commit touches the same fragments meanwhile, the rows to take out are looked up again.
    """
    check_rows(rows)
    given = rows

    def attempt() -> State:
        nonlocal given
        head = context.head(info.branch)
        # Files written for the columns of an older version have to be what the newest one holds.
        given = staged = _staged(context, given, schema_of(head), head)
        out = taken_out(context, head, matching_offsets(context.dataset(head), predicate))
        operation = Update(
            removed_fragment_ids=out.removed,
            updated_fragments=out.updated,
            new_fragments=_placed(context, staged, head.manifest.fields, head),
        )
        return submit(context, head, operation, info.as_properties(REPLACE, predicate))

    return retried(attempt)


def check_rows(rows: object) -> None:
    """Refuse what is not Arrow rows or staged files.

    Raises:
        InvalidInputError: Says what is taken and how to get there.
    """
    if not isinstance(rows, Rows):
        raise InvalidInputError(
            f"cannot write a {type(rows).__module__}.{type(rows).__qualname__}; give a pyarrow.Table, RecordBatch or "
            "RecordBatchReader, such as pyarrow.Table.from_pandas(frame) or frame.to_arrow(), or staged files"
        )


def _staged(
    context: TableContext, rows: Rows, schema: pa.Schema, head: State, *, base: str | None = None
) -> StagedFiles:
    if isinstance(rows, StagedFiles):
        check_schema(rows.schema, schema)
        if not _is_stored_as(rows.schema, schema):
            raise SchemaMismatchError(f"files were staged as {_types(rows.schema)}, the table holds {_types(schema)}")
        return rows
    # Before the first row is read: a stream may be long.
    check_schema(rows.schema, schema)
    where = target(context, schema, head, base)
    return StagedFiles(schema, write_files(where, _batches(rows)), where.base)


def _batches(rows: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> Iterable[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    return rows.to_batches() if isinstance(rows, pa.Table) else rows


def _placed(context: TableContext, staged: StagedFiles, fields: Sequence[Field], head: State) -> tuple[Fragment, ...]:
    fragments = staged_fragments(staged, fields, head.manifest.file_version)
    return placed(context, fragments, head, staged.base)


def _fits(given: pa.Schema, own: pa.Schema) -> bool:
    try:
        check_schema(given, own)
    except SchemaMismatchError:
        return False
    return True


def _is_stored_as(given: pa.Schema, own: pa.Schema) -> bool:
    """Tell whether files of one schema can be read as another: they are written, so nothing can be cast any more."""
    pairs = list(zip(given, own, strict=False))
    same = len(given) == len(own) and all(
        mine.name == theirs.name and mine.type == theirs.type for mine, theirs in pairs
    )
    return same and not any(mine.nullable and not theirs.nullable for mine, theirs in pairs)


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema)


def _left_of(context: TableContext, earlier: Version, head: State) -> tuple[int, ...]:
    """Return the ids of the fragments that an earlier attempt added and that are still there."""
    state = context.versions.load(earlier.branch, earlier.number)
    now, then = lineage_of(head, context.refs), lineage_of(state, context.refs)
    made_from = any(line.branch == earlier.branch and line.number >= earlier.number for line in now.segments)
    # Another branch may have had the name when that was committed.
    if state.id != earlier.id or not made_from:
        raise InvalidInputError(f"{head} was not made from {earlier}, so rows there cannot replace its own")
    parent = context.load_recorded(RecordedVersion(earlier.parents[0])) if earlier.parents else None
    before = frozenset() if parent is None else frozenset(parent.manifest.fragments.ids)
    added = {own.id: own for own in state.manifest.fragments if own.id not in before}
    left = {number: own for number in added if (own := head.manifest.fragments.find(number)) is not None}
    # A fork names the same files through a base path, so fragments are compared by what identifies them.
    if {number: _identity(own) for number, own in left.items()} != {n: _identity(own) for n, own in added.items()}:
        _refuse_moved_rows(earlier, changes_since(now, then, context.versions))
    return tuple(sorted(left))


def _identity(fragment: Fragment) -> tuple[frozenset[str], int | None]:
    return fragment.file_names, fragment.deletion.id if fragment.deletion else None


def _refuse_moved_rows(earlier: Version, since: Sequence[Change]) -> None:
    """Refuse to replace the rows of a version that may be in other fragments by now: they would stay beside the new."""
    for change in since:
        if change.claims or change.moves_no_row or isinstance(change.operation, Append | Delete | Overwrite):
            continue
        raise CommitConflictError(
            f"cannot replace the rows of {earlier}: {change.author} may have moved them in {change.version}",
            change.version,
            retryable=False,
        )
