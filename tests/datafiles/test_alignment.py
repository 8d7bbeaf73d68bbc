"""Rows at any address of the memory are written and evaluated: those of Spark, of memory maps and of IPC streams."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field

from lance_dagster import LanceTable

VALUES: dict[str, tuple[pa.DataType, object]] = {
    "decimal128": (pa.decimal128(10, 2), Decimal("1.25")),
    "decimal256": (pa.decimal256(40, 2), Decimal("1.25")),
    "int64": (pa.int64(), 7),
    "double": (pa.float64(), 0.5),
    "timestamp": (pa.timestamp("us"), dt.datetime(2026, 1, 2)),  # noqa: DTZ001 - the column has no zone
    "list": (pa.list_(pa.decimal128(10, 2)), [Decimal("1.25"), None]),
    "struct": (pa.struct([("part", pa.decimal128(10, 2))]), {"part": Decimal("1.25")}),
    "vector": (pa.list_(pa.float64(), 2), [0.5, 1.5]),
    "text": (pa.string(), "seven"),
}


def placed(values: Any, place: int) -> Any:  # noqa: ANN401 - an array
    """A copy of an array whose buffers lie at addresses that are multiples of `place`, and of no larger number."""
    if pa.types.is_struct(values.type):
        parts = [placed(part, place) for part in values.flatten()]
        return pa.StructArray.from_arrays(parts, fields=list(values.type), mask=values.is_null())
    if isinstance(values.type, pa.ListType | pa.FixedSizeListType):
        # A null of a fixed-size list has values, which `flatten` would leave out.
        fixed = isinstance(values.type, pa.FixedSizeListType)
        own = [moved(one, place) for one in values.buffers()[: 1 if fixed else 2]]
        return pa.Array.from_buffers(values.type, len(values), own, children=[placed(values.values, place)])
    return pa.Array.from_buffers(values.type, len(values), [moved(one, place) for one in values.buffers()])


def moved(buffer: pa.Buffer | None, place: int) -> pa.Buffer | None:
    """A copy of a buffer at such an address."""
    if buffer is None:
        return None
    memory = pa.allocate_buffer(buffer.size + 3 * place)
    start = next(start for start in range(2 * place) if (memory.address + start) % (2 * place) == place)
    memoryview(memory)[start : start + buffer.size] = memoryview(buffer)
    return memory.slice(start, buffer.size)


def lies_right(values: Any) -> bool:  # noqa: ANN401 - an array
    """Whether all buffers of an array lie at multiples of 16."""
    return all(buffer is None or buffer.address % 16 == 0 for buffer in values.buffers())


@pytest.mark.parametrize("place", [1, 4, 8])
@pytest.mark.parametrize("kind", VALUES)
def test_rows_may_lie_at_any_address(tmp_path: Path, kind: str, place: int) -> None:
    """They replace rows by a predicate about their column and about another one, and are appended and upserted."""
    arrow, value = VALUES[kind]
    schema = pa.schema({"id": pa.int64(), "value": arrow})
    ids, values = pa.array([1, 2, 3], pa.int64()), pa.array([value, None, value], arrow)
    rows = pa.table([placed(ids, place), placed(values, place)], schema=schema)
    assert not lies_right(rows["value"].chunk(0))
    table = LanceTable.create(tmp_path / "rows", schema)
    table.append(rows)
    for predicate in ("id > 0", "value IS NOT NULL OR id = 2"):
        table.replace_where(predicate, rows)
        table.replace_where(predicate, rows.to_reader())
    table.upsert(rows, on=["id"], when_matched="source.id = target.id AND source.value IS NOT NULL")
    assert [value, None, value] == table.read().sort_by("id")["value"].to_pylist()


def test_rows_of_a_memory_map_replace_rows(tmp_path: Path) -> None:
    """Arrow writes the buffers of an IPC file at multiples of 8."""
    columns: dict[str, pa.DataType] = {"k": pa.string(), "price": pa.decimal128(10, 2)}
    schema = pa.schema(columns)
    rows = pa.table({"k": ["a", "b", "c"], "price": [Decimal("1.25")] * 3}, schema=schema)
    path = str(tmp_path / "rows.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        for length in (1, 2, 3):
            file.write_table(rows.slice(0, length))
    with pa.memory_map(path) as source:
        mapped = pa.ipc.open_file(source).read_all()
        assert not all(map(lies_right, mapped["price"].chunks))
        table = LanceTable.create(tmp_path / "mapped", schema)
        table.replace_where("price > CAST('1' AS DECIMAL(10, 2))", mapped)
    assert 6 == table.count_rows()


def test_rows_with_blobs_may_lie_at_any_address(tmp_path: Path) -> None:
    """Files with blobs are written from a stream."""
    schema = pa.schema([pa.field("price", pa.decimal128(10, 2)), blob_field("image")])
    prices = placed(pa.array([Decimal("1.25")], pa.decimal128(10, 2)), 8)
    table = LanceTable.create(tmp_path / "blobs", schema)
    table.append(pa.table([prices, blob_array([b"x"])], schema=schema))
    assert [Decimal("1.25")] == table.read(columns=["price"])["price"].to_pylist()
