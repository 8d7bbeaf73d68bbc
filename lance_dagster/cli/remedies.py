"""What to type where an error says what to call.

An error names a method of a table and what to give it. Each method that errors name has a function here, which takes
what the method takes and returns the words of the command.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from lance_dagster.errors import Call, CommitStateUnknownError, LanceDagsterError

_SPECIAL = set('"$`\\!')
Typed = Callable[..., Sequence[str]]


def _relocate(old_uri: str | None = None) -> Sequence[str]:
    return () if old_uri is None else ("--from", old_uri)


def _delete_tag(name: str, *, force: bool = False) -> Sequence[str]:
    return (name, "--delete", *(["--force"] if force else []))


def _unprotect(*, branches: Sequence[str] = (), tags: Sequence[str] = ()) -> Sequence[str]:
    patterns = [("--branch", pattern) for pattern in branches] + [("--tag", pattern) for pattern in tags]
    return ("--remove", *(word for pair in patterns for word in pair))


COMMANDS: Mapping[str, tuple[str, Typed]] = {
    "delete_tag": ("tag", _delete_tag),
    "move_tag": ("promote", lambda name, at: ("--tag", name, "--at", at)),
    "relocate": ("relocate", _relocate),
    "reset": ("reset", lambda branch, at: (branch, "--at", at)),
    "unprotect": ("protect", _unprotect),
}
"""By method, the subcommand and what follows TABLE."""


def told(error: LanceDagsterError, table: str) -> str:
    """Return what an error says, with what to type about the table of the command; on one line."""
    if isinstance(error, CommitStateUnknownError):
        text = f"{error.message}; look whether the log has it, and do it again if not; delete nothing meanwhile"
    elif error.remedy is None:
        text = str(error)
    else:
        text = f"{error.complaint}; {error.remedy.said(partial(_typed, table))}"
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":;", ":")


def command(name: str, table: str, *words: str) -> str:
    """Return a call of the command as it is typed."""
    return f"`{' '.join(map(quoted, ('lance-dagster', name, table, *words)))}`"


def quoted(word: str) -> str:
    """Return a word as a shell takes it; one with apostrophes in other quotation marks, as a person would."""
    return f'"{word}"' if "'" in word and not _SPECIAL & set(word) else shlex.quote(word)


def _typed(table: str, call: Call) -> str:
    name, words = COMMANDS[call.method]
    return command(name, table, *words(*call.given, **call.named))
