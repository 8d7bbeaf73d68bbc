"""A Lance namespace over a repository: LanceDB, lance-ray and other programs read its tables at one commit.

    namespace = lance_namespace.connect("lance_dagster.RepositoryNamespace", {"root": "s3://lake", "ref": "production"})
    lance.dataset(namespace_client=namespace, table_id=["shop", "orders"])

Table `shop/orders` is table `orders` of namespace `shop`. The ref is resolved once, when the namespace is connected, so
all its tables are at one commit; connect again to see a later commit.

A namespace names the location of a table but not a version, and programs read the newest version that they find there.
So the description of each table says that the namespace manages its versions: programs then ask the namespace for the
versions, and it lists only the version of the commit. For a version that is not on `main` of its table, because another
program committed there at the same time, the location is the folder of its branch, which is a Lance table as well.

The namespace is read-only: a write would change one table without a commit of the repository.
"""

from collections.abc import Iterable
from typing import NoReturn

from lance_namespace import (
    DescribeNamespaceResponse,
    DescribeTableResponse,
    DescribeTableVersionResponse,
    LanceNamespace,
    ListNamespacesResponse,
    ListTablesResponse,
    ListTableVersionsResponse,
    NamespaceExistsResponse,
    NamespaceNotFoundError,
    TableExistsResponse,
    TableNotFoundError,
    TableVersion,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from lance_dagster.format.layout import VERSIONS
from lance_dagster.repository.repository import LanceRepository
from lance_dagster.repository.view import TableView

_STORAGE = "storage."


class RepositoryNamespace(LanceNamespace):
    """The tables of a repository at the commit of a ref, for programs that use Lance namespaces."""

    def __init__(self, root: str, ref: str = "main", **properties: str) -> None:
        """Open the repository and resolve the ref.

        Args:
            root: The root of the repository.
            ref: A branch, channel, repository tag or commit of the repository, or an expression.
            **properties: Storage options, each with the prefix `storage.`, as in the directory namespace.

        Raises:
            NotFoundError: There is no repository at the root, or no such ref.
        """
        # Properties are one flat map of texts, so storage options need a prefix of their own.
        options = {key.removeprefix(_STORAGE): value for key, value in properties.items() if key.startswith(_STORAGE)}
        self._root, self._ref, self._options = root, ref, options
        self._view = LanceRepository.open(root, options).at(ref)

    def __repr__(self) -> str:
        """Show the root and the commit, and nothing secret."""
        return self.namespace_id()

    def namespace_id(self) -> str:
        """Return a text that is equal for connections that read the same commit."""
        return f"RepositoryNamespace {{ root: {self._root!r}, commit: {self._view.commit.id} }}"

    def list_namespaces(self, request: object) -> ListNamespacesResponse:
        """List the folders of tables directly below a namespace."""
        parts = self._folder(request)
        namespaces, token = _page({name[0] for name in self._below(parts) if len(name) > 1}, request)
        return ListNamespacesResponse(namespaces=namespaces, page_token=token)

    def describe_namespace(self, request: object) -> DescribeNamespaceResponse:
        """Return the root, the ref and the commit that is read."""
        self._folder(request)
        commit = self._view.commit.id
        return DescribeNamespaceResponse(properties={"root": self._root, "ref": self._ref, "commit": commit})

    def namespace_exists(self, request: object) -> NamespaceExistsResponse:
        """Refuse a namespace without tables.

        Raises:
            NamespaceNotFoundError: There is no table below it.
        """
        self._folder(request)
        return NamespaceExistsResponse()

    def list_tables(self, request: object) -> ListTablesResponse:
        """List the tables directly in a namespace."""
        parts = self._folder(request)
        tables, token = _page({name[0] for name in self._below(parts) if len(name) == 1}, request)
        return ListTablesResponse(tables=tables, page_token=token)

    def table_exists(self, request: object) -> TableExistsResponse:
        """Refuse a table that the commit does not have.

        Raises:
            TableNotFoundError: There is none.
        """
        self._table(request)
        return TableExistsResponse()

    def describe_table(self, request: object) -> DescribeTableResponse:
        """Return the location of a table, and its version at the commit.

        Raises:
            TableNotFoundError: The commit has no such table.
            TableVersionNotFoundError: Another version is asked for.
            UnsupportedOperationError: A branch or tag of the table is asked for.
        """
        table = self._table(request)
        version = self._version(table, request)
        return DescribeTableResponse(
            table=table.name.rpartition("/")[2],
            namespace=table.name.split("/")[:-1],
            version=version.version,
            # By the manifest and not by the table: a version that is not on `main` is in the folder of its branch.
            location=table.manifest_uri.rpartition(f"/{VERSIONS}/")[0],
            storage_options=dict(self._options),
            properties={"root": self._root, "commit": self._view.commit.id, "ref": table.ref},
            # Without this, programs open the newest version that they find at the location.
            managed_versioning=True,
        )

    def list_table_versions(self, request: object) -> ListTableVersionsResponse:
        """List the version of a table that the commit names."""
        return ListTableVersionsResponse(versions=[self._version(self._table(request), request)])

    def describe_table_version(self, request: object) -> DescribeTableVersionResponse:
        """Describe the version of a table that the commit names.

        Raises:
            TableVersionNotFoundError: Another version is asked for.
        """
        return DescribeTableVersionResponse(version=self._version(self._table(request), request))

    def _refused(self, *request: object, **more: object) -> NoReturn:
        """Refuse a write.

        Raises:
            UnsupportedOperationError: Always.
        """
        del request, more
        raise UnsupportedOperationError(
            f"the namespace of the repository at {self._root} is read-only: write to a branch of the table, from "
            "LanceRepository.fork, and publish it"
        )

    # The base class refuses these too, but does not say what to do instead.
    create_namespace = drop_namespace = _refused
    create_table = declare_table = create_empty_table = register_table = _refused
    drop_table = deregister_table = rename_table = restore_table = _refused
    insert_into_table = merge_insert_into_table = update_table = delete_from_table = _refused
    create_table_index = create_table_scalar_index = drop_table_index = _refused
    create_table_version = batch_create_table_versions = batch_delete_table_versions = batch_commit_tables = _refused
    alter_table_add_columns = alter_table_alter_columns = alter_table_drop_columns = _refused
    alter_table_backfill_columns = update_table_schema_metadata = update_field_metadata = _refused
    create_table_tag = update_table_tag = delete_table_tag = create_table_branch = delete_table_branch = _refused
    create_materialized_view = refresh_materialized_view = alter_transaction = _refused

    def _folder(self, request: object) -> list[str]:
        parts = _id_of(request)
        if parts and not self._below(parts):
            raise NamespaceNotFoundError(f"no tables below {'/'.join(parts)!r} in the repository at {self._root}")
        return parts

    def _below(self, parts: list[str]) -> list[list[str]]:
        """Return the names of the tables below a namespace, relative to it and split into parts."""
        names = (name.split("/") for name in self._view)
        return [name[len(parts) :] for name in names if len(name) > len(parts) and name[: len(parts)] == parts]

    def _table(self, request: object) -> TableView:
        name = "/".join(_id_of(request))
        if name not in self._view:
            names = ", ".join(self._view) or "none"
            raise TableNotFoundError(f"no table {name!r} in {self._root} at {self._ref}; its tables: {names}")
        return self._view[name]

    def _version(self, table: TableView, request: object) -> TableVersion:
        version, requested = table.version, _argument(request, "version")
        if _argument(request, "branch") or _argument(request, "tag"):
            raise UnsupportedOperationError(
                f"{table.name} is read at commit {self._view.commit.short_id}, and not at a branch or tag of its own"
            )
        # Any other version would break the promise that all tables are at one commit.
        if requested is not None and requested != version.number:
            raise TableVersionNotFoundError(
                f"{table.name} is at version {version.number} at {self._ref}, and the namespace has no other version: "
                "connect with another ref, or open the table itself; nothing is written through this namespace"
            )
        return TableVersion(
            version=version.number,
            manifest_path=_path_in_store(table.manifest_uri),
            timestamp_millis=int(version.committed_at.timestamp() * 1000),
        )


def _path_in_store(uri: str) -> str:
    """Return a path as object stores have it: without scheme, bucket and the slash at the beginning."""
    _, separator, path = uri.partition("://")
    return (path.partition("/")[2] if separator else uri).lstrip("/")


def _argument(request: object, key: str) -> object:
    # Calls from Rust pass a dict, calls from Python the model of the request.
    return request.get(key) if isinstance(request, dict) else getattr(request, key, None)


def _id_of(request: object) -> list[str]:
    # A request without an id is about the root namespace.
    parts = _argument(request, "id")
    return [str(part) for part in parts] if isinstance(parts, list | tuple) else []


def _page(names: Iterable[str], request: object) -> tuple[list[str], str | None]:
    """Return the names that a request asks for, and the token of the next page, which is the last name."""
    # A name and not a position, so that the token stays valid on a new connection.
    after, limit = _argument(request, "page_token"), _argument(request, "limit")
    following = sorted(name for name in names if not after or name > str(after))
    shown = following[:limit] if isinstance(limit, int) and limit > 0 else following
    return shown, shown[-1] if len(shown) < len(following) else None
