"""Withdraw what was published: roll tables back to older versions.

A rollback that only moved the channel back would not last: the withdrawn rows are still on `main`, and the next
publication moves the channel forward over them. A person therefore chooses one of two kinds:

- `revert`: a commit restores the content of the older version on `main`, and the channel moves to that commit. Later
  merges do not bring the withdrawn rows back, not even those of branches that were forked before the rollback,
  because `main` has both the rows and their removal.
- `hold`: the channel moves back and is held there. `main` is left as it is, and nothing is published until someone
  releases the channel.

The older version is restored on a branch of its own, which is committed like any other candidate. So a version that
lands on `main` in between is not withdrawn unnoticed, and a protected `main` can be rolled back.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from lance_dagster.errors import ConflictError, RefNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.versions import Version
from lance_dagster.merge.preview import PREVIEW_OF
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import strings_on_main
from lance_dagster.plugin.publish.publication import Publication
from lance_dagster.plugin.publish.record_view import RecordView
from lance_dagster.plugin.run_branch import RunChain, preview_branch
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.publish.exact_versions import VersionToPublish
from lance_dagster.table import LanceTable

_MOST_WITHDRAWN = 20


def is_rollback(publication: Publication) -> bool:
    """Return whether a person chose a version of `main` that is older than the version that the tag names.

    So is the version that the tag names itself, after a rollback that held the channel: `main` has newer rows, which
    were taken back from readers alone.
    """
    tag, version = publication.previous, publication.landed
    if not publication.chosen or tag is None or version is None:
        return False
    is_withheld = tag.branch == version.branch == MAIN and version.number == tag.version < publication.withdrawn
    return is_withheld or is_older(version, tag)


def is_older(version: Version, tag: Tag) -> bool:
    """Return whether a version of `main` is older than the version that a tag names."""
    return version.branch == tag.branch == MAIN and version.number < tag.version


def withdrawn_by(publication: Publication) -> list[str]:
    """Return the versions of `main` that a rollback withdraws, newest first, each with its message."""
    target = publication.version
    versions = publication.table.log(MAIN, after=target, limit=_MOST_WITHDRAWN)
    return [f"{version}: {version.message or version.operation}" for version in versions]


def about_rollback(publication: Publication, withdrawn: list[str], *, kind: str, partitioned: bool) -> Publication:
    """Return a publication with the metadata of a rollback for the promoted node's page.

    Args:
        publication: The table.
        withdrawn: What `withdrawn_by` returned.
        kind: The kind of the rollback.
        partitioned: Whether the promoted node has partitions, all of which the rollback moves.
    """
    about: dict[str, object] = {
        "lance/rollback": kind,
        md.ROLLED_BACK_TO: str(publication.version),
        "lance/withdrawn": withdrawn,
    }
    if partitioned:
        about[md.SCOPE] = "all partitions: a tag names one version of the whole table"
    return replace(publication, about=about)


def restored_version(
    publication: Publication, chain: RunChain, about: Mapping[str, str], record: RecordView
) -> VersionToPublish:
    """Restore the chosen version on a branch that is forked from the newest `main`; return what is to be committed.

    Args:
        publication: The table, with the chosen version.
        chain: The run that publishes.
        about: Reason, person and run.
        record: The record of the lake.

    Raises:
        ConflictError: The restored version has another number of rows; nothing was changed.
    """
    table, target, name = publication.table, publication.version, preview_branch(chain, "rollback")
    # A killed attempt may have left the branch, forked from an older `main`.
    drop_branch(table, name)
    created_for = {md.PUBLISHED_BY: chain.run_id or "", PREVIEW_OF: str(target)}
    table.branches.create(name, at=table.head(MAIN), metadata=created_for)
    message = f"roll {publication.name} back to {target}"
    message += f": {about[md.REASON]}" if about.get(md.REASON) else ""
    properties = {**about, md.ROLLED_BACK_TO: str(target), md.PUBLISHED_BY: chain.run_id or ""}
    restored = table.restore(target, branch=name, message=message, properties=properties)
    # The rows are compared while the version is on its own branch: after a mismatch nothing has to be undone.
    if restored.rows != target.rows:
        raise ConflictError(f"{publication.name}: {target} has {target.rows} rows, but {restored} has {restored.rows}")
    marks = [mark for version in table.log(MAIN, after=target) for mark in strings_on_main(version, md.WRITES)]
    writes = [write for mark in marks if (write := record.repository.record.write(mark)) is not None]
    withdrawn = NumberSet.of(write.number for write in writes if record.is_published(write))
    return VersionToPublish(version=restored, message=message, properties=properties, withdraws=withdrawn)


def moved_meanwhile(publication: Publication, head: Version) -> ConflictError:
    """Return the error for a rollback during which `main` moved."""
    return ConflictError(
        f"{publication.name}: main moved beyond {head} while it was rolled back to {publication.version}, and nothing "
        "was changed; look at what landed there, and roll back again"
    )


def commit_message(publications: Sequence[Publication], about: Mapping[str, str]) -> str:
    """Return the message of the commit of a repository that publishes tables, or rolls some of them back."""
    back = [publication for publication in publications if is_rollback(publication)]
    if not back:
        return f"publish {', '.join(publication.name for publication in publications)}"
    message = "; ".join(
        [
            "roll back " + ", ".join(sorted(f"{publication.name} to {publication.version}" for publication in back)),
            *_forward(publications),
        ]
    )
    return f"{message}: {about[md.REASON]}" if about.get(md.REASON) else message


def _forward(publications: Sequence[Publication]) -> list[str]:
    """Return the part of the message about tables that are published beside a rollback, if any of them moves."""
    moved = [
        publication
        for publication in publications
        if not is_rollback(publication)
        and (publication.previous is None or not is_at(publication, publication.previous))
    ]
    return [f"publish {', '.join(publication.name for publication in moved)}"] if moved else []


def is_at(publication: Publication, tag: Tag) -> bool:
    """Return whether a tag names the version of a publication already."""
    return (publication.version.branch, publication.version.number) == (tag.branch, tag.version)


def audited_behind(table: LanceTable, version: Version) -> Version:
    """Return the version whose audit counts for a version: for a rollback on `main`, the version that it restored."""
    # A rollback may have restored the commit of another rollback.
    while restored := version.properties.get(md.ROLLED_BACK_TO):
        version = table.at(restored)
    return version


def drop_branch(table: LanceTable, name: str) -> None:
    """Delete a preview branch, if it exists."""
    with suppress(RefNotFoundError):
        table.branches.delete(name)
