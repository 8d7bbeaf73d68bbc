"""Make the tables of the corpus again, with the pylance release that is installed.

    python tests/corpus/make.py tests/corpus

writes `tests/corpus/lance-<release>.tar.gz`. Run it with the Python of an environment that holds that release of
pylance and nothing of this project; releases before 0.20 need `pyarrow<15` and `numpy<2`. One recipe makes one table;
a release that lacks what a recipe needs leaves the table out and says so in `made.json`. Beside each table lies what
that release read from it: for every version of every branch the schema, the count and the rows.
"""

import base64
import datetime as dt
import decimal
import gzip
import importlib
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

# The module may be any release, so its functions are unknown to the type checker.
lance: Any = importlib.import_module("lance")
PLACE = Path("/tmp/lance-corpus")  # noqa: S108 - branches store the path of their table, which must not be a home
KEPT_ROWS = 100
"""The number of rows kept of a version; of a longer version, rows at equal distances are kept."""
# Releases raise these for an unknown type, option or method.
REFUSALS = (AttributeError, NotImplementedError, OSError, RuntimeError, TypeError, UnboundLocalError, ValueError)
Recipe = Callable[[str], None]


def entries(*numbers: int) -> pa.Table:
    """Rows of a number, its name (null for every fifth) and half of it."""
    names = [None if number % 5 == 0 else f"name {number}" for number in numbers]
    columns: dict[str, Any] = {"id": pa.array(numbers, pa.int64()), "name": pa.array(names, pa.string())}
    return pa.table({**columns, "half": pa.array([number / 2 for number in numbers], pa.float64())})


def write(rows: pa.Table, uri: str, mode: str = "create", **options: Any) -> Any:  # noqa: ANN401 - any release
    """Write with the options that this release takes."""
    return lance.write_dataset(rows, uri, mode=mode, **options)


def plain(uri: str) -> None:
    """Rows added and deleted: two fragments, an append, deleted rows, a deleted fragment, another append."""
    write(entries(*range(8)), uri, max_rows_per_file=4, max_rows_per_group=4)
    write(entries(8, 9, 10), uri, "append")
    lance.dataset(uri).delete("id = 1 or id = 9")
    lance.dataset(uri).delete("id >= 4 and id < 8")
    write(entries(11, 12), uri, "append")
    lance.dataset(uri).delete("id = 2")


def overwritten(uri: str) -> None:
    """A table overwritten with other columns, and then appended to."""
    write(entries(1, 2, 3), uri)
    write(pa.table({"code": pa.array(["a", "b"]), "id": pa.array([7, 8], pa.int32())}), uri, "overwrite")
    write(pa.table({"code": pa.array(["c"]), "id": pa.array([9], pa.int32())}), uri, "append")


def restored(uri: str) -> None:
    """A table restored to an older version, and then appended to."""
    write(entries(1, 2, 3), uri)
    lance.dataset(uri).delete("id = 2")
    lance.dataset(uri, version=1).restore()
    write(entries(4), uri, "append")


def updated(uri: str) -> None:
    """Rows with updated values."""
    write(entries(*range(6)), uri)
    lance.dataset(uri).update({"name": "'new'"}, where="id >= 4")
    lance.dataset(uri).update({"half": "half * 2"})
    write(entries(6), uri, "append")


def upserted(uri: str) -> None:
    """Rows upserted by their key."""
    write(entries(1, 2, 3), uri)
    rows = pa.table({"id": [2, 4], "name": ["two", "four"], "half": [0.5, 0.25]})
    lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)


def joined(uri: str) -> None:
    """A column joined in its own data files, to rows some of which were deleted before."""
    write(entries(1, 2, 3), uri)
    write(entries(4, 5), uri, "append")
    lance.dataset(uri).delete("id = 4")
    lance.dataset(uri).merge(pa.table({"id": [1, 2, 3, 5], "color": ["red", "blue", "green", "grey"]}), left_on="id")
    lance.dataset(uri).delete("color = 'blue'")


def evolved(uri: str) -> None:
    """Columns that are added, renamed, cast and dropped."""
    write(entries(1, 2, 3), uri)
    lance.dataset(uri).add_columns({"double": "id * 2"})
    lance.dataset(uri).drop_columns(["half"])
    if hasattr(lance.dataset(uri), "alter_columns"):
        lance.dataset(uri).alter_columns({"path": "name", "name": "title"})
        lance.dataset(uri).alter_columns({"path": "id", "data_type": pa.int32()})
    rows = {name: [value] for name, value in (("id", 9), ("title", "nine"), ("name", "nine"), ("double", 18))}
    schema = lance.dataset(uri).schema
    write(pa.table({name: rows[name] for name in schema.names}, schema=schema), uri, "append")


def compacted(uri: str) -> None:
    """Small fragments compacted after a deletion, and a deletion after that."""
    for number in range(4):
        write(entries(2 * number, 2 * number + 1), uri, "append" if number else "create")
    lance.dataset(uri).delete("id = 3 or id = 4")
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).delete("id = 7")


def indexed(uri: str) -> None:
    """A scalar index, rows that it does not cover, and deleted rows that it covers."""
    write(entries(*range(20)), uri)
    lance.dataset(uri).create_scalar_index("id", index_type="BTREE")
    write(entries(20, 21), uri, "append")
    lance.dataset(uri).delete("id = 5")


def vectors(uri: str) -> None:
    """Vectors with an index, and rows that it does not cover."""
    write(_vectors(0, 300), uri)
    lance.dataset(uri).create_index("vector", index_type="IVF_PQ", num_partitions=2, num_sub_vectors=2)
    write(_vectors(300, 2), uri, "append")
    lance.dataset(uri).delete("id < 250")


def _vectors(start: int, count: int) -> pa.Table:
    values = pa.array([float((number * 7) % 13) for number in range(4 * start, 4 * (start + count))], pa.float32())
    rows = pa.FixedSizeListArray.from_arrays(values, 4)
    return pa.table({"id": pa.array(range(start, start + count), pa.int64()), "vector": rows})


def emptied(uri: str) -> None:
    """A table whose rows were all deleted, and then appended to."""
    write(entries(1, 2), uri)
    lance.dataset(uri).delete("id > 0")
    write(entries(3), uri, "append")


def many_deleted(uri: str) -> None:
    """A table with so many deleted rows that they are stored as a bitmap."""
    write(pa.table({"id": pa.array(range(8000), pa.int64())}), uri)
    lance.dataset(uri).delete("id % 8 != 0")


def types(uri: str) -> None:
    """Columns of many types, nested ones too."""
    day = dt.date(2024, 2, 29)
    moment = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=dt.UTC)
    columns: dict[str, Any] = {
        "tiny": pa.array([1, None, -3], pa.int8()),
        "large": pa.array([2**63, 1, 0], pa.uint64()),
        "flag": pa.array([True, None, False]),
        "real": pa.array([0.5, None, -1.5], pa.float32()),
        "bytes": pa.array([b"\0\xff", None, b""], pa.binary()),
        "long": pa.array(["long", None, ""], pa.large_string()),
        "day": pa.array([day, None, day], pa.date32()),
        "moment": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
        "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")], pa.decimal128(10, 2)),
        "list": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4, 5, 6], pa.float32()), 2),
        "point": pa.array([{"x": 1, "y": "a"}, {"x": 2, "y": None}, {"x": None, "y": "c"}]),
        "word": pa.array(["red", "blue", "red"]).dictionary_encode(),
    }
    # A release that lacks a type refuses the whole table, so each type is tried by itself.
    taken = {name: column for name, column in columns.items() if _takes(uri, name, column)}
    write(pa.table(taken), uri)
    write(pa.table(taken), uri, "append")


def _takes(uri: str, name: str, column: Any) -> bool:  # noqa: ANN401 - an array of any type
    trial = f"{uri}-trial"
    try:
        write(pa.table({name: column}), trial)
        return bool(lance.dataset(trial).to_table().num_rows == len(column))
    except REFUSALS as error:
        print(f"  {name}: {_said(error)}")  # noqa: T201 - a script
        return False
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def blobs(uri: str) -> None:
    """Large values, marked as blobs; reading them gives their positions."""
    rows = pa.table({"id": [1, 2], "blob": [b"first", None]}, schema=_marked("lance-encoding:blob", "true"))
    write(rows, uri)
    write(rows, uri, "append")


def apart(uri: str) -> None:
    """Large values that some releases stored in a separate table because of their storage class."""
    rows = pa.table({"id": [1, 2], "blob": [b"first", b"2"]}, schema=_marked("lance-schema:storage-class", "blob"))
    write(rows, uri)
    write(rows, uri, "append")


def _marked(key: str, value: str) -> pa.Schema:
    fields: Any = [pa.field("id", pa.int64()), pa.field("blob", pa.large_binary(), metadata={key: value})]
    return pa.schema(fields)


def present_names(uri: str) -> None:
    """Manifest names that list the newest first, which used to be optional."""
    write(entries(1, 2), uri, enable_v2_manifest_paths=True)
    write(entries(3), uri, "append")
    lance.dataset(uri).delete("id = 1")


def first_names(uri: str) -> None:
    """Manifests named by their number, which are optional now."""
    write(entries(1, 2), uri, enable_v2_manifest_paths=False)
    write(entries(3), uri, "append")
    lance.dataset(uri).delete("id = 1")


def with_stable_row_ids(option: str) -> Recipe:
    """Rows with stable row ids, appended, deleted, updated and compacted, under the release's name for the option."""

    def stable(uri: str) -> None:
        lance.write_dataset(entries(*range(6)), uri, **{option: True})
        write(entries(6, 7), uri, "append")
        lance.dataset(uri).delete("id = 2")
        lance.dataset(uri).update({"name": "'new'"}, where="id = 4")
        lance.dataset(uri).optimize.compact_files()
        write(entries(8), uri, "append")

    return stable


def of_file_version(version: str) -> Recipe:
    """Data files of one version of their format."""

    def versioned(uri: str) -> None:
        write(entries(1, 2, 3), uri, data_storage_version=version)
        write(entries(4), uri, "append")
        lance.dataset(uri).delete("id = 2")

    return versioned


def unversioned_second(uri: str) -> None:
    """Data files of the second format from before it had versions."""
    write(entries(1, 2, 3), uri, use_legacy_format=False)
    write(entries(4), uri, "append", use_legacy_format=False)
    lance.dataset(uri).delete("id = 2")


def configured(uri: str) -> None:
    """Settings of the table."""
    write(entries(1, 2), uri)
    lance.dataset(uri).update_config({"color": "red", "size": "1"})
    lance.dataset(uri).delete_config_keys(["size"])
    write(entries(3), uri, "append")


def tagged(uri: str) -> None:
    """A tag on an older version."""
    write(entries(1, 2), uri)
    write(entries(3), uri, "append")
    lance.dataset(uri).tags.create("release", 1)


def branched(uri: str) -> None:
    """A branch with rows of its own."""
    write(entries(1, 2), uri)
    branch = lance.dataset(uri).create_branch("dev", 1)
    write(entries(3), branch, "append")
    _newest(lance.dataset(uri), "dev").delete("id = 1")
    write(entries(4), uri, "append")


def _newest(dataset: Any, branch: str) -> Any:  # noqa: ANN401 - any release
    if hasattr(dataset, "checkout_branch"):
        return dataset.checkout_branch(branch)
    return dataset.checkout_version((branch, None))


RECIPES: dict[str, Recipe] = {
    **{recipe.__name__: recipe for recipe in (plain, overwritten, restored, updated, upserted, joined, evolved)},
    **{recipe.__name__: recipe for recipe in (compacted, indexed, vectors, emptied, many_deleted, types)},
    **{recipe.__name__: recipe for recipe in (first_names, present_names, unversioned_second, configured)},
    **{recipe.__name__: recipe for recipe in (tagged, branched, blobs, apart)},
    "move_stable": with_stable_row_ids("enable_move_stable_row_ids"),
    "stable": with_stable_row_ids("enable_stable_row_ids"),
    **{f"files_{version}": of_file_version(version) for version in ("legacy", "0.1", "2.0", "2.1", "2.2")},
}


def told(value: Any) -> Any:  # noqa: ANN401 - any value of any column
    """Return a value in a form that JSON can hold."""
    match value:
        case dict():
            return {key: told(item) for key, item in value.items()}
        case list():
            return [told(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def sampled(rows: pa.Table) -> pa.Table:
    """Return the rows of a version that are kept."""
    step = max(1, -(-rows.num_rows // KEPT_ROWS))
    return rows.take(pa.array(range(0, rows.num_rows, step), pa.int64()))


def read(dataset: Any) -> dict[str, Any]:  # noqa: ANN401 - any release
    """Return what a release reads from one version."""
    rows = dataset.to_table()
    return {
        "schema": {field.name: str(field.type) for field in dataset.schema},
        "count": dataset.count_rows(),
        "read": rows.num_rows,
        "rows": told(sampled(rows).to_pylist()),
    }


def expected(uri: str) -> dict[str, Any]:
    """Return what a release reads from every version of every branch, and the tags it knows."""
    dataset = lance.dataset(uri)
    found: dict[str, Any] = {"main": {}}
    for version in dataset.versions():
        found["main"][version["version"]] = read(lance.dataset(uri, version=version["version"]))
    names = dataset.branches.list() if hasattr(dataset, "branches") else ()
    for name in names:
        branch = _newest(dataset, name)
        found[name] = {branch.version: read(branch)}
    tags = dataset.tags.list() if hasattr(dataset, "tags") else {}
    return {"branches": found, "tags": {name: tag["version"] for name, tag in tags.items()}}


def made(name: str, recipe: Recipe, folder: Path) -> str | None:
    """Make one table, or return the reason why this release cannot."""
    uri = str(folder / name)
    try:
        recipe(uri)
        (folder / f"{name}.json").write_text(json.dumps(expected(uri), indent=1) + "\n")
    except REFUSALS as error:
        shutil.rmtree(uri, ignore_errors=True)
        return _said(error)
    return None


def _said(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".replace(str(PLACE), "")
    # The folder in which a release was built is of no use here.
    return text.splitlines()[0].split(", /")[0].split(". rust/")[0][:200]


def packed(folder: Path, target: Path) -> None:
    """Pack a folder so that the same files make the same bytes."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    target.write_bytes(gzip.compress(stream.getvalue(), 9, mtime=0))


def main(target: Path) -> None:
    """Make each table that this release can make, and pack them."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    missing = {name: reason for name, recipe in RECIPES.items() if (reason := made(name, recipe, PLACE)) is not None}
    summary = {"pylance": lance.__version__, "pyarrow": pa.__version__, "place": str(PLACE), "missing": missing}
    (PLACE / "made.json").write_text(json.dumps(summary, indent=1) + "\n")
    archive = target / f"lance-{lance.__version__}.tar.gz"
    packed(PLACE, archive)
    print(f"{archive}: {archive.stat().st_size} bytes, without {', '.join(missing) or 'nothing'}")  # noqa: T201 - a script
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
