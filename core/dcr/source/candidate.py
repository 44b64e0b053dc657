"""The weights that a transition publishes, and the proof that retries publish the same (DESIGN P5)."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dcr.errors import IntegrityError
from dcr.model import AttemptId, Classification, OwnerClose, PayloadRef
from dcr.source.digests import DigestTable, TaskDigests
from dcr.source.task import AffineTask

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Published:
    """Payloads of one candidate that are durable, by sequence; each names the attempt it was sent under (P6).

    They hold what leads from what ``base`` committed, in the representation that ``classes`` ask for.
    """

    base: AttemptId
    classes: Classification
    refs: dict[int, PayloadRef] = field(default_factory=dict)

    def note(self, attempt: AttemptId, ref: PayloadRef) -> None:
        """``ref``, sent under ``attempt``, is durable."""
        self.refs[ref.sequence] = ref if ref.attempt else replace(ref, attempt=attempt)

    def since(self, number: int) -> Mapping[int, PayloadRef]:
        """Those of attempts from ``number`` on: of the unbroken chain of attempts at this candidate."""
        return {at: ref for at, ref in self.refs.items() if ref.attempt and ref.attempt.number >= number}


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
    published: Published | None = None

    @property
    def identity(self) -> str:
        """What an owner's report gives as counters."""
        return f"{self.presentation}-{self.counters}"

    def publications(self, base: AttemptId, classes: Classification) -> Published:
        """What was published onto ``base`` under ``classes``; what was made otherwise is forgotten."""
        found = self.published
        if found is None or (found.base, found.classes) != (base, classes):
            found = self.published = Published(base, dict(classes))
        return found


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
