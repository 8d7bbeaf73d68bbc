"""The life of a table on object storage, beside pylance."""

import pickle

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import TableNotFoundError
from tests.conftest import S3Storage
from tests.table_factory import SCHEMA, contents, entries


def live_a_whole_life(storage: S3Storage) -> None:
    """Create, append, branch, replace, merge, tag, move, collect; pylance reads and writes it with the same options."""
    uri, options = f"{storage.uri}/lake/table", dict(storage.storage_options)
    with pytest.raises(TableNotFoundError):
        LanceTable.open(uri, options)
    table = LanceTable.create(f"{uri}/", SCHEMA, storage_options=options)
    table.append(entries("a", 1, 2, 3))
    table.branches.create("run/1")
    table.replace_where("value IN (2, 9)", entries("b", 9), branch="run/1")
    table.append(entries("c", 1))
    table.merge("run/1")
    assert [("a", 1), ("a", 3), ("b", 9), ("c", 1)] == contents(table)
    table.tags.move("production", "main")
    table.tags.move("production", "main@1", expected=table.head())
    table.branches.delete("run/1")
    again = pickle.loads(pickle.dumps(table))  # noqa: S301 - bytes of this test
    assert [] == contents(again, "production")
    dataset = lance.dataset(uri, storage_options=options)
    dataset.validate()
    dataset.insert(entries("d", 1))
    assert 5 == LanceTable.open(uri, options).count_rows()
    table.maintenance.collect_garbage()
    assert not table.maintenance.verify(deep=False).problems
    assert 5 == lance.dataset(uri, storage_options=options).count_rows()
