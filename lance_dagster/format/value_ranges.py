r"""The bounds of the values of a column in a data file, as text in the table metadata of a manifest. Pure.

A manifest records between which values the values of some columns of its data files lie, so that a search for rows
opens only the data files that may have them. The record is about the bytes of one data file, which never change: it
names the file by a digest of its name, and a column by its position in the file. So it stays true when rows are
deleted, when the fragment gets another id, on another branch, and when columns are renamed, numbered anew or added in
files of their own. Where another program writes the values of a column anew, the fragment names another file for the
column, which the record is not about: nothing is known then, and the fragment is searched.

Bounds may be wider than the values. Types whose order or equality differs between programs have none: floats (NaN, and
zeros with a sign), decimals, binary values, and everything nested.

Every commit writes the bounds of all data files, so the text is short. Example: the block
`fA5axLHSD5M\n0 s="d3"\n1 i64?5,900` says of the file with this digest that its first column has only the text `d3`,
and its second column integers from 5 to 900, and perhaps nulls. `2 d?` says that the third column, of dates, has only
nulls. An empty line stands between two blocks. A line `~Hwx5sm4D0pE` names the partition that the rows were written
for, so that a compaction does not mix partitions.
"""

import json
import re
from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

RANGES = "lance_dagster.ranges"
"""The key of the ranges in the table metadata."""
MOST_TEXT = 64
"""A text longer than this is no bound: every commit writes the bounds of all fragments."""
INTEGERS: Mapping[str, tuple[int, int]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
"""The smallest and the largest value of each type of integers."""
TEXTS = frozenset({"string", "large_string"})
BOOL = "bool"
DATE = "date32:day"
TIMESTAMP = "timestamp:"
Bound = int | str
_SEPARATOR = "\n\n"
_DIGEST = 11
"""The length of a digest: 64 bits."""
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_FEW = 8
_NO_NULLS, _NULLS = "=", "?"
_LINE = re.compile(r"([0-9]+) ([^=?]+)([=?])(.*)")
_POSITION = re.compile(r"^([0-9]+) ", re.MULTILINE)
_SCOPE = "~"
_SCOPE_LINE = re.compile(rf"^{_SCOPE}([\w-]{{{_DIGEST}}})$", re.MULTILINE)
_CODES: Mapping[str, str] = {
    **{name: name.replace("uint", "u").replace("int", "i") for name in INTEGERS},
    "string": "s",
    "large_string": "S",
    BOOL: "b",
    DATE: "d",
}
"""Short names of the types that most columns have; any other type stands as it is."""
_TEXT_CODES = frozenset(_CODES[name] for name in TEXTS)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The bounds of the values of a column, both included.

    Attributes:
        has_nulls: Whether there may be nulls.
        lower: No value is smaller; dates and timestamps are numbers of their unit since 1970. None where every value is
            null.
        upper: No value is larger.
    """

    has_nulls: bool
    lower: Bound | None
    upper: Bound | None


def value_type(logical_type: str) -> str:
    """Return the logical type of the values of a column: those of its dictionary where it has one."""
    kind, _, parameters = logical_type.partition(":")
    return parameters.partition(":")[0] if kind == "dict" else logical_type


def encode_range(column: str, logical_type: str, values: ValueRange) -> str:
    """Return a line of the text of a column, which begins with the name of the column as a JSON string."""
    bounds = [] if values.lower is None else list(dict.fromkeys((values.lower, values.upper)))
    # A line break in a text is escaped, so that lines stay lines.
    encoded = json.dumps(bounds, separators=(",", ":"), ensure_ascii=False)[1:-1]
    code, nulls = _CODES.get(logical_type, logical_type), _NULLS if values.has_nulls else _NO_NULLS
    return f"{json.dumps(column, ensure_ascii=False)} {code}{nulls}{encoded}"


def file_ranges(path: str, lines: str, positions: Mapping[str, int]) -> str:
    """Return the block of a data file; empty where nothing is known.

    Args:
        path: The name of the data file.
        lines: The ranges, by the names of the columns.
        positions: The positions of the columns in the data file, by their names.
    """
    # Not by `splitlines`, which knows more line breaks than JSON escapes.
    named = ((line, *_DECODER.raw_decode(line)) for line in filter(None, lines.split("\n")))
    numbered = [f"{positions[name]}{line[end:]}" for line, name, end in named if name in positions]
    return "\n".join([digest_of_name(path), *numbered]) if numbered else ""


def scope_of(partitions: Iterable[str]) -> str:
    """Return the name of the rows of some partitions."""
    return _digest(json.dumps(sorted(partitions)))


def with_scope(block: str, path: str, scope: str | None) -> str:
    """Return the block of a data file that says which scope its rows were written for; no range follows from it."""
    return block if scope is None else f"{block or digest_of_name(path)}\n{_SCOPE}{scope}"


def united(*texts: str) -> str:
    """Return the blocks of several texts, each block once."""
    filled = [text for text in texts if text]
    few = len(filled) <= _FEW
    if few and filled and not any(text[:_DIGEST] in filled[0] or _SEPARATOR in text for text in filled[1:]):
        # New files, as nearly always: a manifest may have very many blocks, which need not be taken apart.
        return _SEPARATOR.join(dict.fromkeys(filled))
    return _SEPARATOR.join(dict.fromkeys(block for text in filled for block in text.split(_SEPARATOR)))


def of_files(ranges: str, paths: Iterable[str]) -> str:
    """Return the blocks of some data files."""
    digests = frozenset(map(digest_of_name, paths))
    return _SEPARATOR.join(block for block in ranges.split(_SEPARATOR) if block[:_DIGEST] in digests)


def blocks_of(ranges: str) -> dict[str, str]:
    """Return the blocks of a text, by the digests of their data files."""
    return {block[:_DIGEST]: block for block in ranges.split(_SEPARATOR)} if ranges else {}


def count_blocks(ranges: str) -> int:
    """Return how many data files have a block."""
    return ranges.count(_SEPARATOR) + 1 if ranges else 0


def untrue_ranges(recorded: str, actual: str) -> list[str]:
    """Return the columns of a block by which values lie outside of their recorded range, as text.

    Args:
        recorded: A block of a data file.
        actual: The block of the values in the file.
    """
    lines = {line.partition(" ")[0]: line for line in actual.split("\n")[1:]}
    return [line for line in recorded.split("\n")[1:] if not _is_true(line, lines)]


def _is_true(line: str, actual_lines: Mapping[str, str]) -> bool:
    parts = _LINE.fullmatch(line)
    recorded = None if parts is None else _decode(line, parts[2])
    # A line of another release, or a damaged line, decides nothing.
    if parts is None or recorded is None:
        return True
    actual = _decode(actual_lines.get(parts[1], ""), parts[2])
    if actual is None or (actual.has_nulls and not recorded.has_nulls):
        return False
    if actual.lower is None or actual.upper is None:
        return True
    # Bounds of one type.
    within: Any = recorded
    return recorded.lower is not None and within.lower <= actual.lower and actual.upper <= within.upper


def ranged_positions(ranges: str, path: str) -> frozenset[int]:
    """Return the positions of the columns of a data file that have a range; fast for the newest files."""
    start = ranges.rfind(digest_of_name(path))
    block = "" if start < 0 else ranges[start:].partition(_SEPARATOR)[0]
    return frozenset(int(found) for found in _POSITION.findall(block))


class KnownRanges:
    """The known ranges of the columns of data files, by the name of the file and the position of the column."""

    def __init__(self, ranges: str) -> None:
        """Take the blocks of a manifest apart."""
        self._blocks = blocks_of(ranges)

    def scope(self, path: str) -> str | None:
        """Return the scope that the rows of a data file were written for; None where it is unknown."""
        line = _SCOPE_LINE.search(self._blocks.get(digest_of_name(path), ""))
        return None if line is None else line[1]

    def line(self, path: str, position: int) -> str | None:
        """Return the line of a column; None where nothing is known."""
        block = self._blocks.get(digest_of_name(path))
        start = -1 if block is None else block.find(f"\n{position} ")
        if block is None or start < 0:
            return None
        end = block.find("\n", start + 1)
        return block[start + 1 :] if end < 0 else block[start + 1 : end]


@lru_cache(maxsize=65_536)
def decode_range(line: str, logical_type: str) -> ValueRange | None:
    """Return a range; None where its text is of another release or about another type."""
    return _decode(line, _CODES.get(logical_type, logical_type))


def _decode(line: str, code: str) -> ValueRange | None:
    parts = _LINE.fullmatch(line)
    if parts is None or parts[2] != code:
        return None
    try:
        bounds = json.loads(f"[{parts[4]}]")
    except (ValueError, RecursionError):
        return None
    has_nulls, kind = parts[3] == _NULLS, str if code in _TEXT_CODES else int
    if not bounds and has_nulls:
        return ValueRange(has_nulls=True, lower=None, upper=None)
    if len(bounds) not in (1, 2) or any(type(bound) is not kind for bound in bounds) or bounds[0] > bounds[-1]:
        return None
    return ValueRange(has_nulls, bounds[0], bounds[-1])


def digest_of_name(path: str) -> str:
    """Return the digest by which a block names a data file."""
    return _digest(path)


def _digest(text: str) -> str:
    # The functions of `base64` take twice as long, and a search computes a digest for each fragment.
    encoded = b2a_base64(blake2b(text.encode(), digest_size=8).digest())
    return encoded.translate(_URL_SAFE)[:_DIGEST].decode()
