"""Modules whose names are loaded from the modules that define them, when a name is first used.

The names of such a module are listed in its stub, which type checkers read too: so each name is written once.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path


def lazy_names(module: str, file: str) -> tuple[tuple[str, ...], Callable[[str], object]]:
    """Return the names of a module, and the function that loads a name: the `__getattr__` of the module.

    Args:
        module: The name of the module.
        file: Its file; the stub lies beside it.
    """
    homes = _listed(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, defined = homes[name]
        loaded = importlib.import_module(home)
        # `operations` is a module itself, which its package does not import.
        return getattr(loaded, defined) if hasattr(loaded, defined) else importlib.import_module(f"{home}.{defined}")

    return tuple(homes), load


def _listed(stub: str) -> dict[str, tuple[str, str]]:
    """Map each name of a stub to the module that defines it, and to its name there."""
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse(stub).body:
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                homes |= {alias.name: (module, alias.name) for alias in names}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=imported)):
                homes[name] = homes.pop(imported)
    return homes
