"""The table on which schedules of several actors are run, copies of it, and what holds of it after each schedule."""

import json
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import LanceDagsterError, RefNotFoundError
from lance_dagster.history.refs.ref_files import READY, REMOVER
from lance_dagster.store import LocalStore
from tests.table_factory import SCHEMA, context_of, entries

_numbers = count(1)


def made_template(folder: Path) -> LanceTable:
    """Two versions of main, and a branch `run` with two commits of its own."""
    made = LanceTable.create(folder / f"{0:06}", SCHEMA)
    for key, value in (("a", 1), ("b", 2)):
        made.append(entries(key, value))
    made.branches.create("run")
    made.append(entries("old", 1), branch="run")
    made.append(entries("old", 2), branch="run")
    return made


def copied(template: LanceTable) -> Path:
    """Copy the template to a new path, since pylance caches files by name."""
    uri = Path(template.uri).parent / f"{next(_numbers):06}"
    shutil.copytree(template.uri, uri)
    for path in uri.rglob("*"):
        if path.suffix in (".manifest", ".txn"):
            # The manifests of a branch contain the table's path; the two paths have the same length.
            path.write_bytes(path.read_bytes().replace(template.uri.encode(), str(uri).encode()))
    return uri


def let_time_pass(table: LanceTable) -> None:
    """Let the period pass in which another process may delete a file."""
    for file in Path(table.uri, "_refs/branches").glob("*.json"):
        found = json.loads(file.read_text())
        if REMOVER in found["metadata"]:
            found["metadata"][REMOVER] = "0 0"
            file.write_text(json.dumps(found))


def assert_free(table: LanceTable, name: str) -> None:
    """The name can be deleted, created, committed to and deleted again, whatever a failed actor left."""
    for old, new in (("run", "new"), ("new", "run")):
        # An interrupted renaming is completed by repeating it.
        found = context_of(table).refs.branches.find(new)
        if found is not None and found.state != READY and "lance_dagster.renamed_from" in found.metadata:
            with suppress(LanceDagsterError):
                table.branches.rename(old, new)
    table.branches.create(name, exist_ok=True)
    table.append(entries("free", 1), branch=name)
    table.branches.delete(name)
    with pytest.raises(RefNotFoundError):
        table.branches.get(name)
    assert not list(Path(table.uri, "tree", name, "_versions").glob("*.manifest"))


class ForgetfulStore(LocalStore):
    """A store that ignores the condition of a deletion, as some S3 servers do."""

    def deletes_conditionally(self) -> bool:
        """Return that it does not."""
        return False

    def compare_and_delete(self, key: str, tag: str) -> bool:  # noqa: ARG002 - ignored
        """Delete the object without checking the tag."""
        self.delete(key)
        return True
