"""Commit ids: their properties, and finding a version by its id."""

from pathlib import Path

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidInputError, RefNotFoundError
from tests.conftest import S3Storage
from tests.history.rewritten_manifests import manifest_file, watched
from tests.raising import raises
from tests.table_factory import SCHEMA, as_pylance, contents, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Three versions of main, and two of a branch."""
    made = new_table(tmp_path, entries("a", 1), entries("b", 1))
    made.branches.create("run/1")
    made.append(entries("c", 1), branch="run/1")
    return made


def everything(table: LanceTable) -> dict[str, str]:
    """Each version with its id, also the first one of the branch, which a log omits."""
    logged = {str(version): version.id for ref in ("main", "run/1") for version in table.log(ref)}
    return {**logged, "run/1@3": table.at("run/1@3").id}


def test_an_id_is_of_one_version(table: LanceTable) -> None:
    """The first version of a branch has its own id too; each way of reading a version gives the same id."""
    ids = everything(table)
    assert ["main@3", "main@2", "main@1", "run/1@4", "run/1@3"] == list(ids)
    assert len(ids) == len(set(ids.values()))
    assert ids == everything(LanceTable.open(table.uri))
    assert ids == {ref: table.at(ref).id for ref in ids}
    assert ids["main@3"] == table.head().id == table.branches.graph()[0][0].id


def test_a_commit_returns_the_id_its_version_has(table: LanceTable) -> None:
    """A commit returns the id of its version without another request."""
    made = table.append(entries("d", 1), branch="run/1")
    merged = table.merge("run/1")
    again = LanceTable.open(table.uri)
    assert [made.id, merged.id] == [again.at(str(made)).id, again.at(str(merged)).id]


def test_a_version_is_found_by_its_id(table: LanceTable) -> None:
    """At least eight leading digits suffice, in upper or lower case."""
    for ref, own_id in everything(table).items():
        for digits in (64, 20, 8):
            assert ref == str(LanceTable.open(table.uri).at(own_id[:digits]))
            assert ref == str(table.at(own_id[:digits].upper()))
        with pytest.raises((RefNotFoundError, InvalidInputError)):
            table.at(own_id[:7])


def test_an_id_names_one_version_already(table: LanceTable) -> None:
    """A number or a time after it is refused."""
    own_id = table.at("main@2").id
    with pytest.raises(InvalidInputError, match="is a commit id"):
        table.at(f"{own_id}@1")


def test_a_name_goes_before_an_id(table: LanceTable) -> None:
    """Another program can create a tag that looks like the beginning of an id."""
    beginning = table.at("main@1").id[:8]
    as_pylance(table).tags.create(beginning, 3)
    assert "main@3" == str(table.at(beginning))


def test_an_id_there_is_not_is_not_found(table: LanceTable) -> None:
    """The error has the expression; an expression with a kind excludes ids."""
    with raises(RefNotFoundError, ref="0123456789abcdef", kind="branch or tag"):
        table.at("0123456789abcdef")
    with pytest.raises(RefNotFoundError):
        table.at(f"branch:{table.at('main').id}")
    with raises(RefNotFoundError, ref=f"{table.at('main').id}0", kind="branch or tag"):
        table.at(f"{table.at('main').id}0")


def test_an_ambiguous_beginning_lists_what_it_may_mean(tmp_path: Path) -> None:
    """The error lists longer prefixes."""
    table = new_table(tmp_path)
    # No program writes the same file under two numbers, but ids with a common prefix would be rarer still.
    first, second = manifest_file(table, "main", 1), manifest_file(table, "main", 2)
    second.write_bytes(first.read_bytes())
    own_id = LanceTable.open(table.uri).at("main@1").id
    with pytest.raises(InvalidInputError) as caught:
        LanceTable.open(table.uri).at(own_id[:8])
    assert str(caught.value) == (
        f"2 commit ids of {table.uri} begin with {own_id[:8]!r}; write more digits of one of them: "
        f"{own_id[:12]} (main@2), {own_id[:12]} (main@1)"
    )


def test_a_manifest_is_read_once_for_its_id(table: LanceTable) -> None:
    """A second look-up in the same process reads only the version that it finds."""
    ids = everything(table)
    again, read = watched(table)
    again.at(ids["main@1"][:10])
    assert len(ids) == len(set(read))
    read.clear()
    again.at(ids["main@2"][:10])
    assert [manifest_file(table, "main", 2).name] == [key.rpartition("/")[2] for key in read]
    again, read = watched(table)
    again.log("main")
    read.clear()
    again.at(ids["main@1"])
    assert 1 == len(read)


def test_a_whole_id_is_searched_for_newest_first(tmp_path: Path) -> None:
    """The search ends at the version."""
    table = new_table(tmp_path)
    for number in range(300):
        table.config.set({"n": str(number)})
    again, read = watched(table)
    assert "main@301" == str(again.at(table.at("main").id))
    assert len(set(read)) < 40


def test_a_branch_made_again_has_other_ids(table: LanceTable) -> None:
    """The ids differ although name, number and content are equal."""
    before = table.at("run/1@3").id
    table.branches.delete("run/1")
    table.branches.create("run/1", "main@3")
    with pytest.raises(RefNotFoundError):
        table.at(before)
    first = min(table.branches.version_numbers("run/1"))
    after = table.at(f"run/1@{first}")
    assert before != after.id
    assert str(after) == str(table.at(after.id[:10]))


def test_versions_of_pylance_have_ids_too(table: LanceTable) -> None:
    """Versions on `main` and on pylance's branches have ids."""
    as_pylance(table).delete("key = 'a'")
    as_pylance(table).create_branch("by-pylance")
    again = LanceTable.open(table.uri)
    for ref in ("main", "by-pylance"):
        assert str(again.at(ref)) == str(again.at(again.at(ref).id[:8]))


def test_ids_are_found_on_object_storage(s3_storage: S3Storage) -> None:
    """Several manifests are read at a time."""
    table = LanceTable.create(f"{s3_storage.uri}/ids", SCHEMA, storage_options=s3_storage.storage_options)
    for number in range(20):
        table.append(entries("a", number), message=f"row {number}")
    wanted = table.at("main~12")
    again = LanceTable.open(table.uri, s3_storage.storage_options)
    assert "main@9" == str(again.at(wanted.id[:8]))
    assert "row 7" == again.at(wanted.id).message
    assert 8 == len(contents(again, f"{wanted.id[:8]}"))
