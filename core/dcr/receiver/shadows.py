"""Host copies of canonical tensors that storage cannot give back (DESIGN R9, B6; ``Method.WHOLE``).

They take items in place of the storage, and the plain native loader takes them whole.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from dcr.codec import Item, Positions
from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import Bits, Encoding, TensorSpec
from dcr.receiver.lanes import dense_from_bits
from dcr.receiver.parts import NOBODY, Division
from dcr.receiver.rank import Cover
from dcr.receiver.scatter.batch import Indices, Readback


class Shadows:
    """Canonical bits [N] of the names in ``covers``, the elements that the rank holds of each.

    Empty until the first ``keep``. Tied names have a shadow each.
    """

    def __init__(self, covers: Mapping[str, Cover], specs: Mapping[str, TensorSpec]) -> None:
        self._specs = {name: specs[name] for name in covers}
        self._held = {name: _division(covers[name], specs[name]) for name in covers}
        self._bits: dict[str, Bits] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __bool__(self) -> bool:
        return bool(self._specs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    @property
    def num_bytes(self) -> int:
        """Host memory that they take."""
        return sum(bits.nbytes for bits in self._bits.values())

    def adopt(self, other: "Shadows") -> None:
        """Take over what ``other`` knows of these names: learning anew loses no bits."""
        for name, bits in other._bits.items():
            if name in self and other._specs[name] == self._specs[name]:
                self._bits[name] = bits

    def keep(self, tensors: Mapping[str, Bits]) -> None:
        """Copy what was loaded, flat stored bits [num_elements] by primary name.

        Raises:
            IntegrityError: a tensor is missing.
        """
        for name, spec in self._specs.items():
            if spec.name not in tensors:
                raise IntegrityError(f"{spec.name}: the restored version does not contain this tensor")
            self._bits[name] = tensors[spec.name].copy()

    def forget(self) -> None:
        """Nothing is known: storage is being loaded."""
        self._bits.clear()

    def apply(self, item: Item) -> None:
        """Change the shadow as ``item`` changes storage.

        Raises:
            AttemptFailed: there is none yet.
        """
        bits = self._known(item.name)
        if item.encoding is Encoding.OVERWRITE:
            bits[item.positions] = item.values
        elif item.encoding is Encoding.XOR:
            bits[item.positions] ^= item.values
        else:
            bits[item.positions] += item.values

    def read(self, name: str, positions: Positions) -> Readback:
        """Bits at positions [E]. Raises AttemptFailed if there is no shadow yet."""
        return Readback(
            self._known(name)[positions], self._is_held(name, np.asarray(positions, np.int64)), -1
        )

    def read_range(self, name: str, start: int, stop: int) -> Readback:
        """Bits start .. stop - 1. Raises AttemptFailed if there is no shadow yet."""
        positions = np.arange(start, stop, dtype=np.int64)
        return Readback(self._known(name)[start:stop], self._is_held(name, positions), -1)

    def dense(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors for the loader, which may change what it is given. Raises AttemptFailed as ``read``."""
        for name in names:
            yield name, dense_from_bits(self._specs[name], self._known(name).copy())

    def _known(self, name: str) -> Bits:
        if name not in self._bits:
            raise AttemptFailed(f"{name}: only a whole tensor can be loaded and none is known; restore first")
        return self._bits[name]

    def _is_held(self, name: str, positions: Indices) -> NDArray[np.bool_]:
        division = self._held[name]
        if division is None:
            return np.ones(positions.shape, dtype=bool)
        held: NDArray[np.bool_] = division.part_of(positions) != NOBODY
        return held


def _division(cover: Cover, spec: TensorSpec) -> Division | None:
    """None if the cover is the whole tensor."""
    if cover == ((0, ((spec.num_elements, 1),)),):
        return None
    return Division.of(spec.num_elements, [cover])
