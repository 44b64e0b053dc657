"""Draws of a run's SGLang engines: by log probabilities, seed and position alone."""

import torch

from dcr_recipes.runtime.sglang import _params
from dcr_recipes.runtime.sglang_plugin import draw

LOGPROBS = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125]]))


def test_a_draw_follows_from_seed_and_position() -> None:
    rows = LOGPROBS.expand(3, -1)
    seeds, positions = torch.tensor([5, -7, 1 << 62]), torch.tensor([0, 0, 9])
    drawn = draw(rows, seeds, positions)
    assert drawn.shape == (3, 1)
    assert torch.equal(draw(rows, seeds, positions), drawn)
    for i in range(3):
        assert torch.equal(draw(rows[i : i + 1], seeds[i : i + 1], positions[i : i + 1]), drawn[i : i + 1])


def test_draws_have_the_distribution_of_the_row() -> None:
    num = 4000
    drawn = draw(LOGPROBS.expand(num, -1), torch.arange(num) % 8, torch.arange(num) // 8)
    shares = torch.bincount(drawn.view(-1), minlength=4) / num
    assert torch.allclose(shares, LOGPROBS.exp()[0], atol=0.03)


def test_seeds_of_64_bits_stay_apart() -> None:
    asked = {_params(seed, 1, 1.0)["sampling_seed"] for seed in (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)}
    assert len(asked) == 5
    assert all(-(1 << 63) <= seed < 1 << 63 for seed in asked)
