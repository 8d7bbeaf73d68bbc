"""`lance-dagster page`: write the page of a lake."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lance_dagster.cli.arguments import about_repository
from lance_dagster.cli.command_errors import Refusal
from lance_dagster.cli.output import Output, busy

if TYPE_CHECKING:
    from lance_dagster.repository import LanceRepository


@click.command(epilog="Example: lance-dagster page s3://lake --out lake.html --dagster-url https://dagster.example.com")
@about_repository
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("lake.html"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--commits", type=click.IntRange(min=1), default=1000, show_default=True, help="Show at most this many commits."
)
@click.option("--dagster-url", default="", metavar="URL", help="The address of Dagster's web UI; runs are links to it.")
@click.option(
    "--preview-rows",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Show values of rows: this many of each table that a channel's last move changed, and those that checks name.",
)
def page(  # one for each option
    repository: "LanceRepository",
    output: Output,
    *,
    out: Path,
    commits: int,
    dagster_url: str,
    preview_rows: int,
) -> None:
    """Write a page that shows LAKE: channels, candidates, the graph of commits, and tables.

    The page is one HTML file that loads nothing. Values of rows are left out unless --preview-rows is given.
    """
    from lance_dagster.page.lake_page import lake_page

    with busy("reading the lake"):
        text = lake_page(repository, commits=commits, dagster_url=dagster_url, preview_rows=preview_rows)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refusal(f"cannot write {out}: {error.strerror}") from error
    size = len(text.encode())
    output.write({"file": str(out), "bytes": size}, [f"{out}: {size:,} bytes"])
