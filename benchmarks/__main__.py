"""Measure, print and keep the results in `benchmarks/RESULTS.md`."""

import datetime as dt
import os
import platform
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa

from benchmarks.measure import Comparison, compare, sizes
from lance_dagster import LanceTable, StagedFile, StagedFiles, write_files

RESULTS = Path(__file__).parent / "RESULTS.md"
FRAGMENTS = (10, 1_000, 10_000)
MERGED_ROWS = (10_000, 1_000_000, 4_000_000)
ROUNDS = 9


def table_of(folder: Path, fragments: int) -> tuple[LanceTable, StagedFile]:
    """Make a table whose fragments all name one data file, and return that file."""
    rows = pa.table({"id": pa.array(range(100)), "text": ["some text"] * 100})
    table = LanceTable.create(folder / f"t{fragments}-{uuid.uuid4().hex[:8]}.lance", rows.schema)
    (file,) = write_files(table.target(), rows.to_batches())
    for _ in range(fragments // 1_000 or 1):
        table.append(StagedFiles(rows.schema, (file,) * min(fragments, 1_000)))
    table.create_tag("production", "main")
    return table, file


def opening(folder: Path) -> Iterator[Comparison]:
    """Open a table at a tag and count its rows."""
    for fragments in FRAGMENTS:
        uri = table_of(folder, fragments)[0].uri
        yield compare(
            f"open at a tag and count rows, {fragments:,} fragments",
            lambda uri=uri: LanceTable.open(uri).count_rows("production"),  # type: ignore[misc]
            lambda uri=uri: lance.dataset(uri, version="production").count_rows(),  # type: ignore[misc]
            rounds=ROUNDS,
        )


def committing(folder: Path) -> Iterator[Comparison]:
    """Commit an append of a data file that exists."""
    for fragments in FRAGMENTS:
        table, file = table_of(folder, fragments)
        staged = StagedFiles(table.schema(), (file,))
        fragment = lance.dataset(table.uri).get_fragments()[0].metadata
        operation = lance.LanceOperation.Append([replace(fragment, id=0, row_id_meta=None)])

        def theirs(uri: str = table.uri, operation: lance.LanceOperation.BaseOperation = operation) -> None:
            lance.LanceDataset.commit(uri, operation, read_version=lance.dataset(uri).version)

        yield compare(
            f"append-commit, {fragments:,} fragments",
            lambda table=table, staged=staged: table.append(staged),  # type: ignore[misc]
            theirs,
            rounds=ROUNDS,
            note="ours synced to disk, pylance's not",
        )


def merging(folder: Path) -> Iterator[str]:
    """Merge a branch of ever more rows; the alternative is to write the rows to `main` again."""
    for rows in MERGED_ROWS:
        data = pa.table({"id": pa.array(range(rows)), "value": pa.array([0.5] * rows)})
        table = LanceTable.create(folder / f"m{rows}-{uuid.uuid4().hex[:8]}.lance", data.schema)
        taken: list[float] = []
        written = 0
        for number in range(3):
            branch = f"run/{number}"
            table.create_branch(branch)
            table.append(data, branch=branch)
            before = sizes(Path(table.uri))
            taken.append(timed(lambda table=table, branch=branch: table.merge(branch)))  # type: ignore[misc]
            after = sizes(Path(table.uri))
            written = sum(size for path, size in after.items() if path not in before)
        copied = timed(lambda uri=table.uri, data=data: lance.write_dataset(data, uri, mode="append"))  # type: ignore[misc]
        merged = statistics.median(taken)
        yield f"| {rows:,} | {1000 * merged:.1f} ms | {written:,} | {1000 * copied:.1f} ms | {copied / merged:.1f} |"


def timed(run: Callable[[], object]) -> float:
    """Return how long something takes, in seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def report(folder: Path) -> Iterator[str]:
    """Yield the lines of the report as they are measured."""
    today = dt.datetime.now(dt.UTC).date()
    yield "# Results"
    yield ""
    yield f"{today}, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()},"
    yield f"pylance {lance.__version__}, local disk. Medians of {ROUNDS} rounds, both sides in turn."
    yield "Ratios above 1: faster than pylance."
    yield ""
    yield "| | ours | pylance | ratio | |"
    yield "|---|---|---|---|---|"
    for comparison in (*opening(folder), *committing(folder)):
        yield comparison.row()
    yield ""
    yield "A merge against writing the same rows to `main` with pylance:"
    yield ""
    yield "| rows on the branch | merge | bytes the merge wrote | writing again | ratio |"
    yield "|---|---|---|---|---|"
    yield from merging(folder)


def main() -> None:
    """Measure in a temporary folder."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for line in report(Path(folder)):
            print(line, flush=True)
            lines.append(line)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
