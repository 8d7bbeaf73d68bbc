"""The rules of the project, each a function from a path and its source to the places that break it.

A rule reads source text with `ast` and never imports what it judges, so
`test_source.py` can feed it a bad line.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import PurePosixPath
from typing import TypeVar, cast

PACKAGE = "lance_dagster"
GENERATED = f"{PACKAGE}/format/_proto/"

# Imports point to a lower number; equal numbers are neighbours and do not import each other.
LAYERS = {
    "__about__": 0,
    "credentials": 0,
    "lazy_names": 0,
    "errors": 1,
    "format": 2,
    "store": 2,
    "transactions": 3,
    "datafiles": 3,
    "history": 4,
    "verify": 5,
    "gc": 6,
    "placement": 7,
    "edit": 8,
    "diff": 9,
    "merge": 10,
    "table": 11,
    "repository": 12,
    "page": 13,
    "spark": 13,
    "cli": 14,
    "plugin": 14,
}
FRONTS = (f"{PACKAGE}/__init__.py", f"{PACKAGE}/types.py")
"""The modules that only load names of all layers."""
# Each third-party library, and the only places that may import it.
DOORS = {
    "fsspec": ("lance_dagster/store/",),
    "s3fs": ("lance_dagster/store/",),
    "azure": ("lance_dagster/store/",),
    "google.auth": ("lance_dagster/store/",),
    "google.oauth2": ("lance_dagster/store/",),
    "urllib3": ("lance_dagster/store/",),
    "lance": ("lance_dagster/datafiles/",),
    "lance_namespace": ("lance_dagster/repository/repository_namespace.py",),
    "google.protobuf": ("lance_dagster/format/codec/", GENERATED),
    "lance_dagster.format._proto": ("lance_dagster/format/codec/", GENERATED),
    "pendulum.parser": ("lance_dagster/history/resolve.py",),
    "pendulum.parse": ("lance_dagster/history/resolve.py",),
    "dagster": ("lance_dagster/plugin/",),
    "dagster_pipes": ("lance_dagster/plugin/",),
    "dagster_shared": ("lance_dagster/plugin/",),
    "pyspark": ("lance_dagster/spark/", "lance_dagster/plugin/"),
    "jinja2": ("lance_dagster/page/",),
    "markupsafe": ("lance_dagster/page/",),
}
# Folders and modules that read no file, clock, random source or environment: their rules are tested like arithmetic.
PURE = (
    "lance_dagster/format/",
    "lance_dagster/transactions/",
    "lance_dagster/history/commit_graph.py",
    "lance_dagster/history/ref_grammar.py",
    "lance_dagster/verify/fragment_rules.py",
    "lance_dagster/verify/manifest_rules.py",
    "lance_dagster/gc/retention.py",
    "lance_dagster/diff/manifest_diff.py",
    "lance_dagster/diff/schema_diff.py",
    "lance_dagster/diff/comparison_shapes.py",
    "lance_dagster/diff/row_digests.py",
    "lance_dagster/diff/row_matching.py",
    "lance_dagster/merge/rules/",
)
IMPURE_MODULES = frozenset(
    {"asyncio", "http", "importlib", "logging", "multiprocessing", "os", "pathlib", "random", "secrets"}
    | {"shutil", "socket", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid"}
)
IMPURE_CALLS = re.compile(
    r"^(open|io\.(open|FileIO)|print|input|.*\b(datetime|date|DateTime|pendulum)\.(now|utcnow|today))$"
)
# Words that name nothing of the field; a variable or argument of such a name does not say what it is.
VAGUE = frozenset(
    (
        *("all_", "another", "asked", "beside", "both", "done", "each", "found", "given", "gone", "got", "had", "kept"),
        *("known", "last", "left", "looked", "made", "one", "other", "read", "rest", "said", "seen", "several", "some"),
        *("taken", "these", "thing", "things", "those", "told", "wanted", "whole", "written"),
    )
)
# As a share of all variables and arguments. A word of the list may be the right one, such as `left` and `right`.
MOST_VAGUE = 0.01
# Words of comments and docstrings that a reader of the field knows from nowhere; those left out are plain English.
PROSE = {
    "arbiter": "strategy",
    "contest": "conflict",
    "deed": "operation",
    "deeds": "operations",
    "doomed": "killed",
    "fate": "what becomes of it",
    "fates": "row changes",
    "half of a character": "an unpaired surrogate",
    "ledger": "table",
    "mill": "concurrent runs",
    "mine": "source",
    "nought": "zero",
    "numbers that are no numbers": "NaN",
    "ours": "dest, or the package",
    "surveying": "branch status",
    "twin": "pair, copy or replica",
    "twins": "pair, copy or replica",
}
_PROSE = re.compile(rf"\b(?:{'|'.join(PROSE)})\b", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)# (.*)$", re.MULTILINE)
_CHECKS_OF_OPTIONS = frozenset({"check_options", "check_names", "Rules.of"})
HOMELESS = frozenset({"base", "common", "helper", "helpers", "misc", "util", "utils"})
MODULE_LINES, BODY_LINES, PARAMETERS, POSITIONAL = 800, 50, 6, 4
# The characters of a message that a test may match.
MATCHED = 60
# Modules that one neighbour alone imports and that no test module is named after: probably parts of that neighbour, cut
# off at random. The set only loses members: join such a module to its neighbour, or test it as a subject of its own.
PARTS_OF_A_NEIGHBOUR = frozenset(
    {
        "lance_dagster/diff/changed_rows.py",
        "lance_dagster/gc/sweep.py",
        "lance_dagster/plugin/definition_findings.py",
        "lance_dagster/plugin/operate/pipes_partitions.py",
        "lance_dagster/plugin/operate/ref_tick.py",
        "lance_dagster/plugin/publish/publish_step.py",
        "lance_dagster/plugin/publish/tag_changes.py",
        "lance_dagster/spark/frame.py",
        "lance_dagster/spark/pushdown.py",
        "lance_dagster/store/local_tree.py",
    }
)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[str, str], list[str]]
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Imported:
    """One name an import statement asks for: `from a.b import c` asks for `a.b.c`."""

    name: str
    line: int


@cache
def imports(path: str, source: str) -> Sequence[Imported]:
    """Every import of a module, those inside functions included, relative ones resolved; cached for each module."""
    package = PurePosixPath(path).parent.parts
    found = []
    statements: Iterator[ast.Import | ast.ImportFrom] = chain(
        nodes(path, source, ast.Import), nodes(path, source, ast.ImportFrom)
    )
    for node in statements:
        above: Sequence[str] = ()
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            above = [*above, *([node.module] if node.module else [])]
        found += [Imported(".".join([*above, alias.name]), node.lineno) for alias in node.names]
    return found


def nodes(path: str, source: str, kind: type[Node]) -> Iterator[Node]:
    """Every node of a module that is of this type."""
    return cast("Iterator[Node]", iter(tree(path, source).get(kind, ())))


@lru_cache(maxsize=1)
def tree(path: str, source: str) -> Mapping[type[ast.AST], list[ast.AST]]:
    """Every node of a module by its type; cached for the next rule that is applied to the same file."""
    found: dict[type[ast.AST], list[ast.AST]] = {}
    waiting: list[ast.AST] = [ast.parse(source, path)]
    while waiting:
        node = waiting.pop()
        found.setdefault(type(node), []).append(node)
        for name in node._fields:
            # `ast.iter_child_nodes` gives the same, and took most of the time of all rules.
            match getattr(node, name, None):
                case list() as several:
                    waiting += [item for item in several if isinstance(item, ast.AST)]
                case ast.expr_context():
                    pass
                case ast.AST() as child:
                    waiting.append(child)
    return found


def within(name: str, module: str) -> bool:
    """Whether a dotted name is a module or something in it."""
    return name == module or name.startswith(module + ".")


def in_package(path: str) -> bool:
    """Whether a file is written by hand and part of the package."""
    return path.startswith(PACKAGE + "/") and not path.startswith(GENERATED)


def functions(path: str, source: str) -> Iterator[tuple[FunctionNode, ast.ClassDef | None]]:
    """Every function with the class it is a method of, if it is one."""
    owners = {id(item): node for node in nodes(path, source, ast.ClassDef) for item in node.body}
    defined: Iterator[FunctionNode] = chain(
        nodes(path, source, ast.FunctionDef), nodes(path, source, ast.AsyncFunctionDef)
    )
    return ((node, owners.get(id(node))) for node in defined)


def layers(path: str, source: str) -> list[str]:
    """Imports point to lower layers, and no module of the package imports from the package root."""
    if not in_package(path) or path in FRONTS:
        return []
    unit = PurePosixPath(path).parts[1].removesuffix(".py")
    if unit not in LAYERS:
        return [f"{path}:1: {unit} has no layer; give it one in LAYERS"]
    found = []
    for item in imports(path, source):
        if not within(item.name, PACKAGE):
            continue
        target = [*item.name.split("."), ""][1]
        if target not in LAYERS:
            found.append(f"{path}:{item.line}: imports {item.name} through the front of the package")
        elif target != unit and LAYERS[target] >= LAYERS[unit]:
            found.append(f"{path}:{item.line}: {unit} imports {target}, which is not below it")
    return found


def doors(path: str, source: str) -> list[str]:
    """A third-party library is used only in the folders that are its door."""
    if not in_package(path) or path in FRONTS:
        return []
    imported = [*imports(path, source)]
    roots = {item.name.split(".")[0] for item in imported}
    # A variable may have the name of a third-party module; only a module that was imported can be called into.
    called = (Imported(name, line) for name, line in calls(path, source) if name.split(".")[0] in roots)
    used = [*imported, *called]
    return [
        f"{path}:{item.line}: {item.name} may be used only in {' and '.join(allowed)}"
        for item in used
        for party, allowed in DOORS.items()
        if within(item.name, party) and not path.startswith(allowed)
    ]


def calls(path: str, source: str) -> Iterator[tuple[str, int]]:
    """The dotted name and the line of every call."""
    for node in nodes(path, source, ast.Call):
        if isinstance(node.func, ast.Name | ast.Attribute):
            yield dotted(node.func), node.lineno


def dotted(node: ast.expr) -> str:
    """The source of a name with dots; `ast.unparse` gives the same, and takes most of the time of a rule."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def purity(path: str, source: str) -> list[str]:
    """The format and the rules of change read no file, clock, random source or environment."""
    if not in_package(path) or not path.startswith(PURE):
        return []
    imported = [
        f"{path}:{item.line}: {item.name} has no place in a pure module"
        for item in imports(path, source)
        if item.name.split(".")[0] in IMPURE_MODULES
    ]
    impure = ((name, line) for name, line in calls(path, source) if IMPURE_CALLS.match(name))
    return imported + [f"{path}:{line}: {name}() in a pure module" for name, line in impure]


def private_dagster(path: str, source: str) -> list[str]:
    """Only Dagster's public names are used."""
    private = re.compile(r"^dagster\w*(\.\w+)*\._(?!_)")
    return [
        f"{path}:{item.line}: {item.name} is private to Dagster"
        for item in imports(path, source)
        if private.match(item.name)
    ]


def module_length(path: str, source: str) -> list[str]:
    """A module stays readable in one sitting."""
    lines = len(source.splitlines())
    if not in_package(path) or lines <= MODULE_LINES:
        return []
    return [f"{path}:{lines}: {lines} lines, at most {MODULE_LINES}"]


def body_length(path: str, source: str) -> list[str]:
    """A function body, its docstring apart, fits on a screen."""
    if not in_package(path):
        return []
    found = []
    for node, _ in functions(path, source):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        lines = (node.end_lineno or node.lineno) - body[0].lineno + 1 if body else 0
        if lines > BODY_LINES:
            found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {BODY_LINES}")
    return found


def parameters(path: str, source: str) -> list[str]:
    """At most six parameters, and at most four of them by position.

    An exception's constructor is exempt from the second half, because pickle calls it by position; so is
    what Python or Dagster calls: other dunder methods, and functions under a decorator that takes them over.
    """
    if not in_package(path):
        return []
    found = []
    for node, owner in functions(path, source):
        named = [*node.args.posonlyargs, *node.args.args]
        bound = owner is not None and not has_decorator(node, "staticmethod")
        positional = len(named) - bound
        if positional + len(node.args.kwonlyargs) > PARAMETERS:
            found.append(f"{path}:{node.lineno}: {node.name} has more than {PARAMETERS} parameters")
        if positional > POSITIONAL and not called_by_others(node, owner):
            found.append(f"{path}:{node.lineno}: {node.name} has more than {POSITIONAL} positional ones")
    return found


def has_decorator(node: FunctionNode, *names: str) -> bool:
    """Whether a function has one of these decorators."""
    plain = {ast.unparse(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list}
    return not plain.isdisjoint(names)


def called_by_others(node: FunctionNode, owner: ast.ClassDef | None) -> bool:
    """Whether Python, pickle or a decorator's library decides how a function's arguments are passed."""
    if node.name == "__init__":
        return owner is not None and owner.name.endswith("Error")
    if node.name.startswith("__") or has_decorator(node, "override", "typing.override"):
        return True
    own = ("staticmethod", "classmethod", "property", "contextmanager", "cache", "lru_cache", "overload")
    return bool(node.decorator_list) and not has_decorator(node, *own)


def documented(path: str, source: str) -> list[str]:
    """Every public module, class and function has a docstring."""
    if not in_package(path):
        return []
    module = next(nodes(path, source, ast.Module))
    found = [] if ast.get_docstring(module) else [f"{path}:1: the module has no docstring"]
    bare = (node for node in public(module) if undocumented(node))
    return found + [f"{path}:{node.lineno}: {node.name} has no docstring" for node in bare]


def public(scope: ast.Module | ast.ClassDef) -> Iterator[FunctionNode | ast.ClassDef]:
    """The public functions and classes of a module or class, and the public members of those classes."""
    for node in scope.body:
        if isinstance(node, FunctionNode | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node)


def undocumented(node: FunctionNode | ast.ClassDef) -> bool:
    """Whether a definition that needs a docstring lacks it."""
    if isinstance(node, FunctionNode) and has_decorator(node, "overload", "override", "typing.overload"):
        return False
    return ast.get_docstring(node) is None


def homeless(path: str, source: str) -> list[str]:  # noqa: ARG001 - a rule takes both
    """A module or folder is named after a thing, and not `utils` or a similar collective name."""
    stems = {part.removesuffix(".py").strip("_") for part in PurePosixPath(path).parts}
    return [f"{path}:1: `{name}` names no thing" for name in sorted(stems & HOMELESS)]


def broad_except(path: str, source: str) -> list[str]:
    """Errors are caught by name; `BaseException` only to clean up and raise again."""
    found = []
    for node in nodes(path, source, ast.ExceptHandler):
        raises = any(isinstance(item, ast.Raise) and item.exc is None for item in ast.walk(node))
        caught = [] if node.type is None else [ast.unparse(item) for item in listed(node.type)]
        if node.type is None or "Exception" in caught or ("BaseException" in caught and not raises):
            found.append(f"{path}:{node.lineno}: catches everything")
    return found


def listed(node: ast.expr) -> list[ast.expr]:
    """The members of a tuple expression, or the expression itself."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def options(path: str, source: str) -> list[str]:
    """Unknown keywords are refused: `Unpack` declares those of a function for type checkers only."""
    # Click parses the options of the commands, and refuses unknown ones.
    if not path.startswith(f"{PACKAGE}/") or path.startswith(f"{PACKAGE}/cli/"):
        return []
    found = []
    for node in nodes(path, source, ast.FunctionDef):
        given = node.args.kwarg
        if given is None or given.annotation is None or "Unpack" not in ast.unparse(given.annotation):
            continue
        made = [item for item in ast.walk(node) if isinstance(item, ast.Call)]
        checked = any(dotted(item.func) in _CHECKS_OF_OPTIONS for item in made)
        passed_on = any(
            word.arg is None and isinstance(word.value, ast.Name) and word.value.id == given.arg
            for item in made
            for word in item.keywords
        )
        if not checked and not passed_on:
            found.append(f"{path}:{node.lineno}: {node.name} ignores unknown keywords")
    return found


def assertions(path: str, source: str) -> list[str]:
    """The package does not use `assert`: the error for a user's mistake must survive `python -O`."""
    if not in_package(path):
        return []
    return [f"{path}:{node.lineno}: assert" for node in nodes(path, source, ast.Assert)]


def mocks(path: str, source: str) -> list[str]:
    """Tests use no mocks and patch no attributes."""
    banned = ("mock", "unittest.mock", "pytest_mock", "moto.mock_aws")
    imported = [item for item in imports(path, source) if any(within(item.name, name) for name in banned)]
    patched = [Imported(name, line) for name, line in calls(path, source) if name == "monkeypatch.setattr"]
    return [f"{path}:{item.line}: {item.name}" for item in imported + patched]


def matched_words(path: str, source: str) -> list[str]:
    """A test matches a few words of a message; the sentences are in `tests/test_errors.py`."""
    if not path.startswith("tests/"):
        return []
    texts = (
        keyword.value
        for node in nodes(path, source, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "match" and isinstance(keyword.value, ast.Constant)
    )
    return [f"{path}:{text.lineno}: {text.value!r}" for text in texts if len(str(text.value)) > MATCHED]


def vague_share(sources: Mapping[str, str]) -> float:
    """The share of variables and arguments whose names name nothing of the field."""
    bound = Counter(
        name in VAGUE
        for path, source in sources.items()
        for name in chain(
            (node.id for node in nodes(path, source, ast.Name) if isinstance(node.ctx, ast.Store)),
            (node.arg for node in nodes(path, source, ast.arg)),
        )
    )
    return bound[True] / max(bound.total(), 1)


def prose(path: str, source: str) -> list[str]:
    """Comments and docstrings use the standard terms too."""
    texts = [(source.count("\n", 0, found.start(1)) + 1, found[1]) for found in _COMMENT.finditer(source)]
    texts += [
        (node.lineno, node.value.value)
        for node in nodes(path, source, ast.Expr)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return [
        f"{path}:{line + text.count(chr(10), 0, found.start())}: {found[0]}: say {PROSE[found[0].lower()]}"
        for line, text in texts
        for found in _PROSE.finditer(text)
    ]


RULES: tuple[Rule, ...] = (
    layers,
    doors,
    purity,
    private_dagster,
    module_length,
    body_length,
    parameters,
    documented,
    homeless,
    broad_except,
    options,
    assertions,
    mocks,
    matched_words,
    prose,
)


def cycle(sources: Mapping[str, str]) -> list[str]:
    """The modules of one import cycle, or an empty list; an import inside a function counts."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources}
    graph = {
        module: {home(item.name, modules) for item in imports(path, sources[path])} - {None, module}
        for module, path in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(module) for module in error.args[1]]
    return []


def only_neighbours(sources: Mapping[str, str]) -> dict[str, str]:
    """Map each module that one module alone imports, of the same folder, to that neighbour."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources}
    importers: dict[str, set[str]] = {path: set() for path in sources}
    for path, source in sources.items():
        for item in imports(path, source):
            if module := home(item.name, modules):
                importers[modules[module]].add(path)
    alone = {path: min(users - {path}) for path, users in importers.items() if len(users - {path}) == 1}
    return {
        path: user
        for path, user in alone.items()
        if PurePosixPath(path).parent == PurePosixPath(user).parent and not user.endswith("/__init__.py")
    }


def home(name: str, modules: Mapping[str, str]) -> str | None:
    """The module that an imported name is, or is defined in, if it is in the package."""
    if name in modules:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in modules else None
