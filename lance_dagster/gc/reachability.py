"""Find the versions that somebody requires, and the files that versions name.

Versions are required by refs (tags, fork points) and by merges that may come: a merge of two branches reads their
merge base and everything either side did since. Clean-up that removed such a version would turn a possible
merge into a refusal. So the rules here follow what `history.lineage` reads, for every pair of branches, without
looking at pairs one by one.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import islice

from lance_dagster.errors import InvalidInputError
from lance_dagster.format import layout
from lance_dagster.format.model import BasePath, Fragment, Fragments, Manifest
from lance_dagster.history.lineage import Lineage, lineage_of, merge_records_of
from lance_dagster.history.refs.ref_files import DELETING, Branch, Tag
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.refs.tag_operations import recorded_versions
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import canonical_uri
from lance_dagster.transactions.base_paths import FileReferences, file_references
from lance_dagster.verify.manifest_rules import WARNING, Problem

_SHOWN = 3
_VERSION = re.compile(r"(?:^|[^\w./@-])([A-Za-z0-9][A-Za-z0-9._/-]*)@(\d{1,20})(?!\w)")


@dataclass(slots=True)
class RequiredVersions:
    """The versions that are required, and the problems found on the way.

    Attributes:
        reasons: By version, the reasons in the order they were found.
        holders: By version, the branches that every reason depends on: when one of these branches is deleted, no reason
            is left.
        unmerged: The branches with versions that `main` does not contain.
        problems: What is wrong with the table.
    """

    reasons: dict[tuple[str, int], dict[str, None]] = field(default_factory=dict)
    holders: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    unmerged: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def add(self, branch: str, number: int, reason: str, holders: Iterable[str] = ()) -> None:
        """Record a reason to keep a version, and the branches that the reason depends on; `main` is never deleted."""
        place, alone = (branch, number), frozenset(holders) - {layout.MAIN}
        self.holders[place] = self.holders.get(place, alone) & alone
        self.reasons.setdefault(place, {})[reason] = None


def live_branches(branches: Mapping[str, Branch]) -> dict[str, Branch]:
    """Return the branches that are not being deleted."""
    return {name: branch for name, branch in branches.items() if branch.state != DELETING}


def branch_ids(branches: Mapping[str, Branch]) -> dict[str, str]:
    """Return the id of each branch; a branch that was deleted and made again has another id."""
    return {layout.MAIN: layout.MAIN, **{name: branch.id for name, branch in branches.items()}}


def required_by_refs(branches: Mapping[str, Branch], tags: Mapping[str, Tag]) -> RequiredVersions:
    """Return the versions that tags name or named earlier, the fork points, and the first versions of branches."""
    required, names = RequiredVersions(), {branch.id: name for name, branch in live_branches(branches).items()}
    for tag in tags.values():
        required.add(tag.branch, tag.version, f"tag {tag.name!r}")
        # Metadata that pylance or a person wrote counts too: a rollback may need any version that is mentioned there.
        earlier = {place for text in tag.metadata.values() for place in _VERSION.findall(text)}
        for branch, number in sorted(earlier - {(tag.branch, str(tag.version))}):
            required.add(branch, int(number), f"named earlier by tag {tag.name!r}")
        for recorded in recorded_versions(tag):
            # The branch is found by its id, since it may have been renamed since the tag was there.
            name, place = names.get(recorded.branch_id), recorded.version_ref
            if name is not None and place is not None and f"{name}@{place.number}" != tag.ref:
                # The version is kept under the name its branch has today, by which a rollback looks it up.
                required.add(name, place.number, f"named earlier by tag {tag.name!r}")
    for branch in live_branches(branches).values():
        name = branch.name
        # The fork point on the parent and its copy on the branch both stay: merges read either.
        required.add(branch.parent_branch, branch.parent_version, f"where branch {name!r} was forked", [name])
        required.add(name, branch.first, f"the first of branch {name!r}", [name])
    return required


@dataclass(frozen=True, slots=True)
class Merges:
    """The input for finding the versions that merges require; `numbers` are the listed versions of each branch."""

    refs: Refs
    versions: Versions
    numbers: Mapping[str, Iterable[int]]


def add_required_by_merges(required: RequiredVersions, branches: Mapping[str, Branch], merges: Merges) -> list[State]:
    """Add the versions that a merge of any two branches, `main` included, would read; return the heads that were read.

    Merge bases: a version contains each branch up to a number (`history.lineage`), and two versions have in common
    every branch up to the lower of their two numbers, third branches included. Where the head of `a` contains main up
    to 7 and the head of `b` contains main up to 5, their merge base is `main@5`. So every possible merge base is among
    the numbers of the heads, and all these versions stay. None is superfluous, since each is the merge base of main, or
    another branch, and the branch that contains it up to that number.

    Changes: a version stays until all other branches contain it. What a version claimed, such as an overwrite, is known
    from that version alone; without it a merge would be refused, or succeed where it must not. So a forgotten branch
    keeps all versions that other branches made since its fork point. The results of such merges require no further
    version, since the numbers only grow.

    Cost: the head of each branch is read. The rest is arithmetic, by how many branches each head contains: most of a
    thousand branches contain `main` and nothing else.

    Raises:
        FormatError: A version, or the file of a branch, cannot be read.
    """
    lineages = _lineages(required, branches, merges)
    names = {lineage.id: name for name, lineage in lineages.items()}
    containment = _Containment.of(lineages)
    for name, lineage in lineages.items():
        _add_common(required, lineage, containment)
        _add_unmerged(required, lineage, containment, merges.numbers.get(name, ()))
        segment, main = lineage.segments[0], lineages.get(layout.MAIN)
        # The first version of a branch repeats the fork point, so there is nothing in it to merge.
        if main is None or segment.number > max(segment.first, main.contained.get(lineage.id, -1)):
            required.unmerged.add(name)
    for lineage in lineages.values():
        _add_merges(required, lineage, names)
    return [lineage.state for lineage in lineages.values()]


def _lineages(required: RequiredVersions, branches: Mapping[str, Branch], merges: Merges) -> dict[str, Lineage]:
    lineages: dict[str, Lineage] = {}
    # A branch without a head is being created, or lost all of its versions: nobody can merge it.
    live = live_branches(branches)
    for name, head in merges.versions.heads(branch_ids(live)).items():
        try:
            lineages[name] = lineage_of(head, merges.refs, live)
        except InvalidInputError as error:
            required.problems.append(
                Problem(
                    what=str(error),
                    right="it cannot be merged any more; delete it when nobody reads it",
                    severity=WARNING,
                    path=layout.branch_file(name),
                )
            )
    return lineages


@dataclass(frozen=True, slots=True)
class _Containment:
    """Which branches contain a part of which branch.

    Attributes:
        names: The names of all branches, `main` first, in the order in which messages show them.
        by_branch: By the id of a branch, how far each branch with a part of it contains it, in ascending order.
    """

    names: Sequence[str]
    by_branch: Mapping[str, Sequence[tuple[int, str]]]

    @classmethod
    def of(cls, lineages: Mapping[str, Lineage]) -> "_Containment":
        by_branch: dict[str, list[tuple[int, str]]] = {}
        for name, lineage in lineages.items():
            for branch_id, number in lineage.contained.items():
                by_branch.setdefault(branch_id, []).append((number, name))
        for containing in by_branch.values():
            containing.sort()
        return cls(sorted(lineages, key=lambda name: (name != layout.MAIN, name)), by_branch)

    def containing(self, of: Lineage) -> list[tuple[int, str]]:
        """Return how far other branches contain the branch of a version, in ascending order."""
        return [(number, name) for number, name in self.by_branch.get(of.id, ()) if name != of.state.branch]


def _add_common(required: RequiredVersions, of: Lineage, containment: _Containment) -> None:
    """Add, for each other branch, the last version of this branch that the other contains: their merge base."""
    own = of.state.branch
    sharing: dict[int, list[str]] = {}
    for number, name in containment.containing(of):
        # Branches that contain the same version are grouped: one reason for all of them.
        sharing.setdefault(number, []).append(name)
    for number, names in sharing.items():
        if len(names) == 1:
            first, second = sorted((*names, own), key=lambda name: name == layout.MAIN)
            required.add(own, number, f"the merge base of {first!r} and {second!r}", (own, *names))
        else:
            first_names = nsmallest(_SHOWN, names, key=lambda name: (name != layout.MAIN, name))
            listed = _listed(first_names, len(names))
            required.add(own, number, f"the merge base of {own!r} and each of {listed}", (own,))


def _add_unmerged(required: RequiredVersions, of: Lineage, containment: _Containment, numbers: Iterable[int]) -> None:
    """Add the versions of a branch that another branch does not contain; `numbers` are its listed versions."""
    own, segment = of.state.branch, of.segments[0]
    # Sorted by how far each branch contains this one, so that bisection counts the branches that have a version.
    containing = containment.containing(of)
    reasons: dict[int, tuple[str, tuple[str, ...]]] = {}
    for number in numbers:
        # A later version is missing in at least the branches that an earlier version is missing in. So the number of
        # branches identifies the branches, and the text for each number is made once.
        place = bisect_left(containing, (number, ""))
        count = len(containment.names) - 1 - (len(containing) - place)
        if not count or not segment.first < number <= segment.number:
            continue
        if count not in reasons:
            having = {own, *(name for _, name in containing[place:])}
            first = list(islice((name for name in containment.names if name not in having), _SHOWN))
            reasons[count] = f"not merged into {_listed(first, count)} yet", (own, *(first if count == 1 else ()))
        required.add(own, number, *reasons[count])


def _listed(names: Sequence[str], count: int) -> str:
    """List the first of some names, and count the rest."""
    first = [repr(name) for name in names[:_SHOWN]]
    if count > _SHOWN:
        first[-1] = f"{count - _SHOWN + 1:,} more"
    return f"{', '.join(first[:-1])} and {first[-1]}" if len(first) > 1 else first[0]


def _add_merges(required: RequiredVersions, lineage: Lineage, names: Mapping[str, str]) -> None:
    """Add the merge commits that brought branches in: later merges read the merge base as that commit left it."""
    records = merge_records_of(lineage.state.manifest)
    for branch_id in records.keys() & names.keys():
        number = records[branch_id].dest
        segment = next(
            (segment for segment in reversed(lineage.segments) if number <= segment.number), lineage.segments[0]
        )
        required.add(
            segment.branch, number, "a merge that later merges start from", (names[branch_id], lineage.state.branch)
        )


@dataclass(slots=True)
class NamedFiles:
    """The files in one table's folder that a set of versions names.

    Attributes:
        root_uri: The canonical URI of the table.
        place_of: Tells base paths outside of the table apart; None where a base path may be the folder of the table.
        keys: Keys below the table's folder; an index stands as its folder.
        names: Plain names of files that versions look for under other base paths. A table that was moved, or that has
            two URIs, may call its own folder by another URI there, and file names are unique wherever they are. So an
            equal name keeps a file.
        outside: The names of data files under base paths that certainly are other folders, by the mark of the place.
    """

    root_uri: str
    place_of: Callable[[BasePath], float | None]
    keys: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    outside: dict[float, set[str]] = field(default_factory=dict)
    _contexts: dict[tuple[object, ...], int] = field(default_factory=dict)
    _seen: set[tuple[int, object]] = field(default_factory=set)

    def add(self, manifest: Manifest, branch: str) -> None:
        """Add the files of a version.

        Raises:
            FormatError: The manifest cannot be read whole.
        """
        root = layout.branch_root(branch)
        fresh = Fragments(self._not_seen(manifest, root), manifest.fragments.decoder)
        for place in file_references(replace(manifest, fragments=fresh), layout.join(self.root_uri, root)):
            self._add_place(place)
        # Other writers read the transaction when they rebase over the version.
        if manifest.transaction_file:
            self.keys.add(layout.join(root, layout.TRANSACTIONS, manifest.transaction_file))

    def has(self, key: str) -> bool:
        """Tell whether a file is named."""
        return key in self.keys or key.rpartition("/")[2] in self.names

    def has_outside(self, name: str, place: float) -> bool:
        """Tell whether a data file under a base path, of which the mark is given, is named."""
        return name in self.names or name in self.outside.get(place, ())

    def _not_seen(self, manifest: Manifest, root: str) -> Iterator[Fragment | bytes]:
        """Yield the fragments, encoded or not, that no earlier version had: neighbours share most of them."""
        # Equal fragments name equal files only on the same branch and with the same base paths.
        context = self._contexts.setdefault((root, manifest.base_paths), len(self._contexts))
        for item in manifest.fragments.items:
            if (context, item) not in self._seen:
                self._seen.add((context, item))
                yield item

    def _add_place(self, place: FileReferences) -> None:
        below = self._below(place.base.path)
        folders = place.base.is_dataset_root
        mark = self.place_of(place.base) if below is None and place.data else None
        if mark is not None:
            self.outside.setdefault(mark, set()).update(place.data)
        for kind, names in (
            (layout.DATA, place.data),
            (layout.DELETIONS, place.deletions),
            (layout.INDICES, place.indices),
        ):
            for name in names:
                # It may be this folder under another URI, so the plain name is kept; a superfluous name only keeps a
                # file.
                if mark is not None and kind == layout.DATA:
                    continue
                if below is None:
                    self.names.add(name.rpartition("/")[2])
                else:
                    self.keys.add(layout.join(below, kind if folders else "", name))

    def _below(self, uri: str) -> str | None:
        """Return the path of a URI below the table's folder; None when it is, or may be, somewhere else."""
        try:
            # The canonical spelling is compared, so that equal places are recognised.
            place = canonical_uri(uri)
        except InvalidInputError:
            return None
        if place == self.root_uri:
            return ""
        return place.removeprefix(f"{self.root_uri}/") if place.startswith(f"{self.root_uri}/") else None
