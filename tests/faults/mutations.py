"""Damaged copies of the files of a table: every kind of damage there is, made from fixed seeds.

A mutation is a file of the table and its damaged content. The mutations of `by_bytes` know nothing about the format of
the file; the others damage the meaning of one part and leave the rest valid.
"""

import io
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire

U32, U64 = 2**32 - 1, 2**64 - 1
PATHS = ("../../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b.lance", "a\0b", "%2F..%2Fx", "a\\..\\b", "x" * 5000)


Change = Callable[[wire.Manifest], object]


@dataclass(frozen=True, slots=True)
class Mutation:
    """The damaged content of a file, which is named by its path below the table."""

    name: str
    path: str
    data: bytes


def by_bytes(path: str, data: bytes, flips: int) -> Iterator[Mutation]:
    """The file truncated, lengthened, overwritten, and with single bits flipped."""
    size = len(data)
    for length in sorted(
        {0, 1, 3, 4, 7, 8, 15, 16, 17, 20, size // 4, size // 2, size - 17, size - 16, size - 4, size - 1}
    ):
        if 0 <= length < size:
            yield Mutation(f"cut at {length}", path, data[:length])
    yield Mutation("doubled", path, data + data)
    yield Mutation("lengthened", path, data + b"\0")
    yield Mutation("shifted", path, b"\0" + data)
    for filler in (b"\0", b"\xff", b"A"):
        yield Mutation(f"all {filler!r}", path, filler * size)
    yield Mutation("zeroes in the middle", path, data[: size // 3] + b"\0" * (size // 3) + data[2 * size // 3 :])
    yield Mutation("reversed", path, data[::-1])
    chance = random.Random(f"{path.rpartition('.')[2]} {size}")
    for number in range(flips):
        # Most mutations hit short files and the ends of long files.
        place = chance.choice([chance.randrange(size), chance.randrange(max(0, size - 64), size)])
        damaged = bytearray(data)
        damaged[place] ^= 1 << chance.randrange(8)
        yield Mutation(f"flip {number} at {place}", path, bytes(damaged))
    for number in range(flips // 4):
        place, length = chance.randrange(size), chance.randrange(1, 9)
        noise = chance.randbytes(length)
        yield Mutation(f"noise {number} at {place}", path, data[:place] + noise + data[place + length :])


def _pointer(data: bytes, position: int) -> bytes:
    return data[:-16] + struct.pack("<QHH4s", position & U64, 0, 2, b"LANC")


def of_manifest(path: str, data: bytes) -> Iterator[Mutation]:
    """A manifest file with a wrong magic, wrong pointers and lengths, and contradictory messages."""
    yield from _frames(path, data)
    for name, change in _changes():
        yield Mutation(name, path, rewritten(data, change))


def _frames(path: str, data: bytes) -> Iterator[Mutation]:
    (position,) = struct.unpack("<Q", data[-16:-8])
    yield Mutation("wrong magic", path, data[:-4] + b"ENLA")
    for place in (0, 1, position - 1, position + 1, position + 4, len(data) - 16, len(data), U32, 2**63, U64):
        yield Mutation(f"manifest at {place}", path, _pointer(data, place))
    for length in (0, 1, U32, 2**31, len(data), len(data) - position - 19):
        framed = data[:position] + struct.pack("<I", length) + data[position + 4 :]
        yield Mutation(f"manifest of {length} bytes", path, framed)
    for section in ("index_section", "transaction_section", "transaction_section_deprecated"):
        for place in (0, 1, 2, 3, 5, position - 4, position, position + 4, len(data), U32, 2**63, U64):
            yield Mutation(f"{section} at {place}", path, rewritten(data, partial(_with, section, place)))


def _changes() -> Iterator[tuple[str, Change]]:
    yield from _MANIFEST_CHANGES.items()
    yield from ((f"schema {number}", partial(_set, fields)) for number, fields in enumerate(_SCHEMAS))
    yield from ((name, partial(_first, change)) for name, change in _FRAGMENT_CHANGES.items())
    yield from ((name, partial(_based, bases)) for name, bases in _BASES.items())


def _with(name: str, value: object, message: Any) -> None:  # noqa: ANN401  # any message
    setattr(message, name, value)


def rewritten(data: bytes, change: Callable[[wire.Manifest], object]) -> bytes:
    """The file with a changed message, and with its sections at their old offsets."""
    (position,) = struct.unpack("<Q", data[-16:-8])
    (length,) = struct.unpack_from("<I", data, position)
    message = wire.Manifest.FromString(data[position + 4 : position + 4 + length])
    change(message)
    body = message.SerializeToString()
    return data[:position] + struct.pack("<I", len(body)) + body + data[-16:]


def _set(fields: list[wire.Field], message: wire.Manifest) -> None:
    del message.fields[:]
    message.fields.extend(fields)


def _first(change: Callable[[Any], object], message: wire.Manifest) -> None:
    fragment = wire.DataFragment.FromString(message.fragments[0])
    change(fragment)
    message.fragments[0] = fragment.SerializeToString()


def _based(bases: list[wire.BasePath], message: wire.Manifest) -> None:
    message.base_paths.extend(bases)

    def point(fragment: wire.DataFragment) -> None:
        fragment.files[0].base_id = 7
        if fragment.HasField("deletion_file"):
            fragment.deletion_file.base_id = 7

    _first(point, message)


def _field(number: int, parent: int = -1, logical_type: str = "int64", name: str = "value") -> wire.Field:
    return wire.Field(id=number, parent_id=parent, logical_type=logical_type, name=name, nullable=True)


_SCHEMAS: list[list[wire.Field]] = [
    [],
    [_field(0), _field(0)],
    [_field(0, 0, "struct")],
    [_field(-1, -1, "struct")],
    [_field(0, 1, "struct"), _field(1, 0, "struct")],
    [_field(0), _field(0, 0, "struct")],
    [_field(0, -1, "struct"), _field(1, 2, "struct"), _field(2, 1, "struct")],
    [_field(0, 5)],
    [_field(0, -2)],
    [_field(0, -1, "list")],
    [_field(0, -1, "map")],
    [_field(0, -1, "map"), _field(1, 0, "int8")],
    [_field(0, -1, "map"), _field(1, 0, "struct"), _field(2, 1, "int8")],
    [_field(0, -1, "list"), _field(1, 0), _field(2, 0)],
    [_field(0, -1, "int64"), _field(1, 0)],
    [_field(number, number - 1, "struct") for number in range(3000)],
    [_field(0), _field(1)],
    [_field(0, name="")],
    [_field(0, name="a\0b")],
    *(
        [_field(0, -1, name)]
        for name in (
            "",
            "complex:64",
            "fixed_size_list:float:-1",
            "fixed_size_list:float:0",
            "fixed_size_list:float:99999999999",
            "fixed_size_list:float",
            "fixed_size_list:struct:x",
            "fixed_size_binary:-1",
            "fixed_size_binary:4294967296",
            "fixed_size_binary",
            "decimal:128:99:2",
            "decimal:64:5:2",
            "decimal:128:5",
            "timestamp:xs:-",
            "timestamp",
            "time32:us",
            "duration:",
            "dict:string:float:false",
            "dict",
            "dict:::",
            "json:x",
            "fixed_size_list:" * 5000 + "x",
            "fixed_size_list:" * 3000 + "int8" + ":1" * 3000,
            "int64\0",
            "a" * 100_000,
            "fixed_size_list:dict:1",
            "map:x",
        )
    ),
]


def _extended(message: wire.Manifest, name: bytes, parameters: bytes) -> None:
    message.fields[0].extension_name = name.decode()
    message.fields[0].metadata["ARROW:extension:name"] = name
    message.fields[0].metadata["ARROW:extension:metadata"] = parameters


def _elsewhere(path: str, message: wire.Manifest) -> None:
    message.ClearField("transaction_section")
    message.transaction_file = path


def _data_file(path: str, fragment: wire.DataFragment) -> None:
    fragment.files[0].path = path


def _times(seconds: int, nanos: int) -> Callable[[wire.Manifest], object]:
    def change(message: wire.Manifest) -> None:
        message.timestamp.seconds, message.timestamp.nanos = seconds, nanos

    return change


_MANIFEST_CHANGES: Mapping[str, Callable[[wire.Manifest], object]] = {
    "no fragments": lambda message: message.fragments.__delitem__(slice(None)),
    "an empty fragment": lambda message: message.fragments.append(b""),
    "a fragment of noise": lambda message: message.fragments.append(b"\xff\xff\xff"),
    "a fragment twice": lambda message: message.fragments.append(message.fragments[0]),
    "another version": lambda message: setattr(message, "version", 1),
    "version 0": lambda message: setattr(message, "version", 0),
    "the last version": lambda message: setattr(message, "version", U64),
    "no time": lambda message: message.ClearField("timestamp"),
    "the end of time": _times(2**62, 0),
    "the start of time": _times(-(2**62), -5),
    "odd nanoseconds": _times(5, 2**31 - 1),
    "a fragment id too small": lambda message: setattr(message, "max_fragment_id", 0),
    "no fragment id": lambda message: message.ClearField("max_fragment_id"),
    "the last fragment id": lambda message: setattr(message, "max_fragment_id", U32),
    "the last row id": lambda message: setattr(message, "next_row_id", U64),
    "no row id": lambda message: setattr(message, "next_row_id", 0),
    "no writer": lambda message: message.ClearField("writer_version"),
    "no format": lambda message: message.ClearField("data_format"),
    "file version x": lambda message: setattr(message.data_format, "version", "x"),
    "file version 2": lambda message: setattr(message.data_format, "version", "2"),
    "file version 99.99": lambda message: setattr(message.data_format, "version", "99.99"),
    "file version 0.1": lambda message: setattr(message.data_format, "version", "0.1"),
    "a branch": lambda message: setattr(message, "branch", "../x"),
    "an extension of noise": lambda message: _extended(message, b"arrow.fixed_shape_tensor", b"\xff{"),
    "an extension of another type": lambda message: _extended(message, b"arrow.uuid", b""),
    "an extension nobody knows": lambda message: _extended(message, b"x.y", b"\0"),
    "metadata of noise": lambda message: message.schema_metadata.update({"x": b"\xff\xfe"}),
    **{f"transaction file {path[:20]!r}": partial(_elsewhere, path) for path in PATHS},
    "records that are none": lambda message: message.table_metadata.update(
        {"lance_dagster.merged.x": "9" * 5000 + "@1", "lance_dagster.merged.y": "\u00b2@\u00b2"}
    ),
}
_FRAGMENT_CHANGES: Mapping[str, Callable[[Any], object]] = {
    **{f"data file {path[:20]!r}": partial(_data_file, path) for path in PATHS},
    "no data file": lambda fragment: fragment.files.__delitem__(slice(None)),
    "the last fragment": lambda fragment: setattr(fragment, "id", U64),
    "no rows": lambda fragment: setattr(fragment, "physical_rows", 0),
    "too many rows": lambda fragment: setattr(fragment, "physical_rows", U64),
    "fewer columns": lambda fragment: fragment.files[0].column_indices.__delitem__(slice(None)),
    "other columns": lambda fragment: fragment.files[0].column_indices.__setitem__(0, 2**31 - 1),
    "other fields": lambda fragment: fragment.files[0].fields.__setitem__(0, -(2**31)),
    "a file of another version": lambda fragment: setattr(fragment.files[0], "file_minor_version", U32),
    "a file too large": lambda fragment: setattr(fragment.files[0], "file_size_bytes", U64),
    "a base that is not there": lambda fragment: setattr(fragment.files[0], "base_id", U32),
    "a deletion under a base that is not there": lambda fragment: setattr(fragment.deletion_file, "base_id", U32),
    "a deletion of another kind": lambda fragment: setattr(fragment.deletion_file, "file_type", 1),
    "a deletion of no kind": lambda fragment: fragment.deletion_file.MergeFromString(b"\x08\x63"),
    "a deletion file that is not there": lambda fragment: setattr(fragment.deletion_file, "id", 1),
    "a wrong count of deletions": lambda fragment: setattr(fragment.deletion_file, "num_deleted_rows", 1),
    "more deletions than rows": lambda fragment: setattr(fragment.deletion_file, "num_deleted_rows", U64),
    "no row ids": lambda fragment: fragment.ClearField("row_id_sequence"),
    "row ids of noise": lambda fragment: setattr(fragment, "inline_row_ids", b"\xff\xff"),
    "row ids of no kind": lambda fragment: setattr(fragment, "inline_row_ids", b"\x0a\x00"),
    "too many row ids": lambda fragment: setattr(fragment, "inline_row_ids", _row_ids(0, U64)),
    "row ids backwards": lambda fragment: setattr(fragment, "inline_row_ids", _row_ids(9, 3)),
    "versions of noise": lambda fragment: setattr(fragment, "inline_created_at_versions", b"\xff"),
    "too many versions": lambda fragment: setattr(fragment, "inline_last_updated_at_versions", _row_versions(U64)),
}


def _row_ids(start: int, end: int) -> bytes:
    segment = wire.U64Segment(range=wire.U64Segment.Range(start=start, end=end))
    return wire.RowIdSequence(segments=[segment]).SerializeToString()


def _row_versions(count: int) -> bytes:
    span = wire.U64Segment(range=wire.U64Segment.Range(start=0, end=count))
    return wire.RowDatasetVersionSequence(runs=[wire.RowDatasetVersionRun(span=span, version=1)]).SerializeToString()


_BASES: Mapping[str, list[wire.BasePath]] = {
    f"base path {path[:20]!r}": [wire.BasePath(id=7, path=path, is_dataset_root=True)]
    for path in (*PATHS, "x://", "s3://", "file:///nowhere", "~", "/dev/zero")
} | {
    "two bases of one id": [wire.BasePath(id=7, path="/a"), wire.BasePath(id=7, path="/b")],
    "two bases of one name": [wire.BasePath(id=7, path="/a", name="x"), wire.BasePath(id=8, path="/b", name="x")],
}


def of_transaction(path: str, data: bytes) -> Iterator[Mutation]:
    """Transactions that can be parsed, but lack content or have too much of it."""
    for kind in wire.Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields:
        message = wire.Transaction.FromString(data)
        getattr(message, kind.name).SetInParent()
        yield Mutation(f"an empty {kind.name}", path, message.SerializeToString())
    nothing = wire.Transaction.FromString(data)
    nothing.ClearField("operation")
    yield Mutation("no operation", path, nothing.SerializeToString())
    yield Mutation("an operation nobody knows", path, nothing.SerializeToString() + b"\xba\x07\x00")
    for shard in (b"", b"x" * 15, b"x" * 1_000_000):
        message = wire.Transaction()
        message.create_index.new_indices.add(uuid=wire.UUID(uuid=shard))
        yield Mutation(f"an index of a uuid of {len(shard)} bytes", path, message.SerializeToString())
    message = wire.Transaction.FromString(data)
    message.clone.ref_name, message.clone.ref_version = "main", U64
    yield Mutation("a clone of the future", path, message.SerializeToString())


def of_deletion(path: str) -> Iterator[Mutation]:
    """Deletion files of the wrong shape, and small ones that expand to very many offsets."""
    arrays: dict[str, pa.Array[Any]] = {
        "signed": pa.array([1], pa.int32()),
        "nulls": pa.array([None, 1], pa.uint32()),
        "text": pa.array(["1"]),
        "beyond the fragment": pa.array([U32], pa.uint32()),
        "wide": pa.array([2**40], pa.uint64()),
        "nested": pa.array([[1]], pa.list_(pa.uint32())),
        "of nulls alone": pa.nulls(2**24),
    }
    for name, values in arrays.items():
        yield Mutation(f"offsets {name}", path, _ipc(pa.record_batch([values], names=["row_id"])))
    yield Mutation("no column", path, _ipc(pa.record_batch([], names=[])))
    yield Mutation("another column", path, _ipc(pa.record_batch([pa.array([1], pa.uint32())], names=["x"])))
    zeros = pa.record_batch([pa.array([0], pa.uint32())], names=["row_id"])
    yield Mutation("two columns", path, _ipc(pa.record_batch([zeros.column(0)] * 2, names=["row_id", "row_id"])))
    offsets = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    million = pa.record_batch([pa.repeat(pa.scalar(0, pa.uint32()), 2**20)], schema=offsets)
    yield Mutation("a bomb of zeroes", path, _ipc(million, "zstd", copies=256))
    for number, bitmap in enumerate(_BITMAPS):
        yield Mutation(f"bitmap {number}", path, bitmap)


def _ipc(batch: pa.RecordBatch, compression: Literal["zstd"] | None = None, copies: int = 1) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        for _ in range(copies):
            writer.write_batch(batch)
    return sink.getvalue()


def _runs(containers: int) -> bytes:
    """A Roaring bitmap in which every offset of some containers is set: a few bytes for each 65536."""
    cookie = struct.pack("<I", 12347 | (containers - 1) << 16) + b"\xff" * ((containers + 7) // 8)
    keys = b"".join(struct.pack("<HH", key, 65535) for key in range(containers))
    body = struct.pack("<HHH", 1, 0, 65535)
    first = len(cookie) + len(keys) + (4 * containers if containers >= 4 else 0)
    offsets = b"".join(struct.pack("<I", first + number * len(body)) for number in range(containers))
    return cookie + keys + (offsets if containers >= 4 else b"") + body * containers


_BITMAPS = [
    struct.pack("<II", 12346, U32),
    struct.pack("<II", 12346, 0),
    struct.pack("<II", 12346, 1),
    struct.pack("<I", 12347 | 0xFFFF << 16),
    struct.pack("<IIHHI", 12346, 1, 0, 65535, 16),
    struct.pack("<IIHHI", 12346, 1, 0, 0, U32),
    struct.pack("<II", 12346, 2)
    + struct.pack("<HHHH", 1, 0, 1, 0)
    + struct.pack("<II", 24, 26)
    + struct.pack("<HH", 1, 1),
    struct.pack("<II", 12346, 1) + struct.pack("<HH", 0, 2) + struct.pack("<I", 16) + struct.pack("<HHH", 9, 3, 3),
    _runs(1),
    _runs(65536),
    _runs(65536)[:-5],
    struct.pack("<I", 12347) + b"\x01" + struct.pack("<HH", 0, 9) + struct.pack("<HHH", 1, 65530, 65535),
]


def of_json(path: str, data: bytes, *, branch: bool) -> Iterator[Mutation]:
    """JSON of other shapes, with wrong types in every place, and refs that form cycles."""
    texts = [
        *(
            b"",
            b"null",
            b"[]",
            b"{}",
            b"5",
            b'"x"',
            b"true",
            b"NaN",
            b"{",
            b"\xff\xfe",
            b"\xef\xbb\xbf{}",
            b"[" * 100_000,
        ),
        b'{"a":' * 100_000,
        b'{"version": ' + b"9" * 400_000 + b"}",
        data.decode().encode("utf-16"),
        data.replace(b'"', b"'"),
        data.replace(b"{", b'{"parentVersion": "x", "version": "x", ', 1),
        data.rstrip()[:-1] + b', "version": -1, "parentVersion": -1}',
    ]
    for number, text in enumerate(texts):
        yield Mutation(f"text {number}", path, text)
    known = json.loads(data)
    values: list[object] = [
        *(
            None,
            "",
            "x",
            "5",
            -1,
            0,
            1.5,
            2**62,
            2**64,
            10**400,
            True,
            float("nan"),
            float("inf"),
            "\ud800",
            "x" * 5000,
        ),
        *("main", "run", "inner", "release", "../../x", "a\0b", "2020-13-45T99:99:99Z"),
        *([], [1], {}, {"a": 1}, [[1, "x"]], [[1]], [[1, 2, 3]]),
        *({"version_mapping": found} for found in (5, [5], [[1, [2]]], [["x", "y"]], [[1, 2]])),
    ]
    for key in known:
        yield Mutation(
            f"no {key}", path, json.dumps({name: found for name, found in known.items() if name != key}).encode()
        )
        for number, value in enumerate(values):
            yield Mutation(f"{key} is value {number}", path, json.dumps({**known, key: value}).encode())
    if branch:
        for state in ("creating", "deleting", "x"):
            changed = {**known, "metadata": {"lance_dagster.state": state}}
            yield Mutation(f"state {state}", path, json.dumps(changed).encode())
