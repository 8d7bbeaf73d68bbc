"""The places of the example's state: one folder, `.demo` at the top of the repository.

`LANCE_DAGSTER_DEMO_ROOT` names another folder, and `LANCE_DAGSTER_DEMO_TABLES` an empty place for the tables alone,
such as `s3://bucket/path`. They are read on every call, so the processes that Dagster starts agree with their parent
process.
"""

import os
import shutil
from pathlib import Path

ROOT_VARIABLE = "LANCE_DAGSTER_DEMO_ROOT"
TABLES_VARIABLE = "LANCE_DAGSTER_DEMO_TABLES"

_MARK = ".lance_dagster_example"
_KNOWN = {_MARK, "tables", "bucket", "dagster_home", "source", "reports", "demo.log"}


def root() -> Path:
    """Return the folder that contains all the others."""
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named).absolute() if named else Path(__file__).absolute().parent.parent / ".demo"


def tables() -> str:
    """Return the folder of the Lance tables: a local path or a URI."""
    return os.environ.get(TABLES_VARIABLE) or str(root() / "tables")


def bucket() -> Path:
    """Return the folder to which a demo on a local object store copies its objects."""
    return root() / "bucket"


def dagster_home() -> Path:
    """Return the folder of Dagster's own event log, run storage and configuration."""
    return root() / "dagster_home"


def unpacked() -> Path:
    """Return the folder compressed source files are unpacked into."""
    return root() / "source"


def reports() -> Path:
    """Return the folder the consumer writes its reports into."""
    return root() / "reports"


def log_file() -> Path:
    """Return the file that keeps the output of Spark, Dagster and Python while the demo runs."""
    return root() / "demo.log"


class UnrecognisedFolderError(Exception):
    """The folder for the example's state holds files that the example did not make."""


def start_empty() -> None:
    """Make an empty root, deleting what an earlier demo left there.

    A folder is changed only when it has the example's mark, and only the entries that the example makes are deleted.

    Raises:
        UnrecognisedFolderError: The folder is not empty and has no mark, or it has files of other programs.
    """
    top = root()
    entries = {entry.name for entry in top.iterdir()} if top.exists() else set()
    if _MARK not in entries and any(_is_foreign(top / name) for name in entries):
        raise UnrecognisedFolderError(
            f"{top} is not empty and was not made by this demo; empty it or name another folder in {ROOT_VARIABLE}"
        )
    foreign = sorted(entries - _KNOWN)
    if foreign:
        raise UnrecognisedFolderError(
            f"{top} holds files that this demo did not make: {', '.join(foreign)}; move them elsewhere and start again"
        )
    # The mark is deleted last, so that an interrupted clean-up can be repeated.
    for name in sorted(entries - {_MARK}):
        entry = top / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    make()


def make() -> None:
    """Make the root with its mark, and Dagster's home with its settings; existing files stay."""
    dagster_home().mkdir(parents=True, exist_ok=True)
    _mark()
    shutil.copyfile(Path(__file__).with_name("dagster.yaml"), dagster_home() / "dagster.yaml")


def make_unpacked() -> Path:
    """Make the folder for unpacked source files, and return it; a root that has nothing else gets the mark."""
    unpacked().mkdir(parents=True, exist_ok=True)
    # Another folder may hold files with names that the example uses: its owner has to empty it.
    if {entry.name for entry in root().iterdir()} == {unpacked().name}:
        _mark()
    return unpacked()


def _mark() -> None:
    (root() / _MARK).write_text("The lance_dagster example keeps its state here; `make demo` empties this folder.\n")


def _is_foreign(entry: Path) -> bool:
    # The definitions of the example make this folder when they are loaded, before there is a mark.
    return entry.name != "source" or not entry.is_dir() or any(entry.iterdir())
