"""Manifest files of pylance are decoded and encoded again."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lance
import pytest
from google.protobuf.message import Message

from lance_dagster.errors import CorruptFileError, FormatError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec import (
    decode_indices,
    decode_manifest_file,
    encode_indices,
    encode_manifest_file,
    encode_transaction,
    rebase_index_section,
)
from lance_dagster.format.model import Flag, Fragments
from tests.format.codec.framing import bare_message_of, changed, framed, message_of
from tests.format.histories import OPERATIONS, files, spilled, written
from tests.raising import raises

every_operation = pytest.mark.parametrize("operation", OPERATIONS)
both_kinds_of_row_ids = pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
UNKNOWN_FIELD = b"\xfa\x7f\x01x"
"""The bytes of field 2047 with a value of one byte."""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A manifest with a deletion file, an index and an inline transaction."""
    folder = tmp_path_factory.mktemp("manifest")

    def prepare(dataset: lance.LanceDataset) -> None:
        dataset.create_scalar_index("value", "BTREE")
        dataset.delete("value = 3")

    written(folder, prepare, stable_row_ids=True)
    return next(files(folder, "*.manifest")).read_bytes()


@every_operation
@both_kinds_of_row_ids
def test_what_pylance_wrote_survives_decode_and_encode(tmp_path: Path, operation: str, *, stable: bool) -> None:
    """All fields of all manifests are kept, also in the inline transaction."""
    written(tmp_path, OPERATIONS[operation], stable_row_ids=stable)
    for path in files(tmp_path, "*.manifest"):
        data = path.read_bytes()
        manifest, transaction = decode_manifest_file(data, str(path))
        assert transaction is not None
        looked_at = replace(manifest, fragments=Fragments(list(manifest.fragments)))
        for again in (
            encode_manifest_file(manifest, encode_transaction(transaction)),
            encode_manifest_file(looked_at, encode_transaction(transaction)),
        ):
            assert bare_message_of(data) == bare_message_of(again)
            assert (manifest, transaction) == decode_manifest_file(again, str(path))


@every_operation
@both_kinds_of_row_ids
def test_what_pylance_says_about_indices_survives(tmp_path: Path, operation: str, *, stable: bool) -> None:
    """All fields of all kinds of index are kept."""
    written(tmp_path, OPERATIONS[operation], stable_row_ids=stable)
    for path in files(tmp_path, "*.manifest"):
        section = decode_manifest_file(path.read_bytes(), str(path))[0].index_section
        indices = decode_indices(section, str(path))
        again = encode_indices(indices)
        assert indices == decode_indices(again, str(path))
        assert wire.IndexSection.FromString(section or b"") == wire.IndexSection.FromString(again or b"")


def test_row_lineage_in_files_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    """Earlier versions can be read; the error names the flag or the fragment's field."""
    written(tmp_path, spilled, stable_row_ids=True)
    first, *others = files(tmp_path, "*.manifest")
    with raises(UnsupportedFeatureError, flags=("feature flag 2048",)):
        decode_manifest_file(first.read_bytes(), str(first))
    for path in others:
        decode_manifest_file(path.read_bytes(), str(path))
    data = changed(first.read_bytes(), lambda message: _without_flags(message, 2048))
    with raises(UnsupportedFeatureError, flags=("spilled row lineage",)):
        list(decode_manifest_file(data, "m")[0].fragments)


def test_field_ids_that_are_not_given_twice_are_refused_by_name(manifest: bytes) -> None:
    """The flag of tables that count field ids is refused, because the package does not count them."""
    data = changed(manifest, lambda message: setattr(message, "writer_feature_flags", 32768))
    with raises(UnsupportedFeatureError, flags=("feature flag 32768",)):
        decode_manifest_file(data, "m")


def _without_flags(message: wire.Manifest, flags: int) -> None:
    message.reader_feature_flags &= ~flags
    message.writer_feature_flags &= ~flags


@every_operation
def test_pylance_reads_what_was_encoded_again(tmp_path: Path, operation: str) -> None:
    """A table whose manifests the package encoded again has the same rows, columns and indices."""
    before = written(tmp_path / "pylance", OPERATIONS[operation], stable_row_ids=True)
    uri = tmp_path / "package"
    shutil.copytree(before.uri, uri)
    for path in files(uri, "*.manifest"):
        manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
        assert transaction is not None
        path.write_bytes(encode_manifest_file(manifest, encode_transaction(transaction)))
    after = lance.dataset(uri)
    after.validate()
    assert before.schema == after.schema
    assert before.to_table(with_row_id=True) == after.to_table(with_row_id=True)
    assert before.describe_indices() is not None
    assert [index.name for index in before.describe_indices()] == [index.name for index in after.describe_indices()]
    assert before.config() == after.config()


@pytest.mark.parametrize("bit", range(64))
def test_a_flag_is_known_or_refused_by_its_bit(manifest: bytes, bit: int) -> None:
    """A table with an unknown feature is refused, and the error has the number of its flag."""
    for name in ("reader_feature_flags", "writer_feature_flags"):
        data = changed(manifest, lambda message, name=name: setattr(message, name, 1 << bit))  # type: ignore[misc]
        if 1 << bit in list(Flag):
            decode_manifest_file(data, "m")
            continue
        with pytest.raises(UnsupportedFeatureError) as caught:
            decode_manifest_file(data, "m")
        assert (f"feature flag {1 << bit}",) == caught.value.flags


@pytest.mark.parametrize(
    "part,named",
    [
        (lambda message: message, "Manifest"),
        (lambda message: message.fields[0], "Field"),
        (lambda message: message.base_paths.add(), "BasePath"),
        (lambda message: message.writer_version, "WriterVersion"),
        (lambda message: message.data_format, "DataStorageFormat"),
    ],
)
def test_an_unknown_field_is_refused(manifest: bytes, part: Callable[[wire.Manifest], Message], named: str) -> None:
    """A field that a newer writer added, in any message, would be lost in the next commit."""
    data = changed(manifest, lambda message: part(message).MergeFromString(UNKNOWN_FIELD))
    with pytest.raises(UnsupportedFeatureError, match=f"{named} field 2047"):
        decode_manifest_file(data, "m")


@pytest.mark.parametrize(
    "change,said",
    [
        (lambda message: setattr(message, "fragment_tree", b"x"), "fragment tree"),
        (lambda message: setattr(message, "max_clustering_id", 0), "clustering"),
        (lambda message: message.clustering.add(), "clustering"),
        (lambda message: setattr(message.data_format, "file_format", "parquet"), "data file format 'parquet'"),
    ],
)
def test_what_is_known_and_not_supported_is_refused(
    manifest: bytes, change: Callable[[wire.Manifest], object], said: str
) -> None:
    """A known field that needs code of its own has its own error."""
    with pytest.raises(UnsupportedFeatureError) as caught:
        decode_manifest_file(changed(manifest, change), "m")
    assert said in caught.value.flags


@pytest.mark.parametrize(
    "change,said",
    [
        (lambda message: message.MergeFromString(UNKNOWN_FIELD), "DataFragment field 2047"),
        (lambda message: message.files[0].MergeFromString(UNKNOWN_FIELD), "DataFile field 2047"),
        (lambda message: message.deletion_file.MergeFromString(UNKNOWN_FIELD), "DeletionFile field 2047"),
        (lambda message: message.overlays.add(), "data overlay files"),
        (lambda message: message.spilled_row_ids.SetInParent(), "spilled row lineage"),
        (lambda message: message.metadata.update({"a": "b"}), "fragment clustering or metadata"),
    ],
)
def test_a_fragment_with_something_unknown_is_kept_and_not_changed(
    manifest: bytes, change: Callable[[wire.DataFragment], object], said: str
) -> None:
    """Another commit writes the same bytes; reading the fragment is an error that names the unknown field."""

    def to_first_fragment(message: wire.Manifest) -> None:
        fragment = wire.DataFragment.FromString(message.fragments[0])
        change(fragment)
        message.fragments[0] = fragment.SerializeToString()

    data = changed(manifest, to_first_fragment)
    found, _ = decode_manifest_file(data, "m")
    before, transaction = decode_manifest_file(manifest, "m")
    assert transaction is not None
    assert before.rows == found.rows
    again, _ = decode_manifest_file(encode_manifest_file(found, encode_transaction(transaction)), "m")
    assert found.fragments.items == again.fragments.items
    with pytest.raises(UnsupportedFeatureError, match=said):
        list(found.fragments)


def test_two_fragments_of_one_id_are_damage(manifest: bytes) -> None:
    """Changes identify fragments by id."""
    data = changed(manifest, lambda message: message.fragments.append(message.fragments[1]))
    with pytest.raises(CorruptFileError, match="two of its fragments"):
        _ = decode_manifest_file(data, "m")[0].rows


def test_more_rows_deleted_than_there_are_is_damage(manifest: bytes) -> None:
    """A negative count would not be noticed in a sum."""

    def delete_too_many(message: wire.Manifest) -> None:
        fragment = wire.DataFragment.FromString(message.fragments[0])
        fragment.deletion_file.num_deleted_rows = 6
        message.fragments[0] = fragment.SerializeToString()

    with pytest.raises(CorruptFileError, match="more rows deleted"):
        _ = decode_manifest_file(changed(manifest, delete_too_many), "m")[0].rows


def test_a_manifest_cut_off_anywhere_is_damaged(manifest: bytes) -> None:
    """No prefix of a manifest is valid, and the error names the file."""
    for length in range(len(manifest)):
        with raises(CorruptFileError, path="table/1.manifest"):
            decode_manifest_file(manifest[:length], "table/1.manifest")


def test_a_damaged_byte_never_crashes(manifest: bytes) -> None:
    """With any wrong byte, the result is a manifest or an error of this package."""
    for position in range(len(manifest)):
        damaged = bytearray(manifest)
        damaged[position] ^= 0xFF
        try:
            decode_manifest_file(bytes(damaged), "m")
        except FormatError:
            continue


def test_the_section_of_older_writers_is_read(manifest: bytes) -> None:
    """A transaction that field 21 refers to is found, and written under field 23."""
    message = message_of(manifest)
    message.transaction_section_deprecated = message.transaction_section
    message.ClearField("transaction_section")
    (position,) = (int.from_bytes(manifest[-16:-8], "little"),)
    body = message.SerializeToString()
    moved = manifest[:position] + len(body).to_bytes(4, "little") + body + manifest[-16:]
    decoded, transaction = decode_manifest_file(moved, "m")
    assert transaction is not None
    assert "Delete" == transaction.operation_name
    again = message_of(encode_manifest_file(decoded, encode_transaction(transaction)))
    assert (True, False) == (again.HasField("transaction_section"), again.HasField("transaction_section_deprecated"))


@pytest.mark.parametrize(
    "change,storage_format",
    [
        (lambda message: message.ClearField("data_format"), ""),
        (lambda message: message.data_format.ClearField("version"), "lance"),
    ],
    ids=["no storage format", "an empty version"],
)
def test_an_empty_storage_format_is_never_written(
    manifest: bytes, change: Callable[[wire.Manifest], object], storage_format: str
) -> None:
    """The manifests of old releases have none; with an empty version, no release of pylance could read the table."""
    found, _ = decode_manifest_file(changed(manifest, change), "m")
    assert (storage_format, "") == (found.file_format, found.file_version)
    assert not message_of(encode_manifest_file(found, b"")).HasField("data_format")


def test_a_manifest_without_sections_has_none(manifest: bytes) -> None:
    """The offset 0 is legal, so a missing section is not mistaken for one at the start of the file."""
    decoded, transaction = decode_manifest_file(framed(bare_message_of(manifest).SerializeToString()), "m")
    assert (None, None) == (decoded.index_section, transaction)


def test_inherited_indices_get_a_base_once(manifest: bytes) -> None:
    """An index without a base gets the given one, and an index with a base keeps it."""
    section = decode_manifest_file(manifest, "m")[0].index_section
    assert section is not None
    first = rebase_index_section(section, 3, "m")
    assert [3] == [index.base_id for index in wire.IndexSection.FromString(first).indices]
    assert first == rebase_index_section(first, 4, "m")
