"""The command itself: its subcommands put together, by topic."""

import os

import click

from lance_dagster.cli.collecting import gc
from lance_dagster.cli.command import Program
from lance_dagster.cli.comparing import diff
from lance_dagster.cli.looking import branches, tags
from lance_dagster.cli.merging import merge, merge_base, preview_branch, sync
from lance_dagster.cli.naming import branch, protect, tag
from lance_dagster.cli.promoting import promote, rollback
from lance_dagster.cli.showing import show
from lance_dagster.cli.standing import status
from lance_dagster.cli.undoing import cherry_pick, reset, restore, revert
from lance_dagster.cli.upkeep import clone, compact, move_base, relocate
from lance_dagster.cli.verifying import verify
from lance_dagster.cli.versions import log

TOPICS: dict[str, tuple[click.Command, ...]] = {
    "Look": (status, log, show, diff, branches, tags, merge_base),
    "Name": (branch, tag, protect, reset),
    "Join": (merge, preview_branch, sync, cherry_pick, revert, restore),
    "Release": (promote, rollback),
    "Keep": (verify, gc, compact, clone, relocate, move_base),
}
_SENTENCE = 200


class _Grouped(Program):
    """The command, whose help lists subcommands by topic."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List each topic's subcommands, all with their texts in one column."""
        longest = max(len(name) for name in self.commands)
        for topic, commands in TOPICS.items():
            rows = [
                ((command.name or "").ljust(longest), command.get_short_help_str(_SENTENCE)) for command in commands
            ]
            with formatter.section(topic):
                formatter.write_dl(rows)


@click.group(cls=_Grouped, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lance-dagster", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Look after Lance tables with branches and tags. TABLE is a local path or s3://bucket/path.

    Exits with 0 when it is done, 1 when it was refused, in conflict or found damage, 2 when it was called wrongly.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False


for _topic in TOPICS.values():
    for _command in _topic:
        main.add_command(_command)
