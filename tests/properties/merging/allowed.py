"""Refusals that the rules do not ask for and that are right all the same: what cannot be done without reading rows."""

import re
from collections import Counter
from collections.abc import Mapping

from tests.properties.merging.world import Tally

ALLOWED: Mapping[str, str] = {
    "without stable row ids|has no stable row ids": "where a row went can only be told from its id",
    "wrote its values beside rows that moved": "values of both sides would have to be written into one file",
}
"""By a pattern that the reasons of a refusal match: why it cannot be merged."""


def needless(tally: Tally) -> tuple[list[tuple[str, str]], Counter[str]]:
    """The refusals without a known reason, and how often each known one came."""
    counted: Counter[str] = Counter()
    left = []
    for reasons, story in tally.needless:
        known = next((pattern for pattern in ALLOWED if re.search(pattern, reasons)), None)
        if known is None:
            left.append((reasons, story))
        else:
            counted[known] += 1
    return left, counted
