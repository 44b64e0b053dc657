"""Proof and probe of instances of several kinds: each is compared with those of its own kind only.

Engines lay the same weights out differently, and compute the same answers with other last bits.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dcr_recipes.probe import Prober
from dcr_recipes.summary import Row
from dcr_recipes.verify import Difference, Verifier


@dataclass(frozen=True, slots=True)
class Verifiers:
    """As one ``Verifier``; ``parts`` have folders of their own and compare equal shares."""

    parts: Sequence[Verifier]

    @property
    def share(self) -> float:
        """See ``Verifier``."""
        return self.parts[0].share

    def verify(self, dense: Path, version: int) -> list[Difference]:
        """Differences of all kinds, found side by side. Raises as ``Verifier.verify``."""
        with ThreadPoolExecutor(len(self.parts)) as pool:
            asked = [pool.submit(part.verify, dense, version) for part in self.parts]
            return [difference for found in asked for difference in found.result()]


@dataclass(frozen=True, slots=True)
class Probers:
    """As one ``Prober``."""

    parts: Sequence[Prober]

    def before(self, version: int) -> None:
        """See ``Prober.before``."""
        for part in self.parts:
            part.before(version)

    def after(self, version: int) -> Row:
        """See ``Prober.after``; counts are added up."""
        total: Row = {}
        for part in self.parts:
            for key, value in part.after(version).items():
                total[key] = total.get(key, 0) + value
        return total
