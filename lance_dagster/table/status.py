"""Count the versions by which the branches and tags of a table are ahead of `main` and behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lance_dagster.errors import InvalidInputError, NotFoundError, counted
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import SQUASHED_PREFIX
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import AheadBehind, Lineage, lineage_of
from lance_dagster.history.refs.ref_files import READY, Branch
from lance_dagster.history.versions import State, Version
from lance_dagster.store import concurrently


@dataclass(frozen=True, slots=True, kw_only=True)
class RefStatus:
    """A branch or tag compared with `main`.

    `ahead` is the number of versions that only the ref contains, `behind` the number that only `main` contains. When
    the version was removed, `version` is None and the counts are 0. `squashed` says whether its changes reached `main`
    by a squash merge, which records no second parent. `held` says who holds a tag and why; None when it is not held.
    """

    name: str
    version: str | None
    rows: int = 0
    ahead: int = 0
    behind: int = 0
    squashed: bool = False
    held: str | None = None

    @property
    def merged(self) -> bool:
        """Whether `main` contains all changes of the ref."""
        return self.version is not None and (self.squashed or self.ahead == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The newest version of `main`, and how the branches and tags compare with it."""

    main: Version
    branches: tuple[RefStatus, ...]
    tags: tuple[RefStatus, ...]

    def __str__(self) -> str:
        """Return a line for `main`, and one for each branch and tag, in columns."""
        named = [*(("branch", ref) for ref in self.branches), *(("tag", ref) for ref in self.tags)]
        cells = [(kind, ref.name, ref.version or "gone", counted(ref.rows, "row")) for kind, ref in named]
        widths = [max((len(row[column]) for row in cells), default=0) for column in (1, 2, 3)]
        lines = [
            f"{kind:6} {name:{widths[0]}}  {version:{widths[1]}}  {count:{widths[2]}}  "
            f"{ref.ahead} ahead, {ref.behind} behind"
            for (kind, name, version, count), (_, ref) in zip(cells, named, strict=True)
        ]
        return "\n".join([f"{self.main}: {counted(self.main.rows, 'row')}", *lines])


def status_of(context: TableContext) -> TableStatus:
    """Compare every branch and tag with `main`; versions are counted from file names."""
    refs, versions = context.refs, context.versions
    main, branches = versions.head(MAIN), refs.branches.all()
    distances = AheadBehind(branches, versions)
    survey = _Survey(context, lineage_of(main, refs), branches, distances)
    # A branch that is being created or deleted may have no versions.
    ready = sorted(name for name, branch in branches.items() if branch.state == READY)
    heads = concurrently(survey.head, ready)
    tags = sorted(refs.tags.all().values(), key=lambda tag: tag.name)
    return TableStatus(
        main=versions.describe(main),
        branches=tuple(survey.status(name, lineage) for name, lineage in zip(ready, heads, strict=True)),
        tags=tuple(
            replace(
                survey.status(tag.name, survey.version(tag.branch, tag.version)),
                held=None if tag.hold is None else str(tag.hold),
            )
            for tag in tags
        ),
    )


@dataclass(frozen=True, slots=True)
class _Survey:
    """The lineage of `main` and the branches, against which each ref is compared."""

    context: TableContext
    main: Lineage
    branches: Mapping[str, Branch]
    distances: AheadBehind

    def head(self, branch: str) -> Lineage | None:
        """Return the newest version of a branch, or None when it has none."""
        # The names are listed already for the counts, so the newest name costs no further request.
        numbers = self.distances.numbers(branch)
        return self.version(branch, numbers[-1]) if numbers else None

    def version(self, branch: str, number: int) -> Lineage | None:
        """Return the lineage of a version, or None when the version or an ancestor it needs was removed."""
        try:
            return lineage_of(self.context.versions.load(branch, number), self.context.refs)
        except (NotFoundError, InvalidInputError):
            # A damaged ref must not hide the status of all other refs.
            return None

    def status(self, name: str, lineage: Lineage | None) -> RefStatus:
        """Compare the version of a ref with `main`."""
        if lineage is None:
            return RefStatus(name=name, version=None)
        return RefStatus(
            name=name,
            version=str(lineage.state),
            rows=lineage.state.manifest.rows,
            ahead=self.distances.ahead(lineage, self.main),
            behind=self.distances.ahead(self.main, lineage),
            squashed=_squashed(self.main.state, self.branches.get(lineage.state.branch), lineage.state),
        )


def _squashed(main: State, branch: Branch | None, state: State) -> bool:
    """Return whether a squash merge into `main` contained this version, and not only an older version of its branch."""
    if branch is None:
        return False
    name, _, number = main.manifest.table_metadata.get(f"{SQUASHED_PREFIX}{branch.id}", "").rpartition("@")
    # The record is looked up by branch id and compared by name: if the branch was merged through another branch, the
    # record names that branch.
    return name == branch.name and number.isdecimal() and int(number) >= state.number
