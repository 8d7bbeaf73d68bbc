# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""The published version is the audited one, also when `main` moved since the audit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InRange,
    LanceRepository,
    LanceResource,
    NullRate,
    PinnedTable,
    RowCount,
    RowCountChange,
    Unique,
    build_publisher,
    table_check,
)
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.publish.publish_gate import AuditEvent, AuditLog
from lance_dagster.plugin.publish.record_view import RecordView
from tests.plugin.shop import failure, recorded
from tests.plugin.stall import DAYS, ITEMS, PRODUCTION_ITEMS, Stall


def evaluations(instance: dg.DagsterInstance, name: str) -> list[tuple[bool, str]]:
    """The evaluations of a check without a run, newest first: whether it passed, and on which branch."""
    records = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(ITEMS, name), limit=10)
    found = [record.evaluation for record in records if record.evaluation is not None]
    return [(one.passed, str(one.metadata["lance/branch"].value)) for one in found]


@pytest.fixture
def stall(lake: LanceResource, instance: dg.DagsterInstance) -> Stall:
    """A stall with one published item, and the usual checks."""
    made = Stall(lake, [Unique("id"), InRange("id", minimum=0, maximum=100)])
    assert made.run(instance).success
    return made


def test_ids_that_two_runs_appended_are_not_doubled(stall: Stall, instance: dg.DagsterInstance) -> None:
    """When two branches have unique ids, but their merge does not, nothing of the second one is published."""
    first, second = stall.write(instance, 7), stall.write(instance, 7)
    assert stall.publish(instance, first).success
    text = failure(refused := stall.publish(instance, second))
    assert not refused.success
    assert f"blocking check 'unique_id' failed on the merge of {second}@3 into main@3" in text
    assert ([1, 7], [1, 7]) == (stall.published(), sorted(row["id"] for row in stall.table.read().to_pylist()))
    assert [] == stall.previews()
    passed, branch = evaluations(instance, "unique_id")[0]
    assert (False, f"preview/{refused.run_id}/merge") == (passed, branch)


@pytest.mark.parametrize("foreign,published", [(-5, [1]), (50, [1, 7, 50])])
def test_a_foreign_row_after_the_fork_is_audited(
    stall: Stall, instance: dg.DagsterInstance, foreign: int, published: list[int]
) -> None:
    """A foreign row that fails a check stops the publication; one that passes is published, and its commit is named."""
    branch = stall.write(instance, 7)
    stall.table.append(pa.table({"id": [foreign]}))
    result = stall.publish(instance, branch)
    assert (published, []) == (stall.published(), stall.previews())
    if not result.success:
        assert "blocking check 'in_range_id' failed on the merge of" in failure(result)
        return
    again = recorded(instance, PRODUCTION_ITEMS).metadata["lance/audited_again"]
    assert ("main@3", ["in_range_id", "unique_id"]) == (again["main"], sorted(again["checks"]))
    assert ["main@3: Append"] == [line.split(" by ")[0] for line in again["foreign commits"]]
    head = stall.table.head()
    assert (branch.removeprefix("run/"), "main@4") == (head.properties["dagster/run_id"], str(head))
    assert {} == stall.table.branches.list("run/*")
    assert stall.publish(instance, branch).success
    assert stall.publish(instance, "main@3", reason="without them").success
    assert stall.publish(instance, "main@4", reason="with them").success
    assert [1, 7, 50] == stall.published()


@pytest.mark.parametrize("value", ["[[", "7", "null", '{"checks": 7}', '{"ignored": [{}]}', "[" * 100_000])
def test_properties_of_a_foreign_commit_of_main(stall: Stall, instance: dg.DagsterInstance, value: str) -> None:
    """What another program wrote into properties of the publisher stops no publication, and lets no row pass."""
    branch = stall.write(instance, 7)
    about = dict.fromkeys((md.SOURCES, md.PUBLISHED_RUNS, md.AUDITED_AGAIN), value)
    stall.table.append(pa.table({"id": [50]}), properties={**about, md.RUN_ID: "foreign"})
    refused = stall.publish(instance, "main@3", reason="as it is")
    assert not refused.success
    assert "unreadable record" in failure(refused)
    assert stall.publish(instance, branch).success
    assert [1, 7, 50] == stall.published()


@pytest.mark.parametrize("value", ["[", "[]", '{"uri": 7}', '{"uri": ["run/1"]}', '{"uri": ["run/1@x"]}'])
def test_reads_that_another_program_wrote(stall: Stall, instance: dg.DagsterInstance, value: str) -> None:
    """A run branch whose commit does not say what its run has read is refused by name, and stays."""
    branch = stall.write(instance, 7)
    stall.table.config.set({"owner": "ann"}, branch=branch, properties={md.READ_UNPUBLISHED: value})
    refused = stall.publish(instance, branch)
    assert not refused.success
    assert f"{branch}@4 has the property 'dagster/read_unpublished' with the value" in failure(refused)
    assert [branch] == [*stall.table.branches.list("run/*")]


def test_a_branch_with_foreign_properties_is_discarded(stall: Stall, instance: dg.DagsterInstance) -> None:
    """A publication of all branches names the one that it cannot read; others are published by ref meanwhile."""
    broken = stall.write(instance, 7)
    stall.table.config.set({"owner": "ann"}, branch=broken, properties={md.PARTITION_KEYS: "["})
    other = stall.write(instance, 8)
    assert f"discard: {broken} and a reason" in failure(stall.publish(instance))
    assert stall.publish(instance, other).success
    assert stall.publish(instance, discard=broken, reason="written by hand").success
    assert {} == stall.table.branches.list("run/*")
    assert [1, 8] == stall.published()


def test_without_movement_nothing_is_audited_again(stall: Stall, instance: dg.DagsterInstance) -> None:
    """When `main` did not move, the run branch itself is merged, and the checks are evaluated once."""
    branch = stall.write(instance, 7)
    assert stall.publish(instance, branch).success
    assert "lance/audited_again" not in recorded(instance, PRODUCTION_ITEMS).metadata
    assert f"{branch}@3" == stall.table.head().properties["dagster/audited_version"]
    assert {True} == {passed and name.startswith("run/") for passed, name in evaluations(instance, "unique_id")}


@dg.asset_check(asset=ITEMS, blocking=True)
def looks_fine() -> dg.AssetCheckResult:
    """A check that cannot be evaluated on another version."""
    return dg.AssetCheckResult(passed=True)


@pytest.mark.parametrize("stale", ["refuse", "accept"])
def test_a_plain_check_cannot_be_evaluated_again(lake: LanceResource, instance: dg.DagsterInstance, stale: Any) -> None:
    """The publisher refuses and says what to do, or follows the policy and records it."""
    stall = Stall(lake, [looks_fine, Unique("id")], stale_checks=stale)
    assert stall.run(instance).success
    branch = stall.write(instance, 7)
    stall.table.append(pa.table({"id": [50]}))
    result = stall.publish(instance, branch)
    assert (stale == "accept") == result.success
    if stale == "accept":
        again = recorded(instance, PRODUCTION_ITEMS).metadata["lance/audited_again"]
        assert (["unique_id"], ["looks_fine"]) == (again["checks"], again["accepted although stale"])
    else:
        text = failure(result)
        assert "'looks_fine' did not see the merge of" in text
        assert "make it a @table_check" in text
        assert 'stale_checks="accept"' in text
        assert [1] == stall.published()


def test_a_foreign_version_of_main_is_audited_when_it_is_chosen(stall: Stall, instance: dg.DagsterInstance) -> None:
    """A person may publish `main@n` with rows of another program when the checks pass on it."""
    stall.table.append(pa.table({"id": [50]}))
    assert stall.publish(instance, "main@3").success
    again = recorded(instance, PRODUCTION_ITEMS).metadata["lance/audited_again"]
    assert ("main@3", [1, 50]) == (again["version"], stall.published())
    stall.table.append(pa.table({"id": [50]}))
    text = failure(stall.publish(instance, "main"))
    assert "main@4 was not made by a published run" in text
    assert "'unique_id' failed on main@4" in text
    assert "main@3" == stall.table.tags.get("production").ref


def test_foreign_rows_outside_of_the_partitions_are_audited(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """Foreign rows of other partitions, which the run's checks did not see, are audited, though older than the fork."""
    stall = Stall(lake, [InRange("id", minimum=0)], days=True)
    assert stall.run(instance, partition_key="mon").success
    stall.table.append(pa.table({"id": [-5], "day": ["mon"]}))
    stall.ids = [7]
    result = stall.run(instance, partition_key="tue")
    assert not result.success
    assert "'in_range_id' failed on the merge of" in failure(result)
    assert [1] == stall.published()


@pytest.mark.parametrize("ref", ["", "main"])
def test_foreign_commits_are_compared_with_what_readers_see(
    lake: LanceResource, instance: dg.DagsterInstance, ref: str
) -> None:
    """Rows that another program deleted are missing against the tag, and not against main, which lacks them too."""
    stall = Stall(lake, [RowCountChange(minimum=-0.1)], days=True)
    stall.ids = list(range(10))
    assert stall.run(instance, partition_key="mon").success
    stall.table.delete("id > 4")
    if not ref:
        stall.write(instance, 1, partition_key="tue")
    text = failure(stall.publish(instance, ref, partition_key="tue"))
    assert "blocking check 'row_count_change' failed on" in text
    assert "-50.00% rows against main@2 in mon" in text


@table_check(asset=ITEMS)
def nothing_huge(items: PinnedTable) -> bool:
    """A check of single rows that does not say so."""
    return items.count_rows("id > 1000") == 0


@pytest.mark.parametrize(
    "check,foreign",
    [(nothing_huge, 1001), (NullRate("id", 0.5), None), (RowCount(maximum=3), 2), (RowCount(minimum=1), 0)],
)
def test_every_check_looks_at_the_partitions_of_foreign_rows(
    lake: LanceResource, instance: dg.DagsterInstance, check: Any, foreign: int | None
) -> None:
    """A check that is not row-wise finds the foreign rows of another partition too, in this partition alone."""
    stall = Stall(lake, [check], days=True)
    stall.ids = [1, 2]
    assert stall.run(instance, partition_key="mon").success
    assert stall.run(instance, partition_key="tue").success
    stall.table.append(pa.table({"id": [5], "day": ["mon"]}))
    assert stall.run(instance, partition_key="wed").success
    if foreign == 0:
        stall.table.delete("day = 'mon'")
    else:
        stall.table.append(pa.table({"id": pa.array([foreign] * 4, pa.int64()), "day": ["tue"] * 4}))
    stall.ids = [9]
    result = stall.run(instance, partition_key="wed")
    assert not result.success
    assert f"blocking check '{getattr(check, 'name', 'nothing_huge')}' failed on the merge of" in failure(result)
    assert 7 == len(stall.published())


def test_other_partitions_that_landed_meanwhile_do_not_count(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """When another run moved main, the checks evaluate only the partitions of the run that is published."""
    stall = Stall(lake, [RowCount(maximum=2)], days=True)
    assert stall.run(instance, partition_key="mon").success
    branches = {day: stall.write(instance, 7, 8, partition_key=day) for day in ("tue", "wed")}
    for day, branch in branches.items():
        assert stall.publish(instance, branch, partition_key=day).success
    assert [1, 7, 7, 8, 8] == stall.published()


def test_a_backfill_is_audited_and_published_as_one(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A backfill is one commit on main for all its runs, and each of them is found as published later."""
    stall = Stall(lake, [Unique("id")], days=True, once=True)
    tags = {"dagster/backfill": "bf"}
    days = enumerate(("mon", "tue", "wed"))
    branches = [stall.write(instance, number, partition_key=day, tags=tags) for number, day in days]
    assert stall.publish(instance, tags=tags).success
    assert ([0, 1, 2], "main@2") == (stall.published(), str(stall.table.head()))
    assert {} == stall.table.branches.list("run/*")
    for branch in branches:
        assert stall.publish(instance, branch).success
    assert "main@2" == str(stall.table.head())
    again = [stall.write(instance, 9, partition_key=day, tags={"dagster/backfill": "b2"}) for day in ("mon", "tue")]
    text = failure(stall.publish(instance, tags={"dagster/backfill": "b2"}))
    assert all(f"{branch}@3" in text for branch in again)
    assert [0, 1, 2] == stall.published()


def test_main_that_moves_while_it_is_audited(lake: LanceResource, instance: dg.DagsterInstance) -> None:
    """A row that lands on main between the audit and the merge is audited before anything is published."""
    landing = [[50], [51], [-5]]

    @table_check(asset=ITEMS)
    def nothing_negative(items: PinnedTable) -> bool:
        if items.version.branch.startswith("preview/") and landing:
            items.table.append(pa.table({"id": landing.pop(0)}))
        return items.count_rows("id < 0") == 0

    stall = Stall(lake, [nothing_negative])
    assert stall.run(instance).success
    branch = stall.write(instance, 7)
    stall.table.append(pa.table({"id": [49]}))
    text = failure(stall.publish(instance, branch))
    assert "'nothing_negative' failed on the merge of" in text
    assert "into main@6" in text
    assert ([1], []) == (stall.published(), stall.previews())
    stall.table.delete("id < 0")
    assert stall.publish(instance, branch).success
    assert [1, 7, 49, 50, 51] == stall.published()


def test_previews_of_a_killed_publisher_are_removed(stall: Stall, instance: dg.DagsterInstance) -> None:
    """Previews of a killed publisher are deleted; those of a person or of another deployment's runs are kept."""
    branch = stall.write(instance, 7)
    stall.table.append(pa.table({"id": [50]}))
    finished = {"dagster/published_by": branch.removeprefix("run/")}
    stall.table.branches.create("preview/gone/merge", metadata=finished)
    stall.table.branches.create("preview/elsewhere/merge", metadata={"dagster/published_by": "unknown here"})
    stall.table.branches.create("preview/by-ada")
    assert stall.publish(instance, branch).success
    assert ["preview/by-ada", "preview/elsewhere/merge"] == sorted(stall.previews())
    assert [1, 7, 50] == stall.published()


def test_an_override_is_recorded_with_the_version(stall: Stall, instance: dg.DagsterInstance) -> None:
    """Reasons that were ignored are recorded with the version, so that it is not promoted again unnoticed."""
    branch = stall.write(instance, 7)
    stall.table.append(pa.table({"id": [-5]}))
    assert stall.publish(instance, branch, ignore_failed_checks=True, reason="known").success
    assert [-5, 1, 7] == stall.published()
    assert any("in_range_id" in line for line in recorded(instance, PRODUCTION_ITEMS).metadata["lance/ignored"])
    assert stall.publish(instance, "main@2", reason="away").success
    assert "in_range_id" in failure(stall.publish(instance, "main@4", reason="back"))


@pytest.mark.parametrize("route", ["ignored", "unchecked"])
def test_what_another_tag_got_in_spite_of_its_checks_does_not_come_along(
    lake: LanceResource, instance: dg.DagsterInstance, route: str
) -> None:
    """A day that failed its check and was published for staging does not reach production with the next day."""
    stall = Stall(lake, [InRange("id", minimum=0)], days=True)
    items, unchecked = stall.assets[0], route == "unchecked"
    staging = build_publisher([items], tag="staging", partitions_def=DAYS, unchecked=unchecked)
    assert stall.run(instance, partition_key="mon").success
    stall.ids = [-5]
    bad = stall.run(instance, partition_key="tue")
    assert not bad.success
    config = {"ref": f"run/{bad.run_id}", "ignore_failed_checks": not unchecked, "reason": "to look at it"}
    # The publisher without checks is one of another code location, which does not have them.
    others = Stall(stall.lake)
    others.assets = [items, staging] if unchecked else [*stall.assets, staging]
    options = {"selection": [*staging.keys], "run_config": {"ops": {"publish_staging": {"config": config}}}}
    assert others.run(instance, partition_key="tue", **options).success
    stall.ids = [3]
    assert not stall.run(instance, partition_key="wed").success
    assert "blocking check" in failure(stall.publish(instance, "main", partition_key="tue"))
    assert [1] == stall.published()


@dg.asset_check(asset=ITEMS, name="gold")
def plain_gold() -> dg.AssetCheckResult:
    """A further check of production, which fails."""
    return dg.AssetCheckResult(passed=False)


@table_check(asset=ITEMS, name="gold", blocking=False)
def table_gold(items: PinnedTable) -> bool:
    """The same as a check that can be evaluated again."""
    return items.count_rows("id = 7") == 0


@pytest.mark.parametrize("gold", [plain_gold, table_gold])
def test_the_audit_of_another_publisher_is_no_audit_of_the_checks_that_it_lacks(
    lake: LanceResource, instance: dg.DagsterInstance, gold: dg.AssetChecksDefinition
) -> None:
    """Two runs that another tag got as one merge reach this tag only when its further check passes too."""
    stall = Stall(lake, [gold, Unique("id")])
    items, beta = stall.assets[0], build_publisher([stall.assets[0]], tag="beta")
    stall.assets = [items, beta, build_publisher([items], checks=[gold]), *stall.assets[2:]]
    for first, second in ((1, 2), (7, 8)):
        stall.write(instance, first)
        stall.write(instance, second)
        assert stall.run(instance, selection=[*beta.keys]).success
        result = stall.publish(instance, "main")
        assert result.success == (gold is table_gold and first == 1)
    assert f"{stall.table.head()} was published without the approval of the blocking checks 'gold'" in failure(result)
    assert "blocking check 'gold' failed on" in failure(result)


def test_of_two_evaluations_the_later_run_counts_and_in_doubt_the_failed_one(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """A worker's clock that is behind does not make an older evaluation that passed the newest one."""
    log = AuditLog(instance, RecordView(repository=LanceRepository(str(tmp_path))))
    older, newer = (dg.materialize([_nothing], instance=instance).run_id for _ in range(2))
    event = AuditEvent(order=(0, 1), at=100.0, asset=ITEMS, check=dg.AssetCheckKey(ITEMS, "c"), metadata={})
    passed, failed = replace(event, run_id=older), replace(event, run_id=newer, passed=False)
    assert log.is_later(replace(failed, at=200.0), passed)
    assert log.is_later(replace(failed, at=50.0), passed)
    assert not log.is_later(replace(passed, run_id=newer, at=50.0), replace(failed, run_id=older))
    assert log.is_later(replace(passed, run_id=newer, at=200.0), replace(failed, run_id=older))


@dg.asset
def _nothing() -> None:
    pass
