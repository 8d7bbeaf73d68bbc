"""The costs of merges: no data file is written, and few requests are made."""

import cProfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable, StagedFiles
from lance_dagster.format.codec.manifest_parts import ProtobufFragmentDecoder
from lance_dagster.store import LocalStore
from tests.backdating import files
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import as_pylance, contents, context_on, entries, new_table

Change = Callable[[LanceTable, str], object]
CHANGES: dict[str, Change] = {
    "append": lambda table, branch: table.append(entries("r", 1), branch=branch),
    "delete": lambda table, branch: table.delete("value = 1", branch=branch),
    "update": lambda table, branch: table.update({"value": "value + 100"}, where="value = 2", branch=branch),
    "upsert": lambda table, branch: table.upsert(entries("u", 3, 200), on=["value"], branch=branch),
    "replace": lambda table, branch: table.replace_where("key = 'a'", entries("a", 7), branch=branch),
    "overwrite": lambda table, branch: table.overwrite(entries("o", 1), branch=branch),
    "compact": lambda table, branch: table.maintenance.compact(branch=branch),
    "add a column": lambda table, branch: table.columns.add({"twice": "value * 2"}, branch=branch),
    "drop a column": lambda table, branch: table.columns.drop(["key"], branch=branch),
    "rename a column": lambda table, branch: table.columns.rename("key", "name", branch=branch),
}


class Sorted(LocalStore):
    """A local folder with sorted listings, like an object store."""

    ordered_listing = True


def counted(table: LanceTable) -> tuple[LanceTable, list[str]]:
    """The same table, opened again through a store like an object store, and the requests that it makes."""
    made: list[str] = []

    def script(request: Request) -> object:
        if request.verb != "sync_folder":
            # An object store needs no request for it.
            made.append(f"{request.verb} {request.key}")
        return request.send()

    return LanceTable(context_on(ScriptedStore(Sorted(table.uri), script))), made


def stamps(table: LanceTable) -> dict[str, tuple[int, int]]:
    """All files with the attributes that rewriting would change."""
    found = {path: (Path(table.uri) / path).stat() for path in files(table)}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.mark.parametrize("moved", [False, True], ids=["main stays", "main moves"])
@pytest.mark.parametrize("change", CHANGES)
def test_only_metadata_is_written(tmp_path: Path, change: str, *, moved: bool) -> None:
    """Data files of a branch stay in place, for all kinds of changes to rows and columns."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    table.branches.create("run")
    CHANGES[change](table, "run")
    if moved:
        table.config.set({"moved": "yes"})
    before = stamps(table)
    table.merge("run")
    after = stamps(table)
    new = after.keys() - before.keys()
    assert {path.split("/")[0] for path in new} <= {"_versions", "_transactions", "_deletions"}
    assert {path for path in before if before[path] != after.get(path)} <= {"_versions/latest_version_hint.json"}
    assert table.read("run").sort_by("value") == table.read().sort_by("value")
    as_pylance(table).validate()


# Two for the branch (its file, its newest version by a listing), a tag of its name, the newest manifests of both sides,
# the first manifest of the branch, the listing of main, and the manifest.
SIMPLE = 8


def test_merging_an_append_takes_few_requests(tmp_path: Path) -> None:
    """The number does not depend on other versions and branches; a request takes 10 to 100 ms on an object store."""
    table = new_table(tmp_path, *(entries("a", number) for number in range(12)))
    for number in range(5):
        table.branches.create(f"other/{number}")
    table.branches.create("run")
    table.append(entries("r", 1), branch="run")
    fresh, made = counted(table)
    fresh.merge("run")
    assert SIMPLE == len(made), "\n".join(made)


def test_nothing_is_read_twice(tmp_path: Path) -> None:
    """Manifests and deletion vectors are read once, in longer histories of both sides."""
    table = new_table(tmp_path, entries("a", 1, 2, 3), entries("b", 4, 5, 6))
    table.delete("value = 6")
    table.branches.create("run")
    for number in range(3):
        table.append(entries("r", number), branch="run")
        table.append(entries("m", number))
    table.delete("value = 1", branch="run")
    table.delete("value = 4")
    fresh, made = counted(table)
    fresh.merge("run")
    reads = [request for request in made if request.startswith("get ") and "_refs/" not in request]
    assert sorted(set(reads)) == sorted(reads)


def test_runs_that_were_merged_and_retired_cost_the_next_nothing(tmp_path: Path) -> None:
    """The records of deleted branches cause no requests for existing ones."""
    table = new_table(tmp_path, entries("a", 0))
    for number in range(3):
        table.branches.create(f"run/{number}")
        table.append(entries("r", number), branch=f"run/{number}")
        fresh, made = counted(table)
        fresh.merge(f"run/{number}")
        assert len(made) <= SIMPLE, "\n".join(made)
        table.branches.delete(f"run/{number}")
    assert [("a", 0), ("r", 0), ("r", 1), ("r", 2)] == contents(table)


MANY = 200
"""The number of fragments of the table, one of which a run changes."""
MOST_DECODED = 12


def decoded_in(run: Callable[[], object]) -> int:
    """The number of fragments that a call decodes."""
    profile = cProfile.Profile()
    profile.runcall(run)
    profile.create_stats()
    code = ProtobufFragmentDecoder.decode.__code__
    found = profile.stats.get((code.co_filename, code.co_firstlineno, code.co_name), (0,))
    return int(found[0])


def with_many_fragments(tmp_path: Path) -> LanceTable:
    """A table of two hundred fragments."""
    table = new_table(tmp_path, entries("a", 0))
    files = [file for number in range(1, MANY) for file in table.stage(entries("a", number)).files]
    table.append(StagedFiles(table.schema(), tuple(files)))
    return table


@pytest.mark.parametrize("change", ["append", "delete", "update", "upsert"])
def test_a_merge_decodes_the_fragments_that_changed(tmp_path: Path, change: str) -> None:
    """It decodes these fragments of the merge base and of both sides a few times, and no others."""
    table = with_many_fragments(tmp_path)
    table.branches.create("run")
    CHANGES[change](table, "run")
    table.append(entries("m", 1000))
    merging = LanceTable.open(table.uri)
    assert decoded_in(lambda: merging.merge("run")) <= MOST_DECODED


@pytest.mark.parametrize("change", ["append", "delete", "update", "upsert"])
def test_a_diff_decodes_the_fragments_that_changed(tmp_path: Path, change: str) -> None:
    """Fragments with equal bytes in both versions are not decoded."""
    table = with_many_fragments(tmp_path)
    before = table.head()
    CHANGES[change](table, "main")
    differing = LanceTable.open(table.uri)
    assert decoded_in(lambda: differing.diff(before, "main").stat()) <= MOST_DECODED
