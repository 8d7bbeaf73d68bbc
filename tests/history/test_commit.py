"""Failures around the one request that makes a version: concurrent commits, lost answers, killed processes."""

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.datafiles import FILE_VERSION, staged_fragments
from lance_dagster.edit.creation import create_empty
from lance_dagster.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptFileError,
    RefNotFoundError,
    StoreError,
)
from lance_dagster.format.transaction import Append, Delete, Restore, Transaction
from lance_dagster.history.versions import Versions
from lance_dagster.store import LocalStore, open_store
from tests.conftest import S3Storage
from tests.store.scripted import (
    PlugPulledError,
    Request,
    Script,
    ScriptedStore,
    answer_lost_at_write,
    intruder_at_commit,
    obedient,
    plug_pulled_before_write,
)
from tests.table_factory import SCHEMA, as_pylance, contents, context_of, context_on, entries, new_table, through


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with two rows, each in a version of its own."""
    return new_table(tmp_path, entries("a", 1), entries("b", 2))


def an_append_of(table: LanceTable, branch: str = "main") -> Transaction:
    """A transaction that adds a copy of the branch's first data file, which duplicates its row."""
    head = context_of(table).head(branch)
    fragment = head.manifest.fragments[0]
    data, copied = Path(table.uri, "data"), f"{uuid.uuid4().hex}.lance"
    shutil.copyfile(data / fragment.files[0].path, data / copied)
    added = replace(fragment, files=(replace(fragment.files[0], path=copied),))
    return Transaction(read_version=head.number, uuid=str(uuid.uuid4()), operation=Append(fragments=(added,)))


def numbers(table: LanceTable) -> list[int]:
    """The numbers of the versions of main."""
    return table.branches.version_numbers()


def lost(answer: Callable[[Request], Any], *, times: int = 1) -> Script:
    """Replace the server's answers to the first puts of a manifest."""
    left = times

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        nonlocal left
        if request.commits and left:
            left -= 1
            return answer(request)
        return request.send()

    return script


def sent_and_no_answer(request: Request) -> bool:
    """Make the write, and break the connection."""
    request.send()
    raise StoreError("connection reset")


def sent_and_denied(request: Request) -> bool:
    """Make the write, and report it as another writer's, as a client library may after a repeated request."""
    request.send()
    return False


def not_sent(_request: Request) -> bool:
    """Break the connection before the write."""
    raise StoreError("connection reset")


@pytest.mark.parametrize("answer", [sent_and_no_answer, sent_and_denied, not_sent])
def test_a_lost_answer_commits_exactly_once(table: LanceTable, answer: Callable[[Request], bool]) -> None:
    """After a lost answer the stored object decides, and the rows are in the table once."""
    version = through(table, lost(answer)).append(entries("c", 3))
    assert "main@4" == str(version)
    assert [("a", 1), ("b", 2), ("c", 3)] == contents(table)
    assert [1, 2, 3, 4] == numbers(table)


def test_a_commit_that_cannot_be_decided_says_so_and_can_be_resumed(table: LanceTable) -> None:
    """The error has the transaction, which can be committed again any number of times, and lands once."""
    with pytest.raises(CommitStateUnknownError) as caught:
        through(table, lost(not_sent, times=99)).append(entries("c", 3))
    assert [1, 2, 3] == numbers(table)
    transaction = caught.value.transaction
    assert isinstance(transaction, Transaction)
    assert transaction.uuid in str(caught.value)
    assert "main@4" == str(table.commit(transaction))
    assert "main@4" == str(table.commit(transaction))
    assert [("a", 1), ("b", 2), ("c", 3)] == contents(table)


def test_a_commit_that_landed_unseen_is_found_again(table: LanceTable) -> None:
    """A commit that landed without an answer is found when it is repeated after others, and adds nothing."""
    landed = ""

    def blind(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        nonlocal landed
        if request.commits:
            request.send()
            landed = request.key
        if request.key == landed:
            raise StoreError("connection reset")
        return request.send()

    with pytest.raises(CommitStateUnknownError) as caught:
        through(table, blind).append(entries("c", 3))
    assert isinstance(caught.value.transaction, Transaction)
    table.append(entries("d", 4))
    assert "main@4" == str(table.commit(caught.value.transaction))
    assert [("a", 1), ("b", 2), ("c", 3), ("d", 4)] == contents(table)


def test_a_transaction_committed_by_two_at_once_lands_once(table: LanceTable) -> None:
    """Two processes resume the same commit of unknown state, and both get its version."""
    transaction = an_append_of(table)
    table.append(entries("o", 1))
    version = through(table, intruder_at_commit(lambda: table.commit(transaction))).commit(transaction)
    assert ("main@5", [1, 2, 3, 4, 5]) == (str(version), table.branches.version_numbers())


def test_what_was_committed_is_held_as_it_is_read(table: LanceTable) -> None:
    """Otherwise a process would encode all fragments that it made in each further commit."""
    table.branches.create("run")
    table.append(entries("c", 3), branch="run")
    table.update({"value": "9"}, where="key = 'b'", branch="run")
    for branch in ("main", "run"):
        held, read = (one._context.head(branch).manifest for one in (table, LanceTable.open(table.uri)))  # noqa: SLF001
        assert held.fragments.items == read.fragments.items
        assert {bytes} == {type(item) for item in held.fragments.items}
        assert (held.fragments.ids, held.rows) == (read.fragments.ids, read.rows)


def test_a_hint_that_cannot_be_written_does_not_fail_the_commit(table: LanceTable) -> None:
    """A version hint that cannot be written does not fail the commit, which a caller would otherwise repeat."""

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if request.key.endswith("hint.json"):
            raise StoreError("disk full")
        return request.send()

    assert "main@4" == str(through(table, script).append(entries("c", 3)))


def test_the_hint_follows_every_commit(table: LanceTable) -> None:
    """A pylance handle that is behind finds newer versions by the hint."""
    table.branches.create("run")
    table.append(entries("c", 3), branch="run")
    hint = "_versions/latest_version_hint.json"
    assert {"version": 3} == json.loads((Path(table.uri) / hint).read_bytes())
    assert {"version": 4} == json.loads((Path(table.uri) / "tree/run" / hint).read_bytes())


def test_the_transaction_is_in_the_manifest_and_in_no_other_file(table: LanceTable) -> None:
    """Other writers, pylance among them, read it there when they rebase."""
    stale = as_pylance(table)
    seen: list[str] = []

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if request.writes:
            seen.append(f"{request.verb} {request.key.split('/')[0]}")
        return request.send()

    through(table, script).append(entries("c", 3))
    assert ["put_if_absent _versions", "put _versions"] == seen
    assert not (Path(table.uri) / "_transactions").exists()
    stale.delete("key = 'a'")
    assert [("b", 2), ("c", 3)] == contents(table)
    assert ["Delete", "Append", "Append", "Append", "Overwrite"] == [
        type(each.operation).__name__ for each in as_pylance(table).get_transactions() if each is not None
    ]


def test_an_append_goes_on_top_of_whoever_was_first(table: LanceTable) -> None:
    """Concurrent appends do not conflict, with any writer and after any number of lost races."""

    def both() -> None:
        if table.head().number == 3:
            table.append(entries("o", 1))
        else:
            as_pylance(table).insert(entries("p", 1))

    version = through(table, intruder_at_commit(both, times=2)).append(entries("c", 3))
    assert "main@6" == str(version)
    assert [("a", 1), ("b", 2), ("c", 3), ("o", 1), ("p", 1)] == contents(table)


def test_a_replace_looks_again_when_its_fragment_changed(table: LanceTable) -> None:
    """The rows to delete are looked up in the other writer's version."""
    other = intruder_at_commit(lambda: as_pylance(table).update({"value": "7"}, where="key = 'b'"))
    through(table, other).replace_where("key = 'b'", entries("b", 3))
    assert [("a", 1), ("b", 3)] == contents(table)


def test_a_replace_of_other_fragments_goes_on_top(table: LanceTable) -> None:
    """A replace is committed on top of a replace of other fragments, and both changes are kept."""
    other = intruder_at_commit(lambda: table.replace_where("key = 'a'", entries("a", 9)))
    through(table, other).replace_where("key = 'b'", entries("b", 3))
    assert [("a", 9), ("b", 3)] == contents(table)


@pytest.mark.parametrize(
    "other, partitions, expected",
    [
        (lambda table: table.replace_where("key = 'n'", entries("n", 1)), (), [2]),
        (lambda table: table.replace_where("key = 'n'", entries("n", 1), partitions=["n"]), ("n",), [2]),
        (lambda table: table.replace_where("key >= 'n'", entries("n", 1), partitions=["n", "o"]), ("n",), [2]),
        (lambda table: table.upsert(entries("n", 5), on=["value"], partitions=["n"]), ("n",), [2]),
        (lambda table: table.append(entries("n", 1), partitions=["n"]), ("n",), [1, 2]),
    ],
    ids=["no partitions", "same partition", "more partitions", "upsert", "append"],
)
def test_a_first_replacement_sees_that_of_another_writer(
    table: LanceTable, other: Callable[[LanceTable], object], partitions: tuple[str, ...], expected: list[int]
) -> None:
    """Neither finds a row to remove; the second one removes what the first one added. An append may come last."""
    stranger = through(table, intruder_at_commit(lambda: other(table)))
    stranger.replace_where("key = 'n'", entries("n", 2), partitions=partitions)
    assert expected == [value for key, value in contents(table) if key == "n"]


def test_first_replacements_of_two_partitions_need_no_second_look(table: LanceTable) -> None:
    """The names of the partitions tell that neither removed rows of the other, so none is done again."""
    other = intruder_at_commit(lambda: table.replace_where("key = 'm'", entries("m", 1), partitions=["m"]))
    through(table, other).replace_where("key = 'n'", entries("n", 2), partitions=["n"])
    committed = context_on(LocalStore(table.uri)).head("main").transaction
    assert committed is not None
    assert 3 == committed.read_version
    assert [("a", 1), ("b", 2), ("m", 1), ("n", 2)] == contents(table)


def test_a_compaction_in_between_is_looked_up_again(table: LanceTable) -> None:
    """The rows to delete have moved to another fragment."""
    other = intruder_at_commit(as_pylance(table).optimize.compact_files)
    through(table, other).replace_where("key = 'b'", entries("b", 3))
    assert [("a", 1), ("b", 3)] == contents(table)


@pytest.mark.parametrize("method", ["append", "overwrite", "replace_where"])
def test_a_replaced_table_in_between_needs_a_person(table: LanceTable, method: str) -> None:
    """A change to rows that are gone has no clear meaning; the error names the version."""
    arguments = ("key IN ('a', 'c')", entries("c", 3)) if method == "replace_where" else (entries("c", 3),)
    stranger = through(table, intruder_at_commit(lambda: table.overwrite(entries("o", 1))))
    with pytest.raises(CommitConflictError) as caught:
        getattr(stranger, method)(*arguments)
    assert ("main@4", method == "overwrite") == (caught.value.committed, caught.value.retryable)
    assert [("o", 1)] == contents(table)


def test_a_version_cleaned_up_meanwhile_is_a_conflict_to_retry(table: LanceTable) -> None:
    """The operation of that version is unknown, so the caller has to read again."""
    transaction = an_append_of(table)
    table.append(entries("c", 3))
    table.append(entries("d", 4))
    as_pylance(table).cleanup_old_versions(retain_versions=1)
    with pytest.raises(CommitConflictError) as caught:
        LanceTable.open(table.uri).commit(transaction)
    assert caught.value.retryable


@pytest.mark.parametrize("writes", range(2))
def test_a_process_that_dies_leaves_a_whole_table(table: LanceTable, writes: int) -> None:
    """A process that dies before its version exists leaves the table unchanged for the next writer."""
    with pytest.raises(PlugPulledError):
        through(table, plug_pulled_before_write(writes)).append(entries("c", 3))
    landed = [("c", 3)] if writes else []
    assert sorted([("a", 1), ("b", 2), *landed]) == contents(table)
    table.append(entries("d", 4))
    assert sorted([("a", 1), ("b", 2), ("d", 4), *landed]) == contents(table)
    as_pylance(table).validate()


@pytest.mark.parametrize("writes", range(2))
def test_an_answer_lost_at_any_write_leaves_the_rows_once(table: LanceTable, writes: int) -> None:
    """A transaction repeated after any failure is in the table once."""
    transaction = an_append_of(table)
    try:
        through(table, answer_lost_at_write(writes)).commit(transaction)
    except StoreError:
        table.commit(transaction)
    assert [("a", 1), ("a", 1), ("b", 2)] == contents(table)


def test_an_older_version_can_be_restored(table: LanceTable) -> None:
    """A restore is an ordinary commit; ids assigned since are not assigned again."""
    restore = Transaction(read_version=3, uuid=str(uuid.uuid4()), operation=Restore(version=2))
    assert "main@4" == str(table.commit(restore))
    assert [("a", 1)] == contents(table)
    table.append(entries("c", 3))
    assert [0, 2] == [fragment.fragment_id for fragment in as_pylance(table).get_fragments()]
    as_pylance(table).validate()
    ids = as_pylance(table).to_table(with_row_id=True)["_rowid"].to_pylist()
    assert [0, 2] == ids


def test_a_delete_is_a_commit_like_others(table: LanceTable) -> None:
    """Whole fragments are deleted by id."""
    delete = Transaction(read_version=3, uuid=str(uuid.uuid4()), operation=Delete(deleted_fragment_ids=(0,)))
    table.commit(delete)
    assert [("b", 2)] == contents(table)
    as_pylance(table).validate()


@pytest.mark.parametrize("answer", [sent_and_no_answer, sent_and_denied])
def test_the_first_version_is_made_once(tmp_path: Path, answer: Callable[[Request], bool]) -> None:
    """The creator gets the version although the answer was lost."""
    store = ScriptedStore(LocalStore(str(tmp_path / "table")), lost(answer))
    assert create_empty(context_on(store), SCHEMA) is not None
    assert create_empty(context_on(store), SCHEMA) is None
    assert [1] == LanceTable.open(store.uri).branches.version_numbers()


@pytest.mark.parametrize("hidden", [1, 2])
def test_a_listing_that_lags_is_no_deleted_branch(table: LanceTable, hidden: int) -> None:
    """Versions that are known to exist, and those after them, are read by name."""
    table.branches.create("run")
    for branch in ("main", "run"):
        before = table.head(branch)
        for number in range(2):
            table.append(entries("new", number), branch=branch)
        folder = "_versions" if branch == "main" else "tree/run/_versions"

        def lagging(request: Request, folder: str = folder, oldest: int = before.number) -> object:
            found = request.send()
            if request.verb == "list" and request.key == folder:
                shown = [name for name in found if name.endswith(".manifest")]
                return [name for name in shown if 2**64 - 1 - int(name[:20]) <= oldest + 2 - hidden]
            return found

        head, transaction = table.head(branch), an_append_of(table, branch)
        late = LanceTable(context_on(ScriptedStore(LocalStore(table.uri), lagging)))
        assert head.number + 1 == late.commit(transaction, branch=branch).number
        # A repeated commit finds the version, though the listing does not show it.
        assert head.number + 1 == late.commit(transaction, branch=branch).number
        assert head.number + 2 == late.append(entries("more", 1), branch=branch).number


def test_what_landed_meanwhile_is_read_together(s3_storage: S3Storage) -> None:
    """On an object store, each unknown version takes one request; a missing one is None."""
    options = dict(s3_storage.storage_options)
    table = LanceTable.create(f"{s3_storage.uri}/table", SCHEMA, storage_options=options)
    stale = LanceTable.open(table.uri, options)
    staged, read = stale.stage(entries("b", 1)), stale.head().number
    for number in range(3):
        table.append(entries("a", number))
    fields = context_of(table).head("main").manifest.fields
    change = Append(fragments=staged_fragments(staged, fields, FILE_VERSION))
    made = stale.commit(Transaction(read_version=read, uuid=str(uuid.uuid4()), operation=change))
    assert ("main@5", 4) == (str(made), made.rows)
    found = Versions(open_store(table.uri, options), options).find_many("main", [2, 9, 4, 3])
    assert [2, None, 4, 3] == [None if state is None else state.number for state in found]


def test_transaction_of_a_version_is_read_alone(tmp_path: Path) -> None:
    """It is the one that the whole version has; None for a version that is missing or stored as another one."""
    table = LanceTable.create(tmp_path / "table", SCHEMA)
    table.append(entries("a", 1))
    table.delete("key = 'a'")
    table.branches.create("b")
    table.append(entries("b", 1), branch="b")
    versions = Versions(open_store(table.uri))
    for branch, number in (("main", 1), ("main", 2), ("main", 3), ("b", 3), ("b", 4)):
        assert versions.transaction(branch, number) == versions.load(branch, number).transaction is not None
    assert versions.transaction("main", 4) is None
    # A manifest that was copied to another number is left to `load`, which refuses it.
    copied = versions.store.get(versions.manifest_path("main", 3))
    assert copied is not None
    versions.store.put(versions.manifest_path("main", 4), copied)
    assert versions.transaction("main", 4) is None
    with pytest.raises(CorruptFileError):
        versions.load("main", 4)


def on_s3(storage: S3Storage, script: Script) -> LanceTable:
    """A new table of two versions on an object store, later used through a script."""
    options = dict(storage.storage_options)
    table = LanceTable.create(f"{storage.uri}/table", SCHEMA, storage_options=options)
    table.append(entries("a", 1))
    store = ScriptedStore(open_store(table.uri, options), script)
    return LanceTable(replace(context_on(store), storage_options=options))


def test_an_append_makes_independent_requests_at_the_same_time(s3_storage: S3Storage) -> None:
    """The append makes five requests, three of them concurrently; docs/reliability.md lists them."""
    made: list[str] = []
    asked, before_put = Lock(), Barrier(3)
    followed = False

    def script(request: Request) -> object:
        with asked:
            made.append(f"{request.verb} {request.key.partition('/')[0]}")
        if followed and request.verb != "sync_folder" and not request.commits:
            # The barrier breaks after the time-out, which is an error, unless the other requests arrive.
            before_put.wait(30)
        return request.send()

    table = on_s3(s3_storage, script)
    table.append(entries("b", 1))
    made.clear()
    followed = True
    assert "main@4" == str(table.append(entries("b", 2)))
    # pylance puts the data file before these requests, without the script.
    assert ["get _refs", "get _versions", "list _versions"] == sorted(made[:3])
    assert ["put_if_absent _versions", "sync_folder _versions"] == made[3:]


def test_a_commit_on_a_version_of_the_same_object_looks_at_the_branch_once(s3_storage: S3Storage) -> None:
    """It lists nothing, and reads the branch file only after the put."""
    made: list[str] = []

    def script(request: Request) -> object:
        made.append(f"{request.verb} {'/'.join(request.key.split('/')[:2])}")
        return request.send()

    table = on_s3(s3_storage, script)
    table.branches.create("run/1")
    own = ["get _refs/protection.json", "put_if_absent tree/run", "sync_folder tree/run", "get _refs/branches"]
    for number in range(5):
        made.clear()
        table.append(entries("b", number), branch="run/1")
        if own == made:
            return
    # A version counts as recent for five seconds, and a busy machine may need as long for a commit, but not each time.
    assert own == made


@pytest.mark.parametrize("rival", ["commit", "delete", "make again", "rename"])
def test_a_commit_on_a_version_of_the_same_object_finds_what_another_did(s3_storage: S3Storage, rival: str) -> None:
    """Another process changes the branch between the creation of the branch and the commit to it."""
    table = on_s3(s3_storage, obedient)
    other = LanceTable.open(table.uri, dict(s3_storage.storage_options))
    table.branches.create("run/1")
    match rival:
        case "commit":
            other.append(entries("rival", 1), branch="run/1")
        case "rename":
            other.branches.rename("run/1", "run/2")
        case _:
            other.branches.delete("run/1")
    if rival == "make again":
        other.branches.create("run/1")
    if rival in ("delete", "rename"):
        with pytest.raises(RefNotFoundError):
            table.append(entries("b", 1), branch="run/1")
        assert [] == table._context.store.list("tree/run/1/_versions")  # noqa: SLF001 - nothing is left
        assert rival == "delete" or [("a", 1)] == contents(other, "run/2")
        return
    table.append(entries("b", 1), branch="run/1")
    rows = [("a", 1), ("b", 1), *([("rival", 1)] if rival == "commit" else [])]
    assert rows == contents(LanceTable.open(table.uri, dict(s3_storage.storage_options)), "run/1")


def test_a_lost_race_reads_the_winner_once(s3_storage: S3Storage) -> None:
    """Only the version of the winner and the listing have to be read."""
    made: list[str] = []
    rivals: list[LanceTable] = []

    def script(request: Request) -> object:
        if request.commits and rivals:
            rivals.pop().append(entries("rival", 1))
            made.clear()
        made.append(f"{request.verb} {request.key.partition('/')[0]}")
        return request.send()

    table = on_s3(s3_storage, script)
    table.append(entries("b", 1))
    rivals.append(LanceTable.open(table.uri, s3_storage.storage_options))
    version = table.append(entries("b", 2))
    assert ("main@5", 4) == (str(version), version.rows)
    followed = [each for each in made if not each.startswith("sync_folder")]
    # The winner and later versions are requested at the same time, and perhaps the next number too.
    assert ["get _versions", "get _versions", "list _versions"] == sorted(followed[1:4])
    assert ["put_if_absent _versions"] * 2 == [followed[0], *followed[4:]]


@pytest.mark.parametrize("deletes", [False, True])
def test_an_append_reads_the_newest_of_many_appends(s3_storage: S3Storage, *, deletes: bool) -> None:
    """The newest version shows that the others only appended; after a deletion, each version is read."""
    read: set[str] = set()
    rivals: list[LanceTable] = []

    def script(request: Request) -> object:
        if request.commits and rivals:
            rival = rivals.pop()
            for number in range(6):
                rival.append(entries("rival", number))
            if deletes:
                assert 1 == rival.delete("key = 'rival' and value = 3").rows_deleted
            read.clear()
        if request.verb == "get" and request.key.startswith("_versions"):
            read.add(request.key)
        return request.send()

    table = on_s3(s3_storage, script)
    table.append(entries("b", 1))
    rivals.append(LanceTable.open(table.uri, s3_storage.storage_options))
    version = table.append(entries("b", 2))
    assert (f"main@{10 + deletes}", 9 - deletes) == (str(version), version.rows)
    # The winner, the number after it and the newest one; and a deletion hides what else may have landed.
    assert (7 if deletes else 3) == len(read)
    assert version.rows == lance.dataset(table.uri, storage_options=dict(s3_storage.storage_options)).count_rows()
