"""What a step leaves behind: figures for people, and digests that show whether two runs are the same."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dcr.model import stored_bits


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimizer step. Means are over valid response tokens, ``reward_*`` over responses.

    ``version`` made the rollouts; ``gen_kl_error`` estimates KL(rollout || training) per token;
    ``token_digest`` is of every response of the step, in order.
    """

    step: int
    version: int
    reward_mean: float
    reward_std: float
    loss: float
    gen_kl_error: float
    clip_fraction: float
    grad_norm: float
    num_tokens: int
    token_digest: str


def token_digest(tokens: torch.Tensor) -> str:
    """BLAKE2b-128 of int64 ``tokens`` of any shape, hexadecimal; the shape counts too."""
    digest = hashlib.blake2b(repr(tuple(tokens.shape)).encode(), digest_size=16)
    digest.update(tokens.to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()


def run_token_digest(history: Sequence[StepMetrics]) -> str:
    """BLAKE2b-128 of the token digests of all steps: equal for two runs that saw the same tokens."""
    text = "".join(metrics.token_digest for metrics in history)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def weights_digest(dense: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the raw bytes of ``dense``'s tensors, by sorted name; names count too."""
    digest = hashlib.sha256()
    for name in sorted(dense):
        digest.update(name.encode() + b"\0")
        digest.update(stored_bits(dense[name]).data)
    return digest.hexdigest()
