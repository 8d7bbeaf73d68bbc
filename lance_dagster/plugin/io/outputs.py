"""The write side of the IO manager: the rows of an output become one commit on the branch of the run.

The order matters. Rows are first written to data files; the same pass counts them and checks that they belong to the
partitions. Only then is an earlier attempt of the step taken back, and columns are edited and the rows committed, so
that an output that is refused leaves no commit. The exception is a Spark frame that is upserted: the executors match
its rows with the branch, so the earlier attempt is taken back before that.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, assert_never

import dagster as dg
import pyarrow as pa

from lance_dagster.datafiles import RowTally
from lance_dagster.datafiles.writing import StagedFiles
from lance_dagster.edit.staged_upsert import StagedUpsert
from lance_dagster.errors import ConflictError, InvalidInputError, SchemaMismatchError, TableNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import Ref
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.backfill_reads import read_property
from lance_dagster.plugin.branch_extent import written_heads
from lance_dagster.plugin.io.frames import handler_for
from lance_dagster.plugin.io.output_events import (
    add_row_counts,
    describe_columns,
    described_columns,
    event_metadata,
    set_data_version,
    with_descriptions,
)
from lance_dagster.plugin.io.output_rows import Destination, OutputRows, SparkRows
from lance_dagster.plugin.io.output_tables import OutputTable
from lance_dagster.plugin.io.partition_values import PartitionFilter
from lance_dagster.plugin.io.schema_evolution import Evolution, SchemaChange
from lance_dagster.plugin.io.write_request import Write, WriteDefaults, refuse_second_replacement
from lance_dagster.plugin.recorded_writes import PlannedWrite
from lance_dagster.plugin.resource import LanceResource, SparkResource
from lance_dagster.plugin.run_branch import RunBranch, RunChain, is_restore, is_written
from lance_dagster.plugin.version_report import change_entries, content_entries
from lance_dagster.table import LanceTable

# The operations of an edit of columns, which keeps rows at their addresses, and of a change of settings.
_COLUMNS, _SETTINGS = "Merge", "UpdateConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputWriter:
    """Write the outputs of one step: each is one commit on the branch of the run."""

    lance: LanceResource
    spark: SparkResource | None
    defaults: WriteDefaults
    chain: RunChain
    instance: dg.DagsterInstance | None

    def write(self, context: dg.OutputContext, obj: object) -> None:
        """Commit a value to the run's branch of the asset's table, and describe the commit in the output's metadata.

        Raises:
            InvalidInputError: The value, the settings or the partition column cannot be used, or some rows are outside
                of the partitions; nothing was committed.
            SchemaMismatchError: The rows do not fit the schema of the table, and the policy does not change it.
        """
        write = Write.of(context, self.defaults)
        if obj is None and md.plain(context.definition_metadata.get(md.ALLOW_NONE)):
            self._store_nothing(context, write)
            return
        write = replace(write, properties={**write.properties, **read_property(self.chain, self.instance)})
        handler = handler_for(_type_of_output(write.asset, obj), self.spark)
        vectors = _vectors(context.definition_metadata)
        schema = handler.schema(obj, vectors)
        columns = described_columns(context)
        target = OutputTable.of(context)
        table = self._table(write, target, with_descriptions(schema, columns))
        branch = RunBranch(table=table, chain=self.chain)
        # Both tests come before the fork: a refused write to a table of another asset must leave no branch, and the new
        # branch would be mistaken for the branch of an earlier run.
        start = branch.start()
        is_owned = branch.is_owned_by(write.asset, start)
        is_new, planned = start.branch == MAIN, None
        # Outside of a run, nothing is recorded: there the rows go to `main` at once.
        if self.chain.run_ids:
            repository = self.lance.create_repository()
            planned = PlannedWrite.of(repository, branch, write.properties, write.mode, is_first=is_new)
        rows = handler.rows(obj)
        head = branch.ensure(start)
        # Only one asset writes its table, and outputs of several ops may share one.
        is_shared = write.asset.startswith(md.OP_OUTPUT)
        if is_shared:
            refuse_second_replacement(branch, write)
        output = _Output(
            write=write,
            branch=branch,
            head=head,
            # A branch that was forked just now has no commits of an earlier attempt.
            earlier=None if is_new else EarlierAttempt.of(branch, write),
            rows=rows,
            vectors=vectors,
            is_owned=is_owned,
            planned=planned,
        )
        version, tally, change = output.with_table_names().commit(schema, columns)
        if is_shared:
            # Another output may have been committed since the first look.
            refuse_second_replacement(branch, write, branch.versions_between(head, version))
        for note in change.notes:
            context.log.info("%s: %s", write.asset, note)
        if change.warning:
            context.log.warning("%s: %s", write.asset, change.warning)
        place = self.lance.address_of(target.key, target.metadata)
        context.add_output_metadata({md.URI: table.uri, md.TABLE_NAME: place.dotted})
        add_row_counts(context, write.keys, tally)
        self._describe(context, write, table, before=head, version=version)

    def _store_nothing(self, context: dg.OutputContext, write: Write) -> None:
        """Record that a step has nothing to store, as an optional output that is skipped.

        Raises:
            ConflictError: Later commits of others build on the rows of an earlier attempt.
        """
        target = OutputTable.of(context)
        with suppress(TableNotFoundError):
            branch = RunBranch(table=self.lance.table(target.key, target.metadata), chain=self.chain)
            if branch.start().branch != MAIN:
                # Nothing is committed that would remove the rows of an earlier attempt, as nothing is for an upsert.
                without_rows = replace(write, mode="upsert")
                EarlierAttempt.of(branch, without_rows).take_back(moves_rows=False)
        context.log.info("%s: the output is None, so nothing is stored", write.asset)
        context.add_output_metadata({md.STORED_NOTHING: True})

    def _describe(
        self, context: dg.OutputContext, write: Write, table: LanceTable, *, before: Version, version: Version
    ) -> None:
        """Describe the commit of an output in its metadata; `before` was the head of the branch."""
        columns = described_columns(context)
        context.add_output_metadata(event_metadata(version, table.schema(version), columns))
        (parent, *_) = version.parents
        since: Ref = before if parent == str(before) else parent
        context.add_output_metadata(
            {
                **change_entries(table, version, since, "the version before", on=write.on),
                **content_entries(table, version, self.defaults.preview_rows),
            }
        )
        set_data_version(context, version.transaction)

    def _table(self, write: Write, target: OutputTable, schema: pa.Schema) -> LanceTable:
        """Open the table of an asset, or create it with these columns.

        Raises:
            InvalidInputError: The partition column cannot be used; there is no table then.
        """
        with suppress(TableNotFoundError):
            return self.lance.table(target.key, target.metadata)
        # This is called for its errors: a wrong partition column must not leave an empty table behind.
        write.partitions(schema)
        return LanceTable.create(
            self.lance.uri_of(target.key, target.metadata),
            schema,
            storage_options=self.lance.connection_options,
            # Another process of the run may create the table at the same time.
            exist_ok=True,
            config={md.OWNER: write.asset},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """The commits of earlier attempts of a step on the branch of a run.

    A retry repeats a step in its run, and a re-execution repeats it in a run that continues the first run. Both find
    the commits of the earlier attempt on the branch: its edits of columns, then its rows. Whatever these commits are,
    this attempt must end as if it were the first. An overwrite and a replacement leave none of the earlier rows, and an
    append removes them in its own commit; an upsert would keep each key that only the earlier attempt had, and no mode
    removes columns. Where nobody else has committed to the branch since, one commit restores the version before the
    attempt. Otherwise the rows of the attempt are reverted, and its columns stay.

    Example: the first attempt forked `run/a@7`, added a column in `run/a@8` and upserted in `run/a@9`. The retry
    restores `run/a@7` as `run/a@10`. If another writer had committed `run/a@10`, the retry would revert the rows of
    `run/a@9` in `run/a@11`, and the column would stay.

    Attributes:
        branch: The branch of the run.
        write: The write of this attempt.
        before: The version that the earlier attempts began with. None when there was no attempt, when the attempt was
            taken back already, and when the version cannot be restored, since others have committed to the branch
            meanwhile or may do so at any time.
    """

    branch: RunBranch
    write: Write
    before: Version | None

    @classmethod
    def of(cls, branch: RunBranch, write: Write) -> "EarlierAttempt":
        """Look for the commits of earlier attempts."""
        # A branch that a tag names is written by other runs, and a table of ops by other steps of the run: what they
        # commit between this search and the restore would be lost.
        is_shared = branch.chain.branch_tag is not None or write.asset.startswith(md.OP_OUTPUT)
        return cls(branch=branch, write=write, before=None if is_shared else _version_before(branch, write.properties))

    def take_back(self, *, moves_rows: bool) -> bool:
        """Take back what the earlier attempts committed, where the commit of the rows would not do it.

        Args:
            moves_rows: Whether columns are edited so that rows move to other files, where an append could not find the
                rows of the earlier attempt.

        Returns:
            Whether the branch is without the rows of earlier attempts now.

        Raises:
            ConflictError: Later commits of others build on the rows of the earlier attempt.
        """
        branch, mode, properties = self.branch, self.write.mode, self.write.edit_properties
        keeps_rows = mode == "upsert" or (mode == "append" and moves_rows)
        table, before = branch.table, self.before
        if before is not None and (keeps_rows or table.schema(before) != table.schema(branch.name)):
            message = f"take back an earlier attempt of {self.write.asset}"
            table.restore(str(before), branch.name, message=message, properties=properties)
            return True
        if before is not None or not keeps_rows:
            return False
        if (rows := branch.earlier_attempt(self.write.properties)) is None:
            return False
        try:
            message = f"take back {rows}, an earlier attempt of {self.write.asset}"
            table.revert(str(rows), branch.name, message=message, properties=properties)
        except ConflictError as error:
            raise ConflictError(
                f"{self.write.asset}: an earlier attempt of this step wrote {rows} of {table.uri}, and its rows cannot "
                f"be taken back, because later commits build on them: {error}. Launch a new run, and not a retry or a "
                "partial re-execution of this run"
            ) from error
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """The rows of one output on their way to the branch of the run, whose newest version was `head`.

    `earlier` are the commits of earlier attempts there; None when the branch was forked for this output. `planned` is
    the write that is recorded before its commit; None outside of a run.
    """

    write: Write
    branch: RunBranch
    head: Version
    earlier: EarlierAttempt | None
    rows: OutputRows
    vectors: Mapping[str, int]
    is_owned: bool
    planned: PlannedWrite | None

    def with_table_names(self) -> "_Output":
        """Return the output with the names that the table has for the columns of a Spark frame."""
        if self.rows.on_executors is None:
            return self
        return replace(self, rows=self.rows.on_executors.named_as(self.branch.table.schema(self._begin)))

    def commit(
        self, schema: pa.Schema, columns: Mapping[str, dg.TableColumn]
    ) -> tuple[Version, RowTally, SchemaChange]:
        """Commit the rows; return the version, the counts of the rows and the change of the columns.

        Args:
            schema: The columns that a table created for the output has.
            columns: What the user says about columns.
        """
        table, name, write = self.branch.table, self.branch.name, self.write
        props = write.edit_properties
        change = self._change(schema, table.schema(self._begin))
        within = write.partitions(change.schema)
        tally = write.tally(change.schema)
        rows: StagedFiles | StagedUpsert | pa.Table
        if write.mode == "upsert":
            rows = self._keyed(change, tally, within)
        else:
            rows = self.rows.stage(self._destination, change.schema, tally)
        write.refuse_outside(tally, within.hint if within else "")
        # Before the first commit: rows on a branch without a recorded write count as rows of another program.
        mark = self.planned.put(self.head) if self.planned else {}
        recorded = replace(write, properties={**write.properties, **mark})
        # Spark has matched the rows with the branch after the earlier attempt was taken back.
        is_alone = isinstance(rows, StagedUpsert) or self._take_back(change)
        if isinstance(rows, StagedFiles) and within:
            # The tally saw each row, so the table need not read the files again.
            rows = replace(rows, satisfies=within.predicate)
        if not self.is_owned:
            self.branch.record_owner(write.asset)
        edits = change.apply(table, name, props)
        # An overwrite brings its columns itself. Any other mode needs a table that has the new columns.
        if change.replaced and write.mode != "overwrite":
            empty = change.schema.empty_table()
            edits = [table.overwrite(empty, branch=name, message="columns", properties=props, partitions=write.keys)]
        elif not change.replaced:
            describe_columns(table, name, columns, props)
        if edits and isinstance(rows, StagedUpsert) and self.rows.on_executors is not None:
            rows, tally = self._after(edits, rows, self.rows.on_executors, tally=tally, within=within)
        version = self._committed(recorded, rows, within.predicate if within else "true", is_alone=is_alone)
        return version, tally, change

    @property
    def _destination(self) -> Destination:
        return Destination(self.write.asset, self.branch.table, self.branch.name, self.head)

    @property
    def _begin(self) -> Version:
        """The version that a first attempt of the step would have found."""
        return (self.earlier and self.earlier.before) or self.head

    def _take_back(self, change: SchemaChange) -> bool:
        """Take back what the commit of the rows will not undo of earlier attempts; return whether that removed rows."""
        # An overwrite that brings its own columns leaves nothing of earlier attempts.
        if self.earlier is None or (change.replaced and self.write.mode == "overwrite"):
            return False
        return self.earlier.take_back(moves_rows=bool(change.retyped or change.replaced))

    def _change(self, schema: pa.Schema, current: pa.Schema) -> SchemaChange:
        """Return the change of the columns of the table."""
        # An output without columns, such as an empty list, has no rows, and none of its columns could differ.
        output_schema = self.rows.columns(schema, current, self.vectors) if schema.names else current
        # Nobody has read the columns of a table without a write, so the first write may replace them.
        own = Evolution(
            policy=self.write.evolution,
            where=f"{self.write.asset}, table {self.branch.table.uri}",
            mode=self.write.mode,
            branch=self.branch.name,
            values=self.rows.in_memory,
        )
        if not self._never_written():
            return own.change(output_schema, current)
        warning = ""
        if self._waits_with_others():
            try:
                return own.change(output_schema, current)
            except SchemaMismatchError:
                problems = "; ".join(own.problems(output_schema, current))
                warning = (
                    f"other runs of this backfill wait with other columns ({problems}), "
                    "and each run replaces the columns of the table, so that only one of them can be published; return "
                    "the same columns and types from all partitions, and execute this run again"
                )
        return replace(replace(own, policy="replace").change(output_schema, current), warning=warning)

    def _waits_with_others(self) -> bool:
        """Return whether other runs of a first backfill wait: only one run could replace the columns of the table.

        Only runs of the same backfill count: the columns of a failed run outside of it would stay for ever.
        """
        backfill = self.branch.chain.backfill_id
        if self.write.mode == "overwrite" or backfill is None:
            return False
        branches = self.branch.table.branches.list("run/*").items()
        names = [name for name, branch in branches if branch.metadata.get(md.BACKFILL_ID) == backfill]
        return bool(written_heads(self.branch.table, (name for name in names if name != self.branch.name)))

    def _never_written(self) -> bool:
        """Return whether the IO manager created the table for the asset and no run has written it."""
        # Someone else may have created the table, with columns that are meant as they are.
        if self._begin.rows or not self.is_owned:
            return False
        return not any(md.ASSET_KEY in version.properties for version in self.branch.table.log(self._begin))

    def _keyed(self, change: SchemaChange, tally: RowTally, within: PartitionFilter | None) -> StagedUpsert | pa.Table:
        """Return the rows of an upsert: matched and written by executors, or in memory."""
        if self.rows.on_executors is not None:
            # The executors match the rows with the branch, which must have no row of an earlier attempt.
            self._take_back(change)
            return self._matched(self.rows.on_executors, change.schema, tally, within)
        rows = self.rows.keyed(self._destination, change.schema, tally)
        # A table without columns, which a first output without columns has just made, has no key columns either.
        if change.schema.names:
            there = [column for column in self.write.on if column in rows.column_names]
            self._check_keys(rows.column_names, {column: rows.column(column).null_count for column in there})
        return rows

    def _matched(
        self, rows: SparkRows, schema: pa.Schema, tally: RowTally, within: PartitionFilter | None
    ) -> StagedUpsert:
        """Return the rows of an upsert that Spark matched with the table as it is, and wrote in its future columns."""
        table, name, write = self.branch.table, self.branch.name, self.write
        self._check_keys(rows.frame.columns, dict.fromkeys(write.on, 0))
        when = self._missing(within.predicate if within else "true")
        with self._errors_of_upsert():
            staged = rows.stage_upsert(table, name, write.on, schema=schema, when=when, tally=tally)
        self._check_keys(rows.frame.columns, staged.null_keys)
        return staged

    def _after(
        self,
        edits: Sequence[Version],
        rows: StagedUpsert,
        executors: SparkRows,
        *,
        tally: RowTally,
        within: PartitionFilter | None,
    ) -> tuple[StagedUpsert, RowTally]:
        """Return the rows of an upsert for the version that the edits of its columns made, and their counts.

        An edit of columns keeps every row at its address. Where another writer committed meanwhile, the rows are
        matched once more.
        """
        table, name = self.branch.table, self.branch.name
        newest = edits[-1].number
        own = {edit.number for edit in edits if edit.operation == _COLUMNS or not self._begin.rows}
        others = [number for number in table.branches.version_numbers(name, after=rows.version) if number not in own]
        between = [table.at(f"{name}@{number}") for number in others if number <= newest]
        if all(version.operation == _SETTINGS for version in between):
            return replace(rows, version=newest), tally
        schema = table.schema(name)
        tally = self.write.tally(schema)
        rows = self._matched(executors, schema, tally, within)
        self.write.refuse_outside(tally, within.hint if within else "")
        return rows, tally

    def _missing(self, predicate: str) -> dict[str, Any]:
        """Return the arguments of an upsert for rows of the table whose key is not in the output."""
        if not self.write.deletes_missing:
            return {}
        # Only rows in the partitions of the run are deleted: the output has no rows of other partitions.
        return {"when_missing": "delete", **({"missing_where": predicate} if self.write.keys else {})}

    @contextmanager
    def _errors_of_upsert(self) -> Iterator[None]:
        try:
            yield
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{self.write.asset}, {md.KEYS} {list(self.write.on)}: {error}; nothing was committed"
            ) from error

    def _check_keys(self, columns: Sequence[str], nulls: Mapping[str, int]) -> None:
        """Refuse keys that an upsert could not find again.

        Raises:
            InvalidInputError: A key column is missing, or has a null, which equals no other key: a retry would
                insert its row a second time.
        """
        for name in self.write.on:
            if name not in columns:
                raise InvalidInputError(
                    f"{md.KEYS} of {self.write.asset} names {name!r}; the columns are {', '.join(columns)}"
                )
            if nulls[name]:
                raise InvalidInputError(
                    f"{self.write.asset} returned {nulls[name]} {'row' if nulls[name] == 1 else 'rows'} without a "
                    f"value in its key column {name!r}; an upsert needs the whole key of each row. Nothing was "
                    "committed"
                )

    def _committed(
        self, write: Write, rows: StagedFiles | StagedUpsert | pa.Table, predicate: str, *, is_alone: bool
    ) -> Version:
        table, name = self.branch.table, self.branch.name
        message = f"{write.mode} {write.asset}" + (f" {', '.join(write.keys[:3])}" if write.keys else "")
        props, keys = write.properties, write.keys
        if isinstance(rows, StagedUpsert):
            return self._upserted(write, rows, predicate, message)
        match write.mode:
            case "append":
                # A repeated append removes the rows of the earlier attempt in the same commit, unless they are gone.
                earlier = None if is_alone else self.branch.earlier_attempt(props)
                return table.append(
                    rows, branch=name, message=message, properties=props, partitions=keys, replaces=earlier
                )
            case "overwrite":
                return table.overwrite(rows, branch=name, message=message, properties=props, partitions=keys)
            case "replace":
                return table.replace_where(
                    predicate, rows, branch=name, message=message, properties=props, partitions=keys
                )
            case "upsert":
                return self._upserted(write, rows, predicate, message)
            case _:
                assert_never(write.mode)

    def _upserted(
        self, write: Write, rows: StagedFiles | StagedUpsert | pa.Table, predicate: str, message: str
    ) -> Version:
        table, name = self.branch.table, self.branch.name
        none = table.schema(name).empty_table()
        if not none.column_names:
            return table.append(none, branch=name, message=message, properties=write.properties, partitions=write.keys)
        with self._errors_of_upsert():
            version = table.upsert(
                rows,
                on=write.on,
                branch=name,
                message=message,
                properties=write.properties,
                partitions=write.keys,
                **self._missing(predicate),
            )
        if version.rows_added or version.rows_updated or version.rows_deleted:
            return version
        # A run that changes no row still makes a version, from which the publisher knows that it wrote the table.
        return table.append(none, branch=name, message=message, properties=write.properties, partitions=write.keys)


def _version_before(branch: RunBranch, properties: Mapping[str, str]) -> Version | None:
    """Return the version before the commits of the earlier attempts of a step; None where others committed since.

    Example: the branch has its fork `run/a@7`, then `run/a@8` and `run/a@9` of the step: it is `run/a@7`. With a commit
    of another writer in `run/a@10`, it is None.
    """
    before: Version | None = None
    has_attempt = others = False
    for version in branch.own_versions():
        is_own = branch.is_of_step(version, properties)
        if is_own and is_restore(version):
            # The restore took back all attempts before it.
            before = before or version
            break
        if is_own:
            # Others committed on top of this attempt, so their version holds its rows.
            if others:
                return None
            has_attempt, before = True, None
        else:
            others = others or is_written(version)
            if others and not has_attempt:
                return None
            before = before or version
    return before if has_attempt else None


def _vectors(metadata: Mapping[str, object]) -> dict[str, int]:
    lengths = md.plain(metadata.get(md.VECTORS)) or {}
    return {str(column): int(length) for column, length in lengths.items()} if isinstance(lengths, Mapping) else {}


def _type_of_output(asset: str, value: object) -> type:
    if value is None:
        raise InvalidInputError(
            f"{asset} returned None, so there is nothing to store; return rows, annotate the asset `-> None` or "
            "return a MaterializeResult when it stores them itself, or give it the metadata "
            f"{{{md.ALLOW_NONE!r}: True}} when it may have none"
        )
    return type(value)
