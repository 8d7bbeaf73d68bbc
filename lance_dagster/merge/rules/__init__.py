"""Three-way merge of two versions of a table: `plan_merge`, its input and its results."""

from lance_dagster.merge.rules.claim_conflicts import claim_units
from lance_dagster.merge.rules.columns.column_matching import fields_across
from lance_dagster.merge.rules.merge_input import MergeInput
from lance_dagster.merge.rules.plan import MergePlan, parsed_strategy, plan_merge
from lance_dagster.merge.rules.refusal import MergeRefusal
from lance_dagster.merge.rules.result import MergedFragment, Tally
from lance_dagster.merge.rules.row_decisions import CombinedUpdates
from lance_dagster.merge.rules.strategy import ParsedStrategy

__all__ = [
    "CombinedUpdates",
    "MergeInput",
    "MergePlan",
    "MergeRefusal",
    "MergedFragment",
    "ParsedStrategy",
    "Tally",
    "claim_units",
    "fields_across",
    "parsed_strategy",
    "plan_merge",
]
