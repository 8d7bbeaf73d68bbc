"""Decode and encode the parts that manifests and transactions share: fields, base paths, fragments and files.

A part is decoded on its own, so that a fragment can stay encoded until somebody looks at it. Fields of a message that
this package does not know are found and reported by number: what is unknown is refused, never dropped.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found, unused-ignore]  # no stub

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.deletions import ARROW_FILE, BITMAP_FILE
from lance_dagster.format.layout import is_file_name
from lance_dagster.format.model import (
    BasePath,
    DataFile,
    DeletionFile,
    Field,
    FileColumns,
    Fragment,
    Fragments,
    FragmentsSummary,
)


def unknown_fields(message: Message) -> list[str]:
    """Return the names of all unknown fields of a message and of the messages nested in it."""
    stripped: Any = type(message)()
    stripped.CopyFrom(message)
    # A copy is changed here, not the message of the caller.
    stripped.DiscardUnknownFields()
    # Comparing sizes costs a fraction of walking every nested message, and unknown fields are rare.
    return (
        []
        if stripped.ByteSize() == message.ByteSize()
        else list(dict.fromkeys(_unknown_in(message))) or ["an unknown field"]
    )


def _unknown_in(message: Message) -> Iterator[str]:
    unknown: Any = UnknownFieldSet(message)
    yield from (f"{message.DESCRIPTOR.name} field {unknown[index].field_number}" for index in range(len(unknown)))
    for descriptor, value in message.ListFields():
        # Map entries are synthesized messages with two fields, which cannot have unknown ones.
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for nested in [value] if isinstance(value, Message) else value:
            yield from _unknown_in(nested)


def fields_from_wire(messages: Iterable[wire.Field]) -> tuple[Field, ...]:
    """Decode the fields of a schema."""
    return tuple(map(_field_from_wire, messages))


def fields_to_wire(fields: Iterable[Field]) -> list[wire.Field]:
    """Encode the fields of a schema."""
    return list(map(_field_to_wire, fields))


def _field_from_wire(message: wire.Field) -> Field:
    return Field(
        id=message.id,
        name=message.name,
        logical_type=message.logical_type,
        parent_id=message.parent_id,
        nullable=message.nullable,
        metadata=dict(message.metadata),
        extension_name=message.extension_name,
        encoding=message.encoding,
        kind=message.type,
        dictionary=(message.dictionary.offset, message.dictionary.length) if message.HasField("dictionary") else None,
        primary_key=message.unenforced_primary_key,
        primary_key_position=message.unenforced_primary_key_position,
        clustering_key=message.unenforced_clustering_key,
        clustering_key_position=message.unenforced_clustering_key_position,
    )


def _field_to_wire(field: Field) -> wire.Field:
    message = wire.Field(
        id=field.id,
        name=field.name,
        logical_type=field.logical_type,
        parent_id=field.parent_id,
        nullable=field.nullable,
        metadata=dict(field.metadata),
        extension_name=field.extension_name,
        encoding=field.encoding,
        type=field.kind,
        unenforced_primary_key=field.primary_key,
        unenforced_primary_key_position=field.primary_key_position,
        unenforced_clustering_key=field.clustering_key,
        unenforced_clustering_key_position=field.clustering_key_position,
    )
    if field.dictionary is not None:
        message.dictionary.offset, message.dictionary.length = field.dictionary
    return message


def base_paths_from_wire(messages: Iterable[wire.BasePath]) -> tuple[BasePath, ...]:
    """Decode base paths."""
    return tuple(map(_base_path_from_wire, messages))


def base_paths_to_wire(bases: Iterable[BasePath]) -> list[wire.BasePath]:
    """Encode base paths."""
    return [
        wire.BasePath(id=base.id, path=base.path, name=base.name, is_dataset_root=base.is_dataset_root)
        for base in bases
    ]


def _base_path_from_wire(message: wire.BasePath) -> BasePath:
    return BasePath(
        id=message.id,
        path=message.path,
        name=message.name if message.HasField("name") else None,
        is_dataset_root=message.is_dataset_root,
    )


_KEPT_FRAGMENTS, _KEPT_BYTES = 8_192, 2_048
"""The number of fragments kept, and the largest size of a kept fragment in bytes: some 20 MB at most in all."""
_MOST_ROWS = 2**32
"""Row offsets in a fragment have 32 bits."""
_WITH_COLUMNS = 2
"""From this major version on, data files list a column index for each field."""
_KEPT: dict[bytes, Fragment] = {}
"""Fragments by their bytes. Both are immutable, so any number of threads and tables may share them."""
_OUTLINED = attrgetter("id", "physical_rows", "deletion_file")


@dataclass(frozen=True, slots=True)
class ProtobufFragmentDecoder:
    """Decodes the fragments that were read from the file at `path`."""

    path: str

    def decode(self, data: bytes) -> Fragment:
        """Decode one fragment.

        Raises:
            CorruptFileError: The bytes are not a fragment.
            UnsupportedFeatureError: It uses an unknown feature.
        """
        # The versions that a merge compares share most of their fragments, byte for byte. What cannot be decoded is not
        # kept, so that an error names the file at hand.
        if len(data) > _KEPT_BYTES:
            return _fragment_from_wire(validated_message(data, self.path))
        fragment = _KEPT.get(data)
        if fragment is None:
            if len(_KEPT) >= _KEPT_FRAGMENTS:
                _KEPT.clear()
            fragment = _KEPT[data] = _fragment_from_wire(validated_message(data, self.path))
        return fragment

    def same_files(self, first: bytes, second: bytes) -> bool:
        """Return whether two fragments name the same data files, with the same fields, in the same order.

        Raises:
            CorruptFileError: The bytes are not fragments.
        """
        # They are compared as messages: a fragment whose deletion vector alone changed need not become a value for
        # this.
        return bool(_parsed(first, self.path).files == _parsed(second, self.path).files)

    def paths(self, data: bytes) -> list[str]:
        """Return the names of the data files of a fragment.

        Raises:
            CorruptFileError: The bytes are not a fragment.
        """
        return [file.path for file in _parsed(data, self.path).files]

    def files(self, items: Sequence[bytes]) -> Iterator[Sequence[FileColumns]]:
        """Yield the data files of fragments, with their columns.

        Raises:
            CorruptFileError: The bytes are not fragments.
        """
        together = wire.Manifest(fragments=items).SerializeToString()
        try:
            messages = wire.ManifestFiles.FromString(together).fragments
        except DecodeError as error:
            raise CorruptFileError(self.path, f"one of its fragments cannot be parsed: {error}") from error
        columns: dict[tuple[bytes, bytes], Mapping[int, int]] = {}
        for item, message in zip(items, messages, strict=True):
            files: list[FileColumns] = []
            for place, file in enumerate(message.files):
                key = file.fields, file.column_indices
                if key not in columns:
                    described = _parsed(item, self.path).files[place]
                    columns[key] = dict(zip(described.fields, described.column_indices, strict=False))
                files.append((file.path, columns[key]))
            yield files

    def outline(self, items: Sequence[bytes]) -> FragmentsSummary:
        """Summarize fragments: ids, rows, and whether any has deletions.

        Raises:
            CorruptFileError: The bytes are not fragments, two share an id, or one has more deleted rows than rows.
        """
        # One message declares only the fields needed: parsing each fragment by itself is many times slower.
        together = wire.Manifest(fragments=items).SerializeToString()
        try:
            messages = wire.ManifestOutline.FromString(together).fragments
        except DecodeError as error:
            raise CorruptFileError(self.path, f"one of its fragments cannot be parsed: {error}") from error
        ids = []
        rows = 0
        deletions = False
        counted = True
        # The deletion file stays encoded in this message: most fragments have none.
        for number, physical, deletion in map(_OUTLINED, messages):
            ids.append(number)
            rows += physical
            # This comes before anything is allocated for the rows: a few damaged bytes can claim any number of them.
            if physical > _MOST_ROWS:
                raise CorruptFileError(self.path, f"fragment {number} has {physical} rows")
            # Writers before 0.8 left the count out.
            if not physical:
                counted = False
            elif deletion:
                deleted = self._deleted(number, physical, deletion)
                rows -= deleted
                counted = counted and deleted > 0
            deletions = deletions or bool(deletion)
        # The duplicate is searched for only when there is one.
        if len(set(ids)) < len(ids):
            counts = Counter(ids)
            raise CorruptFileError(self.path, f"two of its fragments have the id {max(counts, key=counts.__getitem__)}")
        return FragmentsSummary(ids, rows, deletions, counted)

    def _deleted(self, number: int, physical: int, deletion: bytes) -> int:
        try:
            deleted = wire.DeletionFile.FromString(deletion).num_deleted_rows
        except DecodeError as error:
            raise CorruptFileError(self.path, f"fragment {number} cannot be parsed: {error}") from error
        if deleted > physical:
            raise CorruptFileError(self.path, f"fragment {number} has more rows deleted than it holds")
        return deleted


def validated_message(item: Fragment | bytes, path: str) -> wire.DataFragment:
    """Return a fragment as a validated message; `path` is used in messages.

    Raises:
        CorruptFileError: The bytes are not a fragment, or its content is inconsistent.
        UnsupportedFeatureError: It uses an unknown feature.
    """
    if isinstance(item, Fragment):
        return _fragment_to_wire(item)
    message: Any = _parsed(item, path)  # no stub has `DiscardUnknownFields`
    features = _problems(message)
    message.DiscardUnknownFields()
    # An unchanged size proves that there is no unknown field; only otherwise is the search worth its cost.
    if message.ByteSize() != len(item):
        features += unknown_fields(_parsed(item, path))
    if features:
        raise UnsupportedFeatureError(path, features)
    broken = _contradiction(message)
    if broken is not None:
        raise CorruptFileError(path, f"in fragment {message.id}, {broken}")
    checked: wire.DataFragment = message
    return checked


def _parsed(data: bytes, path: str) -> wire.DataFragment:
    try:
        return wire.DataFragment.FromString(data)
    except DecodeError as error:
        raise CorruptFileError(path, f"one of its fragments cannot be parsed: {error}") from error


def encode_fragments(fragments: Iterable[Fragment]) -> list[bytes]:
    """Encode fragments; items that are still encoded are returned unchanged, unknown content included."""
    items: Sequence[Fragment | bytes] = fragments.items if isinstance(fragments, Fragments) else [*fragments]
    # One pass over the types is enough: a commit encodes a list of very many fragments that are encoded already.
    if set(map(type, items)) == {bytes}:
        return cast("list[bytes]", items)
    return [item if isinstance(item, bytes) else _fragment_to_wire(item).SerializeToString() for item in items]


def encoded(fragments: Iterable[Fragment], path: str) -> Fragments:
    """Encode fragments now: a commit names new fragments in its manifest and twice in its transaction.

    Args:
        fragments: The fragments; `Fragments` that are all encoded are returned as they are.
        path: The file that errors name when the fragments are decoded.
    """
    held = fragments if isinstance(fragments, Fragments) else Fragments(fragments)
    if set(map(type, held.items)) <= {bytes}:
        return held
    return held.held_as(encode_fragments(held), held.decoder or ProtobufFragmentDecoder(path))


def file_from_wire(message: wire.DataFile) -> DataFile:
    """Decode one data file."""
    return DataFile(
        path=message.path,
        fields=tuple(message.fields),
        column_indices=tuple(message.column_indices),
        major=message.file_major_version,
        minor=message.file_minor_version,
        size=message.file_size_bytes,
        base_id=message.base_id if message.HasField("base_id") else None,
    )


def file_to_wire(file: DataFile) -> wire.DataFile:
    """Encode one data file."""
    return wire.DataFile(
        path=file.path,
        fields=file.fields,
        column_indices=file.column_indices,
        file_major_version=file.major,
        file_minor_version=file.minor,
        file_size_bytes=file.size,
        base_id=file.base_id,
    )


def _fragment_from_wire(message: wire.DataFragment) -> Fragment:
    deletion = message.deletion_file if message.HasField("deletion_file") else None
    return Fragment(
        id=message.id,
        files=tuple(file_from_wire(file) for file in message.files),
        physical_rows=message.physical_rows,
        deletion=DeletionFile(
            kind=deletion.file_type,
            read_version=deletion.read_version,
            id=deletion.id,
            deleted_rows=deletion.num_deleted_rows,
            base_id=deletion.base_id if deletion.HasField("base_id") else None,
        )
        if deletion is not None
        else None,
        row_ids=_inline(message, "inline_row_ids"),
        created_at=_inline(message, "inline_created_at_versions"),
        updated_at=_inline(message, "inline_last_updated_at_versions"),
    )


_KINDS = dict(zip(wire.DeletionFile.FileType.values(), wire.DeletionFile.FileType.keys(), strict=True))
"""The names of the kinds of deletion files: looking one up in the generated class takes longer than encoding it."""


def _inline(message: wire.DataFragment, name: Any) -> bytes | None:  # noqa: ANN401  # a literal in the stubs
    data: bytes | None = getattr(message, name) if message.HasField(name) else None
    return data


def _fragment_to_wire(fragment: Fragment) -> wire.DataFragment:
    message = wire.DataFragment(
        id=fragment.id,
        files=[file_to_wire(file) for file in fragment.files],
        physical_rows=fragment.physical_rows,
    )
    if fragment.deletion is not None:
        message.deletion_file.CopyFrom(
            wire.DeletionFile(
                file_type=_KINDS[fragment.deletion.kind],
                read_version=fragment.deletion.read_version,
                id=fragment.deletion.id,
                num_deleted_rows=fragment.deletion.deleted_rows,
                base_id=fragment.deletion.base_id,
            )
        )
    if fragment.row_ids is not None:
        message.inline_row_ids = fragment.row_ids
    if fragment.created_at is not None:
        message.inline_created_at_versions = fragment.created_at
    if fragment.updated_at is not None:
        message.inline_last_updated_at_versions = fragment.updated_at
    return message


def _problems(message: wire.DataFragment) -> list[str]:
    """Return the features of a fragment that are known and not supported."""
    features = []
    if message.overlays:
        features.append("data overlay files")
    spilled: Sequence[Any] = ("spilled_row_ids", "spilled_last_updated_at_versions", "spilled_created_at_versions")
    if any(message.HasField(name) for name in spilled):
        features.append("spilled row lineage")
    # Carrying unknown semantics over to changed fragments could make them wrong.
    if message.clustering_id or message.metadata:
        features.append("fragment clustering or metadata")
    if message.deletion_file.file_type not in (ARROW_FILE, BITMAP_FILE):
        features.append(f"deletion files of kind {message.deletion_file.file_type}")
    return features


def _contradiction(message: wire.DataFragment) -> str | None:
    """Return the inconsistency of a fragment, or None."""
    if message.physical_rows > _MOST_ROWS:
        return f"there are {message.physical_rows} rows"
    for file in message.files:
        # A path with ".." would make this package read, or copy, a file outside of the table.
        if not is_file_name(file.path):
            return f"{file.path[:100]!r} is not the name of a data file"
        if file.file_major_version >= _WITH_COLUMNS and len(file.fields) != len(file.column_indices):
            return f"{file.path} has {len(file.fields)} fields in {len(file.column_indices)} columns"
    return None
