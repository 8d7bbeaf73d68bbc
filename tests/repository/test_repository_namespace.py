"""`RepositoryNamespace`: clients of Lance namespaces read the tables of a repository at one commit."""

from pathlib import Path

import lance
import lance_namespace
import lancedb
import pyarrow as pa
import pytest
from lance_namespace import (
    DescribeNamespaceRequest,
    DescribeTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    NamespaceExistsRequest,
    TableExistsRequest,
)

from lance_dagster import LanceRepository
from tests.backdating import DAY, stored as make_older
from tests.conftest import S3Storage

SCHEMA = pa.schema([("id", pa.int64())])
CLASS = "lance_dagster.RepositoryNamespace"


def rows(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": ids}, schema=SCHEMA)


@pytest.fixture
def repository(tmp_path: Path) -> LanceRepository:
    """A repository of tables in nested folders with two publications, one of them promoted."""
    made = LanceRepository.create(tmp_path)
    names = ("shop/orders", "shop/eu/lines", "customers")
    for name in names:
        made.create_table(name, SCHEMA)
    for number, channel in ((1, "production"), (2, None)):
        for name in names:
            made.fork(name, f"run/{number}").append(rows(number), branch=f"run/{number}")
        made.publish(f"run/{number}", channel=channel)
    return made


def connect(repository: LanceRepository, ref: str) -> lance_namespace.LanceNamespace:
    """The namespace as another program makes it."""
    return lance_namespace.connect(CLASS, {"root": repository.root, "ref": ref})


def read(namespace: lance_namespace.LanceNamespace, *table: str) -> list[int]:
    """The ids that pylance reads of a table."""
    dataset = lance.dataset(namespace_client=namespace, table_id=list(table))
    return sorted(found for found in dataset.to_table()["id"].to_pylist() if found is not None)


def test_folders_are_namespaces(repository: LanceRepository) -> None:
    """Each level lists its tables and the namespaces below it; a name without tables is not a namespace."""
    namespace = connect(repository, "main")
    assert ["shop"] == namespace.list_namespaces(ListNamespacesRequest(id=[])).namespaces
    assert ["eu"] == namespace.list_namespaces(ListNamespacesRequest(id=["shop"])).namespaces
    assert ["customers"] == namespace.list_tables(ListTablesRequest(id=[])).tables
    assert ["orders"] == namespace.list_tables(ListTablesRequest(id=["shop"])).tables
    assert ["lines"] == namespace.list_tables(ListTablesRequest(id=["shop", "eu"])).tables
    namespace.namespace_exists(NamespaceExistsRequest(id=["shop", "eu"]))
    with pytest.raises(lance_namespace.NamespaceNotFoundError, match="no tables below 'shop/us'"):
        namespace.namespace_exists(NamespaceExistsRequest(id=["shop", "us"]))
    properties = namespace.describe_namespace(DescribeNamespaceRequest(id=[])).properties
    assert {"root": repository.root, "ref": "main", "commit": repository.head().id} == properties


def test_lists_come_in_pages(repository: LanceRepository) -> None:
    """A page has at most the names that were asked for, and the token of the next one."""
    repository.create_table("zones", SCHEMA)
    repository.commit("zones")
    namespace = connect(repository, "main")
    first = namespace.list_tables(ListTablesRequest(id=[], limit=1))
    second = namespace.list_tables(ListTablesRequest(id=[], limit=1, page_token=first.page_token))
    assert (["customers"], ["zones"], None) == (first.tables, second.tables, second.page_token)


def test_pylance_reads_every_table_at_the_commit(repository: LanceRepository) -> None:
    """`lance.dataset` with the namespace reads the version of the channel, although the table has newer ones."""
    for ref, expected in (("production", [1]), ("main", [1, 2])):
        namespace = connect(repository, ref)
        assert expected == read(namespace, "shop", "orders")
        assert expected == read(namespace, "shop", "eu", "lines")
        assert expected == read(namespace, "customers")


def test_a_connection_stays_at_its_commit(repository: LanceRepository) -> None:
    """A connection does not see later promotions, which only the next connection sees."""
    before = connect(repository, "production")
    repository.channels.promote("production")
    assert ([1], [1, 2]) == (read(before, "customers"), read(connect(repository, "production"), "customers"))


def test_a_version_that_is_not_on_main_is_read(repository: LanceRepository) -> None:
    """A table whose main got a foreign commit is read at the repository's version, without the foreign rows."""
    repository.fork("customers", "run/3").append(rows(3), branch="run/3")
    uri = repository.table("customers").uri

    def commit_beside(staged: object) -> None:
        del staged
        lance.write_dataset(rows(9), uri, mode="append")

    repository.publish("run/3", audit=commit_beside)
    assert [1, 2, 3] == read(connect(repository, "main"), "customers")


def test_a_table_is_described_with_its_version(repository: LanceRepository) -> None:
    """The answer has the location, the version and the commit; other versions, branches and tables are refused."""
    namespace = connect(repository, "production")
    found = namespace.describe_table(DescribeTableRequest(id=["shop", "orders"]))
    assert (repository.table("shop/orders").uri, 2) == (found.location, found.version)
    assert repository.head("production").id == (found.properties or {})["commit"]
    namespace.table_exists(TableExistsRequest(id=["shop", "orders"]))
    with pytest.raises(lance_namespace.TableNotFoundError, match="customers, shop/eu/lines"):
        namespace.table_exists(TableExistsRequest(id=["shop", "order"]))
    with pytest.raises(
        lance_namespace.TableVersionNotFoundError, match="at version 2 at production, and the namespace has"
    ):
        namespace.describe_table(DescribeTableRequest(id=["shop", "orders"], version=3))
    with pytest.raises(lance_namespace.UnsupportedOperationError, match="not at a branch or tag of its own"):
        namespace.describe_table(DescribeTableRequest(id=["shop", "orders"], branch="run/1"))


def test_nothing_is_written(repository: LanceRepository) -> None:
    """Every writing operation is refused, and pylance's attempts to write change no version."""
    namespace = connect(repository, "production")
    reading = {"list_", "describe_", "namespace_", "table_", "count_", "query_", "get_", "explain_", "analyze_"}
    writing = [
        name
        for name in dir(lance_namespace.LanceNamespace)
        if not name.startswith("_") and not any(name.startswith(each) for each in reading)
    ]
    assert "create_table" in writing
    for name in writing:
        with pytest.raises(lance_namespace.UnsupportedOperationError, match=r"is read-only: write to a branch"):
            getattr(namespace, name)(None)
    before = str(repository.table("customers").head())
    with pytest.raises((OSError, ValueError)):
        lance.write_dataset(rows(9), namespace_client=namespace, table_id=["customers"], mode="append")
    assert (before, [1]) == (str(repository.table("customers").head()), read(namespace, "customers"))


def test_a_wrong_connection_says_why(tmp_path: Path) -> None:
    """The error for a root without a repository names the root."""
    with pytest.raises(ValueError, match="no repository at"):
        lance_namespace.connect(CLASS, {"root": str(tmp_path)})


def test_a_repository_on_s3_is_read(s3_storage: S3Storage) -> None:
    """Storage options of the connection have the prefix `storage.`, and reach pylance."""
    repository = LanceRepository.create(f"{s3_storage.uri}/lake", s3_storage.storage_options)
    repository.create_table("shop/orders", SCHEMA)
    repository.fork("shop/orders", "run/1").append(rows(1), branch="run/1")
    repository.publish("run/1", channel="production")
    repository.table("shop/orders").append(rows(9))
    options = {f"storage.{key}": value for key, value in s3_storage.storage_options.items()}
    namespace = lance_namespace.connect(CLASS, {"root": repository.root, "ref": "production", **options})
    assert [1] == read(namespace, "shop", "orders")
    assert "test-secret" not in f"{namespace!r} {namespace.namespace_id()}"


def test_lancedb_reads_every_table_at_the_commit(repository: LanceRepository) -> None:
    """LanceDB, which has a Lance engine of its own, lists the tables, reads them at the commit and cannot write."""
    database = lancedb.connect_namespace(CLASS, {"root": repository.root, "ref": "production"})
    assert ["orders"] == database.list_tables(namespace_path=["shop"]).tables
    table = database.open_table("orders", namespace_path=["shop"])
    assert [1] == table.to_arrow()["id"].to_pylist()
    before = str(repository.table("shop/orders").head())
    with pytest.raises(RuntimeError):
        table.add(rows(9))
    assert before == str(repository.table("shop/orders").head())


def test_what_a_refused_write_leaves_is_named_and_collected(repository: LanceRepository) -> None:
    """Pylance stages a manifest before it asks the namespace; a collection deletes it once it is old."""
    table = repository.table("shop/orders")
    dataset = lance.dataset(namespace_client=connect(repository, "main"), table_id=["shop", "orders"])
    with pytest.raises(OSError, match="may or may not have been applied"):
        dataset.insert(dataset.to_table())
    staged = [path for path in (Path(table.uri) / "_versions").iterdir() if ".manifest-" in path.name]
    assert 1 == len(staged)
    report = table.maintenance.verify()
    assert report.ok
    assert [f"_versions/{staged[0].name}"] == [problem.path for problem in report.problems]
    table.maintenance.collect_garbage(dry_run=False)
    assert staged[0].exists()
    make_older(staged[0], 30 * DAY)
    assert f"_versions/{staged[0].name}" in table.maintenance.collect_garbage(dry_run=False).paths
    assert not staged[0].exists()
    assert () == table.maintenance.verify().problems
