"""Reads of a run of a backfill from tables that other runs of the same backfill wrote.

Dagster splits a backfill over several assets into runs wherever their partitions differ: an asset without partitions
comes before the days that need it, or after all of them. A run starts when the runs before it have materialized its
inputs, and the publisher runs last, so `main` does not have these rows yet. Such a run therefore reads a merge of
`main` and the branches of the runs before it.

These versions have not been audited yet. The commits of the reading run name them, and the publisher publishes these
commits only after, or together with, exactly these versions (`publish.dependencies`).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.errors import ConflictError, MergeConflictError, RefNotFoundError, VersionNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.recorded_writes import has_rows_of
from lance_dagster.plugin.run_branch import READS, RunChain

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.repository import LanceRepository
    from lance_dagster.repository.candidates.writes import RecordedWrite
    from lance_dagster.table import LanceTable


_TRIES = 5
# The run gets one tag with this prefix for each version that it read.
_READ_TAG = "lance/read/"


def read_property(chain: RunChain, instance: dg.DagsterInstance | None) -> dict[str, str]:
    """Return the property for a commit that names what its run read of other runs of the backfill, by table URI.

    The tags of a run hold it, because another process may write what one process of the run has read.
    """
    if chain.backfill_id is None or instance is None:
        return {}
    versions: dict[str, set[str]] = {}
    for run in filter(None, map(instance.get_run_by_id, chain.run_ids)):
        for tag in (value for key, value in run.tags.items() if key.startswith(_READ_TAG)):
            entry = json.loads(tag)
            # A full re-execution inherits the tags of its parent run, but reads again itself.
            if entry["run"] in chain.run_ids:
                versions.setdefault(entry["table"], set()).update(entry["versions"])
    named = {uri: sorted(refs) for uri, refs in sorted(versions.items())}
    return {md.READ_UNPUBLISHED: json.dumps(named)} if named else {}


def read_of_backfill(
    table: "LanceTable",
    chain: RunChain,
    repository: "LanceRepository | None",
    *,
    instance: dg.DagsterInstance,
    keys: Sequence[str] = (),
) -> "Version | None":
    """Return the version of a table that a run reads because other runs of its backfill wrote it, or None.

    It is a merge of `main` and the branches of these runs. Example: the runs of 1 and 2 May wrote `run/a` and `run/b`,
    and the run `c` of the monthly asset reads both days: it reads a merge of `main`, `run/a@3` and `run/b@3` on a
    branch `reads/c-...`, and its own commits name `run/a@3` and `run/b@3`.

    Args:
        table: The table.
        chain: The run that reads.
        repository: The repository of the table, whose record has what each run wrote; None where there is none.
        instance: The Dagster instance, which keeps what the run reads as tags of the run.
        keys: The partitions to read; empty for all.

    Raises:
        ConflictError: A branch of the backfill cannot be merged with `main` or with another branch of the backfill.
    """
    # A person who names a branch has chosen what is read.
    if chain.backfill_id is None or chain.run_id is None or chain.branch_tag is not None or repository is None:
        return None
    newest = _newest_by_branch(table, chain.backfill_id, repository, keys)
    own = {branch: write for branch, write in newest.items() if branch in chain.branch_names}
    others = newest.items() - own.items()
    for _ in range(_TRIES):
        waiting = [
            version
            for _, write in others
            if (version := _version_of(table, write)) and table.branches.is_merged(version) is None
        ]
        if not waiting:
            return None
        continued = [version for write in own.values() if (version := _version_of(table, write))]
        # A publisher may merge and delete a branch since it was looked up; `main` has its rows then.
        with suppress(RefNotFoundError, VersionNotFoundError):
            merged = _merged(table, [*continued, *waiting], chain)
            entry = {"run": chain.run_id, "table": table.uri, "versions": sorted(map(str, waiting))}
            instance.add_run_tags(chain.run_id, {f"{_READ_TAG}{merged.branch.removeprefix(READS)}": json.dumps(entry)})
            return merged
    raise ConflictError(
        f"branches of backfill {chain.backfill_id} in {table.uri} were deleted each time they were read"
    )


def _newest_by_branch(
    table: "LanceTable", backfill_id: str, repository: "LanceRepository", keys: Sequence[str]
) -> "dict[str, RecordedWrite]":
    """Return, by branch, the newest write among the writes that wrote a partition last; of all partitions for no keys.

    Example: `run/a` wrote 1 and 2 May, then `run/b` wrote 2 May. Both branches count for the keys 1 and 2 May, and only
    `run/b` for the key 2 May.
    """
    table_id = repository.registered_id(repository.name_of(table))
    writes = [write for write in repository.record.of_candidate(backfill_id) if write.table_id == table_id]
    # Oldest first, so that a later write of a partition replaces an earlier one; None stands for the whole table.
    newest_by_partition = {key: write for write in writes for key in write.request.partitions or (None,)}
    chosen = [write for key, write in newest_by_partition.items() if not keys or key is None or key in keys]
    newest: dict[str, RecordedWrite] = {}
    for write in sorted(chosen, key=lambda write: write.number):
        # A run may have written several partitions one after the other; its newest version has them all.
        newest[write.request.branch] = write
    return newest


def _version_of(table: "LanceTable", write: "RecordedWrite") -> "Version | None":
    """Return the version on the branch of a run that has the rows of a write, or None."""
    with suppress(RefNotFoundError, VersionNotFoundError):
        for number in reversed(table.branches.version_numbers(write.request.branch)):
            version = table.at(f"branch:{write.request.branch}@{number}")
            # A branch may have been deleted and created again under its name, with other versions of the same numbers.
            if has_rows_of(version, write):
                return version
    return None


def _merged(table: "LanceTable", versions: "Sequence[Version]", chain: RunChain) -> "Version":
    """Merge several branches of a backfill into a branch of the run that reads them; return its newest version.

    Even a single branch is merged and not read directly, because its publisher may delete it while this run reads.

    Raises:
        ConflictError: The branches conflict with each other or with `main`.
    """
    from lance_dagster.merge.preview import PREVIEW_OF

    base = table.head(MAIN)
    of = [base, *sorted(versions, key=lambda version: version.committed_at)]
    # All steps of the run that read the same versions share the branch.
    digest = hashlib.sha256("\n".join(version.id for version in of).encode()).hexdigest()[:12]
    # Not below `preview/`: runs have the right to write this branch, but must not be able to write a version that a
    # publisher has audited.
    name = f"{READS}{chain.run_id}-{digest}"
    about: Mapping[str, str] = {md.PUBLISHED_BY: chain.run_id or "", PREVIEW_OF: str(of[-1])}
    table.branches.create(name, at=base, exist_ok=True, metadata=about)
    for version in of[1:]:
        try:
            # Nothing happens where another step, or a killed attempt of this step, has merged the version already.
            table.merge(version, into=name, message=f"read with backfill {chain.backfill_id}")
        except MergeConflictError as error:
            with suppress(RefNotFoundError):
                table.branches.delete(name)
            raise ConflictError(
                f"{table.uri} cannot be read as backfill {chain.backfill_id} wrote it: {version} conflicts with main, "
                f"or with another run of the backfill ({error.conflicts[0]}); materialize it again or discard "
                f"{version.branch}, and repeat this run"
            ) from error
    return table.head(name)
