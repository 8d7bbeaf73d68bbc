"""Check that the folders of the tests are those of the package, and that the groups of workers name tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture import PACKAGE, FunctionNode
from tests.workers import GROUPS

ROOT = Path(__file__).parent.parent
OWN_FOLDERS = {"cluster", "compat", "corpus", "examples", "faults", "properties", "properties/merging", "servers"}
"""Folders of tests that hold for the package as a whole, and the servers that tests talk to."""
OF_THE_CHECKOUT = {
    *("test_benchmarks.py", "test_credentials.py", "test_errors.py", "test_extras.py"),
    *("test_layout.py", "test_project_files.py", "test_source.py"),
}
"""Tests of the checkout: its sources, its tools, its tests, and the one module at the top of the package."""


def folders(top: Path) -> set[str]:
    """The folders with Python files, by their paths below a folder."""
    found = {path.parent.relative_to(top).as_posix() for path in top.rglob("*.py")}
    return found - {"."}


def test_the_folders_of_tests_are_those_of_the_package() -> None:
    """The folders of the tests have the names of the package's folders."""
    assert set() == folders(ROOT / "tests") - folders(ROOT / PACKAGE) - OWN_FOLDERS


def test_only_tests_of_the_checkout_lie_on_top() -> None:
    """The top folder has only tests of the checkout; tests of a feature are in the folder of the feature."""
    assert OF_THE_CHECKOUT == {path.name for path in (ROOT / "tests").glob("test_*.py")}


def users_of(fixture: str) -> Iterator[str]:
    """The test modules in which a function takes a fixture."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, FunctionNode) and fixture in {item.arg for item in node.args.args}:
                yield path.relative_to(ROOT).as_posix()


def test_the_spark_session_is_on_one_worker() -> None:
    """Every module that uses the Spark session is in its group: a second session would cost seconds and a gigabyte."""
    assert {path for path, group in GROUPS.items() if group == "spark"} == set(users_of("spark"))


def test_groups_are_of_modules_that_exist() -> None:
    """Every module of a group exists, so that a moved module keeps its group."""
    assert [] == [path for path in GROUPS if not (ROOT / path).is_file()]
