"""Three-way merge of two versions of a table: `plan_merge`, or `planned`, and what it needs and answers."""

from lance_dagster.changes.merge.across import fields_across
from lance_dagster.changes.merge.arbiter import Strategy
from lance_dagster.changes.merge.images import Contradiction
from lance_dagster.changes.merge.plan import MergePlan, Question, plan_merge, planned
from lance_dagster.changes.merge.result import Brought
from lance_dagster.changes.merge.tally import Tally

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
