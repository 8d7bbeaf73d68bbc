"""What a strategy says about a conflict, and which are refused."""

import pytest

from lance_dagster.errors import InvalidInputError
from lance_dagster.merge.rules.strategy import BOTH, Conflict, ConflictKind, Finding, ParsedStrategy, Strategy


@pytest.mark.parametrize(
    "expected,strategy,kind,unit",
    [
        (None, None, "rows", "1 row"),
        ("source-wins", "source-wins", "rows", "1 row"),
        ("source-wins", {"rows": "source-wins"}, "rows", "1 row"),
        (None, {"rows": "source-wins"}, "column", "column price"),
        ("dest-wins", {"column": "source-wins", "column price": "dest-wins"}, "column", "column price"),
        ("source-wins", {"column": "source-wins", "*": "dest-wins"}, "column", "column price"),
        ("dest-wins", {"column": "source-wins", "*": "dest-wins"}, "rows", "1 row"),
        (None, "source-wins", "history", "version main@3"),
        (None, {"*": "source-wins"}, "history", "version main@3"),
        ("dest-wins", {"history": "dest-wins"}, "history", "version main@3"),
    ],
)
def test_the_closest_name_decides(expected: str | None, strategy: Strategy, kind: ConflictKind, unit: str) -> None:
    """A unit goes before its kind, the kind before everything; the history is not everything."""
    assert expected == ParsedStrategy.parse(strategy).winner(kind, unit)


@pytest.mark.parametrize("strategy", ["ours", {"rows": "theirs"}, {"row": "source-wins"}, {"price": "dest-wins"}])
def test_an_unknown_strategy_or_unit_is_refused(strategy: Strategy) -> None:
    """A typing error must not pass for a strategy that had nothing to settle."""
    with pytest.raises(InvalidInputError, match="is not a "):
        ParsedStrategy.parse(strategy)


@pytest.mark.parametrize("unit", ["columns price", "rows of tuesday", "settings key 'a'", "the whole dataset"])
def test_a_unit_that_no_conflict_can_have_is_refused(unit: str) -> None:
    """Several words are no unit yet: it has to begin as the units of conflicts do."""
    with pytest.raises(InvalidInputError, match="is not a kind of conflict"):
        ParsedStrategy.parse({unit: "dest-wins"})


@pytest.mark.parametrize(
    "unit", ["column a b", "partition mon", "rows where day = 'x'", "the whole table", "config key 'a'", "2 rows in x"]
)
def test_units_of_conflicts_are_taken(unit: str) -> None:
    """Every unit a conflict may be told under is one a strategy may be given for."""
    assert "dest-wins" == ParsedStrategy.parse({unit: "dest-wins"}).winner("rows", unit)


def test_a_finding_stays_open_when_its_winner_is_no_option() -> None:
    """A rule that cannot carry a strategy out is not made to."""
    conflict = Conflict(kind="rows", unit="1 row", source="a", dest="b")
    findings = [Finding(conflict=conflict, options=options) for options in (BOTH, ("dest-wins",), ())]
    assert findings[1:] == list(ParsedStrategy.parse("source-wins").open_among(findings))
