"""Records of the data files that are copied to another place, which tell a collection whose files these are.

The folder of a base path may hold files of other tables and programs, so that a collection deletes only files there
that a record of the table names. `move_files` writes the record before the first copy: a call that was killed leaves
nothing that no record names. The record is an object in the folder of the table, so that it moves with the table.

A name in a record that is younger than the grace period is protected wherever a file of the name lies: a copy may be
committed in a moment, also over a file of the name that was left of an earlier copy. So a collection reads the records
again right before it deletes, and a call looks at its copies once more right before it commits.
"""

import json
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lance_dagster.format import layout
from lance_dagster.format.validation import parsed_json
from lance_dagster.store import Store

_FOLDER = "_refs/copies"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """The data files that one call copies to a place.

    Attributes:
        base: The path of the base path; None for the data folder of the table.
        base_id: Its id, by which its storage options are given.
        is_dataset_root: Whether the files are in its folder `data`.
        names: The names of the data files.
    """

    base: str | None
    base_id: int = 0
    is_dataset_root: bool = False
    names: frozenset[str] = frozenset()


def write_record(store: Store, record: CopyRecord) -> None:
    """Write a record, before the first of its files is copied."""
    content = {
        "base": record.base,
        "base_id": record.base_id,
        "is_dataset_root": record.is_dataset_root,
        "files": sorted(record.names),
    }
    store.put(f"{_FOLDER}/{uuid.uuid4().hex}.json", json.dumps(content).encode())


@dataclass(slots=True)
class CopyRecords:
    """The records of a table, by their keys, and when each was written."""

    store: Store
    records: Mapping[str, CopyRecord]
    written: Mapping[str, float]
    _kept: Collection[str] = ()

    @classmethod
    def of(cls, store: Store, names: Mapping[str, float]) -> "CopyRecords":
        """Read the records among some objects of a table, given with the times at which they were written."""
        written = {key: modified for key, modified in names.items() if is_record(key)}
        return cls(store, _read(store, sorted(written)), written)

    def young_names(self, after: float) -> frozenset[str]:
        """Return the names in records that were written after a time."""
        young = (record.names for key, record in self.records.items() if self.written[key] > after)
        return frozenset().union(*young)

    def newest_names(self) -> frozenset[str]:
        """Return the names in records that were written since these records were listed."""
        keys = {f"{_FOLDER}/{name}" for name in self.store.list(_FOLDER)} - set(self.written)
        return frozenset().union(*(record.names for record in _read(self.store, sorted(keys)).values()))

    def keep(self, places: Collection[str | None], after: float) -> None:
        """Keep the records of some base paths, and those that were written after a time: `forget` passes over them."""
        self._kept = {key for key, record in self.records.items() if record.base in places or self.written[key] > after}

    def forget(self, remaining: Iterable[str]) -> None:
        """Delete the records of which no file remains under a base path, by the names of the data files that remain."""
        there = frozenset(remaining)
        done = [
            key
            for key, record in self.records.items()
            if key not in self._kept and (record.base is None or there.isdisjoint(record.names))
        ]
        self.store.delete_many(done)


def is_record(key: str) -> bool:
    """Return whether an object of the table is a record."""
    return key.startswith(f"{_FOLDER}/")


def data_file_of(name: str) -> str:
    """Return the data file that a file belongs to: itself, or that of a blob or a digest.

    Args:
        name: The path of the file in the folder of the data files.
    """
    first, _, below = name.partition("/")
    if below:
        return f"{first}.lance"
    digest = layout.parse_digest_file(first)
    return digest[0] if digest else first


def _read(store: Store, keys: Iterable[str]) -> dict[str, CopyRecord]:
    """Read records; a record that is gone, or that cannot be read, names no file."""
    records = {}
    for key in keys:
        data = store.get(key)
        record = None if data is None else _parsed(data)
        if record is not None:
            records[key] = record
        elif data is not None:
            _log.warning("%s/%s cannot be read, so the files that it names are not collected", store.uri, key)
    return records


def _parsed(data: bytes) -> CopyRecord | None:
    try:
        content = parsed_json(data)
    except ValueError:
        return None
    match content:
        case {
            "base": str() | None as base,
            "base_id": int() as base_id,
            "is_dataset_root": bool() as is_root,
            "files": list() as names,
        } if all(isinstance(name, str) and layout.is_file_name(name) for name in names):
            return CopyRecord(base=base, base_id=base_id, is_dataset_root=is_root, names=frozenset(names))
    return None
