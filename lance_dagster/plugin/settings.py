"""The settings that users write as metadata: their keys, the places where each may be used, and their values.

Dagster accepts any metadata key, so a misspelt setting would be ignored silently, and the run would write
differently from what its author intended. A setting is therefore refused unless it is known at the place where it
is used. Keys without the prefix `lance/` are the users' own, except keys that equal or resemble the name of a setting.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md

SettingPlace = Literal["asset", "output", "partition", "input", "spec"]
"""The place of metadata.

`asset`: the definition of an asset that is written. `output`: `add_output_metadata` or `add_asset_metadata` in a run.
`partition`: `add_asset_metadata` for one of several partitions. `input`: an `AssetIn`. `spec`: the `AssetSpec` of a
table that others write, or a promoted node.
"""

WriteMode = Literal["append", "overwrite", "replace", "upsert"]
SchemaEvolution = Literal["refuse", "add_columns", "widen", "replace"]
Choice = TypeVar("Choice", bound=str)
_WRITE_MODES: tuple[WriteMode, ...] = get_args(WriteMode)
_EVOLUTIONS: tuple[SchemaEvolution, ...] = get_args(SchemaEvolution)
_PREFIX = "lance/"
_OTHER_SEPARATOR = re.compile(r"lance[._: -]+(.+)", re.IGNORECASE)
_NEAR = 0.8
# Shorter names without the prefix are too often keys of the user's own: `label` is not a misspelt `table`.
_LONG_NAME = 6
_NAMED = {
    "asset": "the metadata of an asset that is written",
    "output": "context.add_output_metadata or add_asset_metadata",
    "partition": "the metadata of one of several partitions",
    "input": "the metadata of an input (AssetIn)",
    "spec": "the AssetSpec of a table that others write or of a promoted node",
}
# Names of settings in other IO managers, and other likely names.
_OTHER_NAMES = {
    "mode": md.WRITE_MODE,
    "column": md.COLUMNS,
    "partition_by": md.PARTITION_EXPR,
    "partition": md.PARTITION_EXPR,
    "where": md.FILTER,
    "key": md.KEYS,
    "on": md.KEYS,
    "upsert_keys": md.KEYS,
    "join_cols": md.KEYS,
    "upsert_options": md.KEYS,
    "schema_mode": md.SCHEMA_EVOLUTION,
    "schema_update_mode": md.SCHEMA_EVOLUTION,
    "version": md.REF,
    "tag": md.REF,
}
# Of these only the spelling with the prefix is refused: alone they are too common as keys of the user's own.
_COMMON = frozenset({"partition", "where", "key", "on", "version", "tag"})


class Setting(NamedTuple):
    """One setting: its key, the places where it may be used, and the kind of its value.

    `values` lists the values that a text may have; empty: any text.
    """

    key: str
    places: tuple[SettingPlace, ...]
    kind: Literal["text", "texts", "flag", "lengths", "partition_expr"] = "text"
    values: tuple[str, ...] = ()

    def refusal(self, value: object) -> str | None:
        """Return why a value is refused, or None when the setting accepts it."""
        if self._accepts(value):
            return None
        return f"{self.key} must be {self._expectation}, not {value!r}"

    def _accepts(self, value: object) -> bool:
        match self.kind:
            case "text":
                # An empty text, as of a variable that is not set, would count as no setting at all.
                return isinstance(value, str) and bool(value.strip()) and (not self.values or value in self.values)
            case "texts":
                return _are_texts(value)
            case "flag":
                return isinstance(value, bool)
            case "lengths":
                # The type is compared exactly, because `True` is an int for Python.
                return isinstance(value, Mapping) and all(type(length) is int for length in value.values())
            case "partition_expr":
                if isinstance(value, Mapping):
                    return _are_texts(list(value.values()))
                # One dimension has one column or expression; an expression may be over several columns.
                return isinstance(value, str) and bool(value)

    @property
    def _expectation(self) -> str:
        if self.values:
            return "one of " + ", ".join(map(repr, self.values))
        return {
            "text": "text that is not empty",
            "texts": 'a list of texts such as ["id"]',
            "flag": "true or false",
            "lengths": "{column: length}",
            "partition_expr": "a column, or a column for each dimension",
        }[self.kind]


def _are_texts(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return bool(value) and all(isinstance(item, str) and item for item in value)


_WRITTEN: tuple[SettingPlace, ...] = ("asset", "output")
_DEFINED: tuple[SettingPlace, ...] = ("asset", "spec")

SETTINGS = (
    Setting(key=md.WRITE_MODE, places=_WRITTEN, values=_WRITE_MODES),
    Setting(key=md.KEYS, places=_WRITTEN, kind="texts"),
    Setting(key=md.WHEN_MISSING, places=_WRITTEN, values=("keep", "delete")),
    Setting(key=md.SCHEMA_EVOLUTION, places=_WRITTEN, values=_EVOLUTIONS),
    Setting(key=md.PARTITION_EXPR, places=(*_DEFINED, "input"), kind="partition_expr"),
    Setting(key=md.VECTORS, places=_DEFINED, kind="lengths"),
    Setting(key=md.TABLE, places=("asset", "spec", "input")),
    Setting(key=md.SCHEMA, places=_DEFINED),
    Setting(key=md.CANDIDATE, places=("spec",)),
    Setting(key=md.REF, places=("input", "spec")),
    Setting(key=md.COLUMNS, places=("input",), kind="texts"),
    Setting(key=md.FILTER, places=("input",)),
    Setting(key=md.ALLOW_NONE, places=("asset",), kind="flag"),
    Setting(key=md.ALLOW_MISSING, places=("input",), kind="flag"),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}
_KEYS = tuple(_BY_KEY)
_NAMES = {setting.key.removeprefix(_PREFIX): setting.key for setting in SETTINGS}


def refuse_unknown_settings(metadata: Mapping[str, object], place: SettingPlace, where: str) -> None:
    """Refuse metadata with a setting that is not known at this place, or whose value cannot be used.

    Keys without the prefix `lance/` pass, unless they are the name of a setting or close to one.

    Args:
        metadata: The metadata as the user wrote it, or as Dagster returns it.
        place: The kind of place where the metadata is.
        where: The name of the place for the message, such as `asset shop/orders`.

    Raises:
        InvalidInputError: Some settings cannot be used; the message names each setting and what would be right.
    """
    problems = [problem for key, value in metadata.items() if (problem := _problem(key, md.plain(value), place))]
    if problems:
        raise InvalidInputError(f"{where}: {'; '.join(problems)}")


def needs_manager(metadata: Mapping[str, object]) -> bool:
    """Return whether the metadata of an asset has a setting that only the IO manager of this package obeys."""
    settings = [_BY_KEY[key] for key in metadata if key in _BY_KEY]
    return any("asset" in setting.places and "spec" not in setting.places for setting in settings)


def _problem(key: str, value: object, place: SettingPlace) -> str | None:
    setting = _BY_KEY.get(key)
    if setting is None:
        return _unknown(key, place)
    if place not in setting.places:
        belongs = " or ".join(_NAMED[settings_place] for settings_place in setting.places)
        return f"{key} has no meaning in {_NAMED[place]}; it belongs to {belongs}"
    return setting.refusal(value)


def _unknown(key: str, place: SettingPlace) -> str | None:
    """Return why a key that is not a setting is refused, or None when the key is the user's own."""
    meant = _meant(key)
    if key.startswith(_PREFIX):
        names = ", ".join(setting.key for setting in SETTINGS if place in setting.places) or "none"
        return f"there is no setting {key!r}; " + (f"did you mean {meant!r}?" if meant else f"here there are {names}")
    if meant is None:
        return None
    return f"metadata {key!r} would be ignored; did you mean {meant!r}? Give a key of your own another name"


def _meant(key: str) -> str | None:
    """Return the setting that a key probably means, or None."""
    if match := _OTHER_SEPARATOR.match(key):
        key = f"{_PREFIX}{match[1]}"
    prefix, slash, setting_name = key.rpartition("/")
    lowered = setting_name.lower().replace("-", "_")
    # A key of another system, such as `dagster/row_count`, counts as a setting only when the whole key resembles one.
    if slash and prefix.lower() != _PREFIX.rstrip("/"):
        return next(iter(difflib.get_close_matches(key.lower(), _KEYS, n=1, cutoff=0.9)), None)
    if lowered in _NAMES:
        return _NAMES[lowered]
    if lowered in _OTHER_NAMES and (slash or lowered not in _COMMON):
        return _OTHER_NAMES[lowered]
    names = _NAMES if slash else {name: own for name, own in _NAMES.items() if len(name) >= _LONG_NAME}
    near = difflib.get_close_matches(lowered, names, n=1, cutoff=0.6 if slash else _NEAR)
    return names[near[0]] if near else None


def write_mode(text: str) -> WriteMode:
    """Return a write mode given as text.

    Raises:
        InvalidInputError: There is no such mode.
    """
    return _choice("write_mode", text, _WRITE_MODES)


def schema_evolution(text: str) -> SchemaEvolution:
    """Return a policy for columns given as text.

    Raises:
        InvalidInputError: There is no such policy.
    """
    return _choice("schema_evolution", text, _EVOLUTIONS)


def _choice(what: str, text: str, choices: tuple[Choice, ...]) -> Choice:
    for choice in choices:
        if text == choice:
            return choice
    raise InvalidInputError(f"{what} is one of {', '.join(choices)}, not {text!r}")


def expressions_of(asset: str, dimensions: Sequence[str] | None, partition_expr: object) -> list[str]:
    """Return the column or expression of each dimension, in the order of the names of the dimensions.

    Args:
        asset: The asset's key as text.
        dimensions: The names of the dimensions; None when the partitions have only one.
        partition_expr: The asset's metadata of that name.

    Raises:
        InvalidInputError: `partition_expr` is missing, or does not name these dimensions.
    """
    quoted = ", ".join(f'"{name}": "<column>"' for name in dimensions or ())
    example = f"{{{quoted}}}" if dimensions else '"<column>"'
    if partition_expr is None:
        raise InvalidInputError(
            f"{asset} is partitioned, and nothing says which column holds the partition; "
            f'give the asset metadata {{"{md.PARTITION_EXPR}": {example}}}'
        )
    if dimensions is None and isinstance(partition_expr, str):
        return [partition_expr]
    if dimensions and isinstance(partition_expr, Mapping) and set(partition_expr) == set(dimensions):
        return [str(partition_expr[name]) for name in dimensions]
    raise InvalidInputError(f"{md.PARTITION_EXPR} of {asset} must be {example}, not {partition_expr!r}")
