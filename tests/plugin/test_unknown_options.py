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
    with pytest.raises(InvalidInputError):
        build_publisher([orders], stale_checks="acept")  # type: ignore[arg-type]  # what is tested


def test_a_text_is_no_flag() -> None:
    """The text "false" of a variable of the environment would count as true."""
    with pytest.raises(InvalidInputError):
        build_publisher([orders], unchecked="false")  # type: ignore[arg-type]  # what is tested


def ref_sensor(**given: Any) -> object:  # noqa: ANN401  # values of any type
    """A ref sensor with some options."""
    return build_ref_sensor("refs", [orders], **given)


def discovery_sensor(**given: Any) -> object:  # noqa: ANN401  # values of any type
    """A discovery sensor with some options."""
    return build_discovery_sensor("new", **given)


@pytest.mark.parametrize(
    "make,given,said",
    [
        (
            ref_sensor,
            {"job": None},
            "job has to be a job, or the result of dg.define_asset_job, not None; leave",
        ),
        (ref_sensor, {"job": "load"}, "job has to be a job"),
        (ref_sensor, {"budget_seconds": "x"}, "budget_seconds has to be a number, such as 0.05, not 'x'"),
        (ref_sensor, {"budget_seconds": -5}, "budget_seconds has to be 0 or more, not -5"),
        (ref_sensor, {"from_start": "no"}, "from_start has to be True or False, not 'no'"),
        (
            ref_sensor,
            {"minimum_interval_seconds": -1},
            "minimum_interval_seconds has to be a whole number of 0 or more",
        ),
        (ref_sensor, {"default_status": "RUNNING"}, "default_status has to be a DefaultSensorStatus, such as dg."),
        (ref_sensor, {"description": 3}, "description has to be a string, not 3"),
        (discovery_sensor, {"job": None}, "job has to be a job"),
        (discovery_sensor, {"from_start": None}, "from_start has to be True or False, not None"),
    ],
    ids=lambda found: found.__name__ if callable(found) else None,
)
def test_wrong_values_of_a_sensor(make: Callable[..., object], given: dict[str, Any], said: str) -> None:
    """A wrong value is refused when definitions load; at a tick it would fail, or count as another one."""
    with pytest.raises(InvalidInputError) as caught:
        make(**given)
    assert said in str(caught.value)


def test_any_kind_of_job_is_taken() -> None:
    """The result of `dg.define_asset_job` has no class in common with a job."""

    @dg.op
    def nothing() -> None:
        """Do nothing."""

    @dg.graph
    def graph() -> None:
        nothing()

    for job in (dg.define_asset_job("assets", selection=[orders]), graph.to_job("job")):
        assert isinstance(ref_sensor(job=job), dg.SensorDefinition)


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
    with pytest.raises(InvalidInputError):
        table.maintenance.clone(tmp_path / "c.lance", shalow=False)
    with pytest.raises(InvalidInputError):
        table.maintenance.relocate(chek=False)
    assert not (tmp_path / "c.lance").exists()
