"""Requests of writes, as runs record them."""

from dataclasses import replace
from typing import Any

from lance_dagster import LanceTable
from lance_dagster.types import WriteRequest


def write_request(run_id: str = "r1", **fields: Any) -> WriteRequest:  # noqa: ANN401 - of the fields of a request
    """An append of a run that belongs to no other candidate; its branch need not exist."""
    default = WriteRequest(
        candidate=run_id,
        run_id=run_id,
        origin=run_id,
        branch=f"run/{run_id}",
        branch_id=f"id of run/{run_id}",
        base=1,
        work="rows",
        mode="append",
    )
    return replace(default, **fields)


def write_request_on(table: LanceTable, run_id: str, **fields: Any) -> WriteRequest:  # noqa: ANN401 - as above
    """A write of a run to its branch, which exists, before the commit with the rows."""
    branch = f"run/{run_id}"
    fields |= {"branch_id": table.branches.get(branch).id, "base": table.head(branch).number}
    return write_request(run_id, **fields)
