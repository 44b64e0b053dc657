"""Validated, deduplicated payloads between transport and loader (paper Figure B.2, C.2, DESIGN R9, P16).

At most 32 groups of at most eight decoded payloads, plus one group under assembly.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dcr.codec import Payload
from dcr.errors import AttemptFailed
from dcr.model import AttemptId, PayloadRef, RunId

MAX_GROUPS = 32
MAX_GROUP = 8


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a payload must say about itself to belong here: one attempt of one transition.

    ``named``: (owner, sequence) -> the earlier attempt whose payload counts as this one's own (P6).
    """

    run: RunId
    attempt: AttemptId
    parent: int
    catalogue: str
    named: Mapping[tuple[int, int], AttemptId] = field(default_factory=dict)


def belongs(payload: Payload, expected: Expectation) -> bool:
    """Whether ``payload`` is of this run, attempt, parent version and catalogue; else it is dropped (P16)."""
    return (payload.run, payload.attempt, payload.parent, payload.catalogue) == (
        expected.run,
        expected.named.get((payload.owner, payload.sequence), expected.attempt),
        expected.parent,
        expected.catalogue,
    )


def is_duplicate(admitted: dict[tuple[int, int], PayloadRef], payload: Payload) -> bool:
    """Whether the payload's key was admitted before, with the same content.

    Raises:
        AttemptFailed: its key was admitted with other content.
    """
    earlier = admitted.get((payload.owner, payload.sequence))
    if earlier is not None and earlier.digest != payload.digest:
        raise AttemptFailed(
            f"owner {payload.owner} sent two payloads with sequence {payload.sequence} under attempt "
            f"{payload.attempt}: digests {earlier.digest} and {payload.digest}"
        )
    return earlier is not None


@dataclass(slots=True)
class Staging:
    """The queue of one attempt. ``admitted`` has the key and content of every payload ever taken in."""

    expected: Expectation
    admitted: dict[tuple[int, int], PayloadRef] = field(default_factory=dict)
    num_foreign: int = 0
    num_duplicate: int = 0
    _groups: deque[list[Payload]] = field(default_factory=deque)
    _assembling: list[Payload] = field(default_factory=list)

    def admit(self, payload: Payload, num_bytes: int) -> bool:
        """Take a payload in, or drop it because it is foreign or a duplicate; whether it was taken.

        ``full`` must be false.

        Raises:
            AttemptFailed: the same owner and sequence with other content.
        """
        assert not self.full, "drain the queue first"
        if not belongs(payload, self.expected):
            self.num_foreign += 1
            return False
        if is_duplicate(self.admitted, payload):
            self.num_duplicate += 1
            return False
        key = (payload.owner, payload.sequence)
        self.admitted[key] = PayloadRef(*key, payload.digest, num_bytes)
        self._assembling.append(payload)
        if len(self._assembling) == MAX_GROUP:
            self.seal()
        return True

    @property
    def full(self) -> bool:
        """Whether a further payload could find no room."""
        return len(self._groups) == MAX_GROUPS and len(self._assembling) == MAX_GROUP - 1

    def seal(self) -> None:
        """End the group under assembly: nothing more is visible now."""
        if self._assembling:
            self._groups.append(self._assembling)
            self._assembling = []

    def take(self) -> list[Payload]:
        """The oldest sealed group in order of admission; empty if there is none."""
        return self._groups.popleft() if self._groups else []
