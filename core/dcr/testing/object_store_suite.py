"""What every ObjectStore must do; each implementation's test subclasses this."""

import threading
from collections.abc import Callable

import pytest

from dcr.errors import ConfigError, Conflict, MissingObject, RefitError
from dcr.transport.base import ObjectStore

HOSTILE_KEYS = (
    "", "/", "/etc/passwd", "a/", "/a", "a//b", ".", "..", "../a", "a/../b", "a/..", "a/.", "./a",
    ".hidden", "a/.tmp-1", "a b", "a\\b", "a\0b", "a\nb", "a\n", "ключ", "a/ä", "a/\u2215b", "a/\ud800",
    "a:b", "a*", "~", "-rf", "C:\\a", "x" * 256, "/".join("x" * 100 for _ in range(20)),
)  # fmt: skip
GOOD_KEYS = ("a", "0/1/2", "run/payload/1-2/0/3", "A.b_c=d+e-f", "x" * 200, "_a/b..c")


class ObjectStoreContract:
    """A subclass defines the fixture ``open_store``: each call opens another handle on the same objects.

    ``may_nest``: the store can hold ``a`` beside ``a/b``, and need not look for either before it writes.
    """

    may_nest = False

    @pytest.fixture
    def store(self, open_store: Callable[[], ObjectStore]) -> ObjectStore:
        """One handle on an empty store."""
        return open_store()

    def test_get_returns_what_was_put(self, store: ObjectStore) -> None:
        """Bytes come back whole, the empty object and one larger than any buffer included."""
        objects = {"a/empty": b"", "a/one": b"\0", "a/large": bytes(range(256)) * 20_000}
        for key, data in objects.items():
            store.put(key, data)
        assert {key: store.get(key) for key in objects} == objects

    def test_an_object_is_seen_through_every_handle(self, open_store: Callable[[], ObjectStore]) -> None:
        """Nothing is kept in the handle that wrote."""
        open_store().put("a/b", b"x")
        assert open_store().get("a/b") == b"x"
        assert open_store().list("") == ["a/b"]

    def test_putting_the_same_bytes_again_is_no_error(self, open_store: Callable[[], ObjectStore]) -> None:
        """A lost answer is answered by asking again, also from another process."""
        for _ in range(3):
            open_store().put("k", b"same")
        assert open_store().list("") == ["k"]

    @pytest.mark.parametrize("other", [b"", b"other", b"firsT", b"first and more"])
    def test_an_object_never_changes(self, store: ObjectStore, other: bytes) -> None:
        """Other bytes are refused and the first ones stay."""
        store.put("k", b"first")
        with pytest.raises(Conflict, match="k"):
            store.put("k", other)
        assert store.get("k") == b"first"
        assert store.list("") == ["k"]

    def test_a_missing_object_is_named(self, store: ObjectStore) -> None:
        """Nothing, a folder of keys and a key below an object are no objects."""
        store.put("a/b", b"x")
        for key in ("c", "a", "a/b/c", "a/c", "a/bb"):
            with pytest.raises(MissingObject, match=key):
                store.get(key)

    def test_list_is_sorted_and_by_prefix(self, store: ObjectStore) -> None:
        """A prefix is a prefix of the key's text, not a folder."""
        keys = ["r/p/1-1/0", "r/p/1-1/1", "r/p/1-10/0", "r/p/1-2/0", "r/q", "r1/p", "s"]
        for key in reversed(keys):
            store.put(key, key.encode())
        for prefix in (
            "",
            "r",
            "r/",
            "r/p",
            "r/p/1-1",
            "r/p/1-1/",
            "r/q",
            "r/q/",
            "nothing",
            "nothing/",
            ".",
        ):
            assert store.list(prefix) == sorted(key for key in keys if key.startswith(prefix)), prefix

    def test_delete_removes_one_object_and_may_be_repeated(self, store: ObjectStore) -> None:
        """A missing object, a folder and a key below an object are no errors and stay as they are."""
        store.put("a/b", b"x")
        store.put("a/c", b"y")
        for key in ("a/b", "a/b", "a", "a/c/d", "nothing/here"):
            store.delete(key)
        assert store.list("") == ["a/c"]
        with pytest.raises(MissingObject):
            store.get("a/b")

    def test_a_deleted_key_may_be_created_anew(self, store: ObjectStore) -> None:
        """Deletion leaves nothing that a later put would meet."""
        store.put("k", b"old")
        store.delete("k")
        store.put("k", b"new")
        assert store.get("k") == b"new"

    def test_a_key_is_not_also_a_folder(self, store: ObjectStore) -> None:
        """No code of ours makes such keys. Stores that cannot hold both say so; none loses what it held."""
        store.put("a/b", b"x")
        held = ["a/b"]
        for key in ("a", "a/b/c", "a/b/c/d"):
            try:
                store.put(key, b"y")
            except ConfigError as err:
                assert "folder" in str(err)  # noqa: PT017 -- it may be refused or done
                continue
            assert self.may_nest
            held.append(key)
        assert store.list("") == sorted(held)
        assert store.get("a/b") == b"x"

    @pytest.mark.parametrize("key", HOSTILE_KEYS, ids=ascii)
    def test_hostile_keys_are_refused_before_anything_happens(self, store: ObjectStore, key: str) -> None:
        """No key leaves the store or means two things on two file systems."""
        for act in (lambda: store.put(key, b"x"), lambda: store.get(key), lambda: store.delete(key)):
            with pytest.raises(ConfigError, match="key"):
                act()
        assert store.list("") == []

    @pytest.mark.parametrize("prefix", ["../", "/", "a/../", "a//", "..\0/"], ids=ascii)
    def test_hostile_prefixes_are_refused(self, store: ObjectStore, prefix: str) -> None:
        """Listing does not leave the store either."""
        with pytest.raises(ConfigError, match="key"):
            store.list(prefix)

    @pytest.mark.parametrize("key", GOOD_KEYS)
    def test_every_legal_key_can_be_used(self, store: ObjectStore, key: str) -> None:
        """The grammar promises no more than the store can hold."""
        store.put(key, b"x")
        assert store.list(key) == [key]
        assert store.get(key) == b"x"

    def test_of_racing_writers_one_wins(self, open_store: Callable[[], ObjectStore]) -> None:
        """Create-if-absent: exactly one of several different objects is kept, the others get Conflict."""
        for turn in range(20):
            key = f"race/{turn}"
            outcomes = _race([_putter(open_store(), key, bytes([n]) * 4096) for n in range(4)])
            winners = [n for n, error in enumerate(outcomes) if error is None]
            assert len(winners) == 1, outcomes
            assert sum(isinstance(error, Conflict) for error in outcomes) == 3
            assert open_store().get(key) == bytes(winners) * 4096

    def test_racing_writers_of_the_same_bytes_all_succeed(
        self, open_store: Callable[[], ObjectStore]
    ) -> None:
        """Racing retries of one write do not disturb one another."""
        for turn in range(20):
            key = f"race/{turn}"
            assert _race([_putter(open_store(), key, b"same" * 1024) for _ in range(4)]) == [None] * 4
            assert open_store().get(key) == b"same" * 1024

    def test_a_reader_never_sees_a_part(self, open_store: Callable[[], ObjectStore]) -> None:
        """While objects appear, every listed one is whole and every other one is missing."""
        data = bytes(range(256)) * 4096
        keys = [f"p/{n}" for n in range(12)]
        writer = threading.Thread(target=_put_all, args=(open_store(), keys, data))
        reader = open_store()
        writer.start()
        while writer.is_alive():
            assert all(reader.get(key) == data for key in reader.list("p/"))
            for key in keys:
                assert _get_or_none(reader, key) in (None, data)
        writer.join()
        assert reader.list("p/") == sorted(keys)


def _put_all(store: ObjectStore, keys: list[str], data: bytes) -> None:
    for key in keys:
        store.put(key, data)


def _get_or_none(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except MissingObject:
        return None


def _putter(store: ObjectStore, key: str, data: bytes) -> Callable[[], None]:
    return lambda: store.put(key, data)


def _race(acts: list[Callable[[], None]]) -> list[RefitError | None]:
    """Run all acts at once; the error that each ended with."""
    barrier = threading.Barrier(len(acts))
    outcomes: list[RefitError | None] = [None] * len(acts)

    def run(index: int) -> None:
        barrier.wait()
        try:
            acts[index]()
        except RefitError as err:
            outcomes[index] = err

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
