"""Settings merged by key, from three small maps."""

import pytest

from lance_dagster.merge.rules.columns.settings_merge import merge_map
from lance_dagster.merge.rules.strategy import ParsedStrategy, Winner
from tests.merge.rules.literal_merges import described

NAMES = (lambda _: "run@3", lambda _: "main@3")


@pytest.mark.parametrize(
    "expected,base,source,dest",
    [
        ("1", "1", "1", "1"),
        ("2", "1", "2", "1"),
        ("2", "1", "1", "2"),
        ("2", "1", "2", "2"),
        (None, "1", None, "1"),
        (None, "1", "1", None),
        (None, "1", None, None),
        ("1", None, "1", None),
        ("1", None, None, "1"),
        ("1", None, "1", "1"),
    ],
)
def test_a_key_that_one_side_changed(
    expected: str | None, base: str | None, source: str | None, dest: str | None
) -> None:
    """A change of one side is taken, the same change of both is taken once, and absence counts as a value."""
    states = tuple({} if value is None else {"k": value} for value in (base, source, dest))
    merged = merge_map((states[0], states[1], states[2]), "config", NAMES, ParsedStrategy.NONE)
    assert (expected, ()) == (merged.values.get("k"), merged.findings)


@pytest.mark.parametrize(
    "base,source,dest,did",
    [
        ("1", "2", "3", ("run@3 changed it", "main@3 changed it differently")),
        ("1", None, "3", ("run@3 removed it", "main@3 changed it differently")),
        ("1", "2", None, ("run@3 changed it", "main@3 removed it differently")),
        (None, "2", "3", ("run@3 set it", "main@3 set it differently")),
    ],
)
@pytest.mark.parametrize("winner", ["source-wins", "dest-wins"])
def test_a_key_that_both_changed(
    base: str | None, source: str | None, dest: str | None, did: tuple[str, str], winner: Winner
) -> None:
    """It is a conflict with any strategy; the strategy decides which value is in the result."""
    states = tuple({} if value is None else {"k": value} for value in (base, source, dest))
    merged = merge_map((states[0], states[1], states[2]), "config", NAMES, ParsedStrategy.parse(winner))
    assert [("config", "config key 'k'", ("source-wins", "dest-wins"))] == described(merged.findings)
    assert did == (merged.findings[0].conflict.source, merged.findings[0].conflict.dest)
    assert (source if winner == "source-wins" else dest) == merged.values.get("k")
