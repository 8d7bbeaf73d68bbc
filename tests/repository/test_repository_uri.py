"""URIs of a table of a repository at a ref, in Python and on the command line."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceRepository, NotFoundError, TableNotFoundError
from tests.cli.running import lines_of

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def repository(tmp_path: Path) -> LanceRepository:
    """A repository whose channel is one publication behind main."""
    made = LanceRepository.create(tmp_path / "my lake")
    made.create_table("shop/orders", SCHEMA)
    for number, channel in ((1, "production"), (2, None)):
        branch = f"run/{number}"
        made.fork("shop/orders", branch).append(pa.table({"id": [number]}, schema=SCHEMA), branch=branch)
        made.publish(branch, channel=channel)
    return made


def test_a_uri_is_written_and_opened(repository: LanceRepository) -> None:
    """The table is opened at the commit that the ref names in the repository."""
    text = repository.uri("shop/orders", "production")
    assert text.endswith("/my%20lake?table=shop/orders&ref=production")
    assert [1] == LanceRepository.open_uri(text).read()["id"].to_pylist()
    assert 2 == LanceRepository.open_uri(repository.uri("shop/orders")).count_rows()
    assert 1 == LanceRepository.open_uri(repository.uri("shop/orders", "main~1")).count_rows()


def test_what_a_uri_cannot_open(repository: LanceRepository, tmp_path: Path) -> None:
    """The text of a table alone, an unknown table and a root without a repository are refused."""
    with pytest.raises(InvalidInputError):
        LanceRepository.open_uri(f"lance+{repository.root}/shop/orders.lance?ref=production")
    with pytest.raises(TableNotFoundError):
        LanceRepository.open_uri(repository.uri("shop/order"))
    with pytest.raises(NotFoundError):
        LanceRepository.open_uri(f"lance+{tmp_path}?table=shop/orders")
    with pytest.raises(InvalidInputError):
        repository.uri("../orders")


def test_commands_for_one_version_take_it(repository: LanceRepository) -> None:
    """A command for one version of a table uses the version that the repository names."""
    shown = lines_of("table", "head", repository.uri("shop/orders", "production"))
    assert ["id", "1"] == [line.strip() for line in shown[:2]]
