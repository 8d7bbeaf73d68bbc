"""Transactions: the description of a change, one frozen class per operation this package interprets.

`OtherOperation` stands for the operations the format defines and this package does not interpret yet: they are known
by name, kept as bytes, and treated as incompatible wherever a rule would have to look inside. An operation that is
not even known by number is refused when it is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lance_dagster.format.model import BasePath, Field, Fragment

MESSAGE = "__lance_commit_message"
"""The property under which Lance keeps a commit message."""
COMMITTER = "lance_dagster.committer"
CLAIMS = "lance_dagster.claims"
MERGE = "lance_dagster.merge"
"""The property of a merge that names the version merged; the next one has the id of its branch."""
MERGED_BRANCH = "lance_dagster.merge.branch"
MERGED_PREFIX = "lance_dagster.merged."
"""Table metadata keys: this prefix and a branch id -> the last version of that branch merged, as "source@dest"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Add rows."""

    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Take rows out: whole fragments by id, single rows by a grown deletion vector."""

    updated_fragments: tuple[Fragment, ...] = ()
    deleted_fragment_ids: tuple[int, ...] = ()
    predicate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """Replace all rows and the schema; also how a table is created."""

    fragments: tuple[Fragment, ...]
    fields: tuple[Field, ...]
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    config_upserts: Mapping[str, str] = field(default_factory=dict)
    initial_bases: tuple[BasePath, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Take rows out and put rows in, as one change. `mode` is 0 when rows were rewritten, 1 when columns were."""

    removed_fragment_ids: tuple[int, ...] = ()
    updated_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    fields_modified: tuple[int, ...] = ()
    mode: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Change the schema together with the fragments that back it."""

    fragments: tuple[Fragment, ...]
    fields: tuple[Field, ...]
    schema_metadata: Mapping[str, bytes] = field(default_factory=dict)
    preserves_nullability: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Change the schema and nothing else."""

    fields: tuple[Field, ...]
    preserves_nullability: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Make an older version the current one."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Start a branch, or another table, from a version."""

    is_shallow: bool
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherOperation:
    """An operation of the format that is carried, not interpreted. `name` is as the format writes it, in CamelCase."""

    name: str
    body: bytes


Operation = Append | Delete | Overwrite | Update | Merge | Project | Restore | Clone | OtherOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A change that was, or is to be, committed. `uuid` identifies it across retries and lost answers."""

    read_version: int
    uuid: str
    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""

    @property
    def operation_name(self) -> str:
        """The operation's name as the format spells it, such as "Append"."""
        if isinstance(self.operation, OtherOperation):
            return self.operation.name
        return type(self.operation).__name__

    @property
    def file_name(self) -> str:
        """Name of the transaction file under `_transactions/`."""
        return f"{self.read_version}-{self.uuid}.txn"
