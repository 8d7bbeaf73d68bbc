"""`lance-dagster page`."""

from pathlib import Path

from tests.cli.running import run
from tests.page.lakes import busy_lake


def test_the_page_is_written(tmp_path: Path) -> None:
    """The command says which file it wrote, and how large it is."""
    lake, file = busy_lake(tmp_path / "lake"), tmp_path / "page.html"
    done = run("page", lake.root, "--out", str(file))
    assert f"{file}: {file.stat().st_size:,} bytes" in done.output
    assert file.read_text().startswith("<!doctype html>")


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """The error names the file."""
    lake, file = busy_lake(tmp_path / "lake"), tmp_path / "missing" / "page.html"
    done = run("page", lake.root, "--out", str(file))
    assert 1 == done.exit_code
    assert f"cannot write {file}: No such file or directory" in done.stderr


def test_there_is_no_page_of_a_folder_without_a_lake(tmp_path: Path) -> None:
    """The exit code is 2, as for every lake that is not there."""
    done = run("page", str(tmp_path))
    assert 2 == done.exit_code
    assert "no repository at" in done.stderr
