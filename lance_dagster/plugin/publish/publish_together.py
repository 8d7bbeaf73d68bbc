"""Publish the tables of a repository as one commit.

Without a repository the tables of a run are merged one after the other (`publication`), and a reader of two tables can
see one of them first. With one, what was audited is staged in every table where no reader looks, and one put in the
storage makes all of it happen: the commit of the repository. `main` of each table follows, then the channel moves for
all tables at once, and the tag of each table follows the channel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lance_dagster.errors import ConflictError, InvalidInputError, VersionNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.ref_expressions import parse
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.publish.publication import Publication, landing_message, landing_properties
from lance_dagster.plugin.publish.rollback import (
    drop_branch,
    is_rollback,
    moved_meanwhile,
    preview_branch,
    restore_on_branch,
    rollback_message,
    rollback_properties,
)
from lance_dagster.plugin.run_branch import RunChain
from lance_dagster.repository import RESTORES, LanceRepository, RepositoryCommit, VersionToPublish


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The publication of the tables of one repository.

    Attributes:
        repository: The repository.
        channel: The channel that readers follow, called like the tag.
        chain: The run that publishes.
        about: Reason, person and run, kept with the commit and with the move of the channel.
    """

    repository: LanceRepository
    channel: str
    chain: RunChain
    about: Mapping[str, str]

    def version_at(self, ref: str, publication: Publication) -> Version | None:
        """Return the version that a table has where an expression of the channel points, such as `production~1`.

        Returns:
            The version on `main`; None when the expression is about another ref, one of the table.

        Raises:
            RefNotFoundError: The channel cannot be followed back so far.
            VersionNotFoundError: The table was not part of the repository then, or its version is not on `main`.
        """
        read = parse(ref)
        if read.name != self.channel or not (read.steps or read.suffix):
            return None
        # A step that is executed again goes back no further: the rollback of its reason is there.
        ref = self.channel if self._is_rolled_back() else ref
        view, name = self.repository.at(ref), self.repository.name_of(publication.table)
        if name not in view:
            raise VersionNotFoundError(f"{name} was not in the repository at {ref}")
        version = view[name].version
        if version.branch != MAIN:
            raise VersionNotFoundError(f"{name} at {ref} is not on main: another program committed there just then")
        return version

    def commit(
        self, found: Sequence[Publication], plan_again: Callable[[Publication], Publication]
    ) -> tuple[RepositoryCommit, list[Publication]]:
        """Commit what was audited of all tables, and return the publications with the versions that were published.

        Args:
            found: The tables, each with the version that was audited; an older version of `main` is restored.
            plan_again: Makes and audits the preview of a merge, when `main` has moved since the audit.

        Raises:
            MergeConflictError: Tables cannot be merged; nothing of any table is visible.
            ConflictError: `main` of a table moved each time its merge was audited; or all was published, and commits
                of another program to `main` of a table conflict with it.
        """
        current = {self.repository.name_of(one.table): one for one in found}

        def again(name: str) -> VersionToPublish:
            one = current[name]
            if is_rollback(one):
                raise moved_meanwhile(one, one.table.head(MAIN))
            current[name] = plan_again(one)
            return self._wanted(current[name])

        try:
            done = self.repository.publish_versions(
                {name: self._wanted(one) for name, one in current.items()},
                plan_again=again,
                message=f"publish {', '.join(one.name for one in found)}",
                properties=self.about,
            )
        finally:
            for one in current.values():
                if is_rollback(one):
                    drop_branch(one.table, preview_branch(self.chain, "rollback"))
        if done.lagging:
            which = "; ".join(map(str, done.lagging))
            raise ConflictError(f"published as commit {done.commit.short_id}, but main could not follow: {which}")
        # The version on `main`, or the staged one where another program committed to `main` before it could follow.
        view = self.repository.at(done.commit.id)
        return done.commit, [replace(one, landed=view[name].version, chosen=False) for name, one in current.items()]

    def promote(self, commit: RepositoryCommit, published: Sequence[Publication], ref: str) -> str:
        """Let the channel name the tables of a publication at a commit, all at once; return the commit that it names.

        The tags of the tables are left to the caller. Other tables stay as they are: what of them was not audited by
        this publisher, or is held by its tag, is not promoted with these.

        Args:
            commit: The commit of the publication.
            published: The tables.
            ref: The ref of the config; an expression of the channel says what a rollback restores.
        """
        properties = dict(self.about)
        if ref and parse(ref).name == self.channel and not self._is_rolled_back():
            properties[RESTORES] = self.repository.head(ref).id
        moved = self.repository.channels.advance(
            self.channel,
            commit.id,
            [self.repository.name_of(one.table) for one in published],
            reason=self.about.get(md.REASON, commit.message),
            properties=properties,
            tags=False,
        )
        self._seen_from_now_on(moved.commit)
        return moved.commit

    def catch_up(self, names: Sequence[str]) -> None:
        """Bring `main` and the tags of tables up to the channel: a publisher may have died before they followed."""
        # What does not follow, such as a tag that is held, is reported by the publication itself.
        self.repository.follow(self.channel, names)

    def _is_rolled_back(self) -> bool:
        """Return whether the newest entry of the channel is the rollback of this reason."""
        reason = self.about.get(md.REASON)
        newest = self.repository.channels.history(self.channel, 1)[0]
        return newest.action == "rollback" and newest.reason == reason

    def roll_back(self, ref: str) -> None:
        """Move the channel back and hold it there, for all tables at once.

        Raises:
            InvalidInputError: The ref is a version of one table: a channel names a commit of all tables.
        """
        read = parse(ref)
        if read.name != self.channel:
            raise InvalidInputError(
                f"in a repository a rollback that holds is one of all tables: set ref to {self.channel}~1, or roll "
                "this table back with rollback: revert"
            )
        to = self.repository.head(ref)
        channels = self.repository.channels
        # A retried step finds the channel where it wants it.
        if channels.get(self.channel).commit != to.id:
            reason, who = self.about[md.REASON], self.about.get(md.WHO, "")
            channels.rollback(self.channel, reason=reason, to=to.id, who=who, tags=False)
        self._seen_from_now_on(to.id)

    def _seen_from_now_on(self, commit: str) -> None:
        # Readers of the same run come after the publisher, and want what it published.
        if self.chain.run_id is not None:
            self.repository.pin_again(self.chain.run_id, self.channel, commit)

    def _wanted(self, one: Publication) -> VersionToPublish:
        if is_rollback(one):
            restored = restore_on_branch(one, one.table.head(MAIN), self.chain, self.about)
            about = rollback_properties(one, self.chain, self.about)
            return VersionToPublish(version=restored, message=rollback_message(one, self.about), properties=about)
        if one.planned is None and (one.landed is not None or not one.sources):
            return VersionToPublish(version=one.version, message="")
        message, about = landing_message(one), landing_properties(one, self.chain)
        return VersionToPublish(version=one.planned or one.sources[0], message=message, properties=about)
