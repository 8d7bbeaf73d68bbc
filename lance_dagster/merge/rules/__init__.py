"""Three-way merge of two versions of a table: `plan_merge`, or `planned`, and what it needs and answers."""

from lance_dagster.merge.rules.conflict_locations import Contradiction
from lance_dagster.merge.rules.plan import MergePlan, Question, plan_merge, planned
from lance_dagster.merge.rules.result import Brought, Tally
from lance_dagster.merge.rules.schema_merge import fields_across
from lance_dagster.merge.rules.strategy import Strategy

__all__ = [
    "Brought",
    "Contradiction",
    "MergePlan",
    "Question",
    "Strategy",
    "Tally",
    "fields_across",
    "plan_merge",
    "planned",
]
