"""One question asked of every instance around each refit: do they serve the same answer, and a fresh one?

A training run asks every prompt once, so no rollout would ever show a prompt cache that outlived a
refit. The probe is in the cache when a refit comes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from dcr.errors import IntegrityError, Unreachable
from dcr_recipes.members import Members, Silence
from dcr_recipes.runtime.answers import bits
from dcr_recipes.summary import Row

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)
"""Token ids that every vocabulary has."""
LONG_PROMPT = PROMPT * 9
"""Longer than two blocks of an engine's prefix cache: shorter prompts are never in it."""
NUM_TOKENS = 4
"""Few: stale state shows in the first token, and a real model decodes about ten a second on one core."""


class Answer(Protocol):
    """See ``dcr_recipes.runtime.answers.ProbeAnswer``."""

    @property
    def version(self) -> int:
        """The version that it was made with."""
        ...

    @property
    def hit(self) -> bool:
        """Whether the prompt was in the cache."""
        ...

    @property
    def tokens(self) -> list[int]:
        """The continuation [T]."""
        ...

    @property
    def logprobs(self) -> list[float]:
        """Of each token [T]."""
        ...


class CacheStatus(Protocol):
    """The part of ``dcr_recipes.runtime.answers.RuntimeStatus`` that metrics tell."""

    @property
    def prompt_cache_hits(self) -> int:
        """Prompts found since the process started."""
        ...


class Probed(Protocol):
    """An instance as the probe sees it."""

    def probe(self, *, prompt: list[int], max_new_tokens: int, fresh: bool) -> Answer:
        """Continue ``prompt``; with ``fresh`` prove that no stale state was used.

        Raises:
            IntegrityError: some was.
            Unreachable: the instance is down or its gate closed.
        """
        ...

    def status(self) -> CacheStatus:
        """Answer without waiting."""
        ...


@dataclass(frozen=True, slots=True)
class Prober:
    """Asks all ``instances`` at once. One that restarts is waited for until ``deadline_s`` after a refit.

    With ``members`` one that is none is left out; so is one that has not answered for ``away_s`` (None:
    never).
    """

    instances: Mapping[str, Probed]
    prompt: Sequence[int] = PROMPT
    deadline_s: float = 120.0
    pause_s: float = 0.2
    members: Members | None = None
    away_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def before(self, version: int) -> None:
        """Have the probe in every cache that can be reached when the refit of ``version`` comes.

        Raises:
            IntegrityError: two instances answer differently.
        """
        compare(self._ask_all(version, deadline_s=0.0)[0], version)

    def after(self, version: int) -> Row:
        """Prove that all instances serve the same, fresh answer at ``version``; returns metrics.

        Raises:
            IntegrityError: an answer is stale, or two differ.
            Unreachable: an instance did not serve ``version`` within the deadline.
        """
        answers, away = self._ask_all(version, deadline_s=self.deadline_s)
        if missing := sorted(self.instances.keys() - answers.keys() - away):
            who = ", ".join(missing)
            raise Unreachable(f"{who} did not answer at version {version} in {self.deadline_s:g} s")
        compare(answers, version)
        return {"runtime/prompt_cache_hits": sum(map(self._hits, self.instances.values()))}

    def _ask_all(self, version: int, *, deadline_s: float) -> tuple[dict[str, Answer], set[str]]:
        """Answers made with ``version``, as far as there are any in time, and who need not have one."""
        end = self.clock() + deadline_s
        with ThreadPoolExecutor(max(len(self.instances), 1)) as pool:
            asked = {
                name: pool.submit(self._ask, name, version, end, fresh=deadline_s > 0)
                for name in self.instances
            }
            found = {name: future.result() for name, future in asked.items()}
        answers = {name: answer for name, (answer, _) in found.items() if answer is not None}
        return answers, {name for name, (_, is_away) in found.items() if is_away}

    def _ask(self, name: str, version: int, end: float, *, fresh: bool) -> tuple[Answer | None, bool]:
        """Its answer, if there is one in time; and whether it is left out."""
        instance, silence = self.instances[name], Silence(self.away_s)
        while True:
            if self.members is not None and name not in self.members():
                return None, True
            asked_at = self.clock()
            try:
                answer = instance.probe(prompt=list(self.prompt), max_new_tokens=NUM_TOKENS, fresh=fresh)
                if answer.version == version:
                    return answer, False
                silence.answered()
            except Unreachable:
                if silence.is_too_long(asked_at, self.clock()):
                    return None, True
            if self.clock() >= end:
                return None, False
            self.sleep(self.pause_s)

    def _hits(self, instance: Probed) -> int:
        try:
            return instance.status().prompt_cache_hits
        except Unreachable:  # it died since it answered
            return 0


def compare(answers: Mapping[str, Answer], version: int) -> None:
    """Raise IntegrityError, naming two instances, unless all answers are equal bit for bit.

    Answers from a cache are compared among themselves, and so are those without: an engine may compute
    what follows a cached prefix in another shape than a whole prompt, and so with other last bits.
    """
    for hit in (False, True):
        names = sorted(name for name, answer in answers.items() if answer.hit is hit)
        for name in names[1:]:
            first, other = answers[names[0]], answers[name]
            if first.tokens != other.tokens or bits(first.logprobs) != bits(other.logprobs):
                raise IntegrityError(
                    f"{names[0]} and {name} answer one prompt differently at version {version}: "
                    f"tokens {first.tokens} and {other.tokens}"
                )
