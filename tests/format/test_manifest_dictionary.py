"""Manifests of file format 0.1 contain dictionaries of columns, which the package could not write again."""

from pathlib import Path

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.errors import UnsupportedFeatureError
from tests.raising import raises


def test_a_dictionary_in_the_manifest_is_not_lost(tmp_path: Path) -> None:
    """Such a table can be read, but neither changed nor branched."""
    uri = str(tmp_path / "old")
    rows = pa.table({"word": pa.array(["a", "c", "b"]).dictionary_encode()})
    lance.write_dataset(rows, uri, data_storage_version="legacy")
    table = LanceTable.open(uri)
    with raises(UnsupportedFeatureError, path="main@2"):
        table.config.set({"own": "1"})
    with raises(UnsupportedFeatureError, path="main@1"):
        table.branches.create("run")
    assert ({}, 1) == (table.branches.list(), table.head().number)
    assert ["a", "c", "b"] == lance.dataset(uri).to_table()["word"].to_pylist()
