"""The command itself: its subcommands put together."""

import click

from lance_dagster.cli.command import Program
from lance_dagster.cli.looking import branches, log, show, tags
from lance_dagster.cli.verifying import verify


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lance-dagster", message="%(prog)s %(version)s")
def main() -> None:
    """Look after Lance tables with branches and tags. TABLE is a local path or s3://bucket/path."""


for _command in (log, show, branches, tags, verify):
    main.add_command(_command)
