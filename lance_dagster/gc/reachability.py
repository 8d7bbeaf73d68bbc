"""Which versions are needed, by whom, and which files versions name."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from lance_dagster.errors import InvalidInputError, VersionNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.model import Fragment, Fragments, Manifest
from lance_dagster.history.lineage import Lineage, lineage_of, merge_records_of
from lance_dagster.history.refs.ref_store import DELETING, Branch, Refs, Tag
from lance_dagster.history.refs.tag_operations import recorded_versions
from lance_dagster.history.versions import Versions
from lance_dagster.store import canonical_uri
from lance_dagster.transactions.base_paths import Named, named_files
from lance_dagster.verify.manifest_rules import WARNING, Problem

_SHOWN = 3
_VERSION = re.compile(r"(?:^|[^\w./@-])([A-Za-z0-9][A-Za-z0-9._/-]*)@(\d{1,20})(?!\w)")


@dataclass(slots=True)
class RequiredVersions:
    """Versions that are needed, each with the reasons, and what was found wrong while looking.

    `holders` are the branches without any one of which there would be no reason left.
    """

    reasons: dict[tuple[str, int], dict[str, None]] = field(default_factory=dict)
    holders: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, branch: str, number: int, reason: str, holders: Iterable[str] = ()) -> None:
        """Write down that a version is needed, and the branches each of which is needed for that; main always is."""
        place, alone = (branch, number), frozenset(holders) - {layout.MAIN}
        self.holders[place] = self.holders.get(place, alone) & alone
        self.reasons.setdefault(place, {})[reason] = None


def live(branches: Mapping[str, Branch]) -> dict[str, Branch]:
    """Return the branches that are not being deleted."""
    return {name: branch for name, branch in branches.items() if branch.state != DELETING}


def owners(branches: Mapping[str, Branch]) -> dict[str, str]:
    """Return the id of each branch: one that was deleted and made again has another."""
    return {layout.MAIN: layout.MAIN, **{name: branch.id for name, branch in branches.items()}}


def needed_by_names(branches: Mapping[str, Branch], tags: Mapping[str, Tag]) -> RequiredVersions:
    """Return the versions that tags name, also those a tag says it named before, and those branches start at."""
    needs, names = RequiredVersions(), {branch.id: name for name, branch in live(branches).items()}
    for tag in tags.values():
        needs.add(tag.branch, tag.version, f"tag {tag.name!r}")
        earlier = {place for text in tag.metadata.values() for place in _VERSION.findall(text)}
        for branch, number in sorted(earlier - {(tag.branch, str(tag.version))}):
            needs.add(branch, int(number), f"named earlier by tag {tag.name!r}")
        for written in recorded_versions(tag):
            name, place = names.get(written.branch_id), written.version_ref
            if name is not None and place is not None and f"{name}@{place.number}" != tag.ref:
                # Found where it is by now, as a roll-back does.
                needs.add(name, place.number, f"named earlier by tag {tag.name!r}")
    for branch in live(branches).values():
        name = branch.name
        needs.add(branch.parent_branch, branch.parent_version, f"where branch {name!r} was forked", [name])
        needs.add(name, branch.first, f"the first of branch {name!r}", [name])
    return needs


@dataclass(frozen=True, slots=True)
class Merges:
    """What it takes to tell which versions merges need; `numbers` are the versions of each branch."""

    refs: Refs
    versions: Versions
    numbers: Mapping[str, Iterable[int]]


def add_needed_by_merges(needs: RequiredVersions, branches: Mapping[str, Branch], merges: Merges) -> None:
    """Add the versions that a merge of any two branches, main among them, is judged by.

    A version contains each branch up to a number (`history.lineage`), and two versions have in common what the lower
    of their two numbers says, for every branch, a third one included. So whatever two branches may be merged from is
    among the numbers of their newest versions: all of these stay. None is too many, as each is what a branch and
    the one that the number is of have in common.

    Besides, what any branch did stays until all others contain it. What a version claimed, an overwrite for one, is
    known from that version alone: without it a merge would be refused, or go through where it should not. So a branch
    that was forgotten keeps what the others did since it was forked. What comes of such merges needs no others, since
    numbers only grow.

    Read are the file and the newest version of each branch, whatever the branches have to do with each other. The
    rest is arithmetic: for two hundred branches forty thousand numbers are looked up.

    Raises:
        FormatError: A version, or the file of a branch, cannot be read.
    """
    found = _lineages(needs, branches, merges)
    names = {lineage.id: name for name, lineage in found.items()}
    for name, lineage in found.items():
        _add_common(needs, lineage, found)
        _add_unmerged(needs, lineage, found, merges.numbers.get(name, ()))
    for lineage in found.values():
        _add_merges(needs, lineage, names)


def _lineages(needs: RequiredVersions, branches: Mapping[str, Branch], merges: Merges) -> dict[str, Lineage]:
    found: dict[str, Lineage] = {}
    for name in (layout.MAIN, *live(branches)):
        try:
            found[name] = lineage_of(merges.versions.head(name), merges.refs)
        except VersionNotFoundError:
            # Being made, or it lost all its versions: nobody can merge it.
            continue
        except InvalidInputError as error:
            needs.problems.append(
                Problem(
                    what=str(error),
                    right="it cannot be merged any more; delete it when nobody reads it",
                    severity=WARNING,
                    path=layout.branch_file(name),
                )
            )
    return found


def _add_common(needs: RequiredVersions, of: Lineage, others: Mapping[str, Lineage]) -> None:
    """Add the last version of a branch that each other one contains."""
    own = of.state.branch
    sharing: dict[int, list[str]] = {}
    for name, other in others.items():
        if name != own and of.id in other.contained:
            sharing.setdefault(other.contained[of.id], []).append(name)
    for number, names in sharing.items():
        if len(names) == 1:
            one, two = sorted((*names, own), key=lambda name: name == layout.MAIN)
            needs.add(own, number, f"where {one!r} and {two!r} can be merged from", (own, *names))
        else:
            needs.add(own, number, f"where {own!r} and each of {_listed(names)} can be merged from", (own,))


def _add_unmerged(needs: RequiredVersions, of: Lineage, others: Mapping[str, Lineage], numbers: Iterable[int]) -> None:
    """Add what was done on a branch that another one does not contain; `numbers` are the versions there are of it."""
    own, line = of.state.branch, of.segments[0]
    known = sorted((other.contained.get(of.id, -1), name) for name, other in others.items() if name != own)
    said: dict[int, tuple[str, tuple[str, ...]]] = {}
    for number in numbers:
        # The later a version, the more branches lack it; versions that as many lack are lacked by the same.
        count = bisect_left(known, (number, "")) if line.first < number <= line.number else 0
        if count and count not in said:
            lacking = [name for _, name in known[:count]]
            said[count] = f"not merged into {_listed(lacking)} yet", (own, *(lacking if count == 1 else ()))
        if count:
            needs.add(own, number, *said[count])


def _listed(names: Sequence[str]) -> str:
    """Write down some names, main first, and how many more there are."""
    first = [repr(name) for name in nsmallest(_SHOWN, names, key=lambda name: (name != layout.MAIN, name))]
    if len(names) > _SHOWN:
        first[-1] = f"{len(names) - _SHOWN + 1:,} more"
    return f"{', '.join(first[:-1])} and {first[-1]}" if len(first) > 1 else first[0]


def _add_merges(needs: RequiredVersions, lineage: Lineage, names: Mapping[str, str]) -> None:
    """Add the merges that brought branches into one: the merge base, as its line has it."""
    records = merge_records_of(lineage.state.manifest)
    for branch_id in records.keys() & names.keys():
        number = records[branch_id].dest
        line = next((line for line in reversed(lineage.segments) if number <= line.number), lineage.segments[0])
        needs.add(line.branch, number, "a merge that later ones go on from", (names[branch_id], lineage.state.branch))


@dataclass(slots=True)
class NamedFiles:
    """The files that some versions name in one table's folder.

    `keys` are keys below it; an index is its folder. `names` are the plain names of files that versions look for
    elsewhere: a table that was moved, or is reached in two ways, calls its own folder by another name in the base
    paths of its branches, and file names are unique wherever they are.
    """

    root_uri: str
    keys: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    _contexts: dict[tuple[object, ...], int] = field(default_factory=dict)
    _seen: set[tuple[int, object]] = field(default_factory=set)

    def add(self, manifest: Manifest, branch: str) -> None:
        """Take in the files of a version.

        Raises:
            FormatError: They cannot be told.
        """
        line = layout.line_root(branch)
        fresh = Fragments(self._not_seen(manifest, line), manifest.fragments.coding)
        for place in named_files(replace(manifest, fragments=fresh), layout.join(self.root_uri, line)):
            self._add_place(place)
        if manifest.transaction_file:
            self.keys.add(layout.join(line, layout.TRANSACTIONS, manifest.transaction_file))

    def has(self, key: str) -> bool:
        """Tell whether a file is named."""
        return key in self.keys or key.rpartition("/")[2] in self.names

    def _not_seen(self, manifest: Manifest, line: str) -> Iterator[Fragment | bytes]:
        """Yield the fragments, as they are held, that no version before had: most are those of the one before."""
        context = self._contexts.setdefault((line, manifest.base_paths), len(self._contexts))
        for item in manifest.fragments.items:
            if (context, item) not in self._seen:
                self._seen.add((context, item))
                yield item

    def _add_place(self, place: Named) -> None:
        below = self._below(place.base.path)
        folders = place.base.is_dataset_root
        for kind, names in (
            (layout.DATA, place.data),
            (layout.DELETIONS, place.deletions),
            (layout.INDICES, place.indices),
        ):
            for name in names:
                if below is None:
                    self.names.add(name.rpartition("/")[2])
                else:
                    self.keys.add(layout.join(below, kind if folders else "", name))

    def _below(self, uri: str) -> str | None:
        """Return a place's path below the table's folder, or None when it is, or may be, another place."""
        try:
            place = canonical_uri(uri)
        except InvalidInputError:
            return None
        if place == self.root_uri:
            return ""
        return place.removeprefix(f"{self.root_uri}/") if place.startswith(f"{self.root_uri}/") else None
