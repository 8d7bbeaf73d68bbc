"""A consumer: it reads only the promoted nodes, so it never sees a candidate.

It is not part of the job that writes. When a promoted node moves, forward or back, Dagster's automation makes the
report again.
"""

import dagster as dg
import pandas as pd

from example_project import places

GROUP = "reports"

# Between two evaluations, the report may be made and then the tag may move again. `eager` takes that report for one of
# the second move, because it does not compare the order of the two events. This condition compares it.
_OVERTAKEN = (
    dg.AutomationCondition.any_deps_match(dg.AutomationCondition.newly_updated()).since(
        dg.AutomationCondition.newly_updated()
    )
    & ~dg.AutomationCondition.any_deps_missing()
    & ~dg.AutomationCondition.in_progress()
    & ~dg.AutomationCondition.execution_failed()
).with_label("overtaken")


@dg.asset(
    key_prefix=GROUP,
    group_name=GROUP,
    ins={
        "training_set": dg.AssetIn(
            key=dg.AssetKey(["production", "nyc", "training_set"]), metadata={"lance/columns": ["carrier", "late"]}
        ),
        "airlines": dg.AssetIn(key=dg.AssetKey(["production", "nyc", "airlines"])),
    },
    automation_condition=dg.AutomationCondition.eager() | _OVERTAKEN,
    kinds={"pandas"},
)
def delay_by_carrier(training_set: pd.DataFrame, airlines: pd.DataFrame) -> dg.MaterializeResult[None]:
    """Count how often each airline is late, over all rows in production."""
    by_carrier = training_set.groupby("carrier")["late"]
    figures = pd.DataFrame({"flights": by_carrier.size(), "late_percent": (by_carrier.mean() * 100).round(1)})
    report = airlines.set_index("carrier").join(figures, how="inner").sort_values("late_percent", ascending=False)
    target = places.reports() / "delay_by_carrier.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    report.to_csv(target)
    return dg.MaterializeResult(
        metadata={
            "flights": int(report["flights"].sum()),
            "late_percent": float(round(training_set["late"].mean() * 100, 1)),
            "report": dg.MetadataValue.md(_markdown(report)),
            "path": dg.MetadataValue.path(str(target)),
        }
    )


# Dagster's own automation sensor has to be switched on by hand; this one runs from the start.
automation = dg.AutomationConditionSensorDefinition(
    "reports_automation",
    target=dg.AssetSelection.groups(GROUP),
    default_status=dg.DefaultSensorStatus.RUNNING,
)


def _markdown(report: pd.DataFrame) -> str:
    rows = [f"| {row.name} | {row.flights:,} | {row.late_percent} |" for row in report.itertuples()]
    return "\n".join(["| airline | flights | late, % |", "|---|---:|---:|", *rows])
