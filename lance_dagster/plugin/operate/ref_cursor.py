"""The cursor of a ref sensor: the versions that it has reported, as JSON that Dagster stores between two ticks.

A cursor outlives releases of this package, and a person can edit it in the UI. A cursor that cannot be understood is
replaced by an empty one: an exception would repeat at every tick, since the cursor is only replaced after a tick that
succeeds.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lance_dagster.format.validation import parsed_json

_FORMAT = 2
_MAX_CHARACTERS = 20_000_000
# No table gets that many versions, and a JSON number stays exact below it.
_MAX_NUMBER = 2**53
_MARK_FIELDS = 2


class BranchMark(NamedTuple):
    """The last version of a branch that was reported: its number, and the first part of its transaction's uuid.

    The number alone does not identify the version: a table that is dropped and created again reuses the numbers. For a
    channel the mark is the entry that was reported last: its number, and the commit of the repository that it names,
    which is empty while the channel does not exist.
    """

    number: int
    transaction: str


# By ref: the mark of a branch, or for a tag its target and the time of its last move; empty for a ref that is missing.
Marks = dict[str, BranchMark | str]


@dataclass(slots=True, kw_only=True)
class RefCursor:
    """The state between two ticks.

    Attributes:
        tables: The marks of each table by its name. A table without an entry was never visited; an entry without
            marks is a table that did not exist.
        channels: The marks of the channels of a repository, by name.
        next: The index of the table that the next tick starts with.
        announce_all: Whether the versions that exist at the first visit of a table are reported.
    """

    tables: dict[str, Marks] = field(default_factory=dict)
    channels: dict[str, BranchMark] = field(default_factory=dict)
    next: int = 0
    announce_all: bool = False

    @classmethod
    def of(cls, text: str | None, *, from_start: bool) -> "RefCursor | None":
        """Return the cursor that a text holds, or None when the text is not a cursor of this format."""
        if not text:
            return cls(announce_all=from_start)
        if len(text) > _MAX_CHARACTERS:
            return None
        try:
            state = parsed_json(text)
            if not isinstance(state, dict) or state.get("format") != _FORMAT or not isinstance(state.get("seen"), dict):
                return None
            # `channels` is absent in the cursor of a sensor that watched tables only.
            channels = dict(state.get("channels") or {})
            return cls(
                tables={str(name): _marks(marks) for name, marks in state["seen"].items()},
                channels={str(name): _branch_mark(mark) for name, mark in channels.items()},
                next=_number(state.get("next")),
                announce_all=state.get("all") is True,
            )
        except (ValueError, TypeError):
            return None

    def note_absent(self, channel: str, deleted_at: int = 0) -> None:
        """Record that a watched ref is not a channel.

        Args:
            channel: The ref.
            deleted_at: The number of the entry that deleted the channel; 0 for a ref that never was a channel, since
                entries start with 1.
        """
        self.channels[channel] = BranchMark(deleted_at, "")

    def keep_only(self, names: Iterable[str]) -> None:
        """Drop the marks of tables that are no longer watched; without this the cursor would only grow."""
        watched = set(names)
        self.tables = {name: marks for name, marks in self.tables.items() if name in watched}

    def to_json(self) -> str:
        """Return the text that Dagster stores."""
        state: dict[str, object] = {"format": _FORMAT, "next": self.next, "all": self.announce_all}
        state["seen"] = self.tables
        if self.channels:
            state["channels"] = self.channels
        return json.dumps(state, separators=(",", ":"))


def _marks(marks: object) -> Marks:
    if not isinstance(marks, Mapping):
        raise TypeError
    return {str(ref): mark if isinstance(mark, str) else _branch_mark(mark) for ref, mark in marks.items()}


def _branch_mark(fields: object) -> BranchMark:
    if not isinstance(fields, list) or len(fields) != _MARK_FIELDS or not isinstance(fields[1], str):
        raise TypeError
    return BranchMark(_number(fields[0]), fields[1])


def _number(number: object) -> int:
    # `True` is an int for Python.
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _MAX_NUMBER:
        raise ValueError
    return number
