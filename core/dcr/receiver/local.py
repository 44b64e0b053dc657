"""The writer of an instance whose only rank is in this process."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from dcr.audit import digest_at
from dcr.model import AuditDigest, Bits, Catalogue, RankDiagnosis, TensorChoice
from dcr.receiver.apply import Applier
from dcr.receiver.ports import NativeLoader
from dcr.receiver.writer import Slice, Writer


def local_writer(loader: NativeLoader, catalogue: Catalogue) -> Writer:
    """A ``Writer`` over one native loader."""
    return cast("Writer", _HookWriter(loader, catalogue))


class _HookWriter(Applier):
    """Everything through the dispatch hook."""

    def __init__(self, loader: NativeLoader, catalogue: Catalogue) -> None:
        super().__init__(loader, catalogue)
        self._key = catalogue.audit_key

    def begin(self, *, clean: bool = True) -> None:  # type: ignore[explicit-override]
        """See ``Writer``; the hook trusts its map in any state."""
        super().begin()

    def rebuilt(self) -> str:
        """See ``Writer``."""
        return self._residents.moved(self._loader.resident()) or ""

    def scan(self, slices: Sequence[Slice]) -> list[AuditDigest]:
        """See ``Writer``; reads whole tensors."""
        found = []
        for name, start, stop in slices:
            bits, covered = self.placement.read_back(name)
            index = np.flatnonzero(covered[start:stop]) + start
            found.append(digest_at(self._key, name, index, bits[index]))
        return found

    def locate(self, name: str, truth: Bits) -> dict[int, tuple[tuple[int, int], ...]]:
        """See ``Writer``."""
        bits, covered = self.placement.read_back(name)
        wrong = np.flatnonzero(covered & (bits != truth)).tolist()
        return {0: tuple((i, i + 1) for i in wrong)} if wrong else {}

    def diagnose(self) -> tuple[RankDiagnosis, ...]:
        """See ``Writer``."""
        specs = self._catalogue.by_name()
        tensors = {
            name: TensorChoice("hook", path, specs[name].num_bytes, "no placement map is used")
            for name, path in self.placement.classes.items()
            if not self.placement.skipped(name)
        }
        return (RankDiagnosis(0, tensors, (), {}),)
