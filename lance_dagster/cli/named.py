"""Arguments that name versions, branches or tags, and what a shell offers to complete them with."""

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from lance_dagster.cli.command import storage_options_from
from lance_dagster.errors import LanceDagsterError

if TYPE_CHECKING:
    from lance_dagster.history.refs.ref_store import Refs


class Named(click.ParamType[str]):
    """A name, or where both kinds are meant an expression over names."""

    name = "ref"

    def __init__(self, *, branches: bool = True, tags: bool = True) -> None:
        """Say what is named."""
        self._branches, self._tags = branches, tags

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Take the text as it is: the table says whether there is such a name."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Offer the names of the table that was typed before; none where it cannot be reached."""
        # An option that lacks its value, being typed, leaves arguments unnamed; TABLE is the first.
        uri = ctx.params.get("table") or next(iter(ctx.args), "")
        try:
            refs = _refs_of(uri, storage_options_from(ctx.params.get("storage_options") or ()))
            branches = refs.known() if self._branches else []
            names = [*branches, *(refs.tags() if self._tags else ())]
        except (LanceDagsterError, click.ClickException, OSError):
            # An error would be printed into the line that is being typed.
            return []
        found = sorted(name for name in names if name.startswith(incomplete))
        # Main is there whether or not there is a table.
        return [] if names == ["main"] else [CompletionItem(name) for name in found]


def _refs_of(uri: str, storage_options: dict[str, str]) -> "Refs":
    """Return the names of a table without the libraries that read it: a shell is waiting."""
    from lance_dagster.history.refs.ref_store import Refs
    from lance_dagster.history.table_uri import is_table_uri, parse_table_uri
    from lance_dagster.store import open_store

    return Refs(open_store(parse_table_uri(uri)[0] if is_table_uri(uri) else uri, storage_options))


REF, BRANCH, TAG = Named(), Named(tags=False), Named(branches=False)
