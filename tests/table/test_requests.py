"""The number of requests of each operation on a table that reads no rows; docs/reliability.md has the same table."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from lance_dagster import LanceTable
from tests.conftest import S3Storage
from tests.store.test_providers import requests_of

PAGE = Path(__file__).parent.parent.parent / "docs" / "reliability.md"
ROWS = pa.table({"key": ["a"], "value": pa.array([1], pa.int64())})


def counted(storage: S3Storage) -> Iterator[tuple[str, int]]:
    """Every operation and its requests, each by a table object that has just been opened."""
    uri, options = f"{storage.uri}/table", dict(storage.storage_options)
    # Whatever else the process asked of the server, the probe for instance, is over.
    table = LanceTable.create(uri, ROWS.schema, storage_options=options)
    table.append(ROWS)
    table.tags.create("production", "main")

    def made(act: Callable[[LanceTable], object]) -> int:
        again = LanceTable.open(uri, options)
        return len(requests_of(storage, lambda: act(again)))

    yield "open a table", len(requests_of(storage, lambda: LanceTable.open(uri, options)))
    yield "find the head of `main`", made(lambda again: again.head())
    yield "find the version of a tag", made(lambda again: again.at("production"))
    yield "count the rows at a tag", made(lambda again: again.count_rows("production"))
    yield "create a branch", made(lambda again: again.branches.create("fix"))
    table.append(ROWS, branch="fix")
    yield "find the head of a branch", made(lambda again: again.head("fix"))
    yield "preview a merge of one append", made(lambda again: again.branches.preview("fix"))
    yield "merge one append", made(lambda again: again.merge("fix"))
    yield "merge again, with nothing to merge", made(lambda again: again.merge("fix"))
    yield "create a tag", made(lambda again: again.tags.create("audited", "main"))
    yield "move a tag", made(lambda again: again.tags.move("production", "main"))
    yield "delete a tag", made(lambda again: again.tags.delete("audited"))
    yield "revert a merge", made(lambda again: again.revert("main@3", parent=1))
    yield "restore a version", made(lambda again: again.restore("main@3"))
    yield "delete a branch", made(lambda again: again.branches.delete("fix"))
    yield "log of 5 versions", made(lambda again: again.log())


def test_every_operation_takes_its_number_of_requests(s3_storage: S3Storage) -> None:
    """Every operation takes the number of requests that the page has."""
    _, _, table = PAGE.read_text().partition("| operation on a table | requests |\n|---|---|\n")
    assert table.partition("\n\n")[0] == "\n".join(f"| {name} | {made} |" for name, made in counted(s3_storage))
