"""The steps from an audited run branch to the name readers use, each safe to do again.

1. find:   which version of which branch is to be published, in every table
2. merge:  all of them into `main`; a branch that is merged already is left as it is
3. move:   the tag in every table. Tags move last: whoever sees one must find every table behind it merged.
4. retire: delete the branches. Nothing needs them any more, so failing here fails nothing.

A process may be killed between any two steps, and between any two tables within a step. Whoever comes next
starts at the first step again, finds what is done and does the rest. After the branches are gone, the log of
`main` says which run was merged where (`landed_as`).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

import dagster as dg

from lance_dagster.errors import AlreadyExistsError, MergeConflictError, RefMovedError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.refs.ref_store import Tag
from lance_dagster.history.versions import Version
from lance_dagster.merge.rules.strategy import Conflict
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.run_branch import RunBranch, is_written
from lance_dagster.plugin.run_chain import BACKFILL_TAG, RunChain, run_of, started_at
from lance_dagster.table import LanceTable

_TRIES = 5
_NOTHING_MERGED = "cannot merge, so no table was merged and no tag moved:"
_SOME_MERGED = "cannot merge, so no tag moved; what was merged before stays merged, and the next publication finds it:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One table on its way to its readers.

    `sources` are the audited versions to merge. `landed` is the version of `main` that holds them, once one
    does. `previous` is the tag as it was at first, and `promoted_to` the version it names in the end. `chosen`
    says that a person picked the version, which may be older than the tag's. Everything else moves a tag only
    forward: when a later run got there first, its version holds this one's rows.
    """

    candidate: dg.AssetKey
    promoted: dg.AssetKey
    table: LanceTable
    sources: tuple[Version, ...] = ()
    landed: Version | None = None
    previous: Tag | None = None
    chosen: bool = False
    promoted_to: Version | None = None

    @property
    def audited(self) -> tuple[Version, ...]:
        """The versions whose audit decides."""
        return self.sources or ((self.landed,) if self.landed else ())

    @property
    def name(self) -> str:
        """The candidate's key as text."""
        return self.candidate.to_user_string()

    @property
    def version(self) -> Version:
        """The version of `main` to promote, after merging."""
        if self.landed is None:
            raise RuntimeError(f"{self.name} is not merged")
        return self.landed


def find_by_run(
    publication: Publication, chain: RunChain, *, instance: dg.DagsterInstance, with_backfill: bool
) -> Publication:
    """Return a publication of what a chain of runs wrote, without sources when that is nothing.

    Args:
        publication: The table.
        chain: The run that publishes and the runs it continues.
        instance: Where runs are recorded.
        with_backfill: Whether to publish what the other runs of the same backfill wrote, when this chain
            wrote nothing: for a publisher that runs once, after all of them.
    """
    table = publication.table
    head = RunBranch(table=table, chain=chain).written()
    if head is not None and run_of(head.branch) in (None, chain.run_id):
        return replace(publication, sources=(head,))
    # A newer run of the chain than this branch's may be published already, and its own branch deleted.
    runs = dg.RunsFilter(run_ids=list(chain.run_ids))
    landed = landed_as(table, {md.RUN_ID: chain.run_ids}, started_at(runs, instance))
    if landed is not None and (head is None or _is_newer(landed, head, chain)):
        return replace(publication, landed=landed)
    if head is not None:
        return replace(publication, sources=(head,))
    if not with_backfill or chain.backfill_id is None:
        return publication
    return _find_by_backfill(publication, chain.backfill_id, instance)


def _is_newer(landed: Version, head: Version, chain: RunChain) -> bool:
    """Return whether what was published is of a newer run of the chain than a branch."""
    ages = {run_id: age for age, run_id in enumerate(chain.run_ids)}
    return ages[landed.properties[md.RUN_ID]] < ages.get(run_of(head.branch) or "", -1)


def _find_by_backfill(publication: Publication, backfill_id: str, instance: dg.DagsterInstance) -> Publication:
    table = publication.table
    branches = sorted(table.branches.list().values(), key=lambda branch: branch.created_at)
    of_backfill = [branch.name for branch in branches if branch.metadata.get(md.BACKFILL_ID) == backfill_id]
    heads = tuple(head for head in map(table.head, of_backfill) if is_written(head))
    if heads:
        return replace(publication, sources=heads)
    since = started_at(dg.RunsFilter(tags={BACKFILL_TAG: backfill_id}), instance)
    return replace(publication, landed=landed_as(table, {md.BACKFILL_ID: (backfill_id,)}, since))


def find_by_ref(publication: Publication, ref: str, *, instance: dg.DagsterInstance) -> Publication:
    """Return a publication of what a ref expression names: a branch to merge, or a version to promote.

    Raises:
        RefNotFoundError: There is no such ref, and no run of that name was published.
    """
    table = publication.table
    run_id = run_of(ref)
    if run_id is not None and not table.branches.list(ref):
        since = started_at(dg.RunsFilter(run_ids=[run_id]), instance)
        landed = landed_as(table, {md.RUN_ID: (run_id,)}, since)
        # The run was published before and its branch deleted; its merge is still in the log of main.
        if landed is not None:
            return replace(publication, landed=landed)
    version = table.at(ref)
    if version.branch == MAIN:
        return replace(publication, landed=version, chosen=True)
    return replace(publication, sources=(version,))


def check_mergeable(publications: Iterable[Publication]) -> None:
    """Refuse what cannot be merged as things are now, in any table, before the first table is merged.

    Raises:
        MergeConflictError: With the conflicts of all tables; nothing was written.
    """
    found = [
        conflict
        for publication in publications
        for source in publication.sources
        for conflict in _named(publication, source, publication.table.preview_merge(source).conflicts)
    ]
    if found:
        raise MergeConflictError(_NOTHING_MERGED, found)


def _named(publication: Publication, source: Version, conflicts: Iterable[object]) -> list[Conflict]:
    """Return the conflicts of a merge with the table and the source in front of their units."""
    return [
        replace(conflict, unit=f"{publication.name} ({source}): {conflict.unit}")
        for conflict in conflicts
        if isinstance(conflict, Conflict)
    ]


def merge_all(publications: Iterable[Publication], chain: RunChain) -> list[Publication]:
    """Merge every source into `main`, and return the publications with the versions that hold them.

    Raises:
        MergeConflictError: The first table that cannot be merged; tables before it are merged, no tag has
            moved.
    """
    merged: list[Publication] = []
    for publication in publications:
        merged.append(_merged(publication, chain, _SOME_MERGED if merged else _NOTHING_MERGED))
    return merged


def _merged(publication: Publication, chain: RunChain, refusal: str) -> Publication:
    landed = publication.landed
    for source in publication.sources:
        run_id = source.properties.get(md.RUN_ID) or run_of(source.branch) or ""
        found = {
            md.RUN_ID: run_id,
            md.ASSET_KEY: publication.name,
            md.PUBLISHED_BY: chain.run_id,
            md.BACKFILL_ID: chain.backfill_id,
        }
        properties = {key: value for key, value in found.items() if value}
        message = f"publish {publication.name} from {source}"
        try:
            version = publication.table.merge(source, into=MAIN, message=message, properties=properties)
        except MergeConflictError as error:
            raise MergeConflictError(refusal, _named(publication, source, error.conflicts)) from error
        refusal = _SOME_MERGED
        # Resumed, the merges of a backfill may be found in another order than they were made in.
        landed = version if landed is None or version.number > landed.number else landed
    return replace(publication, landed=landed)


def move_tags(publications: Sequence[Publication], tag: str, metadata: Mapping[str, str]) -> list[Publication]:
    """Move the tag of every table to the version that was merged or chosen; returns where the tags are.

    Args:
        publications: The tables, all merged.
        tag: The tag.
        metadata: What the tag remembers about the move.

    Raises:
        RefMovedError: The tag moved since the person who chose a version looked at it.
    """
    return [_moved(publication, tag, metadata) for publication in publications]


def _moved(publication: Publication, tag: str, metadata: Mapping[str, str]) -> Publication:
    # pylance keeps a tag's metadata when it moves the tag, so what is said about a move names its end.
    about = {**metadata, md.MOVED_TO: str(publication.version)}
    tagged = _choose(publication, tag, about) if publication.chosen else _advance(publication, tag, about)
    return replace(publication, promoted_to=publication.table.at(f"branch:{tagged.ref}"))


def _choose(publication: Publication, tag: str, metadata: Mapping[str, str]) -> Tag:
    table, previous, wanted = publication.table, publication.previous, str(publication.version)
    current = table.tags.list().get(tag)
    if current is not None and current.ref == wanted:
        return current
    expected = None if previous is None else table.at(f"branch:{previous.ref}")
    return table.tags.move(tag, wanted, expected=expected, metadata=metadata)


def _advance(publication: Publication, tag: str, metadata: Mapping[str, str]) -> Tag:
    table, version = publication.table, publication.version
    for _ in range(_TRIES):
        current = table.tags.list().get(tag)
        if current is not None and current.branch == MAIN and current.version >= version.number:
            return current
        # Another publisher may create or move the tag between the look and the move: look again then.
        with suppress(RefMovedError, AlreadyExistsError):
            if current is None:
                return table.tags.create(tag, version, metadata=metadata)
            expected = table.at(current.ref)
            return table.tags.move(tag, version, expected=expected, metadata=metadata)
    raise RefMovedError(tag, str(version), "another version each time it was looked at")


def retire_all(publications: Iterable[Publication], chain: RunChain) -> list[str]:
    """Delete the run branches that were published, and return what could not be deleted and why."""
    kept = []
    for publication in publications:
        runs = [run_of(source.branch) for source in publication.sources]
        run_ids = dict.fromkeys([*chain.run_ids, *(run_id for run_id in runs if run_id)])
        retired = replace(chain, run_ids=tuple(run_ids))
        kept += [
            f"{publication.name}: {reason}" for reason in RunBranch(table=publication.table, chain=retired).retire()
        ]
    return kept


# Where Dagster no longer knows when a run began: one that was interrupted is resumed before so many others land.
_SEARCHED = 200


def landed_as(table: LanceTable, made_by: Mapping[str, Iterable[str]], since: datetime | None) -> Version | None:
    """Return the newest version of `main` that has one of some values of each property given.

    Args:
        table: The table.
        made_by: Properties of a publication's commit, and the values looked for.
        since: When the runs began that may have made it; nothing older is read. None if that is not known.
    """
    wanted = {key: frozenset(values) for key, values in made_by.items()}
    for number in reversed(table.branches.version_numbers()[-_SEARCHED:]):
        version = table.at(f"{MAIN}@{number}")
        if all(version.properties.get(key) in values for key, values in wanted.items()):
            return version
        if since is not None and version.committed_at < since:
            return None
    return None
