from typing import TYPE_CHECKING

import dagster as dg
import pytest

from example_project import assets, places
from example_project.defects import Defect
from example_project.definitions import build_definitions

if TYPE_CHECKING:
    from pathlib import Path


FLIGHT_KEY = "unique_time_hour_carrier_flight_origin"


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "defect,stopping",
    [
        # Each run takes many seconds; the demo itself loads a month without a defect and one with negative distances.
        pytest.param(Defect.none, set(), marks=pytest.mark.soak),
        pytest.param(Defect.negative_distance, {"in_range_distance"}, marks=pytest.mark.soak),
        pytest.param(Defect.unknown_carrier, {"keys_exist_carrier"}, marks=pytest.mark.soak),
        pytest.param(Defect.duplicated_rows, {"rows_match_source", FLIGHT_KEY}, marks=pytest.mark.soak),
    ],
)
def test_each_defect_is_stopped_by_its_check(
    defect: Defect, stopping: set[str], tmp_path: "Path", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit passes the unchanged month; for each defect, exactly the checks about it fail."""
    monkeypatch.setenv(places.ROOT_VARIABLE, str(tmp_path))
    job = build_definitions().resolve_job_def("load_month")
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(
            {"ops": {"nyc__flights": {"config": {"defect": defect.name}}}},
            instance=instance,
            partition_key="2013-02",
            asset_selection=[asset.key for asset in (assets.flights, assets.airlines, assets.airports)],
            raise_on_error=False,
        )
    evaluations = [one for one in done.get_asset_check_evaluations() if one.asset_key == assets.flights.key]
    assert stopping == {one.check_name for one in evaluations if not one.passed}
    assert (not stopping) == done.success
