"""The outcome for a column by the change of each side, as in the table of the merging guide."""

from dataclasses import replace

import pytest

from lance_dagster.format.model import Field, Manifest
from lance_dagster.format.transaction import Merge
from lance_dagster.merge.rules.columns.column_conflicts import lost_columns
from lance_dagster.merge.rules.columns.schema_merge import MergedSchema, merge_schemas
from lance_dagster.merge.rules.columns.unreadable_results import unreadable_columns
from lance_dagster.merge.rules.strategy import ParsedStrategy, Strategy, Winner
from lance_dagster.transactions.claims import SideHistory
from tests.merge.rules.literal_merges import AMOUNT, BASE, FIELDS, ID, appended, both_sides, described, side

NOTE, NOTE_AS_INT = Field(id=2, name="note", logical_type="string"), Field(id=2, name="note", logical_type="int64")
PRICE = replace(AMOUNT, name="price")
BOTH: tuple[Winner, ...] = ("source-wins", "dest-wins")
SCHEMAS: dict[str, tuple[Field, ...]] = {
    "nothing": FIELDS,
    "dropped": (ID,),
    "renamed": (ID, PRICE),
    "renamed otherwise": (ID, replace(AMOUNT, name="cost")),
    "cast": (ID, replace(AMOUNT, id=2, logical_type="float")),
    "cast otherwise": (ID, replace(AMOUNT, id=2, logical_type="string")),
    "required": (ID, replace(AMOUNT, nullable=False)),
    "added": (*FIELDS, NOTE),
    "added otherwise": (*FIELDS, NOTE_AS_INT),
    "added price": (*FIELDS, replace(NOTE, name="price")),
    "reordered": (AMOUNT, ID),
}


def with_fields(fields: tuple[Field, ...], of: Manifest = BASE) -> Manifest:
    """Replace the schema of a version by one for which no file has values yet."""
    return replace(of, fields=fields)


def changed(name: str, how: str) -> SideHistory:
    """Make a side that changed its schema."""
    after = with_fields(SCHEMAS[how])
    operation = Merge(fragments=after.fragments, fields=after.fields, schema_metadata={}, preserves_nullability=True)
    return side(name) if how == "nothing" else side(name, after, operation)


def merged(source: str, dest: str, strategy: Strategy = None) -> MergedSchema:
    """Merge two schemas."""
    sides = both_sides(changed("run", source), changed("main", dest))
    return merge_schemas(*sides, ParsedStrategy.parse(strategy))


@pytest.mark.parametrize(
    "source,dest,expected",
    [
        ("nothing", "nothing", ["id", "amount"]),
        ("dropped", "nothing", ["id"]),
        ("nothing", "dropped", ["id"]),
        ("dropped", "dropped", ["id"]),
        ("renamed", "nothing", ["id", "price"]),
        ("nothing", "renamed", ["id", "price"]),
        ("renamed", "renamed", ["id", "price"]),
        ("renamed", "required", ["id", "price"]),
        ("added", "nothing", ["id", "amount", "note"]),
        ("nothing", "added", ["id", "amount", "note"]),
        ("added", "added", ["id", "amount", "note"]),
        ("added", "renamed", ["id", "price", "note"]),
        ("cast", "nothing", ["id", "amount"]),
        ("reordered", "nothing", ["amount", "id"]),
        ("nothing", "reordered", ["amount", "id"]),
    ],
)
def test_columns_without_a_conflict(source: str, dest: str, expected: list[str]) -> None:
    """A change of one side is taken, and the same change of both is taken once."""
    result = merged(source, dest)
    assert (expected, []) == ([field.name for field in result.fields], described(result.findings))


@pytest.mark.parametrize(
    "source,dest,unit,options",
    [
        ("dropped", "renamed", "column amount", BOTH),
        ("renamed", "dropped", "column amount", ("dest-wins",)),
        ("renamed", "renamed otherwise", "column amount", BOTH),
        ("added", "added otherwise", "column note", BOTH),
        ("cast", "cast otherwise", "column amount", BOTH),
        ("cast", "renamed", "column amount", BOTH),
        ("dropped", "cast", "column amount", ()),
        ("renamed", "added price", "column price", ()),
    ],
)
def test_columns_that_both_changed(source: str, dest: str, unit: str, options: tuple[str, ...]) -> None:
    """Contradicting changes are a conflict with the strategies that can be carried out."""
    findings = merged(source, dest).findings
    assert [(unit, options)] == [(found.conflict.unit, found.options) for found in findings]


@pytest.mark.parametrize(
    "source,dest,by_source,by_dest",
    [
        ("dropped", "renamed", ["id"], ["id", "price"]),
        ("renamed", "renamed otherwise", ["id", "price"], ["id", "cost"]),
    ],
)
def test_a_strategy_for_a_column(source: str, dest: str, by_source: list[str], by_dest: list[str]) -> None:
    """The result has the winner's column."""
    names = [[field.name for field in merged(source, dest, winner).fields] for winner in BOTH]
    assert [by_source, by_dest] == names


def test_a_field_of_the_source_gets_an_id_of_the_dest() -> None:
    """Both sides number new fields from the same id, so the source's id may belong to another column."""
    result = merged("added", "added price")
    assert {"note": 3, "price": 2} == {field.name: field.id for field in result.fields if field.id > 1}
    assert (3, frozenset({3}), frozenset({2})) == (result.from_source[2], result.added_by_source, result.added_by_dest)


@pytest.mark.parametrize("how,did", [("cast", "changed its type"), ("required", "made it not null"), ("nothing", None)])
@pytest.mark.parametrize("changer", ["run", "main"])
def test_rows_of_the_old_type_are_refused(how: str, did: str | None, changer: str) -> None:
    """A cast converts only the existing rows: rows of the other side would be null under the new id."""
    writer = "main" if changer == "run" else "run"
    made = {changer: changed(changer, how), writer: side(writer, *appended(4))}
    sides = both_sides(made["run"], made["main"])
    schema = merge_schemas(*sides, ParsedStrategy.NONE)
    # No predicate can be evaluated on these manifests, so the appended rows count as having nulls.
    found = list(lost_columns(*sides, schema))
    assert ([] if did is None else [("column", "column amount", ())]) == described(found)
    for finding in found:
        told_of = finding.conflict.source if changer == "run" else finding.conflict.dest
        assert told_of.endswith(str(did))


S, A = Field(id=2, name="s", logical_type="struct"), Field(id=3, name="a", logical_type="int64", parent_id=2)
B = Field(id=4, name="b", logical_type="int64", parent_id=2)
PACKED = replace(S, metadata={"lance-encoding:packed": b"true"})
UNREADABLE: dict[str, tuple[tuple[Field, ...], tuple[Field, ...], tuple[Field, ...], str, str]] = {
    "no column": (FIELDS, (ID,), (AMOUNT,), "columns", "dropped id"),
    "a struct without fields": ((*FIELDS, S, A, B), (*FIELDS, S, A), (*FIELDS, S, B), "column s", "dropped s.a"),
    "a packed struct of flags": (
        (*FIELDS, S, A),
        (*FIELDS, PACKED, A),
        (*FIELDS, S, A, replace(B, logical_type="bool")),
        "column s.b",
        "changed it",
    ),
    "values stored otherwise": (
        FIELDS,
        (ID, replace(AMOUNT, metadata={"lance-encoding:blob": b"true"})),
        (ID, replace(AMOUNT, nullable=False)),
        "metadata of column amount",
        "has stored values",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_columns_that_nobody_could_read_are_refused(case: str) -> None:
    """Each side alone is readable, and no strategy makes the result of both so."""
    before, of_source, of_dest, unit, did = UNREADABLE[case]
    base = replace(with_fields(before), file_version="2.2")
    made = {}
    for name, fields in (("run", of_source), ("main", of_dest)):
        after = with_fields(fields, base)
        operation = Merge(fragments=after.fragments, fields=fields, schema_metadata={}, preserves_nullability=True)
        made[name] = side(name, after, operation, base=base)
    sides = both_sides(made["run"], made["main"], base=base)
    (found,) = unreadable_columns(*sides, merge_schemas(*sides, ParsedStrategy.NONE))
    assert (unit, (), True) == (found.conflict.unit, found.options, did in found.conflict.dest)
