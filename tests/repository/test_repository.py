"""Many tables of one repository: readers see a publication whole or not at all, and it can be reverted."""

import re
import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from lance_dagster import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    LanceRepository,
    LanceTable,
    MergeConflictError,
    NotFoundError,
    ProtectedError,
    RefNotFoundError,
    TableNotFoundError,
)
from lance_dagster.errors import CorruptFileError, VersionNotFoundError
from lance_dagster.repository.commits.snapshot import new_commit
from lance_dagster.repository.projection import Lagging
from lance_dagster.types import Published, TableVersion, TableView
from tests.raising import raises
from tests.repository.scripted_repository import SCHEMA, ids, rows, run, uncommitted_repository


def test_a_publication_moves_all_tables(tmp_path: Path) -> None:
    """One publication of two tables is one commit of main and one promotion of the channel."""
    repository = uncommitted_repository(tmp_path, "shop/orders", "shop/lines", "other")
    done = repository.publish(run(repository, 1, "shop/orders", "shop/lines"), channel="production")
    assert {"shop/orders": [1], "shop/lines": [1]} == ids(repository, "production")
    assert {"shop/orders", "shop/lines"} == set(done.changed)
    assert ["publish run/1", "create the repository"] == [commit.message for commit in repository.log()]
    assert () == done.lagging


def test_other_readers_see_it_by_main_and_by_the_tag(tmp_path: Path) -> None:
    """Pylance reads the published rows on main and at the tag with the name of the channel."""
    repository = uncommitted_repository(tmp_path, "orders")
    repository.publish(run(repository, 1, "orders"), channel="production")
    dataset = lance.dataset(str(tmp_path / "orders.lance"))
    dataset.validate()
    assert [1] == dataset.to_table()["id"].to_pylist()
    assert [1] == dataset.checkout_version("production").to_table()["id"].to_pylist()


def test_nothing_is_visible_when_one_table_conflicts(tmp_path: Path) -> None:
    """All conflicts of all tables are named, and main of every table stays as it was."""
    repository = uncommitted_repository(tmp_path, "a", "b", "c")
    for name in ("a", "b", "c"):
        repository.table(name).append(rows(7))
    repository.commit("start")
    for branch, price in (("run/1", 10), ("run/2", 20)):
        for name in ("a", "b"):
            repository.fork(name, branch).update({"price": str(price)}, branch=branch)
    repository.fork("c", "run/2").append(rows(2), branch="run/2")
    repository.publish("run/1", channel="production")
    before = {name: str(repository.table(name).head()) for name in ("a", "b", "c")}
    with pytest.raises(MergeConflictError) as refused:
        repository.publish("run/2", channel="production")
    assert {"a", "b"} == {conflict.unit.partition(":")[0] for conflict in refused.value.conflicts}
    assert before == {name: str(repository.table(name).head()) for name in ("a", "b", "c")}
    assert [7] == ids(repository, "production")["c"]


def test_two_runs_on_the_same_tables_are_merged(tmp_path: Path) -> None:
    """A run that began before another one was published is merged with it, table by table."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    first, second = run(repository, 1, "a", "b"), run(repository, 2, "a")
    repository.publish(first, channel="production")
    repository.publish(second, channel="production")
    assert {"a": [1, 2], "b": [1]} == ids(repository, "production")


def test_a_publication_can_be_repeated(tmp_path: Path) -> None:
    """The second publication of a branch changes nothing and returns the commit of the first one."""
    repository = uncommitted_repository(tmp_path, "a")
    branch = run(repository, 1, "a")
    first = repository.publish(branch, channel="production")
    again = repository.publish(branch, channel="production")
    assert (first.commit, {}) == (again.commit, again.changed)
    assert 1 == len(repository.channels.history("production"))


def test_a_rollback_goes_back_for_all_tables_and_holds(tmp_path: Path) -> None:
    """After a rollback readers see all tables as they were, and nothing is published until the channel is released."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    repository.publish(run(repository, 2, "a", "b"), channel="production")
    repository.channels.rollback("production", reason="doubled rows")
    assert {"a": [1], "b": [1]} == ids(repository, "production")
    assert [1] == repository.table("a").read("production")["id"].to_pylist()
    with pytest.raises(ProtectedError, match="doubled rows"):
        repository.publish(run(repository, 3, "a"), channel="production")
    assert [1, 2] == ids(repository, "main")["a"]
    repository.channels.release("production", reason="mended")
    # `main` of both tables has the doubled rows still, since nobody reverted their commit.
    with pytest.raises(ConflictError, match="took back from channel"):
        repository.publish("run/3", channel="production")
    assert {"a": [1], "b": [1]} == ids(repository, "production")
    repository.channels.promote("production", again=True)
    assert {"a": [1, 2, 3], "b": [1, 2]} == ids(repository, "production")


def test_a_held_channel_goes_further_back_and_never_forward(tmp_path: Path) -> None:
    """A rollback with another reason goes back from there; one that goes forward, or releases the hold, is refused."""
    repository = uncommitted_repository(tmp_path, "a")
    for number in (1, 2, 3):
        repository.publish(run(repository, number, "a"), channel="production")
    newest = repository.head("production").id
    repository.channels.rollback("production", reason="3 is wrong")
    repository.channels.rollback("production", reason="3 is wrong")
    assert [1, 2] == ids(repository, "production")["a"]
    repository.channels.rollback("production", reason="2 is wrong too")
    assert [1] == ids(repository, "production")["a"]
    with raises(ProtectedError, kind="channel", name="production", refused="move"):
        repository.channels.rollback("production", to=newest, reason="forward")
    with raises(ProtectedError, kind="channel", name="production", refused="move"):
        repository.channels.rollback("production", to=newest, reason="free", hold=False)
    assert [1] == repository.table("a").read("production")["id"].to_pylist()


def test_the_entries_after_one_are_read_by_their_numbers(tmp_path: Path) -> None:
    """A program that watches a channel sees each entry once, oldest first, and none of an unknown channel."""
    repository = uncommitted_repository(tmp_path, "a")
    assert () == repository.channels.entries_after("production", 0)
    for number in (1, 2, 3):
        repository.publish(run(repository, number, "a"), channel="production")
    assert [1, 2, 3] == [entry.number for entry in repository.channels.entries_after("production", 0)]
    assert [3] == [entry.number for entry in repository.channels.entries_after("production", 2)]
    assert () == repository.channels.entries_after("production", 3)


def test_the_history_says_who_and_why(tmp_path: Path) -> None:
    """Each move of a channel is an entry with its action and reason, newest first."""
    repository = uncommitted_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel="production", message="first day")
    repository.publish(run(repository, 2, "a"), channel="production", message="second day")
    repository.channels.rollback("production", reason="wrong", who="Ada")
    repository.channels.release("production", reason="right", who="Bea")
    found = [(entry.action, entry.reason) for entry in repository.channels.history("production")]
    assert [("release", "right"), ("rollback", "wrong"), ("promote", "second day"), ("promote", "first day")] == found
    assert "Bea" == repository.channels.history("production")[0].by


@pytest.mark.parametrize(
    "ref, expected",
    [
        ("production", [1, 4]),
        ("production~1", [1]),
        ("production@2", [1, 2]),
        ("production@{now}", [1, 4]),
        ("main~0", [1, 2, 4]),
        ("main~1", [1, 2]),
        ("main^", [1, 2]),
    ],
)
def test_ref_expressions(tmp_path: Path, ref: str, expected: list[int]) -> None:
    """`~n` follows a channel back by its promotions, without rolled back ones, and a branch by first parents."""
    repository = uncommitted_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel="production")
    repository.publish(run(repository, 2, "a"), channel="production")
    repository.channels.rollback("production", reason="wrong", hold=False)
    repository.publish(run(repository, 4, "a"))
    if "main" not in ref:
        expected = [1, 2, 4] if expected == [1, 4] else expected
        repository.channels.promote("production", "main")
    assert expected == ids(repository, ref)["a"]


@pytest.mark.parametrize("ref", ["staging", "production~9", "production@77", "production@{2020-01-01}", "main~9", "v1"])
def test_refs_that_name_nothing(tmp_path: Path, ref: str) -> None:
    """A ref without a commit is an error that names it."""
    repository = uncommitted_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel="production")
    with pytest.raises(RefNotFoundError):
        repository.at(ref)


def test_an_entry_that_was_rolled_back_is_named_by_its_number(tmp_path: Path) -> None:
    """A step back from a rollback does not lead to the withdrawn commit, and the error says how to name its entry."""
    repository = uncommitted_repository(tmp_path, "a")
    for number in (1, 2):
        repository.publish(run(repository, number, "a"), channel="production")
    repository.channels.rollback("production", reason="wrong")
    with pytest.raises(RefNotFoundError, match="were rolled back do not count"):
        repository.diff("production~1", "production")
    assert [1, 2] == ids(repository, "production@2")["a"]


def test_a_release_tag_never_moves(tmp_path: Path) -> None:
    """A repository tag names one commit permanently, and each table has an immutable tag of that name."""
    repository = uncommitted_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel="production")
    tag, lagging = repository.tags.create("v1", "production", message="first")
    repository.publish(run(repository, 2, "a"), channel="production")
    assert (repository.head("v1").id, ()) == (tag.commit, lagging)
    assert {"a": [1]} == ids(repository, "v1")
    assert repository.table("a").tags.get("v1").immutable
    with raises(ProtectedError, kind="repository tag", name="v1", refused="delete"):
        repository.tags.delete("v1")


def test_tables_that_exist_are_adopted(tmp_path: Path) -> None:
    """Tables that other programs made are found, registered and committed."""
    lance.write_dataset(rows(1), str(tmp_path / "raw" / "old.lance"))
    repository = LanceRepository.create(tmp_path)
    assert ["raw/old"] == repository.discover()
    repository.adopt()
    assert {"raw/old": [1]} == ids(repository, "main")
    assert [] == repository.discover()


def test_commits_of_other_programs_are_committed_on_request(tmp_path: Path) -> None:
    """`commit` takes the newest main of every table that changed, and the version stays readable."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.commit("start")
    repository.table("a").append(rows(5))
    commit = repository.commit("what the stream brought")
    assert ("a",) == commit.changed_from(repository.log()[1])
    repository.table("a").overwrite(rows(6))
    repository.table("a").maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0))
    assert [5] == ids(repository, "main")["a"]


def test_a_foreign_commit_does_not_stop_a_publication(tmp_path: Path) -> None:
    """A foreign commit on main of a table becomes part of the next publication of that table."""
    repository = uncommitted_repository(tmp_path, "a")
    branch = run(repository, 1, "a")
    lance.write_dataset(rows(9), str(tmp_path / "a.lance"), mode="append")
    repository.publish(branch, channel="production")
    assert {"a": [1, 9]} == ids(repository, "production")


def test_a_moved_table_keeps_its_history(tmp_path: Path) -> None:
    """After its folder was moved, a table is read under its new name, at present and in earlier commits."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    (tmp_path / "a.lance").rename(tmp_path / "moved.lance")
    commit = repository.move_table("a", "moved")
    assert {"moved", "b"} == set(commit.tables)
    assert {"moved": [1], "b": [1]} == ids(repository, "main")
    repository.publish(run(repository, 2, "moved"), channel="production")
    assert {"moved": [1, 2], "b": [1]} == ids(repository, "production")


def test_files_of_other_programs_are_ignored(tmp_path: Path) -> None:
    """Files that a file manager or an editor leaves in the folders of a repository change nothing."""
    repository = uncommitted_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel="production")
    repository.tags.create("v1")
    for folder in ("tables", "identities", "branches", "branches/main", "channels/production", "tags", "commits"):
        for file in (".DS_Store", "999999999999998.json~", "~lock"):
            (tmp_path / "_repository" / folder / file).write_text("x")
    again = LanceRepository.open(tmp_path)
    again.publish(run(again, 2, "a"), channel="production")
    assert {"a": [1, 2]} == ids(again, "production")
    assert {"a": [1]} == ids(again, "production~1")
    assert (["a"], ["v1"]) == ([one.name for one in again.status().tables], list(again.tags.list()))
    assert () == again.adopt().tables
    again.maintenance.collect()


def test_a_copied_folder_is_not_the_same_table(tmp_path: Path) -> None:
    """A copy of a table's folder has the identity of the original and is refused until it gets its own."""
    repository = uncommitted_repository(tmp_path, "a")
    shutil.copytree(tmp_path / "a.lance", tmp_path / "b.lance")
    with pytest.raises(AlreadyExistsError):
        repository.adopt(["b"])
    (tmp_path / "b.lance" / "_refs" / "identity.json").unlink()
    repository.adopt(["b"])
    assert {"b"} == set(repository.head().tables)


def test_a_removed_table_stays_in_older_commits(tmp_path: Path) -> None:
    """A removed table is in no new commit, and can still be read in older commits."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    repository.remove_table("b")
    assert ({"a": [1]}, {"a": [1], "b": [1]}) == (ids(repository, "main"), ids(repository, "production"))


def test_an_audit_sees_what_will_be_published(tmp_path: Path) -> None:
    """An audit gets the merged versions, and nothing is published that it refuses."""
    repository = uncommitted_repository(tmp_path, "a")
    first, second = run(repository, 1, "a"), run(repository, 2, "a")
    repository.publish(first, channel="production")
    seen: list[int] = []

    def audit(staged: Mapping[str, TableView]) -> None:
        seen.append(staged["a"].read().num_rows)
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError, match="no"):
        repository.publish(second, channel="production", audit=audit)
    assert ([2], {"a": [1]}) == (seen, ids(repository, "production"))


def test_an_audit_is_repeated_when_a_table_that_it_reads_moved(tmp_path: Path) -> None:
    """A publication of another table, committed after the audit has read it, is audited before the next attempt."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    run(repository, 2, "a"), run(repository, 3, "b")
    seen: list[list[int]] = []

    def audit(staged: Mapping[str, TableView]) -> None:
        seen.append([staged[name].count_rows() for name in ("a", "b")])
        if len(seen) == 1:
            repository.publish("run/3")

    repository.publish("run/2", audit=audit, reads=["b"])
    assert [[2, 1], [2, 2]] == seen


def test_what_is_not_there(tmp_path: Path) -> None:
    """A root without a repository, a missing table and an unusable name are errors that name them."""
    with pytest.raises(NotFoundError, match="no repository at"):
        LanceRepository.open(tmp_path)
    repository = uncommitted_repository(tmp_path, "a")
    with pytest.raises(TableNotFoundError, match="'b'"):
        repository.table("b")
    with pytest.raises(TableNotFoundError, match="no table 'b'; its tables: none"):
        repository.at("main")["b"]
    for name in ("../a", "/a", "a.lance", "_repository/a", ""):
        with pytest.raises(InvalidInputError):
            repository.table(name)


def test_a_branch_name_can_be_used_again(tmp_path: Path) -> None:
    """A branch that is forked again after its publication is published again, with its tables of the second time."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.fork("a", "nightly").append(rows(1), branch="nightly")
    repository.publish("nightly", channel="production")
    repository.fork("b", "nightly").append(rows(2), branch="nightly")
    assert {"b"} == set(repository.publish("nightly", channel="production").changed)
    assert {"a": [1], "b": [2]} == ids(repository, "production")


def test_rows_after_the_publication_are_not_deleted(tmp_path: Path) -> None:
    """A branch that got rows during its publication is kept, and reported."""
    repository = uncommitted_repository(tmp_path, "a")
    branch = run(repository, 1, "a")

    def audit(staged: object) -> None:
        del staged
        repository.table("a").append(rows(2), branch=branch)

    done = repository.publish(branch, audit=audit)
    assert "run/1@3 was committed meanwhile" in done.kept[0]
    repository.fork("a", branch)
    repository.publish(branch)
    assert [1, 2] == ids(repository, "main")["a"]


def test_a_commit_is_reverted_in_all_its_tables(tmp_path: Path) -> None:
    """A revert undoes the changes of one publication in each of its tables, and keeps later changes."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.commit("start")
    repository.publish(run(repository, 1, "a", "b"))
    wrong = repository.publish(run(repository, 2, "a", "b")).commit
    repository.publish(run(repository, 3, "b"))
    commit = repository.revert(wrong.id)
    assert {"a": [1], "b": [1, 3]} == ids(repository, "main")
    assert {"a", "b"} == set(commit.changed_from(repository.log()[1]))
    assert commit == repository.revert(wrong.id)
    assert [1] == repository.table("a").read()["id"].to_pylist()
    repository.revert(commit.id)
    assert {"a": [1, 2], "b": [1, 2, 3]} == ids(repository, "main")
    repository.revert(wrong.id)
    assert {"a": [1], "b": [1, 3]} == ids(repository, "main")


def test_a_table_that_is_reverted_is_not_registered(tmp_path: Path) -> None:
    """The next commit of all tables does not bring it back, and `adopt` does."""
    lake = uncommitted_repository(tmp_path, "a")
    lake.create_table("extra", SCHEMA)
    added = lake.commit("add extra").id
    lake.revert(added)
    assert "extra" not in lake.tables()
    assert lake.head() == lake.revert(added)
    assert "extra" not in lake.commit("all").tables
    lake.adopt(["extra"])
    assert "extra" in lake.head().tables
    assert "extra" not in lake.revert(added).tables
    assert "extra" not in lake.tables()


def test_what_was_done_again_after_a_revert_is_reverted_again(tmp_path: Path) -> None:
    """A table that was added or removed once more; the rows of other tables that the commit changed are kept."""
    lake = uncommitted_repository(tmp_path, "a")
    lake.commit("start")
    lake.table("a").append(rows(1))
    lake.create_table("extra", SCHEMA)
    both = lake.commit("both").id
    lake.revert(both)
    lake.publish(run(lake, 2, "a"))
    lake.adopt(["extra"])
    done = lake.revert(both)
    assert ({"a": [2]}, done) == (ids(lake, "main"), lake.revert(both))
    removed = lake.remove_table("a").id
    lake.revert(removed)
    lake.remove_table("a")
    lake.revert(removed)
    assert {"a": [2]} == ids(lake, "main")


def test_a_publication_of_many_tables_fits_on_a_screen() -> None:
    """The text of a publication of many tables names a few of them and their number."""
    at = TableVersion(id="0" * 32, branch="run/1", version=2, commit_id="0" * 64, lands=2)
    tables = {f"shop/t{number:03}": at for number in range(100)}
    commit, _ = new_commit(tables, (), author="Ada", message="publish run/1", properties={})
    lagging = [Lagging(table=name, ref="main", reason="conflicts") for name in tables]
    done = Published(commit=commit, changed=tables, lagging=tuple(lagging), versions=tables)
    said = str(done).splitlines()
    assert [f"main: {commit.short_id} publish run/1", "and 90 more"] == [said[0], said[-1]]
    assert said[1].startswith("changed: shop/t000 run/1@2, ")
    assert said[1].endswith(" and 90 more")
    assert 13 == len(said)
    assert 1000 > len(repr(Published(commit=commit, changed=tables, versions=tables)))


def test_a_removal_is_reverted(tmp_path: Path) -> None:
    """The revert of a removal registers the table again, and tags its version, which only old commits named."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a"))
    repository.revert(repository.remove_table("a").id)
    assert (["a", "b"], [1]) == (repository.tables(), ids(repository, "main")["a"])
    assert "main@2" == str(repository.head().tables["a"])
    assert "repository-main-2" in repository.table("a").tags.list()


def test_a_table_that_was_removed_later_is_not_brought_back_by_a_revert(tmp_path: Path) -> None:
    """A revert does not bring back a table that was removed later, which only the revert of the removal does."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.commit("start")
    wrong = repository.publish(run(repository, 1, "a", "b")).commit
    removed = repository.remove_table("b")
    assert repository.revert(wrong.id).message.endswith("(without b, removed since)")
    assert {"a": []} == ids(repository, "main")
    repository.revert(removed.id)
    assert {"a": [], "b": [1]} == ids(repository, "main")


def test_a_revert_finds_tables_by_their_ids(tmp_path: Path) -> None:
    """A revert changes a table that was moved since under its new name, and not another table at its former place."""
    repository = uncommitted_repository(tmp_path, "a")
    repository.commit("start")
    wrong = repository.publish(run(repository, 1, "a")).commit
    shutil.move(tmp_path / "a.lance", tmp_path / "b.lance")
    moved = repository.move_table("a", "b")
    for number in (7, 8):
        repository.create_table("a", SCHEMA).append(rows(number))
    repository.commit("another table")
    repository.revert(wrong.id)
    assert {"a": [7, 8], "b": []} == ids(repository, "main")
    with pytest.raises(InvalidInputError, match="the name 'b': to undo that"):
        repository.revert(moved.id)
    again = repository.revert("main")
    assert {"a": [7, 8], "b": [1]} == ids(repository, "main")
    repository.remove_table("b")
    with pytest.raises(ConflictError):
        repository.revert(again.id)


def test_a_diff_names_the_tables_and_their_rows(tmp_path: Path) -> None:
    """A diff of two commits names each table that differs, and compares rows on request."""
    repository = uncommitted_repository(tmp_path, "a", "b", "c")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    repository.publish(run(repository, 2, "a", "c"))
    found = repository.diff("production", "main")
    assert [("a", "changed"), ("c", "added")] == [(table.name, table.kind) for table in found.tables]
    assert 1 == found.tables[0].rows().stat().added
    with pytest.raises(InvalidInputError):
        found.tables[1].rows()


def test_the_status_says_what_lags_and_what_waits(tmp_path: Path) -> None:
    """The status names foreign commits, moved tags, branches that wait, and held channels that fell behind."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    repository.channels.hold("production", reason="audit")
    repository.publish(run(repository, 2, "b"))
    repository.table("a").append(rows(8))
    lance.dataset(str(tmp_path / "b.lance")).tags.update("production", 3)
    run(repository, 3, "a")
    status = repository.status()
    a, b = status.tables
    assert (1, 0, {}, {"production": "main@3"}) == (a.ahead, b.ahead, a.moved_tags, b.moved_tags)
    assert {"run/3": ("a",)} == status.waiting
    assert [1] == [channel.behind for channel in status.channels]
    assert "held by" in str(status)
    repository.maintenance.repair()
    assert {} == repository.status().tables[1].moved_tags


def test_the_status_names_tags_that_are_missing_or_held_alone(tmp_path: Path) -> None:
    """A tag that was deleted, or is held although its channel is not, is named until it follows the channel again."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    assert "tag" not in str(repository.status())
    repository.table("a").tags.delete("production", force=True)
    repository.table("b").tags.hold("production", reason="audit", who="ann")
    status = repository.status()
    a, b = status.tables
    assert (("production",), {}, ()) == (a.missing_tags, a.held_tags, b.missing_tags)
    assert b.held_tags["production"].startswith("held by ann since ")
    assert "table a: tag production is missing" in str(status)
    assert "table b: tag production is held by ann" in str(status)
    repository.maintenance.repair()
    repository.channels.release("production", reason="audited")
    assert "tag" not in str(repository.status())
    # The tags of a channel that is held are held with it.
    repository.channels.hold("production", reason="audit")
    assert "tag" not in str(repository.status())


def test_a_misspelt_table_leaves_no_branch(tmp_path: Path) -> None:
    """A fork of a missing table is refused, and leaves no branch that waits for a publication."""
    repository = uncommitted_repository(tmp_path, "a")
    with pytest.raises(TableNotFoundError):
        repository.fork("b", "run/1")
    assert {} == repository.status().waiting


def test_only_tables_of_the_repository_are_removed(tmp_path: Path) -> None:
    """The removal of a table that is not in the repository is refused."""
    repository = uncommitted_repository(tmp_path, "a")
    with pytest.raises(TableNotFoundError):
        repository.remove_table("b")
    repository.remove_table("a")
    assert [] == repository.tables()


def test_the_status_names_a_table_that_is_gone(tmp_path: Path) -> None:
    """The status names a table whose folder was deleted or moved, and still reports on the other tables."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.commit("start")
    shutil.rmtree(tmp_path / "a.lance")
    status = LanceRepository.open(tmp_path).status()
    assert "table a: the table no longer exists" in str(status)
    assert [None, "main@1"] == [table.main for table in status.tables]


def test_a_view_says_which_tables_it_has(tmp_path: Path) -> None:
    """`in` answers for any name, and the error for a missing table has the names of the existing ones."""
    view = uncommitted_repository(tmp_path, "a").at("main")
    assert ("a" in view, view.get("a")) == (False, None)
    with pytest.raises(TableNotFoundError, match="its tables: none"):
        view["a"]


def test_a_commit_of_several_versions_is_reverted_whole(tmp_path: Path) -> None:
    """The revert of a publication that resolved a conflict with a foreign commit also reverts that commit."""
    repository = uncommitted_repository(tmp_path, "a")
    repository.table("a").append(rows(1, 2))
    repository.commit("start")
    repository.fork("a", "run/1").update({"price": "10"}, where="id = 1", branch="run/1")
    repository.table("a").update({"price": "20"}, where="id = 1")
    repository.publish("run/1", strategy="source-wins")
    repository.table("a").append(rows(3))
    repository.commit("later")
    repository.revert("main~1")
    found = repository.at("main")["a"].read().sort_by("id").to_pydict()
    assert {"id": [1, 2, 3], "price": [1, 1, 1]} == found


@pytest.mark.parametrize("use", ["read", "fork"])
def test_a_table_that_another_process_made_again_is_opened_anew(tmp_path: Path, use: str) -> None:
    """A running process opens a table anew that another process made again with the version numbers that it cached."""
    repository = uncommitted_repository(tmp_path, "a")
    repository.table("a").append(rows(1))
    repository.commit("first")
    held = LanceRepository.open(tmp_path)
    held.fork("a", "run/0")
    assert {"a": [1]} == ids(held, "main")
    repository.remove_table("a")
    shutil.rmtree(tmp_path / "a.lance")
    repository.create_table("a", SCHEMA).append(rows(9))
    repository.commit("again")
    if use == "read":
        assert {"a": [9]} == ids(held, "main")
    held.fork("a", "run/1").append(rows(2), branch="run/1")
    held.publish("run/1")
    assert {"a": [2, 9]} == ids(LanceRepository.open(tmp_path), "main")


def test_a_table_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    """Readers of a table that was made again get an error, not its rows; removed and adopted, it is a new table."""
    repository = uncommitted_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    repository.table("a").append(rows(2))
    repository.commit("by hand")
    held = LanceRepository.open(tmp_path)
    assert [1] == held.at("production")["a"].read()["id"].to_pylist()
    shutil.rmtree(tmp_path / "a.lance")
    LanceTable.create(tmp_path / "a.lance", SCHEMA).append(rows(9))
    with pytest.raises(VersionNotFoundError, match="`status` says"):
        held.at("production")["a"].read()
    again = LanceRepository.open(tmp_path)
    for ref in ("main", "production", "main~1"):
        with pytest.raises(VersionNotFoundError, match="`status` says"):
            again.at(ref)["a"].read()
    assert [True, False] == [table.replaced for table in again.status().tables]
    assert "table a: another table has its place" in str(again.status())
    assert [1] == again.at("main")["b"].read()["id"].to_pylist()
    again.remove_table("a")
    again.adopt(["a"])
    assert {"a": [9], "b": [1]} == ids(again, "main")
    assert [False, False] == [table.replaced for table in again.status().tables]
    with pytest.raises(VersionNotFoundError):
        again.at("production")["a"].read()


READS: dict[str, Callable[[LanceRepository], object]] = {
    "pins/*": lambda repository: repository.publications.pinned("run-7", "production"),
    "pins/run-7@*": lambda repository: repository.maintenance.collect(),
    "tables/orders.json": lambda repository: repository.fork("orders", "run/2"),
    "tags/v1.json": lambda repository: repository.tags.list(),
    "repository.json": lambda repository: repository.id,
    "channels/production/*.json": lambda repository: repository.at("production"),
    "branches/main/*.json": lambda repository: repository.log(),
    "commits/*.json": lambda repository: repository.at("production"),
}


@pytest.mark.parametrize("data", [b"\xff", b"[" * 200_000], ids=["bytes that are no text", "brackets nested too deep"])
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes) -> None:
    """Runs may write some of these files, so a person has to find the one that ended a job of somebody else."""
    repository = uncommitted_repository(tmp_path, "orders")
    repository.publish(run(repository, 1, "orders"), channel="production")
    repository.tags.create("v1")
    repository.publications.pinned("run-7", "production")
    for pattern, read in READS.items():
        found = list((tmp_path / "_repository").glob(pattern))
        assert found, pattern
        whole = {path: path.read_bytes() for path in found}
        for path in found:
            path.write_bytes(data)
        with pytest.raises(CorruptFileError, match="|".join(re.escape(path.name) for path in found)):
            read(LanceRepository.open(tmp_path))
        for path, before in whole.items():
            path.write_bytes(before)
