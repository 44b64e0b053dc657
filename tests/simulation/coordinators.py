"""Coordinators as simulated processes: each runs the real scripts, one effect at a time."""

from dataclasses import dataclass, field
from typing import Any

from dcr.commit.context import Context, Outcome, Request
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
from dcr.commit.lifecycle import admit, resume_run
from dcr.errors import AttemptFailed, Conflict, OutcomeUnknown, RefitError, Unreachable
from dcr.model import AttemptId
from tests.simulation.parties import lost
from tests.simulation.world import Late, World


@dataclass(slots=True, repr=False)
class Coordinator:
    """One process; ``script`` is None between requests, ``effect`` what it waits for."""

    world: World
    context: Context
    script: Any = None
    effect: Effect | None = None
    request: Request | None = None
    dead: bool = False
    num_commits: int = 0
    last_attempts: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    tried: set[AttemptId] = field(default_factory=set)

    def __repr__(self) -> str:  # type: ignore[explicit-override]  # typing.override: 3.12
        return f"coordinator of epoch {self.context.epoch}"

    def start(self) -> None:
        """The first thing that a new coordinator does."""
        self._begin(resume_run(self.context))

    def ask(self, request: Request) -> None:
        """The trainer's request arrives."""
        self.request, self.tried = request, set()
        self._begin(transition(self.context, request))

    def ask_admit(self, receiver: str) -> None:
        """A restarted receiver asks to be let in."""
        self._begin(admit(self.context, receiver))

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
        else:
            self._send(self._simple(effect))

    def lose_write(self, *, landed: bool, delay: int) -> None:
        """The answer to a compare-and-set is lost; it took effect, or will after ``delay``, or (0) never."""
        effect = self.effect
        assert isinstance(effect, CompareAndSet)
        self._note(effect)
        if landed:
            self.world.write(effect)
        elif delay:
            self.world.late.append(Late(effect, delay))
        self._send(OutcomeUnknown("no answer"))

    def lose_call(self, call: Call, *, executed: bool, crash_at: int) -> None:
        """The answer to a call is lost, and the call too unless ``executed``, perhaps to a crash."""
        if executed:
            self.world.deliver(call, crash_at)
        self.answer(call, lost())

    def _note(self, effect: CompareAndSet) -> None:
        if effect.state.record != effect.expected.record:
            self.tried.add(effect.state.record.attempt)

    def _simple(self, effect: Effect | None) -> Answer:
        match effect:
            case ReadState():
                return self.world.state
            case StoreObject(kind, data):
                return self.world.archive.put_object(kind, data)
            case Pause():
                return None
            case _:
                raise AssertionError(f"not expected here: {effect}")

    def _begin(self, script: Any) -> None:
        self.script, self.answers = script, {}
        self._send(None)

    def _send(self, answer: Answer) -> None:
        try:
            self.effect = self.script.send(answer)
        except StopIteration as end:
            self._ended(end.value)
        except RefitError as err:
            self._failed(err)

    def _ended(self, result: object) -> None:
        self.script = self.effect = None
        if isinstance(result, Outcome):
            assert self.request is not None
            record = self.world.state.record
            assert result.record.version == self.request.parent_version + 1
            assert record.version >= result.record.version, "reported as committed, but it is not"
            self.num_commits += 1
            self.last_attempts = result.num_attempts
            self.world.answered(self.request)
            self.request = None
        elif isinstance(result, tuple):
            self.context = result[0]

    def _failed(self, err: RefitError) -> None:
        request, self.script, self.effect, self.request = self.request, None, None, None
        if isinstance(err, Conflict):
            self.dead = self.context.epoch != self.world.state.epoch
            self.world.look_up()
        elif isinstance(err, AttemptFailed):
            assert self.world.state.record.attempt not in self.tried, "reported as failed, but committed"
            self.world.given_up |= self.tried
        elif isinstance(err, Unreachable):
            self.dead = request is None  # it could not resume
        else:
            raise AssertionError(f"{type(err).__name__} must not happen here: {err}") from err
