"""Find a publication that moved `main` to the version that it audited, and died before it moved the tag.

Then no branch waits: the run branches are merged, and their audited rows are on `main`. The next *Materialize* finishes
the publication. It promotes only what that publication was to promote: its commit, not the head of `main`.

Other versions of `main` that are newer than the tag's are promoted only when a person asks for them: a publisher of
another tag or another program may have made them, or a person may have withdrawn them from this tag.

A later run may write only some of the tables of a publication that died. Its publisher would bring the rows of that
publication to readers in these tables, so the other tables come along in the same move of the channel. Where one of
them cannot be promoted, nothing is: readers see a publication as a whole or not at all.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import dagster as dg

from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import runs_of
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import SEARCHED, Publication
from lance_dagster.plugin.publish.publish_gate import AuditLog
from lance_dagster.plugin.publish.publish_together import Together, Unpromoted
from lance_dagster.plugin.run_branch import RunChain, branch_of, is_over, is_written, started_at
from lance_dagster.table import LanceTable

_NOTHING_NEW = "nothing new"


class Rest(NamedTuple):
    """What else the publications of a step would show to readers in part.

    Attributes:
        added: The other tables, each with the version to promote.
        against: The reasons why nothing can be promoted; empty when the other tables come along.
        under_way: Whether a publication that is not over is one of the reasons.
    """

    added: Sequence[Publication] = ()
    against: Sequence[str] = ()
    under_way: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Look for publications that died after they moved `main` of a table.

    Attributes:
        tag: The name of the tag.
        log: The event log, which says what the run of a publication was to promote.
        together: Publishes tables as one commit.
        chain: The run that publishes, and the runs that it continues.
        audit: Returns a publication, and the reasons against a version of it.
    """

    tag: str
    log: AuditLog
    together: Together
    chain: RunChain
    audit: Callable[[Publication, Version], tuple[Publication, list[str]]]

    def finish(self, looked: Sequence[Publication]) -> tuple[list[Publication], list[str]]:
        """Return the tables with the versions that died publications were to promote, and messages about the others.

        Args:
            looked: The tables; those that have something to publish are returned as they are.
        """
        publications, said = list(looked), dict[str, list[str]]()
        refused: set[str] = set()
        for place, one in enumerate(publications):
            # A backfill whose branches all wait fails: it was to publish these, and not the rest of an older one.
            if not (one.audited or (one.waiting and self.chain.backfill_id is not None)):
                publications[place], said[one.name] = self._finished(one, refused)
        for place, one in enumerate(publications):
            # A publication is promoted whole or not at all.
            if one.name in said and _by(one.landed) in refused:
                publications[place] = replace(one, landed=None)
                said[one.name] = [f"it waits with other tables of the publication of run {_by(one.landed)}"]
            elif one.name in said and (others := _left_behind(one, looked)):
                publications[place] = replace(one, landed=None)
                why = f"whose {MAIN} lacks what the same run wrote, or has it by a merge that no publisher made"
                advice = f"run the assets again, or promote what is on {MAIN} with ref: {MAIN}"
                said[one.name] = [f"it waits with {', '.join(others)}, {why}; {advice}"]
        return publications, [f"{name}: {reason}" for name, reasons in said.items() for reason in reasons]

    def unless_withdrawn(self, one: Publication) -> Publication:
        """Return a table without the version that its backfill published, if the tag was moved back from it since."""
        named = one.previous.version if one.previous and one.previous.branch == MAIN else 0
        if one.landed is None or one.landed.number <= named or not self._was_named(one, one.landed):
            return one
        return replace(one, landed=None)

    def complete(
        self,
        found: Sequence[Publication],
        nodes: Mapping[str, PromotedNode],
        look: Callable[[PromotedNode], Publication],
    ) -> Rest:
        """Return the tables that died publications wrote too, so that readers see these publications as a whole.

        Args:
            found: The tables that are to be promoted.
            nodes: The nodes of all tables of the publisher, by the names of the tables in the repository.
            look: Returns a table without anything to publish.
        """
        # In the usual case a publisher publishes all of its tables, and nothing is looked at.
        if not found or len(found) >= len(nodes):
            return Rest()
        # By table, the number of the last version of `main` that readers will see; that of a branch lands after all.
        shown: dict[str, float] = {
            self.together.repository.name_of(one.table): math.inf if one.landed is None else one.landed.number
            for one in found
        }
        commits = [one for one in self.together.unpromoted(nodes) if one.by != self.chain.run_id]
        names: dict[str, str] = {}
        # A table that comes along may bring a part of another publication.
        while more := self._in_part(commits, {**shown, **dict.fromkeys(names, math.inf)}, nodes):
            names |= more
        if not names:
            return Rest()
        finished, said = self.finish([look(nodes[name]) for name in names])
        holds = {one.name: one.previous.hold for one in finished if one.previous and one.previous.hold}
        added = {name: one for name, one in zip(names, finished, strict=True) if one.landed and one.name not in holds}
        shown |= {name: one.landed.number for name, one in added.items() if one.landed}
        left = self._in_part(commits, shown, nodes)
        said += [f"{name}: {self.tag} is {hold}" for name, hold in holds.items()]
        against = [self._described_in(found, nodes[name], by, said) for name, by in left.items()]
        under_way = not all(is_over(by, self.log.instance) for by in left.values())
        return Rest(list(added.values()), against, under_way)

    def _in_part(
        self, commits: Iterable[Unpromoted], shown: Mapping[str, float], nodes: Mapping[str, PromotedNode]
    ) -> dict[str, str]:
        """Return the tables that would lag behind others of their commit, each with the run that published the commit.

        Readers that see the commit's version of one table, and an older version of another one, see half a publication.

        Args:
            commits: The commits that readers do not see yet.
            shown: The number of the last version of `main` that readers will see, by table.
            nodes: The nodes of the tables.
        """
        found: dict[str, str] = {}
        for commit in commits:
            seen = {name for name, at in commit.tables.items() if at.lands <= shown.get(name, 0)}
            for name in commit.tables.keys() - seen if seen else ():
                # A publisher of another tag did not plan to materialize this node.
                if self.log.unwritten([nodes[name].promoted], [commit.by]):
                    found.setdefault(name, commit.by)
        return found

    def _described_in(self, found: Sequence[Publication], node: PromotedNode, by: str, said: Sequence[str]) -> str:
        """Say why some tables are not promoted without another one, and what to do.

        Args:
            found: The tables that are not promoted.
            node: The node of the table that would lag behind.
            by: The run that published that table in the same commit.
            said: The messages about tables that cannot be promoted.
        """
        names, other = ", ".join(one.name for one in found), node.candidate.to_user_string()
        nodes = ", ".join(one.promoted.to_user_string() for one in found) + f" and {node.promoted.to_user_string()}"
        # There is something new, so a table without it has yet to follow.
        why = "; ".join(text for text in said if not text.endswith(_NOTHING_NEW)) or f"its {MAIN} has yet to follow"
        both = f"{names}: run {by} published {other} in the same commit as rows that come along, and"
        if not is_over(by, self.log.instance):
            return f"{both} is not over; if the process of that run died, terminate the run, and materialize {nodes}"
        return (
            f"{both} died before {self.tag} named it; it cannot be promoted ({why}): materialize {nodes} together, "
            f"with ref: {MAIN} if they wait then too"
        )

    def _finished(self, one: Publication, refused: set[str]) -> tuple[Publication, list[str]]:
        """Return a table with the version left to promote, or messages about it; add a refused run to `refused`."""
        said: list[str] = []
        # Another program may have put the tag on a branch, whose version numbers cannot be compared with those of main.
        if one.previous is None or one.previous.branch == MAIN:
            named = 0 if one.previous is None else one.previous.version
            for version in _published(one, named):
                left = self._is_left(one, version, named)
                against = self.audit(one, version)[1] if left else []
                if left and not against:
                    return replace(one, landed=version), []
                if against:
                    refused.add(_by(version))
                if version.number > named and not said:
                    said = list(against) or [self._description(one, version)]
        # Why branches wait is the better advice than "nothing new".
        return one, said or ([] if one.waiting else [_NOTHING_NEW])

    def _is_left(self, one: Publication, version: Version, named: int) -> bool:
        """Return whether a version of `main` was made by a publication that died before its tag named the version."""
        by = version.properties.get(md.PUBLISHED_BY)
        # The person who wanted a rollback repeats it: with its reason, the channel's history records it as a rollback.
        if by is None or md.ROLLED_BACK_TO in version.properties or not self.log.unwritten([one.promoted], [by]):
            return False
        # A step that is retried finishes its own publication.
        is_left = by == self.chain.run_id or is_over(by, self.log.instance)
        return is_left and not (version.number > named and self._was_named(one, version))

    def _was_named(self, one: Publication, version: Version) -> bool:
        """Return whether the tag named a version before, or a later one, and was moved back from it."""
        since = started_at(dg.RunsFilter(run_ids=[_by(version)]), self.log.instance)
        named = self.together.has_left(one, version, since)
        # The channel never named the table. Where it has the tag all the same, another program or an older version of
        # this package moved the tag, and nobody knows from where.
        return one.previous is not None if named is None else named

    def _description(self, one: Publication, version: Version) -> str:
        at = one.previous.ref if one.previous else "no version"
        by, restored = version.properties.get(md.PUBLISHED_BY), version.properties.get(md.ROLLED_BACK_TO)
        if by is not None and not is_over(by, self.log.instance):
            return (
                f"nothing waits, but run {by} brought {MAIN} to {version}, and is not over; {self.tag} names {at}. If "
                "the process of that run died, terminate the run, and materialize this node again"
            )
        behind, run = f"and {self.tag} names {at}", runs_of(version)[-1]
        if restored is not None:
            return (
                f"nothing waits, but {version} is a rollback to {restored}, {behind}: repeat it, with the same reason"
            )
        return (
            f"nothing waits, but {version} has what run/{run} wrote, {behind}: to promote it, "
            f"set ref: run/{run}, or ref: {MAIN}"
        )


def _published(publication: Publication, named: int) -> Iterator[Version]:
    """Yield the versions of `main` that runs made, from the newest to the one that the tag names."""
    for number in reversed(publication.table.branches.version_numbers()[-SEARCHED:]):
        # The version that the tag names is included: a publisher that died after it moved the tag left no event.
        if number < named:
            return
        version = publication.table.at(f"{MAIN}@{number}")
        if runs_of(version):
            yield version


def _left_behind(publication: Publication, looked: Iterable[Publication]) -> list[str]:
    """Return the tables whose `main` could not follow the commit that a publication was to promote.

    Commits of another program conflicted with it, so the branches of its runs still wait there, or a person has merged
    them and decided which rows stay.
    """
    branches = [] if publication.landed is None else [branch_of(run) for run in runs_of(publication.landed)]
    others = [one for one in looked if one.candidate != publication.candidate and not one.audited]
    return [one.name for one in others if any(_is_unpublished(one.table, branch) for branch in branches)]


def _is_unpublished(table: LanceTable, branch: str) -> bool:
    head = table.branches.newest(branch)
    if head is None or not is_written(head):
        return False
    merged = table.branches.is_merged(head)
    return merged is None or not runs_of(merged)


def _by(version: Version | None) -> str:
    """Return the run whose publisher made a version of `main`."""
    return "" if version is None else version.properties.get(md.PUBLISHED_BY, "")
