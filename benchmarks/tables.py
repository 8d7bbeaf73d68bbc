"""Tables with many fragments or many versions, made in seconds: the data files are links to one file."""

import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from lance_dagster import LanceTable, StagedFiles, Transaction, write_files
from lance_dagster.format import layout
from lance_dagster.format.codec import encode_manifest_file, encode_transaction
from lance_dagster.format.transaction import MapUpdate, UpdateConfig
from lance_dagster.history.commit import WRITER, now_ns
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions
from lance_dagster.store import open_store
from lance_dagster.transactions.apply import apply
from lance_dagster.types import StagedFile

FRAGMENT_ROWS = 100
QUICK = {"durability": "process"}
"""Syncs nothing, as pylance does."""
_AT_ONCE = 10_000
ROWS = pa.table({"id": pa.array(range(FRAGMENT_ROWS)), "text": ["some text"] * FRAGMENT_ROWS})


@dataclass(frozen=True, slots=True)
class Made:
    """A table, a data file of it whose rows further commits can add, and its tag."""

    table: LanceTable
    file: StagedFile
    tag: str = "production"

    @property
    def uri(self) -> str:
        """The URI of the table."""
        return self.table.uri

    @property
    def staged(self) -> StagedFiles:
        """The data file under a new name, for another append."""
        return StagedFiles(ROWS.schema, (linked(self.table, self.file),))

    @property
    def manifest_bytes(self) -> int:
        """The size of the newest manifest."""
        return min((Path(self.uri) / layout.VERSIONS).glob("*.manifest")).stat().st_size


def with_fragments(folder: Path, count: int) -> Made:
    """Make a table of so many fragments whose newest version was a small append."""
    table = LanceTable.create(folder / f"f{count}-{uuid.uuid4().hex[:8]}.lance", ROWS.schema, storage_options=QUICK)
    (file,) = write_files(table.write_target(), ROWS.to_batches())
    left = count - 1
    while left:
        table.append(StagedFiles(ROWS.schema, tuple(linked(table, file) for _ in range(min(left, _AT_ONCE)))))
        left -= min(left, _AT_ONCE)
    made = Made(table, file)
    table.append(made.staged)
    table.tags.create(made.tag, "main")
    return made


def with_days(folder: Path, count: int) -> str:
    """Make a table with one data file, of one row, for each of so many days; return its URI."""
    rows = pa.table({"day": ["d"], "id": [0]})
    table = LanceTable.create(folder / f"d{count}.lance", rows.schema, storage_options=QUICK)
    days = (pa.table({"day": [f"d{day}"], "id": [day]}) for day in range(count))
    files = tuple(file for day in days for file in table.stage(day).files)
    table.append(StagedFiles(rows.schema, files))
    return table.uri


def linked(table: LanceTable, file: StagedFile) -> StagedFile:
    """Give a data file another name: a commit refuses to name one file twice, since its rows would be there twice."""
    folder, name = Path(table.uri) / layout.DATA, f"{uuid.uuid4().hex}.lance"
    os.link(folder / file.name, folder / name)
    return replace(file, name=name)


def with_versions(folder: Path, count: int) -> Made:
    """Make a table of 10 fragments and so many versions, each of them a setting that changed."""
    made = with_fragments(folder, 10)
    store = open_store(made.uri, QUICK)
    head = Versions(store).head(layout.MAIN)
    manifest = head.manifest
    for number in range(manifest.version, count - 1):
        change = UpdateConfig(config=MapUpdate(entries={"setting": str(number)}))
        transaction = Transaction(read_version=number, uuid=str(uuid.uuid4()), operation=change)
        manifest = apply(manifest, transaction, timestamp=now_ns(), writer=WRITER)
        path = f"{layout.VERSIONS}/{layout.manifest_name(manifest.version)}"
        store.put(path, encode_manifest_file(manifest, encode_transaction(transaction)))
    # Through the front: this also writes the hint that pylance looks at.
    table = LanceTable.open(made.uri, QUICK)
    table.append(made.staged)
    tag = Refs(store).tags.find(made.tag)
    if tag is None or table.head().number < count:
        raise RuntimeError(f"{made.uri} was not made as planned")
    return Made(table, made.file)
