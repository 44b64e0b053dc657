"""``recipe.task``: where prompts come from, how responses are judged, and where a response ends."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcr_recipes.grpo.arithmetic import ArithmeticPrompts, LastInteger
from dcr_recipes.grpo.rewards import MeanTokenId, Reward
from dcr_recipes.grpo.sampler import PromptSource, random_prompts
from dcr_recipes.grpo.settings import GrpoSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained on; equal on every rank. Tokens after the first ``eos_id`` do not count."""

    source: PromptSource
    reward: Reward
    eos_id: int | None


def random_tokens(settings: GrpoSettings, vocabulary: int) -> Task:
    """Random prompts and a reward that any model earns: needs no tokenizer, and responses never end early."""
    return Task(random_prompts(settings, vocabulary), MeanTokenId(vocabulary), None)


def chain_sum(settings: GrpoSettings, tokenizer: "PreTrainedTokenizerBase") -> Task:
    """Small sums in words."""
    eos_id = tokenizer.eos_token_id
    source = ArithmeticPrompts(settings.seed, settings.num_prompts, tokenizer)
    return Task(source, LastInteger(tokenizer, eos_id), eos_id)
