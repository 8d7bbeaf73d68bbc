"""The branches of runs: which there are, and which of them a person means by the beginning of a run's id."""

import re
from collections.abc import Collection

from lance_dagster.errors import InvalidInputError, RefNotFoundError
from lance_dagster.format.layout import RUNS
from lance_dagster.format.validation import check_string
from lance_dagster.history.versions import State
from lance_dagster.repository.publish.staging import for_each_table
from lance_dagster.repository.registry import RepositoryContext

# The id of a run of Dagster is a UUID, of which Dagster shows eight characters. Fewer may be those of another run.
_PART_OF_ID = re.compile(r"[0-9a-f-]{8,36}")
_WHOLE = len(f"{RUNS}00000000-0000-0000-0000-000000000000")


def is_whole(branch: str) -> bool:
    """Return whether a name is that of the branch of a run with its whole id, so that nothing has to be looked for."""
    return len(branch) >= _WHOLE and branch.startswith(RUNS)


def meant_branch(text: str, branches: Collection[str]) -> str | None:
    """Return the branch of a run that `run/<beginning of the id>` means; None where no branch begins so.

    Args:
        text: The name of a branch, whole or its beginning.
        branches: The branches to choose from.

    Raises:
        InvalidInputError: Several branches begin with the text, and none is the text itself.
    """
    beginning = sorted({branch for branch in branches if branch.startswith(text)})
    if text in beginning:
        return text
    if len(beginning) > 1:
        raise InvalidInputError(
            f"{text!r} is the beginning of several branches: {', '.join(beginning)}; give more of it"
        )
    return beginning[0] if beginning else None


def is_as_forked(head: State) -> bool:
    """Return whether nothing was committed to the branch of a version since it was forked."""
    return head.of is not None and head.number == head.of.first


def run_branches(repository: RepositoryContext, beginning: str = RUNS) -> list[str]:
    """List the branches of runs whose names begin with a text, in all tables and in the repository, sorted."""
    # A run of Dagster makes its branch in each table as it writes there; a forked branch has a mark in the repository.
    names = sorted({*repository.registry.names(), *repository.head().tables})
    of_tables = for_each_table(lambda name: repository.table(name).refs.branches.names(beginning), names)
    forked = [name for name, log in repository.logs.branch_logs().items() if log.marks and name.startswith(beginning)]
    return sorted({*forked, *(branch for branches in of_tables.values() for branch in branches)})


def branch_as_typed(repository: RepositoryContext, text: str) -> str:
    """Return the branch that a person typed, of a run of Dagster perhaps by at least eight characters of its id.

    Another text is returned as it is: the branch may be that of a person, or have ended.

    Raises:
        InvalidInputError: The names of several branches of runs begin with the text, or it is no text.
    """
    check_string("the name of a branch", text)
    typed_id = text.removeprefix(RUNS)
    # Nothing is read for the whole name, which jobs give.
    if not _PART_OF_ID.fullmatch(typed_id) or is_whole(text):
        return text
    # A branch of this very name is meant, also where it ended: a repeated publication of it does what is missing.
    if repository.logs.newest("branch", text) is not None:
        return text
    branches = run_branches(repository, f"{RUNS}{typed_id}")
    # Without a branch the run may be published already.
    branches = branches or [f"{RUNS}{candidate}" for candidate in repository.record.candidates_like(typed_id)]
    return meant_branch(f"{RUNS}{typed_id}", branches) or text


def unknown_branch(repository: RepositoryContext, branch: str, instead: str = "") -> RefNotFoundError:
    """Return the error for a branch that is in no table: it names the branches that there are.

    Args:
        repository: The repository.
        branch: The branch.
        instead: What to do where tables have the branch.
    """
    branches = run_branches(repository)
    is_in_tables = bool(instead) and branch in branches
    names = [] if is_in_tables else [*repository.logs.live("branch"), *branches]
    return RefNotFoundError(branch, names, repository.root, "branch", instead if is_in_tables else "")
