"""Branches and what is protected: the methods of a table that name lines of versions."""

from collections.abc import Mapping, Sequence

from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import string_list
from lance_dagster.history.refs import branch_operations as branching, protection as protecting, rename
from lance_dagster.history.refs.protection import Protection
from lance_dagster.history.refs.ref_store import READY, Branch
from lance_dagster.table.facade import Facade


class Naming(Facade):
    """A name that is there is never taken from somebody else; what was begun and died is finished by doing it again."""

    def branches(self, pattern: str | None = None) -> dict[str, Branch]:
        """Return the branches by name, without `main` and without those being created or deleted.

        Args:
            pattern: A glob pattern such as `"run/*"`; the files of other branches are not read.
        """
        return {name: found for name, found in self._parts.refs.branches(pattern).items() if found.state == READY}

    def branch(self, name: str) -> Branch:
        """Return one branch; reads one file.

        Raises:
            RefNotFoundError: There is no such branch; `main` is not one of these.
        """
        found = self._parts.refs.branch(name)
        if found is None or found.state != READY:
            raise self._parts.refs.branch_not_found(name)
        return found

    def create_branch(
        self,
        name: str,
        at: str = MAIN,
        *,
        exist_ok: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> Branch:
        """Fork a branch from a version; no data is copied.

        Its numbers go on from the version's. Where a branch of that name was deleted within the last day, they begin
        above those of that one: `first` of the result says where.

        Args:
            name: The new branch.
            at: The version to fork from.
            exist_ok: Return the branch of that name when there is one, wherever it was forked.
            metadata: Kept with the branch.

        Raises:
            InvalidRefNameError: The name breaks a rule of the specification.
            InvalidInputError: A key of the metadata starts with `lance_dagster.`.
            RefNotFoundError: There is no such version to fork from.
            AlreadyExistsError: The name is taken.
        """
        branching.refuse_reserved_keys(metadata or {})
        return branching.create_branch(
            name,
            self._parts.at(at),
            self._parts.refs,
            self._parts.versions,
            exist_ok=exist_ok,
            metadata=metadata or {},
        )

    def delete_branch(self, name: str) -> None:
        """Delete a branch; its data files stay until they are collected.

        Raises:
            InvalidInputError: The branch is `main`.
            RefNotFoundError: There is no such branch.
            ProtectedError: The branch is protected.
            ConflictError: A tag or another branch refers to it.
        """
        branching.delete_branch(name, self._parts.refs, self._parts.versions)

    def rename_branch(self, name: str, new_name: str) -> Branch:
        """Give a branch another name; versions keep their numbers, and what was merged stays merged.

        Every manifest is written again, and files that lie in the branch's own folder are copied. Commits to it fail
        from the start on, or do not know whether they were taken along.

        Raises:
            InvalidRefNameError: The new name breaks a rule of the specification.
            InvalidInputError: The branch is `main`.
            RefNotFoundError: There is no such branch.
            AlreadyExistsError: The new name is taken, or another branch had it until less than a day ago.
            ProtectedError: One of the names is protected.
            ConflictError: A tag or another branch refers to it.
        """
        return rename.rename_branch(name, new_name, self._parts.refs, self._parts.versions)

    def reset(self, branch: str, at: str = MAIN) -> Branch:
        """Make a branch start anew from a version, as if it was deleted and created again; what it had is gone.

        Who is in the middle of a commit to it gets a `CommitConflictError`, or a `CommitStateUnknownError` where it may
        have been merged just before. Its metadata stays. To go back on a branch
        without losing what came after, restore the older version as the next one.

        Args:
            branch: The branch; not `main`.
            at: The version to start from, on another branch.

        Raises:
            RefNotFoundError: There is no such branch.
            InvalidInputError: The branch is `main`, or the version is its own.
            ProtectedError: The branch is protected.
            ConflictError: A tag or another branch refers to it.
        """
        return branching.reset_branch(branch, self._parts.at(at), self._parts.refs, self._parts.versions)

    def set_branch_metadata(self, name: str, updates: Mapping[str, str | None]) -> Branch:
        """Change what is kept with a branch, by compare-and-swap; a value of None takes a key out.

        Raises:
            RefNotFoundError: There is no such branch.
            InvalidInputError: A key starts with `lance_dagster.`.
        """
        return branching.set_metadata(name, updates, self._parts.refs)

    def protection(self) -> Protection:
        """Return which names are protected."""
        return protecting.protection(self._parts.store)

    def protect(self, *, branches: Sequence[str] = (), tags: Sequence[str] = ()) -> Protection:
        """Protect branches and tags by glob patterns, beside those that are protected already.

        A protected branch takes merges and upkeep (compaction, indices), and no other commit; it cannot be reset,
        deleted or renamed. A protected tag can only name versions of `main` or of protected branches; it cannot be
        deleted or renamed. Commits in flight may still land. Programs that write past this package do not look.

        Args:
            branches: Such as `"main"` or `"release/*"`; `*` stands for any characters, "/" included.
            tags: Such as `"production"` or `"v*"`.

        Raises:
            InvalidInputError: A pattern is empty, or what is given is no list.
        """
        add = Protection(branches=string_list("branches", branches, "release/*"), tags=string_list("tags", tags, "v*"))
        return protecting.change_protection(self._parts.store, add, Protection())

    def unprotect(self, *, branches: Sequence[str] = (), tags: Sequence[str] = ()) -> Protection:
        """Take patterns back; the arguments are those of `protect`.

        Raises:
            InvalidInputError: Nothing is protected by such a pattern.
        """
        remove = Protection(
            branches=string_list("branches", branches, "release/*"), tags=string_list("tags", tags, "v*")
        )
        return protecting.change_protection(self._parts.store, Protection(), remove)
