"""Build the materialization of a promoted node, whose metadata describes the version that readers see from now on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import runs_of
from lance_dagster.plugin.publish.publication import Publication
from lance_dagster.plugin.version_report import change_entries

# What a person looks for on the page of a promoted node, in this order; then everything else, and at the end what names
# the version for programs.
_FIRST = (
    *(md.CHANGES, md.ROWS_ADDED, md.ROWS_REMOVED, md.ROWS_CHANGED, md.REASON, md.WHO, "lance/rollback"),
    *("lance/from", md.MOVED_TO, md.PUBLISHED_RUN),
)
_LAST = (
    *(md.URI, md.BRANCH, md.VERSION, md.TRANSACTION, md.REPOSITORY_COMMIT, md.CHANNEL_ENTRY),
    *(md.COLUMN_SCHEMA, md.COLUMN_LINEAGE),
)


def promoted_result(
    publication: Publication, moved: Mapping[str, str], ignored: Sequence[str], has_run: Callable[[str], bool]
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Return the result that materializes a promoted node.

    Args:
        publication: The publication, after its tag has moved.
        moved: Metadata of the move, such as the tag, who moved it and why; empty values are left out.
        ignored: The reasons against the publication that the config ignored.
        has_run: Returns whether the instance has the record of a run.
    """
    version = publication.promoted_to or publication.version
    about = {
        "lance/from": publication.previous.ref if publication.previous else "",
        md.MOVED_TO: str(version),
        "lance/merged": ", ".join(map(str, publication.sources)),
        **moved,
        **publication.about,
    }
    metadata: dict[str, Any] = {
        md.ROW_COUNT: version.rows,
        md.COLUMN_SCHEMA: md.column_schema(publication.table.schema(version)),
        md.COLUMN_LINEAGE: _lineage(publication, version),
        md.URI: publication.table.uri,
        **md.version_metadata(version),
        **_links(publication, version, has_run),
        **{key: value for key, value in about.items() if value},
    }
    reaudit = publication.about.get(md.AUDITED_AGAIN)
    # Reasons that were ignored when a merge was audited again are only in the record of that audit.
    reasons = [*ignored, *(reaudit.get("ignored", ()) if isinstance(reaudit, dict) else ())]
    if reasons:
        metadata["lance/ignored"] = list(dict.fromkeys(reasons))
    return dg.MaterializeResult(
        asset_key=publication.promoted,
        metadata=_in_order(metadata),
        # The uuid of the transaction, as for the candidate: readers become stale when the tag moves.
        data_version=dg.DataVersion(version.transaction),
    )


def _in_order(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with `_FIRST` at the beginning and `_LAST` at the end, as far as they are there."""
    middle = [key for key in metadata if key not in _FIRST and key not in _LAST]
    return {key: metadata[key] for key in (*_FIRST, *middle, *_LAST) if key in metadata}


def as_event(
    result: dg.MaterializeResult,  # type: ignore[type-arg]
    version: Version,
    partition: str | None,
) -> dg.AssetMaterialization:
    """Return the event that a result stands for: Dagster takes no results of nodes that are not selected in the run.

    Args:
        result: The result.
        version: The version that it is about.
        partition: The partition of the node, if it has partitions.
    """
    return dg.AssetMaterialization(
        # The result of a promoted node has both.
        asset_key=result.asset_key or "",
        metadata=dict(result.metadata or {}),
        partition=partition,
        tags=md.data_version_tags(version),
    )


def is_reported(publication: Publication, partitions: Sequence[str], instance: dg.DagsterInstance) -> bool:
    """Return whether the newest event of a promoted node names its version, and some partitions have an event each."""
    # A publisher that was killed after it moved the tag left no event.
    event = instance.get_latest_materialization_event(publication.promoted)
    materialization = event.asset_materialization if event else None
    if materialization is None or md.text(materialization.metadata, md.MOVED_TO) != str(publication.promoted_to):
        return False
    return not partitions or set(partitions) <= instance.get_materialized_partitions(publication.promoted)


def _links(publication: Publication, version: Version, has_run: Callable[[str], bool]) -> dict[str, Any]:
    """Return the links from the promoted node's page to where its rows come from: candidate, run and changes."""
    # A run may have been deleted from the instance, or belong to another one.
    runs = [run for run in runs_of(version) if has_run(run)]
    since = {publication.previous.ref: publication.previous.ref} if publication.previous else {}
    return {
        md.CANDIDATE: dg.MetadataValue.asset(publication.candidate),
        # Dagster shows the link with the short form of the id.
        **({md.PUBLISHED_RUN: dg.MetadataValue.dagster_run(runs[0])} if len(runs) == 1 else {}),
        **change_entries(publication.table, version, since),
    }


def _lineage(publication: Publication, version: Version) -> dg.TableColumnLineage:
    """Return the lineage that derives each column from the column of the same name in the candidate."""
    names = publication.table.schema(version).names
    deps = {name: [dg.TableColumnDep(asset_key=publication.candidate, column_name=name)] for name in names}
    return dg.TableColumnLineage(deps_by_column=deps)
