"""Deletions by a predicate, compared with those of pylance."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CommitConflictError, InvalidInputError, RefNotFoundError
from lance_dagster.format.transaction import Delete
from tests.raising import raises
from tests.table.interruption import interrupted
from tests.table.pylance_parity import ParityPair, assert_pylance_goes_on, row_lineage
from tests.table_factory import as_pylance, contents, entries, new_table


@pytest.fixture(params=[True, False], ids=["stable", "addresses"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> ParityPair:
    """Two tables of the same two fragments, with and without stable row ids."""
    return ParityPair.made(tmp_path, stable_row_ids=request.param)


@pytest.mark.parametrize("predicate", ["value = 3", "value % 2 = 0", "value < 5", "value >= 2", "true", "key = 'none'"])
def test_what_is_left_is_what_pylance_leaves(pair: ParityPair, predicate: str) -> None:
    """Rows, row ids and row versions are equal, and pylance can go on with the table."""
    version = pair.table.delete(predicate)
    pair.dataset.delete(predicate)
    assert row_lineage(pair.dataset) == row_lineage(as_pylance(pair.table))
    assert version.rows == pair.dataset.count_rows()
    assert_pylance_goes_on(pair.table)


def test_the_transaction_is_the_one_pylance_writes(pair: ParityPair) -> None:
    """One fragment is removed, one gets a deletion vector, and the predicate is recorded."""
    operations = []
    for table in (pair.table, pair.dataset):
        table.delete("value < 7")
        operations.append(pair.operation(table))
    found, expected = operations
    assert isinstance(found, Delete)
    assert isinstance(expected, Delete)
    assert ((0,), "value < 7") == (found.deleted_fragment_ids, found.predicate)
    assert (expected.deleted_fragment_ids, expected.predicate) == (found.deleted_fragment_ids, found.predicate)
    (found_fragment,), (expected_fragment,) = found.updated_fragments, expected.updated_fragments
    assert (
        expected_fragment.id,
        expected_fragment.rows,
        expected_fragment.row_ids,
        expected_fragment.created_at,
        expected_fragment.updated_at,
    ) == (
        (
            found_fragment.id,
            found_fragment.rows,
            found_fragment.row_ids,
            found_fragment.created_at,
            found_fragment.updated_at,
        )
    )


def test_nothing_to_delete_makes_no_version(pair: ParityPair) -> None:
    """Pylance makes a version that changes nothing."""
    before = pair.table.head()
    assert before == pair.table.delete("key = 'none'")
    pair.dataset.delete("key = 'none'")
    assert before.number + 1 == pair.dataset.version


def test_a_second_delete_takes_out_of_what_is_left(pair: ParityPair) -> None:
    """The deletion vector grows, and a fragment without rows is removed."""
    for value in range(5):
        assert 9 - value == pair.table.delete(f"value = {value}").rows
    assert 1 == len(as_pylance(pair.table).get_fragments())
    as_pylance(pair.table).validate()


def test_a_message_and_properties_are_kept(tmp_path: Path) -> None:
    """A deletion keeps both, as every commit does."""
    table = new_table(tmp_path, entries("a", 1, 2))
    version = table.delete("value = 1", message="wrong", properties={"run": "7"})
    assert ("wrong", "7", "Delete") == (version.message, version.properties["run"], version.operation)


def test_a_branch_loses_rows_and_main_keeps_them(tmp_path: Path) -> None:
    """The branch deletes inherited rows and its own; then it is merged."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    table.branches.create("run")
    table.append(entries("b", 1, 2), branch="run")
    assert "run@4" == str(table.delete("value = 2", branch="run"))
    assert [("a", 1), ("a", 3), ("b", 1)] == contents(table, "run")
    assert [("a", 1), ("a", 2), ("a", 3)] == contents(table)
    as_pylance(table, "run").validate()
    table.merge("run")
    assert [("a", 1), ("a", 3), ("b", 1)] == contents(table)
    with raises(RefNotFoundError, kind="branch", ref="runn"):
        table.delete("true", branch="runn")


@pytest.mark.parametrize("predicate", ["", "key ==", "missing = 1", "nofunction(key)"])
def test_a_condition_that_makes_no_sense_is_named(tmp_path: Path, predicate: str) -> None:
    """The predicate is refused, and nothing is deleted."""
    table = new_table(tmp_path, entries("a", 1))
    with pytest.raises(InvalidInputError):
        table.delete(predicate)
    assert [1, 2] == table.branches.version_numbers()


@pytest.mark.parametrize("given", [None, b"true"])
def test_a_condition_that_is_no_text_deletes_nothing(tmp_path: Path, given: Any) -> None:  # noqa: ANN401
    """A variable that was never set would match every row."""
    table = new_table(tmp_path, entries("a", 1))
    with pytest.raises(InvalidInputError):
        table.delete(given)
    assert [1, 2] == table.branches.version_numbers()


MEANWHILE: dict[str, tuple[Callable[[LanceTable], object], list[int]]] = {
    "append": (lambda other: other.append(entries("a", 4)), [0, 1, 3, 4]),
    "delete of another row": (lambda other: other.delete("value = 0"), [1, 3]),
    "delete of the same row": (lambda other: other.delete("value = 2"), [0, 1, 3]),
    "delete of all": (lambda other: other.delete("true"), []),
    "update of another row": (lambda other: other.update({"value": "value + 10"}, where="value = 0"), [1, 3, 10]),
    "update of the same row": (lambda other: other.update({"value": "value + 10"}, where="value = 2"), [0, 1, 3, 12]),
    "update by pylance": (lambda other: as_pylance(other).update({"value": "12"}, where="value = 2"), [0, 1, 3, 12]),
    "compaction": (lambda other: as_pylance(other).optimize.compact_files(), [0, 1, 3]),
    "replace": (lambda other: other.replace_where("value < 3 OR value = 8", entries("a", 2, 2, 8)), [3, 8]),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_rows_are_looked_up_again_when_somebody_is_faster(tmp_path: Path, meanwhile: str) -> None:
    """The deletion is applied to the other writer's version; a row that no longer matches stays."""
    table = new_table(tmp_path, entries("a", 0, 1), entries("a", 2, 3))
    act, left = MEANWHILE[meanwhile]
    interrupted(table, lambda: act(LanceTable.open(table.uri))).delete("value = 2")
    assert left == [value for _, value in contents(table)]
    as_pylance(table).validate()


def test_a_replaced_table_is_not_deleted_from(tmp_path: Path) -> None:
    """New rows with the same values are not the rows that were to be deleted."""
    table = new_table(tmp_path, entries("a", 1))
    with pytest.raises(CommitConflictError) as caught:
        interrupted(table, lambda: LanceTable.open(table.uri).overwrite(entries("b", 1))).delete("value = 1")
    assert not caught.value.retryable
    assert [("b", 1)] == contents(table)


def test_many_rows_are_deleted(tmp_path: Path) -> None:
    """A deletion vector of the bitmap kind replaces one of the array kind."""
    rows = pa.table({"key": ["a"] * 20_000, "value": range(20_000)})
    table = new_table(tmp_path, rows)
    table.delete("value % 7 = 0")
    table.delete("value % 2 = 0")
    wanted = [value for value in range(20_000) if value % 7 and value % 2]
    assert wanted == table.read()["value"].to_pylist()
    dataset = lance.dataset(table.uri)
    dataset.validate()
    assert len(wanted) == dataset.count_rows()


@pytest.mark.parametrize("predicate, left", [("value = 2", [0, 1, 3]), ("value > 1", [0, 1])])
def test_rows_that_a_revert_brought_back_stay(tmp_path: Path, predicate: str, left: list[int]) -> None:
    """The rows were deleted in the version that the deletion read, so the deletion does not cover them."""
    table = new_table(tmp_path, entries("a", 0, 1, 2, 3))
    table.delete("value < 2")
    interrupted(table, lambda: LanceTable.open(table.uri).revert("main")).delete(predicate)
    assert left == [value for _, value in contents(table)]
    as_pylance(table).validate()
