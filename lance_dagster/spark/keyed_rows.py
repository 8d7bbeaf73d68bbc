"""Upsert and delete rows by key where Spark's executors match the keys and write the rows.

The rows are joined with the key columns and the row addresses of one version of the table. Each task of the join writes
its rows to data files, updated rows apart from inserted rows, and returns the addresses of the rows that they replace.
The calling process gets these addresses, eight bytes for each row that changes, and makes one commit.
"""

import base64
import functools
import itertools
import json
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window, functions
from pyspark.sql.types import DataType, NullType, NumericType, StringType, StructType

from lance_dagster.datafiles import RowFilter, RowScope, RowTally
from lance_dagster.datafiles.writing import StagedFile, StagedFiles, WriteTarget, write_files
from lance_dagster.edit.key_predicates import comparable_values
from lance_dagster.edit.staged_upsert import StagedUpsert, claimed_values
from lance_dagster.edit.write_result import WriteResult
from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.format.validation import check_names, check_options, string_list
from lance_dagster.history.context import Properties
from lance_dagster.history.versions import Version
from lance_dagster.spark.narrowing import narrowed
from lance_dagster.spark.reader import ROW_ID, Scan, fragment_sizes, scan_frame
from lance_dagster.spark.spark_schema import (
    check_fits,
    check_kept,
    is_number,
    readable_schema,
    target_schema,
    to_table_batch,
)
from lance_dagster.spark.worker import begin_task
from lance_dagster.spark.writer import (
    check_frame,
    check_visible,
    errors_of_executors,
    large_batches,
    meant_names,
    with_table_names,
)
from lance_dagster.store.retries import is_retryable_conflict, repeated
from lance_dagster.table import LanceTable

_UPDATED, _ADDED, _MISSING = 0, 1, 2
_ATTEMPTS = 5
_PLAIN, _UTF8 = StringType(), "UTF8_BINARY"


class UpsertOptions(TypedDict, total=False):
    """The rules of an upsert by Spark: the rules of `LanceTable.upsert`, and `"delete"` for `when_matched`."""

    when_matched: Literal["update", "keep", "delete"]
    when_not_matched: Literal["insert", "ignore"]
    when_missing: Literal["keep", "delete"]
    missing_where: str | None


def upsert_frame(
    df: DataFrame,
    table: LanceTable,
    on: Sequence[str],
    branch: str = "main",
    *,
    message: str | None = None,
    properties: Properties = None,
    **rules: Unpack[UpsertOptions],
) -> WriteResult:
    """Update the rows whose key occurs in a Spark frame and insert its other rows, in one commit.

    Spark matches the keys with a shuffle, and its executors write the rows; no row comes to this process. When another
    commit changed one of the rows meanwhile, the frame is computed again.

    Args:
        df: The rows. They may lack columns of the table: rows that change keep their values there. Spark reads and
            writes these values, so none of these columns may hold timestamps or durations in nanoseconds, decimals of
            more than 38 digits or blobs: `LanceTable.upsert` keeps them.
        table: The table.
        on: The key columns, of single values. NaN equals NaN, and 0.0 and -0.0 differ. Half-precision floats and
            nanoseconds, for which Spark has no type, cannot be keys.
        branch: The branch.
        message: The message of the commit.
        properties: Kept with the commit.
        **rules: The rules of `LanceTable.upsert`, without a condition for `when_matched`.

    Raises:
        InvalidInputError: A key comes twice, a key column is not there, a rule is unknown, or Spark cannot keep the
            values of a column that the frame lacks.
        SchemaMismatchError: The rows do not fit the table.
        CommitConflictError: Other writers changed the same rows again and again.
    """

    def attempt() -> WriteResult:
        staged = stage_upsert(df, table, on, branch, **rules)
        return table.upsert(staged, on=staged.on, branch=branch, message=message, properties=properties)

    return repeated(attempt, is_retryable_conflict, times=_ATTEMPTS)


def delete_keys(
    df: DataFrame,
    table: LanceTable,
    on: Sequence[str],
    branch: str = "main",
    *,
    message: str | None = None,
    properties: Properties = None,
) -> WriteResult:
    """Delete the rows whose key occurs in a Spark frame, once or several times, in one commit; see `upsert_frame`.

    Raises:
        InvalidInputError: A key column is not there.
        CommitConflictError: Other writers changed the same rows again and again.
    """
    check_frame(df, table)
    schema = table.schema(branch)
    df = with_table_names(df, schema)
    on = meant_names(df.sparkSession, string_list("on", on, "id"), schema.names)
    missing = [name for name in on if name not in df.columns]
    if missing:
        raise InvalidInputError(f"the frame has no key column {missing[0]!r}; it has {', '.join(df.columns)}")
    # A key may come twice. Spark's `distinct` would replace -0.0 by 0.0, which is a different key. Columns are selected
    # by position, since Spark takes `id` for `ID`.
    numbered = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    keys = numbered.select(*(f"c{df.columns.index(name)}" for name in on)).toDF(*on)
    return upsert_frame(
        keys,
        table,
        on,
        branch,
        message=message,
        properties=properties,
        when_matched="delete",
        when_not_matched="ignore",
    )


def stage_upsert(
    df: DataFrame, table: LanceTable, on: Sequence[str], branch: str = "main", **rules: Unpack[UpsertOptions]
) -> StagedUpsert:
    """Match the rows of a Spark frame with the rows of a branch and write them, for `table.upsert`.

    The arguments and errors are the same as for `upsert_frame`.
    """
    check_frame(df, table)
    check_options(stage_upsert, rules, UpsertOptions)
    schema = table.schema(branch)
    df = with_table_names(df, schema)
    on = meant_names(df.sparkSession, string_list("on", on, "id"), schema.names)
    frame_columns = pa.schema([column for column in schema if column.name in df.columns])
    check_fits(df.schema, frame_columns, names=schema.names)
    return stage_upsert_counted(df, KeyedWrite(table=table, branch=branch, on=on, rules=rules), RowTally())


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedWrite:
    """Where rows are upserted, and by which keys and rules.

    Attributes:
        table: The table.
        branch: The branch.
        on: The key columns.
        rules: The rules.
        schema: The columns that the branch has when the rows are committed, where it still lacks a column or has
            numbers of another type. None for the present columns of the branch.
    """

    table: LanceTable
    branch: str
    on: Sequence[str]
    rules: UpsertOptions
    schema: pa.Schema | None = None


def stage_upsert_counted(df: DataFrame, write: KeyedWrite, tally: RowTally) -> StagedUpsert:
    """Match and write rows as `stage_upsert` does, and count them on the executors.

    Numbers, also numbers in keys, are cast to the types of the table when their values fit.
    """
    rules, table = write.rules, write.table
    # Values of a `Literal` type are checked by type checkers only.
    for rule, rule_type in typing.get_type_hints(UpsertOptions).items():
        if rule in rules and (choices := get_args(rule_type)) and NoneType not in choices:
            check_names(f"value of {rule}", [str(rules.get(rule))], choices)
    if rules.get("missing_where") is not None and rules.get("when_missing") != "delete":
        raise InvalidInputError("missing_where limits what when_missing='delete' deletes; give both")
    keys = string_list("on", write.on, "id")
    # The target is made after the version was read: should the columns change meanwhile, the commit is refused.
    version = table.head(write.branch)
    target = table.write_target(write.schema, write.branch).with_ranges(keys)
    _check_keys(df, target.schema, keys)
    # Without rows, the columns of the version may be any.
    stored = table.schema(version) if version.rows else pa.schema([])
    frame_upsert = _Upsert(
        df=df, table=table, version=version, stored=stored, on=keys, rules=rules, target=target, scope=tally.scope
    )
    return frame_upsert.staged(tally)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upsert:
    """An upsert of one frame on one version: `stored` are its columns, `target` has the columns of the commit."""

    df: DataFrame
    table: LanceTable
    version: Version
    stored: pa.Schema
    on: tuple[str, ...]
    rules: UpsertOptions
    target: WriteTarget
    scope: RowScope | None

    def staged(self, tally: RowTally) -> StagedUpsert:
        """Write the rows and return their description."""
        check_kept(pa.schema([self.stored.field(name) for name in self._kept_columns if name in self.stored.names]))
        names = [*self.df.columns, *self._kept_columns]
        task = _Task(self.target, tuple(names), self.on, self.rules, self.scope)
        frame = narrowed(self._matched())
        with (
            large_batches(self.df.sparkSession, self.target.schema, self.target.stored_row_bytes),
            errors_of_executors(),
        ):
            results = [json.loads(row.result) for row in frame.mapInArrow(task.run, "result string").collect()]
        twice = next((result["twice"] for result in results if result["twice"]), None)
        if twice:
            raise InvalidInputError(f"two of the rows have the key {twice}; each key may come once")
        for result in results:
            tally.absorb(result["tally"])
        return StagedUpsert(
            version=self.version.number,
            on=self.on,
            columns=tuple(self.df.columns),
            updated=self._files(results, "updated"),
            addresses=_addresses(results, "addresses"),
            added=self._files(results, "added"),
            # Several rows with one key delete a row once, and several tasks may have such rows.
            missing=np.unique(_addresses(results, "missing")),
            claimed=_claimed(results, self.on, self.target.schema),
            null_keys={name: sum(result["nulls"].get(name, 0) for result in results) for name in self.on},
        )

    @property
    def _kept_columns(self) -> list[str]:
        """The columns of the table that the frame lacks, whose values stay in rows that are written again."""
        if self.rules.get("when_matched", "update") != "update":
            return []
        return [name for name in self.target.schema.names if name not in self.df.columns]

    @property
    def _keys(self) -> "list[tuple[str, pa.DataType, DataType]]":
        """The keys with their types in the table when the rows are committed, in Arrow and in Spark."""
        keys = pa.schema([self.target.schema.field(name) for name in self.on])
        return [
            (name, keys.field(name).type, column.dataType)
            for name, column in zip(self.on, readable_schema(keys), strict=True)
        ]

    def _files(self, results: Sequence[dict[str, Any]], kind: str) -> StagedFiles:
        files = tuple(StagedFile(**file) for result in results for file in result[kind])
        return StagedFiles(self.target.schema, files, self.target.base)

    def _matched(self) -> DataFrame:
        """Return the rows with the values that are kept, the kind of each row and the address of its predecessor."""
        columns = [f"c{number}" for number in range(len(self.df.columns))]
        numbered = self.df.toDF(*columns)
        # Counted by a window and not by a group: a frame may give other rows each time that it is computed.
        times = functions.count(functions.lit(1)).over(Window.partitionBy(*self._given_keys(numbered)))
        source = numbered.select("*", functions.lit(1).alias("given"), times.alias("times"))
        deletes = self.rules.get("when_missing") == "delete"
        existing = self._existing()
        stored_keys = [_compared(existing[f"k{n}"], kind) for n, (_, kind, _) in enumerate(self._keys)]
        pairs = zip(self._given_keys(source), stored_keys, strict=True)
        same = functools.reduce(Column.__and__, [frame_key == stored_key for frame_key, stored_key in pairs])
        # A broadcast, which Spark prefers for a small table, would bring the keys to the driver.
        joined = source.join(existing.hint("merge"), same, "full" if deletes else "left")
        in_frame, in_table = functions.col("given").isNotNull(), functions.col("address").isNotNull()
        kind = functions.when(in_frame & in_table, _UPDATED).when(in_frame, _ADDED).otherwise(_MISSING)
        matched = joined.select(
            *columns,
            *[f"r{n}" for n in range(len(self._kept_columns))],
            "address",
            "times",
            "within",
            kind.alias("kind"),
        )
        # Updated rows come before inserted rows, and rows in the order of their addresses take less space.
        return matched.sortWithinPartitions("kind", "address")

    def _given_keys(self, source: DataFrame) -> list[Column]:
        """Return the expressions by which the keys of the frame, whose columns are numbered, are compared."""
        columns = {name: _by_bytes(source, f"c{number}") for number, name in enumerate(self.df.columns)}
        return [
            _compared(_as_number(columns[name], self.df.schema[name].dataType, key_type), kind)
            for name, kind, key_type in self._keys
        ]

    def _existing(self) -> DataFrame:
        """Return the keys, kept values and addresses of the rows of the version, and which may be deleted."""
        names = (*self.on, *self._kept_columns)
        # A column that is added before the rows are committed is null in the rows that are there.
        scanned = [name for name in names if name in self.stored.names] or [ROW_ID]
        rows = self._scanned(scanned)
        types = {name: rows.schema[n].dataType for n, name in enumerate(scanned)}
        stored_values = {name: rows[f"s{n}"] for n, name in enumerate(scanned)}
        values = [stored_values.get(name, functions.lit(None)) for name in names]
        keys = [
            _as_number(value, types.get(name, NullType()), key_type)
            for value, (name, _, key_type) in zip(values, self._keys, strict=False)
        ]
        rows = rows.select(
            *(key.alias(f"k{n}") for n, key in enumerate(keys)),
            *(value.alias(f"r{n}") for n, value in enumerate(values[len(keys) :])),
            "address",
        )
        condition = self.rules.get("missing_where")
        if condition is None or not self.version.rows:
            return rows.withColumn("within", functions.lit(1))
        flagged = self._within(condition).select("place", functions.lit(1).alias("within"))
        return rows.join(flagged, functions.col("address") == functions.col("place"), "left").drop("place")

    def _within(self, condition: str) -> DataFrame:
        """Return the addresses of the rows of the version that satisfy a condition on the columns of the target."""
        within = None if self.scope is None or self.scope.within.predicate != condition else self.scope.within
        condition_columns = () if within is None else within.columns
        same = all(
            name in self.stored.names and self.stored.field(name).type == self._column(name).type
            for name in condition_columns
        )
        if within is None or same:
            return self._scanned([ROW_ID], condition).select(functions.col("address").alias("place"))
        # Lance cannot compare values with literals of the type that the column gets.
        scanned = [name for name in condition_columns if name in self.stored.names] or [ROW_ID]
        task = functools.partial(
            _places_within, within, scanned, pa.schema([self._column(name) for name in condition_columns])
        )
        return self._scanned(scanned).mapInArrow(task, "place long")

    def _column(self, name: str) -> "pa.Field[Any]":
        return self.target.schema.field(name)

    def _scanned(self, columns: Sequence[str], filter: str | None = None) -> DataFrame:
        """Return columns of the rows of the version, which are numbered, and the addresses."""
        scan = replace(Scan.plan(self.table, self.version, columns=columns, filter=filter), addressed=True)
        frame = scan_frame(self.df.sparkSession, scan, fragment_sizes(scan), "upsert_keys")
        return frame.toDF(*(f"s{n}" for n in range(len(columns))), "address")


def _places_within(
    within: RowFilter, names: Sequence[str], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the addresses of the rows that satisfy a condition after they are cast; runs on an executor."""
    for batch in batches:
        in_condition = batch.select([n for n, name in enumerate(names) if name in schema.names])
        rows = to_table_batch(in_condition.rename_columns([name for name in names if name in schema.names]), schema)
        placed = pa.Table.from_batches([rows]).append_column("place", batch.column("address"))
        yield from within.inside(placed).select(["place"]).combine_chunks().to_batches()


def _check_keys(df: DataFrame, schema: pa.Schema, on: Sequence[str]) -> None:
    """Refuse keys that cannot be compared, and columns that do not fit the table.

    Raises:
        InvalidInputError: There is no key, or it is not in the table, or Spark cannot compare its values.
        SchemaMismatchError: A key column does not fit, or is missing.
    """
    if not on or len(set(on)) < len(on):
        raise InvalidInputError(f"an upsert needs key columns, each once, such as on=['id']; not {[*on]}")
    for name in on:
        if name not in schema.names:
            raise InvalidInputError(f"no column {name!r} to be a key; the table has {', '.join(schema.names)}")
        if name not in df.columns:
            raise SchemaMismatchError(f"column {name!r} is the key, and missing")
        kind = _single(schema.field(name).type)
        # Spark would read half-precision floats in single precision, and cut nanoseconds off.
        if pa.types.is_nested(kind) or pa.types.is_float16(kind) or getattr(kind, "unit", None) == "ns":
            raise InvalidInputError(
                f"column {name!r} is {schema.field(name).type}, which cannot be a key of an upsert by Spark; give "
                "columns of single values that Spark has a type for, such as numbers, strings and dates"
            )
    _check_types(df, schema, on)


def _as_number(key: Column, frame_type: DataType, key_type: DataType) -> Column:
    """Return a key of numbers in the type of the table, in which it is compared as the table compares it.

    A number that does not fit becomes another number or a null. The task that writes its row refuses the row.
    """
    return key if frame_type == key_type or not isinstance(key_type, NumericType) else key.try_cast(key_type)


def _check_types(df: DataFrame, schema: pa.Schema, on: Sequence[str]) -> None:
    frame_keys = target_schema(StructType([df.schema[name] for name in on]))
    others = [name for name in on if not all(is_number(side.field(name).type) for side in (frame_keys, schema))]
    check_fits(StructType([df.schema[name] for name in others]), pa.schema([schema.field(name) for name in others]))


def _by_bytes(source: DataFrame, name: str) -> Column:
    """Return a column of a frame, text without its collation: Spark does not compare text of two collations."""
    kind = source.schema[name].dataType
    return functions.collate(source[name], _UTF8) if isinstance(kind, StringType) and kind != _PLAIN else source[name]


def _compared(key: Column, kind: pa.DataType) -> Column:
    """Return what Spark compares to find the keys equal that `LanceTable.upsert` finds equal."""
    # As texts, each number differs from all others, and NaN equals NaN. Spark takes 0.0 and -0.0 for one number and may
    # replace either by the other in a condition, so the condition must compare texts alone, and no numbers.
    return key.cast("string") if pa.types.is_floating(_single(kind)) else key


def _single(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary, and any other type as it is."""
    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


@dataclass(frozen=True, slots=True)
class _Task:
    """What one task of the join does; it is sent to executors."""

    target: WriteTarget
    names: tuple[str, ...]
    on: tuple[str, ...]
    rules: UpsertOptions
    scope: Any

    @property
    def only_deletes(self) -> bool:
        """Whether no row of the frame is written, so that several may have the same key."""
        return self.rules.get("when_matched") == "delete" and self.rules.get("when_not_matched") == "ignore"

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task and yield the description of what was written."""
        begin_task()
        check_visible(self.target)
        no_keys = {
            name: comparable_values(pa.chunked_array([], self.target.schema.field(name).type), name) for name in self.on
        }
        result = _Result(RowTally(self.scope), no_keys)
        for kind, group in itertools.groupby(_by_kind(batches), key=lambda part: part[0]):
            self._write(kind, (batch for _, batch in group), result)
        yield pa.record_batch({"result": pa.array([result.encoded()], pa.string())})

    def _write(self, kind: int, parts: Iterable[pa.RecordBatch], result: "_Result") -> None:
        rows = self._rows(kind, parts, result)
        rule = {
            _UPDATED: self.rules.get("when_matched", "update"),
            _ADDED: self.rules.get("when_not_matched", "insert"),
        }.get(kind)
        if rule in ("update", "insert"):
            files = write_files(self.target, result.tally.passing(rows))
            (result.updated if kind == _UPDATED else result.added).extend(files)
            return
        # The addresses and keys are noted while the rows are read.
        for _ in rows:
            continue
        if kind == _UPDATED:
            result.missing += [places.unique() for places in result.addresses] if rule == "delete" else []
            result.addresses = []

    def _rows(self, kind: int, parts: Iterable[pa.RecordBatch], result: "_Result") -> Iterator[pa.RecordBatch]:
        """Yield rows in the types of the table, and note their addresses and keys."""
        for part in parts:
            places = part.column("address")
            if kind == _MISSING:
                # Rows outside of `missing_where` stay.
                result.missing.append(places.filter(part.column("within").is_valid()))
                continue
            named = part.select(list(range(len(self.names)))).rename_columns(list(self.names))
            rows = to_table_batch(named, self.target.schema)
            if kind == _UPDATED:
                result.addresses.append(places)
            else:
                for name in self.on:
                    values = comparable_values(pa.chunked_array([rows.column(name)]), name)
                    result.claimed[name] = claimed_values(pa.concat_arrays([result.claimed[name], values]))
            for name in self.on:
                result.nulls[name] = result.nulls.get(name, 0) + rows.column(name).null_count
            if not self.only_deletes:
                result.note_twice(part.column("times"), rows, self.on)
            yield rows


def _by_kind(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of batches whose rows are of one kind; the rows are sorted by it."""
    for batch in batches:
        kinds = batch.column("kind").to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
        for start, stop in itertools.pairwise(edges):
            if start < stop:
                yield int(kinds[start]), batch.slice(start, stop - start)


@dataclass(slots=True)
class _Result:
    tally: RowTally
    claimed: dict[str, Any]
    updated: list[StagedFile] = field(default_factory=list)
    added: list[StagedFile] = field(default_factory=list)
    addresses: list[Any] = field(default_factory=list)
    missing: list[Any] = field(default_factory=list)
    nulls: dict[str, int] = field(default_factory=dict)
    twice: str = ""

    def note_twice(self, times: Any, rows: pa.RecordBatch, on: Sequence[str]) -> None:  # noqa: ANN401 - an Arrow array
        """Note the first key that comes twice; a key with a null in it may."""
        is_repeated: Any = pc.greater(times, pa.scalar(1))
        for name in on:
            is_repeated = pc.and_(is_repeated, rows.column(name).is_valid())
        first = pc.index(is_repeated, pa.scalar(value=True)).as_py()
        if first >= 0 and not self.twice:
            (row,) = shown_rows(rows.select(list(on)).slice(first, 1))
            self.twice = ", ".join(f"{name} = {value!r}" for name, value in row.items())

    def encoded(self) -> str:
        """Return the result as text."""
        keys = pa.table(_padded(self.claimed))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, keys.schema) as stream:
            stream.write_table(keys)
        return json.dumps(
            {
                "updated": [file.described() for file in self.updated],
                "added": [file.described() for file in self.added],
                "addresses": _packed(self.addresses),
                "missing": _packed(self.missing),
                "claimed": base64.b64encode(sink.getvalue().to_pybytes()).decode(),
                "tally": self.tally.encoded(),
                "twice": self.twice,
                "nulls": self.nulls,
            }
        )


def _padded(columns: "dict[str, pa.Array[Any]]") -> "dict[str, pa.Array[Any]]":
    """Return columns of one length, filled up with nulls, which claim nothing."""
    longest = max(map(len, columns.values()))
    return {
        name: pa.concat_arrays([values, pa.nulls(longest - len(values), values.type)])
        for name, values in columns.items()
    }


def _packed(parts: Sequence[Any]) -> str:
    addresses = np.concatenate([np.empty(0, np.int64), *(part.to_numpy(zero_copy_only=False) for part in parts)])
    return base64.b64encode(addresses.astype("<i8").tobytes()).decode()


def _addresses(results: Sequence[dict[str, Any]], kind: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    parts = [np.frombuffer(base64.b64decode(result[kind]), "<i8") for result in results]
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.uint64)


def _claimed(results: Sequence[dict[str, Any]], on: Sequence[str], schema: pa.Schema) -> pa.Table:
    tables = [pa.ipc.open_stream(base64.b64decode(result["claimed"])).read_all() for result in results]
    claimed: dict[str, Any] = {}
    for name in on:
        columns = [chunk for table in tables for chunk in table.column(name).chunks]
        empty = pa.array([], schema.field(name).type)
        claimed[name] = claimed_values(comparable_values(pa.chunked_array(columns or [empty]), name))
    return pa.table(_padded(claimed))
