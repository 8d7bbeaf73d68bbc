"""Any sequence of operations on many tables has the result of a plain model."""

import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from lance_dagster import LanceRepository, MergeConflictError, ProtectedError, RefNotFoundError
from lance_dagster.types import CommitRetention
from tests.repository.scripted_repository import FAST, ids, new_repository, rows, run
from tests.soak import FACTOR, examples

CHANNEL = "production"
Rows = frozenset[tuple[int, int]]
State = dict[str, Rows]


@dataclass(slots=True)
class Change:
    """The change of a run in one table: the added rows, the price of row 0, and how often that had changed before."""

    added: dict[int, int] = field(default_factory=dict)
    price: int | None = None
    seen: int = 0


@dataclass(slots=True)
class Model:
    """The state of a repository as plain values. Commits are identified by numbers."""

    main: State
    commits: list[State]
    # The versions in the newest commit; `main` may be ahead of it by commits of other programs.
    head: State
    prices: dict[str, int]
    runs: dict[str, dict[str, Change]] = field(default_factory=dict)
    promotions: list[int] = field(default_factory=list)
    held: bool = False
    releases: dict[str, State] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    # How many of the promotions before the present one can still be read after a collection.
    readable: int = 0

    def commit(self, changed: State) -> int:
        """Make a commit, or return the newest one when nothing changed."""
        after = {**self.head, **changed}
        if after != self.head:
            self.commits.append(after)
            self.head = after
        return len(self.commits) - 1

    def promote(self, commit: int) -> None:
        """Move the channel to a commit that it does not contain."""
        if not self.promotions or self.promotions[-1] < commit:
            self.promotions.append(commit)
            self.readable += 1


picks = st.integers(0, 1000)


class Repository(RuleBasedStateMachine):
    """A repository of three tables, and the model."""

    def __init__(self) -> None:
        """Create the tables, each with a row that runs may change."""
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        names = ("a", "b", "c")
        repository = new_repository(self.folder / "r", *names)
        for name in names:
            repository.table(name).append(rows(0, price=0))
        repository.commit("begin")
        state = dict.fromkeys(names, frozenset({(0, 0)}))
        self.model = Model(main=dict(state), commits=[dict(state)], head=dict(state), prices=dict.fromkeys(names, 0))
        self.number = 0

    def teardown(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.folder)

    @property
    def repository(self) -> LanceRepository:
        """The repository, as a process sees it that has just started."""
        return LanceRepository.open(self.folder / "r", FAST)

    def next(self) -> int:
        """A number that was not used before."""
        self.number += 1
        return self.number

    def table(self, pick: int) -> str:
        """One of the tables."""
        names = sorted(self.model.head)
        return names[pick % len(names)]

    def branch(self, pick: int) -> str:
        """One of the runs."""
        return sorted(self.model.runs)[pick % len(self.model.runs)]

    @rule(table=picks, run=picks, new=st.booleans())
    def append(self, table: int, run: int, new: bool) -> None:  # noqa: FBT001 - hypothesis passes names
        """A run appends a row."""
        name, branch, change = self._forked(table, run, new=new)
        number = self.next()
        self.repository.table(name).append(rows(number, price=number), branch=branch)
        change.added[number] = number

    @rule(table=picks, run=picks, new=st.booleans())
    def update(self, table: int, run: int, new: bool) -> None:  # noqa: FBT001 - same
        """A run changes row 0, as others may at the same time."""
        name, branch, change = self._forked(table, run, new=new)
        change.price = self.next()
        self.repository.table(name).update({"price": str(change.price)}, where="id = 0", branch=branch)

    def _forked(self, table: int, run: int, *, new: bool) -> tuple[str, str, Change]:
        name = self.table(table)
        branch = f"run/{self.next()}" if new or not self.model.runs else self.branch(run)
        self.repository.fork(name, branch)
        changes = self.model.runs.setdefault(branch, {})
        return name, branch, changes.setdefault(name, Change(seen=self.model.prices[name]))

    @precondition(lambda self: self.model.runs)
    @rule(run=picks, promoted=st.booleans())
    def publish(self, run: int, promoted: bool) -> None:  # noqa: FBT001 - same
        """A run is published whole, or refused with the conflicts of all its tables."""
        branch, model = self.branch(run), self.model
        changes = model.runs[branch]
        conflicts = {name for name, change in changes.items() if change.price and change.seen != model.prices[name]}
        channel = CHANNEL if promoted else None
        if promoted and model.held:
            with pytest.raises(ProtectedError):
                self.repository.publish(branch, channel=channel)
            return
        if conflicts:
            with pytest.raises(MergeConflictError) as refused:
                self.repository.publish(branch, channel=channel)
            assert conflicts == {conflict.unit.partition(":")[0] for conflict in refused.value.conflicts}
            return
        done = self.repository.publish(branch, channel=channel)
        assert ((), ()) == (done.lagging, done.kept)
        for name, change in changes.items():
            after = dict(model.main[name]) | change.added
            if change.price:
                after[0] = change.price
                model.prices[name] = change.price
            model.main[name] = frozenset(after.items())
        del model.runs[branch]
        commit = model.commit({name: model.main[name] for name in changes})
        if promoted:
            model.promote(commit)

    @rule(table=picks, updates=st.booleans())
    def foreign(self, table: int, updates: bool) -> None:  # noqa: FBT001 - same
        """Another program commits to `main` of a table."""
        name, number = self.table(table), self.next()
        dataset = lance.dataset(self.repository.table(name).uri)
        found = dict(self.model.main[name])
        if updates:
            dataset.update({"price": str(number)}, where="id = 0")
            found[0] = self.model.prices[name] = number
        else:
            lance.write_dataset(rows(number, price=number), dataset.uri, mode="append")
            found[number] = number
        self.model.main[name] = frozenset(found.items())

    @rule()
    def commit(self) -> None:
        """Foreign commits become a commit of the repository."""
        self.repository.commit("all")
        self.model.commit({name: self.model.main[name] for name in self.model.head})

    @rule()
    def promote(self) -> None:
        """The channel names the newest commit, unless it is held."""
        newest, model = len(self.model.commits) - 1, self.model
        if model.held and model.promotions[-1] != newest:
            with pytest.raises(ProtectedError):
                self.repository.channels.promote(CHANNEL)
        else:
            self.repository.channels.promote(CHANNEL)
            model.promote(newest)

    @precondition(lambda self: self.model.promotions)
    @rule(hold=st.booleans())
    def roll_back(self, hold: bool) -> None:  # noqa: FBT001 - same
        """The channel is moved back to an earlier promotion, if there is one."""
        model, number = self.model, self.next()
        # A held channel goes further back, and is held there.
        refused = model.held and not hold
        if refused or len(model.promotions) == 1:
            with pytest.raises(ProtectedError if refused else RefNotFoundError):
                self.repository.channels.rollback(CHANNEL, reason=f"wrong {number}", hold=hold)
            return
        try:
            self.repository.channels.rollback(CHANNEL, reason=f"wrong {number}", hold=hold)
        except RefNotFoundError:
            # A collection deletes commits that are older than its retention, unless another ref names them.
            assert model.readable == 1
            return
        model.promotions.pop()
        model.readable = max(1, model.readable - 1)
        model.held = hold

    @precondition(lambda self: self.model.promotions and not self.model.held)
    @rule()
    def hold(self) -> None:
        """The channel stays where it is."""
        self.repository.channels.hold(CHANNEL, reason="wait")
        self.model.held = True

    @precondition(lambda self: self.model.promotions)
    @rule()
    def release(self) -> None:
        """The channel may move again."""
        self.repository.channels.release(CHANNEL, reason="go on")
        self.model.held = False

    @rule()
    def repair(self) -> None:
        """A repair finds nothing, because nothing lags behind after an operation."""
        assert () == self.repository.maintenance.repair()

    @precondition(lambda self: self.model.promotions)
    @rule(table=picks)
    def tag_moved_by_another_program(self, table: int) -> None:
        """A tag that another program moved is reported, and moved back."""
        name, view = self.table(table), self.repository.at(CHANNEL)
        if name not in view:
            return
        uri = self.repository.table(name).uri
        dataset = lance.dataset(uri)
        dataset.tags.update(CHANNEL, dataset.version)
        moved = {state.name for state in self.repository.status().tables if state.moved_tags}
        assert {name} >= moved
        self.repository.maintenance.repair()
        assert not any(state.moved_tags for state in self.repository.status().tables)

    @rule(table=picks)
    def move(self, table: int) -> None:
        """A folder is renamed, and its table with it; runs on the table continue."""
        name, new, model = self.table(table), f"t{self.next()}", self.model
        (self.folder / "r" / f"{name}.lance").rename(self.folder / "r" / f"{new}.lance")
        self.repository.move_table(name, new)
        model.main[new], model.prices[new] = model.main.pop(name), model.prices.pop(name)
        for changes in model.runs.values():
            if name in changes:
                changes[new] = changes.pop(name)
        model.head = {new if each == name else each: found for each, found in model.head.items()}
        model.commits.append(model.head)

    @precondition(lambda self: len(self.model.head) > 1)
    @rule(table=picks)
    def remove(self, table: int) -> None:
        """A table is removed from the repository."""
        name, model = self.table(table), self.model
        if any(name in changes for changes in model.runs.values()):
            return
        self.repository.remove_table(name)
        model.removed.add(name)
        model.head = {each: found for each, found in model.head.items() if each != name}
        model.commits.append(model.head)

    @precondition(lambda self: self.model.removed)
    @rule()
    def adopt(self) -> None:
        """Removed tables are adopted in their present state."""
        names, model = sorted(self.model.removed), self.model
        self.repository.adopt(names)
        model.removed.clear()
        model.commit({name: model.main[name] for name in names})

    @rule()
    def tag(self) -> None:
        """A repository tag is created for the newest commit."""
        name = f"v{self.next()}"
        _, lagging = self.repository.tags.create(name)
        assert () == lagging
        self.model.releases[name] = self.model.head

    @rule(promotions=st.integers(1, 3))
    def collect(self, promotions: int) -> None:
        """Commits that no ref names are deleted, except the last promotions; garbage of tables is deleted too."""
        now = timedelta(0)
        repository = self.repository
        repository.maintenance.collect(CommitRetention(promotions=promotions, keep_for=now, grace=now), dry_run=False)
        for name in repository.tables():
            repository.table(name).maintenance.collect_garbage(now, dry_run=False, grace=now)
        self.model.readable = min(self.model.readable, promotions)

    @invariant()
    def readers_see_the_model(self) -> None:
        """The repository, pylance on `main`, and the tags of the tables give the rows of the model."""
        repository, model = self.repository, self.model
        assert model.head == _state(repository, "main")
        for name in model.head:
            uri = repository.table(name).uri
            assert model.main[name] == _rows(lance.dataset(uri))
        for name, state in model.releases.items():
            assert sorted(map(sorted, state.values())) == sorted(map(sorted, _state(repository, name).values()))
        for back in range(model.readable):
            state = model.commits[model.promotions[-1 - back]]
            found = _state(repository, f"{CHANNEL}~{back}")
            # Older commits have the old names of tables that were moved since.
            assert state == found
        if model.promotions:
            view = repository.at(CHANNEL)
            for name in set(view) & set(model.head):
                assert _rows(view[name].to_lance()) == _rows(lance.dataset(view[name].uri, version=CHANNEL))


def _state(repository: LanceRepository, ref: str) -> State:
    view = repository.at(ref)
    return {name: _rows(view[name].to_lance()) for name in view}


def _rows(dataset: lance.LanceDataset) -> Rows:
    found = dataset.to_table().to_pylist()
    return frozenset((row["id"], row["price"]) for row in found)


@pytest.mark.scaled
def test_a_repository_does_what_the_model_does() -> None:
    """After any runs, conflicts, foreign commits, rollbacks, moves and collections, readers see the model's rows."""
    run_state_machine_as_test(
        Repository,
        settings=settings(
            max_examples=examples(4),
            stateful_step_count=40 if FACTOR else 20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=not FACTOR,
            database=None,
            # Shrinking would take minutes; the steps of the failing example are printed.
            phases=[Phase.generate],
        ),
    )


def test_the_tag_of_a_table_that_was_moved_is_released(tmp_path: Path) -> None:
    """A promotion moves the tag of a moved table again, though the channel's commit has its former name."""
    repository = new_repository(tmp_path, "a")
    repository.publish(run(repository, 1, "a"), channel=CHANNEL)
    repository.channels.hold(CHANNEL, reason="wait")
    (tmp_path / "a.lance").rename(tmp_path / "moved.lance")
    repository.move_table("a", "moved")
    repository.channels.release(CHANNEL, reason="go on")
    assert () == repository.publish(run(repository, 2, "moved"), channel=CHANNEL).lagging
    assert [1, 2] == repository.table("moved").read(CHANNEL)["id"].to_pylist()


def test_a_table_that_was_moved_and_then_removed_is_read_in_old_commits(tmp_path: Path) -> None:
    """Old commits read a table that was moved and then removed, though no registry has its first name any more."""
    repository = new_repository(tmp_path, "a", "b")
    repository.publish(run(repository, 1, "a"), channel=CHANNEL)
    (tmp_path / "a.lance").rename(tmp_path / "moved.lance")
    repository.move_table("a", "moved")
    repository.remove_table("moved")
    assert {"a": [1], "b": []} == ids(repository, CHANNEL)


def test_a_channel_behind_collected_commits(tmp_path: Path) -> None:
    """The status does not count collected commits, and a late publisher does not move the channel back."""
    repository = new_repository(tmp_path, "a")
    first = repository.publish(run(repository, 1, "a"), channel=CHANNEL).commit
    repository.tags.create("v1")
    for number in (2, 3):
        repository.publish(run(repository, number, "a"))
    now = timedelta(0)
    repository.maintenance.collect(CommitRetention(promotions=1, keep_for=now, grace=now), dry_run=False)
    assert [None] == [channel.behind for channel in LanceRepository.open(tmp_path, FAST).status().channels]
    repository.channels.promote(CHANNEL)
    late = LanceRepository.open(tmp_path, FAST).channels.promote(CHANNEL, first.id, forward_only=True)
    assert repository.head().id == late.commit
