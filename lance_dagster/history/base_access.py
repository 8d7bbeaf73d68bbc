"""Decide which places outside of a table its versions may name as base paths.

A manifest may name any place as a base path. A reader follows it with credentials of its own, so a table that someone
else wrote could make it read a table that only the reader may read, and hand out the rows as its own. Nothing inside
the table can be trusted to allow this, because the writer of a manifest can write it too. So a place is allowed by

- the caller: the storage option `allowed_base_paths`, or the environment variable `LANCE_DAGSTER_ALLOWED_BASE_PATHS`;
- or the place itself: it holds an allowance, a small object that names the table. `add_base`, `clone` and `move_base`
  write it, which takes the right to write there.

Folders of the table itself are always allowed.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from lance_dagster.errors import BasePathRefusedError, InvalidInputError, StoreError
from lance_dagster.format.layout import DATA, VERSIONS, join
from lance_dagster.format.validation import parsed_json
from lance_dagster.store import Store, allowed_base_paths, base_options, canonical_uri, open_store

VARIABLE = "LANCE_DAGSTER_ALLOWED_BASE_PATHS"
"""The environment variable that allows base paths: URIs separated by commas, each with everything below it."""
_FOLDER = "_refs/tables"


@dataclass(frozen=True, slots=True)
class PlaceMark:
    """What tells a base path of a table from other places.

    Attributes:
        written: When the allowance for the table was written there. One folder shows one time, whatever it is called.
        others: The keys of the allowances for other tables, which may name files there too.
    """

    written: float
    others: tuple[str, ...]


@dataclass(slots=True)
class BaseAccess:
    """The base paths that versions of one table may name, as far as they were looked at."""

    store: Store
    storage_options: Mapping[str, str] = field(repr=False)
    _checked: dict[tuple[str, int], Store] = field(default_factory=dict)

    def check(self, path: str, base_id: int) -> None:
        """Check that a base path is allowed; pylance may know its scheme where no store of this package does.

        Raises:
            BasePathRefusedError: As for `locate`.
        """
        if not self._allowed_by_caller(self._canonical(path)):
            self.locate(path, base_id)

    def locate(self, path: str, base_id: int = 0) -> tuple[Store, str]:
        """Return the store of a base path and the folder in it; a folder of the table is in the table's own store.

        Raises:
            BasePathRefusedError: The base path is outside of the table, and neither the caller nor the place allows it.
            InvalidInputError: No store has such a URI.
        """
        own = self.store.uri
        uri = self._canonical(path)
        if self.is_inside(uri):
            return self.store, uri.removeprefix(own).lstrip("/")
        base_store = self._checked.get((uri, base_id))
        if base_store is None:
            base_store = open_store(uri, base_options(self.storage_options, base_id, uri))
            if not (self._allowed_by_caller(uri) or _allows(base_store, own)):
                raise BasePathRefusedError(own, uri, is_same=_is_linked(uri, own))
            # The answer is kept for the life of this object, since it costs a request.
            self._checked[uri, base_id] = base_store
        return base_store, ""

    def is_inside(self, path: str) -> bool:
        """Return whether a base path is the table or a folder of it.

        Raises:
            BasePathRefusedError: The path is not a URI.
        """
        # Paths are compared in the canonical spelling: `<table>/../private` begins like a folder of the table.
        uri = self._canonical(path)
        return uri == self.store.uri or uri.startswith(f"{self.store.uri}/")

    def allow(self, path: str, base_id: int = 0) -> None:
        """Write the allowance at a base path that the caller names, unless the caller's options allow it already.

        Raises:
            StoreError: The place cannot be written.
        """
        if not self._allowed_by_caller(canonical_uri(path)):
            self.allow_everyone(path, base_id)

    def allow_everyone(self, path: str, base_id: int = 0) -> None:
        """Write the allowance at a base path, even where the options of this caller allow it already.

        Raises:
            InvalidInputError: The path is not a URI, or has a query.
            StoreError: The place cannot be written.
        """
        uri, own = canonical_uri(path), self.store.uri
        if self.is_inside(uri):
            return
        place = open_store(uri, base_options(self.storage_options, base_id, uri))
        if not _allows(place, own):
            place.put(_key(own), json.dumps({"table": own}).encode())

    def carry_over(self, path: str, base_id: int, former: Collection[str]) -> None:
        """Allow the table at its present place what it was allowed at a former place: to name a base path.

        Nothing is written where the base path has no allowance for a former place.

        Raises:
            StoreError: The place cannot be read or written.
        """
        uri = canonical_uri(path)
        place = open_store(uri, base_options(self.storage_options, base_id, uri))
        if uri not in former and any(_allows(place, table) for table in former):
            self.allow(path, base_id)

    def mark(self, path: str, base_id: int = 0) -> "PlaceMark | None":
        """Return the mark of a base path outside of the table; None where no allowance names the table.

        Raises:
            BasePathRefusedError: The path is not a URI.
            InvalidInputError: No store has such a URI.
            StoreError: The place cannot be listed.
        """
        uri = self._canonical(path)
        place = open_store(uri, base_options(self.storage_options, base_id, uri))
        entries = {entry.key: entry for entry in place.walk(_FOLDER) if entry.key.endswith(".json")}
        own = entries.pop(_key(self.store.uri), None)
        return None if own is None else PlaceMark(own.modified, tuple(sorted(entries)))

    @property
    def allowance(self) -> str:
        """The end of the key of an allowance for the table, wherever it lies."""
        return _key(self.store.uri)

    def _canonical(self, path: str) -> str:
        try:
            return canonical_uri(path)
        except InvalidInputError as error:
            # Nobody can have allowed a text that is not a URI.
            raise BasePathRefusedError(self.store.uri, path) from error

    def _allowed_by_caller(self, uri: str) -> bool:
        by_environment = allowed_base_paths({"allowed_base_paths": os.environ.get(VARIABLE, "")})
        allowed = [*allowed_base_paths(self.storage_options), *by_environment]
        # The root folder is written with the slash that follows other places.
        return any(uri == place or uri.startswith(f"{place.rstrip('/')}/") for place in allowed)


def refuse_place_of_base(store: Store) -> None:
    """Refuse to make a table where another table keeps files: a collection of the new table would delete them.

    Data files alone prove nothing: a first write by Spark, and an interrupted one, leave them before there is a table.

    Raises:
        InvalidInputError: The place, or its folder of data files, is a base path of another table.
    """
    for folder in (_FOLDER, join(DATA, _FOLDER)):
        if store.list_some(folder, 1):
            raise InvalidInputError(
                f"cannot make a table at {store.uri}: it is a base path of another table, which is named in {folder}; "
                "choose another place"
            )


def refuse_place_of_table(uri: str, options: Mapping[str, str]) -> None:
    """Refuse a base path in a table: a collection of that table would delete the files.

    Raises:
        InvalidInputError: There is a table at the place, or the place is in one of its folders.
    """
    table = _table_around(uri, options, beginning=(uri,))
    if table is not None:
        raise InvalidInputError(f"{uri} cannot be a base path: there is the table {table}; choose another place")


def refuse_place_in_table(uri: str, options: Mapping[str, str]) -> None:
    """Refuse to make a table in a folder of another table, whose collections could delete its files.

    Raises:
        InvalidInputError: The place is in one of the folders of a table.
    """
    table = _table_around(uri, options)
    if table is not None:
        raise InvalidInputError(f"a table cannot be at {uri}: it is inside the table {table}; choose another place")


def _table_around(uri: str, options: Mapping[str, str], beginning: tuple[str, ...] = ()) -> str | None:
    # Folders of other names below a table are left alone by its collections, and may hold base paths and tables.
    segments = uri.split("/")
    ends = [end for end, name in enumerate(segments) if end and (name in {DATA, "tree"} or name.startswith("_"))]
    for root in (*beginning, *("/".join(segments[:end]) for end in ends)):
        # A place that holds no table, or that cannot be listed with the options at hand, is passed over.
        with suppress(InvalidInputError, StoreError):
            if open_store(root, options).list_some(VERSIONS, 1):
                return root
    return None


def _is_linked(uri: str, table: str) -> bool:
    """Return whether a path is inside the folder of a table once symbolic links are followed."""
    if "://" in uri or "://" in table:
        return False
    folder = os.path.realpath(table)
    return os.path.commonpath([os.path.realpath(uri), folder]) == folder


def _key(table: str) -> str:
    return join(_FOLDER, f"{hashlib.sha256(table.encode()).hexdigest()[:32]}.json")


def _allows(place: Store, table: str) -> bool:
    data = place.get(_key(table))
    # The name is a digest, so the content is compared too.
    try:
        return data is not None and parsed_json(data) == {"table": table}
    except ValueError:
        return False
