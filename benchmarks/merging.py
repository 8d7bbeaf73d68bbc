"""Measure merges by changed fragments, by unchanged fragments and by bytes, compared with copying and with pylance."""

import shutil
import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from benchmarks.measure import ms, sizes, timed
from benchmarks.tables import QUICK, ROWS, with_fragments
from lance_dagster import LanceTable, StagedFiles, write_files

CHANGED = (1, 10, 100, 1_000)
UNCHANGED = (10, 1_000, 10_000, 50_000)
APPENDED = (10_000, 1_000_000, 10_000_000, 100_000_000)
MEGABYTES = (1, 10, 100, 400)
PIECES = 10
_APPEND, _DELETE, _UPDATE = "append", "delete", "update"
_KINDS = (_APPEND, _DELETE, _UPDATE)
_ROUNDS = 3
_BRANCHES = 7
_ROWS_EACH = 100
_NEW = 10**7
"""From this id on, rows are new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A change: rows that are inserted, as some fragments, or rows that are deleted or updated."""

    kind: str
    rows: pa.Table
    fragments: int = 1
    where: str = ""

    def on_branch(self, table: LanceTable, branch: str) -> None:
        """Make the change with this package."""
        if self.kind == _DELETE:
            table.delete(self.where, branch=branch)
        elif self.kind == _UPDATE:
            table.update({"text": "'other'"}, where=self.where, branch=branch)
        else:
            each = -(-self.rows.num_rows // self.fragments)
            pieces = [self.rows.slice(number * each, each) for number in range(self.fragments)]
            files = tuple(file for piece in pieces for file in table.stage(piece).files)
            table.append(StagedFiles(self.rows.schema, files), branch=branch)

    def on_clone(self, clone: lance.LanceDataset) -> None:
        """Make the change with pylance, which has no other way to merge."""
        if self.kind == _DELETE:
            clone.delete(self.where)
        else:
            clone.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(self.rows)


def by_changed(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure merges of branches that changed some of many fragments."""
    for kind in _KINDS:
        for changed in CHANGED:
            table = _with_real_fragments(folder, CHANGED[-1])
            jobs = [_in_fragments(kind, changed, number) for number in range(_ROUNDS)]
            yield f"{kind}, {changed:,}", *_beside(folder, table, jobs)


def by_unchanged(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure merges of branches that changed one fragment of many."""
    for kind in _KINDS:
        for fragments in UNCHANGED:
            made = with_fragments(folder, fragments - 1)
            first = 10**6
            made.table.append(_rows(first, 1))
            jobs = [
                _Job(kind=kind, rows=_rows(_NEW + number * _ROWS_EACH, 1), where=f"id = {first + number}")
                if kind == _APPEND
                else _Job(
                    kind=kind, rows=_others(range(first + number, first + number + 1)), where=f"id = {first + number}"
                )
                for number in range(_ROUNDS)
            ]
            yield f"{kind}, {fragments:,}", *_beside(folder, LanceTable.open(made.uri, QUICK), jobs)


def by_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure merges, previews and reverts of branches that appended one fragment, with different numbers of rows.

    A fragment of 100 million rows is a file of one column of one byte, all of them zero, which takes a few kilobytes.
    The table is valid: each row can be read. All sizes are measured in turn, so that a machine that slows down slows
    all of them.
    """
    tables = {rows: _with_appended(folder, rows) for rows in APPENDED}
    taken: dict[int, list[tuple[float, ...]]] = {rows: [] for rows in APPENDED}
    for number in range(_BRANCHES):
        for rows, uri in tables.items():
            merging = LanceTable.open(uri, QUICK)
            preview = timed(lambda merging=merging, number=number: merging.preview_merge(f"run/{number}"))  # type: ignore[misc]
            merging = LanceTable.open(uri, QUICK)
            merge = timed(lambda merging=merging, number=number: merging.merge(f"run/{number}"))  # type: ignore[misc]
            merging = LanceTable.open(uri, QUICK)
            revert = timed(lambda merging=merging: merging.revert("main", parent=1))  # type: ignore[misc]
            taken[rows].append((merge, preview, revert))
    yield from _beside_smallest(taken)


def looks_by_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure read-only operations on branches that appended one fragment, with different numbers of rows."""
    tables = {rows: _with_appended(folder, rows) for rows in APPENDED}
    taken: dict[int, list[tuple[float, ...]]] = {rows: [] for rows in APPENDED}
    for number in range(_BRANCHES):
        branch = f"run/{number}"
        looks: tuple[Callable[[LanceTable], object], ...] = (
            lambda table, branch=branch: table.diff("main", branch).stat(),  # type: ignore[misc]
            lambda table, branch=branch: table.diff("main", branch, since_base=True).stat(),  # type: ignore[misc]
            lambda table, branch=branch: table.maintenance.content_id(branch),  # type: ignore[misc]
            lambda table: table.maintenance.collect_garbage(dry_run=True),
        )
        for rows, uri in tables.items():
            opened = [(look, LanceTable.open(uri, QUICK)) for look in looks]
            taken[rows].append(tuple(timed(lambda look=look, table=table: look(table)) for look, table in opened))  # type: ignore[misc]
    yield from _beside_smallest(taken)


def _beside_smallest(taken: Mapping[int, Sequence[tuple[float, ...]]]) -> Iterator[tuple[str, ...]]:
    """Yield the median times by number of rows, and their ratios to those of the smallest number."""
    smallest = [statistics.median(times) for times in zip(*taken[min(taken)], strict=True)]
    for rows, rounds in taken.items():
        medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
        ratios = (f"{now / least:.2f}" for now, least in zip(medians, smallest, strict=True))
        yield f"{rows:,}", *map(ms, medians), *ratios


def _with_appended(folder: Path, rows: int) -> str:
    """Make a table with branches that each appended one fragment of this many rows; all of them name one file."""
    data = pa.table({"value": pa.array(np.zeros(rows, np.int8))})
    table = LanceTable.create(folder / f"a{rows}-{uuid.uuid4().hex[:8]}.lance", data.schema, storage_options=QUICK)
    (file,) = write_files(
        replace(table.write_target(), max_rows=rows, max_bytes=None), data.to_batches(max_chunksize=10**6)
    )
    start = table.append(data.slice(0, 1))
    for number in range(_BRANCHES):
        table.branches.create(f"run/{number}", str(start))
        table.append(StagedFiles(data.schema, (file,)), branch=f"run/{number}")
    return table.uri


def by_bytes(folder: Path) -> Iterator[tuple[str, ...]]:
    """Measure merges of branches that appended ten fragments of different sizes."""
    for megabytes in MEGABYTES:
        first = _wide(megabytes, 0)
        place = folder / f"b{megabytes}-{uuid.uuid4().hex[:8]}.lance"
        table = LanceTable.create(place, first.schema, storage_options=QUICK)
        table.append(first.slice(0, _ROWS_EACH))
        jobs = [
            _Job(kind=_APPEND, rows=_wide(megabytes, _NEW * (number + 1)), fragments=PIECES)
            for number in range(_ROUNDS)
        ]
        yield f"{megabytes:,} MB", *_beside(folder, table, jobs)
        shutil.rmtree(place)


def _beside(folder: Path, table: LanceTable, jobs: Sequence[_Job]) -> tuple[str, ...]:
    """Make changes on branches and merge these, copy the changed files, and make the changes on clones by pylance.

    Returns:
        The time of a merge, the bytes it wrote, the times of the other ways, and the ratio of the last to the merge.
    """
    start, first = table.head(), sizes(Path(table.uri, "data"))
    for number, job in enumerate(jobs):
        table.branches.create(f"run/{number}", str(start))
        job.on_branch(table, f"run/{number}")
    added = [path for path in sizes(Path(table.uri, "data")) if path not in first]
    about = added[: jobs[0].fragments] if jobs[0].kind == _APPEND else list(first)[: jobs[0].fragments]
    merges, copies, others, written = [], [], [], []
    for number, job in enumerate(jobs):
        before = sizes(Path(table.uri))
        merging = LanceTable.open(table.uri, QUICK)
        merges.append(timed(lambda merging=merging, number=number: merging.merge(f"run/{number}")))  # type: ignore[misc]
        new = {path: size for path, size in sizes(Path(table.uri)).items() if path not in before}
        if any(path.suffix == ".lance" for path in new):
            raise RuntimeError("a merge wrote a data file")
        written.append(sum(new.values()))
        beside = folder / f"beside-{uuid.uuid4().hex[:8]}"
        copies.append(timed(lambda beside=beside: _copied(about, beside)))  # type: ignore[misc]
        shutil.rmtree(beside)
        clone = lance.dataset(table.uri).shallow_clone(str(beside), start.number)
        others.append(timed(lambda job=job, clone=clone: job.on_clone(clone)))  # type: ignore[misc]
        shutil.rmtree(beside)
    merge, copy, other = map(statistics.median, (merges, copies, others))
    return ms(merge), f"{int(statistics.median(written)):,}", ms(copy), ms(other), f"{other / merge:.1f}"


def _copied(files: Sequence[Path], folder: Path) -> None:
    folder.mkdir()
    for file in files:
        shutil.copyfile(file, folder / file.name)


def _in_fragments(kind: str, changed: int, number: int) -> _Job:
    """Return a change of some fragments; each round has its own rows, so that rounds do not conflict."""
    if kind == _APPEND:
        return _Job(kind=kind, rows=_rows(_NEW + number * 10**6, changed), fragments=changed)
    ids = range(number, changed * _ROWS_EACH, _ROWS_EACH)
    where = f"id < {changed * _ROWS_EACH} and id % {_ROWS_EACH} = {number}"
    return _Job(kind=kind, rows=_others(ids), fragments=changed, where=where)


def _with_real_fragments(folder: Path, fragments: int) -> LanceTable:
    """Make a table whose fragments have rows of their own."""
    place = folder / f"r{fragments}-{uuid.uuid4().hex[:8]}.lance"
    table = LanceTable.create(place, ROWS.schema, storage_options=QUICK)
    files = [table.stage(_rows(number * _ROWS_EACH, 1)).files[0] for number in range(fragments)]
    table.append(StagedFiles(ROWS.schema, tuple(files)))
    return table


def _rows(first: int, hundreds: int) -> pa.Table:
    ids = range(first, first + hundreds * _ROWS_EACH)
    return pa.table({"id": pa.array(ids), "text": ["some text"] * len(ids)})


def _others(ids: range) -> pa.Table:
    return pa.table({"id": pa.array(ids), "text": ["other"] * len(ids)})


def _wide(megabytes: int, first: int) -> pa.Table:
    """Make rows of a kilobyte each that do not compress."""
    rows = megabytes * 1_000
    noise = np.random.default_rng(first).bytes(rows * 992)
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(992), rows, [None, pa.py_buffer(noise)])
    return pa.table({"id": pa.array(range(first, first + rows)), "value": values})
