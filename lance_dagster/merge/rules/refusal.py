"""Refuse a merge with all of its conflicts, and say of each conflict what settles it.

A hint must be true: a strategy that is offered settles the conflict. Whether it does depends on the strategies for the
other conflicts, and a strategy may lead to conflicts that do not exist without it: rows that are taken from the source
may lack columns of the dest. So before a merge is refused it is planned again under the strategies that could settle
it. The conflicts that arise in these trials are reported in the same refusal, and only a strategy that succeeded in a
trial is offered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.strategy import (
    BOTH,
    EVERYTHING,
    HISTORY,
    SOURCE_WINS,
    Conflict,
    ConflictKind,
    Finding,
    ParsedStrategy,
    RowsLookup,
    Winner,
)

Attempt = Callable[[ParsedStrategy], Sequence[Finding] | None]
"""Plans a merge under a strategy: returns the conflicts that stay open, or None where the merge succeeds."""
Sides = tuple[MergeSide, MergeSide]
_TRIED: tuple[ConflictKind, ...] = ("column", "partition", "rows", "table")
"""Kinds that are tried with both winners, because the winner of one kind may cause conflicts of another kind."""
_INDEPENDENT: tuple[ConflictKind, ...] = ("config", HISTORY, "schema_metadata", "table_metadata")
"""Kinds whose winner has no effect on other conflicts, so that only one winner is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRefusal:
    """Why there is no merge: every conflict, and the functions that find the rows of conflicts about rows.

    `settling` are strategies with which the merge succeeds; each contains the strategy that was given. `offered` are
    the keys that the first settling strategy adds, and `either` are the offered keys that may have the other winner as
    well, in any combination. Without a settling strategy, `advice` says what to do instead. `rows` are the functions
    that find the rows of each conflict, one function for each rule that noted rows. `on` are the key columns of
    conflicts about keys. `sides` are None where the rows cannot be compared.
    """

    conflicts: tuple[Conflict, ...]
    settling: tuple[Mapping[str, Winner], ...] = ()
    offered: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    advice: str = ""
    rows: Mapping[Conflict, Sequence[RowsLookup]] = field(default_factory=dict)
    on: Mapping[Conflict, tuple[str, ...]] = field(default_factory=dict)
    sides: Sides | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A merge that was planned with winners for some kinds; `still_open` is None where it succeeded.

    `given_winners` is the caller's strategy, where the trial kept it.
    """

    given_winners: Mapping[str, Winner]
    winners: Mapping[ConflictKind, Winner]
    still_open: Sequence[Finding] | None

    def settles(self, conflict: Conflict) -> bool:
        return all(_key(finding.conflict) != _key(conflict) for finding in self.still_open or ())

    def named(self, names: Mapping[str, str]) -> dict[str, Winner]:
        """Return the whole strategy, with the names that are to be given for kinds."""
        return {**self.given_winners, **{names.get(kind, kind): winner for kind, winner in self.winners.items()}}


def refuse(findings: Sequence[Finding]) -> MergeRefusal:
    """Refuse a merge of sides that cannot be compared: no strategy helps before that is mended."""
    return _refusal(_Trials((), tuple(findings), {}))


def refuse_with_consequences(
    attempt: Attempt, strategy: ParsedStrategy, findings: Sequence[Finding], sides: Sides
) -> MergeRefusal:
    """Refuse a merge with its conflicts, and with the conflicts that arise under the strategies that could settle it.

    Args:
        attempt: Plans the merge under another strategy.
        strategy: The strategy that was given.
        findings: The conflicts that it leaves open.
        sides: The source and the dest.
    """
    tried = _Trials.of(attempt, strategy, findings)
    # A winner that was given may not settle its conflict, or settle it in a way that leads to a second one. Only other
    # winners may settle all, so the hint has to say that. Conflicts that arise only under these are not conflicts of
    # the merge that was asked for.
    keys = {EVERYTHING, *(key for each in tried.findings for key in (each.conflict.kind, each.conflict.unit))}
    for kept in (strategy.without(keys), ParsedStrategy.NONE) if strategy.winners else ():
        if not tried.settling:
            again = _Trials.of(attempt, kept, [*findings, *(attempt(kept) or ())])
            tried = replace(again, findings=tried.findings) if again.settling else tried
    return replace(_refusal(tried.with_checked_names(attempt)), sides=sides)


@dataclass(frozen=True, slots=True)
class _Trials:
    """Merges that were tried, all conflicts that were found, and the key of a strategy for each kind.

    `trials` have winners for every kind of conflict, `alone` for one kind each.
    """

    trials: tuple[_Trial, ...]
    findings: tuple[Finding, ...]
    names: Mapping[str, str]
    alone: tuple[_Trial, ...] = ()

    @classmethod
    def of(cls, attempt: Attempt, strategy: ParsedStrategy, findings: Sequence[Finding]) -> "_Trials":
        """Try both winners for each kind of conflict, until that leads to no other kind.

        Args:
            attempt: Plans the merge.
            strategy: The strategy that was given.
            findings: The conflicts that it leaves open.
        """
        findings_so_far, trials, kinds = list(findings), list[_Trial](), list[ConflictKind]()

        def tried(winners: Mapping[ConflictKind, Winner]) -> _Trial:
            # Winners that are kept stay; a trial only adds winners for kinds that they leave open.
            return _Trial(
                given_winners=strategy.winners,
                winners=winners,
                still_open=attempt(strategy.with_winners(dict(winners.items()))),
            )

        while (more := _kinds_to_try(findings_so_far, strategy)) != kinds:
            kinds, trials = more, []
            for winners in product(*(BOTH if kind in _TRIED else BOTH[:1] for kind in kinds)):
                trials.append(tried(dict(zip(kinds, winners, strict=True))))
                keys = {_key(finding.conflict) for finding in findings_so_far}
                findings_so_far += [
                    finding for finding in trials[-1].still_open or () if _key(finding.conflict) not in keys
                ]
        names = _names_for_strategies([finding.conflict for finding in findings_so_far])
        # A winner may settle a conflict only together with one for another kind, which all other trials have.
        tried_alone = [kind for kind in kinds if kind in _TRIED] if len(kinds) > 1 else []
        return cls(
            tuple(trials), tuple(findings_so_far), names, tuple(tried({k: w}) for k, w in product(tried_alone, BOTH))
        )

    @property
    def settling(self) -> list[_Trial]:
        """The trials that succeeded. A hint offers the first; a trial that loses nothing comes before all others."""
        lossless = {
            finding.conflict.kind: finding.lossless for finding in self.findings if finding.lossless is not None
        }

        def losses(trial: _Trial) -> int:
            return sum(trial.winners.get(kind) != winner for kind, winner in lossless.items())

        return sorted((trial for trial in self.trials if trial.still_open is None), key=losses)

    def with_checked_names(self, attempt: Attempt) -> "_Trials":
        """Return these trials named by kinds instead of units, if a strategy given by units does not settle the merge.

        A strategy by kind also settles what never came up as a conflict because every trial had it.
        """
        by_kind = {kind: kind for kind in self.names}
        if self.names == by_kind or all(
            attempt(ParsedStrategy(trial.named(self.names))) is None for trial in self.settling
        ):
            return self
        return replace(self, names=by_kind)

    def either(self) -> tuple[str, ...]:
        """Return the keys of the first strategy that may have the other winner as well, in any combination."""
        if not (settling := self.settling):
            return ()
        first, settling_winners = settling[0].winners, [trial.winners for trial in settling]
        free: list[ConflictKind] = []
        for kind in first:
            more = [*free, kind]
            varied = ({**first, **dict(zip(more, choice, strict=True))} for choice in product(BOTH, repeat=len(more)))
            # For an independent kind only one winner was tried, which speaks for both.
            tried = {kind: SOURCE_WINS for kind in first if kind in _INDEPENDENT}
            if all({**variant, **tried} in settling_winners for variant in varied):
                free = more
        return tuple(self.names[kind] for kind in free)

    def hint(self, finding: Finding) -> str:
        """Say which strategies settle a conflict."""
        conflict = finding.conflict
        name = self.names.get(conflict.kind, conflict.kind)
        sure = self._sure(finding)
        if sure:
            without_loss = f"; {finding.lossless!r} {finding.outcome}" if finding.lossless in sure else ""
            return f"strategy {name!r}: {' or '.join(map(repr, sure))}{without_loss}"
        together = next((trial for trial in (*self.settling, *self.trials) if trial.settles(conflict)), None)
        if together is not None:
            strategies = (f"{self.names[kind]!r}: {winner!r}" for kind, winner in together.winners.items())
            return f"settled by strategies for several conflicts together, such as {', '.join(strategies)}"
        return "no strategy settles it" + (f"; {finding.advice}" if finding.advice else "")

    def stuck(self) -> list[Finding]:
        """Return the conflicts that no trial settled."""
        return [
            finding
            for finding in self.findings
            if not self._sure(finding) and not any(trial.settles(finding.conflict) for trial in self.trials)
        ]

    def _sure(self, finding: Finding) -> list[Winner]:
        """Return the winners that settle a conflict, whatever the strategies for the others are."""
        kind = finding.conflict.kind
        if kind in _INDEPENDENT:
            return list(finding.options)
        # Where a trial with the winner has the conflict left, it depends on the winners for other kinds too.
        settled_by = {
            winner: [
                trial.settles(finding.conflict)
                for trial in (*self.trials, *self.alone)
                if trial.winners.get(kind) == winner
            ]
            for winner in BOTH
        }
        return [winner for winner, settled in settled_by.items() if settled and all(settled)]


def _refusal(tried: _Trials) -> MergeRefusal:
    """Refuse a merge with findings that stay open, each conflict once and with a hint."""
    rows: dict[Conflict, list[RowsLookup]] = {}
    for finding in tried.findings:
        lookups = rows.setdefault(replace(finding.conflict, hint=tried.hint(finding)), [])
        lookups += [finding.rows] if finding.rows is not None else []
    settling = [trial.named(tried.names) for trial in tried.settling]
    return MergeRefusal(
        conflicts=tuple(rows),
        settling=tuple(settling),
        offered=tuple(tried.names[kind] for kind in tried.settling[0].winners) if settling else (),
        either=tried.either(),
        advice="" if settling else _advice(tried),
        rows=rows,
        on={finding.conflict: finding.on for finding in tried.findings if finding.on},
    )


def _advice(tried: _Trials) -> str:
    """Say what to do where no strategies settle all conflicts."""
    by_advice: dict[str, list[str]] = {}
    # Several rules may report one column. The first finding names the cause, the others name its effects.
    by_unit: dict[str, str] = {}
    for finding in tried.stuck():
        if finding.advice:
            by_unit.setdefault(finding.conflict.unit, finding.advice)
    for unit, advice in by_unit.items():
        by_advice.setdefault(advice, []).append(unit)
    if tried.trials and not tried.stuck():
        advised = dict.fromkeys(finding.advice for finding in tried.findings if finding.advice)
        return "; ".join(["no strategies settle all conflicts at once", " or ".join(advised)]).removesuffix("; ")
    named = (f"no strategy settles {', '.join(units)}: {advice}" for advice, units in by_advice.items())
    return "; ".join(named)


def _kinds_to_try(findings: Sequence[Finding], strategy: ParsedStrategy) -> list[ConflictKind]:
    """Return the kinds of open conflicts for which no strategy was given."""
    conflicts = [finding.conflict for finding in findings]
    kinds = {conflict.kind for conflict in conflicts if strategy.winner(conflict.kind, conflict.unit) is None}
    # The only other kind is "schema", which stands for two columns of one name. No strategy settles it.
    return sorted(kinds & {*_TRIED, *_INDEPENDENT})


def _key(conflict: Conflict) -> tuple[str, str]:
    """Return the identity of a conflict: its kind and unit, or the kind alone for rows, since they have no names."""
    return conflict.kind, "" if conflict.kind == "rows" else conflict.unit


def _names_for_strategies(conflicts: Sequence[Conflict]) -> dict[str, str]:
    """Return, for each kind, the key of a strategy: the unit if the kind has only one unit, else the kind."""
    units: dict[str, set[str]] = {}
    for conflict in conflicts:
        units.setdefault(conflict.kind, set()).add(conflict.unit)
    return {
        # A strategy for one of several units would leave the others open. The unit of rows counts them, and the count
        # changes with the strategy for other conflicts.
        kind: kind if len(units_of_kind) > 1 or kind in ("rows", HISTORY) else next(iter(units_of_kind))
        for kind, units_of_kind in units.items()
    }
