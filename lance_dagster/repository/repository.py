"""`LanceRepository`: the tables under one root, committed and promoted together.

    repository = LanceRepository.create("s3://lake")
    orders = repository.fork("shop/orders", "run/4f2a")
    orders.append(rows, branch="run/4f2a")
    repository.publish("run/4f2a", channel="production")
    repository.at("production")["shop/orders"].read()

It needs no server, lock or daemon: each step is a conditional put in the storage of the tables.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Unpack

import pendulum
import pyarrow as pa

from lance_dagster.errors import (
    CorruptFileError,
    InvalidInputError,
    NotFoundError,
    Remedy,
    SchemaMismatchError,
    StoreError,
    TableNotFoundError,
)
from lance_dagster.format.layout import MAIN, SUFFIX, VERSIONS
from lance_dagster.format.schema import arrow_from_fields, fields_from_arrow
from lance_dagster.format.validation import (
    check_options,
    optional_limit,
    parsed_json,
    string_list,
    validate_commit_info,
)
from lance_dagster.history.context import Properties
from lance_dagster.history.refs.followed_channel import folders_above
from lance_dagster.history.table_uri import check_table_alone, parse_version_uri, repository_uri
from lance_dagster.merge.merge_commit import MergeOptions
from lance_dagster.repository.adoption import Adopted, Adoption
from lance_dagster.repository.candidate_status import WaitingCandidate, waiting_candidates
from lance_dagster.repository.candidates.record import CandidateRecord
from lance_dagster.repository.channels import Channels
from lance_dagster.repository.commits.ref_log import MARKER, next_entry, person
from lance_dagster.repository.commits.snapshot import RepositoryCommit, TableVersion, new_commit
from lance_dagster.repository.discard_branch import discard_branch
from lance_dagster.repository.maintenance import RepositoryMaintenance
from lance_dagster.repository.projection import RepositoryTags, land_tables, settle_tables
from lance_dagster.repository.publications import Publications
from lance_dagster.repository.publish.commit_tables import CommitRequest, commit_tables, run_audit, stage_nothing
from lance_dagster.repository.publish.forks import fork_table
from lance_dagster.repository.publish.publish_branch import Published, PublishOptions, PublishRequest, publish_branch
from lance_dagster.repository.publish.revert_commit import added_by, changed_by, revert_request
from lance_dagster.repository.publish.staging import Staging, stage_merge
from lance_dagster.repository.registry import RepositoryContext, check_table_name
from lance_dagster.repository.repository_status import RepositoryStatus, status_of_repository
from lance_dagster.repository.snapshot_diff import RepositoryDiff, diff_commits
from lance_dagster.repository.view import RepositoryView, TableView
from lance_dagster.store import Store, open_store
from lance_dagster.table import LanceTable


class LanceRepository:
    """The Lance tables under one root, with commits, branches and channels over all of them.

    The name of a table is its path below the root, without `.lance`, such as `shop/orders`. `ref` arguments take a
    branch (`main`), a channel (`production`), a repository tag, a commit id, or an expression such as `production~1` or
    `production@{yesterday}`.
    """

    def __init__(self, root: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        """Wrap a root; `open` and `create` check its contents."""
        options = dict(storage_options or {})
        self._context = RepositoryContext.on(open_store(check_table_alone(root), options), options)

    @classmethod
    def open(cls, root: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> "LanceRepository":
        """Open an existing repository.

        Raises:
            NotFoundError: There is no repository at the root.
        """
        repository = cls(root, storage_options)
        if repository._context.logs.store.get(MARKER) is None:
            remedy = Remedy("LanceRepository.create and `lance-dagster create` make one of the tables there")
            raise NotFoundError(f"no repository at {repository.root}", remedy=remedy)
        return repository

    @classmethod
    def open_uri(cls, uri: str, storage_options: Mapping[str, str] | None = None) -> TableView:
        """Open a table of a repository at a ref, given the text that `uri` returns.

        Args:
            uri: Such as `lance+s3://lake?table=shop/orders&ref=production`; without `ref=`, `main` is meant.
            storage_options: Credentials and endpoint.

        Raises:
            InvalidInputError: The text names no table of a repository, such as `s3://lake/shop/orders.lance`.
            NotFoundError: There is no such repository, ref or table.
        """
        version_uri = parse_version_uri(uri)
        if version_uri.table is None:
            raise InvalidInputError(f"{uri!r} does not name a table of a repository: it has no table=<name> after '?'")
        return cls.open(version_uri.location, storage_options).at(version_uri.ref)[version_uri.table]

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        message: str = "",
        properties: Properties = None,
    ) -> "LanceRepository":
        """Create a repository at a root, or open the existing one. Tables join it one by one, or by `adopt`.

        Args:
            root: A folder or `s3://bucket/prefix`.
            storage_options: Credentials and endpoint.
            message: The message of the first commit, which has no tables.
            properties: Kept with that commit.

        Raises:
            InvalidInputError: The root lies inside a table, or below another repository that would find its tables.
        """
        repository = cls(root, storage_options)
        logs = repository._context.logs
        has_marker = logs.store.get(MARKER) is not None
        if not has_marker:
            _refuse_nested(repository.root, logs.store, repository._context.registry.storage_options)
        # Checked independently of the marker: an earlier call may have died after the commit and before the marker.
        if logs.newest("branch", MAIN) is None:
            # The first commit is empty, so that every commit that a person makes has a parent to be compared with.
            first, data = new_commit(
                {}, (), author=person(), message=message or "create the repository", properties=properties or {}
            )
            logs.put_commit(first, data)
            logs.append("branch", MAIN, next_entry(None, "commit", first.id, reason=first.message))
        if not has_marker:
            # The marker is put last, since `open` looks for it: a root without a commit is not a repository yet. When
            # two processes create the repository at once, both continue with the marker of the first process.
            marker = {"format": 1, "id": uuid.uuid4().hex, "created_at": pendulum.now("UTC").isoformat()}
            logs.store.put_if_absent(MARKER, json.dumps(marker).encode())
        return repository

    @property
    def root(self) -> str:
        """The canonical URI of the root."""
        return self._context.root

    @property
    def id(self) -> str:
        """The id of the repository, which stays when its root is moved."""
        data = self._context.store.get(MARKER)
        try:
            return str(parsed_json(data or b"")["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptFileError(f"{self.root}/{MARKER}", "it does not hold the id of a repository") from error

    @property
    def channels(self) -> Channels:
        """Promote, roll back, hold and release channels."""
        return Channels(self._context)

    @property
    def tags(self) -> RepositoryTags:
        """Create, list and delete repository tags."""
        return RepositoryTags(self._context)

    @property
    def maintenance(self) -> RepositoryMaintenance:
        """Delete what nobody needs, and repair what a killed process left."""
        return RepositoryMaintenance(self._context)

    @property
    def publications(self) -> Publications:
        """Publish exact versions, as the publisher of a pipeline does, and look at what was published."""
        return Publications(self._context)

    def __repr__(self) -> str:
        """Show the root and nothing secret."""
        return f"LanceRepository({self.root!r})"

    def uri(self, table: str, ref: str = MAIN) -> str:
        """Return a table at a ref as one text, which `open_uri` and the command line accept."""
        check_table_name(table)
        return repository_uri(self.root, table, ref)

    def tables(self) -> list[str]:
        """List the names of the registered tables."""
        return self._context.registry.names()

    def table(self, name: str) -> LanceTable:
        """Open a table, registered or not, for operations on this table alone.

        Raises:
            TableNotFoundError: There is no table of that name.
        """
        table = LanceTable(self._context.table(name))
        if not self._context.table(name).versions.has_versions(MAIN):
            raise TableNotFoundError(f"no Lance table {name!r} in {self.root}")
        return table

    def create_table(
        self, name: str, schema: pa.Schema, *, message: str | None = None, properties: Properties = None
    ) -> LanceTable:
        """Create an empty table and register it; open an existing table if it has these columns.

        Args:
            name: The table.
            schema: Its columns.
            message: The message of the first version of the table; the repository gets no commit.
            properties: Stored with the transaction of that version.

        Raises:
            SchemaMismatchError: The existing table has other columns; it is not registered.
        """
        context = self._context.table(name)
        # An existing table is used: an earlier call may have died before it was registered.
        table = LanceTable.create(
            context.uri,
            schema,
            storage_options=context.storage_options,
            message=message,
            properties=properties,
            exist_ok=True,
        )
        actual, expected = table.schema(), arrow_from_fields(fields_from_arrow(schema))
        if not actual.equals(expected):
            raise SchemaMismatchError(
                f"table {name!r} of {self.root} exists with other columns than the given ones:\n{_columns(actual)}\n"
                f"not:\n{_columns(expected)}\nOpen it by `table({name!r})`, or add it to the repository by `adopt`"
            )
        self._context.registry.register(name)
        return table

    def discover(self) -> list[str]:
        """Find the Lance tables below the root that are not registered."""
        return sorted(self._context.registry.discover(self.tables()))

    def adopt(
        self,
        names: Iterable[str] | None = None,
        *,
        channels: Iterable[str] = ("production",),
        message: str = "",
        properties: Properties = None,
    ) -> Adopted:
        """Add existing Lance tables to the repository, and let channels start at their tags.

        The newest version of `main` of each table becomes part of a commit of `main`. A channel begins with the tables
        that have a tag of its name, each at the version of the tag, and held where a tag is held; a table without the
        tag is not in the channel. Tables that the repository has are not changed, so this is idempotent, and several
        processes may do it at once.

        Args:
            names: The tables; None for all tables below the root, except tables that `remove_table` removed.
            channels: The tags to look for, such as `production`.
            message: The commit message; by default it names the tables.
            properties: Kept with the commit, and with the commits of the channels.

        Returns:
            The tables and channels that were adopted. With `names=None`, tables that cannot be adopted are skipped and
            listed.

        Raises:
            TableNotFoundError: There is no table at a name.
            AlreadyExistsError: A table is a copy of another table; or the name of a channel is that of a branch.
        """
        tables = None if names is None else string_list("names", names, "shop/orders")
        tags = string_list("channels", channels, "production")
        return Adoption(self._context).adopt(tables, tags, message=message, properties=properties or {})

    def move_table(
        self, name: str, new_name: str, *, message: str = "", properties: Properties = None
    ) -> RepositoryCommit:
        """Give a table whose folder was moved its new name, and commit that.

        Move the folder first, with the tools of the storage. Branches of the table name its old place and are repaired
        here. Older commits are read at the new place as far as their versions are on `main`.

        Args:
            name: The old name.
            new_name: The new name.
            message: The commit message, also of the versions by which branches are repaired.
            properties: Kept with the commit and with the versions that repair branches.

        Raises:
            TableNotFoundError: The table is not registered.
            InvalidInputError: Another table is at the new place.
        """
        # Checked before anything is written: the table would get its new name without a commit otherwise.
        validate_commit_info(message, properties or {})
        # The register is changed first: commits use the old name of the table, and readers find the new name by its
        # identity.
        self._context.registry.rename(name, new_name)
        moved = self._context.table(new_name)
        old = self._context.table(name).uri
        LanceTable(moved).maintenance.relocate(old, message=message or None, properties=properties)
        request = CommitRequest(
            branch=MAIN,
            stage=stage_nothing,
            names=(),
            renamed={name: new_name},
            message=message or f"move {name} to {new_name}",
            properties=properties or {},
        )
        return commit_tables(self._context.logs, request).commit

    def remove_table(self, name: str, *, message: str = "", properties: Properties = None) -> RepositoryCommit:
        """Commit that a table is no longer part of the repository. Its files stay, and older commits still read it.

        Raises:
            TableNotFoundError: The table is not part of the repository.
        """
        if name not in self.head().tables and name not in self.tables():
            raise TableNotFoundError(f"{self.root} has no table {name!r}")
        request = CommitRequest(
            branch=MAIN,
            stage=stage_nothing,
            names=(),
            removed=(name,),
            message=message or f"remove {name}",
            properties=properties or {},
        )
        # The commit first: a call that died after the commit is repeated and finds the table still registered. In the
        # opposite order the head would name a table that is not registered.
        committed = commit_tables(self._context.logs, request)
        self._context.registry.remove(name)
        return committed.commit

    def fork(self, name: str, branch: str, *, metadata: Mapping[str, str] | None = None) -> LanceTable:
        """Create a branch of a table that `publish` of the branch will find, or open the existing branch.

        The branch is forked from the table's `main`. Where a branch that was forked before is gone, the table is forked
        again, and a publication no longer refuses the branch because of the lost rows.
        """
        return LanceTable(fork_table(self._context, name, branch, metadata=metadata or {}))

    def head(self, ref: str = MAIN, *, tables: Iterable[str] | None = None) -> RepositoryCommit:
        """Return the commit that a ref names; `at` says what `tables` means."""
        return self._context.resolve(ref, None if tables is None else string_list("tables", tables, "shop/orders"))

    def at(self, ref: str, *, tables: Iterable[str] | None = None) -> RepositoryView:
        """Return all tables as the commit of a ref has them.

        `production~1` goes back before the newest promotion of the channel that is not withdrawn: each table of this
        promotion has its version from before the promotion, and every other table the version that the channel names
        now. With `tables`, only promotions of these tables count, and only these tables go back. Where the channel
        promoted `a` to version 2, then `b` to version 2, then `a` to version 3, `production~1` has `a` at 2 and `b` at
        2, `production~2` has `a` at 2 and `b` at 1, and `at("production~1", tables=["b"])` has `a` at 3 and `b` at 1.

        Args:
            ref: The ref expression.
            tables: The tables for which `~` of a channel counts; other expressions are not affected.

        Raises:
            RefNotFoundError: There is no such ref, or its log does not go back so far.
            TableNotFoundError: The channel does not name one of the tables.
        """
        return RepositoryView(self.head(ref, tables=tables), self._context.registry)

    def log(self, ref: str = MAIN, limit: int | None = None) -> list[RepositoryCommit]:
        """Return a commit and its ancestors, newest first, along first parents."""
        limit = optional_limit("limit", limit)
        return list(islice(self._first_parents(ref), limit))

    def commit(
        self,
        message: str,
        *,
        tables: Iterable[str] | None = None,
        properties: Properties = None,
    ) -> RepositoryCommit:
        """Commit the newest version of `main` of each table, as one state of the repository.

        Args:
            message: The commit message.
            tables: The tables; None for all that are registered.
            properties: Kept with the commit.

        Returns:
            The commit; the newest commit of `main` when no table changed.
        """
        staging = Staging(self._context.registry)

        def stage(name: str, dest: TableVersion | None) -> TableVersion | None:
            return stage_merge(staging.change(name, dest, options=MergeOptions(message=message)), dest)

        names = tuple(self.tables()) if tables is None else string_list("tables", tables, "shop/orders")
        request = CommitRequest(branch=MAIN, stage=stage, names=names, message=message, properties=properties or {})
        return commit_tables(self._context.logs, request).commit

    def publish(
        self,
        branch: str,
        *,
        channel: str | None = None,
        tables: Iterable[str] | None = None,
        audit: Callable[[Mapping[str, TableView]], None] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Merge a branch of many tables into `main` of the repository, all of them at once or none.

        Idempotent: after a crash, a repeated call completes the steps that are missing.

        Args:
            branch: The branch; of a run of Dagster, `run/` and the first eight characters of its id are enough.
            channel: A channel to promote to the commit. `production` is created where it does not exist.
            tables: The tables that have the branch; None for the tables that `fork` recorded.
            audit: A function that gets the versions that would be published, as `at` returns them, and raises to refuse
                the publication.
            **options: `message` is the commit message. `properties` are kept with the commit and with the merge in each
                table. `strategy` resolves conflicts, as for `LanceTable.merge`. `retire=False` keeps the branches of
                the tables, which are deleted otherwise. `create_channel=True` creates a channel other than
                `production`. `reads` names other tables that `audit` reads: `audit` gets their versions in the new
                commit as well, and is called again when another publication changes them before the commit.

        Raises:
            RefNotFoundError: There is no such branch, or no such channel; or no commit has a table in `reads`.
            PublishRefusedError: Tables have lost the branch that they were forked to; fork them again, or `discard`
                their part.
            MergeConflictError: Tables cannot be merged; the error has the conflicts of all tables, and nothing is
                visible.
            ProtectedError: The channel is held; nothing was merged.
        """
        check_options(self.publish, options, PublishOptions)
        if tables is not None:
            tables = string_list("tables", tables, "shop/orders")
        request, registry = PublishRequest(branch=branch, channel=channel, options=options), self._context.registry

        def audit_views(tables: Mapping[str, TableVersion]) -> None:
            if audit is not None:
                run_audit(audit, {name: TableView(name, at, registry) for name, at in tables.items()})

        return publish_branch(self._context, request, tables=tables, audit=None if audit is None else audit_views)

    def discard(self, branch: str, *, tables: Iterable[str] | None = None, reason: str = "") -> tuple[str, ...]:
        """End a branch, or its part in some tables, without publishing its rows.

        The branches of the tables are deleted, and the log of the branch records this; for the branch of a run of
        Dagster, which has to be over, a commit drops the writes; without commits of its own, it is only deleted. Other
        tables of the branch still wait, and can be published without the discarded tables.

        Args:
            branch: The branch; of a run of Dagster, `run/` and the first eight characters of its id are enough.
            tables: Tables that have it; None for all.
            reason: Why.

        Returns:
            The branches of tables that were not deleted, and why.

        Raises:
            RefNotFoundError: There is no such branch, or a table does not have it.
            ConflictError: The rows are published, or another process changed the branch at the same time.
        """
        names = None if tables is None else string_list("tables", tables, "shop/orders")
        return discard_branch(self._context, branch, names, reason=reason)

    def candidates(self) -> tuple[WaitingCandidate, ...]:
        """Return the candidates that wait, each with the writes of its run or backfill and the verdicts on their rows.

        They are read from the record in the repository, without Dagster.
        """
        return waiting_candidates(self._context)

    @property
    def record(self) -> CandidateRecord:
        """The record of the candidates: the writes of runs, and the verdicts of checks."""
        return self._context.record

    def table_id(self, name: str) -> str:
        """Return the identity of a table; a table that is not registered is registered now.

        Raises:
            TableNotFoundError: There is no table of that name.
        """
        return self._context.registry.register(name)

    def registered_id(self, name: str) -> str | None:
        """Return the identity of a table, or None where it is not registered; nothing is written."""
        return self._context.registry.id_of(name)

    def name_of(self, table: LanceTable) -> str:
        """Return the name of a table in the repository.

        Raises:
            InvalidInputError: The table is not below the root.
        """
        return self._context.registry.name_at(table.uri)

    def revert(self, ref: str, *, message: str = "", properties: Properties = None) -> RepositoryCommit:
        """Undo what one commit did to its tables, all at once, and keep everything that came later.

        A table that was moved since is found by its id. A table that was removed is left out, and the message of the
        new commit names the table. Where the commit is reverted already, only tables that were added or removed again
        since are changed. Where `main` of a table cannot be brought up to the new commit, `status` shows the table and
        `repair` tries again.

        Raises:
            MergeConflictError: Later changes depend on the commit; nothing is visible.
            ConflictError: A version of the commit is not on `main` of its table as it was published; all tables that
                the commit changed were removed; or another table has the place of a table that the commit removed.
            InvalidInputError: The commit changed nothing, or gave a table another name.
        """
        commit = self.head(ref)
        request = revert_request(self._context, commit, message=message, properties=properties or {})
        committed = commit_tables(self._context.logs, request)
        # A call that is repeated after a crash finds its commit, and `main` of the tables may not have followed it.
        names = committed.changed or changed_by(self._context, commit, committed.commit)
        staging = request.staging or Staging(self._context.registry)
        land_tables(staging, committed.commit, names)
        settle_tables(staging, committed.commit, names)
        # After the commit, as for `remove_table`. `commit` adds the versions of registered tables.
        for name, table_id in added_by(self._context, commit, committed.commit).items():
            if self._context.registry.id_of(name) == table_id:
                self._context.registry.remove(name)
        return committed.commit

    def diff(self, before: str, after: str) -> RepositoryDiff:
        """Return the tables that differ between two commits; `rows` of each compares its rows."""
        return diff_commits(self._context.registry, self.head(before), self.head(after))

    def status(self, *, tables: Iterable[str] | None = None) -> RepositoryStatus:
        """Return the status of every channel and branch, and of some tables or, without `tables`, of every table.

        `status(tables=[])` costs the same however many tables there are. It shows the branches that were forked, and
        not those that only tables know.
        """
        names = None if tables is None else string_list("tables", tables, "shop/orders")
        return status_of_repository(self._context, names)

    def _first_parents(self, ref: str) -> Iterable[RepositoryCommit]:
        commit = self.head(ref)
        yield commit
        while commit.parents:
            try:
                commit = self._context.logs.commit(commit.parents[0])
            except NotFoundError:
                # Older commits were collected.
                return
            yield commit


def _refuse_nested(root: str, own: Store, storage_options: Mapping[str, str]) -> None:
    """Refuse a root inside a table or a repository."""
    if own.list_some(VERSIONS, 1):
        raise InvalidInputError(f"{root} is a Lance table: create the repository in the folder that contains it")
    for above, name in folders_above(root):
        # Credentials may allow only the prefix of the root, and then the folders above it cannot be checked.
        with suppress(StoreError):
            store = open_store(above, storage_options)
            if name.endswith(SUFFIX) and store.list_some(f"{name}/{VERSIONS}", 1):
                raise InvalidInputError(f"{root} lies inside the table {above}/{name}")
            if store.get(MARKER) is not None:
                raise InvalidInputError(f"{root} lies inside the repository at {above}, which has the tables below it")


def _columns(schema: pa.Schema) -> str:
    return "\n".join(f"  {column.name}: {column.type}{'' if column.nullable else ' not null'}" for column in schema)
