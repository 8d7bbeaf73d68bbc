"""Find mistakes in the definitions of a code location, without a run and without reading a table.

An unknown setting, or two assets on one table, would otherwise be found in the first run, or never. Only
Dagster's public attributes are read: the assets and resources of a `Definitions`, the outputs and inputs of each
asset, and the required resource keys.
"""

import difflib
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.checks.table_check import LANCE_CHECK
from lance_dagster.plugin.io.io_manager import LanceIOManager
from lance_dagster.plugin.provider_options import literal_secrets
from lance_dagster.plugin.publish.publisher import PublisherTraits, is_split, traits_of
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.settings import SettingPlace, expressions_of, refuse_unknown_settings
from lance_dagster.plugin.table_asset import TableAddress, owner_of, table_address

_PREFIX = "lance/"
_DEFAULT_MANAGER = "io_manager"
# How similar the name of an asset that is not there has to be to one that is, to be taken for a mistake.
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
        function = _function_of(self.definition)
        if function is None or inspect.isgeneratorfunction(function) or not _has_value(self.definition, self.spec.key):
            return None
        return self.definition.get_io_manager_key_for_asset_key(self.spec.key)

    @property
    def address(self) -> TableAddress:
        return table_address(self.spec.key, self.metadata)


class Findings:
    """The definitions of a code location, and the mistakes in them."""

    def __init__(self, defs: dg.Definitions) -> None:
        """Collect the assets, checks and resources."""
        self._resources: Mapping[str, object] = defs.resources or {}
        self._sensors = tuple(defs.sensors or ())
        assets: list[object] = list(defs.assets or ())
        self._definitions = [one for one in assets if isinstance(one, dg.AssetsDefinition)]
        checks: list[object] = list(defs.asset_checks or ())
        self._checks = [one for one in checks if isinstance(one, dg.AssetsDefinition)]
        specs = [(spec, one) for one in self._definitions for spec in one.specs]
        alone = [(one, None) for one in assets if isinstance(one, dg.AssetSpec)]
        self._nodes = [
            _Node(spec=spec, definition=one, manager=self._manager(spec, one)) for spec, one in [*specs, *alone]
        ]
        self._by_key = {node.spec.key: node for node in self._nodes}

    def all(self) -> list[str]:
        """Return every finding, each as a sentence that names the asset or resource."""
        found = [
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
        # A table that is named by several nodes is found once for each.
        return list(dict.fromkeys(found))

    def _manager(self, spec: dg.AssetSpec, definition: dg.AssetsDefinition | None) -> LanceIOManager | None:
        if definition is not None and definition.is_executable:
            key = definition.get_io_manager_key_for_asset_key(spec.key)
        else:
            key = md.text(spec.metadata, "dagster/io_manager_key") or _DEFAULT_MANAGER
        found = self._resources.get(key)
        return found if isinstance(found, LanceIOManager) else None

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
                given = inputs[name]
                manager = self._input_manager(key, given.input_manager_key)
                meant = {k: v for k, v in given.metadata.items() if manager is not None or k.startswith(_PREFIX)}
                where = f"input {name} ({key.to_user_string()}) of {definition.node_def.name}"
                yield from _refusals(meant, "input", where)

    def _input_manager(self, upstream: dg.AssetKey, input_manager_key: str | None) -> LanceIOManager | None:
        if input_manager_key is not None:
            found = self._resources.get(input_manager_key)
            return found if isinstance(found, LanceIOManager) else None
        node = self._by_key.get(upstream)
        return node.manager if node else None

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
            # `owner_of` names the candidate of a promoted node, so that the two are not taken for two writers.
            for root in self._roots_of(node):
                tables[root, address].add(owner_of(node.spec.key, node.metadata))
        for (root, address), owners in tables.items():
            if len(owners) > 1:
                yield (
                    f"several assets are on one table, {address} below {root}: {', '.join(sorted(owners))}; each would "
                    f"replace the rows of the others, so give all but one another path by the metadata {md.TABLE!r}"
                )

    def _roots_of(self, node: _Node) -> set[str]:
        if node.is_written and node.manager is not None:
            return {_root(node.manager.lance)}
        return self._roots(node.definition) or self._only_root()

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
        """Find promoted nodes that read a table at a place where its asset does not write it."""
        for node in self._nodes:
            candidate = dg.AssetKey(owner_of(node.spec.key, node.metadata).split("/"))
            written = self._by_key.get(candidate) if node.is_other_node else None
            if written is None or not written.is_written:
                continue
            if not _have_same_place(node, written):
                yield (
                    f"asset {node.name} reads another table than {written.name} writes, {written.address}; give the "
                    "definition of the asset, and not only its key, to the builder of the node"
                )
            yield from self._other_root(written, node.definition, f"asset {node.name}")

    def _other_checks(self) -> Iterator[str]:
        """Find checks that read a table below a root other than the one its asset writes."""
        for check in self._checks:
            for key in check.check_keys:
                written = self._by_key.get(key.asset_key)
                if written is not None and written.is_written:
                    yield from self._other_root(written, check, f"check {key.name!r} of {written.name}")

    def _other_root(self, written: _Node, reader: dg.AssetsDefinition | None, name: str) -> Iterator[str]:
        roots = self._roots(reader)
        if written.manager is not None and roots and _root(written.manager.lance) not in roots:
            yield (
                f"{name} looks below {', '.join(sorted(roots))}, but the IO manager of {written.name} writes below "
                f"{_root(written.manager.lance)}; give its builder the `resource_key` of that root"
            )

    def _unchecked(self) -> Iterator[str]:
        specs = [spec for one in [*self._definitions, *self._checks] for spec in one.check_specs]
        checked = {spec.asset_key for spec in specs if spec.blocking}
        for definition in self._definitions:
            traits = traits_of(definition)
            if traits is None or traits.unchecked:
                continue
            for key in _unaudited(traits, checked):
                yield (
                    f"publisher {definition.node_def.name} publishes {key.to_user_string()} without one blocking "
                    "check: add one with build_table_checks, or give unchecked=True to build_publisher or lance_assets"
                )

    def _split_publishers(self) -> Iterator[str]:
        """Find publishers that Dagster splits into steps, each of which would publish a part of what a run wrote."""
        needs = {node.spec.key: [dep.asset_key for dep in node.spec.deps] for node in self._nodes}
        split = [one for one in self._definitions if traits_of(one) is None and is_split(one, needs)]
        for definition in self._definitions:
            traits = traits_of(definition)
            names = [one.node_def.name for one in split if traits and not one.keys.isdisjoint(traits.candidates)]
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
        """Find checks and publishers of an asset that is not there and nearly has the name of one that is."""
        named = {key: "a check" for check in self._checks if _is_table_check(check) for key in _checked_by(check)}
        for definition in self._definitions:
            traits = traits_of(definition)
            if traits is not None:
                named.update(dict.fromkeys(traits.candidates, f"publisher {definition.node_def.name}"))
        known = [node.name for node in self._nodes]
        for key, what in named.items():
            # Any other name may be that of an asset of another code location.
            near = difflib.get_close_matches(key.to_user_string(), known, n=1, cutoff=_NEARLY)
            if key not in self._by_key and near:
                yield f"{what} is for {key.to_user_string()}, which is no asset here; did you mean {near[0]!r}?"

    def _stored_elsewhere(self) -> Iterator[str]:
        """Find assets whose table is checked or published, and whose rows another IO manager stores."""
        wanted = {key: "checked" for check in self._checks if _is_table_check(check) for key in _checked_by(check)}
        for definition in self._definitions:
            traits = traits_of(definition)
            wanted.update(dict.fromkeys(traits.candidates if traits else (), "published"))
        for asset, done in wanted.items():
            node = self._by_key.get(asset)
            key = node.other_manager_key if node else None
            if node is None or node.definition is None or key is None:
                continue
            # An IO manager of the asset itself cannot be told apart, and a missing one is a finding of its own.
            if key in node.definition.resource_defs or (key not in self._resources and key != _DEFAULT_MANAGER):
                continue
            found = self._resources.get(key)
            other = f"the IO manager {key!r}, a {type(found).__name__}" if found else "Dagster's default IO manager"
            yield (
                f"asset {node.name} is stored by {other}, so its rows reach no table that could be {done}; give "
                f"resources={{{key!r}: LanceIOManager(lance=...)}}, or annotate the asset `-> None` or "
                "`-> dg.MaterializeResult` if it writes its table itself"
            )

    def _missing_resources(self) -> Iterator[str]:
        # Dagster adds the default IO manager where the definitions have none.
        known = {*self._resources, _DEFAULT_MANAGER}
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
            for key in sorted(keys - known):
                yield f"{name} needs a resource {key!r}; the definitions have {listed}"

    def _secrets(self) -> Iterator[str]:
        """Find secrets that Dagster's page of the resource would show."""
        lances = {key: one for key, one in self._resources.items() if isinstance(one, LanceResource)}
        # The resource inside of an IO manager need not be one of the others.
        managers = {key: one.lance for key, one in self._resources.items() if isinstance(one, LanceIOManager)}
        for key, lance in (managers | lances).items():
            for name in literal_secrets(lance.connection_options):
                yield (
                    f"resource {key!r} has a secret, {name}, as text, which Dagster shows on its page; give "
                    "dg.EnvVar with the name of an environment variable"
                )

    def _roots(self, definition: dg.AssetsDefinition | None) -> set[str]:
        """Return the roots of the resources that a definition requires."""
        if definition is None or not definition.is_executable:
            return set()
        required = (self._resources.get(key) for key in definition.required_resource_keys)
        return {_root(one) for one in required if isinstance(one, LanceResource)}

    def _only_root(self) -> set[str]:
        """Return the root of the code location when it has one; an external asset does not name its root."""
        found = {_root(one) for one in self._resources.values() if isinstance(one, LanceResource)}
        found |= {_root(one.lance) for one in self._resources.values() if isinstance(one, LanceIOManager)}
        return found if len(found) == 1 else set()


def _has_value(definition: dg.AssetsDefinition, asset: dg.AssetKey) -> bool:
    """Return whether an asset has a value for an IO manager to store."""
    name = next(name for name, key in definition.keys_by_output_name.items() if key == asset)
    kind = definition.node_def.output_dict[name].dagster_type.typing_type
    # Dagster reads the annotation `None` as the type Nothing, and a bare `MaterializeResult` as Any.
    return kind is not type(None) and not _returns_result(definition)


def _function_of(definition: dg.AssetsDefinition) -> object:
    return getattr(getattr(definition.node_def, "compute_fn", None), "decorated_fn", None)


def _is_table_check(check: dg.AssetsDefinition) -> bool:
    return hasattr(_function_of(check), LANCE_CHECK)


def _checked_by(check: dg.AssetsDefinition) -> list[dg.AssetKey]:
    return [key.asset_key for key in check.check_keys]


def _returns_result(definition: dg.AssetsDefinition) -> bool:
    annotation = getattr(_function_of(definition), "__annotations__", {}).get("return")
    # A string in modules with `from __future__ import annotations`.
    return annotation is dg.MaterializeResult or str(annotation).endswith("MaterializeResult")


def _unaudited(traits: PublisherTraits, checked: set[dg.AssetKey]) -> list[dg.AssetKey]:
    named = {check.asset_key for check in traits.checks}
    return [key for key in traits.candidates if key not in checked | named]


def _have_same_place(node: _Node, written: _Node) -> bool:
    try:
        return node.address == written.address
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
