"""Check that the files of the project agree: dependencies, lock, Makefile, generated code."""

import ast
import filecmp
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Set as AbstractSet
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests import architecture

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]

# Extras that users install for what the package itself does.
EXTRAS = ("connect", "java", "polars", "s3", "spark")
# Required, and never imported by the package.
DEMANDED_BY_OTHERS = {
    NormalizedName("pandas"): "Spark's mapInArrow refuses to start without it",
    NormalizedName("s3fs"): "fsspec loads it for s3://",
    **dict.fromkeys(
        map(NormalizedName, ("googleapis-common-protos", "grpcio", "grpcio-status", "zstandard")),
        "the client of Spark Connect imports it",
    ),
}


def declared() -> dict[NormalizedName, Requirement]:
    """Every requirement of the project, those of its extras included, by name."""
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
    ]
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(item.name): item for item in found if item.name != PROJECT["name"]}


@cache
def imported() -> AbstractSet[NormalizedName]:
    """The distributions from which the package imports; cached, because all modules are parsed."""
    owners = packages_distributions()
    own = {architecture.PACKAGE, *sys.stdlib_module_names}
    return {
        canonicalize_name(owners[top][0]) if top != "google" else NormalizedName("protobuf")
        for path in ROOT.glob(f"{architecture.PACKAGE}/**/*.py")
        for item in architecture.imports(str(path.relative_to(ROOT)), path.read_text())
        if (top := item.name.split(".")[0]) not in own
    }


def test_every_import_is_declared() -> None:
    """What the package imports is in pyproject.toml."""
    assert set() == imported() - set(declared())


def test_every_requirement_is_used() -> None:
    """Every requirement, including extras, is imported somewhere, or required by a distribution that is."""
    lines = [*PROJECT["dependencies"], *(line for name in EXTRAS for line in PROJECT["optional-dependencies"][name])]
    required = {canonicalize_name(Requirement(line).name) for line in lines} - {canonicalize_name(PROJECT["name"])}
    assert set() == required - imported() - DEMANDED_BY_OTHERS.keys()


def test_the_lock_is_plain() -> None:
    """A line of the lock is a name and a release, so it works with any package index."""
    assert [] == [line for line in LOCK if not re.fullmatch(r"[\w.-]+==[\w.!+]+", line)]


def test_the_lock_fits_the_project() -> None:
    """The lock has a release that pyproject.toml allows for every requirement; `make lock` writes it."""
    locked = {canonicalize_name(name): release for name, _, release in (line.partition("==") for line in LOCK)}
    wanting = [
        str(item)
        for name, item in declared().items()
        if name not in locked or not item.specifier.contains(locked[name], prereleases=True)
    ]
    assert [] == wanting


def test_releases_between_are_allowed() -> None:
    """Each release that `make supported` tests between the ends is one that pyproject.toml allows."""
    between = [Requirement(line) for line in runpy.run_path(str(ROOT / ".ci/supported.py"))["BETWEEN"]]
    pinned = {item.name: next(iter(item.specifier)).version for item in between}
    assert set() < pinned.keys()
    assert [] == [
        name for name, release in pinned.items() if not declared()[NormalizedName(name)].specifier.contains(release)
    ]


def test_the_page_of_the_package_index_has_no_relative_links() -> None:
    """The substitution of pyproject.toml leaves no link to a file of the checkout, and keeps addresses and anchors."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]
    (links,) = metadata["hooks"]["fancy-pypi-readme"]["substitutions"]
    stays = "[Lance](https://lance.org) [below](#below)"
    assert f"Errors {stays}" == re.sub(links["pattern"], links["replacement"], f"[Errors](docs/e.md#a) {stays}")
    readme = (ROOT / "README.md").read_text()
    relative = re.compile(r"\]\((?!https?://|#)")
    assert relative.search(readme)
    assert not relative.search(re.sub(links["pattern"], links["replacement"], readme))


def test_every_dependency_has_a_reason() -> None:
    """The page of decisions names every requirement."""
    page = (ROOT / "docs/decisions/0001-dependencies.md").read_text()
    assert [] == [item.name for item in declared().values() if item.name not in page]


@pytest.mark.parametrize(
    "target", ["install", "demo", "ui", "test", "soak", "supported", "lint", "proto", "docs", "bench", "lock", "clean"]
)
def test_make_lists_its_targets(target: str) -> None:
    """`make` without a target shows every target with what it does."""
    shown = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert re.search(rf"^  make {target} +\S", shown, re.MULTILINE)


def test_continuous_integration_can_start() -> None:
    """The script is executable and stops at the first failure."""
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


def test_nothing_is_skipped_in_continuous_integration() -> None:
    """Each variable by which a test fails instead of skipping is set before `make test`."""
    required = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"LANCE_DAGSTER_\w+_REQUIRED", path.read_text())
    }
    before = (ROOT / ".ci/run").read_text().partition("make test")[0]
    assert set() < required == set(re.findall(r"(\w+_REQUIRED)=1", before))


def test_generated_code_is_that_of_the_protos(tmp_path: Path) -> None:
    """`make proto` writes what is committed."""
    command = ["make", "-o", "install", "proto", f"VENV={sys.prefix}", f"PROTO_OUT={tmp_path}"]
    shown = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert 0 == shown.returncode, f"{shown.stderr}\nThe compiler comes with `make install`."
    names = sorted(path.name for path in tmp_path.iterdir())
    assert ([], []) == filecmp.cmpfiles(tmp_path, ROOT / architecture.GENERATED, names, shallow=False)[1:]


def test_generated_code_loads_on_the_oldest_runtime() -> None:
    """The generated code loads on the oldest protobuf that pyproject.toml allows."""
    floor = next(item.version for item in declared()[NormalizedName("protobuf")].specifier if item.operator == ">=")
    generated = [*(ROOT / architecture.GENERATED).glob("*_pb2.py")]
    assert generated
    for path in generated:
        check = next(
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ValidateProtobufRuntimeVersion")
        )
        assert floor == ".".join(ast.unparse(argument) for argument in check.args[1:3])
