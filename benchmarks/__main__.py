"""Measure, store the figures, and write `benchmarks/RESULTS.md` from all that are stored.

make bench                              measure every case, which takes hours
make bench ARGS='--only open commit'    measure these; the page keeps the others, with the commit they come from
make bench ARGS='--page'                measure nothing; write the page and the plots again
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import CASES
from benchmarks.figures import PAGE, Case, Row, Table, load, page, rendered, store, this_run
from benchmarks.measure import ROUNDS
from benchmarks.spark import SCALE

INTRODUCTION = (
    "`make bench` writes this page, `figures.json` and the plots; a table that names a run was not measured in the one "
    f"above. Times are medians of up to {ROUNDS} rounds on local disk, both sides in turn in one process; `ratio` is "
    "what pylance takes divided by what lance_dagster takes. Machines differ: compare columns of one table, not tables "
    "of two runs."
)


def measured(case: Case) -> tuple[Row, ...]:
    """Measure a case, and print its table as it grows."""
    print(f"\n## {case.name}\n\n{case.note}\n", flush=True)
    print(*rendered(case.columns, ()), sep="\n", flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in case.measure(Path(folder)):
            print(f"| {' | '.join(row)} |", flush=True)
            rows.append(row)
    return tuple(rows)


def run(cases: Sequence[Case], *, stored: bool) -> None:
    """Measure cases; with `stored`, each table is stored when it is complete, so that a run may be interrupted."""
    this = this_run()
    for case in cases:
        rows = measured(case)
        # A case that cannot be measured here, as Ceph where it is not installed, yields nothing.
        if stored and rows:
            tables = load() | {case.name: Table(run=this, columns=case.columns, rows=rows)}
            store({each.name: tables[each.name] for each in CASES if each.name in tables})


def main() -> None:
    """Measure in temporary folders, and write the page."""
    parser = argparse.ArgumentParser(prog="make bench", description="Figures beside pylance.")
    names = [case.name for case in CASES]
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="measure these; keep other figures")
    parser.add_argument("--print", action="store_true", help="print the figures, and store none")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page of the stored figures")
    arguments = parser.parse_args()
    stored = not arguments.print and SCALE == 1
    if not arguments.page:
        run([case for case in CASES if case.name in arguments.only], stored=stored)
    if stored:
        PAGE.write_text(page(CASES, load(), INTRODUCTION))


if __name__ == "__main__":
    main()
