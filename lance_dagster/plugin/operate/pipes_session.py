"""Write the table of an asset from an external process that Dagster starts by Pipes.

The step in Dagster passes the place of the table, the branch of its run and the storage options to the process. The
process writes that branch and reports the version it wrote. The materialization has the same entries as one of the IO
manager, so the checks, the publisher and the sensors treat the asset like any other candidate.

The options are part of the context of Pipes: `PipesSubprocessClient` writes it to a file that is deleted after the run,
other clients put it where the service shows it. Give such a process credentials that expire with its job.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict

import dagster as dg
from dagster_pipes import PipesContext, PipesMetadataRawValue, open_dagster_pipes

from lance_dagster.errors import InvalidInputError, RefNotFoundError, TableNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.backfill_reads import read_property
from lance_dagster.plugin.partitioning import partitioning_of, require_partition
from lance_dagster.plugin.recorded_writes import PlannedWrite
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.run_branch import RunBranch, RunChain
from lance_dagster.plugin.settings import WriteMode
from lance_dagster.plugin.table_asset import TableAsset, asset_key_of, metadata_of

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.edit.write import Rows
    from lance_dagster.edit.write_result import WriteResult
    from lance_dagster.history.context import Properties
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

_EXTRA = "lance_dagster"
_SETTINGS = ("uri", "root", "dotted", "storage_options", "chain", "properties", "partitions", "branch_head")


class _Commit(TypedDict):
    branch: str
    message: str
    properties: dict[str, str]
    partitions: tuple[str, ...]


def pipes_extras(
    context: dg.AssetExecutionContext,
    lance: LanceResource,
    *,
    asset: TableAsset | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return the `extras` of a Pipes client, from which `pipes_table` opens the table in the external process.

    Args:
        context: The context of the asset.
        lance: The resource that locates the table.
        asset: The asset whose table the process writes; None when the step has only one.
        storage_options: Credentials for the process in place of the credentials of the resource, such as a session
            token.

    Raises:
        InvalidInputError: The asset is partitioned, and the run has no partition, or the asset's `partition_expr` is
            missing or does not fit the partitions.

    Examples:
        >>> client.run(context=context, command=[...], extras=pipes_extras(context, lance))  # doctest: +SKIP
    """
    key = context.asset_key if asset is None else asset_key_of(asset)
    # The step's own definition: the asset may be named by its key only.
    spec = context.assets_def.specs_by_key.get(key)
    metadata = dict(spec.metadata) if spec is not None else metadata_of(asset or key)
    chain = RunChain.of_context(context)
    keys = tuple(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else ()
    definition = spec.partitions_def if spec else None
    require_partition(key, definition, keys)
    # Imported here: they import Arrow, which a code location does not need when it is loaded.
    from lance_dagster.plugin.operate.pipes_partitions import PipesPartitions

    partitions = PipesPartitions.of(key.to_user_string(), keys, metadata, definition)
    properties = {
        md.ASSET_KEY: key.to_user_string(),
        md.RUN_ID: context.run.run_id,
        md.STEP_KEY: str(context.op_execution_context.op_handle),
        **read_property(chain, context.instance),
    }
    if keys:
        properties[md.PARTITION_KEYS] = md.partition_property(keys)
        properties[md.PARTITIONING] = partitioning_of(definition, metadata.get(md.PARTITION_EXPR))
    # Other runs may write a branch that a tag names, so the process has to know where its own commits begin.
    head = 0
    # The process opens or creates what is at the URI; only the resource can fork it for an environment.
    with suppress(TableNotFoundError):
        table = lance.table(key, metadata)
        with suppress(RefNotFoundError):
            head = table.head(chain.branch_tag).number if chain.branch_tag else 0
    settings = {
        "uri": lance.uri_of(key, metadata),
        "root": lance.tables_root(),
        "dotted": lance.address_of(key, metadata).dotted,
        "storage_options": dict(lance.connection_options if storage_options is None else storage_options),
        "chain": {
            "run_ids": list(chain.run_ids),
            "root_run_id": chain.root_run_id,
            "job_name": chain.job_name,
            "backfill_id": chain.backfill_id,
            "branch_tag": chain.branch_tag,
            "run_partition": list(chain.run_partition),
        },
        "properties": properties,
        "partitions": partitions.encoded(),
        "branch_head": head,
    }
    return {_EXTRA: settings}


def pipes_table(pipes: PipesContext | None = None) -> "PipesTable":
    """Open the table of the asset that Dagster runs this process for, on the branch of its run.

    Use the result as a context manager: when its block ends without an error, the materialization and the checks are
    reported to Dagster.

    Args:
        pipes: The open Pipes context; None to open one with the default loaders for the time of the block.

    Raises:
        InvalidInputError: The process was started without the extras of `pipes_extras`.

    Examples:
        >>> with pipes_table() as orders:  # doctest: +SKIP
        ...     orders.overwrite(rows)
        ...     orders.check("has_rows", passed=orders.version.rows > 0)
    """
    return PipesTable(pipes)


class PipesTable(AbstractContextManager["PipesTable"]):
    """The table of an asset in an external process, on the branch of the Dagster run; see `pipes_table`.

    Attributes:
        branch: The name of the branch.
        partition_keys: The partitions that the run materializes; empty without partitions.
    """

    def __init__(self, pipes: PipesContext | None) -> None:
        """Take the Pipes context; None to open one."""
        self._pipes = open_dagster_pipes() if pipes is None else pipes
        # Only a context that was opened here is closed here.
        self._opened = self._pipes if pipes is None else None
        settings = self._pipes.extras.get(_EXTRA)
        if not isinstance(settings, Mapping) or any(name not in settings for name in _SETTINGS):
            raise InvalidInputError(
                "this process was started without a Lance table; pass extras=pipes_extras(context, lance) to the "
                "Pipes client"
            )
        chain = dict(settings["chain"])
        self._settings = settings
        lists = {name: tuple(chain[name]) for name in ("run_ids", "run_partition")}
        self._chain = RunChain(**{**chain, **lists})
        self._checks: list[tuple[str, bool, dict[str, PipesMetadataRawValue]]] = []
        self.branch = self._chain.branch_names[0] if self._chain.branch_names else MAIN
        from lance_dagster.plugin.operate.pipes_partitions import PipesPartitions

        self._partitions = PipesPartitions.decoded(self._properties[md.ASSET_KEY], settings["partitions"])
        self.partition_keys = self._partitions.keys
        self._writes: list[str] = []
        self._before: Version | None = None
        with suppress(TableNotFoundError):
            self._before = RunBranch(table=self.table, chain=self._chain).written()

    @property
    def table(self) -> "LanceTable":
        """The table; write it on `branch` only.

        Raises:
            TableNotFoundError: No run has written the table yet; the methods that write create it.
        """
        from lance_dagster.table import LanceTable

        return LanceTable.open(self._settings["uri"], self._settings["storage_options"])

    @property
    def version(self) -> "Version":
        """The version that a reader of the run sees: the head of the branch, or of `main` before the first write."""
        table = self.table
        return RunBranch(table=table, chain=self._chain).head() or table.head(MAIN)

    def append(self, rows: "Rows", *, message: str | None = None, properties: "Properties" = None) -> "WriteResult":
        """Append rows, or files staged by Spark; may be called several times.

        Each call replaces the rows of the same call of an earlier attempt of the step. What an earlier attempt appended
        by further calls is taken back at the end of the block.

        Args:
            rows: The rows.
            message: The commit message; None for the method and the asset.
            properties: Stored with the transaction, beside the properties that name asset, run and step.

        Raises:
            InvalidInputError: A row is outside of the partitions of the run, or a run that this run continues appended
                to the table and was published; nothing was committed.
        """
        branch, info = self._ready(rows), self._commit("append", message, properties)
        earlier = branch.earlier_attempt(info["properties"])
        with self._recorded(branch, info, "append"):
            return branch.table.append(self._held(rows), replaces=earlier, **info)

    def overwrite(self, rows: "Rows", *, message: str | None = None, properties: "Properties" = None) -> "WriteResult":
        """Replace all rows, also rows of other partitions, and the schema where it differs; arguments as for `append`.

        Raises:
            InvalidInputError: A row is outside of the partitions of the run; nothing was committed.
        """
        branch, info = self._ready(rows), self._commit("overwrite", message, properties)
        with self._recorded(branch, info, "overwrite"):
            # The rows are held in their own schema, which becomes the schema of the table.
            return branch.table.overwrite(self._partitions.held(rows, rows.schema), **info)

    def replace_partitions(
        self, rows: "Rows", *, message: str | None = None, properties: "Properties" = None
    ) -> "WriteResult":
        """Replace the rows of the partitions of the run; arguments as for `append`.

        Raises:
            InvalidInputError: The run has no partitions, or a row is outside of them; nothing was committed.
        """
        if not self.partition_keys:
            raise InvalidInputError(
                f"the run of {self._properties[md.ASSET_KEY]} has no partitions to replace; use overwrite or append"
            )
        table = self._ready(rows).table
        return self._replaced(self._partitions.filter(table.schema(self.branch)).predicate, rows, message, properties)

    def replace_where(
        self, predicate: str, rows: "Rows", *, message: str | None = None, properties: "Properties" = None
    ) -> "WriteResult":
        """Replace the rows that a predicate selects; arguments as for `append`.

        Raises:
            InvalidInputError: A row is outside of the partitions of the run, or does not satisfy the predicate;
                nothing was committed.
        """
        self._ready(rows)
        return self._replaced(predicate, rows, message, properties)

    def check(
        self,
        name: str,
        *,
        passed: bool,
        metadata: Mapping[str, PipesMetadataRawValue] | None = None,
    ) -> None:
        """Report the result of a check of the written version, at the end of the block.

        The asset declares the check in its `check_specs`. The publisher requires blocking checks to pass.
        """
        self._checks.append((name, passed, dict(metadata or {})))

    def report(self) -> None:
        """Report the materialization, then the checks; the end of the block calls this.

        Raises:
            InvalidInputError: The process wrote nothing, or rows that are outside of the partitions of the run; or an
                earlier attempt of the step overwrote the table or replaced rows, and this attempt did not.
        """
        table = self.table
        branch = RunBranch(table=table, chain=self._chain)
        version = branch.written()
        # The version may be older: of an earlier attempt of the step, or of a run that this run continues.
        if version is None or version == self._before:
            raise InvalidInputError(f"the process ended without a write to {self.branch} of {table.uri}")
        version = self._take_back(branch, version)
        self._partitions.verify(branch, version, self._settings["branch_head"])
        version_metadata: dict[str, PipesMetadataRawValue] = {
            md.BRANCH: version.branch,
            md.VERSION: str(version.number),
        }
        asset = self._properties[md.ASSET_KEY]
        self._pipes.report_asset_materialization(
            {
                **version_metadata,
                md.TRANSACTION: version.transaction,
                md.BASE_VERSION: version.parents[0],
                md.ROW_COUNT: version.rows,
                md.URI: table.uri,
                md.TABLE_NAME: self._settings["dotted"],
            },
            data_version=version.transaction,
            asset_key=asset,
        )
        # After the materialization: the publisher ignores evaluations of an earlier attempt.
        for name, passed, metadata in self._checks:
            self._pipes.report_asset_check(name, passed, metadata={**metadata, **version_metadata}, asset_key=asset)

    def __enter__(self) -> Self:
        """Return the table."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report the written version unless there is an error, and close the Pipes context that was opened."""
        if error is None:
            # The Pipes context is closed after the report, so that an error of the report reaches Dagster with its
            # text.
            with self._opened or nullcontext():
                self.report()
        elif self._opened is not None:
            self._opened.__exit__(kind, error, trace)

    @property
    def _properties(self) -> dict[str, str]:
        return dict(self._settings["properties"])

    def _commit(self, mode: str, message: str | None = None, properties: "Properties" = None) -> "_Commit":
        return {
            "branch": self.branch,
            "message": message or f"{mode} {self._properties[md.ASSET_KEY]}",
            # These properties win over the caller's: a retry finds the versions of an earlier attempt by them. Without
            # the number, the second append of a process would be taken for a retry of the first append.
            "properties": {**(properties or {}), **self._properties, md.WRITE: f"{mode} {len(self._writes) + 1}"},
            "partitions": self.partition_keys,
        }

    def _replaced(self, predicate: str, rows: "Rows", message: str | None, properties: "Properties") -> "WriteResult":
        info = self._commit("replace", message, properties)
        # Only a replacement of the same rows removes all rows that an earlier attempt wrote by a replacement.
        info["properties"][md.WRITE] += f" where {predicate}"
        branch = RunBranch(table=self.table, chain=self._chain)
        with self._recorded(branch, info, "replace"):
            return branch.table.replace_where(predicate, self._held(rows), **info)

    @contextmanager
    def _recorded(self, branch: RunBranch, info: "_Commit", mode: WriteMode) -> Iterator[None]:
        """Record a write before its commit, which gets the mark of the record; count the write after its commit.

        Raises:
            InvalidInputError: The write adds rows that were added and published before.
        """
        from lance_dagster.repository import LanceRepository

        if self._chain.run_ids:
            repository = LanceRepository.create(self._settings["root"], self._settings["storage_options"])
            planned = PlannedWrite.of(repository, branch, info["properties"], mode)
            info["properties"] |= planned.put(branch.table.head(branch.name))
        yield
        self._writes.append(info["properties"][md.WRITE])

    def _take_back(self, branch: RunBranch, version: "Version") -> "Version":
        """Remove the rows that an earlier attempt of the step appended and this attempt did not replace.

        Example: the first attempt appended twice and failed, and the second attempt appended once. Its write `append 1`
        replaced the rows of the earlier `append 1`; the rows of the earlier `append 2` are removed here.

        Returns:
            The head of the branch, which was `version`.

        Raises:
            InvalidInputError: An earlier attempt overwrote the table or replaced rows, and this attempt did not.
        """
        newest: dict[str, Version] = {}
        for attempt in branch.attempts(self._properties):
            write = attempt.properties.get(md.WRITE, "")
            # Attempts come newest first: a newer attempt has replaced what an older attempt wrote in the same write.
            if write in newest:
                continue
            newest[write] = attempt
            if write.startswith("overwrite"):
                # This process overwrote the table too, so no earlier rows remain.
                if write in self._writes:
                    break
                raise InvalidInputError(
                    f"an earlier attempt of the step overwrote the table in {attempt}, and this attempt did not; start "
                    "a new run, and not a retry of this run"
                )
            if write.startswith("replace") and write not in self._writes:
                # The rows that it removed would be lost.
                raise InvalidInputError(
                    f"an earlier attempt of the step replaced rows in {attempt}, and this attempt did not repeat that "
                    "write in its place and with its predicate; start a new run, and not a retry of this run"
                )
        for write, attempt in newest.items():
            if write.startswith("append") and write not in self._writes:
                info: _Commit = {**self._commit("append"), "properties": {**self._properties, md.WRITE: write}}
                with self._recorded(branch, info, "append"):
                    none = branch.table.schema(self.branch).empty_table()
                    version = branch.table.append(none, replaces=attempt, **info)
        return version

    def _held(self, rows: "Rows") -> "Rows":
        return self._partitions.held(rows, self.table.schema(self.branch)) if self.partition_keys else rows

    def _ready(self, rows: "Rows") -> RunBranch:
        """Return the branch of the run, forked; create the table when it does not exist.

        Raises:
            InvalidInputError: The table belongs to another asset, or does not exist and the rows are staged files.
        """
        from lance_dagster.datafiles.writing import StagedFiles
        from lance_dagster.table import LanceTable

        asset = self._properties[md.ASSET_KEY]
        uri, options = self._settings["uri"], self._settings["storage_options"]
        # Files are staged in the folder of a table, so there is nothing to create.
        if isinstance(rows, StagedFiles):
            table = self.table
        else:
            schema: pa.Schema = rows.schema
            table = LanceTable.create(uri, schema, storage_options=options, exist_ok=True, config={md.OWNER: asset})
        branch = RunBranch(table=table, chain=self._chain)
        # The owner comes before the fork, so that refusing a table of another asset leaves no branch.
        start = branch.start()
        is_owned = branch.is_owned_by(asset, start)
        branch.ensure(start)
        if not is_owned:
            branch.record_owner(asset)
        return branch
