"""Everything that commits to a repository, or moves a channel, takes a message or a reason, and properties."""

from pathlib import Path
from typing import Any

import pytest

from lance_dagster import InvalidInputError, LanceRepository, LanceTable
from tests.repository.scripted_repository import FAST, Plug, new_repository, rows, run, scripted
from tests.store.scripted import PlugPulledError

SAID: dict[str, Any] = {"message": "for the audit", "properties": {"ticket": "7"}}
WHY: dict[str, Any] = {"reason": "for the audit", "properties": {"ticket": "7"}}


def test_every_commit_keeps_its_message_and_properties(tmp_path: Path) -> None:
    """The first commit, and those that add, move and remove tables; a channel that adopts tags keeps them too."""
    lake = LanceRepository.create(tmp_path, FAST, **SAID)
    commits = [lake.head()]
    made = lake.create_table("orders", rows().schema, **SAID).head()
    assert ("for the audit", "7") == (made.message, made.properties["ticket"])
    LanceTable.create(tmp_path / "lines.lance", rows().schema, storage_options=FAST).tags.create("production", "main")
    adopted = lake.adopt(**SAID)
    commits += [adopted.commit, lake.head("production")]
    lake.table("lines").branches.create("run")
    (tmp_path / "lines.lance").rename(tmp_path / "items.lance")
    commits.append(lake.move_table("lines", "items", **SAID))
    repaired = lake.table("items").head("run")
    assert ("for the audit", "7") == (repaired.message, repaired.properties["ticket"])
    commits.append(lake.remove_table("items", **SAID))
    assert [{"ticket": "7"}] * 5 == [commit.properties for commit in commits]
    assert {"for the audit", "adopt the tags production of lines"} == {commit.message for commit in commits}
    assert {"ticket": "7"} == lake.channels.history("production")[0].properties


def test_every_move_of_a_channel_keeps_its_reason_and_properties(tmp_path: Path) -> None:
    """The history has them, for a deletion too."""
    lake = LanceRepository.create(tmp_path, FAST)
    lake.create_table("orders", rows().schema)
    lake.commit("one")
    lake.channels.create("next", "main~1", **WHY)
    lake.channels.promote("next", **WHY)
    lake.channels.hold("next", **WHY)
    lake.channels.release("next", **WHY)
    lake.channels.rollback("next", hold=False, **WHY)
    lake.channels.delete("next", **WHY)
    found = lake.channels.history("next")
    assert ["delete", "rollback", "release", "hold", "promote", "promote"] == [entry.action for entry in found]
    assert [("for the audit", {"ticket": "7"})] * 6 == [(entry.reason, entry.properties) for entry in found]


@pytest.mark.parametrize("landed_by", ["repair", "publish"])
def test_main_says_who_published_and_not_who_brought_it_up(tmp_path: Path, landed_by: str) -> None:
    """A publication that died before `main` of its table followed is landed by another call, under its own name."""
    repository = new_repository(tmp_path, "orders")
    dying = Plug(0, lambda request: request.commits and request.key.startswith("_versions/"))
    with pytest.raises(PlugPulledError):
        scripted(repository.root, dying).publish(run(repository, 1, "orders"), **SAID)
    table = repository.table("orders")
    assert 1 == table.head().number
    if landed_by == "repair":
        repository.maintenance.repair()
    else:
        repository.publish(run(repository, 2, "orders"), message="the next one")
    landed = table.at("main@2")
    assert ("for the audit", "7") == (landed.message, landed.properties["ticket"])
    assert landed_by == "repair" or "the next one" == table.head().message


def test_a_repeated_publication_speaks_for_itself(tmp_path: Path) -> None:
    """What a publication staged that was refused is not published under its name by the next one."""
    repository = new_repository(tmp_path, "orders")
    branch = run(repository, 1, "orders")

    def refuse(staged: object) -> None:
        raise InvalidInputError(f"not {staged}")

    with pytest.raises(InvalidInputError, match="not"):
        repository.publish(branch, message="refused", properties={"ticket": "6"}, audit=refuse)
    repository.publish(branch, **SAID)
    landed = repository.table("orders").head()
    assert ("for the audit", "7") == (landed.message, landed.properties["ticket"])


def test_a_release_tag_keeps_its_properties(tmp_path: Path) -> None:
    """A tag that was made without properties has none."""
    lake = LanceRepository.create(tmp_path, FAST)
    lake.tags.create("v1", **SAID)
    lake.tags.create("v2")
    assert [{"ticket": "7"}, {}] == [
        tag.properties for tag in LanceRepository.open(tmp_path, FAST).tags.list().values()
    ]
