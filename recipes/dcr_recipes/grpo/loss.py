"""The arithmetic of GRPO, as pure functions (paper Appendix E gives the clipping).

Legend: P prompts, G responses of a group, N responses, T response tokens, V vocabulary entries.
"""

from typing import NamedTuple

import torch

_STD_FLOOR = 1e-4


class PolicyTerms(NamedTuple):
    """Sums over the valid tokens of a batch, 0-d float32: the loss to minimize and two diagnostics.

    ``gen_kl`` sums the k3 estimate of KL(rollout || training), ``clipped`` counts tokens whose gradient
    the clip cut off.
    """

    loss: torch.Tensor
    gen_kl: torch.Tensor
    clipped: torch.Tensor


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """(r - mean) / (std + 1e-4) within each group; ``rewards`` [P, G], G > 1, unbiased std. Same dtype."""
    mean = rewards.mean(dim=1, keepdim=True)
    std = rewards.std(dim=1, keepdim=True)
    return (rewards - mean) / (std + _STD_FLOOR)


def response_mask(tokens: torch.Tensor, eos_id: int | None) -> torch.Tensor:
    """Which of ``tokens`` [N, T] count: everything up to and including the first ``eos_id``. Bool [N, T]."""
    if eos_id is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    is_eos = (tokens == eos_id).long()
    return (is_eos.cumsum(dim=1) - is_eos) == 0


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities of ``tokens`` [N, T] under ``logits`` [N, T, V] as sampled. Float32 [N, T]."""
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return logprobs.gather(-1, tokens[..., None])[..., 0]


def policy_terms(
    logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    *,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: tuple[float, float],
) -> PolicyTerms:
    """Clipped surrogate of ``logprobs`` [N, T] against the rollout's own ``rollout_logprobs`` [N, T].

    ``advantages`` [N] are per response, ``mask`` [N, T] is bool, ``clip`` = (low, high) keeps the ratio
    of training to rollout probability in [1 - low, 1 + high]. Only ``loss`` carries a gradient.
    """
    log_ratio = torch.where(mask, logprobs - rollout_logprobs, 0.0)
    ratio = log_ratio.exp()
    weight = advantages.to(ratio.dtype)[:, None]
    free = ratio * weight
    bounded = ratio.clamp(1.0 - clip[0], 1.0 + clip[1]) * weight
    with torch.no_grad():
        # k3 on samples of the rollout: E[p/q - 1 - log(p/q)] = KL(q || p), and no term is negative.
        gen_kl = (ratio - 1.0 - log_ratio)[mask].sum()
        clipped = (bounded < free)[mask].sum().float()
    return PolicyTerms(-torch.minimum(free, bounded)[mask].sum(), gen_kl, clipped)
