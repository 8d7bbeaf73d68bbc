"""The contract of every store; the test class of a provider inherits it and has a `store` fixture."""

from pathlib import Path

import pytest

from lance_dagster.store import Store


class StoreConformance:
    """The verbs of a store, one test each."""

    many = 1003
    """More objects than one request of the provider can delete."""
    deletes_conditionally: bool | None = True
    """Whether the provider obeys the condition of a deletion; None where that depends on its release."""

    def test_nothing_is_there_at_first(self, store: Store) -> None:
        """A read of a missing object returns None and is not an error."""
        assert store.get("a/b") is None
        assert store.get_with_etag("a/b") is None
        assert [] == store.list("a")
        store.delete("a/b")
        store.prune("a")
        assert self.deletes_conditionally is None or not store.compare_and_delete("a/b", "tag")

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096], ids=["empty", "byte", "megabyte"])
    def test_what_was_put_is_read(self, store: Store, data: bytes) -> None:
        """An object is read as it was put, whatever its size."""
        store.put("a/b", data)
        assert data == store.get("a/b")

    def test_a_part_of_an_object_is_read(self, store: Store) -> None:
        """From a position up to another, or to the end of the object; nothing behind its end."""
        store.put("a/b", b"0123456789")
        found = [store.get_range("a/b", start, end) for start, end in ((0, 4), (6, 10), (6, 99), (10, 20), (50, 60))]
        assert [b"0123", b"6789", b"6789", b"", b""] == found
        assert store.get_range("a/x", 0, 4) is None

    def test_put_replaces(self, store: Store) -> None:
        """The last put is what is read."""
        store.put("a/b", b"1")
        store.put("a/b", b"2")
        assert b"2" == store.get("a/b")

    def test_the_tag_of_what_was_written_is_known(self, store: Store) -> None:
        """A writer can swap its own object without reading it, unless another writer replaced it."""
        assert store.put_if_absent("a/b", b"1")
        tag = store.written_tag("a/b", b"1")
        assert (store.get_with_etag("a/b") or (b"", ""))[1] == tag
        assert store.compare_and_swap("a/b", b"2", str(tag))
        again = store.written_tag("a/b", b"2")
        assert (store.get_with_etag("a/b") or (b"", ""))[1] == again
        store.put("a/b", b"3")
        assert not store.compare_and_swap("a/b", b"4", str(again))
        assert b"3" == store.get("a/b")

    def test_a_listing_shows_the_tags_of_reads_or_none(self, store: Store) -> None:
        """Equal tags are those of equal objects."""
        for name in ("x", "y"):
            store.put(f"a/{name}", name.encode())
            store.put(f"a/deeper/{name}", name.encode())
        listed = store.list_with_etags("a")
        assert ["x", "y"] == list(listed)
        for name, tag in listed.items():
            assert tag in ("", (store.get_with_etag(f"a/{name}") or (b"", ""))[1])
        store.put("a/x", b"other")
        assert listed["x"] == "" or listed["x"] != store.list_with_etags("a")["x"]

    def test_put_if_absent_writes_once(self, store: Store) -> None:
        """The second writer of a name learns that it lost, and changes nothing."""
        assert store.put_if_absent("a/b", b"1")
        assert not store.put_if_absent("a/b", b"2")
        assert b"1" == store.get("a/b")

    def test_a_name_is_free_again_after_delete(self, store: Store) -> None:
        """A name can be used again only after its object was deleted."""
        store.put_if_absent("a/b", b"1")
        store.delete("a/b")
        assert store.get("a/b") is None
        assert store.put_if_absent("a/b", b"2")

    def test_a_swap_needs_the_tag_of_what_is_there(self, store: Store) -> None:
        """A compare-and-swap needs the present etag, which changes with each swap."""
        store.put("refs/tags/a", b"1")
        _, tag = store.get_with_etag("refs/tags/a") or (b"", "")
        assert store.compare_and_swap("refs/tags/a", b"2", tag)
        assert not store.compare_and_swap("refs/tags/a", b"3", tag)
        found, newer = store.get_with_etag("refs/tags/a") or (b"", "")
        assert b"2" == found
        assert store.compare_and_swap("refs/tags/a", b"4", newer)

    def test_a_swap_does_not_bring_back_what_was_deleted(self, store: Store) -> None:
        """A compare-and-swap of a deleted object fails with any etag."""
        store.put("refs/tags/a", b"1")
        _, tag = store.get_with_etag("refs/tags/a") or (b"", "")
        store.delete("refs/tags/a")
        assert not store.compare_and_swap("refs/tags/a", b"2", tag)
        assert store.get("refs/tags/a") is None

    def test_a_swap_where_nothing_ever_was_fails(self, store: Store) -> None:
        """A compare-and-swap of an object that never existed fails, even without its folder."""
        assert not store.compare_and_swap("refs/tags/a", b"2", "0" * 32)

    def test_a_listing_is_sorted_and_of_one_folder(self, store: Store) -> None:
        """Names directly in the folder, in order; neither folders nor what lies in them."""
        for key in ("a/c", "a/b", "a/d/e", "ab/x", "f"):
            store.put(key, b"1")
        assert ["b", "c"] == store.list("a")
        assert ["e"] == store.list("a/d")

    def test_folders_are_listed_apart_from_files(self, store: Store) -> None:
        """Folders are listed sorted, and only those directly in a folder."""
        for key in ("b/x/1", "a/1", "a/y/z/2", "file"):
            store.put(key, b"")
        assert (("a", "b"), ("y",), ()) == (store.folders(""), store.folders("a"), store.folders("nothing"))

    def test_a_listing_can_be_cut(self, store: Store) -> None:
        """A limited listing has the first names in the order."""
        for name in ("c", "a", "d", "b"):
            store.put(f"x/{name}", b"1")
        assert ["a", "b"] == store.list("x", limit=2)
        assert ["a", "b", "c", "d"] == store.list("x", limit=9)

    def test_sizes_are_those_of_the_files_of_one_folder(self, store: Store) -> None:
        """Sizes leave out files in subfolders; a missing folder is empty."""
        for key, data in (("a/b", b"1"), ("a/c", b""), ("a/d/e", b"123"), ("f", b"12")):
            store.put(key, data)
        assert {"b": 1, "c": 0} == store.sizes("a")
        assert {} == store.sizes("x")

    def test_the_folder_itself_is_listed_by_an_empty_name(self, store: Store) -> None:
        """An empty name lists the root folder itself."""
        store.put("a", b"1")
        store.put("b/c", b"1")
        assert ["a"] == store.list("")
        assert {"a": 1} == store.sizes("")

    def test_a_file_is_fetched_and_sent(self, store: Store, tmp_path: Path) -> None:
        """A file is downloaded to and uploaded from a local file, for copies between unrelated stores."""
        store.put("a/b", b"rows")
        assert store.download("a/b", tmp_path / "file")
        assert b"rows" == (tmp_path / "file").read_bytes()
        assert not store.download("a/x", tmp_path / "none")
        store.put("c/d", b"older")
        store.upload(tmp_path / "file", "c/d")
        assert b"rows" == store.get("c/d")

    def test_an_odd_name_is_a_name(self, store: Store) -> None:
        """The encoded slash of branch files is three characters, not a slash."""
        store.put("refs/run%2F1.json", b"1")
        assert ["run%2F1.json"] == store.list("refs")
        assert b"1" == store.get("refs/run%2F1.json")

    def test_a_file_is_copied(self, store: Store) -> None:
        """A copy has the bytes of the original, which stays."""
        store.put("tree/b/data/x.lance", b"rows")
        assert store.copy_from(f"{store.uri}/tree/b/data/x.lance", "data/x.lance")
        assert (b"rows", b"rows") == (store.get("data/x.lance"), store.get("tree/b/data/x.lance"))

    def test_a_folder_is_copied(self, store: Store) -> None:
        """Everything below comes along, under the same names; the neighbour with a longer name does not."""
        store.put("tree/b/data/x/1.blob", b"1")
        store.put("tree/b/data/x/deep/2.blob", b"2")
        store.put("tree/b/data/xy/3.blob", b"3")
        assert store.copy_from(f"{store.uri}/tree/b/data/x", "data/x")
        assert ["1.blob"] == store.list("data/x")
        assert b"2" == store.get("data/x/deep/2.blob")
        assert [] == store.list("data")

    def test_copying_nothing_is_told(self, store: Store) -> None:
        """A copy of a missing file is reported to the caller."""
        assert not store.copy_from(f"{store.uri}/tree/b/data/x.lance", "data/x.lance")
        assert store.get("data/x.lance") is None

    def test_only_the_object_that_was_read_is_deleted(self, store: Store) -> None:
        """A conditional deletion keeps another object of the name, where the store supports conditions."""
        if not store.deletes_conditionally():
            assert self.deletes_conditionally is None
            return
        for key in ("a/b", "a/c"):
            store.put(key, b"1")
        found = store.get_with_etag("a/b")
        assert found is not None
        store.put("a/b", b"2")
        assert not store.compare_and_delete("a/b", found[1])
        assert b"2" == store.get("a/b")
        again = store.get_with_etag("a/b")
        assert again is not None
        assert store.compare_and_delete("a/b", again[1])
        assert (None, b"1") == (store.get("a/b"), store.get("a/c"))
        assert not store.compare_and_delete("a/b", again[1])

    def test_syncing_is_always_possible(self, store: Store) -> None:
        """A folder can be synced before and after it exists."""
        store.sync_folder("a")
        store.put("a/b", b"1")
        store.sync_folder("a")

    def test_a_walk_finds_everything_below_a_folder(self, store: Store) -> None:
        """With sizes, and times of the moment; a neighbour whose name only starts the same is not below."""
        before = store.now()
        for key, data in (("a/b", b"1"), ("a/c/d/e", b"123"), ("ab/x", b""), ("f", b"12")):
            store.put(key, data)
        found = {entry.key: entry for entry in store.walk("")}
        assert {"a/b": 1, "a/c/d/e": 3, "ab/x": 0, "f": 2} == {key: entry.size for key, entry in found.items()}
        assert all(before - 1 <= entry.modified <= store.now() + 1 for entry in found.values())
        assert ["a/b", "a/c/d/e"] == sorted(entry.key for entry in store.walk("a"))
        assert [] == list(store.walk("x"))

    def test_a_walk_finds_what_listings_hide(self, store: Store) -> None:
        """Temporary files are there for whoever cleans up."""
        store.put("a/.tmp1", b"1")
        assert ["a/.tmp1"] == [entry.key for entry in store.walk("")]

    def test_the_clock_is_the_one_that_stamps(self, store: Store) -> None:
        """The store's clock agrees with the times of its objects, and reading it leaves no object behind."""
        store.put("a", b"")
        (entry,) = store.walk("")
        assert abs(store.now() - entry.modified) < 60
        assert ["a"] == [found.key for found in store.walk("")]

    def test_many_are_deleted_and_their_neighbours_stay(self, store: Store) -> None:
        """More objects than fit into one request are deleted; missing ones are no error."""
        for number in range(self.many):
            store.put(f"a/{number}", b"", durable=False)
        store.delete_many([f"a/{number}" for number in range(1, self.many)] + ["a/x", "b/c"])
        assert ["0"] == store.list("a")
        store.delete_many([])

    def test_empty_folders_are_removed_and_others_stay(self, store: Store) -> None:
        """Where there are folders at all, what is in them is what they are for."""
        for key in ("a/b/c/d", "a/b/e", "a/f"):
            store.put(key, b"1")
        store.delete("a/b/c/d")
        store.prune("a/b")
        assert ["e"] == store.list("a/b")
        store.delete("a/b/e")
        store.prune("a/b")
        store.prune("x")
        assert ["a/f"] == [entry.key for entry in store.walk("")]
