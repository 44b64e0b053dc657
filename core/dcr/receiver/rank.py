"""One rank of a serving instance, as the instance sees it (DESIGN R9-R13, B2, B6, P11). Free of torch.

A runtime instance has one or more ranks (tensor, expert, pipeline parallel), each with its own loader
and storage. ``dcr.receiver.instance.InstanceWriter`` joins them into the ``Writer`` that an agent
drives; ``dcr.receiver.apply.RankApplier`` is the port over a native loader in this process, and an
adapter gives one that calls a worker process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from dcr.codec import Payload
from dcr.model import AuditDigest, Bits, PathClass
from dcr.receiver.writer import ApplyStats, Cancelled, Slice, never

Cover: TypeAlias = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Canonical elements as boxes of (first flat index, ((size, stride), ...)); boxes may overlap."""

ItemKey: TypeAlias = tuple[int, int, int]
"""Owner, sequence of the payload, position of the item in it."""

PartDigests: TypeAlias = tuple[AuditDigest, ...]
"""Digest of what a rank holds of one tensor, one for each part that ``RankPort.divide`` named for it.

A tensor that was not named has one part: everything that the rank holds. ``()``: it holds nothing.
"""

Partials: TypeAlias = dict[ItemKey, PartDigests]
"""What a rank read back of each item, after apply; items of tensors that it does not hold may be absent."""

PartTable: TypeAlias = dict[str, PartDigests]
"""Canonical name, aliases included -> what a rank holds of it; names that it does not hold are absent."""


LOSES_BITS = "stored in a form that loses bits"
"""How the reason of a WHOLE tensor begins whose stored form cannot be undone; its dtype follows."""
FORCED = "the dispatch hook was asked for"
"""The reason of a HOOK tensor that could be LEARNED."""


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


def is_read_back(method: str, reason: str) -> bool:
    """Whether a digest of such a tensor is one of storage; else a host copy is digested.

    Of the others storage is proven to hold what the loader makes of the host copy.
    """
    return method == Method.LEARNED or (method == Method.HOOK and reason == FORCED)


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

    ``refusals``: further reasons against any delta, by resident or canonical name (R11). ``guards``:
    resident tensors whose contents the map depends on; ``rebuilt`` watches them.
    """

    paths: dict[str, RankPath]
    refusals: dict[str, str]
    guards: tuple[str, ...] = ()


class RankPort(Protocol):
    """Writes and reads one rank's resident storage. Never called concurrently.

    Call order: ``prewarm``, ``divide``; then per attempt ``begin``, ``apply``*, ``synchronize``,
    ``check``; ``rebuilt``, ``restore``, ``audit`` and ``scan`` at any time between attempts. After
    ``rebuilt`` has given a reason, ``prewarm`` and ``divide`` come first again.
    """

    def prewarm(self) -> RankPlacement:
        """Learn where the loader puts every catalogue tensor; nothing is written.

        Called again it answers the same, unless ``rebuilt`` has a reason: then it learns anew.
        """
        ...

    def divide(self, parts: Mapping[str, tuple[Cover, ...]]) -> None:
        """Name the parts that digests are given for, replacing what was named before (B6).

        For each tensor the parts are disjoint and make up this rank's whole cover. The instance counts
        each part once and compares it between the ranks that hold it, so replicas are proven too.
        ``dcr.receiver.parts.Division`` finds the part of an element.
        """
        ...

    def rebuilt(self) -> str:
        """Why the map no longer holds (moved storage, a changed guard); empty if it does. Cheap."""
        ...

    def begin(self, *, clean: bool) -> None:
        """Forget what earlier attempts wrote. ``clean``: storage holds a proven version (P8).

        Raises:
            AttemptFailed: the runtime rebuilt its storage; ``prewarm`` and a proof are needed again.
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

        Once for an attempt: items need not be kept when it has returned.

        An item of a tensor that this rank holds is answered for even if none of its entries lie here
        (``dcr.audit.EMPTY`` for each part without any).

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

    def audit(self) -> PartTable:
        """Digest everything that this rank holds.

        Raises:
            IntegrityError: two resident copies of one tensor differ, or padding or a cast is wrong.
            AttemptFailed: the runtime rebuilt its storage; nothing is known of what it holds.
        """
        ...

    def scan(self, slices: Sequence[Slice]) -> list[PartDigests]:
        """Digest what this rank holds of each slice; the parts of a slice are those of its tensor.

        For a bounded-rate background audit: the cost should follow the slices, not their tensors.
        ``PADDING`` asks whether constants that no tensor reaches still hold, and is answered with ``()``.

        Raises:
            IntegrityError, AttemptFailed: as ``audit``.
        """
        ...
