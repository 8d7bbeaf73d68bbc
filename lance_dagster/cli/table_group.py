"""`lance-dagster table ...`: the commands about one table."""

from collections.abc import Mapping, Sequence

import click

from lance_dagster.cli.command_errors import command_for
from lance_dagster.cli.command_group import CommandGroup
from lance_dagster.cli.diff_command import diff
from lance_dagster.cli.inspect_commands import branches, show, status, tags
from lance_dagster.cli.log_command import log
from lance_dagster.cli.maintenance_commands import (
    allow_base,
    clone,
    compact,
    gc,
    move_base,
    move_files,
    record_digests,
    relocate,
    verify,
)
from lance_dagster.cli.merge_commands import cherry_pick, merge, merge_base, preview_branch, restore, revert, sync
from lance_dagster.cli.ref_commands import branch, promote, protect, reset, rollback, tag
from lance_dagster.cli.table_commands import create, head, list_tables

TABLE_TOPICS: Mapping[str, Sequence[click.Command]] = {
    "Look": (list_tables, status, log, show, head, diff, branches, tags, merge_base),
    "Create": (create,),
    "Name": (branch, tag, protect, reset),
    "Merge": (merge, preview_branch, sync, cherry_pick, revert, restore),
    "Move a tag": (promote, rollback),
    "Maintain": (verify, record_digests, gc, compact, move_files, clone, relocate, move_base, allow_base),
}


@click.group(
    "table", cls=CommandGroup, topics=TABLE_TOPICS, as_command=command_for, ref_places={"rollback": "--to REF"}
)
def table() -> None:
    """Branches, tags, merges and maintenance of one table. TABLE is a local path or the URI of an object store.

    A table in a lake is named by its folder, such as s3://lake/shop/orders.lance.
    """
