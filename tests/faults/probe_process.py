"""Use damaged tables in a separate process, so that a hang, a crash or exhausted memory is seen from outside.

    python -m tests.faults.probe_process table mutations report

The process writes one line of JSON to the report before and after it tries each mutation, so that the last line names
the mutation that killed it.
"""

import json
import os
import pickle
import resource
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.errors import (
    BasePathRefusedError,
    ConflictError,
    FormatError,
    LanceDagsterError,
    NotFoundError,
    SchemaMismatchError,
)
from lance_dagster.history.context import open_context
from lance_dagster.history.rebase import deleted_offsets
from tests.faults.mutations import Mutation

SECONDS_EACH = 10
SPARE_THREADS = 8
Probe = Callable[[LanceTable], object]
_ORDINARY = (
    *("Not found: ", "No such file or directory", "Not a directory", "File name too long", "Invalid argument"),
    *("No field named", "there are no more ids after", "Invalid table location", "Unknown scheme", "Could not parse"),
    "is gone, so its fork point",
)
"""What is said of a manifest that is in order and names a file, a folder or a column that is not there."""


def rows(count: int) -> pa.Table:
    """Rows of the table under trial."""
    return pa.table({"value": pa.array(range(count), pa.int64()), "key": pa.array(["k"] * count, pa.string())})


def offsets(table: LanceTable) -> None:
    """Read the deletion vectors of main, as a merge and a commit that lost a race do."""
    context = open_context(table.uri, None)
    state = context.head("main")
    for fragment in state.manifest.fragments:
        deleted_offsets(context.versions, state, fragment)


PACKAGE_PROBES: dict[str, Probe] = {
    "at": lambda table: table.at("main"),
    "log": lambda table: table.log("inner"),
    "count": lambda table: table.count_rows(),
    "schema": lambda table: table.schema(),
    "branches": lambda table: table.branches.list(),
    "tags": lambda table: table.tags.list(),
    "tag": lambda table: table.at("release"),
    "branch": lambda table: table.head("inner"),
    "time": lambda table: table.at("main@{2020-01-01}"),
    "preview": lambda table: table.preview_merge("run"),
    "create_branch": lambda table: table.branches.create("other", "inner"),
    "move_tag": lambda table: table.tags.move("release", "main@1"),
    "offsets": offsets,
    "append": lambda table: table.append(rows(1)),
    "delete_branch": lambda table: table.branches.delete("inner"),
}
"""Probes in which this package reads every byte itself."""
PYLANCE_PROBES: dict[str, Probe] = {
    "read": lambda table: table.read(),
    "filter": lambda table: table.count_rows(filter="value > 3"),
    "delete": lambda table: table.replace_where("value = 3", rows(4).slice(3)),
    "merge": lambda table: table.merge("run"),
}
"""Probes in which pylance reads the same files."""


def outcome(probe: Probe, table: Path, threads: ThreadPoolExecutor) -> str | None:
    """Return what is wrong with the outcome of a probe; None when it works, or its error names the damaged file."""
    future = threads.submit(lambda: probe(LanceTable.open(table, {"durability": "process"})))
    if not wait([future], timeout=SECONDS_EACH).done:
        return "it takes too long"
    # A panic of pylance is not an `Exception`, but a future stores it too.
    error = future.exception()
    if isinstance(error, FormatError):
        # A base path may lead anywhere.
        return None if str(table) in str(error) or str(error).endswith("is missing") else f"names no file: {error}"
    if isinstance(error, BasePathRefusedError):
        # A damaged base path names another place, which is not an allowed one.
        return None if str(table) in str(error) else f"names no table: {error}"
    if error is None or isinstance(error, NotFoundError | ConflictError | SchemaMismatchError):
        # Damage that looks like an ordinary change, such as a name of another place, is treated like one.
        return None
    if isinstance(error, LanceDagsterError) and any(said in str(error) for said in _ORDINARY):
        return None
    return f"{type(error).__name__}: {error}"


def try_all(base: Path, mutations: list[tuple[str, Mutation]], report: TextIO) -> None:
    """Damage a copy of the table with each mutation, and use it."""
    threads = ThreadPoolExecutor(SPARE_THREADS)
    for number, (probes, mutation) in enumerate(mutations):
        report.write(json.dumps({"trying": f"{mutation.path}: {mutation.name}"}) + "\n")
        report.flush()
        table = base.parent / f"t{number}"
        shutil.copytree(base, table, copy_function=os.link)
        target = table / mutation.path
        target.unlink()
        target.write_bytes(mutation.data)
        started = time.monotonic()
        problems = []
        for name, probe in {**PACKAGE_PROBES, **(PYLANCE_PROBES if probes == "all" else {})}.items():
            problem = outcome(probe, table, threads)
            if problem is not None:
                problems.append(f"{name}: {problem}"[:400])
        shutil.rmtree(table)
        seconds = time.monotonic() - started
        line = {"done": f"{mutation.path}: {mutation.name}", "problems": problems, "seconds": seconds, "mb": memory()}
        report.write(json.dumps(line) + "\n")
        report.flush()


def memory() -> int:
    """The peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    base_, mutations_, report_ = map(Path, sys.argv[1:])
    wanted = pickle.loads(mutations_.read_bytes())  # noqa: S301  # written by the test that starts this process
    with report_.open("w") as output:
        warm = LanceTable.open(base_)
        warm.read()
        warm.count_rows(filter="value > 3")
        output.write(json.dumps({"memory": memory()}) + "\n")
        try_all(base_, wanted, output)
    # The process does not wait for threads that hang.
    os._exit(0)
