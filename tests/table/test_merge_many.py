"""Many merges: one after another into a moving main, and many at once."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CommitConflictError
from lance_dagster.store import open_store
from tests.conftest import HOST, S3Storage, bucket_on, free_port, wait_for
from tests.ledger import parts_on
from tests.racing import race
from tests.store.scripted import Request, ScriptedStore

BRANCHES = int(os.environ.get("LANCE_DAGSTER_MERGES", "60"))
"""How many are merged one after another; 300 for the long run."""
RACERS = int(os.environ.get("LANCE_DAGSTER_RACERS", "8"))
"""How many merge at once; 20 for the long run."""
PARTS, OPEN_AT_ONCE = 12, 5
_COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "part": pa.string(), "value": pa.int64()}
SCHEMA = pa.schema(_COLUMNS)
Rows = dict[int, tuple[str, int]]


def as_arrow(rows: Mapping[int, tuple[str, int]]) -> pa.Table:
    """Rows of the model for a table."""
    listed = [{"id": number, "part": part, "value": value} for number, (part, value) in rows.items()]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


def as_rows(data: pa.Table) -> Rows:
    """Rows of a table for the model; every id is there once."""
    found = {row["id"]: (row["part"], row["value"]) for row in data.to_pylist()}
    assert len(found) == data.num_rows
    return found


class Mill:
    """A table, a plain model of its main, and runs that come and go, each with a partition of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Make a table of one fragment that has rows of all partitions."""
        self.random = random.Random(seed)
        self.table = LanceTable.create(folder / f"mill-{seed}", SCHEMA)
        self.ids = iter(range(10**9))
        self.rows: Rows = {}
        for number in range(PARTS):
            self.rows |= self.new(f"p{number}", 10)
        self.table.append(as_arrow(self.rows))
        self.touched = dict.fromkeys((f"p{number}" for number in range(PARTS)), self.table.head().number)
        self.open: dict[str, tuple[str, Rows]] = {}
        self.merged = 0

    def new(self, part: str, count: int) -> Rows:
        """Rows that nobody has."""
        return {next(self.ids): (part, self.random.randrange(1000)) for _ in range(count)}

    def fork(self, name: str) -> None:
        """Begin a run on a partition, from a version of main since which nobody touched it, and write."""
        head = self.table.head().number
        start = max(2, head - self.random.randrange(4))
        busy = {part for part, _ in self.open.values()}
        free = [part for part, version in self.touched.items() if part not in busy and version <= start]
        part = self.random.choice(free or [part for part in self.touched if part not in busy])
        self.table.create_branch(name, f"main@{max(start, self.touched[part])}")
        own = {number: row for number, row in self.rows.items() if row[0] == part}
        for _ in range(self.random.randrange(1, 4)):
            own = self.write(name, part, own, through_pylance=self.random.random() < 0.3)
        self.open[name] = part, own

    def write(self, branch: str, part: str, own: Rows, *, through_pylance: bool) -> Rows:
        """Do something to the rows of a partition; return what is left of them."""
        deed = self.random.choice(["append", "update", "delete", "compact", *([] if through_pylance else ["replace"])])
        some = self.random.sample(sorted(own), len(own) // 3)
        where = f"id in ({', '.join(map(str, some or [-1]))})"
        new = self.new(part, self.random.randrange(1, 6)) if deed in ("append", "replace") else {}
        if through_pylance:
            self.through_pylance(deed, branch, where, as_arrow(new))
        else:
            self.through_us(deed, branch, where, as_arrow(new))
        if deed == "update":
            return own | {number: (part, own[number][1] + 1000) for number in some}
        if deed == "delete":
            return {number: row for number, row in own.items() if number not in some}
        return new if deed == "replace" else own | new

    def through_pylance(self, deed: str, branch: str, where: str, new: pa.Table) -> None:
        """Do it as a program that knows nothing of this package."""
        handle = lance.dataset(self.table.uri)
        if branch != "main":
            handle = handle.checkout_version((branch, None))
        if deed == "append":
            handle.insert(new)
        elif deed == "update":
            handle.update({"value": "value + 1000"}, where=where)
        elif deed == "delete":
            handle.delete(where)
        else:
            handle.optimize.compact_files()

    def through_us(self, deed: str, branch: str, where: str, new: pa.Table) -> None:
        """Do it as a run does."""
        if deed == "append":
            self.table.append(new, branch=branch, partitions=[new["part"][0].as_py()])
        elif deed == "update":
            self.table.update({"value": "value + 1000"}, where=where, branch=branch)
        elif deed == "delete":
            self.table.delete(where, branch=branch)
        elif deed == "replace":
            part = new["part"][0].as_py()
            self.table.replace_where(f"part = '{part}'", new, branch=branch, partitions=[part])
        else:
            self.table.compact(branch=branch)

    def write_main(self) -> None:
        """Let somebody write main on a partition no run is at."""
        busy = {part for part, _ in self.open.values()}
        part = self.random.choice([part for part in self.touched if part not in busy])
        own = {number: row for number, row in self.rows.items() if row[0] == part}
        left = self.write("main", part, own, through_pylance=self.random.random() < 0.7)
        self.settle(part, left)

    def merge(self) -> None:
        """Merge one of the runs that are open."""
        name = self.random.choice(sorted(self.open))
        part, own = self.open.pop(name)
        self.table.merge(name)
        if self.random.random() < 0.7:
            self.table.delete_branch(name)
        self.merged += 1
        self.settle(part, own)

    def settle(self, part: str, own: Rows) -> None:
        """Write down what main has of a partition."""
        self.rows = {number: row for number, row in self.rows.items() if row[0] != part} | own
        self.touched[part] = self.table.head().number

    def check(self) -> None:
        """Hold main against the model, as we read it and as pylance does."""
        assert self.rows == as_rows(self.table.read())
        dataset = lance.dataset(self.table.uri)
        assert self.rows == as_rows(dataset.to_table())
        dataset.validate()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_runs_merged_one_after_another_into_a_moving_main(tmp_path: Path, seed: int) -> None:
    """Appends, updates, deletions, replacements and compactions, some by pylance: main is what a plain model says."""
    mill = Mill(tmp_path, seed)
    for number in range(BRANCHES):
        mill.fork(f"run/{number}")
        if mill.random.random() < 0.3:
            mill.write_main()
        while len(mill.open) >= OPEN_AT_ONCE:
            mill.merge()
        if number % 10 == 0:
            mill.check()
    while mill.open:
        mill.merge()
    mill.check()
    assert BRANCHES == mill.merged
    report = mill.table.verify(deep=True)
    assert [] == [str(problem) for problem in report.problems if problem.severity == "error"]


def merging(uri: str, options: Mapping[str, str], branch: str) -> tuple[str, int, int]:
    """Merge a branch; the version that has it, how often the next number was taken, and how often all was given up."""
    lost = 0

    def script(request: Request) -> object:
        nonlocal lost
        answer = request.send()
        lost += request.commits and not answer
        return answer

    table = LanceTable(parts_on(ScriptedStore(open_store(uri, options), script)))
    for again in range(20):
        try:
            return str(table.merge(branch)), lost, again
        except CommitConflictError:
            continue
    raise AssertionError(branch)


def prepared(uri: str, options: Mapping[str, str]) -> tuple[LanceTable, Rows]:
    """A table and branches that append, delete and update other rows of one fragment; what is right in the end."""
    table = LanceTable.create(uri, SCHEMA, storage_options=options)
    rows: Rows = {number: ("p", number) for number in range(10 * RACERS)}
    table.append(as_arrow(rows))
    for number in range(RACERS):
        branch, ten = f"run/{number}", 10 * number
        table.create_branch(branch)
        table.append(as_arrow({1000 + number: ("n", number)}), branch=branch)
        table.delete(f"id = {ten}", branch=branch)
        table.update({"value": "value + 1000"}, where=f"id = {ten + 1}", branch=branch)
        del rows[ten]
        rows |= {1000 + number: ("n", number), ten + 1: ("p", ten + 1001)}
    return table, rows


def raced(uri: str, options: Mapping[str, str], report: Callable[[str], None]) -> None:
    """Let all branches be merged at once, and hold that all of them are in, once."""
    table, rows = prepared(uri, options)
    results = race(merging, [(uri, options, f"run/{number}") for number in range(RACERS)])
    report(
        f"{RACERS} merges at once: {sum(lost for _, lost, _ in results)} numbers were taken, "
        f"{sum(again for _, _, again in results)} given up"
    )
    assert sorted(version for version, _, _ in results) == sorted(f"main@{number}" for number in range(3, RACERS + 3))
    assert rows == as_rows(table.read())
    assert list(range(1, RACERS + 3)) == table.versions_after(0)
    dataset = lance.dataset(uri, storage_options=dict(options) or None)
    assert rows == as_rows(dataset.to_table())
    dataset.validate()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say something even when the test passes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def told(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}")  # noqa: T201 - counted, not held

    return told


@pytest.mark.slow
def test_branches_merged_by_as_many_processes_at_once(tmp_path: Path, report: Callable[[str], None]) -> None:
    """On local disk: nothing is lost, nothing is in twice."""
    raced(str(tmp_path / "table"), {}, report)


@pytest.fixture
def fair_storage(tmp_path: Path) -> Iterator[S3Storage]:
    """A bucket on a server that answers one request after the other, so that its conditional put is one."""
    port, log = free_port(), tmp_path / "server.log"
    program = (
        "import sys; from moto.server import DomainDispatcherApplication, create_backend_app; "
        "from werkzeug.serving import run_simple; "
        "run_simple(sys.argv[1], int(sys.argv[2]), DomainDispatcherApplication(create_backend_app), threaded=False)"
    )
    with log.open("wb") as output:
        command = [sys.executable, "-c", program, HOST, str(port)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(process, port, log)
        yield bucket_on(f"http://{HOST}:{port}")
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.slow
def test_branches_merged_at_once_on_an_object_store(fair_storage: S3Storage, report: Callable[[str], None]) -> None:
    """The same in a bucket."""
    raced(f"{fair_storage.uri}/table", fair_storage.storage_options, report)


@pytest.mark.slow
def test_one_branch_merged_by_two_processes_on_an_object_store(fair_storage: S3Storage) -> None:
    """There is one merge commit, and both are told of it."""
    uri, options = f"{fair_storage.uri}/table", fair_storage.storage_options
    table = LanceTable.create(uri, SCHEMA, storage_options=options)
    table.create_branch("run")
    table.append(as_arrow({1: ("p", 1)}), branch="run")
    versions = race(merging, [(uri, options, "run")] * 2)
    assert {"main@2"} == {version for version, _, _ in versions}
    assert [1, 2] == table.versions_after(0)
    assert {1: ("p", 1)} == as_rows(table.read())


# Found by the above.


def names_of(table: LanceTable) -> list[tuple[str, int]]:
    """The rows of main without their ids, sorted."""
    return sorted(as_rows(table.read()).values())


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_of_a_retired_branch_are_the_same_rows_in_later_merges(tmp_path: Path, *, compacted: bool) -> None:
    """Its record is gone from main, and still there on a branch forked before: a deletion finds the row."""
    table = LanceTable.create(tmp_path / "table", SCHEMA)
    table.append(as_arrow({1: ("a", 1)}))
    table.create_branch("retired")
    table.append(as_arrow({2: ("r", 1), 3: ("r", 2)}), branch="retired")
    table.append(as_arrow({4: ("m", 1)}))
    table.merge("retired")
    table.delete_branch("retired")
    table.create_branch("run")
    for number in range(10):
        table.create_branch("other")
        table.append(as_arrow({10 + number: ("o", number)}), branch="other")
        table.merge("other")
        table.delete_branch("other")
    if compacted:
        table.compact()
    table.delete("id = 2", branch="run")
    table.merge("run")
    assert [("a", 1), ("m", 1), *(("o", number) for number in range(10)), ("r", 2)] == names_of(table)


def test_rows_that_both_sides_compacted_count_as_unchanged(tmp_path: Path) -> None:
    """Fragments of a branch come with rows that stay where main has them: nobody wrote these."""
    table = LanceTable.create(tmp_path / "table", SCHEMA)
    for number in range(3):
        table.append(as_arrow({number: (f"p{number}", number)}))
    table.create_branch("one")
    table.create_branch("two")
    table.replace_where("part = 'p0'", as_arrow({9: ("p0", 9)}), branch="one")
    lance.dataset(table.uri).checkout_version(("one", None)).optimize.compact_files()
    table.update({"value": "value + 1000"}, where="part = 'p1'", branch="two")
    table.compact()
    table.merge("one")
    table.merge("two")
    assert [("p0", 9), ("p1", 1001), ("p2", 2)] == names_of(table)
