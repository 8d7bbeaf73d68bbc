"""`merge`, `preview-branch`, `sync` and `merge-base`."""

import re
import shlex
import subprocess
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.store import LocalStore
from tests.cli.running import document_of, lines_of, run
from tests.conftest import S3Storage
from tests.store.scripted import PlugPulledError, Request, ScriptedStore
from tests.table_factory import SCHEMA, contents, context_on, entries, new_table


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with a branch that added a row, updated one and removed one."""
    made = new_table(tmp_path, entries("a", 1, 2, 3))
    made.branches.create("run/1")
    made.append(entries("r", 1), branch="run/1")
    made.update({"value": "value + 10"}, where="value = 2", branch="run/1")
    made.delete("value = 3", branch="run/1")
    return made


@pytest.fixture
def torn(table: LanceTable) -> LanceTable:
    """The same table, with two conflicting changes on main."""
    table.config.set({"owner": "ann"}, branch="run/1")
    table.config.set({"owner": "bob"})
    table.update({"value": "value + 20"}, where="value = 2")
    return table


def test_a_branch_is_merged(table: LanceTable) -> None:
    """A merge prints the version that it makes; a second one has nothing to do."""
    (line,) = lines_of("table", "merge", table.uri, "run/1", "-m", "all of it")
    assert "main@2 -> main@3  3 rows (1 added, 1 deleted, 1 updated)  all of it" == line
    assert [("a", 1), ("a", 12), ("r", 1)] == contents(table)
    assert ["nothing to do: main@3 has everything of run/1"] == lines_of("table", "merge", table.uri, "run/1")


def test_a_merge_is_told_to_programs(table: LanceTable) -> None:
    """The JSON of a merge says whether a version was made, and which."""
    first, second = (document_of("table", "merge", table.uri, "run/1") for _ in range(2))
    assert (True, "main@2", "main@3", []) == (
        first["made"],
        first["before"],
        first["version"]["version"],
        first["conflicts"],
    )
    assert ["main@2", "run/1@5"] == first["version"]["parents"]
    assert (False, "main@3", "main@3") == (second["made"], second["before"], second["version"]["version"])


def test_a_merge_keeps_what_is_said_about_it(table: LanceTable) -> None:
    """The properties are kept beside the message."""
    made = document_of(
        "table", "merge", table.uri, "run/1", "-m", "all", "--property", "ticket=77", "--property", "by=ann"
    )
    properties = made["version"]["properties"]
    assert ("all", "77", "ann") == (made["version"]["message"], properties["ticket"], properties["by"])
    for wrong in ("ticket", "=77", "lance_dagster.merge=main@1", "__lance_commit_message=x"):
        result = run("table", "merge", table.uri, "run/1", "--property", wrong)
        assert (2, True) == (result.exit_code, "--property" in result.stderr)


def test_a_merge_goes_into_any_branch(table: LanceTable) -> None:
    """A merge may have any branch as its dest, and says which."""
    table.branches.create("next")
    (line,) = lines_of("table", "merge", table.uri, "run/1", "--into", "next")
    assert line.startswith("next@2 -> next@3  3 rows (1 added, 1 deleted, 1 updated)  merge run/1@5 into next")
    assert "main@2" == str(table.head())


def test_every_conflict_has_a_line(torn: LanceTable) -> None:
    """Each conflict has a line with its unit and both changes; the exit code is 1, and nothing is written."""
    result = run("table", "merge", torn.uri, "run/1")
    setting, rows = result.stdout.splitlines()
    assert re.fullmatch(
        r"config conflict: config key 'owner': .* \(run/1@\d\) set it; .* \(main@\d\) set it differently", setting
    )
    assert rows.startswith("rows conflict: 1 row in fragment 0 of the merge base: ")
    assert "(run/1@4)" in result.stdout
    assert "(main@4)" in result.stdout
    error = f"lance-dagster: cannot merge run/1@6 into main@4 of {torn.uri}; nothing was written\n"
    hint = (
        f"hint: look with `lance-dagster table diff {torn.uri} main...run/1 --rows`; settle all conflicts with "
        f"`lance-dagster table merge {torn.uri} run/1@6 --into main "
        "--strategy \"config key 'owner'=source-wins\" --strategy rows=source-wins`, "
        "or choose the other winner for each\n"
    )
    assert (1, error + hint) == (result.exit_code, result.stderr)
    assert "main@4" == str(torn.head())


def test_rows_in_conflict_are_shown(torn: LanceTable) -> None:
    """Rows in conflict are shown as in the merge base and on both sides, one below the other."""
    torn.delete("value = 3")
    torn.update({"key": "NULL", "value": "5"}, where="key = 'a' and value = 1", branch="run/1")
    torn.delete("key = 'a' and value = 1")
    result = run("table", "merge", torn.uri, "run/1", "--preview", "--rows")
    assert 1 == result.exit_code
    lines = result.stdout.splitlines()
    assert [
        "rows conflict: 2 rows in fragment 0 of the merge base",
        "          key   value",
        "  base    a     1",
        "  source  null  5",
        "  dest    (removed)",
        "",
        "  base    a     2",
        "  source  a     12",
        "  dest    a     22",
        "",
    ] == lines[lines.index("") + 1 :]
    few = run("table", "merge", torn.uri, "run/1", "--preview", "--rows", "-n", "1", "-c", "value").stdout.splitlines()
    assert ["          value", "  base    1", "  source  5", "  dest    (removed)", ""] == few[-6:-1]
    assert "there are more rows; --limit shows them" == few[-1]


def test_rows_in_conflict_have_colours(torn: LanceTable) -> None:
    """Cells of rows in conflict that differ from the merge base are coloured."""
    shown = run("table", "merge", torn.uri, "run/1", "--preview", "--rows", color=True).stdout
    assert "  base    a    2\n" in shown
    assert "  source  a    \x1b[33m12\x1b[0m" in shown
    assert "  dest    a    \x1b[33m22\x1b[0m" in shown


def test_rows_in_conflict_are_told_to_programs(torn: LanceTable) -> None:
    """The JSON has the keys, the changes and three images of each row, and whether there are more."""
    answer = document_of("table", "merge", torn.uri, "run/1", "--preview", "--rows", "-k", "key", "-c", "value", code=1)
    (row,) = answer["rows"]
    assert ("rows", "changed", "changed", False) == (
        row["_conflict_kind"],
        row["_source_change"],
        row["_dest_change"],
        answer["more"],
    )
    assert ({"key": "a"}, 1, {"key": "a", "value": 2}) == (row["key"], row["_row_id"], row["base"])
    without = document_of("table", "merge", torn.uri, "run/1", "--preview", code=1)
    assert answer.keys() - without.keys() == {"rows", "more"}
    assert not [name for name in answer if name.startswith("_")]


def test_a_key_finds_rows_without_stable_ids(tmp_path: Path) -> None:
    """Without a key the new state of a changed row is unknown."""
    uri = str(tmp_path / "addresses")
    lance.write_dataset(entries("a", 1, 2), uri)
    table = LanceTable.open(uri)
    table.branches.create("run/1")
    table.update({"key": "'b'"}, where="value = 2", branch="run/1")
    table.update({"key": "'c'"}, where="value = 2")
    told = run("table", "merge", uri, "run/1", "--preview", "--rows").stdout
    assert "  source  (changed or removed; a key tells: --on COLUMN)" in told
    found = run("table", "merge", uri, "run/1", "--preview", "--rows", "-k", "value").stdout.splitlines()
    assert ["          key  value", "  base    a    2", "  source  b    2", "  dest    c    2", ""] == found[-5:]


def test_rows_are_shown_of_a_preview(table: LanceTable) -> None:
    """Only a preview shows rows; it shows none if there are no conflicts, or none with rows."""
    assert (2, True) == (
        (result := run("table", "merge", table.uri, "run/1", "--rows")).exit_code,
        "--preview" in result.stderr,
    )
    clean = lines_of("table", "merge", table.uri, "run/1", "--preview")
    assert clean == lines_of("table", "merge", table.uri, "run/1", "--preview", "--rows")
    table.config.set({"owner": "ann"}, branch="run/1")
    table.config.set({"owner": "bob"})
    result = run("table", "merge", table.uri, "run/1", "--preview", "--rows")
    assert (1, "these conflicts have no rows that can be shown") == (result.exit_code, result.stdout.splitlines()[-1])


def test_conflicts_are_told_to_programs(torn: LanceTable) -> None:
    """The JSON has a list with the kind and unit of each conflict."""
    answer = document_of("table", "merge", torn.uri, "run/1", code=1)
    assert (False, None) == (answer["made"], answer["version"])
    assert ["config", "rows"] == [conflict["kind"] for conflict in answer["conflicts"]]
    assert {"kind", "unit", "source", "dest", "table", "hint", "keys"} == set(answer["conflicts"][0])


@pytest.mark.parametrize(
    "strategies,value,owner",
    [
        (["source-wins"], 12, "ann"),
        (["dest-wins"], 22, "bob"),
        (["rows=source-wins", "config=dest-wins"], 12, "bob"),
        (["rows=dest-wins", "config key 'owner'=source-wins"], 22, "ann"),
        (["dest-wins", "rows=source-wins"], 12, "bob"),
        (["config=source-wins", "dest-wins"], 22, "ann"),
    ],
)
def test_conflicts_are_settled(torn: LanceTable, strategies: list[str], value: int, owner: str) -> None:
    """A strategy may apply to all conflicts, or to a unit or kind, with another one for the rest."""
    given = [part for strategy in strategies for part in ("--strategy", strategy)]
    lines_of("table", "merge", torn.uri, "run/1", *given)
    assert [("a", 1), ("a", value), ("r", 1)] == contents(torn)
    assert owner == torn.to_lance().config()["owner"]


def test_a_strategy_for_some_leaves_the_others(torn: LanceTable) -> None:
    """The other conflicts are printed."""
    result = run("table", "merge", torn.uri, "run/1", "-s", "rows=dest-wins")
    assert (1, 1) == (result.exit_code, len(result.stdout.splitlines()))
    assert result.stdout.startswith("config conflict")


def test_a_hint_can_be_typed_as_it_is(torn: LanceTable) -> None:
    """The diff of the hint shows the rows in conflict, and its strategies settle them."""
    hint = run("table", "merge", torn.uri, "run/1").stderr.splitlines()[1]
    look, settle = hint.split("`")[1::2]
    shown = run(*shlex.split(look)[1:])
    assert (0, True) == (shown.exit_code, "12" in shown.stdout)
    lines_of(*shlex.split(settle)[1:])
    assert ("a", 12) in contents(torn)


def test_a_hint_of_hard_names_can_be_typed_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table whose name begins with a hyphen, and a partition whose key is empty."""
    table = LanceTable.create(tmp_path / "-t", SCHEMA)
    table.branches.create("run/1")
    for branch in ("main", "run/1"):
        table.replace_where("key = ''", entries("", 1 + len(branch)), branch=branch, partitions=[""])
    monkeypatch.chdir(tmp_path)
    hint = run("table", "merge", "--", "-t", "run/1").stderr.splitlines()[1]
    look, settle = hint.split("`")[1::2]
    assert 0 == run(*shlex.split(look)[1:]).exit_code
    assert 0 == run(*shlex.split(settle)[1:]).exit_code
    assert [("", 6)] == contents(table)


@pytest.mark.parametrize(
    "options,message,ticket",
    [
        (["--preview"], "squash run/1@6 into main", None),
        (["-m", "it's all", "--property", "ticket=7 7"], "it's all", "7 7"),
    ],
)
def test_a_hint_keeps_every_option(torn: LanceTable, options: list[str], message: str, ticket: str | None) -> None:
    """The command that settles the conflicts has every option that was typed."""
    hint = run("table", "merge", torn.uri, "run/1", "--squash", "-s", "rows=dest-wins", *options).stderr
    lines_of(*shlex.split(hint.split("`")[3])[1:])
    head = torn.head()
    assert (message, ticket, 1) == (head.message, head.properties.get("ticket"), len(head.parents))
    assert [("a", 1), ("a", 22), ("r", 1)] == contents(torn)


def test_hints_of_picks_reverts_and_previews_can_be_typed(torn: LanceTable) -> None:
    """Each hint is the typed command with strategies that settle all conflicts."""
    for words in (
        ["cherry-pick", torn.uri, "run/1@4", "-m", "mine", "--property", "a=b"],
        ["preview-branch", torn.uri, "run/1", "--name", "look"],
        ["revert", torn.uri, "run/1@4", "--branch", "run/1"],
    ):
        if words[0] == "revert":
            torn.update({"value": "77"}, where="value = 12", branch="run/1")
        refused = run("table", *words)
        assert 1 == refused.exit_code
        typed = shlex.split(refused.stderr.split("`")[3])
        assert ["lance-dagster", "table", words[0]] == typed[:3]
        assert set(words[3:]) - {"-m"} <= set(typed)
        lines_of(*typed[1:])


def test_a_hint_offers_no_strategy_that_was_given(tmp_path: Path) -> None:
    """The hint advises to change one side, and has no strategy if none can settle the conflict."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/1")
    table.columns.cast("value", pa.int32(), branch="run/1")
    table.columns.cast("value", pa.int8())
    (conflict,) = document_of("table", "merge", table.uri, "run/1", code=1)["conflicts"]
    unit = conflict["unit"]
    assert f"--strategy '{unit}=source-wins'" in run("table", "merge", table.uri, "run/1").stderr
    for given in ("source-wins", "column=dest-wins"):
        result = run("table", "merge", table.uri, "run/1", "-s", given)
        assert 0 == result.exit_code or result.stderr.endswith("; then change one side\n")
    assert "hint" not in run("table", "merge", table.uri, "run/1", "--ff-only").stderr


@pytest.mark.parametrize("wrong", ["ours", "rows=ours", "rows", "source-wins=rows", ""])
def test_a_wrong_strategy_is_a_wrong_call(table: LanceTable, wrong: str) -> None:
    """The error lists the valid strategies."""
    result = run("table", "merge", table.uri, "run/1", "-s", wrong)
    assert (2, True) == (result.exit_code, "source-wins or dest-wins" in result.stderr)
    assert 2 == run("table", "merge", table.uri, "run/1", "-s", "rows=dest-wins", "-s", "rows=source-wins").exit_code


def test_a_unit_may_hold_an_equals_sign(tmp_path: Path) -> None:
    """The unit may be the predicate of a replacement."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/1")
    table.replace_where("key = 'a'", entries("a", 2), branch="run/1")
    table.append(entries("a", 3))
    (conflict,) = document_of("table", "merge", table.uri, "run/1", code=1)["conflicts"]
    lines_of("table", "merge", table.uri, "run/1", "-s", f"{conflict['unit']}=source-wins")
    assert [("a", 2)] == contents(table)


def test_a_merge_is_previewed(table: LanceTable) -> None:
    """The preview shows the effect of the merge, and nothing is written."""
    table.columns.add(pa.schema({"note": pa.string()}), branch="run/1")
    lines = lines_of("table", "merge", table.uri, "run/1", "--preview")
    assert "run/1@6 into main@2; merge base main@2" == lines[0]
    facts = {line[4:18].strip(): line[18:].strip() for line in lines[1:]}
    assert {
        "rows": "1 added, 1 updated, 1 deleted",
        "columns": "changed",
        "fast-forward": "yes",
    } == facts
    answer = document_of("table", "merge", table.uri, "run/1", "--preview")
    assert (True, 1, 1, 1) == (answer["ok"], answer["rows_added"], answer["rows_updated"], answer["rows_deleted"])
    assert "main@2" == str(table.head())
    table.merge("run/1")
    assert "nothing to do: it was merged before" == lines_of("table", "merge", table.uri, "run/1", "--preview")[1]


def test_a_preview_says_what_is_left_to_do(table: LanceTable) -> None:
    """It lists new columns that are null in some rows, and says whether main has changes of its own."""
    table.columns.add({"double": "value * 2"}, branch="run/1")
    table.append(entries("b", 5, 6))
    lines = lines_of("table", "merge", table.uri, "run/1", "--preview")
    assert "needs backfill  double, null in 2 rows" in "\n".join(lines)
    assert "fast-forward    no: main@3 has changes of its own" in "\n".join(lines)
    assert {"double": 2} == document_of("table", "merge", table.uri, "run/1", "--preview")["needs_backfill"]


def test_a_preview_of_conflicts_exits_with_one(torn: LanceTable) -> None:
    """The preview prints the lines and the hint of the merge, without its error."""
    result = run("table", "merge", torn.uri, "run/1", "--preview")
    assert (1, run("table", "merge", torn.uri, "run/1").stderr.splitlines()[1:]) == (
        result.exit_code,
        result.stderr.splitlines(),
    )
    assert "2 conflicts; nothing would be written" == result.stdout.splitlines()[-1]
    assert run("table", "merge", torn.uri, "run/1").stdout.splitlines() == result.stdout.splitlines()[1:-1]
    answer = document_of("table", "merge", torn.uri, "run/1", "--preview", code=1)
    assert (False, 2) == (answer["ok"], len(answer["conflicts"]))
    assert 0 == run("table", "merge", torn.uri, "run/1", "--preview", "-s", "source-wins").exit_code


def test_what_was_cleaned_up_can_be_left_alone(table: LanceTable) -> None:
    """The hint has the strategy for the history, also beside other conflicts, but not where it does not help."""
    for value in (5, 6):
        table.append(entries("r", value), branch="run/1")
    table.append(entries("b", 1))
    lance.dataset(table.uri).checkout_version(("run/1", None)).cleanup_old_versions(retain_versions=1)
    settled = "--strategy history=source-wins"
    for options in ([], ["--preview"], ["-s", "source-wins"]):
        result = run("table", "merge", table.uri, "run/1", *options)
        assert (1, True) == (result.exit_code, "history conflict: version run/1@" in result.stdout)
        assert "{" not in result.output
        hint = "hint: if no version that was cleaned up replaced rows, settle all conflicts with `lance-dagster table "
        assert f"{hint}merge" in result.stderr
        assert f"{settled}`" in result.stderr
    assert settled not in run("table", "merge", table.uri, "run/1", "--ff-only").stderr
    (line,) = lines_of("table", "merge", table.uri, "run/1", *shlex.split(settled))
    assert line.startswith("main@3 -> main@4")


def test_only_a_fast_forward_may_be_asked_for(table: LanceTable) -> None:
    """The merge and its preview are refused once main has changed."""
    assert 0 == run("table", "merge", table.uri, "run/1", "--ff-only", "--preview").exit_code
    table.append(entries("b", 1))
    for options in ([], ["--preview"]):
        result = run("table", "merge", table.uri, "run/1", "--ff-only", *options)
        assert (1, True) == (result.exit_code, "history conflict: " in result.stdout)
    table.branches.sync("run/1")
    assert 0 == run("table", "merge", table.uri, "run/1", "--ff-only").exit_code


def test_a_squash_is_no_merge(table: LanceTable) -> None:
    """Its version has one parent, and the branch cannot be merged again."""
    answer = document_of("table", "merge", table.uri, "run/1", "--squash")
    assert ["main@2"] == answer["version"]["parents"]
    table.append(entries("r", 2), branch="run/1")
    assert 1 == run("table", "merge", table.uri, "run/1").exit_code
    assert 2 == run("table", "merge", table.uri, "run/1", "--squash", "--ff-only").exit_code


def test_a_merge_is_made_as_a_branch(table: LanceTable) -> None:
    """The branch is for checks, and main stays as it is."""
    (line,) = lines_of("table", "preview-branch", table.uri, "run/1")
    assert "preview/run/1 from main@2: preview/run/1@3, 3 rows" == line
    assert contents(table, "run/1") == contents(table, "preview/run/1")
    answer = document_of("table", "preview-branch", table.uri, "run/1", "--name", "check")
    assert ("check", "main@2", "check@3") == (answer["branch"], answer["forked_from"], answer["version"]["version"])
    assert 1 == run("table", "preview-branch", table.uri, "run/1", "--name", "check").exit_code
    assert "main@2" == str(table.head())


def test_a_preview_is_made_anew(table: LanceTable) -> None:
    """The new preview has the present rows; a branch that is no preview is not replaced."""
    lines_of("table", "preview-branch", table.uri, "run/1")
    table.append(entries("r", 2), branch="run/1")
    refused = run("table", "preview-branch", table.uri, "run/1")
    assert (1, True) == (refused.exit_code, refused.stderr.endswith("; --replace replaces a preview\n"))
    (line,) = lines_of("table", "preview-branch", table.uri, "run/1", "--replace")
    assert line.endswith(", 4 rows")
    assert contents(table, "run/1") == contents(table, "preview/run/1")
    assert 0 == run("table", "preview-branch", table.uri, "run/1", "--name", "other", "--replace").exit_code
    table.branches.create("work")
    refused = run("table", "preview-branch", table.uri, "run/1", "--name", "work", "--replace")
    assert (1, True) == (refused.exit_code, "branch 'work' of " in refused.stderr)
    assert ["other", "preview/run/1", "run/1", "work"] == sorted(table.branches.list())


def test_a_preview_that_died_is_made_anew(table: LanceTable) -> None:
    """The old preview cannot be completed, because main has a later version."""

    def script(request: Request) -> object:
        # The next write is the merge, since the branch has its first version.
        if request.writes and table.branches.list("preview/*"):
            raise PlugPulledError
        return request.send()

    died = LanceTable(context_on(ScriptedStore(LocalStore(table.uri), script)))
    with pytest.raises(PlugPulledError):
        died.branches.preview("run/1")
    table.append(entries("m", 9))
    assert 1 == run("table", "preview-branch", table.uri, "run/1").exit_code
    (line,) = lines_of("table", "preview-branch", table.uri, "run/1", "--replace")
    assert line.startswith("preview/run/1 from main@3: ")
    assert ("m", 9) in contents(table, "preview/run/1")


def test_a_preview_stays_when_the_next_one_is_in_conflict(table: LanceTable) -> None:
    """The old preview is deleted only when the new merge has no conflict."""
    lines_of("table", "preview-branch", table.uri, "run/1")
    table.update({"value": "value + 20"}, where="value = 2")
    assert 1 == run("table", "preview-branch", table.uri, "run/1", "--replace").exit_code
    assert ["preview/run/1", "run/1"] == sorted(table.branches.list())


def test_no_branch_is_made_of_a_conflict(torn: LanceTable) -> None:
    """The conflicts are printed like those of a merge."""
    result = run("table", "preview-branch", torn.uri, "run/1")
    assert (1, 2) == (result.exit_code, len(result.stdout.splitlines()))
    assert ["run/1"] == list(torn.branches.list())
    assert 2 == len(document_of("table", "preview-branch", torn.uri, "run/1", code=1)["conflicts"])


def test_a_branch_is_synced(table: LanceTable) -> None:
    """The branch gets the changes of its parent."""
    assert lines_of("table", "sync", table.uri, "run/1")[0].startswith("nothing to do: run/1@5 has everything")
    table.append(entries("b", 1))
    (line,) = lines_of("table", "sync", table.uri, "run/1", "--property", "ticket=7")
    assert "7" == table.head("run/1").properties["ticket"]
    assert line.startswith("run/1@5 -> run/1@6  4 rows (1 added)  merge main@3 into run/1")
    assert not document_of("table", "sync", table.uri, "run/1")["made"]
    assert 2 == run("table", "sync", table.uri, "main").exit_code


def test_a_sync_has_conflicts_too(torn: LanceTable) -> None:
    """They are printed and settled like those of a merge, with main as the source."""
    assert 2 == len(document_of("table", "sync", torn.uri, "run/1", code=1)["conflicts"])
    assert 0 == run("table", "sync", torn.uri, "run/1", "-s", "source-wins").exit_code
    assert ("a", 22) in contents(torn, "run/1")


def test_a_merge_base_is_shown(table: LanceTable) -> None:
    """The merge base is the newest version that both refs contain."""
    table.append(entries("b", 1))
    (line,) = lines_of("table", "merge-base", table.uri, "main", "run/1")
    assert ["main@2", table.at("main@2").id[:10]] == line.split()[:2]
    table.merge("run/1")
    assert "run/1@5" == document_of("table", "merge-base", table.uri, "main", "run/1")["version"]


def test_a_table_on_s3_is_merged(s3_storage: S3Storage) -> None:
    """Merge, promotion and status use the storage options of the command line."""
    table = LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=s3_storage.storage_options)
    table.branches.create("run/1")
    table.append(entries("r", 1), branch="run/1")
    options = [f"--storage-option={key}={value}" for key, value in s3_storage.storage_options.items()]
    assert document_of("table", "merge", table.uri, "run/1", *options)["made"]
    assert ["production: new -> main@2"] == lines_of("table", "promote", table.uri, *options)
    assert "    run/1  run/1@2  1 row  1 behind" in lines_of("table", "status", table.uri, *options)


def test_a_partition_may_have_a_line_break_in_its_name(tmp_path: Path) -> None:
    """The hint has an escape for it that shells understand, on one line; the typed command has the right name."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/1")
    for value, branch in ((2, "run/1"), (3, "main")):
        table.replace_where("key = 'a'", entries("a", value), branch=branch, partitions=["it's\n2\\x"])
    _, hint = run("table", "merge", table.uri, "run/1").stderr.splitlines()
    typed = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {hint.split('`')[3]}"], check=True, capture_output=True, text=True
    ).stdout.split("\0")[:-1]
    lines_of(*typed[1:])
    assert [("a", 2)] == contents(table)
