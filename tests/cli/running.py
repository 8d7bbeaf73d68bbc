"""Call the command in this process, and read its answers."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from lance_dagster.cli.main import main
from tests.forked_program import ROOT, run_program


def run(*arguments: str, color: bool = False) -> Result:
    """Call the command; any exception other than an error of the package is a bug of the command."""
    result = CliRunner().invoke(main, arguments, color=color)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines_of(*arguments: str) -> list[str]:
    """The output lines of a call that has to succeed."""
    result = run(*arguments)
    assert (0, "") == (result.exit_code, result.stderr), result.output
    return result.stdout.splitlines()


def document_of(*arguments: str, code: int = 0) -> Any:  # noqa: ANN401  # whatever the document is
    """The JSON document that a call prints."""
    result = run(*arguments, "--json")
    assert code == result.exit_code, result.output
    return json.loads(result.stdout)


def process(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Call the command in a separate process, which has loaded it already."""
    return run_program("lance_dagster.cli", *arguments, environment=environment)


def interpreter(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the command as a process that starts Python anew, as a user does."""
    command = [sys.executable, "-m", "lance_dagster.cli", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
