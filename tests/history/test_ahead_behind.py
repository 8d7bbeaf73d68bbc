"""The distances between versions, counted by names and by walks."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings, strategies as st

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from tests.table_factory import entries, new_table

BRANCHES = ("main", "one", "two")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(BRANCHES), st.just("")),
        st.tuples(st.just("merge"), st.sampled_from(BRANCHES), st.sampled_from(BRANCHES)),
    ),
    max_size=8,
)


def walked(table: LanceTable, one: str, other: str) -> int:
    """The number of versions that only one ref contains, without those that repeat a fork point."""
    repeats = {f"{branch.name}@{branch.first}" for branch in table.branches.list().values()}
    return len({str(version) for version in table.log(one, after=other, first_parent=False)} - repeats)


@given(steps=STEPS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counted_as_walked(tmp_path: Path, steps: list[tuple[str, str, str]]) -> None:
    """The counts are equal after any merges, crosswise ones too."""
    table = new_table(tmp_path, entries("a", 1))
    for name in BRANCHES[1:]:
        table.branches.create(name)
    for number, (kind, branch, source) in enumerate(steps):
        if kind == "append":
            table.append(entries(branch, number), branch=branch)
        elif branch != source:
            try:
                table.merge(source, into=branch)
            except MergeConflictError:
                continue
    for one in BRANCHES:
        for other in BRANCHES:
            expected = walked(table, one, other), walked(table, other, one)
            assert expected == table.branches.ahead_behind(one, other)


def test_what_is_gone_does_not_count(tmp_path: Path) -> None:
    """A merged and deleted branch counts by its merge alone."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    table.append(entries("r", 1), branch="run")
    table.merge("run")
    assert (2, 0) == table.branches.ahead_behind("main", "main@2")
    table.branches.delete("run")
    assert (1, 0) == table.branches.ahead_behind("main", "main@2")
