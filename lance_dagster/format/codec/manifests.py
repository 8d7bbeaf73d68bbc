"""Decode and encode manifest files: a `Manifest` and its inline `Transaction`.

Layout of a manifest file (table format specification, checked against what pylance 14 writes): an optional index
section and an optional transaction section, each a little-endian u32 length followed by a message; then the manifest,
framed the same way; then 16 bytes: u64 offset of the manifest's length, u16 major, u16 minor, "LANC". The offsets of
the two sections are fields of the manifest. An offset of 0 is legal, so presence has to be tested with `HasField`.

Section offsets are valid in one file only: pylance crashes on an offset copied from another file. So they never leave
this module.

Decoding leaves fragments encoded (`Fragments`). pylance decodes everything, and crashes or allocates without bound on
corrupt content. `check_readable` therefore validates a whole manifest before pylance opens that version. It does so on
protobuf messages, without building values, because a version may have tens of thousands of fragments.

`summarize_manifest` reads only what a log shows of a version, and `commit_id` is the digest that names it.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format._proto import lance_dagster_wire_pb2 as wire
from lance_dagster.format.codec.index_parts import decode_indices
from lance_dagster.format.codec.manifest_parts import (
    ProtobufFragmentDecoder,
    base_paths_from_wire,
    base_paths_to_wire,
    encode_fragments,
    fields_from_wire,
    fields_to_wire,
    unknown_fields,
    validated_message,
)
from lance_dagster.format.codec.operations import decode_transaction
from lance_dagster.format.codec.row_sequences import count_row_ids, count_versions
from lance_dagster.format.layout import MAIN, is_file_name
from lance_dagster.format.model import Flag, Fragments, Manifest, WriterVersion
from lance_dagster.format.schema import arrow_from_fields, check_field_tree
from lance_dagster.format.transaction import Transaction
from lance_dagster.format.value_ranges import RANGES

_KEPT_COUNTS = 1000


def check_readable(manifest: Manifest, path: str) -> None:
    """Refuse a manifest that pylance could not read safely; `path` is used in messages.

    Raises:
        CorruptFileError: Its content is inconsistent.
        UnsupportedFeatureError: It uses an unknown feature.
    """
    bases = {base.id for base in manifest.base_paths}
    versions = _Counts(path)
    stable = manifest.stable_row_ids

    def check(fragments: Fragments) -> None:
        # This is called for its errors: a schema that Arrow cannot express is refused before pylance meets it.
        arrow_from_fields(manifest.fields, manifest.schema_metadata, path)
        for item in fragments.items:
            message = validated_message(item, path)
            problem = _base_problem(message, bases)
            if problem is None and stable:
                problem = _lineage_problem(message, versions)
            if problem is not None:
                raise CorruptFileError(path, f"fragment {message.id} {problem}")

    manifest.fragments.check_once(check)


class _Counts:
    """Lengths of row sequences. Fragments of a commit share their version sequences, whose lengths are cached."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._versions: dict[bytes, int] = {}

    def of_versions(self, sequence: bytes) -> int:
        count = self._versions.get(sequence)
        if count is None:
            count = count_versions(sequence, self.path)
            if len(self._versions) < _KEPT_COUNTS:
                self._versions[sequence] = count
        return count

    def of_row_ids(self, sequence: bytes) -> int:
        return count_row_ids(sequence, self.path)


def _base_problem(message: wire.DataFragment, bases: set[int]) -> str | None:
    named = [file.base_id for file in message.files if file.HasField("base_id")]
    if message.deletion_file.HasField("base_id"):
        named.append(message.deletion_file.base_id)
    unknown = next((base for base in named if base not in bases), None)
    return None if unknown is None else f"names a file under a base path {unknown} that does not exist"


def _lineage_problem(message: wire.DataFragment, counts: _Counts) -> str | None:
    if not message.HasField("inline_row_ids"):
        return "has no row ids"
    counters: tuple[tuple[str, bytes, Callable[[bytes], int]], ...] = (
        ("row ids", message.inline_row_ids, counts.of_row_ids),
        ("creation versions", message.inline_created_at_versions, counts.of_versions),
        ("update versions", message.inline_last_updated_at_versions, counts.of_versions),
    )
    for what, sequence, count in counters:
        # Versions may be left out; a sequence of another length would give rows the versions of other rows.
        if sequence and count(sequence) != message.physical_rows:
            return f"has {count(sequence)} {what} for {message.physical_rows} rows"
    return None


_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """The parts of a version that a log shows.

    `timestamp` is in nanoseconds since 1970 UTC, `transaction` a uuid, `read_version` the version the change was
    prepared on, `forked_from` a branch (None for main) and a version. The last five are empty when the transaction is
    unknown.
    """

    number: int
    timestamp: int
    rows: int
    writer: tuple[str, str] | None
    transaction: str = ""
    read_version: int = 0
    operation: str = ""
    properties: Mapping[str, str]
    forked_from: tuple[str | None, int] | None = None


def summarize_manifest(data: bytes, path: str) -> VersionSummary | None:
    """Summarize a manifest file; None when it has no inline transaction. `path` is used in messages.

    Raises:
        CorruptFileError: The bytes are not a manifest file.
        UnsupportedFeatureError: The table uses something this package does not know.
    """
    message = manifest_message(data, path)
    flags = unknown_flags(message)
    if flags:
        raise UnsupportedFeatureError(path, flags)
    if not _has_date(message):
        raise CorruptFileError(path, _NO_DATE)
    body = inline_transaction(data, message, path)
    if body is None:
        return None
    try:
        transaction = wire.Transaction.FromString(body)
    except DecodeError as error:
        raise CorruptFileError(path, f"its transaction cannot be parsed: {error}") from error
    # A log must not fail for unknown fields inside a known operation; whoever needs the operation decodes it whole.
    kind = transaction.WhichOneof("operation")
    if kind is None:
        raise UnsupportedFeatureError(path, unknown_fields(transaction) or ["a transaction without operation"])
    writer = message.writer_version
    clone = transaction.clone
    return VersionSummary(
        number=message.version,
        timestamp=message.timestamp.seconds * _SECOND + message.timestamp.nanos,
        rows=Fragments(message.fragments, ProtobufFragmentDecoder(path)).rows,
        writer=(writer.library, writer.version) if message.HasField("writer_version") else None,
        transaction=transaction.uuid,
        read_version=transaction.read_version,
        operation=kind.title().replace("_", ""),
        properties=dict(transaction.transaction_properties),
        forked_from=(clone.ref_name or None, clone.ref_version) if kind == "clone" else None,
    )


MAGIC = b"LANC"
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_KNOWN_FLAGS = sum(Flag)
_FILE_VERSION = re.compile(r"(0\.[1-3]|2\.[0-3]|)")
# Azure's own spelling has the container before an "@", which is not a credential.
_WITH_CREDENTIALS = re.compile(
    r"(?!abfss://[a-z0-9$-]+@[^/@]*(/|$))[a-zA-Z][^/]*://[^/]*@|[a-zA-Z][^/]*://.*[?#]", re.DOTALL
)
_NO_DATE = "its timestamp is not a date"
# Later timestamps cannot be represented by `datetime`.
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, after which there are no dates."""


def check_writable(manifest: Manifest) -> None:
    """Refuse a version whose manifest file contains data that a `Manifest` does not represent.

    Raises:
        UnsupportedFeatureError: The dictionary of a legacy (0.1) column is stored in the manifest file.
    """
    # The tables of pylance before 0.13 do not say which version their files have, and most have files of format 0.1.
    legacy = manifest.file_version.startswith("0.") or not manifest.file_version
    for field in manifest.fields:
        if legacy and field.dictionary is not None:
            what = f"the dictionary of column {field.name!r}, which files of format 0.1 keep in the manifest"
            raise UnsupportedFeatureError(f"{manifest.branch or 'main'}@{manifest.version}", [what])


def encode_manifest_file(manifest: Manifest, transaction: bytes) -> bytes:
    """Encode a manifest file, with its encoded transaction inline.

    Raises:
        UnsupportedFeatureError: Data of the previous manifest file would be lost (`check_writable`).
    """
    # This is checked again, because it is the last point before data would be dropped.
    check_writable(manifest)
    message = _to_wire(manifest)
    parts: list[bytes] = []
    size = 0
    for name, section in (
        ("index_section", manifest.index_section),
        ("transaction_section", transaction),
    ):
        if section is None:
            continue
        # The field gets the offset of the section in this file; offsets read from another file are never reused.
        setattr(message, name, size)
        parts += [_LENGTH.pack(len(section)), section]
        size += _LENGTH.size + len(section)
    # The encoding is deterministic: map entries would otherwise be written in any order.
    body = message.SerializeToString(deterministic=True)
    # The manifest has to be the last block: newer readers require that its length reaches the footer.
    return b"".join([*parts, _LENGTH.pack(len(body)), body, _FOOTER.pack(size, 0, 2, MAGIC)])


def decode_manifest_file(data: bytes, path: str) -> tuple[Manifest, Transaction | None]:
    """Decode a manifest file; `path` is used in messages.

    Returns:
        The manifest, and its transaction when the file contains it.

    Raises:
        CorruptFileError: The bytes are not a manifest file.
        UnsupportedFeatureError: The table uses something this package does not know.
    """
    message = manifest_message(data, path)
    fragments = Fragments(message.fragments, ProtobufFragmentDecoder(path))
    # The fragments are declared as bytes here; without them the search for unknown fields is cheap.
    del message.fragments[:]
    _refuse_unknown(message, path)
    _refuse_contradictions(message, path)
    index = _section(data, message.index_section, path) if message.HasField("index_section") else None
    manifest = _from_wire(message, fragments, index)
    # Everything that other modules rely on is validated once, here, where the error can name the file.
    check_field_tree(manifest.fields, path)
    decode_indices(index, path)
    body = inline_transaction(data, message, path)
    return manifest, None if body is None else decode_transaction(body, path)


def decode_transaction_of(data: bytes, path: str, *, branch: str, number: int) -> Transaction | None:
    """Decode only the transaction of a manifest file, which takes a fraction of the time of the whole file.

    Returns:
        None where only the whole file tells the transaction: it has none inline, is of another version, or has feature
        flags that are unknown.

    Raises:
        CorruptFileError: The bytes are not a manifest file.
        UnsupportedFeatureError: The transaction uses something this package does not know.
    """
    message = manifest_message(data, path)
    if unknown_flags(message) or (message.branch or MAIN, message.version) != (branch, number):
        return None
    body = inline_transaction(data, message, path)
    return None if body is None else decode_transaction(body, path)


def manifest_message(data: bytes, path: str) -> wire.Manifest:
    """Locate and parse the manifest message of a file, without validating its content.

    Raises:
        CorruptFileError: The file does not contain a manifest.
    """
    # The magic is the last four bytes; a truncated upload fails here.
    if len(data) < _FOOTER.size or data[-4:] != MAGIC:
        raise CorruptFileError(path, "it does not end like a Lance manifest; was it cut off?")
    position = _FOOTER.unpack(data[-_FOOTER.size :])[0]
    message = wire.Manifest()
    try:
        message.ParseFromString(_section(data, position, path))
    except DecodeError as error:
        raise CorruptFileError(path, f"its manifest cannot be parsed: {error}") from error
    return message


def message_bytes(data: bytes, path: str) -> bytes:
    """Return the bytes of the manifest message in a manifest file.

    Raises:
        CorruptFileError: The offset of the message is outside of the file.
    """
    return _section(data, _FOOTER.unpack(data[-_FOOTER.size :])[0], path)


def inline_transaction(data: bytes, message: wire.Manifest, path: str) -> bytes | None:
    """Return the bytes of the inline transaction, or None when there is none.

    Raises:
        CorruptFileError: Its offset is outside of the file.
    """
    if message.HasField("transaction_section"):
        return _section(data, message.transaction_section, path)
    # pylance still reads this older field number, and never writes it.
    if message.HasField("transaction_section_deprecated"):
        return _section(data, message.transaction_section_deprecated, path)
    return None


def unknown_flags(message: wire.Manifest) -> list[str]:
    """Return the names of the unknown feature flags of a manifest."""
    # Reader flags are checked on writes as well, and writer flags on reads: this package does both on one manifest.
    unknown = (message.reader_feature_flags | message.writer_feature_flags) & ~_KNOWN_FLAGS
    return [f"feature flag {1 << bit}" for bit in range(64) if unknown & (1 << bit)] if unknown else []


def _section(data: bytes, position: int, path: str) -> bytes:
    # Offsets and lengths are untrusted: both are checked before slicing, which would silently return fewer bytes.
    end = len(data) - _FOOTER.size
    if position + _LENGTH.size > end:
        raise CorruptFileError(path, f"a section would start at byte {position} of {len(data)}")
    length = _LENGTH.unpack_from(data, position)[0]
    start = position + _LENGTH.size
    if start + length > end:
        raise CorruptFileError(path, f"a section of {length} bytes at byte {position} would end after the file")
    return data[start : start + length]


def _refuse_unknown(message: wire.Manifest, path: str) -> None:
    features = [*unknown_flags(message), *unknown_fields(message)]
    if message.fragment_tree:
        features.append("fragment tree")
    if message.clustering or message.HasField("max_clustering_id"):
        features.append("clustering")
    if message.data_format.file_format not in ("", "lance"):
        features.append(f"data file format {message.data_format.file_format!r}")
    # Some releases of pylance wrote "default" for every column, and later releases dropped the field: it has no effect.
    classes = {field.storage_class for field in message.fields} - {"", "default"}
    features += [f"columns of storage class {name!r}" for name in sorted(classes)]
    if not _FILE_VERSION.fullmatch(message.data_format.version):
        features.append(f"data files of version {message.data_format.version!r}")
    if features:
        raise UnsupportedFeatureError(path, dict.fromkeys(features))


def _has_date(message: wire.Manifest) -> bool:
    # Within the last second of the year 9999, a number of seconds with a fraction may be rounded up to the next year.
    return 0 <= message.timestamp.seconds < _LAST_SECOND and 0 <= message.timestamp.nanos < 10**9


def _refuse_contradictions(message: wire.Manifest, path: str) -> None:
    """Refuse inconsistent content here, where the error can name the file."""
    ids = [base.id for base in message.base_paths]
    # Other modules use these values as paths, dates and keys without looking at them again.
    broken = {
        "its version is 0": message.version == 0,
        _NO_DATE: not _has_date(message),
        "two of its base paths have one id": len(set(ids)) < len(ids),
        "one of its base paths is empty": any(
            not base.path.strip() or "\0" in base.path for base in message.base_paths
        ),
        # Base paths are shown in messages, and no reader needs them: credentials are options of the caller.
        "one of its base paths has credentials or a query in it": any(
            _WITH_CREDENTIALS.match(base.path) for base in message.base_paths
        ),
        f"{message.transaction_file[:100]!r} is not the name of a transaction file": bool(message.transaction_file)
        and not is_file_name(message.transaction_file),
    }
    problem = next((problem for problem, holds in broken.items() if holds), None)
    if problem is not None:
        raise CorruptFileError(path, problem)


def _from_wire(message: wire.Manifest, fragments: Fragments, index: bytes | None) -> Manifest:
    writer = message.writer_version if message.HasField("writer_version") else None
    return Manifest(
        version=message.version,
        fields=fields_from_wire(message.fields),
        fragments=fragments,
        timestamp=message.timestamp.seconds * 1_000_000_000 + message.timestamp.nanos,
        schema_metadata=dict(message.schema_metadata),
        reader_flags=message.reader_feature_flags,
        writer_flags=message.writer_feature_flags,
        max_fragment_id=message.max_fragment_id if message.HasField("max_fragment_id") else None,
        transaction_file=message.transaction_file,
        writer=WriterVersion(
            library=writer.library,
            version=writer.version,
            prerelease=writer.prerelease if writer.HasField("prerelease") else None,
            build_metadata=writer.build_metadata if writer.HasField("build_metadata") else None,
        )
        if writer is not None
        else None,
        next_row_id=message.next_row_id,
        # pylance before 0.13 wrote no storage format, and later releases do not open a manifest with an empty one.
        file_format=(message.data_format.file_format or "lance") if message.HasField("data_format") else "",
        file_version=message.data_format.version,
        config=dict(message.config),
        table_metadata={key: value for key, value in message.table_metadata.items() if key != RANGES},
        ranges=message.table_metadata.get(RANGES, ""),
        base_paths=base_paths_from_wire(message.base_paths),
        branch=message.branch if message.HasField("branch") else None,
        index_section=index,
        max_allocated_field_id=message.max_allocated_field_id if message.HasField("max_allocated_field_id") else None,
        version_aux_data=message.version_aux_data,
        tag=message.tag,
    )


def _to_wire(manifest: Manifest) -> wire.Manifest:
    stored = wire.Manifest.DataStorageFormat(file_format=manifest.file_format, version=manifest.file_version)
    message = wire.Manifest(
        fields=fields_to_wire(manifest.fields),
        fragments=encode_fragments(manifest.fragments),
        version=manifest.version,
        version_aux_data=manifest.version_aux_data,
        schema_metadata=dict(manifest.schema_metadata),
        tag=manifest.tag,
        reader_feature_flags=manifest.reader_flags,
        writer_feature_flags=manifest.writer_flags,
        max_fragment_id=manifest.max_fragment_id,
        transaction_file=manifest.transaction_file,
        next_row_id=manifest.next_row_id,
        data_format=stored if manifest.file_version else None,
        config=dict(manifest.config),
        base_paths=base_paths_to_wire(manifest.base_paths),
        table_metadata={**manifest.table_metadata, **({RANGES: manifest.ranges} if manifest.ranges else {})},
        branch=manifest.branch,
        max_allocated_field_id=manifest.max_allocated_field_id,
    )
    message.timestamp.seconds, message.timestamp.nanos = divmod(manifest.timestamp, 1_000_000_000)
    if manifest.writer is not None:
        message.writer_version.CopyFrom(
            wire.Manifest.WriterVersion(
                library=manifest.writer.library,
                version=manifest.writer.version,
                prerelease=manifest.writer.prerelease,
                build_metadata=manifest.writer.build_metadata,
            )
        )
    return message


_COMMIT = b"lance_dagster commit 1\n"
COMMIT_ID = re.compile(r"[0-9a-f]{64}")
COMMIT_PREFIX = re.compile(r"[0-9a-fA-F]{8,64}")
"""An abbreviated commit id. Fewer than 8 digits would soon be ambiguous, and may be a word such as 'facade'."""


def commit_id(manifest_file: bytes) -> str:
    """Return the commit id of the version in a manifest file, as 64 hexadecimal digits.

    Users and tools record commit ids, so the definition is fixed for all time; a test pins an example. The id is the
    SHA-256 of a label and the SHA-256 of the file. A manifest file never changes, so neither does the id. The file
    contains the name of the branch, the version, the time in nanoseconds and the uuid of the transaction, so no two
    versions share an id, not even when a branch is deleted and created again.

    Unlike a git commit id, it does not cover the ids of its parents, and so does not authenticate the history: that
    would require reading all previous versions, some of which may have been cleaned up. Renaming a branch changes the
    ids of its versions, because their manifest files are rewritten with the new name.
    """
    return hashlib.sha256(_COMMIT + hashlib.sha256(manifest_file).digest()).hexdigest()
