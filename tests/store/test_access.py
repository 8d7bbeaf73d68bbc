"""The policies of docs/guides/access.md, enforced by a server: the rights of each role, and the errors of refusals."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import PermissionRefusedError
from lance_dagster.store import open_store
from tests.conftest import CHECKOUT, request, server
from tests.raising import raises
from tests.store.access_scenarios import AccessScenarios, Role, policies
from tests.table_factory import SCHEMA


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    """The storage options of a role on a server with a bucket `lake`."""
    folder = tmp_path_factory.mktemp("access")
    accounts = {
        name: {"name": f"role/{name}", "secret_access_key": f"{name}-secret", "policy": {"Statement": statements}}
        for name, statements in policies().items()
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


class TestOurServer(AccessScenarios):
    """The policies as the page prints them."""

    refusal = r"role/{role} is not authorized to perform: {action}"

    @pytest.fixture
    def lake(self) -> str:
        """The only bucket that the policies name."""
        return "s3://lake"

    def test_a_version_is_never_written_over(self, role: Role, uri: str) -> None:
        """Not even by the publisher: the policy refuses manifests without a condition."""
        table = LanceTable.create(uri, SCHEMA, storage_options=role("publisher"))
        (name,) = open_store(uri, role("publisher")).list("_versions")
        with self.refused("publisher"):
            open_store(uri, role("publisher")).put(f"_versions/{name}", b"")
        assert 1 == table.head().number


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


def test_credentials_and_region_of_a_profile(role: Role, tmp_path: Path) -> None:
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
    command = [sys.executable, "-W", "ignore", "-c", IN_A_PROFILE, "s3://lake/profile.lance", role("admin")["endpoint"]]
    done = subprocess.run(command, env=env, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (0, "1") == (done.returncode, done.stdout.strip()), done.stderr


def test_a_table_opened_anew_has_the_present_credentials(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the environment or of a file: after a change, what is opened has the new ones; else it shares a client."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    uri = "s3://lake/renewed.lance"
    options = {name: value for name, value in role("admin").items() if "key" not in name}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "admin")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
    with raises(PermissionRefusedError, known=False):
        LanceTable.open(uri, options)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "admin-secret")
    LanceTable.create(uri, SCHEMA, storage_options=options)
    first, second = (open_store(f"s3://lake/{name}", options) for name in ("a", "b"))
    assert first._fs is second._fs  # type: ignore[attr-defined] # noqa: SLF001 - no verb shows its client
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("publisher", "reader"):
        file.write_text(f"[default]\naws_access_key_id={name}\naws_secret_access_key={name}-secret\n")
        table = LanceTable.open(uri, options)
        if name == "publisher":
            table.tags.create("kept", "main")
    with pytest.raises(PermissionRefusedError):
        table.tags.create("another", "main")
