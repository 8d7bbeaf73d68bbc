"""The values from which the script of the page draws, as lists of numbers and texts that JSON can hold.

Everything that occurs often is a place in a list: a page of 5,000 commits has to be opened on a telephone.

    tables    names, those that changed last first
    people    names
    commits   oldest first: [id, seconds, person, message, runs, [[table, version before, version after], ...]]
    channels  [name, [[seconds, action, person, reason, id, place of the commit or -1, runs, moves], ...]], oldest first
    waiting   oldest first: [id, runs, refused, [[table, place of the commit it was forked after or -1, version], ...]]
    growth    for each table [number, seconds, rows] of versions of `main`, oldest first, in one list

A version is its number on `main`, or `branch@number` where it has none, or null where the table did not exist.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pendulum

from lance_dagster.page.lake_facts import LakeFacts, PageCandidate, PageChannel, PageCommit
from lance_dagster.repository.channel_moves import TableMove
from lance_dagster.repository.commits.snapshot import TableVersion

_ID, _MESSAGE = 12, 200


def drawn_values(facts: LakeFacts, dagster_url: str) -> dict[str, Any]:
    """Return the values that the script of the page reads."""
    commits = tuple(reversed(facts.commits))
    names = _Places(table.name for table in facts.tables)
    people = _Places(())
    places = {commit.id: place for place, commit in enumerate(commits)}
    drawn_commits = [_commit(commit, names, people) for commit in commits]
    channels = [_channel(channel, names, people, places) for channel in facts.channels]
    oldest_first = sorted(facts.candidates, key=lambda candidate: candidate.newest or facts.made_at)
    waiting = [_candidate(candidate, names, commits) for candidate in oldest_first]
    growth = [
        [
            number
            for version in table.growth
            for number in (version.number, _seconds(version.committed_at), version.rows)
        ]
        for table in facts.tables
    ]
    return {
        "root": facts.root,
        "made": _seconds(facts.made_at),
        "dagster": dagster_url,
        "commits": drawn_commits,
        "older": facts.has_older,
        "channels": channels,
        "waiting": waiting,
        "growth": growth,
        # Last: a commit may name a table that was removed since, which gets a place behind all others.
        "tables": names.texts,
        "people": people.texts,
    }


class _Places:
    """Texts, each with its place; a text gets a place when it is first asked for."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._places = {text: place for place, text in enumerate(texts)}

    def __getitem__(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    @property
    def texts(self) -> list[str]:
        return list(self._places)


def _commit(commit: PageCommit, names: _Places, people: _Places) -> list[Any]:
    return [
        commit.id[:_ID],
        _seconds(commit.committed_at),
        people[commit.author],
        _first_line(commit.message),
        list(commit.runs),
        _moves(commit.changes, names),
    ]


def _channel(channel: PageChannel, names: _Places, people: _Places, places: dict[str, int]) -> list[Any]:
    moves = [
        [
            _seconds(move.entry.at),
            move.entry.action,
            people[move.entry.by],
            _first_line(move.entry.reason),
            move.entry.commit[:_ID],
            places.get(move.main, -1),
            list(move.runs),
            _moves(move.changes, names),
        ]
        for move in reversed(channel.moves)
    ]
    return [channel.name, moves]


def _candidate(candidate: PageCandidate, names: _Places, commits: Sequence[PageCommit]) -> list[Any]:
    tables = {table.table: table for table in candidate.waiting.tables}
    return [
        candidate.waiting.id,
        list(candidate.waiting.runs),
        candidate.refused,
        [
            [
                names[name],
                _place_of(candidate.forked_from.get(name, ""), name, commits),
                None if table.head is None else str(table.head),
            ]
            for name, table in tables.items()
        ],
    ]


def _place_of(version: str, table: str, commits: Sequence[PageCommit]) -> int:
    """Return the place of the newest commit that a version of `main` of a table contains; -1 where none is shown."""
    number = int(version.removeprefix("main@")) if version.startswith("main@") else 0
    for place in range(len(commits) - 1, -1, -1):
        for move in commits[place].changes:
            if move.name == table and move.after is not None and 0 < move.after.lands <= number:
                return place
    return -1


def _moves(moves: Iterable[TableMove], names: _Places) -> list[Any]:
    return [[names[move.name], _version(move.before), _version(move.after)] for move in moves]


def _version(version: TableVersion | None) -> int | str | None:
    return None if version is None else version.lands or str(version)


def _seconds(time: pendulum.DateTime) -> int:
    return round(time.timestamp())


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _MESSAGE else f"{line[: _MESSAGE - 3]}..."
