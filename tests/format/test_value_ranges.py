"""The text in which manifests record ranges."""

from lance_dagster.format.value_ranges import (
    KnownRanges,
    ValueRange,
    decode_range,
    digest_of_name,
    encode_range,
    file_ranges,
    of_files,
    ranged_positions,
    scope_of,
    united,
    untrue_ranges,
    with_scope,
)

LINES = "\n".join(
    [
        encode_range("day", "string", ValueRange(has_nulls=False, lower="a\nb", upper="é\u2028")),
        encode_range("n", "int64", ValueRange(has_nulls=True, lower=-(2**63), upper=2**63 - 1)),
    ]
)


def block(path: str) -> str:
    """The block of a file with two columns, the second and the fourth."""
    return file_ranges(path, LINES, {"day": 1, "n": 3})


def test_ranges_are_found_by_file_and_position() -> None:
    """A line break in a value breaks no line."""
    known = KnownRanges(united(block("x.lance"), block("y.lance")))
    day = decode_range(known.line("y.lance", 1) or "", "string")
    assert ValueRange(has_nulls=False, lower="a\nb", upper="é\u2028") == day
    assert decode_range(known.line("x.lance", 3) or "", "int64") is not None
    # The field may have another type now: then nothing is known.
    assert decode_range(known.line("x.lance", 3) or "", "int32") is None
    assert [None, None] == [known.line("x.lance", 2), known.line("z.lance", 1)]


def test_blocks_are_united_once() -> None:
    """A merge unites what both sides know, in whatever order."""
    both = united(block("x.lance"), block("y.lance"))
    assert both == united(both, block("y.lance")) == united(both, both, "")
    assert block("y.lance") == of_files(both, ["y.lance", "z.lance"])
    assert frozenset({1, 3}) == ranged_positions(both, "x.lance")
    assert "" == united("", "") == of_files("", ["x.lance"])


def test_a_scope_is_no_range() -> None:
    """It is the same for the same partitions, whatever their order, and comes from the predicate without any."""
    scoped = with_scope(block("x.lance"), "x.lance", scope_of(["b", "a"]))
    known = KnownRanges(united(scoped, with_scope("", "y.lance", scope_of(["p"]))))
    assert scope_of(["a", "b"]) == known.scope("x.lance")
    assert scope_of(["p"]) == known.scope("y.lance")
    assert known.line("x.lance", 1) == KnownRanges(block("x.lance")).line("x.lance", 1)
    assert [] == untrue_ranges(scoped, block("x.lance"))


def test_untrue_ranges_are_named() -> None:
    """Wider bounds are true; lines of other releases decide nothing."""
    actual = file_ranges("x", encode_range("n", "int64", ValueRange(has_nulls=True, lower=3, upper=5)), {"n": 0})

    def untrue(line: str) -> bool:
        return bool(untrue_ranges(f"{digest_of_name('x')}\n{line}", actual))

    assert [False, True, True, True] == [
        untrue("0 i64?2,9"),
        untrue("0 i64=3,5"),
        untrue("0 i64?4,5"),
        untrue("0 i64?"),
    ]
    assert [False, False, True] == [untrue("new"), untrue("0 i64!2,9"), untrue("1 i64=1")]
    # Damaged lines.
    assert not any(map(untrue, ["", "5", "0 i64", "0 i64=[[", '0 i64="a",1', "0 i64=1,2,3", "0 i64=5,1"]))


def test_a_line_is_short() -> None:
    """Every commit writes the lines of all files: a bound that is both stands once."""
    columns = {
        "day": ("string", ValueRange(has_nulls=False, lower="d3", upper="d3")),
        "n": ("int64", ValueRange(has_nulls=True, lower=5, upper=900)),
        "date": ("date32:day", ValueRange(has_nulls=True, lower=None, upper=None)),
        "at": ("timestamp:us:Europe/Paris", ValueRange(has_nulls=False, lower=0, upper=7)),
    }
    lines = "\n".join(encode_range(name, kind, values) for name, (kind, values) in columns.items())
    text = file_ranges("x.lance", lines, {name: place for place, name in enumerate(columns)})
    assert f'{digest_of_name("x.lance")}\n0 s="d3"\n1 i64?5,900\n2 d?\n3 timestamp:us:Europe/Paris=0,7' == text
    known = KnownRanges(text)
    decoded = [
        decode_range(known.line("x.lance", place) or "", kind) for place, (kind, _) in enumerate(columns.values())
    ]
    assert [values for _, values in columns.values()] == decoded
