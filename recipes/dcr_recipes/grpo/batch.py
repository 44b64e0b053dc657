"""One step's experience, as every trainer rank holds it. Legend: P prompt groups, G responses, T tokens."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcr_recipes.grpo.sampler import Prompt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's experience, equal on every rank.

    ``tokens`` int64, the rollout's ``logprobs`` float32 and ``mask`` bool are [P, G, T]; ``rewards``
    and ``advantages`` are float64 [P, G].
    """

    prompts: tuple[Prompt, ...]
    tokens: "torch.Tensor"
    logprobs: "torch.Tensor"
    mask: "torch.Tensor"
    rewards: "torch.Tensor"
    advantages: "torch.Tensor"

    def sequences(self, index: int) -> "torch.Tensor":
        """Prompt and responses of group ``index``, int64 [G, L + T]."""
        import torch

        tokens = self.tokens[index]
        prefix = torch.tensor(self.prompts[index].ids, dtype=torch.int64).expand(tokens.shape[0], -1)
        return torch.cat([prefix, tokens], dim=1)
