"""The reference of the Python API on the site of `make docs`: a page for each topic, from signatures and docstrings.

The names are those of `lance_dagster/__init__.pyi`, the list of public names; mkdocstrings reads the modules that
define them, without importing one.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PACKAGE = "lance_dagster"
STUB = ROOT / PACKAGE / "__init__.pyi"
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


def public_names() -> Iterator[tuple[str, str]]:
    """Yield each public name with the module that defines it."""
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, str(node.module)) for alias in node.names)


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
    named = [(*topic_of(module), name, module) for name, module in public_names()]
    # Stable: names of one module keep their order in the list.
    listed = sorted((entry for entry in named if entry[0] == topic), key=lambda entry: entry[1])
    blocks = [f"::: {module}.{name}" for _, _, name, module in listed]
    return "\n\n".join([f"# {TOPICS[topic][0]}", f"Every name is imported from `{PACKAGE}`.", *blocks]) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    for topic in TOPICS:
        files.append(File.generated(config, f"api/{topic}.md", content=page_text(topic)))
    return files
