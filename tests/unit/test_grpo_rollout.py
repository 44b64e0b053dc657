"""The rollout client: any instance will do, none may serve another version."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest

from dcr.errors import IntegrityError, Unreachable
from dcr_recipes.grpo.rollout import Generate, RolloutClient
from dcr_recipes.grpo.sampler import Prompt
from dcr_recipes.runtime.answers import GenerateAnswer

PROMPTS = [Prompt((10 + i,)) for i in range(5)]
SEEDS = [[100 * i, 100 * i + 1] for i in range(5)]


class Instance:
    """Answers with the prompt and its seeds, after ``num_failures`` refusals."""

    def __init__(self, version: int = 3, num_failures: int = 0) -> None:
        self.version = version
        self.num_failures = num_failures
        self.served: list[int] = []

    def __call__(
        self, *, prompts: list[list[int]], seeds: list[list[int]], max_new_tokens: int, temperature: float
    ) -> GenerateAnswer:
        assert (max_new_tokens, temperature) == (2, 0.7)
        if self.num_failures > 0:
            self.num_failures -= 1
            raise Unreachable("gate closed")
        self.served.append(prompts[0][0])
        tokens = [[[prompts[0][0], seed] for seed in group] for group in seeds]
        return GenerateAnswer(self.version, tokens, [[[-0.1, -0.2]] * len(group) for group in seeds])


def _client(*instances: Generate, clock: Callable[[], float] = lambda: 0.0) -> RolloutClient:
    named = [(f"runtime-{i}", instance) for i, instance in enumerate(instances)]
    return RolloutClient(named, 2, 0.7, deadline_s=10, clock=clock, sleep=lambda _: None)


def _check(client: RolloutClient) -> None:
    groups = client.rollout(PROMPTS, SEEDS, version=3)
    for prompt, seeds, group in zip(PROMPTS, SEEDS, groups, strict=True):
        assert group.tokens.tolist() == [[prompt.ids[0], seed] for seed in seeds]
        assert tuple(group.logprobs.shape) == (2, 2)


def test_groups_go_round_and_come_back_in_order() -> None:
    first, second = Instance(), Instance()
    _check(_client(first, second))
    assert (sorted(first.served), sorted(second.served)) == ([10, 12, 14], [11, 13])


def test_an_instance_that_is_down_is_passed_over() -> None:
    alive = Instance()
    _check(_client(Instance(num_failures=10**6), alive))
    assert sorted(alive.served) == [10, 11, 12, 13, 14]


def test_waits_while_all_are_down() -> None:
    _check(_client(Instance(num_failures=7), Instance(num_failures=9)))


def test_gives_up_at_the_deadline() -> None:
    ticks: Iterator[int] = count()
    client = _client(Instance(num_failures=10**6), clock=lambda: float(next(ticks)))
    with pytest.raises(Unreachable, match="no instance answered in 10 s: gate closed"):
        client.rollout(PROMPTS, SEEDS, version=3)


def test_another_version_is_refused() -> None:
    with pytest.raises(IntegrityError, match="runtime-1 answered with version 2, not 3"):
        _client(Instance(), Instance(version=2)).rollout(PROMPTS, SEEDS, version=3)


def test_only_members_are_asked_unless_there_are_none() -> None:
    stopped, alive = Instance(), Instance()
    _check(replace(_client(stopped, alive), members=lambda: ("runtime-1",)))
    assert (stopped.served, len(alive.served)) == ([], 5)
    _check(replace(_client(stopped, alive), members=tuple))
    assert len(stopped.served) == 3
