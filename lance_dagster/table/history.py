"""The history of a table as methods of `LanceTable`: which versions there are, and what led to each."""

from lance_dagster.format.layout import MAIN
from lance_dagster.history.ancestry import Ancestry, VersionRef
from lance_dagster.history.identifiers import content_id_of
from lance_dagster.history.log import LogFilter, LogQuery, all_parents, first_parents
from lance_dagster.history.resolve import resolve
from lance_dagster.history.versions import Version
from lance_dagster.table.facade import Facade


class History(Facade):
    """Methods that look at versions."""

    def at(self, ref: str) -> Version:
        """Return the version a ref expression names."""
        return self._described(self._parts.at(ref))

    def head(self, branch: str = MAIN) -> Version:
        """Return the newest version of a branch."""
        return self._described(self._parts.head(branch))

    def versions_after(self, number: int, branch: str = MAIN) -> list[int]:
        """List the numbers of a branch's versions after `number`, ascending, from file names alone."""
        return [found for found in self._parts.versions.numbers(branch) if found > number]

    def log(
        self,
        ref: str = MAIN,
        *,
        after: str | None = None,
        limit: int | None = None,
        first_parent: bool = True,
        only: LogFilter | None = None,
    ) -> list[Version]:
        """Return a version and those it was made from, newest first.

        Versions that a clean-up removed are left out; the one made from it is marked as `cut`.

        Args:
            ref: Where to begin.
            after: Leave out what this version contains: `log("run/4f2a", after="main")` is what the branch did.
            limit: Return at most so many.
            first_parent: Follow first parents only, across forks: what a branch was at each time. Else everything it
                contains, what was merged into it too, each version once and before those it was made from.
            only: Return only those a filter lets through.
        """
        ancestry, start, question = self._asked(ref, after, limit, only)
        if first_parent:
            return first_parents(ancestry, start, question)
        return [version for version, _ in all_parents(ancestry, start, question)]

    def log_graph(
        self, ref: str = MAIN, *, after: str | None = None, limit: int | None = None, only: LogFilter | None = None
    ) -> list[tuple[Version, tuple[str, ...]]]:
        """Return what `log` returns with `first_parent=False`, each with the versions to draw lines to.

        These are the next older versions that a filter lets through, and may be beyond the limit. Parents that are
        gone are not among them.
        """
        ancestry, start, question = self._asked(ref, after, limit, only)
        return [(version, tuple(map(str, below))) for version, below in all_parents(ancestry, start, question)]

    def content_id(self, ref: str = MAIN) -> str:
        """Return a digest of what a version holds, which is the same for versions that hold the same.

        It covers columns, data files, deleted rows, row ids, settings and indices, in their order; not the version's
        number, time or transaction, the numbers fragments have, nor where files lie. So a branch has the content id of
        the version it was forked from, and `main` that of a branch it took in without having changed meanwhile.
        Reads one deletion file for each fragment that has one.
        """
        return content_id_of(self._parts.versions, self._parts.at(ref))

    def _asked(
        self, ref: str, after: str | None, limit: int | None, only: LogFilter | None
    ) -> tuple[Ancestry, VersionRef, LogQuery]:
        parts = self._parts
        start = VersionRef(*resolve(ref, parts.refs, parts.versions))
        question = LogQuery(after=None if after is None else parts.at(after), limit=limit, only=only or LogFilter())
        ancestry = Ancestry(parts.refs, parts.versions)
        if not ancestry.exists(start):
            # Says which there are.
            parts.versions.load(start.branch, start.number)
        return ancestry, start, question
