"""Conditions under which two sides cannot be compared."""

from dataclasses import replace

import pytest

from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import Restore, UpdateMemWalState
from lance_dagster.merge.rules.merge_input import (
    MergeInput,
    blocking_findings,
    can_be_waived,
    incompatible_columns,
    missing_versions,
)
from tests.merge.rules.literal_merges import BASE, appended, described, merge_input, side

BOTH = ("source-wins", "dest-wins")
WITHOUT_IDS = replace(BASE, writer_flags=0)
LEGACY = replace(BASE, file_version="0.1")


def of(source: Manifest = BASE, dest: Manifest = BASE, base: Manifest = BASE) -> MergeInput:
    """Make the input of a merge from three states."""
    return merge_input(side("run", source, base=base), side("main", dest, base=base), base=base)


@pytest.mark.parametrize(
    "given,units",
    [
        (of(), []),
        (of(source=WITHOUT_IDS), ["stable row ids"]),
        (of(dest=WITHOUT_IDS), ["stable row ids"]),
        (of(WITHOUT_IDS, WITHOUT_IDS, WITHOUT_IDS), []),
        (of(source=LEGACY), ["format of data files"]),
        (replace(of(), crosswise=True), []),
        (replace(of(WITHOUT_IDS, WITHOUT_IDS, WITHOUT_IDS), crosswise=True), ["history"]),
    ],
)
def test_sides_that_cannot_be_compared(given: MergeInput, units: list[str]) -> None:
    """No strategy settles such a finding."""
    assert [("history", unit, ()) for unit in units] == described(blocking_findings(given))


@pytest.mark.parametrize("name", ["run", "main"])
def test_an_unknown_operation_is_refused(name: str) -> None:
    """The effect of an unknown operation on rows is unknown, on either side."""
    unknown = side(name, BASE, UpdateMemWalState(compacted_sstables=()))
    given = merge_input(unknown) if name == "run" else merge_input(side("run"), unknown)
    found = list(blocking_findings(given))
    assert [("history", f"version {name}@3", ())] == described(found)
    said = found[0].conflict.source if name == "run" else found[0].conflict.dest
    assert "committed the operation UpdateMemWalState" in said


@pytest.mark.parametrize("name", ["run", "main"])
def test_a_version_that_was_cleaned_up_can_be_waived(name: str) -> None:
    """The version may have had claims; a strategy for the history says that it had none."""
    whole = side(name, *appended(4))
    gone = replace(whole, changes=[replace(whole.changes[0], transaction=None)])
    given = merge_input(gone) if name == "run" else merge_input(side("run"), gone)
    found = list(missing_versions(given))
    assert [("history", f"version {name}@3", BOTH)] == described(found)
    assert can_be_waived(found[0].conflict)


def test_a_restore_is_understood() -> None:
    """The restored version can be looked up."""
    assert [] == list(blocking_findings(merge_input(side("run", BASE, Restore(version=1)))))


def test_columns_of_different_types_are_refused() -> None:
    """A column was cast before the base of a picked change, so values of one version do not fit the other."""
    assert [("column", "column a", ())] == described(incompatible_columns(replace(of(), incompatible=("a",))))
