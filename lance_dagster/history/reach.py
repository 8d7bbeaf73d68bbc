"""Which versions are needed, by whom, and which files versions name."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lance_dagster.changes.places import Named, named_files
from lance_dagster.changes.problems import WARNING, Problem
from lance_dagster.errors import InvalidInputError, VersionNotFoundError
from lance_dagster.format import layout
from lance_dagster.format.model import Fragment, Fragments, Manifest
from lance_dagster.history.lineage import Lineage, lineage_of
from lance_dagster.history.records import records_of
from lance_dagster.history.refs import DELETING, Branch, Refs, Tag
from lance_dagster.history.versions import Versions
from lance_dagster.store import canonical_uri

_VERSION = re.compile(r"(?:^|[^\w./@-])([A-Za-z0-9][A-Za-z0-9._/-]*)@(\d{1,20})(?!\w)")


@dataclass(slots=True)
class Needs:
    """Versions that are needed, each with the reasons, and what was found wrong while looking.

    `holders` are the branches without which there would be no such reason; None stands for what is no branch.
    """

    reasons: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    holders: dict[tuple[str, int], set[str | None]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, branch: str, number: int, reason: str, holder: str | None = None) -> None:
        """Write down that a version is needed, for the sake of a branch if it is for one."""
        self.holders.setdefault((branch, number), set()).add(holder)
        found = self.reasons.setdefault((branch, number), [])
        if reason not in found:
            found.append(reason)


def live(branches: Mapping[str, Branch]) -> dict[str, Branch]:
    """Return the branches that are not being deleted."""
    return {name: branch for name, branch in branches.items() if branch.state != DELETING}


def owners(branches: Mapping[str, Branch]) -> dict[str, str]:
    """Return the id of each branch: one that was deleted and made again has another."""
    return {layout.MAIN: layout.MAIN, **{name: branch.id for name, branch in branches.items()}}


def needed_by_names(branches: Mapping[str, Branch], tags: Mapping[str, Tag]) -> Needs:
    """Return the versions that tags name, also those a tag says it named before, and those branches start at."""
    needs = Needs()
    for tag in tags.values():
        needs.add(tag.branch, tag.version, f"tag {tag.name!r}")
        earlier = {place for text in tag.metadata.values() for place in _VERSION.findall(text)}
        for branch, number in sorted(earlier - {(tag.branch, str(tag.version))}):
            needs.add(branch, int(number), f"named earlier by tag {tag.name!r}")
    for branch in live(branches).values():
        name = branch.name
        needs.add(branch.parent_branch, branch.parent_version, f"where branch {name!r} was forked", name)
        needs.add(name, branch.first, f"the first of branch {name!r}", name)
    return needs


@dataclass(frozen=True, slots=True)
class Merges:
    """What it takes to tell which versions merges need; `numbers` are the versions of each branch."""

    refs: Refs
    versions: Versions
    numbers: Mapping[str, Iterable[int]]


def add_needed_by_merges(needs: Needs, branches: Mapping[str, Branch], merges: Merges) -> None:
    """Add the versions that a merge of each branch with its parent, or with main, is judged by, in either direction.

    These are the versions both have in common, and what each side did that the other does not contain: what a version
    claimed, an overwrite for one, is known from that version alone. Without it a merge would be refused, or go through
    where it should not. So a branch that was forgotten keeps what main did since it was forked.

    Raises:
        FormatError: A version, or the file of a branch, cannot be read.
    """
    found = _lineages(needs, branches, merges)
    for name, branch in live(branches).items():
        for other in dict.fromkeys((branch.parent_branch, layout.MAIN)):
            if name in found and other in found:
                _add_common(needs, found[name], found[other])
                for one, beside in ((name, other), (other, name)):
                    _add_unmerged(needs, found[one], found[beside], merges, holder=name)
    for lineage in found.values():
        _add_merges(needs, lineage, {other.id: other.state.branch for other in found.values()})


def _lineages(needs: Needs, branches: Mapping[str, Branch], merges: Merges) -> dict[str, Lineage]:
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


def _add_unmerged(needs: Needs, of: Lineage, other: Lineage, merges: Merges, *, holder: str) -> None:
    reason = f"not merged into {other.lines[0].branch!r} yet"
    for line in of.lines:
        after = max(line.forked, other.contained.get(line.id, -1))
        for number in merges.numbers.get(line.branch, ()):
            if after < number <= line.number:
                needs.add(line.branch, number, reason, holder)


def _add_common(needs: Needs, source: Lineage, dest: Lineage) -> None:
    names = {line.id: line.branch for line in (*source.lines, *dest.lines)}
    reason = f"where {source.lines[0].branch!r} and {dest.lines[0].branch!r} can be merged from"
    for branch_id in source.contained.keys() & dest.contained.keys() & names.keys():
        number = min(source.contained[branch_id], dest.contained[branch_id])
        needs.add(names[branch_id], number, reason, source.state.branch)


def _add_merges(needs: Needs, lineage: Lineage, live_ids: Mapping[str, str]) -> None:
    records = records_of(lineage.state.manifest)
    for branch_id in records.keys() & live_ids.keys():
        number = records[branch_id].dest
        line = next((line for line in reversed(lineage.lines) if number <= line.number), lineage.lines[0])
        holder = next((name for name in (live_ids[branch_id], lineage.state.branch) if name != layout.MAIN), None)
        needs.add(line.branch, number, "a merge that later ones go on from", holder)


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
