"""Rewards. A reward is a pure function, so every rank computes the same ones."""

from dataclasses import dataclass
from typing import Protocol

import torch

from dcr_recipes.grpo.sampler import Prompt


class Reward(Protocol):
    """Judges the responses to one prompt."""

    def score(self, prompt: Prompt, tokens: torch.Tensor) -> torch.Tensor:
        """Rewards float64 [G] of responses ``tokens`` int64 [G, T]."""
        ...


@dataclass(frozen=True, slots=True)
class MeanTokenId:
    """Graded reward that a random model can earn: the mean token id, plus a little for variety.

    mean(id) / V + 0.1 * (distinct ids) / T, in [0, 1.1]. Sampled responses practically never tie, so each
    group has a nonzero spread, hence advantages, hence changed weights in every step.
    """

    vocabulary: int
    variety: float = 0.1

    def score(self, prompt: Prompt, tokens: torch.Tensor) -> torch.Tensor:
        """Rewards float64 [G]; the prompt does not matter."""
        level = tokens.double().mean(dim=1) / self.vocabulary
        distinct = torch.tensor([len(set(row)) for row in tokens.tolist()], dtype=torch.float64)
        return level + self.variety * distinct / tokens.shape[1]
