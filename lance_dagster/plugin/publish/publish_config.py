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


# Text fields default to "" and not to None: the Launchpad hides fields whose default is None.
class PublishConfig(dg.Config):
    """What to publish. By default the publisher publishes what its run wrote, or what waits when it wrote nothing."""

    ref: str = Field(
        default="",
        description="Empty: what this run wrote, or what waits when it wrote nothing. production~1, or the id of a "
        "commit of the repository: promote the selected tables as they were then, or roll them back. main@3: the same, "
        "by the version of each table. run/<id>: publish a branch that was left behind; the first characters of the id "
        "are enough.",
    )
    reason: str = Field(default="", description="Why. It is kept with the tag and on the promoted node's page.")
    rollback: Rollback = Field(
        default=Rollback.revert,
        description="When ref is older than the tag. revert: a commit on main restores that version, so that what was "
        "withdrawn does not come back. hold: all tables go back and stay there until a release. Needs a reason.",
    )
    hold: bool = Field(
        default=False,
        description="Keep the channel where it is: nothing is published until it is released. Needs a reason.",
    )
    discard: str = Field(
        default="",
        description="Delete the branch of a run that is given up: run/<id> or the first characters of the id. Needs a "
        "reason.",
    )
    release: bool = Field(default=False, description="Release a hold; with ref, publish that next. Needs a reason.")
    dry_run: bool = Field(
        default=False, description="Verify the checks and log what would be published, but publish nothing."
    )
    ignore_failed_checks: bool = Field(
        default=False,
        description="Publish what ref names, or what this run wrote, although checks failed or did not run. What waits "
        "is published only when it passed. Needs a reason.",
    )


def check_config(config: PublishConfig) -> None:
    """Refuse a configuration that contradicts itself or lacks a reason.

    Raises:
        InvalidInputError: The configuration contradicts itself or lacks a reason.
    """
    for do, asked in (
        ("ignore_failed_checks", config.ignore_failed_checks),
        ("hold", config.hold),
        ("release", config.release),
        ("discard", bool(config.discard)),
    ):
        if asked:
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
