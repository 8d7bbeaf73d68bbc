"""Digests that name a version: fixed for all time, so a test pins each."""

import hashlib
import re

_COMMIT = b"lance_dagster commit 1\n"
COMMIT_ID = re.compile(r"[0-9a-f]{64}")
COMMIT_PREFIX = re.compile(r"[0-9a-fA-F]{8,64}")
"""What may be the beginning of a commit id. Shorter ones would soon be ambiguous, and are words too often."""


def commit_id(manifest_file: bytes) -> str:
    """Return the id of the version that the bytes of a manifest file describe.

    It is a SHA-256 over a label and the SHA-256 of the file, as 64 hex digits. A manifest file never changes, so the
    id never does. It holds the branch's name, the version's number, the time to the nanosecond and the uuid of its
    transaction, so no two versions share an id, not even those of a branch that was deleted and made again. The ids
    of the parents are left out: they would bind nothing more, since the file says what it was made from, and would
    cost reading the whole history, parts of which are cleaned up. What git's ids give beyond this, that one id vouches
    for everything before it, this one does not give. Renaming a branch gives its versions other ids: their files are
    written anew, with the new name.
    """
    return hashlib.sha256(_COMMIT + hashlib.sha256(manifest_file).digest()).hexdigest()
