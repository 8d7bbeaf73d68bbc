"""The rows in conflict, as the merge base, the source and the dest have them, for each kind of conflict."""

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable, MergePreview
from lance_dagster.errors import InvalidInputError
from tests.table_factory import as_pylance

ROWS = pa.table({"id": [1, 2, 3, 4, 5, 6], "name": ["a", "b", "c", "d", "e", "f"]})
Line = tuple[str | None, str | None, dict[str, Any] | None, dict[str, Any] | None, dict[str, Any] | None]


def made(folder: Path, rows: pa.Table = ROWS, *, stable: bool, per_fragment: int = 3) -> LanceTable:
    """A table of several fragments, and a branch `run`."""
    uri = str(folder / "table")
    lance.write_dataset(rows, uri, enable_stable_row_ids=stable, max_rows_per_file=per_fragment)
    table = LanceTable.open(uri)
    table.branches.create("run")
    return table


@pytest.fixture
def stable(tmp_path: Path) -> LanceTable:
    """The table with stable row ids."""
    return made(tmp_path, stable=True)


@pytest.fixture
def unstable(tmp_path: Path) -> LanceTable:
    """The table without stable row ids."""
    return made(tmp_path, stable=False)


@pytest.fixture(params=[True, False], ids=["stable ids", "addresses"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> LanceTable:
    """The table with and without stable row ids."""
    return made(tmp_path, stable=request.param)


def rename(table: LanceTable, to: str, where: str, branch: str = "main") -> None:
    """Give rows a new name through pylance."""
    as_pylance(table, branch).update({"name": f"'{to}'"}, where=where)


def listed(preview: MergePreview, **asked: Any) -> list[Line]:  # noqa: ANN401  # as `conflicting_rows` takes them
    """The rows, each with its change on both sides and its three images."""
    rows = preview.conflicting_rows(**asked).read_all().to_pylist()
    return [(row["_source_change"], row["_dest_change"], row["base"], row["source"], row["dest"]) for row in rows]


def named(number: int, name: str | None) -> dict[str, Any]:
    """One image of a row."""
    return {"id": number, "name": name}


BOTH_CHANGED: Line = ("changed", "changed", named(2, "b"), named(2, "B"), named(2, "BB"))
GONE_FROM_DEST: Line = ("changed", "removed", named(4, "d"), named(4, "D"), None)
GONE_FROM_SOURCE: Line = ("removed", "changed", named(6, "f"), None, named(6, "FF"))


def contradict(table: LanceTable) -> None:
    """Both sides change row 2; the source changes row 4 and deletes row 6, and the dest does the opposite."""
    rename(table, "B", "id = 2", "run")
    rename(table, "D", "id = 4", "run")
    table.delete("id = 6", branch="run")
    rename(table, "BB", "id = 2")
    table.delete("id = 4")
    rename(table, "FF", "id = 6")
    # These are no conflicts.
    rename(table, "A", "id = 1", "run")
    rename(table, "EE", "id = 5")
    table.append(pa.table({"id": [7], "name": ["g"]}), branch="run")
    table.append(pa.table({"id": [8], "name": ["h"]}))


def test_rows_have_three_images(stable: LanceTable) -> None:
    """Each row has its change on both sides and its row id."""
    contradict(stable)
    preview = stable.preview_merge("run")
    assert [BOTH_CHANGED, GONE_FROM_DEST, GONE_FROM_SOURCE] == listed(preview)
    rows = preview.conflicting_rows().read_all()
    assert [1, 3, 5] == rows["_row_id"].to_pylist()
    assert {("rows", preview.conflicts[0].unit)} == {
        (row["_conflict_kind"], row["_conflict_unit"]) for row in rows.to_pylist()
    }


def test_without_stable_ids_the_base_is_shown(unstable: LanceTable) -> None:
    """The new row of a changed one is unknown, but deleted rows are still known."""
    contradict(unstable)
    preview = unstable.preview_merge("run")
    assert [
        ("rewritten", "rewritten", named(2, "b"), None, None),
        ("rewritten", "removed", named(4, "d"), None, None),
        ("removed", "rewritten", named(6, "f"), None, None),
    ] == listed(preview)
    addresses = preview.conflicting_rows().read_all()["_row_id"].to_pylist()
    assert [1, 2**32, 2**32 + 2] == addresses
    base = as_pylance(unstable).checkout_version(1).to_table(with_row_id=True)
    assert set(addresses) <= set(base["_rowid"].to_pylist())


def test_a_key_tells_what_became_of_a_row(table: LanceTable) -> None:
    """The lines are the same with and without stable row ids."""
    contradict(table)
    preview = table.preview_merge("run")
    assert [BOTH_CHANGED, GONE_FROM_DEST, GONE_FROM_SOURCE] == listed(preview, on=["id"])
    keys = preview.conflicting_rows(on=["id"], columns=["name"]).read_all()["key"]
    assert [{"id": 2}, {"id": 4}, {"id": 6}] == keys.to_pylist()


@pytest.mark.parametrize("compacting", [["run"], ["main"], ["run", "main"]], ids="+".join)
def test_compactions_hide_nothing(table: LanceTable, compacting: list[str]) -> None:
    """Rows are found after they were moved, before or after their change."""
    for branch in compacting:
        as_pylance(table, branch).optimize.compact_files()
    contradict(table)
    for branch in compacting:
        as_pylance(table, branch).optimize.compact_files()
    assert [BOTH_CHANGED, GONE_FROM_DEST, GONE_FROM_SOURCE] == listed(table.preview_merge("run"), on=["id"])


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_of_many_fragments_come_as_one_stream(tmp_path: Path, *, keyed: bool) -> None:
    """Rows come in the order of the merge base, across fragments and batches."""
    count = 40_000
    rows = pa.table({"id": pa.array(range(count), pa.int64()), "name": ["x"] * count})
    table = made(tmp_path, rows, stable=True, per_fragment=1_500)
    rename(table, "y", "id % 2 = 0", "run")
    rename(table, "z", "id % 3 = 0")
    as_pylance(table).optimize.compact_files()
    found = table.preview_merge("run").conflicting_rows(on=["id"] if keyed else None).read_all()
    assert list(range(0, count, 6)) == found["_row_id"].to_pylist()
    assert [{"id": number, "name": "y"} for number in range(0, count, 6)] == found["source"].to_pylist()
    assert [{"id": number, "name": "z"} for number in range(0, count, 6)] == found["dest"].to_pylist()


def test_any_history_is_told_right(tmp_path: Path) -> None:
    """The rows equal those of a model that knows only which rows each side changed or deleted."""
    for seed in range(8):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        table = made(folder, stable=chance.random() < 0.5, per_fragment=chance.choice([2, 3, 6]))
        names: dict[str, dict[int, str]] = {"run": {}, "main": {}}
        gone: dict[str, set[int]] = {"run": set(), "main": set()}
        for step in range(6):
            branch, number = chance.choice(["run", "main"]), chance.randint(1, 6)
            match chance.choice(["update", "update", "delete", "compact"]):
                case "update" if number not in gone[branch]:
                    rename(table, f"{branch} {step}", f"id = {number}", branch)
                    names[branch][number] = f"{branch} {step}"
                case "delete":
                    table.delete(f"id = {number}", branch=branch)
                    gone[branch].add(number)
                case "compact":
                    as_pylance(table, branch).optimize.compact_files()
        expected: list[Line] = []
        for number, was in enumerate("abcdef", 1):
            did = ["removed" if number in gone[b] else "changed" if number in names[b] else None for b in names]
            if None not in did and did != ["removed", "removed"]:
                images = [None if number in gone[b] else named(number, names[b][number]) for b in names]
                expected.append((did[0], did[1], named(number, was), images[0], images[1]))
        assert expected == listed(table.preview_merge("run"), on=["id"]), seed


def test_lines_can_be_few(stable: LanceTable) -> None:
    """Only as many rows are read as are asked for."""
    contradict(stable)
    preview = stable.preview_merge("run")
    assert [BOTH_CHANGED, GONE_FROM_DEST] == listed(preview, limit=2)
    assert [] == listed(preview, limit=0)
    assert 3 == len(listed(preview, limit=100))
    with pytest.raises(InvalidInputError):
        preview.conflicting_rows(limit=-1)


def test_columns_are_chosen_by_any_of_their_names(stable: LanceTable) -> None:
    """All images have the columns under the dest's names."""
    stable.columns.rename("name", "title", branch="run")
    stable.columns.rename("id", "number")
    as_pylance(stable, "run").update({"title": "'B'"}, where="id = 2")
    rename(stable, "BB", "number = 2")
    preview = stable.preview_merge("run")
    assert [
        ("changed", "changed", {"number": 2, "name": "b"}, {"number": 2, "name": "B"}, {"number": 2, "name": "BB"})
    ] == listed(preview)
    assert [("changed", "changed", {"name": "b"}, {"name": "B"}, {"name": "BB"})] == listed(preview, columns=["title"])
    assert [("changed", "changed", {}, {}, {})] == listed(preview, columns=[])
    with pytest.raises(InvalidInputError):
        preview.conflicting_rows(columns=["nam"])


def test_a_version_lacks_columns_that_others_have(stable: LanceTable) -> None:
    """An image has the columns of its version, such as a dropped one before the drop and a new one after it."""
    stable.columns.drop(["name"])
    stable.columns.add({"twice": "id * 2"}, branch="run")
    as_pylance(stable, "run").update({"twice": "0"}, where="id = 2")
    stable.delete("id = 2")
    preview = stable.preview_merge("run")
    (line,) = listed(preview)
    assert ("changed", "removed", named(2, "b"), {"id": 2, "name": "b", "twice": 0}, None) == line


def test_nested_columns_and_blobs_are_read(tmp_path: Path) -> None:
    """Structs and lists are read, and blobs as bytes."""
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    point = pa.struct([pa.field("x", pa.int64()), pa.field("tags", pa.list_(pa.string()))])
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("point", point), blob])
    rows = [{"id": n, "point": {"x": n, "tags": ["t"] * n}, "blob": b"%d" % n} for n in range(4)]
    rows[2]["point"] = None
    table = made(tmp_path, pa.Table.from_pylist(rows, schema), stable=True, per_fragment=2)
    for branch, x in (("run", 7), ("main", 8)):
        new = [{"id": n, "point": {"x": x, "tags": None}, "blob": None} for n in (1, 2)]
        table.upsert(pa.Table.from_pylist(new, schema), on=["id"], branch=branch)
    found = listed(table.preview_merge("run"), on=["id"])
    assert [
        ("changed", "changed", rows[n], *({"id": n, "point": {"x": x, "tags": None}, "blob": None} for x in (7, 8)))
        for n in (1, 2)
    ] == found


def amounts(day: str, **given: int) -> pa.Table:
    """Rows of a day."""
    return pa.table({"day": [day] * len(given), "id": list(given), "amount": list(given.values())})


@pytest.mark.parametrize("kept_ids", [True, False], ids=["stable ids", "addresses"])
def test_a_partition_that_both_replaced(tmp_path: Path, *, kept_ids: bool) -> None:
    """The rows that either side deleted or added are listed, and a key matches equal rows."""
    rows = pa.concat_tables([amounts("mon", a=1, b=2), amounts("tue", c=3)])
    table = made(tmp_path, rows, stable=kept_ids)
    table.replace_where("day = 'mon'", amounts("mon", a=10, x=11), branch="run", partitions=["mon"])
    table.replace_where("day = 'mon'", amounts("mon", a=20, x=21, y=22), partitions=["mon"])
    table.append(amounts("tue", d=4), branch="run")
    preview = table.preview_merge("run")
    assert ["partition mon"] == [conflict.unit for conflict in preview.conflicts]

    def image(number: str, amount: int) -> dict[str, Any]:
        return {"day": "mon", "id": number, "amount": amount}

    assert [
        ("removed", "removed", image("a", 1), None, None),
        ("removed", "removed", image("b", 2), None, None),
        ("added", None, None, image("a", 10), None),
        ("added", None, None, image("x", 11), None),
        (None, "added", None, None, image("a", 20)),
        (None, "added", None, None, image("x", 21)),
        (None, "added", None, None, image("y", 22)),
    ] == listed(preview)
    assert [
        ("changed", "changed", image("a", 1), image("a", 10), image("a", 20)),
        ("removed", "removed", image("b", 2), None, None),
        ("added", "added", None, image("x", 11), image("x", 21)),
        (None, "added", None, None, image("y", 22)),
    ] == listed(preview, on=["day", "id"])


def test_a_partition_that_one_replaced_and_the_other_changed(tmp_path: Path) -> None:
    """The changed row is in two conflicts, each of which lists it; a single conflict can be chosen."""
    table = made(tmp_path, pa.concat_tables([amounts("mon", a=1, b=2), amounts("tue", c=3)]), stable=True)
    table.replace_where("day = 'mon'", amounts("mon", a=10), branch="run", partitions=["mon"])
    table.update({"amount": "5"}, where="id = 'b' or id = 'c'")
    preview = table.preview_merge("run")
    partition, rows = preview.conflicts
    b = {"day": "mon", "id": "b", "amount": 2}
    changed: Line = ("removed", "changed", b, None, {**b, "amount": 5})
    assert [changed] == listed(preview, conflict=rows)
    assert [
        ("removed", "unchanged", {**b, "id": "a", "amount": 1}, None, {**b, "id": "a", "amount": 1}),
        changed,
        ("added", None, None, {**b, "id": "a", "amount": 10}, None),
    ] == listed(preview, conflict=partition)
    assert [*listed(preview, conflict=partition), changed] == listed(preview)
    settled = table.preview_merge("run", strategy={"rows": "dest-wins"})
    assert listed(preview, conflict=partition) == listed(settled)
    with pytest.raises(InvalidInputError):
        settled.conflicting_rows(rows)


def test_a_key_has_to_be_one(stable: LanceTable) -> None:
    """A key column exists in all versions, and values are unique in each."""
    contradict(stable)
    preview = stable.preview_merge("run")
    with pytest.raises(InvalidInputError):
        preview.conflicting_rows(on=[])
    with pytest.raises(InvalidInputError):
        preview.conflicting_rows(on=["nr"])
    stable.columns.drop(["name"])
    with pytest.raises(InvalidInputError):
        stable.preview_merge("run").conflicting_rows(on=["name"])


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    """The right row could not be determined."""
    table = made(tmp_path, amounts("mon", a=1, b=2), stable=True)
    table.replace_where("day = 'mon'", amounts("mon", x=1, y=2), branch="run", partitions=["mon"])
    table.replace_where("day = 'mon'", amounts("mon", z=1), partitions=["mon"])
    with pytest.raises(InvalidInputError):
        table.preview_merge("run").conflicting_rows(on=["day"]).read_all()


def test_rows_without_a_key_are_no_rows_of_one_key(tmp_path: Path) -> None:
    """Null matches no key, so such rows are listed separately."""
    table = made(tmp_path, pa.table({"id": [1, None], "name": ["a", "b"]}), stable=False)
    rename(table, "A", "true", "run")
    rename(table, "AA", "true")
    assert [
        ("changed", "changed", named(1, "a"), named(1, "A"), named(1, "AA")),
        ("rewritten", "rewritten", {"id": None, "name": "b"}, None, None),
    ] == listed(table.preview_merge("run"), on=["id"])


def test_rows_that_were_changed_without_a_new_column(table: LanceTable) -> None:
    """The other side wrote a column beside the rows, which the changed rows lack."""
    table.columns.add({"twice": "id * 2"}, branch="run")
    rename(table, "B", "id in (2, 5)")
    preview = table.preview_merge("run")
    assert ["column twice"] == [conflict.unit for conflict in preview.conflicts]
    assert [
        ("changed", "changed", named(2, "b"), {**named(2, "b"), "twice": 4}, named(2, "B")),
        ("changed", "changed", named(5, "e"), {**named(5, "e"), "twice": 10}, named(5, "B")),
    ] == listed(preview, on=["id"])


def written(table: LanceTable, names: dict[int, str], branch: str = "main") -> None:
    """Rewrite a column in place for the rows of the first fragment, with other values for some."""
    dataset = as_pylance(table, branch)
    given = pa.table({"id": list(names), "name": list(names.values())})
    fragment, fields = dataset.get_fragments()[0].update_columns(given, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(
        updated_fragments=[fragment], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def test_a_column_that_both_wrote_anew(table: LanceTable) -> None:
    """Of all rows of a fragment, only those are listed in which a side has another value."""
    written(table, {1: "A", 2: "B"}, "run")
    written(table, {2: "BB"})
    preview = table.preview_merge("run")
    assert ["column name"] == [conflict.unit for conflict in preview.conflicts]
    assert [
        ("changed", "changed", named(1, "a"), named(1, "A"), named(1, "a")),
        ("changed", "changed", named(2, "b"), named(2, "B"), named(2, "BB")),
    ] == listed(preview)


@pytest.mark.parametrize("casting", ["run", "main"])
def test_rows_that_were_not_cast(table: LanceTable, casting: str) -> None:
    """The other side added rows of the old type."""
    other = "main" if casting == "run" else "run"
    table.columns.cast("id", pa.int32(), branch=casting)
    table.append(pa.table({"id": [7], "name": ["g"]}), branch=other)
    preview = table.preview_merge("run")
    assert ["column id"] == [conflict.unit for conflict in preview.conflicts]
    g = named(7, "g")
    lines: dict[str, Line] = {"main": ("added", None, None, g, None), "run": (None, "added", None, None, g)}
    assert [lines[casting]] == listed(preview)
    types = {name: preview.conflicting_rows().schema.field(name).type.field("id").type for name in ("source", "dest")}
    assert pa.int32() == types["source" if casting == "run" else "dest"]
    assert pa.int64() == types["dest" if casting == "run" else "source"]


def test_nulls_that_are_forbidden_elsewhere(table: LanceTable) -> None:
    """Of the added rows, those with a null are listed."""
    table.columns.set_nullable("name", nullable=False, branch="run")
    table.append(pa.table({"id": [7, 8], "name": ["g", None]}))
    assert [(None, "added", None, None, named(8, None))] == listed(table.preview_merge("run"))


def test_conflicts_without_rows_give_none(stable: LanceTable) -> None:
    """Conflicts about settings, names of columns and the history have no rows, and neither has a clean merge."""
    stable.config.set({"owner": "ann"}, branch="run")
    clean = stable.preview_merge("run")
    stable.config.set({"owner": "bob"})
    stable.columns.rename("name", "title", branch="run")
    stable.columns.rename("name", "label")
    torn = stable.preview_merge("run")
    assert {"config", "column"} == {conflict.kind for conflict in torn.conflicts}
    ff_only = stable.preview_merge("run", mode="ff-only")
    assert ["history"] == [conflict.kind for conflict in ff_only.conflicts]
    for preview in (clean, torn, ff_only, stable.preview_merge("main@1")):
        assert [] == listed(preview)
        assert ["base", "source", "dest"] == preview.conflicting_rows().schema.names[-3:]


def test_a_row_that_came_to_both_on_other_ways(stable: LanceTable) -> None:
    """After crosswise merges the merge base lacks the row, which both sides changed since."""
    stable.branches.create("third")
    stable.append(pa.table({"id": [7], "name": ["g"]}), branch="third")
    for branch in ("run", "main"):
        stable.append(pa.table({"id": [8], "name": [branch]}), branch=branch)
        stable.merge("third", into=branch)
        rename(stable, f"G {branch}", "id = 7", branch)
    stable.branches.delete("third")
    (line,) = listed(stable.preview_merge("run"))
    assert (named(7, "G run"), named(7, "G main")) == line[3:]


def test_a_row_that_was_brought_back(stable: LanceTable) -> None:
    """One side restored the row from before the merge base, so it is not among the rows of the base."""
    stable.delete("id = 2", branch="run")
    stable.restore("run@1", branch="run")
    rename(stable, "B", "id = 2", "run")
    rename(stable, "BB", "id = 2")
    assert [BOTH_CHANGED] == listed(stable.preview_merge("run"))


def test_the_other_direction(stable: LanceTable) -> None:
    """Main is merged into a branch on which rows have other row ids."""
    stable.append(pa.table({"id": [7], "name": ["g"]}), branch="run")
    stable.append(pa.table({"id": [8], "name": ["h"]}))
    stable.merge("run")
    rename(stable, "BB", "id in (2, 7)")
    rename(stable, "B", "id in (2, 7)", "run")
    assert [BOTH_CHANGED, ("changed", "changed", named(7, "g"), named(7, "B"), named(7, "BB"))] == listed(
        stable.preview_merge("run")
    )
    assert [
        ("changed", "changed", named(2, "b"), named(2, "BB"), named(2, "B")),
        ("changed", "changed", named(7, "g"), named(7, "BB"), named(7, "B")),
    ] == listed(stable.preview_merge("main", "run"))


def pickled(preview: MergePreview) -> MergePreview:
    """A copy as another process gets it."""
    found: MergePreview = pickle.loads(pickle.dumps(preview))  # noqa: S301  # bytes of this test
    return found


def test_a_copy_looks_again(stable: LanceTable) -> None:
    """A preview can be pickled and compared, its repr omits the rows, and it keeps its versions."""
    contradict(stable)
    preview = stable.preview_merge("run", strategy={"config": "dest-wins"})
    again = pickled(preview)
    assert preview == again == copy.deepcopy(again)
    assert "_rows" not in repr(again)
    stable.delete("true")
    for found in (preview, again, pickled(again)):
        assert [BOTH_CHANGED, GONE_FROM_DEST, GONE_FROM_SOURCE] == listed(found)
