"""The content id of a version: a digest, and versions with equal digests have equal content.

Users and tools record content ids, so the definition is fixed for all time; a test pins an example.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from pyroaring import BitMap

from lance_dagster.format.codec import decode_row_runs
from lance_dagster.format.model import Field, Fragment, Manifest
from lance_dagster.format.transaction import without_merge_records
from lance_dagster.transactions.index_updates import indices_of

_LABEL = b"lance_dagster content 1\n"
DeletedOffsets = Callable[[Sequence[Fragment]], Iterable[BitMap]]
"""Reads the deleted offsets of fragments that have a deletion file, in their order."""


def content_id(manifest: Manifest, deleted: DeletedOffsets, path: str) -> str:
    """Return a digest of schema, rows, configuration and indices, as 64 hexadecimal digits.

    Equal digests imply the same rows under the same row ids in the same order. The converse does not hold: rows that
    were written twice are in different data files.

    Fragments enter with their data files, whose names are random, and not with their ids, which each branch assigns on
    its own. Deletion vectors enter with their offsets: ids of deletion files would distinguish branches that deleted
    the same rows. Row ids enter decoded, because one sequence has several encodings. Row versions and merge records are
    left out: they say when content was made, not what it is.

    Args:
        manifest: The version.
        deleted: Reads deletion vectors.
        path: The path of the manifest, for messages.
    """
    digest = hashlib.sha256(_LABEL)
    for section in _sections(manifest):
        digest.update(_line(section))
    # All deletion vectors are requested in one call, so that they can be read in parallel.
    with_deletions = [fragment for fragment in manifest.fragments if fragment.deletion is not None]
    vectors = iter(deleted(with_deletions))
    for fragment in manifest.fragments:
        offsets = BitMap() if fragment.deletion is None else next(vectors)
        digest.update(_line(_described(fragment, offsets, path)))
    return digest.hexdigest()


def _sections(manifest: Manifest) -> Iterator[object]:
    yield [_field(field) for field in manifest.fields]
    yield {key: value.hex() for key, value in manifest.schema_metadata.items()}
    yield dict(manifest.config)
    yield without_merge_records(manifest.table_metadata)
    # System indices of Lance have no fields, and are not content.
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
