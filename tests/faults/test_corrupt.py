"""Hundreds of damaged files, and what users of the table see.

All are tried in one separate process: no use may hang, or raise anything but this package's errors, each of which names
the file, and no small file may fill the memory.
"""

import json
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CorruptFileError, FormatError, RefNotFoundError, UnsupportedFeatureError
from lance_dagster.format.codec import decode_indices, decode_transaction, encode_transaction
from lance_dagster.format.deletions import ARROW_FILE, BITMAP_FILE, decode_offsets
from lance_dagster.format.model import Field
from lance_dagster.format.schema import arrow_from_fields
from lance_dagster.history.versions import Versions
from lance_dagster.store import LocalStore
from tests.faults.mutations import Mutation, by_bytes, of_deletion, of_json, of_manifest, of_transaction, rewritten
from tests.faults.probe_process import rows
from tests.raising import raises
from tests.soak import FACTOR

pytestmark = pytest.mark.slow

MIB = 256
SECONDS = 240
Report = list[dict[str, Any]]


def _table(folder: Path) -> Path:
    """A table with both kinds of deletion files, an index, a branch of a branch, and a tag."""
    path = folder / "table"
    table = LanceTable.create(path, rows(0).schema)
    table.append(rows(7000))
    table.append(rows(100))
    table.tags.create("release", "main@2")
    lance.dataset(str(path)).create_scalar_index("value", "BTREE")
    table.branches.create("run")
    table.append(rows(10), branch="run")
    table.branches.create("inner", "run")
    table.append(rows(5), branch="inner")
    lance.dataset(str(path)).delete("value >= 1000 and value < 6500")
    lance.dataset(str(path)).delete("value = 51")
    return path


def _mutations(table: Path) -> Iterator[tuple[str, Mutation]]:
    """Mutations of every kind of file; a fraction of them is tried on pylance too."""

    def some(damage: Iterator[Mutation], every: int) -> Iterator[tuple[str, Mutation]]:
        for number, mutation in enumerate(damage):
            yield "package" if not every or number % every else "all", mutation

    def newest(folder: str) -> tuple[str, bytes]:
        path = min((table / folder / "_versions").glob("*.manifest"))
        return str(path.relative_to(table)), path.read_bytes()

    manifest = newest(".")
    yield from some(by_bytes(*manifest, flips=60), 4)
    yield from some(of_manifest(*manifest), 3)
    yield from some(by_bytes(*newest("tree/inner"), flips=16), 8)
    for path in sorted((table / "_deletions").iterdir()):
        # Some of these make pylance abort the process, because it asks for petabytes of memory.
        name, data = str(path.relative_to(table)), path.read_bytes()
        yield from some(by_bytes(name, data, flips=24), 0)
        yield from some(of_deletion(name), 0)
    for name in ("_refs/branches/run.json", "_refs/tags/release.json"):
        data = (table / name).read_bytes()
        yield from some(by_bytes(name, data, flips=24), 0)
        yield from some(of_json(name, data, branch="branches" in name), 40)
    hint = "_versions/latest_version_hint.json"
    yield from some(by_bytes(hint, (table / hint).read_bytes(), flips=4), 8)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The outcome for each damaged table, and how the process that used them ended."""
    folder = tmp_path_factory.mktemp("corrupt")
    table = _table(folder)
    wanted, lines = folder / "mutations", folder / "report"
    mutations = list(_mutations(table))
    chosen = mutations if FACTOR else random.Random("every other").sample(mutations, len(mutations) // 2)
    wanted.write_bytes(pickle.dumps(chosen))
    command = [sys.executable, "-m", "tests.faults.probe_process", str(table), str(wanted), str(lines)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=SECONDS, check=False)
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert 0 == done.returncode, f"it died at {found[-1]}: {done.stderr[-2000:]}"
    return found


@pytest.mark.scaled
def test_every_damaged_file_is_named_or_harmless(report: Report) -> None:
    """Any damage of a file is harmless, or an error of this package that names the file."""
    tried = [line for line in report if "done" in line]
    assert (1100 if FACTOR else 550) < len(tried)
    assert [] == [(line["done"], line["problems"]) for line in tried if line["problems"]]


@pytest.mark.scaled
def test_no_small_file_fills_the_memory(report: Report) -> None:
    """A file of a few kilobytes that claims to contain gigabytes is refused before it is unpacked."""
    before, after = report[0]["memory"], report[-1]["mb"]
    assert after < before + MIB


@pytest.mark.scaled
def test_no_file_keeps_anybody_waiting(report: Report) -> None:
    """Cycles of branches and excessive numbers do not cause long loops."""
    slow = [(line["done"], line["seconds"]) for line in report if line.get("seconds", 0) > SECONDS / 20]
    assert [] == slow


@pytest.fixture(scope="module")
def transaction(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A transaction file of pylance."""
    folder = tmp_path_factory.mktemp("transaction")
    lance.write_dataset(rows(3), str(folder / "t")).create_scalar_index("value", "BTREE")
    return max((folder / "t" / "_transactions").iterdir()).read_bytes()


def _named_or_harmless(path: str, mutations: Iterable[Mutation], read: Callable[[bytes], object]) -> list[str]:
    """The mutations whose error is another one, or does not name the damaged file."""
    wrong = []
    for mutation in mutations:
        try:
            read(mutation.data)
        except FormatError as error:
            if path not in str(error):
                wrong.append(f"{mutation.name}: {error}")
    return wrong


def test_a_damaged_transaction_is_named_or_harmless(transaction: bytes) -> None:
    """A damaged transaction file is an error that names it, or a transaction that can be written again."""
    path = "_transactions/0-x.txn"

    def read(data: bytes) -> None:
        encode_transaction(decode_transaction(data, path))

    damage = (*by_bytes(path, transaction, flips=400), *of_transaction(path, transaction))
    assert [] == _named_or_harmless(path, damage, read)


def test_a_damaged_index_section_is_named_or_harmless(transaction: bytes) -> None:
    """A damaged index section of a manifest is an error that names the file, or harmless."""
    damage = by_bytes("x.manifest", transaction[len(transaction) // 2 :], flips=200)
    assert [] == _named_or_harmless("x.manifest", damage, lambda data: decode_indices(data, "x.manifest"))


@pytest.mark.parametrize("kind", [ARROW_FILE, BITMAP_FILE])
def test_a_damaged_deletion_file_is_named_or_harmless(tmp_path: Path, kind: int) -> None:
    """A damaged deletion file of either kind, read as either kind, is an error that names it, or harmless."""
    paths = sorted((_table(tmp_path) / "_deletions").iterdir())
    assert paths
    for path in paths:
        damage = (*by_bytes("x", path.read_bytes(), flips=200), *of_deletion("x"))
        assert [] == _named_or_harmless(
            "_deletions/x", damage, lambda data: decode_offsets(kind, data, "_deletions/x", 0)
        )


def test_a_deletion_file_of_another_count_is_damaged(tmp_path: Path) -> None:
    """A deletion file with another number of rows than the manifest says is damaged."""
    table = LanceTable.create(tmp_path / "t", rows(0).schema)
    table.append(rows(10))
    table.replace_where("value < 3", rows(0))
    first = LanceTable.create(tmp_path / "u", rows(0).schema)
    first.append(rows(10))
    first.replace_where("value < 4", rows(0))
    (target,), (other,) = ((Path(one.uri) / "_deletions").iterdir() for one in (table, first))
    target.write_bytes(other.read_bytes())
    with pytest.raises(FormatError, match=re.escape(f"{target} is damaged: it deletes 4 rows, but main@3 records 3")):
        table.replace_where("value = 5", rows(0))


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/b.txn", "..", "a\0b"])
def test_a_manifest_cannot_name_a_transaction_elsewhere(tmp_path: Path, name: str) -> None:
    """A manifest cannot name a transaction file elsewhere, so a writer cannot make readers open their own files."""
    table = LanceTable.create(tmp_path / "t", rows(0).schema)
    (path,) = (Path(table.uri) / "_versions").glob("*.manifest")
    path.write_bytes(rewritten(path.read_bytes(), lambda message: setattr(message, "transaction_file", name)))
    with pytest.raises(CorruptFileError, match="is not the name of a transaction file"):
        LanceTable.open(table.uri).at("main")


@pytest.mark.parametrize(
    "fields,said",
    [
        ([(0, 0)], "nested in itself"),
        ([(0, 1), (1, 0)], "nested in itself"),
        ([(0, -1), (0, 0)], "0 is the id of two fields"),
        ([(-1, -1)], "-1 is not a valid id"),
        ([(0, 7)], "does not exist"),
        ([(number, number - 1) for number in range(2000)], "levels deep"),
        ([(number, number + 1) for number in range(2000)], "levels deep"),
    ],
)
def test_fields_that_make_no_tree_are_damage(fields: list[tuple[int, int]], said: str) -> None:
    """Fields that form a cycle, or are nested too deeply, are refused as damage."""
    found = [
        Field(id=own, parent_id=parent, name=f"c{place}", logical_type="struct")
        for place, (own, parent) in enumerate(fields)
    ]
    with pytest.raises(CorruptFileError, match=f"^x.manifest is damaged: .*{said}"):
        arrow_from_fields(found, path="x.manifest")


def test_a_circle_of_branches_is_damage(tmp_path: Path) -> None:
    """Two branches that name each other as parent are refused as damage when their ancestry is read."""
    path = _table(tmp_path)
    table = LanceTable.open(path)
    for name, parent in (("run", "inner"), ("inner", "run")):
        file = path / f"_refs/branches/{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "parentBranch": parent, "parentVersion": 4}))
    with pytest.raises(CorruptFileError, match="forked from itself"):
        table.preview_merge("run")


def test_a_manifest_under_another_number_is_damage(tmp_path: Path) -> None:
    """A manifest whose name has another number than its content is refused as damage."""
    table = LanceTable.create(tmp_path / "t", rows(0).schema)
    (path,) = (Path(table.uri) / "_versions").glob("*.manifest")
    (path.parent / f"{2**64 - 3:020d}.manifest").write_bytes(path.read_bytes())
    with pytest.raises(CorruptFileError, match=r"it says it is version 1$"):
        table.head()


def test_a_manifest_name_beyond_all_versions_is_no_version(tmp_path: Path) -> None:
    """A manifest name whose twenty digits exceed the range of version numbers is not a version."""
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / f"{10**20 - 1}.manifest").write_bytes(b"")
    assert [] == Versions(LocalStore(str(tmp_path))).numbers("main")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "../../etc", "a//b"])
def test_a_ref_that_cannot_be_is_unknown(tmp_path: Path, name: str) -> None:
    """A ref name that no file can have is answered like an unknown name."""
    table = LanceTable.create(tmp_path / "t", rows(0).schema)
    with raises(RefNotFoundError, kind="branch or tag"):
        table.at(name)


def test_what_pylance_would_crash_on_is_refused_first(tmp_path: Path) -> None:
    """A manifest with a row-id sequence of 2^64 ids, over which pylance would loop, is refused before it reads it."""
    path = _table(tmp_path)
    manifest = min((path / "_versions").glob("*.manifest"))
    by_name = {mutation.name: mutation.data for mutation in of_manifest("x", manifest.read_bytes())}
    for name, said in {"too many row ids": "row ids for", "too many versions": "versions for"}.items():
        manifest.write_bytes(by_name[name])
        with pytest.raises(CorruptFileError, match=f"{manifest.name} is damaged: fragment .*{said}"):
            LanceTable.open(path).read()


def test_an_unknown_deletion_file_is_refused_by_its_kind(tmp_path: Path) -> None:
    """A third kind of deletion file is a feature, not damage."""
    path = _table(tmp_path)
    manifest = min((path / "_versions").glob("*.manifest"))
    by_name = {mutation.name: mutation.data for mutation in of_manifest("x", manifest.read_bytes())}
    manifest.write_bytes(by_name["a deletion of no kind"])
    with pytest.raises(UnsupportedFeatureError, match="deletion files of kind 99"):
        LanceTable.open(path).read()
