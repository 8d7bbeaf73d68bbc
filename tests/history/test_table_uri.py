"""One text for a table and one of its versions."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from lance_dagster import LanceRepository, LanceTable
from lance_dagster.errors import InvalidInputError, RefSyntaxError, TableNotFoundError
from lance_dagster.history.table_uri import (
    parse_table_uri,
    parse_version_uri,
    repository_uri,
    split_table_uri,
    table_uri,
)
from tests.table_factory import entries, new_table

PRINTABLE = st.characters(exclude_categories=["Cc", "Cs"])


@pytest.mark.parametrize(
    "text,uri,ref",
    [
        ("lance+s3://bucket/orders.lance?ref=production", "s3://bucket/orders.lance", "production"),
        ("lance+s3://bucket/orders.lance", "s3://bucket/orders.lance", "main"),
        ("lance+/data/orders.lance?ref=main@17~2", "/data/orders.lance", "main@17~2"),
        ("lance+/data/orders.lance?ref=main%5E2", "/data/orders.lance", "main^2"),
        ("lance+/data/orders.lance?ref=main^2", "/data/orders.lance", "main^2"),
        ("lance+/a%20b/100%25.lance?ref=run%2F4f2a", "/a b/100%.lance", "run/4f2a"),
        ("lance+file:///a%2520b?ref=run/4f2a", "/a%20b", "run/4f2a"),
        ("lance+file://localhost/a", "/a", "main"),
        ("lance+FILE://LocalHost/localhost/a", "/localhost/a", "main"),
        ("lance+file:///localhost2/a", "/localhost2/a", "main"),
        ("LANCE+S3://bucket/a", "S3://bucket/a", "main"),
        ("lance+/x?ref=main@{2%20days%20ago}", "/x", "main@{2 days ago}"),
        ("lance+/x?ref=main@{2026-01-31T00:00+02:00}", "/x", "main@{2026-01-31T00:00+02:00}"),
        ("lance+/a+b@c/%C3%A9", "/a+b@c/é", "main"),
    ],
)
def test_a_uri_names_a_table_and_a_version(text: str, uri: str, ref: str) -> None:
    """Escapes are decoded once, and a plus stands for itself."""
    assert (uri, ref) == parse_table_uri(text)


@given(
    folder=st.text(PRINTABLE, min_size=1, max_size=20).filter(str.strip),
    ref=st.sampled_from(
        ["main", "run/4f2a", "main@17^2~3", "main@{2 days ago}", "main@{2026-01-31T00:00+02:00}", "tag:1"]
    ),
)
def test_what_is_written_is_read(folder: str, ref: str) -> None:
    """A path may have any characters, and the text is plain ASCII."""
    text = table_uri(f"/{folder}", ref)
    assert (f"/{folder}", ref) == parse_table_uri(text)
    assert text.isascii()
    assert " " not in text


@pytest.mark.parametrize(
    "text,root,table,ref",
    [
        ("lance+s3://lake?table=shop/orders&ref=production", "s3://lake", "shop/orders", "production"),
        ("lance+s3://lake?ref=production~1&table=orders", "s3://lake", "orders", "production~1"),
        ("lance+/data/lake?table=shop%2Forders", "/data/lake", "shop/orders", "main"),
        ("lance+/lake?table=a%26b%20c&ref=v1.4", "/lake", "a&b c", "v1.4"),
    ],
)
def test_a_uri_names_a_table_of_a_repository(text: str, root: str, table: str, ref: str) -> None:
    """With `table=` the location is the root of a repository, and the ref is one of the repository."""
    found = parse_version_uri(text)
    assert (root, table, ref) == (found.location, found.table, found.ref)
    with pytest.raises(InvalidInputError, match="open_uri"):
        parse_table_uri(text)


@given(
    root=st.text(PRINTABLE, min_size=1, max_size=20).filter(str.strip),
    table=st.text(PRINTABLE, min_size=1, max_size=20),
    ref=st.sampled_from(["main", "production~1", "production@{2 days ago}", "main^2", "3f9ac2d1"]),
)
def test_a_repository_uri_that_is_written_is_read(root: str, table: str, ref: str) -> None:
    """Root and table name may have any characters, and the text is plain ASCII."""
    text = repository_uri(f"/{root}", table, ref)
    found = parse_version_uri(text)
    assert (f"/{root}", table, ref) == (found.location, found.table, found.ref)
    assert text.isascii()


@pytest.mark.parametrize(
    "text,problem",
    [
        ("s3://bucket/a?ref=x", "the URI of a version begins with 'lance\\+'"),
        ("lance+", "there is no table in 'lance\\+'"),
        ("lance+?ref=main", "there is no table in"),
        ("lance+s3://key:geheim@bucket/a?ref=x", "cannot carry credentials; give them as storage options"),
        ("lance+s3://geheim@bucket/a", "cannot carry credentials"),
        (
            "lance+/a?ref=x&aws_secret_access_key=geheim",
            "only ref=<expression>, not 'aws_secret_access_key'; give storage",
        ),
        ("lance+/a?geheim/geheim=1", "only ref=<expression>; give storage options beside it"),
        ("lance+/a?ref", "only ref=<expression>, not 'ref'"),
        ("lance+/a?", "only ref=<expression>; give"),
        ("lance+/a?ref=x&ref=y", "names one ref, not 2: 'x', 'y'"),
        ("lance+/a?table=x&table=y", "names one table, not 2: 'x', 'y'"),
        ("lance+/a?table=&ref=x", "there is no name after table="),
        ("lance+/a?ref=x#y", "has no part after '#'; in a name it is written %23"),
        ("lance+/a%2?ref=x", "the URI of a table has a '%' that two hex digits have to follow"),
        ("lance+/a?ref=main%", "a ref has a '%' that two hex digits have to follow"),
        ("lance+/a%ff", "has escapes that are not UTF-8"),
        ("lance+/a%00", "has control characters in it"),
        ("lance+file://host/data", "has no host, or localhost, and a path; write it as lance\\+file:///data/orders"),
        ("lance+file://localhost2/x", "has no host, or localhost"),
        ("lance+file://localhost", "has no host, or localhost, and a path"),
        ("lance+file://data.lance?ref=main", "has no host, or localhost"),
        ("lance+file:///", "has no host, or localhost, and a path"),
        ("lance+file://geheim%40host/x", "has no host, or localhost"),
    ],
)
def test_what_does_not_belong_there_is_refused(text: str, problem: str) -> None:
    """The error does not repeat a secret."""
    with pytest.raises(InvalidInputError, match=problem) as caught:
        parse_table_uri(text)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("ref", ["", "main@", "a%20b"])
def test_a_ref_that_cannot_be_read_is_pointed_at(ref: str) -> None:
    """The error is raised when the URI is read, not when the version is needed."""
    with pytest.raises(RefSyntaxError):
        parse_table_uri(f"lance+/a?ref={ref}")


def test_no_place_is_the_uri_of_a_version(tmp_path: Path) -> None:
    """It would be a path below a folder `lance+`; whatever takes the URI of a table or a root refuses it."""
    table = LanceTable.create(tmp_path / "t", pa.schema([("a", pa.int64())]))
    given = table_uri(f"file://{tmp_path}/other", "main")
    for call in (
        lambda: table.maintenance.clone(given),
        lambda: table.maintenance.add_base("more", given),
        lambda: table.maintenance.allow_base(given),
        lambda: table.maintenance.move_base("more", given),
        lambda: table.maintenance.relocate(given),
        lambda: LanceRepository.create(given),
    ):
        with pytest.raises(InvalidInputError, match="names a version"):
            call()


def test_a_table_is_opened_with_its_ref(tmp_path: Path) -> None:
    """`split_table_uri` takes both forms; the error of `open` names it."""
    table = new_table(tmp_path / "a %41+", entries("a", 1))
    text = table_uri(table.uri, "main~1")
    uri, ref = split_table_uri(text)
    opened = LanceTable.open(uri)
    assert (table.uri, "main~1", "main@1") == (opened.uri, ref, str(opened.at(ref)))
    assert (table.uri, "main") == split_table_uri(table.uri)
    for refused in (LanceTable.open, LanceTable.exists, lambda uri: LanceTable.create(uri, table.schema())):
        with pytest.raises(InvalidInputError, match="names a version"):
            refused(text)
    with pytest.raises(TableNotFoundError):
        LanceTable.open(split_table_uri(f"{text.partition('?')[0]}x?ref=main")[0])
