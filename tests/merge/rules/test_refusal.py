"""What a refusal offers: strategies that settled the merge in a trial, and what to do where none does."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.refusal import Attempt, MergeRefusal, refuse, refuse_with_consequences
from lance_dagster.merge.rules.strategy import (
    BOTH,
    Conflict,
    ConflictingRows,
    ConflictKind,
    Finding,
    ParsedStrategy,
    RowsLookup,
    Strategy,
    Winner,
)
from tests.merge.rules.literal_merges import both_sides, side

Rule = Callable[[ParsedStrategy], Sequence[Finding]]
ADVICE = "cast it on the branch again"


def found(
    kind: ConflictKind,
    unit: str,
    *options: Winner,
    rows: RowsLookup | None = None,
    lossless: Winner | None = None,
) -> Finding:
    """Return a conflict, which the winners among the options settle."""
    conflict = Conflict(kind=kind, unit=unit, source="ann changed it", dest="bob changed it")
    return Finding(conflict=conflict, options=options, rows=rows, lossless=lossless, outcome="adds up", advice=ADVICE)


ROWS = found("rows", "3 rows", *BOTH)
PRICE, NAME = found("column", "column price", *BOTH), found("column", "column name", *BOTH)
STUCK = found("column", "column price")
OWNER = found("config", "config key owner", *BOTH)


def attempt(*rules: Rule) -> Attempt:
    """Return a merge of which each rule returns its findings under a strategy."""

    def plan(strategy: ParsedStrategy) -> Sequence[Finding] | None:
        return strategy.open_among(finding for rule in rules for finding in rule(strategy)) or None

    return plan


def always(*findings: Finding) -> Rule:
    """Return a rule with these findings, whoever wins."""
    return lambda _: findings


def sides() -> tuple[MergeSide, MergeSide]:
    """Return two sides without changes: a refusal only hands them on."""
    source, dest = both_sides(side("run"))
    return source, dest


def refused(*rules: Rule, strategy: Strategy = None) -> MergeRefusal:
    """Refuse a merge, as a plan does when conflicts are open."""
    parsed, tried = ParsedStrategy.parse(strategy), attempt(*rules)
    still_open = tried(parsed)
    assert still_open is not None
    return refuse_with_consequences(tried, parsed, still_open, sides())


def hints(refusal: MergeRefusal) -> dict[str, str]:
    """Return the hint of each conflict by its unit."""
    return {conflict.unit: conflict.hint for conflict in refusal.conflicts}


def test_one_conflict_is_settled_under_its_unit() -> None:
    """The only column in conflict is named, and either winner is offered."""
    refusal = refused(always(PRICE))
    assert {"column price": "strategy 'column price': 'source-wins' or 'dest-wins'"} == hints(refusal)
    assert [{"column price": "source-wins"}, {"column price": "dest-wins"}] == list(refusal.settling)
    assert (("column price",), ("column price",), "") == (refusal.offered, refusal.either, refusal.advice)


def test_conflicts_of_one_kind_are_settled_under_the_kind() -> None:
    """A strategy for one of two columns would leave the other one open."""
    refusal = refused(always(PRICE, NAME))
    assert [{"column": winner} for winner in BOTH] == list(refusal.settling)
    assert {"column price", "column name"} == hints(refusal).keys()


def test_rows_are_settled_under_their_kind() -> None:
    """The unit counts the rows, and the count depends on other strategies."""
    assert ("rows",) == refused(always(ROWS)).offered


def test_the_keys_that_were_given_are_kept() -> None:
    """A call with the offered strategy settles what the given strategy settled, too."""
    refusal = refused(always(ROWS, PRICE), strategy={"column price": "dest-wins"})
    assert [{"column price": "dest-wins", "rows": winner} for winner in BOTH] == list(refusal.settling)
    assert {"3 rows"} == hints(refusal).keys()


def test_winners_of_different_kinds_are_tried_in_every_combination() -> None:
    """Each of two independent conflicts may have either winner."""
    refusal = refused(always(ROWS, PRICE))
    assert 4 == len(refusal.settling)
    assert ("column price", "rows") == refusal.offered == refusal.either


def test_a_conflict_that_a_winner_leads_to_is_reported_at_once() -> None:
    """Rows of the source lack a column: the conflict over the column exists only where the source wins the rows."""

    def column(strategy: ParsedStrategy) -> Sequence[Finding]:
        return [PRICE] if strategy.winner("rows", "3 rows") == "source-wins" else []

    refusal = refused(always(ROWS), column)
    assert {"3 rows", "column price"} == hints(refusal).keys()
    for settling in refusal.settling:
        assert attempt(always(ROWS), column)(ParsedStrategy(settling)) is None


def test_only_what_succeeded_in_a_trial_is_offered() -> None:
    """The source may win the rows, but that leads to a conflict that nothing settles."""

    def column(strategy: ParsedStrategy) -> Sequence[Finding]:
        return [STUCK] if strategy.winner("rows", "3 rows") == "source-wins" else []

    refusal = refused(always(ROWS), column)
    assert {"dest-wins"} == {given["rows"] for given in refusal.settling}
    assert "rows" not in refusal.either


def test_a_conflict_that_depends_on_another_winner_names_both() -> None:
    """A winner for the column helps only where the same side wins the rows."""

    def column(strategy: ParsedStrategy) -> Sequence[Finding]:
        same = strategy.winner("rows", "3 rows") == strategy.winner("column", "column price")
        return [PRICE] if same else [STUCK]

    refusal = refused(always(ROWS), column)
    assert {(winner, winner) for winner in BOTH} == {
        (given["rows"], given["column price"]) for given in refusal.settling
    }
    together = "settled by strategies for several conflicts together"
    assert f"{together}, such as 'column price': 'source-wins', 'rows': 'source-wins'" == hints(refusal)["column price"]
    assert () == refusal.either


def test_what_loses_nothing_is_offered_first() -> None:
    """The dest's win keeps the changes of both sides, so its strategy comes first and the hint says so."""
    refusal = refused(always(found("column", "column price", *BOTH, lossless="dest-wins")))
    assert [{"column price": "dest-wins"}, {"column price": "source-wins"}] == list(refusal.settling)
    assert hints(refusal)["column price"].endswith("; 'dest-wins' adds up")


def test_a_winner_that_does_not_help_is_overruled() -> None:
    """The strategy that was given settles nothing, and the other winner does."""
    only_source = found("column", "column price", "source-wins")
    refusal = refused(always(only_source), strategy={"column": "dest-wins"})
    assert [{"column price": "source-wins"}] == list(refusal.settling)
    assert {"column price": "strategy 'column price': 'source-wins'"} == hints(refusal)


def test_what_nothing_settles_has_its_advice() -> None:
    """The conflict and the refusal both say what to do instead, and no strategy is offered."""
    refusal = refused(always(STUCK, ROWS))
    assert ((), (), ()) == (refusal.settling, refusal.offered, refusal.either)
    assert hints(refusal)["column price"].endswith(ADVICE)
    assert "column price" in refusal.advice
    assert refusal.advice.endswith(ADVICE)
    # The other conflict has its strategies even so.
    assert "strategy 'rows': 'source-wins' or 'dest-wins'" == hints(refusal)["3 rows"]


def test_conflicts_that_only_the_other_winner_leads_to_are_not_reported() -> None:
    """They are no conflicts of the merge that was asked for, but the offered strategy settles them as well."""

    def rows(strategy: ParsedStrategy) -> Sequence[Finding]:
        return [ROWS] if strategy.winner("column", "column price") == "source-wins" else []

    refusal = refused(always(found("column", "column price", "source-wins")), rows, strategy={"column": "dest-wins"})
    assert ["column price"] == [*hints(refusal)]
    assert [{"column price": "source-wins", "rows": winner} for winner in BOTH] == list(refusal.settling)


def test_conflicts_that_exclude_each_other_are_said_to() -> None:
    """Each conflict is settled by some trial, but no trial settles both."""

    def same(strategy: ParsedStrategy) -> bool:
        return strategy.winner("rows", "3 rows") == strategy.winner("column", "column price")

    refusal = refused(
        lambda strategy: [ROWS if same(strategy) else found("rows", "3 rows")],
        lambda strategy: [STUCK if same(strategy) else PRICE],
    )
    assert () == refusal.settling
    assert "no strategies settle all conflicts at once" in refusal.advice


def test_settings_are_tried_with_one_winner() -> None:
    """The winner of a setting changes nothing else: one trial speaks for both."""
    tried = list[Mapping[str, Winner]]()
    plan = attempt(always(OWNER))

    def counted(strategy: ParsedStrategy) -> Sequence[Finding] | None:
        tried.append(strategy.winners)
        return plan(strategy)

    refusal = refuse_with_consequences(counted, ParsedStrategy.NONE, [OWNER], sides())
    assert ["source-wins"] == [given["config"] for given in tried if "config" in given]
    assert ("config key owner",) == refusal.either
    assert {"config key owner": "strategy 'config key owner': 'source-wins' or 'dest-wins'"} == hints(refusal)


def test_a_strategy_for_everything_is_not_offered_for_the_history() -> None:
    """Changes that no transaction describes are waived by name only."""
    gone = found("history", "version run@2", *BOTH)
    refusal = refused(always(gone), strategy="source-wins")
    assert [{"*": "source-wins", "history": "source-wins"}] == list(refusal.settling)


def test_a_conflict_that_several_rules_found_is_one_with_the_rows_of_all() -> None:
    """Each rule knows some of the rows."""
    first, second = ConflictingRows(), ConflictingRows(fields=frozenset({1}))
    one = found("rows", "3 rows", *BOTH, rows=lambda: first)
    other = found("rows", "3 rows", *BOTH, rows=lambda: second)
    refusal = refused(always(one, other))
    assert 1 == len(refusal.conflicts)
    assert [first, second] == [look() for look in refusal.rows[refusal.conflicts[0]]]
    assert refusal.sides is not None


@pytest.mark.parametrize("options", [BOTH, ()])
def test_sides_that_cannot_be_compared_offer_nothing(options: tuple[Winner, ...]) -> None:
    """Nothing was tried, so nothing is known to help, whatever the rule says."""
    refusal = refuse([found("schema", "schema", *options)])
    assert ((), None, 1) == (refusal.settling, refusal.sides, len(refusal.conflicts))
    assert hints(refusal)["schema"].startswith("no strategy settles it")


def test_a_winner_that_needs_another_one_is_not_offered_alone() -> None:
    """Every trial has a winner for each kind; whether one kind settles its conflicts alone takes a trial of its own."""

    def together(strategy: ParsedStrategy) -> Sequence[Finding]:
        # As long as it is open who has the rows, whose values of the column count is open too.
        open_rows = strategy.winner("rows", "3 rows") is None
        return [ROWS, found("column", "column price")] if open_rows else [ROWS, PRICE]

    refusal = refused(together)
    expected = "settled by strategies for several conflicts together, such as 'column price': 'source-wins', "
    assert hints(refusal)["column price"] == f"{expected}'rows': 'source-wins'"
    assert hints(refusal)["3 rows"] == "strategy 'rows': 'source-wins' or 'dest-wins'"
