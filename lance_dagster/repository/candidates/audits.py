"""Verdicts of checks: the result of each check on exactly one version of a table.

A verdict is kept under the commit id of the version, a digest of its manifest. So it can never be taken for a verdict
on another version: not after a branch was deleted and made again under its name, nor after a table was.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.validation import parsed_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one check on one version of a table.

    Attributes:
        check: The name of the check.
        passed: Whether the check lets the version pass.
        description: What the check says, for people.
        reads: The versions of other tables that the check read, each as a text that names the version, by asset.
        run_id: The run that evaluated the check.
    """

    check: str
    passed: bool
    description: str = ""
    reads: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""


def verdicts_bytes(verdicts: Iterable[Verdict], writer: str, write: int = 0) -> bytes:
    """Return the bytes of a file of verdicts.

    Args:
        verdicts: The verdicts.
        writer: A random id of the process that writes the file.
        write: The number of the recorded write that wrote the rows of the version; 0 where no recorded write did. The
            verdicts are collected together with this write.
    """
    rows = [
        {
            "check": verdict.check,
            "passed": verdict.passed,
            "description": verdict.description,
            "reads": dict(verdict.reads),
            "run": verdict.run_id,
        }
        for verdict in verdicts
    ]
    return json.dumps(
        {"format": 1, "verdicts": rows, "id": writer, "write": write}, sort_keys=True, separators=(",", ":")
    ).encode()


def parse_verdicts(data: bytes, path: str) -> tuple[Verdict, ...]:
    """Parse a file of verdicts; `path` is used in messages.

    Raises:
        CorruptFileError: The bytes are not verdicts.
    """
    try:
        return tuple(
            Verdict(
                check=str(row["check"]),
                # Anything but true, such as the text "false", is not an approval.
                passed=row["passed"] is True,
                description=str(row["description"]),
                reads={str(asset): str(version) for asset, version in row["reads"].items()},
                run_id=str(row["run"]),
            )
            for row in parsed_json(data)["verdicts"]
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(path, f"it does not hold verdicts of checks: {type(error).__name__}") from error


def audited_write(data: bytes, path: str) -> int:
    """Return the number of the recorded write that a file of verdicts is about; 0 where it is about none.

    Raises:
        CorruptFileError: The bytes are not verdicts.
    """
    try:
        number = parsed_json(data).get("write", 0)
    except (ValueError, AttributeError, RecursionError) as error:
        raise CorruptFileError(path, f"it does not hold verdicts of checks: {type(error).__name__}") from error
    return number if isinstance(number, int) else 0
