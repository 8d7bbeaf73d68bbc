"""Read the tables and the repository below a folder without any code of the package.

Tests compare the package with what this module finds, so the module shares no code with the package: it parses the
protobuf wire format, the JSON of refs and the names of files itself, by the table format specification. Rows come from
Lance's file reader, and deleted offsets from Arrow and Roaring.

A problem is a contradiction between two statements in the files. Every version is checked, not only the newest.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from lance.file import LanceFileReader
from pyroaring import BitMap

Fields = Mapping[int, list[Any]]
Row = tuple[object, ...]
_LAST = 2**64 - 1
_FIXED_64, _FIXED_32, _VARINT, _BYTES = 1, 5, 0, 2
# Names that contain a digest of a path or of a random id.
_DIGEST = re.compile(r"(clone-)[0-9a-f]{16}")
# Tags by which a repository keeps versions for its commits, and which no reader reads.
_HOLDING = ("repository-main-", "repository-landing-")


@dataclass(slots=True)
class Found:
    """The rows or versions that readers see by each name, and the problems of the files."""

    refs: dict[str, object] = field(default_factory=dict)
    """For "<table> <branch>" and "<table> tag <tag>" the sorted rows, for refs of a repository those of each table."""
    problems: set[str] = field(default_factory=set)


def read_folder(root: Path) -> Found:
    """Read the tables directly in a folder, and the repository that the folder may be."""
    found = Found()
    tables = {path.name: _Table(path, found) for path in sorted(root.iterdir()) if _manifests(path)}
    for table in tables.values():
        table.read()
    if (root / "_repository").is_dir():
        _read_repository(root / "_repository", tables, found)
    return found


class _Table:
    """One table."""

    def __init__(self, root: Path, found: Found) -> None:
        self.root, self.found = root, found

    def read(self) -> None:
        """Read each version of each branch, and the tags."""
        self._read_branch("main", {})
        for path in sorted(self.root.glob("_refs/branches/*.json")):
            said = json.loads(path.read_bytes())
            # A branch in any other state is being created or deleted, and readers do not see it.
            if said["metadata"].get("lance_dagster.state", "ready") == "ready":
                self._read_branch(unquote(path.stem), said)
        for path in sorted(self.root.glob("_refs/tags/*.json")):
            said = json.loads(path.read_bytes())
            name = _DIGEST.sub(r"\1*", unquote(path.stem))
            rows = self.rows(said.get("branch") or "main", said["version"])
            if "lance_dagster.remover" not in said["metadata"] and not name.startswith(_HOLDING):
                self.found.refs[f"{self.root.name} tag {name}"] = rows

    def rows(self, branch: str, number: int) -> object:
        """The sorted rows of a version."""
        try:
            return self._rows(branch, number)
        except (OSError, pa.ArrowException, ValueError, IndexError, KeyError) as error:
            problem = f"{self.root.name}: {branch}@{number} cannot be read: {type(error).__name__}"
            self.found.problems.add(problem)
            return problem

    def merged(self, number: int) -> str | None:
        """The version that a version of `main` merged, as its transaction says; None for any other version."""
        try:
            _, transaction = _parsed(self._path("main", number))
        except OSError:
            return None
        entries = map(_message, transaction.get(4, ()))
        properties = {bytes(_one(entry, 1)).decode(): bytes(_one(entry, 2)).decode() for entry in entries}
        return properties.get("lance_dagster.merge")

    def _read_branch(self, branch: str, said: Mapping[str, Any]) -> None:
        numbers = _manifests(self._folder(branch))
        if not numbers:
            self.found.problems.add(f"{self.root.name}: {branch} has no version")
            return
        first = int(said["metadata"].get("lance_dagster.first", said["parentVersion"])) if said else 1
        if branch != "main" and numbers[-1] < first:
            self.found.problems.add(f"{self.root.name}: {branch} has no version of its own")
        uuids = [self._checked(branch, number) for number in numbers if number >= first]
        if len({uuid for uuid in uuids if uuid}) < len([uuid for uuid in uuids if uuid]):
            self.found.problems.add(f"{self.root.name}: a transaction is twice on {branch}")
        rows = self.rows(branch, numbers[-1])
        # A repository keeps the versions of its commits on branches of its own, which no reader reads.
        if not branch.startswith("published/"):
            self.found.refs[f"{self.root.name} {branch}"] = rows

    def _checked(self, branch: str, number: int) -> str:
        """Compare the content of a manifest with its name and with the files; return the uuid of its transaction."""
        try:
            manifest, transaction = _parsed(self._path(branch, number))
        except (OSError, ValueError, IndexError) as error:
            self.found.problems.add(f"{self.root.name}: {branch}@{number} is damaged: {error}")
            return ""
        if _one(manifest, 3) != number:
            self.found.problems.add(f"{self.root.name}: {branch}@{number} says it is {_one(manifest, 3)}")
        for path, size in self._files(branch, manifest):
            if not path.is_file():
                self.found.problems.add(f"{self.root.name}: a file of {branch}@{number} is missing")
            elif size not in (0, path.stat().st_size):
                self.found.problems.add(f"{self.root.name}: a file of {branch}@{number} has another size")
        return bytes(_one(transaction, 2, b"")).decode()

    def _files(self, branch: str, manifest: Fields) -> Iterator[tuple[Path, int]]:
        for fragment in map(_message, manifest.get(2, ())):
            for file in map(_message, fragment.get(2, ())):
                yield self._data_file(branch, manifest, file), _one(file, 6)
            for deletion in map(_message, fragment.get(3, ())):
                yield self._deletion_file(branch, manifest, fragment, deletion), 0

    def _rows(self, branch: str, number: int) -> tuple[Row, ...]:
        manifest, _ = _parsed(self._path(branch, number))
        schema = [_message(each) for each in manifest[1]]
        columns = {_one(each, 3): bytes(_one(each, 2, b"")).decode() for each in schema}
        rows: list[Row] = []
        for fragment in map(_message, manifest.get(2, ())):
            values: dict[str, list[object]] = {}
            for file in map(_message, fragment.get(2, ())):
                ids = [number for packed in file.get(2, ()) for number in _packed(packed)]
                read = _columns_at(*_identity(self._data_file(branch, manifest, file)))
                # A data file may also have ids of fields that were dropped, or moved to another file.
                values |= {columns[id_]: column for id_, column in zip(ids, read, strict=True) if id_ in columns}
            gone = self._deleted(branch, manifest, fragment)
            present = [values[name] for name in columns.values()]
            rows += [row for offset, row in enumerate(zip(*present, strict=True)) if offset not in gone]
        return tuple(sorted(rows, key=repr))

    def _deleted(self, branch: str, manifest: Fields, fragment: Fields) -> frozenset[int]:
        if 3 not in fragment:
            return frozenset()
        deletion = _message(fragment[3][0])
        gone = _offsets(*_identity(self._deletion_file(branch, manifest, fragment, deletion)))
        if len(gone) != _one(deletion, 4):
            self.found.problems.add(f"{self.root.name}: a deletion file of {branch} has another number of rows")
        return gone

    def _folder(self, branch: str) -> Path:
        return self.root if branch == "main" else self.root / "tree" / branch

    def _path(self, branch: str, number: int) -> Path:
        return self._folder(branch) / "_versions" / f"{_LAST - number:020d}.manifest"

    def _base(self, branch: str, manifest: Fields, number: int | None) -> tuple[Path, bool]:
        if number is None:
            return self._folder(branch), True
        base = next(base for base in map(_message, manifest[18]) if _one(base, 1) == number)
        place = bytes(_one(base, 4)).decode()
        if "://" in place:
            # A copy of a bucket is read: the table's folder has the same name there.
            place = f"{self.root}{place.partition(f'/{self.root.name}')[2]}"
        return Path(place), bool(_one(base, 3))

    def _data_file(self, branch: str, manifest: Fields, file: Fields) -> Path:
        folder, is_root = self._base(branch, manifest, _one(file, 7, None))
        return folder / ("data" if is_root else "") / bytes(_one(file, 1)).decode()

    def _deletion_file(self, branch: str, manifest: Fields, fragment: Fields, deletion: Fields) -> Path:
        folder, is_root = self._base(branch, manifest, _one(deletion, 7, None))
        ending = "bin" if _one(deletion, 1) else "arrow"
        name = f"{_one(fragment, 1)}-{_one(deletion, 2)}-{_one(deletion, 3)}.{ending}"
        return folder / ("_deletions" if is_root else "") / name


def _read_repository(folder: Path, tables: Mapping[str, _Table], found: Found) -> None:
    """The newest entry of each log names a commit, which names a version of each table."""
    logs = {"main": folder / "branches/main", **{f"channel {log.name}": log for log in folder.glob("channels/*")}}
    # A power cut may leave the folder of a log without its first entry.
    entries = {name: sorted(log.glob("*.json")) for name, log in logs.items()}
    commits = {name: json.loads(paths[0].read_bytes()) for name, paths in entries.items() if paths}
    commits |= {f"release {tag.stem}": json.loads(tag.read_bytes()) for tag in folder.glob("tags/*.json")}
    for name, entry in commits.items():
        if entry.get("action") == "delete":
            continue
        path = folder / "commits" / f"{entry['commit']}.json"
        if not path.is_file():
            found.problems.add(f"{name} names a commit that is not there")
            continue
        said = json.loads(path.read_bytes())["tables"]
        held = ("held",) if entry.get("hold") else ()
        # The number of the entry is included, because it shows a move that happened twice.
        rows = ((table, _rows_of(folder, tables, table, version)) for table, version in sorted(said.items()))
        found.refs[name] = (entry.get("number"), *held, *rows)


def _rows_of(folder: Path, tables: Mapping[str, _Table], name: str, version: Mapping[str, Any]) -> object:
    # Older commits name a table by a former name; its id gives the present name.
    named = {json.loads(path.read_bytes())["id"]: unquote(path.stem) for path in folder.glob("tables/*.json")}
    table = tables.get(f"{named.get(version['id'], name)}.lance")
    if table is None:
        return "no such table"
    branch, number = version["branch"], version["version"]
    # The branch may be gone once `main` has the version under the number that the commit says.
    landed = version["lands"] and table.merged(version["lands"]) == f"{branch}@{number}"
    return table.rows("main", version["lands"]) if landed else table.rows(branch, number)


def _manifests(folder: Path) -> list[int]:
    """The numbers of the versions of a branch, ascending."""
    return sorted(_LAST - int(path.stem) for path in folder.glob("_versions/*.manifest"))


def _parsed(path: Path) -> tuple[Fields, Fields]:
    return _messages(*_identity(path))


def _identity(path: Path) -> tuple[str, int, int]:
    """The identity of a file and its time: tests copy the same files repeatedly, and each is parsed only once."""
    state = path.stat()
    return str(path), state.st_size, state.st_mtime_ns


@lru_cache(maxsize=4096)
def _messages(path: str, size: int, written: int) -> tuple[Fields, Fields]:  # noqa: ARG001 - which file it was
    """The messages of a manifest file: the manifest, and the transaction in it."""
    data = Path(path).read_bytes()
    if data[-4:] != b"LANC":
        raise ValueError("it does not end in LANC")
    manifest = _section(data, int.from_bytes(data[-16:-8], "little"))
    place = _one(manifest, 23, None)
    return manifest, {} if place is None else _section(data, place)


def _section(data: bytes, place: int) -> Fields:
    length = int.from_bytes(data[place : place + 4], "little")
    body = data[place + 4 : place + 4 + length]
    if len(body) != length:
        raise ValueError("it is cut")
    return _message(body)


def _message(data: bytes) -> Fields:
    """The fields of a protobuf message by their numbers, with integers and bytes that are not decoded further."""
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, place = _varint(data, place)
        else:
            size = {_FIXED_64: 8, _FIXED_32: 4}.get(kind)
            if size is None and kind == _BYTES:
                size, place = _varint(data, place)
            if size is None or place + size > len(data):
                raise ValueError("it is no protobuf message")
            value, place = data[place : place + size], place + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _packed(value: int | bytes) -> Iterator[int]:
    """A repeated int32 field: one number, or several of them packed."""
    if isinstance(value, int):
        yield value
        return
    place = 0
    while place < len(value):
        number, place = _varint(value, place)
        yield number


def _one(message: Fields, number: int, default: Any = 0) -> Any:  # noqa: ANN401 - as the field is
    return message[number][-1] if number in message else default


@lru_cache(maxsize=4096)
def _offsets(path: str, size: int, written: int) -> frozenset[int]:  # noqa: ARG001 - same
    data = Path(path).read_bytes()
    if path.endswith(".bin"):
        return frozenset(BitMap.deserialize(data))
    return frozenset(pa.ipc.open_file(io.BytesIO(data)).read_all()["row_id"].to_numpy().tolist())


@lru_cache(maxsize=4096)
def _columns_at(path: str, size: int, written: int) -> tuple[list[object], ...]:  # noqa: ARG001 - same
    table = LanceFileReader(path).read_all().to_table()
    return tuple(column.to_pylist() for column in table.columns)
