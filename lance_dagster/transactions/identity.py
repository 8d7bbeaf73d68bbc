"""What a version holds, as one digest, whatever number, time or branch it has.

Digests that name a version: fixed for all time, so a test pins each.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.codec import decode_row_runs
from lance_dagster.format.model import Field, Fragment, Manifest
from lance_dagster.format.transaction import without_merge_records
from lance_dagster.transactions.index_updates import indices_of

_LABEL = b"lance_dagster content 1\n"
DeletedOffsets = Callable[[Sequence[Fragment]], Iterable[BitMap]]
"""Looks up the deleted offsets of fragments that have a deletion file, in their order."""


def content_id(manifest: Manifest, deleted: DeletedOffsets, path: str) -> str:
    """Return a digest of fields, rows, settings and indices, as 64 hex digits.

    Equal digests mean the same rows under the same ids in the same order. Different ones may still mean the same
    rows: files written twice are different files.

    Fragments count by their data files, whose names are random, and not by their ids, which each branch gives on its
    own. Deletion vectors count by the offsets in them: the ids in the names of deletion files would tell apart two
    sides that deleted the same rows, and a deletion taken back and made again. Row ids count as the numbers they are,
    since the same ones can be encoded in several ways. Row versions do not count, nor do records of merges: they say
    when, not what.

    Args:
        manifest: The version.
        deleted: Looks up which rows are deleted.
        path: Where the manifest lies, for messages.
    """
    digest = hashlib.sha256(_LABEL)
    for section in _sections(manifest):
        digest.update(_line(section))
    with_deletions = [fragment for fragment in manifest.fragments if fragment.deletion is not None]
    vectors = iter(deleted(with_deletions))
    for fragment in manifest.fragments:
        offsets = BitMap() if fragment.deletion is None else next(vectors)
        digest.update(_line(_described(fragment, offsets, path)))
    return digest.hexdigest()


def _sections(manifest: Manifest) -> Iterator[object]:
    yield [_field(each) for each in manifest.fields]
    yield {key: value.hex() for key, value in manifest.schema_metadata.items()}
    yield dict(manifest.config)
    yield without_merge_records(manifest.table_metadata)
    # Those that Lance keeps for itself are on no field.
    yield sorted([index.name, index.uuid, list(index.fields)] for index in indices_of(manifest) if index.fields)


def _field(field: Field) -> object:
    return [
        field.id,
        field.parent_id,
        field.name,
        field.logical_type,
        field.nullable,
        field.extension_name,
        {key: value.hex() for key, value in field.metadata.items()},
        [field.primary_key, field.primary_key_position, field.clustering_key, field.clustering_key_position],
    ]


def _described(fragment: Fragment, offsets: BitMap, path: str) -> object:
    return [
        sorted([file.path, list(file.fields)] for file in fragment.files),
        fragment.physical_rows,
        hashlib.sha256(np.array(offsets, "<u4").tobytes()).hexdigest() if offsets else None,
        None if fragment.row_ids is None else _row_ids(fragment, path),
    ]


def _row_ids(fragment: Fragment, path: str) -> str:
    """Return a digest of the runs of consecutive row ids: few where rows were never moved."""
    ids = decode_row_runs(fragment.row_ids, fragment.physical_rows, path)
    runs = np.stack([ids.at.astype("<u8"), ids.first.astype("<u8")])
    return hashlib.sha256(runs.tobytes()).hexdigest()


def _line(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


_COMMIT = b"lance_dagster commit 1\n"
COMMIT_ID = re.compile(r"[0-9a-f]{64}")
COMMIT_PREFIX = re.compile(r"[0-9a-fA-F]{8,64}")
"""What may be the beginning of a commit id. Shorter ones would soon be ambiguous, and are words too often."""


def commit_id(manifest_file: bytes) -> str:
    """Return the id of the version that the bytes of a manifest file describe.

    It is a SHA-256 over a label and the SHA-256 of the file, as 64 hex digits. A manifest file never changes, so the
    id never does. It holds the branch's name, the version's number, the time to the nanosecond and the uuid of its
    transaction, so no two versions share an id, not even those of a branch that was deleted and made again. The ids
    of the parents are left out: they would bind nothing more, since the file says what it was made from, and would
    cost reading the whole history, parts of which are cleaned up. What git's ids give beyond this, that one id vouches
    for everything before it, this one does not give. Renaming a branch gives its versions other ids: their files are
    written anew, with the new name.
    """
    return hashlib.sha256(_COMMIT + hashlib.sha256(manifest_file).digest()).hexdigest()
