# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""Random operations of a team on one table, and a plain model of the rows that its readers may see.

The model knows nothing of branches, manifests or merges. It knows rows, which run delivered them, and the rule: readers
see rows that passed every check together with all other published rows, and rows are withdrawn or published again only
when a person says so.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pyarrow as pa

from lance_dagster import (
    InRange,
    LanceIOManager,
    LanceRepository,
    LanceResource,
    LanceTable,
    RowCount,
    Unique,
    build_publisher,
    build_table_checks,
)
from tests.forked_program import start

Kind = Literal["append", "overwrite", "replace"]
Rows = Counter[tuple[str, int]]  # how often each row, its region and its id, occurs

KEY = dg.AssetKey(["shop", "orders"])
REGIONS = ("eu", "us", "asia")
COLUMNS: dict[str, pa.DataType] = {"region": pa.string(), "id": pa.int64()}
SCHEMA = pa.schema(COLUMNS)


class Unsteady(LanceIOManager):
    """An IO manager that loses its connection once after a commit, when the script says so."""

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Store the value, and fail on the first attempt."""
        super().handle_output(context, obj)
        flag = Path(self.lance.root).with_name("fail_once")
        if flag.exists():
            flag.unlink()
            raise ConnectionError("the network went away after the commit")


def assets_of(root: str, kind: Kind, tags: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """The candidate, its checks and a publisher for each tag, with the resources that they need."""
    lance = LanceResource(root=root)
    metadata: dict[str, Any] = {"lance/write_mode": kind}
    partitions = dg.StaticPartitionsDefinition(list(REGIONS)) if kind == "replace" else None
    if partitions:
        metadata["lance/partition_expr"] = "region"

    @dg.asset(key=KEY, partitions_def=partitions, metadata=metadata, retry_policy=dg.RetryPolicy(max_retries=1))
    def orders() -> pa.Table:
        rows = json.loads(Path(root).with_name("rows.json").read_text())
        return pa.Table.from_pylist([{"region": region, "id": number} for region, number in rows], SCHEMA)

    checks = build_table_checks(orders, [RowCount(minimum=1), InRange("id", minimum=0), Unique("id")])
    publishers = [build_publisher([orders], tag=tag, partitions_def=partitions) for tag in tags]
    return [orders, *checks, *publishers], {"lance": lance, "io_manager": Unsteady(lance=lance)}


def execute(root: str, kind: Kind, tags: Sequence[str], home: str, region: str) -> None:
    """Run everything in this process, which is killed while it runs; `region` is empty without partitions."""
    assets, resources = assets_of(root, kind, tags)
    options: dict[str, Any] = {"partition_key": region} if region else {}
    with dg.DagsterInstance.local_temp(home, overrides={"telemetry": {"enabled": False}}) as instance:
        dg.materialize(assets, resources=resources, instance=instance, raise_on_error=False, **options)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The rows that one run delivered, and the version that `main` had then."""

    run_id: str
    rows: Rows
    region: str | None
    base: int
    passed: bool


@dataclass(kw_only=True)
class Team:
    """A table, the model of it, and the operations of people on both."""

    root: str
    kind: Kind
    instance: dg.DagsterInstance
    random: random.Random
    # One publisher for each tag; the second one is never held or rolled back.
    tags: Sequence[str] = ("production",)
    main: Rows = field(default_factory=Counter)
    readers: dict[str, Rows] = field(default_factory=dict)
    held: bool = False
    changes: int = 0
    published: dict[int, Rows] = field(default_factory=dict)
    waiting: list[Candidate] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    # The operations of people. Each returns after it has compared the table with the model.

    def deliver(self) -> None:
        """A run writes rows and publishes them, unless they are bad."""
        self._deliver(publish=True)

    def deliver_only(self) -> None:
        """A run writes rows, and its publisher is left out."""
        self._deliver(publish=False)

    def publish_left_over(self) -> None:
        """A person names the branch of a run that was not published, to one of the publishers."""
        if self.waiting:
            candidate, tag = self.random.choice(self.waiting), self.random.choice(self.tags)
            self._note(f"publish {candidate.run_id[:8]} to {tag}")
            result = self._publisher(tag, candidate.region, ref=f"run/{candidate.run_id}")
            self._settle(candidate, result.success, [tag])

    def deliver_and_die(self) -> None:
        """The process of a run is killed at some point, and a person publishes what it left."""
        candidate = self._delivered()
        self._note(f"deliver {sorted(candidate.rows.elements())} and die")
        known = {run.run_id for run in self.instance.get_runs()}
        self._run_and_kill(candidate.region)
        for run in self.instance.get_runs():
            if run.run_id not in known and not run.is_finished:
                self.instance.report_run_failed(run)
        (started,) = {run.run_id for run in self.instance.get_runs()} - known or {""}
        if not started:
            return
        results = [self._publisher(tag, candidate.region, ref=f"run/{started}").success for tag in self.tags]
        # The delivery does not count as clean: the run may have died before its checks, which is a reason for refusal.
        found = replace(candidate, run_id=started, base=-1, passed=any(results) and candidate.passed)
        done = [tag for tag, success in zip(self.tags, results, strict=True) if success]
        self._settle(found, bool(done), done)

    def _run_and_kill(self, region: str | None) -> None:
        table = Path(LanceResource(root=self.root).uri_of(KEY))
        # The steps are the rows, the commit on the run branch, the merge, and the move of the tag.
        pattern = self.random.choice(["data/*", "tree/run/*/_versions/*", "_versions/*", "_refs/tags/*"])
        before = _modified(table, pattern)
        process = start(execute, self.root, self.kind, list(self.tags), self.instance.root_directory, region or "")
        while process.is_alive():
            if _modified(table, pattern) != before:
                time.sleep(self.random.random() / 50)
                process.kill()
                break
            time.sleep(0.001)
        process.join()

    def commit_by_another_program(self) -> None:
        """Another program appends a row to `main`, good or bad."""
        if self.table is not None and self.published:
            row = self._row(self.random.choice(REGIONS), bad=self.random.random() < 0.4)
            self._note(f"foreign {row}")
            self.table.append(pa.Table.from_pylist([{"region": row[0], "id": row[1]}], SCHEMA))
            self.main = self.main + Counter([row])
            self.changes += 1

    def roll_back(self) -> None:
        """A person withdraws a publication by a revert, or holds the channel."""
        older = sorted(self.published)[:-1]
        if not older or self.held:
            return
        if self.random.random() < 0.5:
            # One table cannot be held at an older version than the others; the channel is held where it is.
            self._note("hold")
            region = REGIONS[0] if self.kind == "replace" else None
            assert self._publisher("production", region, hold=True, reason="wrong prices").success, self.story
            self.held = True
            return
        version = self.random.choice(older)
        self._note(f"roll back to {version}")
        region = REGIONS[0] if self.kind == "replace" else None
        result = self._publisher("production", region, ref=f"main@{version}", reason="wrong prices")
        assert result.success, self.story
        self.readers["production"] = self.main = self.published[version]
        self.changes += 1
        self._remember()

    def release(self) -> None:
        """A person releases the channel."""
        if self.held:
            self._note("release")
            LanceRepository.open(self.root).channels.release("production", reason="repaired", who="a test")
            self.held = False

    # The rule.

    def allowed(self, rows: Rows) -> bool:
        """Whether these rows, taken together, pass every check."""
        ids = Counter(number for _, number in rows.elements())
        return bool(rows) and all(number >= 0 and times == 1 for number, times in ids.items())

    def merged(self, candidate: Candidate) -> Rows:
        """The rows of `main` after a candidate is merged into it."""
        if self.kind == "append":
            return self.main + candidate.rows
        if self.kind == "overwrite":
            return candidate.rows
        return Counter({row: times for row, times in self.main.items() if row[0] != candidate.region}) + candidate.rows

    # The implementation.

    @property
    def table(self) -> LanceTable | None:
        """The table, if it exists already."""
        uri = LanceResource(root=self.root).uri_of(KEY)
        return LanceTable.open(uri) if LanceTable.exists(uri) else None

    @property
    def story(self) -> str:
        """The operations so far, for the message of a failure."""
        return f"{self.kind}: " + "; ".join(self.done)

    def compare(self) -> None:
        """Compare the table with the model."""
        if self.table is None:
            return
        names = [tag for tag in self.table.tags.list() if not tag.startswith("repository-")]
        assert self.readers == {tag: self._rows(tag) for tag in names}, self.story
        if self.readers:
            repository = LanceRepository.open(self.root)
            views = {name: repository.at(name)["shop/orders"] for name in repository.channels.list()}
            assert self.readers == {name: _counted(view.read()) for name, view in views.items()}, self.story
        assert self.main == self._rows("main"), self.story

    def _rows(self, ref: str) -> Rows:
        assert self.table is not None
        return _counted(self.table.read(ref))

    def _delivered(self) -> Candidate:
        """Write the rows that the next run delivers, and return the candidate that they make if nothing goes wrong."""
        region = self.random.choice(REGIONS) if self.kind == "replace" else None
        bad = self.random.random() < 0.25
        rows = [self._row(region or self.random.choice(REGIONS), bad=bad and not place) for place in range(2)]
        if self.random.random() < 0.1:
            rows = []
        Path(self.root).with_name("rows.json").write_text(json.dumps(rows))
        candidate = Candidate(run_id="", rows=Counter(rows), region=region, base=self.changes, passed=False)
        return replace(candidate, passed=self._passes(candidate))

    def _deliver(self, *, publish: bool) -> None:
        candidate = self._delivered()
        flaky = self.random.random() < 0.2
        if flaky:
            Path(self.root).with_name("fail_once").touch()
        options: dict[str, Any] = {"partition_key": candidate.region} if candidate.region else {}
        if not publish:
            options["selection"] = dg.AssetSelection.assets(KEY)
        result = self._materialize(**options)
        candidate = replace(candidate, run_id=result.run_id)
        what = f"deliver{'' if publish else ' only'} {sorted(candidate.rows.elements())}{' flaky' if flaky else ''}"
        self._note(f"{what} as {result.run_id[:8]}")
        if publish:
            self._settle(candidate, result.success, self.tags)
        else:
            assert candidate.passed == result.success, self.story
            self.waiting.append(candidate)

    def _passes(self, candidate: Candidate) -> bool:
        """Whether the checks pass on the branch of the run: an empty partition fails although the table has rows."""
        branch = self.merged(candidate)
        scoped = candidate.rows if self.kind == "replace" else branch
        ids = Counter(number for _, number in branch.elements())
        return bool(scoped) and min(number for _, number in scoped) >= 0 and set(ids.values()) == {1}

    def _settle(self, candidate: Candidate, published: bool, tags: Sequence[str]) -> None:  # noqa: FBT001
        """Update the model after an attempt to publish to some tags; if it succeeded, the rule must allow it."""
        after = self.merged(candidate)
        clean = candidate.base == self.changes
        # A publisher leaves a held table out and succeeds.
        moved = [tag for tag in tags if not (tag == "production" and self.held)]
        published = published and bool(moved)
        if published:
            assert candidate.passed, self.story
            assert self.allowed(after), self.story
            self.main = after
            self.readers |= dict.fromkeys(moved, after)
            self.changes += 1
            self._remember()
        elif clean and moved:
            assert not (candidate.passed and self.allowed(after)), f"{self.story}: refused without a reason"
        self.waiting = [one for one in self.waiting if one.run_id != candidate.run_id]
        if not published:
            self.waiting.append(candidate)

    def _remember(self) -> None:
        assert self.table is not None
        self.published[self.table.head("main").number] = self.main

    def _publisher(self, tag: str, region: str | None, **config: object) -> dg.ExecuteInProcessResult:
        options: dict[str, Any] = {"partition_key": region} if region else {}
        run_config = {"ops": {f"publish_{tag}": {"config": config}}}
        return self._materialize(selection=[dg.AssetKey([tag, *KEY.path])], run_config=run_config, **options)

    def _materialize(self, **options: Any) -> dg.ExecuteInProcessResult:
        assets, resources = assets_of(self.root, self.kind, self.tags)
        return dg.materialize(assets, resources=resources, instance=self.instance, raise_on_error=False, **options)

    def _row(self, region: str, *, bad: bool) -> tuple[str, int]:
        # There are few ids, so that two runs sometimes deliver the same ones.
        return (region, -1 if bad else self.random.randrange(12))

    def _note(self, what: str) -> None:
        self.done.append(what)


ACTIONS: tuple[tuple[Callable[[Team], None], int], ...] = (
    (Team.deliver, 5),
    (Team.deliver_only, 3),
    (Team.publish_left_over, 3),
    (Team.deliver_and_die, 1),
    (Team.commit_by_another_program, 2),
    (Team.roll_back, 1),
    (Team.release, 1),
)


def _counted(rows: pa.Table) -> Rows:
    return Counter((row["region"], row["id"]) for row in rows.to_pylist())


def live(team: Team, days: int) -> None:
    """Let a team do random operations, and compare the table with the model after each."""
    actions: Iterable[Callable[[Team], None]] = [action for action, _ in ACTIONS]
    weights = [weight for _, weight in ACTIONS]
    for action in team.random.choices(list(actions), weights, k=days):
        action(team)
        team.compare()


def _modified(folder: Path, pattern: str) -> dict[Path, int]:
    """The times of the files that match, without those that a process at work removes meanwhile."""
    found = {}
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found
