"""Merge one branch into another: find the merge base, gather what both sides did, commit the plan.

The rules are in `changes.merge`; here is what they need from the store.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lance_dagster.changes.apply import with_flags
from lance_dagster.changes.claims import Claim, claims_of, encode_claims
from lance_dagster.changes.merge import MergePlan, plan_merge
from lance_dagster.changes.places import data_uri, placed_under_root
from lance_dagster.changes.sides import Change, Conflict, Side
from lance_dagster.datafiles import count_in_fragments
from lance_dagster.errors import CorruptFileError, InvalidInputError, MergeConflictError
from lance_dagster.format.layout import DATA, MAIN
from lance_dagster.format.model import Fragment
from lance_dagster.format.transaction import (
    CLAIMS,
    MERGE,
    MERGED_PREFIX,
    MESSAGE,
    Append,
    Clone,
    Overwrite,
    Transaction,
    Update,
)
from lance_dagster.history.commit import Proposal, commit, next_manifest
from lance_dagster.history.versions import State
from lance_dagster.table.parts import Parts
from lance_dagster.table.write import read_deletion, store_deletion


@dataclass(frozen=True, slots=True)
class _Line:
    """A stretch of history: a branch, its id, and the newest version of it that counts."""

    branch: str
    id: str
    number: int


@dataclass(frozen=True, slots=True)
class _Base:
    """A merge base: the version both sides contain, and the number from which on the dest's changes count."""

    state: State
    dest_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePreview:
    """What a merge would do, without doing it. With conflicts it would do nothing."""

    source: str
    dest: str
    conflicts: tuple[Conflict, ...]
    rows_added: int = 0
    rows_removed: int = 0


def merge(parts: Parts, source: State, into: str, *, message: str | None, properties: Mapping[str, str]) -> State:
    """Merge a version into a branch; returns the version that has it, which is not new when it was merged before.

    Raises:
        MergeConflictError: With every reason; nothing was written.
    """
    merged = find_merged(parts, source, into)
    if merged is not None:
        return merged
    transaction_id = str(uuid.uuid4())

    def propose(head: State) -> Proposal:
        plan, claims = _plan(parts, source, head)
        if not isinstance(plan, MergePlan):
            raise MergeConflictError(f"cannot merge {source} into {head} of {parts.uri}; nothing was written:", plan)
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=_realised(parts, plan, source, head),
            properties={
                **properties,
                MESSAGE: message or f"merge {source} into {into}",
                MERGE: str(source),
                CLAIMS: encode_claims(claims),
            },
        )
        manifest = next_manifest(parts.versions, head, transaction)
        metadata = {**_live_records(parts, plan.table_metadata), **_records(parts, source, head)}
        return Proposal(transaction, with_flags(replace(manifest, table_metadata=metadata, config=dict(plan.config))))

    return commit(parts.versions, into, propose)


def preview(parts: Parts, source: State, into: str) -> MergePreview:
    """Say what merging a version into a branch would do now."""
    head = parts.head(into)
    if find_merged(parts, source, into) is not None:
        return MergePreview(source=str(source), dest=str(head), conflicts=())
    plan, _ = _plan(parts, source, head)
    if not isinstance(plan, MergePlan):
        return MergePreview(source=str(source), dest=str(head), conflicts=plan)
    operation = plan.operation
    gone = head.manifest.rows if isinstance(operation, Overwrite) else 0
    if isinstance(operation, Update):
        own = head.manifest.fragment_map()
        gone = sum(own[number].rows for number in operation.removed_fragment_ids)
        gone += sum(own[fragment.id].rows - fragment.rows for fragment in operation.updated_fragments)
    added = sum(fragment.rows for fragment in _added(operation))
    return MergePreview(source=str(source), dest=str(head), conflicts=(), rows_added=added, rows_removed=gone)


def find_merged(parts: Parts, source: State, into: str) -> State | None:
    """Return the version of `into` that contains everything `source` has, or None when it has something new."""
    head = parts.head(into)
    lines = _lines(parts, source)
    recorded = _recorded(head, lines[0])
    if recorded is not None and recorded[0] >= source.number:
        return parts.versions.load(into, recorded[1])
    base = _merge_base(parts, source, head)
    return head if not _changes(parts, source, base.state) else None


def _plan(parts: Parts, source: State, head: State) -> tuple[MergePlan | tuple[Conflict, ...], list[Claim]]:
    """Plan a merge into one particular head; returns what the source claims beside it."""
    base = _merge_base(parts, source, head)
    ours = _changes(parts, source, base.state)
    theirs = _changes_after(parts, head, base.dest_number)
    plan = plan_merge(base.state.manifest, _side(parts, source, ours), _side(parts, head, theirs))
    return plan, _all_claims(ours)


def _side(parts: Parts, state: State, changes: Sequence[Change]) -> Side:
    def rows_matching(fragment_ids: Iterable[int], predicate: str) -> int:
        return count_in_fragments(parts.dataset(state), fragment_ids, predicate)

    return Side(name=str(state), manifest=state.manifest, changes=changes, rows_matching=rows_matching)


def _lines(parts: Parts, state: State) -> list[_Line]:
    """Return a version's branch and every branch that was forked from, up to main."""
    lines: list[_Line] = []
    branch, number = state.branch, state.number
    while branch != MAIN:
        found = parts.refs.branch(branch)
        if found is None:
            raise InvalidInputError(f"branch {branch!r} of {parts.uri} is gone, and with it where it was forked")
        lines.append(_Line(branch, found.id, number))
        branch, number = found.parent_branch, found.parent_version
    return [*lines, _Line(MAIN, MAIN, number)]


def _recorded(head: State, line: _Line) -> tuple[int, int] | None:
    """Return which version of a line was merged last, and as which version, from the head's records."""
    record = head.manifest.table_metadata.get(f"{MERGED_PREFIX}{line.id}")
    if record is None:
        return None
    source, _, dest = record.partition("@")
    return int(source), int(dest)


def _merge_base(parts: Parts, source: State, head: State) -> _Base:
    """Find the newest version that both sides contain.

    Going up from the source: the first line that the dest lies on as well, or that was merged into it before.
    Version numbers go on counting when a branch is forked, so a number marks a place on a whole chain of lines.
    """
    own = {line.id: line for line in _lines(parts, head)}
    for line in _lines(parts, source):
        if line.id in own:
            number = min(line.number, own[line.id].number)
            return _Base(parts.versions.load(line.branch, number), number)
        recorded = _recorded(head, line)
        if recorded is not None:
            number = min(line.number, recorded[0])
            return _Base(parts.versions.load(line.branch, number), recorded[1])
    raise InvalidInputError(f"{source} and {head} of {parts.uri} have no version in common")


def _changes(parts: Parts, state: State, base: State) -> list[Change]:
    """Return what happened from the merge base to a version, oldest first."""
    found: list[Change] = []
    for line in _lines(parts, state):
        at_base = line.branch == base.branch
        first = base.number if at_base else -1
        found[:0] = _changes_on(parts, line.branch, first, line.number)
        if at_base:
            break
    return found


def _changes_after(parts: Parts, head: State, number: int) -> list[Change]:
    found: list[Change] = []
    for line in _lines(parts, head):
        found[:0] = _changes_on(parts, line.branch, number, line.number)
    return found


def _changes_on(parts: Parts, branch: str, after: int, until: int) -> list[Change]:
    found: list[Change] = []
    for number in parts.versions.numbers(branch):
        if not after < number <= until:
            continue
        state = parts.versions.load(branch, number)
        # The first version of a branch repeats the one it was forked from.
        if state.transaction is None or not isinstance(state.transaction.operation, Clone):
            found.append(Change(version=str(state), writer=state.writer, transaction=state.transaction))
    return found


def _all_claims(changes: Iterable[Change]) -> list[Claim]:
    return list(
        dict.fromkeys(
            claim
            for change in changes
            if change.transaction is not None
            for claim in claims_of(change.transaction.properties) or change.claims
        )
    )


def _records(parts: Parts, source: State, head: State) -> dict[str, str]:
    """Record what a merge brings in: the source, and every branch between it and the dest that it contains."""
    own = {line.id for line in _lines(parts, head)}
    lines = (line for line in _lines(parts, source) if line.id not in own)
    return {f"{MERGED_PREFIX}{line.id}": f"{line.number}@{head.number + 1}" for line in lines}


def _live_records(parts: Parts, metadata: Mapping[str, str]) -> dict[str, str]:
    """Drop the records of merges whose branch is gone: nobody can merge it again."""
    live = {f"{MERGED_PREFIX}{branch.id}" for branch in parts.refs.branches().values()}
    return {key: value for key, value in metadata.items() if not key.startswith(MERGED_PREFIX) or key in live}


def _realised(parts: Parts, plan: MergePlan, source: State, head: State) -> Append | Update | Overwrite:
    """Put every file the plan needs under the dest's root, and return the operation that names them there."""
    for carried in plan.deletions:
        store_deletion(parts, head.branch, carried.dest, read_deletion(parts, source, carried.source))
    operation = plan.operation
    for fragment in _added(operation):
        _bring_files(parts, fragment, source)
    placed = placed_under_root(_added(operation), head.manifest, parts.uri)
    if isinstance(operation, Update):
        return replace(operation, new_fragments=placed)
    return replace(operation, fragments=placed)


def _added(operation: Append | Update | Overwrite) -> tuple[Fragment, ...]:
    return operation.new_fragments if isinstance(operation, Update) else operation.fragments


def _bring_files(parts: Parts, fragment: Fragment, source: State) -> None:
    """Copy data files that another program put into the branch's own folder, with their blobs."""
    for file in fragment.files:
        uri = data_uri(source.manifest, file, parts.versions.line_uri(source.branch))
        if uri == f"{parts.uri}/{DATA}/{file.path}":
            continue
        if not parts.store.copy_in(uri, f"{DATA}/{file.path}"):
            raise CorruptFileError(uri, "it is missing")
        # Blobs lie in a folder called like the file; most files have none.
        parts.store.copy_in(uri.removesuffix(".lance"), f"{DATA}/{file.path.removesuffix('.lance')}")
