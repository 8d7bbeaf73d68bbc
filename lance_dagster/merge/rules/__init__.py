"""Three-way merge of two versions of a table: `plan_merge`, or `plan_or_refuse`, and what it needs and answers."""

from lance_dagster.merge.rules.conflict_locations import MergeRefusal
from lance_dagster.merge.rules.plan import MergeInput, MergePlan, plan_merge, plan_or_refuse
from lance_dagster.merge.rules.result import MergedFragment, Tally
from lance_dagster.merge.rules.schema_merge import fields_across
from lance_dagster.merge.rules.strategy import Strategy

__all__ = [
    "MergeInput",
    "MergePlan",
    "MergeRefusal",
    "MergedFragment",
    "Strategy",
    "Tally",
    "fields_across",
    "plan_merge",
    "plan_or_refuse",
]
