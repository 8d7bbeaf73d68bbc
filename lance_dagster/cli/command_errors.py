"""Errors as the command prints them: one line on standard error, with the command that helps where there is one.

An error of this package that has a remedy names a method of a table and its arguments. For each such method, `COMMANDS`
has a function that takes the same arguments and returns the words of the command.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

import click

from lance_dagster.credentials import without_credentials
from lance_dagster.errors import Call, CommitStateUnknownError, LanceDagsterError

DONE, REFUSED, USAGE = 0, 1, 2
# Characters a shell still reads within double quotes.
_SPECIAL = set('"$`\\!')
CommandWords = Callable[..., Sequence[str]]


class Refusal(click.ClickException):
    """An error that is printed as one line on standard error, with a hint on a second line if there is a hint."""

    exit_code = REFUSED

    def __init__(self, message: str, hint: str = "", program: str = "lance-dagster") -> None:
        """Take the message, the hint (what to try next), and the program name at the beginning of the line."""
        super().__init__(without_credentials(message))
        self.hint = hint
        self.program = program

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the lines."""
        click.echo(f"{self.program}: {self.format_message()}", file=file, err=True)
        if self.hint:
            click.echo(f"hint: {self.hint}", file=file, err=True)


class UsageRefusal(Refusal):
    """An error in the arguments."""

    exit_code = USAGE

    @classmethod
    def from_click(cls, error: click.UsageError, subcommand: str | None) -> "UsageRefusal":
        """Return click's error, which has four lines, as one line that names the help of the subcommand."""
        program = " ".join(filter(None, ("lance-dagster", subcommand)))
        first, *words = error.format_message().rstrip(". ").split()
        # All errors of the command begin in lower case; TABLE and PATTERN=DURATION keep their spelling.
        first = first.lower() if first.istitle() else first
        # click puts its suggestions in sentences of their own; here they become parts of the one line.
        text = " ".join((first, *words)).replace(". (", " (").replace(". Did", "; did")
        return cls(f"{text}; see {program} --help", program=program)


def _relocate(old_uri: str | None = None) -> Sequence[str]:
    return () if old_uri is None else ("--from", old_uri)


def _promote(name: str, at: str, *, again: bool = False) -> Sequence[str]:
    return ("--channel", name, "--at", at, *(["--again"] if again else []))


def _delete_tag(name: str, *, force: bool = False) -> Sequence[str]:
    return (name, "--delete", *(["--force"] if force else []))


def _unprotect(option: str, patterns: Sequence[str]) -> Sequence[str]:
    return ("--remove", *(word for pattern in patterns for word in (option, pattern)))


def _merge(source: str, into: str, **options: object) -> Sequence[str]:
    # The command has a flag for each mode but the default, and no option with the mode as its value.
    mode = options.pop("mode", None)
    return (source, "--into", into, *_option_words(options), *([] if mode is None else [f"--{mode}"]))


def _preview_branch(source: str, into: str, **options: object) -> Sequence[str]:
    return (source, "--into", into, *_option_words(options))


def _single_change(option: str, version: str, branch: str, **options: object) -> Sequence[str]:
    return (version, option, branch, *_option_words(options))


def _option_words(options: Mapping[str, object]) -> Iterator[str]:
    """Return the options of a method of a table as words of the command."""
    for name, value in options.items():
        match name, value:
            case "strategy", _:
                yield from _strategy(value)
            case "properties", Mapping():
                yield from (word for key, text in value.items() for word in ("--property", f"{key}={text}"))
            case _:
                yield from (f"--{name}", str(value))


def _strategy(strategy: object) -> Sequence[str]:
    """Return a strategy as options: one winner for everything, or one for each kind or unit."""
    match strategy:
        case None:
            return ()
        case Mapping():
            return [word for unit, winner in strategy.items() for word in ("--strategy", f"{unit}={winner}")]
        case winner:
            return ("--strategy", str(winner))


COMMANDS: Mapping[str, tuple[str, CommandWords]] = {
    "branches.preview": ("preview-branch", _preview_branch),
    "branches.recover": ("branch", lambda name: (name, "--recover")),
    "branches.reset": ("reset", lambda name, at: (name, "--at", at)),
    "branches.unprotect": ("protect", partial(_unprotect, "--branch")),
    "cherry_pick": ("cherry-pick", partial(_single_change, "--into")),
    "maintenance.allow_base": ("allow-base", lambda uri: (uri,)),
    "maintenance.relocate": ("relocate", _relocate),
    "maintenance.verify": ("verify", lambda *, deep: ("--deep",) if deep else ()),
    "merge": ("merge", _merge),
    "restore": ("restore", lambda version, branch: (version, "--branch", branch)),
    "revert": ("revert", partial(_single_change, "--branch")),
    "tags.delete": ("tag", _delete_tag),
    "tags.move": ("promote", lambda name, at: ("--tag", name, "--at", at)),
    "tags.release": ("tag", lambda name, reason: (name, "--release", reason)),
    "tags.unprotect": ("protect", partial(_unprotect, "--tag")),
}
"""By method of a table, the subcommand and a function that returns the words after TABLE."""
REPOSITORY_COMMANDS: Mapping[str, tuple[str, CommandWords]] = {
    "channels.delete": ("delete-channel", lambda name, reason: (name, "--reason", reason)),
    "channels.promote": ("promote", _promote),
    "channels.release": ("release", lambda name, reason: ("--channel", name, "--reason", reason)),
    "channels.rollback": (
        "rollback",
        lambda name, tables, to, reason: (
            *("--channel", name, "--tables", ",".join(tables), "--to", to, "--reason", reason),
        ),
    ),
    "tags.delete": ("tag", _delete_tag),
}
"""By method of a repository, the subcommand and a function that returns the words after LAKE."""


def error_line(error: LanceDagsterError, place: str, as_command: Callable[[str, Call], str]) -> str:
    """Return an error as one line, with the command to type where it names a method to call.

    Args:
        error: The error.
        place: LAKE or TABLE as it was typed, so that the command can be pasted into the same shell.
        as_command: Returns a call as a command: `command_for` for calls of tables, or `repository_command_for`.
    """
    if isinstance(error, CommitStateUnknownError):
        # The error's own hint is to commit its transaction object again, which a shell does not have.
        text = f"{error.message}; check whether the log has it, and repeat it if not; delete nothing meanwhile"
    elif error.remedy is None:
        text = str(error)
    else:
        text = f"{error.complaint}; {error.remedy.described(partial(as_command, place))}"
    # A line that ends in a colon introduces the next line, so it takes no semicolon.
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":;", ":")


def command_line(name: str, table: str, *words: str) -> str:
    """Return a call of the command as it is typed, in backquotes."""
    # The name of a subcommand of `table` has two words.
    # A local path that begins with a hyphen would be taken for an option.
    place = f"./{table}" if table.startswith("-") else table
    return f"`{' '.join(map(quoted, ('lance-dagster', *name.split(), place, *words)))}`"


def quoted(word: str) -> str:
    """Return a word as a shell takes it; a word with apostrophes in double quotes, which are easier to read."""
    if not word.isprintable():
        # A line break or another control character is written as an escape: it must not reach the terminal as it is,
        # and another character in its place would be another word.
        return f"$'{''.join(map(_escaped, word))}'"
    return f'"{word}"' if "'" in word and not _SPECIAL & set(word) else shlex.quote(word)


def _escaped(character: str) -> str:
    """Return a character as bash, zsh and ksh take it between `$'` and `'`."""
    if character.isprintable():
        return f"\\{character}" if character in "\\'" else character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


def command_for(table: str, call: Call) -> str:
    """Return a call of a method of a table, or of the repository above it, as the command that does the same."""
    if call.on or call.method not in COMMANDS:
        return repository_command_for(call.on or table, call)
    name, words = COMMANDS[call.method]
    return command_line(f"table {name}", table, *words(*call.given, **call.named))


def repository_command_for(root: str, call: Call) -> str:
    """Return a call of a method of a repository as the command that does the same, where there is one."""
    if call.method not in REPOSITORY_COMMANDS:
        # A remedy for one of its tables: LAKE would be the wrong argument for that command.
        return str(call)
    name, words = REPOSITORY_COMMANDS[call.method]
    return command_line(name, root, *words(*call.given, **call.named))
