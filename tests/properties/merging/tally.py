"""What was done over many histories, and what was refused."""

from collections import Counter
from dataclasses import dataclass, field

Refusal = tuple[str, str]
"""The reasons of the engine, and the history."""


@dataclass(slots=True)
class Tally:
    """What was done over all histories, and every refusal that the rules do not ask for."""

    done: Counter[str] = field(default_factory=Counter)
    needless: list[Refusal] = field(default_factory=list)
    """Refused merges."""
    needless_picks: list[Refusal] = field(default_factory=list)
    """Refused cherry-picks and reverts, and merges of what they made."""
    undecided: list[tuple[str, str, str]] = field(default_factory=list)
    """Conflicts that were left although one side was to win: which one, the reasons and the history."""
