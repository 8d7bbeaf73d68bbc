"""Copies between stores: on the server's side where one storage holds both, through a local file elsewhere."""

from pathlib import Path

import pytest

from lance_dagster.store import Store, copy_file, copy_folder, open_store
from tests.conftest import S3Storage
from tests.store.scripted import Request, ScriptedStore

PAIRS = ["local to local", "local to S3", "S3 to local", "S3 to S3", "S3 to S3 of another account"]


@pytest.fixture
def stores(request: pytest.FixtureRequest, tmp_path: Path, s3_storage: S3Storage) -> tuple[Store, Store]:
    """A store to copy from and one to copy to."""
    options = dict(s3_storage.storage_options)
    local = [open_store(tmp_path / name) for name in ("a", "b")]
    remote = [open_store(f"{s3_storage.uri}/{name}", options) for name in ("a", "b")]
    other = open_store(f"{s3_storage.uri}/b", options | {"aws_access_key_id": "other-key"})
    pairs = [(local[0], local[1]), (local[0], remote[1]), (remote[0], local[1]), (remote[0], remote[1])]
    return dict(zip(PAIRS, [*pairs, (remote[0], other)], strict=True))[request.param]


@pytest.mark.parametrize("stores", PAIRS, indirect=True)
def test_a_file_is_copied_whole(stores: tuple[Store, Store]) -> None:
    """A file is copied whole between any two stores."""
    source, dest = stores
    data = bytes(range(256)) * 40_000
    source.put("data/x.lance", data)
    assert copy_file(source, "data/x.lance", dest, "rows/y.lance")
    assert data == dest.get("rows/y.lance")
    assert not copy_file(source, "data/none.lance", dest, "rows/none.lance")
    assert dest.get("rows/none.lance") is None


@pytest.mark.parametrize("stores", PAIRS, indirect=True)
def test_a_folder_is_copied_file_by_file(stores: tuple[Store, Store]) -> None:
    """A folder is copied file by file, under the same names, with the folders in it."""
    source, dest = stores
    source.put("x/1.blob", b"1")
    source.put("x/2.blob", b"2")
    source.put("x/below/deeper/3.blob", b"3")
    assert copy_folder(source, "x", dest, "y")
    assert {"1.blob": 1, "2.blob": 1} == dest.sizes("y")
    assert b"3" == dest.get("y/below/deeper/3.blob")
    assert not copy_folder(source, "none", dest, "z")


VERBS = ["copy_from", "upload", "upload", "copy_from", "upload"]


@pytest.mark.parametrize("stores,verb", list(zip(PAIRS, VERBS, strict=True)), indirect=["stores"])
def test_bytes_travel_only_where_they_have_to(stores: tuple[Store, Store], verb: str) -> None:
    """Objects of one server are copied by the server, without a transfer."""
    asked: list[str] = []

    def script(request: Request) -> object:
        asked.append(request.verb)
        return request.send()

    source, dest = stores
    source.put("x", b"1")
    copy_file(source, "x", ScriptedStore(dest, script), "y")
    assert [verb] == asked
