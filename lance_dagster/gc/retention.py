"""Retention rules: decide by age and position which versions of a branch stay. This is pure arithmetic.

A version is in use from its own time until the next version is made. It stays when it was in use at any moment of the
period that a rule looks back over. So the newest version that is older than the period stays too: it is what a reader
saw when the period began.

The time of a version is the later one of what its manifest says and of when the manifest was stored, and never before
the time of its predecessor. A clock that was behind, or a copy with older times, then makes nothing look old. A clock
that was ahead, or a copy with newer times, only makes versions stay longer.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TypeVar

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import check_names, check_pattern, parsed_json

Version = TypeVar("Version")
"""Whatever the caller uses for a version; rules look only at its `Dated`."""
SETTING = "lance_dagster.retention"
"""The config key under which a table keeps its rules, as JSON."""
_PREFIX = "lance_dagster."
DEFAULT_AGE = timedelta(days=14)
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION = re.compile(r"(\d{1,6})\s*([wdhms])")
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Keep the versions that were in use during the last `older_than`, and the `keep_last` newest versions.

    Example: versions were made on the 1st, the 10th and the 20th. On the 25th, a rule of 14 days keeps the version of
    the 20th and the version of the 10th, which was in use on the 11th; the version of the 1st expires.
    """

    older_than: timedelta = DEFAULT_AGE
    keep_last: int = 1

    def __post_init__(self) -> None:
        """Refuse a rule that makes no sense.

        Raises:
            InvalidInputError: The age is negative, or the rule would keep no version at all.
        """
        if self.older_than < timedelta(0):
            raise InvalidInputError(f"older_than is {self.older_than}; it cannot be negative")
        if self.keep_last < 1:
            raise InvalidInputError(f"keep_last is {self.keep_last}; at least the newest version of a branch stays")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rules of a table by glob pattern of branch names: the first match counts, and `default` if none matches."""

    default: Rule = field(default_factory=Rule)
    branches: Mapping[str, Rule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse patterns that take too long to compare with every branch.

        Raises:
            InvalidInputError: A pattern has more than 256 characters.
        """
        for pattern in self.branches:
            check_pattern(pattern)

    def rule(self, branch: str) -> Rule:
        """Return the rule for a branch."""
        return next((rule for pattern, rule in self.branches.items() if fnmatchcase(branch, pattern)), self.default)


@dataclass(frozen=True, slots=True)
class Dated:
    """The age and position of a version.

    Attributes:
        rank: Its position from the newest version of the branch, which has rank 1.
        claimed_at: The time in its manifest, in seconds since 1970.
        stored_at: When the manifest was stored, in seconds since 1970.
    """

    rank: int
    claimed_at: float
    stored_at: float


def reasons_to_keep(
    rules: Sequence[Rule], versions: Iterable[tuple[Dated, Version]], now: float
) -> Iterator[tuple[Version, str | None]]:
    """Yield every version of a branch with the reason why a rule keeps it, None when no rule does.

    A version is decided once its successor is known, since it was in use until then. So at most two versions are in
    memory at a time.

    Args:
        rules: The rules; a version stays if any rule keeps it.
        versions: The versions of the branch, oldest first.
        now: The time, in seconds since 1970.
    """
    latest = float("-inf")
    before: tuple[Dated, Version] | None = None
    for dated, version in versions:
        # No version is older than its predecessor: a clock that was behind must not make it look older than it is.
        latest = max(latest, dated.claimed_at, dated.stored_at)
        if before is not None:
            reasons = (_reason(rule, before[0].rank, latest, now) for rule in rules)
            yield before[1], next((reason for reason in reasons if reason is not None), None)
        before = dated, version
    if before is not None:
        # The newest version always stays: a branch without a version could not be read or committed to.
        yield before[1], "the newest"


def _reason(rule: Rule, rank: int, until: float, now: float) -> str | None:
    """Return why a rule keeps a version that was in use until some time; None when it does not."""
    if rank <= rule.keep_last:
        return f"one of the newest {rule.keep_last}"
    # The version was in use at some moment of the period, even if it was made before the period began.
    if until > now - rule.older_than.total_seconds():
        return f"in use during the last {duration_text(rule.older_than)}"
    return None


def duration(text: str) -> timedelta:
    """Read a duration such as `7d`, `36h` or `2w`.

    Raises:
        InvalidInputError: The text is not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"{text[:_LONGEST_SHOWN]!r} is not a duration; write it as 7d, 36h, 90m or 2w")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def duration_text(value: timedelta) -> str:
    """Format a duration as `duration` parses it, in the largest unit that fits without a remainder."""
    seconds = round(value.total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and not seconds % length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def check_settings(settings: Mapping[str, str | None]) -> None:
    """Refuse settings of this package that it does not know or cannot read; None removes a key and is not checked.

    Raises:
        InvalidInputError: A key is misspelt, so that its rules would never apply, or the rules have another form.
    """
    own = {key: text for key, text in settings.items() if key.startswith(_PREFIX) and text is not None}
    check_names("setting", own, (SETTING,))
    for text in own.values():
        retention_from_json(text)


def retention_from_json(text: str) -> Retention:
    """Parse the rules of a table from its config.

        {"older_than": "30d", "keep_last": 5, "branches": {"run/*": {"older_than": "7d"}}}

    A rule for a pattern takes the values that it does not have from the rule without a pattern: here versions of
    branches `run/*` expire after 7 days, and the 5 newest of each stay.

    Raises:
        InvalidInputError: The text has another form. Ignoring it would delete versions that the rules keep.
    """
    try:
        setting = parsed_json(text)
    except ValueError as error:
        raise InvalidInputError(f"the setting {SETTING} is not JSON: {text[:_LONGEST_SHOWN]!r}") from error
    if not isinstance(setting, dict):
        raise InvalidInputError(f"the setting {SETTING} is not a JSON object: {text[:_LONGEST_SHOWN]!r}")
    # An unknown key is refused below: a typo must not switch a rule off.
    branches = setting.pop("branches", {})
    if not isinstance(branches, dict):
        raise InvalidInputError(f'"branches" in the setting {SETTING} maps patterns of names to rules')
    default = _rule(setting, Rule())
    return Retention(default=default, branches={pattern: _rule(rule, default) for pattern, rule in branches.items()})


def _rule(setting: object, default: Rule) -> Rule:
    if not isinstance(setting, dict) or not setting.keys() <= {"older_than", "keep_last"}:
        raise InvalidInputError(
            f'a rule in the setting {SETTING} must be a JSON object with "older_than", "keep_last" or both, '
            f"not {str(setting)[:_LONGEST_SHOWN]}"
        )
    age, keep_last = setting.get("older_than"), setting.get("keep_last", default.keep_last)
    if age is not None and not isinstance(age, str):
        raise InvalidInputError(f'"older_than" in the setting {SETTING} must be text such as "7d", not {age!r}')
    # True is an int in Python, and would mean one version.
    if isinstance(keep_last, bool) or not isinstance(keep_last, int):
        raise InvalidInputError(f'"keep_last" in the setting {SETTING} must be a number, not {keep_last!r}')
    return Rule(older_than=default.older_than if age is None else duration(age), keep_last=keep_last)
