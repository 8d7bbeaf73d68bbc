"""Resolve ref expressions: what people type to name one version of a table.

    name             the newest version of a branch, or the version that a tag names
    name@17          version 17 of a branch
    name@{time}      the newest version of a branch at a time: `main@{2026-01-31T00:00Z}`, `main@{2 days ago}`
    branch:name      the branch, where a tag has the same name; `tag:name` the tag
    3f9ac2d1         the version of that commit id, or the only one whose id begins so (at least 8 digits)

    ref~3            three versions before, along first parents and across fork points; `ref~` is one version before
    ref^2            the second parent, which a merge brought in; `ref^` is the first parent, `ref^0` the version itself

None of the characters with a meaning here may occur in a name. A ref is resolved once, at the start of a read or a
write. From there only the branch and the number travel, so no part of the operation sees a name move.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime

import pendulum

from lance_dagster.errors import InvalidInputError, RefNotFoundError, RefSyntaxError, VersionNotFoundError
from lance_dagster.format.codec import COMMIT_PREFIX
from lance_dagster.format.layout import MAIN
from lance_dagster.history.ancestry import Ancestry, VersionRef
from lance_dagster.history.find_commits import find_commits
from lance_dagster.history.log import CLOCK_SKEW_SECONDS
from lance_dagster.history.ref_grammar import BRANCH, TAG, RefExpression, parse
from lance_dagster.history.refs.ref_files import READY, Tag
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Versions

_SHORTEST_COMMIT, _SHOWN_DIGITS = 8, 12
_SHOWN_CANDIDATES = 10
_UNIT = r"(second|minute|hour|day|week|month|year)s?"
_AGO = re.compile(rf"([0-9]{{1,6}} {_UNIT}[ ,]+)+ago", re.IGNORECASE)
_AMOUNT = re.compile(rf"([0-9]{{1,6}}) {_UNIT}", re.IGNORECASE)
# Digits are limited, since pendulum lets larger numbers overflow silently.
_DURATION = re.compile(r"P(?=.)([0-9]{1,6}[YMWD])*(T([0-9]{1,6}[HMS])+)?")
_DATE = r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?|[0-9]{8}|[0-9]{4}-[0-9]{3}|[0-9]{4}-?W[0-9]{2}(-?[0-7])?"
_CLOCK = r"[0-9]{2}(:?[0-9]{2}(:?[0-9]{2}([.,][0-9]+)?)?)?"
_MOMENT = re.compile(
    rf"(?P<time>({_DATE})([ T]{_CLOCK}(?P<offset>Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)?)?)"
    r"( (?P<zone>[A-Za-z][A-Za-z0-9_+/-]*))?"
)
_TIME_EXPECTED = "a time such as 2026-01-31T00:00Z, 2026-01-31 18:00 Europe/Berlin, 2 days ago, yesterday or P2D"


def resolve(expression: str, refs: Refs, versions: Versions) -> tuple[str, int]:
    """Return the branch and the number of the version that an expression names.

    Raises:
        RefSyntaxError: The expression cannot be read.
        RefNotFoundError: Neither branch nor tag has the name, and no commit id begins so.
        VersionNotFoundError: The branch has no such version, or its history does not go back so far.
        InvalidInputError: The expression is not a string, a branch and a tag share the name, several commit ids begin
            so, a tag or commit id is given a number or time, or a version has fewer parents.
    """
    place = resolve_in(expression, Ancestry(refs, versions))
    return place.branch, place.number


def resolve_in(expression: str, ancestry: Ancestry) -> VersionRef:
    """Return the version that an expression names as `resolve` does, with what is looked up kept in `ancestry`."""
    parsed = parse(expression)
    return _follow_steps(_base_version(parsed, ancestry), parsed, ancestry)


def parse_time(text: str) -> pendulum.DateTime | str:
    """Parse a point in time as `parse_moment` does, with "ago" counted from the time of the call."""
    return parse_moment(text, pendulum.now("UTC"))


def parse_moment(text: str, now: pendulum.DateTime) -> pendulum.DateTime | str:
    """Parse a point in time; for text that is invalid or ambiguous return what was expected instead.

    Args:
        text: A date or a date and time in ISO 8601, with a zone or an offset, else UTC; `2 days ago`, `1 day 2 hours
            ago`, `yesterday` (24 hours ago, as in git), `now`; or an ISO 8601 duration, which is as long ago.
        now: The time that "ago" counts from.
    """
    words = " ".join(text.split())
    try:
        if words.lower() in ("now", "yesterday"):
            return now.subtract(days=words.lower() == "yesterday")
        if _AGO.fullmatch(words):
            amounts: dict[str, int] = {}
            for amount, unit in _AMOUNT.findall(words):
                amounts[f"{unit.lower()}s"] = amounts.get(f"{unit.lower()}s", 0) + int(amount)
            return now.subtract(**amounts)
        if _DURATION.fullmatch(words):
            duration = pendulum.parse(words)
            return now - duration if isinstance(duration, pendulum.Duration) else _TIME_EXPECTED
        match = _MOMENT.fullmatch(words)
        moment = _parse_zoned(match) if match else None
    # These are raised for days and zones that do not exist, and for times before the year 1.
    except (ValueError, OverflowError, LookupError, TypeError):
        return _TIME_EXPECTED
    return moment if isinstance(moment, pendulum.DateTime | str) else _TIME_EXPECTED


def _parse_zoned(match: re.Match[str]) -> pendulum.DateTime | str | None:
    """Parse a date and time with an offset or a zone; return both readings where clocks were changed."""
    if match["zone"] and match["offset"]:
        return f"an offset or a zone, not both: {match['offset']!r} and {match['zone']!r}"
    parsed = pendulum.parse(match["time"])
    if not match["zone"] or not isinstance(parsed, pendulum.DateTime):
        return parsed if isinstance(parsed, pendulum.DateTime) else None
    local, zone = datetime.combine(parsed.date(), parsed.time()), pendulum.timezone(match["zone"])
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return pendulum.instance(first)
    # The time is converted to UTC and back: a local time that was skipped becomes the two times around the gap.
    shown = " or ".join(reading.astimezone(UTC).astimezone(zone).isoformat() for reading in (first, second))
    how = "were put forward over" if first.astimezone(UTC) > second.astimezone(UTC) else "showed twice"
    return f"{shown}, since clocks in {match['zone']} {how} {local.isoformat(' ')}"


def _base_version(expression: RefExpression, ancestry: Ancestry) -> VersionRef:
    if not expression.kind and expression.name.isdecimal() and len(expression.name) < _SHORTEST_COMMIT:
        # A plain number could be a version number or the name of a tag, so it is refused with both spellings.
        raise RefSyntaxError(expression.text, 0, _instead_of_number(expression, ancestry))
    # Names come before commit ids: a branch or tag that looks like an id is found without reading manifests.
    branch, tag = _find_branch_or_tag(expression, ancestry)
    if tag is not None:
        return _without_suffix(expression, "a tag", VersionRef(tag.branch, tag.version))
    if branch is None:
        return _without_suffix(expression, "a commit id", _version_by_commit_id(expression, ancestry))
    if expression.number is not None:
        return _version_by_number(branch, expression.number, ancestry)
    if expression.time is not None:
        return _version_at_time(branch, expression, ancestry)
    newest = ancestry.newest(branch)
    if newest is None:
        raise VersionNotFoundError(f"{ancestry.refs.store.uri} has no version on branch {branch!r}")
    return VersionRef(branch, newest)


def _instead_of_number(expression: RefExpression, ancestry: Ancestry) -> str:
    existing = ancestry.branch(expression.name)
    branch = (
        f"the branch is written {BRANCH}:{expression.text}, "
        if existing is not None and existing.state == READY
        else ""
    )
    name = expression.name
    return f"a name; {branch}version {name} is written {MAIN}@{name}, a tag of that name {TAG}:{name}"


def _version_by_number(name: str, number: int, ancestry: Ancestry) -> VersionRef:
    branch = ancestry.branch(name)
    if branch is not None and number < branch.first:
        # A manifest of that number may exist, put by a late writer to an earlier branch of the name.
        has = f"it has {branch.first} to {max(ancestry.numbers(name), default=branch.first)}"
        raise VersionNotFoundError(f"branch {name!r} of {ancestry.refs.store.uri} has no version {number}; {has}")
    return VersionRef(name, number)


def _find_branch_or_tag(expression: RefExpression, ancestry: Ancestry) -> tuple[str | None, Tag | None]:
    """Return the branch or the tag that has a name; neither when there is none.

    Raises:
        InvalidInputError: Both have the name.
    """
    name, refs = expression.name, ancestry.refs
    if name == MAIN and expression.kind != TAG:
        return MAIN, None
    # A tag name holds no slash, so a request is saved for the names of most run branches.
    tag = None if expression.kind == BRANCH or "/" in name else refs.tags.find(name)
    if tag is None and expression.number is None and expression.time is None:
        # Before the file of the branch is read, which then tells whose version was listed.
        ancestry.list_newest(name)
    existing = None if expression.kind == TAG else ancestry.branch(name)
    branch = name if existing is not None and existing.state == READY else None
    if branch is not None and tag is not None:
        raise InvalidInputError(
            f"{name!r} is a branch and a tag of {refs.store.uri}; write {BRANCH}:{name} for the branch, which was "
            f"forked from {existing.parent if existing else MAIN}, or {TAG}:{name} for the tag, which names {tag.ref}"
        )
    return branch, tag


def _version_by_commit_id(expression: RefExpression, ancestry: Ancestry) -> VersionRef:
    refs = ancestry.refs
    # Commit ids are searched last, since that may take reading every manifest.
    matches = (
        find_commits(expression.name, ancestry)
        if not expression.kind and COMMIT_PREFIX.fullmatch(expression.name)
        else []
    )
    if not matches:
        names = {BRANCH: refs.branches.known(), TAG: refs.tags.known()}
        candidates, kind = names.get(expression.kind, [*names[BRANCH], *names[TAG]]), expression.kind or "branch or tag"
        raise RefNotFoundError(expression.name, candidates, refs.store.uri, kind, _hint_for_git_name(expression.name))
    if len(matches) > 1:
        shown = ", ".join(
            f"{own_id[: _distinguishing_digits(matches)]} ({place})" for own_id, place in matches[:_SHOWN_CANDIDATES]
        )
        more = ", ..." if len(matches) > _SHOWN_CANDIDATES else ""
        raise InvalidInputError(
            f"{len(matches)} commit ids of {refs.store.uri} begin with {expression.name!r}; "
            f"write more digits of one of them: {shown}{more}"
        )
    return matches[0][1]


def _hint_for_git_name(name: str) -> str:
    """Return what to write instead of a name that exists in git only; empty for other names."""
    if name == "HEAD":
        return f"there is no HEAD, since nobody has a branch checked out: name the branch, such as {MAIN}"
    for folder, kind in (("refs/heads/", BRANCH), ("refs/tags/", TAG)):
        if name.startswith(folder):
            return f"write {kind}:{name.removeprefix(folder)}"
    return ""


def _distinguishing_digits(matches: Sequence[tuple[str, VersionRef]]) -> int:
    """Return how many digits are needed to tell ids apart."""
    ids = {own_id for own_id, _ in matches}
    return next(
        count
        for count in range(_SHOWN_DIGITS, len(min(ids)) + 1)
        if len({own_id[:count] for own_id in ids}) == len(ids)
    )


def _without_suffix(expression: RefExpression, what: str, place: VersionRef) -> VersionRef:
    if expression.suffix:
        raise InvalidInputError(
            f"{expression.name!r} is {what} and names {place}; write it without {expression.suffix!r}"
        )
    return place


def _version_at_time(branch: str, expression: RefExpression, ancestry: Ancestry) -> VersionRef:
    """Find the newest version committed at or before a time.

    A binary search finds the place, and then each version near it is looked at, since times of neighbouring versions
    need not ascend. The result is exact as long as the clocks of writers differ by at most `CLOCK_SKEW_SECONDS`.
    """
    moment = parse_time(expression.time or "")
    if isinstance(moment, str):
        raise RefSyntaxError(expression.text, expression.position + len("@{"), moment)
    numbers = ancestry.numbers(branch)

    def committed_at(number: int) -> pendulum.DateTime:
        # Microseconds, as shown to users: so a version can be named by its own time.
        return ancestry.versions.load(branch, number).committed_at

    # The search overshoots by the clock tolerance, and the loop below then goes back to the exact place.
    later = bisect_right(
        numbers, moment.timestamp() + CLOCK_SKEW_SECONDS, key=lambda number: committed_at(number).timestamp()
    )
    for number in reversed(numbers[:later]):
        if committed_at(number) <= moment:
            return VersionRef(branch, number)
    has = f"branch {branch!r} of {ancestry.refs.store.uri} has no version as old as {moment}"
    if not numbers:
        raise VersionNotFoundError(has)
    oldest = committed_at(numbers[0]).in_timezone("UTC")
    raise VersionNotFoundError(f"{has}; the oldest is {branch}@{numbers[0]}, of {oldest:%Y-%m-%d %H:%M:%S}Z")


def _follow_steps(place: VersionRef, expression: RefExpression, ancestry: Ancestry) -> VersionRef:
    for step in expression.steps:
        times, which = (step.count, 1) if step.sign == "~" else (min(step.count, 1), step.count)
        for steps_taken in range(times):
            try:
                place = ancestry.parent(place, which)
            # The step that failed is named: `main~9` may fail at its third step.
            except VersionNotFoundError as error:
                far = f" after {steps_taken} of {times} steps" if times > 1 else ""
                raise VersionNotFoundError(f"there is no {expression.text!r}{far}: {error}") from error
    return place
