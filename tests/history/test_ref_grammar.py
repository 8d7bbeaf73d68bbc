"""The grammar of ref expressions, without a table."""

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from lance_dagster.errors import RefSyntaxError
from lance_dagster.history.ref_grammar import (
    RefExpression,
    RefRange,
    Step,
    branch_of_version,
    is_range,
    parse,
    parse_range,
)

NAMES = st.from_regex(r"[A-Za-z0-9_/-][A-Za-z0-9_./-]{0,20}", fullmatch=True).filter(lambda name: ".." not in name)
STEPS = st.lists(st.tuples(st.sampled_from("~^"), st.integers(0, 10**18) | st.none()), max_size=5)


@given(
    kind=st.sampled_from(["", "branch:", "tag:"]),
    name=NAMES,
    qualifier=st.none() | st.integers(0, 10**18) | st.sampled_from(["2 days ago", "2026-01-31T00:00+02:00"]),
    steps=STEPS,
)
def test_what_is_put_together_is_read_apart(
    kind: str, name: str, qualifier: int | str | None, steps: list[tuple[str, int | None]]
) -> None:
    """The parts are kind, name, number or time, and each step with its position."""
    written = "" if qualifier is None else f"@{qualifier}" if isinstance(qualifier, int) else f"@{{{qualifier}}}"
    base = f"{kind}{name}{written}"
    text, wanted = base, []
    for sign, count in steps:
        wanted.append(Step(sign, 1 if count is None else count, len(text)))
        text += f"{sign}{'' if count is None else count}"
    assert parse(text) == RefExpression(
        text=text,
        kind=kind.rstrip(":"),
        name=name,
        number=qualifier if isinstance(qualifier, int) else None,
        time=qualifier if isinstance(qualifier, str) else None,
        position=len(kind) + len(name),
        steps=tuple(wanted),
    )


@pytest.mark.parametrize(
    "text,position", [("main..left", 4), ("main~1..left", 6), ("main...left", 4), ("main .. left@{now}", 5)]
)
def test_a_range_is_no_version(text: str, position: int) -> None:
    """The error names the commands that take ranges."""
    assert is_range(text)
    with pytest.raises(RefSyntaxError, match="diff and log take ranges") as caught:
        parse(text)
    assert position == caught.value.position


@pytest.mark.parametrize("text", ["main@{2026..2027}", "../../etc", "main", "main.", "v1.0"])
def test_dots_within_a_name_or_a_time_are_no_range(text: str) -> None:
    """The dots of a path are no range either."""
    assert not is_range(text)


@pytest.mark.parametrize(
    "text,branch", [("main~1", "main"), ("run/1@3", "run/1"), ("branch:x^", "x"), ("main", None), ("@", None)]
)
def test_a_version_is_counted_from_a_branch(text: str, branch: str | None) -> None:
    """A plain name has no version number."""
    assert branch == branch_of_version(text)


@given(st.text(max_size=30))
def test_any_other_text_is_pointed_at(text: str) -> None:
    """No text fails with another error, and the position is in the text or directly after it."""
    read: RefExpression | None = None
    with suppress(RefSyntaxError):
        read = parse(text)
    if read is not None:
        assert read.name in text
        return
    with pytest.raises(RefSyntaxError) as caught:
        parse(text)
    assert 0 <= caught.value.position <= len(text)
    assert text == caught.value.expression


@pytest.mark.parametrize(
    "text,left,right,since_base",
    [
        ("main..run/4f2a", "main", "run/4f2a", False),
        ("main...run/4f2a", "main", "run/4f2a", True),
        ("main@17~2..tag:v1.2", "main@17~2", "tag:v1.2", False),
        ("main@{2026-01-31T10:00:00.5Z}..main", "main@{2026-01-31T10:00:00.5Z}", "main", False),
        ("main@{1..2}..main", "main@{1..2}", "main", False),
        ("v1.2...v1.3", "v1.2", "v1.3", True),
        ("a. .. b", "a.", "b", False),
        ("a.b ... c.", "a.b", "c.", True),
        ("a.. .. b", "a..", "b", False),
    ],
)
def test_a_range_has_two_sides(text: str, left: str, right: str, *, since_base: bool) -> None:
    """A range has two or three dots; dots within names and times are no range."""
    assert RefRange(left, right, since_base) == parse_range(text)


@pytest.mark.parametrize(
    "text,position,expected",
    [
        ("main", 4, "'..' or '...' between two refs"),
        ("", 0, "'..' or '...' between two refs"),
        ("..b", 0, "a ref before '..'"),
        ("a...", 4, "a ref after '...'"),
        ("a....b", 1, "two or three dots; put blanks around them where a name ends with a dot"),
        ("a..b..c", 4, "one range, so no more dots"),
        ("a .. b ... c", 6, "one range, so no more dots"),
    ],
)
def test_what_is_no_range_is_pointed_at(text: str, position: int, expected: str) -> None:
    """An ambiguous range is refused too."""
    with pytest.raises(RefSyntaxError) as caught:
        parse_range(text)
    assert (text, position, expected) == (caught.value.expression, caught.value.position, caught.value.expected)
