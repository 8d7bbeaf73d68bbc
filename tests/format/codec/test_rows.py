"""Row-id and version sequences, compared with what pylance makes of them."""

import json
from pathlib import Path

import lance
import pytest
from lance.fragment import RowIdSequence

from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec import decode_manifest_file, row_id_range, smallest_row_id, version_run
from tests.format.histories import files, written


def encoded(ids: list[int]) -> bytes:
    """The sequence as pylance writes it into a manifest."""
    return bytes(json.loads(RowIdSequence(ids).to_inline_metadata().json())["Inline"])


@pytest.mark.parametrize("ids", [[0, 1, 2], [7], [10**12, 10**12 + 1]])
def test_a_range_is_what_pylance_writes(ids: list[int]) -> None:
    """Appended rows get one range of ids."""
    assert encoded(ids) == row_id_range(ids[0], len(ids))


@pytest.mark.parametrize(
    "ids", [[5, 6, 7], [9, 5, 1000], [5, 7, 8, 9, 11], [5, 10**6], [5, 10**12], [3 * 10**18, 7], list(range(8, 900, 2))]
)
def test_the_smallest_id_is_never_overestimated(ids: list[int]) -> None:
    """In every encoding pylance chooses, the answer is the smallest id or a bound below it."""
    found = smallest_row_id(encoded(ids))
    assert found is not None
    assert found <= min(ids)


def test_an_empty_sequence_has_no_smallest_id() -> None:
    """No rows, no id."""
    assert smallest_row_id(b"") is None
    assert smallest_row_id(wire.RowIdSequence(segments=[wire.U64Segment()]).SerializeToString()) is None


def test_moved_rows_show_in_the_smallest_id(tmp_path: Path) -> None:
    """An update by pylance gives its new fragment the ids of the rows it moved."""
    written(tmp_path, lambda dataset: dataset.update({"value": "0"}, where="value in (2, 8)"), stable_row_ids=True)
    manifest, _ = decode_manifest_file(next(files(tmp_path, "*.manifest")).read_bytes(), "m")
    moved = manifest.fragments[-1].row_ids
    assert moved is not None
    assert 2 == smallest_row_id(moved)


def test_a_run_is_one_version_for_all_rows(tmp_path: Path) -> None:
    """The rows of a first version are of one run, as pylance writes it."""
    written(tmp_path, lambda dataset: dataset.version, stable_row_ids=True)
    manifest, _ = decode_manifest_file(next(files(tmp_path, "*.manifest")).read_bytes(), "m")
    assert {version_run(5, 1)} == {fragment.created_at for fragment in manifest.fragments}
    assert {version_run(5, 1)} == {fragment.updated_at for fragment in manifest.fragments}


def test_a_damaged_sequence_has_no_smallest_id() -> None:
    """A merge that cannot tell where rows come from is refused."""
    assert smallest_row_id(b"\xff\xff") is None


def test_pylance_is_the_release_these_tests_are_about() -> None:
    """The facts compared here were taken from pylance 14."""
    assert "14" == lance.__version__.split(".")[0]
