from typing import Any

import dagster as dg
import pytest

from lance_dagster import InvalidInputError
from lance_dagster.plugin.settings import SETTINGS, SettingPlace, refuse_unknown_settings

GOOD: dict[str, Any] = {
    "lance/write_mode": "upsert",
    "lance/keys": ["id"],
    "lance/when_missing": "delete",
    "lance/schema_evolution": "widen",
    "lance/partition_expr": {"day": "day", "region": "region"},
    "lance/vectors": {"embedding": 256},
    "lance/table": "eu/orders",
    "lance/schema": "eu",
}


def test_known_settings_and_keys_of_other_systems_pass() -> None:
    """Known settings, and keys with the prefix of another system, are accepted."""
    other = {"dagster/table_name": "x", "owner": "data team", "label": "blue", "team/mode": "fast", "version": 3}
    refuse_unknown_settings({**GOOD, **other}, "asset", "asset a")


def test_values_that_dagster_wraps_are_looked_into() -> None:
    """Settings are also found inside MetadataValue objects, which Dagster returns."""
    wrapped = {key: dg.MetadataValue.json(value) for key, value in GOOD.items() if not isinstance(value, str)}
    refuse_unknown_settings(wrapped, "asset", "asset a")
    with pytest.raises(InvalidInputError):
        refuse_unknown_settings({"lance/keys": dg.MetadataValue.json("id")}, "asset", "asset a")


@pytest.mark.parametrize(
    "key,meant",
    [
        ("lance/write_mod", "lance/write_mode"),
        ("lance/mode", "lance/write_mode"),
        ("lance/column", "lance/columns"),
        ("lanse/write_mode", "lance/write_mode"),
        ("write_mode", "lance/write_mode"),
        ("write_mod", "lance/write_mode"),
        ("mode", "lance/write_mode"),
        ("partition_expr", "lance/partition_expr"),
        ("columns", "lance/columns"),
        ("column", "lance/columns"),
        ("ref", "lance/ref"),
        ("schema", "lance/schema"),
        ("Lance/Write-Mode", "lance/write_mode"),
    ],
)
def test_misspelt_setting_is_refused_with_the_nearest_name(key: str, meant: str) -> None:
    """A setting that Dagster would ignore is an error that says how it is spelt."""
    with pytest.raises(InvalidInputError) as caught:
        refuse_unknown_settings({key: "append"}, "asset", "asset shop/orders")
    assert str(caught.value).startswith("asset shop/orders: ")
    assert f"did you mean {meant!r}?" in str(caught.value)


@pytest.mark.parametrize(
    "place,metadata,says",
    [
        ("asset", {"lance/purple": 1}, "there is no setting 'lance/purple'; here there are lance/write_mode"),
        ("asset", {"lance/columns": ["a"]}, "it belongs to the metadata of an input"),
        ("input", {"lance/write_mode": "append"}, "lance/write_mode has no meaning in the metadata of an input"),
        ("output", {"lance/write_mode": "apend"}, "must be one of 'append', 'overwrite', 'replace', 'upsert', not"),
        ("asset", {"lance/vectors": 3}, "lance/vectors must be {column: length}, not 3"),
        ("asset", {"lance/keys": "id"}, "lance/keys must be a list of texts such as [\"id\"], not 'id'"),
        ("asset", {"lance/keys": []}, "lance/keys must be a list of texts"),
        ("spec", {"lance/partition_expr": 3}, "must be a column, or a column for each dimension, not 3"),
        ("asset", {"lance/partition_expr": ["day"]}, "must be a column, or a column for each dimension, not ['day']"),
    ],
)
def test_setting_in_the_wrong_place_or_with_a_wrong_value_is_refused(
    place: SettingPlace, metadata: dict[str, object], says: str
) -> None:
    """The error for a misplaced or wrong setting names the place, the key and what would be right."""
    with pytest.raises(InvalidInputError) as caught:
        refuse_unknown_settings(metadata, place, "asset a")
    assert says in str(caught.value)


def test_every_setting_has_the_prefix() -> None:
    """Every setting has the same prefix."""
    assert {"lance"} == {setting.key.split("/")[0] for setting in SETTINGS}
