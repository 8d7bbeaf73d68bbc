"""A branch is reset to an older version of its own."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    CommitConflictError,
    ConflictError,
    InvalidInputError,
    LanceDagsterError,
    ProtectedError,
    VersionNotFoundError,
)
from tests.raising import raises
from tests.store.scripted import PlugPulledError, Request, ScriptedStore, intruder_at_commit, plug_pulled_before_write
from tests.table_factory import as_pylance, contents, context_of, context_on, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A branch with three versions of its own above its first one, `run@2`."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    for value in (2, 3, 4):
        table.append(entries("r", value), branch="run")
    return table


def through(table: LanceTable, script: Callable[[Request], object]) -> LanceTable:
    """The table, through a store that passes each request to a script."""
    return LanceTable(context_on(ScriptedStore(context_of(table).store, script)))


def log(table: LanceTable, ref: str = "run") -> list[str]:
    """The versions that a ref contains, newest first."""
    return [str(version) for version in table.log(ref)]


KEPT = [("a", 1), ("r", 2)]


def test_a_branch_goes_back_to_a_version_of_its_own(table: LanceTable) -> None:
    """Rows and history are those of that version; no number is used again."""
    branch = table.branches.reset("run", "run@3")
    assert KEPT == contents(table, "run")
    assert ["run@6", "run@3", "main@2", "main@1"] == log(table)
    head = table.head("run")
    assert ("Restore", ("run@3",), False) == (head.operation, head.parents, head.cut)
    assert ("reset to run@3", "run@3") == (head.message, head.properties["lance_dagster.reset"])
    assert [2, 3, 6] == table.branches.version_numbers("run")
    assert {} == {key: value for key, value in branch.metadata.items() if "dropping" in key}
    assert branch == table.branches.get("run")
    with pytest.raises(VersionNotFoundError):
        table.at("run@4")
    assert ["run@3"] == [str(table.at("run~1"))]
    assert (2, 0) == table.branches.ahead_behind("run")


def test_what_follows_a_reset_is_merged_and_nothing_that_was_dropped(table: LanceTable) -> None:
    """The dropped versions are neither changes of the branch nor a gap in its history."""
    table.append(entries("m", 1))
    table.branches.reset("run", "run@3")
    table.append(entries("n", 1), branch="run")
    table.merge("run")
    assert [("a", 1), ("m", 1), ("n", 1), ("r", 2)] == contents(table)
    table.branches.sync("run")
    table.append(entries("n", 2), branch="run")
    table.merge("run")
    assert [("a", 1), ("m", 1), ("n", 1), ("n", 2), ("r", 2)] == contents(table)
    lance.dataset(table.uri).validate()


def test_a_branch_that_was_merged_goes_back_to_what_main_has(table: LanceTable) -> None:
    """Nothing is merged twice, and later commits are merged."""
    table.merge("run@3")
    table.branches.reset("run", "run@3")
    assert table.branches.is_merged("run@3") is not None
    table.merge("run")
    assert KEPT == contents(table)
    table.append(entries("n", 1), branch="run")
    table.merge("run")
    assert [("a", 1), ("n", 1), ("r", 2)] == contents(table)


@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_updates_and_deletes_before_a_reset_are_merged(tmp_path: Path, *, stable: bool) -> None:
    """This also holds without stable row ids, where rows are traced through the versions."""
    uri = str(tmp_path / "t")
    lance.write_dataset(entries("a", *range(6)), uri, enable_stable_row_ids=stable)
    table = LanceTable.open(uri)
    table.branches.create("run")
    table.update({"key": "'u'"}, where="value = 1", branch="run")
    kept = table.delete("value = 2", branch="run")
    table.delete("value = 3", branch="run")
    table.update({"key": "'x'"}, where="value = 1", branch="run")
    table.branches.reset("run", kept)
    table.delete("value = 5", branch="run")
    table.append(entries("m", 9))
    table.merge("run")
    assert [("a", 0), ("a", 3), ("a", 4), ("m", 9), ("u", 1)] == contents(table)


def test_pylance_reads_and_goes_on(table: LanceTable) -> None:
    """Pylance reads the rows of the older version, and commits above all earlier numbers."""
    table.branches.reset("run", "run@3")
    dataset = as_pylance(table, "run")
    dataset.validate()
    dataset.insert(entries("p", 1))
    assert [("a", 1), ("p", 1), ("r", 2)] == contents(table, "run")
    assert "run@7" == str(table.head("run"))


def test_a_reset_can_be_repeated_and_go_further_back(table: LanceTable) -> None:
    """A second call has nothing to do; a reset to an older version drops the first reset."""
    table.branches.reset("run", "run@3")
    table.branches.reset("run", "run@3")
    table.branches.reset("run", "run")
    assert ["run@6", "run@3", "main@2", "main@1"] == log(table)
    table.append(entries("n", 1), branch="run")
    table.branches.reset("run", "run@3")
    assert ["run@8", "run@3", "main@2", "main@1"] == log(table)
    table.branches.reset("run", "run@2")
    assert ["run@9", "main@2", "main@1"] == log(table)
    assert [("a", 1)] == contents(table, "run")


def test_what_needs_a_dropped_version_is_named(table: LanceTable) -> None:
    """These are tags, branches and merges; nothing is changed, and the error offers a restore."""
    table.tags.create("kept", "run@3")
    table.tags.create("old", "run@4")
    table.branches.create("child", "run@5")
    table.merge("run@4")
    before = table.branches.get("run")
    with pytest.raises(ConflictError) as caught:
        table.branches.reset("run", "run@3")
    assert str(caught.value) == (
        f"cannot reset branch 'run' of {table.uri} to run@3: tag 'old' names run@4, branch 'child' was forked from "
        "run@5, main contains run@4; restore('run@3', 'run') commits that version's content as the next "
        "version, and drops none"
    )
    assert before == table.branches.get("run")
    assert [2, 3, 4, 5] == table.branches.version_numbers("run")


def test_what_a_rollback_needs_is_named(table: LanceTable) -> None:
    """A moved tag can be rolled back to its earlier version."""
    table.tags.create("production", "run@4")
    table.tags.move("production", "main@1")
    with pytest.raises(ConflictError):
        table.branches.reset("run", "run@3")
    table.tags.rollback("production")
    assert "run@4" == table.tags.get("production").ref


def test_a_version_that_was_dropped_is_said_to_be(table: LanceTable) -> None:
    """Its number lies between those of existing versions."""
    table.branches.reset("run", "run@3")
    with pytest.raises(VersionNotFoundError):
        table.read("run@4")


def test_references_to_kept_versions_stay(table: LanceTable) -> None:
    """A tag on an older version and a branch forked from it do not prevent a reset."""
    table.tags.create("kept", "run@3")
    table.branches.create("child", "run@3")
    table.append(entries("c", 1), branch="child")
    table.branches.reset("run", "run@3")
    assert KEPT == contents(table, "kept")
    table.merge("child", into="run")
    assert [("a", 1), ("c", 1), ("r", 2)] == contents(table, "run")


def test_what_cannot_be_reset_to_an_own_version(table: LanceTable) -> None:
    """Main can only be restored, and a protected branch keeps its versions."""
    with pytest.raises(InvalidInputError):
        table.branches.reset("main", "main@1")
    table.branches.protect(["run"])
    with pytest.raises(ProtectedError):
        table.branches.reset("run", "run@3")
    assert [2, 3, 4, 5] == table.branches.version_numbers("run")


@pytest.mark.parametrize("step", range(12))
def test_a_reset_that_died_is_finished_by_the_next(table: LanceTable, step: int) -> None:
    """After an interruption at any write the branch is unchanged or reset, and always readable."""
    other = through(table, plug_pulled_before_write(step))
    try:
        other.branches.reset("run", "run@3")
    except PlugPulledError:
        assert contents(table, "run") in ([("a", 1), ("r", 2), ("r", 3), ("r", 4)], KEPT)
        as_pylance(table, "run").validate()
        assert "run" in table.branches.list()
    table.branches.reset("run", "run@3")
    assert KEPT == contents(table, "run")
    assert [2, 3, 6] == table.branches.version_numbers("run")
    assert ["run@6", "run@3", "main@2", "main@1"] == log(table)
    table.tags.create("later", "run")
    table.append(entries("n", 1), branch="run")
    table.merge("run")
    assert [*KEPT[:1], ("n", 1), *KEPT[1:]] == contents(table)


@pytest.mark.parametrize("step", range(12))
def test_a_reset_that_died_is_repeated_with_a_ref_that_counts_back(table: LanceTable, step: int) -> None:
    """The parent of a reset is the version it went back to, also while the dropped versions are there still."""
    with suppress(PlugPulledError):
        through(table, plug_pulled_before_write(step)).branches.reset("run", "run~2")
    if table.head("run").number > 5:
        assert KEPT == contents(table, "run~1")
        assert [("a", 1)] == contents(table, "run~2")
        table.branches.reset("run", "run~1")
        assert [2, 3, 6] == table.branches.version_numbers("run")


@pytest.mark.parametrize("step", range(12))
def test_a_branch_whose_reset_died_goes_on(table: LanceTable, step: int) -> None:
    """After each interruption a commit and a merge work on the present state of the branch."""
    with suppress(PlugPulledError):
        through(table, plug_pulled_before_write(step)).branches.reset("run", "run@3")
    before = contents(table, "run")
    table.append(entries("n", 1), branch="run")
    table.merge("run")
    assert sorted([*before, ("n", 1)]) == contents(table)


def test_a_lost_answer_is_recognised(table: LanceTable) -> None:
    """A write may have been made although its answer was an error; the next call finds it."""
    for step in range(8):
        left = [step]

        def script(request: Request, left: list[int] = left) -> object:
            answer = request.send()
            if request.writes:
                left[0] -= 1
                if left[0] == -1:
                    raise PlugPulledError
            return answer

        table.append(entries("x", step), branch="run")
        try:
            through(table, script).branches.reset("run", "run@3")
        except PlugPulledError:
            table.branches.reset("run", "run@3")
        assert KEPT == contents(table, "run")


def test_a_commit_in_between_is_not_dropped(table: LanceTable) -> None:
    """The commit was acknowledged, so the reset is withdrawn completely."""
    other = through(table, intruder_at_commit(lambda: table.append(entries("i", 1), branch="run")))
    with raises(CommitConflictError, committed="run@6", retryable=True) as caught:
        other.branches.reset("run", "run@3")
    assert caught.value.retryable
    assert [("a", 1), ("i", 1), ("r", 2), ("r", 3), ("r", 4)] == contents(table, "run")
    assert {} == {key: value for key, value in table.branches.get("run").metadata.items() if "dropping" in key}
    table.branches.reset("run", "run@3")
    assert KEPT == contents(table, "run")


def test_the_same_reset_in_between_is_found(table: LanceTable) -> None:
    """Two concurrent resets to one version make one version."""
    through(table, intruder_at_commit(lambda: table.branches.reset("run", "run@3"))).branches.reset("run", "run@3")
    assert ["run@6", "run@3", "main@2", "main@1"] == log(table)


@pytest.mark.parametrize(
    "refer",
    [
        lambda table: table.tags.create("new", "run@4"),
        lambda table: table.branches.create("new", "run@4"),
        lambda table: table.tags.move("moved", "run@4"),
    ],
    ids=["tag", "branch", "moved tag"],
)
@pytest.mark.parametrize("step", range(7))
def test_a_reference_made_meanwhile_is_refused_or_honoured(
    table: LanceTable, refer: Callable[[LanceTable], object], step: int
) -> None:
    """The version of an accepted reference exists afterwards, at whatever write the reference is made."""
    table.tags.create("moved", "run@3")
    left = [step]

    def script(request: Request) -> object:
        if request.writes:
            left[0] -= 1
            if left[0] == -1:
                with suppress(ConflictError, VersionNotFoundError):
                    refer(table)
        return request.send()

    try:
        through(table, script).branches.reset("run", "run@3")
    except ConflictError:
        assert [2, 3, 4, 5] == table.branches.version_numbers("run")
    for tag in table.tags.list().values():
        assert table.at(tag.ref) is not None
    for branch in table.branches.list().values():
        assert table.at(branch.parent) is not None
        assert table.count_rows(branch.name) == table.read(branch.name).num_rows


@pytest.mark.parametrize("look", [lambda table: table.branches.merge_base("run", "main"), None], ids=["look", "merge"])
def test_a_merge_that_lands_after_the_look_is_a_merge_base(
    table: LanceTable, look: Callable[[LanceTable], object] | None
) -> None:
    """The merge cannot be undone, so its version is put back; the next merge brings the effect of the reset."""
    late = intruder_at_commit(lambda: table.branches.reset("run", "run@3"))
    through(table, late).merge("run")
    assert [("a", 1), ("r", 2), ("r", 3), ("r", 4)] == contents(table)
    assert [2, 3, 6] == table.branches.version_numbers("run")
    table.append(entries("n", 1), branch="run")
    if look is not None:
        assert "run@5" == str(look(table))
    table.merge("run")
    assert [("a", 1), ("n", 1), ("r", 2)] == contents(table)
    assert [2, 3, 5, 6, 7] == table.branches.version_numbers("run")
    assert [] == list(table.maintenance.verify().problems)


def test_a_version_that_a_reset_dropped_for_good_is_no_merge_base(table: LanceTable) -> None:
    """Without a copy of its manifest, the error names the missing version."""
    through(table, intruder_at_commit(lambda: table.branches.reset("run", "run@3"))).merge("run")
    for path in Path(table.uri, "_expired", "run").iterdir():
        path.unlink()
    with pytest.raises(VersionNotFoundError, match="run@5"):
        table.merge("run")


def test_a_writer_of_a_dropped_version_reads_again(table: LanceTable) -> None:
    """A transaction made on a dropped version is not committed on top of the reset."""
    transaction = through(table, lambda request: request.send())
    head = table.head("run")
    late = intruder_at_commit(lambda: table.branches.reset("run", "run@3"))
    with pytest.raises(CommitConflictError):
        through(table, late).delete("value = 4", branch="run")
    assert KEPT == contents(transaction, "run")
    assert "run@5" == str(head)


def test_a_reset_says_why(table: LanceTable) -> None:
    """Either kind of reset puts the message and properties into its version."""
    table.branches.reset("run", "run@3", message="bad load", properties={"ticket": "7"})
    head = table.head("run")
    assert ("bad load", "7", "run@3") == (
        head.message,
        head.properties["ticket"],
        head.properties["lance_dagster.reset"],
    )
    table.branches.reset("run", "main@1", message="from the start", properties={"ticket": "8"})
    head = table.head("run")
    assert ("from the start", "8") == (head.message, head.properties["ticket"])
    with pytest.raises(InvalidInputError):
        table.branches.reset("run", "main@1", message=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", ["run@3", "run@4"])
def test_two_resets_at_once_drop_nothing_that_is_referred_to(table: LanceTable, other: str) -> None:
    """Each reset has its own mark: a tag that was accepted between the two has an existing version."""
    for place in range(60):
        again = LanceTable.open(new_copy(table))
        asked = 0

        def script(request: Request, place: int = place, again: LanceTable = again) -> object:
            nonlocal asked
            asked += 1
            if asked == place + 1:
                with suppress(LanceDagsterError):
                    again.tags.create("refused", "run@5")
                with suppress(LanceDagsterError):
                    again.branches.reset("run", other)
                for name, ref in (("four", "run@4"), ("five", "run@5")):
                    with suppress(LanceDagsterError):
                        again.tags.create(name, ref)
            return request.send()

        with suppress(LanceDagsterError):
            through(again, script).branches.reset("run", "run@3")
        for tag in again.tags.list():
            again.read(tag)
        assert as_pylance(again, "run").count_rows() == len(contents(again, "run"))
        if asked <= place:
            break
    else:
        raise AssertionError("a reset makes fewer requests")


def new_copy(table: LanceTable) -> Path:
    """A new table like the fixture's."""
    made = new_table(Path(table.uri).parent, entries("a", 1))
    made.branches.create("run")
    for value in (2, 3, 4):
        made.append(entries("r", value), branch="run")
    return Path(made.uri)
