"""Whether a change still means what it meant when another one was committed first.

A writer reads a version, prepares its change, and finds that others committed meanwhile. For each of them one answer
is needed: compatible, so the change is applied on top; retryable, so the writer must read again and redo its work;
or incompatible, so a person has to look. The rules are those pylance 14 applies to its own commits, checked pair by
pair, because writers of both kinds share a table. Where a rule would have to look inside an operation that is not
interpreted here, the answer is "retryable": redoing the work from the newest version is always right.
"""

from enum import Enum

from lance_dagster.format.transaction import (
    Append,
    Delete,
    Merge,
    OtherOperation,
    Overwrite,
    Project,
    Restore,
    Transaction,
    Update,
)


class Verdict(Enum):
    """What a committed transaction means for one that is about to be."""

    COMPATIBLE = "compatible"
    RETRYABLE = "retryable"
    INCOMPATIBLE = "incompatible"


_REPLACES_TABLE = (Overwrite, Restore)
_NEVER_MATTERS = frozenset({"ReserveFragments", "UpdateConfig", "UpdateBases", "CreateIndex"})


def judge(mine: Transaction, theirs: Transaction) -> Verdict:
    """Say what `theirs`, committed after `mine` read the table, means for `mine`."""
    other = theirs.operation
    if isinstance(other, OtherOperation) and other.name == "UpdateMemWalState":
        return Verdict.INCOMPATIBLE
    match mine.operation:
        case Append():
            return _judge_append(theirs)
        case Update() | Delete():
            return _judge_row_change(mine.operation, theirs)
        case Overwrite():
            return Verdict.RETRYABLE if isinstance(other, Overwrite) else Verdict.COMPATIBLE
        case Restore():
            return Verdict.COMPATIBLE
        case _:
            return Verdict.RETRYABLE


def _judge_append(theirs: Transaction) -> Verdict:
    other = theirs.operation
    if isinstance(other, _REPLACES_TABLE):
        return Verdict.INCOMPATIBLE
    if isinstance(other, Merge | Project) and not other.preserves_nullability:
        # A column that may not be null came into being, and the appended rows have no value for it.
        return Verdict.RETRYABLE
    return Verdict.COMPATIBLE


def _judge_row_change(mine: Update | Delete, theirs: Transaction) -> Verdict:
    other = theirs.operation
    match other:
        case Append():
            return Verdict.COMPATIBLE
        case Overwrite() | Restore():
            return Verdict.INCOMPATIBLE
        case Update() | Delete():
            overlap = touched_fragments(mine) & touched_fragments(other)
            return Verdict.RETRYABLE if overlap else Verdict.COMPATIBLE
        case Project(preserves_nullability=True):
            return Verdict.COMPATIBLE
        case OtherOperation(name=name) if name in _NEVER_MATTERS:
            return Verdict.COMPATIBLE
        case _:
            return Verdict.RETRYABLE


def touched_fragments(operation: Update | Delete) -> frozenset[int]:
    """Return the ids of the fragments an operation removes or changes."""
    removed = operation.removed_fragment_ids if isinstance(operation, Update) else operation.deleted_fragment_ids
    return frozenset(removed).union(fragment.id for fragment in operation.updated_fragments)
