"""Promotions and rollbacks of all tables and of some, against a plain model of what readers of each table see."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from lance_dagster import LanceRepository, RefNotFoundError
from tests.repository.scripted_repository import FAST, new_repository, rows
from tests.soak import examples

TAG = "production"
TABLES = ("a", "b", "c", "d")
Versions = dict[str, int]
Stacks = dict[str, list[tuple[int, int | None]]]


@dataclass(slots=True)
class Model:
    """The promotions that count for each table: their entries, and the versions; None where a table left the channel.

    `log` has what readers saw after each entry.
    """

    stacks: Stacks = field(default_factory=dict)
    log: list[Versions] = field(default_factory=list)

    @property
    def seen(self) -> Versions:
        """The version of each table that readers see."""
        return seen_of(self.stacks)

    def promote(self, state: Versions, *, all_tables: bool) -> None:
        """Promote tables to versions, or all tables to a state; tables that have these versions stay."""
        wanted: dict[str, int | None] = {**(dict.fromkeys(self.seen) if all_tables else {}), **state}
        moved = {name: version for name, version in wanted.items() if self.seen.get(name) != version}
        if moved:
            for name, version in moved.items():
                self.stacks.setdefault(name, []).append((len(self.log) + 1, version))
            self.log.append(self.seen)

    def earlier(self, steps: int, names: Collection[str] = TABLES) -> Stacks | None:
        """The promotions that count some promotions of some tables before; None where there are fewer."""
        entries = sorted({entry for name in names for entry, _ in self.stacks.get(name, ())}, reverse=True)
        # The first entry of the channel has nothing before it.
        if steps > len(entries) or (steps and entries[steps - 1] == 1):
            return None
        cut = entries[steps - 1] if steps else len(self.log) + 1
        return {
            name: [each for each in stack if each[0] < cut or name not in names] for name, stack in self.stacks.items()
        }

    def go_back(self, stacks: Stacks) -> None:
        """Roll tables back."""
        self.stacks = stacks
        self.log.append(self.seen)


def seen_of(stacks: Stacks) -> Versions:
    """The version of each table that readers see, of the promotions that count."""
    tops = {name: stack[-1][1] for name, stack in stacks.items() if stack}
    return {name: version for name, version in tops.items() if version is not None}


def versions(repository: LanceRepository, ref: str = TAG, tables: Collection[str] | None = None) -> Versions:
    """The version of each table at a ref."""
    return {name: view.at.version for name, view in repository.at(ref, tables=tables).items()}


def checked(repository: LanceRepository, model: Model) -> None:
    """Check what readers see: of the channel, of the tags, and by the expressions of all tables and of some."""
    repository = LanceRepository.open(repository.root, FAST)
    assert model.seen == versions(repository)
    for name, version in model.seen.items():
        assert f"main@{version}" == repository.table(name).tags.get(TAG).ref
    scopes: list[Collection[str] | None] = [None, *([name] for name in model.seen), ["a", "b"]]
    for scope in scopes:
        for steps in (0, 1, 2, 3):
            stacks = model.earlier(steps, TABLES if scope is None else scope)
            if stacks is None:
                with pytest.raises(RefNotFoundError):
                    versions(repository, f"{TAG}~{steps}", scope)
            else:
                assert seen_of(stacks) == versions(repository, f"{TAG}~{steps}", scope)
    assert list(model.log) == [versions(repository, f"{TAG}@{number}") for number in range(1, len(model.log) + 1)]


def rolled_back(repository: LanceRepository, model: Model, steps: int, names: Collection[str] | None, how: str) -> None:
    """Roll tables back by steps, or to the expression of these steps; a dry run says what happens."""
    stacks = model.earlier(steps, TABLES if names is None else names)
    missing = names is not None and stacks is not None and any(name not in seen_of(stacks) for name in names)
    target = {"steps": steps} if how == "steps" else {"to": f"{TAG}~{steps}"}
    options = {**target, "tables": names, "reason": f"entry {len(model.log) + 1}", "hold": False}
    if stacks is None or missing:
        with pytest.raises(RefNotFoundError):
            repository.channels.rollback(TAG, **options)  # type: ignore[arg-type]
        return
    before = model.seen
    planned = repository.channels.rollback(TAG, dry_run=True, **options)  # type: ignore[arg-type]
    assert before == versions(repository)
    done = repository.channels.rollback(TAG, **options)  # type: ignore[arg-type]
    assert (planned.moves, planned.left) == (done.moves, done.left)
    again = repository.channels.rollback(TAG, **options)  # type: ignore[arg-type]
    assert ((), done.entry) == (again.moves, again.entry)
    model.go_back(stacks)
    shown = {move.name: (move.before and move.before.version, move.after and move.after.version) for move in done.moves}
    scope = before | model.seen if names is None else names
    assert {name: (before.get(name), model.seen.get(name)) for name in scope} == shown


steps = st.integers(1, 3)
scopes = st.none() | st.lists(st.sampled_from(TABLES), min_size=1, max_size=2, unique=True)
operations = st.lists(
    st.tuples(st.just("advance"), st.integers(1, 15), st.just(""))
    | st.tuples(st.just("promote"), st.integers(1, 15), st.just(""))
    | st.tuples(st.just("promote an earlier state"), st.integers(0, 20), st.just(""))
    | st.tuples(steps, scopes, st.sampled_from(["steps", "to"])),
    max_size=12,
)


@settings(
    max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)
@given(operations=operations)
def test_any_promotions_and_rollbacks_have_the_result_of_the_model(
    operations: list[tuple[object, object, str]],
) -> None:
    """After any promotions and rollbacks of any tables, each table and each expression is as the model says."""
    with TemporaryDirectory() as folder:
        repository = new_repository(Path(folder) / "lake", "a", "b", "c")
        repository.channels.create(TAG)
        model = Model()
        model.promote(versions(repository), all_tables=True)
        repository.create_table("d", rows().schema)
        for number, (what, value, how) in enumerate(operations):
            if isinstance(what, int):
                names = None if value is None else [name for name in value if name in model.seen]  # type: ignore[attr-defined]
                if names != []:
                    rolled_back(repository, model, what, names, how)
            elif what == "promote an earlier state":
                assert isinstance(value, int)
                entry = value % len(model.log)
                repository.channels.promote(TAG, f"{TAG}@{entry + 1}")
                model.promote(model.log[entry], all_tables=True)
            else:
                assert isinstance(value, int)
                moved = [name for bit, name in enumerate(TABLES) if value >> bit & 1]
                for name in moved:
                    repository.table(name).append(rows(number))
                repository.commit(f"write {number}")
                head = versions(repository, "main")
                if what == "promote":
                    repository.channels.promote(TAG)
                    model.promote(head, all_tables=True)
                else:
                    repository.channels.advance(TAG, "main", moved)
                    model.promote({name: head[name] for name in moved}, all_tables=False)
        checked(repository, model)
