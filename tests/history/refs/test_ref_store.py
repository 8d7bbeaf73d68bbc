"""Tags are created, moved by compare-and-swap, and stored in pylance's format."""

import json
from pathlib import Path

import pendulum
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import AlreadyExistsError, CorruptFileError, RefMovedError, RefNotFoundError, StoreError
from lance_dagster.store import LocalStore
from tests.raising import raises
from tests.store.scripted import Request, Script, ScriptedStore
from tests.table_factory import as_pylance, contents, context_on, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with versions 1 to 4."""
    return new_table(tmp_path, entries("a", 1), entries("b", 2), entries("c", 3))


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that follows a script."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


def test_a_tag_names_a_version(table: LanceTable) -> None:
    """The tag can be read, and keeps its version when the table gets others."""
    made = table.tags.create("release", "main@2", metadata={"by": "ann"})
    table.append(entries("d", 4))
    assert ("main@2", "ann") == (made.ref, table.tags.list()["release"].metadata["by"])
    assert [("a", 1)] == contents(table, "release")


def test_a_tag_is_created_once(table: LanceTable) -> None:
    """The second call is refused with a hint to move the tag."""
    table.tags.create("release", "main@2")
    with raises(AlreadyExistsError, hint="tags.move('release', 'main@3') moves it"):
        table.tags.create("release", "main@3")
    assert "main@2" == table.tags.list()["release"].ref


def test_a_tag_of_a_version_that_is_not_there_is_not_made(table: LanceTable) -> None:
    """The error has the branch and its versions."""
    with pytest.raises(LookupError, match="has no version 9; it has 1 to 4"):
        table.tags.create("release", "main@9")
    assert {} == table.tags.list()


def test_a_moved_tag_keeps_its_birthday(table: LanceTable) -> None:
    """The time of creation stays, while the time of the move and the metadata are new."""
    first = table.tags.move("production", "main@2", metadata={"by": "ann"})
    moved = table.tags.move("production", "main@3", expected=table.at("main@2"), metadata={"by": "bob"})
    stored = table.tags.list()["production"]
    assert ("main@3", "bob") == (stored.ref, stored.metadata["by"])
    assert table.tags.list()["production"].created_at == moved.created_at
    assert stored.created_at is not None
    assert stored.updated_at is not None
    assert stored.created_at <= stored.updated_at
    assert "main@2" == first.ref


def test_moving_to_where_it_is_changes_nothing(table: LanceTable) -> None:
    """The file is not written again."""
    table.tags.move("production", "main@2")
    before = (Path(table.uri) / "_refs/tags/production.json").read_bytes()
    table.tags.move("production", "main@2")
    assert before == (Path(table.uri) / "_refs/tags/production.json").read_bytes()


def test_a_tag_elsewhere_than_expected_is_not_moved(table: LanceTable) -> None:
    """The error has both versions."""
    table.tags.move("production", "main@3")
    with raises(RefMovedError, ref="production", expected="main@2", found="main@3") as caught:
        table.tags.move("production", "main@4", expected=table.at("main@2"))
    assert ("main@2", "main@3") == (caught.value.expected, caught.value.found)
    assert "main@3" == table.tags.list()["production"].ref


def test_a_tag_expected_somewhere_has_to_be_there(table: LanceTable) -> None:
    """A deleted tag is not created again by a move with an expected version."""
    with raises(RefNotFoundError, ref="production", kind="tag"):
        table.tags.move("production", "main@4", expected=table.at("main@2"))
    assert {} == table.tags.list()


def test_a_mover_who_was_overtaken_is_told(table: LanceTable) -> None:
    """Another process moves the tag between the read and the swap."""
    table.tags.move("production", "main@2")

    def script(request: Request) -> object:
        if request.verb == "compare_and_swap":
            as_pylance(table).tags.update("production", 3)
        return request.send()

    with raises(RefMovedError, ref="production", expected="main@2", found="main@3"):
        through(table, script).tags.move("production", "main@4")
    assert "main@3" == table.tags.list()["production"].ref


@pytest.mark.parametrize("verb", ["put_if_absent", "compare_and_swap"])
@pytest.mark.parametrize("denied", [True, False])
def test_a_lost_answer_is_looked_up(table: LanceTable, verb: str, *, denied: bool) -> None:
    """A tag that was written is a success, whatever answer the client library reports."""
    if verb == "compare_and_swap":
        table.tags.create("production", "main@2")
    left = 1

    def script(request: Request) -> object:
        nonlocal left
        answer = request.send()
        if request.verb == verb and left:
            left -= 1
            if not denied:
                raise StoreError("connection reset")
            return False
        return answer

    try:
        moved = through(table, script).tags.move("production", "main@4")
    except StoreError:
        assert verb == "put_if_absent"
        moved = table.tags.move("production", "main@4")
    assert "main@4" == moved.ref == table.tags.list()["production"].ref


def test_a_tag_is_deleted_once(table: LanceTable) -> None:
    """The second deletion finds no tag."""
    table.tags.create("release", "main@2")
    table.tags.delete("release")
    with raises(RefNotFoundError, ref="release", kind="tag"):
        table.tags.delete("release")


def test_tags_of_pylance_are_read_whole(table: LanceTable) -> None:
    """Pylance's times are in nanoseconds, and its branch is null for main."""
    dataset = as_pylance(table)
    dataset.create_branch("dev")
    dataset.tags.create("one", 2)
    dataset.tags.create("two", ("dev", 4))
    tags = table.tags.list()
    assert {"one": "main@2", "two": "dev@4"} == {name: tag.ref for name, tag in tags.items()}
    created = tags["one"].created_at
    assert created is not None
    assert pendulum.now("UTC").diff(created).in_seconds() < 60


def test_pylance_reads_tags_of_the_package(table: LanceTable) -> None:
    """Pylance reads version, branch and times, also after a move."""
    table.branches.create("dev")
    table.tags.move("production", "main@2")
    table.tags.move("production", "dev@4")
    listed = as_pylance(table).tags.list()["production"]
    assert (4, "dev") == (listed["version"], listed["branch"])
    assert 3 == as_pylance(table).checkout_version("production").count_rows()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b"\xff",
        b'{"version": "2", "manifestSize": 1}',
        b'{"version": -2, "manifestSize": 1}',
        b'{"version": true, "manifestSize": 1}',
        b'{"version": 2, "manifestSize": 1, "metadata": [1]}',
        b'{"version": 2, "manifestSize": 1, "createdAt": "yesterday"}',
        b"[" * 100_000,
        b'{"version": 2, "x": "' + b"x" * 1_000_001 + b'"}',
    ],
    ids=lambda content: content[:20].decode(errors="replace"),
)
def test_a_file_that_is_no_tag_is_damaged(table: LanceTable, content: bytes) -> None:
    """The error names the file, whatever it contains."""
    folder = Path(table.uri) / "_refs/tags"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_bytes(content)
    with raises(CorruptFileError, path=str(folder / "broken.json")):
        table.tags.list()


@pytest.mark.parametrize("missing", ["parentVersion", "createAt", "manifestSize"])
def test_a_file_that_is_no_branch_is_damaged(table: LanceTable, missing: str) -> None:
    """The fields that pylance requires are required here."""
    table.branches.create("run")
    path = Path(table.uri) / "_refs/branches/run.json"
    described = json.loads(path.read_bytes())
    del described[missing]
    path.write_text(json.dumps(described))
    with raises(CorruptFileError, path=str(path)):
        table.branches.list()


def test_other_files_beside_the_refs_are_passed_over(table: LanceTable) -> None:
    """A leftover file of another program is neither a tag nor an error."""
    table.tags.create("release", "main@2")
    (Path(table.uri) / "_refs/tags/release.json.tmp").write_bytes(b"half")
    assert ["release"] == list(table.tags.list())


def test_a_move_that_cannot_be_looked_up_is_not_refused(table: LanceTable) -> None:
    """The answer to the write is lost and the read after it is cut, so it is unknown whether the tag moved."""
    table.tags.create("release", "main@2")
    lost: list[str] = []

    def script(request: Request) -> object:
        answer = request.send()
        if request.verb == "compare_and_swap":
            lost.append(request.key)
            raise StoreError("connection reset")
        return answer[:20] if lost and request.key == lost[0] and isinstance(answer, bytes) else answer

    with pytest.raises(StoreError, match="connection reset"):
        through(table, script).tags.move("release", "main@3")
    assert "main@3" == table.tags.get("release").ref
