from pathlib import Path

import pytest

from example_project import places


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's folder, which does not exist yet."""
    monkeypatch.setenv(places.ROOT_VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_second_demo_starts_empty(root: Path) -> None:
    """The second demo removes the files of the first and writes Dagster's settings again."""
    places.start_empty()
    (root / "tables" / "nyc").mkdir(parents=True)
    places.start_empty()
    assert [".lance_dagster_example", "dagster_home"] == sorted(entry.name for entry in root.iterdir())
    assert (root / "dagster_home" / "dagster.yaml").exists()


def test_a_folder_of_somebody_else_is_refused(root: Path) -> None:
    """A folder without the marker file is not changed."""
    (root / "tables").mkdir(parents=True)
    with pytest.raises(places.UnrecognisedFolderError, match="was not made by this demo"):
        places.start_empty()
    assert (root / "tables").exists()


def test_the_folder_of_loaded_definitions_is_no_obstacle(root: Path) -> None:
    """The demo starts in a folder in which the example's definitions were loaded before, as tests do."""
    (root / "source").mkdir(parents=True)
    places.start_empty()
    assert [".lance_dagster_example", "dagster_home"] == sorted(entry.name for entry in root.iterdir())


def test_a_file_of_somebody_else_is_kept(root: Path) -> None:
    """One unknown entry stops the removal before anything is deleted."""
    places.start_empty()
    (root / "tables").mkdir()
    (root / "thesis.odt").touch()
    with pytest.raises(places.UnrecognisedFolderError, match=r"thesis\.odt"):
        places.start_empty()
    assert (root / "tables").exists()


def test_a_link_is_removed_and_not_followed(root: Path, tmp_path: Path) -> None:
    """The target of the link stays as it is."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    places.start_empty()
    (root / "tables").symlink_to(elsewhere)
    places.start_empty()
    assert elsewhere.exists()
    assert not (root / "tables").exists()


def test_an_unpacked_source_is_no_obstacle(root: Path) -> None:
    """Whoever reads the source first can run the demo afterwards; files of somebody else still stop it."""
    (places.make_unpacked() / "flights.csv").touch()
    places.start_empty()
    assert not (root / "source").exists()
    (root / ".lance_dagster_example").unlink()
    (root / "reports").mkdir()
    (places.make_unpacked() / "flights.csv").touch()
    with pytest.raises(places.UnrecognisedFolderError, match="was not made by this demo"):
        places.start_empty()
