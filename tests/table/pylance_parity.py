"""Two tables of the same rows: the package changes one as pylance changes the other, and both must come to the same."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.format.codec import decode_manifest_file
from lance_dagster.format.transaction import Operation
from tests.table_factory import as_pylance, entries

Lineage = list[dict[str, Any]]
_VERSIONS = ["_row_created_at_version", "_row_last_updated_at_version"]


@dataclass(frozen=True, slots=True)
class ParityPair:
    """One table written by the package, and one of the same rows written by pylance."""

    table: LanceTable
    dataset: lance.LanceDataset

    @classmethod
    def made(cls, folder: Path, rows: pa.Table | None = None, *, stable_row_ids: bool = True) -> "ParityPair":
        """Two fragments of five rows each, or of the rows given; both made by pylance."""
        rows = rows if rows is not None else pa.concat_tables([entries("a", *range(5)), entries("b", *range(5, 10))])
        for name in ("package", "pylance"):
            lance.write_dataset(rows, str(folder / name), max_rows_per_file=5, enable_stable_row_ids=stable_row_ids)
        return cls(LanceTable.open(folder / "package"), lance.dataset(str(folder / "pylance")))

    def assert_same(self) -> None:
        """Both hold the same rows, with the same ids and versions, and the package's table is sound."""
        found = as_pylance(self.table)
        found.validate()
        assert row_lineage(lance.dataset(self.dataset.uri)) == row_lineage(found)

    @staticmethod
    def operation(table: LanceTable | lance.LanceDataset) -> Operation:
        """The operation of the newest version."""
        newest = min(Path(table.uri, "_versions").glob("*.manifest"))
        transaction = decode_manifest_file(newest.read_bytes(), newest.name)[1]
        assert transaction is not None
        return transaction.operation


def row_lineage(dataset: lance.LanceDataset) -> Lineage:
    """The rows of a version, sorted, with their ids and versions where ids are stable."""
    names = list(dataset.schema.names)
    columns = [*names, "_rowid", *_VERSIONS] if dataset.has_stable_row_ids else names
    return sorted(dataset.to_table(columns=columns).to_pylist(), key=str)


def assert_pylance_goes_on(table: LanceTable) -> None:
    """Let pylance append to a table of keys and values, update it and compact it; the rows are as they should be."""
    before = sorted((row["value"], row["key"]) for row in table.read().to_pylist())
    as_pylance(table).validate()
    as_pylance(table).insert(entries("new", 500, 501))
    as_pylance(table).update({"key": "'updated'"}, where="value = 500")
    as_pylance(table).delete("value = 501")
    as_pylance(table).optimize.compact_files()
    dataset = as_pylance(table)
    dataset.validate()
    rows = dataset.to_table(columns=["key", "value", "_rowid"]).to_pylist()
    assert [*before, (500, "updated")] == sorted((row["value"], row["key"]) for row in rows)
    assert len(rows) == len({row["_rowid"] for row in rows}) == dataset.count_rows()
