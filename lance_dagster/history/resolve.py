"""Ref expressions: what people type to name one version of a table.

    name             the newest version of a branch, or the version a tag names
    name@17          version 17 of a branch
    name@{time}      the newest version of a branch committed at or before a time, such as `main@{2026-01-31T00:00Z}`

None of the characters with a meaning here may occur in a name. A ref is resolved once, by whoever starts a read or a
write; only branch and number travel from there, so nobody sees a name move halfway.
"""

import re

import pendulum

from lance_dagster.errors import InvalidInputError, RefNotFoundError, RefSyntaxError, VersionNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.refs import READY, Refs
from lance_dagster.history.versions import Versions

_NAME = re.compile(r"[^@~^*:{}\s]+")
_NUMBER = re.compile(r"@(\d{1,19})")
_TIME = re.compile(r"@\{([^{}]*)\}")


def resolve(expression: str, refs: Refs, versions: Versions) -> tuple[str, int]:
    """Return the branch and number of the version an expression names.

    Raises:
        RefSyntaxError: The expression cannot be read.
        RefNotFoundError: Neither branch nor tag has the name.
        VersionNotFoundError: The branch has no such version.
        InvalidInputError: A branch and a tag share the name, or a tag is given a number.
    """
    match = _NAME.match(expression)
    if match is None:
        raise RefSyntaxError(expression, 0, "a branch or tag name")
    name, suffix = match[0], expression[match.end() :]
    branch, number = _named(name, refs, versions)
    if not suffix:
        return branch, number if number is not None else _newest(branch, versions)
    if number is not None:
        raise InvalidInputError(f"{name!r} is a tag and names {branch}@{number}; write it without {suffix!r}")
    if found := _NUMBER.fullmatch(suffix):
        return branch, int(found[1])
    if found := _TIME.fullmatch(suffix):
        return branch, _at_time(branch, found[1], expression, versions)
    raise RefSyntaxError(expression, match.end(), "nothing, '@' and a version number, or '@{time}'")


def _named(name: str, refs: Refs, versions: Versions) -> tuple[str, int | None]:
    if name == MAIN:
        return MAIN, None
    branch = refs.branch(name)
    tag = None if "/" in name else refs.tag(name)
    if branch is not None and tag is not None:
        raise InvalidInputError(f"{name!r} is a branch and a tag of {versions.store.uri}; rename one of them")
    if tag is not None:
        return tag.branch, tag.version
    if branch is None or branch.state != READY:
        known = [other.name for other in refs.branches().values() if other.state == READY]
        raise RefNotFoundError(name, [MAIN, *known, *refs.tags()], versions.store.uri)
    return name, None


def _newest(branch: str, versions: Versions) -> int:
    newest = versions.newest(branch)
    if newest is None:
        raise VersionNotFoundError(f"{versions.store.uri} has no version on branch {branch!r}")
    return newest


def _at_time(branch: str, text: str, expression: str, versions: Versions) -> int:
    position = expression.index("{") + 1
    try:
        moment = pendulum.parse(text)
    except (ValueError, OverflowError) as error:
        raise RefSyntaxError(expression, position, "a time such as 2026-01-31T00:00Z") from error
    if not isinstance(moment, pendulum.DateTime):
        raise RefSyntaxError(expression, position, "a point in time such as 2026-01-31T00:00Z")
    for number in reversed(versions.numbers(branch)):
        # As precise as the time that is shown: a version can be named by its own.
        if versions.load(branch, number).committed_at <= moment:
            return number
    raise VersionNotFoundError(f"branch {branch!r} of {versions.store.uri} has no version as old as {moment}")
