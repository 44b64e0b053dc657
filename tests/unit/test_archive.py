"""Objects under their own digest."""

import pytest

from dcr.errors import ConfigError, MissingObject, PayloadError
from dcr.model import AttemptId, Manifest, PayloadRef, digest_hex
from dcr.testing.transport_suite import OTHER_RUN, RUN
from dcr.transport.archive import StoreArchive
from dcr.transport.memory import MemoryStore

MANIFEST = Manifest(
    run=RUN, attempt=AttemptId(version=2, number=5), parent_version=1, parent=None, catalogue="",
    overwrite_only=True, owners=(),
)  # fmt: skip


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_an_object_is_found_by_its_digest(store: MemoryStore) -> None:
    archive = StoreArchive(store, RUN)
    for _ in range(2):
        assert archive.put_object("manifest", b"{}") == digest_hex(b"{}")
    assert archive.get_object("manifest", digest_hex(b"{}")) == b"{}"
    assert store.list("") == [f"{RUN}/manifest/{digest_hex(b'{}')}"]


def test_kinds_and_runs_are_apart(store: MemoryStore) -> None:
    digest = StoreArchive(store, RUN).put_object("manifest", b"x")
    for archive, kind in ((StoreArchive(store, RUN), "audit"), (StoreArchive(store, OTHER_RUN), "manifest")):
        with pytest.raises(MissingObject):
            archive.get_object(kind, digest)


def test_damage_is_noticed(store: MemoryStore) -> None:
    digest = digest_hex(b"x")
    store.put(f"{RUN}/audit/{digest}", b"y")
    with pytest.raises(PayloadError, match=f"audit {digest} is damaged"):
        StoreArchive(store, RUN).get_object("audit", digest)


@pytest.mark.parametrize("digest", ["", "../x", "A" * 32, "0" * 31, "0" * 33, "0" * 31 + "\n", "ü" * 32])
def test_what_is_no_digest_finds_nothing(store: MemoryStore, digest: str) -> None:
    with pytest.raises(PayloadError, match="32 lower-case hexadecimal"):
        StoreArchive(store, RUN).get_object("manifest", digest)


@pytest.mark.parametrize("kind", ["payload", "close", "", "a/b", "..", "ü"])
def test_kinds_stay_out_of_the_attempts(store: MemoryStore, kind: str) -> None:
    """An object among payloads would be collected with them."""
    with pytest.raises(ConfigError, match="kind"):
        StoreArchive(store, RUN).put_object(kind, b"x")
    assert store.list("") == []


def test_a_payload_is_found_by_its_manifest(store: MemoryStore) -> None:
    store.put(f"{RUN}/payload/2-5/1/7", b"bytes")
    store.put(f"{OTHER_RUN}/payload/2-5/1/8", b"theirs")
    archive = StoreArchive(store, RUN)
    assert archive.get_payload(MANIFEST, PayloadRef(1, 7, "", 5)) == b"bytes"
    with pytest.raises(MissingObject):
        archive.get_payload(MANIFEST, PayloadRef(1, 8, "", 6))
