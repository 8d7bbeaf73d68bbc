"""Draw the stored figures: `python -m benchmarks.plots` writes the SVG of each question.

A program of its own, because matplotlib is installed in a folder of its own, beside the environment that is measured.
"""

import re
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.cases import CASES
from benchmarks.figures import PLOTS, Plot, Table, load, quantity

_BAR, _WIDTH = 0.22, 9.0
"""The height of a bar and the width of a plot, in inches."""


def drawn(name: str, table: Table, plot: Plot) -> Figure:
    """Return a plot: for each row of the table a group of bars, in the order of the table."""
    rows = [row for row in table.rows if re.fullmatch(plot.rows, row[0])]
    columns = [column for column in plot.columns if column in table.columns]
    bars = len(columns)
    figure = Figure(figsize=(_WIDTH, 1.2 + _BAR * len(rows) * (bars + 0.6)), layout="constrained")
    axes = figure.subplots()
    for number, column in enumerate(columns):
        place = table.columns.index(column)
        values = [quantity(row[place]) or 0.0 for row in rows]
        at = [group * (bars + 0.6) + number for group in range(len(rows))]
        axes.bar_label(
            axes.barh(at, values, height=0.9, label=column.replace("`", "")), _labels(rows, place), padding=2
        )
    axes.set_yticks([group * (bars + 0.6) + (bars - 1) / 2 for group in range(len(rows))], [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log" if plot.logarithmic else "linear")
    axes.set_xlabel(plot.axis)
    axes.margins(x=0.15)
    axes.set_title(name)
    if bars > 1:
        axes.legend(fontsize="small")
    return figure


def _labels(rows: Sequence[tuple[str, ...]], place: int) -> list[str]:
    return [row[place] for row in rows]


def main() -> None:
    """Write the plot of each question that has figures."""
    # Texts stay texts, so that a plot can be searched; the same figures give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lance_dagster", "font.size": 9})
    PLOTS.mkdir(exist_ok=True)
    tables = load()
    for case in CASES:
        if case.plot is not None and case.name in tables:
            figure = drawn(case.name, tables[case.name], case.plot)
            figure.savefig(case.plot_file, format="svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
