"""Clients that never stop asking, also during refits: whatever they get must be wholly of one version."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dcr.errors import RefitError
from dcr_recipes.chaos.answers import Answer, write_line
from dcr_recipes.grpo.seeds import derived_seed
from dcr_recipes.runtime.answers import GenerateAnswer

PROMPT_TOKENS = 8
NUM_TOKENS = 8
NUM_RESPONSES = 2
TEMPERATURE = 1.0
_PAUSE_S = 0.15
_SMALLEST_VOCABULARY = 256


class Generate(Protocol):
    """One instance's ``generate``, see ``dcr_recipes.runtime.worker``."""

    def __call__(
        self, *, prompts: list[list[int]], seeds: list[list[int]], max_new_tokens: int, temperature: float
    ) -> GenerateAnswer:
        """Raises Unreachable if it is down, stopped, cut off, or closed."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """The ``number``-th request of one asker: whom, with which prompt [L] and seeds [G]."""

    instance: str
    prompt: list[int]
    seeds: list[int]


def request(seed: int, asker: int, number: int, instances: list[str]) -> Request:
    """What an asker asks next; its own number decides, whatever was answered before."""

    def draw(*what: int | str) -> int:
        return derived_seed(seed, "asker", asker, number, *what)

    return Request(
        instances[draw("instance") % len(instances)],
        [draw("prompt", place) % _SMALLEST_VOCABULARY for place in range(PROMPT_TOKENS)],
        [draw("response", place) for place in range(NUM_RESPONSES)],
    )


@dataclass(slots=True)
class Askers:
    """``num`` threads that ask ``instances`` until ``close``; answers are appended to ``path``.

    ``clock`` is seconds since the run's start. ``num_refused`` requests got no answer.
    """

    path: Path
    instances: Mapping[str, Generate]
    seed: int
    clock: Callable[[], float] = time.monotonic
    num: int = 2
    num_answers: int = 0
    num_refused: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin to ask."""
        for asker in range(self.num):
            thread = threading.Thread(target=self._work, args=(asker,), name=f"asker-{asker}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ask nothing new."""
        self._ended.set()

    def close(self) -> None:
        """Return when the requests in flight have ended."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _work(self, asker: int) -> None:
        number, names = 0, sorted(self.instances)
        with ExitStack() as stack:
            out = stack.enter_context(self.path.open("a"))
            while not self._ended.is_set():
                answer = self._ask(request(self.seed, asker, number, names))
                number += 1
                with self._lock:
                    if answer is None:
                        self.num_refused += 1
                    else:
                        self.num_answers += 1
                        out.write(write_line(answer))
                        out.flush()
                self._ended.wait(_PAUSE_S)

    def _ask(self, asked: Request) -> Answer | None:
        asked_at = self.clock()
        try:
            got = self.instances[asked.instance](
                prompts=[asked.prompt],
                seeds=[asked.seeds],
                max_new_tokens=NUM_TOKENS,
                temperature=TEMPERATURE,
            )
        except RefitError:  # down, stopped, cut off, closed, or not up yet: nothing was answered
            return None
        return Answer(
            asked_at=asked_at,
            got_at=self.clock(),
            instance=asked.instance,
            version=got.version,
            prompt=asked.prompt,
            seeds=asked.seeds,
            tokens=got.tokens[0],
            logprobs=got.logprobs[0],
        )
