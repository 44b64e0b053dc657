"""Replay of anchor and chain against the dense tensors that the chain was made from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.property.committed_history import amended, audit_of, changed, four_versions, rebuild, same

from dcr import observe
from dcr.codec import Item, decode_payload, encode_payload, payload_digest
from dcr.errors import ConfigError, IntegrityError, StoreError
from dcr.model import (
    AttemptId,
    AuditDigest,
    Catalogue,
    CommitRecord,
    Encoding,
    Manifest,
    PayloadRef,
    TensorSpec,
    known_dtypes,
)
from dcr.testing.history import History, random_tensors
from dcr.transport.chain import chain
from dcr.transport.keys import payload_key
from dcr.transport.memory import MemoryStore
from dcr.transport.replay import replay, replay_tensors

NAMES = st.text("abc.0", min_size=1, max_size=4)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    num_aliases = draw(st.integers(0, len(names) - 1))
    primaries, aliases = names[num_aliases:], names[:num_aliases]
    specs = [
        TensorSpec(
            name, draw(SHAPES), draw(st.sampled_from(known_dtypes())), tuple(aliases[i :: len(primaries)])
        )
        for i, name in enumerate(primaries)
    ]
    return Catalogue(run="0f" * 16, audit_key="5a" * 16, tensors=tuple(specs))


@given(
    catalogues(),
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(Encoding), st.sampled_from([0.0, 0.1, 1.0])), max_size=4),
)
def test_every_version_is_rebuilt(
    catalogue: Catalogue, seed: int, num_owners: int, steps: list[tuple[Encoding, float]]
) -> None:
    rng = np.random.default_rng(seed)
    history = History(MemoryStore(), catalogue, num_owners)
    tensors = random_tensors(catalogue, rng)
    history.commit(tensors, encoding=Encoding.OVERWRITE)
    for encoding, rate in steps:
        event(f"{encoding} {rate}")
        tensors = changed(tensors, rng, rate)
        history.commit(tensors, encoding=encoding)
    for record, expected in zip(history.records, history.tensors, strict=True):
        assert same(replay(history.archive, record, catalogue), expected)
        assert chain(history.archive, record) == history.manifests[: record.version + 1]


# ---- one history, and everything that can be wrong with it ---------------------------------------


@pytest.fixture
def history() -> History:
    return four_versions()


def substitute(history: History, version: int, owner: int, data: bytes, *, listed: bool) -> CommitRecord:
    """Put ``data`` in place of the owner's first payload; ``listed``: also in the last manifest."""
    manifest = history.manifests[version]
    key = payload_key(history.catalogue.run, manifest.attempt, owner, 0)
    history.store.delete(key)
    history.store.put(key, data)
    if not listed:
        return history.records[-1]
    assert version == 3, "an earlier manifest is named by its child"
    ref = PayloadRef(owner, 0, payload_digest(data), len(data))
    closes = list(manifest.owners)
    closes[owner] = replace(closes[owner], payloads=(ref, *closes[owner].payloads[1:]))
    return amended(history, owners=tuple(closes))


def payload(history: History, items: list[Item], **identity: object) -> bytes:
    """A payload that is owner 0's first of version 3 but for ``identity``."""
    record = history.records[3]
    fields: dict[str, Any] = {"attempt": record.attempt, "owner": 0, "sequence": 0, "parent": 2}
    fields |= {"run": record.run, "catalogue": record.catalogue, **identity}
    return encode_payload(items, **fields)


def with_items(history: History, *items: Item) -> CommitRecord:
    """Version 3 with ``items`` added to owner 0's first payload."""
    data = history.store.get(payload_key(history.catalogue.run, history.records[3].attempt, 0, 0))
    more = [*items, *decode_payload(data).items]
    return substitute(history, 3, 0, payload(history, more), listed=True)


def norm_item(encoding: Encoding = Encoding.XOR, **fields: object) -> Item:
    item = Item("norm", (4,), "float32", encoding, np.array([1]), np.array([5], np.uint32))
    return replace(item, **fields)  # type: ignore[arg-type]


def test_the_history_itself_is_sound(history: History) -> None:
    assert same(rebuild(history), history.tensors[-1])
    assert same(rebuild(history, history.records[1]), history.tensors[1])


def test_a_few_tensors_can_be_rebuilt_alone(history: History) -> None:
    expected = {name: history.tensors[-1][name] for name in ("norm", "embed", "none")}
    args = (history.archive, history.records[-1], history.catalogue)
    assert same(replay_tensors(*args, expected), expected)
    assert replay_tensors(*args, []) == {}
    for name in ("head", "nothing"):
        with pytest.raises(ConfigError, match=name):
            replay_tensors(*args, [name])


def test_a_fault_in_one_tensor_does_not_hide_another(history: History) -> None:
    table = audit_of(history, 3) | {"norm": AuditDigest(1, 4)}
    record = replace(history.record(history.manifests[3], table), version=3)
    args = (history.archive, record, history.catalogue)
    assert replay_tensors(*args, ["embed"])
    with pytest.raises(IntegrityError, match="norm"):
        replay_tensors(*args, ["norm"])


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("act", ["delete", "flip", "cut", "empty"])
def test_a_missing_or_damaged_payload_is_named(history: History, version: int, act: str) -> None:
    attempt = history.manifests[version].attempt
    key = payload_key(history.catalogue.run, attempt, 1, 0)
    data = bytearray(history.store.get(key))
    history.store.delete(key)
    if act != "delete":
        data[len(data) // 2] ^= 1
        history.store.put(key, {"flip": bytes(data), "cut": bytes(data[:-1]), "empty": b""}[act])
    with pytest.raises(IntegrityError, match=rf"version {version}: payload 0 of owner 1, attempt {attempt}"):
        rebuild(history)
    if version:
        assert same(rebuild(history, history.records[version - 1]), history.tensors[version - 1])


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("data", [None, b"", b"{}"])
def test_a_missing_or_damaged_manifest_is_named(history: History, version: int, data: bytes | None) -> None:
    digest = history.records[version].manifest
    key = f"{history.catalogue.run}/manifest/{digest}"
    history.store.delete(key)
    if data is not None:
        history.store.put(key, data)
    with pytest.raises(IntegrityError, match=rf"version {version}: manifest {digest} is"):
        rebuild(history)


@pytest.mark.parametrize("data", [None, b"[]"])
def test_a_missing_or_damaged_audit_table_is_named(history: History, data: bytes | None) -> None:
    digest = history.records[3].audit
    history.store.delete(key := f"{history.catalogue.run}/audit/{digest}")
    if data is not None:
        history.store.put(key, data)
    with pytest.raises(IntegrityError, match=rf"version 3: audit table {digest} is"):
        rebuild(history)


@pytest.mark.parametrize("name", ["embed", "head", "scale", "none"])
def test_other_bits_than_the_audited_are_never_returned(history: History, name: str) -> None:
    digest = audit_of(history, 3)[name]
    for other in (AuditDigest(digest.total ^ 1, digest.count), AuditDigest(digest.total, digest.count + 1)):
        record = history.record(history.manifests[3], audit_of(history, 3) | {name: other})
        with pytest.raises(IntegrityError, match=rf"version 3: the rebuilt tensor {name} has audit_digest"):
            rebuild(history, record)


def test_the_audit_table_covers_exactly_the_catalogue(history: History) -> None:
    table = audit_of(history, 3)
    for other in (table | {"more": AuditDigest(0, 0)}, {k: v for k, v in table.items() if k != "head"}):
        with pytest.raises(IntegrityError, match=r"disagree on (more|head)"):
            rebuild(history, history.record(history.manifests[3], other))


@pytest.mark.parametrize("field", ["run", "catalogue", "manifest", "attempt", "version"])
def test_a_record_that_does_not_fit_is_refused(history: History, field: str) -> None:
    other: dict[str, Any] = {
        "run": "0" * 32, "catalogue": "0" * 32, "manifest": history.records[2].manifest,
        "attempt": AttemptId(version=3, number=99), "version": 2,
    }  # fmt: skip
    with pytest.raises(IntegrityError):
        rebuild(history, replace(history.records[3], **{field: other[field]}))


def test_another_catalogue_is_refused(history: History) -> None:
    catalogue = replace(history.catalogue, tensors=history.catalogue.tensors[:-1])
    with pytest.raises(IntegrityError, match="the record has catalogue"):
        replay(history.archive, history.records[-1], catalogue)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "0" * 32),
        ("attempt", AttemptId(version=3, number=1)),
        ("owner", 1),
        ("sequence", 1),
        ("parent", 1),
        ("catalogue", "0" * 32),
    ],
)
def test_a_payload_of_elsewhere_is_refused(history: History, field: str, value: object) -> None:
    """Also if the manifest lists it with the right digest (P16)."""
    record = substitute(history, 3, 0, payload(history, [], **{field: value}), listed=True)
    with pytest.raises(IntegrityError, match=f"version 3: payload 0 of owner 0.* has {field}"):
        rebuild(history, record)


def test_a_valid_payload_that_the_manifest_does_not_list_is_refused(history: History) -> None:
    record = substitute(history, 3, 0, payload(history, [norm_item()]), listed=False)
    with pytest.raises(IntegrityError, match="has digest"):
        rebuild(history, record)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (norm_item(name="unknown"), "names unknown"),
        (norm_item(shape=(2, 2)), r"an item of norm has shape \(2, 2\)"),
        (norm_item(dtype="int32"), "an item of norm has dtype int32"),
        (norm_item(), "the rebuilt tensor norm"),
        (norm_item(Encoding.OVERWRITE), "the rebuilt tensor norm"),
    ],
)
def test_an_item_that_does_not_fit_is_refused(history: History, item: Item, message: str) -> None:
    record = with_items(history, item)
    with pytest.raises(IntegrityError, match=message):
        rebuild(history, record)


def test_alias_items_are_not_applied(history: History) -> None:
    """A tied name's items repeat the primary's: applied to it, an xor would cancel."""
    junk = norm_item(name="head", shape=(5, 3), dtype="bfloat16", values=np.ones(1, np.uint16))
    assert same(rebuild(history, with_items(history, junk)), history.tensors[3])


def test_xor_where_only_overwrites_may_be_is_refused(history: History) -> None:
    with pytest.raises(IntegrityError, match="is xor in a manifest of overwrites only"):
        rebuild(history, amended(history, overwrite_only=True))


def single(encoding: Encoding, where: list[int], **fields: object) -> tuple[History, CommitRecord]:
    """A run of one tensor [3] and one version, whose anchor writes only ``where``."""
    catalogue = Catalogue("ab" * 16, "cd" * 16, (TensorSpec("t", (3,), "uint8"),))
    history = History(MemoryStore(), catalogue, num_owners=1)
    history.commit({"t": np.zeros(3, np.uint8)}, encoding=Encoding.OVERWRITE)
    item = Item("t", (3,), "uint8", encoding, np.array(where), np.zeros(len(where), np.uint8))
    attempt = history.manifests[0].attempt
    data = encode_payload(
        [item], attempt=attempt, owner=0, sequence=0, run=catalogue.run, catalogue=catalogue.digest()
    )
    key = payload_key(catalogue.run, attempt, 0, 0)
    history.store.delete(key)
    history.store.put(key, data)
    close = replace(
        history.manifests[0].owners[0], payloads=(PayloadRef(0, 0, payload_digest(data), len(data)),)
    )
    manifest: Manifest = replace(history.manifests[0], owners=(close,), **fields)  # type: ignore[arg-type]
    return history, history.record(manifest, audit_of(history, 0))


def test_an_anchor_must_write_every_element() -> None:
    """Unwritten elements are not zero, even where the audit would agree."""
    history, record = single(Encoding.OVERWRITE, [0, 2])
    with pytest.raises(IntegrityError, match="version 0: the anchor leaves 1 of 3 elements of t unwritten"):
        rebuild(history, record)


def test_an_anchor_of_differences_is_refused() -> None:
    history, record = single(Encoding.XOR, [0, 1, 2], overwrite_only=False)
    with pytest.raises(IntegrityError, match="anchor is not overwrite only"):
        rebuild(history, record)
    history, record = single(Encoding.XOR, [0, 1, 2])
    with pytest.raises(IntegrityError, match="is xor"):
        rebuild(history, record)


def test_a_store_that_fails_for_now_is_not_a_verdict(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(key: str) -> bytes:
        raise StoreError(f"no answer for {key}")

    monkeypatch.setattr(history.store, "get", fail)
    with pytest.raises(StoreError, match="no answer"):
        rebuild(history)


def test_what_is_read_can_be_watched(history: History) -> None:
    events: list[str] = []
    with observe.listening(lambda event: events.append(event.name)):
        rebuild(history)
    assert events.count("replay.payload") == sum(len(m.payloads) for m in history.manifests)
    assert events[-1] == "replay.prove"
