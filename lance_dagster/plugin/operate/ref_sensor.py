"""Sensors that report new versions of `main` and tag moves to Dagster.

Delivery is at least once: Dagster stores the events of a tick before its cursor, so a crash between the two
reports a version twice, and no version is lost. The run key contains the version, so a repeated report starts no
second run.

A tick lists the manifests after its cursor and opens only those. It has a time budget, and the next tick starts
with the table at which it stopped: the daemon discards the events of a tick that exceeds its limit.

Each version is a materialization of an external asset. An observation would not do: Dagster's automation ignores
observations of external assets.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

import dagster as dg

from lance_dagster.errors import InvalidInputError, LanceDagsterError, TableNotFoundError, VersionNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import MERGE
from lance_dagster.format.validation import require_sequence, string_list
from lance_dagster.history.refs.ref_store import Tag
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.publish.publication import find_tag
from lance_dagster.plugin.resource import LanceResource, table_address
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, asset_key_of, metadata_of
from lance_dagster.table import LanceTable

BUDGET_SECONDS = 20.0
_DATA_VERSION = "dagster/data_version"
_USER_PROVIDED = "dagster/data_version_is_user_provided"


class SensorOptions(TypedDict, total=False):
    """Further options of `dg.sensor`. `job` is a job or the result of `dg.define_asset_job`."""

    job: object  # Dagster does not export the type of an asset job
    minimum_interval_seconds: int
    default_status: dg.DefaultSensorStatus
    description: str


def build_ref_sensor(
    name: str,
    tables: Sequence[TableAsset],
    *,
    refs: Sequence[str] = (MAIN,),
    from_start: bool = False,
    budget_seconds: float = BUDGET_SECONDS,
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Build a sensor that reports new versions and tag moves of some tables, by any program.

    Every new version of `main` becomes a materialization of the external asset `main/<candidate's key>`; see
    `ref_asset_specs`. Every move of a tag in `refs` becomes a materialization of the promoted node
    `<tag>/<candidate's key>`, unless the publisher moved it. With `job`, the sensor also requests one run for each
    table that changed, with a run key that contains the version, so that a repeated report starts no second run.
    It expects the `LanceResource` under the resource key `lance`.

    Args:
        name: The sensor's name.
        tables: The candidates, as definitions or keys.
        refs: `main`, tags, or both.
        from_start: Whether the first tick reports the versions that exist already. Otherwise it only records
            them in the cursor.
        budget_seconds: The time after which a tick leaves the remaining tables to the next tick.
        options: Passed to `dg.sensor`: `job`, `minimum_interval_seconds`, `default_status`, `description`.

    Raises:
        InvalidInputError: No table or no ref is given.
    """
    require_sequence("tables", tables, "shop/orders")
    names = string_list("refs", refs, MAIN)
    watched = tuple(_Watched(asset_key_of(table), metadata_of(table)) for table in tables)
    if not watched or not names:
        raise InvalidInputError("build_ref_sensor needs at least one table and one ref")
    with_runs = "job" in options

    @dg.sensor(name=name, required_resource_keys={RESOURCE_KEY}, **options)  # type: ignore[arg-type]
    def ref_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lance: LanceResource = context.resources.lance
        cursor = _Cursor.of(context.cursor, from_start=from_start)
        tick = _Tick(lance=lance, refs=names, cursor=cursor, until=time.monotonic() + budget_seconds)
        tick.look_at(watched)
        for problem in tick.problems:
            context.log.error(problem)
        return dg.SensorResult(
            asset_events=tick.events,
            run_requests=tick.requests if with_runs else None,
            cursor=cursor.to_json(),
        )

    return ref_sensor


def ref_asset_specs(tables: Sequence[TableAsset], *, lance: LanceResource | None = None) -> list[dg.AssetSpec]:
    """Return the external assets that stand for the `main` branch of some tables, in the group `main`.

    Args:
        tables: The candidates, as definitions or keys.
        lance: The resource, from which the definitions get the URIs of the tables.
    """
    require_sequence("tables", tables, "shop/orders")
    return [_spec(asset_key_of(table), metadata_of(table), lance) for table in tables]


def _spec(key: dg.AssetKey, metadata: dict[str, object], lance: LanceResource | None) -> dg.AssetSpec:
    about = (
        lance.definition_metadata(key, metadata)
        if lance
        else md.definition_metadata(table_address(key, metadata).dotted, None)
    )
    kept = {md.SCHEMA: metadata[md.SCHEMA]} if md.SCHEMA in metadata else {}
    return dg.AssetSpec(
        dg.AssetKey([MAIN, *key.path]),
        description=f"Every version of the branch main of {key.to_user_string()}, whoever committed it.",
        group_name=MAIN,
        kinds={"lance"},
        metadata={**kept, md.TABLE: key.to_user_string(), md.REF: MAIN, **about},
    )


@dataclass(frozen=True, slots=True)
class _Watched:
    """A table that the sensor watches."""

    key: dg.AssetKey
    metadata: dict[str, object]

    @property
    def name(self) -> str:
        return self.key.to_user_string()


@dataclass(slots=True)
class _Cursor:
    """The state between ticks.

    `seen` has for each table the last version of `main` that was reported and the last target of each tag. `next`
    is the index of the table that the next tick starts with.
    """

    seen: dict[str, dict[str, int | str]]
    next: int
    announce_all: bool

    @classmethod
    def of(cls, text: str | None, *, from_start: bool) -> "_Cursor":
        if not text:
            return cls({}, 0, from_start)
        found = json.loads(text)
        return cls(found["seen"], int(found["next"]), found["all"])

    def to_json(self) -> str:
        return json.dumps({"seen": self.seen, "next": self.next, "all": self.announce_all}, separators=(",", ":"))


@dataclass(slots=True, kw_only=True)
class _Tick:
    """One tick of the sensor, which collects events until its time budget is used up."""

    lance: LanceResource
    refs: tuple[str, ...]
    cursor: _Cursor
    until: float
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    requests: list[dg.RunRequest] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def look_at(self, watched: Sequence[_Watched]) -> None:
        """Visit every table once, starting where the last tick stopped; a damaged table does not stop the others."""
        first = self.cursor.next
        for step in range(len(watched)):
            place = (first + step) % len(watched)
            # Each tick visits at least one table; otherwise a short budget would stop all progress.
            if step and time.monotonic() >= self.until:
                self.cursor.next = place
                return
            try:
                self._look(watched[place])
            except LanceDagsterError as error:
                self.problems.append(f"{watched[place].name}: {error}")
        self.cursor.next = first % len(watched)

    def _look(self, one: _Watched) -> None:
        known = one.name in self.cursor.seen
        try:
            table = self.lance.table(one.key, one.metadata)
        except TableNotFoundError:
            # The table does not exist yet. It is recorded as seen without versions, so that its first version is
            # reported when it is created.
            self.cursor.seen.setdefault(one.name, {})
            return
        seen = self.cursor.seen.setdefault(one.name, {})
        if not known and not self.cursor.announce_all:
            seen.update(_where(table, self.refs))
            return
        for ref in self.refs:
            if ref == MAIN:
                self._announce_main(one, table, seen)
            else:
                self._announce_tag(one, table, seen, ref)

    def _announce_main(self, one: _Watched, table: LanceTable, seen: dict[str, int | str]) -> None:
        for number in table.branches.version_numbers(after=int(seen.get(MAIN, 0))):
            # At least one event in each tick, for the same reason as above.
            if time.monotonic() >= self.until and self.events:
                return
            try:
                version = table.at(f"{MAIN}@{number}")
            except VersionNotFoundError:
                # The garbage collector deleted the version between the listing and this read.
                seen[MAIN] = number
                continue
            self.events.append(_materialization(one, MAIN, version, {}))
            self._request(one, MAIN, version)
            # After each version, so that a tick that stops here resumes at the next one.
            seen[MAIN] = number

    def _announce_tag(self, one: _Watched, table: LanceTable, seen: dict[str, int | str], ref: str) -> None:
        tag = find_tag(table, ref)
        if tag is None or seen.get(ref) == _moved(tag):
            return
        # The publisher materializes the promoted node itself; a second event would start its readers twice. A tag
        # that another program moved later still has the metadata, but not the target that the metadata names.
        by_publisher = md.RUN_ID in tag.metadata and tag.metadata.get(md.MOVED_TO) == tag.ref
        if not by_publisher:
            # With `branch:`, because other programs allow a tag and a branch of the same name.
            version = table.at(f"branch:{tag.ref}")
            self.events.append(_materialization(one, ref, version, {"lance/tag": ref}))
            self._request(one, ref, version)
        seen[ref] = _moved(tag)

    def _request(self, one: _Watched, ref: str, version: Version) -> None:
        """Request a run for the newest version of a table, which replaces a request for an earlier version."""
        tags = {md.TABLE: one.name, md.REF: str(version)}
        key = f"lance:{one.name}@{ref}={version.number}"
        self.requests = [request for request in self.requests if request.tags.get(md.TABLE) != one.name]
        self.requests.append(dg.RunRequest(run_key=key, tags=tags))


def is_foreign(version: Version) -> bool:
    """Return whether a version was committed outside of Dagster: neither by a run nor by a merge of this package."""
    return md.RUN_ID not in version.properties and MERGE not in version.properties


def _where(table: LanceTable, refs: Sequence[str]) -> Iterator[tuple[str, int | str]]:
    for ref in refs:
        if ref == MAIN:
            yield ref, table.head(MAIN).number
        elif tag := find_tag(table, ref):
            yield ref, _moved(tag)


def _moved(tag: Tag) -> str:
    """Return the target of a tag and the time of its last move, so that a move away and back is noticed."""
    return f"{tag.ref} {tag.updated_at.isoformat()}" if tag.updated_at else tag.ref


def _materialization(one: _Watched, ref: str, version: Version, extra: dict[str, str]) -> dg.AssetMaterialization:
    run_id = version.properties.get(md.RUN_ID)
    return dg.AssetMaterialization(
        asset_key=dg.AssetKey([ref, *one.key.path]),
        description=version.message or None,
        metadata={
            **md.version_metadata(version),
            md.ROW_COUNT: version.rows,
            "lance/operation": version.operation,
            "lance/committer": version.committer,
            "lance/foreign": is_foreign(version),
            **({"lance/run_id": run_id} if run_id else {}),
            **extra,
        },
        # Dagster takes a data version for a runless event from these tags.
        tags={_DATA_VERSION: version.transaction, _USER_PROVIDED: "true"},
    )
