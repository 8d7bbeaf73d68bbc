# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceIOManager, LanceResource, LanceTable, StagedFiles
from tests.plugin.shop import failure

STOCK = dg.AssetKey(["shop", "stock"])
REGIONS = dg.StaticPartitionsDefinition(["a", "b"])


class FailsAfterWriting(LanceIOManager):
    """An IO manager that fails after the commit of the first attempts, as if its answer were lost."""

    failures: int = 1

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Write, then fail."""
        super().handle_output(context, obj)
        if context.step_context.previous_attempt_count < self.failures:
            raise ConnectionError("the worker lost its network")


def upsert(
    lake: LanceResource, value: object, key: str | None = None, manager: Any = None, **settings: Any
) -> dg.ExecuteInProcessResult:
    """Upsert a value on one branch for all runs, with or without partitions."""
    metadata: dict[str, Any] = {"lance/write_mode": "upsert", "lance/keys": ["id"], **settings}
    partitions: dict[str, Any] = {"partitions_def": REGIONS} if key else {}
    if key:
        metadata["lance/partition_expr"] = "region"

    policy = dg.RetryPolicy(max_retries=1) if manager else None
    options: Any = {"metadata": metadata, "retry_policy": policy, **partitions}

    def stock() -> Any:
        return value

    resources = {"io_manager": manager or LanceIOManager(lance=lake)}
    return dg.materialize(
        [dg.asset(key=STOCK, **options)(stock)], resources=resources, tags={"lance/branch": "dev"}, partition_key=key
    )


def when(missing: str) -> dict[str, Any]:
    """The setting for rows that an output lacks."""
    return {"lance/when_missing": missing}


def rows(region: str, **amounts: int) -> pa.Table:
    """A row for each id."""
    columns: dict[str, pa.DataType] = {"id": pa.string(), "region": pa.string(), "n": pa.int64()}
    listed = [{"id": name, "region": region, "n": number} for name, number in amounts.items()]
    return pa.Table.from_pylist(listed, schema=pa.schema(columns))


def found(lake: LanceResource) -> dict[Any, Any]:
    """The amount of each id."""
    table = lake.table(STOCK).read("dev")
    assert len(table) == len(set(table["id"].to_pylist()))
    return dict(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))


def test_upsert_updates_and_inserts_by_key(lake: LanceResource) -> None:
    """Rows that the output lacks stay; the first run creates the table."""
    upsert(lake, rows("a", x=1, y=2))
    upsert(lake, rows("a", y=3, z=4).to_pandas())
    assert {"x": 1, "y": 3, "z": 4} == found(lake)
    head = lake.table(STOCK).head("dev")
    assert "shop/stock" == head.properties["dagster/asset_key"]


def test_upsert_deletes_what_is_missing_in_one_commit(lake: LanceResource) -> None:
    """With `lance/when_missing: delete` the output is the whole table."""
    upsert(lake, rows("a", x=1, y=2))
    before = lake.table(STOCK).head("dev").number
    upsert(lake, rows("a", y=3, z=4), **when("delete"))
    assert {"y": 3, "z": 4} == found(lake)
    assert before + 1 == lake.table(STOCK).head("dev").number


def test_upsert_of_a_partition_deletes_only_there(lake: LanceResource) -> None:
    """Rows of other partitions are not missing in the output of one."""
    upsert(lake, rows("a", x=1, y=2), "a")
    upsert(lake, rows("b", u=1, v=2), "b")
    before = lake.table(STOCK).head("dev").number
    upsert(lake, rows("a", y=5), "a", **when("delete"))
    assert {"y": 5, "u": 1, "v": 2} == found(lake)
    assert before + 1 == lake.table(STOCK).head("dev").number
    upsert(lake, rows("b"), "b", **when("delete"))
    assert {"y": 5} == found(lake)


@pytest.mark.parametrize("missing", ["keep", "delete"])
def test_retried_upsert_leaves_each_key_once(lake: LanceResource, missing: str) -> None:
    """When the first attempt commits and dies, the second one leaves each key once."""
    upsert(lake, rows("a", x=1, y=2))
    manager = FailsAfterWriting(lance=lake)
    upsert(lake, rows("a", y=3, z=4), manager=manager, **when(missing))
    assert {"x": 1, "y": 3, "z": 4} == found(lake) if missing == "keep" else {"y": 3, "z": 4} == found(lake)


def retried(
    lake: LanceResource, attempts: list[pa.Table], meanwhile: Any = lambda: None, tags: Any = None, **settings: Any
) -> dg.ExecuteInProcessResult:
    """Run a step whose attempts return these rows; all but the last one fail after their commit."""
    options: Any = {"metadata": settings, "retry_policy": dg.RetryPolicy(max_retries=len(attempts) - 1)}

    def stock(context: dg.AssetExecutionContext) -> Any:
        if context.retry_number:
            meanwhile()
        return attempts[context.retry_number]

    manager = FailsAfterWriting(lance=lake, failures=len(attempts) - 1)
    return dg.materialize(
        [dg.asset(key=STOCK, **options)(stock)], resources={"io_manager": manager}, tags=tags, raise_on_error=False
    )


UPSERT = {"lance/write_mode": "upsert", "lance/keys": ["id"]}


def test_retried_upsert_keeps_no_key_of_the_earlier_attempts(lake: LanceResource) -> None:
    """Keys that only earlier attempts had are not in the table, and those that they updated have their old values."""
    table = LanceTable.create(lake.uri_of(STOCK), rows("a").schema, config={"dagster/asset": "shop/stock"})
    table.append(rows("a", x=1, y=2))
    attempts = [rows("a", x=7, z=7), rows("a", y=8, u=8), rows("a", x=3)]
    assert retried(lake, attempts, **UPSERT).success
    (branch,) = table.branches.list("run/*")
    assert {"x": 3, "y": 2} == dict(zip(*table.read(branch).select(["id", "n"]).to_pydict().values(), strict=True))


@pytest.mark.parametrize("key", ["w", "x"], ids=["another row", "the same row"])
def test_retried_upsert_on_a_branch_that_others_write(lake: LanceResource, key: str) -> None:
    """Only the rows of the earlier attempt are taken back; the step fails when another commit builds on them."""
    upsert(lake, rows("a", x=1))
    table = lake.table(STOCK)

    def meanwhile() -> None:
        table.upsert(rows("a", **{key: 9}), on=["id"], branch="dev")

    attempts = [rows("a", x=7, z=7), rows("a", y=3)]
    result = retried(lake, attempts, meanwhile, {"lance/branch": "dev"}, **UPSERT)
    if key == "w":
        assert {"x": 1, "w": 9, "y": 3} == found(lake)
    else:
        assert "cannot be taken back, because later commits build on them" in failure(result, "shop__stock")
        assert {"x": 9, "z": 7} == found(lake)


@pytest.mark.parametrize("mode", ["overwrite", "append", "upsert"])
def test_retried_output_keeps_no_column_of_the_earlier_attempts(lake: LanceResource, mode: str) -> None:
    """A column that only an earlier attempt added is not in the table, and one that it widened is not wider."""
    table = LanceTable.create(lake.uri_of(STOCK), rows("a").schema, config={"dagster/asset": "shop/stock"})
    table.append(rows("a", x=1))
    wide = pa.table({"id": ["y"], "region": ["a"], "n": [1.5], "oops": [1]})
    settings = UPSERT if mode == "upsert" else {"lance/write_mode": mode}
    assert retried(lake, [wide, rows("a", y=2)], **settings, **{"lance/schema_evolution": "widen"}).success
    (branch,) = table.branches.list("run/*")
    assert rows("a").schema == table.schema(branch)
    assert [2] == table.read(branch, filter="id = 'y'")["n"].to_pylist()


def test_retried_append_widens_a_column(lake: LanceResource) -> None:
    """An attempt whose rows need a wider column replaces those of one whose rows did not."""
    table = LanceTable.create(lake.uri_of(STOCK), rows("a").schema, config={"dagster/asset": "shop/stock"})
    table.append(rows("a", x=1))
    wide = pa.table({"id": ["y"], "region": ["a"], "n": [1.5]})
    settings = {"lance/write_mode": "append", "lance/schema_evolution": "widen"}
    assert retried(lake, [rows("a", y=1), wide], **settings).success
    (branch,) = table.branches.list("run/*")
    assert [1.0, 1.5] == table.read(branch)["n"].to_pylist()


def test_empty_upsert_is_a_version_all_the_same(lake: LanceResource) -> None:
    """An upsert without rows makes a version, by which the publisher sees that the run wrote the table."""
    upsert(lake, rows("a", x=1))
    before = lake.table(STOCK).head("dev").number
    result = upsert(lake, pd.DataFrame({"id": [], "region": [], "n": []}))
    assert result.success
    assert before + 1 == lake.table(STOCK).head("dev").number
    assert {"x": 1} == found(lake)


@pytest.mark.parametrize(
    "value,keys,says",
    [
        (
            pa.table({"id": ["x", "x"], "n": [1, 2]}),
            ["id"],
            "shop/stock, lance/keys ['id']: two of the rows have the key id",
        ),
        (pa.table({"id": ["x", None], "n": [1, 2]}), ["id"], "returned 1 row without a value in its key column 'id'"),
        (pa.table({"id": ["x"], "n": [1]}), ["key"], "lance/keys of shop/stock names 'key'; the columns are id, n"),
    ],
)
def test_keys_that_identify_no_row_are_refused(
    lake: LanceResource, value: pa.Table, keys: list[str], says: str
) -> None:
    """An upsert with null, duplicate or unknown keys is refused, and commits nothing."""
    with pytest.raises(InvalidInputError) as caught:
        upsert(lake, value, **dict[str, Any]({"lance/keys": keys}))
    assert says in str(caught.value)
    assert lake.table(STOCK).count_rows("dev") == 0


def test_files_cannot_be_upserted(lake: LanceResource) -> None:
    """Staged files cannot be upserted, because the keys of their rows are not known."""
    table = LanceTable.create(lake.uri_of(STOCK), rows("a").schema)
    staged: StagedFiles = table.stage(rows("a", x=1))
    with pytest.raises(InvalidInputError):
        upsert(lake, staged)


def test_a_run_may_replace_what_the_asset_upserts(lake: LanceResource) -> None:
    """The mode that a run sets takes precedence over the asset's, whose keys are then ignored."""
    upsert(lake, rows("a", x=1))

    @dg.asset(key=STOCK, metadata={"lance/write_mode": "upsert", "lance/keys": ["id"]})
    def stock(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_output_metadata({"lance/write_mode": "overwrite"})
        return rows("a", y=2)

    dg.materialize([stock], resources={"io_manager": LanceIOManager(lance=lake)}, tags={"lance/branch": "dev"})
    assert {"y": 2} == found(lake)


def test_core_upsert_limits_what_is_missing(tmp_path: Any) -> None:
    """`missing_where` needs `when_missing="delete"`, and only its rows are deleted."""
    table = LanceTable.create(tmp_path / "t", rows("a").schema)
    table.append(rows("a", x=1, y=2))
    table.append(rows("b", u=1))
    made = table.upsert(rows("a", y=3), on=["id"], when_missing="delete", missing_where="region = 'a'")
    assert (1, 1, 0) == (made.rows_deleted, made.rows_updated, made.rows_added)
    assert {"y", "u"} == set(table.read()["id"].to_pylist())
    with pytest.raises(InvalidInputError):
        table.upsert(rows("a", y=3), on=["id"], missing_where="region = 'a'")


@pytest.mark.parametrize("policy", ["add_columns", "widen"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_upsert_keeps_the_values_of_columns_that_the_output_lacks(
    lake: LanceResource, policy: str, *, is_stream: bool
) -> None:
    """As with `table.upsert` and pylance: a column that the output lacks is null in new rows only."""
    upsert(lake, rows("a", x=1, y=2))
    partial = pa.table({"id": ["y", "z"], "n": [3, 4]})
    result = upsert(lake, partial.to_reader() if is_stream else partial, **{"lance/schema_evolution": policy})
    assert result.success
    expected = [
        {"id": "x", "region": "a", "n": 1},
        {"id": "y", "region": "a", "n": 3},
        {"id": "z", "region": None, "n": 4},
    ]
    assert expected == lake.table(STOCK).read("dev").sort_by("id").to_pylist()


def test_an_upsert_that_lacks_one_column_and_adds_another_keeps_the_first(lake: LanceResource) -> None:
    """The edit of the columns comes before the rows, which keep what the output lacks."""
    upsert(lake, rows("a", x=1, y=2))
    more = pa.table({"id": ["y"], "note": ["new"], "n": pa.array([None], pa.int64())})
    upsert(lake, more, **{"lance/schema_evolution": "add_columns"})
    expected = [
        {"id": "x", "region": "a", "n": 1, "note": None},
        {"id": "y", "region": "a", "n": None, "note": "new"},
    ]
    assert expected == lake.table(STOCK).read("dev").sort_by("id").to_pylist()


def test_an_upsert_without_rows_and_columns_changes_nothing(lake: LanceResource) -> None:
    """An empty list has no columns, of which none is missing."""
    upsert(lake, rows("a", x=1))
    upsert(lake, [])
    assert {"x": 1} == found(lake)
