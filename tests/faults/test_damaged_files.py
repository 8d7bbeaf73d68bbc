"""Damaged data and index files, which pylance reads, give rows, or one error that says how to find the file."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from tests.faults.mutations import Mutation
from tests.soak import FACTOR
from tests.table_factory import entries, new_table

pytestmark = pytest.mark.slow

_FEW, _MANY = 3, 40
# This runs in a separate process, because some damage makes pylance abort it. Each line is the outcome of one use.
USE = """
import json, sys
from pathlib import Path
from lance_dagster import LanceTable
from lance_dagster.errors import LanceDagsterError
from tests.table_factory import entries
uri, start = sys.argv[1], int(sys.argv[2])
mutations = [json.loads(line) for line in Path(sys.argv[3]).read_text().splitlines()]
uses = {
    "read": lambda table: table.read(),
    "scan": lambda table: table.scan(filter="value >= 100 and value < 300").read_all(),
    "count": lambda table: table.count_rows(filter="value = 51"),
    "merge": lambda table: table.preview_merge("run"),
    "append": lambda table: table.append(entries("q", 1), branch="run"),
    "update": lambda table: table.update({"key": "'z'"}, where="value = 8"),
    "delete": lambda table: table.delete("value = 7"),
    "verify": lambda table: table.maintenance.verify(),
}
for number, (path, data) in enumerate(mutations):
    if number < start:
        continue
    file = Path(uri, path)
    whole = file.read_bytes()
    file.write_bytes(bytes.fromhex(data))
    print(json.dumps([number, "begins", ""]), flush=True)
    for name, use in uses.items():
        try:
            use(LanceTable.open(uri))
        except LanceDagsterError as error:
            print(json.dumps([number, name, str(error)]), flush=True)
        except BaseException as error:
            print(json.dumps([number, name, f"RAW {type(error).__name__}: {error}"]), flush=True)
    file.write_bytes(whole)
"""


def damaged(path: str, data: bytes) -> Iterator[Mutation]:
    """The file with flipped bits and zeroed bytes, mostly in its footer and metadata, and truncated."""
    chance = random.Random(path.rpartition("/")[0].partition("/")[0] + path.rpartition(".")[2])

    def place() -> int:
        return chance.choice([chance.randrange(len(data)), chance.randrange(max(0, len(data) - 400), len(data))])

    for number in range(_MANY if FACTOR else _FEW):
        at = place()
        flipped = bytes([data[at] ^ 1 << chance.randrange(8)])
        yield Mutation(f"flip {number} at {at}", path, data[:at] + flipped + data[at + 1 :])
        at = place()
        zeroed = data[:at] + b"\0" * len(data[at : at + 8]) + data[at + 8 :]
        if zeroed != data and (FACTOR or not number):
            yield Mutation(f"zeroes at {at}", path, zeroed)
    for length in (0, len(data) // 2, len(data) - 1) if FACTOR else (len(data) // 2,):
        yield Mutation(f"cut at {length}", path, data[:length])


@pytest.mark.scaled
@pytest.mark.parametrize("kind", ["data/*.lance", "_indices/*/page_data.lance", "_indices/*/page_lookup.lance"])
def test_a_damaged_file_is_one_error_or_rows(kind: str, tmp_path: Path) -> None:
    """A use gives rows or one error; when it fails or its process aborts, `verify(deep=True)` names the file."""
    table = new_table(tmp_path, entries("a", *range(3000)))
    lance.dataset(table.uri).create_scalar_index("value", "BTREE")
    table.branches.create("run")
    table.append(entries("b", *range(5000, 5010)), branch="run")
    largest = max(Path(table.uri).glob(kind), key=lambda path: path.stat().st_size)
    path = str(largest.relative_to(table.uri))
    mutations = [*damaged(path, largest.read_bytes())]
    listed = tmp_path / "mutations"
    listed.write_text("".join(json.dumps([each.path, each.data.hex()]) + "\n" for each in mutations))
    start, told, ended = 0, list[tuple[int, str, str]](), set[int]()
    while start < len(mutations):
        whole = largest.read_bytes()
        command = [sys.executable, "-c", USE, table.uri, str(start), str(listed)]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=600)
        told += [(number, name, said) for number, name, said in map(json.loads, done.stdout.splitlines())]
        start = told[-1][0] + 1
        if done.returncode:
            # The process was ended by a signal, which Python does not catch.
            assert done.returncode < 0, done.stderr[-2000:]
            ended.add(told[-1][0])
            largest.write_bytes(whole)
    name = largest.name
    failed = {number: (use, said) for number, use, said in told if use != "begins"}
    assert [] == [(mutations[at].name, use, said) for at, use, said in told if said.startswith("RAW ")]
    assert {} == {at: said for at, said in failed.items() if "verify" not in said[1] and name not in said[1]}
    for number in sorted(ended | failed.keys()):
        largest.write_bytes(mutations[number].data)
        problems = LanceTable.open(table.uri).maintenance.verify(deep=True).problems
        assert any(name in (problem.path or "") for problem in problems), mutations[number].name
    largest.write_bytes(whole)
    assert LanceTable.open(table.uri).maintenance.verify(deep=True).ok
