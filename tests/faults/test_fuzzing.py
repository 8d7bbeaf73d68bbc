"""Random bytes in place of every kind of file that this package decodes: an error that names the file, or a value.

`test_corrupt` makes damage that was thought of. Here Hypothesis edits valid files at random places, several times each,
and invents files.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping

import lance
import pytest
from hypothesis import given, settings, strategies as st

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.errors import FormatError
from lance_dagster.format.codec import (
    check_readable,
    decode_indices,
    decode_manifest_file,
    decode_row_runs,
    decode_shape,
    decode_transaction,
    decode_transaction_of,
    decode_version_runs,
    encode_row_runs,
    encode_transaction,
    encode_version_runs,
    summarize_manifest,
)
from lance_dagster.format.deletions import ARROW_FILE, BITMAP_FILE, decode_offsets
from lance_dagster.history.refs.ref_files import parse_branch, parse_tag
from lance_dagster.repository.commits.snapshot import parse_commit, parse_entry
from tests.faults.probe_process import rows
from tests.soak import examples

PATH = "folder/file"
ROWS = 100
Decoder = Callable[[bytes], object]
# What an edit puts at a place, and how many bytes it removes there.
EDITS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=6
)


def _manifest(data: bytes) -> None:
    manifest, transaction = decode_manifest_file(data, PATH)
    check_readable(manifest, PATH)
    list(manifest.fragments)
    if transaction is not None:
        encode_transaction(transaction)


def _transaction(data: bytes) -> None:
    encode_transaction(decode_transaction(data, PATH))


def _row_ids(data: bytes) -> None:
    encode_row_runs(decode_row_runs(data, ROWS, PATH))


def _row_versions(data: bytes) -> None:
    encode_version_runs(decode_version_runs(data, ROWS, PATH))


def _data_file(data: bytes) -> None:
    decode_shape(lambda start, end: data[start:end], len(data), PATH, pages=True)


def _commit(data: bytes) -> None:
    # The name of a commit is the digest of its bytes: a damaged commit gets a name that fits, or it would be refused.
    parse_commit(hashlib.sha256(data).hexdigest(), data, PATH)


DECODERS: dict[str, Decoder] = {
    "manifest": _manifest,
    "summary of a manifest": lambda data: summarize_manifest(data, PATH),
    "transaction in a manifest": lambda data: decode_transaction_of(data, PATH, branch="main", number=2),
    "transaction": _transaction,
    "indices": lambda data: decode_indices(data, PATH),
    "row ids": _row_ids,
    "row versions": _row_versions,
    "Arrow deletion file": lambda data: decode_offsets(ARROW_FILE, data, PATH, 0),
    "bitmap deletion file": lambda data: decode_offsets(BITMAP_FILE, data, PATH, 0),
    "data file": _data_file,
    "branch": lambda data: parse_branch("run", data, PATH),
    "tag": lambda data: parse_tag("release", data, PATH),
    "repository commit": _commit,
    "entry of a branch": lambda data: parse_entry(data, PATH),
}


@pytest.fixture(scope="module")
def valid_files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[bytes]]:
    """Valid bytes for each decoder."""
    folder = tmp_path_factory.mktemp("lake")
    table = LanceTable.create(folder / "t.lance", rows(0).schema)
    table.append(rows(7000))
    table.append(rows(100))
    table.tags.create("release", "main@2")
    table.branches.create("run")
    table.append(rows(10), branch="run")
    lance.dataset(table.uri).create_scalar_index("value", "BTREE")
    lance.dataset(table.uri).delete("value >= 1000 and value < 6500")
    lance.dataset(table.uri).delete("value = 51")
    repository = LanceRepository.create(folder)
    repository.adopt(["t"])

    def files(pattern: str) -> list[bytes]:
        found = [path.read_bytes() for path in sorted(folder.glob(pattern)) if path.is_file()]
        assert found, pattern
        return found

    manifests = files("**/_versions/*.manifest")
    decoded = [decode_manifest_file(data, PATH)[0] for data in manifests]
    fragments = [each for manifest in decoded for each in manifest.fragments if each.physical_rows == ROWS]
    return {
        "manifest": manifests,
        "summary of a manifest": manifests,
        "transaction in a manifest": manifests,
        "transaction": files("**/_transactions/*.txn"),
        "indices": [manifest.index_section for manifest in decoded if manifest.index_section],
        "row ids": [fragment.row_ids for fragment in fragments if fragment.row_ids is not None],
        "row versions": [fragment.created_at for fragment in fragments if fragment.created_at is not None],
        "Arrow deletion file": files("**/_deletions/*.arrow"),
        "bitmap deletion file": files("**/_deletions/*.bin"),
        "data file": files("**/data/*.lance"),
        "branch": files("**/_refs/branches/*.json"),
        "tag": files("**/_refs/tags/*.json"),
        "repository commit": files("_repository/commits/*"),
        "entry of a branch": files("_repository/branches/**/*"),
    }


@pytest.mark.scaled
@pytest.mark.parametrize("kind", DECODERS)
def test_random_bytes_are_refused_by_name(
    kind: str, valid_files: Mapping[str, list[bytes]], record_property: Callable[[str, object], None]
) -> None:
    """An edited or invented file decodes, or raises an error of this package that names the file."""
    decode, valid = DECODERS[kind], valid_files[kind]
    counted, unnamed = Counter[str](), set[str]()

    @settings(max_examples=examples(150), deadline=None, database=None)
    @given(st.sampled_from(valid), EDITS | st.binary(max_size=300))
    def attack(data: bytes, edits: list[tuple[float, int, bytes]] | bytes) -> None:
        counted["files"] += 1
        try:
            decode(edits if isinstance(edits, bytes) else _edited(data, edits))
        except FormatError as error:
            counted["refused"] += 1
            unnamed.update([str(error)] if PATH not in str(error) else ())

    for data in valid:
        decode(data)
    attack()
    assert not unnamed
    # Otherwise the edits would be too weak to test anything.
    assert counted["refused"] > counted["files"] // 10
    for what, times in counted.items():
        record_property(what, times)


def _edited(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for where, removed, put in edits:
        place = int(where * (len(data) + 1))
        data = data[:place] + put + data[place + removed :]
    return data
