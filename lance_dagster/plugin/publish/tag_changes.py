"""Do what a person asks of a publisher besides publishing: discard what a run wrote, hold or release the channel.

A discard is a commit that drops the writes of the run. So of a discard and a publication of the same writes, exactly
one happens, whichever process dies or is slow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from lance_dagster.errors import ConflictError, NotFoundError, PublishRefusedError
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import Publication
from lance_dagster.plugin.publish.publishing_run import PublishingRun
from lance_dagster.plugin.recorded_writes import write_of
from lance_dagster.plugin.run_branch import is_over, is_written, run_of
from lance_dagster.repository.candidates.writes import RecordedWrite
from lance_dagster.repository.channel_moves import Channel
from lance_dagster.repository.commits.snapshot import ChannelHold
from lance_dagster.repository.view import TableView
from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TagChanges:
    """Changes what the config of a step names.

    Attributes:
        run: The run of the publisher.
    """

    run: PublishingRun

    def discard(self, nodes: Sequence[PromotedNode]) -> None:
        """Drop what a run wrote, delete its branch in all tables, and record it as an observation of promoted nodes.

        The commit that drops the writes comes first. A publication of them that is under way is refused after it, or
        was faster, and then nothing is discarded.

        Args:
            nodes: The nodes of the tables.

        Raises:
            PublishRefusedError: No table has the branch.
            ConflictError: A branch cannot be discarded; then none is.
        """
        heads: dict[dg.AssetKey, Version] = {}
        writes: list[RecordedWrite] = []
        missing = []
        for node in nodes:
            try:
                table = self.run.table(node)
                # What a run wrote to a branch that is gone is dropped too.
                branch, opened = self.run.config.discard, self.run.record.open_writes(table)
                writes += [write for write in opened if write.request.branch == branch]
                heads[node.candidate] = self._head(table)
            except NotFoundError as error:
                missing.append(f"{node.candidate.to_user_string()}: {error}")
        if not (heads or writes):
            raise PublishRefusedError("nothing to be discarded", missing)
        self._drop(writes)
        for node in nodes:
            if (head := heads.get(node.candidate)) is not None:
                self.run.table(node).branches.delete(head.branch)
                self._record(node, "discarded", str(head), {})

    def _head(self, table: LanceTable) -> Version:
        """Return the head of the branch to discard, which nobody needs."""
        head = table.head(self.run.config.discard)
        self._refuse_published(table, head)
        _refuse_used(table, head, self.run.context.instance)
        return head

    def _drop(self, writes: Sequence[RecordedWrite]) -> None:
        if not writes:
            return
        message = f"discard {self.run.config.discard}: {self.run.config.reason}"
        publications = self.run.publisher.repository.publications
        try:
            publications.discard_writes(writes, message=message, properties=self.run.about)
        finally:
            self.run.record.refresh()

    def move(self, change: str, nodes: Sequence[PromotedNode]) -> ChannelHold | None:
        """Hold or release the channel, with all of its tables, and record it as an observation of promoted nodes.

        Args:
            change: `held` or `released`.
            nodes: The nodes that get an observation, where the channel names their tables.

        Returns:
            The hold of the channel afterwards.

        Raises:
            PublishRefusedError: Nothing was published yet.
        """
        tagged = self.run.tagged(nodes)
        if tagged:
            self.run.begin(tagged)
        if self.run.publisher.channel_now() is None:
            names = [node.candidate.to_user_string() for node in nodes]
            reasons = [f"{name}: nothing was published to {self.run.tag} yet" for name in names]
            raise PublishRefusedError(f"nothing to be {change}", reasons)
        moved = self._moved(change, tagged)
        view = self.run.publisher.repository.at(moved.commit)
        scope = self._scope(view, change)
        for node in nodes:
            name = str(self.run.lance.address_of(node.candidate, node.metadata))
            if name in view:
                self._record(node, change, str(view[name].version), scope)
        return moved.hold

    def _moved(self, change: str, tagged: Sequence[Publication]) -> Channel:
        repository, reason = self.run.publisher.repository, self.run.config.reason
        if change == "held":
            return repository.channels.hold(self.run.tag, reason=reason, who=self.run.who)
        channel = repository.channels.release(self.run.tag, reason=reason, who=self.run.who)
        # A held channel took in no table, and it takes over the hold of a table that it takes in.
        if self.run.publisher.adopt(tagged):
            channel = repository.channels.release(self.run.tag, reason=reason, who=self.run.who)
        view = repository.at(channel.commit)
        for publication in tagged:
            # The channel went back to a commit before this table, whose tag nobody moved since.
            if repository.name_of(publication.table) not in view:
                publication.table.tags.release(self.run.tag, reason=reason, who=self.run.who)
        return channel

    def _record(self, node: PromotedNode, change: str, changed: str, scope: Mapping[str, str]) -> None:
        self.run.context.log.info("%s of %s is %s", changed, node.candidate.to_user_string(), change)
        # A materialization would start the readers, although no row changed.
        about = {f"lance/{change}": changed, **scope, **self.run.about}
        description = f"{change}: {changed}: {self.run.config.reason}"
        self.run.context.log_event(dg.AssetObservation(node.promoted, description=description, metadata=about))

    def _scope(self, named: Mapping[str, TableView], change: str) -> dict[str, str]:
        """Return the metadata that says, and log, that a hold or release is about all tables of the channel."""
        what = f"{change} for all {len(named)} tables of {self.run.tag}, selected or not" if len(named) > 1 else change
        until = ", until a release: nothing of them is published before" if change == "held" else ""
        self.run.context.log.info("the channel %s is %s%s", self.run.tag, what, until)
        return {md.SCOPE: f"{what}{until}"}

    def _refuse_published(self, table: LanceTable, head: Version) -> None:
        """Refuse to discard a branch whose rows are published: without the branch they would stay as they are.

        Raises:
            ConflictError: The rows are published, and were not rolled back since.
        """
        if not is_written(head):
            return
        write = write_of(self.run.publisher.repository, table, head)
        if write is not None and not self.run.record.is_published(write):
            return
        # Rows without a record may have been merged by a person.
        place = table.branches.is_merged(head) if write is None else f"commit {self.run.record.head.short_id}"
        if place is not None:
            raise ConflictError(
                f"{head.branch} of {table.uri} cannot be discarded: {place} has its rows, and without the branch the "
                "next publication would bring them to readers all the same. To take them back, materialize the "
                "promoted node, which finishes their publication and deletes the branch (after a release, if the tag "
                "is held), and then roll back to an older version: set ref and a reason"
            )


def _refuse_used(table: LanceTable, head: Version, instance: dg.DagsterInstance) -> None:
    """Refuse to discard the branch of a run when it is in use, so that its deletion would be refused.

    A candidate is discarded as a whole, so all of its tables are looked at before the first branch is deleted.

    Raises:
        ConflictError: The run is not over, the branch is protected, or another branch or a tag needs it.
    """
    if not is_over(run_of(head.branch), instance):
        raise ConflictError(f"{head.branch} belongs to a run that is not over; terminate the run before you discard it")
    forks = [branch.name for branch in table.branches.list().values() if branch.parent_branch == head.branch]
    tags = [f"tag {tag.name}" for tag in table.tags.list().values() if tag.branch == head.branch]
    if users := [*(f"branch {name}" for name in forks), *tags]:
        advice = "; discard what was forked from it first" if forks else ""
        raise ConflictError(f"{head.branch} of {table.uri} is needed by {', '.join(users)}{advice}")
    if (pattern := table.branches.protection().of_branch(head.branch)) is not None:
        raise ConflictError(f"{head.branch} of {table.uri} is protected by the pattern {pattern!r}")
