"""Arguments and options that several subcommands share, and shell completion of branch and tag names."""

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from lance_dagster.__about__ import __version__
from lance_dagster.cli.output import Output, discard_output
from lance_dagster.errors import LanceDagsterError, NotFoundError, TableNotFoundError
from lance_dagster.format.transaction import COMMIT_MESSAGE
from lance_dagster.gc.retention import duration

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_store import Refs
    from lance_dagster.merge.rules.strategy import Strategy, Winner
    from lance_dagster.repository import LanceRepository
    from lance_dagster.table import LanceTable

F = TypeVar("F", bound=Callable[..., Any])
SIDES: "tuple[Winner, Winner]" = ("source-wins", "dest-wins")
_ALL = "*"
_RESERVED = "lance_dagster."


class RefType(click.ParamType[str]):
    """The type of an argument that names a branch, a tag, or (where both are allowed) a ref expression."""

    name = "ref"

    def __init__(self, *, branches: bool = True, tags: bool = True) -> None:
        """Choose whether a shell completes the names of branches, of tags, or of both."""
        self._branches, self._tags = branches, tags

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the text as it is: the ref is resolved when the subcommand has opened the table."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Return the names of the table that was typed before; none when the table cannot be read."""
        # While the value of an option is being typed, click has not named the arguments yet; TABLE is the first
        # argument.
        uri = ctx.params.get("table") or next(iter(ctx.args), "")
        try:
            refs = _refs_of(uri, storage_options_from(ctx.params.get("storage_options") or ()))
            branches = refs.branches.known() if self._branches else []
            names = [*branches, *(refs.tags.all() if self._tags else ())]
        except (LanceDagsterError, click.ClickException, OSError):
            # The shell would print an error into the line that is being typed.
            return []
        completions = sorted(name for name in names if name.startswith(incomplete))
        # `known` lists `main` even without a table, so `main` alone does not show that the path is right.
        return [] if names == ["main"] else [CompletionItem(name) for name in completions]


def _printing(name: str, text: Callable[[click.Context], str], *others: str) -> click.Option:
    """Return an option that prints a text and ends the program, also where nobody reads the text.

    The options that click has for this exit with 1 at a closed pipe.
    """

    def show(context: click.Context, _: click.Parameter, requested: bool) -> None:  # noqa: FBT001  # click's
        if requested and not context.resilient_parsing:
            try:
                click.echo(text(context), color=context.color)
            except BrokenPipeError:
                discard_output()
            context.exit()

    about = f"Show {'this message' if name == '--help' else 'the version'} and exit."
    return click.Option([*others, name], is_flag=True, expose_value=False, is_eager=True, help=about, callback=show)


HELP = _printing("--help", click.Context.get_help, "-h")
VERSION = _printing("--version", lambda context: f"{context.find_root().info_name} {__version__}")


def _refs_of(uri: str, storage_options: dict[str, str]) -> "Refs":
    """Return the refs of a table without loading pylance and pyarrow, which would delay each completion."""
    from lance_dagster.history.refs.ref_store import Refs
    from lance_dagster.history.table_uri import is_table_uri, parse_version_uri
    from lance_dagster.store import open_store

    if is_table_uri(uri):
        version_uri = parse_version_uri(uri)
        uri = version_uri.location if version_uri.table is None else f"{version_uri.location}/{version_uri.table}.lance"
    return Refs(open_store(uri, storage_options))


REF, BRANCH, TAG = RefType(), RefType(tags=False), RefType(branches=False)


class DurationType(click.ParamType[timedelta]):
    """A duration such as 7d."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:  # noqa: ARG002
        """Read the text."""
        return value if isinstance(value, timedelta) else duration(str(value))


def with_storage_options(command: F) -> F:
    """Add the options that every subcommand takes: `storage_options` (pairs as typed) and `as_json`."""
    # The pairs stay texts here: a completion reads them too, and there an error must not be printed.
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--storage-option",
            "-o",
            "storage_options",
            metavar="KEY=VALUE",
            multiple=True,
            help="Credentials or endpoint of the storage, under pylance's names; may be given again. Put secrets into "
            "the environment instead, such as AWS_ACCESS_KEY_ID.",
        ),
    ):
        command = option(command)
    return command


def about_table(command: F) -> F:
    """Add the argument TABLE and the options that every subcommand takes.

    The function is called with `table` (a `LanceTable`) and `output` (an `Output`) in addition to its own arguments.
    """

    @click.argument("table", metavar="TABLE", type=click.Path())
    @with_storage_options
    @functools.wraps(command)
    def wrapped(table: str, storage_options: Sequence[str], *, as_json: bool, **own: object) -> object:
        # Before the table is opened: an error of opening it suggests commands too.
        remember_place(table)
        opened, ref = _open_table(table, storage_options_from(storage_options))
        # A URI that a program printed may name a version too; then the subcommand uses that version.
        if ref is not None:
            _put_ref(own, ref)
        return command(table=opened, output=Output(as_json), **own)

    return wrapped  # type: ignore[return-value]  # click replaces the function anyway


def about_repository(command: F) -> F:
    """Add the argument LAKE and the options that every subcommand takes.

    The function is called with `repository` (a `LanceRepository`) and `output` (an `Output`) in addition to its own
    arguments.
    """

    @click.argument("root", metavar="LAKE", type=click.Path())
    @with_storage_options
    @functools.wraps(command)
    def wrapped(root: str, storage_options: Sequence[str], *, as_json: bool, **own: object) -> object:
        # Before the repository is opened: an error of opening it suggests commands too.
        remember_place(root)
        repository = _open_repository(root, storage_options_from(storage_options))
        return command(repository=repository, output=Output(as_json), **own)

    return wrapped  # type: ignore[return-value]  # click replaces the function anyway


def _open_repository(uri: str, storage_options: Mapping[str, str]) -> "LanceRepository":
    """Open a repository; pylance and pyarrow are loaded only here, since help and completion must not wait for them."""
    from lance_dagster.repository import LanceRepository
    from lance_dagster.store import canonical_uri
    from lance_dagster.table import LanceTable

    try:
        return LanceRepository.open(uri, storage_options)
    except NotFoundError as error:
        if neighbour := _similar_lake(uri):
            raise NotFoundError(f"no repository at {canonical_uri(uri)}; did you mean {neighbour}?") from error
        if not LanceTable.exists(uri, storage_options):
            raise
        name = click.get_current_context().info_name
        raise NotFoundError(
            f"{uri} is a table, and {name} needs the lake above it; `lance-dagster table` has the commands of a table"
        ) from error


def _similar_lake(uri: str) -> str | None:
    """Return the path of a lake on local disk beside a place that does not exist, where its name is similar."""
    from lance_dagster.repository.commits.ref_log import MARKER

    place = Path(uri)
    # Other storage is not searched: its listing may be long, or forbidden.
    if "://" in uri or place.exists() or not place.parent.is_dir():
        return None
    lakes: list[str] = []
    with suppress(OSError):
        lakes = [folder.name for folder in place.parent.iterdir() if (folder / MARKER).is_file()]
    return next((str(place.parent / name) for name in difflib.get_close_matches(place.name, lakes, n=1)), None)


def remember_place(place: str) -> None:
    """Keep LAKE or TABLE as it was typed, for commands that error messages suggest."""
    # In the outermost context: the error is printed there, when the context of the subcommand has ended.
    click.get_current_context().find_root().obj = place


def place_as_typed() -> str:
    """Return LAKE or TABLE as it was typed."""
    return str(click.get_current_context().find_root().obj)


def _open_table(uri: str, storage_options: Mapping[str, str]) -> tuple["LanceTable", str | None]:
    """Open a table, and return it with the ref its URI names, if any; pylance and pyarrow are loaded only here."""
    from lance_dagster.history.table_uri import is_table_uri, parse_version_uri
    from lance_dagster.repository.commits.ref_log import MARKER
    from lance_dagster.store import open_store
    from lance_dagster.table import LanceTable

    if not is_table_uri(uri):
        try:
            return LanceTable.open(uri, storage_options), None
        except TableNotFoundError as error:
            if open_store(uri, storage_options).get(MARKER) is None:
                raise
            name = click.get_current_context().info_name
            raise NotFoundError(
                f"{uri} is a lake, and `table {name}` needs one of its tables, such as {uri.rstrip('/')}/orders.lance; "
                "`lance-dagster tables` lists them"
            ) from error
    version_uri = parse_version_uri(uri)
    if version_uri.table is None:
        return LanceTable.open(version_uri.location, storage_options), version_uri.ref
    from lance_dagster.repository import LanceRepository

    view = LanceRepository.open_uri(uri, storage_options)
    return LanceTable.open(view.uri, view.storage_options), view.ref


def _put_ref(arguments: dict[str, object], ref: str) -> None:
    """Set the argument `ref` of a subcommand to the ref that its TABLE names.

    Raises:
        click.UsageError: The subcommand takes no ref, or a ref was typed as well.
    """
    context = click.get_current_context()
    # A ref that has no effect would be worse than an error: the output would be about another version.
    if "ref" not in arguments:
        name = context.info_name
        raise click.UsageError(f"{name} takes a whole table; leave out 'lance+' and '?ref='")
    # `log` takes the ref as an argument and as the option `begin`.
    ref_parameters = (name for name in ("ref", "begin") if name in arguments)
    if any(context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in ref_parameters):
        raise click.UsageError(f"TABLE names the ref {ref!r} already; give only one ref")
    arguments["ref"] = ref


def _typed(*names: str) -> list[str]:
    """Return which of some options were typed, by their long names."""
    context = click.get_current_context()
    # The source is checked and not the value: a person may type an option with its default value.
    options = {option.name: max(option.opts, key=len) for option in context.command.params}
    return [options[name] for name in names if context.get_parameter_source(name) is not ParameterSource.DEFAULT]


def refuse_beside(option: str, *names: str) -> None:
    """Refuse options that would have no effect together with a certain option.

    Raises:
        click.UsageError: Some were typed.
    """
    if idle := _typed(*names):
        raise click.UsageError(f"{option} cannot be combined with {', '.join(idle)}")


def refuse_without(needed: str, *names: str) -> None:
    """Refuse options that have an effect only together with another option, which was not typed.

    Raises:
        click.UsageError: Some were typed.
    """
    if idle := _typed(*names):
        raise click.UsageError(f"{', '.join(idle)} need{'s' * (len(idle) == 1)} {needed}")


def storage_options_from(texts: Sequence[str]) -> dict[str, str]:
    """Return storage options from texts of the form KEY=VALUE.

    Raises:
        click.UsageError: A text has another form.
    """
    pairs: dict[str, str] = {}
    for option in texts:
        key, equals, value = option.partition("=")
        if not equals or not key:
            # The message does not repeat the text: it may be a secret that lacks its key.
            raise click.UsageError("--storage-option takes KEY=VALUE, such as aws_region=eu-central-1")
        pairs[key] = value
    return pairs


with_strategy: Callable[[F], F] = click.option(
    "--strategy",
    "-s",
    "strategies",
    metavar="[UNIT=]source-wins|dest-wins",
    multiple=True,
    help="The side that wins conflicts: all of them, or those of one unit or kind as they are printed, such as "
    "'column price=source-wins' or 'rows=dest-wins'; may be given again.",
)
"""The option `strategies`, for `strategy_from`."""
with_message: Callable[[F], F] = click.option("--message", "-m", help="The commit message, which the log shows.")
with_properties: Callable[[F], F] = click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="A property of the version, such as ticket=77; may be given again.",
)
"""The option `properties`, for `properties_from`."""
with_limit: Callable[[F], F] = click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=20, show_default=True, help="Show at most this many rows."
)
with_keys: Callable[[F], F] = click.option(
    "--on", "-k", "keys", metavar="COLUMN", multiple=True, help="Identify rows by this column; may be given again."
)


def with_columns(meaning: str) -> Callable[[F], F]:
    """Return the option `columns` with the help text of one subcommand."""
    return click.option(
        "--column", "-c", "columns", metavar="COLUMN", multiple=True, help=f"{meaning}; may be given again."
    )


class CommitOptions(TypedDict):
    """The message and the properties of a version: the options `with_message` and `with_properties`."""

    message: str | None
    properties: Sequence[str]


def strategy_from(texts: Sequence[str]) -> "Strategy":
    """Return the strategy that the options give: one winner for all conflicts, or winners by unit and kind.

    Raises:
        click.UsageError: A text is not a strategy, or one unit has two.
    """
    winners: dict[str, Winner] = {}
    for text in texts:
        # From the right: a unit may hold an equals sign, as in "rows where day = 'mon'".
        unit, _, side = text.rpartition("=")
        winner = next((winner_name for winner_name in SIDES if winner_name == side), None)
        if winner is None:
            raise click.UsageError(f"--strategy takes {' or '.join(SIDES)}, or one of them as UNIT={SIDES[0]}")
        # The same winner may be given twice; of two different winners, neither can be preferred.
        if winners.setdefault(unit or _ALL, winner) != winner:
            raise click.UsageError(f"--strategy gives two winners for {unit or 'all conflicts'}")
    return winners or None


def properties_from(texts: Sequence[str]) -> dict[str, str]:
    """Return the properties that the options give.

    Raises:
        click.UsageError: A text is not KEY=VALUE, or this package reserves the key.
    """
    properties: dict[str, str] = {}
    for text in texts:
        # At the first equals sign, so that a value may hold more of them.
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError("--property takes KEY=VALUE, such as ticket=77")
        # The message has an option of its own, and later merges rely on the reserved keys.
        if key.startswith((_RESERVED, COMMIT_MESSAGE)):
            raise click.UsageError(f"--property cannot be {key!r}, which this package sets itself")
        properties[key] = value
    return properties
