"""Three-way merge of two versions of a table: `plan_merge` and what it needs and answers."""

from lance_dagster.changes.merge.arbiter import DEST_WINS, SOURCE_WINS, Strategy
from lance_dagster.changes.merge.plan import MergePlan, Question, plan_merge
from lance_dagster.changes.merge.result import Brought
from lance_dagster.changes.merge.tally import Tally

__all__ = ["DEST_WINS", "SOURCE_WINS", "Brought", "MergePlan", "Question", "Strategy", "Tally", "plan_merge"]
