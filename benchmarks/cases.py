"""The benchmarks: each case is a table of the report, whose rows are measured one after the other."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import lance
import pyarrow as pa

from benchmarks import contention, loading, merging, partitions, publishing, repositories, sensing, spark, spark_memory
from benchmarks.figures import Case, Goal, Plot
from benchmarks.measure import medians, ms
from benchmarks.memory import COMMIT, COUNT, measured
from benchmarks.tables import QUICK, ROWS, Made, with_days, with_fragments, with_versions
from lance_dagster import LanceTable

FRAGMENTS = (10, 1_000, 10_000, 50_000)
VERSIONS = (10, 1_000, 10_000)
DAYS = (10, 1_000)
Rows = Iterator[tuple[str, ...]]
PACKAGE, QUICKLY, PYLANCE = "lance_dagster", "lance_dagster, not synced", "pylance"


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


def _partitioning(folder: Path) -> Rows:
    for days in DAYS:
        uri, day = with_days(folder, days), "day = 'd3'"
        rows = pa.table({"day": ["d3"], "id": [3]})

        def replaced_by_pylance(uri: str = uri, day: str = day, rows: pa.Table = rows) -> None:
            lance.dataset(uri).delete(day)
            lance.write_dataset(rows, uri, mode="append")

        # Before pylance writes a file of the day.
        counted = medians(
            {
                PACKAGE: lambda uri=uri, day=day: LanceTable.open(uri).count_rows(filter=day),  # type: ignore[misc]
                PYLANCE: lambda uri=uri, day=day: lance.dataset(uri).count_rows(filter=day),  # type: ignore[misc]
            }
        )
        yield f"{days:,} days, count one", *_times(counted)
        replaced = medians(
            {PACKAGE: lambda uri=uri, day=day, rows=rows: LanceTable.open(uri, QUICK).replace_where(day, rows)}  # type: ignore[misc]
        ) | medians({PYLANCE: replaced_by_pylance})
        yield f"{days:,} days, replace one", *_times(replaced)


def _times(found: Mapping[str, float]) -> tuple[str, str, str]:
    return ms(found[PACKAGE]), ms(found[PYLANCE]), f"{found[PYLANCE] / found[PACKAGE]:.2f}"


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


_BOTH = Plot(columns=(PACKAGE, PYLANCE), axis="milliseconds")
_THREE = Plot(columns=(PACKAGE, QUICKLY, PYLANCE), axis="milliseconds")
_BY_CHANGE = Plot(columns=("merge", "copying", PYLANCE), axis="milliseconds")
_RIVALS = r".*, (8|16) writers, lance_dagster"
_CONTENTION_GOALS = (
    Goal(column="rate by pylance's", least=1.5, rows=_RIVALS),
    Goal(column="p99 by pylance's", most=0.2, rows=_RIVALS),
    Goal(column="fairness", least=0.9, rows=_RIVALS),
)
_RATES = Plot(columns=("commits a second",), axis="commits a second", logarithmic=False, rows="(?!.*each every).*")
_CONTENTION = (
    "writers",
    "commits a second",
    "rate by pylance's",
    "median ms",
    "p99 ms",
    "p99 by pylance's",
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
        plot=_BOTH,
    ),
    Case(
        "commit",
        "Open a table and append an existing data file. pylance does not sync to disk; this package syncs unless the "
        "storage option `durability` is `process`. An append searches the names of the table's data files for its own, "
        "which takes 0.2 ms for each thousand fragments.",
        (
            "fragments",
            "manifest bytes",
            *(PACKAGE, QUICKLY, PYLANCE),
            *("ratio", "ratio, not synced"),
            *("not synced, per MB", "pylance, per MB"),
        ),
        _committing,
        plot=_THREE,
    ),
    Case(
        "delete",
        "Open a table and delete one row. pylance looks for it in all fragments, and this package in those whose range "
        "of ids has it.",
        ("fragments", PACKAGE, QUICKLY, PYLANCE, "ratio", "ratio, not synced"),
        _deleting,
        plot=_THREE,
    ),
    Case(
        "partition",
        "Open a table with one fragment for each day, and count or replace the rows of one day; neither side syncs. "
        "pylance replaces them in two commits.",
        ("table", PACKAGE, PYLANCE, "ratio"),
        _partitioning,
        plot=_BOTH,
    ),
    Case(
        "partition, requests by fragments",
        "The requests of an operation on a partition of one fragment, by the fragments of the table, which is opened "
        "anew on the S3 server of the tests. The floor is what the protocol needs.",
        ("operation", "requests", "floor"),
        partitions.by_fragments,
        goals=(Goal(column="requests", most=9),),
        plot=Plot(columns=("requests", "floor"), axis="requests", logarithmic=False),
    ),
    Case(
        "backfill in one run, by partitions",
        f"A run that writes {partitions.ROWS_OF_PARTITION} rows to each partition, checks and publishes them: the "
        "median of three; not synced. Most of the time is Dagster's, which stores an event for each partition in both "
        "steps. The floor is the size of the data files and of the largest manifest.",
        ("partitions", "written", "published", "for each partition", "stored", "floor"),
        partitions.by_partitions,
        plot=Plot(columns=("written", "published"), axis="milliseconds"),
    ),
    Case(
        "versions",
        "Open a table of 10 fragments and list its versions. Numbers alone can be read from file names; pylance reads "
        "every manifest for them too.",
        ("versions", PACKAGE, PYLANCE, "ratio"),
        _listing,
        plot=_BOTH,
    ),
    Case(
        "memory",
        f"{FRAGMENTS[-1]:,} fragments: memory at its peak, beyond that of a process that did so to a small table.",
        ("", "manifest", PACKAGE, PYLANCE, "ratio"),
        _remembering,
        plot=Plot(columns=(PACKAGE, PYLANCE), axis="MB", logarithmic=False),
    ),
    Case(
        "merge, by rows",
        "A branch that appended one fragment, of different sizes in rows; not synced. Each ratio is to the smallest.",
        ("rows on the branch", "merge", "preview", "revert", "merge ratio", "preview ratio", "revert ratio"),
        merging.by_rows,
        goals=tuple(Goal(column=f"{name} ratio", most=1.5) for name in ("merge", "preview", "revert")),
        plot=Plot(columns=("merge", "preview", "revert"), axis="milliseconds", logarithmic=False),
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
        plot=Plot(
            columns=("diff, counted", "changes since the base, counted", "content id", "collection, dry run"),
            axis="milliseconds",
        ),
    ),
    Case(
        "merge, by what changed",
        f"A branch that changed some of {merging.CHANGED[-1]:,} fragments, one row in each, merged into a main that "
        "moved; not synced. For comparison: copying the data files that changed, and the same change by pylance in a "
        "shallow clone, with `merge_insert` or `delete`. A merge of deletions and updates writes a small file for each "
        "fragment.",
        ("change, fragments", "merge", "bytes the merge wrote", "copying", PYLANCE, "ratio"),
        merging.by_changed,
        plot=_BY_CHANGE,
    ),
    Case(
        "merge, by what did not change",
        "A branch that changed one fragment of many, merged into a main that moved; not synced. A manifest names every "
        "fragment, so each has to be read and written.",
        ("change, fragments", "merge", "bytes the merge wrote", "copying", PYLANCE, "ratio"),
        merging.by_unchanged,
        plot=_BY_CHANGE,
    ),
    Case(
        "merge, by bytes",
        f"A branch that appended {merging.PIECES} fragments of different sizes, merged into a main that moved; not "
        "synced. For comparison: copying them, and `merge_insert` of the same rows into a shallow clone.",
        ("data", "merge", "bytes the merge wrote", "copying", PYLANCE, "ratio"),
        merging.by_bytes,
        plot=_BY_CHANGE,
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
        plot=Plot(columns=("unchanged", "opening", "some changed"), axis="milliseconds"),
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
        plot=Plot(columns=("step", "Dagster alone", "without Dagster"), axis="milliseconds"),
    ),
    Case(
        "repository, by changed tables",
        f"The publication of a run in a repository of {repositories.TABLES} small tables, with a channel: the median "
        f"of {repositories.RUNS}. Requests are calls of the storage, which are the requests on object storage.",
        ("changed tables", "publication", "for each table", "requests", "requests for each table"),
        repositories.by_changed_tables,
        plot=Plot(columns=("publication",), axis="milliseconds"),
    ),
    Case(
        "repository, by tables",
        f"The publication of a run of one table, with a channel, by the number of tables: the median of "
        f"{repositories.RUNS} in a process that has read the repository; what it stores in commits; its requests in a "
        "process that opens the repository anew; and the status in such a process.",
        ("tables", "publication", "stored in commits", "requests", "status"),
        repositories.by_tables,
        plot=Plot(columns=("publication", "status"), axis="milliseconds"),
    ),
    Case(
        "collection, by branches",
        "A dry run of the collection of a table with branches of one commit each, in a process that opens the table.",
        ("branches", "collection, dry run", "requests"),
        repositories.by_branches,
        plot=Plot(columns=("collection, dry run",), axis="milliseconds"),
    ),
    Case(
        "repository, by history",
        "Resolving a channel of a repository to the version of one of its tables, in a process that opens both anew. "
        "The time is that of listing the folder on local disk; an object store returns the first name of it.",
        ("entries of the channel", "resolving", "requests"),
        repositories.by_entries,
        plot=Plot(columns=("resolving",), axis="milliseconds", logarithmic=False),
    ),
    Case(
        "loading",
        "The processor time of a process that loads a code location with an asset, two blocking checks, a publisher, a "
        "resource and an IO manager; for comparison, equivalent definitions with Dagster alone, in turn. Medians "
        f"of {loading.ROUNDS} pairs.",
        ("", "Dagster alone", "with lance_dagster", "more"),
        loading.rows,
        plot=Plot(columns=("Dagster alone", "with lance_dagster"), axis="milliseconds", logarithmic=False),
    ),
    Case(
        "Spark, writes",
        "The speed of each way to write a frame of Parquet files, as a multiple of that of Spark's own Parquet; larger "
        "is faster. Data source: `df.write.format`; large batches: the same inside of `large_batches`. Bridge: Spark's "
        "transfer to Python, where the rows are discarded; no write in Python can be faster. pylance: one "
        'process without Spark. Coalesced: `stage(coalesce="auto")`, and `frame.coalesce(2)` before `df.write`. The '
        "goal is that of `stage`; with large batches the data source should be within a tenth of it, and without them "
        "it computes the size of each row for a limit of bytes, which Spark lets no source change. Encoding needs the "
        "processors that the bridge needs; embeddings are limited by the disk. pylance panics at nested data.",
        ("data", "goal", "`stage`", "data source", "large batches", "bridge", PYLANCE),
        spark.writes,
        goals=(Goal(column="`stage`"),),
        plot=Plot(
            columns=("goal", "`stage`", "data source", "large batches", "bridge", PYLANCE),
            axis="multiple of the speed of Spark's own Parquet",
        ),
    ),
    Case(
        "Spark, reads",
        "The speed of each way to read a table into a sink that discards the rows, as a multiple of that of Parquet "
        "files; larger is faster. Bridge: Spark's transfer of one decoded batch, again and again; where it is slower "
        "than the goal, no decoding in Python can reach the goal. pylance: one process without Spark. Spark turns the "
        "batches of a Python source into rows, one by one, and its own Parquet reader does not. A query that reads "
        "little spends its time on its Python tasks and on planning, mostly on the filter by which Spark learns the "
        "size of a frame; Parquet has neither task nor transfer.",
        ("query", "goal", "`read_table`", "data source", "bridge", PYLANCE),
        spark.reads,
        goals=(Goal(column="`read_table`"),),
        plot=Plot(
            columns=("goal", "`read_table`", "data source", "bridge", PYLANCE),
            axis="multiple of the speed of Spark's own Parquet",
            rows="(?!10,000).*",
        ),
    ),
    Case(
        "Spark, memory of workers",
        "The memory of the largest Python worker at its peak, about 230 MiB of which are imports. Large partition: the "
        "rows are one partition, and are read under a filter, for which a task reads whole fragments. A worker returns "
        "a freed buffer at once if it has 32 MiB or more, and the end of a heap once more than 16 MiB there are free.",
        ("data", "written", "read", "large partition, written", "large partition, read"),
        spark_memory.rows,
        goals=tuple(
            Goal(column=column, most=350)
            for column in ("written", "read", "large partition, written", "large partition, read")
        ),
        plot=Plot(
            columns=("written", "read", "large partition, written", "large partition, read"),
            axis="MiB",
            logarithmic=False,
        ),
    ),
    Case(
        "Spark, memory of the driver",
        "The memory of the driver at its peak during each operation on narrow rows: that of the largest of its Python "
        "and the Python processes that Spark starts beside it to plan and to commit, and that of its Java. The "
        "executor is a process of its own. There are as many partitions of the few rows as of the many, so the memory "
        "should be the same. An upsert keeps eight bytes for each row that changes, `read_changes` about 150 for each "
        "changed row, whose values the driver compares in batches; `compact_table` runs after it in the same process.",
        ("", *(f"{part}, {rows / 1e6:.0f}M rows" for part in ("Python", "Java") for rows in spark_memory.DRIVER_ROWS)),
        spark_memory.driver_rows,
        plot=Plot(
            columns=("Python, 1M rows", "Python, 10M rows", "Java, 1M rows", "Java, 10M rows"),
            axis="MiB",
            logarithmic=False,
        ),
    ),
    Case(
        "Spark, cores",
        "Writes and reads of narrow rows in a session of one core and in one of two.",
        ("", "1 core", "2 cores", "ratio"),
        spark.cores,
        plot=Plot(columns=("1 core", "2 cores"), axis="milliseconds", logarithmic=False),
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
        "An append without a rival waits there for three responses one after the other, one of pylance's for six. An "
        "append that lost a race reads the winner, the version after it and the newest one, where pylance reads each "
        "of them. A request of lance_dagster takes about 3 ms of processor time in botocore, so two processors limit "
        "the rate of many writers.",
        _CONTENTION,
        contention.on_disk,
        goals=_CONTENTION_GOALS,
        plot=_RATES,
    ),
    Case(
        "contention on S3",
        "The same on the S3 server of the tests. The writers of one machine take turns, and hand over the manifest "
        "that they have just put; 'without turns' are writers that race as those of sixteen machines would, except "
        "that they share two processors here.",
        _CONTENTION,
        contention.on_s3,
        goals=_CONTENTION_GOALS,
        plot=_RATES,
    ),
    Case(
        "contention on Ceph",
        "The same on a Ceph gateway. Monitor, store, gateway, proxy and writers share two processors, which limits the "
        "rate: Ceph's own processes take most of the time, whoever writes.",
        _CONTENTION,
        contention.on_ceph,
        goals=_CONTENTION_GOALS,
        plot=_RATES,
    ),
)
