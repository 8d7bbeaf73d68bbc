"""A keyword that a public function does not have is refused, wherever type checkers alone would see it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceRepository,
    LanceTable,
    build_branch_sweeper,
    build_discovery_sensor,
    build_maintenance_job,
    build_protected_branch_sensor,
    build_publisher,
    build_ref_sensor,
    lance_assets,
)


@dg.asset
def orders() -> None:
    """Never run."""


# Each call has a misspelt keyword, whose default would otherwise decide.
FACTORIES: dict[str, tuple[Callable[..., object], str]] = {
    "uncheked": (lambda **given: build_publisher([orders], **given), "did you mean 'unchecked'?"),
    "stale_cheks": (lambda **given: build_publisher([orders], **given), "did you mean 'stale_checks'?"),
    "keep_previw": (lambda **given: build_branch_sweeper("sweep", [orders], **given), "did you mean 'keep_previews'?"),
    "jobb": (lambda **given: build_ref_sensor("refs", [orders], **given), "did you mean 'job'?"),
    "jov": (lambda **given: build_discovery_sensor("new", **given), "did you mean 'job'?"),
    "descripton": (
        lambda **given: build_protected_branch_sensor("main", [orders], **given),
        "did you mean 'description'?",
    ),
    "colect": (lambda **given: build_maintenance_job([orders], **given), "did you mean 'collect'?"),
    "rot": (lambda **given: lance_assets([orders], root="/lake", **given), "did you mean 'root'?"),
}
CALLS: dict[str, tuple[Callable[..., object], str]] = {
    "mesage": (lambda made, **given: made.publish("work", **given), "did you mean 'message'?"),
    "forward_onli": (lambda made, **given: made.channels.promote("a", "main", **given), "'forward_only'?"),
    "expected": (
        lambda made, **given: made.channels.advance("a", "main", [], **given),
        "there are reason, properties",
    ),
    "step": (lambda made, **given: made.channels.rollback("a", reason="wrong", **given), "did you mean 'steps'?"),
}


@pytest.mark.parametrize("keyword", FACTORIES)
def test_definitions(keyword: str) -> None:
    """Definitions with a misspelt option do not load."""
    make, hint = FACTORIES[keyword]
    with pytest.raises(InvalidInputError, match=f"unknown option of .* '{keyword}'") as caught:
        make(**{keyword: True})
    assert hint in str(caught.value)


def test_a_policy_that_does_not_exist() -> None:
    """A misspelt policy would count as the default."""
    with pytest.raises(InvalidInputError, match="unknown value of stale_checks 'acept'; did you mean 'accept'"):
        build_publisher([orders], stale_checks="acept")  # type: ignore[arg-type]  # what is tested


def test_a_text_is_no_flag() -> None:
    """The text "false" of a variable of the environment would count as true."""
    with pytest.raises(InvalidInputError, match="unchecked has to be True or False, not 'false'"):
        build_publisher([orders], unchecked="false")  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("keyword", CALLS)
def test_repository(tmp_path: Path, keyword: str) -> None:
    """A rollback by a misspelt number of steps would go back by one."""
    call, hint = CALLS[keyword]
    with pytest.raises(InvalidInputError, match=f"unknown option of .* '{keyword}'") as caught:
        call(LanceRepository.create(tmp_path), **{keyword: 3})
    assert hint in str(caught.value)


def test_tables(tmp_path: Path) -> None:
    """A clone that was meant to be a deep one is not made as a shallow one."""
    table: Any = LanceTable.create(tmp_path / "t.lance", pa.schema({"a": pa.int64()}))
    with pytest.raises(InvalidInputError, match="unknown option of clone 'shalow'; did you mean 'shallow'"):
        table.maintenance.clone(tmp_path / "c.lance", shalow=False)
    with pytest.raises(InvalidInputError, match="unknown option of relocate 'chek'; did you mean 'check'"):
        table.maintenance.relocate(chek=False)
    assert not (tmp_path / "c.lance").exists()
