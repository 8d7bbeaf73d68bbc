"""The reference of the Python API on the site of `make docs`: a page for each topic, from signatures and docstrings.

The names are those of `lance_dagster/__init__.pyi` and of `types.pyi`, the lists of public names, and all errors;
mkdocstrings reads the modules that define them, without importing one.
"""

import ast
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PACKAGE = "lance_dagster"
# The modules from which names are imported, each with its list.
LISTS = {PACKAGE: "__init__.pyi", f"{PACKAGE}.types": "types.pyi", f"{PACKAGE}.errors": "errors.py"}
# The pages with their titles, and the modules whose names they have, in this order; the longest prefix counts.
TOPICS = {
    "repository": ("A lake", ("repository.repository", "repository.channels", "repository.view", "repository", "page")),
    "tables": (
        "Tables",
        ("table.table", "table", "history", "edit", "datafiles", "gc", "verify", "placement", "format"),
    ),
    "merging": ("Compare and merge", ("diff", "merge")),
    "definitions": ("Dagster: definitions", ("plugin.definitions", "plugin.resource", "plugin")),
    "checks": ("Dagster: checks", ("plugin.checks",)),
    "publishing": ("Dagster: publishing", ("plugin.publish",)),
    "operation": ("Dagster: operation", ("plugin.operate",)),
    "spark": ("Spark", ("spark",)),
    "errors": ("Errors", ("errors",)),
}


def public_names() -> dict[str, tuple[str, str]]:
    """Return each public name with the module that defines it, and the module from which it is imported."""
    names: dict[str, tuple[str, str]] = {}
    for front, file in LISTS.items():
        for node in ast.parse((ROOT / PACKAGE / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and file.endswith(".pyi"):
                names |= {alias.name: (str(node.module), front) for alias in node.names}
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names.setdefault(node.name, (front, front))
    return names


def topic_of(module: str) -> tuple[str, int]:
    """Return the topic of a module, and the place of the module among those of the topic."""
    prefixes = [
        (len(prefix), topic, place)
        for topic, (_, listed) in TOPICS.items()
        for place, prefix in enumerate(listed)
        if f"{module}.".startswith(f"{PACKAGE}.{prefix}.")
    ]
    # A module without a topic raises: a new folder gets a place on a page.
    _, topic, place = max(prefixes)
    return topic, place


def page_text(topic: str) -> str:
    """Return a page of the reference."""
    named = [(*topic_of(module), name, module, front) for name, (module, front) in public_names().items()]
    blocks = [f"# {TOPICS[topic][0]}"]
    for front in LISTS:
        # Stable: names of one module keep their order in the list.
        listed = sorted((entry for entry in named if entry[0] == topic and entry[-1] == front), key=itemgetter(1))
        blocks += [f"Imported from `{front}`:"] if listed else []
        blocks += [f"::: {module}.{name}" for _, _, name, module, _ in listed]
    return "\n\n".join(blocks) + "\n"


def components_text() -> str:
    """Return the page of the components: their attributes in YAML, by the fields of the classes."""
    blocks = ["# Dagster: components", "The attributes in YAML, and those of the lists and mappings in them."]
    for node in ast.parse((ROOT / PACKAGE / "plugin" / "components.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and (rows := [*_attributes(node)]):
            head = "| attribute | type | default | means |\n|---|---|---|---|\n"
            blocks += [f"## {node.name}", ast.get_docstring(node) or "", head + "\n".join(rows)]
    return "\n\n".join(blocks) + "\n"


def _attributes(component: ast.ClassDef) -> Iterator[str]:
    """List the fields of a class as rows of a table."""
    for node in component.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.Call(keywords=keywords)):
                arguments = {keyword.arg: keyword.value for keyword in keywords}
                defaults = (arguments[key] for key in ("default", "default_factory") if key in arguments)
                default = next(map(ast.unparse, defaults), "")
                # A bar would end the cell.
                type_text = ast.unparse(annotation).replace("|", "\\|")
                about = ast.literal_eval(arguments["description"])
                yield f"| `{name}` | `{type_text}` | {f'`{default}`' if default else 'required'} | {about} |"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    for topic in TOPICS:
        files.append(File.generated(config, f"api/{topic}.md", content=page_text(topic)))
    files.append(File.generated(config, "api/components.md", content=components_text()))
    return files
