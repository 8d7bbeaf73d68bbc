"""The winner of a conflict by strategy, and strategies that are refused."""

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
    """A unit precedes its kind, and the kind precedes "*", which does not include the history."""
    assert expected == ParsedStrategy.parse(strategy).winner(kind, unit)


@pytest.mark.parametrize("strategy", ["ours", {"rows": "theirs"}, {"row": "source-wins"}, {"price": "dest-wins"}])
def test_an_unknown_strategy_or_unit_is_refused(strategy: Strategy) -> None:
    """A misspelled strategy must not pass as one that had no conflict to settle."""
    with pytest.raises(InvalidInputError, match="is not a "):
        ParsedStrategy.parse(strategy)


@pytest.mark.parametrize("unit", ["columns price", "rows of tuesday", "settings key 'a'", "the whole dataset"])
def test_a_unit_that_no_conflict_can_have_is_refused(unit: str) -> None:
    """A unit of several words has to begin as units of conflicts do."""
    with pytest.raises(InvalidInputError, match="is not a kind of conflict"):
        ParsedStrategy.parse({unit: "dest-wins"})


@pytest.mark.parametrize(
    "unit", ["column a b", "partition mon", "rows where day = 'x'", "the whole table", "config key 'a'"]
)
def test_units_of_conflicts_are_taken(unit: str) -> None:
    """A strategy can be given for each unit that conflicts have, but for rows."""
    assert "dest-wins" == ParsedStrategy.parse({unit: "dest-wins"}).winner("rows", unit)


def test_a_finding_stays_open_when_its_winner_is_no_option() -> None:
    """A strategy that a rule cannot carry out does not settle the finding."""
    conflict = Conflict(kind="rows", unit="1 row", source="a", dest="b")
    findings = [Finding(conflict=conflict, options=options) for options in (BOTH, ("dest-wins",), ())]
    assert findings[1:] == list(ParsedStrategy.parse("source-wins").open_among(findings))
