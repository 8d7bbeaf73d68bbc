"""The fragments of a result, with their row ids, row versions, files and deletion vectors."""

from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.codec import decode_versions
from lance_dagster.format.model import DataFile, Field, Fragment
from lance_dagster.format.transaction import Delete, Merge, Update
from lance_dagster.merge.rules import MergePlan, plan_merge
from lance_dagster.merge.rules.result import FragmentEdits
from lance_dagster.transactions.apply import MAX_FRAGMENT_ID
from lance_dagster.transactions.claims import SideHistory
from tests.merge.rules.literal_merges import BASE, FIELDS, FOUR_ROWS, appended, fragment, manifest, merge_input, side


def planned(source: SideHistory, dest: SideHistory | None = None) -> MergePlan:
    """Plan a merge that has no conflicts."""
    found = plan_merge(merge_input(source, dest))
    assert isinstance(found, MergePlan)
    return found


def versions(of: Fragment) -> tuple[list[int], list[int]]:
    """Return the versions in which each row was created and last updated."""
    created, updated = (decode_versions(one, of.physical_rows, "the result") for one in (of.created_at, of.updated_at))
    return [int(one) for one in created], [int(one) for one in updated]


LEFT, NEW = fragment(0, "base.lance", range(4), deleted=[1]), fragment(1, "new.lance", [1], updated_at=3)
UPDATED = side("run", manifest(LEFT, NEW), Update(updated_fragments=(LEFT,), new_fragments=(NEW,)))


def test_an_inserted_row_is_of_the_version_of_the_merge() -> None:
    """Version numbers of the source have no meaning on the dest."""
    new = planned(side("run", *appended(4)), side("main", *appended(4, file="other.lance"))).added[0].fragment
    assert ([4], [4]) == versions(new)


def test_an_updated_row_keeps_the_version_it_was_created_at() -> None:
    """It is the same row, updated in the version of the merge."""
    assert ([1], [3]) == versions(planned(UPDATED).added[0].fragment)


def test_a_column_of_the_source_lies_beside_the_rows_of_the_dest() -> None:
    """Only the file of the column is added, and the field gets an id of the dest."""
    note = Field(id=2, name="note", logical_type="string")
    notes = DataFile(path="notes.lance", fields=(2,), column_indices=(0,), major=2, minor=0)
    filled = replace(FOUR_ROWS, files=(*FOUR_ROWS.files, notes))
    after = replace(manifest(filled), fields=(*FIELDS, note))
    merge = Merge(fragments=after.fragments, fields=after.fields, schema_metadata={}, preserves_nullability=True)
    plan = planned(side("run", after, merge))
    assert [("notes.lance", (2,))] == [(file.path, file.fields) for file in plan.changed[0].files]
    assert (["base.lance"], None) == ([one.path for one in plan.changed[0].fragment.files], plan.changed[0].deleted)
    assert (True, ()) == (bool(plan.rewritten), plan.added)


def test_rows_the_dest_deleted_before_the_merge_stay_deleted() -> None:
    """The result has the deleted rows of both sides."""
    gone = fragment(0, "base.lance", range(4), deleted=[0])
    dest = side("main", manifest(gone), Delete(updated_fragments=(gone,)))
    assert BitMap([0, 1]) == planned(UPDATED, dest).changed[0].deleted


def test_there_are_no_fragment_ids_after_the_last() -> None:
    """Fragment ids have 32 bits, and reusing an id would make it ambiguous."""
    full = replace(BASE, max_fragment_id=MAX_FRAGMENT_ID)
    dest = replace(side("main"), manifest=full)
    with pytest.raises(InvalidInputError, match="no more ids"):
        plan_merge(merge_input(side("run", *appended(4)), dest))


def test_edits_of_a_fragment_add_up() -> None:
    """The deleted rows of the result are the old ones without the revived and with the masked rows."""
    edits = FragmentEdits()
    edits.mask(0, BitMap([1]))
    edits.mask(0, BitMap([2]))
    edits.revive(0, BitMap([3, 4]))
    assert BitMap([1, 2, 5]) == edits.deleted(0, BitMap([3, 4, 5]))
    assert BitMap([7]) == edits.deleted(1, BitMap([7]))
