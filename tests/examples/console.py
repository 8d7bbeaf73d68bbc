"""Run the shell blocks of a page: each `$ lance-dagster ...` is called, and its output is compared loosely.

The lines after a call are its output. In them, times, ids and the number of blanks may differ; `...` within a line
stands for any text, and on a line of its own for any lines. A call must exit with 0, unless `$ echo $?` follows with
another code.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from click.testing import CliRunner

from lance_dagster.cli.main import main

_ANY = (
    r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}Z",
    r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{8,64}\b",
)
_PROGRAM = "lance-dagster "
_STATUS = "echo $?"


@dataclass(slots=True)
class Call:
    """One command of a block, with its expected output and exit code."""

    command: str
    lines: list[str] = field(default_factory=list)
    code: int = 0


def calls(block: str) -> list[Call]:
    """Read a block."""
    found: list[Call] = []
    asked = False
    for line in block.splitlines():
        if line.startswith("$ "):
            asked = line[2:] == _STATUS
            if not asked:
                found.append(Call(line[2:]))
        elif asked:
            found[-1].code = int(line)
        elif line.strip() or found[-1].lines:
            found[-1].lines.append(line)
    return found


def run_block(block: str) -> None:
    """Run the calls of a block; fail if one prints something else."""
    for call in calls(block):
        assert call.command.startswith(_PROGRAM), f"a page can only show {_PROGRAM}, not {call.command}"
        result = CliRunner().invoke(main, shlex.split(call.command.removeprefix(_PROGRAM)))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        printed = result.output.rstrip("\n")
        assert call.code == result.exit_code, f"$ {call.command}\n{printed}"
        expected = "\n".join(call.lines).rstrip("\n")
        assert like(expected, printed), f"$ {call.command}\nthe page says:\n{expected}\nit prints:\n{printed}"


def like(expected: str, printed: str) -> bool:
    """Return whether a text matches the text of a page."""
    return _matches([_pattern(line) for line in expected.splitlines()], printed.splitlines())


def _matches(expected: Sequence[re.Pattern[str] | None], printed: Sequence[str]) -> bool:
    if not expected:
        return not printed
    first, rest = expected[0], expected[1:]
    if first is None:
        return any(_matches(rest, printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and first.fullmatch(printed[0].strip()) is not None and _matches(rest, printed[1:])


def _pattern(line: str) -> re.Pattern[str] | None:
    """Return the pattern that a line must match; None stands for any lines."""
    text = line.strip()
    return None if text == "..." else re.compile("".join(_parts(text)))


def _parts(text: str) -> Iterator[str]:
    known = re.compile(rf"(?P<gap>\.\.\.)|(?P<blank>\s+)|(?P<time>{_ANY[0]})|(?P<id>{_ANY[1]})")
    patterns = {"gap": ".*", "blank": r"\s+", "time": _ANY[0], "id": r"[0-9a-f]{8,64}"}
    at = 0
    for match in known.finditer(text):
        yield re.escape(text[at : match.start()])
        yield patterns[match.lastgroup or ""]
        at = match.end()
    yield re.escape(text[at:])
