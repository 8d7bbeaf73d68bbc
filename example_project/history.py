"""The history of a table on a terminal: `main`, the run branches merged into it, and the tags.

      ○ run/5b9f07aa@4    80,789 rows  replace nyc/flights 2013-03
    ├─╯
    ● main@3      51,955 rows  merge of run/7c1d2e3f@3  ◀ production
    ├─╮
    │ ○ run/7c1d2e3f@3
    ├─╯
    ● main@2      27,004 rows  append by lance 14.0.2

A version is drawn above its parents, an open branch above the version it was forked from. A merged one is retired, so
of its versions only the tip is known by name: the second parent of the merge. A commit that no Dagster run made is red
and says which program made it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.text import Text

from lance_dagster import LanceTable, Version

_MAIN = "main"
_RUN_ID = "dagster/run_id"
_AUDITED = "dagster/audited_version"
_SHORT_RUN = 8


def draw(table: LanceTable) -> Text:
    """Draw the history of a table's `main`, newest version first, with its tags and the branches of runs still open."""
    tags: dict[str, list[str]] = {}
    for tag in table.tags.list().values():
        tags.setdefault(tag.ref, []).append(tag.name)
    forks: dict[str, list[Version]] = {}
    for name in table.branches.list("run/*"):
        line = table.log(name)
        fork = next((str(version) for version in line if version.branch == _MAIN), "")
        # A branch starts with a copy of what it was forked from.
        forks.setdefault(fork, []).extend(v for v in line if v.branch != _MAIN and v.operation != "Clone")
    return Text("\n").join(lines(table.log(_MAIN), tags, forks))


def lines(
    versions: Sequence[Version], tags: Mapping[str, Iterable[str]], forks: Mapping[str, Iterable[Version]]
) -> Iterator[Text]:
    """Yield the drawing line by line.

    Args:
        versions: The versions of `main`, newest first.
        tags: The names of the tags on a version, by the version as it is printed (`main@17`).
        forks: The versions of branches that are open, newest first, by the version they were forked from.
    """
    for place, version in enumerate(versions):
        waiting = [_described(one, ()) for one in forks.get(str(version), ())]
        if waiting:
            yield from _beside(waiting, "│ " if place else "  ")
        yield Text.assemble(("● ", "blue"), _described(version, tags.get(str(version), ())))
        for parent in _merged(version):
            yield Text("├─╮", "blue")
            yield from _beside([Text(short(parent), "magenta")], "│ ")


def _beside(branch: Iterable[Text], main: str) -> Iterator[Text]:
    for text in branch:
        yield Text.assemble((main, "blue"), ("○ ", "magenta"), text)
    yield Text("├─╯", "blue")


def short(ref: str) -> str:
    """Shorten the run id in the name of a run branch, as git shortens commit ids."""
    prefix, slash, rest = ref.partition("run/")
    run_id, at, number = rest.partition("@")
    return f"{prefix}{slash}{run_id[:_SHORT_RUN]}{at}{number}" if slash else ref


def _merged(version: Version) -> Sequence[str]:
    """Return what a merge brought: the branch of the run, of which the publisher merges a copy."""
    audited = version.properties.get(_AUDITED)
    return (audited,) if audited else version.parents[1:]


def _described(version: Version, tags: Iterable[str]) -> Text:
    line = Text.assemble((f"{short(str(version)):<8}", "bold"), f"{version.rows:>10,} rows  ")
    merged = _merged(version)
    if merged:
        line.append(f"merge of {', '.join(short(parent) for parent in merged)}", "magenta")
    elif not version.parents:
        line.append("created")
    elif _RUN_ID in version.properties:
        line.append(version.message or version.operation.lower())
    else:
        line.append(f"{version.message or version.operation.lower()} by {version.writer}", "red")
    for name in tags:
        line.append(f"  ◀ {name}", "bold yellow")
    return line
