"""The story of the demo, in six chapters. Each checks its expectations and stops the demo when one does not hold."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import dagster as dg
import lance
import pyarrow as pa
from rich.markup import escape

from example_project import assets, history, places, publishing, reports, source
from example_project.defects import Defect
from example_project.driver import Driver, Run
from lance_dagster import LanceRepository, LanceTable

JANUARY, FEBRUARY = "2013-01", "2013-02"
TABLES = tuple(key.to_user_string() for key in assets.KEYS)
_DEFECT = Defect.negative_distance
_DEFECTIVE = "distance < 0"


class UnexpectedError(Exception):
    """An expectation of the story did not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChapterResult:
    """The result of one chapter for its table, shown in the summary at the end."""

    chapter: str
    outcome: str
    table: str
    main: str
    production: str
    rows: int
    seconds: float


@dataclass(slots=True)
class Story:
    """Tell the chapters one after the other; values that later chapters need are kept here."""

    driver: Driver
    results: list[ChapterResult] = field(default_factory=list)
    cursor: str | None = None
    automation: dg.EvaluateAutomationConditionsResult | None = None
    stopped: Run | None = None

    def tell(self) -> None:
        """Tell all chapters.

        Raises:
            UnexpectedError: An expectation did not hold; the message names it.
        """
        self.january()
        self.february_with_a_defect()
        self.february()
        self.somebody_else()
        self.rollback()
        self.consumer()

    def january(self) -> None:
        """Load a month; the audit passes; it is published and promoted."""
        with self._chapter("1 January", "written on run branches, audited, merged, promoted", "nyc/flights"):
            self.automation, _ = self.driver.automate(None)
            run = self.driver.load(JANUARY)
            _expect(run.success, f"loading {JANUARY} succeeds; failed checks: {_listed(run.failed_checks)}")
            _expect_published(months=[1])

    def february_with_a_defect(self) -> None:
        """Load a month with a defect in its flights; the audit stops it and readers see no change."""
        title, outcome = "2 February, broken", "stopped by the audit, production did not move"
        with self._chapter(title, outcome, "nyc/flights"):
            before = _promoted()
            run = self.driver.load(FEBRUARY, _DEFECT)
            _expect(not run.success, f"a load with {_DEFECT.name} fails")
            check = "nyc/flights:in_range_distance"
            _expect(check in run.failed_checks, f"{check} fails; failed: {_listed(run.failed_checks)}")
            _expect_same("production of every table stays where it was", before, _promoted())
            branch = f"run/{run.run_id}"
            defective = table("nyc/flights").count_rows(branch, _DEFECTIVE)
            _expect(defective > 0, f"the defective rows can be looked at on {branch}")
            self._say(f"{defective:,} defective rows wait on {history.short(branch)} for whoever looks into it:\n")
            self.driver.console.print(history.draw(table("nyc/flights")), "", sep="\n", soft_wrap=True)
            self.stopped = run

    def february(self) -> None:
        """Continue the stopped run after the defect was repaired; tables without a defect are not loaded again."""
        with self._chapter("3 February, mended", "re-executed from nyc/flights on, published", "nyc/flights"):
            if self.stopped is None:
                raise UnexpectedError("chapter 3 goes on with the run of chapter 2")
            run = self.driver.go_on(self.stopped, FEBRUARY, first_step="nyc__flights")
            _expect(run.success, f"the re-execution succeeds; failed checks: {_listed(run.failed_checks)}")
            _expect("nyc__weather" not in run.steps, "the weather of the stopped run is published, not loaded again")
            _expect_published(months=[1, 2])

    def somebody_else(self) -> None:
        """Append to `main` with pylance alone; the sensor reports it and production does not change."""
        title, outcome = "4 Row from outside", "announced by the sensor, not in production"
        with self._chapter(title, outcome, "nyc/airlines"):
            self.cursor, early = self.driver.tick(None)
            _expect(not early, "the first look of the sensor only remembers where everything is")
            row = pa.table({"carrier": ["G4"], "name": ["Allegiant Air"]})
            lance.write_dataset(row, table("nyc/airlines").uri, mode="append")
            self.cursor, announced = self.driver.tick(self.cursor)
            _expect(len(announced) == 1, f"the sensor announces one version, not {len(announced)}")
            event = announced[0]
            _expect_same("the sensor names the table", "main/nyc/airlines", event.asset_key.to_user_string())
            _expect(event.metadata["lance/foreign"].value is True, "the sensor says that it was no Dagster run")
            self._say(f"announced: {event.asset_key.to_user_string()} at main@{event.metadata['lance/version'].value}")
            _expect_same("production has no row from outside", source.rows("airlines"), rows("nyc/airlines"))

    def rollback(self) -> None:
        """Move production of all tables one publication back and hold it there, then release it forward."""
        with self._chapter("5 Back and forward", "all held back, then released; no data written", "nyc/training_set"):
            channels = LanceRepository.open(places.tables()).channels
            newest = channels.get(publishing.TAG).commit
            # A hold and not a revert: the rows of February are expected to come back, so `main` keeps them.
            why = "the models of February are worse"
            back = self.driver.promote(f"{publishing.TAG}~1", reason=why, rollback="hold")
            _expect(back.success, "moving production of all tables back succeeds")
            _expect_rows(months=[1])
            refused = self.driver.promote(newest, reason="too early")
            _expect(not refused.success, "production stays where it is held")
            _expect_rows(months=[1])
            self._say("as intended: nothing moves production until the hold is released")
            forward = self.driver.promote(newest, reason="it was the code, not the data", release=True)
            _expect(forward.success, "releasing production succeeds")
            _expect_same("production is at the newest commit again", newest, channels.get(publishing.TAG).commit)
            _expect_rows(months=[1, 2])

    def consumer(self) -> None:
        """Make the report, which automation asked for, from production."""
        report = reports.delay_by_carrier.key
        with self._chapter("6 The report", "made from production by its automation", "nyc/training_set"):
            _, wanted = self.driver.automate(self.automation)
            _expect(report in wanted, "automation wants the report, because production moved")
            run = self.driver.materialize(report, waiting="making the report")
            _expect(run.success, "the report is made")
            event = self.driver.instance.get_latest_materialization_event(report)
            made = event.asset_materialization if event else None
            counted = made.metadata["flights"].value if made else None
            _expect_same("the report counts the flights in production", rows("nyc/training_set"), counted)

    @contextmanager
    def _chapter(self, title: str, outcome: str, about: str) -> Iterator[None]:
        self.driver.console.print(f"\n[bold]{escape(title)}[/]")
        started = time.monotonic()
        yield
        self.results.append(
            ChapterResult(
                chapter=title,
                outcome=outcome,
                table=about,
                main=str(table(about).head()),
                production=_promoted()[about],
                rows=rows(about),
                seconds=time.monotonic() - started,
            )
        )
        self._say(f"{outcome} ({self.results[-1].seconds:.0f} s)")

    def _say(self, text: str) -> None:
        self.driver.console.print(f"  [bold]→[/] {escape(text)}")


def table(name: str) -> LanceTable:
    """Open a table of the example by its name, such as `nyc/flights`."""
    return LanceTable.open(f"{places.tables()}/{name}.lance")


def rows(name: str) -> int:
    """Count the rows of a table in production, with pylance, as its readers do."""
    return lance.dataset(table(name).uri, version=publishing.TAG).count_rows()


def _promoted() -> Mapping[str, str]:
    """Return the version that the tag of every table names."""
    return {name: table(name).tags.list()[publishing.TAG].ref for name in TABLES}


def _expect_published(months: list[int]) -> None:
    """Expect that production has every table completely, and that no run branch is left."""
    for name in TABLES:
        opened = table(name)
        _expect_same(f"production of {name} is the newest main", str(opened.head()), _promoted()[name])
        _expect_same(f"branches left in {name}", set(), {*opened.branches.list()})
    _expect_rows(months)


def _expect_rows(months: list[int]) -> None:
    """Expect that production has exactly the rows of some months, and no defective row."""
    for name in ("flights", "weather"):
        expected = sum(source.rows_by_month(name)[month] for month in months)
        _expect_same(f"rows of {name} in production", expected, rows(f"nyc/{name}"))
    for name in ("airlines", "airports", "planes"):
        _expect_same(f"rows of {name} in production", source.rows(name), rows(f"nyc/{name}"))
    flights = table("nyc/flights")
    _expect_same("feature rows in production", rows("nyc/flights"), rows("nyc/flight_features"))
    arrived = flights.count_rows(publishing.TAG, "arr_delay IS NOT NULL")
    _expect_same("examples in production", arrived, rows("nyc/training_set"))
    _expect_same("defective rows in production", 0, flights.count_rows(publishing.TAG, _DEFECTIVE))


def _expect(holds: bool, what: str) -> None:  # noqa: FBT001 - reads as the sentence it is
    if not holds:
        raise UnexpectedError(f"this was expected and is not the case: {what}")


def _expect_same(what: str, expected: object, found: object) -> None:
    _expect(expected == found, f"{what}: expected {expected}, found {found}")


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
