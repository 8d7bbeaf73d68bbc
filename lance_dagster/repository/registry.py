"""Which tables belong to a repository, and what each one is.

A table is called by its path below the root, without `.lance`. Its identity is a random id in a file of the table
itself, so that a table keeps it when its folder gets another name, and a copy of a folder is recognised as one.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from lance_dagster.errors import AlreadyExistsError, CorruptFileError, InvalidInputError, Remedy, TableNotFoundError
from lance_dagster.format.layout import MAIN, VERSIONS, is_path_inside
from lance_dagster.format.validation import check_string
from lance_dagster.history.context import TableContext, open_context
from lance_dagster.repository.commits.ref_log import FOLDER, MOVED, TABLES
from lance_dagster.store import Store

IDENTITY = "_refs/identity.json"
SUFFIX = ".lance"
_READERS = 8


@dataclass(frozen=True, slots=True)
class Registry:
    """The registered tables of one repository."""

    store: Store
    storage_options: Mapping[str, str] = field(repr=False)
    # Opening a table costs a client and its caches, so each one is opened once.
    _open: dict[str, TableContext] = field(default_factory=dict)

    def names(self) -> list[str]:
        """List the names of the registered tables, sorted."""
        return sorted(unquote(name.removesuffix(".json")) for name in self.store.list(TABLES))

    def ids(self) -> dict[str, str]:
        """Return the name of each registered table by its id; one read for each table."""
        names = self.names()
        with ThreadPoolExecutor(_READERS) as pool:
            found = zip(names, pool.map(self.id_of, names), strict=True)
            return {table_id: name for name, table_id in found if table_id is not None}

    def id_of(self, name: str) -> str | None:
        """Return the id under which a table is registered, or None."""
        return _read_id(self.store, _path(name))

    def context(self, name: str) -> TableContext:
        """Return the context of the table at a name; nothing is read."""
        check_table_name(name)
        if name not in self._open:
            self._open[name] = open_context(f"{self.store.uri}/{name}{SUFFIX}", self.storage_options)
        return self._open[name]

    def register(self, name: str) -> str:
        """Register the table at a name and return its id; do nothing when it is registered.

        Raises:
            TableNotFoundError: There is no table.
            AlreadyExistsError: Another table is registered under the name, or the same one under another name.
        """
        known = self.id_of(name)
        if known is not None:
            return known
        context = self.context(name)
        if not context.versions.has_versions(MAIN):
            remedy = Remedy("create it first, or check the path: a table is called by its path without .lance")
            raise TableNotFoundError(f"no Lance table at {context.uri}", remedy=remedy)
        table_id = _identity_of(context.store)
        # A registration of the same id under another name is a moved table, or a copy of one.
        other = self.ids().get(table_id)
        if other is not None:
            raise AlreadyExistsError(
                f"the table at {context.uri} has the identity of {other!r}: it was copied or moved from there; "
                f"rename the table in the repository, or delete {IDENTITY} of the copy, so that it gets its own"
            )
        self.store.put_if_absent(_path(name), _id_bytes(table_id))
        # Read back: two processes that register a table at the same moment agree on what was written first.
        return self.id_of(name) or table_id

    def rename(self, name: str, new_name: str) -> str:
        """Register a table whose folder was moved under its new name; return its id.

        Raises:
            TableNotFoundError: No table is registered under the name, or the moved table is not there.
            InvalidInputError: There is another table.
        """
        table_id = self.id_of(name)
        found = _read_id(self.context(new_name).store, IDENTITY)
        if table_id is None and found is not None and self.id_of(new_name) == found:
            return found
        if table_id is None:
            raise TableNotFoundError(f"no table {name!r} is registered in {self.store.uri}")
        if found != table_id:
            at = self.context(new_name).uri
            raise InvalidInputError(f"the table at {at} is not the one registered as {name!r}: move its folder first")
        # Before the register is changed: older commits call the table by its old name, also after its removal.
        self.store.put(_moved(table_id), json.dumps({"id": new_name}).encode())
        self.store.put_if_absent(_path(new_name), _id_bytes(table_id))
        self.store.delete(_path(name))
        self._open.pop(name, None)
        return table_id

    def moved_to(self, table_id: str) -> str | None:
        """Return the present name of a table whose folder was moved, or None."""
        return _read_id(self.store, _moved(table_id))

    def remove(self, name: str) -> None:
        """Take a table out of the register; its files stay."""
        self.store.delete(_path(name))

    def discover(self) -> Iterator[str]:
        """Find the names of all Lance tables below the root, registered or not."""
        yield from _tables_below(self.store, "")


def check_table_name(name: str) -> None:
    """Refuse a name that leads out of the root, or into the repository's own folder.

    Raises:
        InvalidInputError: The name is not usable.
    """
    check_string("the name of a table", name)
    if not is_path_inside(name) or name.endswith(SUFFIX) or name.split("/", maxsplit=1)[0] == FOLDER:
        raise InvalidInputError(
            f"{name!r} is no name of a table: it is the path below the root without .lance, such as 'shop/orders'"
        )


def _tables_below(store: Store, folder: str) -> Iterator[str]:
    for name in store.folders(folder):
        path = f"{folder}/{name}" if folder else name
        if name.endswith(SUFFIX):
            # A folder may be called like a table and hold something else.
            if store.list_some(f"{path}/{VERSIONS}", 1):
                yield path.removesuffix(SUFFIX)
        # Folders of the repository itself, of environments, and of other programs.
        elif not name.startswith(("_", ".")):
            yield from _tables_below(store, path)


def _identity_of(store: Store) -> str:
    """Return the id of a table, which gets one now if it has none."""
    found = _read_id(store, IDENTITY)
    if found is None:
        store.put_if_absent(IDENTITY, _id_bytes(uuid.uuid4().hex))
        # Another process may have been first.
        found = _read_id(store, IDENTITY)
    if found is None:
        raise CorruptFileError(f"{store.uri}/{IDENTITY}", "it disappeared while it was read")
    return found


def _read_id(store: Store, path: str) -> str | None:
    data = store.get(path)
    if data is None:
        return None
    try:
        found = json.loads(data)["id"]
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptFileError(f"{store.uri}/{path}", "it holds no identity of a table") from error
    if not isinstance(found, str) or not found:
        raise CorruptFileError(f"{store.uri}/{path}", "it holds no identity of a table")
    return found


def _id_bytes(table_id: str) -> bytes:
    return json.dumps({"id": table_id}).encode()


def _moved(table_id: str) -> str:
    return f"{MOVED}/{quote(table_id, safe='')}.json"


def _path(name: str) -> str:
    check_table_name(name)
    return f"{TABLES}/{quote(name, safe='')}.json"
