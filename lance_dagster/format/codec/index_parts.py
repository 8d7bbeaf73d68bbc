"""Decode and encode the descriptions of indices: the section of a manifest, and the messages of transactions."""

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.manifest_parts import unknown_fields
from lance_dagster.format.layout import is_path_inside
from lance_dagster.format.model import (
    IndexFile,
    IndexMetadata,
)

_UUID_BYTES = 16


def decode_indices(section: bytes | None, path: str) -> tuple[IndexMetadata, ...]:
    """Decode an index section; None is a section without indices. `path` is used in messages.

    Raises:
        CorruptFileError: The bytes are not an index section.
        UnsupportedFeatureError: An index has an unknown field.
    """
    # The section is decoded at every read, though few callers want the indices: a commit copies it, damaged or not.
    if section is None:
        return ()
    message = _parsed_section(section, path)
    unknown = unknown_fields(message)
    if unknown:
        raise UnsupportedFeatureError(path, unknown)
    try:
        return tuple(index_from_wire(index) for index in message.indices)
    except ValueError as error:
        raise CorruptFileError(path, f"its index section contains an invalid index: {error}") from error


def encode_indices(indices: Iterable[IndexMetadata]) -> bytes | None:
    """Encode an index section; None when there is no index, because pylance omits the section then."""
    messages = [index_to_wire(index) for index in indices]
    return wire.IndexSection(indices=messages).SerializeToString(deterministic=True) if messages else None


def rebase_index_section(section: bytes, base_id: int, path: str) -> bytes:
    """Set `base_id` on every index of a section that has no base path; `path` is used in messages."""
    message = _parsed_section(section, path)
    for index in message.indices:
        # An index that names a base path already was inherited before, and stays where it is.
        if not index.HasField("base_id"):
            index.base_id = base_id
    return message.SerializeToString(deterministic=True)


def _parsed_section(section: bytes, path: str) -> wire.IndexSection:
    try:
        return wire.IndexSection.FromString(section)
    except DecodeError as error:
        raise CorruptFileError(path, f"its index section cannot be parsed: {error}") from error


def replaced_fragments(details: bytes) -> list[tuple[list[int], list[int]]] | None:
    """Decode the details of the fragment-reuse index: the ids of fragments that compactions replaced, oldest first.

    Each entry has the ids of the old fragments and the ids of the new fragments, such as ([0, 1], [5]). The result is
    None where the details are in a file, or of an unknown kind.
    """
    try:
        message = wire.FragmentReuseIndexDetails.FromString(details)
    except DecodeError:
        return None
    if unknown_fields(message) or message.HasField("external"):
        return None
    groups = (group for version in message.inline.versions for group in version.groups)
    return [
        ([fragment.id for fragment in group.old_fragments], [fragment.id for fragment in group.new_fragments])
        for group in groups
    ]


def index_from_wire(message: wire.IndexMetadata) -> IndexMetadata:
    """Decode the metadata of one index.

    Raises:
        ValueError: Its uuid is not 16 bytes long, or a file path leaves the folder of the index.
    """
    details = message.index_details
    return IndexMetadata(
        uuid=uuid_from_wire(message.uuid),
        name=message.name,
        fields=tuple(message.fields),
        dataset_version=message.dataset_version,
        bitmap=message.fragment_bitmap or None,
        details=(details.type_url, details.value) if message.HasField("index_details") else None,
        index_version=message.index_version if message.HasField("index_version") else None,
        created_at=message.created_at if message.HasField("created_at") else None,
        base_id=message.base_id if message.HasField("base_id") else None,
        files=files_from_wire(message.files),
        covering_fields=tuple(message.covering_fields),
        clustering_id=message.clustering_id,
        metadata=dict(message.metadata),
    )


def index_to_wire(index: IndexMetadata) -> wire.IndexMetadata:
    """Encode the metadata of one index."""
    message = wire.IndexMetadata(
        uuid=uuid_to_wire(index.uuid),
        fields=index.fields,
        name=index.name,
        dataset_version=index.dataset_version,
        fragment_bitmap=index.bitmap or b"",
        index_version=index.index_version,
        created_at=index.created_at,
        base_id=index.base_id,
        files=files_to_wire(index.files),
        covering_fields=index.covering_fields,
        clustering_id=index.clustering_id,
        metadata=dict(index.metadata),
    )
    if index.details is not None:
        message.index_details.type_url, message.index_details.value = index.details
        # Details with default values serialize to nothing, and their presence has to survive a round trip.
        message.index_details.SetInParent()
    return message


def files_from_wire(messages: Iterable[wire.IndexFile]) -> tuple[IndexFile, ...]:
    """Decode the files of an index.

    Raises:
        ValueError: A file path leaves the folder of the index.
    """
    files = tuple(IndexFile(message.path, message.size_bytes) for message in messages)
    outside = next((file.path for file in files if not is_path_inside(file.path)), None)
    if outside is not None:
        raise ValueError(f"{outside[:100]!r} is not the path of a file of an index")
    return files


def files_to_wire(files: Iterable[IndexFile]) -> list[wire.IndexFile]:
    """Encode the files of an index."""
    return [wire.IndexFile(path=file.path, size_bytes=file.size) for file in files]


def uuid_from_wire(message: wire.UUID) -> str:
    """Decode a uuid to its hyphenated form.

    Raises:
        ValueError: The uuid is not 16 bytes long.
    """
    if len(message.uuid) != _UUID_BYTES:
        raise ValueError(f"a uuid of {len(message.uuid)} bytes")
    # The text is the name of the folder of the index, so its form is part of the format.
    text = message.uuid.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def uuid_to_wire(text: str) -> wire.UUID:
    """Encode a uuid."""
    return wire.UUID(uuid=bytes.fromhex(text.replace("-", "")))
