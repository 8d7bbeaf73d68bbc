"""What merges write down in the table metadata of their result: which versions are in it, and which ids are whose.

The key holds the id of a branch, the value the last version of it that was merged and the version that brought it; then
the ids that rows and fields of that branch have here where they are others.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_dagster.changes.row_spaces import (
    Alias,
    decode_aliases,
    decode_fields,
    encode_aliases,
    encode_fields,
)
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import MERGED_PREFIX

NOTHING = 0
"""Stands in a record of rows that came to a version by themselves, without the version they are from."""
_NUMBER = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a merge wrote down about a branch: its last version merged, as which version, and what ids are here.

    `aliases` are those of its rows, `fields` those of its fields where they are others.
    """

    merged: int
    dest: int
    aliases: tuple[Alias, ...] = ()
    fields: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it as it stands in the table metadata."""
        parts = (f"{self.merged}@{self.dest}", encode_aliases(self.aliases), encode_fields(self.fields))
        return " ".join(part for part in parts if part)


def records_of(manifest: Manifest) -> dict[str, Record]:
    """Return by branch id what merges wrote down."""
    found: dict[str, Record] = {}
    for key, text in manifest.table_metadata.items():
        numbers, _, aliases = text.partition(" ")
        merged, _, dest = numbers.partition("@")
        if key.startswith(MERGED_PREFIX) and _NUMBER.fullmatch(merged) and _NUMBER.fullmatch(dest):
            known = tuple(decode_aliases(aliases)), decode_fields(aliases)
            record = Record(merged=int(merged), dest=int(dest), aliases=known[0], fields=known[1])
            found[key.removeprefix(MERGED_PREFIX)] = record
    return found


def alias_records(dest: Manifest, aliases: Mapping[str, Sequence[Alias]]) -> dict[str, str]:
    """Return the table metadata that says what the ids of rows are which came without their version.

    So that a later merge of that version knows them.
    """
    known, found = records_of(dest), {}
    for branch_id, new in aliases.items():
        had = known.get(branch_id, Record(merged=NOTHING, dest=dest.version + 1))
        found[f"{MERGED_PREFIX}{branch_id}"] = str(replace(had, aliases=(*had.aliases, *new)))
    return found
