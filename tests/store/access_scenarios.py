"""What each role of docs/guides/access.md may do; the test class of a server inherits it, and has `role` and `lake`."""

import json
import pickle
import re
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_dagster import (
    LanceIOManager,
    LanceRepository,
    LanceResource,
    LanceTable,
    RowCount,
    build_publisher,
    build_table_checks,
)
from lance_dagster.errors import PermissionRefusedError
from lance_dagster.format import layout
from lance_dagster.history.refs.branch_deletion import FENCE_SECONDS
from lance_dagster.store import open_store
from tests.conftest import CHECKOUT
from tests.raising import raises
from tests.repository.reads_and_writes import READS, WRITES, prepared
from tests.table_factory import SCHEMA, contents, entries

PAGE = CHECKOUT / "docs" / "guides" / "access.md"
Role = Callable[[str], dict[str, str]]
Statements = list[dict[str, Any]]


def printed_policies() -> dict[str, Statements]:
    """Read the statements of each policy of the page."""
    found = re.findall(r'```json title="(\w+)"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    return {name: json.loads(text)["Statement"] for name, text in found}


def policies() -> dict[str, Statements]:
    """The statements of each role, as the page prints and describes them; `admin` may do everything in the bucket."""
    printed = printed_policies()
    return {
        "runs": printed["runs"],
        "unrecorded": [each for each in printed["runs"] if each["Sid"] != "RecordWrites"],
        "publisher": printed["publisher"],
        "maintenance": [each for each in printed["publisher"] if each["Sid"] != "KeepRows"],
        "reader": printed["runs"][:1],
        "admin": [{"Effect": "Allow", "Action": "s3:*", "Resource": ["arn:aws:s3:::lake", "arn:aws:s3:::lake/*"]}],
    }


REFUSED: Mapping[str, Callable[[LanceTable], object]] = {
    "append to main": lambda table: table.append(entries("b", 9)),
    "merge into main": lambda table: table.merge("run/1"),
    "move a tag": lambda table: table.tags.move("production", "main"),
    "create a tag": lambda table: table.tags.create("v1", "main"),
    "create another branch": lambda table: table.branches.create("team/x"),
    "restore": lambda table: table.restore("main@1"),
}


@dg.asset(key_prefix="shop", metadata={"lance/write_mode": "append"})
def orders() -> pa.Table:
    """Rows that a run appends."""
    return entries("a", 1, 2)


CHECKS = build_table_checks(orders, [RowCount(minimum=1)])
PUBLISHER = build_publisher([orders])


def materialized(root: str, storage_options: dict[str, str], *selection: dg.AssetKey) -> dg.ExecuteInProcessResult:
    """Run some assets and their checks with the credentials of a role."""
    lance_resource = LanceResource(root=root, storage_options=storage_options)
    return dg.materialize(
        [orders, *CHECKS, PUBLISHER],
        selection=dg.AssetSelection.assets(*selection),
        resources={"lance": lance_resource, "io_manager": LanceIOManager(lance=lance_resource)},
        instance=dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )


class AccessScenarios:
    """The work of each role, and what it is refused."""

    refusal = ""
    """What the server answers to a refused request, as a pattern; `{role}` and `{action}` may occur in it."""
    knows_conditions = True
    """Whether a policy can require `If-None-Match`: without that, only the publisher creates tables."""

    clock_seconds = 0.0
    """How far the server's clock may be behind the times of its objects."""

    @pytest.fixture
    def uri(self, lake: str) -> str:
        """A place that only this test uses."""
        return f"{lake}/{uuid.uuid4().hex}/orders.lance"

    def created(self, role: Role, uri: str) -> LanceTable:
        """Create a table with the least role that may, and open it as a run."""
        creator = "runs" if self.knows_conditions else "publisher"
        LanceTable.create(uri, SCHEMA, storage_options=role(creator))
        return LanceTable.open(uri, role("runs"))

    def refused(self, role: str, action: str = "s3:PutObject on") -> pytest.RaisesExc[PermissionRefusedError]:
        """Expect the refusal of an action."""
        return pytest.raises(PermissionRefusedError, match=self.refusal.format(role=role, action=action))

    def test_a_run_writes_its_branch_and_the_publisher_publishes_it(self, role: Role, uri: str) -> None:
        """The whole loop, each part with the credentials of its role."""
        run = self.created(role, uri)
        run.branches.create("run/1")
        run.append(entries("a", 1, 2, 3), branch="run/1")
        run.delete("value = 2", branch="run/1")
        # As another run of the same backfill reads it.
        run.branches.create("reads/2-abc")
        run.append(entries("b", 1), branch="reads/2-abc")
        run.merge("run/1", into="reads/2-abc")
        run.branches.delete("reads/2-abc")
        publisher = LanceTable.open(uri, role("publisher"))
        publisher.merge("run/1")
        publisher.tags.move("production", "main")
        publisher.branches.delete("run/1")
        reader = LanceTable.open(uri, role("reader"))
        assert [("a", 1), ("a", 3)] == contents(reader, "production")
        assert 2 == lance.dataset(uri, version="production", storage_options=role("reader")).count_rows()

    def test_a_run_of_dagster_records_what_the_publisher_publishes(self, role: Role, lake: str) -> None:
        """The first run makes the repository and records its write and verdict; only the publisher may publish it."""
        root = f"{lake}/{uuid.uuid4().hex}"
        if not self.knows_conditions:
            LanceRepository.create(root, role("publisher")).create_table("shop/orders", SCHEMA)
        assert materialized(root, role("runs"), orders.key).success
        recorded = LanceRepository.open(root, role("reader"))
        assert not materialized(root, role("runs"), *PUBLISHER.keys).success
        assert {} == recorded.channels.list()
        # Without Dagster's record of the run: the verdict is found in the lake.
        assert materialized(root, role("publisher"), *PUBLISHER.keys).success
        assert 2 == recorded.at("production")["shop/orders"].count_rows()

    def test_a_run_that_may_not_record_its_write_commits_nothing(self, role: Role, lake: str) -> None:
        """Rows without a record would never be published, so the run is told which permission it lacks."""
        root = f"{lake}/{uuid.uuid4().hex}"
        LanceRepository.create(root, role("publisher")).create_table("shop/orders", SCHEMA)
        failed = materialized(root, role("unrecorded"), orders.key).failure_data_for_node("shop__orders")
        assert failed is not None
        assert failed.error is not None
        assert f"refused to write {root}/_repository/" in failed.error.to_string()
        table = LanceTable.open(f"{root}/shop/orders.lance", role("publisher"))
        assert 0 == sum(table.count_rows(branch) for branch in table.branches.list())

    def test_a_run_forks_beside_an_outdated_fence_of_another_branch(self, role: Role, uri: str) -> None:
        """A branch that the publisher deleted two days ago has left a fence, which a run may not delete."""
        run = self.created(role, uri)
        fence = layout.branch_fence_file("fix", 1, int(time.time()) - 2 * FENCE_SECONDS, uuid.uuid4().hex)
        publisher = LanceTable.open(uri, role("publisher"))
        open_store(uri, role("publisher")).put(fence, b"")
        run.branches.create("run/1")
        run.append(entries("a", 1), branch="run/1")
        assert [("a", 1)] == contents(run, "run/1")
        publisher.branches.create("fix")
        assert not open_store(uri, role("publisher")).list(layout.DELETED_BRANCHES)

    @pytest.mark.parametrize("change", REFUSED)
    def test_a_run_cannot_change_what_readers_see(self, role: Role, uri: str, change: str) -> None:
        """A run cannot change main, tags or other branches: it gets one error that names the permission."""
        publisher = LanceTable.create(uri, SCHEMA, storage_options=role("publisher"))
        publisher.append(entries("a", 1))
        publisher.tags.create("production", "main@1")
        run = LanceTable.open(uri, role("runs"))
        run.branches.create("run/1")
        run.append(entries("b", 1), branch="run/1")
        before = (publisher.head(), publisher.tags.list(), publisher.branches.list())
        with self.refused("runs"):
            REFUSED[change](run)
        assert before == (publisher.head(), publisher.tags.list(), publisher.branches.list())

    def test_a_repository_is_moved_by_the_publisher_only(self, role: Role, lake: str) -> None:
        """A run pins the commit that it reads, once; whatever moves a channel or a commit is refused."""
        root = f"{lake}/{uuid.uuid4().hex}"
        table = self.created(role, f"{root}/orders.lance")
        table.branches.create("run/1")
        table.append(entries("a", 1, 2), branch="run/1")
        publisher = LanceRepository.create(root, role("publisher"))
        publisher.adopt()
        LanceTable.open(table.uri, role("publisher")).merge("run/1")
        publisher.commit("publish run 1")
        publisher.channels.create("production", reason="run 1 passed")
        run = LanceRepository.open(root, role("runs"))
        first = run.publications.pinned("1", "production")
        assert first is not None
        assert 2 == first["orders"].count_rows()
        LanceTable.open(table.uri, role("publisher")).append(entries("b", 1))
        publisher.commit("more")
        publisher.channels.promote("production", reason="more")
        again = run.publications.pinned("1", "production")
        assert again is not None
        assert first.commit.id == again.commit.id
        before = publisher.channels.history("production"), publisher.head()
        if self.knows_conditions:
            with self.refused("runs"):
                run.publications.pin_again("1", "production", publisher.head().id)
        for change in (
            lambda: run.channels.rollback("production", reason="quick"),
            lambda: run.channels.hold("production", reason="quick"),
            lambda: run.tags.create("v1", "production"),
            lambda: run.fork("orders", "team/x"),
        ):
            with self.refused("runs"):
                change()
        assert before == (publisher.channels.history("production"), publisher.head())
        assert 3 == LanceRepository.open(root, role("reader")).at("production")["orders"].count_rows()

    def test_a_reader_of_a_repository_needs_no_right_to_write(self, role: Role, lake: str) -> None:
        """All that can be read, with the status; each write is one error that names the permission."""
        root = f"{lake}/{uuid.uuid4().hex}"
        expected = prepared(LanceRepository.create(root, role("admin")))
        reader = LanceRepository.open(root, role("reader"))
        assert expected == {name: read(reader) for name, read in READS.items()}
        for write in WRITES.values():
            with self.refused("reader", "s3:(Put|Delete)Object on"):
                write(LanceRepository.open(root, role("reader")))
        assert expected == {name: read(reader) for name, read in READS.items()}

    def test_only_the_maintenance_job_deletes_rows(self, role: Role, uri: str) -> None:
        """A collection by the publisher leaves the rows of a deleted branch, one by the maintenance job does not."""
        run = self.created(role, uri)
        run.branches.create("run/1")
        run.append(entries("a", 1), branch="run/1")
        LanceTable.open(uri, role("publisher")).append(entries("b", 1))
        LanceTable.open(uri, role("publisher")).branches.delete("run/1")
        # Nothing that is younger than the clock of the server is garbage.
        time.sleep(self.clock_seconds)
        store = open_store(uri, role("reader"))
        rows = store.list("data")
        publisher, maintenance = (LanceTable.open(uri, role(name)).maintenance for name in ("publisher", "maintenance"))
        with pytest.raises(PermissionRefusedError):
            publisher.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
        assert rows == store.list("data")
        with self.refused("publisher", "s3:DeleteObject on"):
            open_store(uri, role("publisher")).delete(f"data/{rows[0]}")
        maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
        assert len(rows) - 1 == len(store.list("data"))
        assert [("b", 1)] == contents(LanceTable.open(uri, role("reader")))

    def test_no_plain_put_of_a_run_replaces_a_version(self, role: Role, uri: str) -> None:
        """Not even the first one, which it may create."""
        table = self.created(role, uri)
        LanceTable.open(uri, role("publisher")).append(entries("a", 1))
        for name in open_store(uri, role("reader")).list("_versions"):
            with self.refused("runs"):
                open_store(uri, role("runs")).put(f"_versions/{name}", b"")
        assert 2 == table.head().number

    def test_a_reader_writes_nothing(self, role: Role, uri: str, tmp_path: Path) -> None:
        """It is told which permission it lacks, and the refusal survives the way between processes."""
        publisher = LanceTable.create(uri, SCHEMA, storage_options=role("publisher"))
        store = open_store(uri, role("reader"))
        (tmp_path / "file").write_bytes(b"rows")
        for verb in (
            lambda: store.put("a", b"1"),
            lambda: store.put_if_absent("a", b"1"),
            lambda: store.delete("_refs/identity.json"),
            lambda: store.upload(tmp_path / "file", "data/x.lance"),
        ):
            with self.refused("reader", "s3:(Put|Delete)Object on"):
                verb()
        with pytest.raises(PermissionRefusedError):
            LanceTable.open(uri, role("reader")).branches.create("run/1")
        # pylance writes this file.
        with raises(PermissionRefusedError, known=True):
            LanceTable.open(uri, role("reader")).append(entries("a", 1))
        assert {} == publisher.branches.list()

    @pytest.mark.parametrize("wrong", [{"access_key_id": "nobody"}, {"secret_access_key": "misspelt"}])
    def test_wrong_credentials_are_told_from_missing_permissions(
        self, role: Role, uri: str, wrong: dict[str, str]
    ) -> None:
        """Whoever reads the error corrects the key, and does not ask for a permission."""
        with raises(PermissionRefusedError, known=False) as caught:
            LanceTable.open(uri, role("admin") | wrong)
        assert "permission" not in caught.value.hint
        assert caught.value.hint == pickle.loads(pickle.dumps(caught.value)).hint  # noqa: S301 - its own bytes
