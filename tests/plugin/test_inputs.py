# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pds
import pytest
from lance import LanceDataset

from lance_dagster import (
    InvalidInputError,
    LanceResource,
    LanceTable,
    PinnedTable,
    build_publisher,
    promoted_asset_spec,
)
from tests.plugin.shop import materialize
from tests.soak import pairs

NUMBERS = dg.AssetKey(["lab", "numbers"])
COPY = dg.AssetKey(["lab", "copy"])
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-11")
BY_DAY = {"lance/partition_expr": "day"}


def error_of(result: dg.ExecuteInProcessResult) -> str:
    """The text of the first failure, with its causes."""
    found, error = [], result.get_step_failure_events()[0].step_failure_data.error
    while error is not None:
        found.append(error.message)
        error = error.cause
    return "\n".join(found)


def reader(seen: list[Any], kind: Any, key: dg.AssetKey = NUMBERS, **options: Any) -> dg.AssetsDefinition:
    """An asset that keeps its input, which is annotated with the given type."""
    definition = options.pop("partitions_def", None)

    def read(rows: Any) -> None:
        seen.append(rows)

    read.__annotations__ = {"rows": kind, "return": None}
    return dg.asset(ins={"rows": dg.AssetIn(key, **options)}, partitions_def=definition)(read)


def returned(value: Any, key: dg.AssetKey = NUMBERS, **metadata: object) -> dg.AssetsDefinition:
    """An asset that returns a value."""

    @dg.asset(key=key, metadata=metadata)
    def make() -> Any:
        return value() if callable(value) else value

    return make


def published(lake: LanceResource) -> LanceTable:
    """The table of numbers with rows on main."""
    table = LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema)
    table.append(ROWS)
    return table


def ids(value: Any) -> Sequence[int]:
    """The sorted ids in a value of any library."""
    if isinstance(value, list):
        return sorted(row["id"] for row in value)
    if isinstance(value, pl.LazyFrame):
        value = value.collect()
    if isinstance(value, PinnedTable):
        value = value.read()
    if isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    if isinstance(value, (pds.Dataset, pds.Scanner)):
        value = value.to_table()
    return sorted(value["id"].to_pylist() if isinstance(value, pa.Table) else value["id"])


KINDS = [
    pa.Table,
    pa.RecordBatchReader,
    pd.DataFrame,
    pl.DataFrame,
    pl.LazyFrame,
    PinnedTable,
    pds.Dataset,
    pds.Scanner,
    list[dict[str, Any]],
    list[dict],  # type: ignore[type-arg]
    list,
]


@pytest.mark.parametrize("optional,kind", pairs([False, True], [*KINDS, LanceDataset, Any, object]))
def test_inputs_are_what_they_are_annotated_with(lake: LanceResource, kind: Any, *, optional: bool) -> None:
    """One table, read as the type of each library; without an annotation as a lazy handle; Optional changes nothing."""
    published(lake)
    seen: list[Any] = []
    result = materialize(lake, dg.AssetSpec(NUMBERS), reader(seen, kind | None if optional else kind))
    assert result.success, error_of(result)
    plain = PinnedTable if kind in (Any, object) else kind if isinstance(kind, type) else list
    assert isinstance(seen[0], plain)
    assert ids(seen[0]) == [1, 2, 3]


@pytest.mark.parametrize("kind", [*KINDS, Any])
def test_every_type_but_one_is_narrowed(lake: LanceResource, kind: Any) -> None:
    """The columns and the filter of the input's metadata narrow each type, lazy ones too."""
    published(lake)
    seen: list[Any] = []
    wanted = {"lance/columns": ["id"], "lance/filter": "id > 1"}
    result = materialize(lake, dg.AssetSpec(NUMBERS), reader(seen, kind, metadata=wanted))
    assert result.success, error_of(result)
    assert ids(seen[0]) == [2, 3]


@pytest.mark.parametrize(
    "wrong,kind", pairs(["id >", "id > 1 adn id < 3", "idd > 1", "id > 'x'", "id"], [*KINDS, LanceDataset, Any])
)
def test_wrong_filter_is_one_error(lake: LanceResource, kind: Any, wrong: str) -> None:
    """The error names the input, the asset, the filter and the columns, also for types that read later."""
    published(lake)
    said = error_of(materialize(lake, dg.AssetSpec(NUMBERS), reader([], kind, metadata={"lance/filter": wrong})))
    assert f"input 'rows' of lab/numbers: cannot evaluate the filter {wrong!r}" in said
    assert "the columns are id, name" in said


def test_wrong_column_is_one_error(lake: LanceResource) -> None:
    """A lazy input with a column that does not exist fails at once."""
    published(lake)
    said = error_of(
        materialize(lake, dg.AssetSpec(NUMBERS), reader([], PinnedTable, metadata={"lance/columns": ["idd"]}))
    )
    assert "input 'rows' of lab/numbers: no column 'idd'; the table has id, name" in said


@pytest.mark.parametrize("kind", [dict[str, dict[str, pa.Table]], dict[str, dict[str, pa.Table] | None], set[str]])
def test_annotation_that_is_no_class(lake: LanceResource, kind: Any) -> None:
    """The error lists what an input can be annotated with."""
    published(lake)
    said = error_of(materialize(lake, dg.AssetSpec(NUMBERS), reader([], kind)))
    assert "input 'rows' is annotated with" in said
    assert "as Optional[T], as dict[str, T] with a T for each partition, or as list[dict]" in said


def test_unknown_setting_of_an_input(lake: LanceResource) -> None:
    """A misspelt setting is refused and not ignored."""
    published(lake)
    said = error_of(materialize(lake, dg.AssetSpec(NUMBERS), reader([], pa.Table, metadata={"lance/column": ["id"]})))
    assert "input 'rows' of lab/numbers: " in said
    assert "lance/columns" in said


# Missing tables and rows


@pytest.mark.parametrize("kind", [pa.Table, Any])
def test_candidate_that_was_never_published_is_not_read(lake: LanceResource, kind: Any) -> None:
    """A table whose rows were never published is an error for another run, not an empty table."""
    materialize(lake, returned(ROWS))
    said = error_of(materialize(lake, dg.AssetSpec(NUMBERS), reader([], kind)))
    assert f"input 'rows' reads lab/numbers at main@1 of {lake.uri_of(NUMBERS)}, and nothing was published" in said
    assert "publish lab/numbers first, or annotate 'rows' as Optional[...]" in said
    assert "{'lance/allow_missing': True}" in said


def test_missing_rows_are_allowed(lake: LanceResource) -> None:
    """With `lance/allow_missing` the frame is empty and has the columns; an optional input is None."""
    materialize(lake, returned(ROWS))
    seen: list[Any] = []
    for kind in (pa.Table, pl.LazyFrame, list, pa.Table | None):
        allowed = {"lance/allow_missing": kind in (pa.Table, pl.LazyFrame, list)}
        result = materialize(lake, dg.AssetSpec(NUMBERS), reader(seen, kind, metadata=allowed))
        assert result.success, error_of(result)
    assert ROWS.schema.empty_table() == seen[0]
    assert [] == ids(seen[1]) == ids(seen[2])
    assert seen[3] is None


def test_table_that_does_not_exist(lake: LanceResource) -> None:
    """Only an optional input may lack its table, because the columns of an empty frame would be unknown."""
    seen: list[Any] = []
    assert materialize(lake, dg.AssetSpec(NUMBERS), reader(seen, pa.Table | None)).success
    assert materialize(lake, dg.AssetSpec(NUMBERS), reader(seen, dict[str, pa.Table] | None)).success is False
    assert seen == [None]
    said = error_of(
        materialize(lake, dg.AssetSpec(NUMBERS), reader([], pa.Table, metadata={"lance/allow_missing": True}))
    )
    assert f"no table lab/numbers at {lake.uri_of(NUMBERS)}: no run has written it yet; publish lab/numbers" in said


def test_rows_that_are_not_promoted_are_not_read(lake: LanceResource) -> None:
    """A promoted node without its tag has no rows, even if main has some."""
    published(lake)
    node = dg.AssetSpec(NUMBERS, metadata={"lance/ref": "production"})
    said = error_of(materialize(lake, node, reader([], pa.Table)))
    # A tag that is misspelt looks the same, so the error has the names that exist.
    there = f"no branch or tag 'production' in {lake.uri_of(NUMBERS)}; known names: main"
    assert f"reads lab/numbers at 'production', and nothing was published there: {there}" in said
    seen: list[Any] = []
    assert materialize(lake, node, reader(seen, pa.Table | None)).success
    assert materialize(lake, node, reader(seen, pa.Table, metadata={"lance/allow_missing": True})).success
    assert seen == [None, ROWS.schema.empty_table()]
    wrong = {"lance/ref": "prodution"}
    assert "no branch or tag 'prodution'" in error_of(
        materialize(lake, node, reader([], pa.Table | None, metadata=wrong))
    )


def test_published_asset_without_rows_is_read(lake: LanceResource) -> None:
    """A publication without rows is read as an empty table; a commit of settings is not a publication."""
    table = LanceTable.create(lake.uri_of(NUMBERS), ROWS.schema)
    table.config.set({"a": "b"})
    assert "nothing was published there" in error_of(materialize(lake, dg.AssetSpec(NUMBERS), reader([], pa.Table)))
    table.overwrite(ROWS.slice(0, 0))
    seen: list[Any] = []
    assert materialize(lake, dg.AssetSpec(NUMBERS), reader(seen, pa.Table | None)).success
    assert ROWS.schema.empty_table() == seen[0]


def test_run_reads_its_own_rows(lake: LanceResource) -> None:
    """A run reads what it wrote before it is published, even if that is no row."""
    seen: list[Any] = []
    assert materialize(lake, returned(ROWS), reader(seen, pa.Table)).success
    assert materialize(lake, returned(ROWS.slice(0, 0)), reader(seen, pa.Table)).success
    assert seen == [ROWS, ROWS.schema.empty_table()]


# Partitions


def days(*numbers: int) -> pa.Table:
    """One row for each day of January."""
    dates = [dt.date(2024, 1, number) for number in numbers]
    return pa.table({"day": pa.array(dates, pa.date32()), "id": pa.array(numbers, pa.int64())})


def partitioned(lake: LanceResource, *numbers: int) -> dg.AssetSpec:
    """Publish some days, and return the node that has them."""
    rows = days(*numbers)
    LanceTable.create(lake.uri_of(NUMBERS), rows.schema).append(rows)
    return dg.AssetSpec(NUMBERS, partitions_def=DAYS, metadata=BY_DAY)


@pytest.mark.parametrize("kind", [*KINDS, Any])
def test_each_type_carries_its_partitions(lake: LanceResource, kind: Any) -> None:
    """An input of a partitioned asset has the rows of its partition, without an annotation too."""
    node = partitioned(lake, 1, 2, 3)
    seen: list[Any] = []
    result = materialize(lake, node, reader(seen, kind, partitions_def=DAYS), partition_key="2024-01-02")
    assert result.success, error_of(result)
    assert ids(seen[0]) == [2]


@pytest.mark.parametrize("kind", [pa.Table, PinnedTable, pl.LazyFrame, Any])
def test_values_by_partition(lake: LanceResource, kind: Any) -> None:
    """A dict has one value for each partition that the input maps to, with gaps, and without rows too."""
    node = partitioned(lake, 1, 3)
    seen: list[Any] = []
    gaps = dg.SpecificPartitionsPartitionMapping(["2024-01-01", "2024-01-03", "2024-01-05"])
    result = materialize(lake, node, reader(seen, dict[str, kind], partition_mapping=gaps))
    assert result.success, error_of(result)
    assert {"2024-01-01": [1], "2024-01-03": [3], "2024-01-05": []} == {key: ids(one) for key, one in seen[0].items()}


@pytest.mark.parametrize("kind", [pa.Table, pl.LazyFrame])
def test_none_by_partition(lake: LanceResource, kind: Any) -> None:
    """In a dict of optional values, a partition without rows is None, before anything was published too."""
    seen: list[Any] = []
    optional = reader(seen, dict[str, kind | None], partition_mapping=dg.AllPartitionMapping())
    LanceTable.create(lake.uri_of(NUMBERS), days().schema)
    node = dg.AssetSpec(NUMBERS, partitions_def=DAYS, metadata=BY_DAY)
    assert materialize(lake, node, optional).success
    assert {None} == {*seen[0].values()}
    lake.table(NUMBERS).append(days(1, 3))
    assert materialize(lake, node, optional).success
    assert {"2024-01-01": [1], "2024-01-03": [3]} == {key: ids(one) for key, one in seen[1].items() if one is not None}
    assert DAYS.get_num_partitions() == len(seen[1])


def test_dict_of_an_asset_without_partitions(lake: LanceResource) -> None:
    """A dict of an asset without partitions is refused, because there are no keys."""
    published(lake)
    said = error_of(materialize(lake, dg.AssetSpec(NUMBERS), reader([], dict[str, pa.Table])))
    assert "annotated as a dict by partition, and lab/numbers has no partitions" in said


@pytest.mark.parametrize("kind", [pa.Table, pa.Table | None, Any])
def test_self_dependency_from_the_first_partition_on(lake: LanceResource, kind: Any) -> None:
    """The first partition reads no rows, or None; each later one reads the partition before it."""
    seen: list[Any] = []
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    def total(context: dg.AssetExecutionContext, total: Any) -> Any:
        seen.append(None if total is None else ids(total))
        return days(int(context.partition_key[-2:]))

    total.__annotations__.update({"total": kind, "return": Any})
    ins = {"total": dg.AssetIn(NUMBERS, partition_mapping=before)}
    asset = dg.asset(key=NUMBERS, ins=ins, partitions_def=DAYS, metadata=BY_DAY)(total)
    first = materialize(lake, asset, partition_key="2024-01-01", tags={"lance/branch": "dev"})
    if kind != pa.Table | None:
        assert "no run has written it yet; publish lab/numbers first, or annotate 'total' as Optional" in error_of(
            first
        )
        LanceTable.create(lake.uri_of(NUMBERS), days().schema)
    for day in ("2024-01-01", "2024-01-02", "2024-01-03"):
        result = materialize(lake, asset, partition_key=day, tags={"lance/branch": "dev"})
        assert result.success, error_of(result)
    nothing: list[Any] = [None, None] if kind == pa.Table | None else [[]]
    assert [*nothing, [1], [2]] == seen


@pytest.mark.parametrize("metadata", [{}, {"lance/columns": ["id"]}, {"lance/filter": "id > 0"}], ids=str)
def test_a_dataset_of_a_narrowed_input_is_refused(lake: LanceResource, metadata: dict[str, Any]) -> None:
    """A dataset of pylance cannot carry a partition, columns or a filter, and must not be the whole table instead."""
    node = partitioned(lake, 1, 2, 3)
    options: dict[str, Any] = {"metadata": metadata} if metadata else {"partitions_def": DAYS}
    key = None if metadata else "2024-01-02"
    seen: list[Any] = []
    assert materialize(lake, node, reader(seen, PinnedTable, **options), partition_key=key).success
    (view,) = seen
    with pytest.raises(InvalidInputError):
        view.to_lance()
    assert 3 == view.table.to_lance(view.version).count_rows()
    with pytest.raises(InvalidInputError):
        replace(view, columns=("id",), filter="id > 1").to_lance()


def test_partitioned_reader_of_a_node_without_partitions(lake: LanceResource) -> None:
    """A partitioned reader reads all rows, unless the input or the node names the column of the reader's partitions."""
    partitioned(lake, 1, 2, 3)
    seen: list[Any] = []
    options: dict[str, Any] = {"partitions_def": DAYS, "metadata": BY_DAY}
    assert materialize(
        lake, dg.AssetSpec(NUMBERS), reader(seen, pa.Table, partitions_def=DAYS), partition_key="2024-01-02"
    ).success
    assert materialize(
        lake, dg.AssetSpec(NUMBERS), reader(seen, pa.Table, **options), partition_key="2024-01-02"
    ).success
    node = dg.AssetSpec(NUMBERS, metadata=BY_DAY)
    assert materialize(lake, node, reader(seen, Any, partitions_def=DAYS), partition_key="2024-01-03").success
    assert [[1, 2, 3], [2], [3]] == [ids(one) for one in seen]


# Outputs


@pytest.mark.parametrize(
    "make",
    [
        lambda table: table.to_lance(),
        lambda table: PinnedTable(table=table, version=table.head()),
        lambda table: pds.dataset(table.read()),
        lambda table: table.to_lance().scanner(),
        lambda table: table.read().to_pylist(),
    ],
    ids=["lance", "pinned", "dataset", "scanner", "dicts"],
)
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_handles_are_written(lake: LanceResource, make: Any, mode: str) -> None:
    """A returned handle stands for its rows, which are copied."""
    table = published(lake)
    result = materialize(lake, returned(lambda: make(table), COPY, **{"lance/write_mode": mode}))
    assert result.success, error_of(result)
    assert ROWS == lake.table(COPY).read(f"run/{result.run_id}")


def test_narrowed_handle_is_written_narrowed(lake: LanceResource) -> None:
    """A narrowed handle is written with only its own columns and rows."""
    table = published(lake)
    view = PinnedTable(table=table, version=table.head(), columns=("id",), filter="id > 1")
    result = materialize(lake, returned(view, COPY))
    assert pa.table({"id": [2, 3]}) == lake.table(COPY).read(f"run/{result.run_id}")


def test_table_is_rewritten_from_its_own_version(lake: LanceResource) -> None:
    """An asset may return a view of its own table, since a version does not change while it is read."""
    table = published(lake)
    view = PinnedTable(table=table, version=table.head(), filter="id <> 2")
    result = materialize(lake, returned(view))
    assert result.success, error_of(result)
    assert table.read(f"run/{result.run_id}")["id"].to_pylist() == [1, 3]


@pytest.mark.parametrize("kind,library", [(list[dict[str, Any]], "Python"), (pd.DataFrame, "pandas")])
def test_rows_that_the_library_cannot_hold(lake: LanceResource, kind: Any, library: str) -> None:
    """Arrow has dates after the year 9999; the error names the column and the type that would do."""
    rows = pa.table({"id": [1], "day": pa.array([10**7], pa.date32())})
    LanceTable.create(lake.uri_of(NUMBERS), rows.schema).append(rows)
    said = error_of(materialize(lake, dg.AssetSpec(NUMBERS), reader([], kind)))
    assert f"{library} cannot hold a value of column 'day', which is date32[day]: " in said
    assert "annotate the input as pyarrow.Table, or leave the column out by lance/columns" in said
    seen: list[Any] = []
    assert materialize(lake, dg.AssetSpec(NUMBERS), reader(seen, kind, metadata={"lance/columns": ["id"]})).success
    assert [1] == ids(seen[0])


def test_large_integers_beside_a_null_stay_exact_in_pandas(lake: LanceResource) -> None:
    """They would become doubles, which round them; small ones do so as usual."""
    large, small = pa.array([2**53 + 1, None], pa.int64()), pa.array([5, None], pa.int64())
    unsigned = pa.array([2**64 - 1, None], pa.uint64())
    rows = pa.table({"large": large, "small": small, "unsigned": unsigned})
    LanceTable.create(lake.uri_of(NUMBERS), rows.schema).append(rows)
    seen: list[Any] = []
    assert materialize(lake, dg.AssetSpec(NUMBERS), reader(seen, pd.DataFrame)).success
    frame = seen[0]
    assert {"large": "Int64", "small": "float64", "unsigned": "UInt64"} == frame.dtypes.astype(str).to_dict()
    assert [2**53 + 1, 2**64 - 1] == [frame["large"][0], frame["unsigned"][0]]


def test_dictionaries_with_different_keys(lake: LanceResource) -> None:
    """Each key is a column, also one that the first dictionary lacks."""
    result = materialize(lake, returned([{"id": 1}, {"id": 2, "name": "b"}]))
    assert [{"id": 1, "name": None}, {"id": 2, "name": "b"}] == lake.table(NUMBERS).read(
        f"run/{result.run_id}"
    ).to_pylist()
    assert "each item is a dict, not int" in error_of(materialize(lake, returned([1, 2])))


@pytest.mark.filterwarnings("ignore::polars.exceptions.CategoricalRemappingWarning")
def test_polars_enum_and_categorical_are_text(lake: LanceResource) -> None:
    """Enum and categorical columns of Polars are stored as text, in lists and structs too."""
    kind = pl.Enum(["a", "b"])
    frame = pl.DataFrame(
        {"e": pl.Series(["a", "b"], dtype=kind), "c": pl.Series(["x", "x"], dtype=pl.Categorical)},
    ).with_columns(l=pl.concat_list("e"), s=pl.struct("e", "c"))
    result = materialize(lake, returned(frame))
    assert result.success, error_of(result)
    rows = lake.table(NUMBERS).read(f"run/{result.run_id}")
    assert [pa.string(), pa.string(), pa.list_(pa.string())] == rows.schema.types[:3]
    assert [{"e": "a", "c": "x", "l": ["a"], "s": {"e": "a", "c": "x"}}] == rows.slice(0, 1).to_pylist()


# Promoted nodes of other code locations

PROMOTED = dg.AssetKey(["production", "lab", "numbers"])


@pytest.mark.parametrize(
    "node",
    [
        dg.AssetSpec(PROMOTED),
        dg.AssetSpec(PROMOTED, metadata={"lance/ref": "production"}),
        promoted_asset_spec("lab/numbers"),
    ],
    ids=["key", "ref", "promoted"],
)
def test_promoted_node_is_recognised(lake: LanceResource, node: dg.AssetSpec) -> None:
    """A node that another code location declares by its key alone is read at the tag and not on main."""
    table = published(lake)
    table.tags.create("production", "main")
    table.append(ROWS)
    seen: list[Any] = []
    result = materialize(lake, node, reader(seen, pa.Table, PROMOTED))
    assert result.success, error_of(result)
    assert seen == [ROWS]


def test_node_that_is_not_recognised(lake: LanceResource) -> None:
    """The error says whether the table or the tag is missing, and names the function that declares the node."""
    remedy = "declare it with promoted_asset_spec('lab/numbers', tag='production')"
    said = error_of(materialize(lake, dg.AssetSpec(PROMOTED), reader([], pa.Table, PROMOTED)))
    assert remedy in said
    assert "has no tag" not in said
    table = published(lake)
    said = error_of(materialize(lake, dg.AssetSpec(PROMOTED), reader([], pa.Table, PROMOTED)))
    assert f"and the table at {table.uri} has no tag 'production'; if production/lab/numbers" in said
    assert remedy in said
    seen: list[Any] = []
    assert materialize(lake, dg.AssetSpec(PROMOTED), reader(seen, pa.Table | None, PROMOTED)).success
    assert seen == [None]


def test_table_at_the_whole_key_comes_first(lake: LanceResource) -> None:
    """An asset with a table at its whole key is read as that table, not as a promoted node."""
    published(lake).tags.create("production", "main")
    LanceTable.create(lake.uri_of(PROMOTED), ROWS.schema).append(ROWS.slice(0, 1))
    seen: list[Any] = []
    assert materialize(lake, dg.AssetSpec(PROMOTED), reader(seen, pa.Table, PROMOTED)).success
    assert [1] == ids(seen[0])


def test_promoted_spec_equals_the_publishers_node(lake: LanceResource) -> None:
    """Both code locations agree on the key and the metadata of a table at its own place."""
    table = dg.AssetSpec(NUMBERS, metadata={"lance/table": "raw/numbers", **BY_DAY})
    (made,) = build_publisher([table], partitions_def=DAYS).specs
    spec = promoted_asset_spec(table, partitions_def=DAYS)
    assert (made.key, made.metadata, made.group_name) == (spec.key, spec.metadata, spec.group_name)
    rows = days(1, 2)
    made_table = LanceTable.create(lake.uri_of("raw/numbers"), rows.schema)
    made_table.append(rows)
    made_table.tags.create("production", "main")
    seen: list[Any] = []
    result = materialize(lake, spec, reader(seen, pa.Table, PROMOTED, partitions_def=DAYS), partition_key="2024-01-02")
    assert result.success, error_of(result)
    assert [2] == ids(seen[0])
