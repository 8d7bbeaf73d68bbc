"""The `lance-dagster` command: what it prints, what it exits with, and that it starts at once."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from lance_dagster import LanceTable
from lance_dagster.cli.main import main
from lance_dagster.history.table_uri import table_uri
from tests.conftest import S3Storage
from tests.damage import removed
from tests.table_factory import SCHEMA, as_pylance, entries, new_table

ROOT = Path(__file__).parent.parent.parent
COMMANDS = ["log", "show", "branches", "tags", "verify", "gc"]


def run(*arguments: str) -> Result:
    """Call the command in this process."""
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with a branch, a tag and a message."""
    made = new_table(tmp_path, entries("a", 1, 2, 3))
    made.branches.create("run/1")
    made.append(entries("r", 1), branch="run/1", message="one more")
    made.delete("value = 2")
    made.tags.create("production", "main@2")
    return made


def test_a_sound_table_is_verified(table: LanceTable) -> None:
    """`verify` of a valid table exits with 0, and a line says how much was checked."""
    result = run("table", "verify", table.uri)
    assert (0, "") == (result.exit_code, result.stderr)
    assert result.stdout == (
        "0 errors, 0 warnings; looked at 5 versions, 2 branches, 1 tag, 4 fragments, 2 data files, 1 deletion file, "
        "0 index files\n"
    )
    assert "2 data files read whole" in run("table", "verify", table.uri, "--deep").stdout
    assert "looked at 1 version, 1 branch" in run("table", "verify", table.uri, "--ref", "run/1").stdout


def test_damage_is_printed_and_told_by_the_exit_code(table: LanceTable) -> None:
    """Damage is printed with its place and what would be right; warnings alone leave the exit code 0."""
    removed("_versions/latest_version_hint.json")(table)
    result = run("table", "verify", table.uri)
    assert 0 == result.exit_code
    assert "warning: _versions/latest_version_hint.json\n    there is no version hint\n    right: " in result.stdout
    removed("_deletions/*")(table)
    result = run("table", "verify", table.uri)
    assert 1 == result.exit_code
    assert "error: main@3, fragment 0, _deletions/" in result.stdout
    assert "\n    the deletion file is missing\n    right: " in result.stdout
    assert "1 error, 1 warning; looked at" in result.stdout
    assert 0 == run("table", "verify", table.uri, "--ref", "main@2").exit_code


def test_a_report_can_be_read_by_programs(table: LanceTable) -> None:
    """A report with `--json` is one document with the same content and exit code."""
    sound = json.loads(run("table", "verify", table.uri, "--json").stdout)
    assert (True, [], 5, 2) == (sound["ok"], sound["problems"], sound["versions"], sound["branches"])
    removed("_deletions/*")(table)
    result = run("table", "verify", table.uri, "--json")
    (problem,) = json.loads(result.stdout)["problems"]
    assert 1 == result.exit_code
    assert ("error", ["main@3"], 0) == (problem["severity"], problem["versions"], problem["fragment"])
    assert problem["path"].startswith("_deletions/0-2-")


def test_the_log_is_shown(table: LanceTable) -> None:
    """The log shows versions newest first, across forks, with their messages."""
    lines = run("table", "log", table.uri, "--ref", "run/1").stdout.splitlines()
    assert ["run/1@3", "main@2", "main@1"] == [line.split()[0] for line in lines]
    assert lines[0].endswith("4 rows  (run/1) one more")
    assert 1 == len(run("table", "log", table.uri, "-n", "1").stdout.splitlines())
    documents = json.loads(run("table", "log", table.uri, "--json").stdout)
    assert ["main@3", "main@2", "main@1"] == [document["version"] for document in documents]
    assert ["main@1"] == documents[1]["parents"]


def test_a_version_is_shown(table: LanceTable) -> None:
    """`show` prints the operation, the parents and the columns of a version."""
    shown = run("table", "show", table.uri, "run/1").stdout
    for line in ("version", "run/1@3", "run/1@2", "one more", "key", "value  int64"):
        assert line in shown
    document = json.loads(run("table", "show", table.uri, "production", "--json").stdout)
    assert ("main@2", 3, "append") == (document["version"], document["rows"], document["operation"].lower())
    assert {"name": "key", "type": "string", "nullable": True} == document["columns"][0]
    assert "main@3" in run("table", "show", table.uri).stdout


def test_a_version_shows_its_ids(table: LanceTable) -> None:
    """A version is shown with its commit id, and on request with its content id."""
    facts = dict(line.split(maxsplit=1) for line in run("table", "show", table.uri, "run/1~1").stdout.splitlines()[:6])
    assert ("main@2", table.at("main@2").id) == (facts["version"], facts["id"])
    assert "content" not in facts
    document = json.loads(run("table", "show", table.uri, "--content", "--json").stdout)
    assert (table.maintenance.content_id(), table.head().id) == (document["content_id"], document["id"])
    assert table.maintenance.content_id() in run("table", "show", table.uri, "--content").stdout
    assert "main@3" in run("table", "show", table.uri, table.head().id[:8]).stdout


def test_the_log_is_drawn(table: LanceTable) -> None:
    """A drawn log has a lane for merged versions, no colours outside of a terminal, and edges in JSON."""
    table.merge("run/1")
    lines = run("table", "log", table.uri, "--graph").stdout.splitlines()
    lanes = [re.match(r"[*|\\/ ]*", line)[0].strip() for line in lines]  # type: ignore[index]  # it always matches
    assert (["*", "|\\"], ["|/", "*", "*"]) == (lanes[:2], lanes[-3:])
    assert ["* |", "| *"] == sorted(lanes[2:-3])
    assert "main@4" in lines[0]
    documents = json.loads(run("table", "log", table.uri, "--graph", "--json").stdout)
    assert ["main@3", "run/1@3"] == documents[0]["below"]
    assert "\x1b[" not in "".join(lines)
    coloured = CliRunner().invoke(main, ["table", "log", table.uri, "--graph"], color=True).stdout
    assert "\x1b[31m|" in coloured
    assert lines == [click.unstyle(line) for line in coloured.splitlines()]
    line = run("table", "log", table.uri, "--graph", "--first-parent").stdout.splitlines()
    assert ["*  main@4", "*  main@3", "*  main@2", "*  main@1"] == [text[:9] for text in line]
    assert 5 == len(run("table", "log", table.uri, "--all-parents").stdout.splitlines())


@pytest.mark.parametrize(
    "options,shown",
    [
        (["--after", "main@2"], ["main@4", "main@3"]),
        (["--after", "main@2", "--all-parents"], ["main@4", "main@3", "run/1@3"]),
        (["--committer", "ann"], ["main@3"]),
        (["--message", "MORE", "--all-parents"], ["run/1@3"]),
        (["--property", "ticket"], ["main@3"]),
        (["--property", "ticket=4=2"], ["main@3"]),
        (["--property", "ticket", "--property", "other"], []),
        (["--property", "ticket="], []),
        (["--since", "1 hour ago", "-n", "1"], ["main@4"]),
        (["--until", "1 hour ago"], []),
        (["--merges"], ["main@4"]),
        (["--no-merges"], ["main@3", "main@2", "main@1"]),
        (["--merges", "--committer", "ann"], []),
        (["--since", "2100-01-01"], []),
        (["--ref", "main~1^", "-n", "1"], ["main@2"]),
    ],
)
def test_the_log_is_filtered(tmp_path: Path, options: list[str], shown: list[str]) -> None:
    """The log is filtered by the content of another version, person, operation and time, in lines and as JSON."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/1")
    table.append(entries("r", 1), branch="run/1", message="one more")
    table.append(entries("b", 1), properties={"lance_dagster.committer": "ann", "ticket": "4=2"})
    table.merge("run/1")
    result = run("table", "log", table.uri, *options)
    # Versions that were made in the same millisecond may come in either order.
    assert (0, sorted(shown)) == (result.exit_code, sorted(line.split()[0] for line in result.stdout.splitlines()))
    documents = json.loads(run("table", "log", table.uri, *options, "--json").stdout)
    assert sorted(shown) == sorted(document["version"] for document in documents)


@pytest.mark.parametrize("limit", [2**63 - 1, 2**63, 10**40])
def test_a_limit_beyond_every_count_shows_all(table: LanceTable, limit: int) -> None:
    """No number is too large: neither for Arrow, nor for what takes the first ones."""
    table.branches.create("other", "main~1")
    for branch in ("main", "other"):
        table.update({"value": "7" if branch == "main" else "8"}, where="value = 1", branch=branch)
    for *arguments, code in (
        ("log", 0),
        ("log", "--graph", 0),
        ("head", 0),
        ("diff", "main@1..main", "--rows", 0),
        ("show", "--rows", 0),
        ("merge", "other", "--preview", "--rows", 1),
    ):
        command, *rest = map(str, arguments)
        result = run("table", command, table.uri, *rest, "-n", str(limit))
        assert code == result.exit_code, result.output
        assert "there are more rows" not in result.stdout


def test_a_time_that_is_none_is_a_wrong_call(table: LanceTable) -> None:
    """An invalid time is a wrong call, and the error has an example of a valid one."""
    result = run("table", "log", table.uri, "--since", "tomorrow")
    assert 2 == result.exit_code
    assert "cannot read the time 'tomorrow': expected a time such as 2026-01-31T00:00Z" in result.stderr


def test_a_log_says_where_it_was_cut(table: LanceTable) -> None:
    """The log says where its history was cut off, in its line, in `show` and in JSON."""
    as_pylance(table).cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    lines = run("table", "log", table.uri).stdout.splitlines()
    assert ["main@3", "main@2"] == [line.split()[0] for line in lines]
    assert [False, True] == [line.endswith("(cut: the version before it was cleaned up)") for line in lines]
    assert [False, True] == [found["cut"] for found in json.loads(run("table", "log", table.uri, "--json").stdout)]
    assert "main@1 (cut: the version before it was cleaned up)" in run("table", "show", table.uri, "production").stdout


def test_what_is_shown_leaves_the_terminal_alone(table: LanceTable) -> None:
    """Control characters in a message do not reach the terminal."""
    table.append(entries("x", 1), message="\x1b[2Jgone\nsecond line", properties={"key": "\x07"})
    for arguments in (["log", table.uri, "-n", "1"], ["show", table.uri], ["log", table.uri, "--graph"]):
        assert not {"\x1b", "\x07"} & set(run("table", *arguments).stdout)
    assert "second line" not in run("table", "log", table.uri, "-n", "1").stdout


def test_a_table_is_named_with_a_version(table: LanceTable) -> None:
    """One URI can name a table with a version, in place of the option or the argument for the ref."""
    text = table_uri(table.uri, "run/1@3")
    assert run("table", "log", table.uri, "--ref", "run/1@3").stdout == run("table", "log", text).stdout
    assert run("table", "show", table.uri, "run/1@3").stdout == run("table", "show", text).stdout
    assert "looked at 1 version" in run("table", "verify", text).stdout
    for wrong, problem in (
        (("log", text, "--ref", "main"), "TABLE names the ref 'run/1@3' already; give only one ref"),
        (("tags", text), "tags takes a whole table; leave out 'lance+' and '?ref='"),
        (("log", f"{text}&key=hunter2"), "after '?' the URI of a version has only ref=<expression>, not 'key'"),
    ):
        result = run("table", *wrong)
        assert (2, True, False) == (result.exit_code, problem in result.stderr, "hunter2" in result.output)


def test_names_are_listed(table: LanceTable) -> None:
    """Branches are listed with their newest version and their fork, and tags with the version that they name."""
    rows = [line.split() for line in run("table", "branches", table.uri).stdout.splitlines()]
    assert [["main", "main@3"], ["run/1", "run/1@3"]] == [row[:2] for row in rows]
    assert ["from", "main@2"] == rows[1][2:4]
    heads = [found["head"] for found in json.loads(run("table", "branches", table.uri, "--json").stdout)]
    assert ["main@3", "run/1@3"] == heads
    assert run("table", "tags", table.uri).stdout.startswith("production  main@2  20")
    assert "main@2" == json.loads(run("table", "tags", table.uri, "--json").stdout)[0]["version"]
    table.tags.delete("production")
    assert ("", []) == (
        run("table", "tags", table.uri).stdout,
        json.loads(run("table", "tags", table.uri, "--json").stdout),
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_that_is_not_there_is_told(tmp_path: Path, table: LanceTable, command: str) -> None:
    """A missing table is an error, as is a storage option that is unknown or not for that storage."""
    missing = run("table", command, str(tmp_path / "nothing"))
    assert (2, 1) == (missing.exit_code, missing.stderr.count("\n"))
    assert missing.stderr.startswith("lance-dagster: no Lance table at ")
    assert "" == missing.stdout
    for option in ("aws_region", "=x"):
        wrong = run("table", command, table.uri, "-o", option)
        assert (2, True, 1) == (wrong.exit_code, "takes KEY=VALUE" in wrong.stderr, wrong.stderr.count("\n"))
    unknown = run("table", command, table.uri, "-o", "aws_region=eu-central-1")
    assert (2, 1) == (unknown.exit_code, unknown.stderr.count("\n"))


def test_a_wrong_ref_is_named(table: LanceTable) -> None:
    """The error for a wrong ref has the nearest existing name."""
    for result in (run("table", "log", table.uri, "--ref", "prodution"), run("table", "show", table.uri, "prodution")):
        assert 2 == result.exit_code
        assert (
            f"lance-dagster: no branch or tag 'prodution' in {table.uri}; did you mean 'production'?\n" == result.stderr
        )
    assert 2 == run("table", "verify", table.uri, "--ref", "main@@").exit_code


def test_a_damaged_table_is_refused_in_one_line(table: LanceTable) -> None:
    """Subcommands other than verify name the damage in one line, and exit with 1."""
    for path in Path(table.uri).glob("_versions/*.manifest"):
        path.write_bytes(b"")
    result = run("table", "log", table.uri)
    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))
    assert "is damaged" in result.stderr


def test_a_secret_is_never_repeated(table: LanceTable) -> None:
    """No output repeats a secret, even one that was given without its key."""
    for arguments in (("-o", "hunter2"), ("-o", "aws_secret_access_key=hunter2"), ("-o", "aws_secret=hunter2")):
        assert "hunter2" not in run("table", "verify", table.uri, *arguments).output
    assert "hunter2" not in run("table", "verify", "s3://b/t", "-o", "aws_secret=hunter2").output


def test_a_table_on_s3_is_reached(s3_storage: S3Storage) -> None:
    """A table on S3 is reached with the options of the command line."""
    options = [f"{key}={value}" for key, value in s3_storage.storage_options.items()]
    given = [argument for option in options for argument in ("--storage-option", option)]
    table = LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=s3_storage.storage_options)
    table.append(entries("a", 1))
    assert "0 errors, 0 warnings" in run("table", "verify", table.uri, *given).stdout
    assert "main@2" in run("table", "log", table.uri, *given).stdout


def test_help_names_every_subcommand() -> None:
    """The help has a line for each subcommand, and a page for each that explains TABLE."""
    listed = run("table", "--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in listed
        page = run("table", command, "--help")
        assert (0, True) == (page.exit_code, "--json" in page.stdout and "TABLE" in page.stdout)


def test_the_installed_command_is_this_one() -> None:
    """The entry point of the project is the command group that is tested here."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["lance-dagster"].partition(":")
    found = getattr(importlib.import_module(module), name)
    assert main is found
    assert isinstance(found, click.Group)


def test_it_starts_at_once_and_exits_as_told(table: LanceTable) -> None:
    """In a real process help loads no heavy module, and a damaged table ends it with exit code 1."""
    command = [sys.executable, "-m", "lance_dagster.cli"]
    code = (
        "import sys; from lance_dagster.cli.main import main; main(['--help'], standalone_mode=False); "
        "print({'dagster', 'lance', 'pyarrow', 'numpy', 'pendulum', 'pyspark'} & set(sys.modules))"
    )
    heavy = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert "set()" == heavy.stdout.splitlines()[-1]
    removed("data/*.lance")(table)
    done = subprocess.run(
        [*command, "table", "verify", table.uri], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (1, "") == (done.returncode, done.stderr)
    assert "the file is missing" in done.stdout
