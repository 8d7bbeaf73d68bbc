"""Manifests of a few kilobytes that claim billions of rows: memory follows the files, not the claims."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.claimed_rows import OPERATIONS

pytestmark = pytest.mark.slow

MIB = 256
SECONDS = 120


@pytest.mark.parametrize("ids", ["stable", "none"])
def test_no_operation_takes_memory_for_rows_that_are_only_claimed(tmp_path: Path, ids: str) -> None:
    """No operation allocates memory for claimed rows: each succeeds, or fails with an error of the package."""
    command = [sys.executable, "-m", "tests.faults.claimed_rows", str(tmp_path), ids]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert 0 == done.returncode, done.stderr[-2000:]
    taken = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert set(OPERATIONS) == set(taken)
    assert {} == {name: line for name, line in taken.items() if int(line.split(" ", 1)[0]) > MIB}
    assert "CorruptFileError" in taken["rows by key"]
