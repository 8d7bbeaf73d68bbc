"""Write down what decisions about rows mean for the fragments of both sides."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_dagster.changes.merge.fates import Fates, live_rows
from lance_dagster.changes.merge.matching import Matched, present
from lance_dagster.changes.merge.result import Draft
from lance_dagster.changes.merge.rows import Decision, Situation
from lance_dagster.changes.sides import Deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A draft of the result, and what it is drawn from. The dest's rows are looked up only where they matter."""

    source: Matched
    dest: Matched
    source_rows: Fates
    dest_rows: Callable[[], Fates]
    deleted: Deleted
    draft: Draft = field(default_factory=Draft)

    def draw(self, number: int, facts: Situation, decision: Decision) -> None:
        """Write down what was decided about a fragment of the merge base."""
        source, dest, draft = facts.source, facts.dest, self.draft
        taken = decision.from_source
        if dest.place is not None:
            back = BitMap()
            if not facts.dest_columns:
                # The dest's files still hold them; for columns it wrote since, they would hold what nobody wrote.
                same = source.stays if facts.source_columns else source.stays | source.moved
                back = taken & same - dest.alive
            taken = taken - back
            draft.mask(dest.place.id, dest.stays - (decision.alive - taken))
            draft.revive(dest.place.id, back | (BitMap() if facts.dest_columns else taken & source.stays))
            if source.place is not None and facts.source_columns:
                draft.columns[dest.place.id] = source.place, facts.source_columns
        if source.place is not None and (dest.place is None or facts.dest_columns):
            draft.take(source.place.id, taken & source.stays)
        gone = (dest.moved | dest.updated) - (decision.alive - taken)
        for holder, offsets in self.dest_rows().holders(number, gone).items() if gone else ():
            draft.mask(holder, offsets)
        for holder, offsets in self.source_rows.holders(number, taken - source.stays).items():
            self._take(holder, offsets)

    def beside_others(self) -> Iterator[tuple[frozenset[int], int, BitMap]]:
        """Find columns of the source that come beside rows it does not have there: the files hold what nobody wrote.

        Returns:
            The columns, and the rows: their fragment of the merge base and their offsets in it.
        """
        for number, (of, columns) in self.draft.columns.items():
            rows = self._alive(number) - live_rows(self.source.side, of, self.deleted)
            if rows:
                yield columns, self._in_base(number), rows

    def _take(self, holder: int, offsets: BitMap) -> None:
        """Take rows from a fragment of the source; or from the dest's in the same place, where it has the files."""
        own = self.source.base_of(holder)
        place = None if own is None else self.dest.place(own)
        mine = present(self.source.side, holder)
        if place is not None and place.file_names == mine.file_names:
            self.draft.revive(place.id, offsets)
        else:
            self.draft.take(holder, offsets)

    def _in_base(self, number: int) -> int:
        found = self.dest.base_of(number)
        if found is None:
            raise LookupError(f"fragment {number} of the dest is in the place of none of the merge base")
        return found

    def _alive(self, number: int) -> BitMap:
        """Return the offsets of the rows of a fragment of the dest that live on in it."""
        fragment = present(self.dest.side, number)
        before = self.deleted(self.dest.side, fragment)
        return BitMap(range(fragment.physical_rows)) - self.draft.deleted(number, before)
