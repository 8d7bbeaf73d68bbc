"""What changes the content id of a manifest, and what does not."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from pyroaring import BitMap

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import encode_row_ids, row_id_range
from lance_dagster.format.model import (
    BasePath,
    DataFile,
    DeletionFile,
    Field,
    Fragment,
    Fragments,
    Manifest,
    WriterVersion,
)
from lance_dagster.transactions.content_id import content_id
from tests.raising import raises

DELETED = {7: BitMap([1, 3]), 8: BitMap([1, 3]), 9: BitMap([1])}
FILE = DataFile(path="a.lance", fields=(0, 1), column_indices=(0, 1), major=2, minor=1, size=100)
FIRST = Fragment(id=0, files=(FILE,), physical_rows=10, row_ids=row_id_range(0, 10))
SECOND = Fragment(
    id=1,
    files=(replace(FILE, path="b.lance"), replace(FILE, path="c.lance", fields=(2,))),
    physical_rows=5,
    row_ids=row_id_range(10, 5),
    deletion=DeletionFile(kind=0, read_version=3, id=7, deleted_rows=2),
)
MANIFEST = Manifest(
    version=4,
    fields=(Field(id=0, name="key", logical_type="string"), Field(id=1, name="value", logical_type="int64")),
    fragments=Fragments([FIRST, SECOND]),
    config={"a": "1", "b": "2"},
    table_metadata={"owner": "ann"},
    schema_metadata={"unit": b"m\xff"},
)


def deleted(fragments: Sequence[Fragment]) -> Iterable[BitMap]:
    """The deletion vectors by the id of the deletion file."""
    return [DELETED[fragment.deletion.id] for fragment in fragments if fragment.deletion]


def content(manifest: Manifest) -> str:
    """The content id."""
    return content_id(manifest, deleted, "here")


def with_second(**changes: object) -> Manifest:
    """The manifest with another second fragment."""
    return replace(MANIFEST, fragments=Fragments([FIRST, replace(SECOND, **changes)]))  # type: ignore[arg-type]


def test_a_content_id_is_the_same_for_ever() -> None:
    """The value is compared across processes and releases, so it must not change."""
    assert "913f3c8dc0d0c4c6b50b0b61b62226959334bf8822e746d5bf1f77d6ed6d99a4" == content(MANIFEST)


@pytest.mark.parametrize(
    "same",
    [
        replace(MANIFEST, version=9, timestamp=1, transaction_file="x.txn", branch="run/1", tag="x"),
        replace(MANIFEST, writer=WriterVersion(library="x", version="1.0.0"), next_row_id=99, max_fragment_id=99),
        replace(MANIFEST, base_paths=(BasePath(id=1, path="/elsewhere"),), reader_flags=16, writer_flags=16),
        replace(MANIFEST, config={"b": "2", "a": "1"}),
        replace(MANIFEST, table_metadata={"owner": "ann", "lance_dagster.merged.0a": "3@4"}),
        replace(MANIFEST, table_metadata={"owner": "ann", "lance_dagster.squashed.0a": "run/1@4"}),
        replace(MANIFEST, fragments=Fragments([replace(FIRST, id=5), replace(SECOND, id=3)])),
        with_second(files=tuple(replace(file, base_id=1) for file in SECOND.files[::-1])),
        with_second(deletion=DeletionFile(kind=1, read_version=9, id=8, deleted_rows=2, base_id=1)),
        with_second(created_at=b"\x01", updated_at=b"\x02"),
        with_second(row_ids=row_id_range(10, 2) + row_id_range(12, 3)),
    ],
    ids=[
        "number",
        "allocation",
        "bases",
        "order",
        "merge",
        "squash",
        "ids",
        "places",
        "vector",
        "row versions",
        "encoding",
    ],
)
def test_what_says_when_or_where_does_not_count(same: Manifest) -> None:
    """Numbers, times, names of branches, ids of fragments, places of files and encodings do not count."""
    assert content(MANIFEST) == content(same)


@pytest.mark.parametrize(
    "other",
    [
        replace(MANIFEST, fields=MANIFEST.fields[:1]),
        replace(MANIFEST, fields=(MANIFEST.fields[0], replace(MANIFEST.fields[1], id=2))),
        replace(MANIFEST, fields=(MANIFEST.fields[0], replace(MANIFEST.fields[1], name="worth"))),
        replace(MANIFEST, fields=(MANIFEST.fields[0], replace(MANIFEST.fields[1], nullable=False))),
        replace(MANIFEST, fields=(MANIFEST.fields[0], replace(MANIFEST.fields[1], metadata={"unit": b"m"}))),
        replace(MANIFEST, schema_metadata={}),
        replace(MANIFEST, config={"a": "1"}),
        replace(MANIFEST, config={"a": "1", "b": "3"}),
        replace(MANIFEST, table_metadata={"owner": "bob"}),
        replace(MANIFEST, fragments=Fragments([FIRST])),
        replace(MANIFEST, fragments=Fragments([SECOND, FIRST])),
        with_second(files=SECOND.files[:1]),
        with_second(files=(SECOND.files[0], replace(SECOND.files[1], fields=(3,)))),
        with_second(deletion=None),
        with_second(deletion=DeletionFile(kind=0, read_version=3, id=9, deleted_rows=1)),
        with_second(row_ids=row_id_range(11, 5)),
        with_second(row_ids=encode_row_ids(np.array([14, 13, 12, 11, 10], np.uint64))),
        with_second(row_ids=None),
    ],
)
def test_what_a_reader_could_tell_counts(other: Manifest) -> None:
    """Columns, settings, rows, their order and their ids count."""
    assert content(MANIFEST) != content(other)


def test_a_damaged_sequence_of_row_ids_is_named() -> None:
    """The damage is an error, not another content."""
    with raises(CorruptFileError, path="here"):
        content(with_second(row_ids=row_id_range(10, 4)))
