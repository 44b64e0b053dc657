"""Sums of one-digit numbers in words: reasoning-gym's ``chain_sum``, judged by the last integer."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from dcr_recipes.grpo.loss import response_mask
from dcr_recipes.grpo.sampler import Prompt
from dcr_recipes.grpo.seeds import derived_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_INTEGER = re.compile(r"-?\d+")
_FORMAT_WEIGHT = 0.2
_SEED_RANGE = 2**31
_SIZE = 2**31 - 1
"""Only an upper bound: an item is made when it is asked for."""

Chat: TypeAlias = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class ArithmeticPrompts:
    """``num_prompts`` questions a step, of two terms of one digit. Lengths may differ."""

    seed: int
    num_prompts: int
    tokenizer: "PreTrainedTokenizerBase"

    def prompts(self, step: int) -> tuple[Prompt, ...]:
        """The questions of ``step`` (from 1); every item of the data set is used once."""
        from reasoning_gym import create_dataset

        items = create_dataset(
            "chain_sum",
            size=_SIZE,
            seed=derived_seed(self.seed, "chain_sum") % _SEED_RANGE,
            min_terms=2,
            max_terms=2,
            min_digits=1,
            max_digits=1,
        )
        first = (step - 1) * self.num_prompts
        return tuple(self._prompt(items[first + i]) for i in range(self.num_prompts))

    def _prompt(self, item: "dict[str, object]") -> Prompt:
        metadata = item["metadata"]
        assert isinstance(metadata, dict)
        question = f"What is {metadata['expression']}? Answer with the number only."
        return Prompt(encode(self.tokenizer, question), str(item["answer"]))


def encode(tokenizer: "PreTrainedTokenizerBase", question: str) -> tuple[int, ...]:
    """Token ids of ``question``, in the tokenizer's chat form if it has one."""
    if tokenizer.chat_template is None:
        return tuple(tokenizer(f"{question}\n")["input_ids"])
    chat: Chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True, slots=True)
class LastInteger:
    """1 if the last integer of the text is the answer, plus up to 0.2 for little text around it.

    The second part is graded, so that a group without a right answer mostly has advantages all the same.
    """

    tokenizer: "PreTrainedTokenizerBase"
    eos_id: int | None

    def score(self, prompt: Prompt, tokens: torch.Tensor) -> torch.Tensor:
        """Rewards float64 [G] of responses ``tokens`` [G, T], each read up to its first end-of-sequence."""
        mask = response_mask(tokens, self.eos_id)
        rows = [row[kept].tolist() for row, kept in zip(tokens, mask, strict=True)]
        texts = [str(self.tokenizer.decode(row, skip_special_tokens=True)) for row in rows]
        return torch.tensor([judge(text, prompt.answer) for text in texts], dtype=torch.float64)


def judge(text: str, answer: str) -> float:
    """Reward of one response, in [0, 1.2]; 0 for a text without an integer."""
    found = _INTEGER.findall(text)
    if not found:
        return 0.0
    share = len(found[-1]) / len("".join(text.split()))
    return float(int(found[-1]) == int(answer)) + _FORMAT_WEIGHT * share
