"""Runs scripts against the real world: control plane, archive, endpoints, clock."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from time import sleep
from typing import TypeVar

from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.effects import (
    Answer,
    Call,
    CompareAndSet,
    CreateState,
    Effect,
    Gather,
    Pause,
    ReadState,
    Script,
    StoreObject,
)
from dcr.errors import AttemptFailed, RefitError, Unreachable
from dcr.model import RunId
from dcr.transport.base import Archive

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Driver:
    """Everything a script may touch. ``endpoints`` maps a target to an object with its methods.

    Without ``pool`` the calls of a Gather run one after the other in this thread, owners' and
    receivers' in the order given: for in-process tests. With it they run at the same time; one
    that misses the deadline is answered Unreachable and left to end by itself, which is safe
    because a late call of a replaced attempt does nothing (P6).
    """

    plane: ControlPlane
    archive: Archive
    endpoints: Mapping[str, object]
    run: RunId
    pause: Callable[[float], None] = sleep
    pool: Executor | None = None

    def execute(self, script: Script[R]) -> R:
        """Run ``script`` to its end; what it raises surfaces here."""
        try:
            effect = next(script)
            while True:
                effect = script.send(self._perform(effect))
        except StopIteration as end:
            result: R = end.value
            return result

    def _perform(self, effect: Effect) -> Answer:
        try:
            return self._act(effect)
        except RefitError as err:
            return err

    def _act(self, effect: Effect) -> Answer:
        match effect:
            case Gather():
                return self._gather(effect)
            case ReadState():
                return self.plane.read(self.run)
            case StoreObject(kind, data):
                return self.archive.put_object(kind, data)
            case CreateState(state):
                self.plane.create(state)
            case CompareAndSet(expected, state):
                self.plane.compare_and_set(expected, state)
            case Pause(seconds):
                self.pause(seconds)
        return None

    def _gather(self, gather: Gather) -> dict[str, Answer]:
        if self.pool is None:
            return {call.target: self._call(call) for call in gather.calls}
        futures = {call.target: self.pool.submit(self._call, call) for call in gather.calls}
        wait(futures.values(), timeout=gather.deadline_s)
        return {target: _answer(future, gather.deadline_s) for target, future in futures.items()}

    def _call(self, call: Call) -> Answer:
        endpoint = self.endpoints.get(call.target)
        if endpoint is None:
            return Unreachable(f"no endpoint is named {call.target}")
        try:
            answer: Answer = getattr(endpoint, call.method)(**call.params)
        except RefitError as err:
            return err
        except Exception as err:  # noqa: BLE001 -- an endpoint's fault is its answer, not our end
            return AttemptFailed(f"{call.method}: {type(err).__name__}: {err}")
        return answer


def _answer(future: "Future[Answer]", deadline_s: float) -> Answer:
    if future.done():
        return future.result()
    future.cancel()
    return Unreachable(f"no answer within {deadline_s:g} s")
