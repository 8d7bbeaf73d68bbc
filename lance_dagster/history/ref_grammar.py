"""The grammar of ref expressions, parsed from text alone; `history.resolve` looks up what they name.

    expression = base step*
    base       = ["branch:" | "tag:"] name ["@" number | "@{" time "}"]
    step       = "~" [number] | "^" [number]
    range      = expression ".." expression | expression "..." expression

None of the characters with a meaning may occur in a name, except the dot: `a...b` is parsed as three dots between `a`
and `b`. Blanks around the dots make a name that ends with a dot unambiguous: `a. .. b`.
"""

import re
from dataclasses import dataclass

from lance_dagster.errors import InvalidInputError, RefSyntaxError

BRANCH, TAG = "branch", "tag"
_KIND = re.compile(rf"({BRANCH}|{TAG}):")
_NAME = re.compile(r"[^@~^*:{}\s]+")
_NUMBER = re.compile(r"@([0-9]{1,19})")
_TIME = re.compile(r"@\{([^{}]*)\}")
_STEP = re.compile(r"([~^])([0-9]{0,19})")
_SPACED_DOTS = re.compile(r"\s(\.{2,3})\s")
_DOTS = re.compile(r"\.{2,}")
_RANGE = re.compile(r"[^./\s]\s*\.{2,3}\s*[^./\s]")
# A time may contain dots and blanks, which are not part of a range.
_BRACES = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Step:
    """One step back: `~` follows `count` first parents, `^` goes to parent number `count`."""

    sign: str
    count: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefExpression:
    """A parsed ref expression.

    `kind` is "branch", "tag", or empty for either. At most one of `number` and `time` is given; `position` is where it
    begins in `text`, for messages.
    """

    text: str
    kind: str = ""
    name: str
    number: int | None = None
    time: str | None = None
    position: int = 0
    steps: tuple[Step, ...] = ()

    @property
    def suffix(self) -> str:
        """The version number or time as it was written."""
        return f"@{self.number}" if self.number is not None else "" if self.time is None else f"@{{{self.time}}}"


@dataclass(frozen=True, slots=True)
class RefRange:
    """A range: what `right` contains and `left` does not; with `since_base` compared with their merge base."""

    left: str
    right: str
    since_base: bool


def parse(text: str) -> RefExpression:
    """Parse a ref expression.

    Raises:
        RefSyntaxError: The expression is malformed.
        InvalidInputError: It is not a string.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"a ref is text such as 'main' or 'main@17', not {text!r}")
    if is_range(text):
        raise RefSyntaxError(text, _masked(text).index(".."), "one version; diff and log take ranges such as this one")
    # The name ends at the first character with a meaning, so no name has to be quoted.
    kind = _KIND.match(text)
    start = kind.end() if kind else 0
    name = _NAME.match(text, start)
    if name is None:
        raise RefSyntaxError(text, start, f"a {kind[1]} name" if kind else "a branch or tag name")
    position = name.end()
    number, time = _NUMBER.match(text, position), _TIME.match(text, position)
    qualifier = number or time
    steps = _steps(text, qualifier.end() if qualifier else position, qualified=qualifier is not None)
    return RefExpression(
        text=text,
        kind=kind[1] if kind else "",
        name=name[0],
        number=int(number[1]) if number else None,
        time=time[1] if time else None,
        position=position,
        steps=steps,
    )


def parse_range(text: str) -> RefRange:
    """Parse a range: `main..run/4f2a` is what the branch has beyond `main`, `main...run/4f2a` since their merge base.

    Raises:
        RefSyntaxError: The text is not a range, or is an ambiguous one.
    """
    masked = _masked(text)
    spaced = [(dots.start(), dots.end(), dots[1]) for dots in _SPACED_DOTS.finditer(masked)]
    separators = spaced or [(match.start(), match.end(), match[0]) for match in _DOTS.finditer(masked)]
    if not separators:
        raise RefSyntaxError(text, len(text), "'..' or '...' between two refs")
    begin, end, dots = separators[0]
    # Four dots could be three after a name that ends with a dot, or before one that begins with it.
    if len(dots) > len("..."):
        raise RefSyntaxError(text, begin, "two or three dots; put blanks around them where a name ends with a dot")
    if len(separators) > 1:
        raise RefSyntaxError(text, separators[1][0], "one range, so no more dots")
    left, right = text[:begin].strip(), text[end:].strip()
    if not left or not right:
        raise RefSyntaxError(text, end if left else begin, f"a ref {'after' if left else 'before'} {dots!r}")
    return RefRange(left, right, dots == "...")


def is_range(text: str) -> bool:
    """Tell whether a text is a range: dots between two refs, not the dots of a path such as `../orders`."""
    return _RANGE.search(_masked(text)) is not None


def branch_of_version(text: str) -> str | None:
    """Return the branch that an expression counts from, such as `main` in `main~1`; None where it is a plain name."""
    try:
        expression = parse(text)
    except InvalidInputError:
        return None
    return expression.name if expression.suffix or expression.steps else None


def _masked(text: str) -> str:
    """Return a text with the contents of braces masked, since dots in a time do not make a range."""
    return _BRACES.sub(lambda braces: "x" * len(braces[0]), text)


def _steps(text: str, position: int, *, qualified: bool) -> tuple[Step, ...]:
    steps: list[Step] = []
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            raise RefSyntaxError(text, position, _what_may_follow(qualified=qualified or bool(steps)))
        steps.append(Step(step[1], int(step[2] or 1), position))
        position = step.end()
    return tuple(steps)


def _what_may_follow(*, qualified: bool) -> str:
    steps = "'~' or '^' with or without a number"
    return f"nothing, or {steps}" if qualified else f"nothing, '@' and a version number, '@{{time}}', {steps}"
