"""What a receiver says of itself to a person: ``dcr doctor`` (DESIGN B2, B8)."""

from dataclasses import dataclass

from dcr.model.ids import AttemptId
from dcr.model.messages import PathClass, ReceiverState


@dataclass(frozen=True, slots=True)
class TensorChoice:
    """How one rank takes changes of one canonical tensor.

    ``method`` is a ``dcr.receiver.rank.Method``; ``reason`` says why it is not the learned one.
    ``num_bytes``: canonical bytes of it that lie on the rank.
    """

    method: str
    path: PathClass
    num_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RankDiagnosis:
    """One rank; ``guards`` are resident tensors that its placement map depends on.

    ``tensors`` has every canonical name that the rank holds or refuses. ``refusals``: what speaks
    against any delta on this rank, by name.
    """

    rank: int
    tensors: dict[str, TensorChoice]
    guards: tuple[str, ...]
    refusals: dict[str, str]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Resident bits were not those of ``version``.

    ``ranges``: canonical flat index ranges [start, stop) that hold every differing element; empty if
    only the tensor is known. ``detail`` names the ranks.
    """

    tensor: str
    version: int
    attempt: AttemptId
    ranges: tuple[tuple[int, int], ...]
    detail: str


@dataclass(frozen=True, slots=True)
class AuditProgress:
    """Background audit since the process started. ``rate_mib_s`` 0: off.

    ``num_passes`` full passes, ``num_bytes`` canonical bytes and ``seconds`` of scanning; ``num_dropped``
    tensors begun and dropped because a transition wrote meanwhile; ``finding`` the last mismatch, if any.
    """

    rate_mib_s: float = 0.0
    num_passes: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    num_dropped: int = 0
    finding: AuditFinding | None = None


@dataclass(frozen=True, slots=True)
class ReceiverDiagnosis:
    """State, choices and audit of one instance; ``rebuilt`` says why its maps no longer hold, if so."""

    receiver: str
    incarnation: str
    state: ReceiverState
    version: int
    rebuilt: str
    ranks: tuple[RankDiagnosis, ...]
    audit: AuditProgress
