"""One owner's entries for one tensor (paper Appendix D, DESIGN R6). Shapes: E entries."""

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.codec.limits import Limits
from dcr.errors import ConfigError
from dcr.model import AuditDigest, Encoding, bits_dtype, width_bytes

Positions: TypeAlias = NDArray[np.int64] | NDArray[np.int32]

MAX_ELEMENTS = (1 << 63) - 1
NARROW_ELEMENTS = 1 << 31
"""Elements of a tensor up to which each has a position of four bytes."""
AUDIT_MODULUS = (1 << 61) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """Changed elements of the canonical tensor ``name`` of ``shape`` (``()`` for 0-d) and ``dtype``.

    ``positions`` are strictly increasing flat indices, int64 [E] or, where all fit, int32 [E] (so they are
    decoded: apply waits for memory, and reads half as much); ``values`` hold of each a mask (XOR),
    new minus old bits modulo 2^16 (DELTA16, 2-byte dtypes only) or the new stored bits (OVERWRITE),
    unsigned of the element's width [E].
    ``target_digest`` is the additive audit digest of the target bits, if the sender knows it (B6).
    Equality is by content; items are not hashable.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    encoding: Encoding
    positions: Positions
    values: NDArray[np.unsignedinteger[Any]]
    target_digest: AuditDigest | None = None

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:  # type: ignore[explicit-override]  # typing.override: 3.12
        if not isinstance(other, Item):
            return NotImplemented
        return (
            (self.name, tuple(self.shape), self.dtype) == (other.name, tuple(other.shape), other.dtype)
            and (self.encoding, self.target_digest) == (other.encoding, other.target_digest)
            and np.array_equal(self.positions, other.positions)
            and self.values.dtype == other.values.dtype
            and np.array_equal(self.values, other.values)
        )

    @property
    def num_elements(self) -> int:
        """Elements of the dense tensor; 1 for 0-d."""
        return prod(self.shape)

    @property
    def locations(self) -> NDArray[np.int64]:
        """``positions`` as int64 [E]: for whoever computes with them."""
        return np.asarray(self.positions, np.int64)

    @property
    def num_entries(self) -> int:
        """E."""
        return len(self.positions)


def check_item(item: Item, limits: Limits) -> None:
    """Refuse an item that no decoder would accept.

    Raises:
        ConfigError: names the item, the field and the rule it breaks.
    """
    where = f"item {item.name!r}"
    _check_name(item.name, limits)
    if len(item.shape) > limits.max_dims:
        raise ConfigError(
            f"{where}: shape has {len(item.shape)} dims; at most {limits.max_dims} are possible"
        )
    if any(dim < 0 or dim > MAX_ELEMENTS for dim in item.shape) or item.num_elements > MAX_ELEMENTS:
        raise ConfigError(f"{where}: shape {item.shape} does not have between 0 and 2**63 - 1 elements")
    if not isinstance(item.encoding, Encoding):
        raise ConfigError(f"{where}: encoding must be a dcr.model.Encoding, got {item.encoding!r}")
    if not takes_encoding(item.dtype, item.encoding):
        raise ConfigError(f"{where}: delta16 is for dtypes of 2 bytes, not for {item.dtype}; use xor")
    _check_arrays(item, where)
    digest = item.target_digest
    if digest is not None and not is_audit_digest(digest, item.num_elements):
        raise ConfigError(f"{where}: target_digest {digest} is not (total < 2**61 - 1, count <= elements)")


def takes_encoding(dtype: str, encoding: Encoding) -> bool:
    """Whether elements of ``dtype`` can be sent that way: DELTA16 is for 2-byte ones, the rest for all."""
    return encoding is not Encoding.DELTA16 or width_bytes(dtype) == 2


def is_audit_digest(digest: AuditDigest, num_elements: int) -> bool:
    """Whether ``digest`` can be the digest of elements of a tensor with ``num_elements``."""
    return 0 <= digest.total < AUDIT_MODULUS and 0 <= digest.count <= num_elements


def _check_name(name: str, limits: Limits) -> None:
    try:
        length = len(name.encode())
    except UnicodeEncodeError as err:
        raise ConfigError(f"item {name!r}: the name is not valid UTF-8") from err
    if not 0 < length <= limits.max_name_bytes:
        raise ConfigError(f"item {name[:80]!r}: name of {length} bytes; give 1 to {limits.max_name_bytes}")


def _check_arrays(item: Item, where: str) -> None:
    locations, values = item.positions, item.values
    if locations.dtype not in (np.int64, np.int32) or locations.ndim != 1:
        raise ConfigError(
            f"{where}: positions must be int64 [E] or int32 [E], got {locations.dtype} {locations.shape}"
        )
    expected = bits_dtype(item.dtype)
    if values.dtype != expected or values.shape != locations.shape:
        raise ConfigError(
            f"{where}: values of dtype {item.dtype} must be {expected} [{len(locations)}], "
            f"got {values.dtype} {values.shape}"
        )
    if not len(locations):
        return
    if (
        locations[0] < 0
        or locations[-1] >= item.num_elements
        or bool((locations[1:] <= locations[:-1]).any())
    ):
        raise ConfigError(f"{where}: locations must increase strictly within 0 .. {item.num_elements - 1}")
