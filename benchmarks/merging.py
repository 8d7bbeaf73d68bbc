"""What a merge costs: by changed fragments, by unchanged fragments, by bytes; against copying, and against pylance."""

import shutil
import statistics
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from benchmarks.measure import ms, sizes, timed
from benchmarks.tables import QUICK, ROWS, with_fragments
from lance_dagster import LanceTable, StagedFiles

CHANGED = (1, 10, 100, 1_000)
UNCHANGED = (10, 1_000, 10_000, 50_000)
MEGABYTES = (1, 10, 100, 400)
APPEND, DELETE, UPDATE = "append", "delete", "update"
KINDS = (APPEND, DELETE, UPDATE)
_ROUNDS = 3
_ROWS_EACH = 100
_PIECES = 10
Row = tuple[str, ...]


def by_changed(folder: Path) -> Iterator[Row]:
    """Measure merges of branches that changed some of 1,000 fragments."""
    for kind in KINDS:
        for changed in CHANGED:
            table = _with_real_fragments(folder, CHANGED[-1])
            yield f"{kind}, {changed:,}", *_merges(table, lambda branch, n=changed, k=kind, t=table: _do(t, k, branch, n))


def by_unchanged(folder: Path) -> Iterator[Row]:
    """Measure merges of branches that changed one fragment of many."""
    for kind in KINDS:
        for fragments in UNCHANGED:
            made = with_fragments(folder, fragments - 1)
            made.table.append(_rows(10**6, 1))
            table = LanceTable.open(made.uri, QUICK)
            left = count(10**6)

            def change(
                branch: str, kind: str = kind, table: LanceTable = table, left: Iterator[int] = left
            ) -> None:
                where = f"id = {next(left)}"
                if kind == APPEND:
                    table.append(_rows(10**7, 1), branch=branch)
                elif kind == DELETE:
                    table.delete(where, branch=branch)
                else:
                    table.update({"text": "'other'"}, where=where, branch=branch)

            yield f"{kind}, {fragments:,}", *_merges(table, change)


def by_bytes(folder: Path) -> Iterator[Row]:
    """Measure merges of a branch of ten fragments, however large, beside other ways to get its rows into main."""
    for megabytes in MEGABYTES:
        data = _wide(megabytes)
        # Into separate tables: each way does the same job once more on the same state.
        table = LanceTable.create(folder / f"b{megabytes}-{uuid.uuid4().hex[:8]}.lance", data.schema, storage_options=QUICK)
        table.append(data.slice(0, 100))

        def change(branch: str, table: LanceTable = table, data: pa.Table = data) -> None:
            each = -(-data.num_rows // _PIECES)
            for piece in range(_PIECES):
                table.append(data.slice(piece * each, each), branch=branch)

        merged = _merges(table, change)
        yield f"{megabytes:,} MB", *merged, *_other_ways(folder, table, data)


def _other_ways(folder: Path, table: LanceTable, data: pa.Table) -> Row:
    """Time copying the branch's files, and pylance's `merge_insert` of its rows into a clone."""
    copies = []
    for number in range(_ROUNDS):
        target = folder / f"copy-{uuid.uuid4().hex[:8]}"
        copies.append(timed(lambda target=target: _copied(table, target)))  # type: ignore[misc]
        shutil.rmtree(target)
        del number
    inserts = []
    for _ in range(_ROUNDS):
        target = folder / f"clone-{uuid.uuid4().hex[:8]}"
        lance.dataset(table.uri).shallow_clone(str(target), 2)
        clone = lance.dataset(str(target))
        insert = clone.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        inserts.append(timed(lambda insert=insert: insert.execute(data)))  # type: ignore[misc]
        shutil.rmtree(target)
    return ms(statistics.median(copies)), ms(statistics.median(inserts))


def _copied(table: LanceTable, target: Path) -> None:
    """Copy the data files that a branch added, as another place for the table would need them."""
    target.mkdir()
    head = lance.dataset(table.uri).checkout_version(("run/0", None))
    for fragment in head.get_fragments()[1:]:
        for file in fragment.data_files():
            shutil.copyfile(Path(table.uri) / "data" / file.path, target / file.path)


def _merges(table: LanceTable, change: Callable[[str], None]) -> Row:
    """Return the time of merges and the bytes they wrote, data files apart: there must be none."""
    taken, written = [], []
    start = table.head()
    for number in range(_ROUNDS):
        branch = f"run/{number}"
        table.create_branch(branch, str(start))
        change(branch)
    for number in range(_ROUNDS):
        before = sizes(Path(table.uri))
        merging = LanceTable.open(table.uri, QUICK)
        taken.append(timed(lambda merging=merging, number=number: merging.merge(f"run/{number}")))  # type: ignore[misc]
        after = sizes(Path(table.uri))
        new = {path: size for path, size in after.items() if path not in before}
        if any(path.suffix == ".lance" for path in new):
            raise RuntimeError("a merge wrote a data file")
        written.append(sum(new.values()))
    return ms(statistics.median(taken)), f"{int(statistics.median(written)):,}"


def _do(table: LanceTable, kind: str, branch: str, changed: int) -> None:
    """Change fragments: each round other rows, so that rounds do not contradict each other."""
    round_number = int(branch.rpartition("/")[2])
    if kind == APPEND:
        (file,) = table.stage(_rows(10**7, 1), branch=branch).files
        table.append(StagedFiles(ROWS.schema, (file,) * changed), branch=branch)
        return
    where = f"id < {changed * _ROWS_EACH} and id % {_ROWS_EACH} = {round_number}"
    if kind == DELETE:
        table.delete(where, branch=branch)
    else:
        table.update({"text": "'other'"}, where=where, branch=branch)


def _with_real_fragments(folder: Path, fragments: int) -> LanceTable:
    """Make a table whose fragments have rows of their own."""
    table = LanceTable.create(folder / f"r{fragments}-{uuid.uuid4().hex[:8]}.lance", ROWS.schema, storage_options=QUICK)
    files = [table.stage(_rows(number * _ROWS_EACH, 1)).files[0] for number in range(fragments)]
    table.append(StagedFiles(ROWS.schema, tuple(files)))
    return table


def _rows(first: int, hundreds: int) -> pa.Table:
    ids = range(first, first + hundreds * _ROWS_EACH)
    return pa.table({"id": pa.array(ids), "text": ["some text"] * len(ids)})


def _wide(megabytes: int) -> pa.Table:
    """Make rows of a kilobyte each that do not compress."""
    rows = megabytes * 1_000
    noise = np.random.default_rng(1).bytes(rows * 992)
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(992), rows, [None, pa.py_buffer(noise)])
    return pa.table({"id": pa.array(range(rows)), "value": values})
