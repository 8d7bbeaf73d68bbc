"""Tables that reference the files of another table, and the readers who may follow these references."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.errors import BasePathRefusedError, CorruptFileError
from lance_dagster.format.codec import decode_manifest_file, encode_manifest_file, encode_transaction, row_id_range
from lance_dagster.format.model import BasePath, Fragments
from lance_dagster.format.transaction import Append, Transaction
from lance_dagster.transactions.apply import with_feature_flags
from lance_dagster.transactions.base_paths import with_base
from tests.history.rewritten_manifests import manifest_file
from tests.raising import raises
from tests.table_factory import contents, context_of, entries, new_table

VARIABLE = "LANCE_DAGSTER_ALLOWED_BASE_PATHS"
PRIVATE = [("salary", 9), ("salary", 10)]
EVERY_USE: dict[str, Callable[[LanceTable], object]] = {
    "read": lambda table: table.read(),
    "scan": lambda table: table.scan().read_all(),
    "count": lambda table: table.count_rows(filter="value = 9"),
    "to_lance": lambda table: table.to_lance(),
    "diff": lambda table: table.diff("main@2", "main").rows().read_all(),
    "delete": lambda table: table.delete("value = 9"),
    "update": lambda table: table.update({"value": "1"}, where="value = 9"),
    "upsert": lambda table: table.upsert(entries("salary", 9), on=["key"]),
    "replace": lambda table: table.replace_where("value = 9", entries("salary", 9)),
    "compact": lambda table: table.maintenance.compact(),
    "stage": lambda table: table.stage(entries("a", 1), base="other"),
    "deep clone": lambda table: table.maintenance.clone(f"{table.uri}-copy", shallow=False),
    "shallow clone": lambda table: table.maintenance.clone(f"{table.uri}-copy"),
}


def hostile(folder: Path, place: str) -> LanceTable:
    """A table whose newest manifest references the fragments of another table, of one row each, by a base path."""
    table = new_table(folder / "uploads", entries("a", 1))
    private = context_of(LanceTable.open(place)).head("main").manifest
    path = manifest_file(table, "main", 2)
    manifest, _ = decode_manifest_file(path.read_bytes(), str(path))
    base = BasePath(id=7, name="other", path=place, is_dataset_root=True)
    start = manifest.next_row_id
    stolen = with_base(
        [
            replace(fragment, id=5 + number, row_ids=row_id_range(start + number, 1))
            for number, fragment in enumerate(private.fragments)
        ],
        base,
    )
    made = replace(
        manifest,
        version=3,
        base_paths=(base,),
        fragments=Fragments([*manifest.fragments, *stolen]),
        max_fragment_id=4 + len(stolen),
        next_row_id=start + len(stolen),
    )
    transaction = Transaction(read_version=2, uuid=str(uuid.uuid4()), operation=Append(fragments=stolen))
    data = encode_manifest_file(with_feature_flags(made), encode_transaction(transaction))
    manifest_file(table, "main", 3).write_bytes(data)
    return LanceTable.open(table.uri)


@pytest.fixture
def private(tmp_path: Path) -> LanceTable:
    """A table in its own folder that only the reader may read."""
    return new_table(tmp_path / "private", entries("salary", 9), entries("salary", 10))


@pytest.mark.parametrize("use", EVERY_USE)
def test_no_use_of_a_table_follows_it_into_another_one(tmp_path: Path, private: LanceTable, use: str) -> None:
    """The writer of a manifest cannot make a reader pass on rows that only the reader may read."""
    table = hostile(tmp_path, private.uri)
    with raises(BasePathRefusedError, place=private.uri):
        EVERY_USE[use](table)
    assert [3, 2, 1] == [version.number for version in table.log()]
    assert [("a", 1)] == contents(table, "main@2")
    assert not list(tmp_path.glob("uploads/*-copy/_versions/*"))


@pytest.mark.parametrize(
    "spelling",
    ["{}/", "file://{}", "{}/../{name}", "{table}/../../private/{name}", "{table}/data/../../../private/{name}"],
)
def test_no_spelling_of_the_place_hides_it(tmp_path: Path, private: LanceTable, spelling: str) -> None:
    """A path that begins like a folder of the table may lead out of it."""
    name = Path(private.uri).name
    table = hostile(tmp_path, private.uri)
    path = manifest_file(table, "main", 3)
    manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
    (base,) = manifest.base_paths
    place = spelling.format(private.uri, name=name, table=table.uri)
    assert transaction is not None
    changed = replace(manifest, base_paths=(replace(base, path=place),))
    path.write_bytes(encode_manifest_file(changed, encode_transaction(transaction)))
    with raises(BasePathRefusedError, place=private.uri):
        LanceTable.open(table.uri).read()


def test_a_base_path_with_credentials_in_it_is_refused(tmp_path: Path, private: LanceTable) -> None:
    """Neither the message nor the report of a verification shows them."""
    table = hostile(tmp_path, private.uri)
    path = manifest_file(table, "main", 3)
    manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
    assert transaction is not None
    (base,) = manifest.base_paths
    changed = replace(manifest, base_paths=(replace(base, path="s3://key:hunter2@bucket/t"),))
    path.write_bytes(encode_manifest_file(changed, encode_transaction(transaction)))
    with raises(CorruptFileError, path=str(path)) as caught:
        LanceTable.open(table.uri).read()
    report = LanceTable.open(table.uri).maintenance.verify()
    assert not report.ok
    assert "hunter2" not in str(caught.value) + str(report)


def test_verify_lists_the_place(tmp_path: Path, private: LanceTable) -> None:
    """A place that is not allowed is an error, and an allowed one is a line of the report."""
    table = hostile(tmp_path, private.uri)
    report = table.maintenance.verify()
    assert (private.uri,) == report.base_paths
    assert any("not allowed" in problem.what and problem.path == private.uri for problem in report.problems)
    allowed = LanceTable.open(table.uri, {"allowed_base_paths": private.uri}).maintenance.verify()
    about = [problem for problem in allowed.problems if private.uri in str(problem)]
    assert ((private.uri,), []) == (allowed.base_paths, about)
    assert f"files outside of the table: {private.uri}" in str(allowed)


@pytest.mark.parametrize("given", ["{}", "/nowhere, {}/", "file://{}", "{above}", "/"])
def test_a_caller_can_allow_the_place(
    tmp_path: Path, private: LanceTable, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage option or an environment variable allows the place and everything below it."""
    table = hostile(tmp_path, private.uri)
    allowed = given.format(private.uri, above=Path(private.uri).parent)
    trusting = LanceTable.open(table.uri, {"allowed_base_paths": allowed})
    assert [("a", 1), *PRIVATE] == contents(trusting)
    with pytest.raises(BasePathRefusedError):
        contents(table)
    monkeypatch.setenv(VARIABLE, allowed)
    assert [("a", 1), *PRIVATE] == contents(LanceTable.open(table.uri))


def test_a_place_that_only_pylance_can_open_is_pylances_once_it_is_allowed(tmp_path: Path, private: LanceTable) -> None:
    """The package has no store for the scheme, but pylance has, and opens the version."""
    table = hostile(tmp_path, private.uri)
    path = manifest_file(table, "main", 3)
    manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
    assert transaction is not None
    (base,) = manifest.base_paths
    changed = replace(manifest, base_paths=(replace(base, path="memory://place/t"),))
    path.write_bytes(encode_manifest_file(changed, encode_transaction(transaction)))
    with pytest.raises(InvalidInputError, match="cannot store tables"):
        LanceTable.open(table.uri).to_lance()
    assert 3 == LanceTable.open(table.uri, {"allowed_base_paths": "memory://place/t"}).to_lance().version


def test_a_place_beside_the_allowed_one_is_not_allowed(tmp_path: Path, private: LanceTable) -> None:
    """`/data/private` does not allow `/data/private-2`."""
    table = hostile(tmp_path, private.uri)
    with pytest.raises(BasePathRefusedError):
        LanceTable.open(table.uri, {"allowed_base_paths": private.uri[:-1]}).read()


def test_the_owner_of_the_place_can_allow_it_for_every_reader(tmp_path: Path, private: LanceTable) -> None:
    """The owner needs the right to write at the place; the allowance applies to one table."""
    table = hostile(tmp_path, private.uri)
    table.maintenance.allow_base(private.uri)
    assert [("a", 1), *PRIVATE] == contents(LanceTable.open(table.uri))
    with pytest.raises(BasePathRefusedError):
        hostile(tmp_path, private.uri).read()
    assert PRIVATE == contents(private)
    assert private.maintenance.verify().ok


def test_a_signature_in_a_place_to_allow_is_not_shown(tmp_path: Path) -> None:
    """The error says what is wrong with the place."""
    with pytest.raises(InvalidInputError, match="cannot contain") as caught:
        new_table(tmp_path).maintenance.allow_base("s3://bucket/x?sig=hunter2")
    assert "hunter2" not in str(caught.value)


PROGRAM = """
import sys
from lance_dagster import LanceTable
print(sorted(row["value"] for uri in sys.argv[1:] for row in LanceTable.open(uri).read().to_pylist()))
"""


def test_another_process_reads_what_this_package_spread_and_cloned(tmp_path: Path) -> None:
    """Added base paths, clones and clones of clones need no option."""
    table = new_table(tmp_path, entries("hot", 1))
    table.maintenance.add_base("cold", tmp_path / "cold")
    table.append(table.stage(entries("cold", 2), base="cold"))
    clone = table.maintenance.clone(tmp_path / "clone")
    clone.append(entries("more", 3))
    second = clone.maintenance.clone(tmp_path / "second")
    uris = [table.uri, clone.uri, second.uri]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, *uris], env=environment, check=True, capture_output=True)
    assert "[1, 1, 1, 2, 2, 2, 3, 3]" == done.stdout.decode().strip()


def test_branches_of_pylance_need_no_allowance(tmp_path: Path) -> None:
    """The branches reference the table itself, in the spelling with which it was opened."""
    table = new_table(tmp_path, entries("a", 1))
    for number, uri in enumerate((table.uri, f"file://{table.uri}")):
        made: Any = lance.dataset(uri).create_branch(f"b{number}", 2)
        made.insert(entries("b", number))
        assert [("a", 1), ("b", number)] == contents(table, f"b{number}")
