"""Garbage collection: the method of a table that lets versions expire and deletes files."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from lance_dagster.errors import FormatError, InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.gc.collect import SETTLING, GarbageOptions, GarbageReport, Progress, collect
from lance_dagster.gc.retention import DEFAULT_AGE, SETTING, Retention, Rule, retention_from_json
from lance_dagster.history.versions import Versions
from lance_dagster.table.facade import Facade

_SHORTEST_GRACE = timedelta(days=1)


class Collecting(Facade):
    """Nothing else deletes files that more than one branch may name."""

    def collect_garbage(
        self,
        older_than: timedelta | None = None,
        *,
        dry_run: bool = True,
        keep_last: int = 1,
        branches: Mapping[str, timedelta] | None = None,
        grace: timedelta | None = None,
        progress: Progress | None = None,
    ) -> GarbageReport:
        """Let old versions expire, and delete files that no version names.

        A version expires when it was not in use for `older_than`, and no tag, fork or coming merge needs it. From then
        on it cannot be read. The files that only such versions name are deleted by a later call, a day after, so that
        whoever is about to restore, tag or fork such a version at the same moment loses nothing. Writers and readers
        may go on meanwhile; a crash leaves a table that reads as before, and the next call goes on.

        Rules kept with the table, in the setting `lance_dagster.retention` of `main`, apply too: a version stays when
        they or the arguments say so. Nothing outside of the table's folder is ever deleted, nor a file that is not
        named like one of a table.

        Args:
            older_than: For how long versions stay that are not the newest any more; None for what is kept with the
                table, or else 14 days.
            dry_run: Only say what would be done.
            keep_last: How many of the newest versions of each branch stay however old they are.
            branches: Other ages for branches whose names match a pattern: `{"run/*": timedelta(days=2)}`. The first
                that matches counts.
            grace: How old a file has to be that no version names, since somebody may be about to commit it; None for
                `older_than`, but at least a day. Shorter than a day, it also is how long files of expired versions
                stay; with zero everything happens at once, and nobody else may be at work.
            progress: Called with how many steps are done and how many there are.

        Returns:
            What was deleted, or would be, and what was kept and why. A version or a name that cannot be read is no
            exception here: it is among the problems, and nothing was deleted.

        Raises:
            InvalidInputError: A duration is negative, or the rules kept with the table cannot be read.
        """
        try:
            stored = self._stored()
        except FormatError:
            # Then nothing is deleted, and the report says so.
            stored, dry_run = None, True
        age = _duration(older_than if older_than is not None else stored.rest.older_than if stored else DEFAULT_AGE)
        # Where the table has rules, those not given here leave it to them.
        rest = timedelta(0) if stored and older_than is None else age
        ages = {pattern: _duration(found) for pattern, found in (branches or {}).items()}
        given = Retention(
            rest=Rule(older_than=rest, keep_last=keep_last),
            branches={pattern: Rule(older_than=found, keep_last=keep_last) for pattern, found in ages.items()},
        )
        grace = max(age, _SHORTEST_GRACE) if grace is None else _duration(grace)
        wish = GarbageOptions(
            rules=(given, stored) if stored else (given,),
            grace=grace,
            settling=min(grace, SETTLING),
            dry_run=dry_run,
        )
        try:
            return collect(self._parts.store, wish, progress)
        finally:
            # What was read before may be gone.
            self._parts = replace(self._parts, versions=Versions(self._parts.store, self._parts.storage_options))

    def _stored(self) -> Retention | None:
        text = Versions(self._parts.store).head(MAIN).manifest.config.get(SETTING)
        return None if text is None else retention_from_json(text)


def _duration(value: object) -> timedelta:
    if not isinstance(value, timedelta):
        raise InvalidInputError(f"{value!r} is no duration; give a timedelta or a pendulum.Duration")
    return value
