"""What a search for publications says when nothing is published."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.plugin.publish.publication import Publication
from lance_dagster.plugin.publish.publication_search import SearchResult

ORDERS, LINES = dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "lines"])
PROMOTED = {key: dg.AssetKey(["production", *key.path]) for key in (ORDERS, LINES)}


@pytest.mark.parametrize(
    "result, chosen, expected",
    [
        (
            SearchResult(missing=["shop/orders: no run branch of this run"]),
            False,
            "nothing to publish; to publish something else, set ref to main@<n> or run/<run id>",
        ),
        (SearchResult(wrong=["shop/orders: no branch 'run/1'"]), True, "nothing to publish"),
        (SearchResult(held=["shop/orders"], missing=["held"]), False, "production is held, so nothing was published"),
        (SearchResult(refused=["shop/orders"], missing=["it waits"]), False, "refused to publish shop/orders"),
        # A version that is missing is an error of its own, whatever is held besides.
        (SearchResult(held=["shop/orders"], wrong=["shop/lines: gone"]), True, "nothing to publish"),
    ],
)
def test_a_refusal_says_why(result: SearchResult, *, chosen: bool, expected: str) -> None:
    """The first line of the error says why nothing is published, and the reasons of the tables follow."""
    error = result.refusal("production", chosen=chosen)
    first, *reasons = str(error).split("\n")
    assert expected == first.rstrip(":")
    assert all(any(reason in line for line in reasons) for reason in (*result.wrong, *result.missing))


def test_a_part_of_a_run_is_refused(tmp_path: Path) -> None:
    """A run is published whole: without one of its nodes, no table is, and the reason names that node."""
    table = LanceTable.create(tmp_path / "orders.lance", pa.schema({"id": pa.int64()}))
    publication = Publication(candidate=ORDERS, promoted=PROMOTED[ORDERS], table=table)
    result = SearchResult(publications=[publication])
    result.refuse_part([LINES], [PROMOTED[LINES]])
    assert ([], ["shop/orders"]) == (result.publications, result.refused)
    (reason,) = result.missing
    assert reason.startswith("shop/orders: the run also writes shop/lines")
    assert "select production/shop/lines too" in reason
