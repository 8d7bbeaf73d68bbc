"""The benchmarks: each case is a table of the report, whose rows are measured one after the other."""

import statistics
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import lance
import pyarrow as pa

from benchmarks import contention, loading, merging, publishing, repositories, sensing, spark, spark_memory
from benchmarks.measure import medians, ms, sizes, timed
from benchmarks.memory import COMMIT, COUNT, measured
from benchmarks.tables import QUICK, ROWS, Made, with_fragments, with_versions
from lance_dagster import LanceTable

FRAGMENTS = (10, 1_000, 10_000, 50_000)
VERSIONS = (10, 1_000, 10_000)
MERGED_ROWS = (10_000, 1_000_000, 4_000_000)
Rows = Iterator[tuple[str, ...]]
PACKAGE, QUICKLY, PYLANCE = "lance_dagster", "lance_dagster, not synced", "pylance"


@dataclass(frozen=True, slots=True)
class Case:
    """One table of the report. `note` describes the comparison, `rows` measures in a folder of its own."""

    name: str
    note: str
    columns: tuple[str, ...]
    rows: Callable[[Path], Rows]


def _compared(made: Made, package: Callable[[str], object], pylance: Callable[[str], object]) -> tuple[str, ...]:
    found = medians({PACKAGE: lambda: package(made.uri), PYLANCE: lambda: pylance(made.uri)})
    return ms(found[PACKAGE]), ms(found[PYLANCE]), f"{found[PYLANCE] / found[PACKAGE]:.2f}"


def _opened(made: Made, tag: str) -> tuple[str, ...]:
    return _compared(
        made,
        lambda uri: LanceTable.open(uri).count_rows(tag),
        lambda uri: lance.dataset(uri, version=tag).count_rows(),
    )


def _opening(folder: Path) -> Rows:
    for fragments in FRAGMENTS:
        made = with_fragments(folder, fragments)
        yield f"{fragments:,} fragments, count rows", *_opened(made, made.tag)
        yield (
            f"{fragments:,} fragments, schema",
            *_compared(
                made,
                lambda uri, tag=made.tag: LanceTable.open(uri).schema(tag),  # type: ignore[misc]
                lambda uri, tag=made.tag: lance.dataset(uri, version=tag).schema,  # type: ignore[misc]
            ),
        )
    for versions in VERSIONS:
        made = with_versions(folder, versions)
        yield f"{versions:,} versions, count rows", *_opened(made, made.tag)


def _pylance_append(made: Made) -> Callable[[], object]:
    fragment = lance.dataset(made.uri).get_fragments()[0].metadata
    operation = lance.LanceOperation.Append([replace(fragment, id=0, row_id_meta=None)])
    return lambda: lance.LanceDataset.commit(made.uri, operation, read_version=lance.dataset(made.uri).version)


def _committing(folder: Path) -> Rows:
    for fragments in FRAGMENTS:
        made = with_fragments(folder, fragments)
        size = made.manifest_bytes
        found = medians(
            {
                PACKAGE: lambda made=made: LanceTable.open(made.uri).append(made.staged),  # type: ignore[misc]
                QUICKLY: lambda made=made: LanceTable.open(made.uri, QUICK).append(made.staged),  # type: ignore[misc]
                PYLANCE: _pylance_append(made),
            }
        )
        times = tuple(ms(found[way]) for way in (PACKAGE, QUICKLY, PYLANCE))
        ratios = tuple(f"{found[PYLANCE] / found[way]:.2f}" for way in (PACKAGE, QUICKLY))
        per_megabyte = tuple(ms(found[way] / size * 1e6) if size > 1e5 else "" for way in (QUICKLY, PYLANCE))  # noqa: PLR2004
        yield f"{fragments:,}", f"{size:,}", *times, *ratios, *per_megabyte


def _deleting(folder: Path) -> Rows:
    for fragments in FRAGMENTS:
        made = with_fragments(folder, fragments - 1)
        # Rows that occur only once, one for each round.
        first = 10 * len(ROWS)
        made.table.append(pa.table({"id": pa.array(range(first, first + 100)), "text": ["a"] * 100}))
        ids = count(first)
        found = medians(
            {
                PACKAGE: lambda uri=made.uri, ids=ids: LanceTable.open(uri).delete(f"id = {next(ids)}"),  # type: ignore[misc]
                QUICKLY: lambda uri=made.uri, ids=ids: LanceTable.open(uri, QUICK).delete(f"id = {next(ids)}"),  # type: ignore[misc]
                PYLANCE: lambda uri=made.uri, ids=ids: lance.dataset(uri).delete(f"id = {next(ids)}"),  # type: ignore[misc]
            }
        )
        times = tuple(ms(found[way]) for way in (PACKAGE, QUICKLY, PYLANCE))
        ratios = tuple(f"{found[PYLANCE] / found[way]:.2f}" for way in (PACKAGE, QUICKLY))
        yield f"{fragments:,}", *times, *ratios


def _listing(folder: Path) -> Rows:
    for versions in VERSIONS:
        made = with_versions(folder, versions)
        whole = _compared(made, lambda uri: LanceTable.open(uri).log(), lambda uri: lance.dataset(uri).versions())
        yield f"{versions:,}, each with its time", *whole
        names = medians({PACKAGE: lambda uri=made.uri: LanceTable.open(uri).branches.version_numbers()})  # type: ignore[misc]
        yield f"{versions:,}, numbers alone", ms(names[PACKAGE]), "", ""


def _remembering(folder: Path) -> Rows:
    small, large = with_fragments(folder, 10), with_fragments(folder, FRAGMENTS[-1])
    size = large.manifest_bytes
    for what, shown in ((COUNT, "open at a tag and count rows"), (COMMIT, "append-commit")):
        # The least of three, because other activity can only add to it.
        package, pylance = (min(measured(side, what, small, large) for _ in range(3)) for side in (PACKAGE, PYLANCE))
        yield (
            shown,
            f"{size / 1e6:.1f} MB",
            f"{package / 1e6:.1f} MB",
            f"{pylance / 1e6:.1f} MB",
            f"{pylance / package:.2f}",
        )


def _merging(folder: Path) -> Rows:
    for rows in MERGED_ROWS:
        data = pa.table({"id": pa.array(range(rows)), "value": pa.array([0.5] * rows)})
        table = LanceTable.create(folder / f"m{rows}-{uuid.uuid4().hex[:8]}.lance", data.schema)
        taken: list[float] = []
        written = 0
        for number in range(3):
            branch = f"run/{number}"
            table.branches.create(branch)
            table.append(data, branch=branch)
            before = sizes(Path(table.uri))
            taken.append(timed(lambda table=table, branch=branch: table.merge(branch)))  # type: ignore[misc]
            after = sizes(Path(table.uri))
            written = sum(size for path, size in after.items() if path not in before)
        copied = timed(lambda uri=table.uri, data=data: lance.write_dataset(data, uri, mode="append"))  # type: ignore[misc]
        merged = statistics.median(taken)
        yield f"{rows:,}", ms(merged), f"{written:,}", ms(copied), f"{copied / merged:.1f}"


_CONTENTION = (
    "writers",
    "commits a second",
    "by pylance's",
    "median ms",
    "p99 ms",
    "by pylance's",
    "fairness",
    "slowest writer",
    "given up",
    "lost",
)
CASES = (
    Case(
        "open",
        "Open a table at a tag, and count its rows or read its schema.",
        ("table", PACKAGE, PYLANCE, "ratio"),
        _opening,
    ),
    Case(
        "commit",
        "Open a table and append an existing data file. pylance does not sync to disk; this package syncs unless the "
        "storage option `durability` is `process`.",
        (
            "fragments",
            "manifest bytes",
            *(PACKAGE, QUICKLY, PYLANCE),
            *("ratio", "ratio, not synced"),
            *("not synced, per MB", "pylance, per MB"),
        ),
        _committing,
    ),
    Case(
        "delete",
        "Open a table and delete one row; both look for it in all fragments.",
        ("fragments", PACKAGE, QUICKLY, PYLANCE, "ratio", "ratio, not synced"),
        _deleting,
    ),
    Case(
        "versions",
        "Open a table of 10 fragments and list its versions. Numbers alone can be read from file names; pylance reads "
        "every manifest for them too.",
        ("versions", PACKAGE, PYLANCE, "ratio"),
        _listing,
    ),
    Case(
        "memory",
        f"{FRAGMENTS[-1]:,} fragments: memory at its peak, beyond that of a process that did so to a small table.",
        ("", "manifest", PACKAGE, PYLANCE, "ratio"),
        _remembering,
    ),
    Case(
        "merge",
        "A merge against writing the same rows to `main` with pylance.",
        ("rows on the branch", "merge", "bytes the merge wrote", "writing again", "ratio"),
        _merging,
    ),
    Case(
        "merge, by rows",
        "A branch that appended one fragment, of different sizes in rows; not synced. Each ratio is to the smallest.",
        ("rows on the branch", "merge", "preview", "revert", "merge ratio", "preview ratio", "revert ratio"),
        merging.by_rows,
    ),
    Case(
        "diff, commit ids and garbage collection, by rows",
        "A branch that appended one fragment, with different numbers of rows, compared with a main of one row; not "
        "synced. Nothing is written. Each ratio is to the smallest number of rows.",
        (
            "rows on the branch",
            *("diff, counted", "changes since the base, counted", "content id", "collection, dry run"),
            *("diff ratio", "changes ratio", "content id ratio", "collection ratio"),
        ),
        merging.looks_by_rows,
    ),
    Case(
        "merge, by what changed",
        f"A branch that changed some of {merging.CHANGED[-1]:,} fragments, one row in each, merged into a main that "
        "moved; not synced. For comparison: copying the data files that changed, and the same change by pylance in a "
        "shallow clone, with `merge_insert` or `delete`.",
        ("change, fragments", "merge", "bytes the merge wrote", "copying", PYLANCE, "ratio"),
        merging.by_changed,
    ),
    Case(
        "merge, by what did not change",
        "A branch that changed one fragment of many, merged into a main that moved; not synced. A manifest names every "
        "fragment, so each has to be read and written.",
        ("change, fragments", "merge", "bytes the merge wrote", "copying", PYLANCE, "ratio"),
        merging.by_unchanged,
    ),
    Case(
        "merge, by bytes",
        f"A branch that appended {merging.PIECES} fragments of different sizes, merged into a main that moved; not "
        "synced. For comparison: copying them, and `merge_insert` of the same rows into a shallow clone.",
        ("data", "merge", "bytes the merge wrote", "copying", PYLANCE, "ratio"),
        merging.by_bytes,
    ),
    Case(
        "sensor, by tables",
        f"One tick of `build_ref_sensor` over small tables: unchanged, and after {sensing.CHANGED} of them changed; by "
        "the refs of each table, and by a channel of a repository. "
        "For comparison: opening every table and reading its newest version, one after the other; the ratio is that "
        "divided by an unchanged tick. Requests are read calls of the storage, which are requests on object storage.",
        (
            "tables",
            *("unchanged", "requests for each table", "opening", "ratio"),
            *("some changed", "more requests for each that changed", "changed by unchanged"),
        ),
        sensing.by_tables,
    ),
    Case(
        "publishing, by tables",
        f"The step of the publisher in a run that wrote, checked and published small tables; the median of "
        f"{publishing.RUNS} runs. Beside it, for each table: merging a branch, moving the tag and deleting the branch, "
        "without Dagster and without an audit; the ratio is the step by that. `Dagster alone` is a step that publishes "
        "nothing and reports the same materializations; the last ratio is without that share.",
        (
            *("tables", "step", "for each table", "Dagster alone", "without Dagster"),
            *("ratio", "ratio without Dagster alone"),
        ),
        publishing.by_tables,
    ),
    Case(
        "repository, by changed tables",
        f"The publication of a run in a repository of {repositories.TABLES} small tables, with a channel: the median "
        f"of {repositories.RUNS}. Requests are calls of the storage, which are the requests on object storage.",
        ("changed tables", "publication", "for each table", "requests", "requests for each table"),
        repositories.by_changed_tables,
    ),
    Case(
        "repository, by tables",
        f"The publication of a run of one table, with a channel, by the number of tables: the median of "
        f"{repositories.RUNS} in a process that has read the repository; what it stores in commits; its requests in a "
        "process that opens the repository anew; and the status in such a process.",
        ("tables", "publication", "stored in commits", "requests", "status"),
        repositories.by_tables,
    ),
    Case(
        "collection, by branches",
        "A dry run of the collection of a table with branches of one commit each, in a process that opens the table.",
        ("branches", "collection, dry run", "requests"),
        repositories.by_branches,
    ),
    Case(
        "repository, by history",
        "Resolving a channel of a repository to the version of one of its tables, in a process that opens both anew.",
        ("entries of the channel", "resolving", "requests"),
        repositories.by_entries,
    ),
    Case(
        "loading",
        "The processor time of a process that loads a code location with an asset, two blocking checks, a publisher, a "
        "resource and an IO manager; for comparison, equivalent definitions with Dagster alone, in turn. Medians "
        f"of {loading.ROUNDS} pairs.",
        ("", "Dagster alone", "with lance_dagster", "more"),
        loading.rows,
    ),
    Case(
        "Spark, writes",
        "The speed of each way to write a frame of Parquet files, as a multiple of that of Spark's own Parquet; larger "
        "is faster. Data source: `df.write.format`; large batches: the same inside of `large_batches`. Bridge: Spark's "
        "transfer to Python, where the rows are discarded; no write in Python can be faster. pylance: one "
        'process without Spark. Coalesced: `stage(coalesce="auto")`, and `frame.coalesce(2)` before `df.write`. The '
        "goal is that of `stage`; the data source should be within a tenth of it.",
        ("data", "goal", "`stage`", "data source", "large batches", "bridge", PYLANCE),
        spark.writes,
    ),
    Case(
        "Spark, reads",
        "The speed of each way to read a table into a sink that discards the rows, as a multiple of that of Parquet "
        "files; larger is faster. Bridge: Spark's transfer of one decoded batch, again and again; where it is slower "
        "than the goal, no decoding in Python can reach the goal. pylance: one process without Spark.",
        ("query", "goal", "`read_table`", "data source", "bridge", PYLANCE),
        spark.reads,
    ),
    Case(
        "Spark, memory of workers",
        "The memory of the largest Python worker at its peak, about 230 MiB of which are imports. Large partition: the "
        "rows are one partition, and are read under a filter, for which a task reads whole fragments. The goal is at "
        "most 350 MiB.",
        ("data", "written", "read", "large partition, written", "large partition, read"),
        spark_memory.rows,
    ),
    Case(
        "Spark, memory of the driver",
        "The memory of the driver at its peak during each operation on narrow rows: that of the largest of its Python "
        "and the Python processes that Spark starts beside it to plan and to commit, and that of its Java. The "
        "executor is a process of its own. There are as many partitions of the few rows as of the many, so the memory "
        "should be the same. An upsert keeps eight bytes for each row that changes.",
        ("", *(f"{part}, {rows / 1e6:.0f}M rows" for part in ("Python", "Java") for rows in spark_memory.DRIVER_ROWS)),
        spark_memory.driver_rows,
    ),
    Case(
        "Spark, cores",
        "Writes and reads of narrow rows in a session of one core and in one of two.",
        ("", "1 core", "2 cores", "ratio"),
        spark.cores,
    ),
    Case(
        "contention on local disk",
        f"Processes that append one row again and again to one branch, on local disk, on the S3 server of the "
        f"tests and on Ceph, which take {contention.LATENCY * 1e3:.0f} ms for each response, for "
        f"{contention.SECONDS:.0f} seconds, and {contention.SECONDS_ON_S3:.0f} on both with several writers; "
        f"medians of {contention.ROUNDS} rounds, in which the libraries take turns. Fairness is Jain's index of the "
        "writers' commits; where each made few, chance alone reduces it below 1: to 0.8 for four commits each. An "
        "append that pylance gave up, after 20 attempts, is not a commit; its time counts among the others. 'pylance' "
        "calls write_dataset; 'pylance, commit' writes a data file and calls LanceDataset.commit; ratios are those to "
        "'pylance'. Lines with 'each every' are an open loop: each writer has an append due at fixed times, whose time "
        "counts from when it was due, and those that were not begun in time are given up. Lost are appends that were "
        "acknowledged and are not in the table, in all rounds. On "
        "local disk pylance does not sync; the line 'not synced' is with the option durability=process, and writes "
        "the same files as pylance: data, transaction, manifest, hint. On S3 both sides make the same durable writes. "
        "An append without a rival waits there for three responses one after the other, one of pylance's for six. "
        "Every other writer reads the manifest of each version, to verify that it does not conflict with its own "
        "change. With 16 writers these are 15 of about 25 requests of a commit, in both libraries. A request of "
        "lance_dagster takes about 3 ms of processor time in botocore. So two processors limit the rate of many "
        "writers; with more processors, two responses for each version limit it: the read of the one before, and the "
        "put.",
        _CONTENTION,
        contention.on_disk,
    ),
    Case(
        "contention on S3",
        "The same on the S3 server of the tests.",
        _CONTENTION,
        contention.on_s3,
    ),
    Case(
        "contention on Ceph",
        "The same on a Ceph gateway.",
        _CONTENTION,
        contention.on_ceph,
    ),
)
