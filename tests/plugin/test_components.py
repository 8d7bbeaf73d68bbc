import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster.components.testing.utils import create_defs_folder_sandbox

from lance_dagster import (
    Freshness,
    InvalidInputError,
    IsIn,
    LancePublisherComponent,
    LanceResource,
    LanceResourceComponent,
    LanceTablesComponent,
    NoSchemaChange,
    Satisfies,
    validate_definitions,
)
from tests.plugin.shop import ORDERS, ORDERS_PY, PRODUCTION_ORDERS

# Dagster's loader of projects calls functions that pydantic deprecates, and functions that Dagster marks as beta.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*is currently in (beta|preview)"),
]
AT_LEAST_TWO = {"kind": "row_count", "settings": {"minimum": 2}}
UNIQUE = {"kind": "unique", "settings": {"columns": ["id"]}}
OPERATED = {"watch": True, "keep_failed_days": 7, "maintenance": "0 3 * * 0"}


def tables(*checks: Mapping[str, object], **more: object) -> dict[str, object]:
    """The YAML file of a component for the orders."""
    attributes = {"tables": [{"key": "shop/orders", "checks": [dict(one) for one in checks]}], **more}
    return {"type": "lance_dagster.LanceTablesComponent", "attributes": attributes}


@pytest.fixture
def defs(tmp_path: Path) -> Iterator[dg.Definitions]:
    """A project of three components and one asset in Python."""
    lake = {"type": "lance_dagster.LanceResourceComponent", "attributes": {"root": str(tmp_path / "lake")}}
    published = {"type": "lance_dagster.LancePublisherComponent", "attributes": {"tables": ["shop/orders"]}}
    with create_defs_folder_sandbox() as sandbox:
        for component, contents in (
            (LanceResourceComponent, lake),
            (LanceTablesComponent, tables(AT_LEAST_TWO, UNIQUE, **OPERATED)),
            (LancePublisherComponent, published),
        ):
            sandbox.scaffold_component(component_cls=component, defs_yaml_contents=contents)
        (sandbox.defs_folder_path / "orders.py").write_text(ORDERS_PY)
        with sandbox.build_all_defs() as found:
            yield found


def test_components_make_a_pipeline(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    """The rows of the asset are checked and published, and the sensors, the job and the schedule exist."""
    dg.Definitions.validate_loadable(defs)
    assert 2 == len(defs.resolve_asset_graph().asset_check_keys)
    assert {"lance_refs", "lance_sweeper"} == {one.name for one in defs.sensors or []}
    assert ["lance_maintenance_schedule"] == [one.name for one in defs.schedules or []]
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=[ORDERS, PRODUCTION_ORDERS]).success
    assert instance.get_latest_materialization_event(PRODUCTION_ORDERS) is not None


def test_definitions_of_components_are_validated_as_a_whole(tmp_path: Path) -> None:
    """`validate_definitions` around the loaded folder finds what no component sees: the metadata of the assets."""
    lake = {"type": "lance_dagster.LanceResourceComponent", "attributes": {"root": str(tmp_path / "lake")}}
    misspelt = ORDERS_PY.replace("asset(", "asset(metadata={'lance/partition_exp': 'day'}, ")
    with create_defs_folder_sandbox() as sandbox:
        sandbox.scaffold_component(component_cls=LanceResourceComponent, defs_yaml_contents=lake)
        sandbox.scaffold_component(component_cls=LanceTablesComponent, defs_yaml_contents=tables(UNIQUE))
        for source in (ORDERS_PY, misspelt):
            (sandbox.defs_folder_path / "orders.py").write_text(source)
            with sandbox.build_all_defs() as found:
                if source == ORDERS_PY:
                    assert found is validate_definitions(found)
                    continue
                with pytest.raises(InvalidInputError):
                    validate_definitions(found)


@pytest.mark.parametrize(
    "contents,text",
    [
        (tables({"kind": "uniqe"}), "kind"),
        (
            tables({"kind": "unique", "settings": {"column": "id"}}),
            "Unique has no argument 'column'; did you mean 'columns'?",
        ),
        (tables(watches=True), "watches"),
        ({"type": "lance_dagster.LanceTablesComponent", "attributes": {"tables": []}}, "needs at least one table"),
        (tables(keep_failed_days=True), "keep_failed_days"),
        (
            tables(maintenance="x y"),
            "the schedule of lance_maintenance has to be a cron expression with five fields such",
        ),
        (tables(keep_failed_days=-1), "keep_failed_days is -1; give a number of days from 0"),
        (tables({"kind": "freshness", "settings": {"column": "at", "maximum_age": True}}), "maximum_age is True; give"),
        (
            tables({"kind": "freshness", "settings": {"column": "at", "maximum_age": "24h"}}),
            "maximum_age is '24h'; give a number of hours",
        ),
        (
            {
                "type": "lance_dagster.LanceTablesComponent",
                "attributes": {"tables": [{"key": "shop/orders"}, {"key": "shop/orders", "checks": [UNIQUE]}]},
            },
            "LanceTablesComponent has shop/orders twice in `tables`; give each table once",
        ),
    ],
    ids=[
        "kind of check",
        "settings of check",
        "attribute",
        "no table",
        "days as bool",
        "cron expression",
        "negative days",
        "hours as bool",
        "hours as text",
        "table twice",
    ],
)
def test_wrong_attributes_are_explained(contents: dict[str, object], text: str) -> None:
    """The project does not load, and the error names what is wrong."""
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component_cls=LanceTablesComponent)
        # JSON is YAML too.
        (path / "defs.yaml").write_text(json.dumps(contents))
        with pytest.raises(Exception) as caught, sandbox.build_all_defs():  # noqa: PT011 - a private class of Dagster
            pass
    assert text in "\n".join(messages(caught.value))


def messages(error: BaseException | None) -> Iterator[str]:
    """The messages of an error and of its causes, as `dg` prints them."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the file is refused, and a variable is read at run time: the resource's page shows its name."""
    with pytest.raises(InvalidInputError):
        _resource({"aws_secret_access_key": "very secret"}, {})
    monkeypatch.setenv("LAKE_SECRET", "very secret")
    found = _resource({"aws_region": "eu-central-1"}, {"aws_secret_access_key": "LAKE_SECRET"})
    assert "very secret" not in str(found.get_resource_definition().config_schema.default_value)
    assert "very secret" == found.process_config_and_initialize().connection_options["aws_secret_access_key"]


def _resource(options: dict[str, str], environment: dict[str, str]) -> LanceResource:
    made = LanceResourceComponent(root="s3://lake/tables", storage_options=options, environment=environment)
    return made.resource()


def test_every_check_has_a_kind() -> None:
    """Every built-in check has a name in YAML, except the one that takes a schema; a duration is in hours."""
    checks = [
        {"kind": "row_count_change", "settings": {"minimum": -0.5}},
        {"kind": "is_in", "settings": {"column": "state", "values": ["open", "done"]}},
        {"kind": "is_in", "settings": {"column": "size", "values": [1, 2.5]}},
        {"kind": "matches", "settings": {"column": "zip", "pattern": "[0-9]+"}},
        {"kind": "satisfies", "settings": {"predicate": "id > 0", "name": "ids", "nulls_pass": True}},
        {"kind": "freshness", "settings": {"column": "at", "maximum_age": 36}},
        {"kind": "no_schema_change"},
        {"kind": "is_in", "settings": {"column": "paid", "values": [True, False]}},
    ]
    component = LanceTablesComponent.resolve_from_dict({"tables": [{"key": "shop/orders", "checks": checks}]})
    made = [model.check() for model in component.tables[0].checks]
    assert IsIn("size", (1, 2.5)) == made[2]
    assert Satisfies(predicate="id > 0", name="ids", nulls_pass=True) == made[4]
    assert Freshness("at", timedelta(hours=36)) == made[5]
    assert NoSchemaChange() == made[6]
    # In Python 1 equals True, so the texts are compared.
    assert repr(IsIn("paid", (True, False))) == repr(made[7])


def test_partitions_and_policy_of_a_publisher() -> None:
    """The promoted nodes have the partitions of the publisher; contradictory attributes are refused."""
    given = {
        "tables": ["shop/orders"],
        "stale_checks": "accept",
        "partitions": {"kind": "daily", "start": "2024-01-01"},
    }
    component = LancePublisherComponent.resolve_from_dict(given)
    (publisher,) = component.build_defs(None).assets
    assert dg.DailyPartitionsDefinition("2024-01-01") == publisher.partitions_def
    for wrong in ({"kind": "static"}, {"kind": "daily"}, {"kind": "daily", "start": "2024-01-01", "keys": ["a"]}):
        with pytest.raises(InvalidInputError):
            LancePublisherComponent.resolve_from_dict({**given, "partitions": wrong}).build_defs(None)


@pytest.mark.parametrize(
    "partitions,said",
    [
        ({"kind": "daily", "start": "banana"}, "start 'banana' and timezone 'UTC': .* a start such as 2024-01-01 and"),
        ({"kind": "hourly", "start": "2024-01-01"}, "a start such as 2024-01-01-00:00 and a zone such as UTC"),
        ({"kind": "daily", "start": "2024-01-01", "timezone": "Mars"}, "timezone 'Mars': No time zone found with key"),
        (
            {"kind": "static", "keys": ["a", "a"]},
            r"partitions cannot have keys \['a', 'a'\]: Partition keys must",
        ),
    ],
    ids=["start", "start of hours", "zone", "keys"],
)
def test_partitions_that_dagster_refuses_are_explained(partitions: dict[str, object], said: str) -> None:
    """The error is one of the package, and has what is wrong and what would be right."""
    given = {"tables": ["shop/orders"], "partitions": partitions}
    with pytest.raises(InvalidInputError, match=said):
        LancePublisherComponent.resolve_from_dict(given).build_defs(None)
