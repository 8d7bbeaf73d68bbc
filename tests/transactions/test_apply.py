"""Changes that a transaction must not make to a manifest."""

from dataclasses import replace

import pytest

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.codec import row_id_range
from lance_dagster.format.model import DataFile, Field, Fragment, IndexMetadata, Manifest, WriterVersion
from lance_dagster.format.transaction import (
    Append,
    Clone,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Operation,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    RewriteGroup,
    Transaction,
    Update,
)
from lance_dagster.transactions.apply import apply, empty_manifest

FIELDS = (Field(id=0, name="a", logical_type="int64"), Field(id=1, name="b", logical_type="int64"))
WRITER = WriterVersion(library="test", version="1.0.0")
INDEX = IndexMetadata(uuid="0a1b2c3d-0000-4000-8000-000000000001", name="by_c", fields=(7,))


def fragment(name: str, *, rows: int = 5, number: int = 0) -> Fragment:
    """A fragment of one file with both fields."""
    file = DataFile(path=name, fields=(0, 1), column_indices=(0, 1), major=2, minor=2)
    return Fragment(id=number, files=(file,), physical_rows=rows)


def after(head: Manifest, operation: Operation) -> Manifest:
    """The version that a commit of an operation makes."""
    transaction = Transaction(read_version=head.version, uuid="u", operation=operation)
    return apply(head, transaction, timestamp=1, writer=WRITER)


@pytest.fixture
def head() -> Manifest:
    """Two fragments of five rows."""
    empty = replace(empty_manifest(FIELDS, "2.2"), version=1)
    return after(empty, Append(fragments=(fragment("x.lance"), fragment("y.lance"))))


@pytest.mark.parametrize(
    "operation,said",
    [
        (Delete(deleted_fragment_ids=(7,)), "in version 2 there is no fragment 7"),
        (Update(updated_fragments=(fragment("x.lance", number=7),)), "in version 2 there is no fragment 7"),
        (
            Merge(fragments=(fragment("x.lance"),), fields=FIELDS),
            "a merge without fragment 1 of version 2 would lose its",
        ),
        (
            Merge(fragments=[fragment(name, number=n) for n, name in enumerate("xyz")], fields=FIELDS),
            "version 2 has no fragment 2",
        ),
        (
            Rewrite(groups=(RewriteGroup(old=(fragment("x.lance"),), new=(fragment("z.lance", number=1),)),)),
            "there is a fragment 1 already; a rewrite needs ids that were reserved",
        ),
        (DataReplacement(replacements=((7, fragment("z.lance").files[0]),)), "version 2 has no fragment 7"),
        (
            DataReplacement(replacements=((0, replace(fragment("z.lance").files[0], fields=(0,))),)),
            "a file of fields .0. cannot replace a file of fragment 0",
        ),
        (Project(fields=(Field(id=9, name="n", logical_type="int64"),)), "fragment 0 would be left without a file"),
        (CreateIndex(new_indices=(INDEX,)), "index 'by_c' is on field 7, which the table does not have"),
        (
            Update(new_fragments=(replace(fragment("z.lance"), row_ids=row_id_range(0, 6)),)),
            "the id of a row that was in none|has 6 row ids for 5 rows",
        ),
        (Restore(version=1), "cannot restore version 1"),
        (Clone(is_shallow=True, ref_version=1, ref_path="p"), "cannot commit the operation Clone"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_an_operation_that_cannot_be_is_refused(head: Manifest, operation: Operation, said: str) -> None:
    """An operation cannot change what does not exist or lose what exists, and the error says which."""
    with pytest.raises(InvalidInputError, match=said):
        after(head, operation)


def test_ids_are_never_given_twice(head: Manifest) -> None:
    """Ids are not reused after all rows were deleted, nor after ids were reserved in between."""
    emptied = after(head, Delete(deleted_fragment_ids=(0, 1)))
    reserved = after(emptied, ReserveFragments(count=3))
    again = after(reserved, Append(fragments=(fragment("z.lance"),)))
    assert ([5], 5, 15) == (list(again.fragments.ids), again.max_fragment_id, again.next_row_id)
    assert row_id_range(10, 5) == again.fragments[0].row_ids


def test_rewritten_fragments_stand_in_the_order_of_ids(head: Manifest) -> None:
    """They come after the other fragments; pylance treats any other order as corrupt."""
    reserved = after(head, ReserveFragments(count=1))
    group = RewriteGroup(old=(reserved.fragments[0],), new=(replace(reserved.fragments[0], id=2),))
    assert [1, 2] == list(after(reserved, Rewrite(groups=(group,))).fragments.ids)
