"""What a run of Dagster wrote is given up in the lake, without Dagster."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from click.testing import CliRunner

from lance_dagster import LanceRepository, Unique, lance_assets
from lance_dagster.cli.main import main
from lance_dagster.errors import InvalidInputError, RefNotFoundError

DELIVERY = {"ids": [1]}


@dg.asset(key_prefix="shop")
def orders() -> pa.Table:
    """The orders of the delivery."""
    return pa.table({"id": DELIVERY["ids"]})


@dg.asset(key_prefix="shop")
def lines() -> pa.Table:
    """The lines, which are always right."""
    return pa.table({"id": [1]})


def load(root: Path, *ids: int) -> str:
    """Load a delivery; return the branch of the run."""
    DELIVERY["ids"] = list(ids)
    checks = {"shop/orders": [Unique("id")], "shop/lines": [Unique("id")]}
    defs = lance_assets([orders, lines], root=root, checks=checks)
    done = defs.resolve_job_def("load_and_publish").execute_in_process(raise_on_error=False)
    return f"run/{done.run_id}"


@pytest.fixture
def lake(tmp_path: Path) -> LanceRepository:
    """A lake with one publication."""
    load(tmp_path / "lake", 1)
    return LanceRepository.open(tmp_path / "lake")


def test_the_branch_of_a_run_is_discarded(lake: LanceRepository) -> None:
    """Its writes are dropped, its branches deleted, and nothing waits."""
    branch = load(Path(lake.root), 2, 2)
    assert 1 == len(lake.candidates())
    assert () == lake.discard(branch, reason="the delivery was sent twice")
    assert () == lake.candidates()
    assert {} == lake.status().waiting
    assert f"discard {branch}: the delivery was sent twice" == lake.head().message
    assert [1] == lake.at("main")["shop/orders"].read()["id"].to_pylist()


def test_a_part_of_a_run_is_discarded(lake: LanceRepository) -> None:
    """The other tables of the run still wait; a table that the run did not write is an error."""
    branch = load(Path(lake.root), 2, 2)
    with pytest.raises(RefNotFoundError, match="shop/refunds"):
        lake.discard(branch, tables=["shop/refunds"])
    lake.discard(branch, tables=["shop/orders"], reason="wrong input")
    assert {branch: ("shop/lines",)} == lake.status().waiting


def test_a_superseded_branch_is_discarded(lake: LanceRepository) -> None:
    """Newer rows took the place of its rows, so nothing of it waits; `status` names the call that deletes it."""
    branch = load(Path(lake.root), 2, 2)
    load(Path(lake.root), 3)
    assert branch in str(lake.status())
    commit = lake.head()
    lake.discard(branch)
    assert {} == lake.status().waiting
    assert commit == lake.head()


def test_the_branch_of_a_person_is_not_discarded(lake: LanceRepository) -> None:
    """Only its table knows a branch that somebody made there, and a misspelt name must not delete one."""
    table = lake.table("shop/orders")
    table.branches.create("fix")
    table.append(pa.table({"id": [5]}), branch="fix")
    with pytest.raises(RefNotFoundError):
        lake.discard("fix")
    assert ["fix"] == list(table.branches.list())


def test_what_is_published_is_not_discarded(lake: LanceRepository) -> None:
    """Its branch is gone, and no write of it waits."""
    branch = load(Path(lake.root), 3)
    with pytest.raises(RefNotFoundError):
        lake.discard(branch)
    assert [3] == lake.at("production")["shop/orders"].read()["id"].to_pylist()


def test_the_command_discards_and_publishes_what_a_run_wrote(lake: LanceRepository) -> None:
    """As the page says that somebody does while Dagster is down."""
    given_up, wanted = load(Path(lake.root), 2, 2), load(Path(lake.root), 4, 4)
    calls = (
        ["discard", lake.root, given_up, "--reason", "sent twice"],
        ["publish", lake.root, wanted, "shop/orders", "shop/lines", "--channel", "production"],
    )
    for arguments in calls:
        done = CliRunner().invoke(main, arguments)
        assert 0 == done.exit_code, done.output
    assert [4, 4] == lake.at("production")["shop/orders"].read()["id"].to_pylist()
    assert {} == lake.status().waiting


def test_the_first_characters_of_a_run_id_are_enough(lake: LanceRepository) -> None:
    """Eight characters name the run for both commands, with and without `run/`; fewer are not looked for."""
    given_up, wanted, later = load(Path(lake.root), 2, 2), load(Path(lake.root), 4, 4), load(Path(lake.root), 5, 5)
    with pytest.raises(RefNotFoundError, match=given_up):
        lake.discard(given_up[:11])
    lake.discard(given_up[:12], reason="sent twice")
    assert [wanted, later] == sorted(lake.status().waiting, key=[wanted, later].index)
    tables = ["shop/orders", "shop/lines"]
    for _ in range(2):
        lake.publish(wanted[:12], tables=tables)
        assert [4, 4] == lake.at("main")["shop/orders"].read()["id"].to_pylist()
    done = CliRunner().invoke(main, ["discard", lake.root, later.removeprefix("run/")[:9], "--reason", "sent twice"])
    assert 0 == done.exit_code, done.output
    assert {} == lake.status().waiting


def test_an_unknown_or_ambiguous_beginning_names_the_branches(lake: LanceRepository) -> None:
    """The error has the branches of runs, which only their tables know, or those that begin so."""
    branches = ("run/d3851001-1", "run/d3851001-2")
    for branch in branches:
        lake.table("shop/orders").branches.create(branch)
    for act in (lake.discard, lake.publish):
        with pytest.raises(InvalidInputError, match=f"several branches: {', '.join(branches)}; give more"):
            act("run/d3851001")
        with pytest.raises(RefNotFoundError) as error:
            act("run/00000000")
        assert {"main", *branches} == {*error.value.known}
    # The publication of a branch that only its table knows has to name the table.
    with pytest.raises(RefNotFoundError, match="name the tables that have it"):
        lake.publish("run/d3851001-1")


def test_the_branch_of_a_refused_output_is_discarded(lake: LanceRepository) -> None:
    """Nothing was committed to it; `status` names it in one line with the command that deletes it."""

    @dg.asset(key_prefix="shop", name="orders")
    def renamed() -> pa.Table:
        return pa.table({"number": [1]})

    defs = lance_assets([renamed], root=lake.root, unchecked=True)
    refused = defs.resolve_job_def("load_and_publish").execute_in_process(raise_on_error=False)
    branch = f"run/{refused.run_id}"
    assert (False, (branch,), {branch: ("shop/orders",)}) == (
        refused.success,
        lake.status().empty,
        lake.status().unwritten,
    )
    done = CliRunner().invoke(main, ["status", lake.root])
    assert f"discard {lake.root} {branch} --reason" in done.output
    assert () == lake.discard(branch[:12], reason="the columns are wrong")
    assert {} == lake.status().waiting
