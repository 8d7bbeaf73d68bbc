"""Text of Lance SQL: which is a whole condition, how conditions are joined, and which columns they name."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.format.sql_text import all_of, check_closed, columns_in, enclosed, fields_in

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
    with pytest.raises(InvalidInputError):
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


NAMED: dict[str, pa.DataType] = {
    "n": pa.int64(),
    "customer": pa.int64(),
    "customer_id": pa.int64(),
    "Price": pa.float64(),
    "price$net": pa.float64(),
    "k": pa.string(),
    "date": pa.date32(),
    "day": pa.date32(),
    "odd name": pa.int64(),
    "\u0915\u0940\u092e\u0924": pa.int64(),
    "@x": pa.int64(),
    "in": pa.int64(),
    "as": pa.int64(),
    "string": pa.string(),
    "lower": pa.string(),
    "s": pa.struct([("n", pa.int64()), ("k", pa.string())]),
    "l": pa.list_(pa.int64()),
}


@pytest.mark.parametrize(
    "sql,columns",
    [
        ("customer_id IN (2)", ["customer_id"]),
        ("k = 'n' OR k = 'it''s customer'", ["k"]),
        ("k IN ('price-1', 'Price')", ["k"]),
        ("PRICE = 1.5 AND price$net > 1", ["Price", "price$net"]),
        ("`odd name` = 1 /* n */", ["odd name"]),
        ("`Price` = 1.5", ["Price"]),
        ("\u0915\u0940\u092e\u0924 = 2", ["\u0915\u0940\u092e\u0924"]),
        ("@x = 1", ["@x"]),
        ("day >= date '2026-01-01'", ["day"]),
        ("date < date '2026-01-01'", ["date"]),
        ("arrow_cast(n, 'Int32') = 1 OR n::string = '1'", ["n"]),
        ("n = 1AND customer = 2", ["n", "customer"]),
        ("k='a'AND n=1", ["n", "k"]),
        ("lower(k) = 'x'", ["k"]),
        ("lower = 'x'", ["lower"]),
        ("(n) IN (1) AND (customer)\n= 1", ["n", "customer"]),
        ("in = 1", ["in"]),
        ("in IN (1)", ["in"]),
        ("as IS NOT NULL", ["as"]),
        ("s.n = 1", ["s"]),
        ("s['n'] = 1", ["s"]),
        ("s . k = 'a' OR get_field(s, 'n') = 1", ["s"]),
        ("l[1] = 2 OR array_has(l, n)", ["n", "l"]),
        ("l = [1, 2] AND n = 2", ["n", "l"]),
        ("NOT n = 2 OR -n = customer", ["n", "customer"]),
        ("n BETWEEN 1 AND customer", ["n", "customer"]),
        ("n IS NOT DISTINCT FROM customer", ["n", "customer"]),
        ("k || lower(string) = 'ab'", ["k", "string"]),
        ("true", []),
    ],
)
def test_columns_are_named_as_lance_finds_them(tmp_path: Path, sql: str, columns: list[str]) -> None:
    """Lance evaluates the condition with these columns alone, and without none of them."""
    assert columns == columns_in(sql, NAMED)
    for left_out in [None, *columns]:
        kept = [(name, NAMED[name]) for name in columns if name != left_out]
        schema = pa.schema([*kept, ("other", pa.int64())])
        dataset = lance.write_dataset(schema.empty_table(), tmp_path / f"without-{left_out}")
        if left_out is None:
            assert 0 == dataset.count_rows(filter=enclosed("the filter", sql))
        else:
            with pytest.raises((ValueError, OSError)):
                dataset.count_rows(filter=enclosed("the filter", sql))


def test_types_name_no_column() -> None:
    """After `AS` stands a type, or an operator where `as` is the column."""
    assert ["n"] == columns_in("CAST(n AS string) = '1' AND TRY_CAST(n AS date) IS NULL", ["n", "string", "date"])


@pytest.mark.parametrize("sql", ["s.n = 1", "s['n'] = 1", "get_field(s, 'n') = 1", "s.`n` = 1", "k = 'n'"])
def test_fields_are_named_after_a_dot_and_as_a_text(sql: str) -> None:
    """A text may be the name of a field, as Lance takes it in brackets and from a function."""
    assert ["n"] == fields_in(sql, ["n", "name"])
    assert [] == fields_in("n IN (1) AND s.names = 'n 1'", ["n", "name"])
