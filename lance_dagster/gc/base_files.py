"""The files of a table under base paths outside of its folder: which are garbage.

A version names a file by its base path and its name, and one name may stand for a copy in the folder of the table and
a copy under a base path. Whether a base path is another folder than the table's own is not plain from its URI: a table
may have been moved, or have two URIs. So a base path counts as another folder only where the allowance for the table
that lies there is not seen in the folder of the table; and two base paths are told apart by when their allowances were
written. Everywhere else, an equal name keeps a file.

Of the files under base paths, only copies that records of the table name (`gc.copy_records`) are ever deleted, and only
where no allowance lets another table name files of the place.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from lance_dagster.errors import InvalidInputError, StoreError
from lance_dagster.format import layout
from lance_dagster.format.model import BasePath
from lance_dagster.gc.copy_records import CopyRecord, CopyRecords, data_file_of, is_record
from lance_dagster.history.base_access import BaseAccess, PlaceMark
from lance_dagster.store import ObjectInfo, Store, base_options, open_store
from lance_dagster.verify.manifest_rules import WARNING, Problem

_AT_ONCE = 1000
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class BasePlaces:
    """Tells base paths from the folder of the table, and from one another.

    Attributes:
        access: The base paths of the table.
        has_records: Whether files were copied: only then may a file here and one under a base path have one name.
        seen_inside: Whether an allowance for the table lies in its own folder: then a base path may be that folder.
    """

    access: BaseAccess
    has_records: bool = False
    seen_inside: bool = False
    _marks: dict[tuple[str, int], PlaceMark | None] = field(default_factory=dict)

    def watched(self, entries: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Pass on a listing of the folder of the table, and look for records of copies and allowances in it."""
        for entry in entries:
            self.has_records = self.has_records or is_record(entry.key)
            self.seen_inside = self.seen_inside or entry.key.endswith(self.access.allowance)
            yield entry

    def mark(self, path: str, base_id: int) -> PlaceMark | None:
        """Return the mark of a base path; None where it may be the folder of the table."""
        # Otherwise no request is made: the place may take long to answer, or need credentials that are not here.
        if self.seen_inside or not self.has_records:
            return None
        if (path, base_id) not in self._marks:
            try:
                self._marks[path, base_id] = self.access.mark(path, base_id)
            except (InvalidInputError, StoreError) as error:
                _log.debug("%s cannot be told from the folder of the table: %s", path, error)
                self._marks[path, base_id] = None
        return self._marks[path, base_id]

    def of(self, base: BasePath) -> float | None:
        """Return when the allowance of a base path was written, by whichever URI; None for the table's own folder."""
        mark = self.mark(base.path, base.id)
        return None if mark is None else mark.written


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A file that was copied to a base path.

    Attributes:
        store: The folder of the base path.
        folder: The folder of data files in it.
        entry: The file.
        data_file: The name of the data file that it is or belongs to.
        place: The mark of the base path.
    """

    store: Store
    folder: str
    entry: ObjectInfo
    data_file: str
    place: float


def list_base_files(records: CopyRecords, places: BasePlaces) -> tuple[list[BaseFile], list[Problem]]:
    """List the copied files of base paths that only this table uses; return also a warning for each other base path."""
    by_place: dict[tuple[str, int, bool], CopyRecord] = {}
    for record in records.records.values():
        if record.base is not None:
            place = record.base, record.base_id, record.is_dataset_root
            earlier = by_place.get(place, record)
            by_place[place] = replace(record, names=record.names | earlier.names)
    files: list[BaseFile] = []
    problems: list[Problem] = []
    for (path, base_id, _), record in sorted(by_place.items(), key=lambda item: item[0]):
        mark = places.mark(path, base_id)
        refused = _refused(mark)
        if mark is not None and refused is None:
            try:
                files += _files_of(places.access, path, record, mark)
            except StoreError as error:
                refused = str(error), "collect again once it can be listed"
        if refused is not None:
            what, right = refused
            what = f"files that were copied to {path} are not collected: {what}"
            problems.append(Problem(what=what, right=right, severity=WARNING, path=path))
    return files, problems


def _refused(mark: PlaceMark | None) -> tuple[str, str] | None:
    if mark is None:
        return "it cannot be read, or does not allow the table to use it", "give its storage options, or allow_base it"
    if mark.others:
        return "another table may use them too", f"delete {mark.others[0]} there once that table is gone"
    return None


def _files_of(access: BaseAccess, path: str, record: CopyRecord, mark: PlaceMark) -> Iterator[BaseFile]:
    store = open_store(path, base_options(access.storage_options, record.base_id, path))
    folder = layout.DATA if record.is_dataset_root else ""
    for entry in store.walk(folder):
        data_file = data_file_of(entry.key.removeprefix(f"{folder}/") if folder else entry.key)
        if data_file in record.names:
            yield BaseFile(store, folder, entry, data_file, mark.written)


def delete_base_files(files: Iterable[BaseFile], copying: Collection[str]) -> None:
    """Delete files under base paths; not files that were written again since they were listed, or are being copied."""
    by_folder: dict[tuple[str, str], list[BaseFile]] = {}
    for file in files:
        by_folder.setdefault((file.store.uri, file.folder), []).append(file)
    for own in by_folder.values():
        store = own[0].store
        now = {entry.key: entry.modified for entry in store.walk(own[0].folder)}
        keys = [
            file.entry.key
            for file in own
            if now.get(file.entry.key) == file.entry.modified and file.data_file not in copying
        ]
        for start in range(0, len(keys), _AT_ONCE):
            store.delete_many(keys[start : start + _AT_ONCE])
        # The folders of blobs, which have the names of their data files.
        for folder in {key.rpartition("/")[0] for key in keys} - {own[0].folder}:
            store.prune(folder)
