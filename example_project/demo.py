"""The whole loop on real data, without a web browser: `python -m example_project.demo`.

The demo starts with an empty `.demo`, tells the story, draws the history of the tables and prints where the tables are.
The exit code is 0 when everything went as expected, 1 when it did not, 2 when the folder was not made by this demo.
"""

import os
import sys
import time

import dagster as dg
from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.table import Table

from example_project import history, places, progress, source
from example_project.driver import Driver
from example_project.story import Story, UnexpectedError, table

_DRAWN = ("nyc/flights", "nyc/airlines")


def main() -> int:
    """Run the demo and return its exit code."""
    console = progress.terminal()
    started = time.monotonic()
    try:
        places.start_empty()
        data = source.folder()
    except (places.UnrecognisedFolderError, FileNotFoundError) as error:
        console.print(f"[red]{error}[/]")
        return 2
    console.print(f"Flights of New York City in 2013, from {data}", soft_wrap=True)
    os.environ["DAGSTER_HOME"] = str(places.dagster_home())

    with progress.quiet(places.log_file()), dg.DagsterInstance.get() as instance:
        story = Story(Driver(instance, console))
        try:
            story.tell()
        except UnexpectedError as error:
            console.print(f"\n[bold red]{error}[/]\nSpark and Dagster wrote to {places.log_file()}", soft_wrap=True)
            return 1
        finally:
            _stop_spark()
    _show(console, story, time.monotonic() - started)
    return 0


def _show(console: Console, story: Story, seconds: float) -> None:
    for name in _DRAWN:
        console.print(f"\n[bold]The history of {name}[/]\n")
        console.print(history.draw(table(name)), soft_wrap=True)
    console.print("\n[bold]What happened[/]")
    summary = Table("step", "table", "main", "production", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    summary.add_column("rows there", justify="right")
    summary.add_column("seconds", justify="right")
    for result in story.results:
        row = (
            result.chapter,
            result.table,
            result.main,
            result.production,
            f"{result.rows:,}",
            f"{result.seconds:.1f}",
        )
        summary.add_row(*row)
    console.print(summary)
    console.print(
        f"Done in {seconds:.0f} s. The tables are in {places.tables()}; any Lance reader opens them:\n\n"
        f'    lance.dataset("{table(_DRAWN[0]).uri}", version="production").to_table(limit=5)\n\n'
        "make ui shows the same runs, tables and versions in Dagster.",
        soft_wrap=True,
        markup=False,
    )


def _stop_spark() -> None:
    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()


if __name__ == "__main__":
    sys.exit(main())
