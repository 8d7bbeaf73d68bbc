"""Commit ids are fixed for all time, because people record them."""

import pytest

from lance_dagster.format.codec import COMMIT_ID, COMMIT_PREFIX, commit_id


def test_an_id_is_the_same_for_ever() -> None:
    """These values must never change."""
    assert "38b3c7ff31328f2cddf377b87b56b0cd76ca7f915b70a056f1d446e509b26639" == commit_id(b"LANC")
    assert "e2338a24274cd13ea2c48d49b5f12e9c040b0cbb2e85b55360adade574c7acae" == commit_id(b"")


@pytest.mark.parametrize("text,fits", [("0a1b2c3d", True), ("0A1B2C3D", True), ("0a1b2c3", False), ("0a1b2c3g", False)])
def test_eight_hex_digits_may_begin_an_id(text: str, *, fits: bool) -> None:
    """Shorter prefixes are often words."""
    assert fits == bool(COMMIT_PREFIX.fullmatch(text))
    assert COMMIT_ID.fullmatch(commit_id(text.encode()))
