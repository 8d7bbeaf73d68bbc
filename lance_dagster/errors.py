"""Every exception of this package, grouped by what a handler can do about it.

    LanceDagsterError                        .hint: what to try next; .remedy: the same, with the call to make
    |- NotFoundError (LookupError)           ask for something else
    |    TableNotFoundError, VersionNotFoundError, RefNotFoundError (.ref .known)
    |- AlreadyExistsError                    choose another name
    |- InvalidInputError (ValueError)        fix the call
    |    InvalidRefNameError (.name .rule), RefSyntaxError (.expression .position), SchemaMismatchError,
    |    BasePathRefusedError (.table .place)
    |- ConflictError                         another writer changed it
    |    CommitConflictError (.retryable .committed), MergeConflictError (.conflicts .units),
    |    RefMovedError (.expected .found)
    |- ProtectedError                        .kind .name .refused: a rule of the table forbids it
    |- PublishRefusedError                   .reasons
    |- MissingExtraError (ImportError)       .package .extra: install the extra
    |- FormatError                           the bytes cannot be understood
    |    CorruptFileError (.path), UnsupportedFeatureError (.flags)
    |- CommitStateUnknownError               .uuid .transaction: it may or may not have landed; resume, never delete
    |- NotEnoughMemoryError (MemoryError)    read less at a time
    `- StoreError                            the storage failed, or cannot promise what is asked
         ConditionalPutUnsupportedError, NotDurableError,
         PermissionRefusedError                  give the credentials the permission

Constructors take plain positional arguments, so that every error survives pickling between processes.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lance_dagster.credentials import without_credentials

# A commit id may be abbreviated to eight digits; a shorter hexadecimal name, such as `cafe`, can only be a name.
_MAYBE_COMMIT = r"[0-9a-fA-F]{8,64}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a method that resolves an error; the command line prints it as a command.

    The method is one of the object that raised the error, or of the repository at the root `on`.
    """

    method: str
    given: tuple[object, ...] = ()
    named: Mapping[str, object] = field(default_factory=dict)
    on: str = ""

    def __str__(self) -> str:
        """Return the call as Python code."""
        arguments = [*map(repr, self.given), *(f"{name}={value!r}" for name, value in self.named.items())]
        owner = f"LanceRepository.open({self.on!r})." if self.on else ""
        return f"{owner}{self.method}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class Remedy:
    """The advice that resolves an error: a sentence, with `{}` in the place of the call if there is one."""

    sentence: str
    call: Call | None = None

    def __str__(self) -> str:
        """Return the sentence, with the call as Python code."""
        return self.described(str)

    # The table API and the command line show the same remedy, each with the call in its own notation.
    def described(self, written: Callable[[Call], str]) -> str:
        """Return the sentence, with the call as a function formats it."""
        return self.sentence if self.call is None else self.sentence.format(written(self.call))


class LanceDagsterError(Exception):
    """Report a failure in one sentence that a person can act on; the base of all errors of this package."""

    def __init__(self, *arguments: object, remedy: Remedy | None = None) -> None:
        """Keep the parts of the message, and the remedy."""
        # Pickle rebuilds an exception from the positional arguments of this call and then restores attributes, so
        # every subclass passes all its own arguments on.
        super().__init__(*arguments)
        self.remedy = remedy

    @property
    def complaint(self) -> str:
        """The message without the remedy."""
        return super().__str__()

    @property
    def hint(self) -> str | None:
        """The next thing to try, or None."""
        return None if self.remedy is None else str(self.remedy)

    def __str__(self) -> str:
        """Return the message and the remedy, without credentials in what they quote."""
        return without_credentials(self._text())

    def __repr__(self) -> str:
        """Return the class and the message; the arguments may hold credentials."""
        return f"{type(self).__name__}({str(self)!r})"

    def _text(self) -> str:
        return self.complaint if self.remedy is None else f"{self.complaint}; {self.remedy}"


# This is a LookupError and not a KeyError: the text of a KeyError is the repr of its message.
class NotFoundError(LanceDagsterError, LookupError):
    """Report that a table, a version or a ref does not exist."""


class TableNotFoundError(NotFoundError):
    """Report that there is no Lance table at a URI."""


class VersionNotFoundError(NotFoundError):
    """Report that a branch has no version of the number asked for."""


class RefNotFoundError(NotFoundError):
    """Report that no branch or tag has the name asked for."""

    def __init__(
        self, ref: str, known: Sequence[str], where: str, kind: str = "branch or tag", instead: str = ""
    ) -> None:
        """Keep the name, the names that exist, the table, the kind of name, and a hint that replaces the usual one."""
        super().__init__(ref, known, where, kind, instead)
        self.ref = ref
        self.known = tuple(known)
        self.where = where
        self.kind = kind
        self.instead = instead

    @property
    def hint(self) -> str:
        """The hint given to the constructor; else the nearest names, or the first ten names when none is near."""
        if self.instead:
            return self.instead
        # Names that are too different would only mislead, so nothing is suggested below a similarity of one half.
        near = difflib.get_close_matches(self.ref, self.known, n=3, cutoff=0.5)
        if near:
            return f"did you mean {' or '.join(repr(name) for name in near)}?"
        return f"known names: {', '.join(sorted(self.known)[:10]) or 'none'}"

    def _text(self) -> str:
        """Name the ref, the table and the nearest names."""
        # A hexadecimal name may have been meant as a commit id, so the message also reports that no commit was found.
        commit = self.kind == "branch or tag" and re.fullmatch(_MAYBE_COMMIT, self.ref)
        return f"no {'branch, tag or commit' if commit else self.kind} {self.ref!r} in {self.where}; {self.hint}"


# This is an ImportError as well, so that callers who guard an optional import catch it.
class MissingExtraError(LanceDagsterError, ImportError):
    """Report that an optional package is not installed, and which extra of this package installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        """Keep the missing package, the extra that installs it, and what it is needed for."""
        super().__init__(package, extra, purpose)
        self.package = package
        self.extra = extra
        self.purpose = purpose

    @property
    def hint(self) -> str:
        """The command that installs it."""
        return f"pip install 'lance-dagster[{self.extra}]'"

    def _text(self) -> str:
        """Say what is missing, for what, and how to install it."""
        return f"{self.purpose} needs {self.package}, which is not installed: {self.hint}"


class AlreadyExistsError(LanceDagsterError):
    """Report that the name or place asked for is taken."""


class InvalidInputError(LanceDagsterError, ValueError):
    """Report a wrong argument, which the caller can correct."""


class InvalidRefNameError(InvalidInputError):
    """Report a branch or tag name that breaks a rule of the specification."""

    def __init__(self, kind: str, name: str, rule: str) -> None:
        """Keep the kind of name ("branch" or "tag"), the name and the rule it breaks."""
        super().__init__(kind, name, rule)
        self.kind = kind
        self.name = name
        self.rule = rule

    def _text(self) -> str:
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

    def _text(self) -> str:
        """Point at the character, unless it is the first one, and name what could stand there."""
        at = f" at character {self.position}" if self.position else ""
        return f"cannot read ref {self.expression!r}{at}: expected {self.expected}"


class SchemaMismatchError(InvalidInputError):
    """Report rows that do not fit the schema of the table they are written to."""


class BasePathRefusedError(InvalidInputError):
    """Report a version that names files outside of its table, which neither the caller nor the place allows."""

    def __init__(self, table: str, place: str, before_move: str | None = None, *, is_same: bool = False) -> None:
        """Keep the URIs of the table and of the place.

        Args:
            table: The table.
            place: The place.
            before_move: The version, if it is from before a move of the table.
            is_same: Whether the place is in the folder of the table, which a symbolic link gives two paths.
        """
        # The place may hold braces, which the sentence of a remedy would take for the place of the call.
        option = f"allowed_base_paths={place}".replace("{", "{{").replace("}", "}}")
        remedy = Remedy(
            f"if you trust the table with that place, open it with the storage option {option}, or allow it for every "
            "reader by {}; if the table was moved, relocate it",
            Call("maintenance.allow_base", (place,)),
        )
        if before_move is not None:
            remedy = Remedy(
                f"{before_move} is from before the table was moved: create a branch at it, then {{}} lets that be read",
                Call("maintenance.relocate"),
            )
        if is_same:
            remedy = Remedy(
                "it is in the same folder, by another path with a symbolic link: open the table by one path always; "
                "{} makes its branches name the path that it was opened by here",
                Call("maintenance.relocate"),
            )
        super().__init__(table, place, before_move, remedy=remedy)
        self.table = table
        self.place = place
        self.before_move = before_move

    @property
    def complaint(self) -> str:
        """Name the table and the place."""
        return f"{self.table} names files at {self.place}, outside of the table, which is not allowed"


# This is not wrong input: the call was right when it was made, so reading the table again can help.
class ConflictError(LanceDagsterError):
    """Report that another writer changed what this call was about to change."""


class CommitConflictError(ConflictError):
    """Report that a version committed concurrently conflicts with this commit."""

    def __init__(self, message: str, committed: str, retryable: bool) -> None:  # noqa: FBT001  # pickled by position
        """Keep the message, the version that was committed concurrently, and whether a retry can succeed."""
        super().__init__(message, committed, retryable)
        self.message = message
        self.committed = committed
        self.retryable = retryable

    @property
    def hint(self) -> str:
        """The advice to redo the change, or to look at the other one first."""
        return "read the table again and redo the change" if self.retryable else "look at the other change first"

    def _text(self) -> str:
        """Say what conflicts and what to do."""
        return f"{self.message}; {self.hint}"


class Reason(Protocol):
    """One reason why two sides cannot be merged; the merge's `Conflict` has these attributes.

    A protocol, because this module is below the merge and must not import it.
    """

    @property
    def kind(self) -> str:
        """The kind of the conflict, such as "rows" or "column"."""
        ...

    @property
    def unit(self) -> str:
        """The thing in conflict, such as "column price"; a strategy for this conflict alone is given by this name."""
        ...

    @property
    def source(self) -> str:
        """The change of the source."""
        ...

    @property
    def dest(self) -> str:
        """The change of the dest."""
        ...


class MergeConflictError(ConflictError):
    """Report every reason why two branches cannot be merged; nothing was written."""

    def __init__(self, message: str, conflicts: Iterable[Reason], *, remedy: Remedy | None = None) -> None:
        """Keep the headline, the conflicts, each printable on its own, and the call that would settle them."""
        # A tuple is kept, since an iterator could be printed only once and cannot be pickled.
        found = tuple(conflicts)
        super().__init__(message, found, remedy=remedy)
        self.message = message
        self.conflicts = found

    @property
    def units(self) -> tuple[str, ...]:
        """The things in conflict, such as "column price", by which a strategy settles one conflict alone."""
        return tuple(conflict.unit for conflict in self.conflicts)

    def _text(self) -> str:
        """List the headline, each conflict and the remedy on a line of its own."""
        hint = [] if self.remedy is None else [f"  {self.remedy}"]
        return "\n".join([self.message, *(f"  - {conflict}" for conflict in self.conflicts), *hint])


class RefMovedError(ConflictError):
    """Report that a ref no longer points where the caller last saw it."""

    def __init__(self, ref: str, expected: str, found: str) -> None:
        """Keep the ref, where it should have pointed and where it points."""
        super().__init__(ref, expected, found)
        self.ref = ref
        self.expected = expected
        self.found = found

    def _text(self) -> str:
        """Name the ref and both places."""
        return f"{self.ref!r} points to {self.found}, not to {self.expected}: someone moved it meanwhile"


class ProtectedError(LanceDagsterError):
    """Report that a protection rule of the table forbids a change of a branch or tag; nothing was written."""

    def __init__(self, kind: str, name: str, refused: str, because: str, instead: Remedy) -> None:
        """Keep the branch or tag, the change that was refused, the rule that forbids it and the remedy."""
        super().__init__(kind, name, refused, because, instead, remedy=instead)
        self.kind = kind
        self.name = name
        self.refused = refused
        self.because = because

    @property
    def complaint(self) -> str:
        """The branch or tag, and the rule."""
        return f"cannot {self.refused} {self.kind} {self.name!r}: {self.because}"


class PublishRefusedError(LanceDagsterError):
    """Report every reason why a branch may not be published; nothing was merged and no tag moved."""

    def __init__(self, message: str, reasons: Iterable[str], remedy: Remedy | None = None) -> None:
        """Keep the headline, the reasons, and the remedy."""
        found = tuple(reasons)
        super().__init__(message, found, remedy=remedy)
        self.message = message
        self.reasons = found

    def _text(self) -> str:
        """List the headline, each reason and the remedy on a line of its own."""
        lines = [self.message, *(f"  - {reason}" for reason in self.reasons)]
        return "\n".join(lines if self.remedy is None else [*lines, str(self.remedy)])


class FormatError(LanceDagsterError):
    """Report bytes that are not what the table format says they should be."""


class CorruptFileError(FormatError):
    """Report a damaged file."""

    def __init__(self, path: str, problem: str, remedy: Remedy | None = None) -> None:
        """Keep the file's path, what is wrong with it, and the remedy."""
        super().__init__(path, problem, remedy=remedy)
        self.path = path
        self.problem = problem

    @property
    def complaint(self) -> str:
        """The file and what is wrong with it."""
        return f"{self.path} is damaged: {self.problem}"


class UnsupportedFeatureError(FormatError):
    """Report a table that uses a feature which this package does not know, so that it must not be changed."""

    def __init__(self, path: str, flags: Iterable[str]) -> None:
        """Keep the file's path and the names of the unknown features."""
        # A tuple is kept, since callers pass generators, which cannot be pickled.
        found = tuple(flags)
        super().__init__(path, found)
        self.path = path
        self.flags = found

    def _text(self) -> str:
        """Name the file and each unknown feature."""
        return f"{self.path} uses features this release does not support: {', '.join(self.flags)}"


# This is neither a `StoreError` nor a `ConflictError`: handlers of these retry, and a new attempt under another uuid
# could commit the rows twice.
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
        """The advice to resume."""
        return "commit the same transaction again: it lands exactly once; delete nothing meanwhile"

    def _text(self) -> str:
        """Name the transaction and how to resume."""
        return f"{self.message} (transaction {self.uuid}); {self.hint}"


class NotEnoughMemoryError(LanceDagsterError, MemoryError):
    """Report rows that do not fit into the memory of the process."""


class StoreError(LanceDagsterError):
    """Report that the storage failed, or cannot do what an operation needs."""


class NotDurableError(StoreError):
    """Report an object that was written and can be read, but whose name could not be synced to the disk."""


class ConditionalPutUnsupportedError(StoreError):
    """Report a store on which two writers could overwrite each other's commit."""


_READ_ONLY = "Read-only file system"
"""How operating systems describe EROFS, in Python's errors as in pylance's."""


class PermissionRefusedError(StoreError):
    """Report that the storage refused a request, which changed nothing, because the credentials may not make it."""

    def __init__(self, what: str, answer: str, *, known: bool = True) -> None:
        """Keep what was refused ("write s3://lake/orders/x"), the answer, and whether the credentials are known."""
        super().__init__(what, answer)
        self.what = what
        self.answer = answer
        self.known = known

    @property
    def hint(self) -> str:
        """The permission that is missing, or what is wrong with the credentials."""
        if not self.known:
            return "the credentials are wrong or have expired: correct the key and its secret, or renew the token"
        if _READ_ONLY in self.answer:
            return "the file system is mounted read-only: mount it for writing, or write from where it is"
        verb = self.what.partition(" ")[0]
        return f"the credentials need the permission to {verb} there; otherwise leave this to a role that has it"

    def _text(self) -> str:
        """Name the request, the answer and the permission."""
        return f"the storage refused to {self.what}: {self.answer}; {self.hint}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which has a plural where the number is not 1."""
    if number != 1:
        noun = f"{noun}es" if noun.endswith(("ch", "x", "s")) else f"{noun}s"
    return f"{number:,} {noun}"
