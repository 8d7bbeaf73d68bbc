"""Commit upserts whose rows another program matched and wrote, such as Spark's executors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import Addresses
from lance_dagster.datafiles.writing import StagedFiles
from lance_dagster.edit.key_predicates import LISTED, has_literals
from lance_dagster.edit.upsert import submit_upsert, upsert_operation
from lance_dagster.edit.write import CommitInfo, refuse_nested_blobs
from lance_dagster.edit.write_result import Written
from lance_dagster.history.context import TableContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedUpsert:
    """Rows that were matched by key with the rows of one version, and written to files that no version names.

    Attributes:
        version: The version on its branch.
        on: The key columns.
        columns: The columns that the source has.
        updated: The files of the rows that replace those at `addresses`, in that order.
        addresses: The addresses of the rows that are updated.
        added: The files of the rows that are inserted.
        missing: The addresses of the rows that are deleted.
        claimed: The keys of the inserted rows, or values of each key column that give the same claim; see
            `claimed_values`.
        null_keys: The number of rows without a value in a key column, by column; each such row is inserted.
    """

    version: int
    on: tuple[str, ...]
    columns: tuple[str, ...]
    updated: StagedFiles
    addresses: Addresses
    added: StagedFiles
    missing: Addresses
    claimed: pa.Table
    null_keys: Mapping[str, int] = field(default_factory=dict)


def claimed_values(values: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return a few values of a key column that give the same claim as all values of the column."""
    distinct: pa.Array[Any] = values.drop_null().unique()
    if len(distinct) <= LISTED:
        return distinct
    # More values than a claim lists, so that the claim becomes the range, and the limits of the range.
    few: pa.Array[Any] = distinct.slice(0, LISTED + 1)
    if has_literals(distinct.type):
        limits: Any = pc.min_max(distinct)
        ends = pa.array([limits["min"].as_py(), limits["max"].as_py()], distinct.type)
        few = pa.concat_arrays([few, ends]).unique()
    return few


def commit_upsert(context: TableContext, staged: StagedUpsert, info: CommitInfo) -> Written:
    """Commit an upsert that was staged, or return the head when nothing changes.

    Raises:
        CommitConflictError: Another commit since the version changed one of the rows, or inserted one of the keys.
    """
    # Refuses a branch that no longer exists.
    newest = context.head(info.branch)
    head = context.at(f"{info.branch}@{staged.version}")
    removed = np.concatenate([staged.addresses, staged.missing])
    if not len(removed) and not staged.added.rows:
        return Written(state=newest)
    refuse_nested_blobs(head, "upsert")
    added = staged.added
    files = StagedFiles(added.schema, (*staged.updated.files, *added.files), added.base)
    columns = added.schema.names if added.rows else staged.columns
    operation = upsert_operation(context, head, files, staged.addresses, removed=removed, columns=columns)
    return Written(
        state=submit_upsert(context, head, operation, info, on=staged.on, added=staged.claimed if added.rows else None),
        added=added.rows,
        deleted=len(staged.missing),
        updated=len(staged.addresses),
    )
