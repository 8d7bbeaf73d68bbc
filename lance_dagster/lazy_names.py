"""Modules whose names are loaded from the modules that define them, when a name is first used.

The names of such a module are listed in its stub, which type checkers read too: so each name is written once.
"""

import ast
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

# The packages below which everything needs a package that only an extra installs.
_NEEDS = {"lance_dagster.spark": "pyspark"}


def lazy_names(module: str, file: str) -> tuple[tuple[str, ...], Callable[[str], object], Callable[[], list[str]]]:
    """Return the names that a module can load, the function that loads a name, and the function that lists the names.

    They are the `__all__`, `__getattr__` and `__dir__` of the module. `from lance_dagster import *`, and programs that
    look at each name of a module, as Dagster's `dg` does to find components, get no name for which an extra is missing;
    a person who types such a name gets the error that says which extra it is.

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

    def list_loadable() -> list[str]:
        missing = tuple(f"{package}." for package, needed in _NEEDS.items() if not _is_installed(needed))
        return sorted(name for name, (home, _) in homes.items() if not home.startswith(missing))

    return tuple(list_loadable()), load, list_loadable


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    # Finders of other programs raise it in place of returning None.
    except ModuleNotFoundError:
        return False


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
