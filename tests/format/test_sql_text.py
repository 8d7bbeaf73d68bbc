"""Text of Lance SQL: which is a whole condition, and how conditions are joined."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.format.sql_text import all_of, check_closed

PARTS = {
    "id = 1) AND (k = 2": "a parenthesis without its partner",
    "(id = 1": "a parenthesis without its partner",
    "k = 'a": "a quote without its partner",
    "id = 1; AND k = 2": "';' outside of quotes",
    "id = 1 -- AND k = 2": "'--' outside of quotes",
    "id = 1 /* AND k = 2": "'/[*]' outside of quotes",
}


@pytest.mark.parametrize("sql,said", PARTS.items())
def test_a_part_of_a_condition_is_refused(sql: str, said: str) -> None:
    """Lance would evaluate what comes first and ignore the rest."""
    with pytest.raises(InvalidInputError, match=said):
        check_closed("the filter", sql)


@pytest.mark.parametrize(
    "sql", ["k = 'a) -- it''s; (b'", '`a;b` = 1 AND "c(" = 2', "((id) = (1)) /* ; ( */", "1 - -1 > 0"]
)
def test_what_is_in_quotes_closes_nothing(sql: str) -> None:
    """Parentheses, semicolons and dashes in a value, a name or a whole comment are part of it."""
    check_closed("the filter", sql)


def test_a_part_does_not_escape_from_its_parentheses() -> None:
    """Joined with another one, `a) OR (b` would let rows pass that the other one excludes."""
    assert "(a) AND (b)" == all_of("a", None, "b")
    with pytest.raises(InvalidInputError, match="a parenthesis without its partner"):
        all_of("id = 1", "true) OR (true")


@pytest.mark.parametrize("sql", ["k = 1) AND (id = 5", "k = 1; AND id = 5"])
def test_no_method_takes_a_part(tmp_path: Path, sql: str) -> None:
    """Neither a read nor a change evaluates the first part of a predicate, and the table stays as it is."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"id": pa.int64(), "k": pa.int64()}))
    rows = pa.table({"id": [1, 2, 5], "k": [1, 1, 1]})
    table.append(rows)
    for call in (
        lambda: table.read(filter=sql),
        lambda: table.count_rows(filter=sql),
        lambda: table.delete(sql),
        lambda: table.update({"id": "0"}, where=sql),
        lambda: table.update({"id": "id) + (1"}),
        lambda: table.replace_where(sql, rows),
        lambda: table.upsert(rows, on=["id"], when_matched=f"source.{sql}"),
        lambda: table.upsert(rows, on=["id"], when_missing="delete", missing_where=sql),
        lambda: table.columns.add({"more": "id) + (1"}),
    ):
        with pytest.raises(InvalidInputError, match=r"without its partner|outside of quotes"):
            call()
    assert 2 == table.head().number
