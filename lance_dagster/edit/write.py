"""Append, overwrite or replace the rows of a table; the steps shared by all row edits are here too.

An edit reads the head, stages data files, stores deletion vectors and submits one transaction against that head. When
a concurrent commit conflicts, `retried` runs the edit again from the new head; staged files are used again, because
no version names them yet.

On a table with stable row ids, a rewritten row keeps its row id and the version it was created at. The version it was
last updated at is set by the commit.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_dagster.datafiles import (
    Addresses,
    check_schema,
    evaluate_predicate,
    group_by_fragment,
    matching_offsets,
    row_offsets,
    staged_fragments,
)
from lance_dagster.datafiles.writing import StagedFiles, WriteTarget, write_files
from lance_dagster.edit.predicate_check import PredicateCheck
from lance_dagster.edit.staged_files import check_staged, refuse_repeated
from lance_dagster.edit.write_result import Written
from lance_dagster.errors import (
    CommitConflictError,
    CorruptFileError,
    InvalidInputError,
    RefNotFoundError,
    SchemaMismatchError,
    VersionNotFoundError,
)
from lance_dagster.format import layout
from lance_dagster.format.codec import decode_row_runs, decode_version_runs, encode_row_ids, encode_versions
from lance_dagster.format.file_versions import check_storable
from lance_dagster.format.model import BLOB_EXTENSIONS, Field, Fragment
from lance_dagster.format.run_properties import PARTITIONING
from lance_dagster.format.schema import fields_from_arrow, schema_metadata_from_arrow, without_views
from lance_dagster.format.sql_text import columns_in
from lance_dagster.format.transaction import (
    CLAIMS,
    COMMIT_MESSAGE,
    MERGE,
    PICKED_FROM,
    Append,
    Operation,
    Overwrite,
    Transaction,
    Update,
)
from lance_dagster.format.validation import check_class, check_string, string_list, validate_commit_info
from lance_dagster.format.value_ranges import scope_of, with_scope
from lance_dagster.history.ancestry import RecordedVersion
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import changes_since, lineage_of
from lance_dagster.history.rebase import deleted_offsets, with_deleted
from lance_dagster.history.versions import State, Version
from lance_dagster.placement.base_stores import destination, options_of, placed
from lance_dagster.store import records_digests
from lance_dagster.store.retries import Pauses, is_retryable_conflict, repeated
from lance_dagster.transactions.base_paths import data_folder, with_root_base
from lance_dagster.transactions.claims import (
    APPEND,
    OVERWRITE,
    REPLACE,
    UPSERT,
    Change,
    Claim,
    ClaimMode,
    encode_claims,
)
from lance_dagster.transactions.fragment_pruning import columns_with_ranges

# The deadline is generous: each attempt that loses means that another writer made progress.
_DEADLINE_SECONDS = 300.0
_PAUSES = Pauses(first=0.01, longest=1.0)
_Made = TypeVar("_Made", State, Written)


@dataclass(frozen=True, slots=True)
class Removal:
    """The ids of fragments that lose all rows, and the fragments that lose some, with their new deletion files."""

    removed: tuple[int, ...]
    updated: tuple[Fragment, ...]


def retried(attempt: Callable[[], _Made]) -> _Made:
    """Run an attempt to commit, and run it again from the new head after each retryable conflict.

    The limit is a deadline instead of a number of attempts: among n concurrent writers, the last one needs n attempts.

    Raises:
        CommitConflictError: The conflict is not retryable, or the deadline passed.
    """
    return repeated(attempt, is_retryable_conflict, seconds=_DEADLINE_SECONDS, pauses=_PAUSES)


def submit(
    context: TableContext,
    head: State,
    operation: Operation,
    properties: Mapping[str, str],
    *,
    check: Callable[[], object] = object,
    by_name: bool = False,
) -> State:
    """Commit an operation against the version it was computed from; `commit_transaction` has the other arguments."""
    # The uuid identifies one attempt: `commit_transaction` recognises by it a commit whose response was lost.
    transaction = Transaction(
        read_version=head.number, uuid=str(uuid.uuid4()), operation=operation, properties=properties
    )
    return commit_transaction(context.versions, head.branch, transaction, base=head, check=check, by_name=by_name)


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """The live rows that a predicate selects.

    Attributes:
        whole: The ids of fragments of which it selects every row.
        offsets: The offsets of the rows in other fragments, by fragment id.
        count: The number of rows.
    """

    whole: tuple[int, ...]
    offsets: Mapping[int, BitMap]
    count: int


def matching(context: TableContext, head: State, predicate: str) -> SelectedRows:
    """Find the rows that a predicate selects; only fragments whose metadata does not tell are searched.

    Raises:
        InvalidInputError: The predicate is invalid, or names a column that does not exist.
    """
    check_string("the predicate", predicate)
    matches = context.known_matches(head, predicate)
    if matches is None:
        offsets = matching_offsets(context.dataset(head), predicate)
        return SelectedRows((), offsets, sum(map(len, offsets.values())))
    if matches.possible:
        offsets = matching_offsets(context.dataset(head, matches.possible), predicate, matches.possible)
    else:
        # For the error that a search would raise.
        evaluate_predicate(predicate, pa.Table.from_batches([], head.schema))
        offsets = {}
    rows = sum(_fragment_of(head, number).rows for number in matches.whole)
    return SelectedRows(matches.whole, offsets, rows + sum(map(len, offsets.values())))


def taken_out(context: TableContext, head: State, rows: Mapping[int, BitMap], whole: Sequence[int] = ()) -> Removal:
    """Store the deletion vectors that remove rows from their fragments.

    Args:
        context: The table.
        head: The version in which the rows were found.
        rows: Offsets of live rows by fragment id.
        whole: The ids of fragments of which every row is removed.
    """
    removed: list[int] = [*whole]
    updated: list[Fragment] = []
    for number, offsets in rows.items():
        fragment = _fragment_of(head, number)
        if len(offsets) == fragment.rows:
            # A fragment without live rows is removed, so that no reader opens its files.
            removed.append(number)
        else:
            # A fragment has at most one deletion file, so the new one repeats the earlier deletions.
            deleted = deleted_offsets(context.versions, head, fragment) | offsets
            updated.append(with_deleted(context.versions, head, fragment, deleted))
    return Removal(tuple(removed), tuple(updated))


def moved_in(context: TableContext, head: State, staged: StagedFiles, addresses: Addresses) -> tuple[Fragment, ...]:
    """Describe staged files as fragments whose leading rows were moved there from other fragments.

    Args:
        context: The table.
        head: The version in which the rows were found.
        staged: The staged files; new rows may follow the moved ones.
        addresses: The former addresses of the moved rows, in the order in which they were written.
    """
    fragments = fragments_of(context, staged, head.manifest.fields, head)
    if not head.manifest.stable_row_ids or not len(addresses):
        return fragments
    ids, created = _lineage(head, addresses)
    with_lineage: list[Fragment] = []
    start = 0
    for fragment in fragments:
        part = slice(start, start + fragment.physical_rows)
        start += fragment.physical_rows
        if len(ids[part]):
            # Only the leading rows carry ids, as in the fragments of pylance's merge_insert; the commit assigns ids
            # to the remaining rows of the fragment.
            with_lineage.append(
                replace(fragment, row_ids=encode_row_ids(ids[part]), created_at=encode_versions(created[part]))
            )
        else:
            with_lineage.append(fragment)
    return tuple(with_lineage)


def _lineage(head: State, addresses: Addresses) -> tuple[Addresses, Addresses]:
    """Return the row ids at some addresses and the versions at which these rows were created."""
    ids, created = np.empty_like(addresses), np.empty_like(addresses)
    for number, places in group_by_fragment(addresses):
        fragment, where = _fragment_of(head, number), f"fragment {number} of {head}"
        offsets = row_offsets(addresses[places]).astype(np.uint64)
        # Only the ids at these offsets are decoded: a fragment may have a hundred million rows, and only one may
        # change.
        ids[places] = decode_row_runs(fragment.row_ids, fragment.physical_rows, where).at_positions(offsets)
        created[places] = decode_version_runs(fragment.created_at, fragment.physical_rows, where).at_positions(offsets)
    return ids, created


def _fragment_of(head: State, number: int) -> Fragment:
    fragment = head.manifest.fragments.find(number)
    if fragment is None:
        raise CorruptFileError(str(head), f"a reader finds a fragment {number} that its manifest does not have")
    return fragment


def field_ids(fields: Sequence[Field], columns: Sequence[str]) -> tuple[int, ...]:
    """Return the field ids of some columns and of the fields nested in them."""
    ids = {item.id for item in fields if item.parent_id < 0 and item.name in columns}
    for item in fields:
        # One pass is enough, because a manifest lists fields depth first: a parent comes before its children.
        if item.parent_id in ids:
            ids.add(item.id)
    return tuple(item.id for item in fields if item.id in ids)


def refuse_blobs(head: State, verb: str) -> None:
    """Refuse to rewrite rows with blobs, because blobs are stored in separate files beside the data files.

    Raises:
        InvalidInputError: The table has a blob column.
    """
    for column in head.manifest.fields:
        if column.holds_blobs:
            raise InvalidInputError(
                f"cannot {verb} rows of {head}: column {column.name!r} holds blobs, which are not rewritten here; "
                "delete and append the rows, or change them with pylance"
            )


def refuse_nested_blobs(head: State, verb: str) -> None:
    """Refuse to rewrite rows with blobs in a nested field, where pylance cannot read them as bytes.

    Raises:
        InvalidInputError: The table has a blob field inside another column.
    """
    for column in head.manifest.fields:
        if column.parent_id >= 0 and column.extension_name.startswith(BLOB_EXTENSIONS):
            raise InvalidInputError(
                f"cannot {verb} rows of {head}: {column.name!r} holds blobs inside another column; delete and append "
                "the rows, or change them with pylance"
            )


Rows = pa.Table | pa.RecordBatch | pa.RecordBatchReader | StagedFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """The branch of a commit, and the message, properties and partition keys recorded with it."""

    branch: str = layout.MAIN
    message: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Validate the message and the properties.

        Raises:
            InvalidInputError: The message or a property is not a string.
        """
        # protobuf would raise an obscure error only after the data files were written.
        if self.message is not None or self.properties != {}:
            validate_commit_info(self.message, self.properties)

    @classmethod
    def of(
        cls,
        branch: str,
        message: str | None,
        properties: Mapping[str, str] | None,
        partitions: Sequence[str] = (),
    ) -> "CommitInfo":
        """Build the commit info from the arguments of a writing method.

        Raises:
            InvalidInputError: An argument is not a string, a mapping of strings or a list of strings as required.
        """
        keys = () if isinstance(partitions, tuple) and not partitions else string_list("partitions", partitions, "tue")
        return cls(branch=branch, message=message, properties=properties or {}, partitions=keys)

    def as_properties(
        self, mode: ClaimMode | None = None, predicate: str | None = None, *, on: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return the transaction properties: the caller's properties, the message, and the claim if a mode is given.

        Args:
            mode: The kind of write that is claimed, such as `APPEND`; None for an edit that claims no rows.
            predicate: The predicate of the rows that the write replaces or adds.
            on: The key columns of an upsert.
        """
        properties = dict(self.properties)
        if mode is not None:
            claim = Claim(
                mode=mode,
                predicate=predicate,
                partitions=tuple(self.partitions),
                partitioning=self.properties.get(PARTITIONING, "") if self.partitions else "",
                on=tuple(on),
            )
            properties[CLAIMS] = encode_claims([claim])
        if self.message is not None:
            properties[COMMIT_MESSAGE] = self.message
        return properties


def target(context: TableContext, schema: pa.Schema, head: State, base: str | None = None) -> WriteTarget:
    """Return the write target for data files: the table's data folder, or the folder of a named base path."""
    # Branches share the data folder of the root, so a merge copies no file.
    place = None if base is None else destination(context, head, base)
    if place is None:
        # pylance would follow a link, and write into another table.
        context.store.refuse_links(layout.DATA)
    options = context.storage_options if place is None else options_of(context, place)
    return WriteTarget(
        data_uri=f"{context.uri}/{layout.DATA}" if place is None else data_folder(place),
        schema=schema,
        # Columns that once mattered for searches have ranges from then on.
        ranged=tuple(name for name in columns_with_ranges(head.manifest) if name in schema.names),
        file_version=head.manifest.file_version,
        prefix=uuid.uuid4().hex[:12],
        storage_options=options,
        base=None if place is None else place.path,
        records_digests=context.records_digests if place is None else records_digests(options),
    )


def fragments_of(
    context: TableContext, staged: StagedFiles, fields: Sequence[Field], head: State
) -> tuple[Fragment, ...]:
    """Return the fragments that describe staged files, with the base id of their place on the branch of a version.

    Args:
        context: The table.
        staged: The files.
        fields: The fields of their columns.
        head: The version that the fragments are committed on.
    """
    fragments = staged_fragments(staged, fields, head.manifest.file_version)
    if staged.base is None:
        return with_root_base(fragments, head.manifest, context.uri)
    return placed(context, fragments, head, staged.base)


def scoped(fragments: Iterable[Fragment], scope: str | None) -> tuple[Fragment, ...]:
    """Return new fragments whose rows were written for a scope, such as a partition; None where it is unknown."""
    return tuple(
        replace(fragment, ranges=with_scope(fragment.ranges, fragment.files[0].path, scope)) for fragment in fragments
    )


def stored_row_bytes(head: State) -> int:
    """Return about how many bytes a row takes in the data files of a version; 0 when it has none."""
    # The newest fragments suffice for an estimate, and a manifest may have very many.
    newest = head.manifest.fragments[-8:]
    rows = sum(fragment.physical_rows for fragment in newest)
    return sum(file.size for fragment in newest for file in fragment.files) // rows if rows else 0


def stage(context: TableContext, rows: Rows, branch: str, base: str | None) -> StagedFiles:
    """Write rows to data files that no version names yet.

    Raises:
        InvalidInputError: The rows are staged already, or are not Arrow rows.
        SchemaMismatchError: The rows do not fit the schema of the branch.
    """
    check_rows(rows)
    if isinstance(rows, StagedFiles):
        raise InvalidInputError("these files are staged already; give them to append, overwrite or replace_where")
    head = context.head(branch)
    schema = head.schema
    return _staged(context, rows, schema, head, where=target(context, schema, head, base))


def append(context: TableContext, rows: Rows, info: CommitInfo, replaces: Version | None) -> Written:
    """Append rows in one commit.

    Args:
        context: The table.
        rows: The rows, or staged files.
        info: The branch and the commit info.
        replaces: A version made by an earlier attempt of the same work; the same commit removes the rows it added.
    """
    check_rows(rows)
    if replaces is not None:
        check_class("replaces", replaces, Version, "the result of an earlier append")
    # A stream can be read only once, and an attempt that may be in vain would read it.
    if replaces is None and not isinstance(rows, pa.RecordBatchReader):
        start = _start_of_append(context, info.branch)
        with suppress(InvalidInputError, CommitConflictError, RefNotFoundError, VersionNotFoundError):
            if start is not None:
                return _append_to(context, rows, info, start)
    unstaged = rows

    def attempt() -> Written:
        nonlocal unstaged
        head = context.head(info.branch)
        # The staged files replace the rows: a retry commits the same files, and a stream can be read only once.
        unstaged = staged = _staged_for_append(context, unstaged, head)
        added = scoped(fragments_of(context, staged, head.manifest.fields, head), _scope(info))
        operation: Operation = Append(fragments=added)
        deleted, replaced_ids = 0, tuple[int, ...]()
        if replaces is not None:
            replaced_ids = _left_of(context, replaces, head)
            deleted = sum(
                own.rows for number in replaced_ids if (own := head.manifest.fragments.find(number)) is not None
            )
            # One Update removes the earlier rows and adds the new ones, so no reader sees both or neither.
            operation = Update(removed_fragment_ids=replaced_ids, new_fragments=added)
        if isinstance(rows, StagedFiles):
            refuse_repeated(head, added, replaced_ids)
        state = submit(context, head, operation, info.as_properties(APPEND))
        return Written(state=state, added=_rows_in(added), deleted=deleted)

    return retried(attempt)


@dataclass(frozen=True, slots=True)
class _StartOfAppend:
    """The version that an append writes its rows for before it asks for the head.

    Attributes:
        state: The version.
        in_memory: Whether it was read before the append began, so that it may be gone.
        may_be_older: Whether others may have committed between it and the beginning of the append.
    """

    state: State
    in_memory: bool
    may_be_older: bool


def _start_of_append(context: TableContext, branch: str) -> _StartOfAppend | None:
    """Return the version of a branch to begin with, where that saves requests to an object store."""
    versions = context.versions
    latest = versions.seen.latest(branch)
    if latest is not None:
        return _StartOfAppend(latest, in_memory=True, may_be_older=True)
    if not versions.store.ordered_listing:
        return None
    if branch == layout.MAIN:
        # It was listed when the table was opened.
        state = versions.listed()
        return None if state is None else _StartOfAppend(state, in_memory=False, may_be_older=True)
    # The file of the branch is read before the commit, when it decides; and the commit asks for the newest number, so
    # that a version in memory is the head or an older version.
    tip = versions.seen.tip(branch)
    if tip is not None:
        return _StartOfAppend(tip, in_memory=False, may_be_older=True)
    newest = versions.newest(branch) if context.refs.branches.may_have(branch) else None
    state = None if newest is None else versions.find(branch, newest)
    return None if state is None else _StartOfAppend(state, in_memory=False, may_be_older=False)


def _append_to(context: TableContext, rows: Rows, info: CommitInfo, start: _StartOfAppend) -> Written:
    """Append rows that are written for a version which may not be the head, without asking for the head first.

    As for a writer whose rows take long, the commit finds what landed meanwhile. That saves object storage a request.
    Rows mean the names of the head, since columns may have changed before the call; files were staged before it.

    Raises:
        SchemaMismatchError: The rows do not fit that version; they may fit the head.
        CommitConflictError: A version that landed since conflicts with the change, or the version is gone.
        RefNotFoundError: The branch takes no commits.
    """
    are_rows, start_state = not isinstance(rows, StagedFiles), start.state
    staged = _staged_for_append(context, rows, start_state)
    added = scoped(fragments_of(context, staged, start_state.manifest.fields, start_state), _scope(info))
    if not are_rows:
        refuse_repeated(start_state, added)

    def check() -> None:
        if start.in_memory and not context.versions.is_stored(start_state):
            # Cleaned up, or the table was deleted and made again at the same place.
            raise CommitConflictError(f"{start_state} of {context.uri} is gone", str(start_state), retryable=True)

    operation, properties = Append(fragments=added), info.as_properties(APPEND)
    by_name = are_rows and start.may_be_older
    state = submit(context, start_state, operation, properties, check=check, by_name=by_name)
    return Written(state=state, added=_rows_in(added), deleted=0)


def overwrite(context: TableContext, rows: Rows, info: CommitInfo) -> Written:
    """Replace all rows in one commit, and also the schema when the rows do not fit the present schema."""
    check_rows(rows)
    tip = (
        context.versions.seen.tip(info.branch)
        if context.store.ordered_listing and isinstance(rows, StagedFiles)
        else None
    )
    # The commit finds what landed after the version in memory, which saves object storage two requests.
    with suppress(CommitConflictError, RefNotFoundError, VersionNotFoundError):
        if tip is not None:
            return _overwrite_on(context, rows, info, tip)
    # No retry from a new head: an overwrite does not depend on the rows of the version it replaces.
    return _overwrite_on(context, rows, info, context.head(info.branch))


def _overwrite_on(context: TableContext, rows: Rows, info: CommitInfo, head: State) -> Written:
    rows_schema, table_schema = rows.schema, head.schema
    fields, metadata, schema = head.manifest.fields, head.manifest.schema_metadata, table_schema
    # Arrow rows may be cast to the present schema. Staged files are written already and must match it exactly.
    fits = _is_stored_as if isinstance(rows, StagedFiles) else _fits
    if not fits(rows_schema, table_schema):
        fields, metadata, schema = (
            fields_from_arrow(rows_schema),
            schema_metadata_from_arrow(rows_schema),
            without_views(rows_schema),
        )
        check_storable(fields, head.manifest.file_version)
    staged = _staged(context, rows, schema, head)
    added = fragments_of(context, staged, fields, head)
    # Before the commit: once the version exists, nothing may fail any more, or the caller would write it again.
    deleted = context.count_rows(head)
    operation = Overwrite(fragments=added, fields=fields, schema_metadata=metadata)
    state = submit(context, head, operation, info.as_properties(OVERWRITE))
    return Written(state=state, added=_rows_in(added), deleted=deleted)


def replace_where(context: TableContext, predicate: str, rows: Rows, info: CommitInfo) -> Written:
    """Delete the rows that match a predicate and add other rows, in one commit.

    When a concurrent commit changes the same fragments or replaces rows, the new head is searched for the predicate.

    Raises:
        InvalidInputError: The predicate is invalid, or a new row does not satisfy it.
    """
    check_rows(rows)
    unstaged = rows
    staged_here = False

    def attempt() -> Written:
        nonlocal unstaged, staged_here
        head = context.head(info.branch)
        # Before the rows: an error in the predicate is reported once, and before anything is written.
        matches = matching(context, head, predicate)
        check = None if staged_here else PredicateCheck(predicate, head.schema)
        # A concurrent commit may have changed the schema since the files were staged, so a retry checks them again. The
        # values need no second check: files of other columns or types are refused.
        unstaged = staged = _staged(context, unstaged, head.schema, head, check=check)
        staged_here = True
        out = taken_out(context, head, matches.offsets, matches.whole)
        added = scoped(fragments_of(context, staged, head.manifest.fields, head), _scope(info))
        operation = Update(removed_fragment_ids=out.removed, updated_fragments=out.updated, new_fragments=added)
        state = submit(context, head, operation, info.as_properties(REPLACE, predicate))
        return Written(state=state, added=_rows_in(added), deleted=matches.count)

    return retried(attempt)


def _scope(info: CommitInfo) -> str | None:
    # Not for a predicate alone: an edit of a few rows would keep them in a file of their own for ever.
    return scope_of(info.partitions) if info.partitions else None


def check_rows(rows: object) -> None:
    """Check that an argument is Arrow rows or staged files.

    Raises:
        InvalidInputError: It is of another type, such as a data frame.
    """
    if not isinstance(rows, Rows):
        raise InvalidInputError(
            f"cannot write a {type(rows).__module__}.{type(rows).__qualname__}; give a pyarrow.Table, RecordBatch or "
            "RecordBatchReader, such as pyarrow.Table.from_pandas(frame) or frame.to_arrow(), or staged files"
        )


def _staged(
    context: TableContext,
    rows: Rows,
    schema: pa.Schema,
    head: State,
    *,
    where: WriteTarget | None = None,
    check: PredicateCheck | None = None,
) -> StagedFiles:
    # The schema is checked before the first row is read, because a long stream would fail only at its end.
    check_schema(rows.schema, schema)
    if isinstance(rows, StagedFiles):
        if not _is_stored_as(rows.schema, schema):
            raise SchemaMismatchError(f"files were staged as {_types(rows.schema)}, the table holds {_types(schema)}")
        if not rows.is_checked:
            check_staged(context, head, rows)
        # The writer of the files may have checked each row already, and to read them all again would double the work.
        if check is not None and rows.satisfies != check.predicate:
            check.check_staged(context, head, rows)
        return rows
    batches = _batches(rows)
    if check is not None:
        # Rows in memory are checked as a whole before a file is written; the end of a stream is known only later.
        batches = check.passing(rows) if isinstance(rows, pa.RecordBatchReader) else check.passed(batches)
    where = where or target(context, schema, head)
    if check is not None:
        where = where.with_ranges(columns_in(check.predicate, schema.names))
    return StagedFiles(schema, write_files(where, batches), where.base)


def _staged_for_append(context: TableContext, rows: Rows, head: State) -> StagedFiles:
    """Stage rows in the table itself, for a commit that syncs small files with its manifest."""
    schema = head.schema
    where = replace(target(context, schema, head), synced_by_commit=True)
    return _staged(context, rows, schema, head, where=where)


def _batches(rows: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> Iterable[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    return rows.to_batches() if isinstance(rows, pa.Table) else rows


def _rows_in(added: Sequence[Fragment]) -> int:
    return sum(fragment.physical_rows for fragment in added)


def _fits(rows_schema: pa.Schema, table_schema: pa.Schema) -> bool:
    try:
        check_schema(rows_schema, table_schema)
    except SchemaMismatchError:
        return False
    return True


def _is_stored_as(staged_schema: pa.Schema, table_schema: pa.Schema) -> bool:
    """Return whether files of a staged schema can be read in the schema of the table, without a cast."""
    pairs = list(zip(staged_schema, table_schema, strict=False))
    same = len(staged_schema) == len(table_schema) and all(
        staged.name == stored.name and staged.type == stored.type for staged, stored in pairs
    )
    # Files of a non-nullable column fit a nullable one, but not the reverse: they may contain nulls.
    return same and not any(staged.nullable and not stored.nullable for staged, stored in pairs)


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema)


def _left_of(context: TableContext, earlier: Version, head: State) -> tuple[int, ...]:
    """Return the ids of the fragments that an earlier attempt added and that the head still has.

    Raises:
        InvalidInputError: The head does not descend from the earlier version.
        CommitConflictError: A later commit may have moved the rows to other fragments.
    """
    state = context.versions.load(earlier.branch, earlier.number)
    now, then = lineage_of(head, context.refs), lineage_of(state, context.refs)
    made_from = any(line.branch == earlier.branch and line.number >= earlier.number for line in now.segments)
    # A deleted branch may have had the same name and numbers, so the ids of the versions are compared too.
    if state.id != earlier.id or not made_from:
        raise InvalidInputError(f"{head} was not made from {earlier}, so rows there cannot replace its own")
    parent = context.load_recorded(RecordedVersion(earlier.parents[0])) if earlier.parents else None
    before = frozenset() if parent is None else frozenset(parent.manifest.fragments.ids)
    added = {own.id: own for own in state.manifest.fragments if own.id not in before}
    remaining = {number: own for number in added if (own := head.manifest.fragments.find(number)) is not None}
    # A fork names the same files through a base path, so fragments are compared by file names, not by equality.
    if {number: _identity(own) for number, own in remaining.items()} != {n: _identity(own) for n, own in added.items()}:
        _refuse_moved_rows(earlier, changes_since(now, then, context.versions))
    return tuple(sorted(remaining))


def _identity(fragment: Fragment) -> tuple[frozenset[str], int | None]:
    # The id of the deletion file belongs to it: a row that was updated since left a deletion behind.
    return fragment.file_names, fragment.deletion.id if fragment.deletion else None


def _refuse_moved_rows(earlier: Version, since: Sequence[Change]) -> None:
    """Refuse to replace the rows of a version that were moved to other fragments: both copies would be kept.

    Raises:
        CommitConflictError: A change since that version may have moved rows.
    """
    for change in since:
        # Appends, deletes, overwrites and replacements add or remove rows, but never move one to another fragment. An
        # upsert moves the rows that it updates. An append without partitions may stand for an update that was merged.
        brought = change.transaction and not change.transaction.properties.keys().isdisjoint((MERGE, PICKED_FROM))
        claimed = change.claims and all(
            claim.mode != UPSERT and (claim.exclusive or claim.partitions or not brought) for claim in change.claims
        )
        if claimed or change.moves_no_row or change.adds_no_copy or isinstance(change.operation, Append | Overwrite):
            continue
        raise CommitConflictError(
            f"cannot replace the rows of {earlier}: {change.author} may have moved them in {change.version}",
            change.version,
            retryable=False,
        )
