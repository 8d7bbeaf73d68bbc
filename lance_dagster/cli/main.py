"""The command `lance-dagster`: its subcommands by topic, and the exit codes and lines of its errors.

Exit codes: 0 done; 1 refused, in conflict, damage was found, or the storage failed; 2 wrong arguments.
"""

import errno
import os
from collections.abc import Sequence
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from lance_dagster.cli.arguments import HELP, VERSION
from lance_dagster.cli.command_errors import Refusal, UsageRefusal, error_line
from lance_dagster.cli.diff_command import diff
from lance_dagster.cli.inspect_commands import branches, show, status, tags
from lance_dagster.cli.log_command import log
from lance_dagster.cli.maintenance_commands import (
    allow_base,
    clone,
    compact,
    gc,
    move_base,
    record_digests,
    relocate,
    verify,
)
from lance_dagster.cli.merge_commands import cherry_pick, merge, merge_base, preview_branch, restore, revert, sync
from lance_dagster.cli.output import discard_output
from lance_dagster.cli.ref_commands import branch, promote, protect, reset, tag
from lance_dagster.cli.repository.page_command import page
from lance_dagster.cli.repository.repository_group import repository
from lance_dagster.cli.repository.repository_inspect import candidates
from lance_dagster.cli.rollback_command import rollback
from lance_dagster.cli.table_commands import create, head, tables
from lance_dagster.errors import InvalidInputError, LanceDagsterError, NotFoundError

TOPICS: dict[str, tuple[click.Command, ...]] = {
    "Look": (tables, status, log, show, head, diff, branches, tags, merge_base),
    "Create": (create,),
    "Name": (branch, tag, protect, reset),
    "Merge": (merge, preview_branch, sync, cherry_pick, revert, restore),
    "Promote and roll back": (promote, rollback),
    "Many tables": (repository, candidates, page),
    "Maintain": (verify, record_digests, gc, compact, clone, relocate, move_base, allow_base),
}
# Longer than any first sentence of a subcommand, so that click does not cut it in the list.
_SENTENCE = 200


class Program(click.Group):
    """The group of subcommands. Errors of this package become a line and an exit code; other exceptions are bugs."""

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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the subcommand."""
        try:
            return super().parse_args(ctx, args)
        except NoArgsIsHelpError:
            # A usage error by its class, whose text is the help itself.
            raise
        except click.UsageError as error:
            raise UsageRefusal.from_click(error, None) from error

    def invoke(self, ctx: click.Context) -> object:
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            usage_error = error
            if ctx.invoked_subcommand == rollback.name and "extra argument" in error.message:
                usage_error = click.UsageError(f"{error.message.rstrip('.')}; a commit is given as --to REF", error.ctx)
            raise UsageRefusal.from_click(usage_error, ctx.invoked_subcommand) from error
        # The arguments name something that does not exist or is not allowed: exit code 2, as for a misspelt option.
        except (InvalidInputError, NotFoundError) as error:
            raise UsageRefusal(error_line(error, ctx.obj or "TABLE")) from error
        except LanceDagsterError as error:
            raise Refusal(error_line(error, ctx.obj or "TABLE")) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the subcommands by topic, all with their descriptions in one column."""
        # Each topic is laid out alone, so all names are padded to one length for the descriptions to be aligned.
        longest = max(len(name) for name in self.commands)
        for topic, commands in TOPICS.items():
            rows = [
                ((command.name or "").ljust(longest), command.get_short_help_str(_SENTENCE)) for command in commands
            ]
            with formatter.section(topic):
                formatter.write_dl(rows)


@click.group(cls=Program, params=[VERSION, HELP], context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(context: click.Context) -> None:
    """Version control for Lance tables: branches, tags, merges. TABLE is a local path or the URI of an object store.

    Exits with 0 on success, 1 after a refusal, conflict, damage or storage failure, and 2 on wrong arguments.
    """
    # The convention of https://no-color.org, which click does not implement.
    if os.environ.get("NO_COLOR"):
        context.color = False


for _topic in TOPICS.values():
    for _command in _topic:
        _command.params.append(HELP)
        main.add_command(_command)
