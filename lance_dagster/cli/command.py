"""What every subcommand has in common: the table it is about, its two ways to answer, its exit codes.

Exit codes: 0 done, 1 refused, in conflict or found damaged, 2 wrongly called.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.exceptions import NoArgsIsHelpError

from lance_dagster.cli.remedies import told
from lance_dagster.errors import InvalidInputError, LanceDagsterError, NotFoundError

if TYPE_CHECKING:
    from lance_dagster.table import LanceTable

DONE, REFUSED, USAGE = 0, 1, 2
F = TypeVar("F", bound=Callable[..., Any])


class Refusal(click.ClickException):
    """An error of this package as one line on standard error, and one of what to do where that takes one."""

    exit_code = REFUSED

    def __init__(self, message: str, hint: str = "", command: str = "lance-dagster") -> None:
        """Tell whoever typed the command what is wrong."""
        super().__init__(message)
        self.hint = hint
        self.command = command

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the lines."""
        click.echo(f"{self.command}: {self.format_message()}", file=file, err=True)
        if self.hint:
            click.echo(f"hint: {self.hint}", file=file, err=True)


class Misuse(Refusal):
    """An error in what was typed."""

    exit_code = USAGE

    @classmethod
    def of(cls, error: click.UsageError, subcommand: str | None) -> "Misuse":
        """Say in a line what click says in four, and where to look."""
        command = " ".join(filter(None, ("lance-dagster", subcommand)))
        first, *others = error.format_message().rstrip(". ").split()
        # As other errors begin; but TABLE is called so.
        first = first.lower() if first.istitle() else first
        said = " ".join((first, *others)).replace(". (", " (").replace(". Did", "; did")
        return cls(f"{said}; see {command} --help", command=command)


class Program(click.Group):
    """The command, which turns this package's errors into lines and exit codes. What else is raised is a fault."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what stands before the subcommand."""
        try:
            return super().parse_args(ctx, args)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise Misuse.of(error, None) from error

    def invoke(self, ctx: click.Context) -> object:
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise Misuse.of(error, ctx.invoked_subcommand) from error
        except (InvalidInputError, NotFoundError) as error:
            raise Misuse(told(error, ctx.obj or "TABLE")) from error
        except LanceDagsterError as error:
            raise Refusal(told(error, ctx.obj or "TABLE")) from error


@dataclass(frozen=True, slots=True)
class Answer:
    """How a subcommand answers: in lines for people, or as one JSON document for programs."""

    as_json: bool

    def give(self, document: object, lines: Sequence[str]) -> None:
        """Print one of the two."""
        if self.as_json:
            click.echo(json.dumps(document, indent=2, default=str))
        else:
            for line in lines:
                click.echo(line)


def about_table(command: F) -> F:
    """Give a subcommand the argument TABLE, and the options every one takes.

    The function gets `table` (a `LanceTable`) and `answer` (an `Answer`) beside its own arguments.
    """

    @click.argument("table", metavar="TABLE", type=click.Path())
    @click.option(
        "--storage-option",
        "-o",
        "storage_options",
        metavar="KEY=VALUE",
        multiple=True,
        help="Credentials or endpoint of the storage, in pylance's words; may be given again. Secrets are better "
        "left to the environment: AWS_ACCESS_KEY_ID and the like.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")
    @functools.wraps(command)
    def wrapped(table: str, storage_options: Sequence[str], *, as_json: bool, **others: object) -> object:
        # Read where an error is told.
        click.get_current_context().find_root().obj = table
        opened, ref = open_table(table, storage_options_from(storage_options))
        if ref is not None:
            _put_ref(others, ref)
        return command(table=opened, answer=Answer(as_json), **others)

    return wrapped  # type: ignore[return-value]  # click replaces the function anyway


def open_table(uri: str, storage_options: Mapping[str, str]) -> tuple["LanceTable", str | None]:
    """Open a table, and return it with the ref its URI names, if any; pylance and pyarrow are loaded only here."""
    from lance_dagster.history.table_uri import is_table_uri
    from lance_dagster.table import LanceTable

    return (
        LanceTable.open_at(uri, storage_options) if is_table_uri(uri) else (LanceTable.open(uri, storage_options), None)
    )


def _put_ref(arguments: dict[str, object], ref: str) -> None:
    """Let a subcommand begin at the ref its TABLE names."""
    context = click.get_current_context()
    if "ref" not in arguments:
        name = context.info_name
        raise click.UsageError(f"{name} is about a whole table; leave out 'lance+' and '?ref=', and give the ref apart")
    given = (name for name in ("ref", "begin") if name in arguments)
    if any(context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in given):
        raise click.UsageError(f"TABLE names the ref {ref!r} already; give one only")
    arguments["ref"] = ref


def typed(*names: str) -> list[str]:
    """Return those of some options that were typed, as one types them."""
    context = click.get_current_context()
    options = {option.name: max(option.opts, key=len) for option in context.command.params}
    return [options[name] for name in names if context.get_parameter_source(name) is not ParameterSource.DEFAULT]


def refuse_beside(option: str, *names: str) -> None:
    """Refuse other options that mean nothing where a certain one was typed.

    Raises:
        click.UsageError: Some were typed.
    """
    if idle := typed(*names):
        raise click.UsageError(f"{option} does not go together with {', '.join(idle)}")


def refuse_without(needed: str, *names: str) -> None:
    """Refuse options that mean nothing without another one, where that was not typed.

    Raises:
        click.UsageError: Some were typed.
    """
    if idle := typed(*names):
        raise click.UsageError(f"{', '.join(idle)} need{'s' * (len(idle) == 1)} {needed}")


def storage_options_from(given: Sequence[str]) -> dict[str, str]:
    """Read pairs of KEY=VALUE.

    Raises:
        click.UsageError: One is none.
    """
    pairs: dict[str, str] = {}
    for option in given:
        key, found, value = option.partition("=")
        if not found or not key:
            # The text may be a secret that lacks its key.
            raise click.UsageError("--storage-option takes KEY=VALUE, such as aws_region=eu-central-1")
        pairs[key] = value
    return pairs


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
