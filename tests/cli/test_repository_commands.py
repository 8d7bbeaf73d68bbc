"""The commands about a lake: many tables from a shell."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.transactions.claims import ClaimMode
from lance_dagster.types import Verdict
from tests.cli.running import document_of, lines_of, run
from tests.repository.write_requests import write_request

SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.int64())])
ORDERS, LINES = "shop/orders", "shop/lines"


def rows(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": ids, "price": [1] * len(ids)}, schema=SCHEMA)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Two tables that exist, and no repository yet."""
    for name in (ORDERS, LINES):
        LanceTable.create(tmp_path / f"{name}.lance", SCHEMA).append(rows(1))
    return str(tmp_path)


@pytest.fixture
def repository(lake: str) -> str:
    """A repository of the two tables."""
    LanceRepository.create(lake).adopt()
    return lake


def table(root: str, name: str) -> LanceTable:
    """A table below the root."""
    return LanceTable.open(f"{root}/{name}.lance")


def publish(root: str, number: int, *options: str) -> list[str]:
    """Publish one more row in both tables."""
    lines_of("fork", root, f"run/{number}", ORDERS, LINES)
    for name in (ORDERS, LINES):
        table(root, name).append(rows(number), branch=f"run/{number}")
    return lines_of("publish", root, f"run/{number}", *options)


def test_tables_that_exist_become_a_repository(lake: str) -> None:
    """`create` names the tables that it found, `adopt` commits them, and both can be repeated."""
    created, hint = lines_of("create", lake)
    assert f"{lake}: is a repository now" == created
    assert f"not part of it: {LINES}, {ORDERS}; `lance-dagster adopt {lake}` adds them" in hint
    assert f"2 tables: {LINES}, {ORDERS}" in lines_of("adopt", lake)[0]
    assert [f"{LINES}   main@2  1 row", f"{ORDERS}  main@2  1 row"] == lines_of("tables", lake)
    assert [f"no table below {lake} that is not part of the repository"] == lines_of("adopt", lake)
    assert [f"{lake}: is a repository already"] == lines_of("create", lake)


def test_a_publication_moves_main_and_the_channel(repository: str) -> None:
    """One line is for main with the changed tables, and one for the channel; a second call changes nothing."""
    main, channel = publish(repository, 2, "--channel", "production", "--message", "second day")
    commit = LanceRepository.open(repository).head()
    assert main.endswith(f"-> {commit.short_id} second day, 2 tables: {LINES}, {ORDERS}")
    assert f"production: {commit.short_id}" == channel
    again = lines_of("publish", repository, "run/2", "--channel", "production")
    assert [f"main: {commit.short_id} second day, which has all of run/2 already", channel] == again
    assert [f"main: {commit.short_id} second day, 2 tables", f"{channel}, at main"] == lines_of("status", repository)


def test_conflicts_of_all_tables_are_printed(repository: str) -> None:
    """The output has a line for each table in conflict, an error and a hint that can be typed; nothing is changed."""
    before = lines_of("log", repository)
    lines_of("fork", repository, "run/2", ORDERS, LINES)
    for name in (ORDERS, LINES):
        table(repository, name).update({"price": "2"}, branch="run/2")
        table(repository, name).update({"price": "3"})
    result = run("publish", repository, "run/2")
    assert 1 == result.exit_code
    assert [f"rows conflict: {LINES}", f"rows conflict: {ORDERS}"] == sorted(
        line[: line.index(": 1 row")] for line in result.stdout.splitlines()
    )
    error, hint = result.stderr.splitlines()
    assert "lance-dagster: cannot commit to 'main': nothing was published, and no table changed" == error
    assert f"`lance-dagster table diff {repository}/{LINES}.lance main...run/2 --rows`" in hint
    assert before == lines_of("log", repository)
    assert {"made", "conflicts"} == set(document_of("publish", repository, "run/2", code=1))
    assert lines_of("publish", repository, "run/2", "--strategy", "source-wins")


def test_a_rollback_holds_and_a_release_frees(repository: str) -> None:
    """A held channel refuses a publication with the command that releases it; the history lists each move."""
    publish(repository, 2, "--channel", "production")
    publish(repository, 3, "--channel", "production")
    first, second = (each.id[:12] for each in reversed(LanceRepository.open(repository).log(limit=2)))
    back = ("rollback", repository, "--reason", "doubled rows")
    tables = [f"  {LINES}: main@4 -> main@3", f"  {ORDERS}: main@4 -> main@3"]
    assert ["production: dry run, nothing changed", *tables] == lines_of(*back, "--dry-run")
    line, *moves = lines_of(*back)
    assert line.startswith(f"production: {second} -> {first}, held by ")
    assert (True, tables) == (line.endswith(": doubled rows"), moves)
    assert "this rollback was made before; another --reason, or another --to, goes further back" == lines_of(*back)[1]
    lines_of("fork", repository, "run/4", ORDERS)
    refused = run("publish", repository, "run/4", "--channel", "production")
    release = f"`lance-dagster release {repository} --channel production --reason ...`"
    assert (1, True) == (refused.exit_code, release in refused.stderr)
    assert [f"production: {first}, free to move"] == lines_of("release", repository, "--reason", "repaired")
    refused = run("promote", repository)
    again = f"`lance-dagster promote {repository} --channel production --at {second} --again` moves it to this commit"
    assert (1, True) == (refused.exit_code, again in refused.stderr)
    assert [f"production: {first} -> {second}"] == lines_of("promote", repository, "--again")
    history = document_of("history", repository)
    assert ["promote", "release", "rollback", "promote", "promote"] == [entry["action"] for entry in history]


def test_the_status_names_tags_that_do_not_follow(repository: str) -> None:
    """A tag that was deleted, and one that is held without its channel, come with what mends them."""
    publish(repository, 2, "--channel", "production")
    table(repository, LINES).tags.delete("production", force=True)
    table(repository, ORDERS).tags.hold("production", reason="audit", who="ann")
    missing, held = (line for line in lines_of("status", repository) if ": tag production" in line)
    brought = "`lance-dagster repair` brings it back"
    assert f"{LINES}: tag production, which follows the channel, is missing; {brought}" == missing
    assert held.startswith(f"{ORDERS}: tag production is held by ann since ")
    assert held.endswith("until `lance-dagster release` releases it")
    states = document_of("status", repository)["tables"]
    assert [["production"], []] == [state["missing_tags"] for state in states]


def test_tables_at_a_ref_and_what_differs(repository: str) -> None:
    """`tables`, `show` and `diff` name versions as their tables do."""
    publish(repository, 2, "--channel", "production")
    table(repository, ORDERS).append(rows(9))
    ahead = f"{ORDERS}: 1 version on main that the repository does not have, up to main@4: 1 that changes the table; "
    brought = "`lance-dagster commit` brings the repository up to it"
    assert f"{ahead}{brought}" in lines_of("status", repository)
    lines_of("commit", repository, "--message", "by hand")
    assert [f"{LINES}   main@3  2 rows", f"{ORDERS}  main@3  2 rows"] == lines_of(
        "tables", repository, "--ref", "production"
    )
    assert [f"changed  {ORDERS}  main@3 -> main@4  1 row added, 0 removed, 0 changed"] == lines_of(
        "diff", repository, "production..main", "--stat"
    )
    assert [f"{LINES}   main@3", f"{ORDERS}  main@4  changed"] == lines_of("show", repository)[-2:]
    assert lines_of("log", repository)[1].endswith(" publish run/2 (production)")


def test_the_status_tells_maintenance_from_changes(repository: str) -> None:
    """A compaction of main is named as maintenance, which nobody has to act on, also beside a change of rows."""
    for number in (7, 8):
        table(repository, ORDERS).append(rows(number))
    lines_of("commit", repository, "--message", "by hand")
    table(repository, ORDERS).maintenance.compact()
    ahead = f"{ORDERS}: 2 versions on main that the repository does not have, up to {table(repository, ORDERS).head()}"
    status = lines_of("status", repository)
    assert f"{ahead}: 2 of maintenance, which changes no row" in status
    table(repository, ORDERS).append(rows(9))
    (line,) = [line for line in lines_of("status", repository) if line.startswith(ORDERS)]
    assert ": 2 of maintenance, which changes no row and 1 that changes the table; " in line
    (state,) = [each for each in document_of("status", repository)["tables"] if each["name"] == ORDERS]
    assert (3, 2) == (state["ahead"], state["maintenance"])


def test_the_status_names_branches_without_commits(repository: str) -> None:
    """A branch to which nothing was committed is not shown as one that waits with rows."""
    for number in (2, 3):
        lines_of("fork", repository, f"run/{number}", ORDERS)
    lines_of("fork", repository, "run/3", LINES)
    table(repository, ORDERS).append(rows(3), branch="run/3")
    waiting, empty = lines_of("status", repository)[1:]
    assert f"not published: run/3 ({ORDERS}); nothing committed in {LINES}" == waiting
    assert empty.startswith("nothing committed: run/2; of a run that is under way, or was refused or failed before: ")
    found = document_of("status", repository)
    assert {"run/2": [ORDERS], "run/3": [LINES]} == found["unwritten"]
    discard = shlex.split(empty.partition("`")[2].partition("`")[0])
    assert 0 == run(*discard[1:]).exit_code
    assert [waiting] == lines_of("status", repository)[1:]


def test_branches_without_commits_are_one_line(repository: str) -> None:
    """However many runs were refused; each branch is discarded, although only its table knows it."""
    names = [f"run/{number}" for number in range(10, 19)]
    for name in names:
        table(repository, ORDERS).branches.create(name)
    (line,) = lines_of("status", repository)[1:]
    assert line.startswith(f"nothing committed: {', '.join(names[:5])} and 4 more; ")
    for name in names:
        lines_of("discard", repository, name, "--reason", "refused")
    assert [] == lines_of("status", repository)[1:]


def test_the_status_names_branches_that_were_superseded(repository: str) -> None:
    """A branch that replaces rows, which main has replaced since, is shown as superseded with what to do."""
    for number in (2, 3, 4):
        lines_of("fork", repository, f"run/{number}", ORDERS)
    for number in (2, 3):
        table(repository, ORDERS).overwrite(rows(number), branch=f"run/{number}")
    table(repository, ORDERS).append(rows(4), branch="run/4")
    waiting = lines_of("status", repository)[1:]
    assert [f"not published: run/{number} ({ORDERS})" for number in (2, 3, 4)] == waiting
    lines_of("publish", repository, "run/3")
    head = table(repository, ORDERS).head()
    superseded, appended = lines_of("status", repository)[1:]
    assert superseded.startswith(f"superseded: run/2 ({ORDERS}); {head} of {ORDERS} replaced the same rows since; ")
    assert f"not published: run/4 ({ORDERS})" == appended
    assert {"run/2": {ORDERS: str(head)}} == document_of("status", repository)["superseded"]
    assert 1 == run("publish", repository, "run/2").exit_code
    discard = shlex.split(superseded.partition("`")[2].partition("`")[0])
    assert 0 == run(*discard[1:]).exit_code
    assert [appended] == lines_of("status", repository)[1:]


def test_the_status_says_what_adds_a_table_without_a_commit(repository: str) -> None:
    """A table that a run made is added by its publication; another program's table by `commit`."""
    lake = LanceRepository.open(repository)
    for name in ("shop/new", "shop/other"):
        lake.create_table(name, rows(1).schema)
    lines_of("fork", repository, "run/2", "shop/new")
    table(repository, "shop/new").append(rows(1), branch="run/2")
    new, other, waiting = lines_of("status", repository)[1:]
    assert ("shop/new: not committed yet, main@1; its first publication adds it") == new
    assert other.startswith("shop/other: not committed yet, main@1; `lance-dagster commit`")
    assert "not published: run/2 (shop/new)" == waiting


@pytest.mark.parametrize("count", [2**63 - 1, 2**63, 10**40])
def test_a_number_beyond_every_count_is_taken(repository: str, count: int) -> None:
    """A limit shows all there is; a promotion before the first one does not exist."""
    run("promote", repository)
    assert lines_of("log", repository) == lines_of("log", repository, "-n", str(count))
    history = lines_of("history", repository)
    assert history == lines_of("history", repository, "-n", str(count))
    assert 0 == run("free", repository, "--promotions", str(count)).exit_code
    refused = run("rollback", repository, "--reason", "x", "--steps", str(count))
    assert (2, 1) == (refused.exit_code, refused.stderr.count("\n"))


def test_a_release_tag_stays(repository: str) -> None:
    """It is deleted with --force only, and the error says so as a command."""
    (made,) = lines_of("tag", repository, "v1", "--message", "first")
    assert [made] == lines_of("tag", repository, "v1")
    refused = run("tag", repository, "v1", "--delete")
    assert (1, True) == (refused.exit_code, f"tag {repository} v1 --delete --force`" in refused.stderr)
    assert ["v1: deleted"] == lines_of("tag", repository, "v1", "--delete", "--force")
    assert ["no repository tags"] == lines_of("tags", repository)


def test_space_is_freed_on_demand(repository: str) -> None:
    """Without --delete the command only says what it would do; young commits and their versions stay in any case."""
    publish(repository, 2, "--channel", "production")
    table(repository, ORDERS).branches.create("old")
    table(repository, ORDERS).branches.delete("old")
    line, commits, kept = lines_of("free", repository)
    assert "0 commits with 0 refs of tables, 0 versions and 0 files (0 B) can be deleted; --delete deletes them" == line
    shown = "3 younger than 1d, 2 named by main during the last 30d, 1 named by main, 1 named by production, "
    assert f"kept: 3 commits, of which {shown}1 of the last 30 promotions of production" == commits
    assert kept.startswith("kept: ")
    lines_of("fork", repository, "run/3", LINES)
    table(repository, LINES).delete("true", branch="run/3")
    *_, held, _, _ = lines_of("free", repository, "--older-than", "0d", "--delete")
    assert f"branch run/3 alone keeps 1 version of {LINES}: publish or discard it" == held
    options = ("--promotions", "1", "--keep-for", "0d")
    line, *_ = lines_of("free", repository, *options, "--delete")
    assert "0 commits with 0 refs of tables, 0 versions and 0 files (0 B) were deleted" == line
    reasons = list(document_of("free", repository, *options)["kept_commits"].values())
    assert 2 == reasons.count(["younger than 1d"])
    newest = ["named by a branch", "named by main", "named by production", "of the last 1 promotion of production"]
    assert [["younger than 1d", *newest]] == [named for named in reasons if named[1:]]
    assert 3 == len(lines_of("log", repository))


def test_files_of_a_discarded_branch_wait_for_a_day(repository: str) -> None:
    """No version expired by its age; the line says what else waits."""
    lines_of("fork", repository, "run/3", LINES)
    rows = table(repository, LINES).read("main")
    table(repository, LINES).append(rows, branch="run/3")
    lines_of("discard", repository, "run/3", "--reason", "wrong")
    (waiting,) = (line for line in lines_of("free", repository) if line.startswith("waiting"))
    assert waiting.endswith(") of versions that expired or whose branch ended, for a call a day after that")


def test_space_of_a_lake_is_freed_beside_a_damaged_table(repository: str) -> None:
    """What can be freed of the other tables is freed; the damaged table is named, and the exit code is 1."""
    for number in (1, 2):
        table(repository, ORDERS).overwrite(table(repository, ORDERS).read("main"), message=str(number))
    for path in (Path(repository) / f"{LINES}.lance" / "_versions").iterdir():
        path.write_bytes(b"")
    freed = document_of("free", repository, "--older-than", "0d", "--delete", code=1)
    assert (False, 2) == (freed["ok"], freed["tables"][ORDERS]["versions"])
    assert LINES in run("free", repository).stdout


def test_candidates_that_wait_are_shown(repository: str) -> None:
    """The record says what runs wrote, on which branch, and what checks found; `status` counts the candidates."""
    assert ["nothing waits"] == lines_of("candidates", repository)
    lake = LanceRepository.open(repository)
    orders = table(repository, ORDERS)
    modes: Mapping[str, ClaimMode] = {"r1": "append", "r2": "replace"}
    for run_id, mode in modes.items():
        request = write_request(run_id, candidate="r1", partitions=("d1", "d2"), mode=mode)
        lake.record.put(lake.table_id(ORDERS), request)
    orders.branches.create("run/r1")
    head = orders.append(rows(2), branch="run/r1")
    verdicts = [Verdict(check="rows", passed=True), Verdict(check="unique", passed=False, description="2 twice")]
    lake.record.put_verdicts(lake.table_id(ORDERS), head.id, verdicts)
    assert [
        "r1, runs r2",
        "    shop/orders: run/r1@3; writes 1 append d1 d2; 1 check passed, unique failed",
        "    shop/orders: run/r2 is gone; writes 2 replace d1 d2; no verdicts",
    ] == lines_of("candidates", repository)
    assert "1 candidate waits by the record" in "\n".join(lines_of("status", repository))
    (document,) = document_of("candidates", repository)
    assert [{"run/r1@3": [True, False]}, {None: []}] == [
        {each["version"]: [verdict["passed"] for verdict in each["verdicts"]]} for each in document["tables"]
    ]


def test_branches_of_an_older_release_are_recorded_on_demand(repository: str) -> None:
    """Without --record the command only says what it would do; a branch that is unclear is listed with the reason."""
    orders = table(repository, ORDERS)
    run_id = {"dagster/run_id": "r1"}
    orders.branches.create("run/r1", metadata={**run_id, "dagster/root_run_id": "r1"})
    orders.append(rows(2), branch="run/r1", properties={**run_id, "dagster/asset_key": "orders"})
    orders.branches.create("run/r2")
    orders.append(rows(3), branch="run/r2")
    own, left, summary = lines_of("record", repository)
    assert "run/r1 of shop/orders: 1 write of candidate r1" == own
    assert left.startswith("left alone: run/r2 of shop/orders: its metadata does not say that run r2 made it")
    assert "1 branch can be recorded; --record does it" == summary
    assert "recorded 1 branch" == lines_of("record", repository, "--run", "run/r1", "--record")[-1]
    assert ["0 branches can be recorded; --record does it"] == lines_of("record", repository, "--run", "r1")
    assert "no branch or tag 'run/r3'" in run("record", repository, "--run", "r3").stderr


def test_what_is_not_there_is_one_line(repository: str, tmp_path: Path) -> None:
    """Wrong roots, branches, refs, tables and arguments exit with 2 and one line."""
    for arguments, problem in (
        (("tables", str(tmp_path / "none")), "no repository at"),
        (("publish", repository, "run/9"), "no branch 'run/9' in"),
        (("show", repository, "prodution"), "no branch, channel or repository tag 'prodution'"),
        (("move-table", repository, "a", "b"), "no table 'a' is registered"),
        (("fork", repository, "run/1", "shop/order"), "no Lance table at"),
        (("commit", repository), "a commit needs --message"),
        (("diff", repository, "main"), "give the two commits as A..B"),
        (("diff", repository, "production", "main"), "a ref is given as A..B, such as production..main; see"),
        (("tabels", repository), "no such command 'tabels'"),
    ):
        result = run(*arguments)
        assert (2, 1) == (result.exit_code, len(result.stderr.splitlines())), result.stderr
        assert problem in result.stderr


def test_show_says_that_the_parent_was_collected(repository: str) -> None:
    """The changes of such a commit are unknown, and no table is listed as added."""
    lines_of("commit", repository, "-m", "again")
    publish(repository, 2)
    commits = document_of("show", repository)
    (Path(repository) / "_repository" / "commits" / f"{commits['parents'][0]}.json").unlink()
    shown = lines_of("show", repository)
    assert "not known, because the first parent was collected" in next(line for line in shown if "changes" in line)
    assert [f"{LINES}   main@3", f"{ORDERS}  main@3"] == [line.strip() for line in shown[-2:]]
    assert document_of("show", repository)["changed"] is None


def test_without_a_command_the_help_is_shown() -> None:
    """The help lists each command with its whole first sentence."""
    result = run()
    assert re.search(r"promote +Move a channel to a commit, for all tables at once", result.output)
