"""Compiles in prewarm what a first refit would stand still for (paper section 6.1, DESIGN B2).

A refit of one small tensor of our own runs through the code of real ones, so that whatever they need is
compiled, for each dtype that has many elements. Done before, it is read from disk. Shape legend: N elements.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeAlias

import numpy as np
import torch

from dcr import observe
from dcr.audit import digest_at, digest_tensor
from dcr.codec import Item, decode_payload, encode_payload
from dcr.model import AttemptId, Catalogue, Encoding, TensorSpec, bits_dtype, width_bytes
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import RankPort
from dcr.transport.values import differences

MakeRank: TypeAlias = Callable[[NativeLoader, Catalogue], RankPort]

LEAST_ELEMENTS = 1 << 20
"""Of one dtype in a catalogue; with fewer a refit is small, and compiling may never pay."""
_NUM_ELEMENTS = 1 << 17
_EVERY = 4
_NAME = "warm"
_DELTA16_BYTES = 2


def warm_up(make: MakeRank, catalogue: Catalogue) -> None:
    """Run a small refit, unheard, for each dtype that ``catalogue`` has much of; once a process."""
    elements: dict[str, int] = {}
    for spec in catalogue.tensors:
        elements[spec.dtype] = elements.get(spec.dtype, 0) + spec.num_elements
    for dtype, number in elements.items():
        if number >= LEAST_ELEMENTS and dtype != "bool":
            with observe.unheard():
                _refit(make, dtype)


@cache
def _refit(make: MakeRank, dtype: str) -> None:
    spec = TensorSpec(_NAME, (_NUM_ELEMENTS,), dtype)
    catalogue = Catalogue("0" * 32, "00" * 16, (spec,))
    zeros = np.zeros(_NUM_ELEMENTS, bits_dtype(dtype))
    writer = InstanceWriter([make(_Plain(dtype), catalogue)], catalogue)
    writer.prewarm()
    writer.restore({_NAME: zeros}, {_NAME: digest_tensor(catalogue.audit_key, _NAME, zeros)})
    for number, item in enumerate(_items(catalogue), start=1):
        attempt = AttemptId(number=number, version=number)
        data = encode_payload(
            [item], attempt=attempt, owner=0, sequence=0, run=catalogue.run, parent=number - 1,
            catalogue=catalogue.digest(),
        )  # fmt: skip
        writer.begin(clean=True)
        writer.apply(decode_payload(data))
        writer.synchronize()
        writer.check()


def _items(catalogue: Catalogue) -> Iterator[Item]:
    """Every ``_EVERY``-th element becomes 1, then 2, then 3: by each encoding that the dtype has."""
    (spec,) = catalogue.tensors
    at = np.arange(0, _NUM_ELEMENTS, _EVERY)
    old = np.zeros(at.size, bits_dtype(spec.dtype))
    for encoding in (Encoding.OVERWRITE, Encoding.XOR, Encoding.DELTA16):
        if encoding is Encoding.DELTA16 and width_bytes(spec.dtype) != _DELTA16_BYTES:
            continue
        new = (old + 1).astype(old.dtype)
        digest = digest_at(catalogue.audit_key, _NAME, at, new)
        yield Item(_NAME, spec.shape, spec.dtype, encoding, at, differences(encoding, old, new), digest)
        old = new


class _Plain:
    """A ``NativeLoader`` of one tensor; implements what a real one does."""

    def __init__(self, dtype: str) -> None:
        self._tensor = torch.zeros(_NUM_ELEMENTS, dtype=getattr(torch, dtype))

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See ``NativeLoader``."""
        for _, tensor in weights:
            self._tensor.copy_(tensor)

    def resident(self) -> dict[str, torch.Tensor]:
        """See ``NativeLoader``."""
        return {_NAME: self._tensor}

    def skips(self, name: str) -> bool:
        """See ``NativeLoader``."""
        del name
        return False

    def refusals(self) -> dict[str, str]:
        """See ``NativeLoader``."""
        return {}

    def synchronize(self) -> None:
        """See ``NativeLoader``."""
