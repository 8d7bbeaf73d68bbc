"""What the result of a write reports."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable, Version, WriteResult
from tests.table_factory import entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two fragments with the values 1, 2, 3 and 4, 5."""
    return new_table(tmp_path, entries("a", 1, 2, 3), entries("b", 4, 5))


@pytest.mark.parametrize(
    "counts, write",
    [
        ((2, 0, 0), lambda table: table.append(entries("c", 6, 7))),
        ((3, 0, 0), lambda table: table.append(table.stage(entries("c", 6, 7, 8)))),
        ((1, 2, 0), lambda table: table.append(entries("c", 6), replaces=table.head())),
        ((1, 5, 0), lambda table: table.overwrite(entries("c", 6))),
        ((2, 3, 0), lambda table: table.replace_where("value < 4 OR value > 5", entries("c", 6, 7))),
        ((1, 0, 0), lambda table: table.replace_where("value = 6", entries("c", 6))),
        ((0, 4, 0), lambda table: table.delete("value > 1")),
        ((0, 5, 0), lambda table: table.delete("true")),
        ((0, 0, 2), lambda table: table.update({"value": "value + 1"}, where="value > 3")),
        ((0, 0, 5), lambda table: table.update({"value": "0"})),
        ((1, 0, 1), lambda table: table.upsert(entries("c", 5, 6), on=["value"])),
        ((1, 4, 1), lambda table: table.upsert(entries("c", 5, 6), on=["value"], when_missing="delete")),
        ((1, 0, 0), lambda table: table.upsert(entries("c", 5, 6), on=["value"], when_matched="keep")),
        ((0, 0, 1), lambda table: table.upsert(entries("c", 5, 6), on=["value"], when_not_matched="ignore")),
    ],
)
def test_a_write_counts_its_rows(
    table: LanceTable, counts: tuple[int, int, int], write: Callable[[LanceTable], WriteResult]
) -> None:
    """The result counts added, deleted and updated rows, which add up to the rows of the version."""
    result = write(table)
    assert counts == (result.rows_added, result.rows_deleted, result.rows_updated)
    assert 5 + result.rows_added - result.rows_deleted == result.rows == table.count_rows()


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.delete("value > 9"),
        lambda table: table.update({"value": "0"}, where="value > 9"),
        lambda table: table.upsert(entries("c", 9), on=["value"], when_not_matched="ignore"),
    ],
)
def test_a_write_without_rows_counts_none(table: LanceTable, write: Callable[[LanceTable], WriteResult]) -> None:
    """The newest version is returned unchanged."""
    before = table.head()
    result = write(table)
    assert before == result
    assert (0, 0, 0) == (result.rows_added, result.rows_deleted, result.rows_updated)
    assert f"{before}: no rows changed" == result.summary


def test_deleted_rows_are_not_counted_again(table: LanceTable) -> None:
    """Rows of a fragment that were deleted before do not count."""
    table.delete("value = 1")
    assert 2 == table.delete("value < 4").rows_deleted
    assert 2 == table.overwrite(entries("c", 6)).rows_deleted


def test_a_result_is_the_version_it_made(table: LanceTable) -> None:
    """A result is printed and accepted as a ref, equals the version when read again, and can be pickled."""
    result = table.append(entries("c", 6))
    version = table.head()
    assert isinstance(version, Version)
    assert not isinstance(version, WriteResult)
    assert version == result
    assert result == version
    assert table.at("main~1") != result
    assert str(version) == str(result) == "main@4"
    assert 6 == table.count_rows(result)
    assert result in table.log()
    assert 1 == pickle.loads(pickle.dumps(result)).rows_added  # noqa: S301  # bytes of this test


def test_a_summary_is_one_line(table: LanceTable) -> None:
    """The summary has only what changed, and the right singular and plural."""
    assert "main@4: 2 rows added, 5 deleted" == table.overwrite(entries("c", 1, 2)).summary
    assert "main@5: 1 row updated" == table.update({"value": "3"}, where="value = 1").summary
