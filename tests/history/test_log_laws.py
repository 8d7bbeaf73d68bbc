"""Logs, steps and ranges on random histories, compared with walks along the parents of each version."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from lance_dagster import LanceTable, Version
from lance_dagster.errors import InvalidInputError, LanceDagsterError, VersionNotFoundError
from tests.table_factory import SCHEMA, entries

BRANCHES = ("main", "one", "two", "three")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(BRANCHES), st.just("")),
        st.tuples(st.just("fork"), st.sampled_from(["four", "five"]), st.sampled_from(BRANCHES)),
        st.tuples(st.just("merge"), st.sampled_from(BRANCHES), st.sampled_from(BRANCHES)),
    ),
    min_size=3,
    max_size=12,
)


def made(folder: str, steps: list[tuple[str, str, str]]) -> LanceTable:
    """A table with these branches, after all steps that succeeded."""
    table = LanceTable.create(Path(folder, "t"), SCHEMA, storage_options={"durability": "process"})
    for branch in BRANCHES[1:]:
        table.branches.create(branch)
    for number, (what, branch, other) in enumerate(steps):
        with suppress(LanceDagsterError):
            match what:
                case "append":
                    table.append(entries("a", number), branch=branch)
                case "fork":
                    table.branches.create(branch, other)
                case "merge":
                    table.merge(other, branch)
    return table


def closure(table: LanceTable, ref: str) -> dict[str, Version]:
    """A version and all versions that its parents lead to."""
    found: dict[str, Version] = {}
    left = [ref]
    while left:
        version = table.at(left.pop())
        if str(version) not in found:
            found[str(version)] = version
            left += version.parents
    return found


def collapsed(table: LanceTable, version: str) -> str:
    """The version that the first version of a branch repeats."""
    found = table.at(version)
    return collapsed(table, found.parents[0]) if found.operation == "Clone" else version


def heads(table: LanceTable) -> Iterator[str]:
    """The newest version of each branch."""
    for branch in ("main", *table.branches.list()):
        yield str(table.head(branch))


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_a_log_is_what_parents_lead_to(steps: list[tuple[str, str, str]]) -> None:
    """A log has each version once and after its children; `after` omits what another version leads to."""
    with tempfile.TemporaryDirectory() as folder:
        table = made(folder, steps)
        everything = {head: closure(table, head) for head in heads(table)}
        for head, versions in everything.items():
            shown = [str(version) for version in table.log(head, first_parent=False)]
            assert sorted({collapsed(table, name) for name in versions}) == sorted(shown)
            place = {name: at for at, name in enumerate(shown)}
            for name in shown:
                assert all(place[name] < place[collapsed(table, parent)] for parent in versions[name].parents)
            for other, reached in everything.items():
                without = {collapsed(table, name) for name in reached}
                expected = [name for name in shown if name not in without]
                assert expected == [str(version) for version in table.log(head, after=other, first_parent=False)]


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_steps_follow_the_parents(steps: list[tuple[str, str, str]]) -> None:
    """`^n` is the nth parent, and `~n` n first parents; the first version of a branch counts as its fork point."""
    with tempfile.TemporaryDirectory() as folder:
        table = made(folder, steps)
        for head in heads(table):
            line = [head]
            while parents := table.at(collapsed(table, line[-1])).parents:
                line.append(collapsed(table, parents[0]))
            for count, expected in enumerate(line[1:], start=1):
                assert expected == str(table.at(f"{head}~{count}")) == str(table.at(head + "^" * count))
            with pytest.raises(VersionNotFoundError):
                table.at(f"{head}~{len(line)}")
            for name in closure(table, head):
                parents = table.at(collapsed(table, name)).parents
                with suppress(InvalidInputError):
                    found = str(table.at(f"{name}^2"))
                    assert [collapsed(table, parent) for parent in parents[1:]] == [found]
                    continue
                assert len(parents) < 2
