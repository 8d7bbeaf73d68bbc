"""Measure the memory that one library takes for one operation, in a process of its own.

    python -m benchmarks.memory '{"side": "lance_dagster", "what": "count", "small": ..., "large": ..., ...}'

Both sides import the same modules. Modules that are loaded at first use are loaded by the same operation on a small
table before.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import lance
from lance.fragment import DataFile, FragmentMetadata

from benchmarks.measure import peak
from benchmarks.tables import QUICK, ROWS, Made, linked
from lance_dagster import LanceTable, StagedFiles
from lance_dagster.types import StagedFile

COUNT, COMMIT = "count", "commit"
_ROOT = Path(__file__).parent.parent


def measured(side: str, what: str, small: Made, large: Made) -> int:
    """Return the bytes that a side takes to open and count, or to append, the large table.

    `side` is "lance_dagster" or "pylance".
    """
    file = lance.dataset(small.uri).get_fragments()[0].metadata.files[0]
    task = {
        "side": side,
        "what": what,
        "small": small.uri,
        "large": large.uri,
        "files": [[made.file.name, made.file.rows, made.file.size] for made in (small, large)],
        "file": {name.lstrip("_"): value for name, value in asdict(file).items()},
    }
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(task)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=_ROOT).stdout)  # noqa: S603


def _by_package(what: str, uri: str, file: StagedFile) -> Callable[[], object]:
    if what == COUNT:
        return lambda: LanceTable.open(uri).count_rows("production")
    table = LanceTable.open(uri, QUICK)
    staged = StagedFiles(ROWS.schema, (linked(table, file),))
    return lambda: LanceTable.open(uri, QUICK).append(staged)


def _pylance(what: str, uri: str, fragment: FragmentMetadata) -> Callable[[], object]:
    if what == COUNT:
        return lambda: lance.dataset(uri, version="production").count_rows()
    operation = lance.LanceOperation.Append([fragment])
    return lambda: lance.LanceDataset.commit(uri, operation, read_version=lance.dataset(uri).version)


def main() -> None:
    """Run the operation on the small table, then on the large one, and print the bytes that the second took."""
    task = json.loads(sys.argv[1])
    found = 0
    for uri, (name, rows, size) in zip((task["small"], task["large"]), task["files"], strict=True):
        if task["side"] == "lance_dagster":
            run = _by_package(task["what"], uri, StagedFile(name, rows, size))
        else:
            file = DataFile(**{**task["file"], "path": name})
            run = _pylance(task["what"], uri, FragmentMetadata(id=0, files=[file], physical_rows=rows))
        found = peak(run)
    print(found)


if __name__ == "__main__":
    main()
