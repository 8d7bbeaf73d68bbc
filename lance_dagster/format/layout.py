"""Paths of a table's files, and parsing of their names (storage layout, branch and tag specifications).

    {root}/_versions/{2^64-1-version:020}.manifest     inverted: the newest version sorts first
    {root}/_transactions/{read version}-{uuid}.txn
    {root}/_deletions/{fragment}-{read version}-{id}.arrow|bin
    {root}/data/*.lance                                 data files of main and of every branch this package writes
    {root}/data/*.lance.{sha256}.sha256                 the digest of a data file, in the name of an empty object
    {root}/_refs/branches/{name, "/" as %2F}.json       non-ASCII names are percent-encoded too
    {root}/_refs/tags/{name}.json
    {root}/_refs/deleted/{name}@{version}@{seconds}@{id}
                                                        branch fence: versions a deleted branch had
    {root}/_refs/protection.json                        protection rules of branches and tags
    {root}/tree/{branch name}/                          a branch: the same folders again

All paths here are relative to the table's root, with "/" between segments. `history.refs.ref_names` says how branches
and tags may be called.

Paths that were read from a file are untrusted: a program with write access to the table can put `../` into a manifest,
and this package would then read or copy files of the user who runs it. `is_file_name` and `is_path_inside` check them.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_dagster.format.model import DeletionFile


MAIN = "main"
DATA = "data"
VERSIONS = "_versions"
TRANSACTIONS = "_transactions"
DELETIONS = "_deletions"
INDICES = "_indices"
REFS = "_refs"
BRANCHES = "_refs/branches"
TAGS = "_refs/tags"
DELETED_BRANCHES = "_refs/deleted"
PROTECTION = "_refs/protection.json"
REPOSITORY = "_repository"
"""The folder of a repository, beside its tables."""
REPOSITORY_MARKER = f"{REPOSITORY}/repository.json"
"""The file that makes a folder the root of a repository."""
SUFFIX = ".lance"
"""The end of the name of a table's folder in a repository."""
RUNS = "run/"
"""Prefix of the branches of runs."""
PUBLISHED = "published/"
"""Prefix of the branches on which a repository merges versions for its commits; forked from `main` or each other."""
PIN = "repository-main-"
"""Prefix of the tags that keep versions of `main` for commits of a repository."""
BRANCH_PIN = "repository-branch-"
"""Prefix of the tags that keep versions of other branches for commits of a repository."""
LANDING_PIN = "repository-landing-"
"""Prefix of the tags that keep versions of other branches for commits of a repository until `main` has them."""
HINT_NAME = "latest_version_hint.json"
VERSION_HINT = f"{VERSIONS}/{HINT_NAME}"
# Twenty digits and the extension make 29 characters; detached versions have as many and start with `d`.
_MAX_VERSION = 2**64 - 1
_MANIFEST_NAME = re.compile(r"(\d{20})\.manifest")
_OLD_MANIFEST_NAME = re.compile(r"(\d{1,19})\.manifest")
_MANIFEST_NAME_LENGTH = 29
_STAGED_MANIFEST = re.compile(r"\d{1,20}\.manifest-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-~")
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
_FENCE_NAME = re.compile(r"([^@]+)@(\d{1,19})@(\d{1,19})@([^@]*)")
_DIGEST_NAME = re.compile(r"(.+)\.([0-9a-f]{64})\.sha256")
DELETION_SUFFIXES = {0: "arrow", 1: "bin"}


def manifest_name(version: int) -> str:
    """Return the V2 manifest name: versions are inverted, so that an ordered listing starts with the newest."""
    return f"{_MAX_VERSION - version:020d}.manifest"


def parse_manifest_name(name: str) -> int | None:
    """Return the version of a V2 manifest name; None for any other name (temporary files, version hint)."""
    # Twenty digits can exceed 64 bits.
    match = _MANIFEST_NAME.fullmatch(name)
    return _MAX_VERSION - int(match[1]) if match and int(match[1]) <= _MAX_VERSION else None


def manifest_name_v1(version: int) -> str:
    """Return the V1 manifest name."""
    return f"{version}.manifest"


def parse_manifest_name_v1(name: str) -> int | None:
    """Return the version of a V1 manifest name; None for any other name."""
    match = _OLD_MANIFEST_NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_staged_manifest(name: str) -> bool:
    """Return whether a name is that of a manifest which Lance stages where a namespace manages the versions.

    It gets the name of a manifest once the namespace has taken it, so one that is old is left of a commit that failed.
    """
    return _STAGED_MANIFEST.fullmatch(name) is not None


def parse_manifest_names(names: Iterable[str]) -> tuple[list[int], list[int]]:
    """Return the versions of the V2 names and of the V1 names in a listing of `_versions/`, in the listing's order."""
    present, old = [], []
    for name in names:
        # Compare lengths before matching: a folder may hold very many manifests, and few other files.
        if len(name) == _MANIFEST_NAME_LENGTH:
            number = parse_manifest_name(name)
            if number is not None:
                present.append(number)
        elif (number := parse_manifest_name_v1(name)) is not None:
            old.append(number)
    return present, old


def newest_manifest_names(names: Sequence[str]) -> Sequence[str]:
    """Return the part of a listing that holds the two newest versions: only these two when all names are V2.

    In a folder with names of both schemes, names of both are returned: the caller has to see that they are mixed.
    """
    # In the usual case all names have one length. This way to find out takes a third of the time of a comprehension.
    if set(map(len, names)) == {_MANIFEST_NAME_LENGTH}:
        manifests, others = names, list[str]()
    else:
        manifests = [name for name in names if len(name) == _MANIFEST_NAME_LENGTH]
        others = [name for name in names if len(name) != _MANIFEST_NAME_LENGTH]
    # Detached versions (`d...manifest`) have the same length; they start with a letter, which sorts after digits. To
    # sort a listing, which is sorted, takes less time than to look for the two smallest.
    newest = sorted(manifests)[:2]
    # There is no V2 name: the table is old, or the folder is empty.
    if not newest:
        return others
    return [*newest, *others] if parse_manifest_name(newest[-1]) is not None else names


def branch_root(branch: str) -> str:
    """Return the root folder of a branch, relative to the table's root: empty for `main`."""
    return "" if branch == MAIN else f"tree/{branch}"


def join(*parts: str) -> str:
    """Join path segments, leaving out empty ones."""
    return "/".join(part for part in parts if part)


def deletion_path(fragment_id: int, deletion: "DeletionFile") -> str:
    """Return the path of a deletion file, relative to the root of its base path."""
    # The file name contains the fragment's id, so a merge that assigns another id has to write the file again.
    suffix = DELETION_SUFFIXES[deletion.kind]
    return f"{DELETIONS}/{fragment_id}-{deletion.read_version}-{deletion.id}.{suffix}"


def digest_file(path: str, digest: str) -> str:
    """Return the path of the empty object whose name holds the SHA-256 digest of a data file, in hex digits."""
    return f"{path}.{digest}.sha256"


def parse_digest_file(name: str) -> tuple[str, str] | None:
    """Return the file and the digest of a digest's name; None for any other name."""
    match = _DIGEST_NAME.fullmatch(name)
    return (match[1], match[2]) if match else None


def branch_file(name: str) -> str:
    """Return the path of the file that holds a branch's metadata."""
    return f"{BRANCHES}/{_encoded(name)}.json"


def tag_file(name: str) -> str:
    """Return the path of the file that holds a tag."""
    return f"{TAGS}/{_encoded(name)}.json"


def parse_branch_file_name(file_name: str) -> str | None:
    """Return the branch of a file name in `_refs/branches/`; None for any other file."""
    return _decoded(file_name[:-5]) if file_name.endswith(".json") else None


def parse_tag_file_name(file_name: str) -> str | None:
    """Return the tag of a file name in `_refs/tags/`; None for any other file."""
    return _decoded(file_name[:-5]) if file_name.endswith(".json") else None


def _encoded(name: str) -> str:
    """Percent-encode "/" and non-ASCII characters, as pylance does for the file names of refs."""
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in name.encode(errors="replace"))


def _decoded(text: str) -> str:
    encoded = text.encode(errors="replace")
    return _PERCENT.sub(lambda match: bytes([int(match[1], 16)]), encoded).decode(errors="replace")


def branch_fence_file(name: str, newest: int, seconds: int, branch_id: str) -> str:
    """Return the path of a branch fence: the newest version of a deleted branch, and when it was deleted."""
    return f"{DELETED_BRANCHES}/{_encoded(name)}@{newest}@{seconds}@{branch_id}"


def parse_branch_fence(file_name: str) -> tuple[str, int, int, str] | None:
    """Return the branch, newest version, time in seconds and branch id of a branch fence; None for other names."""
    match = _FENCE_NAME.fullmatch(file_name)
    return (_decoded(match[1]), int(match[2]), int(match[3]), match[4]) if match else None


_LONGEST = 1024


def is_file_name(name: str) -> bool:
    """Return whether a name denotes a file directly in a folder, without separators."""
    return "/" not in name and "\\" not in name and is_path_inside(name)


# Control characters are refused too: they would corrupt messages and terminals. The length is limited, because paths
# of a damaged file end up in messages.
def is_path_inside(path: str) -> bool:
    """Return whether a relative path stays below the folder it is resolved against."""
    if len(path) > _LONGEST or "\0" in path or not path.isprintable():
        return False
    return all(segment not in ("", ".", "..") for segment in path.split("/"))


def versions_folder(branch: str) -> str:
    """Return the folder that holds the manifests of a branch."""
    return join(branch_root(branch), VERSIONS)


def transaction_path(branch: str, file_name: str) -> str:
    """Return the path of a transaction file of a branch."""
    return join(branch_root(branch), TRANSACTIONS, file_name)


def newest_versions_in(names: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the versions of a listing as `parse_manifest_names` does; only the two newest where all names are V2."""
    return parse_manifest_names(newest_manifest_names(names))


def ref_file(folder: str, name: str) -> str | None:
    """Return the path of the file of a branch or a tag in its folder; None for a name that leads out of the folder."""
    return f"{folder}/{_encoded(name)}.json" if is_path_inside(name) else None
