"""The resources: `LanceResource` locates tables and opens them at one version, `SparkResource` starts a Spark session.

`LanceResource` is the only place that maps an asset to a table and a run to the version that it reads. The IO
manager, the checks, the publisher and the sensors all ask it, so that they agree.

The table of an asset is at `{root}/{whole asset key}.lance`. In the asset's metadata, `lance/table` names another path
below the root, and `lance/schema` a folder that replaces the prefix of the key. With `root="/data/lake"`, the table of
the asset `eu/shop/orders` is `/data/lake/eu/shop/orders.lance`.

A table is on S3 or a server with its interface, on Azure or Google storage, or on local disk, which needs no options.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from lance_dagster.credentials import shown_uri
from lance_dagster.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionRefusedError,
    RefNotFoundError,
    StoreError,
    TableNotFoundError,
)
from lance_dagster.format.sql_text import all_of
from lance_dagster.format.validation import string_list
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.environment import environment_folder, open_forked
from lance_dagster.plugin.provider_options import (
    AzureOptions,
    GoogleOptions,
    S3Options,
    check_fields,
    is_variable,
    literal_secrets,
    merge_options,
)
from lance_dagster.plugin.table_asset import TableAddress, TableKey, table_address

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lance_dagster.datafiles import LanceDataset
    from lance_dagster.history.context import Ref
    from lance_dagster.history.versions import Version
    from lance_dagster.plugin.run_branch import RunChain
    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.view import RepositoryView
    from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedTable:
    """A table at the version that a ref named when the table was opened; later commits do not show.

    Nothing is read before a method is called. `columns` and `filter`, where set, narrow every read, and the
    arguments of the methods narrow it further.
    """

    table: "LanceTable"
    version: "Version"
    columns: tuple[str, ...] | None = None
    filter: str | None = None

    @property
    def ref(self) -> str:
        """The version as a ref expression, such as `main@17`."""
        return str(self.version)

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata that names this version in the result of an asset check, for the publisher to compare."""
        return md.version_metadata(self.version)

    @property
    def schema(self) -> "pa.Schema":
        """The table's schema at this version."""
        return self.table.schema(self.version)

    @property
    def is_narrowed(self) -> bool:
        """Whether `columns` or `filter` is set."""
        return self.columns is not None or self.filter is not None

    def count_rows(self, filter: str | None = None) -> int:
        """Return the number of rows that a Lance SQL filter selects; reads only the columns that it names."""
        narrowed = all_of(self.filter, filter)
        # The manifest holds the number of rows, so nothing is read without a filter.
        return self.version.rows if narrowed is None else self.table.count_rows(self.version, filter=narrowed)

    def read(self, columns: Sequence[str] | None = None, filter: str | None = None) -> "pa.Table":
        """Return rows as an Arrow table in memory."""
        return self.table.read(self.version, columns=self._columns(columns), filter=all_of(self.filter, filter))

    def scan(self, columns: Sequence[str] | None = None, filter: str | None = None) -> "pa.RecordBatchReader":
        """Return rows as a stream of record batches."""
        return self.table.scan(self.version, columns=self._columns(columns), filter=all_of(self.filter, filter))

    def spark(
        self, spark: "SparkSession", columns: Sequence[str] | None = None, filter: str | None = None
    ) -> "DataFrame":
        """Return rows as a lazy Spark frame, which the executors read."""
        # Imported here: PySpark is an optional extra, and most steps do not use it.
        from lance_dagster.spark.source import read_table

        narrowed = all_of(self.filter, filter)
        return read_table(spark, self.table, self.version, columns=self._columns(columns), filter=narrowed)

    def to_lance(self) -> "LanceDataset":
        """Return the table at this version as pylance's dataset, for vector search and SQL.

        Raises:
            InvalidInputError: `columns` or `filter` is set, which a dataset cannot carry.
        """
        if self.is_narrowed:
            raise InvalidInputError(
                f"{self.ref} of {shown_uri(self.table.uri)} is narrowed to {self.narrowed_to}, which a "
                "lance.LanceDataset cannot carry: use read(), scan() or spark(), or annotate the input as "
                "pyarrow.dataset.Scanner. For the dataset of the whole version, call "
                "`pinned.table.to_lance(pinned.version)` and give `pinned.filter` to its scanner(), search or SQL"
            )
        return self.table.to_lance(self.version)

    @property
    def narrowed_to(self) -> str:
        """The filter and the columns that narrow every read, as text; empty for the whole version."""
        columns = "" if self.columns is None else f"the columns {', '.join(self.columns)}"
        return " and ".join(part for part in (columns, self.filter and f"the rows {self.filter}") if part)

    def _columns(self, columns: Sequence[str] | None) -> list[str] | None:
        chosen = columns if columns is not None else self.columns
        return None if chosen is None else list(string_list("columns", chosen, "id"))


_CHANNEL = r"[A-Za-z0-9._-]+"


class LanceResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Locate and open the Lance tables of assets, for IO managers, checks, publishers and sensors."""

    # Pydantic quotes a rejected value in its error, and the value may be a credential.
    model_config = ConfigDict(hide_input_in_errors=True)

    root: str = Field(description="Folder of the tables: an absolute local path, s3://bucket/path, az:// or gs://.")
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Credentials and endpoint, under pylance's names. Give secrets as EnvVar.",
    )
    s3: S3Options | None = Field(default=None, description="Credentials and endpoint of S3, as typed options.")
    azure: AzureOptions | None = Field(default=None, description="Account and credentials of Azure, as typed options.")
    google: GoogleOptions | None = Field(default=None, description="Credentials of Google, as typed options.")
    read_ref: str = Field(
        default="main",
        description="Ref that inputs read when no run branch applies: a branch, a tag or `name@version`.",
    )
    environment: str = Field(
        default="",
        description="Name of a branch deployment, such as its git branch. Its tables are forks of the tables below the "
        "root, made at their first use; nothing it writes, publishes or rolls back reaches the shared tables. Empty in "
        "production.",
    )
    environment_from: str = Field(
        default="main", description="Ref at which the tables of an environment are forked: main, or a tag."
    )

    _root_uri: str = PrivateAttr(default="")
    _repository: "LanceRepository | None" = PrivateAttr(default=None)
    _definition: dg.ResourceDefinition | None = PrivateAttr(default=None)

    def __init__(self, **fields: object) -> None:
        """Refuse unknown fields and an unusable root when the resource is constructed."""
        check_fields(type(self), fields)
        root = fields.get("root")
        if isinstance(root, os.PathLike):
            fields["root"] = os.fspath(root)
        super().__init__(**fields)
        # Imported where it is used, as is the table below: loading a code location needs no storage and no format.
        from lance_dagster.store import refuse_credentials, refuse_unknown_options

        refuse_unknown_options(self.storage_options)
        refuse_credentials({name: value for name, value in self.storage_options.items() if not is_variable(value)})
        # Dagster resolves an EnvVar when a run starts; such a root is checked at its first use.
        if not isinstance(self.root, dg.EnvVar):
            self._check_root()

    def get_resource_definition(self) -> Any:  # noqa: ANN401  # Dagster does not export the type
        """Return the definition that Dagster binds to a job; without configuration when a secret is given as text.

        Dagster writes the configuration of bound resources into the snapshot of each run, in plain text. So a resource
        with such a secret cannot be configured at launch, and its page shows no fields.
        """
        # Dagster asks dozens of times in a run, and has to get the same definition each time.
        if self._definition is None:
            has_secret = any(literal_secrets(self.connection_options))
            unconfigurable = dg.ResourceDefinition(
                # Resolves the fields that are given as EnvVar, as Dagster does for a resource with configuration.
                resource_fn=lambda _: self.process_config_and_initialize(),
                config_schema={},
                description=type(self).__doc__,
            )
            self._definition = unconfigurable if has_secret else super().get_resource_definition()
        return self._definition

    @property
    def connection_options(self) -> dict[str, str]:
        """The storage options and the typed options together, under pylance's names; secret."""
        return merge_options(self.storage_options, s3=self.s3, azure=self.azure, google=self.google)

    def address_of(self, asset_key: TableKey, metadata: Mapping[str, object] | None = None) -> TableAddress:
        """Return the place of an asset's table below the root.

        Args:
            asset_key: An asset key, or its path written `shop/orders`.
            metadata: The asset's definition metadata, in which `lance/table` or `lance/schema` set the place. A
                promoted node names its candidate in `lance/candidate`, and has the address of the candidate.

        Raises:
            InvalidInputError: The path has a part that is not the name of a folder.
        """
        return table_address(asset_key, metadata or {})

    def uri_of(self, asset_key: TableKey, metadata: Mapping[str, object] | None = None) -> str:
        """Return the URI of an asset's table, in the environment if there is one; the table need not exist."""
        return f"{self.tables_root()}/{self.address_of(asset_key, metadata)}.lance"

    def tables_root(self) -> str:
        """Return the folder that the tables are written below: the root, or the environment's folder in it."""
        folder = f"/{environment_folder(self.environment)}" if self.environment else ""
        return f"{self._check_root()}{folder}"

    def open_repository(self) -> "LanceRepository | None":
        """Return the repository at the root; None where nothing was written yet.

        Nothing is written: a reader of tables needs no write permission, and does not create a repository.
        """
        if self._repository is None:
            # Imported here, because most processes do not need it.
            from lance_dagster.repository import LanceRepository

            with suppress(NotFoundError):
                self._repository = LanceRepository.open(self.tables_root(), self.connection_options)
        return self._repository

    def repository_to_publish(self) -> "LanceRepository":
        """Return the repository at the root, or a repository without commits where nothing was written yet.

        Nothing is written, so that a dry run and a refused publication leave no repository behind. `create_repository`
        writes it.
        """
        from lance_dagster.repository import LanceRepository

        return self.open_repository() or LanceRepository(self.tables_root(), self.connection_options)

    def create_repository(self) -> "LanceRepository":
        """Return the repository at the root, which is created if there is none."""
        repository = self.open_repository()
        if repository is None:
            from lance_dagster.repository import LanceRepository

            repository = LanceRepository.create(self.tables_root(), self.connection_options)
            self._repository = repository
        return repository

    def version_at(self, table: "LanceTable", ref: str, run_id: str | None) -> "Version":
        """Return the version of a table that a tag or another ref names for a run.

        All steps of a run read a channel such as `production` at the commit that the first step saw, so that tables
        which are read one after the other are consistent. A table that the channel does not name is read at its own
        tag, which another program or an older version of this package has set.

        Raises:
            RefNotFoundError: There is no such ref; or the channel never had the table, or its commit lacks the table.
        """
        # Most reads are of `main`, or of a version or branch: no channel has such a name.
        repository = None if ref == "main" or not re.fullmatch(_CHANNEL, ref) else self.open_repository()
        view = None if repository is None else _pinned(repository, ref, run_id)
        if repository is None or view is None:
            return table.at(ref)
        name = repository.name_of(table)
        if name in view:
            return view[name].version
        from lance_dagster.history.refs.followed_channel import FOLLOWED_COMMIT

        tag = table.tags.list().get(ref)
        if tag is None or FOLLOWED_COMMIT in tag.metadata:
            # The channel was rolled back to a commit without the table. The tag of the table is stale.
            raise RefNotFoundError(ref, [], table.uri, "channel", f"{name} was not published to it")
        return table.at(ref)

    def table(self, key: TableKey, metadata: Mapping[str, object] | None = None) -> "LanceTable":
        """Open an asset's table; an environment forks it at its first use.

        Raises:
            TableNotFoundError: There is no table at the URI.
        """
        from lance_dagster.table import LanceTable

        address, uri, options = self.address_of(key, metadata), self.uri_of(key, metadata), self.connection_options
        try:
            if self.environment:
                return open_forked(uri, f"{self._check_root()}/{address}.lance", self.environment_from, options)
            return LanceTable.open(uri, options)
        except TableNotFoundError:
            raise TableNotFoundError(f"no table {address} at {uri}: no run has written it yet") from None

    def unopened(self, key: TableKey, metadata: Mapping[str, object] | None = None) -> "LanceTable | None":
        """Return an asset's table without looking whether it is there; None where an environment forks it."""
        from lance_dagster.history.context import open_context
        from lance_dagster.table import LanceTable

        if self.environment:
            return None
        return LanceTable(open_context(self.uri_of(key, metadata), self.connection_options))

    def open(
        self,
        context: object,
        asset_key: TableKey,
        metadata: Mapping[str, object] | None = None,
        *,
        ref: "Ref | None" = None,
    ) -> PinnedTable:
        """Open a table pinned to the version that the current run reads, or to a version that the caller names.

        In a run that wrote the table, or that continues a run which wrote it, this is the head of the run
        branch. In a run of a backfill it has what the other runs of the backfill wrote. Otherwise it is the version
        that `read_ref` names.

        Args:
            context: The context of the asset, check or op that reads.
            asset_key: The asset whose table is read.
            metadata: The asset's definition metadata, needed when it sets the place of the table.
            ref: A version, or any ref expression, in place of the version that the current run reads.
        """
        from lance_dagster.plugin.backfill_reads import read_of_backfill
        from lance_dagster.plugin.run_branch import RunChain

        table = self.table(asset_key, metadata)
        chain = RunChain.of_context(context)
        if ref is None:
            instance = getattr(context, "instance", None) if chain.backfill_id else None
            of_backfill = instance and read_of_backfill(table, chain, self.open_repository(), instance=instance)
            return PinnedTable(table=table, version=of_backfill) if of_backfill else self.pin(chain, table)
        named = self.version_at(table, ref, chain.run_id) if isinstance(ref, str) else table.at(ref)
        return PinnedTable(table=table, version=named)

    def pin(self, chain: "RunChain", table: "LanceTable") -> PinnedTable:
        """Return a table pinned to the version that a chain of runs reads, without other runs of its backfill."""
        from lance_dagster.plugin.recorded_writes import join_candidate
        from lance_dagster.plugin.run_branch import RunBranch

        head = RunBranch(table=table, chain=chain).head()
        # A check of the run may count for what an earlier run wrote.
        if chain.is_untagged and (repository := self.open_repository()) is not None:
            # Without write permission, the evaluation counts only if it names the version that it looked at.
            with suppress(PermissionRefusedError):
                join_candidate(repository, chain)
        return PinnedTable(table=table, version=head or self.version_at(table, self.read_ref, chain.run_id))

    def definition_metadata(self, asset_key: TableKey, metadata: Mapping[str, object] | None = None) -> dict[str, str]:
        """Return metadata for an asset's definition, which makes its page show the table's name and URI."""
        # A code location may load without the environment of a run, so the value of an EnvVar is unknown here.
        is_known = not any(isinstance(field, dg.EnvVar) for field in (self.root, self.environment))
        uri = self.uri_of(asset_key, metadata) if is_known else None
        return md.definition_metadata(self.address_of(asset_key, metadata).dotted, uri)

    def _check_root(self) -> str:
        """Return the root as a canonical URI; computed once for each resource.

        Raises:
            InvalidInputError: The root is empty, relative, or not a location of a store.
        """
        if self._root_uri:
            return self._root_uri
        if not self.root.strip():
            raise InvalidInputError("LanceResource.root is empty; give an absolute local path or s3://bucket/path")
        if one_slash := re.match(r"([a-z][a-z0-9+]*):/(?!/)", self.root):
            scheme = one_slash[1]
            raise InvalidInputError(
                f"LanceResource.root {shown_uri(self.root)!r} has one slash after {scheme}:; give {scheme}://..."
            )
        if "://" not in self.root and not os.path.isabs(os.path.expanduser(self.root)):  # noqa: PTH117, PTH111
            shown = shown_uri(self.root)
            raise InvalidInputError(
                f"LanceResource.root is relative: {shown!r}; the processes of a run may start in different folders, so "
                f"give an absolute path such as {os.path.abspath(shown)!r}"  # noqa: PTH100
            )
        from lance_dagster.store import supported_uri

        try:
            # Without storage options: they may still be unresolved EnvVars. Opening a table checks them.
            self._root_uri = supported_uri(self.root)
        except InvalidInputError as error:
            raise InvalidInputError(f"LanceResource.root {shown_uri(self.root)!r}: {error}") from None
        return self._root_uri


def _pinned(repository: "LanceRepository", channel: str, run_id: str | None) -> "RepositoryView | None":
    """Return all tables as a channel names them for a run; None when there is no such channel."""
    try:
        return repository.publications.pinned(run_id, channel)
    except StoreError as error:
        # Without write permission, the run cannot record the commit for all its steps. If the storage is down, the
        # next line fails too.
        view = repository.publications.pinned(None, channel)
        dg.get_dagster_logger().warning("the steps of this run may see different commits of %s: %s", channel, error)
        return view


class SparkResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Start a Spark session at its first use.

    Every step process has its own session, so with the multiprocess executor each step starts a Java process.
    Jobs of Spark assets run faster with `dg.in_process_executor`.
    """

    master: str = Field(default="local[*]", description="Spark master URL.")
    app_name: str = Field(default="lance_dagster", description="Name of the application.")
    config: dict[str, str] = Field(default_factory=dict, description="Further Spark settings.")

    def __init__(self, **fields: object) -> None:
        """Refuse unknown fields when the resource is constructed."""
        check_fields(type(self), fields)
        super().__init__(**fields)

    @property
    def session(self) -> "SparkSession":
        """The Spark session of this process, which is started if there is none."""
        from lance_dagster.spark.session import local_session

        return local_session(app_name=self.app_name, master=self.master, config=self.config)
