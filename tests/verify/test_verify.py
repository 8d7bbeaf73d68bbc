"""Valid tables of either program have no problem; each kind of damage is found and named."""

import json
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_dagster import LanceTable, RefNotFoundError
from lance_dagster.errors import PermissionRefusedError, VersionNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.codec import (
    decode_manifest_file,
    encode_manifest_file,
    encode_transaction,
    row_id_range,
    version_run,
)
from lance_dagster.format.deletions import encode_offsets
from lance_dagster.format.model import TOMBSTONE_FIELD, BasePath, Field, Flag, Fragment
from lance_dagster.store import open_store
from lance_dagster.store.local import LocalStore
from lance_dagster.types import Problem
from tests.compat.tables import OPERATIONS, prepared
from tests.conftest import S3Storage
from tests.damage import (
    Damage,
    cut,
    in_deleted,
    in_fields,
    in_file,
    in_fragment,
    in_fragments,
    in_indices,
    in_manifest,
    in_transaction,
    manifest_file,
    newest_file,
    only_file,
    removed,
    scribbled,
    written,
)
from tests.format.codec.framing import changed
from tests.placement.tables_with_bases import TABLES_OF as PLACES
from tests.raising import raises
from tests.store.scripted import PlugPulledError, Request, ScriptedStore, plug_pulled_before_write
from tests.table_factory import SCHEMA, as_pylance, contents, context_on, entries, new_table

ERROR, WARNING = "error", "warning"


def made_by_package(folder: Path) -> LanceTable:
    """A table of this package: two fragments with deletions, an index, a branch with its own files, a tag."""
    table = new_table(folder, entries("a", 1, 2, 3), entries("b", 1, 2))
    as_pylance(table).create_scalar_index("value", "BTREE")
    table.delete("key = 'a' and value = 2")
    table.branches.create("run")
    table.append(entries("r", 1), branch="run")
    table.delete("key = 'b' and value = 1", branch="run")
    table.branches.create("inner", "run")
    table.config.set({"lance.setting": "1"})
    table.tags.create("production", "main")
    return table


def made_by_pylance(folder: Path) -> LanceTable:
    """The same table, made by pylance."""
    uri = str(folder / "pylance")
    dataset = lance.write_dataset(entries("a", 1, 2, 3), uri, enable_stable_row_ids=True)
    dataset.insert(entries("b", 1, 2))
    dataset.create_scalar_index("value", "BTREE")
    dataset.delete("key = 'a' and value = 2")
    run = dataset.create_branch("run")
    run.insert(entries("r", 1))
    run.delete("key = 'b' and value = 1")
    run.create_branch("inner", ("run", None))
    dataset.update_config({"lance.setting": "1"})
    dataset.tags.create("production", ("main", None))
    return LanceTable.open(uri)


MAKERS: Mapping[str, Callable[[Path], LanceTable]] = {"package": made_by_package, "pylance": made_by_pylance}
EITHER = pytest.mark.parametrize("maker", MAKERS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_this_package_makes_is_sound(tmp_path: Path, operation: str) -> None:
    """Each state that the package can make is valid, down to the last value."""
    table = prepared(tmp_path)
    OPERATIONS[operation](table)
    assert () == table.maintenance.verify(deep=True).problems


@pytest.mark.parametrize("maker", [*PLACES, *MAKERS])
def test_tables_in_several_places_are_sound(tmp_path: Path, maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables have branches, base paths and indices; clones reference the files of another table."""
    # The clone of pylance needs this, because pylance writes no allowance.
    monkeypatch.setenv("LANCE_DAGSTER_ALLOWED_BASE_PATHS", str(tmp_path))
    table = {**PLACES, **MAKERS}[maker](tmp_path)
    dataset = as_pylance(table)
    dataset.shallow_clone(str(tmp_path / "pylance-shallow"), ("main", None))
    clones = [table.maintenance.clone(tmp_path / "shallow"), table.maintenance.clone(tmp_path / "deep", shallow=False)]
    for each in (table, *clones, LanceTable.open(tmp_path / "pylance-shallow")):
        assert () == each.maintenance.verify(deep=True).problems


def test_a_table_of_changed_columns_is_sound(tmp_path: Path) -> None:
    """Dropped, added, renamed and cast columns leave files with more or fewer columns than the schema."""
    table = made_by_package(tmp_path)
    table.columns.add({"twice": "value * 2"})
    table.columns.rename("key", "name")
    table.columns.cast("twice", pa.int32())
    table.columns.drop(["value"])
    as_pylance(table).add_columns(pa.field("later", pa.string()))
    table.update({"twice": "twice + 1"}, where="name = 'a'")
    table.upsert(pa.table({"name": ["b", "z"], "twice": pa.array([7, 8], pa.int32())}), on=["name"])
    assert () == table.maintenance.verify(deep=True).problems


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_what_pylance_makes_is_sound(tmp_path: Path, version: Any, stable: bool) -> None:  # noqa: ANN401, FBT001
    """This holds for all operations on a table of nested, vector and text columns, and after a clean-up."""
    rows = pa.table(
        {
            "id": pa.array(range(9_000)),
            "vector": pa.array([[float(number), 2.0] for number in range(9_000)], pa.list_(pa.float32(), 2)),
            "nested": [{"x": number, "y": [str(number)]} for number in range(9_000)],
            "text": [f"word {number}" for number in range(9_000)],
            "kind": pa.array(["a", "b"] * 4_500).dictionary_encode(),
        }
    )
    dataset = lance.write_dataset(
        rows, tmp_path / "t", enable_stable_row_ids=stable, data_storage_version=version, max_rows_per_file=3_000
    )
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    dataset.create_index("vector", "IVF_FLAT", num_partitions=1)
    dataset.delete("id < 6000")
    dataset.delete("id = 7000")
    dataset.update({"text": "'new'"}, where="id % 7 = 1")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows.slice(0, 10))
    dataset.add_columns({"twice": "id * 2"})
    dataset.drop_columns(["nested"])
    dataset.optimize.optimize_indices()
    altered: list[Any] = [{"path": "text", "name": "words"}, {"path": "twice", "data_type": pa.int32()}]
    dataset.alter_columns(*altered)
    dataset.create_branch("b")
    dataset.tags.create("early", 3)
    dataset.insert(dataset.to_table().slice(0, 10))
    dataset.optimize.compact_files(target_rows_per_fragment=20_000)
    lance.dataset(tmp_path / "t", version=4).restore()
    lance.dataset(tmp_path / "t").delete("id > 8000")
    table = LanceTable.open(tmp_path / "t")
    assert () == table.maintenance.verify(deep=True).problems
    before = table.maintenance.verify()
    lance.dataset(tmp_path / "t").cleanup_old_versions(
        older_than=timedelta(microseconds=1), error_if_tagged_old_versions=False
    )
    after = table.maintenance.verify()
    assert () == after.problems
    assert after.versions < before.versions
    assert after.gaps[0].startswith("main@4 to ")


def test_old_manifest_names_are_no_problem(tmp_path: Path) -> None:
    """The table has the first naming scheme, before and after the migration of its names."""
    dataset = lance.write_dataset(entries("a", 1, 2), tmp_path / "t", enable_v2_manifest_paths=False)
    dataset.insert(entries("b", 1))
    table = LanceTable.open(tmp_path / "t")
    assert ((), 2) == (table.maintenance.verify(deep=True).problems, table.maintenance.verify().versions)
    table.maintenance.migrate_manifest_names()
    assert () == LanceTable.open(tmp_path / "t").maintenance.verify().problems


def test_a_table_of_blobs_is_sound(tmp_path: Path) -> None:
    """The data files of blobs can only be opened, but not read alone."""
    blobs = lance.blob_array([b"x" * 10, b"y" * 200_000])
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
    lance.write_dataset(pa.table([pa.array([1, 2]), blobs], schema=schema), tmp_path / "t", data_storage_version="2.2")
    assert () == LanceTable.open(tmp_path / "t").maintenance.verify(deep=True).problems
    lance.dataset(tmp_path / "t").drop_columns(["blob"])
    assert LanceTable.open(tmp_path / "t").maintenance.verify(deep=True).ok


@EITHER
def test_the_report_counts_what_was_looked_at(tmp_path: Path, maker: str) -> None:
    """Files that versions share are counted once, and nothing is written."""
    table = MAKERS[maker](tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    report = table.maintenance.verify()
    counted = (report.branches, report.tags, report.data_files, report.deletion_files, report.files_read)
    assert (3, 1, 3, 2, 0) == counted
    numbers = [table.branches.version_numbers(branch) for branch in ("main", "run", "inner")]
    assert sum(map(len, numbers)) == report.versions
    assert report.ok
    assert 3 == table.maintenance.verify(deep=True).files_read
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_progress_comes_to_its_end(tmp_path: Path) -> None:
    """Each step is reported, and the last one is the total."""
    table = made_by_package(tmp_path)
    steps: list[tuple[int, int]] = []
    report = table.maintenance.verify(deep=True, progress=lambda done, total: steps.append((done, total)))
    assert report.versions + report.files_read + report.index_files == len(steps)
    assert steps[-1][0] == steps[-1][1] == len(steps)


def without_rows(fragment: Fragment) -> Fragment:
    """A fragment without its sequences."""
    return replace(fragment, row_ids=None, created_at=None, updated_at=None)


def doubled_field(fields: Any) -> Any:  # noqa: ANN401 - any sequence of fields
    """The fields, of which the second has the id of the first."""
    return (fields[0], replace(fields[1], id=fields[0].id))


def with_field(**different: Any) -> Damage:  # noqa: ANN401 - any field of a field
    """Add a valid field to the schema, except for the given attributes."""
    return in_fields(lambda fields: (*fields, replace(Field(id=7, name="new", logical_type="int64"), **different)))


@pytest.mark.slow
@pytest.mark.parametrize("state", ["empty", "not trained", "all rows deleted", "deleted before"])
@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"])
def test_a_vector_index_that_is_not_trained_is_sound(tmp_path: Path, kind: str, state: str) -> None:
    """Pylance records it without a file and answers queries without it; it stays sound when rows come."""
    columns: dict[str, pa.DataType] = {"id": pa.int64(), "vector": pa.list_(pa.float32(), 8)}
    schema = pa.schema(columns)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(map(float, range(300 * 8)), pa.float32()), 8)
    rows = pa.table({"id": range(300), "vector": vectors}, schema=schema)
    table = LanceTable.create(tmp_path / "vectors", schema)
    if state != "empty":
        table.append(rows)
    if state == "deleted before":
        table.delete("true")
    options: dict[str, Any] = {"num_sub_vectors": 2} if kind == "IVF_PQ" else {}
    lance.dataset(table.uri).create_index("vector", kind, num_partitions=1, train=state != "not trained", **options)
    if state == "all rows deleted":
        table.delete("true")
    assert not table.maintenance.verify(deep=True).problems
    table.append(rows)
    table.maintenance.compact()
    assert not table.maintenance.verify(deep=True).problems
    nearest: Any = {"column": "vector", "q": [0.0] * 8, "k": 1}
    assert [0] == lance.dataset(table.uri).to_table(nearest=nearest)["id"].to_pylist()


def test_a_cast_of_pylance_on_a_branch_is_sound_after_a_collection(tmp_path: Path) -> None:
    """The branch has a file of its own for the column, and shares the files of the others with `main`."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 2))
    table.branches.create("run")
    for kind in (pa.int32(), pa.int64()):
        column: Any = {"path": "value", "data_type": kind}
        as_pylance(table, "run").alter_columns(column)
        table.maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
        assert not table.maintenance.verify(deep=True).problems
    assert [("a", 1), ("b", 2)] == contents(table, "run")


def garbage(fragment: Fragment) -> Fragment:
    """A fragment with row ids that cannot be decoded."""
    return replace(fragment, row_ids=b"\xff\xff")


def emptied_index(table: LanceTable) -> None:
    """An index that records no files, and whose folder is empty."""
    in_indices(lambda found: [replace(index, files=()) for index in found])(table)
    for folder in (Path(table.uri) / "_indices").iterdir():
        shutil.rmtree(folder)


def offsets_beyond(table: LanceTable) -> None:
    """A deletion file with the right number of rows, one of which does not exist."""
    only_file(table, "_deletions/*").write_bytes(encode_offsets([77])[1])


def doubled_transaction(table: LanceTable) -> None:
    """The newest version has the transaction of the previous one."""
    path = manifest_file(table, table.head().number - 1)
    _, earlier = decode_manifest_file(path.read_bytes(), str(path))
    in_transaction(lambda own: replace(own, uuid=earlier.uuid if earlier else ""))(table)
    in_manifest(lambda manifest: replace(manifest, transaction_file=""))(table)


def no_transaction(table: LanceTable) -> None:
    """A version without a transaction, whose transaction file is gone."""
    path = newest_file(table)
    path.write_bytes(changed(path.read_bytes(), lambda _: None))
    shutil.rmtree(Path(table.uri) / "_transactions")


def stray_old_name(table: LanceTable) -> None:
    """A manifest on a branch with a name of the first scheme."""
    (Path(table.uri) / "tree/run/_versions/1.manifest").write_bytes(b"")


# The damage of a table, and the expected problem: its severity, its place, and what is wrong.
DAMAGES: dict[str, tuple[Damage, str, str, str]] = {
    "missing data file": (removed("data/*.lance"), ERROR, r"fragment \d, data/.*\.lance", "the file is missing"),
    "cut data file": (cut("data/*.lance"), ERROR, r"fragment \d, data/.*\.lance", r"the file has \d+ bytes"),
    "missing deletion file": (removed("_deletions/*"), ERROR, "fragment 0, _deletions/0-", "deletion file is missing"),
    "damaged deletion file": (written("_deletions/*", b"no"), ERROR, "fragment 0, _deletions/0-", "row offsets"),
    "deletion beyond the rows": (offsets_beyond, ERROR, "fragment 0", "takes out row 77"),
    "miscounted deletions": (
        in_deleted(lambda own: replace(own, deletion=own.deletion and replace(own.deletion, deleted_rows=2))),
        ERROR,
        "fragment 0",
        "takes out 1 row",
    ),
    "more deleted than there is": (
        in_deleted(lambda own: replace(own, deletion=own.deletion and replace(own.deletion, deleted_rows=9))),
        ERROR,
        "fragment 0",
        "9 rows of 3",
    ),
    "deletion file under no base": (
        in_deleted(lambda own: replace(own, deletion=own.deletion and replace(own.deletion, base_id=55))),
        ERROR,
        "fragment 0",
        "base path 55",
    ),
    "missing index file": (removed("_indices/*/*"), ERROR, "_indices/", "the file is missing"),
    "cut index file": (cut("_indices/*/*"), ERROR, "_indices/", r"the file has \d+ bytes"),
    "index without files": (emptied_index, ERROR, "_indices/", "has no files"),
    "cut manifest": (cut("_versions/*.manifest"), ERROR, r"main@\d, _versions/", "does not end like"),
    "empty manifest": (written("_versions/*.manifest", b""), ERROR, r"main@\d, _versions/", "does not end like"),
    "another version": (in_manifest(lambda own: replace(own, version=40)), ERROR, r"main@\d", "version 40"),
    "another branch": (in_manifest(lambda own: replace(own, branch="x")), ERROR, r"main@\d", "of branch 'x'"),
    "low fragment counter": (
        in_manifest(lambda own: replace(own, max_fragment_id=0)),
        ERROR,
        r"main@\d",
        "max_fragment_id is 0",
    ),
    "fragment counter goes down": (
        in_manifest(lambda own: replace(own, max_fragment_id=None)),
        ERROR,
        r"main@\d",
        "max_fragment_id went down from 1 to 0",
    ),
    "row counter goes down": (
        in_manifest(lambda own: replace(own, next_row_id=1)),
        ERROR,
        r"main@\d",
        "next_row_id went down from 5 to 1",
    ),
    "low row counter": (
        in_manifest(lambda own: replace(own, next_row_id=4)),
        ERROR,
        r"main@\d",
        "next_row_id is 4",
    ),
    "doubled fragment": (
        in_fragments(lambda found: [found[0], replace(found[1], id=found[0].id)]),
        ERROR,
        r"main@\d, fragment 0",
        "two fragments",
    ),
    "unknown base": (in_file(lambda own: replace(own, base_id=9)), ERROR, "fragment 0", "base path 9"),
    "another file version": (in_file(lambda own: replace(own, minor=9)), ERROR, "fragment 0", "of version 2.9"),
    "too few columns": (
        in_file(lambda own: replace(own, column_indices=(0,))),
        ERROR,
        r"main@\d",
        "fragment 0, .* has 2 fields in 1 columns",
    ),
    "doubled column": (
        in_file(lambda own: replace(own, column_indices=(0, 0))),
        ERROR,
        "fragment 0",
        "two fields are said to be in column 0",
    ),
    "field below zero": (
        in_file(lambda own: replace(own, fields=(0, -7))),
        ERROR,
        "fragment 0, field -7",
        "said to hold field -7",
    ),
    "field that never was": (
        in_file(lambda own: replace(own, fields=(0, 1, 99), column_indices=(0, 1, 2))),
        ERROR,
        "fragment 0, field 99",
        "no version of the table has had",
    ),
    "field in two files": (
        in_fragment(lambda own: replace(own, files=own.files * 2)),
        ERROR,
        "fragment 0, field 0",
        "the field is in",
    ),
    "column that cannot be null": (
        with_field(nullable=False),
        ERROR,
        "fragment 0, field 7",
        "no file holds 'new'",
    ),
    "only columns that are gone": (
        in_file(lambda own: replace(own, fields=(TOMBSTONE_FIELD,) * len(own.fields))),
        ERROR,
        "fragment 0",
        "no file of it holds a column of the schema",
    ),
    "no file": (in_fragment(lambda own: replace(own, files=())), ERROR, "fragment 0", "no file of it holds a column"),
    "no rows": (in_fragment(lambda own: replace(own, physical_rows=0)), WARNING, "fragment 0", "has no rows"),
    "doubled field": (in_fields(doubled_field), ERROR, r"main@\d", "0 is the id of two fields"),
    "doubled name": (with_field(name="key"), ERROR, r"main@\d", "two siblings share a name"),
    "field of nothing": (with_field(parent_id=44), ERROR, r"main@\d", "field 7 .* does not exist"),
    "field in itself": (with_field(parent_id=7), ERROR, r"main@\d", "field 7 .* nested in itself"),
    "type of nothing": (with_field(logical_type="int65"), ERROR, r"main@\d", "int65"),
    "flag of readers alone": (
        in_manifest(lambda own: replace(own, writer_flags=own.writer_flags & ~Flag.STABLE_ROW_IDS)),
        ERROR,
        r"main@\d",
        "flag 2 is set for readers alone",
    ),
    "no flag for deletions": (
        in_manifest(lambda own: replace(own, reader_flags=own.reader_flags & ~1, writer_flags=own.writer_flags & ~1)),
        WARNING,
        r"main@\d",
        r"flag 1 \(deletion files\) is not set",
    ),
    "flag for nothing": (
        in_manifest(lambda own: replace(own, config={})),
        WARNING,
        r"main@\d",
        r"flag 8 \(table settings\) is set",
    ),
    "rows without ids": (in_fragment(without_rows), ERROR, "fragment 0", "its rows have no ids"),
    "ids without flag": (
        in_manifest(lambda own: replace(own, reader_flags=1, writer_flags=9)),
        ERROR,
        "fragment 0",
        "its rows have ids",
    ),
    "row ids that are none": (in_fragment(garbage), ERROR, "fragment 0", "the ids of its rows cannot be right"),
    "too few row ids": (
        in_fragment(lambda own: replace(own, row_ids=row_id_range(0, 2))),
        ERROR,
        "fragment 0",
        "2 row ids for 3 rows",
    ),
    "row ids of others": (
        in_fragment(lambda own: replace(own, row_ids=row_id_range(2, 3))),
        ERROR,
        r"main@\d",
        "1 row ids belong to two rows each, such as 4, in fragments 0, 1",
    ),
    "too few row versions": (
        in_fragment(lambda own: replace(own, created_at=version_run(2, 1))),
        ERROR,
        "fragment 0",
        "created at cannot be right",
    ),
    "rows of the future": (
        in_fragment(lambda own: replace(own, updated_at=version_run(3, 66))),
        ERROR,
        r"main@\d",
        "changed at version 66",
    ),
    "damaged index section": (
        in_manifest(lambda own: replace(own, index_section=b"\xff\xff")),
        ERROR,
        r"main@\d",
        "index section cannot be parsed",
    ),
    "index on nothing": (
        in_indices(lambda found: [replace(index, fields=(40,)) for index in found]),
        ERROR,
        r"main@\d, field 40",
        "field that the schema does not have",
    ),
    "doubled index": (in_indices(lambda found: [*found, *found]), ERROR, r"main@\d", "two indices have the uuid"),
    "damaged bitmap": (
        in_indices(lambda found: [replace(index, bitmap=b"no") for index in found]),
        ERROR,
        r"main@\d",
        "bitmap of index 'value_idx' cannot be read",
    ),
    "index of the future": (
        in_indices(lambda found: [replace(index, bitmap=BitMap([0, 1, 2]).serialize()) for index in found]),
        ERROR,
        r"main@\d",
        "1 fragment that never existed, such as 2",
    ),
    "base path of a working directory": (
        in_manifest(lambda own: replace(own, base_paths=(BasePath(id=3, path="a/b"),))),
        ERROR,
        r"main@\d",
        "found only from one working directory",
    ),
    "doubled base": (
        in_manifest(lambda own: replace(own, base_paths=(BasePath(id=3, path="/a"), BasePath(id=3, path="/b")))),
        ERROR,
        r"main@\d",
        "two of its base paths have one id",
    ),
    "doubled base name": (
        in_manifest(
            lambda own: replace(
                own, base_paths=(BasePath(id=3, path="/a", name="x"), BasePath(id=4, path="/b", name="x"))
            )
        ),
        WARNING,
        r"main@\d",
        "two base paths are called 'x'",
    ),
    "no transaction": (no_transaction, WARNING, r"main@\d", "holds no transaction and names"),
    "transaction without uuid": (
        in_transaction(lambda own: replace(own, uuid="")),
        ERROR,
        r"main@\d",
        "has no uuid",
    ),
    "transaction of the future": (
        in_transaction(lambda own: replace(own, read_version=60)),
        ERROR,
        r"main@\d",
        "made from version 60",
    ),
    "another transaction": (
        in_manifest(lambda manifest: replace(manifest, transaction_file="1-other.txn")),
        ERROR,
        r"main@\d",
        "the transaction is [0-9a-f-]{36}",
    ),
    "transaction twice": (doubled_transaction, ERROR, r"main@\d", "made two versions"),
    "two naming schemes": (stray_old_name, ERROR, "tree/run/_versions", "both schemes"),
}


@EITHER
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named(tmp_path: Path, maker: str, damage: str) -> None:
    """The problem has the place, the cause and the severity."""
    table = MAKERS[maker](tmp_path)
    wound, severity, where, what = DAMAGES[damage]
    wound(table)
    accused(LanceTable.open(table.uri), severity, where, what)


def accused(table: LanceTable, severity: str, where: str, what: str) -> Problem:
    """Return the expected problem of a table; fail with all problems if there is none."""
    report = table.maintenance.verify()
    found = [
        problem
        for problem in report.problems
        if problem.severity == severity and re.search(where, problem.where) and re.search(what, problem.what)
    ]
    shown = "\n".join(map(str, report.problems))
    assert found, f"no {severity} at {where}: {what}; found\n{shown}"
    assert all(problem.right for problem in report.problems)
    if severity == ERROR:
        assert not report.ok
    return found[0]


def in_branch_json(**different: object) -> Damage:
    """Change the file of the branch "run"; None removes a key."""

    def damage(table: LanceTable) -> None:
        path = Path(table.uri) / layout.branch_file("run")
        found = {**json.loads(path.read_text()), **different}
        path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))

    return damage


def hint(content: str) -> Damage:
    """Write a version hint."""
    return lambda table: (Path(table.uri) / layout.VERSION_HINT).write_text(content)


def tagged(name: str = "lost", **content: object) -> Damage:
    """Write a tag without the package."""
    written_tag = json.dumps({"branch": None, "version": 1, "manifestSize": 1, **content})
    return lambda table: (Path(table.uri) / layout.tag_file(name)).write_text(written_tag)


def early_version(table: LanceTable) -> None:
    """A branch with a version older than its fork."""
    path = Path(table.uri) / "tree/run/_versions"
    shutil.copy(manifest_file(table, 1), path / layout.manifest_name(1))


def without_versions(table: LanceTable) -> None:
    """A branch of which only the ref file is left."""
    shutil.rmtree(Path(table.uri) / "tree/inner")


NAMES: dict[str, tuple[Damage, str, str, str]] = {
    "branch that is no JSON": (
        written("_refs/branches/run.json", b"{"),
        ERROR,
        "_refs/branches/run.json",
        "not a branch or tag as Lance writes it",
    ),
    "branch without identifier": (
        in_branch_json(identifier=None),
        ERROR,
        "_refs/branches/run.json",
        "has no identifier",
    ),
    "branch of another line": (
        in_branch_json(identifier={"version_mapping": [[3, "f" * 32], [4, "e" * 32]]}),
        ERROR,
        "_refs/branches/inner.json",
        "does not begin with that of 'run'",
    ),
    "branch of nothing": (
        in_branch_json(parentBranch="gone"),
        ERROR,
        "_refs/branches/run.json",
        "the parent of branch 'run' is 'gone'",
    ),
    "branch of the future": (
        in_branch_json(parentVersion=900),
        ERROR,
        "_refs/branches/run.json",
        "forked from main@900",
    ),
    "branch with early versions": (
        early_version,
        ERROR,
        "_refs/branches/run.json",
        "has a version 1",
    ),
    "branch half made": (
        in_branch_json(metadata={"lance_dagster.state": "creating"}),
        WARNING,
        "_refs/branches/run.json",
        "marked as creating",
    ),
    "branch without versions": (without_versions, ERROR, "_refs/branches/inner.json", "'inner' has no version"),
    "tag that is no JSON": (written("_refs/tags/*", b"[]"), ERROR, "_refs/tags/production.json", "JSON object"),
    "tag of no version": (tagged(version=99), ERROR, "_refs/tags/lost.json", "main@99, which does not exist"),
    "tag of no branch": (tagged(branch="gone"), ERROR, "_refs/tags/lost.json", "gone@1, and there is no such"),
    "tag like a branch": (tagged("run"), WARNING, "_refs/tags/run.json", "'run' is a tag and a branch"),
    "no hint": (removed(layout.VERSION_HINT), WARNING, layout.VERSION_HINT, "there is no version hint"),
    "old hint": (hint('{"version":1}'), WARNING, layout.VERSION_HINT, "names version 1"),
    "hint of the future": (hint('{"version":99}'), ERROR, layout.VERSION_HINT, "names version 99"),
    "no newest version": (
        lambda table: newest_file(table).unlink(),
        ERROR,
        layout.VERSION_HINT,
        "the newest one is",
    ),
    "versions without their branch": (
        removed("_refs/branches/run.json"),
        ERROR,
        "tree/run/_versions",
        "versions of a branch 'run', and no file of the branch",
    ),
    "a version without its branch": (
        removed("_refs/branches/inner.json"),
        WARNING,
        "tree/inner/_versions",
        "1 version of a branch 'inner', and no file of the branch",
    ),
    "hint that is none": (hint("{"), WARNING, layout.VERSION_HINT, "version hint holds b'{'"),
}


@EITHER
@pytest.mark.parametrize("damage", NAMES)
def test_damaged_names_are_found(tmp_path: Path, maker: str, damage: str) -> None:
    """Branches, tags and the version hint are compared with the existing versions."""
    table = MAKERS[maker](tmp_path)
    wound, severity, where, what = NAMES[damage]
    wound(table)
    accused(LanceTable.open(table.uri), severity, where, what)


@EITHER
@pytest.mark.parametrize("damage", ["scribbled", "emptied", "miscounted", "too many columns", "older"])
def test_only_reading_finds_what_is_inside_a_file(tmp_path: Path, maker: str, damage: str) -> None:
    """A file of the right size may have any content; a panic of pylance is no crash."""
    table = MAKERS[maker](tmp_path)
    name = table.to_lance("main@1" if maker == "pylance's" else "main@2").get_fragments()[0].data_files()[0].path
    wound, what = {
        "scribbled": (scribbled(f"data/{name}"), "cannot be read|pylance gives up on it"),
        "emptied": (emptied(f"data/{name}"), "it is not a data file: 0 bytes"),
        "miscounted": (in_fragment(counted_anew), "the file has 3 rows"),
        "too many columns": (in_file(lambda own: replace(own, column_indices=(0, 5))), "the file has 2 columns"),
        "older": (in_manifest(older), "the file is of version 2.2"),
    }[damage]
    wound(table)
    table = LanceTable.open(table.uri)
    assert [] == [problem for problem in table.maintenance.verify().problems if re.search(what, problem.what)]
    problems = table.maintenance.verify(deep=True).problems
    found = [problem for problem in problems if re.search(what, problem.what)]
    assert 1 == len(found), problems
    assert (f"data/{name}", 0) == (found[0].path, found[0].fragment)


def emptied(pattern: str) -> Damage:
    """Empty a data file whose size no version records."""

    def damage(table: LanceTable) -> None:
        only_file(table, pattern).write_bytes(b"")
        for path in Path(table.uri).glob("**/*.manifest"):
            manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
            fragments = [replace(own, files=tuple(replace(f, size=0) for f in own.files)) for own in manifest.fragments]
            if transaction is None:
                raise AssertionError(f"{path} holds no transaction")
            known = replace(manifest, fragments=type(manifest.fragments)(fragments))
            path.write_bytes(encode_manifest_file(known, encode_transaction(transaction)))

    return damage


def counted_anew(fragment: Fragment) -> Fragment:
    """A fragment that omits a row."""
    return replace(
        fragment,
        physical_rows=2,
        row_ids=row_id_range(0, 2),
        created_at=version_run(2, 1),
        updated_at=version_run(2, 1),
    )


def older(manifest: Any) -> Any:  # noqa: ANN401 - a manifest
    """A version that records an older version of its data files."""
    fragments = [replace(own, files=tuple(replace(file, minor=1) for file in own.files)) for own in manifest.fragments]
    return replace(manifest, file_version="2.1", fragments=type(manifest.fragments)(fragments[:1]))


def test_a_transaction_file_that_says_something_else_is_found(tmp_path: Path) -> None:
    """A file of pylance is read only for versions without one, so this is a warning, and only with `deep=True`."""
    table = made_by_pylance(tmp_path)
    first, second = sorted(Path(table.uri).glob("_transactions/*"))[:2]
    first.write_bytes(b"\xff")
    second.write_bytes(sorted(Path(table.uri).glob("_transactions/*"))[2].read_bytes())
    assert () == table.maintenance.verify().problems
    problems = table.maintenance.verify(deep=True).problems
    assert [WARNING] * 2 == [problem.severity for problem in problems]
    assert {f"_transactions/{path.name}" for path in (first, second)} == {problem.path for problem in problems}


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda _: b"",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: bytes((7 * place + 13) % 251 for place in range(len(data))),
    "a bit": lambda data: data[:-9] + bytes([data[-9] ^ 0x40]) + data[-8:] if len(data) > 9 else b"",
    "longer": lambda data: data + b"LANC",
}


@EITHER
@pytest.mark.parametrize("change", CHANGES)
def test_no_damage_of_a_file_is_an_exception(tmp_path: Path, maker: str, change: str) -> None:
    """This holds for every file; a cut, emptied or overwritten file that is read is also found."""
    table = MAKERS[maker](tmp_path)
    unread = ("_transactions", "data", "_indices", ".lock")
    paths = [path for path in Path(table.uri).rglob("*") if path.is_file()]
    assert paths
    for path in paths:
        whole = path.read_bytes()
        path.write_bytes(CHANGES[change](whole))
        report = LanceTable.open(table.uri).maintenance.verify()
        if change in ("cut", "emptied", "zeros", "noise") and not set(unread) & set(path.parts):
            assert report.problems, path
        path.write_bytes(whole)
    assert () == table.maintenance.verify().problems


@EITHER
def test_nothing_hides_behind_the_first_problem(tmp_path: Path, maker: str) -> None:
    """Damage in many places is reported for each of them."""
    table = MAKERS[maker](tmp_path)
    number = table.head().number
    removed("_deletions/*")(table)
    removed("_indices/*/*")(table)
    manifest_file(table, number - 1).write_bytes(b"LANC")
    written("_refs/branches/run.json", b"{")(table)
    tagged(version=99)(table)
    in_fragment(garbage)(table)
    paths = {problem.path for problem in LanceTable.open(table.uri).maintenance.verify().problems if problem.path}
    folders = sorted({path.split("/")[0] + "/" + path.split("/")[1][:8] for path in paths if "/" in path})
    assert {"_refs/branches", "_refs/tags"} <= set(folders)
    assert {"_deletions", "_indices", "_versions", "_refs"} <= {path.split("/")[0] for path in paths}


@EITHER
def test_a_problem_names_every_version_it_is_in(tmp_path: Path, maker: str) -> None:
    """Shared damage is one problem, with versions of main and of the branches that inherited it."""
    table = MAKERS[maker](tmp_path)
    removed("_deletions/*")(table)
    (found,) = [problem for problem in table.maintenance.verify().problems if "missing" in problem.what]
    assert {"main", "run", "inner"} == {version.split("@")[0] for version in found.versions}
    assert f"{found.versions[0]} to {found.versions[-1]} ({len(found.versions)} versions)" in found.where


@EITHER
def test_one_version_can_be_looked_at(tmp_path: Path, maker: str) -> None:
    """Damage of other versions is not reported."""
    table = MAKERS[maker](tmp_path)
    in_fragment(garbage)(table)
    table = LanceTable.open(table.uri)
    earlier = table.maintenance.verify(f"main@{table.head().number - 1}")
    assert ((), 1, True) == (earlier.problems, earlier.versions, earlier.ok)
    assert not table.maintenance.verify("production").ok
    assert table.maintenance.verify("run").ok
    with raises(RefNotFoundError, kind="branch or tag", ref="prodution"):
        table.maintenance.verify("prodution")


def test_a_place_that_cannot_be_reached_is_said_once(tmp_path: Path) -> None:
    """The base path has a scheme without a store, or its storage options are wrong."""
    table = made_by_package(tmp_path)
    in_manifest(lambda own: replace(own, base_paths=(BasePath(id=1, path="hdfs://bucket/t", is_dataset_root=True),)))(
        table
    )
    in_fragments(lambda found: [replace(own, files=tuple(replace(f, base_id=1) for f in own.files)) for own in found])(
        table
    )
    problems = [
        problem
        for problem in LanceTable.open(table.uri).maintenance.verify().problems
        if problem.path == "hdfs://bucket/t/data"
    ]
    assert 1 == len(problems)
    assert "cannot be listed: cannot store tables at hdfs://" in problems[0].what
    assert (f"main@{table.head().number}",) == problems[0].versions


def test_missing_files_under_base_paths_are_found(tmp_path: Path) -> None:
    """The base paths are a dataset root and a plain folder, and each problem has the full path."""
    table = PLACES["package"](tmp_path)
    gone = [next((tmp_path / "cold/data").iterdir()), next((tmp_path / "flat").glob("*.lance"))]
    for path in gone:
        path.unlink()
    found = {problem.path for problem in table.maintenance.verify().problems}
    assert set(map(str, gone)) == found


def test_a_data_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    """A right to read may be missing for one file; the report names it, and every other file is read."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 2))
    refused = min(Path(table.uri, "data").glob("*.lance")).name

    def script(request: Request) -> object:
        if request.verb == "get_range" and request.key.endswith(refused):
            raise PermissionRefusedError(f"read {request.key}", "AccessDenied")
        return request.send()

    report = LanceTable(context_on(ScriptedStore(open_store(table.uri), script))).maintenance.verify(deep=True)
    assert [f"data/{refused}"] == [problem.path for problem in report.problems if "cannot be read" in problem.what]
    assert 1 == len(report.problems)
    assert 2 == report.files_read


def test_a_moved_row_is_not_doubled(tmp_path: Path) -> None:
    """The old fragment keeps the row id with a deletion; without the deletion two rows have one id."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    table.update({"value": "9"}, where="value = 2")
    assert () == table.maintenance.verify().problems
    in_deleted(lambda own: replace(own, deletion=None))(table)
    accused(LanceTable.open(table.uri), ERROR, r"main@3", "1 row ids belong to two rows each, such as 1")


def test_a_table_on_s3_is_verified(s3_storage: S3Storage) -> None:
    """Verification on S3 lists prefixes."""
    table = LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=s3_storage.storage_options)
    table.append(entries("a", 1, 2, 3))
    table.branches.create("run")
    table.delete("value = 2", branch="run")
    report = table.maintenance.verify(deep=True)
    assert ((), 1, 1) == (report.problems, report.data_files, report.deletion_files)
    store = open_store(table.uri, s3_storage.storage_options)
    (name,) = store.list("data")
    store.delete(f"data/{name}")
    (problem,) = table.maintenance.verify().problems
    assert (f"data/{name}", ("main@2", "run@2")) == (problem.path, problem.versions[:2])


def test_what_is_deleted_meanwhile_is_no_problem(tmp_path: Path) -> None:
    """A branch with its folder, a tag and versions with their files are deleted after they were listed."""
    table = made_by_package(tmp_path)
    table.tags.create("inner-tag", "inner")
    table.overwrite(entries("z", 1))

    def clean(done: int, _: int) -> None:
        if done == 1:
            table.tags.delete("inner-tag")
            table.branches.delete("inner")
            table.branches.delete("run")
            as_pylance(table).tags.delete("production")
            as_pylance(table).cleanup_old_versions(older_than=timedelta(microseconds=1), delete_unverified=True)

    report = table.maintenance.verify(progress=clean)
    assert () == report.problems
    assert 1 == len(LanceTable.open(table.uri).branches.version_numbers())


def test_damage_of_a_branch_that_goes_meanwhile_is_forgotten(tmp_path: Path) -> None:
    """The damage is found, but the branch is gone before the report is made."""
    table = made_by_package(tmp_path)
    table.branches.delete("inner")
    removed("tree/run/_deletions/*")(table)
    (problem,) = table.maintenance.verify().problems
    assert (str(table.head("run")),) == problem.versions
    steps = table.maintenance.verify().versions
    report = table.maintenance.verify(progress=lambda done, _: table.branches.delete("run") if done == steps else None)
    assert () == report.problems


@pytest.mark.parametrize("writes", range(1, 10))
def test_a_deletion_that_stops_while_the_table_is_verified_is_no_error(tmp_path: Path, writes: int) -> None:
    """A process that deletes a branch dies after so many writes, before any request of the verification."""
    request_number = 0
    stopped = True
    while stopped:
        request_number += 1
        requests = 0
        table = new_table(tmp_path, entries("a", 1, 2, 3))
        table.branches.create("run")
        table.append(entries("r", 4), branch="run")

        def deleting(request: Request, uri: str = table.uri, before: int = request_number) -> Any:  # noqa: ANN401
            nonlocal requests
            requests += 1
            if requests == before:
                deletes = LanceTable(context_on(ScriptedStore(LocalStore(uri), plug_pulled_before_write(writes))))
                with suppress(PlugPulledError):
                    deletes.branches.delete("run")
            return request.send()

        report = LanceTable(context_on(ScriptedStore(LocalStore(table.uri), deleting))).maintenance.verify()
        assert [] == [problem for problem in report.problems if problem.severity == ERROR]
        stopped = requests >= request_number
    assert request_number > 10


def test_verifying_beside_writers_finds_nothing(tmp_path: Path) -> None:
    """A table is verified repeatedly during commits, merges, and creations and deletions of branches."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    done = threading.Event()

    def write() -> None:
        own = LanceTable.open(table.uri)
        try:
            for number in range(8):
                own.branches.create(f"run/{number}")
                own.append(entries("r", number), branch=f"run/{number}")
                own.delete(f"value = {number - 3}", branch=f"run/{number}")
                own.merge(f"run/{number}")
                own.tags.move("production", "main")
                own.branches.delete(f"run/{number}")
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reports = []
    while not done.is_set():
        reports.append(LanceTable.open(table.uri).maintenance.verify())
    writer.join()
    assert [] == [problem for report in reports for problem in report.problems if problem.severity == ERROR]
    assert () == table.maintenance.verify(deep=True).problems
    assert len(reports) > 1


def test_a_storage_format_without_version_is_found_and_left_out(tmp_path: Path) -> None:
    """No release of pylance opens such a version, and the next commit leaves the empty format out."""
    lance.write_dataset(pa.table({"value": [1, 2]}), tmp_path / "t", data_storage_version="legacy")
    table = LanceTable.open(tmp_path / "t")
    path = manifest_file(table, 1)
    path.write_bytes(changed(path.read_bytes(), lambda message: message.data_format.ClearField("version")))
    (problem,) = (one for one in LanceTable.open(table.uri).maintenance.verify().problems if one.severity == ERROR)
    assert ("the storage format has no version, so the version cannot be read", ("main@1",)) == (
        problem.what,
        problem.versions,
    )
    LanceTable.open(table.uri).config.set({"set": "again"})
    assert [1, 2] == LanceTable.open(table.uri).read()["value"].to_pylist()


def test_a_version_that_does_not_exist_is_no_sound_one(tmp_path: Path) -> None:
    """A report about no version would say that nothing is wrong."""
    table = new_table(tmp_path, entries("a", 1))
    with pytest.raises(VersionNotFoundError):
        table.maintenance.verify("main@99")
    with pytest.raises(VersionNotFoundError):
        table.maintenance.record_digests("main@99")


def test_a_branch_of_a_version_that_was_replaced_is_found(tmp_path: Path) -> None:
    """An older copy of the versions gives their numbers to others, and a merge would lose rows of the branch."""
    table = new_table(tmp_path, entries("a", 1))
    versions = Path(table.uri) / layout.VERSIONS
    shutil.copytree(versions, tmp_path / "copy")
    table.append(entries("b", 2))
    table.branches.create("run")
    table.append(entries("c", 3), branch="run")
    assert () == table.maintenance.verify().problems
    shutil.rmtree(versions)
    shutil.copytree(tmp_path / "copy", versions)
    again = LanceTable.open(table.uri)
    again.append(entries("d", 4, 5))
    (problem,) = again.maintenance.verify().problems
    assert (("run@3",), "_refs/branches/run.json", ERROR) == (problem.versions, problem.path, problem.severity)
    assert "other data files than main@3, from which branch 'run' was forked" in problem.what


def test_a_tag_of_a_version_that_was_replaced_is_found(tmp_path: Path) -> None:
    """A tag records the size of the manifest, which differs from that of most other versions."""
    table = new_table(tmp_path, entries("a", 1), entries("b", 2))
    table.tags.create("v1", "main")
    in_manifest(lambda manifest: replace(manifest, timestamp=1))(table)
    (problem,) = LanceTable.open(table.uri).maintenance.verify().problems
    assert (("main@3",), "_refs/tags/v1.json", WARNING) == (problem.versions, problem.path, problem.severity)
    assert re.fullmatch(r"its manifest has \d+ bytes, and tag 'v1' records \d+", problem.what)


def test_forks_and_tags_of_pylance_name_what_they_were_made_of(tmp_path: Path) -> None:
    """Pylance records the same, whatever is committed, deleted, compacted and indexed before and afterwards."""
    table = new_table(tmp_path, entries("a", *range(20)), entries("b", *range(20)))
    dataset = as_pylance(table)
    dataset.delete("value = 3")
    dataset.tags.create("v1", dataset.version)
    branch = dataset.create_branch("foreign", dataset.version)
    branch.delete("value = 4")
    branch.tags.create("v2", ("foreign", branch.version))
    inner = branch.create_branch("inner", ("foreign", branch.version))
    inner.insert(entries("c", 7))
    dataset.optimize.compact_files()
    dataset.create_scalar_index("value", "BTREE")
    dataset.tags.update("v1", dataset.version)
    again = LanceTable.open(table.uri)
    again.branches.create("own", "foreign")
    again.branches.rename("own", "renamed")
    again.tags.create("v3", "renamed")
    assert () == again.maintenance.verify(deep=True).problems


def test_a_tag_of_a_detached_version_is_no_error(tmp_path: Path) -> None:
    """Pylance reads it, this package does not; a collection keeps it as long as the tag is there."""
    table = new_table(tmp_path, entries("a", 1))
    added = lance.LanceOperation.Append(lance.fragment.write_fragments(entries("b", 2), table.uri))
    detached = lance.LanceDataset.commit(table.uri, added, read_version=table.head().number, detached=True)
    as_pylance(table).tags.create("detached", detached.version)
    again = LanceTable.open(table.uri)
    (problem,) = again.maintenance.verify().problems
    assert (WARNING, "_refs/tags/detached.json") == (problem.severity, problem.path)
    with pytest.raises(VersionNotFoundError):
        again.read("detached")
    again.maintenance.collect_garbage(timedelta(0), grace=timedelta(0), dry_run=False)
    assert 2 == lance.dataset(table.uri, version="detached").count_rows()
