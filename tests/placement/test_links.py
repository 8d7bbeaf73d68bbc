"""No operation follows a symbolic link from the folder of a table to another table."""

import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import BasePathRefusedError, StoreError
from tests.soak import pairs
from tests.table_factory import entries, new_table

SECRET = 4242
NOW = timedelta(0)


def made(folder: Path, name: str, value: int) -> LanceTable:
    """A table with rows, a branch, deleted rows, an index and a tag."""
    table = new_table(folder / name, pa.concat_tables([entries(name, value) for _ in range(3)]))
    table.append(entries(name, value, -1))
    table.delete("value = -1")
    lance.dataset(table.uri).create_scalar_index("value", "BTREE")
    table.branches.create("run")
    table.append(entries(name, value, -2), branch="run")
    table.delete("value = -2", branch="run")
    table.tags.create("first", "main@2")
    return LanceTable.open(table.uri)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LanceTable, LanceTable]:
    """Two tables, and a copy of their folder."""
    folder = tmp_path_factory.mktemp("links")
    found = made(folder / "now", "own", 1), made(folder / "now", "private", SECRET)
    shutil.copytree(folder / "now", folder / "before")
    return folder, *found


@pytest.fixture(autouse=True)
def _restored(tables: tuple[Path, LanceTable, LanceTable]) -> None:
    # At the same place again: branches record where the table is.
    folder = tables[0]
    shutil.rmtree(folder / "now")
    shutil.copytree(folder / "before", folder / "now")


@pytest.fixture
def table(tables: tuple[Path, LanceTable, LanceTable]) -> LanceTable:
    """The table that gets the link."""
    return LanceTable.open(tables[1].uri)


@pytest.fixture
def private(tables: tuple[Path, LanceTable, LanceTable]) -> LanceTable:
    """The table that the link names."""
    return LanceTable.open(tables[2].uri)


def bytes_of(table: LanceTable) -> Mapping[str, bytes]:
    """Every file of a table."""
    root = Path(table.uri)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def values(rows: pa.Table) -> set[object]:
    """The values of the rows."""
    return set(rows["value"].to_pylist())


def collected(table: LanceTable) -> None:
    """Delete whatever no version names."""
    table.maintenance.collect_garbage(NOW, dry_run=False, grace=NOW)


def cloned(table: LanceTable) -> set[object]:
    """The values of a deep copy."""
    return values(table.maintenance.clone(f"{table.uri}-copy", shallow=False).read())


OPERATIONS: Mapping[str, Callable[[LanceTable], object]] = {
    "read": lambda table: values(table.read()),
    "read of a branch": lambda table: values(table.read("run")),
    "isolated read": lambda table: values(table.read(isolated=True)),
    "read with a filter": lambda table: values(table.read(filter=f"value IN (1, {SECRET})")),
    "append": lambda table: table.append(entries("new", 7)),
    "append to a branch": lambda table: table.append(entries("new", 7), branch="run"),
    "delete": lambda table: table.delete("value = 1"),
    "compaction": lambda table: table.maintenance.compact(),
    "merge": lambda table: table.merge("run"),
    "tag": lambda table: table.tags.create("second", "main@3"),
    "branch": lambda table: table.branches.create("other"),
    "deleted branch": lambda table: table.branches.delete("run"),
    "collection": collected,
    "deep clone": cloned,
}
FOLDERS = [
    "data",
    "_versions",
    "_transactions",
    "_deletions",
    "_indices",
    "_refs",
    "_refs/branches",
    "_refs/tags",
    "tree",
    "tree/run",
    "tree/run/_versions",
    "tree/run/_deletions",
]
FILES = ["data/*.lance", "_versions/*.manifest", "_transactions/*", "_deletions/*", "_indices/*/*", "_refs/tags/*.json"]


def link_folder(table: LanceTable, private: LanceTable, folder: str) -> None:
    """Make a folder of the table a link to that of the other one."""
    link, named = Path(table.uri, folder), Path(private.uri, folder)
    if link.exists():
        shutil.rmtree(link)
    named.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(named)


def link_files(table: LanceTable, private: LanceTable, pattern: str) -> None:
    """Make the files of the table links to those of the other one."""
    own, named = sorted(Path(table.uri).glob(pattern)), sorted(Path(private.uri).glob(pattern))
    assert own
    assert named
    for place, link in enumerate(own):
        link.unlink()
        link.symlink_to(named[min(place, len(named) - 1)])


def assert_nothing_follows(table: LanceTable, private: LanceTable, operation: str) -> None:
    """Assert that an operation changes nothing of the other table and returns none of its rows."""
    before = bytes_of(private)
    found: object = None
    try:
        found = OPERATIONS[operation](LanceTable.open(table.uri))
    except StoreError as error:
        found = str(error)
    # A link is told from damage, and from a commit that may have landed, which is another class.
    assert not isinstance(found, str) or "is a symbolic link to" in found
    assert before == bytes_of(private)
    assert not (isinstance(found, set) and SECRET in found)


@pytest.mark.parametrize("folder, operation", pairs(FOLDERS, OPERATIONS))
def test_no_operation_follows_a_folder(table: LanceTable, private: LanceTable, folder: str, operation: str) -> None:
    """The operation is refused, or does without the folder."""
    link_folder(table, private, folder)
    assert_nothing_follows(table, private, operation)


@pytest.mark.parametrize("pattern, operation", pairs(FILES, OPERATIONS))
def test_no_operation_follows_a_file(table: LanceTable, private: LanceTable, pattern: str, operation: str) -> None:
    """The same for single files."""
    link_files(table, private, pattern)
    assert_nothing_follows(table, private, operation)


@pytest.mark.parametrize(
    "folder, operation", [("data", "read"), ("data", "append"), ("data", "deep clone"), ("_versions", "append")]
)
def test_what_needs_the_folder_is_refused(table: LanceTable, private: LanceTable, folder: str, operation: str) -> None:
    """The message names the link and what it names."""
    link_folder(table, private, folder)
    with pytest.raises(
        StoreError, match=f"own.*/{folder} is a symbolic link to .*private.*/{folder}: .*; remove the link"
    ):
        OPERATIONS[operation](LanceTable.open(table.uri))


@pytest.mark.parametrize("pattern", ["data/*.lance", "_deletions/*", "_indices/*/*"])
def test_a_file_that_a_read_needs_is_refused(table: LanceTable, private: LanceTable, pattern: str) -> None:
    """These are opened by pylance, which would follow the link."""
    assert {1} == values(table.read())
    link_files(table, private, pattern)
    # The object has read the table before.
    for again in (table, LanceTable.open(table.uri)):
        with pytest.raises(StoreError, match="is a symbolic link to"):
            again.read()


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("place", [*FOLDERS, *FILES])
def test_verify_names_links(table: LanceTable, private: LanceTable, place: str, *, deep: bool) -> None:
    """Each link is an error of its own, whatever else cannot be checked then."""
    (link_files if "*" in place else link_folder)(table, private, place)
    report = table.maintenance.verify(deep=deep)
    root = Path(table.uri)
    links = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink()}
    assert links
    assert links == {problem.path for problem in report.problems if "it is a symbolic link" in problem.what}
    assert not report.ok


def test_the_folder_of_the_table_may_be_a_link(table: LanceTable, tmp_path: Path) -> None:
    """Whoever opens a table names its folder, and may name it by a link."""
    (tmp_path / "link").symlink_to(table.uri)
    linked = LanceTable.open(tmp_path / "link")
    assert {1} == values(linked.read())
    linked.append(entries("new", 7))
    assert {1, 7} == values(linked.read())


def test_a_branch_of_the_same_folder_by_another_path(tmp_path: Path) -> None:
    """Where a symbolic link leads to the folder, the error says that it is the same one; `relocate` mends it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    by_link = new_table(tmp_path / "linked", entries("a", 1))
    by_link.branches.create("run")
    by_link.append(entries("a", 2), branch="run")
    other = LanceTable.open(tmp_path / "real" / Path(by_link.uri).name)
    with pytest.raises(BasePathRefusedError, match="by another path with a symbolic link"):
        other.read("run")
    other.maintenance.relocate()
    assert 2 == other.read("run").num_rows
