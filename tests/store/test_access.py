"""The policies of docs/guides/access.md, enforced by a server: the rights of each role, and the errors of refusals."""

import json
import os
import pickle
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.errors import PermissionRefusedError
from lance_dagster.store import open_store
from tests.conftest import CHECKOUT, request, server
from tests.repository.test_readers import READS, WRITES, prepared
from tests.table_factory import SCHEMA, contents, entries

PAGE = CHECKOUT / "docs" / "guides" / "access.md"
Role = Callable[[str], dict[str, str]]


def policies() -> Mapping[str, dict[str, list[dict[str, object]]]]:
    """The policies of the page by their roles; readers have the first statement of the runs."""
    found = {
        name: json.loads(text) for name, text in re.findall(r"```json (\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    }
    return found | {"reader": {"Statement": found["runs"]["Statement"][:1]}}


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    """The storage options of a role on a server with a bucket `lake`."""
    folder = tmp_path_factory.mktemp("access")
    everything = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    accounts = {
        name: {"name": f"role/{name}", "secret_access_key": f"{name}-secret", "policy": policy}
        for name, policy in {**policies(), "admin": everything}.items()
    }
    (folder / "accounts.json").write_text(json.dumps(accounts))
    arguments = ("--accounts", str(folder / "accounts.json"))
    with server(folder / "server.log", "tests.servers.s3_server", *arguments) as address:
        assert 403 == request(address, "PUT", "/lake")

        def options(name: str) -> dict[str, str]:
            keys = {"access_key_id": name, "secret_access_key": f"{name}-secret", "region": "us-east-1"}
            return keys | {"endpoint": f"http://{address}", "allow_http": "true"}

        open_store("s3://lake", options("admin"))._call("create_bucket")  # type: ignore[attr-defined] # noqa: SLF001 - no verb makes buckets
        yield options


@pytest.fixture
def uri() -> str:
    """A place that only this test uses."""
    return f"s3://lake/{uuid.uuid4().hex}/orders.lance"


def test_a_run_writes_its_branch_and_the_publisher_publishes_it(role: Role, uri: str) -> None:
    """The whole loop, each part with the credentials of its role."""
    run = LanceTable.create(uri, SCHEMA, storage_options=role("runs"))
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


REFUSED: Mapping[str, Callable[[LanceTable], object]] = {
    "append to main": lambda table: table.append(entries("b", 9)),
    "merge into main": lambda table: table.merge("run/1"),
    "move a tag": lambda table: table.tags.move("production", "main"),
    "create a tag": lambda table: table.tags.create("v1", "main"),
    "create another branch": lambda table: table.branches.create("team/x"),
    "restore": lambda table: table.restore("main@1"),
}


@pytest.mark.parametrize("change", REFUSED)
def test_a_run_cannot_change_what_readers_see(role: Role, uri: str, change: str) -> None:
    """A run cannot change main, tags or other branches: it gets one error that names the permission."""
    publisher = LanceTable.create(uri, SCHEMA, storage_options=role("publisher"))
    publisher.append(entries("a", 1))
    publisher.tags.create("production", "main@1")
    run = LanceTable.open(uri, role("runs"))
    run.branches.create("run/1")
    run.append(entries("b", 1), branch="run/1")
    before = (publisher.head(), publisher.tags.list(), publisher.branches.list())
    with pytest.raises(
        PermissionRefusedError, match=r"role/runs is not authorized to perform: s3:PutObject on resource"
    ):
        REFUSED[change](run)
    assert before == (publisher.head(), publisher.tags.list(), publisher.branches.list())


def test_a_repository_is_moved_by_the_publisher_only(role: Role) -> None:
    """A run pins the commit that it reads, once; whatever moves a channel or a commit of the repository is refused."""
    root = f"s3://lake/{uuid.uuid4().hex}"
    table = LanceTable.create(f"{root}/orders.lance", SCHEMA, storage_options=role("runs"))
    table.branches.create("run/1")
    table.append(entries("a", 1, 2), branch="run/1")
    publisher = LanceRepository.create(root, role("publisher"))
    publisher.adopt()
    LanceTable.open(table.uri, role("publisher")).merge("run/1")
    publisher.commit("publish run 1")
    publisher.channels.create("production", reason="run 1 passed")
    run = LanceRepository.open(root, role("runs"))
    first = run.pinned("1", "production")
    assert first is not None
    assert 2 == first["orders"].count_rows()
    LanceTable.open(table.uri, role("publisher")).append(entries("b", 1))
    publisher.commit("more")
    publisher.channels.promote("production", reason="more")
    again = run.pinned("1", "production")
    assert again is not None
    assert first.commit.id == again.commit.id
    before = publisher.channels.history("production"), publisher.head()
    for change in (
        lambda: run.pin_again("1", "production", publisher.head().id),
        lambda: run.channels.rollback("production", reason="quick"),
        lambda: run.channels.hold("production", reason="quick"),
        lambda: run.tags.create("v1", "production"),
        lambda: run.fork("orders", "team/x"),
    ):
        with pytest.raises(PermissionRefusedError, match="role/runs is not authorized to perform: s3:PutObject"):
            change()
    assert before == (publisher.channels.history("production"), publisher.head())
    assert 3 == LanceRepository.open(root, role("reader")).at("production")["orders"].count_rows()


def test_a_reader_of_a_repository_needs_no_right_to_write(role: Role) -> None:
    """All that can be read, with the status; each write is one error that names the permission."""
    root = f"s3://lake/{uuid.uuid4().hex}"
    expected = prepared(LanceRepository.create(root, role("admin")))
    reader = LanceRepository.open(root, role("reader"))
    assert expected == {name: read(reader) for name, read in READS.items()}
    for write in WRITES.values():
        with pytest.raises(PermissionRefusedError, match=r"role/reader is not authorized to perform: s3:(Put|Delete)"):
            write(LanceRepository.open(root, role("reader")))
    assert expected == {name: read(reader) for name, read in READS.items()}


def test_a_version_is_never_written_over(role: Role, uri: str) -> None:
    """Not even by the publisher, and by nobody's plain put: the policy refuses manifests without a condition."""
    table = LanceTable.create(uri, SCHEMA, storage_options=role("publisher"))
    (name,) = open_store(uri, role("publisher")).list("_versions")
    with pytest.raises(PermissionRefusedError):
        open_store(uri, role("publisher")).put(f"_versions/{name}", b"")
    with pytest.raises(PermissionRefusedError):
        open_store(uri, role("runs")).put(f"_versions/{name}", b"")
    assert 1 == table.head().number


def test_a_reader_writes_nothing(role: Role, uri: str, tmp_path: Path) -> None:
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
        with pytest.raises(PermissionRefusedError, match="role/reader is not authorized to perform: s3:"):
            verb()
    with pytest.raises(PermissionRefusedError):
        LanceTable.open(uri, role("reader")).branches.create("run/1")
    assert {} == publisher.branches.list()


@pytest.mark.parametrize("wrong", [{"access_key_id": "nobody"}, {"secret_access_key": "misspelt"}])
def test_wrong_credentials_are_told_from_missing_permissions(role: Role, uri: str, wrong: dict[str, str]) -> None:
    """Whoever reads the error corrects the key, and does not ask for a permission."""
    with pytest.raises(PermissionRefusedError, match="correct the key and its secret") as caught:
        LanceTable.open(uri, role("admin") | wrong)
    assert "permission" not in caught.value.hint
    assert caught.value.hint == pickle.loads(pickle.dumps(caught.value)).hint  # noqa: S301 - its own bytes


IN_A_PROFILE = """
import sys
import pyarrow as pa
from lance_dagster import LanceTable
uri, endpoint = sys.argv[1:]
options = {"endpoint": endpoint, "allow_http": "true"}
table = LanceTable.create(uri, pa.schema([("a", pa.int64())]), storage_options=options)
table.append(pa.table({"a": [1]}))
print(table.read().num_rows)
"""


def test_credentials_and_region_of_a_profile(role: Role, uri: str, tmp_path: Path) -> None:
    """Both this package and pylance take them from the files that `AWS_PROFILE` chooses from."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=other\naws_secret_access_key=wrong\n"
        "[lake]\naws_access_key_id=admin\naws_secret_access_key=admin-secret\n"
    )
    (tmp_path / "config").write_text("[profile lake]\nregion=us-east-1\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_PROFILE": "lake",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    command = [sys.executable, "-W", "ignore", "-c", IN_A_PROFILE, uri, role("admin")["endpoint"]]
    done = subprocess.run(command, env=env, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (0, "1") == (done.returncode, done.stdout.strip()), done.stderr
