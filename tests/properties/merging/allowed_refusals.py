"""Refusals that the rules do not require, but that are correct: the merge would be possible only by reading rows."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from tests.properties.merging.tally import Refusal

ALLOWED: Mapping[str, str] = {
    r"brings them in again[\s\S]*stable row ids: False": "what was picked before can only be told from its id",
    "without stable row ids|has no stable row ids": "where a row went can only be told from its id",
    "wrote its values beside rows that moved": "values of both sides would have to be written into one file",
}
"""By a pattern that the reasons of a refusal, and the history, match: why it cannot be merged."""


def needless(refusals: Iterable[Refusal]) -> tuple[list[Refusal], Counter[str]]:
    """The refusals without a known reason, and how often each known reason occurred."""
    counted: Counter[str] = Counter()
    left = []
    for reasons, story in refusals:
        known = next((pattern for pattern in ALLOWED if re.search(pattern, f"{reasons}\n{story}")), None)
        if known is None:
            left.append((reasons, story))
        else:
            counted[known] += 1
    return left, counted
