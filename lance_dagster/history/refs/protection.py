"""The protection of branches and tags: which are protected, and against which changes.

A protected branch takes merges and nothing else: no commit of its own, except maintenance that leaves every row as it
is; no reset, no deletion, no rename. A protected tag names only versions of `main` or of a protected branch, and is
not deleted or renamed, so that readers who follow it see merged data.

Names are matched by glob patterns in one file beside the branches and tags, `_refs/protection.json`. It is not part of
a version: restoring an old version would change the protection, and branches that were forked earlier would not have
it. The file is read once for each commit. It binds this package only; other programs do not read it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lance_dagster.errors import Call, CorruptFileError, InvalidInputError, ProtectedError, Remedy, StoreError
from lance_dagster.format.layout import MAIN, PROTECTION
from lance_dagster.format.transaction import MAINTENANCE, Transaction
from lance_dagster.format.validation import LONGEST_PATTERN, check_pattern, parsed_json
from lance_dagster.store import Store

_ATTEMPTS = 5
_MAX_BYTES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The glob patterns of protected names; `*` matches any characters, "/" included."""

    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the patterns, first of branches and then of tags."""
        kinds = (("branches", self.branches), ("tags", self.tags))
        return "; ".join(f"{kind} {', '.join(own)}" for kind, own in kinds if own) or "nothing is protected"

    def of_branch(self, name: str) -> str | None:
        """Return the pattern that protects a branch, or None."""
        return _matching(name, self.branches)

    def of_tag(self, name: str) -> str | None:
        """Return the pattern that protects a tag, or None."""
        return _matching(name, self.tags)

    def require_patterns(self, branches: Iterable[str], tags: Iterable[str]) -> None:
        """Require that patterns are in this protection, so that a typo does not pass as removed.

        Raises:
            InvalidInputError: A pattern is missing; the error names it and the patterns that exist.
        """
        for required, existing in ((branches, self.branches), (tags, self.tags)):
            for pattern in required:
                if pattern not in existing:
                    patterns = (
                        f"the protected patterns are {', '.join(existing)}" if existing else "nothing is protected yet"
                    )
                    raise InvalidInputError(f"{pattern!r} is not a protected pattern; {patterns}")

    def with_patterns(self, branches: Iterable[str], tags: Iterable[str]) -> "Protection":
        """Return this protection with patterns added."""
        return Protection(branches=tuple(sorted({*self.branches, *branches})), tags=tuple(sorted({*self.tags, *tags})))

    def without_patterns(self, branches: Iterable[str], tags: Iterable[str]) -> "Protection":
        """Return this protection with patterns removed."""
        return Protection(
            branches=tuple(pattern for pattern in self.branches if pattern not in set(branches)),
            tags=tuple(pattern for pattern in self.tags if pattern not in set(tags)),
        )


def protection(store: Store) -> Protection:
    """Read which names of a table are protected.

    Raises:
        CorruptFileError: The file cannot be read.
    """
    return _parsed(store.get(PROTECTION), store)


def change_protection(store: Store, add: Protection, remove: Protection) -> Protection:
    """Add and remove patterns by compare-and-swap; return the new protection.

    Raises:
        InvalidInputError: A pattern is empty or has more than 256 characters, or a pattern to remove is not there.
    """
    for pattern in (*add.branches, *add.tags):
        check_pattern(pattern)
    if not all((*add.branches, *add.tags)):
        raise InvalidInputError("a pattern cannot be empty; '*' protects every name")
    for attempt in range(_ATTEMPTS):
        stored = store.get_with_etag(PROTECTION)
        current = _parsed(stored[0] if stored else None, store)
        if not attempt:
            # Only the first attempt checks this: at a later attempt, the patterns may be gone because our own request
            # succeeded and the HTTP client sent it twice.
            current.require_patterns(remove.branches, remove.tags)
        changed = current.without_patterns(remove.branches, remove.tags).with_patterns(add.branches, add.tags)
        if changed == current:
            return current
        data = json.dumps({"branches": changed.branches, "tags": changed.tags}, indent=2).encode()
        # A lost answer shows up at the next attempt, which reads what is stored and finds nothing to change.
        if stored is None and store.put_if_absent(PROTECTION, data):
            return changed
        if stored is not None and store.compare_and_swap(PROTECTION, data, stored[1]):
            return changed
    raise StoreError(f"cannot change what is protected in {store.uri}: it keeps changing")


def refuse_direct_commit(store: Store, branch: str, transaction: Transaction) -> None:
    """Refuse a commit to a protected branch, unless it is maintenance.

    Raises:
        ProtectedError: The branch is protected.
    """
    # Maintenance changes no row, so there is nothing that a review before a merge would find.
    if not isinstance(transaction.operation, MAINTENANCE):
        refuse_protected_branch(
            "commit to", branch, store, Remedy("commit to another branch and merge it into this one")
        )


def refuse_protected_branch(do: str, branch: str, store: Store, instead: Remedy | None = None) -> None:
    """Refuse an action on a protected branch.

    Raises:
        ProtectedError: The branch is protected.
    """
    # The rules are read for each action and never cached: another process may protect a branch at any time.
    pattern = protection(store).of_branch(branch)
    if pattern is not None:
        because = _because(branch, pattern, store)
        raise ProtectedError("branch", branch, do, because, instead or _unprotect("branches", pattern))


def refuse_protected_tag(do: str, tag: str, store: Store, target: str | None = None) -> None:
    """Refuse an action on a protected tag.

    Args:
        do: The action, for the message.
        tag: The name of the tag.
        store: The store of the table.
        target: The branch of the version that the tag is to name; None when the tag is to be deleted or renamed.

    Raises:
        ProtectedError: The tag is protected, and `target` is neither `main` nor a protected branch.
    """
    # Every tag may name a version of `main`, so nothing is read for the tags that follow a channel.
    if target == MAIN:
        return
    rules = protection(store)
    pattern = rules.of_tag(tag)
    if pattern is None or (target is not None and rules.of_branch(target) is not None):
        return
    because = _because(tag, pattern, store)
    if target is None:
        raise ProtectedError("tag", tag, do, because, _unprotect("tags", pattern))
    because = f"{because} and can name only versions of main or of a protected branch, unlike {target!r}"
    raise ProtectedError("tag", tag, do, because, Remedy(f"merge {target!r} first"))


def _because(name: str, pattern: str, store: Store) -> str:
    by = "" if name == pattern else f" by the pattern {pattern!r}"
    return f"it is protected{by} in {store.uri}"


def _unprotect(kind: str, pattern: str) -> Remedy:
    arguments = ([pattern],)
    call = Call("tags.unprotect", arguments) if kind == "tags" else Call("branches.unprotect", arguments)
    return Remedy("{} takes that back", call)


def _matching(name: str, patterns: Sequence[str]) -> str | None:
    # `fnmatch` would ignore the case of letters on some systems, so that protection depended on who asks.
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def _parsed(data: bytes | None, store: Store) -> Protection:
    if data is None:
        return Protection()
    problem = f"it does not hold the patterns of protected branches and tags, of {LONGEST_PATTERN} characters at most"
    # Every commit compares the name of its branch with all patterns.
    if len(data) > _MAX_BYTES:
        raise CorruptFileError(f"{store.uri}/{PROTECTION}", f"it has {len(data)} bytes, far more than patterns need")
    try:
        content = parsed_json(data)
        return Protection(branches=_patterns(content["branches"]), tags=_patterns(content["tags"]))
    except (ValueError, LookupError, TypeError) as error:
        # Fail closed: with an unreadable file everything counts as protected.
        raise CorruptFileError(f"{store.uri}/{PROTECTION}", problem) from error


def _patterns(patterns: object) -> tuple[str, ...]:
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise TypeError("not a list of non-empty strings")
    if any(len(pattern) > LONGEST_PATTERN for pattern in patterns):
        raise ValueError("a pattern is too long")
    return tuple(patterns)
