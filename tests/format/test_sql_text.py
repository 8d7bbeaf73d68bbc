"""Text of Lance SQL: which is a whole condition, and how conditions are joined."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.format.sql_text import all_of, check_closed, enclosed

PARTS = {
    "id = 1) AND (k = 2": "a parenthesis without its partner",
    "(id = 1": "a parenthesis without its partner",
    "k = 'a": "a quote without its partner",
    "id = 1; AND k = 2": "';' outside of quotes",
    "id = 1 -- AND k = 2": "'--' outside of quotes",
    "id = 1 /* AND k = 2": "'/[*]' outside of quotes",
    "id = 1, k = 2": "',' outside of parentheses",
    "id = 1] OR [k = 2": "a parenthesis without its partner",
    "\"k\" <> 'a'": "write `k` for a column, or 'k' for a text",
}


@pytest.mark.parametrize("sql,said", PARTS.items())
def test_a_part_of_a_condition_is_refused(sql: str, said: str) -> None:
    """Lance would evaluate what comes first and ignore the rest."""
    with pytest.raises(InvalidInputError, match=said):
        check_closed("the filter", sql)


@pytest.mark.parametrize(
    "sql",
    [
        "k = 'a) -- it''s; (b'",
        "`a;b` = 1 AND `c(` = 2",
        "((id) = (1)) /* ; ( */",
        "1 - -1 > 0",
        "id IN (1, 2)",
        "l = [1, [2, 3]]",
    ],
)
def test_what_is_in_quotes_closes_nothing(sql: str) -> None:
    """Parentheses, semicolons and dashes in a value, a name or a whole comment are part of it."""
    check_closed("the filter", sql)


def test_a_part_does_not_escape_from_its_parentheses() -> None:
    """Joined with another one, `a) OR (b` would let rows pass that the other one excludes."""
    assert "(a) AND (b)" == all_of("a", None, "b")
    with pytest.raises(InvalidInputError, match="a parenthesis without its partner"):
        all_of("id = 1", "true) OR (true")


@pytest.mark.parametrize(
    "sql,expression",
    [
        ("k = 1) AND (id = 5", "id) + (1"),
        ("k = 1; AND id = 5", "id; + 1"),
        ("k = 1 adn id = 5", "id + 1 WHERE id = 5"),
        ("k = 1 id = 5", "id FROM nowhere"),
        ("k = 1, id = 5", "id, k"),
        ("k = 1\n'x'", "DISTINCT id"),
    ],
)
def test_no_method_takes_a_part(tmp_path: Path, sql: str, expression: str) -> None:
    """Neither a read nor a change evaluates the first part of a predicate, and the table stays as it is."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"id": pa.int64(), "k": pa.int64()}))
    rows = pa.table({"id": [1, 2, 5], "k": [1, 1, 1]})
    table.append(rows)
    for call in (
        lambda: table.read(filter=sql),
        lambda: table.count_rows(filter=sql),
        lambda: table.delete(sql),
        lambda: table.update({"id": "0"}, where=sql),
        lambda: table.update({"id": expression}),
        lambda: table.replace_where(sql, rows),
        lambda: table.upsert(rows, on=["id"], when_matched=f"source.{sql}"),
        lambda: table.upsert(rows, on=["id"], when_missing="delete", missing_where=sql),
        lambda: table.columns.add({"more": expression}),
    ):
        with pytest.raises(InvalidInputError, match=r"without its partner|outside of|does not continue"):
            call()
    assert 2 == table.head().number


@pytest.mark.parametrize(
    "sql",
    [
        "id = 5",
        "id IN (1, 2)\n",
        "id BETWEEN 1 AND 3 OR `odd name` IS NULL",
        "NOT id = 5 /* five */",
        "CAST(id AS string) LIKE '1%'",
        "id::string = '1'",
        "`odd name` = 'it''s'",
        "true",
    ],
)
def test_parentheses_change_no_plan(tmp_path: Path, sql: str) -> None:
    """A scan uses the same indices and reads the same columns."""
    dataset = lance.write_dataset(pa.table({"id": [1, 5], "odd name": ["a", "it's"]}), tmp_path / "t")
    dataset.create_scalar_index("id", "BTREE")
    plain, whole = (dataset.scanner(filter=one, columns=["id"]) for one in (sql, enclosed("the filter", sql)))
    assert plain.explain_plan(verbose=True) == whole.explain_plan(verbose=True)
    assert plain.to_table() == whole.to_table()


def test_a_word_of_sql_can_be_a_column(tmp_path: Path) -> None:
    """An expression is the name of the column, although a query would have another meaning."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"distinct": pa.int64(), "k": pa.int64()}))
    table.append(pa.table({"distinct": [1], "k": [0]}))
    table.columns.add({"more": "distinct"})
    table.update({"k": "distinct"})
    assert [{"distinct": 1, "k": 1, "more": 1}] == table.read().to_pylist()
