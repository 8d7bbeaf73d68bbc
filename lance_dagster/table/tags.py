"""`table.tags`: create tags, move them by compare-and-swap, roll them back, hold them, and read their history."""

from collections.abc import Callable, Mapping, Sequence

from lance_dagster.errors import AlreadyExistsError, InvalidInputError
from lance_dagster.format.validation import check_string, string_list, whole_number
from lance_dagster.history.context import Ref, TableContext
from lance_dagster.history.refs import protection as protecting, rename, tag_operations
from lance_dagster.history.refs.followed_channel import Change, refuse_following
from lance_dagster.history.refs.protection import Protection
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.refs.tag_hold import HoldRequest
from lance_dagster.history.refs.tag_operations import TagMove, TagTarget
from lance_dagster.history.versions import State, Version
from lance_dagster.placement.relocate import present_version


class Tags:
    """The tags of a table, as `table.tags`."""

    def __init__(self, context: TableContext) -> None:
        """Wrap the context of a table."""
        self._context = context

    def list(self, pattern: str | None = None, *, limit: int | None = None) -> dict[str, Tag]:
        """Return the tags by name, in the order of their names.

        Args:
            pattern: A glob pattern such as `"v1.*"`; the files of other tags are not read.
            limit: Read at most so many tags.

        Raises:
            InvalidInputError: The pattern has more than 256 characters.
        """
        return self._context.refs.tags.all(pattern, limit)

    def get(self, name: str) -> Tag:
        """Return a tag; reads one file.

        Raises:
            RefNotFoundError: There is no such tag.
        """
        tag = self._context.refs.tags.stored(name)
        if tag is None:
            raise self._context.refs.tags.not_found(name)
        return tag

    def create(self, name: str, at: Ref, *, metadata: Mapping[str, str] | None = None, immutable: bool = False) -> Tag:
        """Name a version.

        Args:
            name: The new tag.
            at: The version.
            metadata: Stored with the tag.
            immutable: Whether the tag can never be moved or renamed, as suits the tag of a release.

        Raises:
            InvalidRefNameError: The name breaks a rule of the specification.
            InvalidInputError: A key of the metadata starts with `lance_dagster.`.
            AlreadyExistsError: A tag or branch has the name.
            RefNotFoundError: The version does not exist, or its branch was deleted in the meantime.
            ProtectedError: The name is protected, and the version is on a branch that is not.
        """
        # Resolved once: the name is checked and written for one version, however far the branch moves meanwhile.
        target = TagTarget(state=self._context.at(at), metadata=metadata or {})
        return tag_operations.create_tag(name, target, self._context.refs, self._context.versions, immutable=immutable)

    def move(
        self,
        name: str,
        at: Ref,
        *,
        expected: Version | str | None = None,
        metadata: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> Tag:
        """Point a tag to another version by compare-and-swap; create the tag if it is missing and `expected` is None.

        Args:
            name: The tag.
            at: The version to point to. A tag that points there already is left as it is.
            expected: The version the tag must point to now.
            metadata: Replaces the metadata of the tag, and is kept with the move in its history; None clears it.
            force: Move the tag although it follows a channel of a repository, whose readers see no change.

        Raises:
            RefMovedError: It does not point to `expected`, or another writer moved it at the same time.
            InvalidInputError: A key of the metadata starts with `lance_dagster.`.
            RefNotFoundError: There is no such tag, and `expected` is given; or there is no such version, or its branch
                was deleted meanwhile.
            ProtectedError: The tag is held or immutable; or the tag is protected, and the version is on a branch that
                is not protected; or the tag follows a channel, and `force` is False.
        """
        check_string("the name of a tag", name)
        refs, versions = self._context.refs, self._context.versions
        state = self._context.at(at)
        target = TagTarget(state=state, metadata=metadata or {}, guard=self._guard("move", state, force=force))
        stored = refs.tags.stored(name)
        if expected is None and stored is None:
            try:
                return tag_operations.create_tag(name, target, refs, versions, immutable=False)
            except AlreadyExistsError:
                # A concurrent call created the tag, so it is moved below. When a branch has the name, there is still
                # no tag, and the error is raised.
                if refs.tags.find(name) is None:
                    raise
        where = None if expected is None else str(expected)
        return tag_operations.move_tag(name, target, refs, versions, expected=where, stored=stored)

    def rollback(
        self,
        name: str,
        steps: int = 1,
        *,
        expected: Version | str | None = None,
        metadata: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> Tag:
        """Point a tag to an earlier target by compare-and-swap; the history records a move of its own kind.

        Moves that were rolled back do not count, so two roll-backs by one step equal one by two steps. The earlier
        version is found by branch id, even when its branch was renamed since. Where `maintenance.relocate` repaired a
        table that had been moved, the tag gets a version with the same rows, on a branch `relocated-<tag>` if need be.

        Args:
            name: The tag.
            steps: How many moves to go back.
            expected: The version the tag must point to now; None for its target at the start of the call.
            metadata: Replaces the metadata of the tag, and is kept with the move in its history; None clears it.
            force: Move the tag although it follows a channel of a repository, whose readers see no change.

        Raises:
            RefNotFoundError: There is no such tag, or the branch of the version was deleted meanwhile.
            InvalidInputError: The history has fewer moves, or `steps` is not a number of 1 or more; or a key of the
                metadata starts with `lance_dagster.`.
            VersionNotFoundError: The earlier version was removed, by garbage collection or with its branch.
            RefMovedError: It does not point to `expected`, or another writer moved it at the same time.
            ProtectedError: The tag is held or immutable; or the tag is protected, and the version is on a branch that
                is not protected; or the tag follows a channel, and `force` is False.
        """
        steps = whole_number("the number of steps", steps, 1)
        # The tag is read once: its history and the expected value of the swap must belong to the same state.
        current = self._context.refs.tags.stored(name)
        if current is None:
            raise self._context.refs.tags.not_found(name)
        earlier = self._context.load_recorded(tag_operations.earlier_target(current, steps))
        state = present_version(self._context, name, earlier)
        guard = self._guard("roll back", force=force, steps=steps)
        target = TagTarget(state=state, metadata=metadata or {}, steps_back=steps, guard=guard)
        where = current.ref if expected is None else str(expected)
        refs, versions = self._context.refs, self._context.versions
        return tag_operations.move_tag(name, target, refs, versions, expected=where, stored=current)

    def hold(
        self,
        name: str,
        *,
        reason: str,
        who: str = "",
        at: Ref | None = None,
        expected: Version | str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Tag:
        """Keep a tag where it is until `release`: `move`, `rollback`, `rename` and `delete` are refused meanwhile.

        The hold is stored with the tag, as `Tag.hold`, and stays in `Tag.holds` after the release. Other programs do
        not check it. A repeated call with the same reason changes nothing.

        Args:
            name: The tag.
            reason: Why; whoever is refused reads it.
            who: Who holds it; empty for the committer.
            at: Another version, to which the same compare-and-swap moves the tag.
            expected: With `at`, the version the tag must point to now.
            metadata: With `at`, replaces the metadata of the tag, as for `move`; None clears it.

        Raises:
            RefNotFoundError: There is no such tag, or no such version.
            InvalidInputError: The reason is empty or too long, or `expected` or `metadata` is given without `at`.
            RefMovedError: The tag does not point to `expected`, or another writer moved it at the same time.
            ProtectedError: It is held already; or it may not be moved, as for `move` without `force`.
        """
        check_string("the name of a tag", name)
        check_string("who", who)
        refs = self._context.refs
        if at is None:
            if expected is not None or metadata is not None:
                raise InvalidInputError(
                    "expected and metadata need at: without it the tag is held wherever it is; "
                    "at=expected holds it only there"
                )
            return tag_operations.hold_tag(name, HoldRequest(reason, who), refs)
        guard = self._guard("move", state := self._context.at(at), force=False)
        target = TagTarget(state=state, metadata=metadata or {}, hold=HoldRequest(reason, who), guard=guard)
        where = None if expected is None else str(expected)
        return tag_operations.move_tag(name, target, refs, self._context.versions, expected=where)

    def release(self, name: str, *, reason: str, who: str = "") -> Tag:
        """Let a held tag move again; a tag that is not held is left as it is.

        Args:
            name: The tag.
            reason: Why it may move again; kept in `Tag.holds`.
            who: Who releases it; empty for the committer.

        Raises:
            RefNotFoundError: There is no such tag.
            InvalidInputError: The reason is empty or too long.
        """
        check_string("who", who)
        return tag_operations.release_tag(name, reason, who, self._context.refs)

    def history(self, name: str) -> tuple[TagMove, ...]:
        """Return the last moves of a tag, newest first; the creation is the oldest move.

        A move by another program is detected by the next move of this package, or by this call.

        Raises:
            RefNotFoundError: There is no such tag.
        """
        return tag_operations.tag_history(self.get(name))

    def rename(self, name: str, new_name: str) -> Tag:
        """Rename a tag with its history. Both names exist for a moment, so that the version is always tagged.

        Raises:
            InvalidRefNameError: The new name breaks a rule of the specification.
            RefNotFoundError: There is no such tag.
            AlreadyExistsError: The new name is taken.
            ProtectedError: It is immutable or held, or one of the names is protected.
        """
        return rename.rename_tag(name, new_name, self._context.refs)

    def set_metadata(self, name: str, updates: Mapping[str, str | None]) -> Tag:
        """Update the metadata of a tag by compare-and-swap; a value of None removes the key.

        Raises:
            RefNotFoundError: There is no such tag.
            InvalidInputError: A key starts with `lance_dagster.`.
        """
        return tag_operations.set_metadata(name, updates, self._context.refs)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a tag.

        Args:
            name: The tag.
            force: Delete it although it is immutable, or follows a channel of a repository.

        Raises:
            RefNotFoundError: There is no such tag.
            ProtectedError: It is protected or held; or immutable or follows a channel, and `force` is False.
        """
        tag_operations.delete_tag(name, self._context.refs, force=force, guard=self._guard("delete", force=force))

    def _guard(self, do: Change, state: State | None = None, *, force: bool, steps: int = 1) -> Callable[[Tag], None]:
        """Return what refuses to change a tag alone that follows a channel, unless it is forced."""

        def guard(tag: Tag) -> None:
            goes_back = do == "move" and state is not None and state.branch == tag.branch and state.number < tag.version
            if not force:
                refuse_following("roll back" if goes_back else do, tag, self._context, steps)

        return guard

    def protect(self, patterns: Sequence[str]) -> Protection:
        """Protect tags by glob patterns, in addition to existing patterns.

        A protected tag can only point to versions of `main` or of protected branches, and cannot be deleted or renamed.
        Other programs do not check the protection.

        Args:
            patterns: Such as `["production", "v*"]`; `*` matches any characters, "/" included.

        Raises:
            InvalidInputError: A pattern is empty or has more than 256 characters, or the argument is not a list.
        """
        return protecting.change_protection(self._context.store, _patterns(patterns), Protection())

    def unprotect(self, patterns: Sequence[str]) -> Protection:
        """Remove patterns that `protect` added.

        Raises:
            InvalidInputError: Nothing is protected by such a pattern.
        """
        return protecting.change_protection(self._context.store, Protection(), _patterns(patterns))


def _patterns(patterns: Sequence[str]) -> Protection:
    return Protection(tags=string_list("patterns", patterns, "v*"))
