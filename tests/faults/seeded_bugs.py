"""Bugs that are put into a copy of the package, and the enumeration that has to find each, in a separate process.

    python -m tests.faults.seeded_bugs operation [rival]

runs every plan of an operation, or every request with a rival, until a guarantee does not hold, and prints which one.
It imports the package of the working directory.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
FOUND = 3
"""The exit code when a promise does not hold."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A text of the package, the text that replaces it, and the operation that shows the bug."""

    name: str
    module: str
    right: str
    wrong: str
    shown_by: tuple[str, ...]
    times: int = 1


_ANSWERED = "            if store.put_if_absent(path, data, synced=False, after=after):\n                return None"
BUGS = (
    Bug(
        "a refused put is another writer's version",
        "history/commit.py",
        "return None if stored == data else (stored, newest)\n",
        "return stored, newest\n",
        ("create",),
    ),
    Bug(
        "a version is put over another one",
        "history/commit.py",
        _ANSWERED,
        "            store.put(path, data)\n            return None",
        ("append", "overwrite"),
    ),
    Bug(
        "a lost answer to a commit is an error",
        "history/commit.py",
        "            problem = error\n        try:\n",
        "            raise\n        try:\n",
        ("append",),
    ),
    Bug(
        "a refused put counts as done",
        "history/commit.py",
        "        if stored is not None:\n            # Equal",
        "        if not problem:\n            return None\n        if stored is not None:\n            # Equal",
        ("overwrite", "append"),
    ),
    Bug(
        "a hint that cannot be written fails the commit",
        "history/commit.py",
        '        _log.warning("cannot write the version hint of %s: %s", versions.store.uri, error)\n',
        "        raise\n",
        ("append",),
    ),
    Bug(
        "an unknown state is an error of the storage",
        "history/commit.py",
        "    raise CommitStateUnknownError(\n"
        '        f"cannot tell whether {store.uri}/{path} was committed: {problem}", transaction.uuid, transaction\n'
        "    ) from problem",
        '    raise StoreError(f"cannot tell {problem}")',
        ("append",),
    ),
    Bug(
        "every concurrent change is compatible",
        "history/rebase.py",
        "    verdict = Compatibility.RETRYABLE if landed is None else classify(transaction, landed)\n",
        "    verdict = Compatibility.COMPATIBLE\n",
        ("delete", "delete other rows"),
    ),
    Bug(
        "deleted rows of a rival come back",
        "history/rebase.py",
        "        union = added | in_head\n",
        "        union = added | in_base\n",
        ("delete", "delete other rows"),
    ),
    Bug(
        "a resumed transaction is committed again",
        "history/rebase.py",
        "transaction.uuid:\n",
        "transaction.operation_name:\n",
        ("overwrite",),
        times=2,
    ),
    Bug(
        "one lost answer after a commit makes it unknown",
        "history/refs/branch_fence.py",
        "_LOOKS, _PAUSE_SECONDS = 4, 0.02",
        "_LOOKS, _PAUSE_SECONDS = 1, 0.02",
        ("append to a branch",),
    ),
    Bug(
        "a commit does not look at its branch again",
        "history/commit.py",
        "    if fence is not None:\n        fence.check_after_put(",
        "    if fence is not None and not branch_id:\n        fence.check_after_put(",
        ("append to a branch", "rename a branch"),
    ),
    Bug(
        "a version that was refused counts as copied",
        "store/interface.py",
        "        if store.put_if_absent(key, data) or store.get(key) is not None:\n            return\n",
        "        store.put_if_absent(key, data)\n        return\n",
        ("rename a branch",),
    ),
    Bug(
        "a branch is ready before it has a version",
        "history/refs/branch_operations.py",
        "    # This is None when another process finished the creation first; its manifest has the same content.\n",
        "    refs.branches.set_state(branch, READY)\n",
        ("create a branch",),
    ),
    Bug(
        "versions are deleted before the branch is marked",
        "history/refs/branch_operations.py",
        "    together(refs.store, refuse, partial(refuse_users, name, do, refs, protected=True))\n    return branch\n",
        "    together(refs.store, refuse, partial(refuse_users, name, do, refs, protected=True))\n"
        "    folder = layout.versions_folder(name)\n"
        '    refs.store.delete_many([f"{folder}/{file}" for file in refs.store.list(folder)])\n    return branch\n',
        ("delete a branch",),
    ),
    # A branch that is deleted by its name is found by `history/refs/test_schedules.py`, whose rival creates the branch
    # again. No operation here has a rival that commits to a new branch of the same name.
    Bug(
        "a tag is moved over another move",
        "history/refs/ref_store.py",
        "            if self.store.compare_and_swap(path, tag_file_of(tag), etag):\n                return True\n",
        "            self.store.put(path, tag_file_of(tag))\n            return True\n",
        ("rename a tag", "move another tag"),
    ),
    Bug(
        "a tag that was moved is not recognised",
        "history/refs/ref_store.py",
        "        return now is not None and now.metadata.get(WRITE_ID) == tag.metadata[WRITE_ID]\n",
        "        return False\n",
        ("move a tag",),
    ),
    Bug(
        "a renamed tag is gone before it is there",
        "history/refs/rename.py",
        "    if target is None:\n        own = {RENAMING_TO: None",
        "    refs.tags.remove(marked)\n    if target is None:\n        own = {RENAMING_TO: None",
        ("rename a tag",),
    ),
    Bug(
        "a collection forgets the grace period",
        "table/maintenance.py",
        "        grace = max(age, _SHORTEST_GRACE) if grace is None else _duration(grace)\n",
        "        grace = timedelta(0)\n",
        ("append", "collect"),
    ),
    Bug(
        "a collection does not look at names again",
        "gc/sweep.py",
        "        _, back = self._recheck_refs(going)\n",
        "        back: list[StoredVersion] = []\n",
        ("collect", "tag an old version"),
    ),
    Bug(
        "versions expire before they are copied",
        "gc/sweep.py",
        "        copies = dict(zip(going, concurrently(self._copy, going), strict=True))\n",
        "        self._delete([found.entry for found in going])\n"
        "        copies = {found: found.entry.key for found in going}\n",
        ("collect", "tag an old version"),
    ),
    Bug(
        "a deep clone is a table before its files are there",
        "placement/clone.py",
        "            _copy_files(context, source, cloned.store, progress)\n"
        "        _commit_first(context, source, cloned, manifest, properties=properties or {})\n",
        "            _commit_first(context, source, cloned, manifest, properties=properties or {})\n"
        "            _copy_files(context, source, cloned.store, progress)\n            return\n"
        "        _commit_first(context, source, cloned, manifest, properties=properties or {})\n",
        ("clone deeply",),
    ),
    Bug(
        "an entry of main is put over another one",
        "repository/commits/ref_log.py",
        "                if self.store.put_if_absent(path, data):\n                    self._keep",
        "                self.store.put(path, data)\n                if True:\n                    self._keep",
        ("publish 4", "publish 5"),
    ),
    Bug(
        "main names a commit before it is stored",
        "repository/publish/commit_tables.py",
        '        logs.put_commit(commit, data, base=head)\n        entry = next_entry(newest, "commit", commit.id, '
        "reason=request.message, by=commit.author)\n"
        '        if logs.append("branch", request.branch, entry):\n',
        '        entry = next_entry(newest, "commit", commit.id, reason=request.message, by=commit.author)\n'
        '        if logs.append("branch", request.branch, entry):\n'
        "            logs.put_commit(commit, data, base=head)\n",
        ("repository: publish",),
    ),
)


def seeded(bug: Bug, folder: Path) -> Path:
    """A folder with the tests, and the package with the bug."""
    shutil.copytree(PROJECT / "lance_dagster", folder / "lance_dagster", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(PROJECT / "tests")
    path = folder / "lance_dagster" / bug.module
    text = path.read_text()
    if text.count(bug.right) != bug.times:
        raise ValueError(f"{bug.name}: {bug.module} has the text to replace {text.count(bug.right)} times")
    path.write_text(text.replace(bug.right, bug.wrong))
    return folder


def hunt(bug: Bug) -> "subprocess.CompletedProcess[str]":
    """Let the enumeration search for a bug."""
    with tempfile.TemporaryDirectory() as folder:
        place = seeded(bug, Path(folder))
        return subprocess.run(
            [sys.executable, "-m", __name__, *bug.shown_by],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place), "LANCE_DAGSTER_COMMITTER": ""},
            capture_output=True,
            text=True,
            check=False,
        )


def main(name: str, rival: str = "") -> int:
    """Run every plan of an operation, or every request with a rival, until a guarantee does not hold."""
    from tests.faults.catalogue import Catalogue
    from tests.faults.enumeration import Rivalry, Violation

    with tempfile.TemporaryDirectory() as folder:
        catalogue = Catalogue(Path(folder))
        try:
            actor = catalogue.of(name)
            if rival:
                rivalry = Rivalry(actor, catalogue.of(rival))
                for number in rivalry.places():
                    rivalry.meet(number)
            else:
                for plan in actor.plans():
                    actor.suffer(plan)
        except Violation as violation:
            print(violation)  # noqa: T201 - what a person, or the test, reads
            return FOUND
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
