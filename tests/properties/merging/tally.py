"""Counts of the operations over many histories, and of the refusals."""

import re
from collections import Counter
from dataclasses import dataclass, field

Refusal = tuple[str, str]
"""The reasons of the engine, and the history."""


@dataclass(slots=True)
class Judged:
    """The merges that the rules ask to pass, and those of them that were refused, for an allowed reason or another."""

    should_pass: int = 0
    refused: list[Refusal] = field(default_factory=list)

    def add(self, other: "Judged") -> None:
        """Count the merges of other histories too."""
        self.should_pass += other.should_pass
        self.refused += other.refused

    def told(self) -> str:
        """The share that was refused, the reasons with the most frequent one first, and the last history."""
        reasons = Counter(re.sub(r"\d+", "N", reason.partition("; ")[0]) for reason, _ in self.refused)
        counted = "\n".join(f"{times} times {reason}" for reason, times in reasons.most_common())
        return f"{len(self.refused)} of {self.should_pass} were refused:\n{counted}\n\n{self.refused[-1][1]}"


@dataclass(slots=True)
class Tally:
    """The counts of the operations over all histories, and every refusal that the rules do not require."""

    done: Counter[str] = field(default_factory=Counter)
    needless: list[Refusal] = field(default_factory=list)
    """Refused merges."""
    needless_picks: list[Refusal] = field(default_factory=list)
    """Refused cherry-picks and reverts, and merges of what they made."""
    judged: dict[bool, "Judged"] = field(default_factory=lambda: {True: Judged(), False: Judged()})
    """The merges that should pass, with stable row ids and without."""
    undecided: list[tuple[str, str, str]] = field(default_factory=list)
    """Conflicts that were left although one side was to win: which one, the reasons and the history."""
