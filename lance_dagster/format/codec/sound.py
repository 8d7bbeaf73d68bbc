"""Look at every part of a manifest before another program reads it.

This package leaves encoded what it does not need. pylance decodes everything, and damage makes it crash, or count to
2^64. So before it opens a version, everything in there is looked at here, once, and as messages: a version may have
tens of thousands of fragments.
"""

from collections.abc import Callable

from lance_dagster.errors import CorruptFileError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.fragments import checked_message
from lance_dagster.format.codec.rows import count_row_ids, count_versions
from lance_dagster.format.model import Fragments, Manifest
from lance_dagster.format.schema import arrow_from_fields

_KEPT_COUNTS = 1000


def check_sound(manifest: Manifest, path: str) -> None:
    """Refuse a manifest that cannot be read whole; `path` is for messages.

    Raises:
        CorruptFileError: Something in it makes no sense.
        UnsupportedFeatureError: It uses something this package does not know.
    """
    bases = {base.id for base in manifest.base_paths}
    versions = _Counts(path)
    stable = manifest.stable_row_ids

    def check(fragments: Fragments) -> None:
        arrow_from_fields(manifest.fields, manifest.schema_metadata, path)
        for item in fragments.items:
            message = checked_message(item, path)
            problem = _base_problem(message, bases)
            if problem is None and stable:
                problem = _lineage_problem(message, versions)
            if problem is not None:
                raise CorruptFileError(path, f"fragment {message.id} {problem}")

    manifest.fragments.check_once(check)


class _Counts:
    """How many rows sequences are for. Those of versions are the same for most fragments, so they are kept."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._versions: dict[bytes, int] = {}

    def of_versions(self, sequence: bytes) -> int:
        found = self._versions.get(sequence)
        if found is None:
            found = count_versions(sequence, self.path)
            if len(self._versions) < _KEPT_COUNTS:
                self._versions[sequence] = found
        return found

    def of_row_ids(self, sequence: bytes) -> int:
        return count_row_ids(sequence, self.path)


def _base_problem(message: wire.DataFragment, bases: set[int]) -> str | None:
    named = [file.base_id for file in message.files if file.HasField("base_id")]
    if message.deletion_file.HasField("base_id"):
        named.append(message.deletion_file.base_id)
    unknown = next((base for base in named if base not in bases), None)
    return None if unknown is None else f"names a file under a base path {unknown} that there is not"


def _lineage_problem(message: wire.DataFragment, counts: _Counts) -> str | None:
    if not message.HasField("inline_row_ids"):
        return "has no row ids"
    counters: tuple[tuple[str, bytes, Callable[[bytes], int]], ...] = (
        ("row ids", message.inline_row_ids, counts.of_row_ids),
        ("creation versions", message.inline_created_at_versions, counts.of_versions),
        ("update versions", message.inline_last_updated_at_versions, counts.of_versions),
    )
    for what, sequence, count in counters:
        if sequence and count(sequence) != message.physical_rows:
            return f"has {count(sequence)} {what} for {message.physical_rows} rows"
    return None
