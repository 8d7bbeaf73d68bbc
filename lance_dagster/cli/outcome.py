"""What subcommands have in common that make a version by the rules of a merge: how conflicts are settled and told."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lance_dagster.cli.command import REFUSED, Answer, Refusal
from lance_dagster.cli.versions import document, printable
from lance_dagster.errors import ConflictError, MergeConflictError

if TYPE_CHECKING:
    from lance_dagster.changes.merge import Strategy
    from lance_dagster.changes.sides import Conflict
    from lance_dagster.history.versions import Version

F = TypeVar("F", bound=Callable[..., Any])
_BOTH = ("source-wins", "dest-wins")
_ALL = "*"

with_strategy: Callable[[F], F] = click.option(
    "--strategy",
    "-s",
    "strategies",
    metavar="[UNIT=]source-wins|dest-wins",
    multiple=True,
    help="Who wins conflicts: all of them, or those of one unit or kind as they are printed, such as "
    "'column price=source-wins' or 'rows=dest-wins'; may be given again.",
)
"""The option `strategies`, for `strategy_from`."""
with_message: Callable[[F], F] = click.option("--message", "-m", help="What to say in the log.")


def strategy_from(given: Sequence[str]) -> "Strategy":
    """Read who wins which conflicts.

    Raises:
        click.UsageError: It is no strategy, or one unit has two.
    """
    found: dict[str, str] = {}
    for text in given:
        # A unit may hold an equals sign, as in "rows where day = 'mon'".
        unit, _, winner = text.rpartition("=")
        if winner not in _BOTH:
            raise click.UsageError(f"--strategy takes {' or '.join(_BOTH)}, or one of them as UNIT={_BOTH[0]}")
        if found.setdefault(unit or _ALL, winner) != winner:
            raise click.UsageError(f"--strategy gives two winners for {unit or 'all conflicts'}")
    return found or None


@contextmanager
def conflicts_told(answer: Answer) -> Iterator[None]:
    """Print each conflict on a line of its own when there are any, and exit as refused."""
    try:
        yield
    except MergeConflictError as error:
        answer.give(
            {"made": False, "before": None, "version": None, "conflicts": conflict_documents(error.conflicts)},
            conflict_lines(error.conflicts),
        )
        raise Refusal(ConflictError(error.message.rstrip(":"))) from error


def conflict_documents(conflicts: Iterable[object]) -> list[dict[str, str]]:
    """Return conflicts as JSON shows them."""
    return [asdict(conflict) for conflict in _known(conflicts)]


def conflict_lines(conflicts: Iterable[object]) -> list[str]:
    """Return a line for each conflict: its kind and unit, what the source did, what the dest did."""
    return [
        f"{click.style(f'{conflict.kind} conflict', fg='red')}: {printable(str(conflict))}"
        for conflict in _known(conflicts)
    ]


def give_version(answer: Answer, before: "Version", made: "Version", nothing: str) -> None:
    """Say which version was made, or why none had to be.

    Args:
        answer: How to answer.
        before: The newest version of the branch before.
        made: The version that is the result.
        nothing: What to say when it was there before.
    """
    new = made.number > before.number
    shown = {"made": new, "before": str(before), "version": document(made), "conflicts": []}
    grown = made.rows - before.rows
    rows = f"{made.rows:,} rows ({grown:+,})" if grown else f"{made.rows:,} rows"
    line = f"{before} -> {made}  {rows}  {printable((made.message or '').partition(chr(10))[0])}".rstrip()
    answer.give(shown, [line if new else nothing])


def exit_refused() -> None:
    """Exit as refused, after everything was said."""
    sys.exit(REFUSED)


def _known(conflicts: Iterable[object]) -> "list[Conflict]":
    from lance_dagster.changes.sides import Conflict

    return [conflict for conflict in conflicts if isinstance(conflict, Conflict)]
