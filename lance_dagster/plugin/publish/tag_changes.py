"""Do what a person asks of a publisher besides publishing: discard what a run wrote, and hold or release the tags."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import dagster as dg

from lance_dagster.errors import ConflictError, NotFoundError, PublishRefusedError
from lance_dagster.format.layout import MAIN
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.publish.promoted_asset import PromotedNode
from lance_dagster.plugin.publish.publication import is_withdrawn
from lance_dagster.plugin.publish.publish_config import PublishConfig
from lance_dagster.plugin.publish.publish_together import Together, refuse_named_by_channel
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.run_branch import is_over, is_written, run_of
from lance_dagster.repository import ChannelHold, TableView
from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TagChanges:
    """Changes what the config of a step names.

    Attributes:
        context: The context of the step.
        config: What a person asks for, and why.
        lance: The resource.
        tag: The name of the tag, and of the channel.
        together: The repository; None without one.
        table: Opens the table of a node.
        publisher_of: Returns a run that is not over and may be publishing what a run wrote, or None.
        about: Reason, person and run.
    """

    context: dg.AssetExecutionContext
    config: PublishConfig
    lance: LanceResource
    tag: str
    together: Together | None
    table: Callable[[PromotedNode], LanceTable]
    publisher_of: Callable[[str], str | None]
    about: Mapping[str, str]

    def make(self, done: str, nodes: Sequence[PromotedNode]) -> ChannelHold | None:
        """Discard a branch, or hold or release the tag, and record it as an observation of each promoted node.

        Args:
            done: `discarded`, `held` or `released`.
            nodes: The nodes of the tables.

        Returns:
            The hold of the channel afterwards.

        Raises:
            PublishRefusedError: No table has the branch or tag that is to be changed.
            ConflictError: A branch cannot be discarded; then none is.
        """
        change = {"discarded": self._discard, "held": self._hold, "released": self._release}[done]
        if done == "discarded":
            self._refuse_discard(nodes)
        missing = []
        names = [str(self.lance.address_of(node.candidate, node.metadata)) for node in nodes]
        hold, named = (None, {}) if done == "discarded" else self._change_channel(names, done)
        scope = self._scope(named, done)
        for node, name in zip(nodes, names, strict=True):
            try:
                # A table that the channel does not name follows its own tag.
                changed = str(named[name].version) if name in named else change(self.table(node))
            except NotFoundError as error:
                missing.append(f"{node.candidate.to_user_string()}: {error}")
                continue
            self.context.log.info("%s of %s is %s", changed, node.candidate.to_user_string(), done)
            about = {f"lance/{done}": changed, **scope, **self.about}
            # A materialization would start the readers, although no row changed.
            self.context.log_event(dg.AssetObservation(node.promoted, metadata=about))
        if len(missing) == len(nodes) and not named:
            raise PublishRefusedError(f"nothing to be {done}", missing)
        return hold

    def _change_channel(self, names: Sequence[str], done: str) -> tuple[ChannelHold | None, Mapping[str, TableView]]:
        """Hold or release the channel, with the tags of all its tables, and return these; none without a channel."""
        together = self.together
        present = None if together is None else together.channel_now()
        if together is None or present is None:
            refuse_named_by_channel(self.lance, self.tag, names, done)
            return None, {}
        moved = together.repository.channels.hold if done == "held" else together.repository.channels.release
        hold = moved(self.tag, reason=self.config.reason, who=self._who).hold
        return hold, together.repository.at(present.commit)

    def _scope(self, named: Mapping[str, TableView], done: str) -> dict[str, str]:
        """Return the metadata that says, and log, that a hold or release is about all tables of the channel."""
        if not named:
            return {}
        what = f"{done} for all {len(named)} tables of {self.tag}, selected or not" if len(named) > 1 else done
        until = ", until a release: nothing of them is published before" if done == "held" else ""
        self.context.log.info("the channel %s is %s%s", self.tag, what, until)
        return {md.SCOPE: f"{what}{until}"}

    def _hold(self, table: LanceTable) -> str:
        return table.tags.hold(self.tag, reason=self.config.reason, who=self._who).ref

    def _release(self, table: LanceTable) -> str:
        return table.tags.release(self.tag, reason=self.config.reason, who=self._who).ref

    def _discard(self, table: LanceTable) -> str:
        head = table.head(self.config.discard)
        table.branches.delete(head.branch)
        return str(head)

    def _refuse_discard(self, nodes: Sequence[PromotedNode]) -> None:
        # `main` of a table may have yet to follow this commit.
        view = None if self.together is None else self.together.repository.at(MAIN)
        for node in nodes:
            # A run need not have written every table; `make` says so when it wrote none.
            with suppress(NotFoundError):
                table, name = self.table(node), str(self.lance.address_of(node.candidate, node.metadata))
                _refuse_used(table, self.config.discard, self.context.instance, self.publisher_of)
                _refuse_published(table, self.config.discard, None if view is None else view.get(name))

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
            without a repository.

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
