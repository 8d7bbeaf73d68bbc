"""Ceph's object gateway as a server of the tests: one monitor, one store in memory, one gateway, and nothing on disk.

It is the only S3 server here that was not written for tests. On Debian, `apt-get install --no-install-recommends
radosgw ceph-mon ceph-osd` installs it; it needs no running service and no rights.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import s3fs

from tests.conftest import HOST, S3Storage, free_port, server_process

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "ceph-authtool", "monmaptool")
ACCESS_KEY = "tests"
CONFIGURATION_FILE = "ceph.conf"
KEYS = {
    "mon.": ("mon", "allow *"),
    "client.admin": ("mon", "allow *", "osd", "allow *"),
    "osd.0": ("mon", "allow profile osd", "osd", "allow *"),
    "client.rgw.a": ("mon", "allow rwx", "osd", "allow rwx"),
}
# One replica on one store, a monitor that ignores a full disk, and a gateway that does not wait for more to send:
# without `tcp_nodelay` each small answer takes 40 ms.
CONFIGURATION = """
[global]
fsid = {fsid}
mon_initial_members = a
mon_host = [v2:{host}:{monitor}]
public_addr = {host}
keyring = {folder}/keyring
run_dir = {folder}
admin_socket = {folder}/$name.asok
pid_file = {folder}/$name.pid
log_file = {folder}/$name.log
mon_data = {folder}/mon
mon_data_avail_crit = 1
mon_max_pg_per_osd = 1000
osd_data = {folder}/osd
osd_objectstore = memstore
memstore_device_bytes = 4294967296
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
[client.rgw.a]
rgw_data = {folder}/rgw
rgw_frontends = beast endpoint={host}:{gateway} tcp_nodelay=1
"""
START_SECONDS = 120


def missing_programs() -> str | None:
    """Return which programs are missing and what installs them, or None if Ceph is installed."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not missing:
        return None
    return f"Ceph is not installed ({', '.join(missing)}); on Debian: apt-get install radosgw ceph-mon ceph-osd"


def _run(folder: Path, *command: str) -> None:
    environment = {**os.environ, "CEPH_CONF": str(folder / CONFIGURATION_FILE)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=START_SECONDS)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def new_user(folder: Path, name: str, *, caps: str = "") -> None:
    """Create a user of the gateway with files in a folder: the access key is the name, `caps` are what it manages."""
    keys = (f"--access-key={name}", f"--secret-key={name}-secret", *([f"--caps={caps}"] if caps else []))
    _run(folder, "radosgw-admin", "user", "create", f"--uid={name}", f"--display-name={name}", *keys)


def options_of(endpoint: str, name: str) -> dict[str, str]:
    """Return the storage options of a user."""
    keys = {"access_key_id": name, "secret_access_key": f"{name}-secret", "region": "us-east-1"}
    return keys | {"endpoint": endpoint, "allow_http": "true"}


def new_bucket(endpoint: str) -> S3Storage:
    """Make a new bucket on a gateway."""
    name = f"test-{uuid.uuid4().hex}"
    client(endpoint, ACCESS_KEY)("create_bucket", Bucket=name)
    return S3Storage(uri=f"s3://{name}", storage_options=options_of(endpoint, ACCESS_KEY))


def client(endpoint: str, name: str) -> Callable[..., Any]:
    """Return a function that sends one request of S3 as a user; it takes the name and the arguments of the request."""
    send: Callable[..., Any] = s3fs.S3FileSystem(key=name, secret=f"{name}-secret", endpoint_url=endpoint).call_s3
    return send


@contextmanager
def ceph(folder: Path) -> Iterator[str]:
    """Run a gateway, with the files of its processes in a folder; give its endpoint."""
    reason = missing_programs()
    if reason is not None:
        pytest.fail(reason)
    monitor, gateway, fsid = free_port(), free_port(), str(uuid.uuid4())
    for name in ("mon", "osd", "rgw"):
        (folder / name).mkdir()
    configuration = folder / CONFIGURATION_FILE
    configuration.write_text(
        CONFIGURATION.format(folder=folder, host=HOST, monitor=monitor, gateway=gateway, fsid=fsid)
    )

    run = partial(_run, folder)
    keyring, monmap, configured = str(folder / "keyring"), str(folder / "monmap"), ("-c", str(configuration))
    for number, (name, capabilities) in enumerate(KEYS.items()):
        pairs = zip(capabilities[::2], capabilities[1::2], strict=True)
        given = [word for daemon, allowed in pairs for word in ("--cap", daemon, allowed)]
        run("ceph-authtool", keyring, *(["--create-keyring"] if not number else []), "--gen-key", "-n", name, *given)
    run("monmaptool", "--create", "--addv", "a", f"[v2:{HOST}:{monitor}]", "--fsid", fsid, monmap)
    run("ceph-mon", *configured, "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
    with ExitStack() as ends:

        def start(*command: str) -> None:
            # It runs in the foreground, so that it ends with the test.
            ends.enter_context(_daemon(folder / f"{command[0]}.out", [*command, *configured, "-f"]))

        start("ceph-mon", "-i", "a")
        store_id = str(uuid.uuid4())
        run("ceph", "osd", "new", store_id)
        run("ceph-osd", *configured, "-i", "0", "--mkfs", "--osd-uuid", store_id)
        start("ceph-osd", "-i", "0")
        new_user(folder, ACCESS_KEY, caps="user-policy=*")
        command = ["radosgw", "-n", "client.rgw.a", *configured, "-f"]
        with server_process(folder / "radosgw.out", gateway, command) as address:
            yield f"http://{address}"


@contextmanager
def _daemon(log: Path, command: Sequence[str]) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.kill()
        process.wait(timeout=30)
