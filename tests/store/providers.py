"""Fresh places on a server of each provider, and what it takes to reach them, in pylance's words."""

import base64
import http.client
import json
import os
import shutil
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import S3Storage, free_port, server, server_process
from tests.servers.objects import REQUESTS

AZURITE = Path(sys.prefix, "azurite", "node_modules", "azurite", "dist", "src", "blob", "main.js")
# Azurite's own account, which is in its documentation.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def azurite(log: Path) -> Iterator[str]:
    """Microsoft's own emulator of Blob Storage, with a container `lake`; its endpoint."""
    if not AZURITE.exists() or not shutil.which("node"):
        reason = "Azurite is not installed; `make azurite` installs it with npm"
        if "LANCE_DAGSTER_AZURITE_REQUIRED" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    port = free_port()
    command = ["node", str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    # The newest version of the protocol that clients speak is a step ahead of the emulator's.
    with server_process(log, port, [*command, "--skipApiVersionCheck", "--inMemoryPersistence"]) as address:
        yield f"http://{address}/{ACCOUNT}"


def azure_storage(endpoint: str) -> S3Storage:
    """A container of the test's own."""
    from azure.storage.blob import BlobServiceClient

    name = f"test-{uuid.uuid4().hex}"
    credential = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
    with BlobServiceClient(endpoint, credential=credential) as client:
        client.create_container(name)
    options = {
        "account_name": ACCOUNT,
        "account_key": ACCOUNT_KEY,
        "azure_storage_endpoint": endpoint,
        "allow_http": "true",
    }
    return S3Storage(uri=f"az://{name}", storage_options=options)


@contextmanager
def google_server(log: Path) -> Iterator[str]:
    """The strict server of the tests; its endpoint."""
    with server(log, "tests.servers.google_server") as address:
        yield f"http://{address}"


def google_storage(endpoint: str) -> S3Storage:
    """A bucket of the test's own, and the key of an emulator, by which pylance finds the server."""
    name = f"test-{uuid.uuid4().hex}"
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    connection.request("POST", "/storage/v1/b", json.dumps({"name": name}))
    assert http.client.OK == connection.getresponse().status
    connection.close()
    return S3Storage(uri=f"gs://{name}", storage_options=emulator_key(endpoint))


def emulator_key(endpoint: str) -> dict[str, str]:
    """The key of a service account that says where an emulator is, as pylance understands it."""
    key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return {"google_service_account_key": json.dumps(key), "allow_http": "true"}


def canary_sas() -> str:
    """A signature in a query, such as Azure gives out, that opens nothing."""
    return f"sv=2025-01-05&sp=racwdl&sig={base64.b64encode(b'canary-signature').decode()}"


def endpoint_of(storage: S3Storage) -> str:
    """The address of the server of S3 or Google."""
    options = storage.storage_options
    return options.get("aws_endpoint") or str(json.loads(options["google_service_account_key"])["gcs_base_url"])


def requests_of(storage: S3Storage, act: Callable[[], object]) -> list[str]:
    """The methods of the requests that the server of S3 or Google gets while something is done."""
    endpoint = endpoint_of(storage)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(endpoint + REQUESTS).close()
    act()
    with opener.open(endpoint + REQUESTS) as answer:
        return [line.partition(" ")[0] for line in json.load(answer)]
