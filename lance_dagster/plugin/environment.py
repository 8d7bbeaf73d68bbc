"""The tables of a branch deployment: forked from the shared tables at their first use, and never written back.

A code location of a branch deployment runs the same assets and publishers as the code location of production. With an
environment set, each of its tables is a shallow clone below `{root}/.environments/<environment>/`: one manifest that
names the files of the shared table. Run branches, merges into `main`, tags, rollbacks and holds then affect only the
clone, so no other code has to handle the environment, and a branch deployment cannot change the shared table. The
alternative, a branch of the shared table in place of `main`, would have to be passed wherever versions are merged,
tagged or compared.

The clone leaves a tag `clone-<digest>` on the shared table, which keeps the files that it names.
"""

import hashlib
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    RefNotFoundError,
    TableNotFoundError,
    VersionNotFoundError,
)
from lance_dagster.format.layout import MAIN

if TYPE_CHECKING:
    from lance_dagster.table import LanceTable

FOLDER = ".environments"
# Two steps of a run may fork a table at the same time; the second step waits for the first.
_TRIES, _SECONDS = 50, 0.2


def environment_folder(environment: str) -> str:
    """Return the folder of an environment below the root; the name of a git branch may be any text.

    Examples:
        >>> environment_folder("pr-17")
        '.environments/pr-17'
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", environment)
    # `feature/x` and `feature-x` are two branches.
    digest = "" if plain == environment else f"-{hashlib.sha256(environment.encode()).hexdigest()[:8]}"
    return f"{FOLDER}/{plain}{digest}"


def open_forked(uri: str, shared_uri: str, ref: str, storage_options: Mapping[str, str]) -> "LanceTable":
    """Open the table of an environment, which is forked from the shared table at its first use.

    The fork gets the tags of the shared table that name the forked version.

    Args:
        uri: The URI of the environment's table.
        shared_uri: The URI of the shared table.
        ref: The ref of the shared table at which it is forked.
        storage_options: Credentials and endpoint of both.

    Raises:
        TableNotFoundError: Neither table exists, or the shared table does not have the ref.
        ConflictError: Another process began to fork the table and did not finish.
    """
    from lance_dagster.table import LanceTable

    for _ in range(_TRIES):
        with suppress(TableNotFoundError):
            fork = LanceTable.open(uri, storage_options)
            return _tagged(fork, shared_uri, storage_options)
        shared = LanceTable.open(shared_uri, storage_options)
        try:
            shared.maintenance.clone(uri, ref, storage_options=storage_options, message=f"fork of {shared_uri}")
        except (RefNotFoundError, VersionNotFoundError):
            raise TableNotFoundError(f"no table at {uri}, and {shared_uri} has no {ref} to fork it from") from None
        except AlreadyExistsError:
            time.sleep(_SECONDS)
    raise ConflictError(f"another process forks {shared_uri} and does not finish; if it is dead, delete {uri}")


def _tagged(table: "LanceTable", shared_uri: str, storage_options: Mapping[str, str]) -> "LanceTable":
    """Give a fork that nothing has written the tags of the version that it was forked from."""
    from lance_dagster.placement.clone import CLONE
    from lance_dagster.table import LanceTable

    head = table.head(MAIN)
    # The tags are not set by the clone itself, because a process may be killed between the two. The version number of a
    # clone is the number of its source.
    if head.operation != "Clone" or table.tags.list():
        return table
    for name, tag in LanceTable.open(shared_uri, storage_options).tags.list().items():
        if (tag.branch, tag.version) == (MAIN, head.number) and CLONE not in tag.metadata:
            with suppress(AlreadyExistsError):
                table.tags.create(name, head)
    return table
