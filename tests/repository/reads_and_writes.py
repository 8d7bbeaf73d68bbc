"""What readers and writers of a repository do, for tests of what each of them is permitted."""

from collections.abc import Callable, Mapping

from lance_dagster import LanceRepository
from lance_dagster.types import VersionToPublish
from tests.repository.scripted_repository import ids, rows, run


def options_of(repository: LanceRepository) -> Mapping[str, str]:
    """The storage options of the repository."""
    return repository.table("a").storage_options


READS: Mapping[str, Callable[[LanceRepository], object]] = {
    "open": lambda repository: LanceRepository.create(repository.root, options_of(repository)).id,
    "read": lambda repository: ids(repository, "production"),
    "read an earlier state": lambda repository: ids(repository, "production~1"),
    "read at a time": lambda repository: ids(repository, "production@1"),
    "scan": lambda repository: repository.at("main")["a"].scan(filter="id > 1").read_all().num_rows,
    "read by one text": lambda repository: LanceRepository.open_uri(
        repository.uri("a", "v1"), options_of(repository)
    ).count_rows(),
    "status": lambda repository: str(repository.status()),
    "candidates": lambda repository: str(repository.candidates()),
    "unrecorded branches": lambda repository: str(repository.maintenance.record_branches()),
    "log": lambda repository: len(repository.log()),
    "history": lambda repository: len(repository.channels.history("production")),
    "list": lambda repository: (
        repository.tables(),
        repository.discover(),
        [*repository.tags.list()],
        [*repository.channels.list()],
    ),
    "diff": lambda repository: str(repository.diff("production~1", "production").tables[0].rows().stat()),
}
"""What a reader does. `create` of a repository that is there opens it."""


def audited(repository: LanceRepository) -> VersionToPublish:
    """The version of a table to publish, as an audit has it."""
    return VersionToPublish(version=repository.table("a").head("main"), message="audited")


WRITES: Mapping[str, Callable[[LanceRepository], object]] = {
    "fork": lambda repository: repository.fork("a", "run/9"),
    "publish": lambda repository: repository.publish("run/3", channel="production"),
    "publish versions": lambda repository: repository.publications.publish_versions(
        {"a": audited(repository)}, plan_again=lambda _: audited(repository), message="audited"
    ),
    "commit": lambda repository: repository.commit("by hand"),
    "promote": lambda repository: repository.channels.promote("production", "main~1"),
    "roll back": lambda repository: repository.channels.rollback("production", reason="wrong"),
    "hold": lambda repository: repository.channels.hold("production", reason="wait"),
    "delete a channel": lambda repository: repository.channels.delete("production", reason="over"),
    "release": lambda repository: repository.tags.create("v2"),
    "delete a release": lambda repository: repository.tags.delete("v1", force=True),
    "revert": lambda repository: repository.revert("main"),
    "remove a table": lambda repository: repository.remove_table("a"),
    "adopt": lambda repository: repository.adopt(["new"]),
    "create a table": lambda repository: repository.create_table("c", rows().schema),
    "collect": lambda repository: repository.maintenance.collect(dry_run=False),
}


def prepared(repository: LanceRepository) -> dict[str, object]:
    """Make tables, publish, release and leave something to do; return what a reader finds then."""
    for name in ("a", "b"):
        repository.create_table(name, rows().schema)
    repository.commit("start")
    repository.create_table("new", rows().schema)
    for number in (1, 2):
        repository.publish(run(repository, number, "a"), channel="production")
    repository.tags.create("v1")
    run(repository, 3, "a")
    repository.table("a").append(rows(7))
    return {name: read(repository) for name, read in READS.items()}
