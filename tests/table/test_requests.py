"""The number of requests of each operation on a table that reads no rows; docs/reliability.md has the same table."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from lance_dagster import LanceTable
from tests.conftest import S3Storage
from tests.store.providers import requests_of

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
    yield "append a data file to `main`", made(lambda again: again.append(ROWS))
    yield "create a branch with a slash in its name", made(lambda again: again.branches.create("run/1"))
    yield "append a data file to a branch", made(lambda again: again.append(ROWS, branch="run/1"))
    yield "merge a branch with a slash in its name", made(lambda again: again.merge("run/1"))
    yield "log of 7 versions", made(lambda again: again.log())
    yield "replace the rows of a partition", made(lambda again: again.replace_where("key = 'a'", ROWS))
    yield "count the rows of a partition", made(lambda again: again.count_rows(filter="key = 'a'"))


def test_a_step_takes_no_more_requests_than_this(s3_storage: S3Storage) -> None:
    """The steps of a run with the opening of the table, which is one request; the first two are those of a new lake."""
    uri, options = f"{s3_storage.uri}/table", dict(s3_storage.storage_options)

    def step(act: Callable[[LanceTable], object]) -> int:
        return len(requests_of(s3_storage, lambda: act(LanceTable.open(uri, options))))

    made = {
        "create": len(requests_of(s3_storage, lambda: LanceTable.create(uri, ROWS.schema, storage_options=options)))
    }
    made["append"] = step(lambda table: table.append(ROWS))
    made["fork"] = step(lambda table: table.branches.create("run/1"))
    made["append to the fork"] = step(lambda table: table.append(ROWS, branch="run/1"))
    made["merge"] = step(lambda table: table.merge("run/1"))
    made["tag"] = step(lambda table: table.tags.create("production", "main"))
    LanceTable.open(uri, options).append(ROWS)
    made["move the tag"] = step(lambda table: table.tags.move("production", "main"))
    made["resolve the tag"] = step(lambda table: table.at("production"))
    made["delete the branch"] = step(lambda table: table.branches.delete("run/1"))
    bounds = {
        # With the first probe of a bucket, which is eight requests.
        "create": 12,
        "append": 6,
        "fork": 8,
        "append to the fork": 9,
        "merge": 8,
        "tag": 6,
        "move the tag": 6,
        "resolve the tag": 5,
        "delete the branch": 16,
    }
    assert {} == {name: count for name, count in made.items() if count > bounds[name]}


def test_refs_that_did_not_change_are_not_read_again(s3_storage: S3Storage) -> None:
    """A listing shows the ETags of the files, and only new and changed ones are read."""
    uri, options = f"{s3_storage.uri}/table", dict(s3_storage.storage_options)
    table = LanceTable.create(uri, ROWS.schema, storage_options=options)
    for number in range(6):
        table.branches.create(f"run/{number}")
        table.tags.create(f"tag-{number}", "main")
    again = LanceTable.open(uri, options)
    assert (7, 7) == tuple(len(requests_of(s3_storage, ask)) for ask in (again.branches.list, again.tags.list))
    table.branches.set_metadata("run/3", {"a": "b"})
    table.branches.delete("run/4")
    table.append(ROWS)
    table.tags.move("tag-2", "main")
    assert (2, 2) == tuple(len(requests_of(s3_storage, ask)) for ask in (again.branches.list, again.tags.list))
    assert [f"run/{number}" for number in (0, 1, 2, 3, 5)] == list(again.branches.list())
    assert "b" == again.branches.list()["run/3"].metadata["a"]
    assert ("main@2", "main@1") == tuple(again.tags.list()[f"tag-{number}"].ref for number in (2, 3))


def test_every_operation_takes_its_number_of_requests(s3_storage: S3Storage) -> None:
    """Every operation takes the number of requests that the page has."""
    _, _, table = PAGE.read_text().partition("| operation on a table | requests |\n|---|---|\n")
    assert table.partition("\n\n")[0] == "\n".join(f"| {name} | {made} |" for name, made in counted(s3_storage))
