"""Which encoding an item gets (paper section 6.1, DESIGN R6, R14): a retry has nothing to decide with.

An attempt holds one representation from its beginning to its end.
"""

from dataclasses import dataclass
from typing import Protocol

from dcr.codec import combining
from dcr.model import Classification, Encoding, PathClass


class Representation(Protocol):
    """Decides per canonical name; the same answer for the same question."""

    def of(self, name: str, dtype: str) -> Encoding:
        """Encoding of the items of ``name``."""
        ...


@dataclass(frozen=True, slots=True)
class FirstAttempt:
    """Nothing of the candidate can have reached a receiver: differences where every path takes them.

    ``classification`` is the most restrictive over all required receivers; a name that is absent,
    and one that all skip, takes absolute values. ``codec`` is ``CodecConfig.name``.
    """

    classification: Classification
    codec: str

    def of(self, name: str, dtype: str) -> Encoding:
        """A difference if the path preserves representation, else OVERWRITE."""
        if self.classification.get(name) is PathClass.XOR:
            return combining(self.codec, dtype)
        return Encoding.OVERWRITE


@dataclass(frozen=True, slots=True)
class Retry:
    """A receiver may hold part of the candidate, so only absolute values are right, whatever its paths."""

    def of(self, name: str, dtype: str) -> Encoding:
        """OVERWRITE."""
        del name, dtype
        return Encoding.OVERWRITE
