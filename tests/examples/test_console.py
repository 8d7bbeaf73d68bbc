"""Shell blocks of a page, and the loose comparison of their output."""

from pathlib import Path

import pytest

from tests.examples.console import calls, like, run_block
from tests.table_factory import entries, new_table


@pytest.mark.parametrize(
    "expected,printed,same",
    [
        ("", "", True),
        ("", "a", False),
        ("a  b", "a b", True),
        ("a b", "ab", False),
        ("a ... c", "a b b c", True),
        ("a\n...\nc", "a\nb\nb\nc", True),
        ("a\n...\nc", "a\nc", True),
        ("a\n...\nc", "a\nb", False),
        ("...", "", True),
        ("main@2  3f9ac2d1  2026-01-31 18:00:00Z", "main@2 aaaaaaaa1 2026-11-01 00:00:00Z", True),
        ("main@2  3f9ac2d1", "main@2 zzzzzzzz", False),
        ("decade", "facade", False),
        ("a+b (c)", "a+b (c)", True),
    ],
)
def test_what_is_like_what_a_page_says(expected: str, printed: str, same: bool) -> None:  # noqa: FBT001
    """Times, ids and blanks may differ; `...` stands for anything."""
    assert same is like(expected, printed)


def test_a_block_is_read_as_calls() -> None:
    """Each call has its output, and its exit code if the block asks for it."""
    one, two = calls("$ lance-dagster a\nprinted\n\nmore\n$ lance-dagster b\n$ echo $?\n1\n")
    assert ("lance-dagster a", ["printed", "", "more"], 0) == (one.command, one.lines, one.code)
    assert ("lance-dagster b", [], 1) == (two.command, two.lines, two.code)


def test_a_block_runs(tmp_path: Path) -> None:
    """The block fails if the page is wrong."""
    table = new_table(tmp_path, entries("a", 1))
    run_block(f"$ lance-dagster table log {table.uri} -n 1\nmain@2 ... 1 row  (main)\n")
    for wrong in ("main@3 ...\n", "main@2 ...\n$ echo $?\n1\n"):
        with pytest.raises(AssertionError):
            run_block(f"$ lance-dagster table log {table.uri} -n 1\n{wrong}")
    with pytest.raises(AssertionError, match="a page can only show lance-dagster"):
        run_block("$ git log\n")
