"""Shards that changed a lot: what is chosen, and that it is never larger than the dense tensor (B8)."""

from pathlib import Path

import numpy as np
import pytest
import zstandard
from tests.unit.owner_fleets import ONE, TWO, equal

from dcr import observe
from dcr.codec import Item
from dcr.config import CodecConfig
from dcr.model import Bits, Encoding, OwnerClose, PathClass, TensorSpec
from dcr.source.density import whole_encoding
from dcr.testing.toy_fleet import ToyFleet, apply_items
from dcr.testing.toy_trainer import Placement, Tensors, ToyTensor, random_bits

SIZE = (200, 300)
SHARES = (0.02, 0.29, 0.31, 1.0)
FREE = {"w": PathClass.XOR}


def as_bf16(values: np.ndarray) -> Bits:
    bits: Bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits


def weights() -> Bits:
    return as_bf16(np.random.default_rng(1).normal(0, 0.02, SIZE).reshape(-1))


def changed(old: Bits, share: float, kind: str) -> Bits:
    """About ``share`` moved by one step of the last place, or drawn anew."""
    rng = np.random.default_rng(2)
    redrawn = as_bf16(rng.normal(0, 0.02, old.size))
    moved: Bits = old + rng.choice(np.array([1, 0xFFFF], np.uint16), old.size)
    other = {"step": moved, "redrawn": redrawn, "constant": np.zeros_like(old)}[kind]
    return np.where(rng.random(old.size) < share, other, old).astype(np.uint16)


def dense_bytes(new: Bits) -> int:
    return len(zstandard.ZstdCompressor(level=1).compress(new.tobytes()))


def built(
    folder: Path, new: Tensors, *, retry: bool = False, placement: Placement = Placement.ROWS, **codec: float
) -> tuple[ToyFleet, list[OwnerClose], list[Item]]:
    """A fleet of two ranks that has constructed step 1, under ONE or, overwriting, under TWO."""
    tensor = ToyTensor(TensorSpec("w", SIZE, "bfloat16"), placement)
    config = CodecConfig(**codec)  # type: ignore[arg-type]
    fleet = ToyFleet(folder, [tensor], {"w": weights()}, codec=config)
    fleet.genesis()
    fleet.write(new)
    for owner in fleet.owners:
        owner.present(1)
    closes = fleet.construct(TWO if retry else ONE, FREE, overwrite_only=retry)
    return fleet, closes, fleet.items(closes)


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("kind", ["step", "redrawn", "constant"])
@pytest.mark.parametrize("share", SHARES)
def test_payloads_are_never_larger_than_the_compressed_tensor(
    tmp_path: Path, share: float, kind: str, retry: bool
) -> None:
    old, new = weights(), changed(weights(), share, kind)
    _, closes, items = built(tmp_path, {"w": new}, retry=retry)
    assert equal(apply_items(items, {"w": old}), {"w": new})
    if retry:
        assert {item.encoding for item in items} == {Encoding.OVERWRITE}
        assert equal(apply_items(items, {"w": ~old}), {"w": new}) == (share > 0.3)
    sent = sum(ref.num_bytes for close in closes for ref in close.payloads)
    heads = 300 * len(closes)  # two owners, each with a head and tables
    assert sent <= 1.01 * sum(map(dense_bytes, np.split(new, 2))) + heads
    assert sum(close.num_changed for close in closes) == np.count_nonzero(old != new)


def test_a_column_that_stays_does_not_speak_for_the_others() -> None:
    """64 columns, all but the first drawn anew: as differences they would be noise."""
    draw = np.random.default_rng(5)
    old, new = (as_bf16(draw.normal(0, 0.02, (1 << 15, 64))) for _ in range(2))
    new[:, 0] = old[:, 0]
    assert whole_encoding(Encoding.DELTA16, old.reshape(-1), new.reshape(-1)) is Encoding.OVERWRITE


def test_what_is_sent_whole_is_what_is_smallest(tmp_path: Path) -> None:
    """Small steps compress as differences, new values as themselves; below the share only what changed."""
    chosen = {}
    for kind in ("step", "redrawn"):
        for share in (0.1, 0.6, 0.95):
            folder = tmp_path / f"{kind}-{share}"
            folder.mkdir()
            _, _, items = built(folder, {"w": changed(weights(), share, kind)})
            chosen[kind, share] = {item.encoding for item in items}, sum(item.num_entries for item in items)
    total = SIZE[0] * SIZE[1]
    assert chosen["step", 0.6] == ({Encoding.DELTA16}, total)
    assert chosen["step", 0.95] == chosen["redrawn", 0.6] == ({Encoding.DELTA16}, total)
    assert chosen["redrawn", 0.95] == ({Encoding.OVERWRITE}, total)
    assert all(chosen[kind, 0.1][1] < 0.12 * total for kind in ("step", "redrawn"))


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_fold_in_and_digests_do_not_depend_on_how_a_shard_is_sent(
    tmp_path: Path, placement: Placement, share: float
) -> None:
    new = {"w": changed(weights(), share, "step")}
    candidates = set()
    for dense_share in (0.0, 0.3, 1.0):
        folder = tmp_path / str(dense_share)
        folder.mkdir()
        fleet, closes, items = built(folder, new, placement=placement, dense_share=dense_share)
        assert equal(apply_items(items, {"w": weights()}), new)
        record = fleet.commit(ONE, closes, step=1)
        for owner in fleet.owners:
            owner.fold_in(ONE, record)
        assert equal(fleet.tracked(), new)
        candidates.add(tuple((close.candidate, close.num_changed) for close in closes))
    assert len(candidates) == 1


def test_payload_bytes_do_not_depend_on_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    specs = [TensorSpec(f"t{number}", (30 + 7 * number, 40), "bfloat16") for number in range(9)]
    tensors = [ToyTensor(spec) for spec in specs]
    old = random_bits(tensors, rng)
    shares = (0.0, 0.01, 0.2, 0.6, 1.0)
    new = {spec.name: changed(old[spec.name], shares[i % 5], "step") for i, spec in enumerate(specs)}
    classes = {spec.name: PathClass.XOR for spec in specs[::2]}
    found = set()
    for threads in (1, 2, 5):
        folder = tmp_path / str(threads)
        folder.mkdir()
        codec = CodecConfig(threads=threads, chunk_mib=0, bucket_mib=0)
        fleet = ToyFleet(folder, tensors, old, num_ranks=1, codec=codec)
        fleet.genesis()
        found.add(tuple(ref.digest for close in fleet.refit(new, classes) for ref in close.payloads))
    assert len(found) == 1
    assert len(found.pop()) == sum(shares[i % 5] > 0 for i in range(9))


def test_how_many_shards_went_whole_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[observe.Event] = []
    with observe.listening(lambda event: told.append(event) if event.name == "owner.dense" else None):
        built(tmp_path, {"w": changed(weights(), 0.5, "redrawn")})
    assert [(event.fields["owner"], event.fields["num_shards"]) for event in told] == [(0, 1), (1, 1)]
    assert "attempt 1-1: 1 of 1 shards changed so much that they are sent whole, the first is 'w'; 50%" in (
        caplog.text
    )


def test_few_changes_and_small_tensors_are_not_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = [
        ToyTensor(TensorSpec("w", SIZE, "bfloat16")),
        ToyTensor(TensorSpec("bias", (300,), "bfloat16")),
    ]
    old = {"w": weights(), "bias": weights()[:300]}
    fleet = ToyFleet(tmp_path, tensors, old, num_ranks=1)
    fleet.genesis()
    told: list[observe.Event] = []
    with observe.listening(lambda event: told.append(event) if event.name == "owner.dense" else None):
        fleet.refit({"w": changed(weights(), 0.1, "step"), "bias": old["bias"] ^ np.uint16(1)}, FREE)
    assert [event.fields["num_shards"] for event in told] == [1]
    assert "sent whole" not in caplog.text
