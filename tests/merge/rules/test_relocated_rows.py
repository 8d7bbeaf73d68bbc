"""The places of the merge base's rows on a side, found by stable row ids or by replaying the operations of the side."""

from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import Append, Delete, Rewrite, RewriteGroup, Update
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.relocated_rows import UntraceableError
from lance_dagster.transactions.claims import SideHistory
from tests.merge.rules.literal_merges import BASE, FOUR_ROWS, appended, both_sides, fragment, manifest, side

NONE = BitMap()


def source_of(history: SideHistory) -> MergeSide:
    """Return a source whose dest is the merge base."""
    return both_sides(history)[0]


def without_ids(state: Manifest) -> Manifest:
    """Return a version of a table without stable row ids."""
    plain = [replace(one, row_ids=None, created_at=None, updated_at=None) for one in state.fragments]
    return replace(state, writer_flags=0, next_row_id=0, fragments=type(state.fragments)(plain))


PLAIN_BASE = without_ids(BASE)


def plain_source(after: Manifest, operation: Append | Delete | Rewrite | Update) -> MergeSide:
    """Return a source on a table without stable row ids."""
    history = side("run", without_ids(after), operation, base=PLAIN_BASE)
    return both_sides(history, side("main", PLAIN_BASE, base=PLAIN_BASE), base=PLAIN_BASE)[0]


LEFT, NEW = fragment(0, "base.lance", range(4), deleted=[1]), fragment(1, "new.lance", [1], updated_at=3)
COMPACTED = fragment(1, "new.lance", range(4))
COMPACTION = Rewrite(groups=(RewriteGroup(old=[FOUR_ROWS], new=[COMPACTED]),))


def test_rows_of_an_untouched_fragment_stay() -> None:
    """A fragment that is equal in both needs no look-up."""
    changes = source_of(side("run", *appended(4))).of(0)
    assert (BitMap(range(4)), NONE, NONE) == (changes.stays, changes.moved, changes.updated)


def test_appended_rows_are_the_sides_own() -> None:
    """Their row ids are higher than those of the merge base."""
    source = source_of(side("run", *appended(4, 5)))
    assert {1: BitMap([0, 1])} == source.written
    assert (BitMap([0, 1]), {}) == (source.rows.relocated[1].inserted, source.removed)


def test_an_updated_row_is_found_by_its_row_id() -> None:
    """The row was moved, and has the row version of its update."""
    source = source_of(side("run", manifest(LEFT, NEW), Update(updated_fragments=(LEFT,), new_fragments=(NEW,))))
    changes = source.of(0)
    assert (BitMap([0, 2, 3]), NONE, BitMap([1])) == (changes.stays, changes.moved, changes.updated)
    assert ({1: BitMap([0])}, {}) == (source.written, source.removed)


def test_a_compacted_row_only_moved() -> None:
    """A compaction keeps the row versions."""
    source = source_of(side("run", manifest(COMPACTED), COMPACTION))
    changes = source.of(0)
    assert (NONE, BitMap(range(4)), NONE) == (changes.stays, changes.moved, changes.updated)
    assert {1: BitMap([2])} == source.rows.holders(0, BitMap([2]))
    assert {} == source.written


def test_a_deleted_row_is_removed() -> None:
    """No fragment of the side has the row."""
    source = source_of(side("run", manifest(LEFT), Delete(updated_fragments=(LEFT,))))
    assert ({0: BitMap([1])}, {}) == (source.removed, source.written)


def test_a_compaction_is_replayed_without_row_ids() -> None:
    """A compaction writes the live rows of its fragments in order."""
    changes = plain_source(manifest(COMPACTED), COMPACTION).of(0)
    assert (NONE, BitMap(range(4)), NONE) == (changes.stays, changes.moved, changes.updated)


def test_an_updated_row_counts_as_rewritten_without_row_ids() -> None:
    """The new row cannot be identified, so a change of the row by the other side must be noticed."""
    source = plain_source(manifest(LEFT, NEW), Update(updated_fragments=(LEFT,), new_fragments=(NEW,)))
    assert (BitMap([1]), NONE) == (source.of(0).rewritten, source.of(0).updated)
    assert {1: BitMap([0])} == source.written


def test_a_compaction_that_wrote_another_number_of_rows_is_untraceable() -> None:
    """Rows cannot be matched if their number differs."""
    short = fragment(1, "new.lance", range(3))
    operation = Rewrite(groups=(RewriteGroup(old=[FOUR_ROWS], new=[short]),))
    with pytest.raises(UntraceableError, match="another number of rows"):
        plain_source(manifest(short), operation).of(0)


def test_rows_moved_by_a_version_that_is_gone_are_untraceable_without_row_ids() -> None:
    """With stable row ids, rows are identified without the missing version."""
    history = side("run", manifest(COMPACTED), COMPACTION)
    gone = [replace(change, transaction=None, after=None) for change in history.changes]
    assert BitMap(range(4)) == source_of(replace(history, changes=gone, since=gone)).of(0).alive
    plain = side("run", without_ids(manifest(COMPACTED)), COMPACTION, base=PLAIN_BASE)
    plain = replace(plain, changes=gone, since=gone)
    with pytest.raises(UntraceableError, match="versions that are gone"):
        both_sides(plain, side("main", PLAIN_BASE, base=PLAIN_BASE), base=PLAIN_BASE)[0].of(0)


def test_the_base_knows_which_rows_a_side_ever_had() -> None:
    """Row ids are compared, so a later compaction or deletion does not matter."""
    source = source_of(side("run", manifest(LEFT), Delete(updated_fragments=(LEFT,))))
    assert source.ever_had(0, BitMap([1]))
