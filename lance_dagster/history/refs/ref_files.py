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
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import pendulum

from lance_dagster.format import layout
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
STATES: Mapping[str, BranchState] = {CREATING: CREATING, READY: READY, CLOSING: CLOSING, DELETING: DELETING}
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
LAST_FOUND = re.compile(r"([0-9]{1,19}) ([0-9]{1,19})")


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
        return STATES[self.metadata.get(STATE, READY)]

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
        match = LAST_FOUND.fullmatch(self.metadata.get(LAST, ""))
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
    # The ETag is that of the file, which does not have the change.
    return replace(named, metadata={key: value for key, value in merged.items() if value is not None}, etag="")
