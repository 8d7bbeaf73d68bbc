"""Do what a person asks of a publisher besides publishing: discard what a run wrote, hold or release the channel."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import dagster as dg

from lance_dagster.errors import ConflictError, NotFoundError, PublishRefusedError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import Publication, is_withdrawn
from lance_dagster.plugin.publish.publish_config import PublishConfig
from lance_dagster.plugin.publish.publish_together import Together
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.run_branch import is_over, is_written, run_of
from lance_dagster.repository import Channel, ChannelHold, TableView
from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TagChanges:
    """Changes what the config of a step names.

    Attributes:
        context: The context of the step.
        config: What a person asks for, and why.
        lance: The resource.
        tag: The name of the tag, and of the channel.
        together: The repository.
        table: Opens the table of a node.
        tagged: Returns the tables of some nodes that have the tag.
        begin: Creates the repository if there is none, and adds such tables to the channel.
        publisher_of: Returns a run that is not over and may be publishing what a run wrote, or None.
        about: Reason, person and run.
    """

    context: dg.AssetExecutionContext
    config: PublishConfig
    lance: LanceResource
    tag: str
    together: Together
    table: Callable[[PromotedNode], LanceTable]
    tagged: Callable[[Sequence[PromotedNode]], Sequence[Publication]]
    begin: Callable[[Sequence[Publication]], None]
    publisher_of: Callable[[str], str | None]
    about: Mapping[str, str]

    def discard(self, nodes: Sequence[PromotedNode]) -> None:
        """Delete the branch of a run in all tables, and record it as an observation of each promoted node.

        Args:
            nodes: The nodes of the tables.

        Raises:
            PublishRefusedError: No table has the branch.
            ConflictError: A branch cannot be discarded; then none is.
        """
        self._refuse_discard(nodes)
        missing = []
        for node in nodes:
            try:
                table = self.table(node)
                head = table.head(self.config.discard)
                table.branches.delete(head.branch)
            except NotFoundError as error:
                missing.append(f"{node.candidate.to_user_string()}: {error}")
                continue
            self._record(node, "discarded", str(head), {})
        if len(missing) == len(nodes):
            raise PublishRefusedError("nothing to be discarded", missing)

    def move(self, done: str, nodes: Sequence[PromotedNode]) -> ChannelHold | None:
        """Hold or release the channel, with all of its tables, and record it as an observation of promoted nodes.

        Args:
            done: `held` or `released`.
            nodes: The nodes that get an observation, where the channel names their tables.

        Returns:
            The hold of the channel afterwards.

        Raises:
            PublishRefusedError: Nothing was published yet.
        """
        tagged = self.tagged(nodes)
        if tagged:
            self.begin(tagged)
        if self.together.channel_now() is None:
            names = [node.candidate.to_user_string() for node in nodes]
            reasons = [f"{name}: nothing was published to {self.tag} yet" for name in names]
            raise PublishRefusedError(f"nothing to be {done}", reasons)
        moved = self._moved(done, tagged)
        view = self.together.repository.at(moved.commit)
        scope = self._scope(view, done)
        for node in nodes:
            name = str(self.lance.address_of(node.candidate, node.metadata))
            if name in view:
                self._record(node, done, str(view[name].version), scope)
        return moved.hold

    def _moved(self, done: str, tagged: Sequence[Publication]) -> Channel:
        repository, reason = self.together.repository, self.config.reason
        if done == "held":
            return repository.channels.hold(self.tag, reason=reason, who=self._who)
        channel = repository.channels.release(self.tag, reason=reason, who=self._who)
        # A held channel took in no table, and it takes over the hold of a table that it takes in.
        if self.together.adopt(tagged):
            channel = repository.channels.release(self.tag, reason=reason, who=self._who)
        view = repository.at(channel.commit)
        for one in tagged:
            # The channel went back to a commit before this table, whose tag nobody moved since.
            if repository.name_of(one.table) not in view:
                one.table.tags.release(self.tag, reason=reason, who=self._who)
        return channel

    def _record(self, node: PromotedNode, done: str, changed: str, scope: Mapping[str, str]) -> None:
        self.context.log.info("%s of %s is %s", changed, node.candidate.to_user_string(), done)
        # A materialization would start the readers, although no row changed.
        about = {f"lance/{done}": changed, **scope, **self.about}
        self.context.log_event(dg.AssetObservation(node.promoted, metadata=about))

    def _scope(self, named: Mapping[str, TableView], done: str) -> dict[str, str]:
        """Return the metadata that says, and log, that a hold or release is about all tables of the channel."""
        what = f"{done} for all {len(named)} tables of {self.tag}, selected or not" if len(named) > 1 else done
        until = ", until a release: nothing of them is published before" if done == "held" else ""
        self.context.log.info("the channel %s is %s%s", self.tag, what, until)
        return {md.SCOPE: f"{what}{until}"}

    def _refuse_discard(self, nodes: Sequence[PromotedNode]) -> None:
        # `main` of a table may have yet to follow this commit.
        view = self.together.newest()
        for node in nodes:
            # A run need not have written every table; `discard` says so when it wrote none.
            with suppress(NotFoundError):
                table, name = self.table(node), str(self.lance.address_of(node.candidate, node.metadata))
                _refuse_used(table, self.config.discard, self.context.instance, self.publisher_of)
                _refuse_published(table, self.config.discard, view.get(name))

    @property
    def _who(self) -> str:
        return self.about.get(md.WHO, "")


def _refuse_used(
    table: LanceTable, given: str, instance: dg.DagsterInstance, publisher_of: Callable[[str], str | None]
) -> None:
    """Refuse to discard the branch of a run when it is in use, so that its deletion would be refused.

    A candidate is discarded as a whole, so all of its tables are looked at before the first branch is deleted.

    Args:
        table: The table.
        given: The run, as `waiting.resolve_run` returns it.
        instance: The Dagster instance.
        publisher_of: Returns a run that is not over and may be publishing what a run wrote, or None.

    Raises:
        RefNotFoundError: There is no such branch.
        ConflictError: The run is not over, another run may be publishing the branch, the branch is protected, or
            another branch or a tag needs it.
    """
    head = table.head(given)
    if not is_over(run_of(head.branch), instance):
        raise ConflictError(f"{head.branch} belongs to a run that is not over; terminate the run before you discard it")
    if (by := publisher_of(run_of(head.branch) or "")) is not None:
        raise ConflictError(
            f"{head.branch} may be being published by run {by}, which is not over: wait for its end, or terminate it, "
            "and discard the branch then if it still waits"
        )
    forks = [branch.name for branch in table.branches.list().values() if branch.parent_branch == head.branch]
    tags = [f"tag {tag.name}" for tag in table.tags.list().values() if tag.branch == head.branch]
    if users := [*(f"branch {name}" for name in forks), *tags]:
        advice = "; discard what was forked from it first" if forks else ""
        raise ConflictError(f"{head.branch} of {table.uri} is needed by {', '.join(users)}{advice}")
    if (pattern := table.branches.protection().of_branch(head.branch)) is not None:
        raise ConflictError(f"{head.branch} of {table.uri} is protected by the pattern {pattern!r}")


def _refuse_published(table: LanceTable, given: str, named: TableView | None) -> None:
    """Refuse to discard the branch of a run whose rows are committed: without the branch they would stay as they are.

    The publisher may have died, or was refused, before the tag named the rows. The next publication brings them to
    readers, whether the branch exists or not.

    Args:
        table: The table.
        given: The run, as `waiting.resolve_run` returns it.
        named: The table at the newest commit of its repository, which `main` of the table may have yet to follow; None
            where no commit has it.

    Raises:
        RefNotFoundError: There is no such branch.
        ConflictError: The rows are published, and were not rolled back since.
    """
    head = table.head(given)
    if not is_written(head):
        return
    place, landed = "", table.branches.is_merged(head)
    if landed is not None:
        place = "" if is_withdrawn(table, landed) else str(landed)
    elif named is not None:
        # A table that another program created again lacks the version that the commit names.
        with suppress(NotFoundError):
            staged = table.branches.is_merged(head, into=named.version.branch)
            place = "" if staged is None else "the newest commit of the repository"
    if place:
        raise ConflictError(
            f"{head.branch} of {table.uri} cannot be discarded: {place} has its rows, and without the branch the next "
            "publication would bring them to readers all the same. To take them back, materialize the promoted node, "
            "which finishes their publication and deletes the branch (after a release, if the tag is held), and then "
            "roll back to an older version: set ref and a reason"
        )
