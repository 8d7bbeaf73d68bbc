"""The command as a whole: exit codes and output of processes, help, completion, colours."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

import click
import pytest

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.cli.main import TOPICS, main
from tests.cli.running import document_of, interpreter, lines_of, process, run
from tests.forked_program import ROOT, run_on
from tests.table_factory import contents, entries, new_table

COMMANDS = [command for commands in TOPICS.values() for command in commands]
# Each command that is not a group, by the words that call it.
CALLED = {str(command.name): command for command in COMMANDS if not isinstance(command, click.Group)} | {
    f"{group.name} {name}": command
    for group in COMMANDS
    if isinstance(group, click.Group)
    for name, command in group.commands.items()
}


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with a branch that can be merged, and one that cannot."""
    made = new_table(tmp_path, entries("a", 1, 2))
    for name, value in (("run/1", 10), ("run/2", 20)):
        made.branches.create(name)
        made.update({"value": str(value)}, where="value = 2", branch=name)
    made.merge("run/1")
    return made


def test_processes_exit_as_told(table: LanceTable) -> None:
    """Exit codes are 0 done, 1 refused, 2 wrong call; answers go to stdout, and one line of error to stderr."""
    done = interpreter("table", "status", table.uri)
    assert (0, "") == (done.returncode, done.stderr)
    refused = interpreter("table", "merge", table.uri, "run/2")
    assert (1, 1, 2) == (refused.returncode, refused.stdout.count("\n"), refused.stderr.count("\n"))
    assert refused.stdout.startswith("rows conflict: ")
    assert refused.stderr.startswith("lance-dagster: cannot merge run/2@3 into main@3 of ")
    assert "\nhint: look with `lance-dagster table diff " in refused.stderr
    wrong = interpreter("table", "merge", table.uri, "run/3")
    assert (2, "", 1) == (wrong.returncode, wrong.stdout, wrong.stderr.count("\n"))
    settled = interpreter("table", "merge", table.uri, "run/2", "-s", "source-wins", "--json")
    assert (0, "") == (settled.returncode, settled.stderr)
    assert [("a", 1), ("a", 20)] == contents(table)


def test_processes_at_once_do_not_lose_anything(tmp_path: Path) -> None:
    """Concurrent processes merge all of their branches; of two that expect the same version of a tag, one moves it."""
    table = new_table(tmp_path, entries("a", 1), entries("a", 2))
    table.tags.create("production", "main@1")
    calls = []
    for value in (1, 2, 3):
        table.branches.create(f"run/{value}")
        table.append(entries("r", value), branch=f"run/{value}")
        calls.append(["merge", table.uri, f"run/{value}"])
    calls += [["promote", table.uri, "--expect", "main@1", "--at", f"main@{number}"] for number in (2, 3)]
    command = [sys.executable, "-m", "lance_dagster.cli", "table"]
    started = [subprocess.Popen([*command, *call], cwd=ROOT, stderr=subprocess.PIPE) for call in calls]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [0, 0, 0, 0, 1] == [*(each.returncode for each in started[:3]), *sorted(e.returncode for e in started[3:])]
    assert 1 == sum(b"someone moved it meanwhile" in error for error in said)
    assert [("a", 1), ("a", 2), ("r", 1), ("r", 2), ("r", 3)] == contents(table)
    assert 2 == len(table.tags.history("production"))


@pytest.mark.parametrize("arguments,code", [(("log",), 0), (("log", "--json"), 0), (("merge", "run/2"), 1)])
def test_a_reader_that_goes_away_is_no_fault(table: LanceTable, arguments: tuple[str, ...], code: int) -> None:
    """A reader that closes the pipe, such as `head -1`, does not undo the operation or change the exit code."""
    name, *others = arguments
    command = [sys.executable, "-m", "lance_dagster.cli", "table", name, table.uri, *others]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        said = started.stderr.read().decode()
    assert code == started.returncode
    assert ("" if code == 0 else "lance-dagster: cannot merge") == said[:27]
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


@pytest.mark.parametrize("arguments", ["--version", "--help", "log -h", "table --help", "table log --help"])
def test_nobody_has_to_read_the_help(arguments: str) -> None:
    """The exit code is that of a help that was read."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "lance_dagster.cli", *arguments.split()]
    done = subprocess.run(command, check=False, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(write)
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize(
    "arguments", [("--help",), ("log", "TABLE"), ("log", "TABLE", "--json"), ("merge", "TABLE", "run/1")]
)
def test_a_full_disk_is_one_line(table: LanceTable, arguments: tuple[str, ...]) -> None:
    """A full disk is one line of error, with exit code 1."""
    words = arguments if arguments == ("--help",) else ("table", *arguments)
    call = [table.uri if word == "TABLE" else word for word in words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lance_dagster.cli", *call],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert done.stderr.startswith("lance-dagster: cannot write the output: No space left on device")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("arguments,code", [("log", 0), ("log --json", 0), ("merge --into main", 1)])
def test_a_closed_output_is_no_fault(table: LanceTable, arguments: str, code: int, closed: str) -> None:
    """A shell may start the command without a standard output, or without one for errors."""
    name, _, others = arguments.partition(" ")
    source = "run/2" if name == "merge" else ""
    command = f"{sys.executable} -m lance_dagster.cli table {name} {table.uri} {source} {others} {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], check=False, capture_output=True, text=True, cwd=ROOT)
    assert code == done.returncode, done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_commands_by_topic() -> None:
    """The help lists each command once, under its topic."""
    lines = run("--help").stdout.splitlines()
    for topic, commands in TOPICS.items():
        place = lines.index(f"{topic}:")
        section = lines[place + 1 : (lines.index("", place) if "" in lines[place:] else len(lines))]
        listed = [line.split()[0] for line in section if line.startswith("  ") and line[2] != " "]
        assert [command.name for command in commands] == listed
    assert sorted(main.commands) == sorted(command.name or "" for command in COMMANDS)


@pytest.mark.parametrize("name", CALLED)
def test_each_command_has_the_same_options(name: str, tmp_path: Path) -> None:
    """Each command has TABLE or LAKE, --json, storage options and -h; a missing table is one line of error."""
    command, place, what = CALLED[name], _place(name), "repository" if _is_of_repository(name) else "Lance table"
    page = run(*name.split(), "-h")
    assert 0 == page.exit_code
    assert all(part in page.stdout for part in ("--json", "--storage-option", "Usage: main", place))
    if name in {"table list", "table create", "create"}:
        return
    needed = [each for each in command.params if isinstance(each, click.Argument) and each.required]
    missing = run(*name.split(), str(tmp_path / "nothing"), *("x" for _ in needed[1:]), *_required_options(command))
    assert (2, "", 1) == (missing.exit_code, missing.stdout, missing.stderr.count("\n"))
    assert missing.stderr.startswith(f"lance-dagster: no {what} at ")


def _place(name: str) -> str:
    """The name of a command's first argument in its help."""
    return "LAKE" if _is_of_repository(name) else "ROOT" if name == "table list" else "TABLE"


def _is_of_repository(name: str) -> bool:
    """Whether a command takes a repository."""
    return not name.startswith("table ")


def _required_options(command: click.Command) -> list[str]:
    """The required options of a command, as words."""
    required = [each for each in command.params if isinstance(each, click.Option) and each.required]
    return [word for option in required for word in (max(option.opts, key=len), "x")]


def _wrong_calls(command: click.Command, begin: list[str]) -> dict[str, list[str]]:
    """Wrong calls, by the beginning of their error."""
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    needed = ["x" for each in arguments if each.required][1:]
    required = _required_options(command)
    right = [*begin, *needed, *required]
    calls = {
        "no such option '--bogus'": [*right, "--bogus"],
        "no such option '--limitless'": [*right, "--limitless=3"],
        "--storage-option takes KEY=VALUE": [*right, "-o", "aws_region"],
        "option '--storage-option' requires an argument": [*right, "--storage-option"],
        "option '--json' does not take a value": [*right, "--json=yes"],
    }
    # A command that takes any number of names cannot get too many.
    if all(each.nargs != -1 for each in arguments):
        calls[""] = [*right, "x", "x", "x"]
    if needed:
        calls["missing argument '"] = [*begin, *needed[:-1], *required]
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        typed = max(option.opts, key=len)
        if isinstance(option.type, click.IntRange | click.FloatRange):
            calls[f"invalid value for '{option.opts[0]}"] = [*right, typed, "-1"]
        if not option.is_flag:
            calls[f"option '{typed}' requires an argument"] = [*right, typed]
    return calls


@pytest.mark.parametrize("name", CALLED)
def test_a_wrong_call_is_one_line_and_two(name: str, table: LanceTable) -> None:
    """Any wrong call is one line and exit code 2, also with --json; the line names the subcommand and its help."""
    words_of_name = name.split()
    uri = LanceRepository.create(Path(table.uri).parent).root if _is_of_repository(name) else table.uri
    calls = _wrong_calls(CALLED[name], [*words_of_name, uri])
    calls[f"missing argument '{_place(name)}'"] = words_of_name
    for said, call in calls.items():
        for words in (call, [*words_of_name, "--json", *call[len(words_of_name) :]]):
            result = run(*words)
            assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n")), (words, result.output)
            assert result.stderr.startswith(f"lance-dagster {name}: {said}")
            assert result.stderr.endswith(f"; see lance-dagster {name} --help\n")


@pytest.mark.parametrize(
    "words,said",
    [
        (["mrege", "t"], "no such command 'mrege'; did you mean 'free'?; see "),
        (["lo", "t"], "no such command 'lo'; did you mean 'log'?; see "),
        (["--bogus"], "no such option '--bogus'; see "),
        (["--json", "log", "t"], "no such option '--json'"),
        (["-o", "a=b", "log", "t"], "no such option '-o'"),
    ],
)
def test_what_is_no_subcommand_is_one_line_and_two(words: list[str], said: str) -> None:
    """An unknown subcommand is one line and exit code 2; without a subcommand the command shows its help."""
    result = run(*words)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert result.stderr.lower().startswith(f"lance-dagster: {said}")
    assert result.stderr.endswith("; see lance-dagster --help\n")
    nothing = run()
    assert (2, True) == (nothing.exit_code, "Commands" in nothing.stderr or "Look:" in nothing.stderr)


def completed(*words: str) -> list[str]:
    """The completions that a shell offers for the last word."""
    line = " ".join(("lance-dagster", *words))
    environment = {
        **os.environ,
        "_LANCE_DAGSTER_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }
    done = process(environment=environment)
    assert "" == done.stderr
    return [part.partition(",")[2] for part in done.stdout.splitlines() if part]


def test_a_shell_completes_what_is_typed(table: LanceTable) -> None:
    """A shell completes commands, options, and branches and tags of the table; none of a missing table."""
    table.tags.create("production", "main@1")
    assert {"merge", "merge-base"} == set(completed("table", "mer"))
    assert ["--into"] == completed("table", "merge", table.uri, "run/1", "--in")
    assert ["run/1", "run/2"] == completed("table", "merge", table.uri, "run/")
    assert ["main", "run/1", "run/2"] == completed("table", "merge", table.uri, "run/1", "--into", "")
    assert ["production"] == completed("table", "show", table.uri, "p")
    assert ["production"] == completed("table", "rollback", table.uri, "--tag", "")
    assert [] == completed("table", "merge", f"{table.uri}x", "run/")
    assert [table.uri[:-2]] == completed("table", "merge", table.uri[:-2])


def test_a_shell_can_be_told() -> None:
    """The script for a shell's completion is printed."""
    for shell in ("bash", "zsh", "fish"):
        done = process(environment={**os.environ, "_LANCE_DAGSTER_COMPLETE": f"{shell}_source"})
        assert (0, True) == (done.returncode, "_LANCE_DAGSTER_COMPLETE" in done.stdout)


def on_terminal(*arguments: str, **environment: str) -> str:
    """The output of the command on a terminal."""
    master, terminal = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    found = b""

    def read() -> None:
        nonlocal found
        # On Linux the end of a terminal's output is an error.
        with suppress(OSError):
            while part := os.read(master, 4096):
                found += part

    # The output has to be read while the command runs, or a full terminal buffer would block it.
    reader = Thread(target=read)
    reader.start()
    name = os.ttyname(terminal)
    run_on((name, name), ["lance_dagster.cli", *arguments], environment={**kept, **environment})
    os.close(terminal)
    reader.join(timeout=60)
    os.close(master)
    return found.decode()


def test_colours_are_for_terminals(table: LanceTable) -> None:
    """There are colours only on terminals, and not if NO_COLOR is set."""
    assert "\x1b[31mrows conflict" in on_terminal("table", "merge", table.uri, "run/2")
    plain = on_terminal("table", "merge", table.uri, "run/2", NO_COLOR="1")
    assert "rows conflict" in plain
    assert "\x1b[" not in plain
    assert "\x1b[" not in run("table", "merge", table.uri, "run/2").output


def test_progress_is_for_terminals(table: LanceTable) -> None:
    """A progress bar is shown only on terminals, and removed at the end."""
    table.append(entries("b", 1))
    shown = on_terminal("table", "compact", table.uri)
    assert "] 1 of 1" in shown
    assert shown.rstrip().rpartition("\r")[2].startswith("main@4 -> main@6")
    assert "" == process("table", "compact", table.uri).stderr


def test_what_takes_long_is_said_on_terminals(table: LanceTable) -> None:
    """An operation of unknown duration is announced only on terminals, and the text is removed at the end."""
    for doing, arguments in (
        ("comparing rows", ("diff", table.uri, "main~1..main", "--stat")),
        ("comparing rows", ("show", table.uri, "main", "--rows")),
        ("looking for conflicts", ("merge", table.uri, "run/2", "--preview", "--rows")),
        ("merging", ("merge", table.uri, "run/2", "-s", "source-wins")),
    ):
        shown = on_terminal("table", *arguments)
        said, _, rest = shown.rpartition("\r")
        assert f"{doing} ..." in said
        assert doing not in rest
    assert "merging" not in process("table", "merge", table.uri, "run/1").stderr
    assert "comparing" not in process("table", "diff", table.uri, "main~1..main", "--stat").stderr


def test_what_is_listed_as_json_is_json(table: LanceTable) -> None:
    """Lists are JSON with --json, for the commands whose lines other modules test."""
    assert ["main@3", "main@2", "main@1"] == [version["version"] for version in document_of("table", "log", table.uri)]
    assert "main@3" == document_of("table", "show", table.uri)["version"]
    assert ["main", "run/1", "run/2"] == [branch["name"] for branch in document_of("table", "branches", table.uri)]
    assert [] == document_of("table", "tags", table.uri)
    assert document_of("table", "verify", table.uri)["ok"]
    assert document_of("table", "gc", table.uri)["ok"]
    assert {"before", "after"} <= set(document_of("table", "diff", table.uri, "main~1..main"))
    assert lines_of("table", "diff", table.uri, "main~1..main") == lines_of(
        "table", "diff", table.uri, "main~1", "main"
    )


def widths(shown: str) -> list[int]:
    """The widths of the lines that remain on a terminal."""
    lines = click.unstyle(shown).replace("\r\n", "\n").split("\n")
    return [len(line.rpartition("\r")[2]) for line in lines]


def test_lines_fit_the_terminal(table: LanceTable) -> None:
    """On a terminal tables are cut, sentences wrapped and left out columns named; a pipe gets everything."""
    name = f"run/{'0123456789' * 4}"
    table.branches.create(name)
    table.append(entries("a" * 60, 1), branch=name, message="a long message " * 10)
    for arguments in (
        ("log", table.uri, name),
        ("log", table.uri, name, "--graph", "--all-parents"),
        ("show", table.uri, name),
        ("branches", table.uri),
        ("head", table.uri, name),
        ("status", table.uri),
        ("diff", table.uri, f"main..{name}", "--rows"),
    ):
        shown = on_terminal("table", *arguments, COLUMNS="72")
        assert 72 >= max(widths(shown)), (arguments, shown)
    assert name in process("table", "branches", table.uri).stdout
    assert "1 ahead, 2 behind" in on_terminal("table", "status", table.uri, COLUMNS="60")
    assert table.at(name).id in on_terminal("table", "show", table.uri, name, COLUMNS="60")
    narrow = on_terminal("table", "head", table.uri, COLUMNS="9")
    assert "not shown: 1 column (value); --columns chooses" in " ".join(narrow.split())
