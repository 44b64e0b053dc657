"""Coordinators as simulated processes: each runs the real scripts, one effect at a time."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dcr.commit.context import Context, Outcome, Request, Rollback
from dcr.commit.coordinator import transition
from dcr.commit.effects import (
    Answer,
    Call,
    CompareAndSet,
    Effect,
    Gather,
    Pause,
    ReadState,
    StoreObject,
)
from dcr.commit.giving_up import rollback
from dcr.commit.lifecycle import admit, go_on, take_over
from dcr.commit.membership import leave_run
from dcr.errors import AttemptFailed, Conflict, OutcomeUnknown, RefitError, StoreError, Unreachable
from dcr.model import AttemptId
from tests.simulation import invariants
from tests.simulation.world import Late, World, moves_record

PAUSED_S = 4.0
"""How much longer than other steps one of a coordinator that waits takes."""


@dataclass(slots=True, repr=False)
class Coordinator:
    """One process; ``script`` is None between requests, ``effect`` what it waits for."""

    world: World
    context: Context
    script: Any = None
    effect: Effect | None = None
    request: Request | None = None
    leasing: Context | None = None
    dead: bool = False
    paused_until: float | None = None
    asked_by: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    tried: set[AttemptId] = field(default_factory=set)

    def __repr__(self) -> str:  # type: ignore[explicit-override]  # typing.override: 3.12
        return f"coordinator of epoch {self.context.epoch}"

    def start(self) -> None:
        """The first thing that a new coordinator does."""
        self._begin(take_over(self.context))

    def ask(self, request: Request) -> None:
        """The trainer's request arrives."""
        self.request, self.tried = request, set()
        self._begin(transition(self.context, request))

    def ask_admit(self, receiver: str) -> None:
        """A new, restarted or evicted receiver asks to be let in."""
        self.asked_by = receiver
        self._begin(admit(self.context, receiver))

    def ask_rollback(self) -> None:
        """An operator wants everybody to serve what is committed."""
        self._begin(rollback(self.context))

    def leave(self, receiver: str, incarnation: str) -> None:
        """A receiver has ended on purpose; this waits for nothing that goes on."""
        with suppress(RefitError):
            self._at_once(leave_run(self.context, receiver, incarnation))

    @property
    def pending(self) -> list[Call]:
        """Calls of the present Gather that have no answer yet."""
        if not isinstance(self.effect, Gather):
            return []
        return [call for call in self.effect.calls if call.target not in self.answers]

    def answer(self, call: Call, answer: Answer) -> None:
        """An answer arrives, or its deadline passes."""
        self.answers[call.target] = answer
        if not self.pending:
            answers, self.answers = self.answers, {}
            self._send(answers)

    def perform(self) -> None:
        """Carry out the present effect without any fault; of a Gather, its first pending call."""
        effect = self.effect
        if isinstance(effect, Gather):
            call = self.pending[0]
            self.answer(call, self.world.deliver(call))
        elif isinstance(effect, CompareAndSet):
            self._note(effect)
            self._send(self.world.write(effect))
        elif isinstance(effect, Pause) and self._is_waiting(effect.seconds):
            self.world.time.now += PAUSED_S
        else:
            self._send(self._simple(effect))

    def lose_write(self, *, landed: bool, delay: int) -> None:
        """The answer to a compare-and-set is lost; it took effect, or will after ``delay``, or (0) never."""
        effect = self.effect
        assert isinstance(effect, CompareAndSet)
        self._note(effect)
        if landed:
            self.world.write(effect)
            self.world.events["commit landed, its answer lost"] += moves_record(effect)
        elif delay:
            self.world.late.append(Late(effect, delay))
        self._send(OutcomeUnknown("no answer"))

    def lose_call(self, call: Call, *, executed: bool, crash_at: int) -> None:
        """The answer to a call is lost, and the call too unless ``executed``, perhaps to a crash."""
        if executed:
            self.world.deliver(call, crash_at)
        self.answer(call, self.world.miss_deadline())

    def _note(self, effect: CompareAndSet) -> None:
        if moves_record(effect):
            self.tried.add(effect.state.record.attempt)

    def _is_waiting(self, seconds: float) -> bool:
        """Whether a pause goes on; time passes a little at a time."""
        now = self.context.clock()
        if self.paused_until is None:
            self.paused_until = now + seconds
        if now < self.paused_until:
            return True
        self.paused_until = None
        return False

    def _at_once(self, script: Any) -> None:
        """Run a script of control plane effects to its end, between two steps of the other one."""
        answer: Answer = None
        with suppress(StopIteration, RefitError):
            while True:
                effect = script.send(answer)
                is_write = isinstance(effect, CompareAndSet)
                answer = self.world.write(effect) if is_write else self._simple(effect)

    def _simple(self, effect: Effect | None) -> Answer:
        match effect:
            case ReadState():
                return self.world.state
            case StoreObject(kind, data):
                return self._stored(kind, data)
            case Pause():
                return None
            case _:
                raise AssertionError(f"not expected here: {effect}")

    def _stored(self, kind: str, data: bytes) -> Answer:
        try:
            return self.world.archive.put_object(kind, data)
        except StoreError as err:
            return err

    def _begin(self, script: Any) -> None:
        self.script, self.answers, self.paused_until = script, {}, None
        self._send(None)

    def _send(self, answer: Answer) -> None:
        try:
            self.effect = self.script.send(answer)
            self._note_stop(self.effect)
        except StopIteration as end:
            self._ended(end.value)
        except RefitError as err:
            self._failed(err)

    def _note_stop(self, effect: Effect) -> None:
        """Whoever stops an attempt that it tried to commit has made sure that this never happens."""
        if isinstance(effect, Gather) and effect.calls[0].method == "stop_and_wait":
            attempt: AttemptId = effect.calls[0].params["attempt"]
            if attempt in self.tried:
                self.world.given_up.add(attempt)
                assert self.world.state.record.attempt != attempt, "taken as failed, but committed"

    def _ended(self, result: object) -> None:
        self.script = self.effect = None
        self._tell_asker()
        if isinstance(result, Outcome):
            assert self.request is not None
            record = self.world.state.record
            assert result.record.version == self.request.parent_version + 1
            assert record.version >= result.record.version, "reported as committed, but it is not"
            self.world.events[f"committed on try {result.num_attempts}"] += 1
            self.world.answered(self.request)
            self.request = None
        elif isinstance(result, tuple):
            self.context, state = result
            self.leasing = self.context
            self._begin(go_on(self.context, state))
        elif isinstance(result, Rollback):
            self.world.events["rollback"] += 1
            invariants.check_rolled_back(self.world, result)

    def _tell_asker(self) -> None:
        name, self.asked_by = self.asked_by, ""
        if name and not self.world.receiver(name).gone:
            self.world.receiver(name).renewals.admitted()

    def _failed(self, err: RefitError) -> None:
        self.world.events[f"script ended in {type(err).__name__}"] += 1
        finishing = self.request is None and not self.asked_by
        self._tell_asker()
        request, self.script, self.effect, self.request = self.request, None, None, None
        if isinstance(err, Conflict):
            self.dead = self.context.epoch != self.world.state.epoch
            self.world.look_up()
        elif isinstance(err, AttemptFailed):
            if request is None:
                return
            assert self.world.state.record.attempt not in self.tried, "reported as failed, but committed"
            self.world.given_up |= self.tried
        elif isinstance(err, Unreachable):
            self.world.events["run taken over, its commit not finished"] += finishing
        else:
            raise AssertionError(f"{type(err).__name__} must not happen here: {err}") from err
