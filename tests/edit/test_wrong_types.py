"""Arguments of wrong types raise one clear error before anything is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lance_dagster import InvalidInputError, LanceTable, PinnedTable
from tests.backdating import files
from tests.soak import pairs
from tests.table_factory import entries, new_table

HALF = "half of a \ud800"
Act = Callable[[Any, Any], object]

BRANCHES: dict[str, Act] = {
    "merge": lambda table, wrong: table.merge("work", into=wrong),
    "preview_merge": lambda table, wrong: table.preview_merge("work", into=wrong),
    "preview_branch": lambda table, wrong: table.branches.preview("work", into=wrong),
    "is_merged": lambda table, wrong: table.branches.is_merged("work", into=wrong),
    "sync": lambda table, wrong: table.branches.sync(wrong),
    "cherry_pick": lambda table, wrong: table.cherry_pick("work", into=wrong),
    "revert": lambda table, wrong: table.revert("main", branch=wrong),
    "restore": lambda table, wrong: table.restore("main@1", branch=wrong),
    "reset": lambda table, wrong: table.branches.reset(wrong),
    "head": lambda table, wrong: table.head(wrong),
    "branch": lambda table, wrong: table.branches.get(wrong),
    "create_branch": lambda table, wrong: table.branches.create(wrong),
    "rename_branch": lambda table, wrong: table.branches.rename(wrong, "new"),
    "rename_branch to": lambda table, wrong: table.branches.rename("work", wrong),
    "delete_branch": lambda table, wrong: table.branches.delete(wrong),
    "tag": lambda table, wrong: table.tags.get(wrong),
    "create_tag": lambda table, wrong: table.tags.create(wrong, "main"),
    "move_tag": lambda table, wrong: table.tags.move(wrong, "main"),
    "delete_tag": lambda table, wrong: table.tags.delete(wrong),
    "hold_tag": lambda table, wrong: table.tags.hold(wrong, reason="x"),
    "release_tag": lambda table, wrong: table.tags.release(wrong, reason="x"),
    "set_tag_metadata": lambda table, wrong: table.tags.set_metadata(wrong, {"a": "b"}),
    "append": lambda table, wrong: table.append(entries("a", 1), branch=wrong),
}
REFS: dict[str, Act] = {
    "merge": lambda table, wrong: table.merge(wrong),
    "cherry_pick": lambda table, wrong: table.cherry_pick(wrong),
    "revert": lambda table, wrong: table.revert(wrong),
    "log": lambda table, wrong: table.log(wrong),
    "at": lambda table, wrong: table.at(wrong),
    "diff": lambda table, wrong: table.diff(wrong, "main"),
    "read": lambda table, wrong: table.read(wrong),
    "restore": lambda table, wrong: table.restore(wrong),
    "create_tag": lambda table, wrong: table.tags.create("v1", wrong),
    "move_tag": lambda table, wrong: table.tags.move("v1", wrong),
    "create_branch": lambda table, wrong: table.branches.create("new", wrong),
    "reset": lambda table, wrong: table.branches.reset("work", wrong),
}
MESSAGES: dict[str, Act] = {
    "merge": lambda table, wrong: table.merge("work", message=wrong),
    "sync": lambda table, wrong: table.branches.sync("work", message=wrong),
    "restore": lambda table, wrong: table.restore("main@1", message=wrong),
    "append": lambda table, wrong: table.append(entries("a", 1), message=wrong),
    "delete": lambda table, wrong: table.delete("value = 1", message=wrong),
    "set_config": lambda table, wrong: table.config.set({"a": "b"}, message=wrong),
    "compact": lambda table, wrong: table.maintenance.compact(message=wrong),
    "add_base": lambda table, wrong: table.maintenance.add_base("cold", "/cold", message=wrong),
}
MAPPINGS: dict[str, Act] = {
    "merge": lambda table, wrong: table.merge("work", properties=wrong),
    "cherry_pick": lambda table, wrong: table.cherry_pick("work", properties=wrong),
    "revert": lambda table, wrong: table.revert("main", properties=wrong),
    "append": lambda table, wrong: table.append(entries("a", 1), properties=wrong),
    "compact": lambda table, wrong: table.maintenance.compact(properties=wrong),
    "create_branch": lambda table, wrong: table.branches.create("new", metadata=wrong),
    "set_branch_metadata": lambda table, wrong: table.branches.set_metadata("work", wrong),
    "create_tag": lambda table, wrong: table.tags.create("v1", "main", metadata=wrong),
    "move_tag": lambda table, wrong: table.tags.move("v1", "main", metadata=wrong),
    "set_config": lambda table, wrong: table.config.set(wrong),
    "set_table_metadata": lambda table, wrong: table.config.set_table_metadata(wrong),
    "set_schema_metadata": lambda table, wrong: table.config.set_schema_metadata(wrong),
    "set_column_metadata": lambda table, wrong: table.columns.set_metadata("value", wrong),
}
LISTS: dict[str, Act] = {
    "append": lambda table, wrong: table.append(entries("a", 1), partitions=wrong),
    "overwrite": lambda table, wrong: table.overwrite(entries("a", 1), partitions=wrong),
    "replace_where": lambda table, wrong: table.replace_where("value = 1", entries("a", 1), partitions=wrong),
    "upsert": lambda table, wrong: table.upsert(entries("a", 1), on=["value"], partitions=wrong),
    "upsert on": lambda table, wrong: table.upsert(entries("a", 1), on=wrong),
    "add_columns on": lambda table, wrong: table.columns.add(entries("a", 1), on=wrong),
    "add_columns reads": lambda table, wrong: table.columns.add(lambda batch: batch, reads=wrong),
    "drop_columns": lambda table, wrong: table.columns.drop(wrong),
    "reorder_columns": lambda table, wrong: table.columns.reorder(wrong),
    "protect branches": lambda table, wrong: table.branches.protect(wrong),
    "protect tags": lambda table, wrong: table.tags.protect(wrong),
    "unprotect branches": lambda table, wrong: table.branches.unprotect(wrong),
    "unprotect tags": lambda table, wrong: table.tags.unprotect(wrong),
    "scan": lambda table, wrong: table.scan(columns=wrong),
    "read": lambda table, wrong: table.read(columns=wrong),
    "diff": lambda table, wrong: table.diff("main~1", "main", on=wrong),
    "diff since the base": lambda table, wrong: table.diff("work", "main", on=wrong, since_base=True),
    "diff stat": lambda table, wrong: table.diff("main~1", "main").stat(wrong),
    "diff added": lambda table, wrong: table.diff("main~1", "main").added(wrong),
    "diff removed": lambda table, wrong: table.diff("main~1", "main").removed(wrong),
    "diff changed": lambda table, wrong: table.diff("main~1", "main").changed(wrong),
    "diff rows": lambda table, wrong: table.diff("main~1", "main").rows(columns=wrong),
    "conflicting_rows": lambda table, wrong: table.preview_merge("work").conflicting_rows(columns=wrong),
    "conflicting_rows key": lambda table, wrong: table.preview_merge("work").conflicting_rows(on=wrong),
    "pinned read": lambda table, wrong: PinnedTable(table=table, version=table.at("main")).read(wrong),
    "pinned scan": lambda table, wrong: PinnedTable(table=table, version=table.at("main")).scan(wrong),
    "pinned columns": lambda table, wrong: PinnedTable(table=table, version=table.at("main"), columns=wrong).read(),
}

NO_MAPPINGS = [5, [("a", "b")], "a=b", {1: "a"}, {"a": 1}, {"a": HALF}, {HALF: "a"}]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with a branch to merge."""
    made = new_table(tmp_path, entries("a", 1))
    made.branches.create("work")
    made.append(entries("w", 1), branch="work")
    made.append(entries("b", 1))
    return made


def refused(table: LanceTable, act: Act, wrong: object, said: str) -> None:
    """Assert that the call is refused, and that nothing was written."""
    before = files(table)
    with pytest.raises(InvalidInputError, match=said):
        act(table, wrong)
    assert before == files(table)


@pytest.mark.parametrize("method,wrong", pairs(BRANCHES, [None, 3, b"work", HALF]))
def test_a_branch_is_a_text(table: LanceTable, method: str, wrong: object) -> None:
    """The same holds for the name of a tag."""
    refused(table, BRANCHES[method], wrong, "the name of a (branch|tag) has ")


@pytest.mark.parametrize("method,wrong", pairs(REFS, [None, 3, b"work"]))
def test_a_ref_is_a_text(table: LanceTable, method: str, wrong: object) -> None:
    """A ref is an expression over names."""
    refused(table, REFS[method], wrong, "a ref is text such as 'main' or 'main@17', not ")


@pytest.mark.parametrize("method,wrong", pairs(MESSAGES, [5, b"why", HALF]))
def test_a_message_is_a_text(table: LanceTable, method: str, wrong: object) -> None:
    """Messages with an unpaired surrogate are refused too."""
    refused(table, MESSAGES[method], wrong, "message.* (has to be a string, not|an unpaired surrogate)")


@pytest.mark.parametrize(
    "method,wrong", pairs(MAPPINGS, [5, [("a", "b")], "a=b", {1: "a"}, {"a": 1}, {"a": HALF}, {HALF: "a"}])
)
def test_properties_are_a_mapping_of_texts(table: LanceTable, method: str, wrong: object) -> None:
    """The same holds for settings and for the metadata of names."""
    refused(table, MAPPINGS[method], wrong, "(properties|metadata|settings) ha(ve|s) (to be|'.ud800')")


@pytest.mark.parametrize("method,wrong", pairs(LISTS, ["value", "", b"value", 5, ["value", 5], [HALF]]))
def test_a_list_of_texts_is_no_text(table: LanceTable, method: str, wrong: object) -> None:
    """Python would treat the string as a list of characters, so that `main` would be the patterns m, a, i and n."""
    kind = "(partitions|on|reads|patterns|columns|key)"
    said = (
        rf"^{kind}: a list such as \['.+'\] is wanted, not |an element of {kind} has (to be a string, not 5|'.ud800')"
    )
    refused(table, LISTS[method], wrong, said)


@pytest.mark.parametrize("wrong", ["1", 1.0, True, [1]])
def test_a_parent_is_a_number(table: LanceTable, wrong: object) -> None:
    """A boolean is refused too."""
    for act in (
        lambda given, parent: given.cherry_pick("work", parent=parent),
        lambda given, parent: given.revert("main", parent=parent),
    ):
        refused(table, act, wrong, "a parent is a number, counted from 1, not ")


@pytest.mark.parametrize("wrong", ["1", 1.5, True, -1])
def test_a_count_is_a_whole_number(table: LanceTable, wrong: object) -> None:
    """A negative limit would leave out the last names."""
    table.tags.create("v1", "main")
    said = "(limit|the number of steps) has to be a whole number of [01] or more, not "
    refused(table, lambda given, limit: given.tags.list(limit=limit), wrong, said)
    refused(table, lambda given, steps: given.tags.rollback("v1", steps), wrong, said)


@pytest.mark.parametrize("wrong", [None, 0, "no"])
def test_a_flag_is_true_or_false(table: LanceTable, wrong: object) -> None:
    """None and 0 would start a real collection."""
    said = "(dry_run|immutable) has to be True or False, not "
    refused(table, lambda given, flag: given.maintenance.collect_garbage(dry_run=flag), wrong, said)
    refused(table, lambda given, flag: given.tags.create("v1", "main", immutable=flag), wrong, said)


def test_a_strategy_is_for_kinds_and_units(table: LanceTable) -> None:
    """Kinds and units are strings."""
    refused(
        table, lambda given, wrong: given.merge("work", strategy=wrong), {1: "source-wins"}, "'1' is not a kind of conf"
    )
    refused(table, lambda given, wrong: given.merge("work", strategy=wrong), 5, "5 is not a strategy")


def test_settings_are_read_as_they_were_set(table: LanceTable) -> None:
    """The settings of any version can be read."""
    table.config.set({"owner": "ann", "lance.auto_cleanup.interval": "20"})
    table.config.set({"owner": None, "team": "sales"})
    assert {"lance.auto_cleanup.interval": "20", "team": "sales"} == table.config.get()
    assert "ann" == table.config.get("main~1")["owner"]
    assert {} == table.config.get("work")
    assert table.config.get() == table.to_lance().config()
