"""Which versions of a branch stay because of their age or their place: rules over numbers and times.

A version is in use from when it was made until the next one is. It stays when it was in use at any moment of the
time a rule looks back, so the newest version older than that stays too: it is what a reader saw when that time began.

The time of a version is the later one of what its manifest says and when the manifest was stored, and never before
that of the version before it. One clock that is behind, or a copy with older times, makes nothing look old then; a
clock that is ahead, or a copy with newer times, makes versions stay longer.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TypeVar

from lance_dagster.errors import InvalidInputError

Version = TypeVar("Version")
"""Whatever stands for a version; rules look at its numbers only."""
SETTING = "lance_dagster.retention"
"""The setting of a table under which its rules are kept, as JSON."""
DEFAULT_AGE = timedelta(days=14)
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION = re.compile(r"(\d{1,6})\s*([wdhms])")
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Versions that were in use during the last `older_than` stay, and so do the `keep_last` newest."""

    older_than: timedelta = DEFAULT_AGE
    keep_last: int = 1

    def __post_init__(self) -> None:
        """Refuse a rule that makes no sense.

        Raises:
            InvalidInputError: Its age is negative, or no version is left.
        """
        if self.older_than < timedelta(0):
            raise InvalidInputError(f"older_than is {self.older_than}; it cannot be negative")
        if self.keep_last < 1:
            raise InvalidInputError(f"keep_last is {self.keep_last}; at least the newest version of a branch stays")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rules of a table: one for each pattern of branch names, the first that fits, and one for the rest."""

    rest: Rule = field(default_factory=Rule)
    branches: Mapping[str, Rule] = field(default_factory=dict)

    def rule(self, branch: str) -> Rule:
        """Return the rule for a branch."""
        return next((rule for pattern, rule in self.branches.items() if fnmatchcase(branch, pattern)), self.rest)


@dataclass(frozen=True, slots=True)
class Dated:
    """A version with the time its manifest says and the time the manifest was stored, both in seconds since 1970.

    `left` is how many versions its branch has from this one on.
    """

    left: int
    said: float
    stored: float


def kept(
    rules: Sequence[Rule], versions: Iterable[tuple[Dated, Version]], now: float
) -> Iterator[tuple[Version, str | None]]:
    """Yield every version of a branch with the reason why one of some rules keeps it, None when all let it go.

    Each comes as soon as it is known when the next one was made.

    Args:
        rules: What is to stay.
        versions: The versions of the branch, oldest first.
        now: The time, in seconds since 1970.
    """
    latest = float("-inf")
    before: tuple[Dated, Version] | None = None
    for dated, version in versions:
        latest = max(latest, dated.said, dated.stored)
        if before is not None:
            reasons = (_reason(rule, before[0].left, latest, now) for rule in rules)
            yield before[1], next((found for found in reasons if found is not None), None)
        before = dated, version
    if before is not None:
        yield before[1], "the newest"


def _reason(rule: Rule, left: int, until: float, now: float) -> str | None:
    """Return why a rule keeps a version that was the newest until some time."""
    if left <= rule.keep_last:
        return f"one of the newest {rule.keep_last}"
    if until > now - rule.older_than.total_seconds():
        return f"in use during the last {duration_text(rule.older_than)}"
    return None


def duration(text: str) -> timedelta:
    """Read a duration such as `7d`, `36h` or `2w`.

    Raises:
        InvalidInputError: It is none.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"{text[:_LONGEST_SHOWN]!r} is no duration; write it as 7d, 36h, 90m or 2w")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def duration_text(value: timedelta) -> str:
    """Write a duration as `duration` reads it, in the largest unit that fits."""
    seconds = round(value.total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and not seconds % length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def retention_from_json(text: str) -> Retention:
    """Read the rules of a table as they are kept in its settings.

        {"older_than": "30d", "keep_last": 5, "branches": {"run/*": {"older_than": "7d"}}}

    What is left out of a rule for branches is as in the rest.

    Raises:
        InvalidInputError: They are not of this form. Going on without them would delete what they keep.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the setting {SETTING} is no JSON: {text[:_LONGEST_SHOWN]!r}") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"the setting {SETTING} is no JSON object: {text[:_LONGEST_SHOWN]!r}")
    branches = found.pop("branches", {})
    if not isinstance(branches, dict):
        raise InvalidInputError(f'"branches" in the setting {SETTING} maps patterns of names to rules')
    rest = _rule(found, Rule())
    return Retention(rest=rest, branches={pattern: _rule(rule, rest) for pattern, rule in branches.items()})


def _rule(found: object, rest: Rule) -> Rule:
    if not isinstance(found, dict) or not found.keys() <= {"older_than", "keep_last"}:
        raise InvalidInputError(
            f'a rule in the setting {SETTING} has "older_than", "keep_last" and nothing else, '
            f"unlike {str(found)[:_LONGEST_SHOWN]}"
        )
    age, last = found.get("older_than"), found.get("keep_last", rest.keep_last)
    if age is not None and not isinstance(age, str):
        raise InvalidInputError(f'"older_than" in the setting {SETTING} is a text such as "7d", unlike {age!r}')
    if isinstance(last, bool) or not isinstance(last, int):
        raise InvalidInputError(f'"keep_last" in the setting {SETTING} is a number, unlike {last!r}')
    return Rule(older_than=rest.older_than if age is None else duration(age), keep_last=last)
