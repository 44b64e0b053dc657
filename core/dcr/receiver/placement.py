"""Where every canonical element lies in resident storage, learned from the loader (DESIGN R11, B2).

The one reader of resident bits in canonical coordinates: checks, restore proof and audit use it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from dcr.audit import digest_tensor
from dcr.errors import IntegrityError, UnsupportedPath
from dcr.model import AuditTable, Bits, Catalogue, Classification, TensorSpec, stored_bits
from dcr.receiver.geometry import Copy
from dcr.receiver.landing import Constant, Landing
from dcr.receiver.lanes import lanes, torch_dtype
from dcr.receiver.rank import Method, RankPath, RankPlacement
from dcr.receiver.storages import Storages


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """What prewarm learned. ``paths`` and ``copies`` have every catalogue name, aliases included.

    ``landings`` are the placement map of the LEARNED names. ``copies`` are what the dispatch hook
    expects, in the loader's order: of HOOK names, and of LEARNED ones too if asked for; else empty.
    ``together``: WHOLE name -> all names, itself included, that must go through one ``load`` call.
    ``constants``: what the loader fills whatever the weights are.
    ``streamable``: each copy of a tensor happens before the loader asks for the next tensor.
    ``refusals``: canonical or resident name -> reason; not empty means that no delta may be applied.
    """

    catalogue: Catalogue
    storages: Storages
    paths: Mapping[str, RankPath]
    landings: Mapping[str, tuple[Landing, ...]]
    copies: Mapping[str, tuple[Copy, ...]]
    together: Mapping[str, tuple[str, ...]]
    constants: tuple[Constant, ...]
    streamable: bool
    refusals: Mapping[str, str]
    specs: dict[str, TensorSpec] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", self.catalogue.by_name())

    @property
    def classes(self) -> Classification:
        """Path class of every name, refused ones included."""
        return {name: path.path for name, path in self.paths.items()}

    @property
    def rank_placement(self) -> RankPlacement:
        """The answer to ``RankPort.prewarm``."""
        own = {name: reason for name, reason in self.refusals.items() if name not in self.paths}
        return RankPlacement(dict(self.paths), own, self.storages.guards)

    def require_supported(self) -> None:
        """Raise UnsupportedPath, naming each refused tensor and what to do."""
        if self.refusals:
            shown = "; ".join(f"{name}: {reason}" for name, reason in sorted(self.refusals.items())[:8])
            more = f"; and {len(self.refusals) - 8} more" if len(self.refusals) > 8 else ""
            raise UnsupportedPath(
                f"the loader cannot take deltas for {len(self.refusals)} tensors: {shown}{more}. "
                "Use dense refits, or a loader configuration that copies these tensors unchanged"
            )

    def skipped(self, name: str) -> bool:
        """Whether the loader places ``name`` nowhere on this rank, explicitly or because it is empty."""
        return self.paths[name].method is Method.NONE

    def read_back(self, name: str) -> tuple[Bits, NDArray[np.bool_]]:
        """Flat canonical bits [num_elements] of ``name`` from resident storage, and which were covered.

        Only copies that keep the representation are read; a cast has no canonical bits to give back.
        """
        spec = self.specs[name]
        flat = torch.zeros(spec.num_elements, dtype=torch_dtype(spec.dtype))
        covered = torch.zeros(spec.num_elements, dtype=torch.bool)
        for copy in self.copies[name]:
            if copy.preserving:
                copy.source(lanes(flat))[copy.once] = lanes(copy.target)[copy.once].cpu()
                copy.source(covered)[copy.once] = True
        return stored_bits(flat), covered.numpy()

    def disagreeing(self, name: str, bits: Bits, active: torch.Tensor) -> str | None:
        """Resident name of a copy of ``name`` that lacks ``bits`` [num_elements] where ``active``.

        Casts are not compared. Replicas and broadcasts are: each destination on its own.
        """
        flat = torch.from_numpy(bits.view(f"i{bits.itemsize}"))
        for copy in self.copies[name]:
            if copy.preserving:
                wrong = (lanes(copy.target).cpu() != copy.source(flat)) & copy.source(active)
                if bool(wrong.any()):
                    return copy.resident
        return None

    def audit_table(self, key: str) -> AuditTable:
        """Digest of each tensor that can be read back completely, aliases under their own names (B6).

        Raises:
            IntegrityError: two resident copies of one tensor differ.
        """
        table: AuditTable = {}
        for name in self.copies:
            bits, covered = self.read_back(name)
            if self.skipped(name) or not covered.all():
                continue
            if where := self.disagreeing(name, bits, torch.ones(bits.size, dtype=torch.bool)):
                raise IntegrityError(f"{name}: its copy in {where!r} differs from its other copies")
            table[name] = digest_tensor(key, name, bits)
        return table
