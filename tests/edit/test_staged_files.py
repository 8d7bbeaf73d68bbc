"""Descriptions of staged files are compared with the actual files."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable, StagedFiles, write_files
from lance_dagster.errors import CorruptFileError, InvalidInputError, LanceDagsterError
from lance_dagster.format.model import DataFile, DeletionFile, Fragment, IndexFile
from lance_dagster.format.transaction import (
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Transaction,
    Update,
)
from lance_dagster.store import LocalStore
from lance_dagster.types import StagedFile
from tests.raising import raises
from tests.store.scripted import Request, Script, ScriptedStore
from tests.table_factory import SCHEMA, contents, context_of, context_on, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table of two rows in one fragment."""
    return new_table(tmp_path, pa.concat_tables([entries("a", 1), entries("b", 2)]))


def through(table: LanceTable, script: Script) -> LanceTable:
    """The table, through a store that calls a script before each request."""
    return LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))


def staged(table: LanceTable, *values: int) -> StagedFiles:
    """Rows written as one data file, as an executor would."""
    target = table.write_target()
    return StagedFiles(target.schema, write_files(target, entries("c", *values).to_batches()))


def described(given: StagedFiles, **changes: str | int) -> StagedFiles:
    """The same file with another description."""
    return replace(given, files=tuple(replace(file, **changes) for file in given.files))  # type: ignore[arg-type]


def assert_refused(table: LanceTable, given: StagedFiles, error: type[LanceDagsterError], what: str) -> None:
    """Assert that every write refuses these files, and that the table is as it was."""
    before = table.head()
    for write in (table.append, table.overwrite, lambda rows: table.replace_where("key = 'c'", rows)):
        with pytest.raises(error, match=what):
            write(given)
    assert before == LanceTable.open(table.uri).head()
    assert [("a", 1), ("b", 2)] == contents(table)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x.lance", "../../x.lance", "/etc/passwd", "sub/x.lance", "a\0b.lance", "a\\b.lance"]
)
def test_a_name_that_is_no_file_of_the_data_folder_is_refused(table: LanceTable, name: str) -> None:
    """A name is that of a file directly in the data folder."""
    assert_refused(table, described(staged(table, 3), name=name), InvalidInputError, "is not the name of a file")


def test_a_file_that_is_not_there_is_refused(table: LanceTable) -> None:
    """A file may be collected between staging and commit, when the commit comes after the grace period."""
    given = staged(table, 3)
    (Path(table.uri) / "data" / given.files[0].name).unlink()
    assert_refused(table, given, CorruptFileError, r"data/.*\.lance.* it is missing")


@pytest.mark.parametrize("more", [-1, 1, 4096])
def test_a_file_of_another_size_is_refused(table: LanceTable, more: int) -> None:
    """A file that is shorter than described was truncated; a longer one was written by another process."""
    given = staged(table, 3)
    said = given.files[0].size + more
    assert_refused(table, described(given, size=said), CorruptFileError, f"size is not {said} bytes")


@pytest.mark.parametrize("rows", [0, 2, 2**32, 2**62])
def test_a_file_of_another_number_of_rows_is_refused(table: LanceTable, rows: int) -> None:
    """The file itself has its number of rows."""
    given = described(staged(table, 3), rows=rows)
    assert_refused(table, given, InvalidInputError, f"has 1 row, but its description has {rows}")


@pytest.mark.parametrize("size", [0, -1])
def test_a_file_without_a_size_is_refused(table: LanceTable, size: int) -> None:
    """A writer knows the size of the file it closed."""
    assert_refused(table, described(staged(table, 3), size=size), InvalidInputError, "size")


def test_a_file_of_other_columns_is_refused(table: LanceTable) -> None:
    """The file has to have as many columns as the schema it is said to have."""
    target = table.write_target(pa.schema([SCHEMA.field("value")]))
    files = write_files(target, entries("c", 3).select(["value"]).to_batches())
    assert_refused(table, StagedFiles(SCHEMA, files), InvalidInputError, "has 1 column, and the table stores 2")


def test_the_same_file_twice_is_refused(table: LanceTable) -> None:
    """Its rows would be in the table twice, and a clean-up of one fragment would not know about the other."""
    given = staged(table, 3)
    assert_refused(table, replace(given, files=given.files * 2), InvalidInputError, "twice")


def test_a_file_that_is_no_data_file_is_refused(table: LanceTable) -> None:
    """Bytes of any other kind have no footer."""
    (Path(table.uri) / "data" / "x.lance").write_bytes(b"x" * 100)
    given = StagedFiles(SCHEMA, (StagedFile("x.lance", 1, 100),))
    assert_refused(table, given, CorruptFileError, "it is not a data file")


def test_each_staged_file_costs_one_read(table: LanceTable) -> None:
    """One request reads the footer, the number of rows and the size; files written by the same call need no request."""
    asked: list[tuple[str, str]] = []

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        asked.append((request.verb, request.key))
        return request.send()

    target = table.write_target()
    small = replace(target, max_rows=4)
    given = StagedFiles(target.schema, write_files(small, entries("c", *range(10)).to_batches()))
    through(table, script).append(given)
    assert sorted(("get_range", f"data/{file.name}") for file in given.files) == sorted(
        one for one in asked if one[0] == "get_range"
    )
    asked.clear()
    through(table, script).append(entries("d", 1))
    assert "get_range" not in [verb for verb, _ in asked]


def test_staged_files_of_a_base_path_are_looked_for_there(table: LanceTable, tmp_path: Path) -> None:
    """A file of the same name in the table's own folder is not taken instead."""
    table.maintenance.add_base("cold", str(tmp_path / "cold"))
    given = table.stage(entries("c", 3), base="cold")
    missing = replace(given, base=None)
    assert_refused(table, missing, CorruptFileError, "is missing")
    table.append(given)
    assert [("a", 1), ("b", 2), ("c", 3)] == contents(table)


# Transactions that a caller made.


def transaction_of(table: LanceTable, **changes: object) -> Transaction:
    """A transaction of another process that adds one file of one row."""
    given = staged(table, 3).files[0]
    file = DataFile(path=given.name, fields=(0, 1), column_indices=(0, 1), major=2, minor=2, size=given.size)
    of_file = {key: value for key, value in changes.items() if key != "physical_rows"}
    rows = changes.get("physical_rows", 1)
    assert isinstance(rows, int)
    fragment = Fragment(id=0, files=(replace(file, **of_file),), physical_rows=rows)  # type: ignore[arg-type]
    return Transaction(read_version=2, uuid=str(uuid.uuid4()), operation=Append(fragments=(fragment,)))


@pytest.mark.parametrize(
    "changes, error, what",
    [
        ({"path": "../x.lance"}, InvalidInputError, "is not the name of a file"),
        ({"path": ""}, InvalidInputError, "is not the name of a file"),
        ({"path": "gone.lance"}, CorruptFileError, "it is missing"),
        ({"size": 7}, CorruptFileError, "size is not 7 bytes"),
        ({"physical_rows": 2**62}, InvalidInputError, "has 1 row, but the transaction has 4611686018427387904"),
        ({"column_indices": (0, 2)}, InvalidInputError, "has 2 columns, but the transaction names column 2,"),
    ],
)
def test_a_transaction_with_a_wrong_file_is_refused(
    table: LanceTable, changes: dict[str, object], error: type[LanceDagsterError], what: str
) -> None:
    """The file descriptions in a transaction are compared with the files, like those of staged files."""
    with pytest.raises(error, match=what):
        table.commit(transaction_of(table, **changes))
    assert "main@2" == str(LanceTable.open(table.uri).head())
    assert [("a", 1), ("b", 2)] == contents(table)


def test_a_transaction_that_landed_is_found_though_its_files_are_gone(table: LanceTable) -> None:
    """The files may have been collected after a later version replaced the rows."""
    transaction = transaction_of(table)
    made = table.commit(transaction)
    operation = transaction.operation
    assert isinstance(operation, Append)
    Path(table.uri, "data", operation.fragments[0].files[0].path).unlink()
    assert made == table.commit(transaction)


def test_a_transaction_with_a_deletion_file_that_is_not_there_is_refused(table: LanceTable) -> None:
    """Without the deletion file, the rows of the fragment could not be read."""
    head = context_of(table).head("main")
    gone = DeletionFile(kind=0, read_version=2, id=7, deleted_rows=1)
    fragment = replace(head.manifest.fragments[0], deletion=gone)
    operation = Delete(updated_fragments=(fragment,))
    with raises(CorruptFileError, path=f"{table.uri}/_deletions/0-2-7.arrow"):
        table.commit(Transaction(read_version=2, uuid=str(uuid.uuid4()), operation=operation))
    assert [("a", 1), ("b", 2)] == contents(table)


def committed(table: LanceTable, operation: Operation) -> LanceTable:
    """The table after a transaction that another process made from the head."""
    number = table.head().number
    table.commit(Transaction(read_version=number, uuid=str(uuid.uuid4()), operation=operation))
    return table


def assert_commit_refused(table: LanceTable, operation: Operation, error: type[LanceDagsterError], what: str) -> None:
    """Assert that an operation is refused, and that the table is as it was."""
    before, rows = table.head(), contents(table)
    with pytest.raises(error, match=what):
        committed(table, operation)
    assert before == LanceTable.open(table.uri).head()
    assert rows == contents(LanceTable.open(table.uri))


def first_fragment(table: LanceTable) -> Fragment:
    """The first fragment of the head."""
    return context_of(table).head("main").manifest.fragments[0]


@pytest.mark.parametrize(
    "changes, error, what",
    [
        ({}, InvalidInputError, "has the rows of the file .* already"),
        ({"physical_rows": 2**62}, InvalidInputError, "has the rows of the file .* already"),
        ({"size": 7}, InvalidInputError, "has the rows of the file .* already"),
        ({"column_indices": (99, 100)}, InvalidInputError, "has the rows of the file .* already"),
    ],
)
def test_an_append_of_a_file_that_the_version_names_is_refused(
    table: LanceTable, changes: dict[str, object], error: type[LanceDagsterError], what: str
) -> None:
    """Whatever the transaction says of the file, its rows would be there twice."""
    fragment = changed(first_fragment(table), changes)
    assert_commit_refused(table, Append(fragments=(fragment,)), error, what)


@pytest.mark.parametrize(
    "changes, error, what",
    [
        ({"physical_rows": 5}, InvalidInputError, "has 2 rows, but the transaction has 5"),
        ({"size": 7}, CorruptFileError, "size is not 7 bytes"),
        ({"column_indices": (0, 99)}, InvalidInputError, "has 2 columns, but the transaction names column 99,"),
        ({"minor": 1}, InvalidInputError, r"has the format version 2\.2, but the transaction has 2\.1"),
        ({"major": 0, "minor": 2}, InvalidInputError, r"the format 0\.1, but main@2 has 2\.2"),
        ({"files": ()}, InvalidInputError, "has no data file"),
        ({"path": "gone.lance"}, CorruptFileError, "it is missing"),
    ],
)
@pytest.mark.parametrize("kind", ["overwrite", "merge", "update"])
def test_a_file_that_the_version_names_is_read_where_it_is_described_in_another_way(
    table: LanceTable, kind: str, changes: dict[str, object], error: type[LanceDagsterError], what: str
) -> None:
    """Only an equal description was checked before."""
    fragment = changed(first_fragment(table), changes)
    fields = context_of(table).head("main").manifest.fields
    operations: dict[str, Operation] = {
        "overwrite": Overwrite(fragments=(fragment,), fields=fields),
        "merge": Merge(fragments=(fragment,), fields=fields),
        "update": Update(updated_fragments=(fragment,), mode=1, fields_modified=(1,)),
    }
    assert_commit_refused(table, operations[kind], error, what)


def changed(fragment: Fragment, changes: dict[str, Any]) -> Fragment:
    """A fragment with another description, of itself or of its data file."""
    own = {key: value for key, value in changes.items() if key in {"physical_rows", "files"}}
    of_file = {key: value for key, value in changes.items() if key not in own}
    return replace(fragment, **{"files": (replace(fragment.files[0], **of_file),), **own})


@pytest.mark.parametrize(
    "changes, error, what",
    [
        ({"path": "gone.lance"}, CorruptFileError, "it is missing"),
        ({"path": "../../x.lance"}, InvalidInputError, "is not the name of a file"),
        ({"size": 7}, CorruptFileError, "size is not 7 bytes"),
        ({"column_indices": (0, 99)}, InvalidInputError, "has 2 columns, but the transaction names column 99,"),
    ],
)
def test_a_replacement_with_a_wrong_file_is_refused(
    table: LanceTable, changes: dict[str, Any], error: type[LanceDagsterError], what: str
) -> None:
    """The files of a replacement are checked like those of an append."""
    file = replace(first_fragment(table).files[0], **changes)
    assert_commit_refused(table, DataReplacement(replacements=((0, file),)), error, what)


def test_a_replacement_has_the_rows_of_its_fragment(table: LanceTable) -> None:
    """A file of another number of rows would shift the values of a column against the others."""
    given = staged(table, 3).files[0]
    file = replace(first_fragment(table).files[0], path=given.name, size=given.size)
    what = "has 1 row, but the transaction has 2"
    assert_commit_refused(table, DataReplacement(replacements=((0, file),)), InvalidInputError, what)


@pytest.mark.parametrize(
    "changes, error, what",
    [
        ({"uuid": str(uuid.uuid4())}, CorruptFileError, "it is missing"),
        ({"uuid": "../data"}, InvalidInputError, "cannot be the uuid of an index"),
        ({"uuid": str(uuid.uuid4()), "files": ()}, CorruptFileError, "the index has no files"),
        ({"files": (IndexFile("../x", 1),)}, InvalidInputError, "is not the path of a file in the folder of an index"),
        ({"files": (IndexFile("page_data.lance", 7),)}, CorruptFileError, "the transaction records 7"),
    ],
)
def test_an_index_whose_files_are_not_there_is_refused(
    table: LanceTable, changes: dict[str, Any], error: type[LanceDagsterError], what: str
) -> None:
    """A version that names them would make every query that uses the index fail."""
    lance.dataset(table.uri).create_scalar_index("value", "BTREE")
    transaction = context_of(table).head("main").transaction
    assert transaction is not None
    assert isinstance(transaction.operation, CreateIndex)
    (index,) = transaction.operation.new_indices
    other = replace(index, **changes)
    assert_commit_refused(table, CreateIndex(new_indices=(other,), removed_indices=(index,)), error, what)
    # The index as it is may be recorded once more.
    committed(table, CreateIndex(new_indices=(replace(index, name="again"),), removed_indices=(index,)))


def test_a_new_fragment_with_a_deletion_file_is_refused(table: LanceTable) -> None:
    """The commit gives the fragment another id, under which there is no such deletion file."""
    table.append(entries("c", 3, 4, 5))
    table.delete("value = 3")
    deletion = context_of(table).head("main").manifest.fragments[1].deletion
    operation = transaction_of(table).operation
    assert isinstance(operation, Append)
    given = Append(fragments=(replace(operation.fragments[0], id=1, deletion=deletion),))
    assert_commit_refused(table, given, InvalidInputError, "a new fragment cannot have a deletion file")


# The same files twice.


@pytest.mark.parametrize("branch", ["main", "run"])
def test_staged_files_are_appended_once(table: LanceTable, branch: str) -> None:
    """A second append is a retry of one that landed: its rows would be in the table twice."""
    if branch != "main":
        table.branches.create(branch)
    given = staged(table, 3)
    table.append(given, branch=branch)
    for again in (table, LanceTable.open(table.uri)):
        with pytest.raises(InvalidInputError):
            again.append(given, branch=branch)
    assert [("a", 1), ("b", 2), ("c", 3)] == contents(table, branch)


def test_staged_files_that_another_process_appends_first_are_refused(table: LanceTable) -> None:
    """The other append lands between the check and the commit."""
    given, other = staged(table, 3), LanceTable.open(table.uri)
    other.head()
    rivals = [other]

    def script(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        if request.verb == "put_if_absent" and rivals:
            rivals.pop().append(given)
        return request.send()

    with pytest.raises(InvalidInputError):
        through(table, script).append(given)
    assert [("a", 1), ("b", 2), ("c", 3)] == contents(table)


def test_staged_files_replace_their_own_rows(table: LanceTable) -> None:
    """A write that replaces rows can be done again with the same files, as its name says."""
    given = staged(table, 3)
    for _ in range(2):
        table.replace_where("key = 'c'", given)
        assert [("a", 1), ("b", 2), ("c", 3)] == contents(table)
    for _ in range(2):
        table.overwrite(given)
        assert [("c", 3)] == contents(table)


def test_staged_files_whose_rows_are_gone_can_be_appended(table: LanceTable) -> None:
    """Nothing is in the table twice then."""
    given = staged(table, 3)
    table.append(given)
    table.delete("key = 'c'")
    table.append(given)
    assert [("a", 1), ("b", 2), ("c", 3)] == contents(table)
