"""How far the branches and tags of a table are ahead of `main` and behind it."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lance_dagster.errors import InvalidInputError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import SQUASHED_PREFIX
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import AheadBehind, Lineage, lineage_of
from lance_dagster.history.refs.ref_store import READY, Branch, Tag
from lance_dagster.history.versions import State, Version

_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RefStatus:
    """A branch or tag beside `main`: `ahead` and `behind` count the versions that only it, or only `main`, contains.

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
    """The newest version of `main`, and how the branches and tags compare with it."""

    main: Version
    branches: tuple[RefStatus, ...]
    tags: tuple[RefStatus, ...]


def status_of(context: TableContext) -> TableStatus:
    """Compare every branch and tag with `main`; versions are counted by the names of their files."""
    refs, versions = context.refs, context.versions
    main, branches = versions.head(MAIN), refs.branches()
    distances = AheadBehind(branches, versions)
    survey = _Survey(context, lineage_of(main, refs), branches, distances)
    ready = sorted(name for name, branch in branches.items() if branch.state == READY)
    with ThreadPoolExecutor(_READERS) as pool:
        heads = list(pool.map(survey.head, ready))
    tags = sorted(refs.tags().values(), key=_name)
    return TableStatus(
        main=versions.describe(main),
        branches=tuple(survey.status(name, found) for name, found in zip(ready, heads, strict=True)),
        tags=tuple(survey.status(tag.name, survey.version(tag.branch, tag.version)) for tag in tags),
    )


@dataclass(frozen=True, slots=True)
class _Survey:
    context: TableContext
    main: Lineage
    branches: Mapping[str, Branch]
    distances: AheadBehind

    def head(self, branch: str) -> Lineage | None:
        """Return the newest version of a branch, or None when it has none."""
        numbers = self.distances.numbers(branch)
        return self.version(branch, numbers[-1]) if numbers else None

    def version(self, branch: str, number: int) -> Lineage | None:
        """Return a version, or None when it is gone, or where it came from."""
        try:
            return lineage_of(self.context.versions.load(branch, number), self.context.refs)
        except (NotFoundError, InvalidInputError):
            return None

    def status(self, name: str, found: Lineage | None) -> RefStatus:
        """Compare a version with `main`."""
        if found is None:
            return RefStatus(name=name, version=None)
        return RefStatus(
            name=name,
            version=str(found.state),
            rows=found.state.manifest.rows,
            ahead=self.distances.ahead(found, self.main),
            behind=self.distances.ahead(self.main, found),
            squashed=_squashed(self.main.state, self.branches.get(found.state.branch), found.state),
        )


def _name(tag: Tag) -> str:
    return tag.name


def _squashed(main: State, branch: Branch | None, state: State) -> bool:
    """Tell whether a version came to `main` by a squash, and not only an older one of its branch."""
    if branch is None:
        return False
    name, _, number = main.manifest.table_metadata.get(f"{SQUASHED_PREFIX}{branch.id}", "").rpartition("@")
    # A branch that came with another one is named by that.
    return name == branch.name and number.isdecimal() and int(number) >= state.number
