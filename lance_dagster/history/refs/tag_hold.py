"""The holds of a tag: who stopped it from moving, why, and who released it.

A held tag keeps its version until someone releases it: after a rollback, the next publication of a pipeline would
otherwise bring back the version that was withdrawn. The holds are part of the tag's own file, oldest first, so a hold
and a move cannot cross: both are a compare-and-swap of that file. Other programs do not check the hold.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pendulum

from lance_dagster.errors import Call, InvalidInputError, ProtectedError, Remedy
from lance_dagster.format.validation import check_string, parsed_json

HOLDS = "lance_dagster.holds"
_KEPT_HOLDS = 20
# A tag is read at each use, so its file stays small.
_LONGEST_REASON = 2_000


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """A hold to begin: why, who asks for it (empty for the committer), and the channel whose hold it follows."""

    reason: str
    who: str = ""
    channel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagHold:
    """One hold of a tag; `released_at` is None while it is in force.

    Attributes:
        version: The version that the tag named when it was held, such as `main@8`.
        reason: Why it was held.
        held_by: Who held it.
        held_at: When it was held; None where that cannot be read.
        channel: The channel of a repository whose hold this hold follows; empty for a hold of this tag alone.
        release_reason: Why it was released.
        released_by: Who released it.
        released_at: When it was released.
    """

    version: str
    reason: str
    held_by: str
    held_at: pendulum.DateTime | None
    channel: str = ""
    release_reason: str = ""
    released_by: str = ""
    released_at: pendulum.DateTime | None = None

    @property
    def since(self) -> str:
        """When it was held, for a message."""
        return f"{self.held_at.in_timezone('UTC'):%Y-%m-%d %H:%M:%S}Z" if self.held_at else "an unknown time"

    def __str__(self) -> str:
        """Return who held the tag, since when and why."""
        return f"held by {self.held_by} since {self.since}: {self.reason}"


# A damaged record counts as a hold: the other choice would let a tag move that someone stopped.
_UNREADABLE = TagHold(version="", reason="the record of its holds cannot be read", held_by="unknown", held_at=None)


def holds_of(metadata: Mapping[str, str]) -> tuple[TagHold, ...]:
    """Return the holds that the metadata of a tag records, oldest first."""
    text = metadata.get(HOLDS)
    if text is None:
        return ()
    try:
        return tuple(_decoded(record) for record in parsed_json(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return (_UNREADABLE,)


def hold_in_force(metadata: Mapping[str, str]) -> TagHold | None:
    """Return the hold that keeps a tag where it is, or None."""
    # Most tags are never held, so their metadata is not parsed.
    holds = holds_of(metadata) if HOLDS in metadata else ()
    # Only the newest hold can be in force: a tag that is held is not held again.
    return holds[-1] if holds and holds[-1].released_at is None else None


def encoded_holds(holds: Sequence[TagHold]) -> str:
    """Return the newest holds as metadata of a tag."""
    return json.dumps(
        [
            {
                "version": hold.version,
                "reason": hold.reason,
                "by": hold.held_by,
                "at": _time_text(hold.held_at),
                **({"channel": hold.channel} if hold.channel else {}),
                **({"released": _released(hold)} if hold.released_at else {}),
            }
            # The newest holds stay, because the newest hold decides whether the tag may move.
            for hold in holds[-_KEPT_HOLDS:]
        ]
    )


def given_reason(reason: str, do: str) -> str:
    """Return the reason for a hold or a release, without surrounding blanks.

    Raises:
        InvalidInputError: It is empty or too long.
    """
    check_string("the reason", reason)
    text = reason.strip()
    if not text:
        raise InvalidInputError(f"a reason is needed to {do}: others read it when their publication is refused")
    if len(text) > _LONGEST_REASON:
        raise InvalidInputError(f"the reason has {len(text)} characters; at most {_LONGEST_REASON} are kept")
    return text


def refuse_held(do: str, name: str, metadata: Mapping[str, str]) -> None:
    """Refuse to change a tag that is held.

    Raises:
        ProtectedError: The tag is held; the message says who holds it, since when, why, and how to release it.
    """
    hold = hold_in_force(metadata)
    if hold is not None:
        release = Call("tags.release", (name,), {"reason": "..."})
        raise ProtectedError("tag", name, do, f"it is {hold}", Remedy("{} releases it", release))


def _released(hold: TagHold) -> dict[str, str | None]:
    return {"reason": hold.release_reason, "by": hold.released_by, "at": _time_text(hold.released_at)}


def _decoded(record: Mapping[str, object]) -> TagHold:
    released = record.get("released", {})
    if not isinstance(released, dict):
        raise TypeError("not a release")
    return TagHold(
        version=str(record["version"]),
        reason=str(record["reason"]),
        held_by=str(record["by"]),
        held_at=_time(record["at"]),
        channel=str(record.get("channel", "")),
        release_reason=str(released.get("reason", "")),
        released_by=str(released.get("by", "")),
        released_at=_time(released.get("at")),
    )


def _time(recorded: object) -> pendulum.DateTime | None:
    return None if recorded is None else pendulum.instance(pendulum.DateTime.fromisoformat(str(recorded)))


def _time_text(time: pendulum.DateTime | None) -> str | None:
    return None if time is None else time.isoformat()
