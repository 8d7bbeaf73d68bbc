"""Data versioning for Lance tables, run by Dagster.

The public names and their modules are listed in `__init__.pyi`. A module is imported when one of its names is first
used: an executor that only writes data files imports neither Dagster nor Spark.
"""

import ast
import importlib
from pathlib import Path


def _listed(stub: str) -> dict[str, tuple[str, str]]:
    """Map each public name to the module that defines it, and to its name there."""
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse(stub).body:
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                homes |= {alias.name: (module, alias.name) for alias in names}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=imported)):
                homes[name] = homes.pop(imported)
    return homes


_HOMES = _listed(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))

__all__ = tuple(_HOMES)  # the names are listed in `__init__.pyi`


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, defined = _HOMES[name]
    home = importlib.import_module(module)
    # `operations` is a module itself, which its package does not import.
    return getattr(home, defined) if hasattr(home, defined) else importlib.import_module(f"{module}.{defined}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
