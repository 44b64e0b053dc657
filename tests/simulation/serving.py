"""What a runtime's requests meet: the real gate, others in flight, and a prompt cache that outlives them."""

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from dcr.errors import Unreachable
from dcr.receiver.gate import ServingGate
from dcr.receiver.lease import Lease
from tests.simulation.parties import Tensors, copy_of


@dataclass(slots=True)
class Flying:
    """A request that entered with ``version`` and takes ``left`` more steps."""

    inside: AbstractContextManager[int]
    version: int
    left: int


class Serving:
    """Requests of one process over ``resident`` words. A request's answer depends on cache and words."""

    def __init__(self, resident: Tensors, lease: Lease, events: Counter[str]) -> None:
        self.gate = ServingGate(admit_deadline_s=0.0, drain_deadline_s=0.0, lease=lease)
        self.gate.on_change(self._flush)
        self.flying: list[Flying] = []
        self.cache: Tensors = {}
        self.delivered: list[int] = []
        self._lease = lease
        self._resident = resident
        self._events = events

    def enter(self, steps: int) -> None:
        """A request comes; its prompt is computed now, unless the cache has it."""
        inside = self.gate.enter()
        try:
            version = inside.__enter__()
        except Unreachable:
            self._events["request refused at a shut gate"] += 1
            return
        self._events["request met a warm cache" if self.cache else "request filled the cache"] += 1
        self.cache = self.cache or copy_of(self._resident)
        self.flying.append(Flying(inside, version, steps))

    def tick(self) -> None:
        """Requests go on, and end."""
        for request in tuple(self.flying):
            request.left -= 1
            if request.left <= 0:
                self._leave(request)

    def end_all(self) -> None:
        """Every request ends now."""
        for request in tuple(self.flying):
            self._leave(request)

    def versions(self) -> set[int]:
        """Versions that requests are being answered from, or could be if they came now."""
        serving = {self.gate.version} if self.gate.is_open else set()
        return serving | {request.version for request in self.flying}

    def answering(self) -> set[int]:
        """Versions of the answers that could leave now, and of those that have left since asked last."""
        left, self.delivered = set(self.delivered), []
        return left | self.versions() if self._lease.valid() else left

    def is_pure(self, truth: Tensors) -> bool:
        """Whether an answer made now would be made of ``truth`` alone."""
        used = (self._resident, self.cache) if self.cache else (self._resident,)
        return all(np.array_equal(words[name], bits) for words in used for name, bits in truth.items())

    def _leave(self, request: Flying) -> None:
        self.flying.remove(request)
        try:
            request.inside.__exit__(None, None, None)
        except Unreachable:
            self._events["answer dropped, its lease has run out"] += 1
            return
        self._events["answers"] += 1
        self.delivered.append(request.version)

    def _flush(self) -> None:
        self._events["cache flushed"] += bool(self.cache)
        self.cache = {}
