"""Audit the planned merge itself when it would publish rows that no audit has seen together.

A run audits its branch. Its rows reach `main` unchanged when `main` is still the version that the branch was forked
from. Otherwise the merge has rows that no check saw together: two runs may append the same ids and each find them
unique, and another program may have written to `main`. The publisher then merges into a preview branch, evaluates
every blocking check on that branch, and moves `main` to exactly this version by a fast-forward. When `main` moves
meanwhile, the fast-forward is refused, and the preview is made again.

These are audited again:

- a source whose merge is no fast-forward
- several sources, as after a backfill: they are merged one after another into one preview and published at once
- a source whose checks read another table, when that table is at another version now, or is published with the source
  at another version
- a source whose checks saw only its own partitions, when `main` has commits after the tag's version that these checks
  did not let pass: of other programs, or published for another tag without the checks or in spite of them
- a version of `main` that a person chose and that no published run made; it needs no preview

Checks that read other tables are also evaluated at each attempt to commit, when the commit would name
a version of such a table that they did not see, or when the channel names such a version. The put of the commit is
refused when another publication came first, and the next attempt evaluates the checks again, so the tables of a commit
were audited together.

A check that is a plain `@asset_check` cannot be evaluated on another version. Then the publication is refused, unless
the policy `stale_checks="accept"` lets it pass, which is recorded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from lance_dagster.errors import MergeConflictError, NotFoundError, PublishRefusedError, RefNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import WITHOUT_ROWS
from lance_dagster.format.validation import parsed_json
from lance_dagster.history.versions import Version
from lance_dagster.merge.preview import PREVIEW_OF
from lance_dagster.merge.rules.strategy import Conflict
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.branch_extent import partitions_of
from lance_dagster.plugin.checks.evaluation import check_values, evaluate_check, open_other, partitions_with_rows
from lance_dagster.plugin.checks.table_check import BoundCheck, CheckOutcome, describe_asset
from lance_dagster.plugin.commit_properties import are_strings, strings_on_main
from lance_dagster.plugin.publish.publication import (
    Publication,
    merge_properties,
    named_conflicts,
    next_steps,
)
from lance_dagster.plugin.publish.publish_gate import Subject, VersionAudit, refuse_cancelled
from lance_dagster.plugin.publish.publishing_run import PublishingRun
from lance_dagster.plugin.publish.rollback import audited_behind, drop_branch, is_rollback
from lance_dagster.plugin.resource import PinnedTable
from lance_dagster.plugin.run_branch import PREVIEWS, RunChain, is_written, preview_branch, run_of
from lance_dagster.repository.view import TableView
from lance_dagster.store import concurrently
from lance_dagster.table import LanceTable

# The entry of a recorded audit with the plain checks that could not be evaluated again.
_ACCEPTED = "accepted although stale"
# The entries that decide, each a list of strings.
_LISTS = ("checks", "ignored", _ACCEPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationAudit:
    """Audits the versions that one run of a publisher is about to publish.

    Attributes:
        run: The run of the publisher.
        checks: The blocking checks.
        pinned_by_check: By check, the other tables at the versions that its last evaluation read.
    """

    run: PublishingRun
    checks: Sequence[dg.AssetCheckKey]
    pinned_by_check: dict[dg.AssetCheckKey, dict[dg.AssetKey, PinnedTable]] = field(default_factory=dict)

    def audit_version(self, publication: Publication, version: Version) -> tuple[Publication, list[str]]:
        """Return the reasons against one version, and the publication with what was evaluated to find them."""
        version = audited_behind(publication.table, version)
        if recorded_audit(version):
            return self.audit_recorded(publication, version)
        subject = Subject.of(publication.candidate, version)
        if not isinstance(subject, str):
            audit = self._audit_of(subject, publication.table)
            reasons = audit.reasons_against(self.checks, unchecked=self.run.unchecked)
            if not publication.chosen:
                return publication, reasons
            # A check may have been added since readers had the version, or the asset may have got another key.
            passed = audit.passed(self.checks)
            if reasons and (not passed or False in passed.values()):
                return publication, reasons
            missing = [check for check, verdict in passed.items() if verdict is None]
            if not missing:
                return self.audit_chosen(publication, version)
            return replace(self, checks=missing).audit_main(publication, version, reasons[0])
        if version.branch == MAIN:
            return self.audit_main(publication, version, subject)
        return publication, [subject]

    def plan(self, publications: Sequence[Publication]) -> tuple[list[Publication], list[str]]:
        """Make and audit the previews of the tables that need one.

        Returns:
            The publications, with the planned merge where there is one, and the reasons against them.

        Raises:
            MergeConflictError: Some merges have conflicts; the error lists those of all tables.
        """
        planned = self._previewed(
            publications, lambda publication: self._is_needed(publication, alone=len(publications) == 1)
        )
        # Repeat until no table is added: the checks of one table may have to read the preview of another one.
        while moved := [publication for publication in planned if self._others_moved(publication, planned)]:
            planned = self._previewed(planned, moved.__contains__)
        # Audit only after every preview is made: the checks of one table read the previews of the others.
        audited = [
            self.audit(publication, planned) if publication.planned else (publication, []) for publication in planned
        ]
        return [publication for publication, _ in audited], [reason for _, reasons in audited for reason in reasons]

    def _previewed(
        self, publications: Sequence[Publication], is_needed: Callable[[Publication], bool]
    ) -> list[Publication]:
        """Return the publications, with a preview where one is needed; raise the conflicts of all of them at once."""
        conflicts: list[Conflict] = []
        refused: list[Publication] = []
        planned: list[Publication] = []
        for publication, needed in zip(publications, concurrently(is_needed, publications), strict=True):
            # After a conflict the other tables are tried too, so that one error names all conflicts.
            try:
                planned.append(self.preview(publication) if needed else publication)
            except MergeConflictError as error:
                conflicts += [publications for publications in error.conflicts if isinstance(publications, Conflict)]
                refused.append(publication)
        if conflicts:
            self.drop(planned)
            refusal = "cannot merge, so no table was merged and no tag moved:"
            raise MergeConflictError(refusal, conflicts, remedy=next_steps(refused, conflicts, publications))
        return planned

    def preview(self, publication: Publication) -> Publication:
        """Merge the sources of a publication into a branch forked from `main`.

        Raises:
            MergeConflictError: A source conflicts with `main` or with a source before it.
        """
        table, name = publication.table, preview_branch(self.run.chain, "merge")
        # A killed attempt of this step may have left its preview under the name that is needed now.
        drop_stale_previews(table, self.run.chain, self.run.context.instance)
        # The head is read once: `base` has to be what the preview was forked from, even if `main` moves meanwhile.
        head = table.head(MAIN)
        about = {md.PUBLISHED_BY: self.run.chain.run_id or "", PREVIEW_OF: str(publication.sources[-1])}
        table.branches.create(name, at=head, metadata=about)
        landed: Version | None = None
        for source in publication.sources:
            properties = merge_properties(publication, source, self.run.chain)
            message = f"publish {publication.name} from {source}"
            try:
                merged = table.merge(source, into=name, message=message, properties=properties)
            except MergeConflictError as error:
                drop_branch(table, name)
                raise MergeConflictError(str(error), named_conflicts(publication, source, error.conflicts)) from error
            # An interrupted publication merged this source already; the newest such version contains the others.
            if merged.branch == MAIN and (landed is None or merged.number > landed.number):
                landed = merged
        version = table.head(name)
        # `main` contains every source already: there is no merge to audit, and only the tag has to move.
        if not is_written(version):
            drop_branch(table, name)
            return replace(publication, landed=landed, planned=None)
        return replace(publication, planned=version, base=head)

    def audit(self, publication: Publication, all_of: Sequence[Publication] = ()) -> tuple[Publication, list[str]]:
        """Evaluate every blocking check of a table on its planned merge.

        Args:
            publication: The publication, with a preview.
            all_of: The publications of the same step, whose tables the checks may read.
        """
        if publication.planned is None:
            return publication, []
        foreign = self.unaudited(publication, publication.base)
        others = _others(publication, all_of)
        reasons, record = self._evaluate(publication, publication.planned, foreign=foreign, others=others)
        return _with_record(publication, record, reasons), reasons

    def audit_main(self, publication: Publication, version: Version, problem: str) -> tuple[Publication, list[str]]:
        """Evaluate every blocking check on a version of `main` that no published run made.

        Args:
            publication: The publication, with the version chosen by a person.
            version: The version.
            problem: Why the event log has no audit of the version.
        """
        # Without a check, nothing can outweigh the missing audit.
        if not any(check.asset_key == publication.candidate for check in self.checks):
            return publication, [problem]
        # All rows are checked, because another program may have written to any partition.
        reasons, record = self._evaluate(publication, version, foreign=[version], others={})
        # When every check passes here, it no longer matters that no run audited the version.
        return _with_record(publication, record, reasons), [problem, *reasons] if reasons else []

    def audit_chosen(self, publication: Publication, version: Version) -> tuple[Publication, list[str]]:
        """Evaluate every blocking check on a version of `main` that passed its own audit, where it has other commits.

        The rows of commits before it come along with it, and its own audit need not have seen them.
        """
        others = self.unaudited(publication, version)
        if not others:
            return publication, []
        listed = ", ".join(map(str, others))
        return self.audit_main(
            publication, version, f"{publication.name}: {version} contains {listed}, which its checks did not let pass"
        )

    def audit_recorded(self, publication: Publication, version: Version) -> tuple[Publication, list[str]]:
        """Return the reasons against a version of `main` that this or another publisher published from a preview.

        Another publisher may have other checks. When its audit lacks one of this publisher, all are evaluated.

        Args:
            publication: The publication.
            version: The version, which has a record of its audit.
        """
        record = recorded_audit(version)
        # A reason that a person ignored still counts against the version, so nobody promotes it again unawares.
        if ignored := record.get("ignored"):
            return publication, [str(reason) for reason in ignored]
        missing = self._missing(publication, record)
        if not missing:
            return self.audit_chosen(publication, version) if publication.chosen else (publication, [])
        names = ", ".join(repr(check.name) for check in missing)
        problem = f"{publication.name}: {version} was published without the approval of the blocking checks {names}"
        # What cannot be evaluated on the version has at least to pass where the rows come from.
        bound = check_values(self.run.context, [publication.candidate])
        plain = [check for check in missing if check not in bound]
        reasons: list[str] = []
        for source in strings_on_main(version, md.SOURCES) if plain else ():
            run_id = run_of(source.rpartition("@")[0]) or ""
            subject = Subject.of_source(publication.candidate, version, source, run_id)
            reasons += self._audit_of(subject, publication.table).reasons_against(plain)
        return (publication, [problem, *reasons]) if reasons else self.audit_main(publication, version, problem)

    def replan(self, publication: Publication) -> Publication:
        """Preview and audit a merge, because `main` moved since the audit of the source or since the last preview.

        Raises:
            MergeConflictError: As for `preview`.
            PublishRefusedError: A check refuses the merge, or the run was cancelled; the preview is deleted.
        """
        self.drop([publication])
        planned, reasons = self.audit(self.preview(publication))
        try:
            self.run.refuse([publication], reasons)
            # The audit may have taken long.
            refuse_cancelled(self.run.context)
        except PublishRefusedError:
            # `_publish` drops the previews that it knows of; this one was made later.
            self.drop([planned])
            raise
        return planned

    def names_of_tables_read(self, publications: Iterable[Publication]) -> dict[dg.AssetKey, str]:
        """Return the names in the repository of the other tables that blocking checks read, by asset."""
        # When checks read a ref other than `main`, a commit to `main` does not change what they read.
        if self.run.lance.read_ref != MAIN:
            return {}
        bound = check_values(self.run.context, [publication.candidate for publication in publications])
        assets = {asset for key in self.checks if key in bound for asset in bound[key].check.reads}
        return {
            asset: str(self.run.lance.address_of(asset, describe_asset(self.run.context, asset)[0])) for asset in assets
        }

    def audit_with_tables(
        self, publications: Sequence[Publication], views: Mapping[dg.AssetKey, TableView], hint: str
    ) -> None:
        """Audit publications again whose checks read other versions of tables than readers would get.

        Args:
            publications: The publications.
            views: The tables that checks read, at the versions that readers would get.
            hint: What each reason ends with.

        Raises:
            PublishRefusedError: A check refuses a publication.
        """
        # Tables of the same publication are committed as they were audited; `views` names their staged versions.
        audited = {publication.candidate: publication.pinned for publication in publications}
        for asset in views.keys() - audited.keys():
            table = self.run.lance.table(asset, describe_asset(self.run.context, asset)[0])
            audited[asset] = PinnedTable(table=table, version=views[asset].version)
        for publication in publications:
            self.run.refuse(
                [publication], [reason + hint for reason in self._reasons_with_tables(publication, audited)]
            )

    def _reasons_with_tables(self, publication: Publication, named: Mapping[dg.AssetKey, PinnedTable]) -> list[str]:
        """Evaluate checks again that read other versions of tables than readers would get; return the reasons.

        Args:
            publication: The publication.
            named: The other tables, at the versions that the commit would name, or that the channel names.
        """
        # A rollback, and what an interrupted publication has merged, is not audited on other tables again.
        if (
            is_rollback(publication)
            or not publication.sources
            or (publication.landed is not None and publication.planned is None)
        ):
            return []
        version, reasons = publication.planned or publication.sources[-1], []
        for key, bound in check_values(self.run.context, [publication.candidate]).items():
            pinned = self.pinned_by_check.get(key, {})
            moved = {
                asset: named[asset]
                for asset in bound.check.reads
                # A later version of `main` has rows of other programs that readers of the commit do not get.
                if asset in named and not (asset in pinned and pinned[asset].version.id == named[asset].version.id)
            }
            if moved and key in self.checks:
                others = {**pinned, **moved}
                keys = self._partitions(publication, bound)
                outcome = self._outcome(publication, bound, key, version=version, keys=keys, others=others)
                reasons += [_failed(publication, key, outcome, version)] if outcome.blocks else []
        return reasons

    def unaudited(self, publication: Publication, until: Version | None) -> list[Version]:
        """Return the commits of `main` after the tag's version that the checks of this publisher did not let pass.

        These are the commits of other programs, and the commits of publishers of other tags that were made without
        these checks or in spite of them.

        Args:
            publication: The table, with the tag as it was read.
            until: The version to stop at; None for the head of `main`.
        """
        tag = publication.previous
        # Another program may have put the tag on a branch; then every commit of `main` is examined.
        after = tag.ref if tag is not None and tag.branch == MAIN else None
        versions = publication.table.log(until or MAIN, after=after)
        return [version for version in versions if _is_foreign(version) or self._was_let_through(publication, version)]

    def _was_let_through(self, publication: Publication, version: Version) -> bool:
        """Return whether a publisher put a version on `main` without the approval of all checks of this publisher."""
        version = audited_behind(publication.table, version)
        checks = [check for check in self.checks if check.asset_key == publication.candidate]
        if not checks or version.operation in WITHOUT_ROWS or not version.parents:
            return False
        record = recorded_audit(version)
        if record.get("ignored"):
            return True
        missing = self._missing(publication, record)
        subject = Subject.of(publication.candidate, version)
        return bool(missing) and (
            isinstance(subject, str) or bool(self._audit_of(subject, publication.table).reasons_against(missing))
        )

    def _audit_of(self, subject: Subject, table: LanceTable) -> VersionAudit:
        verdicts = self.run.record.verdicts(table, subject.commit_id, subject.table_id)
        return VersionAudit(subject=subject, log=self.run.log, chain=self.run.chain, verdicts=verdicts)

    def _missing(self, publication: Publication, record: Mapping[str, Any]) -> list[dg.AssetCheckKey]:
        """Return the checks of this publisher that are not among those that a recorded audit let pass."""
        passed = {*record.get("checks", ()), *(record.get(_ACCEPTED, ()) if self.run.accept_stale else ())}
        return [check for check in self.checks if check.asset_key == publication.candidate and check.name not in passed]

    def drop(self, publications: Iterable[Publication]) -> None:
        """Delete the preview branches of publications."""
        for publication in publications:
            if publication.planned is not None:
                drop_branch(publication.table, publication.planned.branch)

    def _is_needed(self, publication: Publication, *, alone: bool) -> bool:
        if not publication.sources or is_rollback(publication):
            return False
        if len(publication.sources) > 1 or self._has_unseen_rows(publication, publication.sources[0]):
            return True
        # A single table is merged at once, as a fast-forward that is refused when `main` moved. With several tables,
        # the first ones would be on `main` when a later one is refused.
        if alone:
            return False
        # The usual case takes no request: `main` was still the version that the branch was forked from when this step
        # opened the table. What moves it from then on is found when the tables are staged.
        if _fork_of(publication.table, publication.sources[0]) == publication.table.branches.opened_ref():
            return False
        return bool(publication.table.preview_merge(publication.sources[0], mode="ff-only").conflicts)

    def _others_moved(self, publication: Publication, all_of: Sequence[Publication]) -> bool:
        """Return whether a check of a source read another table at another version than readers would get with it."""
        if (
            publication.planned is not None
            or publication.landed is not None
            or len(publication.sources) != 1
            or is_rollback(publication)
        ):
            return False
        checks = {
            key: bound
            for key, bound in check_values(self.run.context, [publication.candidate]).items()
            if bound.check.reads and key in self.checks
        }
        # Most checks read their own table only; the event log is not read for them.
        subject = Subject.of(publication.candidate, publication.sources[0]) if checks else ""
        if isinstance(subject, str):
            return False
        others, audit = _others(publication, all_of), self._audit_of(subject, publication.table)
        for key, bound in checks.items():
            versions = audit.tables_read(key)
            for asset in bound.check.reads:
                pinned = others.get(asset) or open_other(self.run.lance, self.run.context, asset)
                self.pinned_by_check.setdefault(key, {})[asset] = pinned
                # An evaluation that did not record what it read is taken to have read another version.
                if versions is None or versions.get(asset.to_user_string()) != md.version_mark(pinned.version):
                    return True
        return False

    def _has_unseen_rows(self, publication: Publication, source: Version) -> bool:
        """Return whether `main` has foreign rows that a branch's checks left out, as they saw only its partitions."""
        # The checks of a run without partitions saw the whole table.
        if md.PARTITION_KEYS not in source.properties:
            return False
        fork = _fork_of(publication.table, source)
        # The usual case takes one small file: the branch was forked from the version that the tag names.
        if fork is not None and publication.previous is not None and fork == publication.previous.ref:
            return False
        return bool(self.unaudited(publication, None))

    def _evaluate(
        self,
        publication: Publication,
        version: Version,
        *,
        foreign: Sequence[Version],
        others: Mapping[dg.AssetKey, PinnedTable],
    ) -> tuple[list[str], dict[str, object]]:
        tag = publication.previous
        # Foreign commits are on `main` already, so what they change shows in comparison with the tag's version only.
        before = publication.table.at(f"branch:{tag.ref}") if foreign and tag is not None else None
        bound = {
            key: replace(of, seen=before) for key, of in check_values(self.run.context, [publication.candidate]).items()
        }
        reasons: list[str] = []
        passed: list[str] = []
        stale: list[str] = []
        for key in [check for check in self.checks if check.asset_key == publication.candidate]:
            if key not in bound:
                stale.append(key.name)
                continue
            scope = (
                self._every_partition(publication.table, version, bound[key])
                if foreign
                else self._partitions(publication, bound[key])
            )
            outcome = self._outcome(publication, bound[key], key, version=version, keys=scope, others=others)
            if outcome.blocks:
                reasons.append(_failed(publication, key, outcome, version))
            else:
                passed.append(key.name)
        # Compaction and settings change no row, so what a plain check saw on the run branch holds for the merge.
        if stale and not _has_new_rows(publication):
            passed, stale = [*passed, *stale], []
        if not self.run.accept_stale:
            reasons += [_stale_reason(publication, name, version) for name in stale]
        return reasons, {
            "version": str(version),
            "main": str(publication.base or version),
            "checks": passed,
            **({"foreign commits": [f"{of}: {of.operation} by {of.committer}" for of in foreign]} if foreign else {}),
            **({_ACCEPTED: stale} if stale and self.run.accept_stale else {}),
        }

    def _partitions(self, publication: Publication, bound: BoundCheck) -> tuple[str, ...]:
        """Return the partitions that the sources wrote; empty when one of them wrote without partitions.

        It is empty too when the keys of a source mean other rows by now, so that the check sees the whole table.
        """
        partitioning = bound.described(self.run.context).partitioning
        of_sources = [partitions_of(publication.table, source, partitioning) for source in publication.sources]
        return tuple(sorted({key for keys in of_sources for key in keys})) if all(of_sources) else ()

    def _every_partition(self, table: LanceTable, version: Version, bound: BoundCheck) -> tuple[str, ...]:
        """Return the partitions of a check whose table has foreign rows, which may be in any; none for the whole table.

        They are those with rows now, or at the tag: another program may have deleted all rows of a partition.
        """
        if bound.check.row_wise or bound.check.scope == "table":
            return ()
        pinned = [
            PinnedTable(table=table, version=of_table) for of_table in (version, bound.seen) if of_table is not None
        ]
        return partitions_with_rows(self.run.context, bound, pinned)

    def _outcome(
        self,
        publication: Publication,
        bound: BoundCheck,
        key: dg.AssetCheckKey,
        *,
        version: Version,
        keys: Sequence[str],
        others: Mapping[dg.AssetKey, PinnedTable],
    ) -> CheckOutcome:
        """Evaluate one check, record the evaluation, and keep what it read."""
        pinned_tables = {asset: others[asset] for asset in bound.check.reads if asset in others}
        for asset in bound.check.reads:
            # A table that is missing is reported by the evaluation.
            with suppress(NotFoundError):
                pinned_tables.setdefault(
                    asset, others.get(asset) or open_other(self.run.lance, self.run.context, asset)
                )
        self.pinned_by_check[key] = pinned_tables
        pinned = PinnedTable(table=publication.table, version=version)
        outcome = evaluate_check(
            bound, pinned, lance=self.run.lance, context=self.run.context, partition_keys=keys, others=pinned_tables
        )
        self._report(key, bound, outcome, version)
        return outcome

    def _report(self, key: dg.AssetCheckKey, bound: BoundCheck, outcome: CheckOutcome, version: Version) -> None:
        """Record an evaluation in the event log, so that the check's page shows why a publication was refused."""
        # The event belongs to no run: the gate reads what the runs of a branch evaluated, and this is about the merge.
        self.run.context.instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key.asset_key,
                check_name=key.name,
                passed=outcome.passed,
                severity=outcome.severity,
                blocking=True,
                description=f"on {version}, before publishing: {outcome.description or bound.check.description}",
                metadata={
                    **outcome.counts,
                    **md.version_metadata(version),
                    md.PUBLISHED_BY: self.run.chain.run_id or "",
                },
            )
        )


def _others(publication: Publication, all_of: Sequence[Publication]) -> dict[dg.AssetKey, PinnedTable]:
    """Return the other tables of a step at the versions that their publications would publish."""
    return {
        sibling.candidate: sibling.pinned
        for sibling in all_of
        if sibling.audited and sibling.candidate != publication.candidate
    }


def recorded_audit(version: Version) -> dict[str, Any]:
    """Return the record of the audit of the preview that a version of `main` was published from; empty without one."""
    with suppress(ValueError):
        record = parsed_json(version.properties.get(md.AUDITED_AGAIN, "{}"))
        if isinstance(record, dict) and all(are_strings(record.get(key, [])) for key in _LISTS):
            return record
    # Another program wrote it, so it says nothing about what let the version pass.
    return {"ignored": ["unreadable record"]}


def _has_new_rows(publication: Publication) -> bool:
    """Return whether the planned merge may have other rows than the only branch that it merges."""
    if publication.base is None or len(publication.sources) != 1:
        return True
    fork = publication.table.branches.merge_base(publication.sources[0], publication.base)
    return any(version.operation not in WITHOUT_ROWS for version in publication.table.log(publication.base, after=fork))


def drop_stale_previews(
    table: LanceTable, chain: RunChain, instance: dg.DagsterInstance, prefix: str = PREVIEWS
) -> None:
    """Delete previews that a killed publisher left behind; with the prefix `READS`, those that runs of a backfill read.

    Such a branch belongs to the run that its metadata names. It is stale when that is a run of the chain or a finished
    run.
    """
    for branch in table.branches.list(f"{prefix}*").values():
        run_id = branch.metadata.get(md.PUBLISHED_BY)
        # A preview without this metadata was made by a person.
        if run_id is None:
            continue
        run = instance.get_run_by_id(run_id) if run_id else None
        # A run that this instance does not know may be at work in another deployment over the same tables.
        if run_id in chain.run_ids or (run is not None and run.is_finished):
            drop_branch(table, branch.name)


def _is_foreign(version: Version) -> bool:
    by_publisher = md.RUN_ID in version.properties or md.PUBLISHED_BY in version.properties
    # The first version of a table is empty when the IO manager made it.
    created = not version.parents and version.rows == 0
    return not (by_publisher or created or version.operation in WITHOUT_ROWS)


def _fork_of(table: LanceTable, source: Version) -> str | None:
    """Return the version of `main` that a branch descends from; None when a branch in between was deleted."""
    name = source.branch
    # A re-execution forks its branch from that of its parent run, so `main` may be several branches away.
    while True:
        try:
            branch = table.branches.recall(name)
        except RefNotFoundError:
            return None
        if branch.parent_branch == MAIN:
            return branch.parent
        name = branch.parent_branch


def _with_record(publication: Publication, record: Mapping[str, object], reasons: Sequence[str]) -> Publication:
    # The record is published only when the config ignores the reasons; otherwise nothing is published.
    full = {**record, **({"ignored": list(reasons)} if reasons else {})}
    return replace(publication, about={**publication.about, md.AUDITED_AGAIN: full})


def _stale_reason(publication: Publication, name: str, version: Version) -> str:
    return (
        f"{publication.name}: blocking check {name!r} did not see {_described(publication, version)}, and a plain "
        "@asset_check cannot be evaluated again: make it a @table_check, or run the job again so that it starts from "
        'the newest main, or give build_publisher stale_checks="accept"'
    )


def _failed(publication: Publication, key: dg.AssetCheckKey, outcome: CheckOutcome, version: Version) -> str:
    why = f"failed on {_described(publication, version)}"
    return f"{publication.name}: blocking check {key.name!r} {why}: {outcome.description}"


def _described(publication: Publication, version: Version) -> str:
    if version.branch == MAIN or publication.base is None:
        return str(version)
    return f"the merge of {', '.join(map(str, publication.sources))} into {publication.base}"
