"""Lakes for the tests of the page: with a history, with a held channel, with candidates of runs, and hostile ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from lance_dagster import LanceRepository
from lance_dagster.types import Verdict
from tests.repository.write_requests import write_request_on

SCHEMA = pa.schema({"id": pa.int64()})
RUN, OLDER_RUN = "4f2a0000-1111-4222-8333-444455556666", "77aa0000-1111-4222-8333-444455556666"


def rows(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def lake_with(path: Path, tables: Sequence[str], commits: int = 0) -> LanceRepository:
    """A lake in which each commit appends a row to one table, the tables in turns, and moves the channel."""
    lake = LanceRepository.create(path)
    for name in tables:
        lake.create_table(name, SCHEMA)
    for number in range(commits):
        lake.table(tables[number % len(tables)]).append(rows(number))
        lake.commit(f"load {number}", tables=[tables[number % len(tables)]], properties={"dagster/run_id": OLDER_RUN})
        lake.channels.promote("production", reason=f"publication {number}")
    return lake


def add_candidate(
    lake: LanceRepository, table: str, ids: Sequence[int], verdicts: Mapping[str, tuple[bool, str]]
) -> None:
    """Let a run write a candidate of a table, and let checks say something about it."""
    branch = f"run/{RUN}"
    table_id = lake.table_id(table)
    forked = lake.fork(table, branch)
    write = lake.record.put(table_id, write_request_on(forked, RUN, work=table))
    version = forked.append(rows(*ids), branch=branch, properties={"lance/write": write.mark})
    outcomes = [
        Verdict(check=name, passed=passed, description=description, run_id=RUN)
        for name, (passed, description) in verdicts.items()
    ]
    lake.record.put_verdicts(table_id, version.id, outcomes, write=write.number)


def busy_lake(path: Path) -> LanceRepository:
    """A lake with three tables, five commits, a candidate that a check refused, and a channel that is held."""
    lake = lake_with(path, ["shop/orders", "shop/customers", "ml/features"], 5)
    add_candidate(
        lake,
        "shop/orders",
        [7, 7],
        {
            "unique_id": (False, "rows that repeat the id of another: 1; allowed: none; such as 7"),
            "row_count": (True, "2 rows"),
        },
    )
    lake.channels.rollback("production", reason="the refunds are counted twice", who="marie")
    return lake
