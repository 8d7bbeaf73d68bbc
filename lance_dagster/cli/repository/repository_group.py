"""`lance-dagster repository ...`: the group of the commands about many tables, and how its errors are printed."""

from typing import TYPE_CHECKING, Any

import click
from click.exceptions import NoArgsIsHelpError

from lance_dagster.cli.arguments import HELP
from lance_dagster.cli.command_errors import Refusal, UsageRefusal, error_line, repository_command_for
from lance_dagster.cli.repository.channel_commands import (
    create_channel,
    delete_channel,
    history,
    hold,
    promote,
    release,
    tag,
)
from lance_dagster.cli.repository.repository_commands import (
    adopt,
    collect,
    commit,
    create,
    discard,
    fork,
    move,
    publish,
    record,
    remove,
    repair,
    revert,
)
from lance_dagster.cli.repository.repository_inspect import channels, diff, log, show, status, tables, tags
from lance_dagster.errors import InvalidInputError, LanceDagsterError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: "Sequence[click.Command]" = (
    *(tables, status, log, show, diff, channels, tags, history),
    *(create, adopt, record, move, remove),
    *(fork, commit, publish, discard, revert),
    *(create_channel, delete_channel, promote, hold, release, tag),
    *(repair, collect),
)
_NAME = "repository"
# Longer than any first sentence of a subcommand, so that click does not cut it in the list.
_SENTENCE = 200
# Where a REF is not an argument of its own, the error about an extra argument says where the REF belongs.
_WHERE_REFS_BELONG = {"diff": "A..B, such as production..main"}


class RepositoryGroup(click.Group):
    """The subcommands of a repository, in the order of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order in which they are explained."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the subcommands with the whole first sentence of each."""
        with formatter.section("Commands"):
            formatter.write_dl([(command.name or "", command.get_short_help_str(_SENTENCE)) for command in COMMANDS])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the subcommand."""
        try:
            return super().parse_args(ctx, args)
        except NoArgsIsHelpError:
            # A usage error by its class, whose text is the help itself.
            raise
        except click.UsageError as error:
            raise UsageRefusal.from_click(error, _NAME) from error

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # click's
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # Caught here and not by the outer group, which would name the help of `repository` only.
            called = " ".join(filter(None, (_NAME, ctx.invoked_subcommand)))
            where = _WHERE_REFS_BELONG.get(ctx.invoked_subcommand or "")
            usage_error = error
            if where and "extra argument" in error.message:
                usage_error = click.UsageError(f"{error.message.rstrip('.')}; a commit is given as {where}", error.ctx)
            raise UsageRefusal.from_click(usage_error, called) from error
        # The arguments name something that does not exist or is not allowed: exit code 2, as for a misspelt option.
        except (InvalidInputError, NotFoundError) as error:
            raise UsageRefusal(_line(error, ctx)) from error
        except LanceDagsterError as error:
            raise Refusal(_line(error, ctx)) from error


def _line(error: LanceDagsterError, ctx: click.Context) -> str:
    return error_line(error, ctx.find_root().obj or "ROOT", repository_command_for)


@click.group(_NAME, cls=RepositoryGroup)
def repository() -> None:
    """Commit, publish and promote the tables below ROOT together. ROOT is a local path or s3://bucket/path.

    The name of a table is its path below ROOT without .lance, such as shop/orders. A REF is a branch, a channel, a
    repository tag or a commit id of the repository, or an expression such as production~1 or production@{yesterday}.
    """


for _command in COMMANDS:
    _command.params.append(HELP)
    repository.add_command(_command)
