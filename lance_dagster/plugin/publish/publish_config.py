"""The run configuration of a publisher."""

import enum

import dagster as dg
from pydantic import Field

from lance_dagster.errors import InvalidInputError


# The Launchpad shows and accepts the names of the members, so they are spelled as a person types them.
class Rollback(enum.Enum):
    """What happens to the rows that a rollback withdraws."""

    revert = "revert"
    hold = "hold"


# The Launchpad sorts the fields by name and shows each description in a narrow column, so each is one short line; the
# descriptions of resources, which are the docstrings of their classes, stand in the same column. Text fields default to
# "" and not to None: the Launchpad hides fields whose default is None.
class PublishConfig(dg.Config):
    """What to publish. By default the publisher publishes what its run wrote, or what waits when it wrote nothing."""

    ref: str = Field(
        default="",
        description="Empty: what waits, or what this run wrote. Else production~1, main@3, a commit's id, or run/<id>.",
    )
    reason: str = Field(
        default="",
        description="Why. Needed for a rollback, hold, release, discard and ignore_failed_checks.",
    )
    rollback: Rollback = Field(
        default=Rollback.revert,
        description="If ref is older. revert: a new commit restores it. hold: all tables go back until a release.",
    )
    hold: bool = Field(default=False, description="Publish nothing until a release.")
    discard: str = Field(
        default="",
        description="Delete what a run wrote that is given up: run/<id>, or the first characters of the id.",
    )
    release: bool = Field(default=False, description="Release a hold; with ref, publish that next.")
    dry_run: bool = Field(default=False, description="Verify the checks and log what would happen, but change nothing.")
    ignore_failed_checks: bool = Field(
        default=False, description="Publish what ref names, or this run wrote, although checks failed or did not run."
    )


def check_config(config: PublishConfig) -> None:
    """Refuse a configuration that contradicts itself or lacks a reason.

    Raises:
        InvalidInputError: The configuration contradicts itself or lacks a reason.
    """
    for do, requests in (
        ("ignore_failed_checks", config.ignore_failed_checks),
        ("hold", config.hold),
        ("release", config.release),
        ("discard", bool(config.discard)),
    ):
        if requests:
            require_reason(config.reason, do)
    # A person who asks for a dry run does not expect that anything changes.
    changes = [do for do in ("hold", "release", "discard") if getattr(config, do)]
    if config.dry_run and changes:
        raise InvalidInputError(f"dry_run shows a publication or a rollback; leave it out with {' and '.join(changes)}")
    if config.rollback is Rollback.hold and not config.ref:
        raise InvalidInputError(
            "rollback: hold needs ref, the version to go back to; to keep the tag where it is, set hold: true"
        )
    if config.hold and (config.release or config.ref or config.discard):
        raise InvalidInputError(
            "hold cannot be combined with release, ref or discard; to roll back and hold the tag there, set ref "
            "and rollback: hold"
        )
    if config.discard and (config.release or config.ref):
        raise InvalidInputError(
            "discard cannot be combined with release or ref: it deletes a branch and publishes nothing"
        )


def require_reason(reason: str, do: str) -> str:
    """Return the reason that a person gave for an action.

    Raises:
        InvalidInputError: The reason is empty.
    """
    if not reason.strip():
        raise InvalidInputError(f"{do} needs a reason: set reason in the config too")
    return reason.strip()
