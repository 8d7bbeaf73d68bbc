"""Recoveries and slow deletions of one branch that overtake each other: schedules with one outcome each."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    ConflictError,
    LanceDagsterError,
    RefMovedError,
    RefNotFoundError,
)
from lance_dagster.history.refs.branch_deletion import finish_deleting
from lance_dagster.history.refs.branch_operations import delete_up_to
from lance_dagster.store import LocalStore
from tests import soak
from tests.backdating import manifest
from tests.history.refs.interleaver import Interleaver, in_parts
from tests.history.refs.schedule_tables import ForgetfulStore, assert_free, copied, let_time_pass, made_template
from tests.raising import raises
from tests.store.scripted import PlugPulledError, Request, Script, ScriptedStore
from tests.table_factory import context_on, entries, sorted_rows

OWN_FILE = "_refs/branches/run.json"
VERSIONS = "tree/run/_versions"
# The versions of `run`, and the rows of the last one. A further commit has the number 6.
NUMBERS = [3, 4, 5]
OLD_ROWS = [("a", 1), ("b", 2), ("old", 1), ("old", 2)]
NEW_ROWS = [("a", 1), ("b", 2), ("new", 1), ("old", 1), ("old", 2)]
# More requests than any call here makes.
REST = 10**3

Act = Callable[[], object]
Kind = type[LocalStore]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """Two versions of main, and a branch `run` with two commits of its own."""
    return made_template(tmp_path_factory.mktemp("recovery races"))


def opened(table: LanceTable, kind: Kind = LocalStore) -> LanceTable:
    """The table as another process has it."""
    return LanceTable(context_on(kind(table.uri, durable=False)))


def held_up(table: LanceTable, *stops: tuple[str, str, Act], kind: Kind = LocalStore) -> LanceTable:
    """The table for a slow process: before the first request of a verb and a key, and so on, others act."""
    left = list(stops)

    def script(request: Request) -> object:
        if left and request.verb == left[0][0] and left[0][1] in request.key:
            left.pop(0)[2]()
        return request.send()

    return LanceTable(context_on(ScriptedStore(kind(table.uri, durable=False), script)))


class Late:
    """A process that puts the manifest of a branch after the branch was deleted, and others that act some time later.

    Attributes:
        asked: The number of requests that it made after the put.
        error: The error that it reports.
    """

    def __init__(self, table: LanceTable, before: Act, place: int, act: Act, *, kind: Kind = LocalStore) -> None:
        """Take what happens before the put, and before which request after it the others act, counted from 0."""
        self.asked = -1
        self.error: LanceDagsterError | None = None
        self._before, self._place, self._act = before, place, act
        self.table = LanceTable(context_on(ScriptedStore(kind(table.uri, durable=False), self._script)))

    def run(self, call: Callable[[LanceTable], object]) -> "Late":
        """Make the call of this process."""
        try:
            call(self.table)
        except LanceDagsterError as error:
            self.error = error
        return self

    def _script(self, request: Request) -> object:
        if self.asked < 0:
            if request.commits and VERSIONS in request.key:
                self._before()
                self.asked = 0
            return request.send()
        if self.asked == self._place:
            self._act()
        self.asked += 1
        return request.send()


def died() -> None:
    """Let the process die here."""
    raise PlugPulledError


def append(table: LanceTable) -> None:
    """Commit the row that `NEW_ROWS` has."""
    table.append(entries("new", 1), branch="run")


def append_more(table: LanceTable) -> None:
    """Commit another row."""
    table.append(entries("more", 1), branch="run")


def recover(table: LanceTable) -> None:
    """Bring the branch back."""
    table.branches.recover("run")


def delete(table: LanceTable) -> None:
    """Delete the branch."""
    table.branches.delete("run")


def delete_and_recover(table: LanceTable) -> None:
    """Delete the branch, bring it back and commit to it."""
    table.branches.delete("run")
    table.branches.recover("run")
    append(table)


def delete_and_create(table: LanceTable) -> None:
    """Delete the branch, make another one of its name and commit to it."""
    table.branches.delete("run")
    table.branches.create("run", "main@2")
    append(table)


def assert_whole(table: LanceTable, numbers: list[int], rows: list[tuple[str, int]]) -> None:
    """There is the one branch with these versions, each of which can be read, and its name is not blocked."""
    after = opened(table)
    assert ["run"] == [*after.branches.list()]
    assert numbers == after.branches.version_numbers("run")
    assert rows == sorted_rows(after.read("run"))
    assert [len(rows) - numbers[-1] + number for number in numbers] == [
        after.read(f"run@{number}").num_rows for number in numbers
    ]
    assert [] == [str(one) for one in after.maintenance.verify().problems if one.severity == "error"]
    assert_free(after, "run")


def assert_gone(table: LanceTable, first: int) -> None:
    """Nothing of the branch is left, and a new branch of its name begins at a number."""
    after = opened(table)
    assert {} == after.branches.list()
    assert not Path(table.uri, OWN_FILE).exists()
    assert [] == [*Path(table.uri, VERSIONS).glob("*.manifest")]
    after.branches.create("run", "main@2")
    assert [first] == after.branches.version_numbers("run")
    assert [("a", 1)] == sorted_rows(after.read("run"))
    assert [] == [str(one) for one in after.maintenance.verify().problems if one.severity == "error"]
    assert_free(after, "run")


def without(template: LanceTable, lost: str) -> LanceTable:
    """A copy of the template whose branch `run` lost its file, its versions or both."""
    table = LanceTable.open(copied(template))
    file = Path(table.uri, OWN_FILE)
    content = file.read_bytes()
    if lost == "file":
        file.unlink()
    else:
        table.branches.delete("run")
    if lost == "versions":
        file.write_bytes(content)
    return table


def sealed(template: LanceTable, kind: Kind) -> LanceTable:
    """A copy of the template in which a deletion of `run` cannot be taken back, and its right to the file expired."""
    table = LanceTable.open(copied(template))
    with pytest.raises(PlugPulledError):
        delete(held_up(table, ("put_if_absent", "_refs/deleted/", died), kind=kind))
    let_time_pass(table)
    return table


def end_deletion(table: LanceTable) -> None:
    """Do what is left of a deletion, as its own process does that slept since then."""
    context = table._context  # noqa: SLF001 - the process has read the branch
    branch = context.refs.branches.find("run")
    assert branch is not None
    finish_deleting(branch, context.refs, context.versions)


def interleaved(
    table: LanceTable, parts: list[tuple[int, int]], *acts: Callable[[LanceTable], object], kind: Kind = LocalStore
) -> Interleaver:
    """Let actors, each with one call, make their requests in parts."""

    def calls(act: Callable[[LanceTable], object], script: Script) -> list[Act]:
        return [partial(act, LanceTable(context_on(ScriptedStore(kind(table.uri, durable=False), script))))]

    turns = Interleaver(in_parts(parts))
    turns.run([partial(calls, act) for act in acts])
    return turns


@pytest.mark.parametrize("lost", ["file", "versions", "both"])
def test_two_recoveries_at_once_make_one_branch(template: LanceTable, lost: str) -> None:
    """Wherever the two change places, each version is there once; one of them may report the other."""
    requests = len(interleaved(without(template, lost), [], recover).requests)
    places = [*product(range(1, requests), repeat=3)]
    for first, second, third in Random(soak.FIRST_SEED).sample(places, 300 if soak.DEEP else 15):
        table = without(template, lost)
        turns = interleaved(table, [(0, first), (1, second), (0, third), (1, REST)], recover, recover)
        errors = [one.error for one in turns.calls if one.error]
        assert not errors or [ConflictError] == [type(one) for one in errors], (first, second, third)
        assert_whole(table, NUMBERS, OLD_ROWS)


def test_a_branch_that_was_recovered_takes_commits_beside_a_second_recovery(template: LanceTable) -> None:
    """The second one found no version, and would keep commits off the branch while it puts each version again."""
    alone = interleaved(without(template, "versions"), [], recover).requests
    # The content of the file is the same before and after a recovery, so the swap itself does not tell.
    for before in range(alone.index(f"0 compare_and_swap {OWN_FILE}")):
        for after in (1, 4, 7):
            table = without(template, "versions")
            parts = [(0, before), (1, REST), (0, after), (2, REST)]
            turns = interleaved(table, parts, recover, recover, append)
            assert [None, None, None] == [one.error for one in turns.calls], (before, after)
            assert_whole(table, [*NUMBERS, 6], NEW_ROWS)


@pytest.mark.parametrize("lost", ["both", "versions"])
def test_commits_that_came_before_the_name_was_taken_come_back(template: LanceTable, lost: str) -> None:
    """Another process recovered the branch, committed, merged that and deleted it, after the copies were listed."""
    table = without(template, lost)
    content = Path(table.uri, OWN_FILE).read_bytes() if lost == "versions" else b""

    def overtake() -> None:
        recover(opened(table))
        append(opened(table))
        opened(table).merge("run")
        delete(opened(table))
        if content:
            Path(table.uri, OWN_FILE).write_bytes(content)

    verb = "compare_and_swap" if lost == "versions" else "put_if_absent"
    recover(held_up(table, (verb, OWN_FILE, overtake)))
    assert [*NUMBERS, 6] == opened(table).branches.version_numbers("run")
    table.append(entries("seven", 7), branch="run")
    table.merge("run")
    assert ("seven", 7) in sorted_rows(table.read())


def test_a_deletion_during_a_recovery_fences_off_what_came_before_the_name_was_taken(template: LanceTable) -> None:
    """The recovery records the number before it puts the version, so the next branch of the name begins above it."""
    table = without(template, "both")

    def overtake() -> None:
        for act in (recover, append, append_more, append_more, delete):
            act(opened(table))
        # Only what the recovery records itself counts here.
        for file in Path(table.uri, "_refs/deleted").iterdir():
            file.unlink()

    last = manifest(table, 8, "run").name
    with pytest.raises(RefMovedError):
        recover(held_up(table, ("put_if_absent", OWN_FILE, overtake), ("put_if_absent", last, lambda: delete(table))))
    assert_gone(table, 10)


def test_a_branch_does_not_come_back_below_a_later_one_of_its_name(template: LanceTable) -> None:
    """The later one was created and deleted after the copies were listed, and its numbers are above."""
    table = without(template, "both")

    def overtake() -> None:
        opened(table).branches.create("run", "main@2")
        append(opened(table))
        delete(opened(table))

    with pytest.raises(ConflictError, match="another branch had its name"):
        recover(held_up(table, ("put_if_absent", OWN_FILE, overtake)))
    assert {} == opened(table).branches.list()
    recover(opened(table))
    assert_whole(table, [7, 8], [("a", 1), ("new", 1)])


def commit_late(table: LanceTable) -> None:
    """Commit a row."""
    table.append(entries("late", 9), branch="run")


@pytest.mark.parametrize("kind", [LocalStore, ForgetfulStore])
@pytest.mark.parametrize("other", [True, False])
def test_a_late_commit_does_not_leave_a_branch_that_was_recovered(
    template: LanceTable, kind: Kind, *, other: bool
) -> None:
    """It was put after the deletion; another commit may have had its number before, and has it again.

    The row is on the branch only if its writer does not say that it failed, and takes no number of another commit.
    """
    before_six = [("six", 6)] if other else []
    found = set[tuple[bool, type | None]]()
    for place in range(100):
        table = LanceTable.open(copied(template))

        def delete_before(table: LanceTable = table) -> None:
            for key, value in before_six:
                opened(table, kind).append(entries(key, value), branch="run")
            delete(opened(table, kind))

        def others(table: LanceTable = table) -> None:
            recover(opened(table, kind))
            opened(table, kind).merge("run")
            append(opened(table, kind))
            opened(table, kind).merge("run")

        late = Late(table, delete_before, place, others, kind=kind).run(commit_late)
        after = opened(table, kind)
        if late.asked <= place:
            others()
        numbers, rows = after.branches.version_numbers("run"), sorted_rows(after.read("run"))
        assert [*range(3, numbers[-1] + 1)] == numbers, place
        taken = ("late", 9) in rows
        assert sorted([*NEW_ROWS, *before_six, *([("late", 9)] if taken else [])]) == rows == sorted_rows(after.read())
        assert not taken or not isinstance(late.error, CommitConflictError), place
        assert not (other and taken)
        assert isinstance(late.error, CommitConflictError | CommitStateUnknownError)
        assert [] == [str(one) for one in after.maintenance.verify().problems if one.severity == "error"]
        append_more(after)
        after.merge("run")
        assert ("more", 1) in sorted_rows(after.read())
        found.add((taken, type(late.error)))
        if late.asked <= place:
            break
    # Where manifests can be deleted conditionally, a writer takes its own away unless the branch is recovered first.
    assert (kind is LocalStore) == any(error is CommitConflictError for _, error in found)
    assert other or (True, CommitStateUnknownError) in found


def test_a_version_that_was_taken_away_and_not_deleted_yet_does_not_come_back(template: LanceTable) -> None:
    """Its writer died after it had said so; the number is given to the next commit."""
    table = LanceTable.open(copied(template))
    with pytest.raises(PlugPulledError):
        commit_late(
            held_up(
                table,
                ("put_if_absent", manifest(table, 6, "run").name, lambda: delete(opened(table))),
                ("compare_and_delete", VERSIONS, died),
            )
        )
    recover(table)
    append(table)
    assert_whole(table, [*NUMBERS, 6], NEW_ROWS)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("kind", [LocalStore, ForgetfulStore])
def test_a_late_creation_does_not_take_the_first_version_of_a_branch_that_was_recovered(
    template: LanceTable, kind: Kind, *, commit: bool
) -> None:
    """The branch was deleted before its first version was put, and recovered with it, or the earlier one was."""
    for place in range(100):
        table = without(template, "both")

        def others(table: LanceTable = table) -> None:
            recover(opened(table, kind))
            if commit:
                append(opened(table, kind))

        late = Late(table, partial(delete, opened(table, kind)), place, others, kind=kind)
        late.run(lambda table: table.branches.create("run", "main@2"))
        if late.asked <= place:
            break
        after = opened(table, kind)
        rows, numbers = sorted_rows(after.read("run")), after.branches.version_numbers("run")
        added = [("new", 1)] if commit else []
        assert (rows, numbers) in (
            (sorted([("a", 1), *added]), [7, 8] if commit else [7]),
            (sorted([*OLD_ROWS, *added]), [*NUMBERS, 6] if commit else NUMBERS),
        ), place
        assert [] == [str(one) for one in after.maintenance.verify().problems if one.severity == "error"]
        assert_free(after, "run")
    assert place > 2


def test_a_late_creation_does_not_finish_a_recovery(template: LanceTable) -> None:
    """Another process finished the creation, committed and deleted; the recovery has put only the first version yet."""
    table = without(template, "both")

    def overtake() -> None:
        opened(table).branches.create("run", "main@2")
        append(opened(table))
        delete(opened(table))
        with pytest.raises(PlugPulledError):
            recover(held_up(table, ("put_if_absent", manifest(table, 8, "run").name, died)))

    # Its own manifest is refused, since there is one of that number; it is about to say that the branch is ready.
    first = manifest(table, 7, "run").name
    slow = held_up(table, ("put_if_absent", first, lambda: None), ("compare_and_swap", OWN_FILE, overtake))
    with pytest.raises(ConflictError, match="is being recovered"):
        slow.branches.create("run", "main@2")
    recover(opened(table))
    assert_whole(table, [7, 8], [("a", 1), ("new", 1)])


def test_a_recovery_does_not_keep_commits_off_a_branch_that_another_one_completed(template: LanceTable) -> None:
    """Each recovery changes the file of the branch, so the swap of the slow one notices."""
    table = without(template, "versions")

    def overtake() -> None:
        recover(opened(table))
        append(opened(table))

    slow = held_up(table, ("compare_and_swap", OWN_FILE, overtake), ("compare_and_swap", OWN_FILE, died))
    recover(slow)
    assert_whole(table, [*NUMBERS, 6], NEW_ROWS)


def test_what_a_recovery_takes_back_from_a_second_one_is_put_back(template: LanceTable) -> None:
    """It read that the branch was deleted; before it deletes its versions, they belong to a branch again."""
    table = without(template, "both")

    def overtake() -> None:
        recover(opened(table))
        append(opened(table))

    stops = ("put_if_absent", VERSIONS, lambda: delete(opened(table))), ("delete_many", VERSIONS, overtake)
    with pytest.raises(RefMovedError):
        recover(held_up(table, *stops))
    assert_whole(table, [*NUMBERS, 6], NEW_ROWS)


def test_a_recovery_does_not_finish_a_second_one_that_began_after_a_deletion(template: LanceTable) -> None:
    """The deletion took the versions that the first one had put, and the second one died before it put any."""
    table = without(template, "both")

    def begin_again() -> None:
        delete(opened(table))
        with pytest.raises(PlugPulledError):
            recover(held_up(table, ("put_if_absent", "_versions/", died)))

    with pytest.raises(ConflictError, match="deleted or recovered it"):
        recover(held_up(table, ("put_if_absent", manifest(table, 4, "run").name, begin_again)))
    assert [4, 5] == opened(table).branches.version_numbers("run")
    with raises(RefNotFoundError, kind="branch", ref="run"):
        append(opened(table))
    recover(opened(table))
    assert_whole(table, NUMBERS, OLD_ROWS)


def test_a_slow_deletion_puts_back_what_it_took_after_its_right_expired(template: LanceTable) -> None:
    """Without conditional deletions: it may not delete the file any more, and finds that by its own mark."""
    kind, taken = ForgetfulStore, 0
    alone = interleaved(sealed(template, kind), [], end_deletion, kind=kind).requests
    # After the swap, which renews its right, no other process ends the deletion.
    for place in range(1, alone.index(f"0 compare_and_swap {OWN_FILE}") + 1):
        table = sealed(template, kind)
        turns = interleaved(table, [(0, place), (1, REST)], end_deletion, delete_and_recover, kind=kind)
        errors = {one.actor: one.error for one in turns.calls}
        assert errors[1] is None
        if any(request.startswith("0 delete_many") for request in turns.requests):
            assert "this storage cannot delete conditionally" in str(errors[0])
            taken += any(request.startswith("0 delete_many") for request in turns.requests[place:])
        assert_whole(table, [*NUMBERS, 6], NEW_ROWS)
    # It was overtaken after it looked at the branch, and before it deleted the versions.
    assert taken > 3


@pytest.mark.parametrize("kind", [LocalStore, ForgetfulStore])
@pytest.mark.parametrize("again, first", [("recovered", 8), ("created", 10)])
def test_a_slow_deletion_leaves_a_later_one_alone(template: LanceTable, again: str, first: int, kind: Kind) -> None:
    """It ends at each request of the later one, which is of a branch with the same id or with another one."""
    overtake = delete_and_recover if again == "recovered" else delete_and_create
    # The earlier deletion has deleted the versions, and is about to delete the file.
    emptied = interleaved(sealed(template, kind), [], end_deletion, kind=kind).requests.index("0 prune tree/run/data")
    later = interleaved(LanceTable.open(copied(template)), [], delete, kind=kind).requests
    for place in range(0, len(later) + 1, 1 if soak.DEEP else 3):
        table = sealed(template, kind)
        parts = [(0, emptied), (1, REST), (2, place), (0, REST)]
        turns = interleaved(table, parts, end_deletion, overtake, delete, kind=kind)
        assert [None, None] == [one.error for one in turns.calls if one.actor], place
        assert_gone(table, first)


def test_a_branch_takes_commits_while_a_slow_deletion_puts_its_versions_back(template: LanceTable) -> None:
    """The newest version comes first, so the commit does not take the number of one that is still missing."""
    table = LanceTable.open(copied(template))

    def overtake() -> None:
        delete(opened(table))
        recover(opened(table))

    second = ("put_if_absent", VERSIONS, lambda: None), ("put_if_absent", VERSIONS, lambda: append(opened(table)))
    delete(held_up(table, ("delete_many", VERSIONS, overtake), *second))
    assert_whole(table, [*NUMBERS, 6], NEW_ROWS)


def test_a_slow_deletion_does_not_put_versions_into_a_branch_that_was_deleted_again(template: LanceTable) -> None:
    """It finds the recovered branch; while it puts the versions, a later deletion ends, and it takes them back."""
    table = LanceTable.open(copied(template))
    slow = held_up(
        table,
        ("delete_many", VERSIONS, lambda: delete_and_recover(opened(table))),
        ("walk", "_expired/run", lambda: delete(opened(table))),
    )
    delete(slow)
    assert_gone(table, 8)


@pytest.mark.parametrize("commit", [True, False])
def test_what_a_slow_deletion_takes_back_from_a_second_recovery_is_put_back(
    template: LanceTable, *, commit: bool
) -> None:
    """A later deletion sealed the branch while versions were put back; then it ends, and the branch is recovered."""
    table = LanceTable.open(copied(template))

    def overtake() -> None:
        delete(opened(table))
        recover(opened(table))

    def overtake_again() -> None:
        recover(opened(table))
        if commit:
            append(opened(table))

    stops = (
        ("delete_many", VERSIONS, overtake),
        ("put_if_absent", VERSIONS, lambda: None),
        ("get", OWN_FILE, lambda: delete(opened(table))),
        ("delete_many", VERSIONS, overtake_again),
    )
    delete(held_up(table, *stops))
    assert_whole(table, [*NUMBERS, 6] if commit else NUMBERS, NEW_ROWS if commit else OLD_ROWS)


def test_a_deletion_that_gives_way_leaves_a_branch_to_a_recovery(template: LanceTable) -> None:
    """A slow deletion took the versions and died; a creation of the name does not give the branch another first one."""
    table = LanceTable.open(copied(template))

    def overtake() -> None:
        delete(opened(table))
        recover(opened(table))
        opened(table).tags.create("v", "run@3")

    with pytest.raises(PlugPulledError):
        delete(held_up(table, ("delete_many", VERSIONS, overtake), ("compare_and_delete", OWN_FILE, died)))
    context = context_on(LocalStore(table.uri, durable=False))
    branch = context.refs.branches.find("run")
    assert branch is not None
    # A publisher deletes the branch that it merged, of which it knows the version.
    with pytest.raises(ConflictError):
        delete_up_to(branch, 5, context.refs, context.versions)
    assert branch == context.refs.branches.find("run")
    opened(table).branches.create("run", "main@3", exist_ok=True)
    recover(opened(table))
    opened(table).tags.delete("v")
    assert_whole(table, NUMBERS, OLD_ROWS)


def test_a_slow_deletion_puts_no_versions_into_a_new_branch_of_the_name(template: LanceTable) -> None:
    """A branch has its name and is not being deleted, but it is another one."""
    table = LanceTable.open(copied(template))
    delete(held_up(table, ("delete_many", VERSIONS, lambda: delete_and_create(opened(table)))))
    assert_whole(table, [7, 8], [("a", 1), ("new", 1)])


def test_a_creation_in_place_of_a_deleted_branch_leaves_a_later_deletion_alone(template: LanceTable) -> None:
    """It continues the deletion of a process that died; the branch of the later one has a number of the new branch."""
    table = LanceTable.open(copied(template))
    with pytest.raises(PlugPulledError):
        delete(held_up(table, ("delete_many", VERSIONS, died)))

    def overtake() -> None:
        delete_and_recover(opened(table))
        append(opened(table))
        with pytest.raises(PlugPulledError):
            delete(held_up(table, ("put_if_absent", "_refs/deleted/", died)))

    with pytest.raises(ConflictError, match="is being deleted"):
        held_up(table, ("prune", "tree/run/data", overtake)).branches.create("run", "main@2")
    delete(opened(table))
    assert_gone(table, 9)
