"""Transactions of pylance are decoded and encoded again."""

from dataclasses import replace
from pathlib import Path

import lance
import pytest

from lance_dagster.errors import CorruptFileError, FormatError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec import decode_manifest_file, decode_transaction, encode_transaction
from lance_dagster.format.model import BasePath, DataFile, DeletionFile, Fragment, IndexFile, IndexMetadata
from lance_dagster.format.transaction import (
    COMMIT_MESSAGE,
    Append,
    Clone,
    CompactedSstable,
    CreateIndex,
    DataOverlay,
    DataReplacement,
    Delete,
    KeyFilter,
    MapUpdate,
    Merge,
    Operation,
    Overlay,
    Overwrite,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    RewriteGroup,
    RewrittenIndex,
    Transaction,
    Update,
    UpdateBases,
    UpdateConfig,
    UpdateMemWalState,
)
from tests.format.histories import OPERATIONS, files, written
from tests.raising import raises
from tests.table_factory import entries

UUID = "0a1b2c3d-0000-4000-8000-000000000001"
FILE = DataFile(path="a.lance", fields=(0, -2), column_indices=(0, 1), major=2, minor=2, size=7, base_id=0)
FRAGMENT = Fragment(
    id=3,
    files=(FILE,),
    physical_rows=5,
    deletion=DeletionFile(kind=1, read_version=2, id=2**64 - 1, deleted_rows=1, base_id=2),
    row_ids=b"\x0a\x00",
    created_at=b"",
    updated_at=b"x",
)
INDEX = IndexMetadata(
    uuid=UUID,
    name="by_value",
    fields=(1,),
    dataset_version=4,
    bitmap=b"x",
    details=("t", b"v"),
    index_version=0,
    created_at=5,
    base_id=0,
    files=(IndexFile("page.lance", 9),),
    covering_fields=(2,),
    clustering_id=3,
    metadata={"a": "b"},
)
NAMES = {
    "create": {"Overwrite"},
    "append": {"Append", "Overwrite"},
    "delete": {"Delete", "Overwrite"},
    "update": {"Overwrite", "Update"},
    "merge_insert": {"Overwrite", "Update"},
    "schema evolution": {"Append", "Merge", "Overwrite", "Project"},
    "index": {"Append", "CreateIndex", "Overwrite"},
    "compaction": {"Delete", "Overwrite", "ReserveFragments", "Rewrite"},
    "restore": {"Delete", "Overwrite", "Restore"},
    "branches": {"Append", "Clone", "CreateIndex", "Delete", "Overwrite"},
    "configuration": {"Overwrite", "UpdateConfig"},
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_pylance_wrote_survives_decode_and_encode(tmp_path: Path, operation: str) -> None:
    """The transaction file, the inline section and what is encoded from them are equal."""
    written(tmp_path, OPERATIONS[operation], stable_row_ids=True)
    inline = [decode_manifest_file(path.read_bytes(), str(path))[1] for path in files(tmp_path, "*.manifest")]
    for path in files(tmp_path, "*.txn"):
        transaction = decode_transaction(path.read_bytes(), str(path))
        assert transaction in inline
        assert transaction == decode_transaction(encode_transaction(transaction), "again")
        assert path.name == f"{transaction.read_version}-{transaction.uuid}.txn"


@pytest.mark.parametrize("operation", NAMES)
def test_operations_are_known_by_the_names_of_the_format(tmp_path: Path, operation: str) -> None:
    """`operation_name` is pylance's name of the operation."""
    written(tmp_path, OPERATIONS[operation], stable_row_ids=False)
    found = {decode_transaction(path.read_bytes(), "t").operation_name for path in files(tmp_path, "*.txn")}
    assert NAMES[operation] == found


@pytest.mark.parametrize(
    "operation",
    [
        Append(fragments=()),
        Delete(deleted_fragment_ids=(3,), predicate="true"),
        Overwrite(fragments=(), fields=()),
        Update(removed_fragment_ids=(1, 2), fields_modified=(0,), mode=1),
        Merge(fragments=(), fields=(), preserves_nullability=True),
        Project(fields=(), preserves_nullability=True),
        Restore(version=0),
        Clone(is_shallow=True, ref_version=3, ref_path="p", ref_name="b", branch_name="c"),
        Clone(is_shallow=False, ref_version=3, ref_path="p"),
        CreateIndex(),
        CreateIndex(new_indices=(INDEX,), removed_indices=(replace(INDEX, details=None, bitmap=None),)),
        Rewrite(groups=()),
        Rewrite(
            groups=(RewriteGroup(old=(FRAGMENT,), new=(replace(FRAGMENT, id=4),)),),
            rewritten_indices=(
                RewrittenIndex(old=UUID, new=UUID, details=("t", b""), index_version=1, files=INDEX.files),
            ),
        ),
        ReserveFragments(count=0),
        Update(
            new_fragments=(FRAGMENT,),
            updated_fields=(1,),
            inserted_rows=KeyFilter(fields=(1,), hashes=(2, 3)),
            updated_offsets={1: (0, 4), 2: ()},
            updated_offset_bitmaps={3: b"x"},
            compacted_sstables=(CompactedSstable(UUID, 9),),
        ),
        Update(inserted_rows=KeyFilter(fields=(1,), bloom=(b"x", 8, 2, 0.01))),
        UpdateConfig(),
        UpdateConfig(
            config=MapUpdate(entries={"a": "b", "gone": None}),
            table_metadata=MapUpdate(entries={}, replace=True),
            schema_metadata=MapUpdate(entries={"k": ""}),
            field_metadata={2: MapUpdate(entries={"unit": "m"}, replace=True), 3: MapUpdate(entries={})},
        ),
        DataReplacement(replacements=((3, FILE),)),
        UpdateMemWalState(compacted_sstables=(CompactedSstable(UUID, 1),)),
        UpdateBases(new_bases=(BasePath(id=0, path="p", name="n"), BasePath(id=2, path="q", is_dataset_root=True))),
        DataOverlay(groups=()),
        DataOverlay(
            groups=(
                (1, (Overlay(file=FILE, committed_version=3, shared_bitmap=b"x"),)),
                (2, (Overlay(file=FILE, committed_version=3, field_bitmaps=(b"x", b"y")),)),
            )
        ),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_every_operation_survives_the_wire(operation: Operation) -> None:
    """No field of an operation is lost, and an operation with default values only keeps its kind."""
    transaction = Transaction(read_version=7, uuid="u", operation=operation, properties={"a": "b"}, tag="t")
    assert transaction == decode_transaction(encode_transaction(transaction), "t")


def test_pylance_and_the_package_read_one_message(tmp_path: Path) -> None:
    """A commit message is kept under the key that pylance uses."""
    uri = str(tmp_path / "table")
    lance.write_dataset(entries("a", 1), uri, commit_message="first load")
    (path,) = files(tmp_path, "*.txn")
    assert "first load" == decode_transaction(path.read_bytes(), "t").properties[COMMIT_MESSAGE]


def test_an_unknown_operation_is_refused() -> None:
    """An operation of unknown number is named by it."""
    data = wire.Transaction(uuid="u").SerializeToString() + b"\xa2\x07\x00"
    with raises(UnsupportedFeatureError, flags=("Transaction field 116",)):
        decode_transaction(data, "t")


def test_a_transaction_without_operation_is_refused() -> None:
    """An empty file would be a transaction without effect, which no program writes."""
    with raises(UnsupportedFeatureError, flags=("a transaction without operation",)):
        decode_transaction(b"", "t")


def test_damage_is_reported(tmp_path: Path) -> None:
    """A truncated transaction, or one with a wrong byte, is damaged or reads as another one, without a crash."""
    written(tmp_path, OPERATIONS["update"], stable_row_ids=True)
    data = next(files(tmp_path, "1-*.txn")).read_bytes()
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]
        for broken in (data[:position], damaged):
            try:
                decode_transaction(broken, "t")
            except FormatError:
                continue
    with raises(CorruptFileError, path="t"):
        decode_transaction(data[:-1], "t")
