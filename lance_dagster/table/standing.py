"""Where branches and tags stand: the methods of a table that compare names with `main`."""

from dataclasses import dataclass

from lance_dagster.errors import InvalidInputError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import SQUASHED_PREFIX
from lance_dagster.history.lineage import lineage_of
from lance_dagster.history.refs import READY, Branch, Tag
from lance_dagster.history.standing import Distances
from lance_dagster.history.versions import State, Version
from lance_dagster.table.facade import Facade


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a branch or tag stands: `ahead` and `behind` count the versions that only it, or only `main`, contains.

    `version` is None, and nothing is counted, when the version cannot be found. `squashed` says that its changes came
    to `main` by a merge that does not count as one.
    """

    name: str
    version: str | None
    rows: int = 0
    ahead: int = 0
    behind: int = 0
    squashed: bool = False

    @property
    def merged(self) -> bool:
        """Whether `main` has everything it has."""
        return self.version is not None and (self.squashed or self.ahead == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The newest version of `main`, and where the branches and tags stand."""

    main: Version
    branches: tuple[Standing, ...]
    tags: tuple[Standing, ...]


class Surveying(Facade):
    """Versions are counted by the names of their files."""

    def ahead_behind(self, one: str, other: str = MAIN) -> tuple[int, int]:
        """Return how many versions only `one` contains, and how many only `other` does."""
        refs = self._parts.refs
        mine, theirs = (lineage_of(self._parts.at(ref), refs) for ref in (one, other))
        distances = Distances(refs.branches(), self._parts.versions)
        return distances.ahead(mine, theirs), distances.ahead(theirs, mine)

    def status(self) -> TableStatus:
        """Say where every branch and tag stands beside `main`.

        One version is read for each, and the names of the versions of each branch.
        """
        refs, versions = self._parts.refs, self._parts.versions
        main, branches = versions.head(MAIN), refs.branches()
        dest, distances = lineage_of(main, refs), Distances(branches, versions)

        def standing(name: str, branch: str, number: int | None) -> Standing:
            try:
                state = versions.head(branch) if number is None else versions.load(branch, number)
                source = lineage_of(state, refs)
            except (NotFoundError, InvalidInputError):
                return Standing(name=name, version=None)
            return Standing(
                name=name,
                version=str(state),
                rows=state.manifest.rows,
                ahead=distances.ahead(source, dest),
                behind=distances.ahead(dest, source),
                squashed=_squashed(main, branches.get(branch), state),
            )

        ready = sorted(name for name, branch in branches.items() if branch.state == READY)
        tags = sorted(refs.tags().values(), key=_name)
        return TableStatus(
            main=self._described(main),
            branches=tuple(standing(name, name, None) for name in ready),
            tags=tuple(standing(tag.name, tag.branch, tag.version) for tag in tags),
        )


def _name(tag: Tag) -> str:
    return tag.name


def _squashed(main: State, branch: Branch | None, state: State) -> bool:
    """Tell whether a version came to `main` by a squash, and not only an older one of its branch."""
    if branch is None:
        return False
    record = main.manifest.table_metadata.get(f"{SQUASHED_PREFIX}{branch.id}", "")
    number = record.rpartition("@")[2]
    return number.isdecimal() and int(number) >= state.number
