"""The content of the files of branches and tags, and its encoding.

Each file is one small JSON object in the form that pylance reads and writes:

    branch  {"parentBranch", "identifier": {"version_mapping": [[version, id], ...]}, "parentVersion", "createAt",
             "manifestSize", "metadata"}
    tag     {"branch", "version", "createdAt", "updatedAt", "manifestSize", "metadata"}

`identifier` is the branch's lineage: one entry for each ancestor from `main` down, its own entry last. pylance's
clean-up of a parent reads a branch before it deletes files only if it would delete, or cannot find, the version in the
first entry. So the first entry here has a version that can never exist, and pylance always reads the branch;
`parentVersion` holds the true fork point.

State that this package needs is kept in `metadata` under a reserved prefix, which
pylance keeps when it moves a tag.

Any program can write these files. A malformed file is refused by its name, so that a damaged file of a branch is found
where it lies.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import pendulum

from lance_dagster.errors import CorruptFileError
from lance_dagster.format import layout
from lance_dagster.format.layout import is_path_inside
from lance_dagster.format.validation import parsed_json
from lance_dagster.history.refs.tag_hold import TagHold, hold_in_force, holds_of

# JSON numbers stay exact up to here, and no table gets that many versions.
NEVER_A_VERSION = 2**53
RESERVED_PREFIX = "lance_dagster."
"""Prefix of the metadata keys of branches and tags that are reserved for this package."""
STATE = "lance_dagster.state"
BranchState = Literal["creating", "ready", "closing", "deleting"]
"""The step of a branch's creation or deletion."""
CREATING: Literal["creating"] = "creating"
READY: Literal["ready"] = "ready"
CLOSING: Literal["closing"] = "closing"
DELETING: Literal["deleting"] = "deleting"
_STATES: Mapping[str, BranchState] = {CREATING: CREATING, READY: READY, CLOSING: CLOSING, DELETING: DELETING}
FIRST = "lance_dagster.first"
RENAMING_TO, RENAMED_FROM = "lance_dagster.renaming_to", "lance_dagster.renamed_from"
RENAMED_WRITE = "lance_dagster.renamed_write"
RENAME_ID = "lance_dagster.rename"
"""The random id of a rename, in the files of both names: only the rename that made the copy deletes the original."""
RECOVERING = "lance_dagster.recovering"
"""The random id of a recovery, in the file of a branch whose versions are put back; only a recovery may finish it."""
RECOVERED = "lance_dagster.recovered"
"""The random id of the last recovery of a branch. It stays, so a writer that read the branch before finds a new id."""
RESETTING = "lance_dagster.resetting"
"""Marks a branch that is being reset to a version of another branch: that version, the time and a random id,
"main@5 1700000000 4f2a...". The mark that was written last decides which reset, or deletion, may end its work."""
CLOSING_ID = "lance_dagster.closing"
"""The random id of an attempt to delete a branch: an attempt that was taken back and begun again has a new id."""
BEFORE_CLOSING = "lance_dagster.before_closing"
"""The state to which a branch goes back where an attempt to delete it is taken back."""
LAST = "lance_dagster.last"
"""The highest version number that a branch being deleted may have, and when it was found: "17 1700000000"."""
REMOVER = "lance_dagster.remover"
"""The process that removes the file of a ref, and since when, where the storage cannot delete conditionally."""
WRITE_ID = "lance_dagster.write"
IMMUTABLE = "lance_dagster.immutable"
PUBLISHED_ID = "-published"
"""The suffix of the ids of branches that a repository keeps for its commits."""
_LAST_FOUND = re.compile(r"([0-9]{1,19}) ([0-9]{1,19})")
_MAX_BYTES = 1_000_000
_LONGEST_PROBLEM = 200
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch: a series of versions forked from a version of another branch.

    `etag` is the tag of its file where that was read or written with the rest, and else empty.
    """

    name: str
    id: str
    parent_branch: str
    parent_version: int
    created_at: pendulum.DateTime
    metadata: Mapping[str, str] = field(default_factory=dict)
    lineage: tuple[tuple[int, str], ...] = ()
    manifest_size: int = 0
    etag: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        """Return its name and the version it was forked from; the step of its creation or deletion while that lasts."""
        return f"{self.name}, forked from {self.parent}{'' if self.state == READY else f' ({self.state})'}"

    @property
    def parent(self) -> str:
        """The version it was forked from, such as `main@16`."""
        return f"{self.parent_branch}@{self.parent_version}"

    @property
    def state(self) -> BranchState:
        """The step of its creation or deletion, such as "creating" or "ready"; a branch that pylance made is ready."""
        return _STATES[self.metadata.get(STATE, READY)]

    @property
    def first(self) -> int:
        """The number of its first version, which repeats the fork point.

        It is the number of the fork point, or a number above all versions of earlier branches of the name.
        """
        return int(self.metadata.get(FIRST, self.parent_version))

    @property
    def last(self) -> tuple[int, int] | None:
        """The highest number that its versions may have and when that was recorded; None where it is not recorded.

        It is recorded once a branch can take no more commits: before a deletion, before a rename copies its
        versions, or before a recovery puts them back.
        """
        match = _LAST_FOUND.fullmatch(self.metadata.get(LAST, ""))
        return None if match is None else (int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A name for one version. `etag` is as for a branch."""

    name: str
    branch: str
    version: int
    created_at: pendulum.DateTime | None = None
    updated_at: pendulum.DateTime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    manifest_size: int = 0
    etag: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        """Return its name, the version it names, and what keeps it there."""
        hold = self.hold
        return f"{self.name}: {self.ref}{', immutable' if self.immutable else ''}{'' if hold is None else f', {hold}'}"

    @property
    def ref(self) -> str:
        """The version it names, such as `main@9`."""
        return f"{self.branch}@{self.version}"

    @property
    def immutable(self) -> bool:
        """Whether the tag was created as immutable."""
        return IMMUTABLE in self.metadata

    @property
    def hold(self) -> TagHold | None:
        """The hold that keeps the tag from moving, or None."""
        return hold_in_force(self.metadata)

    @property
    def holds(self) -> tuple[TagHold, ...]:
        """The last holds of the tag, oldest first, released ones included."""
        return holds_of(self.metadata)


N = TypeVar("N", Branch, Tag)
T = TypeVar("T")


def new_branch(
    name: str, parent: Branch | None, *, version: int, manifest_size: int, metadata: Mapping[str, str]
) -> Branch:
    """Return a branch in state "creating", forked from `version` of `parent`; None stands for `main`."""
    # A reader that finds the id in a record of a merge knows what kind of branch it was, without reading all branches.
    own = uuid.uuid4().hex + (PUBLISHED_ID if name.startswith(layout.PUBLISHED) else "")
    return Branch(
        name=name,
        id=own,
        parent_branch=parent.name if parent else layout.MAIN,
        parent_version=version,
        # pylance stores whole seconds for branches.
        created_at=pendulum.now("UTC").replace(microsecond=0),
        metadata={**metadata, STATE: CREATING},
        lineage=(*(parent.lineage if parent else ()), (NEVER_A_VERSION, own)),
        manifest_size=manifest_size,
    )


def with_metadata(named: N, updates: Mapping[str, str | None]) -> N:
    """Return a branch or tag with changed metadata; a value of None removes the key."""
    merged = {**named.metadata, **updates}
    # The ETag is the tag of the stored file, which does not have the change.
    return replace(named, metadata={key: value for key, value in merged.items() if value is not None}, etag="")


def parse_branch(name: str, data: bytes, path: str) -> Branch:
    """Parse the file of a branch.

    Raises:
        CorruptFileError: The bytes are not the file of a branch.
    """
    return _parsed(_branch_from_json, name, data, path)


def parse_tag(name: str, data: bytes, path: str) -> Tag:
    """Parse the file of a tag.

    Raises:
        CorruptFileError: The bytes are not the file of a tag.
    """
    return _parsed(_tag_from_json, name, data, path)


def _parsed(parse: Callable[[str, dict[str, Any]], T], name: str, data: bytes, path: str) -> T:
    # A ref is read at every use; a huge file would be damage, or an attack on the memory of readers.
    if len(data) > _MAX_BYTES:
        raise CorruptFileError(path, f"it has {len(data)} bytes, far more than a ref needs")
    try:
        content = parsed_json(data)
        if not isinstance(content, dict):
            raise CorruptFileError(path, "it does not hold a JSON object")
        return parse(name, content)
    # Everything that foreign JSON can cause, up to dates that the platform refuses: an error of another class would
    # name no file, and each command that lists refs would fail with it.
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM]
        raise CorruptFileError(path, f"it is not a branch or tag as Lance writes it: {problem}") from error


def _branch_from_json(name: str, content: dict[str, Any]) -> Branch:
    lineage = tuple(
        (_count(version), _text(own)) for version, own in (content.get("identifier") or {}).get("version_mapping", ())
    )
    parent = _branch_name(content.get("parentBranch"))
    if parent == name:
        raise ValueError("it says it was forked from itself")
    metadata = _metadata(content)
    # These are checked here, since the properties of `Branch` parse them without a way to report an error.
    if FIRST in metadata and not _NUMBER.fullmatch(metadata[FIRST]):
        raise ValueError(f"{metadata[FIRST]!r} is not a version number")
    if LAST in metadata and not _LAST_FOUND.fullmatch(metadata[LAST]):
        raise ValueError(f"{metadata[LAST]!r} is not a version number and a time")
    if metadata.get(STATE, READY) not in _STATES:
        raise ValueError(f"{metadata[STATE]!r} is not a state of a branch")
    return Branch(
        name=name,
        id=lineage[-1][1] if lineage else "",
        parent_branch=parent,
        parent_version=_count(content["parentVersion"]),
        created_at=pendulum.from_timestamp(_count(content["createAt"])),
        metadata=metadata,
        lineage=lineage,
        manifest_size=_count(content["manifestSize"]),
    )


def branch_file_of(branch: Branch) -> bytes:
    """Return the bytes of a branch's file."""
    return _json(
        {
            # pylance knows `main` only as the branch without a name.
            "parentBranch": None if branch.parent_branch == layout.MAIN else branch.parent_branch,
            "identifier": {"version_mapping": [list(entry) for entry in branch.lineage]},
            "parentVersion": branch.parent_version,
            "createAt": branch.created_at.int_timestamp,
            "manifestSize": branch.manifest_size,
            "metadata": dict(branch.metadata),
        }
    )


def _tag_from_json(name: str, content: dict[str, Any]) -> Tag:
    return Tag(
        name=name,
        branch=_branch_name(content.get("branch")),
        version=_count(content["version"]),
        created_at=_time(content.get("createdAt")),
        updated_at=_time(content.get("updatedAt")),
        metadata=_metadata(content),
        manifest_size=_count(content["manifestSize"]),
    )


def tag_file_of(tag: Tag) -> bytes:
    """Return the bytes of a tag's file."""
    now = pendulum.now("UTC")
    return _json(
        {
            "branch": None if tag.branch == layout.MAIN else tag.branch,
            "version": tag.version,
            "createdAt": (tag.created_at or now).isoformat(),
            "updatedAt": (tag.updated_at or now).isoformat(),
            "manifestSize": tag.manifest_size,
            "metadata": dict(tag.metadata),
        }
    )


def _count(value: object) -> int:
    # JSON has no unsigned integers, and True is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ValueError(f"{value!r} is not an unsigned 64-bit integer")
    return value


def _branch_name(value: object) -> str:
    """Read the name of a branch. It is a folder too, so a name that leads out of the table is refused."""
    if value is None or value == layout.MAIN:
        return layout.MAIN
    if not isinstance(value, str) or not is_path_inside(value):
        raise ValueError(f"{value!r} is not a branch name")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _metadata(content: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in (content.get("metadata") or {}).items()}


def _time(value: object) -> pendulum.DateTime | None:
    if value is None:
        return None
    text = _text(value).replace("Z", "+00:00")
    # pylance writes nanoseconds, and a datetime holds microseconds.
    seconds, dot, fraction = text.partition(".")
    if dot:
        digits = fraction[: next((at for at, c in enumerate(fraction) if not c.isdigit()), len(fraction))]
        text = f"{seconds}.{digits[:6]}{fraction[len(digits) :]}"
    return pendulum.instance(pendulum.DateTime.fromisoformat(text))


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()
