"""Transactions of pylance, read and written again."""

from pathlib import Path

import lance
import pytest

from lance_dagster.errors import CorruptFileError, FormatError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec import decode_manifest_file, decode_transaction, encode_transaction
from lance_dagster.format.transaction import (
    MESSAGE,
    Append,
    Clone,
    Delete,
    Merge,
    OtherOperation,
    Overwrite,
    Project,
    Restore,
    Transaction,
    Update,
)
from tests.format.histories import OPERATIONS, files, written
from tests.ledger import entries

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
    """The transaction file, the inline section and what is encoded from them say the same."""
    written(tmp_path, OPERATIONS[operation], stable_row_ids=True)
    inline = [decode_manifest_file(path.read_bytes(), str(path))[1] for path in files(tmp_path, "*.manifest")]
    for path in files(tmp_path, "*.txn"):
        transaction = decode_transaction(path.read_bytes(), str(path))
        assert transaction in inline
        assert transaction == decode_transaction(encode_transaction(transaction), "again")
        assert path.name == transaction.file_name


@pytest.mark.parametrize("operation", NAMES)
def test_operations_are_known_by_the_names_of_the_format(tmp_path: Path, operation: str) -> None:
    """`operation_name` is what pylance calls the operation."""
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
        *(
            OtherOperation(name=name, body=b"")
            for name in ("CreateIndex", "Rewrite", "UpdateMemWalState", "UpdateBases", "DataOverlay")
        ),
    ],
    ids=lambda operation: getattr(operation, "name", type(operation).__name__),
)
def test_an_empty_operation_is_still_that_operation(operation: Append) -> None:
    """An operation whose fields are all defaults is not lost on the wire."""
    transaction = Transaction(read_version=7, uuid="u", operation=operation, properties={"a": "b"}, tag="t")
    assert transaction == decode_transaction(encode_transaction(transaction), "t")


def test_the_message_of_pylance_is_ours(tmp_path: Path) -> None:
    """A commit message is kept under the key that pylance uses."""
    uri = str(tmp_path / "table")
    lance.write_dataset(entries("a", 1), uri, commit_message="first load")
    (path,) = files(tmp_path, "*.txn")
    assert "first load" == decode_transaction(path.read_bytes(), "t").properties[MESSAGE]


def test_an_unknown_operation_is_refused() -> None:
    """An operation that is not even known by number is named by it."""
    data = wire.Transaction(uuid="u").SerializeToString() + b"\xa2\x07\x00"
    with pytest.raises(UnsupportedFeatureError, match="Transaction field 116"):
        decode_transaction(data, "t")


def test_a_transaction_without_operation_is_refused() -> None:
    """An empty file is a transaction that does nothing, which nobody writes."""
    with pytest.raises(UnsupportedFeatureError, match="a transaction without operation"):
        decode_transaction(b"", "t")


def test_damage_is_reported(tmp_path: Path) -> None:
    """A transaction that is cut off, or has a wrong byte, is damaged, or reads as another: it never crashes."""
    written(tmp_path, OPERATIONS["update"], stable_row_ids=True)
    data = next(files(tmp_path, "1-*.txn")).read_bytes()
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]
        for broken in (data[:position], damaged):
            try:
                decode_transaction(broken, "t")
            except FormatError:
                continue
    with pytest.raises(CorruptFileError, match=r"^t is damaged: "):
        decode_transaction(data[:-1], "t")
