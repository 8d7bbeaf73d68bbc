"""Garbage collection: what expires, what is kept and why, and what is never touched."""

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import lance
import pendulum
import pyarrow as pa
import pytest

from lance_dagster import GarbageReport, InvalidInputError, LanceTable, MergeConflictError
from lance_dagster.errors import VersionNotFoundError
from lance_dagster.format.codec import commit_id
from lance_dagster.gc.retention import SETTING
from lance_dagster.history.inventory import expired_copy_key
from lance_dagster.store import open_store
from tests.backdating import DAY, age, files, manifest, say, stored
from tests.conftest import S3Storage
from tests.raising import raises
from tests.soak import DEEP
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import SCHEMA, Rows, as_pylance, contents, context_on, entries, new_table

pytestmark = pytest.mark.scaled

WEEK = 7 * DAY
NONE = timedelta(0)


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Five versions of main without common rows, all of them a month old."""
    made = new_table(tmp_path, entries("a", 2))
    for number in range(3, 6):
        made.overwrite(entries("a", number))
    age(made, 30 * DAY)
    return made


def collected(table: LanceTable, older_than: timedelta = WEEK, **options: object) -> GarbageReport:
    """Collect garbage, and assert that all remaining versions have their rows."""
    before = readable(table)
    report = table.maintenance.collect_garbage(older_than, dry_run=False, **options)  # type: ignore[arg-type]
    assert report.ok
    left = readable(table)
    assert left == {ref: rows for ref, rows in before.items() if ref in left}
    check = table.maintenance.verify(deep=DEEP)
    assert [] == [problem for problem in check.problems if problem.severity == "error"]
    return report


def readable(table: LanceTable) -> Mapping[str, Rows]:
    """The rows of every version, read with pylance."""
    found = {}
    for branch in ("main", *table.branches.list()):
        for version in as_pylance(table, branch).versions():
            ref = f"{branch}@{version['version']}"
            found[ref] = contents(table, ref)
    return found | {name: contents(table, name) for name in table.tags.list()}


def numbers(table: LanceTable, branch: str = "main") -> list[int]:
    """The version numbers of a branch."""
    return table.branches.version_numbers(branch)


def test_a_dry_run_says_everything_and_does_nothing(table: LanceTable) -> None:
    """A dry run is the default; its report equals that of the real run."""
    before = {path: (Path(table.uri) / path).stat().st_mtime for path in files(table)}
    report = table.maintenance.collect_garbage(WEEK)
    assert before == {path: (Path(table.uri) / path).stat().st_mtime for path in files(table)}
    assert (True, False, True) == (report.dry_run, report.done, report.ok)
    assert {"main": (1, 2, 3, 4)} == report.expired
    assert {"main@5": ("the newest",)} == report.kept
    assert {"data files": 3} == {kind: found.files for kind, found in report.waiting.items()}
    assert (4, 0) == (report.versions, report.files)


def test_versions_expire_first_and_their_files_go_a_day_later(table: LanceTable) -> None:
    """Expired versions cannot be read any more, while their files stay for a day."""
    report = collected(table)
    assert ({"main": (1, 2, 3, 4)}, {}, True) == (report.expired, report.garbage, report.done)
    assert [5] == numbers(table)
    assert 4 == len(files(table, "data"))
    with pytest.raises(VersionNotFoundError):
        table.read("main@4")
    again = collected(table)
    assert ({}, {}, 3) == (again.expired, again.garbage, again.waiting["data files"].files)
    age(table, 2 * DAY)
    last = collected(table)
    assert {"data files": 3, "versions": 4} == {kind: found.files for kind, found in last.garbage.items()}
    assert last.bytes > 0
    assert 1 == len(files(table, "data"))
    assert set() == files(table, "_expired")
    assert [] == list(Path(table.uri).glob("_expired/*"))
    final = collected(table)
    assert (0, 0, {}) == (final.versions, final.files, final.waiting)


def test_everything_goes_at_once_when_nobody_else_is_at_work(table: LanceTable) -> None:
    """A grace period of zero deletes files at once."""
    report = collected(table, grace=NONE)
    assert (4, 3) == (report.versions, report.files)
    assert len(report.paths) == report.files
    assert 1 == len(files(table, "data"))
    assert set() == files(table, "_expired")
    assert 0 == collected(table, grace=NONE).files


def test_the_version_in_use_when_the_window_began_stays(table: LanceTable) -> None:
    """Later versions stay too."""
    table.append(entries("a", 6))
    table.append(entries("a", 7))
    assert {"main": (1, 2, 3, 4)} == collected(table).expired
    assert [5, 6, 7] == numbers(table)


def test_some_of_the_newest_stay_however_old_they_are(table: LanceTable) -> None:
    """The number of versions to keep applies to each branch."""
    table.branches.create("dev")
    for number in range(3):
        table.append(entries("d", number), branch="dev")
    table.merge("dev")
    age(table, 30 * DAY)
    collected(table, keep_last=2)
    assert [5, 7, 8] == numbers(table, "dev")
    assert [5, 6] == numbers(table)


def test_what_a_branch_alone_keeps_is_counted(table: LanceTable) -> None:
    """Versions count until the branch is merged or deleted; young, tagged and shared ones do not count."""
    table.branches.create("idle", at="main@2")
    table.append(entries("i", 1), branch="idle")
    table.append(entries("i", 2), branch="idle")
    age(table, 30 * DAY)
    report = table.maintenance.collect_garbage(WEEK)
    # These are the versions of main since the fork, the fork point, and the branch's own versions but for its newest.
    held = {"main@2", "main@3", "main@4", "main@5"} | {"idle@2", "idle@3"}
    assert held <= set(report.kept)
    assert {"idle": 5} == report.held
    table.tags.create("v1", "main@3")
    assert {"idle": 4} == table.maintenance.collect_garbage(WEEK).held
    table.branches.create("other", at="main@2")
    assert {"idle": 2} == table.maintenance.collect_garbage(WEEK).held
    table.branches.delete("other")
    table.branches.delete("idle")
    assert {} == table.maintenance.collect_garbage(WEEK).held
    assert {"main": (1, 2, 4)} == collected(table).expired


def test_branches_have_ages_of_their_own(table: LanceTable) -> None:
    """Patterns give ages for branches; other branches have the general age."""
    for name in ("run/1", "dev"):
        table.branches.create(name)
        for number in range(3):
            table.append(entries(name, number), branch=name)
        table.merge(name)
    age(table, 10 * DAY)
    report = collected(table, 50 * DAY, branches={"run/*": DAY})
    assert {"run/1": (6, 7)} == report.expired


def test_rules_kept_with_the_table_apply_whatever_is_asked(table: LanceTable) -> None:
    """A version expires if the arguments and the table's rules both allow it; without arguments the rules decide."""
    table.config.set({SETTING: '{"older_than": "40d", "branches": {"run/*": {"older_than": "1d"}}}'})
    assert {} == table.maintenance.collect_garbage(NONE).expired
    assert {} == table.maintenance.collect_garbage().expired
    table.config.set({SETTING: '{"older_than": "20d", "keep_last": 3}'})
    assert {"main": (1, 2, 3, 4)} == table.maintenance.collect_garbage().expired
    assert {"main": (1, 2, 3, 4)} == table.maintenance.collect_garbage(DAY).expired
    assert {} == table.maintenance.collect_garbage(50 * DAY).expired
    assert {"main": (1, 2)} == table.maintenance.collect_garbage(keep_last=5).expired
    as_pylance(table).update_config({SETTING: "soon"})
    with pytest.raises(InvalidInputError):
        table.maintenance.collect_garbage(DAY)


@pytest.mark.parametrize(
    "settings,said",
    [
        ({"lance_dagster.retntion": '{"older_than": "365d"}'}, "did you mean 'lance_dagster.retention'"),
        ({SETTING: '{"oldr_than": "365d"}'}, 'must be a JSON object with "older_than", "keep_last" or both'),
        ({SETTING: "soon"}, "retention is not JSON"),
    ],
)
def test_rules_that_would_not_apply_are_not_stored(table: LanceTable, settings: dict[str, str], said: str) -> None:
    """A key that another program put there can be removed."""
    before = table.head()
    with pytest.raises(InvalidInputError, match=said):
        table.config.set(settings)
    with pytest.raises(InvalidInputError):
        LanceTable.create(f"{table.uri}-new", SCHEMA, config=settings)
    assert before == table.head()
    as_pylance(table).update_config({**settings})
    table.config.set(dict.fromkeys(settings))
    assert {} == table.config.get()


def test_rules_of_the_table_for_some_branches_hold_without_arguments(table: LanceTable) -> None:
    """The general age of the table does not apply to branches with rules of their own."""
    table.branches.create("run/1")
    for number in range(3):
        table.append(entries("d", number), branch="run/1")
    table.merge("run/1")
    age(table, 10 * DAY)
    table.config.set({SETTING: '{"older_than": "90d", "branches": {"run/*": {"older_than": "1d"}}}'})
    assert {"run/1": (6, 7)} == table.maintenance.collect_garbage().expired


@pytest.mark.parametrize("wrong", [{"older_than": -DAY}, {"older_than": 7}, {"grace": -DAY}, {"keep_last": 0}])
def test_a_wish_that_makes_no_sense_is_refused(table: LanceTable, wrong: dict[str, object]) -> None:
    """The error is raised before the table is read."""
    with pytest.raises(InvalidInputError):
        table.maintenance.collect_garbage(**wrong)  # type: ignore[arg-type]


def test_durations_of_pendulum_are_durations(table: LanceTable) -> None:
    """Pendulum's durations are accepted here as elsewhere."""
    assert {"main": (1, 2, 3, 4)} == table.maintenance.collect_garbage(pendulum.duration(weeks=1)).expired


def test_what_is_named_stays_and_the_report_says_by_whom(table: LanceTable) -> None:
    """Tags, their earlier versions, forks, first versions and merges keep versions."""
    table.tags.create("release", "main@2")
    table.tags.create("production", "main@1")
    table.tags.move("production", "main@3")
    table.branches.create("dev", "main@4")
    table.append(entries("d", 1), branch="dev")
    table.append(entries("d", 2), branch="dev")
    age(table, 30 * DAY)
    report = collected(table, grace=NONE)
    assert {
        "main@1": ("named earlier by tag 'production'",),
        "main@2": ("tag 'release'",),
        "main@3": ("tag 'production'",),
        "main@4": ("where branch 'dev' was forked", "the merge base of 'dev' and 'main'"),
        "main@5": ("the newest", "not merged into 'dev' yet"),
        "dev@4": ("the first of branch 'dev'",),
        "dev@5": ("not merged into 'main' yet",),
        "dev@6": ("the newest", "not merged into 'main' yet"),
    } == report.kept
    assert {} == report.expired


def test_a_branch_goes_on_being_merged_after_a_collection(table: LanceTable) -> None:
    """Each merge starts from the previous one, also when all versions in between were collected."""
    table.branches.create("dev")
    expected = [("a", 5)]
    for round_ in range(4):
        for number in range(3):
            table.append(entries("d", 10 * round_ + number), branch="dev")
            table.append(entries("m", 10 * round_ + number))
        table.merge("dev")
        expected += [(key, 10 * round_ + number) for key in "dm" for number in range(3)]
        age(table, 30 * DAY)
        collected(table, NONE, grace=NONE)
        assert sorted(expected) == contents(table)
    table.merge("main", into="dev")
    age(table, 30 * DAY)
    collected(table, NONE, grace=NONE)
    assert (5, 4) >= (len(numbers(table)), len(numbers(table, "dev")))
    table.append(entries("d", 99), branch="dev")
    table.merge("dev")
    assert sorted([*expected, ("d", 99)]) == contents(table)


def test_what_a_branch_did_stays_until_it_is_merged(table: LanceTable) -> None:
    """A merge needs the claims of each version."""
    table.branches.create("dev")
    for number in range(3):
        table.append(entries("d", number), branch="dev")
    table.append(entries("m", 1))
    age(table, 90 * DAY)
    collected(table, NONE, grace=NONE)
    assert ([5, 6], [5, 6, 7, 8]) == (numbers(table), numbers(table, "dev"))
    table.merge("dev")
    assert [("a", 5), ("d", 0), ("d", 1), ("d", 2), ("m", 1)] == contents(table)
    age(table, 90 * DAY)
    assert {"dev": (6, 7)} == {name: own for name, own in collected(table, NONE).expired.items() if name == "dev"}


def test_what_a_branch_does_not_contain_stays_until_it_takes_it_in(table: LanceTable) -> None:
    """The merge needs the claims of main that the branch does not contain yet."""
    table.branches.create("dev")
    for number in range(3):
        table.append(entries("m", number))
    table.append(entries("d", 1), branch="dev")
    age(table, 20 * DAY)
    report = collected(table)
    assert {"main": (1, 2, 3, 4)} == report.expired
    assert ("not merged into 'dev' yet",) == report.kept["main@7"]
    table.merge("main", into="dev")
    assert [("a", 5), ("d", 1), ("m", 0), ("m", 1), ("m", 2)] == contents(table, "dev")
    age(table, 20 * DAY)
    assert (6, 7) == collected(table).expired["main"]


def test_a_claim_is_not_forgotten(table: LanceTable) -> None:
    """A conflict between claims still exists after a collection."""
    table.branches.create("dev")
    table.append(entries("d", 1), branch="dev")
    table.overwrite(entries("o", 1))
    table.append(entries("o", 2))
    age(table, 90 * DAY)
    collected(table, NONE, grace=NONE)
    with raises(MergeConflictError, units=("the whole table",)):
        table.merge("dev")


def test_what_two_branches_have_of_a_third_stays(table: LanceTable) -> None:
    """The version of the third branch is their merge base, although it is a version of neither."""
    table.branches.create("x")
    table.branches.create("b")
    table.append(entries("x", 1), branch="x")
    table.merge("x", into="b")
    table.append(entries("b", 1), branch="b")
    for number in range(2, 5):
        table.append(entries("x", number), branch="x")
    table.merge("x")
    base = table.branches.merge_base("b", "main")
    report = collected(table, NONE, grace=NONE)
    assert ("x", 6) == (base.branch, base.number)
    assert ("the merge base of 'b' and 'x'", "a merge that later merges start from") == (
        report.kept["x@6"][0],
        report.kept["b@6"][-1],
    )
    # Of x's later versions, b alone lacks this one.
    assert ("not merged into 'b' yet",) == report.kept["x@7"]
    assert base == table.branches.merge_base("b", "main")
    table.branches.sync("b")
    table.merge("b")
    rows = [("a", 5), ("b", 1), *(("x", number) for number in range(1, 5))]
    assert [rows, rows] == [contents(table), contents(table, "b")]
    table.merge("x", into="b")
    assert {"x": (6, 7, 8)} == {
        name: gone for name, gone in collected(table, NONE, grace=NONE).expired.items() if name == "x"
    }


def test_a_branch_forked_from_an_old_version_may_not_be_merged(table: LanceTable) -> None:
    """The versions after the fork point have expired, and their claims are unknown."""
    table.tags.create("v1", "main@2")
    collected(table, NONE, grace=NONE)
    assert [2, 5] == numbers(table)
    table.branches.create("late", "v1")
    table.append(entries("l", 1), branch="late")
    with raises(MergeConflictError, units=("version main@3", "the whole table")):
        table.merge("late")


def test_merges_after_a_clean_up_of_pylance_are_refused_where_versions_are_missing(table: LanceTable) -> None:
    """Pylance's clean-up ignores merges, so it may delete the merge base or later versions of either side."""
    table.branches.create("x")
    table.branches.create("b")
    table.append(entries("x", 1), branch="x")
    table.merge("x", into="b")
    table.append(entries("x", 2), branch="x")
    table.merge("x")
    for number in range(2):
        table.append(entries("b", number), branch="b")
    now = timedelta(microseconds=1)
    as_pylance(table, "x").cleanup_old_versions(older_than=now, delete_unverified=True)
    with pytest.raises(VersionNotFoundError):
        LanceTable.open(table.uri).merge("b")
    table.branches.create("c")
    for number in range(2):
        table.append(entries("c", number), branch="c")
    as_pylance(table, "c").cleanup_old_versions(older_than=now, delete_unverified=True)
    again = LanceTable.open(table.uri)
    with raises(MergeConflictError, units=("version c@7",)):
        again.merge("c")
    again.merge("c", strategy={"history": "source-wins"})
    assert [("a", 5), ("c", 0), ("c", 1), ("x", 1), ("x", 2)] == contents(again)


def test_branches_that_took_in_a_third_go_on_being_merged_with_each_other(table: LanceTable) -> None:
    """A version that another branch does not contain stays, and so does each merge base of two branches."""
    kept = LanceTable.open(table.maintenance.clone(f"{table.uri}-kept", shallow=False).uri)
    for each in (table, kept):
        for name in ("a", "b", "x"):
            each.branches.create(name)
        each.append(entries("x", 1), branch="x")
        each.update({"value": "50"}, where="key = 'a'", branch="x")
        each.merge("x", into="a")
        each.append(entries("x", 2), branch="x")
        each.merge("x", into="b")
        each.update({"value": "10"}, where="key = 'x'", branch="a")
        each.append(entries("b", 1), branch="b")
        each.append(entries("x", 3), branch="x")
        each.append(entries("x", 4), branch="x")
        each.merge("x")
    collected(table, NONE, grace=NONE)
    for source, dest in (("a", "b"), ("b", "main"), ("a", "main"), ("main", "a"), ("x", "a")):
        for each in (table, kept):
            each.merge(source, into=dest)
        assert contents(kept, dest) == contents(table, dest)
        collected(table, NONE, grace=NONE)
    for each in (table, kept):
        each.branches.delete("x")
        each.append(entries("a", 9), branch="a")
    collected(table, NONE, grace=NONE)
    for each in (table, kept):
        each.merge("a")
    assert contents(kept) == contents(table)


def test_branches_forked_from_the_same_version_keep_no_more_for_each_other(table: LanceTable) -> None:
    """Their unmerged versions stay for main anyway, and their fork point stays too."""
    for name in ("run/1", "run/2", "run/3"):
        table.branches.create(name)
        table.append(entries(name, 1), branch=name)
    alone = table.maintenance.collect_garbage(NONE).kept
    assert {"main@5", *(f"run/{run}@{number}" for run in (1, 2, 3) for number in (5, 6))} == set(alone)
    assert ("the newest", "not merged into 'main', 'run/2' and 'run/3' yet") == alone["run/1@6"]


def test_a_long_list_of_branches_is_cut_short(table: LanceTable) -> None:
    """The report gives the number of the branches that it does not list."""
    for number in range(6):
        table.branches.create(f"b{number}")
    table.append(entries("m", 1))
    table.append(entries("m", 2))
    assert ("not merged into 'b0', 'b1' and 4 more yet",) == table.maintenance.collect_garbage(NONE).kept["main@6"]


def test_a_branch_of_a_branch_keeps_both(table: LanceTable) -> None:
    """The fork points are kept up to main."""
    table.branches.create("outer", "main@3")
    table.append(entries("o", 1), branch="outer")
    table.append(entries("o", 2), branch="outer")
    table.branches.create("inner", "outer@4")
    table.append(entries("i", 1), branch="inner")
    table.overwrite(entries("o", 3), branch="outer")
    age(table, 30 * DAY)
    collected(table, NONE, grace=NONE)
    assert ([3, 4, 5], [3, 4, 5, 6], [4, 5]) == (numbers(table), numbers(table, "outer"), numbers(table, "inner"))
    assert [("a", 3), ("i", 1), ("o", 1)] == contents(table, "inner")


def test_files_of_a_deleted_branch_go_and_those_that_were_merged_stay(table: LanceTable) -> None:
    """Main references the merged files."""
    for name in ("merged", "given-up"):
        table.branches.create(name)
        table.append(entries(name, 1), branch=name)
    table.merge("merged")
    table.branches.delete("merged")
    table.branches.delete("given-up")
    age(table, 30 * DAY)
    data = files(table, "data")
    collected(table, NONE, grace=NONE)
    assert 4 == len(data - files(table, "data"))
    assert [("a", 5), ("merged", 1)] == contents(table)


def test_files_of_branches_that_pylance_made_are_told_apart(table: LanceTable) -> None:
    """Pylance puts these files below the branch's own folder."""
    dataset = as_pylance(table).create_branch("by-pylance")
    dataset.insert(entries("t", 1))
    dataset.delete("value = 5")
    dataset.insert(entries("t", 2))
    dataset.optimize.compact_files()
    age(table, 30 * DAY)
    below = files(table, "tree/by-pylance/data")
    assert 3 == len(below)
    # Files that are not merged stay.
    collected(table, NONE, grace=NONE)
    assert below == files(table, "tree/by-pylance/data")
    table.merge("by-pylance")
    age(table, 30 * DAY)
    collected(table, NONE, grace=NONE)
    assert 1 == len(files(table, "tree/by-pylance/data"))
    assert [("t", 1), ("t", 2)] == contents(table, "by-pylance") == contents(table)


def test_index_folders_and_deletion_files_go_with_their_versions(table: LanceTable) -> None:
    """A rebuilt index leaves its old folder, and a larger deletion vector its old file."""
    table.append(entries("b", *range(20)))
    dataset = as_pylance(table)
    dataset.create_scalar_index("value", "BTREE")
    dataset.delete("value = 3")
    dataset.delete("value = 4")
    dataset.create_scalar_index("value", "BTREE", replace=True)
    age(table, 30 * DAY)
    report = collected(table, NONE, grace=NONE)
    assert (1, 1) == (len(list(Path(table.uri, "_indices").iterdir())), len(files(table, "_deletions")))
    assert report.garbage["index files"].files >= 2
    assert 1 == as_pylance(table).count_rows("value = 7")
    assert "ScalarIndexQuery" in as_pylance(table).scanner(filter="value = 7").explain_plan()


def test_blobs_stay_and_go_with_their_data_file(tmp_path: Path) -> None:
    """Blob files lie in a folder beside their data file."""
    schema = pa.schema([lance.blob_field("blob")])
    rows = [pa.table([lance.blob_array([bytes([number]) * 200_000])], schema=schema) for number in range(2)]
    lance.write_dataset(rows[0], tmp_path / "table", data_storage_version="2.2")
    lance.write_dataset(rows[1], tmp_path / "table", mode="overwrite")
    table = LanceTable.open(tmp_path / "table")
    age(table, 30 * DAY)
    before = files(table, "data")
    assert 4 == len(before)
    report = table.maintenance.collect_garbage(NONE, grace=NONE, dry_run=False)
    assert {"data files": 1, "blob files": 1} == {
        kind: found.files for kind, found in report.garbage.items() if kind in ("data files", "blob files")
    }
    assert 2 == len(files(table, "data"))
    assert 1 == len([path for path in Path(table.uri, "data").iterdir() if path.is_dir()])
    (blob,) = as_pylance(table).take_blobs("blob", indices=[0])
    assert blob is not None
    assert bytes([1]) * 200_000 == blob.readall()


def test_files_of_others_in_the_folders_of_a_table_stay(table: LanceTable) -> None:
    """Only names that the format makes, at the depth where it makes them, are garbage; a whole table may lie there."""
    root = Path(table.uri)
    inner = LanceTable.create(root.parent / "inner.lance", SCHEMA)
    inner.append(entries("b", 1))
    Path(inner.uri).rename(root / "data" / "inner.lance")
    own = ["data/2024/part.parquet", "data/.git/config", "data/notes.txt", "_indices/my/notes.md"]
    for name in own:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("notes")
    age(table, 40 * DAY)
    before = set(files(table, "data/inner.lance"))
    collected(table, NONE, grace=NONE)
    assert [True] * len(own) == [(root / name).exists() for name in own]
    assert before == set(files(table, "data/inner.lance"))
    assert 1 == LanceTable.open(root / "data" / "inner.lance").count_rows()


def test_what_was_staged_stays_for_the_grace_period(table: LanceTable) -> None:
    """The process that staged the files may be about to commit them."""
    staged = table.stage(entries("s", 1))
    report = collected(table)
    assert 1 == report.young["data files"].files
    age(table, 3 * DAY, "data")
    assert 1 == collected(table).young["data files"].files
    assert {} == table.maintenance.collect_garbage(WEEK, grace=2 * DAY).young
    table.append(staged)
    assert [("a", 5), ("s", 1)] == contents(table)
    table.stage(entries("s", 2))
    age(table, 8 * DAY)
    assert 1 == collected(table).garbage["data files"].files - 3
    assert [("a", 5), ("s", 1)] == contents(table)


def test_the_shortest_grace_is_a_day_unless_it_is_given(table: LanceTable) -> None:
    """The grace period is a day, whatever the age at which versions expire."""
    table.stage(entries("s", 1))
    age(table, timedelta(hours=23), "data")
    assert 1 == table.maintenance.collect_garbage(NONE).young["data files"].files
    age(table, timedelta(hours=2), "data")
    assert {} == table.maintenance.collect_garbage(NONE).young


def test_temporary_files_that_were_left_go_when_they_are_old(table: LanceTable) -> None:
    """Temporary files of this package and of pylance are deleted in every folder of the table."""
    left = ["_versions/.tmp1", "_transactions/.tmp2", "data/.tmp3", "data/.tmp4/x.lance", ".tmp5", "_refs/tags/.tmp6"]
    left += ["_versions/.tmp_5.manifest_0123", "_refs/.probe-7"]
    for name in left:
        path = Path(table.uri, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    assert len(left) == table.maintenance.collect_garbage(WEEK).young["temporary files"].files
    age(table, 8 * DAY)
    assert len(left) == collected(table).garbage["temporary files"].files
    assert not any(".tmp" in name or ".probe" in name for name in files(table))
    assert not Path(table.uri, "data/.tmp4").exists()


def test_what_is_no_file_of_a_table_is_left_alone(table: LanceTable) -> None:
    """The collection keeps other folders, files, tables and base paths below the table's folder."""
    table.maintenance.add_base("cold", f"{table.uri}/cold")
    table.append(table.stage(entries("k", 1), base="cold"))
    table.overwrite(entries("k", 2))
    LanceTable.create(Path(table.uri, "other.lance"), SCHEMA)
    for name in ("readme.txt", "data/notes.csv", "_versions/list", "tree/list", "tree/x/list", "_mem_wal/1/a.lance"):
        path = Path(table.uri, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    age(table, 60 * DAY)
    foreign = {name for name in files(table) if name.split("/")[0] in ("cold", "other.lance", "_mem_wal")}
    foreign |= {"readme.txt", "data/notes.csv", "_versions/list", "tree/list", "tree/x/list"}
    report = collected(table, NONE, grace=NONE)
    assert len(foreign) == report.others
    assert foreign <= files(table)


def test_base_paths_elsewhere_are_not_touched(table: LanceTable, tmp_path: Path) -> None:
    """Other tables may use the files under such a base path."""
    table.maintenance.add_base("cold", tmp_path / "cold")
    table.append(table.stage(entries("k", 1), base="cold"))
    table.overwrite(entries("k", 2))
    before = list((tmp_path / "cold").iterdir())
    age(table, 60 * DAY)
    assert 7 == collected(table, NONE, grace=NONE).versions
    assert before == list((tmp_path / "cold").iterdir())


def test_a_table_that_was_moved_loses_nothing_before_it_is_relocated(table: LanceTable) -> None:
    """The branches reference the files by the old place, and these references keep the files."""
    table.branches.create("dev")
    table.append(entries("d", 1), branch="dev")
    table.overwrite(entries("m", 1))
    age(table, 60 * DAY)
    moved = Path(table.uri).rename(f"{table.uri}-moved")
    there = LanceTable.open(moved)
    report = there.maintenance.collect_garbage(NONE, grace=NONE, dry_run=False)
    assert report.done
    there.maintenance.relocate()
    assert [("a", 5), ("d", 1)] == contents(there, "dev")
    assert [("m", 1)] == contents(there)


def test_a_table_reached_through_a_link_loses_nothing(table: LanceTable, tmp_path: Path) -> None:
    """The link differs from the table's place in the base paths of its branches."""
    table.branches.create("dev")
    table.append(entries("d", 1), branch="dev")
    table.overwrite(entries("m", 1))
    age(table, 60 * DAY)
    (tmp_path / "link").symlink_to(table.uri)
    assert LanceTable.open(tmp_path / "link").maintenance.collect_garbage(NONE, grace=NONE, dry_run=False).done
    assert [("a", 5), ("d", 1)] == contents(table, "dev")


def test_versions_with_names_of_the_first_scheme_are_collected(tmp_path: Path) -> None:
    """They are also put back under such a name."""
    for number in range(4):
        rows = entries("a", number)
        lance.write_dataset(rows, tmp_path / "table", mode="overwrite", enable_v2_manifest_paths=False)
    table = LanceTable.open(tmp_path / "table")
    assert {1, 2, 3, 4} == {int(path.stem) for path in Path(table.uri, "_versions").glob("*.manifest")}
    age(table, 60 * DAY)
    assert {"main": (1, 2, 3)} == table.maintenance.collect_garbage(NONE, dry_run=False).expired
    assert {"4.manifest"} == {path.name for path in Path(table.uri, "_versions").glob("*.manifest")}
    (Path(table.uri) / "_refs/tags").mkdir(parents=True)
    (Path(table.uri) / "_refs/tags/old.json").write_text('{"branch": null, "version": 2, "manifestSize": 1}')
    assert ("main@2",) == table.maintenance.collect_garbage(NONE, dry_run=False).put_back
    assert [("a", 1)] == contents(table, "old")


def test_a_tag_on_a_version_that_expired_gets_it_back(table: LanceTable) -> None:
    """The tag was created while the version expired; the manifest is put back byte by byte."""
    before = manifest(table, 3).read_bytes()
    collected(table)
    tag = Path(table.uri, "_refs/tags/late.json")
    tag.parent.mkdir(parents=True, exist_ok=True)
    tag.write_text('{"branch": null, "version": 3, "manifestSize": 1}')
    assert ("main@3",) == table.maintenance.collect_garbage(WEEK).put_back
    assert not manifest(table, 3).exists()
    assert ("main@3",) == table.maintenance.collect_garbage(WEEK, dry_run=False).put_back
    assert before == manifest(table, 3).read_bytes()
    age(table, 60 * DAY)
    collected(table)
    assert [("a", 3)] == contents(table, "late")


def test_a_merge_base_that_expired_is_there_again(table: LanceTable) -> None:
    """The merge base is put back while its copy waits for deletion."""
    table.branches.create("x")
    table.append(entries("x", 1), branch="x")
    table.append(entries("x", 2), branch="x")
    table.merge("x")
    table.append(entries("x", 3), branch="x")
    path = manifest(table, 7, "x")
    data = path.read_bytes()
    key = expired_copy_key("x", 7, table.branches.list()["x"].id, commit_id(data))
    waiting = Path(table.uri, key)
    waiting.parent.mkdir(parents=True)
    path.rename(waiting)
    again = LanceTable.open(table.uri)
    assert ("x@7",) == again.maintenance.collect_garbage(WEEK).put_back
    report = again.maintenance.collect_garbage(WEEK, dry_run=False)
    assert (("x@7",), "the merge base of 'x' and 'main'") == (report.put_back, report.kept["x@7"][0])
    assert (data, False) == (path.read_bytes(), waiting.exists())
    again.merge("x")
    assert [("a", 5), ("x", 1), ("x", 2), ("x", 3)] == contents(again)


def test_a_version_of_a_branch_of_the_same_name_is_not_put_back(table: LanceTable) -> None:
    """The branch was deleted and created again, and the waiting version belongs to the first one."""
    table.branches.create("dev")
    for number in range(3):
        table.append(entries("d", number), branch="dev")
    age(table, 30 * DAY)
    collected(table)
    assert {"5", "6", "7"} >= {name.split("/")[-1].split("-")[0] for name in files(table, "_expired/dev")}
    table.branches.delete("dev")
    table.branches.create("dev", "main@5")
    tag = Path(table.uri, "_refs/tags/late.json")
    tag.parent.mkdir(parents=True, exist_ok=True)
    tag.write_text('{"branch": "dev", "version": 6, "manifestSize": 1}')
    report = table.maintenance.collect_garbage(WEEK, dry_run=False)
    assert () == report.put_back
    assert ["tag 'late' names dev@6, which does not exist"] == [problem.what for problem in report.problems]


def test_detached_versions_go_when_they_are_old(tmp_path: Path) -> None:
    """A tag keeps a detached version and its files."""
    dataset = lance.write_dataset(entries("a", 1), tmp_path / "table")
    found = []
    for number in range(2):
        fragments = lance.fragment.write_fragments(entries("d", number), dataset)
        operation = lance.LanceOperation.Append(fragments)
        found.append(lance.LanceDataset.commit(dataset, operation, read_version=1, detached=True).version)
    table = LanceTable.open(tmp_path / "table")
    assert ["detached, and made during the last 7d"] * 2 == [
        why[0] for version, why in table.maintenance.collect_garbage(WEEK).kept.items() if version != "main@1"
    ]
    dataset.tags.create("kept", found[0])
    age(table, 30 * DAY)
    report = table.maintenance.collect_garbage(WEEK, grace=NONE, dry_run=False)
    assert {"main": (found[1],)} == report.expired
    assert 1 == report.garbage["data files"].files
    assert 2 == lance.dataset(table.uri, version=found[0]).count_rows()


@pytest.mark.parametrize("damaged", ["manifest", "older manifest", "branch", "tag", "manifest of a branch", "waiting"])
def test_what_cannot_be_read_keeps_everything(table: LanceTable, damaged: str) -> None:
    """An unreadable file might reference any other file; the report names it."""
    table.branches.create("dev")
    table.tags.create("here", "main")
    table.append(entries("d", 1), branch="dev")
    age(table, 30 * DAY)
    collected(table)
    table.overwrite(entries("a", 6))
    paths = {
        "manifest": manifest(table, 6),
        "older manifest": manifest(table, 5),
        "branch": Path(table.uri, "_refs/branches/dev.json"),
        "tag": Path(table.uri, "_refs/tags/here.json"),
        "manifest of a branch": manifest(table, 5, "dev"),
        "waiting": next(Path(table.uri, "_expired").rglob("*.manifest")),
    }
    data = paths[damaged].read_bytes()
    paths[damaged].write_bytes(data[:-30])
    before = files(table)
    again = LanceTable.open(table.uri)
    report = again.maintenance.collect_garbage(NONE, grace=timedelta(hours=1), dry_run=False)
    assert (False, False) == (report.ok, report.done)
    assert any(paths[damaged].name in str(problem) for problem in report.problems if problem.severity == "error")
    assert before == files(table)


def test_branches_without_metadata_are_swept_away(table: LanceTable) -> None:
    """Only old ones are deleted, because another program that creates a branch writes its versions first."""
    table.branches.create("left/behind")
    table.append(entries("d", 1), branch="left/behind")
    Path(table.uri, "_refs/branches/left%2Fbehind.json").unlink()
    before = files(table)
    report = table.maintenance.collect_garbage(WEEK, dry_run=False)
    assert "of a branch without metadata that may still be created" in report.kept["left/behind@6"][0]
    age(table, 30 * DAY)
    report = collected(table)
    assert ("left/behind",) == report.branches
    assert (5, 6) == report.expired["left/behind"]
    age(table, 2 * DAY)
    assert () == collected(table).branches
    assert not Path(table.uri, "tree/left/behind").exists() or not files(table, "tree")
    assert len(files(table, "data")) < len({name for name in before if name.startswith("data")})
    table.branches.create("left/behind")


def test_a_branch_without_metadata_that_a_tag_names_keeps_that_version(table: LanceTable) -> None:
    """A reader may use the version through the tag."""
    table.branches.create("dev")
    table.append(entries("d", 1), branch="dev")
    table.append(entries("d", 2), branch="dev")
    table.tags.create("named", "dev@6")
    Path(table.uri, "_refs/branches/dev.json").unlink()
    age(table, 30 * DAY)
    report = table.maintenance.collect_garbage(NONE, grace=NONE, dry_run=False)
    assert {"dev": (5, 7)} == {name: found for name, found in report.expired.items() if name == "dev"}
    assert {"dev@6": ("tag 'named'",)} == {name: why for name, why in report.kept.items() if name[:3] == "dev"}
    dataset = lance.dataset(table.uri)
    assert 2 == dataset.checkout_version("named").count_rows()


@pytest.mark.parametrize("state", ["deleting", "creating"])
def test_a_branch_that_was_left_halfway_is_finished(table: LanceTable, state: str) -> None:
    """The name can be used again, once the creating or deleting process must have ended."""

    class Plug(Exception):  # noqa: N818
        pass

    def script(request: Request) -> object:
        stop = request.verb == "delete_many" if state == "deleting" else "tree/dev/_versions/18" in request.key
        if stop and request.writes:
            raise Plug
        return request.send()

    if state == "deleting":
        table.branches.create("dev")
        table.append(entries("d", 1), branch="dev")
    dying = LanceTable(context_on(ScriptedStore(open_store(table.uri), script)))
    with pytest.raises(Plug):
        dying.branches.delete("dev") if state == "deleting" else dying.branches.create("dev")
    assert () == table.maintenance.collect_garbage(WEEK, dry_run=False).branches
    age(table, 30 * DAY)
    assert ("dev",) == collected(table).branches
    assert not Path(table.uri, "_refs/branches/dev.json").exists()
    assert not files(table, "tree")
    table.branches.create("dev")
    assert [("a", 5)] == contents(table, "dev")


def test_a_tag_on_nothing_is_reported(table: LanceTable) -> None:
    """The other versions are still collected."""
    tag = Path(table.uri, "_refs/tags/gone.json")
    tag.parent.mkdir(parents=True, exist_ok=True)
    tag.write_text('{"branch": null, "version": 77, "manifestSize": 1}')
    report = table.maintenance.collect_garbage(WEEK, dry_run=False)
    assert report.done
    assert ["tag 'gone' names main@77, which does not exist"] == [problem.what for problem in report.problems]


def test_a_manifest_that_says_it_is_old_is_as_old_as_it_was_stored(table: LanceTable) -> None:
    """The clock of the writer was slow."""
    table.overwrite(entries("a", 6))
    say(manifest(table, 6), 60 * DAY)
    table.overwrite(entries("a", 7))
    say(manifest(table, 7), 60 * DAY)
    assert [5, 6, 7] == sorted(int(name.partition("@")[2]) for name in table.maintenance.collect_garbage(WEEK).kept)


def test_a_manifest_that_was_copied_with_an_older_time_is_as_old_as_it_says(table: LanceTable) -> None:
    """Copies may keep times of files or have arbitrary ones."""
    table.overwrite(entries("a", 6))
    table.overwrite(entries("a", 7))
    for number in (6, 7):
        stored(manifest(table, number), 60 * DAY)
    assert ["main@5", "main@6", "main@7"] == list(table.maintenance.collect_garbage(WEEK).kept)


def test_a_copy_with_newer_times_keeps_everything(table: LanceTable) -> None:
    """The real age of the copied files is unknown."""
    for path in Path(table.uri).rglob("*"):
        if path.is_file():
            os.utime(path)
    report = table.maintenance.collect_garbage(WEEK, dry_run=False)
    assert (0, 0) == (report.versions, report.files)


@pytest.mark.parametrize("which", ["says", "stored"])
def test_a_version_from_the_future_keeps_those_after_it_and_is_reported(table: LanceTable, which: str) -> None:
    """The version counts as new until its time has passed."""
    if which == "says":
        say(manifest(table, 3), -60 * DAY)
    else:
        stored(manifest(table, 3), -60 * DAY)
    report = table.maintenance.collect_garbage(WEEK)
    assert {"main": (1,)} == report.expired
    assert [("main@3",)] == [problem.versions for problem in report.problems]
    assert "seconds from now" in report.problems[0].what
    assert report.ok


@pytest.mark.parametrize("wrong,expected", [(-90 * DAY, 0), (90 * DAY, 4), (timedelta(0), 4)])
def test_the_earlier_clock_counts(table: LanceTable, wrong: timedelta, expected: int) -> None:
    """No version counts as older than it is when the clocks of the storage and of this computer differ."""
    table.append(entries("a", 6))

    def script(request: Request) -> object:
        answer = request.send()
        return answer + wrong.total_seconds() if request.verb == "now" else answer

    skewed = LanceTable(context_on(ScriptedStore(open_store(table.uri), script)))
    report = skewed.maintenance.collect_garbage(WEEK)
    assert expected == report.versions
    assert abs(report.now.timestamp() - time.time() - min(wrong.total_seconds(), 0)) < 60
    assert bool(wrong) == any("clock" in problem.what for problem in report.problems)


def test_progress_is_told(table: LanceTable) -> None:
    """The progress never decreases, and ends at the total."""
    seen: list[tuple[int, int]] = []
    table.maintenance.collect_garbage(
        WEEK, grace=NONE, dry_run=False, progress=lambda done, total: seen.append((done, total))
    )
    assert sorted(seen) == seen
    assert seen[-1][0] == seen[-1][1] > 10


BUILDING: Mapping[str, Callable[[LanceTable, Path], object]] = {
    "restore": lambda table, _: table.restore("main@4"),
    "fork": lambda table, _: table.branches.create("late", "main@4"),
    "clone": lambda table, folder: table.maintenance.clone(folder / "clone", "main@4"),
    "merge": lambda table, _: table.merge("main@4", into="run"),
    "revert": lambda table, _: table.revert("main@5"),
}


@pytest.mark.parametrize("name", BUILDING)
def test_nothing_is_built_on_a_version_that_another_process_collected(
    table: LanceTable, tmp_path: Path, name: str
) -> None:
    """An object that lives for days has read a version whose files are gone by now."""
    table.branches.create("run")
    table = LanceTable.open(table.uri)
    assert {"main@4", "main@5"} <= readable(table).keys()
    other = LanceTable.open(table.uri)
    assert other.maintenance.collect_garbage(NONE, dry_run=False).expired["main"] == (1, 2, 3, 4)
    for key in files(table):
        stored(Path(table.uri, key), 2 * DAY)
    assert other.maintenance.collect_garbage(NONE, dry_run=False).done
    with pytest.raises(VersionNotFoundError):
        BUILDING[name](table, tmp_path)
    fresh = LanceTable.open(table.uri)
    assert {"main": [("a", 5)], "run": [("a", 5)]} == {ref: contents(fresh, ref) for ref in ("main", "run")}
    assert fresh.maintenance.verify(deep=DEEP).problems == ()


def test_a_handle_does_not_read_what_it_let_expire(table: LanceTable) -> None:
    """The handle drops its cache of expired versions."""
    assert 1 == table.count_rows("main@2")
    collected(table)
    with pytest.raises(VersionNotFoundError):
        table.at("main@2")


def test_pylance_goes_on_with_a_table_that_was_collected(table: LanceTable) -> None:
    """Pylance writes, cleans up and reads."""
    table.branches.create("dev")
    table.append(entries("d", 1), branch="dev")
    age(table, 30 * DAY)
    collected(table)
    dataset = as_pylance(table)
    dataset.insert(entries("p", 1))
    dataset.cleanup_old_versions(older_than=timedelta(microseconds=1), delete_unverified=True)
    as_pylance(table, "dev").insert(entries("p", 2))
    assert [("a", 5), ("p", 1)] == contents(table)
    assert [("a", 5), ("d", 1), ("p", 2)] == contents(table, "dev")
    as_pylance(table).validate()


def test_a_table_on_s3_is_collected(s3_storage: S3Storage) -> None:
    """The collection works with the server's clock, listings and multi-object deletions."""
    table = LanceTable.create(f"{s3_storage.uri}/table", SCHEMA, storage_options=s3_storage.storage_options)
    for number in range(3):
        table.overwrite(entries("a", number))
    table.branches.create("run/1")
    table.append(entries("r", 1), branch="run/1")
    table.tags.create("old", "main@2")
    time.sleep(1.1)
    report = table.maintenance.collect_garbage(NONE, grace=NONE, dry_run=False)
    assert ({"main": (1, 3)}, True) == (report.expired, report.done)
    assert 1 == report.garbage["data files"].files
    assert [[("a", 2)], [("a", 2), ("r", 1)], [("a", 0)]] == [contents(table, ref) for ref in ("main", "run/1", "old")]
    assert table.maintenance.verify(deep=True).ok
    assert 0 == table.maintenance.collect_garbage(NONE, grace=NONE).files


def test_a_collection_asks_little_of_the_storage(table: LanceTable) -> None:
    """It needs one listing for all files, one request for each manifest, and one for a thousand deletions."""
    verbs: list[str] = []

    def script(request: Request) -> object:
        verbs.append(request.verb)
        return request.send()

    counting = LanceTable(context_on(ScriptedStore(open_store(table.uri), script)))
    counting.maintenance.collect_garbage(WEEK)
    assert 2 == verbs.count("walk")
    assert len(verbs) <= 20


def test_branches_cost_a_listing_and_their_manifests(tmp_path: Path) -> None:
    """A dry run reads the file and each manifest of a branch once, and lists its newest version."""
    table = new_table(tmp_path, entries("a", 1))
    for count in (4, 8):
        for number in range(count - 4, count):
            table.branches.create(f"run/{number}")
            table.append(entries("r", number), branch=f"run/{number}")
        requests: list[str] = []

        def script(request: Request, requests: list[str] = requests) -> object:
            requests.append(f"{request.verb} {request.key}")
            return request.send()

        counting = LanceTable(context_on(ScriptedStore(open_store(table.uri), script)))
        report = counting.maintenance.collect_garbage(WEEK)
        # Two versions of each branch, and of main its two versions.
        assert 2 * count + 2 == len(report.kept)
        of_branches = [request for request in requests if "run" in request]
        # The file of the branch, its listing, and two manifests.
        assert 4 * count == len(of_branches) == len({*of_branches})
