"""One rank of a serving instance, as the instance sees it (DESIGN R9-R13, B2, B6, P11). Free of torch.

A runtime instance has one or more ranks (tensor, expert, pipeline parallel), each with its own loader
and storage. ``dcr.receiver.instance.InstanceWriter`` joins them into the ``Writer`` that an agent
drives; ``dcr.receiver.apply.RankApplier`` is the port over a native loader in this process, and an
adapter gives one that calls a worker process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from dcr.codec import Payload
from dcr.model import AuditDigest, AuditTable, Bits, PathClass
from dcr.receiver.writer import ApplyStats, Cancelled, never

Cover: TypeAlias = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Canonical elements as boxes of (first flat index, ((size, stride), ...)); boxes may overlap."""

ItemKey: TypeAlias = tuple[int, int, int]
"""Owner, sequence of the payload, position of the item in it."""

Partials: TypeAlias = dict[ItemKey, AuditDigest]
"""What a rank read back of each item that it counts, after apply."""


class Method(StrEnum):
    """How changes of one tensor reach this rank's storage.

    LEARNED: scattered through the placement map. HOOK: through the native loader and the dispatch hook.
    WHOLE: kept as a host copy of the canonical tensor, which the plain native loader takes as a whole.
    NONE: nothing of it lies on this rank.
    """

    LEARNED = "learned"
    HOOK = "hook"
    WHOLE = "whole"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RankPath:
    """What prewarm found out about one canonical name on one rank.

    ``reason`` says why it is not LEARNED; ``refusal`` is not empty if no delta can be applied to it.
    ``cover`` are the canonical elements that this rank holds and can read back (a WHOLE tensor: all).
    ``skipped``: the loader places it nowhere on purpose, as its adapter says.
    """

    path: PathClass
    method: Method
    reason: str = ""
    refusal: str = ""
    skipped: bool = False
    cover: Cover = ()


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One rank's answer to prewarm. ``paths`` has every catalogue name, aliases included.

    ``refusals``: further reasons against any delta, by resident or canonical name (R11).
    """

    paths: dict[str, RankPath]
    refusals: dict[str, str]


class RankPort(Protocol):
    """Writes and reads one rank's resident storage. Never called concurrently.

    Call order: ``prewarm``, ``exclude``; then per attempt ``begin``, ``apply``*, ``synchronize``,
    ``check``; ``restore``, ``audit`` and ``scan`` at any time between attempts.
    """

    def prewarm(self) -> RankPlacement:
        """Learn where the loader puts every catalogue tensor; nothing is written. Idempotent."""
        ...

    def exclude(self, covers: Mapping[str, Cover]) -> None:
        """Elements that lower ranks count: digests of this rank leave them out (B6)."""
        ...

    def begin(self, *, clean: bool) -> None:
        """Forget what earlier attempts wrote. ``clean``: storage holds a proven version (P8).

        Raises:
            AttemptFailed: the runtime rebuilt its storage; ``prewarm`` and ``restore`` are needed again.
        """
        ...

    def apply(self, payload: Payload, *, allow_xor: bool = True, cancelled: Cancelled = never) -> ApplyStats:
        """Write what this rank holds of every item. Raises AttemptFailed, naming the tensor."""
        ...

    def synchronize(self) -> None:
        """Load WHOLE tensors that changed, wait for the device, run the runtime's post-load step."""
        ...

    def check(self) -> Partials:
        """Re-read everything applied since ``begin``; replicas on this rank are compared here.

        Raises:
            AttemptFailed: two copies differ, or an overwritten element does not hold its bits.
        """
        ...

    def restore(self, tensors: Mapping[str, Bits], *, cancelled: Cancelled = never) -> None:
        """Load a whole version densely: flat bits [num_elements] by primary name; ``audit`` proves it.

        Raises:
            AttemptFailed: cancelled; the storage is torn.
            UnsupportedPath: after the load the map does not read what was loaded (a repack, say).
        """
        ...

    def audit(self) -> AuditTable:
        """Digest of the elements that this rank counts, by canonical name; tensors without any are left out.

        Raises:
            IntegrityError: two resident copies of one tensor differ, or padding or a cast is wrong.
        """
        ...
