"""The history of a table on a terminal: `main`, the run branches merged into it, and the tags.

    ● main@5    53,000 rows  merge of run/7c1d2e3f@6  ◀ production
    ├─╮
    │ ○ run/7c1d2e3f@6
    ├─╯
    ● main@4    27,004 rows  append

A version is drawn above its parents. A merged run branch is retired, so of its versions only the tip is known by name:
the second parent of the merge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.text import Text

from lance_dagster import LanceTable, Version

_SHORT_RUN = 8


def draw(table: LanceTable) -> Text:
    """Draw the history of a table's `main`, newest version first, with its tags and the branches still open."""
    tags: dict[str, list[str]] = {}
    for tag in table.tags().values():
        tags.setdefault(tag.ref, []).append(tag.name)
    open_branches = [
        f"{branch.name} from {branch.parent}" for branch in table.branches().values() if branch.name != "main"
    ]
    return Text("\n").join([*lines(table.log("main"), tags), *(_open(branch) for branch in open_branches)])


def lines(versions: Sequence[Version], tags: Mapping[str, Iterable[str]]) -> Iterator[Text]:
    """Yield the drawing line by line.

    Args:
        versions: The versions of one branch, newest first.
        tags: The names of the tags on a version, by the version as it is printed (`main@17`).
    """
    for version in versions:
        merged = version.parents[1:]
        yield _dot(version, merged, tags.get(str(version), ()))
        for parent in merged:
            yield Text("├─╮", "blue")
            yield Text.assemble(("│ ", "blue"), ("○ ", "magenta"), (short(parent), "magenta"))
            yield Text("├─╯", "blue")


def short(ref: str) -> str:
    """Shorten the run id in the name of a run branch, as git shortens commit ids."""
    prefix, slash, rest = ref.partition("run/")
    run_id, at, number = rest.partition("@")
    return f"{prefix}{slash}{run_id[:_SHORT_RUN]}{at}{number}" if slash else ref


def _dot(version: Version, merged: Sequence[str], names: Iterable[str]) -> Text:
    line = Text.assemble(("● ", "blue"), (f"{version!s:<9}", "bold"), f"{version.rows:>9,} rows  ")
    if merged:
        line.append(f"merge of {', '.join(short(parent) for parent in merged)}", "magenta")
    elif "dagster/run_id" in version.properties:
        line.append(version.message or version.operation.lower())
    else:
        line.append(f"{version.message or version.operation.lower()} by {version.writer or version.committer}", "red")
    for name in names:
        line.append(f"  ◀ {name}", "bold yellow")
    return line


def _open(branch: str) -> Text:
    return Text.assemble(("○ ", "magenta"), (short(branch), "magenta"), "  open")
