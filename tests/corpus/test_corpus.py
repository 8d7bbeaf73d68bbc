"""Tables that releases of pylance wrote, from the first with versions to the present one.

`make.py` made them. The package must read what each release read from its own tables, or refuse it with the reason.
"""

import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CorruptFileError, LanceDagsterError, StoreError, UnsupportedFeatureError
from lance_dagster.format.layout import manifest_name
from lance_dagster.verify.manifest_rules import ERROR
from tests.corpus.make import sampled, told
from tests.soak import every, thinned

HERE = Path(__file__).parent
Expected = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """A table of the corpus: the release that wrote it, its name, and what that release read from it."""

    release: tuple[int, ...]
    name: str
    expected: Expected

    @property
    def label(self) -> str:
        """The name of its test."""
        return f"{'.'.join(map(str, self.release))}-{self.name}"


def corpus() -> Iterator[Written]:
    """All tables."""
    for path in sorted(HERE.glob("lance-*.tar.gz")):
        release = tuple(map(int, path.name.removeprefix("lance-").removesuffix(".tar.gz").split(".")))
        with tarfile.open(path) as archive:
            for entry in archive:
                if "/" not in entry.name and entry.name != "made.json":
                    file = archive.extractfile(entry)
                    assert file is not None
                    yield Written(release, entry.name.removesuffix(".json"), json.load(file))


ALL = list(corpus())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the rows cannot be read from a version on; pylance 14 cannot read them either."""

    error: type[LanceDagsterError]
    said: str
    since: int = 1


def refusal(table: Written) -> Refusal | None:
    """Return why the rows of a table cannot be read, or None."""
    unfinished = "data files that pylance cannot read"
    rules: dict[str, tuple[bool, Refusal]] = {
        # Pylance crashes on values marked as blobs in files of the first format.
        "blobs": ((0, 7) <= table.release < (0, 19), Refusal(StoreError, "pylance crashed")),
        "joined": (table.release < (0, 8), Refusal(CorruptFileError, "v1 binary row range", 4)),
        "files_2.1": (table.release < (0, 38), Refusal(UnsupportedFeatureError, unfinished)),
        "files_2.2": (table.release < (2,), Refusal(UnsupportedFeatureError, unfinished)),
        # These releases compacted updated rows without giving them row ids.
        "move_stable": (True, Refusal(CorruptFileError, "6 row ids for 7 rows", 6)),
        "apart": ((0, 19) <= table.release < (1,), Refusal(UnsupportedFeatureError, "columns of storage class 'blob'")),
    }
    applies, found = rules.get(table.name, (False, None))
    return found if applies else None


def is_refused_whole(table: Written) -> bool:
    """Whether the package cannot even count its rows."""
    found = refusal(table)
    return table.name == "apart" and found is not None


def is_uncounted(table: Written) -> bool:
    """Whether its fragments do not record their number of rows."""
    return table.release < (0, 8)


def takes_no_files(table: Written) -> bool:
    """Whether its data files are of the first format, or of the second one before it had versions."""
    early = table.release < (0, 16) or table.name in {"files_legacy", "files_0.1"}
    return early or (table.release < (0, 19) and table.name not in {"files_2.0", "unversioned_second"})


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole corpus, in a folder for each release; tests must not write to it."""
    folder = tmp_path_factory.mktemp("corpus")
    for path in HERE.glob("lance-*.tar.gz"):
        with tarfile.open(path) as archive:
            # The first releases of Python 3.11 have no filters; the archive is trusted, so all of it may be extracted.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder / path.name.removeprefix("lance-").removesuffix(".tar.gz"))  # noqa: S202
    return folder


def opened(unpacked: Path, table: Written, copy: Path | None = None) -> LanceTable:
    """Open a table of the corpus, or a copy of it."""
    path = unpacked / ".".join(map(str, table.release)) / table.name
    return LanceTable.open(path if copy is None else shutil.copytree(path, copy / table.name))


def names(table: LanceTable) -> set[str]:
    """The names of the manifests of main."""
    return {path.name for path in (Path(table.uri) / "_versions").glob("*.manifest")}


def kept() -> set[str]:
    """The tables that `make test` tests: one of each release, and at least one of every kind.

    Each release gives a table of the kind that the fewest earlier releases gave, to spread kinds over releases.
    """
    chosen: dict[str, str] = {}
    counted: Counter[str] = Counter()
    for release in sorted({table.release for table in ALL}):
        table = min((one for one in ALL if one.release == release), key=lambda one: (counted[one.name], one.name))
        chosen[table.label] = table.name
        counted[table.name] += 1
    left = {table.name: table.label for table in ALL if not counted[table.name]}
    return {*chosen, *left.values()}


KEPT = kept()
EVERY = pytest.mark.parametrize(
    "table", thinned(ALL, kept=lambda table: table.label in KEPT, label=lambda table: table.label)
)


def test_the_corpus_is_whole() -> None:
    """All archives are found, with all tables."""
    assert 23 <= len({table.release for table in ALL})
    assert 300 <= len(ALL)


@EVERY
def test_every_version_is_what_its_release_read(unpacked: Path, table: Written) -> None:
    """The package reads the count, schema and rows that the release read, or raises an error with the reason."""
    found = opened(unpacked, table)
    assert sorted(map(int, table.expected["branches"]["main"])) == found.branches.version_numbers()
    refused = refusal(table)
    for number, expected in table.expected["branches"]["main"].items():
        ref = f"main@{number}"
        if is_refused_whole(table) and refused is not None:
            with pytest.raises(refused.error, match=refused.said):
                found.count_rows(ref)
            continue
        assert expected["schema"] == {field.name: str(field.type) for field in found.schema(ref)}
        assert expected["count"] == found.count_rows(ref)
        if refused is not None and int(number) >= refused.since:
            with pytest.raises(refused.error, match=refused.said):
                found.read(ref)
            continue
        rows = found.read(ref)
        assert expected["read"] == rows.num_rows
        assert expected["rows"] == told(sampled(rows).to_pylist())


@EVERY
def test_history_and_soundness(unpacked: Path, table: Written) -> None:
    """Each version names its writer, unless its rows cannot be counted."""
    found = opened(unpacked, table)
    if is_uncounted(table):
        with pytest.raises(UnsupportedFeatureError, match="fragments without a number of rows"):
            found.log()
        return
    if is_refused_whole(table):
        with pytest.raises(UnsupportedFeatureError, match="storage class"):
            found.log()
        return
    # The first releases did not record it.
    written = f"lance {'.'.join(map(str, table.release))}" if table.release >= (0, 8, 14) else "an unknown program"
    assert {written} == {version.writer for version in found.log()}
    counts = [expected["count"] for expected in table.expected["branches"]["main"].values()]
    assert counts == [version.rows for version in reversed(found.log())]
    assert dict(table.expected["tags"]) == {tag.name: tag.version for tag in found.tags.list().values()}


# The problems of tables other than unreadable rows; a key with a release is for that release alone.
WRONG = {
    "move_stable": "the ids of its rows cannot be right",
    "branched": "branch 'dev' has no identifier",
    "0.12.3-unversioned_second": "cannot read columns of differing lengths",
    "0.16.1-files_2.1": "the data file is of version 2.0",
    "files_2.1": "it cannot be read",
    "files_2.2": "it cannot be read",
    "apart": "uses features this release does not support",
}


# Reading files needs a process, so only these tables are verified deeply.
DEEP = frozenset({"plain", "files_2.0", "stable", "unversioned_second"})


@EVERY
def test_nothing_is_said_to_be_wrong_that_is_not(unpacked: Path, tmp_path: Path, table: Written) -> None:
    """`verify` reports no false problem of old tables, some of which are verified with the content of their files."""
    found = opened(unpacked, table, tmp_path)
    if table.name == "branched":
        found.maintenance.relocate()
    problems = [
        problem.what
        for problem in found.maintenance.verify(deep=table.name in DEEP).problems
        if problem.severity == ERROR
    ]
    known = WRONG.get(table.label, WRONG.get(table.name, "nothing"))
    # Versions of a branch from before the table was moved look for files at the old place, outside of the table.
    before = ("the file is missing", "a base path outside of the table is not allowed", "it cannot be listed")
    moved = [what for what in problems if what.startswith(before) and table.name == "branched"]
    assert [] == [what for what in problems if known not in what and what not in moved]


@EVERY
def test_the_package_goes_on_with_it(unpacked: Path, tmp_path: Path, table: Written) -> None:
    """The package appends a row, then pylance does; manifests keep their naming scheme until they are migrated."""
    # Reading a blob gives its position, which cannot be written again.
    if refusal(table) is not None or table.name == "blobs":
        return
    table_copy = opened(unpacked, table, tmp_path)
    before = table_copy.read()
    if not before.num_rows:
        return
    row = before.take(pa.array([0]))
    if is_uncounted(table):
        with pytest.raises(UnsupportedFeatureError, match="fragments without a number of rows"):
            table_copy.delete("true")
        lance.dataset(table_copy.uri).update_config({"counted": "by pylance"})
    elif table.name in {"vectors", "indexed"} and table.release < (0, 8, 15):
        with pytest.raises(UnsupportedFeatureError, match="indices of pylance before"):
            table_copy.delete("id >= 0")
        lance.dataset(table_copy.uri).update_config({"indices": "by pylance"})
    if takes_no_files(table):
        with pytest.raises(UnsupportedFeatureError, match=r"of version '0\.1'|older than 2\.0"):
            table_copy.append(row)
        lance.dataset(table_copy.uri).insert(row)
    else:
        table_copy.append(row)
    assert pa.concat_tables([before, row]).to_pylist() == table_copy.read().to_pylist()
    if "id" in row.column_names:
        table_copy.delete(f"id = {row['id'][0]}")
        before = before.filter(pc.field("id") != row["id"][0])
        assert before.to_pylist() == table_copy.read().to_pylist()
    expected = lance.dataset(table_copy.uri)
    expected.validate()
    assert expected.count_rows() == table_copy.count_rows() == table_copy.read().num_rows
    assert table_copy.read() == expected.to_table()
    old = "1.manifest" in names(table_copy)
    assert {(f"{n}.manifest" if old else manifest_name(n)) for n in table_copy.branches.version_numbers()} == names(
        table_copy
    )
    assert old == (table_copy.maintenance.migrate_manifest_names() > 0)
    assert 0 == table_copy.maintenance.migrate_manifest_names()
    count = table_copy.count_rows()
    lance.dataset(table_copy.uri).insert(row)
    assert set(map(manifest_name, table_copy.branches.version_numbers())) == names(table_copy)
    assert count + 1 == table_copy.count_rows()


@EVERY
def test_what_the_package_makes_of_it_can_be_read(unpacked: Path, tmp_path: Path, table: Written) -> None:
    """A commit, a fork and both kinds of clone have the rows, in the package and in pylance, before pylance commits."""
    if refusal(table) is not None or table.name == "blobs":
        return
    table_copy = opened(unpacked, table, tmp_path)
    rows = table_copy.read()
    if table.name == "types" and table.release < (0, 19):
        with pytest.raises(UnsupportedFeatureError, match="the dictionary of column 'word'"):
            table_copy.branches.create("fork")
        return
    table_copy.branches.create("fork")
    assert rows == table_copy.read("fork")
    assert rows == table_copy.maintenance.clone(tmp_path / "deep", shallow=False).read()
    assert rows == table_copy.maintenance.clone(tmp_path / "shallow", "fork").read()
    early = table.name in {"vectors", "indexed"} and table.release < (0, 8, 15)
    if (is_uncounted(table) and rows.num_rows) or early:
        with pytest.raises(UnsupportedFeatureError, match=r"without a number of rows|of pylance before"):
            table_copy.config.set({"set": "by the package"})
        return
    table_copy.config.set({"set": "by the package"})
    assert rows == table_copy.read() == lance.dataset(table_copy.uri).to_table()


BRANCHED = [table for table in ALL if len(table.expected["branches"]) > 1]


@pytest.mark.parametrize("table", thinned(BRANCHED, kept=every(3), label=lambda table: table.label))
def test_branches_work_at_another_place(unpacked: Path, tmp_path: Path, table: Written) -> None:
    """Branches can be read, written and merged after the table was moved, under either naming scheme of manifests."""
    table_copy = opened(unpacked, table, tmp_path)
    ((number, expected),) = table.expected["branches"]["dev"].items()
    assert expected["count"] == table_copy.count_rows(f"dev@{number}")
    table_copy.maintenance.relocate()
    rows = table_copy.read("dev")
    assert expected["rows"] == told(rows.to_pylist())
    table_copy.append(rows.take(pa.array([0])), branch="dev")
    assert expected["count"] + 1 == table_copy.count_rows("dev")
    table_copy.merge("dev")
    lance.dataset(table_copy.uri).validate()
    assert table_copy.read() == lance.dataset(table_copy.uri).to_table()
    table_copy.maintenance.migrate_manifest_names()
    assert expected["count"] + 1 == LanceTable.open(table_copy.uri).count_rows("dev")
