"""What the trainer promises to refit: the canonical tensors (DESIGN R11)."""

from dataclasses import dataclass
from math import prod

from dcr.model.dtypes import width_bytes
from dcr.model.ids import RunId
from dcr.model.wire import digest_hex, to_json


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One canonical tensor. ``aliases`` are further canonical names tied to the same source storage."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    aliases: tuple[str, ...] = ()

    @property
    def num_elements(self) -> int:
        """Number of canonical elements; 1 for a 0-d tensor."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Stored bytes of the dense tensor."""
        return self.num_elements * width_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Immutable list of the run's canonical tensors and the key of its audit digests.

    Its digest is in the commit record and in every payload head: a changed name, shape or dtype
    is refused there (P15).
    """

    run: RunId
    audit_key: str
    tensors: tuple[TensorSpec, ...]

    def digest(self) -> str:
        """BLAKE2b-128 of the canonical JSON form."""
        return digest_hex(to_json(self))

    def by_name(self) -> dict[str, TensorSpec]:
        """Every canonical name, aliases included, with the spec that it shares; in catalogue order."""
        return {name: spec for spec in self.tensors for name in (spec.name, *spec.aliases)}

    @property
    def num_bytes(self) -> int:
        """Bytes of one dense refit (aliases are not sent twice)."""
        return sum(spec.num_bytes for spec in self.tensors)
