"""The demo runs once, as a user runs it; pylance alone reads its results."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from example_project import places, source

CHECKOUT = Path(__file__).parents[2]
MONTHLY = ("flights", "weather")
DIMENSIONS = ("airlines", "airports", "planes")
MADE = ("flight_features", "training_set")
TABLES = (*MONTHLY, *DIMENSIONS, *MADE)
LOADED_MONTHS = (1, 2)

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Demo:
    """The output and the files of a run of the demo."""

    output: str
    root: Path

    def uri(self, table: str) -> str:
        """The URI of a table."""
        return str(self.root / "tables" / "nyc" / f"{table}.lance")

    def production(self, table: str) -> lance.LanceDataset:
        """A table at the tag `production`."""
        return lance.dataset(self.uri(table), version="production")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The finished demo; it exits with 0 only if every step succeeded."""
    root = tmp_path_factory.mktemp("demo") / ".demo"
    done = run_demo(root)
    assert 0 == done.returncode, done.stdout + done.stderr
    return Demo(done.stdout, root)


@pytest.fixture(autouse=True)
def _unpack_elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.ROOT_VARIABLE, str(tmp_path_factory.getbasetemp() / "example_source"))


def run_demo(root: Path, module: str = "example_project.demo") -> "subprocess.CompletedProcess[str]":
    """Run the demo as `make demo` does, with its state in another folder."""
    return subprocess.run(
        [sys.executable, "-m", module],
        cwd=CHECKOUT,
        env={**os.environ, "LANCE_DAGSTER_DEMO_ROOT": str(root), "COLUMNS": "140"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_every_step_is_told(demo: Demo) -> None:
    """The demo prints six steps, the history and the way to open a table."""
    for title in ("1 January", "2 February", "3 February", "4 Row from", "5 Back and forward", "6 The report"):
        assert title in demo.output
    assert "◀ production" in demo.output
    assert f'lance.dataset("{demo.uri("flights")}", version="production")' in demo.output


def test_a_folder_of_somebody_else_stops_the_demo(tmp_path: Path) -> None:
    """The demo deletes nothing from a folder that it did not make, and exits with 2."""
    (tmp_path / "thesis.odt").touch()
    done = run_demo(tmp_path)
    assert (2, True) == (done.returncode, (tmp_path / "thesis.odt").exists())
    assert "was not made by this demo" in done.stdout


@pytest.mark.parametrize("table", TABLES)
def test_pylance_opens_production_and_finds_it_valid(demo: Demo, table: str) -> None:
    """The tag opens as a version of main, which pylance validates."""
    production = demo.production(table)
    production.validate()
    assert production.to_table().num_rows == production.count_rows()


@pytest.mark.parametrize("table", MONTHLY)
def test_production_has_the_rows_of_the_loaded_months(demo: Demo, table: str) -> None:
    """Each loaded month has as many rows as in the source file, and no other month has rows."""
    found = Counter(demo.production(table).to_table(columns=["month"])["month"].to_pylist())
    expected = {month: source.rows_by_month(table)[month] for month in LOADED_MONTHS}
    assert expected == found


@pytest.mark.parametrize("table", DIMENSIONS)
def test_production_has_the_rows_of_the_source(demo: Demo, table: str) -> None:
    """The tables without months have all rows of the source, and no foreign ones."""
    assert source.rows(table) == demo.production(table).count_rows()


def test_every_flight_has_a_vector(demo: Demo) -> None:
    """Each flight has one feature vector of fixed length, and each arrival one training example."""
    flights, features = demo.production("flights"), demo.production("flight_features")
    assert flights.count_rows() == features.count_rows()
    vectors = features.schema.field("features").type
    assert (16, "float") == (vectors.list_size, str(vectors.value_type))
    assert flights.count_rows("arr_delay IS NOT NULL") == demo.production("training_set").count_rows()


def test_defective_rows_are_in_no_version_of_main(demo: Demo) -> None:
    """The rows that the audit stopped are in no version of main."""
    uri = demo.uri("flights")
    versions = [version["version"] for version in lance.dataset(uri).versions()]
    assert len(versions) >= len(LOADED_MONTHS)
    assert {0} == {lance.dataset(uri, version=version).count_rows("distance < 0") for version in versions}


@pytest.mark.parametrize("table", TABLES)
def test_main_names_files_of_its_own_folder_only(demo: Demo, table: str) -> None:
    """No data file of main needs a base path, so the folder of the table can be moved or copied."""
    fragments = lance.dataset(demo.uri(table)).get_fragments()
    assert {None} == {file.base_id for fragment in fragments for file in fragment.data_files()}


@pytest.mark.parametrize("table", TABLES)
def test_run_branches_are_retired(demo: Demo, table: str) -> None:
    """Only branches that commits of the repository need are left."""
    assert {} == lance.dataset(demo.uri(table)).branches.list()


@pytest.mark.parametrize("table", TABLES)
def test_pylance_cleanup_loses_nothing(demo: Demo, table: str) -> None:
    """After pylance's default clean-up each earlier version can still be read."""
    uri = demo.uri(table)
    before = {version["version"]: rows_at(uri, version["version"]) for version in lance.dataset(uri).versions()}
    lance.dataset(uri).cleanup_old_versions()
    assert before == {version["version"]: rows_at(uri, version["version"]) for version in lance.dataset(uri).versions()}


@pytest.mark.parametrize("table", TABLES)
def test_a_copy_survives_the_strictest_cleanup(demo: Demo, table: str, tmp_path: Path) -> None:
    """A copy without old versions and unreferenced files still has all rows of production and main."""
    copy = tmp_path / f"{table}.lance"
    shutil.copytree(demo.uri(table), copy)
    expected = demo.production(table).count_rows(), lance.dataset(demo.uri(table)).count_rows()
    stripped = lance.dataset(copy)
    stripped.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    found = rows_at(str(copy), "production"), lance.dataset(copy).to_table().num_rows
    assert expected == found


def test_the_row_from_outside_is_on_main_only(demo: Demo) -> None:
    """The row that pylance appended stays on main and is not promoted."""
    on_main, promoted = lance.dataset(demo.uri("airlines")), demo.production("airlines")
    assert (1, 0) == (on_main.count_rows("carrier = 'G4'"), promoted.count_rows("carrier = 'G4'"))
    assert promoted.count_rows() + 1 == on_main.count_rows()


def test_the_report_is_made_from_production(demo: Demo) -> None:
    """The report's numbers add up to the promoted training set."""
    lines = (demo.root / "reports" / "delay_by_carrier.csv").read_text().splitlines()
    assert "carrier,name,flights,late_percent" == lines[0]
    assert demo.production("training_set").count_rows() == sum(int(line.rsplit(",", 2)[1]) for line in lines[1:])


def rows_at(uri: str, version: int | str) -> int:
    """Read a whole version and count its rows."""
    return lance.dataset(uri, version=version).to_table().num_rows


@pytest.mark.soak
def test_the_demo_runs_on_s3_and_leaves_no_credential(tmp_path: Path) -> None:
    """The demo runs with temporary credentials; its final search covers databases, logs and the bucket."""
    done = run_demo(tmp_path / ".demo", "tests.servers.demo")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "The tables are in s3://lake/tables" in done.stdout
    assert "Neither is in any file." in done.stdout
    flights = lance.dataset(
        str(tmp_path / ".demo" / "bucket" / "tables" / "nyc" / "flights.lance"), version="production"
    )
    assert sum(source.rows_by_month("flights")[month] for month in LOADED_MONTHS) == flights.count_rows()
