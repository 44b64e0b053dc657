"""Rollouts from several serving instances: who answers changes no token, so any of them will do."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Protocol

import torch

from dcr.errors import IntegrityError, Unreachable
from dcr.transport.peers import Peers
from dcr_recipes.grpo.sampler import Prompt
from dcr_recipes.grpo.settings import GrpoSettings
from dcr_recipes.members import Members
from dcr_recipes.runtime.answers import GenerateAnswer
from dcr_recipes.runtime.remote import RemoteRuntime


class Responses(NamedTuple):
    """``tokens`` int64 [G, T]; ``logprobs`` float32 [G, T] under the distribution they were drawn from."""

    tokens: torch.Tensor
    logprobs: torch.Tensor


class Generate(Protocol):
    """One instance's ``generate``: a remote call or ``RuntimeWorker.generate`` itself."""

    def __call__(
        self, *, prompts: list[list[int]], seeds: list[list[int]], max_new_tokens: int, temperature: float
    ) -> GenerateAnswer:
        """Answer with one version.

        Raises:
            Unreachable: the instance is down, or its gate stayed closed.
        """
        ...


class Rollouts(Protocol):
    """Where a trainer's responses come from."""

    def rollout(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], version: int
    ) -> list[Responses]:
        """Responses to each prompt, one per seed, all made with ``version``."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutClient:
    """Spreads prompt groups over ``instances`` in turn; each is asked one group at a time.

    An instance that does not answer is passed over, and asked again after ``pause_s``, until
    ``deadline_s`` have passed for a group. With ``members`` those that are none are not asked at all:
    one that hangs would cost its deadline.
    """

    instances: Sequence[tuple[str, Generate]]
    max_new_tokens: int
    temperature: float
    deadline_s: float = 120.0
    pause_s: float = 0.2
    members: Members | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def rollout(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], version: int
    ) -> list[Responses]:
        """Responses to each prompt, one per seed, in the order of ``prompts``.

        Raises:
            Unreachable: no instance answered one of the groups within the deadline.
            IntegrityError: an instance served another version than ``version``.
        """
        with ThreadPoolExecutor(len(self.instances)) as pool:
            asked = [
                pool.submit(self._ask, turn, prompt, list(group), version)
                for turn, (prompt, group) in enumerate(zip(prompts, seeds, strict=True))
            ]
            return [future.result() for future in asked]

    def _ask(self, first: int, prompt: Prompt, seeds: list[int], version: int) -> Responses:
        deadline = self.clock() + self.deadline_s
        for turn in count(first):
            able = self._able()
            name, generate = able[turn % len(able)]
            try:
                answer = generate(
                    prompts=[list(prompt.ids)],
                    seeds=[seeds],
                    max_new_tokens=self.max_new_tokens,
                    temperature=self.temperature,
                )
            except Unreachable as err:
                if self.clock() >= deadline:
                    raise Unreachable(f"no instance answered in {self.deadline_s:g} s: {err}") from err
                if (turn - first + 1) % len(able) == 0:
                    self.sleep(self.pause_s)
                continue
            return _checked(name, answer, version)
        raise AssertionError("unreachable: count() does not end")

    def _able(self) -> Sequence[tuple[str, Generate]]:
        members = None if self.members is None else self.members()
        return [pair for pair in self.instances if members is None or pair[0] in members] or self.instances


def _checked(name: str, answer: GenerateAnswer, version: int) -> Responses:
    if answer.version != version:
        raise IntegrityError(f"{name} answered with version {answer.version}, not {version}")
    return Responses(
        torch.tensor(answer.tokens[0], dtype=torch.int64),
        torch.tensor(answer.logprobs[0], dtype=torch.float32),
    )


def over_http(
    peers: Peers,
    names: Sequence[str],
    settings: GrpoSettings,
    *,
    patience_s: float,
    request_s: float = 120.0,
    members: Members | None = None,
) -> RolloutClient:
    """Client of the processes called ``names``, found through ``peers``.

    One that does not answer in ``request_s`` is passed over, and so is one that is not of ``members``;
    ``patience_s`` is waited until one answers.
    """
    instances = [(name, RemoteRuntime(peers, name, timeout_s=request_s).generate) for name in names]
    return RolloutClient(
        instances, settings.response_tokens, settings.temperature, deadline_s=patience_s, members=members
    )
