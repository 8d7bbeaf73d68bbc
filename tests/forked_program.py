"""Start processes that have loaded pylance and this package already.

They are forked from one server for each worker, which loads everything once. A process that starts Python anew takes a
second or two of a core before it does anything, and the suite starts hundreds. Forking is safe because the server never
opens a table: pylance has started no thread in it.

Tests of how the interpreter starts and ends (a closed pipe, a full disk, lazy imports) do start it anew.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECONDS = 300
_LOADED = [
    "pytest",
    "click.testing",
    "dagster",
    "lance",
    "lance_dagster.plugin.io.io_manager",
    "lance_dagster.cli.main",
    "s3fs",
    "tests.faults.killed_operations",
    # The last one, because it is about the objects of all others.
    "tests.settled_memory",
]


def ready_processes() -> ForkServerContext:
    """A context whose processes have loaded pylance and this package when they start."""
    context = multiprocessing.get_context("forkserver")
    # One list for all tests: the server starts with the first process, and reads the list only then.
    context.set_forkserver_preload(_LOADED)
    return context


def start(call: Callable[..., object], *arguments: object) -> ForkServerProcess:
    """Start a function in a process whose output is thrown away; it has the environment of the server."""
    process = ready_processes().Process(target=_quietly, args=(call, arguments))
    process.start()
    return process


def _quietly(call: Callable[..., object], arguments: Sequence[object]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    call(*arguments)


@contextmanager
def without_server() -> Iterator[None]:
    """End the server before and after a block that starts processes of its own from a server.

    There is one server in a process, and what it forks has the environment that was there when it began.
    """
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public ends it
    try:
        yield
    finally:
        forkserver._forkserver._stop()  # type: ignore[attr-defined]  # noqa: SLF001


def run_program(
    program: str, *arguments: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module, or a file whose name ends with `.py`, as the main program of a forked process.

    Returns:
        Its exit code and what it wrote, as from `subprocess.run`. It writes to files, not to a terminal.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        output.touch()
        errors.touch()
        code = run_on((str(output), str(errors)), [program, *arguments], cwd=cwd, environment=environment)
        return subprocess.CompletedProcess([program, *arguments], code, output.read_text(), errors.read_text())


def run_on(
    places: tuple[str, str], call: Sequence[str], *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> int:
    """Run a program whose output and errors go to files or terminals that exist; its exit code."""
    variables = dict(os.environ if environment is None else environment)
    process = ready_processes().Process(target=_main, args=(places, list(call), str(cwd), variables))
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired(list(call), SECONDS)
    return process.exitcode


def _main(places: tuple[str, str], call: Sequence[str], cwd: str, variables: Mapping[str, str]) -> None:
    for number, place in enumerate(places, start=1):
        opened = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
        os.dup2(opened, number)
        os.close(opened)
    # The streams of the server were opened on something else, and a terminal is written line by line.
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    sys.path.insert(0, str(ROOT))
    program, *arguments = call
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
