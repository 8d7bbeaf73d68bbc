"""Random changes on two branches: a diff agrees with the rows of both versions.

The model of a version is its rows by their key, which no change modifies and no two rows share. So the added, removed
and changed rows follow from what pylance reads, and have to be those that the diff reports by row ids, by the key, and,
where a table has no row ids, by whole rows.
"""

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from lance_dagster import Diff, LanceTable, MergeConflictError
from tests.table_factory import as_pylance

pytestmark = pytest.mark.slow

NESTED = pa.struct([pa.field("x", pa.float64()), pa.field("of", pa.list_(pa.int32()))])
COLUMNS: dict[str, pa.DataType] = {"key": pa.int64(), "n": pa.int32(), "text": pa.string(), "nested": NESTED}
SCHEMA = pa.schema(COLUMNS)
BRANCHES = ["main", "x"]
Model = dict[int, dict[str, Any]]

steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "append",
                "append",
                "update",
                "update",
                "delete",
                "nest",
                "nan",
                "compact",
                "upsert",
                "merge",
                "restore",
                "overwrite",
                "add",
                "fill",
                "refill",
                "refill",
                "drop",
                "rename",
                "cast",
                "reorder",
                "their_update",
                "their_compact",
                "their_merge_insert",
            ]
        ),
        st.sampled_from(BRANCHES),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=9,
)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a step: a branch, its columns, the names of those except the key, and a number for any use."""

    branch: str
    number: int
    schema: pa.Schema
    names: list[str]


class Story:
    """A table, and the steps that can be made on it."""

    def __init__(self, folder: Path, *, stable: bool) -> None:
        """Create two fragments on main, with a column in separate files, and a branch."""
        self.uri = str(folder / uuid.uuid4().hex)
        self.keys = 0
        self.stable = stable
        lance.write_dataset(self.rows(8), self.uri, max_rows_per_file=5, enable_stable_row_ids=stable)
        self.table = LanceTable.open(self.uri)
        self.table.columns.add({"filled": "key * 3"})
        self.table.branches.create("x")

    def rows(self, count: int, schema: pa.Schema = SCHEMA) -> pa.Table:
        """New rows."""
        made = []
        for _ in range(count):
            self.keys += 1
            odd = self.keys % 3
            row = {
                "key": self.keys,
                "n": None if odd == 1 else self.keys % 4,
                "text": "a word longer than most words" * (self.keys % 2),
                "nested": None if odd == 2 else {"x": float("nan") if odd else 1.5, "of": [1, None] * odd},
            }
            made.append({name: row.get(name) for name in schema.names})
        return pa.Table.from_pylist(made, schema=schema)

    def take(self, what: str, branch: str, number: int) -> None:
        """Make one step; a step that is impossible at this place is left out."""
        schema = self.table.schema(branch)
        names = [name for name in schema.names if name != "key"]
        getattr(self, f"_{what}")(Place(branch, number, schema, names))

    def _append(self, at: Place) -> None:
        self.table.append(self.rows(1 + at.number, at.schema), branch=at.branch)

    def _overwrite(self, at: Place) -> None:
        self.table.overwrite(self.rows(1 + at.number, at.schema), branch=at.branch)

    def _update(self, at: Place) -> None:
        if "n" in at.names:
            self.table.update({"n": "n + 1"}, where=f"key % 5 = {at.number % 5}", branch=at.branch)

    def _nest(self, at: Place) -> None:
        if "nested" in at.names:
            value = "named_struct('x', CAST(2.5 AS DOUBLE), 'of', nested.of)"
            self.table.update({"nested": value}, where=f"key % 4 = {at.number % 4}", branch=at.branch)

    def _nan(self, at: Place) -> None:
        # The rows are rewritten with the values that they had.
        if "text" in at.names:
            self.table.update({"text": "text"}, where=f"key % 3 = {at.number % 3}", branch=at.branch)

    def _delete(self, at: Place) -> None:
        self.table.delete(f"key % 7 = {at.number % 7}", branch=at.branch)

    def _compact(self, at: Place) -> None:
        self.table.maintenance.compact(branch=at.branch)

    def _upsert(self, at: Place) -> None:
        there = self.table.read(at.branch).slice(at.number, 2)
        self.table.upsert(
            pa.concat_tables([self.rows(1, at.schema), there.select(at.schema.names).cast(at.schema)]),
            on=["key"],
            branch=at.branch,
        )

    def _merge(self, at: Place) -> None:
        other = next(name for name in BRANCHES if name != at.branch)
        try:
            self.table.merge(other, into=at.branch)
        except MergeConflictError:
            return

    def _restore(self, at: Place) -> None:
        numbers = self.table.branches.version_numbers(at.branch)
        dataset = lance.dataset(self.uri).checkout_version(
            (None if at.branch == "main" else at.branch, numbers[at.number % len(numbers)])
        )
        dataset.restore()

    def _add(self, at: Place) -> None:
        name = ("more", "filled")[at.number % 2]
        if name not in at.names:
            self.table.columns.add(pa.field(name, pa.int64()), branch=at.branch)

    def _fill(self, at: Place) -> None:
        if "filled" not in at.names:
            self.table.columns.add({"filled": "key * 2"}, branch=at.branch)

    def _refill(self, at: Place) -> None:
        # Another field gets the same name; its values are in other files, or absent.
        if "filled" in at.names:
            self.table.columns.drop(["filled"], branch=at.branch)
        if at.number % 3:
            self.table.columns.add({"filled": f"key * {at.number % 3}"}, branch=at.branch)
        else:
            self.table.columns.add(pa.field("filled", pa.int64()), branch=at.branch)

    def _drop(self, at: Place) -> None:
        if len(at.names) > 1:
            self.table.columns.drop([at.names[at.number % len(at.names)]], branch=at.branch)

    def _rename(self, at: Place) -> None:
        if "text" in at.names:
            self.table.columns.rename("text", "words", branch=at.branch)
        elif "words" in at.names:
            self.table.columns.rename("words", "text", branch=at.branch)

    def _cast(self, at: Place) -> None:
        if "n" in at.names and at.schema.field("n").type == pa.int32():
            self.table.columns.cast("n", pa.int64(), branch=at.branch)

    def _reorder(self, at: Place) -> None:
        self.table.columns.reorder([*at.names, "key"], branch=at.branch)

    def _their_update(self, at: Place) -> None:
        if "n" in at.names:
            as_pylance(self.table, at.branch).update({"n": "n + 1"}, where=f"key % 6 = {at.number % 6}")

    def _their_compact(self, at: Place) -> None:
        as_pylance(self.table, at.branch).optimize.compact_files(materialize_deletions_threshold=0.0)

    def _their_merge_insert(self, at: Place) -> None:
        there = self.table.read(at.branch).slice(at.number, 2)
        new = pa.concat_tables([self.rows(1, at.schema), there.select(at.schema.names).cast(at.schema)])
        merge = as_pylance(self.table, at.branch).merge_insert("key")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(new)


def model(table: LanceTable, ref: str) -> Model:
    """The rows of a version by their key."""
    return {row["key"]: row for row in table.read(ref).to_pylist()}


def same(one: object, other: object) -> bool:
    """Whether two values are equal, where NaN equals NaN."""
    return repr(one) == repr(other)


def pairs(diff: Diff, before: list[str], after: list[str]) -> dict[str, str]:
    """The columns that both versions have: the new name by the old name."""
    renamed = {
        change.before: change.path for change in diff.schema if change.kind == "renamed" and "." not in change.path
    }
    gone = {change.path for change in diff.schema if change.kind == "dropped"}
    new = {change.path for change in diff.schema if change.kind == "added"}
    found = {str(name): renamed.get(name, name) for name in before if name not in gone}
    assert set(found.values()) == set(after) - new
    return found


def check_by_identity(table: LanceTable, one: str, other: str, key: list[str] | None) -> None:
    """Check that the diff agrees with the models, and turns one into the other."""
    olds, news = model(table, one), model(table, other)
    diff = table.diff(one, other, on=key)
    common = pairs(diff, table.schema(one).names, table.schema(other).names)
    changed = {
        number
        for number in olds.keys() & news.keys()
        if any(not same(olds[number][name], news[number][common[name]]) for name in common)
    }
    counts = diff.stat()
    assert (len(news.keys() - olds.keys()), len(olds.keys() - news.keys()), len(changed)) == (
        counts.added,
        counts.removed,
        counts.changed,
    ), f"{one}..{other} by {key}\n{diff}\n{olds}\n{news}"
    applied = {number: {new: row[old] for old, new in common.items()} for number, row in olds.items()}
    for row in diff.rows().read_all().to_pylist():
        _apply(row, applied, common)
    expected = {number: {new: row[new] for new in common.values()} for number, row in news.items()}
    assert {number: repr(sorted(row.items())) for number, row in expected.items()} == {
        number: repr(sorted(row.items())) for number, row in applied.items()
    }
    assert {number: repr(row) for number, row in news.items() if number not in olds} == {
        row["key"]: repr(row) for row in diff.added().read_all().to_pylist()
    }
    assert {number: repr(row) for number, row in olds.items() if number not in news} == {
        row["key"]: repr(row) for row in diff.removed().read_all().to_pylist()
    }
    mirrored = table.diff(other, one, on=key).stat()
    assert (counts.added, counts.removed, counts.changed) == (mirrored.removed, mirrored.added, mirrored.changed)


def _apply(row: Mapping[str, Any], applied: Model, common: Mapping[str, str]) -> None:
    values = {name: row[name] for name in common.values()}
    match row["_change_type"]:
        case "delete":
            del applied[row["key"]]
        case "insert":
            assert row["key"] not in applied
            applied[row["key"]] = values
        case "update_preimage":
            for name in common.values():
                was = row[f"{name}_before"] if f"{name}_before" in row else row[name]
                assert same(applied[row["key"]][name], was)
        case _:
            applied[row["key"]] = values


def check_by_values(table: LanceTable, one: str, other: str) -> None:
    """Check that, without ids and key, the older rows minus the removed and plus the added ones are the newer rows."""
    diff = table.diff(one, other)
    common = pairs(diff, table.schema(one).names, table.schema(other).names)
    rows = Counter(_shown(row, list(common)) for row in table.read(one).to_pylist())
    for row in diff.rows().read_all().to_pylist():
        gone = row["_change_type"] in ("delete", "update_preimage")
        values = {new: row[f"{new}_before"] if gone and f"{new}_before" in row else row[new] for new in common.values()}
        shown = _shown(values, list(common.values()))
        rows[shown] += -1 if gone else 1
        assert rows[shown] >= 0
    assert +rows == Counter(_shown(row, list(common.values())) for row in table.read(other).to_pylist())
    counts, mirrored = diff.stat(), table.diff(other, one).stat()
    assert (counts.added, counts.removed, counts.changed) == (mirrored.removed, mirrored.added, mirrored.changed)


def _shown(row: Mapping[str, Any], names: list[str]) -> str:
    return repr([row[name] for name in names])


@pytest.mark.parametrize("stable", [True, False])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(taken=steps, number=st.integers(0, 9))
def test_a_diff_is_what_the_rows_say(
    tmp_path: Path, *, stable: bool, taken: list[tuple[str, str, int]], number: int
) -> None:
    """The diff of any two versions on any branches agrees with their rows."""
    story = Story(tmp_path, stable=stable)
    for step in taken:
        story.take(*step)
    numbers = story.table.branches.version_numbers()
    for one, other in (
        ("main", "x"),
        (f"main@{numbers[number % len(numbers)]}", "main"),
        ("x", f"main@{numbers[-1 - number % len(numbers)]}"),
    ):
        check_by_identity(story.table, one, other, ["key"])
        if stable:
            check_by_identity(story.table, one, other, None)
        else:
            check_by_values(story.table, one, other)
