"""The status of branches and tags relative to main."""

from pathlib import Path

from lance_dagster import LanceTable
from lance_dagster.store.local import LocalStore
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import as_pylance, context_on, entries, new_table


def standings(table: LanceTable) -> dict[str, tuple[str | None, int, int, bool]]:
    """The branches and tags as short values."""
    found = table.branches.status()
    return {each.name: (each.version, each.ahead, each.behind, each.merged) for each in (*found.branches, *found.tags)}


def test_branches_and_tags_stand_somewhere(tmp_path: Path) -> None:
    """Ahead by what they did, behind by what main did; a branch of a branch too."""
    table = new_table(tmp_path, entries("a", 1), entries("a", 2))
    table.tags.create("production", "main@2")
    table.branches.create("one")
    table.append(entries("b", 1), branch="one")
    table.branches.create("two", at="one")
    table.append(entries("c", 1), branch="two")
    table.tags.create("on-a-branch", "two")
    assert {
        "one": ("one@4", 1, 0, False),
        "two": ("two@5", 2, 0, False),
        "on-a-branch": ("two@5", 2, 0, False),
        "production": ("main@2", 0, 1, True),
    } == standings(table)
    table.merge("one")
    assert {
        "one": ("one@4", 0, 1, True),
        "two": ("two@5", 1, 1, False),
        "on-a-branch": ("two@5", 1, 1, False),
        "production": ("main@2", 0, 3, True),
    } == standings(table)


def test_a_squashed_branch_counts_as_merged(tmp_path: Path) -> None:
    """A squash-merged branch counts as merged until it has new commits."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("one")
    table.append(entries("b", 1), branch="one")
    table.merge("one", mode="squash")
    assert ("one@3", 1, 1, True) == standings(table)["one"]
    assert table.branches.status().branches[0].squashed
    table.append(entries("b", 2), branch="one")
    assert ("one@4", 2, 1, False) == standings(table)["one"]


def test_a_name_without_its_version_is_listed(tmp_path: Path) -> None:
    """A branch or tag without its version is listed as such."""
    table = new_table(tmp_path, entries("a", 1), entries("a", 2))
    table.tags.create("old", "main@2")
    as_pylance(table).cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    next(Path(table.uri).glob("_versions/*613.manifest")).unlink(missing_ok=True)
    (found,) = LanceTable.open(table.uri).branches.status().tags
    assert ("old", None, False) == (found.name, found.version, found.merged)


def test_status_reads_little_of_long_branches(tmp_path: Path) -> None:
    """Of each branch one list of names, its file twice and one manifest, however many versions it has."""
    table = new_table(tmp_path, entries("a", 1))
    for name in ("one", "two"):
        table.branches.create(name)
        for value in range(10):
            table.append(entries(name, value), branch=name)
    requests: list[tuple[str, str]] = []

    def script(request: Request) -> object:
        requests.append((request.verb, request.key))
        return request.send()

    found = LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script))).branches.status()
    assert [10, 10] == [branch.ahead for branch in found.branches]
    of_branch = sorted(verb for verb, key in requests if "one" in key)
    assert ["get", "get", "get_with_etag", "list"] == of_branch
    assert len(requests) < 16
