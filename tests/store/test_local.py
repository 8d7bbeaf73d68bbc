"""Tables on local disk."""

import errno
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    NotDurableError,
    StoreError,
)
from lance_dagster.format.transaction import Append, Transaction
from lance_dagster.store import LocalStore, open_store
from tests.store.conformance import StoreConformance
from tests.table_factory import context_on, entries, new_table


class TestLocalStore(StoreConformance):
    """A folder does what a store has to do."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        """A folder that does not exist yet."""
        return LocalStore(str(tmp_path / "table"))


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    """Neither a successful nor a refused put leaves a temporary file behind."""
    store = LocalStore(str(tmp_path))
    store.put_if_absent("a/b", b"1")
    store.put_if_absent("a/b", b"2")
    store.put("a/b", b"3")
    assert [tmp_path / "a/b"] == list((tmp_path / "a").iterdir())


def test_temporary_files_of_others_are_not_listed(tmp_path: Path) -> None:
    """The temporary file of a killed writer is not listed as an object."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.tmp123").write_bytes(b"half")
    assert [] == LocalStore(str(tmp_path)).list("a")


def test_empty_folders_go_with_their_parents(tmp_path: Path) -> None:
    """The last branch of a prefix leaves no empty folders, which are objects nowhere else; files stay."""
    store = LocalStore(str(tmp_path))
    store.put("tree/run/1/a", b"1")
    store.put("data/x", b"1")
    store.prune("tree/run/1")
    assert b"1" == store.get("tree/run/1/a")
    store.delete("tree/run/1/a")
    store.prune("tree/run/1")
    assert [tmp_path / "data"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "copy_from"])
def test_a_write_that_fails_names_the_file(tmp_path: Path, verb: str) -> None:
    """A file where a folder is needed fails every write with the path in the message."""
    (tmp_path / "a").write_bytes(b"1")
    store = LocalStore(str(tmp_path))
    arguments = (str(tmp_path / "a"), "a/b") if verb == "copy_from" else ("a/b", b"2")
    with pytest.raises(StoreError, match=f"{tmp_path}/a/b"):
        getattr(store, verb)(*arguments)


def test_an_object_is_no_folder_and_a_folder_no_object(tmp_path: Path) -> None:
    """A folder cannot be read as an object, nor an object listed as a folder."""
    store = LocalStore(str(tmp_path))
    store.put("a/b", b"1")
    assert store.get("a") is None
    assert store.get("a/b/c") is None
    assert [] == store.list("a/b")


def test_storage_options_are_for_remote_tables(tmp_path: Path) -> None:
    """Credentials for a local path are a mistake in the path or in the options."""
    with pytest.raises(InvalidInputError):
        open_store(tmp_path, {"aws_region": "eu-central-1"})


def syncs(work: Callable[[], object]) -> int:
    """How often something asks the kernel to put a file on the disk."""
    return calls(os.fsync, work)


def calls(function: object, work: Callable[[], object]) -> int:
    """How often something calls a function of the operating system."""
    count = 0

    def watch(frame: FrameType, event: str, called: object) -> None:  # noqa: ARG001 - how Python calls it
        nonlocal count
        count += event == "c_call" and called is function

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_durability_can_be_switched_off(tmp_path: Path) -> None:
    """A commit syncs its files and folders unless the table is opened with the durability of pylance."""
    rows = pa.table({"id": [1, 2]})
    durable = LanceTable.create(tmp_path / "durable", rows.schema)
    quick = LanceTable.create(tmp_path / "quick", rows.schema, storage_options={"durability": "process"})
    assert syncs(lambda: durable.append(rows)) > 2
    assert 0 == syncs(lambda: quick.append(rows))
    assert 0 == syncs(lambda: quick.tags.create("t", "main"))
    assert rows == quick.read() == LanceTable.open(quick.uri).read()


def test_a_durability_that_is_none_is_refused(tmp_path: Path) -> None:
    """The error for an unknown durability names the known ones."""
    with pytest.raises(InvalidInputError, match=r"'disk'.*'power'.*'process'"):
        open_store(tmp_path, {"durability": "disk"})
    with pytest.raises(InvalidInputError, match="'power'"):
        open_store("s3://bucket/table", {"durability": "disk"})
    open_store("s3://bucket/table", {"durability": "process", "aws_region": "eu-central-1"})


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_that_was_moved_is_not_deleted_again(tmp_path: Path, *, durable: bool) -> None:
    """A temporary file is deleted where its content was linked, and where a write failed; not where it was moved."""
    store = LocalStore(str(tmp_path), durable=durable)
    assert 0 == calls(os.unlink, lambda: store.put("a/b", b"1"))
    assert 1 == calls(os.unlink, lambda: store.put_if_absent("a/c", b"1"))
    assert 1 == calls(os.unlink, lambda: store.put_if_absent("a/c", b"2"))
    (tmp_path / "a/folder").mkdir()
    with pytest.raises(StoreError):
        store.put("a/folder", b"1")
    assert ["b", "c", "folder"] == sorted(path.name for path in (tmp_path / "a").iterdir())


def test_a_hint_is_written_in_place(tmp_path: Path) -> None:
    """A replaced file is a deleted one, after which ext4 looks longer for the inode of each new file."""
    store, hint = LocalStore(str(tmp_path)), tmp_path / "a/hint"
    store.put_hint("a/hint", b"98")
    first = hint.stat().st_ino
    store.put_hint("a/hint", b"99")
    assert (first, b"99") == (hint.stat().st_ino, hint.read_bytes())
    # Of another size: a reader that asked for the size before would read a part, or what follows.
    with hint.open("rb") as reader:
        store.put_hint("a/hint", b"100")
        assert (b"99", b"100") == (reader.read(), hint.read_bytes())


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard link", "symbolic link"])
def test_a_hint_is_not_written_into_another_table(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    """A copy of a table that was made of links keeps what it has."""
    store, copy = LocalStore(str(tmp_path / "table")), tmp_path / "copy"
    copy.write_bytes(b"98")
    (tmp_path / "table").mkdir()
    link(copy, tmp_path / "table/hint")
    store.put_hint("hint", b"99")
    assert (b"98", b"99") == (copy.read_bytes(), store.get("hint"))


class Recording(LocalStore):
    """A store that notes what it syncs, and whose disk fails at one folder."""

    failing = "nothing"
    ended = True
    synced: list[str]

    def _sync(self, path: str) -> None:
        self.__dict__.setdefault("synced", []).append(path)
        if path.endswith(self.failing):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super()._sync(path)


def test_new_folders_are_synced_from_the_root_downwards(tmp_path: Path) -> None:
    """An entry of a folder is lost with the folder's own entry; what another process made is synced once, too."""
    root = tmp_path / "lake" / "t"
    store = Recording(str(root))
    store.put_if_absent("_versions/1", b"1")
    above = [*map(str, reversed(root.parents))]
    new = [str(tmp_path), str(tmp_path / "lake"), str(root)]
    assert [*new, *above, str(root), str(root / "_versions")] == store.synced
    store.synced.clear()
    store.put_if_absent("_versions/2", b"2")
    assert [str(root / "_versions")] == store.synced
    other = Recording(str(root))
    other.put_if_absent("_versions/3", b"3")
    assert [*above, str(root), str(root / "_versions")] == other.synced
    (root / "data").mkdir()
    other.synced.clear()
    other.sync_folder("data")
    assert [str(root), str(root / "data")] == other.synced
    quick = Recording(str(root / "other"), durable=False)
    quick.put_if_absent("_versions/1", b"1")
    assert "synced" not in quick.__dict__


def test_a_table_several_new_folders_deep_is_synced_from_the_top(tmp_path: Path) -> None:
    """Its first write is of a file that need not be synced, which makes all the folders that lead to it."""
    root = tmp_path / "lake" / "team" / "project" / "t"
    store = Recording(str(root))
    store.put("_transactions/1", b"1", durable=False)
    assert "synced" not in store.__dict__
    store.put_if_absent("_versions/1", b"1")
    assert [*map(str, reversed(root.parents)), str(root)] == store.synced[-len(root.parents) - 2 : -1]


def test_a_folder_that_was_removed_and_made_again_is_synced_again(tmp_path: Path) -> None:
    """A reset empties the folder of a branch, and what is not synced makes it again before the next version."""
    store = Recording(str(tmp_path))
    store.put_if_absent("tree/run/_versions/1", b"1")
    store.delete("tree/run/_versions/1")
    store.prune("tree/run")
    store.put("tree/run/_transactions/1", b"1", durable=False)
    store.synced.clear()
    store.put_if_absent("tree/run/_versions/2", b"2")
    assert str(tmp_path / "tree") in store.synced


def test_a_folder_that_is_removed_while_it_is_made_is_made_again(tmp_path: Path) -> None:
    """A collection prunes empty folders, and may find those of a branch before its first file is there."""

    class Pruned(Recording):
        def _sync(self, path: str) -> None:
            if path.endswith("tree") and "synced" not in self.__dict__:
                self.synced = []
                self.prune("tree")
            super()._sync(path)

    (tmp_path / "tree").mkdir()
    store = Pruned(str(tmp_path))
    assert store.put_if_absent("tree/run/1/_transactions/1", b"1")
    made = [tmp_path, tmp_path / "tree", tmp_path / "tree/run", tmp_path / "tree/run/1"]
    synced = list(map(str, made))
    assert synced == [path for path in store.synced if path in synced][-4:]
    assert b"1" == store.get("tree/run/1/_transactions/1")


@pytest.mark.parametrize("seen", ["tree", "run", "_versions"])
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_folder_that_is_removed_while_it_is_synced_has_nothing_to_lose(
    tmp_path: Path, seen: str, *, comes_back: bool
) -> None:
    """Two processes that end one branch empty its folder and sync it, and one of them removes it."""

    class Ended(Recording):
        def _sync(self, path: str) -> None:
            if path.endswith(seen) and (tmp_path / "tree").exists() and not self.ended:
                self.ended = True
                self.prune("tree")
                if comes_back:
                    self.put("tree/run/_versions/2", b"2", durable=False)
            super()._sync(path)

    store = Ended(str(tmp_path))
    (tmp_path / "tree/run/_versions").mkdir(parents=True)
    store.ended = False
    store.sync_folder("tree/run/_versions")
    assert comes_back == (tmp_path / "tree").exists()
    if comes_back:
        assert str(tmp_path / "tree/run/_versions") == store.synced[-1]


def test_a_commit_whose_last_sync_fails_is_not_acknowledged(tmp_path: Path) -> None:
    """The version can be read, and a power cut may lose it: committed again, it is found and synced."""
    table = new_table(tmp_path, entries("a", 1))
    head = table.head()
    transaction = Transaction(read_version=head.number, uuid=str(uuid.uuid4()), operation=Append(fragments=()))
    store = Recording(table.uri)
    store.failing = "/_versions"
    failing = LanceTable(context_on(store))
    with pytest.raises(CommitStateUnknownError):
        failing.commit(transaction)
    with pytest.raises(StoreError, match="Input/output error"):
        failing.commit(transaction)
    store.failing = "nothing"
    assert head.number + 1 == failing.commit(transaction).number
    store.failing = "/_refs/branches"
    with pytest.raises(NotDurableError):
        failing.branches.create("run")
    store.failing = "nothing"
    assert "run" == failing.branches.create("run", exist_ok=True).name


def test_an_upload_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """An upload that fails keeps the older object, and leaves no partial copy."""
    store = LocalStore(str(tmp_path / "store"))
    store.put("data/a", b"older")
    with pytest.raises(StoreError, match=r"cannot copy .*gone to"):
        store.upload(tmp_path / "gone", "data/a")
    assert (b"older", ["data/a"]) == (store.get("data/a"), [entry.key for entry in store.walk("")])


def test_a_file_that_goes_while_a_folder_is_listed_is_left_out(tmp_path: Path) -> None:
    """A collection may delete files while another process asks for the sizes of a folder."""

    class Slow(LocalStore):
        def list(self, folder: str, limit: int | None = None) -> list[str]:
            names = super().list(folder, limit)
            self.delete("data/gone")
            return names

    store = Slow(str(tmp_path))
    for name in ("gone", "kept"):
        store.put(f"data/{name}", b"12")
    assert {"kept": 2} == store.sizes("data")


def test_the_next_writer_does_not_wait_for_the_last_sync(tmp_path: Path) -> None:
    """A commit is acknowledged when the name of its manifest is synced; its turn is over before."""
    table = new_table(tmp_path, entries("a", 1))
    found: list[tuple[bool, bool]] = []

    class Looking(LocalStore):
        def _sync(self, path: str) -> None:
            if path.endswith("_versions"):
                with LocalStore(table.uri).turn("main") as turn:
                    found.append((turn.waited, len(self.list("_versions")) > 3))
            super()._sync(path)

    # Staged by another handle, since a store of a test is not asked for the options of a table.
    LanceTable(context_on(Looking(table.uri))).append(table.stage(entries("a", 2)))
    assert [(False, True)] == found


@pytest.mark.parametrize("job", ["create", "delete", "rename", "rename to it", "reset", "append"])
@pytest.mark.parametrize("outside", [True, False])
def test_no_change_is_made_behind_a_link(tmp_path: Path, job: str, *, outside: bool) -> None:
    """Nothing is changed behind a symbolic link in place of a branch's folder, and the error names the link."""
    table, other = (new_table(tmp_path, entries("a", 1)) for _ in range(2))
    table.branches.create("kept")
    table.branches.create("linked")
    tree = Path(table.uri, "tree")
    target = Path(other.uri) if outside else tree / "kept"
    shutil.rmtree(tree / "linked")
    (tree / "linked").symlink_to(target)
    if job in ("create", "rename to it"):
        Path(table.uri, "_refs/branches/linked.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    jobs: dict[str, Callable[[], object]] = {
        "create": lambda: table.branches.create("linked"),
        "delete": lambda: table.branches.delete("linked"),
        "rename": lambda: table.branches.rename("linked", "free"),
        "rename to it": lambda: table.branches.rename("kept", "linked"),
        "reset": lambda: table.branches.reset("linked", "main@1"),
        "append": lambda: table.delete("value = 1", branch="linked"),
    }
    with pytest.raises(StoreError, match=f"tree/linked is a symbolic link to {target}"):
        jobs[job]()
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert before == after


def test_every_verb_names_what_the_system_refused(tmp_path: Path) -> None:
    """A path with a NUL, a name that is too long, a folder where a file should be: an error of this package."""
    store = LocalStore(str(tmp_path))
    store.put("folder/x", b"1")
    for bad in ("a\0b", "x" * 300):
        for verb in (
            lambda bad=bad: store.get(bad),
            lambda bad=bad: store.put(bad, b"1"),
            lambda bad=bad: store.put_if_absent(f"{bad}/a", b"1"),
            lambda bad=bad: store.list(f"{bad}/"),
            lambda bad=bad: store.folders(bad),
            lambda bad=bad: store.delete(bad),
            lambda bad=bad: store.download(bad, tmp_path / "out"),
            lambda bad=bad: store.copy_from(str(tmp_path / "folder/x"), bad),
        ):
            with pytest.raises(StoreError, match=r"cannot (read|write|list|delete|copy)"):
                verb()
    with pytest.raises(StoreError, match=r"cannot write .*folder"):
        store.put("folder", b"1")
    with pytest.raises(StoreError, match=r"cannot delete .*folder"):
        store.delete("folder")
    with pytest.raises(InvalidInputError):
        open_store("/a\0b")


def test_a_file_in_place_of_a_table_is_refused_at_once(tmp_path: Path) -> None:
    """Nothing can be below a file: no call says that a table is missing, or that it may have been committed."""
    schema = pa.schema({"id": pa.int64()})
    for place, file in (("orders.lance", "orders.lance"), ("lake/shop/orders.lance", "lake")):
        (tmp_path / file).write_bytes(b"id,price")
        uri = str(tmp_path / place)
        table = LanceTable(context_on(open_store(uri)))
        calls: tuple[Callable[[], object], ...] = (
            partial(LanceTable.create, uri, schema),
            partial(LanceTable.open, uri),
            partial(LanceTable.exists, uri),
            partial(table.append, pa.table({"id": [1]})),
            table.maintenance.verify,
        )
        for call in calls:
            with pytest.raises(InvalidInputError, match=f"^{tmp_path / file} is a file, and a table or a lake is a fo"):
                call()
        assert b"id,price" == (tmp_path / file).read_bytes()


def test_every_verb_refuses_a_root_that_is_a_file(tmp_path: Path) -> None:
    """Reads, lists and writes name the file; a file in place of a folder below the root is no object, as anywhere."""
    (tmp_path / "root").write_bytes(b"1")
    store = LocalStore(str(tmp_path / "root"))
    for verb in (
        lambda: store.get("a"),
        lambda: store.put("a", b"1"),
        lambda: store.put_if_absent("a/b", b"1"),
        lambda: store.list("a"),
        lambda: store.list_some("a", 1),
        lambda: store.folders("a"),
        lambda: store.sizes("a"),
        lambda: list(store.walk("")),
        lambda: list(store.walk("a")),
        lambda: store.links("a"),
        lambda: store.download("a", tmp_path / "out"),
        lambda: store.copy_from(str(tmp_path), "a"),
        lambda: store.upload(tmp_path / "root", "a"),
        store.now,
    ):
        with pytest.raises(InvalidInputError, match="root is a file"):
            verb()
    above = LocalStore(str(tmp_path))
    assert (None, [], []) == (above.get("root/a"), above.list("root/a"), list(above.walk("root/a")))


def test_writers_take_turns_and_do_not_rely_on_them(tmp_path: Path) -> None:
    """A second writer waits for its turn, but only for a limited time, and commits correctly without it."""
    table = new_table(tmp_path, entries("a", 1))
    first, second = LocalStore(table.uri), LocalStore(table.uri)
    order = []
    with first.turn("main") as turn:
        assert not turn.waited

        def wait() -> None:
            with second.turn("main", lambda: order.append(("meanwhile", True))) as turn:
                order.append(("second", turn.waited))

        thread = threading.Thread(target=wait)
        thread.start()
        with first.turn("run") as other:
            assert not other.waited
        time.sleep(0.1)
        order.append(("first", False))
    thread.join()
    assert [("meanwhile", True), ("first", False), ("second", True)] == order
    with first.turn("main"):
        start = time.monotonic()
        assert "main@3" == str(table.append(entries("a", 2)))
        assert 2 < time.monotonic() - start < 20
    assert "main@4" == str(table.append(entries("a", 3)))
    shutil.rmtree(Path(table.uri, "_refs", "queues"))
    Path(table.uri, "_refs", "queues").write_bytes(b"no folder")
    assert "main@5" == str(table.append(entries("a", 4)))


def test_sixteen_writers_share_a_branch_fairly(tmp_path: Path) -> None:
    """No writer is left behind by one that has the head at hand."""
    table = new_table(tmp_path, entries("a", 1))
    counts = [0] * 16
    until = time.monotonic() + 3

    def write(number: int) -> None:
        own = LanceTable.open(table.uri)
        while time.monotonic() < until:
            change = Append(fragments=())
            own.commit(Transaction(read_version=own.head().number, uuid=str(uuid.uuid4()), operation=change))
            counts[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == table.head().number - 2
    assert min(counts), counts
    assert sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts)) > 0.9, counts
