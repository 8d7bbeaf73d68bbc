"""A group of subcommands listed by topic, whose errors become one line and an exit code.

Exit codes: 0 done; 1 refused, in conflict, damage was found, or the storage failed; 2 wrong arguments.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from lance_dagster.cli.arguments import HELP
from lance_dagster.cli.command_errors import Refusal, UsageRefusal, error_line
from lance_dagster.cli.output import discard_output
from lance_dagster.errors import Call, InvalidInputError, LanceDagsterError, NotFoundError

# Longer than any first sentence of a subcommand, so that click does not cut it in the list.
_SENTENCE = 200


class CommandGroup(click.Group):
    """Subcommands by topic. Errors of this package become a line and an exit code; other exceptions are bugs.

    Attributes:
        topics: The subcommands, by topic.
        as_command: Returns a call of a method as a command, for the remedies of errors.
        ref_places: By subcommand, where a REF belongs that was typed as an argument too many.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  # click's
        topics: Mapping[str, Sequence[click.Command]],
        as_command: Callable[[str, Call], str],
        ref_places: Mapping[str, str],
        **options: Any,  # noqa: ANN401  # click's
    ) -> None:
        """Add the subcommands of all topics."""
        super().__init__(*args, **options)
        self.topics = topics
        self.as_command = as_command
        self.ref_places = ref_places
        for commands in topics.values():
            for command in commands:
                command.params.append(HELP)
                self.add_command(command)

    def main(self, args: Sequence[str] | None = None, *positional: Any, **named: Any) -> Any:  # noqa: ANN401  # click's
        """Run the command, help and completion included."""
        try:
            return super().main(args, *positional, **named)
        except OSError as error:
            # Only help is printed outside of subcommands, whose output reports this itself.
            if error.errno != errno.ENOSPC:
                raise
            discard_output()
            refusal = Refusal(f"cannot write the output: {error.strerror}")
            refusal.show()
            raise SystemExit(refusal.exit_code) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the topics."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the subcommand."""
        try:
            return super().parse_args(ctx, args)
        except NoArgsIsHelpError:
            # A usage error by its class, whose text is the help itself.
            raise
        except click.UsageError as error:
            raise UsageRefusal.from_click(error, self._words(ctx, None)) from error

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # click's
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            usage_error = error
            place = self.ref_places.get(ctx.invoked_subcommand or "")
            if place and "extra argument" in error.message:
                usage_error = click.UsageError(f"{error.message.rstrip('.')}; a ref is given as {place}", error.ctx)
            raise UsageRefusal.from_click(usage_error, self._words(ctx, ctx.invoked_subcommand)) from error
        # The arguments name something that does not exist or is not allowed: exit code 2, as for a misspelt option.
        except (InvalidInputError, NotFoundError) as error:
            raise UsageRefusal(self._line(error, ctx)) from error
        except LanceDagsterError as error:
            raise Refusal(self._line(error, ctx)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the subcommands by topic, all with their descriptions in one column."""
        # Each topic is laid out alone, so all names are padded to one length for the descriptions to be aligned.
        longest = max(len(name) for name in self.commands)
        for topic, commands in self.topics.items():
            rows = [
                ((command.name or "").ljust(longest), command.get_short_help_str(_SENTENCE)) for command in commands
            ]
            with formatter.section(topic):
                formatter.write_dl(rows)

    def _words(self, ctx: click.Context, subcommand: str | None) -> str:
        """Return the words after the program's name that lead to a subcommand of this group."""
        groups = [] if ctx.parent is None else [ctx.info_name]
        return " ".join(filter(None, (*groups, subcommand)))

    def _line(self, error: LanceDagsterError, ctx: click.Context) -> str:
        return error_line(error, ctx.find_root().obj or "LAKE", self.as_command)
