"""Which changes of a line count as taken back, on changes that are written down here."""

import pytest

from lance_dagster.format.transaction import Append, Delete, Operation, Overwrite, Restore, Transaction
from lance_dagster.transactions.claims import APPEND, Change, Claim, encode_claims
from lance_dagster.transactions.taken_back import mark_taken_back

BASE = "id of the base"
CLAIMS = {"lance_dagster.claims": encode_claims([Claim(mode=APPEND, partitions=("tue",))])}
MERGE = {"lance_dagster.merge": "side@9"}


def change(version: str, parent: str = "", operation: Operation | None = None, **properties: str) -> Change:
    """A change whose commit id is `id of <version>`; the names of properties are written without their prefix."""
    given = {f"lance_dagster.{name.replace('_', '.')}": value for name, value in properties.items()}
    return Change(
        version=version,
        writer="a writer",
        transaction=Transaction(
            read_version=1, uuid=version, operation=operation or Append(fragments=()), properties={**CLAIMS, **given}
        ),
        id=f"id of {version}",
        parent_id=parent,
    )


def merged(version: str, parent: str) -> Change:
    """A merge on a version that is given by its commit id."""
    return change(version, parent, merge="side@9")


def restored(version: str, number: int) -> Change:
    """A restore of a version of the same branch."""
    return change(version, operation=Restore(version=number))


A, B, C = change("main@2"), change("main@3"), change("main@4")
FORKED = change("run@4"), change("run@5")


@pytest.mark.parametrize(
    "changes,expected",
    [
        ([A, B], []),
        ([A, B, change("main@4", revert="id of main@2")], ["main@2"]),
        ([A, B, change("main@4", revert="main@3")], ["main@3"]),
        ([A, change("main@3", revert="id of main@1")], []),
        # A revert of a revert brings the change again, and one more revert takes it back again.
        ([A, change("main@3", revert="id of main@2"), change("main@4", revert="id of main@3")], ["main@3"]),
        (
            [
                A,
                change("main@3", revert="id of main@2"),
                change("main@4", revert="id of main@3"),
                change("main@5", revert="id of main@4"),
            ],
            ["main@2", "main@4"],
        ),
        # With a strategy, a revert may have left a part of the change.
        ([A, change("main@3", revert="id of main@2", merge_strategy="{}")], []),
        # A restore takes back what came after a version, with the reverts among that.
        ([A, B, C, restored("main@5", 2)], ["main@3", "main@4"]),
        ([A, B, C, restored("main@5", 1)], ["main@2", "main@3", "main@4"]),
        ([A, B, change("main@4", revert="id of main@2"), restored("main@5", 3)], ["main@4"]),
        ([A, change("main@3", revert="id of main@2"), C, restored("main@5", 3)], ["main@2", "main@4"]),
        ([A, B, restored("main@4", 2), change("main@5", revert="id of main@4")], ["main@4"]),
        ([A, *FORKED, restored("run@6", 4)], ["run@5"]),
        ([A, *FORKED, restored("run@6", 2)], ["run@4", "run@5"]),
        ([A, B, *FORKED, change("run@6", restore="id of main@2")], ["main@3", "run@4", "run@5"]),
        ([A, B, *FORKED, change("run@6", restore=BASE)], ["main@2", "main@3", "run@4", "run@5"]),
        ([A, B, *FORKED, change("run@6", restore="id of another version")], []),
        # A merge can be taken back to either parent. The rows that it brought go with the first one alone.
        ([merged("main@2", BASE), change("main@3", revert="id of main@2", revert_parent=BASE)], ["main@2"]),
        ([A, merged("main@3", A.id), change("main@4", revert="id of main@3", revert_parent=A.id)], ["main@3"]),
        ([A, merged("main@3", A.id), change("main@4", revert="id of main@3", revert_parent="id of side@9")], []),
        ([A, merged("main@3", ""), change("main@4", revert="id of main@3")], []),
    ],
)
def test_changes_that_were_taken_back(changes: list[Change], expected: list[str]) -> None:
    """A change is marked if a later one took it back and none brought it again, and then it claims nothing."""
    marked = mark_taken_back(changes, BASE)
    assert expected == [one.version for one in marked if one.taken_back]
    assert expected == [one.version for one in marked if not one.claims]
    assert [one.version for one in changes] == [one.version for one in marked]


def test_versions_that_were_cleaned_up_take_nothing_back() -> None:
    """What such a version did is unknown, and later reverts count."""
    unknown = Change(version="main@3", writer="an unknown writer", transaction=None)
    marked = mark_taken_back([A, unknown, change("main@5", operation=Delete(), revert="id of main@2")], BASE)
    assert ["main@2"] == [one.version for one in marked if one.taken_back]


@pytest.mark.parametrize("properties,expected", [({}, 1), ({"lance_dagster.revert": "id of main@1"}, 0)])
def test_a_revert_that_overwrites_claims_nothing(properties: dict[str, str], expected: int) -> None:
    """The format writes the revert of an overwrite as an overwrite, which provides no rows of its own."""
    overwrite = Overwrite(fragments=(), fields=())
    transaction = Transaction(read_version=1, uuid="u", operation=overwrite, properties=properties)
    assert expected == len(Change(version="main@2", writer="a writer", transaction=transaction).claims)
