"""What an attempt has written here, until it is read back (DESIGN R13): decoded as far as that is little.

Decoded, a changed element of two bytes takes 6 bytes (10 in tensors of more than 2^31), as it was sent about
1.3. A delta that is large beside the model is kept as it was sent and decoded once more for the check, one
payload at a time.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dcr.codec import Limits, decode_payload
from dcr.receiver.intake import Intake, Taken

MOST_BYTES = 64 << 20
"""Of decoded entries, over all payloads of an attempt; beyond that payloads are decoded again."""


class _Sent(NamedTuple):
    """A payload as it was sent, and how it was taken in."""

    raw: bytes
    allow_xor: bool


class Written:
    """Payloads in the order in which they were applied."""

    def __init__(self, limits: Limits, most_bytes: int = MOST_BYTES) -> None:
        self._limits = limits
        self._most_bytes = most_bytes
        self._decoded: list[Taken] = []
        self._sent: list[_Sent] = []
        self._num_bytes = 0

    def add(self, taken: Taken, *, allow_xor: bool) -> None:
        """Remember what is about to be written."""
        num_bytes = _entry_bytes(taken)
        raw = taken.payload.raw
        if raw is not None and self._num_bytes + num_bytes > self._most_bytes:
            self._sent.append(_Sent(raw, allow_xor))
        else:
            self._decoded.append(taken)
            self._num_bytes += num_bytes

    def clear(self) -> None:
        """Forget everything."""
        self._decoded.clear()
        self._sent.clear()
        self._num_bytes = 0

    def groups(self, intake: Intake) -> Iterator[list[Taken]]:
        """All of them, in pieces that are to be let go one after the other; ``intake`` took them in."""
        if self._decoded:
            yield self._decoded
        for sent in self._sent:
            payload = decode_payload(sent.raw, limits=self._limits)
            yield [intake.take(payload, allow_xor=sent.allow_xor)]


def _entry_bytes(taken: Taken) -> int:
    """Of positions and values."""
    columns = taken.columns
    return int((columns.nums * (columns.index_bytes + taken.widths.astype(np.int64))).sum())
