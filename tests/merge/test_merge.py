"""Merges of branches: what is merged, what is refused, and that only metadata is written."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    MergeConflictError,
    RefNotFoundError,
    StoreError,
    VersionNotFoundError,
)
from lance_dagster.store import LocalStore
from lance_dagster.types import Strategy
from tests.raising import raises
from tests.store.scripted import (
    PlugPulledError,
    Request,
    Script,
    ScriptedStore,
    answer_lost_at_write,
    intruder_at_commit,
    plug_pulled_before_write,
)
from tests.table_factory import SCHEMA, as_pylance, contents, context_of, context_on, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Two partitions, each added in its own version, and a branch `run` forked from `main@3`."""
    made = new_table(tmp_path, entries("a", 1, 2), entries("b", 1, 2))
    made.branches.create("run")
    return made


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


def replace(table: LanceTable, key: str, *values: int, branch: str = "main", run: str | None = None) -> None:
    """Replace a partition, as a run with partitions does."""
    properties = {"dagster/run_id": run} if run else None
    table.replace_where(f"key = '{key}'", entries(key, *values), branch=branch, partitions=[key], properties=properties)


def add(table: LanceTable, key: str, *values: int, branch: str = "main") -> None:
    """Add rows to a partition, as a run with partitions does."""
    table.append(entries(key, *values), branch=branch, partitions=[key])


def snapshot(table: LanceTable) -> dict[str, tuple[int, int, int]]:
    """All files of a table, with the attributes that copying or rewriting would change."""
    root = Path(table.uri)
    found = ((path.relative_to(root), path.stat()) for path in root.rglob("*") if path.is_file())
    return {str(path): (stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in found}


def refused(table: LanceTable, source: str = "run", into: str = "main") -> MergeConflictError:
    """Merge, expect a refusal, and assert that nothing was written."""
    before, rows = snapshot(table), contents(table, into)
    with pytest.raises(MergeConflictError) as caught:
        table.merge(source, into)
    assert before == snapshot(table)
    assert rows == contents(table, into)
    assert caught.value.conflicts == table.preview_merge(source, into).conflicts
    assert str(caught.value).startswith(f"cannot merge {source}@")
    assert table.uri in str(caught.value)
    return caught.value


def units(error: MergeConflictError) -> list[str]:
    """The units of the conflicts."""
    return [str(conflict).partition(":")[0] for conflict in error.conflicts]


# Accepted merges.


def test_appends_of_both_sides_are_kept(table: LanceTable) -> None:
    """Rows of different partitions and of the same one are united."""
    add(table, "c", 1, branch="run")
    add(table, "b", 3, branch="run")
    add(table, "d", 1)
    add(table, "b", 3)
    version = table.merge("run")
    wanted = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3), ("b", 3), ("c", 1), ("d", 1)]
    assert wanted == contents(table)
    assert ("Append", ("main@5", "run@5")) == (version.operation, version.parents)


def test_a_replaced_partition_is_replaced(table: LanceTable) -> None:
    """The dest has changed other partitions meanwhile."""
    replace(table, "a", 7, branch="run")
    replace(table, "b", 8)
    assert "Update" == table.merge("run").operation
    assert [("a", 7), ("b", 8)] == contents(table)


def test_deleted_rows_of_a_shared_fragment_stay_deleted(tmp_path: Path) -> None:
    """The deletion vector is applied to the dest's fragment."""
    table = new_table(tmp_path, pa.concat_tables([entries("a", 1, 2, 3), entries("b", 1, 2)]))
    table.branches.create("run")
    replace(table, "a", 9, branch="run")
    add(table, "c", 1)
    table.merge("run")
    assert [("a", 9), ("b", 1), ("b", 2), ("c", 1)] == contents(table)
    table.to_lance().validate()


def test_rows_deleted_from_an_added_fragment_stay_deleted(table: LanceTable) -> None:
    """A fragment added on the branch arrives with its deletion vector under another id."""
    add(table, "c", 1, 2, 3, branch="run")
    table.replace_where("key = 'c' and value = 2", entries("c"), branch="run")
    add(table, "d", 1)
    table.merge("run")
    assert [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 3), ("d", 1)] == contents(table)
    table.to_lance().validate()


def test_an_overwritten_table_is_overwritten(table: LanceTable) -> None:
    """The new columns are taken if the dest is unchanged."""
    table.overwrite(pa.table({"name": ["x"]}), branch="run")
    assert "Overwrite" == table.merge("run").operation
    assert ["name"] == table.schema().names
    assert [{"name": "x"}] == table.read().to_pylist()


@pytest.mark.parametrize("overwritten", [True, False])
def test_data_files_of_another_version_come_along(tmp_path: Path, *, overwritten: bool) -> None:
    """If all files are replaced, the table gets their version; otherwise it keeps its own."""
    uri = str(tmp_path / "table")
    lance.write_dataset(entries("a", 1), uri, enable_stable_row_ids=True, data_storage_version="2.0")
    table = LanceTable.open(uri)
    table.branches.create("run")
    lance.write_dataset(entries("b", 2), as_pylance(table, "run"), mode="overwrite", data_storage_version="2.1")
    if not overwritten:
        table.branches.create("other")
        table.append(entries("c", 3), branch="other")
        lance.write_dataset(entries("d", 4), as_pylance(table, "other"), mode="append", data_storage_version="2.1")
    table.merge("run" if overwritten else "other")
    expected = [("b", 2)] if overwritten else [("a", 1), ("c", 3), ("d", 4)]
    assert expected == contents(table)
    assert ("2.1" if overwritten else "2.0") == as_pylance(table).data_storage_version
    lance.write_dataset(entries("e", 5), as_pylance(table), mode="append")
    assert [*expected, ("e", 5)] == contents(table)
    assert table.maintenance.verify(deep=True).ok


def test_deletes_by_pylance_are_carried_over(table: LanceTable) -> None:
    """Pylance deleted single rows and a whole fragment."""
    as_pylance(table, "run").delete("key = 'a' and value = 1")
    as_pylance(table, "run").delete("key = 'b'")
    table.merge("run")
    assert [("a", 2)] == contents(table)


def test_appends_by_pylance_come_along(table: LanceTable) -> None:
    """The files are copied, because they lie in the branch's folder, which is emptied after the branch was deleted."""
    as_pylance(table, "run").insert(entries("p", 1))
    table.merge("run")
    table.branches.delete("run")
    shutil.rmtree(Path(table.uri) / "tree")
    assert [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("p", 1)] == contents(table)


def test_configuration_and_metadata_are_merged_by_key(table: LanceTable) -> None:
    """Each key that one side set, changed or removed is taken from that side."""
    as_pylance(table).update_config({"own": "1", "gone": "1"})
    table.branches.create("later")
    as_pylance(table, "later").update_config({"later": "2", "own": "2"})
    as_pylance(table, "later").delete_config_keys(["gone"])
    as_pylance(table, "later").update_metadata({"owner": "ann"})
    as_pylance(table).update_config({"main": "3"})
    table.merge("later")
    found = {key: value for key, value in as_pylance(table).config().items() if not key.startswith("lance.")}
    assert {"own": "2", "later": "2", "main": "3"} == found
    assert "ann" == context_of(table).head("main").manifest.table_metadata["owner"]


def test_a_compaction_of_the_dest_does_not_disturb_appends(table: LanceTable) -> None:
    """The source did not touch the removed fragments."""
    add(table, "c", 1, branch="run")
    as_pylance(table).optimize.compact_files()
    table.merge("run")
    assert [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)] == contents(table)


def test_messages_and_properties_are_the_callers(table: LanceTable) -> None:
    """The merge also records the merging run and the claims, and has a default message."""
    add(table, "c", 1, branch="run")
    version = table.merge("run", message="publish", properties={"dagster/run_id": "r9"})
    assert ("publish", "r9") == (version.message, version.properties["dagster/run_id"])
    add(table, "c", 2, branch="run")
    assert "merge run@5 into main" == table.merge("run").message


def test_nothing_but_metadata_is_written(tmp_path: Path) -> None:
    """No data file is copied, renamed or rewritten, even a large one."""
    table = new_table(tmp_path, entries("a", *range(100_000)))
    table.branches.create("run")
    replace(table, "c", *range(100_000), branch="run")
    table.replace_where("value = 3", entries("a"), branch="run")
    before = snapshot(table)
    table.merge("run")
    after = snapshot(table)
    new = after.keys() - before.keys()
    changed = {path for path in before if before[path] != after[path]}
    assert {"_versions", "_deletions"} == {path.split("/")[0] for path in new}
    assert {"_versions/latest_version_hint.json"} == changed
    assert sum(after[path][2] for path in new) < 10_000
    manifest = context_of(table).head("main").manifest
    assert () == manifest.base_paths
    assert {None} == {file.base_id for fragment in manifest.fragments for file in fragment.files}


# Refused merges.


def test_a_partition_replaced_on_both_sides_is_refused(table: LanceTable) -> None:
    """The error names the table, the partition and both runs."""
    replace(table, "a", 7, branch="run", run="source-run")
    replace(table, "a", 8, run="dest-run")
    text = str(refused(table))
    assert f"cannot merge run@4 into main@4 of {table.uri}; nothing was written:" in text
    assert (
        "  - partition a: run source-run replaced it in run@4; run dest-run replaced it in main@4" in text.splitlines()
    )


def test_a_new_partition_provided_twice_is_refused(table: LanceTable) -> None:
    """Neither side deleted rows, so only the claims show the conflict."""
    replace(table, "new", 7, branch="run")
    replace(table, "new", 8)
    assert ["partition new"] == units(refused(table))


def test_the_run_behind_a_merge_is_named(table: LanceTable) -> None:
    """Rows that were merged into the dest are attributed to the run that merged them."""
    table.branches.create("other")
    replace(table, "a", 7, branch="run")
    replace(table, "a", 8, branch="other")
    table.merge("other", properties={"dagster/run_id": "r7"})
    assert "run r7 replaced it in main@4" in str(refused(table))


@pytest.mark.parametrize("by_name", [True, False], ids=["partition", "predicate"])
@pytest.mark.parametrize("replacing", ["run", "main"])
def test_rows_added_to_a_replaced_partition_are_refused(table: LanceTable, replacing: str, *, by_name: bool) -> None:
    """Either side may replace it, and partitions may be named or given by a predicate."""
    keys = ["a"] if by_name else []
    adding = "main" if replacing == "run" else "run"
    table.replace_where("key = 'a'", entries("a", 7), branch=replacing, partitions=keys)
    table.append(entries("a", 8), branch=adding, partitions=keys)
    assert ["partition a" if by_name else "rows where key = 'a'"] == units(refused(table))


@pytest.mark.parametrize("replacing", ["run", "main"])
def test_a_predicate_is_compared_with_named_partitions_by_the_rows(table: LanceTable, replacing: str) -> None:
    """A claim without named partitions may include any partition."""
    table.replace_where("key = 'a'", entries("a", 7), branch=replacing)
    add(table, "a", 8, branch="main" if replacing == "run" else "run")
    assert ["rows where key = 'a'"] == units(refused(table))


@pytest.mark.parametrize("replacing", ["run", "main"])
def test_rows_added_by_pylance_to_a_replaced_partition_are_found(table: LanceTable, replacing: str) -> None:
    """Pylance makes no claims, so the rows are checked; the conflict names the version that added them."""
    adding = "main" if replacing == "run" else "run"
    replace(table, "a", 7, branch=replacing)
    as_pylance(table, adding).insert(entries("a", 8))
    error = refused(table)
    assert ["partition a"] == units(error)
    assert f"({adding}@4) changed rows there" in str(error)


@pytest.mark.parametrize("replacing", ["run", "main"])
def test_rows_added_by_pylance_elsewhere_are_no_conflict(table: LanceTable, replacing: str) -> None:
    """The rows are checked, and are in another partition."""
    replace(table, "a", 7, branch=replacing)
    as_pylance(table, "main" if replacing == "run" else "run").insert(entries("c", 8))
    table.merge("run")
    assert [("a", 7), ("b", 1), ("b", 2), ("c", 8)] == contents(table)


@pytest.mark.parametrize(
    "other",
    [
        lambda table, branch: add(table, "z", 1, branch=branch),
        lambda table, branch: replace(table, "b", 1, branch=branch),
        lambda table, branch: table.overwrite(entries("z", 1), branch=branch),
        lambda table, branch: as_pylance(table, branch).insert(entries("z", 1)),
        lambda table, branch: as_pylance(table, branch).delete("key = 'a'"),
    ],
    ids=["append", "replace", "overwrite", "append by pylance", "delete by pylance"],
)
@pytest.mark.parametrize("overwriting", ["run", "main"])
def test_a_table_overwritten_on_one_side_tolerates_nothing_on_the_other(
    table: LanceTable, other: Callable[[LanceTable, str], object], overwriting: str
) -> None:
    """An overwrite claims every row."""
    table.overwrite(entries("o", 1), branch=overwriting)
    other(table, "main" if overwriting == "run" else "run")
    refused(table)


TAKEN_BACK: dict[str, Callable[[LanceTable, str], object]] = {
    "restore": lambda table, branch: table.restore(str(table.head(branch)) + "~1", branch),
    "revert": lambda table, branch: table.revert(branch, branch),
    "delete": lambda table, branch: table.delete("key = 'z'", branch=branch),
}


@pytest.mark.parametrize("other", ["all rows", "its partition"])
@pytest.mark.parametrize("back", TAKEN_BACK)
@pytest.mark.parametrize("replacing", ["run", "main"])
def test_rows_that_were_taken_back_are_in_the_way_of_nobody(
    table: LanceTable, back: str, replacing: str, other: str
) -> None:
    """The final state of a side counts, not the path to it."""
    wavering = "main" if replacing == "run" else "run"
    add(table, "z", 1, branch=wavering)
    TAKEN_BACK[back](table, wavering)
    if other == "all rows":
        table.overwrite(entries("o", 1), branch=replacing)
    else:
        replace(table, "z", 5, branch=replacing)
    wanted = contents(table, replacing)
    table.merge("run")
    assert wanted == contents(table)


def test_two_empty_replacements_contradict_each_other(tmp_path: Path) -> None:
    """Both overwrites claim all rows, although one has no rows."""
    table = LanceTable.create(tmp_path / "empty", entries("a", 1).schema)
    table.branches.create("run")
    table.overwrite(entries("a").slice(0, 0), branch="run")
    table.overwrite(entries("b", 1))
    assert ["the whole table"] == units(refused(table))


def test_a_table_without_row_ids_can_be_merged(tmp_path: Path) -> None:
    """Appends and replacements need no row ids."""
    uri = str(tmp_path / "addresses")
    lance.write_dataset(entries("a", 1, 2), uri)
    table = LanceTable.open(uri)
    table.branches.create("run")
    replace(table, "a", 7, branch="run")
    add(table, "b", 1)
    table.merge("run")
    assert [("a", 7), ("b", 1)] == contents(table)
    as_pylance(table).validate()


def test_a_new_schema_beside_other_rows_is_refused(table: LanceTable) -> None:
    """This holds even if the other side replaced rows by a column that the new schema lacks."""
    table.overwrite(pa.table({"name": ["x"]}), branch="run")
    table.replace_where("key = 'a'", entries("a", 7))
    assert {"the whole table", "rows where key = 'a'"} <= set(units(refused(table)))


def test_the_same_key_set_differently_is_refused(table: LanceTable) -> None:
    """A configuration key can have only one value."""
    as_pylance(table, "run").update_config({"own": "1"})
    as_pylance(table).update_config({"own": "2"})
    assert ["config key 'own'"] == units(refused(table))


def test_every_conflict_is_told_at_once(table: LanceTable) -> None:
    """All conflicts are in one error."""
    for branch in ("run", "main"):
        replace(table, "a", 7, branch=branch)
        replace(table, "b", 8, branch=branch)
    assert ["partition a", "partition b"] == units(refused(table))[:2]


# Repeated and further merges.


def test_merging_twice_is_merging_once(table: LanceTable) -> None:
    """The second merge returns the same version and writes nothing, even after later commits."""
    add(table, "c", 1, branch="run")
    assert table.branches.is_merged("run") is None
    first = table.merge("run")
    add(table, "d", 1)
    before = snapshot(table)
    assert first == table.merge("run") == table.branches.is_merged("run")
    assert before == snapshot(table)


def test_a_branch_without_commits_is_merged_already(table: LanceTable) -> None:
    """The branch has no changes."""
    before = snapshot(table)
    assert "main@3" == str(table.merge("run"))
    assert before == snapshot(table)


def test_further_commits_of_a_merged_branch_add_only_what_is_new(table: LanceTable) -> None:
    """The second parent of the last merge is the base of the next."""
    add(table, "c", 1, branch="run")
    table.merge("run")
    add(table, "c", 2, branch="run")
    replace(table, "a", 9, branch="run")
    version = table.merge("run")
    assert ("main@4", "run@6") == version.parents
    assert [("a", 9), ("b", 1), ("b", 2), ("c", 1), ("c", 2)] == contents(table)


def test_further_commits_are_merged_after_a_compaction_of_the_dest(table: LanceTable) -> None:
    """The merged rows are not merged again, although their fragments are gone."""
    add(table, "c", 1, branch="run")
    table.merge("run")
    as_pylance(table).optimize.compact_files()
    add(table, "c", 2, branch="run")
    table.merge("run")
    assert [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 2)] == contents(table)


def test_rows_of_the_dest_that_the_branch_never_saw_count_after_a_merge_too(table: LanceTable) -> None:
    """A later replacement conflicts with rows that the dest added before the first merge."""
    add(table, "n", 1)
    add(table, "c", 1, branch="run")
    table.merge("run")
    replace(table, "n", 2, branch="run")
    assert ["partition n"] == units(refused(table))


def test_a_version_between_two_merges_can_be_merged(table: LanceTable) -> None:
    """A ref expression selects the version to merge; older versions are included."""
    for value in (1, 2, 3):
        add(table, "c", value, branch="run")
    table.merge("run@5")
    assert [("c", 1), ("c", 2)] == contents(table)[4:]
    assert table.branches.is_merged("run") is None
    assert "main@4" == str(table.merge("run@4"))
    table.merge("run")
    assert [("c", 1), ("c", 2), ("c", 3)] == contents(table)[4:]


def test_a_chain_of_branches_is_merged_downwards(table: LanceTable) -> None:
    """The inner branch is merged into the outer, and the outer into main."""
    add(table, "c", 1, branch="run")
    table.branches.create("inner", "run")
    add(table, "d", 1, branch="inner")
    replace(table, "a", 9, branch="inner")
    add(table, "e", 1, branch="run")
    assert "run@6" == str(table.merge("inner", into="run"))
    assert [("a", 9), ("b", 1), ("b", 2), ("c", 1), ("d", 1), ("e", 1)] == contents(table, "run")
    assert "main@4" == str(table.merge("run"))
    assert contents(table, "run") == contents(table)
    as_pylance(table).validate()
    as_pylance(table, "run").validate()


def test_a_branch_merged_past_its_parent_takes_the_parent_along(table: LanceTable) -> None:
    """The parent's rows from before the fork come with the child, and not again with the parent."""
    add(table, "c", 1, branch="run")
    table.branches.create("inner", "run")
    add(table, "d", 1, branch="inner")
    replace(table, "a", 9, branch="inner")
    table.merge("inner")
    as_pylance(table).optimize.compact_files()
    add(table, "e", 1, branch="run")
    table.merge("run")
    assert [("a", 9), ("b", 1), ("b", 2), ("c", 1), ("d", 1), ("e", 1)] == contents(table)


def test_main_can_be_merged_into_a_branch_and_back(table: LanceTable) -> None:
    """A branch merges main repeatedly, and does not conflict with those changes when it is merged back."""
    replace(table, "m", 1)
    table.merge("main", into="run")
    replace(table, "m", 2)
    replace(table, "r", 1, branch="run")
    table.merge("main", into="run")
    assert [("m", 2), ("r", 1)] == contents(table, "run")[4:]
    replace(table, "m", 3, branch="run")
    assert [("m", 2)] == contents(table)[4:]
    table.merge("run")
    assert [("m", 3), ("r", 1)] == contents(table)[4:]
    assert table.branches.is_merged("main", into="run") is not None


def test_rows_that_came_from_main_are_not_brought_back_to_it(table: LanceTable) -> None:
    """This holds although main compacted and replaced rows after the branch merged them."""
    add(table, "m", 1)
    add(table, "n", 1)
    table.merge("main", into="run")
    as_pylance(table).optimize.compact_files()
    replace(table, "n", 2)
    add(table, "r", 1, branch="run")
    table.merge("run")
    assert [("m", 1), ("n", 2), ("r", 1)] == contents(table)[4:]


def test_a_deletion_on_the_branch_of_rows_that_came_from_main_is_carried_back(table: LanceTable) -> None:
    """After the merge both sides have the rows, so a deletion is an ordinary change."""
    add(table, "m", 1, 2)
    table.merge("main", into="run")
    table.replace_where("key = 'm' and value = 1", entries("m"), branch="run")
    table.merge("run")
    assert [("m", 2)] == contents(table)[4:]


def test_what_a_branch_did_to_rows_from_main_that_has_its_own_is_carried_back(table: LanceTable) -> None:
    """After merges in both directions, the newest common version is the base, on whichever branch it is."""
    add(table, "r", 1, branch="run")
    table.merge("run")
    add(table, "m", 1, 2)
    table.merge("main", into="run")
    table.replace_where("key = 'm' and value = 1", entries("m"), branch="run", partitions=["m"])
    table.merge("run")
    assert [("m", 2), ("r", 1)] == contents(table)[4:]


def test_what_main_brought_is_remembered_when_others_are_merged(table: LanceTable) -> None:
    """Records of other branches do not displace it."""
    table.branches.create("other")
    add(table, "o", 1, branch="other")
    replace(table, "m", 1)
    table.merge("main", into="run")
    table.merge("other", into="run")
    replace(table, "m", 2, branch="run")
    add(table, "n", 1)
    table.merge("main", into="run")
    table.merge("run")
    assert [("m", 2), ("n", 1), ("o", 1)] == contents(table)[4:]


def test_rows_of_a_third_branch_are_the_same_rows_on_both_sides(table: LanceTable) -> None:
    """Both sides merged the third branch; a deletion of one of its rows on one side is merged to the other."""
    table.branches.create("shared")
    add(table, "s", 1, 2, branch="shared")
    table.merge("shared", into="run")
    table.merge("shared")
    table.replace_where("key = 's' and value = 1", entries("s"), branch="run", partitions=["s"])
    table.merge("run")
    assert [("s", 2)] == contents(table)[4:]


def test_rows_of_a_third_branch_that_is_gone_are_known_by_their_ids(table: LanceTable) -> None:
    """The branch's versions and its record are gone, and its rows were moved."""
    table.branches.create("shared")
    add(table, "s", 1, 2, 3, branch="shared")
    table.merge("shared", into="run")
    table.merge("shared")
    table.branches.delete("shared")
    table.delete("key = 's' and value = 1", branch="run")
    table.delete("key = 's' and value = 3")
    table.maintenance.compact(branch="run")
    table.maintenance.compact()
    add(table, "n", 1)
    table.merge("run")
    assert [("n", 1), ("s", 2)] == contents(table)[4:]
    as_pylance(table).validate()


def test_two_branches_that_took_in_a_third_bring_it_once(table: LanceTable) -> None:
    """This holds in either order, although its fragments were compacted in between."""
    table.branches.create("shared")
    replace(table, "s", 1, branch="shared")
    for name in ("one", "two"):
        table.branches.create(name)
        table.merge("shared", into=name)
        add(table, name, 1, branch=name)
    table.merge("one")
    as_pylance(table).optimize.compact_files()
    table.merge("two")
    table.merge("shared")
    assert [("one", 1), ("s", 1), ("two", 1)] == contents(table)[4:]


def test_a_branch_forked_after_a_merge_has_it(table: LanceTable) -> None:
    """Merging the first branch into the second returns the version of main that merged it."""
    add(table, "c", 1, branch="run")
    merged = table.merge("run")
    add(table, "d", 1)
    table.branches.create("later")
    add(table, "e", 1, branch="later")
    assert merged == table.merge("run", into="later")


def test_a_name_used_again_is_another_branch(table: LanceTable) -> None:
    """Records use branch ids, so those of a deleted branch do not apply to a new one of the same name."""
    add(table, "c", 1, branch="run")
    table.merge("run")
    table.branches.delete("run")
    table.branches.create("run", "main@3")
    add(table, "c", 2, branch="run")
    table.merge("run")
    assert [("c", 1), ("c", 2)] == contents(table)[4:]


def test_a_record_lives_as_long_as_its_branch(table: LanceTable) -> None:
    """The manifest keeps few records after many runs."""
    for number in range(12):
        table.branches.create(f"run/{number}")
        add(table, "c", number, branch=f"run/{number}")
        table.merge(f"run/{number}")
        table.branches.delete(f"run/{number}")
    metadata = context_of(table).head("main").manifest.table_metadata
    assert 8 >= len([key for key in metadata if key.startswith("lance_dagster.merged.")])


def test_the_fork_may_be_cleaned_up_while_the_branch_lives(table: LanceTable) -> None:
    """The first version of a branch stands in for its fork point."""
    replace(table, "a", 9, branch="run")
    add(table, "d", 1)
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    again = LanceTable.open(table.uri)
    assert [4] == again.branches.version_numbers()
    again.merge("run")
    assert [("a", 9), ("b", 1), ("b", 2), ("d", 1)] == contents(again)


def test_what_a_cleaned_up_version_added_is_looked_for(table: LanceTable) -> None:
    """The claims of the version are gone, which needs a strategy, but its rows are still checked."""
    replace(table, "n", 1)
    add(table, "d", 1)
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    replace(table, "n", 2, branch="run")
    again = LanceTable.open(table.uri)
    assert ["version main@4", "partition n"] == units(refused(again))
    with raises(MergeConflictError, units=("partition n",)):
        again.merge("run", strategy={"history": "source-wins"})


@pytest.mark.parametrize("cleaned,other", [("run", "main"), ("main", "run")])
def test_a_side_that_was_cleaned_up_is_refused(table: LanceTable, cleaned: str, other: str) -> None:
    """Without a strategy for the history it is unknown whether its older versions replaced rows."""
    for value in (1, 2, 3):
        add(table, "c", value, branch=cleaned)
    add(table, "d", 1, branch=other)
    as_pylance(table, cleaned).cleanup_old_versions(retain_versions=1)
    again = LanceTable.open(table.uri)
    assert f"it was cleaned up on {cleaned}@6, so it is unknown whether it replaced rows" in str(refused(again))
    strategies: tuple[Strategy, ...] = ("source-wins", "dest-wins", {"*": "source-wins"})
    for everything in strategies:
        with pytest.raises(MergeConflictError, match="a strategy for 'history' assumes no claim"):
            again.merge("run", strategy=everything)
    again.merge("run", strategy={"history": "source-wins"})
    assert [("c", 1), ("c", 2), ("c", 3), ("d", 1)] == contents(again)[4:]


def test_a_common_version_that_nobody_has_any_more_is_a_clear_error(table: LanceTable) -> None:
    """Both sides were cleaned up, so their changes are unknown."""
    add(table, "c", 1, branch="run")
    add(table, "d", 1)
    for branch in ("run", "main"):
        as_pylance(table, branch).cleanup_old_versions(retain_versions=1)
    with pytest.raises(VersionNotFoundError):
        LanceTable.open(table.uri).merge("run")


# Concurrent writers and failures.


def test_an_append_in_between_is_merged_with(table: LanceTable) -> None:
    """The merge is planned again for the newer head."""
    replace(table, "a", 9, branch="run")
    version = through(table, intruder_at_commit(lambda: add(table, "d", 1))).merge("run")
    assert "main@5" == str(version)
    assert [("a", 9), ("b", 1), ("b", 2), ("d", 1)] == contents(table)


def test_a_conflict_that_appears_in_between_is_a_conflict(table: LanceTable) -> None:
    """The merge would succeed on the older head."""
    replace(table, "a", 9, branch="run")
    with raises(MergeConflictError, units=("partition a",)):
        through(table, intruder_at_commit(lambda: replace(table, "a", 8))).merge("run")
    assert [("a", 8), ("b", 1), ("b", 2)] == contents(table)


def test_the_same_merge_in_between_is_found(table: LanceTable) -> None:
    """Two processes that merge one branch get the same version."""
    replace(table, "a", 9, branch="run")
    version = through(table, intruder_at_commit(lambda: table.merge("run"))).merge("run")
    assert ("main@4", [1, 2, 3, 4]) == (str(version), table.branches.version_numbers())


@pytest.mark.parametrize("step", range(5))
def test_a_merge_that_died_can_be_made_again(tmp_path: Path, step: int) -> None:
    """The rows are merged once, whatever was written before."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 1))
    table.branches.create("run")
    table.replace_where("key = 'a' and value IN (1, 9)", entries("a", 9), branch="run")
    as_pylance(table, "run").insert(entries("p", 1))
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(step)).merge("run")
    table.merge("run")
    assert [("a", 2), ("a", 9), ("b", 1), ("p", 1)] == contents(table)
    assert [1, 2, 3, 4] == table.branches.version_numbers()
    as_pylance(table).validate()


@pytest.mark.parametrize("step", range(7))
def test_a_merge_whose_answer_was_lost_is_in_once(tmp_path: Path, step: int) -> None:
    """The rows are merged once, whichever answer was lost."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 1))
    table.branches.create("run")
    table.replace_where("key = 'a' and value IN (1, 9)", entries("a", 9), branch="run")
    as_pylance(table, "run").insert(entries("p", 1))
    try:
        through(table, answer_lost_at_write(step)).merge("run")
    except StoreError:
        table.merge("run")
    assert [("a", 2), ("a", 9), ("b", 1), ("p", 1)] == contents(table)
    assert [1, 2, 3, 4] == table.branches.version_numbers()


def test_a_merge_in_doubt_is_settled_by_merging_again(table: LanceTable) -> None:
    """The records show whether the merge landed."""
    replace(table, "a", 9, branch="run")

    landed = ""

    def blind(request: Request) -> object:
        nonlocal landed
        if request.commits:
            request.send()
            landed = request.key
        if request.key == landed:
            raise StoreError("connection reset")
        return request.send()

    with pytest.raises(CommitStateUnknownError):
        through(table, blind).merge("run")
    assert "main@4" == str(table.merge("run"))
    assert [1, 2, 3, 4] == table.branches.version_numbers()


@pytest.mark.parametrize(
    "source,into,error,said",
    [
        ("rum", "main", RefNotFoundError, "did you mean 'run'?"),
        ("run", "mian", RefNotFoundError, "did you mean 'main'?"),
        ("run@99", "main", LookupError, "has no version 99"),
        ("run", "release", RefNotFoundError, "no branch"),
    ],
)
def test_a_merge_of_what_is_not_there_is_a_clear_error(
    table: LanceTable, source: str, into: str, error: type[Exception], said: str
) -> None:
    """A merge cannot go into a tag."""
    table.tags.create("release", "main@2")
    with pytest.raises(error, match=said.replace("?", r"\?")):
        table.merge(source, into)


def test_a_version_of_a_deleted_branch_cannot_be_merged(table: LanceTable) -> None:
    """The fork point of the branch is gone with it."""
    as_pylance(table).tags.create("kept", ("run", 3))
    (Path(table.uri) / "_refs/branches/run.json").unlink()
    with pytest.raises(InvalidInputError):
        table.merge("kept")


# Previews.


def test_a_preview_tells_rows_and_writes_nothing(table: LanceTable) -> None:
    """The preview counts added and removed rows as the merge does."""
    replace(table, "a", 7, 8, 9, branch="run")
    before = snapshot(table)
    preview = table.preview_merge("run")
    assert ("run@4", "main@3", (), 3, 2) == (
        preview.source,
        preview.dest,
        preview.conflicts,
        preview.rows_added,
        preview.rows_deleted,
    )
    assert before == snapshot(table)
    table.merge("run")
    assert (0, 0) == (table.preview_merge("run").rows_added, table.preview_merge("run").rows_deleted)


def test_a_preview_of_an_overwrite_counts_everything(tmp_path: Path) -> None:
    """All rows of the dest are removed, and all new ones added."""
    table = new_table(tmp_path, entries("a", 1, 2))
    table.branches.create("run")
    table.overwrite(pa.table({"name": ["x"]}), branch="run")
    preview = table.preview_merge("run")
    assert (1, 2) == (preview.rows_added, preview.rows_deleted)
    assert SCHEMA.names == table.schema().names


def test_a_merge_does_not_build_on_a_version_that_was_cleaned_up_meanwhile(tmp_path: Path) -> None:
    """A handle that has read the merge base finds the same conflicts as one that never could."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    for branch in ("run", "other"):
        table.branches.create(branch)
    table.append(entries("b", 4))
    table.replace_where("value < 3", entries("a", 1), branch="run")
    table.replace_where("key = 'a'", entries("a", 0), branch="other")
    assert 3 == table.count_rows("main@2")
    as_pylance(table).cleanup_old_versions(older_than=timedelta(0), retain_versions=1)
    units = {}
    for name, handle in {"old": table, "new": LanceTable.open(table.uri)}.items():
        preview = handle.preview_merge("run", "other")
        with pytest.raises(MergeConflictError) as caught:
            handle.merge("run", "other")
        assert preview.conflicts == caught.value.conflicts
        units[name] = [conflict.unit for conflict in caught.value.conflicts]
    assert ["rows where value < 3", "rows where key = 'a'"] == units["old"] == units["new"]
