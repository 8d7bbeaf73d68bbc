"""The classification of objects in a table's folder by their names alone."""

import pytest

from lance_dagster.history.inventory import (
    Kind,
    StoredObject,
    classify_key,
    expired_copies,
    expired_copy_key,
    take_inventory,
)
from lance_dagster.store import ObjectInfo

BRANCHES = ("run/1", "dev", "dev/data/x", "data")
INDEX = "_indices/0b6c1f9e-2a34-4d58-9c11-7e5f00a1b2c3"
DIGEST = "0123456789abcdef" * 4
NEW, OLD = "18446744073709551608.manifest", "7.manifest"


@pytest.mark.parametrize(
    "key,branch,kind,name",
    [
        (f"_versions/{NEW}", "main", Kind.VERSION, f"_versions/{NEW}"),
        (f"_versions/{OLD}", "main", Kind.VERSION, f"_versions/{OLD}"),
        ("_versions/d9221219946689378646.manifest", "main", Kind.VERSION, "_versions/d9221219946689378646.manifest"),
        ("_versions/d12021219946689378646.manifest", "main", Kind.VERSION, "_versions/d12021219946689378646.manifest"),
        ("_versions/latest_version_hint.json", "main", Kind.HINT, "_versions/latest_version_hint.json"),
        ("_versions/.tmp_7.manifest_1", "main", Kind.TEMPORARY, "_versions/.tmp_7.manifest_1"),
        ("_transactions/1-a.txn", "main", Kind.TRANSACTION, "_transactions/1-a.txn"),
        ("_deletions/1-2-3.arrow", "main", Kind.DELETION, "_deletions/1-2-3.arrow"),
        ("_deletions/1-2-3.bin", "main", Kind.DELETION, "_deletions/1-2-3.bin"),
        (f"{INDEX}/index.idx", "main", Kind.INDEX, INDEX),
        (f"{INDEX}/part/page.lance", "main", Kind.INDEX, INDEX),
        (f"{INDEX}/.tmp1", "main", Kind.TEMPORARY, f"{INDEX}/.tmp1"),
        ("data/x.lance", "main", Kind.DATA, "data/x.lance"),
        ("data/x/0.blob", "main", Kind.BLOB, "data/x.lance"),
        (f"data/x/0.blob.{DIGEST}.sha256", "main", Kind.BLOB, "data/x.lance"),
        ("data/x/.tmp1", "main", Kind.TEMPORARY, "data/x/.tmp1"),
        ("data/.tmp1/0.blob", "main", Kind.TEMPORARY, "data/.tmp1/0.blob"),
        ("tree/run/1/data/x.lance", "run/1", Kind.DATA, "tree/run/1/data/x.lance"),
        ("tree/dev/data/x.lance", "dev", Kind.DATA, "tree/dev/data/x.lance"),
        ("tree/dev/data/x/0.blob", "dev", Kind.BLOB, "tree/dev/data/x.lance"),
        ("tree/dev/data/x/data/y.lance", "dev/data/x", Kind.DATA, "tree/dev/data/x/data/y.lance"),
        (f"tree/data/_versions/{NEW}", "data", Kind.VERSION, f"tree/data/_versions/{NEW}"),
        (f"tree/left/over/_versions/{NEW}", "left/over", Kind.VERSION, f"tree/left/over/_versions/{NEW}"),
        ("_refs/tags/a.json", "main", Kind.NAME, "_refs/tags/a.json"),
        ("_refs/branches/run%2F1.json", "main", Kind.NAME, "_refs/branches/run%2F1.json"),
        ("_refs/.probe-1", "main", Kind.TEMPORARY, "_refs/.probe-1"),
        (".tmp1", "main", Kind.TEMPORARY, ".tmp1"),
        (".clone", "main", Kind.TEMPORARY, ".clone"),
    ],
)
def test_an_object_is_what_its_name_says(key: str, branch: str, kind: Kind, name: str) -> None:
    """The object belongs to main or to a branch, which may have the name of a folder."""
    assert StoredObject(branch, kind, name) == classify_key(key, BRANCHES)


@pytest.mark.parametrize(
    "key",
    [
        "readme",
        "cold/x.lance",
        "cold/data/x.lance",
        "cold/.tmp1",
        "data/x.csv",
        "data/x",
        "_versions/7",
        "_versions/x/7.manifest",
        "_versions/7.manifest.bak",
        "_versions/99999999999999999999.manifest",
        "_transactions/x/1.txn",
        "_transactions/1.txt",
        "_deletions/x",
        "_indices/x",
        "_indices/notes/index.idx",
        "data/2024/part.parquet",
        "data/.git/config",
        f"data/sub.lance/_versions/{NEW}",
        "data/sub.lance/data/x.lance",
        "data/sub.lance/data/x/0.blob",
        "data/sub.lance/data/.tmp1",
        "_mem_wal/1/data/x.lance",
        "_fri/x",
        "tree/x",
        "tree/dev/x.lance",
        "tree/dev/cold/x.lance",
        "other.lance/_versions/1.manifest",
        "treehouse/dev/data/x.lance",
    ],
)
def test_what_has_no_name_of_a_tables_is_somebody_elses(key: str) -> None:
    """Such objects are counted and left alone."""
    assert Kind.UNKNOWN is classify_key(key, BRANCHES).kind
    assert 1 == take_inventory([ObjectInfo(key, 1, 0)], BRANCHES).unknown


def test_versions_are_sorted_by_branch_and_number() -> None:
    """A folder with names of both schemes is recognised."""
    entries = [
        ObjectInfo(key, 1, 5) for key in (f"_versions/{NEW}", f"tree/dev/_versions/{OLD}", "tree/dev/data/x.lance")
    ]
    found = take_inventory([*entries, ObjectInfo(f"tree/dev/_versions/{NEW}", 1, 9)], BRANCHES)
    assert {7: entries[0]} == found.of_branch("main").manifests
    assert (False, True, 9) == (
        found.of_branch("main").mixed,
        found.of_branch("dev").mixed,
        found.of_branch("dev").modified,
    )


def test_versions_that_wait_are_told_from_those_of_another_branch_of_the_name() -> None:
    """The id of the branch tells them apart."""
    keys = [
        expired_copy_key("run/1", 7, "id", "0" * 64),
        expired_copy_key("main", 2**64 - 1, "main", "f" * 64),
        "_expired/x",
    ]
    entries = [ObjectInfo(key, 1, 0) for key in keys]
    expected = [("run/1", 7, entries[0], True), ("main", 2**64 - 1, entries[1], True)]
    assert expected == list(expired_copies(entries, {"run/1": "id", "main": "main"}))
    assert [False, True] == [same for *_, same in expired_copies(entries, {"run/1": "other", "main": "main"})]
