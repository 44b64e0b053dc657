"""The loss against loops over scalars."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcr_recipes.grpo.loss import group_advantages, policy_terms, response_mask, token_logprobs

LOW, HIGH = 0.2, 0.28


def _slow_terms(
    new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> tuple[float, float, int]:
    loss, kl, clipped = 0.0, 0.0, 0
    for n in range(new.shape[0]):
        for t in range(new.shape[1]):
            if not mask[n, t]:
                continue
            delta, weight = float(new[n, t]) - float(old[n, t]), float(advantages[n])
            ratio = math.exp(delta)
            bounded = min(max(ratio, 1 - LOW), 1 + HIGH)
            loss -= min(ratio * weight, bounded * weight)
            kl += ratio - 1 - delta
            clipped += bounded * weight < ratio * weight
    return loss, kl, clipped


@given(seed=st.integers(0, 2**31), rows=st.integers(1, 5), length=st.integers(1, 7))
def test_terms_equal_the_scalar_loops(seed: int, rows: int, length: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    new = -3 * torch.rand(rows, length, generator=draw)
    old = new + 0.5 * torch.randn(rows, length, generator=draw)
    advantages = torch.randn(rows, generator=draw, dtype=torch.float64)
    mask = torch.rand(rows, length, generator=draw) < 0.7
    terms = policy_terms(new, old, advantages=advantages, mask=mask, clip=(LOW, HIGH))
    loss, kl, clipped = _slow_terms(new, old, advantages, mask)
    assert float(terms.loss) == pytest.approx(loss, rel=1e-4, abs=1e-4)
    assert float(terms.gen_kl) == pytest.approx(kl, rel=1e-4, abs=1e-4)
    assert int(terms.clipped) == clipped
    assert float(terms.gen_kl) >= 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "flows"),
    [(1.0, 1.0, True), (1.27, 1.0, True), (1.29, 1.0, False), (0.5, 1.0, True),
     (1.0, -1.0, True), (0.81, -1.0, True), (0.79, -1.0, False), (2.0, -1.0, True)],
)  # fmt: skip
def test_gradient_stops_only_where_the_clip_cuts(ratio: float, advantage: float, flows: bool) -> None:
    new = torch.full((1, 1), math.log(ratio), requires_grad=True)
    terms = policy_terms(
        new,
        torch.zeros(1, 1),
        advantages=torch.tensor([advantage]),
        mask=torch.ones(1, 1, dtype=torch.bool),
        clip=(LOW, HIGH),
    )
    (gradient,) = torch.autograd.grad(terms.loss, new)
    assert (float(gradient) != 0) == flows
    assert int(terms.clipped) == (not flows)


def test_masked_tokens_carry_no_gradient_even_when_their_ratio_overflows() -> None:
    new = torch.tensor([[0.0, 0.0]], requires_grad=True)
    old = torch.tensor([[0.0, -1e6]])
    mask = torch.tensor([[True, False]])
    terms = policy_terms(new, old, advantages=torch.ones(1), mask=mask, clip=(LOW, HIGH))
    (gradient,) = torch.autograd.grad(terms.loss, new)
    assert gradient.tolist() == [[-1.0, 0.0]]


def test_advantages_are_relative_to_the_group() -> None:
    rewards = torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    advantages = group_advantages(rewards)
    assert advantages[0].tolist() == pytest.approx([-1 / 1.0001, 0.0, 1 / 1.0001])
    assert advantages[1].tolist() == [0.0, 0.0, 0.0]


def test_mask_keeps_the_first_end_token_and_nothing_after_it() -> None:
    tokens = torch.tensor([[4, 7, 4, 7], [7, 4, 4, 4], [4, 4, 4, 4]])
    assert response_mask(tokens, 7).int().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert bool(response_mask(tokens, None).all())


def test_logprobs_are_of_the_tempered_distribution() -> None:
    logits = torch.tensor([[[2.0, 0.0, -2.0]]])
    logprob = token_logprobs(logits, torch.tensor([[0]]), temperature=2.0)
    assert float(logprob) == pytest.approx(1 - math.log(math.exp(1) + 1 + math.exp(-1)))
