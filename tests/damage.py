"""Ways to damage a table, for tests of what must detect damage: each changes bytes that no program ever changes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lance_dagster import LanceTable, Transaction
from lance_dagster.format import layout
from lance_dagster.format.codec import (
    decode_indices,
    decode_manifest_file,
    encode_indices,
    encode_manifest_file,
    encode_transaction,
)
from lance_dagster.format.model import DataFile, Field, Fragment, Fragments, IndexMetadata, Manifest

Damage = Callable[[LanceTable], object]


def manifest_file(table: LanceTable, number: int, branch: str = "main") -> Path:
    """The file of a version."""
    return Path(table.uri) / layout.branch_root(branch) / layout.VERSIONS / layout.manifest_name(number)


def newest_file(table: LanceTable, branch: str = "main") -> Path:
    """The file of a branch's newest version."""
    return manifest_file(table, table.head(branch).number, branch)


def in_manifest(change: Callable[[Manifest], Manifest], branch: str = "main") -> Damage:
    """Write the newest manifest of a branch anew."""

    def damage(table: LanceTable) -> None:
        path = newest_file(table, branch)
        manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
        if transaction is None:
            raise AssertionError(f"{path} holds no transaction")
        path.write_bytes(encode_manifest_file(change(manifest), encode_transaction(transaction)))

    return damage


def in_transaction(change: Callable[[Transaction], Transaction]) -> Damage:
    """Write the newest manifest of main anew with another transaction."""

    def damage(table: LanceTable) -> None:
        path = newest_file(table)
        manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
        if transaction is None:
            raise AssertionError(f"{path} holds no transaction")
        path.write_bytes(encode_manifest_file(manifest, encode_transaction(change(transaction))))

    return damage


def in_fragments(change: Callable[[Sequence[Fragment]], Sequence[Fragment]]) -> Damage:
    """Write the newest manifest of main with other fragments."""
    return in_manifest(lambda manifest: replace(manifest, fragments=Fragments(change(list(manifest.fragments)))))


def in_fragment(change: Callable[[Fragment], Fragment]) -> Damage:
    """Write the newest manifest of main with another first fragment."""
    return in_fragments(lambda fragments: [change(fragments[0]), *fragments[1:]])


def in_file(change: Callable[[DataFile], DataFile]) -> Damage:
    """Write the newest manifest of main with another first data file."""
    return in_fragment(lambda fragment: replace(fragment, files=(change(fragment.files[0]), *fragment.files[1:])))


def in_deleted(change: Callable[[Fragment], Fragment]) -> Damage:
    """Write the newest manifest of main with another fragment in the place of each that has deletions."""
    return in_fragments(lambda found: [change(fragment) if fragment.deletion else fragment for fragment in found])


def in_fields(change: Callable[[Sequence[Field]], Sequence[Field]]) -> Damage:
    """Write the newest manifest of main with other fields."""
    return in_manifest(lambda manifest: replace(manifest, fields=tuple(change(manifest.fields))))


def in_indices(change: Callable[[Sequence[IndexMetadata]], Sequence[IndexMetadata]]) -> Damage:
    """Write the newest manifest of main with other indices."""

    def changed(manifest: Manifest) -> Manifest:
        indices = decode_indices(manifest.index_section, "the test's")
        return replace(manifest, index_section=encode_indices(change(indices)))

    return in_manifest(changed)


def only_file(table: LanceTable, pattern: str) -> Path:
    """The first file below the table whose path matches."""
    return min(path for path in Path(table.uri).glob(pattern) if path.is_file())


def removed(pattern: str) -> Damage:
    """Delete the first file whose path matches."""
    return lambda table: only_file(table, pattern).unlink()


def written(pattern: str, content: bytes) -> Damage:
    """Write other content into the first file whose path matches."""
    return lambda table: only_file(table, pattern).write_bytes(content)


def cut(pattern: str) -> Damage:
    """Remove the second half of the first file whose path matches."""

    def damage(table: LanceTable) -> None:
        path = only_file(table, pattern)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


def scribbled(pattern: str) -> Damage:
    """Overwrite the beginning of the first file that fits, leaving its length and its end as they were."""

    def damage(table: LanceTable) -> None:
        path = only_file(table, pattern)
        data = path.read_bytes()
        length = len(data) // 4
        path.write_bytes(b"\xff" * length + data[length:])

    return damage
