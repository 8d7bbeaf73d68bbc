"""Arguments of wrong types raise one clear error before anything is written."""

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable, LogFilter, PinnedTable
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
    "move_tag expected": lambda table, wrong: table.tags.move(wrong, "main", expected="main@3"),
    "hold_tag at": lambda table, wrong: table.tags.hold(wrong, reason="x", at="work"),
    "version_numbers": lambda table, wrong: table.branches.version_numbers(wrong),
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
COLUMNS: dict[str, Act] = {
    "rename": lambda table, wrong: table.columns.rename(wrong, "new"),
    "rename to": lambda table, wrong: table.columns.rename("value", wrong),
    "cast": lambda table, wrong: table.columns.cast(wrong, pa.int32()),
    "set_nullable": lambda table, wrong: table.columns.set_nullable(wrong, nullable=True),
    "set_metadata": lambda table, wrong: table.columns.set_metadata(wrong, {"a": "b"}),
}
STRINGS: dict[str, Act] = {
    "hold who": lambda table, wrong: table.tags.hold("production", reason="x", who=wrong),
    "hold at who": lambda table, wrong: table.tags.hold("production", reason="x", who=wrong, at="work"),
    "release who": lambda table, wrong: table.tags.release("production", reason="x", who=wrong),
    "upsert when_matched": lambda table, wrong: table.upsert(entries("a", 1), on=["value"], when_matched=wrong),
    "upsert missing_where": lambda table, wrong: table.upsert(
        entries("a", 1), on=["value"], when_missing="delete", missing_where=wrong
    ),
    "list tags pattern": lambda table, wrong: table.tags.list(wrong),
    "list branches pattern": lambda table, wrong: table.branches.list(wrong),
}
OBJECTS: dict[str, tuple[Act, str]] = {
    "commit": (lambda table, wrong: table.commit(wrong), "transaction has to be a Transaction, such as "),
    "delete_branch": (
        lambda table, wrong: table.branches.delete("work", newest=wrong),
        r"newest has to be a Version, such as table.head\('work'\), not ",
    ),
    "append": (
        lambda table, wrong: table.append(entries("a", 1), replaces=wrong),
        "replaces has to be a Version, such as the result of an earlier append, not ",
    ),
    "log": (
        lambda table, wrong: table.log(only=wrong),
        r"only has to be a LogFilter, such as LogFilter\(merges=True\), not ",
    ),
    "log of all parents": (
        lambda table, wrong: table.log(first_parent=False, only=wrong),
        r"only has to be a LogFilter, such as LogFilter\(merges=True\), not ",
    ),
    "cast": (
        lambda table, wrong: table.columns.cast("value", wrong),
        r"type has to be a DataType, such as pyarrow.int64\(\), not ",
    ),
    "update": (
        lambda table, wrong: table.update(wrong),
        r"values have to be a mapping such as \{'price': 'price \* 2'\}, not ",
    ),
    "collect_garbage": (
        lambda table, wrong: table.maintenance.collect_garbage(branches=wrong),
        r"branches have to be a mapping such as \{'run/\*': timedelta\(days=2\)\}, not ",
    ),
    "add_columns": (
        lambda table, wrong: table.columns.add(wrong),
        "columns to add are pyarrow fields .*, SQL expressions by name, .*, or a table with `on`, not ",
    ),
}
FLAGS: dict[str, Act] = {
    "config": lambda table, flag: table.config.set({"a": "b"}, replace=flag),
    "table metadata": lambda table, flag: table.config.set_table_metadata({"a": "b"}, replace=flag),
    "schema metadata": lambda table, flag: table.config.set_schema_metadata({"a": "b"}, replace=flag),
    "column metadata": lambda table, flag: table.columns.set_metadata("value", {"a": "b"}, replace=flag),
    "nullable": lambda table, flag: table.columns.set_nullable("value", nullable=flag),
}
COUNTS: dict[str, Act] = {
    "version_numbers": lambda table, count: table.branches.version_numbers(after=count),
    "log": lambda table, count: table.log(limit=count),
    "collect_garbage": lambda table, count: table.maintenance.collect_garbage(keep_last=count),
    "compact": lambda table, count: table.maintenance.compact(target_rows=count),
    "plan_compaction": lambda table, count: table.maintenance.plan_compaction(target_rows=count),
}


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table with a branch to merge."""
    made = new_table(tmp_path, entries("a", 1))
    made.branches.create("work")
    made.append(entries("w", 1), branch="work")
    made.append(entries("b", 1))
    made.tags.create("production", "main")
    return made


def refused(table: LanceTable, act: Act, wrong: object, said: str) -> None:
    """Assert that the call is refused, and that nothing was written."""
    before = stored(table)
    with pytest.raises(InvalidInputError, match=said):
        act(table, wrong)
    assert before == stored(table)


def stored(table: LanceTable) -> dict[str, bytes]:
    """The files of the table with their bytes: a tag is held in a file that was there before."""
    return {path: (Path(table.uri) / path).read_bytes() for path in files(table)}


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
    said = rf"^{kind}: must be a list such as \['.+'\], not |an element of {kind} has (to be a string, not 5|'.ud800')"
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


@pytest.mark.parametrize("method,wrong", pairs(FLAGS, [None, 0, "no", 1.5]))
def test_a_flag_of_a_change_is_true_or_false(table: LanceTable, method: str, wrong: object) -> None:
    """0 and 1 would be stored as False and True, and None as no answer."""
    refused(table, FLAGS[method], wrong, "^(replace|nullable) has to be True or False, not ")


@pytest.mark.parametrize("method,wrong", pairs(COUNTS, ["1", 1.5, True, -1]))
def test_a_number_of_rows_or_versions_is_whole(table: LanceTable, method: str, wrong: object) -> None:
    """The number is refused before anything is read."""
    said = "(limit|after|keep_last|target_rows) has to be a whole number of [01] or more, not "
    refused(table, COUNTS[method], wrong, said)


@pytest.mark.parametrize("wrong", [None, "0.1", True, 1.5, float("nan"), [0.1], 1j])
def test_a_share_is_a_number(table: LanceTable, wrong: object) -> None:
    """True would mean that no fragment has too many deleted rows."""
    said = "^deleted_share has to be a number between 0 and 1, not "
    refused(table, lambda given, share: given.maintenance.compact(deleted_share=share), wrong, said)
    refused(table, lambda given, share: given.maintenance.plan_compaction(deleted_share=share), wrong, said)


def test_numbers_of_numpy_are_numbers(table: LanceTable) -> None:
    """They come from the calculations of a caller."""
    one: Any = np.int64(1)
    table.tags.move("production", "work")
    assert "main@3" == table.tags.rollback("production", one).ref
    assert 1 == len(table.log(limit=one)) == len(table.tags.list(limit=one))
    table.maintenance.collect_garbage(keep_last=one)
    rows: Any = np.int64(1000)
    shares: Any = (np.float32(0.5), np.int64(0))
    assert 1 == len(table.maintenance.plan_compaction(target_rows=rows, deleted_share=shares[0]).groups)
    assert 2 == table.maintenance.compact(target_rows=rows, deleted_share=shares[1]).rows


@pytest.mark.parametrize("method,wrong", pairs(COLUMNS, [None, 3, b"value", ["value"], HALF]))
def test_a_column_is_a_text(table: LanceTable, method: str, wrong: object) -> None:
    """The same holds for its new name."""
    refused(table, COLUMNS[method], wrong, "^(column|name) has (to be a string, not|'.ud800')")


@pytest.mark.parametrize("method,wrong", pairs(STRINGS, [3, np.int64(1), b"ann", ["ann"], HALF]))
def test_a_person_a_condition_or_a_pattern_is_a_text(table: LanceTable, method: str, wrong: object) -> None:
    """A name of another type would be stored in the tag, or fail there."""
    said = "^(who|when_matched|missing_where|pattern) has (to be a string, not|'.ud800')"
    refused(table, STRINGS[method], wrong, said)


@pytest.mark.parametrize("method,wrong", pairs(OBJECTS, [0, True, "nope", b"main", ["id"], np.int64(1)]))
def test_an_object_is_of_its_class(table: LanceTable, method: str, wrong: object) -> None:
    """The message names the class, or the forms that are allowed."""
    act, said = OBJECTS[method]
    refused(table, act, wrong, said)


def test_an_object_of_another_class_of_this_package(table: LanceTable) -> None:
    """A version is no transaction, and a filter is no version."""
    head = table.head()
    refused(table, OBJECTS["commit"][0], head, OBJECTS["commit"][1])
    refused(table, OBJECTS["log"][0], head, OBJECTS["log"][1])
    refused(table, OBJECTS["delete_branch"][0], LogFilter(), OBJECTS["delete_branch"][1])


@pytest.mark.parametrize("method", ["append", "overwrite", "replace_where", "upsert"])
def test_a_number_of_numpy_is_no_list(table: LanceTable, method: str) -> None:
    """NumPy compares it with an empty tuple element by element."""
    refused(table, LISTS[method], np.int64(1), r"^partitions: must be a list such as \['tue'\], not ")


def test_names_in_mappings_are_texts(table: LanceTable) -> None:
    """So are the expressions of new columns."""
    said = "has to be a string, not 1$"
    refused(table, lambda given, wrong: given.update(wrong), {1: "2"}, f"a column of values {said}")
    refused(table, lambda given, wrong: given.columns.add(wrong), {1: "2"}, f"a key of the columns {said}")
    refused(table, lambda given, wrong: given.columns.add(wrong), {"a": 1}, f"'a' of the columns {said}")
    refused(
        table,
        lambda given, wrong: given.maintenance.collect_garbage(branches=wrong),
        {1: timedelta(1)},
        f"a pattern of branches {said}",
    )


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"since": "2026-01-31"}, r"since has to be a datetime, such as datetime\(2026, .*, not '2026-01-31'$"),
        ({"until": date(2026, 1, 31)}, r"until has to be a datetime, .*, not datetime.date\(2026, 1, 31\)$"),
        ({"message": 5}, "message has to be a string, not 5"),
        ({"committer": ["ann"]}, r"committer has to be a string, not \['ann'\]"),
        ({"merges": "no"}, "merges has to be True or False, not 'no'"),
        ({"properties": ["ticket"]}, r"properties have to be a mapping such as .*, not \['ticket'\]"),
        ({"properties": {"ticket": 7}}, "'ticket' of the properties has to be a string, not 7"),
    ],
)
def test_conditions_of_a_log_have_their_types(wrong: dict[str, Any], said: str) -> None:
    """They are refused when the filter is made, and not when a version is compared with it, or never."""
    with pytest.raises(InvalidInputError, match=said):
        LogFilter(**wrong)


def test_fields_of_new_columns_may_come_from_a_generator(table: LanceTable) -> None:
    """They are looked at before the table is read, and once more when they are added."""
    fields: Any = (pa.field(name, pa.int64()) for name in "xy")
    table.columns.add(fields)
    assert ["key", "value", "x", "y"] == table.schema().names


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
