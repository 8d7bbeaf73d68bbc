"""Rows are the same by the branch that inserted them, whatever the ids of branches are."""

import pytest

from lance_dagster.transactions.row_id_spaces import Alias, RowSpace, decode_aliases, encode_aliases


@pytest.mark.parametrize("a, z", [("1", "2"), ("2", "1")])
def test_the_origin_of_a_row_does_not_depend_on_the_ids_of_branches(a: str, z: str) -> None:
    """Branch z got row 5 of branch a as its row 6, and main picked it; a has z's ids without knowing that."""
    of_a = RowSpace.of([("main", 0), (a, 5)], 8, {})
    of_z = RowSpace.of([("main", 0), (z, 5)], 7, {a: [Alias(first=5, end=6, here=6)]})
    main = RowSpace.of([("main", 0)], 5, {})
    _, aliases = of_z.assigned_ids_of(main)
    assert {
        a: [Alias(first=5, end=6, here=6)],
        z: [Alias(first=5, end=6, here=5), Alias(first=6, end=7, here=6, through=True)],
    } == aliases
    later = {a: aliases[a], z: aliases[z]}
    merged = RowSpace.of([("main", 0)], 7, dict(sorted(later.items())))
    on_a = RowSpace.of([("main", 0), (a, 5)], 10, {z: [Alias(first=5, end=7, here=8)]})
    assert 5 == merged.translation(on_a).of_range(6, 1)
    assert 5 == merged.translation(of_a).of_range(6, 1)


def test_records_say_through_which_branches_rows_only_came() -> None:
    """Neighbouring ranges of one kind are one."""
    aliases = [
        Alias(first=5, end=6, here=5),
        Alias(first=6, end=7, here=6, through=True),
        Alias(first=7, end=8, here=7, through=True),
    ]
    assert "5-6=5 6-8~6" == encode_aliases(aliases)
    assert [aliases[0], Alias(first=6, end=8, here=6, through=True)] == decode_aliases("5-6=5 6-8~6")
