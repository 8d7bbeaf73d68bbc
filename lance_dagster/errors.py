"""Every exception this package raises, grouped by what a handler would do about it.

    LanceDagsterError                        .hint: what to try next
    |- NotFoundError (LookupError)           ask for something else
    |    TableNotFoundError, VersionNotFoundError, RefNotFoundError (.ref .known)
    |- AlreadyExistsError                    choose another name
    |- InvalidInputError (ValueError)        fix the call
    |    InvalidRefNameError (.name .rule), RefSyntaxError (.expression .position), SchemaMismatchError
    |- ConflictError                         someone else changed it
    |    CommitConflictError (.retryable .theirs), MergeConflictError (.conflicts), RefMovedError (.expected .found)
    |- ProtectedError                        .kind .name .refused: a rule of the table forbids it
    |- PublishRefusedError                   .reasons
    |- FormatError                           the bytes cannot be understood
    |    CorruptFileError (.path), UnsupportedFeatureError (.flags)
    |- CommitStateUnknownError               .uuid .transaction: it may or may not have landed; resume, never delete
    `- StoreError                            the storage failed, or cannot promise what is asked
         ConditionalPutUnsupportedError

Constructors take plain positional arguments, so that every error survives pickling between processes.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

_MAYBE_COMMIT = re.compile(r"[0-9a-fA-F]{8,64}")


class LanceDagsterError(Exception):
    """Report something this package cannot do, in one sentence a person can act on."""

    @property
    def hint(self) -> str | None:
        """What to try next, where there is something to try."""
        return None


class NotFoundError(LanceDagsterError, LookupError):
    """Report that what was asked for does not exist."""


class TableNotFoundError(NotFoundError):
    """Report that there is no Lance table at a URI."""


class VersionNotFoundError(NotFoundError):
    """Report that a branch has no version of the number asked for."""


class RefNotFoundError(NotFoundError):
    """Report that no branch or tag has the name asked for."""

    def __init__(self, ref: str, known: Sequence[str], where: str) -> None:
        """Keep the name asked for, the names that exist and the table they were looked up in."""
        super().__init__(ref, known, where)
        self.ref = ref
        self.known = tuple(known)
        self.where = where

    @property
    def hint(self) -> str:
        """The nearest names, or all of them when none is near."""
        near = difflib.get_close_matches(self.ref, self.known, n=3, cutoff=0.5)
        if near:
            return f"did you mean {' or '.join(repr(name) for name in near)}?"
        return f"known names: {', '.join(sorted(self.known)[:10]) or 'none'}"

    def __str__(self) -> str:
        """Name the ref, the table and the nearest names."""
        kinds = "branch, tag or commit" if _MAYBE_COMMIT.fullmatch(self.ref) else "branch or tag"
        return f"no {kinds} {self.ref!r} in {self.where}; {self.hint}"


class AlreadyExistsError(LanceDagsterError):
    """Report that the name or place asked for is taken."""


class InvalidInputError(LanceDagsterError, ValueError):
    """Report a call that can be put right by its caller."""


class InvalidRefNameError(InvalidInputError):
    """Report a branch or tag name that breaks a rule of the specification."""

    def __init__(self, kind: str, name: str, rule: str) -> None:
        """Keep the kind of name ("branch" or "tag"), the name and the rule it breaks."""
        super().__init__(kind, name, rule)
        self.kind = kind
        self.name = name
        self.rule = rule

    def __str__(self) -> str:
        """Name what was given and the rule it breaks."""
        return f"{self.name!r} cannot name a {self.kind}: {self.rule}"


class RefSyntaxError(InvalidInputError):
    """Report a ref expression that cannot be parsed."""

    def __init__(self, expression: str, position: int, expected: str) -> None:
        """Keep the expression, the offset of the first character not understood and what could stand there."""
        super().__init__(expression, position, expected)
        self.expression = expression
        self.position = position
        self.expected = expected

    def __str__(self) -> str:
        """Point at the character and name what could stand there."""
        return f"cannot read ref {self.expression!r} at character {self.position}: expected {self.expected}"


class SchemaMismatchError(InvalidInputError):
    """Report rows that do not fit the schema of the table they are written to."""


class ConflictError(LanceDagsterError):
    """Report that someone else changed what this call was about to change."""


class CommitConflictError(ConflictError):
    """Report that a version committed meanwhile makes this commit meaningless."""

    def __init__(self, message: str, theirs: str, retryable: bool) -> None:  # noqa: FBT001  # pickled by position
        """Keep the message, the version that got in between, and whether redoing the work can help."""
        super().__init__(message, theirs, retryable)
        self.message = message
        self.theirs = theirs
        self.retryable = retryable

    @property
    def hint(self) -> str:
        """Whether to read again and redo the change."""
        return "read the table again and redo the change" if self.retryable else "look at what they did first"

    def __str__(self) -> str:
        """Say what conflicts and what to do."""
        return f"{self.message}; {self.hint}"


class Reason(Protocol):
    """One reason why two sides cannot be merged, as `changes.sides.Conflict` has it."""

    @property
    def kind(self) -> str:
        """What kind of thing it is about, such as "rows" or "column"."""
        ...

    @property
    def unit(self) -> str:
        """What it is about, such as "column price": what a strategy for it alone is given under."""
        ...

    @property
    def source(self) -> str:
        """What the source did."""
        ...

    @property
    def dest(self) -> str:
        """What the dest did."""
        ...


class MergeConflictError(ConflictError):
    """Report every reason why two branches cannot be merged; nothing was written."""

    def __init__(self, message: str, conflicts: Iterable[Reason]) -> None:
        """Keep the headline and the conflicts, each printable on its own."""
        found = tuple(conflicts)
        super().__init__(message, found)
        self.message = message
        self.conflicts = found

    def __str__(self) -> str:
        """List the headline and each conflict on a line of its own."""
        return "\n".join([self.message, *(f"  - {conflict}" for conflict in self.conflicts)])


class RefMovedError(ConflictError):
    """Report that a ref no longer points where the caller last saw it."""

    def __init__(self, ref: str, expected: str, found: str) -> None:
        """Keep the ref, where it should have pointed and where it points."""
        super().__init__(ref, expected, found)
        self.ref = ref
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        """Name the ref and both places."""
        return f"{self.ref!r} points to {self.found}, not to {self.expected}: someone moved it meanwhile"


class ProtectedError(LanceDagsterError):
    """Report what a branch or tag is protected from; nothing was written."""

    def __init__(self, kind: str, name: str, refused: str, because: str, hint: str) -> None:
        """Keep what was asked of which branch or tag, the rule that forbids it and what to do instead."""
        super().__init__(kind, name, refused, because, hint)
        self.kind = kind
        self.name = name
        self.refused = refused
        self.because = because
        self._hint = hint

    @property
    def hint(self) -> str:
        """What to do instead."""
        return self._hint

    def __str__(self) -> str:
        """Name the branch or tag, the rule and what to do instead."""
        return f"cannot {self.refused} {self.kind} {self.name!r}: {self.because}; {self.hint}"


class PublishRefusedError(LanceDagsterError):
    """Report every reason why a branch may not be published; nothing was merged and no tag moved."""

    def __init__(self, message: str, reasons: Iterable[str]) -> None:
        """Keep the headline and the reasons."""
        found = tuple(reasons)
        super().__init__(message, found)
        self.message = message
        self.reasons = found

    def __str__(self) -> str:
        """List the headline and each reason on a line of its own."""
        return "\n".join([self.message, *(f"  - {reason}" for reason in self.reasons)])


class FormatError(LanceDagsterError):
    """Report bytes that are not what the table format says they should be."""


class CorruptFileError(FormatError):
    """Report a damaged file."""

    def __init__(self, path: str, problem: str) -> None:
        """Keep the file's path and what is wrong with it."""
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        """Name the file and what is wrong with it."""
        return f"{self.path} is damaged: {self.problem}"


class UnsupportedFeatureError(FormatError):
    """Report a table that uses something this package does not know, and so must not touch."""

    def __init__(self, path: str, flags: Iterable[str]) -> None:
        """Keep the file's path and the names of what is not known."""
        found = tuple(flags)
        super().__init__(path, found)
        self.path = path
        self.flags = found

    def __str__(self) -> str:
        """Name the file and each unknown feature."""
        return f"{self.path} uses features this release does not support: {', '.join(self.flags)}"


class CommitStateUnknownError(LanceDagsterError):
    """Report a commit that may or may not have landed.

    `LanceTable.commit(error.transaction, branch=...)` resumes: a transaction is recognised by its uuid and lands
    exactly once, however often it is committed.
    """

    def __init__(self, message: str, uuid: str, transaction: object) -> None:
        """Keep the message, the uuid of the transaction, and the transaction itself to resume with."""
        super().__init__(message, uuid, transaction)
        self.message = message
        self.uuid = uuid
        self.transaction = transaction

    @property
    def hint(self) -> str:
        """How to resume."""
        return "commit the same transaction again: it lands exactly once; delete nothing meanwhile"

    def __str__(self) -> str:
        """Name the transaction and how to resume."""
        return f"{self.message} (transaction {self.uuid}); {self.hint}"


class StoreError(LanceDagsterError):
    """Report that the storage failed, or cannot do what is asked of it."""


class ConditionalPutUnsupportedError(StoreError):
    """Report a store on which two writers could overwrite each other's commit."""
