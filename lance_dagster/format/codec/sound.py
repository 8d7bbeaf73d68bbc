"""Look at every part of a manifest before another program reads it.

This package leaves encoded what it does not need. pylance decodes everything, and damage makes it crash, or count to
2^64. So before it opens a version, everything in there is looked at here, once.
"""

from collections.abc import Iterable

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec.rows import count_row_ids, count_versions
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.schema import arrow_from_fields


def check_sound(manifest: Manifest, path: str) -> None:
    """Refuse a manifest that cannot be read whole; `path` is for messages.

    Raises:
        CorruptFileError: Something in it makes no sense.
        UnsupportedFeatureError: It uses something this package does not know.
    """
    bases = {base.id for base in manifest.base_paths}

    def check(fragments: Iterable[Fragment]) -> None:
        arrow_from_fields(manifest.fields, manifest.schema_metadata, path)
        for fragment in fragments:
            problem = _base_problem(fragment, bases) or (manifest.stable_row_ids and _lineage_problem(fragment, path))
            if problem:
                raise CorruptFileError(path, f"fragment {fragment.id} {problem}")

    manifest.fragments.check_once(check)


def _base_problem(fragment: Fragment, bases: set[int]) -> str | None:
    named = {file.base_id for file in fragment.files}
    if fragment.deletion is not None:
        named.add(fragment.deletion.base_id)
    unknown = sorted(base for base in named if base is not None and base not in bases)
    return f"names a file under a base path {unknown[0]} that there is not" if unknown else None


def _lineage_problem(fragment: Fragment, path: str) -> str | None:
    if fragment.row_ids is None:
        return "has no row ids"
    where = f"{path}, fragment {fragment.id},"
    found = {"row ids": count_row_ids(fragment.row_ids, where)}
    for what, sequence in (("creation versions", fragment.created_at), ("update versions", fragment.updated_at)):
        if sequence is not None:
            found[what] = count_versions(sequence, where)
    wrong = next((what for what, count in found.items() if count != fragment.physical_rows), None)
    return f"has {found[wrong]} {wrong} for {fragment.physical_rows} rows" if wrong else None
