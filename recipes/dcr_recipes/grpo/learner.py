"""What the recipe needs of a training framework: an optimizer step, its state, and its shards."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dcr_recipes.grpo.batch import Batch
from dcr_recipes.grpo.loss import PolicyTerms, policy_terms
from dcr_recipes.grpo.settings import GrpoSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from dcr.source.ports import ShardSource


@dataclass(frozen=True, slots=True)
class Learned:
    """One optimizer step: ``sums`` float64 [loss, gen_kl, clipped] over all tokens, and the gradient's norm.

    Equal on all ranks.
    """

    sums: "torch.Tensor"
    grad_norm: float


class Learner(Protocol):
    """A policy in training on this rank. Every rank calls every method, in the same order."""

    def learn(self, batch: Batch) -> Learned:
        """Take one optimizer step on ``batch``."""
        ...

    def capture(self) -> "dict[str, torch.Tensor]":
        """This rank's share of the training state, as plain tensors; may alias it. No collective."""
        ...

    def install(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Go back to a captured state.

        Raises:
            IntegrityError: it lacks a tensor or was captured from another sharding.
        """
        ...

    def gather(self) -> "dict[str, torch.Tensor]":
        """The whole policy as a dense refit would send it, by canonical name, on every rank."""
        ...

    def shards(self) -> "ShardSource":
        """What a delta refit reads. Called once, after the weights of step 0 are there."""
        ...


def group_terms(logprobs: "torch.Tensor", batch: Batch, index: int, settings: GrpoSettings) -> PolicyTerms:
    """Loss of group ``index`` for the training policy's ``logprobs`` [G, T]."""
    return policy_terms(
        logprobs,
        batch.logprobs[index],
        advantages=batch.advantages[index],
        mask=batch.mask[index],
        clip=(settings.clip_low, settings.clip_high),
    )
