"""The command `lance-dagster`: the commands about a lake by topic, and the group of the commands about one table."""

import os
from collections.abc import Mapping, Sequence

import click

from lance_dagster.cli.arguments import HELP, VERSION
from lance_dagster.cli.command_errors import repository_command_for
from lance_dagster.cli.command_group import CommandGroup
from lance_dagster.cli.repository.channel_commands import (
    create_channel,
    delete_channel,
    history,
    hold,
    promote,
    release,
    rollback,
    tag,
)
from lance_dagster.cli.repository.page_command import page
from lance_dagster.cli.repository.repository_commands import (
    adopt,
    commit,
    create,
    discard,
    fork,
    free,
    move,
    publish,
    record,
    remove,
    repair,
    revert,
)
from lance_dagster.cli.repository.repository_inspect import (
    candidates,
    channels,
    diff,
    log,
    show,
    status,
    tables,
    tags,
)
from lance_dagster.cli.table_group import table

TOPICS: Mapping[str, Sequence[click.Command]] = {
    "Look": (status, page, candidates, log, show, diff, tables, channels, history, tags),
    "Publish, and go back": (publish, discard, promote, rollback, hold, release),
    "Set up": (create, adopt, record, create_channel, delete_channel, move, remove),
    "Change": (fork, commit, revert, tag),
    "Maintain": (free, repair),
    "One table": (table,),
}
_REF_PLACES = {"diff": "A..B, such as production..main", "rollback": "--to REF"}


@click.group(
    cls=CommandGroup,
    topics=TOPICS,
    as_command=repository_command_for,
    ref_places=_REF_PLACES,
    params=[VERSION, HELP],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.pass_context
def main(context: click.Context) -> None:
    """Version control for Lance tables. LAKE is the folder of a repository: a local path, or s3://bucket/path.

    The name of a table is its path below LAKE without .lance, such as shop/orders. A REF is a branch, a channel, a tag
    or a commit id of the lake, or an expression such as production~1 or production@{yesterday}.

    Exits with 0 on success, 1 after a refusal, conflict, damage or storage failure, and 2 on wrong arguments.
    """
    # The convention of https://no-color.org, which click does not implement.
    if os.environ.get("NO_COLOR"):
        context.color = False
