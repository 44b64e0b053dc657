"""The weights that a transition publishes, and the proof that retries publish the same (DESIGN P5)."""

import logging
from dataclasses import dataclass, field

from dcr.errors import IntegrityError
from dcr.model import AttemptId, OwnerClose
from dcr.source.digests import DigestTable, TaskDigests
from dcr.source.task import AffineTask

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Candidate:
    """One presented step. ``digests`` (by task key) and ``closes`` grow as attempts are constructed.

    ``presentation`` counts the candidates of this process: one that was withdrawn and presented
    again is another one, whatever its counters say.
    """

    step: int
    counters: str
    presentation: int
    digests: DigestTable = field(default_factory=dict)
    closes: dict[AttemptId, OwnerClose] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """What an owner's report gives as counters."""
        return f"{self.presentation}-{self.counters}"


def require_same_bits(candidate: Candidate, task: AffineTask, digests: TaskDigests) -> None:
    """Remember the task's candidate digests, or compare them with what an earlier attempt found.

    Raises:
        IntegrityError: the weights were written while the transition was open.
    """
    if candidate.digests.setdefault(task.key, digests) != digests:
        raise IntegrityError(
            f"task {task.key!r} of step {candidate.step} no longer has the bits that an earlier attempt "
            "published: weights were written during the transition (P5). Write them only after "
            "OwnerAgent.wait_committed returns; restart the trainer from its checkpoint"
        )


def warn_if_touched(candidate: Candidate, counters: str) -> None:
    """Log if version counters moved; only an early warning, since not every write moves them."""
    if counters != candidate.counters:
        _log.warning(
            "version counters moved since step %d was presented; if its bits changed, the attempt will fail",
            candidate.step,
        )
