"""Verify a table: every version of every branch, every file they name, every name.

A table is checked as it lies in the store, by nobody else's word: what can be read is decoded, and each statement of
a manifest is held against the files and against the other statements. Nothing is written and nothing is given up at
the first problem; what is damaged is described, and the rest is looked at all the same.

The order makes it safe beside writers: the versions are listed first and the folders they name files in afterwards,
so what is committed meanwhile is not missed. What is deleted meanwhile would be: so whatever was found is held against
a second look at the names and versions there are, and forgotten where its version or branch is gone.

A fragment that many versions share is looked at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lance_dagster.changes.check_fragment import Context, RowSpan, check_fragment, check_rows, context_of, row_ids
from lance_dagster.changes.check_manifest import check_indices, check_manifest, check_transaction
from lance_dagster.changes.problems import ERROR, Problem
from lance_dagster.datafiles import FileSummary, Inspector
from lance_dagster.errors import CorruptFileError, FormatError, StoreError, VersionNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.history.resolve import resolve
from lance_dagster.history.versions import State, Versions
from lance_dagster.table.parts import Parts
from lance_dagster.table.verify_files import NamedFile, Places
from lance_dagster.table.verify_refs import Names, check_names, gaps, look

Progress = Callable[[int, int], None]
"""Called with how many steps are done, and how many there are as far as is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What is wrong with a table, and how much of it was looked at.

    Attributes:
        problems: What is wrong, in the order it was found.
        gaps: Versions between others that are not there, such as `main@3 to main@7`. Clean-up leaves them.
        versions: How many versions were looked at.
        branches: Branches, `main` included.
        tags: Tags.
        fragments: Fragments, each that several versions share counted once.
        data_files: Data files, counted in the same way.
        deletion_files: Deletion files.
        index_files: Files of indices.
        files_read: Data files that were opened and read whole.
    """

    problems: tuple[Problem, ...] = ()
    gaps: tuple[str, ...] = ()
    versions: int = 0
    branches: int = 0
    tags: int = 0
    fragments: int = 0
    data_files: int = 0
    deletion_files: int = 0
    index_files: int = 0
    files_read: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return all(problem.severity != ERROR for problem in self.problems)


def verify(parts: Parts, ref: str | None, *, deep: bool, progress: Progress | None) -> VerifyReport:
    """Look at every version, or at the one a ref names.

    Raises:
        NotFoundError: There is no such ref.
    """
    # What this process has read before says nothing about the bytes that are there.
    parts = replace(parts, versions=Versions(parts.store, parts.storage_options))
    check = _Check(parts, deep, progress)
    if ref is not None:
        branch, number = resolve(ref, parts.refs, parts.versions)
        check.branch(branch, (number,))
        report = check.finished()
        return (
            replace(report, problems=tuple(_still_there(report.problems, look(parts)))) if report.problems else report
        )
    names = look(parts)
    check.expect(sum(len(own) for own in names.numbers.values()))
    for branch, own in names.numbers.items():
        check.branch(branch, own)
    if names.numbers.get(layout.MAIN, ())[:1] == [1]:
        check.fields()
    report = check.finished()
    problems = (*check_names(names), *report.problems)
    return replace(
        report,
        problems=tuple(_still_there(problems, look(parts))) if problems else (),
        gaps=gaps(names.numbers),
        branches=len(names.numbers),
        tags=len(names.tags),
    )


def _still_there(problems: Sequence[Problem], names: Names) -> Iterator[Problem]:
    """Yield the problems of names that are still problems, and those of versions that still exist."""
    paths = {problem.path for problem in check_names(names)}
    versions = {f"{branch}@{number}" for branch, numbers in names.numbers.items() for number in numbers}
    listed = names.numbers.keys()
    for problem in problems:
        if not problem.versions:
            if problem.path in paths:
                yield problem
            continue
        left = tuple(name for name in problem.versions if name in versions or name.rpartition("@")[0] not in listed)
        if left:
            yield replace(problem, versions=left)


@dataclass(frozen=True, slots=True)
class _Checked:
    """What came out for a fragment, for every version that has the very same."""

    fragment: Fragment | None
    span: RowSpan | None
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Check:
    """A verification under way."""

    parts: Parts
    deep: bool
    progress: Progress | None
    places: Places = field(init=False)
    _found: dict[Problem, list[str]] = field(default_factory=dict)
    _contexts: list[Context] = field(default_factory=list)
    _checked: dict[tuple[str, int, Fragment | bytes], _Checked] = field(default_factory=dict)
    _overlaps: dict[tuple[tuple[str, int, Fragment | bytes], ...], tuple[Problem, ...]] = field(default_factory=dict)
    _files: dict[str, dict[NamedFile, str]] = field(default_factory=dict)
    _fields: set[int] = field(default_factory=set)
    _origin: Transaction | None = None
    _stored: dict[int, tuple[Problem, str]] = field(default_factory=dict)
    _versions: int = 0
    _total: int = 0
    _read: int = 0

    def __post_init__(self) -> None:
        self.places = Places(self.parts)

    def expect(self, versions: int) -> None:
        self._total = versions

    def problems(self, problems: Iterable[Problem], version: str = "") -> None:
        for problem in problems:
            self._found.setdefault(problem, []).extend([version] if version else [])

    def branch(self, branch: str, numbers: Sequence[int]) -> None:
        before: State | None = None
        for number in numbers:
            state = self._version(branch, number)
            if state is not None and before is not None:
                self.problems(_check_step(before, state), f"{branch}@{number}")
            before = state or before
            self._step(self._versions, max(self._total, self._versions))

    def fields(self) -> None:
        """Look for files of fields that no version has, where the whole history of the table is there to tell."""
        first = self._origin
        if first is not None and not isinstance(first.operation, Clone):
            known = self._fields
            for number, (problem, version) in self._stored.items():
                self.problems([problem] if number >= 0 and number not in known else [], version)

    def finished(self) -> VerifyReport:
        if self.deep:
            with Inspector() as inspector:
                self._read_files(inspector)
        return VerifyReport(
            problems=tuple(replace(problem, versions=tuple(found)) for problem, found in self._found.items()),
            versions=self._versions,
            branches=1,
            fragments=len(self._checked),
            data_files=len(self.places.data_files),
            deletion_files=len(self.places.deletion_files),
            index_files=len(self.places.index_files),
            files_read=self._read,
        )

    def _step(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)

    def _version(self, branch: str, number: int) -> State | None:
        name = f"{branch}@{number}"
        path = self.parts.versions.manifest_path(branch, number)
        self._versions += 1
        try:
            state = self.parts.versions.load(branch, number)
        except VersionNotFoundError:
            # A clean-up was faster; a listing that is right no longer is no problem of the table's.
            self._versions -= 1
            return None
        except (FormatError, StoreError) as error:
            what = error.problem if isinstance(error, CorruptFileError) else str(error)
            self.problems([Problem(what=what, right="a manifest that can be read", path=path)], name)
            return None
        manifest = state.manifest
        if self._origin is None:
            self._origin = state.transaction
        self.problems(check_manifest(manifest, path), name)
        self.problems(check_transaction(state.transaction, manifest, path), name)
        indices, problems = check_indices(manifest, path)
        self.problems(problems, name)
        for index in indices:
            self.problems(self.places.check_index(state, index), name)
        if self.deep:
            self.problems(self.places.check_transaction_file(state), name)
        self._fields.update(own.id for own in manifest.fields)
        self._fragments(state, name, path)
        return state

    def _fragments(self, state: State, name: str, path: str) -> None:
        context = self._context(state.manifest)
        keys = [(state.branch, context, item) for item in state.manifest.fragments.items]
        spans: list[tuple[RowSpan, tuple[str, int, Fragment | bytes]]] = []
        for position, key in enumerate(keys):
            checked = self._checked.get(key)
            if checked is None:
                checked = self._checked[key] = self._fragment(state, position, self._contexts[context])
            self.problems(checked.problems, name)
            if checked.span is not None:
                spans.append((checked.span, key))
        if state.manifest.stable_row_ids:
            self.problems(_check_spans([span for span, _ in spans], state.manifest, path), name)
            for group in _overlapping(spans):
                if group not in self._overlaps:
                    self._overlaps[group] = tuple(self._check_unique(state, group))
                self.problems(self._overlaps[group], name)

    def _context(self, manifest: Manifest) -> int:
        for place in range(len(self._contexts) - 1, -1, -1):
            if self._contexts[place].fits(manifest):
                return place
        self._contexts.append(context_of(manifest))
        return len(self._contexts) - 1

    def _fragment(self, state: State, position: int, context: Context) -> _Checked:
        try:
            fragment = state.manifest.fragments[position]
        except FormatError as error:
            what = error.problem if isinstance(error, CorruptFileError) else str(error)
            problem = Problem(what=what, right=f"fragment number {position + 1} of the version can be read")
            return _Checked(None, None, (problem,))
        problems = [*check_fragment(fragment, context), *self.places.check_fragment(state, fragment)]
        span, wrong = check_rows(fragment, context)
        for named in self.places.named(state, fragment):
            self._files.setdefault(named.uri, {}).setdefault(named, str(state))
            for number in named.file.fields:
                self._stored.setdefault(number, (_never_a_field(number, named), str(state)))
        return _Checked(fragment, span, (*problems, *wrong))

    def _check_unique(self, state: State, group: Sequence[tuple[str, int, Fragment | bytes]]) -> Iterable[Problem]:
        """Compare the ids of the live rows of fragments whose ids lie among each other: rows that were moved do."""
        ids = []
        for key in group:
            fragment = self._checked[key].fragment
            found = None if fragment is None else row_ids(fragment)
            offsets = None if fragment is None else self.places.offsets(state, fragment)
            if isinstance(found, Problem) or found is None or isinstance(offsets, Problem) or offsets is None:
                # Reported as what it is; the ids that are left cannot be told from those that are not.
                return
            inside = [offset for offset in offsets if offset < len(found)]
            ids.append(np.delete(found, np.array(inside, np.int64)))
        everything = np.sort(np.concatenate(ids))
        twice = np.unique(everything[1:][everything[1:] == everything[:-1]])
        if len(twice):
            numbers = sorted(fragment.id for key in group if (fragment := self._checked[key].fragment) is not None)
            shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")  # noqa: PLR2004
            yield Problem(
                what=f"{len(twice)} row ids belong to two rows each, such as {twice[0]}, in fragments {shown}",
                right="a row id belongs to one row",
            )

    def _read_files(self, inspector: Inspector) -> None:
        total = self._versions + len(self._files)
        for done, described in enumerate(self._files.values()):
            try:
                found = self.places.opened(next(iter(described)), inspector)
            except CorruptFileError as error:
                for named, version in described.items():
                    self.problems([_about(named, error.problem, "a whole data file")], version)
            else:
                for named, version in described.items():
                    self.problems(_check_summary(named, found), version)
            self._read += 1
            self._step(self._versions + done + 1, total)


def _check_summary(named: NamedFile, found: FileSummary) -> Iterable[Problem]:
    """Hold what a data file says about itself against what a fragment says."""
    file = named.file
    columns = max(file.column_indices, default=-1) + 1
    own, said = f"{found.major}.{found.minor}", f"{file.major}.{file.minor}"
    if found.rows != named.rows:
        yield _about(named, f"the file has {found.rows} rows", f"the fragment says {named.rows}")
    if found.columns < columns:
        yield _about(named, f"the file has {found.columns} columns", f"the fragment names {columns}")
    if own != said:
        yield _about(named, f"the file is of version {own}", f"the fragment says {said}")


def _about(named: NamedFile, what: str, right: str) -> Problem:
    return Problem(what=what, right=right, path=named.path, fragment=named.fragment)


def _check_spans(spans: Sequence[RowSpan], manifest: Manifest, path: str) -> Iterable[Problem]:
    highest = max((span.high for span in spans), default=-1)
    if highest >= manifest.next_row_id:
        yield Problem(
            what=f"next_row_id is {manifest.next_row_id}",
            right=f"there is a row {highest}, so the next commit would give its id again",
            path=path,
        )
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
        right="files hold fields of the schema, or such as were dropped",
        path=named.path,
        fragment=named.fragment,
        field=number,
    )


def _overlapping(
    spans: list[tuple[RowSpan, tuple[str, int, Fragment | bytes]]],
) -> Iterable[tuple[tuple[str, int, Fragment | bytes], ...]]:
    """Yield groups of fragments whose ids lie among each other."""
    group: list[tuple[str, int, Fragment | bytes]] = []
    high = -1
    for span, key in sorted(spans, key=lambda pair: pair[0].low):
        if span.low > high:
            if len(group) > 1:
                yield tuple(group)
            group = []
        group.append(key)
        high = max(high, span.high)
    if len(group) > 1:
        yield tuple(group)


def _check_step(before: State, state: State) -> Iterable[Problem]:
    """Check what never goes down from one version of a branch to the next."""
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
    theirs, own = before.transaction, state.transaction
    if theirs is not None and own is not None and theirs.uuid == own.uuid and not isinstance(own.operation, Clone):
        yield Problem(what=f"the transaction {own.uuid} made two versions", right="a change is committed once")
