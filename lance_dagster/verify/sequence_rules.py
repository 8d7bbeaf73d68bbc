"""The rules that the row ids and row versions of fragments keep with the row counts and with each other. Pure."""

from dataclasses import dataclass

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import decode_row_runs, decode_version_runs
from lance_dagster.format.model import (
    Flag,
    Fragment,
)
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.verify.fragment_rules import FragmentContext
from lance_dagster.verify.manifest_rules import Problem


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The lowest and highest row id of a fragment, and the newest version that one of its rows was changed at."""

    low: int
    high: int
    newest: int


def check_rows(fragment: Fragment, context: FragmentContext) -> tuple[RowSpan | None, list[Problem]]:
    """Check the sequences of row ids and row versions; return the span of the ids, None where there are none."""
    problems: list[Problem] = []
    stable = bool(context.flags & Flag.STABLE_ROW_IDS)
    # The flag and the sequences have to agree, since some programs read the flag and others the sequences.
    if stable != (fragment.row_ids is not None) and fragment.physical_rows:
        problems.append(
            Problem(
                what="its rows have no ids" if stable else "its rows have ids",
                right=f"feature flag {int(Flag.STABLE_ROW_IDS)} says that they {'have' if stable else 'have none'}",
                fragment=fragment.id,
            )
        )
    newest = 0
    # Each sequence is checked separately, so that one damaged sequence does not hide the problems of the other
    # sequences.
    for name, sequence in (("created", fragment.created_at), ("last updated", fragment.updated_at)):
        try:
            versions = decode_version_runs(sequence, fragment.physical_rows, name)
            newest = max(newest, int(versions.version.max(initial=0)))
        except CorruptFileError as error:
            problems.append(_sequence(f"the versions its rows were {name} at", error, fragment))
    ids = row_ids(fragment)
    if isinstance(ids, Problem):
        return None, [*problems, ids]
    if ids is None or ids.smallest is None or ids.largest is None:
        return None, problems
    return RowSpan(ids.smallest, ids.largest, newest), problems


def row_ids(fragment: Fragment) -> RowRuns | Problem | None:
    """Return the row ids of a fragment, or their problem; None where there are none."""
    if fragment.row_ids is None:
        return None
    try:
        # As runs, a damaged sequence takes as much memory as its bytes, whatever number of rows it claims.
        return decode_row_runs(fragment.row_ids, fragment.physical_rows, "the fragment")
    except CorruptFileError as error:
        return _sequence("the ids of its rows", error, fragment)


def _sequence(what: str, error: CorruptFileError, fragment: Fragment) -> Problem:
    return Problem(
        what=f"{what} cannot be right: {error.problem}",
        right=f"one for each of its {fragment.physical_rows} rows",
        fragment=fragment.id,
    )
