"""Laws of every table, whatever was merged: both programs read the same rows, files are valid, indices are correct."""

from collections.abc import Sequence
from dataclasses import replace

import lance

from lance_dagster import LanceTable
from tests.properties.merging.merge_inputs import ExpectedConflict, Outcome
from tests.properties.merging.rows_model import Node, Snapshot, Values
from tests.properties.replica import KEY
from tests.properties.replica_checks import LINEAGE
from tests.table_factory import as_pylance


class BrokenError(AssertionError):
    """A law that does not hold."""

    def __init__(self, law: str, how: str) -> None:
        """Keep the name of the law, and describe how it is broken."""
        super().__init__(f"{law}: {how}")
        self.law = law


def hold(true: bool, law: str, how: str) -> None:  # noqa: FBT001
    """Raise `BrokenError` unless something is true."""
    if not true:
        raise BrokenError(law, how)


def same_content(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots have the same content, regardless of the order of columns."""
    return (
        one.values() == other.values()
        and {(c.name, c.type, c.nullable) for c in one.columns} == {(c.name, c.type, c.nullable) for c in other.columns}
        and (one.config, one.metadata) == (other.config, other.metadata)
    )


def one_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The single outcome for several merge bases; if their outcomes differ, a merge may be refused."""
    if not outcomes:
        raise BrokenError("model", "no merge base")
    first = outcomes[0]
    if all(same_content(first.result, other.result) and first.conflicts == other.conflicts for other in outcomes):
        return first
    return replace(first, conflicts=[*first.conflicts, ExpectedConflict("bases", "several", hard=False)])


def same(table: LanceTable, branch: str, wanted: Snapshot, law: str) -> Snapshot:
    """Check that a branch has the expected content; return that, with the columns in their actual order."""
    return same_as_one(table, branch, [wanted], law)


def as_before(table: LanceTable, node: Node, wanted: Snapshot) -> None:
    """Check that an old version has not changed."""
    branch, number = node
    dataset = as_pylance(table, branch).checkout_version((None if branch == "main" else branch, number))
    rows: Values = {row[KEY]: row for row in dataset.to_table().to_pylist()}
    _same_rows(wanted.values(), rows, "old versions")
    hold(wanted.config == dataset.config(), "old versions", f"config of {node}")


def same_as_one(table: LanceTable, branch: str, candidates: Sequence[Snapshot], law: str) -> Snapshot:
    """Check that a branch has one of the allowed contents; return that, with the columns in their actual order."""
    dataset = as_pylance(table, branch)
    found = dataset.to_table()
    rows: Values = {row[KEY]: row for row in found.to_pylist()}
    hold(len(rows) == found.num_rows, law, f"rows are doubled: {found[KEY].to_pylist()}")
    hold(found.num_rows == dataset.count_rows() == table.count_rows(branch), law, "counts differ")
    wanted = next((one for one in candidates if one.values() == rows), candidates[0])
    _same_rows(wanted.values(), rows, law)
    kinds = {(field.name, field.type, field.nullable) for field in dataset.schema}
    meant = {(column.name, column.type, column.nullable) for column in wanted.columns}
    hold(meant == kinds, law, f"schema: wanted {meant - kinds}, found {kinds - meant}")
    hold(wanted.config == dataset.config(), law, f"config: wanted {wanted.config}, found {dataset.config()}")
    said = {key: value for key, value in dataset.metadata.items() if not key.startswith("lance_dagster.")}
    hold(wanted.metadata == said, law, f"metadata: wanted {wanted.metadata}, found {said}")
    hold(bool(found.equals(table.read(branch))), law, "the package and pylance read different rows")
    by_name = {column.name: column for column in wanted.columns}
    return replace(wanted, columns=tuple(by_name[name] for name in dataset.schema.names))


def decided(table: LanceTable, branch: str, known: Sequence[Snapshot], wanted: Snapshot | None) -> None:
    """Check that a merge won by one side has its rows or, where the rules leave them open, only rows of both sides."""
    well_formed(table, branch)
    if wanted is not None:
        same(table, branch, wanted, "strategy")
        return
    states = [state.values() for state in known]
    rows = as_pylance(table, branch).to_table().to_pylist()
    hold(len(rows) == len({row[KEY] for row in rows}), "strategy", f"rows are doubled: {[row[KEY] for row in rows]}")
    for row in rows:
        uid = row[KEY]
        values = [value for state in states for value in state.get(uid, {}).values()]
        hold(uid in states[-1] or uid in states[-2], "strategy", f"row {uid} is on neither side")
        for name, value in row.items():
            hold(value is None or value in values, "strategy", f"{name} of row {uid} is {value}, on neither side")


def _same_rows(wanted: Values, found: Values, law: str) -> None:
    missing, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    hold(not missing and not more, law, f"rows {missing} are missing, rows {more} are too many")
    for uid, row in wanted.items():
        hold(row == found[uid], law, f"row {uid}: wanted {row}, found {found[uid]}")


def well_formed(table: LanceTable, branch: str, *, deep: bool = False) -> None:
    """Check that neither the package nor pylance finds a problem in the newest version of a branch."""
    report = table.maintenance.verify(branch, deep=deep)
    hold(report.ok, "well formed", "; ".join(map(str, report.problems)))
    dataset = as_pylance(table, branch)
    dataset.validate()
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    ids = [fragment.id for fragment in fragments]
    hold(len(ids) == len(set(ids)), "well formed", f"fragments {ids}")
    for fragment in fragments:
        live = [field for file in fragment.files for field in file.fields if field >= 0]
        hold(len(live) == len(set(live)), "well formed", f"fragment {fragment.id} has two files for one field")
    row_ids = dataset.to_table(columns=[], with_row_id=True)["_rowid"].to_pylist()
    hold(len(row_ids) == len(set(row_ids)), "well formed", "two rows have one row id")


def row_ids(dataset: lance.LanceDataset) -> dict[int, tuple[int, int, int]]:
    """The row id of every row by its key, and the versions in which it was created and last updated."""
    found = dataset.to_table(columns=[KEY, *LINEAGE])
    rows = zip(*(found[name].to_pylist() for name in (KEY, *LINEAGE)), strict=True)
    return {key: (row_id, created, updated) for key, row_id, created, updated in rows}


def lineage_kept(before: dict[int, tuple[int, int, int]], after: dict[int, tuple[int, int, int]], version: int) -> None:
    """Check that rows keep their ids and creation versions, and that no version of a row is in the future."""
    for key, (row_id, created, updated) in after.items():
        hold(created <= version and updated <= version, "lineage", f"row {key}: {created}, {updated} after {version}")
        was = before.get(key, (row_id, created, 0))
        hold((row_id, created) == was[:2], "lineage", f"row {key} was {was}, is {(row_id, created)}")


def indices_left(dataset: lance.LanceDataset, source: Snapshot, dest: Snapshot, result: Snapshot) -> dict[str, int]:
    """Check that a merge has only expected indices; return those that are left, which may be fewer.

    An index of a table that was overwritten is one of the column that has its name then.
    """
    known = source.indices.keys() | dest.indices.keys()
    found = {index.name: index.field_names[0] for index in dataset.describe_indices()}
    hold(found.keys() <= known, "index", f"{found.keys() - known} were on neither side")
    columns = {name: result.by_name(column) for name, column in sorted(found.items())}
    return {name: column.token for name, column in columns.items() if column is not None}


def indexed(uri: str, branch: str, snapshot: Snapshot) -> None:
    """Check that a query finds the same rows with an index and without it."""
    dataset: lance.LanceDataset = as_pylance(LanceTable.open(uri), branch)
    for token in set(snapshot.indices.values()):
        column = snapshot.column(token)
        if column is None:
            continue
        for value in sorted(
            {str(row.value(column)) for row in snapshot.rows.values() if row.value(column) is not None}
        ):
            literal = value if str(column.type).startswith("int") else f"'{value}'"
            condition = f"{column.name} = {literal}"
            wanted = {uid for uid, row in snapshot.rows.items() if str(row.value(column)) == value}
            found = dataset.scanner(columns=[KEY], filter=condition).to_table()[KEY].to_pylist()
            hold(wanted == set(found) and len(wanted) == len(found), "index", f"{condition}: {found}, not {wanted}")
