"""Build the materialization of a promoted node, whose metadata describes the version that readers see from now on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.commit_properties import runs_of
from lance_dagster.plugin.publish.publication import Publication
from lance_dagster.plugin.version_report import change_entries


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
    schema = publication.table.schema(version)
    # A run may have been deleted from the instance, or belong to another one.
    runs = [run for run in runs_of(version) if has_run(run)]
    since = {publication.previous.ref: publication.previous.ref} if publication.previous else {}
    about = {
        "lance/from": publication.previous.ref if publication.previous else "",
        md.MOVED_TO: str(version),
        "lance/merged": ", ".join(map(str, publication.sources)),
        **moved,
        **publication.about,
    }
    metadata: dict[str, Any] = {
        md.ROW_COUNT: version.rows,
        md.COLUMN_SCHEMA: md.column_schema(schema),
        # Each column comes from the column of the same name in the candidate.
        md.COLUMN_LINEAGE: dg.TableColumnLineage(
            {name: [dg.TableColumnDep(publication.candidate, name)] for name in schema.names}
        ),
        md.URI: publication.table.uri,
        **md.version_metadata(version),
        md.CANDIDATE: dg.MetadataValue.asset(publication.candidate),
        # Dagster shows the link with the short form of the id.
        **({md.PUBLISHED_RUN: dg.MetadataValue.dagster_run(runs[0])} if len(runs) == 1 else {}),
        **change_entries(publication.table, version, since),
        **{key: value for key, value in about.items() if value},
    }
    reaudit = publication.about.get(md.AUDITED_AGAIN)
    # Reasons that were ignored when a merge was audited again are only in the record of that audit.
    reasons = [*ignored, *(reaudit.get("ignored", ()) if isinstance(reaudit, dict) else ())]
    if reasons:
        metadata["lance/ignored"] = list(dict.fromkeys(reasons))
    return dg.MaterializeResult(
        asset_key=publication.promoted,
        metadata=metadata,
        # The uuid of the transaction, as for the candidate: readers become stale when the tag moves.
        data_version=dg.DataVersion(version.transaction),
    )


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
