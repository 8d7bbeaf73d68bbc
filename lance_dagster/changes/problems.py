"""What can be wrong with a table, as values."""

from dataclasses import dataclass
from typing import Literal

ERROR: Literal["error"] = "error"
WARNING: Literal["warning"] = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong: where, what, and what would be right.

    An error makes rows wrong, missing or unreadable, for this program or another one, or lets a later clean-up or
    commit do so. A warning does none of that as things are.

    Attributes:
        what: What is wrong.
        right: What would be right, or what to do about it.
        severity: "error" or "warning".
        path: The file it is about, below the table or as a URI.
        fragment: The id of the fragment it is about.
        field: The id of the field it is about.
        versions: The versions it is in, such as `main@3`, as they were looked at; empty when it is about none.
    """

    what: str
    right: str
    severity: Literal["error", "warning"] = ERROR
    path: str | None = None
    fragment: int | None = None
    field: int | None = None
    versions: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The place for people: versions, fragment, field and file, as far as it has them."""
        parts = [
            _span(self.versions),
            "" if self.fragment is None else f"fragment {self.fragment}",
            "" if self.field is None else f"field {self.field}",
            self.path or "",
        ]
        return ", ".join(part for part in parts if part) or "the table"

    def __str__(self) -> str:
        """Return one line that says all of it."""
        return f"{self.severity}: {self.where}: {self.what}; {self.right}"


def _span(versions: tuple[str, ...]) -> str:
    if len(versions) > 1:
        return f"{versions[0]} to {versions[-1]} ({len(versions)} versions)"
    return "".join(versions)
