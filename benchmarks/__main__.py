"""Run the benchmarks, print the results and store them in `benchmarks/RESULTS.md`."""

import argparse
import datetime as dt
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import lance

from benchmarks.cases import CASES, Case
from benchmarks.measure import ROUNDS

RESULTS = Path(__file__).parent / "RESULTS.md"


def machine() -> str:
    """Return a description of the machine."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({cpu}), {memory:.0f} GB, {platform.system()} {platform.release()}"


def _lines(path: str) -> Sequence[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return ()


def report(cases: Sequence[Case]) -> Iterator[str]:
    """Yield the lines of the report as they are measured."""
    yield "# Results"
    yield ""
    yield f"{dt.datetime.now(dt.UTC).date()}, {machine()}, Python {platform.python_version()},"
    yield f"pylance {lance.__version__}, local disk. Medians of up to {ROUNDS} rounds, both sides in turn in one"
    yield "process; ratio is what pylance takes divided by what lance_dagster takes."
    for case in cases:
        yield ""
        yield f"## {case.name}"
        yield ""
        yield case.note
        yield ""
        yield f"| {' | '.join(case.columns)} |"
        yield "|---" * len(case.columns) + "|"
        with tempfile.TemporaryDirectory() as folder:
            for row in case.rows(Path(folder)):
                yield f"| {' | '.join(row)} |"


def main() -> None:
    """Measure in temporary folders; figures of selected cases are printed and not stored."""
    parser = argparse.ArgumentParser(prog="make bench", description="Figures beside pylance.")
    names = [case.name for case in CASES]
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="measure these, and keep no figures")
    wanted = parser.parse_args().only
    lines = []
    for line in report([case for case in CASES if case.name in wanted]):
        print(line, flush=True)
        lines.append(line)
    if set(wanted) == set(names):
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
