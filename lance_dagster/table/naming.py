"""Branches and tags: the methods of a table that name versions."""

from collections.abc import Mapping

from lance_dagster.errors import AlreadyExistsError, RefNotFoundError
from lance_dagster.format.layout import MAIN, check_tag_name
from lance_dagster.history import branches as branching
from lance_dagster.history.refs import READY, Branch, Tag
from lance_dagster.history.versions import Version
from lance_dagster.table.facade import Facade


class Naming(Facade):
    """Names move by compare-and-swap; a name that is there is never taken from somebody else."""

    def branches(self) -> dict[str, Branch]:
        """Return the branches by name, without `main` and without those being created or deleted."""
        return {name: found for name, found in self._parts.refs.branches().items() if found.state == READY}

    def tags(self) -> dict[str, Tag]:
        """Return the tags by name."""
        return self._parts.refs.tags()

    def create_branch(
        self,
        name: str,
        at: str = MAIN,
        *,
        exist_ok: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> Branch:
        """Fork a branch from a version; no data is copied.

        Args:
            name: The new branch.
            at: The version to fork from.
            exist_ok: Return the branch of that name when there is one, wherever it was forked.
            metadata: Kept with the branch.

        Raises:
            InvalidRefNameError: The name breaks a rule of the specification.
            AlreadyExistsError: The name is taken.
        """
        if name in self._parts.refs.tags():
            raise AlreadyExistsError(f"{name!r} is a tag of {self.uri}; a branch of that name would be ambiguous")
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
            RefNotFoundError: There is no such branch.
            ConflictError: A tag or another branch refers to it.
        """
        branching.delete_branch(name, self._parts.refs)

    def create_tag(self, name: str, at: str, *, metadata: Mapping[str, str] | None = None) -> Tag:
        """Name a version.

        Raises:
            InvalidRefNameError: The name breaks a rule of the specification.
            AlreadyExistsError: The name is taken.
        """
        return self._parts.refs.add_tag(self._tag(name, at, metadata))

    def move_tag(
        self,
        name: str,
        at: str,
        *,
        expected: Version | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Tag:
        """Point a tag to another version by compare-and-swap; create it when there is none and none is expected.

        Args:
            name: The tag.
            at: The version to point to. A tag that points there already is left as it is.
            expected: Where the tag has to point now.
            metadata: Kept with the tag, in place of what was there.

        Raises:
            RefMovedError: It does not point to `expected`, or somebody moved it at the same time.
        """
        wanted = self._tag(name, at, metadata)
        current = self._parts.refs.tag(name)
        if current is None and expected is None:
            try:
                return self._parts.refs.add_tag(wanted)
            except AlreadyExistsError:
                current = self._parts.refs.tag(name)
        if current is not None and current.ref == wanted.ref and expected is None:
            return current
        return self._parts.refs.swap_tag(wanted, None if expected is None else str(expected))

    def delete_tag(self, name: str) -> None:
        """Delete a tag.

        Raises:
            RefNotFoundError: There is no such tag.
        """
        if self._parts.refs.tag(name) is None:
            raise RefNotFoundError(name, list(self._parts.refs.tags()), self.uri)
        self._parts.refs.remove_tag(name)

    def _tag(self, name: str, at: str, metadata: Mapping[str, str] | None) -> Tag:
        check_tag_name(name)
        if self._parts.refs.branch(name) is not None or name == MAIN:
            raise AlreadyExistsError(f"{name!r} is a branch of {self.uri}; a tag of that name would be ambiguous")
        state = self._parts.at(at)
        return Tag(
            name=name,
            branch=state.branch,
            version=state.number,
            metadata=metadata or {},
            manifest_size=self._parts.versions.manifest_size(state),
        )
