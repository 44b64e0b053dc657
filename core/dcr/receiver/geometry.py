"""What one intercepted write does, in numbers: compared at run time with what prewarm saw."""

from dataclasses import dataclass, field

import torch

from dcr.receiver.storages import Storages
from dcr.receiver.trace import Kind, Write


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy from the scratch into resident storage. All strides are in elements.

    Element ``i`` of the copy reads canonical flat index ``source_offset + i . source_strides`` and
    writes ``target[i]``. ``scalar`` marks a copy that goes through a Python number (``fill_`` of
    ``item()``). ``target`` is a live view of the destination and ``resident`` names its storage.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    source_offset: int
    source_strides: tuple[int, ...]
    source_dtype: torch.dtype
    scalar: bool
    resident: str
    target: torch.Tensor = field(compare=False, repr=False)

    @property
    def preserving(self) -> bool:
        """Whether the stored bits arrive unchanged."""
        return self.dtype == self.source_dtype and not self.scalar

    @property
    def broadcast(self) -> bool:
        """Whether one canonical element feeds several elements of the destination."""
        return any(n > 1 and s == 0 for n, s in zip(self.shape, self.source_strides, strict=True))


def describe_copy(resident: str, target: torch.Tensor, source: torch.Tensor, *, scalar: bool = False) -> Copy:
    """The numbers of ``target.copy_(source)``; a source of another shape is expanded as ``copy_`` does.

    Strides of dimensions of one element mean nothing and are set to 0, so equal copies compare equal.
    """
    wide = source.expand(target.shape)
    shape = tuple(target.shape)
    return Copy(
        address=target.data_ptr(),
        shape=shape,
        strides=_meaningful(shape, target.stride()),
        dtype=target.dtype,
        source_offset=int(wide.storage_offset()),
        source_strides=_meaningful(shape, wide.stride()),
        source_dtype=source.dtype,
        scalar=scalar,
        resident=resident,
        target=target.detach(),
    )


def _meaningful(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(s if n > 1 else 0 for n, s in zip(shape, strides, strict=True))


def copy_of(write: Write, storages: Storages) -> Copy:
    """What the dispatch hook will see when the loader repeats ``write``, a direct COPY or SCALAR."""
    source = write.source
    assert source is not None
    shape = write.shape
    flat = storages.flat(write.storage, write.dtype)
    return Copy(
        address=storages[write.storage].address + write.offset * write.dtype.itemsize,
        shape=shape,
        strides=_meaningful(shape, write.strides),
        dtype=write.dtype,
        source_offset=source.offset,
        source_strides=_meaningful(shape, source.strides),
        source_dtype=source.dtype,
        scalar=write.kind is Kind.SCALAR,
        resident=storages[write.storage].name,
        target=flat.as_strided(shape, write.strides, write.offset),
    )
