"""The examples in docstrings run, and show what they return."""

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import lance_dagster
import lance_dagster.types

ROOT = Path(__file__).parent.parent.parent
PROMPT = ">>> "


def modules_with_examples() -> Iterator[str]:
    """The modules of the package with an example in a docstring."""
    for path in sorted((ROOT / "lance_dagster").rglob("*.py")):
        if PROMPT in path.read_text():
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who types an example gets the result that follows it; files are below the current folder."""
    monkeypatch.chdir(tmp_path)
    modules = (lance_dagster, lance_dagster.types)
    public = {name: getattr(module, name) for module in modules for name in dir(module)}
    module = importlib.import_module(name)
    assert 0 == doctest.testmod(module, extraglobs={**public, "dg": dg, "pa": pa, "Path": Path}).failed
