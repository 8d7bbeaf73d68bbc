"""The history of a table as plain values: rows identified by `id`, columns by a token, and the change of every version.

The model does not use fragments, row ids or transactions. Every write leaves a stamp: on the row if the row was
rewritten, on the cell if only a column was written in place. Two versions have the same row, or the same cell, when the
stamps are equal; equal values prove nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

PART = "part"
Value = int | float | str | dict[str, object] | list[int] | None
Values = Mapping[int, Mapping[str, Value]]
"""What a table holds: by id, and by the name of the column."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One value, and the stamp of its write. `partly` says that it was written for only some rows of its column."""

    value: Value
    stamp: int
    partly: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its cells by column token, and the stamp of the write that made or moved it."""

    cells: Mapping[int, Cell]
    stamp: int

    def value(self, column: "Column") -> Value:
        """The value in a column, or null if none was written."""
        cell = self.cells.get(column.token)
        return None if cell is None else cell.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. Its token stays the same when it is renamed; `cast` counts the changes of its type.

    `computed` says that values were written for the existing rows when it was added.
    """

    token: int
    name: str
    type: pa.DataType
    nullable: bool = True
    cast: int = 0
    computed: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a commit: it wrote all rows that match, or the whole table when nothing is named."""

    what: str
    matches: Callable[[int, Mapping[str, Value]], bool]
    partitions: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The content of one version. `indices` are the tokens of the indexed columns, by index name."""

    columns: tuple[Column, ...]
    rows: Mapping[int, Row] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    indices: Mapping[str, int] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The schema in Arrow."""
        return pa.schema([pa.field(column.name, column.type, column.nullable) for column in self.columns])

    def values(self) -> Values:
        """The rows as a reader gets them."""
        return {uid: self.named(row) for uid, row in self.rows.items()}

    def named(self, row: Row) -> dict[str, Value]:
        """One row as a reader gets it."""
        return {column.name: row.value(column) for column in self.columns}

    def column(self, token: int) -> Column | None:
        """The column with a token."""
        return next((column for column in self.columns if column.token == token), None)

    def by_name(self, name: str) -> Column | None:
        """The column with a name."""
        return next((column for column in self.columns if column.name == name), None)

    def arrow(self, rows: Iterable[Mapping[int, Value]], tokens: Iterable[int] | None = None) -> pa.Table:
        """Rows as a writer would pass them, with all columns or some."""
        wanted = None if tokens is None else set(tokens)
        columns = [column for column in self.columns if wanted is None or column.token in wanted]
        named = [{column.name: row.get(column.token) for column in columns} for row in rows]
        schema = pa.schema([pa.field(column.name, column.type, column.nullable) for column in columns])
        return pa.Table.from_pylist(named, schema=schema)

    def where(self, claim: Claim) -> list[int]:
        """The rows that match a claim."""
        return [uid for uid, row in self.rows.items() if claim.matches(uid, self.named(row))]

    def without(self, uids: Iterable[int]) -> "Snapshot":
        """The snapshot without some rows."""
        gone = set(uids)
        return replace(self, rows={uid: row for uid, row in self.rows.items() if uid not in gone})

    def put(self, rows: Mapping[int, Mapping[int, Value]], stamp: int) -> "Snapshot":
        """The snapshot with rows inserted or rewritten; a row keeps the cells that are not given."""
        made = {}
        for uid, given in rows.items():
            kept = self.rows[uid].cells if uid in self.rows else {}
            made[uid] = Row({**kept, **{token: Cell(value, stamp) for token, value in given.items()}}, stamp)
        return replace(self, rows={**self.rows, **made})

    def rewritten(self, token: int, values: Mapping[int, Value], stamp: int, *, partly: bool) -> "Snapshot":
        """The snapshot with other values in one column, written in place."""
        made = {
            uid: replace(self.rows[uid], cells={**self.rows[uid].cells, token: Cell(value, stamp, partly)})
            for uid, value in values.items()
        }
        return replace(self, rows={**self.rows, **made})

    def with_column(self, column: Column) -> "Snapshot":
        """The snapshot with a column that replaces the one with its token, or is appended."""
        if self.column(column.token) is None:
            return replace(self, columns=(*self.columns, column))
        return replace(self, columns=tuple(column if own.token == column.token else own for own in self.columns))

    def without_column(self, token: int) -> "Snapshot":
        """The snapshot without a column and the indices on it."""
        columns = tuple(own for own in self.columns if own.token != token)
        return replace(self, columns=columns, indices=_without(self.indices, token))

    def with_cast(self, column: Column, kind: pa.DataType, stamp: int) -> "Snapshot":
        """The snapshot with another type of a column."""
        changed = self.with_column(replace(column, type=kind, cast=stamp, computed=True))
        return replace(changed, indices=_without(self.indices, column.token))


def _without(indices: Mapping[str, int], token: int) -> dict[str, int]:
    return {name: on for name, on in indices.items() if on != token}


Node = tuple[str, int]
"""A version: its branch and number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A version: its content, the history that it contains, and its own change.

    `within` are the versions whose changes it contains, including itself; `ever` are all its ancestors, whose changes a
    restore may have removed. `parents` are the versions it was made from. `merged` says that it is only a merge.
    """

    node: Node
    snapshot: Snapshot
    within: frozenset[Node]
    ever: frozenset[Node]
    claims: tuple[Claim, ...] = ()
    did: str = ""
    partitions: tuple[str, ...] = ()
    parents: tuple[Node, ...] = ()

    @property
    def merged(self) -> bool:
        """Whether the version is only a merge of two others."""
        return self.did == "merge"


@dataclass(slots=True)
class VersionGraph:
    """All versions."""

    made: dict[Node, Made] = field(default_factory=dict)
    heads: dict[str, Node] = field(default_factory=dict)
    forks: dict[str, tuple[str, Node]] = field(default_factory=dict)
    """By branch: which one it was forked from, and what that was then."""

    def head(self, branch: str) -> Made:
        """The newest version of a branch."""
        return self.made[self.heads[branch]]

    def add(self, made: Made) -> None:
        """Add a new head."""
        self.made[made.node] = made
        self.heads[made.node[0]] = made.node

    def fork(self, name: str, of: Node, parent: str) -> None:
        """Add a branch, which starts as the version that it is forked from."""
        self.heads[name] = of
        self.forks[name] = (parent, of)

    def line(self, branch: str) -> list[Node]:
        """The versions made on a branch itself, oldest first."""
        return sorted(node for node in self.made if node[0] == branch)

    def past(self, branch: str) -> list[Node]:
        """All versions that a branch has had, beginning with those from before its fork."""
        if branch not in self.forks:
            return self.line(branch)
        parent, fork = self.forks[branch]
        return [*(node for node in self.past(parent) if node[1] <= fork[1]), *self.line(branch)]

    def bases(self, one: frozenset[Node], other: frozenset[Node]) -> list[Made]:
        """The merge bases: the common versions that no other common version contains."""
        shared = one & other
        return [
            self.made[node]
            for node in sorted(shared)
            if not any(node in self.made[newer].within for newer in shared if newer != node)
        ]

    def since(self, one: frozenset[Node], other: frozenset[Node]) -> list[Made]:
        """The versions that one has and the other lacks, without merges."""
        return [self.made[node] for node in sorted(one - other) if not self.made[node].merged]
