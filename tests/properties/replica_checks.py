"""Compare a version of a table, as the package and pylance read it, with the model."""

from collections.abc import Sequence
from dataclasses import replace

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.format.transaction import MERGED_PREFIX
from lance_dagster.format.value_ranges import RANGES
from tests.properties.replica import KEY, Condition, Row, Snapshot, by_value

LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def checked_version(dataset: lance.LanceDataset, candidates: Sequence[Snapshot], *, stable: bool) -> Snapshot:
    """Check that a version that pylance opened is one of the possible ones; return that with its row ids."""
    dataset.validate()
    found = dataset.to_table(columns=[*dataset.schema.names, *(LINEAGE if stable else LINEAGE[:1])])
    names = dataset.schema.names
    rows = {row[0]: row[1:] for row in zip(*(found[name].to_pylist() for name in names), strict=True)}
    assert len(rows) == found.num_rows == dataset.count_rows()
    expected = next((one for one in candidates if one.values() == rows), candidates[0])
    assert expected.values() == rows
    assert expected.schema.names == names
    assert expected.schema.types == dataset.schema.types
    assert expected.config == dataset.config()
    assert expected.metadata == described(dataset)
    assert sorted(expected.indices) == sorted(index.name for index in dataset.describe_indices())
    ids = found["_rowid"].to_pylist()
    assert len(ids) == len(set(ids))
    return _with_lineage(expected, found, dataset.version) if stable else expected


def described(dataset: lance.LanceDataset) -> dict[str, str]:
    """The table metadata, without the package's records of merges and of the bounds of values."""
    return {
        key: value for key, value in dataset.metadata.items() if key != RANGES and not key.startswith(MERGED_PREFIX)
    }


def _with_lineage(expected: Snapshot, found: pa.Table, version: int) -> Snapshot:
    owners = dict(expected.owners)
    rows: dict[int, Row] = {}
    for key, row_id, created, updated in zip(*(found[name].to_pylist() for name in (KEY, *LINEAGE)), strict=True):
        row = expected.rows[key]
        assert key == owners.setdefault(row_id, key), f"row id {row_id} was that of another row"
        wanted = (
            row_id if row.row_id is None else row.row_id,
            version if row.created is None else row.created,
            version if row.updated is None else row.updated,
        )
        assert wanted == (row_id, created, updated), f"row id and versions of row {key}"
        rows[key] = replace(row, row_id=row_id, created=created, updated=updated)
    return replace(expected, rows={key: rows[key] for key in expected.rows}, owners=owners)


def same_for_the_package(table: LanceTable, ref: str, dataset: lance.LanceDataset) -> None:
    """Check that the package reads what pylance reads."""
    assert dataset.to_table().equals(table.read(ref))
    assert dataset.schema.equals(table.schema(ref))
    assert dataset.count_rows() == table.count_rows(ref)


def answers(dataset: lance.LanceDataset, snapshot: Snapshot, number: int) -> None:
    """Check that a query that uses an index finds the expected rows, and no others."""
    for token in snapshot.indices.values():
        column = snapshot.column(token)
        assert column is not None
        value = column.made_up(number)
        if value is not None:
            _finds(dataset, snapshot, by_value(column, value))


def _finds(dataset: lance.LanceDataset, snapshot: Snapshot, condition: Condition) -> None:
    wanted = snapshot.selected(condition)
    assert len(wanted) == dataset.count_rows(filter=condition.sql)
    assert wanted == set(dataset.to_table(columns=[KEY], filter=condition.sql)[KEY].to_pylist())
