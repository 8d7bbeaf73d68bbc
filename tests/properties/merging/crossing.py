"""Random histories of three branches that merge, pick from and revert each other, held against a model of cells.

A table is a map from the id of a row to its two values. Every write has a new value, so that equal values are the same
write. Merge bases are found among the versions that each version contains, and several of them are merged with each
other first, as in git: what they have in conflict is unknown, and any state of the two sides is right there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Literal

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.errors import ConflictError, MergeConflictError
from lance_dagster.types import Winner
from tests.properties.merging.laws import hold
from tests.table_factory import as_pylance

Row = tuple[int | None, int | None]
UNKNOWN: Literal["unknown"] = "unknown"
RowState = Row | Literal["unknown"] | None
"""The values of a row, None where there is none, and `UNKNOWN` where merge bases are in conflict about it."""
Cells = Mapping[int, Row]
BRANCHES = ("main", "a", "z")
"""Names on both sides of "main": of several merge bases, the one on the branch that sorts first is the first."""
COLUMNS = ("first", "second")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A version: its ref, its rows, the refs of all versions that it contains, and its first parent."""

    ref: str
    rows: Cells
    within: frozenset[str]
    parent: str
    is_merge: bool = False


@dataclass(slots=True)
class CrossingHistory:
    """A table of three branches, and the model of its versions."""

    folder: Path
    dice: Random
    stable: bool
    values: Iterator[int] = field(default_factory=lambda: count(100))
    commits: dict[str, Commit] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    picked: set[int] = field(default_factory=set)
    """Rows that a pick put in somewhere: which of their deletions count elsewhere has rules of its own."""
    told: list[str] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)

    @property
    def table(self) -> LanceTable:
        """The table as a new process opens it; a sync after each file would take a third of the time of a history."""
        return LanceTable.open(self.folder / "table", storage_options={"durability": "process"})

    def run(self, steps: int) -> None:
        """Make the table and take random steps."""
        rows = {number: (number, number) for number in range(1, 6)}
        lance.write_dataset(_arrow(rows), self.folder / "table", enable_stable_row_ids=self.stable)
        self.commits["main@1"] = Commit(ref="main@1", rows=rows, within=frozenset(["main@1"]), parent="")
        self.lines = {branch: ["main@1"] for branch in BRANCHES}
        for branch in BRANCHES[1:]:
            self.table.branches.create(branch)
        kinds = (self.write, self.write, self.write, self.merge, self.merge, self.compact, self.revert, self.pick)
        for _ in range(steps):
            self.dice.choice([*kinds, self.reset] if self.dice.random() < 0.3 else kinds)(self.dice.choice(BRANCHES))
        for branch in BRANCHES:
            as_pylance(self.table, branch).validate()

    def head(self, branch: str) -> Commit:
        """The newest version of a branch."""
        return self.commits[self.lines[branch][-1]]

    def write(self, branch: str) -> None:
        """Update a cell, upsert one column, insert or delete a row."""
        rows, kind = dict(self.head(branch).rows), self.dice.choice(["update", "update", "upsert", "insert", "delete"])
        number, place, value = self.dice.choice([*rows, 0]), self.dice.randrange(2), next(self.values)
        if kind == "insert" or number not in rows:
            rows[value] = (value, value)
            self.table.append(_arrow({value: rows[value]}), branch=branch)
        elif kind == "delete":
            del rows[number]
            self.table.delete(f"id = {number}", branch=branch)
        else:
            rows[number] = (value, rows[number][1]) if not place else (rows[number][0], value)
            if kind == "update":
                self.table.update({COLUMNS[place]: str(value)}, where=f"id = {number}", branch=branch)
            else:
                rows[value] = (None, value) if place else (value, None)
                data = pa.table({"id": [number, value], COLUMNS[place]: [value, value]})
                self.table.upsert(data, on=["id"], branch=branch)
        self._made(branch, f"{kind} {number}", lambda found: found == rows)

    def compact(self, branch: str) -> None:
        """Compact a branch by either program, after an append so that there are two fragments."""
        value = next(self.values)
        rows = {**self.head(branch).rows, value: (value, value)}
        self.table.append(_arrow({value: rows[value]}), branch=branch)
        self._made(branch, f"insert {value}", lambda found: found == rows)
        if self.dice.random() < 0.5:
            self.table.maintenance.compact(branch=branch)
        else:
            as_pylance(self.table, branch).optimize.compact_files()
        self._made(branch, "compact", lambda found: found == rows)

    def reset(self, branch: str) -> None:
        """Reset a branch to an older version of its own, where nothing needs the versions since."""
        line = [ref for ref in self.lines[branch] if ref.startswith(f"{branch}@")]
        if branch == "main" or len(line) < 2:
            return
        to = self.commits[self.dice.choice(line[:-1])]
        try:
            self.table.branches.reset(branch, to.ref)
        except ConflictError:
            return
        self.lines[branch] = self.lines[branch][: self.lines[branch].index(to.ref) + 1]
        self._made(branch, f"reset to {to.ref}", lambda found: found == to.rows)

    def revert(self, branch: str) -> None:
        """Revert one of the last versions of a branch: rows that it left alone stay."""
        before = self.head(branch)
        of = self.commits[self.dice.choice(self.lines[branch][-4:])]
        if not of.parent or not of.ref.startswith(f"{branch}@"):
            return
        touched = _touched(of.rows, self.commits[of.parent].rows)
        try:
            self.table.revert(of.ref, branch, parent=1 if of.is_merge else None)
        except MergeConflictError:
            self._count("revert refused")
            return
        states = {row: {each.rows.get(row) for each in self.commits.values()} for row in touched}

        def right(found: Cells) -> bool:
            return all(
                found.get(row) == before.rows.get(row) if row not in touched else _is_known(found.get(row), states[row])
                for row in found.keys() | before.rows.keys()
            )

        self._made(branch, f"revert {of.ref}", right)

    def pick(self, branch: str) -> None:
        """Pick a version of another branch: rows that it left alone stay."""
        before, other = self.head(branch), self.dice.choice([one for one in BRANCHES if one != branch])
        of = self.commits[self.dice.choice(self.lines[other][-3:])]
        if not of.parent or of.ref in before.within:
            return
        parent = self.commits[of.parent]
        touched = _touched(of.rows, parent.rows)
        strategy: Winner | None = self.dice.choice([None, None, "source-wins", "dest-wins"])
        try:
            self.table.cherry_pick(of.ref, branch, parent=1 if of.is_merge else None, strategy=strategy)
        except MergeConflictError:
            self._count("pick refused")
            return

        def right(found: Cells) -> bool:
            stay = all(found.get(row) == before.rows.get(row) for row in before.rows.keys() | found.keys() - touched)
            return stay or all(
                found.get(row) == before.rows.get(row) for row in (before.rows.keys() | found.keys()) - touched
            )

        self.picked |= touched - (parent.rows.keys() & before.rows.keys())
        self._made(branch, f"pick {of.ref} with {strategy}", right)

    def merge(self, branch: str) -> None:
        """Merge another branch, mostly its head and sometimes an older version, mostly without a strategy."""
        dest, other = self.head(branch), self.dice.choice([one for one in BRANCHES if one != branch])
        line = self.lines[other]
        source = self.commits[line[-1] if self.dice.random() < 0.5 else self.dice.choice(line[-4:])]
        if source.ref in dest.within:
            return
        strategy: Winner | None = self.dice.choice([None, None, None, "source-wins", "dest-wins"])
        base, bases = self._merged_bases(source, dest), self._bases(source, dest)
        self._count("several merge bases" if len(bases) > 1 else "one merge base")
        try:
            self.table.merge(source.ref, branch, strategy=strategy)
        except MergeConflictError:
            rows = base.keys() | source.rows.keys() | dest.rows.keys()
            free = all(_merged(base.get(row), source.rows.get(row), dest.rows.get(row), strategy) for row in rows)
            kind = "stable row ids" if self.stable else "addresses"
            self._count(f"merge refused {'without need' if free else 'for a conflict'}, {kind}")
            return

        def wrong(found: Cells) -> Iterator[str]:
            for row in base.keys() | source.rows.keys() | dest.rows.keys() | found.keys():
                states = base.get(row), source.rows.get(row), dest.rows.get(row)
                allowed = {*_merged(*states, strategy), *self._updated_again(source, dest, row, base=states[0])}
                if row in self.picked and base.get(row) is None:
                    allowed = {*allowed, *states[1:], None}
                # A strategy also decides about what the merge bases do not agree on, and without stable row ids about
                # rows that may have changed.
                unsure = not self.stable or len({each.rows.get(row) for each in bases}) > 1
                if strategy is not None and unsure:
                    allowed = {*allowed, states[1] if strategy == "source-wins" else states[2]}
                if found.get(row) not in allowed:
                    yield f"row {row} is {found.get(row)}, not {allowed} of {states}"

        message = f"merge {source.ref} with {strategy}"
        self._made(branch, message, lambda found: not list(wrong(found)), wrong=wrong, merged=source)

    def _made(
        self,
        branch: str,
        did: str,
        right: Callable[[Cells], bool],
        *,
        wrong: Callable[[Cells], Iterator[str]] | None = None,
        merged: Commit | None = None,
    ) -> None:
        """Read what a step made, hold it against the model, and note the new version."""
        before, table = self.head(branch), self.table
        read = table.read(branch).to_pylist()
        found = {row["id"]: (row["first"], row["second"]) for row in read}
        ref = str(table.head(branch))
        self.told.append(f"{ref}: {did}: {found}")
        hold(len(found) == len(read), "rows", f"doubled: {sorted(row['id'] for row in read)}")
        hold(right(found), "rows", "; ".join(wrong(found)) if wrong else f"{before.rows} became {found}")
        self._count(did.partition(" ")[0])
        # The first version of a branch repeats its fork point, which the model has under the name of that.
        if ref not in self.commits and not ref.endswith("@1"):
            within = before.within | (merged.within if merged else frozenset()) | {ref}
            self.commits[ref] = Commit(
                ref=ref, rows=found, within=within, parent=before.ref, is_merge=merged is not None
            )
            self.lines[branch].append(ref)

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def _bases(self, one: Commit, other: Commit) -> list[Commit]:
        """The merge bases: the common versions that no other common version contains."""
        common = one.within & other.within
        below = {older for ref in common for older in self.commits[ref].within - {ref}}
        return sorted((self.commits[ref] for ref in common - below), key=lambda commit: commit.ref)

    def _updated_again(self, source: Commit, dest: Commit, row: int, *, base: RowState) -> set[Row]:
        """The update of a row that both sides brought back and one side changed since.

        The row has the same id on both sides, so that it is no row which each of them inserted.
        """
        if base is not None or row not in source.rows or row not in dest.rows:
            return set()
        having = [self.commits[ref] for ref in source.within & dest.within if row in self.commits[ref].rows]
        below = {older for commit in having for older in commit.within - {commit.ref}}
        last = {commit.rows[row] for commit in having if commit.ref not in below}
        both = {source.rows[row], dest.rows[row]}
        return both - last if both & last else set()

    def _merged_bases(self, one: Commit, other: Commit) -> Mapping[int, RowState]:
        """The rows of the merge base; of several, of the merge of all."""
        joined, *others = self._bases(one, other)
        rows: dict[int, RowState] = dict(joined.rows)
        for base in others:
            before = self._merged_bases(joined, base)
            keys = before.keys() | rows.keys() | base.rows.keys()
            merged = {row: _one_of(_merged(before.get(row), rows.get(row), base.rows.get(row), None)) for row in keys}
            rows = {row: state for row, state in merged.items() if state is not None}
            joined = replace(joined, within=joined.within | base.within)
        return rows


def _one_of(states: set[RowState]) -> RowState:
    return next(iter(states)) if len(states) == 1 else UNKNOWN


def _merged(base: RowState, source: RowState, dest: RowState, strategy: Winner | None) -> set[RowState]:
    """The states that a merge may give a row; none where it has to be refused."""
    if source == dest:
        return {source}
    if UNKNOWN in (base, source, dest):
        return {source, dest}
    if base in (source, dest):
        return {dest if base == source else source}
    winner = None if strategy is None else source if strategy == "source-wins" else dest
    if base is None or source is None or dest is None:
        return set() if winner is None and strategy is None else {winner}
    cells = [_cell(*cell, strategy) for cell in zip(base, source, dest, strict=True)]  # type: ignore[arg-type]  # no text
    # Rows that cannot be written anew are taken whole from the winner.
    whole = set() if strategy is None else {winner}
    return whole if any(not cell for cell in cells) else {*whole, (cells[0][0], cells[1][0])}


def _cell(base: int | None, source: int | None, dest: int | None, strategy: Winner | None) -> list[int | None]:
    if dest in (source, base):
        return [source]
    if base == source:
        return [dest]
    return [] if strategy is None else [source if strategy == "source-wins" else dest]


def _touched(one: Cells, other: Cells) -> set[int]:
    return {row for row in one.keys() | other.keys() if one.get(row) != other.get(row)}


def _is_known(found: Row | None, states: set[Row | None]) -> bool:
    """Whether each cell has a value that the row had there in some version."""
    if found is None:
        return True
    return all(any(state is not None and state[at] == cell for state in states) for at, cell in enumerate(found))


def _arrow(rows: Cells) -> pa.Table:
    values = [{"id": number, "first": row[0], "second": row[1]} for number, row in rows.items()]
    return pa.Table.from_pylist(values, schema=pa.schema([(name, pa.int64()) for name in ("id", *COLUMNS)]))
