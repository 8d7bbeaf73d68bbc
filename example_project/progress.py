"""One line on the terminal for each Dagster step of a run, instead of Dagster's log.

This is an ordinary Dagster logger: it gets every event of a run and prints those that matter to a person. All others
are in the event log and in the web UI.
"""

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import dagster as dg
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from example_project.history import short
from lance_dagster import PublishRefusedError

_NAME = "example_project.steps"
_SHOWN = ("lance/branch", "lance/version", "dagster/row_count")


def terminal() -> Console:
    """Return a console on a private copy of standard output.

    Dagster replaces standard output while a step runs and stores its text as the step's log; the progress lines must
    not be part of it.
    """
    return Console(file=os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1), highlight=False)


class StepLines(logging.Handler):
    """Print a line when a step ends or refuses its work, and when an audit passes or fails."""

    def __init__(self, console: Console, status: Status) -> None:
        super().__init__()
        self._console = console
        self._status = status
        self._passed: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line for the Dagster event in a log record; other records have none."""
        event = cast("dg.DagsterEvent | None", getattr(record, "dagster_meta", {}).get("dagster_event"))
        if event is None:
            return
        match event.event_type:
            case dg.DagsterEventType.STEP_START:
                self._status.update(f"  {_name(event)} ...")
            case dg.DagsterEventType.ASSET_MATERIALIZATION:
                self._materialized(event)
            case dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                self._audited(event)
            case dg.DagsterEventType.STEP_FAILURE:
                self._failed(event)
            case _:
                pass

    def flush(self) -> None:
        """Print the checks that passed since the last line, one line per table."""
        for asset, count in self._passed.items():
            self._line("[cyan]✓[/]", f"audit of {asset}", f"{count} checks passed")
        self._passed.clear()

    def _line(self, mark: str, name: str, text: str) -> None:
        self._console.print(f"  {mark} {escape(name):<40} {text}", soft_wrap=True)

    def _materialized(self, event: dg.DagsterEvent) -> None:
        self.flush()
        made = event.step_materialization_data.materialization
        self._line("[green]✓[/]", made.asset_key.to_user_string(), _figures(made.metadata))

    def _audited(self, event: dg.DagsterEvent) -> None:
        seen = event.asset_check_evaluation_data
        asset = seen.asset_key.to_user_string()
        if seen.passed:
            self._passed[asset] += 1
        else:
            self._line("[red]✗[/]", f"audit of {asset}", f"[red]{seen.check_name}[/]: {escape(seen.description or '')}")

    def _failed(self, event: dg.DagsterEvent) -> None:
        error = event.step_failure_data.error
        while error is not None and error.cause is not None:
            error = error.cause
        # A failed check has printed its own line already.
        if error is None or "AssetCheckFailed" in str(error.cls_name):
            return
        said = error.message.strip()
        if error.cls_name == PublishRefusedError.__name__:
            # The publisher did its work. The class and the reason of each table are in the web UI.
            self._line("[yellow]■[/]", _name(event), f"refused: {escape(said.splitlines()[0].partition(': ')[2])}")
        else:
            self._line("[red]✗[/]", _name(event), escape(said))


@dg.logger(config_schema=None, description="One line per step, for a person watching a terminal.")
def step_lines(_: dg.InitLoggerContext) -> logging.Logger:
    """Hand Dagster the logger that `watch` put its handler on."""
    return logging.getLogger(_NAME)


@contextmanager
def watch(console: Console, waiting: str) -> Iterator[None]:
    """Print the steps of every run that starts meanwhile, with a spinner that shows the text `waiting`."""
    if not console.is_terminal:  # where no spinner turns
        console.print(f"  {waiting} ...", markup=False)
    logger = logging.getLogger(_NAME)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    with console.status(f"  {waiting} ...") as status:
        handler = StepLines(console, status)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            handler.flush()


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Redirect standard error of Python, Java and Spark's workers to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as opened:
        os.dup2(opened.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _name(event: dg.DagsterEvent) -> str:
    return (event.step_key or "").replace("__", "/")


def _figures(metadata: Mapping[str, dg.MetadataValue]) -> str:
    """Return the version of an event and its number of rows as text."""
    values = {key: metadata[key].value for key in _SHOWN if key in metadata}
    branch, version, rows = (values.get(key) for key in _SHOWN)
    where = f"{short(f'{branch}@{version}')}" if branch is not None else ""
    return f"{where:<16} {rows:>8,} rows" if isinstance(rows, int) else where
