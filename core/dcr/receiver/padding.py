"""Elements that the loader fills with a constant and no weight reaches: padding must keep it (DESIGN B6)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dcr.errors import IntegrityError
from dcr.receiver.landing import Constant, Landing
from dcr.receiver.lanes import lanes
from dcr.receiver.storages import Storages


@dataclass(frozen=True, slots=True)
class Padding:
    """One region of a storage; ``free`` marks its elements that no landing covers, None for all."""

    constant: Constant
    free: torch.Tensor | None

    def require(self, storages: Storages) -> None:
        """Compare with the constant, bit for bit.

        Raises:
            IntegrityError: names the resident tensor.
        """
        constant = self.constant
        expected = constant.expected
        flat = storages.flat(constant.storage, expected.dtype)
        found = lanes(flat.as_strided(constant.shape, constant.strides, constant.offset)).cpu()
        wrong = found != lanes(expected.contiguous()).view(constant.shape)
        if self.free is not None:
            wrong &= self.free
        if bool(wrong.any()):
            raise IntegrityError(
                f"{storages[constant.storage].name}: {int(wrong.sum())} padding elements no longer hold "
                f"what loading {constant.name or 'the model'} puts there"
            )


def paddings(
    constants: Sequence[Constant], landings: Mapping[str, Iterable[Landing]], storages: Storages
) -> tuple[Padding, ...]:
    """What of ``constants`` no landing covers; needs a byte for each byte of a storage with constants."""
    found: list[Padding] = []
    for number in sorted({constant.storage for constant in constants}):
        reached = torch.zeros(storages[number].num_bytes, dtype=torch.bool)
        for landing in (one for placed in landings.values() for one in placed if one.storage == number):
            if landing.box.size:
                width, box = landing.dtype.itemsize, landing.box
                _bytes(reached, width, box.shape, box.dst_strides, box.dst_offset).fill_(True)
        for constant in reversed([one for one in constants if one.storage == number]):
            width = constant.expected.element_size()
            region = _bytes(reached, width, constant.shape, constant.strides, constant.offset)
            free = ~region.any(dim=-1)
            if bool(free.any()):
                found.append(Padding(constant, None if bool(free.all()) else free))
            region.fill_(True)  # an earlier constant of the same elements does not last
    return tuple(found)


def _bytes(
    reached: torch.Tensor, width: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A strided view of elements as a view of their bytes, in a last dimension."""
    return reached.as_strided((*shape, width), (*(s * width for s in strides), 1), offset * width)
