"""Check the rules of the project on its source: layers, doors, limits of size, names."""

import ast
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import lance_dagster
import lance_dagster.types
from tests import architecture

ROOT = Path(__file__).parent.parent
PACKAGE = architecture.PACKAGE

# The class after which a folder is named may be imported from the folder too.
SUBJECTS = {"LanceTable", "LanceRepository"}

# One source for each rule that has to break it: a path, and the text.
BROKEN = {
    "layers": ("lance_dagster/format/model.py", "def f():\n    from lance_dagster.history import refs\n"),
    "doors": ("lance_dagster/table.py", "import fsspec\n"),
    "purity": ("lance_dagster/merge/rules/plan.py", "import time\n"),
    "private_dagster": ("example_project/jobs.py", "from dagster._core import instance\n"),
    "module_length": ("lance_dagster/table.py", "x = 1\n" * 801),
    "body_length": ("lance_dagster/table.py", "def f():\n" + "    x = 1\n" * 51),
    "parameters": ("lance_dagster/table.py", "def f(a, b, c, d, e): ...\n"),
    "documented": ("lance_dagster/table.py", '"""Tables."""\nclass Table: ...\n'),
    "homeless": ("lance_dagster/spark/utils.py", ""),
    "broad_except": ("lance_dagster/table.py", "try: ...\nexcept (KeyError, Exception): ...\n"),
    "options": ("lance_dagster/table.py", "def f(**given: Unpack[Given]):\n    given.get('a')\n"),
    "assertions": ("lance_dagster/table.py", "assert True\n"),
    "mocks": ("tests/test_table.py", "from unittest import mock\n"),
    "matched_words": ("tests/test_table.py", f"with raises(ValueError, match={'x' * 61!r}):\n    f()\n"),
    "prose": ("lance_dagster/table.py", "x = 1\n# The arbiter decides.\n"),
}

# More sources that break a rule, and near misses that break none, each with the number of findings.
SUBTLE = [
    ("layers", "lance_dagster/table.py", "from lance_dagster import LanceTable\n", 1),
    ("layers", "lance_dagster/spark/reader.py", "from ..plugin import resource\n", 1),
    ("layers", "lance_dagster/store/local.py", "from lance_dagster.transactions import apply\n", 1),
    ("layers", "lance_dagster/nouns.py", "", 1),
    ("layers", "lance_dagster/table.py", "from .history import refs\nfrom lance_dagster import errors\n", 0),
    ("doors", "lance_dagster/history/gc.py", "import pendulum\npendulum.parse('2026-01-31')\n", 1),
    ("doors", "lance_dagster/history/gc.py", "import pendulum\npendulum.now('UTC')\n", 0),
    ("doors", "lance_dagster/table.py", "from google.protobuf import message\n", 1),
    ("doors", "lance_dagster/table.py", "import lancedb\n", 0),
    ("doors", "lance_dagster/datafiles/reading.py", "import lance.fragment\n", 0),
    ("purity", "lance_dagster/format/model.py", "import datetime\ndatetime.datetime.now()\n", 1),
    ("purity", "lance_dagster/format/model.py", "def f(p):\n    return open(p)\n", 1),
    ("purity", "lance_dagster/store/local.py", "import os\n", 0),
    ("private_dagster", "tests/test_x.py", "import dagster\nfrom dagster import __version__\n", 0),
    ("body_length", "lance_dagster/table.py", 'def f():\n    """A.' + "\n" * 60 + '"""\n    x\n', 0),
    ("parameters", "lance_dagster/table.py", "def f(a, b, *, c, d, e, f, g): ...\n", 1),
    ("parameters", "lance_dagster/table.py", "class A:\n    def f(self, a, b, c, d, *, e): ...\n", 0),
    ("parameters", "lance_dagster/errors.py", "class AError:\n    def __init__(self, a, b, c, d, e): ...\n", 0),
    ("documented", "lance_dagster/table.py", '"""A."""\ndef _f(): ...\n', 0),
    ("broad_except", "tests/test_table.py", "try: ...\nexcept: ...\n", 1),
    ("broad_except", "lance_dagster/table.py", "try: ...\nexcept BaseException:\n    raise\n", 0),
    ("options", "lance_dagster/table.py", "def f(**given: Unpack[Given]):\n    g(**given)\n", 0),
    ("options", "lance_dagster/table.py", "def f(**given: Unpack[Given]):\n    check_options(f, given, Given)\n", 0),
    ("mocks", "tests/test_table.py", "def test_a(monkeypatch):\n    monkeypatch.setattr('a', 'b')\n", 1),
    ("matched_words", "tests/test_table.py", "with raises(ValueError, match='a tag'):\n    f()\n", 0),
    ("prose", "lance_dagster/table.py", '"""The rows.\n\nThe fates of rows, and a twin.\n"""\n', 2),
    ("prose", "lance_dagster/table.py", "x = 'ours'  # Refused: an option of git.\n", 0),
]

# The patterns are concatenated from pieces, so that this file does not match them itself.
FORBIDDEN = {
    "a machine path": r"(?<![\w.}])/(wo" + "rk|ro" + "ot|fa" + "rm|ho" + r"me/\w+)/",
    "a temporary folder of a machine": r"/tm" + r"p/(w|bash_jobs|house)\b",
    "a neighbouring folder": r"\.\./sha" + "red",
    "a package index": r"(https?|file)://\S*(py" + "pi|simp" + r"le/)|--(extra-)?ind" + "ex-url",
    "a banner": r"^\s*#\s*[-=*#~]{8,}",
    "work without a home": r"\b(TO" + "DO|FIX" + r"ME|XX" + r"X)\b",
}


def sources() -> dict[str, str]:
    """Every Python file of the project by its path, generated ones left out."""
    written = (item for item in texts().items() if not item[0].startswith(architecture.GENERATED))
    return {path: text for path, text in written if path.endswith(".py")}


@cache
def texts() -> Mapping[str, str]:
    """Every text file git tracks or would track, by its path."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    files = {path: ROOT / path for path in sorted(filter(None, listing.split("\0")))}
    contents = {path: file.read_bytes() for path, file in files.items() if file.is_file()}
    return {path: content.decode() for path, content in contents.items() if b"\0" not in content}


def rule(name: str) -> architecture.Rule:
    """The rule of this name."""
    return next(item for item in architecture.RULES if item.__name__ == name)


def named(item: object) -> str | None:
    """Name a test case after its rule."""
    return getattr(item, "__name__", None)


@pytest.fixture(scope="module")
def broken() -> Mapping[str, Sequence[str]]:
    """The places that break each rule. All rules are applied to one file after another, so each is parsed once."""
    places: dict[str, list[str]] = {checked.__name__: [] for checked in architecture.RULES}
    for path, text in sources().items():
        for checked in architecture.RULES:
            places[checked.__name__] += checked(path, text)
    return places


@pytest.mark.parametrize("checked", architecture.RULES, ids=named)
def test_the_source_keeps_the_rule(broken: Mapping[str, Sequence[str]], checked: architecture.Rule) -> None:
    """No file of the project breaks the rule."""
    found = broken[checked.__name__]
    assert [] == found, f"{checked.__doc__}\n" + "\n".join(found)


@pytest.mark.parametrize("checked", architecture.RULES, ids=named)
def test_the_rule_can_fail(checked: architecture.Rule) -> None:
    """A source that breaks the rule is found, with its file and a line."""
    path, text = BROKEN[checked.__name__]
    found = checked(path, text)
    assert 1 == len(found)
    assert re.match(re.escape(path) + r":\d+: ", found[0])


@pytest.mark.parametrize("name,path,text,expected", SUBTLE)
def test_the_rule_knows_the_near_misses(name: str, path: str, text: str, expected: int) -> None:
    """The rule finds a violation in a less obvious form, and has no finding for what is allowed."""
    assert expected == len(rule(name)(path, text))


def test_there_is_no_import_cycle() -> None:
    """No module of the package imports itself through others."""
    files = {path: text for path, text in sources().items() if architecture.in_package(path)}
    found = architecture.cycle(files)
    assert [] == found, " -> ".join(found)


def test_a_cycle_inside_functions_is_found() -> None:
    """An import inside a function closes a cycle too."""
    one = "def f():\n    from lance_dagster import b\n"
    two = "from .a import f\n"
    assert architecture.cycle({"lance_dagster/a.py": one, "lance_dagster/b.py": two})


def package_sources() -> dict[str, str]:
    """The files of the package by path, without the generated ones; its public names stand for its front."""
    files = {path: text for path, text in sources().items() if architecture.in_package(path)}
    return files | {
        f"{PACKAGE}/{name}.py": (ROOT / PACKAGE / f"{name}.pyi").read_text() for name in ("__init__", "types")
    }


def modules() -> dict[str, str]:
    """The modules of the package by path, without the generated ones and those that only start a program."""
    return {path: text for path, text in package_sources().items() if not Path(path).name.startswith("__")}


def test_each_class_name_stands_once() -> None:
    """Two modules do not share a class name, so that a name in an error or an annotation is one class."""
    names = [node.name for path, text in modules().items() for node in architecture.nodes(path, text, ast.ClassDef)]
    assert [] == sorted({name for name in names if names.count(name) > 1})


def test_names_are_nouns_of_the_field() -> None:
    """Fewer variables and arguments than the limit have names that say nothing."""
    assert architecture.vague_share(package_sources()) <= architecture.MOST_VAGUE
    assert 0.5 == architecture.vague_share({"lance_dagster/a.py": "def f(given):\n    branch = given\n"})


def test_no_module_is_a_part_of_a_neighbour() -> None:
    """A module that one neighbour alone imports is a subject of its own, with tests named after it."""
    neighbours = architecture.only_neighbours(package_sources())
    tested = {path.name.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")}
    parts = {path for path in neighbours if Path(path).name not in tested}
    known = architecture.PARTS_OF_A_NEIGHBOUR
    assert {} == {path: f"only {neighbours[path]} imports it: join them, or test it alone" for path in parts - known}
    assert set() == known - parts, "these left the set: delete them from PARTS_OF_A_NEIGHBOUR"


def test_an_only_neighbour_is_found() -> None:
    """A module with one importer in its folder is found; one with two, or with one elsewhere, is not."""
    sources = {
        "lance_dagster/merge/a.py": "from lance_dagster.merge import b, c\nfrom lance_dagster.merge.a import f\n",
        "lance_dagster/merge/b.py": "def f():\n    from .c import g\n",
        "lance_dagster/merge/c.py": "",
        "lance_dagster/cli/d.py": "from lance_dagster.merge.a import f\n",
    }
    assert {"lance_dagster/merge/b.py": "lance_dagster/merge/a.py"} == architecture.only_neighbours(sources)


def test_the_architecture_page_names_every_module() -> None:
    """ARCHITECTURE.md lists each module of a feature, and none that does not exist; cli is listed as a whole."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| `([\w/]+/)` \| (.*?) \|", page, re.MULTILINE)
    named = {f"{PACKAGE}/{folder}{name}.py" for folder, names in rows for name in re.findall(r"`(\w+)`", names)}
    inside = {path for path in modules() if len(Path(path).parts) > 2 and not path.startswith(f"{PACKAGE}/cli/")}
    assert (set(), set()) == (inside - named, named - inside)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "ARCHITECTURE.md"])
def test_pages_name_files_that_exist(page: str) -> None:
    """Every file of the package that a page names in code or in a link exists."""
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`([a-z]\w*(?:/\w+)*/\w+\.py)`", text)) | set(
        re.findall(r"\]\((lance_dagster/[^)]*)\)", text)
    )
    roots = (ROOT, ROOT / PACKAGE)
    assert [] == sorted(name for name in named if not any((root / name).exists() for root in roots))


def test_a_public_name_is_written_in_one_list() -> None:
    """No other front of a folder lists a name of `__init__.pyi` or `types.pyi`, but for the folder's subject."""
    repeated = {
        path: repeats
        for path, text in sources().items()
        if path.endswith("/__init__.py") and path != f"{PACKAGE}/__init__.py"
        if (repeats := ({*dir(lance_dagster), *dir(lance_dagster.types)} - SUBJECTS) & listed_names(path, text))
    }
    assert {} == repeated


def test_a_repeated_public_name_is_found() -> None:
    """An import and an entry of `__all__` both list a name."""
    source = 'from lance_dagster.table.status import RefStatus as RefStatus\n__all__ = ["Tag"]\n'
    assert {"RefStatus", "Tag"} == listed_names("lance_dagster/table/__init__.py", source)


def listed_names(path: str, source: str) -> set[str]:
    """Every name that the front of a folder imports from it or has in a list of texts."""
    folder = path.removesuffix("/__init__.py").replace("/", ".")
    names = (item.name for item in architecture.imports(path, source))
    imported = {name.rpartition(".")[2] for name in names if architecture.within(name, folder)}
    constants = architecture.nodes(path, source, ast.Constant)
    return imported | {node.value for node in constants if isinstance(node.value, str)}


@pytest.mark.parametrize("stub, module", [("__init__.pyi", lance_dagster), ("types.pyi", lance_dagster.types)])
def test_a_public_name_stands_beside_the_module_that_defines_it(stub: str, module: ModuleType) -> None:
    """Each public name can be loaded, and its class or function is defined where the list says."""
    path = f"{PACKAGE}/{stub}"
    homes = {
        item.name.rpartition(".")[2]: item.name.rpartition(".")[0]
        for item in architecture.imports(path, (ROOT / path).read_text())
    }
    assert homes.keys() - {"transaction"} == {*dir(module)} - {"operations"}
    values = {name: getattr(module, name) for name in dir(module)}
    defined = {name: value for name, value in values.items() if isinstance(value, type | FunctionType)}
    actual = {name: value.__module__ for name, value in defined.items()}
    assert {name: homes[name] for name in actual} == actual


def test_importing_the_package_loads_nothing_heavy() -> None:
    """A Spark executor that imports the package pays for neither Dagster, Spark nor pylance."""
    heavy = {"dagster", "pyspark", "lance", "pandas", "polars"}
    code = f"import sys, lance_dagster; print({heavy} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "set()" == shown.stdout.strip()


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    """No committed text names a machine, a package index, or work without a home."""
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert [] == found, f"{what}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "what,line",
    [
        ("a machine path", "cd /wo" + "rk/main"),
        ("a machine path", "see file:///ho" + "me/ann/tables"),
        ("a temporary folder of a machine", "/tm" + "p/w/venv"),
        ("a neighbouring folder", "../sha" + "red/design.md"),
        ("a package index", "https://mirror.example/py" + "pi/web"),
        ("a banner", "# " + "-" * 20),
        ("work without a home", "# TO" + "DO: later"),
    ],
)
def test_the_words_are_found(what: str, line: str) -> None:
    """Each pattern matches an example of what it forbids."""
    assert re.search(FORBIDDEN[what], line)
