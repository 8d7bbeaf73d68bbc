"""Which branches and tags are protected, and from what.

A protected branch takes merges and nothing else: no commit of its own, except upkeep that leaves every row as it is; no
reset, no deletion, no new name. A protected tag names only what is on `main` or on a protected branch, and is not
deleted or renamed: readers who follow it see what was merged there.

The names are glob patterns in one file beside the branches and tags, `_refs/protection.json`. In a version they would
come back, or go, when an older version is restored, and a branch forked before would not know of them. It is read once
for each commit. Programs that write to the table past this package do not look at it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lance_dagster.errors import Call, CorruptFileError, InvalidInputError, ProtectedError, Remedy, StoreError
from lance_dagster.format.layout import MAIN, PROTECTION
from lance_dagster.format.transaction import CreateIndex, ReserveFragments, Rewrite, Transaction
from lance_dagster.store import Store

_UPKEEP = (CreateIndex, ReserveFragments, Rewrite)
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The glob patterns of protected names; `*` stands for any characters, "/" included."""

    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def of_branch(self, name: str) -> str | None:
        """Return the pattern that protects a branch, or None."""
        return _matching(name, self.branches)

    def of_tag(self, name: str) -> str | None:
        """Return the pattern that protects a tag, or None."""
        return _matching(name, self.tags)

    def require_patterns(self, branches: Iterable[str], tags: Iterable[str]) -> None:
        """Refuse patterns that are not among these.

        Raises:
            InvalidInputError: Names the first, and what there is.
        """
        for pattern, own in (*((one, self.branches) for one in branches), *((one, self.tags) for one in tags)):
            if pattern not in own:
                raise InvalidInputError(f"nothing is protected as {pattern!r}; there is {', '.join(own) or 'nothing'}")

    def with_patterns(self, branches: Iterable[str], tags: Iterable[str]) -> "Protection":
        """Return this protection and more."""
        return Protection(branches=tuple(sorted({*self.branches, *branches})), tags=tuple(sorted({*self.tags, *tags})))

    def without_patterns(self, branches: Iterable[str], tags: Iterable[str]) -> "Protection":
        """Return this protection without some of its patterns."""
        return Protection(
            branches=tuple(one for one in self.branches if one not in set(branches)),
            tags=tuple(one for one in self.tags if one not in set(tags)),
        )


def protection(store: Store) -> Protection:
    """Read which names of a table are protected.

    Raises:
        CorruptFileError: The file does not say.
    """
    return _parsed(store.get(PROTECTION), store)


def change_protection(store: Store, add: Protection, remove: Protection) -> Protection:
    """Protect more names, and fewer, by compare-and-swap; returns what is protected then.

    Raises:
        InvalidInputError: A pattern is empty, or one that shall go is not there.
    """
    if not all((*add.branches, *add.tags)):
        raise InvalidInputError("a pattern cannot be empty; '*' protects every name")
    for attempt in range(_ATTEMPTS):
        found = store.get_with_tag(PROTECTION)
        current = _parsed(found[0] if found else None, store)
        if not attempt:
            # Later they may be gone by the request before, which a client below us made twice.
            current.require_patterns(remove.branches, remove.tags)
        wanted = current.without_patterns(remove.branches, remove.tags).with_patterns(add.branches, add.tags)
        if wanted == current:
            return current
        data = json.dumps({"branches": wanted.branches, "tags": wanted.tags}, indent=2).encode()
        if found is None and store.put_if_absent(PROTECTION, data):
            return wanted
        if found is not None and store.compare_and_swap(PROTECTION, data, found[1]):
            return wanted
    raise StoreError(f"cannot change what is protected in {store.uri}: it keeps changing")


def refuse_direct_commit(store: Store, branch: str, transaction: Transaction) -> None:
    """Refuse a commit to a protected branch, unless it is upkeep.

    Raises:
        ProtectedError: The branch is protected.
    """
    if not isinstance(transaction.operation, _UPKEEP):
        refuse_protected_branch(
            "commit to", branch, store, Remedy("commit to another branch and merge it into this one")
        )


def refuse_protected_branch(do: str, branch: str, store: Store, instead: Remedy | None = None) -> None:
    """Refuse to do something to a protected branch.

    Raises:
        ProtectedError: The branch is protected.
    """
    pattern = protection(store).of_branch(branch)
    if pattern is not None:
        because = _because(branch, pattern, store)
        raise ProtectedError("branch", branch, do, because, instead or _unprotect("branches", pattern))


def refuse_protected_tag(do: str, tag: str, store: Store, target: str | None = None) -> None:
    """Refuse to do something to a protected tag.

    Args:
        do: What is to be done.
        tag: The tag.
        store: Where the table is.
        target: The branch of the version it shall name; None when it shall name none any more.

    Raises:
        ProtectedError: The tag is protected, and `target` is neither `main` nor a protected branch.
    """
    rules = protection(store)
    pattern = rules.of_tag(tag)
    if pattern is None or target == MAIN or (target is not None and rules.of_branch(target) is not None):
        return
    because = _because(tag, pattern, store)
    if target is None:
        raise ProtectedError("tag", tag, do, because, _unprotect("tags", pattern))
    because = f"{because} and names only what is on main or on a protected branch, unlike {target!r}"
    raise ProtectedError("tag", tag, do, because, Remedy(f"merge {target!r} first"))


def _because(name: str, pattern: str, store: Store) -> str:
    by = "" if name == pattern else f" by the pattern {pattern!r}"
    return f"it is protected{by} in {store.uri}"


def _unprotect(kind: str, pattern: str) -> Remedy:
    return Remedy("{} takes that back", Call("unprotect", named={kind: [pattern]}))


def _matching(name: str, patterns: Sequence[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def _parsed(data: bytes | None, store: Store) -> Protection:
    if data is None:
        return Protection()
    problem = "it does not hold the patterns of protected branches and tags"
    try:
        found = json.loads(data)
        return Protection(branches=_patterns(found["branches"]), tags=_patterns(found["tags"]))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        # Nobody could say what is protected, so nothing may be written: not even past this file.
        raise CorruptFileError(f"{store.uri}/{PROTECTION}", problem) from error


def _patterns(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(pattern, str) and pattern for pattern in found):
        raise TypeError("not a list of texts")
    return tuple(found)
