"""Counts of the operations over many histories, and of the refusals."""

from collections import Counter
from dataclasses import dataclass, field

Refusal = tuple[str, str]
"""The reasons of the engine, and the history."""


@dataclass(slots=True)
class Tally:
    """The counts of the operations over all histories, and every refusal that the rules do not require."""

    done: Counter[str] = field(default_factory=Counter)
    needless: list[Refusal] = field(default_factory=list)
    """Refused merges."""
    needless_picks: list[Refusal] = field(default_factory=list)
    """Refused cherry-picks and reverts, and merges of what they made."""
    undecided: list[tuple[str, str, str]] = field(default_factory=list)
    """Conflicts that were left although one side was to win: which one, the reasons and the history."""
