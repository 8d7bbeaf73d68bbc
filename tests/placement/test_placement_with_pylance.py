"""The package and pylance use each other's base paths, clones and moved tables."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import DatasetBasePath

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.types import Relocation
from tests.compat.tables import assert_sound
from tests.conftest import S3Storage
from tests.placement.tables_with_bases import ALL_ROWS, INNER_ROWS, RUN_ROWS, TABLES_OF, made_by_pylance
from tests.table_factory import SCHEMA, Rows, as_pylance, contents, entries, new_table, sorted_rows

CLEAN_UPS: dict[str, dict[str, Any]] = {
    "default": {},
    "retain one version": {"retain_versions": 1},
    "everything old, unverified": {"older_than": timedelta(microseconds=1), "delete_unverified": True},
    "retain one version, unverified": {"retain_versions": 1, "delete_unverified": True},
}
SHALLOW, DEEP = "shallow", "deep"
KINDS = pytest.mark.parametrize("kind", [SHALLOW, DEEP])


@pytest.fixture(autouse=True)
def _allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the base paths that pylance adds, for which it writes no allowances."""
    monkeypatch.setenv("LANCE_DAGSTER_ALLOWED_BASE_PATHS", str(tmp_path))


EITHER = pytest.mark.parametrize("maker", TABLES_OF)


def check_all(table: LanceTable, expected: dict[str, Rows]) -> None:
    """Assert that both programs read these rows of each branch."""
    for name, rows in expected.items():
        assert_sound_rows(as_pylance(table, name), rows)
        assert rows == contents(table, name)


def assert_sound_rows(dataset: lance.LanceDataset, rows: Rows) -> None:
    """Check rows like `assert_sound`, which needs other keys."""
    dataset.validate()
    assert sorted(rows) == sorted_rows(dataset.to_table(columns=["key", "value"]))
    assert len(rows) == dataset.count_rows()
    assert len(rows) == len(set(dataset.to_table(columns=[], with_row_id=True)["_rowid"].to_pylist()))
    assert sum(value == 1 for _, value in rows) == dataset.count_rows(filter="value = 1")


@EITHER
def test_a_table_under_base_paths_is_read_by_both(tmp_path: Path, maker: str) -> None:
    """Data files lie at two other places, and deletion files and indices with the table."""
    check_all(TABLES_OF[maker](tmp_path), ALL_ROWS)


@EITHER
@pytest.mark.parametrize("branch", ["main", "run"])
def test_both_write_to_the_same_base(tmp_path: Path, maker: str, branch: str) -> None:
    """Both write on main and on a branch, whichever of them added the base."""
    table = TABLES_OF[maker](tmp_path)
    if maker == "pylance's" and branch == "run":
        # pylance's own base for the root has the id 0, which pylance reads as no base when a base is named.
        lance.write_dataset(entries("p", 1), as_pylance(table, branch), mode="append", target_bases=["flat"])
        rows = [*ALL_ROWS[branch], ("p", 1)]
    else:
        lance.write_dataset(entries("p", 1), as_pylance(table, branch), mode="append", target_bases=["cold", "flat"])
        rows = [*ALL_ROWS[branch], ("p", 1)]
    table.append(table.stage(entries("o", 1), branch=branch, base="cold"), branch=branch)
    table.append(table.stage(entries("o", 2), branch=branch, base="flat"), branch=branch)
    as_pylance(table, branch).delete("key = 'o' and value = 2")
    check_all(table, {branch: sorted([*rows, ("o", 1)])})


def test_both_add_bases_to_one_table(tmp_path: Path) -> None:
    """Ids are unique, and a stale pylance handle works."""
    table = new_table(tmp_path, entries("a", 1))
    stale = lance.dataset(table.uri)
    table.maintenance.add_base("first", tmp_path / "first")
    stale.add_bases([DatasetBasePath(str(tmp_path / "second"), name="second", is_dataset_root=True)])
    table.maintenance.add_base("third", tmp_path / "third")
    stale.insert(entries("a", 2))
    assert {"first": 1, "second": 2, "third": 3} == {base.name: base.id for base in table.maintenance.bases()}
    assert {1, 2, 3} == set(lance.dataset(table.uri).base_paths())
    with pytest.raises(ValueError, match="already exists"):
        as_pylance(table).add_bases([DatasetBasePath(str(tmp_path / "x"), name="first")])
    assert [("a", 1), ("a", 2)] == contents(table)


@EITHER
@KINDS
@pytest.mark.parametrize("ref", ["main", "inner"])
def test_pylance_works_on_clones_of_the_package(tmp_path: Path, maker: str, kind: str, ref: str) -> None:
    """Pylance inserts, deletes, updates, indexes, branches, clones and cleans up."""
    clone = TABLES_OF[maker](tmp_path).maintenance.clone(tmp_path / "clone", ref, shallow=kind == SHALLOW)
    rows = ALL_ROWS[ref]
    check_all(clone, {"main": rows})
    dataset = as_pylance(clone)
    dataset.insert(entries("p", 1, 2))
    dataset.delete("key = 'p' and value = 2 or key = 'a' and value = 1")
    dataset.update({"value": "7"}, where="key = 'flat' and value = 2")
    rows = sorted([row for row in rows if row not in {("a", 1), ("flat", 2)}] + [("p", 1), ("flat", 7)])
    dataset.create_scalar_index("key", "BTREE")
    dataset.create_branch("b").insert(entries("b", 1))
    dataset.shallow_clone(str(tmp_path / "again"), (None, None))
    for options in CLEAN_UPS.values():
        as_pylance(clone).cleanup_old_versions(**options)
    check_all(clone, {"main": rows, "b": sorted([*rows, ("b", 1)])})
    check_all(LanceTable.open(tmp_path / "again"), {"main": rows})


@KINDS
@pytest.mark.parametrize("ref", ["main", "inner"])
def test_clones_are_written_as_pylance_writes_its_own(tmp_path: Path, kind: str, ref: str) -> None:
    """Number, schema, settings, ids and operation are equal; base ids start at one, and bases have names."""
    table = made_by_pylance(tmp_path)
    source = as_pylance(table, ref)
    source.update_config({"key": "value"})
    number = source.version
    # pylance looks in the wrong folder for files of a base that is no dataset root.
    shutil.copytree(tmp_path / "flat", tmp_path / "flat" / "data")
    make = source.shallow_clone if kind == SHALLOW else source.deep_clone
    expected = make(str(tmp_path / "pylance-clone"), (ref, None) if ref != "main" else number)
    found = as_pylance(table.maintenance.clone(tmp_path / "package", ref, shallow=kind == SHALLOW))
    assert (expected.version, expected.schema, expected.config()) == (found.version, found.schema, found.config())
    columns = ["key", "value", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    assert expected.to_table(columns=columns) == found.to_table(columns=columns)
    assert len(expected.base_paths()) == len(found.base_paths())
    names = [sorted(index.name for index in dataset.describe_indices()) for dataset in (expected, found)]
    assert names[0] == names[1]
    expected_transaction, found_transaction = expected.read_transaction(number), found.read_transaction(number)
    assert expected_transaction is not None
    assert found_transaction is not None
    assert (expected_transaction.read_version, type(expected_transaction.operation)) == (
        found_transaction.read_version,
        type(found_transaction.operation),
    )


@KINDS
@EITHER
def test_the_package_works_on_clones_of_pylance(tmp_path: Path, maker: str, kind: str) -> None:
    """Pylance's clones reference the source by a base of the id 0."""
    table = TABLES_OF[maker](tmp_path)
    if kind == DEEP:
        shutil.copytree(tmp_path / "flat", tmp_path / "flat" / "data")
    source = as_pylance(table, "run")
    (source.shallow_clone if kind == SHALLOW else source.deep_clone)(str(tmp_path / "clone"), ("run", None))
    clone = LanceTable.open(tmp_path / "clone")
    check_all(clone, {"main": RUN_ROWS})
    clone.branches.create("x")
    clone.replace_where("key IN ('r', 'x') and value = 1", entries("x", 1), branch="x")
    clone.append(entries("y", 1))
    clone.merge("x")
    rows = sorted([row for row in RUN_ROWS if row != ("r", 1)] + [("x", 1), ("y", 1)])
    check_all(clone, {"main": rows})
    check_all(clone.maintenance.clone(tmp_path / "deep", shallow=False), {"main": rows})
    shutil.move(clone.uri, tmp_path / "moved")
    moved = LanceTable.open(tmp_path / "moved")
    moved.maintenance.relocate()
    check_all(moved, {"main": rows})


def moved(table: LanceTable, *, copy: bool = False) -> LanceTable:
    """The table, moved or copied to another place."""
    place = Path(table.uri).parent / "somewhere" / "else"
    place.parent.mkdir()
    (shutil.copytree if copy else shutil.move)(table.uri, place)
    return LanceTable.open(place)


@EITHER
@pytest.mark.parametrize("options", CLEAN_UPS)
@pytest.mark.parametrize("way", ["moved", "copied"])
def test_pylance_works_on_a_relocated_table(tmp_path: Path, maker: str, options: str, way: str) -> None:
    """Pylance reads, writes and cleans up each branch without a loss, also when the old place is gone."""
    table = TABLES_OF[maker](tmp_path)
    there = moved(table, copy=way == "copied")
    there.maintenance.relocate()
    if way == "copied":
        shutil.rmtree(table.uri)
    check_all(there, ALL_ROWS)
    assert RUN_ROWS == sorted_rows(lance.dataset(there.uri, version="candidate").to_table())
    expected = {}
    for name, rows in ALL_ROWS.items():
        as_pylance(there, name).insert(entries("p", 1, 2))
        as_pylance(there, name).delete("key = 'p' and value = 2 or key = 'a' and value = 1")
        as_pylance(there, name).update({"value": "9"}, where="key = 'flat' and value = 2")
        changed = [row for row in rows if row not in {("a", 1), ("flat", 2)}]
        expected[name] = sorted([*changed, ("p", 1), ("flat", 9)])
    there.append(entries("o", 1), branch="run")
    expected["run"] = sorted([*expected["run"], ("o", 1)])
    for name in ALL_ROWS:
        as_pylance(there, name).cleanup_old_versions(error_if_tagged_old_versions=False, **CLEAN_UPS[options])
    check_all(LanceTable.open(there.uri), expected)
    assert Relocation() == there.maintenance.relocate()


@EITHER
def test_writers_that_were_there_first_follow(tmp_path: Path, maker: str) -> None:
    """Pylance handles from before the relocation commit on top of it."""
    there = moved(TABLES_OF[maker](tmp_path))
    stale = [as_pylance(there, "run") for _ in range(5)]
    there.maintenance.relocate()
    stale[0].insert(entries("p", 1))
    as_pylance(there, "run").delete("key = 'r' and value = 3")
    stale[1].insert(entries("p", 3))
    stale[2].create_branch("later").insert(entries("l", 1))
    stale[3].update_config({"key": "value"})
    stale[4].add_bases([DatasetBasePath(str(tmp_path / "more"), name="more")])
    rows = sorted([row for row in RUN_ROWS if row != ("r", 3)] + [("p", 1), ("p", 3)])
    check_all(there, {"run": rows})
    assert ["candidate"] == [tag for tag in there.tags.list() if there.count_rows(tag) == len(RUN_ROWS)]


@EITHER
def test_pylance_going_back_to_before_the_move_is_put_right(tmp_path: Path, maker: str) -> None:
    """Pylance restores the old places with the rows, and a second call corrects them."""
    table = TABLES_OF[maker](tmp_path)
    number = table.head("run").number
    there = moved(table)
    there.maintenance.relocate()
    as_pylance(there, "run").insert(entries("p", 1))
    lance.dataset(there.uri).checkout_version(("run", number)).restore()
    assert ["run"] == [branch.name for branch in there.maintenance.relocate().branches]
    check_all(there, {"run": RUN_ROWS})


@EITHER
def test_relocated_branches_are_merged(tmp_path: Path, maker: str) -> None:
    """The branches are merged into their parents and into main."""
    table = TABLES_OF[maker](tmp_path)
    there = moved(table)
    there.maintenance.relocate()
    there.merge("inner", into="run")
    rows = [("a", 1), ("flat", 2), ("i", 1), ("r", 1), ("r", 3)]
    check_all(there, {"run": rows})
    there.merge("run")
    check_all(there, {"main": sorted([*rows, ("m", 1)])})


def test_a_branch_whose_beginning_was_cleaned_up_is_relocated(tmp_path: Path) -> None:
    """No version shows where it was forked; only the base path is left."""
    table = made_by_pylance(tmp_path)
    for name in ("inner", "run"):
        as_pylance(table, name).cleanup_old_versions(
            older_than=timedelta(microseconds=1), delete_unverified=True, error_if_tagged_old_versions=False
        )
    there = moved(table)
    assert {"inner", "run"} == {branch.name for branch in there.maintenance.relocate().branches}
    check_all(there, {"run": RUN_ROWS, "inner": INNER_ROWS})


def test_a_place_that_cannot_be_told_has_to_be_given(tmp_path: Path) -> None:
    """Two bases are possible, and no version shows which of them was the table."""
    dataset = lance.write_dataset(entries("a", 1), tmp_path / "t", enable_stable_row_ids=True)
    dataset.create_branch("run").insert(entries("r", 1))
    run = lance.dataset(tmp_path / "t").checkout_version(("run", None))
    run.add_bases([DatasetBasePath(str(tmp_path / "other/tree/run"), name="other", is_dataset_root=True)])
    run = lance.dataset(tmp_path / "t").checkout_version(("run", None))
    run.cleanup_old_versions(older_than=timedelta(microseconds=1), delete_unverified=True)
    there = moved(LanceTable.open(tmp_path / "t"))
    with pytest.raises(InvalidInputError):
        there.maintenance.relocate()
    there.maintenance.relocate(tmp_path / "t")
    assert [("a", 1), ("r", 1)] == contents(there, "run")


def test_a_table_that_names_itself_as_a_base_is_relocated(tmp_path: Path) -> None:
    """Examples of the specification do so, and pylance allows it."""
    dataset = lance.write_dataset(entries("a", 1), tmp_path / "t", enable_stable_row_ids=True)
    dataset.add_bases([DatasetBasePath(str(tmp_path / "t"), name="self", is_dataset_root=True)])
    lance.write_dataset(entries("a", 2), tmp_path / "t", mode="append", target_bases=["self"])
    table = LanceTable.open(tmp_path / "t")
    table.branches.create("run")
    table.append(entries("r", 1), branch="run")
    there = moved(table)
    assert ["main", "run"] == [branch.name for branch in there.maintenance.relocate().branches]
    check_all(there, {"main": [("a", 1), ("a", 2)], "run": [("a", 1), ("a", 2), ("r", 1)]})
    there.merge("run")
    check_all(there, {"main": [("a", 1), ("a", 2), ("r", 1)]})


def test_a_table_without_branches_that_names_itself_has_to_be_told(tmp_path: Path) -> None:
    """Only the argument can give the old place."""
    dataset = lance.write_dataset(entries("a", 1), tmp_path / "t")
    dataset.add_bases([DatasetBasePath(str(tmp_path / "t"), name="self", is_dataset_root=True)])
    lance.write_dataset(entries("a", 2), tmp_path / "t", mode="append", target_bases=["self"])
    there = moved(LanceTable.open(tmp_path / "t"))
    assert ["main"] == [branch.name for branch in there.maintenance.relocate(tmp_path / "t").branches]
    assert [("a", 1), ("a", 2)] == contents(there)


def test_blobs_of_a_relocated_branch_are_found(tmp_path: Path) -> None:
    """Blobs lie beside the data file, under the same base."""
    schema = pa.schema([pa.field("key", pa.int64()), lance.blob_field("blob")])
    rows = pa.table([pa.array([1, 2]), lance.blob_array([b"x" * 200_000, b"y" * 6_000_000])], schema=schema)
    dataset = lance.write_dataset(rows, tmp_path / "t", data_storage_version="2.2", enable_stable_row_ids=True)
    dataset.create_branch("run").insert(rows)
    there = moved(LanceTable.open(tmp_path / "t"))
    there.maintenance.relocate()
    blobs = as_pylance(there, "run").take_blobs("blob", indices=[0, 1, 2, 3])
    assert [200_000, 6_000_000] * 2 == [len(blob.readall()) for blob in blobs if blob]


def test_pylance_reads_a_table_with_a_base_in_other_storage(tmp_path: Path, s3_storage: S3Storage) -> None:
    """The package accepts options under pylance's names, too."""
    table = new_table(tmp_path, entries("a", 1))
    # Its options are missing here, so no allowance can be written at the place yet.
    table.maintenance.add_base("cold", f"{s3_storage.uri}/cold")
    options = {f"base_1.{key}": value for key, value in s3_storage.storage_options.items()}
    table = LanceTable.open(table.uri, options)
    table.maintenance.allow_base(f"{s3_storage.uri}/cold")
    table.append(table.stage(entries("cold", 1), base="cold"))
    dataset = lance.dataset(table.uri, storage_options=options)
    lance.write_dataset(entries("cold", 2), dataset, mode="append", target_bases=["cold"], storage_options=options)
    params = {f"{s3_storage.uri}/cold": dict(s3_storage.storage_options)}
    rows = [("a", 1), ("cold", 1), ("cold", 2)]
    assert rows == sorted_rows(lance.dataset(table.uri, base_store_params=params).to_table())
    assert rows == contents(table)


@KINDS
def test_pylance_reads_clones_of_the_package_on_s3(s3_storage: S3Storage, kind: str) -> None:
    """Pylance needs only the options of the clone."""
    table = LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=s3_storage.storage_options)
    table.append(entries("a", 1, 2))
    table.branches.create("run")
    table.replace_where("value = 1", entries("r", 1), branch="run")
    clone = table.maintenance.clone(f"{s3_storage.uri}/clone", "run", shallow=kind == SHALLOW)
    options = dict(s3_storage.storage_options)
    dataset = lance.dataset(clone.uri, storage_options=options)
    assert [("a", 2), ("r", 1)] == sorted_rows(dataset.to_table())
    dataset.insert(entries("p", 1))
    dataset.delete("key = 'a'")
    assert [("p", 1), ("r", 1)] == contents(clone)


def test_assert_sound_holds_for_a_relocated_branch(tmp_path: Path) -> None:
    """Row ids and row versions are unchanged."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 1))
    table.branches.create("run")
    table.replace_where("key IN ('a', 'c') and value = 1", entries("c", 1), branch="run")
    columns = ["key", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    before = as_pylance(table, "run").to_table(columns=columns)
    there = moved(table)
    there.maintenance.relocate()
    assert before == as_pylance(there, "run").to_table(columns=columns)
    assert_sound(as_pylance(there, "run"), [("a", 2), ("b", 1), ("c", 1)])
