"""Tests of `verify.fragment_rules`, on fragments as literals: no file is read."""

from dataclasses import replace

import numpy as np
import pytest

from lance_dagster.format.codec import encode_row_ids, encode_versions
from lance_dagster.format.model import DataFile, DeletionFile, Field, Flag, Fragment, Manifest
from lance_dagster.verify.fragment_rules import RowSpan, check_fragment, check_rows, fragment_context

FILE = DataFile(path="a.lance", fields=(0, 1), column_indices=(0, 1), major=2, minor=0)
GOOD = Fragment(
    id=3,
    files=(FILE,),
    physical_rows=2,
    row_ids=encode_row_ids(np.array([4, 7], np.uint64)),
    created_at=encode_versions(np.array([1, 2], np.uint64)),
    updated_at=encode_versions(np.array([1, 5], np.uint64)),
)
MANIFEST = Manifest(
    version=5,
    fields=(
        Field(id=0, name="id", logical_type="int64", nullable=False),
        Field(id=1, name="amount", logical_type="int64"),
    ),
    writer_flags=int(Flag.STABLE_ROW_IDS),
)
CONTEXT = fragment_context(MANIFEST)
ON_BASE_9 = DeletionFile(kind=0, read_version=1, id=1, deleted_rows=1, base_id=9)


def test_a_fragment_that_keeps_the_rules_has_no_problem() -> None:
    """The span has the lowest and the highest row id, and the newest version of a row."""
    assert [] == list(check_fragment(GOOD, CONTEXT))
    assert (RowSpan(4, 7, 5), []) == check_rows(GOOD, CONTEXT)


@pytest.mark.parametrize(
    "fragment,problem",
    [
        (replace(GOOD, physical_rows=0), "it has no rows, or does not say how many"),
        (replace(GOOD, files=(replace(FILE, column_indices=(0, 0)),)), "two fields are said to be in column 0"),
        (replace(GOOD, files=(FILE, replace(FILE, path="b.lance"))), "the field is in a.lance and in b.lance"),
        (replace(GOOD, files=(replace(FILE, fields=(1,), column_indices=(0,)),)), "no file holds 'id'"),
        (replace(GOOD, files=(replace(FILE, fields=(8,), column_indices=(0,)),)), "no file of it holds a column"),
        (replace(GOOD, files=(replace(FILE, base_id=9),)), "the file lies under base path 9"),
        (replace(GOOD, deletion=ON_BASE_9), "the file lies under base path 9"),
    ],
)
def test_a_broken_rule_is_reported(fragment: Fragment, problem: str) -> None:
    """Each problem names the fragment."""
    reports = [report for report in check_fragment(fragment, CONTEXT) if report.what.startswith(problem)]
    assert reports
    assert {3} == {report.fragment for report in reports}


@pytest.mark.parametrize(
    "fragment,problem",
    [
        (replace(GOOD, row_ids=None), "its rows have no ids"),
        (replace(GOOD, row_ids=encode_row_ids(np.array([4], np.uint64))), "the ids of its rows cannot be right"),
        (replace(GOOD, created_at=b"\xff"), "the versions its rows were created at cannot be right"),
    ],
)
def test_row_ids_and_versions_have_to_fit_the_rows(fragment: Fragment, problem: str) -> None:
    """A damaged sequence does not hide the problems of the other sequences."""
    _, problems = check_rows(fragment, CONTEXT)
    assert [True] == [report.what.startswith(problem) for report in problems]
