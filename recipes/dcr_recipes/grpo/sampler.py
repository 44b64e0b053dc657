"""Which prompts a step trains on: a function of seed and step, so resuming needs no more than the step."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dcr_recipes.grpo.seeds import derived_seed
from dcr_recipes.grpo.settings import GrpoSettings


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of one prompt, and whatever text its reward needs to judge a response."""

    ids: tuple[int, ...]
    answer: str = ""


class PromptSource(Protocol):
    """The prompts of a task. Prompts of a step may differ in length; each is a batch of its own."""

    def prompts(self, step: int) -> tuple[Prompt, ...]:
        """The prompts of ``step``, equal on every process and at every call."""
        ...


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """Uniformly random token prompts of one length: the tiny task's input."""

    seed: int
    num_prompts: int
    num_tokens: int
    vocabulary: int

    def prompts(self, step: int) -> tuple[Prompt, ...]:
        """``num_prompts`` prompts of ``num_tokens`` ids below ``vocabulary``."""
        # Raw words are a stable stream; numpy's higher-level draws may change between releases.
        words = np.random.Philox(key=derived_seed(self.seed, "prompts", step)).random_raw(
            self.num_prompts * self.num_tokens
        )
        ids = (words % np.uint64(self.vocabulary)).reshape(self.num_prompts, self.num_tokens)
        return tuple(Prompt(tuple(row)) for row in ids.tolist())


def random_prompts(settings: GrpoSettings, vocabulary: int) -> RandomPrompts:
    """The tiny task's source for a run."""
    return RandomPrompts(settings.seed, settings.num_prompts, settings.prompt_tokens, vocabulary)
