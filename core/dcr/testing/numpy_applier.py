"""A receiver's writer without torch and loader: canonical tensors are resident as they are.

Stands in for ``dcr.receiver.apply.Applier`` where the protocol is under test and not the placement.
Its post-apply ``check`` proves nothing unless asked to: the protocol must be right without it.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dcr import observe
from dcr.audit import EMPTY, digest_at, digest_tensor
from dcr.codec import Item, Payload
from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import (
    AuditDigest,
    AuditTable,
    Bits,
    Catalogue,
    Classification,
    Encoding,
    PathClass,
    RankDiagnosis,
)
from dcr.receiver.writer import ApplyStats, Slice, never
from dcr.transport.values import combined


class NumpyApplier:
    """``resident`` maps primary names to flat bits [N], written in place."""

    def __init__(self, catalogue: Catalogue, resident: dict[str, Bits], path: PathClass) -> None:
        self._catalogue = catalogue
        self.resident = resident
        self._path = path

    def prewarm(self) -> Classification:
        """Every tensor has the one path class."""
        return {name: self._path for spec in self._catalogue.tensors for name in (spec.name, *spec.aliases)}

    def rebuilt(self) -> str:
        """Never."""
        return ""

    def begin(self, *, clean: bool) -> None:
        """Nothing is remembered."""

    def validate(self, payload: Payload, *, allow_xor: bool) -> None:
        """Refuse differences where XOR is not allowed; raises AttemptFailed."""
        if not allow_xor and any(item.encoding is not Encoding.OVERWRITE for item in payload.items):
            raise AttemptFailed("differences onto storage that an earlier attempt may have torn (P8)")

    def apply(
        self, payload: Payload, *, allow_xor: bool = True, cancelled: Callable[[], bool] = never
    ) -> ApplyStats:
        """Write item by item, with the points of the real one."""
        self.validate(payload, allow_xor=allow_xor)
        for item in payload.items:
            if cancelled():
                raise AttemptFailed(f"{item.name}: the attempt was stopped before this item")
            observe.point("receiver.item.before", tensor=item.name, encoding=item.encoding.value)
            self._write(item)
            observe.point("receiver.item.after", tensor=item.name, encoding=item.encoding.value)
        num_values = sum(item.num_entries for item in payload.items)
        return ApplyStats(len(payload.items), 0, num_values)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def check(self) -> None:
        """Proves nothing."""

    def restore(
        self, tensors: Mapping[str, Bits], table: AuditTable, *, cancelled: Callable[[], bool] = never
    ) -> None:
        """Write whole tensors and prove them by audit."""
        for name, bits in tensors.items():
            if cancelled():
                raise AttemptFailed(f"{name}: the restore was stopped before this tensor")
            self.resident[name][:] = bits
            observe.point("receiver.item.copy", tensor=name)
            if digest_tensor(self._catalogue.audit_key, name, self.resident[name]) != table[name]:
                raise IntegrityError(f"{name}: restored bits are not those of the record's table")

    def audit(self) -> AuditTable:
        """Digest every tensor under each of its names."""
        return {
            name: digest_tensor(self._catalogue.audit_key, name, self.resident[spec.name])
            for spec in self._catalogue.tensors
            for name in (spec.name, *spec.aliases)
        }

    def scan(self, slices: Sequence[Slice]) -> list[AuditDigest]:
        """Digest slices."""
        primary = {name: spec.name for name, spec in self._catalogue.by_name().items()}
        found = []
        for name, start, stop in slices:
            if name not in primary:  # padding: there is none
                found.append(EMPTY)
                continue
            index = np.arange(start, stop, dtype=np.int64)
            bits = self.resident[primary[name]][start:stop]
            found.append(digest_at(self._catalogue.audit_key, name, index, bits))
        return found

    def locate(self, name: str, truth: Bits) -> dict[int, tuple[tuple[int, int], ...]]:
        """Element by element."""
        resident = self.resident[self._catalogue.by_name()[name].name]
        wrong = np.flatnonzero(resident != truth).tolist()
        return {0: tuple((i, i + 1) for i in wrong)} if wrong else {}

    def diagnose(self) -> tuple[RankDiagnosis, ...]:
        """Nothing to say."""
        return ()

    def _write(self, item: Item) -> None:
        resident, half = self.resident[item.name], item.num_entries // 2
        for part in (slice(None, half), slice(half, None)):
            where, values = item.locations[part], item.values[part]
            resident[where] = combined(item.encoding, resident[where], values)
            observe.point("receiver.item.copy", tensor=item.name)
