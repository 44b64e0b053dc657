"""Where every canonical element lies in resident storage, learned from the loader (DESIGN R11, B2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dcr.model import Catalogue, TensorSpec
from dcr.receiver.casts import readable
from dcr.receiver.geometry import Copy
from dcr.receiver.landing import Constant, Landing
from dcr.receiver.rank import LOSES_BITS, RankPath, RankPlacement
from dcr.receiver.storages import Storages


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """What prewarm learned. ``paths`` have every catalogue name, aliases included.

    ``landings`` are the placement map of the LEARNED names. ``copies`` are what the dispatch hook
    expects, in the loader's order: of HOOK names, and of those LEARNED ones that it can see, if asked for.
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
    def rank_placement(self) -> RankPlacement:
        """The answer to ``RankPort.prewarm``."""
        own = {name: reason for name, reason in self.refusals.items() if name not in self.paths}
        return RankPlacement(dict(self.paths), own, self.storages.guards)

    def loses_bits(self, name: str) -> str:
        """Why a LEARNED tensor cannot be read back from where it lands; empty if it can."""
        spec = self.specs[name]
        lossy = {str(it.dtype) for it in self.landings.get(name, ()) if not _reads_back(spec, it)}
        return f"{LOSES_BITS}: {', '.join(sorted(lossy))}" if lossy else ""


def _reads_back(spec: TensorSpec, landing: Landing) -> bool:
    return landing.preserving or (not landing.scalar and readable(spec.dtype, landing.dtype))
