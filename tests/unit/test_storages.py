"""Storages by number: found however they are viewed, and watched for rebinding and changed guards."""

import numpy as np
import pytest
import torch

from dcr.receiver.storages import Storages, fingerprint


def _tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(40, dtype=torch.float32)
    return {"front": base[:16].view(4, 4), "back": base[16:], "flags": torch.ones(5, dtype=torch.bool)}


def test_views_share_a_number_and_lie_in_its_flat_memory() -> None:
    tensors = _tensors()
    storages = Storages(tensors)
    assert len(storages) == 2
    assert storages.number_of("front") == storages.number_of("back") == 0
    assert (storages[0].name, storages[0].num_bytes) == ("front", 160)
    assert storages.flat(0, torch.float32)[16:].data_ptr() == tensors["back"].data_ptr()
    assert storages.flat(0, torch.int16).numel() == 80


def test_memory_is_found_by_identity_and_by_address() -> None:
    tensors = _tensors()
    storages = Storages(tensors)
    assert storages.find(tensors["back"][3:]) == 0
    assert storages.find(torch.from_numpy(tensors["flags"].numpy())) == 1
    assert storages.find(torch.zeros(3)) is None
    assert storages.find(torch.empty(3, device="meta")) is None


def test_tensors_without_bytes_have_no_storage() -> None:
    storages = Storages({"empty": torch.empty(0, 4)})
    assert (len(storages), storages.number_of("empty")) == (0, None)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.update(back=t["back"].clone()),
        lambda t: t.update(front=t["front"].t()),
        lambda t: t.update(front=t["front"].view(16)),
        lambda t: t.update(flags=t["flags"].view(torch.uint8)),
        lambda t: t.update(new=torch.zeros(1)),
        lambda t: t.pop("flags"),
    ],
    ids=["pointer", "strides", "shape", "dtype", "added", "removed"],
)
def test_moved_names_what_is_not_as_it_was(change: object) -> None:
    tensors = _tensors()
    storages = Storages(tensors)
    assert storages.moved(tensors) is None
    now = dict(tensors)
    change(now)  # type: ignore[operator]
    changed = {name for name in now.keys() | tensors.keys() if now.get(name) is not tensors.get(name)}
    assert storages.moved(now) in changed


def test_rebound_tensors_are_put_back() -> None:
    tensors: dict[str, torch.Tensor] = {"p": torch.nn.Parameter(torch.ones(4), requires_grad=False)}
    storages = Storages(tensors)
    address = tensors["p"].data_ptr()
    tensors["p"].data = torch.zeros(4)
    assert storages.moved(tensors) == "p"
    assert storages.rebind(tensors)
    assert tensors["p"].data_ptr() == address
    assert bool((tensors["p"] == 1).all())


def test_guards_watch_their_bytes_only() -> None:
    tensors = _tensors()
    storages = Storages(tensors)
    storages.guard([(0, 64, 160)])
    assert storages.guards == ("front",)
    tensors["front"][0, 0] = 7
    assert storages.moved(tensors) is None
    tensors["back"][2] = 7
    assert storages.moved(tensors) == "front"


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1023, (1 << 20) + 3, (1 << 21) + 8])
def test_any_changed_byte_changes_the_fingerprint(size: int) -> None:
    rng = np.random.default_rng(size)
    raw = torch.from_numpy(rng.integers(0, 256, size, dtype=np.uint8))
    before = fingerprint(raw)
    assert fingerprint(raw.clone()) == before
    for at in {0, size // 2, size - 1}:
        raw[at] ^= 16
        assert fingerprint(raw) != before
        raw[at] ^= 16
    assert fingerprint(raw) == before


def test_moved_words_change_the_fingerprint() -> None:
    words = torch.arange(1 << 18, dtype=torch.int64)
    swapped = words.clone()
    swapped[[5, 9]] = swapped[[9, 5]]
    blocks = words.view(2, -1).flip(0).reshape(-1)
    prints = {fingerprint(each.view(torch.uint8)) for each in (words, swapped, blocks)}
    assert len(prints) == 3


@pytest.mark.parametrize("megabytes", [4, 16, 32])
def test_large_storage_that_is_filled_has_another_fingerprint(megabytes: int) -> None:
    """Equal changes of many words cancel where weights add up to a multiple of 2^64."""
    zeros = torch.zeros(megabytes << 18)
    half = zeros.clone()
    half[: zeros.numel() // 2] = 1.0
    filled = [zeros, half, torch.ones(megabytes << 18), torch.full((megabytes << 18,), 2.0)]
    assert len({fingerprint(each.view(torch.uint8)) for each in filled}) == 4


def test_memory_that_is_not_aligned_has_a_fingerprint() -> None:
    raw = torch.arange(100, dtype=torch.uint8)
    assert fingerprint(raw[3:]) == fingerprint(raw[3:].clone())
