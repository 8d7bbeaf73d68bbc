"""Merge one version into a branch: gather what both sides did since their merge base, carry out the plan.

The rules are in `changes.merge`; here is what they need from the store, and what is written.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from lance_dagster.changes.apply import as_next
from lance_dagster.changes.claims import Claim, claims_of, encode_claims
from lance_dagster.changes.merge import MergePlan, Question, Strategy, plan_merge
from lance_dagster.changes.sides import Change, Conflict, Lookups, Side
from lance_dagster.datafiles import matching_offsets
from lance_dagster.errors import CorruptFileError, InvalidInputError, MergeConflictError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import DeletionFile, Fragment, Manifest
from lance_dagster.format.texts import check_said
from lance_dagster.format.transaction import (
    CLAIMS,
    COLUMNS_MOVED,
    MERGE,
    MERGED_BRANCH,
    MESSAGE,
    SQUASHED_PREFIX,
    Transaction,
)
from lance_dagster.history.commit import WRITER, Proposal, commit, now_ns
from lance_dagster.history.lineage import (
    Lineage,
    anchored,
    changes_since,
    crosswise,
    field_ids,
    last_common,
    lineage_of,
    merge_base,
    merged_as,
    new_records,
    row_space,
)
from lance_dagster.history.picked import claiming, picked_across
from lance_dagster.history.pruning import kept_records
from lance_dagster.history.records import alias_records
from lance_dagster.history.vectors import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.table.carrying import carried_out
from lance_dagster.table.parts import Parts

MERGE_COMMIT, FAST_FORWARD, SQUASH = "merge", "ff-only", "squash"
_MODES = (MERGE_COMMIT, FAST_FORWARD, SQUASH)
_FEW_FILES, _READERS = 4, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """How to merge: who wins conflicts, whether the merge is recorded, what is kept with the transaction."""

    strategy: Strategy = None
    mode: str = MERGE_COMMIT
    message: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no text.

        Raises:
            InvalidInputError: Names it.
        """
        check_said(self.message, self.properties)


def merge(parts: Parts, source: State, into: str, how: Joining) -> State:
    """Merge a version into a branch; returns the version that has it, which is not new when it was merged before.

    Raises:
        MergeConflictError: With every reason; nothing was written.
    """
    check_mode(how.mode)
    ours = lineage_at(parts, source)
    transaction_id = str(uuid.uuid4())

    def propose(head: State) -> Proposal | State:
        theirs = lineage_at(parts, head)
        merged = merged_as(ours, theirs, parts.versions)
        if merged is not None:
            return merged
        base = merge_base(ours, theirs, parts.refs, parts.versions)
        question = question_of(parts, ours, theirs, base, strategy=how.strategy)
        with naming_damage(parts, source, head):
            plan = refusal(how, ours, theirs, base) or plan_merge(question)
        if not isinstance(plan, MergePlan):
            raise MergeConflictError(f"cannot merge {source} into {head} of {parts.uri}; nothing was written:", plan)
        operation, changed = carried_out(parts, plan, source, head, changes=question.source.changes)
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=operation,
            properties=_properties(how, ours, head, question.source.changes) | columns_moved(plan),
        )
        kept = kept_records(theirs, changed.table_metadata, parts.refs, parts.versions)
        metadata = kept | _records(how, ours, theirs, base=base, plan=plan)
        changed = replace(changed, table_metadata=metadata)
        return Proposal(transaction, as_next(head.manifest, changed, transaction, timestamp=now_ns(), writer=WRITER))

    return commit(parts.versions, into, propose, parts.head(into))


def check_mode(mode: str) -> None:
    """Refuse what is no way to merge.

    Raises:
        InvalidInputError: Says which there are.
    """
    if mode not in _MODES:
        raise InvalidInputError(f"{mode!r} is no way to merge; use {', '.join(map(repr, _MODES))}")


@contextmanager
def naming_damage(parts: Parts, source: State, head: State) -> Iterator[None]:
    """Say which manifests damage was found in, where that was found by rules that know no files."""
    try:
        yield
    except CorruptFileError as error:
        if parts.uri in error.path:
            raise
        raise CorruptFileError(f"{source} or {head} of {parts.uri}", f"{error.path}: {error.problem}") from error


def find_merged(parts: Parts, source: State, into: str) -> State | None:
    """Return the version of `into` that contains everything `source` has, or None when it has something new."""
    ours, theirs = lineage_at(parts, source), lineage_at(parts, parts.head(into))
    return merged_as(ours, theirs, parts.versions)


def base_of(parts: Parts, one: State, other: State) -> State:
    """Return the newest version that two versions contain."""
    lineages = lineage_at(parts, one), lineage_at(parts, other)
    return merge_base(*lineages, parts.refs, parts.versions).state


def lookups(parts: Parts) -> Lookups:
    """Return how to look at what manifests do not hold."""
    known: dict[tuple[int, DeletionFile], BitMap] = {}

    def deleted(manifest: Manifest, fragment: Fragment) -> BitMap:
        if fragment.deletion is None:
            return BitMap()
        # Its id is random: the same file, whatever base path a version names it through.
        file = (fragment.id, replace(fragment.deletion, base_id=None))
        if file not in known:
            known[file] = deleted_offsets(parts.versions, _state(manifest), fragment)
        return known[file].copy()

    def ahead(fragments: Sequence[tuple[Manifest, Fragment]]) -> None:
        if len(fragments) > _FEW_FILES:
            # One request each: one after the other, those of a thousand fragments would take a minute.
            with ThreadPoolExecutor(_READERS) as readers:
                list(readers.map(lambda pair: deleted(*pair), fragments))

    def matching(manifest: Manifest, fragment_ids: Iterable[int], predicate: str) -> Mapping[int, BitMap]:
        return matching_offsets(parts.dataset(_state(manifest)), predicate, list(fragment_ids))

    return Lookups(deleted=deleted, matching=matching, ahead=ahead)


def lineage_at(parts: Parts, state: State) -> Lineage:
    """Return what a version contains."""
    found = lineage_of(state, parts.refs)
    # Looked at again as the newest one of its line.
    parts.versions.keep(found.id, state)
    return found


def question_of(parts: Parts, source: Lineage, dest: Lineage, base: Lineage, *, strategy: Strategy) -> Question:
    """Gather what a merge needs to know."""
    ours, theirs = side_of(parts, source, dest, base), side_of(parts, dest, source, base)
    picked = picked_across(ours.changes, dest, base) or picked_across(theirs.changes, source, base)
    mine, others = ours.changes, theirs.changes
    ours = replace(ours, changes=claiming(mine, source, others, dest))
    theirs = replace(theirs, changes=claiming(others, dest, mine, source))
    return Question(
        base=base.state.manifest,
        space=row_space(base, parts.versions),
        source=ours,
        dest=theirs,
        lookups=lookups(parts),
        strategy=strategy,
        crosswise=picked or crosswise(source, dest, base),
    )


def side_of(parts: Parts, of: Lineage, other: Lineage, base: Lineage) -> Side:
    """Gather what a version did that another one does not contain."""
    anchor, since, same_ids = anchored(of, base, parts.versions)
    changes = changes_since(of, other, parts.versions)
    return Side(
        name=str(of.state),
        manifest=of.state.manifest,
        changes=changes,
        anchor=anchor,
        since=since,
        same_ids=same_ids,
        space=row_space(of, parts.versions, since, anchor),
        common=last_common(of, base),
        fields=field_ids(of, base),
    )


def refusal(how: Joining, source: Lineage, dest: Lineage, base: Lineage) -> tuple[Conflict, ...]:
    """Return why the merge is refused whatever the sides did."""
    if how.mode == FAST_FORWARD and not source.contains(dest):
        told = f"{dest.state} has changes that {source.state} does not contain"
        return (Conflict(kind="history", unit="history", source="only a fast-forward was asked for", dest=told),)
    ours, theirs, known = (_squashed(lineage) for lineage in (source, dest, base))
    mine, other = _beyond(ours, dest, source), _beyond(theirs, source, dest)
    both = sorted(ours.keys() & theirs.keys() - known.keys())
    told = "{} has {} by a squash, so nobody can tell which rows both have; reset or delete the branch it is of"
    if mine or other or both:
        did = (
            told.format(source.state, ours[both[0]] if both else mine) if both or mine else str(source.state),
            told.format(dest.state, theirs[both[0]] if both else other) if both or other else str(dest.state),
        )
        return (Conflict(kind="history", unit="history", source=did[0], dest=did[1]),)
    return ()


def _squashed(lineage: Lineage) -> dict[str, str]:
    """Return which version of a branch was squashed into one, by the branch's id."""
    metadata = lineage.state.manifest.table_metadata.items()
    return {key.removeprefix(SQUASHED_PREFIX): value for key, value in metadata if key.startswith(SQUASHED_PREFIX)}


def _beyond(squashed: Mapping[str, str], other: Lineage, into: Lineage) -> str | None:
    """Return what was squashed of a branch of which the other side has something that was not merged as well."""
    for branch_id, version in sorted(squashed.items()):
        if other.contained.get(branch_id, -1) > into.contained.get(branch_id, -1):
            return version
    return None


def _properties(how: Joining, source: Lineage, head: State, changes: Iterable[Change]) -> dict[str, str]:
    properties = {
        MESSAGE: how.message or f"{'squash' if how.mode == SQUASH else 'merge'} {source.state} into {head.branch}",
        **how.properties,
        CLAIMS: encode_claims(all_claims(changes)),
    }
    if how.mode != SQUASH:
        properties |= {MERGE: str(source.state), MERGED_BRANCH: source.id}
    return properties


def columns_moved(plan: MergePlan) -> dict[str, str]:
    """Return what a transaction says about columns that came with rows which moved."""
    return {COLUMNS_MOVED: ",".join(map(str, sorted(plan.columns)))} if plan.columns else {}


def _records(how: Joining, source: Lineage, dest: Lineage, *, base: Lineage, plan: MergePlan) -> dict[str, str]:
    if how.mode == SQUASH:
        # Nor can the branches be merged any more that were merged into the source.
        new = (one for one, number in source.contained.items() if number > dest.contained.get(one, -1))
        squashed = {f"{SQUASHED_PREFIX}{branch_id}": str(source.state) for branch_id in new}
        return squashed | alias_records(dest.state.manifest, plan.aliases)
    return new_records(source, dest, base, aliases=plan.aliases, fields=plan.fields)


def all_claims(changes: Iterable[Change]) -> list[Claim]:
    """Return what changes claim, each claim once."""
    return list(
        dict.fromkeys(
            claim
            for change in changes
            if change.transaction is not None
            for claim in claims_of(change.transaction.properties) or change.claims
        )
    )


def _state(manifest: Manifest) -> State:
    return State(manifest.branch or MAIN, manifest, None)
