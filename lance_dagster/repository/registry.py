"""The tables of a repository, and the ids that identify them; the context of every operation on a repository.

The name of a table is its path below the root, without `.lance`. Its identity is a random id in a file of the table
itself, so that a table keeps it when its folder is renamed, and a copy of a folder is recognised as a copy.

A second file, named after the identity, holds the name of the table. So a registration costs the same however many
tables there are, and a table that a commit names by an older name is found.
"""

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

from lance_dagster.errors import AlreadyExistsError, CorruptFileError, InvalidInputError, Remedy, TableNotFoundError
from lance_dagster.format.layout import MAIN, SUFFIX, VERSIONS, is_path_inside
from lance_dagster.format.validation import check_string, parsed_json
from lance_dagster.history.context import TableContext, open_context
from lance_dagster.history.ref_grammar import parse
from lance_dagster.repository.candidates.record import CandidateRecord
from lance_dagster.repository.commits.ref_log import FOLDER, IDENTITIES, TABLES, RefLogs
from lance_dagster.repository.commits.resolve_commit import find_ref, resolve_commit
from lance_dagster.repository.commits.snapshot import RepositoryCommit, commit_bytes
from lance_dagster.store import Store, concurrently, put_once

IDENTITY = "_refs/identity.json"


@dataclass(frozen=True, slots=True)
class Registry:
    """The registered tables of one repository."""

    store: Store
    storage_options: Mapping[str, str] = field(repr=False)
    # Opening a table costs a client and its caches, so each one is opened once.
    _open: dict[str, TableContext] = field(default_factory=dict)
    # The ids under which the tables were registered when that was last read.
    _seen: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """List the names of the registered tables, sorted."""
        return sorted(_names_in(self.store, TABLES))

    def all_tables(self) -> dict[str, str]:
        """Return the ids of all tables that are or were registered, by their names, if they are still in place."""
        names = self.names()
        table_ids = dict(zip(names, concurrently(self.id_of, names), strict=True))
        unregistered = [*{*_names_in(self.store, IDENTITIES)} - {*table_ids.values()}]
        # Older commits may name versions of tables that were removed.
        removed = dict(zip(unregistered, concurrently(self.name_of, unregistered), strict=True))
        for table_id, name in removed.items():
            # Another table may have been made at the place.
            if name is not None and name not in table_ids and _read_id(self.context(name).store, IDENTITY) == table_id:
                table_ids[name] = table_id
        return {name: table_id for name, table_id in table_ids.items() if table_id is not None}

    def id_of(self, name: str) -> str | None:
        """Return the id under which a table is registered, or None."""
        table_id = _read_id(self.store, _path(name))
        if table_id is not None and self._seen.setdefault(name, table_id) != table_id:
            # Another process created the table again: the context has caches of the former table.
            self._open.pop(name, None)
            self._seen[name] = table_id
        return table_id

    def context(self, name: str) -> TableContext:
        """Return the context of the table at a name; nothing is read."""
        check_table_name(name)
        if name not in self._open:
            self._open[name] = open_context(f"{self.store.uri}/{name}{SUFFIX}", self.storage_options)
        return self._open[name]

    def register(self, name: str) -> str:
        """Register the table at a name and return its id; do nothing when it is registered.

        Raises:
            TableNotFoundError: There is no table at the name.
            AlreadyExistsError: Another table is registered under the name, or the same table under another name.
        """
        registered = self.id_of(name)
        if registered is not None:
            return registered
        context = self.context(name)
        if not context.versions.has_versions(MAIN):
            remedy = Remedy("create it first, or check the path: the name of a table is its path without .lance")
            raise TableNotFoundError(f"no Lance table at {context.uri}", remedy=remedy)
        table_id = _identity_of(context.store)
        # Claimed before the table is registered: a registered table can always be found by its identity.
        self._claim(table_id, name)
        self.store.put_if_absent(_path(name), _id_bytes(table_id))
        if self.name_of(table_id) != name:
            # A copy of the table claimed the identity before it could see this registration.
            self.remove(name)
            raise self._copied(table_id, name)
        # Read back: two processes that register a table at the same moment agree on what was written first.
        return self.id_of(name) or table_id

    def rename(self, name: str, new_name: str) -> str:
        """Register a table whose folder was moved under its new name; return its id.

        Raises:
            TableNotFoundError: No table is registered under the name, or the moved table is not there.
            InvalidInputError: Another table is at the new name.
        """
        table_id = self.id_of(name)
        if name == new_name and table_id is not None:
            return table_id
        moved_id = _read_id(self.context(new_name).store, IDENTITY)
        if table_id is None and moved_id is not None and self.id_of(new_name) == moved_id:
            return moved_id
        if table_id is None:
            raise TableNotFoundError(f"no table {name!r} is registered in {self.store.uri}")
        if moved_id != table_id:
            at = self.context(new_name).uri
            raise InvalidInputError(f"the table at {at} is not the table registered as {name!r}: move its folder first")
        # The identity gets the new name before the register changes: older commits use the old name of the table, and
        # readers find it by the identity. After a crash in between, a second call completes the change.
        self.store.put(_identity_path(table_id), _name_bytes(new_name))
        put_once(self.store, _path(new_name), _id_bytes(table_id))
        self._forget(name)
        self._open.pop(name, None)
        return table_id

    def was_replaced(self, name: str) -> bool:
        """Return whether another program replaced the table at a name, which is then not the registered table."""
        registered = self.id_of(name)
        return registered is not None and _read_id(self.context(name).store, IDENTITY) != registered

    def name_of(self, table_id: str) -> str | None:
        """Return the last name of the table that has an identity, removed or not; None for an unknown identity."""
        return _read_text(self.store, _identity_path(table_id), "name")

    def name_at(self, uri: str) -> str:
        """Return the name of the table at a URI.

        Raises:
            InvalidInputError: The URI is not below the root.
        """
        root = self.store.uri
        name = uri.removeprefix(f"{root}/").removesuffix(SUFFIX)
        # Compared with the URI put together again: without the prefix or the suffix, nothing was removed from it.
        if f"{root}/{name}{SUFFIX}" != uri:
            raise InvalidInputError(f"the table at {uri} is not below {root}")
        return name

    def remove(self, name: str) -> None:
        """Take a table out of the register; its files stay, and a search for tables does not bring it back."""
        table_id = self.id_of(name)
        if table_id is not None:
            self.store.put(_identity_path(table_id), json.dumps({"name": name, "removed": True}).encode())
            self._forget(name)
        # The context has caches of what was read, which would be wrong for another table that is made at this place.
        self._open.pop(name, None)

    def _forget(self, name: str) -> None:
        self.store.delete(_path(name))
        # A power cut must not bring a name back whose removal was acknowledged.
        self.store.sync_folder(TABLES)

    def was_removed(self, name: str) -> bool:
        """Return whether the table at a name, which is not registered, was part of the repository before."""
        table_id = _read_id(self.context(name).store, IDENTITY)
        return table_id is not None and b'"removed"' in (self.store.get(_identity_path(table_id)) or b"")

    def discover(self, registered: Collection[str] = ()) -> Iterator[str]:
        """Find the names of all Lance tables below the root, without the names in `registered`."""
        yield from _tables_below(self.store, "", registered)

    def _claim(self, table_id: str, name: str) -> None:
        """Record the name of the table that has an identity.

        Raises:
            AlreadyExistsError: A table that is registered under another name has the identity.
        """
        path, data = _identity_path(table_id), _name_bytes(name)
        if self.store.put_if_absent(path, data):
            return
        stored = self.store.get_with_etag(path)
        claimed_name = self.name_of(table_id)
        if stored is None or claimed_name is None:
            return
        if claimed_name == name:
            # The file says "removed" where the table was removed before; the swap takes that back.
            self.store.compare_and_swap(path, data, stored[1])
            return
        # Refused only where the claimed name is registered: otherwise its table was removed, or its registration died.
        if self.id_of(claimed_name) == table_id:
            raise self._copied(table_id, name)
        if not self.store.compare_and_swap(path, data, stored[1]) and self.name_of(table_id) != name:
            raise self._copied(table_id, name)
        # Checked again: the claimed name may have been registered between the first check and the swap.
        if self.id_of(claimed_name) == table_id:
            self.store.put(path, _name_bytes(claimed_name))
            raise self._copied(table_id, name)
        # The context of the former place has caches of what was read there.
        self._open.pop(claimed_name, None)

    def _copied(self, table_id: str, name: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"the table at {self.context(name).uri} has the identity of {self.name_of(table_id)!r}: it was copied or "
            f"moved from there; rename the table in the repository, or delete {IDENTITY} of the copy, so that it gets "
            "its own"
        )


def check_table_name(name: str) -> None:
    """Refuse a name that leads out of the root, or into the repository's own folder.

    Raises:
        InvalidInputError: The name is not usable.
    """
    check_string("the name of a table", name)
    outer = next((part for part in name.split("/")[:-1] if part.endswith(SUFFIX)), None)
    if outer is not None:
        raise InvalidInputError(f"{name!r} lies inside the table {outer!r}: a table cannot be part of another table")
    if not is_path_inside(name) or name.endswith(SUFFIX) or name.split("/", maxsplit=1)[0] == FOLDER:
        raise InvalidInputError(
            f"{name!r} is not a name of a table: give the path below the root without .lance, such as 'shop/orders'"
        )


def _tables_below(store: Store, folder: str, registered: Collection[str]) -> Iterator[str]:
    names = store.folders(folder)
    if folder and FOLDER in names:
        # The folder is a repository of its own, to which the tables below it belong.
        return
    for name in names:
        path = f"{folder}/{name}" if folder else name
        if name.endswith(SUFFIX):
            # A folder of another program may have the suffix too, so versions are looked for.
            if path.removesuffix(SUFFIX) not in registered and store.list_some(f"{path}/{VERSIONS}", 1):
                yield path.removesuffix(SUFFIX)
        # Names with these first letters are folders of the repository itself, of environments, and of other programs.
        elif not name.startswith(("_", ".")):
            yield from _tables_below(store, path, registered)


def _names_in(store: Store, folder: str) -> Iterator[str]:
    # Anything else is a file of another program, such as `.DS_Store` or the backup of an editor.
    return (unquote(file.removesuffix(".json")) for file in store.list(folder) if file.endswith(".json"))


def _identity_of(store: Store) -> str:
    """Return the id of a table; a table without an id gets an id now."""
    table_id = _read_id(store, IDENTITY)
    if table_id is None:
        store.put_if_absent(IDENTITY, _id_bytes(uuid.uuid4().hex))
        # Read back: another process may have been first, and then its id counts.
        table_id = _read_id(store, IDENTITY)
    if table_id is None:
        raise CorruptFileError(f"{store.uri}/{IDENTITY}", "it disappeared while it was read")
    return table_id


def _read_id(store: Store, path: str) -> str | None:
    return _read_text(store, path, "id")


def _read_text(store: Store, path: str, key: str) -> str | None:
    data = store.get(path)
    if data is None:
        return None
    try:
        text = parsed_json(data)[key]
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptFileError(f"{store.uri}/{path}", "it does not hold the identity of a table") from error
    if not isinstance(text, str) or not text:
        raise CorruptFileError(f"{store.uri}/{path}", "it does not hold the identity of a table")
    return text


def _id_bytes(table_id: str) -> bytes:
    return json.dumps({"id": table_id}).encode()


def _name_bytes(name: str) -> bytes:
    return json.dumps({"name": name}).encode()


def _identity_path(table_id: str) -> str:
    return f"{IDENTITIES}/{quote(table_id, safe='')}.json"


def _path(name: str) -> str:
    check_table_name(name)
    return f"{TABLES}/{quote(name, safe='')}.json"


@dataclass(frozen=True, slots=True)
class RepositoryContext:
    """The commits and refs of one repository, and its tables. Both are in one store and cache what they read."""

    logs: RefLogs
    registry: Registry
    record: CandidateRecord

    @classmethod
    def on(cls, store: Store, storage_options: Mapping[str, str]) -> "RepositoryContext":
        """Return the context of the repository in a store; nothing is read yet."""
        return cls(RefLogs(store), Registry(store, storage_options), CandidateRecord(store))

    @property
    def store(self) -> Store:
        """The store of the root."""
        return self.logs.store

    @property
    def root(self) -> str:
        """The canonical URI of the root."""
        return self.logs.store.uri

    def head(self) -> RepositoryCommit:
        """Return the newest commit of `main`; two requests."""
        return self.logs.commit(self.logs.current("branch", MAIN).commit)

    def resolve(self, ref: str, tables: Iterable[str] | None = None) -> RepositoryCommit:
        """Return the commit that a ref expression names; for `production~2` the commit may not be stored.

        Args:
            ref: The expression.
            tables: The tables whose promotions `~` of a channel counts, and which it takes back; None for all.

        Raises:
            RefNotFoundError: There is no such ref, or its log does not go back so far.
            RefSyntaxError: The expression is malformed.
            TableNotFoundError: The channel does not name one of the tables.
        """
        if tables is not None:
            kind, entry = find_ref(self.logs, parse(ref))
            if kind == "channel" and entry is not None:
                return resolve_commit(self.logs, ref, self.ids_in(self.logs.commit(entry.commit), tables))
        return resolve_commit(self.logs, ref)

    def resolve_stored(self, ref: str) -> RepositoryCommit:
        """Return the commit that a ref expression names, stored, so that a ref can name it.

        Raises:
            RefNotFoundError: There is no such ref, or its log does not go back so far.
            RefSyntaxError: The expression is malformed.
        """
        commit = self.resolve(ref)
        if not commit.is_stored:
            self.logs.put_commit(replace(commit, is_stored=True), commit_bytes(commit))
        return commit

    def ids_in(self, commit: RepositoryCommit, names: Iterable[str]) -> dict[str, str]:
        """Return the names of tables by the ids that they have in a commit; a moved table has two names there.

        Raises:
            TableNotFoundError: The commit does not name one of the tables.
        """
        present, names_by_id = {at.id for at in commit.tables.values()}, {}
        for name in names:
            at = commit.tables.get(name)
            # Looked up only now, so that a table that was not moved costs no request.
            table_id = self.registry.id_of(name) if at is None else at.id
            if table_id not in present or table_id is None:
                present_names = ", ".join(sorted(commit.tables)) or "none"
                raise TableNotFoundError(f"commit {commit.short_id} has no table {name!r}; its tables: {present_names}")
            names_by_id[table_id] = name
        return names_by_id

    def table(self, name: str) -> TableContext:
        """Return the context of the table at a name, registered or not; nothing is read.

        Raises:
            InvalidInputError: It is not a name of a table.
        """
        return self.registry.context(name)
