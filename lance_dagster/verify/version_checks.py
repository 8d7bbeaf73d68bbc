"""Checks of single versions, against their files and against the version before.

Versions of one branch share most of their fragments, so each distinct fragment is checked once and its result is
reported for every version that has it. Two fragments are the same when their encoded bytes, their branch and the
context of their version are equal (`FragmentContext`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_dagster.datafiles import DataFileInspector
from lance_dagster.errors import CorruptFileError, FormatError, StoreError, VersionNotFoundError, counted
from lance_dagster.format.codec import DataFileShape
from lance_dagster.format.model import Fragment, Manifest, file_version_name
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.format.value_ranges import blocks_of, digest_of_name, untrue_ranges
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.verify.file_checks import FileChecks, NamedFile
from lance_dagster.verify.fork_checks import NamedVersion, named_version
from lance_dagster.verify.fragment_rules import (
    FragmentContext,
    RowSpan,
    check_fragment,
    check_rows,
    fragment_context,
    row_ids,
)
from lance_dagster.verify.manifest_rules import Problem, check_indices, check_manifest, check_transaction, problem_of

Progress = Callable[[int, int], None]
"""Called with the number of steps that are done, and the number of all steps as far as it is known."""
_Key = tuple[str, int, Fragment | bytes]
"""Identifies a fragment: its branch, the number of its context, and its encoded bytes."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """The result of checking a fragment, for every version that has it."""

    fragment: Fragment | None
    span: RowSpan | None
    problems: tuple[Problem, ...]
    runs: list[range] = field(default_factory=list)
    """The versions that have the fragment, by their positions in `Verification._names`."""


@dataclass(slots=True)
class Verification:
    """A verification in progress: the problems found so far, and what has been checked."""

    context: TableContext
    deep: bool
    progress: Progress | None
    places: FileChecks = field(init=False)
    remembered: frozenset[tuple[str, int]] = frozenset()
    """The versions whose facts `named` keeps, by branch and number."""
    named: dict[tuple[str, int], NamedVersion] = field(default_factory=dict)
    _versions_by_problem: dict[Problem, list[str]] = field(default_factory=dict)
    _contexts: list[FragmentContext] = field(default_factory=list)
    _checked: dict[_Key, _Checked] = field(default_factory=dict)
    _overlaps: dict[tuple[_Key, ...], tuple[Problem, ...]] = field(default_factory=dict)
    # The fragments that describe a data file, by its URI. Versions are looked up there when the file is damaged: a list
    # of them for each file would take more memory than everything else.
    _files: dict[str, dict[NamedFile, list[_Checked]]] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _fields: set[int] = field(default_factory=set)
    _origin: Transaction | None = None
    _stored: dict[int, tuple[Problem, str]] = field(default_factory=dict)
    # By the digest of a data file, the blocks that versions record of it, each with a version.
    _ranges: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: int = 0
    files_read: int = 0
    digests_compared: int = 0
    without_digest: int = 0
    _done: int = 0
    _total: int = 0

    def __post_init__(self) -> None:
        self.places = FileChecks(self.context)

    def expect(self, versions: int) -> None:
        """Set the number of versions, for the progress callback."""
        self._total = versions

    def problems(self, problems: Iterable[Problem], version: str) -> None:
        """Add problems of a version; an equal problem of another version is merged with them."""
        for problem in problems:
            names = self._versions_by_problem.setdefault(problem, [])
            # Versions come in order, so only the last one can be the same.
            if version not in names[-1:]:
                names.append(version)

    def branch(self, branch: str, numbers: Sequence[int]) -> None:
        """Check versions of a branch, oldest first."""
        before: State | None = None
        for number in numbers:
            state = self._version(branch, number)
            if state is not None and before is not None:
                self.problems(_check_step(before, state), f"{branch}@{number}")
            # After an unreadable version the comparison goes on with the last readable version.
            before = state or before
            self._step()

    def fields(self) -> None:
        """Report fields in data files that no version ever had; needs the whole history, from the first version on."""
        first = self._origin
        if first is not None and not isinstance(first.operation, Clone):
            field_ids = self._fields
            for number, (problem, version) in self._stored.items():
                self.problems([problem] if number >= 0 and number not in field_ids else [], version)

    def read_files(self) -> None:
        """Read every data and index file that a version names, each once."""
        self._total = self._done + len(self._files) + len(self.places.index_files)
        with DataFileInspector() as inspector:
            for path, file in self.places.index_files.items():
                for problem in self.places.read_index_file(path, inspector):
                    for name in file.versions:
                        self.problems([problem], name)
                self._step()
            for described in self._files.values():
                self._read_file(described, inspector)
                self._check_digests(described)
                self.files_read += 1
                self._step()

    @property
    def fragments(self) -> int:
        """The number of distinct fragments that were checked."""
        return len(self._checked)

    @property
    def reported(self) -> tuple[Problem, ...]:
        """The problems, each with the versions that have it."""
        return tuple(replace(problem, versions=tuple(names)) for problem, names in self._versions_by_problem.items())

    def _step(self) -> None:
        self._done += 1
        if self.progress is not None:
            self.progress(self._done, max(self._total, self._done))

    def _version(self, branch: str, number: int) -> State | None:
        name = f"{branch}@{number}"
        path = self.context.versions.manifest_path(branch, number)
        try:
            state = self.context.versions.load(branch, number)
        except VersionNotFoundError:
            # It was cleaned up since it was listed, which is not a problem of the table.
            return None
        except (FormatError, StoreError) as error:
            self.problems([Problem(what=problem_of(error), right="every manifest can be read", path=path)], name)
            self.versions += 1
            return None
        self.versions += 1
        manifest = state.manifest
        if self._origin is None:
            # This is the first version that is read: a clone has fields from another table.
            self._origin = state.transaction
        self.problems(check_manifest(manifest, path), name)
        self.problems(self.places.check_bases(state), name)
        self.problems(check_transaction(state.transaction, manifest, path), name)
        indices, problems = check_indices(manifest, path)
        self.problems(problems, name)
        for index in indices:
            self.problems(self.places.check_index(state, index), name)
        if self.deep:
            self.problems(self.places.check_transaction_file(state), name)
        self._fields.update(own.id for own in manifest.fields)
        if self.deep:
            # Versions share almost all blocks, and each is kept with the first version that has it.
            for digest, block in blocks_of(manifest.ranges).items():
                self._ranges.setdefault(digest, {}).setdefault(block, name)
        self._fragments(state, name, path)
        return state

    def _fragments(self, state: State, name: str, path: str) -> None:
        # Versions share almost all fragments, and equal bytes in an equal context have the same problems. The branch is
        # part of the key: a file without a base id lies in the folder of its branch.
        context = self._context(state.manifest)
        keys = [(state.branch, context, item) for item in state.manifest.fragments.items]
        version = len(self._names)
        self._names.append(name)
        spans: list[tuple[RowSpan, _Key]] = []
        for position, key in enumerate(keys):
            checked = self._checked.get(key)
            if checked is None:
                checked = self._checked[key] = self._fragment(state, position, self._contexts[context])
            self.problems(checked.problems, name)
            _extend(checked.runs, version)
            if checked.span is not None:
                spans.append((checked.span, key))
        if (state.branch, state.number) in self.remembered:
            fragments = (self._checked[key].fragment for key in keys)
            self.named[state.branch, state.number] = named_version(state, fragments)
        # Without stable row ids there are no ids that could collide.
        if state.manifest.stable_row_ids:
            self.problems(_check_spans([span for span, _ in spans], state.manifest, path), name)
            for group in _overlapping(spans):
                # The same group appears in every version that shares these fragments.
                if group not in self._overlaps:
                    self._overlaps[group] = tuple(self._check_unique(state, group))
                self.problems(self._overlaps[group], name)

    def _context(self, manifest: Manifest) -> int:
        # The search goes backwards: the context of the version before is the most likely match.
        for place in range(len(self._contexts) - 1, -1, -1):
            if self._contexts[place].fits(manifest):
                return place
        self._contexts.append(fragment_context(manifest))
        return len(self._contexts) - 1

    def _fragment(self, state: State, position: int, context: FragmentContext) -> _Checked:
        try:
            fragment = state.manifest.fragments[position]
        except FormatError as error:
            problem = Problem(
                what=problem_of(error), right=f"fragment number {position + 1} of the version can be read"
            )
            return _Checked(None, None, (problem,))
        problems = [*check_fragment(fragment, context), *self.places.check_fragment(state, fragment)]
        span, wrong = check_rows(fragment, context)
        checked = _Checked(fragment, span, (*problems, *wrong))
        for named in self.places.named(state, fragment):
            self._files.setdefault(named.uri, {}).setdefault(named, []).append(checked)
            # The problem is kept until all versions are read: a version read later may have the field.
            for number in named.file.fields:
                self._stored.setdefault(number, (_never_a_field(number, named), str(state)))
        return checked

    def _check_unique(self, state: State, group: Sequence[_Key]) -> Iterable[Problem]:
        """Check that no row id is live twice, in a group of fragments whose id ranges overlap."""
        ids = []
        for key in group:
            fragment = self._checked[key].fragment
            ids_of_fragment = None if fragment is None else row_ids(fragment)
            offsets = None if fragment is None else self.places.offsets(state, fragment)
            if (
                isinstance(ids_of_fragment, Problem)
                or ids_of_fragment is None
                or isinstance(offsets, Problem)
                or offsets is None
            ):
                # Another check reports the damaged file. Without its offsets, live ids are unknown.
                return
            # Another check reports deleted offsets beyond the fragment.
            ids.append(ids_of_fragment.restricted(ids_of_fragment.positions - offsets) if offsets else ids_of_fragment)
        # An updated row is in two fragments under one id, deleted in the older fragment: so only live ids are compared.
        twice = RowRuns.concatenated(ids).repeated()
        if len(twice):
            numbers = sorted(fragment.id for key in group if (fragment := self._checked[key].fragment) is not None)
            shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")  # noqa: PLR2004
            yield Problem(
                what=f"{twice.rows} row ids belong to two rows each, such as {twice.smallest}, in fragments {shown}",
                right="a row id belongs to one row",
            )

    def _read_file(self, described: Mapping[NamedFile, Sequence[_Checked]], inspector: DataFileInspector) -> None:
        try:
            # One look at the file serves every fragment that describes it.
            first = next(iter(described))
            has_ranges = digest_of_name(first.file.path) in self._ranges
            shape = self.places.opened(first, inspector, ranges=has_ranges)
        except CorruptFileError as error:
            for named, fragments in described.items():
                self._file_problems([_about(named, error.problem, "every data file can be decoded")], fragments)
        except StoreError as error:
            # A right to read may be missing for this file alone.
            for named, fragments in described.items():
                unreadable = _about(named, f"it cannot be read: {error}", "a file that can be read")
                self._file_problems([unreadable], fragments)
        else:
            for named, fragments in described.items():
                self._file_problems(_check_summary(named, shape), fragments)
            if shape.ranges is not None:
                self._check_ranges(first, shape.ranges)

    def _check_ranges(self, named: NamedFile, actual: str) -> None:
        """Compare the values of a data file with the ranges that versions record, by which searches leave files out."""
        for block, version in self._ranges.get(digest_of_name(named.file.path), {}).items():
            for line in untrue_ranges(block, actual):
                what = f"values are outside of the recorded range {line}"
                right = "searches rely on it; a commit that writes the rows anew records the right range"
                self.problems([_about(named, what, right)], version)

    def _check_digests(self, described: Mapping[NamedFile, Sequence[_Checked]]) -> None:
        try:
            digest_check = self.places.check_digests(next(iter(described)))
        except StoreError as error:
            for named, fragments in described.items():
                unreadable = _about(named, f"it cannot be read: {error}", "a file that can be read")
                self._file_problems([unreadable], fragments)
            return
        for named, fragments in described.items():
            self._file_problems(
                [replace(problem, fragment=named.fragment) for problem in digest_check.problems], fragments
            )
        self.digests_compared += digest_check.compared
        self.without_digest += digest_check.without

    def _file_problems(self, problems: Iterable[Problem], fragments: Sequence[_Checked]) -> None:
        """Add problems of a data file for every version that has one of the fragments."""
        for problem in problems:
            for position in sorted({position for checked in fragments for run in checked.runs for position in run}):
                self.problems([problem], self._names[position])


def _extend(runs: list[range], position: int) -> None:
    """Add the position of a version to runs of consecutive positions; positions come in order."""
    if runs and runs[-1].stop == position:
        runs[-1] = range(runs[-1].start, position + 1)
    else:
        runs.append(range(position, position + 1))


def _check_summary(named: NamedFile, shape: DataFileShape) -> Iterable[Problem]:
    """Compare the facts that a data file records about itself with the facts that a fragment records."""
    file = named.file
    columns = max(file.column_indices, default=-1) + 1
    own, recorded = file_version_name(shape.major, shape.minor), file.version
    if shape.rows != named.rows:
        yield _about(named, f"the file has {counted(shape.rows, 'row')}", f"the fragment says {named.rows}")
    if shape.columns < columns:
        yield _about(named, f"the file has {counted(shape.columns, 'column')}", f"the fragment names {columns}")
    if own != recorded:
        yield _about(named, f"the file is of version {own}", f"the fragment says {recorded}")


def _about(named: NamedFile, what: str, right: str) -> Problem:
    return Problem(what=what, right=right, path=named.path, fragment=named.fragment)


def _check_spans(spans: Sequence[RowSpan], manifest: Manifest, path: str) -> Iterable[Problem]:
    highest = max((span.high for span in spans), default=-1)
    if highest >= manifest.next_row_id:
        yield Problem(
            what=f"next_row_id is {manifest.next_row_id}",
            right=f"there is a row {highest}, so the next commit would assign its id again",
            path=path,
        )
    # Row versions are numbers of versions of this branch, so a number above the version itself is damage.
    newest = max((span.newest for span in spans), default=0)
    if newest > manifest.version:
        yield Problem(
            what=f"a row is said to be changed at version {newest}",
            right=f"this is version {manifest.version}",
            path=path,
        )


def _never_a_field(number: int, named: NamedFile) -> Problem:
    return Problem(
        what="the file is said to hold a field that no version of the table has had",
        right="files hold fields of the schema, or fields that were dropped",
        path=named.path,
        fragment=named.fragment,
        field=number,
    )


def _overlapping(
    spans: list[tuple[RowSpan, _Key]],
) -> Iterable[tuple[_Key, ...]]:
    """Yield groups of fragments whose ranges of row ids overlap."""
    group: list[_Key] = []
    high = -1
    for span, key in sorted(spans, key=lambda pair: pair[0].low):
        # Ranges are visited by their lower end, so a gap ends the group.
        if span.low > high:
            if len(group) > 1:
                yield tuple(group)
            group = []
        group.append(key)
        high = max(high, span.high)
    if len(group) > 1:
        yield tuple(group)


def _check_step(before: State, state: State) -> Iterable[Problem]:
    """Check the counters that never decrease from one version of a branch to the next."""
    counters = (
        ("max_fragment_id", before.manifest.max_fragment_id or 0, state.manifest.max_fragment_id or 0),
        ("next_row_id", before.manifest.next_row_id, state.manifest.next_row_id),
    )
    for name, earlier, later in counters:
        if later < earlier:
            yield Problem(
                what=f"{name} went down from {earlier} to {later}",
                right="ids that were given are not given again",
            )
    earlier_change, change = before.transaction, state.transaction
    same = earlier_change is not None and change is not None and earlier_change.uuid == change.uuid
    if same and change is not None and not isinstance(change.operation, Clone):
        yield Problem(what=f"the transaction {change.uuid} made two versions", right="a change is committed once")
