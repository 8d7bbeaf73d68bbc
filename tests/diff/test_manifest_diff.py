"""Differences between two versions as far as manifests show them, and digests of values."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_dagster.diff.comparison_shapes import ComparisonShape
from lance_dagster.diff.manifest_diff import Comparison, compare
from lance_dagster.diff.row_digests import Digests, digests
from lance_dagster.diff.row_matching import first_duplicate, paired_by_ids, paired_by_values
from lance_dagster.format.model import DataFile, DeletionFile, Field, Fragment, Fragments, Manifest
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.schema import fields_from_arrow
from lance_dagster.format.transaction import MERGED_PREFIX, SQUASHED_PREFIX

COLUMNS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())]
FIELDS = fields_from_arrow(pa.schema(COLUMNS))


def data_file(path: str, *fields: int, base_id: int | None = None) -> DataFile:
    """A file with one column for each field."""
    return DataFile(
        path=path, fields=fields, column_indices=tuple(range(len(fields))), major=2, minor=1, base_id=base_id
    )


def fragment(number: int, *files: DataFile, rows: int = 10, deletion: DeletionFile | None = None) -> Fragment:
    """A fragment of ten rows."""
    return Fragment(id=number, files=files, physical_rows=rows, deletion=deletion)


def version(
    fields: Sequence[Field] = FIELDS,
    *fragments: Fragment,
    number: int = 1,
    **more: Any,  # noqa: ANN401  # as a manifest has it
) -> Manifest:
    """A version with these columns."""
    return Manifest(
        version=number,
        fields=tuple(fields),
        fragments=Fragments(fragments),
        max_fragment_id=max((item.id for item in fragments), default=None),
        **more,
    )


def compared(before: Manifest, after: Manifest) -> Comparison:
    """The comparison of two versions of one branch."""
    return compare(before, after, before)


def shown(changes: Sequence[object]) -> list[str]:
    """The changes as text."""
    return [str(change) for change in changes]


def test_equal_versions_do_not_differ() -> None:
    """Equal versions give no changes."""
    one = version(FIELDS, fragment(0, data_file("a.lance", 0, 1, 2)))
    found = compared(one, replace(one, version=2, timestamp=7))
    assert ((), (), ()) == (found.schema, found.settings, found.fragments)


def test_columns_are_added_dropped_and_renamed() -> None:
    """A rename keeps the field id; a field without a counterpart was added or dropped."""
    after = (FIELDS[0], replace(FIELDS[1], name="title"), replace(FIELDS[2], id=3, name="cost", logical_type="int32"))
    assert ["- price: double", "~ title: renamed from name", "+ cost: int32"] == shown(
        compared(version(), version(after)).schema
    )


def test_names_that_are_swapped_are_told_by_the_files() -> None:
    """The same column of the same file is the same field under any name."""
    swapped = (FIELDS[0], replace(FIELDS[1], name="x", logical_type="string"), replace(FIELDS[1], id=9, name="name"))
    file = data_file("a.lance", 0, 1, 2)
    before, after = version(FIELDS, fragment(0, file)), version(swapped, fragment(0, file, data_file("b.lance", 9)))
    assert ["- price: double", "~ x: renamed from name", "+ name: string"] == shown(compared(before, after).schema)


def test_ids_given_on_two_branches_prove_nothing() -> None:
    """The same id for two columns of the same type is a rename only if the id is older than the fork."""
    one = version((*FIELDS, Field(id=3, name="first", logical_type="int64")))
    other = version((*FIELDS, Field(id=3, name="second", logical_type="int64")))
    assert ["- first: int64", "+ second: int64"] == shown(compare(one, other, version()).schema)
    assert ["~ second: renamed from first"] == shown(compare(one, other, one).schema)
    assert ["- first: int64", "+ second: int64"] == shown(compare(one, other, None).schema)


def test_a_column_that_a_merge_gave_another_id_is_the_same() -> None:
    """The file of the column identifies it."""
    one = version((*FIELDS, Field(id=3, name="q", logical_type="int64")), fragment(0, data_file("q.lance", 3)))
    other = (*FIELDS, Field(id=3, name="r", logical_type="int64"), Field(id=4, name="s", logical_type="int64"))
    found = compare(one, version(other, fragment(0, data_file("q.lance", 4), data_file("r.lance", 3))), version())
    assert ["+ r: int64", "~ s: renamed from q"] == shown(found.schema)


def test_a_cast_is_a_change_of_type() -> None:
    """A cast gives the column a new id under the same name."""
    after = (replace(FIELDS[0], id=3, logical_type="int32"), *FIELDS[1:])
    assert ["~ id: int64 -> int32"] == shown(compared(version(), version(after)).schema)


def test_nullability_and_order_are_changes() -> None:
    """The diff reports as few moved columns as possible."""
    after = (FIELDS[2], replace(FIELDS[0], nullable=False), FIELDS[1])
    assert ["~ price: moved from place 2 to 0", "~ id: null -> not null"] == shown(
        compared(version(), version(after)).schema
    )


def test_fields_inside_columns_are_named_by_their_path() -> None:
    """Fields below a struct and a list can be added, dropped, renamed and cast."""
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    before = fields_from_arrow(pa.schema([("s", inner), ("l", pa.list_(inner))]))
    ids = {f"{field.parent_id}.{field.name}": field for field in before}
    s, lst = before[0], next(field for field in before if field.name == "l")
    after = (
        s,
        replace(ids[f"{s.id}.x"], name="z"),
        Field(id=20, name="y", logical_type="int64", parent_id=s.id),
        *(field for field in before if field.id >= lst.id and field.name != "y"),
    )
    assert ["- l.item.y: string", "~ s.z: renamed from x", "~ s.y: string -> int64"] == shown(
        compared(version(before), version(after)).schema
    )


def test_keys_of_every_map_are_compared() -> None:
    """Both values are shown; the records of merges are left out."""
    before = version(
        config={"a": "1", "b": "2"},
        table_metadata={f"{MERGED_PREFIX}x": "1@2", f"{SQUASHED_PREFIX}y": "y@2"},
        schema_metadata={"s": b"old"},
    )
    described = (replace(FIELDS[0], metadata={"unit": b"m"}), *FIELDS[1:])
    after = version(
        described, config={"b": "3", "c": "4"}, table_metadata={"who": "me"}, schema_metadata={"s": b"\xff"}
    )
    assert [
        "- config: a = '1'",
        "~ config: b = '2' -> '3'",
        "+ config: c = '4'",
        "+ table_metadata: who = 'me'",
        "~ schema_metadata: s = 'old' -> '\\\\xff'",
        "+ field_metadata of id: unit = 'm'",
    ] == shown(compared(before, after).settings)


def test_fragments_are_told_by_their_files() -> None:
    """Another id or base path for the same files is no change; the same id for other files is one."""
    before = version(FIELDS, fragment(0, data_file("a.lance", 0, 1, 2)), fragment(1, data_file("b.lance", 0, 1, 2)))
    after = version(
        FIELDS,
        fragment(5, data_file("a.lance", 0, 1, 2, base_id=1)),
        fragment(1, data_file("c.lance", 0, 1, 2), rows=4),
    )
    assert ["- fragment 1: 10 rows", "+ fragment 1: 4 rows"] == shown(compare(before, after, version()).fragments)


def test_deletions_and_files_of_columns_are_changes_of_a_fragment() -> None:
    """Deleted rows may grow or be replaced by as many others, and values of columns may lie in other files."""
    whole = data_file("a.lance", 0, 1, 2)
    one = DeletionFile(kind=0, read_version=1, id=1, deleted_rows=3)
    other = DeletionFile(kind=0, read_version=2, id=2, deleted_rows=3)
    before = version(FIELDS, fragment(0, whole), fragment(1, data_file("b.lance", 0, 1, 2), deletion=one))
    after = version(
        FIELDS,
        fragment(0, data_file("a.lance", 0, -2, 2), data_file("n.lance", 1), deletion=one),
        fragment(1, data_file("b.lance", 0, 1, 2), deletion=other),
    )
    found = compared(before, after).fragments
    assert [
        "~ fragment 0: 0 -> 3 deleted rows; new files for name",
        "~ fragment 1: other deleted rows",
    ] == shown(found)
    assert (("n.lance",), (), 10, 7) == (
        found[0].files_added,
        found[0].files_removed,
        found[0].rows_before,
        found[0].rows_after,
    )


def test_a_fragment_that_got_all_its_files_anew_is_another() -> None:
    """The same fragment id does not identify it."""
    before = version(FIELDS[:1], fragment(0, data_file("a.lance", 0)))
    after = version(FIELDS[:1], fragment(0, data_file("b.lance", 0)))
    assert ["- fragment 0: 10 rows", "+ fragment 0: 10 rows"] == shown(compared(before, after).fragments)


def digest(values: Any, shape: ComparisonShape | None = None, *, after: bool = True) -> Digests:  # noqa: ANN401  # any array
    """The digests of one column."""
    return digests([(values, shape)], after=after)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2, None, 0], pa.int8()),
        pa.array([True, False, None]),
        pa.array([0.0, -0.0, math.nan, None, math.inf]),
        pa.array(["", "a", None, "a" * 16, "a" * 17, "a" * 18, "a\0"]),
        pa.array([b"", b"\0", b"\0\0", None], pa.binary()),
        pa.array([[], [1], [None], None, [1, None], [None, 1]], pa.list_(pa.int32())),
        pa.array([[[1], []], [[], [1]], [[1]], [None, [1]]], pa.list_(pa.list_(pa.int32()))),
        pa.array([[1.0, 2.0], [1.0, math.nan], None, [None, 2.0]], pa.list_(pa.float32(), 2)),
        pa.array([{"x": 1, "y": "b"}, {"x": None, "y": "b"}, None, {"x": None, "y": None}]),
        pa.array(
            [[("a", 1)], [("a", None)], [], None, [("a", 1), ("b", 2)], [("b", 2)]], pa.map_(pa.string(), pa.int32())
        ),
        pa.array([b"abcd", b"abce", None], pa.binary(4)),
    ],
    ids=lambda values: str(values.type),
)
def test_digests_tell_values_apart(values: "pa.Array[Any]") -> None:
    """Each value has its own digest, which does not depend on its neighbours."""
    found = digest(values)
    assert len(values) == len({tuple(row) for row in found.tolist()})
    for place in range(len(values)):
        assert found[place].tolist() == digest(values.slice(place, 1))[0].tolist()
        assert found[place].tolist() == digest(pa.array(values.to_pylist()[place:], values.type))[0].tolist()


def test_digests_do_not_depend_on_the_representation() -> None:
    """Digests are equal for all widths of offsets, for views and dictionaries, and for all bit patterns of NaN."""
    plain = pa.array(["x", None, "a word that is longer than others"])
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        assert digest(plain).tolist() == digest(plain.cast(kind)).tolist()
    lists = pa.array([[1], None, [2, 3]], pa.list_(pa.int64()))
    assert digest(lists).tolist() == digest(lists.cast(pa.large_list(pa.int64()))).tolist()
    quiet = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert 1 == len({tuple(row) for row in digest(pa.array(quiet, from_pandas=False)).tolist()})


def test_the_older_values_are_brought_to_the_newer_type() -> None:
    """A value that cannot be cast equals nothing, not even null."""
    shape = ComparisonShape(cast=pa.int64())
    old = digest(pa.array(["1", "x", None, "02"]), shape, after=False)
    new = digest(pa.array([1, None, None, 2], pa.int64()), shape)
    assert [True, False, True, True] == np.all(old == new, axis=1).tolist()


def test_only_the_fields_both_have_are_looked_at() -> None:
    """The common fields are compared in pairs, at any depth below the column."""
    shape = ComparisonShape(parts=((0, 1, None),))
    old = pa.array([{"x": 1, "gone": "a"}, None])
    new = pa.array([{"new": 2.0, "x": 1}, None])
    assert digest(old, shape, after=False).tolist() == digest(new, shape).tolist()


def test_rows_are_paired_by_ids() -> None:
    """Pairs are in the order of the newer version; an unknown id gives no pair."""
    before = {4: RowRuns.of([(0, 1, 5), (2, 1, 7)])}
    after = {9: RowRuns.of([(0, 1, 7), (1, 1, 6)]), 3: RowRuns.of([(5, 1, 5), (6, 1, 9)])}
    found = paired_by_ids(before, after)
    assert [(3 << 32) + 5, 9 << 32] == found.at.tolist()
    assert [4 << 32, (4 << 32) + 2] == found.values().tolist()


def test_whole_fragments_are_paired_as_one_run() -> None:
    """A compaction of two fragments of a billion rows each gives two pairs."""
    most = 10**9
    before = {0: RowRuns.of([(0, most, 0)]), 1: RowRuns.of([(0, most, most)])}
    found = paired_by_ids(before, {2: RowRuns.of([(0, 2 * most, 0)])})
    assert (2, 2 * most) == (len(found), found.rows)
    assert paired_by_ids(before, {}).rows == paired_by_ids({}, before).rows == 0


def test_equal_rows_are_paired_as_often_as_both_have_them() -> None:
    """Three equal rows before and two after leave one removed row."""
    found = paired_by_values(digest(pa.array([1, 1, 1, 2])), digest(pa.array([3, 1, 1])))
    assert ([0, 1], [1, 2], [2, 3], [0]) == (
        found.before.tolist(),
        found.after.tolist(),
        found.removed.tolist(),
        found.added.tolist(),
    )
    empty = paired_by_values(digest(pa.array([], pa.int64())), digest(pa.array([1])))
    assert ([], [0]) == (empty.before.tolist(), empty.added.tolist())


def test_a_row_that_is_there_twice_is_found() -> None:
    """The result is the position of one of the two."""
    assert first_duplicate(digest(pa.array([1, 2, 3]))) is None
    assert first_duplicate(digest(pa.array([1, 2, 1]))) in (0, 2)
