"""Fields of a side are matched with those of the merge base, and fields with new values found, in small manifests."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from lance_dagster.format.model import DataFile, Field, Fragment, Fragments, Manifest
from lance_dagster.format.transaction import (
    CASTS,
    COLUMNS_MOVED,
    Merge,
    Operation,
    Overwrite,
    Project,
    Restore,
    Rewrite,
    Update,
)
from lance_dagster.merge.rules.columns.column_matching import (
    SideColumns,
    backing,
    cast_fields,
    casts,
    columns_of,
    fields_across,
    paths_of,
)
from lance_dagster.merge.rules.row_changes import match_fragments
from lance_dagster.transactions.claims import SideHistory
from tests.merge.rules.literal_merges import AMOUNT, BASE, FOUR_ROWS, ID, change, side

NEW = Field(id=2, name="new", logical_type="int64")
NO_FIELDS: frozenset[int] = frozenset()


def state(*fields: Field, files: Iterable[DataFile] = FOUR_ROWS.files, version: int = 3) -> Manifest:
    """Return the merge base with other fields and files."""
    one = replace(FOUR_ROWS, files=tuple(files))
    return replace(BASE, fields=fields, fragments=Fragments([one]), version=version)


def file(path: str, *fields: int) -> DataFile:
    """Return a data file with values of some fields."""
    return DataFile(path=path, fields=fields, column_indices=tuple(range(len(fields))), major=2, minor=0)


def merge_of(after: Manifest) -> Merge:
    """Return the operation that makes a version with other columns."""
    return Merge(fragments=after.fragments, fields=after.fields, schema_metadata={})


def columns(history: SideHistory) -> SideColumns:
    """Return the columns of the merge base as the side has them."""
    return columns_of(BASE, history, match_fragments(BASE, history))


def having(*states: tuple[Operation, Manifest], properties: dict[str, str] | None = None) -> SideHistory:
    """Return a side with these versions in sequence."""
    before, changes = BASE, []
    for number, (operation, after) in enumerate(states, start=BASE.version + 1):
        made = replace(after, version=number)
        changes.append(change("run", operation, before, made, properties))
        before = made
    return replace(side("run", before), manifest=before, changes=changes, since=changes)


FILLED = state(ID, AMOUNT, NEW, files=[*FOUR_ROWS.files, file("more.lance", 2)])


def test_fields_keep_their_ids() -> None:
    """A side without changes of columns has those of the merge base, and wrote none."""
    found = columns(side("run"))
    assert ({0: 0, 1: 1}, {0: 0, 1: 1}, NO_FIELDS) == (found.anchored, found.ids, found.filled)


def test_a_dropped_field_is_gone() -> None:
    """The field exists in the anchor, but not on the side."""
    after = state(ID)
    found = columns(having((Project(fields=after.fields), after)))
    assert ({0: 0, 1: 1}, {0: 0}, {0: 0}) == (found.anchored, found.ids, found.base_ids)


def test_a_field_that_went_and_came_back_is_another_one() -> None:
    """A column with the id, name and type of a dropped column is another column."""
    without = state(ID)
    again = state(ID, AMOUNT, files=[file("base.lance", 0, -2), file("again.lance", 1)])
    found = columns(having((Project(fields=without.fields), without), (merge_of(again), again)))
    assert {0: 0} == found.ids


def test_a_restore_brings_fields_back_as_they_were() -> None:
    """A column dropped after the restored version is the same column again."""
    without = state(ID)
    found = columns(having((Project(fields=without.fields), without), (Restore(version=BASE.version), BASE)))
    assert {0: 0, 1: 1} == found.ids


@pytest.mark.parametrize("path,kept", [("base.lance", {0: 0, 1: 1}), ("other.lance", {0: 0, 1: 1})])
def test_an_overwrite_keeps_columns_of_the_same_id_name_and_type(path: str, kept: dict[int, int]) -> None:
    """The data files that it wrote do not matter."""
    after = state(ID, AMOUNT, files=[file(path, 0, 1)])
    assert (
        kept
        == columns(having((Overwrite(fragments=after.fragments, fields=after.fields, schema_metadata={}), after))).ids
    )


def test_an_overwrite_with_another_type_has_another_column() -> None:
    """An overwrite numbers fields from 0 again, so an equal id does not identify a column."""
    after = state(ID, replace(AMOUNT, logical_type="string"), files=[file("other.lance", 0, 1)])
    operation = Overwrite(fragments=after.fragments, fields=after.fields, schema_metadata={})
    assert {0: 0} == columns(having((operation, after))).ids


def test_values_written_beside_rows() -> None:
    """A new column has values beside the rows of the fragment that has its file, and beside no other rows."""
    found = columns(having((merge_of(FILLED), FILLED)))
    assert frozenset({2}) == found.written_beside(0) == found.filled
    assert NO_FIELDS == found.written_beside(7)
    assert NO_FIELDS == found.nulls


def test_values_written_anew_in_place() -> None:
    """A field whose values lie in another file than before was written."""
    after = state(ID, AMOUNT, files=[file("base.lance", 0, -2), file("anew.lance", 1)])
    assert frozenset({1}) == columns(having((merge_of(after), after))).written_beside(0)
    assert NO_FIELDS == columns(having((Rewrite(groups=()), after))).filled


def test_a_column_of_nulls_is_not_filled() -> None:
    """A column of nulls has no file, and a compaction that writes the nulls does not fill the column."""
    after = state(ID, AMOUNT, NEW)
    found = columns(having((merge_of(after), after), (Rewrite(groups=()), FILLED)))
    assert (NO_FIELDS, frozenset({2})) == (found.filled, found.nulls)


def test_columns_that_a_merge_brought_may_be_beside_any_row() -> None:
    """The merge records the columns by id in a property; entries that are not ids are ignored."""
    found = columns(having((Update(), FILLED), properties={COLUMNS_MOVED: "2,x,²,9"}))
    assert frozenset({2}) == found.written_beside(7) == found.filled_by_fragment[None]


def test_columns_of_versions_that_are_gone_may_be_beside_any_row() -> None:
    """Without the versions it is unknown beside which rows the columns were written."""
    history = having((merge_of(FILLED), FILLED))
    lost = [replace(one, before=None, after=None) for one in history.changes]
    assert frozenset({2}) == columns(replace(history, changes=lost)).written_beside(7)


CAST = Field(id=2, name="amount", logical_type="double")


def test_a_cast_drops_a_field_and_adds_one_of_its_name() -> None:
    """A dropped and an added column are told apart from a cast."""
    after = state(ID, CAST, files=[file("base.lance", 0, -2), file("cast.lance", 2)])
    history = having((merge_of(after), after))
    assert ["amount"] == casts(columns(history), BASE, history)
    for other in (state(ID), FILLED):
        history = having((merge_of(other), other))
        assert [] == casts(columns(history), BASE, history)


def test_a_cast_is_found_after_a_renaming() -> None:
    """The finding has the name of the column in the merge base."""
    after = state(ID, CAST, files=[file("base.lance", 0, -2), file("cast.lance", 2)])
    renamed = state(ID, replace(CAST, name="sum"), files=after.fragments[0].files)
    history = having((merge_of(after), after), (Project(fields=renamed.fields), renamed))
    assert ["amount"] == casts(columns(history), BASE, history)


RENAMED = replace(CAST, name="sum")


def test_a_cast_under_another_name_has_the_place_of_the_old_column() -> None:
    """An added column comes last; if other fields moved too, positions do not identify a cast."""
    for fields, expected in (
        ((ID, RENAMED), ["amount"]),
        ((RENAMED, ID), []),
        ((ID, AMOUNT, RENAMED), []),
        ((ID,), []),
    ):
        after = state(*fields)
        history = having((merge_of(after), after))
        assert expected == casts(columns(history), BASE, history)


def test_a_merge_says_what_it_cast() -> None:
    """A merge records casts by ids; other missing columns were dropped. Entries that are not ids are ignored."""
    after = state(ID, RENAMED)
    operations: tuple[Operation, ...] = (merge_of(after), Update())
    for operation in operations:
        for recorded, expected in (("1:2", ["amount"]), ("x,1:2,²:3", ["amount"]), ("", []), ("1:7", []), ("7:2", [])):
            history = having((operation, after), properties={CASTS: recorded})
            assert expected == casts(columns(history), BASE, history)


def test_a_cast_that_is_taken_back_is_one_the_other_way() -> None:
    """A revert casts from the version with the new column back to the one before it."""
    after = state(ID, RENAMED, files=[file("base.lance", 0, -2), file("cast.lance", 2)])
    history = having((merge_of(after), after))
    undone = [replace(one, undone=True) for one in history.changes]
    back = replace(side("parent", BASE), changes=undone, since=[], anchor=None, same_ids=False)
    found = columns_of(after, back, match_fragments(after, back))
    assert {2: 1} == cast_fields(found, after, back)
    assert ["sum"] == casts(found, after, back)


def across(files: Iterable[DataFile], *fields: Field, known: dict[int, int] | None = None) -> SideColumns:
    """Return the columns of a side on another branch, where ids do not identify columns."""
    history = side("run", state(*fields, files=files))
    return columns(replace(history, anchor=history.manifest, same_ids=False, fields=known))


def test_across_lines_fields_are_known_by_their_files() -> None:
    """Both fields have their values in the same column of the same file, under any id and name."""
    renamed = [replace(ID, id=5, name="key"), replace(AMOUNT, id=6)]
    assert {0: 5, 1: 6} == across([file("base.lance", 5, 6)], *renamed).ids


def test_across_lines_fields_without_files_are_known_by_name_and_type() -> None:
    """A merge may have recorded other matches."""
    others = [replace(ID, id=5), replace(AMOUNT, id=6, name="sum")]
    assert {0: 5} == across([file("other.lance", 5, 6)], *others).ids
    assert {0: 5, 1: 6} == across([file("other.lance", 5, 6)], *others, known={0: 5, 1: 6}).ids


def test_columns_of_two_versions_with_a_common_past() -> None:
    """A field that only one version has matches no field of the other; a cast makes the values incompatible."""
    cast = state(ID, CAST, files=[file("base.lance", 0, -2), file("cast.lance", 2)])
    one, other = having((merge_of(FILLED), FILLED)), having((merge_of(cast), cast))
    found = fields_across(BASE, one, other)
    assert (0, ("amount",)) == (found.ids[0], found.incompatible)
    assert found.ids[1] == found.ids[2] != 2


def test_paths_and_files() -> None:
    """A path has all names from the column down; a field that was removed from a file has no file."""
    point = (Field(id=0, name="p", logical_type="struct"), Field(id=1, name="x", parent_id=0, logical_type="int64"))
    assert {0: "p", 1: "p.x"} == paths_of(point)
    some = Fragment(id=0, files=(file("a.lance", 0, -2), file("b.lance", 2)), physical_rows=1)
    assert {0: "a.lance", 2: "b.lance"} == backing(some)


def test_a_field_written_beside_all_rows_is_not_one_of_single_rows() -> None:
    """An update of single rows in place does not hide that the whole column was written too."""
    both, one = frozenset({1, 2}), frozenset({1})
    found = SideColumns(anchored={}, ids={}, filled_by_fragment={0: one}, in_place={0: both})
    assert (frozenset({2}), NO_FIELDS) == (found.of_single_rows(0), found.of_single_rows(7))


def test_a_restore_does_not_make_another_column_the_old_one() -> None:
    """The restored version has a new column of the same id, name and type, added after a drop."""
    without = state(ID)
    again = state(ID, AMOUNT, files=[file("base.lance", 0, -2), file("again.lance", 1)])
    restored = Restore(version=BASE.version + 2)
    assert {0: 0} == columns(having((Project(fields=(ID,)), without), (merge_of(again), again), (restored, again))).ids


def test_an_overwrite_with_the_same_files_keeps_renamed_columns() -> None:
    """The values lie in the same files, so the column is the same under another name."""
    after = state(ID, replace(AMOUNT, name="sum"))
    operation = Overwrite(fragments=after.fragments, fields=after.fields, schema_metadata={})
    assert {0: 0, 1: 1} == columns(having((operation, after))).ids


def test_a_column_that_one_cast_and_the_other_dropped_is_not_unlike() -> None:
    """Only one of the versions has values of it."""
    cast = state(ID, CAST, files=[file("base.lance", 0, -2), file("cast.lance", 2)])
    without = state(ID)
    one, other = having((merge_of(cast), cast)), having((Project(fields=(ID,)), without))
    assert () == fields_across(BASE, one, other).incompatible == fields_across(BASE, other, one).incompatible
