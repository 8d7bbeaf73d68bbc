"""A publication of a branch of which a table lost its part is refused, however the part went away."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.errors import LanceDagsterError
from tests.repository.lost_branches import WAYS
from tests.repository.scripted_repository import FAST, ids, new_repository, rows, run


@pytest.mark.parametrize("names", [("shop/orders", "shop/lines"), ("shop/lines",)], ids=["of two", "the only one"])
@pytest.mark.parametrize("lose", WAYS)
def test_a_table_that_lost_its_branch_stops_the_publication(
    tmp_path: Path, lose: Callable[[LanceTable, str], None], names: tuple[str, ...]
) -> None:
    """Nothing is published, neither before nor after a repetition, and the error names the table."""
    repository = new_repository(tmp_path, "shop/orders", "shop/lines")
    branch = run(repository, 1, *names)
    lose(repository.table("shop/lines"), branch)
    for _ in range(2):
        opened = LanceRepository.open(repository.root, FAST)
        with pytest.raises(LanceDagsterError, match="shop/lines"):
            opened.publish(branch, channel="production")
        assert [] == opened.at("main")["shop/orders"].read()["id"].to_pylist()
        assert [] == opened.table("shop/orders").read("main")["id"].to_pylist()
        assert "production" not in opened.channels.list()


@pytest.mark.parametrize("lose", WAYS)
def test_the_other_table_is_published_when_it_is_named(tmp_path: Path, lose: Callable[[LanceTable, str], None]) -> None:
    """Whoever names the table that still has its branch publishes that alone."""
    repository = new_repository(tmp_path, "shop/orders", "shop/lines")
    branch = run(repository, 1, "shop/orders", "shop/lines")
    lose(repository.table("shop/lines"), branch)
    opened = LanceRepository.open(repository.root, FAST)
    assert {"shop/orders"} == set(opened.publish(branch, tables=["shop/orders"]).changed)
    assert [1] == opened.table("shop/orders").read("main")["id"].to_pylist()


def test_a_branch_that_was_forked_and_never_written_may_go(tmp_path: Path) -> None:
    """A table whose branch had no rows keeps nothing back, and nothing is lost by its publication."""
    repository = new_repository(tmp_path, "shop/orders", "shop/lines")
    branch = run(repository, 1, "shop/orders")
    repository.fork("shop/lines", branch)
    assert {"shop/orders"} <= set(repository.publish(branch, channel="production").changed)
    assert {"shop/orders": [1], "shop/lines": []} == ids(repository, "production")


@pytest.mark.parametrize("publish", [True, False])
def test_a_table_whose_rows_were_merged_by_hand_stops_nothing(tmp_path: Path, *, publish: bool) -> None:
    """Where a branch is gone because `main` has its rows, the other table is published beside them, or not at all."""
    repository = new_repository(tmp_path, "shop/orders", "shop/lines")
    branch = run(repository, 1, "shop/orders", "shop/lines")
    if publish:
        repository.publish(branch, tables=["shop/lines"])
    else:
        lines = repository.table("shop/lines")
        lines.merge(branch)
        lines.branches.delete(branch)
    with suppress(LanceDagsterError):
        repository.publish(branch, channel="production")
        assert {"shop/orders": [1], "shop/lines": [1]} == ids(repository, "production")


def test_a_publication_that_is_repeated_finds_its_own_work(tmp_path: Path) -> None:
    """Branches that the publication deleted itself are not missed when it is repeated."""
    repository = new_repository(tmp_path, "shop/orders", "shop/lines")
    branch = run(repository, 1, "shop/orders", "shop/lines")
    first = repository.publish(branch, channel="production")
    assert first.commit.id == repository.publish(branch, channel="production").commit.id
    repository.table("shop/orders").append(rows(7))
    assert first.commit.id == repository.publish(branch, channel="production").commit.id
