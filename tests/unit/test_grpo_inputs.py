"""Prompts, seeds, rewards and settings: pure functions of seed and position."""

import pytest
import torch

from dcr.audit import digest_tensor
from dcr.errors import ConfigError, IntegrityError
from dcr_recipes.config import RunConfig
from dcr_recipes.grpo.metrics import StepMetrics, run_token_digest, token_digest, weights_digest
from dcr_recipes.grpo.proof import require_served
from dcr_recipes.grpo.rewards import MeanTokenId
from dcr_recipes.grpo.sampler import Prompt, random_prompts
from dcr_recipes.grpo.seeds import response_seed
from dcr_recipes.grpo.settings import GrpoSettings, settings_of


def test_response_seeds_are_pinned_and_differ() -> None:
    assert response_seed(0, 1, 0, 0) == 17014942236144153742
    seeds = {
        response_seed(run, s, p, r) for run in (0, 1) for s in range(5) for p in range(4) for r in range(8)
    }
    assert len(seeds) == 2 * 5 * 4 * 8
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_prompts_depend_on_seed_and_step_only() -> None:
    settings = GrpoSettings(seed=3, num_prompts=2, prompt_tokens=5)
    source = random_prompts(settings, vocabulary=515)
    assert source.prompts(4) == random_prompts(settings, 515).prompts(4)
    assert source.prompts(4) != source.prompts(5)
    assert source.prompts(4) != random_prompts(GrpoSettings(seed=4, prompt_tokens=5), 515).prompts(4)
    assert [len(prompt.ids) for prompt in source.prompts(1)] == [5, 5]
    assert all(0 <= i < 515 for step in range(20) for p in source.prompts(step) for i in p.ids)


def test_reward_of_random_tokens_always_has_a_spread() -> None:
    draw = torch.Generator().manual_seed(0)
    reward = MeanTokenId(515)
    for _ in range(200):
        scores = reward.score(Prompt((1,)), torch.randint(515, (4, 8), generator=draw))
        assert scores.dtype == torch.float64
        assert scores.shape == (4,)
        assert float(scores.std()) > 0
        assert bool(((scores >= 0) & (scores <= 1.1)).all())


def test_reward_is_the_documented_sum() -> None:
    scores = MeanTokenId(10).score(Prompt(()), torch.tensor([[5, 5, 5, 5], [0, 1, 2, 3]]))
    assert scores.tolist() == pytest.approx([0.5 + 0.1 / 4, 0.15 + 0.1])


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"recipe\.prompts = 3 .* trainer\.ranks = 2"):
        GrpoSettings(num_prompts=3).groups_per_rank(2)


def test_digests_notice_one_bit_one_name_and_the_shape() -> None:
    tokens = torch.arange(6).view(2, 3)
    assert token_digest(tokens) == token_digest(tokens.clone())
    assert token_digest(tokens) != token_digest(tokens.view(3, 2))
    weight = torch.tensor([0.0, 1.0], dtype=torch.bfloat16)
    digests = [
        weights_digest({"a": weight, "b": weight}),
        weights_digest({"a": -weight, "b": weight}),
        weights_digest({"a": weight, "c": weight}),
    ]
    assert len(set(digests)) == 3
    assert digests[0] == weights_digest({"b": weight.clone(), "a": weight})


def test_a_runs_token_digest_is_of_every_step() -> None:
    metrics = StepMetrics(3, 2, 0.5, 0.1, -0.2, 0.001, 0.0, 1.5, 64, "ab")
    assert run_token_digest([metrics]) != run_token_digest([metrics, metrics])


def test_settings_follow_the_configuration() -> None:
    config = RunConfig(seed=4, lr=1e-6)
    config.recipe.group_size = 3
    settings = settings_of(config)
    assert (settings.seed, settings.lr, settings.group_size) == (4, 1e-6, 3)
    assert (settings.clip_low, settings.clip_high) == (0.2, 0.28)


def test_the_proof_finds_one_bit_and_a_foreign_tensor() -> None:
    key = "0" * 32
    weight = torch.tensor([0.0, 1.5, -2.0], dtype=torch.bfloat16)
    bits = weight.view(torch.int16).numpy().view("<u2")
    table = {"w": digest_tensor(key, "w", bits), "alias": digest_tensor(key, "alias", bits)}
    require_served({"w": weight}, table, key)
    for wrong in ({"w": weight * -1}, {"w": weight, "v": weight}, {}):
        with pytest.raises(IntegrityError, match="not as committed"):
            require_served(wrong, table, key)
