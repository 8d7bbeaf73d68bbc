# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from lance import LanceDataset
from pyspark.sql import DataFrame, SparkSession

from lance_dagster import (
    InvalidInputError,
    LanceDagsterError,
    LanceIOManager,
    LanceResource,
    LanceTable,
    PinnedTable,
    SchemaMismatchError,
    SparkResource,
    StagedFiles,
    write_files,
)
from lance_dagster.errors import VersionNotFoundError
from tests.plugin.shop import materialize

NUMBERS = dg.AssetKey(["lab", "numbers"])
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})


class FailsAfterWriting(LanceIOManager):
    """An IO manager that fails after the first attempt's commit, as if its answer were lost."""

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Write, then fail once."""
        super().handle_output(context, obj)
        if context.step_context.previous_attempt_count == 0:
            raise ConnectionError("the worker lost its network")


def error_of(result: dg.ExecuteInProcessResult) -> str:
    """The text of the first failure, with its causes."""
    failed = result.get_step_failure_events()[0].step_failure_data
    found, error = [], failed.error
    while error is not None:
        found.append(error.message)
        error = error.cause
    return "\n".join(found)


def written(lake: LanceResource, result: dg.ExecuteInProcessResult) -> pa.Table:
    """The rows that the run wrote, read from its branch."""
    return lake.table(NUMBERS).read(f"run/{result.run_id}")


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        ROWS.to_batches()[0],
        ROWS.to_pandas(),
        pl.DataFrame(ROWS.to_pydict()),
        pl.DataFrame(ROWS.to_pydict()).lazy(),
    ],
    ids=["table", "batch", "pandas", "polars", "lazy"],
)
def test_values_of_every_library_are_stored_equally(lake: LanceResource, value: object) -> None:
    """The same rows give the same table, whatever library the asset uses."""

    @dg.asset(key=NUMBERS)
    def numbers() -> Any:
        return value

    result = materialize(lake, numbers)
    assert result.success
    assert ROWS == written(lake, result)


# The types that pandas 2 and pandas 3 give to texts.
@pytest.mark.parametrize("text", [object, pd.StringDtype(na_value=np.nan)], ids=["pandas 2", "pandas 3"])
def test_text_of_every_pandas_is_stored_equally(lake: LanceResource, text: Any) -> None:
    """Text of pandas 3, in columns, categories and the index, has the types that pandas 2 gives; Arrow's types stay."""

    @dg.asset(key=NUMBERS)
    def numbers() -> pd.DataFrame:
        columns = {
            "name": ["a", None],
            "kind": pd.Categorical(pd.Series(["u", "v"], dtype=text)),
            "note": pd.Series(["x", "y"], dtype=pd.ArrowDtype(pa.large_string())).array,
        }
        return pd.DataFrame(columns, index=pd.Index(["k", "l"], name="key", dtype=text)).astype({"name": text})

    result = materialize(lake, numbers)
    assert result.success
    expected = {
        "name": pa.string(),
        "kind": pa.dictionary(pa.int8(), pa.string()),
        "note": pa.large_string(),
        "key": pa.string(),
    }
    rows = written(lake, result)
    assert expected == dict(zip(rows.schema.names, rows.schema.types, strict=True))
    assert [["a", None], ["u", "v"], ["x", "y"], ["k", "l"]] == [column.to_pylist() for column in rows.columns]


def test_a_file_in_place_of_a_table_or_of_the_lake_is_named(lake: LanceResource) -> None:
    """The step fails with the file's name, and not with a commit that may have landed."""

    @dg.asset(key=NUMBERS)
    def numbers() -> pa.Table:
        return ROWS

    for path in (Path(lake.uri_of(NUMBERS)), Path(lake.root)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.write_bytes(b"1")
        error = error_of(materialize(lake, numbers, raise_on_error=False))
        assert f"InvalidInputError: {path} is a file, and a table or a lake is a folder" in error


def test_stream_is_written_batch_by_batch(lake: LanceResource) -> None:
    """A record batch reader is consumed once, and its rows are counted while they are written."""

    @dg.asset(
        key=NUMBERS, partitions_def=dg.StaticPartitionsDefinition(["a"]), metadata={"lance/partition_expr": "name"}
    )
    def numbers() -> pa.RecordBatchReader:
        batches = pa.table({"id": [0, 1, 2], "name": ["a", "a", "a"]}).to_batches(max_chunksize=1)
        return pa.RecordBatchReader.from_batches(batches[0].schema, batches)

    result = materialize(lake, numbers, partition_key="a")
    (event,) = result.asset_materializations_for_node("lab__numbers")
    assert event.metadata["dagster/partition_row_count"].value == 3
    assert written(lake, result).num_rows == 3


def test_staged_files_are_committed_as_they_are(lake: LanceResource) -> None:
    """Staged files become part of the table without being copied."""

    @dg.asset(key=NUMBERS)
    def numbers() -> StagedFiles:
        table = LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema)
        return StagedFiles(ROWS.schema, write_files(table.write_target(), ROWS.to_batches()))

    result = materialize(lake, numbers)
    assert result.success, error_of(result)
    assert ROWS == written(lake, result)


@pytest.mark.parametrize(
    "kind", [pa.Table, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame, pl.LazyFrame, PinnedTable, LanceDataset, Any]
)
def test_inputs_are_what_they_are_annotated_with(lake: LanceResource, kind: type) -> None:
    """One table, read as every library's own type; without an annotation as a lazy handle."""
    seen: list[object] = []

    @dg.asset(key=NUMBERS)
    def numbers() -> pa.Table:
        return ROWS

    def reader(numbers: Any) -> None:
        seen.append(numbers)
        seen.append(rows_of(numbers))

    reader.__annotations__ = {"numbers": kind, "return": None}
    read = dg.asset(ins={"numbers": dg.AssetIn(NUMBERS)})(reader)
    result = materialize(lake, numbers, read)
    assert result.success, error_of(result)
    assert isinstance(seen[0], PinnedTable if kind is Any else kind)
    assert seen[1] == [1, 2, 3]


def rows_of(value: Any) -> list[int]:
    """The ids in a frame or behind a handle, sorted."""
    if isinstance(value, pl.LazyFrame):
        value = value.filter(pl.col("id") > 0).collect()
    if isinstance(value, PinnedTable):
        value = value.read()
    if isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    if isinstance(value, LanceDataset):
        value = value.to_table()
    return sorted(value["id"].to_pylist() if isinstance(value, pa.Table) else value["id"])


@pytest.mark.slow
def test_spark_frames_go_both_ways(lake: LanceResource, spark: SparkSession) -> None:
    """Executors write and read; an array that is declared as a vector is stored with a fixed length, also later."""
    seen: list[list[int]] = []

    @dg.asset(key=NUMBERS, metadata={"lance/vectors": {"embedding": 2}})
    def numbers() -> DataFrame:
        return spark.createDataFrame([(1, [0.5, 0.25]), (2, [1.0, 2.0])], "id int, embedding array<float>")

    @dg.asset(ins={"numbers": dg.AssetIn(NUMBERS)})
    def reader(numbers: DataFrame) -> None:
        seen.append(sorted(row.id for row in numbers.collect()))

    manager = LanceIOManager(lance=lake, spark=SparkResource())
    assert materialize(lake, numbers, reader).success
    result = materialize(lake, numbers, reader, resources={"io_manager": manager})
    assert result.success, error_of(result)
    assert seen == [[1, 2], [1, 2]]
    assert pa.list_(pa.float32(), 2) == written(lake, result).schema.field("embedding").type


@pytest.mark.parametrize("make", [lambda: pa.table({"v": [[1.0, 2.0]]}), lambda: pd.DataFrame({"v": [[1.0, 2.0]]})])
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_vectors_get_a_fixed_length(lake: LanceResource, make: Any, mode: str) -> None:
    """The metadata for vectors works for lists of every library, when the table is created and later."""

    @dg.asset(key=NUMBERS, metadata={"lance/vectors": {"v": 2}, "lance/write_mode": mode})
    def numbers() -> Any:
        return make()

    result = materialize(lake, numbers)
    assert result.success, error_of(result)
    assert pa.list_(pa.float64(), 2) == written(lake, result).schema.field("v").type


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
def test_retried_step_leaves_no_row_twice(lake: LanceResource, mode: str) -> None:
    """When the first attempt commits and dies, the second one does not add the rows twice."""

    @dg.asset(
        key=NUMBERS,
        retry_policy=dg.RetryPolicy(max_retries=1),
        partitions_def=dg.StaticPartitionsDefinition(["a", "b"]),
        metadata={
            "lance/partition_expr": "name",
            "lance/write_mode": mode,
            **({"lance/keys": ["id"]} if mode == "upsert" else {}),
        },
    )
    def numbers() -> pa.Table:
        return pa.table({"id": [1, 2], "name": ["a", "a"]})

    result = materialize(lake, numbers, partition_key="a", resources={"io_manager": FailsAfterWriting(lance=lake)})
    assert result.success
    assert written(lake, result)["id"].to_pylist() == [1, 2]
    # Created, and two attempts; no fork. Before it matches again, an upsert restores the version before the first one.
    assert len(lake.table(NUMBERS).log(f"run/{result.run_id}")) == (4 if mode == "upsert" else 3)


def test_commit_says_which_run_and_step_made_it(lake: LanceResource) -> None:
    """The log of the table names the run and the step that made a commit."""
    partitions = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(key=NUMBERS, partitions_def=partitions, metadata={"lance/partition_expr": "name"})
    def numbers() -> pa.Table:
        return pa.table({"id": [1], "name": ["a"]})

    result = materialize(lake, numbers, partition_key="a", tags={"dagster/backfill": "bf1"})
    table = lake.table(NUMBERS)
    properties = table.head(f"run/{result.run_id}").properties
    assert properties["dagster/run_id"] == result.run_id
    assert properties["dagster/step_key"] == "lab__numbers"
    assert properties["dagster/asset_key"] == "lab/numbers"
    assert json.loads(properties["dagster/partition_keys"]) == ["a"]
    branch = table.branches.list()[f"run/{result.run_id}"]
    assert branch.metadata["dagster/run_id"] == branch.metadata["dagster/root_run_id"] == result.run_id
    assert branch.metadata["dagster/backfill"] == "bf1"


def test_output_metadata_overrides_the_assets_write_mode(lake: LanceResource) -> None:
    """The write mode in the metadata of an output takes precedence over that of its asset."""

    @dg.asset(key=NUMBERS, metadata={"lance/write_mode": "overwrite"})
    def numbers(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_output_metadata({"lance/write_mode": "append"})
        return ROWS

    LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema).append(ROWS)
    assert written(lake, materialize(lake, numbers)).num_rows == 6


def test_overwrite_may_change_the_columns(lake: LanceResource) -> None:
    """An overwrite that may replace the columns replaces the schema too."""
    LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema).append(ROWS)

    @dg.asset(key=NUMBERS, metadata={"lance/schema_evolution": "replace"})
    def numbers() -> pd.DataFrame:
        return pd.DataFrame({"other": [1.5]}, index=pd.Index(["x"], name="key"))

    assert written(lake, materialize(lake, numbers)).to_pylist() == [{"key": "x", "other": 1.5}]


@pytest.mark.parametrize(
    "index,example",
    [(pd.date_range("2026-01-01", periods=1), "Timestamp"), (["x"], "'x'"), ([(1, "x")], "'x'")],
    ids=["moments", "texts", "levels"],
)
def test_an_index_with_values_needs_a_name(lake: LanceResource, index: Any, example: str) -> None:
    """Its values would be lost without a sign of it; integers are only the places of rows."""

    def materialize(frame: pd.DataFrame) -> dg.ExecuteInProcessResult:
        @dg.asset
        def numbers() -> pd.DataFrame:
            return frame

        return dg.materialize([numbers], resources={"io_manager": LanceIOManager(lance=lake)})

    levels = pd.MultiIndex.from_tuples(index) if isinstance(index[0], tuple) else pd.Index(index)
    frame = pd.DataFrame({"n": [1]}, index=levels)
    with pytest.raises(InvalidInputError, match=f"no name, so its values, such as {example}.*, would not be stored"):
        materialize(frame)
    assert materialize(frame.rename_axis(["at", "in"][: levels.nlevels])).success
    (branch,) = lake.table("numbers").branches.list("run/*")
    assert {"n", *["at", "in"][: levels.nlevels]} == set(lake.table("numbers").schema(branch).names)


def test_an_index_that_is_a_column_too_is_stored_once(lake: LanceResource) -> None:
    """The levels of an index that no column has become columns, and the others are left out."""

    @dg.asset(key=NUMBERS)
    def numbers() -> pd.DataFrame:
        frame = pd.DataFrame({"a": [1], "b": [2], "c": [3]})
        return frame.set_index(["a", "c"], drop=False).drop(columns="c")

    assert written(lake, materialize(lake, numbers)).to_pylist() == [{"a": 1, "b": 2, "c": 3}]


def test_rows_that_do_not_fit_are_refused(lake: LanceResource) -> None:
    """The error for an append with another column names the column, and the branch has no new version."""
    LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema).append(ROWS)

    @dg.asset(key=NUMBERS, metadata={"lance/write_mode": "append"})
    def numbers() -> pa.Table:
        return ROWS.append_column("extra", pa.array([1, 2, 3]))

    result = materialize(lake, numbers)
    assert SchemaMismatchError.__name__ in error_of(result)
    assert "column 'extra' is int64 and not in the table" in error_of(result)
    assert written(lake, result).num_rows == 3


def returned(value: object, **metadata: object) -> dg.AssetsDefinition:
    """An asset that returns a value."""

    @dg.asset(key=NUMBERS, metadata=metadata)
    def numbers() -> Any:
        return value

    return numbers


@pytest.mark.parametrize(
    "asset,says",
    [
        (returned(None), "lab/numbers returned None"),
        (returned(7), "rows cannot be returned or taken as builtins.int"),
        (
            returned(ROWS, **{"lance/write_mode": "trunc"}),
            "'overwrite', 'replace', 'upsert', not 'trunc'",
        ),
        (returned(ROWS, **{"lance/write_mode": "replace"}), "'replace' of lab/numbers needs partitions"),
        (returned(ROWS, **{"lance/vectors": {"name": 3}}), "'name', which is string and not a list"),
        (returned(ROWS, **{"lance/vectors": 3}), "lance/vectors must be {column: length}, not 3"),
        (returned(pd.DataFrame({"a": [1, "x"]})), "Conversion failed for column a with type object; give each column"),
        (returned(pd.DataFrame([[1, 2]], columns=["a", "a"])), "cannot be stored: Duplicate column names found"),
        (returned([{"a": 1}, {"a": "x"}]), "column 'a' of a list of dicts cannot be stored"),
        (returned([{1: 1}]), "the keys of a dict are the names of columns, and so text, not 1"),
    ],
)
def test_output_that_cannot_work_is_refused_before_anything_is_written(
    lake: LanceResource, asset: dg.AssetsDefinition, says: str
) -> None:
    """An output that cannot work is one error, and no table is created."""
    assert says in error_of(materialize(lake, asset))
    assert not LanceTable.exists(lake.uri_of(NUMBERS))


def test_output_of_a_plain_op_is_refused(lake: LanceResource) -> None:
    """The output of a plain op is refused, because there is no asset whose table could store it."""

    @dg.op
    def make() -> int:
        return 1

    @dg.job(resource_defs={"io_manager": LanceIOManager(lance=lake)})
    def plain() -> None:
        make()

    assert "belongs to no asset" in error_of(plain.execute_in_process(raise_on_error=False))


@pytest.mark.parametrize(
    "fields,says",
    [
        ({"write_mode": "trunc"}, "write_mode is one of"),
        ({"writemode": "append"}, "LanceIOManager has no field 'writemode'; did you mean 'write_mode'?"),
    ],
)
def test_wrong_field_is_refused_where_it_is_written(lake: LanceResource, fields: dict[str, Any], says: str) -> None:
    """A misspelt field, which pydantic would ignore, is refused where it is written."""
    with pytest.raises(InvalidInputError) as caught:
        LanceIOManager(lance=lake, **fields)
    assert says in str(caught.value)


def read_with(lake: LanceResource, kind: type, **metadata: object) -> tuple[dg.ExecuteInProcessResult, list[Any]]:
    """Read the table of numbers from an asset of its own run."""
    seen: list[Any] = []

    def reader(numbers: Any) -> None:
        seen.append(numbers)

    reader.__annotations__ = {"numbers": kind, "return": None}
    read = dg.asset(ins={"numbers": dg.AssetIn(NUMBERS, metadata=metadata)})(reader)
    return materialize(lake, dg.AssetSpec(NUMBERS), read), seen


def test_input_can_be_pinned_and_narrowed(lake: LanceResource) -> None:
    """AssetIn metadata names a version, columns and a filter."""
    table = LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    wanted = {"lance/ref": "main@2", "lance/columns": ["id"], "lance/filter": "id > 1"}
    assert read_with(lake, pa.Table, **wanted)[1] == [pa.table({"id": [2, 3]})]
    assert read_with(lake, pl.LazyFrame, **wanted)[1][0].collect().to_dict(as_series=False) == {"id": [2, 3]}
    (pinned,) = read_with(lake, PinnedTable, **wanted)[1]
    assert ("main@2", 2) == (pinned.ref, pinned.count_rows())
    result, _ = read_with(lake, LanceDataset, **{"lance/filter": "id > 1"})
    assert "which a lance.LanceDataset cannot carry" in error_of(result)
    result, _ = read_with(lake, pa.Table, **{"lance/columns": "id"})
    assert "lance/columns must be a list of texts such as [\"id\"], not 'id'" in error_of(result)


def test_input_of_a_table_nobody_wrote(lake: LanceResource) -> None:
    """The error for a missing table names the table and the place where it should be."""
    result, _ = read_with(lake, pa.Table)
    assert f"no table lab/numbers at {lake.uri_of(NUMBERS)}: no run has written it yet" in error_of(result)


def test_runs_own_branch_is_named_by_a_tag(lake: LanceResource) -> None:
    """A run tagged lance/branch works on that branch, and later runs with the tag read it."""
    tags = {"lance/branch": "dev"}
    materialize(lake, returned(ROWS), tags=tags)
    table = lake.table(NUMBERS)
    assert table.count_rows("dev") == 3
    assert table.count_rows("main") == 0


def test_run_that_is_told_to_write_main(lake: LanceResource) -> None:
    """A run whose tag tells it to write main is refused, since nothing would audit its rows."""
    result = materialize(lake, returned(ROWS), tags={"lance/branch": "main"})
    assert "tag lance/branch names main" in error_of(result)
    assert lake.table(NUMBERS).count_rows() == 0


@pytest.mark.parametrize("prefix", ["published/", "preview/", "reads/"])
def test_run_that_is_told_to_write_a_branch_of_publications(lake: LanceResource, prefix: str) -> None:
    """A run whose tag names a branch of the package's own namespaces is refused: such branches are deleted."""
    result = materialize(lake, returned(ROWS), tags={"lance/branch": f"{prefix}x"})
    assert f"tag lance/branch names {prefix}x" in error_of(result)
    assert {} == lake.table(NUMBERS).branches.list(f"{prefix}*")


@pytest.mark.parametrize("tag", ["lance/brnch", "lance_branch", "Lance/Branch"])
def test_misspelt_tag_of_a_run(lake: LanceResource, tag: str) -> None:
    """A run with a tag that resembles lance/branch fails before its first step; other tags are the user's own."""
    failed = materialize(lake, returned(ROWS), tags={tag: "dev"}).get_run_failure_event()
    assert f"tag '{tag}' would be ignored; did you mean 'lance/branch'?" in str(failed.job_failure_data.error)
    assert materialize(lake, returned(ROWS), tags={"git/branch": "dev", "release": "a"}).success


def test_direct_calls_write_and_read_main(lake: LanceResource) -> None:
    """Calls outside of a run, as in a unit test, write and read main, since there is no run branch."""
    manager = LanceIOManager(lance=lake)
    manager.handle_output(dg.build_output_context(asset_key=NUMBERS), ROWS)
    assert rows_of(manager.load_input(dg.build_input_context(asset_key=NUMBERS))) == [1, 2, 3]
    output = dg.build_output_context(asset_key=NUMBERS, run_id="r1")
    manager.handle_output(output, ROWS.slice(0, 1))
    loaded = manager.load_input(dg.build_input_context(asset_key=NUMBERS, upstream_output=output))
    assert rows_of(loaded) == [1]
    assert lake.table(NUMBERS).count_rows() == 3


def test_value_is_loaded_outside_of_a_run(lake: LanceResource) -> None:
    """`load_asset_value`, which has no run, reads the ref of the resource."""
    LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema).append(ROWS)
    definitions = dg.Definitions([returned(ROWS)], resources={"io_manager": LanceIOManager(lance=lake)})
    assert ROWS == definitions.load_asset_value(NUMBERS, python_type=pa.Table)


# Definitions of Dagster 1.13 hand the metadata on under a deprecated name.
DEPRECATED = pytest.mark.filterwarnings("ignore:Parameter `metadata` of function:DeprecationWarning")
LOADED: dict[str, tuple[Any, dict[str, Any], list[int]]] = {
    "columns": (pa.Table, {"lance/columns": ["id"]}, [1, 2, 3]),
    "rows": (pa.Table, {"lance/filter": "id > 1"}, [2, 3]),
    "a version": (pa.Table, {"lance/ref": "main@2"}, [1, 2, 3]),
    "rows as dictionaries": (list[dict[str, Any]], {"lance/filter": "id > 1"}, [2, 3]),
}


@DEPRECATED
@pytest.mark.parametrize("case", LOADED)
def test_value_is_loaded_with_metadata(lake: LanceResource, case: str) -> None:
    """Metadata narrows the value as it does an input, from definitions, a repository and a loader of values."""
    LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema).append(ROWS)
    definitions = dg.Definitions([returned(ROWS)], resources={"io_manager": LanceIOManager(lance=lake)})
    kind, metadata, expected = LOADED[case]
    with definitions.get_asset_value_loader() as loader:
        for program in (definitions, definitions.get_repository_def(), loader):
            value: Any = program.load_asset_value(NUMBERS, python_type=kind, metadata=metadata)
            assert expected == sorted(row["id"] for row in (value if isinstance(value, list) else value.to_pylist()))


NOT_LOADED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a misspelt setting": (pa.Table, {"lance/colums": ["id"]}, "did you mean 'lance/columns'?"),
    "an unknown column": (pa.Table, {"lance/columns": ["x"]}, "the value of lab/numbers: "),
    "an unknown ref": (pa.Table, {"lance/ref": "prodution"}, "'prodution'"),
    "a type": (set[str], {}, "the value of lab/numbers is annotated with "),
    "a dict": (dict[str, pa.Table], {}, "annotated as a dict by partition, and no partitions were asked for"),
}


@DEPRECATED
@pytest.mark.parametrize("case", NOT_LOADED)
def test_value_that_cannot_be_loaded(lake: LanceResource, case: str) -> None:
    """The error is that of the value, although there is no input that it could name."""
    LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema).append(ROWS)
    definitions = dg.Definitions([returned(ROWS)], resources={"io_manager": LanceIOManager(lance=lake)})
    kind, metadata, says = NOT_LOADED[case]
    with pytest.raises(LanceDagsterError) as caught:
        definitions.load_asset_value(NUMBERS, python_type=kind, metadata=metadata)
    assert says in str(caught.value)


def test_value_of_which_nothing_was_published(lake: LanceResource) -> None:
    """The error says what to ask for."""
    LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema)
    definitions = dg.Definitions([returned(ROWS)], resources={"io_manager": LanceIOManager(lance=lake)})
    with pytest.raises(VersionNotFoundError, match="ask for Optional"):
        definitions.load_asset_value(NUMBERS, python_type=pa.Table)
    optional: Any = pa.Table | None
    assert definitions.load_asset_value(NUMBERS, python_type=optional) is None
