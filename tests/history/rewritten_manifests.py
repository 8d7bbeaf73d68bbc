"""Manifests rewritten to look older, or to states that no commit of the package makes; and how to read them."""

from dataclasses import replace
from pathlib import Path

import pendulum

from lance_dagster import LanceTable
from lance_dagster.format.codec import decode_manifest_file, encode_manifest_file, encode_transaction
from lance_dagster.format.layout import branch_root, join, manifest_name
from lance_dagster.format.transaction import MERGE, MERGED_BRANCH, Transaction
from lance_dagster.store import LocalStore
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import context_on


def manifest_file(table: LanceTable, branch: str, number: int) -> Path:
    """The file of a version."""
    return Path(table.uri, join(branch_root(branch), "_versions"), manifest_name(number))


def date(table: LanceTable, times: dict[str, str]) -> LanceTable:
    """Change the commit times of versions; return the table opened again."""
    for ref, time in times.items():
        branch, _, number = ref.rpartition("@")
        path = manifest_file(table, branch, int(number))
        manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
        assert transaction is not None
        nanoseconds = int(pendulum.DateTime.fromisoformat(time).timestamp() * 1e6) * 1000
        path.write_bytes(
            encode_manifest_file(replace(manifest, timestamp=nanoseconds), encode_transaction(transaction))
        )
    return LanceTable.open(table.uri)


def skip_to(table: LanceTable, branch: str, number: int, merged: tuple[str, str] | None) -> None:
    """Commit a copy of the newest version under a given number, optionally as a merge (version, branch id)."""
    newest = max(table.branches.version_numbers(branch))
    path = manifest_file(table, branch, newest)
    manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
    assert transaction is not None
    properties = {MERGE: merged[0], MERGED_BRANCH: merged[1]} if merged else {}
    made = Transaction(
        read_version=newest, uuid=f"skip-{number}", operation=transaction.operation, properties=properties
    )
    data = encode_manifest_file(replace(manifest, version=number), encode_transaction(made))
    manifest_file(table, branch, number).write_bytes(data)


def watched(table: LanceTable) -> tuple[LanceTable, list[str]]:
    """The table opened again, and a list that collects the names of manifests that are read."""
    read: list[str] = []

    def script(request: Request) -> object:
        if request.verb == "get" and request.key.endswith(".manifest"):
            read.append(request.key)
        return request.send()

    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script))), read
