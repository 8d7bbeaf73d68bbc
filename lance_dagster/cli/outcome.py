"""What subcommands have in common that make a version by the rules of a merge: how conflicts are settled and told."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from lance_dagster.cli.command import REFUSED, Answer, Refusal
from lance_dagster.cli.remedies import command, quoted
from lance_dagster.cli.versions import document, printable
from lance_dagster.errors import MergeConflictError
from lance_dagster.format.transaction import MESSAGE

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.merge.rules import Strategy
    from lance_dagster.merge.rules.merge_side import Conflict

F = TypeVar("F", bound=Callable[..., Any])
_BOTH = ("source-wins", "dest-wins")
_ALL, _HISTORY = "*", "history"
_OURS = "lance_dagster."

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
with_properties: Callable[[F], F] = click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="What to keep with the version, such as ticket=77; may be given again.",
)
"""The option `properties`, for `properties_from`."""


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


class Noted(TypedDict):
    """What is kept with a version."""

    message: str | None
    properties: Sequence[str]


def properties_from(given: Sequence[str], message: str | None = None) -> dict[str, str]:
    """Read what is kept with a version, and what is said in the log if anything is.

    Raises:
        click.UsageError: One is no pair, or has a key of this package's.
    """
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError("--property takes KEY=VALUE, such as ticket=77")
        if key.startswith((_OURS, MESSAGE)):
            raise click.UsageError(f"--property cannot be {key!r}, which is kept by what makes the version")
        found[key] = value
    return found if message is None else {**found, MESSAGE: message}


@contextmanager
def conflicts_told(answer: Answer, strategy: "Strategy", changes: Callable[[], str]) -> Iterator[None]:
    """Print each conflict on a line of its own when there are any, and exit as refused with a hint.

    Args:
        answer: How to answer.
        strategy: Who was to win.
        changes: Returns the range of what was to come, for `diff`.
    """
    try:
        yield
    except MergeConflictError as error:
        answer.give(
            {"made": False, "before": None, "version": None, "conflicts": conflict_documents(error.conflicts)},
            conflict_lines(error.conflicts),
        )
        raise Refusal(error.message.rstrip(":"), hint_for(error.conflicts, strategy, changes())) from error


def hint_for(conflicts: Iterable[object], strategy: "Strategy", changes: str) -> str:
    """Return how to look at conflicts and how to settle them; empty where no strategy helps against the history.

    Args:
        conflicts: What no strategy settled.
        strategy: Who was to win.
        changes: The range of what was to come, for `diff`.
    """
    from lance_dagster.merge.rules.preconditions import can_be_waived

    known = _known(conflicts)
    told = [conflict for conflict in known if conflict.kind != _HISTORY]
    hints = []
    if told:
        table = str(click.get_current_context().find_root().obj)
        winners = " ".join(f"--strategy {quoted(f'{name}={_BOTH[0]}')}" for name in _open(told, strategy))
        settle = f"settle with {winners} (or {_BOTH[1]}), or change one side" if winners else "then change one side"
        hints.append(f"look with {command('diff', table, changes, '--rows')}; {settle}")
    if any(map(can_be_waived, known)) and all(can_be_waived(each) for each in known if each.kind == _HISTORY):
        hints.append(
            f"if nobody replaced rows in what was cleaned up, --strategy {_HISTORY}={_BOTH[0]} goes on without it"
        )
    return printable("; ".join(hints))


def _open(conflicts: "Sequence[Conflict]", strategy: "Strategy") -> list[str]:
    """Return what a strategy can be given for, that was not given one in vain; by kind where that has several units."""
    from lance_dagster.merge.rules.strategy import StrategyResolver

    resolver = StrategyResolver(strategy)
    units: dict[str, set[str]] = {}
    for conflict in conflicts:
        if resolver.winner(conflict.kind, conflict.unit) is None:
            units.setdefault(conflict.kind, set()).add(conflict.unit)
    # Rows have no names, and are not the same ones next time.
    return [kind if kind == "rows" or len(found) > 1 else next(iter(found)) for kind, found in units.items()]


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


def exit_refused(hint: str) -> None:
    """Exit as refused, after everything was said, with what to do."""
    if hint:
        click.echo(f"hint: {hint}", err=True)
    sys.exit(REFUSED)


def _known(conflicts: Iterable[object]) -> "list[Conflict]":
    from lance_dagster.merge.rules.merge_side import Conflict

    return [conflict for conflict in conflicts if isinstance(conflict, Conflict)]
