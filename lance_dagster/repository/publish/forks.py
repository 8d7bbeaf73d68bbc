"""Branches over many tables: the tables that were forked to a branch, and the end of a branch.

A branch of the repository is a log entry that names its fork point, and a mark for each table that was forked to the
branch; the rows are on the branch of the same name in each table. When the branch was published, its last entry names
the commit that has the rows, and the name may be used again. Where only some of its tables were published, an entry
names the commit, and the branch stays.

A mark names the table's own branch by its identity. Where the table's branch is gone, or another branch has its name,
the rows that were written to it are lost: `publish` refuses the branch until the table is forked again or its part is
discarded.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    InvalidRefNameError,
    NotFoundError,
    PublishRefusedError,
    RefNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.format.layout import MAIN, PUBLISHED
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.branch_operations import (
    create_branch,
    delete_branch,
    refuse_reserved_keys,
    retire_branch,
)
from lance_dagster.history.refs.ref_files import CLOSING, DELETING
from lance_dagster.history.refs.ref_names import check_branch_name
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_commit import find_merged
from lance_dagster.repository.commits.ref_log import ForkMark, next_entry, with_properties
from lance_dagster.repository.commits.repository_tags import refuse_taken
from lance_dagster.repository.commits.snapshot import RefEntry, RepositoryCommit
from lance_dagster.repository.publish.staging import for_each_table, load
from lance_dagster.repository.registry import RepositoryContext
from lance_dagster.store import together

MERGED = "merged"
"""Property of an entry that ends a branch, or a part of it: the id of the commit that contains the changes."""
_ENDED = "forks"
"""Property of such an entry: the file names of the marks whose part has ended, separated by blanks."""


def fork_table(repository: RepositoryContext, name: str, branch: str, *, metadata: Mapping[str, str]) -> TableContext:
    """Create a branch of a table that a publication of the branch finds; return the context of the table."""
    check_branch_name(branch)
    if branch.startswith(PUBLISHED):
        raise InvalidRefNameError(
            "branch", branch, f"names that begin with {PUBLISHED!r} are kept for the versions that commits hold"
        )
    # Before the mark of the table: a branch with other metadata could not be read.
    refuse_reserved_keys(metadata)
    logs = repository.logs
    # Registered before anything is written: a misspelt table must not leave a branch that waits for a publication.
    table_id = repository.registry.register(name)
    # Opened after the registration was read, which drops the context of a former table at this place.
    context = repository.table(name)
    newest, marks = logs.forked(branch)
    if newest is None or newest.deleted:
        refuse_taken(logs, branch, "branch")
        # Whether the put succeeds does not matter: where another process puts its entry first, both use that entry.
        logs.append("branch", branch, next_entry(newest, "fork", logs.current("branch", MAIN).commit))
    own_marks = [mark for mark in marks if mark.table_id == table_id]
    if not own_marks:
        # The mark comes before the branch: rows on a branch that no publication finds would never be seen.
        own_marks = [ForkMark(table_id)]
        logs.mark_fork(branch, own_marks[0])
    try:
        table_branch = create_branch(
            branch, context.head(MAIN), context.refs, context.versions, exist_ok=True, metadata=metadata
        )
    except (AlreadyExistsError, ConflictError, InvalidInputError):
        if not any(mark.branch_id for mark in own_marks):
            _withdraw(repository, branch, table_id)
        raise
    mark = ForkMark(table_id, table_branch.id)
    if mark not in own_marks:
        # The new mark first: so that a mark names the table's branch also after a crash between the two steps.
        logs.mark_fork(branch, mark)
        logs.unmark_forks(branch, own_marks)
    return context


def _withdraw(repository: RepositoryContext, branch: str, table_id: str) -> None:
    """Delete the mark of a table whose branch was refused, and the branch of the repository without any other mark."""
    logs = repository.logs
    logs.unmark_forks(branch, [ForkMark(table_id)])
    newest, marks = logs.forked(branch)
    # Another process may fork a table before the entry is put; a publication finds this table by its mark all the same.
    if newest is not None and not newest.deleted and not marks:
        logs.append("branch", branch, next_entry(newest, "delete", "", reason="the fork was refused"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedTables:
    """The tables of a branch that are to be published.

    Attributes:
        names: The names of the tables in the newest commit.
        removed: By id, the names of tables that were removed from the repository since; the id where no name is known.
        has_others: Whether tables were forked to the branch that the caller does not publish.
        ids: The ids of tables that were forked, by name; a table whose branch was made in the table itself has none.
        marks: The marks of the branch.
        ended: The file names of the marks whose part was published or discarded.
    """

    names: tuple[str, ...]
    removed: Mapping[str, str]
    has_others: bool
    ids: Mapping[str, str]
    marks: tuple[ForkMark, ...]
    ended: frozenset[str] = frozenset()

    def marks_of(self, table_ids: Collection[str | None]) -> list[ForkMark]:
        """Return the marks of some tables."""
        return [mark for mark in self.marks if mark.table_id in table_ids]

    def is_lost(self, name: str, branch_id: str | None) -> bool:
        """Return whether the branch that a table was forked to is gone, or another branch has its name.

        Args:
            name: The table.
            branch_id: The id of the branch that has the name; None where there is no such branch.
        """
        # A fork that died before it made the branch leaves a mark without an identity, and no rows were written. A
        # publication that died while it ended the branch leaves marks of branches that it has deleted.
        own_marks = self.marks_of([self.ids.get(name)])
        forked = {mark.branch_id for mark in own_marks if mark.branch_id and mark.file_name not in self.ended}
        return bool(forked) and branch_id not in forked


def forked_tables(
    repository: RepositoryContext,
    newest: RefEntry | None,
    marks: Iterable[ForkMark],
    head: RepositoryCommit,
    *,
    tables: Collection[str] | None = None,
) -> ForkedTables:
    """Return the tables of a branch that are to be published.

    Args:
        repository: The repository.
        newest: The newest entry of the branch; None where the branch was made in the tables themselves.
        marks: The marks of the branch.
        head: The newest commit of `main`.
        tables: The tables, whether they were forked to the branch or not; None for all that were forked.

    Raises:
        RefNotFoundError: There is no table of a name in `tables`.
    """
    for table in tables or ():
        # Checked here: a branch that is not in its table counts as published, also where there is no such table.
        if table not in head.tables and not repository.table(table).versions.has_versions(MAIN):
            raise RefNotFoundError(table, sorted(head.tables), repository.root, "table")
    names, removed, all_marks = {at.id: name for name, at in head.tables.items()}, {}, tuple(marks)
    table_ids = {mark.table_id for mark in all_marks}
    for table_id in table_ids - names.keys():
        # Only the register has a table that was never committed.
        name = repository.registry.name_of(table_id)
        if name is not None and repository.registry.id_of(name) == table_id:
            names[table_id] = name
        else:
            removed[table_id] = name or table_id
    ids = {names[table_id]: table_id for table_id in table_ids if table_id in names}
    return ForkedTables(
        names=tuple(sorted(ids)) if tables is None else tuple(tables),
        removed=removed if tables is None else {},
        has_others=tables is not None and bool(removed or ids.keys() - {*tables}),
        ids=ids,
        marks=all_marks,
        ended=frozenset(() if newest is None else newest.properties.get(_ENDED, "").split()),
    )


def branch_heads(
    repository: RepositoryContext, branch: str, forked: ForkedTables
) -> dict[str, tuple[State | None, State | None]]:
    """Return the newest versions of a branch and of `main` in each of the branch's tables.

    A version is None where the table has no such branch. Rows that are committed to the branch later are not part of
    the publication, and the branch stays because of them.
    """

    def heads(name: str) -> tuple[State | None, State | None]:
        context = repository.table(name)
        return together(context.store, lambda: context.find_head(branch), lambda: _find_main(context))

    return for_each_table(heads, forked.names)


def _find_main(context: TableContext) -> State | None:
    # The table may have been deleted.
    with suppress(VersionNotFoundError):
        return context.head(MAIN)
    return None


def refuse_lost(
    repository: RepositoryContext, branch: str, forked: ForkedTables, heads: Mapping[str, State | None]
) -> None:
    """Refuse a branch that some of its tables have lost.

    Raises:
        PublishRefusedError: Tables have lost the branch; the error names them, and what to do.
    """
    lost = [name for name in forked.names if forked.is_lost(name, branch_id_of(heads[name]))]
    if lost:
        raise PublishRefusedError(
            f"cannot publish {branch!r} of {repository.root}: rows that were written to it are gone; nothing was "
            "published",
            [f"{name}: {lost_branch(branch, name)}" for name in lost],
        )


def branch_id_of(head: State | None) -> str | None:
    """Return the id of a branch, given its newest version; None where there is no branch."""
    return None if head is None or head.of is None else head.of.id


def lost_branch(branch: str, name: str) -> str:
    """Return the text that says how a table lost its branch, and what to do."""
    return (
        f"its branch {branch!r} was deleted, renamed, reset or made again after the fork: fork the table again and "
        f"write its rows again, or give its part up with discard({branch!r}, tables=[{name!r}], reason=...) or "
        "`lance-dagster discard`"
    )


def discard_tables(
    repository: RepositoryContext, branch: str, tables: Collection[str] | None, *, reason: str
) -> tuple[str, ...]:
    """End a branch, or its part in some tables, without a publication; return the branches that stay, and why.

    Raises:
        RefNotFoundError: There is no such branch, or a table was not forked to it.
        ConflictError: Another process changed the branch at the same time; nothing was discarded.
    """
    logs = repository.logs
    newest, marks = logs.forked(branch)
    if newest is None:
        raise RefNotFoundError(branch, list(logs.live("branch")), repository.root, "branch")
    forked = forked_tables(repository, newest, marks, repository.head())
    names = forked.names if tables is None else tuple(tables)
    for name in names:
        if name not in forked.ids:
            raise RefNotFoundError(name, sorted(forked.ids), repository.root, "table of the branch")
    own_marks = forked.marks_of(
        [*forked.removed, *forked.ids.values()] if tables is None else [*map(forked.ids.get, names)]
    )
    if own_marks:
        stays = len(own_marks) < len(marks)
        entry = next_entry(newest, "commit" if stays else "delete", newest.commit if stays else "", reason=reason)
        # The entry before the branches: a branch that is deleted without the entry would count as lost.
        ended = " ".join(sorted({*forked.ended, *(mark.file_name for mark in own_marks)}))
        if not logs.append("branch", branch, with_properties(entry, {**newest.properties, _ENDED: ended})):
            raise ConflictError(f"branch {branch!r} of {repository.root} was changed by another process; try again")
    refusals = for_each_table(lambda name: _delete_forked(repository.table(name), name, branch, forked), names)
    staying_ids = {forked.ids[name] for name in names if refusals[name] is not None}
    logs.unmark_forks(branch, [mark for mark in own_marks if mark.table_id not in staying_ids])
    return tuple(sorted(refusal for refusal in refusals.values() if refusal is not None))


def _delete_forked(context: TableContext, name: str, branch: str, forked: ForkedTables) -> str | None:
    """Delete the branch of a table as it was forked; return why it stays, if it does."""
    head = context.find_head(branch)
    # Where the branch that was forked is lost, another branch of the name belongs to somebody else.
    if head is not None and not forked.is_lost(name, branch_id_of(head)):
        try:
            delete_branch(branch, context.refs, context.versions)
        except ConflictError as error:
            return f"{branch} of {name}: {error}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchEnd:
    """The end of a branch that was published: an entry of its log, then the branches of its tables, then the marks.

    The branch does not end while other tables of it wait. Tables that were removed keep their branches.

    Attributes:
        repository: The repository.
        branch: The branch.
        forked: Its tables.
        heads: The newest version of the branch in each table, as the publication read it.
        merged: The id of the commit that contains the branch.
        newest: The newest entry of the branch, as the publication read it.
    """

    repository: RepositoryContext
    branch: str
    forked: ForkedTables
    heads: Mapping[str, State | None]
    merged: str
    newest: RefEntry | None

    @property
    def _marks(self) -> list[ForkMark]:
        forked = self.forked
        return forked.marks_of([*forked.removed, *(forked.ids.get(name) for name in forked.names)])

    def record(self) -> None:
        """Record in the log of the branch which commit contains it."""
        newest, logs = self.newest, self.repository.logs
        ended = {mark.file_name for mark in self._marks}
        while True:
            stays = self.forked.has_others and newest is not None and not newest.deleted
            ended |= set() if newest is None else set(newest.properties.get(_ENDED, "").split())
            properties = {MERGED: self.merged, _ENDED: " ".join(sorted(ended))}
            # Where the entry names another commit, rows were committed to the branch after the earlier publication.
            if newest is not None and newest.properties == properties and newest.deleted != stays:
                return
            # A branch that stays names the commit, so that a collection keeps it.
            entry = next_entry(newest, "commit", self.merged) if stays else next_entry(newest, "delete", "")
            if logs.append("branch", self.branch, with_properties(entry, properties)):
                return
            newest = logs.newest("branch", self.branch)

    def delete(self) -> dict[str, str]:
        """Delete the branch in each table; return the tables in which the branch stays, each with the reason."""
        tables = self.repository.logs.commit(self.merged).tables

        def delete(name: str) -> str | None:
            context, at = self.repository.table(name), tables.get(name)
            try:
                # The version of the commit, and not the newest version of `main`, which may lag behind the commit.
                published = context.head(MAIN) if at is None else load(context, at)
                _delete_published(context, self.branch, published, self.heads[name])
            except ConflictError as error:
                return f"{self.branch} of {name}: {error}"
            return None

        refusals = for_each_table(delete, self.forked.names)
        return {name: reason for name, reason in sorted(refusals.items()) if reason is not None}

    def unmark(self, staying: Collection[str]) -> None:
        """Delete the marks of the tables, except for tables in which the branch stays.

        The marks go last: after a crash, a repeated publication looks only at tables that have a mark.
        """
        logs, staying_ids = self.repository.logs, {self.forked.ids.get(name) for name in staying}
        logs.unmark_forks(self.branch, [mark for mark in self._marks if mark.table_id not in staying_ids])
        # The other tables may have been published at the same time. Each publication deletes its own marks before it
        # lists the marks, so the last publication lists none and ends the branch.
        if self.forked.has_others:
            newest, marks = logs.forked(self.branch)
            if newest is not None and not newest.deleted and not marks:
                logs.append("branch", self.branch, with_properties(next_entry(newest, "delete", ""), newest.properties))


def _delete_published(context: TableContext, branch: str, published: State, head: State | None) -> None:
    """Delete the branch of a table.

    Args:
        context: The table.
        branch: The branch.
        published: The version of the table that was published.
        head: The newest version of the branch, as the publication read it; None where there was no branch.

    Raises:
        ConflictError: The branch has commits that the published version does not contain, or a ref refers to it.
    """
    if head is None:
        # An interrupted publication deleted the branch, or began to delete it.
        present = context.refs.branches.find(branch)
        if present is not None and present.state in (CLOSING, DELETING):
            delete_branch(branch, context.refs, context.versions)
        return
    if find_merged(context, head, published) is None:
        raise ConflictError("it has commits that were not published")
    # Rows may have been committed to the branch after it was read; then the branch stays.
    retire_branch(head, context.refs, context.versions)


def has_more(repository: RepositoryContext, heads: Mapping[str, State | None], *, merged: str) -> bool:
    """Return whether a branch that was published has rows that its commit does not contain, in some table.

    Args:
        repository: The repository.
        heads: By table, the newest version of the branch.
        merged: The id of the commit.
    """
    try:
        tables = repository.logs.commit(merged).tables
    except NotFoundError:
        # The commit was collected, so the newest commit tells which rows are not published.
        return True

    def more(name: str) -> bool:
        context, at, head = repository.table(name), tables.get(name), heads[name]
        # A fork may have died between its mark and the branch.
        return head is not None and (at is None or find_merged(context, head, load(context, at)) is None)

    return any(for_each_table(more, heads).values())
