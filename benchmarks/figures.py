"""The stored figures of each question, and the page that is made of them.

`figures.json` has the table of each question and the run that measured it. A run of some questions replaces their
tables and leaves the others, so the page names the run of each table that is not of the newest run.
"""

import datetime as dt
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent
FIGURES, PAGE, PLOTS = FOLDER / "figures.json", FOLDER / "RESULTS.md", FOLDER / "plots"
Row = tuple[str, ...]
# Milliseconds and MiB are what quantities of a column are compared and drawn in.
_UNITS = {"": 1.0, "ms": 1.0, "s": 1e3, "MB": 1.0, "MiB": 1.0, "%": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run of the benchmarks was made with: the commit that was measured, the machine and the libraries."""

    date: str
    commit: str
    machine: str
    python: str
    pylance: str

    @property
    def shown(self) -> str:
        """The run as a line of the page."""
        libraries = [f"Python {self.python}"] * bool(self.python) + [f"pylance {self.pylance}"] * bool(self.pylance)
        return ", ".join((f"commit `{self.commit}`", self.date, self.machine, *libraries))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The measured rows of a question, and their run."""

    run: Run
    columns: Row
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the cells of a column should be: at least or at most a number, or the number in the column `goal`.

    Attributes:
        column: The column that is judged.
        rows: A regular expression: a row is judged if the whole of its first cell matches.
    """

    column: str
    least: float | None = None
    most: float | None = None
    rows: str = ".*"

    def missed(self, table: Table) -> Iterator[str]:
        """Yield each judged row that misses the goal, with its value."""
        place = table.columns.index(self.column)
        for row in table.rows:
            least, most = self.least, self.most
            if (least, most) == (None, None):
                text = row[table.columns.index("goal")]
                # A goal with a unit is a time, and may not be exceeded; others are speeds.
                least, most = (None, quantity(text)) if " " in text else (quantity(text), None)
            value = quantity(row[place])
            judged = value is not None and re.fullmatch(self.rows, row[0]) is not None
            if judged and value is not None and ((least or value) > value or (most or value) < value):
                yield f"{row[0]} ({row[place]})"

    @property
    def shown(self) -> str:
        """The goal as people read it."""
        if self.least is not None:
            return f"`{self.column}` of at least {self.least:g}"
        return f"`{self.column}` of at most {self.most:g}" if self.most is not None else f"`{self.column}` as in `goal`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Which columns of a table are drawn as bars, and what the axis is."""

    columns: tuple[str, ...]
    axis: str
    logarithmic: bool = True
    rows: str = ".*"
    """A regular expression: a row is drawn if the whole of its first cell matches."""


@dataclass(frozen=True, slots=True)
class Case:
    """A question of the page: its heading and text, the measurement of its table, the goals of its figures, its plot.

    `measure` is given an empty folder and yields the rows of the table.
    """

    name: str
    note: str
    columns: Row
    measure: Callable[[Path], Iterator[Row]]
    goals: tuple[Goal, ...] = ()
    plot: Plot | None = None

    @property
    def plot_file(self) -> Path:
        """The file of the plot."""
        return PLOTS / f"{re.sub(r'[^a-z0-9]+', '-', self.name.lower()).strip('-')}.svg"


def quantity(text: str) -> float | None:
    """Return the number of a cell, times in milliseconds; None for a cell without a number and a unit.

    Example: `2.17 s` is 2170, `38.1 MB` is 38.1, `3 for all` is None.
    """
    match = re.fullmatch(r"([+-]?[\d,]*\.?\d+) ?(\w*|%)", text)
    if match is None or match[2] not in _UNITS:
        return None
    return float(match[1].replace(",", "")) * _UNITS[match[2]]


def this_run() -> Run:
    """Return the run of this process."""
    return Run(
        date=str(dt.datetime.now(dt.UTC).date()),
        commit=_commit(),
        machine=_machine(),
        python=platform.python_version(),
        pylance=version("pylance"),
    )


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=FOLDER, check=True, capture_output=True, text=True).stdout  # noqa: S603, S607

    # What is measured is the package, so only changes of the package are mentioned.
    changed = git("status", "--porcelain", "--", "../lance_dagster")
    return git("rev-parse", "--short=12", "HEAD").strip() + " with changes" * bool(changed)


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = next(models, platform.machine())
    return f"{os.cpu_count()} cores ({processor}), {memory:.0f} GB, {platform.system()} {platform.release()}"


def load() -> dict[str, Table]:
    """Return the stored table of each question by its name."""
    stored = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    return {
        name: Table(
            run=Run(**table["run"]), columns=tuple(table["columns"]), rows=tuple(tuple(row) for row in table["rows"])
        )
        for name, table in stored.items()
    }


def store(tables: Mapping[str, Table]) -> None:
    """Store the tables, one row a line, so that a change of a figure is a change of one line."""
    sections = []
    for name, table in tables.items():
        rows = ",\n".join(f"      {json.dumps(row)}" for row in table.rows)
        head = f'"run": {json.dumps(asdict(table.run))},\n    "columns": {json.dumps(table.columns)}'
        sections.append(f'  {json.dumps(name)}: {{\n    {head},\n    "rows": [\n{rows}\n    ]\n  }}')
    FIGURES.write_text("{\n" + ",\n".join(sections) + "\n}\n")


def page(cases: Sequence[Case], tables: Mapping[str, Table], introduction: str) -> str:
    """Return the text of the page: one table for each case, under the newest run."""
    newest = max((table.run for table in tables.values()), key=lambda run: run.date)
    lines = ["# Results", "", f"Measured at {newest.shown}.", "", introduction]
    for case in cases:
        table = tables.get(case.name)
        lines += ["", f"## {case.name}", "", case.note]
        if table is None:
            lines += ["", "Not measured yet."]
            continue
        if table.run != newest:
            lines += ["", f"Measured at {table.run.shown}."]
        lines += ["", *rendered(table.columns, table.rows)]
        lines += [line for goal in case.goals for line in ("", _judgement(goal, table))]
        if case.plot is not None:
            lines += ["", f"![{case.name}]({case.plot_file.relative_to(FOLDER)})"]
    return "\n".join(lines) + "\n"


def rendered(columns: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _judgement(goal: Goal, table: Table) -> str:
    missed = [*goal.missed(table)]
    return f"Goal: {goal.shown}. " + (f"Missed by {'; '.join(missed)}." if missed else "Met.")
