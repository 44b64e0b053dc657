"""Reproducible generation: tokens of a prompt group depend on weights, prompt and seeds, and on nothing else.

A group is one batch of fixed shape, prefilled alone; each row is sampled from its own stream. So it
does not matter which process serves it, nor what was served before. Legend: G responses of a group,
L prompt tokens, T new tokens, V vocabulary entries.
"""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from dcr.errors import ConfigError
from dcr_adapters.hf.prompt_cache import Prefilled, PromptCache

if TYPE_CHECKING:
    from torch import nn

_RAW_BITS = 64
_DOUBLE_BITS = 53


class Responses(NamedTuple):
    """``tokens`` int64 [G, T]; ``logprobs`` float32 [G, T] under the distribution they were drawn from."""

    tokens: torch.Tensor
    logprobs: torch.Tensor


def generate_group(
    model: "nn.Module",
    prompt_ids: torch.Tensor,
    *,
    max_new_tokens: int,
    seeds: Sequence[int],
    temperature: float,
    prompts: PromptCache | None = None,
) -> Responses:
    """Sample one response per seed (G = len(seeds)) to ``prompt_ids`` int64 [L], T = ``max_new_tokens`` each.

    ``prompts`` saves the prefill of a prompt that it knows; it must know nothing of other weights.
    Rows go on after an end-of-sequence token, so that the shape stays fixed: the caller masks them.

    Raises:
        ConfigError: no seed, no prompt token, or a temperature that is not positive.
    """
    if not len(seeds) or prompt_ids.numel() == 0 or not temperature > 0:
        raise ConfigError("generation needs at least one seed and prompt token, and a temperature > 0")
    streams = [np.random.Philox(key=seed) for seed in seeds]
    tokens: list[torch.Tensor] = []
    logprobs: list[torch.Tensor] = []
    with torch.no_grad():
        state = _prefill(model, prompt_ids, len(seeds), prompts)
        for position in range(max_new_tokens):
            if position:
                state = _forward(model, tokens[-1], state.kv)
            drawn = [
                _draw(row, stream, temperature) for row, stream in zip(state.logits, streams, strict=True)
            ]
            tokens.append(torch.tensor([[token] for token, _ in drawn], dtype=torch.int64))
            logprobs.append(torch.tensor([[logprob] for _, logprob in drawn], dtype=torch.float32))
    return Responses(torch.cat(tokens, dim=1), torch.cat(logprobs, dim=1))


def _prefill(
    model: "nn.Module", prompt_ids: torch.Tensor, num_rows: int, prompts: PromptCache | None
) -> Prefilled:
    """Logits [G, V] and KV cache after the prompt, the whole group as one batch."""
    key = (num_rows, tuple(prompt_ids.tolist()))
    held = None if prompts is None else prompts.get(key)
    if held is not None:
        return held
    made = _forward(model, prompt_ids.expand(num_rows, -1), None)
    if prompts is not None:
        prompts.put(key, made)
    return made


def _forward(model: "nn.Module", input_ids: torch.Tensor, kv: object) -> Prefilled:
    """One step over ``input_ids`` [G, L] after what ``kv`` holds (None: nothing); extends ``kv``."""
    name = _cache_key(model)
    past = {} if kv is None else {name: kv}
    out = model(input_ids=input_ids, use_cache=True, logits_to_keep=1, **past)
    return Prefilled(out["logits"][:, -1], out[name])


def _draw(logits: torch.Tensor, stream: np.random.Philox, temperature: float) -> tuple[int, float]:
    """Draw a token from ``logits`` [V] by the inverse distribution function, in float64 on this row only."""
    logprobs = torch.log_softmax(logits.double() / temperature, dim=-1)
    distribution = logprobs.exp().cumsum(0)
    # The bit generator's raw stream is stable across releases; torch's CPU generator would drop the
    # upper half of the seed.
    uniform = (int(stream.random_raw()) >> (_RAW_BITS - _DOUBLE_BITS)) * 2.0**-_DOUBLE_BITS
    drawn = torch.searchsorted(distribution, uniform * distribution[-1], right=True)
    token = min(int(drawn), logits.numel() - 1)
    return token, float(logprobs[token])


def _cache_key(model: "nn.Module") -> str:
    """Name of the KV cache in the model's arguments and outputs (renamed during transformers 5)."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
