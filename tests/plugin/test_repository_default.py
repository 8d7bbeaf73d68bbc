"""The repository, which is the default, beside tables that are older than it, and for code that only reads."""

import re
from pathlib import Path
from threading import Lock

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    LanceRepository,
    LanceResource,
    LanceTable,
)
from lance_dagster.errors import RefNotFoundError
from tests.plugin.appending_location import KEYS, Location
from tests.plugin.scripted_lake import ScriptedLake
from tests.plugin.shop import failure, ids_of
from tests.store.scripted import Request

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder without tables."""
    return tmp_path / "lake"


def repository_at(root: Path) -> LanceRepository:
    """The repository of a root, which must exist."""
    return LanceRepository.open(root)


def test_tables_that_were_published_before_are_adopted(root: Path, instance: dg.DagsterInstance) -> None:
    """The channel starts at the tags' versions, so a rollback can return there; the log says so; no tag moves."""
    after = Location(root, instance=instance)
    after.publish_by_tags(1)
    after.publish_by_tags(2)
    assert not (root / "_repository").exists()
    assert ([1, 2], [1, 2]) == (after.seen(), after.seen("lines"))
    done = after.run(3)
    assert done.success
    said = [entry for entry in instance.all_logs(done.run_id) if "begins with what the tags name" in entry.user_message]
    assert ["shop/lines at main@3, shop/orders at main@3"] == [
        ", ".join(sorted(entry.user_message.rpartition("name: ")[2].split(", "))) for entry in said
    ]
    assert after.run(4).success
    view = repository_at(root).at("production~2")
    assert ([1, 2], [1, 2]) == tuple(ids_of(view[f"shop/{key.path[-1]}"].read()) for key in KEYS)
    assert after.act(ref="production~2", rollback="hold", reason="as it was").success
    assert ([1, 2], [1, 2]) == (after.seen(), after.seen("lines"))


def test_a_table_that_nobody_published_is_left_alone(root: Path, instance: dg.DagsterInstance) -> None:
    """Unpublished tables below the root are neither registered nor changed, and are read at their own tags."""
    Location(root, "lines", instance=instance).publish_by_tags(1)
    files = sorted(path for path in (root / "shop" / "lines.lance").rglob("*") if path.is_file())
    orders = Location(root, "orders", instance=instance)
    assert orders.run(2).success
    assert ["shop/orders"] == repository_at(root).tables()
    assert files == sorted(path for path in (root / "shop" / "lines.lance").rglob("*") if path.is_file())
    assert [1] == orders.seen("lines")


def test_whoever_only_reads_makes_no_repository(root: Path, instance: dg.DagsterInstance) -> None:
    """Neither reading a tag, nor a dry run, nor a refused publication creates a repository; a publication does."""
    location = Location(root, instance=instance)
    assert location.run(0, publish=False).success
    assert "nothing was published to production yet" in failure(location.act(hold=True, reason="wait"))
    assert "nothing was published to production yet" in failure(location.act(release=True, reason="go on"))
    location.publish_by_tags(1)
    location.publish_by_tags(2)
    assert [1, 2] == location.seen()
    assert location.act(dry_run=True).success
    assert location.act(ref="production~1", reason="wrong", dry_run=True).success
    assert "a rollback needs a reason" in failure(location.act(ref="production~1"))
    assert not (root / "_repository").exists()
    assert location.act(ref="production~1", reason="wrong").success
    assert ([1], True) == (location.seen(), (root / "_repository").exists())


def test_a_reader_without_the_right_to_write(root: Path, instance: dg.DagsterInstance) -> None:
    """A reader that cannot write the pin of its run reads the channel anew in each step."""
    location = Location(root, instance=instance)
    assert location.run(1).success
    # A file takes the place of the folder, since permissions would not stop tests that run as root.
    for one in (pins := root / "_repository" / "pins").glob("*"):
        one.unlink()
    pins.rmdir()
    pins.write_text("")
    table = location.lance.table(KEYS[0])
    assert 1 == location.lance.version_at(table, "production", "a run").rows


def test_a_table_that_the_channel_went_back_before_is_not_read(root: Path, instance: dg.DagsterInstance) -> None:
    """A table that the channel no longer has after a rollback is not read at its tag, which names withdrawn rows."""
    first, both = Location(root, "orders", instance=instance), Location(root, instance=instance)
    assert first.run(1).success
    assert both.run(2).success
    assert first.act(ref="production~1", rollback="hold", reason="wrong").success
    assert [1] == both.seen()
    with pytest.raises(RefNotFoundError, match="was not published to it"):
        both.seen("lines")


def test_a_rollback_counts_the_promotions_of_its_tables(root: Path, instance: dg.DagsterInstance) -> None:
    """After one publisher went back by several promotions, `production~1` of another gives its version before."""
    orders, lines = (Location(root, name, instance=instance) for name in ("orders", "lines"))
    assert [True] * 8 == [one.run(number).success for number, one in enumerate([orders, lines] * 4)]
    assert "a rollback needs a reason" in failure(orders.act(ref="production~3"))
    assert orders.act(ref="production~3", reason="wrong").success
    # A retry of the step changes nothing, and is not refused.
    assert orders.act(ref="production~3", reason="wrong").success
    assert ([0], [1, 3, 5, 7]) == (orders.seen(), lines.seen("lines"))
    assert lines.act(ref="production~1", reason="7 is wrong").success
    assert ([0], [1, 3, 5]) == (orders.seen(), lines.seen("lines"))


def test_a_moved_table_is_read_before_it_is_published_again(root: Path, instance: dg.DagsterInstance) -> None:
    """The promoted node has the new name at once, and the next publication leaves no old name in the channel."""
    assert Location(root, instance=instance).run(1).success
    (root / "shop" / "orders.lance").rename(root / "shop" / "sales.lance")
    repository_at(root).move_table("shop/orders", "shop/sales")
    repository_at(root).table("shop/sales").config.set({"dagster/asset": "shop/sales"})
    location = Location(root, "sales", instance=instance)
    assert [1] == location.seen("sales")
    assert location.run(2).success
    assert [1, 2] == location.seen("sales")
    assert ["shop/lines", "shop/sales"] == list(repository_at(root).at("production"))


@pytest.mark.parametrize("channel", [False, True])
def test_a_table_that_was_held_before_the_channel_is_released(
    root: Path, instance: dg.DagsterInstance, *, channel: bool
) -> None:
    """The publisher releases a table that the channel does not name yet, whether the channel is held too or not.

    With another table alone in the channel, a hold on the tag of this one would otherwise keep both back for ever.
    """
    before = Location(root, "orders", instance=instance)
    before.publish_by_tags(1)
    before.lance.table("shop/orders").tags.hold("production", reason="wait")
    assert Location(root, "lines", instance=instance).run(1).success
    both = Location(root, instance=instance)
    assert "held" in failure(both.run(2))
    if channel:
        repository_at(root).channels.hold("production", reason="the whole channel")
    assert both.act(release=True, reason="go on").success
    assert both.act().success
    assert ([1, 2], [1, 2]) == (both.seen(), both.seen("lines"))


def test_a_table_that_the_channel_left_while_it_was_held_is_released(root: Path, instance: dg.DagsterInstance) -> None:
    """A release reaches the tag of a table that a rollback took out of the held channel."""
    lines, both = Location(root, "lines", instance=instance), Location(root, instance=instance)
    assert lines.run(1).success
    assert both.run(2).success
    assert both.act(hold=True, reason="wait").success
    assert lines.act(ref="production~1", rollback="hold", reason="wrong").success
    assert both.act(release=True, reason="go on").success
    assert both.run(3).success
    assert ([2, 3], [1, 2, 3]) == (both.seen(), both.seen("lines"))


def test_a_channel_is_held_on_the_page_of_a_new_table(root: Path, instance: dg.DagsterInstance) -> None:
    """A hold and a release succeed on the node of a table that was never published: they are about the channel."""
    assert Location(root, "lines", instance=instance).run(1).success
    both = Location(root, instance=instance)
    assert both.run(2, publish=False).success
    orders = dg.AssetKey(["production", "shop", "orders"])
    assert both.act(orders, hold=True, reason="wait").success
    assert repository_at(root).channels.get("production").hold is not None
    assert both.act(orders, release=True, reason="go on").success
    assert both.act().success
    assert ([2], [1, 2]) == (both.seen(), both.seen("lines"))


def test_a_publication_that_a_table_cannot_follow_is_not_promoted_in_part(
    root: Path, instance: dg.DagsterInstance
) -> None:
    """Where another program overwrites `main` before it follows the commit, the run's other tables wait with it."""
    location = Location(root, instance=instance, mode="overwrite")
    assert location.run(1).success
    waiting = location.run(2, publish=False)
    tables = [LanceTable.open(location.lance.uri_of(key)) for key in KEYS]
    follows, one_by_one = list[Request](), Lock()

    def script(request: Request) -> object:
        if not (request.commits and request.key.startswith("_versions/")):
            return request.send()
        with one_by_one:
            follows.append(request)
            if len(follows) == 2:
                (behind,) = (table for table in tables if table.head().number == 2)
                behind.overwrite(pa.table({"id": [7]}))
            return request.send()

    ScriptedLake.scripts.append(script)
    location.lance = ScriptedLake(root=str(root))
    assert "could not follow" in failure(location.act(ref=f"run/{waiting.run_id}"))
    location.lance = LanceResource(root=str(root))
    assert location.act().success
    assert ([1], [1]) == (location.seen(), location.seen("lines"))
    # Each further publication of the table names the decision that only a person can take, and works after it.
    advice = failure(location.act(ref=f"run/{location.run(3, publish=False).run_id}"))
    uri, ref = re.findall(r"`lance-dagster table merge (\S+) (\S+) --strategy dest-wins`", advice)[-1]
    LanceTable.open(uri).merge(ref, strategy="dest-wins")
    assert location.act().success
    assert ([1], [1]) == (location.seen(), location.seen("lines"))
    assert location.run(4).success
    assert ([4], [4]) == (location.seen(), location.seen("lines"))


def test_one_selected_node_publishes_the_whole_run(root: Path, instance: dg.DagsterInstance) -> None:
    """*Materialize* on one node publishes the other tables of the same runs too, and their nodes get events."""
    location = Location(root, instance=instance)
    assert location.run(1).success
    for number in (2, 3):
        assert location.run(number, publish=False).success
    orders, lines = (dg.AssetKey(["production", *key.path]) for key in KEYS)
    assert location.act(orders).success
    assert ([1, 2, 3], [1, 2, 3]) == (location.seen(), location.seen("lines"))
    for node in (orders, lines):
        event = instance.get_latest_materialization_event(node)
        assert event is not None
        assert event.asset_materialization is not None
        assert "main@3" == event.asset_materialization.metadata["lance/to"].value


def test_a_promotion_takes_the_version_that_was_chosen(root: Path, instance: dg.DagsterInstance) -> None:
    """A promotion takes the chosen version, and not a later one that another channel has published."""
    staging = Location(root, instance=instance, tag="staging")
    for number in (1, 2, 3):
        assert staging.run(number).success
    production = Location(root, instance=instance)
    assert production.act(ref="main@3").success
    assert ([1, 2], [1, 2]) == (production.seen(), production.seen("lines"))
    assert [1, 2, 3] == staging.seen()
    commit = repository_at(root).head("staging")
    assert production.act(ref=commit.short_id).success
    assert ([1, 2, 3], [1, 2, 3]) == (production.seen(), production.seen("lines"))


def test_a_commit_of_the_repository_is_a_ref(root: Path, instance: dg.DagsterInstance) -> None:
    """The id of a commit promotes all tables or rolls them back, and further back while the channel is held."""
    location = Location(root, instance=instance)
    commits = []
    for number in (1, 2, 3):
        assert location.run(number).success
        commits.append(repository_at(root).head("production").id)
    assert location.act(ref=commits[1], rollback="hold", reason="3 is wrong").success
    assert ([1, 2], [1, 2]) == (location.seen(), location.seen("lines"))
    assert location.act(ref=commits[0][:12], rollback="hold", reason="2 is wrong too").success
    assert ([1], [1]) == (location.seen(), location.seen("lines"))
    assert "held by" in failure(location.act(ref=commits[2]), "publish_production")
    repository_at(root).channels.release("production", reason="they were right")
    assert location.act(ref=commits[2]).success
    assert ([1, 2, 3], [1, 2, 3]) == (location.seen(), location.seen("lines"))


def test_a_branch_deployment_has_a_repository_of_its_own(root: Path, instance: dg.DagsterInstance) -> None:
    """Publications of a branch deployment reach neither the shared channel nor the shared tables."""
    shared = Location(root, instance=instance)
    assert shared.run(1).success
    preview = Location(root, instance=instance, environment="pr-17")
    assert [1] == preview.seen()
    assert preview.run(2).success
    assert ([1, 2], [1]) == (preview.seen(), shared.seen())
    assert ["production"] == list(LanceRepository.open(root / ".environments" / "pr-17").channels.list())
    assert 1 == len(repository_at(root).channels.history("production"))
