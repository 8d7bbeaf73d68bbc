"""The verdicts of the package and of pylance on each pair of changes, both made from the same version.

Both commit the same transactions, made by pylance, to copies of the same table. Where both accept the second one, the
resulting tables are compared too.
"""

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError as PylanceConflict

from lance_dagster import LanceTable
from lance_dagster.errors import CommitConflictError
from lance_dagster.format.codec import decode_manifest_file, decode_transaction
from lance_dagster.format.layout import manifest_name
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import (
    CLAIMS,
    MERGE,
    REVERTED,
    Append,
    Delete,
    Operation,
    Project,
    ReserveFragments,
    Rewrite,
    Transaction,
    Update,
    UpdateMemWalState,
)
from lance_dagster.history.commit import WRITER, Proposal, create_first
from lance_dagster.history.context import open_context
from lance_dagster.transactions.apply import next_version
from lance_dagster.transactions.conflicts import COMPATIBLE, RETRYABLE, appended_since, classify, is_plain_append
from lance_dagster.transactions.index_updates import covered_fragments, indices_of
from tests.soak import every, thinned

Change = Callable[[lance.LanceDataset], object]
FOLDERS = ("data", "_deletions", "_indices")
READ, RESERVED = 3, 5
PASSES, RETRY, CONFLICT = "passes", "retry", "conflict"


def rows(*keys: int) -> pa.Table:
    """Rows of two numbers."""
    return pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array([10 * key for key in keys], pa.int64())})


def _update_columns(dataset: lance.LanceDataset) -> None:
    values = pa.table({"key": pa.array([0, 1], pa.int64()), "value": pa.array([-1, -2], pa.int64())})
    fragment, fields = dataset.get_fragment(0).update_columns(values, left_on="key", right_on="key")  # type: ignore[union-attr]
    operation = lance.LanceOperation.Update(
        updated_fragments=[fragment], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def _replace_data(dataset: lance.LanceDataset) -> None:
    from lance.file import LanceFileWriter  # pylance's own way to write one file

    name = f"{uuid.uuid4().hex}.lance"
    with LanceFileWriter(f"{dataset.uri}/data/{name}", pa.schema([("more", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"more": pa.array(range(5), pa.int64())}))
    (old,) = [file for file in dataset.get_fragment(0).data_files() if file.fields == [2]]  # type: ignore[union-attr]
    file = lance.fragment.DataFile(
        path=name,
        fields=[2],
        column_indices=[0],
        file_major_version=old.file_major_version,
        file_minor_version=old.file_minor_version,
    )
    operation = lance.LanceOperation.DataReplacement([lance.LanceOperation.DataReplacementGroup(0, file)])
    lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def _altered(**change: Any) -> Change:  # noqa: ANN401  # whatever pylance takes
    return lambda dataset: dataset.alter_columns(change)  # type: ignore[arg-type]


CHANGES: dict[str, Change] = {
    "append": lambda d: d.insert(d.to_table(filter="key = 1")),
    "delete 0": lambda d: d.delete("key = 0"),
    "delete 1": lambda d: d.delete("key = 1"),
    "delete in both": lambda d: d.delete("key in (2, 7)"),
    "delete whole": lambda d: d.delete("key < 5"),
    "update 0": lambda d: d.update({"value": "0"}, where="key = 0"),
    "update 7": lambda d: d.update({"value": "0"}, where="key = 7"),
    "update columns": _update_columns,
    "replace data": _replace_data,
    "overwrite": lambda d: lance.write_dataset(rows(100), d.uri, mode="overwrite"),
    "index value": lambda d: d.create_scalar_index("value", "BTREE", name="by_value"),
    "index more": lambda d: d.create_scalar_index("more", "BTREE", name="by_more"),
    "compaction": lambda d: d.optimize.compact_files(),
    "add nulls": lambda d: d.add_columns(pa.field("empty", pa.int8())),
    "add values": lambda d: d.add_columns({"double": "key * 2"}),
    "add not null": lambda d: d.add_columns({"one": "1"}),
    "drop column": lambda d: d.drop_columns(["more"]),
    "rename": _altered(path="value", name="worth"),
    "forbid nulls": _altered(path="value", nullable=False),
    "restore": lambda d: d.checkout_version(1).restore(),
    "config a": lambda d: d.update_config({"a": "1"}),
    "config b": lambda d: d.update_config({"b": "1"}),
    "config without a": lambda d: d.delete_config_keys(["a"]),
    "schema metadata": lambda d: d.update_schema_metadata({"a": "1"}),
    "field metadata": lambda d: d.update_field_metadata({"value": {"a": "1"}}),
    "other field metadata": lambda d: d.update_field_metadata({"value": {"b": "1"}}),
    "table metadata": lambda d: d.update_metadata({"a": "1"}),
    "base x": lambda d: d.add_bases([lance.DatasetBasePath("/nowhere/x", name="x")]),
    "base y": lambda d: d.add_bases([lance.DatasetBasePath("/nowhere/y", name="y")]),
}


DELETES = ("delete 0", "delete 1", "delete in both", "delete whole")
LISTED: dict[str, tuple[tuple[str, str], str, set[tuple[str, str]]]] = {
    "joined": (
        (PASSES, RETRY),
        "pylance's commit does not know which rows a deletion is about; the package reads and unites the vectors",
        {(change, earlier) for change in DELETES for earlier in DELETES}
        | {("delete 1", "update 0"), ("delete in both", "update 0"), ("update 0", "delete 1")}
        | {("update 0", "delete in both")},
    ),
    "stale index": (
        (RETRY, PASSES),
        "the new index would answer for values it does not hold, or for a field that is gone",
        {("index value", "update columns"), ("index more", "drop column")},
    ),
    "another column": (
        (RETRY, PASSES),
        "the files hold values of a field that is gone, whose id may be given to another one",
        {(change, "drop column") for change in ("append", "update 0", "update 7")},
    ),
    "same files": (
        (RETRY, PASSES),
        "the rows of one file would be in the table twice",
        {("append", "append")},
    ),
    "lost metadata": (
        (RETRY, PASSES),
        "pylance's projection brings back the field metadata it read, and what the other one set is lost",
        {
            (change, earlier)
            for change in ("drop column", "rename", "forbid nulls")
            for earlier in ("field metadata", "other field metadata")
        },
    ),
    "other keys": (
        (PASSES, CONFLICT),
        "each is applied to what the other one left, so different keys do not contradict each other",
        {("field metadata", "other field metadata"), ("other field metadata", "field metadata")},
    ),
}
VERDICTS = {pair: verdicts for verdicts, _, pairs in LISTED.values() for pair in sorted(pairs)}
KEPT_METADATA = {(change, "schema metadata") for change in ("drop column", "rename", "forbid nulls")}
"""Both commits of these pairs pass, and pylance loses the schema metadata that the other change set."""


@dataclass(frozen=True)
class Made:
    """A change made from the base version, on its own copy of the table."""

    folder: Path
    transaction: Transaction


@pytest.fixture(scope="module", params=[True, False], ids=["stable row ids", "row addresses"])
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Made]:
    """Each change, made by pylance on a copy of a table that has two fragments, an index and a column in own files."""
    folder = tmp_path_factory.mktemp("conflicts")
    base = folder / "base"
    dataset = lance.write_dataset(rows(*range(10)), str(base), max_rows_per_file=5, enable_stable_row_ids=request.param)
    dataset.add_columns({"more": "key + 100"})
    # The reserved ids give a compaction an id that no other change takes.
    transaction = Transaction(read_version=2, uuid=str(uuid.uuid4()), operation=ReserveFragments(count=RESERVED))
    LanceTable.open(base).commit(transaction)
    found = {}
    for name, change in CHANGES.items():
        shutil.copytree(base, folder / name)
        change(lance.dataset(str(folder / name)))
        found[name] = Made(folder / name, last_transaction(folder / name))
    return found


def last_transaction(table: Path) -> Transaction:
    """The transaction of the newest version."""
    path = table / "_transactions" / newest_manifest(table).transaction_file
    return decode_transaction(path.read_bytes(), str(path))


def newest_manifest(table: Path) -> Manifest:
    """The newest version."""
    path = min((table / "_versions").glob("*.manifest"))
    return decode_manifest_file(path.read_bytes(), str(path))[0]


def with_files_of(waiting: Made, committed: Made, target: Path) -> Path:
    """A copy of the table with `committed` committed, and with the files of `waiting` in place."""
    shutil.copytree(committed.folder, target)
    for name in FOLDERS:
        if (waiting.folder / name).exists():
            shutil.copytree(waiting.folder / name, target / name, dirs_exist_ok=True)
    return target


def package_verdict(change: Made, table: Path) -> str:
    """The outcome when the package commits a transaction."""
    transaction = replace(change.transaction, uuid=str(uuid.uuid4()), read_version=READ)
    if isinstance(transaction.operation, Rewrite):
        (group,) = transaction.operation.groups
        group = replace(group, new=[replace(fragment, id=2) for fragment in group.new])
        transaction = replace(transaction, operation=Rewrite(groups=(group,)))
    try:
        LanceTable.open(table).commit(transaction)
    except CommitConflictError as error:
        return RETRY if error.retryable else CONFLICT
    return PASSES


def pylance_verdict(change: Made, name: str, table: Path) -> str:
    """The outcome when pylance commits the transaction."""
    source = lance.dataset(str(change.folder))
    transaction: Any = source.read_transaction(source.version)
    transaction.read_version = READ
    if name == "compaction":
        transaction.operation.groups[0].new_fragments[0].id = 2
    try:
        if name.startswith("base"):
            # pylance neither returns transactions of this operation nor commits them.
            CHANGES[name](lance.dataset(str(table), version=READ))
        else:
            lance.LanceDataset.commit(str(table), transaction)
    except PylanceConflict as error:
        return RETRY if error.retryable else CONFLICT
    except OSError as error:
        if "Incompatible transaction" not in str(error):
            raise
        return CONFLICT
    return PASSES


def shape(table: Path) -> dict[str, object]:
    """The content of a table, for comparison."""
    dataset = lance.dataset(str(table))
    dataset.validate()
    path = table / "_versions" / manifest_name(dataset.version)
    manifest: Manifest = decode_manifest_file(path.read_bytes(), str(path))[0]
    return {
        "rows": dataset.to_table().to_pylist(),
        "fields": manifest.fields,
        "fragments": [
            (
                own.id,
                own.physical_rows,
                own.rows,
                own.row_ids,
                own.created_at,
                own.updated_at,
                [f.fields for f in own.files],
            )
            for own in manifest.fragments
        ],
        "indices": sorted((index.name, index.fields, covered_fragments(index)) for index in indices_of(manifest)),
        "flags": (manifest.reader_flags, manifest.writer_flags),
        "says": (manifest.schema_metadata, manifest.table_metadata, manifest.config),
        "bases": sorted((base.name, base.path) for base in manifest.base_paths),
        "counters": (manifest.max_fragment_id, manifest.next_row_id, manifest.version),
    }


@pytest.mark.parametrize("change", thinned(CHANGES, kept=every(2)))
def test_the_second_change_fares_as_with_pylance(made: dict[str, Made], tmp_path: Path, change: str) -> None:
    """Both give the same verdict on each pair that is not listed, and the same table where the change passes."""
    for earlier in CHANGES:
        found = with_files_of(made[change], made[earlier], tmp_path / f"package {earlier}")
        expected = with_files_of(made[change], made[earlier], tmp_path / f"pylance {earlier}")
        verdicts = package_verdict(made[change], found), pylance_verdict(made[change], change, expected)
        known = VERDICTS.get((change, earlier))
        assert (known or (verdicts[1], verdicts[1])) == verdicts, earlier
        if verdicts == (PASSES, PASSES):
            one, other = shape(found), shape(expected)
            if (change, earlier) in KEPT_METADATA:
                assert one.pop("says") != other.pop("says")
            assert other == one, earlier


def test_two_versions_alone_show_that_an_append_is_compatible(made: dict[str, Made], tmp_path: Path) -> None:
    """They show it for changes that leave rows and schema alone, and never for a change that conflicts."""
    waiting, base = made["append"].transaction, newest_manifest(made["append"].folder.parent / "base")
    (added,) = waiting.operation.fragments  # type: ignore[union-attr]
    other = replace(added, files=[replace(file, path=f"other-{file.path}") for file in added.files])
    pending = replace(waiting, operation=Append(fragments=[other]))
    assert is_plain_append(pending)
    shown = {name for name in CHANGES if appended_since(pending, base, newest_manifest(made[name].folder))}
    assert all(classify(pending, made[name].transaction) is COMPATIBLE for name in shown)
    configured = {name for name in CHANGES if name.startswith(("config", "base"))}
    assert {"append", "schema metadata", "table metadata"} | configured == shown
    # The same files would be in the table twice.
    assert not appended_since(waiting, base, newest_manifest(made["append"].folder))
    # Nor is it shown of several changes where one removes what another one added.
    table = tmp_path / "table"
    shutil.copytree(made["append"].folder, table)
    lance.dataset(str(table)).checkout_version(READ).restore()
    assert base.fragments == newest_manifest(table).fragments
    assert not appended_since(pending, base, newest_manifest(table))
    # What an upsert or a replacement has to see is not in the fragments.
    for claim in (
        '{"mode": "upsert", "predicate": "key = 1", "partitions": []}',
        '{"mode": "replace", "predicate": "key = 1", "partitions": []}',
    ):
        assert not is_plain_append(replace(pending, properties={"lance_dagster.claims": f"[{claim}]"}))


@pytest.mark.parametrize("marks", [{MERGE: "run@4"}, {REVERTED: "main@4"}, {CLAIMS: "[]"}, {}], ids=str)
def test_an_index_is_made_again_after_a_merge_that_changed_columns(
    made: dict[str, Made], marks: dict[str, str]
) -> None:
    """The merge may have brought rows back that the index lacks; an edit of columns alone brings none."""
    landed = replace(made["add values"].transaction, properties=marks)
    assert (RETRYABLE if marks else COMPATIBLE) == classify(made["index value"].transaction, landed)


@pytest.mark.parametrize("change,earlier", [pair for pair in VERDICTS if VERDICTS[pair] == (PASSES, RETRY)])
def test_joined_vectors_take_out_what_both_meant(
    made: dict[str, Made], tmp_path: Path, change: str, earlier: str
) -> None:
    """Every row that either change deleted is gone, no other row is, and an updated row occurs once."""
    table = with_files_of(made[change], made[earlier], tmp_path / "table")
    assert PASSES == package_verdict(made[change], table)
    dataset = lance.dataset(str(table))
    dataset.validate()
    gone: set[Any] = set()
    values = {key: 10 * key for key in range(10)}
    for name in (change, earlier):
        left = {row["key"]: row["value"] for row in lance.dataset(str(made[name].folder)).to_table().to_pylist()}
        gone |= values.keys() - left.keys()
        values |= {key: left[key] for key in left if left[key] != 10 * key}
    found = [(row["key"], row["value"]) for row in dataset.to_table().to_pylist()]
    assert sorted((key, value) for key, value in values.items() if key not in gone) == sorted(found)
    assert len(found) == dataset.count_rows() == LanceTable.open(table).count_rows()


@pytest.mark.parametrize("change", ["drop", "append", "delete", "update"])
def test_a_change_of_the_write_ahead_log_in_between(tmp_path: Path, change: str) -> None:
    """Another program's `UpdateMemWalState` conflicts with the same operations as in pylance, also those on columns."""
    verdicts = []
    for name in ("package", "pylance"):
        uri = str(tmp_path / f"{change}-{name}")
        dataset = lance.write_dataset(rows(*range(3)), uri, enable_stable_row_ids=True)
        stale = lance.dataset(uri)
        context = open_context(uri, None)
        head = context.head("main")
        wal = Transaction(read_version=1, uuid=str(uuid.uuid4()), operation=UpdateMemWalState(compacted_sstables=()))
        manifest = next_version(head.manifest, head.manifest, timestamp=head.manifest.timestamp, writer=WRITER)
        assert create_first(context.versions, Proposal(wal, manifest)) is not None
        if name == "pylance":
            act: Change = {
                "drop": lambda d: d.drop_columns(["value"]),
                "append": lambda d: d.insert(rows(9)),
                "delete": lambda d: d.delete("key = 1"),
                "update": lambda d: d.update({"value": "0"}, where="key = 1"),
            }[change]
            try:
                act(stale)
            except (OSError, PylanceConflict):
                verdicts.append(False)
                continue
        else:
            operations: dict[str, Operation] = {
                "drop": Project(fields=head.manifest.fields[:1]),
                "append": Append(fragments=()),
                "delete": Delete(updated_fragments=()),
                "update": Update(),
            }
            found = classify(Transaction(read_version=1, uuid="x", operation=operations[change]), wal)
            if found is not COMPATIBLE:
                verdicts.append(False)
                continue
        verdicts.append(True)
        assert dataset.version == 1
    assert [change == "update"] * 2 == verdicts
