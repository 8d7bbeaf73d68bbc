"""`table.config`: the table config that Lance programs read, and the metadata of the table and of its schema."""

from collections.abc import Mapping

from lance_dagster.edit import column_edits
from lance_dagster.edit.column_edits import map_update
from lance_dagster.edit.write import CommitInfo
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import MERGE_RECORD_PREFIXES, UpdateConfig
from lance_dagster.gc.retention import check_settings
from lance_dagster.history.context import Properties, Ref, TableContext
from lance_dagster.history.versions import Version

Changes = Mapping[str, str | None]
"""New values by key; None removes a key."""


class Config:
    """The settings and the metadata of a table, as `table.config`.

    Every change makes one version. `replace` removes the keys that are not given; without it they stay.
    """

    def __init__(self, context: TableContext) -> None:
        """Wrap the context of a table."""
        self._context = context

    def get(self, ref: Ref = MAIN) -> dict[str, str]:
        """Return the table config of a version, including the retention rules stored there."""
        # A copy: the manifest is cached and shared.
        return dict(self._context.recall(ref).manifest.config)

    def set(
        self,
        settings: Changes,
        *,
        replace: bool = False,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Update the table config, with keys such as `lance.auto_cleanup.interval`.

        Args:
            settings: New values by key; a value of None removes a key.
            replace: Whether keys that are not given are removed.
            branch: The branch to commit to.
            message: The commit message.
            properties: Stored with the transaction.

        Raises:
            InvalidInputError: A key starts with `lance_dagster.` and is unknown, or the retention rules are invalid.
        """
        update = UpdateConfig(config=map_update("settings", settings, replace=replace))
        check_settings(settings)
        return self._committed(update, CommitInfo.of(branch, message, properties))

    def table_metadata(self, ref: Ref = MAIN) -> dict[str, str]:
        """Return the table metadata of a version, without the entries that merges recorded."""
        # Merges are recorded in table metadata, because pylance preserves it when it commits on top.
        metadata = self._context.recall(ref).manifest.table_metadata
        return {key: value for key, value in metadata.items() if not key.startswith(MERGE_RECORD_PREFIXES)}

    def set_table_metadata(
        self,
        metadata: Changes,
        *,
        replace: bool = False,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Update the table metadata; arguments as for `set`.

        Entries that merges recorded stay, even with `replace`.

        Raises:
            InvalidInputError: A key has a prefix that is reserved for merges.
        """
        update = map_update("metadata", metadata, replace=replace)
        # A changed merge record would let a later merge start from a wrong merge base.
        reserved = sorted(key for key in metadata if key.startswith(MERGE_RECORD_PREFIXES))
        if reserved:
            raise InvalidInputError(f"these keys are reserved for the records of merges: {', '.join(reserved)}")
        return self._committed(UpdateConfig(table_metadata=update), CommitInfo.of(branch, message, properties))

    def set_schema_metadata(
        self,
        metadata: Changes,
        *,
        replace: bool = False,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Update the schema metadata, which Arrow schemas carry; arguments as for `set`."""
        update = UpdateConfig(schema_metadata=map_update("metadata", metadata, replace=replace))
        return self._committed(update, CommitInfo.of(branch, message, properties))

    def _committed(self, update: UpdateConfig, info: CommitInfo) -> Version:
        return self._context.versions.describe(column_edits.describe(self._context, update, info))
