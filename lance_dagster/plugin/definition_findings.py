"""Find mistakes in the definitions of a code location, without a run and without reading a table.

An unknown setting, or two assets on one table, would otherwise be found in the first run, or never. Only
Dagster's public attributes are read: the assets and resources of a `Definitions`, the outputs and inputs of each
asset, and the required resource keys.
"""

import difflib
import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.table_check import LANCE_CHECK, decorated_function
from lance_dagster.plugin.io.io_manager import LanceIOManager
from lance_dagster.plugin.provider_options import literal_secrets
from lance_dagster.plugin.publish.publisher import is_split, traits_of
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.settings import SettingPlace, expressions_of, needs_manager, refuse_unknown_settings
from lance_dagster.plugin.table_asset import TableAddress, owner_of, table_address

_PREFIX = "lance/"
_DEFAULT_MANAGER = "io_manager"
# How similar a missing name has to be to the name of an asset, to count as a misspelling of it.
_NEARLY = 0.85


class _Node(NamedTuple):
    """One asset of the code location."""

    spec: dg.AssetSpec
    definition: dg.AssetsDefinition | None
    manager: LanceIOManager | None

    @property
    def name(self) -> str:
        return self.spec.key.to_user_string()

    @property
    def metadata(self) -> Mapping[str, object]:
        return self.spec.metadata

    @property
    def is_other_node(self) -> bool:
        """Whether the asset represents a table that another asset writes, as a promoted node does."""
        return md.CANDIDATE in self.metadata

    @property
    def is_written(self) -> bool:
        """Whether the IO manager of this package stores the value of the asset."""
        if self.definition is None or self.manager is None or self.is_other_node or not self.definition.is_executable:
            return False
        return _has_value(self.definition, self.spec.key)

    @property
    def other_manager_key(self) -> str | None:
        """The key of the IO manager that stores the value of the asset, where it is not one of this package."""
        if self.definition is None or self.manager is not None or self.is_other_node:
            return None
        if not self.definition.is_executable or traits_of(self.definition) is not None:
            return None
        # The op of a graph that makes the value, and a generator, may store rows themselves; no annotation says so.
        function = decorated_function(self.definition)
        return None if function is None or inspect.isgeneratorfunction(function) else self.own_manager_key

    @property
    def own_manager_key(self) -> str | None:
        """The key of the IO manager that stores what the asset returns; None where it returns nothing."""
        if self.definition is None or not self.definition.is_executable:
            return None
        stores = _has_value(self.definition, self.spec.key)
        return self.definition.get_io_manager_key_for_asset_key(self.spec.key) if stores else None

    @property
    def address(self) -> TableAddress:
        return table_address(self.spec.key, self.metadata)


class Findings:
    """The definitions of a code location, and the mistakes in them."""

    def __init__(self, defs: dg.Definitions) -> None:
        """Collect the assets, checks and resources."""
        self._resources: Mapping[str, object] = defs.resources or {}
        self._lances = {key: value for key, value in self._resources.items() if isinstance(value, LanceResource)}
        self._managers = {key: value for key, value in self._resources.items() if isinstance(value, LanceIOManager)}
        self._sensors = tuple(defs.sensors or ())
        assets: list[object] = list(defs.assets or ())
        self._definitions = [asset for asset in assets if isinstance(asset, dg.AssetsDefinition)]
        checks: list[object] = list(defs.asset_checks or ())
        self._checks = [check for check in checks if isinstance(check, dg.AssetsDefinition)]
        specs = [(spec, definition) for definition in self._definitions for spec in definition.specs]
        alone = [(asset, None) for asset in assets if isinstance(asset, dg.AssetSpec)]
        self._nodes = [
            _Node(spec=spec, definition=definition, manager=self._manager(spec, definition))
            for spec, definition in [*specs, *alone]
        ]
        self._by_key = {node.spec.key: node for node in self._nodes}

    def all(self) -> list[str]:
        """Return every finding, each as a sentence that names the asset or resource."""
        findings = [
            *self._settings(),
            *self._inputs(),
            *self._places(),
            *self._partitions(),
            *self._upserts(),
            *self._other_nodes(),
            *self._other_checks(),
            *self._misspelt_assets(),
            *self._unchecked(),
            *self._split_publishers(),
            *self._stored_elsewhere(),
            *self._missing_resources(),
            *self._secrets(),
        ]
        # A table that several nodes name gives the same finding several times.
        return list(dict.fromkeys(findings))

    def _manager(self, spec: dg.AssetSpec, definition: dg.AssetsDefinition | None) -> LanceIOManager | None:
        if definition is not None and definition.is_executable:
            key = definition.get_io_manager_key_for_asset_key(spec.key)
        else:
            key = md.text(spec.metadata, "dagster/io_manager_key") or _DEFAULT_MANAGER
        return self._managers.get(key)

    def _settings(self) -> Iterator[str]:
        for node in self._nodes:
            place: SettingPlace = "asset" if node.is_written else "spec"
            # Assets of other systems may have any metadata; only the prefix shows that they mean this package.
            meant = {key: value for key, value in node.metadata.items() if node.is_written or key.startswith(_PREFIX)}
            yield from _refusals(meant, place, f"asset {node.name}")

    def _inputs(self) -> Iterator[str]:
        for definition in [*self._definitions, *self._checks]:
            if not definition.is_executable:
                continue
            inputs = definition.node_def.input_dict
            for name, key in definition.keys_by_input_name.items():
                asset_in = inputs[name]
                own_key, node = asset_in.input_manager_key, self._by_key.get(key)
                manager = self._managers.get(own_key) if own_key is not None else node.manager if node else None
                meant = {k: v for k, v in asset_in.metadata.items() if manager is not None or k.startswith(_PREFIX)}
                where = f"input {name} ({key.to_user_string()}) of {definition.node_def.name}"
                yield from _refusals(meant, "input", where)

    def _places(self) -> Iterator[str]:
        """Find paths that cannot be used, and tables that several assets write."""
        tables: defaultdict[tuple[str, TableAddress], set[str]] = defaultdict(set)
        for node in self._nodes:
            if not (node.is_written or node.is_other_node):
                continue
            try:
                address = node.address
            except InvalidInputError as error:
                yield f"asset {node.name}: {error}"
                continue
            if node.is_written and node.manager is not None:
                roots = {_root(node.manager.lance)}
            else:
                roots = self._roots(node.definition) or self._only_root()
            # `owner_of` names the candidate of a promoted node, so that the two are not taken for two writers.
            for root in roots:
                tables[root, address].add(owner_of(node.spec.key, node.metadata))
        for (root, address), owners in tables.items():
            if len(owners) > 1:
                yield (
                    f"several assets are on one table, {address} below {root}: {', '.join(sorted(owners))}; each would "
                    f"replace the rows of the others, so give all but one another path by the metadata {md.TABLE!r}"
                )

    def _partitions(self) -> Iterator[str]:
        for node in self._nodes:
            if not node.is_written or node.manager is None or node.definition is None:
                continue
            if node.definition.partitions_def is None:
                if md.PARTITION_EXPR in node.metadata:
                    yield (
                        f"asset {node.name} has the metadata {md.PARTITION_EXPR!r}, and no partitions, so each run "
                        "writes the whole table: give it a partitions_def, or take the metadata out"
                    )
                continue
            mode = md.text(node.metadata, md.WRITE_MODE)
            if mode == "overwrite":
                yield (
                    f"asset {node.name} has partitions, and its metadata says write_mode 'overwrite': each run would "
                    f"delete the other partitions; set the metadata {md.WRITE_MODE!r} to 'replace' or 'append'"
                )
            if md.PARTITION_EXPR not in node.metadata and mode != "overwrite":
                yield (
                    f"asset {node.name} has partitions, but no metadata {md.PARTITION_EXPR!r}: name the column that "
                    "tells the partition of a row, or annotate the asset `-> None` if it stores its rows itself"
                )
            elif md.PARTITION_EXPR in node.metadata:
                yield from _wrong_dimensions(node, node.definition.partitions_def)

    def _upserts(self) -> Iterator[str]:
        for node in self._nodes:
            if not node.is_written or node.manager is None:
                continue
            mode = md.text(node.metadata, md.WRITE_MODE) or node.manager.write_mode
            if mode == "upsert" and md.KEYS not in node.metadata:
                yield (
                    f"asset {node.name} upserts, but has no metadata {md.KEYS!r}: name the columns of its key, as in "
                    f'{{"{md.KEYS}": ["id"]}}'
                )

    def _other_nodes(self) -> Iterator[str]:
        """Find promoted nodes that read a table at another place than its asset writes it."""
        for node in self._nodes:
            candidate = dg.AssetKey(owner_of(node.spec.key, node.metadata).split("/"))
            writer = self._by_key.get(candidate) if node.is_other_node else None
            if writer is None or not writer.is_written:
                continue
            if not _have_same_place(node, writer):
                yield (
                    f"asset {node.name} reads another table than {writer.name} writes, {writer.address}; give the "
                    "definition of the asset, and not only its key, to the builder of the node"
                )
            yield from self._other_root(writer, node.definition, f"asset {node.name}")

    def _other_checks(self) -> Iterator[str]:
        """Find checks that read a table below another root than the root of the asset's IO manager."""
        for check in self._checks:
            for key in check.check_keys:
                writer = self._by_key.get(key.asset_key)
                if writer is not None and writer.is_written:
                    yield from self._other_root(writer, check, f"check {key.name!r} of {writer.name}")

    def _other_root(self, writer: _Node, reader: dg.AssetsDefinition | None, name: str) -> Iterator[str]:
        roots = self._roots(reader)
        if writer.manager is not None and roots and _root(writer.manager.lance) not in roots:
            yield (
                f"{name} looks below {', '.join(sorted(roots))}, but the IO manager of {writer.name} writes below "
                f"{_root(writer.manager.lance)}; give its builder the `resource_key` of that root"
            )

    def _unchecked(self) -> Iterator[str]:
        specs = [spec for asset in [*self._definitions, *self._checks] for spec in asset.check_specs]
        checked = {spec.asset_key for spec in specs if spec.blocking}
        for definition in self._definitions:
            traits = traits_of(definition)
            if traits is None or traits.unchecked:
                continue
            named = {check.asset_key for check in traits.checks}
            for key in (key for key in traits.candidates if key not in checked | named):
                yield (
                    f"publisher {definition.node_def.name} publishes {key.to_user_string()} without one blocking "
                    "check: add one with build_table_checks, or give unchecked=True to build_publisher or lance_assets"
                )

    def _split_publishers(self) -> Iterator[str]:
        """Find publishers that Dagster splits into steps: each step would publish a part of what a run wrote."""
        needs = {node.spec.key: [dep.asset_key for dep in node.spec.deps] for node in self._nodes}
        split = [asset for asset in self._definitions if traits_of(asset) is None and is_split(asset, needs)]
        for definition in self._definitions:
            traits = traits_of(definition)
            names = [asset.node_def.name for asset in split if traits and not asset.keys.isdisjoint(traits.candidates)]
            outside = {frozenset(needs[key]) - definition.keys for key in definition.keys}
            # A publisher whose candidates are computed from its promoted nodes publishes these in several steps.
            if names and len(outside) > 1 and not is_split(definition, needs):
                yield (
                    f"publisher {definition.node_def.name} would be split into several steps, and none may publish a "
                    f"part of a run: Dagster splits {', '.join(names)}, because another asset stands between its "
                    "tables. Give build_publisher the definitions of all these assets, not their keys; or define the "
                    "tables before and after that asset separately"
                )

    def _misspelt_assets(self) -> Iterator[str]:
        """Find checks and publishers of an asset that does not exist, with nearly the name of an asset that does."""
        named = {key: "a check" for check in self._checks if _is_table_check(check) for key in _checked_by(check)}
        for definition in self._definitions:
            traits = traits_of(definition)
            if traits is not None:
                named.update(dict.fromkeys(traits.candidates, f"publisher {definition.node_def.name}"))
        names = [node.name for node in self._nodes]
        for key, what in named.items():
            # Any other name may be the name of an asset of another code location.
            near = difflib.get_close_matches(key.to_user_string(), names, n=1, cutoff=_NEARLY)
            if key not in self._by_key and near:
                yield f"{what} is for {key.to_user_string()}, which is not an asset here; did you mean {near[0]!r}?"

    def _stored_elsewhere(self) -> Iterator[str]:
        """Find assets whose table is checked or published, and whose rows another IO manager stores."""
        purposes = {key: "checked" for check in self._checks if _is_table_check(check) for key in _checked_by(check)}
        for definition in self._definitions:
            traits = traits_of(definition)
            purposes.update(dict.fromkeys(traits.candidates if traits else (), "published"))
        for asset, purpose in purposes.items():
            node = self._by_key.get(asset)
            key = node.other_manager_key if node else None
            if node is None or node.definition is None or key is None:
                continue
            # An IO manager of the asset itself cannot be told apart, and a missing IO manager is a finding of its own.
            if key in node.definition.resource_defs or (key not in self._resources and key != _DEFAULT_MANAGER):
                continue
            manager = self._resources.get(key)
            storage = (
                f"the IO manager {key!r}, a {type(manager).__name__}" if manager else "Dagster's default IO manager"
            )
            yield (
                f"asset {node.name} is stored by {storage}, so its rows reach no table that could be {purpose}; give "
                f"resources={{{key!r}: LanceIOManager(lance=...)}}, or annotate the asset `-> None` or "
                "`-> dg.MaterializeResult` if it writes its table itself"
            )

    def _missing_resources(self) -> Iterator[str]:
        # Dagster adds the default IO manager where the definitions have none.
        provided = {*self._resources, _DEFAULT_MANAGER}
        listed = ", ".join(sorted(self._resources)) or "none"
        needs: list[tuple[str, frozenset[str]]] = [
            (f"sensor {sensor.name}", frozenset(getattr(sensor, "required_resource_keys", ())))
            for sensor in self._sensors
        ]
        for definition in [*self._definitions, *self._checks]:
            if definition.is_executable:
                needed = definition.required_resource_keys - definition.resource_defs.keys()
                needs.append((definition.node_def.name, frozenset(needed)))
        for name, keys in needs:
            for key in sorted(keys - provided):
                yield f"{name} needs a resource {key!r}; the definitions have {listed}"

    def _secrets(self) -> Iterator[str]:
        """Find secrets that Dagster's page of the resource would show."""
        # The resource inside of an IO manager need not be among the resources of the definitions.
        inside = {key: manager.lance for key, manager in self._managers.items()}
        for key, lance in (inside | self._lances).items():
            for name in literal_secrets(lance.connection_options):
                yield (
                    f"resource {key!r} has a secret, {name}, as text, which Dagster shows on its page; give "
                    "dg.EnvVar with the name of an environment variable"
                )

    def _roots(self, definition: dg.AssetsDefinition | None) -> set[str]:
        """Return the roots of the resources that a definition requires."""
        if definition is None or not definition.is_executable:
            return set()
        return {_root(self._lances[key]) for key in definition.required_resource_keys if key in self._lances}

    def _only_root(self) -> set[str]:
        """Return the root of the code location when it has only one; an external asset does not name its root."""
        lances = [*self._lances.values(), *(manager.lance for manager in self._managers.values())]
        roots = {_root(lance) for lance in lances}
        return roots if len(roots) == 1 else set()


def refuse_other_managers(assets: Iterable[dg.AssetsDefinition], io_manager_key: str) -> None:
    """Refuse assets of `lance_assets` whose values go to an IO manager of another key than the one of the call.

    Raises:
        InvalidInputError: Names the asset and both keys.
    """
    for asset in assets:
        for spec in asset.specs:
            node = _Node(spec=spec, definition=asset, manager=None)
            key = node.other_manager_key or (node.own_manager_key if needs_manager(spec.metadata) else None)
            # An IO manager of the asset itself is meant.
            if key is not None and key != io_manager_key and key not in asset.resource_defs:
                raise InvalidInputError(
                    f"asset {node.name} has io_manager_key {key!r}, and this call of lance_assets has io_manager_key="
                    f"{io_manager_key!r}; give the asset io_manager_key={io_manager_key!r}"
                )


def _has_value(definition: dg.AssetsDefinition, asset: dg.AssetKey) -> bool:
    """Return whether an asset has a value for an IO manager to store."""
    name = next(name for name, key in definition.keys_by_output_name.items() if key == asset)
    kind = definition.node_def.output_dict[name].dagster_type.typing_type
    # Dagster reads the annotation `None` as the type Nothing, and a bare `MaterializeResult` as Any.
    annotation = getattr(decorated_function(definition), "__annotations__", {}).get("return")
    # The annotation is a string in modules with `from __future__ import annotations`.
    returns_result = annotation is dg.MaterializeResult or str(annotation).endswith("MaterializeResult")
    return kind is not type(None) and not returns_result


def _is_table_check(check: dg.AssetsDefinition) -> bool:
    return hasattr(decorated_function(check), LANCE_CHECK)


def _checked_by(check: dg.AssetsDefinition) -> list[dg.AssetKey]:
    return [key.asset_key for key in check.check_keys]


def _have_same_place(node: _Node, writer: _Node) -> bool:
    try:
        return node.address == writer.address
    except InvalidInputError:  # reported with the places
        return True


def _root(lance: LanceResource) -> str:
    # The value of a variable is unknown while definitions load; two names count as two roots.
    return f"EnvVar {lance.root.env_var_name}" if isinstance(lance.root, dg.EnvVar) else lance.root


def _refusals(metadata: Mapping[str, object], place: SettingPlace, where: str) -> Iterator[str]:
    try:
        refuse_unknown_settings(metadata, place, where)
    except InvalidInputError as error:
        yield str(error)


def _wrong_dimensions(node: _Node, partitions: dg.PartitionsDefinition | None) -> Iterator[str]:
    names = None
    if isinstance(partitions, dg.MultiPartitionsDefinition):
        names = sorted(part.name for part in partitions.partitions_defs)
    try:
        expressions_of(node.name, names, md.plain(node.metadata[md.PARTITION_EXPR]))
    except InvalidInputError as error:
        yield str(error)
